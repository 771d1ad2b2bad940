"""The processes of a cluster on this machine: starting them, finding them by a mark, and ending them."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

from conf.configuration import Configuration
from conf.options import ResourceManagerDriverType, ResourceManagerOptions, TaskManagerOptions
from runtime.environment.directory import CLUSTER_DIR_VARIABLE, ClusterDirectory, ClusterLock
from runtime.errors import ClusterError
from runtime.process_signals import signal_process

if TYPE_CHECKING:
    from runtime.ha.redis_process import EmbeddedRedis


logger = logging.getLogger(__name__)

MASTER, HOST = "runtime.cluster.entrypoint", "runtime.cluster.host"
"""Modules of the processes that hold the lock of a directory and start all others."""
FIRST, JOINING, MEMBER = "first", "join", "member"
"""Modes of a master's start: a new cluster, one more of a running cluster, one host's of a cluster on several."""
_HEADS = {MASTER.encode(), HOST.encode()}
LAST_WORDS_S = 30.0
"""Seconds for a process to end after it has reported why it does not serve."""


def fixed_workers(configuration: Configuration) -> int:
    """Return the number of workers that start with the cluster; 0 if they are started on demand."""
    is_fixed = configuration.get(ResourceManagerOptions.DRIVER) is ResourceManagerDriverType.STANDALONE
    return configuration.get(TaskManagerOptions.COUNT) if is_fixed else 0


class ClusterStartError(ClusterError):
    """The cluster did not start; all started processes have been stopped again."""


def launch(
    directory: ClusterDirectory, lock: ClusterLock, name: str, module: str, arguments: Sequence[str], deadline: float
) -> str:
    """Start a process of the cluster in the background and return its address once it serves.

    The lock passes to it. If this fails, the process has ended and the caller still holds the lock. So no other process
    has started a cluster in the directory.

    Args:
        directory: of the cluster.
        lock: of the directory, held.
        name: of its log, and for messages.
        module: the module that it runs. Its first arguments are the directory, a descriptor for its report, and the
            descriptor of the lock.
        arguments: the other arguments.
        deadline: in monotonic seconds.

    Raises:
        ClusterStartError: it does not serve by the deadline, or reports why it cannot.
    """
    reading, writing = os.pipe()
    output = os.open(directory.log / f"{name}.out", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, str(directory.root), str(writing), str(lock.descriptor), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(writing, lock.descriptor),
            start_new_session=True,
            env={**os.environ, CLUSTER_DIR_VARIABLE: str(directory.root), "PYTHONPATH": _python_path()},
        )
    finally:
        os.close(writing)
        os.close(output)
    try:
        with os.fdopen(reading, "rb", buffering=0) as pipe:
            answer = _line_of(pipe, deadline)
        log = directory.log / f"{name}.log"
        if answer is None:
            raise ClusterStartError(f"the {name} did not serve within cluster.start-timeout", f"see {log}")
        if not answer:
            status = process.wait()
            how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
            raise ClusterStartError(
                f"the {name} {how} before it served", f"see {log} and {directory.log / f'{name}.out'}"
            )
        report = json.loads(answer)
        if "error" in report:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(LAST_WORDS_S)
            raise ClusterStartError(report["error"], report["remedy"] or f"see {log}")
    except BaseException:
        process.kill()
        process.wait()
        raise
    lock.hand_over()
    return str(report["address"])


class Report:
    """Answer of a started process to `launch`: one line, on the descriptor that it was given.

    Only the first report is sent. If the starter has ended, the report is dropped.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor
        os.set_inheritable(descriptor, False)

    def send(self, **values: str) -> None:
        """Send ``address``, or ``error`` and ``remedy``."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        try:
            os.write(descriptor, json.dumps(values).encode() + b"\n")
        except BrokenPipeError:
            logger.warning("the process that started this master has ended")
        os.close(descriptor)


def last_words(directory: ClusterDirectory, name: str) -> str:
    """Return the last line of a process's ``.out`` file, which tells why it ended; empty if there is none."""
    with contextlib.suppress(FileNotFoundError):
        lines = (directory.log / f"{name}.out").read_text(errors="replace").strip().splitlines()
        return lines[-1].removeprefix("error: ") if lines else ""
    return ""


def _line_of(pipe: FileIO, deadline: float) -> bytes | None:
    """Read a pipe up to the end of a line, or to its own end; None if neither has come by the deadline."""
    answer = b""
    while not answer.endswith(b"\n"):
        ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return None
        chunk = pipe.read(65536)
        if not chunk:
            return b""
        answer += chunk
    return answer


def _python_path() -> str:
    """Return a ``PYTHONPATH`` with which the cluster's processes run this same code."""
    root = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join(dict.fromkeys([root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]))


def embedded_redis(directory: ClusterDirectory) -> EmbeddedRedis | None:
    """Return the cluster's own Redis, running or not; None if it uses another one."""
    if not (directory.redis / "redis.conf").exists() or not directory.run.exists():
        return None
    from runtime.ha.redis_process import EmbeddedRedis

    return EmbeddedRedis(directory.redis, socket_path=directory.socket_dir() / "redis.sock")


def sweep(directory: ClusterDirectory) -> int:
    """End all processes of the directory's cluster; return how many there were.

    The caller must hold the directory's lock alone, so that no process can be started during the sweep.

    Raises:
        RedisServerError: Redis does not end; all other processes have ended.
    """
    try:
        processes = left_behind(directory)
        redis = embedded_redis(directory)
        if redis is not None:
            redis.stop()
    finally:
        for number, patience_s in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
            for pid in processes_of(directory):
                signal_process(pid, number, functools.partial(_has_mark, directory, pid))
            if await_condition(lambda: not processes_of(directory), patience_s):
                break
    return len(processes)


def is_member(pid: int) -> bool:
    """Return whether a process is one host's master of a cluster on several hosts."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")[-1] == MEMBER.encode()
    except OSError:  # it has just ended
        return False


def kill_heads(directory: ClusterDirectory, incarnation: str | None) -> bool:
    """SIGKILL a cluster's masters, or the process of a host's workers; return whether it is still the same cluster.

    Args:
        directory: of the cluster.
        incarnation: which cluster; a later one is not touched.
    """
    with contextlib.ExitStack() as stack:
        heads = []
        for pid in processes_of(directory):
            with contextlib.suppress(OSError):  # it has ended
                descriptor = os.pidfd_open(pid)
                stack.callback(os.close, descriptor)
                if not _HEADS.isdisjoint(Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")):
                    heads.append(descriptor)
        # Checked after they were found: a new cluster writes its incarnation before it starts a process.
        is_same = directory.incarnation() == incarnation
        for descriptor in heads if is_same else ():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    return is_same


def left_behind(directory: ClusterDirectory) -> list[int]:
    """Return all processes of the directory's cluster.

    redis-server overwrites its environment with its title, so the mark does not find it.
    """
    redis = embedded_redis(directory)
    pid = None if redis is None else redis.find()
    return processes_of(directory) + ([] if pid is None else [pid])


def processes_of(directory: ClusterDirectory) -> list[int]:
    """Return the processes with the cluster's mark in their environment, whatever their present parent is."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):  # it has ended, or is another user's
                if _has_mark(directory, int(entry.name)):
                    found.append(int(entry.name))
    return found


def _has_mark(directory: ClusterDirectory, pid: int) -> bool:
    """Return whether a process is of the directory's cluster. Raises OSError: it has ended, or is another user's."""
    mark = f"{CLUSTER_DIR_VARIABLE}={directory.root}".encode()
    return mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


def await_condition(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Wait for a condition; return whether it held within *timeout_s* seconds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True

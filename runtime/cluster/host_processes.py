"""The processes of a cluster on this machine: started in the background, found again by a mark, and ended."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runtime.environment.directory import CLUSTER_DIR_VARIABLE, ClusterDirectory
from runtime.environment.errors import ClusterError

if TYPE_CHECKING:
    from runtime.ha.redis_process import EmbeddedRedis


class ClusterStartError(ClusterError):
    """The cluster did not come up; what was started has been stopped again."""


def launch(directory: ClusterDirectory, name: str, module: str, arguments: Sequence[str], deadline: float) -> str:
    """Start a process of the cluster in the background and return the address that it says once it serves.

    Args:
        directory: of the cluster.
        name: of its log, and for messages.
        module: what it runs, with the directory and a descriptor for its report as the first arguments.
        arguments: the rest of them.
        deadline: in monotonic seconds.

    Raises:
        ClusterStartError: it does not serve by then, or says why it does not.
    """
    reading, writing = os.pipe()
    output = os.open(directory.log / f"{name}.out", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", module, str(directory.root), str(writing), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(writing,),
            start_new_session=True,
            env={**os.environ, CLUSTER_DIR_VARIABLE: str(directory.root), "PYTHONPATH": _python_path()},
        )
    finally:
        os.close(writing)
        os.close(output)
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        answer = b""
        while not answer.endswith(b"\n"):
            ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
            chunk = pipe.read(65536) if ready else b""
            if not chunk:
                break
            answer += chunk
    log = directory.log / f"{name}.log"
    if not answer:
        ended = process.poll() is not None
        what = "ended before it served" if ended else "did not serve within cluster.start-timeout"
        raise ClusterStartError(f"the {name} {what}", f"see {log} and {directory.log / f'{name}.out'}")
    report = json.loads(answer)
    if "error" in report:
        process.wait(10)
        raise ClusterStartError(report["error"], report["remedy"] or f"see {log}")
    return str(report["address"])


def _python_path() -> str:
    """Where this very code is, so that the cluster's processes run the same."""
    root = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join(dict.fromkeys([root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]))


def embedded_redis(directory: ClusterDirectory) -> EmbeddedRedis | None:
    """The cluster's own Redis, running or not; None where another one is used."""
    if not (directory.redis / "redis.conf").exists() or not directory.run.exists():
        return None
    from runtime.ha.redis_process import EmbeddedRedis

    return EmbeddedRedis(directory.redis, socket_path=directory.socket_dir() / "redis.sock")


def sweep(directory: ClusterDirectory) -> int:
    """End all processes that belong to the directory's cluster; returns how many there were."""
    processes = processes_of(directory)
    redis = embedded_redis(directory)
    if redis is not None and (pid := redis.pid) is not None:
        # redis-server writes its title over its environment, so the mark does not find it.
        processes.append(pid)
        redis.stop()
    for number, patience_s in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        for pid in processes_of(directory):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        if await_condition(lambda: not processes_of(directory), patience_s):
            break
    return len(processes)


def processes_of(directory: ClusterDirectory) -> list[int]:
    """Living processes that carry the cluster's mark in their environment, whoever their parent is by now."""
    mark = f"{CLUSTER_DIR_VARIABLE}={directory.root}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):  # it has ended, or is another user's
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def await_condition(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Wait until something is so; returns whether it was within *timeout_s* seconds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True

"""The command line in a process that has loaded it once, and forks for each command.

A Python that starts and imports what a command needs takes more than half a second of a core, several hundred times in
a run of the tests. The forked process has the arguments, directory, environment and files of its caller, and runs the
same `main`; `Popen(cluster.command(...))` starts a Python of its own, as a shell does.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_CLI = "understudy.runtime.cluster.cli"
_LOADED = (
    "actors.client",
    "blob.client",
    "runtime.api",
    "runtime.client",
    "runtime.cluster.cli",
    "runtime.cluster.discovery",
    "runtime.cluster.session",
    "runtime.environment.context",
    "runtime.job_file",
)
"""Modules that commands import when they need them."""


def _of_python(env: Mapping[str, str]) -> dict[str, str]:
    """Variables that Python reads when it starts."""
    return {name: value for name, value in env.items() if name.startswith("PYTHON")}


class CommandServer:
    """The process that forks, as its callers see it; it starts with the first command, and ends with this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._python = _of_python(os.environ)

    def run(
        self, arguments: Sequence[str], *, cwd: Path, env: Mapping[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """Run ``understudy`` with *arguments* to its end, without input.

        Raises:
            subprocess.TimeoutExpired: it did not end in time, and was killed.
        """
        if _of_python(env) != self._python:
            return subprocess.run(
                [sys.executable, "-m", "understudy", *arguments],
                cwd=cwd,
                env=env,
                timeout=timeout,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )
        with contextlib.ExitStack() as stack:
            asked, out, err = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
            asked.write(json.dumps({"arguments": list(arguments), "cwd": str(cwd), "env": dict(env)}).encode())
            asked.seek(0)
            reading, writing = os.pipe()
            told = stack.enter_context(os.fdopen(reading, "rb", buffering=0))
            with os.fdopen(writing, "wb") as theirs, self._lock:
                socket.send_fds(self._connected(), [b"run"], [file.fileno() for file in (asked, out, err, theirs)])
            pid = int(told.readline())
            if not select.select([told], [], [], timeout)[0]:
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(list(arguments), timeout)
            status = int(told.readline())
            for file in (out, err):
                file.seek(0)
            return subprocess.CompletedProcess(list(arguments), status, out.read().decode(), err.read().decode())

    def _connected(self) -> socket.socket:
        if self._control is None:
            self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                process = subprocess.Popen(
                    [sys.executable, "-m", "tests.command_server", str(theirs.fileno())],
                    cwd=ROOT,
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                )
            atexit.register(process.wait)
            atexit.register(self._control.close)  # which is done first
        return self._control


COMMANDS = CommandServer()


def _serve(control: socket.socket) -> list[str] | None:
    """Fork for each request until the caller is gone; returns a command's arguments in the process for it."""
    told: dict[int, int] = {}
    waking, woken = os.pipe()
    for end in (waking, woken):
        os.set_blocking(end, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    watched: list[socket.socket | int] = [control, waking]
    while True:
        ready, _, _ = select.select(watched, [], [])
        if waking in ready:
            os.read(waking, 4096)
            _tell_ends(told)
        if control not in ready:
            continue
        message, files, _, _ = socket.recv_fds(control, 16, 4)
        if not message:
            return None
        asked, out, err, tell = files
        pid = os.fork()
        if pid:
            told[pid] = tell
            os.write(tell, f"{pid}\n".encode())
            for file in (asked, out, err):
                os.close(file)
            continue
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(out, 1)
        os.dup2(err, 2)
        for file in (out, err, *(tell, *told.values()), waking, woken, control.detach()):
            os.close(file)
        with os.fdopen(asked, "rb") as text:
            request = json.load(text)
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["env"])
        time.tzset()
        sys.path[0] = request["cwd"]
        return list(request["arguments"])


def _tell_ends(told: dict[int, int]) -> None:
    """Write the statuses of those that have ended to who has asked for them."""
    while told:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        file = told.pop(pid)
        with contextlib.suppress(BrokenPipeError):  # its caller waits no longer
            os.write(file, f"{os.waitstatus_to_exitcode(status)}\n".encode())
        os.close(file)


def main() -> None:
    """Serve; in a forked process, run its command."""
    for name in _LOADED:
        importlib.import_module(f"understudy.{name}")
    gc.collect()
    gc.freeze()
    arguments = _serve(socket.socket(fileno=int(sys.argv[1])))
    if arguments is not None:
        sys.argv[1:] = arguments
        importlib.import_module(_CLI).main()


if __name__ == "__main__":
    main()

"""Processes for the Spark runtime: identified by more than their pid, and watched so that their end shows at once."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import select
import signal
from pathlib import Path

import psutil

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def start_time(pid: int) -> int | None:
    """Return the start time of a process in clock ticks since boot, None where it does not live.

    Unlike a pid alone, both together identify one process for as long as the machine is up. A zombie counts as dead
    once its last thread has ended: until then its files are open and its locks held.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()
    return None if fields[0] in (b"Z", b"X") and int(fields[17]) <= 1 else int(fields[19])


def die_with(parent: int) -> None:
    """Let the kernel kill this process when the *thread* that forked it ends; call it in a freshly forked child.

    *parent* is the expected pid of the parent process. Raises `OSError`.
    """
    if _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    if os.getppid() != parent:  # it died between the fork and the prctl
        os.kill(os.getpid(), signal.SIGKILL)


def children_of(pid: int) -> list[psutil.Process]:
    """Return the descendants of a process; none where it has ended."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []


def open_process(pid: int) -> int:
    """Return the pidfd of a process; raises `ProcessLookupError` where there is none.

    Newer kernels raise `FileNotFoundError` while the process is reaped. If a thread of another process has got the pid,
    they raise that too, and older ones EINVAL.
    """
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EINVAL):
            raise
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH)) from error


class ProcessHandle:
    """A process, child or not, held by a pidfd: signals cannot hit another process that got its pid."""

    def __init__(self, pid: int, started: int) -> None:
        """Open the process. Raises `ProcessLookupError` where no process `pid` with that start time lives."""
        self.pid = pid
        self._fd = open_process(pid)
        if start_time(pid) != started:
            self.close()
            raise ProcessLookupError(f"process {pid} is not the one that started at tick {started}")

    @property
    def alive(self) -> bool:
        """Return whether the process lives (a zombie does not)."""
        return self._fd >= 0 and not select.select([self._fd], [], [], 0)[0]

    def fileno(self) -> int:
        """Return the pidfd, which is readable once the process has ended."""
        return self._fd

    def send_signal(self, number: int) -> None:
        """Send a signal; a process that has ended is not an error."""
        try:
            signal.pidfd_send_signal(self._fd, number)
        except ProcessLookupError:
            return

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end of the process; return False where `timeout` seconds passed first."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def on_end() -> None:
            if not ended.done():
                ended.set_result(None)

        fd = os.dup(self._fd)  # a copy, so that several may wait and `close` does not close it
        loop.add_reader(fd, on_end)
        try:
            async with asyncio.timeout(timeout):
                await ended
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(fd)
            os.close(fd)
        return True

    def close(self) -> None:
        """Close the pidfd; the process keeps running."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

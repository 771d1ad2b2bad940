"""The process of a driver and the calls to it: the part that all kinds of driver share."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, Protocol, TypeVar

import psutil

from runtime.spark.driver.api import DriverInfo
from runtime.spark.errors import DriverLostError
from runtime.spark.process import ProcessHandle, children_of

logger = logging.getLogger(__name__)

_DISCONNECT_TIMEOUT = 2.0


class Gateway(Protocol):
    """Makes blocking calls to a driver."""

    def close(self) -> None:
        """Close the connections; the driver keeps running."""


T = TypeVar("T")
G = TypeVar("G", bound=Gateway)


class Connection(Generic[G]):
    """A driver's process, watched by its pidfd, and the blocking calls to it, which run on a thread pool.

    Args:
        info: its addresses and its process id.
        gateway: makes the calls.
        pool: the threads.
        process: the process. Default: the one that *info* names.
        child: the same process, if it is a child of this one.

    Raises:
        DriverLostError: the process has ended, or another process has its pid.
    """

    def __init__(
        self,
        info: DriverInfo,
        gateway: G,
        pool: ThreadPoolExecutor,
        process: ProcessHandle | None = None,
        child: subprocess.Popen[bytes] | None = None,
    ) -> None:
        self.info = info
        self.gateway = gateway
        self._process = process or process_of(info)
        self._pool = pool
        self._child = child
        self._closed = False
        self._condemned = ""

    @property
    def loss(self) -> str:
        """Reason shown when the process is lost."""
        return f"{self.info.loss}: {self._condemned}" if self._condemned else self.info.loss

    @property
    def alive(self) -> bool:
        """Return whether the process lives."""
        return self._process.alive

    async def wait_dead(self, timeout: float | None = None) -> bool:
        """Wait until the process has ended, which its pidfd shows at once; False after `timeout` seconds."""
        return await self._process.wait(timeout)

    async def call(self, function: Callable[..., T], *arguments: object) -> T:
        """Run a blocking call on one of the threads. Raises `DriverLostError` where the process has ended."""
        if not self.alive:
            raise DriverLostError(f"the {self.info.role} (process {self.info.pid}) is gone; see {self.info.log_file}")
        return await run_on(self._pool, function, *arguments)

    def kill(self, why: str = "") -> None:
        """End the process at once, by SIGKILL; *why* becomes part of the reason of its loss."""
        self._condemned = self._condemned or why
        self._process.send_signal(signal.SIGKILL)

    async def stop(self, timeout: float) -> None:
        """End the process by SIGTERM, and after `timeout` seconds by SIGKILL. Does nothing after `close` or `stop`."""
        if self._closed:
            return
        workers = children_of(self.info.pid) if self.alive else []
        await self._disconnect()
        self._process.send_signal(signal.SIGTERM)
        if not await self.wait_dead(timeout):
            logger.warning("the %s %d did not end within %.0f s and is killed", self.info.role, self.info.pid, timeout)
            self._process.send_signal(signal.SIGKILL)
            await self.wait_dead()
        for worker in workers:  # Python daemons: they end when their standard input does, unless they are stuck
            with contextlib.suppress(psutil.Error):
                worker.kill()
        if self._child is not None:
            self._child.wait()
        self._let_go()
        self.info.file.unlink(missing_ok=True)

    async def close(self) -> None:
        """Disconnect from the process, which keeps running. May be repeated."""
        if not self._closed:
            await self._disconnect()
            self._let_go()

    async def _disconnect(self) -> None:
        """Close the connections on another thread: a JVM that hangs may occupy all threads of the pool."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DISCONNECT_TIMEOUT):
                await asyncio.to_thread(self.gateway.close)

    def _let_go(self) -> None:
        self._closed = True
        self._pool.shutdown(wait=False)
        self._process.close()


def process_of(info: DriverInfo) -> ProcessHandle:
    """Return the process of a driver; raises `DriverLostError`."""
    try:
        return ProcessHandle(info.pid, info.start_time)
    except OSError as error:
        raise DriverLostError(f"the {info.role} of {info.file} is gone: {error}") from error


def new_pool() -> ThreadPoolExecutor:
    """Return threads for the calls to one driver."""
    return ThreadPoolExecutor(max_workers=4, thread_name_prefix="spark-driver")


async def run_on(pool: ThreadPoolExecutor, function: Callable[..., T], *arguments: object) -> T:
    """Run a blocking call on one of the threads of *pool*."""
    return await asyncio.get_running_loop().run_in_executor(pool, lambda: function(*arguments))

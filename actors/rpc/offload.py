"""Offload of values that are too large for a frame: they travel outside the connection, if the service allows it.

Values below the limit travel as usual. When an ask does not fit, the caller uploads its arguments with its `Offloader`,
and the frame carries the key instead. When a result does not fit, the serving side uploads it. The asker must have
announced at the start of the connection that it can fetch results. A tell is never offloaded, because later messages
would overtake it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from actors.errors import ActorError, OffloadError
from actors.rpc import wire
from actors.rpc.connection import PendingAsk, ServerConnection

RESULT_KEPT_S = 60.0
"""Seconds for which a result is kept; its asker fetches it as soon as it has the reply."""


class Offloader(Protocol):
    """Store for values that are too large. The service calls it on its loop, so it must not block.

    The asker sees each of its errors as an `OffloadError`.
    """

    async def put(self, data: bytes, /) -> str:
        """Keep *data* and return its key, never empty. Each `put` of the same content needs a call of `release`."""

    async def get(self, key: str, /) -> bytes:
        """Return data that this or another process has put."""

    def release(self, key: str, /) -> None:
        """End one use of data that was put."""

    async def close(self) -> None:
        """Drop all data that is still kept."""


class ThreadOffloader(Protocol):
    """Blocking counterpart of `Offloader` for calls of plain threads."""

    def put_blocking(self, data: bytes, /) -> str:
        """Keep *data*; see `Offloader.put`."""

    def get_blocking(self, key: str, /) -> bytes:
        """Return data; see `Offloader.get`."""

    def release(self, key: str, /) -> None:
        """End one use; see `Offloader.release`. It must not block."""

    def close_blocking(self) -> None:
        """Drop all data; see `Offloader.close`."""


@contextmanager
def _told(what: str) -> Iterator[None]:
    try:
        yield
    except OffloadError:
        raise
    except Exception as error:  # the asker gets any error of the offloader
        raise OffloadError(f"{what}: {error}") from error


def _not_put(data: bytes) -> str:
    return f"{len(data)} bytes over rpc.frame-size could not be sent apart"


_NOT_FETCHED = "a value over rpc.frame-size could not be fetched"


def put_by_thread(offloader: ThreadOffloader, value: Any) -> str:
    """Put a plain value and return its key. Raises OffloadError."""
    data = wire.pack_value(value)
    with _told(_not_put(data)):
        return offloader.put_blocking(data)


def get_by_thread(offloader: ThreadOffloader, key: str) -> Any:
    """Return the plain value of a key; raises OffloadError, or WireError when the data is malformed."""
    with _told(_NOT_FETCHED):
        data = offloader.get_blocking(key)
    return wire.unpack_value(data)


class Offload:
    """The large values of one service.

    Args:
        loop: the loop of the service.

    Attributes:
        offloader: None to reject values that are too large.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.offloader: Offloader | None = None
        self._loop = loop
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Any) -> None:
        """Run *work*, a coroutine that handles its own errors, as a task."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _required(self) -> Offloader:
        if self.offloader is None:
            raise OffloadError("this process has no offloader: it takes no values over rpc.frame-size")
        return self.offloader

    async def put(self, value: Any) -> tuple[str, int]:
        """Put a plain value; return its key and its size in bytes. Raises OffloadError."""
        data = wire.pack_value(value)
        with _told(_not_put(data)):
            return await self._required().put(data), len(data)

    async def get(self, key: str) -> Any:
        """Return the plain value of a key; raises OffloadError, or WireError when the data is malformed."""
        with _told(_NOT_FETCHED):
            data = await self._required().get(key)
        return wire.unpack_value(data)

    def release(self, key: str) -> None:
        """End one use of data that this service has put."""
        if self.offloader is not None:
            self.offloader.release(key)

    async def fetch_result(self, ask: PendingAsk, key: str) -> None:
        """Resolve an ask whose reply was offloaded."""
        try:
            async with asyncio.timeout_at(ask.deadline):
                outcome = ask.decode(await self.get(key))
        except TimeoutError:
            self._resolve(ask.future, ask.on_timeout())
        except ActorError as error:
            self._resolve(ask.future, error)
        except asyncio.CancelledError:
            self._resolve(ask.future, OffloadError("the RPC service was closed while the result was fetched"))
            raise
        else:
            if not ask.future.done():
                ask.future.set_result(outcome)

    async def send_result(
        self, connection: ServerConnection, encoder: wire.FrameEncoder, correlation: int, value: Any
    ) -> None:
        """Put a result and send its key to the asker; raises OffloadError."""
        key, size = await self.put(value)
        self._loop.call_later(RESULT_KEPT_S, self.release, key)
        connection.send(encoder.encode([wire.OFFLOADED, correlation, key, size]))

    @staticmethod
    def _resolve(future: asyncio.Future[Any], error: Exception) -> None:
        if not future.done():
            future.set_exception(error)

    async def close(self) -> None:
        """Cancel the running transfers, and close the offloader."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.offloader is not None:
            await self.offloader.close()

"""Values that are too large for a frame travel beside the connection, where the owner of the service provides for it.

Below the limit nothing changes. The arguments of an ask that does not fit are put with the service's `Offloader`, and
the frame carries the key in their place; a result that does not fit is put by the service that serves, if the asker
has said at the beginning of the connection that it can fetch it. A tell is never offloaded: it would be overtaken.
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
"""For how long a result is there to be fetched: its asker does so as soon as it has the reply."""


class Offloader(Protocol):
    """Where values go that are too large. All of it is called on the service's loop, and must not block it.

    Whatever it raises is an `OffloadError` for the asker.
    """

    async def put(self, data: bytes, /) -> str:
        """Keep *data* until as many calls of `release` as of this for the same content; return the key, never empty."""

    async def get(self, key: str, /) -> bytes:
        """Return what another process, or this one, has put."""

    def release(self, key: str, /) -> None:
        """One use of what was put is over."""

    async def close(self) -> None:
        """Give up what is still kept."""


class ThreadOffloader(Protocol):
    """As `Offloader`, for the calls of plain threads, which wait for it."""

    def put_blocking(self, data: bytes, /) -> str:
        """As `Offloader.put`."""

    def get_blocking(self, key: str, /) -> bytes:
        """As `Offloader.get`."""

    def release(self, key: str, /) -> None:
        """As `Offloader.release`: it must not block."""

    def close_blocking(self) -> None:
        """As `Offloader.close`."""


@contextmanager
def _told(what: str) -> Iterator[None]:
    try:
        yield
    except OffloadError:
        raise
    except Exception as error:  # whatever its owner's errors are, the asker has to be told
        raise OffloadError(f"{what}: {error}") from error


def _not_put(data: bytes) -> str:
    return f"{len(data)} bytes over rpc.frame-size could not be sent apart"


_NOT_FETCHED = "a value over rpc.frame-size could not be fetched"


def put_by_thread(offloader: ThreadOffloader, value: Any) -> str:
    """Put a plain value; returns its key. Raises OffloadError."""
    data = wire.pack_value(value)
    with _told(_not_put(data)):
        return offloader.put_blocking(data)


def get_by_thread(offloader: ThreadOffloader, key: str) -> Any:
    """The plain value of a key; raises OffloadError, or WireError where it is none."""
    with _told(_NOT_FETCHED):
        data = offloader.get_blocking(key)
    return wire.unpack_value(data)


class Offload:
    """The large values of one service.

    Args:
        loop: the service's.

    Attributes:
        offloader: None where too large is too large.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.offloader: Offloader | None = None
        self._loop = loop
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Any) -> None:
        """Run *work*, a coroutine that handles its errors, beside everything else."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _required(self) -> Offloader:
        if self.offloader is None:
            raise OffloadError("this process has no offloader: it takes no values over rpc.frame-size")
        return self.offloader

    async def put(self, value: Any) -> tuple[str, int]:
        """Put a plain value; returns its key and its bytes. Raises OffloadError."""
        data = wire.pack_value(value)
        with _told(_not_put(data)):
            return await self._required().put(data), len(data)

    async def get(self, key: str) -> Any:
        """The plain value of a key; raises OffloadError, or WireError where it is none."""
        with _told(_NOT_FETCHED):
            data = await self._required().get(key)
        return wire.unpack_value(data)

    def release(self, key: str) -> None:
        """One use of what this service has put is over."""
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
        """Put a result and tell the asker where it is; raises OffloadError."""
        key, size = await self.put(value)
        self._loop.call_later(RESULT_KEPT_S, self.release, key)
        connection.send(encoder.encode([wire.OFFLOADED, correlation, key, size]))

    @staticmethod
    def _resolve(future: asyncio.Future[Any], error: Exception) -> None:
        if not future.done():
            future.set_exception(error)

    async def close(self) -> None:
        """End what is under way, and the offloader."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.offloader is not None:
            await self.offloader.close()

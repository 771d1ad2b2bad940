"""The asks of a connection that wait for their replies, with one timer for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple


class PendingAsk(NamedTuple):
    """An ask under way: whom to tell, how to read the reply, and until when to wait (on the loop's clock)."""

    future: asyncio.Future[Any]
    decode: Callable[[Any], Any]
    deadline: float
    on_timeout: Callable[[], Exception]


class PendingAsks:
    """Asks by correlation id.

    A timer for each ask would cost as much as sending it. There is one, for the earliest deadline: it is armed again
    only when it fires, or when an ask with an earlier deadline comes.

    Args:
        loop: gives the time and the timer.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._asks: dict[int, PendingAsk] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, correlation: int, ask: PendingAsk) -> None:
        """Wait for the reply to an ask."""
        self._asks[correlation] = ask
        if self._timer is None or ask.deadline < self._timer.when():
            self._arm(ask.deadline)

    def take(self, correlation: int) -> PendingAsk | None:
        """The ask that a reply belongs to, which waits no more; None when it has timed out."""
        return self._asks.pop(correlation, None)

    def fail_all(self, make_error: Callable[[], Exception]) -> None:
        """No reply will come any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        asks, self._asks = self._asks, {}
        for ask in asks.values():
            if not ask.future.done():
                ask.future.set_exception(make_error())

    def _arm(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        for correlation in [key for key, ask in self._asks.items() if ask.deadline <= now]:
            ask = self._asks.pop(correlation)
            if not ask.future.done():
                ask.future.set_exception(ask.on_timeout())
        if self._asks:
            self._arm(min(ask.deadline for ask in self._asks.values()))

"""Messages that an actor sends to itself after a time (Akka's `TimerScheduler`), and the receive timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from actors.mailbox import Envelope
from actors.messages import ReceiveTimeout

if TYPE_CHECKING:
    from actors.core.cell import Cell


class TimerEnvelope(Envelope):
    """Envelope that a timer puts into the mailbox; the mailbox sees the timer's message in it.

    The cell drops the message when the timer was cancelled or replaced while it waited in the mailbox.
    """

    owner: Timers
    key: Hashable
    timer: _Timer

    def is_wanted(self, timers: Timers | None) -> bool:
        """Return whether the actor should still receive the message."""
        return timers is self.owner and timers.take(self.key, self.timer)


class _Timer:
    """One timer. A timer that replaces it under the same key is another object, so identity tells them apart."""

    __slots__ = ("fixed_rate", "handle", "interval_s", "message")

    def __init__(self, message: Any, interval_s: float | None, fixed_rate: bool) -> None:
        self.message = message
        self.interval_s = interval_s
        self.fixed_rate = fixed_rate
        self.handle: asyncio.TimerHandle | None = None


class Timers:
    """The timers of an actor, by key. A new timer replaces the one with the same key.

    A restart or stop of the actor cancels them. The actor never receives the message of a timer that was cancelled or
    replaced, even if the message was in the mailbox already.

    Args:
        cell: the actor's cell.
    """

    __slots__ = ("_cell", "_timers")

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._timers: dict[Hashable, _Timer] = {}

    def start_single_timer(self, key: Hashable, message: Any, delay_s: float) -> None:
        """Send *message* once, after *delay_s* seconds."""
        self._start(key, _Timer(message, None, False), delay_s)

    def start_timer_with_fixed_delay(
        self, key: Hashable, message: Any, delay_s: float, initial_delay_s: float | None = None
    ) -> None:
        """Send *message* repeatedly, each time *delay_s* seconds after the one before.

        Args:
            key: identifies the timer.
            message: what to send.
            delay_s: the time between two messages, in seconds.
            initial_delay_s: the time before the first one; default: *delay_s*.

        Raises:
            ValueError: *delay_s* is not positive.
        """
        self._start_periodic(key, message, delay_s, initial_delay_s, fixed_rate=False)

    def start_timer_at_fixed_rate(
        self, key: Hashable, message: Any, interval_s: float, initial_delay_s: float | None = None
    ) -> None:
        """Send *message* every *interval_s* seconds on average: after a late message the next one follows sooner.

        Args:
            key: identifies the timer.
            message: what to send.
            interval_s: the time between two messages, in seconds.
            initial_delay_s: the time before the first one; default: *interval_s*.

        Raises:
            ValueError: *interval_s* is not positive.
        """
        self._start_periodic(key, message, interval_s, initial_delay_s, fixed_rate=True)

    def _start_periodic(
        self, key: Hashable, message: Any, interval_s: float, initial_delay_s: float | None, fixed_rate: bool
    ) -> None:
        if interval_s <= 0:
            raise ValueError(f"a periodic timer needs a positive interval, not {interval_s:g} s")
        timer = _Timer(message, interval_s, fixed_rate)
        self._start(key, timer, interval_s if initial_delay_s is None else initial_delay_s)

    def cancel(self, key: Hashable) -> None:
        """Cancel the timer with that key; do nothing when there is none."""
        timer = self._timers.pop(key, None)
        if timer is not None and timer.handle is not None:
            timer.handle.cancel()

    def cancel_all(self) -> None:
        """Cancel all timers."""
        for key in list(self._timers):
            self.cancel(key)

    def is_timer_active(self, key: Hashable) -> bool:
        """Return whether a timer with that key has a message to send, or one that waits in the mailbox."""
        return key in self._timers

    def _start(self, key: Hashable, timer: _Timer, delay_s: float) -> None:
        self.cancel(key)
        self._timers[key] = timer
        self._arm(key, timer, self._cell.node.loop.time() + max(delay_s, 0.0))

    def _arm(self, key: Hashable, timer: _Timer, when: float) -> None:
        timer.handle = self._cell.node.loop.call_at(when, self._fire, key, timer, when)

    def _fire(self, key: Hashable, timer: _Timer, due: float) -> None:
        cell = self._cell
        if cell.is_closed:
            return  # a task that outlived the actor started the timer
        if timer.interval_s is None:
            timer.handle = None
        else:
            now = cell.node.loop.time()
            self._arm(key, timer, (due if timer.fixed_rate else max(due, now)) + timer.interval_s)
        envelope = TimerEnvelope(timer.message, None)
        envelope.owner, envelope.key, envelope.timer = self, key, timer
        cell.deliver_envelope(envelope)

    def take(self, key: Hashable, timer: _Timer) -> bool:
        """Return whether the message of *timer* is still wanted; forget the timer if it fires only once."""
        if self._timers.get(key) is not timer:
            return False
        if timer.interval_s is None:
            del self._timers[key]
        return True


class ReceiveTimer:
    """The receive timeout of an actor. A message only notes the time; a timer that fires too early is set again.

    Args:
        cell: the actor's cell.
        seconds: the time without a message.
    """

    __slots__ = ("_cell", "_due", "_handle", "_seconds")

    def __init__(self, cell: Cell, seconds: float) -> None:
        self._cell = cell
        self._seconds = seconds
        self._due = 0.0
        self._handle: asyncio.TimerHandle | None = None
        self.restart()

    def restart(self) -> None:
        """Start the time again, after the actor has handled a message."""
        loop = self._cell.node.loop
        self._due = loop.time() + self._seconds
        if self._handle is None:
            self._handle = loop.call_at(self._due, self._fire)

    def cancel(self) -> None:
        """Cancel the timer."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        cell = self._cell
        if cell.node.loop.time() < self._due:
            self._handle = cell.node.loop.call_at(self._due, self._fire)
            return
        self._handle = None
        if cell.is_occupied:
            self.restart()  # an actor that handles a message or waits for its supervisor is not idle
        else:
            cell.deliver_own(ReceiveTimeout(), None)

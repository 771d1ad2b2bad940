"""An asyncio loop of virtual time: where another sleeps, its clock jumps (Akka's `ExplicitlyTriggeredScheduler`).

The trick is in the selector: asyncio asks it to wait until the next timer, and instead of waiting it puts the clock
forward, or stops the loop when that is further than it is to go. Threads (`run_in_executor`) are really waited for.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple, Unpack

THREADS_DEADLINE_S = 10.0
"""How long the clock stands still for threads that are at work, in real seconds."""

_START = 1000.0

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class _VirtualSelector(selectors.DefaultSelector):
    """Moves the clock of its loop instead of sleeping."""

    loop: VirtualLoop | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events: list[tuple[selectors.SelectorKey, int]] = super().select(0)
        if self.loop is not None and not events:
            wait = self.loop.nothing_ready(timeout)
            if wait:
                events = super().select(wait)
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop with a clock of its own, driven by `drive`; also usable as any other loop: then time just flies."""

    def __init__(self) -> None:
        selector = _VirtualSelector()
        self._virtual_time = _START
        self._until: float | None = None
        self._done: Callable[[], bool] | None = None
        self._driven = False
        self._exhausted = False
        self._jobs = 0
        self._waits_since: float | None = None
        super().__init__(selector)
        selector.loop = self

    def time(self) -> float:
        """The virtual time, in seconds."""
        return self._virtual_time

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """As any loop's; the clock stands still while the thread is at work."""
        future = super().run_in_executor(executor, func, *args)
        self._jobs += 1
        future.add_done_callback(self._job_done)
        return future

    def _job_done(self, _future: Any) -> None:
        self._jobs -= 1

    def drive(self, seconds: float = 0.0, done: Callable[[], bool] | None = None) -> None:
        """Run for *seconds* of virtual time, then until nothing is ready any more, or until *done*.

        Raises:
            RuntimeError: called from within the loop.
        """
        if self.is_running():
            raise RuntimeError("the loop is running: this is for the test, not for the actors")
        self._until = self._virtual_time + seconds
        self._done = done
        self._driven = True
        self._exhausted = False
        try:
            while not self._exhausted:
                self.run_forever()
        finally:
            self._driven = False

    def nothing_ready(self, timeout: float | None) -> float:
        """Called by the selector: move the clock, or stop. Returns for how many real seconds to wait.

        Args:
            timeout: virtual seconds until the next timer; None when there is none; 0 when something is ready.
        """
        if self._driven and self._done is not None and self._done():
            self._stop()
            return 0.0
        if timeout is not None and timeout <= 0:
            return 0.0
        if self._jobs and self._may_wait():
            return 0.05
        self._waits_since = None
        wake = None if timeout is None else self._virtual_time + timeout
        if not self._driven:
            if wake is None:
                return 0.05
            self._virtual_time = wake
        elif self._until is not None and wake is not None and wake <= self._until:
            self._virtual_time = wake
        else:
            self._virtual_time = max(self._virtual_time, self._until or 0.0)
            self._stop()
        return 0.0

    def _may_wait(self) -> bool:
        now = time.monotonic()
        if self._waits_since is None:
            self._waits_since = now
        return now - self._waits_since < THREADS_DEADLINE_S

    def _stop(self) -> None:
        self._exhausted = True
        self.stop()

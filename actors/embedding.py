"""An asyncio event loop that runs inside a Thespian actor, a turn at a time.

Thespian watches one descriptor (`ThespianWatch`): the loop's own epoll. When something is ready the actor runs the loop
until it has nothing to do, lingers for a moment (a serial asker's next message comes within it and then costs no
Thespian wake-up, which is 30 us of CPU), and returns to Thespian. Timers reach Thespian by a timerfd in the same epoll.

The trick is in the selector: asyncio asks it to wait for as long as the loop may sleep, and instead of sleeping it
arms the timerfd and stops the loop. Only public interfaces of asyncio and Thespian are used.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import selectors
import struct
import time
from collections.abc import Iterator

LINGER_S = 0.001
TURN_BUDGET_S = 0.005

_CLOCK_MONOTONIC = 1
_TFD_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC
_ITIMERSPEC = struct.Struct("@4q")
_libc = ctypes.CDLL(None, use_errno=True)


class _TimerFd:
    """Linux's timerfd (the standard library has it only from Python 3.13 on)."""

    def __init__(self) -> None:
        self.fd: int = _libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_FLAGS)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")

    def arm(self, delay_s: float | None) -> None:
        """Fire after *delay_s* seconds (at least a nanosecond), or never for None."""
        nanoseconds = 0 if delay_s is None else max(1, int(delay_s * 1e9))
        specification = _ITIMERSPEC.pack(0, 0, nanoseconds // 1_000_000_000, nanoseconds % 1_000_000_000)
        if _libc.timerfd_settime(self.fd, 0, specification, None) != 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")

    def drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 8)


class _YieldingSelector(selectors.EpollSelector):
    """Stops the loop instead of sleeping in it."""

    def __init__(self) -> None:
        super().__init__()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.timer = _TimerFd()
        self.register(self.timer.fd, selectors.EVENT_READ)
        self.turn_ends = 0.0
        self.blocking = False

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self.blocking or self.loop is None:
            return self._wait(timeout)
        over_budget = time.monotonic() >= self.turn_ends
        wait = 0.0 if over_budget else LINGER_S
        if timeout is not None:
            wait = min(wait, max(timeout, 0.0))
        events = self._wait(wait)
        if over_budget:
            # Thespian has to have its turn; whatever is ready here goes on right after it.
            self.timer.arm(0.0)
            self.loop.stop()
        elif not events and (timeout is None or timeout > wait):
            self.timer.arm(None if timeout is None else timeout - wait)
            self.loop.stop()
        return events

    def _wait(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        """What is ready, but for the timer: that is drained here, before it can be armed again.

        A drain that came after would swallow the wake-up just asked for, and the loop would sleep on ready work.
        """
        events = super().select(timeout)
        others = [event for event in events if event[0].fd != self.timer.fd]
        if len(others) != len(events):
            self.timer.drain()
        return others

    def close(self) -> None:
        super().close()
        with contextlib.suppress(OSError):
            os.close(self.timer.fd)


class EmbeddedLoop:
    """The loop and its turns.

    `fileno()` is what the actor hands to `ThespianWatch`; `turn()` is what it calls on each wake-up.
    """

    def __init__(self) -> None:
        self._selector = _YieldingSelector()
        self.loop = asyncio.SelectorEventLoop(self._selector)
        self._selector.loop = self.loop
        asyncio.set_event_loop(self.loop)

    def fileno(self) -> int:
        """The epoll descriptor: readable whenever the loop has something to do."""
        return self._selector.fileno()

    def turn(self) -> None:
        """Run the loop until it has nothing to do for `LINGER_S`, at most about `TURN_BUDGET_S` seconds."""
        self._selector.turn_ends = time.monotonic() + TURN_BUDGET_S
        self.loop.run_forever()

    @contextlib.contextmanager
    def outside_thespian(self) -> Iterator[None]:
        """Within this context the loop sleeps as an ordinary one (`run_until_complete` at start and stop)."""
        self._selector.blocking = True
        try:
            yield
        finally:
            self._selector.blocking = False
            if not self.loop.is_closed():
                self._selector.timer.arm(0.0)  # what was made ready in here needs a turn that nothing else may ask for

    def close(self) -> None:
        """Close the loop and its descriptors."""
        self.loop.close()

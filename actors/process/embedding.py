"""An asyncio event loop that runs inside a Thespian actor, a turn at a time.

Thespian watches one descriptor (`ThespianWatch`): the loop's own epoll. When something is ready the actor runs the loop
until it has nothing to do, lingers for a moment (a serial asker's next message comes within it and then costs no
Thespian wake-up, which is 30 us of CPU), and returns to Thespian. Timers reach Thespian by a timerfd in the same epoll.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator

from actors.process.direct_loop import LINGER_S, DirectLoop, YieldingSelector

__all__ = ["LINGER_S", "TURN_BUDGET_S", "EmbeddedLoop"]

TURN_BUDGET_S = 0.005


class EmbeddedLoop:
    """The loop and its turns.

    `fileno()` is what the actor hands to `ThespianWatch`; `turn()` is what it calls on each wake-up.
    """

    def __init__(self) -> None:
        self._selector = YieldingSelector()
        self.loop = DirectLoop(self._selector)
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

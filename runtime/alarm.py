"""The one timer of a component: set for the earliest moment at which the passing of time changes something there."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from actors.rpc.endpoint import RpcEndpoint


class Alarm:
    """Rings once, at the earliest of the moments that it was set for; a component that waits for nothing sets none.

    Args:
        endpoint: on whose main thread it rings.
        ring: called at that moment. Whoever still waits for another one sets it anew.
        clock: monotonic seconds.
    """

    def __init__(
        self, endpoint: RpcEndpoint, ring: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._endpoint = endpoint
        self._ring = ring
        self._clock = clock
        self._rings_at = math.inf

    def set(self, at: float | None) -> None:
        """Ring at that moment, in monotonic seconds, if not before; None: no moment is known."""
        if at is not None and at < self._rings_at:  # a timer that is set for later than this finds itself replaced
            self._rings_at = at
            self._endpoint.schedule_run_async(max(at - self._clock(), 0.0), lambda: self._timer_ends(at))

    def set_in(self, seconds: float) -> None:
        """Ring after so many seconds, if not before."""
        self.set(self._clock() + seconds)

    def clear(self) -> None:
        """Ring no more, until it is set again."""
        self._rings_at = math.inf

    def _timer_ends(self, at: float) -> None:
        if at == self._rings_at:
            self.clear()
            self._ring()

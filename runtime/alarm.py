"""The one timer of a component, set for the earliest time at which the component has to act."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from actors.rpc.endpoint import RpcEndpoint


class Alarm:
    """A timer that rings once, at the earliest of the times that it was set for.

    Args:
        endpoint: the endpoint on whose main thread it rings.
        ring: called at that time. A component that waits for a later time sets the alarm again.
        clock: returns monotonic seconds.
    """

    def __init__(
        self, endpoint: RpcEndpoint, ring: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._endpoint = endpoint
        self._ring = ring
        self._clock = clock
        self._rings_at = math.inf

    def set(self, at: float | None) -> None:
        """Ring at *at*, in monotonic seconds, if not before; None changes nothing."""
        if at is not None and at < self._rings_at:  # a timer for a later time then does nothing
            self._rings_at = at
            self._endpoint.schedule_run_async(max(at - self._clock(), 0.0), lambda: self._timer_ends(at))

    def set_in(self, seconds: float) -> None:
        """Ring after *seconds*, if not before."""
        self.set(self._clock() + seconds)

    def clear(self) -> None:
        """Do not ring until it is set again."""
        self._rings_at = math.inf

    def _timer_ends(self, at: float) -> None:
        if at == self._rings_at:
            self.clear()
            self._ring()

"""Whether a TaskExecutor is cut off from its cluster (pure).

A lease, in other words: what it runs may be run again elsewhere once others have not heard of it for
``heartbeat.timeout``, so it must have ended it by then. Akka's split brain resolver downs an isolated node likewise.
"""

from __future__ import annotations


class Isolation:
    """Keeps the time since the cluster was last heard of. Times are seconds, of a clock that runs through suspend.

    Args:
        timeout_s: seconds without a sign of it after which one is cut off.
        now: when one begins to listen.
    """

    def __init__(self, timeout_s: float, now: float) -> None:
        self._timeout_s = timeout_s
        self._last_heard = now

    def heard(self, now: float) -> None:
        """A ResourceManager, a JobMaster or the store of the leaders has given a sign of life."""
        self._last_heard = max(self._last_heard, now)

    def silent_for(self, now: float) -> float:
        """For how many seconds nothing was heard."""
        return max(now - self._last_heard, 0.0)

    def is_isolated(self, now: float) -> bool:
        """Whether that is too long."""
        return self.silent_for(now) >= self._timeout_s

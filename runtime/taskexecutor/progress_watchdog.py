"""Finds streaming queries that are in a batch and do not get on (pure)."""

from __future__ import annotations

from collections.abc import Iterable

from runtime.spark import StreamingQueryInfo


class ProgressWatchdog:
    """The queries of one task.

    A query that waits for its trigger does not count: nothing is to be done. One whose trigger is active and that
    reports nothing new is stuck in a batch, or in what its sources are asked.

    Args:
        timeout_s: seconds without progress, in a batch, after which a query is stuck.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._seen: dict[str, tuple[str | None, float]] = {}

    def observe(self, infos: Iterable[StreamingQueryInfo], now: float) -> StreamingQueryInfo | None:
        """A query that is stuck, if there is one.

        Args:
            infos: the queries that are active.
            now: seconds of a clock that never goes back.
        """
        seen: dict[str, tuple[str | None, float]] = {}
        stuck = None
        for info in infos:
            progress, since = self._seen.get(info.run_id, (info.progress, now))
            if not info.trigger_active or info.progress != progress:
                progress, since = info.progress, now
            seen[info.run_id] = progress, since
            if stuck is None and now - since >= self._timeout_s:
                stuck = info
        self._seen = seen
        return stuck

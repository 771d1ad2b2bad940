"""Whether a streaming query keeps up (pure).

Flink measures for how long a task waits for room in the buffers behind it (OK to 10 % of the time, LOW to 50 %, HIGH
above). A micro-batch has no such buffers: what tells is how much of the trigger interval a batch takes. `busy` is that
part, which with steady input is also Spark's input rate by its processing rate. Above 1 the next batch begins late, and
what arrives meanwhile makes it longer still.

| level | busy, the median of the last 5 batches | backlog |
|---|---|---|
| OK | below 0.5 | |
| LOW | 0.5 to 1 | |
| HIGH | above 1 | or growing |

Batch 0 is left out: it compiles, and reads all that there is. Without a trigger interval the backlog alone counts, and
where that is not known either there is no judgement.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from statistics import median

from runtime.jobmaster.streaming_query import BackPressure, BackPressureLevel, QueryProgress

WINDOW = 5
LOW_FROM = 0.5
HIGH_ABOVE = 1.0
GROWS_FROM = 3
"""Batches that a backlog must have been seen over before it may be said to grow."""


class BackPressureMonitor:
    """Judges one run of a query by its batches, one after the other."""

    def __init__(self) -> None:
        self._batches: deque[QueryProgress] = deque(maxlen=WINDOW)

    def observe(self, progress: QueryProgress, trigger_interval_ms: int | None) -> BackPressure | None:
        """The judgement after *progress*; to be told the same batch again changes nothing.

        Args:
            progress: the last batch.
            trigger_interval_ms: None, or 0, where one batch follows the other.
        """
        last = self._batches[-1] if self._batches else None
        if progress.batch > 0 and (last is None or _moment(progress) != _moment(last)):
            self._batches.append(progress)
        if not self._batches:
            return None
        grows = self._backlog_grows()
        if not trigger_interval_ms:
            return None if grows is None else BackPressure(BackPressureLevel.HIGH if grows else BackPressureLevel.OK)
        busy = median(batch.duration_ms for batch in self._batches) / trigger_interval_ms
        if busy > HIGH_ABOVE or grows:
            return BackPressure(BackPressureLevel.HIGH, busy)
        return BackPressure(BackPressureLevel.OK if busy < LOW_FROM else BackPressureLevel.LOW, busy)

    def _backlog_grows(self) -> bool | None:
        """Whether what is not worked off yet gets more, and never less; None where that cannot be said."""
        lags = [batch.lag for batch in self._batches]
        known = [lag for lag in lags if lag is not None]
        if len(known) < len(lags) or len(known) < GROWS_FROM:
            return None
        return known[-1] > known[0] and all(later >= earlier for earlier, later in pairwise(known))


def _moment(progress: QueryProgress) -> tuple[int, str]:
    """What tells one report from another: a query without new data reports the same batch number again."""
    return progress.batch, progress.timestamp

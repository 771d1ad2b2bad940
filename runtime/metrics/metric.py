"""The kinds of metrics (Flink's `Counter`, `Meter`, `Histogram`; a `Gauge` is any callable). Pure.

Nothing here has a timer: a rate and a quantile are worked out when they are asked for, so a process that nobody asks
spends nothing on them. Flink's `MeterView` is updated every five seconds.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

METER_WINDOW_S = 60
HISTOGRAM_WINDOW = 1024

Number = int | float
Value = int | float | str
Gauge = Callable[[], Value | None]
"""Gives the present value; None where it is not known, which is then not told."""


class Counter:
    """Counts."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def inc(self, n: int = 1) -> None:
        """Count *n* more."""
        self.count += n


class Meter:
    """Says how many events there were a second within the last minute.

    Args:
        clock: gives monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds: deque[list[int]] = deque()  # [second, events in it], at most one a second

    def mark(self, n: int = 1) -> None:
        """Count *n* events now."""
        now = int(self._clock())
        if self._seconds and self._seconds[-1][0] == now:
            self._seconds[-1][1] += n
        else:
            self._seconds.append([now, n])
            self._forget(now)

    def rate(self) -> float:
        """Events a second over the last `METER_WINDOW_S` seconds."""
        self._forget(int(self._clock()))
        return sum(n for _, n in self._seconds) / METER_WINDOW_S

    def _forget(self, now: int) -> None:
        while self._seconds and self._seconds[0][0] <= now - METER_WINDOW_S:
            self._seconds.popleft()


@dataclass(frozen=True, slots=True)
class HistogramStatistics:
    """What a histogram says (Flink's `HistogramDump`): *count* and *sum* of all values, the rest of the last ones."""

    count: int
    sum: float
    min: float
    max: float
    mean: float
    stddev: float
    median: float
    p75: float
    p90: float
    p95: float
    p98: float
    p99: float
    p999: float


class Histogram:
    """Values, of which the last ones are kept (Flink's `DescriptiveStatisticsHistogram`).

    Args:
        window: how many are kept.
    """

    def __init__(self, window: int = HISTOGRAM_WINDOW) -> None:
        self.count = 0
        self._sum = 0.0
        self._kept: deque[float] = deque(maxlen=window)

    def update(self, value: Number) -> None:
        """One more value."""
        self.count += 1
        self._sum += value
        self._kept.append(float(value))

    def statistics(self) -> HistogramStatistics:
        """Of the values that are kept; zeros where there are none. Quantiles are values that occurred."""
        ordered = sorted(self._kept) or [0.0]
        mean = math.fsum(ordered) / len(ordered)
        variance = math.fsum((value - mean) ** 2 for value in ordered) / len(ordered)

        def quantile(q: float) -> float:
            return ordered[max(math.ceil(q * len(ordered)) - 1, 0)]

        return HistogramStatistics(
            self.count,
            self._sum,
            ordered[0],
            ordered[-1],
            mean,
            math.sqrt(variance),
            *(quantile(q) for q in (0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.999)),
        )

"""The phi accrual failure detector (Hayashibara et al. 2004, as in Akka's ``PhiAccrualFailureDetector``). Pure.

Not "alive" or "dead", but a degree of suspicion, phi: how improbable the present silence is, by how regularly
heartbeats have come so far. phi = 1 means a mistake in one judgement of ten, phi = 8 one in 10^8.
"""

from __future__ import annotations

import math
from collections import deque


class PhiAccrualFailureDetector:
    """Judges one node by its heartbeats. All times are monotonic seconds.

    Args:
        threshold: phi from which on it is held for dead. Lower means sooner, and more mistakes.
        max_samples: how many intervals between heartbeats are remembered.
        min_std_deviation_s: least standard deviation that is assumed, so that clockwork heartbeats do not make the
            first late one look like death.
        acceptable_pause_s: silence beyond the usual that is not held against it: a garbage collection, a lost packet.
        first_interval_s: the interval that is expected before any has been seen, with a quarter of it for a standard
            deviation.

    Raises:
        ValueError: a value is out of range.
    """

    def __init__(
        self,
        threshold: float = 8.0,
        max_samples: int = 200,
        min_std_deviation_s: float = 0.1,
        acceptable_pause_s: float = 3.0,
        first_interval_s: float = 1.0,
    ) -> None:
        for name, value in (
            ("threshold", threshold),
            ("max_samples", max_samples),
            ("min_std_deviation_s", min_std_deviation_s),
            ("first_interval_s", first_interval_s),
        ):
            if not 0 < value < math.inf:
                raise ValueError(f"{name} must be more than 0, not {value!r}")
        if not 0 <= acceptable_pause_s < math.inf:
            raise ValueError(f"acceptable_pause_s must not be negative: {acceptable_pause_s!r}")
        self._threshold = threshold
        self._min_std_deviation_s = min_std_deviation_s
        self._acceptable_pause_s = acceptable_pause_s
        spread = first_interval_s / 4
        self._intervals = deque((first_interval_s - spread, first_interval_s + spread), max_samples)
        self._last: float | None = None
        self._mean = 0.0
        self._std_deviation = 0.0
        self._learn()

    @property
    def is_monitoring(self) -> bool:
        """Whether there has been a heartbeat: before the first one nothing is suspicious."""
        return self._last is not None

    def heartbeat(self, now: float) -> None:
        """A heartbeat has come.

        One that ends a silence which was taken for death is not remembered as an interval: it would make the detector
        patient for a long time to come.
        """
        if self._last is not None and self.is_available(now):
            self._intervals.append(max(now - self._last, 0.0))
            self._learn()
        self._last = now

    def phi(self, now: float) -> float:
        """The suspicion at *now*: 0 before the first heartbeat, and growing with the silence, without bound."""
        if self._last is None:
            return 0.0
        # Akka's logistic approximation of the normal distribution's tail, 1 / (1 + e^x). Its logarithm is computed
        # directly, since e^x overflows for long silences, and the tail itself is lost in rounding.
        y = (now - self._last - self._mean - self._acceptable_pause_s) / self._std_deviation
        x = y * (1.5976 + 0.070566 * y * y)
        return (max(x, 0.0) + math.log1p(math.exp(-abs(x)))) / math.log(10)

    def is_available(self, now: float) -> bool:
        """Whether phi is below the threshold."""
        return self.phi(now) < self._threshold

    def _learn(self) -> None:
        self._mean = math.fsum(self._intervals) / len(self._intervals)
        variance = math.fsum((interval - self._mean) ** 2 for interval in self._intervals) / len(self._intervals)
        self._std_deviation = max(math.sqrt(variance), self._min_std_deviation_s)

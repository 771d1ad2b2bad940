"""Configuration of a job's restarts, as a part of the JobGraph (Flink's `RestartStrategies`)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum


class RestartStrategyKind(Enum):
    """Flink's names of the restart strategies (``restart-strategy.type``)."""

    NONE = "none"
    FIXED_DELAY = "fixed-delay"
    FAILURE_RATE = "failure-rate"
    EXPONENTIAL_DELAY = "exponential-delay"


@dataclass(frozen=True, slots=True)
class RestartStrategyConfig:
    """A restart strategy and its settings; those of other strategies are ignored. Defaults are Flink's.

    Args:
        kind: which strategy.
        attempts: fixed-delay: how many restarts in all.
        delay_s: fixed-delay and failure-rate: seconds between the failure and the restart.
        max_failures_per_interval: failure-rate: failures that are tolerated within the interval.
        failure_rate_interval_s: failure-rate: the length of that interval in seconds.
        initial_backoff_s: exponential-delay: the first delay in seconds.
        max_backoff_s: exponential-delay: the delay never exceeds this.
        backoff_multiplier: exponential-delay: each failure multiplies the delay by this.
        reset_backoff_threshold_s: exponential-delay: after so many seconds without failure the delay is the initial one
            again.
        jitter_factor: exponential-delay: the delay varies at random by this share of itself, up and down.

    Raises:
        ValueError: a setting of the chosen kind is out of range.
    """

    kind: RestartStrategyKind
    attempts: int = 1
    delay_s: float = 1.0
    max_failures_per_interval: int = 1
    failure_rate_interval_s: float = 60.0
    initial_backoff_s: float = 1.0
    max_backoff_s: float = 60.0
    backoff_multiplier: float = 1.5
    reset_backoff_threshold_s: float = 3600.0
    jitter_factor: float = 0.1

    def __post_init__(self) -> None:
        _require(self.attempts >= 0, "attempts", self.attempts, "0 or more")
        _require(_finite(self.delay_s) and self.delay_s >= 0, "delay_s", self.delay_s, "0 or more seconds")
        _require(
            self.max_failures_per_interval >= 0,
            "max_failures_per_interval",
            self.max_failures_per_interval,
            "0 or more",
        )
        _require(
            _finite(self.failure_rate_interval_s) and self.failure_rate_interval_s > 0,
            "failure_rate_interval_s",
            self.failure_rate_interval_s,
            "more than 0 seconds",
        )
        _require(
            _finite(self.initial_backoff_s) and self.initial_backoff_s > 0,
            "initial_backoff_s",
            self.initial_backoff_s,
            "more than 0 seconds",
        )
        _require(
            _finite(self.max_backoff_s) and self.max_backoff_s >= self.initial_backoff_s,
            "max_backoff_s",
            self.max_backoff_s,
            "at least initial_backoff_s",
        )
        _require(
            _finite(self.backoff_multiplier) and self.backoff_multiplier >= 1,
            "backoff_multiplier",
            self.backoff_multiplier,
            "1 or more",
        )
        _require(
            self.reset_backoff_threshold_s > 0,
            "reset_backoff_threshold_s",
            self.reset_backoff_threshold_s,
            "more than 0 seconds",
        )
        _require(0 <= self.jitter_factor <= 1, "jitter_factor", self.jitter_factor, "between 0 and 1")

    @classmethod
    def none(cls) -> RestartStrategyConfig:
        """Do not restart: the first failure fails the job."""
        return cls(RestartStrategyKind.NONE)

    @classmethod
    def fixed_delay(cls, attempts: int = 1, delay_s: float = 1.0) -> RestartStrategyConfig:
        """Restart at most *attempts* times in the job's life, *delay_s* seconds after each failure."""
        return cls(RestartStrategyKind.FIXED_DELAY, attempts=attempts, delay_s=delay_s)

    @classmethod
    def failure_rate(
        cls, max_failures_per_interval: int = 1, interval_s: float = 60.0, delay_s: float = 1.0
    ) -> RestartStrategyConfig:
        """Restart while at most *max_failures_per_interval* failures fall within *interval_s* seconds."""
        return cls(
            RestartStrategyKind.FAILURE_RATE,
            delay_s=delay_s,
            max_failures_per_interval=max_failures_per_interval,
            failure_rate_interval_s=interval_s,
        )

    @classmethod
    def exponential_delay(
        cls,
        initial_backoff_s: float = 1.0,
        max_backoff_s: float = 60.0,
        backoff_multiplier: float = 1.5,
        reset_backoff_threshold_s: float = 3600.0,
        jitter_factor: float = 0.1,
    ) -> RestartStrategyConfig:
        """Restart any number of times; each delay is longer, until no failure has occurred for the threshold."""
        return cls(
            RestartStrategyKind.EXPONENTIAL_DELAY,
            initial_backoff_s=initial_backoff_s,
            max_backoff_s=max_backoff_s,
            backoff_multiplier=backoff_multiplier,
            reset_backoff_threshold_s=reset_backoff_threshold_s,
            jitter_factor=jitter_factor,
        )


def _finite(value: float) -> bool:
    return math.isfinite(value)


def _require(condition: bool, name: str, value: object, wanted: str) -> None:
    if not condition:
        raise ValueError(f"restart strategy: {name} is {value!r}; it must be {wanted}")

"""Whether and when a job is restarted after a failure (Flink's `RestartBackoffTimeStrategy`)."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from conf.configuration import Configuration
from conf.options import RestartStrategyOptions as Options
from conf.options import RestartStrategyType
from runtime.jobgraph.restart_config import RestartStrategyConfig, RestartStrategyKind

__all__ = [
    "RestartStrategy",
    "RestartStrategyConfig",
    "RestartStrategyKind",
    "RestartStrategyState",
    "create_restart_strategy",
    "default_restart_strategy",
]


@dataclass(frozen=True, slots=True)
class RestartStrategyState:
    """What a strategy remembers, free of any process's clock, so that a successor may remember it too.

    Args:
        failures: how many failures it was told of.
        ages_s: how many seconds ago the last of them were, the oldest first.
        backoff_s: the present pause, before its jitter.
        delay_s: the present pause.
    """

    failures: int = 0
    ages_s: tuple[float, ...] = ()
    backoff_s: float = 0.0
    delay_s: float = 0.0


class RestartStrategy(ABC):
    """Told of each failure, then asked. Times are monotonic seconds."""

    @abstractmethod
    def notify_failure(self, now: float) -> None:
        """A failure happened; several that have one cause are told once."""

    @abstractmethod
    def can_restart(self, now: float) -> bool:
        """Whether the job may be restarted after the failures so far."""

    @property
    @abstractmethod
    def delay(self) -> float:
        """Seconds to wait before the restart."""

    @property
    @abstractmethod
    def description(self) -> str:
        """The strategy and how much of it is used up, for messages."""

    @abstractmethod
    def state(self, now: float) -> RestartStrategyState:
        """What it remembers."""

    @abstractmethod
    def restore(self, state: RestartStrategyState, now: float) -> None:
        """Remember what a predecessor did; *state*'s ages are as of *now*."""


class NoRestart(RestartStrategy):
    """Never restarts."""

    def notify_failure(self, now: float) -> None:
        """Nothing to remember."""

    def can_restart(self, now: float) -> bool:
        return False

    @property
    def delay(self) -> float:
        return 0.0

    @property
    def description(self) -> str:
        return "restart strategy none"

    def state(self, now: float) -> RestartStrategyState:
        return RestartStrategyState()

    def restore(self, state: RestartStrategyState, now: float) -> None:
        """Nothing to remember."""


class FixedDelay(RestartStrategy):
    """Restarts a fixed number of times in the job's life, after a fixed delay."""

    def __init__(self, config: RestartStrategyConfig) -> None:
        self._config = config
        self._failures = 0

    def notify_failure(self, now: float) -> None:
        self._failures += 1

    def can_restart(self, now: float) -> bool:
        return self._failures <= self._config.attempts

    @property
    def delay(self) -> float:
        return self._config.delay_s

    def state(self, now: float) -> RestartStrategyState:
        return RestartStrategyState(self._failures)

    def restore(self, state: RestartStrategyState, now: float) -> None:
        self._failures = state.failures

    @property
    def description(self) -> str:
        used = min(max(self._failures - 1, 0), self._config.attempts)
        return f"restart strategy fixed-delay, {used} of {self._config.attempts} restarts used"


class FailureRate(RestartStrategy):
    """Restarts while no more than the given number of failures fall within the interval."""

    def __init__(self, config: RestartStrategyConfig) -> None:
        self._config = config
        self._failures: deque[float] = deque(maxlen=config.max_failures_per_interval + 1)

    def notify_failure(self, now: float) -> None:
        self._failures.append(now)

    def can_restart(self, now: float) -> bool:
        if len(self._failures) <= self._config.max_failures_per_interval:
            return True
        return now - self._failures[0] > self._config.failure_rate_interval_s

    @property
    def delay(self) -> float:
        return self._config.delay_s

    def state(self, now: float) -> RestartStrategyState:
        return RestartStrategyState(len(self._failures), tuple(now - failed for failed in self._failures))

    def restore(self, state: RestartStrategyState, now: float) -> None:
        self._failures.extend(now - age for age in state.ages_s)

    @property
    def description(self) -> str:
        return (
            f"restart strategy failure-rate, at most {self._config.max_failures_per_interval} failures in "
            f"{self._config.failure_rate_interval_s:g} s"
        )


class ExponentialDelay(RestartStrategy):
    """Restarts for ever, each time after a longer delay, until the job has run undisturbed for the threshold."""

    def __init__(self, config: RestartStrategyConfig, random_fraction: Callable[[], float]) -> None:
        self._config = config
        self._random = random_fraction
        self._backoff = config.initial_backoff_s
        self._delay = config.initial_backoff_s
        self._last_failure: float | None = None

    def notify_failure(self, now: float) -> None:
        config = self._config
        if self._last_failure is not None:
            undisturbed = now - self._last_failure - self._delay
            if undisturbed >= config.reset_backoff_threshold_s:
                self._backoff = config.initial_backoff_s
            else:
                self._backoff = min(self._backoff * config.backoff_multiplier, config.max_backoff_s)
        self._last_failure = now
        jitter = self._backoff * config.jitter_factor * (2.0 * self._random() - 1.0)
        self._delay = min(max(self._backoff + jitter, 0.0), config.max_backoff_s)

    def can_restart(self, now: float) -> bool:
        return True

    @property
    def delay(self) -> float:
        return self._delay

    def state(self, now: float) -> RestartStrategyState:
        ages = () if self._last_failure is None else (now - self._last_failure,)
        return RestartStrategyState(len(ages), ages, self._backoff, self._delay)

    def restore(self, state: RestartStrategyState, now: float) -> None:
        if state.ages_s:
            self._last_failure = now - state.ages_s[-1]
            self._backoff, self._delay = state.backoff_s, state.delay_s

    @property
    def description(self) -> str:
        return f"restart strategy exponential-delay, next delay {self._delay:.1f} s"


def create_restart_strategy(
    config: RestartStrategyConfig, random_fraction: Callable[[], float] = random.random
) -> RestartStrategy:
    """Return the strategy that *config* describes, without any failures yet.

    Args:
        config: the job's own, or else the cluster's default.
        random_fraction: a source of numbers in [0, 1) for the jitter.
    """
    match config.kind:
        case RestartStrategyKind.NONE:
            return NoRestart()
        case RestartStrategyKind.FIXED_DELAY:
            return FixedDelay(config)
        case RestartStrategyKind.FAILURE_RATE:
            return FailureRate(config)
        case RestartStrategyKind.EXPONENTIAL_DELAY:
            return ExponentialDelay(config, random_fraction)


def default_restart_strategy(configuration: Configuration) -> RestartStrategyConfig:
    """Return the cluster's ``restart-strategy.*`` as the configuration of one job."""
    match configuration.get(Options.TYPE):
        case RestartStrategyType.NONE:
            return RestartStrategyConfig.none()
        case RestartStrategyType.FIXED_DELAY:
            return RestartStrategyConfig.fixed_delay(
                configuration.get(Options.FIXED_DELAY_ATTEMPTS), configuration.get(Options.FIXED_DELAY_DELAY)
            )
        case RestartStrategyType.FAILURE_RATE:
            return RestartStrategyConfig.failure_rate(
                configuration.get(Options.FAILURE_RATE_MAX_FAILURES),
                configuration.get(Options.FAILURE_RATE_INTERVAL),
                configuration.get(Options.FAILURE_RATE_DELAY),
            )
        case RestartStrategyType.EXPONENTIAL_DELAY:
            return RestartStrategyConfig.exponential_delay(
                configuration.get(Options.EXPONENTIAL_INITIAL_BACKOFF),
                configuration.get(Options.EXPONENTIAL_MAX_BACKOFF),
                configuration.get(Options.EXPONENTIAL_MULTIPLIER),
                configuration.get(Options.EXPONENTIAL_RESET_THRESHOLD),
                configuration.get(Options.EXPONENTIAL_JITTER),
            )

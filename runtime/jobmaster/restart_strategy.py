"""Decides whether and when a job is restarted after a failure (Flink's `RestartBackoffTimeStrategy`)."""

from __future__ import annotations

import random
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
    "default_restart_strategy",
    "restart_strategies",
]


@dataclass(frozen=True, slots=True)
class RestartStrategyState:
    """State of a strategy without the clock of any process, so that the next JobMaster can restore it.

    Args:
        failures: number of failures so far.
        ages_s: how many seconds ago the last of them were, the oldest first.
        backoff_s: the present pause, before its jitter.
        delay_s: the present pause.
    """

    failures: int = 0
    ages_s: tuple[float, ...] = ()
    backoff_s: float = 0.0
    delay_s: float = 0.0


class RestartStrategy:
    """The strategy of one job: notify it of each failure, then ask it. Pure except for *random_fraction*; in seconds.

    | kind | restarts the job |
    |---|---|
    | none | never |
    | fixed-delay | a fixed number of times in the job's life, after a fixed delay |
    | failure-rate | while no more than the given number of failures fall within the interval |
    | exponential-delay | for ever, after a longer delay each time, until it has run undisturbed for the threshold |

    Args:
        config: the job's own, or else the cluster's default.
        random_fraction: returns numbers in [0, 1) for the jitter of exponential-delay.
    """

    def __init__(self, config: RestartStrategyConfig, random_fraction: Callable[[], float] = random.random) -> None:
        self._config = config
        self._random = random_fraction
        self._failures = 0
        counted = config.max_failures_per_interval + 1 if config.kind is RestartStrategyKind.FAILURE_RATE else 1
        self._recent: deque[float] = deque(maxlen=counted)
        self._backoff = config.initial_backoff_s
        grows = config.kind is RestartStrategyKind.EXPONENTIAL_DELAY
        self._delay = config.initial_backoff_s if grows else config.delay_s

    def notify_failure(self, now: float) -> None:
        """Note a failure; call this once for several failures with the same cause."""
        if self._config.kind is RestartStrategyKind.EXPONENTIAL_DELAY:
            self._lengthen_delay(now)
        self._failures += 1
        self._recent.append(now)

    def _lengthen_delay(self, now: float) -> None:
        config = self._config
        if self._recent:
            undisturbed = now - self._recent[-1] - self._delay
            if undisturbed >= config.reset_backoff_threshold_s:
                self._backoff = config.initial_backoff_s
            else:
                self._backoff = min(self._backoff * config.backoff_multiplier, config.max_backoff_s)
        jitter = self._backoff * config.jitter_factor * (2.0 * self._random() - 1.0)
        self._delay = min(max(self._backoff + jitter, 0.0), config.max_backoff_s)

    def can_restart(self, now: float) -> bool:
        """Return whether the job may be restarted after the failures so far."""
        config = self._config
        match config.kind:
            case RestartStrategyKind.NONE:
                return False
            case RestartStrategyKind.FIXED_DELAY:
                return self._failures <= config.attempts
            case RestartStrategyKind.FAILURE_RATE:
                is_full = len(self._recent) > config.max_failures_per_interval
                return not is_full or now - self._recent[0] > config.failure_rate_interval_s
            case RestartStrategyKind.EXPONENTIAL_DELAY:
                return True

    @property
    def delay(self) -> float:
        """Seconds to wait before the restart."""
        return self._delay

    @property
    def description(self) -> str:
        """Describe the strategy, and how much of it is used up, for messages."""
        config = self._config
        match config.kind:
            case RestartStrategyKind.NONE:
                used = ""
            case RestartStrategyKind.FIXED_DELAY:
                restarts = min(max(self._failures - 1, 0), config.attempts)
                used = f", {restarts} of {config.attempts} restarts used"
            case RestartStrategyKind.FAILURE_RATE:
                most, interval_s = config.max_failures_per_interval, config.failure_rate_interval_s
                used = f", at most {most} failures in {interval_s:g} s"
            case RestartStrategyKind.EXPONENTIAL_DELAY:
                used = f", next delay {self._delay:.1f} s"
        return f"restart strategy {config.kind.value}{used}"

    def state(self, now: float) -> RestartStrategyState:
        """Return its state."""
        ages = tuple(now - failed for failed in self._recent)
        return RestartStrategyState(self._failures, ages, self._backoff, self._delay)

    def restore(self, state: RestartStrategyState, now: float) -> None:
        """Restore the state of a former JobMaster's strategy; the ages in *state* are as of *now*."""
        self._failures = state.failures
        self._recent.extend(now - age for age in state.ages_s)
        if state.ages_s and self._config.kind is RestartStrategyKind.EXPONENTIAL_DELAY:
            self._backoff, self._delay = state.backoff_s, state.delay_s


def restart_strategies(
    own: RestartStrategyConfig | None, configuration: Configuration
) -> tuple[RestartStrategy, RestartStrategy | None]:
    """Return the strategy of a job, and the one that takes its place once the job streams.

    The second one is None if a user has chosen the first. Else it is exponential-delay, as Flink's for jobs with
    checkpoints.

    Args:
        own: what the job has chosen; None for nothing.
        configuration: of the cluster, with the job's settings.
    """
    if own is not None:
        return RestartStrategy(own), None
    strategy = RestartStrategy(default_restart_strategy(configuration))
    is_chosen = configuration.is_set(Options.TYPE)
    return strategy, None if is_chosen else RestartStrategy(_exponential_delay(configuration))


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
            return _exponential_delay(configuration)


def _exponential_delay(configuration: Configuration) -> RestartStrategyConfig:
    return RestartStrategyConfig.exponential_delay(
        configuration.get(Options.EXPONENTIAL_INITIAL_BACKOFF),
        configuration.get(Options.EXPONENTIAL_MAX_BACKOFF),
        configuration.get(Options.EXPONENTIAL_MULTIPLIER),
        configuration.get(Options.EXPONENTIAL_RESET_THRESHOLD),
        configuration.get(Options.EXPONENTIAL_JITTER),
    )

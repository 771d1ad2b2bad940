"""What the cluster's configuration says where a job itself says nothing."""

from __future__ import annotations

from conf.configuration import Configuration
from conf.options import RestartStrategyOptions as Options
from conf.options import RestartStrategyType
from runtime.jobgraph.restart_config import RestartStrategyConfig


def default_restart_strategy(configuration: Configuration) -> RestartStrategyConfig:
    """The cluster's ``restart-strategy.*`` as the configuration of one job."""
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

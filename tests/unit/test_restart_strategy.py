from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conf.configuration import Configuration
from runtime.jobmaster.restart_strategy import RestartStrategy, RestartStrategyConfig, restart_strategies


def test_none_never_restarts() -> None:
    strategy = RestartStrategy(RestartStrategyConfig.none())
    strategy.notify_failure(0.0)
    assert not strategy.can_restart(0.0)


@pytest.mark.parametrize("attempts", [0, 1, 3])
def test_fixed_delay_restarts_so_often_and_no_more(attempts: int) -> None:
    strategy = RestartStrategy(RestartStrategyConfig.fixed_delay(attempts, 2.5))
    for number in range(attempts):
        strategy.notify_failure(float(number))
        assert strategy.can_restart(float(number))
        assert strategy.delay == 2.5
        assert f"{number} of {attempts} restarts used" in strategy.description
    strategy.notify_failure(1e9)
    assert not strategy.can_restart(1e9)


def test_failure_rate_counts_within_the_interval() -> None:
    strategy = RestartStrategy(RestartStrategyConfig.failure_rate(2, interval_s=10.0, delay_s=0.5))
    outcomes = []
    for now in (0.0, 4.0, 11.0, 20.0, 20.5):
        strategy.notify_failure(now)
        outcomes.append(strategy.can_restart(now))
    assert outcomes == [True, True, True, True, False]
    assert strategy.delay == 0.5


def test_failure_rate_of_none_never_restarts() -> None:
    strategy = RestartStrategy(RestartStrategyConfig.failure_rate(0))
    strategy.notify_failure(0.0)
    assert not strategy.can_restart(0.0)


def test_exponential_delay_grows_to_its_limit_and_starts_anew_after_quiet() -> None:
    config = RestartStrategyConfig.exponential_delay(
        1.0, 5.0, backoff_multiplier=2.0, reset_backoff_threshold_s=100.0, jitter_factor=0.0
    )
    strategy = RestartStrategy(config)
    delays, now = [], 0.0
    for _ in range(5):
        strategy.notify_failure(now)
        assert strategy.can_restart(now)
        delays.append(strategy.delay)
        now += strategy.delay + 10.0
    assert delays == [1.0, 2.0, 4.0, 5.0, 5.0]
    strategy.notify_failure(now + 100.0)
    assert strategy.delay == 1.0


@given(st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.floats(0, 1000)), min_size=1, max_size=30))
def test_exponential_delay_stays_within_its_jitter(failures: list[tuple[float, float]]) -> None:
    fractions = iter([fraction for fraction, _ in failures])
    config = RestartStrategyConfig.exponential_delay(2.0, 60.0, 1.5, 3600.0, jitter_factor=0.25)
    strategy = RestartStrategy(config, lambda: next(fractions))
    now, backoff = 0.0, 2.0
    for _, pause in failures:
        strategy.notify_failure(now)
        assert backoff * 0.75 - 1e-9 <= strategy.delay <= min(backoff * 1.25, 60.0) + 1e-9
        now += pause
        backoff = min(backoff * 1.5, 60.0)


@pytest.mark.parametrize(
    "config",
    [
        RestartStrategyConfig.none(),
        RestartStrategyConfig.fixed_delay(2),
        RestartStrategyConfig.failure_rate(2, 60.0, 1.0),
        RestartStrategyConfig.exponential_delay(1.0, 60.0, 2.0, 300.0, 0.0),
    ],
)
def test_a_successor_remembers_what_its_predecessor_counted(config: RestartStrategyConfig) -> None:
    one, other = RestartStrategy(config), RestartStrategy(config)
    for now in (10.0, 20.0):
        one.notify_failure(now)
    other.restore(one.state(25.0), 1025.0)  # another process, with another monotonic clock
    for now in (30.0, 40.0, 100.0):
        one.notify_failure(now)
        other.notify_failure(now + 1000.0)
        assert one.can_restart(now) == other.can_restart(now + 1000.0)
        assert one.delay == other.delay
        assert one.description == other.description


@pytest.mark.parametrize(
    ("own", "settings", "first", "streaming"),
    [
        (None, {}, "fixed-delay", "exponential-delay"),
        (None, {"restart-strategy.type": "fixed-delay"}, "fixed-delay", None),
        (None, {"restart-strategy": "none"}, "none", None),
        (RestartStrategyConfig.failure_rate(), {}, "failure-rate", None),
    ],
)
def test_a_streaming_job_has_a_strategy_of_its_own_where_nobody_has_chosen_one(
    own: RestartStrategyConfig | None, settings: dict[str, str], first: str, streaming: str | None
) -> None:
    strategy, later = restart_strategies(own, Configuration.from_dict(settings))
    assert strategy.description.startswith(f"restart strategy {first}")
    assert (later is None) == (streaming is None)
    assert later is None or later.description.startswith(f"restart strategy {streaming}")

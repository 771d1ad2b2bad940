from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.errors import (
    ActorError,
    ActorInitializationError,
    ActorKilled,
    ActorProcessDied,
    DeathPactError,
    RemoteError,
    SerializationError,
)
from actors.serialization import Serializer, name_of, remote_error
from actors.supervision import (
    AllForOneStrategy,
    Backoff,
    BackoffCounter,
    Directive,
    OneForOneStrategy,
    RestartWindow,
    SupervisorStrategy,
    default_decider,
    escalating_decider,
    stopping_strategy,
)

SERIALIZER = Serializer(lambda text: None)  # type: ignore[arg-type,return-value]


def by_text(error: BaseException) -> Directive:
    return Directive(str(error))


def nonsense(error: BaseException) -> Any:
    return "restart"


# ---------------------------------------------------------------------------------------------- deciders


@pytest.mark.parametrize(
    ("error", "directive"),
    [
        (ActorInitializationError(), Directive.STOP),
        (ActorKilled(), Directive.STOP),
        (DeathPactError(), Directive.STOP),
        (ActorProcessDied(), Directive.RESTART),
        (ValueError(), Directive.RESTART),
        (Exception(), Directive.RESTART),
        (MemoryError(), Directive.RESTART),
        (SystemExit(), Directive.STOP),
        (BaseException(), Directive.ESCALATE),
    ],
)
def test_the_default(error: BaseException, directive: Directive) -> None:
    assert default_decider(error) is directive
    assert OneForOneStrategy().decide(error) is directive
    assert AllForOneStrategy().decide(error) is directive


class OddKilled(ActorKilled):
    pass


class OddExit(SystemExit):
    pass


class Odd(BaseException):
    pass


@pytest.mark.parametrize(
    ("error", "directive"),
    [
        (OddKilled(), Directive.STOP),
        (ValueError(), Directive.RESTART),
        (OddExit(), Directive.STOP),
        (Odd(), Directive.ESCALATE),
    ],
)
def test_the_default_for_what_arrives_as_a_remote_error(error: BaseException, directive: Directive) -> None:
    assert default_decider(remote_error(error)) is directive


@pytest.mark.parametrize(
    ("rules", "directive"),
    [
        ({OddKilled: Directive.RESUME, ActorKilled: Directive.STOP, Exception: Directive.RESTART}, Directive.RESUME),
        ({ActorKilled: Directive.STOP, RemoteError: Directive.RESTART}, Directive.STOP),
        ({RemoteError: Directive.RESTART, Exception: Directive.STOP}, Directive.RESTART),
        ({Exception: Directive.STOP}, Directive.STOP),
        ({ValueError: Directive.STOP}, Directive.ESCALATE),
        ({f"{__name__}:OddKilled": Directive.STOP}, Directive.STOP),
    ],
)
def test_rules_match_a_remote_error_by_the_names_of_its_classes(rules: Any, directive: Directive) -> None:
    strategy = OneForOneStrategy(rules)
    assert strategy.decide(remote_error(OddKilled())) is directive
    assert strategy.unmatched(remote_error(OddKilled())) is None


def test_a_rule_for_a_class_of_the_same_name_elsewhere_is_told() -> None:
    error = RemoteError("x.OddExit", "m", "", ("script:OddExit", "builtins:SystemExit", "builtins:BaseException"))
    strategy = OneForOneStrategy({OddExit: Directive.STOP, ActorError: Directive.RESTART})
    assert strategy.decide(error) is Directive.RESTART
    told = strategy.unmatched(error)
    assert told is not None
    assert f"the rule for {name_of(OddExit)} does not apply to script:OddExit" in told
    assert "import the class from the same module" in told


def test_a_decider_that_is_given_a_remote_error_is_told() -> None:
    told = OneForOneStrategy(by_text).unmatched(remote_error(OddKilled("stop")))
    assert told is not None
    assert name_of(OddKilled) in told
    assert "mapping" in told
    assert OneForOneStrategy(by_text).unmatched(OddKilled("stop")) is None
    for own in (OneForOneStrategy(), stopping_strategy(), OneForOneStrategy(escalating_decider)):
        assert own.unmatched(remote_error(OddKilled("stop"))) is None


def test_stopping() -> None:
    assert stopping_strategy().decide(ValueError()) is Directive.STOP
    assert stopping_strategy().decide(SystemExit()) is Directive.STOP
    assert stopping_strategy().decide(BaseException()) is Directive.ESCALATE
    assert not stopping_strategy().all_for_one
    assert escalating_decider(ValueError()) is Directive.ESCALATE


class Left(LookupError):
    pass


class Both(Left, ArithmeticError):
    pass


@pytest.mark.parametrize(
    ("error", "directive"),
    [
        (KeyError(), Directive.RESUME),
        (IndexError(), Directive.RESTART),
        (Left(), Directive.RESTART),
        (Both(), Directive.RESTART),
        (ZeroDivisionError(), Directive.STOP),
        (ValueError(), Directive.ESCALATE),
        (SystemExit(), Directive.ESCALATE),
    ],
)
def test_in_a_mapping_the_most_special_type_counts(error: BaseException, directive: Directive) -> None:
    rules = {ArithmeticError: Directive.STOP, LookupError: Directive.RESTART, KeyError: Directive.RESUME}
    for order in (rules, dict(reversed(list(rules.items())))):
        assert OneForOneStrategy(order).decide(error) is directive


def test_a_mapping_may_name_types_of_functions() -> None:
    class Local(Exception):
        pass

    assert OneForOneStrategy({Local: Directive.STOP}).decide(Local()) is Directive.STOP


def test_a_decider_must_decide() -> None:
    with pytest.raises(TypeError, match="returns a Directive, not 'restart'"):
        OneForOneStrategy(nonsense).decide(ValueError())
    with pytest.raises(ValueError, match="is not a valid Directive"):
        OneForOneStrategy(by_text).decide(ValueError("x"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"max_retries": -1}, "None for no limit"),
        ({"max_retries": 1.5}, "None for no limit"),
        ({"max_retries": True}, "None for no limit"),
        ({"within_s": -1}, "None for no window"),
        ({"within_s": float("inf")}, "None for no window"),
        ({"within_s": float("nan")}, "None for no window"),
        ({"backoff": 3}, "backoff is a Backoff"),
        ({"decider": 3}, "neither a function nor"),
        ({"decider": "by_text"}, "not an import path"),
        ({"decider": {int: Directive.STOP}}, "not an exception type"),
        ({"decider": {ValueError: "stop"}}, "not a Directive"),
    ],
)
@pytest.mark.parametrize("kind", [OneForOneStrategy, AllForOneStrategy])
def test_arguments(kind: type[SupervisorStrategy], arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        kind(**arguments)


@pytest.mark.parametrize(
    "strategy",
    [
        OneForOneStrategy(),
        AllForOneStrategy(by_text, max_retries=3, within_s=1.5),
        OneForOneStrategy({ValueError: Directive.STOP, Left: Directive.RESUME}, backoff=Backoff(1, 10)),
        OneForOneStrategy("tests.unit.test_actor_supervision:by_text"),
        stopping_strategy(),
    ],
)
def test_strategies_travel(strategy: SupervisorStrategy) -> None:
    arrived = SERIALIZER.loads(SERIALIZER.dumps(strategy))
    assert arrived == strategy
    assert arrived.all_for_one == strategy.all_for_one
    error = Left("stop") if strategy.decider != stopping_strategy().decider else ValueError()
    assert arrived.decide(error) is strategy.decide(error)


def test_a_strategy_imports_nothing_when_it_arrives() -> None:
    data = SERIALIZER.dumps(OneForOneStrategy("no_such_module:decider"))
    arrived = SERIALIZER.loads(data)
    with pytest.raises(SerializationError, match="cannot be imported here"):
        arrived.decide(ValueError())


def test_a_strategy_whose_decider_has_no_name_stays() -> None:
    strategy = OneForOneStrategy(lambda error: Directive.RESUME)
    assert strategy.decide(ValueError()) is Directive.RESUME
    with pytest.raises(SerializationError, match="import path"):
        SERIALIZER.dumps(strategy)


# ---------------------------------------------------------------------------------------------- limits


def permissions(window: RestartWindow, *times: float) -> list[bool]:
    return [window.restart_permissible(now) for now in times]


def test_no_limit() -> None:
    assert all(permissions(RestartWindow(None, None), *[0.0] * 100))


@pytest.mark.parametrize("within_s", [None, 0.0, 1.0])
def test_no_restart_at_all(within_s: float | None) -> None:
    assert permissions(RestartWindow(0, within_s), 0, 5, 100) == [False] * 3


def test_a_number_for_ever() -> None:
    assert permissions(RestartWindow(2, None), 0, 1000, 1e6, 1e9) == [True, True, False, False]


def test_a_number_in_a_window() -> None:
    # Akka's own example: the window opens with the first request; the first one after its end opens another.
    window = RestartWindow(2, 10)
    assert permissions(window, 100, 105, 110, 110.1, 111, 120.1, 120.2) == [True, True, False, True, True, False, True]


def test_a_window_alone_allows_one_in_it() -> None:
    assert permissions(RestartWindow(None, 5), 0, 1, 5, 5.1, 6, 11) == [True, False, False, True, False, True]


def test_a_refused_request_counts_but_does_not_move_the_window() -> None:
    assert permissions(RestartWindow(1, 10), 0, 9, 10, 10.5) == [True, False, False, True]


def test_the_clock_may_begin_at_zero_or_below() -> None:
    assert permissions(RestartWindow(1, 10), -5, 0, 5, 5.1) == [True, False, False, True]


class AkkaStats:
    """`ChildRestartStats` transcribed, with its own clock that never says 0."""

    def __init__(self, retries: int | None, window: float | None) -> None:
        self.retries, self.window = retries, window
        self.count, self.start = 0, 0.0

    def request(self, now: float) -> bool:
        match self.retries, self.window:
            case int(retries), _ if retries < 1:
                return False
            case int(retries), None:
                self.count += 1
                return self.count <= retries
            case retries, float(window):
                return self.in_window(retries if retries is not None else 1, window, now)
            case _:
                return True

    def in_window(self, retries: int, window: float, now: float) -> bool:
        done = self.count + 1
        if self.start == 0:
            self.start = now
        if now - self.start <= window:
            self.count = done
            return done <= retries
        self.count = 1
        self.start = now
        return True


@given(
    st.none() | st.integers(0, 4),
    st.none() | st.floats(0, 10),
    st.lists(st.floats(0, 8), max_size=30),
)
def test_the_limit_is_akkas(retries: int | None, within_s: float | None, steps: list[float]) -> None:
    window, akka = RestartWindow(retries, within_s), AkkaStats(retries, within_s)
    now = 1.0
    for step in steps:
        now += step
        assert window.restart_permissible(now) == akka.request(now)
    strategy = OneForOneStrategy(max_retries=retries, within_s=within_s)
    assert strategy.window().restart_permissible(1.0) == AkkaStats(retries, within_s).request(1.0)


# ---------------------------------------------------------------------------------------------- back-off


def test_waits_double_up_to_the_maximum() -> None:
    backoff = Backoff(0.5, 10, jitter=0)
    waits = [backoff.delay(count, random.Random(1)) for count in range(7)]
    assert waits == [0.5, 1, 2, 4, 8, 10, 10]


def test_a_factor_of_one() -> None:
    assert Backoff(2, 10, factor=1, jitter=0).delay(1000, random.Random(1)) == 2


@given(
    st.integers(0, 10**9), st.floats(1e-3, 1e3), st.floats(1, 1e6), st.floats(1, 100), st.floats(0, 1), st.integers()
)
def test_waits_stay_in_bounds(count: int, least: float, times: float, factor: float, jitter: float, seed: int) -> None:
    backoff = Backoff(least, least * times, factor, jitter)
    wait = backoff.delay(count, random.Random(seed))
    assert least <= wait <= least * times * (1 + jitter) * (1 + 1e-12)
    assert backoff.delay(count, random.Random(seed)) == wait


def test_jitter_spreads() -> None:
    rng = random.Random(3)
    waits = [Backoff(1, 8, jitter=0.5).delay(1, rng) for _ in range(200)]
    assert all(2 <= wait <= 3 for wait in waits)
    assert max(waits) - min(waits) > 0.9


@pytest.mark.parametrize(
    "arguments",
    [
        (0, 1),
        (-1, 1),
        (2, 1),
        (1, float("inf")),
        (float("nan"), 1),
        (1, 2, 0.5),
        (1, 2, 2, -0.1),
        (1, 2, 2, 1.1),
        (1, 2, 2, 0.1, 0),
        (1, 2, 2, 0.1, -1),
    ],
)
def test_bad_backoffs(arguments: tuple[float, ...]) -> None:
    with pytest.raises(ValueError):
        Backoff(*arguments)


def test_waits_begin_anew_after_a_quiet_time() -> None:
    counter = BackoffCounter(Backoff(1, 100, jitter=0))
    rng = random.Random(0)
    now = 0.0
    waits = []
    for quiet_s in (0.0, 0.9, 0.9, 0.9, 1.0, 0.5):  # seconds from each restart to the next failure; 1 s is the limit
        now += quiet_s
        waits.append(counter.next_delay(now, rng))
        now += waits[-1]
    assert waits == [1, 2, 4, 8, 1, 2]


def test_the_quiet_time_can_be_set() -> None:
    counter = BackoffCounter(Backoff(1, 100, jitter=0, reset_after_s=60))
    rng = random.Random(0)
    assert counter.next_delay(0, rng) == 1
    assert counter.next_delay(60.9, rng) == 2
    assert counter.next_delay(60.9 + 2 + 60, rng) == 1

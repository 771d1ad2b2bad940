"""The model of the leader latch: SPIN visits all states and finds each planted fault; its runs are the product's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from runtime.ha.errors import LeadershipLostError
from runtime.ha.fenced import Demand
from runtime.ha.latch import AcquireReply, LatchState, LatchTiming
from runtime.ha.standalone_endpoint import HaMemory
from runtime.protocol.leader import DISPATCHER, LeaderTerm
from tests.model.spin import BEYOND, CHECKS, FAULTS, Fault, missing, run, trace

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

LEASE = 10.0


@pytest.mark.parametrize("fewer", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["fewer", "all"])
@pytest.mark.parametrize("name", CHECKS)
def test_what_the_model_promises_holds_in_all_its_states(name: str, fewer: bool) -> None:
    """A part of the states in each run of the tests, all of them in the long form."""
    check = CHECKS[name]
    result = run(check, fewer=fewer)
    assert result.errors == 0, f"{result.violated}\n{result.trail}"
    assert result.complete, result.output
    assert result.states >= (check.fewer_states if fewer else check.least_states)


def faults() -> Iterator[Any]:
    """All planted faults; those that are not the first of their check are long forms."""
    checks = set()
    for fault in (*FAULTS, *BEYOND):
        yield pytest.param(fault, marks=pytest.mark.slow if fault.check in checks else (), id=fault.defines[0])
        checks.add(fault.check)


@pytest.mark.parametrize("fault", list(faults()))
def test_a_planted_fault_is_found(fault: Fault) -> None:
    result = run(CHECKS[fault.check], fault.defines)
    assert result.errors == 1, result.output
    assert fault.finds in result.violated
    assert result.trail


class Replay:
    """The product's own latch and contenders, which repeat the steps of a run of the model and compare."""

    def __init__(self) -> None:
        self.now = 0
        self.memory = HaMemory(clock=lambda: float(self.now), milliseconds=lambda: self.now)
        self.contenders = [self.contender(0), self.contender(1)]
        self.sent: list[tuple[str, float, int]] = [("", 0.0, 0)] * 2
        self.replies: list[AcquireReply | bool | None] = [None, None]
        self.sessions = [1, 2]

    def contender(self, number: int) -> LatchState:
        names = iter(range(1 + number, 200, 2))
        return LatchState(DISPATCHER, LatchTiming(LEASE), lambda: str(next(names)))

    def tick(self, now: str) -> None:
        self.now = int(now)

    def send(self, number: str, what: str) -> None:
        contender = self.contenders[int(number)]
        assert (what == "RENEW") == contender.leading(self.now)
        self.sent[int(number)] = (what, float(self.now), contender.term.epoch if contender.term else 0)

    def execute(self, number: str, granted: str, epoch: str, expires: str) -> None:
        n = int(number)
        what, _, term = self.sent[n]
        if what == "ACQUIRE":
            reply = self.memory.acquire(DISPATCHER, str(self.sessions[n]), LEASE, 0)
            assert reply == AcquireReply(granted == "1", int(epoch), float(expires))
            if not reply.granted:  # the model hears such a reply at once
                self.contenders[n].held_by_other(self.now, reply.expires_in)
                return
            self.replies[n] = reply
        else:
            self.replies[n] = self.memory.renew(LeaderTerm(DISPATCHER, term, str(self.sessions[n])), LEASE)
            assert self.replies[n] == (granted == "1")

    def hear(self, number: str) -> None:
        n = int(number)
        contender, reply, sent = self.contenders[n], self.replies[n], self.sent[n][1]
        if isinstance(reply, AcquireReply):
            contender.granted(sent, self.now, str(self.sessions[n]), reply.epoch, reply.expires_in)
        elif reply:
            contender.renewed(sent)
        else:
            contender.refused()

    def give_up(self, number: str) -> None:
        self.contenders[int(number)].unreachable(self.now)

    def late(self, what: str, session: str, epoch: str, granted: str) -> None:
        term = LeaderTerm(DISPATCHER, int(epoch), session)
        if what == "ACQUIRE":
            assert self.memory.acquire(DISPATCHER, session, LEASE, 0).granted == (granted == "1")
        elif what == "RENEW":
            assert self.memory.renew(term, LEASE) == (granted == "1")
        else:
            self.memory.release(term)

    def write(self, session: str, epoch: str, accepted: str) -> None:
        term = LeaderTerm(DISPATCHER, int(epoch), session)
        try:
            self.memory.hset("key", "field", epoch, term, Demand.ANY)
        except LeadershipLostError:
            assert accepted == "0"
        else:
            assert accepted == "1"

    def abandon(self, number: str) -> None:
        self.contenders[int(number)].abandon("cannot lead")

    def step_down(self, number: str) -> None:
        self.contenders[int(number)].stepped_down(self.now)
        self.sessions[int(number)] += 2

    def state(self, *words: str) -> None:
        first, second, one, two, owner, epoch, ttl = map(int, words)
        assert [contender.leading(self.now) for contender in self.contenders] == [bool(first), bool(second)]
        assert [contender.term.epoch if contender.term else 0 for contender in self.contenders] == [one, two]
        if owner:
            held = self.memory.acquire(DISPATCHER, str(owner), LEASE, 0)
            assert held == AcquireReply(True, epoch, float(ttl))


def replay(seed: int, faults: tuple[str, ...] = ()) -> Counter[str]:
    """Repeat one run, and count its steps; raises AssertionError at the first that differs."""
    product = Replay()
    steps = trace(seed, faults)
    for number, (name, *words) in enumerate(steps):
        if name != "leave_behind":
            try:
                getattr(product, name)(*words)
            except AssertionError as error:
                raise AssertionError(f"seed {seed}, step {number}: {name} {' '.join(words)}") from error
    assert product.now == 200, "the run ended early"
    return Counter(name for name, *_ in steps)


def replays(seeds: range, faults: tuple[str, ...] = ()) -> Counter[str]:
    """Repeat several runs, and count their steps; raises as `replay`."""
    return sum((replay(seed, faults) for seed in seeds), Counter[str]())


def test_runs_of_the_model_are_runs_of_the_product() -> None:
    steps = replays(range(20))
    assert min(steps[name] for name in ("hear", "late", "write", "abandon", "step_down", "give_up")) > 20, steps


@pytest.mark.parametrize(
    "fault",
    ["NO_MARGIN", "LEASE_FROM_REPLY", "FULL_LEASE_AGAIN", "RELEASE_ANY", "WRITE_UNFENCED", "EPOCH_NOT_RAISED"],
)
def test_runs_of_a_model_with_a_fault_are_not(fault: str) -> None:
    with pytest.raises(AssertionError, match="seed "):
        replays(range(20), (fault,))

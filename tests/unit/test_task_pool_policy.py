"""Which task processes are kept ready: decisions, bounds and counts, without a process."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from runtime.ids import JobID
from runtime.jobgraph.job_graph import JobKind
from runtime.taskexecutor.services import FairPools
from runtime.taskexecutor.task_pool import (
    FIRST_DELAY_S,
    LONGEST_DELAY_S,
    MAX_IDLE_S,
    REST_S,
    Miss,
    Preparation,
    TaskPoolPolicy,
)

SCRIPT, PIPELINE = JobKind.SCRIPT, JobKind.PIPELINE
LONG_AGO = -REST_S


def fill(policy: TaskPoolPolicy, now: float = 1.0) -> list[Preparation]:
    """Make ready whatever the policy wants."""
    made = []
    while (preparation := policy.next_preparation(now)) is not None:
        policy.prepared(preparation.number, now)
        made.append(preparation)
    return made


def test_one_of_each_kind_is_ready_and_the_rest_goes_by_demand() -> None:
    policy = TaskPoolPolicy(4)
    assert Counter(made.kind for made in fill(policy)) == {SCRIPT: 2, PIPELINE: 2}
    for _ in range(6):
        assert isinstance(policy.take(SCRIPT, False, LONG_AGO), int)
        for number in policy.surplus(1.0):
            assert number
        fill(policy)
    for number in policy.surplus(1.0):
        assert number
    fill(policy)
    assert policy.report().idle == {"script": 3, "pipeline": 1}


def test_a_pool_of_one_follows_the_demand() -> None:
    policy = TaskPoolPolicy(1)
    first = fill(policy)[0].kind
    other = PIPELINE if first is SCRIPT else SCRIPT
    assert policy.take(other, False, LONG_AGO) is Miss.OTHER_KIND
    assert len(policy.surplus(1.0)) == 1
    assert [made.kind for made in fill(policy)] == [other]


def test_the_reasons_of_misses_are_counted() -> None:
    policy = TaskPoolPolicy(2)
    assert policy.take(SCRIPT, False, LONG_AGO) is Miss.EMPTY
    fill(policy)
    assert policy.take(SCRIPT, True, LONG_AGO) is Miss.OWN_ENVIRONMENT
    assert isinstance(policy.take(SCRIPT, False, LONG_AGO), int)
    assert policy.take(SCRIPT, False, LONG_AGO) is Miss.OTHER_KIND
    assert isinstance(policy.take(PIPELINE, False, LONG_AGO), int)
    policy.taken_was_dead()
    report = policy.report()
    assert report.hits == 1
    assert report.misses == {"empty": 1, "own-environment": 1, "other-kind": 1, "died": 1}


def test_a_process_is_taken_once() -> None:
    policy = TaskPoolPolicy(4)
    fill(policy)
    taken = [policy.take(SCRIPT, False, LONG_AGO) for _ in range(2)] + [
        policy.take(PIPELINE, False, 0.0) for _ in range(2)
    ]
    assert len(set(taken)) == 4
    assert policy.take(PIPELINE, False, LONG_AGO) is Miss.EMPTY


def test_it_is_not_filled_up_while_a_task_has_just_begun_unless_a_kind_has_run_out() -> None:
    policy = TaskPoolPolicy(6)
    fill(policy)
    policy.take(PIPELINE, False, 10.0)
    assert policy.next_preparation(10.0 + REST_S / 2) is None, "its cores are the task's"
    assert policy.wake_at() == 10.0 + REST_S
    assert policy.next_preparation(10.0 + REST_S) is not None
    policy = TaskPoolPolicy(2)
    fill(policy)
    policy.take(PIPELINE, False, 10.0)
    preparation = policy.next_preparation(10.0)
    assert preparation is not None
    assert preparation.kind is PIPELINE, "there is none left"


def test_without_size_nothing_is_made_ready() -> None:
    policy = TaskPoolPolicy(0)
    assert policy.next_preparation(1.0) is None
    assert policy.wake_at() is None
    assert policy.take(SCRIPT, False, LONG_AGO) is Miss.OFF


def test_failures_are_followed_by_longer_and_longer_pauses() -> None:
    policy, now, pauses = TaskPoolPolicy(2), 10.0, []
    for _ in range(9):
        preparation = policy.next_preparation(now)
        assert preparation is not None
        policy.failed(preparation.number, now)
        assert policy.next_preparation(now) is None
        wake_at = policy.wake_at()
        assert wake_at is not None
        pauses.append(wake_at - now)
        now = wake_at
    assert pauses[:3] == [FIRST_DELAY_S, 2 * FIRST_DELAY_S, 4 * FIRST_DELAY_S]
    assert pauses[-1] == LONGEST_DELAY_S
    preparation = policy.next_preparation(now)
    assert preparation is not None
    policy.prepared(preparation.number, now)
    policy.died(preparation.number, now)
    assert policy.wake_at() == now + FIRST_DELAY_S
    assert (policy.report().failed, policy.report().died) == (9, 1)


def test_whoever_waits_too_long_is_replaced() -> None:
    policy = TaskPoolPolicy(2)
    fill(policy, 1.0)
    assert policy.surplus(MAX_IDLE_S) == []
    assert policy.wake_at() == 1.0 + MAX_IDLE_S
    assert len(policy.surplus(1.0 + MAX_IDLE_S)) == 2
    assert len(fill(policy, 1.0 + MAX_IDLE_S)) == 2


def test_after_the_drain_nothing_is_made_or_given() -> None:
    policy = TaskPoolPolicy(3)
    fill(policy)
    assert len(policy.drain()) == 3
    assert policy.next_preparation(1.0) is None
    assert policy.take(SCRIPT, False, LONG_AGO) is Miss.OFF


class PoolMachine(RuleBasedStateMachine):
    """Never more than the size, never one given twice or after its end, every take counted, never stuck."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 3
        self.policy = TaskPoolPolicy(self.size)
        self.now = 1.0
        self.preparing: Preparation | None = None
        self.ready: dict[int, JobKind] = {}
        self.given: set[int] = set()
        self.takes = 0

    @rule(seconds=st.floats(0, 1000))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.preparing is None)
    @rule()
    def prepare(self) -> None:
        for number in self.policy.surplus(self.now):
            del self.ready[number]
        self.preparing = self.policy.next_preparation(self.now)

    @precondition(lambda self: self.preparing is not None)
    @rule(succeeds=st.booleans())
    def preparation_ends(self, succeeds: bool) -> None:
        preparation, self.preparing = self.preparing, None
        assert preparation is not None
        assert preparation.number not in self.given
        if succeeds:
            self.policy.prepared(preparation.number, self.now)
            self.ready[preparation.number] = preparation.kind
        else:
            self.policy.failed(preparation.number, self.now)

    @rule(kind=st.sampled_from(JobKind), own=st.booleans())
    def take(self, kind: JobKind, own: bool) -> None:
        self.takes += 1
        found = self.policy.take(kind, own, self.now)
        if isinstance(found, Miss):
            assert own or kind not in self.ready.values()
        else:
            assert found not in self.given
            assert self.ready.pop(found) is kind
            self.given.add(found)

    @precondition(lambda self: self.ready)
    @rule(data=st.data())
    def one_dies(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.ready)))
        del self.ready[number]
        self.policy.died(number, self.now)

    @invariant()
    def bounded_and_counted(self) -> None:
        report = self.policy.report()
        assert sum(report.idle.values()) == len(self.ready)
        assert len(self.ready) + (self.preparing is not None) <= self.size
        assert report.hits + sum(report.misses.values()) == self.takes
        if self.preparing is None and len(self.ready) < self.size:
            assert self.policy.wake_at() is not None


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPoolMachine = PoolMachine.TestCase


def test_jobs_have_pools_of_their_own_whose_names_are_used_again() -> None:
    pools, (a, b, c) = FairPools(), [JobID(letter * 32) for letter in "abc"]
    assert [pools.enter(a), pools.enter(b), pools.enter(a)] == ["job-0", "job-1", "job-0"]
    pools.leave(a)
    assert pools.enter(c) == "job-2"  # another task of the first job still runs
    pools.leave(a)
    pools.leave(b)
    assert pools.enter(b) == "job-0"

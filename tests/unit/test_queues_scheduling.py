"""Who is next: order, limits, fairness; a model checks that limits hold, no slot stays free, and nobody starves."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from dataclasses import astuple
from decimal import Decimal
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from runtime.ids import AllocationID, JobID
from runtime.queues.configuration import DEFAULT_QUEUE, Asked, Demand, Member, Queues, Scope, parse_queues
from runtime.queues.scheduling import GRANT_S, Account, Claim, FairShare, Use

CALM = "half-life: 1000 d\n"
"""Hardly any decay: figures can be foretold."""


def job(number: int) -> JobID:
    return JobID(f"{number:032x}")


def claim(number: int, of_job: int | None = None, priority: int = 0) -> Claim:
    return Claim(job(number if of_job is None else of_job), AllocationID(f"{number:032x}"), (-priority, number))


def share(text: str, **jobs: tuple[int, ...]) -> FairShare:
    """A share with jobs by ``user`` or ``user__queue``."""
    made = FairShare(parse_queues(CALM + text, "q"))
    for who, numbers in jobs.items():
        user, _, queue = who.partition("__")
        for number in numbers:
            made.register(job(number), user, queue, 0.0)
    return made


def order(made: FairShare, *numbers: int, now: float = 0.0) -> list[int]:
    return [int(found.job_id, 16) for found in made.order([claim(number) for number in numbers], now)]


def test_queues_of_a_higher_priority_are_served_first() -> None:
    made = share("queues: {slow: {priority: -1}, fast: {priority: 1}}", a__slow=(1,), a=(2,), a__fast=(3, 4))
    assert order(made, 1, 2, 3, 4) == [3, 4, 2, 1]


def test_users_take_turns_and_each_user_s_own_jobs_are_in_the_order_of_their_requests() -> None:
    made = share("", ada=(1, 2, 3, 4), bob=(5, 6))
    assert order(made, 1, 2, 3, 4, 5, 6) == [1, 5, 2, 6, 3, 4]


def test_a_user_s_priorities_order_only_their_own_jobs() -> None:
    made = share("", ada=(1, 2, 3), bob=(4,))
    claims = [claim(1), claim(2), claim(3, priority=9), claim(4)]
    assert [int(found.job_id, 16) for found in made.order(claims, 0.0)] == [3, 4, 1, 2]


def test_queues_share_the_slots_by_their_weights() -> None:
    made = share("queues: {big: {weight: 3}, small: {}}", a__big=range(1, 100), a__small=range(100, 200))
    served = Counter(number < 100 for number in islice(order(made, *range(1, 200)), 40))
    assert served[True] == 30


def test_who_has_used_less_is_next_and_use_is_forgotten() -> None:
    made = FairShare(parse_queues("half-life: 10 s", "q"))
    made.register(job(1), "ada", "", 0.0)
    made.register(job(2), "bob", "", 0.0)
    made.take(job(1), 0.0)
    made.give_back(job(1), 100.0)
    made.take(job(2), 100.0)
    made.give_back(job(2), 105.0)
    assert order(made, 1, 2, now=105.0) == [2, 1]
    member = made.member(job(1))
    assert made.used_by(member, 105.0) == pytest.approx(made.used_by(member, 115.0) * 2)
    assert made.used(DEFAULT_QUEUE, 1e9) == pytest.approx(0.0)


@given(st.lists(st.tuples(st.floats(0.0, 100.0), st.integers(0, 3)), max_size=8))
def test_an_account_does_not_depend_on_how_often_it_is_looked_at(steps: list[tuple[float, int]]) -> None:
    once, often, now = Account(0.0), Account(0.0), 0.0
    for seconds, slots in steps:
        once.change(slots, now, 30.0)
        often.change(slots, now, 30.0)
        for part in range(1, 4):
            often.change(0, now + seconds * part / 4, 30.0)
        now += seconds
        assert often.used(now, 30.0) == pytest.approx(once.used(now, 30.0))


def test_a_request_beyond_a_limit_is_passed_over_and_says_which() -> None:
    text = "users: {ada: {slots: 2}}\ngroups: {g: {members: [bob, eve], running-jobs: 1}}"
    made = share(text, ada=(1, 2, 3), bob=(4,), eve=(5,), zoe=(6,))
    assert order(made, 1, 2, 3, 4, 5, 6) == [1, 4, 6, 2]
    for number in (1, 2, 4):
        made.take(job(number), 0.0)
    assert made.blocked_by(job(3)) == ("user ada uses 2 of 2 slots",)
    assert made.blocked_by(job(5)) == ("group g runs 1 of 1 jobs",)
    assert made.blocked_by(job(4)) == (), "a job that runs may have a further slot"
    assert [(int(turn.claim.job_id, 16), turn.place) for turn in made.turns([claim(3), claim(5), claim(6)], 0.0)] == [
        (6, 1),
        (3, 2),
        (5, 3),
    ]
    made.give_back(job(1), 1.0)
    assert made.blocked_by(job(3)) == ()


def test_a_job_with_a_slot_gets_further_ones_at_the_limit_of_running_jobs() -> None:
    made = share("queues: {default: {running-jobs: 1}}", ada=(1, 2))
    claims = [claim(10, 1), claim(11, 2), claim(12, 1)]
    assert [found.allocation_id for found in made.order(claims, 0.0)] == [
        claims[0].allocation_id,
        claims[2].allocation_id,
    ]


def test_a_job_s_slots_count_until_they_are_free_also_after_its_end_and_before_it_is_known() -> None:
    made = share("users: {ada: {slots: 1}}", ada=(2,))
    made.take(job(1), 0.0)
    assert made.blocked_by(job(2)) == (), "the slot of a job that has not registered yet is nobody's"
    made.register(job(1), "ada", "", 5.0)
    assert made.blocked_by(job(2)) == ("user ada uses 1 of 1 slots",)
    assert made.used_by(Member("ada", DEFAULT_QUEUE), 6.0) == pytest.approx(1.0), "and was given long ago"
    made.unregister(job(1))
    assert made.blocked_by(job(2)) != ()
    made.give_back(job(1), 7.0)
    assert (made.blocked_by(job(2)), made.running) == ((), ())
    assert made.member(job(1)) == Member("", DEFAULT_QUEUE), "it is forgotten"
    assert not made._held, "and so is whose limits it counted for"


def test_other_queues_and_limits_are_in_use_at_once() -> None:
    made = share("queues: {a: {slots: 1}}", ada__a=(1, 2))
    made.take(job(1), 0.0)
    assert made.blocked_by(job(2)) != ()
    made.configure(parse_queues(CALM + "queues: {a: {slots: 2}}", "q"), 10.0)
    assert made.blocked_by(job(2)) == ()
    assert made.used("a", 10.0) == pytest.approx(10.0 + GRANT_S, rel=1e-3), "and what was used stays used"
    made.configure(Queues(), 10.0)
    assert made.member(job(1)) == Member("ada", DEFAULT_QUEUE), "its queue is gone"
    assert made.held(Queues().scopes_of("ada", DEFAULT_QUEUE)[0]) == Use(1, 1)
    made.configure(parse_queues(CALM + "queues: {a: {slots: 1}}", "q"), 11.0)
    assert made.member(job(1)) == Member("ada", "a")
    made.give_back(job(1), 12.0)
    assert made.held(Queues().scopes_of("ada", "a")[0]) == Use()


SIZED = "each-task: {memory-mb: 1024, cpus: 1}\n"


def test_memory_and_cpus_of_tasks_count_as_slots_do_and_the_reason_says_how_much() -> None:
    made = share(SIZED + "users: {ann: {memory-mb: 8192}}\nqueues: {default: {cpus: 2.5}}")
    for number, gb in ((1, 4), (2, 2), (3, 4)):
        made.register(job(number), "ann", "", 0.0, Asked(gb * 1024, Decimal("0.5")))
    made.register(job(4), "bob", "", 0.0)
    made.register(job(5), "bob", "", 0.0)
    assert order(made, 1, 2, 3) == [1, 2], "each one counts for those after it"
    for number in (1, 2):
        made.take(job(number), 0.0)
    assert made.blocked_by(job(3)) == ("memory of user ann: 6144 of 8192 MB used, 4096 asked for",)
    made.take(job(4), 0.0)
    assert made.blocked_by(job(5)) == ("CPUs of queue default: 2 of 2.5 used, 1 asked for",)
    assert made.held(Scope("user", "ann")) == Use(2, 2, 6144, Decimal(1))
    assert made.held(Scope("queue", DEFAULT_QUEUE)) == Use(3, 3, 7168, Decimal(2))
    made.give_back(job(2), 1.0)
    assert made.blocked_by(job(3)) == ()


def test_a_job_that_does_not_say_what_its_tasks_take_counts_as_the_file_says() -> None:
    made = share(SIZED + "each-user: {memory-mb: 2048}", ada=(1,))
    made.register(job(2), "bob", "", 0.0, Asked(2048))
    assert made.demand(job(1)) == Demand(1024, Decimal(1))
    assert made.demand(job(2)) == Demand(2048, Decimal(1))
    made.take(job(1), 0.0)
    made.configure(parse_queues("each-task: {memory-mb: 1500}\neach-user: {memory-mb: 2048}", "q"), 1.0)
    assert made.held(Scope("user", "ada")) == Use(1, 1, 1500), "what runs counts by the present file"
    made.register(job(1), "ada", "", 2.0, Asked(7))
    assert made.held(Scope("user", "ada")) == Use(1, 1, 7), "and by what its job says now"


def test_a_large_request_is_not_passed_by_smaller_ones_of_the_same_limit() -> None:
    """Small jobs without end would take every piece of memory as it becomes free."""
    made = share(SIZED + "groups: {g: {members: [ada, bob], memory-mb: 4096}}", ada=(1, 3), bob=(4,), zoe=(5,))
    made.register(job(2), "ada", "", 0.0, Asked(4096))
    made.take(job(1), 0.0)
    made.give_back(job(1), 9.0)
    made.take(job(1), 9.0)
    made.take(job(9), 9.0)
    claims = [claim(2), claim(3), claim(5)]
    assert [found.job_id for found in made.order(claims, 9.0)] == [job(5)], "others are not held back"
    reasons = {turn.claim.job_id: turn.blocked for turn in made.turns(claims, 9.0)}
    assert reasons == {
        job(5): (),
        job(2): ("memory of group g: 1024 of 4096 MB used, 4096 asked for",),
        job(3): ("an earlier request waits for memory or CPUs of group g",),
    }
    made.give_back(job(1), 10.0)
    assert order(made, 2, 3, now=10.0) == [2]


def test_blobs_of_registered_jobs_are_summed_until_their_jobs_end() -> None:
    made = share("groups: {g: {members: [ada, bob], blob-mb: 9}}")
    for number, user, size in ((1, "ada", 5), (2, "ada", 7), (3, "bob", 11), (4, "zoe", 13)):
        made.register(job(number), user, "", 0.0, Asked(blob_bytes=size))
    scopes = [Scope("user", "ada"), Scope("group", "g"), Scope("queue", DEFAULT_QUEUE), Scope("user", "eve")]
    assert [made.blob_bytes(scope) for scope in scopes] == [12, 23, 36, 0]
    assert [scope.name for scope in made.scopes] == ["ada", "bob", "zoe", "g"]
    made.take(job(1), 0.0)
    made.unregister(job(1))
    made.unregister(job(3))
    assert [scope.name for scope in made.scopes] == ["ada", "zoe", "g"]
    assert [made.blob_bytes(scope) for scope in scopes] == [7, 7, 20, 0], "a slot that is not free yet holds no blob"


def test_a_request_that_a_limit_can_never_give_holds_nobody_back() -> None:
    """The limit was lowered after its job had been accepted."""
    made = share(SIZED + "users: {ada: {memory-mb: 2048, cpus: 2}}", ada=(3,))
    made.register(job(1), "ada", "", 0.0, Asked(4096))
    made.register(job(2), "ada", "", 0.0, Asked(1, Decimal(3)))
    assert order(made, 1, 2, 3) == [3]


# ----------------------------------------------------------------------- model

CONFIGURATIONS = (
    "",
    "each-user: {slots: 1}",
    "each-user: {running-jobs: 1}\nusers: {u0: {slots: 2}}",
    "queues: {q0: {weight: 2, slots: 2}, q1: {running-jobs: 1}}",
    "queues: {q0: {priority: 1, slots: 1}, q1: {weight: 5}}\ngroups: {g: {members: [u0, u1], slots: 2}}",
    SIZED + "each-user: {memory-mb: 3072}",
    SIZED + "each-user: {cpus: 2}\nqueues: {q0: {memory-mb: 4096, weight: 3}}",
    SIZED + "groups: {g: {members: [u0, u1], memory-mb: 3072, cpus: 3, slots: 2}}\nqueues: {q1: {cpus: 2.5}}",
    "queues: {q0: {users: [u0]}}\ngroups: {g: {members: [u0, u1], running-jobs: 1}, h: {members: [u1, u2], slots: 1}}",
)
USERS, QUEUES = ("u0", "u1", "u2", ""), ("", "q0", "q1")
ASKED = (Asked(), Asked(512), Asked(3072), Asked(None, Decimal("0.7")), Asked(2048, Decimal(2)))
"""Demands of tasks; each limit above can give them."""


class SharingMachine(RuleBasedStateMachine):
    """A cluster of few slots: jobs come with requests, get slots, give them back, end; the file changes."""

    @initialize(text=st.sampled_from(CONFIGURATIONS), slots=st.integers(1, 4))
    def begin(self, text: str, slots: int) -> None:
        self.share = FairShare(parse_queues(text, "q"))
        self.free, self.now, self.numbers = slots, 0.0, 0
        self.jobs: list[JobID] = []
        self.waiting: dict[AllocationID, Claim] = {}
        self.held: Counter[JobID] = Counter()
        self.before = self.counts()

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    @rule(
        user=st.sampled_from(USERS),
        queue=st.sampled_from(QUEUES),
        requests=st.integers(1, 3),
        asked=st.sampled_from(ASKED),
    )
    def job_comes(self, user: str, queue: str, requests: int, asked: Asked) -> None:
        made = job(self.number())
        self.jobs.append(made)
        self.share.register(made, user, queue, self.now, asked)
        for _ in range(requests):
            found = claim(self.number())
            self.waiting[found.allocation_id] = Claim(made, found.allocation_id, found.rank)
        self.serve()

    @rule(data=st.data())
    @precondition(lambda self: any(self.held.values()))
    def slot_comes_back(self, data: st.DataObject) -> None:
        made = data.draw(st.sampled_from([found for found in sorted(self.held) if self.held[found]]))
        self.give_back(made)
        self.serve()

    def give_back(self, made: JobID) -> None:
        self.held[made] -= 1
        self.free += 1
        self.share.give_back(made, self.now)

    @rule(data=st.data())
    @precondition(lambda self: self.jobs)
    def job_ends(self, data: st.DataObject) -> None:
        made = data.draw(st.sampled_from(self.jobs))
        self.jobs.remove(made)
        self.waiting = {key: found for key, found in self.waiting.items() if found.job_id != made}
        self.share.unregister(made)
        self.serve()

    @rule(text=st.sampled_from(CONFIGURATIONS))
    def file_changes(self, text: str) -> None:
        self.share.configure(parse_queues(text, "q"), self.now)
        self.before = self.counts()
        self.serve()

    @rule(seconds=st.floats(0.0, 10_000.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    def serve(self) -> list[Claim]:
        served = list(islice(self.share.order(self.waiting.values(), self.now), self.free))
        for found in served:
            assert not self.share.blocked_by(found.job_id), "no limit is exceeded, one slot after another"
            del self.waiting[found.allocation_id]
            self.free -= 1
            self.held[found.job_id] += 1
            self.share.take(found.job_id, self.now)
        return served

    def counts(self) -> dict[Scope, Use]:
        """Use by everybody, counted anew from the slots of each job."""
        found = dict[Scope, Use]()
        for made, count in self.held.items():
            member, demand = self.share.member(made), self.share.demand(made)
            for scope in self.share.queues.scopes_of(member.user, member.queue):
                if count:
                    found[scope] = found.get(scope, Use()).plus(count, 1, demand)
        return found

    @invariant()
    def no_limit_is_exceeded(self) -> None:
        """More than a limit allows is held only if it was held before the file changed, and it never grows."""
        found = self.counts()
        for scope in {*found, *self.before}:
            use, before = found.get(scope, Use()), self.before.get(scope, Use())
            assert self.share.held(scope) == use
            limits = self.share.queues.limits_of(scope)
            assert limits.slots is None or use.slots <= max(limits.slots, before.slots)
            assert limits.running_jobs is None or use.jobs <= max(limits.running_jobs, before.jobs)
            assert limits.memory_mb is None or use.memory_mb <= max(limits.memory_mb, before.memory_mb)
            assert limits.cpus is None or use.cpus <= max(limits.cpus, before.cpus)
        self.before = found

    @invariant()
    def no_slot_is_free_that_a_request_may_have(self) -> None:
        """A limit holds each request back, or an earlier one that waits for memory or processors of that limit."""
        if self.free:
            turns = self.share.turns(self.waiting.values(), self.now)
            assert all(turn.blocked for turn in turns)
            large = [turn for turn in turns if self.share.blocked_by(turn.claim.job_id)]
            waited_for = {scope for turn in large for scope in self.share.queues.scopes_of(*astuple(turn.member))}
            for turn in turns:
                if turn not in large:
                    assert waited_for.intersection(self.share.queues.scopes_of(*astuple(turn.member)))

    @invariant()
    def each_request_has_one_place(self) -> None:
        turns = self.share.turns(self.waiting.values(), self.now)
        assert {turn.claim.allocation_id for turn in turns} == set(self.waiting)
        for queue in self.share.queues.queues:
            places = [turn.place for turn in turns if turn.member.queue == queue.name]
            assert places == list(range(1, len(places) + 1))

    def teardown(self) -> None:
        """Without new jobs everybody is served: the limits let each request through once others have ended."""
        if not hasattr(self, "share"):
            return
        rounds = len(self.waiting) + sum(self.held.values()) + 1
        for _ in range(rounds):
            for made in [found for found, count in self.held.items() if count]:
                self.give_back(made)
            self.now += 1.0
            self.serve()
        assert not self.waiting, "a request starves"


SharingMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=30, deadline=None)
TestSharing = SharingMachine.TestCase


def test_nobody_starves_beside_users_who_never_stop() -> None:
    """One slot, two users who always have another job, and a third who asks once, after they have used it for long."""
    made = share("queues: {a: {weight: 9}, b: {}}")
    numbers, late = iter(range(1, 10_000)), 10_001
    waiting: dict[JobID, Claim] = {}

    def come(user: str, queue: str) -> None:
        number = next(numbers)
        made.register(job(number), user, queue, now)
        waiting[job(number)] = claim(number)

    now = 0.0
    for user, queue in (("ada", "a"), ("bob", "b")):
        come(user, queue)
    served: list[JobID] = []
    for step in range(300):
        if step == 100:
            made.register(job(late), "ada", "b", now)
            waiting[job(late)] = claim(late)
        found = next(made.order(waiting.values(), now))
        del waiting[found.job_id]
        served.append(found.job_id)
        member = made.member(found.job_id)
        made.take(found.job_id, now)
        now += 5.0
        made.give_back(found.job_id, now)
        made.unregister(found.job_id)
        come(member.user, member.queue)
    # It is ada's first one in queue b, so it is the next of that queue, which has a tenth of the slots.
    assert served.index(job(late)) - 100 <= 12


def jain(values: list[float]) -> float:
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values))


@pytest.mark.parametrize("slots", [2, 7])
@pytest.mark.parametrize("at_once", [True, False])
def test_fifty_users_with_five_hundred_jobs_get_the_same_slot_seconds(slots: int, at_once: bool) -> None:
    """While all of them have jobs that wait. Each user's jobs are of other lengths and numbers."""
    made = FairShare(parse_queues("", "q"))
    waiting: dict[JobID, Claim] = {}
    seconds: dict[JobID, float] = {}
    owners: dict[JobID, str] = {}
    arrivals = []
    for number in range(500):
        user = number % 50 if not at_once else number // 10
        arrivals.append((0.0 if at_once else float(number // 50), number, f"user-{user}"))
        seconds[job(number)] = 2.0 + (user * 7 + number * 3) % 9
    now, free, ends = 0.0, slots, list[tuple[float, JobID]]()
    used: dict[str, float] = defaultdict(float)
    left = Counter(user for _, _, user in arrivals)
    began: dict[JobID, float] = {}
    index = 0.0
    while min(left[f"user-{user}"] for user in range(50)) > 2:
        while arrivals and arrivals[0][0] <= now:
            _, number, user = arrivals.pop(0)
            owners[job(number)] = user
            made.register(job(number), user, "", now)
            waiting[job(number)] = claim(number)
        for found in list(islice(made.order(waiting.values(), now), free)):
            del waiting[found.job_id]
            made.take(found.job_id, now)
            free -= 1
            began[found.job_id] = now
            heapq.heappush(ends, (now + seconds[found.job_id], found.job_id))
        now, ended = heapq.heappop(ends)
        used[owners[ended]] += now - began.pop(ended)
        left[owners[ended]] -= 1
        made.give_back(ended, now)
        made.unregister(ended)
        free += 1
    shares = [used[f"user-{user}"] for user in range(50)]
    index = jain(
        [
            have + sum(now - at for made_, at in began.items() if owners[made_] == f"user-{user}")
            for user, have in enumerate(shares)
        ]
    )
    assert index >= 0.95, f"Jain's index is {index:.3f}"

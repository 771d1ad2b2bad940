"""When workers are started, stopped and given up; the time is the test's."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from runtime.ids import InstanceID, ResourceID
from runtime.resourcemanager.worker_allocator import (
    AllocationLimits,
    Decision,
    GiveUpWorker,
    RegisteredWorker,
    ReleaseWorker,
    StartWorker,
    WorkerAllocator,
)

LIMITS = AllocationLimits(slots_per_worker=2, max_slots=8, idle_timeout_s=10.0)


def name(number: int) -> ResourceID:
    return ResourceID(f"tm-{number}")


def here(number: int, free: int = 2, idle_s: float | None = None, slots: int = 2) -> RegisteredWorker:
    return RegisteredWorker(InstanceID(f"{number:032x}"), name(number), slots, free, idle_s)


def allocator(limits: AllocationLimits = LIMITS, *previous: ResourceID) -> WorkerAllocator:
    made = WorkerAllocator(limits)
    made.recovered(previous, 0.0)
    return made


def starts(decisions: list[Decision]) -> list[int]:
    return [item.request for item in decisions if isinstance(item, StartWorker)]


def released(decisions: list[Decision]) -> list[str]:
    return [str(item.resource_id) for item in decisions if isinstance(item, ReleaseWorker)]


def test_users_who_cannot_use_what_is_free_get_workers_of_their_own() -> None:
    workers = allocator()
    taken = [here(1, free=1)]
    assert starts(workers.decide(3, taken, 0.0, [2, 1])) == [1, 2], "two users share no worker"
    assert workers.decide(3, taken, 0.1, [2, 1]) == []
    workers.requested(1, name(2), 0.2)
    workers.requested(2, name(3), 0.2)
    assert starts(workers.decide(4, taken, 0.3, [2, 1, 1])) == [3]
    assert starts(workers.decide(5, taken, 0.4, [2, 1, 1, 1])) == [], "there may be at most four"
    assert "slotmanager.number-of-slots.max" in workers.outlook(0.4)


def test_a_request_for_which_a_driver_is_being_renewed_needs_no_worker() -> None:
    workers = allocator()
    assert starts(workers.decide(2, [here(1, free=2)], 0.0, [])) == []
    assert starts(workers.decide(3, [here(1, free=2)], 0.0, [1])) == [1]


def test_what_is_pending_is_not_asked_for_twice_and_what_more_is_needed_is() -> None:
    workers = allocator()
    assert starts(workers.decide(3, [], 0.0)) == [1, 2]
    assert workers.decide(3, [], 0.1) == []
    workers.requested(1, name(1), 0.2)
    workers.requested(2, name(2), 0.2)
    assert starts(workers.decide(5, [], 0.3)) == [3]
    workers.registered(name(1))
    assert starts(workers.decide(3, [here(1, free=0)], 0.4)) == []
    assert workers.pending_workers == 2
    assert workers.outlook(0.4) == "2 worker(s) are being started"


def test_the_limits_of_slots_hold_and_are_named_to_those_who_wait() -> None:
    workers = allocator(AllocationLimits(slots_per_worker=2, max_slots=5))
    assert starts(workers.decide(9, [], 0.0)) == [1, 2]
    assert "may be at most 5 (slotmanager.number-of-slots.max)" in workers.outlook(0.0)
    assert starts(workers.decide(4, [], 0.0)) == []
    assert workers.outlook(0.0) == "2 worker(s) are being started", "which is enough"
    minimum = allocator(AllocationLimits(slots_per_worker=2, min_slots=3, redundant_workers=1, idle_timeout_s=10.0))
    assert starts(minimum.decide(0, [], 0.0)) == [1, 2]
    for number in (1, 2):
        minimum.requested(number, name(number), 0.0)
        minimum.registered(name(number))
    assert minimum.decide(0, [here(1, idle_s=99.0), here(2, idle_s=99.0)], 99.0) == []
    assert starts(minimum.decide(0, [here(1, free=1), here(2, free=0)], 99.0)) == [3], "one worker's slots stay free"


def test_who_is_idle_for_long_is_stopped_the_longest_first_unless_somebody_waits() -> None:
    workers = allocator(AllocationLimits(slots_per_worker=2, min_slots=2, idle_timeout_s=10.0))
    idle = [here(1, idle_s=9.0), here(2, idle_s=12.0), here(3, idle_s=30.0), here(4, free=1)]
    assert released(workers.decide(0, idle, 50.0)) == ["tm-3", "tm-2"]
    assert released(workers.decide(1, idle, 50.0)) == []
    assert released(workers.decide(0, idle[1:3], 50.0)) == ["tm-3"], "the minimum stays"
    never = allocator(AllocationLimits(slots_per_worker=2, idle_timeout_s=math.inf))
    assert never.decide(0, idle, 50.0) == []


def test_a_worker_that_does_not_register_in_time_is_given_up_and_replaced() -> None:
    workers = allocator(AllocationLimits(slots_per_worker=2, registration_timeout_s=60.0))
    [request] = starts(workers.decide(1, [], 0.0))
    workers.requested(request, name(1), 5.0)
    assert workers.decide(1, [], 64.9) == []
    decisions = workers.decide(1, [], 65.0)
    assert decisions == [GiveUpWorker(name(1), 60.0), StartWorker(2)]
    assert workers.decide(1, [], 66.0) == []
    assert workers.outlook(66.0) == "1 worker(s) are being started (before: tm-1 did not register within 60 s)"


def test_after_too_many_failures_nothing_is_started_for_a_while() -> None:
    workers = allocator(AllocationLimits(slots_per_worker=1, max_failures=2, retry_interval_s=3.0))
    for now in (0.0, 1.0):
        [request] = starts(workers.decide(1, [], now))
        workers.request_failed(request, "the quota is exceeded", now)
    [request] = starts(workers.decide(1, [], 2.0))
    workers.requested(request, name(1), 2.0)
    workers.terminated(name(1), "OOMKilled", 2.5)
    assert workers.decide(1, [], 5.4) == []
    assert workers.outlook(2.5) == "tm-1 has ended before it registered: OOMKilled; the next try is in 3 s"
    assert len(starts(workers.decide(1, [], 5.5))) == 1
    [request] = starts(workers.decide(2, [], 90.0))
    workers.request_failed(request, "the quota is exceeded", 90.0)
    assert len(starts(workers.decide(2, [], 90.0))) == 1, "the failures of the last minute count"


def test_a_driver_without_a_further_worker_is_asked_again_later_and_that_is_no_failure() -> None:
    workers = allocator(AllocationLimits(slots_per_worker=1, max_failures=0, retry_interval_s=3.0))
    [request] = starts(workers.decide(1, [], 0.0))
    workers.none_left(request, "", 0.0)
    assert workers.decide(1, [], 2.9) == []
    assert workers.outlook(2.9) == ""
    assert len(starts(workers.decide(1, [], 3.0))) == 1


def test_workers_of_an_earlier_leader_are_waited_for_and_not_doubled() -> None:
    workers = WorkerAllocator(AllocationLimits(slots_per_worker=2, max_slots=4, recovery_timeout_s=30.0))
    assert workers.decide(2, [], 0.0) == [], "before they are known nothing is started"
    workers.recovery_failed("the API server does not answer")
    assert "the API server does not answer" in workers.outlook(0.0)
    workers.registered(name(1))
    workers.recovered([name(1), name(2)], 10.0)
    assert workers.pending_workers == 1
    assert workers.decide(2, [here(1, free=0)], 10.0) == []
    assert workers.decide(2, [here(1, free=0)], 40.0) == [], "the limit counts it as long as it may come"
    workers.terminated(name(2), "it was killed", 41.0)
    assert len(starts(workers.decide(2, [here(1, free=0)], 41.0))) == 1


def test_a_lost_task_executor_is_waited_for_until_its_worker_has_ended() -> None:
    workers = allocator()
    [request] = starts(workers.decide(1, [], 0.0))
    workers.requested(request, name(1), 0.0)
    workers.registered(name(1))
    workers.unregistered(name(1), 5.0)
    assert workers.decide(1, [], 5.0) == [], "its worker starts it again"
    workers.terminated(name(1), "killed", 6.0)
    assert len(starts(workers.decide(1, [], 6.0))) == 1
    assert workers.outlook(6.0) == "1 worker(s) are being started", "that was not a failure to start"
    workers.unregistered(ResourceID("somebody"), 7.0)
    assert workers.pending_workers == 1


@dataclass
class Machine:
    """A worker that runs: it registers or not, is used or not."""

    resource_id: ResourceID
    registered: bool = False
    used: int = 0
    idle_since: float = 0.0


class WorkerAllocatorMachine(RuleBasedStateMachine):
    """Requests come and go, workers start, fail, register and die; the leader may change."""

    limits = AllocationLimits(
        slots_per_worker=2, min_slots=2, max_slots=8, idle_timeout_s=10.0, registration_timeout_s=40.0, max_failures=3
    )

    @initialize()
    def begin(self) -> None:
        self.allocator = allocator(self.limits)
        self.now = 0.0
        self.numbers = 0
        self.waiting = 0
        self.in_flight: list[int] = []
        self.machines: dict[ResourceID, Machine] = {}

    def registered(self) -> list[RegisteredWorker]:
        found = []
        for machine in self.machines.values():
            if machine.registered:
                idle_s = None if machine.used else self.now - machine.idle_since
                number = int(machine.resource_id.removeprefix("tm-"))
                found.append(here(number, 2 - machine.used, idle_s))
        return found

    def match(self) -> None:
        for machine in self.machines.values():
            while machine.registered and self.waiting and machine.used < 2:
                machine.used += 1
                self.waiting -= 1

    def decide(self) -> list[Decision]:
        self.match()
        decisions = self.allocator.decide(self.waiting, self.registered(), self.now)
        for decision in decisions:
            match decision:
                case StartWorker():
                    self.in_flight.append(decision.request)
                case ReleaseWorker():
                    machine = self.machines.pop(decision.resource_id)
                    assert not machine.used, "stopped although it is used"
                    assert self.now - machine.idle_since >= 10.0
                    assert not self.waiting, "stopped although somebody waits"
                    self.allocator.terminated(decision.resource_id, "released", self.now)
                case GiveUpWorker():
                    machine = self.machines.pop(decision.resource_id)
                    assert not machine.registered, "given up although it is there"
        return decisions

    @rule(count=st.integers(1, 5))
    def requests_come(self, count: int) -> None:
        self.waiting += count
        self.decide()

    @precondition(lambda self: self.waiting)
    @rule()
    def request_is_withdrawn(self) -> None:
        self.waiting -= 1
        self.decide()

    @precondition(lambda self: self.in_flight)
    @rule(fails=st.booleans())
    def driver_answers(self, fails: bool) -> None:
        request = self.in_flight.pop(0)
        if fails:
            self.allocator.request_failed(request, "no", self.now)
        else:
            self.numbers += 1
            machine = Machine(name(self.numbers))
            self.machines[machine.resource_id] = machine
            self.allocator.requested(request, machine.resource_id, self.now)
        self.decide()

    @precondition(lambda self: any(not item.registered for item in self.machines.values()))
    @rule(data=st.data())
    def task_executor_registers(self, data: st.DataObject) -> None:
        machine = data.draw(st.sampled_from([item for item in self.machines.values() if not item.registered]))
        machine.registered, machine.used, machine.idle_since = True, 0, self.now
        self.allocator.registered(machine.resource_id)
        self.decide()

    @precondition(lambda self: any(item.registered for item in self.machines.values()))
    @rule(data=st.data())
    def task_executor_is_lost(self, data: st.DataObject) -> None:
        machine = data.draw(st.sampled_from([item for item in self.machines.values() if item.registered]))
        machine.registered, self.waiting = False, self.waiting + machine.used
        self.allocator.unregistered(machine.resource_id, self.now)
        self.decide()

    @precondition(lambda self: self.machines)
    @rule(data=st.data())
    def worker_dies(self, data: st.DataObject) -> None:
        machine = self.machines.pop(data.draw(st.sampled_from(list(self.machines))))
        self.waiting += machine.used if machine.registered else 0
        self.allocator.terminated(machine.resource_id, "killed", self.now)
        self.decide()

    @precondition(lambda self: any(item.registered and item.used for item in self.machines.values()))
    @rule(data=st.data())
    def task_ends(self, data: st.DataObject) -> None:
        machine = data.draw(st.sampled_from([item for item in self.machines.values() if item.registered and item.used]))
        machine.used, machine.idle_since = machine.used - 1, self.now
        self.decide()

    @rule()
    def leader_changes(self) -> None:
        self.allocator = WorkerAllocator(self.limits)
        assert self.allocator.decide(self.waiting, self.registered(), self.now) == []
        for machine in self.machines.values():
            if machine.registered:
                self.allocator.registered(machine.resource_id)
        self.in_flight.clear()
        self.allocator.recovered(list(self.machines), self.now)
        self.decide()

    @rule(seconds=st.floats(0.1, 30.0))
    def time_passes(self, seconds: float) -> None:
        while self.decide():
            pass
        deadline = self.allocator.next_deadline(self.registered(), self.now)
        self.now += seconds
        decisions = self.decide()
        if deadline is None or self.now < deadline:
            assert decisions == [], "nobody would have asked by then"

    @invariant()
    def the_limit_is_kept(self) -> None:
        if hasattr(self, "machines"):
            assert 2 * (len(self.machines) + len(self.in_flight)) <= 8

    def teardown(self) -> None:
        """When nothing fails any more, whoever waits is served as far as the limit goes, and the minimum comes."""
        if not hasattr(self, "machines"):
            return
        for _ in range(20):
            self.now += 4.0
            self.decide()
            while self.in_flight:
                self.driver_answers(fails=False)
            for machine in list(self.machines.values()):
                if not machine.registered:
                    machine.registered, machine.used, machine.idle_since = True, 0, self.now
                    self.allocator.registered(machine.resource_id)
            self.decide()
        assert not self.waiting or len(self.machines) == 4
        assert len(self.machines) >= 1


TestWorkerAllocator = WorkerAllocatorMachine.TestCase
TestWorkerAllocator.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from runtime.ids import AllocationID, InstanceID, JobID, ResourceID, SlotID
from runtime.protocol.slots import (
    AllocateSlot,
    FailRequest,
    Locality,
    SlotCounts,
    SlotGone,
    SlotManagerInstruction,
    SlotReport,
    SlotRequest,
    SlotStatus,
    TaskManagerLocation,
    locality_of,
)
from runtime.resourcemanager.slot_manager import RENEWAL_S, SlotManager
from runtime.resourcemanager.worker_allocator import RegisteredWorker

JOB = JobID("a" * 32)


def request(number: int, job: JobID = JOB, priority: int = 0, *near: TaskManagerLocation) -> SlotRequest:
    return SlotRequest(job, AllocationID(f"{number:032x}"), "flights", "join", priority, near)


def instance(number: int) -> InstanceID:
    return InstanceID(f"{number:032x}")


def report(name: str, *allocations: AllocationID | None) -> SlotReport:
    return SlotReport(
        tuple(
            SlotStatus(SlotID(ResourceID(name), index), JOB if allocation else None, allocation)
            for index, allocation in enumerate(allocations)
        )
    )


def register(manager: SlotManager, number: int, slots: int) -> list[SlotManagerInstruction]:
    name = f"tm-{number}"
    return manager.register_task_manager(
        instance(number), ResourceID(name), f"addr-{number}", report(name, *[None] * slots)
    )


def slots_of(instructions: list[SlotManagerInstruction]) -> list[str]:
    return [str(item.slot_id) for item in instructions if isinstance(item, AllocateSlot)]


def allocated(manager: SlotManager, number: int = 1) -> AllocationID:
    """Give the request a slot; the TaskExecutor agrees, but may never offer it to the job."""
    (given_slot,) = manager.register_slot_request(request(number), 0.0)
    assert isinstance(given_slot, AllocateSlot)
    manager.slot_allocated(given_slot.slot_id, given_slot.request.allocation_id)
    return given_slot.request.allocation_id


def test_a_job_is_told_of_an_allocated_slot_that_is_gone_and_may_ask_for_it_again() -> None:
    manager = SlotManager(10.0)
    for number in (1, 2, 3):
        register(manager, number, 1)
    gone = [SlotGone(JOB, allocated(manager, number)) for number in (1, 2, 3)]
    assert manager.report_slot_status(instance(1), report("tm-1", None)) == gone[:1], "its TaskExecutor freed it"
    assert manager.unregister_task_manager(instance(2)) == gone[1:2], "its TaskExecutor is lost"
    again = manager.register_task_manager(instance(4), ResourceID("tm-3"), "addr-4", report("tm-3", None))
    assert again == gone[2:], "its TaskExecutor was replaced"
    assert slots_of(manager.register_slot_request(request(2), 1.0)) == ["tm-1/0"]


def test_a_slot_that_another_allocation_has_or_that_does_not_exist_any_more_is_gone() -> None:
    manager = SlotManager(10.0)
    register(manager, 1, 2)
    gone = [SlotGone(JOB, allocated(manager, number)) for number in (1, 2)]
    left = manager.report_slot_status(instance(1), report("tm-1", request(9).allocation_id))
    assert sorted(left, key=str) == sorted(gone, key=str)


def test_a_slot_on_its_way_or_that_the_job_still_has_elsewhere_is_not_gone() -> None:
    manager = SlotManager(10.0)
    register(manager, 1, 1)
    manager.register_slot_request(request(1), 0.0)
    assert manager.unregister_task_manager(instance(1)) == [], "the request waits again"
    register(manager, 2, 1)
    found = manager.register_task_manager(
        instance(3), ResourceID("tm-3"), "addr-3", report("tm-3", request(1).allocation_id)
    )
    assert found == [], "an earlier answer was lost: now two slots are the request's"
    assert manager.unregister_task_manager(instance(3)) == []


def test_a_free_slot_is_given_and_counted() -> None:
    manager = SlotManager(10.0)
    register(manager, 1, 2)
    assert manager.counts() == SlotCounts(2, 2, 0)
    (given_slot,) = manager.register_slot_request(request(1), 0.0)
    assert manager.statuses(instance(1)) == report("tm-1", None, None).slots, "the TaskExecutor has not agreed yet"
    assert isinstance(given_slot, AllocateSlot)
    assert (given_slot.address, given_slot.request) == ("addr-1", request(1))
    assert manager.counts() == SlotCounts(2, 1, 1)
    assert manager.waiting_reason(request(1).allocation_id) is None
    manager.slot_allocated(given_slot.slot_id, request(1).allocation_id)
    assert manager.counts(instance(1)) == SlotCounts(2, 1, 0)
    assert manager.counts().allocated == 1
    assert manager.statuses(instance(1)) == report("tm-1", request(1).allocation_id, None).slots
    assert manager.statuses(instance(2)) == ()
    assert manager.pending_requests == ()
    assert manager.register_slot_request(request(1), 1.0) == [], "asked twice, given once"


def test_requests_are_spread_over_task_executors_and_served_in_order() -> None:
    manager = SlotManager(10.0)
    for number in range(1, 6):
        assert manager.register_slot_request(request(number), 0.0) == []
    register(manager, 1, 0)
    assert slots_of(register(manager, 2, 2)) == ["tm-2/0", "tm-2/1"]
    assert slots_of(register(manager, 3, 2)) == ["tm-3/0", "tm-3/1"]
    assert [item.allocation_id for item in manager.pending_requests] == [request(n).allocation_id for n in range(1, 6)]
    manager = SlotManager(10.0)
    register(manager, 1, 2)
    register(manager, 2, 2)
    given_slots = [slots_of(manager.register_slot_request(request(n), 0.0))[0] for n in range(3)]
    assert given_slots == ["tm-1/0", "tm-2/0", "tm-1/1"]


def test_a_request_that_waits_too_long_fails_and_says_what_for() -> None:
    manager = SlotManager(10.0)
    register(manager, 1, 1)
    manager.register_slot_request(request(1), 0.0)
    manager.slot_allocated(SlotID(ResourceID("tm-1"), 0), request(1).allocation_id)
    manager.register_slot_request(request(2), 1.0)
    manager.register_slot_request(request(3), 1.0)
    assert manager.next_deadline() == 11.0
    assert manager.expired(10.9) == []
    reason = manager.waiting_reason(request(2).allocation_id)
    assert reason is not None
    for part in ("1 slot for task 'join'", "1 slot(s) on 1 TaskExecutor(s), 0 free", "1 other request"):
        assert part in reason
    failed = manager.expired(11.0)
    assert [item.request for item in failed if isinstance(item, FailRequest)] == [request(2), request(3)]
    assert isinstance(failed[0], FailRequest)
    assert failed[0].reason.startswith("no slot within 10 s: ")
    assert manager.expired(99.0) == []


def test_without_task_executors_the_reason_says_so() -> None:
    manager = SlotManager(10.0)
    manager.register_slot_request(request(1), 0.0)
    assert "the cluster has no registered TaskExecutor" in str(manager.waiting_reason(request(1).allocation_id))


def test_unfulfillable_requests_fail_at_once_when_told_so() -> None:
    manager = SlotManager(10.0)
    manager.register_slot_request(request(1), 0.0)
    assert [type(item) for item in manager.set_fail_unfulfillable_request(True)] == [FailRequest]
    assert [type(item) for item in manager.register_slot_request(request(2), 0.0)] == [FailRequest]
    register(manager, 1, 1)
    assert slots_of(manager.register_slot_request(request(3), 0.0)) == ["tm-1/0"]
    assert [type(item) for item in manager.unregister_task_manager(instance(1))] == [FailRequest]


def test_a_lost_task_executors_pending_request_goes_to_another_in_its_old_place() -> None:
    manager = SlotManager(10.0)
    register(manager, 1, 1)
    manager.register_slot_request(request(1), 0.0)
    manager.register_slot_request(request(2), 0.0)
    manager.unregister_task_manager(instance(1))
    manager.unregister_task_manager(instance(1))
    (given_slot,) = register(manager, 2, 1)
    assert isinstance(given_slot, AllocateSlot)
    assert given_slot.request == request(1)


def test_a_new_instance_replaces_the_old_one_of_its_name() -> None:
    manager = SlotManager(10.0)
    register(manager, 1, 2)
    manager.register_task_manager(instance(9), ResourceID("tm-1"), "new", report("tm-1", None))
    assert manager.task_managers == (instance(9),)
    assert manager.counts() == SlotCounts(1, 1, 0)
    manager.unregister_task_manager(instance(1))
    assert manager.counts().registered == 1


def test_a_report_that_crossed_an_allocation_does_not_free_the_slot() -> None:
    manager = SlotManager(10.0)
    register(manager, 1, 1)
    manager.register_slot_request(request(1), 0.0)
    assert manager.report_slot_status(instance(1), report("tm-1", None)) == []
    assert manager.counts() == SlotCounts(1, 0, 1)


def test_a_request_that_has_its_slot_is_not_made_again() -> None:
    manager = SlotManager(10.0)
    register(manager, 1, 2)
    manager.register_slot_request(request(1), 0.0)
    assert manager.register_slot_request(request(1), 0.0) == []
    manager.slot_allocated(SlotID(ResourceID("tm-1"), 0), request(1).allocation_id)
    assert manager.register_slot_request(request(1), 0.0) == [], "its answer was lost"
    assert manager.counts() == SlotCounts(2, 1, 0)


def test_an_unanswered_allocation_is_settled_by_the_next_report() -> None:
    manager = SlotManager(10.0)
    register(manager, 1, 1)
    manager.register_slot_request(request(1), 0.0)
    slot = SlotID(ResourceID("tm-1"), 0)
    assert manager.slot_allocation_failed(slot, request(1).allocation_id) == []
    assert manager.counts() == SlotCounts(1, 0, 1)
    assert manager.waiting_reason(request(1).allocation_id) is not None
    assert manager.report_slot_status(instance(1), report("tm-1", request(1).allocation_id)) == []
    assert manager.counts() == SlotCounts(1, 0, 0)
    assert manager.pending_requests == ()


def test_a_refused_allocation_is_tried_again_when_the_slot_is_known_to_be_free() -> None:
    manager = SlotManager(10.0)
    register(manager, 1, 1)
    manager.register_slot_request(request(1), 0.0)
    slot = SlotID(ResourceID("tm-1"), 0)
    assert manager.slot_allocation_failed(slot, request(1).allocation_id) == []
    assert manager.report_slot_status(instance(1), report("tm-1", request(7).allocation_id)) == []
    assert manager.counts().allocated == 1
    assert slots_of(manager.report_slot_status(instance(1), report("tm-1", None))) == ["tm-1/0"]
    assert manager.report_slot_status(instance(1), report("tm-1", None)) == [], "sent before the slot was given away"


def test_withdrawn_requests_and_gone_jobs_leave_nothing() -> None:
    manager = SlotManager(10.0)
    register(manager, 1, 1)
    manager.register_slot_request(request(1), 0.0)
    manager.register_slot_request(request(2), 0.0)
    manager.unregister_slot_request(request(1).allocation_id)
    manager.unregister_slot_request(request(1).allocation_id)
    assert manager.counts() == SlotCounts(1, 0, 1), "not given on before its fate is known"
    manager.unregister_job(JOB)
    assert manager.pending_requests == ()
    manager.slot_allocation_failed(SlotID(ResourceID("tm-1"), 0), request(1).allocation_id)
    assert manager.report_slot_status(instance(1), report("tm-1", None)) == []
    assert manager.counts() == SlotCounts(1, 1, 0)


def test_a_report_may_add_and_drop_slots() -> None:
    manager = SlotManager(10.0)
    register(manager, 1, 1)
    manager.register_slot_request(request(1), 0.0)
    assert manager.report_slot_status(instance(1), SlotReport(())) == []
    assert manager.counts() == SlotCounts()
    assert slots_of(manager.report_slot_status(instance(1), report("tm-1", None, None))) == ["tm-1/0"]
    assert manager.report_slot_status(instance(5), report("tm-5", None)) == [], "must register first"


def test_a_higher_priority_is_served_first_and_equal_ones_in_their_order() -> None:
    manager = SlotManager(10.0)
    for number, priority in ((1, 0), (2, 5), (3, 5), (4, -1)):
        manager.register_slot_request(request(number, JOB, priority), 0.0)
    served = []
    for number in range(1, 5):
        (given_slot,) = register(manager, number, 1)
        assert isinstance(given_slot, AllocateSlot)
        served.append(int(given_slot.request.allocation_id, 16))
    assert served == [2, 3, 1, 4]


def at(name: str, host: str) -> TaskManagerLocation:
    return TaskManagerLocation.of(ResourceID(name), f"akka.tcp://understudy@{host}:6123/user/{name}")


def test_a_slot_is_near_to_what_the_task_reads_by_its_task_executor_then_by_its_host() -> None:
    here = at("tm-1", "10.0.0.1")
    assert here.host == "10.0.0.1"
    assert locality_of(here, ()) is Locality.NON_LOCAL
    assert locality_of(here, [at("tm-9", "10.0.0.2"), at("tm-1", "10.0.0.1")]) is Locality.LOCAL
    assert locality_of(here, [at("tm-9", "10.0.0.1")]) is Locality.HOST_LOCAL
    assert locality_of(here, [at("tm-9", "10.0.0.2")]) is Locality.NON_LOCAL
    nowhere = TaskManagerLocation.of(ResourceID("tm-2"), "addr")
    assert locality_of(nowhere, [TaskManagerLocation.of(ResourceID("tm-3"), "addr")]) is Locality.NON_LOCAL


def test_of_the_free_slots_the_nearest_is_given_and_none_is_waited_for() -> None:
    manager = SlotManager(10.0)
    for number, slots in ((1, 1), (2, 2), (3, 4)):
        host = "10.0.0.1" if number < 3 else "10.0.0.2"
        name = f"tm-{number}"
        address = f"akka.tcp://understudy@{host}:700{number}/user/{name}"
        manager.register_task_manager(instance(number), ResourceID(name), address, report(name, *[None] * slots))
    wanted = [at("tm-1", "10.0.0.1")]
    given_slots = [
        slots_of(manager.register_slot_request(request(number, JOB, 0, *wanted), 0.0))[0] for number in range(1, 5)
    ]
    assert given_slots == ["tm-1/0", "tm-2/0", "tm-2/1", "tm-3/0"]


def idle(manager: SlotManager, now: float) -> dict[str, float | None]:
    return {worker.resource_id: worker.idle_s for worker in manager.registered_workers(now)}


def test_a_released_task_executor_is_given_to_nobody_until_it_is_kept() -> None:
    manager = SlotManager(100.0)
    register(manager, 1, 2)
    register(manager, 2, 1)
    assert idle(manager, 0.0) == {"tm-1": 0.0, "tm-2": 0.0}
    assert idle(manager, 9.5) == {"tm-1": 9.5, "tm-2": 9.5}
    slot = SlotID(ResourceID("tm-1"), 0)
    assert slots_of(manager.register_slot_request(request(1), 9.5)) == [str(slot)]
    manager.slot_allocated(slot, request(1).allocation_id)
    assert manager.registered_workers(10.0) == (
        RegisteredWorker(instance(1), ResourceID("tm-1"), 2, 1, None),
        RegisteredWorker(instance(2), ResourceID("tm-2"), 1, 1, 10.0),
    )
    manager.release_task_manager(instance(2))
    assert manager.counts().registered == 3, "it stays in the book until it is gone"
    assert idle(manager, 50.0) == {"tm-1": None}
    assert slots_of(manager.register_slot_request(request(2), 50.0)) == ["tm-1/1"]
    assert manager.register_slot_request(request(3), 50.0) == []
    assert manager.waiting == 1
    assert slots_of(manager.keep_task_manager(instance(2))) == ["tm-2/0"]
    assert manager.keep_task_manager(instance(2)) == []
    assert manager.waiting == 0
    assert idle(manager, 50.0) == {"tm-1": None, "tm-2": None}


def test_a_drained_task_executor_is_given_to_nobody_unless_the_drain_is_not_repeated() -> None:
    manager = SlotManager(100.0)
    register(manager, 1, 2)
    taken = allocated(manager, 1)
    manager.drain_task_manager(instance(1), until=10.0)
    assert manager.register_slot_request(request(2), 0.0) == []
    assert "tm-1 is being exchanged by an upgrade; wait for it" in (
        manager.waiting_reason(request(2).allocation_id) or ""
    )
    assert manager.registered_workers(0.0) == (), "another one may be started in its place"
    assert manager.next_deadline() == 10.0
    assert manager.report_slot_status(instance(1), report("tm-1", taken, None)) == []
    manager.drain_task_manager(instance(1), until=20.0)
    assert manager.expired(10.0) == []
    assert slots_of(manager.expired(20.0)) == ["tm-1/1"]
    assert manager.next_deadline() is None


def test_requests_wait_for_the_only_task_executor_while_it_is_exchanged() -> None:
    clock = [0.0]
    manager = SlotManager(1000.0, clock=lambda: clock[0])
    register(manager, 1, 1)
    manager.set_fail_unfulfillable_request(fail=True)
    manager.drain_task_manager(instance(1), until=10.0)
    assert manager.register_slot_request(request(1), 0.0) == []
    assert manager.unregister_task_manager(instance(1)) == []
    assert manager.register_slot_request(request(2), 0.0) == []
    assert "tm-1 is being exchanged" in (manager.waiting_reason(request(2).allocation_id) or "")
    again = manager.register_task_manager(instance(2), ResourceID("tm-1"), "addr-2", report("tm-1", None))
    assert slots_of(again) == ["tm-1/0"]
    # One that does not come back is not expected for ever; nor is one that was not drained.
    manager.drain_task_manager(instance(2), until=10.0)
    manager.unregister_task_manager(instance(2))
    clock[0] = RENEWAL_S + 1
    (failed,) = manager.register_slot_request(request(3), 0.0)
    assert isinstance(failed, FailRequest)
    assert "being exchanged" not in failed.reason


def test_a_task_executor_that_is_being_stopped_is_not_drained() -> None:
    manager = SlotManager(10.0)
    register(manager, 1, 1)
    manager.release_task_manager(instance(1))
    manager.drain_task_manager(instance(1), until=5.0)
    manager.drain_task_manager(instance(7), until=5.0)
    assert manager.next_deadline() is None


def test_a_slot_that_was_used_and_freed_between_two_looks_was_used() -> None:
    manager = SlotManager(100.0)
    register(manager, 1, 1)
    slot = SlotID(ResourceID("tm-1"), 0)
    assert idle(manager, 0.0) == {"tm-1": 0.0}
    assert slots_of(manager.register_slot_request(request(1), 5.0)) == [str(slot)]
    manager.slot_allocated(slot, request(1).allocation_id)
    manager.report_slot_status(instance(1), report("tm-1", None))
    assert idle(manager, 9.0) == {"tm-1": 0.0}
    assert idle(manager, 19.0) == {"tm-1": 10.0}
    manager.release_task_manager(instance(1))
    manager.unregister_task_manager(instance(1))
    assert manager.keep_task_manager(instance(1)) == []
    manager.release_task_manager(instance(1))
    assert idle(manager, 20.0) == {}


def test_whoever_waits_is_told_what_the_workers_to_come_are_doing() -> None:
    manager = SlotManager(10.0)
    manager.outlook = "1 worker(s) are being started"
    manager.register_slot_request(request(1), 0.0)
    assert str(manager.waiting_reason(request(1).allocation_id)).endswith("; 1 worker(s) are being started")


@dataclass
class FakeTaskExecutor:
    """The truth about the slots, which the manager knows only by messages."""

    name: str
    slots: dict[SlotID, AllocationID | None]
    inbox: list[AllocateSlot] = field(default_factory=list)

    def report(self) -> SlotReport:
        return SlotReport(tuple(SlotStatus(slot, JOB if held else None, held) for slot, held in self.slots.items()))

    def would_take(self, message: AllocateSlot) -> bool:
        """A slot has one allocation, and an allocation one slot, as in `TaskSlotTable`."""
        holders = [slot for slot, held in self.slots.items() if held == message.request.allocation_id]
        return holders == [message.slot_id] or (not holders and self.slots[message.slot_id] is None)


class SlotManagerMachine(RuleBasedStateMachine):
    """Messages arrive, are delayed, lost or answered too late; TaskExecutors come and go."""

    @initialize()
    def begin(self) -> None:
        self.manager = SlotManager(20.0)
        self.now = 0.0
        self.numbers = 0
        self.executors: dict[InstanceID, FakeTaskExecutor] = {}
        self.wanted: dict[AllocationID, SlotRequest] = {}
        self.arrivals: list[AllocationID] = []
        self.open: set[AllocationID] = set()
        self.withdrawn: set[AllocationID] = set()
        self.failed: set[AllocationID] = set()
        self.released: set[InstanceID] = set()

    def do(self, instructions: list[SlotManagerInstruction]) -> None:
        waiting = [item for item in self.manager.pending_requests if self.manager.waiting_reason(item.allocation_id)]
        for item in instructions:
            if isinstance(item, SlotGone):
                self.ask_again(item.allocation_id)
                continue
            allocation_id = item.request.allocation_id
            assert allocation_id in self.open, "an instruction for a request that has ended"
            if isinstance(item, FailRequest):
                self.open.remove(allocation_id)
                self.failed.add(allocation_id)
            else:
                assert item.instance_id in self.executors
                assert item.instance_id not in self.released, "what was released is given to nobody"
                rank = self.rank(item.request)
                assert all(self.rank(other) > rank for other in waiting), "one that was to be served earlier waits"
                self.executors[item.instance_id].inbox.append(item)

    def ask(self, wanted: SlotRequest) -> None:
        self.open.add(wanted.allocation_id)
        self.arrivals.append(wanted.allocation_id)
        self.do(self.manager.register_slot_request(wanted, self.now))
        self.do(self.manager.register_slot_request(wanted, self.now))

    def ask_again(self, allocation_id: AllocationID) -> None:
        """The slot is gone that was allocated to this job; the job has not been offered it."""
        assert allocation_id not in self.open, "a request that waits has lost nothing"
        if allocation_id not in self.withdrawn | self.failed:
            self.arrivals.remove(allocation_id)
            self.ask(self.wanted[allocation_id])

    def rank(self, wanted: SlotRequest) -> tuple[int, int]:
        return -wanted.priority, self.arrivals.index(wanted.allocation_id)

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    @rule(slots=st.integers(0, 3))
    def task_executor_comes(self, slots: int) -> None:
        number = self.number()
        name = f"tm-{number}"
        executor = FakeTaskExecutor(name, {SlotID(ResourceID(name), index): None for index in range(slots)})
        self.executors[instance(number)] = executor
        self.do(self.manager.register_task_manager(instance(number), ResourceID(name), name, executor.report()))

    @precondition(lambda self: self.executors)
    @rule(data=st.data())
    def task_executor_goes(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.executors)))
        del self.executors[key]
        self.released.discard(key)
        self.do(self.manager.unregister_task_manager(key))

    @rule(priority=st.integers(-1, 1))
    def request_slot(self, priority: int) -> None:
        wanted = request(self.number(), JOB, priority)
        self.wanted[wanted.allocation_id] = wanted
        self.ask(wanted)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        allocation_id = data.draw(st.sampled_from(sorted(self.open)))
        self.open.remove(allocation_id)
        self.withdrawn.add(allocation_id)
        self.manager.unregister_slot_request(allocation_id)

    @precondition(lambda self: any(executor.inbox for executor in self.executors.values()))
    @rule(data=st.data(), answer_is_lost=st.booleans(), never_arrives=st.booleans())
    def deliver(self, data: st.DataObject, answer_is_lost: bool, never_arrives: bool) -> None:
        executor = data.draw(st.sampled_from([item for _, item in sorted(self.executors.items()) if item.inbox]))
        message = executor.inbox.pop(0)
        allocation_id, slot = message.request.allocation_id, message.slot_id
        refused = not executor.would_take(message)
        if not never_arrives and not refused:
            executor.slots[slot] = allocation_id
        if never_arrives or answer_is_lost or refused:
            self.do(self.manager.slot_allocation_failed(slot, allocation_id))
        else:
            self.do(self.manager.slot_allocated(slot, allocation_id))
            self.open.discard(allocation_id)

    @precondition(lambda self: self.released)
    @rule(data=st.data())
    def what_was_released_is_kept(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.released)))
        self.released.remove(key)
        self.do(self.manager.keep_task_manager(key))

    @precondition(lambda self: self.executors)
    @rule(data=st.data())
    def slot_report(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.executors)))
        self.send_report(key)

    def send_report(self, key: InstanceID) -> None:
        executor = self.executors[key]
        self.open -= {held for held in executor.slots.values() if held}
        self.do(self.manager.report_slot_status(key, executor.report()))

    @precondition(lambda self: any(any(item.slots.values()) for item in self.executors.values()))
    @rule(data=st.data(), notice_is_lost=st.booleans())
    def task_executor_frees_a_slot(self, data: st.DataObject, notice_is_lost: bool) -> None:
        held = [(key, slot) for key, item in sorted(self.executors.items()) for slot, a in item.slots.items() if a]
        key, slot = data.draw(st.sampled_from(held))
        self.executors[key].slots[slot] = None
        if not notice_is_lost:
            self.send_report(key)

    @rule(seconds=st.floats(0.1, 30.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.do(self.manager.expired(self.now))
        for worker in self.manager.registered_workers(self.now):
            if worker.idle_s is not None and worker.idle_s >= 15.0:
                assert not self.executors[worker.instance_id].inbox, "idle with a slot on its way"
                assert worker.free == worker.slots, "idle although it is used"
                self.manager.release_task_manager(worker.instance_id)
                self.released.add(worker.instance_id)
        deadline = self.manager.next_deadline()
        assert deadline is None or deadline > self.now

    @invariant()
    def no_slot_is_given_twice(self) -> None:
        underway = [message.slot_id for executor in self.executors.values() for message in executor.inbox]
        assert len(underway) == len(set(underway))

    @invariant()
    def counts_add_up(self) -> None:
        counts = self.manager.counts()
        assert counts.registered == sum(len(executor.slots) for executor in self.executors.values())
        assert min(counts.free, counts.pending, counts.allocated) >= 0
        each = [self.manager.counts(key) for key in self.executors]
        assert counts.free == sum(one.free for one in each)
        assert counts.pending == sum(one.pending for one in each)
        waiting = {item.allocation_id for item in self.manager.pending_requests}
        assert waiting <= self.open, "every request that waits is one that was made and has not ended"
        to_be_given = counts.free - sum(self.manager.counts(key).free for key in self.released)
        assert not to_be_given or not self.manager.waiting, "starved"
        assert self.manager.waiting == sum(bool(self.manager.waiting_reason(item)) for item in waiting)

    def teardown(self) -> None:
        """Let all settle: every slot is then known, none leaked, and every request has ended."""
        if not hasattr(self, "manager"):
            return
        for _ in range(2 + len(self.open)):
            for key in sorted(self.executors):
                executor = self.executors[key]
                while executor.inbox:
                    message = executor.inbox.pop(0)
                    if executor.would_take(message):
                        executor.slots[message.slot_id] = message.request.allocation_id
                        self.do(self.manager.slot_allocated(message.slot_id, message.request.allocation_id))
                        self.open.discard(message.request.allocation_id)
                    else:
                        self.do(self.manager.slot_allocation_failed(message.slot_id, message.request.allocation_id))
                self.send_report(key)
        self.now += 1000.0
        self.do(self.manager.expired(self.now))
        assert self.manager.pending_requests == ()
        held = {held for executor in self.executors.values() for held in executor.slots.values()}
        forgotten = self.wanted.keys() - self.withdrawn - self.failed - held
        assert not forgotten, "a request that is not withdrawn has its slot, or has failed"
        counts = self.manager.counts()
        truly_free = sum(held is None for executor in self.executors.values() for held in executor.slots.values())
        assert (counts.free, counts.pending) == (truly_free, 0)


SlotManagerMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestSlotManagerModel = SlotManagerMachine.TestCase

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from runtime.ids import AllocationID, ResourceID, SlotID, SlotRequestID
from runtime.jobmaster.slot_pool import (
    AllocatedSlot,
    AskForSlot,
    ReturnSlot,
    SlotLost,
    SlotOffer,
    SlotPool,
    SlotPoolInstruction,
    SlotReady,
    SlotRequestFailed,
    WithdrawSlotRequest,
)
from runtime.protocol.slots import TaskManagerLocation


class Ids:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> AllocationID:
        self.count += 1
        return AllocationID(f"{self.count:032x}")


def allocation(number: int) -> AllocationID:
    return AllocationID(f"{number:032x}")


def request(number: int) -> SlotRequestID:
    return SlotRequestID(f"{number:032x}")


def slot(index: int, executor: str = "tm-1") -> SlotID:
    return SlotID(ResourceID(executor), index)


def connected_pool() -> SlotPool:
    pool = SlotPool(10.0, 5.0, Ids())
    assert pool.connect_resource_manager() == []
    return pool


def offer(pool: SlotPool, number: int, index: int, now: float = 0.0) -> tuple[bool, list[SlotPoolInstruction]]:
    return pool.offer_slot(SlotOffer(allocation(number), slot(index)), "addr", now)


def test_a_request_whose_slot_is_gone_is_sent_again_while_it_waits() -> None:
    pool = connected_pool()
    pool.request_slot(request(1), "join", 0.0)
    assert pool.ask_again(allocation(1)) == [AskForSlot(allocation(1), "join")]
    assert pool.ask_again(allocation(7)) == []
    offer(pool, 1, 0)
    assert pool.ask_again(allocation(1)) == [], "the job has it, and learns of its loss from the TaskExecutor"
    pool.request_slot(request(2), "join", 0.0)
    pool.disconnect_resource_manager()
    assert pool.ask_again(allocation(2)) == []


def test_a_request_is_asked_for_offered_and_ready() -> None:
    pool = connected_pool()
    assert pool.request_slot(request(1), "join", 0.0) == [AskForSlot(allocation(1), "join")]
    assert pool.request_slot(request(1), "join", 0.0) == []
    accepted, (ready,) = offer(pool, 1, 0)
    assert accepted
    assert isinstance(ready, SlotReady)
    assert (ready.request_id, ready.slot.slot_id, ready.slot.address) == (request(1), slot(0), "addr")
    assert offer(pool, 1, 0) == (True, []), "offered twice, taken once"
    assert offer(pool, 1, 1) == (False, []), "a second slot of the same allocation"
    assert pool.request_slot(request(1), "join", 0.0) == []


def test_of_the_slots_in_reserve_the_nearest_is_given_and_the_wish_goes_on_to_the_resource_manager() -> None:
    pool = connected_pool()
    for number, executor in ((1, "tm-1"), (2, "tm-2"), (3, "tm-3")):
        pool.request_slot(request(number), "first", 0.0)
        address = f"akka.tcp://understudy@10.0.0.{max(number - 1, 1)}:6123/user/{executor}"
        assert pool.offer_slot(SlotOffer(allocation(number), slot(number, executor)), address, 0.0)[0]
    for number in (1, 2, 3):
        assert pool.release_slot(request(number), 1.0) == []
    near = (TaskManagerLocation(ResourceID("tm-3"), "10.0.0.2"),)
    on_the_host = (TaskManagerLocation(ResourceID("tm-9"), "10.0.0.1"),)
    given = [
        ready.slot.slot_id.resource_id
        for number, preferred in ((4, near), (5, on_the_host), (6, near))
        for ready in pool.request_slot(request(number), "second", 2.0, preferred)
        if isinstance(ready, SlotReady)
    ]
    assert given == ["tm-3", "tm-1", "tm-2"]
    assert pool.request_slot(request(7), "second", 2.0, near) == [AskForSlot(allocation(4), "second", near)]


def test_offers_that_nobody_waits_for_are_refused() -> None:
    pool = connected_pool()
    assert offer(pool, 1, 0) == (False, [])


def test_a_slot_is_accepted_under_one_allocation() -> None:
    pool = connected_pool()
    for number in (1, 2):
        pool.request_slot(request(number), "t", 0.0)
    accepted, _ = offer(pool, 1, 0)
    assert accepted
    assert offer(pool, 2, 0) == (False, [])
    assert pool.pending == (request(2),)


def test_requests_wait_for_a_resource_manager_and_are_asked_anew_of_each() -> None:
    pool = SlotPool(10.0, 5.0, Ids())
    assert pool.request_slot(request(1), "join", 0.0) == []
    assert pool.connect_resource_manager() == [AskForSlot(allocation(1), "join")]
    pool.disconnect_resource_manager()
    assert pool.cancel_request(request(1), 0.0) == []
    assert pool.connect_resource_manager() == []


def test_a_released_slot_serves_the_oldest_request_whose_own_is_withdrawn() -> None:
    pool = connected_pool()
    for number in (1, 2, 3):
        pool.request_slot(request(number), "t", 0.0)
    offer(pool, 1, 0)
    withdrawn, ready = pool.release_slot(request(1), 1.0)
    assert withdrawn == WithdrawSlotRequest(allocation(2))
    assert isinstance(ready, SlotReady)
    assert (ready.request_id, ready.slot.allocation_id) == (request(2), allocation(1))
    accepted, (other,) = offer(pool, 3, 1)
    assert accepted
    assert isinstance(other, SlotReady)
    assert other.request_id == request(3)


def test_a_late_release_does_not_take_the_slot_from_the_next_request() -> None:
    pool = connected_pool()
    for number in (1, 2, 3):
        pool.request_slot(request(number), "t", 0.0)
    offer(pool, 1, 0)
    pool.release_slot(request(1), 1.0)
    assert [type(item) for item in pool.cancel_request(request(2), 1.0)] == [WithdrawSlotRequest, SlotReady]
    assert pool.release_slot(request(2), 1.0) == pool.release_slot(request(1), 1.0) == []
    assert len(pool.allocated_slots) == 1


def test_a_slot_offered_for_a_request_that_is_gone_serves_another() -> None:
    pool = connected_pool()
    pool.request_slot(request(1), "t", 0.0)
    pool.request_slot(request(2), "t", 0.0)
    assert pool.cancel_request(request(1), 0.0) == [WithdrawSlotRequest(allocation(1))]
    accepted, instructions = offer(pool, 1, 0)
    assert accepted
    assert instructions[0] == WithdrawSlotRequest(allocation(2))


def test_a_free_slot_is_held_for_a_while_then_returned() -> None:
    pool = connected_pool()
    pool.request_slot(request(1), "t", 0.0)
    offer(pool, 1, 0)
    assert pool.release_slot(request(1), 2.0) == []
    assert pool.release_slot(request(1), 3.0) == []
    assert (len(pool.free_slots), pool.next_deadline()) == (1, 7.0)
    (ready,) = pool.request_slot(request(2), "t", 4.0)
    assert isinstance(ready, SlotReady)
    assert pool.cancel_request(request(2), 5.0) == []
    assert pool.expired(9.9) == []
    (returned,) = pool.expired(10.0)
    assert isinstance(returned, ReturnSlot)
    assert returned.slot.slot_id == slot(0)
    assert pool.next_deadline() is None


def test_a_refused_request_fails_without_slots_and_is_renewed_with_them() -> None:
    pool = connected_pool()
    pool.request_slot(request(1), "t", 0.0)
    assert pool.fail_allocation(allocation(1), "none left", 1.0) == [SlotRequestFailed(request(1), "none left")]
    assert pool.fail_allocation(allocation(1), "none left", 1.0) == []
    pool.request_slot(request(2), "t", 2.0)
    offer(pool, 2, 0)
    pool.request_slot(request(3), "t", 3.0)
    assert pool.fail_allocation(allocation(3), "none left", 4.0) == [AskForSlot(allocation(4), "t")]
    assert pool.pending == (request(3),)


def test_a_request_times_out_only_while_the_job_has_no_slot() -> None:
    pool = connected_pool()
    pool.request_slot(request(1), "first", 0.0)
    offer(pool, 1, 0)
    pool.request_slot(request(2), "second", 0.0)
    assert pool.expired(10.0) == []
    assert pool.next_deadline() == 20.0
    pool.release_task_executor(ResourceID("tm-1"), 15.0)
    assert pool.expired(20.0) == []
    withdrawn, failed = pool.expired(25.0)
    assert withdrawn == WithdrawSlotRequest(allocation(2))
    assert failed == SlotRequestFailed(request(2), "no slot for task 'second' within 10 s")


def test_a_timeout_without_a_resource_manager_says_so() -> None:
    pool = SlotPool(10.0, 5.0, Ids())
    pool.request_slot(request(1), "first", 0.0)
    (failed,) = pool.expired(10.0)
    assert isinstance(failed, SlotRequestFailed)
    assert "no ResourceManager" in failed.reason


def test_a_lost_slot_is_told_if_it_was_in_use() -> None:
    pool = connected_pool()
    for number in (1, 2):
        pool.request_slot(request(number), "t", 0.0)
        offer(pool, number, number)
    pool.release_slot(request(2), 0.0)
    assert pool.fail_allocation(allocation(1), "freed", 1.0) == [SlotLost(allocation(1), "freed")]
    pool.release_task_executor(ResourceID("tm-1"), 1.0)
    assert pool.free_slots == pool.allocated_slots == ()


def test_closing_gives_everything_back_and_takes_no_more() -> None:
    pool = connected_pool()
    pool.request_slot(request(1), "t", 0.0)
    offer(pool, 1, 0)
    pool.request_slot(request(2), "t", 0.0)
    kinds = [type(item) for item in pool.close()]
    assert kinds == [WithdrawSlotRequest, SlotRequestFailed, ReturnSlot]
    assert pool.close() == []
    assert offer(pool, 2, 1) == (False, [])
    assert pool.request_slot(request(3), "t", 0.0) == [SlotRequestFailed(request(3), "the job is ending")]


def test_slots_of_a_vacated_task_executor_are_returned_at_once_and_others_kept() -> None:
    pool = connected_pool()
    for number in (1, 2, 3):
        pool.request_slot(request(number), "map", 0.0)
        offer(pool, number, number)
    other = SlotOffer(allocation(4), slot(0, "tm-2"))
    pool.request_slot(request(4), "map", 0.0)
    pool.offer_slot(other, "addr", 0.0)
    pool.release_slot(request(1), 1.0)
    pool.release_slot(request(4), 1.0)
    there = [AllocatedSlot(allocation(number), slot(number), "addr") for number in (1, 2, 3)]
    assert pool.vacate(ResourceID("tm-1"), 20.0, 10.0) == [ReturnSlot(there[0])]
    assert pool.vacate(ResourceID("tm-1"), 20.0, 11.0) == []
    # Its next task gets another slot, even one that waits while a slot there becomes free.
    assert [type(item) for item in pool.request_slot(request(5), "map", 12.0)] == [SlotReady]
    assert [type(item) for item in pool.request_slot(request(6), "map", 12.0)] == [AskForSlot]
    assert pool.release_slot(request(2), 13.0) == [ReturnSlot(there[1])]
    assert pool.pending == (request(6),)
    # Later, without a further call, a slot there serves the next request again.
    assert SlotReady(request(6), there[2]) in pool.release_slot(request(3), 20.0)


def test_a_task_executor_that_takes_the_place_of_a_vacated_one_is_used() -> None:
    pool = connected_pool()
    pool.vacate(ResourceID("tm-1"), 20.0, 10.0)
    pool.release_task_executor(ResourceID("tm-1"), 11.0)
    pool.request_slot(request(1), "map", 12.0)
    offer(pool, 1, 1, 12.0)
    assert pool.release_slot(request(1), 13.0) == []
    assert len(pool.free_slots) == 1


class SlotPoolMachine(RuleBasedStateMachine):
    """Against a ResourceManager and TaskExecutors that may refuse, crash, repeat themselves or be late."""

    @initialize()
    def begin(self) -> None:
        self.pool = SlotPool(20.0, 8.0, Ids())
        self.now = 0.0
        self.count = 0
        self.waiting: set[SlotRequestID] = set()
        self.running: dict[SlotRequestID, AllocationID] = {}
        self.asked: set[AllocationID] = set()
        self.given: dict[AllocationID, SlotID] = {}
        """What TaskExecutors hold for the job: to be returned, lost, or still in the pool in the end."""

    def do(self, instructions: list[SlotPoolInstruction]) -> None:
        for item in instructions:
            match item:
                case AskForSlot(allocation_id):
                    self.asked.add(allocation_id)
                case WithdrawSlotRequest(allocation_id):
                    self.asked.discard(allocation_id)
                case SlotReady(request_id, given):
                    self.waiting.remove(request_id)
                    assert given.allocation_id not in self.running.values(), "given twice"
                    assert self.given[given.allocation_id] == given.slot_id
                    self.running[request_id] = given.allocation_id
                case SlotRequestFailed(request_id):
                    self.waiting.remove(request_id)
                case SlotLost(allocation_id):
                    (request_id,) = [key for key, value in self.running.items() if value == allocation_id]
                    del self.running[request_id]
                case ReturnSlot(given):
                    assert given.allocation_id not in self.running.values(), "returned while in use"
                    del self.given[given.allocation_id]

    def fresh(self) -> int:
        self.count += 1
        return self.count

    @rule()
    def request(self) -> None:
        request_id = request(self.fresh())
        self.waiting.add(request_id)
        self.do(self.pool.request_slot(request_id, "t", self.now))

    @rule(connect=st.booleans())
    def resource_manager(self, connect: bool) -> None:
        self.asked.clear()
        if connect:
            self.do(self.pool.connect_resource_manager())
        else:
            self.pool.disconnect_resource_manager()

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), executor=st.sampled_from(["tm-1", "tm-2"]), withdrawn_meanwhile=st.booleans())
    def offer(self, data: st.DataObject, executor: str, withdrawn_meanwhile: bool) -> None:
        allocation_id = data.draw(st.sampled_from(sorted(self.asked)))
        slot_id = SlotID(ResourceID(executor), self.fresh())
        self.given[allocation_id] = slot_id
        accepted, instructions = self.pool.offer_slot(SlotOffer(allocation_id, slot_id), "addr", self.now)
        if not accepted:
            del self.given[allocation_id]
        self.do(instructions)
        self.asked.discard(allocation_id)
        if accepted and withdrawn_meanwhile:
            again = SlotID(ResourceID(executor), self.fresh())
            assert self.pool.offer_slot(SlotOffer(allocation_id, again), "addr", self.now) == (False, [])

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def refuse(self, data: st.DataObject) -> None:
        allocation_id = data.draw(st.sampled_from(sorted(self.asked)))
        self.asked.discard(allocation_id)
        self.do(self.pool.fail_allocation(allocation_id, "refused", self.now))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def task_ends(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.running)))
        del self.running[request_id]
        self.do(self.pool.release_slot(request_id, self.now))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel_waiting(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.waiting)))
        self.waiting.remove(request_id)
        self.do(self.pool.cancel_request(request_id, self.now))

    @precondition(lambda self: self.given)
    @rule(data=st.data())
    def executor_loses_a_slot(self, data: st.DataObject) -> None:
        allocation_id = data.draw(st.sampled_from(sorted(self.given)))
        del self.given[allocation_id]
        self.do(self.pool.fail_allocation(allocation_id, "lost", self.now))

    @rule(executor=st.sampled_from(["tm-1", "tm-2"]))
    def executor_dies(self, executor: str) -> None:
        self.given = {key: value for key, value in self.given.items() if value.resource_id != executor}
        self.running = {key: value for key, value in self.running.items() if value in self.given}
        self.pool.release_task_executor(ResourceID(executor), self.now)

    @rule(seconds=st.floats(0.1, 30.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.do(self.pool.expired(self.now))
        deadline = self.pool.next_deadline()
        assert deadline is None or deadline > self.now

    @invariant()
    def the_pool_and_the_world_agree(self) -> None:
        assert set(self.pool.pending) == self.waiting
        assert {item.allocation_id for item in self.pool.allocated_slots} == set(self.running.values())
        held = {item.allocation_id: item.slot_id for item in (*self.pool.allocated_slots, *self.pool.free_slots)}
        assert held == self.given, "a slot has leaked"
        assert not (self.waiting and self.pool.free_slots), "waiting beside a free slot"

    def teardown(self) -> None:
        if hasattr(self, "pool"):
            self.running.clear()
            self.do(self.pool.close())
            assert not self.waiting
            assert not self.given


SlotPoolMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestSlotPoolModel = SlotPoolMachine.TestCase


def test_slots_of_a_former_job_master_are_held_until_their_task_executor_speaks() -> None:
    pool = SlotPool(50.0, 10.0)
    kept, lost, other = (
        AllocatedSlot(AllocationID.random(), SlotID(ResourceID(name), index), "addr")
        for name, index in (("tm-1", 0), ("tm-1", 1), ("tm-2", 0))
    )
    requests = {slot: SlotRequestID.random() for slot in (kept, lost, other)}
    for slot, request in requests.items():
        pool.adopt_slot(request, slot, 0.0)
    assert set(pool.allocated_slots) == {kept, lost, other}
    offer = SlotOffer(kept.allocation_id, kept.slot_id)
    instructions = pool.reconcile(ResourceID("tm-1"), [offer])
    assert [type(item).__name__ for item in instructions] == ["SlotLost"]
    assert instructions[0].allocation_id == lost.allocation_id  # type: ignore[union-attr]
    assert pool.offer_slot(offer, "addr", 1.0) == (True, [])
    assert set(pool.allocated_slots) == {kept, other}
    pool.release_slot(requests[kept], 2.0)
    assert pool.free_slots == (kept,)
    assert pool.reconcile(ResourceID("tm-1"), []) == [], "nobody used it"
    assert pool.free_slots == ()

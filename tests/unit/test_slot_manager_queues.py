"""The SlotManager with a file of queues: limits and turns, also across reports, failures and a new leader."""

from __future__ import annotations

from hypothesis import settings
from hypothesis.stateful import initialize, invariant

from runtime.ids import AllocationID, JobID, ResourceID, SlotID
from runtime.protocol.queues import UserInQueue
from runtime.protocol.slots import (
    AllocateSlot,
    FailRequest,
    SlotGone,
    SlotManagerInstruction,
    SlotReport,
    SlotRequest,
    SlotStatus,
)
from runtime.queues.configuration import Asked, Queues, parse_queues
from runtime.resourcemanager.slot_manager import SlotManager, ordinal
from tests.unit.test_slot_manager import JOB, SlotManagerMachine, instance, register


class Cluster:
    """A SlotManager whose TaskExecutors agree to everything. Job *n* has the one request *n*, and is called so."""

    def __init__(self, text: str, **users: tuple[int, ...]) -> None:
        self.now = 0.0
        self.manager = SlotManager(10.0, parse_queues("half-life: 100 d\n" + text, "q"), lambda: self.now)
        self.slots: dict[SlotID, tuple[JobID, AllocationID] | None] = {}
        for user, jobs in users.items():
            for number in jobs:
                self.manager.register_job(job(number), user, "")

    def add(self, slots: int) -> list[int]:
        instructions = register(self.manager, 1, slots)
        self.slots = {SlotID(ResourceID("tm-1"), index): None for index in range(slots)}
        return self.agree(instructions)

    def request(self, *numbers: int) -> list[int]:
        return [
            served
            for number in numbers
            for served in self.agree(self.manager.register_slot_request(request(number), self.now))
        ]

    def agree(self, instructions: list[SlotManagerInstruction]) -> list[int]:
        served = []
        for item in instructions:
            if isinstance(item, SlotGone):  # the job has freed it itself
                continue
            assert isinstance(item, AllocateSlot)
            self.slots[item.slot_id] = item.request.job_id, item.request.allocation_id
            self.manager.slot_allocated(item.slot_id, item.request.allocation_id)
            served.append(int(item.request.job_id, 16))
        return served

    def free(self, *numbers: int) -> list[int]:
        ended = {job(number) for number in numbers}
        self.slots = {slot: None if held and held[0] in ended else held for slot, held in self.slots.items()}
        return self.agree(self.manager.report_slot_status(instance(1), self.report()))

    def report(self) -> SlotReport:
        return SlotReport(tuple(SlotStatus(slot, *(held or (None, None))) for slot, held in self.slots.items()))

    def reasons(self) -> dict[int, str]:
        return {int(each.job_id, 16): each.reason for each in self.manager.queues().waiting}


def job(number: int) -> JobID:
    return JobID(f"{number:032x}")


def request(number: int) -> SlotRequest:
    return SlotRequest(job(number), AllocationID(f"{number:032x}"), f"job {number}", "t")


def test_a_user_gets_no_slot_beyond_the_limit_and_others_get_the_free_ones() -> None:
    cluster = Cluster("users: {ada: {slots: 1}}", ada=(1, 2), bob=(3,))
    cluster.add(3)
    assert cluster.request(1, 2, 3) == [1, 3]
    assert cluster.manager.counts().free == 1
    assert cluster.reasons() == {2: "1 slot for task 't', 1st in queue default; user ada uses 1 of 1 slots"}
    told = cluster.manager.waiting_reason(request(2).allocation_id)
    assert told == "1 slot for task 't', in queue default; user ada uses 1 of 1 slots"
    assert cluster.manager.waiting == 0, "no worker is started for a request that may not have its slot"
    assert cluster.free(3) == []
    assert cluster.free(1) == [2]


def test_memory_of_tasks_is_counted_and_shown_and_a_smaller_request_does_not_pass_a_larger_one() -> None:
    cluster = Cluster(
        "each-task: {memory-mb: 1024, cpus: 0.5}\nusers: {ada: {memory-mb: 4096}}\nqueues: {default: {cpus: 9}}"
    )
    for number, memory_mb in ((1, 2048), (2, 3072), (3, None)):
        cluster.manager.register_job(job(number), "ada", "", Asked(memory_mb))
    cluster.manager.register_job(job(4), "bob", "")
    cluster.add(4)
    assert cluster.request(1, 2, 3, 4) == [1, 4]
    large, small = "memory of user ada: 2048 of 4096 MB used, 3072 asked for", "an earlier request waits for memory or"
    assert cluster.reasons()[2].endswith(large)
    assert small in cluster.reasons()[3]
    assert small in (cluster.manager.waiting_reason(request(3).allocation_id) or "")
    assert cluster.manager.waiting == 0, "no worker is started for a request that may not have its slot"
    found = cluster.manager.queues()
    (queue,) = found.queues
    assert (queue.memory_mb, queue.memory_mb_limit, queue.cpus, queue.cpus_limit) == (3072, None, 1.0, 9.0)
    assert [(user.user, user.memory_mb, user.cpus) for user in queue.users] == [("ada", 2048, 0.5), ("bob", 1024, 0.5)]
    ada, bob = found.limits
    assert (ada.kind, ada.name, ada.memory_mb, ada.memory_mb_limit, ada.cpus_limit) == ("user", "ada", 2048, 4096, None)
    assert (bob.name, bob.slots, bob.slots_limit, bob.running_jobs, bob.memory_mb) == ("bob", 1, None, 1, 1024)
    assert cluster.free(1) == [2, 3]


def test_slots_that_become_free_go_to_users_in_turn() -> None:
    cluster = Cluster("", ada=(1, 2, 3, 4), bob=(5, 6))
    cluster.request(1, 2, 3, 4, 5, 6)
    assert cluster.manager.waiting == 6
    assert cluster.add(2) == [1, 5]
    assert list(cluster.reasons()) == [2, 6, 3, 4]
    assert cluster.reasons()[3].startswith("1 slot for task 't', 3rd in queue default; the cluster has 2 slot(s)")
    cluster.now = 5.0
    assert cluster.free(1) == [2]
    cluster.now = 6.0
    assert cluster.free(2) == [6], "bob holds a slot since the beginning, and ada has used one and a second"
    (queue,) = cluster.manager.queues().queues
    assert (queue.slots, queue.running_jobs, queue.waiting) == (2, 2, 2)
    assert [(user.user, user.slots, user.waiting) for user in queue.users] == [("ada", 0, 2), ("bob", 2, 0)]


def test_the_order_without_a_file_is_that_of_the_priorities_whoever_asks() -> None:
    manager = SlotManager(10.0)
    for number, priority in ((1, 0), (2, 0), (3, 1)):
        manager.register_job(job(number), "ada" if number != 2 else "bob", "")
        manager.register_slot_request(SlotRequest(job(number), AllocationID(f"{number:032x}"), "j", "t", priority), 0.0)
    served = [item.request.job_id for item in register(manager, 1, 3) if isinstance(item, AllocateSlot)]
    assert served == [job(3), job(1), job(2)]
    reason = manager.waiting_reason(request(1).allocation_id)
    assert reason is None


def test_a_request_waits_for_its_turn_without_a_time_out_but_not_for_a_cluster_without_slots() -> None:
    cluster = Cluster("", ada=(1, 2))
    cluster.add(1)
    assert cluster.request(1, 2) == [1]
    for now in (10.0, 20.0, 3600.0):
        assert cluster.manager.expired(now) == []
        assert cluster.manager.next_deadline() == now + 10.0
    cluster.manager.unregister_task_manager(instance(1))
    (failed,) = cluster.manager.expired(3611.0)
    assert isinstance(failed, FailRequest)
    assert failed.request == request(2)


def test_a_new_leader_counts_the_slots_that_jobs_have_already() -> None:
    old = Cluster("users: {ada: {running-jobs: 1}}", ada=(1, 2))
    old.add(2)
    assert old.request(1) == [1]
    new = Cluster("users: {ada: {running-jobs: 1}}")
    new.slots = old.slots
    new.manager.register_task_manager(instance(1), ResourceID("tm-1"), "a", old.report())
    assert new.agree(new.manager.register_job(job(1), "ada", "")) == []
    assert new.agree(new.manager.register_job(job(2), "ada", "")) == []
    assert new.request(2) == []
    assert new.reasons()[2].endswith("user ada runs 1 of 1 jobs")
    assert new.free(1) == [2]


def test_a_job_that_has_ended_holds_its_slots_until_they_are_free() -> None:
    cluster = Cluster("users: {ada: {slots: 1}}", ada=(1, 2))
    cluster.add(2)
    assert cluster.request(1, 2) == [1]
    cluster.manager.forget_job(job(1))
    assert cluster.agree(cluster.manager.register_job(job(2), "ada", "")) == []
    assert cluster.free(1) == [2]
    assert cluster.manager.queues().running == (job(2),)


def test_another_file_is_in_use_at_once() -> None:
    cluster = Cluster("each-user: {slots: 1}", ada=(1, 2))
    cluster.add(2)
    assert cluster.request(1, 2) == [1]
    assert cluster.agree(cluster.manager.configure(parse_queues("each-user: {slots: 2}", "q"))) == [2]
    assert cluster.manager.configure(parse_queues("each-user: {slots: 1}", "q")) == [], "no slot is taken away"
    assert cluster.manager.queues("wrong").queues[0].users == (UserInQueue("ada", 2, 2.0, 0),)
    assert cluster.manager.queues("wrong").problem == "wrong"


def test_a_lost_task_executor_gives_back_the_slots_of_its_users() -> None:
    cluster = Cluster("each-user: {slots: 1}", ada=(1, 2))
    cluster.add(1)
    assert cluster.request(1, 2) == [1]
    cluster.manager.unregister_task_manager(instance(1))
    assert cluster.manager.queues().running == ()
    served = [item.request.job_id for item in register(cluster.manager, 2, 2) if isinstance(item, AllocateSlot)]
    assert served == [job(2)]


def test_places_are_ordinals() -> None:
    assert [ordinal(number) for number in (1, 2, 3, 4, 11, 12, 13, 21, 102, 111)] == [
        *("1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "102nd", "111th")
    ]


class QueuesMachine(SlotManagerMachine):
    """The same disturbances with a file that sets no limit: the order of one user's requests is that without a file."""

    @initialize()
    def begin(self) -> None:
        super().begin()
        self.manager = SlotManager(20.0, parse_queues("", "q"), lambda: self.now)
        self.manager.register_job(JOB, "ada", "")

    @invariant()
    def slots_are_counted_as_they_are(self) -> None:
        counts = self.manager.counts()
        (queue,) = self.manager.queues().queues
        unknown = sum(
            status.allocation_id is None for key in self.executors for status in self.manager.statuses(key)
        ) - sum(self.manager.counts(key).free for key in self.executors)
        assert counts.allocated <= queue.slots <= counts.allocated + unknown
        assert self.manager.queues().running == ((JOB,) if queue.slots else ())

    def teardown(self) -> None:
        """End as without a file, where requests have a time-out."""
        if hasattr(self, "manager"):
            self.do(self.manager.configure(Queues()))
        super().teardown()


QueuesMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestQueues = QueuesMachine.TestCase

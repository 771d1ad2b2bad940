"""A TaskExecutor serves one user at a time: whose slots it gives, when its driver is renewed, who gets a turn."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from runtime.ids import AllocationID, InstanceID, JobID, ResourceID
from runtime.protocol.errors import SlotOccupiedError
from runtime.protocol.slots import (
    AllocateSlot,
    FailRequest,
    RenewDriver,
    SlotGone,
    SlotManagerInstruction,
    SlotRequest,
    TaskManagerLocation,
)
from runtime.queues.configuration import Queues, parse_queues
from runtime.resourcemanager.slot_manager import DRAIN_AFTER_S, FIRST_DRAIN_S, SlotManager, drain_phase
from runtime.taskexecutor.slot_table import TaskSlotTable

NOBODY = Queues()


@dataclass
class Worker:
    """One TaskExecutor as it is: its slots, and the user whom its driver serves."""

    name: ResourceID
    table: TaskSlotTable
    inbox: list[AllocateSlot | RenewDriver] = field(default_factory=list)


class Cluster:
    """A SlotManager and its TaskExecutors, which agree to everything at once. Request *n* is of job *n*."""

    def __init__(self, *slots: int, queues: Queues = NOBODY, shared: bool = False, delayed: bool = False) -> None:
        self.now = 0.0
        self.manager = SlotManager(1e9, queues, lambda: self.now)
        self.workers: dict[InstanceID, Worker] = {}
        self.users: dict[JobID, str] = {}
        self.where: dict[int, str] = {}
        self.renewed: list[str] = []
        self.refused: list[str] = []
        self.made = 0
        self.shared = shared
        self.delayed = delayed
        for number, free in enumerate(slots, 1):
            self.add(f"tm-{number}", free)

    def add(self, name: str, slots: int, user: str | None = None) -> None:
        self.made += 1
        instance = InstanceID(f"{self.made:032x}")
        worker = self.workers[instance] = Worker(ResourceID(name), TaskSlotTable(ResourceID(name), slots, user))
        self.do(
            self.manager.register_task_manager(
                instance, worker.name, f"tcp://{name}:1", worker.table.report(), serves_one_user=not self.shared
            )
        )

    def request(self, user: str, *numbers: int, near: str = "") -> None:
        places = (TaskManagerLocation.of(ResourceID(near), f"tcp://{near}:1"),) if near else ()
        for number in numbers:
            job = JobID(f"{number:032x}")
            if job not in self.users:
                self.users[job] = user
                self.do(self.manager.register_job(job, user, ""))
            wanted = SlotRequest(job, allocation(number), f"job {number}", "t", preferred_locations=places)
            self.do(self.manager.register_slot_request(wanted, self.now))

    def do(self, instructions: list[SlotManagerInstruction]) -> None:
        for item in instructions:
            if isinstance(item, SlotGone):
                continue
            assert not isinstance(item, FailRequest)
            self.workers[item.instance_id].inbox.append(item)
        if not self.delayed:
            for instance in list(self.workers):
                while instance in self.workers and self.workers[instance].inbox:
                    self.deliver(instance)

    def deliver(self, instance: InstanceID, *, is_lost: bool = False, answer_is_lost: bool = False) -> None:
        """Let the first message arrive."""
        worker = self.workers[instance]
        message = worker.inbox.pop(0)
        if isinstance(message, RenewDriver):
            if is_lost or worker.table.is_used:
                self.manager.renewal_failed(instance)
                return
            self.renewed.append(worker.name)
            self.leave(instance)
            self.add(worker.name, len(worker.table.report().slots))
            return
        owner, wanted = self.users[message.request.job_id], message.request
        number = int(wanted.allocation_id, 16)
        is_taken = False
        if not is_lost:
            try:
                worker.table.allocate(
                    message.slot_id, wanted.job_id, wanted.allocation_id, None if self.shared else owner
                )
                is_taken = True
                if self.where.setdefault(number, worker.name) != worker.name:
                    worker.table.free(wanted.allocation_id)  # the JobMaster rejects a second slot of one allocation
            except SlotOccupiedError as error:
                self.refused.append(str(error))
        if is_taken and not answer_is_lost:
            self.do(self.manager.slot_allocated(message.slot_id, wanted.allocation_id))
        else:
            self.do(self.manager.slot_allocation_failed(message.slot_id, wanted.allocation_id))

    def leave(self, instance: InstanceID) -> None:
        """End the registration of a TaskExecutor, whose driver has ended."""
        worker = self.workers.pop(instance)
        for number in [number for number, name in self.where.items() if name == worker.name]:
            del self.where[number]
        self.do(self.manager.unregister_task_manager(instance))

    def free(self, *numbers: int) -> None:
        for number in numbers:
            (instance,) = [each for each, worker in self.workers.items() if worker.name == self.where[number]]
            self.workers[instance].table.free(allocation(number))
            del self.where[number]
            self.report(instance)

    def report(self, instance: InstanceID) -> None:
        self.do(self.manager.report_slot_status(instance, self.workers[instance].table.report()))

    def wait(self, seconds: float) -> None:
        """Let time pass, and wake the manager at its deadlines, as its endpoint does."""
        end = self.now + seconds
        while (at := self.manager.next_deadline()) is not None and at <= end:
            self.now = max(at, self.now)
            self.do(self.manager.expired(self.now))
        self.now = end

    def reason(self, number: int) -> str:
        return str(self.manager.waiting_reason(allocation(number)))


def allocation(number: int) -> AllocationID:
    return AllocationID(f"{number:032x}")


def test_two_users_get_two_task_executors_and_never_one() -> None:
    cluster = Cluster(2, 2)
    cluster.request("ada", 1)
    cluster.request("bob", 2)
    cluster.request("ada", 3)
    cluster.request("bob", 4)
    assert cluster.where == {1: "tm-1", 2: "tm-2", 3: "tm-1", 4: "tm-2"}
    assert cluster.renewed == []


def test_jobs_without_a_user_are_one_users() -> None:
    cluster = Cluster(2)
    cluster.request("", 1, 2)
    cluster.request("ada", 3)
    assert cluster.where == {1: "tm-1", 2: "tm-1"}


def test_without_users_slots_are_given_as_if_there_were_none() -> None:
    """Spread over all TaskExecutors, and no driver is ever renewed."""
    apart, shared = Cluster(2, 3, 1), Cluster(2, 3, 1, shared=True)
    for cluster in (apart, shared):
        cluster.request("", 1, 2, 3, 4, 5, 6, 7, 8)
        cluster.free(2, 4, 5)
        cluster.request("", 9)
        cluster.free(*cluster.where)
        cluster.request("", 10)
    assert apart.where == shared.where
    assert apart.renewed == []


def test_task_executors_that_all_share_are_given_to_all_users() -> None:
    """Those of an earlier release, at the Spark of another owner, or with ``security.users.isolation`` off."""
    cluster = Cluster(2, shared=True)
    cluster.request("ada", 1)
    cluster.request("bob", 2)
    assert cluster.where == {1: "tm-1", 2: "tm-1"}
    assert cluster.manager.stuck == ()


def test_a_user_fills_the_own_task_executor_and_leaves_others_to_others() -> None:
    cluster = Cluster(2, 4)
    cluster.request("ada", 1, 2, 3, 4)
    assert set(cluster.where.values()) == {"tm-2"}
    cluster.request("ada", 5)
    assert cluster.where[5] == "tm-1"


def test_a_near_slot_of_another_user_is_not_taken() -> None:
    cluster = Cluster(2, 2)
    cluster.request("ada", 1, near="tm-1")
    cluster.request("bob", 2, near="tm-1")
    cluster.request("ada", 3, near="tm-1")
    assert cluster.where == {1: "tm-1", 2: "tm-2", 3: "tm-1"}


def test_an_idle_driver_is_renewed_for_the_next_user_and_kept_for_the_same() -> None:
    cluster = Cluster(2)
    cluster.request("ada", 1)
    cluster.free(1)
    cluster.request("ada", 2)
    assert cluster.renewed == [], "one's own driver stays warm"
    cluster.request("bob", 3)
    assert 3 not in cluster.where
    cluster.free(2)
    assert cluster.renewed == ["tm-1"]
    assert cluster.where == {3: "tm-1"}
    (instance,) = cluster.workers
    assert cluster.manager.user_of(instance) == "bob"
    assert cluster.manager.user_of(InstanceID("0" * 32)) == ""


def test_what_a_request_waits_for_is_said() -> None:
    cluster = Cluster(2, delayed=True)
    (instance,) = cluster.workers
    cluster.request("ada", 1)
    cluster.deliver(instance)
    cluster.request("bob", 2)
    text = cluster.reason(2)
    assert "1 slot for task 't'" in text
    assert "2 slot(s) on 1 TaskExecutor(s), 1 free" in text
    assert "1 TaskExecutor(s) serve other users, and two users share none" in text
    assert "start more TaskExecutors" in text
    cluster.free(1)
    renews = "tm-1 gets a new Spark driver first, after the jobs of another user"
    assert renews in cluster.reason(2)
    cluster.workers[instance].inbox.clear()
    cluster.leave(instance)
    assert renews in cluster.reason(2), "while it is away, too"
    cluster.now += 1000.0
    assert "no registered TaskExecutor" in cluster.reason(2)


def test_with_queues_the_order_of_users_decides_who_is_next() -> None:
    cluster = Cluster(1, queues=parse_queues("queues: {urgent: {priority: 1, users: [eve]}}", "q"))
    cluster.request("ada", 1)
    cluster.request("bob", 2)
    cluster.request("eve", 3)
    (bob, eve) = sorted(cluster.manager.queues().waiting, key=lambda each: each.user)
    assert "1st in queue urgent; the cluster has 1 slot(s)" in eve.reason
    assert "serve other users" in bob.reason
    cluster.free(1)
    assert cluster.where == {3: "tm-1"}


def test_a_request_that_no_task_executor_takes_holds_back_no_other_user_by_the_limit_of_a_queue() -> None:
    cluster = Cluster(2, 1, queues=parse_queues("queues: {etl: {slots: 3}}", "q"))
    cluster.request("ada", 1)
    cluster.request("eve", 2)
    cluster.request("bob", 3)
    cluster.request("ada", 4)
    assert sorted(cluster.where) == [1, 2, 4]


def test_a_user_waits_no_longer_than_until_the_others_present_tasks_have_ended() -> None:
    """Ada always has a task somewhere: each next one begins before the last one ends."""
    cluster = Cluster(2)
    cluster.request("ada", 1)
    cluster.request("bob", 2)
    for number in range(3, 100):
        cluster.request("ada", number)
        cluster.wait(5.0)
        cluster.free(min(each for each in cluster.where if each != 2))
        if 2 in cluster.where:
            break
    assert cluster.renewed == ["tm-1"]
    assert cluster.now <= DRAIN_AFTER_S + FIRST_DRAIN_S


def test_tasks_without_end_do_not_keep_the_other_slots_empty_for_ever() -> None:
    """A stream of ada's never ends, so bob gets nothing of this TaskExecutor; her later jobs still run."""
    cluster = Cluster(2)
    cluster.request("ada", 1)
    cluster.request("bob", 2)
    ran = 0
    for number in range(3, 60):
        cluster.request("ada", number)
        cluster.wait(30.0)
        for done in [each for each in cluster.where if each not in (1, 2)]:
            cluster.free(done)
            ran += 1
    assert 2 not in cluster.where
    assert ran > 10


def test_a_stream_on_the_least_used_task_executor_does_not_keep_a_user_out_of_the_others() -> None:
    cluster = Cluster(2, 2)
    cluster.request("ada", 1, near="tm-1")
    cluster.request("ada", 2, near="tm-2")
    cluster.request("bob", 3)
    for number in range(4, 400):
        cluster.request("ada", number, near="tm-2")
        cluster.wait(5.0)
        batch = [each for each, name in cluster.where.items() if name == "tm-2" and each != 3]
        cluster.free(*batch[:1])
        if 3 in cluster.where:
            break
    assert cluster.where[3] == "tm-2"


@pytest.mark.parametrize("age", [0.0, 9.0, 10.0, 39.0, 40.0, 69.0, 70.0, 129.0, 130.0, 189.0, 190.0, 1e6])
def test_phases_and_pauses_alternate_and_grow(age: float) -> None:
    phase, end = drain_phase(age)
    assert end > age
    assert (drain_phase(end)[0] is None) != (phase is None)
    phases = [(10.0, 40.0), (70.0, 130.0), (190.0, 310.0)]
    if age < 310.0:
        assert phase == next((number for number, (a, b) in enumerate(phases) if a <= age < b), None)


def test_a_new_leader_learns_from_the_reports_to_whom_a_task_executor_belongs() -> None:
    cluster = Cluster()
    cluster.add("tm-1", 1, "ada")
    cluster.request("ada", 1)
    assert (cluster.where, cluster.renewed) == ({1: "tm-1"}, [])
    other = Cluster()
    other.add("tm-1", 1, "ada")
    other.request("bob", 2)
    assert (other.where, other.renewed) == ({2: "tm-1"}, ["tm-1"])


def test_a_renewal_that_fails_is_tried_again_after_the_next_report() -> None:
    cluster = Cluster(1, delayed=True)
    (instance,) = cluster.workers
    cluster.request("ada", 1)
    cluster.deliver(instance)
    cluster.free(1)
    cluster.request("bob", 2)
    cluster.deliver(instance, is_lost=True)
    assert cluster.workers[instance].inbox == []
    cluster.request("ada", 3)
    assert cluster.workers[instance].inbox == [], "whether it was renewed is not known yet"
    cluster.report(instance)
    (message,) = cluster.workers[instance].inbox
    assert isinstance(message, RenewDriver), "bob's request is older than ada's"


def test_requests_do_not_fail_at_once_while_the_only_task_executor_renews_its_driver() -> None:
    cluster = Cluster(1, delayed=True)
    (instance,) = cluster.workers
    assert cluster.manager.set_fail_unfulfillable_request(True) == []
    cluster.request("ada", 1)
    cluster.deliver(instance)
    cluster.free(1)
    cluster.request("bob", 2)
    cluster.workers[instance].inbox.clear()
    cluster.leave(instance)  # a FailRequest would fail an assertion in `do`
    cluster.request("bob", 3)
    assert len(cluster.manager.pending_requests) == 2


def test_workers_are_asked_for_by_user_and_not_for_those_whose_driver_is_being_renewed() -> None:
    cluster = Cluster(2, 2, delayed=True)
    one, other = cluster.workers
    cluster.request("ada", 1)
    cluster.deliver(one)
    cluster.request("eve", 2)
    cluster.deliver(other)
    cluster.request("bob", 3, 4, 5)
    cluster.request("dan", 6)
    assert (cluster.manager.waiting, sorted(cluster.manager.stuck)) == (4, [1, 3])
    cluster.free(1)
    assert cluster.workers[one].inbox, "a new driver for bob"
    assert (cluster.manager.waiting, sorted(cluster.manager.stuck)) == (4, [1, 1])


def test_no_more_drivers_are_renewed_for_a_user_than_the_limit_lets_use() -> None:
    cluster = Cluster(1, 1, queues=parse_queues("users: {bob: {slots: 1}}", "q"), delayed=True)
    for number, instance in enumerate(list(cluster.workers), 1):
        cluster.request("ada", number)
        cluster.deliver(instance)
    cluster.free(1, 2)
    cluster.request("bob", 3, 4, 5)
    for instance in cluster.workers:
        cluster.report(instance)
    assert sum(len(worker.inbox) for worker in cluster.workers.values()) == 1


class UsersMachine(RuleBasedStateMachine):
    """Three users and TaskExecutors whose messages are late or lost. No driver ever serves two users."""

    @initialize(slots=st.lists(st.integers(1, 3), min_size=1, max_size=3), has_queues=st.booleans())
    def begin(self, slots: list[int], has_queues: bool) -> None:
        queues = parse_queues("queues: {q: {}}", "q") if has_queues else NOBODY
        self.cluster = Cluster(*slots, queues=queues, delayed=True)
        self.requests = 0
        self.nothing_was_lost = True

    def any_worker(self, data: st.DataObject, *, with_mail: bool = False) -> InstanceID:
        workers = self.cluster.workers
        return data.draw(st.sampled_from([each for each in workers if workers[each].inbox or not with_mail]))

    @rule(user=st.sampled_from(["ada", "bob", ""]))
    def ask(self, user: str) -> None:
        self.requests += 1
        self.cluster.request(user, self.requests)

    @precondition(lambda self: any(worker.inbox for worker in self.cluster.workers.values()))
    @rule(data=st.data(), is_lost=st.booleans(), answer_is_lost=st.booleans())
    def deliver(self, data: st.DataObject, is_lost: bool, answer_is_lost: bool) -> None:
        self.nothing_was_lost &= not is_lost and not answer_is_lost
        self.cluster.deliver(self.any_worker(data, with_mail=True), is_lost=is_lost, answer_is_lost=answer_is_lost)

    @precondition(lambda self: self.cluster.where)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self.cluster.free(data.draw(st.sampled_from(sorted(self.cluster.where))))

    @rule(data=st.data())
    def report(self, data: st.DataObject) -> None:
        self.cluster.report(self.any_worker(data))

    @rule(seconds=st.floats(0.1, 60.0))
    def time_passes(self, seconds: float) -> None:
        self.cluster.wait(seconds)

    @invariant()
    def each_driver_has_one_user_and_the_manager_knows_it(self) -> None:
        for instance, worker in self.cluster.workers.items():
            held = {self.cluster.users[each.job_id] for each in worker.table.report().slots if each.job_id}
            assert held <= {worker.table.user}
            given_to = {
                self.cluster.users[each.request.job_id] for each in worker.inbox if isinstance(each, AllocateSlot)
            }
            if self.nothing_was_lost:
                assert len(held | given_to) <= 1, "a slot for a second user is on its way"
            assert self.cluster.manager.counts(instance).registered == len(worker.table.report().slots)
        if self.nothing_was_lost:
            assert self.cluster.refused == []

    @invariant()
    def no_slot_stays_free_that_a_user_may_have(self) -> None:
        """Unless it is drained for an earlier request, which begins only after some time."""
        cluster, manager = self.cluster, self.cluster.manager
        if cluster.now >= DRAIN_AFTER_S:
            return
        waiting = {
            cluster.users[item.job_id]
            for item in manager.pending_requests
            if cluster.reason(int(item.allocation_id, 16)) != "None"
        }
        for instance, slots in manager._task_managers.items():
            if manager.counts(instance).free and slots.renewing is None:
                assert slots.user not in waiting
                assert slots.user is not None or not waiting

    def teardown(self) -> None:
        """Every request gets a slot once tasks end and nothing is lost any more."""
        if not hasattr(self, "cluster"):
            return
        cluster = self.cluster
        cluster.delayed = False
        for _ in range(20 * (2 + self.requests)):
            for instance in list(cluster.workers):
                if instance in cluster.workers:
                    cluster.report(instance)
            cluster.free(*cluster.where)
            cluster.wait(1.0)
            if not cluster.manager.pending_requests:
                break
        assert cluster.manager.pending_requests == ()


UsersMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
TestUsers = UsersMachine.TestCase

"""The checkpoint coordinator: triggers, acknowledgements, timeouts, what is subsumed, and what nobody may remove."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from runtime.checkpoint.configuration import CheckpointCoordinatorConfiguration
from runtime.checkpoint.coordinator import (
    AllocateCheckpointID,
    CheckpointCoordinator,
    CheckpointInstruction,
    CheckpointTask,
    DiscardSnapshots,
    FailJob,
    NotifyAborted,
    NotifyComplete,
    RunningTasks,
    StoreCheckpoint,
    TriggerTasks,
)
from runtime.checkpoint.statistics import HISTORY
from runtime.client import ClusterClient
from runtime.ids import ExecutionAttemptID, JobID, JobVertexID, ResourceID, TriggerID
from runtime.protocol.checkpoint_statistics import CheckpointStatsStatus
from runtime.protocol.checkpoints import (
    AcknowledgeCheckpoint,
    CheckpointMetadata,
    CheckpointOutcome,
    CheckpointTrigger,
    DeclineCheckpoint,
    OperationState,
    OperationStatus,
    SnapshotType,
)
from runtime.protocol.execution_state import Instant, JobStatus
from runtime.protocol.query_snapshot import QuerySnapshot

JOB = JobID("0" * 32)


def at(seconds: float) -> Instant:
    return Instant(seconds, int(seconds * 1000))


def task(number: int) -> CheckpointTask:
    digits = f"{number:032x}"
    return CheckpointTask(ExecutionAttemptID(digits), JobVertexID(digits), f"task-{number}", ResourceID("tm-0"))


def ready(*numbers: int) -> RunningTasks:
    return RunningTasks(tuple(task(number) for number in numbers or (1,)), are_ready=True, are_stateful=True)


def snapshot(checkpoint_id: int, number: int = 1, name: str | None = None) -> QuerySnapshot:
    path = f"/c/chk-{checkpoint_id}/{number}"
    return QuerySnapshot(name or f"query-{number}", "id", "/live", None, path, 7, ["{}"], 3, 100, 10)


def request(kind: SnapshotType = SnapshotType.CHECKPOINT) -> CheckpointTrigger:
    return CheckpointTrigger(TriggerID.random(), kind, "/s" if kind.is_savepoint else "")


def of_type(instructions: Sequence[CheckpointInstruction], kind: type) -> list[CheckpointInstruction]:
    return [item for item in instructions if isinstance(item, kind)]


class Driver:
    """Carries instructions out as a JobMaster would, with a store of one's own."""

    def __init__(self, retained: int = 1, **settings: float | None) -> None:
        configuration = CheckpointCoordinatorConfiguration(**settings)  # type: ignore[arg-type]
        self.coordinator = CheckpointCoordinator(configuration, JOB, "/c", at(0))
        self.retained = retained
        self.now = 0.0
        self.next_id = 1
        self.running = ready()
        self.store: list[CheckpointMetadata] = []
        self.done: list[CheckpointInstruction] = []
        self.hold_stores = False
        self.held: list[StoreCheckpoint] = []

    def carry_out(self, instructions: list[CheckpointInstruction]) -> list[CheckpointInstruction]:
        work = list(instructions)
        seen = []
        while work:
            step = work.pop(0)
            seen.append(step)
            if isinstance(step, AllocateCheckpointID):
                self.next_id += 1
                work += self.coordinator.id_allocated(self.next_id - 1, at(self.now))
            elif isinstance(step, StoreCheckpoint) and self.hold_stores:
                self.held.append(step)
            elif isinstance(step, StoreCheckpoint):
                work += self.put(step)
        self.done += seen
        return seen

    def put(self, step: StoreCheckpoint) -> list[CheckpointInstruction]:
        subsumed: list[CheckpointMetadata] = []
        if not step.trigger.type.is_savepoint:
            if self.store and self.store[-1].checkpoint_id > step.metadata.checkpoint_id:
                return self.coordinator.store_failed(step.metadata.checkpoint_id, "it comes too late", at(self.now))
            self.store.append(step.metadata)
            subsumed, self.store = self.store[: -self.retained], self.store[-self.retained :]
        return self.coordinator.stored(step.metadata.checkpoint_id, step.metadata.path, subsumed, at(self.now))

    def advance(self, seconds: float = 0.0) -> list[CheckpointInstruction]:
        self.now += seconds
        return self.carry_out(self.coordinator.advance(self.running, at(self.now)))

    def trigger(self, kind: SnapshotType = SnapshotType.CHECKPOINT) -> tuple[CheckpointTrigger, list]:  # type: ignore[type-arg]
        wanted = request(kind)
        self.coordinator.trigger(wanted, at(self.now))
        return wanted, self.advance()

    def acknowledge(self, checkpoint_id: int, number: int = 1, name: str | None = None) -> CheckpointOutcome:
        queries = (snapshot(checkpoint_id, number, name),)
        ack = AcknowledgeCheckpoint(checkpoint_id, task(number).attempt_id, request(), queries)
        outcome, instructions = self.coordinator.acknowledged(ack, at(self.now))
        self.carry_out(instructions)
        return outcome


def test_a_periodic_checkpoint_is_complete_when_all_tasks_have_acknowledged_it() -> None:
    driver = Driver(interval_s=10)
    driver.running = ready(1, 2)
    assert driver.advance(9.9) == []
    (triggered,) = of_type(driver.advance(0.2), TriggerTasks)
    assert isinstance(triggered, TriggerTasks)
    assert triggered.checkpoint_id == 1
    assert driver.acknowledge(1, 1) is CheckpointOutcome.PENDING
    assert driver.acknowledge(1, 1) is CheckpointOutcome.PENDING, "twice is once"
    assert driver.store == []
    driver.acknowledge(1, 2)
    assert [item.checkpoint_id for item in driver.store] == [1]
    assert driver.acknowledge(1, 2) is CheckpointOutcome.COMPLETED
    assert of_type(driver.done, NotifyComplete) == [NotifyComplete(1, driver.running.tasks)]
    counts = driver.coordinator.statistics(at(driver.now)).counts
    assert (counts.total, counts.completed, counts.in_progress, counts.failed) == (1, 1, 0, 0)


def test_nothing_is_triggered_while_a_task_does_not_run_or_nothing_streams() -> None:
    driver = Driver(interval_s=1)
    for running in (RunningTasks((task(1),), False, True), RunningTasks((task(1),), True, False)):
        driver.running = running
        assert driver.advance(5) == []


def test_the_pause_is_kept_after_a_checkpoint_and_one_is_under_way_at_a_time() -> None:
    driver = Driver(interval_s=10, min_pause_s=8)
    driver.advance(10)
    assert of_type(driver.advance(10), TriggerTasks) == [], "the first is still under way"
    driver.acknowledge(1)
    assert of_type(driver.advance(7.9), TriggerTasks) == []
    assert len(of_type(driver.advance(0.2), TriggerTasks)) == 1


def test_an_expired_checkpoint_is_aborted_and_what_comes_late_is_removed() -> None:
    driver = Driver(interval_s=10, timeout_s=5)
    driver.running = ready(1, 2)
    driver.advance(10)
    driver.acknowledge(1, 1)
    steps = driver.advance(5)
    assert of_type(steps, NotifyAborted) == [NotifyAborted(1, driver.running.tasks)]
    assert of_type(steps, DiscardSnapshots) == [DiscardSnapshots(1, "/c/chk-1", (snapshot(1, 1),))]
    assert driver.acknowledge(1, 2) is CheckpointOutcome.ABORTED
    assert driver.done[-1] == DiscardSnapshots(1, "/c/chk-1", (snapshot(1, 2),))
    failed = driver.coordinator.statistics(at(driver.now)).latest_failed
    assert failed is not None
    assert "execution.checkpointing.timeout" in failed.failure_message


def test_a_task_that_ends_takes_the_checkpoint_along() -> None:
    driver = Driver(interval_s=10)
    driver.running = ready(1, 2)
    driver.advance(10)
    driver.acknowledge(1, 1)
    driver.running = ready(1, 3)
    assert of_type(driver.advance(), NotifyAborted) != []
    assert driver.store == []


@pytest.mark.parametrize("kind", [SnapshotType.CHECKPOINT, SnapshotType.SAVEPOINT])
def test_a_checkpoint_is_aborted_when_a_task_that_has_done_its_part_starts_again(kind: SnapshotType) -> None:
    """Its restore may remove files of its sink that this part of the checkpoint names."""
    driver = Driver(timeout_s=60)
    driver.running = ready(1, 2)
    wanted, _ = driver.trigger(kind)
    driver.acknowledge(1, 1)
    driver.running = RunningTasks((task(2),), are_ready=False, are_stateful=True)
    assert driver.advance() == [], "a task that has ended for good may have done its part"
    driver.carry_out(driver.coordinator.task_restarts(JobVertexID(f"{9:032x}"), at(driver.now)))
    assert driver.coordinator.outcome(1) is CheckpointOutcome.PENDING, "another task starts"
    steps = driver.carry_out(driver.coordinator.task_restarts(task(1).key, at(driver.now)))
    assert len(of_type(steps, NotifyAborted)) == 1
    assert driver.acknowledge(1, 2) is CheckpointOutcome.ABORTED
    assert driver.store == []
    driver.running = ready(1, 2)
    (again,) = of_type(driver.advance(), TriggerTasks)
    assert isinstance(again, TriggerTasks)
    assert again.trigger == wanted


def test_what_is_being_stored_when_a_task_starts_again_is_given_up_and_made_again() -> None:
    driver = Driver()
    driver.hold_stores = True
    wanted, _ = driver.trigger(SnapshotType.SAVEPOINT_CANCEL)
    driver.acknowledge(1)
    assert driver.coordinator.task_restarts(JobVertexID(f"{9:032x}"), at(driver.now)) == []
    assert driver.coordinator.abandoned(1) == "", "another task starts"
    assert driver.coordinator.task_restarts(task(1).key, at(driver.now)) == [], "whoever stores it looks"
    assert driver.coordinator.abandoned(1) == "task 'task-1' was restarted before it was complete"
    assert driver.coordinator.rolled_back("chk-7", at(driver.now)) == []
    assert "was restarted" in driver.coordinator.abandoned(1), "the first reason stays"
    _assert_made_again(driver, driver.coordinator.store_failed(1, "given up", at(driver.now)), wanted)


@pytest.mark.parametrize("is_being_stored", [False, True])
@pytest.mark.parametrize("kind", [SnapshotType.SAVEPOINT, SnapshotType.SAVEPOINT_CANCEL, SnapshotType.CHECKPOINT])
def test_what_a_rollback_finds_incomplete_is_made_again_after_it(kind: SnapshotType, is_being_stored: bool) -> None:
    driver = Driver()
    driver.hold_stores = True
    wanted, _ = driver.trigger(kind)
    if is_being_stored:
        driver.acknowledge(1)
    steps = driver.coordinator.rolled_back("chk-7", at(driver.now))
    if is_being_stored:
        assert driver.coordinator.abandoned(1) == "the job was rolled back to chk-7 before it was complete"
        steps = driver.coordinator.store_failed(1, "given up", at(driver.now))
    _assert_made_again(driver, steps, wanted)


def _assert_made_again(driver: Driver, steps: Sequence[CheckpointInstruction], wanted: CheckpointTrigger) -> None:
    assert len(of_type(steps, NotifyAborted)) == 1
    status = driver.coordinator.operation(wanted.trigger_id)
    assert status is not None
    assert status.state is OperationState.IN_PROGRESS
    (again,) = of_type([*driver.carry_out(list(steps)), *driver.advance()], TriggerTasks)
    assert isinstance(again, TriggerTasks)
    assert (again.checkpoint_id, again.trigger) == (2, wanted)


def test_too_many_failures_in_a_row_fail_the_job_and_a_success_forgives() -> None:
    driver = Driver(interval_s=10, tolerable_failures=1)
    decline = lambda number: driver.carry_out(  # noqa: E731
        driver.coordinator.declined(DeclineCheckpoint(number, task(1).attempt_id, "no space"), at(driver.now))
    )
    driver.advance(10)
    assert of_type(decline(1), FailJob) == []
    driver.advance(10)
    driver.acknowledge(2)
    driver.advance(10)
    assert of_type(decline(3), FailJob) == []
    driver.advance(10)
    (failure,) = of_type(decline(4), FailJob)
    assert isinstance(failure, FailJob)
    assert failure.reason.endswith("no space")
    assert "2 checkpoints in a row" in failure.reason


def test_the_oldest_goes_when_the_newest_is_stored() -> None:
    driver = Driver(retained=2)
    for number in (1, 2, 3):
        driver.trigger()
        driver.acknowledge(number)
    assert [item.checkpoint_id for item in driver.store] == [2, 3]
    assert of_type(driver.done, DiscardSnapshots) == [DiscardSnapshots(1, "/c/chk-1", (snapshot(1),))]
    assert [stats.discarded for stats in driver.coordinator.statistics(at(0)).history] == [False, False, True]


def test_a_savepoint_is_not_counted_among_those_under_way_and_keeps_no_files_of_its_own() -> None:
    driver = Driver(max_concurrent=1)
    driver.trigger()
    wanted, steps = driver.trigger(SnapshotType.SAVEPOINT)
    assert len(of_type(steps, TriggerTasks)) == 1
    driver.acknowledge(2)
    assert driver.coordinator.operation(wanted.trigger_id).state is OperationState.COMPLETED  # type: ignore[union-attr]
    assert DiscardSnapshots(2, "/c/chk-2", (snapshot(2),)) in driver.done
    assert driver.coordinator.latest is None, "a savepoint is the user's: no restart counts on it"
    _, steps = driver.trigger()
    assert of_type(steps, TriggerTasks) == [], "the first checkpoint is still under way"


def test_a_wish_waits_for_the_tasks_and_is_refused_in_the_end() -> None:
    driver = Driver(timeout_s=60)
    driver.running = RunningTasks((), False, False)
    wanted, steps = driver.trigger(SnapshotType.SAVEPOINT)
    assert steps == []
    driver.running = ready()
    assert len(of_type(driver.advance(30), TriggerTasks)) == 1
    driver.running = RunningTasks((), False, False)
    late, _ = driver.trigger(SnapshotType.SAVEPOINT)
    driver.advance(61)
    status = driver.coordinator.operation(late.trigger_id)
    assert status is not None
    assert status.state is OperationState.FAILED
    assert "not all tasks" in status.error
    assert driver.coordinator.operation(wanted.trigger_id).state is OperationState.FAILED  # type: ignore[union-attr]


def test_the_same_wish_twice_is_one_and_a_job_is_stopped_once() -> None:
    driver = Driver(interval_s=10)
    wanted, _ = driver.trigger(SnapshotType.SAVEPOINT_SUSPEND)
    driver.coordinator.trigger(wanted, at(1))
    assert of_type(driver.advance(100), TriggerTasks) == [], "no periodic checkpoint while the job is being stopped"
    other = driver.coordinator.trigger(request(SnapshotType.SAVEPOINT), at(2))
    assert other.state is OperationState.FAILED
    driver.coordinator.declined(DeclineCheckpoint(1, task(1).attempt_id, "no"), at(driver.now))
    assert len(of_type(driver.advance(), TriggerTasks)) == 1, "the job was not stopped: it is checkpointed again"


def test_who_asks_for_the_same_stop_once_more_hears_what_becomes_of_the_first() -> None:
    driver = Driver()
    first, _ = driver.trigger(SnapshotType.SAVEPOINT_TERMINATE)
    again = request(SnapshotType.SAVEPOINT_TERMINATE)
    begun = driver.coordinator.trigger(again, at(1))
    assert (begun.trigger_id, begun.state) == (again.trigger_id, OperationState.IN_PROGRESS)
    others = (
        request(SnapshotType.SAVEPOINT_SUSPEND),
        replace(again, trigger_id=TriggerID.random(), target="/elsewhere"),
    )
    for other in others:
        assert driver.coordinator.trigger(other, at(1)).state is OperationState.FAILED, "it is not what is asked for"
    driver.advance()
    driver.acknowledge(1, 1)
    driver.advance()
    stopped = driver.coordinator.operation(first.trigger_id)
    assert stopped is not None
    assert stopped.state is OperationState.COMPLETED
    later = replace(again, trigger_id=TriggerID.random(), target="")
    for joined in (driver.coordinator.operation(again.trigger_id), driver.coordinator.trigger(later, at(2))):
        assert joined is not None
        assert (joined.state, joined.path) == (OperationState.COMPLETED, stopped.path)
    remembered = {status.trigger_id: status.path for status in driver.coordinator.statistics(at(3)).operations}
    assert {remembered[known] for known in (first.trigger_id, again.trigger_id, later.trigger_id)} == {stopped.path}


def test_a_job_without_streaming_queries_has_nothing_to_keep_and_names_must_be_unique() -> None:
    driver = Driver(tolerable_failures=0)
    wanted, _ = driver.trigger()
    ack = AcknowledgeCheckpoint(1, task(1).attempt_id, wanted, ())
    outcome, steps = driver.coordinator.acknowledged(ack, at(0))
    assert outcome is CheckpointOutcome.ABORTED
    assert of_type(steps, FailJob) == []
    assert "no streaming query" in driver.coordinator.operation(wanted.trigger_id).error  # type: ignore[union-attr]
    driver.running = ready(1, 2)
    wanted, _ = driver.trigger()
    driver.acknowledge(2, 1, "same")
    assert driver.acknowledge(2, 2, "same") is CheckpointOutcome.ABORTED
    assert "queryName" in driver.coordinator.operation(wanted.trigger_id).error  # type: ignore[union-attr]


def test_a_successor_knows_what_is_stored() -> None:
    driver = Driver()
    stored = CheckpointMetadata(JOB, 5, "/c/chk-5", 0, 1, ())
    driver.coordinator.recovered([stored])
    assert driver.coordinator.latest == stored
    assert driver.acknowledge(5) is CheckpointOutcome.COMPLETED, "its reply was lost with the predecessor"
    assert driver.acknowledge(6) is CheckpointOutcome.ABORTED
    figures = driver.coordinator.statistics(at(0))
    assert figures.latest_completed is not None
    assert figures.latest_completed.id == 5
    assert figures.counts.restored == 0, "the tasks have gone on: nothing was restored"
    driver.coordinator.restored(5, "/c/chk-5", at(1))
    restored = driver.coordinator.statistics(at(1)).latest_restored
    assert restored is not None
    assert (restored.id, restored.is_savepoint) == (5, False)


def test_a_wish_outlives_the_restart_of_a_task_and_a_periodic_checkpoint_does_not() -> None:
    driver = Driver(interval_s=1, timeout_s=60)
    wanted, _ = driver.trigger(SnapshotType.SAVEPOINT)
    driver.running = ready(2)
    steps = driver.advance()
    assert NotifyAborted(1, (task(1),)) in steps
    (anew,) = of_type(steps, TriggerTasks)
    assert isinstance(anew, TriggerTasks)
    assert (anew.trigger, anew.checkpoint_id, anew.tasks) == (wanted, 2, (task(2),))
    driver.acknowledge(2, 2)
    assert driver.coordinator.operation(wanted.trigger_id).state is OperationState.COMPLETED  # type: ignore[union-attr]
    driver.advance(1)
    driver.running = RunningTasks((task(3),), True, False)
    assert of_type(driver.advance(5), TriggerTasks) == []


def test_a_stop_that_a_lost_task_undoes_is_told_and_the_job_is_checkpointed_again() -> None:
    driver = Driver(interval_s=10)
    wanted, _ = driver.trigger(SnapshotType.SAVEPOINT_SUSPEND)
    driver.coordinator.stop_undone()
    assert driver.coordinator.operation(wanted.trigger_id).state is OperationState.IN_PROGRESS  # type: ignore[union-attr]
    driver.acknowledge(1)
    assert of_type(driver.advance(100), TriggerTasks) == []
    driver.coordinator.stop_undone()
    status = driver.coordinator.operation(wanted.trigger_id)
    assert status is not None
    assert (status.state, status.path) == (OperationState.FAILED, "/c/chk-1")
    assert "the job continues" in status.error
    assert len(of_type(driver.advance(), TriggerTasks)) == 1


@pytest.mark.parametrize("kind", [kind for kind in SnapshotType if kind.ends_the_job])
def test_a_stop_is_made_again_if_a_task_whose_queries_it_has_stopped_is_lost_before_the_others_are_done(
    kind: SnapshotType,
) -> None:
    driver = Driver()
    driver.running = ready(1, 2)
    wanted, _ = driver.trigger(kind)
    driver.acknowledge(1, 1)
    driver.running = RunningTasks((task(2),), are_ready=False, are_stateful=True)
    driver.advance()
    driver.coordinator.stop_undone()  # the lost task is deployed again
    assert driver.acknowledge(1, 2) is CheckpointOutcome.ABORTED
    assert driver.coordinator.operation(wanted.trigger_id).state is OperationState.IN_PROGRESS  # type: ignore[union-attr]
    driver.running = ready(3, 4)
    (again,) = of_type(driver.advance(), TriggerTasks)
    assert isinstance(again, TriggerTasks)
    assert again.trigger == wanted
    for number in (3, 4):
        driver.acknowledge(2, number)
    assert driver.coordinator.operation(wanted.trigger_id).state is OperationState.COMPLETED  # type: ignore[union-attr]


def test_a_task_without_queries_may_end_while_a_stop_waits_for_the_others() -> None:
    driver = Driver()
    driver.running = ready(1, 2)
    wanted, _ = driver.trigger(SnapshotType.SAVEPOINT_SUSPEND)
    ack = AcknowledgeCheckpoint(1, task(1).attempt_id, wanted, ())
    driver.carry_out(driver.coordinator.acknowledged(ack, at(driver.now))[1])
    driver.running = ready(2)
    driver.advance()
    driver.acknowledge(1, 2)
    assert driver.coordinator.operation(wanted.trigger_id).state is OperationState.COMPLETED  # type: ignore[union-attr]


def test_a_stop_that_a_lost_task_undoes_while_its_savepoint_is_written_is_told() -> None:
    driver = Driver(interval_s=10)
    driver.hold_stores = True
    wanted, _ = driver.trigger(SnapshotType.SAVEPOINT_SUSPEND)
    driver.acknowledge(1)
    driver.running = RunningTasks()
    driver.advance()
    driver.coordinator.stop_undone()
    driver.running = ready(2)
    driver.advance()
    driver.carry_out(driver.put(driver.held.pop()))
    status = driver.coordinator.operation(wanted.trigger_id)
    assert status is not None
    assert (status.state, status.path) == (OperationState.FAILED, "/c/chk-1")
    assert "the job continues" in status.error
    assert len(of_type(driver.advance(100), TriggerTasks)) == 1


def test_a_savepoint_of_a_former_job_master_does_not_stop_tasks_that_were_deployed_since() -> None:
    driver = Driver()
    cancel, stop = request(SnapshotType.SAVEPOINT_CANCEL), request(SnapshotType.SAVEPOINT_SUSPEND)
    driver.coordinator.stop_undone()
    for _ in range(2):
        status = driver.coordinator.already_there(stop, "/s")
        assert (status.state, status.path) == (OperationState.FAILED, "/s")
        assert "the job continues" in status.error
    assert driver.coordinator.already_there(cancel, "/s").state is OperationState.COMPLETED


def test_a_former_stop_that_is_asked_after_again_does_not_hide_the_one_in_progress() -> None:
    driver = Driver()
    driver.coordinator.stop_undone()
    former, present = request(SnapshotType.SAVEPOINT_TERMINATE), request(SnapshotType.SAVEPOINT_CANCEL)
    driver.coordinator.trigger(present, at(driver.now))
    assert driver.coordinator.already_there(former, "/s").state is OperationState.FAILED
    stop = driver.coordinator.stop_operation
    assert stop is not None
    assert (stop.trigger_id, stop.state) == (present.trigger_id, OperationState.IN_PROGRESS)
    status = driver.coordinator.trigger(request(SnapshotType.SAVEPOINT_TERMINATE), at(driver.now))
    assert "accepts no other request" in status.error


def test_a_task_that_runs_again_undoes_a_former_stop_beside_the_one_in_progress() -> None:
    driver = Driver()
    former, present = request(SnapshotType.SAVEPOINT_TERMINATE), request(SnapshotType.SAVEPOINT_SUSPEND)
    driver.coordinator.trigger(present, at(driver.now))
    assert driver.coordinator.already_there(former, "/s").state is OperationState.COMPLETED
    driver.coordinator.stop_undone()
    status = driver.coordinator.operation(former.trigger_id)
    assert status is not None
    assert (status.state, status.path) == (OperationState.FAILED, "/s")
    stop = driver.coordinator.stop_operation
    assert stop is not None
    assert stop.state is OperationState.IN_PROGRESS


def test_a_checkpoint_that_is_overtaken_is_aborted() -> None:
    driver = Driver(max_concurrent=2)
    driver.trigger()
    driver.trigger()
    driver.acknowledge(2)
    assert of_type(driver.done, NotifyAborted) == [NotifyAborted(1, driver.running.tasks)]
    assert driver.acknowledge(1) is CheckpointOutcome.ABORTED


class Checkpoints(RuleBasedStateMachine):
    """Any order of events: what is complete is never removed while it is retained, and every figure adds up."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver(retained=2, interval_s=5, timeout_s=20, max_concurrent=2, min_pause_s=0)
        self.requests: list[CheckpointTrigger] = []
        self.generation = 1

    @rule(seconds=st.floats(0, 12))
    def time_passes(self, seconds: float) -> None:
        self.driver.advance()
        deadline = self.driver.coordinator.next_deadline()
        steps = self.driver.advance(seconds)
        if deadline is None or self.driver.now < deadline:
            assert steps == [], "nobody would have called it by then"

    @rule(kind=st.sampled_from([SnapshotType.CHECKPOINT, SnapshotType.SAVEPOINT, SnapshotType.SAVEPOINT_SUSPEND]))
    def somebody_wishes(self, kind: SnapshotType) -> None:
        self.requests.append(self.driver.trigger(kind)[0])

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def somebody_asks_again(self, data: st.DataObject) -> None:
        before = self.driver.next_id
        wanted = data.draw(st.sampled_from(self.requests))
        known = self.driver.coordinator.operation(wanted.trigger_id)
        assert self.driver.coordinator.trigger(wanted, at(self.driver.now)) == known
        assert self.driver.next_id == before

    @precondition(lambda self: self.driver.next_id > 1)
    @rule(back=st.integers(1, 4), offset=st.integers(0, 1))
    def acknowledge(self, back: int, offset: int) -> None:
        number = max(self.driver.next_id - back, 1)
        before = self.driver.coordinator.outcome(number)
        outcome = self.driver.acknowledge(number, self.generation + offset)
        assert before is not CheckpointOutcome.COMPLETED or outcome is CheckpointOutcome.COMPLETED

    @precondition(lambda self: self.driver.next_id > 1)
    @rule(back=st.integers(1, 4), offset=st.integers(0, 1))
    def decline(self, back: int, offset: int) -> None:
        number = max(self.driver.next_id - back, 1)
        attempt = task(self.generation + offset).attempt_id
        steps = self.driver.coordinator.declined(DeclineCheckpoint(number, attempt, "no"), at(self.driver.now))
        assert of_type(self.driver.carry_out(steps), FailJob) == []

    @rule(tasks=st.integers(1, 2), is_restart=st.booleans(), are_ready=st.booleans())
    def tasks_change(self, tasks: int, is_restart: bool, are_ready: bool) -> None:
        self.generation += 10 * is_restart
        numbers = range(self.generation, self.generation + tasks)
        self.driver.running = RunningTasks(tuple(task(number) for number in numbers), are_ready, True)
        self.driver.advance()

    @rule(hold=st.booleans())
    def the_store_stands_still(self, hold: bool) -> None:
        self.driver.hold_stores = hold
        if not hold:
            held, self.driver.held = self.driver.held, []
            for step in held:
                self.driver.carry_out(self.driver.put(step))

    @invariant()
    def what_is_retained_has_its_files(self) -> None:
        removed = {step.checkpoint_id for step in self.driver.done if isinstance(step, DiscardSnapshots)}
        assert removed.isdisjoint(item.checkpoint_id for item in self.driver.store)
        assert removed.isdisjoint(step.metadata.checkpoint_id for step in self.driver.held)
        latest = self.driver.coordinator.latest
        assert (latest is None) == (not self.driver.store)
        assert latest is None or latest.checkpoint_id == self.driver.store[-1].checkpoint_id

    @invariant()
    def the_figures_add_up(self) -> None:
        figures = self.driver.coordinator.statistics(at(self.driver.now))
        counts = figures.counts
        assert counts.total == counts.in_progress + counts.completed + counts.failed
        assert counts.in_progress == len(self.driver.coordinator.pending)
        ended = [item for item in figures.history if item.status is not CheckpointStatsStatus.IN_PROGRESS]
        assert len(ended) <= HISTORY
        told = [step for step in self.driver.done if isinstance(step, NotifyComplete | NotifyAborted)]
        assert len(told) == counts.completed + counts.failed
        assert len({step.checkpoint_id for step in told}) == len(told), "nobody is told twice"

    @invariant()
    def no_more_than_allowed_are_under_way(self) -> None:
        checkpoints = [item for item in self.driver.coordinator.pending if not item.trigger.type.is_savepoint]
        assert len(checkpoints) <= 2
        stops = [item for item in self.driver.coordinator.pending if item.trigger.type.ends_the_job]
        assert len(stops) <= 1

    def teardown(self) -> None:
        self.the_store_stands_still(False)
        self.driver.carry_out(self.driver.coordinator.close("the job is over", at(self.driver.now)))
        states = [self.driver.coordinator.operation(wanted.trigger_id) for wanted in self.requests]
        assert all(status is None or status.state is not OperationState.IN_PROGRESS for status in states)
        assert self.driver.coordinator.pending == ()


Checkpoints.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestCheckpoints = Checkpoints.TestCase


def test_requests_that_wait_at_the_end_of_the_job_and_later_ones_fail() -> None:
    driver = Driver()
    waiting, _ = driver.trigger(SnapshotType.CHECKPOINT)
    driver.carry_out(driver.coordinator.close("the job is FINISHED", at(1)))
    late, _ = driver.trigger(SnapshotType.CHECKPOINT)
    for trigger in (waiting, late):
        status = driver.coordinator.operation(trigger.trigger_id)
        assert status is not None
        assert (status.state, status.error) == (OperationState.FAILED, "the job is FINISHED")


def test_a_stop_is_drained_when_all_of_its_tasks_are() -> None:
    driver = Driver()
    driver.running = ready(1, 2)
    stop, _ = driver.trigger(SnapshotType.SAVEPOINT_TERMINATE)
    for number, drained in ((1, False), (2, True)):
        queries = (snapshot(1, number),)
        ack = AcknowledgeCheckpoint(1, task(number).attempt_id, stop, queries, (f"of {number}",), 0, drained)
        _, steps = driver.coordinator.acknowledged(ack, at(1))
        driver.carry_out(steps)
    status = driver.coordinator.operation(stop.trigger_id)
    assert status is not None
    assert (status.state, status.drained, status.notes) == (OperationState.COMPLETED, False, ("of 1", "of 2"))


@pytest.mark.parametrize(
    ("status", "job", "told"),
    [
        (OperationStatus(TriggerID("a" * 32), OperationState.COMPLETED, path="/s"), JobStatus.FINISHED, ""),
        (OperationStatus(TriggerID("a" * 32), OperationState.COMPLETED, path="/s"), JobStatus.FAILED, "/s is complete"),
        (OperationStatus(TriggerID("a" * 32), OperationState.FAILED, error="query q has failed"), None, "query q has"),
        (
            OperationStatus(TriggerID("a" * 32), OperationState.COMPLETED, None, "/s", "", ("q had more",), False),
            JobStatus.FINISHED,
            "the job is not drained: q had more; its savepoint: /s",
        ),
    ],
)
def test_a_stop_has_succeeded_when_all_that_was_asked_for_is_done(
    status: OperationStatus, job: JobStatus | None, told: str
) -> None:
    failure = ClusterClient.stop_failure(status, job)
    assert told in failure
    assert bool(failure) is bool(told)

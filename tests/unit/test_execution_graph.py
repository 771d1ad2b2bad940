from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import msgpack
import pytest
from cattrs.preconf.msgpack import make_converter

from actors.rpc.codec import from_plain, to_plain
from runtime.ids import (
    AllocationID,
    ExecutionAttemptID,
    JobID,
    JobVertexID,
    ResourceID,
    RestartID,
    SlotID,
    SlotRequestID,
)
from runtime.jobgraph.codec import decode, encode
from runtime.jobgraph.job_graph import JobGraph
from runtime.jobmaster.execution import ExecutionGraphSnapshot
from runtime.jobmaster.execution_graph import (
    CancelSlotRequest,
    CancelTask,
    DeployTask,
    ExecutionGraph,
    Instruction,
    JobReachedTerminal,
    PendingRestarts,
    ReleasePartitions,
    ReleaseSlot,
    RequestSlot,
    ScheduleRestart,
)
from runtime.jobmaster.restart_strategy import RestartStrategy, RestartStrategyConfig
from runtime.jobmaster.slot_pool import AllocatedSlot
from runtime.protocol.archived_execution_graph import STANDS_BY, ArchivedExecutionGraph, JobDetails
from runtime.protocol.descriptor import (
    ExecutionReport,
    ResultPartitionInfo,
    TaskDeploymentDescriptor,
    TaskExecutionState,
    TaskProgress,
    VertexProgress,
)
from runtime.protocol.execution_state import (
    EXECUTION_TRANSITIONS,
    JOB_TRANSITIONS,
    ErrorInfo,
    ExecutionState,
    FailureKind,
    IllegalStateTransition,
    Instant,
    JobStatus,
    check_execution_transition,
    check_job_transition,
)
from runtime.protocol.slots import TaskManagerLocation
from runtime.protocol.streaming_query import QueryProgress, StreamingQuery
from tests.unit.test_jobgraph import make_graph, vid

NAMES = {vid(name): name for name in "abcd"}
T = TypeVar("T")
E = TypeVar("E")
S = ExecutionState
KILLED = ErrorInfo(FailureKind.TASK_PROCESS_LOST, "TaskProcessLostException", "SIGKILL")
GROWING = RestartStrategyConfig.exponential_delay(1.0, 60.0, 2.0, jitter_factor=0.0)
USER_ERROR = ErrorInfo(FailureKind.USER_CODE, "ZeroDivisionError", "division by zero", "Traceback ...")


def blocking_inputs(descriptor: TaskDeploymentDescriptor) -> dict[JobVertexID, str]:
    """Return the results of other tasks that a task reads, by vertex."""
    own = {vertex.id for vertex in descriptor.attempt.vertices}
    return {
        item.source: item.path
        for vertex in descriptor.attempt.vertices
        for item in vertex.inputs
        if item.path is not None and item.source not in own
    }


class Driver:
    """A JobMaster that obeys: keeps the instructions, and gives each event a later time."""

    def __init__(
        self,
        *links: str,
        restart: RestartStrategyConfig | None = None,
        graph: JobGraph | None = None,
        streaming: RestartStrategyConfig | None = None,
    ) -> None:
        self.seconds = 0
        self.job = graph or make_graph(*links)
        strategy = RestartStrategy(restart or RestartStrategyConfig.none())
        self.graph = ExecutionGraph(
            self.job,
            strategy,
            self.at(),
            results_dir="/results",
            streaming_strategy=None if streaming is None else RestartStrategy(streaming),
        )
        self.slots = 0
        self.deployed: dict[str, DeployTask] = {}
        self.requests: dict[str, SlotRequestID] = {}

    def at(self) -> Instant:
        self.seconds += 1
        return Instant(float(self.seconds), self.seconds * 1000)

    def note(self, instructions: list[Instruction]) -> list[Instruction]:
        for item in instructions:
            if isinstance(item, RequestSlot):
                self.requests[item.task_name] = item.request_id
            elif isinstance(item, DeployTask):
                self.deployed[item.descriptor.attempt.task_name] = item
        return instructions

    def start(self) -> list[Instruction]:
        return self.note(self.graph.start(self.at()))

    def slot(self, executor: str = "tm-1") -> AllocatedSlot:
        self.slots += 1
        return AllocatedSlot(AllocationID(f"{self.slots:032x}"), SlotID(ResourceID(executor), self.slots), "addr")

    def assign(self, task: str, executor: str = "tm-1") -> TaskDeploymentDescriptor:
        self.note(self.graph.slot_assigned(self.requests[task], self.slot(executor), self.at()))
        return self.deployed[task].descriptor

    def attempt(self, task: str) -> ExecutionAttemptID:
        return self.deployed[task].descriptor.attempt.attempt_id

    def report(self, task: str, *states: ExecutionState, error: ErrorInfo | None = None) -> list[Instruction]:
        instructions: list[Instruction] = []
        for state in states:
            report = TaskExecutionState(self.attempt(task), state, error, 0 if state.is_terminal else None)
            instructions += self.note(self.graph.task_state_reported(report, self.at()))
        return instructions

    def run(self, task: str, executor: str = "tm-1") -> None:
        self.assign(task, executor)
        self.report(task, S.INITIALIZING, S.RUNNING)

    def states(self) -> dict[str, str]:
        return {task.name: task.state.value for task in self.graph.archive().tasks}


def only(kind: type[T], instructions: list[Instruction]) -> T:
    (found,) = [item for item in instructions if isinstance(item, kind)]
    return found


def kinds(instructions: list[Instruction]) -> list[str]:
    return [type(item).__name__ for item in instructions]


def ended(status: JobStatus, error: ErrorInfo | None = None) -> JobReachedTerminal:
    return JobReachedTerminal(status, error)


# ---------------------------------------------------------------------- transitions


@pytest.mark.parametrize(
    ("table", "check", "terminal"),
    [
        (JOB_TRANSITIONS, check_job_transition, lambda state: state.is_terminal),
        (EXECUTION_TRANSITIONS, check_execution_transition, lambda state: state.is_terminal),
    ],
)
def test_transition_tables_are_complete_and_enforced(
    table: dict[Any, frozenset[Any]], check: Callable[[Any, Any], None], terminal: Callable[[Any], bool]
) -> None:
    states = list(type(next(iter(table))))
    assert set(table) == set(states)
    for current in states:
        assert terminal(current) == (not table[current])
        for target in states:
            if target in table[current]:
                check(current, target)
            else:
                with pytest.raises(IllegalStateTransition, match=f"from {current.value} to {target.value}"):
                    check(current, target)


# ------------------------------------------------------------------------- success


def test_a_job_of_one_task_runs_to_its_end() -> None:
    d = Driver(graph=make_graph("read-write", submitter="ada"))
    assert d.graph.status is JobStatus.CREATED
    assert kinds(d.start()) == ["RequestSlot"]
    assert d.start() == []
    descriptor = d.assign("read -> write")
    assert descriptor.attempt.attempt_number == 0
    assert d.report("read -> write", S.INITIALIZING, S.RUNNING) == []
    last = d.report("read -> write", S.FINISHED)
    assert last == [ReleaseSlot(d.requests["read -> write"]), ended(JobStatus.FINISHED)]
    archive = d.graph.archive()
    assert archive.timestamps == {"CREATED": 1000, "RUNNING": 2000, "FINISHED": 7000}
    assert (archive.start_ms, archive.end_ms, archive.restarts) == (1000, 7000, 0)
    assert (archive.submitter, archive.details().submitter) == ("ada", "ada")
    (task,) = archive.tasks
    assert task.attempts[0].timestamps == {
        "CREATED": 1000,
        "SCHEDULED": 2000,
        "DEPLOYING": 4000,
        "INITIALIZING": 5000,
        "RUNNING": 6000,
        "FINISHED": 7000,
    }
    assert (task.attempts[0].task_executor, task.attempts[0].exit_status, task.attempts[0].end_ms) == ("tm-1", 0, 7000)


def test_a_consumer_waits_for_all_blocking_results_and_reads_them_where_they_lie() -> None:
    d = Driver("a=c", "b=c", "c-d")
    d.start()
    assert set(d.requests) == {"a", "b"}
    waiting = {task.name: task.waiting_for for task in d.graph.archive().tasks}
    assert waiting == {"a": "a slot", "b": "a slot", "c -> d": "the result of 'a', the result of 'b'"}
    d.run("a")
    d.run("b")
    assert d.deployed["a"].descriptor.attempt.blocking_outputs == {vid("a"): f"/results/{vid('a')}/attempt-0"}
    assert kinds(d.report("a", S.FINISHED)) == ["ReleaseSlot"]
    released, wanted = d.report("b", S.FINISHED)
    assert isinstance(released, ReleaseSlot)
    assert wanted == RequestSlot(d.requests["c -> d"], "c -> d", (TaskManagerLocation(ResourceID("tm-1"), ""),))
    descriptor = d.assign("c -> d")
    assert blocking_inputs(descriptor) == {name: f"/results/{name}/attempt-0" for name in (vid("a"), vid("b"))}
    assert descriptor.attempt.blocking_outputs == {}
    assert [(item.name, [NAMES[i.source] for i in item.inputs]) for item in descriptor.attempt.vertices] == [
        ("c", ["a", "b"]),
        ("d", ["c"]),
    ]
    assert descriptor.attempt.vertices[1].inputs[0].path is None
    assert d.report("c -> d", S.RUNNING, S.FINISHED)[-1] == ended(JobStatus.FINISHED)


def test_a_blocking_edge_within_a_merged_task_is_written_and_read_in_it() -> None:
    d = Driver("a=b", "a-c", "c-b")
    d.start()
    descriptor = d.assign("a -> c -> b")
    path = f"/results/{vid('a')}/attempt-0"
    assert descriptor.attempt.blocking_outputs == {vid("a"): path}
    assert blocking_inputs(descriptor) == {}
    assert [(NAMES[item.source], item.path) for item in descriptor.attempt.vertices[2].inputs] == [
        ("a", path),
        ("c", None),
    ]


def test_a_report_may_overtake_others() -> None:
    d = Driver("a=b")
    d.start()
    d.assign("a")
    assert kinds(d.report("a", S.FINISHED)) == ["ReleaseSlot", "RequestSlot"]
    assert d.report("a", S.RUNNING, S.FAILED, S.FINISHED) == []
    d.assign("b")
    d.report("b", S.RUNNING, S.INITIALIZING, S.RUNNING)
    assert d.states() == {"a": "FINISHED", "b": "RUNNING"}


def test_progress_is_kept_for_the_present_attempt_and_its_own_vertices() -> None:
    d = Driver("a-b")
    d.start()
    d.run("a -> b")
    progress = VertexProgress(vid("a"), stages=2, stages_completed=1, tasks_total=8, tasks_completed=3, tasks_active=2)
    stranger = VertexProgress(vid("z"), stages=9)
    query = StreamingQuery("id", "run", "counts", 7)
    d.graph.progress_reported(TaskProgress(d.attempt("a -> b"), (progress, stranger), (query,)), d.at())
    late = TaskProgress(ExecutionAttemptID.random(), (VertexProgress(vid("a")),), (replace(query, id="other"),))
    d.graph.progress_reported(late, d.at())
    assert d.graph.archive().tasks[0].attempts[-1].queries == (query,)
    first, second = d.graph.archive().vertices
    assert (first.progress, second.progress) == (progress, VertexProgress(vid("b")))
    assert second.inputs == (vid("a"),)
    assert [history.id for history in d.graph.query_histories()] == ["id"]


def test_a_task_that_stands_by_says_what_it_waits_for() -> None:
    d = Driver("a-b")
    d.start()
    d.run("a -> b")
    standing = TaskProgress(d.attempt("a -> b"), (), stands_by=True)
    for progress, waits_for in ((standing, STANDS_BY), (replace(standing, stands_by=False), "")):
        d.graph.progress_reported(progress, d.at())
        assert d.graph.archive().tasks[0].waiting_for == waits_for
    d.graph.progress_reported(standing, d.at())
    d.report("a -> b", S.FINISHED)
    assert d.graph.archive().tasks[0].waiting_for == ""


def test_a_querys_history_outlives_the_attempts_that_made_it() -> None:
    d = Driver("a-b", restart=RestartStrategyConfig.fixed_delay(1, 0.0))
    d.start()
    figures = QueryProgress(0, "2026-11-24T00:00:00Z", 10, 1, 1.0, 1.0, 0, 0)
    for batch in range(2):
        d.run("a -> b")
        query = StreamingQuery("id", f"run-{batch}", "counts", batch, progress=replace(figures, batch=batch))
        d.graph.progress_reported(TaskProgress(d.attempt("a -> b"), (), (query,)), d.at())
        if batch == 0:
            restart = only(ScheduleRestart, d.report("a -> b", S.FAILED, error=USER_ERROR))
            d.note(d.graph.restart_due(restart.restart_id, d.at()))
    (history,) = d.graph.query_histories()
    assert (history.run_id, history.batches) == ("run-1", (0, 1))
    assert history.at_ms[1] > history.at_ms[0]
    assert d.graph.archive().query_histories == ()
    d.report("a -> b", S.FINISHED)
    assert d.graph.archive().query_histories == (history,)


# ------------------------------------------------------------------------- failure


def test_a_failure_without_restart_fails_the_job_with_its_cause() -> None:
    d = Driver("a=c", "b=c")
    d.start()
    d.run("a")
    d.run("b")
    instructions = d.report("a", S.FAILED, error=USER_ERROR)
    assert kinds(instructions) == ["ReleaseSlot", "CancelTask"]
    assert only(CancelTask, instructions) == CancelTask(d.attempt("b"), ResourceID("tm-1"))
    assert d.graph.status is JobStatus.FAILING
    assert d.states() == {"a": "FAILED", "b": "CANCELING", "c": "CANCELED"}
    terminal = only(JobReachedTerminal, d.report("b", S.CANCELED))
    assert terminal.status is JobStatus.FAILED
    assert terminal.error is not None
    assert (terminal.error.task, terminal.error.traceback) == ("a", "Traceback ...")
    assert terminal.error.timestamp_ms > 0
    archive = d.graph.archive()
    assert archive.failure == terminal.error
    assert archive.failure_history == (terminal.error,)
    assert archive.details().error == "ZeroDivisionError: division by zero"
    assert all(task.waiting_for == "" for task in archive.tasks)


def test_a_failed_task_is_restarted_after_the_delay_and_finished_results_are_kept() -> None:
    d = Driver("a=b", "b=c", restart=RestartStrategyConfig.fixed_delay(1, 2.5))
    d.start()
    d.run("a")
    d.report("a", S.FINISHED)
    d.run("b")
    first = d.attempt("b")
    restart = only(ScheduleRestart, d.report("b", S.FAILED, error=USER_ERROR))
    assert (restart.delay_s, restart.task_names) == (2.5, ("b", "c"))
    assert d.graph.status is JobStatus.RESTARTING
    assert {task.name: task.waiting_for for task in d.graph.archive().tasks}["b"] == "its restart"
    assert d.graph.restart_due(RestartID.random(), d.at()) == []
    assert kinds(d.note(d.graph.restart_due(restart.restart_id, d.at()))) == ["RequestSlot"]
    assert d.graph.restart_due(restart.restart_id, d.at()) == []
    assert d.graph.status is JobStatus.RUNNING
    descriptor = d.assign("b")
    assert descriptor.attempt.attempt_number == 1
    assert descriptor.attempt.attempt_id != first
    assert blocking_inputs(descriptor) == {vid("a"): f"/results/{vid('a')}/attempt-0"}
    assert descriptor.attempt.blocking_outputs == {vid("b"): f"/results/{vid('b')}/attempt-1"}
    stale = TaskExecutionState(first, S.FINISHED)
    assert d.graph.task_state_reported(stale, d.at()) == []
    d.report("b", S.RUNNING, S.FINISHED)
    assert blocking_inputs(d.assign("c")) == {vid("b"): f"/results/{vid('b')}/attempt-1"}
    assert d.report("c", S.FINISHED)[-1] == ended(JobStatus.FINISHED)
    archive = d.graph.archive()
    assert archive.restarts == 1
    assert [attempt.state.value for attempt in archive.tasks[1].attempts] == ["FAILED", "FINISHED"]
    assert [attempt.number for attempt in archive.tasks[2].attempts] == [0]


def test_an_independent_task_runs_on_during_a_restart() -> None:
    d = Driver("a=c", "b=c", restart=RestartStrategyConfig.fixed_delay(1))
    d.start()
    d.run("a")
    d.run("b")
    restart = only(ScheduleRestart, d.report("a", S.FAILED, error=USER_ERROR))
    assert kinds(d.report("b", S.FINISHED)) == ["ReleaseSlot"]
    assert d.graph.status is JobStatus.RESTARTING
    d.note(d.graph.restart_due(restart.restart_id, d.at()))
    d.run("a")
    assert kinds(d.report("a", S.FINISHED)) == ["ReleaseSlot", "RequestSlot"]


def test_the_restart_strategys_limit_fails_the_job() -> None:
    d = Driver("a-b", restart=RestartStrategyConfig.fixed_delay(1))
    d.start()
    d.run("a -> b")
    restart = only(ScheduleRestart, d.report("a -> b", S.FAILED, error=USER_ERROR))
    d.note(d.graph.restart_due(restart.restart_id, d.at()))
    d.run("a -> b")
    assert only(JobReachedTerminal, d.report("a -> b", S.FAILED, error=USER_ERROR)).status is JobStatus.FAILED
    assert len(d.graph.archive().failure_history) == 2


def test_a_lost_task_executor_is_one_failure_of_all_its_tasks() -> None:
    d = Driver("a=z", "b=z", "c=z", restart=RestartStrategyConfig.fixed_delay(1))
    d.start()
    d.run("a", "tm-1")
    d.assign("b", "tm-1")
    d.run("c", "tm-2")
    instructions = d.graph.task_executor_lost(ResourceID("tm-1"), "no heartbeat", d.at())
    assert kinds(instructions) == ["ReleaseSlot", "ReleaseSlot", "ScheduleRestart"]
    assert only(ScheduleRestart, instructions).task_names == ("a", "b", "z")
    assert d.states() == {"a": "FAILED", "b": "FAILED", "c": "RUNNING", "z": "CREATED"}
    (failure,) = d.graph.archive().failure_history
    assert failure.kind is FailureKind.TASK_EXECUTOR_LOST
    assert "tm-1 is lost: no heartbeat" in failure.message
    assert d.graph.task_executor_lost(ResourceID("tm-1"), "again", d.at()) == []


def test_kinds_of_failures_are_told_apart_and_counted_apart_also_by_a_successor() -> None:
    d = Driver("a-b", restart=RestartStrategyConfig.fixed_delay(9))
    d.start()
    d.run("a -> b")

    def again(instructions: list[Instruction]) -> None:
        d.note(d.graph.restart_due(only(ScheduleRestart, instructions).restart_id, d.at()))
        d.run("a -> b")

    killed = ErrorInfo(FailureKind.TASK_PROCESS_LOST, "TaskProcessLostException", "SIGKILL")
    driver_lost = ErrorInfo(FailureKind.SPARK_LOST, "SparkDriverLostException", "the Spark driver has ended")
    again(d.report("a -> b", S.FAILED, error=USER_ERROR))
    again(d.report("a -> b", S.FAILED, error=killed))
    again(d.report("a -> b", S.FAILED, error=killed))
    again(d.graph.task_executor_lost(ResourceID("tm-1"), "no heartbeat", d.at()))
    again(d.graph.task_executor_lost(ResourceID("tm-1"), "its Spark driver has ended", d.at(), driver_lost))
    expected = {"user-code": 1, "task-process-lost": 2, "spark-lost": 1, "task-executor-lost": 1}
    assert d.graph.archive().failure_counts == expected
    kinds_in_order = [failure.kind.value for failure in d.graph.archive().failure_history]
    assert kinds_in_order == ["user-code", *["task-process-lost"] * 2, "task-executor-lost", "spark-lost"]
    attempts = d.graph.archive().tasks[0].attempts
    assert [attempt.error.kind.value for attempt in attempts if attempt.error] == kinds_in_order
    successor = Driver(graph=d.job, restart=RestartStrategyConfig.fixed_delay(9))
    successor.graph.restore(decode(encode(d.graph.snapshot(d.at())), ExecutionGraphSnapshot), successor.at())
    assert successor.graph.archive().failure_counts == expected
    successor.graph.fail(killed, successor.at())
    assert successor.graph.archive().failure_counts == {**expected, "task-process-lost": 3}


def test_a_finished_result_survives_the_task_executor_that_made_it() -> None:
    d = Driver("a=b", restart=RestartStrategyConfig.fixed_delay(1))
    d.start()
    d.run("a")
    d.report("a", S.FINISHED)
    assert d.graph.task_executor_lost(ResourceID("tm-1"), "died", d.at()) == []
    assert d.states()["a"] == "FINISHED"


def test_a_lost_result_is_made_again_and_its_other_readers_start_over() -> None:
    d = Driver("a=b", "a=c", "c=e", restart=RestartStrategyConfig.fixed_delay(1))
    d.start()
    d.run("a")
    d.report("a", S.FINISHED)
    d.run("b")
    d.run("c")
    lost = ErrorInfo(FailureKind.RESULT_LOST, "PartitionNotFoundException", "gone", lost_result=vid("a"))
    instructions = d.report("b", S.FAILED, error=lost)
    assert sorted(only(ScheduleRestart, instructions).task_names) == ["a", "b", "c", "e"]
    restart = only(ScheduleRestart, instructions)
    assert only(CancelTask, instructions).attempt_id == d.attempt("c")
    assert d.graph.restart_due(restart.restart_id, d.at()) == [], "c still runs"
    assert kinds(d.report("c", S.FINISHED)) == ["ReleaseSlot", "RequestSlot"], "however it ended, it starts over"
    assert d.states() == {"a": "SCHEDULED", "b": "CREATED", "c": "CREATED", "e": "CREATED"}
    d.run("a")
    d.report("a", S.FINISHED)
    assert blocking_inputs(d.assign("b")) == {vid("a"): f"/results/{vid('a')}/attempt-1"}


def test_a_second_failure_takes_its_tasks_out_of_an_earlier_restart() -> None:
    d = Driver("a=c", "b=c", restart=RestartStrategyConfig.fixed_delay(5))
    d.start()
    d.run("a")
    d.run("b")
    first = only(ScheduleRestart, d.report("a", S.FAILED, error=USER_ERROR))
    second = only(ScheduleRestart, d.report("b", S.FAILED, error=USER_ERROR))
    assert kinds(d.graph.restart_due(first.restart_id, d.at())) == ["RequestSlot"]
    assert d.graph.status is JobStatus.RESTARTING
    assert kinds(d.graph.restart_due(second.restart_id, d.at())) == ["RequestSlot"]
    assert d.graph.status is JobStatus.RUNNING
    assert [len(task.attempts) for task in d.graph.archive().tasks] == [2, 2, 1]


def test_a_task_belongs_to_the_last_restart_that_it_was_put_into() -> None:
    restarts = PendingRestarts()
    first, second, third = (RestartID.random() for _ in range(3))
    restarts.add(first, {vid("a"), vid("c")})
    restarts.add(second, {vid("b"), vid("c")})
    restarts.mark_due(first)
    assert restarts.take_ready(lambda key: key != vid("c")) == [{vid("a")}]
    restarts.add(third, {vid("b"), vid("c"), vid("d")})
    restarts.mark_due(second)
    assert restarts.take_ready(lambda key: True) == []
    restarts.mark_due(third)
    assert restarts.take_ready(lambda key: key != vid("d")) == []
    assert restarts.take_ready(lambda key: True) == [{vid("b"), vid("c"), vid("d")}]
    assert not restarts


def test_no_slot_fails_the_job_without_a_restart() -> None:
    d = Driver("a-b", restart=RestartStrategyConfig.fixed_delay(5))
    d.start()
    d.graph.slot_waiting(d.requests["a -> b"], "waits for 1 slot; the cluster has 0")
    assert d.graph.archive().tasks[0].waiting_for == "waits for 1 slot; the cluster has 0"
    (terminal,) = d.graph.slot_unavailable(d.requests["a -> b"], "no slot within 10 s", d.at())
    assert isinstance(terminal, JobReachedTerminal)
    assert terminal.status is JobStatus.FAILED
    assert str(terminal.error) == "NoResourceAvailableException: no slot within 10 s"
    assert d.graph.slot_unavailable(d.requests["a -> b"], "again", d.at()) == []


def test_a_task_that_could_not_be_deployed_or_whose_slot_is_lost_has_failed() -> None:
    d = Driver("a-b", restart=RestartStrategyConfig.fixed_delay(2))
    d.start()
    d.assign("a -> b")
    refused = ErrorInfo(FailureKind.RUNTIME, "SlotNotAllocatedError", "not yours")
    restart = only(ScheduleRestart, d.graph.task_failed(d.attempt("a -> b"), refused, d.at()))
    d.note(d.graph.restart_due(restart.restart_id, d.at()))
    descriptor = d.assign("a -> b")
    assert d.graph.slot_lost(AllocationID.random(), "?", d.at()) == []
    assert only(ScheduleRestart, d.graph.slot_lost(descriptor.attempt.allocation_id, "freed", d.at()))


def test_a_cancellation_that_nobody_asked_for_is_a_failure() -> None:
    d = Driver("a-b")
    d.start()
    d.run("a -> b")
    assert only(JobReachedTerminal, d.report("a -> b", S.CANCELED)).status is JobStatus.FAILED


def test_failing_the_job_as_a_whole_restarts_nothing() -> None:
    d = Driver("a-b", restart=RestartStrategyConfig.fixed_delay(2))
    d.start()
    d.run("a -> b")
    broken = ErrorInfo(FailureKind.RUNTIME, "BlobNotFound", "artifact gone")
    assert kinds(d.graph.fail(broken, d.at())) == ["CancelTask"]
    assert d.graph.fail(USER_ERROR, d.at()) == []
    assert d.report("a -> b", S.FAILED, error=USER_ERROR)[-1] == ended(JobStatus.FAILED, broken)


def test_deployments_are_reconciled_with_what_a_task_executor_holds() -> None:
    d = Driver("a=c", "b=c", restart=RestartStrategyConfig.fixed_delay(2))
    d.start()
    d.run("a")
    d.assign("b")
    stranger = ExecutionAttemptID.random()
    tm, other = ResourceID("tm-1"), ResourceID("tm-2")
    seen = d.graph.attempts_seen_at(tm)
    assert seen == {d.attempt("a")}, "the deployment of b may be under way"
    assert d.graph.attempts_seen_at(other) == frozenset()
    assert d.graph.deployments_reported(tm, [d.attempt("a"), stranger], seen, d.at()) == [CancelTask(stranger, tm)]
    assert d.graph.deployments_reported(other, [], frozenset(), d.at()) == []
    assert d.graph.deployments_reported(tm, [], frozenset(), d.at()) == [], "it may have begun after the question"
    instructions = d.graph.deployments_reported(tm, [], seen, d.at())
    assert only(ScheduleRestart, instructions).task_names == ("a", "c")


def test_what_a_successor_has_not_adopted_has_failed_and_the_rest_runs_on() -> None:
    d = Driver("a=c", "b=c", restart=RestartStrategyConfig.fixed_delay(2))
    d.start()
    d.run("a")
    d.run("b")
    running = TaskExecutionState(d.attempt("a"), S.RUNNING)
    report = ExecutionReport(running, 1, JobVertexID.random(), AllocationID.random())
    tm = ResourceID("tm-1")
    both = [report, replace(report, state=replace(running, attempt_id=d.attempt("b")))]
    assert d.graph.executions_reported(tm, both, d.at(), has_adopted=True) == []
    assert d.graph.executions_reported(tm, [report], d.at()) == [], "the heartbeats settle that"
    instructions = d.graph.executions_reported(tm, [report], d.at(), has_adopted=True)
    assert only(ScheduleRestart, instructions).task_names == ("b", "c")
    (failure,) = d.graph.archive().failure_history
    assert failure.kind is FailureKind.TASK_EXECUTOR_LOST
    assert "its successor has not found the task" in failure.message
    assert d.states()["a"] == "RUNNING"


def test_the_next_job_master_looks_for_tasks_where_their_last_task_executor_is() -> None:
    d = Driver("a-b")
    d.start()
    d.run("a -> b", "tm-1")
    d.graph.address_changed(ResourceID("tm-2"), "elsewhere")
    d.graph.address_changed(ResourceID("tm-1"), "akka.tcp://x@127.0.0.1:9/user/tm-1")
    successor = Driver("a-b")
    ((_, slot),) = successor.graph.restore(d.graph.snapshot(d.at()), d.at())
    assert slot.address == "akka.tcp://x@127.0.0.1:9/user/tm-1"


# ------------------------------------------------------------------------- cancelling


def test_cancel_ends_when_every_task_has() -> None:
    d = Driver("a=d", "b=d", "c=d")
    d.start()
    d.run("a")
    d.assign("b")
    instructions = d.graph.cancel(d.at())
    assert sorted(kinds(instructions)) == ["CancelSlotRequest", "CancelTask", "CancelTask"]
    assert only(CancelSlotRequest, instructions).request_id == d.requests["c"]
    assert d.graph.status is JobStatus.CANCELLING
    assert d.states() == {"a": "CANCELING", "b": "CANCELING", "c": "CANCELED", "d": "CANCELED"}
    assert d.graph.cancel(d.at()) == []
    late = d.slot()
    assert d.graph.slot_assigned(d.requests["c"], late, d.at()) == [ReleaseSlot(d.requests["c"])]
    assert d.report("b", S.INITIALIZING, S.RUNNING) == []
    assert kinds(d.report("b", S.CANCELED)) == ["ReleaseSlot"]
    assert d.report("a", S.CANCELED)[-1] == ended(JobStatus.CANCELED)
    assert d.graph.cancel(d.at()) == []


@pytest.mark.parametrize("end", [S.FINISHED, S.FAILED, S.CANCELED])
def test_however_a_task_ends_while_cancelled_the_job_is_canceled(end: ExecutionState) -> None:
    d = Driver("a-b", restart=RestartStrategyConfig.fixed_delay(3))
    d.start()
    d.run("a -> b")
    d.graph.cancel(d.at())
    assert d.report("a -> b", end, error=USER_ERROR)[-1] == ended(JobStatus.CANCELED)
    assert d.states() == {"a -> b": "CANCELED"}
    assert d.graph.archive().failure is None


def test_cancel_before_the_start_and_while_waiting_for_a_slot() -> None:
    assert Driver("a-b").graph.cancel(Instant(1.0, 1)) == [ended(JobStatus.CANCELED)]
    d = Driver("a-b")
    d.start()
    assert kinds(d.graph.cancel(d.at())) == ["CancelSlotRequest", "JobReachedTerminal"]
    assert d.start() == []


def test_cancel_overrules_a_restart_and_a_failure_under_way() -> None:
    d = Driver("a=c", "b=c", restart=RestartStrategyConfig.fixed_delay(3))
    d.start()
    d.run("a")
    d.run("b")
    restart = only(ScheduleRestart, d.report("a", S.FAILED, error=USER_ERROR))
    d.graph.cancel(d.at())
    assert d.graph.restart_due(restart.restart_id, d.at()) == []
    assert d.graph.task_executor_lost(ResourceID("tm-1"), "died", d.at())[-1] == ended(JobStatus.CANCELED)

    d = Driver("a=c", "b=c")
    d.start()
    d.run("a")
    d.run("b")
    d.report("a", S.FAILED, error=USER_ERROR)
    assert d.graph.cancel(d.at()) == []
    assert d.graph.status is JobStatus.CANCELLING
    assert d.report("b", S.CANCELED)[-1] == ended(JobStatus.CANCELED)


def test_a_suspended_job_leaves_its_tasks_alone() -> None:
    d = Driver("a-b")
    d.start()
    d.run("a -> b")
    assert d.graph.suspend(d.at()) == [ended(JobStatus.SUSPENDED)]
    assert d.report("a -> b", S.FINISHED) == []
    assert d.graph.suspend(d.at()) == d.graph.cancel(d.at()) == []
    assert d.graph.deployments_reported(ResourceID("tm-1"), [ExecutionAttemptID.random()], frozenset(), d.at()) == []


# ------------------------------------------------------------------------- travelling


def travel_plain(value: Any, kind: type[E]) -> E:
    converter = make_converter()
    return converter.structure(msgpack.unpackb(msgpack.packb(converter.unstructure(value))), kind)


def travel_rpc(value: Any, kind: type[E]) -> E:
    result: E = from_plain(msgpack.unpackb(msgpack.packb(to_plain(value))), kind)
    return result


@pytest.mark.parametrize("travel", [travel_plain, travel_rpc])
def test_everything_that_travels_arrives_as_it_left(travel: Callable[[Any, type[Any]], Any]) -> None:
    d = Driver(graph=make_graph("a=b", parameters={"n": [1, 2.5, None]}), restart=RestartStrategyConfig.fixed_delay(1))
    d.start()
    d.run("a")
    d.graph.progress_reported(TaskProgress(d.attempt("a"), (VertexProgress(vid("a"), 1, 1, 4, 4),)), d.at())
    d.report("a", S.FINISHED)
    d.run("b")
    d.report("b", S.FAILED, error=USER_ERROR)
    archive = d.graph.archive()
    values = [
        d.job,
        d.deployed["b"].descriptor,
        TaskExecutionState(d.attempt("b"), S.FAILED, USER_ERROR, -9),
        TaskExecutionState(d.attempt("b"), S.RUNNING),
        TaskProgress(d.attempt("a"), (VertexProgress(vid("a"), 1, 1, 4, 4),)),
        archive,
        archive.details(),
    ]
    for value in values:
        assert travel(value, type(value)) == value
    assert {type(value) for value in values} >= {ArchivedExecutionGraph, JobDetails, JobGraph}
    assert travel_plain(d.job, JobGraph).job_id.__class__ is JobID


def test_an_exception_of_the_users_code_is_not_restarted_unless_asked_for() -> None:
    driver = Driver("a=b", restart=RestartStrategyConfig.fixed_delay(3), streaming=GROWING)
    driver.start()
    driver.assign("a")
    driver.report("a", S.RUNNING)
    driver.report("a", S.FAILED, error=USER_ERROR)
    assert driver.graph.status is JobStatus.FAILED


def test_a_lost_process_is_restarted_whatever_is_said_of_the_users_code() -> None:
    driver = Driver("a=b", restart=RestartStrategyConfig.fixed_delay(3), streaming=GROWING)
    driver.start()
    driver.assign("a")
    driver.report("a", S.RUNNING)
    driver.report("a", S.FAILED, error=ErrorInfo(FailureKind.TASK_PROCESS_LOST, "TaskProcessLostException", "SIGKILL"))
    assert driver.graph.status is JobStatus.RESTARTING


def streaming_job(batch: int | None, *, is_endless: bool) -> Driver:
    """A running job with a query that has reported a batch; it restarts once, or as often as a streaming job does."""
    d = Driver("a=b", restart=RestartStrategyConfig.fixed_delay(1), streaming=GROWING)
    d.start()
    d.run("a")
    query = StreamingQuery("id", "run", "counts", batch, is_endless=is_endless)
    d.graph.progress_reported(TaskProgress(d.attempt("a"), (), (query,)), d.at())
    return d


def lose(d: Driver) -> float:
    """Lose the process of the job's task, which starts again; return the delay."""
    restart = only(ScheduleRestart, d.report("a", S.FAILED, error=KILLED))
    d.note(d.graph.restart_due(restart.restart_id, d.at()))
    d.run("a")
    return restart.delay_s


def test_a_job_with_a_query_without_end_restarts_after_each_loss_also_under_a_successor() -> None:
    d = streaming_job(0, is_endless=True)
    assert [lose(d) for _ in range(4)] == [1.0, 2.0, 4.0, 8.0]
    saved = decode(encode(d.graph.snapshot(d.at())), ExecutionGraphSnapshot)
    successor = Driver(graph=d.job, restart=RestartStrategyConfig.fixed_delay(1), streaming=GROWING)
    successor.seconds = d.seconds
    successor.graph.restore(saved, successor.at())
    successor.deployed = d.deployed
    assert only(ScheduleRestart, successor.report("a", S.FAILED, error=KILLED)).delay_s == 16.0


@pytest.mark.parametrize(("batch", "is_endless"), [(None, True), (7, False)])
def test_a_job_whose_query_ends_or_has_committed_nothing_restarts_as_any_other(
    batch: int | None, is_endless: bool
) -> None:
    d = streaming_job(batch, is_endless=is_endless)
    lose(d)
    d.report("a", S.FAILED, error=KILLED)
    assert d.graph.status is JobStatus.FAILED


def test_a_failure_of_the_code_of_a_streaming_job_is_not_restarted_unless_asked_for() -> None:
    d = streaming_job(0, is_endless=True)
    d.report("a", S.FAILED, error=USER_ERROR)
    assert d.graph.status is JobStatus.FAILED


def released(instructions: list[Instruction]) -> tuple[str, ...]:
    return only(ReleasePartitions, instructions).paths


def lost(name: str) -> ErrorInfo:
    return ErrorInfo(FailureKind.RESULT_LOST, "PartitionNotFoundException", "gone", lost_result=vid(name))


def test_a_result_is_released_when_all_that_read_it_have_finished() -> None:
    d = Driver("a=b", "a=c", "b=d", "c=d")
    d.start()
    d.run("a")
    d.report("a", S.FINISHED)
    d.run("b")
    d.run("c")
    assert "ReleasePartitions" not in kinds(d.report("b", S.FINISHED))
    assert released(d.report("c", S.FINISHED)) == (f"/results/{vid('a')}/attempt-0",)


def test_a_lost_result_whose_own_inputs_are_released_is_made_again_from_where_there_is_something() -> None:
    d = Driver("a=b", "b=c", "c=d", restart=RestartStrategyConfig.fixed_delay(1))
    d.start()
    for task in "abc":
        d.run(task)
        d.report(task, S.FINISHED)
    d.run("d")
    instructions = d.report("d", S.FAILED, error=lost("c"))
    assert sorted(only(ScheduleRestart, instructions).task_names) == ["a", "b", "c", "d"]
    d.note(d.graph.restart_due(only(ScheduleRestart, instructions).restart_id, d.at()))
    for task in "abc":
        d.run(task)
        d.report(task, S.FINISHED)
    assert blocking_inputs(d.assign("d")) == {vid("c"): f"/results/{vid('c')}/attempt-1"}


def test_a_result_that_somebody_still_reads_is_not_made_again_for_another() -> None:
    d = Driver("a=b", "a=c", "b=d", restart=RestartStrategyConfig.fixed_delay(1))
    d.start()
    d.run("a")
    d.report("a", S.FINISHED)
    d.run("b")
    d.run("c")
    d.report("b", S.FINISHED)
    d.run("d")
    instructions = d.report("d", S.FAILED, error=lost("b"))
    assert sorted(only(ScheduleRestart, instructions).task_names) == ["b", "d"], "c still reads the result of a"


def with_retries(*links: str, **retries: int) -> JobGraph:
    graph = make_graph(*links)
    vertices = tuple(replace(vertex, retries=retries.get(vertex.name, 0)) for vertex in graph.vertices)
    return replace(graph, vertices=vertices)


def test_a_vertexs_own_retries_come_before_the_restart_strategy() -> None:
    d = Driver(graph=with_retries("a-b", "b=c", b=2), streaming=GROWING)
    d.start()
    for _ in range(2):
        d.run("a -> b")
        instructions = d.report("a -> b", S.FAILED, error=USER_ERROR)
        d.note(d.graph.restart_due(only(ScheduleRestart, instructions).restart_id, d.at()))
    d.run("a -> b")
    d.report("a -> b", S.FAILED, error=USER_ERROR)
    assert d.graph.status is JobStatus.FAILED
    assert d.graph.archive().restarts == 2


def test_retries_are_for_the_vertex_that_has_them_and_for_what_its_own_code_does() -> None:
    d = Driver(graph=with_retries("a=b", a=1))
    d.start()
    d.run("a")
    d.report("a", S.FINISHED)
    d.run("b")
    d.report("b", S.FAILED, error=USER_ERROR)
    assert d.graph.status is JobStatus.FAILED, "b has none"
    d = Driver(graph=with_retries("a=b", a=1))
    d.start()
    d.run("a")
    d.graph.task_executor_lost(ResourceID("tm-1"), "died", d.at())
    assert d.graph.status is JobStatus.FAILED, "a TaskExecutor's loss is the restart strategy's business"


def test_a_successor_knows_how_many_retries_are_used_up_and_what_was_announced() -> None:
    d = Driver(graph=with_retries("a=b", a=1))
    d.start()
    d.run("a")
    instructions = d.report("a", S.FAILED, error=USER_ERROR)
    d.note(d.graph.restart_due(only(ScheduleRestart, instructions).restart_id, d.at()))
    d.run("a")
    saved = decode(encode(d.graph.snapshot(d.at())), ExecutionGraphSnapshot)
    successor = Driver(graph=d.job)
    successor.graph.restore(saved, successor.at())
    attempt = d.attempt("a")
    partition = ResultPartitionInfo(vid("a"), f"/results/{vid('a')}/attempt-1", 2, 100)
    kept = decode(encode(TaskExecutionState(attempt, S.FINISHED, partitions=(partition,))), TaskExecutionState)
    d.graph.task_state_reported(kept, d.at())
    assert d.graph.archive().tasks[0].attempts[-1].partitions == (partition,)
    successor.graph.task_state_reported(TaskExecutionState(attempt, S.FAILED, USER_ERROR), successor.at())
    assert successor.graph.status is JobStatus.FAILED, "the one retry was used up before"


def test_a_successor_releases_what_its_predecessor_did_not_come_to() -> None:
    d = Driver("a=b", "b=c")
    d.start()
    for task in "ab":
        d.run(task)
        d.report(task, S.FINISHED)
    successor = Driver("a=b", "b=c")
    successor.graph.restore(decode(encode(d.graph.snapshot(d.at())), ExecutionGraphSnapshot), successor.at())
    assert released(successor.graph.resume(successor.at())) == (f"/results/{vid('a')}/attempt-0",)


def test_restarting_all_is_no_failure_and_leaves_what_has_finished() -> None:
    d = Driver("a=b", "b-c", restart=RestartStrategyConfig.fixed_delay(1, 30.0))
    d.start()
    d.run("a")
    d.report("a", S.FINISHED)
    d.run("b -> c")
    first = d.attempt("b -> c")
    instructions = d.graph.restart_all(d.at())
    assert only(CancelTask, instructions).attempt_id == first
    restart = only(ScheduleRestart, instructions)
    assert (restart.task_names, restart.delay_s) == (("b -> c",), 0.0)
    d.note(d.graph.restart_due(restart.restart_id, d.at()))
    d.note(d.graph.task_state_reported(TaskExecutionState(first, S.CANCELED), d.at()))
    assert d.assign("b -> c").attempt.attempt_number == 1
    archive = d.graph.archive()
    assert (archive.status, archive.failure_history, archive.restarts) == (JobStatus.RUNNING, (), 1)
    d.note(d.graph.cancel(d.at()))
    assert d.graph.restart_all(d.at()) == [], "a job that is being cancelled goes nowhere else"


def test_tasks_move_off_a_task_executor_without_a_failure_and_without_the_strategys_delay() -> None:
    d = Driver(graph=make_graph(names="ab"))
    d.start()
    d.run("a", "tm-1")
    d.run("b", "tm-2")
    first = d.attempt("a")
    instructions = d.graph.move_tasks(ResourceID("tm-1"), d.at())
    assert only(CancelTask, instructions).attempt_id == first
    restart = only(ScheduleRestart, instructions)
    assert (restart.task_names, restart.delay_s) == (("a",), 0.0)
    assert d.graph.move_tasks(ResourceID("tm-1"), d.at()) == [], "it is on its way"
    d.note(d.graph.restart_due(restart.restart_id, d.at()))
    d.note(d.graph.task_state_reported(TaskExecutionState(first, S.CANCELED), d.at()))
    assert d.assign("a", "tm-2").attempt.attempt_number == 1
    archive = d.graph.archive()
    assert (archive.status, archive.failure_history, archive.restarts) == (JobStatus.RUNNING, (), 1)
    assert d.graph.move_tasks(ResourceID("tm-1"), d.at()) == [], "nothing of it is there any more"
    d.note(d.graph.cancel(d.at()))
    assert d.graph.move_tasks(ResourceID("tm-2"), d.at()) == []


def test_a_task_that_fails_while_it_moves_uses_no_attempt_of_the_strategy() -> None:
    d = Driver(graph=make_graph(names="a"))
    d.start()
    d.run("a", "tm-1")
    restart = only(ScheduleRestart, d.graph.move_tasks(ResourceID("tm-1"), d.at()))
    d.note(d.graph.restart_due(restart.restart_id, d.at()))
    d.note(d.graph.task_executor_lost(ResourceID("tm-1"), "killed", d.at()))
    assert d.assign("a", "tm-2").attempt.attempt_number == 1
    assert d.graph.archive().failure_history == ()

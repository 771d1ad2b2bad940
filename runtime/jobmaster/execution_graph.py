"""The state of a job's execution: events in, instructions out (Flink's `ExecutionGraph` with its `DefaultScheduler`).

Pure, like Dask's worker state machine: every event method changes the state and returns instructions. Events that come
late, twice, or about old attempts are ignored.

A task is a chain of vertices (`runtime.jobgraph.topology.chains`) and a region of failover at once. It requests a slot
as soon as all tasks that it reads from have FINISHED. If it fails and the restart strategy allows, it is restarted with
those of its consumers that have not finished; finished results are kept. Otherwise the job is FAILING until nothing of
it runs.

The file first holds the instructions, then the graph (views, events, decisions). Then follow the regions that are
restarted together, the pending restarts, and the graph as plain data.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from runtime.checkpoint.coordinator import CheckpointTask, RunningTasks
from runtime.ids import AllocationID, ExecutionAttemptID, JobVertexID, ResourceID, RestartID, SlotRequestID
from runtime.job_logs import KeptLog
from runtime.jobgraph.job_graph import ExchangeMode, JobGraph
from runtime.jobgraph.topology import chains, topological_order
from runtime.jobmaster.execution import (
    Execution,
    ExecutionGraphSnapshot,
    Task,
    restore_attempt,
    restore_current_attempt,
    snapshot_tasks,
)
from runtime.jobmaster.query_history import QueryHistories
from runtime.jobmaster.restart_strategy import RestartStrategy
from runtime.jobmaster.slot_pool import AllocatedSlot
from runtime.protocol.archived_execution_graph import (
    STANDS_BY,
    ArchivedExecutionGraph,
    AttemptInfo,
    TaskInfo,
    VertexInfo,
)
from runtime.protocol.descriptor import (
    AttemptInformation,
    ExecutionReport,
    JobInformation,
    TaskDeploymentDescriptor,
    TaskExecutionState,
    TaskProgress,
    VertexProgress,
    describe_vertices,
    result_path,
)
from runtime.protocol.execution_state import (
    EXECUTION_TRANSITIONS,
    ErrorInfo,
    ExecutionState,
    FailureKind,
    Instant,
    JobStatus,
    check_job_transition,
)
from runtime.protocol.slots import TaskManagerLocation
from runtime.protocol.streaming_query import QueryHistory
from runtime.trace_context import JobTrace

FAILURE_HISTORY = 16
"""Number of failures that are kept (Flink's ``web.exception-history-size``)."""

ACTIVE = (JobStatus.RUNNING, JobStatus.RESTARTING, JobStatus.RECONCILING)
"""States of the job in which a failed task may be restarted."""

# ----------------------------------------------------------------------------------------- instructions: the JobMaster
# carries them out, and reports back through the graph's events.


@dataclass(frozen=True, slots=True)
class RequestSlot:
    """Get a slot from the SlotPool, near *preferred_locations* if one is free there.

    Answer with `slot_assigned` or `slot_unavailable`."""

    request_id: SlotRequestID
    task_name: str
    preferred_locations: tuple[TaskManagerLocation, ...] = ()


@dataclass(frozen=True, slots=True)
class CancelSlotRequest:
    """Give up the slot request, which is no longer needed: `SlotPool.cancel_request`."""

    request_id: SlotRequestID


@dataclass(frozen=True, slots=True)
class DeployTask:
    """Submit the task to the slot's TaskExecutor; answer with `task_failed` if it is rejected."""

    slot: AllocatedSlot
    descriptor: TaskDeploymentDescriptor


@dataclass(frozen=True, slots=True)
class CancelTask:
    """Cancel the attempt at its TaskExecutor, after any `DeployTask` of it has been delivered.

    If the TaskExecutor does not know the attempt, answer with a report of CANCELED.
    """

    attempt_id: ExecutionAttemptID
    resource_id: ResourceID


@dataclass(frozen=True, slots=True)
class ReleaseSlot:
    """Release the slot, because the task is over or does not need it any more: `SlotPool.release_slot`."""

    request_id: SlotRequestID


@dataclass(frozen=True, slots=True)
class ScheduleRestart:
    """Call `restart_due` after *delay_s* seconds."""

    restart_id: RestartID
    delay_s: float
    task_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReleasePartitions:
    """Remove materialised results that no task needs any more, once the ends of their readers are written."""

    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JobReachedTerminal:
    """Report the end of the job, once. Nothing of it runs, unless it is SUSPENDED."""

    status: JobStatus
    error: ErrorInfo | None


Instruction = (
    RequestSlot
    | CancelSlotRequest
    | DeployTask
    | CancelTask
    | ReleaseSlot
    | ScheduleRestart
    | ReleasePartitions
    | JobReachedTerminal
)


class ExecutionGraph:
    """A job that is being run: its tasks and their attempts, its state, its failures, and the next instructions.

    Args:
        graph: a valid job graph.
        restart_strategy: unused before, for this job only.
        at: now.
        results_dir: directory under which blocking results of this job are materialised.
        streaming_strategy: takes the place of the other one when a query without end has committed a batch. None: the
            user has chosen the other one, which then holds for exceptions of the job's own code too.
        new_attempt_id: returns new ids.
        new_request_id: returns new ids.
        new_restart_id: returns new ids.
        trace: of the job; None if it has none.
    """

    def __init__(
        self,
        graph: JobGraph,
        restart_strategy: RestartStrategy,
        at: Instant,
        *,
        results_dir: str,
        streaming_strategy: RestartStrategy | None = None,
        new_attempt_id: Callable[[], ExecutionAttemptID] = ExecutionAttemptID.random,
        new_request_id: Callable[[], SlotRequestID] = SlotRequestID.random,
        new_restart_id: Callable[[], RestartID] = RestartID.random,
        trace: JobTrace | None = None,
    ) -> None:
        self._graph = graph
        self._strategy = restart_strategy
        self._results_dir = results_dir
        self._job = JobInformation.of(graph)
        self._streaming_strategy = streaming_strategy
        self._is_streaming = False
        self._new_attempt_id = new_attempt_id
        self._new_request_id = new_request_id
        self._new_restart_id = new_restart_id
        self._trace = trace
        self._status = JobStatus.CREATED
        self._timestamps = {JobStatus.CREATED: at.epoch_ms}
        self._failure: ErrorInfo | None = None
        self._cancelled_because = ""
        self._failures: deque[ErrorInfo] = deque(maxlen=FAILURE_HISTORY)
        self._failure_counts: Counter[FailureKind] = Counter()
        self._num_restarts = 0
        self._restarts = PendingRestarts()
        self._query_histories = QueryHistories()
        self._tasks: dict[JobVertexID, Task] = {}
        for chain in chains(graph):
            self._tasks[chain.key] = Task(chain, Execution(new_attempt_id(), 0, at.epoch_ms))
        for task in self._tasks.values():
            task.consumers = tuple(key for key, other in self._tasks.items() if task.chain.key in other.chain.inputs)
        self._attempts = {task.current.attempt_id: task for task in self._tasks.values()}
        self._task_of = {vertex: task for task in self._tasks.values() for vertex in task.chain.vertices}

    # ------------------------------------------------------------------ views

    @property
    def status(self) -> JobStatus:
        """The job's state."""
        return self._status

    @property
    def failure(self) -> ErrorInfo | None:
        """The error that made the job fail."""
        return self._failure

    def archive(self) -> ArchivedExecutionGraph:
        """Return the present state of the job as plain data."""
        return ArchivedExecutionGraph(
            job_id=self._graph.job_id,
            name=self._graph.name,
            kind=self._graph.kind,
            status=self._status,
            timestamps={status.value: entered for status, entered in self._timestamps.items()},
            tasks=_describe_tasks(self._tasks, is_over=self._status.is_terminal),
            vertices=_describe_vertices(self._graph, self._tasks),
            failure=self._failure,
            failure_history=tuple(self._failures),
            failure_counts=self._counts(),
            restarts=self._num_restarts,
            restart_strategy=self._strategy.description,
            submitter=self._graph.submitter,
            cancelled_because=self._cancelled_because,
            # Clients that watch a running job request it several times a second, and do not need 10 kB for each query.
            query_histories=tuple(self.query_histories()) if self._status.is_globally_terminal else (),
            is_function=self._graph.is_function,
            owner=self._graph.owner,
            upgraded_from=self._graph.upgraded_from,
            trace_id="" if self._trace is None else self._trace.trace_id,
        )

    def query_histories(self) -> list[QueryHistory]:
        """Return the past figures of the job's streaming queries, as far as they were reported to this JobMaster."""
        return self._query_histories.all()

    def snapshot(self, at: Instant) -> ExecutionGraphSnapshot:
        """Return the state that the next JobMaster needs, as plain data."""
        return ExecutionGraphSnapshot(
            job_id=self._graph.job_id,
            status=self._status,
            timestamps={status.value: entered for status, entered in self._timestamps.items()},
            failure=self._failure,
            failures=tuple(self._failures),
            restarts=self._num_restarts,
            strategy=self._strategy.state(at.monotonic_s),
            taken_ms=at.epoch_ms,
            tasks=snapshot_tasks(self._tasks.values()),
            failure_counts=self._counts(),
            cancelled_because=self._cancelled_because,
            is_streaming=self._is_streaming,
        )

    def running_tasks(self) -> RunningTasks:
        """Return the tasks that run, for checkpoints."""
        active = [task for task in self._tasks.values() if task.is_active]
        running = [task for task in active if task.current.state is ExecutionState.RUNNING]
        is_whole = self._status is JobStatus.RUNNING and not any(task.restarting for task in self._tasks.values())
        return RunningTasks(
            tuple(
                CheckpointTask(
                    task.current.attempt_id, task.chain.key, task.chain.name, task.current.slot.slot_id.resource_id
                )
                for task in running
                if task.current.slot is not None
            ),
            are_ready=is_whole and bool(running) and len(running) == len(active),
            are_stateful=any(task.current.queries for task in running),
        )

    @property
    def is_reconciling(self) -> bool:
        """Return whether any attempt waits for the report of its TaskExecutor after a change of the JobMaster."""
        return any(task.current.state is ExecutionState.RECONCILING for task in self._tasks.values())

    def restore(self, saved: ExecutionGraphSnapshot, at: Instant) -> list[tuple[SlotRequestID, AllocatedSlot]]:
        """Take over from a former JobMaster; call this once, instead of `start`, and `resume` afterwards.

        Returns:
            the slots in use, as far as is known, for `SlotPool.adopt_slot`.
        """
        ended_or_ending = saved.status.is_globally_terminal or saved.status in (JobStatus.FAILING, JobStatus.CANCELLING)
        self._status = saved.status if ended_or_ending else JobStatus.RECONCILING
        self._timestamps = {JobStatus(status): entered for status, entered in saved.timestamps.items()}
        self._timestamps[self._status] = self._timestamps.get(self._status, at.epoch_ms)
        self._failure = saved.failure
        self._cancelled_because = saved.cancelled_because
        self._failures.extend(saved.failures)
        self._failure_counts = Counter({FailureKind(kind): count for kind, count in saved.failure_counts.items()})
        self._num_restarts = saved.restarts
        age_s = max(at.epoch_ms - saved.taken_ms, 0) / 1000
        ages = tuple(age + age_s for age in saved.strategy.ages_s)
        if saved.is_streaming:
            self._becomes_streaming(at)
        self._strategy.restore(replace(saved.strategy, ages_s=ages), at.monotonic_s)
        slots = []
        for item in saved.tasks:
            task = self._tasks[item.key]
            del self._attempts[task.current.attempt_id]
            *former, last = item.attempts
            task.attempts.clear()
            task.attempts.extend([restore_attempt(attempt) for attempt in former])
            task.attempts.append(restore_current_attempt(last, at.epoch_ms))
            task.restarting = item.restarting
            task.retried = item.retried
            execution = task.current
            self._attempts[execution.attempt_id] = task
            if execution.state.is_deployed and execution.slot is not None:
                execution.request_id = self._new_request_id()
                slots.append((execution.request_id, execution.slot))
        return slots

    def progress_reported(self, progress: TaskProgress, at: Instant) -> None:
        """Store Spark's counts of an attempt, and the state of its queries, as its TaskExecutor reports them."""
        task = self._current_task(progress.attempt_id)
        if task is not None:
            self._query_histories.add(task.chain.key, progress.queries, at.epoch_ms)
            own = set(task.chain.vertices)
            task.current.queries = progress.queries
            task.current.stands_by = progress.stands_by
            if any(query.is_endless and query.batch is not None for query in progress.queries):
                self._becomes_streaming(at)
            task.current.progress.update({item.vertex_id: item for item in progress.vertices if item.vertex_id in own})

    def _becomes_streaming(self, at: Instant) -> None:
        """Continue with the strategy of streaming jobs: in a life of months, no number of losses is too large."""
        if self._is_streaming:
            return
        self._is_streaming = True
        if self._streaming_strategy is not None:
            self._streaming_strategy.restore(self._strategy.state(at.monotonic_s), at.monotonic_s)
            self._strategy = self._streaming_strategy

    def attempts_without_logs(self) -> list[tuple[ExecutionAttemptID, ResourceID]]:
        """Return the ended attempts without kept logs, each with the TaskExecutor where it ran."""
        return [
            (execution.attempt_id, execution.slot.slot_id.resource_id)
            for task in self._tasks.values()
            for execution in task.attempts
            if execution.state.is_terminal and not execution.logs and execution.slot is not None
        ]

    def logs_kept(self, attempt_id: ExecutionAttemptID, logs: tuple[KeptLog, ...]) -> None:
        """Store the logs of one of `attempts_without_logs`, which were uploaded later."""
        for task in self._tasks.values():
            for execution in task.attempts:
                if execution.attempt_id == attempt_id:
                    execution.logs = logs

    # ------------------------------------------------------- events: the job's life

    def resume(self, at: Instant) -> list[Instruction]:
        """Resume after `restore`: restart the tasks that wait for it, deploy those that are missing, end the others."""
        if self._status.is_terminal:
            return [JobReachedTerminal(self._status, self._failure)]
        waiting = {key for key, task in self._tasks.items() if task.restarting}
        instructions = self._add_restart(waiting) if waiting else []
        instructions += self._release(self._tasks)  # the former JobMaster may not have done it
        return instructions + self._settle(at)

    def start(self, at: Instant) -> list[Instruction]:
        """Start the job. Ignored unless it is CREATED."""
        if self._status is not JobStatus.CREATED:
            return []
        self._transition(JobStatus.RUNNING, at)
        return self._schedule(at)

    def cancel(self, at: Instant, because: str = "") -> list[Instruction]:
        """Cancel the job: CANCELLING until nothing of it runs. Ignored if it is CANCELLING already, or over.

        Args:
            at: the time.
            because: why the cluster does so; empty if a user requests it.
        """
        if self._status.is_terminal or self._status is JobStatus.CANCELLING:
            return []
        self._transition(JobStatus.CANCELLING, at)
        self._failure = None
        self._cancelled_because = because
        return self._cancel_tasks(at) + self._settle(at)

    def fail(self, error: ErrorInfo, at: Instant) -> list[Instruction]:
        """Fail the job without a restart, for a cause outside its tasks that no restart fixes."""
        if self._status.is_terminal or self._status in (JobStatus.FAILING, JobStatus.CANCELLING):
            return []
        self._record_failure(error)
        return self._begin_to_fail(error, at) + self._settle(at)

    def restart_all(self, at: Instant) -> list[Instruction]:
        """Run all unfinished tasks again, without a failure and without a delay.

        Ignored in states in which no task may be restarted.
        """
        if self._status not in ACTIVE:
            return []
        unfinished = {key for key, task in self._tasks.items() if not task.is_finished}
        return self._restart(_region_to_restart(self._tasks, unfinished), at, delay_s=0.0) + self._settle(at)

    def move_tasks(self, resource_id: ResourceID, at: Instant) -> list[Instruction]:
        """Run the tasks of a TaskExecutor again elsewhere, without a failure and without a delay. Idempotent.

        Call `SlotPool.vacate` first, which keeps them from its slots. Ignored in states in which no task may be
        restarted: those tasks are ending.
        """
        there = {
            key
            for key, task in self._tasks.items()
            if task.current.state.is_deployed
            and task.current.state is not ExecutionState.CANCELING
            and task.current.slot is not None
            and task.current.slot.slot_id.resource_id == resource_id
        }
        if self._status not in ACTIVE or not there:
            return []
        return self._restart(_region_to_restart(self._tasks, there), at, delay_s=0.0) + self._settle(at)

    def suspend(self, at: Instant) -> list[Instruction]:
        """Suspend the job, for another JobMaster that takes its running tasks over."""
        if self._status.is_terminal:
            return []
        self._transition(JobStatus.SUSPENDED, at)
        return [JobReachedTerminal(JobStatus.SUSPENDED, None)]

    def restart_due(self, restart_id: RestartID, at: Instant) -> list[Instruction]:
        """End the delay of a `ScheduleRestart`."""
        self._restarts.mark_due(restart_id)
        return self._settle(at)

    # --------------------------------------------------------------- events: slots

    def slot_assigned(self, request_id: SlotRequestID, slot: AllocatedSlot, at: Instant) -> list[Instruction]:
        """Deploy the task that waits for this slot; release the slot at once if no task waits for it."""
        task = self._waiting_task(request_id)
        if task is None:
            return [ReleaseSlot(request_id)]
        execution = task.current
        execution.slot = slot
        execution.waiting_for = ""
        execution.transition(ExecutionState.DEPLOYING, at.epoch_ms)
        return [DeployTask(slot, self._descriptor(task, slot))]

    def slot_unavailable(self, request_id: SlotRequestID, reason: str, at: Instant) -> list[Instruction]:
        """End a request without a slot: the job fails, because a task has waited for as long as it may."""
        task = self._waiting_task(request_id)
        if task is None:
            return []
        task.current.request_id = None
        error = ErrorInfo(FailureKind.NO_RESOURCE, "NoResourceAvailableException", reason)
        return self._fail_tasks([task], error, at)

    def slot_waiting(self, request_id: SlotRequestID, reason: str) -> None:
        """Store what the request waits for, in words, for display."""
        task = self._waiting_task(request_id)
        if task is not None:
            task.current.waiting_for = reason

    def slot_lost(self, allocation_id: AllocationID, reason: str, at: Instant) -> list[Instruction]:
        """Fail the task in a slot that no longer exists."""
        error = ErrorInfo(FailureKind.TASK_EXECUTOR_LOST, "SlotLostException", reason)
        return self._lose(lambda slot: slot.allocation_id == allocation_id, error, at)

    def task_executor_lost(
        self, resource_id: ResourceID, reason: str, at: Instant, cause: ErrorInfo | None = None
    ) -> list[Instruction]:
        """Fail the tasks of a lost TaskExecutor; call `SlotPool.release_task_executor` first.

        *cause* is the cause that it reported itself: it ends with its tasks when its Spark driver is lost.
        """
        error = cause or ErrorInfo(
            FailureKind.TASK_EXECUTOR_LOST, "TaskExecutorLostException", f"TaskExecutor {resource_id} is lost: {reason}"
        )
        return self._lose(lambda slot: slot.slot_id.resource_id == resource_id, error, at)

    # --------------------------------------------------------------- events: tasks

    def task_state_reported(self, report: TaskExecutionState, at: Instant) -> list[Instruction]:
        """Process the state of an attempt, as its TaskExecutor reports it."""
        task = self._current_task(report.attempt_id)
        if task is None:
            return []
        execution, state = task.current, report.state
        execution.spark = report.spark or execution.spark
        if state.is_terminal:
            execution.exit_status = report.exit_status
            execution.logs = report.logs
            execution.partitions = report.partitions
        if execution.state is ExecutionState.CANCELING:
            # Any end during a cancellation counts as CANCELED (as in Flink).
            return self._end(task, ExecutionState.CANCELED, at) + self._settle(at) if state.is_terminal else []
        match state:
            case ExecutionState.FAILED:
                fallback = ErrorInfo(FailureKind.RUNTIME, "UnknownFailure", "the TaskExecutor named no cause")
                return self._fail_tasks([task], report.error or fallback, at)
            case ExecutionState.CANCELED:
                error = ErrorInfo(FailureKind.RUNTIME, "TaskCanceledException", "the task was cancelled by no request")
                return self._fail_tasks([task], report.error or error, at)
            case ExecutionState.FINISHED:
                return self._end(task, ExecutionState.FINISHED, at) + self._settle(at)
            case ExecutionState.INITIALIZING | ExecutionState.RUNNING:
                if state in EXECUTION_TRANSITIONS[execution.state]:
                    execution.transition(state, at.epoch_ms)
                    return self._settle(at) if self._status is JobStatus.RECONCILING else []
        return []

    def task_failed(self, attempt_id: ExecutionAttemptID, error: ErrorInfo, at: Instant) -> list[Instruction]:
        """Fail an attempt without a report of its TaskExecutor, e.g. because it could not be deployed."""
        return self.task_state_reported(TaskExecutionState(attempt_id, ExecutionState.FAILED, error), at)

    def has_ended(self, attempt_id: ExecutionAttemptID) -> bool:
        """Return whether an attempt, or the whole job, is over."""
        return self._current_task(attempt_id) is None

    def attempts_seen_at(self, resource_id: ResourceID) -> frozenset[ExecutionAttemptID]:
        """Return the attempts that a TaskExecutor has reported as started, and whose end no report has shown."""
        return frozenset(
            task.current.attempt_id
            for task in self._tasks.values()
            if task.current.was_seen_at(resource_id) and not task.current.is_expected_at(resource_id)
        )

    def deployments_reported(
        self,
        resource_id: ResourceID,
        attempt_ids: Iterable[ExecutionAttemptID],
        asked_for: frozenset[ExecutionAttemptID],
        at: Instant,
    ) -> list[Instruction]:
        """Compare with the attempts that a TaskExecutor holds, including those whose end it could not report yet.

        An attempt that should run there but is not held has failed. One that is held but should not be is cancelled
        (Flink's `ExecutionDeploymentReconciler`). Attempts whose deployment may be under way are left alone.

        Args:
            resource_id: the TaskExecutor.
            attempt_ids: the attempts that it held when it answered.
            asked_for: result of `attempts_seen_at` at the time of the request. The answer may lack attempts that have
                started since. It is older than their reports, but may arrive after them, by another connection.
            at: now.
        """
        held = set(attempt_ids)
        if self._status.is_terminal:
            return []
        gone = (asked_for & self.attempts_seen_at(resource_id)) - held
        missing = [task for task in self._tasks.values() if task.current.attempt_id in gone]
        unknown = [attempt_id for attempt_id in sorted(held) if self._current_task(attempt_id) is None]
        instructions: list[Instruction] = [CancelTask(attempt_id, resource_id) for attempt_id in unknown]
        instructions += self._without_the_awaited(resource_id, held, at)
        if missing:
            error = ErrorInfo(
                FailureKind.RUNTIME, "TaskVanishedException", f"TaskExecutor {resource_id} no longer knows the task"
            )
            instructions += self._fail_tasks(missing, error, at)
        return instructions

    def address_changed(self, resource_id: ResourceID, address: str) -> None:
        """Note the address of a TaskExecutor that has adopted the tasks of its predecessor."""
        for task in self._tasks.values():
            execution = task.current
            if execution.slot is not None and execution.slot.slot_id.resource_id == resource_id:
                execution.slot = replace(execution.slot, address=address)

    def executions_reported(
        self,
        resource_id: ResourceID,
        reports: Iterable[ExecutionReport],
        at: Instant,
        *,
        has_adopted: bool = False,
    ) -> list[Instruction]:
        """Compare with the attempts of a TaskExecutor that registers: adopt this job's, cancel the rest.

        A former JobMaster may have decided to deploy an attempt that the TaskExecutor does not know. It has never
        begun, so it is deployed again without a failure. (If the TaskExecutor's process was replaced, it is lost before
        it reports.) If it has adopted the tasks of a predecessor, those that it does not report have ended.
        """
        if self._status.is_terminal:
            return []
        held = {report.state.attempt_id: report for report in reports}
        instructions: list[Instruction] = []
        for attempt_id, report in held.items():
            task = self._current_task(attempt_id)
            is_over = report.state.state.is_terminal
            if not is_over and (task is None or task.current.state is ExecutionState.CANCELING):
                instructions.append(CancelTask(attempt_id, resource_id))
            elif task is not None:
                instructions += self.task_state_reported(report.state, Instant(at.monotonic_s, report.since_ms))
        if has_adopted:
            lost = [self._attempts[each] for each in sorted(self.attempts_seen_at(resource_id) - held.keys())]
            error = ErrorInfo(
                FailureKind.TASK_EXECUTOR_LOST,
                "TaskExecutorLostException",
                f"TaskExecutor {resource_id} was exchanged, and its successor has not found the task",
            )
            instructions += self._fail_tasks(lost, error, at) if lost else []
        return instructions + self._without_the_awaited(resource_id, held, at) + self._settle(at)

    def _without_the_awaited(
        self, resource_id: ResourceID, held: Container[ExecutionAttemptID], at: Instant
    ) -> list[Instruction]:
        """Deploy attempts again that a former JobMaster decided to deploy there and the TaskExecutor does not hold."""
        awaited = [
            task
            for task in self._tasks.values()
            if task.current.attempt_id not in held and task.current.is_expected_at(resource_id)
        ]
        instructions: list[Instruction] = []
        for task in awaited:
            instructions += self._end(task, ExecutionState.CANCELED, at)
            if self._status in ACTIVE and not task.restarting:
                self._new_attempt(task, at)
        return instructions + (self._settle(at) if awaited else [])

    # ------------------------------------------------------------------ scheduling

    def _schedule(self, at: Instant) -> list[Instruction]:
        instructions: list[Instruction] = []
        for task in self._tasks.values():
            execution = task.current
            ready = all(self._tasks[key].is_finished for key in task.chain.inputs)
            if ready and execution.state is ExecutionState.CREATED:
                execution.request_id = self._new_request_id()
                execution.transition(ExecutionState.SCHEDULED, at.epoch_ms)
                instructions.append(RequestSlot(execution.request_id, task.chain.name, self._locations_of_inputs(task)))
        return instructions

    def _locations_of_inputs(self, task: Task) -> tuple[TaskManagerLocation, ...]:
        """Return the locations of the results that the task reads, each once."""
        producers = (self._tasks[key].current.slot for key in task.chain.inputs)
        return tuple(dict.fromkeys(slot.location for slot in producers if slot is not None))

    def _descriptor(self, task: Task, slot: AllocatedSlot) -> TaskDeploymentDescriptor:
        results = {
            vertex: result_path(self._results_dir, vertex, self._tasks[key].current.number)
            for key in task.chain.inputs
            for vertex in self._tasks[key].chain.vertices
        }
        chain, attempt = task.chain, task.current
        vertices = describe_vertices(self._graph, chain, attempt.number, self._results_dir, results)
        return TaskDeploymentDescriptor(
            self._job,
            AttemptInformation(
                attempt.attempt_id,
                attempt.number,
                slot.allocation_id,
                chain.key,
                chain.name,
                vertices,
                chain.memory_bytes,
                traceparent="" if self._trace is None else self._trace.traceparent(attempt.attempt_id),
            ),
        )

    # --------------------------------------------------------------------- failing

    def _lose(self, is_lost: Callable[[AllocatedSlot], bool], error: ErrorInfo, at: Instant) -> list[Instruction]:
        if self._status.is_terminal:
            return []
        lost = [
            task
            for task in self._tasks.values()
            if task.current.state.is_deployed and task.current.slot is not None and is_lost(task.current.slot)
        ]
        return self._fail_tasks(lost, error, at) if lost else []

    def _fail_tasks(self, tasks: Sequence[Task], error: ErrorInfo, at: Instant) -> list[Instruction]:
        """End the attempts of *tasks* for the same cause, and restart them or fail the job."""
        instructions: list[Instruction] = []
        failed: list[Task] = []
        for task in tasks:
            if task.current.state is ExecutionState.CANCELING:
                instructions += self._end(task, ExecutionState.CANCELED, at)
                continue
            task.current.error = replace(error, task=task.chain.name, timestamp_ms=error.timestamp_ms or at.epoch_ms)
            instructions += self._end(task, ExecutionState.FAILED, at)
            failed.append(task)
        if failed and failed[0].current.error is not None:
            cause = failed[0].current.error
            self._record_failure(cause)
            if self._status in ACTIVE:
                if _use_retry(failed, cause) or self._strategy_allows_restart(cause, at):
                    instructions += self._schedule_restart(failed, cause, at)
                else:
                    instructions += self._begin_to_fail(cause, at)
        return instructions + self._settle(at)

    def _strategy_allows_restart(self, cause: ErrorInfo, at: Instant) -> bool:
        self._strategy.notify_failure(at.monotonic_s)
        # The same code on the same data fails again: it is only restarted if the user has chosen that.
        wanted = self._streaming_strategy is None or cause.kind is not FailureKind.USER_CODE
        return cause.kind.is_recoverable and wanted and self._strategy.can_restart(at.monotonic_s)

    def _begin_to_fail(self, error: ErrorInfo, at: Instant) -> list[Instruction]:
        self._transition(JobStatus.FAILING, at)
        self._failure = error
        return self._cancel_tasks(at)

    def _schedule_restart(self, failed: Sequence[Task], cause: ErrorInfo, at: Instant) -> list[Instruction]:
        keys = {task.chain.key for task in failed}
        if cause.lost_result in self._task_of:
            keys.add(self._task_of[cause.lost_result].chain.key)
        return self._restart(_region_to_restart(self._tasks, keys), at)

    def _restart(self, region: set[JobVertexID], at: Instant, delay_s: float | None = None) -> list[Instruction]:
        instructions: list[Instruction] = []
        for key in region:
            task = self._tasks[key]
            task.restarting = True
            if task.current.state is not ExecutionState.CREATED:
                instructions += self._cancel_task(task, at)
        instructions += self._add_restart(region, delay_s)
        self._transition(self._active_status(), at)
        return instructions

    def _add_restart(self, region: set[JobVertexID], delay_s: float | None = None) -> list[Instruction]:
        restart_id = self._new_restart_id()
        self._restarts.add(restart_id, region)
        names = tuple(task.chain.name for key, task in self._tasks.items() if key in region)
        return [ScheduleRestart(restart_id, self._strategy.delay if delay_s is None else delay_s, names)]

    def _restart_what_is_due(self, at: Instant) -> None:
        for region in self._restarts.take_ready(lambda key: not self._tasks[key].is_active):
            self._num_restarts += 1
            for key in region:
                task = self._tasks[key]
                task.restarting = False
                if task.current.state is not ExecutionState.CREATED:
                    self._new_attempt(task, at)
        self._transition(self._active_status(), at)

    # --------------------------------------------------------------------- ending

    def _settle(self, at: Instant) -> list[Instruction]:
        """Restart, schedule, or end the job, after the end of any task."""
        match self._status:
            case JobStatus.RUNNING | JobStatus.RESTARTING | JobStatus.RECONCILING:
                self._restart_what_is_due(at)
                if all(task.is_finished for task in self._tasks.values()):
                    return self._terminate(JobStatus.FINISHED, at)
                return self._schedule(at)
            case JobStatus.FAILING if not any(task.is_active for task in self._tasks.values()):
                return self._terminate(JobStatus.FAILED, at)
            case JobStatus.CANCELLING if not any(task.is_active for task in self._tasks.values()):
                return self._terminate(JobStatus.CANCELED, at)
        return []

    def _terminate(self, status: JobStatus, at: Instant) -> list[Instruction]:
        self._transition(status, at)
        return [JobReachedTerminal(status, self._failure)]

    def _cancel_tasks(self, at: Instant) -> list[Instruction]:
        self._restarts.clear()
        instructions: list[Instruction] = []
        for task in self._tasks.values():
            task.restarting = False
            instructions += self._cancel_task(task, at)
        return instructions

    def _cancel_task(self, task: Task, at: Instant) -> list[Instruction]:
        execution = task.current
        if execution.state in (ExecutionState.CREATED, ExecutionState.SCHEDULED):
            return self._end(task, ExecutionState.CANCELED, at)
        if execution.state is ExecutionState.CANCELING or not execution.state.is_deployed or execution.slot is None:
            return []
        execution.transition(ExecutionState.CANCELING, at.epoch_ms)
        return [CancelTask(execution.attempt_id, execution.slot.slot_id.resource_id)]

    def _end(self, task: Task, state: ExecutionState, at: Instant) -> list[Instruction]:
        """End the present attempt, and release its slot or cancel its request for one."""
        execution = task.current
        execution.transition(state, at.epoch_ms)
        instructions = self._release(task.chain.inputs) if task.is_finished else []
        if execution.request_id is None:
            return instructions
        release = CancelSlotRequest if execution.slot is None else ReleaseSlot
        return [*instructions, release(execution.request_id)]

    def _release(self, keys: Iterable[JobVertexID]) -> list[Instruction]:
        """Release those of these tasks' results that no task needs any more."""
        released = [self._tasks[key] for key in keys if _is_released(self._tasks, key)]
        paths = [
            result_path(self._results_dir, edge.source, task.current.number)
            for task in released
            for edge in self._graph.edges
            if edge.exchange is ExchangeMode.BLOCKING and edge.source in task.chain.vertices
        ]
        return [ReleasePartitions(tuple(dict.fromkeys(paths)))] if paths else []

    # -------------------------------------------------------------------- helpers

    def _active_status(self) -> JobStatus:
        if self.is_reconciling:
            return JobStatus.RECONCILING
        return JobStatus.RESTARTING if self._restarts else JobStatus.RUNNING

    def _new_attempt(self, task: Task, at: Instant) -> None:
        del self._attempts[task.current.attempt_id]
        task.attempts.append(Execution(self._new_attempt_id(), task.current.number + 1, at.epoch_ms))
        self._attempts[task.current.attempt_id] = task

    def _transition(self, status: JobStatus, at: Instant) -> None:
        if status is not self._status:
            check_job_transition(self._status, status)
            self._status = status
            self._timestamps[status] = at.epoch_ms

    def _record_failure(self, error: ErrorInfo) -> None:
        """Count a failure by its kind and keep it; several attempts with the same cause are one failure."""
        self._failure_counts[error.kind] += 1
        self._failures.append(error)

    def _counts(self) -> dict[str, int]:
        return {kind.value: self._failure_counts[kind] for kind in FailureKind if self._failure_counts[kind]}

    def _current_task(self, attempt_id: ExecutionAttemptID) -> Task | None:
        """Return the task whose present attempt this is; None if the attempt or the job is over."""
        task = None if self._status.is_terminal else self._attempts.get(attempt_id)
        return None if task is None or task.current.state.is_terminal else task

    def _waiting_task(self, request_id: SlotRequestID) -> Task | None:
        if self._status.is_terminal:
            return None
        for task in self._tasks.values():
            if task.current.request_id == request_id and task.current.state is ExecutionState.SCHEDULED:
                return task
        return None


def _region_to_restart(tasks: Mapping[JobVertexID, Task], failed: Iterable[JobVertexID]) -> set[JobVertexID]:
    """Return the failed tasks and, transitively, unfinished consumers and the producers of released results."""
    region: set[JobVertexID] = set()
    todo = list(failed)
    while todo:
        key = todo.pop()
        if key not in region:
            region.add(key)
            todo += [consumer for consumer in tasks[key].consumers if not tasks[consumer].is_finished]
            todo += [producer for producer in tasks[key].chain.inputs if _is_released(tasks, producer)]
    return region


def _is_released(tasks: Mapping[JobVertexID, Task], key: JobVertexID) -> bool:
    """Return whether no task needs a task's results any more: it and all that read them have FINISHED.

    (Flink's `RegionPartitionGroupReleaseStrategy`.) This follows from the tasks' states alone, so the next JobMaster
    knows it too: before such a consumer runs again, its producer does.
    """
    consumers = tasks[key].consumers
    return tasks[key].is_finished and bool(consumers) and all(tasks[item].is_finished for item in consumers)


def _use_retry(failed: Sequence[Task], cause: ErrorInfo) -> bool:
    """Use up one of the vertices' own retries if they cover a failure; return whether they do."""
    own = cause.kind in (FailureKind.USER_CODE, FailureKind.TASK_PROCESS_LOST)
    if not own or any(task.retried >= task.chain.retries for task in failed):
        return False
    for task in failed:
        task.retried += 1
    return True


class PendingRestarts:
    """Scheduled restarts, each of a set of tasks; a task belongs to the last restart that includes it."""

    def __init__(self) -> None:
        self._regions: dict[RestartID, set[JobVertexID]] = {}
        self._due: set[RestartID] = set()

    def __bool__(self) -> bool:
        return bool(self._regions)

    def add(self, restart_id: RestartID, region: set[JobVertexID]) -> None:
        """Schedule a restart; its tasks no longer wait for an earlier one."""
        for earlier in list(self._regions):
            self._regions[earlier] -= region
            if not self._regions[earlier]:
                del self._regions[earlier]
        self._regions[restart_id] = set(region)
        self._due &= self._regions.keys()

    def mark_due(self, restart_id: RestartID) -> None:
        """End the delay of a restart; ignored if the restart is not scheduled (any more)."""
        if restart_id in self._regions:
            self._due.add(restart_id)

    def take_ready(self, is_ended: Callable[[JobVertexID], bool]) -> list[set[JobVertexID]]:
        """Remove and return the restarts that are due and whose tasks have all ended."""
        ready = [item for item in self._regions if item in self._due and all(map(is_ended, self._regions[item]))]
        self._due.difference_update(ready)
        return [self._regions.pop(restart_id) for restart_id in ready]

    def clear(self) -> None:
        """Remove all restarts."""
        self._regions.clear()
        self._due.clear()


def _describe_attempt(execution: Execution) -> AttemptInfo:
    return AttemptInfo(
        execution.attempt_id,
        execution.number,
        execution.state,
        "" if execution.slot is None else execution.slot.slot_id.resource_id,
        {state.value: entered for state, entered in execution.timestamps.items()},
        execution.error,
        execution.exit_status,
        execution.logs,
        execution.partitions,
        execution.queries,
        execution.spark,
    )


def _describe_tasks(tasks: Mapping[JobVertexID, Task], *, is_over: bool) -> tuple[TaskInfo, ...]:
    """Return the tasks as plain data; no task of a job that is over waits."""
    return tuple(
        TaskInfo(
            key,
            task.chain.name,
            task.chain.vertices,
            tuple(_describe_attempt(execution) for execution in task.attempts),
            "" if is_over else _waiting_for(task, tasks),
        )
        for key, task in tasks.items()
    )


def _describe_vertices(graph: JobGraph, tasks: Mapping[JobVertexID, Task]) -> tuple[VertexInfo, ...]:
    """Return the vertices as plain data, in topological order."""
    task_of = {vertex_id: task for task in tasks.values() for vertex_id in task.chain.vertices}
    return tuple(
        VertexInfo(
            vertex.id,
            vertex.name,
            vertex.role,
            task_of[vertex.id].chain.key,
            task_of[vertex.id].current.state,
            tuple(edge.source for edge in graph.inputs_of(vertex.id)),
            task_of[vertex.id].current.progress.get(vertex.id, VertexProgress(vertex.id)),
        )
        for vertex in topological_order(graph)
    )


def _waiting_for(task: Task, tasks: Mapping[JobVertexID, Task]) -> str:
    if task.restarting:
        return "its restart"
    if task.current.state is ExecutionState.SCHEDULED:
        return task.current.waiting_for or "a slot"
    if task.current.state is ExecutionState.CREATED:
        unfinished = [tasks[key].chain.name for key in task.chain.inputs if not tasks[key].is_finished]
        return ", ".join(f"the result of {name!r}" for name in unfinished)
    return STANDS_BY if task.current.stands_by and task.current.state is ExecutionState.RUNNING else ""

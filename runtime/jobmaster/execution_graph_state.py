"""What an `ExecutionGraph` knows: its tasks and their attempts, the job's state, what failed; kept, shown and restored.

Pure; decides nothing.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace

from runtime.checkpoint.coordinator import CheckpointTask, RunningTasks
from runtime.ids import ExecutionAttemptID, JobVertexID, ResourceID, RestartID, SlotRequestID
from runtime.job_logs import KeptLog
from runtime.jobgraph.job_graph import JobGraph
from runtime.jobgraph.topology import chains
from runtime.jobmaster.archived_execution_graph import ArchivedExecutionGraph, describe_tasks, describe_vertices
from runtime.jobmaster.descriptor import TaskProgress
from runtime.jobmaster.execution import Execution, Task
from runtime.jobmaster.execution_state import (
    ErrorInfo,
    ExecutionState,
    FailureKind,
    Instant,
    JobStatus,
    check_job_transition,
)
from runtime.jobmaster.failover import PendingRestarts
from runtime.jobmaster.restart_strategy import RestartStrategy
from runtime.jobmaster.slot_pool import AllocatedSlot
from runtime.jobmaster.snapshot import ExecutionGraphSnapshot, restore_attempt, restore_current_attempt, snapshot_tasks

FAILURE_HISTORY = 16
"""How many failures are kept (Flink's ``web.exception-history-size``)."""


class ExecutionGraphState:
    """A job being run: its data. The base of `ExecutionGraph`.

    Args:
        graph: a valid job graph.
        restart_strategy: fresh, for this job alone.
        at: now.
        results_dir: directory under which blocking results of this job are materialised.
        jobmaster_address: where tasks report to.
        restart_user_failures: whether an exception of the job's own code is restarted like a loss of its process.
        new_attempt_id: source of fresh ids.
        new_request_id: source of fresh ids.
        new_restart_id: source of fresh ids.
    """

    def __init__(
        self,
        graph: JobGraph,
        restart_strategy: RestartStrategy,
        at: Instant,
        *,
        results_dir: str,
        jobmaster_address: str,
        restart_user_failures: bool = True,
        new_attempt_id: Callable[[], ExecutionAttemptID] = ExecutionAttemptID.random,
        new_request_id: Callable[[], SlotRequestID] = SlotRequestID.random,
        new_restart_id: Callable[[], RestartID] = RestartID.random,
    ) -> None:
        self._graph = graph
        self._strategy = restart_strategy
        self._results_dir = results_dir
        self._jobmaster_address = jobmaster_address
        self._restart_user_failures = restart_user_failures
        self._new_attempt_id = new_attempt_id
        self._new_request_id = new_request_id
        self._new_restart_id = new_restart_id
        self._status = JobStatus.CREATED
        self._timestamps = {JobStatus.CREATED: at.epoch_ms}
        self._failure: ErrorInfo | None = None
        self._failures: deque[ErrorInfo] = deque(maxlen=FAILURE_HISTORY)
        self._failure_counts: Counter[FailureKind] = Counter()
        self._num_restarts = 0
        self._restarts = PendingRestarts()
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
        """What made the job fail."""
        return self._failure

    def archive(self) -> ArchivedExecutionGraph:
        """The job as it stands, as plain data."""
        return ArchivedExecutionGraph(
            job_id=self._graph.job_id,
            name=self._graph.name,
            kind=self._graph.kind,
            status=self._status,
            timestamps={status.value: entered for status, entered in self._timestamps.items()},
            tasks=describe_tasks(self._tasks, is_over=self._status.is_terminal),
            vertices=describe_vertices(self._graph, self._tasks),
            failure=self._failure,
            failure_history=tuple(self._failures),
            failure_counts=self._counts(),
            restarts=self._num_restarts,
            restart_strategy=self._strategy.description,
        )

    def snapshot(self, at: Instant) -> ExecutionGraphSnapshot:
        """What a successor has to know, as plain data."""
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
        )

    def running_tasks(self) -> RunningTasks:
        """The tasks as far as checkpoints are concerned."""
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
        """Whether the fate of some attempt is not known."""
        return any(task.current.state is ExecutionState.RECONCILING for task in self._tasks.values())

    def restore(self, saved: ExecutionGraphSnapshot, at: Instant) -> list[tuple[SlotRequestID, AllocatedSlot]]:
        """Take over from a former JobMaster; to be called once, instead of `start`, and followed by `resume`.

        Returns:
            the slots that are in use as far as is known: for `SlotPool.adopt_slot`.
        """
        ended_or_ending = saved.status.is_globally_terminal or saved.status in (JobStatus.FAILING, JobStatus.CANCELLING)
        self._status = saved.status if ended_or_ending else JobStatus.RECONCILING
        self._timestamps = {JobStatus(status): entered for status, entered in saved.timestamps.items()}
        self._timestamps[self._status] = self._timestamps.get(self._status, at.epoch_ms)
        self._failure = saved.failure
        self._failures.extend(saved.failures)
        self._failure_counts = Counter({FailureKind(kind): count for kind, count in saved.failure_counts.items()})
        self._num_restarts = saved.restarts
        age_s = max(at.epoch_ms - saved.taken_ms, 0) / 1000
        ages = tuple(age + age_s for age in saved.strategy.ages_s)
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

    def progress_reported(self, progress: TaskProgress) -> None:
        """A TaskExecutor reports Spark's counts of an attempt."""
        task = self._current_task(progress.attempt_id)
        if task is not None:
            own = set(task.chain.vertices)
            task.current.queries = progress.queries
            task.current.progress.update({item.vertex_id: item for item in progress.vertices if item.vertex_id in own})

    def attempts_without_logs(self) -> list[tuple[ExecutionAttemptID, ResourceID]]:
        """Ended attempts whose logs lie at most where they ran, and where that was: those that were lost."""
        return [
            (execution.attempt_id, execution.slot.slot_id.resource_id)
            for task in self._tasks.values()
            for execution in task.attempts
            if execution.state.is_terminal and not execution.logs and execution.slot is not None
        ]

    def logs_kept(self, attempt_id: ExecutionAttemptID, logs: tuple[KeptLog, ...]) -> None:
        """The logs of one of `attempts_without_logs` have been put after all."""
        for task in self._tasks.values():
            for execution in task.attempts:
                if execution.attempt_id == attempt_id:
                    execution.logs = logs

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
        """Count a failure by its kind and keep it; what fails for one cause is one failure."""
        self._failure_counts[error.kind] += 1
        self._failures.append(error)

    def _counts(self) -> dict[str, int]:
        return {kind.value: self._failure_counts[kind] for kind in FailureKind if self._failure_counts[kind]}

    def _current_task(self, attempt_id: ExecutionAttemptID) -> Task | None:
        """The task of which this is the present attempt, if neither it nor the job is over."""
        task = None if self._status.is_terminal else self._attempts.get(attempt_id)
        return None if task is None or task.current.state.is_terminal else task

    def _waiting_task(self, request_id: SlotRequestID) -> Task | None:
        if self._status.is_terminal:
            return None
        for task in self._tasks.values():
            if task.current.request_id == request_id and task.current.state is ExecutionState.SCHEDULED:
                return task
        return None

"""Attempts of tasks (Flink's `Execution`), tasks with all their attempts (`ExecutionVertex`), and snapshots of both.

Pure. A JobMaster writes the snapshot for the next one. Flink's JobMaster restarts a job from its last checkpoint; here
the next JobMaster finds the tasks running. For that the journal must be ahead of the world:

- An attempt is written before it is deployed.
- An end is written before its report is acknowledged.
- A cancellation is written before it is promised.

Facts that only the TaskExecutors know (that an attempt is RUNNING) are not written: TaskExecutors report them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import InitVar, dataclass, field

from runtime.feature_level import Format, oldest_version
from runtime.ids import ExecutionAttemptID, JobID, JobVertexID, ResourceID, SlotRequestID
from runtime.job_logs import KeptLog
from runtime.jobgraph.topology import Chain
from runtime.jobmaster.restart_strategy import RestartStrategyState
from runtime.jobmaster.savepoints import Rollback
from runtime.jobmaster.slot_pool import AllocatedSlot
from runtime.protocol.checkpoints import NO_TOTALS, CheckpointTotals
from runtime.protocol.descriptor import ResultPartitionInfo, SparkWork, VertexProgress
from runtime.protocol.execution_state import ErrorInfo, ExecutionState, JobStatus, check_execution_transition
from runtime.protocol.rescales import Rescale
from runtime.protocol.streaming_query import StreamingQuery

ATTEMPT_HISTORY = 16
"""Number of attempts of a task that are kept (Flink's ``jobmanager.execution.attempts-history-size``)."""


@dataclass(slots=True, eq=False)
class Execution:
    """One attempt: its state, the time of each state (in milliseconds since the epoch), its slot, its end.

    Args:
        attempt_id: its id.
        number: 0 for the first attempt of the task.
        now_ms: when it was created.
    """

    attempt_id: ExecutionAttemptID
    number: int
    now_ms: InitVar[int]
    state: ExecutionState = ExecutionState.CREATED
    timestamps: dict[ExecutionState, int] = field(init=False)
    request_id: SlotRequestID | None = None
    slot: AllocatedSlot | None = None
    error: ErrorInfo | None = None
    exit_status: int | None = None
    logs: tuple[KeptLog, ...] = ()
    partitions: tuple[ResultPartitionInfo, ...] = ()
    waiting_for: str = ""
    progress: dict[JobVertexID, VertexProgress] = field(default_factory=dict)
    queries: tuple[StreamingQuery, ...] = ()
    stands_by: bool = False
    spark: SparkWork | None = None

    def __post_init__(self, now_ms: int) -> None:
        self.timestamps = {ExecutionState.CREATED: now_ms}

    def transition(self, target: ExecutionState, now_ms: int) -> None:
        """Enter *target*; raises `IllegalStateTransition` if it cannot follow the present state."""
        check_execution_transition(self.state, target)
        self.state = target
        self.timestamps[target] = now_ms

    def was_seen_at(self, resource_id: ResourceID) -> bool:
        """Return whether that TaskExecutor has reported the attempt as started, but not its end."""
        started = ExecutionState.INITIALIZING in self.timestamps or ExecutionState.RUNNING in self.timestamps
        here = self.slot is not None and self.slot.slot_id.resource_id == resource_id
        return here and started and not self.state.is_terminal

    def is_expected_at(self, resource_id: ResourceID) -> bool:
        """Return whether a former JobMaster decided to deploy it there, and no report of it has come since."""
        here = self.slot is not None and self.slot.slot_id.resource_id == resource_id
        awaited = self.state is ExecutionState.RECONCILING or (
            self.state is ExecutionState.CANCELING and ExecutionState.RECONCILING in self.timestamps
        )
        return here and awaited


class Task:
    """A chain of vertices that runs as one, with its present attempt and the former ones.

    Args:
        chain: its vertices.
        first: its first attempt.

    Attributes:
        consumers: the tasks that read its result.
        restarting: whether its region's restart is scheduled: its result does not count, and it is not deployed.
        retried: how many of its vertices' own retries are used up.
    """

    def __init__(self, chain: Chain, first: Execution) -> None:
        self.chain = chain
        self.attempts: deque[Execution] = deque([first], maxlen=ATTEMPT_HISTORY)
        self.consumers: tuple[JobVertexID, ...] = ()
        self.restarting = False
        self.retried = 0

    @property
    def current(self) -> Execution:
        """The present attempt."""
        return self.attempts[-1]

    @property
    def is_finished(self) -> bool:
        """Return whether its result exists and remains valid."""
        return not self.restarting and self.current.state is ExecutionState.FINISHED

    @property
    def is_active(self) -> bool:
        """Return whether its present attempt has begun and has not ended."""
        state = self.current.state
        return state is not ExecutionState.CREATED and not state.is_terminal


@dataclass(frozen=True, slots=True)
class AttemptSnapshot:
    """One attempt: as `Execution`, without the parts that are only displayed."""

    attempt_id: ExecutionAttemptID
    number: int
    state: ExecutionState
    timestamps: dict[str, int]
    slot: AllocatedSlot | None
    error: ErrorInfo | None
    exit_status: int | None
    logs: tuple[KeptLog, ...] = ()
    partitions: tuple[ResultPartitionInfo, ...] = ()
    spark: SparkWork | None = None


@dataclass(frozen=True, slots=True)
class TaskSnapshot:
    """One task: its attempts, the present one last, whether its restart is scheduled, and its retries used up."""

    key: JobVertexID
    restarting: bool
    attempts: tuple[AttemptSnapshot, ...]
    retried: int = 0


@dataclass(frozen=True, slots=True)
class ExecutionGraphSnapshot:
    """One job's execution.

    Args:
        job_id: of the job.
        status: its state.
        timestamps: when it last entered each of its states, by the state's name, in milliseconds since the epoch.
        failure: the error that makes it fail.
        failures: the last failures.
        restarts: number of restarts of some of its tasks.
        strategy: state of the restart strategy.
        taken_ms: when the snapshot was taken, in milliseconds since the epoch.
        tasks: all of them.
        format_version: of this format.
        failure_counts: number of failures of each kind, by the kind's name.
        rollback: the last rollback of the job.
        checkpoints: counts of checkpoints; the completed checkpoints in the store may have later totals.
        cancelled_because: as in `ArchivedExecutionGraph`.
        rescales: as in `ArchivedExecutionGraph`.
        awaited_successors: TaskExecutors that have left their tasks to a successor. The job waits for it until the
            time, in milliseconds since the epoch.
        is_streaming: whether a query without end has committed a batch.
    """

    job_id: JobID
    status: JobStatus
    timestamps: dict[str, int]
    failure: ErrorInfo | None
    failures: tuple[ErrorInfo, ...]
    restarts: int
    strategy: RestartStrategyState
    taken_ms: int
    tasks: tuple[TaskSnapshot, ...]
    format_version: int = oldest_version(Format.EXECUTION)
    failure_counts: dict[str, int] = field(default_factory=dict)
    rollback: Rollback | None = None
    checkpoints: CheckpointTotals = NO_TOTALS
    cancelled_because: str = ""
    rescales: tuple[Rescale, ...] = ()
    awaited_successors: dict[ResourceID, int] = field(default_factory=dict)
    is_streaming: bool = False


def snapshot_tasks(tasks: Iterable[Task]) -> tuple[TaskSnapshot, ...]:
    """Return the tasks as plain data."""
    return tuple(
        TaskSnapshot(
            task.chain.key, task.restarting, tuple(_snapshot(execution) for execution in task.attempts), task.retried
        )
        for task in tasks
    )


def _snapshot(execution: Execution) -> AttemptSnapshot:
    return AttemptSnapshot(
        execution.attempt_id,
        execution.number,
        execution.state,
        {state.value: entered for state, entered in execution.timestamps.items()},
        execution.slot,
        execution.error,
        execution.exit_status,
        execution.logs,
        execution.partitions,
        execution.spark,
    )


def restore_attempt(saved: AttemptSnapshot) -> Execution:
    """Return a former attempt from its snapshot."""
    execution = Execution(saved.attempt_id, saved.number, 0)
    execution.state = saved.state
    execution.timestamps = {ExecutionState(state): entered for state, entered in saved.timestamps.items()}
    execution.slot = saved.slot
    execution.error = saved.error
    execution.exit_status = saved.exit_status
    execution.logs = saved.logs
    execution.partitions = saved.partitions
    execution.spark = saved.spark
    return execution


def restore_current_attempt(saved: AttemptSnapshot, now_ms: int) -> Execution:
    """Return the present attempt as far as it is known: RECONCILING, if deployed, until its TaskExecutor reports.

    A request for a slot ended with the JobMaster that made it, so the attempt is CREATED again. An attempt that was
    being cancelled still is.
    """
    execution = restore_attempt(saved)
    if execution.state is ExecutionState.SCHEDULED:
        execution.state = ExecutionState.CREATED
        del execution.timestamps[ExecutionState.SCHEDULED]
    elif execution.state.is_deployed:
        if execution.state is not ExecutionState.CANCELING:
            execution.state = ExecutionState.RECONCILING
        execution.timestamps[ExecutionState.RECONCILING] = now_ms
    return execution

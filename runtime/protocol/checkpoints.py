"""Messages about checkpoints between JobMaster, TaskExecutors and clients."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from runtime.feature_level import Format, oldest_version
from runtime.ids import ExecutionAttemptID, JobID, JobVertexID, TriggerID
from runtime.protocol.query_snapshot import QuerySnapshot


class SnapshotType(Enum):
    """Kind of a snapshot: a checkpoint, a savepoint, or a savepoint that ends the job (Flink's `SnapshotType`).

    - SAVEPOINT_SUSPEND stops each query between two batches; the job is FINISHED.
    - SAVEPOINT_TERMINATE, which `--drain` requests, lets each query process what its sources have before it stops.
    - SAVEPOINT_CANCEL stops each query as SAVEPOINT_SUSPEND does, but the job is CANCELED (Flink's savepoint with
      ``cancel-job``).
    """

    CHECKPOINT = "CHECKPOINT"
    SAVEPOINT = "SAVEPOINT"
    SAVEPOINT_SUSPEND = "SAVEPOINT_SUSPEND"
    SAVEPOINT_TERMINATE = "SAVEPOINT_TERMINATE"
    SAVEPOINT_CANCEL = "SAVEPOINT_CANCEL"

    @property
    def is_savepoint(self) -> bool:
        """Return whether it is a savepoint: the user's own, self-contained, and never removed by the job."""
        return self is not SnapshotType.CHECKPOINT

    @property
    def ends_the_job(self) -> bool:
        """Return whether the queries are stopped for it."""
        return self not in (SnapshotType.CHECKPOINT, SnapshotType.SAVEPOINT)

    @property
    def drains(self) -> bool:
        """Return whether the queries first process what their sources have."""
        return self is SnapshotType.SAVEPOINT_TERMINATE


@dataclass(frozen=True, slots=True)
class CheckpointTrigger:
    """A request for a checkpoint or savepoint, from a user or from the JobMaster itself.

    Args:
        trigger_id: chosen by the requester; a repeated request has the same id.
        type: the kind of snapshot that is requested.
        target: the directory in which to make a savepoint; empty for a checkpoint.
    """

    trigger_id: TriggerID
    type: SnapshotType
    target: str = ""


class OperationState(Enum):
    """The progress of a request (Flink's `QueueStatus` with the outcome)."""

    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class OperationStatus:
    """The status of a request so far (Flink's `SavepointInfo`).

    Args:
        trigger_id: the request.
        state: its progress.
        checkpoint_id: the number of the checkpoint; None before there is one.
        path: the directory, once it is completed.
        error: why it failed, on one line; empty otherwise.
        notes: messages for the requester, e.g. that a query had to be stopped by force.
        drained: False where the request was to drain the queries, but not all had processed what their sources have.
    """

    trigger_id: TriggerID
    state: OperationState
    checkpoint_id: int | None = None
    path: str = ""
    error: str = ""
    notes: tuple[str, ...] = ()
    drained: bool = True


@dataclass(frozen=True, slots=True)
class TaskSnapshot:
    """The snapshot of one task (Flink's `TaskStateSnapshot`).

    Args:
        task_key: of the task.
        task_name: of the task.
        queries: one for each of its streaming queries.
    """

    task_key: JobVertexID
    task_name: str
    queries: tuple[QuerySnapshot, ...]


@dataclass(frozen=True, slots=True)
class CheckpointTotals:
    """Numbers of a job's checkpoints and savepoints that completed, failed or were restored since its start."""

    restored: int = 0
    completed: int = 0
    failed: int = 0

    def at_least(self, other: CheckpointTotals) -> CheckpointTotals:
        """Return the higher of each: totals never fall."""
        return CheckpointTotals(
            max(self.restored, other.restored), max(self.completed, other.completed), max(self.failed, other.failed)
        )


NO_TOTALS = CheckpointTotals()


@dataclass(frozen=True, slots=True)
class CheckpointMetadata:
    """A completed checkpoint in its stored form (Flink's `CompletedCheckpoint` and its `_metadata`).

    Args:
        job_id: of the job.
        checkpoint_id: its number.
        path: its directory.
        trigger_ms: when it was triggered, in milliseconds since the epoch.
        completed_ms: when all tasks had acknowledged it.
        tasks: the snapshot of each task.
        format_version: of the stored form.
        totals: of the job when it was stored, itself included.
    """

    job_id: JobID
    checkpoint_id: int
    path: str
    trigger_ms: int
    completed_ms: int
    tasks: tuple[TaskSnapshot, ...]
    format_version: int = oldest_version(Format.COMPLETED_CHECKPOINT)
    totals: CheckpointTotals = NO_TOTALS

    @property
    def queries(self) -> tuple[QuerySnapshot, ...]:
        """Return all queries of all tasks."""
        return tuple(query for task in self.tasks for query in task.queries)

    @property
    def is_proven(self) -> bool:
        """Return whether Spark has loaded the state of all queries; see `QuerySnapshot.is_proven`."""
        return all(query.is_proven for query in self.queries)


@dataclass(frozen=True, slots=True)
class TriggerCheckpoint:
    """Request of the JobMaster to a task: take part in a checkpoint.

    Args:
        attempt_id: the task's attempt.
        checkpoint_id: the number.
        trigger: the request.
        directory: parent directory of the snapshots: each query has its own, below that of its task.
        timeout_s: how long the checkpoint may take in all, in seconds.
    """

    attempt_id: ExecutionAttemptID
    checkpoint_id: int
    trigger: CheckpointTrigger
    directory: str
    timeout_s: float


@dataclass(frozen=True, slots=True)
class AcknowledgeCheckpoint:
    """Report of a task: its part of a checkpoint is done (Flink's `AcknowledgeCheckpoint`).

    Args:
        checkpoint_id: the number.
        attempt_id: the task's attempt.
        trigger: the request, for a JobMaster that does not know this checkpoint.
        queries: the snapshots of its queries.
        notes: messages for the requester.
        duration_ms: how long the snapshots took.
        drained: see `OperationStatus`; of this task.
    """

    checkpoint_id: int
    attempt_id: ExecutionAttemptID
    trigger: CheckpointTrigger
    queries: tuple[QuerySnapshot, ...]
    notes: tuple[str, ...] = ()
    duration_ms: int = 0
    drained: bool = True


@dataclass(frozen=True, slots=True)
class DeclineCheckpoint:
    """Report of a task: it cannot do its part (Flink's `DeclineCheckpoint`); *reason* is on one line."""

    checkpoint_id: int
    attempt_id: ExecutionAttemptID
    reason: str


class CheckpointOutcome(Enum):
    """The outcome of a checkpoint, as far as the component that answers knows it."""

    PENDING = "PENDING"
    COMPLETED = "COMPLETED"
    ABORTED = "ABORTED"


@dataclass(frozen=True, slots=True)
class EarlierCheckpoint:
    """A checkpoint that is still kept and older than the latest one: its number, and one task's query snapshots."""

    checkpoint_id: int
    queries: tuple[QuerySnapshot, ...]


@dataclass(frozen=True, slots=True)
class InitialState:
    """The state that a job was started from, beside a later one; the fields are those of `JobManagerTaskRestore`."""

    checkpoint_id: int
    queries: tuple[QuerySnapshot, ...]
    savepoint: str
    allow_non_restored_state: bool
    new_query_id: bool | None
    continues: bool

    @property
    def restore(self) -> JobManagerTaskRestore:
        """Return it as the state that a task starts from."""
        return JobManagerTaskRestore(
            self.checkpoint_id,
            self.queries,
            self.savepoint,
            self.allow_non_restored_state,
            new_query_id=self.new_query_id,
            continues=self.continues,
        )


@dataclass(frozen=True, slots=True)
class JobManagerTaskRestore:
    """The state that a task starts from (Flink's `JobManagerTaskRestore`).

    Args:
        checkpoint_id: the checkpoint, or 0 for a savepoint.
        queries: the snapshots of the task's queries.
        savepoint: the directory of the savepoint, or of another job's checkpoint, that the job was started from. Empty
            for a checkpoint of the job's own. A savepoint is restored once, and replaces the files at the query's
            location. A checkpoint of its own is restored only where those files are older, or broken.
        allow_non_restored_state: whether a query may start without state although some of the state is unclaimed.
        rollback: the request by which the job was rolled back; queries are restored once for each request.
        new_query_id: whether queries get new ids when they are restored. With None, a query gets one if it starts at
            another location while its former one may still be written to.
        earlier: the job's own checkpoints before this one, the newest first. They serve a query whose snapshot in this
            one is damaged, or does not load.
        pending: a file that will hold the state once the former job has ended: see
            `runtime.checkpoint.handover`. Empty if this is the state.
        continues: whether a query may continue from its files as the former job has left them, if these are at the
            batch of the savepoint.
        begun_from: the state that the job was started from, beside a checkpoint or rollback of its own that lacks some
            of its queries: they had not started, or were still being restored. None if there is no such query.
    """

    checkpoint_id: int
    queries: tuple[QuerySnapshot, ...]
    savepoint: str = ""
    allow_non_restored_state: bool = False
    rollback: str = ""
    new_query_id: bool | None = False
    earlier: tuple[EarlierCheckpoint, ...] = ()
    pending: str = ""
    continues: bool = False
    begun_from: InitialState | None = None

    @property
    def initial(self) -> InitialState:
        """Return the state of a job's start in the form that stands beside a later one."""
        return InitialState(
            self.checkpoint_id,
            self.queries,
            self.savepoint,
            self.allow_non_restored_state,
            self.new_query_id,
            self.continues,
        )

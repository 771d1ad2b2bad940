"""What JobMaster, TaskExecutors and clients tell each other about checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from runtime.ids import ExecutionAttemptID, JobID, JobVertexID, TriggerID
from runtime.protocol.query_snapshot import QuerySnapshot

FORMAT_VERSION = 1


class SnapshotType(Enum):
    """What is made (Flink's `SnapshotType`): a checkpoint, a savepoint, or a savepoint after which the job ends.

    SAVEPOINT_SUSPEND stops each query between two batches; SAVEPOINT_TERMINATE, as `--drain` asks for, lets it work off
    first what its sources have. SAVEPOINT_CANCEL stops each query as SAVEPOINT_SUSPEND does, and the job is CANCELED,
    not FINISHED (Flink's savepoint with ``cancel-job``).
    """

    CHECKPOINT = "CHECKPOINT"
    SAVEPOINT = "SAVEPOINT"
    SAVEPOINT_SUSPEND = "SAVEPOINT_SUSPEND"
    SAVEPOINT_TERMINATE = "SAVEPOINT_TERMINATE"
    SAVEPOINT_CANCEL = "SAVEPOINT_CANCEL"

    @property
    def is_savepoint(self) -> bool:
        """Whether it is the user's, self-contained, and never removed by the job."""
        return self is not SnapshotType.CHECKPOINT

    @property
    def ends_the_job(self) -> bool:
        """Whether the queries are stopped for it."""
        return self not in (SnapshotType.CHECKPOINT, SnapshotType.SAVEPOINT)

    @property
    def drains(self) -> bool:
        """Whether the queries first work off what their sources have."""
        return self is SnapshotType.SAVEPOINT_TERMINATE


@dataclass(frozen=True, slots=True)
class CheckpointTrigger:
    """Somebody's request for a checkpoint or savepoint.

    Args:
        trigger_id: chosen by who requests it; the same request bears the same id.
        type: what is requested.
        target: the directory in which a savepoint is to be made; empty for a checkpoint.
    """

    trigger_id: TriggerID
    type: SnapshotType
    target: str = ""


class OperationState(Enum):
    """How far a request is (Flink's `QueueStatus` with the outcome)."""

    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class OperationStatus:
    """What became of a request so far (Flink's `SavepointInfo`).

    Args:
        trigger_id: the request.
        state: how far it is.
        checkpoint_id: the number of the checkpoint; None before there is one.
        path: when it is completed: the directory.
        error: when it failed: why, on one line.
        notes: what whoever asked should know, e.g. that a query had to be stopped by force.
        drained: False where a stop was to drain the queries, and not all had worked off what their sources have.
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
    """What one task has snapshotted (Flink's `TaskStateSnapshot`).

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
    """How many checkpoints and savepoints of a job were completed, failed or were restored, since it began."""

    restored: int = 0
    completed: int = 0
    failed: int = 0

    def at_least(self, other: CheckpointTotals) -> CheckpointTotals:
        """The higher of each: totals never fall."""
        return CheckpointTotals(
            max(self.restored, other.restored), max(self.completed, other.completed), max(self.failed, other.failed)
        )


NO_TOTALS = CheckpointTotals()


@dataclass(frozen=True, slots=True)
class CheckpointMetadata:
    """A completed checkpoint as it is stored (Flink's `CompletedCheckpoint` and its `_metadata`).

    Args:
        job_id: of the job.
        checkpoint_id: its number.
        path: its directory.
        trigger_ms: when it was triggered, in milliseconds since the epoch.
        completed_ms: when all tasks had acknowledged it.
        tasks: what each task has snapshotted.
        format_version: of this form.
        totals: of the job when it was stored, itself included.
    """

    job_id: JobID
    checkpoint_id: int
    path: str
    trigger_ms: int
    completed_ms: int
    tasks: tuple[TaskSnapshot, ...]
    format_version: int = FORMAT_VERSION
    totals: CheckpointTotals = NO_TOTALS

    @property
    def queries(self) -> tuple[QuerySnapshot, ...]:
        """All queries of all tasks."""
        return tuple(query for task in self.tasks for query in task.queries)

    @property
    def is_proven(self) -> bool:
        """Whether Spark has loaded the state of all queries; see `QuerySnapshot.is_proven`."""
        return all(query.is_proven for query in self.queries)


@dataclass(frozen=True, slots=True)
class TriggerCheckpoint:
    """From the JobMaster to a task: take part in a checkpoint.

    Args:
        attempt_id: the task's attempt.
        checkpoint_id: the number.
        trigger: what is requested.
        directory: where the snapshots go: each query's in a directory of its own, below that of its task.
        timeout_s: how long the checkpoint may take in all, in seconds.
    """

    attempt_id: ExecutionAttemptID
    checkpoint_id: int
    trigger: CheckpointTrigger
    directory: str
    timeout_s: float


@dataclass(frozen=True, slots=True)
class AcknowledgeCheckpoint:
    """From a task: its part of a checkpoint is done (Flink's `AcknowledgeCheckpoint`).

    Args:
        checkpoint_id: the number.
        attempt_id: the task's attempt.
        trigger: what was requested, so that a JobMaster that does not know the checkpoint knows what it was.
        queries: what was snapshotted.
        notes: what who requested it should know.
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
    """From a task: it cannot do its part (Flink's `DeclineCheckpoint`); *reason* on one line."""

    checkpoint_id: int
    attempt_id: ExecutionAttemptID
    reason: str


class CheckpointOutcome(Enum):
    """What has become of a checkpoint, as far as it is known to whoever is asked."""

    PENDING = "PENDING"
    COMPLETED = "COMPLETED"
    ABORTED = "ABORTED"


@dataclass(frozen=True, slots=True)
class EarlierCheckpoint:
    """A checkpoint before the latest one that is still kept: its number, and what there is of one task's queries."""

    checkpoint_id: int
    queries: tuple[QuerySnapshot, ...]


@dataclass(frozen=True, slots=True)
class JobManagerTaskRestore:
    """What a task begins with (Flink's `JobManagerTaskRestore`).

    Args:
        checkpoint_id: the checkpoint, or 0 for a savepoint.
        queries: what there is of the task's queries.
        savepoint: the directory of the savepoint, or of another job's checkpoint, that the job was begun from; empty
            for a checkpoint of the job's own. A savepoint is put back once, whatever lies at the location of the query;
            a checkpoint of its own only where what lies there is behind it, or broken.
        allow_non_restored_state: whether a query may begin without state although there is some that nobody claims.
        rollback: the request to go back there, of a job that has gone back; queries are put back once for each request.
        new_query_id: whether queries get new ids as they are put back. None: those get one that begin in another
            place while their former one may still be written to.
        earlier: checkpoints of the job's own before this one, the newest first: for a query of which this one is
            damaged, or does not load.
    """

    checkpoint_id: int
    queries: tuple[QuerySnapshot, ...]
    savepoint: str = ""
    allow_non_restored_state: bool = False
    rollback: str = ""
    new_query_id: bool | None = False
    earlier: tuple[EarlierCheckpoint, ...] = ()

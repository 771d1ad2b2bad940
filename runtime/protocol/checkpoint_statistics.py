"""The figures of a job's checkpoints (Flink's `CheckpointStatsSnapshot` and its parts)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from runtime.ids import JobVertexID
from runtime.protocol.checkpoints import OperationStatus, SnapshotType
from runtime.protocol.query_snapshot import QuerySnapshot


class CheckpointStatsStatus(Enum):
    """The progress of a checkpoint."""

    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class TaskStateStats:
    """The part of one task in a checkpoint (Flink's `TaskStateStats`; a task here is what one subtask is there).

    Args:
        task_key: of the task.
        ack_timestamp: when it acknowledged, in milliseconds since the epoch; None before.
        state_size: bytes of its snapshots.
        checkpointed_size: bytes of them that no earlier checkpoint had.
        duration: how long its snapshots took, in milliseconds, while its queries kept running; 0 where it is unknown.
    """

    task_key: JobVertexID
    ack_timestamp: int | None = None
    state_size: int = 0
    checkpointed_size: int = 0
    duration: int = 0

    @classmethod
    def of(
        cls, task_key: JobVertexID, queries: Sequence[QuerySnapshot], duration_ms: int, now_ms: int
    ) -> TaskStateStats:
        """Return the figures of a task that acknowledges at *now_ms*."""
        state_size, new_bytes = sum(query.bytes for query in queries), sum(query.new_bytes for query in queries)
        return cls(task_key, now_ms, state_size, new_bytes, duration_ms)


@dataclass(frozen=True, slots=True)
class CheckpointStats:
    """One checkpoint or savepoint (Flink's `AbstractCheckpointStats`).

    Args:
        id: its number.
        status: its progress.
        type: checkpoint, or kind of savepoint.
        trigger_timestamp: when it was triggered, in milliseconds since the epoch.
        latest_ack_timestamp: when the last task so far acknowledged it; None before the first.
        num_tasks: number of tasks that take part.
        num_acknowledged_tasks: number of those that have acknowledged it.
        state_size: bytes of all snapshots together.
        checkpointed_size: bytes of them that no earlier checkpoint had (incremental).
        end_to_end_duration: milliseconds from the trigger until it was complete or failed, or until now.
        external_path: its directory, once it is completed; empty before.
        discarded: whether its files have been removed since.
        failure_timestamp: when it failed, in milliseconds since the epoch.
        failure_message: why it failed.
        tasks: the part of each task.
    """

    id: int
    status: CheckpointStatsStatus
    type: SnapshotType
    trigger_timestamp: int
    latest_ack_timestamp: int | None
    num_tasks: int
    num_acknowledged_tasks: int
    state_size: int
    checkpointed_size: int
    end_to_end_duration: int
    external_path: str = ""
    discarded: bool = False
    failure_timestamp: int | None = None
    failure_message: str = ""
    tasks: tuple[TaskStateStats, ...] = ()

    @property
    def is_savepoint(self) -> bool:
        """Return whether it is a savepoint."""
        return self.type.is_savepoint


@dataclass(frozen=True, slots=True)
class RestoredCheckpointStats:
    """The source of the job's last restore: a checkpoint's number, or 0 for a savepoint (of another job)."""

    id: int
    restore_timestamp: int
    is_savepoint: bool
    external_path: str


@dataclass(frozen=True, slots=True)
class CheckpointStatsCounts:
    """Counters since the job's start (Flink's `CheckpointStatsCounts`, which each new JobMaster resets there)."""

    restored: int = 0
    total: int = 0
    in_progress: int = 0
    completed: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class StatsSummary:
    """Minimum, mean and maximum of a figure of the completed checkpoints (Flink's `StatsSummary`)."""

    min: int = 0
    avg: int = 0
    max: int = 0

    @classmethod
    def of(cls, values: Sequence[int]) -> StatsSummary:
        """Return the summary of these figures; zeros where there are none."""
        return cls(min(values), sum(values) // len(values), max(values)) if values else cls()


@dataclass(frozen=True, slots=True)
class CheckpointStatsSnapshot:
    """A job's checkpoint figures at one moment (Flink's `CheckpointStatsSnapshot`, ``/jobs/:jobid/checkpoints``).

    Args:
        counts: counters of all checkpoints and savepoints.
        summary_state_size: bytes of the completed ones in the history.
        summary_checkpointed_size: their new bytes.
        summary_duration: their durations, in milliseconds.
        latest_completed: the last completed checkpoint.
        latest_savepoint: the last completed savepoint.
        latest_failed: the last that failed.
        latest_restored: the source of the last restore.
        history: the last ones, the newest first.
        operations: the status of each request of a client.
        rolled_back_to: directory of the checkpoint or savepoint of the job's last rollback, which a rescale is, too;
            empty if there was none.
        settings: the job's own settings of checkpoints and state, by key; they take precedence over the cluster's.
    """

    counts: CheckpointStatsCounts = CheckpointStatsCounts()
    summary_state_size: StatsSummary = StatsSummary()
    summary_checkpointed_size: StatsSummary = StatsSummary()
    summary_duration: StatsSummary = StatsSummary()
    latest_completed: CheckpointStats | None = None
    latest_savepoint: CheckpointStats | None = None
    latest_failed: CheckpointStats | None = None
    latest_restored: RestoredCheckpointStats | None = None
    history: tuple[CheckpointStats, ...] = ()
    operations: tuple[OperationStatus, ...] = ()
    rolled_back_to: str = ""
    settings: dict[str, str] = field(default_factory=dict)

"""The figures of a job's checkpoints, as Flink's checkpoint pages and its REST interface show them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from runtime.checkpoint.messages import CheckpointMetadata, CheckpointTotals, OperationStatus, SnapshotType
from runtime.checkpoint.model import QuerySnapshot
from runtime.ids import JobVertexID

HISTORY = 10
"""How many checkpoints are shown (Flink's ``web.checkpoints.history``)."""


class CheckpointStatsStatus(Enum):
    """How far a checkpoint is."""

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
        duration: how long its snapshots took, in milliseconds, its queries running on; 0 where that is not known.
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
        """Of a task that has acknowledged just now."""
        state_size, new_bytes = sum(query.bytes for query in queries), sum(query.new_bytes for query in queries)
        return cls(task_key, now_ms, state_size, new_bytes, duration_ms)


@dataclass(frozen=True, slots=True)
class CheckpointStats:
    """One checkpoint or savepoint (Flink's `AbstractCheckpointStats`).

    Args:
        id: its number.
        status: how far it is.
        type: what it is.
        trigger_timestamp: when it was triggered, in milliseconds since the epoch.
        latest_ack_timestamp: when the last task so far acknowledged it; None before the first.
        num_tasks: how many tasks take part.
        num_acknowledged_tasks: how many have acknowledged it.
        state_size: bytes of all snapshots together.
        checkpointed_size: bytes of them that no earlier checkpoint had (incremental).
        end_to_end_duration: milliseconds from the trigger until it was complete or failed, or until now.
        external_path: when it is completed: its directory.
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
        """Whether it is a savepoint."""
        return self.type.is_savepoint


@dataclass(frozen=True, slots=True)
class RestoredCheckpointStats:
    """What the job's state was restored from last: a checkpoint's number, or 0 for a savepoint (of another job)."""

    id: int
    restore_timestamp: int
    is_savepoint: bool
    external_path: str


@dataclass(frozen=True, slots=True)
class CheckpointStatsCounts:
    """Counters since the job began (Flink's `CheckpointStatsCounts`, which begin anew with each JobMaster)."""

    restored: int = 0
    total: int = 0
    in_progress: int = 0
    completed: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class StatsSummary:
    """The least, mean and largest of a figure of the completed checkpoints (Flink's `StatsSummary`)."""

    min: int = 0
    avg: int = 0
    max: int = 0

    @classmethod
    def of(cls, values: Sequence[int]) -> StatsSummary:
        """Of these figures; zeros where there are none."""
        return cls(min(values), sum(values) // len(values), max(values)) if values else cls()


@dataclass(frozen=True, slots=True)
class CheckpointStatsSnapshot:
    """A job's checkpoint figures at one moment (Flink's `CheckpointStatsSnapshot`, ``/jobs/:jobid/checkpoints``).

    Args:
        counts: how many there were.
        summary_state_size: bytes of the completed ones in the history.
        summary_checkpointed_size: their new bytes.
        summary_duration: their durations, in milliseconds.
        latest_completed: the last completed checkpoint.
        latest_savepoint: the last completed savepoint.
        latest_failed: the last that failed.
        latest_restored: what was restored last.
        history: the last ones, the newest first.
        operations: what became of the wishes of clients.
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


class CheckpointStatsTracker:
    """Keeps the figures (Flink's `CheckpointStatsTracker`). Pure."""

    def __init__(self) -> None:
        self._totals = CheckpointTotals()
        self._in_progress: dict[int, CheckpointStats] = {}
        self._ended: deque[CheckpointStats] = deque(maxlen=HISTORY)
        self._latest_completed: CheckpointStats | None = None
        self._latest_savepoint: CheckpointStats | None = None
        self._latest_failed: CheckpointStats | None = None
        self._latest_restored: RestoredCheckpointStats | None = None

    def triggered(self, checkpoint_id: int, kind: SnapshotType, tasks: Sequence[JobVertexID], now_ms: int) -> None:
        """A checkpoint has begun, in which these tasks take part."""
        status, parts = CheckpointStatsStatus.IN_PROGRESS, tuple(map(TaskStateStats, tasks))
        self._in_progress[checkpoint_id] = CheckpointStats(
            checkpoint_id, status, kind, now_ms, None, len(parts), 0, 0, 0, 0, tasks=parts
        )

    def acknowledged(self, checkpoint_id: int, part: TaskStateStats, now_ms: int) -> None:
        """A task has done its part."""
        stats = self._in_progress[checkpoint_id]
        self._in_progress[checkpoint_id] = replace(
            stats,
            latest_ack_timestamp=now_ms,
            num_acknowledged_tasks=stats.num_acknowledged_tasks + 1,
            state_size=stats.state_size + part.state_size,
            checkpointed_size=stats.checkpointed_size + part.checkpointed_size,
            end_to_end_duration=now_ms - stats.trigger_timestamp,
            tasks=tuple(part if task.task_key == part.task_key else task for task in stats.tasks),
        )

    def completed(self, checkpoint_id: int, path: str, now_ms: int) -> None:
        """It is complete."""
        stats = self._in_progress.pop(checkpoint_id)
        duration = now_ms - stats.trigger_timestamp
        done = replace(stats, status=CheckpointStatsStatus.COMPLETED, external_path=path, end_to_end_duration=duration)
        self._totals = replace(self._totals, completed=self._totals.completed + 1)
        self._ended.append(done)
        if done.is_savepoint:
            self._latest_savepoint = done
        else:
            self._latest_completed = done

    def failed(self, checkpoint_id: int, reason: str, now_ms: int) -> None:
        """It came to nothing."""
        stats = self._in_progress.pop(checkpoint_id)
        failed = replace(
            stats,
            status=CheckpointStatsStatus.FAILED,
            failure_timestamp=now_ms,
            failure_message=reason,
            end_to_end_duration=now_ms - stats.trigger_timestamp,
        )
        self._totals = replace(self._totals, failed=self._totals.failed + 1)
        self._ended.append(failed)
        self._latest_failed = failed

    def recovered(self, metadata: CheckpointMetadata) -> None:
        """A former JobMaster has completed it: it is shown; `recovered_totals` counts it."""
        tasks, at = len(metadata.tasks), metadata.completed_ms
        self._latest_completed = CheckpointStats(
            id=metadata.checkpoint_id,
            status=CheckpointStatsStatus.COMPLETED,
            type=SnapshotType.CHECKPOINT,
            trigger_timestamp=metadata.trigger_ms,
            latest_ack_timestamp=metadata.completed_ms,
            num_tasks=tasks,
            num_acknowledged_tasks=tasks,
            state_size=sum(query.bytes for query in metadata.queries),
            checkpointed_size=sum(query.new_bytes for query in metadata.queries),
            end_to_end_duration=metadata.completed_ms - metadata.trigger_ms,
            external_path=metadata.path,
            tasks=tuple(TaskStateStats.of(task.task_key, task.queries, 0, at) for task in metadata.tasks),
        )
        self._ended.append(self._latest_completed)

    @property
    def totals(self) -> CheckpointTotals:
        """The counters that outlive a JobMaster."""
        return self._totals

    def recovered_totals(self, totals: CheckpointTotals) -> None:
        """Take over the counts of former JobMasters."""
        self._totals = self._totals.at_least(totals)

    def subsumed(self, checkpoint_id: int) -> None:
        """Its files are removed: there are newer ones."""
        for index, stats in enumerate(self._ended):
            if stats.id == checkpoint_id:
                self._ended[index] = replace(stats, discarded=True)

    def restored(self, checkpoint_id: int, path: str, now_ms: int, *, is_savepoint: bool) -> None:
        """A job's state has been restored."""
        self._totals = replace(self._totals, restored=self._totals.restored + 1)
        self._latest_restored = RestoredCheckpointStats(checkpoint_id, now_ms, is_savepoint, path)

    def snapshot(self, now_ms: int, operations: Sequence[OperationStatus] = ()) -> CheckpointStatsSnapshot:
        """The figures now."""
        done = [stats for stats in self._ended if stats.status is CheckpointStatsStatus.COMPLETED]
        running = [
            replace(stats, end_to_end_duration=now_ms - stats.trigger_timestamp) for stats in self._in_progress.values()
        ]
        totals = self._totals
        total = totals.completed + totals.failed + len(running)
        return CheckpointStatsSnapshot(
            CheckpointStatsCounts(totals.restored, total, len(running), totals.completed, totals.failed),
            StatsSummary.of([stats.state_size for stats in done]),
            StatsSummary.of([stats.checkpointed_size for stats in done]),
            StatsSummary.of([stats.end_to_end_duration for stats in done]),
            self._latest_completed,
            self._latest_savepoint,
            self._latest_failed,
            self._latest_restored,
            tuple(sorted([*running, *self._ended], key=lambda stats: stats.id, reverse=True)),
            tuple(operations),
        )

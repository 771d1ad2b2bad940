"""Counts a job's checkpoints (Flink's `CheckpointStatsTracker`). Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from runtime.ids import JobVertexID
from runtime.protocol.checkpoint_statistics import (
    CheckpointStats,
    CheckpointStatsCounts,
    CheckpointStatsSnapshot,
    CheckpointStatsStatus,
    RestoredCheckpointStats,
    StatsSummary,
    TaskStateStats,
)
from runtime.protocol.checkpoints import CheckpointMetadata, CheckpointTotals, OperationStatus, SnapshotType

HISTORY = 10
"""How many checkpoints are shown (Flink's ``web.checkpoints.history``)."""


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
        """Add a checkpoint in which these tasks take part."""
        status, parts = CheckpointStatsStatus.IN_PROGRESS, tuple(map(TaskStateStats, tasks))
        self._in_progress[checkpoint_id] = CheckpointStats(
            checkpoint_id, status, kind, now_ms, None, len(parts), 0, 0, 0, 0, tasks=parts
        )

    def acknowledged(self, checkpoint_id: int, part: TaskStateStats, now_ms: int) -> None:
        """Add a task's part to a checkpoint."""
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
        """Count a checkpoint as completed."""
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
        """Count a checkpoint as failed."""
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
        """Show a checkpoint that a former JobMaster has completed; `recovered_totals` counts it."""
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
        """The counters, which outlive a JobMaster."""
        return self._totals

    def recovered_totals(self, totals: CheckpointTotals) -> None:
        """Take over the counts of former JobMasters."""
        self._totals = self._totals.at_least(totals)

    def subsumed(self, checkpoint_id: int) -> None:
        """Mark a checkpoint as discarded: a newer one has replaced it."""
        for index, stats in enumerate(self._ended):
            if stats.id == checkpoint_id:
                self._ended[index] = replace(stats, discarded=True)

    def restored(self, checkpoint_id: int, path: str, now_ms: int, *, is_savepoint: bool) -> None:
        """Count a restore of the job's state."""
        self._totals = replace(self._totals, restored=self._totals.restored + 1)
        self._latest_restored = RestoredCheckpointStats(checkpoint_id, now_ms, is_savepoint, path)

    def snapshot(self, now_ms: int, operations: Sequence[OperationStatus] = ()) -> CheckpointStatsSnapshot:
        """Return the current figures."""
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

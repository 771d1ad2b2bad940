"""Checkpoints and savepoints of a job in Flink's form: figures, configuration, and what became of requests. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from conf.options.checkpointing import ExternalizedCheckpointRetention
from runtime.checkpoint.configuration import CheckpointCoordinatorConfiguration
from runtime.ids import TriggerID
from runtime.protocol.checkpoint_statistics import (
    CheckpointStats,
    CheckpointStatsSnapshot,
    CheckpointStatsStatus,
    RestoredCheckpointStats,
    StatsSummary,
    TaskStateStats,
)
from runtime.protocol.checkpoints import OperationState, OperationStatus, SnapshotType
from runtime.rest.messages.common import NO_TIME, Json
from runtime.rest.messages.serialized_throwable import serialized_throwable

NO_INTERVAL = (1 << 63) - 1
"""Flink's interval where there are no periodic checkpoints, which its page knows."""
ANY_NUMBER = (1 << 31) - 1
"""Flink's number of failures that are tolerated where all are."""

_QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
_TYPES = {
    SnapshotType.CHECKPOINT: "CHECKPOINT",
    SnapshotType.SAVEPOINT: "SAVEPOINT",
    SnapshotType.SAVEPOINT_SUSPEND: "SYNC_SAVEPOINT",
    SnapshotType.SAVEPOINT_TERMINATE: "SYNC_SAVEPOINT",
    SnapshotType.SAVEPOINT_CANCEL: "SAVEPOINT",
}
_NOTHING_IN_FLIGHT = dict.fromkeys(("alignment_buffered", "processed_data", "persisted_data"), 0)


def statistics(figures: CheckpointStatsSnapshot) -> Json:
    """GET /jobs/:jobid/checkpoints (Flink's `CheckpointingStatistics`)."""
    counts = figures.counts
    done = [stats for stats in figures.history if stats.status is CheckpointStatsStatus.COMPLETED]
    return {
        "counts": {
            "restored": counts.restored,
            "total": counts.total,
            "in_progress": counts.in_progress,
            "completed": counts.completed,
            "failed": counts.failed,
        },
        "summary": {
            "checkpointed_size": _summary(figures.summary_checkpointed_size, [one.checkpointed_size for one in done]),
            "state_size": _summary(figures.summary_state_size, [one.state_size for one in done]),
            "end_to_end_duration": _summary(figures.summary_duration, [one.end_to_end_duration for one in done]),
            **{name: _summary(StatsSummary(), [0 for _ in done]) for name in _NOTHING_IN_FLIGHT},
        },
        "latest": {
            "completed": _checkpoint(figures.latest_completed),
            "savepoint": _checkpoint(figures.latest_savepoint),
            "failed": _checkpoint(figures.latest_failed),
            "restored": _restored(figures.latest_restored),
        },
        "history": [checkpoint(stats) for stats in figures.history],
    }


def checkpoint(stats: CheckpointStats) -> Json:
    """GET /jobs/:jobid/checkpoints/details/:checkpointid (Flink's `CheckpointStatistics`).

    What is in flight is no part of a checkpoint of Spark's.
    """
    told: Json = {
        "className": stats.status.value.lower(),
        "id": stats.id,
        "status": stats.status.value,
        "is_savepoint": stats.is_savepoint,
        "savepointFormat": "CANONICAL" if stats.is_savepoint else None,
        "trigger_timestamp": stats.trigger_timestamp,
        "latest_ack_timestamp": NO_TIME if stats.latest_ack_timestamp is None else stats.latest_ack_timestamp,
        "checkpointed_size": stats.checkpointed_size,
        "state_size": stats.state_size,
        "end_to_end_duration": stats.end_to_end_duration,
        **_NOTHING_IN_FLIGHT,
        "num_subtasks": stats.num_tasks,
        "num_acknowledged_subtasks": stats.num_acknowledged_tasks,
        "checkpoint_type": _TYPES[stats.type],
        "tasks": {part.task_key: _task(stats, part) for part in stats.tasks},
    }
    if stats.status is CheckpointStatsStatus.COMPLETED:
        told |= {"external_path": uri_of(stats.external_path), "discarded": stats.discarded}
    elif stats.status is CheckpointStatsStatus.FAILED:
        told["failure_timestamp"] = NO_TIME if stats.failure_timestamp is None else stats.failure_timestamp
        told["failure_message"] = stats.failure_message
    return told


def task(stats: CheckpointStats, task_key: str) -> Json | None:
    """GET .../details/:checkpointid/subtasks/:vertexid (Flink's `TaskCheckpointStatisticsWithSubtaskDetails`).

    A task is one subtask. Its queries run on while their files are linked, so that all of it is Flink's asynchronous
    part. None where the task took no part.
    """
    part = next((part for part in stats.tasks if part.task_key == task_key), None)
    if part is None:
        return None
    acknowledged = part.ack_timestamp is not None
    nothing = _of_parts([0] if acknowledged else [])
    told: Json = {"index": 0, "className": "pending", "status": "pending_or_failed"}
    if acknowledged:
        told = {
            "index": 0,
            "className": "completed",
            "status": "completed",
            "ack_timestamp": part.ack_timestamp,
            "end_to_end_duration": _duration(stats, part),
            "checkpointed_size": part.checkpointed_size,
            "state_size": part.state_size,
            "checkpoint": {"sync": 0, "async": part.duration},
            "alignment": {"buffered": 0, "processed": 0, "persisted": 0, "duration": 0},
            "start_delay": 0,
            "unaligned_checkpoint": False,
            "aborted": False,
        }
    return {
        **_task(stats, part),
        "summary": {
            "checkpointed_size": _of_parts([part.checkpointed_size] if acknowledged else []),
            "state_size": _of_parts([part.state_size] if acknowledged else []),
            "end_to_end_duration": _of_parts([_duration(stats, part)] if acknowledged else []),
            "checkpoint_duration": {"sync": nothing, "async": _of_parts([part.duration] if acknowledged else [])},
            "alignment": dict.fromkeys(("buffered", "processed", "persisted", "duration"), nothing),
            "start_delay": nothing,
        },
        "subtasks": [told],
    }


def _task(stats: CheckpointStats, part: TaskStateStats) -> Json:
    """Flink's `TaskCheckpointStatistics`."""
    return {
        "id": stats.id,
        "status": stats.status.value,
        "latest_ack_timestamp": NO_TIME if part.ack_timestamp is None else part.ack_timestamp,
        "checkpointed_size": part.checkpointed_size,
        "state_size": part.state_size,
        "end_to_end_duration": _duration(stats, part),
        **_NOTHING_IN_FLIGHT,
        "num_subtasks": 1,
        "num_acknowledged_subtasks": int(part.ack_timestamp is not None),
    }


def _duration(stats: CheckpointStats, part: TaskStateStats) -> int:
    """From the checkpoint's trigger to the task's acknowledgement, in milliseconds; -1 before that."""
    return NO_TIME if part.ack_timestamp is None else max(part.ack_timestamp - stats.trigger_timestamp, 0)


def _of_parts(values: Sequence[int]) -> Json:
    return _summary(StatsSummary.of(values), values)


def find(figures: CheckpointStatsSnapshot, checkpoint_id: int) -> CheckpointStats | None:
    """The checkpoint of that number, among all that are remembered."""
    latest = (figures.latest_completed, figures.latest_savepoint, figures.latest_failed)
    known = (*figures.history, *(stats for stats in latest if stats is not None))
    return next((stats for stats in known if stats.id == checkpoint_id), None)


def config(settings: CheckpointCoordinatorConfiguration, state_backend: str) -> Json:
    """GET /jobs/:jobid/checkpoints/config (Flink's `CheckpointConfigInfo`); durations in milliseconds."""
    tolerable = settings.tolerable_failures
    return {
        "mode": "exactly_once",
        "interval": NO_INTERVAL if settings.interval_s is None else round(settings.interval_s * 1000),
        "timeout": round(settings.timeout_s * 1000),
        "min_pause": round(settings.min_pause_s * 1000),
        "max_concurrent": settings.max_concurrent,
        "externalization": {
            "enabled": settings.retention is not ExternalizedCheckpointRetention.NO_EXTERNALIZED_CHECKPOINTS,
            "delete_on_cancellation": settings.retention is not ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION,
        },
        "state_backend": state_backend,
        "checkpoint_storage": "FileSystemCheckpointStorage",
        "unaligned_checkpoints": False,
        "tolerable_failed_checkpoints": ANY_NUMBER if tolerable is None else tolerable,
        "aligned_checkpoint_timeout": 0,
        "checkpoints_after_tasks_finish": True,
        "state_changelog_enabled": False,
        # As Flink has them while its changelog is off.
        "changelog_periodic_materialization_interval": 600_000,
        "changelog_storage": "memory",
    }


def triggered(trigger_id: TriggerID) -> Json:
    """What whoever asks for an operation is told (Flink's `TriggerResponse`)."""
    return {"request-id": trigger_id}


def in_progress() -> Json:
    """An operation that is under way (Flink's `AsynchronousOperationResult`)."""
    return {"status": {"id": "IN_PROGRESS"}, "operation": None}


def completed(operation: Json) -> Json:
    """An operation that is over, well or badly."""
    return {"status": {"id": "COMPLETED"}, "operation": operation}


def savepoint(status: OperationStatus) -> Json:
    """GET /jobs/:jobid/savepoints/:triggerid (Flink's `SavepointInfo`)."""
    return _operation(status, {"location": uri_of(status.path)})


def triggered_checkpoint(status: OperationStatus) -> Json:
    """GET /jobs/:jobid/checkpoints/:triggerid (Flink's `CheckpointInfo`)."""
    return _operation(status, {"checkpointId": status.checkpoint_id}, "failureCause")


def uri_of(path: str) -> str:
    """The URI of an absolute path, as Flink spells it (``file:/data/savepoint-1``); whatever else is left alone."""
    return f"file:{quote(path)}" if path.startswith("/") else path


def failure(kind: str, message: str, name: str = "failure-cause") -> Json:
    """Why an operation failed, in the form that Flink's client reads; *name* is what Flink calls it there."""
    trace = f"{kind}: {message}"
    return {
        name: {
            "class": kind,
            "stack-trace": trace,
            "serialized-throwable": serialized_throwable(kind, message, trace),
        }
    }


def _operation(status: OperationStatus, good: Json, failed: str = "failure-cause") -> Json:
    if status.state is OperationState.IN_PROGRESS:
        return in_progress()
    if status.state is OperationState.FAILED:
        return completed(failure("CheckpointException", status.error, failed))
    more: Json = {"notes": list(status.notes)} if status.notes else {}
    return completed({**good, **more} if status.drained else {**good, **more, "drained": False})


def _checkpoint(stats: CheckpointStats | None) -> Json | None:
    return None if stats is None else checkpoint(stats)


def _restored(restored: RestoredCheckpointStats | None) -> Json | None:
    if restored is None:
        return None
    return {
        "id": restored.id,
        "restore_timestamp": restored.restore_timestamp,
        "is_savepoint": restored.is_savepoint,
        "external_path": uri_of(restored.external_path),
    }


def _summary(summary: StatsSummary, values: Sequence[int]) -> Json:
    """The statistics of the checkpoints that are remembered, with Flink's spelling of a number that is none."""
    ordered = sorted(values)
    quantiles = {name: _quantile(ordered, share) if ordered else "NaN" for name, share in _QUANTILES.items()}
    return {"min": summary.min, "max": summary.max, "avg": summary.avg, **quantiles}


def _quantile(ordered: Sequence[int], share: float) -> float:
    """As Flink's `DescriptiveStatistics` has it: between the two values around the place (n + 1) * share."""
    place = share * (len(ordered) + 1)
    below = min(max(int(place), 1), len(ordered))
    above = min(below + 1, len(ordered))
    part = min(max(place - below, 0.0), 1.0)
    return ordered[below - 1] + part * (ordered[above - 1] - ordered[below - 1])

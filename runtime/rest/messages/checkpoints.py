"""Checkpoint statistics of a job that has had none (Flink's `CheckpointingStatistics`)."""

from __future__ import annotations

from runtime.rest.messages.common import Json

_SUMMARIES = (
    "checkpointed_size",
    "state_size",
    "end_to_end_duration",
    "alignment_buffered",
    "processed_data",
    "persisted_data",
)


def statistics() -> Json:
    """GET /jobs/:jobid/checkpoints."""
    return {
        "counts": dict.fromkeys(("restored", "total", "in_progress", "completed", "failed"), 0),
        "summary": {name: _no_values() for name in _SUMMARIES},
        "latest": dict.fromkeys(("completed", "savepoint", "failed", "restored")),
        "history": [],
    }


def _no_values() -> Json:
    """The statistics of nothing, with Flink's spelling of a number that is none."""
    return {**dict.fromkeys(("min", "max", "avg"), 0), **dict.fromkeys(("p50", "p90", "p95", "p99", "p999"), "NaN")}

"""What the driver JVM says of a streaming query."""

from __future__ import annotations

from dataclasses import dataclass

from py4j.java_gateway import JavaObject


@dataclass(frozen=True, slots=True)
class StreamingQueryInfo:
    """A running streaming query; `id` outlives restarts from its checkpoint, `run_id` does not.

    `batch` is the number of the last batch that it has reported, None before the first; `progress` is that report,
    Spark's JSON. `trigger_interval_ms` is 0 where one batch follows the other, None where the trigger has no interval.
    `trigger_active` says whether a batch is under way, or data are looked for.
    """

    id: str
    run_id: str
    name: str | None
    active: bool
    batch: int | None = None
    progress: str | None = None
    trigger_interval_ms: int | None = None
    trigger_active: bool = False


def query_info(query: JavaObject) -> StreamingQueryInfo:
    """Ask a query (`org.apache.spark.sql.streaming.StreamingQuery`); some Py4J round trips."""
    name, progress = query.name(), query.lastProgress()
    return StreamingQueryInfo(
        query.id().toString(),
        query.runId().toString(),
        None if name is None else str(name),
        bool(query.isActive()),
        None if progress is None else int(progress.batchId()),
        None if progress is None else str(progress.json()),
        _trigger_interval_ms(query),
        bool(query.status().isTriggerActive()),
    )


def _trigger_interval_ms(query: JavaObject) -> int | None:
    trigger = query.streamingQuery().trigger()
    if trigger.getClass().getSimpleName() != "ProcessingTimeTrigger":
        return None
    return int(trigger.intervalMs())

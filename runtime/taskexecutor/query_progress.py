"""Spark's `StreamingQueryProgress` as JSON, read (pure).

Sums are made of the sources: their figures are there on Spark Connect too, where a progress has none of its own.
"""

from __future__ import annotations

import json
import math
from typing import Any

from runtime.jobmaster.streaming_query import QueryProgress, SourceProgress, sum_known


def query_progress(text: str) -> QueryProgress:
    """The figures of a progress; what it does not have is 0.

    Raises:
        ValueError: it is no progress of Spark's.
    """
    told = json.loads(text)
    if not isinstance(told, dict) or "batchId" not in told:
        raise ValueError("this is no progress of a streaming query: it names no batchId")
    sources = tuple(_source(source) for source in told.get("sources") or ())
    operators = told.get("stateOperators") or ()
    durations = told.get("durationMs") or {}
    return QueryProgress(
        batch=int(told["batchId"]),
        timestamp=str(told.get("timestamp", "")),
        duration_ms=int(durations.get("triggerExecution") or told.get("batchDuration") or 0),
        rows=sum(source.rows for source in sources),
        rows_per_second=sum(source.rows_per_second for source in sources),
        processed_per_second=sum(source.processed_per_second for source in sources),
        state_rows=sum(int(operator.get("numRowsTotal") or 0) for operator in operators),
        state_bytes=sum(int(operator.get("memoryUsedBytes") or 0) for operator in operators),
        sources=sources,
    )


def _source(told: dict[str, Any]) -> SourceProgress:
    return SourceProgress(
        description=str(told.get("description", "")),
        rows=int(told.get("numInputRows") or 0),
        rows_per_second=_rate(told.get("inputRowsPerSecond")),
        processed_per_second=_rate(told.get("processedRowsPerSecond")),
        lag=source_lag(told.get("endOffset"), told.get("latestOffset")),
    )


def _rate(value: Any) -> float:
    """Spark leaves out what is no number, in its first batch for one."""
    rate = float(value) if isinstance(value, int | float | str) else 0.0
    return rate if math.isfinite(rate) else 0.0


def source_lag(end: Any, latest: Any) -> int | None:
    """How far *end* is behind *latest*: numbers, Kafka's numbers of each partition, or a file source's log.

    A partition that *end* does not know is new: its beginning is not known, so neither is the lag.
    """
    end, latest = _parsed(end), _parsed(latest)
    if isinstance(end, int) and isinstance(latest, int):
        return max(latest - end, 0)
    if not isinstance(end, dict) or not isinstance(latest, dict) or not latest:
        return None
    if latest.keys() == {"logOffset"}:
        return source_lag(end.get("logOffset"), latest["logOffset"])
    if not all(isinstance(partitions, dict) for partitions in (*latest.values(), *end.values())):
        return None
    return sum_known(
        _partition_lag(end.get(topic, {}).get(partition), offset)
        for topic, partitions in latest.items()
        for partition, offset in partitions.items()
    )


def _partition_lag(end: Any, latest: Any) -> int | None:
    return max(latest - end, 0) if isinstance(end, int) and isinstance(latest, int) else None


def _parsed(offset: Any) -> Any:
    """An offset is JSON of its own where Spark could write it so, and a string where not."""
    if not isinstance(offset, str):
        return offset
    try:
        return json.loads(offset)
    except ValueError:
        return None

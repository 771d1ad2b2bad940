"""Reports of a TaskExecutor on a streaming query of a task: its progress, its back pressure and its history."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from runtime.ids import JobVertexID


class BackPressureLevel(Enum):
    """Back pressure of a query by Flink's names: OK if it keeps up with its sources.

    See `runtime.taskexecutor.streaming` for the limits.
    """

    OK = "ok"
    LOW = "low"
    HIGH = "high"


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """Figures of one source in the last batch.

    Args:
        description: Spark's, such as ``KafkaV2[Subscribe[clicks]]``.
        rows: rows that the batch read from it.
        rows_per_second: rows that arrived, divided by the time since the batch before; 0 where Spark reports none.
        processed_per_second: rows that were processed, divided by the duration of the batch.
        lag: distance from the batch's end to the source's newest data. Its unit is that of the offset: messages,
            seconds, or entries in the log of a file source. None where its offsets are not numbers.
    """

    description: str
    rows: int
    rows_per_second: float
    processed_per_second: float
    lag: int | None


@dataclass(frozen=True, slots=True)
class QueryProgress:
    """The last batch of a query that Spark has reported (Spark's `StreamingQueryProgress`).

    Args:
        batch: its number.
        timestamp: when it started, as Spark writes it (ISO 8601, UTC).
        duration_ms: its duration with all its phases.
        rows: rows that it read from all sources.
        rows_per_second: of all sources.
        processed_per_second: of all sources.
        state_rows: rows in the state of all operators.
        state_bytes: memory that these rows take, as Spark counts it.
        sources: each source, in order.
        busy: the part of the time in which batches ran, from 0 to 1. The time ends with the last batch with rows, and
            begins with the one that was reported before. None where none has ended since, or it is not known.
    """

    batch: int
    timestamp: str
    duration_ms: int
    rows: int
    rows_per_second: float
    processed_per_second: float
    state_rows: int
    state_bytes: int
    sources: tuple[SourceProgress, ...] = ()
    busy: float | None = None

    @property
    def lag(self) -> int | None:
        """Return the sum of the lags of all sources; None where one of them is unknown."""
        return None if not self.sources else sum_known(source.lag for source in self.sources)


@dataclass(frozen=True, slots=True)
class BackPressure:
    """Back pressure of a query, judged by its last batches.

    Args:
        level: the judgement.
        busy: the part of the trigger interval that a batch takes, above 1 where batches overrun it; None where there
            is no interval.
    """

    level: BackPressureLevel
    busy: float | None = None


@dataclass(frozen=True, slots=True)
class StreamingQuery:
    """A streaming query of a task.

    Args:
        id: Spark's id, which outlives restarts from its checkpoint.
        run_id: Spark's id of this run.
        name: its name in the job; empty if it has none.
        batch: number of the last batch that it has reported; None before the first.
        trigger_interval_ms: the time between triggers; None where each batch starts when the one before ends.
        progress: figures of that batch.
        back_pressure: None while it is not known.
        is_endless: whether it runs until it is stopped: its trigger repeats, and is not ``once`` or ``availableNow``.
    """

    id: str
    run_id: str
    name: str
    batch: int | None
    trigger_interval_ms: int | None = None
    progress: QueryProgress | None = None
    back_pressure: BackPressure | None = None
    is_endless: bool = False


@dataclass(frozen=True, slots=True)
class QueryHistory:
    """Figures of a query's past batches as columns of equal length, the oldest batch first.

    See `runtime.jobmaster.query_history` for which batches are kept.

    Args:
        task: key of the query's task.
        id: Spark's id of the query.
        run_id: of its last run.
        name: its name in the job; empty if it has none.
        at_ms: when the JobMaster received the batch's report, in milliseconds since the epoch.
        batches: its number; the other columns are the figures of `QueryProgress`.
        rows_per_second: see there.
        processed_per_second: see there.
        durations_ms: see there.
        state_rows: see there.
        state_bytes: see there.
        lags: see there; None where the lag is not known.
        busy: see there.
    """

    task: JobVertexID
    id: str
    run_id: str
    name: str
    at_ms: tuple[int, ...] = ()
    batches: tuple[int, ...] = ()
    rows_per_second: tuple[float, ...] = ()
    processed_per_second: tuple[float, ...] = ()
    durations_ms: tuple[int, ...] = ()
    state_rows: tuple[int, ...] = ()
    state_bytes: tuple[int, ...] = ()
    lags: tuple[int | None, ...] = ()
    busy: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True)
class OperatorBackPressureStats:
    """Back pressure of a task, which is one subtask (Flink's `OperatorBackPressureStats`).

    Args:
        level: the level of its worst query.
        attempt: number of the attempt.
        busy: that query's `BackPressure.busy`.
    """

    level: BackPressureLevel
    attempt: int
    busy: float | None = None

    @property
    def ratios(self) -> tuple[float, float, float] | None:
        """Return the back-pressured, busy and idle parts of the time; they add up to 1.

        None where there is no trigger interval. A query whose batches take twice the interval is back-pressured for
        half of the time.
        """
        if self.busy is None:
            return None
        if self.busy <= 1:
            return 0.0, self.busy, 1 - self.busy
        return 1 - 1 / self.busy, 1 / self.busy, 0.0


def back_pressure_stats(attempt: int, queries: Iterable[StreamingQuery]) -> OperatorBackPressureStats | None:
    """Return the back pressure of the worst of an attempt's queries; None where it is unknown for all of them."""
    known = [query.back_pressure for query in queries if query.back_pressure is not None]
    if not known:
        return None
    order = list(BackPressureLevel)
    worst = max(known, key=lambda found: (order.index(found.level), found.busy or 0.0))
    return OperatorBackPressureStats(worst.level, attempt, worst.busy)


def sum_known(values: Iterable[int | None]) -> int | None:
    """Return the sum; None where one of the values is None."""
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total

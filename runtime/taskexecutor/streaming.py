"""The streaming queries of a task: Spark's reports of them, their back pressure, and detection of stuck queries.

`query_progress`, `BackPressureMonitor` and `ProgressWatchdog` are pure. `QueryReports` and `SeenQueries` also log
reports that they cannot read. `watch_queries` queries the driver, and has the clock.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from statistics import median
from typing import Any

from runtime.protocol.streaming_query import (
    BackPressure,
    BackPressureLevel,
    QueryProgress,
    SourceProgress,
    StreamingQuery,
    sum_known,
)
from runtime.spark.driver.api import SparkDriver, StreamingQueryInfo
from runtime.spark.errors import SparkError
from runtime.spark.spec import ClassicEndpoint, ConnectEndpoint

WINDOW = 5
LOW_FROM = 0.5
HIGH_ABOVE = 1.0
GROWS_FROM = 3
"""Number of batches that must have a known backlog before it can count as growing."""

INTERVAL_S = 1.0
REPEAT_S = 5.0
KEPT = 50
"""Number of an attempt's queries whose last figures are kept."""

logger = logging.getLogger(__name__)


def query_progress(text: str) -> QueryProgress:
    """Read Spark's `StreamingQueryProgress`, which is JSON; a missing figure is 0.

    The sums are computed from the sources, because on Spark Connect a progress has no sums of its own.

    Raises:
        ValueError: the text is not progress of Spark's.
    """
    told = json.loads(text)
    if not isinstance(told, dict) or "batchId" not in told:
        raise ValueError("this is not progress of a streaming query: it names no batchId")
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


_PYTHON_SOURCE = re.compile(r"org\.apache\.spark\.sql\.execution\.datasources\.v2\.python\.")
"""Spark's description of a Python data source: a class of Spark's own, without the source's name."""


def _source(told: dict[str, Any]) -> SourceProgress:
    description, end, latest = str(told.get("description", "")), told.get("endOffset"), told.get("latestOffset")
    if _PYTHON_SOURCE.match(description):
        description = "Python data source"
        if isinstance(end, dict) and isinstance(latest, dict):  # numbers by partition, as those of a Kafka topic
            end, latest = {"": end}, {"": latest}
    return SourceProgress(
        description=description,
        rows=int(told.get("numInputRows") or 0),
        rows_per_second=_rate(told.get("inputRowsPerSecond")),
        processed_per_second=_rate(told.get("processedRowsPerSecond")),
        lag=source_lag(end, latest),
    )


def _rate(value: Any) -> float:
    """Return a rate, or 0: Spark leaves out what is not a number, for one in the first batch."""
    rate = float(value) if isinstance(value, int | float | str) else 0.0
    return rate if math.isfinite(rate) else 0.0


def source_lag(end: Any, latest: Any) -> int | None:
    """Return how far *end* is behind *latest*: numbers, Kafka's numbers per partition, or a file source's log.

    A partition that *end* lacks is new, and its first offset is not known. Then the lag is None.
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
    """Return an offset, which is JSON where Spark could write it so, and a string of JSON otherwise."""
    if not isinstance(offset, str):
        return offset
    try:
        return json.loads(offset)
    except ValueError:
        return None


class BackPressureMonitor:
    """Judges whether one run of a query keeps up with its sources, by its batches.

    Flink measures the time that a task waits for free output buffers (OK to 10 % of the time, LOW to 50 %, HIGH above).
    A micro-batch has no such buffers; here the measure is the part of the trigger interval that a batch takes. `busy`
    is that part, which with steady input also equals Spark's input rate divided by its processing rate. Above 1 the
    next batch starts late, and is longer still, because more data has arrived by then.

    | level | busy, the median of the last 5 batches | backlog |
    |---|---|---|
    | OK | below 0.5 | |
    | LOW | 0.5 to 1 | |
    | HIGH | above 1 | or growing |

    Batch 0 is left out: it compiles, and reads all existing input. Without a trigger interval only the backlog counts;
    if the backlog is not known either, there is no judgement.
    """

    def __init__(self) -> None:
        self._batches: deque[QueryProgress] = deque(maxlen=WINDOW)

    def observe(self, progress: QueryProgress, trigger_interval_ms: int | None) -> BackPressure | None:
        """Return the judgement after *progress*; observing the same batch again changes nothing.

        Args:
            progress: the last batch.
            trigger_interval_ms: None or 0 if each batch starts right after the last one.
        """
        last = self._batches[-1] if self._batches else None
        if progress.batch > 0 and (last is None or _moment(progress) != _moment(last)):
            self._batches.append(progress)
        if not self._batches:
            return None
        grows = self._backlog_grows()
        if not trigger_interval_ms:
            return None if grows is None else BackPressure(BackPressureLevel.HIGH if grows else BackPressureLevel.OK)
        busy = median(batch.duration_ms for batch in self._batches) / trigger_interval_ms
        if busy > HIGH_ABOVE or grows:
            return BackPressure(BackPressureLevel.HIGH, busy)
        return BackPressure(BackPressureLevel.OK if busy < LOW_FROM else BackPressureLevel.LOW, busy)

    def _backlog_grows(self) -> bool | None:
        """Return whether the backlog has grown without ever shrinking; None if that is not known."""
        lags = [batch.lag for batch in self._batches]
        known = [lag for lag in lags if lag is not None]
        if len(known) < len(lags) or len(known) < GROWS_FROM:
            return None
        return known[-1] > known[0] and all(later >= earlier for earlier, later in pairwise(known))


class BusyTime:
    """Measures for which part of the time one run of a query has batches.

    Spark's rates do not tell it. Its input rate counts from the trigger before, and a query that has just looked for
    data in vain had one a moment ago. So this compares the durations of the batches with the time from the end of one
    batch with rows to the end of the next. Batches without rows belong to the next one with rows.
    """

    def __init__(self) -> None:
        self._batch: int | None = None
        self._end_ms: float | None = None
        self._took_ms = 0.0

    def observe(self, batches: Iterable[QueryProgress]) -> float | None:
        """Return the share, from 0 to 1, for the time until the end of the last batch with rows.

        Args:
            batches: all that are reported since the last call, the oldest first. One whose report is missing counts as
                long as the next one.

        Returns:
            None without a batch with rows, and before the second one.
        """
        took_ms, end_ms = None, None
        for progress in batches:
            missing = 0 if self._batch is None else max(progress.batch - self._batch - 1, 0)
            self._batch = progress.batch
            self._took_ms += (missing + 1) * progress.duration_ms
            began_ms = _began_ms(progress)
            if progress.rows and began_ms is not None:
                took_ms, end_ms = self._took_ms, began_ms + progress.duration_ms
        if took_ms is None or end_ms is None:
            return None
        before_ms, self._end_ms = self._end_ms, end_ms
        self._took_ms -= took_ms
        if before_ms is None or end_ms <= before_ms:
            return None
        return min(took_ms / (end_ms - before_ms), 1.0)


def _began_ms(progress: QueryProgress) -> float | None:
    try:
        return datetime.fromisoformat(progress.timestamp).timestamp() * 1000
    except ValueError:
        return None


def _moment(progress: QueryProgress) -> tuple[int, str]:
    """Key that tells one report from another: a query without new data reports the same batch number again."""
    return progress.batch, progress.timestamp


class ProgressWatchdog:
    """Finds queries of a task that make no progress within a batch.

    A query that waits for its trigger does not count: it has nothing to do. A query whose trigger is active, and whose
    report does not change, is stuck in a batch or in a request to its sources.

    Args:
        timeout_s: seconds without progress, in a batch, after which a query is stuck.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._seen: dict[str, tuple[str | None, float]] = {}

    def observe(self, infos: Iterable[StreamingQueryInfo], now: float) -> StreamingQueryInfo | None:
        """Return the first query that is stuck; None if none is.

        Args:
            infos: the queries that are active.
            now: seconds of a clock that never goes back.
        """
        seen: dict[str, tuple[str | None, float]] = {}
        stuck = None
        for info in infos:
            progress, since = self._seen.get(info.run_id, (info.progress, now))
            if not info.trigger_active or info.progress != progress:
                progress, since = info.progress, now
            seen[info.run_id] = progress, since
            if stuck is None and now - since >= self._timeout_s:
                stuck = info
        self._seen = seen
        return stuck


class _Run:
    """Memory of a run of a query."""

    def __init__(self) -> None:
        self._monitor = BackPressureMonitor()
        self._busy = BusyTime()
        self._last: QueryProgress | None = None

    def observe(
        self, earlier: Iterable[QueryProgress], last: QueryProgress, trigger_interval_ms: int | None
    ) -> tuple[QueryProgress, BackPressure | None]:
        """Return the last report with the busy time, and the judgement after it."""
        if self._last is None or _moment(self._last) != _moment(last):
            batches = [*earlier, last]
            for progress in batches:
                self._monitor.observe(progress, trigger_interval_ms)
            self._last = replace(last, busy=self._busy.observe(batches))
        return self._last, self._monitor.observe(last, trigger_interval_ms)


class QueryReports:
    """Makes a task's reports from Spark's figures of its queries; remembers the last batches of each run."""

    def __init__(self) -> None:
        self._runs: dict[str, _Run] = {}

    def report(self, infos: Iterable[StreamingQueryInfo]) -> tuple[StreamingQuery, ...]:
        """Return the reports of the queries that are active now."""
        found = list(infos)
        self._runs = {info.run_id: self._runs.get(info.run_id) or _Run() for info in found}
        return tuple(self._report(info) for info in found)

    def _report(self, info: StreamingQueryInfo) -> StreamingQuery:
        interval = info.trigger_interval_ms or None
        progress = pressure = None
        if info.progress is not None:
            try:
                earlier, last = map(query_progress, info.earlier), query_progress(info.progress)
                progress, pressure = self._runs[info.run_id].observe(earlier, last, interval)
            except ValueError as error:
                logger.warning("the progress of query %s cannot be read: %s", info.name or info.id, error)
        batch = info.batch if progress is None else progress.batch
        is_endless = info.trigger_interval_ms is not None
        return StreamingQuery(info.id, info.run_id, info.name or "", batch, interval, progress, pressure, is_endless)


class SeenQueries:
    """The queries that an attempt has had, each with its last figures; the newest `KEPT` of them."""

    def __init__(self) -> None:
        self._seen: dict[str, StreamingQuery] = {}

    @property
    def all(self) -> tuple[StreamingQuery, ...]:
        """All of them, in the order in which they came."""
        return tuple(self._seen.values())

    def add(self, queries: Iterable[StreamingQuery]) -> None:
        """Store the present figures of these queries."""
        for query in queries:
            if query.id not in self._seen and len(self._seen) == KEPT:
                del self._seen[next(iter(self._seen))]
            self._seen[query.id] = query

    def add_reports(self, reports: Iterable[Mapping[str, str]]) -> None:
        """Take the last reports of queries that have ended; see `QuerySupervisor.last_progress`."""
        for told in reports:
            query_id, run_id, name = told["id"], told["run_id"], told["name"]
            try:
                progress = query_progress(told["json"])
            except ValueError as error:
                logger.warning("the last progress of query %s cannot be read: %s", name or query_id, error)
                continue
            known = self._seen.get(query_id)
            if known is None or known.run_id != run_id:
                known = StreamingQuery(query_id, run_id, name, None)
            self.add([replace(known, batch=progress.batch, progress=progress)])


async def watch_queries(
    driver: SparkDriver,
    endpoint: ClassicEndpoint | ConnectEndpoint,
    tell: Callable[[tuple[StreamingQuery, ...]], None],
    watchdog: ProgressWatchdog | None = None,
) -> StreamingQueryInfo | None:
    """Report a task's active queries when they change, and every `REPEAT_S` for a new JobMaster; until cancelled.

    Returns:
        the query that is stuck, or None once the driver is lost, which other watchers report.
    """
    reports = QueryReports()
    told: tuple[StreamingQuery, ...] = ()
    told_at = time.monotonic()
    while True:
        await asyncio.sleep(INTERVAL_S)
        try:
            infos = await driver.streaming_queries(endpoint)
        except SparkError:
            return None
        if watchdog is not None and (stuck := watchdog.observe(infos, time.monotonic())) is not None:
            return stuck
        found = reports.report(infos)
        if found != told or (found and time.monotonic() - told_at > REPEAT_S):
            tell(found)
            told, told_at = found, time.monotonic()

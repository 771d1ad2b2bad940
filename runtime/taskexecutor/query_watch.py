"""Sees the streaming queries of a task: whatever its code starts, in whichever of its sessions."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from runtime.jobmaster.streaming_query import StreamingQuery
from runtime.spark import ClassicEndpoint, ConnectEndpoint, SparkDriver, SparkVehicleError, StreamingQueryInfo
from runtime.taskexecutor.back_pressure import BackPressureMonitor
from runtime.taskexecutor.progress_watchdog import ProgressWatchdog
from runtime.taskexecutor.query_progress import query_progress

INTERVAL_S = 1.0
REPEAT_S = 5.0
KEPT = 50
"""Of how many of its queries an attempt's last figures are kept."""

log = logging.getLogger(__name__)


class QueryReports:
    """Makes a task's reports of what Spark says of its queries; remembers the last batches of each run (pure)."""

    def __init__(self) -> None:
        self._monitors: dict[str, BackPressureMonitor] = {}

    def report(self, infos: Iterable[StreamingQueryInfo]) -> tuple[StreamingQuery, ...]:
        """What is to be told of the queries that are active now."""
        found = list(infos)
        self._monitors = {info.run_id: self._monitors.get(info.run_id) or BackPressureMonitor() for info in found}
        return tuple(self._report(info) for info in found)

    def _report(self, info: StreamingQueryInfo) -> StreamingQuery:
        interval = info.trigger_interval_ms or None
        progress = pressure = None
        if info.progress is not None:
            try:
                progress = query_progress(info.progress)
            except ValueError as error:
                log.warning("the progress of query %s cannot be read: %s", info.name or info.id, error)
            else:
                pressure = self._monitors[info.run_id].observe(progress, interval)
        batch = info.batch if progress is None else progress.batch
        return StreamingQuery(info.id, info.run_id, info.name or "", batch, interval, progress, pressure)


class SeenQueries:
    """The queries that an attempt has had, each as it was seen last, the newest `KEPT` (pure)."""

    def __init__(self) -> None:
        self._seen: dict[str, StreamingQuery] = {}

    @property
    def all(self) -> tuple[StreamingQuery, ...]:
        """All of them, in the order in which they came."""
        return tuple(self._seen.values())

    def add(self, queries: Iterable[StreamingQuery]) -> None:
        """These were seen."""
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
                log.warning("the last progress of query %s cannot be read: %s", name or query_id, error)
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
    """Tell a task's active queries when they change, and now and then, for a JobMaster that is new; until cancelled.

    It ends by itself when the driver is lost, which others tell, and with the query that is stuck when there is one.
    """
    reports = QueryReports()
    told: tuple[StreamingQuery, ...] = ()
    told_at = time.monotonic()
    while True:
        await asyncio.sleep(INTERVAL_S)
        try:
            infos = await driver.streaming_queries(endpoint)
        except SparkVehicleError:
            return None
        if watchdog is not None and (stuck := watchdog.observe(infos, time.monotonic())) is not None:
            return stuck
        found = reports.report(infos)
        if found != told or (found and time.monotonic() - told_at > REPEAT_S):
            tell(found)
            told, told_at = found, time.monotonic()

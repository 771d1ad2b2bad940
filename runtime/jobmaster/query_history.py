"""The past figures of a job's streaming queries: what the charts of the web page show. Pure.

Each query has a ring of points, one for each batch that was reported. A full ring of less than an hour is thinned:
every second point goes, and from then on points are kept as far apart as the others are. A full ring of more drops its
oldest point. So a query with a batch each second keeps its last hour, a point each 15 to 30 s, and one with a batch
each ten minutes its last 240 batches. The newest point is always there.

Spark's own page keeps the last 100 progress reports of a query (``spark.sql.streaming.numRecentProgressUpdates``). The
JobMaster keeps this history in memory: its successor begins a new one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from runtime.ids import JobVertexID
from runtime.protocol.streaming_query import QueryHistory, QueryProgress, StreamingQuery

MOST_POINTS = 240
"""Points that are kept of a query."""
SPAN_MS = 3_600_000
"""Time that a full ring covers before its oldest points are dropped."""
MOST_QUERIES = 64
"""Queries of a job that are kept; the one that was silent for longest makes room."""


class _Point(NamedTuple):
    """Figures of a batch, in the order of the columns of `QueryHistory`."""

    at_ms: int
    batch: int
    rows_per_second: float
    processed_per_second: float
    duration_ms: int
    state_rows: int
    state_bytes: int
    lag: int | None


class _Ring:
    """The points of one query."""

    def __init__(self) -> None:
        self._points: list[_Point] = []
        self._spacing_ms = 0.0
        self._last: QueryProgress | None = None

    def add(self, progress: QueryProgress, at_ms: int) -> None:
        """Keep the figures of a batch; the same report again changes nothing."""
        if progress == self._last:
            return
        self._last = progress
        point = _Point(
            at_ms,
            progress.batch,
            progress.rows_per_second,
            progress.processed_per_second,
            progress.duration_ms,
            progress.state_rows,
            progress.state_bytes,
            progress.lag,
        )
        points = self._points
        if len(points) > 1 and points[-1].at_ms - points[-2].at_ms < self._spacing_ms:
            points[-1] = point
        else:
            points.append(point)
        if len(points) <= MOST_POINTS:
            return
        covered_ms = points[-1].at_ms - points[0].at_ms
        if covered_ms < SPAN_MS:
            del points[1::2]
            self._spacing_ms = covered_ms / len(points)
        else:
            del points[0]

    def columns(self) -> tuple[tuple[int, ...], ...]:
        """Return the points, column by column."""
        return tuple(zip(*self._points, strict=True)) or ((),) * len(_Point._fields)


class QueryHistories:
    """The histories of all queries of a job, by task and Spark's id of the query, which outlives its restarts."""

    def __init__(self) -> None:
        self._rings: dict[tuple[JobVertexID, str], tuple[StreamingQuery, _Ring]] = {}

    def add(self, task: JobVertexID, queries: Iterable[StreamingQuery], at_ms: int) -> None:
        """Take what a task reports of its queries; *at_ms* is now, in milliseconds since the epoch."""
        for query in queries:
            _, ring = self._rings.pop((task, query.id), (None, _Ring()))
            self._rings[task, query.id] = query, ring  # at the end, as the one that was heard of last
            if query.progress is not None:
                ring.add(query.progress, at_ms)
        while len(self._rings) > MOST_QUERIES:
            del self._rings[next(iter(self._rings))]

    def all(self) -> list[QueryHistory]:
        """Return the histories by the names of the queries, an order that does not change while these report."""
        by_name = sorted(self._rings.items(), key=lambda item: (item[1][0].name, item[0]))
        return [
            QueryHistory(task, query.id, query.run_id, query.name, *ring.columns())
            for (task, _), (query, ring) in by_name
        ]

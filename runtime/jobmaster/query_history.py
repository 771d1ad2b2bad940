"""Past figures of a job's streaming queries, for the charts of the web page. Pure.

Each query has a ring of points, one for each reported batch. When the ring is full and covers less than an hour, every
second point is dropped. From then on, points are kept at the same distance as the others. When it covers more, the
oldest point is dropped. So a query with a batch each second keeps its last hour, with a point each 15 to 30 s. A query
with a batch each ten minutes keeps its last 240 batches. The ring always has the newest point.

Spark's own page keeps the last 100 progress reports of a query (``spark.sql.streaming.numRecentProgressUpdates``). The
JobMaster keeps this history in memory only: the next JobMaster starts a new one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from runtime.ids import JobVertexID
from runtime.protocol.streaming_query import QueryHistory, QueryProgress, StreamingQuery

MOST_POINTS = 240
"""Number of points that are kept of a query."""
SPAN_MS = 3_600_000
"""Time that a full ring covers before its oldest points are dropped."""
MOST_QUERIES = 64
"""Number of queries of a job that are kept; a new one replaces the one that has been silent for longest."""


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
    busy: float | None


class _Ring:
    """The points of one query."""

    def __init__(self) -> None:
        self._points: list[_Point] = []
        self._spacing_ms = 0.0
        self._last: QueryProgress | None = None

    def add(self, progress: QueryProgress, at_ms: int) -> None:
        """Store the figures of a batch; storing the same report again changes nothing."""
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
            progress.busy,
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
    """Histories of all queries of a job, by task and by Spark's id of the query, which its restarts do not change."""

    def __init__(self) -> None:
        self._rings: dict[tuple[JobVertexID, str], tuple[StreamingQuery, _Ring]] = {}

    def add(self, task: JobVertexID, queries: Iterable[StreamingQuery], at_ms: int) -> None:
        """Store a task's report of its queries; *at_ms* is now, in milliseconds since the epoch."""
        for query in queries:
            _, ring = self._rings.pop((task, query.id), (None, _Ring()))
            self._rings[task, query.id] = query, ring  # at the end, as the one that has reported last
            if query.progress is not None:
                ring.add(query.progress, at_ms)
        while len(self._rings) > MOST_QUERIES:
            del self._rings[next(iter(self._rings))]

    def all(self) -> list[QueryHistory]:
        """Return the histories by the names of the queries, an order that further reports do not change."""
        by_name = sorted(self._rings.items(), key=lambda item: (item[1][0].name, item[0]))
        return [
            QueryHistory(task, query.id, query.run_id, query.name, *ring.columns())
            for (task, _), (query, ring) in by_name
        ]

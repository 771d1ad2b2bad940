"""The kinds of metrics, their values in the form that travels, and the gateway that serves a process's metrics. Pure.

The kinds are Flink's `Counter`, `Meter` and `Histogram`; a `Gauge` is any callable. Values travel with the scope that
they belong to, as in Flink's `QueryScopeInfo` and `MetricDump`.

Metrics have no timers: rates and quantiles are computed when a client requests them, so unread metrics cost nothing.
Flink's `MeterView`, in contrast, is updated every five seconds.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from actors.rpc.gateway import Ask, RpcGateway, reads
from runtime.ids import ResourceID

NAME = "metric-query-service"
PATH = f"/user/{NAME}"
"""Path of the MetricQueryService, the same in every process."""

METER_WINDOW_S = 60
HISTOGRAM_WINDOW = 1024

Number = int | float
Value = int | float | str
Gauge = Callable[[], Value | None]
"""Returns the current value; None where it is unknown, so that the metric is left out."""


class Counter:
    """A count of events."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def inc(self, n: int = 1) -> None:
        """Count *n* more."""
        self.count += n


class Meter:
    """Rate of events: their number per second within the last minute.

    Args:
        clock: returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds: deque[list[int]] = deque()  # [second, events in it], at most one a second

    def mark(self, n: int = 1) -> None:
        """Count *n* events now."""
        now = int(self._clock())
        if self._seconds and self._seconds[-1][0] == now:
            self._seconds[-1][1] += n
        else:
            self._seconds.append([now, n])
            self._forget(now)

    def rate(self) -> float:
        """Return the events per second over the last `METER_WINDOW_S` seconds."""
        self._forget(int(self._clock()))
        return sum(n for _, n in self._seconds) / METER_WINDOW_S

    def _forget(self, now: int) -> None:
        while self._seconds and self._seconds[0][0] <= now - METER_WINDOW_S:
            self._seconds.popleft()


@dataclass(frozen=True, slots=True)
class HistogramStatistics:
    """Statistics of a histogram (Flink's `HistogramDump`): count and sum of all values, the others of kept values."""

    count: int
    sum: float
    min: float
    max: float
    mean: float
    stddev: float
    median: float
    p75: float
    p90: float
    p95: float
    p98: float
    p99: float
    p999: float


class Histogram:
    """A series of values, of which the last ones are kept (Flink's `DescriptiveStatisticsHistogram`).

    Args:
        window: number of values that are kept.
    """

    def __init__(self, window: int = HISTOGRAM_WINDOW) -> None:
        self.count = 0
        self._sum = 0.0
        self._kept: deque[float] = deque(maxlen=window)

    def update(self, value: Number) -> None:
        """Add a value."""
        self.count += 1
        self._sum += value
        self._kept.append(float(value))

    def statistics(self) -> HistogramStatistics:
        """Return the statistics of the kept values; zeros where there are none. Quantiles are values that occurred."""
        ordered = sorted(self._kept) or [0.0]
        mean = math.fsum(ordered) / len(ordered)
        variance = math.fsum((value - mean) ** 2 for value in ordered) / len(ordered)

        def quantile(q: float) -> float:
            return ordered[max(math.ceil(q * len(ordered)) - 1, 0)]

        return HistogramStatistics(
            self.count,
            self._sum,
            ordered[0],
            ordered[-1],
            mean,
            math.sqrt(variance),
            *(quantile(q) for q in (0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.999)),
        )


class ScopeCategory(Enum):
    """Kind of thing that a metric belongs to."""

    JOB_MANAGER = "jobmanager"
    TASK_MANAGER = "taskmanager"
    JOB = "job"
    TASK = "task"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class MetricScope:
    """Owner of metrics (Flink's `QueryScopeInfo`); fields that do not apply are empty.

    Args:
        category: kind of the owner.
        component: of JOB_MANAGER: the process, e.g. ``dispatcher``; empty for metrics of the whole cluster.
        task_manager: resource id of the TaskExecutor.
        job_id: the job.
        job_name: its name.
        task_id: the task, which REST calls a vertex.
        task_name: its name.
        operator_name: the vertex of a chain, or a streaming query.
        queue: of JOB_MANAGER: the queue. Its metrics are for Prometheus, where it is a label; by HTTP each queue's name
            is a part of the ids of the whole cluster.
    """

    category: ScopeCategory
    component: str = ""
    task_manager: str = ""
    job_id: str = ""
    job_name: str = ""
    task_id: str = ""
    task_name: str = ""
    operator_name: str = ""
    queue: str = ""


class MetricKind(Enum):
    """The kind of a metric, which determines its type in Prometheus."""

    COUNTER = "counter"
    GAUGE = "gauge"
    METER = "meter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class MetricDump:
    """The value of one metric.

    Args:
        name: within its scope, with dots between groups.
        kind: its kind.
        value: the count of a counter or histogram, the events per second of a meter, or the value of a gauge.
        statistics: of a histogram only.
    """

    name: str
    kind: MetricKind
    value: Value
    statistics: HistogramStatistics | None = None


@dataclass(frozen=True, slots=True)
class ScopeDump:
    """The metrics of one scope."""

    scope: MetricScope
    metrics: tuple[MetricDump, ...]


def gauges(values: dict[str, Value | None]) -> tuple[MetricDump, ...]:
    """Return values that were read together as gauges; a value of None is unknown and left out."""
    return tuple(MetricDump(name, MetricKind.GAUGE, value) for name, value in values.items() if value is not None)


@dataclass(frozen=True, slots=True)
class TaskManagerMetricAddress:
    """Address that serves the metrics of a TaskExecutor."""

    resource_id: ResourceID
    address: str


class MetricQueryServiceGateway(RpcGateway):
    """Gateway that serves the metrics of a process (Flink's `MetricQueryServiceGateway`).

    Not fenced: a process answers with its own figures whether or not it leads.
    """

    @reads
    def query_metrics(self) -> Ask[list[ScopeDump]]:
        """Return the current values."""
        raise NotImplementedError

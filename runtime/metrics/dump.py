"""Metrics as they travel: values with the scope that they belong to (Flink's `QueryScopeInfo` and `MetricDump`)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from runtime.metrics.metric import HistogramStatistics, Value


class ScopeCategory(Enum):
    """What a metric is of."""

    JOB_MANAGER = "jobmanager"
    TASK_MANAGER = "taskmanager"
    JOB = "job"
    TASK = "task"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class MetricScope:
    """Whose metrics they are (Flink's `QueryScopeInfo`); what does not apply is empty.

    Args:
        category: what they are of.
        component: of JOB_MANAGER: the process, e.g. ``dispatcher``; empty for what is the cluster's.
        task_manager: resource id of the TaskExecutor.
        job_id: the job.
        job_name: its name.
        task_id: the task, which REST calls a vertex.
        task_name: its name.
        operator_name: the vertex of a chain, or a streaming query.
    """

    category: ScopeCategory
    component: str = ""
    task_manager: str = ""
    job_id: str = ""
    job_name: str = ""
    task_id: str = ""
    task_name: str = ""
    operator_name: str = ""


class MetricKind(Enum):
    """The kind of a metric: what Prometheus is told of its type."""

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
        value: of a counter its count, of a meter events a second, of a gauge what it gives; of a histogram its count.
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
    """Values that were read together, as gauges; those that are None are not known and are left out."""
    return tuple(MetricDump(name, MetricKind.GAUGE, value) for name, value in values.items() if value is not None)

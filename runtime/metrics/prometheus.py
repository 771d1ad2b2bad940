"""Metrics in Prometheus's text format 0.0.4 (Flink's `PrometheusReporter`, names included). Pure.

The names are Flink's (``flink_jobmanager_job_numRestarts``), so dashboards and alerts that were made for Flink find
what there is of them. Counters are told as counters, meters as the gauge of their rate, histograms as summaries; texts
cannot be told to Prometheus. What Flink has in the one process of its JobManager is told apart by ``component``.

This is written out here rather than by the prometheus_client library: that keeps the values of its own process, where
these are other processes', read at the moment of the scrape; what would be used of it is these few lines of format.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

from runtime.metrics.dump import MetricDump, MetricKind, MetricScope, ScopeCategory
from runtime.metrics.metric import Number

MEDIA = "text/plain; version=0.0.4; charset=utf-8"

_PREFIXES = {
    ScopeCategory.JOB_MANAGER: "flink_jobmanager",
    ScopeCategory.JOB: "flink_jobmanager_job",
    ScopeCategory.TASK_MANAGER: "flink_taskmanager",
    ScopeCategory.TASK: "flink_taskmanager_job_task",
    ScopeCategory.OPERATOR: "flink_taskmanager_job_task_operator",
}
_LABELS = {
    "component": "component",
    "task_manager": "tm_id",
    "job_id": "job_id",
    "job_name": "job_name",
    "task_id": "task_id",
    "task_name": "task_name",
    "operator_name": "operator_name",
}
_TYPES = {
    MetricKind.COUNTER: "counter",
    MetricKind.GAUGE: "gauge",
    MetricKind.METER: "gauge",
    MetricKind.HISTOGRAM: "summary",
}
_QUANTILES = (("0.5", "median"), ("0.75", "p75"), ("0.95", "p95"), ("0.98", "p98"), ("0.99", "p99"), ("0.999", "p999"))
_OTHER = re.compile(r"[^a-zA-Z0-9:_]")
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def exposition(scopes: Mapping[MetricScope, Mapping[str, MetricDump]]) -> str:
    """All metrics that are numbers, each family together, as Prometheus wants it.

    Args:
        scopes: metrics by scope and name, as `runtime.metrics.store.MetricStore` has them.
    """
    families: dict[str, tuple[str, dict[str, list[str]]]] = {}
    for scope, metrics in scopes.items():
        labels = _labels(scope)
        for metric in metrics.values():
            name = _OTHER.sub("_", f"{_PREFIXES[scope.category]}_{metric.name}")
            kind, samples = families.setdefault(name, (_TYPES[metric.kind], {}))
            if kind == _TYPES[metric.kind]:
                lines = list(_samples(name, labels, metric))
                if lines:
                    samples.setdefault(labels, lines)  # a sample is told once, or the whole scrape is refused
    found: list[str] = []
    for name, (kind, samples) in families.items():
        if samples:
            found.append(f"# TYPE {name} {kind}")
            found += (line for lines in samples.values() for line in lines)
    return "".join(f"{line}\n" for line in found)


def _labels(scope: MetricScope) -> str:
    shown = {label: getattr(scope, name) for name, label in _LABELS.items()}
    return ",".join(f'{label}="{value.translate(_ESCAPES)}"' for label, value in shown.items() if value)


def _samples(name: str, labels: str, metric: MetricDump) -> Iterator[str]:
    if isinstance(metric.value, str):
        return
    told = metric.statistics
    if told is None:
        yield _sample(name, labels, metric.value)
        return
    for quantile, field in _QUANTILES:
        yield _sample(
            name, f'{labels},quantile="{quantile}"' if labels else f'quantile="{quantile}"', getattr(told, field)
        )
    yield _sample(f"{name}_sum", labels, told.sum)
    yield _sample(f"{name}_count", labels, told.count)


def _sample(name: str, labels: str, value: Number) -> str:
    shown = str(value) if math.isfinite(value) else "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return f"{name}{{{labels}}} {shown}" if labels else f"{name} {shown}"

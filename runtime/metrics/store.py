"""The metrics of a cluster at one moment, by the ids that REST uses (Flink's `MetricStore`). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields

from runtime.metrics.metric import HistogramStatistics, MetricDump, MetricScope, ScopeCategory, ScopeDump, Value

_STATISTICS = tuple(field.name for field in fields(HistogramStatistics) if field.name not in ("count", "sum"))
_FILTERED = str.maketrans(dict.fromkeys(" .:,", "_"))


def expanded(metric: MetricDump) -> Iterator[tuple[str, Value]]:
    """Yield a metric's ids and values; a histogram has one for each of its statistics, as in Flink (``name_p99``)."""
    if metric.statistics is None:
        yield metric.name, metric.value
        return
    for name in _STATISTICS:
        yield f"{metric.name}_{name}", getattr(metric.statistics, name)


class MetricStore:
    """Values of metrics by their ids.

    Args:
        dumps: the metrics of the cluster's processes; if a metric occurs twice, the later value counts.

    Attributes:
        scopes: all metrics by scope and name.
        job_manager: of the control plane, without the scopes of queues; metrics of one process have the prefix of its
            component (``dispatcher.Rpc...``).
        task_managers: by resource id.
        jobs: by job id; those of a JobMaster's process have the prefix ``jobmaster``.
        tasks: by job id and task id; those of an operator have its name as a prefix.
    """

    def __init__(self, dumps: Iterable[ScopeDump]) -> None:
        self.scopes: dict[MetricScope, dict[str, MetricDump]] = {}
        self.job_manager: dict[str, Value] = {}
        self.task_managers: dict[str, dict[str, Value]] = {}
        self.jobs: dict[str, dict[str, Value]] = {}
        self.tasks: dict[tuple[str, str], dict[str, Value]] = {}
        for dump in dumps:
            self.scopes.setdefault(dump.scope, {}).update((metric.name, metric) for metric in dump.metrics)
        for scope, metrics in self.scopes.items():
            if scope.queue:
                continue
            values, prefix = self._values_of(scope), _prefix(scope)
            for metric in metrics.values():
                values.update((prefix + name, value) for name, value in expanded(metric))

    def _values_of(self, scope: MetricScope) -> dict[str, Value]:
        match scope.category:
            case ScopeCategory.JOB_MANAGER:
                return self.job_manager
            case ScopeCategory.TASK_MANAGER:
                return self.task_managers.setdefault(scope.task_manager, {})
            case ScopeCategory.JOB:
                return self.jobs.setdefault(scope.job_id, {})
            case ScopeCategory.TASK | ScopeCategory.OPERATOR:
                return self.tasks.setdefault((scope.job_id, scope.task_id), {})


def _prefix(scope: MetricScope) -> str:
    """Return the prefix that distinguishes scopes that are shown together, without separators of REST queries."""
    inner = scope.component or scope.operator_name
    return f"{inner.translate(_FILTERED)}." if inner else ""

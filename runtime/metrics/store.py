"""The metrics of a cluster at one moment, by the ids that REST uses (Flink's `MetricStore`). Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import fields

from runtime.metrics.metric import HistogramStatistics, MetricDump, MetricScope, ScopeCategory, ScopeDump, Value

_STATISTICS = tuple(field.name for field in fields(HistogramStatistics) if field.name not in ("count", "sum"))
_FILTERED = str.maketrans(dict.fromkeys(" .:,", "_"))
_DIGEST = re.compile(r"-[0-9a-f]{8}")


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
        tasks: by job id and task id; those of an operator have its name as a prefix (`operator_prefix`).
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


def operator_prefix(name: str) -> str:
    """Return the prefix of the ids of an operator's metrics: its name, without the separators of ids and REST queries.

    As in Flink, ``_`` replaces the separators. In Flink the operators ``a.b`` and ``a_b`` have the same ids, and one of
    the two figures is lost. Here a changed name also gets a digest of the original one. So an id depends on the name of
    its operator alone: it never becomes that of another operator when a query starts or ends.
    """
    filtered = name.translate(_FILTERED)
    if filtered == name and not _DIGEST.fullmatch(name[-9:]):
        return f"{name}."
    return f"{filtered}-{hashlib.sha256(name.encode(errors='surrogatepass')).hexdigest()[:8]}."


def _prefix(scope: MetricScope) -> str:
    """Return the prefix that distinguishes scopes that are shown together."""
    if scope.component:
        return f"{scope.component}."
    return operator_prefix(scope.operator_name) if scope.operator_name else ""

"""The JSON of metrics (Flink's `MetricCollectionResponseBody` and `AggregatedMetricsResponseBody`). Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from runtime.metrics.metric import Value
from runtime.rest.messages.common import Json

AGGREGATIONS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "min": min,
    "max": max,
    "avg": lambda values: math.fsum(values) / len(values),
    "sum": math.fsum,
    "skew": lambda values: _skew(values),
}


def names(values: Mapping[str, Value]) -> list[Json]:
    """GET .../metrics: the ids of what may be asked for."""
    return [{"id": name} for name in values]


def collection(values: Mapping[str, Value], wanted: Iterable[str]) -> list[Json]:
    """GET .../metrics?get=...: values as texts; ids that there are none of are left out."""
    return [{"id": name, "value": str(values[name])} for name in dict.fromkeys(wanted) if name in values]


def names_of_all(stores: Iterable[Mapping[str, Value]]) -> list[Json]:
    """GET .../metrics of several: the ids that any of them has."""
    return names({name: value for store in stores for name, value in store.items()})


def aggregated(stores: Sequence[Mapping[str, Value]], wanted: Iterable[str], aggregations: Sequence[str]) -> list[Json]:
    """GET .../metrics?get=...&agg=...: numbers over those that have them; texts cannot be aggregated."""
    found = []
    for name in dict.fromkeys(wanted):
        values = [float(value) for store in stores if not isinstance(value := store.get(name, ""), str)]
        if values:
            found.append({"id": name, **{how: AGGREGATIONS[how](values) for how in aggregations}})
    return found


def _skew(values: Sequence[float]) -> float:
    """How unevenly they are spread (Flink's `DoubleDataSkew`): the mean deviation from the mean, in percent of that.

    0 where all are equal, and at most 100.
    """
    mean = math.fsum(values) / len(values)
    if mean == 0:
        return 0.0
    deviation = math.fsum(abs(value - mean) for value in values) / len(values)
    return min(deviation / abs(mean) * 100, 100.0)

"""Metrics: of the control plane, of TaskExecutors, jobs and tasks; and all of them for Prometheus.

Their JSON is Flink's `MetricCollectionResponseBody` and `AggregatedMetricsResponseBody`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from starlette.requests import Request
from starlette.responses import Response

from runtime.ids import ResourceID
from runtime.metrics.metric import Value
from runtime.metrics.prometheus import MEDIA, exposition
from runtime.metrics.store import MetricStore
from runtime.rest import forms
from runtime.rest.context import Rest, job_id_of
from runtime.rest.errors import RestError
from runtime.rest.handlers.task_managers import resource_id_of
from runtime.rest.handlers.vertices import only_subtask
from runtime.rest.messages import Json
from runtime.rest.routing import Parameter, RestRoute, answer

Values = Mapping[str, Value]

AGGREGATIONS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "min": min,
    "max": max,
    "avg": lambda values: math.fsum(values) / len(values),
    "sum": math.fsum,
    "skew": lambda values: _skew(values),
}


def names(values: Values) -> list[Json]:
    """GET .../metrics: the ids of the metrics."""
    return [{"id": name} for name in values]


def collection(values: Values, wanted: Iterable[str]) -> list[Json]:
    """GET .../metrics?get=...: values as texts; unknown ids are left out."""
    return [{"id": name, "value": str(values[name])} for name in dict.fromkeys(wanted) if name in values]


def names_of_all(stores: Iterable[Values]) -> list[Json]:
    """GET .../metrics of several stores: the ids that any of them has."""
    return names({name: value for store in stores for name, value in store.items()})


def aggregated(stores: Sequence[Values], wanted: Iterable[str], aggregations: Sequence[str]) -> list[Json]:
    """GET .../metrics?get=...&agg=...: aggregates over the stores that have the metric; texts are left out."""
    found = []
    for name in dict.fromkeys(wanted):
        values = [float(value) for store in stores if not isinstance(value := store.get(name, ""), str)]
        if values:
            found.append({"id": name, **{how: AGGREGATIONS[how](values) for how in aggregations}})
    return found


def _skew(values: Sequence[float]) -> float:
    """Unevenness of values (Flink's `DoubleDataSkew`): the mean deviation from the mean, in percent of that.

    0 where all are equal, and at most 100.
    """
    mean = math.fsum(values) / len(values)
    if mean == 0:
        return 0.0
    deviation = math.fsum(abs(value - mean) for value in values) / len(values)
    return min(deviation / abs(mean) * 100, 100.0)


_GET = Parameter("get", "ids of metrics, with commas between them; without it the ids are listed")
_HOW = "|".join(AGGREGATIONS)
_AGG = Parameter(
    "agg",
    f"which of {', '.join(AGGREGATIONS)}, with commas between them; without it all",
    schema={"type": "string", "pattern": f"^({_HOW})(,({_HOW}))*$"},
)
_JOB = "/jobs/{jobid}/metrics"
_VERTEX = "/jobs/{jobid}/vertices/{vertexid}"

_ids = functools.partial(RestRoute, "GET", result=forms.METRIC_IDS)

ROUTES: list[RestRoute] = []
"""To be looked through before other routes: ``/jobs/metrics`` is not a job."""


def _among(name: str, what: str) -> tuple[Parameter, ...]:
    return (_GET, _AGG, Parameter(name, f"{what}, with commas between them; without it all"))


async def _store(rest: Rest) -> MetricStore:
    """Return the metrics, from a recent answer of the cluster: concurrent requests share one (`Snapshots`)."""
    found: MetricStore = await rest.snapshots.get("metrics", rest.backend.metrics)
    return found


def _listed(request: Request, name: str) -> list[str]:
    """Return the items of a parameter that is a list with commas."""
    return [part for part in request.query_params.get(name, "").split(",") if part]


def _one(request: Request, values: Values) -> Response:
    wanted = _listed(request, "get")
    return answer(collection(values, wanted) if wanted else names(values))


def _several(request: Request, stores: Sequence[Values]) -> Response:
    wanted, how = _listed(request, "get"), [name.lower() for name in _listed(request, "agg")]
    unknown = [name for name in how if name not in AGGREGATIONS]
    if unknown:
        raise RestError(400, f"agg must be of {', '.join(AGGREGATIONS)}, not {unknown[0][:40]!r}")
    if not wanted:
        return answer(names_of_all(stores))
    return answer(aggregated(stores, wanted, how or list(AGGREGATIONS)))


def _chosen(request: Request, name: str, stores: Mapping[str, Values]) -> list[Values]:
    """Return the stores that a parameter names, or all."""
    wanted = _listed(request, name)
    return [values for key, values in stores.items() if not wanted or key in wanted]


@_ids("/jobmanager/metrics", "Metrics of the control plane", query=(_GET,)).on(ROUTES)
async def get_job_manager(rest: Rest, request: Request) -> Response:
    return _one(request, (await _store(rest)).job_manager)


@_ids(
    "/taskmanagers/metrics",
    "Metrics of all TaskExecutors, aggregated",
    query=_among("taskmanagers", "ids of TaskExecutors"),
).on(ROUTES)
async def get_task_managers(rest: Rest, request: Request) -> Response:
    return _several(request, _chosen(request, "taskmanagers", (await _store(rest)).task_managers))


@_ids("/taskmanagers/{taskmanagerid}/metrics", "Metrics of a TaskExecutor", query=(_GET,)).on(ROUTES)
async def get_task_manager(rest: Rest, request: Request) -> Response:
    resource_id: ResourceID = resource_id_of(request)
    found = (await _store(rest)).task_managers.get(resource_id)
    if found is None:
        await rest.backend.task_manager(resource_id)  # there may be none of that name
    return _one(request, found or {})


@_ids("/jobs/metrics", "Metrics of all jobs, aggregated", query=_among("jobs", "ids of jobs")).on(ROUTES)
async def get_jobs(rest: Rest, request: Request) -> Response:
    return _several(request, _chosen(request, "jobs", (await _store(rest)).jobs))


@_ids(_JOB, "Metrics of a job that is not over", query=(_GET,)).on(ROUTES)
async def get_job(rest: Rest, request: Request) -> Response:
    await rest.job(request)
    return _one(request, (await _store(rest)).jobs.get(job_id_of(request), {}))


async def _of_task(rest: Rest, request: Request) -> Values:
    task = await rest.task(request)
    return (await _store(rest)).tasks.get((job_id_of(request), task.key), {})


@_ids(f"{_VERTEX}/metrics", "Metrics of a task", query=(_GET,)).on(ROUTES)
async def get_task(rest: Rest, request: Request) -> Response:
    """Answer with ids that begin with the number of the subtask, as in Flink; it is 0 here."""
    return _one(request, {f"0.{name}": value for name, value in (await _of_task(rest, request)).items()})


@_ids(
    f"{_VERTEX}/subtasks/metrics",
    "Metrics of all subtasks of a task, aggregated",
    query=_among("subtasks", "numbers of subtasks"),
).on(ROUTES)
async def get_subtasks(rest: Rest, request: Request) -> Response:
    return _several(request, _chosen(request, "subtasks", {"0": await _of_task(rest, request)}))


@_ids(f"{_VERTEX}/subtasks/" + "{subtaskindex}/metrics", "Metrics of a subtask", query=(_GET,)).on(ROUTES)
async def get_subtask(rest: Rest, request: Request) -> Response:
    await only_subtask(rest, request)
    return _one(request, await _of_task(rest, request))


@_ids(f"{_VERTEX}/jm-operator-metrics", "Metrics of a task's coordinator: none").on(ROUTES)
async def get_coordinator(rest: Rest, request: Request) -> Response:
    await rest.task(request)
    return answer([])


@RestRoute("GET", "/metrics/prometheus", "All metrics, for a Prometheus to scrape", media=MEDIA).on(ROUTES)
async def get_prometheus(rest: Rest, request: Request) -> Response:
    return Response(exposition((await _store(rest)).scopes), media_type=MEDIA)

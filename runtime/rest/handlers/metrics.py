"""Metrics: of the control plane, of TaskExecutors, jobs and tasks; and all of them for Prometheus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from starlette.requests import Request
from starlette.responses import Response

from runtime.ids import ResourceID
from runtime.metrics.metric import Value
from runtime.metrics.prometheus import MEDIA, exposition
from runtime.metrics.store import MetricStore
from runtime.rest.errors import RestError
from runtime.rest.handlers.task_managers import resource_id_of
from runtime.rest.handlers.vertices import only_subtask
from runtime.rest.messages import forms
from runtime.rest.messages import metrics as messages
from runtime.rest.routing import Parameter, Rest, RestRoute, answer, job_id_of

Values = Mapping[str, Value]


async def _store(rest: Rest) -> MetricStore:
    """The metrics as they were a moment ago: all who ask share one question to the cluster."""
    found: MetricStore = await rest.snapshots.get("metrics", rest.backend.metrics)
    return found


def _listed(request: Request, name: str) -> list[str]:
    """A parameter that is a list with commas."""
    return [part for part in request.query_params.get(name, "").split(",") if part]


def _one(request: Request, values: Values) -> Response:
    wanted = _listed(request, "get")
    return answer(messages.collection(values, wanted) if wanted else messages.names(values))


def _several(request: Request, stores: Sequence[Values]) -> Response:
    wanted, how = _listed(request, "get"), [name.lower() for name in _listed(request, "agg")]
    unknown = [name for name in how if name not in messages.AGGREGATIONS]
    if unknown:
        raise RestError(400, f"agg must be of {', '.join(messages.AGGREGATIONS)}, not {unknown[0][:40]!r}")
    if not wanted:
        return answer(messages.names_of_all(stores))
    return answer(messages.aggregated(stores, wanted, how or list(messages.AGGREGATIONS)))


def _chosen(request: Request, name: str, stores: Mapping[str, Values]) -> list[Values]:
    """Those that a parameter names, or all."""
    wanted = _listed(request, name)
    return [values for key, values in stores.items() if not wanted or key in wanted]


async def get_job_manager(rest: Rest, request: Request) -> Response:
    return _one(request, (await _store(rest)).job_manager)


async def get_task_managers(rest: Rest, request: Request) -> Response:
    return _several(request, _chosen(request, "taskmanagers", (await _store(rest)).task_managers))


async def get_task_manager(rest: Rest, request: Request) -> Response:
    resource_id: ResourceID = resource_id_of(request)
    found = (await _store(rest)).task_managers.get(resource_id)
    if found is None:
        await rest.backend.task_manager(resource_id)  # there may be none of that name
    return _one(request, found or {})


async def get_jobs(rest: Rest, request: Request) -> Response:
    return _several(request, _chosen(request, "jobs", (await _store(rest)).jobs))


async def get_job(rest: Rest, request: Request) -> Response:
    await rest.job(request)
    return _one(request, (await _store(rest)).jobs.get(job_id_of(request), {}))


async def _of_task(rest: Rest, request: Request) -> Values:
    task = await rest.task(request)
    return (await _store(rest)).tasks.get((job_id_of(request), task.key), {})


async def get_task(rest: Rest, request: Request) -> Response:
    """As in Flink each id begins with the number of the subtask, which is 0 here."""
    return _one(request, {f"0.{name}": value for name, value in (await _of_task(rest, request)).items()})


async def get_subtasks(rest: Rest, request: Request) -> Response:
    return _several(request, _chosen(request, "subtasks", {"0": await _of_task(rest, request)}))


async def get_subtask(rest: Rest, request: Request) -> Response:
    await only_subtask(rest, request)
    return _one(request, await _of_task(rest, request))


async def get_coordinator(rest: Rest, request: Request) -> Response:
    await rest.task(request)
    return answer([])


async def get_prometheus(rest: Rest, request: Request) -> Response:
    return Response(exposition((await _store(rest)).scopes), media_type=MEDIA)


_GET = Parameter("get", "ids of metrics, with commas between them; without it the ids are listed")
_HOW = "|".join(messages.AGGREGATIONS)
_AGG = Parameter(
    "agg",
    f"which of {', '.join(messages.AGGREGATIONS)}, with commas between them; without it all",
    schema={"type": "string", "pattern": f"^({_HOW})(,({_HOW}))*$"},
)
_JOB = "/jobs/{jobid}/metrics"
_VERTEX = "/jobs/{jobid}/vertices/{vertexid}"


def _among(name: str, what: str) -> tuple[Parameter, ...]:
    return (_GET, _AGG, Parameter(name, f"{what}, with commas between them; without it all"))


ROUTES = (
    RestRoute(
        "GET",
        "/jobmanager/metrics",
        get_job_manager,
        "Metrics of the control plane",
        query=(_GET,),
        result=forms.METRIC_IDS,
    ),
    RestRoute(
        "GET",
        "/taskmanagers/metrics",
        get_task_managers,
        "Metrics of all TaskExecutors, aggregated",
        query=_among("taskmanagers", "ids of TaskExecutors"),
        result=forms.METRIC_IDS,
    ),
    RestRoute(
        "GET",
        "/taskmanagers/{taskmanagerid}/metrics",
        get_task_manager,
        "Metrics of a TaskExecutor",
        query=(_GET,),
        result=forms.METRIC_IDS,
    ),
    RestRoute(
        "GET",
        "/jobs/metrics",
        get_jobs,
        "Metrics of all jobs, aggregated",
        query=_among("jobs", "ids of jobs"),
        result=forms.METRIC_IDS,
    ),
    RestRoute("GET", _JOB, get_job, "Metrics of a job that is not over", query=(_GET,), result=forms.METRIC_IDS),
    RestRoute("GET", f"{_VERTEX}/metrics", get_task, "Metrics of a task", query=(_GET,), result=forms.METRIC_IDS),
    RestRoute(
        "GET",
        f"{_VERTEX}/jm-operator-metrics",
        get_coordinator,
        "Metrics of a task's coordinator: none",
        result=forms.METRIC_IDS,
    ),
    RestRoute(
        "GET",
        f"{_VERTEX}/subtasks/metrics",
        get_subtasks,
        "Metrics of all subtasks of a task, aggregated",
        query=_among("subtasks", "numbers of subtasks"),
        result=forms.METRIC_IDS,
    ),
    RestRoute(
        "GET",
        f"{_VERTEX}/subtasks/" + "{subtaskindex}/metrics",
        get_subtask,
        "Metrics of a subtask",
        query=(_GET,),
        result=forms.METRIC_IDS,
    ),
    RestRoute("GET", "/metrics/prometheus", get_prometheus, "All metrics, for a Prometheus to scrape", media=MEDIA),
)
"""To be looked through before other routes: ``/jobs/metrics`` is no job."""

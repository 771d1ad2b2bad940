"""Applications, on which the web page of Flink 2.3 is based: each job is one, with the job's id and name."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.requests import Request
from starlette.responses import Response

from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph, JobDetails
from runtime.protocol.execution_state import JobStatus
from runtime.rest import forms
from runtime.rest.context import Rest
from runtime.rest.handlers import jobs
from runtime.rest.handlers.jobs import details
from runtime.rest.messages import Json, span
from runtime.rest.routing import RestRoute, answer, now_ms

_STATUS = {
    JobStatus.INITIALIZING: "CREATED",
    JobStatus.CREATED: "CREATED",
    JobStatus.FAILING: "FAILING",
    JobStatus.FAILED: "FAILED",
    JobStatus.CANCELLING: "CANCELING",  # applications are spelled as tasks are, not as jobs
    JobStatus.CANCELED: "CANCELED",
    JobStatus.FINISHED: "FINISHED",
}
_STATES = ("CREATED", "RUNNING", "FAILING", "FAILED", "CANCELING", "CANCELED", "FINISHED")


def status_of(status: JobStatus) -> str:
    """Return Flink's `ApplicationState` for a job's state; RUNNING for states that Flink does not have there."""
    return _STATUS.get(status, "RUNNING")


def overview(jobs: Iterable[JobDetails], now: int) -> Json:
    """GET /applications/overview."""
    return {"applications": [_in_one_line(job, now) for job in jobs]}


def _in_one_line(job: JobDetails, now: int) -> Json:
    return {
        "id": job.job_id,
        "name": job.name,
        **span(job.start_ms, job.end_ms, now),
        "status": status_of(job.status),
        "jobs": {job.status.value: 1},
    }


def application(graph: ArchivedExecutionGraph, now: int) -> Json:
    """GET /applications/:applicationid."""
    line = _in_one_line(graph.details(), now)
    times = dict.fromkeys(_STATES, 0)
    for status, entered in graph.timestamps.items():
        state = status_of(JobStatus(status))
        times[state] = min(times[state] or entered, entered)
    return {**line, "timestamps": times, "jobs": [details(graph.details(), now)]}


_APPLICATION = "/applications/{applicationid}"

ROUTES: list[RestRoute] = []


@RestRoute(
    "GET", "/applications/overview", "All jobs as applications", result={"applications": [forms.APPLICATION]}
).on(ROUTES)
async def get_overview(rest: Rest, request: Request) -> Response:
    return answer(overview(await jobs.details_of_jobs(rest), now_ms()))


@RestRoute(
    "GET",
    _APPLICATION,
    "A job as an application",
    result={**forms.APPLICATION, "timestamps": dict, "jobs": [forms.LINE]},
).on(ROUTES)
async def get_application(rest: Rest, request: Request) -> Response:
    return answer(application(await rest.job(request), now_ms()))


ROUTES += [
    RestRoute("POST", f"{_APPLICATION}/cancel", "Begin to cancel a job", status=202, handler=jobs.cancel),
    RestRoute(
        "GET",
        f"{_APPLICATION}/exceptions",
        "The last failures of a job",
        result=forms.EXCEPTIONS,
        handler=jobs.get_exceptions,
    ),
    RestRoute(
        "GET",
        f"{_APPLICATION}/jobmanager/config",
        "The cluster's configuration",
        result=forms.SETTINGS,
        handler=jobs.get_configuration,
    ),
]

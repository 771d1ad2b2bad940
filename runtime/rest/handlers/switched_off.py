"""Features of Flink that are off here: refused with the status and the message of a Flink without them."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from runtime.rest.context import Rest, job_id_of
from runtime.rest.errors import RestError
from runtime.rest.handlers.jobs import refuse_stop
from runtime.rest.routing import Handler, RestRoute

_JOB = "/jobs/{jobid}"

ROUTES: list[RestRoute] = []


async def refuse_profile(rest: Rest, request: Request) -> Response:
    raise RestError(404, "Flink's profiler is off here; GET /taskmanagers/TM/flamegraph samples a TaskExecutor")


def _refuse_of_job(words: str) -> Handler:
    """Return a handler that answers 404: with *words* and the job's id if there is such a job."""

    async def refuse(rest: Rest, request: Request) -> Response:
        await rest.job(request)
        raise RestError(404, f"{words} ({job_id_of(request)}): a job keeps the tasks of its graph")

    return refuse


@RestRoute("PATCH", f"{_JOB}/rescaling", "Refused: rescaling is disabled", status=503).on(ROUTES)
@RestRoute("GET", _JOB + "/rescaling/{triggerid}", "Refused: rescaling is disabled", status=503).on(ROUTES)
async def refuse_rescaling(rest: Rest, request: Request) -> Response:
    raise RestError(503, "Rescaling is disabled, as in Flink (FLINK-12312): a job keeps the tasks of its graph")


ROUTES += [
    *(
        RestRoute(
            method, f"{whose}/profiler{file}", "Refused: Flink's profiler is off", status=404, handler=refuse_profile
        )
        for whose in ("/jobmanager", "/taskmanagers/{taskmanagerid}")
        for method, file in (("GET", ""), ("POST", ""), ("GET", "/{filename}"))
    ),
    RestRoute(
        "GET",
        f"{_JOB}/rescales/config",
        "Refused: there is no adaptive scheduler",
        status=404,
        handler=_refuse_of_job("AdaptiveScheduler is not enabled for this job"),
    ),
    RestRoute("GET", f"{_JOB}/yarn-stop", "Refused: stop with a savepoint", status=308, handler=refuse_stop),
]

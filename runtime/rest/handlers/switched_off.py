"""Answers for features of Flink that are off here, with the status and the words of a Flink that has them off."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from runtime.rest.errors import RestError
from runtime.rest.handlers.jobs import refuse_stop
from runtime.rest.routing import Handler, Rest, RestRoute, job_id_of


async def refuse_profile(rest: Rest, request: Request) -> Response:
    raise RestError(404, "Flink's profiler is off here; GET /taskmanagers/TM/flamegraph samples a TaskExecutor")


def _refuse_of_job(words: str) -> Handler:
    """A handler that answers 404 with *words* and the job's id, where there is such a job."""

    async def refuse(rest: Rest, request: Request) -> Response:
        await rest.job(request)
        raise RestError(404, f"{words} ({job_id_of(request)}): a job keeps the tasks of its graph")

    return refuse


async def refuse_rescaling(rest: Rest, request: Request) -> Response:
    raise RestError(503, "Rescaling is disabled, as in Flink (FLINK-12312): a job keeps the tasks of its graph")


_JOB = "/jobs/{jobid}"
_NO_HISTORY = "Rescales are not recorded, as the Adaptive scheduler is not enabled for this job"

ROUTES = (
    *(
        RestRoute(method, f"{whose}/profiler{file}", refuse_profile, "Refused: Flink's profiler is off", status=404)
        for whose in ("/jobmanager", "/taskmanagers/{taskmanagerid}")
        for method, file in (("GET", ""), ("POST", ""), ("GET", "/{filename}"))
    ),
    RestRoute(
        "GET",
        f"{_JOB}/rescales/config",
        _refuse_of_job("AdaptiveScheduler is not enabled for this job"),
        "Refused: there is no adaptive scheduler",
        status=404,
    ),
    *(
        RestRoute(
            "GET",
            f"{_JOB}/rescales/{part}",
            _refuse_of_job(_NO_HISTORY),
            "Refused: there is no adaptive scheduler",
            status=404,
        )
        for part in ("history", "overview", "summary", "details/{rescaleuuid}")
    ),
    RestRoute("PATCH", f"{_JOB}/rescaling", refuse_rescaling, "Refused: rescaling is disabled", status=503),
    RestRoute("GET", _JOB + "/rescaling/{triggerid}", refuse_rescaling, "Refused: rescaling is disabled", status=503),
    RestRoute("GET", f"{_JOB}/yarn-stop", refuse_stop, "Refused: stop with a savepoint", status=308),
)

"""Checkpoints and savepoints: Flink's forms, without any yet. This is the one place where they come in."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from runtime.rest.errors import RestError
from runtime.rest.messages import checkpoints as messages
from runtime.rest.routing import Rest, RestRoute, answer

_NOT_YET = "is not served by this API yet; PATCH /jobs/ID?mode=cancel ends a job"


async def get_statistics(rest: Rest, request: Request) -> Response:
    await rest.job(request)
    return answer(messages.statistics())


async def get_none(rest: Rest, request: Request) -> Response:
    graph = await rest.job(request)
    raise RestError(404, f"job {graph.job_id} has no checkpoints")


async def get_unknown_trigger(rest: Rest, request: Request) -> Response:
    raise RestError(404, "there is no operation of that id")


async def refuse_trigger(rest: Rest, request: Request) -> Response:
    await rest.job(request)
    raise RestError(501, f"a checkpoint or savepoint of a job {_NOT_YET}")


async def refuse_disposal(rest: Rest, request: Request) -> Response:
    raise RestError(501, f"the disposal of savepoints {_NOT_YET}")


_JOB = "/jobs/{jobid}"
_CHECKPOINTS = f"{_JOB}/checkpoints"
_DETAILS = _CHECKPOINTS + "/details/{checkpointid}"

ROUTES = (
    RestRoute("GET", _CHECKPOINTS, get_statistics, "Statistics of a job's checkpoints: none yet"),
    RestRoute("POST", _CHECKPOINTS, refuse_trigger, "Trigger a checkpoint: not yet"),
    RestRoute("GET", f"{_CHECKPOINTS}/config", get_none, "How a job is checkpointed: it is not yet"),
    RestRoute("GET", _DETAILS, get_none, "A checkpoint: there is none yet"),
    RestRoute("GET", _DETAILS + "/subtasks/{vertexid}", get_none, "A checkpoint of a task: there is none yet"),
    RestRoute("GET", _CHECKPOINTS + "/{triggerid}", get_unknown_trigger, "A triggered checkpoint: there is none yet"),
    RestRoute("POST", f"{_JOB}/savepoints", refuse_trigger, "Trigger a savepoint: not yet"),
    RestRoute("GET", _JOB + "/savepoints/{triggerid}", get_unknown_trigger, "A triggered savepoint: none yet"),
    RestRoute("POST", f"{_JOB}/stop", refuse_trigger, "Stop a job with a savepoint: not yet"),
    RestRoute("POST", "/savepoint-disposal", refuse_disposal, "Dispose of a savepoint: not yet"),
    RestRoute("GET", "/savepoint-disposal/{triggerid}", get_unknown_trigger, "A triggered disposal: none yet"),
)

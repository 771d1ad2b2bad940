"""The logs of a job's attempts, while they are written and after."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from runtime.job_logs import TASK_LOGS
from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph, AttemptInfo
from runtime.rest.errors import RestError
from runtime.rest.messages.common import Json
from runtime.rest.routing import TEXT, WHOLE_NUMBER, Parameter, Rest, RestRoute, answer, number_of

COMPLETE = "x-log-complete"
"""Whether nothing will be added to the log after this answer."""

_MOST = 10**9


def names_of(attempt: AttemptInfo) -> list[str]:
    """The logs of an attempt: those that it writes, and when it is over those that are kept."""
    kept = [log.name for log in attempt.logs]
    written = TASK_LOGS if attempt.task_executor else ()
    return list(dict.fromkeys((*written, *kept)))


def logs(graph: ArchivedExecutionGraph) -> Json:
    """GET /jobs/:jobid/logs: the newest attempts first."""
    attempts = [(task, attempt) for task in graph.tasks for attempt in reversed(task.attempts)]
    return {
        "logs": [
            {
                "name": name,
                "task": task.name,
                "attempt": attempt.number,
                "attempt-id": attempt.attempt_id,
                "status": attempt.state.value,
            }
            for task, attempt in attempts
            for name in names_of(attempt)
        ]
    }


async def get_logs(rest: Rest, request: Request) -> Response:
    return answer(logs(await rest.job(request)))


async def get_log(rest: Rest, request: Request) -> Response:
    graph = await rest.job(request)
    offset = number_of(request, "offset", 0, _MOST)
    attempt_id, name = request.path_params["attemptid"], request.path_params["log"]
    for task in graph.tasks:
        for attempt in task.attempts:
            if attempt.attempt_id == attempt_id and name in names_of(attempt):
                data, complete = await rest.backend.task_log(graph.job_id, attempt, name, offset)
                return Response(data, media_type=TEXT, headers={COMPLETE: "true" if complete else "false"})
    raise RestError(404, f"job {graph.job_id} has no such log; GET /jobs/{graph.job_id}/logs shows those that it has")


_LOGS = "/jobs/{jobid}/logs"

ROUTES = (
    RestRoute("GET", _LOGS, get_logs, "The logs of a job's attempts", result={"logs": [dict]}),
    RestRoute(
        "GET",
        _LOGS + "/{attemptid}/{log}",
        get_log,
        "A log of an attempt; the header X-Log-Complete says whether more will follow",
        media=TEXT,
        query=(Parameter("offset", "the byte from which on it is wanted", schema=WHOLE_NUMBER),),
    ),
)

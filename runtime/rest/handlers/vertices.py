"""The tasks of a job, as vertices of one subtask each."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from runtime.protocol.archived_execution_graph import AttemptInfo, TaskInfo
from runtime.rest.errors import RestError
from runtime.rest.messages import forms
from runtime.rest.messages import vertices as messages
from runtime.rest.messages.common import subtask
from runtime.rest.routing import Parameter, Rest, RestRoute, answer, now_ms

FLAME_GRAPHS = ("full", "on_cpu", "off_cpu")


async def get_vertex(rest: Rest, request: Request) -> Response:
    return answer(messages.vertex(await rest.task(request), now_ms()))


async def get_subtask_times(rest: Rest, request: Request) -> Response:
    return answer(messages.subtask_times(await rest.task(request), now_ms()))


async def get_task_managers(rest: Rest, request: Request) -> Response:
    return answer(messages.task_managers(await rest.task(request), now_ms()))


async def get_accumulators(rest: Rest, request: Request) -> Response:
    return answer(messages.accumulators(await rest.task(request)))


async def get_subtask_accumulators(rest: Rest, request: Request) -> Response:
    return answer(messages.subtask_accumulators(await rest.task(request)))


async def get_back_pressure(rest: Rest, request: Request) -> Response:
    attempt = (await rest.task(request)).attempts[-1]
    return answer(messages.back_pressure(attempt.back_pressure, now_ms()))


async def get_flame_graph(rest: Rest, request: Request) -> Response:
    kind = request.query_params.get("type", FLAME_GRAPHS[0])
    if kind.lower() not in FLAME_GRAPHS:
        raise RestError(400, f"type must be one of {', '.join(FLAME_GRAPHS)}, not {kind[:40]!r}")
    return answer(messages.flame_graph(await rest.task(request)))


async def get_watermarks(rest: Rest, request: Request) -> Response:
    await rest.task(request)
    return answer(messages.watermarks())


async def only_subtask(rest: Rest, request: Request) -> TaskInfo:
    """The task that the path names; raises RestError where it names another subtask than the one that there is."""
    task, index = await rest.task(request), request.path_params["subtaskindex"]
    if index != "0":
        raise RestError(404, f"task {task.name!r} has one subtask, 0, not {index[:40]!r}")
    return task


async def _attempt(rest: Rest, request: Request) -> AttemptInfo:
    task, number = await only_subtask(rest, request), request.path_params["attempt"]
    known = {str(attempt.number): attempt for attempt in task.attempts}
    if number not in known:
        raise RestError(404, f"task {task.name!r} has the attempts {', '.join(known)}, not {number[:40]!r}")
    return known[number]


async def get_subtask(rest: Rest, request: Request) -> Response:
    return answer(subtask((await only_subtask(rest, request)).attempts[-1], now_ms()))


async def get_attempt(rest: Rest, request: Request) -> Response:
    return answer(subtask(await _attempt(rest, request), now_ms()))


async def get_attempt_accumulators(rest: Rest, request: Request) -> Response:
    return answer(messages.attempt_accumulators(await _attempt(rest, request)))


_VERTEX = "/jobs/{jobid}/vertices/{vertexid}"
_SUBTASK = _VERTEX + "/subtasks/{subtaskindex}"
_ATTEMPT = _SUBTASK + "/attempts/{attempt}"

ROUTES = (
    RestRoute("GET", _VERTEX, get_vertex, "A task and its present attempt", result=forms.VERTEX),
    RestRoute(
        "GET",
        f"{_VERTEX}/subtasktimes",
        get_subtask_times,
        "When a task entered each of its states",
        result=forms.SUBTASK_TIMES,
    ),
    RestRoute("GET", f"{_VERTEX}/taskmanagers", get_task_managers, "Where a task runs", result=forms.PLACES),
    RestRoute(
        "GET",
        f"{_VERTEX}/accumulators",
        get_accumulators,
        "Accumulators of a task: none",
        result={"id": str, "user-accumulators": [dict]},
    ),
    RestRoute(
        "GET",
        f"{_VERTEX}/backpressure",
        get_back_pressure,
        "Back pressure of a task's streaming queries",
        result={"status": str, "subtasks": [dict]},
    ),
    RestRoute(
        "GET",
        f"{_VERTEX}/flamegraph",
        get_flame_graph,
        "Samples of a task's threads: none",
        query=(Parameter("type", "which threads", FLAME_GRAPHS),),
        result={"endTimestamp": int},
    ),
    RestRoute("GET", f"{_VERTEX}/watermarks", get_watermarks, "Watermarks of a task: none", result=[dict]),
    RestRoute(
        "GET",
        f"{_VERTEX}/subtasks/accumulators",
        get_subtask_accumulators,
        "Accumulators by subtask: none",
        result={"id": str, "parallelism": int, "subtasks": [dict]},
    ),
    RestRoute("GET", _SUBTASK, get_subtask, "The present attempt of a task", result=forms.SUBTASK),
    RestRoute("GET", _ATTEMPT, get_attempt, "An attempt of a task", result=forms.SUBTASK),
    RestRoute(
        "GET",
        f"{_ATTEMPT}/accumulators",
        get_attempt_accumulators,
        "Accumulators of an attempt: none",
        result={"subtask": int, "attempt": int, "id": str, "user-accumulators": [dict]},
    ),
)

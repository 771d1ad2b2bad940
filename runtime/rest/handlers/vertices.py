"""The tasks of a job, as vertices with one subtask each (Flink's `JobVertexDetailsInfo` and its kin)."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from runtime.protocol.archived_execution_graph import AttemptInfo, TaskInfo
from runtime.protocol.execution_state import ExecutionState
from runtime.protocol.streaming_query import OperatorBackPressureStats
from runtime.rest import forms
from runtime.rest.context import Rest
from runtime.rest.errors import RestError
from runtime.rest.messages import (
    IO_METRICS,
    Json,
    aggregated,
    count_states,
    duration,
    ended,
    place,
    span_of,
    started,
    subtask,
)
from runtime.rest.routing import Parameter, RestRoute, answer, now_ms

FLAME_GRAPHS = ("full", "on_cpu", "off_cpu")


def vertex(task: TaskInfo, now: int) -> Json:
    """GET /jobs/:jobid/vertices/:vertexid."""
    return {
        "id": task.key,
        "name": task.name,
        "parallelism": 1,
        "maxParallelism": 1,
        "now": now,
        "subtasks": [subtask(task.attempts[-1], now)],
        "aggregated": aggregated(task, now),
    }


def task_managers(task: TaskInfo, now: int) -> Json:
    """GET /jobs/:jobid/vertices/:vertexid/taskmanagers."""
    attempt = task.attempts[-1]
    return {
        "id": task.key,
        "name": task.name,
        "now": now,
        "taskmanagers": [
            {
                "endpoint": place(attempt),
                "status": task.state.value,
                **span_of(attempt, now),
                "metrics": dict(IO_METRICS),
                "status-counts": count_states([task.state]),
                "taskmanager-id": place(attempt),
                "aggregated": aggregated(task, now),
            }
        ],
    }


def subtask_times(task: TaskInfo, now: int) -> Json:
    """GET /jobs/:jobid/vertices/:vertexid/subtasktimes."""
    attempt = task.attempts[-1]
    return {
        "id": task.key,
        "name": task.name,
        "now": now,
        "subtasks": [
            {
                "subtask": 0,
                "endpoint": place(attempt),
                "duration": duration(started(attempt), ended(attempt), now),
                "timestamps": {state.value: attempt.timestamps.get(state.value, 0) for state in ExecutionState},
            }
        ],
    }


def accumulators(task: TaskInfo) -> Json:
    """GET /jobs/:jobid/vertices/:vertexid/accumulators."""
    return {"id": task.key, "user-accumulators": []}


def subtask_accumulators(task: TaskInfo) -> Json:
    """GET /jobs/:jobid/vertices/:vertexid/subtasks/accumulators."""
    attempt = task.attempts[-1]
    told = {"subtask": 0, "attempt": attempt.number, "endpoint": place(attempt), "user-accumulators": []}
    return {"id": task.key, "parallelism": 1, "subtasks": [told]}


def attempt_accumulators(attempt: AttemptInfo) -> Json:
    """GET /jobs/:jobid/vertices/:vertexid/subtasks/:subtaskindex/attempts/:attempt/accumulators."""
    return {"subtask": 0, "attempt": attempt.number, "id": attempt.attempt_id, "user-accumulators": []}


def back_pressure(stats: OperatorBackPressureStats | None, now: int) -> Json:
    """GET /jobs/:jobid/vertices/:vertexid/backpressure: that of its worst streaming query.

    If nothing is known, its status is ``deprecated``, Flink's word for none yet.
    """
    if stats is None:
        return {"status": "deprecated", "subtasks": []}
    level = {"backpressure-level": stats.level.value, "backpressureLevel": stats.level.value}
    told: Json = {"subtask": 0, "attempt-number": stats.attempt, **level}
    if (ratios := stats.ratios) is not None:
        told |= dict(zip(("ratio", "busyRatio", "idleRatio"), ratios, strict=True))
    return {"status": "ok", **level, "end-timestamp": now, "subtasks": [told]}


def flame_graph(task: TaskInfo) -> Json:
    """GET /jobs/:jobid/vertices/:vertexid/flamegraph: nothing is sampled.

    -1 and -2 are Flink's words (`VertexFlameGraph`) for a task that has ended, and for sampling that is turned off.
    """
    return {"endTimestamp": -1 if task.state.is_terminal else -2}


def watermarks() -> list[Any]:
    """GET /jobs/:jobid/vertices/:vertexid/watermarks: Spark's are a query's, not a task's."""
    return []


_VERTEX = "/jobs/{jobid}/vertices/{vertexid}"
_SUBTASK = _VERTEX + "/subtasks/{subtaskindex}"
_ATTEMPT = _SUBTASK + "/attempts/{attempt}"

ROUTES: list[RestRoute] = []


@RestRoute("GET", _VERTEX, "A task and its present attempt", result=forms.VERTEX).on(ROUTES)
async def get_vertex(rest: Rest, request: Request) -> Response:
    return answer(vertex(await rest.task(request), now_ms()))


@RestRoute("GET", f"{_VERTEX}/subtasktimes", "When a task entered each of its states", result=forms.SUBTASK_TIMES).on(
    ROUTES
)
async def get_subtask_times(rest: Rest, request: Request) -> Response:
    return answer(subtask_times(await rest.task(request), now_ms()))


@RestRoute("GET", f"{_VERTEX}/taskmanagers", "Where a task runs", result=forms.PLACES).on(ROUTES)
async def get_task_managers(rest: Rest, request: Request) -> Response:
    return answer(task_managers(await rest.task(request), now_ms()))


@RestRoute(
    "GET",
    f"{_VERTEX}/accumulators",
    "Accumulators of a task: none",
    result={"id": str, "user-accumulators": [dict]},
).on(ROUTES)
async def get_accumulators(rest: Rest, request: Request) -> Response:
    return answer(accumulators(await rest.task(request)))


@RestRoute(
    "GET",
    f"{_VERTEX}/subtasks/accumulators",
    "Accumulators by subtask: none",
    result={"id": str, "parallelism": int, "subtasks": [dict]},
).on(ROUTES)
async def get_subtask_accumulators(rest: Rest, request: Request) -> Response:
    return answer(subtask_accumulators(await rest.task(request)))


@RestRoute(
    "GET",
    f"{_VERTEX}/backpressure",
    "Back pressure of a task's streaming queries",
    result={"status": str, "subtasks": [dict]},
).on(ROUTES)
async def get_back_pressure(rest: Rest, request: Request) -> Response:
    attempt = (await rest.task(request)).attempts[-1]
    return answer(back_pressure(attempt.back_pressure, now_ms()))


@RestRoute(
    "GET",
    f"{_VERTEX}/flamegraph",
    "Samples of a task's threads: none",
    query=(Parameter("type", "which threads", FLAME_GRAPHS),),
    result={"endTimestamp": int},
).on(ROUTES)
async def get_flame_graph(rest: Rest, request: Request) -> Response:
    kind = request.query_params.get("type", FLAME_GRAPHS[0])
    if kind.lower() not in FLAME_GRAPHS:
        raise RestError(400, f"type must be one of {', '.join(FLAME_GRAPHS)}, not {kind[:40]!r}")
    return answer(flame_graph(await rest.task(request)))


@RestRoute("GET", f"{_VERTEX}/watermarks", "Watermarks of a task: none", result=[dict]).on(ROUTES)
async def get_watermarks(rest: Rest, request: Request) -> Response:
    await rest.task(request)
    return answer(watermarks())


async def only_subtask(rest: Rest, request: Request) -> TaskInfo:
    """Return the task that the path names; raises RestError for another subtask than 0, the only one."""
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


@RestRoute("GET", _SUBTASK, "The present attempt of a task", result=forms.SUBTASK).on(ROUTES)
async def get_subtask(rest: Rest, request: Request) -> Response:
    return answer(subtask((await only_subtask(rest, request)).attempts[-1], now_ms()))


@RestRoute("GET", _ATTEMPT, "An attempt of a task", result=forms.SUBTASK).on(ROUTES)
async def get_attempt(rest: Rest, request: Request) -> Response:
    return answer(subtask(await _attempt(rest, request), now_ms()))


@RestRoute(
    "GET",
    f"{_ATTEMPT}/accumulators",
    "Accumulators of an attempt: none",
    result={"subtask": int, "attempt": int, "id": str, "user-accumulators": [dict]},
).on(ROUTES)
async def get_attempt_accumulators(rest: Rest, request: Request) -> Response:
    return answer(attempt_accumulators(await _attempt(rest, request)))

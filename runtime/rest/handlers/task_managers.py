"""TaskExecutors: lists, details, logs, threads."""

from __future__ import annotations

import os

from starlette.requests import Request
from starlette.responses import Response

from runtime.ids import ExecutionAttemptID, ResourceID
from runtime.protocol.messages import TaskManagerView
from runtime.rest.errors import RestError
from runtime.rest.messages import cluster as cluster_messages
from runtime.rest.messages import forms
from runtime.rest.messages import task_managers as messages
from runtime.rest.routing import (
    LOG_SIZE,
    MOST_OFFSET,
    OFFSET,
    TEXT,
    WHOLE_NUMBER,
    Parameter,
    Rest,
    RestRoute,
    answer,
    now_ms,
    number_of,
    text,
)
from runtime.stack_samples import MOST_SAMPLES

MAIN_LOG = "taskexecutor"
SAMPLES, INTERVAL_MS = 100, 20
MOST_PROFILE_MS = 20_000


def _machine() -> messages.Machine:
    """This machine, which is that of the TaskExecutors too."""
    return messages.Machine(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), os.cpu_count() or 1)


def resource_id_of(request: Request) -> ResourceID:
    """The id of a TaskExecutor in the path; raises RestError of status 400."""
    try:
        return ResourceID(request.path_params["taskmanagerid"])
    except ValueError as error:
        raise RestError(400, f"{error}; GET /taskmanagers shows the ids of TaskExecutors") from None


async def get_task_managers(rest: Rest, request: Request) -> Response:
    views: list[TaskManagerView] = await rest.snapshots.get("task managers", rest.backend.task_managers)
    return answer(messages.overview(views, _machine()))


async def get_task_manager(rest: Rest, request: Request) -> Response:
    return answer(messages.details(await rest.backend.task_manager(resource_id_of(request)), _machine()))


async def get_logs(rest: Rest, request: Request) -> Response:
    logs = await rest.backend.task_manager_logs(resource_id_of(request))
    return answer(cluster_messages.logs((log.name, log.size, log.mtime_ms) for log in logs))


async def get_log_file(rest: Rest, request: Request) -> Response:
    """The head and the tail of a log, as Flink has it; from a byte on where that is asked for."""
    if OFFSET in request.query_params:
        resource_id, name = resource_id_of(request), request.path_params["filename"]
        offset = number_of(request, OFFSET, 0, MOST_OFFSET)
        piece = await rest.backend.task_manager_log_from(resource_id, name, offset)
        return Response(piece.data, media_type=TEXT, headers={LOG_SIZE: str(piece.size)})
    return await _fetch(rest, request, request.path_params["filename"])


async def get_log(rest: Rest, request: Request) -> Response:
    return await _fetch(rest, request, MAIN_LOG)


async def get_stdout(rest: Rest, request: Request) -> Response:
    """A TaskExecutor prints nothing of its own; what tasks print is in their jobs' logs."""
    await rest.backend.task_manager(resource_id_of(request))
    return text(b"")


async def _fetch(rest: Rest, request: Request, name: str) -> Response:
    async with rest.fetching:
        return text(await rest.backend.task_manager_log(resource_id_of(request), name))


async def get_thread_dump(rest: Rest, request: Request) -> Response:
    dump = await rest.backend.task_manager_threads(resource_id_of(request))
    return answer(cluster_messages.thread_dump(dump))


async def get_flame_graph(rest: Rest, request: Request) -> Response:
    samples = max(1, number_of(request, "samples", SAMPLES, MOST_SAMPLES))
    interval_ms = max(1, number_of(request, "interval", INTERVAL_MS, MOST_PROFILE_MS))
    if samples * interval_ms > MOST_PROFILE_MS:
        raise RestError(400, f"samples times interval must be at most {MOST_PROFILE_MS} ms")
    resource_id, attempt = resource_id_of(request), request.query_params.get("attempt")
    try:
        attempt_id = None if attempt is None else ExecutionAttemptID(attempt)
    except ValueError as error:
        raise RestError(400, f"{error}; GET /jobs/ID/logs shows the ids of attempts") from None
    async with rest.fetching:
        found = await rest.backend.task_manager_profile(resource_id, samples, interval_ms, attempt_id)
    return answer(messages.profile(found, now_ms()))


_ONE = "/taskmanagers/{taskmanagerid}"

ROUTES = (
    RestRoute(
        "GET",
        "/taskmanagers",
        get_task_managers,
        "The registered TaskExecutors",
        result={"taskmanagers": [forms.WORKER]},
    ),
    RestRoute(
        "GET",
        _ONE,
        get_task_manager,
        "A TaskExecutor: its slots, its memory, its processes",
        result={**forms.WORKER, "metrics": forms.WORKER_METRICS, "allocatedSlots": [dict]},
    ),
    RestRoute("GET", f"{_ONE}/logs", get_logs, "The logs of a TaskExecutor and of its Spark driver", result=forms.LOGS),
    RestRoute(
        "GET",
        f"{_ONE}/logs/" + "{filename}",
        get_log_file,
        "One of these, or its head and tail; from a byte on with X-Log-Size",
        media=TEXT,
        query=(Parameter(OFFSET, "the byte from which on it is wanted", schema=WHOLE_NUMBER),),
    ),
    RestRoute("GET", f"{_ONE}/log", get_log, "The log of a TaskExecutor, or its head and tail", media=TEXT),
    RestRoute("GET", f"{_ONE}/stdout", get_stdout, "What a TaskExecutor printed: nothing", media=TEXT),
    RestRoute(
        "GET", f"{_ONE}/thread-dump", get_thread_dump, "Where the threads of a TaskExecutor are", result=forms.THREADS
    ),
    RestRoute(
        "GET",
        f"{_ONE}/flamegraph",
        get_flame_graph,
        "Where the threads of a TaskExecutor, or of a task process of it, are in a hundred samples",
        query=(
            Parameter("samples", f"how many; {SAMPLES} unless it is given", schema=WHOLE_NUMBER),
            Parameter("interval", f"milliseconds between two; {INTERVAL_MS} unless it is given", schema=WHOLE_NUMBER),
            Parameter(
                "attempt",
                "the id of an attempt that runs there; the TaskExecutor itself unless it is given",
                schema={"type": "string", "pattern": "^[0-9a-f]{32}$"},
            ),
        ),
    ),
)

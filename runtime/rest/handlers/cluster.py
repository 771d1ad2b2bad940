"""The cluster: counts, configuration, environment, logs and threads of the control plane."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from conf.options import RestOptions
from runtime.protocol.diagnostics import ThreadDump, ThreadInfo
from runtime.rest.log_files import MAIN_LOG, STDOUT, OpenLog, list_logs
from runtime.rest.messages import cluster as messages
from runtime.rest.messages import forms
from runtime.rest.routing import (
    JSON,
    LOG_SIZE,
    MOST_OFFSET,
    OFFSET,
    TEXT,
    WHOLE_NUMBER,
    Parameter,
    Rest,
    RestRoute,
    answer,
    number_of,
    to_json,
)
from runtime.threads import thread_stacks, thread_states


async def get_dashboard_configuration(rest: Rest, request: Request) -> Response:
    refresh_ms = int(rest.configuration.get(RestOptions.REFRESH_INTERVAL) * 1000)
    return answer(messages.dashboard_configuration(max(refresh_ms, 1), time.localtime()))


async def encoded_overview(rest: Rest) -> bytes:
    """The answer to GET /overview."""

    async def ask() -> bytes:
        return to_json(messages.overview(await rest.backend.overview()))

    found: bytes = await rest.snapshots.get("/overview", ask)
    return found


async def get_overview(rest: Rest, request: Request) -> Response:
    return Response(await encoded_overview(rest), media_type=JSON)


async def get_processes(rest: Rest, request: Request) -> Response:
    status = await rest.snapshots.get("/processes", rest.backend.status)
    return answer(messages.processes(status, rest.backend.leaders()))


async def get_configuration(rest: Rest, request: Request) -> Response:
    return answer(messages.configuration(rest.configuration.to_dict(redacted=True)))


async def get_environment(rest: Rest, request: Request) -> Response:
    return answer(messages.environment())


async def get_thread_dump(rest: Rest, request: Request) -> Response:
    states = thread_states()
    threads = tuple(ThreadInfo(name, stack, states.get(name, "")) for name, stack in thread_stacks())
    return answer(messages.thread_dump(ThreadDump(os.getpid(), threads)))


async def get_logs(rest: Rest, request: Request) -> Response:
    found = await asyncio.to_thread(list_logs, rest.log_dir)
    return answer(messages.logs((log.name, log.size, log.mtime_ms) for log in found))


async def get_log_file(rest: Rest, request: Request) -> Response:
    offset = number_of(request, OFFSET, 0, MOST_OFFSET)
    return await _send_log(rest, request.path_params["filename"], offset)


async def get_log(rest: Rest, request: Request) -> Response:
    return await _send_log(rest, MAIN_LOG)


async def get_stdout(rest: Rest, request: Request) -> Response:
    return await _send_log(rest, STDOUT)


async def _send_log(rest: Rest, name: str, offset: int = 0) -> Response:
    log = await asyncio.to_thread(OpenLog, rest.log_dir, name, offset)

    async def pieces() -> AsyncIterator[bytes]:
        try:
            while piece := await asyncio.to_thread(log.read):
                yield piece
        finally:
            log.close()

    return StreamingResponse(pieces(), media_type=TEXT, headers={LOG_SIZE: str(log.size)})


async def get_data_sets(rest: Rest, request: Request) -> Response:
    return answer({"dataSets": []})


async def shut_down(rest: Rest, request: Request) -> Response:
    await rest.backend.shut_down()
    return answer({})


ROUTES = (
    RestRoute(
        "GET", "/config", get_dashboard_configuration, "What a web page needs to know first", result=forms.CONFIG
    ),
    RestRoute("GET", "/overview", get_overview, "Counts of TaskExecutors, slots and jobs", result=forms.OVERVIEW),
    RestRoute(
        "GET",
        "/processes",
        get_processes,
        "The processes of the cluster, and which of them lead",
        result={"cluster-id": str, "version": str, "start-time": int, "processes": [dict]},
    ),
    RestRoute("DELETE", "/cluster", shut_down, "Begin to stop the cluster"),
    RestRoute("GET", "/datasets", get_data_sets, "Cached data sets: none", result={"dataSets": [dict]}),
    RestRoute(
        "GET",
        "/jobmanager/config",
        get_configuration,
        "The cluster's configuration, secrets masked",
        result=forms.SETTINGS,
    ),
    RestRoute(
        "GET", "/jobmanager/environment", get_environment, "What the web endpoint runs on", result=forms.ENVIRONMENT
    ),
    RestRoute("GET", "/jobmanager/logs", get_logs, "The logs of this machine's control plane", result=forms.LOGS),
    RestRoute(
        "GET",
        "/jobmanager/logs/{filename}",
        get_log_file,
        "One of these logs; the header X-Log-Size says how long it is",
        media=TEXT,
        query=(Parameter(OFFSET, "the byte from which on it is wanted", schema=WHOLE_NUMBER),),
    ),
    RestRoute("GET", "/jobmanager/log", get_log, "The log of the first master", media=TEXT),
    RestRoute("GET", "/jobmanager/stdout", get_stdout, "What the masters printed", media=TEXT),
    RestRoute(
        "GET",
        "/jobmanager/thread-dump",
        get_thread_dump,
        "Where the threads of the web endpoint are",
        result=forms.THREADS,
    ),
)

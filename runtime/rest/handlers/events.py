"""Server-sent events: a page that follows them learns at once what changed, and that the server is gone.

An event says that there is something new, not what: the page asks for what it shows, and so there is one form of
each answer. ``changed`` comes when the lists of jobs and TaskExecutors differ, ``tick`` when nothing of theirs does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from actors.errors import ActorError
from conf.options import RestOptions
from runtime.gateways.messages import ClusterOverview, TaskManagerView
from runtime.rest.errors import RestError
from runtime.rest.handlers.jobs import details_of_jobs
from runtime.rest.routing import Rest, RestRoute

MEDIA = "text/event-stream"
_CHANGED = b"event: changed\ndata: {}\n\n"
_TICK = b"event: tick\ndata: {}\n\n"


async def _seen(rest: Rest) -> Any:
    """What the pages' lists depend on; in place of it, why it is not known."""
    try:
        jobs = await details_of_jobs(rest)
        views: list[TaskManagerView] = await rest.snapshots.get("task managers", rest.backend.task_managers)
        counts: ClusterOverview = await rest.snapshots.get("overview", rest.backend.overview)
    except (RestError, ActorError) as error:
        return str(error)
    return jobs, counts, [(view.registration.resource_id, view.free_slots) for view in views]


async def _events(rest: Rest) -> AsyncIterator[bytes]:
    interval_s = rest.configuration.get(RestOptions.REFRESH_INTERVAL)
    yield _TICK  # before anything is asked: the stream is open
    last = await _seen(rest)
    while not rest.closing.is_set():
        try:
            async with asyncio.timeout(interval_s):
                await rest.closing.wait()
        except TimeoutError:
            seen = await _seen(rest)
            yield _TICK if seen == last else _CHANGED
            last = seen


async def get_events(rest: Rest, request: Request) -> Response:
    return StreamingResponse(_events(rest), media_type=MEDIA)


ROUTES = (RestRoute("GET", "/events", get_events, "Server-sent events: something has changed", media=MEDIA),)

"""Server-sent events, by which a page learns at once of changes and of the loss of the server.

An event says only that something has changed. The page then requests the data that it shows, so each answer has only
one form. ``changed`` is sent when the lists of jobs and TaskExecutors differ, and ``tick`` when they do not.
``waiting`` is sent while the cluster does not answer the endpoint.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from actors.errors import ActorError
from conf.options import RestOptions
from runtime.protocol.messages import ClusterOverview, TaskManagerView
from runtime.rest.authorization import principal_of
from runtime.rest.context import Rest
from runtime.rest.errors import RestError
from runtime.rest.handlers.jobs import details_of_jobs
from runtime.rest.routing import RestRoute
from runtime.users.identities import Principal

MEDIA = "text/event-stream"
_CHANGED = b"event: changed\ndata: {}\n\n"
_TICK = b"event: tick\ndata: {}\n\n"
_WAITING = b"event: waiting\ndata: {}\n\n"


ROUTES: list[RestRoute] = []


async def _seen(rest: Rest) -> Any:
    """Return all that the pages' lists depend on, or the text of the error if the cluster does not answer."""
    try:
        jobs = await details_of_jobs(rest)
        views: list[TaskManagerView] = await rest.snapshots.get("task managers", rest.backend.task_managers)
        counts: ClusterOverview = await rest.snapshots.get("overview", rest.backend.overview)
    except (RestError, ActorError) as error:
        return str(error)
    return jobs, counts, [(view.registration.resource_id, view.free_slots, view.user) for view in views]


async def stream(rest: Rest, principal: Principal) -> AsyncIterator[bytes]:
    """Yield the events, until the endpoint stops or the token of *principal* ends to be valid."""
    interval_s = rest.configuration.get(RestOptions.REFRESH_INTERVAL)
    closing = asyncio.ensure_future(rest.closing.wait())
    last = None
    try:
        while not closing.done() and await rest.identities.confirm(principal):
            asked = asyncio.ensure_future(_seen(rest))
            try:
                while not asked.done() and not closing.done():
                    await asyncio.wait((asked, closing), timeout=interval_s, return_when=asyncio.FIRST_COMPLETED)
                    if not asked.done():
                        yield _WAITING
            finally:
                asked.cancel()
            if closing.done():
                return
            yield _TICK if asked.result() == last else _CHANGED
            last = asked.result()
            await asyncio.wait((closing,), timeout=interval_s)
    finally:
        closing.cancel()


@RestRoute("GET", "/events", "Server-sent events: something has changed", media=MEDIA).on(ROUTES)
async def get_events(rest: Rest, request: Request) -> Response:
    return StreamingResponse(stream(rest, principal_of(request)), media_type=MEDIA)

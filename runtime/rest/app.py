"""The ASGI application: checks who asks, finds the route, and tells every error in Flink's form."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Message, Receive, Scope, Send

from runtime.rest.access import AccessPolicy, Refusal
from runtime.rest.errors import RestError, error_body, status_of
from runtime.rest.handlers import ROUTES, cluster, events, jobs
from runtime.rest.openapi import PREFIX, openapi
from runtime.rest.routing import JSON, Rest, RestRoute, answer
from runtime.rest.static_files import StaticFiles

logger = logging.getLogger(__name__)

SAFETY = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
]
_JSON_HEADERS = [(b"content-type", b"application/json"), *SAFETY]

Encoded = Callable[[Rest], Awaitable[bytes]]

# What is asked for all the time is answered without a Request, a Response and a look through the routes.
_SHORT_CUTS: dict[str, Encoded] = {"/jobs/overview": jobs.encoded_overview, "/overview": cluster.encoded_overview}


class _TooLarge(Exception):
    """A body without a length, or with a false one, that goes on and on."""


class RestApplication:
    """The REST API of one endpoint.

    Args:
        rest: what the handlers work with.
        policy: who may ask.
        max_content: the most bytes of a request's body.
        with_token: whether requests have to show the token, for the OpenAPI document.
    """

    def __init__(self, rest: Rest, policy: AccessPolicy, max_content: int, *, with_token: bool) -> None:
        self._rest = rest
        self._policy = policy
        self._max_content = max_content
        self._page = StaticFiles()
        self.routes = (
            *ROUTES,
            RestRoute("GET", "/openapi.json", self._openapi, "This document", result={"openapi": str, "paths": dict}),
        )
        self._document = openapi(self.routes, with_token=with_token)
        self._table = [
            (Route(route.path, _never, methods=[route.method], name=route.path), route)
            for route in (*self.routes, *events.ROUTES)  # a stream without an end is not for the document
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path, method = scope["path"], scope["method"]
        file = self._page.find(scope)
        if file is not None:
            await file(scope, receive, send)
            return
        refusal = self._policy.check(method, path, scope["headers"])
        if refusal is None and not scope["state"]["admit"]():
            refusal = Refusal(503, "too many connections at present (rest.server.max-connections); try again")
        if refusal is not None:
            await _send_error(send, refusal.status, refusal.message, close=True)
            return
        if path.startswith(PREFIX + "/"):
            path = path[len(PREFIX) :]
        started = False

        async def watch(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message.get("headers", ()), *SAFETY]
            await send(message)

        try:
            short_cut = _SHORT_CUTS.get(path) if method == "GET" else None
            if short_cut is not None:
                body = await short_cut(self._rest)
                await send({"type": "http.response.start", "status": 200, "headers": [*_JSON_HEADERS, _length(body)]})
                await send({"type": "http.response.body", "body": body})
                return
            await self._serve({**scope, "path": path}, _bounded(receive, self._max_content), watch)
        except ClientDisconnect:
            logger.debug("who asked for %s %r has gone", method, path[:200])
        except Exception as error:  # whatever it is, a stranger gets one line, and the log the rest
            if started:
                logger.error("the answer to %s %r broke off: %s", method, path[:200], error)
                raise
            await self._tell(send, error, method, path)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        allowed: list[str] = []
        for route, row in self._table:
            match, child = route.matches({**scope, "method": method})
            if match is Match.FULL:
                request = Request({**scope, **child}, receive, send)
                response = await row.handler(self._rest, request)
                await response(scope, receive, send)
                return
            if match is Match.PARTIAL:
                allowed.append(row.method)
        if allowed:
            verbs = ", ".join(dict.fromkeys(allowed))
            error = error_body(f"{scope['method']} is not served here, only {verbs}")
            await Response(error, 405, {"allow": verbs}, JSON)(scope, receive, send)
            return
        raise RestError(404, "there is nothing of that name; GET /v1/openapi.json shows what there is")

    async def _tell(self, send: Send, error: Exception, method: str, path: str) -> None:
        if isinstance(error, _TooLarge):
            message = f"at most {self._max_content} bytes are taken (rest.server.max-content-length)"
            await _send_error(send, 413, message, close=True)
            return
        status, message = status_of(error), str(error)
        if status == 500:
            number = secrets.token_hex(4)
            logger.error("%s %r failed (%s)", method, path[:200], number, exc_info=error)
            message = f"the web endpoint failed to answer; its log says more under {number}"
        # What is left of a body that nobody has read is no next request.
        await _send_error(send, status, message, close=method not in ("GET", "HEAD"))

    async def _openapi(self, rest: Rest, request: Request) -> Response:
        return answer(self._document)


async def _never(request: Request) -> Response:
    raise NotImplementedError


def _length(body: bytes) -> tuple[bytes, bytes]:
    return (b"content-length", str(len(body)).encode())


def _bounded(receive: Receive, limit: int) -> Receive:
    """The same body, as long as it is not too long."""
    left = limit

    async def bounded() -> Message:
        nonlocal left
        message = await receive()
        left -= len(message.get("body", b""))
        if left < 0:
            raise _TooLarge
        return message

    return bounded


async def _send_error(send: Send, status: int, message: str, *, close: bool) -> None:
    body = error_body(message)
    headers: list[tuple[bytes, Any]] = [*_JSON_HEADERS, _length(body)]
    if status == 401:
        headers.append((b"www-authenticate", b'Bearer realm="understudy"'))
    if close:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

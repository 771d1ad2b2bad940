"""The ASGI application of the web endpoint.

It serves the files of the web page, checks access, routes requests to their handlers, and answers errors in Flink's
form.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import Message, Receive, Scope, Send

from runtime.rest.access import AccessPolicy, Refusal
from runtime.rest.context import Rest
from runtime.rest.errors import RestError, error_body, status_of
from runtime.rest.handlers import ROUTES, cluster, events, jobs
from runtime.rest.routing import JSON, PREFIX, RestRoute, answer, openapi

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

# The most frequent requests are answered without a Request, a Response and a search through the routes.
_SHORT_CUTS: dict[str, Encoded] = {"/jobs/overview": jobs.encoded_overview, "/overview": cluster.encoded_overview}

_MEDIA = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_INDEX = "/index.html"

# The page may load only its own files and no inline script or style, and no text may become markup (trusted types).
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",  # the browser keeps files and revalidates them: the answer is mostly 304
}


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    media: str
    tag: str


class StaticFiles:
    """The files of the web page: the same for all users and without secrets, so they are served without the token.

    They are read once and found by their whole name, so that a request is never used as a path.

    Args:
        root: their directory; None for this package's.
    """

    def __init__(self, root: Traversable | None = None) -> None:
        self._files: Mapping[str, _File] = dict(_read(root or files("runtime.rest") / "static", ""))

    def find(self, scope: Scope) -> Response | None:
        """Return the answer to a request for one of the files; None for any other request."""
        if scope["method"] not in ("GET", "HEAD"):
            return None
        file = self._files.get(_INDEX if scope["path"] == "/" else scope["path"])
        if file is None:
            return None
        headers = {**_HEADERS, "etag": file.tag}
        if (b"if-none-match", file.tag.encode()) in scope["headers"]:
            return Response(status_code=304, headers=headers)
        return Response(file.content, media_type=file.media, headers=headers)


def _read(directory: Traversable, path: str) -> Iterator[tuple[str, _File]]:
    for entry in directory.iterdir():
        name = f"{path}/{entry.name}"
        if entry.is_dir():
            yield from _read(entry, name)
        elif media := _MEDIA.get("." + entry.name.rpartition(".")[2]):
            content = entry.read_bytes()
            yield name, _File(content, media, f'"{hashlib.sha256(content).hexdigest()[:32]}"')


class _TooLarge(Exception):
    """A body is longer than allowed, and had no length in its head or a wrong one."""


class RestApplication:
    """The REST API of one endpoint.

    Args:
        rest: the context of the handlers.
        policy: the access rules.
        max_content: the most bytes of a request's body.
        with_token: whether requests have to show the token, for the OpenAPI document.
    """

    def __init__(self, rest: Rest, policy: AccessPolicy, max_content: int, *, with_token: bool) -> None:
        self._rest = rest
        self._policy = policy
        self._max_content = max_content
        self._page = StaticFiles()
        own = RestRoute("GET", "/openapi.json", "This document", result={"openapi": str, "paths": dict})
        self.routes = (*ROUTES, replace(own, handler=self._openapi))
        self._document = openapi(self.routes, with_token=with_token)
        rows = dict[str, list[RestRoute]]()
        for route in (*self.routes, *events.ROUTES):  # the endless stream of events is not in the document
            rows.setdefault(route.path, []).append(route)
        self._router = Router(
            [Route(path, _Resource(rest, found)) for path, found in rows.items()],
            redirect_slashes=False,
            default=_nothing_there,
        )

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
            await self._router({**scope, "path": path}, _bounded(receive, self._max_content), watch)
        except ClientDisconnect:
            logger.debug("the client of %s %r has disconnected", method, path[:200])
        except Exception as error:  # the client gets one line, and the log the rest
            if started:
                logger.error("the answer to %s %r broke off: %s", method, path[:200], error)
                raise
            await self._tell(send, error, method, path)

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
        # The unread rest of a body must not be parsed as the next request.
        await _send_error(send, status, message, close=method not in ("GET", "HEAD"))

    async def _openapi(self, rest: Rest, request: Request) -> Response:
        return answer(self._document)


class _Resource:
    """The ASGI application of one path: answers by the route of the request's method, or with 405."""

    def __init__(self, rest: Rest, routes: Sequence[RestRoute]) -> None:
        self._rest = rest
        self._handlers = {route.method: route.handler for route in routes}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handler = self._handlers.get("GET" if scope["method"] == "HEAD" else scope["method"])
        if handler is None:
            verbs = ", ".join(self._handlers)
            error = error_body(f"{scope['method']} is not served here, only {verbs}")
            response = Response(error, 405, {"allow": verbs}, JSON)
        else:
            response = await handler(self._rest, Request(scope, receive, send))
        await response(scope, receive, send)


async def _nothing_there(scope: Scope, receive: Receive, send: Send) -> None:
    raise RestError(404, "there is no such path; GET /v1/openapi.json shows all paths")


def _length(body: bytes) -> tuple[bytes, bytes]:
    return (b"content-length", str(len(body)).encode())


def _bounded(receive: Receive, limit: int) -> Receive:
    """Return a receiver of the same body that raises `_TooLarge` once the body has more than *limit* bytes."""
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

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

from runtime.rest.access import AccessPolicy, Refusal, Shown, changes_state
from runtime.rest.auditing import AUDITED, Audited, Auditor, audited_of
from runtime.rest.authorization import PRINCIPAL, check_route, rule_of_route
from runtime.rest.context import Rest
from runtime.rest.errors import RestError, error_body, retry_after, status_of
from runtime.rest.handlers import ROUTES, cluster, events, jobs
from runtime.rest.page_login import LOGIN, PageLogin
from runtime.rest.routing import JSON, PREFIX, RestRoute, answer, openapi, to_json
from runtime.users.audit import AuditLog
from runtime.users.identities import Principal
from runtime.users.login import LoginOffer
from runtime.users.roles import Rule, may

logger = logging.getLogger(__name__)

SAFETY = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
]
_OFFER_HEADERS = {name.decode(): value.decode() for name, value in SAFETY}
_JSON_HEADERS = [(b"content-type", b"application/json"), *SAFETY]

Encoded = Callable[[Rest], Awaitable[bytes]]

# The most frequent requests are answered without a Request, a Response and a search through the routes.
_SHORT_CUTS: Mapping[str, Encoded] = {
    "/jobs/overview": jobs.encoded_overview,
    "/overview": cluster.encoded_overview,
}

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
        audit: gets a line for each request that changes something; None for no log.
        routes: the served ones, besides the stream of events and the document of these routes; None for all.
        offer: how clients log in at an OpenID Connect provider; None if none is configured.
        page_login: the log-in of the page there; None if none is configured.

    Raises:
        LookupError: a route has no rule in the table of roles.
    """

    def __init__(
        self,
        rest: Rest,
        policy: AccessPolicy,
        max_content: int,
        *,
        with_token: bool,
        audit: AuditLog | None = None,
        routes: Sequence[RestRoute] | None = None,
        offer: LoginOffer | None = None,
        page_login: PageLogin | None = None,
    ) -> None:
        self._rest = rest
        self._policy = policy
        self._max_content = max_content
        self._auditor = Auditor(audit)
        self._page = StaticFiles()
        self._short_cuts: Mapping[str, tuple[Encoded, Rule]] = {
            prefix + path: (encoded, rule_of_route("GET", path))
            for path, encoded in _SHORT_CUTS.items()
            for prefix in ("", PREFIX)
        }
        self._offer = None if offer is None else to_json(offer.to_json())
        own = RestRoute("GET", "/openapi.json", "This document", result={"openapi": str, "paths": dict})
        self.routes = (*(ROUTES if routes is None else routes), replace(own, handler=self._openapi))
        self._page_login = page_login
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
        file = self._page.find(scope)
        if file is not None:
            await file(scope, receive, send)
            return
        if self._offer is not None and scope["path"] in (LOGIN, PREFIX + LOGIN) and scope["method"] in ("GET", "HEAD"):
            # As the page's files: the same for everyone, public, and the only answer that a log-in can begin with.
            await Response(self._offer, headers=_OFFER_HEADERS, media_type=JSON)(scope, receive, send)
            return
        page_login = self._page_login
        if page_login is None or not page_login.serves(scope["method"], scope["path"]):
            page_login = None
        verdict = await self._identify(scope) if page_login is None else page_login
        short_cut = self._short_cuts.get(scope["path"]) if scope["method"] == "GET" else None
        if short_cut is not None and isinstance(verdict, Principal) and may(verdict, short_cut[1]):
            await self._answer_shortly(short_cut[0], scope, send)  # the audit log has no line of a granted GET
            return
        audited = Audited.of(scope)
        try:
            if isinstance(verdict, PageLogin):
                await self._log_in(verdict, scope, receive, audited.watching(send), audited)
            else:
                await self._answer(verdict, scope, receive, audited.watching(send), audited)
        finally:
            self._auditor.record(audited)

    async def _identify(self, scope: Scope) -> Principal | Refusal:
        """Return whom a request is from, or why it is refused."""
        verdict = self._policy.check(scope["method"], scope["path"], scope["headers"])
        if isinstance(verdict, Shown):
            verdict = await self._rest.identities.identify_or_refuse(verdict.token)
        if isinstance(verdict, Principal) and not scope["state"]["admit"]():
            return Refusal(503, "too many connections at present (rest.server.max-connections); try again")
        return verdict

    async def _answer_shortly(self, encoded: Encoded, scope: Scope, send: Send) -> None:
        try:
            body = await encoded(self._rest)
        except Exception as error:  # the client gets one line, and the log the rest
            await self._tell(send, error, scope["method"], scope["path"])
            return
        await send({"type": "http.response.start", "status": 200, "headers": [*_JSON_HEADERS, _length(body)]})
        await send({"type": "http.response.body", "body": body})

    async def _answer(
        self, verdict: Principal | Refusal, scope: Scope, receive: Receive, send: Send, audited: Audited
    ) -> None:
        path, method = scope["path"], scope["method"]
        if isinstance(verdict, Refusal):
            audited.reason = verdict.detail or verdict.message
            await _send_error(send, verdict.status, verdict.message, close=True)
            return
        audited.principal = verdict
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
            inner = {**scope, "path": path, PRINCIPAL: verdict, AUDITED: audited}
            bounded = _bounded(receive, self._max_content)
            if changes_state(method, path):
                bounded = self._confirming(bounded, verdict)
            await self._router(inner, bounded, watch)
        except ClientDisconnect:
            audited.broke_off = not started
            logger.debug("the client of %s %r has disconnected", method, path[:200])
        except Exception as error:  # the client gets one line, and the log the rest
            if started:
                logger.error("the answer to %s %r broke off: %s", method, path[:200], error)
                raise
            audited.reason = str(error)
            await self._tell(send, error, method, path)

    def _confirming(self, receive: Receive, principal: Principal) -> Receive:
        """Return a receiver of the same body that raises a RestError at its end if the token became invalid.

        A body may take minutes, and its handler changes something once it has the whole of it.
        """

        async def confirming() -> Message:
            message = await receive()
            if message["type"] == "http.request" and not message.get("more_body"):
                refused = await self._rest.identities.confirm_or_refuse(principal)
                if refused is not None:
                    raise RestError(refused.status, refused.message)
            return message

        return confirming

    async def _log_in(
        self, page_login: PageLogin, scope: Scope, receive: Receive, send: Send, audited: Audited
    ) -> None:
        """Answer a request of the page's log-in, which shows no token yet."""
        try:
            response = await page_login.answer(Request(scope, receive), audited)
        except ClientDisconnect:
            logger.debug("the client of %r has disconnected", scope["path"])
        except Exception as error:  # the client gets one line, and the log the rest
            audited.reason = audited.reason or str(error)
            await self._tell(send, error, "POST", scope["path"])
        else:
            response.headers.update(_OFFER_HEADERS)
            await response(scope, receive, send)

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
        await _send_error(send, status, message, close=method not in ("GET", "HEAD"), headers=retry_after(error))

    async def _openapi(self, rest: Rest, request: Request) -> Response:
        return answer(self._document)


class _Resource:
    """The ASGI application of one path: answers by the route of the request's method, or with 405."""

    def __init__(self, rest: Rest, routes: Sequence[RestRoute]) -> None:
        self._rest = rest
        self._routes = {route.method: (route, rule_of_route(route.method, route.path)) for route in routes}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self._routes.get("GET" if scope["method"] == "HEAD" else scope["method"])
        if found is None:
            verbs = ", ".join(self._routes)
            error = error_body(f"{scope['method']} is not served here, only {verbs}")
            response = Response(error, 405, {"allow": verbs}, JSON)
        else:
            route, rule = found
            request = Request(scope, receive, send)
            audited_of(request).begin_route(f"{route.method} {route.path}", request.path_params)
            await check_route(self._rest, request, rule, route.summary)
            response = await route.handler(self._rest, request)
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


async def _send_error(
    send: Send, status: int, message: str, *, close: bool, headers: Mapping[str, str] | None = None
) -> None:
    body = error_body(message)
    further = [(name.encode(), text.encode()) for name, text in (headers or {}).items()]
    sent: list[tuple[bytes, Any]] = [*_JSON_HEADERS, _length(body), *further]
    if status == 401:
        sent.append((b"www-authenticate", b'Bearer realm="understudy"'))
    if close:
        sent.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": sent})
    await send({"type": "http.response.body", "body": body})

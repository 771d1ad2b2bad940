"""The authenticated proxy before Spark's History Server, which a browser cannot log in to by itself.

Spark's pages contain text that jobs have written into their plans and descriptions. So the proxy has a port of its own,
which is an origin of its own. A script in such a page reads no token of the web page, and calls no route of the REST
API. The proxy passes on GET and HEAD only. A request is served if it shows a token, as `Authorization: Bearer TOKEN`,
or the cookie of a login. A login takes a token, or a code that works once. The token is the cluster's own or a user's;
`runtime.users.roles` decides which users may see the pages.

Below `LIVE` it shows the UIs of running drivers in the same way (`runtime.spark.driver.ui`). Each has a path with its
application, which Spark puts before its links because `X-Forwarded-Context` names it.

The audit log has a line for each login, refused ones too, and for each request of a user who may not see the pages. It
has none for reading them.

The proxy has one page of its own (`runtime.rest.spark_attempt`): the Spark jobs and SQL executions of an attempt.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import html
import http.client
import json
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, urlsplit, urlunsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from runtime.ha.errors import HaError
from runtime.rest.access import AccessPolicy, Refusal
from runtime.rest.auditing import Audited, Auditor
from runtime.rest.authorization import KnownIdentities, nobody
from runtime.rest.errors import error_body
from runtime.rest.spark_attempt import HEAD, page, to_json, unknown, work_of
from runtime.rest.spark_links import ATTEMPT
from runtime.users.audit import AuditLog
from runtime.users.identities import CLUSTER, Principal, looks_like_a_token
from runtime.users.roles import SPARK_HISTORY, may, refusal

logger = logging.getLogger(__name__)

LOGIN = "/login"
ATTEMPT_JSON = ATTEMPT + ".json"
LIVE = "/live/"
"""Below it are the UIs of running drivers, each below its application."""
MAX_CONTENT = 4096
"""The most bytes of a request's body: only a login has one."""
MAX_LOGINS = 64
ANSWER_TIMEOUT_S = 300.0
"""Seconds for an answer to begin: the History Server reads a whole event log at its first page."""

_AUDITED = "history-server"
"""Names this server in the lines of the audit log, which it shares with the web endpoint."""

_PASSED_ON = (b"accept", b"accept-encoding", b"accept-language", b"host", b"if-modified-since", b"if-none-match")
_OWN = frozenset({"connection", "date", "keep-alive", "server", "set-cookie", "transfer-encoding"})
"""Headers of the History Server's answers that are not passed on."""
_PIECE = 64 * 1024

_SAFETY = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
_EVERYWHERE = ("x-content-type-options", "x-frame-options", "referrer-policy")

_HTML = "text/html; charset=utf-8"
_NO_ASCII = re.compile(r"[^\x00-\x7f]")
_APPLICATION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}")
_TARGET = re.compile(r"/(?![/\\])[!-\[\]-~]{0,2000}")
"""Where a login may lead: a path of the proxy, which no browser takes for another host's."""
_MOST_EXECUTIONS = 1_000_000
"""More SQL executions than the History Server remembers of an application."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """One of Spark's web servers, on loopback.

    Args:
        port: its port.
        token: the one that it accepts now.
        base: the proxy's path to it, without a slash at the end.
    """

    port: int
    token: str = field(repr=False)
    base: str = ""


def _form(has_users: bool | None, target: str, reason: str = "") -> str:
    """Return the form for a token.

    Args:
        has_users: whether the cluster has users; None if that is not known at present.
        target: the path to which a login leads.
        reason: why a login was refused.
    """
    whose = {
        True: "your token, if your role may see Spark's pages (operator or admin)",
        False: "the cluster's token, which is in its file <code>rest-token</code>",
        None: "the cluster's token, which is in its file <code>rest-token</code>. Tokens of users cannot be checked at "
        "present",
    }[has_users]
    return "\n".join(
        (
            HEAD,
            "<title>Spark's history</title><body><h1>Spark's history</h1>",
            f'<p role="alert"><strong>{html.escape(reason)}</strong></p>' if reason else "",
            f"<p>Give {whose}.",
            "Or open the link that <code>understudy history-server</code> has printed; it works once.</p>",
            '<form method="post" action="/login"><label>Token <input type="password" name="token" autofocus></label>',
            f'<input type="hidden" name="next" value="{html.escape(target)}">',
            "<button>Log in</button></form></body></html>",
        )
    )


def _target(text: str) -> str:
    """Return a path of the proxy to which a login may lead; any other text becomes its first page."""
    return text if _TARGET.fullmatch(text) else "/"


class Logins:
    """The logins of one proxy. Pure.

    Args:
        token: the cluster's token; None if it has none, and only the code and users' tokens are accepted.
        code: works once.
    """

    def __init__(self, token: bytes | None, code: str) -> None:
        self._token = token
        self._code: bytes | None = _digest(code)
        self._sessions: dict[bytes, Principal] = {}

    def accepts(self, token: bytes) -> bool:
        """Return whether this is the cluster's token."""
        return self._token is not None and hmac.compare_digest(token, self._token)

    def redeem(self, code: str) -> bool:
        """Return whether this is the code; it is not accepted again."""
        if self._code is None or not hmac.compare_digest(_digest(code), self._code):
            return False
        self._code = None
        return True

    def open(self, session: str, principal: Principal = CLUSTER) -> None:
        """Begin a session with an id that nobody can guess; the oldest of `MAX_LOGINS` ends."""
        self._sessions[_digest(session)] = principal
        if len(self._sessions) > MAX_LOGINS:
            del self._sessions[next(iter(self._sessions))]

    def find(self, session: str) -> Principal | None:
        """Return who began a session; None if there is no such session."""
        return self._sessions.get(_digest(session))


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


class HistoryProxy:
    """The ASGI application of the proxy.

    Args:
        logins: decide which requests are served.
        port: of the proxy, which is part of the cookie's name: browsers send cookies to all ports of a host.
        upstream: returns the History Server.
        new_session: returns an id that nobody can guess.
        identities: users and their tokens; None for a cluster without users.
        live: returns the UI of the running driver of an application; None if there is none.
        audit: the audit log of the cluster; None for none.
    """

    def __init__(
        self,
        logins: Logins,
        port: int,
        upstream: Callable[[], Upstream],
        new_session: Callable[[], str],
        identities: KnownIdentities | None = None,
        live: Callable[[str], Upstream | None] = lambda application: None,
        audit: AuditLog | None = None,
    ) -> None:
        self._auditor = Auditor(audit)
        self._live = live
        self._identities = KnownIdentities(nobody) if identities is None else identities
        self._logins = logins
        self._cookie = f"understudy-history-{port}"
        self._upstream = upstream
        self._new_session = new_session
        # host, origin and size are checked by the rules of the web endpoint; tokens are checked here
        self._policy = AccessPolicy(None, (), "http", MAX_CONTENT)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        audited = Audited.of(scope)
        audited.action, audited.target = f"{_AUDITED}/{scope['method'].lower()}", scope["path"]
        try:
            response = await self._answer(Request(scope, receive), audited)
            if response is not None:
                await response(scope, receive, audited.watching(send))
                return
        finally:
            self._auditor.record(audited)
        upstream = self._upstream()
        if scope["path"].startswith(LIVE):
            application, slash, _ = scope["path"].removeprefix(LIVE).partition("/")
            live = await self._find_live(application)
            if live is None:
                await _no_ui(application)(scope, receive, send)
                return
            if not slash:
                await RedirectResponse(f"{live.base}/jobs/", 302, _SAFETY)(scope, receive, send)
                return
            upstream = live
        await self._pass_on(upstream, scope, receive, send)

    async def _find_live(self, application: str) -> Upstream | None:
        if _APPLICATION.fullmatch(application) is None:
            return None
        return await asyncio.to_thread(self._live, application)

    async def _answer(self, request: Request, audited: Audited) -> Response | None:
        """Return the answer to a request that is not passed on; None for one that is."""
        scope = request.scope
        verdict = self._policy.check(scope["method"], scope["path"], scope["headers"])
        if isinstance(verdict, Refusal):
            audited.reason = verdict.detail or verdict.message
            return _refusal(verdict)
        if scope["path"] == LOGIN:
            return await self._log_in(request, audited)
        who = await self._identify(request, audited)
        if isinstance(who, Refusal):
            audited.reason = who.detail or who.message
            if who.status == 401 and scope["method"] == "GET" and _wants_a_page(request):
                query = scope["query_string"].decode("latin-1")
                return await self._ask_for_a_token(scope["path"] + (f"?{query}" if query else ""))
            return _refusal(who)
        if not isinstance(verdict, Principal) or not scope["state"]["admit"]():
            return _refusal(Refusal(503, "too many connections at present; try again"))
        if scope["method"] not in ("GET", "HEAD"):
            audited.reason = "Spark's history can only be read: GET and HEAD are served"
            return _refusal(Refusal(405, audited.reason))
        if scope["path"] in (ATTEMPT, ATTEMPT_JSON):
            return await self._attempt(request)
        return None

    async def _identify(self, request: Request, audited: Audited) -> Principal | Refusal:
        """Return who has sent a request, if they may see the pages; else why not. Note them for the audit log."""
        scheme, _, shown = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return await self._identify_token(shown.strip().encode(), audited)
        try:
            cookie = SimpleCookie(request.headers.get("cookie", "")).get(self._cookie)
        except CookieError:
            cookie = None
        principal = None if cookie is None else self._logins.find(cookie.value)
        if principal is None:
            return Refusal(401, f"log in at {LOGIN}, or show a token: Authorization: Bearer TOKEN")
        if not await self._identities.confirm(principal):
            return Refusal(401, f"your token is not valid any more, or cannot be checked at present; log in at {LOGIN}")
        audited.principal = principal
        return _checked(principal)

    async def _identify_token(self, shown: bytes, audited: Audited) -> Principal | Refusal:
        """Return whom a token identifies, if they may see the pages; else why not. Note them for the audit log."""
        if self._logins.accepts(shown):
            audited.principal = CLUSTER
            return CLUSTER
        if not looks_like_a_token(shown):
            return Refusal(401, f"this token is not known here; log in at {LOGIN}, or show another")
        try:
            found = await self._identities.identify(shown)
        except HaError as error:
            logger.warning("users cannot be identified: %s", error)
            return Refusal(503, f"users cannot be identified at present: {error}")
        if isinstance(found, Refusal):
            return found
        audited.principal = found
        return _checked(found)

    async def _log_in(self, request: Request, audited: Audited) -> Response:
        """Answer the form's POST of a token, and the printed link with the code."""
        audited.action, audited.target = f"{_AUDITED}/login", ""
        audited.changes = request.method == "POST" or "code" in request.query_params
        target = "/"
        who: Principal | Refusal
        if request.method == "POST":
            fields = parse_qs((await _body(request)).decode("latin-1"))
            target = _target(fields.get("next", ["/"])[0])
            who = await self._identify_token(fields.get("token", [""])[0].strip().encode(), audited)
        elif request.method == "GET" and self._logins.redeem(request.query_params.get("code", "")):
            audited.principal = who = CLUSTER
        else:
            audited.reason = "the code of this link is wrong, or was used before"
            who = Refusal(401, "")
        if isinstance(who, Refusal):
            audited.reason = who.detail or who.message or audited.reason
            return await self._ask_for_a_token(target, who)
        session = self._new_session()
        self._logins.open(session, who)
        response = RedirectResponse(target, 303, _SAFETY)
        response.set_cookie(self._cookie, session, httponly=True, samesite="strict")
        return response

    async def _ask_for_a_token(self, target: str, refused: Refusal | None = None) -> Response:
        try:
            has_users: bool | None = bool((await self._identities.recent()).users)
        except HaError:
            has_users = None
        reason, status = ("", 401) if refused is None else (refused.message, refused.status)
        headers = {**_SAFETY, **({"www-authenticate": "Bearer"} if status == 401 else {})}
        return Response(_form(has_users, _target(target), reason), status, headers, _HTML)

    async def _attempt(self, request: Request) -> Response:
        """Answer with the Spark jobs and SQL executions of an attempt, as a page or as JSON."""
        application, tag = (request.query_params.get(name, "") for name in ("application", "tag"))
        if _APPLICATION.fullmatch(application) is None or not tag:
            return _refusal(Refusal(400, "name the attempt: ?application=ID&tag=TAG, as GET /jobs/ID/spark shows it"))
        live = await self._find_live(application)
        upstream = self._upstream() if live is None else live
        pages = f"/history/{application}/" if live is None else f"{live.base}/"
        base = f"/api/v1/applications/{application}"
        options = f"?details=false&planDescription=false&length={_MOST_EXECUTIONS}"
        as_json = request.scope["path"] == ATTEMPT_JSON
        found = []
        try:
            for part in ("/jobs", f"/sql{options}", "/stages"):
                found.append(await asyncio.to_thread(_fetch, upstream, base + part))
                if found[-1] is None:
                    break
        except (OSError, http.client.HTTPException, ValueError) as error:
            logger.warning("Spark does not answer for %s: %s", application, error)
            return _refusal(Refusal(502, f"Spark does not answer for {application}: {type(error).__name__}"))
        if found[-1] is None:
            message = f"Spark's History Server does not know the application {application}"
            return _refusal(Refusal(404, message)) if as_json else Response(unknown(application), 404, _SAFETY, _HTML)
        jobs, executions, stages = (part or [] for part in found)
        work = work_of(jobs, executions, tag, stages)
        if as_json:
            return Response(json.dumps(to_json(application, tag, work, pages)), 200, _SAFETY, "application/json")
        return Response(page(application, tag, work, pages), 200, _SAFETY, _HTML)

    async def _pass_on(self, upstream: Upstream, scope: Scope, receive: Receive, send: Send) -> None:
        query = scope["query_string"].decode("latin-1")
        target = scope["raw_path"].decode("latin-1").removeprefix(upstream.base) + (f"?{query}" if query else "")
        target = _NO_ASCII.sub(lambda found: f"%{ord(found[0]):02X}", target)  # http.client sends no other characters
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in _passed_on(scope["headers"])}
        headers["Authorization"] = f"Bearer {upstream.token}"
        if upstream.base:
            headers["X-Forwarded-Context"] = upstream.base
        connection = http.client.HTTPConnection("127.0.0.1", upstream.port, timeout=ANSWER_TIMEOUT_S)
        try:
            try:
                found = await asyncio.to_thread(_ask, connection, scope["method"], target, headers)
            except (OSError, http.client.HTTPException) as error:
                logger.warning("Spark does not answer %s: %s", scope["path"][:200], error)
                which = "the Spark driver" if upstream.base else "Spark's History Server"
                refused = _refusal(Refusal(502, f"{which} does not answer: {type(error).__name__}"))
                await refused(scope, receive, send)
                return
            await _stream(found, upstream.base, send)
        finally:
            connection.close()


def _fetch(upstream: Upstream, path: str) -> list[dict[str, Any]] | None:
    """Return a list of Spark's own API; None if the application is not known.

    Raises:
        OSError, HTTPException: it does not answer.
        ValueError: it answers something else.
    """
    connection = http.client.HTTPConnection("127.0.0.1", upstream.port, timeout=ANSWER_TIMEOUT_S)
    try:
        connection.request(
            "GET", path, headers={"Authorization": f"Bearer {upstream.token}", "Accept": "application/json"}
        )
        found = connection.getresponse()
        content = found.read()
    finally:
        connection.close()
    if found.status == 404:
        return None
    if found.status != 200:
        raise ValueError(f"status {found.status}")
    value = json.loads(content)
    if not isinstance(value, list):
        raise ValueError("no list")
    return value


async def _body(request: Request) -> bytes:
    """Return a body of at most `MAX_CONTENT` bytes; of a longer one, the beginning."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) >= MAX_CONTENT:
            break
    return body[:MAX_CONTENT]


def _passed_on(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in headers if name in _PASSED_ON]


def _ask(
    connection: http.client.HTTPConnection, method: str, target: str, headers: Mapping[str, str]
) -> http.client.HTTPResponse:
    connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    return connection.getresponse()


def _moved(location: str, base: str) -> str:
    """Return the target of a redirect of Spark's as a path of the proxy."""
    parts = urlsplit(location)
    path = parts.path if parts.path == base or parts.path.startswith(f"{base}/") else base + parts.path
    return urlunsplit(("", "", path, parts.query, parts.fragment))


async def _stream(found: http.client.HTTPResponse, base: str, send: Callable[..., Awaitable[None]]) -> None:
    headers = [
        (
            name.lower().encode("latin-1"),
            (_moved(value, base) if base and name.lower() == "location" else value).encode("latin-1"),
        )
        for name, value in found.getheaders()
        if name.lower() not in (*_OWN, *_EVERYWHERE)
    ]
    headers += [(name.encode(), _SAFETY[name].encode()) for name in _EVERYWHERE]
    await send({"type": "http.response.start", "status": found.status, "headers": headers})
    while piece := await asyncio.to_thread(found.read, _PIECE):
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def _checked(principal: Principal) -> Principal | Refusal:
    """Return a principal who may see the pages; for another, why not."""
    if may(principal, SPARK_HISTORY):
        return principal
    return Refusal(403, refusal(principal, SPARK_HISTORY, "seeing Spark's own pages"))


def _no_ui(application: str) -> Response:
    """Return the answer for an application whose driver serves no UI."""
    message = (
        f"no running driver on this machine serves the UI of {application[:200] or 'no application'}: it has ended, or "
        f"its UI is off (spark.ui.enabled); /history/{application[:200]}/jobs/ shows its event log, if there is one"
    )
    return _refusal(Refusal(404, message))


def _wants_a_page(request: Request) -> bool:
    return request.url.path == "/" or "text/html" in request.headers.get("accept", "")


def _refusal(refused: Refusal) -> Response:
    headers = {**_SAFETY, "connection": "close", **({"www-authenticate": "Bearer"} if refused.status == 401 else {})}
    return Response(error_body(refused.message), refused.status, headers, "application/json")

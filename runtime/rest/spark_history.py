"""The authenticated proxy before Spark's History Server, which a browser cannot log in to by itself.

Spark's pages contain text that jobs have written into their plans and descriptions. So the proxy has a port of its own,
which is an origin of its own. A script in such a page reads no token of the web page, and calls no route of the REST
API. The proxy passes on GET and HEAD only. A request is served if it shows the cluster's token, as
`Authorization: Bearer TOKEN`, or the cookie of a login. A login takes that token, or a code that works once.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import http.client
import logging
from collections.abc import Awaitable, Callable, Mapping
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from runtime.rest.access import AccessPolicy, Refusal
from runtime.rest.errors import error_body
from runtime.users.identities import Principal

logger = logging.getLogger(__name__)

LOGIN = "/login"
MAX_CONTENT = 4096
"""The most bytes of a request's body: only a login has one."""
MAX_LOGINS = 64
ANSWER_TIMEOUT_S = 300.0
"""Seconds for an answer to begin: the History Server reads a whole event log at its first page."""

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

_FORM = "\n".join(
    (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Spark\'s history</title>',
        '<body style="font-family: sans-serif; max-width: 40em; margin: 3em auto"><h1>Spark\'s history</h1>',
        "<p>Open the link that <code>understudy history-server</code> has printed; it works once.",
        "Or give the cluster's token, which is in its file <code>rest-token</code>.</p>",
        '<form method="post" action="/login"><label>Token <input type="password" name="token" autofocus></label>',
        "<button>Log in</button></form></body></html>",
    )
)


class Logins:
    """The logins of one proxy. Pure.

    Args:
        token: the cluster's token; None if it has none, and only the code is accepted.
        code: works once.
    """

    def __init__(self, token: bytes | None, code: str) -> None:
        self._token = token
        self._code: bytes | None = _digest(code)
        self._sessions: dict[bytes, None] = {}

    def accepts(self, token: bytes) -> bool:
        """Return whether this is the cluster's token."""
        return self._token is not None and hmac.compare_digest(token, self._token)

    def redeem(self, code: str) -> bool:
        """Return whether this is the code; it is not accepted again."""
        if self._code is None or not hmac.compare_digest(_digest(code), self._code):
            return False
        self._code = None
        return True

    def open(self, session: str) -> None:
        """Begin a session with an id that nobody can guess; the oldest of `MAX_LOGINS` ends."""
        self._sessions[_digest(session)] = None
        if len(self._sessions) > MAX_LOGINS:
            del self._sessions[next(iter(self._sessions))]

    def is_open(self, session: str) -> bool:
        """Return whether a session has begun."""
        return _digest(session) in self._sessions


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


class HistoryProxy:
    """The ASGI application of the proxy.

    Args:
        logins: decide which requests are served.
        port: of the proxy, which is part of the cookie's name: browsers send cookies to all ports of a host.
        upstream: returns the History Server's port on loopback, and a token for it.
        new_session: returns an id that nobody can guess.
    """

    def __init__(
        self, logins: Logins, port: int, upstream: Callable[[], tuple[int, str]], new_session: Callable[[], str]
    ) -> None:
        self._logins = logins
        self._cookie = f"understudy-history-{port}"
        self._upstream = upstream
        self._new_session = new_session
        # host, origin and size are checked by the rules of the web endpoint; tokens are checked here
        self._policy = AccessPolicy(None, (), "http", MAX_CONTENT)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        response = await self._answer(Request(scope, receive))
        if response is not None:
            await response(scope, receive, send)
            return
        await self._pass_on(scope, receive, send)

    async def _answer(self, request: Request) -> Response | None:
        """Return the answer to a request that is not passed on; None for one that is."""
        scope = request.scope
        verdict = self._policy.check(scope["method"], scope["path"], scope["headers"])
        if isinstance(verdict, Refusal):
            return _refusal(verdict)
        if scope["path"] == LOGIN:
            return await self._log_in(request)
        if not self._may_see(request):
            if scope["path"] == "/" and scope["method"] == "GET":
                return Response(_FORM, 401, {**_SAFETY, "www-authenticate": "Bearer"}, "text/html; charset=utf-8")
            return _refusal(
                Refusal(401, f"log in at {LOGIN}, or show the cluster's token: Authorization: Bearer TOKEN")
            )
        if not isinstance(verdict, Principal) or not scope["state"]["admit"]():
            return _refusal(Refusal(503, "too many connections at present; try again"))
        if scope["method"] not in ("GET", "HEAD"):
            return _refusal(Refusal(405, "Spark's history can only be read: GET and HEAD are served"))
        return None

    def _may_see(self, request: Request) -> bool:
        scheme, _, shown = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self._logins.accepts(shown.strip().encode())
        try:
            cookie = SimpleCookie(request.headers.get("cookie", "")).get(self._cookie)
        except CookieError:
            return False
        return cookie is not None and self._logins.is_open(cookie.value)

    async def _log_in(self, request: Request) -> Response:
        """Answer the form's POST of the token, and the printed link with the code."""
        if request.method == "POST":
            fields = parse_qs((await _body(request)).decode("latin-1"))
            accepted = self._logins.accepts(fields.get("token", [""])[0].strip().encode())
        else:
            accepted = request.method == "GET" and self._logins.redeem(request.query_params.get("code", ""))
        if not accepted:
            return Response(_FORM, 401, {**_SAFETY, "www-authenticate": "Bearer"}, "text/html; charset=utf-8")
        session = self._new_session()
        self._logins.open(session)
        response = RedirectResponse("/", 303, _SAFETY)
        response.set_cookie(self._cookie, session, httponly=True, samesite="strict")
        return response

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        port, token = self._upstream()
        query = scope["query_string"].decode("latin-1")
        target = scope["raw_path"].decode("latin-1") + (f"?{query}" if query else "")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in _passed_on(scope["headers"])}
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_TIMEOUT_S)
        try:
            try:
                found = await asyncio.to_thread(
                    _ask, connection, scope["method"], target, {**headers, "Authorization": f"Bearer {token}"}
                )
            except (OSError, http.client.HTTPException) as error:
                logger.warning("the History Server does not answer %s: %s", scope["path"][:200], error)
                refused = _refusal(Refusal(502, f"Spark's History Server does not answer: {type(error).__name__}"))
                await refused(scope, receive, send)
                return
            await _stream(found, send)
        finally:
            connection.close()


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


async def _stream(found: http.client.HTTPResponse, send: Callable[..., Awaitable[None]]) -> None:
    headers = [
        (name.lower().encode("latin-1"), value.encode("latin-1"))
        for name, value in found.getheaders()
        if name.lower() not in (*_OWN, *_EVERYWHERE)
    ]
    headers += [(name.encode(), _SAFETY[name].encode()) for name in _EVERYWHERE]
    await send({"type": "http.response.start", "status": found.status, "headers": headers})
    while piece := await asyncio.to_thread(found.read, _PIECE):
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def _refusal(refusal: Refusal) -> Response:
    headers = {**_SAFETY, "connection": "close", **({"www-authenticate": "Bearer"} if refusal.status == 401 else {})}
    return Response(error_body(refusal.message), refusal.status, headers, "application/json")

"""uvicorn's HTTP/1.1 protocol with bounds on what a peer may take: its time, and the size of a request's head.

uvicorn itself waits for ever for a head that does not end, and keeps all of it. It takes the lines behind a chunked
body for lines of the head, and does not look where an absolute address leads.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from runtime.rest.access import ConnectionLimits
from runtime.rest.errors import error_body

HEAD_TIMEOUT_S = 10.0
STALL_TIMEOUT_S = 60.0
UNAUTHENTICATED_KEEP_ALIVE_S = 10
WHOLE_BODY_TIMEOUT_S = 150.0
"""Of a body that comes, but hardly: more than what handlers wait for one (`BODY_TIMEOUT_S`), who say so."""
MAX_HEAD = 64 * 1024
_REASONS = {400: b"Bad Request", 408: b"Request Timeout", 431: b"Request Header Fields Too Large"}
_REASONS[503] = b"Service Unavailable"


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection. The server calls `enforce` every now and then.

    The application finds `admit` under ``state`` of its scope, and calls it for every request that it grants.

    Args:
        config: uvicorn's.
        state: shared by all connections.
        limits: decides which connections stay; shared by all connections.
        sock: the connection, which asyncio owns once it has made a transport of it.
    """

    def __init__(
        self,
        config: Config,
        state: ServerState,
        limits: ConnectionLimits[BoundedHttpProtocol],
        sock: socket.socket,
    ) -> None:
        super().__init__(config, state, {"admit": self.admit})
        self.timeout_keep_alive = min(config.timeout_keep_alive, UNAUTHENTICATED_KEEP_ALIVE_S)
        self._limits = limits
        self._sock = sock
        self._given_way = False
        self._head_since: float | None = None
        self._head_size = 0
        self._body_since: float | None = None
        self._body_began = 0.0
        self._trailers_size = 0
        self._stalled_since: float | None = None

    def admit(self) -> bool:
        """Note that this connection has shown what the endpoint asks for; returns whether there is a place for it."""
        admitted = self._limits.authenticate(self)
        if admitted:
            self.timeout_keep_alive = self.config.timeout_keep_alive
        return admitted

    def give_way(self) -> None:
        """Close at once: another connection needs the place."""
        self._given_way = True
        if self.transport is None:  # its TLS handshake has not ended
            with contextlib.suppress(OSError):  # the peer has gone already
                self._sock.shutdown(socket.SHUT_RDWR)
            return
        self._refuse(503, "too many connections that have shown no token; this was the oldest of them")
        self.transport.abort()  # a peer that does not read keeps no place

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._head_since = self.loop.time()
        if self._given_way:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave the place to another connection."""
        self._limits.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Something has come; a head must not be too long."""
        if self.transport.is_closing():
            return
        if self._body_since is not None:
            self._body_since = self.loop.time()
        super().data_received(data)
        if self._head_since is not None:
            self._head_size += len(data)
            if self._head_size > MAX_HEAD and not self.transport.is_closing():
                self._refuse(431, f"the head of a request has at most {MAX_HEAD} bytes")

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        if self._head_since is None:
            self._head_since, self._head_size = self.loop.time(), 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """A line of the head. One behind the body (a trailer) is not: what says who asks, and whom, comes first."""
        if self._body_since is None:
            super().on_header(name, value)
            return
        self._trailers_size += len(name) + len(value)
        if self._trailers_size > MAX_HEAD:
            self.transport.close()

    def on_headers_complete(self) -> None:
        """The head has come, the body may follow. Raises ValueError where the address is not that of the Host."""
        if not self.url.startswith((b"/", b"*")):
            authority = self.url.partition(b"://")[2].partition(b"/")[0].lower()
            if authority not in (value.lower() for name, value in self.headers if name == b"host"):
                raise ValueError("a request for another host")  # the parser makes that a request that cannot be read
        self._head_since = None
        self._body_since = self._body_began = self.loop.time()
        self._trailers_size = 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The request has come wholly."""
        self._body_since = None
        super().on_message_complete()

    def pause_writing(self) -> None:
        """The peer does not read."""
        super().pause_writing()
        self._stalled_since = self.loop.time()

    def resume_writing(self) -> None:
        """The peer reads."""
        super().resume_writing()
        self._stalled_since = None

    def enforce(self, now: float) -> None:
        """Part with a peer that takes too long; *now* is the loop's time."""
        if self._stalled_since is not None and now - self._stalled_since > STALL_TIMEOUT_S:
            self.transport.abort()
        elif self._head_since is not None and now - self._head_since > HEAD_TIMEOUT_S:
            self._refuse(408, f"the head of a request has to come within {HEAD_TIMEOUT_S:g} s")
        elif self._body_since is not None and (
            now - self._body_since > STALL_TIMEOUT_S or now - self._body_began > WHOLE_BODY_TIMEOUT_S
        ):
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP."""
        self._refuse(400, "this is no HTTP request that can be read")

    def _unsupported_upgrade_warning(self) -> None:
        """The answer is HTTP/1.1's; what came behind the request is lost in the parser, so it is the last one."""
        self.cycle.keep_alive = False

    def _refuse(self, status: int, message: str) -> None:
        if self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete:
            self.transport.close()  # nothing is written into the answer to another request
            return
        body = error_body(message)
        head = b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(head % (status, _REASONS[status], len(body)) + body)
        self.transport.close()

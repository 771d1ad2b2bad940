"""The HTTP server of the web endpoint, on the event loop of its process: uvicorn's protocol without uvicorn's server.

The server accepts connections itself, because asyncio's server does not count one before its TLS handshake has ended.
Its protocol is uvicorn's for HTTP/1.1, with limits on a peer's time and on the size of a request's head. uvicorn itself
has these gaps:

- It waits for ever for a head that does not end, and keeps all of it.
- It treats the lines behind a chunked body as lines of the head.
- It does not check the host of an absolute address.

uvicorn documents no interface for such a protocol. So `setup.cfg` bounds its version, and
`tests/unit/test_rest_uvicorn.py` checks the parts that are used here.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from pathlib import Path

from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from runtime.errors import PreflightError
from runtime.rest.access import ConnectionLimits
from runtime.rest.errors import error_body

logger = logging.getLogger(__name__)

ACCEPTS_AT_ONCE = 16
"""Far fewer than `UNAUTHENTICATED`, so that the first request of a new connection is read before the connection becomes
the oldest one."""
RETRY_S = 1.0
WARN_EVERY_S = 60.0
KEEP_ALIVE_S = 60
SWEEP_INTERVAL_S = 1.0
HANDSHAKE_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 2.0
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
HEAD_TIMEOUT_S = 10.0
STALL_TIMEOUT_S = 60.0
UNAUTHENTICATED_KEEP_ALIVE_S = 10
WHOLE_BODY_TIMEOUT_S = 150.0
"""Seconds for a whole body, however slow; longer than handlers wait (`BODY_TIMEOUT_S`), so that they answer first."""
MAX_HEAD = 64 * 1024
_REASONS = {400: b"Bad Request", 408: b"Request Timeout", 431: b"Request Header Fields Too Large"}
_REASONS[503] = b"Service Unavailable"


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection. The server calls `enforce` regularly.

    The application finds `admit` under ``state`` of its scope, and calls it for every request that it grants.

    Args:
        config: uvicorn's.
        state: shared by all connections.
        limits: decides which connections stay; shared by all connections.
        sock: the connection; asyncio owns it as soon as it has a transport.
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
        """Note that this connection is authenticated; return whether there is a place for it."""
        admitted = self._limits.authenticate(self)
        if admitted:
            self.timeout_keep_alive = self.config.timeout_keep_alive
        return admitted

    def give_way(self) -> None:
        """Close at once: another connection needs the place."""
        self._given_way = True
        if self.transport is None:  # its TLS handshake has not ended
            with contextlib.suppress(OSError):  # the peer has already disconnected
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
        """Free the connection's place."""
        self._limits.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Handle received bytes, and refuse a head that is too long."""
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
        """Note the beginning of a request."""
        super().on_message_begin()
        if self._head_since is None:
            self._head_since, self._head_size = self.loop.time(), 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a line of the head; ignore trailers behind the body, which must not replace the token or the host."""
        if self._body_since is None:
            super().on_header(name, value)
            return
        self._trailers_size += len(name) + len(value)
        if self._trailers_size > MAX_HEAD:
            self.transport.close()

    def on_headers_complete(self) -> None:
        """Begin to wait for the body; raises ValueError if an absolute address has another host than the header."""
        if not self.url.startswith((b"/", b"*")):
            authority = self.url.partition(b"://")[2].partition(b"/")[0].lower()
            if authority not in (value.lower() for name, value in self.headers if name == b"host"):
                raise ValueError("a request for another host")  # the parser then reports an invalid request
        self._head_since = None
        self._body_since = self._body_began = self.loop.time()
        self._trailers_size = 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Note the end of a request."""
        self._body_since = None
        super().on_message_complete()

    def pause_writing(self) -> None:
        """Note that the peer does not read."""
        super().pause_writing()
        self._stalled_since = self.loop.time()

    def resume_writing(self) -> None:
        """Note that the peer reads again."""
        super().resume_writing()
        self._stalled_since = None

    def enforce(self, now: float) -> None:
        """Close the connection of a peer that takes too long; *now* is the loop's time."""
        if self._stalled_since is not None and now - self._stalled_since > STALL_TIMEOUT_S:
            self.transport.abort()
        elif self._head_since is not None and now - self._head_since > HEAD_TIMEOUT_S:
            self._refuse(408, f"the head of a request has to come within {HEAD_TIMEOUT_S:g} s")
        elif self._body_since is not None and (
            now - self._body_since > STALL_TIMEOUT_S or now - self._body_began > WHOLE_BODY_TIMEOUT_S
        ):
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are not HTTP."""
        self._refuse(400, "the server cannot read this as an HTTP request")

    def _unsupported_upgrade_warning(self) -> None:
        """Answer by HTTP/1.1 and then close: the parser has lost all bytes behind the request."""
        self.cycle.keep_alive = False

    def _refuse(self, status: int, message: str) -> None:
        if self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete:
            self.transport.close()  # an answer has begun: an error must not be written into it
            return
        body = error_body(message)
        head = b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(head % (status, _REASONS[status], len(body)) + body)
        self.transport.close()


class RestServer:
    """HTTP server of an application on a listening socket.

    Args:
        app: the application.
        listener: the socket; closed with the server.
        tls: for HTTPS; None for HTTP.
        max_connections: limit of authenticated connections; further ones are refused. Unauthenticated connections have
            a limit of their own (`UNAUTHENTICATED`): there the oldest one is closed.
    """

    def __init__(self, app: ASGIApp, listener: socket.socket, tls: ssl.SSLContext | None, max_connections: int) -> None:
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # invalid requests must not fill the log
        self._listener = listener
        self._tls = tls
        self._limits = ConnectionLimits[BoundedHttpProtocol](max_connections)
        self._state = ServerState()
        self._shaking_hands: dict[asyncio.Task[None], BoundedHttpProtocol] = {}
        self._is_listening = False
        self._retry: asyncio.TimerHandle | None = None
        self._warned_at = float("-inf")
        self._sweeping: asyncio.TimerHandle | None = None
        self._config = Config(
            app,
            interface="asgi3",
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
        )

    async def start(self) -> None:
        """Begin to serve."""
        self._config.load()
        self._listen()

    def _listen(self) -> None:
        self._retry = None
        self._is_listening = True
        asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            try:
                sock, _ = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                logger.error("no connection can be accepted for %g s: %s", RETRY_S, error.strerror)
                self._listen_no_more()
                self._retry = asyncio.get_running_loop().call_later(RETRY_S, self._listen)
                return
            sock.setblocking(False)
            self._begin(sock)

    def _begin(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        if self._sweeping is None:  # an endpoint without connections does not wake up
            self._sweeping = loop.call_later(SWEEP_INTERVAL_S, self._sweep)
        connection = BoundedHttpProtocol(self._config, self._state, self._limits, sock)
        oldest = self._limits.enter(connection)
        if oldest is not None:
            oldest.give_way()
            if loop.time() - self._warned_at >= WARN_EVERY_S:
                self._warned_at = loop.time()
                logger.warning("many connections that have shown no token are open: the oldest ones are closed")
        task = loop.create_task(self._attach(connection, sock))
        self._shaking_hands[task] = connection
        task.add_done_callback(self._shaking_hands.pop)

    async def _attach(self, connection: BoundedHttpProtocol, sock: socket.socket) -> None:
        handshake_s = None if self._tls is None else HANDSHAKE_TIMEOUT_S
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, sock, ssl=self._tls, ssl_handshake_timeout=handshake_s
            )
        except OSError as error:  # also a failed TLS handshake
            self._limits.leave(connection)
            logger.debug("a connection ended before its first request: %s", error)

    def _listen_no_more(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
        if self._is_listening:
            self._is_listening = False
            asyncio.get_running_loop().remove_reader(self._listener)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        for connection in list(self._state.connections):
            if isinstance(connection, BoundedHttpProtocol):
                connection.enforce(loop.time())
        goes_on = self._state.connections or self._shaking_hands
        self._sweeping = loop.call_later(SWEEP_INTERVAL_S, self._sweep) if goes_on else None

    async def stop(self) -> None:
        """Accept no more requests, wait up to `STOP_TIMEOUT_S` for open answers, and close."""
        self._listen_no_more()
        self._listener.close()
        for attaching, unattached in list(self._shaking_hands.items()):
            unattached.give_way()
            await asyncio.wait([attaching])
        for connection in list(self._state.connections):
            connection.shutdown()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await asyncio.gather(*self._state.tasks, return_exceptions=True)
        for task in list(self._state.tasks):
            task.cancel()
        for connection in list(self._state.connections):
            connection.transport.abort()
        if self._sweeping is not None:
            self._sweeping.cancel()


def tls_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Return the TLS context of the server.

    Raises:
        PreflightError: the files cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        if mode := key.stat().st_mode & 0o077:
            raise PreflightError(
                f"security.ssl.rest.key: {key} can be read by others (mode 0{mode | 0o600:o})", f"chmod 600 {key}"
            )
        context.load_cert_chain(certificate, key, password=lambda: "")
    except (OSError, ssl.SSLError) as error:
        raise PreflightError(
            f"the certificate {certificate} with the key {key} cannot be used: {error}",
            "check security.ssl.rest.certificate and security.ssl.rest.key; the key has no password",
        ) from error
    return context

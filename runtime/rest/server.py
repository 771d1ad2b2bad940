"""The HTTP server of the web endpoint, on the loop of its process: uvicorn's protocol without uvicorn's own loop.

It accepts by itself, because asyncio's server does not count a connection before its TLS handshake has ended.
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
from uvicorn.server import ServerState

from runtime.errors import PreflightError
from runtime.rest.access import ConnectionLimits
from runtime.rest.http_protocol import BoundedHttpProtocol

logger = logging.getLogger(__name__)

ACCEPTS_AT_ONCE = 16
"""Far fewer than may be unauthenticated, so that a request that has come with its connection is read before the
connection is the oldest one."""
RETRY_S = 1.0
WARN_EVERY_S = 60.0
KEEP_ALIVE_S = 60
SWEEP_INTERVAL_S = 1.0
HANDSHAKE_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 2.0
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class RestServer:
    """Serves an application on a listening socket.

    Args:
        app: the application.
        listener: the socket; closed with the server.
        tls: for HTTPS; None for HTTP.
        max_connections: of those that have shown the token, more are refused. Those that have not are bounded apart
            (`UNAUTHENTICATED`): the oldest gives way.
    """

    def __init__(self, app: ASGIApp, listener: socket.socket, tls: ssl.SSLContext | None, max_connections: int) -> None:
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # strangers' nonsense is no reason to fill a log
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
        if self._sweeping is None:  # nobody to look after, nothing to do: an idle endpoint sleeps
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
        except OSError as error:  # also what the TLS handshake ends with
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
        """Take no more requests, let those that are being answered end for a moment, and close."""
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
    """The side of TLS that shows a certificate.

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

"""The HTTP server of the web endpoint, on the loop of its process: uvicorn's protocol without uvicorn's own loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from pathlib import Path

from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.server import ServerState

from runtime.environment.errors import PreflightError
from runtime.rest.http_protocol import BoundedHttpProtocol

KEEP_ALIVE_S = 60
SWEEP_INTERVAL_S = 1.0
HANDSHAKE_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 2.0


class RestServer:
    """Serves an application on a listening socket.

    Args:
        app: the application.
        listener: the socket; closed with the server.
        tls: for HTTPS; None for HTTP.
        max_connections: more are refused.
    """

    def __init__(self, app: ASGIApp, listener: socket.socket, tls: ssl.SSLContext | None, max_connections: int) -> None:
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # strangers' nonsense is no reason to fill a log
        self._listener = listener
        self._tls = tls
        self._max_connections = max_connections
        self._state = ServerState()
        self._server: asyncio.Server | None = None
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
        loop = asyncio.get_running_loop()
        handshake_s = None if self._tls is None else HANDSHAKE_TIMEOUT_S
        self._server = await loop.create_server(
            self._connection, sock=self._listener, ssl=self._tls, ssl_handshake_timeout=handshake_s
        )

    def _connection(self) -> BoundedHttpProtocol:
        if self._sweeping is None:  # nobody to look after, nothing to do: an idle endpoint sleeps
            self._sweeping = asyncio.get_running_loop().call_later(SWEEP_INTERVAL_S, self._sweep)
        return BoundedHttpProtocol(self._config, self._state, self._max_connections)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        for connection in list(self._state.connections):
            if isinstance(connection, BoundedHttpProtocol):
                connection.enforce(loop.time())
        self._sweeping = loop.call_later(SWEEP_INTERVAL_S, self._sweep) if self._state.connections else None

    async def stop(self) -> None:
        """Take no more requests, let those that are being answered end for a moment, and close."""
        if self._server is None:
            self._listener.close()
            return
        self._server.close()
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

"""A client's connection to one other process: over its Unix socket if both share a directory of them, else over TCP."""

from __future__ import annotations

import asyncio
import logging
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from actors.errors import ActorError, AuthenticationError, RecipientUnreachable
from actors.rpc.connection import ClientConnection
from actors.rpc.security import check_peer_is_us

if TYPE_CHECKING:
    from actors.rpc.service import RpcService

logger = logging.getLogger(__name__)

RETRY_S = 0.002
REPORT_S = 60.0


class Peer:
    """The one connection of this process to another; what is called while it is being opened is sent, in order, after.

    Args:
        service: the RPC service it belongs to.
        host: host of the other process.
        port: its TCP port; where it runs on this machine, its Unix socket is taken instead (`RpcConfig.local_socket`).
        system: the name of its actor system.
    """

    def __init__(self, service: RpcService, host: str, port: int, system: str) -> None:
        self._service = service
        self._system = system
        self._key = (host, port)
        self._connection = ClientConnection(service, self._closed)
        self._limit = service.config.outbox_size
        self._dropped = 0
        self._reported_at = float("-inf")
        self.ask = self._connection.ask
        self._task = service.loop.create_task(self._open(host, port))

    async def _open(self, host: str, port: int) -> None:
        try:
            async with asyncio.timeout(self._service.config.connect_timeout_s):
                local = self._service.config.local_socket(host, port, self._system)
                sock = await (self._connect_tcp(host, port) if local is None else self._connect_unix(local))
            self._connection.attach(sock, self._service.tls_stream(sock, server_side=False))
        except (OSError, TimeoutError) as error:
            reason = "no answer" if isinstance(error, TimeoutError) else (error.strerror or str(error))
            self._connection.fail(RecipientUnreachable(f"nothing can be reached at {host}:{port} ({reason})"))
        except AuthenticationError as error:
            self._connection.fail(error)

    async def _connect_unix(self, path: Path) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.setblocking(False)
            while True:
                try:
                    sock.connect(str(path))
                    check_peer_is_us(sock)
                    return sock
                except BlockingIOError:  # its backlog is full; asyncio's sock_connect would take that for success
                    await asyncio.sleep(RETRY_S)
        except BaseException:
            sock.close()
            raise

    async def _connect_tcp(self, host: str, port: int) -> socket.socket:
        loop = self._service.loop
        try:  # a number needs no thread to look it up
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        except socket.gaierror:
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        refusal: OSError | None = None
        for family, kind, protocol, _, address in found:
            sock = socket.socket(family, kind, protocol)
            try:
                sock.setblocking(False)
                await loop.sock_connect(sock, address)
                return sock
            except OSError as error:
                sock.close()
                refusal = refusal or error
            except BaseException:
                sock.close()
                raise
        raise refusal or OSError(f"{host} has no address")

    @property
    def unsent(self) -> int:
        """How many bytes wait for the other process."""
        return self._connection.unsent

    def check_room(self) -> None:
        """Raise `RecipientUnreachable` when as many bytes wait for the other process as may."""
        if self._connection.unsent > self._limit:
            host, port = self._key
            raise RecipientUnreachable(
                f"{host}:{port} takes nothing: {self._connection.unsent} bytes wait for it already; "
                "it hangs, or is sent more than it can do"
            )

    def tell(self, frame: bytes) -> None:
        """Send a TELL, or drop it when too much waits already: that is counted and logged, at most once a minute."""
        if self._connection.unsent <= self._limit:
            self._connection.send(frame)
            return
        self._dropped += 1
        now = self._service.loop.time()
        if now - self._reported_at >= REPORT_S:
            self._reported_at = now
            host, port = self._key
            logger.warning(
                "%s:%d takes nothing: %d messages to it were dropped so far, for %d bytes wait for it already",
                host,
                port,
                self._dropped,
                self._connection.unsent,
            )

    @property
    def dropped(self) -> int:
        """How many tells were dropped."""
        return self._dropped

    def _closed(self, _reason: ActorError) -> None:
        self._service.forget_peer(self._key, self)

    def close(self) -> None:
        """Close the connection, or give up making it."""
        self._task.cancel()
        self._connection.close()

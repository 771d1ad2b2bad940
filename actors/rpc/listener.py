"""The ports of an RPC service: TCP on the bind host and, with a socket directory, a Unix socket (mode 0600)."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from actors.errors import ActorSystemError, AuthenticationError
from actors.rpc.connection import ServerConnection
from actors.rpc.security import check_peer_is_us

if TYPE_CHECKING:
    from actors.rpc.service import RpcService

logger = logging.getLogger(__name__)

BACKLOG = 512
ACCEPTS_AT_ONCE = 64
RETRY_S = 1.0
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Listener:
    """One listening socket; what it accepts becomes a `ServerConnection`.

    Args:
        service: whose connections they are.
        sock: bound.
    """

    def __init__(self, service: RpcService, sock: socket.socket) -> None:
        self._service = service
        self._sock = sock
        self._retry: asyncio.TimerHandle | None = None
        sock.listen(BACKLOG)
        sock.setblocking(False)
        self._watch()

    def _watch(self) -> None:
        self._retry = None
        self._service.poller.add_reader(self._sock.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            try:
                sock, address = self._sock.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                logger.error("no connection can be accepted for %g s: %s", RETRY_S, error.strerror)
                self._service.poller.remove_reader(self._sock.fileno())
                self._retry = self._service.loop.call_later(RETRY_S, self._watch)
                return
            sock.setblocking(False)
            self._serve(sock, f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "a local peer")

    def _serve(self, sock: socket.socket, peer: str) -> None:
        service = self._service
        if sock.family == socket.AF_UNIX:
            try:
                check_peer_is_us(sock)
            except AuthenticationError as error:
                logger.warning("refused %s: %s", peer, error)
                sock.close()
                return
        ServerConnection(service, peer).attach(sock, service.tls_stream(sock, server_side=True))
        if len(service.unauthenticated) > service.config.unauthenticated:
            next(iter(service.unauthenticated)).make_way()

    def close(self) -> None:
        """Listen no more."""
        if self._retry is not None:
            self._retry.cancel()
        else:
            self._service.poller.remove_reader(self._sock.fileno())
        self._sock.close()


def listen_tcp(service: RpcService) -> tuple[Listener, int]:
    """Listen on the configured host and port; returns the listener and its port, or raises `ActorSystemError`."""
    host, port = service.config.bind_host, service.config.port
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        return Listener(service, sock), sock.getsockname()[1]
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            reason = f"port {port} of {host} is taken; stop what holds it, or set jobmanager.rpc.port to another"
        else:
            reason = f"cannot listen on {host}:{port}: {error.strerror}"
        raise ActorSystemError(reason) from error


def listen_unix(service: RpcService, path: Path) -> Listener:
    """Listen on a Unix socket at *path* that nobody else may use; raises `ActorSystemError`."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    previous = os.umask(0o177)
    try:
        path.unlink(missing_ok=True)
        sock.bind(str(path))
        return Listener(service, sock)
    except OSError as error:
        sock.close()
        raise ActorSystemError(
            f"cannot listen on the Unix socket {path}: {error.strerror or error}; "
            "its directory has to exist, and its path to be at most 107 bytes long"
        ) from error
    finally:
        os.umask(previous)

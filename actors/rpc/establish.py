"""Making a client's connection with blocking sockets: Unix socket or TCP, TLS if any, then the handshake."""

from __future__ import annotations

import socket
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING

from actors.errors import ActorError, RecipientUnreachable
from actors.rpc import connection as loop_connection
from actors.rpc.security import PROOF_SIZE, ClientHandshake
from actors.rpc.tls import TlsStream
from actors.rpc.transport import no_delay

if TYPE_CHECKING:
    from actors.rpc.threads import ThreadCaller

RETRY_S = 0.002
TICK_S = 1.0
"""How long a receive of the connected socket waits at most."""

_RECEIVE_TIMEOUT = struct.pack("@ll", int(TICK_S), 0)


def establish(
    caller: ThreadCaller, host: str, port: int, until: float
) -> tuple[socket.socket, TlsStream | None] | None:
    """An authenticated connection, blocking, with TLS if the caller has certificates; None when *until* came first.

    Raises:
        RecipientUnreachable: nothing listens there, or it does not answer.
        AuthenticationError, WireError: the handshake failed.
    """
    config = caller.config
    sock: socket.socket | None = None
    by = time.monotonic() + config.connect_timeout_s
    try:
        sock = connect(config.local_socket(host, port), host, port, min(by, until))
        by = time.monotonic() + handshake_timeout_s()
        tls = None if sock.family == socket.AF_UNIX else caller.tls_stream()
        authenticate(sock, caller.secret, tls, min(by, until))
        sock.settimeout(None)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _RECEIVE_TIMEOUT)
    except BaseException as error:
        if sock is not None:
            sock.close()
        if isinstance(error, ActorError) or not isinstance(error, OSError):
            raise
        late = isinstance(error, TimeoutError)
        if late and until < by:
            return None
        if late and sock is not None:
            raise RecipientUnreachable(f"no handshake within {handshake_timeout_s():g} s") from error
        reason = "no answer" if late else (error.strerror or str(error))
        raise RecipientUnreachable(f"nothing can be reached at {host}:{port} ({reason})") from error
    return sock, tls


def connect(local: Path | None, host: str, port: int, until: float) -> socket.socket:
    """A connected socket, by way of *local* where somebody listens there; raises OSError, TimeoutError at *until*."""
    if local is not None:
        sock = socket.socket(socket.AF_UNIX)
        try:
            while True:
                sock.settimeout(_left(until))
                try:
                    sock.connect(str(local))
                    return sock
                except BlockingIOError:
                    time.sleep(RETRY_S)  # its backlog is full
        except (FileNotFoundError, ConnectionRefusedError):
            sock.close()
        except BaseException:
            sock.close()
            raise
    sock = socket.create_connection((host, port), timeout=_left(until))
    no_delay(sock)
    return sock


def authenticate(sock: socket.socket, secret: bytes, tls: TlsStream | None, until: float) -> None:
    """Agree TLS if any, then prove each other the secret; raises TimeoutError at *until*.

    Raises:
        AuthenticationError, WireError: as `ClientHandshake.receive` and `TlsStream.receive`.
        RecipientUnreachable: the server closed the connection meanwhile.
    """
    handshake = ClientHandshake(secret, "rpc")
    received = bytearray()
    outgoing = handshake.hello()
    while True:
        sock.settimeout(_left(until))
        if tls is not None:
            tls.send(outgoing)
            outgoing = tls.outgoing()
        try:
            sock.sendall(outgoing)
            outgoing = b""
            if handshake.done:
                return
            data = sock.recv(PROOF_SIZE - len(received) if tls is None else 65536)
        except ConnectionError:
            data = b""
        if not data:
            raise RecipientUnreachable(
                "the connection broke during the handshake: the process ended, or only one side has TLS"
            )
        received += data if tls is None else tls.receive(data)
        if len(received) >= PROOF_SIZE:
            outgoing = handshake.receive(bytes(received[:PROOF_SIZE]))


def handshake_timeout_s() -> float:
    """Seconds that a handshake may take, on this side as on the other."""
    return loop_connection.HANDSHAKE_TIMEOUT_S


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left

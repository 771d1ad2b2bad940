"""Making a client's connection with blocking sockets: Unix socket or TCP, TLS if any, then the handshake."""

from __future__ import annotations

import socket
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from actors.errors import ActorError, RecipientUnreachable
from actors.rpc import connection as loop_connection
from actors.rpc.records import Tags
from actors.rpc.security import PROOF_SIZE, ClientHandshake, check_peer_is_us, far_end
from actors.rpc.tls import TlsStream
from actors.rpc.transport import no_delay

if TYPE_CHECKING:
    from actors.rpc.threads import ThreadCaller

RETRY_S = 0.002
TICK_S = 1.0
"""How long a receive of the connected socket waits at most."""

_RECEIVE_TIMEOUT = struct.pack("@ll", int(TICK_S), 0)


@dataclass(frozen=True, slots=True)
class Established:
    """An authenticated connection.

    Args:
        sock: blocking.
        tls: encrypts what is sent and decrypts what is received; None for plain.
        tags: of what is sent, and of what is received; None where records are not needed.
    """

    sock: socket.socket
    tls: TlsStream | None
    tags: tuple[Tags, Tags] | None


def establish(caller: ThreadCaller, host: str, port: int, until: float) -> Established | None:
    """An authenticated connection, with TLS if the caller has certificates; None when *until* came first.

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
        handshake = authenticate(sock, caller.secret, tls, min(by, until))
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
    return Established(sock, tls, handshake.tags() if tls is None and sock.family != socket.AF_UNIX else None)


def connect(local: Path | None, host: str, port: int, until: float) -> socket.socket:
    """A connected socket: to *local*, or by TCP when that is None.

    Raises:
        OSError: it cannot be connected; TimeoutError at *until*.
        AuthenticationError: another user listens at *local*.
    """
    if local is not None:
        sock = socket.socket(socket.AF_UNIX)
        try:
            while True:
                sock.settimeout(_left(until))
                try:
                    sock.connect(str(local))
                    check_peer_is_us(sock)
                    return sock
                except BlockingIOError:
                    time.sleep(RETRY_S)  # its backlog is full
        except BaseException:
            sock.close()
            raise
    sock = socket.create_connection((host, port), timeout=_left(until))
    no_delay(sock)
    return sock


def authenticate(sock: socket.socket, secret: bytes, tls: TlsStream | None, until: float) -> ClientHandshake:
    """Agree TLS if any, then prove each other the secret; raises TimeoutError at *until*.

    Raises:
        AuthenticationError, WireError: as `ClientHandshake.receive` and `TlsStream.receive`.
        RecipientUnreachable: the server closed the connection meanwhile.
    """
    handshake = ClientHandshake(secret, "rpc", far_end(sock))
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
                return handshake
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

"""Mutual authentication of a connection by a challenge over the cluster secret, as a sans-I/O state machine.

Both sides prove that they hold the secret without showing it; fresh random nonces from both make a recorded
handshake worthless. The *service* name is part of every proof, so that a proof for one port is none for another. So is
the *target*, the address and port that the client has dialled: a handshake that is passed on to another port is none.

    client -> server   HELLO   magic(4) version(1) client_nonce(32) target(18)
    server -> client   PROOF   magic(4) version(1) server_nonce(32) mac(32)
    client -> server   ANSWER  mac(32)

A server that is greeted in another version, or as another target than it is, refuses:

    server -> client   REFUSAL magic(4) version(1) zeroes(64), which is as long as a PROOF; then it closes

Every version's HELLO begins with magic and version and has at least 37 bytes, as in version 1; every PROOF and REFUSAL
has at least 69. Used by the RPC ports and by the blob port (`blob.server`). Until `done` is true a server must act on
nothing but the handshake. What follows it carries tags (`actors.rpc.wire`); the handshake makes their keys.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import socket
import stat
import struct
from pathlib import Path

from actors.errors import AuthenticationError, ProtocolVersionMismatch, WireError
from actors.rpc.wire import Tags
from conf.files import write_private

MAGIC = b"UNDR"
VERSION = 2
NONCE_SIZE = 32
MAC_SIZE = 32
TARGET_SIZE = 18
GREETING_SIZE = len(MAGIC) + 1 + NONCE_SIZE
"""Bytes that the HELLO of every version has at least: so many are read before its version is looked at."""
HELLO_SIZE = GREETING_SIZE + TARGET_SIZE
PROOF_SIZE = GREETING_SIZE + MAC_SIZE
LOCAL = bytes(TARGET_SIZE)
"""The target of a Unix socket, which the kernel and its directory's mode keep to this user."""
_CREDENTIALS = struct.Struct("@iII")
MINIMUM_SECRET_SIZE = 16
MAXIMUM_SECRET_SIZE = 64 * 1024
REFUSAL = (MAGIC + bytes([VERSION])).ljust(PROOF_SIZE, b"\0")


def load_or_create_secret(path: Path) -> bytes:
    """Return the cluster secret kept in *path*, generating it (32 random bytes as hex, mode 0600) when there is none.

    Any number of processes may do so at once: all get the same secret, for the file appears whole or not at all.

    Raises:
        AuthenticationError: the file cannot be made or read, belongs to another user, is readable by others, or holds
            fewer than 16 characters.
    """
    if not path.exists():
        _create_secret(path)
    return load_secret(path)


def load_secret(path: Path) -> bytes:
    """Return the cluster secret kept in *path*; raises as `load_or_create_secret`, also when there is no such file."""
    try:
        # Non-blocking: a named pipe in its place must not hold the process up.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise AuthenticationError(
            f"the secret file {path} cannot be read: {error.strerror}; set security.secret-file to one that can"
        ) from error
    try:
        _check_secret_file(path, os.fstat(descriptor))  # of what was opened, whatever has the name by now
        secret = os.read(descriptor, MAXIMUM_SECRET_SIZE + 1).strip()
    finally:
        os.close(descriptor)
    if len(secret) > MAXIMUM_SECRET_SIZE:
        raise AuthenticationError(
            f"the secret in {path} is longer than {MAXIMUM_SECRET_SIZE} bytes; is it the right file?"
        )
    if len(secret) < MINIMUM_SECRET_SIZE:
        raise AuthenticationError(
            f"the secret in {path} is shorter than {MINIMUM_SECRET_SIZE} characters; delete it to get a new one"
        )
    return secret


def _check_secret_file(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise AuthenticationError(f"the secret file {path} is no plain file; set security.secret-file to one")
    if status.st_uid != os.geteuid():
        raise AuthenticationError(
            f"the secret file {path} belongs to user {status.st_uid}, who knows the secret then, and this process runs "
            f"as user {os.geteuid()}: chown it, or set security.secret-file to a file of your own"
        )
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        raise AuthenticationError(
            f"the secret file {path} has mode {mode:04o}: others may read it; chmod 600 it, or delete it for a new one"
        )


def _create_secret(path: Path) -> None:
    """Make the file; the first process that does wins, and nobody ever reads half of it."""
    try:
        with contextlib.suppress(FileExistsError):  # another process was faster: its secret is the cluster's
            write_private(path, secrets.token_hex(32).encode() + b"\n", replace=False)
    except OSError as error:
        raise AuthenticationError(
            f"the secret file {path} cannot be made: {error.strerror}; make it yourself (16 characters or more, mode "
            "0600), or set security.secret-file to where it can be made"
        ) from error


def far_end(sock: socket.socket) -> bytes:
    """The target that *sock* is connected to, as its client sees it; LOCAL for a Unix socket. Raises OSError."""
    return LOCAL if sock.family == socket.AF_UNIX else _target(*sock.getpeername()[:2])


def near_end(sock: socket.socket) -> bytes:
    """The target that *sock* has been accepted at, as its server sees it; LOCAL for a Unix socket. Raises OSError."""
    return LOCAL if sock.family == socket.AF_UNIX else _target(*sock.getsockname()[:2])


def _target(host: str, port: int) -> bytes:
    host = host.partition("%")[0]  # the zone of a link-local address is another on each machine
    packed = socket.inet_pton(socket.AF_INET6, host if ":" in host else f"::ffff:{host}")
    return packed + port.to_bytes(2)


def _show(target: bytes) -> str:
    if target == LOCAL:
        return "a Unix socket"
    host = socket.inet_ntop(socket.AF_INET6, target[:16]).removeprefix("::ffff:")
    return f"{host}:{int.from_bytes(target[16:])}"


def check_peer_is_us(sock: socket.socket) -> None:
    """Refuse the other end of a Unix socket when it is another user's process.

    Raises:
        AuthenticationError: it is, by the credentials that the kernel noted when it connected or began to listen.
    """
    size = _CREDENTIALS.size
    _, user, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    if user != os.geteuid():
        raise AuthenticationError(
            f"the other end of the Unix socket is a process of user {user}, and this one's user is {os.geteuid()}"
        )


class _Handshake:
    """Base of both sides. `expects` is the number of bytes that the next step takes; 0 when the handshake is over."""

    def __init__(self, secret: bytes, service: str, target: bytes, expects: int) -> None:
        self._key = hashlib.blake2b(secret, digest_size=32, person=b"understudy-auth").digest()
        self._service = service.encode()
        self._target = target
        self._client_nonce = b""
        self._server_nonce = b""
        self.expects = expects
        self.done = False

    def tags(self) -> tuple[Tags, Tags]:
        """The tags of what the client sends, and of what the server sends; once `done`."""
        return Tags(self._mac(b"to server")), Tags(self._mac(b"to client"))

    def _mac(self, role: bytes) -> bytes:
        bound = (self._client_nonce, self._server_nonce, self._target)
        message = b"|".join((role, self._service, *(part.hex().encode() for part in bound)))
        return hmac.digest(self._key, message, "sha256")

    def _begin_step(self, data: bytes) -> None:
        """A handshake has one try: whatever goes wrong in a step ends it."""
        expected, self.expects = self.expects, 0
        if not expected:
            raise WireError("the handshake is over")
        if len(data) != expected:
            raise WireError(f"a handshake message of {len(data)} bytes, where {expected} are due")

    @staticmethod
    def _check_preamble(data: bytes) -> None:
        if data[:4] != MAGIC:
            raise WireError("the peer does not speak the Understudy protocol")
        if data[4] != VERSION:
            raise ProtocolVersionMismatch(
                f"the peer speaks protocol version {data[4]}, this side speaks {VERSION}: install the same release of "
                "understudy-spark on both"
            )


class ServerHandshake(_Handshake):
    """The accepting side: feed it exactly `expects` bytes at a time until `done`.

    Args:
        secret: the cluster secret.
        service: name of the service the port offers, e.g. ``"rpc"`` or ``"blob"``.
        target: the `near_end` of the connection.

    Attributes:
        refusal: what to send before closing when `receive` has raised. A peer of another version, or that has dialled
            another target, is told so; whoever does not hold the secret, or speaks another protocol, is told nothing.
    """

    def __init__(self, secret: bytes, service: str, target: bytes) -> None:
        super().__init__(secret, service, target, GREETING_SIZE)
        self.refusal = b""
        self._server_nonce = os.urandom(NONCE_SIZE)
        self._taken = 0

    def receive(self, data: bytes) -> bytes:
        """Take the peer's next *expects* bytes and return what to send back (possibly nothing).

        Raises:
            WireError: not our protocol.
            ProtocolVersionMismatch: another version; `refusal` tells the peer.
            AuthenticationError: the peer's proof is wrong, or it has dialled another target.
        """
        self._begin_step(data)
        self._taken += 1
        return (self._greeted, self._dialled, self._answered)[self._taken - 1](data)

    def _greeted(self, data: bytes) -> bytes:
        try:
            self._check_preamble(data)
        except ProtocolVersionMismatch:
            self.refusal = REFUSAL
            raise
        self._client_nonce = data[5:]
        self.expects = TARGET_SIZE
        return b""

    def _dialled(self, data: bytes) -> bytes:
        if data != self._target:
            self.refusal = REFUSAL
            raise AuthenticationError(
                f"the peer has dialled {_show(data)}, and this is {_show(self._target)}: its connection was passed on "
                "by somebody, or its address translated"
            )
        self.expects = MAC_SIZE
        return MAGIC + bytes([VERSION]) + self._server_nonce + self._mac(b"server")

    def _answered(self, data: bytes) -> bytes:
        if not hmac.compare_digest(data, self._mac(b"client")):
            raise AuthenticationError("the peer does not hold this cluster's secret")
        self.done = True
        return b""


class ClientHandshake(_Handshake):
    """The connecting side: send `hello()`, feed the server's PROOF_SIZE bytes to `receive()`, send what it returns.

    Args:
        secret: the cluster secret.
        service: name of the service that is wanted.
        target: the `far_end` of the connection.
    """

    def __init__(self, secret: bytes, service: str, target: bytes) -> None:
        super().__init__(secret, service, target, PROOF_SIZE)
        self._client_nonce = os.urandom(NONCE_SIZE)

    def hello(self) -> bytes:
        """The first bytes of the connection."""
        return MAGIC + bytes([VERSION]) + self._client_nonce + self._target

    def receive(self, data: bytes) -> bytes:
        """Check the server's proof and return the answer to send; raises as `ServerHandshake.receive`."""
        self._begin_step(data)
        self._check_preamble(data)
        if data == REFUSAL:
            raise AuthenticationError(
                f"the server is not at {_show(self._target)}, which was dialled, and refuses a connection that was "
                "passed on or translated (by a tunnel, a proxy or NAT): dial its own address"
            )
        self._server_nonce = data[5:GREETING_SIZE]
        if not hmac.compare_digest(data[GREETING_SIZE:], self._mac(b"server")):
            raise AuthenticationError("the server does not hold this cluster's secret")
        self.done = True
        return self._mac(b"client")

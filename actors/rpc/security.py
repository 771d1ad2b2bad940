"""Mutual authentication of a connection by a challenge over the cluster secret, as a sans-I/O state machine.

Both sides prove that they hold the secret without showing it. Fresh random nonces from both sides make a recorded
handshake useless. Every proof covers the name of the *service*, so a proof for one service is invalid for another. It
also covers the *target*, the address and port that the client has dialled, so a relay to another port is rejected.

    client -> server   HELLO   magic(4) version(1) client_nonce(32) target(18)
    server -> client   PROOF   magic(4) version(1) server_nonce(32) mac(32)
    client -> server   ANSWER  mac(32)

A server rejects a HELLO of another version or for another target:

    server -> client   REFUSAL magic(4) version(1) zeroes(64), which is as long as a PROOF; then it closes

The HELLO of every version begins with magic and version and has at least 37 bytes, as in version 1. Every PROOF and
REFUSAL has at least 69. The RPC ports and the blob port (`blob.server`) use this handshake. Until `done` is true a
server must act only on the handshake. Later bytes carry tags (`actors.rpc.wire`) whose keys the handshake derives.
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
"""Least size of the HELLO of every version, in bytes; the server reads this much before it checks the version."""
HELLO_SIZE = GREETING_SIZE + TARGET_SIZE
PROOF_SIZE = GREETING_SIZE + MAC_SIZE
LOCAL = bytes(TARGET_SIZE)
"""The target of a Unix socket, which is accessible only to this user by its directory's mode and a check of the peer.
"""
_CREDENTIALS = struct.Struct("@iII")
MINIMUM_SECRET_SIZE = 16
MAXIMUM_SECRET_SIZE = 64 * 1024
REFUSAL = (MAGIC + bytes([VERSION])).ljust(PROOF_SIZE, b"\0")


def load_or_create_secret(path: Path) -> bytes:
    """Return the cluster secret in *path*; generate it (32 random bytes as hex, mode 0600) when there is no file.

    Any number of processes may call this at once. All get the same secret, because the file appears atomically.

    Raises:
        AuthenticationError: the file cannot be created or read, belongs to another user, or is readable by others; or
            the secret has fewer than 16 characters or more than 64 KiB.
    """
    if not path.exists():
        _create_secret(path)
    return load_secret(path)


def load_secret(path: Path) -> bytes:
    """Return the cluster secret in *path*; raises as `load_or_create_secret`, also when the file does not exist."""
    try:
        # Non-blocking: a named pipe at this path must not block the process.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise AuthenticationError(
            f"the secret file {path} cannot be read: {error.strerror}; set security.secret-file to one that can"
        ) from error
    try:
        _check_secret_file(path, os.fstat(descriptor))  # checks the opened file, not its path
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
            f"the secret file {path} belongs to user {status.st_uid}, and this process runs as user {os.geteuid()}; "
            "chown it, or set security.secret-file to a file of your own"
        )
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        raise AuthenticationError(
            f"the secret file {path} has mode {mode:04o}: others may read it; chmod 600 it, or delete it for a new one"
        )


def _create_secret(path: Path) -> None:
    """Create the file atomically; of several processes the first one wins."""
    try:
        with contextlib.suppress(FileExistsError):  # another process was faster: use its secret
            write_private(path, secrets.token_hex(32).encode() + b"\n", replace=False)
    except OSError as error:
        raise AuthenticationError(
            f"the secret file {path} cannot be made: {error.strerror}; make it yourself (16 characters or more, mode "
            "0600), or set security.secret-file to where it can be made"
        ) from error


def far_end(sock: socket.socket) -> bytes:
    """Return the target to which the client *sock* is connected; LOCAL for a Unix socket. Raises OSError."""
    return LOCAL if sock.family == socket.AF_UNIX else _target(*sock.getpeername()[:2])


def near_end(sock: socket.socket) -> bytes:
    """Return the target at which the server has accepted *sock*; LOCAL for a Unix socket. Raises OSError."""
    return LOCAL if sock.family == socket.AF_UNIX else _target(*sock.getsockname()[:2])


def _target(host: str, port: int) -> bytes:
    host = host.partition("%")[0]  # the zone of a link-local address differs between machines
    packed = socket.inet_pton(socket.AF_INET6, host if ":" in host else f"::ffff:{host}")
    return packed + port.to_bytes(2)


def _show(target: bytes) -> str:
    if target == LOCAL:
        return "a Unix socket"
    host = socket.inet_ntop(socket.AF_INET6, target[:16]).removeprefix("::ffff:")
    return f"{host}:{int.from_bytes(target[16:])}"


def check_peer_is_us(sock: socket.socket) -> None:
    """Reject the other end of a Unix socket when it is another user's process.

    Raises:
        AuthenticationError: the other end is another user's process, by the credentials that the kernel recorded when
            it connected or started to listen.
    """
    size = _CREDENTIALS.size
    _, user, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    if user != os.geteuid():
        raise AuthenticationError(
            f"the other end of the Unix socket is a process of user {user}, and this one's user is {os.geteuid()}"
        )


class _Handshake:
    """Base of both sides. `expects` is the number of bytes of the next step; 0 when the handshake has ended."""

    def __init__(self, secret: bytes, service: str, target: bytes, expects: int) -> None:
        self._key = hashlib.blake2b(secret, digest_size=32, person=b"understudy-auth").digest()
        self._service = service.encode()
        self._target = target
        self._client_nonce = b""
        self._server_nonce = b""
        self.expects = expects
        self.done = False

    def tags(self) -> tuple[Tags, Tags]:
        """Return the tags of the client's and of the server's data; call it once `done`."""
        return Tags(self._mac(b"to server")), Tags(self._mac(b"to client"))

    def _mac(self, role: bytes) -> bytes:
        bound = (self._client_nonce, self._server_nonce, self._target)
        message = b"|".join((role, self._service, *(part.hex().encode() for part in bound)))
        return hmac.digest(self._key, message, "sha256")

    def _begin_step(self, data: bytes) -> None:
        """Check the size of a step's data. Any error in a step ends the handshake."""
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
        service: name of the service at the port, e.g. ``"rpc"`` or ``"blob"``.
        target: the `near_end` of the connection.

    Attributes:
        refusal: bytes to send before closing after `receive` has raised. They inform a peer of another version, or one
            that has dialled another target. They are empty for a peer without the secret, or of another protocol.
    """

    def __init__(self, secret: bytes, service: str, target: bytes) -> None:
        super().__init__(secret, service, target, GREETING_SIZE)
        self.refusal = b""
        self._server_nonce = os.urandom(NONCE_SIZE)
        self._taken = 0

    def receive(self, data: bytes) -> bytes:
        """Take the peer's next *expects* bytes and return the bytes to send back, which may be empty.

        Raises:
            WireError: the peer speaks another protocol.
            ProtocolVersionMismatch: the peer speaks another version; `refusal` informs it.
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
                f"the peer has dialled {_show(data)}, and this is {_show(self._target)}: its connection was passed on, "
                "or its address translated"
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
        service: name of the requested service.
        target: the `far_end` of the connection.
    """

    def __init__(self, secret: bytes, service: str, target: bytes) -> None:
        super().__init__(secret, service, target, PROOF_SIZE)
        self._client_nonce = os.urandom(NONCE_SIZE)

    def hello(self) -> bytes:
        """Return the first bytes of the connection."""
        return MAGIC + bytes([VERSION]) + self._client_nonce + self._target

    def receive(self, data: bytes) -> bytes:
        """Check the server's proof and return the answer to send; raises as `ServerHandshake.receive`."""
        self._begin_step(data)
        self._check_preamble(data)
        if data == REFUSAL:
            raise AuthenticationError(
                f"the server is not at {_show(self._target)}, which was dialled; it refuses a connection that was "
                "passed on or translated (by a tunnel, a proxy or NAT): dial its own address"
            )
        self._server_nonce = data[5:GREETING_SIZE]
        if not hmac.compare_digest(data[GREETING_SIZE:], self._mac(b"server")):
            raise AuthenticationError("the server does not hold this cluster's secret")
        self.done = True
        return self._mac(b"client")

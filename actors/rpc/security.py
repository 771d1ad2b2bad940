"""Mutual authentication of a connection by a challenge over the cluster secret, as a sans-I/O state machine.

Both sides prove that they hold the secret without showing it. Fresh random nonces from both sides make a recorded
handshake useless. Every proof covers the name of the *service*, so a proof for one service is invalid for another. It
also covers the *target*, the address and port that the client has dialled, so a relay to another port is rejected.

    client -> server   HELLO   magic(4) newest(1) client_nonce(32) target(18) oldest(1)
    server -> client   PROOF   magic(4) agreed(1) server_nonce(32) mac(32)
    client -> server   ANSWER  mac(32)

Each side speaks a range of protocol versions. The server chooses the newest that both speak, so two releases next to
each other work together. The proofs cover the client's range and the choice: nobody between them can lower it. A
server rejects a HELLO without a common version, or for another target:

    server -> client   REFUSAL magic(4) newest(1) oldest(1) zeroes(63), which is as long as a PROOF; then it closes

The HELLO of every version begins with magic and version and has at least 37 bytes, as in version 1. From version 3 on
it begins with the 56 bytes above. Every PROOF and REFUSAL has at least 69. The RPC ports and the blob port
(`blob.server`) use this handshake. Until `done` is true a server must act only on the handshake. Later bytes carry tags
(`actors.rpc.wire`) whose keys the handshake derives.
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
from dataclasses import dataclass
from pathlib import Path

from actors.errors import AuthenticationError, ProtocolVersionMismatch, WireError
from actors.rpc.wire import Tags
from conf.files import write_private


@dataclass(frozen=True, slots=True)
class Versions:
    """The protocol versions that one side speaks, from `oldest` to `newest`, which are 1 to 255."""

    oldest: int
    newest: int

    def agreed(self, other: Versions) -> int | None:
        """Return the newest version that both sides speak; None if there is none."""
        newest = min(self.newest, other.newest)
        return newest if newest >= max(self.oldest, other.oldest) else None

    def __str__(self) -> str:
        return f"{self.newest}" if self.oldest == self.newest else f"{self.oldest} to {self.newest}"


SPOKEN = Versions(3, 3)
"""The versions of this release. Raise `newest` with each change of frames or calls that the release before cannot
read, and `oldest` once no supported release speaks it."""
MAGIC = b"UNDR"
NONCE_SIZE = 32
MAC_SIZE = 32
TARGET_SIZE = 18
GREETING_SIZE = len(MAGIC) + 1 + NONCE_SIZE
"""Least size of the HELLO of every version, in bytes; the server reads this much before it checks the version."""
HELLO_SIZE = GREETING_SIZE + TARGET_SIZE + 1
PROOF_SIZE = GREETING_SIZE + MAC_SIZE
LOCAL = bytes(TARGET_SIZE)
"""The target of a Unix socket, which is accessible only to this user by its directory's mode and a check of the peer.
"""
_CREDENTIALS = struct.Struct("@iII")
SECRET_FILE = "security.secret-file"  # noqa: S105
"""The option that names the file of the cluster's secret."""
MINIMUM_SECRET_SIZE = 16
MAXIMUM_SECRET_SIZE = 64 * 1024


def load_or_create_secret(path: Path, key: str = SECRET_FILE) -> bytes:
    """Return the secret in *path*; generate it (32 random bytes as hex, mode 0600) when there is no file.

    Any number of processes may call this at once. All get the same secret, because the file appears atomically.

    Args:
        path: the file.
        key: the option that names it, for errors.

    Raises:
        AuthenticationError: the file cannot be created or read, belongs to another user, or is readable by others; or
            the secret has fewer than 16 characters or more than 64 KiB.
    """
    if not path.exists():
        _create_secret(path, key)
    return load_secret(path, key)


def load_secret(path: Path, key: str = SECRET_FILE) -> bytes:
    """Return the secret in *path*; raises as `load_or_create_secret`, also when the file does not exist."""
    try:
        # Non-blocking: a named pipe at this path must not block the process.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise AuthenticationError(
            f"the secret file {path} cannot be read: {error.strerror}; set {key} to one that can"
        ) from error
    try:
        _check_secret_file(path, key, os.fstat(descriptor))  # checks the opened file, not its path
        secret = os.read(descriptor, MAXIMUM_SECRET_SIZE + 1).strip()
    finally:
        os.close(descriptor)
    if len(secret) > MAXIMUM_SECRET_SIZE:
        raise AuthenticationError(
            f"the secret in {path} is longer than {MAXIMUM_SECRET_SIZE} bytes; is it the right file?"
        )
    if len(secret) < MINIMUM_SECRET_SIZE:
        raise AuthenticationError(
            f"the secret in {path} is shorter than {MINIMUM_SECRET_SIZE} characters; replace it, or delete it "
            "if it is the cluster's own, for a new one"
        )
    return secret


def _check_secret_file(path: Path, key: str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise AuthenticationError(f"the secret file {path} is not a plain file; set {key} to one")
    if status.st_uid != os.geteuid():
        raise AuthenticationError(
            f"the secret file {path} belongs to user {status.st_uid}, and this process runs as user {os.geteuid()}; "
            f"chown it, or set {key} to a file of your own"
        )
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        raise AuthenticationError(
            f"the secret file {path} has mode {mode:04o}: others may read it; chmod 600 it, and replace the secret if "
            "others may have read it"
        )


def _create_secret(path: Path, key: str) -> None:
    """Create the file atomically; of several processes the first one wins."""
    try:
        with contextlib.suppress(FileExistsError):  # another process was faster: use its secret
            write_private(path, secrets.token_hex(32).encode() + b"\n", replace=False)
    except OSError as error:
        raise AuthenticationError(
            f"the secret file {path} cannot be made: {error.strerror}; make it yourself (16 characters or more, mode "
            f"0600), or set {key} to where it can be made"
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


def _credentials(sock: socket.socket) -> tuple[int, int]:
    process, user, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return process, user


def peer_process(sock: socket.socket) -> int:
    """Return the pid of the other end of a Unix socket."""
    return _credentials(sock)[0]


def check_peer_is_us(sock: socket.socket) -> None:
    """Reject the other end of a Unix socket when it is another user's process.

    Raises:
        AuthenticationError: the other end is another user's process, by the credentials that the kernel recorded when
            it connected or started to listen.
    """
    _, user = _credentials(sock)
    if user != os.geteuid():
        raise AuthenticationError(
            f"the other end of the Unix socket is a process of user {user}, and this one's user is {os.geteuid()}"
        )


def refusal(spoken: Versions) -> bytes:
    """Return the REFUSAL of a server that speaks these versions."""
    return (MAGIC + bytes((spoken.newest, spoken.oldest))).ljust(PROOF_SIZE, b"\0")


class _Handshake:
    """Base of both sides.

    Attributes:
        expects: number of bytes of the next step; 0 when the handshake has ended.
        done: whether the other side has proved that it holds the secret.
        version: the protocol version that both sides use; 0 before they have agreed.
    """

    def __init__(self, secret: bytes, service: str, target: bytes, spoken: Versions, expects: int) -> None:
        self._key = hashlib.blake2b(secret, digest_size=32, person=b"understudy-auth").digest()
        self._service = service.encode()
        self._target = target
        self._client_nonce = b""
        self._server_nonce = b""
        self._spoken = spoken
        self._of_client = spoken
        self.version = 0
        self.expects = expects
        self.done = False

    def tags(self) -> tuple[Tags, Tags]:
        """Return the tags of the client's and of the server's data; call it once `done`."""
        return Tags(self._mac(b"to server")), Tags(self._mac(b"to client"))

    def _mac(self, role: bytes) -> bytes:
        versions = bytes((self._of_client.oldest, self._of_client.newest, self.version))
        bound = (self._client_nonce, self._server_nonce, self._target, versions)
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
    def _check_magic(data: bytes) -> None:
        if data[:4] != MAGIC:
            raise WireError("the peer does not speak the Understudy protocol")

    def _mismatch(self, peer: Versions) -> ProtocolVersionMismatch:
        return ProtocolVersionMismatch(
            f"the peer speaks protocol version {peer}, this side speaks {self._spoken}: install the same release of "
            "understudy-spark on both"
        )


class ServerHandshake(_Handshake):
    """The accepting side: feed it exactly `expects` bytes at a time until `done`.

    Args:
        secret: the cluster secret.
        service: name of the service at the port, e.g. ``"rpc"`` or ``"blob"``.
        target: the `near_end` of the connection.
        spoken: the protocol versions of this side.

    Attributes:
        refusal: bytes to send before closing after `receive` has raised. They inform a peer without a common version,
            or one that has dialled another target. They are empty for a peer without the secret, or of another
            protocol.
    """

    def __init__(self, secret: bytes, service: str, target: bytes, spoken: Versions = SPOKEN) -> None:
        super().__init__(secret, service, target, spoken, GREETING_SIZE)
        self.refusal = b""
        self._server_nonce = os.urandom(NONCE_SIZE)
        self._taken = 0

    def receive(self, data: bytes) -> bytes:
        """Take the peer's next *expects* bytes and return the bytes to send back, which may be empty.

        Raises:
            WireError: the peer speaks another protocol.
            ProtocolVersionMismatch: the peer speaks other versions; `refusal` informs it.
            AuthenticationError: the peer's proof is wrong, or it has dialled another target.
        """
        self._begin_step(data)
        self._taken += 1
        return (self._greeted, self._dialled, self._answered)[self._taken - 1](data)

    def _greeted(self, data: bytes) -> bytes:
        self._check_magic(data)
        newest = data[4]
        if newest < self._spoken.oldest:  # the rest of its HELLO may have another form
            raise self._refused(self._mismatch(Versions(newest, newest)))
        self._of_client = Versions(newest, newest)
        self._client_nonce = data[5:]
        self.expects = TARGET_SIZE + 1
        return b""

    def _dialled(self, data: bytes) -> bytes:
        target, oldest = data[:TARGET_SIZE], data[TARGET_SIZE]
        self._of_client = Versions(oldest, self._of_client.newest)
        agreed = self._spoken.agreed(self._of_client)
        if agreed is None:
            raise self._refused(self._mismatch(self._of_client))
        if target != self._target:
            raise self._refused(
                AuthenticationError(
                    f"the peer has dialled {_show(target)}, and this is {_show(self._target)}: its connection was "
                    "passed on, or its address translated"
                )
            )
        self.version = agreed
        self.expects = MAC_SIZE
        return MAGIC + bytes([agreed]) + self._server_nonce + self._mac(b"server")

    def _refused(self, error: Exception) -> Exception:
        """Return the error after setting `refusal`."""
        self.refusal = refusal(self._spoken)
        return error

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
        spoken: the protocol versions of this side.
    """

    def __init__(self, secret: bytes, service: str, target: bytes, spoken: Versions = SPOKEN) -> None:
        super().__init__(secret, service, target, spoken, PROOF_SIZE)
        self._client_nonce = os.urandom(NONCE_SIZE)

    def hello(self) -> bytes:
        """Return the first bytes of the connection."""
        return MAGIC + bytes([self._spoken.newest]) + self._client_nonce + self._target + bytes([self._spoken.oldest])

    def receive(self, data: bytes) -> bytes:
        """Check the server's proof and return the answer to send; raises as `ServerHandshake.receive`."""
        self._begin_step(data)
        self._check_magic(data)
        if not any(data[6:]):
            peer = Versions(data[5] or data[4], data[4])  # version 2 named one version alone
            if self._spoken.agreed(peer) is None:
                raise self._mismatch(peer)
            raise AuthenticationError(
                f"the server is not at {_show(self._target)}, which was dialled; it refuses a connection that was "
                "passed on or translated (by a tunnel, a proxy or NAT): dial its own address"
            )
        self.version = data[4]
        if not self._spoken.oldest <= self.version <= self._spoken.newest:
            raise self._mismatch(Versions(self.version, self.version))
        self._server_nonce = data[5:GREETING_SIZE]
        if not hmac.compare_digest(data[GREETING_SIZE:], self._mac(b"server")):
            raise AuthenticationError("the server does not hold this cluster's secret")
        self.done = True
        return self._mac(b"client")

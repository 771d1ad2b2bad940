"""Mutual authentication of a connection by a challenge over the cluster secret, as a sans-I/O state machine.

Both sides prove that they hold the secret without showing it; fresh random nonces from both make a recorded
handshake worthless. The *service* name is part of every proof, so that a proof for one port is none for another.

    client -> server   HELLO   magic(4) version(1) client_nonce(32)
    server -> client   PROOF   magic(4) version(1) server_nonce(32) mac(32)
    client -> server   ANSWER  mac(32)

Used by the RPC ports and by the blob port (`blob.server`). Until `done` is true a server must act on nothing but
the handshake.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import socket
from pathlib import Path

from actors.errors import AuthenticationError, ProtocolVersionMismatch, WireError

MAGIC = b"UNDR"
VERSION = 1
NONCE_SIZE = 32
MAC_SIZE = 32
HELLO_SIZE = len(MAGIC) + 1 + NONCE_SIZE
PROOF_SIZE = HELLO_SIZE + MAC_SIZE
MINIMUM_SECRET_SIZE = 16


def load_or_create_secret(path: Path) -> bytes:
    """Return the cluster secret kept in *path*, generating it (32 random bytes as hex, mode 0600) when there is none.

    Raises:
        AuthenticationError: the file is readable by others, or holds fewer than 16 characters.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        pass
    else:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32) + "\n")
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        raise AuthenticationError(
            f"the secret file {path} has mode {mode:04o}: others may read it; chmod 600 it, or delete it for a new one"
        )
    secret = path.read_bytes().strip()
    if len(secret) < MINIMUM_SECRET_SIZE:
        raise AuthenticationError(
            f"the secret in {path} is shorter than {MINIMUM_SECRET_SIZE} characters; delete it to get a new one"
        )
    return secret


class _Handshake:
    def __init__(self, secret: bytes, service: str) -> None:
        self._key = hashlib.blake2b(secret, digest_size=32, person=b"understudy-auth").digest()
        self._service = service.encode()
        self.done = False

    def _mac(self, role: bytes, client_nonce: bytes, server_nonce: bytes) -> bytes:
        message = b"|".join((role, self._service, client_nonce.hex().encode(), server_nonce.hex().encode()))
        return hmac.digest(self._key, message, "sha256")

    @staticmethod
    def _check_preamble(data: bytes) -> None:
        if data[:4] != MAGIC:
            raise WireError("the peer does not speak the Understudy protocol")
        if data[4] != VERSION:
            raise ProtocolVersionMismatch(f"the peer speaks protocol version {data[4]}, this side speaks {VERSION}")


class ServerHandshake(_Handshake):
    """The accepting side: feed it exactly `expects` bytes at a time until `done`.

    Args:
        secret: the cluster secret.
        service: name of the service the port offers, e.g. ``"rpc"`` or ``"blob"``.
    """

    def __init__(self, secret: bytes, service: str) -> None:
        super().__init__(secret, service)
        self.expects = HELLO_SIZE
        self._client_nonce = b""
        self._server_nonce = os.urandom(NONCE_SIZE)

    def receive(self, data: bytes) -> bytes:
        """Take the peer's next *expects* bytes and return what to send back (possibly nothing).

        Raises:
            WireError: not our protocol.
            ProtocolVersionMismatch: another version.
            AuthenticationError: the peer's proof is wrong.
        """
        if not self._client_nonce:
            self._check_preamble(data)
            self._client_nonce = data[5:HELLO_SIZE]
            self.expects = MAC_SIZE
            proof = self._mac(b"server", self._client_nonce, self._server_nonce)
            return MAGIC + bytes([VERSION]) + self._server_nonce + proof
        if not hmac.compare_digest(data, self._mac(b"client", self._client_nonce, self._server_nonce)):
            raise AuthenticationError("the peer does not hold this cluster's secret")
        self.done = True
        self.expects = 0
        return b""


class ClientHandshake(_Handshake):
    """The connecting side: send `hello()`, feed the server's PROOF_SIZE bytes to `receive()`, send what it returns."""

    def __init__(self, secret: bytes, service: str) -> None:
        super().__init__(secret, service)
        self.expects = PROOF_SIZE
        self._client_nonce = os.urandom(NONCE_SIZE)

    def hello(self) -> bytes:
        """The first bytes of the connection."""
        return MAGIC + bytes([VERSION]) + self._client_nonce

    def receive(self, data: bytes) -> bytes:
        """Check the server's proof and return the answer to send; raises as `ServerHandshake.receive`."""
        self._check_preamble(data)
        server_nonce, proof = data[5:HELLO_SIZE], data[HELLO_SIZE:]
        if not hmac.compare_digest(proof, self._mac(b"server", self._client_nonce, server_nonce)):
            raise AuthenticationError("the server does not hold this cluster's secret")
        self.done = True
        self.expects = 0
        return self._mac(b"client", self._client_nonce, server_nonce)


def authenticate_client_socket(sock: socket.socket, secret: bytes, service: str) -> None:
    """Run the client's side of the handshake on a blocking socket.

    Raises:
        AuthenticationError, WireError: as `ClientHandshake.receive`; a connection closed midway is the former.
    """
    handshake = ClientHandshake(secret, service)
    sock.sendall(handshake.hello())
    proof = bytearray()
    while len(proof) < PROOF_SIZE:
        chunk = sock.recv(PROOF_SIZE - len(proof))
        if not chunk:
            raise AuthenticationError("the server closed the connection during the handshake")
        proof += chunk
    sock.sendall(handshake.receive(bytes(proof)))

"""The protocol's handshake and records, for peers that the tests play themselves."""

from __future__ import annotations

import asyncio
import socket
import ssl

from actors.errors import AuthenticationError
from actors.rpc.security import PROOF_SIZE, ClientHandshake, ServerHandshake, far_end, near_end
from actors.rpc.wire import RecordReader, Tags, seal


def authenticate_client_socket(sock: socket.socket, secret: bytes, service: str) -> ClientHandshake:
    """Run the client's side of the handshake on a blocking socket; return it, done.

    Raises:
        AuthenticationError, WireError: as `ClientHandshake.receive`; a connection closed midway is the former.
    """
    handshake = ClientHandshake(secret, service, far_end(sock))
    sock.sendall(handshake.hello())
    proof = bytearray()
    while len(proof) < PROOF_SIZE:
        chunk = sock.recv(PROOF_SIZE - len(proof))
        if not chunk:
            raise AuthenticationError("the server closed the connection during the handshake")
        proof += chunk
    sock.sendall(handshake.receive(bytes(proof)))
    return handshake


class Records:
    """What one end of a connection says and hears after the handshake: in records, where the connection has them."""

    def __init__(self, sends: Tags, receives: Tags, *, plain: bool = False) -> None:
        self._sends = sends
        self._reader = RecordReader(receives)
        self._plain = plain

    @classmethod
    def of_client(cls, handshake: ClientHandshake, sock: socket.socket) -> Records:
        """Those of a client that has shaken hands."""
        return cls(*handshake.tags(), plain=sock.family == socket.AF_UNIX or isinstance(sock, ssl.SSLSocket))

    @classmethod
    def of_server(cls, handshake: ServerHandshake) -> Records:
        """Those of a server that has shaken hands over plain TCP."""
        receives, sends = handshake.tags()
        return cls(sends, receives)

    def seal(self, data: bytes) -> bytes:
        """What to send for *data*."""
        return data if self._plain else seal(self._sends, data)

    def feed(self, data: bytes) -> bytes:
        """What was said by the bytes received."""
        return data if self._plain else self._reader.feed(data)


async def serve_handshake(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes, service: str = "rpc"
) -> Records:
    """Shake hands as a server."""
    handshake = ServerHandshake(secret, service, near_end(writer.get_extra_info("socket")))
    while not handshake.done:
        writer.write(handshake.receive(await reader.readexactly(handshake.expects)))
    return Records.of_server(handshake)


def serve_handshake_on(sock: socket.socket, secret: bytes, service: str = "rpc") -> Records:
    """The same with a blocking socket."""
    handshake = ServerHandshake(secret, service, near_end(sock))
    while not handshake.done:
        sock.sendall(handshake.receive(sock.recv(handshake.expects, socket.MSG_WAITALL)))
    return Records.of_server(handshake)

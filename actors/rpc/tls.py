"""Optional TLS under the RPC protocol: both sides show a certificate of the cluster's own authority.

TLS encrypts the connection. It also keeps a man in the middle from adding frames to an authenticated connection. The
challenge over the cluster secret (`actors.rpc.security`) still runs inside TLS. Names in certificates do not matter:
the authority signs for this cluster only, so its certificates identify processes of the cluster. Flink calls this
internal SSL.

A Unix socket is accessible only to this user, and is never encrypted.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from actors.errors import ActorError, ActorSystemError, AuthenticationError, WireError

_READ_SIZE = 256 * 1024
_REMEDY = "each process needs a certificate that the authority in security.ssl.internal.ca has signed"


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """Paths of the certificates; plain data, which can be passed to a new process.

    Args:
        certificate: PEM file with this process's certificate, and any intermediate certificates. It must be valid for
            clients and for servers, because a process is both.
        key: PEM file with its private key, without a password, of mode 0600 or less.
        ca: PEM file with the certificates of the trusted authorities.
    """

    certificate: Path
    key: Path
    ca: Path

    def contexts(self) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        """Return the contexts for accepting and for connecting: TLS 1.3, with certificates of both sides required.

        It tests them against each other. So this process reports a mistake that would make every peer reject it, such
        as a certificate that has expired or is of another authority.

        Raises:
            ActorSystemError: a file is missing, cannot be read, or does not fit the others.
        """
        for name, path in (("certificate", self.certificate), ("key", self.key), ("ca", self.ca)):
            self._check_readable(name, path)
        if mode := self.key.stat().st_mode & 0o077:
            raise ActorSystemError(
                f"security.ssl.internal.key: {self.key} can be read by others (mode 0{mode | 0o600:o}); chmod 600 it"
            )
        server, client = (self._context(side) for side in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT))
        self._try(server, client)
        return server, client

    @staticmethod
    def _check_readable(name: str, path: Path) -> None:
        try:
            with path.open("rb") as file:
                file.read(1)
        except OSError as error:
            raise ActorSystemError(
                f"security.ssl.internal.{name}: {path} cannot be read: {error.strerror}; name a PEM file that can, or "
                "set security.ssl.internal.enabled to false"
            ) from error

    def _context(self, side: int) -> ssl.SSLContext:
        context = ssl.SSLContext(side)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        if side == ssl.PROTOCOL_TLS_SERVER:
            context.num_tickets = 0  # no resumption: each connection shows its certificate
        try:
            context.load_verify_locations(self.ca)
        except ssl.SSLError as error:
            raise ActorSystemError(
                f"security.ssl.internal.ca: {self.ca} holds no certificate in PEM form ({_reason(error)}); name one "
                "that does"
            ) from error
        try:
            context.load_cert_chain(self.certificate, self.key, password=_no_password)
        except ssl.SSLError as error:
            raise ActorSystemError(
                f"security.ssl.internal.certificate and security.ssl.internal.key: {self.certificate} and {self.key} "
                f"are not a certificate and its key in PEM form ({_reason(error)}); name two that belong together"
            ) from error
        return context

    def _try(self, server_context: ssl.SSLContext, client_context: ssl.SSLContext) -> None:
        server, client = TlsStream(server_context, server_side=True), TlsStream(client_context, server_side=False)
        try:
            while not (server.established and client.established):
                server.receive(client.outgoing())
                client.receive(server.outgoing())
        except ActorError as error:
            raise ActorSystemError(
                f"security.ssl.internal.certificate: {self.certificate} would be refused by every peer that has the "
                f"authority in {self.ca}: {_reason(error.__cause__)}; {_REMEDY}, for clients and servers"
            ) from error


def _no_password() -> NoReturn:
    raise ActorSystemError("security.ssl.internal.key: the key is encrypted; name one without a password")


def _reason(error: BaseException | None) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    reason = getattr(error, "reason", None) or "not understood"
    return str(reason).replace("_", " ").lower()


class TlsStream:
    """TLS as a transformation of bytes, sans I/O: it takes the socket's input, and returns its output.

    Args:
        context: the context of this side, from `TlsConfig.contexts`.
        server_side: whether this side has accepted the connection.

    Attributes:
        established: whether this side has accepted the peer's certificate. (Only data from the peer shows that it has
            accepted ours: in TLS 1.3 a client is done before the server has seen its certificate.)
        closed: whether the peer has ended the stream.
    """

    def __init__(self, context: ssl.SSLContext, *, server_side: bool) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side)
        self._waiting = bytearray()
        self.established = False
        self.closed = False
        if not server_side:
            self._shake_hands()

    def receive(self, data: bytes) -> bytes:
        """Take bytes from the socket and return the decrypted ones. Send the bytes of `outgoing` afterwards.

        Raises:
            AuthenticationError: one side does not accept the other's certificate.
            WireError: the peer does not speak TLS 1.3. After either error, send the bytes of `outgoing` and close.
        """
        self._incoming.write(data)
        if not self.established and not self._shake_hands():
            return b""
        plain = bytearray()
        try:
            while chunk := self._object.read(_READ_SIZE):
                plain += chunk
            self.closed = True
        except ssl.SSLWantReadError:
            pass  # no more complete data
        except ssl.SSLZeroReturnError:
            self.closed = True
        except ssl.SSLError as error:
            raise _translate(error) from error
        return bytes(plain)

    def send(self, data: bytes) -> None:
        """Encrypt *data* for `outgoing`. Data that is sent before TLS is established waits for that."""
        if self.established:
            self._object.write(data)
        else:
            self._waiting += data

    def outgoing(self) -> bytes:
        """Return the bytes to write to the socket, each once."""
        return self._outgoing.read()

    def _shake_hands(self) -> bool:
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            raise _translate(error) from error
        self.established = True
        if self._waiting:
            waiting, self._waiting = self._waiting, bytearray()
            self._object.write(waiting)
        return True


def _translate(error: ssl.SSLError) -> ActorError:
    if isinstance(error, ssl.SSLCertVerificationError):
        return AuthenticationError(f"the peer's certificate is not accepted: {error.verify_message}; {_REMEDY}")
    reason = error.reason or ""
    if "PEER_DID_NOT_RETURN_A_CERTIFICATE" in reason:
        return AuthenticationError(f"the peer has shown no certificate; {_REMEDY}")
    if "ALERT" in reason and any(word in reason for word in ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED")):
        return AuthenticationError(f"the peer does not accept this side's certificate ({_reason(error)}); {_REMEDY}")
    return WireError(
        f"the peer does not speak TLS 1.3 ({_reason(error)}); security.ssl.internal.enabled has to be the same on both"
    )

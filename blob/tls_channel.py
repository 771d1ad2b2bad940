"""A channel over TLS: no ``sendfile`` (the kernel cannot encrypt for Python), and timeouts by Python."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable

from blob.channel import Channel, Pace, translate
from blob.errors import BlobAuthenticationError, BlobConnectionError, BlobProtocolError
from blob.hashing import CHUNK


class TlsChannel(Channel):
    """A `Channel` whose socket speaks TLS.

    Args:
        sock: a connected socket wrapped by an SSLContext, before its TLS handshake.
        timeout: as for `Channel`.
    """

    raw = False
    sock: ssl.SSLSocket

    @classmethod
    def over(cls, plain: Channel, context: ssl.SSLContext, *, server_side: bool) -> TlsChannel:
        """Turn an unused channel into one over TLS; call `handshake` next."""
        sock = context.wrap_socket(plain.sock, server_side=server_side, do_handshake_on_connect=False)
        return cls(sock, plain.timeout)

    def set_timeout(self, timeout: float) -> None:
        """Set the seconds without a byte after which the channel gives the peer up."""
        self.timeout = timeout
        self.sock.settimeout(timeout)

    def handshake(self) -> None:
        """Run the TLS handshake.

        Raises:
            BlobAuthenticationError: the peer's certificate, or this side's, is not accepted.
            BlobProtocolError: the peer does not speak TLS.
        """
        try:
            self.sock.do_handshake()
        except ssl.SSLCertVerificationError as error:
            raise BlobAuthenticationError(
                f"the peer's certificate is not accepted: {error.verify_message}; both sides need one of the cluster's "
                "own authority"
            ) from error
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError) as error:
            raise BlobConnectionError("the peer closed the connection in the TLS handshake") from error
        except ssl.SSLError as error:
            if "CERTIFICATE" in (error.reason or ""):
                raise BlobAuthenticationError(f"the peer shows no certificate ({error.reason})") from error
            raise BlobProtocolError(
                f"no TLS with the peer ({error.reason or error}); TLS has to be on, or off, at both sides"
            ) from error
        except ConnectionError as error:
            raise BlobConnectionError(
                f"the peer broke the TLS handshake off: {error.strerror}; TLS has to be on, or off, at both sides"
            ) from error
        except OSError as error:
            raise translate(error, self.timeout) from error

    def send_file(
        self, descriptor: int, offset: int, length: int, progress: Callable[[int], None] | None = None
    ) -> int:
        """Send *length* bytes of a file from *offset* on; return the number sent, which is less if it ends early."""
        start = offset
        pace = Pace(self.timeout)
        buffer = memoryview(bytearray(min(CHUNK, max(length, 1))))
        while length:
            size = os.preadv(descriptor, [buffer[: min(length, CHUNK)]], offset)
            if not size:
                break
            try:
                self.sock.sendall(buffer[:size])
            except OSError as error:
                raise translate(error, self.timeout) from error
            offset += size
            length -= size
            if progress is not None:
                progress(size)
            pace.check(size)
        return offset - start

    def _receive_some(self, size: int) -> bytes:
        try:
            return self.sock.recv(min(size, CHUNK))
        except ssl.SSLError as error:
            # In TLS 1.3 the client's handshake succeeds before the server has accepted its certificate.
            if "ALERT" in (error.reason or ""):
                raise BlobAuthenticationError(
                    f"the peer refused this side's certificate ({error.reason}); both sides need one of the cluster's "
                    "own authority"
                ) from error
            raise

    def _receive_into(self, view: memoryview) -> int:
        # TLS returns at most 16 KiB at a time: fill the buffer here, or it would be passed on nearly empty.
        filled = 0
        while filled < len(view):
            try:
                got = self.sock.recv_into(view[filled:])
            except OSError as error:
                raise translate(error, self.timeout) from error
            if not got:
                break
            filled += got
        if not filled:
            raise BlobConnectionError("the peer closed the connection")
        return filled

"""A client's only connection to a blob server: it opens when needed, stays open, and reopens after a break."""

from __future__ import annotations

import os
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from actors.errors import AuthenticationError, WireError, why_unreachable
from actors.rpc.security import PROOF_SIZE, ClientHandshake, far_end
from blob.channel import Channel, translate
from blob.errors import BlobAuthenticationError, BlobConnectionError, BlobError, BlobProtocolError
from blob.protocol import RESPONSE_SIZE, SERVICE, Response, Status
from blob.tls_channel import TlsChannel

T = TypeVar("T")
Address = tuple[str, int]
MAXIMUM_BACKOFF = 2.0


class Link:
    """The connection of one client; a lock admits one thread at a time.

    Args:
        address, secret, timeout, patience, retries, backoff, tls: as for `blob.client.BlobClient`.
    """

    def __init__(
        self,
        address: Address | Callable[[], Address],
        secret: bytes,
        *,
        timeout: float,
        patience: float,
        retries: int,
        backoff: float,
        tls: ssl.SSLContext | None,
    ) -> None:
        self._address = address
        self._secret = secret
        self._timeout = timeout
        self._patience = patience
        self._retries = retries
        self._backoff = backoff
        self._tls = tls
        self._lock = threading.Lock()
        self._channel: Channel | None = None
        self._owner = 0
        self._refusal: BlobError | None = None

    def close(self) -> None:
        """Close the connection; a later call opens a new one."""
        with self._lock:
            self._drop()

    def run(self, attempt: Callable[[Channel], T]) -> T:
        """Call *attempt* with the connection and return its result; call it again with a new one after a break.

        Raises:
            BlobConnectionError: the retries are used up.
            BlobAuthenticationError: one side does not hold the cluster secret, or a certificate of the cluster.
        """
        with self._lock:
            failures = 0
            while True:
                kept = self._channel is not None and self._owner == os.getpid()
                try:
                    return attempt(self._connected())
                except BlobConnectionError as error:
                    self._drop()
                    # A kept connection that the server has closed while it was idle does not count as a failure.
                    if kept:
                        continue
                    failures += 1
                    if failures > self._retries:
                        raise type(error)(f"gave up after {failures} attempts: {error}") from error
                    limit = min(self._backoff * 2 ** (failures - 1), MAXIMUM_BACKOFF)
                    time.sleep(limit * random.uniform(0.5, 1.0))  # noqa: S311 (spreads retries, hides nothing)
                except BaseException as error:
                    # After a refusal the connection is usable; after any other error its state is unknown.
                    if error is not self._refusal or isinstance(error, BlobProtocolError):
                        self._drop()
                    self._refusal = None
                    raise

    def _connected(self) -> Channel:
        if self._channel is not None:
            if self._owner == os.getpid():
                return self._channel
            # Forked: the connection belongs to the parent.
            self._drop()
        host, port = self._address() if callable(self._address) else self._address
        try:
            sock = socket.create_connection((host, port), timeout=self._timeout)
        except (OSError, UnicodeError) as error:  # UnicodeError: of a name that is not a host's
            raise BlobConnectionError(
                f"cannot reach the blob server at {host}:{port}: {why_unreachable(error)}"
            ) from error
        channel = Channel(sock, self._timeout)
        try:
            if self._tls is not None:
                channel = secured = TlsChannel.over(channel, self._tls, server_side=False)
                secured.set_timeout(max(self._patience, self._timeout))  # a busy server lets its clients wait
                secured.handshake()
                secured.set_timeout(self._timeout)
            self._authenticate(channel, f"{host}:{port}")
        except BaseException:
            channel.close()
            raise
        self._channel = channel
        self._owner = os.getpid()
        return channel

    def _authenticate(self, channel: Channel, peer: str) -> None:
        try:
            handshake = ClientHandshake(self._secret, SERVICE, far_end(channel.sock))
        except OSError as error:
            raise translate(error, self._timeout) from error
        channel.send(handshake.hello())
        proof = channel.receive(PROOF_SIZE, self._patience)
        try:
            channel.send(handshake.receive(proof))
        except AuthenticationError as error:
            raise BlobAuthenticationError(f"the blob server at {peer}: {error}") from error
        except WireError as error:
            raise BlobProtocolError(f"what listens at {peer} is not a blob server of this version: {error}") from error
        if channel.raw:
            channel.tag_with(*handshake.tags())

    def response(self, channel: Channel, expected: Status) -> Response:
        """Receive the expected response; raises the refusal that came instead."""
        response, detail_size = Response.decode(channel.receive_message(RESPONSE_SIZE, self._patience))
        if response.status is expected:
            return response
        if response.status in (Status.OK, Status.CONTINUE):
            raise BlobProtocolError(f"the server answered {response.status.name} where {expected.name} was due")
        self._refusal = response.error(channel.receive_message(detail_size) if detail_size else b"")
        raise self._refusal

    def _drop(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

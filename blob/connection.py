"""One connection of the blob server: handshake, then request after request, in a thread of its own."""

from __future__ import annotations

import logging
import os
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from actors.errors import AuthenticationError, WireError
from actors.rpc.security import ServerHandshake, near_end
from blob.channel import Channel
from blob.contents import BlobContents
from blob.errors import (
    BlobConnectionError,
    BlobConnectionTampered,
    BlobError,
    BlobProtocolError,
    BlobRequestRefused,
    DigestMismatch,
)
from blob.files import write_all
from blob.key import DIGEST_SIZE, KEY_TYPES
from blob.protocol import INLINE_CONTENT, REQUEST_SIZE, RESPONSE_SIZE, SERVICE, Operation, Request, Response, Status
from blob.refusals import storage_failure
from blob.tls_channel import TlsChannel
from blob.uploads import Upload, UploadName

logger = logging.getLogger(__name__)
HANDSHAKE_TIMEOUT = 5.0


@dataclass(slots=True)
class Traffic:
    """Traffic of one connection. Only the connection's thread counts it, so it needs no lock."""

    puts: int = 0
    gets: int = 0
    deletes: int = 0
    refusals: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0

    def add(self, other: Traffic) -> None:
        """Add the traffic of *other*."""
        self.puts += other.puts
        self.gets += other.gets
        self.deletes += other.deletes
        self.refusals += other.refusals
        self.bytes_received += other.bytes_received
        self.bytes_sent += other.bytes_sent


class Connection:
    """Serves one client until it leaves, violates the protocol, is too slow, or is evicted.

    Args:
        channel: the accepted connection.
        peer: the client's address, for the log.
        secret: the cluster secret.
        contents: the blobs.
        timeout: seconds of silence, or between two requests, after which the server drops the client.
        tls: context for TLS; None for none.
    """

    def __init__(
        self,
        channel: Channel,
        peer: str,
        secret: bytes,
        contents: BlobContents,
        timeout: float,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._channel = channel
        self._peer = peer
        self._secret = secret
        self._contents = contents
        self._timeout = timeout
        self._tls = tls
        self._state = threading.Lock()
        self._idle_since: float | None = time.monotonic()
        self._evicted = False
        self.traffic = Traffic()

    @property
    def idle_since(self) -> float | None:
        """Start of the client's idle time (monotonic seconds); None while a request is served."""
        return self._idle_since

    def evict(self) -> bool:
        """Close the connection if no request is being served; return whether it did. The client may connect again."""
        with self._state:
            if self._idle_since is None:
                return False
            self._evicted = True
        self.shutdown()
        return True

    def shutdown(self) -> None:
        """Break the connection off, even during a request."""
        self._channel.shutdown()

    def run(self, admit: Callable[[], bool]) -> None:
        """Serve until the end; raises nothing.

        Args:
            admit: called once the client is authenticated; waits until it may be served, and returns False if never.
        """
        try:
            if self._authenticate() and self._has_place(admit):
                while self._serve_one():
                    pass
        except BlobConnectionTampered as error:
            logger.warning("refused %s: %s", self._peer, error)
        except BlobConnectionError as error:
            logger.debug("%s: %s", self._peer, error)
        except Exception:
            logger.exception("%s: the connection is closed after an unforeseen error", self._peer)
        finally:
            self._channel.close()

    def _authenticate(self) -> bool:
        handshake = ServerHandshake(self._secret, SERVICE, near_end(self._channel.sock))
        self._channel.set_timeout(HANDSHAKE_TIMEOUT)
        try:
            if self._tls is not None:
                self._channel = secured = TlsChannel.over(self._channel, self._tls, server_side=True)
                secured.handshake()
            while not handshake.done:
                self._channel.send(handshake.receive(self._channel.receive(handshake.expects)))
        except (AuthenticationError, WireError, BlobProtocolError) as error:
            logger.warning("refused %s: %s", self._peer, error)
            if handshake.refusal:
                self._channel.dismiss(handshake.refusal)
            return False
        if self._channel.raw:
            receives, sends = handshake.tags()
            self._channel.tag_with(sends, receives)
        self._channel.set_timeout(self._timeout)
        return True

    def _has_place(self, admit: Callable[[], bool]) -> bool:
        admitted = admit()
        self._idle_since = time.monotonic()
        return admitted

    def _serve_one(self) -> bool:
        data = self._channel.receive_message(REQUEST_SIZE)
        with self._state:
            if self._evicted:
                return False
            self._idle_since = None
        try:
            request = Request.decode(data)
        except BlobProtocolError as error:
            logger.warning("refused %s: %s", self._peer, error)
            self._idle_since = time.monotonic()  # it may be evicted while it waits for the peer
            self._refuse(error, is_last=True)
            return False
        if request.operation is Operation.GET:
            self._get(request)
        elif request.operation is Operation.PUT:
            self._put(request)
        else:
            self._delete(request)
        self._idle_since = time.monotonic()
        return True

    def _refuse(self, error: BlobError, *, is_last: bool = False) -> None:
        self.traffic.refusals += 1
        response = Response.of_error(error)
        if response.status in (Status.SERVER_ERROR, Status.STORE_FAILED, Status.NO_SPACE):
            logger.error("%s: %s", self._peer, error)
        head, detail = response.encode()[:RESPONSE_SIZE], response.encode()[RESPONSE_SIZE:]
        send = self._channel.dismiss if is_last else self._channel.send
        send(self._channel.sealed(head) + (self._channel.sealed(detail) if detail else b""))

    def _get(self, request: Request) -> None:
        try:
            descriptor, size = self._contents.open(request.job_id, request.key, verify=request.verify)
        except BlobError as error:
            return self._refuse(error)
        except OSError as error:
            return self._refuse(storage_failure(error))
        try:
            if request.offset > size:
                message = f"offset {request.offset} is beyond the end of {request.key}, {size} bytes"
                return self._refuse(BlobRequestRefused(message))
            length = size - request.offset
            head = self._channel.sealed(Response(Status.OK, length).encode())
            self.traffic.gets += 1
            if length <= INLINE_CONTENT:
                # Saves a packet and a system call against sendfile, which matters for small blobs.
                self._channel.send(head + os.pread(descriptor, length, request.offset))
            else:
                self._channel.send(head)
                if self._channel.send_file(descriptor, request.offset, length) < length:
                    raise BlobConnectionError(f"the file of {request.key} became shorter while it was sent")
        finally:
            os.close(descriptor)
        self.traffic.bytes_sent += length
        return None

    def _put(self, request: Request) -> None:
        inline = request.length <= INLINE_CONTENT
        try:
            upload = self._contents.begin(UploadName(request.blob_type, request.job_id, request.random, request.length))
        except BlobError as error:
            if inline:
                self._channel.discard(request.length)
                self._channel.receive_message(DIGEST_SIZE)
            return self._refuse(error)
        receive = self._receive_inline if inline else self._receive_streamed
        try:
            # Leave the upload before sending the refusal, so that its reader finds no trace of the upload.
            with upload:
                digest = receive(request, upload)
                self._contents.commit(upload, KEY_TYPES[request.blob_type].create(digest, request.random))
        except BlobConnectionError:
            raise
        except BlobError as error:
            return self._refuse(error)
        self.traffic.puts += 1
        self.traffic.bytes_received += request.length
        self._channel.send_message(Response(Status.OK, digest=digest).encode())
        return None

    def _receive_inline(self, request: Request, upload: Upload) -> bytes:
        data = memoryview(self._channel.receive(request.length + DIGEST_SIZE + self._channel.tag_size))
        content = data[: request.length]
        declared = self._channel.unsealed(bytes(data[request.length :]))
        upload.hasher.update(content)
        try:
            write_all(upload.descriptor, content)
        except OSError as error:
            raise storage_failure(error) from error
        return _verified(upload.hasher.digest(), declared)

    def _receive_streamed(self, request: Request, upload: Upload) -> bytes:
        channel, start = self._channel, upload.received
        channel.unread = request.length - start
        try:
            # The bytes that an earlier attempt has left here: the client resumes after them.
            channel.send_message(Response(Status.CONTINUE, length=start).encode())
            channel.receive_to_file(upload.descriptor, channel.unread, upload.hasher, durable=True)
            declared = channel.receive_message(DIGEST_SIZE)
        except BlobConnectionError:
            upload.received = request.length - channel.unread
            self._contents.park(upload)
            raise
        except OSError as error:
            # Read to the end, or the client would see a broken connection instead of the reason.
            channel.discard(channel.unread)
            channel.receive_message(DIGEST_SIZE)
            raise storage_failure(error) from error
        return _verified(upload.hasher.digest(), declared)

    def _delete(self, request: Request) -> None:
        try:
            deleted = self._contents.delete(request.job_id, request.key)
        except BlobError as error:
            return self._refuse(error)
        except OSError as error:
            return self._refuse(storage_failure(error))
        self.traffic.deletes += 1
        self._channel.send_message(Response(Status.OK, length=int(deleted)).encode())
        return None


def _verified(computed: bytes, declared: bytes) -> bytes:
    if computed != declared:
        raise DigestMismatch("the content arrived with another digest than its sender computed; nothing was kept")
    return computed

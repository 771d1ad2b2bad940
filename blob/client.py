"""The blob client (Flink's `BlobClient`): uploads, downloads and deletes over one kept connection.

Synchronous: an asyncio caller runs it in an executor. A lock lets one thread at a time through; threads that are to
transfer at the same time have a client each.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import random
import secrets
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self, TypeVar

from actors.errors import AuthenticationError, WireError
from actors.rpc.security import PROOF_SIZE, ClientHandshake
from blob.channel import Channel
from blob.errors import (
    BlobAuthenticationError,
    BlobConnectionError,
    BlobError,
    BlobProtocolError,
    BlobRequestRefused,
    BlobTooLarge,
    DigestMismatch,
)
from blob.hashing import CHUNK
from blob.key import RANDOM_SIZE, BlobKey, TransientBlobKey, check_job_id
from blob.protocol import INLINE_CONTENT, RESPONSE_SIZE, SERVICE, Operation, Request, Response, Status

Key = TypeVar("Key", bound=BlobKey)
T = TypeVar("T")
Progress = Callable[[int, int], None]
Address = tuple[str, int]
Source = io.RawIOBase | io.BufferedIOBase
MAXIMUM_BACKOFF = 2.0


class BlobClient:
    """A client of one blob server.

    Args:
        address: host and port of the server, or a function that says where it is now (asked at every connect).
        secret: the cluster secret.
        timeout: seconds without a byte of a transfer after which the server is given up.
        patience: seconds to wait for the server to answer: it may first fetch from or copy to its store, or be busy.
        retries: how often a broken connection is made anew; a download then goes on where it broke.
        backoff: seconds before the first retry, doubled with each up to 2.

    Every method raises BlobConnectionError when the retries are used up, BlobAuthenticationError for a wrong secret,
    InvalidBlobKey for a malformed job id, and the refusals of the server as typed in `blob.errors`.
    """

    def __init__(
        self,
        address: Address | Callable[[], Address],
        secret: bytes,
        *,
        timeout: float = 30.0,
        patience: float = 300.0,
        retries: int = 5,
        backoff: float = 0.05,
    ) -> None:
        self._address = address
        self._secret = secret
        self._timeout = timeout
        self._patience = patience
        self._retries = retries
        self._backoff = backoff
        self._lock = threading.Lock()
        self._channel: Channel | None = None
        self._owner = 0
        self._refusal: BlobError | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; a later call makes a new one."""
        with self._lock:
            self._drop()

    def put_bytes(self, data: bytes, key_type: type[Key], job_id: str | None = None) -> Key:
        """Upload *data* as a blob of *key_type* (PermanentBlobKey, which needs a job, or TransientBlobKey)."""
        return self.put_stream(io.BytesIO(data), key_type, job_id)

    def put_file(
        self, path: Path, key_type: type[Key], job_id: str | None = None, progress: Progress | None = None
    ) -> Key:
        """Upload a file; *progress* is called with the bytes sent and the bytes in all. OSError: it is unreadable."""
        with path.open("rb", buffering=0) as file:
            return self.put_stream(file, key_type, job_id, progress)

    def put_stream(
        self,
        stream: Source,
        key_type: type[Key],
        job_id: str | None = None,
        progress: Progress | None = None,
    ) -> Key:
        """Upload what is left in *stream*; one that cannot seek is first copied to a temporary file.

        Raises:
            BlobRequestRefused: the stream became shorter while it was read; or the server refused.
            DigestMismatch: the server received something else.
        """
        if stream.seekable():
            start = stream.tell()
            length = stream.seek(0, io.SEEK_END) - start
            return self._put(stream, start, length, key_type, job_id, progress)
        with tempfile.TemporaryFile() as copy:
            while piece := stream.read(CHUNK):
                copy.write(piece)
            length = copy.tell()
            return self._put(copy, 0, length, key_type, job_id, progress)

    def get_bytes(self, key: BlobKey, job_id: str | None = None, *, max_size: int = 256 * 1024 * 1024) -> bytes:
        """Return a blob's content; raises BlobTooLarge when it has more than *max_size* bytes."""

        def attempt(channel: Channel) -> bytes:
            channel.send(Request.of_key(Operation.GET, job_id, key).encode())
            length = self._response(channel, Status.OK).length
            if length > max_size:
                raise BlobTooLarge(f"{key} has {length} bytes, more than {max_size}; fetch it to a file")
            return channel.receive(length)

        data = self._run(attempt)
        if hashlib.sha256(data).digest() == key.digest:
            return data
        with tempfile.TemporaryFile() as file:
            self._download(key, job_id, file.fileno(), None, verify=True)
            file.seek(0)
            return file.read()

    def get_to_file(
        self, key: BlobKey, path: Path, job_id: str | None = None, progress: Progress | None = None
    ) -> None:
        """Download a blob to *path*, where it appears (mode 0600) only when whole and verified.

        Raises:
            OSError: the file cannot be written.
        """
        part = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}.part")
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            try:
                self.download(key, descriptor, job_id, progress)
            finally:
                os.close(descriptor)
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise

    def download(
        self, key: BlobKey, descriptor: int, job_id: str | None = None, progress: Progress | None = None
    ) -> None:
        """Download a blob into an open, empty file, whose content is to be trusted only once this returns."""
        if not self._download(key, job_id, descriptor, progress, verify=False):
            os.ftruncate(descriptor, 0)
            os.lseek(descriptor, 0, os.SEEK_SET)
            self._download(key, job_id, descriptor, progress, verify=True)

    def delete(self, key: TransientBlobKey, job_id: str | None = None) -> bool:
        """Delete a transient blob; False if there was none."""

        def attempt(channel: Channel) -> bool:
            channel.send(Request.of_key(Operation.DELETE, job_id, key).encode())
            return self._response(channel, Status.OK).length > 0

        return self._run(attempt)

    def _put(
        self,
        source: Source,
        start: int,
        length: int,
        key_type: type[Key],
        job_id: str | None,
        progress: Progress | None,
    ) -> Key:
        # Drawn once: a repeated attempt is an upload of the same key.
        head = Request(Operation.PUT, key_type.blob_type, check_job_id(job_id), os.urandom(RANDOM_SIZE), length=length)

        def attempt(channel: Channel) -> bytes:
            source.seek(start)
            hasher = hashlib.sha256()
            if length <= INLINE_CONTENT:
                content = _read_exactly(source, length)
                hasher.update(content)
                channel.send(b"".join((head.encode(), content, hasher.digest())))
            else:
                channel.send(head.encode())
                self._response(channel, Status.CONTINUE)
                sent = 0

                def advance(size: int) -> None:
                    nonlocal sent
                    sent += size
                    if progress is not None:
                        progress(sent, length)

                if channel.send_from(lambda view: source.readinto(view) or 0, length, hasher, advance) < length:
                    raise BlobRequestRefused(f"the source became shorter than its {length} bytes while it was sent")
                channel.send(hasher.digest())
            if self._response(channel, Status.OK).digest != hasher.digest():
                raise DigestMismatch("the server stored another content than was sent")
            return hasher.digest()

        return key_type.create(self._run(attempt), head.random)

    def _download(
        self, key: BlobKey, job_id: str | None, descriptor: int, progress: Progress | None, *, verify: bool
    ) -> bool:
        hasher = hashlib.sha256()
        done = 0

        def attempt(channel: Channel) -> None:
            channel.send(Request.of_key(Operation.GET, job_id, key, done, verify).encode())
            remaining = self._response(channel, Status.OK).length
            total = done + remaining

            def advance(size: int) -> None:
                nonlocal done
                done += size
                if progress is not None:
                    progress(done, total)

            channel.receive_to_file(descriptor, remaining, hasher, advance)

        self._run(attempt)
        if hasher.digest() == key.digest:
            return True
        if verify:
            raise DigestMismatch(f"{key} arrived with another digest, twice; nothing of it was kept")
        return False

    def _run(self, attempt: Callable[[Channel], T]) -> T:
        with self._lock:
            failures = 0
            while True:
                kept = self._channel is not None and self._owner == os.getpid()
                try:
                    return attempt(self._connected())
                except BlobConnectionError as error:
                    self._drop()
                    # A kept connection that the server closed meanwhile is no failure: it may do so when it idles.
                    if kept:
                        continue
                    failures += 1
                    if failures > self._retries:
                        raise type(error)(f"gave up after {failures} attempts: {error}") from error
                    limit = min(self._backoff * 2 ** (failures - 1), MAXIMUM_BACKOFF)
                    time.sleep(limit * random.uniform(0.5, 1.0))  # noqa: S311 (spreads retries, hides nothing)
                except BaseException as error:
                    # After a refusal the connection is in step; after anything else who knows where it stands.
                    if error is not self._refusal or isinstance(error, BlobProtocolError):
                        self._drop()
                    self._refusal = None
                    raise

    def _connected(self) -> Channel:
        if self._channel is not None:
            if self._owner == os.getpid():
                return self._channel
            # Forked: the connection is the parent's.
            self._drop()
        host, port = self._address() if callable(self._address) else self._address
        try:
            sock = socket.create_connection((host, port), timeout=self._timeout)
        except OSError as error:
            raise BlobConnectionError(
                f"cannot reach the blob server at {host}:{port}: {error.strerror or error}"
            ) from error
        channel = Channel(sock, self._timeout)
        try:
            self._authenticate(channel, f"{host}:{port}")
        except BaseException:
            channel.close()
            raise
        self._channel = channel
        self._owner = os.getpid()
        return channel

    def _authenticate(self, channel: Channel, peer: str) -> None:
        handshake = ClientHandshake(self._secret, SERVICE)
        channel.send(handshake.hello())
        proof = channel.receive(PROOF_SIZE, self._patience)
        try:
            channel.send(handshake.receive(proof))
        except AuthenticationError as error:
            raise BlobAuthenticationError(f"the blob server at {peer}: {error}") from error
        except WireError as error:
            raise BlobProtocolError(f"what listens at {peer} is no blob server of this version: {error}") from error

    def _response(self, channel: Channel, expected: Status) -> Response:
        response, detail_size = Response.decode(channel.receive(RESPONSE_SIZE, self._patience))
        if response.status is expected:
            return response
        if response.status in (Status.OK, Status.CONTINUE):
            raise BlobProtocolError(f"the server answered {response.status.name} where {expected.name} was due")
        self._refusal = response.error(channel.receive(detail_size) if detail_size else b"")
        raise self._refusal

    def _drop(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None


def _read_exactly(source: Source, length: int) -> bytes:
    content = bytearray(length)
    view = memoryview(content)
    filled = 0
    while filled < length:
        with contextlib.suppress(BlockingIOError):
            size = source.readinto(view[filled:])
            if not size:
                raise BlobRequestRefused(f"the source became shorter than its {length} bytes while it was sent")
            filled += size
    return bytes(content)

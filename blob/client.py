"""The blob client (Flink's `BlobClient`): uploads, downloads and deletes over one kept connection.

It is synchronous: an asyncio caller runs it in an executor. A lock admits one thread at a time; threads that transfer
at the same time need one client each.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import secrets
import ssl
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Self, TypeVar

from blob.channel import Channel
from blob.errors import BlobProtocolError, BlobRequestRefused, BlobTooLarge, DigestMismatch
from blob.hashing import CHUNK, FileHasher, Hasher
from blob.key import RANDOM_SIZE, BlobKey, TransientBlobKey, check_job_id
from blob.link import Address, Link
from blob.protocol import INLINE_CONTENT, Operation, Request, Status

Source = io.RawIOBase | io.BufferedIOBase


def send_content(
    channel: Channel, source: Source, start: int, length: int, held: int, advance: Callable[[int], None]
) -> bytes:
    """Send the part of a content that the server lacks.

    Args:
        channel: channel to the server, which has sent CONTINUE.
        source: source of the content, positioned at *start*.
        start: offset of the content in the source.
        length: bytes of the content.
        held: bytes of it that the server has already.
        advance: called with the number of bytes of the content that the server has, or should have.

    Returns:
        The digest of the whole content.

    Raises:
        BlobRequestRefused: the source became shorter than *length*.
    """
    hasher = hashlib.sha256()
    sent = held

    def count(size: int) -> None:
        nonlocal sent
        sent += size
        advance(sent)

    descriptor = _regular_file(source)
    hashing = None if descriptor is None else FileHasher.begin(descriptor, start, length, hasher)
    if descriptor is not None and hashing is not None:
        with hashing:
            hashing.reach(start + length)
            channel.send_file(descriptor, start + held, length - held, count)
    else:
        _hash_exactly(source, held, length, hasher)
        channel.send_from(lambda view: source.readinto(view) or 0, length - held, hasher, count)
    if sent < length:
        raise _shrunk(length)
    return hasher.digest()


def _regular_file(source: Source) -> int | None:
    """Return the descriptor of a regular file; None for others (a `BytesIO` has none, a gzip file that of another)."""
    if not isinstance(source, io.FileIO | io.BufferedReader | io.BufferedRandom):
        return None
    if not isinstance(source, io.FileIO) and not isinstance(source.raw, io.FileIO):
        return None
    descriptor = source.fileno()
    return descriptor if stat.S_ISREG(os.fstat(descriptor).st_mode) else None


def _shrunk(length: int) -> BlobRequestRefused:
    return BlobRequestRefused(f"the source became shorter than its {length} bytes while it was sent")


def read_exactly(source: Source, length: int) -> bytes:
    """Return the next *length* bytes of *source*; raises BlobRequestRefused when there are fewer."""
    content = bytearray(length)
    _fill(source, memoryview(content), length)
    return bytes(content)


def _hash_exactly(source: Source, size: int, length: int, hasher: Hasher) -> None:
    buffer = memoryview(bytearray(min(size, CHUNK)))
    left = size
    while left:
        view = buffer[: min(left, CHUNK)]
        _fill(source, view, length)
        hasher.update(view)
        left -= len(view)


def _fill(source: Source, view: memoryview, length: int) -> None:
    while view:
        with contextlib.suppress(BlockingIOError):
            size = source.readinto(view)
            if not size:
                raise _shrunk(length)
            view = view[size:]


Key = TypeVar("Key", bound=BlobKey)
Progress = Callable[[int, int], None]
Receive = Callable[[Channel, int, Hasher, Callable[[int], None]], None]
Sink = io.RawIOBase | io.BufferedIOBase


class BlobClient:
    """A client of one blob server.

    Args:
        address: host and port of the server, or a function that returns them, called before every connect.
        secret: the cluster secret.
        timeout: seconds without a byte of a transfer after which the client gives the server up.
        patience: seconds to wait for an answer of the server, which may first use its store, or be busy.
        retries: number of times to reopen a broken connection; a transfer then resumes where it broke.
        backoff: seconds before the first retry, doubled with each retry up to 2.
        tls: context for TLS if the server uses it; None for none.

    Every method raises BlobConnectionError when the retries are used up, and BlobAuthenticationError for a wrong
    secret. A malformed job id raises InvalidBlobKey. Refusals of the server raise the errors of `blob.errors`.
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
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._link = Link(
            address, secret, timeout=timeout, patience=patience, retries=retries, backoff=backoff, tls=tls
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; a later call opens a new one."""
        self._link.close()

    def put_bytes(self, data: bytes, key_type: type[Key], job_id: str | None = None) -> Key:
        """Upload *data* as a blob of *key_type* (PermanentBlobKey, which needs a job, or TransientBlobKey)."""
        return self.put_stream(io.BytesIO(data), key_type, job_id)

    def put_file(
        self, path: Path, key_type: type[Key], job_id: str | None = None, progress: Progress | None = None
    ) -> Key:
        """Upload a file; *progress* is called with the sent and the total bytes. Raises OSError if it is unreadable."""
        with path.open("rb", buffering=0) as file:
            return self._put(file, 0, os.fstat(file.fileno()).st_size, key_type, job_id, progress)

    def put_stream(
        self,
        stream: Source,
        key_type: type[Key],
        job_id: str | None = None,
        progress: Progress | None = None,
    ) -> Key:
        """Upload the rest of *stream*; a stream that cannot seek is first copied to a temporary file.

        Raises:
            BlobRequestRefused: the stream became shorter while it was read, or the server rejects the request.
            DigestMismatch: the server received another content.
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
            channel.send_message(Request.of_key(Operation.GET, job_id, key).encode())
            length = self._link.response(channel, Status.OK).length
            if length > max_size:
                raise BlobTooLarge(f"{key} has {length} bytes, more than {max_size}; fetch it to a file")
            return channel.receive(length)

        data = self._link.run(attempt)
        if hashlib.sha256(data).digest() == key.digest:
            return data
        with tempfile.TemporaryFile() as file:
            if not self._download(key, job_id, _to_file(file.fileno()), None, verify=True):
                raise _damaged(key)
            file.seek(0)
            return file.read()

    def get_to_file(
        self, key: BlobKey, path: Path, job_id: str | None = None, progress: Progress | None = None
    ) -> None:
        """Download a blob to *path*; the file (mode 0600) appears only when it is complete and verified.

        Raises:
            OSError: the file cannot be written.
        """
        part = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}.part")
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            try:
                self.download(key, descriptor, job_id, progress)
            finally:
                os.close(descriptor)
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise

    def get_to_stream(
        self, key: BlobKey, stream: Sink, job_id: str | None = None, progress: Progress | None = None
    ) -> None:
        """Download a blob into *stream*; trust the new content only once this returns.

        Raises:
            DigestMismatch: the written content is not the blob. If the server's copy is damaged, the server replaces
                it by the store's, which a second call gets.
            OSError: the stream cannot be written.
        """

        def write(data: memoryview) -> None:
            while data:
                data = data[stream.write(data) or 0 :]

        def receive(channel: Channel, length: int, hasher: Hasher, advance: Callable[[int], None]) -> None:
            channel.receive_content(write, length, hasher, advance)

        if not self._download(key, job_id, receive, progress, verify=False):
            # The stream keeps the damaged content. But the next reader shall not get the same damaged copy.
            self._download(key, job_id, _discard, None, verify=True)
            raise _damaged(key)

    def download(
        self,
        key: BlobKey,
        descriptor: int,
        job_id: str | None = None,
        progress: Progress | None = None,
        *,
        durable: bool = False,
    ) -> None:
        """Download a blob into an empty file, open for reading and writing; trust the content only once this returns.

        *durable* announces that an ``fsync`` follows, so writing to the disk starts during the download.
        """
        if self._download(key, job_id, _to_file(descriptor, durable), progress, verify=False):
            return
        # The server's copy may be damaged: make the server verify it, and fetch the store's if it is.
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        if not self._download(key, job_id, _to_file(descriptor, durable), progress, verify=True):
            raise _damaged(key)

    def delete(self, key: TransientBlobKey, job_id: str | None = None) -> bool:
        """Delete a transient blob; return False if there was none."""

        def attempt(channel: Channel) -> bool:
            channel.send_message(Request.of_key(Operation.DELETE, job_id, key).encode())
            return self._link.response(channel, Status.OK).length > 0

        return self._link.run(attempt)

    def _put(
        self,
        source: Source,
        start: int,
        length: int,
        key_type: type[Key],
        job_id: str | None,
        progress: Progress | None,
    ) -> Key:
        # Drawn once, so that each attempt uploads the same key.
        head = Request(Operation.PUT, key_type.blob_type, check_job_id(job_id), os.urandom(RANDOM_SIZE), length=length)

        shown = 0

        def advance(sent: int) -> None:
            nonlocal shown
            if sent > shown and progress is not None:
                progress(sent, length)
            shown = max(sent, shown)

        def attempt(channel: Channel) -> bytes:
            source.seek(start)
            if length <= INLINE_CONTENT:
                content = read_exactly(source, length)
                digest = hashlib.sha256(content).digest()
                channel.send(b"".join((channel.sealed(head.encode()), content, channel.sealed(digest))))
            else:
                channel.send_message(head.encode())
                # Bytes that the server has from an earlier attempt only go through the hasher.
                held = self._link.response(channel, Status.CONTINUE).length
                if held > length:
                    raise BlobProtocolError(f"the server says that it holds {held} bytes of {length}")
                digest = send_content(channel, source, start, length, held, advance)
                channel.send_message(digest)
            if self._link.response(channel, Status.OK).digest != digest:
                raise DigestMismatch("the server stored another content than was sent")
            return digest

        return key_type.create(self._link.run(attempt), head.random)

    def _download(
        self,
        key: BlobKey,
        job_id: str | None,
        receive: Receive,
        progress: Progress | None,
        *,
        verify: bool,
    ) -> bool:
        """Download a blob in as many attempts as needed; return whether its digest is right."""
        hasher = hashlib.sha256()
        done = 0

        def attempt(channel: Channel) -> None:
            channel.send_message(Request.of_key(Operation.GET, job_id, key, done, verify).encode())
            remaining = self._link.response(channel, Status.OK).length
            total = done + remaining

            def advance(size: int) -> None:
                nonlocal done
                done += size
                if progress is not None:
                    progress(done, total)

            receive(channel, remaining, hasher, advance)

        self._link.run(attempt)
        return hasher.digest() == key.digest


def _to_file(descriptor: int, durable: bool = False) -> Receive:
    def receive(channel: Channel, length: int, hasher: Hasher, advance: Callable[[int], None]) -> None:
        channel.receive_to_file(descriptor, length, hasher, advance, durable=durable)

    return receive


def _discard(channel: Channel, length: int, hasher: Hasher, advance: Callable[[int], None]) -> None:
    channel.discard(length)
    advance(length)


def _damaged(key: BlobKey) -> DigestMismatch:
    return DigestMismatch(f"the content that arrived for {key} does not match its digest; do not use any of it")

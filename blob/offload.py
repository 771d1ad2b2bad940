"""Messages that are too large for a frame travel as blobs (Flink's `BlobWriter.serializeAndTryOffload`).

The sender replaces the encoded part of its message by an `Inline` or an `Offloaded`; the receiver resolves either to
the bytes. Use `MessageOffload` for messages to several receivers, or repeated ones. It uploads each content once while
that is in use, as a transient blob, and deletes it after the last delivery. Use `offload_if_larger` for a message that
becomes part of its job and is deleted with it.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

from blob.errors import BlobError
from blob.key import BlobKey, PermanentBlobKey, TransientBlobKey
from blob.single_flight import SingleFlight

logger = logging.getLogger(__name__)
Key = TypeVar("Key", bound=BlobKey)


@dataclass(frozen=True, slots=True)
class Inline:
    """Bytes that travel in the message itself."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Offloaded:
    """Bytes that travel as a blob.

    Args:
        key: text of the blob's key.
        job_id: the job of the blob, which is deleted with it at the latest; None for a transient blob without a job.
        size: number of bytes.
    """

    key: str
    job_id: str | None
    size: int


MaybeOffloaded = Inline | Offloaded


class BlobWriter(Protocol):
    """Uploader: a `BlobClient`."""

    def put_bytes(self, data: bytes, key_type: type[Key], job_id: str | None = None, /) -> Key:
        """Upload *data*."""

    def delete(self, key: TransientBlobKey, job_id: str | None = None, /) -> bool:
        """Delete a transient blob."""


class BlobReader(Protocol):
    """Downloader: a `BlobCache`."""

    def read(self, job_id: str | None, key: BlobKey, /) -> bytes:
        """Return a blob's content."""


class BlobTaker(Protocol):
    """Downloader that also deletes: a `BlobClient`."""

    def get_bytes(self, key: BlobKey, job_id: str | None = None, /) -> bytes:
        """Return a blob's content."""

    def delete(self, key: TransientBlobKey, job_id: str | None = None, /) -> bool:
        """Delete a transient blob."""


def offload_if_larger(data: bytes, limit: int, writer: BlobWriter, job_id: str) -> MaybeOffloaded:
    """Return *data* inline, or upload it as a permanent blob if it has more than *limit* bytes; raises BlobError.

    The upload blocks: an asyncio caller runs this in an executor.
    """
    if len(data) <= limit:
        return Inline(data)
    return Offloaded(writer.put_bytes(data, PermanentBlobKey, job_id), job_id, len(data))


def resolve(value: MaybeOffloaded, reader: BlobReader) -> bytes:
    """Return the bytes of *value*; raises BlobError when they cannot be fetched. May block."""
    if isinstance(value, Inline):
        return value.data
    return reader.read(value.job_id, BlobKey.parse(value.key))


def take(value: MaybeOffloaded, taker: BlobTaker) -> bytes:
    """Return the bytes of *value* for its only receiver, and delete its blob; otherwise like `resolve`."""
    if isinstance(value, Inline):
        return value.data
    key = BlobKey.parse(value.key)
    data = taker.get_bytes(key, value.job_id)
    if isinstance(key, TransientBlobKey):
        taker.delete(key, value.job_id)
    return data


@dataclass(slots=True, eq=False)
class _Parcel:
    message: Offloaded
    uploaded: float
    deliveries: int = 0
    holders: int = 0
    current: bool = True


class MessageOffload:
    """The large messages of one sender.

    Args:
        writer: uploads and deletes.
        limit: most bytes that travel inline.
        job_id: the job of the blobs; None for none.
        lifetime_s: seconds after its upload when a blob is deleted, even if it is still in use. It must not exceed the
            server's time to live of transient blobs, after which the server deletes blobs of dead senders. A content
            that is sent again in the second half of that time is uploaded again.
        clock: returns monotonic seconds.

    Every method may block; several threads may call it at once.
    """

    def __init__(
        self,
        writer: BlobWriter,
        limit: int,
        job_id: str | None,
        *,
        lifetime_s: float = 3600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._writer = writer
        self._limit = limit
        self._job_id = job_id
        self._lifetime_s = lifetime_s
        self._clock = clock
        self._lock = threading.Lock()
        self._uploads: SingleFlight[bytes, _Parcel] = SingleFlight()
        self._parcels: dict[bytes, _Parcel] = {}
        self._old: dict[_Parcel, None] = {}  # in the order in which they were retired

    @contextlib.contextmanager
    def delivery(self, data: bytes) -> Iterator[MaybeOffloaded]:
        """Yield the value to send to one receiver; end the ``with`` when the receiver has answered or failed.

        Deliveries of the same content share one blob. It is deleted after the last of them, unless it is in `kept`.

        Raises:
            BlobError: the upload failed.
        """
        if len(data) <= self._limit:
            yield Inline(data)
            return
        parcel = self._enter(data, deliveries=1)
        try:
            yield parcel.message
        finally:
            self._leave(parcel, deliveries=1)

    @contextlib.contextmanager
    def kept(self, data: bytes) -> Iterator[None]:
        """Keep a content's blob between deliveries while the ``with`` lasts, because it may be needed again."""
        if len(data) <= self._limit:
            yield
            return
        parcel = self._enter(data, holders=1)
        try:
            yield
        finally:
            self._leave(parcel, holders=1)

    def lost(self, message: MaybeOffloaded) -> None:
        """Upload the content again at its next delivery, because a receiver did not find the blob."""
        with self._lock:
            for digest, parcel in list(self._parcels.items()):
                if parcel.message == message:
                    self._retire(digest)

    def expire(self) -> None:
        """Delete expired blobs; every upload does this too."""
        with self._lock:
            now = self._clock()
            for digest, parcel in list(self._parcels.items()):
                if now - parcel.uploaded >= self._lifetime_s:
                    self._retire(digest)
            over = [parcel for parcel in self._old if now - parcel.uploaded >= self._lifetime_s]
            for parcel in over:
                del self._old[parcel]
        for parcel in over:
            self._delete(parcel)

    def close(self) -> None:
        """Delete all remaining blobs."""
        with self._lock:
            parcels = [*self._parcels.values(), *self._old]
            self._parcels.clear()
            self._old.clear()
        for parcel in parcels:
            self._delete(parcel)

    def _enter(self, data: bytes, *, deliveries: int = 0, holders: int = 0) -> _Parcel:
        digest = hashlib.sha256(data).digest()
        while True:
            with self._lock:
                parcel = self._parcels.get(digest)
                if parcel is not None and self._clock() - parcel.uploaded >= self._lifetime_s / 2:
                    self._retire(digest)
                    parcel = None
                if parcel is not None:
                    parcel.deliveries += deliveries
                    parcel.holders += holders
                    return parcel
            self._uploads.run(digest, lambda: self._upload(digest, data))

    def _upload(self, digest: bytes, data: bytes) -> _Parcel:
        self.expire()
        with self._lock:
            if digest in self._parcels:
                return self._parcels[digest]
        key = self._writer.put_bytes(data, TransientBlobKey, self._job_id)
        parcel = _Parcel(Offloaded(key, self._job_id, len(data)), self._clock())
        with self._lock:
            self._parcels[digest] = parcel
        return parcel

    def _leave(self, parcel: _Parcel, *, deliveries: int = 0, holders: int = 0) -> None:
        with self._lock:
            parcel.deliveries -= deliveries
            parcel.holders -= holders
            if parcel.deliveries or (parcel.holders and parcel.current):
                return
            known = [digest for digest, other in self._parcels.items() if other is parcel]
            for digest in known:
                del self._parcels[digest]
            present = bool(known) or parcel in self._old
            self._old.pop(parcel, None)
        if present:
            self._delete(parcel)

    def _retire(self, digest: bytes) -> None:
        """Use this parcel for no new delivery; call it with the lock held."""
        parcel = self._parcels.pop(digest)
        parcel.current = False
        self._old[parcel] = None

    def _delete(self, parcel: _Parcel) -> None:
        try:
            self._writer.delete(TransientBlobKey(parcel.message.key), parcel.message.job_id)
        except BlobError as error:
            # The server deletes it when it expires, or with its job.
            logger.warning("the blob of a message could not be deleted: %s", error)

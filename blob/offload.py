"""Messages that are too large for a frame travel as blobs (Flink's `BlobWriter.serializeAndTryOffload`).

The sender replaces the encoded part of its message by an `Inline` or an `Offloaded`, the receiver resolves either to
the bytes. One `Offloaded` may be sent to any number of receivers, and again: the upload happened once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from blob.key import BlobKey, PermanentBlobKey


@dataclass(frozen=True, slots=True)
class Inline:
    """Bytes that travel in the message itself."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Offloaded:
    """Bytes that travel as a permanent blob.

    Args:
        key: text of the blob's key.
        job_id: the job that the blob belongs to, and is deleted with.
        size: number of bytes.
    """

    key: str
    job_id: str
    size: int


MaybeOffloaded = Inline | Offloaded


class BlobWriter(Protocol):
    """Who uploads: a `BlobClient`."""

    def put_bytes(
        self, data: bytes, key_type: type[PermanentBlobKey], job_id: str | None = None, /
    ) -> PermanentBlobKey:
        """Upload *data*."""


class BlobReader(Protocol):
    """Who downloads: a `BlobCache`."""

    def read(self, job_id: str | None, key: BlobKey, /) -> bytes:
        """Return a blob's content."""


def offload_if_larger(data: bytes, limit: int, writer: BlobWriter, job_id: str) -> MaybeOffloaded:
    """Return *data* as it is, or uploaded when it has more than *limit* bytes; raises BlobError.

    The upload blocks: an asyncio caller runs this in an executor.
    """
    if len(data) <= limit:
        return Inline(data)
    return Offloaded(writer.put_bytes(data, PermanentBlobKey, job_id), job_id, len(data))


def resolve(value: MaybeOffloaded, reader: BlobReader) -> bytes:
    """Return the bytes that *value* stands for; raises BlobError when they cannot be fetched. May block."""
    if isinstance(value, Inline):
        return value.data
    return reader.read(value.job_id, BlobKey.parse(value.key))

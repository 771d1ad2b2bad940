"""Blob keys: names of blobs, made from their content and a random part.

The idea is Flink's `BlobKey`. By the digest every receiver verifies the content. The random part distinguishes two
uploads of the same content, so that a delete of one keeps the other. The uploader draws the random part, so an upload
that is repeated after a lost answer has the same key.

The text form, used in file names and messages, is ``p-<64 hex>-<32 hex>`` for a permanent blob and ``t-...`` for a
transient one.
"""

from __future__ import annotations

import os
import re
from enum import IntEnum
from typing import ClassVar, Self

from blob.errors import InvalidBlobKey

DIGEST_SIZE = 32
RANDOM_SIZE = 16
_TEXT = re.compile(r"[pt]-([0-9a-f]{64})-([0-9a-f]{32})", re.ASCII)
_JOB_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)


class BlobType(IntEnum):
    """The two lifetimes of a blob; the values are those on the wire."""

    PERMANENT = 1
    TRANSIENT = 2


class BlobKey(str):
    """A blob's key; always one of `PermanentBlobKey` and `TransientBlobKey`, never of this class itself.

    A key is its text (a `str`), so it hashes, compares, and travels as one; constructing it validates the text.

    Raises:
        InvalidBlobKey: the text is not a key of this type.
    """

    __slots__ = ()
    blob_type: ClassVar[BlobType]
    _prefix: ClassVar[str] = ""

    def __new__(cls, text: str) -> Self:
        if not cls._prefix:
            raise TypeError("a BlobKey is made as PermanentBlobKey or TransientBlobKey, or by BlobKey.parse()")
        if _TEXT.fullmatch(text) is None or text[0] != cls._prefix:
            raise InvalidBlobKey(
                f"not a {cls.__name__}: {text[:120]!r}; expected {cls._prefix}-<64 hex digits>-<32 hex digits>"
            )
        return super().__new__(cls, text)

    @classmethod
    def create(cls, digest: bytes, random: bytes | None = None) -> Self:
        """Build the key of a content's SHA-256 *digest* (32 bytes) and a *random* part (16 bytes, drawn when None)."""
        return cls(f"{cls._prefix}-{digest.hex()}-{(random or os.urandom(RANDOM_SIZE)).hex()}")

    @staticmethod
    def parse(text: str) -> PermanentBlobKey | TransientBlobKey:
        """Return the key with that text, of the type of its first letter; raises InvalidBlobKey."""
        return TransientBlobKey(text) if text.startswith("t") else PermanentBlobKey(text)

    @property
    def digest(self) -> bytes:
        """The SHA-256 digest of the content, 32 bytes."""
        return bytes.fromhex(self[2:66])

    @property
    def random(self) -> bytes:
        """The random part, 16 bytes."""
        return bytes.fromhex(self[67:])


class PermanentBlobKey(BlobKey):
    """Key of a blob that lives as long as its job, is copied to the BlobStore and recovered from it."""

    __slots__ = ()
    blob_type = BlobType.PERMANENT
    _prefix = "p"


class TransientBlobKey(BlobKey):
    """Key of a blob that its user deletes; only the server keeps it, and only for a time to live."""

    __slots__ = ()
    blob_type = BlobType.TRANSIENT
    _prefix = "t"


KEY_TYPES: dict[BlobType, type[PermanentBlobKey] | type[TransientBlobKey]] = {
    BlobType.PERMANENT: PermanentBlobKey,
    BlobType.TRANSIENT: TransientBlobKey,
}


def check_job_id(job_id: str | None) -> str | None:
    """Return *job_id* when it is None or 32 lower-case hex digits; raises InvalidBlobKey otherwise."""
    if job_id is not None and _JOB_ID.fullmatch(job_id) is None:
        raise InvalidBlobKey(f"not a job id: {job_id[:120]!r}; expected 32 lower-case hex digits")
    return job_id

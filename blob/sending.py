"""How a client sends the content of a PUT: from a file by ``sendfile``, from anything else through buffers."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import stat
from collections.abc import Callable

from blob.channel import Channel
from blob.errors import BlobRequestRefused
from blob.hashing import CHUNK, FileHasher, Hasher

Source = io.RawIOBase | io.BufferedIOBase


def send_content(
    channel: Channel, source: Source, start: int, length: int, held: int, advance: Callable[[int], None]
) -> bytes:
    """Send what the server lacks of a content.

    Args:
        channel: to the server, which has said CONTINUE.
        source: where the content is; it stands at *start*.
        start: offset of the content in the source.
        length: bytes of the content.
        held: bytes of it that the server has already.
        advance: told how many bytes of the content the server has, or should have.

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
    """The descriptor of a source that is a file and nothing else (a `BytesIO` has none, a gzip file's is another)."""
    if not isinstance(source, io.FileIO | io.BufferedReader | io.BufferedRandom):
        return None
    if not isinstance(source, io.FileIO) and not isinstance(source.raw, io.FileIO):
        return None
    descriptor = source.fileno()
    return descriptor if stat.S_ISREG(os.fstat(descriptor).st_mode) else None


def _shrunk(length: int) -> BlobRequestRefused:
    return BlobRequestRefused(f"the source became shorter than its {length} bytes while it was sent")


def read_exactly(source: Source, length: int) -> bytes:
    """The next *length* bytes of *source*; raises BlobRequestRefused when there are fewer."""
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

"""Tags on what a connection carries after its handshake, so that nobody can add to it, change, repeat or cut it unseen.

A TCP connection carries records, whatever frames or parts of frames are in them:

    RECORD  length(4) payload(length) tag(16)

A tag is the keyed BLAKE2b of everything that was tagged in its direction so far, so it vouches for content and place.
Each direction has its own key, made of the cluster secret and of this very connection's handshake: a record of another
connection, or of the other direction, has no good tag here. All that is sent at once goes into one record, as with TLS.
The tag of a large payload is over its SHA-256, which processors compute several times as fast.

A Unix socket and a connection with TLS carry no records: the kernel, and TLS, protect those already.
"""

from __future__ import annotations

import hashlib
import struct
from hmac import compare_digest

from actors.errors import RecipientUnreachable, WireError

TAG_SIZE = 16
RECORD_SIZE = 256 * 1024
"""Largest payload: so much may be held of which nobody has vouched yet."""

_LENGTH = struct.Struct(">I")
_HEADER_SIZE = _LENGTH.size
_DIRECT = 1024
"""Payloads of up to so many bytes are tagged as they are, larger ones by their digest."""


class Tags:
    """The tags of one direction of one connection, one after another.

    Args:
        key: of 32 bytes, which both ends have made of their handshake.
    """

    __slots__ = ("_state",)

    def __init__(self, key: bytes) -> None:
        self._state = hashlib.blake2b(key=key, digest_size=TAG_SIZE)

    def next(self, data: bytes) -> bytes:
        """Return the tag of *data*, which comes after all that was tagged before."""
        self._state.update(data)
        return self._state.digest()

    def fits(self, data: bytes, tag: bytes) -> bool:
        """Whether *tag* is the `next` of *data*. After a false one no other can be trusted."""
        state = self._state
        state.update(data)
        return compare_digest(state.digest(), tag)

    def copy(self) -> Tags:
        """The same tags from here on, apart from these."""
        other = object.__new__(Tags)
        other._state = self._state.copy()
        return other


def seal(tags: Tags, data: bytes) -> bytes:
    """Return the records that carry *data*, which is not empty; *tags* goes on."""
    size = len(data)
    if size <= _DIRECT:
        record = _LENGTH.pack(size) + data
        return record + tags.next(record)
    parts: list[bytes | memoryview] = []
    view = memoryview(data)
    for start in range(0, size, RECORD_SIZE):
        payload = view[start : start + RECORD_SIZE]
        header = _LENGTH.pack(len(payload))
        parts += (header, payload, tags.next(header + _digest(payload)))
    return b"".join(parts)


def unseal(tags: Tags, data: bytes) -> tuple[list[bytes], int, int]:
    """Check the whole records at the beginning of *data*; *tags* goes on.

    Returns:
        Their payloads, how many bytes of *data* they took, and how many the record after them has at least.

    Raises:
        RecipientUnreachable: a tag is wrong. The connection is over: what was said on it last is not known.
        WireError: a length that no record has.
    """
    payloads: list[bytes] = []
    position, end = 0, len(data)
    while end - position >= _HEADER_SIZE:
        (size,) = _LENGTH.unpack_from(data, position)
        if not 0 < size <= RECORD_SIZE:
            raise WireError(f"the peer announced a record of {size} bytes, which is none or over {RECORD_SIZE}")
        begin = position + _HEADER_SIZE
        stop = begin + size
        if stop + TAG_SIZE > end:
            return payloads, position, _HEADER_SIZE + size + TAG_SIZE
        payload = data[begin:stop]
        tagged = data[position:stop] if size <= _DIRECT else data[position:begin] + _digest(payload)
        if not tags.fits(tagged, data[stop : stop + TAG_SIZE]):
            raise RecipientUnreachable(
                "the connection broke: bytes came on it that its other end has not sent there (their tag is wrong)"
            )
        payloads.append(payload)
        position = stop + TAG_SIZE
    return payloads, position, _HEADER_SIZE


def _digest(payload: bytes | memoryview) -> bytes | memoryview:
    return payload if len(payload) <= _DIRECT else hashlib.sha256(payload).digest()


class RecordReader:
    """Cuts a byte stream into records, sans I/O, and holds at most one that is incomplete.

    Args:
        tags: of the direction that is read.
    """

    def __init__(self, tags: Tags) -> None:
        self._tags = tags
        self._held: list[bytes] = []
        self._held_size = 0
        self._needed = _HEADER_SIZE

    def feed(self, data: bytes) -> bytes:
        """Add received bytes and return what of them is vouched for; raises as `unseal`, and is of no use then."""
        if self._held:
            self._held.append(data)
            self._held_size += len(data)
            if self._held_size < self._needed:
                return b""
            data = b"".join(self._held)
            self._held.clear()
        payloads, used, self._needed = unseal(self._tags, data)
        if used < len(data):
            self._held.append(data[used:] if used else data)
            self._held_size = len(data) - used
        return payloads[0] if len(payloads) == 1 else b"".join(payloads)

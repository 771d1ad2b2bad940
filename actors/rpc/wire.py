"""Bytes of a connection: frames, and on TCP the tagged records that carry them. Sans I/O.

A frame is a four-byte big-endian length and a body of MessagePack. In the RPC protocol a body is one array:

    ASK    [0, correlation id, actor path, method, [argument, ...], fencing token | nil]
    TELL   [1, actor path, method, [argument, ...], fencing token | nil]
    REPLY  [2, correlation id, value]
    ERROR  [3, correlation id, error type, message, remote traceback]
    OFFLOADED  [4, correlation id, key, size]

An ERROR with correlation id 0 (asks count from 1) concerns the connection: the server sends it before it closes the
connection. OFFLOADED is a REPLY with an offloaded value (`actors.rpc.offload`). An asking side sends it with
correlation id 0 to announce itself (`Announcement`), before its first call. An ASK with offloaded arguments has their
key (a text) instead of the list.
A fencing token is ``[epoch, session]`` of the leadership that a call addresses. In a call of a leader it is
``[epoch | nil, session | nil, component, epoch, session]``: the second half is the leadership under which it acts.
This module unpickles nothing, and rejects MessagePack extension types. MessagePack's own timestamp arrives as a float
(seconds since 1970).

Records carry tags. So no attacker can add, change, repeat or cut data unnoticed after the handshake. A TCP connection
carries records, which contain frames or parts of frames:

    RECORD  length(4) payload(length) tag(16)

A tag is the keyed BLAKE2b of all data tagged in its direction so far, so it proves content and position. Each direction
has its own key, derived from the cluster secret and this connection's handshake. So a record of another connection, or
of the other direction, has no valid tag here. Data that is sent at once goes into one record, as with TLS. The tag of a
large payload covers its SHA-256, which processors compute several times as fast.
A Unix socket and a connection with TLS carry no records, because the kernel and TLS protect them already.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hmac import compare_digest
from typing import Any

import msgpack

from actors.errors import FrameTooLarge, RecipientUnreachable, WireError

ASK, TELL, REPLY, ERROR, OFFLOADED = 0, 1, 2, 3, 4
_FIELDS = {ASK: 6, TELL: 5, REPLY: 3, ERROR: 5, OFFLOADED: 4}

_LENGTH = struct.Struct(">I")
HEADER_SIZE = _LENGTH.size
LARGE = 4096
"""Bytes of a body above which it is checked before it is decoded.

Nested lists may announce more elements than follow. Without the check, the decoder would allocate memory for all of
them (80 GB for a frame of 10 MB).
"""

TAG_SIZE = 16
RECORD_SIZE = 256 * 1024
"""Largest payload in bytes, which bounds the unchecked data in memory."""
_DIRECT = 1024
"""Largest payload in bytes that is tagged directly; larger ones are tagged by their digest."""

# ---------------------------------------------------------------- announcements

_COMPONENT, _FETCHES_NOTHING = 1, 2
SHOWN_CALLER = 200
"""Characters of a caller's name that the receiver keeps."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """Facts that an asking side says about itself. The secret is its only proof.

    Earlier releases announce only that they fetch values, and take any announcement for that.

    Args:
        caller: name of a client's user; empty if it has none.
        is_component: whether it is a process of the cluster, which calls on behalf of others.
        fetches: whether it accepts offloaded results.
    """

    caller: str = ""
    is_component: bool = False
    fetches: bool = True

    def message(self) -> list[Any]:
        """Return the message."""
        flags = (_COMPONENT if self.is_component else 0) | (0 if self.fetches else _FETCHES_NOTHING)
        return [OFFLOADED, 0, self.caller[:SHOWN_CALLER], flags]

    @classmethod
    def of(cls, message: list[Any]) -> Announcement:
        """Read the message; raises WireError."""
        _, _, caller, flags = message
        if type(caller) is not str or type(flags) is not int:
            raise WireError("malformed frame: an announcement has a text and an integer")
        return cls(caller[:SHOWN_CALLER], bool(flags & _COMPONENT), not flags & _FETCHES_NOTHING)


# ---------------------------------------------------------------------- frames


def frame(body: bytes) -> bytes:
    """Return the frame of *body*."""
    return _LENGTH.pack(len(body)) + body


def frame_end(data: bytes | bytearray, position: int, maximum: int) -> int:
    """Return the end of the frame at *position*, from its header, which must be complete.

    Raises:
        FrameTooLarge: the header announces a body of more than *maximum* bytes.
    """
    (size,) = _LENGTH.unpack_from(data, position)
    if size > maximum:
        raise FrameTooLarge(f"the peer announced a frame of {size} bytes, over {maximum}")
    stop: int = position + HEADER_SIZE + size
    return stop


class FrameEncoder:
    """Turns messages into frames; one per connection or service. It reuses its buffer: one thread at a time.

    Args:
        maximum: largest body in bytes (``rpc.frame-size``).
    """

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._packer = msgpack.Packer(use_bin_type=True, autoreset=True)

    def encode(self, message: list[Any]) -> bytes:
        """Return header and body.

        Raises:
            FrameTooLarge: the body exceeds the maximum.
            WireError: the message contains a value that MessagePack cannot encode.
        """
        try:
            body: bytes = self._packer.pack(message)
        except (TypeError, ValueError, OverflowError) as error:
            self._packer.reset()
            raise WireError(f"a value cannot be sent: {error}") from error
        if len(body) > self._maximum:
            raise FrameTooLarge(
                f"a message of {len(body)} bytes exceeds rpc.frame-size ({self._maximum} bytes); "
                "send it as a blob, or raise rpc.frame-size on every process of the cluster"
            )
        return _LENGTH.pack(len(body)) + body  # like `frame`, but saves a call for each message


def parse(body: bytes | bytearray) -> list[Any]:
    """Return the RPC message of a body; raises `WireError` when it is malformed."""
    message = unpack_value(body)
    if not isinstance(message, list) or not message:
        raise WireError("malformed frame: not a message array")
    kind = message[0]
    if type(kind) is not int:  # not shown: it may be megabytes, or too deep for its repr
        raise WireError(f"malformed frame: the kind is not an integer but {type(kind).__name__}")
    if len(message) != _FIELDS.get(kind):
        raise WireError(f"malformed frame: unknown kind {kind} or wrong number of fields")
    if kind != TELL and type(message[1]) is not int:
        raise WireError("malformed frame: the correlation id is not an integer")
    return message


class FrameDecoder:
    """Cuts a byte stream into messages.

    It holds at most one incomplete frame. A decoded message may take more memory than its encoded form: at worst 64
    bytes per byte, for a body of empty lists.

    Args:
        maximum: largest accepted body in bytes; checked on the header, before the body is buffered.
        parse: returns the message of a body, or raises `WireError`; default: that of the RPC protocol.
    """

    def __init__(self, maximum: int, parse: Callable[[bytes | bytearray], Any] = parse) -> None:
        self._maximum = maximum
        self._parse = parse
        self._buffer = bytearray()
        self._broken = False

    @property
    def incomplete(self) -> bytes:
        """The bytes of the frame that has not arrived completely."""
        return bytes(self._buffer)

    def feed(self, data: bytes) -> Iterator[Any]:
        """Add received bytes and yield each complete message.

        The first error ends the stream: all later bytes are rejected too.

        Raises:
            FrameTooLarge: the next frame announces more than the maximum.
            WireError: a body is not one well-formed message.
        """
        if self._broken:
            raise WireError("bytes after a malformed frame")
        buffer = self._buffer
        if buffer:
            buffer += data
            source: bytes | bytearray = buffer
        else:
            source = data
        position, end, maximum, parse_body = 0, len(source), self._maximum, self._parse
        try:
            while end - position >= HEADER_SIZE:
                stop = frame_end(source, position, maximum)
                if stop > end:
                    break
                body = source[position + HEADER_SIZE : stop]
                position = stop
                yield parse_body(body)
        except WireError:
            self._broken = True
            raise
        finally:
            if self._broken:
                buffer.clear()
            elif source is buffer:
                del buffer[:position]
            else:
                buffer += source[position:]


def pack_value(value: Any) -> bytes:
    """Return the MessagePack of a plain value."""
    packed: bytes = msgpack.packb(value, use_bin_type=True)
    return packed


def unpack_value(body: bytes | bytearray) -> Any:
    """Return the plain value of a body or of an offloaded value; raises `WireError` when it is malformed."""
    try:
        if len(body) > LARGE:
            walk_through(body)
        return msgpack.unpackb(body, raw=False, strict_map_key=False, ext_hook=_refuse_extension, timestamp=1)
    except WireError:
        raise
    except Exception as error:  # msgpack raises several unrelated types on malformed input
        raise WireError(f"malformed frame: {type(error).__name__}: {error}") from error


def walk_through(body: bytes | bytearray) -> None:
    """Raise msgpack's error for a malformed body, before memory is allocated for the elements that it announces."""
    unpacker = msgpack.Unpacker(max_buffer_size=len(body))
    unpacker.feed(body)
    unpacker.skip()


def _refuse_extension(code: int, _data: bytes) -> Any:
    raise WireError(f"malformed frame: MessagePack extension type {code}")


# ---------------------------------------------------------------------- records


class Tags:
    """The tags of one direction of one connection, one after another.

    Args:
        key: key of 32 bytes, which both ends have derived from their handshake.
    """

    __slots__ = ("_state",)

    def __init__(self, key: bytes) -> None:
        self._state = hashlib.blake2b(key=key, digest_size=TAG_SIZE)

    def next(self, data: bytes) -> bytes:
        """Return the tag of *data*, which follows all data that was tagged before."""
        self._state.update(data)
        return self._state.digest()

    def fits(self, data: bytes, tag: bytes) -> bool:
        """Return whether *tag* is the `next` of *data*. After a false one no other can be trusted."""
        state = self._state
        state.update(data)
        return compare_digest(state.digest(), tag)

    def copy(self) -> Tags:
        """Return an independent copy in the present state."""
        other = object.__new__(Tags)
        other._state = self._state.copy()
        return other


def seal(tags: Tags, data: bytes) -> bytes:
    """Return the records that carry *data*, which is not empty; this advances *tags*."""
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
    """Check the complete records at the beginning of *data*; this advances *tags*.

    Returns:
        Their payloads, their size in bytes, and the least size of the next record.

    Raises:
        RecipientUnreachable: a tag is wrong. The connection has ended, and its last data is unknown.
        WireError: a length is invalid.
    """
    payloads: list[bytes] = []
    position, end = 0, len(data)
    while end - position >= HEADER_SIZE:
        (size,) = _LENGTH.unpack_from(data, position)
        if not 0 < size <= RECORD_SIZE:
            raise WireError(f"the peer announced a record of {size} bytes, which is none or over {RECORD_SIZE}")
        begin = position + HEADER_SIZE
        stop = begin + size
        if stop + TAG_SIZE > end:
            return payloads, position, HEADER_SIZE + size + TAG_SIZE
        payload = data[begin:stop]
        tagged = data[position:stop] if size <= _DIRECT else data[position:begin] + _digest(payload)
        if not tags.fits(tagged, data[stop : stop + TAG_SIZE]):
            raise RecipientUnreachable(
                "the connection broke: bytes came on it that its other end has not sent there (their tag is wrong)"
            )
        payloads.append(payload)
        position = stop + TAG_SIZE
    return payloads, position, HEADER_SIZE


def _digest(payload: bytes | memoryview) -> bytes | memoryview:
    return payload if len(payload) <= _DIRECT else hashlib.sha256(payload).digest()


class RecordReader:
    """Cuts a byte stream into records, and holds at most one incomplete record.

    Args:
        tags: tags of the direction that is read.
    """

    def __init__(self, tags: Tags) -> None:
        self._tags = tags
        self._held: list[bytes] = []
        self._held_size = 0
        self._needed = HEADER_SIZE

    def feed(self, data: bytes) -> bytes:
        """Add received bytes and return the payloads of the valid records; raises as `unseal`, and is unusable then."""
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

"""Frames of the RPC protocol: a four-byte big-endian length, then one MessagePack array.

    ASK    [0, correlation id, actor path, method, [argument, ...], fencing token | nil]
    TELL   [1, actor path, method, [argument, ...], fencing token | nil]
    REPLY  [2, correlation id, value]
    ERROR  [3, correlation id, error type, message, remote traceback]
    OFFLOADED  [4, correlation id, key, size]

An ERROR with correlation id 0 (asks count from 1) is about the connection: the server's last word before it closes it.
OFFLOADED is a REPLY whose value is elsewhere (`actors.rpc.offload`); from a client, with correlation id 0, it says that
the client can fetch such. An ASK whose arguments are elsewhere has the text of their key in place of the list.
A fencing token is ``[epoch, session]`` of the leadership that a call is meant for. In a call of a leader it is
``[epoch | nil, session | nil, component, epoch, session]``: the second half is the leadership that it acts under.
Nothing here is ever unpickled; MessagePack extension types are refused; its own timestamp arrives as a float (seconds
since 1970).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import msgpack

from actors.errors import FrameTooLarge, WireError

ASK, TELL, REPLY, ERROR, OFFLOADED = 0, 1, 2, 3, 4

_LENGTH = struct.Struct(">I")
HEADER_SIZE = _LENGTH.size
_LARGE = 4096
"""From so many bytes on a body is walked through once before anything is built from it: nested lists that announce more
elements than follow would otherwise have memory set aside for them all (80 GB for a frame of 10 MB)."""

_FIELDS = {ASK: 6, TELL: 5, REPLY: 3, ERROR: 5, OFFLOADED: 4}


class FrameEncoder:
    """Turns messages into frames; one per connection or service (it reuses its buffer, so one thread at a time).

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
            WireError: the message holds something that MessagePack cannot carry.
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
        return _LENGTH.pack(len(body)) + body


class FrameDecoder:
    """Cuts a byte stream into messages, sans I/O.

    It holds at most one incomplete frame. A decoded message may take more memory than its bytes: 64 bytes for each of
    a body of empty lists is the worst that MessagePack allows.

    Args:
        maximum: largest body in bytes that is accepted; the check is made on the header, before anything is buffered.
    """

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._buffer = bytearray()
        self._broken = False

    def feed(self, data: bytes) -> Iterator[list[Any]]:
        """Add received bytes and yield each complete message.

        The first error is the end of the stream: whatever comes after it is refused as well.

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
        position, end = 0, len(source)
        try:
            while end - position >= HEADER_SIZE:
                (size,) = _LENGTH.unpack_from(source, position)
                if size > self._maximum:
                    raise FrameTooLarge(f"the peer announced a frame of {size} bytes, over {self._maximum}")
                stop = position + HEADER_SIZE + size
                if stop > end:
                    break
                body = source[position + HEADER_SIZE : stop]
                position = stop
                yield parse(body)
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


def parse(body: bytes | bytearray) -> list[Any]:
    """One message, of the body of its frame; raises `WireError` when it is malformed."""
    message = unpack_value(body)
    if not isinstance(message, list) or not message:
        raise WireError("malformed frame: not a message array")
    kind = message[0]
    if type(kind) is not int:  # and is not shown: it may be megabytes, or too deep for its repr
        raise WireError(f"malformed frame: the kind is no integer but {type(kind).__name__}")
    if len(message) != _FIELDS.get(kind):
        raise WireError(f"malformed frame: unknown kind {kind} or wrong number of fields")
    if kind != TELL and type(message[1]) is not int:
        raise WireError("malformed frame: the correlation id is no integer")
    return message


def pack_value(value: Any) -> bytes:
    """A plain value that travels apart from its frame."""
    packed: bytes = msgpack.packb(value, use_bin_type=True)
    return packed


def unpack_value(body: bytes | bytearray) -> Any:
    """The plain value of a body, or of what traveled apart; raises `WireError` when it is malformed."""
    try:
        if len(body) > _LARGE:
            _walk_through(body)
        return msgpack.unpackb(body, raw=False, strict_map_key=False, ext_hook=_refuse_extension, timestamp=1)
    except WireError:
        raise
    except Exception as error:  # msgpack raises several unrelated types on malformed input; all mean the same here
        raise WireError(f"malformed frame: {type(error).__name__}: {error}") from error


def _walk_through(body: bytes | bytearray) -> None:
    unpacker = msgpack.Unpacker(max_buffer_size=len(body))
    unpacker.feed(body)
    unpacker.skip()


def _refuse_extension(code: int, _data: bytes) -> Any:
    raise WireError(f"malformed frame: MessagePack extension type {code}")

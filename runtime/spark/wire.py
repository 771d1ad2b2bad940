"""Frames of the control sockets between TaskExecutor, zygote and task process: a 4-byte length and a MessagePack map.

The sockets are inherited Unix socket pairs, so their peers need no authentication.
"""

from __future__ import annotations

import socket
import struct
import threading
from typing import Any

import msgpack

from runtime.spark.errors import WireError

MAX_FRAME = 64 * 1024 * 1024
"""Bytes that a frame may have."""

_HEADER = struct.Struct(">I")
Message = dict[str, Any]


def encode(message: Message) -> bytes:
    """Return the frame of a message."""
    body: bytes = msgpack.packb(message, use_bin_type=True)
    if len(body) > MAX_FRAME:
        raise WireError(f"a control message of {len(body)} bytes is over the limit of {MAX_FRAME}")
    return _HEADER.pack(len(body)) + body


class FrameReader:
    """Turns a byte stream into messages (no I/O)."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """Take bytes as they come; return the messages that are complete with them. Raises `WireError`."""
        self._buffer += data
        messages: list[Message] = []
        while len(self._buffer) >= _HEADER.size:
            (length,) = _HEADER.unpack_from(self._buffer)
            if length > MAX_FRAME:
                raise WireError(f"a control frame of {length} bytes is over the limit of {MAX_FRAME}")
            end = _HEADER.size + length
            if len(self._buffer) < end:
                break
            messages.append(_decode(bytes(self._buffer[_HEADER.size : end])))
            del self._buffer[:end]
        return messages


def _decode(body: bytes) -> Message:
    try:
        message = msgpack.unpackb(body, raw=False, strict_map_key=False)
    except ValueError as error:
        raise WireError(f"a control frame is not MessagePack: {error}") from error
    if not isinstance(message, dict):
        raise WireError(f"a control frame holds {type(message).__name__}, not a map")
    return message


class BlockingChannel:
    """The blocking end of a control socket, as a task process has it; `send` may be called from any thread."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._reader = FrameReader()
        self._ready: list[Message] = []
        self._lock = threading.Lock()

    def send(self, message: Message) -> None:
        """Send one message. Raises `OSError` where the peer is gone."""
        frame = encode(message)
        with self._lock:
            self.sock.sendall(frame)

    def receive(self) -> Message | None:
        """Return the next message, None at the end of the stream."""
        while not self._ready:
            try:
                data = self.sock.recv(65536)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._ready.extend(self._reader.feed(data))
        return self._ready.pop(0)

"""Messages of the control sockets between TaskExecutor, zygote and task process: frames with a MessagePack map.

The sockets are inherited Unix socket pairs, so their peers need no authentication.
"""

from __future__ import annotations

import socket
import threading
from typing import Any

from actors.errors import WireError as FrameError
from actors.rpc.wire import FrameDecoder, frame, pack_value, unpack_value
from runtime.spark.errors import WireError

MAX_FRAME = 64 * 1024 * 1024
"""Largest message, in bytes."""

Message = dict[str, Any]


def encode(message: Message) -> bytes:
    """Return the frame of a message. Raises `WireError` where it is too large."""
    body = pack_value(message)
    if len(body) > MAX_FRAME:
        raise WireError(f"a control message of {len(body)} bytes is over the limit of {MAX_FRAME}")
    return frame(body)


class FrameReader:
    """Turns a byte stream into messages (no I/O)."""

    def __init__(self) -> None:
        self._decoder = FrameDecoder(MAX_FRAME, _decode)

    @property
    def incomplete(self) -> bytes:
        """The bytes of the message that has not arrived completely."""
        return self._decoder.incomplete

    def feed(self, data: bytes) -> list[Message]:
        """Add received bytes, and return the messages that are now complete. Raises `WireError`."""
        try:
            return list(self._decoder.feed(data))
        except FrameError as error:
            raise WireError(f"a control socket received data that is not a message: {error}") from error


def _decode(body: bytes | bytearray) -> Message:
    message = unpack_value(body)
    if not isinstance(message, dict):
        raise FrameError(f"a control frame holds {type(message).__name__}, not a map")
    return message


class BlockingChannel:
    """A task process's blocking end of a control socket; `send` may be called from any thread."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._reader = FrameReader()
        self._ready: list[Message] = []
        self._lock = threading.Lock()

    def send(self, message: Message) -> None:
        """Send one message. Raises `OSError` where the peer has ended."""
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

"""What a thread's connection has still to send."""

from __future__ import annotations

import socket
import threading

from actors.rpc.records import Tags, seal
from actors.rpc.tls import TlsStream


class Outbox:
    """Frames in their order, and what the kernel did not take of the last. Used under the connection's lock.

    Attributes:
        tags: make records of what is sent, if set.
        tls: encrypts, if set; shared with the reader, hence `tls_lock`.
        size: bytes of the frames, without the rest of the one that is being sent.
    """

    def __init__(self) -> None:
        self.size = 0
        self.tags: Tags | None = None
        self.tls: TlsStream | None = None
        self.tls_lock = threading.Lock()
        self._frames: list[bytes] = []
        self._rest: bytes | memoryview = b""

    @property
    def unsent(self) -> int:
        """Bytes that wait in this process."""
        return self.size + len(self._rest)

    def put(self, frame: bytes) -> None:
        """Queue a frame."""
        self._frames.append(frame)
        self.size += len(frame)

    def push(self, sock: socket.socket) -> bool:
        """Send what there is room for, without waiting; whether that was all. Raises OSError when it is over."""
        try:
            while True:
                if not self._rest:
                    frames = self._frames
                    if not frames:
                        return True
                    data = frames[0] if len(frames) == 1 else b"".join(frames)
                    frames.clear()
                    self.size = 0
                    if self.tags is not None:
                        data = seal(self.tags, data)
                    self._rest = data if self.tls is None else self._encrypt(self.tls, data)
                sent = sock.send(self._rest, socket.MSG_DONTWAIT)
                self._rest = b"" if sent == len(self._rest) else memoryview(self._rest)[sent:]
        except BlockingIOError:
            return False

    def _encrypt(self, tls: TlsStream, data: bytes) -> bytes:
        with self.tls_lock:
            tls.send(data)
            return tls.outgoing()

    def clear(self) -> None:
        """Nothing will be sent any more."""
        self._frames.clear()
        self.size, self._rest = 0, b""

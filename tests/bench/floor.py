"""The floor of an ask: two processes that send each other frames of the same size over plain blocking sockets."""

from __future__ import annotations

import os
import secrets
import socket
import time
from pathlib import Path

FRAME = 144  # header, an argument of 100 bytes, and what else is in an ASK frame


class Floor:
    """A process that sends back what it gets.

    Args:
        kind: ``uds`` or ``tcp``.
        directory: where the Unix socket goes.
    """

    def __init__(self, kind: str, directory: Path) -> None:
        listener = socket.socket(socket.AF_UNIX if kind == "uds" else socket.AF_INET)
        listener.bind(str(directory / f"floor-{secrets.token_hex(4)}") if kind == "uds" else ("127.0.0.1", 0))
        listener.listen()
        self.pid = os.fork()
        if self.pid == 0:
            peer, _ = listener.accept()
            _no_delay(peer)
            while data := peer.recv(65536):
                peer.sendall(data)
            os._exit(0)
        self._sock = socket.socket(listener.family)
        self._sock.connect(listener.getsockname())
        _no_delay(self._sock)
        listener.close()

    def times(self, count: int) -> list[float]:
        """Seconds that each of *count* round trips took."""
        frame, sock, times = b"x" * FRAME, self._sock, []
        for _ in range(count):
            began = time.perf_counter()
            sock.sendall(frame)
            received = 0
            while received < FRAME:
                received += len(sock.recv(65536))
            times.append(time.perf_counter() - began)
        return times

    def close(self) -> None:
        """End the process."""
        self._sock.shutdown(socket.SHUT_RDWR)  # processes forked since have copies of it
        self._sock.close()
        os.waitpid(self.pid, 0)


def _no_delay(sock: socket.socket) -> None:
    if sock.family == socket.AF_INET:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

"""Sockets without asyncio's transports: who watches them.

A transport and its protocol cost asyncio some 20 us for each message and side. Here a connection reads and writes its
non-blocking socket itself. On an actor's loop (`actors.process.direct_loop`) it is called straight from where
that loop waits, on any other loop through `add_reader` and `add_writer`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

from actors.process.direct_loop import DirectLoop

READ_SIZE = 64 * 1024
LARGE_READ_SIZE = 256 * 1024
Callback = Callable[[], object]


class Poller:
    """Calls back when a descriptor can be read or written.

    Args:
        loop: the loop of the thread that it is used in.
    """

    __slots__ = ("add_reader", "add_writer", "remove_reader", "remove_writer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        if isinstance(loop, DirectLoop):
            self.add_reader: Callable[[int, Callback], object] = loop.add_direct_reader
            self.add_writer: Callable[[int, Callback], object] = loop.add_direct_writer
            self.remove_reader: Callable[[int], object] = loop.remove_direct_reader
            self.remove_writer: Callable[[int], object] = loop.remove_direct_writer
        else:
            self.add_reader = loop.add_reader
            self.add_writer = loop.add_writer
            self.remove_reader = loop.remove_reader
            self.remove_writer = loop.remove_writer


def no_delay(sock: socket.socket) -> None:
    """Send each small frame at once (TCP; a Unix socket does so anyway)."""
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def finish(sock: socket.socket) -> None:
    """Tell the peer that no more will come; what it still sends can be read."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_WR)

"""What a thread's connection has received: from pieces to messages, in a way that may be interrupted anywhere."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from typing import Any

from actors.errors import FrameTooLarge, RecipientUnreachable
from actors.rpc import wire
from actors.rpc.tls import TlsStream
from actors.rpc.transport import LARGE_READ_SIZE, READ_SIZE

_LENGTH = struct.Struct(">I")


class Intake:
    """Reads a socket and hands on each message. Used by the connection's reader only, whoever that is.

    A KeyboardInterrupt may end any step, and the next reader goes on: a piece is stored by the same C call that reads
    it, and a message may be handed on twice.

    Args:
        maximum: largest body of a frame, in bytes.
        handle: called with each message.
    """

    def __init__(self, maximum: int, handle: Callable[[list[Any]], None]) -> None:
        self._maximum = maximum
        self._handle = handle
        self._tls: TlsStream | None = None
        self._tls_lock = threading.Lock()
        self._encrypted: list[bytes] = []
        self._pieces: list[bytes] = []
        self._read_size = (READ_SIZE,)

    def decrypt_with(self, tls: TlsStream, lock: threading.Lock) -> None:
        """The connection is encrypted; *lock* guards *tls*, which the senders use too."""
        self._tls, self._tls_lock = tls, lock

    @property
    def waits(self) -> bool:
        """Whether something has been received that is not (known to be) handled."""
        return bool(self._pieces or self._encrypted)

    def receive(self, sock: socket.socket, flags: tuple[int]) -> None:
        """Read once, and handle what is complete.

        Args:
            sock: a blocking socket.
            flags: of `socket.recv`, in a tuple.

        Raises:
            BlockingIOError: there was nothing.
            OSError, ActorError: the connection is over; `RecipientUnreachable` when the peer has closed it.
        """
        # The interpreter looks for signals between calls: with ``data = sock.recv(...)`` an interrupt could come when
        # the bytes are read and not yet stored.
        (self._pieces if self._tls is None else self._encrypted).extend(map(sock.recv, self._read_size, flags))
        self.decode()

    def decode(self) -> None:
        """Handle what is complete; raises as `receive`."""
        if self._tls is not None:
            self._decrypt(self._tls)
        pieces = self._pieces
        if not pieces:
            return
        if not pieces[-1]:
            raise RecipientUnreachable("the connection broke")
        if len(pieces) > 1:
            if len(pieces[0]) >= wire.HEADER_SIZE and sum(map(len, pieces)) < self._frame_end(pieces[0], 0):
                return
            pieces[:] = [b"".join(pieces)]
        data, position = pieces[0], 0
        end = len(data)
        while end - position >= wire.HEADER_SIZE:
            stop = self._frame_end(data, position)
            if stop > end:
                break
            self._handle(wire.parse(data[position + wire.HEADER_SIZE : stop]))
            position = stop
        self._read_size = (LARGE_READ_SIZE if end >= READ_SIZE else READ_SIZE,)
        if position == end:
            pieces.clear()
        elif position:
            pieces[:] = [data[position:]]

    def _decrypt(self, tls: TlsStream) -> None:
        """Not a step that may be done twice: whoever is interrupted in it has to end the connection."""
        while self._encrypted:
            data = self._encrypted.pop(0)
            if data:
                with self._tls_lock:
                    data = tls.receive(data)
                if not data:
                    continue
            self._pieces.append(data)

    @property
    def repeatable(self) -> bool:
        """Whether an interrupted `receive` leaves everything in order."""
        return self._tls is None

    def _frame_end(self, data: bytes, position: int) -> int:
        (size,) = _LENGTH.unpack_from(data, position)
        if size > self._maximum:
            raise FrameTooLarge(f"the peer announced a frame of {size} bytes, over {self._maximum}")
        return position + wire.HEADER_SIZE + int(size)

"""What a thread's connection has received: from pieces to messages, in a way that may be interrupted anywhere."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any

from actors.errors import FrameTooLarge, RecipientUnreachable
from actors.rpc import wire
from actors.rpc.records import Tags, unseal
from actors.rpc.tls import TlsStream
from actors.rpc.transport import LARGE_READ_SIZE, READ_SIZE

_LENGTH = struct.Struct(">I")


_Checked = tuple[Tags, Sequence[bytes], int]
"""How far the records of a connection have been checked: the tags of those that come next, what came in those before
and is not handled yet, and how many bytes the next one has at least."""


class Intake:
    """Reads a socket and hands on each message. Used by the connection's reader only, whoever that is.

    A KeyboardInterrupt may end any step, and the next reader goes on: a piece is stored by the same C call that reads
    it, a record is taken off by the same one that notes that it was checked, and a message may be handed on twice.

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
        self._records: list[Any] = []
        """Pieces received on a connection with records: `_Checked`, then those not checked yet."""
        self._pieces: list[bytes] = []
        self._inbox = self._pieces
        self._read_size = (READ_SIZE,)

    def decrypt_with(self, tls: TlsStream, lock: threading.Lock) -> None:
        """The connection is encrypted; *lock* guards *tls*, which the senders use too."""
        self._tls, self._tls_lock = tls, lock
        self._inbox = self._encrypted

    def check_with(self, tags: Tags) -> None:
        """The connection carries records with these tags."""
        self._records.append((tags, (), 0))
        self._inbox = self._records

    @property
    def waits(self) -> bool:
        """Whether something has been received that is not (known to be) handled."""
        records = self._records
        return bool(self._pieces or self._encrypted or (records and (len(records) > 1 or records[0][1])))

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
        self._inbox.extend(map(sock.recv, self._read_size, flags))
        self.decode()

    def decode(self) -> None:
        """Handle what is complete; raises as `receive`."""
        if self._records:
            self._decode_records(self._records)
            return
        if self._tls is not None:
            self._decrypt(self._tls)
        if self._pieces:
            self._pieces[:] = self._take_frames(self._pieces)

    def _take_frames(self, pieces: Sequence[bytes]) -> Sequence[bytes]:
        """Handle the complete frames of *pieces*, and return what is left of them."""
        if not pieces[-1]:
            raise RecipientUnreachable("the connection broke")
        data = pieces[0]
        if len(pieces) > 1:
            if len(data) >= wire.HEADER_SIZE and sum(map(len, pieces)) < self._frame_end(data, 0):
                return pieces
            data = b"".join(pieces)
        position, end = 0, len(data)
        while end - position >= wire.HEADER_SIZE:
            stop = self._frame_end(data, position)
            if stop > end:
                break
            self._handle(wire.parse(data[position + wire.HEADER_SIZE : stop]))
            position = stop
        self._read_size = (LARGE_READ_SIZE if end >= READ_SIZE else READ_SIZE,)
        if position == end:
            return ()
        return (data[position:] if position else data,)

    def _decode_records(self, records: list[Any]) -> None:
        """Check the records that have come, and handle what is complete in them; each step may be done twice."""
        checked: _Checked = records[0]
        tags, pieces, needed = checked
        if len(records) > 1:
            data = records[-1]
            if not data:
                raise RecipientUnreachable("the connection broke")
            if len(records) > 2:
                if sum(map(len, records[1:])) < needed:
                    return
                data = b"".join(records[1:])
            tags = tags.copy()
            payloads, used, needed = unseal(tags, data)
            left = (data[used:],) if used < len(data) else ()
            pieces = (*pieces, *payloads) if pieces else payloads
            if pieces:
                pieces = self._take_frames(pieces)
            records[:] = ((tags, pieces, needed), *left)
        elif pieces:
            records[0] = (tags, self._take_frames(pieces), needed)

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

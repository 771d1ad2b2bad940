"""A non-blocking socket on an event loop: reads, batched writes with a backlog, and pauses, for `connection`."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque

from actors.errors import ActorError
from actors.rpc.records import RecordReader, Tags, seal
from actors.rpc.tls import TlsStream
from actors.rpc.transport import LARGE_READ_SIZE, READ_SIZE, Poller, finish, no_delay

BATCH_SIZE = 64 * 1024
HIGH_WATER, LOW_WATER = 64 * 1024, 16 * 1024


class Stream:
    """One connection's bytes. All that is sent while one read is handled leaves in one write.

    Args:
        loop: the loop that it lives on.
        poller: watches the socket.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, poller: Poller) -> None:
        self.loop = loop
        self.sock: socket.socket | None = None
        self.paused = False
        self._poller = poller
        self._fd = -1
        self._tls: TlsStream | None = None
        self._sends: Tags | None = None
        self._records: RecordReader | None = None
        self._read_size = READ_SIZE
        self._out: list[bytes] = []
        self._out_size = 0
        self._corked = False
        self._may_flush = False
        self._backlog: deque[bytes | memoryview] = deque()
        self._backlog_size = 0
        self._write_full = False
        self._ending = False
        self._dismissed = False

    # ------------------------------------------------------------------ what a connection makes of it

    def started(self) -> None:
        """The socket is connected (with TLS, what is sent waits until that is agreed)."""

    def received(self, data: bytes) -> None:
        """Bytes came."""
        raise NotImplementedError

    def resumed(self) -> None:
        """The peer may be served again: go on with what was read before the pause, then `pause` is looked at again."""

    def lost(self, error: OSError | None) -> None:
        """The connection is gone; None for an ordinary end."""
        raise NotImplementedError

    def fail(self, error: ActorError) -> None:
        """Close the connection because of *error*."""
        raise NotImplementedError

    # ------------------------------------------------------------------ the beginning and the end

    def attach(self, sock: socket.socket, tls: TlsStream | None) -> None:
        """Take over a connected, non-blocking socket, with TLS over it or without."""
        no_delay(sock)
        self.sock, self._fd = sock, sock.fileno()
        self._receive, self._transmit = sock.recv, sock.send
        self._tls = tls
        self._poller.add_reader(self._fd, self._readable)
        if tls is not None:
            self._put(tls.outgoing())
        self.started()

    def end(self) -> None:
        """Write what is queued, then close."""
        self.flush()
        self._ending = True
        if self.sock is not None and not self._backlog:
            self.lost(None)

    def drop(self) -> None:
        """Close now."""
        if self.sock is None:
            return
        self._poller.remove_reader(self._fd)
        self._poller.remove_writer(self._fd)
        with contextlib.suppress(OSError):
            self.sock.close()
        self.sock = None
        self._may_flush = False
        self._out.clear()
        self._backlog.clear()
        self._out_size = self._backlog_size = 0

    def dismiss(self) -> None:
        """Write what is queued and say that no more will come; what the peer still sends is read and thrown away.

        Closing with unread input would reset the connection, and could take our last words with it.
        """
        self.flush()
        if self.sock is None:
            return
        self._ending = self._dismissed = True
        self._poller.remove_reader(self._fd)
        self._poller.add_reader(self._fd, self._discard)
        if not self._backlog:
            finish(self.sock)

    def _discard(self) -> None:
        try:
            if self._receive(READ_SIZE):
                return
        except BlockingIOError:
            return
        except OSError as error:
            self.lost(error)
            return
        self.lost(None)

    # ------------------------------------------------------------------ reading

    def _readable(self) -> None:
        try:
            data = self._receive(self._read_size)
        except BlockingIOError:
            return
        except OSError as error:
            self.lost(error)
            return
        if not data:
            self.lost(None)
            return
        if len(data) == self._read_size:
            self._read_size = LARGE_READ_SIZE
        corked, self._corked = self._corked, True
        try:
            if self._tls is not None:
                data = self._decrypt(self._tls, data)
            if data:
                self.received(data)
        except BaseException:
            self.lost(None)  # half a message may have been taken: nothing after it can be trusted
            raise
        finally:
            self._corked = corked
        if self._out:
            self.flush()

    def _decrypt(self, tls: TlsStream, data: bytes) -> bytes:
        try:
            plain = tls.receive(data)
        except ActorError as error:
            self._put(tls.outgoing())  # an alert: it tells the peer why
            self.fail(error)
            return b""
        self._put(tls.outgoing())
        return plain

    def set_paused(self, paused: bool) -> None:
        """Stop or go on reading (and serving what has been read already)."""
        if paused == self.paused or self.sock is None or self._ending:
            return
        self.paused = paused
        if paused:
            self._poller.remove_reader(self._fd)
            return
        corked, self._corked = self._corked, True
        try:
            self.resumed()
        finally:
            self._corked = corked
        if self._out:
            self.flush()
        if self.sock is not None and not self.paused and not self._ending:
            self._poller.add_reader(self._fd, self._readable)

    # ------------------------------------------------------------------ writing

    @property
    def unsent(self) -> int:
        """Bytes that wait in this process."""
        return self._out_size + self._backlog_size

    def send(self, frame: bytes) -> None:
        """Queue a frame. The first of a turn of the loop leaves at once, for somebody may wait for it; the others of
        that turn together, and so do those sent while a read is handled."""
        self._out.append(frame)
        self._out_size += len(frame)
        if self._corked:
            if self._out_size > BATCH_SIZE:
                self.flush()
        else:
            self._corked = True
            self.loop.call_soon(self._uncork)
            self.flush()

    def _uncork(self) -> None:
        self._corked = False
        self.flush()

    def flush(self) -> None:
        """Hand what is queued to the kernel, or to the backlog."""
        if self._out and self._may_flush:
            out, self._out, self._out_size = self._out, [], 0
            data = out[0] if len(out) == 1 else b"".join(out)
            self.write(data if self._sends is None else seal(self._sends, data))

    def write(self, data: bytes) -> None:
        """Send *data* after all that was sent before."""
        if self._tls is None:
            self._put(data)
        else:
            self._tls.send(data)
            self._put(self._tls.outgoing())

    def _put(self, data: bytes) -> None:
        if self.sock is None or not data:
            return
        if not self._backlog:
            try:
                sent = self._transmit(data)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                self.lost(error)
                return
            if sent == len(data):
                return
            self._backlog.append(memoryview(data)[sent:])
            self._backlog_size = len(data) - sent
            self._poller.add_writer(self._fd, self._writable)
        else:
            self._backlog.append(data)
            self._backlog_size += len(data)
        if self._backlog_size > HIGH_WATER and not self._write_full:
            self._write_full = True
            self.pressure_changed()

    def _writable(self) -> None:
        while self._backlog:
            piece = self._backlog[0]
            try:
                sent = self._transmit(piece)
            except BlockingIOError:
                break
            except OSError as error:
                self.lost(error)
                return
            self._backlog_size -= sent
            if sent < len(piece):
                self._backlog[0] = memoryview(piece)[sent:]
                break
            self._backlog.popleft()
        if not self._backlog and self.sock is not None:
            self._poller.remove_writer(self._fd)
            if self._dismissed:
                finish(self.sock)
            elif self._ending:
                self.lost(None)
            if self._ending:
                return
        if self._write_full and self._backlog_size <= LOW_WATER:
            self._write_full = False
            self.pressure_changed()

    def pressure_changed(self) -> None:
        """The backlog passed its high water, or fell under its low water."""

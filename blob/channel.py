"""Bulk bytes over a blocking socket: what the server's threads and the client share.

Content moves through the few buffers of `blob.hashing` or by ``sendfile``; no blob is ever whole in memory. Time limits
are the kernel's (``SO_RCVTIMEO``), which saves the extra system call that a Python time-out costs per read.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from collections.abc import Callable

from blob.errors import BlobConnectionError, BlobTimeout
from blob.hashing import CHUNK, Hasher, HashingBuffers

MINIMUM_RATE = 16 * 1024


class Channel:
    """One connection.

    Args:
        sock: a connected stream socket; the channel makes it blocking and sets its time limits.
        timeout: seconds without a single byte after which the peer is given up. A transfer must also average 16 KiB/s
            once it has lasted that long, so that a peer that drips bytes is given up too.

    Every method raises BlobTimeout for a slow peer and BlobConnectionError for a lost one.

    Attributes:
        unread: bytes of a content that `receive_to_file` left on the wire because the file could not be written.
    """

    def __init__(self, sock: socket.socket, timeout: float) -> None:
        self.sock = sock
        self.unread = 0
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A host that vanished answers no probe: noticed within 30 s even while waiting patiently for a response.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
        self.set_timeout(timeout)

    def set_timeout(self, timeout: float) -> None:
        """Change the seconds without a byte after which the peer is given up."""
        self._timeout = timeout
        limit = struct.pack("@ll", int(timeout), int(timeout % 1 * 1_000_000))
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def send(self, data: bytes) -> None:
        """Send all of *data* (a frame, not bulk)."""
        try:
            self.sock.sendall(data)
        except OSError as error:
            raise _translate(error, self._timeout) from error

    def receive(self, size: int, patience: float = 0.0) -> bytes:
        """Return exactly *size* bytes (a frame, or a content that is meant for memory).

        Args:
            patience: seconds to wait for the first byte, if more than the channel's time-out.
        """
        deadline = time.monotonic() + patience if patience else 0.0
        while True:
            try:
                data = self.sock.recv(size, socket.MSG_WAITALL)
                break
            except OSError as error:
                if error.errno != errno.EAGAIN or time.monotonic() >= deadline:
                    raise _translate(error, max(patience, self._timeout)) from error
        if len(data) == size:
            return data
        whole = bytearray(size)
        whole[: len(data)] = data
        self._fill(memoryview(whole), len(data), _Pace(self._timeout))
        return bytes(whole)

    def receive_to_file(
        self, descriptor: int, length: int, hasher: Hasher, progress: Callable[[int], None] | None = None
    ) -> None:
        """Write the next *length* bytes to *descriptor* and into *hasher*; *progress* is told each piece's size.

        Raises:
            OSError: the file cannot be written; `unread` bytes of the content are then still on the wire.
        """
        pace = _Pace(self._timeout)
        self.unread = length
        with HashingBuffers(hasher, length) as buffers:
            while self.unread:
                buffer = buffers.take()
                got = self._receive_into(buffer[: min(self.unread, CHUNK)])
                self.unread -= got
                buffers.give(buffer, got)
                write_all(descriptor, buffer[:got])
                if progress is not None:
                    progress(got)
                pace.check(got)

    def discard(self, length: int) -> None:
        """Read and drop the next *length* bytes, which keeps the connection in step after a refusal."""
        pace = _Pace(self._timeout)
        scratch = memoryview(bytearray(min(length, CHUNK)))
        while length:
            got = self._receive_into(scratch[: min(length, CHUNK)])
            length -= got
            pace.check(got)

    def send_from(
        self, read_into: Callable[[memoryview], int], length: int, hasher: Hasher, progress: Callable[[int], None]
    ) -> int:
        """Send *length* bytes of a source through *hasher*; return how many there were if the source ends early."""
        pace = _Pace(self._timeout)
        sent = 0
        with HashingBuffers(hasher, length) as buffers:
            while sent < length:
                buffer = buffers.take()
                size = read_into(buffer[: min(length - sent, CHUNK)])
                if not size:
                    break
                buffers.give(buffer, size)
                try:
                    self.sock.sendall(buffer[:size])
                except OSError as error:
                    raise _translate(error, self._timeout) from error
                sent += size
                progress(size)
                pace.check(size)
        return sent

    def send_file(self, descriptor: int, offset: int, length: int) -> None:
        """Send *length* bytes of a file from *offset* on, with ``sendfile``: they never enter this process."""
        pace = _Pace(self._timeout)
        target = self.sock.fileno()
        while length:
            try:
                sent = os.sendfile(target, descriptor, offset, min(length, CHUNK))
            except OSError as error:
                raise _translate(error, self._timeout) from error
            if not sent:
                raise BlobConnectionError("a blob's file became shorter while it was sent")
            offset += sent
            length -= sent
            pace.check(sent)

    def shutdown(self) -> None:
        """Wake whoever waits on the socket, in any thread; they see the connection as lost."""
        try:
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            # The peer was faster, or close() was: there is nothing left to wake.
            if error.errno not in (errno.ENOTCONN, errno.EBADF):
                raise

    def close(self) -> None:
        """Close the socket."""
        self.sock.close()

    def _receive_into(self, view: memoryview) -> int:
        try:
            got = self.sock.recv_into(view, 0, socket.MSG_WAITALL)
        except OSError as error:
            raise _translate(error, self._timeout) from error
        if not got:
            raise BlobConnectionError("the peer closed the connection")
        return got

    def _fill(self, view: memoryview, filled: int, pace: _Pace) -> None:
        while filled < len(view):
            got = self._receive_into(view[filled:])
            filled += got
            pace.check(got)


class _Pace:
    """Gives a peer up whose transfer has lasted *timeout* seconds and averages less than MINIMUM_RATE."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._started = time.monotonic()
        self._moved = 0

    def check(self, moved: int) -> None:
        self._moved += moved
        elapsed = time.monotonic() - self._started
        if elapsed > self._timeout and self._moved < elapsed * MINIMUM_RATE:
            raise BlobTimeout(f"the peer moved only {self._moved} bytes in {elapsed:.0f} s")


def write_all(descriptor: int, data: memoryview) -> None:
    """Write all of *data*: a plain write may stop short when a disk fills up."""
    while data:
        data = data[os.write(descriptor, data) :]


def _translate(error: OSError, timeout: float) -> BlobConnectionError:
    if error.errno in (errno.EAGAIN, errno.ETIMEDOUT):
        return BlobTimeout(f"the peer moved no byte for {timeout:g} s")
    return BlobConnectionError(f"the connection broke: {error.strerror or error}")

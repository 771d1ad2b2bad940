"""Bulk bytes over a blocking socket, for the server's threads and the client.

Content moves through the few buffers of `blob.hashing` or by ``sendfile``; no blob is ever completely in memory. The
kernel enforces the timeouts (``SO_RCVTIMEO``), which saves the extra system call of a Python timeout per read. Under
TLS (`blob.tls_channel`) both differ.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from collections.abc import Callable

from actors.rpc.wire import TAG_SIZE, Tags
from blob.errors import BlobConnectionError, BlobConnectionTampered, BlobTimeout
from blob.files import Pipe, WriteBehind, write_all
from blob.hashing import CHUNK, FileHasher, Hasher, HashingBuffers

MINIMUM_RATE = 16 * 1024
# One system call's worth: with 512 KiB the sender was woken so often that downloads took 1.3 times as long.
SENDFILE_CHUNK = 4 * 1024 * 1024


class Channel:
    """One connection.

    Args:
        sock: a connected stream socket; the channel makes it blocking and sets its timeouts.
        timeout: seconds without a byte after which the channel gives the peer up. A transfer that has lasted that long
            must also average 16 KiB/s, so that the channel gives up a peer that sends single bytes too.

    Every method raises BlobTimeout for a slow peer and BlobConnectionError for a lost one.

    Attributes:
        raw: whether the socket carries the content itself, so that messages need tags.
        tag_size: additional bytes of a message on the socket, for its tag.
        unread: bytes of a content that `receive_content` has left on the wire because they could not be written.
    """

    raw = True

    def __init__(self, sock: socket.socket, timeout: float) -> None:
        self.sock = sock
        self.unread = 0
        self.tag_size = 0
        self._tags: tuple[Tags, Tags] | None = None
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A host that vanished answers no probe: noticed within 30 s, even during a long wait for a response.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
        self.set_timeout(timeout)

    def set_timeout(self, timeout: float) -> None:
        """Set the seconds without a byte after which the channel gives the peer up."""
        self.timeout = timeout
        limit = struct.pack("@ll", int(timeout), int(timeout % 1 * 1_000_000))
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def tag_with(self, sends: Tags, receives: Tags) -> None:
        """Tag each message from now on. Contents need no tag, because a message carries their digest."""
        self._tags = (sends, receives)
        self.tag_size = TAG_SIZE

    def sealed(self, message: bytes) -> bytes:
        """Return the bytes to send for the next message."""
        return message if self._tags is None else message + self._tags[0].next(message)

    def unsealed(self, data: bytes) -> bytes:
        """Return the next message, which came as *data*.

        Raises:
            BlobConnectionTampered: the peer has not sent it on this connection.
        """
        if self._tags is None:
            return data
        message, tag = data[:-TAG_SIZE], data[-TAG_SIZE:]
        if not self._tags[1].fits(message, tag):
            raise BlobConnectionTampered("bytes came that the peer has not sent there (their tag is wrong)")
        return message

    def send_message(self, message: bytes) -> None:
        """Send a message of the protocol."""
        self.send(self.sealed(message))

    def receive_message(self, size: int, patience: float = 0.0) -> bytes:
        """Return the next message, of *size* bytes; *patience* as in `receive`, raises as `unsealed`."""
        return self.unsealed(self.receive(size + self.tag_size, patience))

    def dismiss(self, last: bytes) -> None:
        """Send the *last* bytes and wait for the peer to close. Closing with unread input could lose them.

        What the peer still sends is dropped, up to a chunk, and for as long as the timeout.
        """
        self.send(last)
        left, deadline = CHUNK, time.monotonic() + self.timeout
        try:
            self.sock.shutdown(socket.SHUT_WR)
            while left > 0 and time.monotonic() < deadline and (data := self._receive_some(left)):
                left -= len(data)
        except OSError as error:
            raise translate(error, self.timeout) from error

    def send(self, data: bytes) -> None:
        """Send all of *data* (a frame, not bulk)."""
        try:
            self.sock.sendall(data)
        except OSError as error:
            raise translate(error, self.timeout) from error

    def receive(self, size: int, patience: float = 0.0) -> bytes:
        """Return exactly *size* bytes (a frame, or a content that is meant for memory).

        Args:
            patience: seconds to wait for the first byte, if more than the channel's timeout.
        """
        deadline = time.monotonic() + patience if patience else 0.0
        while True:
            try:
                data = self._receive_some(size)
                break
            except OSError as error:
                if not is_timeout(error) or time.monotonic() >= deadline:
                    raise translate(error, max(patience, self.timeout)) from error
        if len(data) == size:
            return data
        whole = bytearray(size)
        whole[: len(data)] = data
        self._fill(memoryview(whole), len(data), Pace(self.timeout))
        return bytes(whole)

    def receive_content(
        self,
        write: Callable[[memoryview], object],
        length: int,
        hasher: Hasher,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """Pass the next *length* bytes, piece by piece, to *write* and *hasher*, and their sizes to *progress*.

        When the connection breaks, exactly the written bytes have been hashed.

        Raises:
            OSError: *write* failed; `unread` bytes of the content are then still on the wire.
        """
        pace = Pace(self.timeout)
        self.unread = length
        with HashingBuffers(hasher, length) as buffers:
            while self.unread:
                buffer = buffers.take()
                got = self._receive_into(buffer[: min(self.unread, CHUNK)])
                self.unread -= got
                buffers.give(buffer, got)
                write(buffer[:got])
                if progress is not None:
                    progress(got)
                pace.check(got)

    def receive_to_file(
        self,
        descriptor: int,
        length: int,
        hasher: Hasher,
        progress: Callable[[int], None] | None = None,
        *,
        durable: bool = False,
    ) -> None:
        """Write the next *length* bytes to a file, open for reading and writing, at its present offset.

        It works like `receive_content`, but this process reads a large content only to hash it.

        Args:
            durable: whether an ``fsync`` of the file follows.
        """
        behind = WriteBehind(descriptor, durable=durable)
        hashing = FileHasher.begin(descriptor, behind.end, length, hasher) if self.raw else None
        if hashing is None:

            def write(data: memoryview) -> None:
                write_all(descriptor, data)
                behind.wrote(len(data))

            return self.receive_content(write, length, hasher, progress)
        pace = Pace(self.timeout)
        self.unread = length
        with hashing, Pipe() as pipe:
            while self.unread:
                got = self._splice_into(pipe, self.unread)
                self.unread -= got
                pipe.empty(descriptor, got)
                behind.wrote(got)
                hashing.reach(behind.end)
                if progress is not None:
                    progress(got)
                pace.check(got)
        return None

    def discard(self, length: int) -> None:
        """Read and drop the next *length* bytes, which keeps the connection in step after a refusal."""
        pace = Pace(self.timeout)
        scratch = memoryview(bytearray(min(length, CHUNK)))
        while length:
            got = self._receive_into(scratch[: min(length, CHUNK)])
            length -= got
            pace.check(got)

    def send_from(
        self, read_into: Callable[[memoryview], int], length: int, hasher: Hasher, progress: Callable[[int], None]
    ) -> int:
        """Send *length* bytes of a source through *hasher*; return the number sent, which is less if it ends early."""
        pace = Pace(self.timeout)
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
                    raise translate(error, self.timeout) from error
                sent += size
                progress(size)
                pace.check(size)
        return sent

    def send_file(
        self, descriptor: int, offset: int, length: int, progress: Callable[[int], None] | None = None
    ) -> int:
        """Send *length* bytes of a file from *offset* on with ``sendfile``; they never enter this process.

        Returns:
            The number of bytes sent, which is less than *length* if the file ends early.
        """
        start = offset
        pace = Pace(self.timeout)
        target = self.sock.fileno()
        while length:
            try:
                sent = os.sendfile(target, descriptor, offset, min(length, SENDFILE_CHUNK))
            except OSError as error:
                raise translate(error, self.timeout) from error
            if not sent:
                break
            offset += sent
            length -= sent
            if progress is not None:
                progress(sent)
            pace.check(sent)
        return offset - start

    def shutdown(self) -> None:
        """Wake all threads that wait on the socket; they see the connection as lost."""
        try:
            # Not the method of an SSLSocket, which would remove its state while another thread uses it.
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)
        except OSError as error:
            # The peer or close() was faster: no thread is left to wake.
            if error.errno not in (errno.ENOTCONN, errno.EBADF):
                raise

    def close(self) -> None:
        """Close the socket."""
        self.sock.close()

    def _receive_some(self, size: int) -> bytes:
        """Return *size* bytes, or fewer when the connection pauses or ends; raises OSError."""
        return self.sock.recv(size, socket.MSG_WAITALL)

    def _splice_into(self, pipe: Pipe, size: int) -> int:
        try:
            got = pipe.fill(self.sock.fileno(), size)
        except OSError as error:
            raise translate(error, self.timeout) from error
        if not got:
            raise BlobConnectionError("the peer closed the connection")
        return got

    def _receive_into(self, view: memoryview) -> int:
        try:
            got = self.sock.recv_into(view, 0, socket.MSG_WAITALL)
        except OSError as error:
            raise translate(error, self.timeout) from error
        if not got:
            raise BlobConnectionError("the peer closed the connection")
        return got

    def _fill(self, view: memoryview, filled: int, pace: Pace) -> None:
        while filled < len(view):
            got = self._receive_into(view[filled:])
            filled += got
            pace.check(got)


class Pace:
    """Gives up a peer whose transfer has lasted *timeout* seconds and averages less than MINIMUM_RATE."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._started = time.monotonic()
        self._moved = 0

    def check(self, moved: int) -> None:
        """Count *moved* bytes; raises BlobTimeout."""
        self._moved += moved
        elapsed = time.monotonic() - self._started
        if elapsed > self._timeout and self._moved < elapsed * MINIMUM_RATE:
            raise BlobTimeout(f"the peer sent or accepted only {self._moved} bytes in {elapsed:.0f} s")


def is_timeout(error: OSError) -> bool:
    """Return whether the socket's timeout was the reason."""
    return isinstance(error, TimeoutError) or error.errno == errno.EAGAIN


def translate(error: OSError, timeout: float) -> BlobConnectionError:
    """Return the error of this package for an error of a socket."""
    if is_timeout(error):
        return BlobTimeout(f"the peer moved no byte for {timeout:g} s")
    return BlobConnectionError(f"the connection broke: {error.strerror or error}")

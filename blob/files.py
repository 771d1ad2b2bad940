"""Files: durable writes of large ones, and their digests."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os

WRITE_BEHIND = 8 * 1024 * 1024
PIPE_SIZE = 1024 * 1024


class WriteBehind:
    """Makes the kernel write a growing file to the disk every 8 MiB, so that its ``fsync`` has little to do.

    (Measured: uploads of 512 MiB became 1.5 times as fast.) The written data stays in the page cache.

    Args:
        descriptor: the file, written at its present offset.
        durable: whether an ``fsync`` follows; if not, this does nothing.
    """

    def __init__(self, descriptor: int, *, durable: bool) -> None:
        self._descriptor = descriptor
        self._durable = durable
        self._behind = 0
        self.end = os.lseek(descriptor, 0, os.SEEK_CUR)

    def wrote(self, size: int) -> None:
        """Count *size* bytes that were just written."""
        self.end += size
        self._behind += size
        if self._durable and self._behind >= WRITE_BEHIND:
            # This advice does not drop dirty pages; it starts writing them.
            os.posix_fadvise(self._descriptor, self.end - self._behind, self._behind, os.POSIX_FADV_DONTNEED)
            self._behind = 0


class Pipe:
    """Moves bytes from a socket to a file within the kernel (measured: 0.7 of the processor time of copying them).

    A context manager.
    """

    def __enter__(self) -> Pipe:
        self._out, self._in = os.pipe2(os.O_CLOEXEC)
        # Linux limits a user's pages of pipes; beyond the limit this pipe stays at 64 KiB.
        with contextlib.suppress(PermissionError):
            fcntl.fcntl(self._in, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
        return self

    def __exit__(self, *exc_info: object) -> None:
        os.close(self._in)
        os.close(self._out)

    def fill(self, source: int, size: int) -> int:
        """Take at most *size* bytes from a socket, waiting for the first; return their number, 0 at its end."""
        return os.splice(source, self._in, min(size, PIPE_SIZE))

    def empty(self, target: int, size: int) -> None:
        """Write the *size* bytes in the pipe to a file, at its present offset."""
        while size:
            try:
                size -= os.splice(self._out, target, size)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                # The file system does not support splice.
                data = os.read(self._out, size)
                write_all(target, memoryview(data))
                size -= len(data)


def write_all(descriptor: int, data: memoryview) -> None:
    """Write all of *data*; a single write may stop early when a disk fills up."""
    while data:
        data = data[os.write(descriptor, data) :]


def file_digest(descriptor: int) -> bytes:
    """Return the SHA-256 digest of an open file's content."""
    with open(descriptor, "rb", buffering=0, closefd=False) as file:
        file.seek(0)
        return hashlib.file_digest(file, "sha256").digest()

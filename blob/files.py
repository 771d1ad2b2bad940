"""Files: writing large ones so that they are durable, and taking their digest."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os

WRITE_BEHIND = 8 * 1024 * 1024
PIPE_SIZE = 1024 * 1024


class WriteBehind:
    """Has the kernel write a growing file out while it grows, every 8 MiB, so that its ``fsync`` finds little to do.

    (Measured: uploads of 512 MiB became 1.5 times as fast.) What is written stays in the page cache.

    Args:
        descriptor: the file, written from where it stands.
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
            # Pages that are still dirty are not dropped by this advice: their writing is begun.
            os.posix_fadvise(self._descriptor, self.end - self._behind, self._behind, os.POSIX_FADV_DONTNEED)
            self._behind = 0


class Pipe:
    """Moves bytes from a socket to a file within the kernel (measured: in 0.7 of the processor time of copying them).

    A context manager.
    """

    def __enter__(self) -> Pipe:
        self._out, self._in = os.pipe2(os.O_CLOEXEC)
        # A user may own only so many pages of pipes: then this one stays at its 64 KiB.
        with contextlib.suppress(PermissionError):
            fcntl.fcntl(self._in, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
        return self

    def __exit__(self, *exc_info: object) -> None:
        os.close(self._in)
        os.close(self._out)

    def fill(self, source: int, size: int) -> int:
        """Take at most *size* bytes from a socket, waiting for the first; return how many, 0 at its end."""
        return os.splice(source, self._in, min(size, PIPE_SIZE))

    def empty(self, target: int, size: int) -> None:
        """Write the *size* bytes that are in the pipe to a file, from where it stands."""
        while size:
            try:
                size -= os.splice(self._out, target, size)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                # A file system that cannot do it.
                data = os.read(self._out, size)
                write_all(target, memoryview(data))
                size -= len(data)


def write_all(descriptor: int, data: memoryview) -> None:
    """Write all of *data*: a plain write may stop short when a disk fills up."""
    while data:
        data = data[os.write(descriptor, data) :]


def file_digest(descriptor: int) -> bytes:
    """The SHA-256 digest of an open file's content."""
    with open(descriptor, "rb", buffering=0, closefd=False) as file:
        file.seek(0)
        return hashlib.file_digest(file, "sha256").digest()

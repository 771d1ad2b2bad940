"""Files that only their owner may read, written whole or not at all."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from pathlib import Path

LEFT_BEHIND_S = 60.0
"""How old an unlocked temporary file is before it is removed: one that was made just now is not locked yet."""


def write_private(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Replace a file atomically, with mode 0600.

    A reader sees the old content or the new. What an earlier call left beside the file, because its process was
    killed, is removed.

    Args:
        path: the file; its directory is there.
        content: of the file from now on.
        durable: whether the content and its name are on the disk when this returns. False only for what may be lost
            when the machine loses its power, and is written while somebody waits: a disk takes milliseconds.

    Raises:
        OSError: the directory is missing, full or not ours; the old content is untouched.
    """
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            with contextlib.suppress(OSError):  # a file system without locks: then nobody takes it for left behind
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.write(content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
            temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _remove_left_behind(path)
    if durable:
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_left_behind(path: Path) -> None:
    """Remove the temporary files of calls whose process was killed: nobody holds their locks any more."""
    name = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}")
    for found in [entry for entry in os.listdir(path.parent) if name.fullmatch(entry)]:  # noqa: PTH208
        with contextlib.suppress(OSError):  # it is somebody's who is still at it, or another one has removed it
            descriptor = os.open(path.with_name(found), os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if time.time() - os.fstat(descriptor).st_mtime > LEFT_BEHIND_S:
                    path.with_name(found).unlink()
            finally:
                os.close(descriptor)

"""Durable files and directories: whole or not there, for their owner only, on the disk when a call returns.

The one place that knows the order of steps: content to the disk, then the name, then the directory of the name. Every
file that has to survive a kill or a loss of power is written here. What grows over several calls (an upload) or is
a whole tree (a savepoint) is made under another name and gets its own by `rename_durably`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

LEFT_BEHIND_S = 60.0
"""How old an unlocked temporary file is before it is removed: one that was made just now is not locked yet."""

_TEMPORARY = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{8}")


@contextlib.contextmanager
def private_file(path: Path, *, durable: bool = True, replace: bool = True) -> Iterator[BinaryIO]:
    """Write a file in a ``with``, with mode 0600; it appears under its name at the end of the block, whole.

    A reader sees the old content or the new. An error in the block leaves the old content. What an earlier call left
    beside the file, because its process was killed, is removed.

    Args:
        path: the file; its directory is there.
        durable: whether the content and its name are on the disk when this returns. False only for what may be lost
            when the machine loses its power, and is written while somebody waits: a disk takes milliseconds.
        replace: whether a file of that name is replaced. If not, the first writer wins, and the others fail.

    Raises:
        FileExistsError: the file is there, and was not to be replaced.
        OSError: the directory is missing, full or not ours; the old content is untouched.
    """
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            with contextlib.suppress(OSError):  # a file system without locks: then nobody takes it for left behind
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
            if replace:
                temporary.replace(path)
            else:
                path.hardlink_to(temporary)
    finally:
        temporary.unlink(missing_ok=True)
    _remove_left_behind(path)
    if durable:
        sync_directory(path.parent)


def write_private(path: Path, content: bytes, *, durable: bool = True, replace: bool = True) -> None:
    """Write a file at once; see `private_file`."""
    with private_file(path, durable=durable, replace=replace) as file:
        file.write(content)


def name_when_whole(name: str) -> str:
    """Return the name that a temporary file of `private_file` was to get; of any other file its own name."""
    match = _TEMPORARY.fullmatch(name)
    return match["name"] if match else name


def make_private(directory: Path, *, durable: bool = False) -> None:
    """Make a directory, and those above it that are missing, for their owner only.

    Args:
        directory: the directory; one that is there stays as it is.
        durable: whether its name is on the disk when this returns. False for a directory within one that
            `rename_durably` is going to give its name.

    Raises:
        FileExistsError: a file is in its place.
    """
    if not directory.is_dir():
        make_private(directory.parent, durable=durable)
        directory.mkdir(mode=0o700, exist_ok=True)
        if durable:
            sync_directory(directory.parent)


def remove_tree(path: Path) -> None:
    """Remove a directory with all that is in it, or a file; nothing there is fine."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def rename_durably(source: Path, target: Path) -> None:
    """Give a directory its name, for good when this returns: a machine that loses its power finds it there.

    Args:
        source: whose files are on the disk; the names in it, at any depth, are from now on.
        target: its name; the directory that this is in is there.

    Raises:
        OSError: it could not be; then it has its old name.
    """
    sync_directories(source)
    source.rename(target)
    try:
        for parent in {source.parent: None, target.parent: None}:
            sync_directory(parent)
    except OSError:
        target.rename(source)
        raise


def sync_directories(directory: Path) -> None:
    """Make the names in a directory durable, and those in the directories below it."""
    for found, _, _ in os.walk(directory):
        sync_directory(Path(found))


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

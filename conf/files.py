"""Durable files and directories: created atomically, for their owner only, on the disk when a call returns.

Only this module knows the order of steps: content to the disk, then the name, then the directory of the name. It writes
every file that has to survive a kill or a loss of power. A file that grows over several calls (an upload), or a whole
tree (a savepoint), is made under another name and renamed with `rename_durably`.

A file survives a loss of power only if all directories above it do. `make_private` and `rename_durably` sync their
names too, whichever process made them (`sync_names`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

LEFT_BEHIND_S = 60.0
"""Age in seconds at which an unlocked temporary file is removed; a new one may not be locked yet."""

_MOST_REMEMBERED = 10_000
_TEMPORARY_NAMES = 4
"""How many temporary names a file has. Further calls at the same time use random names, which no later call removes."""

_Name = tuple[str, int, int]
"""Path, device and inode of a directory."""

_remembered: set[_Name] = set()
"""Directories whose names this process knows to be on the disk."""

_TEMPORARY = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{8}")


def user_cache(name: str) -> Path:
    """Return a directory of this user on this machine, which all clusters share; it may not exist yet."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if cache.startswith("/") else Path.home() / ".cache") / "understudy" / name


@contextlib.contextmanager
def private_file(path: Path, *, durable: bool = True, replace: bool = True) -> Iterator[BinaryIO]:
    """Write a file in a ``with``, with mode 0600; it appears under its name, complete, at the end of the block.

    A reader sees the old content or the new. An error in the block keeps the old content. The call removes temporary
    files of earlier calls whose process was killed.

    Args:
        path: the file; its directory must exist.
        durable: whether the content and its name are on the disk when this returns. Use False only for files that a
            loss of power may lose, and whose writer has no time to wait: a disk takes milliseconds.
        replace: whether to replace a file of that name. If not, the first writer wins, and the others fail.

    Raises:
        FileExistsError: the file exists, and *replace* is False.
        OSError: the directory is missing, full or not writable; the old content is unchanged.
    """
    temporary, descriptor = _make_temporary(path)
    with os.fdopen(descriptor, "wb") as file:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
            if replace:
                temporary.replace(path)  # from here on the temporary name may be another call's
            else:
                path.hardlink_to(temporary)
                temporary.unlink(missing_ok=True)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    _remove_left_behind(path)
    if durable:
        sync_directory(path.parent)


def write_private(path: Path, content: bytes, *, durable: bool = True, replace: bool = True) -> None:
    """Write a file at once; see `private_file`."""
    with private_file(path, durable=durable, replace=replace) as file:
        file.write(content)


def append_line(path: Path, line: bytes, most_bytes: int, set_aside: Callable[[], object]) -> None:
    """Append a line to a private file that several processes append to. A loss of power may lose the last lines.

    A line that a killed process has cut short gets an end first, so it spoils no other line.

    Args:
        path: the file; it is made if needed, with mode 0600, and its directory with mode 0700.
        line: the line, without its end.
        most_bytes: size beyond which the file is set aside; a single line may be longer.
        set_aside: renames the full file, while this process holds the lock on it.

    Raises:
        OSError: the file cannot be written.
    """
    line += b"\n"
    make_private(path.parent)
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            status = os.fstat(descriptor)
            if not _has_name(path, status):  # another process has set it aside
                continue
            if status.st_size and status.st_size + len(line) > most_bytes:
                set_aside()
                continue
            if status.st_size and os.pread(descriptor, 1, status.st_size - 1) != b"\n":
                line = b"\n" + line
            while line:
                line = line[os.write(descriptor, line) :]
            return
        finally:
            os.close(descriptor)


def _has_name(path: Path, status: os.stat_result) -> bool:
    try:
        named = path.stat(follow_symlinks=False)
    except FileNotFoundError:
        return False
    return (named.st_dev, named.st_ino) == (status.st_dev, status.st_ino)


def name_when_whole(name: str) -> str:
    """Return the final name of a temporary file of `private_file`; for any other file its own name."""
    match = _TEMPORARY.fullmatch(name)
    return match["name"] if match else name


def make_private(directory: Path, *, durable: bool = False, below: Path | None = None) -> None:
    """Make a directory and its missing parents, for their owner only.

    Args:
        directory: the directory; an existing one stays as it is.
        durable: whether its name, and those of the directories above it, are on the disk when this returns. Use False
            for a directory inside one that `rename_durably` will rename.
        below: a parent that has to exist, and is not made again if another process has removed it.

    Raises:
        FileExistsError: a file has that path.
        FileNotFoundError: *below* does not exist.
    """
    if not directory.is_dir():
        if directory == below:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(directory))
        make_private(directory.parent, below=below)
        directory.mkdir(mode=0o700, exist_ok=True)
        _remembered.discard(_name_of(directory.resolve()))  # of a removed directory, whose inode is used again
    if durable:
        sync_names(directory)


def remove_tree(path: Path) -> None:
    """Remove a directory with its contents, or a file, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def rename_durably(source: Path, target: Path) -> None:
    """Rename a directory durably: the new name survives a loss of power.

    Args:
        source: the directory, whose files are on the disk; this call makes the names in it durable, at any depth.
        target: its new path; the parent directory must exist. The names of the directories above it become durable too.

    Raises:
        OSError: the rename failed; the directory has its old name.
    """
    sync_directories(source)
    sync_names(target.parent)
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


def sync_names(*directories: Path) -> None:
    """Make the names of directories durable, and those of all directories above them in the same file system.

    A directory that exists may have been made by a process that was killed, or has not synced it yet. So a name is
    synced even if this call's caller did not make it, but only once in each process.

    Args:
        directories: existing directories.

    Raises:
        OSError: a directory is missing, or the disk failed.
    """
    unsynced: dict[Path, set[_Name]] = {}
    for directory in directories:
        path = directory.resolve()
        while path != path.parent and (name := _name_of(path)) not in _remembered:
            if path.is_mount():
                break
            unsynced.setdefault(path.parent, set()).add(name)
            path = path.parent
    for parent in sorted(unsynced, key=lambda path: len(path.parts)):
        with contextlib.suppress(PermissionError):  # a directory of another user, in which no name is of ours
            sync_directory(parent)
        if len(_remembered) >= _MOST_REMEMBERED:
            _remembered.clear()
        _remembered.update(unsynced[parent])


def _name_of(path: Path) -> _Name:
    status = path.stat()
    return str(path), status.st_dev, status.st_ino


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _temporary_names(path: Path) -> list[Path]:
    """Return the names under which a file is written at first; several, for calls at the same time."""
    return [path.with_name(f".{path.name}.{number:08x}") for number in range(_TEMPORARY_NAMES)]


def _make_temporary(path: Path) -> tuple[Path, int]:
    """Make a temporary file for *path*; return its name and descriptor."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    for temporary in _temporary_names(path):
        with contextlib.suppress(FileExistsError):
            return temporary, os.open(temporary, flags, 0o600)
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    return temporary, os.open(temporary, flags, 0o600)


def _remove_left_behind(path: Path) -> None:
    """Remove the temporary files of calls whose process was killed, which are not locked any more.

    They are looked for by their names: a directory may have ten thousand files, and a list of them takes milliseconds.
    """
    for found in _temporary_names(path):
        with contextlib.suppress(OSError):  # there is none, another process still writes it, or has removed it
            descriptor = os.open(found, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                status = os.fstat(descriptor)
                # The name may be another call's by now. While it is this file's, the lock keeps it so.
                if time.time() - status.st_mtime > LEFT_BEHIND_S and _has_name(found, status):
                    found.unlink()
            finally:
                os.close(descriptor)

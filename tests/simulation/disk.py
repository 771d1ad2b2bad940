"""A simulated file system that loses whatever was not synced, below one path of the real one.

A `Disk` has inodes in memory. Each file and each directory has two states: the one that processes see, and the one that
is on the medium. Only ``fsync`` moves the first to the second, of one file or of the names in one directory. After
`Disk.crash` only the second one is left, and whatever else a real disk might have written by chance:

- A file that was not synced has its old content, its new one, or a torn mixture (`Loss`).
- A name that was made, renamed or removed in a directory that was not synced since is as before, or as after.
- A rename is one step. If a change reaches the medium, so do the earlier changes of the same names. This is all that
  journaling file systems have in common. Some sync more; code that relies on it fails here.

`Files` shows disks to processes as a tree below `ROOT`, each host its own disks. `installed` redirects the functions
of `os`, `io`, `fcntl` and ``open`` for paths below `ROOT` and for the descriptors that were opened there; `pathlib`,
`shutil`, `tempfile` and `glob` are built on those. Everything else goes to the real file system.

Each operation is announced (`Files.before`), and there faults and switches between threads happen. How often the
standard library looks at a path depends on the version of Python. So its looks are announced once for each line of the
program (`Files._is_new`), and one seed has one trace.

What a kill does to a process (`Files.process_ended`) is different from a crash: its locks and descriptors go, and what
it had written stays.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import fcntl
import functools
import glob
import inspect
import io
import itertools
import os
import random
import shutil
import stat
import struct
import sys
import threading
import types
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import PurePath
from typing import Any, NamedTuple

import conf.files
from tests.simulation import library

ROOT = "/simulated"
"""Paths below it are simulated; it must not exist in the real file system."""

_BELOW_ROOT = f"{ROOT}/"
_FIRST_DESCRIPTOR = 1 << 20
_LINKS_FOLLOWED = 40
_USER, _GROUP = os.geteuid(), os.getegid()
_LOCK = "hhqqi"
"""The first fields of the kernel's ``struct flock``: type, whence, start, length, process."""
_SECTOR = 512
_LOOKS = frozenset({"stat", "listdir", "read"})
"""Operations that change nothing."""
_LIBRARY = f"{os.path.dirname(os.__file__)}/"  # noqa: PTH120


class Loss(Enum):
    """How much of what was not synced a crash loses: all of it, nothing, all after a moment, or any part of it."""

    EVERYTHING = "everything"
    NOTHING = "nothing"
    LATEST = "latest"
    ANY = "any"


class Caller(NamedTuple):
    """The process that calls a function of the file system: its host and its process id."""

    host: str
    pid: int


@dataclass(eq=False, slots=True)
class Inode:
    """A file, a directory or a symbolic link.

    Attributes:
        number: unique on its disk.
        mode: as in `os.stat_result`, with the kind.
        data: content of a file, or target of a link, as processes see it.
        on_medium: content of a file after a crash.
        entries: names of a directory, as processes see them.
        names_on_medium: names of a directory after a crash.
        pending: changes of names of a directory that are not on the medium.
        locks: advisory locks of the whole file (``flock``), by their open files; True for an exclusive one.
        byte_locks: locks of single bytes that belong to open files (``F_OFD_SETLK``), as *locks*.
        locked_by: the process with the record lock of the whole file (``F_SETLK``).
    """

    number: int
    mode: int
    mtime_ns: int
    data: bytearray = field(default_factory=bytearray)
    on_medium: bytes = b""
    is_dirty: bool = False
    links: int = 0
    parent: Inode | None = None
    entries: dict[str, Inode] = field(default_factory=dict)
    names_on_medium: dict[str, Inode] = field(default_factory=dict)
    pending: dict[int, _Change] = field(default_factory=dict)
    locks: dict[_Open, bool] = field(default_factory=dict)
    byte_locks: dict[int, dict[_Open, bool]] = field(default_factory=dict)
    locked_by: Caller | None = None

    is_directory: bool = field(init=False)
    is_link: bool = field(init=False)

    def __post_init__(self) -> None:
        self.is_directory, self.is_link = stat.S_ISDIR(self.mode), stat.S_ISLNK(self.mode)


@dataclass(eq=False, slots=True)
class _Change:
    """One step that changed names: the directory, the name, and the inode of that name since (None: removed)."""

    number: int
    names: tuple[tuple[Inode, str, Inode | None], ...]


@dataclass(eq=False, slots=True)
class _Open:
    """An open file or directory, with what `os.open` was given."""

    disk: Disk
    inode: Inode
    path: str
    flags: int
    caller: Caller
    position: int = 0
    is_dead: bool = False
    heirs: dict[Caller, None] = field(default_factory=dict)
    """Other processes that have a copy of the descriptor."""
    was_left: bool = False
    """Whether the process that opened it has closed its copy, or has ended."""


class Disk:
    """One file system.

    Args:
        name: for errors and for traces.
        clock: returns the time of changes, in nanoseconds since 1970.
        source: of what a crash loses, and of errors.
        capacity: in bytes of file content; None for no limit.

    Attributes:
        is_full: whether nothing more can be written or created.
        error_rates: probabilities with which an operation fails with EIO: ``read``, ``write``, ``sync``,
            ``remove``.
        crashes: how often it has lost what was not synced.
        moves: how often a name of a directory or link has changed.
    """

    def __init__(
        self,
        name: str,
        *,
        clock: Callable[[], int] = lambda: 0,
        source: random.Random | None = None,
        capacity: int | None = None,
    ) -> None:
        self.name = name
        self.capacity = capacity
        self.is_full = False
        self.error_rates: dict[str, float] = {}
        self.crashes = 0
        self.moves = 0
        self._clock = clock
        self._random = source or random.Random(0)
        self._numbers = itertools.count(2)
        self._changes: dict[int, _Change] = {}
        self._change_numbers = itertools.count()
        self._used = 0
        self.root = self._new(stat.S_IFDIR | 0o700)
        self.root.parent, self.root.links = self.root, 1
        self.device = zlib.crc32(name.encode())

    # ------------------------------------------------------------------ content

    def _new(self, mode: int) -> Inode:
        return Inode(next(self._numbers), mode, self._clock())

    def may_fail(self, kind: str, path: str) -> None:
        """Raise EIO with the probability that `error_rates` gives this kind of operation."""
        rate = self.error_rates.get(kind, 0.0)
        if rate and self._random.random() < rate:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    def check_room(self, path: str, size: int = 0) -> None:
        """Raise ENOSPC if *size* bytes more do not fit."""
        if self.is_full or (self.capacity is not None and self._used + size > self.capacity):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    @property
    def free(self) -> int:
        """Number of bytes that can still be written."""
        return 0 if self.is_full else (1 << 40 if self.capacity is None else max(self.capacity - self._used, 0))

    def write(self, inode: Inode, at: int, data: bytes) -> None:
        """Change the content of a file that processes see."""
        content, before = inode.data, len(inode.data)
        if at > before:
            content.extend(bytes(at - before))
        content[at : at + len(data)] = data
        self._used += len(content) - before
        self._touched(inode)

    def truncate(self, inode: Inode, size: int) -> None:
        """Cut or extend the content of a file that processes see."""
        before = len(inode.data)
        if size < before:
            del inode.data[size:]
        else:
            inode.data.extend(bytes(size - before))
        self._used += size - before
        self._touched(inode)

    def _touched(self, inode: Inode) -> None:
        inode.is_dirty, inode.mtime_ns = True, self._clock()

    def sync(self, inode: Inode, path: str) -> None:
        """Write the content of a file, or the names in a directory, to the medium."""
        try:
            self.may_fail("sync", path)
        except OSError:
            inode.is_dirty = inode.is_dirty and inode.is_directory
            raise  # as Linux does: the pages count as clean, and are not on the medium
        if inode.is_directory:
            for number in sorted(inode.pending):
                self._settle(number)
        else:
            inode.on_medium, inode.is_dirty = bytes(inode.data), False

    # -------------------------------------------------------------------- names

    def change(self, *names: tuple[Inode, str, Inode | None]) -> None:
        """Change names in one step."""
        change = _Change(next(self._change_numbers), names)
        self._changes[change.number] = change
        for directory, name, inode in names:
            former = directory.entries.pop(name, None)
            if former is not None:
                former.links -= 1
                self._freed(former)
                self.moves += former.is_directory or former.is_link
            if inode is not None:
                directory.entries[name] = inode
                inode.links += 1
                if inode.is_directory:
                    inode.parent = directory
                self.moves += inode.is_directory or inode.is_link
            directory.mtime_ns = self._clock()
            directory.pending[change.number] = change

    def _freed(self, inode: Inode) -> None:
        if not inode.links and not inode.is_directory:
            self._used -= len(inode.data)

    def create(self, directory: Inode, name: str, mode: int) -> Inode:
        """Make a file, directory or link under a new name."""
        inode = self._new(mode)
        self.change((directory, name, inode))
        return inode

    def _settle(self, number: int) -> None:
        """Move a change to the medium, after the earlier changes of the same names."""
        change = self._changes.pop(number, None)
        if change is None:
            return
        keys = {(directory.number, name) for directory, name, _ in change.names}
        for directory, _, _ in change.names:
            for earlier in [key for key in sorted(directory.pending) if key < number]:
                other = directory.pending.get(earlier)
                if other is not None and any((place.number, name) in keys for place, name, _ in other.names):
                    self._settle(earlier)
        for directory, name, inode in change.names:
            directory.pending.pop(number, None)
            if inode is None:
                directory.names_on_medium.pop(name, None)
            else:
                directory.names_on_medium[name] = inode

    # ------------------------------------------------------------------ crashes

    def inherited_locks(self, directory: str) -> list[str]:
        """Return the files in a directory with a lock that a forked process has inherited, and would keep."""
        top: Inode | None = self.root
        for name in directory.split("/"):
            top = None if top is None else top.entries.get(name)
        if top is None:
            return []
        return [name for name, inode in sorted(top.entries.items()) if any(one.heirs for one in inode.locks)]

    def is_on_medium(self, path: str) -> bool:
        """Return whether a name is on the medium, so that a crash may bring it back."""
        inode: Inode | None = self.root
        for name in path.split("/"):
            inode = None if inode is None else inode.names_on_medium.get(name)
        return inode is not None

    def crash(self, loss: Loss | None = None) -> None:
        """Lose what is not on the medium; the caller ends all processes that have used the disk.

        Args:
            loss: how much; None for one that is chosen at random.
        """
        self.crashes += 1
        self.moves += 1
        loss = loss or self._random.choice(list(Loss))
        numbers = sorted(self._changes)
        if loss is Loss.LATEST:
            numbers = numbers[: self._random.randint(0, len(numbers))]
        elif loss is Loss.ANY:
            numbers = [number for number in numbers if self._random.random() < 0.5]
        elif loss is Loss.EVERYTHING:
            numbers = []
        for number in numbers:
            self._settle(number)
        self._changes.clear()
        self._used = 0
        self.root.links = 1
        self._after_crash(self.root, loss, set())

    def _after_crash(self, directory: Inode, loss: Loss, seen: set[int]) -> None:
        directory.pending.clear()
        directory.entries = dict(directory.names_on_medium)
        for name in sorted(directory.entries):
            inode = directory.entries[name]
            if inode.number in seen:
                inode.links += 1
                continue
            seen.add(inode.number)
            inode.links, inode.locked_by = 1, None
            inode.locks.clear()
            inode.byte_locks.clear()
            if inode.is_directory:
                inode.parent = directory
                self._after_crash(inode, loss, seen)
            elif not inode.is_link:
                self._content_after_crash(inode, loss)
                self._used += len(inode.data)

    def _content_after_crash(self, inode: Inode, loss: Loss) -> None:
        if inode.is_dirty:
            old, new = inode.on_medium, bytes(inode.data)
            chosen = loss
            if loss in (Loss.ANY, Loss.LATEST):
                chosen = self._random.choice(list(Loss))
            if chosen is Loss.NOTHING:
                inode.on_medium = new
            elif chosen is Loss.LATEST:  # the first sectors were written, the rest is as before
                cut = self._random.randint(0, len(new) // _SECTOR) * _SECTOR
                inode.on_medium = new[:cut] + old[cut:]
            elif chosen is Loss.ANY:  # the size was written, and part of the sectors
                sectors = range(0, len(new), _SECTOR)
                inode.on_medium = b"".join(
                    new[at : at + _SECTOR]
                    if self._random.random() < 0.5
                    else old[at : at + _SECTOR].ljust(min(_SECTOR, len(new) - at), b"\0")
                    for at in sectors
                )
        inode.data, inode.is_dirty = bytearray(inode.on_medium), False

    def damage(self, inode: Inode) -> bool:
        """Flip one bit of a file, on the medium and for processes; return False for an empty file."""
        if not inode.data:
            return False
        at = self._random.randrange(len(inode.data))
        inode.data[at] ^= 1 << self._random.randrange(8)
        if not inode.is_dirty:
            inode.on_medium = bytes(inode.data)
        return True

    def walk(self, directory: Inode | None = None, prefix: str = "") -> Iterator[tuple[str, Inode]]:
        """Yield all paths below a directory with their inodes, in the order of their names."""
        entries = (directory or self.root).entries
        for name in sorted(entries):
            yield prefix + name, entries[name]
            if entries[name].is_directory:
                yield from self.walk(entries[name], f"{prefix}{name}/")


class _Place(NamedTuple):
    """The place of a path: its disk, its directory, its name there, and its inode if there is one."""

    disk: Disk
    directory: Inode
    name: str
    inode: Inode | None
    path: str


_place: Callable[[tuple[Disk, Inode, str, Inode | None, str]], _Place] = functools.partial(tuple.__new__, _Place)
"""Make a place of a tuple, without a call of Python code."""


class Files:
    """The simulated file systems as processes see them: a directory of `ROOT` for each disk.

    Args:
        disks: by name; a disk is visible on all hosts, unless *of_host* has another one of the name.
        caller: returns the calling process.
        before: called before each operation takes effect, with its name, its path and the disk: for a switch to another
            process, for a delay, or to end a process that was killed. Of the looks that the standard library makes for
            one line of the program, only the first is announced.
        of_host: disks that only one host has, by host and name.
        check_alive: raises what ends the calling process, if that was killed.

    Attributes:
        before: may be replaced; None for no announcements.
        before_lock: called with the path before a byte is locked or unlocked, for a delay.
    """

    def __init__(
        self,
        disks: Mapping[str, Disk],
        caller: Callable[[], Caller] = lambda: Caller("", 0),
        before: Callable[[str, str, Disk], None] | None = None,
        of_host: Mapping[str, Mapping[str, Disk]] | None = None,
        check_alive: Callable[[], None] = lambda: None,
    ) -> None:
        self._disks = dict(disks)
        self._of_host = {} if of_host is None else of_host
        self._caller = caller
        self.before = before
        self.before_lock: Callable[[str], object] = bool
        self._check_alive = check_alive
        self._open: dict[int, _Open] = {}
        self._known: dict[tuple[str, str], tuple[Disk, Inode, int]] = {}
        """Directories that were found, by host and path, with the disk's `moves` at that time."""
        self.names_on_disk: dict[Caller, set[Any]] = {}
        """The synced names that `conf.files` remembers, for each process."""
        self._locked: dict[Inode, None] = {}
        """Files that have had a record lock."""
        self.send_to: Callable[[int, bytes], int] | None = None
        """Sends to a descriptor that is not a file, for `sendfile`; returns how many bytes it took."""
        self._descriptors = itertools.count(_FIRST_DESCRIPTOR)
        self._last_lines: dict[int, tuple[str, int] | None] = {}
        """Line of the program that has announced the last operation, for each thread."""

    # -------------------------------------------------------- hosts and processes

    def process_ended(self, caller: Caller) -> None:
        """Release the locks and descriptors of a process; what its buffers hold is lost, what it wrote stays."""
        for descriptor in [key for key, opened in self._open.items() if _holds(opened, caller)]:
            self._leave(descriptor, caller)
        self.names_on_disk.pop(caller, None)
        for inode in [inode for inode in self._locked if inode.locked_by in (None, caller)]:
            inode.locked_by = None
            del self._locked[inode]

    def current(self) -> Caller:
        """Return the process that calls."""
        return self._caller()

    def inherit(self, descriptor: int, parent: Caller, child: Caller) -> None:
        """Give a process a copy of a descriptor of its parent; locks last until all copies are closed."""
        opened = self._opened(descriptor)
        if _holds(opened, parent):
            opened.heirs[child] = None

    def descriptors_of(self, caller: Caller) -> list[int]:
        """Return the descriptors of a process."""
        return [descriptor for descriptor, opened in self._open.items() if _holds(opened, caller)]

    def _leave(self, descriptor: int, caller: Caller) -> None:
        """Close the copy of one process, and the open file with the last copy."""
        opened = self._open[descriptor]
        if opened.caller == caller:
            opened.was_left = True
        opened.heirs.pop(caller, None)
        if opened.was_left and not opened.heirs:
            opened.is_dead = True
            self._release(descriptor)

    def make_socket(self, path: str) -> None:
        """Create the file of a Unix socket; raises FileExistsError if there is a file of the name."""
        place = self._find(path, follow=False)
        if place.inode is not None:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), place.path)
        place.disk.check_room(place.path)
        place.disk.create(place.directory, place.name, stat.S_IFSOCK | 0o600)

    def crashed(self, disk: Disk, loss: Loss | None = None) -> None:
        """Crash a disk, and invalidate all descriptors of its files."""
        for descriptor in [key for key, opened in self._open.items() if opened.disk is disk]:
            self._open[descriptor].is_dead = True
            self._release(descriptor)
        self.names_on_disk.clear()
        disk.crash(loss)

    def open_files(self, caller: Caller | None = None) -> list[str]:
        """Return the paths of open files, of one process or of all."""
        return [opened.path for opened in self._open.values() if caller in (None, opened.caller)]

    def lock_records(self, path: str, caller: Caller) -> bool:
        """Take the record lock of a whole file for a process, as Java's `FileChannel.tryLock`.

        Returns:
            whether the process has it now.

        Raises:
            FileNotFoundError: there is no such file.
        """
        inode = self._need(path).inode
        assert inode is not None
        if inode.locked_by in (None, caller):
            inode.locked_by = caller
            self._locked[inode] = None
        return inode.locked_by == caller

    def unlock_records(self, path: str, caller: Caller) -> None:
        """Release the record lock of a file, if the process has it."""
        with contextlib.suppress(FileNotFoundError):
            inode = self._need(path).inode
            if inode is not None and inode.locked_by == caller:
                inode.locked_by = None

    def inode_of(self, path: str) -> Inode:
        """Return what a path leads to, without any effect; raises FileNotFoundError."""
        inode = self._need(path).inode
        assert inode is not None
        return inode

    # ------------------------------------------------------------------- lookups

    def handles(self, path: Any, dir_fd: int | None = None) -> bool:
        """Return whether a path or descriptor is simulated."""
        if isinstance(path, int):
            return path >= _FIRST_DESCRIPTOR
        if dir_fd is not None and dir_fd >= _FIRST_DESCRIPTOR:
            return True
        text = path if type(path) is str else _text(path)
        return text.startswith(_BELOW_ROOT) or text == ROOT

    def _mounted(self) -> Mapping[str, Disk]:
        if not self._of_host:
            return self._disks
        return {**self._disks, **self._of_host.get(self._caller().host, {})}

    def _find(self, path: Any, *, follow: bool = True, dir_fd: int | None = None) -> _Place:
        """Resolve a path; the last component may be missing."""
        text = path if type(path) is str else _text(path)
        if dir_fd is not None and not text.startswith("/"):
            opened = self._opened(dir_fd)
            return self._walk(opened.disk, opened.inode, text.split("/"), f"{opened.path}/{text}", follow)
        above, _, last = text.rpartition("/")
        known = self._directory(above)
        if known is not None and last not in ("", ".", ".."):
            inode = known[1].entries.get(last)
            if inode is None or not (inode.is_link and follow):
                return _place((known[0], known[1], last, inode, text))
        name, _, rest = text.removeprefix(ROOT).lstrip("/").partition("/")
        disk = self._mounted().get(name)
        if disk is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), text)
        return self._walk(disk, disk.root, rest.split("/"), text, follow)

    def _directory(self, path: str) -> tuple[Disk, Inode, int] | None:
        """Return the directory of a path, and remember it until a name of a directory or link changes."""
        key = (self._caller().host if self._of_host else "", path)
        known = self._known.get(key)
        if known is not None and known[2] == known[0].moves:
            return known
        name, _, rest = path.removeprefix(ROOT).lstrip("/").partition("/")
        disk = self._mounted().get(name)
        if disk is None:
            return None
        try:
            place = self._walk(disk, disk.root, rest.split("/"), path, follow=True)
        except OSError:
            return None  # the walk along the whole path says why
        if place.inode is None or not place.inode.is_directory or place.disk is not disk:
            return None
        known = self._known[key] = disk, place.inode, disk.moves
        return known

    def _walk(self, disk: Disk, start: Inode, parts: Sequence[str], path: str, follow: bool, depth: int = 0) -> _Place:
        directory, inode, name = start, start, ""
        found: Inode | None
        names = [part for part in parts if part and part != "."]
        for name in names[:-1]:  # the usual case: directories
            found = inode.entries.get(name)
            if found is None or not found.is_directory:
                break
            inode = found
        else:
            if not names:
                return _Place(disk, start, "", start, path)
            name, found = names[-1], inode.entries.get(names[-1])
            if name != ".." and inode.is_directory and not (found is not None and found.is_link and follow):
                return _Place(disk, inode, name, found, path)
        inode = start
        for position, name in enumerate(names):
            if not inode.is_directory:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            directory = inode
            is_last = position == len(names) - 1
            found = inode.parent if name == ".." else inode.entries.get(name)
            if found is None:
                if is_last:
                    return _Place(disk, directory, name, None, path)
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            if found.is_link and (follow or not is_last):
                if depth >= _LINKS_FOLLOWED:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                target, rest = found.data.decode(), names[position + 1 :]
                if target.startswith("/"):
                    return self._find("/".join((target, *rest)), follow=follow)
                return self._walk(disk, directory, (*target.split("/"), *rest), path, follow, depth + 1)
            inode = found
        return _Place(disk, directory, name, inode, path)

    def _need(self, path: Any, *, follow: bool = True, dir_fd: int | None = None) -> _Place:
        place = self._find(path, follow=follow, dir_fd=dir_fd)
        if place.inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), place.path)
        return place

    def _inode(self, path: Any, *, follow: bool = True, dir_fd: int | None = None) -> tuple[Disk, Inode]:
        if isinstance(path, int):
            opened = self._opened(path)
            return opened.disk, opened.inode
        place = self._need(path, follow=follow, dir_fd=dir_fd)
        assert place.inode is not None
        return place.disk, place.inode

    def _opened(self, descriptor: int) -> _Open:
        opened = self._open.get(descriptor)
        if opened is None:
            self._check_alive()
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return opened

    def _operation(self, name: str, path: Any, dir_fd: int | None = None) -> None:
        """Announce an operation, which may switch to another process."""
        if self.before is None or not self._is_new(name):
            return
        if isinstance(path, int):
            opened = self._opened(path)
            self.before(name, opened.path, opened.disk)
            return
        text = path if type(path) is str else _text(path)
        if dir_fd is not None and not text.startswith("/"):
            opened = self._opened(dir_fd)
            self.before(name, f"{opened.path}/{text}", opened.disk)
            return
        disk = self._mounted().get(text.removeprefix(ROOT).lstrip("/").partition("/")[0])
        if disk is not None:
            self.before(name, text, disk)

    def _is_new(self, operation: str) -> bool:
        """Return whether an operation is announced: a change always, a look of the standard library once for a line.

        Looks of a generator of the standard library (`glob`, `os.walk`) are not announced: some versions look at all
        entries before the program sees the first, others one by one. `Path.iterdir` lists its directory once in each.
        """
        frame, is_library, is_lazy = sys._getframe(2), False, False
        while (back := frame.f_back) is not None:
            code = frame.f_code
            known = _kinds.get(id(code))
            kind = _kind_of(code) if known is None else known[0]
            if kind is _Kind.PROGRAM:
                break
            if kind is not _Kind.OURS:
                is_library = True
                is_lazy = is_lazy or kind is _Kind.LAZY
            frame = back
        line = _line_of(frame)
        thread = threading.get_ident()
        if operation in _LOOKS and (is_lazy or (is_library and self._last_lines.get(thread) == line)):
            return False
        self._last_lines[thread] = line
        return True

    # --------------------------------------------------------------- descriptors

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        """`os.open`."""
        self._operation("open", path, dir_fd)
        if _is_root(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), ROOT)
        place = self._find(path, follow=not flags & (os.O_NOFOLLOW | os.O_EXCL), dir_fd=dir_fd)
        disk, inode, writes = place.disk, place.inode, flags & (os.O_WRONLY | os.O_RDWR)
        if inode is None:
            if not flags & os.O_CREAT:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), place.path)
            disk.check_room(place.path)
            inode = disk.create(place.directory, place.name, stat.S_IFREG | (mode & 0o777))
        elif flags & os.O_CREAT and flags & os.O_EXCL:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), place.path)
        elif inode.is_link:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), place.path)
        elif inode.is_directory and writes:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), place.path)
        elif flags & os.O_DIRECTORY and not inode.is_directory:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), place.path)
        elif flags & os.O_TRUNC and writes and inode.data:
            disk.truncate(inode, 0)
        descriptor = next(self._descriptors)
        self._open[descriptor] = _Open(disk, inode, place.path, flags, self._caller())
        return descriptor

    def close(self, descriptor: int) -> None:
        """`os.close`."""
        self._check_alive()
        opened, caller = self._opened(descriptor), self._caller()
        if not opened.heirs and not opened.was_left:
            self._release(descriptor)
        elif _holds(opened, caller):
            self._leave(descriptor, caller)
        else:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    def _release(self, descriptor: int) -> None:
        opened = self._open.pop(descriptor)
        opened.inode.locks.pop(opened, None)
        for holders in opened.inode.byte_locks.values():
            holders.pop(opened, None)
        if opened.inode.locked_by == opened.caller and not opened.inode.is_directory:
            opened.inode.locked_by = None  # POSIX: any close of the file by the process releases its record lock

    def is_dead(self, descriptor: int) -> bool:
        """Return whether a descriptor was closed, or its process has ended."""
        return descriptor not in self._open

    def read(self, descriptor: int, size: int) -> bytes:
        """`os.read`."""
        self._operation("read", descriptor)
        opened = self._opened(descriptor)
        data = self.pread(descriptor, size, opened.position)
        opened.position += len(data)
        return data

    def pread(self, descriptor: int, size: int, at: int) -> bytes:
        """`os.pread`."""
        opened = self._opened(descriptor)
        if opened.inode.is_directory:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if opened.flags & os.O_WRONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        opened.disk.may_fail("read", opened.path)
        return bytes(opened.inode.data[at : at + size])

    def preadv(self, descriptor: int, buffers: Sequence[Any], at: int) -> int:
        """`os.preadv`."""
        self._operation("read", descriptor)
        done = 0
        for buffer in buffers:
            view = memoryview(buffer).cast("B")
            data = self.pread(descriptor, len(view), at + done)
            view[: len(data)] = data
            done += len(data)
            if len(data) < len(view):
                break
        return done

    def write(self, descriptor: int, data: Any) -> int:
        """`os.write`."""
        self._operation("write", descriptor)
        opened = self._opened(descriptor)
        if opened.flags & os.O_APPEND:
            opened.position = len(opened.inode.data)
        written = self.pwrite(descriptor, data, opened.position)
        opened.position += written
        return written

    def pwrite(self, descriptor: int, data: Any, at: int) -> int:
        """`os.pwrite`."""
        opened, content = self._opened(descriptor), bytes(data)
        if not opened.flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        opened.disk.may_fail("write", opened.path)
        if content:
            opened.disk.check_room(opened.path, max(at + len(content) - len(opened.inode.data), 0))
            opened.disk.write(opened.inode, at, content)
        return len(content)

    def lseek(self, descriptor: int, offset: int, whence: int) -> int:
        """`os.lseek`."""
        opened = self._opened(descriptor)
        base = {os.SEEK_SET: 0, os.SEEK_CUR: opened.position, os.SEEK_END: len(opened.inode.data)}[whence]
        if base + offset < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        opened.position = base + offset
        return opened.position

    def fsync(self, descriptor: int) -> None:
        """`os.fsync`."""
        self._operation("fsync", descriptor)
        opened = self._opened(descriptor)
        opened.disk.sync(opened.inode, opened.path)

    def truncate(self, path: Any, length: int) -> None:
        """`os.truncate` and `os.ftruncate`."""
        self._operation("truncate", path)
        disk, inode = self._inode(path)
        disk.truncate(inode, length)

    def sendfile(self, target: int, source: int, offset: int | None, count: int, *_others: Any, **_more: Any) -> int:
        """`os.sendfile` between two simulated files, and from one to what `send_to` knows."""
        if target < _FIRST_DESCRIPTOR and self.send_to is not None and offset is not None:
            self._operation("read", source)
            return self.send_to(target, self.pread(source, count, offset))
        if target < _FIRST_DESCRIPTOR or source < _FIRST_DESCRIPTOR:
            raise OSError(errno.ENOTSOCK, os.strerror(errno.ENOTSOCK))
        data = self.read(source, count) if offset is None else self.pread(source, count, offset)
        return self.write(target, data)

    # --------------------------------------------------------------------- names

    def stat(self, path: Any, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> os.stat_result:
        """`os.stat`, `os.lstat` and `os.fstat`."""
        self._operation("stat", path, dir_fd)
        if not isinstance(path, int) and dir_fd is None and _is_root(path):
            return _stat_result(stat.S_IFDIR | 0o755, 1, 0, 1, 0, 0)
        disk, inode = self._inode(path, follow=follow_symlinks, dir_fd=dir_fd)
        return _stat_of(disk, inode)

    def listdir(self, path: Any) -> list[str]:
        """`os.listdir`; in an order of its own, as of a real file system."""
        self._operation("listdir", path)
        if not isinstance(path, int) and _is_root(path):
            return _unsorted(self._mounted())
        disk, inode = self._inode(path)
        if not inode.is_directory:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), _shown(path))
        disk.may_fail("read", _shown(path))
        return _unsorted(inode.entries)

    def scandir(self, path: Any) -> _Scan:
        """`os.scandir`."""
        names = self.listdir(path)
        is_bound = isinstance(path, int)
        opened = self._opened(path) if is_bound else None
        entries = []
        for name in names:
            if opened is not None:
                inode = opened.inode.entries[name]
                entries.append(_Entry(self, name, name, opened.disk, inode, f"{opened.path}/{name}"))
            else:
                shown = os.path.join(_text(path), name)  # noqa: PTH118
                place = self._need(shown, follow=False)
                assert place.inode is not None
                entries.append(_Entry(self, name, shown, place.disk, place.inode, shown))
        return _Scan(entries)

    def mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        """`os.mkdir`."""
        self._operation("mkdir", path, dir_fd)
        place = self._find(path, follow=False, dir_fd=dir_fd)
        if place.inode is not None or not place.name:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), place.path)
        place.disk.check_room(place.path)
        place.disk.create(place.directory, place.name, stat.S_IFDIR | (mode & 0o777))

    def rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        """`os.rmdir`."""
        self._operation("rmdir", path, dir_fd)
        place = self._need(path, follow=False, dir_fd=dir_fd)
        assert place.inode is not None
        if not place.inode.is_directory:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), place.path)
        if place.inode.entries:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), place.path)
        place.disk.may_fail("remove", place.path)
        place.disk.change((place.directory, place.name, None))

    def unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        """`os.unlink`."""
        self._operation("unlink", path, dir_fd)
        place = self._need(path, follow=False, dir_fd=dir_fd)
        assert place.inode is not None
        if place.inode.is_directory:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), place.path)
        place.disk.may_fail("remove", place.path)
        place.disk.change((place.directory, place.name, None))

    def rename(self, source: Any, target: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
        """`os.rename` and `os.replace`."""
        self._operation("rename", target, dst_dir_fd)
        old = self._find(source, follow=False, dir_fd=src_dir_fd)
        new = self._find(target, follow=False, dir_fd=dst_dir_fd)
        if old.inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), old.path, None, new.path)
        if old.disk is not new.disk:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), old.path, None, new.path)
        if old.inode.is_directory and _is_below(new.directory, old.inode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), old.path, None, new.path)
        if new.inode is old.inode:
            return
        if new.inode is not None:
            # As Linux: it looks for this before it looks at what the two are.
            if new.inode.is_directory and _is_below(old.directory, new.inode):
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), old.path, None, new.path)
            if old.inode.is_directory and not new.inode.is_directory:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), old.path, None, new.path)
            if new.inode.is_directory and not old.inode.is_directory:
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), old.path, None, new.path)
            if new.inode.entries:
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), old.path, None, new.path)
        old.disk.change((new.directory, new.name, old.inode), (old.directory, old.name, None))

    def link(
        self,
        source: Any,
        target: Any,
        *,
        src_dir_fd: int | None = None,
        dst_dir_fd: int | None = None,
        follow_symlinks: bool = True,
    ) -> None:
        """`os.link`."""
        self._operation("link", target, dst_dir_fd)
        old = self._need(source, follow=follow_symlinks, dir_fd=src_dir_fd)
        new = self._find(target, follow=False, dir_fd=dst_dir_fd)
        assert old.inode is not None
        if new.inode is not None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), old.path, None, new.path)
        if old.disk is not new.disk:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), old.path, None, new.path)
        if old.inode.is_directory:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), old.path, None, new.path)
        new.disk.check_room(new.path)
        new.disk.change((new.directory, new.name, old.inode))

    def symlink(
        self, source: Any, target: Any, target_is_directory: bool = False, *, dir_fd: int | None = None
    ) -> None:
        """`os.symlink`."""
        self._operation("symlink", target, dir_fd)
        place = self._find(target, follow=False, dir_fd=dir_fd)
        if place.inode is not None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), place.path)
        place.disk.check_room(place.path)
        made = place.disk.create(place.directory, place.name, stat.S_IFLNK | 0o777)
        made.data = bytearray(_text(source).encode())
        made.on_medium = bytes(made.data)

    def readlink(self, path: Any, *, dir_fd: int | None = None) -> str:
        """`os.readlink`."""
        _, inode = self._inode(path, follow=False, dir_fd=dir_fd)
        if not inode.is_link:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), _shown(path))
        return inode.data.decode()

    def chmod(self, path: Any, mode: int, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> None:
        """`os.chmod`."""
        _, inode = self._inode(path, follow=follow_symlinks, dir_fd=dir_fd)
        inode.mode = stat.S_IFMT(inode.mode) | (mode & 0o7777)

    def utime(
        self,
        path: Any,
        times: tuple[float, float] | None = None,
        *,
        ns: tuple[int, int] | None = None,
        dir_fd: int | None = None,
        follow_symlinks: bool = True,
    ) -> None:
        """`os.utime`."""
        disk, inode = self._inode(path, follow=follow_symlinks, dir_fd=dir_fd)
        inode.mtime_ns = ns[1] if ns is not None else (int(times[1] * 1e9) if times is not None else disk._clock())

    def access(self, path: Any, mode: int, **_options: Any) -> bool:
        """`os.access`: the owner calls, who may do everything."""
        try:
            self.stat(path)
        except OSError:
            return False
        return True

    def statvfs(self, path: Any) -> os.statvfs_result:
        """`os.statvfs`."""
        disk, _ = self._inode(path)
        blocks = disk.free // 4096
        return os.statvfs_result((4096, 4096, 1 << 28, blocks, blocks, 1 << 20, 1 << 20, 1 << 20, 0, 255))

    # --------------------------------------------------------------------- locks

    def flock(self, file: Any, operation: int) -> None:
        """`fcntl.flock`; a request that would wait raises BlockingIOError after `before` was called with ``flock``."""
        descriptor = file if isinstance(file, int) else file.fileno()
        opened = self._opened(descriptor)
        if operation & fcntl.LOCK_UN:
            opened.inode.locks.pop(opened, None)
            return
        exclusive = bool(operation & fcntl.LOCK_EX)
        while any(
            other is not opened and (exclusive or is_exclusive) for other, is_exclusive in opened.inode.locks.items()
        ):
            if operation & fcntl.LOCK_NB:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            if self.before is None:
                raise BlockingIOError(errno.EDEADLK, os.strerror(errno.EDEADLK))
            self.before("flock", opened.path, opened.disk)  # time has to pass there
        opened.inode.locks[opened] = exclusive

    def fcntl(self, file: Any, command: int, argument: Any = 0) -> Any:
        """`fcntl.fcntl`: record locks of a whole file, and locks of single bytes that belong to an open file."""
        opened = self._opened(file if isinstance(file, int) else file.fileno())
        if command in (fcntl.F_OFD_GETLK, fcntl.F_OFD_SETLK, fcntl.F_OFD_SETLKW):
            return self._byte_lock(opened, command, argument)
        if command not in (fcntl.F_GETLK, fcntl.F_SETLK):
            return 0
        kind, whence, start, length, _ = struct.unpack_from(_LOCK, argument)
        holder, caller = opened.inode.locked_by, self._caller()
        found = bytearray(argument)
        if command == fcntl.F_GETLK:
            is_free = holder is None or holder == caller
            pid = 0 if holder is None or is_free else (holder.pid if holder.host == caller.host else 0)
            struct.pack_into(_LOCK, found, 0, fcntl.F_UNLCK if is_free else fcntl.F_WRLCK, whence, start, length, pid)
            return bytes(found)
        if kind == fcntl.F_UNLCK:
            opened.inode.locked_by = None if holder == caller else holder
        elif holder in (None, caller):
            opened.inode.locked_by = caller
            self._locked[opened.inode] = None
        else:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return bytes(found)

    def _byte_lock(self, opened: _Open, command: int, argument: Any) -> bytes:
        kind, whence, byte, length, _ = struct.unpack_from(_LOCK, argument)
        if length != 1 or whence != os.SEEK_SET:
            raise NotImplementedError("only locks of one byte are simulated")
        holders, answer = opened.inode.byte_locks.setdefault(byte, {}), bytearray(argument)

        def conflict() -> bool | None:
            for other, is_exclusive in holders.items():
                if other is not opened and (is_exclusive or kind == fcntl.F_WRLCK):
                    return is_exclusive
            return None

        if command == fcntl.F_OFD_GETLK:
            found = conflict()
            shown = fcntl.F_UNLCK if found is None else (fcntl.F_WRLCK if found else fcntl.F_RDLCK)
            struct.pack_into(_LOCK, answer, 0, shown, whence, byte, length, 0 if found is None else -1)
            return bytes(answer)
        self.before_lock(opened.path)
        if kind == fcntl.F_UNLCK:
            holders.pop(opened, None)
            return bytes(answer)
        while conflict() is not None:
            if command == fcntl.F_OFD_SETLK:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            if self.before is None:
                raise BlockingIOError(errno.EDEADLK, os.strerror(errno.EDEADLK))
            self.before("flock", opened.path, opened.disk)  # time has to pass there
        holders[opened] = kind == fcntl.F_WRLCK
        return bytes(answer)

    # ------------------------------------------------------------------ Python's files

    def open_file(
        self,
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Callable[[str, int], int] | None = None,
    ) -> Any:
        """`io.open`, for a path or a descriptor."""
        flags = _flags_of(mode)
        if isinstance(file, int):
            descriptor = file
        elif opener is not None:
            descriptor = opener(file, flags)
            if descriptor < _FIRST_DESCRIPTOR:
                return io.FileIO(descriptor, mode.replace("b", "").replace("t", ""))
        else:
            descriptor = self.open(file, flags, 0o666)
        if self._opened(descriptor).inode.is_directory:
            self.close(descriptor)
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), _shown(file))
        raw = _RawFile(self, descriptor, file, mode, closefd)
        if "a" in mode:
            raw.seek(0, os.SEEK_END)
        is_binary = "b" in mode
        if buffering == 0:
            return raw
        size = io.DEFAULT_BUFFER_SIZE if buffering in (-1, 1) else buffering
        wrapped: Any
        if "+" in mode:
            wrapped = io.BufferedRandom(raw, size)
        elif raw.writable():
            wrapped = io.BufferedWriter(raw, size)
        else:
            wrapped = io.BufferedReader(raw, size)
        if is_binary:
            return wrapped
        text = io.TextIOWrapper(wrapped, encoding, errors, newline, line_buffering=buffering == 1)
        text.mode = mode  # type: ignore[misc]
        return text


class _RawFile(io.RawIOBase):
    """An unbuffered file; what a buffer still writes after the end of its process is lost."""

    def __init__(self, files: Files, descriptor: int, name: Any, mode: str, closes: bool) -> None:
        super().__init__()
        self._files, self._descriptor, self._closes = files, descriptor, closes
        self._mode = mode
        self.name = name

    @property
    def mode(self) -> str:
        return self._mode

    def fileno(self) -> int:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        return self._descriptor

    def readable(self) -> bool:
        return "r" in self._mode or "+" in self._mode

    def writable(self) -> bool:
        return any(letter in self._mode for letter in "wax+")

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._files.read(self._descriptor, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        return b"".join(iter(lambda: self._files.read(self._descriptor, 1 << 20), b""))

    def write(self, data: Any) -> int:
        if self._files.is_dead(self._descriptor):
            return len(bytes(data))
        return self._files.write(self._descriptor, data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._files.lseek(self._descriptor, offset, whence)

    def truncate(self, size: int | None = None) -> int:
        length = self.tell() if size is None else size
        self._files.truncate(self._descriptor, length)
        return length

    def close(self) -> None:
        if not self.closed:
            try:
                super().close()
            finally:
                if self._closes and not self._files.is_dead(self._descriptor):
                    self._files.close(self._descriptor)


class _Entry:
    """`os.DirEntry`."""

    def __init__(self, files: Files, name: str, path: str, disk: Disk, inode: Inode, whole: str) -> None:
        self.name, self.path = name, path
        self._files, self._disk, self._inode, self._whole = files, disk, inode, whole

    def __fspath__(self) -> str:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def inode(self) -> int:
        return self._inode.number

    def is_symlink(self) -> bool:
        return self._inode.is_link

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        found = self._followed(follow_symlinks)
        return found is not None and found.is_directory

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        found = self._followed(follow_symlinks)
        return found is not None and stat.S_ISREG(found.mode)

    def is_junction(self) -> bool:
        return False

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        found = self._followed(follow_symlinks)
        if found is None or (not found.links and not found.is_directory):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.path)
        return _stat_of(self._disk, found)

    def _followed(self, follow: bool) -> Inode | None:
        if not (follow and self._inode.is_link):
            return self._inode
        try:
            return self._files.inode_of(self._whole)
        except OSError:
            return None


class _Scan:
    """The iterator of `os.scandir`."""

    def __init__(self, entries: list[_Entry]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[_Entry]:
        return self

    def __next__(self) -> _Entry:
        return next(self._entries)

    def __enter__(self) -> _Scan:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())


# ---------------------------------------------------------------------------- installation


@contextlib.contextmanager
def installed(files: Files) -> Iterator[Files]:
    """Redirect Python's functions for simulated paths and descriptors to *files* in a ``with``."""
    with contextlib.ExitStack() as undo:
        for module, name, replacement in _replacements(files):
            original = getattr(module, name)
            is_wrapped = callable(original) and not isinstance(replacement, staticmethod)
            setattr(module, name, functools.wraps(original)(replacement) if is_wrapped else replacement)
            undo.callback(setattr, module, name, original)
            for supported in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
                if original in supported:
                    supported.add(getattr(module, name))
                    undo.callback(supported.discard, getattr(module, name))
        yield files


class _OfProcess:
    """Stands for a set of a module; each simulated process has one of its own."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def _mine(self) -> set[Any]:
        return self._files.names_on_disk.setdefault(self._files.current(), set())

    def __contains__(self, item: Any) -> bool:
        return item in self._mine()

    def __len__(self) -> int:
        return len(self._mine())

    def discard(self, item: Any) -> None:
        self._mine().discard(item)

    def update(self, items: Any) -> None:
        self._mine().update(items)

    def clear(self) -> None:
        self._mine().clear()


def _replacements(files: Files) -> Iterator[tuple[Any, str, Any]]:
    """Yield each function that is redirected: its module, its name, and what to call instead."""
    on_path: dict[str, Callable[..., Any]] = {
        "open": files.open,
        "stat": files.stat,
        "lstat": functools.partial(files.stat, follow_symlinks=False),
        "listdir": files.listdir,
        "scandir": files.scandir,
        "mkdir": files.mkdir,
        "rmdir": files.rmdir,
        "unlink": files.unlink,
        "remove": files.unlink,
        "readlink": files.readlink,
        "chmod": files.chmod,
        "utime": files.utime,
        "access": files.access,
        "statvfs": files.statvfs,
        "truncate": files.truncate,
        # On a descriptor:
        "close": files.close,
        "read": files.read,
        "pread": files.pread,
        "preadv": files.preadv,
        "write": files.write,
        "pwrite": files.pwrite,
        "lseek": files.lseek,
        "fsync": files.fsync,
        "fdatasync": files.fsync,
        "ftruncate": files.truncate,
        "fstat": files.stat,
        "fchmod": files.chmod,
        "fdopen": files.open_file,
        "isatty": lambda descriptor: False,
        "set_inheritable": lambda descriptor, inheritable: None,
        "get_inheritable": lambda descriptor: False,
        "listxattr": lambda *_, **__: [],
        "posix_fadvise": lambda *_: None,
    }
    for name, ours in on_path.items():
        yield os, name, _redirected(files, getattr(os, name), ours)
    for name, ours in {"rename": files.rename, "replace": files.rename, "link": files.link}.items():
        yield os, name, _redirected_pair(files, getattr(os, name), ours)
    yield os, "symlink", _redirected_second(files, os.symlink, files.symlink)
    yield os, "sendfile", _redirected_pair(files, os.sendfile, files.sendfile)
    yield shutil, "rmtree", _redirected(files, shutil.rmtree, library.rmtree)
    for module in (io, builtins):
        yield module, "open", _redirected(files, module.open, files.open_file)
    yield conf.files, "_remembered", _OfProcess(files)
    yield fcntl, "flock", _redirected_file(files, fcntl.flock, files.flock)
    yield fcntl, "fcntl", _redirected_file(files, fcntl.fcntl, files.fcntl)
    globber = getattr(glob, "_StringGlobber", None)  # of Python 3.13, which has bound two functions
    if globber is not None:
        yield globber, "lstat", staticmethod(_redirected(files, globber.lstat, on_path["lstat"]))
        yield globber, "scandir", staticmethod(_redirected(files, globber.scandir, files.scandir))


def _redirected(files: Files, original: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    def call(path: Any = ".", *arguments: Any, **keywords: Any) -> Any:
        kind = type(path)
        if kind is int:
            return (ours if path >= _FIRST_DESCRIPTOR else original)(path, *arguments, **keywords)
        if kind is not str:
            if not (isinstance(path, PurePath) or _is_path(path)):
                return original(path, *arguments, **keywords)
            path = os.fspath(path)  # once, and not for each look at it
        is_ours = files.handles(path, keywords.get("dir_fd") if keywords else None)
        return (ours if is_ours else original)(path, *arguments, **keywords)

    return call


def _redirected_pair(files: Files, original: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    def call(source: Any, target: Any, *arguments: Any, **keywords: Any) -> Any:
        is_first = files.handles(source, keywords.get("src_dir_fd"))
        is_second = files.handles(target, keywords.get("dst_dir_fd"))
        if is_first != is_second and not isinstance(source, int):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), _shown(source), None, _shown(target))
        return (ours if is_first or is_second else original)(source, target, *arguments, **keywords)

    return call


def _redirected_second(files: Files, original: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    def call(source: Any, target: Any, *arguments: Any, **keywords: Any) -> Any:
        chosen = ours if files.handles(target, keywords.get("dir_fd")) else original
        return chosen(source, target, *arguments, **keywords)

    return call


def _redirected_file(files: Files, original: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    def call(file: Any, *arguments: Any) -> Any:
        descriptor = file if isinstance(file, int) else file.fileno()
        return (ours if files.handles(descriptor) else original)(descriptor, *arguments)

    return call


# ------------------------------------------------------------------------------- helpers


class _Kind(Enum):
    """Whose code is: the program's, the standard library's, a generator of it, or this module's."""

    PROGRAM = 1
    LIBRARY = 2
    LAZY = 3
    OURS = 4


_kinds: dict[int, tuple[_Kind, types.CodeType]] = {}
"""By the id of the code, which is kept: the hash of a code is that of all its parts."""
_lines: dict[tuple[int, int], tuple[str, int]] = {}
"""Files and lines, by the id of a code in `_kinds` and the place in it: Python finds a line by counting."""


def _is_installed(name: str) -> bool:
    return name.startswith(_LIBRARY) and "-packages/" not in name


def _kind_of(code: types.CodeType) -> _Kind:
    name, kind = code.co_filename, _Kind.PROGRAM
    if name == __file__:
        kind = _Kind.OURS
    elif name.startswith("<frozen ") or name == library.FILE or _is_installed(name):
        is_lazy = code.co_flags & inspect.CO_GENERATOR and code.co_name != "iterdir"
        kind = _Kind.LAZY if is_lazy else _Kind.LIBRARY
    _kinds[id(code)] = kind, code
    return kind


def _line_of(frame: types.FrameType) -> tuple[str, int]:
    code = frame.f_code
    key = id(code), frame.f_lasti
    line = _lines.get(key)
    if line is None:
        line = code.co_filename, frame.f_lineno
        if key[0] in _kinds:
            _lines[key] = line
    return line


def _holds(opened: _Open, caller: Caller) -> bool:
    return caller in opened.heirs or (opened.caller == caller and not opened.was_left)


def _is_path(path: Any) -> bool:
    return isinstance(path, int | str | bytes | os.PathLike)


def _text(path: Any) -> str:
    return path if type(path) is str else os.fsdecode(path)


def _is_root(path: Any) -> bool:
    text = path if type(path) is str else _text(path)
    return len(text) <= len(_BELOW_ROOT) and text.rstrip("/") == ROOT


def _shown(path: Any) -> str:
    return str(path) if isinstance(path, int) else _text(path)


def _unsorted(names: Mapping[str, object]) -> list[str]:
    """Return names in an order that is neither sorted nor that of their creation, and always the same."""
    return sorted(names, key=lambda name: (zlib.crc32(name.encode()), name))


def _is_below(directory: Inode, ancestor: Inode) -> bool:
    while directory is not ancestor and directory.parent is not None and directory.parent is not directory:
        directory = directory.parent
    return directory is ancestor


def _stat_of(disk: Disk, inode: Inode) -> os.stat_result:
    links = max(inode.links, 1) if inode.is_directory else inode.links
    return _stat_result(inode.mode, inode.number, disk.device, links, len(inode.data), inode.mtime_ns)


def _stat_result(mode: int, number: int, device: int, links: int, size: int, mtime_ns: int) -> os.stat_result:
    seconds = mtime_ns / 1e9
    whole = mtime_ns // 1_000_000_000
    times = (whole, whole, whole, seconds, seconds, seconds, mtime_ns, mtime_ns, mtime_ns)
    return os.stat_result((mode, number, device, links, _USER, _GROUP, size, *times, 4096, -(-size // 512)))


def _flags_of(mode: str) -> int:
    """Return the flags of `os.open` for a mode of `open`."""
    access = os.O_RDWR if "+" in mode else (os.O_RDONLY if "r" in mode else os.O_WRONLY)
    flags = {
        "r": 0,
        "w": os.O_CREAT | os.O_TRUNC,
        "a": os.O_CREAT | os.O_APPEND,
        "x": os.O_CREAT | os.O_EXCL,
    }
    kind = next((letter for letter in mode if letter in flags), None)
    if kind is None:
        raise ValueError(f"invalid mode: {mode!r}")
    return access | flags[kind] | os.O_CLOEXEC

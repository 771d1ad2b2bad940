"""Packs a directory of a user's project for a job, as a zip file that is the same for the same content."""

from __future__ import annotations

import os
import stat
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pathspec

from runtime.librarycache.errors import DirectoryNotPackedError

LEFT_OUT = frozenset({".git", "__pycache__", ".venv"})
"""Names of directories that never travel."""

_EPOCH = (1980, 1, 1, 0, 0, 0)
_NAMED = 5
_MOST_FILES = 50_000
_LOOKED_AT = 10
"""Multiple of the permitted size up to which files are measured, to name the largest ones."""


@dataclass(frozen=True, slots=True)
class _Rules:
    """The rules of one ``.gitignore``, and the directory that they are in."""

    base: PurePosixPath
    spec: pathspec.GitIgnoreSpec


def pack_directory(directory: Path, target: Path, max_bytes: int, prefix: str = "") -> None:
    """Write the files of a directory into the zip file *target*.

    Files that a ``.gitignore`` of the directory names, and directories of `LEFT_OUT`, are left out. Names are sorted
    and times fixed. A symbolic link stays a link.

    Args:
        directory: the directory to pack.
        target: the file to write.
        max_bytes: largest total size of its files, in bytes.
        prefix: name of the directory in the zip file; empty to put its content at the top.

    Raises:
        DirectoryNotPackedError: it is too large, changes meanwhile, has files that cannot be read, or a symbolic link
            that leads out of it.
        OSError: it does not exist, or *target* cannot be written.
    """
    root = directory.resolve(strict=True)
    try:
        _pack(directory, root, target, max_bytes, prefix)
    except OSError as error:
        if error.filename is None or not Path(error.filename).is_relative_to(root) or Path(error.filename) == target:
            raise
        name = Path(error.filename).relative_to(root)
        if isinstance(error, FileNotFoundError):
            raise DirectoryNotPackedError(
                f"{directory} changed while it was packed: {name} is gone",
                "try again, run it in a directory that does not change, or name what changes in a .gitignore",
            ) from error
        raise DirectoryNotPackedError(
            f"{name} of {directory} cannot be read: {error.strerror}",
            "make it readable, or name it in a .gitignore if the job does not need it",
        ) from error


def _pack(directory: Path, root: Path, target: Path, max_bytes: int, prefix: str) -> None:
    found = _measured(directory, root, max_bytes)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as packed:
        for name in sorted(found):
            path = root / name
            status = path.lstat()
            entry = zipfile.ZipInfo(str(PurePosixPath(prefix, name)), _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3  # Unix
            if stat.S_ISLNK(status.st_mode):
                entry.external_attr = (stat.S_IFLNK | 0o777) << 16
                packed.writestr(entry, os.fsencode(_link(directory, root, path)))
            else:
                mode = 0o755 if status.st_mode & stat.S_IXUSR else 0o644
                entry.external_attr = (stat.S_IFREG | mode) << 16
                packed.writestr(entry, path.read_bytes())


def _files(root: Path, below: PurePosixPath, rules: Sequence[_Rules]) -> Iterator[str]:
    """Yield the files and symbolic links to pack, relative to *root*."""
    ignored = root / below / ".gitignore"
    if ignored.is_file():
        lines = ignored.read_text("utf-8", "replace").splitlines()
        rules = [_Rules(below, pathspec.GitIgnoreSpec.from_lines(lines)), *rules]  # the nearest come first
    with os.scandir(root / below) as entries:
        for entry in entries:
            name = below / entry.name
            is_directory = entry.is_dir(follow_symlinks=False)
            if (is_directory and entry.name in LEFT_OUT) or _is_ignored(name, is_directory, rules):
                continue
            if is_directory:
                yield from _files(root, name, rules)
            elif entry.is_symlink() or entry.is_file():  # skips sockets and pipes
                yield str(name)


def _is_ignored(name: PurePosixPath, is_directory: bool, rules: Sequence[_Rules]) -> bool:
    for each in rules:
        said = each.spec.check_file(f"{name.relative_to(each.base)}{'/' if is_directory else ''}").include
        if said is not None:
            return said
    return False


def _measured(directory: Path, root: Path, max_bytes: int) -> list[str]:
    """Return the files to pack; raises `DirectoryNotPackedError` where they are too large, or too many."""
    sizes: dict[str, int] = {}
    total = 0
    for name in _files(root, PurePosixPath(), ()):
        sizes[name] = (root / name).lstat().st_size
        total += sizes[name]
        if len(sizes) > _MOST_FILES or total > _LOOKED_AT * max_bytes:
            break  # much too large, perhaps a home directory: no need to measure the rest
    if len(sizes) > _MOST_FILES or total > max_bytes:
        largest = sorted(sizes, key=lambda name: -sizes[name])[:_NAMED]
        shown = ", ".join(f"{name} ({sizes[name]:,} bytes)" for name in largest)
        raise DirectoryNotPackedError(
            f"{directory} has {len(sizes):,} files or more of {total:,} bytes, and may have {_MOST_FILES:,} of "
            f"{max_bytes:,}; the largest are {shown}",
            "name in a .gitignore what the job does not need, or raise client.working-dir.max-size with -D",
        )
    return list(sizes)


def _link(directory: Path, root: Path, path: Path) -> str:
    """Return a symbolic link's target, relative to the link's own directory; raises `DirectoryNotPackedError`."""
    end = path.resolve()
    if not end.is_relative_to(root):
        raise DirectoryNotPackedError(
            f"the symbolic link {path.relative_to(root)} of {directory} leads out of it, to {end}",
            "copy what it leads to, or name the link in a .gitignore",
        )
    return os.path.relpath(end, path.parent.resolve())


def unpack_directory(packed: Path, target: Path) -> None:
    """Unpack a file of `pack_directory` into the new directory *target*.

    Raises:
        zipfile.BadZipFile: it is damaged, or a symbolic link leads out of it.
        OSError: it cannot be written.
    """
    target.mkdir(mode=0o700)
    with zipfile.ZipFile(packed) as zipped:
        zipped.extractall(target)  # drops drive letters, leading slashes and ".."
        links = []
        for entry in zipped.infolist():
            mode, path = entry.external_attr >> 16, target / entry.filename
            if stat.S_ISLNK(mode):
                links.append((path, os.fsdecode(zipped.read(entry))))
            elif mode & stat.S_IXUSR:
                path.chmod(0o700)
    for path, end in links:  # all files are written before, so that none is written through a link
        path.unlink()
        path.symlink_to(end)
    for path, _ in links:
        if not path.resolve().is_relative_to(target.resolve()):
            raise zipfile.BadZipFile(f"the symbolic link {path.relative_to(target)} leads out of the directory")

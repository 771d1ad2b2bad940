"""Files of snapshots: listings, content, links where the file system has them and copies elsewhere, removal."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from conf.files import make_private
from runtime.checkpoint.integrity import ContentCheck, FileRecord, checksum_file
from runtime.checkpoint.metadata_log import IncompleteError

_CANNOT_LINK = (errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS)
_CHUNK = 1024 * 1024
UNQUOTED = "/~!$&'()*+,;=:@"
_LOCAL = re.compile(r"file:(?://[^/]*)?")
"""Scheme and authority of a local path."""


def list_files(directory: Path) -> list[str]:
    """Return all files below a directory, as relative paths.

    Raises:
        FileNotFoundError: it is not there, or a directory below it disappeared while it was listed.
    """
    found: list[str] = []
    pending = [""]
    while pending:
        prefix = pending.pop()
        with os.scandir(directory / prefix) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(f"{prefix}{entry.name}/")
                else:
                    found.append(prefix + entry.name)
    return found


def list_sizes(directory: Path) -> dict[str, int]:
    """Return all files below a directory by their relative paths, with their sizes in bytes.

    Raises:
        FileNotFoundError: it is not there, or a file or directory below it disappeared while it was listed.
    """
    return {path: os.stat(f"{directory}/{path}").st_size for path in list_files(directory)}  # noqa: PTH116


def record_files(
    directory: Path, names: Iterable[str], known: Mapping[str, FileRecord] | None = None, *, durable: bool = False
) -> dict[str, FileRecord]:
    """Read files and return their records; a file with Hadoop's checksums beside it is compared with them.

    Args:
        directory: the directory that they are in.
        names: their paths below it.
        known: records of an earlier call. A file whose size and time of change are the same is not read again.
        durable: whether to sync the files that are read to disk: Spark does not.

    Raises:
        IncompleteError: the content of a file differs from its checksums.
        FileNotFoundError: a file is missing.
        OSError: a file cannot be read.
    """
    found = {}
    for name in names:
        now = os.stat(f"{directory}/{name}")  # noqa: PTH116
        before = None if known is None else known.get(name)
        if before is not None and known is not None and _is_recorded(before, now):
            checksums = known.get(checksum_file(name))
            if checksums is None or _is_recorded(checksums, os.stat(f"{directory}/{checksum_file(name)}")):  # noqa: PTH116
                found[name] = before
                continue
        with (directory / name).open("rb", buffering=0) as file:
            size, digest = _check(directory, name, iter(partial(file.read, _CHUNK), b""))
            if durable:
                os.fsync(file.fileno())
        found[name] = FileRecord(size, now.st_mtime_ns, digest)
    return found


def read_checked(directory: Path, name: str) -> bytes:
    """Return the content of a file, and compare it with Hadoop's checksums if there are any.

    Raises:
        IncompleteError: the content differs from its checksums.
        OSError: it cannot be read.
    """
    content = (directory / name).read_bytes()
    _check(directory, name, [content])
    return content


def _is_recorded(record: FileRecord, now: os.stat_result) -> bool:
    return (record.size, record.mtime_ns) == (now.st_size, now.st_mtime_ns)


def _check(directory: Path, name: str, chunks: Iterable[bytes]) -> tuple[int, str]:
    """Return size and digest of a file's content; raise IncompleteError if it differs from its checksums."""
    try:
        checksums: bytes | None = (directory / checksum_file(name)).read_bytes()
    except FileNotFoundError:
        checksums = None
    check, size = ContentCheck(checksums), 0
    for chunk in chunks:
        check.update(chunk)
        size += len(chunk)
    digest, is_same = check.end()
    if not is_same:
        raise IncompleteError(f"{name} is damaged: it is not what its checksums in {checksum_file(name)} say")
    return size, digest


def list_names(directory: Path) -> list[str]:
    """Return the names in a directory; none if it is not there."""
    try:
        return [path.name for path in directory.iterdir()]
    except FileNotFoundError:
        return []


def path_of(uri: str) -> Path:
    """Return the local path that Spark writes as a URI (``file:/a%20b``) or as a plain path; see also `named_path`."""
    return Path(unquote(urlsplit(uri).path)) if uri.startswith("file:") else Path(uri)


def named_path(text: str) -> str:
    """Return the local path that a user's text names for Hadoop's ``Path``, which unescapes nothing in it.

    ``file:///a%20b`` is the directory ``a%20b``; ``#`` and ``?`` are parts of a name, too.
    """
    return _LOCAL.sub("", text, count=1)


def uri_of(path: Path) -> str:
    """Return a local path as Spark writes it in a file sink's log."""
    return "file://" + quote(str(path), safe=UNQUOTED)


@dataclass(slots=True)
class Taken:
    """Figures of `take_files`: how many files, their bytes, and the bytes that *previous* did not hold."""

    files: int = 0
    bytes: int = 0
    new_bytes: int = 0


def take_files(
    source: Path, names: Iterable[str], target: Path, previous: Path | None = None, *, copy: bool = False
) -> Taken:
    """Link or copy files of one directory, which do not change any more, into another one under the same names.

    1. Each file is linked, if the file system allows it.
    2. Otherwise (another device, a foreign owner) it is linked from *previous*, if that holds the same file by size and
       time of change. So only the first copy costs anything.
    3. Otherwise it is copied, and synced to disk.

    The caller syncs the directories, which makes the names durable.

    Args:
        source: the directory that they are in.
        names: their paths below it.
        target: an existing directory where they go; directories below it are made (0700).
        previous: the target of an earlier call; None if there was none.
        copy: whether to copy all files, and link none.

    Raises:
        FileNotFoundError: a file is missing.
        OSError: a file cannot be read, or the target cannot be written.
    """
    taken = Taken()
    linking = not copy
    made: set[str] = set()
    for name in names:  # thousands of them: plain texts cost half of what Path objects do
        parent = name.rpartition("/")[0]
        if parent not in made:
            make_private(target / parent, below=target)
            made.add(parent)
        file, new = f"{source}/{name}", f"{target}/{name}"
        older = f"{previous}/{name}" if previous is not None else ""
        now = os.stat(file)  # noqa: PTH116
        is_known = bool(older) and _is_same(now, older)
        if linking:
            linking = _link(file, new)
        if not linking and not (not copy and is_known and _link(older, new)):
            _copy(file, new)
        taken.files += 1
        taken.bytes += now.st_size
        taken.new_bytes += 0 if is_known else now.st_size
    return taken


def _link(file: str, new: str) -> bool:
    try:
        os.link(file, new, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _CANNOT_LINK:
            raise
        return False
    return True


def _copy(file: str, new: str) -> None:
    with open(file, "rb") as reading, open(new, "xb") as writing:  # noqa: PTH123
        shutil.copyfileobj(reading, writing, _CHUNK)
        writing.flush()
        os.fsync(writing.fileno())
    shutil.copystat(file, new)


def _is_same(now: os.stat_result, older: str) -> bool:
    """Return whether *older* is the same file, or a copy of it, by size and time of change."""
    try:
        before = os.stat(older)  # noqa: PTH116
    except FileNotFoundError:
        return False
    return (before.st_size, before.st_mtime_ns) == (now.st_size, now.st_mtime_ns)

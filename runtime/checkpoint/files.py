"""Files of snapshots: listings, content, links where the file system has them and copies elsewhere, removal."""

from __future__ import annotations

import errno
import os
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
_UNQUOTED = "/~!$&'()*+,;=:@"


def list_files(directory: Path) -> list[str]:
    """All files below a directory, as relative paths.

    Raises:
        FileNotFoundError: it is not there, or a directory below it went while it was listed.
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
    """All files below a directory by their relative paths, with their sizes in bytes.

    Raises:
        FileNotFoundError: it is not there, or a file or directory below it went while it was listed.
    """
    return {path: os.stat(f"{directory}/{path}").st_size for path in list_files(directory)}  # noqa: PTH116


def record_files(
    directory: Path, names: Iterable[str], known: Mapping[str, FileRecord] | None = None, *, durable: bool = False
) -> dict[str, FileRecord]:
    """Read files and return what they are; each is compared with Hadoop's checksums where these are there.

    Args:
        directory: the directory that they are in.
        names: their paths below it.
        known: files that were read before. One whose size and time of change are the same is not read again.
        durable: whether what is read is on the disk when this returns: Spark does not see to that.

    Raises:
        IncompleteError: a file is not what its checksums say.
        FileNotFoundError: one of them is gone.
        OSError: one cannot be read.
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
    """Read a file whole, and compare it with Hadoop's checksums where these are there.

    Raises:
        IncompleteError: it is not what its checksums say.
        OSError: it cannot be read.
    """
    content = (directory / name).read_bytes()
    _check(directory, name, [content])
    return content


def _is_recorded(record: FileRecord, now: os.stat_result) -> bool:
    return (record.size, record.mtime_ns) == (now.st_size, now.st_mtime_ns)


def _check(directory: Path, name: str, chunks: Iterable[bytes]) -> tuple[int, str]:
    """Size and digest of a file's content, which is what its checksums say; raises IncompleteError where it is not."""
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
    """The names in a directory; none if it is not there."""
    try:
        return [path.name for path in directory.iterdir()]
    except FileNotFoundError:
        return []


def path_of(uri: str) -> Path:
    """The local path that Spark writes as a URI (``file:/a%20b``) or as a plain path."""
    return Path(unquote(urlsplit(uri).path)) if uri.startswith("file:") else Path(uri)


def uri_of(path: Path) -> str:
    """A local path as Spark writes it in a file sink's log."""
    return "file://" + quote(str(path), safe=_UNQUOTED)


@dataclass(slots=True)
class Taken:
    """What was put into a directory: files, their bytes, and the bytes that *previous* did not hold."""

    files: int = 0
    bytes: int = 0
    new_bytes: int = 0


def take_files(
    source: Path, names: Iterable[str], target: Path, previous: Path | None = None, *, copy: bool = False
) -> Taken:
    """Put files of one directory, which nobody changes any more, into another one under the same names.

    Hard links, where they can be had. Where not (another device, a foreign owner), the file is linked from *previous*,
    if that holds the same one (by size and time of change), so that only the first copy costs anything. What was copied
    is on the disk when this returns; the names are when the caller has synced the directories.

    Args:
        source: the directory that they are in.
        names: their paths below it.
        target: where they go; directories are made (0700).
        previous: where an earlier call put what there was then.
        copy: whether files are copied in any case.

    Raises:
        FileNotFoundError: one of them is gone.
        OSError: one cannot be read, or nothing can be written.
    """
    taken = Taken()
    linking = not copy
    made: set[str] = set()
    for name in names:  # thousands of them: plain texts cost half of what Path objects do
        parent = name.rpartition("/")[0]
        if parent not in made:
            make_private(target / parent)
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
    """Whether *older* is the same file, or a copy of it."""
    try:
        before = os.stat(older)  # noqa: PTH116
    except FileNotFoundError:
        return False
    return (before.st_size, before.st_mtime_ns) == (now.st_size, now.st_mtime_ns)

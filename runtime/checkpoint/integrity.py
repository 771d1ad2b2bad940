"""Detects files whose content has changed since it was written. Pure.

Two records are compared with the content:

- Hadoop's local file system writes ``.<name>.crc`` beside each file: a header and the CRC-32 of each block. Spark
  compares them whenever it reads, so it cannot load a file that differs.
- Each snapshot keeps the size and the SHA-256 digest of its files (`FileRecord`).
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from runtime.checkpoint.metadata_log import IncompleteError

_HEADER = struct.Struct(">4sI")
_MAGIC = b"crc\0"
_MAX_BLOCK = 1 << 24


@dataclass(frozen=True, slots=True)
class FileRecord:
    """Record of a file at the time of a snapshot.

    Args:
        size: in bytes.
        mtime_ns: time of its last change, in nanoseconds since the epoch.
        sha256: digest of its content, in hexadecimal digits.
    """

    size: int
    mtime_ns: int
    sha256: str


class ContentCheck:
    """Takes the digest of a file's content, and compares the content with Hadoop's checksums on the way.

    Args:
        checksums: content of the file's ``.crc``; None if there is none. Like Hadoop, ignore one without its header.
    """

    def __init__(self, checksums: bytes | None) -> None:
        self._digest = hashlib.sha256()
        self._sums = b""
        self._block = 0
        self._rest = b""
        self._at = 0
        self._is_same = True
        if checksums is not None and len(checksums) >= _HEADER.size:
            magic, block = _HEADER.unpack_from(checksums)
            if magic == _MAGIC:
                self._sums = checksums[_HEADER.size :]
                self._block = block
                self._is_same = 0 < block <= _MAX_BLOCK

    def update(self, chunk: bytes) -> None:
        """Take in the next bytes of the content."""
        self._digest.update(chunk)
        if not (self._block and self._is_same):
            return
        data = memoryview(self._rest + chunk)
        whole = len(data) - len(data) % self._block
        for start in range(0, whole, self._block):
            self._compare(data[start : start + self._block])
        self._rest = bytes(data[whole:])

    def end(self) -> tuple[str, bool]:
        """Return the digest in hexadecimal digits, and whether the content agrees with the checksums."""
        if self._rest:
            self._compare(memoryview(self._rest))
        return self._digest.hexdigest(), self._is_same and self._at == len(self._sums)

    def _compare(self, block: memoryview) -> None:
        if self._sums[self._at : self._at + 4] != zlib.crc32(block).to_bytes(4, "big"):
            self._is_same = False
        self._at += 4


def checksum_file(path: str) -> str:
    """Return the path of the file in which Hadoop keeps the checksums of another one."""
    directory, slash, name = path.rpartition("/")
    return f"{directory}{slash}.{name}.crc"


def encode_records(records: Mapping[str, FileRecord]) -> bytes:
    """Return the content of a snapshot's list of files."""
    plain = {path: [record.size, record.mtime_ns, record.sha256] for path, record in sorted(records.items())}
    return json.dumps({"files": plain}, separators=(",", ":")).encode()


def decode_records(content: bytes, digest: str) -> dict[str, FileRecord]:
    """Return a snapshot's list of files.

    Args:
        content: as `encode_records` made it.
        digest: the SHA-256 digest of the content, which the snapshot's description holds.

    Raises:
        IncompleteError: the content has another digest.
    """
    if hashlib.sha256(content).hexdigest() != digest:
        raise IncompleteError("the list of its files is damaged: its digest is another one")
    return {path: FileRecord(*values) for path, values in json.loads(content)["files"].items()}


def check_sizes(records: Mapping[str, FileRecord], sizes: Mapping[str, int]) -> None:
    """Check that recorded files are there with their sizes.

    Args:
        records: the recorded files.
        sizes: sizes of the files that are there, in bytes.

    Raises:
        IncompleteError: a file is missing, or has another size.
    """
    for path, record in records.items():
        size = sizes.get(path)
        if size is None:
            raise IncompleteError(f"{path} is missing")
        if size != record.size:
            raise IncompleteError(f"{path} has {size} bytes in place of {record.size}")


def never_rewritten(records: Mapping[str, FileRecord]) -> dict[str, FileRecord]:
    """Return the records of files that are never written again."""
    return {path: record for path, record in records.items() if not _may_be_rewritten(path)}


def check_unchanged(path: str, now: FileRecord, before: FileRecord | None) -> None:
    """Check that a file of a committed batch is the same as in an earlier snapshot.

    Args:
        path: below the checkpointLocation or the sink's log.
        now: its record now.
        before: its record in the earlier snapshot; None if it is new.

    Raises:
        IncompleteError: it has changed, and is none of the files that may be written again.
    """
    if before is None or before.sha256 == now.sha256 or _may_be_rewritten(path):
        return
    raise IncompleteError(f"{path} is not what it was when an earlier checkpoint was taken")


def _may_be_rewritten(path: str) -> bool:
    """Return whether a file may be written again.

    Spark's maintenance writes whole state files again, each run the descriptions of operators, and a rollback the
    query's id.
    """
    return path.endswith((".zip", ".snapshot", ".crc", "checkpoint/metadata")) or "/_metadata/" in path

"""The logs of task attempts: their names, the limits of kept logs, and the owner of their blobs.

While its TaskExecutor lives, an attempt's logs are files there. The TaskExecutor sends them as TRANSIENT blobs to
clients that request them, or piece by piece to clients that follow them. When the attempt ends, it uploads them as
PERMANENT blobs. The job's state holds their keys, so that they are found after the loss of the TaskExecutor and the
job's leaders. (Flink serves the files of living TaskManagers as transient blobs only.)
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedRandom, BufferedReader
from pathlib import Path

from conf.files import make_private, write_private
from runtime.ids import JobID

TASK_LOGS = ("stdout", "stderr")
"""The log files of an attempt; no other file of it is ever served, except `FUNCTION_FILES`."""

FUNCTION_RESULT = ".function-result"
"""The file with the result of a function that runs as a job (`runtime.spark.function_task`); kept like a log."""

FUNCTION_RESULT_MAX_SIZE = 64 * 1024 * 1024
"""Its largest size, in bytes."""

FUNCTION_ERROR = ".function-error"
"""The file with the exception of such a function; kept like a log."""

FUNCTION_ERROR_MAX_SIZE = 1024 * 1024
"""Its largest size, in bytes."""

FUNCTION_FILES = {FUNCTION_RESULT: FUNCTION_RESULT_MAX_SIZE, FUNCTION_ERROR: FUNCTION_ERROR_MAX_SIZE}
"""Files of an attempt that are kept beside its logs, and the largest size of each, in bytes."""

CHUNK = 256 * 1024
"""Largest number of bytes of one `LogChunk`."""

LINE = 8 * 1024  # bytes by which a cut is moved at most, to fall between two lines
NOTICE_ROOM = 200

_NOTICE = re.compile(rb"\n--- ([\d,]+) of the [\d,]+ bytes of this log were left out here \(job\.logs\.max-size\)\n")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._ -]")


@dataclass(frozen=True, slots=True)
class KeptLog:
    """A log of an attempt that is over, kept until its job is forgotten.

    Args:
        name: ``stdout`` or ``stderr``; ``taskexecutor`` or ``spark`` for the lines that these logged while the attempt
            ran; or a name of `FUNCTION_FILES`.
        size: bytes that were written.
        kept: bytes of the blob. A log that was too long has fewer, with a line in the middle that reports the cut.
        blob_key: text of the permanent blob's key; empty for an empty log. `logs_owner` owns the blob.
    """

    name: str
    size: int
    kept: int
    blob_key: str

    @property
    def is_whole(self) -> bool:
        """Return whether the whole log was kept."""
        return self.kept == self.size


@dataclass(frozen=True, slots=True)
class LogPiece:
    """Text that was added to a log, one line of ``job logs -f --json``.

    Args:
        task: name of the task.
        attempt: number of the attempt, from 0.
        name: ``stdout`` or ``stderr``.
        text: the added text.
        is_note: whether *text* is a remark about the log instead.
    """

    task: str
    attempt: int
    name: str
    text: str
    is_note: bool = False


@dataclass(frozen=True, slots=True)
class LogChunk:
    """A piece of a log: its bytes, none at the log's current end; and the log's current size."""

    data: bytes
    size: int


def logs_owner(job_id: JobID) -> JobID:
    """Return the owner of a job's kept logs.

    It is not the job itself, whose files are deleted when it ends: logs are deleted when the job is forgotten.
    """
    return JobID.from_name("logs", job_id)


def write_job_log(directory: Path, job_id: JobID, task: str, attempt: int, name: str, content: bytes) -> None:
    """Write a log to a file that outlives the cluster: ``job-<id>/<task>.<attempt>.<name>`` below *directory*.

    Raises:
        OSError: it cannot be written.
    """
    place = directory / f"job-{job_id}"
    make_private(place, durable=True)
    write_private(place / f"{_NOT_IN_NAMES.sub('_', task)[:150]}.{attempt}.{name}", content)


@contextmanager
def bounded(path: Path, limit: int, start: int = 0) -> Iterator[tuple[BufferedRandom, int, int]]:
    """Yield a log, or its head and its tail with a line between them that reports the omitted bytes.

    Args:
        path: the file, to which other processes may write during the call.
        limit: largest number of bytes.
        start: offset to start at; a file that has become shorter (it was rotated) is read from its beginning.

    Yields:
        A file that can seek, the size of the log, and the size of the file, both in bytes.

    Raises:
        OSError: the file cannot be read.
    """
    with _opened(path) as file, tempfile.TemporaryFile() as copy:
        size = os.fstat(file.fileno()).st_size
        start = start if start <= size else 0
        if size - start <= limit:
            _copy(file, copy, start, size)
        else:
            room = max(limit - NOTICE_ROOM, 0)
            head = _line_end(file, start, start + room // 2)
            tail = _line_start(file, size - (room - room // 2), size)
            _copy(file, copy, start, head)
            copy.write(_notice(tail - head, size - start))
            _copy(file, copy, tail, size)
        kept = copy.tell()
        copy.seek(0)
        yield copy, size - start, kept


def rest_of(kept: bytes, size: int, offset: int) -> bytes:
    """Return the part of a kept log that follows the bytes that a client already has. Pure.

    Args:
        kept: the whole log, or the output of `bounded` for a longer one.
        size: bytes of the log.
        offset: number of bytes that the client already has.
    """
    if len(kept) == size:
        return kept[offset:]
    for found in _NOTICE.finditer(kept):
        left_out, head, tail = int(found[1].replace(b",", b"")), found.start(), kept[found.end() :]
        if head + left_out + len(tail) == size:  # else it is a line of the log itself
            begin = size - len(tail)
            missing = min(left_out, begin - offset)
            return kept[offset:head] + (_notice(missing, size) if missing > 0 else b"") + tail[max(0, offset - begin) :]
    return kept


def _opened(path: Path) -> BufferedReader:
    """Open a log; never follow a symbolic link that its task has put in its place."""
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")


def _notice(left_out: int, size: int) -> bytes:
    return f"\n--- {left_out:,} of the {size:,} bytes of this log were left out here (job.logs.max-size)\n".encode()


def _copy(source: BufferedReader, target: BufferedRandom, start: int, end: int) -> None:
    source.seek(start)
    while start < end and (data := source.read(min(end - start, 1024 * 1024))):
        target.write(data)
        start += len(data)


def _line_end(file: BufferedReader, start: int, at: int) -> int:
    """Return the end of the last line that ends shortly before *at*, or *at* where none does."""
    begin = max(start, at - LINE)
    file.seek(begin)
    found = file.read(at - begin).rfind(b"\n")
    return at if found < 0 else begin + found + 1


def _line_start(file: BufferedReader, at: int, end: int) -> int:
    """Return the start of the first line that starts shortly after *at*, or *at* where none does."""
    file.seek(at)
    found = file.read(min(LINE, end - at)).find(b"\n")
    return at if found < 0 else at + found + 1


def read_chunk(path: Path, offset: int) -> LogChunk:
    """Return the bytes of a log from *offset* on, at most `CHUNK`; none while the file is missing. Raises OSError."""
    try:
        with _opened(path) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(min(offset, size))
            return LogChunk(file.read(CHUNK), size)
    except FileNotFoundError:
        return LogChunk(b"", 0)

"""The logs of task attempts: what they are called, how much of them is kept, and whose blobs they are afterwards.

While its TaskExecutor lives, an attempt's logs are files there: sent as TRANSIENT blobs to whoever asks, and read piece
by piece by who follows them. When the attempt ends they are put as PERMANENT blobs, whose keys go with the attempt into
its job's state, so that they are found when the TaskExecutor and the job's leaders are gone. (Flink serves the files of
living TaskManagers as transient blobs only.)
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

from conf.files import write_private
from runtime.ids import JobID

TASK_LOGS = ("stdout", "stderr")
"""The files of an attempt that are its logs; no other file of it is ever served, but `FUNCTION_FILES`."""

FUNCTION_RESULT = ".function-result"
"""The file with what a function returned that runs as a job (`runtime.spark.function_task`); kept as logs are."""

FUNCTION_RESULT_MAX_SIZE = 64 * 1024 * 1024
"""Most bytes of it."""

FUNCTION_ERROR = ".function-error"
"""The file with the exception that such a function raised; kept as logs are."""

FUNCTION_ERROR_MAX_SIZE = 1024 * 1024
"""Most bytes of it."""

FUNCTION_FILES = {FUNCTION_RESULT: FUNCTION_RESULT_MAX_SIZE, FUNCTION_ERROR: FUNCTION_ERROR_MAX_SIZE}
"""Files of an attempt that are kept beside its logs, and the most bytes of each."""

CHUNK = 256 * 1024
"""Most bytes of one `LogChunk`."""

LINE = 8 * 1024  # how far a cut is moved to fall between two lines
NOTICE_ROOM = 200

_NOTICE = re.compile(rb"\n--- ([\d,]+) of the [\d,]+ bytes of this log were left out here \(job\.logs\.max-size\)\n")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._ -]")


@dataclass(frozen=True, slots=True)
class KeptLog:
    """A log of an attempt that is over, kept until its job is forgotten.

    Args:
        name: ``stdout``, ``stderr``; ``taskexecutor`` and ``spark``: what these logged while the attempt ran;
            those of `FUNCTION_FILES`.
        size: bytes that were written.
        kept: bytes of the blob: fewer, and with a line that says so in their middle, where the log was too long.
        blob_key: text of the permanent blob's key; empty for an empty log. The blob is `logs_owner`'s.
    """

    name: str
    size: int
    kept: int
    blob_key: str

    @property
    def is_whole(self) -> bool:
        """True where nothing was left out."""
        return self.kept == self.size


@dataclass(frozen=True, slots=True)
class LogPiece:
    """Text that was added to a log, one line of ``job logs -f --json``.

    Args:
        task: name of the task.
        attempt: number of the attempt, from 0.
        name: ``stdout`` or ``stderr``.
        text: what was added.
        is_note: whether the text is a remark on the log instead.
    """

    task: str
    attempt: int
    name: str
    text: str
    is_note: bool = False


@dataclass(frozen=True, slots=True)
class LogChunk:
    """A piece of a log: its bytes, none at the present end; and how many the log has at present."""

    data: bytes
    size: int


def logs_owner(job_id: JobID) -> JobID:
    """Return the owner of a job's kept logs: its files go when it ends, its logs when it is forgotten."""
    return JobID.from_name("logs", job_id)


def write_job_log(directory: Path, job_id: JobID, task: str, attempt: int, name: str, content: bytes) -> None:
    """Write a log where it outlives its cluster: ``job-<id>/<task>.<attempt>.<name>`` below *directory*.

    Raises:
        OSError: it cannot be written.
    """
    place = directory / f"job-{job_id}"
    place.mkdir(mode=0o700, exist_ok=True)
    write_private(place / f"{_NOT_IN_NAMES.sub('_', task)[:150]}.{attempt}.{name}", content)


@contextmanager
def bounded(path: Path, limit: int, start: int = 0) -> Iterator[tuple[BufferedRandom, int, int]]:
    """A log, or its head and its tail with a line between them that says how much was left out.

    Args:
        path: the file; it may be written to meanwhile.
        limit: most bytes.
        start: where to begin; in a file that has become shorter (it was rotated) at its beginning.

    Yields:
        a file that can seek, the bytes of the log, and how many of them, or instead of them, are in the file.

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
    """Return what follows in a log whose first bytes are known, of what was kept of it. Pure.

    Args:
        kept: all of the log, or what `bounded` makes of a longer one.
        size: bytes of the log.
        offset: how many of them are known.
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
    """A log; never what its task has put a link to in its place."""
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")


def _notice(left_out: int, size: int) -> bytes:
    return f"\n--- {left_out:,} of the {size:,} bytes of this log were left out here (job.logs.max-size)\n".encode()


def _copy(source: BufferedReader, target: BufferedRandom, start: int, end: int) -> None:
    source.seek(start)
    while start < end and (data := source.read(min(end - start, 1024 * 1024))):
        target.write(data)
        start += len(data)


def _line_end(file: BufferedReader, start: int, at: int) -> int:
    """The end of the last line that ends shortly before *at*, or *at* where none does."""
    begin = max(start, at - LINE)
    file.seek(begin)
    found = file.read(at - begin).rfind(b"\n")
    return at if found < 0 else begin + found + 1


def _line_start(file: BufferedReader, at: int, end: int) -> int:
    """The start of the first line that starts shortly after *at*, or *at* where none does."""
    file.seek(at)
    found = file.read(min(LINE, end - at)).find(b"\n")
    return at if found < 0 else at + found + 1


def read_chunk(path: Path, offset: int) -> LogChunk:
    """The bytes of a log from *offset* on, at most `CHUNK`; none where there is no such file yet. Raises OSError."""
    try:
        with _opened(path) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(min(offset, size))
            return LogChunk(file.read(CHUNK), size)
    except FileNotFoundError:
        return LogChunk(b"", 0)

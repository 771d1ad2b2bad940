"""Finished jobs, kept for a while (Flink's `ExecutionGraphInfoStore`): on files or in memory."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from dataclasses import dataclass
from pathlib import Path

from actors.errors import WireError
from conf.configuration import Configuration
from conf.files import write_private
from conf.options import JobStoreOptions, JobStoreType
from runtime.ids import JobID
from runtime.jobgraph.codec import decode, encode
from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph, JobDetails

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Kept:
    end_ms: int
    size: int
    number: int


class Retention:
    """Which finished jobs are kept: bounded by count, bytes and age. The first to end is the first to be dropped.

    Pure; times are milliseconds since the epoch.

    Args:
        capacity: most jobs (``jobstore.max-capacity``).
        max_bytes: most bytes of all together (``jobstore.cache-size``); the job that ended last is kept whatever its
            size, or nobody would ever see how it ended.
        expiration_s: seconds after its end at which a job is dropped (``jobstore.expiration-time``).
    """

    def __init__(self, capacity: int, max_bytes: int, expiration_s: float) -> None:
        self._capacity = capacity
        self._max_bytes = max_bytes
        self._expiration_ms = expiration_s * 1000
        self._kept: dict[JobID, _Kept] = {}
        # By their ends, and in the order in which they came where these are the same: ten thousand jobs are not sorted
        # for each that ends.
        self._by_end: list[tuple[int, int, JobID]] = []
        self._added = 0
        self.size = 0
        """Bytes of all kept jobs together."""

    def add(self, job_id: JobID, end_ms: int, size: int) -> None:
        """Keep a job; one that is kept already is replaced."""
        former = self._remove(job_id)
        self._added += 1
        kept = self._kept[job_id] = _Kept(end_ms, size, self._added if former is None else former.number)
        insort(self._by_end, (end_ms, kept.number, job_id))
        self.size += size

    def clear(self) -> None:
        """Forget all jobs."""
        self._kept.clear()
        self._by_end.clear()
        self.size = 0

    def drop_surplus(self, now_ms: int) -> list[JobID]:
        """Drop what is too old or too much; returns what was dropped, the oldest first."""
        dropped: list[JobID] = []
        count, size = len(self._kept), self.size
        for end_ms, _, job_id in self._by_end:
            too_old = now_ms - end_ms > self._expiration_ms
            too_many = count > self._capacity
            too_large = size > self._max_bytes and count > 1
            if not (too_old or too_many or too_large):
                break
            count, size = count - 1, size - self._kept.pop(job_id).size
            dropped.append(job_id)
        del self._by_end[: len(dropped)]
        self.size = size
        return dropped

    def _remove(self, job_id: JobID) -> _Kept | None:
        job = self._kept.pop(job_id, None)
        if job is not None:
            del self._by_end[bisect_left(self._by_end, (job.end_ms, job.number, job_id))]
            self.size -= job.size
        return job


class ArchivedExecutionGraphStore(ABC):
    """The one-line details of all jobs are held in memory, the jobs themselves where the subclass keeps them.

    Any thread may call any method; `write`, `enter`, `get` and `expire` may do file I/O.

    Args:
        retention: fresh; says which jobs are kept.
    """

    survives_its_process: bool
    """Whether a Dispatcher that is started anew finds the jobs again."""

    def __init__(self, retention: Retention) -> None:
        self._retention = retention
        self._details: dict[JobID, JobDetails] = {}
        self._changing = threading.Lock()

    @abstractmethod
    def load(self) -> None:
        """Find what an earlier Dispatcher archived; what is damaged is reported and left alone."""

    @abstractmethod
    def _write(self, job_id: JobID, data: bytes) -> None:
        """Keep an encoded job; raises OSError."""

    @abstractmethod
    def _read(self, job_id: JobID) -> bytes | None:
        """Return what was written; None when it has been removed."""

    @abstractmethod
    def _remove(self, job_id: JobID) -> None:
        """Keep it no more; no error when it is not there."""

    def write(self, job: ArchivedExecutionGraph) -> int:
        """Keep the whole of a job that is over; nobody finds it before `enter`. Idempotent.

        Returns:
            its size in bytes.

        Raises:
            OSError: it cannot be written; nothing has changed.
        """
        data = encode(job)
        with self._changing:
            self._write(job.job_id, data)
        return len(data)

    def enter(self, job: ArchivedExecutionGraph, size: int, now_ms: int) -> list[JobID]:
        """Let a job be found that was written with that *size*. Idempotent.

        Returns:
            the jobs that had to go for it, at *now_ms*, milliseconds since the epoch.
        """
        with self._changing:
            self._keep(job, size)
            return self._drop_surplus(now_ms)

    def get(self, job_id: JobID) -> ArchivedExecutionGraph | None:
        """Return the whole of a finished job; None when it is not (any more) kept.

        Raises:
            OSError, WireError: it is kept, and cannot be read.
        """
        if job_id not in self._details:
            return None
        data = self._read(job_id)
        return None if data is None else decode(data, ArchivedExecutionGraph)

    def details(self) -> list[JobDetails]:
        """Return all kept jobs in one line each, in no order."""
        return list(self._details.values())

    def find(self, job_id: JobID) -> JobDetails | None:
        """Return one kept job in one line; None when it is not kept."""
        return self._details.get(job_id)

    def expire(self, now_ms: int) -> list[JobID]:
        """Drop what is too old or too much; returns the dropped jobs."""
        with self._changing:
            return self._drop_surplus(now_ms)

    def _keep(self, job: ArchivedExecutionGraph, size: int) -> None:
        details = job.details()
        self._details[job.job_id] = details
        self._retention.add(job.job_id, details.end_ms or 0, size)

    def _drop_surplus(self, now_ms: int) -> list[JobID]:
        dropped = self._retention.drop_surplus(now_ms)
        for job_id in dropped:
            del self._details[job_id]
            self._remove(job_id)
        return dropped


class MemoryArchivedExecutionGraphStore(ArchivedExecutionGraphStore):
    """In the memory of the Dispatcher, with which they go (Flink's `MemoryExecutionGraphInfoStore`)."""

    survives_its_process = False

    def __init__(self, retention: Retention) -> None:
        super().__init__(retention)
        self._jobs: dict[JobID, bytes] = {}

    def load(self) -> None:
        """Do nothing: what this process archived is still there."""

    def _write(self, job_id: JobID, data: bytes) -> None:
        self._jobs[job_id] = data

    def _read(self, job_id: JobID) -> bytes | None:
        return self._jobs.get(job_id)

    def _remove(self, job_id: JobID) -> None:
        self._jobs.pop(job_id, None)


class FileArchivedExecutionGraphStore(ArchivedExecutionGraphStore):
    """One file a job (Flink's `FileExecutionGraphInfoStore`, which forgets them with its process).

    Args:
        retention: see the base.
        directory: where the files are; it exists.
    """

    survives_its_process = True

    def __init__(self, retention: Retention, directory: Path) -> None:
        super().__init__(retention)
        self._directory = directory

    def load(self) -> None:
        with self._changing:
            self._details.clear()
            self._retention.clear()
            for path in self._directory.glob("*.job"):
                try:
                    data = path.read_bytes()
                    self._keep(decode(data, ArchivedExecutionGraph), len(data))
                except (OSError, WireError) as error:
                    logger.error("the archived job %s cannot be read: %s", path, error)

    def _write(self, job_id: JobID, data: bytes) -> None:
        write_private(self._path(job_id), data)

    def _read(self, job_id: JobID) -> bytes | None:
        try:
            return self._path(job_id).read_bytes()
        except FileNotFoundError:
            if job_id in self._details:
                raise
            return None  # it was dropped at this moment

    def _remove(self, job_id: JobID) -> None:
        try:
            self._path(job_id).unlink(missing_ok=True)
        except OSError as error:
            logger.error("the dropped job %s is still there, a later start drops it again: %s", job_id, error)

    def _path(self, job_id: JobID) -> Path:
        return self._directory / f"{job_id}.job"


def create_archive(configuration: Configuration, directory: Path) -> ArchivedExecutionGraphStore:
    """Return the store that ``jobstore.*`` describes; *directory* is where its files are, if it has any."""
    retention = Retention(
        configuration.get(JobStoreOptions.MAX_CAPACITY),
        configuration.get(JobStoreOptions.CACHE_SIZE),
        configuration.get(JobStoreOptions.EXPIRATION_TIME),
    )
    match configuration.get(JobStoreOptions.TYPE):
        case JobStoreType.FILE:
            return FileArchivedExecutionGraphStore(retention, directory)
        case JobStoreType.MEMORY:
            return MemoryArchivedExecutionGraphStore(retention)

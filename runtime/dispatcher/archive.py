"""Archive of finished jobs, in files or in memory; it drops the oldest (Flink's `ExecutionGraphInfoStore`)."""

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
from runtime.history.directory import HistoryDirectory
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
    """Decides which finished jobs are kept, by count, bytes and age. The job that ended first is dropped first.

    Pure; times are milliseconds since the epoch.

    Args:
        capacity: most jobs (``jobstore.max-capacity``).
        max_bytes: most bytes of all jobs together (``jobstore.cache-size``). The job that ended last is kept whatever
            its size, because otherwise no client could see how it ended.
        expiration_s: seconds after its end at which a job is dropped (``jobstore.expiration-time``).
    """

    def __init__(self, capacity: int, max_bytes: int, expiration_s: float) -> None:
        self._capacity = capacity
        self._max_bytes = max_bytes
        self._expiration_ms = expiration_s * 1000
        self._kept: dict[JobID, _Kept] = {}
        # Sorted by end, then by arrival, so that ten thousand jobs are not sorted again for each that ends.
        self._by_end: list[tuple[int, int, JobID]] = []
        self._added = 0
        self.size = 0
        """Bytes of all kept jobs together."""

    def add(self, job_id: JobID, end_ms: int, size: int) -> None:
        """Keep a job; replace it if it is kept already."""
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
        """Drop the jobs beyond the limits; return them, the oldest first."""
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
    """Holds the one-line details of all jobs in memory; subclasses hold the jobs themselves.

    Any thread may call any method; `write`, `enter`, `get` and `expire` may do file I/O.

    Args:
        retention: decides which jobs are kept; must be empty.
    """

    survives_its_process: bool
    """True if a new Dispatcher finds the jobs of an earlier process."""

    def __init__(self, retention: Retention) -> None:
        self._retention = retention
        self._details: dict[JobID, JobDetails] = {}
        self._changing = threading.Lock()

    @abstractmethod
    def load(self) -> None:
        """Find the jobs that an earlier Dispatcher archived; log those that cannot be read, and leave them alone."""

    @abstractmethod
    def _write(self, job_id: JobID, data: bytes) -> None:
        """Store an encoded job; raises OSError."""

    @abstractmethod
    def _read(self, job_id: JobID) -> bytes | None:
        """Return an encoded job; None if it has been removed."""

    @abstractmethod
    def _remove(self, job_id: JobID) -> None:
        """Remove a job; no error if it is missing."""

    def write(self, job: ArchivedExecutionGraph) -> int:
        """Store the whole of a job that is over; no client finds it before `enter`. Idempotent.

        Returns:
            its size in bytes.

        Raises:
            OSError: it cannot be stored; nothing has changed.
        """
        data = encode(job)
        with self._changing:
            self._write(job.job_id, data)
        return len(data)

    def enter(self, job: ArchivedExecutionGraph, size: int, now_ms: int) -> list[JobID]:
        """Make a written job visible; *size* is what `write` has returned. Idempotent.

        Returns:
            the jobs that were dropped for it, at *now_ms*, milliseconds since the epoch.
        """
        with self._changing:
            self._keep(job, size)
            return self._drop_surplus(now_ms)

    def get(self, job_id: JobID) -> ArchivedExecutionGraph | None:
        """Return the whole of a finished job; None if it is not kept (any more).

        Raises:
            OSError, WireError: it is kept, but cannot be read.
        """
        if job_id not in self._details:
            return None
        data = self._read(job_id)
        return None if data is None else decode(data, ArchivedExecutionGraph)

    def details(self) -> list[JobDetails]:
        """Return one line for each kept job, in no particular order."""
        return list(self._details.values())

    def find(self, job_id: JobID) -> JobDetails | None:
        """Return the line of a kept job; None if it is not kept."""
        return self._details.get(job_id)

    def expire(self, now_ms: int) -> list[JobID]:
        """Drop the jobs beyond the limits; return them."""
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
    """Archive in the memory of the Dispatcher, lost with its process (Flink's `MemoryExecutionGraphInfoStore`)."""

    survives_its_process = False

    def __init__(self, retention: Retention) -> None:
        super().__init__(retention)
        self._jobs: dict[JobID, bytes] = {}

    def load(self) -> None:
        """Do nothing: the memory of this process has all jobs already."""

    def _write(self, job_id: JobID, data: bytes) -> None:
        self._jobs[job_id] = data

    def _read(self, job_id: JobID) -> bytes | None:
        return self._jobs.get(job_id)

    def _remove(self, job_id: JobID) -> None:
        self._jobs.pop(job_id, None)


class FileArchivedExecutionGraphStore(ArchivedExecutionGraphStore):
    """Archive with one file for each job (Flink's `FileExecutionGraphInfoStore`, which loses them with its process).

    Args:
        retention: see the base.
        directory: directory of the files; it exists.
        history: takes over the files of dropped jobs; None to delete them.
    """

    survives_its_process = True

    def __init__(self, retention: Retention, directory: Path, history: HistoryDirectory | None = None) -> None:
        super().__init__(retention)
        self._directory = directory
        self._history = history

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
            return None  # it was dropped between the two looks

    def _remove(self, job_id: JobID) -> None:
        try:
            if self._history is None:
                self._path(job_id).unlink(missing_ok=True)
            else:
                self._history.take_over(self._path(job_id), job_id)
        except FileNotFoundError:
            logger.info("the file of the dropped job %s is gone already", job_id)
        except OSError as error:
            logger.error("the dropped job %s could not be removed, a later start drops it again: %s", job_id, error)

    def _path(self, job_id: JobID) -> Path:
        return self._directory / f"{job_id}.job"


def create_archive(
    configuration: Configuration, directory: Path, history: HistoryDirectory | None = None
) -> ArchivedExecutionGraphStore:
    """Return the store that ``jobstore.*`` describes.

    Args:
        configuration: of the cluster.
        directory: for its files, if it has any.
        history: as in `FileArchivedExecutionGraphStore`.
    """
    retention = Retention(
        configuration.get(JobStoreOptions.MAX_CAPACITY),
        configuration.get(JobStoreOptions.CACHE_SIZE),
        configuration.get(JobStoreOptions.EXPIRATION_TIME),
    )
    match configuration.get(JobStoreOptions.TYPE):
        case JobStoreType.FILE:
            return FileArchivedExecutionGraphStore(retention, directory, history)
        case JobStoreType.MEMORY:
            return MemoryArchivedExecutionGraphStore(retention)

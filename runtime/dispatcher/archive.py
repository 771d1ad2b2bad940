"""Finished jobs, kept on files and bounded by count and age (Flink's `FileArchivedExecutionGraphStore`)."""

from __future__ import annotations

import logging
from pathlib import Path

from actors.errors import WireError
from conf.files import write_private
from runtime.ids import JobID
from runtime.jobgraph.codec import decode, encode
from runtime.jobmaster.archived_execution_graph import ArchivedExecutionGraph, JobDetails

log = logging.getLogger(__name__)


class ArchivedExecutionGraphStore:
    """One file a job; the one-line details of all are held in memory. Its methods do small file I/O.

    Args:
        directory: where the files are; it exists.
        capacity: most jobs that are kept (``jobstore.max-capacity``); the oldest go first.
        expiration_s: seconds after its end at which a job is dropped (``jobstore.expiration-time``).
    """

    def __init__(self, directory: Path, capacity: int, expiration_s: float) -> None:
        self._directory = directory
        self._capacity = capacity
        self._expiration_ms = expiration_s * 1000
        self._details: dict[JobID, JobDetails] = {}

    def load(self) -> None:
        """Read what an earlier Dispatcher archived; a damaged file is reported and left alone."""
        self._details.clear()
        for path in self._directory.glob("*.job"):
            try:
                job = decode(path.read_bytes(), ArchivedExecutionGraph)
            except (OSError, WireError) as error:
                log.error("the archived job %s cannot be read: %s", path, error)
                continue
            self._details[job.job_id] = job.details()

    def put(self, job: ArchivedExecutionGraph) -> None:
        """Keep a job that is over; raises OSError when it cannot be written."""
        write_private(self._path(job.job_id), encode(job))
        self._details[job.job_id] = job.details()

    def get(self, job_id: JobID) -> ArchivedExecutionGraph | None:
        """The whole of a finished job; None when it is not (any more) kept."""
        if job_id not in self._details:
            return None
        return decode(self._path(job_id).read_bytes(), ArchivedExecutionGraph)

    def details(self) -> list[JobDetails]:
        """All kept jobs in one line each, in no order."""
        return list(self._details.values())

    def find(self, job_id: JobID) -> JobDetails | None:
        """One kept job in one line."""
        return self._details.get(job_id)

    def expire(self, now_ms: int) -> list[JobID]:
        """Drop what is too old or too much; returns the dropped jobs."""
        by_age = sorted(self._details.values(), key=lambda job: job.end_ms or 0)
        surplus = max(0, len(by_age) - self._capacity)
        dropped = [
            job.job_id
            for index, job in enumerate(by_age)
            if index < surplus or now_ms - (job.end_ms or 0) > self._expiration_ms
        ]
        for job_id in dropped:
            del self._details[job_id]
            self._path(job_id).unlink(missing_ok=True)
        return dropped

    def _path(self, job_id: JobID) -> Path:
        return self._directory / f"{job_id}.job"

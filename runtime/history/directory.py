"""The directory of a cluster's history, as its leaders write it.

It contains:

    jobs/<job id>.job        jobs that are over, and that the cluster has forgotten: the archive's own files
    running/<job id>.job     the last known state of jobs that are not over; shown if the cluster ends before they do
    logs/<blob key>          ends of the kept logs of forgotten jobs
    figures*.jsonl           figures over time (`runtime.history.figures`)
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from conf.configuration import Configuration
from conf.files import make_private, write_private
from conf.options import ClusterOptions, HistoryOptions
from runtime.history.figures import FILE
from runtime.ids import JobID
from runtime.jobgraph.codec import decode, encode
from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph

logger = logging.getLogger(__name__)

NAME = "history"
LOG_END = 64 * 1024
"""Number of bytes that are kept of a log when its job is forgotten: its end."""


@dataclass(frozen=True, slots=True)
class HistoryFile:
    """A file of the history: its path, its bytes, and when it was written, in milliseconds since the epoch."""

    path: Path
    size: int
    written_ms: int


def surplus(files: Iterable[HistoryFile], max_bytes: int, expiration_ms: float, now_ms: int) -> list[HistoryFile]:
    """Return the files to delete, the oldest first: the too old ones, and those beyond the size. Pure."""
    by_age = sorted(files, key=lambda file: (file.written_ms, file.path))
    size = sum(file.size for file in by_age)
    found = []
    for file in by_age:
        if size <= max_bytes and now_ms - file.written_ms <= expiration_ms:
            break
        found.append(file)
        size -= file.size
    return found


class HistoryDirectory:
    """Writes the history of a cluster; any thread may call any method.

    Args:
        root: the directory; its parts are made when they are needed, with mode 0700.
        max_bytes: most bytes of all files (``history.max-size``).
        expiration_s: seconds after which a file is deleted (``history.expiration-time``).
    """

    def __init__(self, root: Path, max_bytes: int, expiration_s: float) -> None:
        self.root = root
        self._max_bytes = max_bytes
        self._expiration_ms = expiration_s * 1000

    @classmethod
    def of(cls, configuration: Configuration) -> HistoryDirectory | None:
        """Return the directory of a cluster; None if it keeps no history."""
        get = configuration.get
        if not get(HistoryOptions.ENABLED):
            return None
        return cls(
            get(ClusterOptions.SHARED_DIR) / NAME, get(HistoryOptions.MAX_SIZE), get(HistoryOptions.EXPIRATION_TIME)
        )

    def take_over(self, archived: Path, job_id: JobID) -> None:
        """Move the file of an ended job here, which the cluster forgets. Raises OSError."""
        make_private(self.root / "jobs")
        archived.replace(self.root / "jobs" / f"{job_id}.job")
        self.forget_running(job_id)

    def read_ended(self, job_id: JobID) -> ArchivedExecutionGraph | None:
        """Return an ended job that was taken over; None if it is not here (any more). Raises OSError, WireError."""
        try:
            data = (self.root / "jobs" / f"{job_id}.job").read_bytes()
        except FileNotFoundError:
            return None
        return decode(data, ArchivedExecutionGraph)

    def owner_of(self, job_id: JobID) -> str | None:
        """Return the name of a job's owner, empty if it has none; None if the job is not here.

        Raises:
            OSError, WireError: its file cannot be read.
        """
        graph = self.read_ended(job_id)
        return None if graph is None else graph.owner

    def note_running(self, graph: ArchivedExecutionGraph) -> None:
        """Store the present state of a job that is not over. Raises OSError."""
        make_private(self.root / "running")
        write_private(self._running(graph.job_id), encode(graph), durable=False)

    def knows_running(self, job_id: JobID) -> bool:
        """Return whether a state of a job is stored that was not over."""
        return self._running(job_id).exists()

    def forget_running(self, job_id: JobID) -> None:
        """Remove the stored state of a job that is over now; no error if there is none. Raises OSError."""
        self._running(job_id).unlink(missing_ok=True)

    def running(self) -> list[JobID]:
        """Return the jobs with a stored state that was not over."""
        return [JobID(path.stem) for path in (self.root / "running").glob("*.job")]

    def keep_log(self, key: str, content: bytes) -> None:
        """Store the end of a kept log, whose blob is about to be deleted. Raises OSError."""
        make_private(self.root / "logs")
        write_private(self.root / "logs" / key, content[-LOG_END:], durable=False)

    def expire(self, now_ms: int) -> list[Path]:
        """Delete the files beyond the limits; return them. One that cannot be deleted is logged, and tried again."""
        deleted = []
        for file in surplus(self._files(), self._max_bytes, self._expiration_ms, now_ms):
            try:
                file.path.unlink(missing_ok=True)
            except OSError as error:
                logger.error("%s of the history cannot be deleted, a later look tries it again: %s", file.path, error)
            else:
                deleted.append(file.path)
        return deleted

    def _running(self, job_id: JobID) -> Path:
        return self.root / "running" / f"{job_id}.job"

    def _files(self) -> Iterator[HistoryFile]:
        paths = [path for part in ("jobs", "running", "logs") for path in (self.root / part).glob("*")]
        for path in [*paths, *self.root.glob("figures-*.jsonl"), *self.root.glob(FILE)]:
            try:
                status = path.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            yield HistoryFile(path, status.st_size, status.st_mtime_ns // 1_000_000)

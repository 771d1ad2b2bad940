"""The history of one cluster, read from its files, which are never changed here.

Ended jobs are in the archive and in the history (`HistoryDirectory`). A job that its cluster did not end is SUSPENDED
since its state was last written; it is never shown as running.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from actors.errors import WireError
from conf.configuration import Configuration
from conf.errors import ConfigurationError
from conf.options import ClusterOptions, HistoryOptions
from runtime.environment.directory import ClusterDirectory
from runtime.errors import ClusterError
from runtime.history.directory import NAME
from runtime.history.figures import FigureReader, Sample
from runtime.ids import JobID
from runtime.job_logs import KeptLog
from runtime.jobgraph.codec import decode
from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph, AttemptInfo, JobDetails
from runtime.protocol.execution_state import ExecutionState, JobStatus

logger = logging.getLogger(__name__)

MISSED_INTERVALS = 3
"""A cluster on several hosts counts as ended after so many intervals without figures."""


@dataclass(frozen=True, slots=True)
class _Known:
    changed_ns: int
    size: int
    details: JobDetails | None


def suspended(graph: ArchivedExecutionGraph, at_ms: int) -> ArchivedExecutionGraph:
    """Return a job whose cluster ended before it did, as it was last seen: SUSPENDED then, with its attempts. Pure.

    Args:
        graph: the last stored state of the job.
        at_ms: when that was stored, in milliseconds since the epoch.
    """
    tasks = tuple(
        replace(task, attempts=tuple(_ended(attempt, at_ms) for attempt in task.attempts), waiting_for="")
        for task in graph.tasks
    )
    states = {task.key: task.state for task in tasks}
    vertices = tuple(replace(vertex, state=states.get(vertex.task, vertex.state)) for vertex in graph.vertices)
    return replace(
        graph,
        status=JobStatus.SUSPENDED,
        timestamps={**graph.timestamps, JobStatus.SUSPENDED.value: at_ms},
        tasks=tasks,
        vertices=vertices,
    )


def _ended(attempt: AttemptInfo, at_ms: int) -> AttemptInfo:
    """Return an attempt as CANCELED when its cluster ended, unless it was over before."""
    if attempt.state.is_terminal:
        return attempt
    times = {**attempt.timestamps, ExecutionState.CANCELED.value: at_ms}
    return replace(attempt, state=ExecutionState.CANCELED, timestamps=times)


class ClusterHistory:
    """The history of one cluster; any thread may call any method. Its methods do file I/O.

    Args:
        name: of the cluster.
        root: its runtime directory.
        configuration: of the cluster.
        now_ms: returns milliseconds since the epoch.

    Attributes:
        name: of the cluster.
        configuration: of the cluster.
    """

    def __init__(
        self,
        name: str,
        root: Path,
        configuration: Configuration,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.name = name
        self.configuration = configuration
        self.directory = ClusterDirectory(root)
        shared = configuration.get(ClusterOptions.SHARED_DIR)
        self._is_shared = shared != root
        self._archive = shared / "archive"
        self._history = shared / NAME
        self._figures = FigureReader(self._history)
        self._now_ms = now_ms
        self._known: dict[Path, _Known] = {}
        self._damaged: dict[Path, str] = {}
        self._reading = threading.Lock()

    @classmethod
    def open(cls, root: Path, configuration: Configuration) -> ClusterHistory:
        """Return the history of the cluster of a runtime directory.

        Args:
            root: the directory.
            configuration: of the command; that of the cluster counts instead while it runs, or after it was killed.

        Raises:
            ClusterError: there is no such directory, or it holds no history.
        """
        own = configuration.set(ClusterOptions.RUNTIME_DIR, root)
        file = ClusterDirectory(root).configuration_file
        try:
            if file.exists():
                own = Configuration.read(file)
        except (OSError, ConfigurationError) as error:
            logger.warning("the configuration %s cannot be read, that of the command is used: %s", file, error)
        shared = own.get(ClusterOptions.SHARED_DIR)
        if not any(path.is_dir() for path in (shared / "archive", shared / NAME)):
            raise ClusterError(
                f"there is no history of a cluster in {shared}",
                "name the runtime directory of a cluster with --dir DIR, or with -D cluster.id=NAME",
            )
        return cls(own.get(ClusterOptions.ID) if file.exists() else root.name, root, own)

    @property
    def runs(self) -> bool:
        """Return whether the cluster runs, as far as this machine sees."""
        if self.directory.is_running():
            return True
        if not self._is_shared:
            return False
        interval_ms = self.configuration.get(HistoryOptions.INTERVAL) * 1000
        try:
            last_ms = (self._history / "figures.jsonl").stat().st_mtime_ns // 1_000_000
        except FileNotFoundError:
            return False
        return self._now_ms() - last_ms < MISSED_INTERVALS * interval_ms

    def jobs(self) -> list[JobDetails]:
        """Return the jobs that are over, and those that the cluster did not end, the newest first.

        Jobs that still run are left out. So are files that cannot be read; `damaged` names them.

        Raises:
            OSError: a directory cannot be read.
        """
        with self._reading:
            over = {job.job_id: job for path in self._ended() if (job := self._details(path)) is not None}
            ran = self._running_now()
            for path in self._last_states():
                job = self._details(path)
                if job is not None and job.job_id not in over and job.job_id not in ran:
                    at_ms = self._known[path].changed_ns // 1_000_000
                    over[job.job_id] = replace(job, status=JobStatus.SUSPENDED, end_ms=at_ms, waiting_for="")
        return sorted(over.values(), key=lambda job: job.start_ms, reverse=True)

    def job(self, job_id: JobID) -> ArchivedExecutionGraph | None:
        """Return a job as a whole; None if the history has no such job.

        Raises:
            OSError, WireError: its file cannot be read.
        """
        for directory in (self._archive, self._history / "jobs"):
            data = _content(directory / f"{job_id}.job")
            if data is not None:
                return decode(data, ArchivedExecutionGraph)
        path = self._history / "running" / f"{job_id}.job"
        data = _content(path)
        if data is None or job_id in self._running_now():
            return None
        graph = decode(data, ArchivedExecutionGraph)
        return suspended(graph, path.stat().st_mtime_ns // 1_000_000)

    def has(self, job_id: JobID) -> bool:
        """Return whether there is a file of a job."""
        parts = (self._archive, self._history / "jobs", self._history / "running")
        return any((part / f"{job_id}.job").exists() for part in parts)

    def log(self, owner: str, key: str) -> bytes | None:
        """Return a kept log of a job, or its end if the cluster has forgotten the job; None if it is not kept.

        Args:
            owner: of the log's blob (`runtime.job_logs.logs_owner`).
            key: of the log's blob (`KeptLog.blob_key`).

        Raises:
            OSError: it cannot be read.
        """
        for path in self.directory.root.glob(f"blob*/job_{owner}/blob_{key}"):
            data = _content(path)
            if data is not None:
                return data
        return _content(self._history / "logs" / key)

    def points(self, since_ms: int, until_ms: int, most: int) -> tuple[list[Sample], int]:
        """Return about *most* points of the figures of a time range; see `FigureReader.points`. Raises OSError."""
        return self._figures.points(since_ms, until_ms, most)

    @property
    def audit_log(self) -> Path:
        """The audit log of the cluster's web endpoints on this machine."""
        return self.directory.audit_log

    def damaged(self) -> list[str]:
        """Return a line for each file that the last `jobs` could not read."""
        return list(self._damaged.values())

    def _ended(self) -> Iterator[Path]:
        """Return the files of jobs that are over; those that the cluster remembers come last, and so win."""
        yield from sorted((self._history / "jobs").glob("*.job"))
        yield from sorted(self._archive.glob("*.job"))

    def _last_states(self) -> list[Path]:
        return sorted((self._history / "running").glob("*.job"))

    def _running_now(self) -> set[JobID]:
        """Return the jobs that run at present: those whose states were written since the running cluster began."""
        if not self.runs:
            return set()
        try:
            began_ms = self.directory.read_descriptor().started_ms
        except (OSError, ClusterError):
            began_ms = 0  # it is being started or stopped, or runs on other hosts
        found = set()
        for path in self._last_states():
            try:
                if path.stat().st_mtime_ns // 1_000_000 >= began_ms:
                    found.add(JobID(path.stem))
            except (FileNotFoundError, ValueError):
                continue
        return found

    def _details(self, path: Path) -> JobDetails | None:
        """Return the line of a job; None if its file is gone or cannot be read. A file is decoded once."""
        try:
            status = path.stat()
            known = self._known.get(path)
            if known is not None and (known.changed_ns, known.size) == (status.st_mtime_ns, status.st_size):
                return known.details
            details = decode(path.read_bytes(), ArchivedExecutionGraph).details()
            self._damaged.pop(path, None)
        except FileNotFoundError:
            self._known.pop(path, None)
            self._damaged.pop(path, None)
            return None
        except (OSError, WireError) as error:
            details = None
            line = f"the archived job {path} cannot be read and is left out: {' '.join(str(error).split())}"
            if self._damaged.get(path) != line:
                logger.error("%s", line)
            self._damaged[path] = line
        self._known[path] = _Known(status.st_mtime_ns, status.st_size, details)
        return details


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def log_keys(graph: ArchivedExecutionGraph, skipped: tuple[str, ...]) -> list[KeptLog]:
    """Return the kept logs of a job's attempts that have content, except those of the names *skipped*. Pure."""
    return [
        log
        for task in graph.tasks
        for attempt in task.attempts
        for log in attempt.logs
        if log.blob_key and log.name not in skipped
    ]

"""Leases on environments (Flink's `LibraryCacheManager`, with Python environments for class loaders)."""

from __future__ import annotations

import logging
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from runtime.ids import JobID
from runtime.librarycache.builder import Cancelled, EnvironmentBuilder, Fetch
from runtime.librarycache.environment import EnvironmentSpec, PythonEnvironment
from runtime.librarycache.errors import LeaseConflictError, LibraryCacheError

log = logging.getLogger(__name__)

_INCOMING = "incoming-"


class EnvironmentLease:
    """A job's claim on its environment (Flink's `ClassLoaderLease`); release it once, when the job has left."""

    def __init__(self, manager: LibraryCacheManager, job_id: JobID) -> None:
        self._manager = manager
        self.job_id = job_id
        self.released = False

    def get_or_resolve(
        self, spec: EnvironmentSpec, fetch: Fetch, cancelled: Cancelled = lambda: False
    ) -> PythonEnvironment:
        """The job's environment, built if there is none of its files yet; blocks meanwhile.

        Args:
            spec: the environment's files; the same for all leases of a job.
            fetch: gives the local copy of a library's file.
            cancelled: asked now and then while it is built; True ends that.

        Raises:
            LeaseConflictError: the job has another environment already.
            EnvironmentBuildError, OSError: it cannot be built.
            LibraryCacheError: the lease was released.
        """
        return self._manager._resolve(self, spec, fetch, cancelled)

    def release(self) -> None:
        """Give the claim back; idempotent."""
        self._manager._release(self)


class _Entry:
    """An environment, and the jobs that hold it."""

    def __init__(self, spec: EnvironmentSpec) -> None:
        self.spec = spec
        self.holders: set[JobID] = set()
        self.unused_since = 0.0
        self.building = threading.Lock()
        self.built: PythonEnvironment | None = None


class LibraryCacheManager:
    """The environments below one directory.

    An environment is built in a directory of its own that is renamed when it is whole, so a killed worker leaves none
    that is half built, and its successor uses what is there. Safe for use by several threads.

    Args:
        directory: where they are; made when missing; one manager's alone.
        builder: builds them.
        retention_s: seconds that an unused environment is kept for the next job.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        directory: Path,
        builder: EnvironmentBuilder | None = None,
        retention_s: float = 3600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = directory
        self._builder = builder or EnvironmentBuilder()
        self._retention_s = retention_s
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        self._jobs: dict[JobID, tuple[int, EnvironmentSpec | None]] = {}
        self._found_at = clock()
        directory.mkdir(parents=True, mode=0o700, exist_ok=True)
        for left in directory.glob(f"{_INCOMING}*"):
            shutil.rmtree(left)

    def register_lease(self, job_id: JobID) -> EnvironmentLease:
        """A new claim for *job_id*; a job may have several, on one environment."""
        with self._lock:
            count, spec = self._jobs.get(job_id, (0, None))
            self._jobs[job_id] = (count + 1, spec)
        return EnvironmentLease(self, job_id)

    def _resolve(
        self, lease: EnvironmentLease, spec: EnvironmentSpec, fetch: Fetch, cancelled: Cancelled
    ) -> PythonEnvironment:
        with self._lock:
            if lease.released:
                raise LibraryCacheError(f"the lease of job {lease.job_id} was released")
            count, held = self._jobs[lease.job_id]
            if held is not None and held != spec:
                raise LeaseConflictError(
                    f"job {lease.job_id} holds an environment of [{held}] and asks for one of [{spec}]; "
                    "a job has one environment: submit the other files as another job"
                )
            self._jobs[lease.job_id] = (count, spec)
            entry = self._entries.setdefault(spec.key, _Entry(spec))
            entry.holders.add(lease.job_id)
        with entry.building:
            if entry.built is None:
                try:
                    entry.built = self._build(spec, fetch, cancelled)
                except BaseException:
                    with self._lock:
                        entry.holders.discard(lease.job_id)
                        if lease.job_id in self._jobs:
                            self._jobs[lease.job_id] = (self._jobs[lease.job_id][0], None)
                    raise
            return entry.built

    def _build(self, spec: EnvironmentSpec, fetch: Fetch, cancelled: Cancelled) -> PythonEnvironment:
        target = self._directory / spec.key
        if not target.is_dir():
            began = self._clock()
            incoming = Path(tempfile.mkdtemp(prefix=_INCOMING, dir=self._directory))
            try:
                self._builder.build(spec, incoming, fetch, cancelled)
                incoming.rename(target)
            except BaseException:
                shutil.rmtree(incoming, ignore_errors=True)
                raise
            log.info("built the environment %s of [%s] in %.1f s", spec.key, spec, self._clock() - began)
        return self._builder.describe(spec, target)

    def _release(self, lease: EnvironmentLease) -> None:
        with self._lock:
            if lease.released:
                return
            lease.released = True
            count, spec = self._jobs.pop(lease.job_id)
            if count > 1:
                self._jobs[lease.job_id] = (count - 1, spec)
            elif spec is not None:
                entry = self._entries[spec.key]
                entry.holders.discard(lease.job_id)
                entry.unused_since = self._clock()

    def remove_unused(self) -> list[str]:
        """Remove the environments that nobody has leased for the retention; returns their names.

        Those that a predecessor left count as unused since this manager began.
        """
        now = self._clock()
        removed = []
        with self._lock:
            for path in list(self._directory.iterdir()):
                entry = self._entries.get(path.name)
                if path.name.startswith(_INCOMING) or (entry is not None and entry.holders):
                    continue
                since = self._found_at if entry is None else entry.unused_since
                if now - since >= self._retention_s:
                    # Out of sight first: whoever leases it from here on builds it anew.
                    hidden = self._directory / f"{_INCOMING}removed-{path.name}"
                    path.rename(hidden)
                    self._entries.pop(path.name, None)
                    removed.append(path.name)
        for name in removed:
            shutil.rmtree(self._directory / f"{_INCOMING}removed-{name}")
            log.info("removed the unused environment %s", name)
        return removed

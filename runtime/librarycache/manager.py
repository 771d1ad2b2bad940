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
from runtime.librarycache.leases import EnvironmentLeases

logger = logging.getLogger(__name__)

_INCOMING = "incoming-"


class EnvironmentLease:
    """A task's claim on its job's environment (Flink's `ClassLoaderLease`); release it once, when the task has left."""

    def __init__(self, manager: LibraryCacheManager, job_id: JobID, number: int) -> None:
        self._manager = manager
        self.job_id = job_id
        self.number = number

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
        return self._manager._resolve(self.number, spec, fetch, cancelled)

    def release(self) -> None:
        """Give the claim back; idempotent."""
        self._manager._release(self.number)


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
        self._leases = EnvironmentLeases(clock())
        self._building: dict[str, threading.Lock] = {}
        directory.mkdir(parents=True, mode=0o700, exist_ok=True)
        for left in directory.glob(f"{_INCOMING}*"):
            shutil.rmtree(left)

    def register_lease(self, job_id: JobID) -> EnvironmentLease:
        """A new claim for *job_id*; a job may have several, on one environment."""
        with self._lock:
            return EnvironmentLease(self, job_id, self._leases.register(job_id))

    def _resolve(self, number: int, spec: EnvironmentSpec, fetch: Fetch, cancelled: Cancelled) -> PythonEnvironment:
        with self._lock:
            self._leases.hold(number, spec)
            building = self._building.setdefault(spec.key, threading.Lock())
        try:
            with building:
                return self._build(spec, fetch, cancelled)
        except BaseException:
            with self._lock:
                self._leases.build_failed(number, self._clock())
            raise

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
            logger.info("built the environment %s of [%s] in %.1f s", spec.key, spec, self._clock() - began)
        return self._builder.describe(spec, target)

    def _release(self, number: int) -> None:
        with self._lock:
            self._leases.release(number, self._clock())

    def remove_unused(self) -> list[str]:
        """Remove the environments that nobody has leased for the retention; returns their names.

        Those that a predecessor left count as unused since this manager began.
        """
        with self._lock:
            there = [path.name for path in self._directory.iterdir() if not path.name.startswith(_INCOMING)]
            removed = self._leases.take_unused(there, self._clock(), self._retention_s)
            if not removed:
                return []
            hidden = Path(tempfile.mkdtemp(prefix=_INCOMING, dir=self._directory))
            for name in removed:  # out of sight first: the next lease builds it anew
                (self._directory / name).rename(hidden / name)
        shutil.rmtree(hidden)
        for name in removed:
            logger.info("removed the unused environment %s", name)
        return removed

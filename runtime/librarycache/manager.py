"""Leases on environments (Flink's `LibraryCacheManager`, with Python environments for class loaders)."""

from __future__ import annotations

import logging
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from conf.files import write_private
from runtime.ids import JobID
from runtime.librarycache.builder import Cancelled, EnvironmentBuilder, Fetch
from runtime.librarycache.environment import EnvironmentSpec, PythonEnvironment
from runtime.librarycache.errors import LeaseConflictError, LibraryCacheError

logger = logging.getLogger(__name__)

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_INCOMING = "incoming-"


@dataclass
class _Lease:
    job_id: JobID
    spec: EnvironmentSpec | None = None
    """The environment that the lease holds, set before the environment is built."""


class EnvironmentLeases:
    """The environments that jobs lease, and the times since which others are unused (pure).

    Each lease holds its environment independently of other leases of its job.

    Args:
        now_s: when the manager started; its predecessor's environments count as unused since then.
    """

    def __init__(self, now_s: float) -> None:
        self._began_s = now_s
        self._leases: dict[int, _Lease] = {}
        self._unused_since_s: dict[str, float] = {}
        self._count = 0

    def register(self, job_id: JobID) -> int:
        """Return the number of a new lease of a job, which holds no environment yet."""
        self._count += 1
        self._leases[self._count] = _Lease(job_id)
        return self._count

    def hold(self, number: int, spec: EnvironmentSpec) -> None:
        """Record that a lease is about to use an environment, which is kept from now on.

        Raises:
            LeaseConflictError: this lease, or another one of the job, holds another environment.
            LibraryCacheError: the lease was released.
        """
        lease = self._leases.get(number)
        if lease is None:
            raise LibraryCacheError("the lease was released")
        held = next((other.spec for other in self._of_job(lease.job_id) if other.spec not in (None, spec)), None)
        if held is not None:
            raise LeaseConflictError(
                f"job {lease.job_id} holds an environment of [{held}] and asks for one of [{spec}]; "
                "a job has one environment: submit the other files as another job"
            )
        lease.spec = spec
        self._unused_since_s.pop(spec.key, None)

    def build_failed(self, number: int, now_s: float) -> None:
        """Record that a lease has no environment, since its build failed. Other leases keep theirs."""
        lease = self._leases.get(number)
        if lease is not None and lease.spec is not None:
            spec, lease.spec = lease.spec, None
            self._left(spec, now_s)

    def release(self, number: int, now_s: float) -> None:
        """Forget a lease; idempotent."""
        lease = self._leases.pop(number, None)
        if lease is not None and lease.spec is not None:
            self._left(lease.spec, now_s)

    def take_unused(self, names: Iterable[str], now_s: float, retention_s: float) -> list[str]:
        """Return the environments to remove now, and forget them.

        Args:
            names: of all existing environments (`EnvironmentSpec.key`).
            now_s: the time.
            retention_s: seconds for which an unused environment is kept.
        """
        held, known = set(self._held()), set(names)
        unused = [
            name
            for name in sorted(known - held)
            if now_s - self._unused_since_s.get(name, self._began_s) >= retention_s
        ]
        for name in {*unused, *(self._unused_since_s.keys() - known)}:
            self._unused_since_s.pop(name, None)
        return unused

    def _left(self, spec: EnvironmentSpec, now_s: float) -> None:
        if spec.key not in set(self._held()):
            self._unused_since_s[spec.key] = now_s

    def _of_job(self, job_id: JobID) -> Iterator[_Lease]:
        return (lease for lease in self._leases.values() if lease.job_id == job_id)

    def _held(self) -> Iterator[str]:
        return (lease.spec.key for lease in self._leases.values() if lease.spec is not None)


class EnvironmentLease:
    """A task's lease of its job's environment (Flink's `ClassLoaderLease`); release it when the task has ended."""

    def __init__(self, manager: LibraryCacheManager, job_id: JobID, number: int) -> None:
        self._manager = manager
        self.job_id = job_id
        self.number = number

    def get_or_resolve(
        self, spec: EnvironmentSpec, fetch: Fetch, cancelled: Cancelled = lambda: False
    ) -> PythonEnvironment:
        """Return the job's environment; build it first, blocking, if none with its files exists.

        Args:
            spec: the environment's files; the same for all leases of a job.
            fetch: returns the local copy of a library's file.
            cancelled: called repeatedly during the build, which ends once it returns True.

        Raises:
            LeaseConflictError: the job has another environment already.
            EnvironmentBuildError, OSError: it cannot be built.
            LibraryCacheError: the lease was released.
        """
        return self._manager._resolve(self.number, spec, fetch, cancelled)

    def release(self) -> None:
        """Release the lease; idempotent."""
        self._manager._release(self.number)


class LibraryCacheManager:
    """The environments below one directory.

    An environment is built in a temporary directory, which is renamed when it is complete. So a killed worker leaves no
    incomplete environment under a final name, and its successor reuses the complete ones. Their thousands of files are
    not synced, so all environments are built again after a restart of the machine. Thread-safe.

    Args:
        directory: parent of the environments, created if missing; only one manager may use it.
        builder: builds them.
        retention_s: seconds for which an unused environment is kept for the next job.
        clock: returns monotonic seconds.
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
        left = [*directory.glob(f"{_INCOMING}*")]
        boot = directory.with_name(f".{directory.name}.boot")
        if not _is_of_this_boot(boot):
            left = [*directory.iterdir()]
        for path in left:
            self._remove(path)
        write_private(boot, BOOT_ID.read_bytes())

    def register_lease(self, job_id: JobID) -> EnvironmentLease:
        """Return a new lease for *job_id*; a job may have several leases of one environment."""
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

    def _remove(self, path: Path) -> None:
        """Remove a directory; one that cannot be removed is left, under a name that no environment has."""
        if not path.name.startswith(_INCOMING):
            path = path.rename(Path(tempfile.mkdtemp(prefix=_INCOMING, dir=self._directory)) / path.name)
        try:
            shutil.rmtree(path)
        except OSError as error:
            logger.warning("%s cannot be removed, remove it by hand: %s", path, error)

    def remove_unused(self) -> list[str]:
        """Remove the environments that were unused for the retention, and return their names.

        A predecessor's environments count as unused since this manager started.
        """
        with self._lock:
            there = [path.name for path in self._directory.iterdir() if not path.name.startswith(_INCOMING)]
            removed = self._leases.take_unused(there, self._clock(), self._retention_s)
            if not removed:
                return []
            hidden = Path(tempfile.mkdtemp(prefix=_INCOMING, dir=self._directory))
            for name in removed:  # rename before removal, so that the next lease builds a new one
                (self._directory / name).rename(hidden / name)
        self._remove(hidden)
        for name in removed:
            logger.info("removed the unused environment %s", name)
        return removed


def _is_of_this_boot(mark: Path) -> bool:
    """Return whether the machine has not restarted since a manager wrote its mark."""
    try:
        return mark.read_bytes() == BOOT_ID.read_bytes()
    except FileNotFoundError:
        return False

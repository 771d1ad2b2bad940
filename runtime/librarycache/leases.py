"""Which job leases which environment, and which environments nobody has leased for long: pure state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from runtime.ids import JobID
from runtime.librarycache.environment import EnvironmentSpec
from runtime.librarycache.errors import LeaseConflictError, LibraryCacheError


@dataclass
class _Lease:
    job_id: JobID
    spec: EnvironmentSpec | None = None
    """The environment that the lease holds; it is set before that is built."""


class EnvironmentLeases:
    """The leases of one manager. Each holds its environment by itself, whatever becomes of others of its job.

    Args:
        now_s: when the manager began; what its predecessor left is unused since then.
    """

    def __init__(self, now_s: float) -> None:
        self._began_s = now_s
        self._leases: dict[int, _Lease] = {}
        self._unused_since_s: dict[str, float] = {}
        self._count = 0

    def register(self, job_id: JobID) -> int:
        """Return the number of a new lease of a job, which holds nothing yet."""
        self._count += 1
        self._leases[self._count] = _Lease(job_id)
        return self._count

    def hold(self, number: int, spec: EnvironmentSpec) -> None:
        """Note that a lease is about to use an environment: from now on it stays.

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
        """Note that a lease has no environment: its build failed. Other leases keep theirs."""
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
        """Return which environments are to be removed now, and forget them.

        Args:
            names: of those that there are (`EnvironmentSpec.key`).
            now_s: the time.
            retention_s: how long one stays that nobody holds.
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

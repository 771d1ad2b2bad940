"""Limits of a server as pure state: quotas of bytes, and the time to live of transient blobs."""

from __future__ import annotations

from typing import Generic, TypeVar

from blob.errors import NoSpaceLeft, QuotaExceeded

K = TypeVar("K")


class StorageBudget:
    """Bytes held per job and in total, including those that running uploads have reserved.

    Args:
        maximum: most bytes in total, or None.
        maximum_per_job: most bytes of one job (blobs without a job count as one), or None.
        reserve: bytes of the disk that stay free.
    """

    def __init__(self, maximum: int | None = None, maximum_per_job: int | None = None, reserve: int = 0) -> None:
        self._maximum = maximum
        self._maximum_per_job = maximum_per_job
        self._reserve = reserve
        self._pending = 0
        self._held: dict[str | None, int] = {}
        self.total = 0

    @property
    def owners(self) -> int:
        """Number of jobs with blobs; all blobs without a job count as one job."""
        return len(self._held)

    def held(self, job_id: str | None) -> int:
        """Return the bytes held by a job, including running uploads."""
        return self._held.get(job_id, 0)

    def reserve(self, job_id: str | None, size: int, free: int) -> None:
        """Reserve *size* bytes for an upload before it starts.

        Args:
            free: bytes free on the disk now.

        Raises:
            QuotaExceeded, NoSpaceLeft: the upload exceeds a limit; nothing was reserved.
        """
        owner = "the blobs without a job" if job_id is None else f"job {job_id}"
        held = self.held(job_id)
        if self._maximum_per_job is not None and held + size > self._maximum_per_job:
            raise QuotaExceeded(
                f"{size} bytes more than the {held} held would exceed the {self._maximum_per_job} bytes "
                f"that {owner} may hold; delete blobs, or raise the quota per job"
            )
        if self._maximum is not None and self.total + size > self._maximum:
            raise QuotaExceeded(
                f"{size} bytes more than the {self.total} held would exceed the {self._maximum} bytes "
                "that the blob server may hold; delete blobs, or raise its quota"
            )
        if free - self._pending - size < self._reserve:
            raise NoSpaceLeft(
                f"{size} bytes more would leave less than the reserve of {self._reserve} bytes on the blob server's "
                f"disk ({free} bytes are free, {self._pending} promised); free some, or move the blob directory"
            )
        self._pending += size
        self.add(job_id, size)

    def commit(self, size: int) -> None:
        """End a reservation of a successful upload, whose bytes the disk's count of free bytes now includes."""
        self._pending -= size

    def abort(self, job_id: str | None, size: int) -> None:
        """Undo the reservation of a failed upload."""
        self._pending -= size
        self.remove(job_id, size)

    def add(self, job_id: str | None, size: int) -> None:
        """Add bytes that are on the disk already."""
        self._held[job_id] = self.held(job_id) + size
        self.total += size

    def remove(self, job_id: str | None, size: int) -> None:
        """Subtract deleted bytes."""
        left = self.held(job_id) - size
        self.total -= size
        if left > 0:
            self._held[job_id] = left
        else:
            self._held.pop(job_id, None)


class ExpiryTable(Generic[K]):
    """Finds entries whose last use is longer ago than their time to live (seconds)."""

    def __init__(self, time_to_live: float) -> None:
        self._time_to_live = time_to_live
        self._last_use: dict[K, float] = {}

    def touch(self, entry: K, now: float) -> None:
        """Record a use of *entry* at *now*."""
        # Remove and insert, so that the dict is ordered by last use and expired() reads only its head.
        self._last_use.pop(entry, None)
        self._last_use[entry] = now

    def note(self, entry: K, now: float) -> None:
        """Add *entry* with a use at *now*, unless it is known."""
        self._last_use.setdefault(entry, now)

    def is_expired(self, entry: K, now: float) -> bool:
        """Return whether an entry has expired; an unknown one has."""
        last_use = self._last_use.get(entry)
        return last_use is None or now - last_use >= self._time_to_live

    def forget(self, entry: K) -> None:
        """Remove an entry."""
        self._last_use.pop(entry, None)

    def expired(self, now: float) -> list[K]:
        """Return the expired entries, longest unused first; they stay until `forget`."""
        result = []
        for entry, last_use in self._last_use.items():
            if now - last_use < self._time_to_live:
                break
            result.append(entry)
        return result

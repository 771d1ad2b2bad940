"""Which finished jobs are kept: bounded by count, bytes and age. Pure; times are milliseconds since the epoch."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

from runtime.ids import JobID


@dataclass(frozen=True, slots=True)
class _Kept:
    end_ms: int
    size: int
    number: int


class Retention:
    """The book of the jobs that are kept. What is dropped is dropped in the order in which the jobs ended.

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
        """A job is kept from now on; one that is kept already is replaced."""
        former = self._remove(job_id)
        self._added += 1
        kept = self._kept[job_id] = _Kept(end_ms, size, self._added if former is None else former.number)
        insort(self._by_end, (end_ms, kept.number, job_id))
        self.size += size

    def clear(self) -> None:
        """Nothing is kept any more."""
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

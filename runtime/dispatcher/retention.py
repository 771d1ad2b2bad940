"""Which finished jobs are kept: bounded by count, bytes and age. Pure; times are milliseconds since the epoch."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.ids import JobID


@dataclass(frozen=True, slots=True)
class _Kept:
    end_ms: int
    size: int


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

    @property
    def size(self) -> int:
        """Bytes of all kept jobs together."""
        return sum(job.size for job in self._kept.values())

    def add(self, job_id: JobID, end_ms: int, size: int) -> None:
        """A job is kept from now on; one that is kept already is replaced."""
        self._kept[job_id] = _Kept(end_ms, size)

    def clear(self) -> None:
        """Nothing is kept any more."""
        self._kept.clear()

    def drop_surplus(self, now_ms: int) -> list[JobID]:
        """Drop what is too old or too much; returns what was dropped, the oldest first."""
        dropped = []
        size, count = self.size, len(self._kept)
        for job_id, job in sorted(self._kept.items(), key=lambda item: item[1].end_ms):
            too_old = now_ms - job.end_ms > self._expiration_ms
            too_many = count > self._capacity
            too_large = size > self._max_bytes and count > 1
            if not (too_old or too_many or too_large):
                break
            del self._kept[job_id]
            size, count = size - job.size, count - 1
            dropped.append(job_id)
        return dropped

"""Which pool of Spark's fair scheduler each job has (pure).

Jobs that share a Spark driver share its cores evenly when each has a pool of its own. Spark never forgets a pool, and
sorts all of them at every offer of a core; so their names are used again.
"""

from __future__ import annotations

from runtime.ids import JobID


class FairPools:
    """The pools of one driver: as many as jobs ever ran at once."""

    def __init__(self) -> None:
        self._numbers: dict[JobID, int] = {}
        self._tasks: dict[JobID, int] = {}

    def enter(self, job_id: JobID) -> str:
        """A task of the job begins: the name of the job's pool, the same for all of its tasks."""
        if job_id not in self._numbers:
            taken = set(self._numbers.values())
            self._numbers[job_id] = next(number for number in range(len(taken) + 1) if number not in taken)
        self._tasks[job_id] = self._tasks.get(job_id, 0) + 1
        return f"job-{self._numbers[job_id]}"

    def leave(self, job_id: JobID) -> None:
        """A task of the job has ended, and nothing of it runs in Spark."""
        self._tasks[job_id] -= 1
        if not self._tasks[job_id]:
            del self._tasks[job_id], self._numbers[job_id]

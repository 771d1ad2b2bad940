"""The scheduling status of every job, and the results of finished ones.

Flink's ``RunningJobsRegistry`` and ``JobResultStore`` in one. A result is *dirty* until all files and entries of its
job have been cleaned up. A job that has a result is never run again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from runtime.ha.errors import HaUnreachableError, JobAlreadyDoneError, StateCorruptedError, StateHandleConflictError
from runtime.ha.fenced import Demand, FencedMaps
from runtime.ha.keys import ClusterKeys
from runtime.protocol.leader import LeaderTerm

_ATTEMPTS = 4

JobResult = dict[str, Any]
"""A result as plain JSON; its form is the caller's."""


class JobSchedulingStatus(Enum):
    """The progress of a job, for failovers (Flink's ``JobSchedulingStatus``)."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    DONE = "DONE"


@dataclass(frozen=True, slots=True)
class JobEntry:
    """One job in the registry.

    Args:
        status: its progress.
        result: if DONE: its result.
        dirty: if DONE: whether it is still to be cleaned up.
    """

    status: JobSchedulingStatus
    result: JobResult | None = None
    dirty: bool = False

    def to_json(self) -> str:
        """Return the text to store."""
        return json.dumps({"status": self.status.value, "result": self.result, "dirty": self.dirty}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> JobEntry:
        """Return the entry of such a text; raises `StateCorruptedError` for other texts."""
        try:
            raw = json.loads(text)
            return cls(JobSchedulingStatus(raw["status"]), raw["result"], bool(raw["dirty"]))
        except (ValueError, KeyError, TypeError) as error:
            raise StateCorruptedError(f"not an entry of the running-jobs registry: {text[:200]!r} ({error})") from None


def pending(job_id: str, found: JobEntry | None) -> JobEntry:
    """Return the entry of an accepted job, which is *found* if there is one; raises `JobAlreadyDoneError`."""
    _not_done(job_id, found)
    return found or JobEntry(JobSchedulingStatus.PENDING)


def running(job_id: str, found: JobEntry | None) -> JobEntry:
    """Return the entry of a running job; raises `JobAlreadyDoneError`."""
    _not_done(job_id, found)
    return JobEntry(JobSchedulingStatus.RUNNING)


def done(job_id: str, found: JobEntry | None, result: JobResult) -> JobEntry:
    """Return the entry of a job that has ended; raises `JobAlreadyDoneError` if it has another result."""
    if found is not None and found.status is JobSchedulingStatus.DONE and found.result == result:
        return found
    _not_done(job_id, found)
    return JobEntry(JobSchedulingStatus.DONE, result, dirty=True)


def clean(job_id: str, found: JobEntry | None) -> JobEntry:
    """Return the entry of an ended job that was cleaned up; raises ValueError for other jobs."""
    if found is None or found.status is not JobSchedulingStatus.DONE:
        raise ValueError(f"job {job_id} has no result that could be marked clean")
    return JobEntry(JobSchedulingStatus.DONE, found.result, dirty=False)


def _not_done(job_id: str, found: JobEntry | None) -> None:
    if found is not None and found.status is JobSchedulingStatus.DONE:
        raise JobAlreadyDoneError(f"job {job_id} has ended already and is not run again; submit it with another job id")


class RunningJobsRegistry:
    """The registry in one map; every change is a compare-and-set under the fence.

    Every write may be repeated, and is refused (`LeadershipLostError`) when its term is over.
    """

    def __init__(self, maps: FencedMaps, keys: ClusterKeys) -> None:
        self._maps = maps
        self._key = keys.running_jobs

    async def set_pending(self, job_id: str, term: LeaderTerm) -> None:
        """Note that the job was accepted; raises `JobAlreadyDoneError` if it has ended."""
        await self._change(job_id, term, lambda found: pending(job_id, found), None)

    async def set_running(self, job_id: str, term: LeaderTerm) -> bool:
        """Note that the job is about to run.

        Returns:
            whether the job was still PENDING. If so, it has not run before and has left nothing behind.

        Raises:
            JobAlreadyDoneError: it has ended, and must not run again.
        """
        waiting = JobEntry(JobSchedulingStatus.PENDING)
        return await self._change(job_id, term, lambda found: running(job_id, found), waiting) == waiting

    async def set_done(self, job_id: str, result: JobResult, term: LeaderTerm) -> None:
        """Note the result of a job that has ended, as dirty; raises `JobAlreadyDoneError` if it has another result."""
        runs = JobEntry(JobSchedulingStatus.RUNNING)
        await self._change(job_id, term, lambda found: done(job_id, found, result), runs)

    async def mark_clean(self, job_id: str, term: LeaderTerm) -> None:
        """Note that the ended job was cleaned up."""
        found = await self.entry(job_id)
        await self._change(job_id, term, lambda found: clean(job_id, found), found)

    async def withdraw(
        self, job_id: str, term: LeaderTerm, status: JobSchedulingStatus = JobSchedulingStatus.PENDING
    ) -> None:
        """Drop the entry of a job that has no graph, if its status is this one and no other.

        Args:
            job_id: of the job.
            term: the leadership.
            status: PENDING for a job whose submission was not completed. RUNNING for a job that has ended and is
                forgotten, which a JobMaster has entered again that did not know of the end.
        """
        await self._maps.hdel(self._key, job_id, term, demand=JobEntry(status).to_json())

    async def forget(self, job_id: str, term: LeaderTerm) -> None:
        """Drop the entry, if there is one; the id may then run again."""
        await self._maps.hdel(self._key, job_id, term, demand=Demand.ANY)

    async def entry(self, job_id: str) -> JobEntry | None:
        """Return the entry of a job; None if there is none."""
        text = await self._maps.get(self._key, job_id)
        return None if text is None else JobEntry.from_json(text)

    async def entries(self) -> dict[str, JobEntry]:
        """Return the entries of all jobs, by job id."""
        texts = await self._maps.get_all(self._key)
        return {job_id: JobEntry.from_json(text) for job_id, text in texts.items()}

    async def dirty_results(self) -> dict[str, JobResult]:
        """Return the results of ended jobs that are still to be cleaned up, by job id."""
        entries = await self.entries()
        return {job_id: entry.result for job_id, entry in entries.items() if entry.dirty and entry.result is not None}

    async def _change(
        self, job_id: str, term: LeaderTerm, to: Callable[[JobEntry | None], JobEntry], guess: JobEntry | None
    ) -> JobEntry | None:
        """Change an entry and return the former one; a right *guess* of it, the usual case, needs only one request."""
        unreachable: HaUnreachableError | None = None
        text = None if guess is None else guess.to_json()
        for _ in range(_ATTEMPTS):
            before = None if text is None else JobEntry.from_json(text)
            demand = Demand.ABSENT if text is None else text
            try:
                # Write even without a change: only the leader may get this answer.
                write = await self._maps.hset(self._key, job_id, to(before).to_json(), term, demand=demand)
                if write.done:
                    return before
                text = write.found
            except HaUnreachableError as error:
                # The outcome is unknown: read it, and try again if the write did not take effect.
                unreachable = error
                text = await self._maps.get(self._key, job_id)
        if unreachable is not None:
            raise unreachable
        raise StateHandleConflictError(f"other writes keep changing the entry of job {job_id}")

"""What is known of every job's run, and the results of finished ones.

Flink's ``RunningJobsRegistry`` and ``JobResultStore`` in one: a result is *dirty* until everything that its job left
behind has been cleaned up. A job that has a result is never run again.
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
    """How far a job has come, as far as a failover is concerned (Flink's ``JobSchedulingStatus``)."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    DONE = "DONE"


@dataclass(frozen=True, slots=True)
class JobEntry:
    """One job in the registry.

    Args:
        status: how far it has come.
        result: where DONE: its result.
        dirty: where DONE: whether something is still to be cleaned up after it.
    """

    status: JobSchedulingStatus
    result: JobResult | None = None
    dirty: bool = False

    def to_json(self) -> str:
        """The text that is kept."""
        return json.dumps({"status": self.status.value, "result": self.result, "dirty": self.dirty}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> JobEntry:
        """The entry of such a text; `StateCorruptedError` where it is none."""
        try:
            raw = json.loads(text)
            return cls(JobSchedulingStatus(raw["status"]), raw["result"], bool(raw["dirty"]))
        except (ValueError, KeyError, TypeError) as error:
            raise StateCorruptedError(f"not an entry of the running-jobs registry: {text[:200]!r} ({error})") from None


def pending(job_id: str, found: JobEntry | None) -> JobEntry:
    """The entry of a job that was accepted: one that is there stays as it is, unless the job is done."""
    _not_done(job_id, found)
    return found or JobEntry(JobSchedulingStatus.PENDING)


def running(job_id: str, found: JobEntry | None) -> JobEntry:
    """The entry of a job that is being run."""
    _not_done(job_id, found)
    return JobEntry(JobSchedulingStatus.RUNNING)


def done(job_id: str, found: JobEntry | None, result: JobResult) -> JobEntry:
    """The entry of a job that has ended; the first result stands."""
    if found is not None and found.status is JobSchedulingStatus.DONE and found.result == result:
        return found
    _not_done(job_id, found)
    return JobEntry(JobSchedulingStatus.DONE, result, dirty=True)


def clean(job_id: str, found: JobEntry | None) -> JobEntry:
    """The entry of an ended job after which everything was cleaned up."""
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
        """The job was accepted. `JobAlreadyDoneError` where it has ended."""
        await self._change(job_id, term, lambda found: pending(job_id, found), None)

    async def set_running(self, job_id: str, term: LeaderTerm) -> bool:
        """The job is about to run; whether it certainly has not run before, so that nothing is left of it.

        `JobAlreadyDoneError` where it has ended: it must not run again.
        """
        waiting = JobEntry(JobSchedulingStatus.PENDING)
        return await self._change(job_id, term, lambda found: running(job_id, found), waiting) == waiting

    async def set_done(self, job_id: str, result: JobResult, term: LeaderTerm) -> None:
        """The job has ended; its result is dirty. `JobAlreadyDoneError` where it ended otherwise before."""
        runs = JobEntry(JobSchedulingStatus.RUNNING)
        await self._change(job_id, term, lambda found: done(job_id, found, result), runs)

    async def mark_clean(self, job_id: str, term: LeaderTerm) -> None:
        """Nothing of the ended job is left to clean up."""
        found = await self.entry(job_id)
        await self._change(job_id, term, lambda found: clean(job_id, found), found)

    async def withdraw(self, job_id: str, term: LeaderTerm) -> None:
        """Drop the entry of a job whose submission was not completed: one that is PENDING, and no other."""
        await self._maps.hdel(self._key, job_id, term, demand=JobEntry(JobSchedulingStatus.PENDING).to_json())

    async def forget(self, job_id: str, term: LeaderTerm) -> None:
        """Drop the entry, if there is one; from then on the id could run again."""
        await self._maps.hdel(self._key, job_id, term, demand=Demand.ANY)

    async def entry(self, job_id: str) -> JobEntry | None:
        """What is known of a job; None: nothing."""
        text = await self._maps.get(self._key, job_id)
        return None if text is None else JobEntry.from_json(text)

    async def entries(self) -> dict[str, JobEntry]:
        """Everything known."""
        texts = await self._maps.get_all(self._key)
        return {job_id: JobEntry.from_json(text) for job_id, text in texts.items()}

    async def dirty_results(self) -> dict[str, JobResult]:
        """The results of ended jobs that are still to be cleaned up after, by job id."""
        entries = await self.entries()
        return {job_id: entry.result for job_id, entry in entries.items() if entry.dirty and entry.result is not None}

    async def _change(
        self, job_id: str, term: LeaderTerm, to: Callable[[JobEntry | None], JobEntry], guess: JobEntry | None
    ) -> JobEntry | None:
        """Change an entry; what it was. A *guess* of that costs one request where it is right, as it mostly is."""
        unreachable: HaUnreachableError | None = None
        text = None if guess is None else guess.to_json()
        for _ in range(_ATTEMPTS):
            before = None if text is None else JobEntry.from_json(text)
            demand = Demand.ABSENT if text is None else text
            try:
                # Also where nothing changes: whoever is told so must be the leader.
                write = await self._maps.hset(self._key, job_id, to(before).to_json(), term, demand=demand)
                if write.done:
                    return before
                text = write.found
            except HaUnreachableError as error:
                # The outcome is unknown: read it, and try again where it did not take effect.
                unreachable = error
                text = await self._maps.get(self._key, job_id)
        if unreachable is not None:
            raise unreachable
        raise StateHandleConflictError(f"the entry of job {job_id} keeps being changed by somebody else")

"""Check of submissions by the limits. Pure: times and the jobs that run are arguments."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Collection, Mapping

from runtime.ids import JobID
from runtime.queues.configuration import MB, Member, Queues, Scope, mb

WINDOW_S = 60.0
NO_BYTES: Mapping[JobID, int] = {}
WAITING_RETRY_S = 10
"""Seconds after which to submit again if too many jobs wait; when one of them gets a slot is unknown."""


class OverLimitError(Exception):
    """A submission is over a limit.

    Args:
        message: the limit and its use, without a remedy.
        retry_after_s: seconds after which to submit again.
    """

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Admission:
    """Accepted submissions: those of the last minute, and those that are still being stored.

    A refused submission does not count: repeating it costs nothing.
    """

    def __init__(self) -> None:
        self._accepted: deque[tuple[float, JobID, Member]] = deque()
        self._under_way: dict[JobID, Member] = {}
        self._under_way_bytes: dict[JobID, int] = {}

    def needs_running(self, queues: Queues, member: Member, live: Mapping[JobID, Member]) -> bool:
        """Return whether `admit` needs to know which jobs run: a limit of waiting jobs may be reached."""
        others = self._counts(queues, {**live, **self._under_way})
        limits = ((queues.limits_of(scope).waiting_jobs, scope) for scope in _scopes(queues, member))
        return any(most is not None and others[scope] >= most for most, scope in limits)

    def admit(
        self,
        queues: Queues,
        job_id: JobID,
        member: Member,
        live: Mapping[JobID, Member],
        running: Collection[JobID],
        now: float,
        *,
        blob_bytes: int = 0,
        held_bytes: Mapping[JobID, int] = NO_BYTES,
    ) -> None:
        """Accept a job, and count it at once, so that others that come while it is stored find it counted.

        Call `settle` when it is stored or has failed. The same job again counts once.

        Args:
            queues: queues and limits.
            job_id: the job.
            member: its user and queue.
            live: the jobs that are not over.
            running: those of them that hold a slot.
            now: seconds.
            blob_bytes: of the blobs with its files.
            held_bytes: those of the jobs in *live*.

        Raises:
            OverLimitError: it would exceed a limit. Nothing is counted.
        """
        while self._accepted and self._accepted[0][0] <= now - WINDOW_S:
            self._accepted.popleft()
        scopes = _scopes(queues, member)
        others = {**live, **self._under_way}
        waiting = self._counts(queues, {each: of for each, of in others.items() if each not in {*running, job_id}})
        for scope in scopes:
            most = queues.limits_of(scope).waiting_jobs
            if most is not None and waiting[scope] >= most:
                raise OverLimitError(f"{scope} has {waiting[scope]} of {most} waiting jobs", WAITING_RETRY_S)
        self._check_blobs(queues, scopes, job_id, others, blob_bytes, {**held_bytes, **self._under_way_bytes})
        if all(known != job_id for _, known, _ in self._accepted):
            for scope in scopes:
                self._check_rate(queues, scope, now)
            self._accepted.append((now, job_id, member))
        self._under_way[job_id] = member
        self._under_way_bytes[job_id] = blob_bytes

    def settle(self, job_id: JobID) -> None:
        """Note that a job is stored, and in the list of live jobs, or that storing it has failed."""
        self._under_way.pop(job_id, None)
        self._under_way_bytes.pop(job_id, None)

    def clear(self) -> None:
        """Forget everything: another Dispatcher leads."""
        self._accepted.clear()
        self._under_way.clear()
        self._under_way_bytes.clear()

    @staticmethod
    def _check_blobs(
        queues: Queues,
        scopes: tuple[Scope, ...],
        job_id: JobID,
        others: Mapping[JobID, Member],
        blob_bytes: int,
        held_bytes: Mapping[JobID, int],
    ) -> None:
        for scope in scopes:
            most = queues.limits_of(scope).blob_mb
            if most is None or not blob_bytes:
                continue
            counted = (each for each, of in others.items() if each != job_id and scope in _scopes(queues, of))
            held = sum(held_bytes.get(each, 0) for each in counted)
            if held + blob_bytes > most * MB:
                raise OverLimitError(
                    f"blobs of {scope}: {mb(held)} of {most} MB held by jobs that are not over, {mb(blob_bytes)} MB "
                    "more asked for; cancel one of these jobs or wait for its end",
                    WAITING_RETRY_S,
                )

    def _check_rate(self, queues: Queues, scope: Scope, now: float) -> None:
        most = queues.limits_of(scope).submissions_per_minute
        if most is None:
            return
        times = [at for at, _, member in self._accepted if scope in _scopes(queues, member)]
        if len(times) >= most:
            wait_s = max(1, math.ceil(times[-most] + WINDOW_S - now))
            raise OverLimitError(f"{scope} has submitted {len(times)} of {most} jobs per minute", wait_s)

    @staticmethod
    def _counts(queues: Queues, jobs: Mapping[JobID, Member]) -> Counter[Scope]:
        return Counter(scope for member in jobs.values() for scope in _scopes(queues, member))


def _scopes(queues: Queues, member: Member) -> tuple[Scope, ...]:
    return queues.scopes_of(member.user, member.queue)

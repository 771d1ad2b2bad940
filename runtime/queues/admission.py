"""Check of submissions, and of the uploads before them, by the limits. Pure: times and jobs are arguments."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from runtime.ids import JobID
from runtime.queues.configuration import MB, Member, Queues, Scope, mb, with_files

WINDOW_S = 60.0
NO_BYTES: Mapping[JobID, int] = {}
WAITING_RETRY_S = 10
"""Seconds after which to submit again if too many jobs wait; when one of them gets a slot is unknown."""
ALL_FILES = ""
"""Id of the announcement of all files of an upload together; any other id is that of one file."""
MOST_UPLOADS = 1000
"""Most uploads of one user for jobs that are not over, and most files of one upload. They bound the memory."""


class OverLimitError(Exception):
    """A submission is over a limit.

    Args:
        message: the limit and its use, without a remedy.
        retry_after_s: seconds after which to submit again.
    """

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


@dataclass(slots=True)
class _Upload:
    """Files of one job that its user uploads.

    Args:
        user: the user.
        last_s: seconds, when a file was admitted last.
        sizes: bytes of each file by its id, and of all together by `ALL_FILES`.
    """

    user: str
    last_s: float
    sizes: dict[str, int] = field(default_factory=dict)

    def bytes(self, upload_id: str = ALL_FILES, size: int | None = None) -> int:
        """Return the bytes that it may put on the disk, or those if *upload_id* had *size*."""
        sizes = self.sizes if size is None else {**self.sizes, upload_id: max(size, 0)}
        announced = sizes.get(ALL_FILES, 0)
        return max(announced, sum(sizes.values()) - announced)


class Admission:
    """Accepted submissions: those of the last minute, and those that are still being stored; and uploads.

    A refused submission does not count: repeating it costs nothing.

    An upload counts for its user from its announcement on, until its files are deleted. Once its job is accepted,
    it counts only with what the job's own files do not cover.
    """

    def __init__(self) -> None:
        self._uploads: dict[JobID, _Upload] = {}
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
        blobs_text: str = "",
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
            blobs_text: names the blobs with its files, for a refusal.

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
        if blob_bytes:
            asked = max(blob_bytes, self._uploaded(job_id))
            self._check_blobs(queues, scopes, job_id, others, asked, held_bytes, blobs_text=blobs_text)
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
        self._uploads.clear()

    # ---------------------------------------------------------------- uploads

    def admit_upload(
        self,
        queues: Queues,
        job_id: JobID,
        upload_id: str,
        size: int,
        user: str,
        live: Mapping[JobID, Member],
        now: float,
        *,
        held_bytes: Mapping[JobID, int] = NO_BYTES,
    ) -> None:
        """Count what a user is about to upload for a job. Idempotent by *upload_id*; the last size counts.

        Only limits of the user and the user's groups are checked. The limits of the queue are not, since the queue
        becomes known with the submission. Nothing is counted for a user without a limit.

        Args:
            queues: queues and limits.
            job_id: the job.
            upload_id: of the file, or `ALL_FILES`.
            size: bytes; 0 if it is not uploaded after all.
            user: the user.
            live: the jobs that are not over.
            now: seconds.
            held_bytes: of the blobs of the jobs in *live*.

        Raises:
            OverLimitError, QueueRefusedError: it would exceed a limit, or does so by itself. Nothing is counted.
        """
        known = self._uploads.get(job_id)
        upload = _Upload(user, now) if known is None else known
        before, after = upload.bytes(), upload.bytes(upload_id, size)
        if after > before:
            scopes = queues.scopes_of_user(user)
            if all(queues.limits_of(scope).blob_mb is None for scope in scopes):
                return
            queues.check_blobs(scopes, size)
            own = max(after, self._under_way_bytes.get(job_id, held_bytes.get(job_id, 0)))
            others = {**live, **self._under_way}
            self._check_blobs(queues, scopes, job_id, others, own, held_bytes, earlier=before)
            self._check_number(user, upload)
        upload.last_s = now
        upload.sizes[upload_id] = size
        if size <= 0:
            del upload.sizes[upload_id]
        if upload.sizes:
            self._uploads[job_id] = upload
        else:
            self._uploads.pop(job_id, None)

    def _check_number(self, user: str, upload: _Upload) -> None:
        if sum(each.user == user for each in self._uploads.values()) >= MOST_UPLOADS:
            raise OverLimitError(f"user {user} has {MOST_UPLOADS} uploads for jobs that are not over", WAITING_RETRY_S)
        if len(upload.sizes) >= MOST_UPLOADS:
            raise OverLimitError(f"the job has {MOST_UPLOADS} uploaded files", WAITING_RETRY_S)

    def uploader(self, job_id: JobID) -> str | None:
        """Return the user who uploads files for a job; None if no upload is counted."""
        found = self._uploads.get(job_id)
        return None if found is None else found.user

    def expired_uploads(self, live: Collection[JobID], now: float, lifetime_s: float) -> list[JobID]:
        """Return the jobs whose uploads were neither submitted nor continued; they count until `end_upload`.

        Args:
            live: the jobs that are not over, or are being submitted.
            now: seconds.
            lifetime_s: seconds from the last file on.
        """
        return [
            job_id
            for job_id, upload in self._uploads.items()
            if job_id not in live and upload.last_s <= now - lifetime_s
        ]

    def end_upload(self, job_id: JobID) -> None:
        """Forget an upload: its files are deleted, or will be with its job, which is over."""
        self._uploads.pop(job_id, None)

    def _uploaded(self, job_id: JobID) -> int:
        upload = self._uploads.get(job_id)
        return 0 if upload is None else upload.bytes()

    def _uploads_without_jobs(self, queues: Queues, jobs: Collection[JobID], scope: Scope) -> Iterator[int]:
        for job_id, upload in self._uploads.items():
            if job_id not in jobs and scope in queues.scopes_of_user(upload.user):
                yield upload.bytes()

    def _check_blobs(
        self,
        queues: Queues,
        scopes: tuple[Scope, ...],
        job_id: JobID,
        others: Mapping[JobID, Member],
        blob_bytes: int,
        held_bytes: Mapping[JobID, int],
        earlier: int = 0,
        blobs_text: str = "",
    ) -> None:
        held_bytes = {**held_bytes, **self._under_way_bytes}
        for scope in scopes:
            most = queues.limits_of(scope).blob_mb
            if most is None:
                continue
            counted = (each for each, of in others.items() if each != job_id and scope in _scopes(queues, of))
            held = sum(max(held_bytes.get(each, 0), self._uploaded(each)) for each in counted)
            uploads = sum(self._uploads_without_jobs(queues, {*others, job_id}, scope))
            if held + uploads + blob_bytes > most * MB:
                by_uploads = f", {mb(uploads + earlier)} MB by uploads" if uploads + earlier else ""
                raise OverLimitError(
                    f"blobs of {scope}: {mb(held)} of {most} MB held by jobs that are not over{by_uploads}, "
                    f"{mb(blob_bytes - earlier)} MB more asked for; cancel one of these jobs or wait for its end"
                    f"{with_files(blobs_text)}",
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

"""Checkers over the history of a blob service: what was stored, used, deleted and read, and by which leadership.

They know of jobs, blobs and a leader's calls only what the clients and leaders have seen. Times are virtual
nanoseconds. A check calls *fail* with its name and what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum

Fail = Callable[[str, str], None]

READABLE = "an acknowledged blob stays readable"
CONTENT = "content is what its digest says"
FENCED = "a former leader deletes nothing"
LEADS = "the leader is not refused"
LEFT = "nothing is left behind"
FLIGHT = "one download of a blob at a time"

IN_DOUBT = 40_000_000_000
"""Nanoseconds for which a server may still work on a call whose outcome its leader does not know."""
DRIFT = 0.98
"""The least part of a time to live that a server's clock, which may be fast, leaves to a blob."""


class Outcome(Enum):
    """How a leader's call ended, as far as the leader knows."""

    DONE = "done"
    FENCED = "fenced"
    UNKNOWN = "unknown"


@dataclass(eq=False)
class Use:
    """A request that used a job's blobs: when it began, and when it was acknowledged."""

    server: str
    began: int
    ended: int


@dataclass(eq=False)
class Blob:
    """An acknowledged upload.

    Attributes:
        content: what was uploaded.
        ended: when it was acknowledged.
        server: where it was uploaded.
        used: begin of its last acknowledged use; for transient blobs.
        removing: whether a delete of it has begun.
    """

    key: str
    content: bytes
    server: str
    ended: int
    used: int
    removing: bool = False


@dataclass(eq=False)
class Job:
    """A job: its blobs, and how far it has come.

    Attributes:
        submitted: whether its client waits until a leader has taken it.
        live: whether a leader has taken it, and has not forgotten it.
        over: when its blobs might be deleted, since it had ended.
        cleaned: whether a leader's cleanup of it was acknowledged.
    """

    job_id: str
    began: int
    blobs: list[Blob] = field(default_factory=list)
    uses: list[Use] = field(default_factory=list)
    submitted: bool = False
    live: bool = False
    over: int | None = None
    cleaned: bool = False
    ends_s: float = 0.0


@dataclass(eq=False)
class Call:
    """A leader's cleanup of one job, or its sweep of all that it does not know."""

    server: str
    epoch: int
    job: str | None
    live: frozenset[str]
    began: int
    is_stale: bool
    ended: int | None = None
    outcome: Outcome | None = None


class BlobHistory:
    """The history of the blobs of one cluster.

    Args:
        fail: see the module.
        orphan_age: nanoseconds for which a server spares a job that its leader does not know.
        transient_ttl: nanoseconds for which it keeps a transient blob that nobody uses.
        has_store: whether all servers share a store.
    """

    def __init__(self, fail: Fail, orphan_age: int, transient_ttl: int, *, has_store: bool) -> None:
        self._fail = fail
        self._orphan_age = int(orphan_age * DRIFT)
        self._transient_ttl = int(transient_ttl * DRIFT)
        self._has_store = has_store
        self.jobs: dict[str, Job] = {}
        self.calls: list[Call] = []
        self._crashes: dict[str, int] = {}
        self._downloads: set[tuple[str, str]] = set()

    # ------------------------------------------------------------------ jobs and their blobs

    def opened(self, job_id: str, now: int) -> Job:
        """Note a new job."""
        job = self.jobs[job_id] = Job(job_id, now)
        return job

    def acknowledged(self, job: Job, key: str, content: bytes, server: str, began: int, now: int) -> Blob:
        """Note an acknowledged upload of a permanent blob."""
        blob = Blob(key, content, server, now, began)
        job.blobs.append(blob)
        self.used(job, server, began, now)
        return blob

    def used(self, job: Job, server: str, began: int, now: int) -> None:
        """Note an acknowledged use of a job's blobs."""
        job.uses.append(Use(server, began, now))

    def crashed(self, server: str, now: int) -> None:
        """Note that a server's host has lost its power."""
        self._crashes[server] = now

    def has_crashed(self, server: str) -> bool:
        """Return whether a server's host has ever lost its power."""
        return server in self._crashes

    # ------------------------------------------------------------------ reads

    def read(self, blob: Blob, content: bytes | None, began: int) -> None:
        """Note what a read has returned."""
        if content != blob.content:
            size = -1 if content is None else len(content)
            self._fail(CONTENT, f"{blob.key}: {size} bytes came, which are not the {len(blob.content)} uploaded ones")
        blob.used = max(blob.used, began)

    def missing(self, job: Job, blob: Blob, began: int, now: int, server: str) -> None:
        """Note that a read, begun at *began*, did not find a permanent blob."""
        if blob.ended >= began or job.over is not None:
            return
        if any(self._may_have_swept(call, job, now) for call in self.calls):
            return
        self._fail(READABLE, f"{blob.key} of job {job.job_id}, acknowledged by {blob.server}, is not at {server}")

    def missing_transient(self, blob: Blob, now: int) -> None:
        """Note that a read did not find a transient blob."""
        if blob.removing or self._crashes.get(blob.server, -1) >= blob.used:
            return
        if now - blob.used < self._transient_ttl:
            self._fail(READABLE, f"{blob.key}, acknowledged by {blob.server}, is not there before its time is over")

    def _may_have_swept(self, call: Call, job: Job, now: int) -> bool:
        """Return whether a sweep may have deleted a job's blobs: at a time when nobody had used them for long."""
        if call.job is not None or call.is_stale or call.outcome is Outcome.FENCED or job.job_id in call.live:
            return False
        end = call.ended if call.outcome is Outcome.DONE and call.ended is not None else now
        uses = [use for use in job.uses if use.server == call.server]
        for moment in (end, *(use.ended for use in uses if call.began <= use.ended <= end)):
            last = max((use.began for use in uses if use.ended < moment), default=job.began)
            if moment - last >= self._orphan_age:
                return True
        return False

    # ------------------------------------------------------------------ leaders

    def call(self, server: str, epoch: int, now: int, *, job: str | None = None, live: Iterable[str] = ()) -> Call:
        """Note the begin of a leader's call."""
        call = Call(server, epoch, job, frozenset(live), now, self.is_fenced(server, epoch, now))
        self.calls.append(call)
        return call

    def is_fenced(self, server: str, epoch: int, began: int) -> bool:
        """Return whether a server has to refuse a call of that leadership that begins now."""
        for other in self.calls:
            if other.epoch <= epoch or other.outcome is not Outcome.DONE or other.ended is None:
                continue
            if other.ended < began and (other.server == server or (self._has_store and not self._had_rival(other))):
                return True
        return False

    def _had_rival(self, call: Call) -> bool:
        """Return whether an earlier leader's call ran at the same time: both may have passed the store's fence."""
        assert call.ended is not None
        return any(
            other.epoch < call.epoch
            and other.began <= call.ended
            and (other.began + IN_DOUBT if other.outcome in (None, Outcome.UNKNOWN) else other.ended or 0) >= call.began
            for other in self.calls
        )

    def ended(self, call: Call, outcome: Outcome, now: int, *, leads: bool) -> None:
        """Note the end of a leader's call; *leads*: no later leadership was ever granted."""
        call.outcome, call.ended = outcome, now
        what = "a sweep" if call.job is None else f"the cleanup of {call.job}"
        if outcome is Outcome.DONE and call.is_stale:
            self._fail(FENCED, f"{what} of leadership {call.epoch} succeeded at {call.server}, after a later one's")
        if outcome is Outcome.FENCED and leads:
            self._fail(LEADS, f"{what} of leadership {call.epoch}, the latest, was refused at {call.server}")

    # ------------------------------------------------------------------ caches, and the end

    def download_began(self, cache: str, key: str) -> None:
        """Note that a cache begins to download a blob."""
        if (cache, key) in self._downloads:
            self._fail(FLIGHT, f"{cache} downloads {key} twice at once")
        self._downloads.add((cache, key))

    def download_ended(self, cache: str, key: str) -> None:
        """Note the end of a download."""
        self._downloads.discard((cache, key))

    def forget_downloads(self, cache: str) -> None:
        """Note that the process of a cache has ended."""
        self._downloads = {entry for entry in self._downloads if entry[0] != cache}

    def left_behind(self, place: str, paths: Iterable[str], allowed: Iterable[str]) -> None:
        """Check what is in a directory when no job is left."""
        known = set(allowed)
        if left := [path for path in paths if path not in known]:
            self._fail(LEFT, f"in {place}: {', '.join(left[:6])}")

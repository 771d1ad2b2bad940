"""Find jobs in a listing: the job that a user names, and the jobs that ``job list`` shows. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from conf.values import Duration
from runtime.cluster.output import clean, format_moment
from runtime.errors import ClusterError
from runtime.ids import JobID

if TYPE_CHECKING:
    from runtime.protocol.archived_execution_graph import JobDetails

LATEST = "latest"
"""Name of the last job that was started, even if another job has this name."""
SORTS = ("started", "ended", "duration", "name", "state")

_SHOWN_CANDIDATES = 5
_SHOWN_DIGITS = 8
_DIGITS = re.compile(r"[0-9a-f]{1,32}", re.IGNORECASE)


def full_id(text: str) -> JobID | None:
    """Return a text as a job id if it is a whole id, which needs no listing; else None."""
    return JobID(text.lower()) if len(text) == 32 and _DIGITS.fullmatch(text) else None


def find_job(jobs: Sequence[JobDetails], text: str) -> JobID:
    """Return the id of the job that a user names.

    The text is compared first with whole ids, then with `LATEST`, then with names, then with the first digits of ids.
    If several jobs have the name, it means the only one of them that is not over.

    Args:
        jobs: a listing, in any order.
        text: the text that the user entered.

    Raises:
        ClusterError: no job matches, or several do. The message lists them on one line.
    """
    if (whole := full_id(text)) is not None:
        return whole
    newest_first = sorted(jobs, key=lambda job: job.start_ms, reverse=True)
    if text == LATEST:
        if not newest_first:
            raise ClusterError("there are no jobs", "`understudy job run FILE` runs one")
        return newest_first[0].job_id
    named = [job for job in newest_first if job.name == text]
    unfinished = [job for job in named if not job.status.is_globally_terminal]
    for fitting in (named, unfinished):
        if len(fitting) == 1:
            return fitting[0].job_id
    if named:
        raise ClusterError(
            f"{len(named)} jobs have the name {text!r}: {_listed(unfinished or named)}",
            "give the first digits of its id",
        )
    digits = text.lower() if _DIGITS.fullmatch(text) else ""
    begun = [job for job in newest_first if digits and job.job_id.startswith(digits)]
    if len(begun) == 1:
        return begun[0].job_id
    if begun:
        raise ClusterError(
            f"{len(begun)} jobs have an id that begins with {text!r}: {_listed(begun)}", "give more digits of the id"
        )
    raise _unknown(text, newest_first)


def _unknown(text: str, newest_first: Sequence[JobDetails]) -> ClusterError:
    from difflib import get_close_matches

    refused = f"no job has the id or name {text!r}"
    if not newest_first:
        return ClusterError(f"{refused}: there are no jobs", "`understudy job list` shows all jobs")
    similar = get_close_matches(text, {job.name for job in newest_first})
    likely = [job for job in newest_first if job.name in similar] or newest_first
    verb = "is" if len(likely) == 1 else "are"
    return ClusterError(f"{refused}; there {verb}: {_listed(likely)}", "`understudy job list` shows all jobs")


def _listed(jobs: Sequence[JobDetails]) -> str:
    """Return jobs on one line, each with enough digits of its id to distinguish it."""
    digits = next(
        count for count in range(_SHOWN_DIGITS, 33) if count == 32 or len({j.job_id[:count] for j in jobs}) == len(jobs)
    )
    shown = [
        f"{job.job_id[:digits]} ({clean(job.name)}, {job.status.value}, {format_moment(job.start_ms)})"
        for job in jobs[:_SHOWN_CANDIDATES]
    ]
    if len(jobs) > _SHOWN_CANDIDATES:
        shown.append(f"and {len(jobs) - _SHOWN_CANDIDATES} more")
    return "; ".join(shown)


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Choice and order of the jobs that ``job list`` shows.

    Attributes:
        states: only jobs in one of these states; empty for all.
        name: only jobs whose name matches this pattern of the shell; empty for all.
        submitter: only jobs that this user owns or has submitted; empty for all.
        since_ms: only jobs that were started then or later, in milliseconds since 1970.
        sort: one of `SORTS`. Times and durations begin with the latest and the longest, texts with the first.
        reverse: reverse the order.
        limit: most jobs to show, the first ones of the order; None for all.
    """

    states: tuple[str, ...] = ()
    name: str = ""
    submitter: str = ""
    since_ms: int = 0
    sort: str = "started"
    reverse: bool = False
    limit: int | None = None

    def apply(self, jobs: Sequence[JobDetails], now_ms: int) -> list[JobDetails]:
        """Return the jobs to show at a moment."""
        left = [job for job in jobs if self._takes(job)]
        left.sort(key=lambda job: job.start_ms, reverse=True)
        match self.sort:
            case "name":
                left.sort(key=lambda job: job.name)
            case "state":
                left.sort(key=lambda job: job.status.value)
            case "ended":
                left.sort(key=lambda job: now_ms if job.end_ms is None else job.end_ms, reverse=True)
            case "duration":
                left.sort(key=lambda job: (now_ms if job.end_ms is None else job.end_ms) - job.start_ms, reverse=True)
        if self.reverse:
            left.reverse()
        return left[: self.limit]

    def _takes(self, job: JobDetails) -> bool:
        return (
            (not self.states or job.status.value in self.states)
            and (not self.name or fnmatchcase(job.name, self.name))
            and (not self.submitter or self.submitter in (job.owner, job.submitter))
            and job.start_ms >= self.since_ms
        )


def moment_of(text: str, now_ms: int) -> int:
    """Return the moment that a text names, in milliseconds since 1970.

    Args:
        text: a length of time before now (``2h``, ``30 min``), or a date or time in ISO 8601, local unless it has a
            zone.
        now_ms: the present.

    Raises:
        ValueError: the text is neither.
    """
    try:
        return now_ms - int(Duration().parse(text) * 1000)
    except ValueError:
        return int(datetime.fromisoformat(text).timestamp() * 1000)

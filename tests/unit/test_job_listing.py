"""Jobs found in a listing: by id, prefix of an id, name and `latest`; and the filters of ``job list``."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.cluster.job_listing import JobFilter, find_job, full_id, moment_of
from runtime.errors import ClusterError
from runtime.ids import JobID
from runtime.jobgraph.job_graph import JobKind
from runtime.protocol.archived_execution_graph import JobDetails
from runtime.protocol.execution_state import JobStatus

HOUR_MS = 3_600_000


def listed(id_: str, name: str = "etl", status: JobStatus = JobStatus.FINISHED, start_ms: int = 0, **more: Any) -> Any:
    """A job of a listing, whose id begins with these digits."""
    end_ms = None if status is JobStatus.RUNNING else start_ms + 1000
    given = {"kind": JobKind.SCRIPT, "end_ms": end_ms, "tasks_per_state": {}, "tasks_total": 1, "error": ""}
    return JobDetails(
        job_id=JobID(id_.ljust(32, "0")), name=name, status=status, start_ms=start_ms, **{**given, **more}
    )


OLD = listed("aa10", "etl", start_ms=1000)
NEW = listed("aa20", "etl", JobStatus.FAILED, start_ms=3000)
FEED = listed("bb30", "feed", JobStatus.RUNNING, start_ms=2000)
JOBS = (NEW, FEED, OLD)


def refusal(text: str, jobs: tuple[Any, ...] = JOBS) -> ClusterError:
    with pytest.raises(ClusterError) as refused:
        find_job(jobs, text)
    assert "\n" not in f"{refused.value}{refused.value.remedy}"
    return refused.value


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("aa1", OLD),
        ("b", FEED),
        ("feed", FEED),
        ("latest", NEW),
        (OLD.job_id, OLD),
        ("AA20", NEW),
        ("AA10".lower(), OLD),
    ],
)
def test_a_job_is_found(text: str, found: JobDetails) -> None:
    assert find_job(JOBS, text) == found.job_id


def test_latest_is_the_job_that_was_started_last_in_whatever_order_they_are_listed() -> None:
    assert find_job((OLD, FEED, NEW), "latest") == NEW.job_id
    assert find_job((*JOBS, listed("cc", "latest")), "latest") == NEW.job_id


def test_a_name_goes_before_the_prefix_of_an_id() -> None:
    assert find_job((*JOBS, listed("feed", "other")), "feed") == FEED.job_id


def test_a_name_of_several_jobs_is_the_one_that_is_not_over() -> None:
    runs = listed("cc40", "etl", JobStatus.RUNNING, start_ms=500)
    assert find_job((*JOBS, runs), "etl") == runs.job_id


def test_what_several_jobs_fit_is_refused_with_a_list_of_them() -> None:
    error = refusal("etl")
    assert str(error).startswith("2 jobs have the name 'etl': aa200000 (etl, FAILED, 1970-01-01 ")
    assert "; aa100000 (etl, FINISHED, 1970-01-01 " in str(error)
    assert error.remedy == "give the first digits of its id"
    error = refusal("aa")
    assert str(error).startswith("2 jobs have an id that begins with 'aa': aa200000 (etl, FAILED, ")
    assert error.remedy == "give more digits of the id"


def test_several_jobs_of_one_name_that_run_are_refused() -> None:
    assert "cc4" in str(refusal("feed", (*JOBS, listed("cc4", "feed", JobStatus.RUNNING))))


def test_candidates_are_told_apart_by_as_many_digits_as_that_takes() -> None:
    ids = ("0" * 30 + "10", "0" * 30 + "20")
    error = str(refusal("0", tuple(map(listed, ids))))
    assert ids[0][:31] in error
    assert ids[1][:31] in error


def test_an_unknown_job_is_refused_with_those_that_may_be_meant() -> None:
    error = refusal("feeed")
    assert str(error).startswith("no job has the id or name 'feeed'; there is: bb300000 (feed, RUNNING, 1970-01-01 ")
    assert error.remedy == "`understudy job list` shows all jobs"
    assert str(refusal("dd")).index("aa200000") < str(refusal("dd")).index("bb300000")  # the newest first
    assert str(refusal("dd", ())) == "no job has the id or name 'dd': there are no jobs"
    assert str(refusal("latest", ())) == "there are no jobs"


def test_a_long_list_of_candidates_is_cut() -> None:
    jobs = tuple(listed(f"aa{number}", start_ms=number) for number in range(10, 30))
    assert str(refusal("aa", jobs)).endswith("; and 15 more")


def test_names_of_others_cannot_break_the_line() -> None:
    assert "\\n" in str(refusal("aa", (listed("aa1", "a\nb"), listed("aa2"))))


def test_a_whole_id_needs_no_listing() -> None:
    assert full_id("0123456789abcdef" * 2) == "0123456789abcdef" * 2
    assert full_id("0123456789ABCDEF" * 2) == "0123456789abcdef" * 2
    assert full_id("0123") is None
    assert full_id("latest") is None


@given(st.lists(st.text("0123456789abcdef", min_size=32, max_size=32), min_size=1, max_size=8, unique=True), st.data())
def test_a_prefix_names_one_job_or_none(ids: list[str], data: st.DataObject) -> None:
    jobs = [listed(id_, "a name") for id_ in ids]
    prefix = data.draw(st.sampled_from(ids))[: data.draw(st.integers(1, 32))]
    fitting = [id_ for id_ in ids if id_.startswith(prefix)]
    if len(fitting) == 1:
        assert find_job(jobs, prefix) == fitting[0]
    else:
        assert str(refusal(prefix, tuple(jobs))).startswith(f"{len(fitting)} jobs have an id that begins with")


# ------------------------------------------------------------------- filters


def ids_of(choice: JobFilter, jobs: tuple[Any, ...] = JOBS, now_ms: int = 5000) -> list[str]:
    return [job.job_id[:4] for job in choice.apply(jobs, now_ms)]


@pytest.mark.parametrize(
    ("choice", "left"),
    [
        (JobFilter(), ["aa20", "bb30", "aa10"]),
        (JobFilter(states=("RUNNING",)), ["bb30"]),
        (JobFilter(states=("RUNNING", "FAILED")), ["aa20", "bb30"]),
        (JobFilter(name="e*"), ["aa20", "aa10"]),
        (JobFilter(name="E*"), []),
        (JobFilter(since_ms=2000), ["aa20", "bb30"]),
        (JobFilter(limit=1), ["aa20"]),
        (JobFilter(sort="name"), ["aa20", "aa10", "bb30"]),
        (JobFilter(sort="state"), ["aa20", "aa10", "bb30"]),
        (JobFilter(sort="duration"), ["bb30", "aa20", "aa10"]),
        (JobFilter(sort="duration", reverse=True), ["aa10", "aa20", "bb30"]),
        (JobFilter(sort="started", reverse=True, limit=2), ["aa10", "bb30"]),
    ],
)
def test_a_listing_is_filtered_sorted_and_cut(choice: JobFilter, left: list[str]) -> None:
    assert ids_of(choice) == left


def test_a_listing_is_filtered_by_submitter() -> None:
    jobs = (listed("aa1", submitter="ada"), listed("aa2", submitter="bob"))
    assert ids_of(JobFilter(submitter="ada"), jobs) == ["aa10"]


def test_since_is_a_length_of_time_or_a_moment() -> None:
    assert moment_of("2h", now_ms=3 * HOUR_MS) == HOUR_MS
    assert moment_of("1970-01-01T01:00:00+00:00", now_ms=0) == HOUR_MS
    assert moment_of("1970-01-02", now_ms=0) == moment_of("1970-01-02T00:00:00", now_ms=0)
    with pytest.raises(ValueError, match="yesterday"):
        moment_of("yesterday", now_ms=0)

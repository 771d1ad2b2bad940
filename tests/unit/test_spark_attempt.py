"""The page of an attempt's work in Spark: what belongs to it, and nothing that it says is markup."""

from __future__ import annotations

from typing import Any

from runtime.rest.spark_attempt import AttemptWork, page, to_json, unknown, work_of

TAG = "understudy-attempt-1"


def job(number: int, *tags: str, **parts: Any) -> dict[str, Any]:
    return {"jobId": number, "name": f"job {number}", "status": "SUCCEEDED", "jobTags": list(tags), **parts}


def execution(number: int, **jobs: list[int]) -> dict[str, Any]:
    return {"id": number, "description": f"query {number}", "status": "COMPLETED", **jobs}


JOBS = [
    job(1, TAG, stageIds=[4, 2], submissionTime="2026-11-26T05:00:00.000GMT"),
    job(2, "understudy-attempt-2"),
    job(3),
    job(4, "mine", TAG + "_Operation_77", description="count of <b>flights</b>"),
    job(5, "x" + TAG),
]
EXECUTIONS = [
    execution(0, successJobIds=[1]),
    execution(1, successJobIds=[2], failedJobIds=[3]),
    execution(2, runningJobIds=[4], failedJobIds=[1], successJobIds=[]),
    execution(3),
]


def test_an_attempts_work_is_what_bears_its_tag() -> None:
    work = work_of(JOBS, EXECUTIONS, TAG)
    assert [(row.id, row.text, row.related) for row in work.jobs] == [
        (4, "count of <b>flights</b>", ()),
        (1, "job 1", (2, 4)),
    ]
    assert [(row.id, row.related) for row in work.executions] == [(2, (1, 4)), (0, (1,))]
    assert work_of(JOBS, EXECUTIONS, "understudy-attempt-3") == AttemptWork((), ())


def test_each_row_leads_to_sparks_own_page() -> None:
    told = to_json("app-1", TAG, work_of(JOBS, EXECUTIONS, TAG))
    assert (told["application"], told["tag"]) == ("app-1", TAG)
    assert [(row["id"], row["path"], row["stages"]) for row in told["jobs"]] == [
        (4, "/history/app-1/jobs/job/?id=4", []),
        (1, "/history/app-1/jobs/job/?id=1", [2, 4]),
    ]
    assert [(row["id"], row["path"], row["jobs"]) for row in told["sql-executions"]] == [
        (2, "/history/app-1/SQL/execution/?id=2", [1, 4]),
        (0, "/history/app-1/SQL/execution/?id=0", [1]),
    ]
    text = page("app-1", TAG, work_of(JOBS, EXECUTIONS, TAG))
    for path in ("jobs/job/?id=4", "stages/stage/?id=2&amp;attempt=0", "SQL/execution/?id=2", "jobs/"):
        assert f'href="/history/app-1/{path}"' in text, path


def test_nothing_of_a_job_is_markup() -> None:
    hostile = "<script>alert(1)</script>\"'"
    jobs = [job(1, hostile + "1", description=hostile, status=hostile, submissionTime=hostile)]
    for text in (
        page(hostile, hostile, work_of(jobs, [{**execution(0, successJobIds=[1]), "description": hostile}], hostile)),
        page(hostile, hostile, AttemptWork((), ())),
        unknown(hostile),
    ):
        assert "<script" not in text
        assert "&lt;script&gt;" in text


def test_an_attempt_without_spark_jobs_says_so() -> None:
    assert "holds no Spark job of this attempt" in page("app-1", TAG, AttemptWork((), ()))
    assert "does not know the application" in unknown("app-1")

"""The page of an attempt's work in Spark: what belongs to it, and nothing that it says is markup."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from runtime.rest.spark_attempt import MOST_STAGES, AttemptWork, page, to_json, unknown, work_of

TAG = "understudy-attempt-1"
BASE = "/history/app-1/"


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


QUERY, RUN = "a8dd4596-16bc-476b-98af-77437eeb378c", "b6f27fbe-92e8-4e9c-bd7f-baf4587e8cd5"
OTHER_RUN = RUN.replace("b", "c")


def batch(number: int, name: str, run_id: str, batch: str) -> dict[str, Any]:
    return job(number, TAG, description=f"{name}id = {QUERY}\nrunId = {run_id}\nbatch = {batch}")


def test_the_runs_of_streaming_queries_lead_to_sparks_page_of_each() -> None:
    jobs = [
        batch(1, "my\ncounts\n", RUN, "7"),
        batch(2, "my\ncounts\n", RUN, "8"),
        batch(3, "", OTHER_RUN, "init"),
        batch(4, "", RUN, "9 and more"),
        batch(5, "no line before ", RUN, "9"),
        job(6, "another", description=batch(6, "", QUERY, "1")["description"]),
    ]
    work = work_of(jobs, [], TAG)
    assert [(row.run_id, row.name, row.batch) for row in work.queries] == [
        (OTHER_RUN, "", "init"),
        (RUN, "my\ncounts", "8"),
    ]
    told = to_json("app-1", TAG, work, BASE)["queries"]
    path = f"{BASE}StreamingQuery/statistics/?id={RUN}"
    assert told[1] == {"run-id": RUN, "name": "my\ncounts", "batch": "8", "path": path}
    assert f'href="{path}"' in page("app-1", TAG, work, BASE)
    assert "Streaming queries" not in page("app-1", TAG, work_of(JOBS, EXECUTIONS, TAG), BASE)


def test_each_row_leads_to_sparks_own_page() -> None:
    told = to_json("app-1", TAG, work_of(JOBS, EXECUTIONS, TAG), BASE)
    assert (told["application"], told["tag"]) == ("app-1", TAG)
    assert [(row["id"], row["path"], row["stages"]) for row in told["jobs"]] == [
        (4, "/history/app-1/jobs/job/?id=4", []),
        (1, "/history/app-1/jobs/job/?id=1", [2, 4]),
    ]
    assert [(row["id"], row["path"], row["jobs"]) for row in told["sql-executions"]] == [
        (2, "/history/app-1/SQL/execution/?id=2", [1, 4]),
        (0, "/history/app-1/SQL/execution/?id=0", [1]),
    ]
    text = page("app-1", TAG, work_of(JOBS, EXECUTIONS, TAG), BASE)
    for path in ("jobs/job/?id=4", "stages/stage/?id=2&amp;attempt=0", "SQL/execution/?id=2", "jobs/"):
        assert f'href="/history/app-1/{path}"' in text, path


def stage(number: int, seconds: float | None, attempt: int = 0, **parts: Any) -> dict[str, Any]:
    times = {"submissionTime": "2026-11-26T05:59:58.500GMT"}
    if seconds is not None:
        ended = datetime(2026, 11, 26, 5, 59, 58, 500_000) + timedelta(seconds=seconds)
        times["completionTime"] = f"{ended.isoformat(timespec='milliseconds')}GMT"
    return {"stageId": number, "attemptId": attempt, "name": f"s{number}", "status": "COMPLETE", **times, **parts}


def test_the_slowest_stage_is_named_with_sparks_own_figures() -> None:
    figures = {"numTasks": 200, "inputRecords": 12_345, "inputBytes": 1 << 20, "shuffleReadBytes": 1 << 19}
    figures |= {"outputBytes": 7, "shuffleWriteBytes": 1000, "diskBytesSpilled": 3 << 30, "memoryBytesSpilled": 9}
    jobs = [job(1, TAG, stageIds=[2, 3, 4, 5, 6]), job(2, stageIds=[7])]
    stages = [
        stage(2, 0.25),
        stage(3, 61.5, **figures),
        stage(3, 0.5, attempt=1),
        stage(4, None),  # it runs
        {"stageId": 5, "attemptId": 0, "status": "SKIPPED"},
        stage(6, -1.0),  # the clock was set back
        stage(7, 99.0),  # another attempt's
    ]
    work = work_of(jobs, [], TAG, stages)
    assert [(row.id, row.attempt, row.duration_ms) for row in work.stages] == [
        (3, 0, 61_500),
        (3, 1, 500),
        (2, 0, 250),
        (6, 0, 0),
    ]
    assert to_json("app-1", TAG, work, BASE)["stages"][0] == {
        "id": 3,
        "attempt": 0,
        "text": "s3",
        "status": "COMPLETE",
        "duration_ms": 61_500,
        "tasks": 200,
        "rows": 12_345,
        "read_bytes": (1 << 20) + (1 << 19),
        "written_bytes": 1007,
        "spilled_bytes": 3 << 30,
        "path": "/history/app-1/stages/stage/?id=3&attempt=0",
    }
    text = page("app-1", TAG, work, BASE)
    link = '<a href="/history/app-1/stages/stage/?id=3&amp;attempt=0">3</a>'
    assert f"Slowest stage: {link}, s3, 61.5 s; it spilled 3.0 GiB to disk." in text
    for cell in ("61.5 s", "250 ms", "200", "12,345", "1.5 MiB", "1,007 B", "3.0 GiB"):
        assert f"<td>{cell}</td>" in text, cell
    assert "Slowest stage" not in page("app-1", TAG, work_of(jobs, [], TAG), BASE)


def test_of_many_stages_the_slowest_are_listed() -> None:
    jobs = [job(1, TAG, stageIds=list(range(200)))]
    work = work_of(jobs, [], TAG, [stage(number, float(number)) for number in range(200)])
    assert [row.id for row in work.stages] == list(range(199, 199 - MOST_STAGES, -1))


def test_nothing_of_a_job_is_markup() -> None:
    hostile = "<script>alert(1)</script>\"'"
    jobs = [job(1, hostile + "1", description=hostile, status=hostile, submissionTime=hostile, stageIds=[0])]
    jobs.append({**batch(2, f"{hostile}\n", RUN, "1"), "jobTags": [hostile]})
    executions = [{**execution(0, successJobIds=[1]), "description": hostile}]
    stages = [{**stage(0, 1.0), "name": hostile, "status": hostile}]
    for text in (
        page(hostile, hostile, work_of(jobs, executions, hostile, stages), f"/history/{hostile}/"),
        page(hostile, hostile, AttemptWork((), ()), f"/history/{hostile}/"),
        unknown(hostile),
    ):
        assert "<script" not in text
        assert "&lt;script&gt;" in text


def test_an_attempt_without_spark_jobs_says_so() -> None:
    assert "knows no Spark job of this attempt" in page("app-1", TAG, AttemptWork((), ()), BASE)
    assert "does not know the application" in unknown("app-1")

"""The last counts of a script's Spark jobs: those at its end, although Spark counts on a thread of its own."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from runtime.spark.task.classic import StatusPoller
from runtime.spark.task.progress import ProgressReporter, TaskProgress
from tests.waiting import LONGER_THAN_PATIENCE_S


class Spark:
    """A SparkContext with one job of three tasks that has ended, of which its status store has seen one so far.

    Args:
        is_busy: whether more events wait than are seen in time.
        has_dropped_it: whether its store has no job of that number any more.
    """

    def __init__(self, *, is_busy: bool = False, has_dropped_it: bool = False) -> None:
        self._is_busy = is_busy
        self._has_dropped_it = has_dropped_it
        self._seen = 1
        self.java: Any = SimpleNamespace(util=SimpleNamespace(Arrays=SimpleNamespace(toString=str)))

    def sc(self) -> Spark:
        return self

    def statusTracker(self) -> Spark:  # noqa: N802
        return self

    def statusStore(self) -> Spark:  # noqa: N802
        return self

    def job(self, job_id: int) -> Any:
        if self._has_dropped_it:
            raise Py4JJavaError("a NoSuchElementException", SimpleNamespace(_target_id="o1"))

        def time_of(at_ms: int) -> Any:
            return lambda: SimpleNamespace(get=lambda: SimpleNamespace(getTime=lambda: at_ms))

        return SimpleNamespace(
            submissionTime=time_of(1000),
            completionTime=time_of(1500),
            name=lambda: f"collect of {job_id}",
            status=lambda: "SUCCEEDED",
        )

    def listenerBus(self) -> Spark:  # noqa: N802
        return self

    def waitUntilEmpty(self, _timeout_ms: int) -> None:  # noqa: N802
        if self._is_busy:
            raise Py4JJavaError("a TimeoutException", SimpleNamespace(_target_id="o1"))
        self._seen = 3

    def getJobIdsForTag(self, _tag: str) -> list[int]:  # noqa: N802
        return [7]

    def getJobInfo(self, _job_id: int) -> Any:  # noqa: N802
        status = "SUCCEEDED" if self._seen == 3 else "RUNNING"
        return SimpleNamespace(status=lambda: SimpleNamespace(name=lambda: status), stageIds=lambda: [5])

    def getStageInfo(self, _stage_id: int) -> Any:  # noqa: N802
        return SimpleNamespace(
            numTasks=lambda: 3,
            numCompletedTasks=lambda: self._seen,
            numActiveTasks=lambda: 3 - self._seen,
            name=lambda: "collect at job.py:1",
        )


@pytest.mark.parametrize(("is_busy", "completed", "state"), [(False, 3, "COMPLETE"), (True, 1, "ACTIVE")])
def test_the_last_counts_are_those_of_the_end_unless_spark_is_too_busy(
    is_busy: bool, completed: int, state: str
) -> None:
    told: list[dict[str, Any]] = []
    reporter = ProgressReporter(TaskProgress({"script": ()}), told.append, time.monotonic)
    spark = Spark(is_busy=is_busy)
    StatusPoller(spark, spark, "tag", reporter, "script", LONGER_THAN_PATIENCE_S).stop()
    reporter.change(TaskProgress.finish, "script", force=True)
    script = told[-1]["script"]
    assert (script["tasks_total"], script["tasks_completed"]) == (3, completed)
    assert [stage["state"] for stage in script["latest_stages"]] == [state]


@pytest.mark.parametrize(
    ("reads_times", "has_dropped_it", "is_busy"),
    [(True, False, False), (False, False, False), (True, True, False), (True, False, True)],
)
def test_times_of_ended_jobs_are_read_for_traces_alone(reads_times: bool, has_dropped_it: bool, is_busy: bool) -> None:
    told: list[dict[str, Any]] = []
    reporter = ProgressReporter(TaskProgress({"script": ()}), told.append, time.monotonic)
    spark = Spark(is_busy=is_busy, has_dropped_it=has_dropped_it)
    StatusPoller(spark, spark, "tag", reporter, "script", LONGER_THAN_PATIENCE_S, reads_times=reads_times).stop()
    reporter.change(TaskProgress.finish, "script", force=True)
    ended = {"job_id": 7, "name": "collect of 7", "start_ms": 1000, "end_ms": 1500, "failed": False}
    shows = reads_times and not has_dropped_it and not is_busy
    assert told[-1]["script"].get("latest_jobs") == ([ended] if shows else None)
    assert told[-1]["script"]["stages"] == 1

"""Progress of a task's vertices: pure state."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.protocol.descriptor import EndedSparkJob
from runtime.spark.task.progress import (
    MOST_JOBS,
    MOST_OF_A_NAME,
    MOST_STAGES,
    Counts,
    ProgressReporter,
    Stage,
    TaskProgress,
    parents_of,
)

CHAIN = {"read": [], "clean": ["read"], "other": ["read"], "write": ["clean"]}


def states(progress: TaskProgress) -> dict[str, str]:
    return {vertex: item["state"] for vertex, item in progress.snapshot().items()}


def test_lazy_vertex_is_finished_with_the_last_of_its_readers() -> None:
    progress = TaskProgress(CHAIN)
    for vertex in CHAIN:
        progress.start(vertex)
    progress.finish("write")
    assert states(progress) == {"read": "RUNNING", "clean": "FINISHED", "other": "RUNNING", "write": "FINISHED"}
    progress.finish("other")
    assert set(states(progress).values()) == {"FINISHED"}


def test_an_action_counts_for_the_unfinished_vertices_chained_into_it() -> None:
    progress = TaskProgress(CHAIN)
    progress.start("write")
    progress.update("write", "op-1", Counts(2, 1, 10, 4, 2))
    counts = {vertex: item["tasks_completed"] for vertex, item in progress.snapshot().items()}
    assert counts == {"read": 4, "clean": 4, "other": 0, "write": 4}


def test_finished_vertices_do_not_count_later_actions() -> None:
    progress = TaskProgress({"a": [], "b": ["a"], "c": ["b"]})
    progress.finish("b")  # written: `a` is done, too
    progress.update("c", "op", Counts(1, 0, 5, 3, 1))
    snapshot = progress.snapshot()
    assert snapshot["a"]["tasks_total"] == snapshot["b"]["tasks_total"] == 0
    assert snapshot["c"]["tasks_total"] == 5


def test_operations_add_up_and_a_completed_one_has_nothing_left() -> None:
    progress = TaskProgress({"a": []})
    progress.update("a", "one", Counts(3, 1, 10, 6, 2))
    progress.update("a", "two", Counts(1, 0, 4, 1, 1))
    progress.update("a", "two", Counts(1, 0, 4, 2, 1))
    progress.complete("one")
    progress.complete("unknown")
    item = progress.snapshot()["a"]
    assert (item["stages"], item["stages_completed"]) == (4, 3)
    assert (item["tasks_total"], item["tasks_completed"], item["tasks_active"]) == (14, 12, 1)


@pytest.mark.parametrize(
    ("job", "tasks", "completed", "active", "state"),
    [
        ("RUNNING", 4, 0, 0, "PENDING"),
        ("RUNNING", 4, 0, 2, "ACTIVE"),
        ("RUNNING", 4, 3, 0, "ACTIVE"),
        ("RUNNING", 4, 4, 0, "COMPLETE"),
        ("UNKNOWN", 4, 0, 0, "PENDING"),
        ("SUCCEEDED", 4, 0, 0, "SKIPPED"),
        ("SUCCEEDED", 4, 2, 0, "COMPLETE"),
        ("FAILED", 4, 2, 0, "FAILED"),
        ("FAILED", 4, 4, 0, "COMPLETE"),
    ],
)
def test_a_stage_has_the_state_that_its_tasks_and_its_job_tell(
    job: str, tasks: int, completed: int, active: int, state: str
) -> None:
    assert Stage.of(1, "collect at a.py:1", tasks, completed, active, job).state == state


def test_the_parents_of_a_stage_make_what_it_reads() -> None:
    rdds = {0: frozenset({0, 1}), 1: frozenset({2}), 2: frozenset({3, 4})}
    inputs = {0: frozenset[int](), 1: frozenset({9}), 2: frozenset({2, 1, 9})}  # 9: an RDD of an earlier job
    assert parents_of(rdds, inputs) == {0: (), 1: (), 2: (0, 1)}


def test_the_newest_stages_are_told_one_by_one() -> None:
    progress = TaskProgress({"a": [], "b": []})
    stages = [Stage.of(number, "x" * 1000, 4, 1, 1, "RUNNING") for number in range(2 * MOST_STAGES)]
    for number in (3, 2, *range(2 * MOST_STAGES)):
        progress.update("a", "op", stages[number].counts, [stages[number]])
    progress.update("a", "op", Counts(), [Stage.of(2 * MOST_STAGES - 1, "last", 4, 4, 0, "RUNNING")])
    told = progress.snapshot()
    latest = told["a"]["latest_stages"]
    assert [stage["stage_id"] for stage in latest] == list(range(MOST_STAGES, 2 * MOST_STAGES))
    assert (latest[-1]["name"], latest[-1]["state"], latest[0]["name"]) == ("last", "COMPLETE", "x" * MOST_OF_A_NAME)
    assert "latest_stages" not in told["b"]


def test_the_last_ended_jobs_are_told_one_by_one() -> None:
    progress = TaskProgress({"a": [], "b": []})
    for number in range(2 * MOST_JOBS):
        progress.job_ended("a", EndedSparkJob(number, "count", 1, 2, failed=False))
    told = progress.snapshot()
    assert [job["job_id"] for job in told["a"]["latest_jobs"]] == list(range(MOST_JOBS, 2 * MOST_JOBS))
    assert "latest_jobs" not in told["b"]


def test_reporter_sends_changes_at_most_every_interval() -> None:
    now = 0.0
    sent: list[dict[str, Any]] = []
    reporter = ProgressReporter(TaskProgress({"a": []}), sent.append, lambda: now)
    reporter.change(TaskProgress.start, "a", force=True)
    reporter.change(TaskProgress.update, "a", "op", Counts(1, 0, 4, 1, 1))
    assert len(sent) == 1
    now = 0.25
    reporter.tick()
    assert sent[-1]["a"]["tasks_completed"] == 1
    now = 1.0
    reporter.tick()  # nothing has changed
    assert len(sent) == 2
    reporter.change(TaskProgress.finish_all, force=True)
    assert sent[-1]["a"]["state"] == "FINISHED"

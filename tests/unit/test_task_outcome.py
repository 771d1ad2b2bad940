"""How an attempt ended, by what was heard of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest

from runtime.ids import AllocationID, ExecutionAttemptID, JobID, JobVertexID
from runtime.jobgraph.job_graph import JobKind
from runtime.protocol.descriptor import (
    AttemptInformation,
    EndedSparkJob,
    JobInformation,
    ResultPartitionInfo,
    TaskDeploymentDescriptor,
    VertexProgress,
)
from runtime.protocol.execution_state import ExecutionState, FailureKind
from runtime.spark.errors import DriverCallError, DriverLostError
from runtime.spark.spec import ConnectEndpoint, ResourceLimits
from runtime.spark.task.progress import MOST_JOBS
from runtime.taskexecutor.task import Task, TaskOutcome
from runtime.taskexecutor.task_checkpoints import NotStoppedError, StopOutcome

ATTEMPT = ExecutionAttemptID("e" * 32)
VERTEX = JobVertexID("d" * 32)
OTHER = JobVertexID("f" * 32)
NOW_MS = 1_700_000_000_000
RESULT = ResultPartitionInfo(VERTEX, "/results/d", 2, 100)


def outcome(kind: JobKind = JobKind.PIPELINE, limits: ResourceLimits | None = None) -> TaskOutcome:
    descriptor = TaskDeploymentDescriptor(
        JobInformation(JobID("a" * 32), "flights", kind),
        AttemptInformation(ATTEMPT, 0, AllocationID("b" * 32), VERTEX, "read", ()),
    )
    return TaskOutcome(descriptor, limits or ResourceLimits())


def test_what_came_to_its_end_has_finished_with_its_results() -> None:
    heard = outcome()
    heard.finish([RESULT])
    state = heard.final_state(0, StopOutcome.NOT_ASKED, cancelled=False, now_ms=NOW_MS)
    assert (state.attempt_id, state.state, state.exit_status) == (ATTEMPT, ExecutionState.FINISHED, 0)
    assert state.partitions == (RESULT,)


def test_the_first_failure_counts_and_may_turn_out_to_be_anothers_fault() -> None:
    heard = outcome()
    heard.fail(FailureKind.USER_CODE, "ValueError", "no such column", "the traceback", now_ms=NOW_MS)
    heard.fail(FailureKind.RUNTIME, "Other", "what came of it", now_ms=NOW_MS + 1)
    state = heard.final_state(1, StopOutcome.NOT_ASKED, cancelled=False, now_ms=NOW_MS)
    assert state.state is ExecutionState.FAILED
    assert state.error is not None
    assert (state.error.kind, state.error.type, state.error.task) == (FailureKind.USER_CODE, "ValueError", "read")
    assert (state.error.traceback, state.error.timestamp_ms) == ("the traceback", NOW_MS)
    heard.blame(FailureKind.SPARK_LOST, "SparkDriverLostException", "it has ended")
    blamed = heard.final_state(1, StopOutcome.NOT_ASKED, cancelled=False, now_ms=NOW_MS).error
    assert blamed is not None
    assert (blamed.kind, blamed.message) == (FailureKind.SPARK_LOST, "it has ended")


def test_a_lost_result_is_named() -> None:
    heard = outcome()
    name, message = "PartitionNotFoundError", "a file is missing"
    heard.fail(FailureKind.RESULT_LOST, name, message, lost_result=VERTEX, now_ms=NOW_MS)
    failure = heard.final_state(1, StopOutcome.NOT_ASKED, cancelled=False, now_ms=NOW_MS).error
    assert failure is not None
    assert failure.lost_result == VERTEX


@pytest.mark.parametrize(
    ("kind", "status", "wanted"),
    [
        (JobKind.PIPELINE, 0, ExecutionState.FAILED),
        (JobKind.SCRIPT, 0, ExecutionState.FINISHED),
        (JobKind.SCRIPT, 3, ExecutionState.FAILED),
        (JobKind.SCRIPT, -9, ExecutionState.FAILED),
        (JobKind.SCRIPT, None, ExecutionState.FAILED),
    ],
)
def test_a_process_that_said_nothing_is_lost_but_for_a_script_that_left_well(
    kind: JobKind, status: int | None, wanted: ExecutionState
) -> None:
    state = outcome(kind).final_state(status, StopOutcome.NOT_ASKED, cancelled=False, now_ms=NOW_MS)
    assert state.state is wanted
    if wanted is ExecutionState.FAILED:
        assert state.error is not None
        assert state.error.kind is FailureKind.TASK_PROCESS_LOST


def test_a_killed_process_may_have_reached_its_limits() -> None:
    heard = outcome(limits=ResourceLimits(cpu_s=60))
    failure = heard.final_state(-9, StopOutcome.NOT_ASKED, cancelled=False, now_ms=NOW_MS).error
    assert failure is not None
    assert "SIGKILL; it may have reached taskmanager.task.cpu-time.limit (60 s)" in failure.message


def test_cancelled_goes_before_failed_and_a_completed_stop_before_both() -> None:
    heard = outcome()
    heard.fail(FailureKind.USER_CODE, "StreamingQueryException", "it was stopped", now_ms=NOW_MS)
    assert heard.final_state(143, StopOutcome.NOT_ASKED, cancelled=True, now_ms=NOW_MS).state is ExecutionState.CANCELED
    stopped = heard.final_state(1, StopOutcome.COMPLETED, cancelled=True, now_ms=NOW_MS)
    assert (stopped.state, stopped.error) == (ExecutionState.FINISHED, None)


def test_after_a_failed_stop_the_job_is_not_over_whatever_its_code_made_of_it() -> None:
    heard = outcome()
    heard.finish(())
    state = heard.final_state(0, StopOutcome.FAILED, cancelled=False, now_ms=NOW_MS)
    assert state.state is ExecutionState.FAILED
    assert state.error is not None
    assert (state.error.kind, state.error.type) == (FailureKind.RUNTIME, "StopWithSavepointStoppingException")


def test_after_a_failed_drain_the_failure_of_the_query_is_the_tasks() -> None:
    heard = outcome(JobKind.SCRIPT)
    text = "streaming query q has failed: ValueError: poison"
    heard.fail(FailureKind.USER_CODE, "StreamingQueryException", text, now_ms=NOW_MS)
    heard.finish(())  # its code has gone on, and came to its end
    state = heard.final_state(0, StopOutcome.DRAIN_FAILED, cancelled=False, now_ms=NOW_MS)
    assert state.state is ExecutionState.FAILED
    assert state.error is not None
    assert (state.error.kind, "poison" in state.error.message) == (FailureKind.USER_CODE, True)


@pytest.mark.parametrize(
    ("stop", "was_refused", "state"),
    [
        (StopOutcome.COMPLETED_BY_OTHERS, True, ExecutionState.FINISHED),
        (StopOutcome.COMPLETED_BY_OTHERS, False, ExecutionState.FAILED),
        (StopOutcome.NOT_ASKED, True, ExecutionState.FAILED),
    ],
)
def test_a_task_that_may_start_no_query_after_the_stop_of_its_job_has_finished(
    stop: StopOutcome, was_refused: bool, state: ExecutionState
) -> None:
    heard = outcome(JobKind.SCRIPT)
    heard.was_refused = was_refused
    assert heard.final_state(143, stop, cancelled=False, now_ms=NOW_MS).state is state


async def test_a_stop_that_meets_the_end_of_its_task_waits_for_the_cause() -> None:
    """The connection to the process is gone before what it had said last is read."""
    heard = outcome()
    task: Any = SimpleNamespace(_heard_all=asyncio.Event(), _outcome=heard, _attempt=heard._descriptor.attempt)
    is_asked = asyncio.Event()

    async def gone() -> None:
        is_asked.set()
        raise ConnectionResetError("gone")

    asked = asyncio.create_task(Task._failed_queries(task, SimpleNamespace(failed_queries=gone)))  # type: ignore[arg-type]
    await is_asked.wait()
    heard.fail(FailureKind.USER_CODE, "ValueError", "no such column", now_ms=NOW_MS)
    task._heard_all.set()
    with pytest.raises(NotStoppedError, match=r"has failed: .*no such column"):
        await asked


@pytest.mark.parametrize("known", [(), (VertexProgress(VERTEX, stages=3), VertexProgress(OTHER))])
async def test_the_spark_jobs_of_a_pipeline_are_reported_with_its_first_function(
    known: tuple[VertexProgress, ...],
) -> None:
    told: list[tuple[VertexProgress, ...]] = []
    jobs = [EndedSparkJob(4, "count", NOW_MS, NOW_MS + 5)]
    task: Any = SimpleNamespace(
        _progress=known,
        _attempt=SimpleNamespace(vertices=(SimpleNamespace(id=VERTEX),), task_name="read"),
        _tell_progress=lambda: told.append(task._progress),
    )
    endpoint = ConnectEndpoint(1, "token", "session", "user")
    for error in (DriverLostError("it has ended"), DriverCallError("it refuses")):
        await Task._note_spark_jobs(task, cast(Any, SimpleNamespace(ended_jobs=AsyncMock(side_effect=error))), endpoint)
    await Task._note_spark_jobs(task, cast(Any, SimpleNamespace(ended_jobs=AsyncMock(return_value=[]))), endpoint)
    assert (told, task._progress) == ([], known)
    driver = SimpleNamespace(ended_jobs=AsyncMock(return_value=jobs))
    await Task._note_spark_jobs(task, cast(Any, driver), endpoint)
    driver.ended_jobs.assert_awaited_once_with(endpoint, MOST_JOBS)
    first, *others = known or (VertexProgress(VERTEX),)
    assert told == [(replace(first, latest_jobs=tuple(jobs)), *others)]

"""The spans of a job: the execution graph of any history in, spans out."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from runtime.ids import ExecutionAttemptID
from runtime.jobmaster.execution_graph import ExecutionGraph
from runtime.jobmaster.restart_strategy import RestartStrategy, RestartStrategyConfig
from runtime.jobmaster.spans import LONGEST_SUBMISSION_MS, Span, otlp_json, spans_of
from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph, AttemptInfo
from runtime.protocol.checkpoint_statistics import CheckpointStats, CheckpointStatsSnapshot, CheckpointStatsStatus
from runtime.protocol.checkpoints import SnapshotType
from runtime.protocol.descriptor import EndedSparkJob, SparkWork, TaskExecutionState, TaskProgress, VertexProgress
from runtime.protocol.execution_state import ErrorInfo, ExecutionState, FailureKind, Instant
from runtime.protocol.streaming_query import QueryProgress, StreamingQuery
from runtime.trace_context import JobTrace
from tests.unit.test_execution_graph import Driver
from tests.unit.test_jobgraph import make_graph, vid
from tests.unit.test_trace_context import SPAN, TEXT, TRACE

LOST = ErrorInfo(FailureKind.TASK_PROCESS_LOST, "TaskProcessLost", "killed\nby signal 9")

ONE_TASK = make_graph(names="a", created_ms=1000)


def trace_of(driver: Driver) -> JobTrace:
    return JobTrace.of(driver.job.job_id, TEXT, is_on=True)


def spans(driver: Driver, graph: ArchivedExecutionGraph | None = None) -> list[Span]:
    return spans_of(trace_of(driver), driver.job, graph or driver.graph.archive())


def report(driver: Driver, task: str, *states: ExecutionState, error: ErrorInfo | None = None) -> None:
    for state in states:
        told = TaskExecutionState(driver.attempt(task), state, error, spark=SparkWork("app-1", "tag-1"))
        driver.note(driver.graph.task_state_reported(told, driver.at()))


def run(driver: Driver, task: str) -> None:
    driver.assign(task)
    report(driver, task, ExecutionState.INITIALIZING, ExecutionState.RUNNING, ExecutionState.FINISHED)


def named(found: list[Span]) -> dict[str, Span]:
    return {span.name: span for span in found}


def check_tree(found: list[Span]) -> None:
    """All spans of an ended job are one tree below the client's span, and no id stands twice."""
    ids = [span.span_id for span in found]
    assert len(set(ids)) == len(ids)
    assert {span.trace_id for span in found} == {TRACE}
    assert [span.name.split()[0] for span in found if span.parent_id not in ids] == ["job"]
    assert all(span.parent_id == SPAN for span in found if span.parent_id not in ids)
    assert all(span.start_ms <= span.end_ms for span in found)


def covered(attempt: AttemptInfo, found: list[Span], trace: JobTrace) -> bool:
    """Whether each transition of an ended attempt begins or ends a span of it."""
    own = trace.attempt_span(attempt.attempt_id)
    moments = {at for span in found if own in (span.span_id, span.parent_id) for at in (span.start_ms, span.end_ms)}
    moments |= {event.at_ms for span in found if span.span_id == own for event in span.events}
    return all(at in moments for state, at in attempt.timestamps.items() if state != "CREATED")


def check_coverage(driver: Driver) -> None:
    found, graph = spans(driver), driver.graph.archive()
    attempts = [attempt for task in graph.tasks for attempt in task.attempts]
    assert attempts
    assert all(covered(attempt, found, trace_of(driver)) for attempt in attempts)
    assert {event.name for span in found if span.name.startswith("job ") for event in span.events} == set(
        graph.timestamps
    )


def test_a_job_is_one_tree_below_the_clients_span() -> None:
    driver = Driver("a=b")
    driver.job = replace(driver.job, created_ms=400)
    driver.start()
    run(driver, "a")
    run(driver, "b")
    found = spans(driver)
    check_tree(found)
    check_coverage(driver)
    by_name = named(found)
    assert set(by_name) == {
        f"job {driver.job.name}",
        "submit",
        "task a",
        "task b",
        "slot",
        "deploy",
        "initialize",
        "run",
    }
    submit, job = by_name["submit"], by_name[f"job {driver.job.name}"]
    assert (submit.start_ms, submit.end_ms, submit.parent_id) == (400, 1000, job.span_id)
    assert (job.start_ms, job.attributes["understudy.job.state"]) == (400, "FINISHED")
    first = by_name["task a"]
    below = [(span.name, span.start_ms, span.end_ms) for span in found if span.parent_id == first.span_id]
    assert below == [("slot", 2000, 3000), ("deploy", 3000, 4000), ("initialize", 4000, 5000), ("run", 5000, 6000)]
    assert (first.start_ms, first.end_ms, first.error) == (2000, 6000, None)
    assert first.attributes["spark.application.id"] == "app-1"
    assert first.attributes["understudy.task_executor"] == "tm-1"


def test_only_what_has_ended_has_a_span() -> None:
    driver = Driver(graph=ONE_TASK)
    driver.start()
    assert spans(driver) == []
    driver.assign("a")
    assert [span.name for span in spans(driver)] == ["slot"]
    report(driver, "a", ExecutionState.RUNNING)
    assert [span.name for span in spans(driver)] == ["slot", "deploy"]


def test_each_attempt_has_its_span_and_the_failed_one_says_why_in_a_line() -> None:
    driver = Driver(graph=ONE_TASK, restart=RestartStrategyConfig.fixed_delay(1, 1.0))
    driver.start()
    driver.assign("a")
    report(driver, "a", ExecutionState.RUNNING)
    failed = driver.attempt("a")
    report(driver, "a", ExecutionState.FAILED, error=LOST)
    graph = driver.graph
    (restart_id,) = graph._restarts._regions
    driver.note(graph.restart_due(restart_id, driver.at()))
    run(driver, "a")
    found = spans(driver)
    check_tree(found)
    check_coverage(driver)
    tasks = {span.attributes["understudy.attempt.id"]: span for span in found if span.name == "task a"}
    assert len(tasks) == 2
    assert tasks[failed].error == LOST.cause
    assert "\n" not in LOST.cause
    assert tasks[driver.attempt("a")].error is None
    (job,) = (span for span in found if span.name.startswith("job "))
    assert (job.error, job.attributes["understudy.job.restarts"]) == (None, 1)


def test_a_job_that_is_cancelled_before_and_while_it_runs() -> None:
    driver = Driver("a=b")
    driver.start()
    driver.assign("a")
    report(driver, "a", ExecutionState.RUNNING)
    driver.note(driver.graph.cancel(driver.at()))
    report(driver, "a", ExecutionState.CANCELED)
    found = spans(driver)
    check_tree(found)
    check_coverage(driver)
    assert {"cancel", "run", "task b"} <= set(named(found))


def test_the_next_job_master_continues_the_trace_with_the_same_ids() -> None:
    driver = Driver(graph=ONE_TASK)
    driver.start()
    driver.assign("a")
    report(driver, "a", ExecutionState.RUNNING)
    before = spans(driver)
    saved = driver.graph.snapshot(driver.at())
    restored = ExecutionGraph(
        driver.job, RestartStrategy(RestartStrategyConfig.none()), driver.at(), results_dir="/results"
    )
    restored.restore(saved, driver.at())
    driver.graph = restored
    report(driver, "a", ExecutionState.RUNNING, ExecutionState.FINISHED)
    found = spans(driver)
    check_tree(found)
    check_coverage(driver)
    again = {span.span_id: span for span in found}
    assert all(again[span.span_id] == span for span in before if span.name == "slot")
    assert {span.span_id for span in before} <= set(again)
    assert [event.name for event in named(found)["task a"].events] == ["RECONCILING"]


def query(batch: int, timestamp: str = "2026-11-26T10:00:00.250Z") -> StreamingQuery:
    progress = QueryProgress(batch, timestamp, 125, 10, 1.0, 1.0, 0, 0)
    return StreamingQuery("q", "r", "counts", batch, progress=progress)


def test_a_batch_has_a_span_below_its_attempt() -> None:
    driver = Driver(graph=ONE_TASK)
    driver.start()
    driver.assign("a")
    report(driver, "a", ExecutionState.RUNNING)
    seen = set()
    for batch in (3, 4):
        driver.graph.progress_reported(TaskProgress(driver.attempt("a"), (), (query(batch),)), driver.at())
        (span,) = (span for span in spans(driver) if span.name == "batch counts")
        seen.add(span.span_id)
        assert span.attributes["spark.query.batch"] == batch
        assert span.end_ms - span.start_ms == 125
        assert span.start_ms % 1000 == 250
        assert span.parent_id == trace_of(driver).attempt_span(driver.attempt("a"))
    assert len(seen) == 2


def test_a_spark_job_has_a_span_below_its_attempt() -> None:
    driver = Driver(graph=ONE_TASK)
    driver.start()
    driver.assign("a")
    report(driver, "a", ExecutionState.RUNNING)
    jobs = (EndedSparkJob(7, "count at x.py:1", 9000, 9500), EndedSparkJob(8, "collect", 9600, 9700, failed=True))
    progress = VertexProgress(vid("a"), latest_jobs=jobs)
    driver.graph.progress_reported(TaskProgress(driver.attempt("a"), (progress,)), driver.at())
    first, second = (span for span in spans(driver) if span.name == "spark job")
    assert (first.start_ms, first.end_ms, first.error) == (9000, 9500, None)
    assert first.attributes == {"spark.job.id": 7, "spark.job.name": "count at x.py:1"}
    assert first.parent_id == trace_of(driver).attempt_span(driver.attempt("a"))
    assert second.error == "the Spark job failed"
    assert first.span_id != second.span_id


def test_a_batch_without_a_time_has_none() -> None:
    driver = Driver(graph=ONE_TASK)
    driver.start()
    driver.assign("a")
    driver.graph.progress_reported(TaskProgress(driver.attempt("a"), (), (query(3, ""),)), driver.at())
    assert [span.name for span in spans(driver)] == ["slot"]


def checkpoint(number: int, status: CheckpointStatsStatus, kind: SnapshotType, failure: str = "") -> CheckpointStats:
    return CheckpointStats(number, status, kind, 5000, None, 1, 1, 10, 5, 300, failure_message=failure)


def test_ended_checkpoints_and_savepoints_have_spans_below_the_job() -> None:
    driver = Driver(graph=ONE_TASK)
    driver.start()
    history = (
        checkpoint(1, CheckpointStatsStatus.COMPLETED, SnapshotType.CHECKPOINT),
        checkpoint(2, CheckpointStatsStatus.FAILED, SnapshotType.SAVEPOINT, "the disk is full"),
        checkpoint(3, CheckpointStatsStatus.IN_PROGRESS, SnapshotType.CHECKPOINT),
    )
    graph = replace(driver.graph.archive(), checkpoints=CheckpointStatsSnapshot(history=history))
    found = spans(driver, graph)
    assert [(span.name, span.start_ms, span.end_ms, span.error) for span in found] == [
        ("checkpoint", 5000, 5300, None),
        ("savepoint", 5000, 5300, "the disk is full"),
    ]
    assert {span.parent_id for span in found} == {trace_of(driver).job_span}


def test_a_graph_that_was_stored_and_submitted_later_has_no_long_submission() -> None:
    driver = Driver(graph=ONE_TASK)
    graph = driver.graph.archive()
    late = replace(graph, timestamps={state: at + LONGEST_SUBMISSION_MS for state, at in graph.timestamps.items()})
    for created_ms, is_shown in ((0, False), (999, False), (1000, True), (late.start_ms + 1, False)):
        driver.job = replace(driver.job, created_ms=created_ms)
        assert [span.name for span in spans(driver, late)] == ["submit"] * is_shown


def test_the_script_gets_the_span_of_its_attempt() -> None:
    driver = Driver(graph=ONE_TASK)
    trace = trace_of(driver)
    driver.graph = ExecutionGraph(
        driver.job,
        RestartStrategy(RestartStrategyConfig.none()),
        Instant(0.0, 0),
        results_dir="/results",
        trace=trace,
    )
    driver.start()
    attempt = driver.assign("a").attempt
    assert attempt.traceparent == trace.traceparent(attempt.attempt_id)
    assert driver.graph.archive().trace_id == TRACE


def test_spans_in_otlp_json() -> None:
    """The field names and types of OTLP's JSON encoding: ids in hex, 64-bit numbers as texts, no null."""
    driver = Driver(graph=ONE_TASK)
    driver.start()
    driver.assign("a")
    report(driver, "a", ExecutionState.FAILED, error=LOST)
    request: Any = json.loads(json.dumps(otlp_json(spans(driver), {"service.name": "understudy"})))
    (resource,) = request["resourceSpans"]
    assert resource["resource"] == {"attributes": [{"key": "service.name", "value": {"stringValue": "understudy"}}]}
    (scope,) = resource["scopeSpans"]
    found = {span["name"]: span for span in scope["spans"]}
    task = found["task a"]
    assert task["status"] == {"code": 2, "message": LOST.cause}
    assert (task["traceId"], len(task["spanId"]), len(task["parentSpanId"])) == (TRACE, 16, 16)
    assert (task["startTimeUnixNano"], task["endTimeUnixNano"], task["kind"]) == ("2000000000", "4000000000", 1)
    assert {"key": "understudy.attempt.number", "value": {"intValue": "0"}} in task["attributes"]
    job = found[f"job {driver.job.name}"]
    assert job["parentSpanId"] == SPAN
    assert job["events"][0] == {"name": "CREATED", "timeUnixNano": "1000000000"}
    root = otlp_json([replace(spans(driver)[-1], parent_id="")], {})
    assert "parentSpanId" not in root["resourceSpans"][0]["scopeSpans"][0]["spans"][0]


def test_an_attempt_that_was_never_scheduled_has_a_span_without_length() -> None:
    driver = Driver(graph=ONE_TASK)
    driver.note(driver.graph.cancel(driver.at()))
    found = named(spans(driver))
    assert found["task a"].start_ms == found["task a"].end_ms
    assert isinstance(found["task a"].attributes["understudy.attempt.id"], ExecutionAttemptID)

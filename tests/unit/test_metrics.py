"""Kinds of metrics, the registry that reads them, and what a job says of itself."""

from __future__ import annotations

import logging
import statistics
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.address import ActorAddress
from actors.errors import RecipientUnreachable
from actors.rpc.codec import from_plain, to_plain
from runtime.dispatcher.endpoint import Dispatcher
from runtime.ids import JobID
from runtime.jobmaster.metrics import job_metrics
from runtime.metrics.metric import (
    METER_WINDOW_S,
    Histogram,
    Meter,
    MetricDump,
    MetricKind,
    MetricScope,
    ScopeCategory,
    ScopeDump,
    gauges,
)
from runtime.metrics.registry import MetricRegistry
from runtime.protocol.archived_execution_graph import AttemptInfo
from runtime.protocol.execution_state import ExecutionState, JobStatus
from runtime.protocol.leader import LeaderInformation
from runtime.protocol.streaming_query import (
    BackPressure,
    BackPressureLevel,
    QueryProgress,
    SourceProgress,
    StreamingQuery,
)
from tests.unit.test_rest_messages import FIGURES, ID, READ, graph

SCOPE = MetricScope(ScopeCategory.JOB_MANAGER, component="dispatcher")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.5

    def __call__(self) -> float:
        return self.now


def values_of(dumps: list[ScopeDump], category: ScopeCategory) -> dict[str, Any]:
    return {metric.name: metric.value for dump in dumps if dump.scope.category is category for metric in dump.metrics}


@given(st.lists(st.tuples(st.floats(0, 50), st.integers(1, 1000)), max_size=60))
def test_a_meter_tells_the_events_of_the_last_minute(events: list[tuple[float, int]]) -> None:
    clock, at = Clock(), []
    meter = Meter(clock)
    for step, n in events:
        clock.now += step
        meter.mark(n)
        at.append((int(clock.now), n))
    recent = sum(n for second, n in at if second > int(clock.now) - METER_WINDOW_S)
    assert meter.rate() == recent / METER_WINDOW_S
    clock.now += METER_WINDOW_S
    assert meter.rate() == 0


@given(st.lists(st.integers(-(10**6), 10**6), min_size=1, max_size=80))
def test_a_histogram_tells_of_the_last_values_and_counts_all(values: list[int]) -> None:
    histogram = Histogram(window=20)
    for value in values:
        histogram.update(value)
    kept, told = sorted(values[-20:]), histogram.statistics()
    assert (told.count, told.sum) == (len(values), sum(values))
    assert (told.min, told.max) == (kept[0], kept[-1])
    assert told.mean == pytest.approx(statistics.fmean(kept))
    assert told.stddev == pytest.approx(statistics.pstdev(kept), abs=1e-6)
    quantiles = [told.median, told.p75, told.p90, told.p95, told.p98, told.p99, told.p999]
    assert quantiles == sorted(quantiles)
    assert set(quantiles) <= set(kept)
    assert told.median == kept[(len(kept) - 1) // 2]


def test_an_empty_histogram_is_all_zeros() -> None:
    told = Histogram().statistics()
    assert (told.count, told.sum, told.min, told.max, told.p999) == (0, 0.0, 0.0, 0.0, 0.0)


def test_values_are_read_when_they_are_asked_for_and_only_then() -> None:
    registry, reads = MetricRegistry(Clock()), []
    group = registry.group(SCOPE)
    group.gauge("a", lambda: reads.append(1) or len(reads))  # type: ignore[func-returns-value]
    counter, meter, histogram = group.counter("c"), group.meter("m"), group.histogram("h")
    group.gauges("set", lambda: {"x": 1, "y": None, "z": "text"})
    counter.inc(3)
    meter.mark(60)
    histogram.update(7)
    assert reads == []
    (dump,) = registry.snapshot()
    assert dump.scope == SCOPE
    found = {metric.name: (metric.kind, metric.value) for metric in dump.metrics}
    assert found == {
        "a": (MetricKind.GAUGE, 1),
        "c": (MetricKind.COUNTER, 3),
        "m": (MetricKind.METER, 1.0),
        "h": (MetricKind.HISTOGRAM, 1),
        "set.x": (MetricKind.GAUGE, 1),
        "set.z": (MetricKind.GAUGE, "text"),
    }
    registry.snapshot()
    assert reads == [1, 1]


def test_a_name_is_taken_once_in_a_scope() -> None:
    registry = MetricRegistry()
    registry.group(SCOPE).counter("n")
    with pytest.raises(ValueError, match="'n'"):
        registry.group(SCOPE).gauge("n", lambda: 1)
    registry.group(replace(SCOPE, component="another")).counter("n")


def test_what_cannot_be_read_takes_nothing_else_away(caplog: pytest.LogCaptureFixture) -> None:
    registry = MetricRegistry()
    group = registry.group(SCOPE)
    group.gauge("bad", lambda: 1 // 0)
    group.gauge("good", lambda: 2)

    def broken() -> list[ScopeDump]:
        raise LookupError

    registry.add_source(broken)
    registry.add_source(lambda: [ScopeDump(SCOPE, gauges({"more": 3}))])
    assert [[metric.name for metric in dump.metrics] for dump in registry.snapshot()] == [["good"], ["more"]]
    assert "the metric bad cannot be read" in caplog.text


def test_metrics_travel_as_they_are() -> None:
    registry = MetricRegistry()
    group = registry.group(SCOPE)
    group.histogram("h").update(1.5)
    group.gauges("", lambda: {"whole": 2**40, "part": 0.25, "text": "/data/chk-1", "none": None})
    sent = [*registry.snapshot(), *job_metrics(graph(), 5000)]
    arrived = from_plain(to_plain(sent), list[ScopeDump])
    assert arrived == sent
    assert {type(metric.value) for dump in arrived for metric in dump.metrics} == {int, float, str}


def test_a_jobs_metrics_have_flinks_names() -> None:
    job = replace(graph(), checkpoints=FIGURES)
    found = values_of(job_metrics(job, 9000), ScopeCategory.JOB)
    flinks = {
        "lastCheckpointSize",
        "lastCheckpointExternalPath",
        "failingTime",
        "restartingTime",
        "numberOfInProgressCheckpoints",
        "numberOfCompletedCheckpoints",
        "numRestarts",
        "createdTime",
        "lastCheckpointDuration",
        "numberOfFailedCheckpoints",
        "lastCheckpointCompletedTimestamp",
        "cancellingTime",
        "totalNumberOfCheckpoints",
        "lastCompletedCheckpointId",
        "lastCheckpointRestoreTimestamp",
        "runningTime",
        "uptime",
        "initializingTime",
        "downtime",
        "lastCheckpointFullSize",
    }
    assert flinks <= set(found)
    counts, last = FIGURES.counts, FIGURES.latest_completed
    assert last is not None
    assert found["numberOfCompletedCheckpoints"] == counts.completed > 0
    assert found["numberOfFailedCheckpoints"] == counts.failed > 0
    assert found["lastCheckpointDuration"] == last.end_to_end_duration
    assert found["lastCheckpointExternalPath"] == last.external_path
    assert found["lastCheckpointRestoreTimestamp"] == 50
    assert found["uptime"] == found["runningTime"] == 9000 - job.timestamps["RUNNING"] > 0
    assert found["numFailures"] == sum(job.failure_counts.values())


def test_times_are_of_the_present_state() -> None:
    job = graph()
    restarting = replace(job, status=JobStatus.RESTARTING, timestamps={**job.timestamps, "RESTARTING": 6000})
    found = values_of(job_metrics(restarting, 6500), ScopeCategory.JOB)
    assert (found["restartingTime"], found["downtime"], found["runningTime"], found["uptime"]) == (500, 500, 0, 0)
    earlier = values_of(job_metrics(restarting, 5000), ScopeCategory.JOB)
    assert earlier["restartingTime"] == 0  # the clock was set back
    over = values_of(job_metrics(graph(JobStatus.FINISHED), 9000), ScopeCategory.JOB)
    assert (over["uptime"], over["downtime"], over["runningTime"]) == (-1, -1, 0)


def test_a_job_without_checkpoints_says_that_it_has_none() -> None:
    job = replace(graph(), checkpoints=type(FIGURES)())
    found = values_of(job_metrics(job, 9000), ScopeCategory.JOB)
    assert (found["lastCheckpointDuration"], found["lastCompletedCheckpointId"]) == (-1, -1)
    assert found["lastCheckpointExternalPath"] == "n/a"


def test_tasks_and_what_they_work_on_have_scopes_of_their_own() -> None:
    job = graph()
    dumps = job_metrics(job, 9000)
    tasks = {dump.scope.task_id: dump for dump in dumps if dump.scope.category is ScopeCategory.TASK}
    assert set(tasks) == {task.key for task in job.tasks}
    read = tasks[READ]
    assert (read.scope.job_id, read.scope.job_name) == (ID, job.name)
    assert MetricDump("attempt", MetricKind.GAUGE, job.tasks[0].attempts[-1].number) in read.metrics
    operators = {
        (dump.scope.task_id, dump.scope.operator_name)
        for dump in dumps
        if dump.scope.category is ScopeCategory.OPERATOR
    }
    assert {(vertex.task, vertex.name) for vertex in job.vertices} <= operators
    named = {(task.key, query.name or query.id) for task in job.tasks for query in task.attempts[-1].queries}
    assert named <= operators
    assert named


@pytest.mark.parametrize("blob_server_is_there", [True, False])
async def test_the_dispatcher_says_where_metrics_are_asked_for(blob_server_is_there: bool) -> None:
    base = "akka.tcp://u@127.0.0.1"

    class Receptionist:
        async def find(self, path: str) -> Any:
            if not blob_server_is_there:
                raise RecipientUnreachable("it is being replaced")
            return SimpleNamespace(address=f"{base}:2{path}")

    class Front(Dispatcher):
        address = ActorAddress.parse(f"{base}:1/user/dispatcher")

        def __init__(self) -> None:
            def leader(address: str | None) -> Any:
                return SimpleNamespace(leader=address and LeaderInformation("x", address, 1, "s"))

            self.log = logging.getLogger(__name__)
            self._receptionist = cast("Any", Receptionist())
            self._resource_manager = leader(f"{base}:3/user/resourcemanager")
            jobs = {JobID("1" * 32): f"{base}:4/user/jobmaster-1", JobID("2" * 32): None}
            self._jobs = {job_id: cast("Any", SimpleNamespace(leader=leader(at))) for job_id, at in jobs.items()}

    found = await Front().request_metric_query_service_addresses()
    ports = [1, 2, 3, 4] if blob_server_is_there else [1, 3, 4]
    assert found == [f"{base}:{port}/user/metric-query-service" for port in ports]


def test_a_querys_last_batch_is_joined_in() -> None:
    progress = QueryProgress(
        7, "2026-11-21T20:00:00Z", 350, 40, 20.0, 115.0, 9, 900, (SourceProgress("Rate", 40, 20.0, 115.0, 3),)
    )
    pressed = BackPressure(BackPressureLevel.HIGH, 2.0)
    queries = (
        StreamingQuery("a", "r", "counts", 7, 1000, progress, pressed),
        StreamingQuery("b", "r", "", None),
    )
    job = graph()
    attempt = replace(job.tasks[0].attempts[-1], queries=queries)
    dumps = job_metrics(replace(job, tasks=(replace(job.tasks[0], attempts=(attempt,)),)), 9000)
    by_name = {dump.scope.operator_name: {metric.name: metric.value for metric in dump.metrics} for dump in dumps}
    assert by_name["counts"] == {
        "Spark.batchId": 7,
        "Spark.batchDuration": 350,
        "Spark.numInputRows": 40,
        "Spark.processedRowsPerSecond": 115.0,
        "Spark.stateRows": 9,
        "Spark.stateBytes": 900,
        "numRecordsInPerSecond": 20.0,
        "pendingRecords": 3,
    }
    assert by_name["b"] == {}
    task = values_of(dumps, ScopeCategory.TASK)
    assert (task["isBackPressured"], task["numStreamingQueries"], task["numRecordsInPerSecond"]) == (1, 2, 20.0)
    parts = [task[f"{kind}TimeMsPerSecond"] for kind in ("backPressured", "busy", "idle")]
    assert parts == [500, 500, 0]


def test_times_of_deployment_are_those_of_the_slowest_task() -> None:
    def at(state: ExecutionState, times: dict[str, int]) -> AttemptInfo:
        return replace(graph().tasks[0].attempts[-1], state=state, timestamps=times)

    def told(*attempts: AttemptInfo) -> dict[str, Any]:
        tasks = tuple(replace(task, attempts=(one,)) for task, one in zip(graph().tasks, attempts, strict=True))
        return values_of(job_metrics(replace(graph(), tasks=tasks), 9000), ScopeCategory.JOB)

    runs = at(ExecutionState.RUNNING, {"CREATED": 100, "DEPLOYING": 120, "INITIALIZING": 140, "RUNNING": 150})
    deploys = at(ExecutionState.DEPLOYING, {"CREATED": 100, "DEPLOYING": 8000})
    over = at(ExecutionState.FINISHED, {"CREATED": 100, "DEPLOYING": 120, "RUNNING": 1000, "FINISHED": 2000})
    names = ("deployingTime", "allSubTasksRunningOrFinishedTime")
    assert [told(runs, deploys)[name] for name in names] == [1000, 0]
    assert [told(runs, over)[name] for name in names] == [0, 8000]
    task = replace(graph().tasks[0], attempts=(runs,))
    job = replace(graph(), tasks=(task,))
    assert values_of(job_metrics(job, 9000), ScopeCategory.TASK)["initializationTime"] == 10

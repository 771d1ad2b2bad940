"""The JSON of the REST API has the keys and the types that Flink's client and web page need."""

from __future__ import annotations

import base64
import json
import time
from dataclasses import replace
from typing import Any

import pytest

from conf.options.checkpointing import ExternalizedCheckpointRetention
from runtime.checkpoint.configuration import CheckpointCoordinatorConfiguration
from runtime.checkpoint.statistics import CheckpointStatsTracker
from runtime.ids import AllocationID, ExecutionAttemptID, InstanceID, JobID, JobVertexID, ResourceID, SlotID, TriggerID
from runtime.jobgraph.job_graph import JobKind, VertexRole
from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph, AttemptInfo, TaskInfo, VertexInfo
from runtime.protocol.checkpoint_statistics import CheckpointStatsSnapshot, TaskStateStats
from runtime.protocol.checkpoints import OperationState, OperationStatus, SnapshotType
from runtime.protocol.descriptor import StageProgress, VertexProgress
from runtime.protocol.diagnostics import TaskManagerMetrics, ThreadDump, ThreadInfo
from runtime.protocol.execution_state import ErrorInfo, ExecutionState, FailureKind, JobStatus
from runtime.protocol.messages import ClusterOverview, TaskExecutorRegistration, TaskManagerInfo, TaskManagerView
from runtime.protocol.queues import LimitedUse, QueuesOverview, QueueStatus, UserInQueue, WaitingRequest
from runtime.protocol.rescales import Advice, Rescale, RescaleCause
from runtime.protocol.slots import SlotCounts, SlotStatus
from runtime.protocol.streaming_query import (
    BackPressure,
    BackPressureLevel,
    QueryHistory,
    QueryProgress,
    SourceProgress,
    StreamingQuery,
)
from runtime.rest.forms import (
    AGGREGATED,
    APPLICATION,
    CHECKPOINT_OF_TASK,
    CHECKPOINT_TASK_DETAILS,
    CHECKPOINTS,
    CONFIG,
    COUNTS,
    DECISION,
    EXCEPTION,
    JOB,
    LINE,
    METRICS,
    OVERVIEW,
    PLAN,
    QUERY_HISTORY,
    RESCALE,
    RESCALES_OVERVIEW,
    RESCALES_SUMMARY,
    RESOURCE,
    SPAN,
    STATES,
    SUBTASK,
    TIMES,
    VERTEX,
    WORKER,
    WORKER_METRICS,
)
from runtime.rest.handlers import applications, checkpoints, cluster, jobs, rescales, task_managers, vertices
from runtime.rest.serialized_throwable import serialized_throwable
from tests.unit.metric_values import JVM

NODE = {"id": str, "parallelism": int, "operator": str, "operator_strategy": str, "description": str}
INPUT = {"num": int, "id": str, "ship_strategy": str, "exchange": str}
AT_TASK = {"taskName": str, "endpoint": str, "taskManagerId": str}
RESULT = {
    "id": str,
    "name": str,
    "application-status": str,
    "accumulator-results": dict,
    "net-runtime": int,
    "start-time": int,
    "end-time": int,
}
CAUSE = {"class": str, "stack-trace": str, "serialized-throwable": str}
NUMBER = (int, float)
ID = JobID("0" * 31 + "1")
READ, WRITE = JobVertexID("a" * 32), JobVertexID("b" * 32)
RESCALES = (
    Rescale(
        TriggerID("a" * 32),
        8,
        {"counts": 2},
        rescale_job="d" * 32,
        number=1,
        started_ms=100,
        ended_ms=400,
        state=OperationState.COMPLETED,
        savepoint="/data/s-8-partitions",
    ),
    Rescale(
        TriggerID("b" * 32),
        4,
        cause=RescaleCause.AUTOSCALER,
        reason="10% busy",
        number=2,
        started_ms=500,
        state=OperationState.FAILED,
        error="no Spark",
    ),
    Rescale(TriggerID("c" * 32), None, is_undo=True, number=3, started_ms=900),
)
ERROR = ErrorInfo(FailureKind.USER_CODE, "ValueError", "no <b>rows</b>", "Traceback\nValueError", "read <img>", 900)
LOST = ErrorInfo(FailureKind.SPARK_LOST, "SparkDriverLost", "it has ended", "", "", 500)
NOW = 5000


def _figures() -> CheckpointStatsSnapshot:
    """Of a job that was restored, checkpointed twice, savepointed, failed once, and is at it again."""
    tracker = CheckpointStatsTracker()
    tracker.restored(0, "/data/savepoint-0", 50, is_savepoint=True)
    for number, (kind, duration) in enumerate(
        [(SnapshotType.CHECKPOINT, 10), (SnapshotType.CHECKPOINT, 30), (SnapshotType.SAVEPOINT_SUSPEND, 50)], 1
    ):
        tracker.triggered(number, kind, [READ], number * 100)
        tracker.acknowledged(number, TaskStateStats(READ, number * 100 + 5, 1000 * number, 100, 3), number * 100 + 5)
        tracker.completed(number, f"/data/{number}", number * 100 + duration)
    tracker.subsumed(1)
    for number in (4, 5):
        tracker.triggered(number, SnapshotType.CHECKPOINT, [READ, WRITE], number * 100)
    tracker.acknowledged(4, TaskStateStats(READ, 401, 70, 7, 1), 401)
    tracker.failed(4, "the disk is full", 405)
    return tracker.snapshot(NOW)


FIGURES = _figures()
QUEUES = QueuesOverview(
    (
        QueueStatus(
            "etl",
            3.0,
            0,
            1,
            4,
            1,
            None,
            1,
            12.5,
            (UserInQueue("ada", 1, 12.5, 1, 2048, 1.5), UserInQueue("", 0, 0.0, 0)),
            2048,
            8192,
            1.5,
            4.0,
            7,
            100,
        ),
        QueueStatus("default", 1.0, 10, 0, None, 0, 8, 0, 0.0),
    ),
    (
        WaitingRequest(
            JobID("5" * 32), "nightly <b>", "read", AllocationID("6" * 32), "ada", "etl", 1, "1 slot for task 'read'"
        ),
    ),
    (ID,),
    "queues.yaml: weights is not a key",
    limits=(LimitedUse("user", "ada", 1, 6, 1, None, 2048, None, 1.5, 2.0, 7),),
)
"""The file of queues of its cluster has become wrong."""
STAGE = StageProgress(3, "collect at a.py:7", 8, 2, 1, "ACTIVE", (2,))
HISTORY = QueryHistory(
    READ, "q", "r", "clicks", (10, 20), (0, 1), (1.5, 2.5), (3.0, 4.0), (30, 40), (5, 6), (50, 60), (7, None)
)


def fits(value: Any, shape: Any, where: str = "$") -> None:
    """Fails unless *value* has at least the keys of *shape*, with values of its types."""
    if isinstance(shape, dict):
        assert isinstance(value, dict), where
        assert shape.keys() <= value.keys(), f"{where} lacks {shape.keys() - value.keys()}"
        for key, part in shape.items():
            fits(value[key], part, f"{where}.{key}")
    elif isinstance(shape, list):
        assert isinstance(value, list), where
        for index, item in enumerate(value):
            fits(item, shape[0], f"{where}[{index}]")
    else:
        assert isinstance(value, shape), f"{where} is {value!r}"
        assert not (isinstance(value, bool) and shape is int), f"{where} is {value!r}"


def attempt(number: int, state: ExecutionState, worker: str, **changes: Any) -> AttemptInfo:
    times = {"CREATED": 100, "SCHEDULED": 110} if not worker else {"CREATED": 100, "DEPLOYING": 120, "RUNNING": 150}
    if state.is_terminal:
        times[state.value] = 900
    return AttemptInfo(
        ExecutionAttemptID(f"{number}" * 32), number, state, worker, times, changes.get("error"), None, **_only(changes)
    )


def _only(changes: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in changes.items() if key != "error"}


def graph(status: JobStatus = JobStatus.RUNNING, **changes: Any) -> ArchivedExecutionGraph:
    failed = attempt(0, ExecutionState.FAILED, "tm-0", error=ERROR)
    runs = attempt(1, ExecutionState.RUNNING, "tm-1", queries=(StreamingQuery("q", "r", "", 3),))
    waits = attempt(0, ExecutionState.SCHEDULED, "")
    times = {"INITIALIZING": 100, "RUNNING": 150}
    if status is not JobStatus.RUNNING:
        times[status.value] = 1100
    given: dict[str, Any] = {
        "rescales": RESCALES,
        "job_id": ID,
        "name": "flights",
        "kind": JobKind.PIPELINE,
        "status": status,
        "timestamps": times,
        "tasks": (
            TaskInfo(READ, "read <img>", (READ,), (failed, runs), ""),
            TaskInfo(WRITE, "write", (WRITE,), (waits,), "the result of 'read'"),
        ),
        "vertices": (
            VertexInfo(
                READ,
                "read <img>",
                VertexRole.SOURCE,
                READ,
                runs.state,
                (),
                VertexProgress(READ, latest_stages=(STAGE,)),
            ),
            VertexInfo(WRITE, "write", VertexRole.SINK, WRITE, waits.state, (READ,), VertexProgress(WRITE)),
        ),
        "failure": ERROR if status is JobStatus.FAILED else None,
        "failure_history": (LOST, ERROR),
        "restarts": 1,
        "restart_strategy": "none",
    }
    return ArchivedExecutionGraph(**{**given, **changes})


MACHINE = task_managers.Machine(1 << 34, 8)
REGISTRATION = TaskExecutorRegistration(
    ResourceID("tm-0"), "akka.tcp://u@127.0.0.1:1/user/tm-0", 10, 2, "4.0", "21", "local[3]", 11, 1 << 30
)


@pytest.mark.parametrize("status", list(JobStatus))
def test_a_job_has_the_form_of_flinks(status: JobStatus) -> None:
    told = jobs.job(graph(status), NOW)
    fits(told, JOB)
    assert told["state"] == status.value
    assert [node["id"] for node in told["plan"]["nodes"]] == [vertex["id"] for vertex in told["vertices"]]
    counts = dict.fromkeys(("stages", "stages-completed", "tasks", "tasks-completed", "tasks-active"), int)
    fits(told["spark"], {key: {**counts, "queries": [dict]} for key in (READ, WRITE)})
    assert told["spark"][READ]["latest-stages"] == [
        {
            "id": 3,
            "name": "collect at a.py:7",
            "state": "ACTIVE",
            "tasks": 8,
            "tasks-completed": 2,
            "tasks-active": 1,
            "parents": [2],
        }
    ]
    assert told["spark"][READ]["queries"] == [{"id": "q", "run-id": "r", "name": "", "batch": 3}]
    fits(told["plan"]["nodes"], [NODE])
    fits(jobs.plan(graph(status)), {"plan": PLAN})
    fits(jobs.overview([graph(status).details()], NOW), {"jobs": [LINE]})
    fits(applications.overview([graph(status).details()], NOW), {"applications": [APPLICATION]})
    fits(applications.application(graph(status), NOW), {**APPLICATION, "timestamps": dict, "jobs": [LINE]})
    assert jobs.ids_with_status([graph(status).details()]) == {"jobs": [{"id": ID, "status": status.value}]}


def test_a_job_tells_what_was_submitted() -> None:
    for told, kind, is_function in (
        ("pipeline", JobKind.PIPELINE, False),
        ("script", JobKind.SCRIPT, False),
        ("function", JobKind.SCRIPT, True),
    ):
        made = graph(kind=kind, is_function=is_function)
        assert jobs.job(made, NOW)["kind"] == jobs.details(made.details(), NOW)["kind"] == told


def test_a_running_job_has_no_end_and_goes_on() -> None:
    told = jobs.job(graph(), NOW)
    assert (told["start-time"], told["end-time"], told["duration"], told["job-type"]) == (100, -1, 4900, "STREAMING")
    reading, writing = told["vertices"]
    assert (reading["start-time"], reading["end-time"], reading["duration"]) == (120, -1, 4880)
    assert (writing["start-time"], writing["duration"], writing["tasks"]["SCHEDULED"]) == (-1, 0, 1)
    assert told["status-counts"]["RUNNING"] == told["status-counts"]["SCHEDULED"] == 1
    assert told["waiting-for"] == {WRITE: "the result of 'read'"}


def test_a_querys_history_is_columns_of_one_length() -> None:
    (told,) = jobs.query_histories([HISTORY])["queries"]
    fits(json.loads(json.dumps(told)), QUERY_HISTORY)
    assert (told["vertex-id"], told["id"], told["run-id"], told["name"]) == (READ, "q", "r", "clicks")
    columns = {name: list(told[name]) for name, kind in QUERY_HISTORY.items() if isinstance(kind, list)}
    assert columns == {
        "timestamps": [10, 20],
        "batches": [0, 1],
        "batch-durations": [30, 40],
        "input-rows-per-second": [1.5, 2.5],
        "processed-rows-per-second": [3.0, 4.0],
        "state-rows": [5, 6],
        "state-bytes": [50, 60],
        "lags": [7, None],
    }


def test_a_job_that_is_over_lasts_no_longer() -> None:
    told = jobs.details(graph(JobStatus.FINISHED).details(), NOW)
    assert (told["end-time"], told["duration"], told["last-modification"]) == (1100, 1000, 1100)
    assert told["tasks"]["total"] == 2


def test_the_plan_joins_tasks_and_shows_names_as_text() -> None:
    reading, writing = jobs.plan(graph())["plan"]["nodes"]
    assert "inputs" not in reading
    assert reading["description"] == "read &lt;img&gt; (source)<br/>"
    fits(writing["inputs"], [INPUT])
    assert [source["id"] for source in writing["inputs"]] == [READ]


def test_a_vertex_is_told_whole() -> None:
    task = next(task for task in graph().tasks if task.key == READ)
    fits(vertices.vertex(task, NOW), VERTEX)
    times = {"id": str, "name": str, "now": int, "subtasks": [TIMES]}
    fits(vertices.subtask_times(task, NOW), times)
    on = vertices.task_managers(task, NOW)
    fits(on, {"id": str, "name": str, "now": int, "taskmanagers": [dict]})
    place = {"endpoint": str, "status": str, **SPAN, "metrics": METRICS, "status-counts": STATES}
    fits(on["taskmanagers"], [{**place, "taskmanager-id": str, "aggregated": AGGREGATED}])
    fits(vertices.accumulators(task), {"id": str, "user-accumulators": [dict]})
    one = {"subtask": int, "attempt": int, "endpoint": str, "user-accumulators": [dict]}
    fits(vertices.subtask_accumulators(task), {"id": str, "parallelism": int, "subtasks": [one]})
    first = next(attempt for attempt in task.attempts if attempt.number == 0)
    told = vertices.subtask(first, NOW)
    fits(told, SUBTASK)
    assert told["status-duration"] == {
        "CREATED": 20,
        "SCHEDULED": -1,
        "DEPLOYING": 30,
        "INITIALIZING": -1,
        "RUNNING": 750,
    }
    assert (told["status"], told["end-time"], told["taskmanager-id"]) == ("FAILED", 900, "tm-0")


def test_the_newest_failure_comes_first_with_the_users_traceback() -> None:
    history = jobs.exceptions(graph(JobStatus.FAILED))["exceptionHistory"]
    fits(history, {"entries": [EXCEPTION], "truncated": bool})
    fits(history["entries"][0], AT_TASK)
    assert [entry["exceptionName"] for entry in history["entries"]] == ["ValueError", "SparkDriverLost"]
    assert [entry["stacktrace"] for entry in history["entries"]] == [ERROR.traceback, "SparkDriverLost: it has ended"]
    assert history["entries"][0]["taskManagerId"] == "tm-0"
    short = jobs.exceptions(graph(JobStatus.FAILED), 1)["exceptionHistory"]
    assert (len(short["entries"]), short["truncated"], history["truncated"]) == (1, True, False)
    assert jobs.exceptions(graph(failure_history=()))["exceptionHistory"]["entries"] == []


def test_the_result_is_told_when_there_is_one() -> None:
    assert jobs.execution_result(graph()) == {"status": {"id": "IN_PROGRESS"}}
    for status, word in (("FINISHED", "SUCCEEDED"), ("CANCELED", "CANCELED"), ("FAILED", "FAILED")):
        told = jobs.execution_result(graph(JobStatus(status)))
        fits(told["job-execution-result"], RESULT)
        assert told["status"] == {"id": "COMPLETED"}
        assert told["job-execution-result"]["application-status"] == word
        assert ("failure-cause" in told["job-execution-result"]) == (status == "FAILED")
    fits(jobs.execution_result(graph(JobStatus.FAILED))["job-execution-result"]["failure-cause"], CAUSE)


def test_a_failure_is_serialised_as_java_does() -> None:
    stream = base64.b64decode(serialized_throwable("ValueError", "a\0\U0001f600", "x" * 70000))
    assert stream.startswith(b"\xac\xed\0\5sr\0\x29org.apache.flink.util.SerializedThrowable")
    assert b"t\0\x09a\xc0\x80\xed\xa0\xbd\xed\xb8\x80u" in stream  # Java's UTF-8, in front of the empty stack trace
    assert stream.endswith(b"|" + (70000).to_bytes(8, "big") + b"x" * 70000 + b"t\0\x0aValueErrorp")


def test_other_parts_of_a_job() -> None:
    fits(
        jobs.config(graph())["execution-config"], {"restart-strategy": str, "job-parallelism": int, "user-config": dict}
    )
    fits(jobs.accumulators(), {"job-accumulators": [dict], "user-task-accumulators": [dict]})
    assert vertices.watermarks() == []
    task = graph().tasks[0]
    over = replace(task, attempts=task.attempts[:1])
    assert (vertices.flame_graph(task), vertices.flame_graph(over)) == ({"endTimestamp": -2}, {"endTimestamp": -1})
    assert vertices.back_pressure(None, 1200) == {"status": "deprecated", "subtasks": []}


BACK_PRESSURE = {
    "status": str,
    "backpressure-level": str,
    "backpressureLevel": str,
    "end-timestamp": int,
    "subtasks": [
        {
            "subtask": int,
            "attempt-number": int,
            "backpressure-level": str,
            "backpressureLevel": str,
            "ratio": NUMBER,
            "busyRatio": NUMBER,
            "idleRatio": NUMBER,
        }
    ],
}


def test_back_pressure_is_that_of_the_worst_query() -> None:
    slow = StreamingQuery("a", "r", "", 3, 1000, None, BackPressure(BackPressureLevel.HIGH, 2.0))
    idle = StreamingQuery("b", "s", "", 3, 1000, None, BackPressure(BackPressureLevel.OK, 0.1))
    runs = attempt(1, ExecutionState.RUNNING, "tm-1", queries=(idle, slow, idle))
    told = vertices.back_pressure(runs.back_pressure, 1200)
    fits(told, BACK_PRESSURE)
    assert (told["status"], told["backpressure-level"], told["end-timestamp"]) == ("ok", "high", 1200)
    assert [told["subtasks"][0][name] for name in ("ratio", "busyRatio", "idleRatio")] == [0.5, 0.5, 0.0]


def test_back_pressure_without_a_trigger_interval_has_no_ratios_and_an_attempt_that_has_ended_has_none() -> None:
    fast = StreamingQuery("a", "r", "", 3, None, None, BackPressure(BackPressureLevel.OK))
    runs = attempt(1, ExecutionState.RUNNING, "tm-1", queries=(fast,))
    (subtask,) = vertices.back_pressure(runs.back_pressure, 1200)["subtasks"]
    assert subtask == {"subtask": 0, "attempt-number": 1, "backpressure-level": "ok", "backpressureLevel": "ok"}
    assert attempt(1, ExecutionState.FAILED, "tm-1", error=ERROR, queries=(fast,)).back_pressure is None


def test_a_query_tells_its_figures_and_nothing_that_is_not_known() -> None:
    sources = (SourceProgress("Kafka", 5, 2.5, 10.0, 7), SourceProgress("File", 1, 0.5, 2.0, None))
    progress = QueryProgress(4, "2026-01-01T00:00:00.000Z", 500, 6, 3.0, 12.0, 9, 4096, sources)
    pressure = BackPressure(BackPressureLevel.LOW, 0.5)
    queries = (StreamingQuery("a", "r", "counts", 4, 1000, progress, pressure), StreamingQuery("b", "s", "", None))
    runs = attempt(1, ExecutionState.RUNNING, "tm-1", queries=queries)
    full, bare = jobs.job(graph(tasks=(TaskInfo(READ, "read", (READ,), (runs,), ""),)), 1200)["spark"][READ]["queries"]
    assert bare == {"id": "b", "run-id": "s", "name": "", "batch": -1}
    assert full == {
        "id": "a",
        "run-id": "r",
        "name": "counts",
        "batch": 4,
        "trigger-interval": 1000,
        "backpressure-level": "low",
        "busy": 0.5,
        "batch-duration": 500,
        "input-rows": 6,
        "input-rows-per-second": 3.0,
        "processed-rows-per-second": 12.0,
        "state-rows": 9,
        "state-bytes": 4096,
        "sources": [
            {
                "description": "Kafka",
                "input-rows": 5,
                "input-rows-per-second": 2.5,
                "processed-rows-per-second": 10.0,
                "lag": 7,
            },
            {
                "description": "File",
                "input-rows": 1,
                "input-rows-per-second": 0.5,
                "processed-rows-per-second": 2.0,
            },
        ],
    }


def test_the_cluster_has_the_form_of_flinks() -> None:
    told = cluster.overview(ClusterOverview(1, 4, 3, 2, 5, 6, 7, 8))
    fits(told, OVERVIEW)
    assert [told[name] for name in (*COUNTS, "jobs-running", "jobs-failed")] == [1, 4, 3, 5, 8]
    fits(cluster.dashboard_configuration(3000, time.localtime()), CONFIG)
    assert cluster.configuration({"b": "2", "a": "1"}) == [{"key": "a", "value": "1"}, {"key": "b", "value": "2"}]
    fits(cluster.environment(), {"jvm": {"version": str, "arch": str, "options": [str]}, "classpath": [str]})
    fits(cluster.logs([("a.log", 3, 4)]), {"logs": [{"name": str, "size": int, "mtime": int}]})
    thread = {"threadName": str, "stringifiedThreadInfo": str}
    dump = ThreadDump(7, (ThreadInfo("main", "at x", "WAITING"),))
    fits(cluster.thread_dump(dump), {"pid": int, "threadInfos": [thread]})
    assert cluster.thread_dump(dump)["threadInfos"][0]["stringifiedThreadInfo"] == '"main" WAITING\nat x\n'
    fits(cluster.jars("http://h"), {"address": str, "files": [dict]})


def test_a_task_executor_has_the_form_of_flinks() -> None:
    view = TaskManagerView(REGISTRATION, InstanceID("1" * 32), 1, 10, 4000, "ada")
    (told,) = task_managers.overview([view], MACHINE)["taskmanagers"]
    fits(told, WORKER)
    assert told["user"] == "ada"
    assert (told["freeSlots"], told["assignedTasks"], told["hardware"]["cpuCores"]) == (1, 1, 3)
    assert told["freeResource"]["cpuCores"] == 1.5
    slots = (SlotStatus(SlotID(ResourceID("tm-0"), 0), ID), SlotStatus(SlotID(ResourceID("tm-0"), 1)))
    known = TaskManagerMetrics(1, 2.0, 3, 4, 5, 6.0, 7)
    for metrics in (None, known, replace(known, jvm=JVM)):
        info = TaskManagerInfo(REGISTRATION, InstanceID("1" * 32), SlotCounts(2, 1), slots, 10, 4000, metrics)
        whole = task_managers.details(info, MACHINE)
        slot = {"jobId": str, "resource": RESOURCE, "assignedTasks": int}
        fits(whole, {**WORKER, "metrics": WORKER_METRICS, "allocatedSlots": [slot]})
        assert [slot["jobId"] for slot in whole["allocatedSlots"]] == [ID]
        heap = [whole["metrics"][f"heap{name}"] for name in ("Used", "Committed", "Max")]
        is_known = metrics is not None and bool(metrics.jvm)
        assert heap == ([10, 20, 30] if is_known else [0, 0, REGISTRATION.memory_bytes])
        assert whole["metrics"]["nonHeapUsed"] == (40 if is_known else 0)
        young = {"name": "G1_Young_Generation", "count": 14, "time": 300}
        assert (young in whole["metrics"]["garbageCollectors"]) == is_known
        assert len(whole["metrics"]["garbageCollectors"]) == (3 if is_known else 0)
        assert whole["metrics"]["directUsed"] == (24_577 if is_known else 0)
        assert whole["resident-memory"] == {"task-executor": int(metrics is not None), "spark": 5 if metrics else 0}


def test_checkpoints_have_the_form_of_flinks() -> None:
    fits(checkpoints.statistics(CheckpointStatsSnapshot()), CHECKPOINTS)
    told = checkpoints.statistics(FIGURES)
    fits(told, CHECKPOINTS)
    assert told["counts"] == {"restored": 1, "total": 5, "in_progress": 1, "completed": 3, "failed": 1}
    shown = [(one["id"], one["className"], one["checkpoint_type"], one["savepointFormat"]) for one in told["history"]]
    assert shown == [
        (5, "in_progress", "CHECKPOINT", None),
        (4, "failed", "CHECKPOINT", None),
        (3, "completed", "SYNC_SAVEPOINT", "CANONICAL"),
        (2, "completed", "CHECKPOINT", None),
        (1, "completed", "CHECKPOINT", None),
    ]
    under_way, failed, *done = told["history"]
    assert (under_way["latest_ack_timestamp"], under_way["end_to_end_duration"]) == (-1, NOW - 500)
    assert (failed["failure_message"], failed["failure_timestamp"]) == ("the disk is full", 405)
    assert [(one["external_path"], one["discarded"]) for one in done] == [
        ("file:/data/3", False),
        ("file:/data/2", False),
        ("file:/data/1", True),
    ]
    latest = {kind: stats["id"] for kind, stats in told["latest"].items()}
    assert latest == {"completed": 2, "savepoint": 3, "failed": 4, "restored": 0}
    assert told["summary"]["end_to_end_duration"] == {
        "min": 10,
        "max": 50,
        "avg": 30,
        "p50": 30.0,
        "p90": 50.0,
        "p95": 50.0,
        "p99": 50.0,
        "p999": 50.0,
    }
    assert checkpoints.statistics(CheckpointStatsSnapshot())["summary"]["state_size"]["p50"] == "NaN"
    assert checkpoints.find(FIGURES, 6) is None


def test_the_parts_of_tasks_have_the_form_of_flinks() -> None:
    by_number = {stats.id: stats for stats in FIGURES.history}
    done = checkpoints.checkpoint(by_number[2])["tasks"]
    fits(done, {READ: CHECKPOINT_OF_TASK})
    assert (done[READ]["state_size"], done[READ]["end_to_end_duration"], done[READ]["latest_ack_timestamp"]) == (
        2000,
        5,
        205,
    )
    shown = {
        (number, key): (part["status"], part["num_acknowledged_subtasks"])
        for number in (4, 5)
        for key, part in checkpoints.checkpoint(by_number[number])["tasks"].items()
    }
    assert shown == {
        (4, READ): ("FAILED", 1),
        (4, WRITE): ("FAILED", 0),
        (5, READ): ("IN_PROGRESS", 0),
        (5, WRITE): ("IN_PROGRESS", 0),
    }
    details = checkpoints.task(by_number[2], READ)
    fits(details, CHECKPOINT_TASK_DETAILS)
    assert details["summary"]["checkpoint_duration"]["async"]["max"] == 3
    (subtask,) = details["subtasks"]
    assert (subtask["className"], subtask["checkpoint"]) == ("completed", {"sync": 0, "async": 3})
    (waits,) = checkpoints.task(by_number[5], WRITE)["subtasks"]
    assert waits == {"index": 0, "className": "pending", "status": "pending_or_failed"}
    assert checkpoints.task(by_number[2], WRITE) is None


def test_the_configuration_of_checkpoints_has_the_words_of_flinks() -> None:
    none = checkpoints.config(CheckpointCoordinatorConfiguration(), "HashMapStateBackend")
    assert (none["interval"], none["tolerable_failed_checkpoints"]) == (2**63 - 1, 2**31 - 1)
    some = checkpoints.config(CheckpointCoordinatorConfiguration(1.5, 0.25, 60.0, 2, 3), "HashMapStateBackend")
    assert [some[name] for name in ("interval", "min_pause", "timeout", "max_concurrent")] == [1500, 250, 60000, 2]
    assert some["tolerable_failed_checkpoints"] == 3
    retention = ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION
    kept = checkpoints.config(CheckpointCoordinatorConfiguration(retention=retention), "HashMapStateBackend")
    assert none["externalization"] == {"enabled": False, "delete_on_cancellation": True}
    assert kept["externalization"] == {"enabled": True, "delete_on_cancellation": False}


def test_an_operation_has_the_form_of_flinks() -> None:
    trigger_id = TriggerID("c" * 32)
    begun = checkpoints.savepoint(OperationStatus(trigger_id, OperationState.IN_PROGRESS))
    assert begun["status"] == {"id": "IN_PROGRESS"}
    done = OperationStatus(trigger_id, OperationState.COMPLETED, 3, "/data/3")
    assert checkpoints.savepoint(done) == {"status": {"id": "COMPLETED"}, "operation": {"location": "file:/data/3"}}
    assert checkpoints.triggered_checkpoint(done)["operation"] == {"checkpointId": 3}
    noted = OperationStatus(trigger_id, OperationState.COMPLETED, 3, "/data/3", notes=("stopped by force",))
    assert checkpoints.savepoint(noted)["operation"] == {"location": "file:/data/3", "notes": ["stopped by force"]}
    assert checkpoints.savepoint(replace(noted, drained=False))["operation"]["drained"] is False
    failed = checkpoints.savepoint(OperationStatus(trigger_id, OperationState.FAILED, error="no room"))
    assert failed["status"] == {"id": "COMPLETED"}
    fits(failed["operation"]["failure-cause"], CAUSE)
    assert failed["operation"]["failure-cause"]["stack-trace"] == "CheckpointException: no room"


def test_the_history_of_rescales_has_flinks_form_and_the_partitions() -> None:
    told = rescales.history(RESCALES)
    fits(json.loads(json.dumps(told)), [RESCALE])
    assert [one["rescaleAttemptId"] for one in told] == [3, 2, 1]
    running, failed, done = told
    assert (done["terminalState"], done["terminatedReason"]) == ("COMPLETED", "SUCCEEDED")
    assert (done["partitionsBefore"], done["partitions"]) == ({"counts": 2}, 8)
    assert (done["startTimestampInMillis"], done["endTimestampInMillis"]) == (100, 400)
    assert (done["requestedBy"], done["rescaleJob"]) == ("USER", "d" * 32)
    assert done["location"] == "file:/data/s-8-partitions"
    assert (failed["terminalState"], failed["terminatedReason"]) == ("FAILED", "EXCEPTION_OCCURRED")
    assert (failed["requestedBy"], failed["reason"], failed["failure"]) == ("AUTOSCALER", "10% busy", "no Spark")
    assert failed["endTimestampInMillis"] == -1
    assert (running["terminalState"], running["terminatedReason"], running["isUndo"]) == (None, None, True)


def test_a_decision_of_the_autoscaler_names_its_reason_and_the_cores() -> None:
    one = Advice("counts", 2, 2, "90% busy; no more", True, 2, "tm-1", 1, 5)
    told = rescales.decision(one)
    fits(json.loads(json.dumps(told)), DECISION)
    assert (told["wanted"], told["lacksCores"], told["cores"], told["otherJobs"]) == (2, True, 2, 1)
    fits(rescales.decision(Advice("plain", None, None, "no state")), DECISION)


def test_rescales_are_counted_and_timed() -> None:
    told = rescales.overview(RESCALES)
    fits(told, RESCALES_OVERVIEW)
    assert told["rescalesCounts"] == {"ignored": 0, "inProgress": 1, "completed": 1, "failed": 1}
    assert told["latest"]["completed"]["rescaleUuid"] == "a" * 32
    assert told["latest"]["failed"]["rescaleUuid"] == "b" * 32
    summary = rescales.summary(RESCALES)
    fits(summary, RESCALES_SUMMARY)
    assert summary["rescalesDurationStatsInMillis"]["max"] == 300, "one without a known end has no duration"
    assert summary["failedRescalesDurationStatsInMillis"]["p99"] == "NaN"
    fits(rescales.overview(()), RESCALES_OVERVIEW)

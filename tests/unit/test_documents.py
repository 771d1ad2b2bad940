"""What commands print as JSON: its schema, its words, its page."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from typing import Any

import jsonschema
import pytest

from runtime.cluster import documents
from runtime.cluster.cli import cli
from runtime.cluster.document_reference import (
    PAGE,
    SCHEMA_FILE,
    _all_models,
    _meanings,
    render_page,
    render_schema,
    schema_of,
)
from runtime.cluster.documents import (
    DOCUMENTS,
    Application,
    Checkpoints,
    ClusterUpgrade,
    FinalizedLevel,
    HostOutcomes,
    HostUpgrades,
    Job,
    JobFailures,
    JobLine,
    JobState,
    Log,
    LogLevel,
    StartedCluster,
    StartedHost,
    StartedMaster,
    Status,
    StoppedCluster,
    StoppedHost,
    SubmittedApplication,
    SubmittedJob,
)
from runtime.cluster.output import SCHEMA, print_document, to_plain
from runtime.cluster.roles import Role, StartedRole
from runtime.cluster.ssh import HostRole, Outcome
from runtime.cluster.upgrade_hosts import HostPlan, HostResult
from runtime.cluster.upgrade_plan import PlannedJob, PlannedProcess
from runtime.ids import ExecutionAttemptID, InstanceID, JobID, JobVertexID, ResourceID, TriggerID
from runtime.job_logs import KeptLog, LogPiece
from runtime.jobgraph.job_graph import JobKind, VertexRole
from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph, AttemptInfo, TaskInfo, VertexInfo
from runtime.protocol.checkpoint_statistics import (
    CheckpointStats,
    CheckpointStatsCounts,
    CheckpointStatsSnapshot,
    CheckpointStatsStatus,
    RestoredCheckpointStats,
    StatsSummary,
    TaskStateStats,
)
from runtime.protocol.checkpoints import OperationState, OperationStatus, SnapshotType
from runtime.protocol.descriptor import ResultPartitionInfo, VertexProgress
from runtime.protocol.diagnostics import ComponentLog, TaskPoolReport
from runtime.protocol.execution_state import ErrorInfo, ExecutionState, FailureKind, JobStatus
from runtime.protocol.messages import (
    ClusterOverview,
    ClusterStatus,
    ProcessView,
    TaskExecutorRegistration,
    TaskLog,
    TaskManagerView,
)
from runtime.protocol.processes import LogLevelChange
from runtime.protocol.streaming_query import (
    BackPressure,
    BackPressureLevel,
    QueryProgress,
    SourceProgress,
    StreamingQuery,
)
from tests.json_output import parsed
from tests.unit.test_command_line import WITHOUT_JSON, leaves

JOB, TASK, ATTEMPT = JobID("1" * 32), JobVertexID("2" * 32), ExecutionAttemptID("3" * 32)
FAILURE = ErrorInfo(FailureKind.RESULT_LOST, "ValueError", "no", "Traceback", "read", 7, TASK)
QUERY = StreamingQuery(
    "id",
    "run",
    "counts",
    7,
    1000,
    QueryProgress(7, "t", 1500, 30, 2.5, 20.0, 9, 4096, (SourceProgress("Kafka", 30, 2.5, 20.0, None),)),
    BackPressure(BackPressureLevel.HIGH, 1.5),
)
CHECKPOINT = CheckpointStats(
    id=3,
    status=CheckpointStatsStatus.FAILED,
    type=SnapshotType.SAVEPOINT,
    trigger_timestamp=10,
    latest_ack_timestamp=11,
    num_tasks=2,
    num_acknowledged_tasks=1,
    state_size=100,
    checkpointed_size=40,
    end_to_end_duration=5,
    external_path="/chk-3",
    discarded=True,
    failure_timestamp=15,
    failure_message="full",
    tasks=(TaskStateStats(TASK, 11, 100, 40, 4),),
)
OPERATION = OperationStatus(TriggerID("4" * 32), OperationState.COMPLETED, 3, "/chk-3", "", ("a note",))
FIGURES = CheckpointStatsSnapshot(
    counts=CheckpointStatsCounts(1, 2, 0, 1, 1),
    summary_state_size=StatsSummary(1, 2, 3),
    latest_savepoint=CHECKPOINT,
    latest_restored=RestoredCheckpointStats(2, 9, False, "/chk-2"),
    history=(CHECKPOINT,),
    operations=(OPERATION,),
)
WHOLE = ArchivedExecutionGraph(
    job_id=JOB,
    name="flights",
    kind=JobKind.PIPELINE,
    status=JobStatus.CANCELLING,
    timestamps={"CREATED": 1, "CANCELLING": 2},
    tasks=(
        TaskInfo(
            TASK,
            "read",
            (TASK,),
            (
                AttemptInfo(
                    ATTEMPT,
                    0,
                    ExecutionState.FAILED,
                    "tm-0",
                    {"CREATED": 1, "FAILED": 3},
                    FAILURE,
                    -9,
                    (KeptLog("stdout", 10, 5, "key"),),
                    (ResultPartitionInfo(TASK, "/results", 2, 30),),
                    (QUERY,),
                ),
            ),
            "a slot",
        ),
    ),
    vertices=(VertexInfo(TASK, "read", VertexRole.SOURCE, TASK, ExecutionState.FAILED, (), VertexProgress(TASK, 1)),),
    failure=FAILURE,
    failure_history=(FAILURE,),
    restarts=1,
    restart_strategy="none",
    failure_counts={"result-lost": 1},
    checkpoints=FIGURES,
    submitter="ada",
)
CLUSTER = ClusterStatus(
    "c", "1.0", "akka", 5, (ProcessView("master", "master", 7, "akka", url="http://h:1"),), ("akka",)
)
EXECUTOR = TaskManagerView(
    TaskExecutorRegistration(ResourceID("tm-0"), "akka", 1, 2, "4.1", "21", "local[2]", 3, 1 << 30, "1.0", "mark", ""),
    InstanceID("5" * 32),
    1,
    100,
    200,
)
LINE = JobLine.of(WHOLE.details())

SAMPLES: list[tuple[str, Any]] = [
    ("start", StartedCluster("c", "akka", ["http://h:1"], "/c", "/c/log", 1, 2)),
    ("start", StartedHost.of(StartedRole(Role.MASTER, "h", "/c"))),
    ("start", HostOutcomes.of([Outcome("h", Role.TASK_EXECUTOR, ok=False, detail="refused")])),
    ("start-master", StartedMaster("c", "akka")),
    ("stop", StoppedCluster("c")),
    ("stop", StoppedHost("master")),
    (
        "status",
        Status.of(
            CLUSTER, ClusterOverview(1, 2, 1, 0, 1, 2, 3, 4), [EXECUTOR], {"tm-0": TaskPoolReport(4)}, [WHOLE.details()]
        ),
    ),
    ("cluster finalize", FinalizedLevel("c", 2, 1, ("the master at h:1 runs Understudy 0.2.0, which supports 2",))),
    (
        "cluster upgrade",
        ClusterUpgrade(
            "c",
            "0.2.0",
            "/venv/bin/python",
            is_dry_run=True,
            steps=(PlannedProcess("master", 7, "0.1.0", "0.2.0", "leads"),),
            kept=(PlannedProcess("tm-0", 1, "0.1.0", "0.1.0", "stays"),),
            jobs=(PlannedJob(JOB, "flights", "RUNNING", ("tm-0",), "its tasks keep running"),),
            warning="",
            to_do=("finalize",),
        ),
    ),
    (
        "cluster upgrade",
        HostUpgrades.of(
            [
                HostResult(
                    HostPlan(
                        HostRole("h", Role.MASTER), "", "0.2.0", (PlannedProcess("master", 7, "0.1.0", "0.2.0", ""),)
                    ),
                    ok=True,
                    detail="exchanged",
                )
            ],
            is_dry_run=False,
        ),
    ),
    ("log-level", [LogLevel("master", "root", "INFO")]),
    ("log-level", [LogLevelChange("master", "root", "INFO", "DEBUG")]),
    ("log-level", []),
    ("job run", Job.of(WHOLE)),
    ("job run", SubmittedJob(JOB, "http://h:1/#/jobs/1")),
    ("job run", Application("a", "SUCCEEDED", "", "", (LINE,))),
    ("job run", SubmittedApplication("a", "")),
    ("job list", [LINE]),
    ("job info", Job.of(WHOLE)),
    ("job cancel", JobState(JOB, "CANCELED")),
    ("job logs", [Log.of(TaskLog(JOB, "read", 0, "stdout", 3, "key", ATTEMPT), b"a\xff")]),
    ("job logs", [Log.of(ComponentLog(ResourceID("tm-0"), "spark", 3, "key"), b"abc")]),
    ("job logs", LogPiece("read", 0, "stdout", "a")),
    ("job exceptions", JobFailures(JOB, "flights", "FAILED", (FAILURE,))),
    *((f"job {verb}", OPERATION) for verb in ("checkpoint", "savepoint", "stop", "rollback")),
]


@pytest.mark.parametrize(("command", "value"), SAMPLES)
def test_what_is_printed_is_as_the_schema_says(command: str, value: Any, capsys: pytest.CaptureFixture[str]) -> None:
    print_document(value)
    read = parsed(command.split(), capsys.readouterr().out)
    for each in read if isinstance(read, list) else [read]:
        assert next(iter(each.items())) == ("schema", SCHEMA)


def test_every_command_with_json_has_a_schema() -> None:
    assert set(DOCUMENTS) == leaves(cli).keys() - WITHOUT_JSON


def test_a_schema_refuses_what_is_not_so() -> None:
    good = {"schema": SCHEMA, "job_id": "1", "state": "CANCELED"}
    jsonschema.validate(good, schema_of("job cancel"))
    jsonschema.validate({**good, "added_later": 1}, schema_of("job cancel"))
    for bad in ({**good, "state": 1}, {**good, "schema": "understudy/v2"}, {"schema": SCHEMA, "job_id": "1"}, [good]):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(bad, schema_of("job cancel"))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**good, "added": 1}, schema_of("job cancel", strict=True))


def test_there_is_one_word_for_each_thing() -> None:
    names = {field.name for model in _all_models() for field in fields(model)}
    others = re.compile(r"status|task_?managers?|resource_id|worker|cancelled|timestamp$|duration$|_time$|_size$|jid")
    # the process's, in Unix's word; a batch's start, in Spark's form
    assert {name for name in names if others.search(name)} <= {"exit_status", "timestamp"}


def test_a_job_has_all_that_is_known_of_it() -> None:
    job: Any = to_plain(Job.of(WHOLE))
    assert (job["state"], job["start_ms"], job["end_ms"], job["submitter"]) == ("CANCELLING", 1, None, "ada")
    assert (job["kind"], job["streams"], LINE.streams) == ("pipeline", True, True)
    attempt = job["tasks"][0]["attempts"][0]
    assert (attempt["state"], attempt["task_executor"], attempt["exit_status"]) == ("FAILED", "tm-0", -9)
    assert attempt["logs"] == [{"name": "stdout", "size": 10, "kept": 5}]
    assert job["vertices"][0]["task"] == job["tasks"][0]["id"] == TASK
    assert attempt["queries"][0]["back_pressure"] == {"level": "high", "busy": 1.5}


def test_checkpoints_are_named_anew_and_mixed_up_in_nothing() -> None:
    figures: Any = to_plain(Checkpoints.of(FIGURES))
    assert figures["latest_completed"] is None
    assert (
        figures["latest_savepoint"]
        == figures["history"][0]
        == {
            "id": 3,
            "state": "FAILED",
            "type": "SAVEPOINT",
            "path": "/chk-3",
            "start_ms": 10,
            "acknowledged_ms": 11,
            "failed_ms": 15,
            "duration_ms": 5,
            "bytes": 100,
            "new_bytes": 40,
            "discarded": True,
            "error": "full",
            "tasks_total": 2,
            "tasks_acknowledged": 1,
            "tasks": [{"task": TASK, "acknowledged_ms": 11, "bytes": 100, "new_bytes": 40, "duration_ms": 4}],
        }
    )
    assert figures["latest_restored"] == {"id": 2, "restored_ms": 9, "is_savepoint": False, "path": "/chk-2"}
    assert figures["bytes"] == {"min": 1, "avg": 2, "max": 3}


def test_a_cluster_has_its_task_executors() -> None:
    status: Any = to_plain(SAMPLES[6][1])
    assert status["cluster"]["start_ms"] == 5
    assert status["overview"]["task_executors"] == 1
    assert (status["overview"]["jobs_canceled"], status["overview"]["jobs_failed"]) == (3, 4)
    (executor,) = status["task_executors"]
    assert (executor["task_executor"], executor["pid"], executor["spark_pid"]) == ("tm-0", 1, 3)
    assert (executor["free_slots"], executor["start_ms"], executor["last_heartbeat_ms"]) == (1, 100, 200)


def test_the_page_and_the_schema_are_as_the_models_are() -> None:
    remedy = "python -m runtime.cluster.document_reference --write"
    assert PAGE.read_text() == render_page(), remedy
    assert SCHEMA_FILE.read_text() == render_schema(), remedy


def test_the_published_schema_is_one_and_takes_what_is_printed() -> None:
    whole = json.loads(render_schema())
    jsonschema.Draft202012Validator.check_schema(whole)
    plain = {"schema": SCHEMA, **json.loads(json.dumps(to_plain(Job.of(WHOLE))))}
    jsonschema.validate(plain, {**whole["x-commands"]["job info"], "$defs": whole["$defs"]})


def test_the_page_says_what_every_field_is() -> None:
    own = [model for model in _all_models() if model.__module__ == documents.__name__]
    assert len(own) > 30
    assert [(model.__name__, f.name) for model in own for f in fields(model) if not _meanings(model).get(f.name)] == []

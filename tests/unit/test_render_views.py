from __future__ import annotations

from dataclasses import replace

from runtime.cluster.views import VertexView, view_of_details, view_of_job
from runtime.ids import ExecutionAttemptID, JobID, JobVertexID
from runtime.jobgraph.job_graph import JobKind, VertexRole
from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph, AttemptInfo, TaskInfo, VertexInfo
from runtime.protocol.descriptor import VertexProgress
from runtime.protocol.execution_state import ErrorInfo, ExecutionState, FailureKind, JobStatus

READ, SINK = JobVertexID.random(), JobVertexID.random()


def attempt(number: int, state: ExecutionState, worker: str, **timestamps: int) -> AttemptInfo:
    return AttemptInfo(ExecutionAttemptID.random(), number, state, worker, timestamps, None, None)


def vertex(key: JobVertexID, name: str, role: VertexRole, state: ExecutionState, done: int) -> VertexInfo:
    return VertexInfo(key, name, role, key, state, (), VertexProgress(key, tasks_total=8, tasks_completed=done))


def test_a_job_is_shown_with_its_present_attempts() -> None:
    first = attempt(0, ExecutionState.FAILED, "tm-0", CREATED=1, DEPLOYING=5, FAILED=9)
    second = attempt(1, ExecutionState.FINISHED, "tm-1", CREATED=10, DEPLOYING=11, FINISHED=20)
    waits = attempt(0, ExecutionState.SCHEDULED, "", CREATED=1, SCHEDULED=2)
    graph = ArchivedExecutionGraph(
        job_id=JobID.random(),
        name="flights",
        kind=JobKind.PIPELINE,
        status=JobStatus.RUNNING,
        timestamps={"CREATED": 1, "RUNNING": 2},
        tasks=(
            TaskInfo(READ, "read", (READ,), (first, second), ""),
            TaskInfo(SINK, "sink", (SINK,), (waits,), "a slot"),
        ),
        vertices=(
            vertex(READ, "read", VertexRole.SOURCE, ExecutionState.FINISHED, 8),
            vertex(SINK, "sink", VertexRole.SINK, ExecutionState.SCHEDULED, 0),
        ),
        failure=ErrorInfo(FailureKind.USER_CODE, "ValueError", "no", "Traceback", "read"),
        failure_history=(),
        restarts=1,
        restart_strategy="none",
        failure_counts={"user-code": 1},
        submitter="ada",
    )
    view = view_of_job(graph)
    assert (view.state, view.started_ms, view.ended_ms, view.restarts) == ("RUNNING", 1, None, 1)
    assert view.waiting_for == "a slot"
    assert view.failures == {"user-code": 1}
    assert view.failure == ErrorInfo(FailureKind.USER_CODE, "ValueError", "no", "Traceback", "read")
    assert view.vertices == (
        VertexView(READ, "read", "FINISHED", 1, 11, 20, 8, 8, "tm-1"),
        VertexView(SINK, "sink", "SCHEDULED", 0, None, None, 8, 0, ""),
    )
    assert (view.kind, view.submitter) == ("pipeline", "ada")
    line = view_of_details(graph.details())
    assert (line.id, line.name, line.state, line.vertices) == (graph.job_id, "flights", "RUNNING", ())
    assert (line.kind, line.submitter) == ("pipeline", "ada")
    assert view_of_details(replace(graph.details(), streams=True)).kind == "pipeline, streaming"

"""What the Dispatcher says of many jobs at once, and of the end of one."""

from __future__ import annotations

import dataclasses

import pytest

from runtime.ids import JobID
from runtime.jobgraph.codec import decode, encode
from runtime.jobgraph.job_graph import JobGraph, JobKind
from runtime.protocol.archived_execution_graph import ApplicationStatus, ArchivedExecutionGraph
from runtime.protocol.execution_state import ErrorInfo, FailureKind, JobStatus
from runtime.protocol.messages import ClusterOverview, ResourceOverview

FAILURE = ErrorInfo(FailureKind.SPARK_LOST, "SparkDriverLostException", "it has ended")


def ended(status: JobStatus) -> ArchivedExecutionGraph:
    return ArchivedExecutionGraph(
        job_id=JobID("1" * 32),
        name="flights",
        kind=JobKind.SCRIPT,
        status=status,
        timestamps={"CREATED": 1000, "RUNNING": 1500, status.value: 4000},
        tasks=(),
        vertices=(),
        failure=FAILURE if status is JobStatus.FAILED else None,
        failure_history=(FAILURE,),
        restarts=0,
        restart_strategy="none",
        failure_counts={"spark-lost": 1},
    )


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (JobStatus.FINISHED, ApplicationStatus.SUCCEEDED),
        (JobStatus.CANCELED, ApplicationStatus.CANCELED),
        (JobStatus.FAILED, ApplicationStatus.FAILED),
    ],
)
def test_the_result_of_a_job_says_how_it_ended_and_how_long_it_took(
    status: JobStatus, expected: ApplicationStatus
) -> None:
    result = ended(status).result()
    assert (result.status, result.net_runtime_ms) == (expected, 3000)
    assert result.failure == (FAILURE if status is JobStatus.FAILED else None)
    assert result.failure_counts == {"spark-lost": 1}


def test_every_state_of_a_job_has_an_application_status() -> None:
    over = {status for status in JobStatus if ApplicationStatus.of(status) is not ApplicationStatus.UNKNOWN}
    assert over == {status for status in JobStatus if status.is_globally_terminal}


def test_a_cluster_is_counted_from_its_resources_and_its_jobs() -> None:
    states = [JobStatus.FINISHED, JobStatus.FAILED, JobStatus.FINISHED, JobStatus.CANCELED]
    overview = ClusterOverview.of(ResourceOverview(2, 8, 3, 1), 4, states, 1, 2, "/s")
    assert dataclasses.astuple(overview) == (2, 8, 3, 1, 4, 2, 1, 1, 1, 2, "/s")


def test_the_priority_of_a_job_travels_and_is_none_unless_given() -> None:
    graph = JobGraph.for_script("flights")
    assert graph.priority == 0
    urgent = dataclasses.replace(graph, priority=-7)
    assert decode(encode(urgent), JobGraph).priority == -7

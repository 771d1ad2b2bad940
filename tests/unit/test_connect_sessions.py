"""Spark Connect sessions: which job a call needs and what it does next, and in whose name a request acts; no Spark."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.connect.proto import base_pb2

from runtime.ids import ExecutionAttemptID, JobVertexID
from runtime.jobgraph.codec import decode_job_graph, encode
from runtime.jobgraph.errors import JobGraphError
from runtime.jobgraph.job_graph import JobKind, VertexRole
from runtime.jobgraph.validation import validate
from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph, AttemptInfo, TaskInfo
from runtime.protocol.descriptor import JobInformation
from runtime.protocol.execution_state import ErrorInfo, ExecutionState, FailureKind, JobStatus
from runtime.rest.connect.requests import (
    MOST_FIELDS,
    InvalidRequestError,
    fields_of,
    in_the_name_of,
    released_by,
    session_id_of,
    session_released,
)
from runtime.rest.connect.sessions import (
    BEATS,
    BEGINNING,
    METHODS,
    SERVICE,
    Beats,
    Begin,
    Over,
    Reach,
    Wait,
    job_of,
    next_step,
    session_graph,
)

SESSION = "00112233-4455-6677-8899-aabbccddeeff"
OTHER = "ffffffff-4455-6677-8899-aabbccddeeff"
JOB = job_of("ada", SESSION)
SERVED = base_pb2.DESCRIPTOR.services_by_name["SparkConnectService"].methods_by_name
REQUESTS = {name: getattr(base_pb2, method.input_type.name) for name, method in SERVED.items()}


def a_request(method: str = "ExecutePlan", session: str = SESSION, user: str = "bob") -> Any:
    return REQUESTS[method](
        session_id=session, user_context=base_pb2.UserContext(user_id=user, user_name="Bob"), client_type="c" * 300
    )


# ------------------------------------------------------------------ requests


@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_request_of_each_method_acts_in_the_name_of_the_tokens_user(method: str) -> None:
    sent = a_request(method)
    message = sent.SerializeToString()
    assert session_id_of(message) == SESSION
    got = REQUESTS[method].FromString(in_the_name_of(message, SESSION, "ada"))
    assert (got.session_id, got.user_context.user_id, got.user_context.user_name) == (SESSION, "ada", "ada")
    assert got.client_type == sent.client_type


def test_a_request_without_a_user_gets_one() -> None:
    message = base_pb2.ConfigRequest(session_id=SESSION).SerializeToString()
    got = base_pb2.ConfigRequest.FromString(in_the_name_of(message, SESSION, "ada"))
    assert got.user_context.user_id == "ada"


def test_the_session_of_a_request_that_names_two_is_the_one_that_spark_sees() -> None:
    message = a_request(session=OTHER).SerializeToString() + a_request().SerializeToString()
    assert session_id_of(message) == SESSION == base_pb2.ExecutePlanRequest.FromString(message).session_id


def field(number: int, kind: int, content: bytes = b"") -> bytes:
    return bytes([number << 3 | kind]) + content


@pytest.mark.parametrize(
    "tail",
    [
        field(15, 2, b"\x40"),  # a field of 64 bytes, which would take the appended user in
        field(15, 2, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
        field(15, 3),  # a group that does not end
        field(15, 4),
        field(15, 1, b"1234567"),
        field(15, 5, b"123"),
        field(15, 0, b"\x80"),
        b"\x80" * 11,
        field(15, 6),
        field(15, 7),
    ],
    ids=repr,
)
def test_a_request_that_could_hide_what_is_appended_is_refused(tail: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="not a message of Spark Connect"):
        session_id_of(a_request().SerializeToString() + tail)


def test_a_request_of_many_fields_is_refused_before_they_are_read() -> None:
    message = a_request().SerializeToString()
    used = len(list(fields_of(message)))
    assert session_id_of(message + field(15, 0, b"\x00") * (MOST_FIELDS - used)) == SESSION
    with pytest.raises(InvalidRequestError, match="more than 10000 fields"):
        # Its last field is wrong; the refusal names the number of fields, because that one is not read.
        session_id_of(message + field(15, 0, b"\x00") * MOST_FIELDS + field(15, 3))


@pytest.mark.parametrize("session", ["", "x", SESSION + "0", SESSION + ";user_id=bob", "\u00e9" * 36, SESSION[:-1]])
def test_a_session_is_a_uuid(session: str) -> None:
    with pytest.raises(InvalidRequestError, match="must be a UUID"):
        session_id_of(a_request(session=session).SerializeToString())


@given(st.binary(max_size=200))
def test_whatever_comes_is_refused_or_acts_in_the_name_of_the_tokens_user(noise: bytes) -> None:
    for message in (noise, a_request().SerializeToString() + noise):
        try:
            session = session_id_of(message)
        except InvalidRequestError:
            continue
        try:
            got = base_pb2.ExecutePlanRequest.FromString(in_the_name_of(message, session, "ada"))
        except Exception:  # Spark refuses it too
            continue
        assert (got.session_id, got.user_context.user_id) == (session, "ada")


def test_a_session_that_is_not_open_is_released_with_an_answer_that_pyspark_takes() -> None:
    assert base_pb2.ReleaseSessionResponse.FromString(session_released(SESSION)).session_id == SESSION


def test_a_report_of_what_was_read_is_acknowledged_as_spark_would() -> None:
    until = base_pb2.ReleaseExecuteRequest(session_id=SESSION, operation_id="an-operation")
    until.release_until.response_id = "a-response"
    found = released_by(until.SerializeToString())
    assert (found.operation_id, found.is_all) == ("an-operation", False)
    answer = base_pb2.ReleaseExecuteResponse.FromString(found.answer)
    assert (answer.session_id, answer.operation_id, answer.server_side_session_id) == (SESSION, "an-operation", "")
    until.release_all.SetInParent()  # takes the place of the other one
    until.client_observed_server_side_session_id = "seen"
    found = released_by(until.SerializeToString())
    assert found.is_all
    assert base_pb2.ReleaseExecuteResponse.FromString(found.answer).server_side_session_id == "seen"
    with pytest.raises(InvalidRequestError, match="names no operation"):
        released_by(base_pb2.ReleaseExecuteRequest(session_id=SESSION).SerializeToString())


def test_all_methods_of_the_service_are_passed_on_but_the_one_that_makes_sessions_without_a_job() -> None:
    assert base_pb2.DESCRIPTOR.services_by_name["SparkConnectService"].full_name == SERVICE
    assert set(SERVED) - METHODS == {"CloneSession"}
    for method in SERVED.values():
        fields = method.input_type.fields_by_name
        assert (fields["session_id"].number, fields["user_context"].number) == (1, 2), method.name


# ------------------------------------------------------------------ jobs


def a_job(status: JobStatus, state: ExecutionState = ExecutionState.RUNNING, **more: Any) -> ArchivedExecutionGraph:
    attempt = AttemptInfo(ExecutionAttemptID("a" * 32), 0, state, "tm-1", {state.value: 1}, None, None)
    task = TaskInfo(JobVertexID("b" * 32), "session", (JobVertexID("b" * 32),), (attempt,), "")
    values = {"failure": None, "owner": "ada", **more}
    return ArchivedExecutionGraph(
        JOB,
        "Spark Connect session",
        JobKind.PIPELINE,
        status,
        {status.value: 1},
        (task,),
        (),
        values.pop("failure"),
        (),
        0,
        "none",
        **values,
    )


def test_a_session_has_one_job_however_often_it_is_looked_for_and_two_users_have_two() -> None:
    assert job_of("ada", SESSION) == JOB
    assert len({JOB, job_of("bob", SESSION), job_of("", SESSION), job_of("ada", OTHER)}) == 4


def test_the_job_of_a_session_is_valid_and_is_its_users() -> None:
    graph = decode_job_graph(encode(session_graph("ada", SESSION, 7, 60.0)))
    validate(graph)
    assert (graph.job_id, graph.owner, graph.session_id, graph.client_heartbeat_timeout_s) == (JOB, "ada", SESSION, 60)
    assert graph.vertices[0].role is VertexRole.SINK
    information = JobInformation.of(graph)
    assert (information.session_id, information.owner) == (SESSION, "ada")
    with pytest.raises(JobGraphError, match="must be a UUID"):
        validate(replace(graph, session_id=f"{SESSION};user_id=bob"))
    with pytest.raises(JobGraphError, match="only a pipeline"):
        validate(replace(graph, kind=JobKind.SCRIPT))


@pytest.mark.parametrize("method", sorted(METHODS))
def test_only_some_methods_begin_a_session(method: str) -> None:
    step = next_step(None, "ada", method)
    if method in BEGINNING:
        assert step == Begin()
    else:
        assert isinstance(step, Over)
        assert step.reason.startswith("there is no such Spark session; ")


@pytest.mark.parametrize("status", [JobStatus.INITIALIZING, JobStatus.CREATED, JobStatus.RUNNING, JobStatus.SUSPENDED])
def test_a_session_without_a_running_task_is_waited_for(status: JobStatus) -> None:
    assert next_step(a_job(status, ExecutionState.SCHEDULED), "ada", "ExecutePlan") == Wait()


@pytest.mark.parametrize("status", [JobStatus.RUNNING, JobStatus.RECONCILING])
def test_a_running_session_is_asked_for_at_its_task_executor(status: JobStatus) -> None:
    assert next_step(a_job(status), "ada", "ExecutePlan") == Reach("tm-1")


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (a_job(JobStatus.FINISHED), "FINISHED (its client has released it)"),
        (a_job(JobStatus.CANCELLING), "CANCELLING (a user has cancelled it)"),
        (a_job(JobStatus.CANCELED, cancelled_because="its client is idle"), "CANCELED (its client is idle)"),
        (
            a_job(JobStatus.FAILED, failure=ErrorInfo(FailureKind.SPARK_LOST, "Lost", "the driver is lost")),
            "the driver is lost",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else value.status.value,
)
def test_a_session_that_has_ended_says_why_and_what_to_do(job: ArchivedExecutionGraph, why: str) -> None:
    step = next_step(job, "ada", "ExecutePlan")
    assert isinstance(step, Over)
    assert f"its job {JOB} is {job.status.value}" in step.reason
    assert why in step.reason
    assert "getOrCreate() begins a new one" in step.reason
    assert "\n" not in step.reason


def test_a_job_of_another_user_under_the_id_of_a_session_is_not_reached() -> None:
    step = next_step(a_job(JobStatus.RUNNING, owner="bob"), "ada", "ExecutePlan")
    assert isinstance(step, Over)
    assert "not a Spark session of this user" in step.reason


def test_heartbeats_are_few_and_often_enough() -> None:
    beats = Beats(100.0)
    assert beats.interval_s == 100.0 / BEATS
    assert [beats.is_due(JOB, now) for now in (0.0, 1.0, 9.9, 10.0, 10.1, 21.0)] == [
        True,
        False,
        False,
        True,
        False,
        True,
    ]
    assert beats.is_due(job_of("bob", SESSION), 21.0)

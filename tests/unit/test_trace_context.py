"""W3C trace contexts: which texts are some, which one a client passes on, and the ids that follow from a job's."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from runtime.ids import ExecutionAttemptID, JobID
from runtime.trace_context import JobTrace, TraceContext, current_traceparent

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TEXT = f"00-{TRACE}-{SPAN}-01"
JOB, ATTEMPT = JobID("a" * 32), ExecutionAttemptID("b" * 32)


@pytest.mark.parametrize("text", [TEXT, f"00-{TRACE}-{SPAN}-00", f"01-{TRACE}-{SPAN}-01-more"])
def test_a_context_is_read_also_of_a_later_version(text: str) -> None:
    found = TraceContext.parse(text)
    assert found is not None
    assert (found.trace_id, found.span_id, found.is_sampled) == (TRACE, SPAN, "-01" in text[-8:])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        TEXT.upper(),
        f"{TEXT} ",
        f"{TEXT}-more",
        f"01-{TRACE}-{SPAN}-01more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f" {TEXT}",
    ],
)
def test_anything_else_is_ignored(text: str) -> None:
    assert TraceContext.parse(text) is None
    assert current_traceparent({"TRACEPARENT": text}, {}) == ""


def opentelemetry(is_valid: bool) -> dict[str, ModuleType]:
    """The part of OpenTelemetry's API that is used, with a span that is open, or none."""
    context = SimpleNamespace(is_valid=is_valid, trace_id=int("c" * 32, 16), span_id=10, trace_flags=0)
    api: Any = ModuleType("opentelemetry.trace")
    api.get_current_span = lambda: SimpleNamespace(get_span_context=lambda: context)
    return {"opentelemetry.trace": api}


def test_a_client_passes_on_its_open_span_and_else_its_environment() -> None:
    environment = {"TRACEPARENT": TEXT}
    assert current_traceparent(environment, opentelemetry(is_valid=True)) == f"00-{'c' * 32}-000000000000000a-00"
    assert current_traceparent(environment, opentelemetry(is_valid=False)) == TEXT
    assert current_traceparent(environment, {}) == TEXT
    assert current_traceparent({}, {}) == ""


def test_the_script_runs_under_its_attempt_in_the_clients_trace() -> None:
    trace = JobTrace.of(JOB, TEXT, is_on=True)
    assert trace.records
    assert trace.trace_id == TRACE
    assert trace.traceparent(ATTEMPT) == f"00-{TRACE}-{trace.attempt_span(ATTEMPT)}-01"
    assert len({trace.job_span, trace.attempt_span(ATTEMPT), trace.attempt_span(ExecutionAttemptID("c" * 32))}) == 3


def test_the_ids_are_the_same_for_the_next_job_master_and_release() -> None:
    """They are part of what is stored elsewhere: a change of them tears the trace of a running job."""
    trace = JobTrace.of(JOB, "", is_on=True)
    assert (trace.trace_id, trace.job_span, trace.attempt_span(ATTEMPT)) == (
        JOB,
        "6e15aae1d9028536",
        "9826ca24cecfbe3c",
    )


def test_without_traces_the_clients_span_is_passed_on_as_it_is() -> None:
    trace = JobTrace.of(JOB, TEXT, is_on=False)
    assert (trace.records, trace.trace_id, trace.traceparent(ATTEMPT)) == (False, TRACE, TEXT)
    none = JobTrace.of(JOB, "", is_on=False)
    assert (none.records, none.trace_id, none.traceparent(ATTEMPT)) == (False, "", "")


def test_a_job_of_a_client_that_does_not_record_is_not_recorded() -> None:
    unsampled = f"00-{TRACE}-{SPAN}-00"
    trace = JobTrace.of(JOB, unsampled, is_on=True)
    assert (trace.records, trace.traceparent(ATTEMPT)) == (False, unsampled)

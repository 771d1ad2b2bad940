"""The spans of a job's trace, from its execution graph; and their OTLP/JSON form. Pure.

The spans are derived from the times that the JobMaster stores anyway, so nothing else of the cluster pays for them:

    job NAME
    ├── submit              from the client's clock to the start of the job's first JobMaster
    ├── checkpoint, savepoint
    └── task NAME           one for each attempt; its id is in the TRACEPARENT of the attempt's process
        ├── slot            from the request for a slot until there is one
        ├── deploy          until the TaskExecutor has begun
        ├── initialize      until the job's code runs
        ├── run
        ├── cancel          until nothing of a cancelled attempt runs any more
        ├── spark job       of a script
        └── batch NAME      of a streaming query

The job's own states are events of its span, each at the time when the job last entered it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any

from runtime import __version__
from runtime.jobgraph.job_graph import JobGraph
from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph, AttemptInfo, TaskInfo, VertexInfo
from runtime.protocol.checkpoint_statistics import CheckpointStats, CheckpointStatsStatus
from runtime.protocol.execution_state import ErrorInfo, ExecutionState, JobStatus
from runtime.protocol.streaming_query import QueryProgress, StreamingQuery
from runtime.trace_context import JobTrace, span_id

LONGEST_SUBMISSION_MS = 3_600_000
"""Age of a job graph at which it counts as one that was stored and submitted later: it has no span ``submit``."""

Value = str | int | bool

_STATES = {state.value: number for number, state in enumerate(ExecutionState)}
_PHASES = {
    ExecutionState.SCHEDULED.value: "slot",
    ExecutionState.DEPLOYING.value: "deploy",
    ExecutionState.INITIALIZING.value: "initialize",
    ExecutionState.RUNNING.value: "run",
    ExecutionState.CANCELING.value: "cancel",
}


@dataclass(frozen=True, slots=True)
class Event:
    """A moment of a span: its name, and when, in milliseconds since the epoch."""

    name: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Span:
    """A span that has ended.

    Args:
        trace_id: of the trace.
        span_id: of the span.
        parent_id: the span above it; empty if there is none.
        name: for people.
        start_ms: in milliseconds since the epoch.
        end_ms: in milliseconds since the epoch; never before the start.
        attributes: by OpenTelemetry's rules for names.
        error: why it failed, in one line; None if it did not.
        events: moments in it.
    """

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    start_ms: int
    end_ms: int
    attributes: Mapping[str, Value] = field(default_factory=dict)
    error: str | None = None
    events: tuple[Event, ...] = ()


def spans_of(trace: JobTrace, job: JobGraph, graph: ArchivedExecutionGraph) -> list[Span]:
    """Return the spans of a job that have ended.

    Args:
        trace: of the job.
        job: as it was submitted.
        graph: its present state.
    """
    found = [span for task in graph.tasks for attempt in task.attempts for span in _attempt(trace, task, attempt)]
    found += [span for vertex in graph.vertices for span in _spark_jobs(trace, graph, vertex)]
    found += [span for one in graph.checkpoints.history if (span := _checkpoint(trace, one)) is not None]
    accepted = graph.start_ms
    start = job.created_ms if 0 <= accepted - job.created_ms <= LONGEST_SUBMISSION_MS else accepted
    if start < accepted:
        found.append(_under_job(trace, "submit", start, accepted))
    if graph.status.is_globally_terminal and graph.end_ms is not None:
        found.append(_job(trace, graph, start, graph.end_ms))
    return found


def _job(trace: JobTrace, graph: ArchivedExecutionGraph, start_ms: int, end_ms: int) -> Span:
    states = sorted(graph.timestamps.items(), key=lambda item: item[1])
    return Span(
        trace.trace_id,
        trace.job_span,
        "" if trace.parent is None else trace.parent.span_id,
        f"job {graph.name}",
        start_ms,
        max(start_ms, end_ms),
        {
            "understudy.job.id": graph.job_id,
            "understudy.job.name": graph.name,
            "understudy.job.kind": graph.kind.value,
            "understudy.job.state": graph.status.value,
            "understudy.job.restarts": graph.restarts,
        },
        _cause(graph.failure) if graph.status is JobStatus.FAILED else None,
        tuple(Event(state, at_ms) for state, at_ms in states),
    )


def _attempt(trace: JobTrace, task: TaskInfo, attempt: AttemptInfo) -> Iterator[Span]:
    """Yield the ended spans of an attempt: its phases, its queries' batches, and its own."""
    own = trace.attempt_span(attempt.attempt_id)
    # A report may name an earlier time than the one at which the JobMaster asked for it after a failover.
    at = sorted(attempt.timestamps.items(), key=lambda item: (item[1], _STATES[item[0]]))
    begun = [(state, at_ms) for state, at_ms in at if state not in (ExecutionState.CREATED.value, _RECONCILING)]
    for (state, since_ms), (_, until_ms) in pairwise(begun):
        if state in _PHASES:
            yield Span(trace.trace_id, span_id(own, state), own, _PHASES[state], since_ms, until_ms)
    for query in attempt.queries:
        if query.progress is not None and (batch := _batch(trace, own, query, query.progress)) is not None:
            yield batch
    if attempt.end_ms is None:
        return
    attributes: dict[str, Value] = {
        "understudy.job.id": trace.job_id,
        "understudy.task.name": task.name,
        "understudy.attempt.id": attempt.attempt_id,
        "understudy.attempt.number": attempt.number,
        "understudy.attempt.state": attempt.state.value,
    }
    if attempt.task_executor:
        attributes["understudy.task_executor"] = attempt.task_executor
    if attempt.spark is not None:
        attributes |= {"spark.application.id": attempt.spark.application, "spark.job.tag": attempt.spark.tag}
    yield Span(
        trace.trace_id,
        own,
        trace.job_span,
        f"task {task.name}",
        begun[0][1],
        max(begun[0][1], attempt.end_ms),
        attributes,
        _cause(attempt.error) if attempt.state is ExecutionState.FAILED else None,
        tuple(Event(state, at_ms) for state, at_ms in at if state == _RECONCILING),
    )


_RECONCILING = ExecutionState.RECONCILING.value


def _spark_jobs(trace: JobTrace, graph: ArchivedExecutionGraph, vertex: VertexInfo) -> Iterator[Span]:
    """Yield the Spark jobs of the present attempt of a vertex's task."""
    if not vertex.progress.latest_jobs:
        return
    (attempt,) = (task.attempts[-1] for task in graph.tasks if task.key == vertex.task)
    parent = trace.attempt_span(attempt.attempt_id)
    for job in vertex.progress.latest_jobs:
        yield Span(
            trace.trace_id,
            span_id(parent, "spark job", str(job.job_id)),
            parent,
            "spark job",
            job.start_ms,
            max(job.start_ms, job.end_ms),
            {"spark.job.id": job.job_id, "spark.job.name": job.name},
            "the Spark job failed" if job.failed else None,
        )


def _batch(trace: JobTrace, parent: str, query: StreamingQuery, progress: QueryProgress) -> Span | None:
    """Return the span of the last batch of a query; None if Spark did not say when it started."""
    try:
        start_ms = int(datetime.fromisoformat(progress.timestamp).timestamp() * 1000)
    except ValueError:
        return None
    return Span(
        trace.trace_id,
        span_id(parent, query.run_id, str(progress.batch)),
        parent,
        f"batch {query.name}".rstrip(),
        start_ms,
        start_ms + max(progress.duration_ms, 0),
        {
            "spark.query.id": query.id,
            "spark.query.run_id": query.run_id,
            "spark.query.name": query.name,
            "spark.query.batch": progress.batch,
            "spark.query.rows": progress.rows,
        },
    )


def _checkpoint(trace: JobTrace, stats: CheckpointStats) -> Span | None:
    if stats.status is CheckpointStatsStatus.IN_PROGRESS:
        return None
    start_ms = stats.trigger_timestamp
    return _under_job(
        trace,
        "savepoint" if stats.is_savepoint else "checkpoint",
        start_ms,
        start_ms + max(stats.end_to_end_duration, 0),
        str(stats.id),
        {
            "understudy.checkpoint.id": stats.id,
            "understudy.checkpoint.bytes": stats.state_size,
            "understudy.checkpoint.new_bytes": stats.checkpointed_size,
        },
        stats.failure_message if stats.status is CheckpointStatsStatus.FAILED else None,
    )


def _under_job(
    trace: JobTrace,
    name: str,
    start_ms: int,
    end_ms: int,
    number: str = "",
    attributes: Mapping[str, Value] | None = None,
    error: str | None = None,
) -> Span:
    own = span_id(trace.job_span, name, number)
    return Span(trace.trace_id, own, trace.job_span, name, start_ms, end_ms, attributes or {}, error)


def _cause(error: ErrorInfo | None) -> str:
    return "" if error is None else error.cause


# ------------------------------------------------------------------------------------------------------ OTLP/JSON


def otlp_json(spans: Iterable[Span], resource: Mapping[str, Value]) -> dict[str, Any]:
    """Return spans as an ``ExportTraceServiceRequest`` of OTLP, in its JSON encoding.

    Args:
        spans: in any order.
        resource: attributes of the sender.
    """
    scope = {"name": "understudy", "version": __version__}
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes(resource)},
                "scopeSpans": [{"scope": scope, "spans": [_span(span) for span in spans]}],
            }
        ]
    }


def _span(span: Span) -> dict[str, Any]:
    told: dict[str, Any] = {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        **({"parentSpanId": span.parent_id} if span.parent_id else {}),
        "name": span.name,
        "kind": 1,  # internal
        "startTimeUnixNano": _nanoseconds(span.start_ms),
        "endTimeUnixNano": _nanoseconds(span.end_ms),
        "attributes": _attributes(span.attributes),
    }
    if span.events:
        told["events"] = [{"name": event.name, "timeUnixNano": _nanoseconds(event.at_ms)} for event in span.events]
    if span.error is not None:
        told["status"] = {"code": 2, "message": span.error}
    return told


def _nanoseconds(at_ms: int) -> str:
    return str(at_ms * 1_000_000)  # 64-bit numbers are texts in the JSON encoding


def _attributes(attributes: Mapping[str, Value]) -> Sequence[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in attributes.items()]


def _value(value: Value) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    return {"intValue": str(value)} if isinstance(value, int) else {"stringValue": str(value)}

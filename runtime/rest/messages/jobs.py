"""Jobs: overviews, details, plan, exceptions, result (Flink's `runtime.rest.messages.job`).

A vertex of Flink's is a chain of operators in subtasks. Here that is a task: a chain of vertices in one process.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Any

from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph, JobDetails, TaskInfo
from runtime.protocol.execution_state import ErrorInfo, ExecutionState, JobStatus
from runtime.protocol.streaming_query import StreamingQuery
from runtime.rest.messages.common import IO_METRICS, NO_TIME, Json, count_states, duration, ended, place, started
from runtime.rest.messages.serialized_throwable import serialized_throwable

SCHEDULER = "Default"
"""Flink's `SchedulerType` of a scheduler that gives a job the slots that it asks for, or none."""
MAX_EXCEPTIONS = 20
"""Failures that `exceptions` shows when nobody asks for another number (Flink's default)."""


def ids_with_status(jobs: Iterable[JobDetails]) -> Json:
    """GET /jobs."""
    return {"jobs": [{"id": job.job_id, "status": job.status.value} for job in jobs]}


def overview(jobs: Iterable[JobDetails], now: int) -> Json:
    """GET /jobs/overview."""
    return {"jobs": [details(job, now) for job in jobs]}


def details(job: JobDetails, now: int) -> Json:
    """Flink's `JobDetails`."""
    end = NO_TIME if job.end_ms is None else job.end_ms
    tasks = {state.value.lower(): job.tasks_per_state.get(state.value, 0) for state in ExecutionState}
    return {
        "jid": job.job_id,
        "name": job.name,
        "jobType": job_type(job),
        "schedulerType": SCHEDULER,
        "start-time": job.start_ms,
        "end-time": end,
        "duration": duration(job.start_ms, end, now),
        "state": job.status.value,
        "last-modification": job.start_ms if end == NO_TIME else end,
        "tasks": {"total": job.tasks_total, **tasks},
        "pending-operators": 0,
    }


def job_type(job: ArchivedExecutionGraph | JobDetails) -> str:
    """``STREAMING`` once a streaming query was seen in it, ``BATCH`` otherwise."""
    return "STREAMING" if job.streams else "BATCH"


def job(graph: ArchivedExecutionGraph, now: int) -> Json:
    """GET /jobs/:jobid."""
    end = NO_TIME if graph.end_ms is None else graph.end_ms
    return {
        "jid": graph.job_id,
        "application-id": graph.job_id,
        "name": graph.name,
        "isStoppable": False,
        "state": graph.status.value,
        "job-type": job_type(graph),
        "schedulerType": SCHEDULER,
        "start-time": graph.start_ms,
        "end-time": end,
        "duration": duration(graph.start_ms, end, now),
        "maxParallelism": -1,
        "now": now,
        "timestamps": {state.value: graph.timestamps.get(state.value, 0) for state in JobStatus},
        "vertices": [_vertex(task, now) for task in graph.tasks],
        "status-counts": count_states(task.state for task in graph.tasks),
        "plan": _plan(graph),
        "pending-operators": 0,
        "waiting-for": {task.key: task.waiting_for for task in graph.tasks if task.waiting_for},
        "spark": {task.key: _spark(graph, task) for task in graph.tasks},
    }


def _spark(graph: ArchivedExecutionGraph, task: TaskInfo) -> Json:
    """Spark's own counts for a task, and its streaming queries; ``batch`` is -1 before the first."""
    counts = [vertex.progress for vertex in graph.vertices if vertex.task == task.key]
    return {
        "stages": sum(count.stages for count in counts),
        "stages-completed": sum(count.stages_completed for count in counts),
        "tasks": sum(count.tasks_total for count in counts),
        "tasks-completed": sum(count.tasks_completed for count in counts),
        "tasks-active": sum(count.tasks_active for count in counts),
        "queries": [_query(query) for query in task.attempts[-1].queries],
    }


def _query(query: StreamingQuery) -> Json:
    """A streaming query; what of it is not known is left out, but for ``batch``."""
    told: Json = {
        "id": query.id,
        "run-id": query.run_id,
        "name": query.name,
        "batch": -1 if query.batch is None else query.batch,
    }
    if query.trigger_interval_ms is not None:
        told["trigger-interval"] = query.trigger_interval_ms
    if query.back_pressure is not None:
        told["backpressure-level"] = query.back_pressure.level.value
        if query.back_pressure.busy is not None:
            told["busy"] = query.back_pressure.busy
    progress = query.progress
    if progress is None:
        return told
    told |= {
        "batch-duration": progress.duration_ms,
        "input-rows": progress.rows,
        "input-rows-per-second": progress.rows_per_second,
        "processed-rows-per-second": progress.processed_per_second,
        "state-rows": progress.state_rows,
        "state-bytes": progress.state_bytes,
        "sources": [
            {
                "description": source.description,
                "input-rows": source.rows,
                "input-rows-per-second": source.rows_per_second,
                "processed-rows-per-second": source.processed_per_second,
                **({} if source.lag is None else {"lag": source.lag}),
            }
            for source in progress.sources
        ],
    }
    return told


def _vertex(task: TaskInfo, now: int) -> Json:
    attempt = task.attempts[-1]
    start, end = started(attempt), ended(attempt)
    return {
        "id": task.key,
        "slotSharingGroupId": task.key,
        "name": task.name,
        "maxParallelism": 1,
        "parallelism": 1,
        "status": task.state.value,
        "start-time": start,
        "end-time": end,
        "duration": duration(start, end, now),
        "tasks": count_states([task.state]),
        "metrics": dict(IO_METRICS),
    }


def plan(graph: ArchivedExecutionGraph) -> Json:
    """GET /jobs/:jobid/plan."""
    return {"plan": _plan(graph)}


def _plan(graph: ArchivedExecutionGraph) -> Json:
    return {
        "jid": graph.job_id,
        "name": graph.name,
        "type": job_type(graph),
        "nodes": [_node(graph, task) for task in graph.tasks],
    }


def _node(graph: ArchivedExecutionGraph, task: TaskInfo) -> Json:
    vertices = {vertex.id: vertex for vertex in graph.vertices}
    own = [vertices[vertex_id] for vertex_id in task.vertices if vertex_id in vertices]
    read = dict.fromkeys(vertices[source].task for vertex in own for source in vertex.inputs)
    node: Json = {
        "id": task.key,
        "parallelism": 1,
        "operator": "",
        "operator_strategy": "",
        # The page shows it as HTML, and names are the user's own.
        "description": "".join(f"{html.escape(vertex.name)} ({vertex.role.value})<br/>" for vertex in own),
        "optimizer_properties": {},
    }
    inputs = [source for source in read if source != task.key]
    if inputs:  # between two tasks a result is materialised, always
        node["inputs"] = [
            {"num": number, "id": source, "ship_strategy": "MATERIALIZED", "exchange": "blocking"}
            for number, source in enumerate(inputs)
        ]
    return node


def config(graph: ArchivedExecutionGraph) -> Json:
    """GET /jobs/:jobid/config."""
    return {
        "jid": graph.job_id,
        "name": graph.name,
        "execution-config": {
            "restart-strategy": graph.restart_strategy,
            "job-parallelism": 1,
            "object-reuse-mode": False,
            "user-config": {"kind": graph.kind.value, "restarts": str(graph.restarts)},
        },
    }


def exceptions(graph: ArchivedExecutionGraph, limit: int = MAX_EXCEPTIONS) -> Json:
    """GET /jobs/:jobid/exceptions: the last failures, the newest first, the user's own traceback in each."""
    failures = list(reversed(graph.failure_history))
    if graph.failure is not None and graph.failure not in failures:
        failures.insert(0, graph.failure)
    return {
        "exceptionHistory": {
            "entries": [_exception(graph, error) for error in failures[:limit]],
            "truncated": len(failures) > limit,
        }
    }


def _exception(graph: ArchivedExecutionGraph, error: ErrorInfo) -> Json:
    entry: Json = {
        "exceptionName": error.type,
        "stacktrace": stack_trace(error),
        "timestamp": error.timestamp_ms,
        "failureLabels": {"kind": error.kind.value},
        "concurrentExceptions": [],
    }
    if error.task:
        entry["taskName"] = error.task
        where = _place_of(graph, error)
        if where:
            entry |= {"endpoint": where, "taskManagerId": where}
    return entry


def _place_of(graph: ArchivedExecutionGraph, error: ErrorInfo) -> str:
    for task in graph.tasks:
        for attempt in task.attempts:
            if task.name == error.task and attempt.error == error:
                return place(attempt)
    return ""


def stack_trace(error: ErrorInfo) -> str:
    """The user's traceback where there is one, else the error in one line."""
    return error.traceback or str(error)


def execution_result(graph: ArchivedExecutionGraph) -> Json:
    """GET /jobs/:jobid/execution-result."""
    if not graph.status.is_globally_terminal:
        return {"status": {"id": "IN_PROGRESS"}}
    result = graph.result()
    told: dict[str, Any] = {
        "id": graph.job_id,
        "name": graph.name,
        "application-status": result.status.value,
        "accumulator-results": {},
        "net-runtime": result.net_runtime_ms,
        "application-id": graph.job_id,
        "start-time": graph.start_ms,
        "end-time": graph.end_ms,
    }
    if result.failure is not None:
        trace = stack_trace(result.failure)
        told["failure-cause"] = {
            "class": result.failure.type,
            "stack-trace": trace,
            "serialized-throwable": serialized_throwable(result.failure.type, str(result.failure), trace),
        }
    return {"status": {"id": "COMPLETED"}, "job-execution-result": told}


def accumulators() -> Json:
    """GET /jobs/:jobid/accumulators: Spark's accumulators stay in the job's own process."""
    return {"job-accumulators": [], "user-task-accumulators": [], "serialized-user-task-accumulators": {}}

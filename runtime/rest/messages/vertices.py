"""A task of a job as a vertex with one subtask (Flink's `JobVertexDetailsInfo` and its kin)."""

from __future__ import annotations

from typing import Any

from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph, AttemptInfo, TaskInfo
from runtime.protocol.execution_state import ExecutionState
from runtime.protocol.streaming_query import OperatorBackPressureStats
from runtime.rest.messages.common import (
    IO_METRICS,
    Json,
    aggregated,
    count_states,
    duration,
    ended,
    place,
    started,
    subtask,
)


def find_task(graph: ArchivedExecutionGraph, vertex_id: str) -> TaskInfo | None:
    """The task of that id."""
    return next((task for task in graph.tasks if task.key == vertex_id), None)


def find_attempt(task: TaskInfo, number: int) -> AttemptInfo | None:
    """The attempt of that number."""
    return next((attempt for attempt in task.attempts if attempt.number == number), None)


def vertex(task: TaskInfo, now: int) -> Json:
    """GET /jobs/:jobid/vertices/:vertexid."""
    return {
        "id": task.key,
        "name": task.name,
        "parallelism": 1,
        "maxParallelism": 1,
        "now": now,
        "subtasks": [subtask(task.attempts[-1], now)],
        "aggregated": aggregated(task, now),
    }


def task_managers(task: TaskInfo, now: int) -> Json:
    """GET /jobs/:jobid/vertices/:vertexid/taskmanagers."""
    attempt = task.attempts[-1]
    start, end = started(attempt), ended(attempt)
    return {
        "id": task.key,
        "name": task.name,
        "now": now,
        "taskmanagers": [
            {
                "endpoint": place(attempt),
                "status": task.state.value,
                "start-time": start,
                "end-time": end,
                "duration": duration(start, end, now),
                "metrics": dict(IO_METRICS),
                "status-counts": count_states([task.state]),
                "taskmanager-id": place(attempt),
                "aggregated": aggregated(task, now),
            }
        ],
    }


def subtask_times(task: TaskInfo, now: int) -> Json:
    """GET /jobs/:jobid/vertices/:vertexid/subtasktimes."""
    attempt = task.attempts[-1]
    return {
        "id": task.key,
        "name": task.name,
        "now": now,
        "subtasks": [
            {
                "subtask": 0,
                "endpoint": place(attempt),
                "duration": duration(started(attempt), ended(attempt), now),
                "timestamps": {state.value: attempt.timestamps.get(state.value, 0) for state in ExecutionState},
            }
        ],
    }


def accumulators(task: TaskInfo) -> Json:
    """GET /jobs/:jobid/vertices/:vertexid/accumulators."""
    return {"id": task.key, "user-accumulators": []}


def subtask_accumulators(task: TaskInfo) -> Json:
    """GET /jobs/:jobid/vertices/:vertexid/subtasks/accumulators."""
    attempt = task.attempts[-1]
    told = {"subtask": 0, "attempt": attempt.number, "endpoint": place(attempt), "user-accumulators": []}
    return {"id": task.key, "parallelism": 1, "subtasks": [told]}


def attempt_accumulators(attempt: AttemptInfo) -> Json:
    """GET /jobs/:jobid/vertices/:vertexid/subtasks/:subtaskindex/attempts/:attempt/accumulators."""
    return {"subtask": 0, "attempt": attempt.number, "id": attempt.attempt_id, "user-accumulators": []}


def back_pressure(stats: OperatorBackPressureStats | None, now: int) -> Json:
    """GET /jobs/:jobid/vertices/:vertexid/backpressure: that of its worst streaming query.

    ``deprecated``, Flink's word for none yet, where nothing is known.
    """
    if stats is None:
        return {"status": "deprecated", "subtasks": []}
    level = {"backpressure-level": stats.level.value, "backpressureLevel": stats.level.value}
    told: Json = {"subtask": 0, "attempt-number": stats.attempt, **level}
    if (ratios := stats.ratios) is not None:
        told |= dict(zip(("ratio", "busyRatio", "idleRatio"), ratios, strict=True))
    return {"status": "ok", **level, "end-timestamp": now, "subtasks": [told]}


def flame_graph(task: TaskInfo) -> Json:
    """GET /jobs/:jobid/vertices/:vertexid/flamegraph: nothing is sampled.

    -1 and -2 are Flink's words (`VertexFlameGraph`) for a task that has ended, and for sampling that is turned off.
    """
    return {"endTimestamp": -1 if task.state.is_terminal else -2}


def watermarks() -> list[Any]:
    """GET /jobs/:jobid/vertices/:vertexid/watermarks: Spark's are a query's, not a task's."""
    return []

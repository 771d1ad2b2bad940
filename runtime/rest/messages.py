"""Parts of several answers: times, counts of states, an attempt as Flink's subtask. Pure.

The answers are the JSON of Flink's REST API v1 (Flink's `runtime.rest.messages`). Times are milliseconds since the
epoch and -1 where there is none, never null; ids are 32 hexadecimal digits; states are Flink's words. What is not known
of a Spark job is zero with its ``...-complete`` flag false, or an empty list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from runtime.protocol.archived_execution_graph import AttemptInfo, TaskInfo
from runtime.protocol.execution_state import ExecutionState

Json = dict[str, Any]

NO_TIME = -1
"""In place of a time that there is not (yet)."""

IO_METRICS: Mapping[str, Any] = {
    "read-bytes": 0,
    "read-bytes-complete": False,
    "write-bytes": 0,
    "write-bytes-complete": False,
    "read-records": 0,
    "read-records-complete": False,
    "write-records": 0,
    "write-records-complete": False,
    "accumulated-backpressured-time": 0,
    "accumulated-idle-time": 0,
    "accumulated-busy-time": 0.0,
}
"""Flink's `IOMetricsInfo`: Spark's rows are not counted for a task, which the flags say."""

PASSED = ("CREATED", "SCHEDULED", "DEPLOYING", "INITIALIZING", "RUNNING")
"""The states of Flink's whose durations it tells (`StatusDurationUtils`)."""
COUNTED = (
    "read-bytes",
    "write-bytes",
    "read-records",
    "write-records",
    "accumulated-backpressured-time",
    "accumulated-idle-time",
    "accumulated-busy-time",
)


def count_states(states: Iterable[ExecutionState]) -> dict[str, int]:
    """Count each state, by its upper-case name; those that do not occur too."""
    counts = {state.value: 0 for state in ExecutionState}
    for state in states:
        counts[state.value] += 1
    return counts


def duration(start: int, end: int, now: int) -> int:
    """Milliseconds from *start* to *end*, or to *now* while there is no end; 0 before the start. Clocks may differ."""
    if start == NO_TIME:
        return 0
    return max((now if end == NO_TIME else end) - start, 0)


def span(start: int, end: int | None, now: int) -> Json:
    """Start, end and duration of something; *end* is None while it goes on."""
    at = NO_TIME if end is None else end
    return {"start-time": start, "end-time": at, "duration": duration(start, at, now)}


def span_of(attempt: AttemptInfo, now: int) -> Json:
    """The `span` from an attempt's deployment to its end."""
    return span(started(attempt), attempt.end_ms, now)


def started(attempt: AttemptInfo) -> int:
    """Time at which the attempt was deployed."""
    return attempt.timestamps.get(ExecutionState.DEPLOYING.value, NO_TIME)


def ended(attempt: AttemptInfo) -> int:
    """Time at which the attempt ended."""
    end = attempt.end_ms
    return NO_TIME if end is None else end


def place(attempt: AttemptInfo) -> str:
    """Name of the TaskExecutor where the attempt runs or ran."""
    return attempt.task_executor or "(unassigned)"


def status_durations(attempt: AttemptInfo, now: int) -> dict[str, int]:
    """Time that the attempt spent in each of Flink's states that are no end; -1 of those that it did not enter."""
    entered = sorted(attempt.timestamps.items(), key=lambda item: item[1])
    leaves = [at for _, at in entered[1:]] + [now]
    spent = {state: max(left - at, 0) for (state, at), left in zip(entered, leaves, strict=True)}
    return {state: spent.get(state, NO_TIME) for state in PASSED}


def subtask(attempt: AttemptInfo, now: int) -> Json:
    """Flink's `SubtaskExecutionAttemptDetailsInfo`: a task here is one subtask."""
    return {
        "subtask": 0,
        "status": attempt.state.value,
        "attempt": attempt.number,
        "endpoint": place(attempt),
        **span_of(attempt, now),
        "metrics": dict(IO_METRICS),
        "taskmanager-id": place(attempt),
        "status-duration": status_durations(attempt, now),
        "start_time": started(attempt),
    }


def aggregated(task: TaskInfo, now: int) -> Json:
    """Flink's `AggregatedTaskDetailsInfo`, whole: the web page stands still when a part of it is missing."""
    durations = status_durations(task.attempts[-1], now)
    return {
        "metrics": {name: _summary(0) for name in COUNTED},
        "status-duration": {state: _summary(max(spent, 0)) for state, spent in durations.items()},
    }


def _summary(value: int) -> dict[str, int]:
    """The statistics of one value."""
    return dict.fromkeys(("min", "max", "avg", "sum", "median", "p25", "p75", "p95"), value)

"""Parts of several answers: times, counts of states, an attempt as Flink's subtask. Pure.

The answers are the JSON of Flink's REST API v1 (Flink's `runtime.rest.messages`):

- Times are milliseconds since the epoch; a missing time is -1, never null.
- Ids are 32 hexadecimal digits; states have Flink's names.
- Figures that Spark does not provide are zero with their ``...-complete`` flag false, or an empty list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from runtime.protocol.archived_execution_graph import AttemptInfo, TaskInfo
from runtime.protocol.execution_state import ExecutionState

Json = dict[str, Any]

NO_TIME = -1
"""Stands for a missing time."""

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
"""Flink's `IOMetricsInfo`. Spark's rows are not counted for a task, so the flags are false."""

PASSED = ("CREATED", "SCHEDULED", "DEPLOYING", "INITIALIZING", "RUNNING")
"""The states whose durations Flink reports (`StatusDurationUtils`)."""
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
    """Count each state, by its upper-case name; 0 for states that do not occur."""
    counts = {state.value: 0 for state in ExecutionState}
    for state in states:
        counts[state.value] += 1
    return counts


def duration(start: int, end: int, now: int) -> int:
    """Return the milliseconds from *start* to *end*, or to *now* before the end; 0 before the start.

    It is never negative, also if the times are of different clocks.
    """
    if start == NO_TIME:
        return 0
    return max((now if end == NO_TIME else end) - start, 0)


def span(start: int, end: int | None, now: int) -> Json:
    """Return start, end and duration as JSON; *end* is None before the end."""
    at = NO_TIME if end is None else end
    return {"start-time": start, "end-time": at, "duration": duration(start, at, now)}


def span_of(attempt: AttemptInfo, now: int) -> Json:
    """Return the `span` from an attempt's deployment to its end."""
    return span(started(attempt), attempt.end_ms, now)


def started(attempt: AttemptInfo) -> int:
    """Return the time at which the attempt was deployed."""
    return attempt.timestamps.get(ExecutionState.DEPLOYING.value, NO_TIME)


def ended(attempt: AttemptInfo) -> int:
    """Return the time at which the attempt ended."""
    end = attempt.end_ms
    return NO_TIME if end is None else end


def place(attempt: AttemptInfo) -> str:
    """Return the name of the TaskExecutor where the attempt runs or ran."""
    return attempt.task_executor or "(unassigned)"


def status_durations(attempt: AttemptInfo, now: int) -> dict[str, int]:
    """Return the time that the attempt spent in each state of `PASSED`; -1 for states that it did not enter."""
    entered = sorted(attempt.timestamps.items(), key=lambda item: item[1])
    leaves = [at for _, at in entered[1:]] + [now]
    spent = {state: max(left - at, 0) for (state, at), left in zip(entered, leaves, strict=True)}
    return {state: spent.get(state, NO_TIME) for state in PASSED}


def subtask(attempt: AttemptInfo, now: int) -> Json:
    """Return Flink's `SubtaskExecutionAttemptDetailsInfo`: a task here is one subtask."""
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
    """Return Flink's `AggregatedTaskDetailsInfo` with all parts: Flink's web page hangs if one is missing."""
    durations = status_durations(task.attempts[-1], now)
    return {
        "metrics": {name: _summary(0) for name in COUNTED},
        "status-duration": {state: _summary(max(spent, 0)) for state, spent in durations.items()},
    }


def _summary(value: int) -> dict[str, int]:
    """Return the statistics of one value."""
    return dict.fromkeys(("min", "max", "avg", "sum", "median", "p25", "p75", "p95"), value)

"""States of jobs and tasks with Flink's names, their permitted transitions, and failures (`ErrorInfo`)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from runtime.causes import cause_of
from runtime.ids import JobVertexID


class IllegalStateTransition(Exception):
    """A job or a task was to enter a state that cannot follow its current one: a bug in the runtime."""


class JobStatus(Enum):
    """Flink's `JobStatus`."""

    INITIALIZING = "INITIALIZING"
    CREATED = "CREATED"
    RUNNING = "RUNNING"
    FAILING = "FAILING"
    FAILED = "FAILED"
    CANCELLING = "CANCELLING"
    CANCELED = "CANCELED"
    FINISHED = "FINISHED"
    RESTARTING = "RESTARTING"
    SUSPENDED = "SUSPENDED"
    RECONCILING = "RECONCILING"

    @property
    def is_globally_terminal(self) -> bool:
        """Return whether the job is over for good and may be archived."""
        return self in (JobStatus.FAILED, JobStatus.CANCELED, JobStatus.FINISHED)

    @property
    def is_terminal(self) -> bool:
        """Return whether the job is over for good, or for this JobMaster (SUSPENDED: another JobMaster leads)."""
        return self.is_globally_terminal or self is JobStatus.SUSPENDED


class ExecutionState(Enum):
    """Flink's `ExecutionState` of one attempt to run a task."""

    CREATED = "CREATED"
    SCHEDULED = "SCHEDULED"
    DEPLOYING = "DEPLOYING"
    INITIALIZING = "INITIALIZING"
    RUNNING = "RUNNING"
    FINISHED = "FINISHED"
    CANCELING = "CANCELING"
    CANCELED = "CANCELED"
    FAILED = "FAILED"
    RECONCILING = "RECONCILING"

    @property
    def is_terminal(self) -> bool:
        """Return whether nothing of the attempt runs any more."""
        return self in (ExecutionState.FINISHED, ExecutionState.CANCELED, ExecutionState.FAILED)

    @property
    def is_deployed(self) -> bool:
        """Return whether a TaskExecutor may hold the attempt."""
        return not self.is_terminal and self not in (ExecutionState.CREATED, ExecutionState.SCHEDULED)


_J, _E = JobStatus, ExecutionState

JOB_TRANSITIONS: dict[JobStatus, frozenset[JobStatus]] = {
    _J.INITIALIZING: frozenset({_J.CREATED, _J.CANCELLING, _J.FAILED, _J.SUSPENDED}),
    _J.CREATED: frozenset({_J.RUNNING, _J.RECONCILING, _J.FAILING, _J.CANCELLING, _J.SUSPENDED}),
    _J.RECONCILING: frozenset({_J.RUNNING, _J.RESTARTING, _J.FAILING, _J.CANCELLING, _J.FINISHED, _J.SUSPENDED}),
    _J.RUNNING: frozenset({_J.RESTARTING, _J.FAILING, _J.CANCELLING, _J.FINISHED, _J.SUSPENDED}),
    _J.RESTARTING: frozenset({_J.RUNNING, _J.FAILING, _J.CANCELLING, _J.SUSPENDED}),
    _J.FAILING: frozenset({_J.FAILED, _J.CANCELLING, _J.SUSPENDED}),
    _J.CANCELLING: frozenset({_J.CANCELED, _J.SUSPENDED}),
    _J.FAILED: frozenset(),
    _J.CANCELED: frozenset(),
    _J.FINISHED: frozenset(),
    _J.SUSPENDED: frozenset(),
}

EXECUTION_TRANSITIONS: dict[ExecutionState, frozenset[ExecutionState]] = {
    _E.CREATED: frozenset({_E.SCHEDULED, _E.CANCELED, _E.FAILED, _E.RECONCILING}),
    _E.SCHEDULED: frozenset({_E.DEPLOYING, _E.CANCELED, _E.FAILED}),
    # A report may overtake or replace an earlier one, so a task may appear to skip INITIALIZING and RUNNING.
    _E.DEPLOYING: frozenset({_E.INITIALIZING, _E.RUNNING, _E.FINISHED, _E.CANCELING, _E.FAILED}),
    _E.INITIALIZING: frozenset({_E.RUNNING, _E.FINISHED, _E.CANCELING, _E.FAILED}),
    _E.RUNNING: frozenset({_E.FINISHED, _E.CANCELING, _E.FAILED}),
    _E.RECONCILING: frozenset({_E.INITIALIZING, _E.RUNNING, _E.FINISHED, _E.CANCELING, _E.CANCELED, _E.FAILED}),
    _E.CANCELING: frozenset({_E.CANCELED}),
    _E.FINISHED: frozenset(),
    _E.CANCELED: frozenset(),
    _E.FAILED: frozenset(),
}


def check_job_transition(current: JobStatus, target: JobStatus) -> None:
    """Raise `IllegalStateTransition` unless *target* may follow *current*."""
    if target not in JOB_TRANSITIONS[current]:
        raise IllegalStateTransition(f"a job cannot go from {current.value} to {target.value}")


def check_execution_transition(current: ExecutionState, target: ExecutionState) -> None:
    """Raise `IllegalStateTransition` unless *target* may follow *current*."""
    if target not in EXECUTION_TRANSITIONS[current]:
        raise IllegalStateTransition(f"a task cannot go from {current.value} to {target.value}")


class FailureKind(Enum):
    """Kind of a failure. The kinds are distinguished because their remedies differ."""

    USER_CODE = "user-code"
    TASK_PROCESS_LOST = "task-process-lost"
    SPARK_LOST = "spark-lost"
    TASK_EXECUTOR_LOST = "task-executor-lost"
    RESULT_LOST = "result-lost"
    NO_RESOURCE = "no-resource"
    RUNTIME = "runtime"

    @property
    def is_recoverable(self) -> bool:
        """Return whether a restart may help: it does not after the wait for a slot has timed out."""
        return self is not FailureKind.NO_RESOURCE

    @property
    def remedy(self) -> str:
        """Return what the user can do if the cluster is the cause; empty if the job is."""
        return _REMEDIES.get(self, "")


_REMEDIES = {
    FailureKind.SPARK_LOST: "the job lost its Spark driver: `understudy status` shows which one was replaced and why, "
    "taskmanager-*-spark.log of the cluster what Spark said; then submit the job again",
    FailureKind.TASK_EXECUTOR_LOST: "the job lost its TaskExecutor: `understudy status` shows those that there are, "
    "taskmanager-*.log of the cluster why one went; then submit the job again",
    FailureKind.NO_RESOURCE: "the cluster had no slot for the job: `understudy status` shows its slots; cancel a job, "
    "or start more TaskExecutors",
}


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """A failure in the form that travels and is kept (Flink's `ErrorInfo`, `SerializedThrowable`).

    Args:
        kind: its kind.
        type: name of the exception's type, e.g. ``ZeroDivisionError``.
        message: the exception's text.
        traceback: the user's own traceback, or empty.
        task: name of the task, or empty for the job as a whole.
        timestamp_ms: when, in milliseconds since the epoch.
        lost_result: for RESULT_LOST: the vertex whose materialised result is lost and must be computed again.
        exit_status: exit status of a script that called `sys.exit` or `os._exit`; None for any other failure.
    """

    kind: FailureKind
    type: str
    message: str
    traceback: str = ""
    task: str = ""
    timestamp_ms: int = 0
    lost_result: JobVertexID | None = None
    exit_status: int | None = None

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type

    @property
    def cause(self) -> str:
        """Return the failure in one line."""
        return cause_of(str(self))


@dataclass(frozen=True, slots=True)
class Instant:
    """A reading of both clocks, passed to every decision that needs the time.

    Args:
        monotonic_s: seconds that never jump; for delays and time-outs.
        epoch_ms: milliseconds since the epoch; only shown to people.
    """

    monotonic_s: float
    epoch_ms: int

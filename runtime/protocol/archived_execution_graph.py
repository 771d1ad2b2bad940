"""A job's present or final state, to show and to keep (Flink's `ArchivedExecutionGraph` and `JobDetails`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from runtime.ids import ExecutionAttemptID, JobID, JobVertexID
from runtime.job_logs import KeptLog
from runtime.jobgraph.job_graph import JobKind, VertexRole
from runtime.protocol.checkpoint_statistics import CheckpointStatsSnapshot
from runtime.protocol.descriptor import ResultPartitionInfo, SparkWork, VertexProgress
from runtime.protocol.execution_state import ErrorInfo, ExecutionState, JobStatus
from runtime.protocol.rescales import Advice, Rescale
from runtime.protocol.streaming_query import (
    OperatorBackPressureStats,
    QueryHistory,
    StreamingQuery,
    back_pressure_stats,
)

STANDS_BY = "the end of the job in whose place it starts"
"""`TaskInfo.waiting_for` of a task that runs, and whose code waits at the start of its first streaming query."""


@dataclass(frozen=True, slots=True)
class AttemptInfo:
    """One attempt of a task.

    Args:
        attempt_id: its id.
        number: from 0.
        state: its state.
        task_executor: resource id of the TaskExecutor that runs or ran it; empty before it had a slot.
        timestamps: when it entered each of its states, by the state's name, in milliseconds since the epoch.
        error: why it failed.
        exit_status: of its task process, negative for a signal; None while it runs or when it is not known.
        logs: its kept logs; none while it runs, or when they could not be uploaded.
        partitions: the results that it has materialised; released when no task needs them any more.
        queries: its active streaming queries. An attempt that has ended has all its queries here, as last reported.
        spark: its work in Spark; None before it ran, or where that is not known.
    """

    attempt_id: ExecutionAttemptID
    number: int
    state: ExecutionState
    task_executor: str
    timestamps: dict[str, int]
    error: ErrorInfo | None
    exit_status: int | None
    logs: tuple[KeptLog, ...] = ()
    partitions: tuple[ResultPartitionInfo, ...] = ()
    queries: tuple[StreamingQuery, ...] = ()
    spark: SparkWork | None = None

    @property
    def back_pressure(self) -> OperatorBackPressureStats | None:
        """Return the back pressure of its worst query; None where it is unknown, or the attempt has ended."""
        return None if self.state.is_terminal else back_pressure_stats(self.number, self.queries)

    @property
    def end_ms(self) -> int | None:
        """Return when it ended, in milliseconds since the epoch; None while it has not."""
        return self.timestamps[self.state.value] if self.state.is_terminal else None


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """A task with all its attempts, the current one last.

    Args:
        key: `runtime.jobgraph.topology.Chain.key`.
        name: of the chain.
        vertices: of the chain.
        attempts: at least one.
        waiting_for: the reason why it does not run yet, as text; empty if there is none. `STANDS_BY` while it runs.
    """

    key: JobVertexID
    name: str
    vertices: tuple[JobVertexID, ...]
    attempts: tuple[AttemptInfo, ...]
    waiting_for: str

    @property
    def state(self) -> ExecutionState:
        """Return the state of the current attempt."""
        return self.attempts[-1].state


@dataclass(frozen=True, slots=True)
class VertexInfo:
    """A vertex: its place in the plan, its state (its task's), and Spark's counts of the current attempt."""

    id: JobVertexID
    name: str
    role: VertexRole
    task: JobVertexID
    state: ExecutionState
    inputs: tuple[JobVertexID, ...]
    progress: VertexProgress


@dataclass(frozen=True, slots=True)
class JobDetails:
    """A job in one line of a list (Flink's `JobDetails`).

    Args:
        job_id: of the job.
        name: of the job.
        kind: script or pipeline.
        status: its state.
        start_ms: when it was accepted, in milliseconds since the epoch.
        end_ms: when it ended; None while it has not.
        tasks_per_state: number of tasks in each state, by the state's name; only states that occur.
        tasks_total: number of its tasks.
        error: why it failed, in one line; empty otherwise.
        streams: as in `ArchivedExecutionGraph`.
        submitter: as in `JobGraph`.
        is_function: as in `JobGraph`.
        owner: as in `JobGraph`.
        waiting_for: what its next task waits for, as text, with a file of queues or with users; empty if it waits for
            no slot.
    """

    job_id: JobID
    name: str
    kind: JobKind
    status: JobStatus
    start_ms: int
    end_ms: int | None
    tasks_per_state: dict[str, int]
    tasks_total: int
    error: str
    streams: bool = False
    submitter: str = ""
    is_function: bool = False
    owner: str = ""
    waiting_for: str = ""


class ApplicationStatus(Enum):
    """The outcome of a job, or the reason why a cluster is shut down (Flink's `ApplicationStatus`)."""

    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"
    UNKNOWN = "UNKNOWN"

    @classmethod
    def of(cls, status: JobStatus) -> ApplicationStatus:
        """Return the outcome that the state of an ended job stands for; UNKNOWN for any other state."""
        ends = {
            JobStatus.FINISHED: cls.SUCCEEDED,
            JobStatus.FAILED: cls.FAILED,
            JobStatus.CANCELED: cls.CANCELED,
        }
        return ends.get(status, cls.UNKNOWN)


@dataclass(frozen=True, slots=True)
class JobResult:
    """The outcome of a job (Flink's `JobResult`).

    Args:
        job_id: of the job.
        status: the outcome as Flink's client sees it.
        net_runtime_ms: milliseconds from its acceptance to its end.
        failure: the error that made the job fail; None otherwise.
        failure_counts: as in `ArchivedExecutionGraph`.
    """

    job_id: JobID
    status: ApplicationStatus
    net_runtime_ms: int
    failure: ErrorInfo | None
    failure_counts: dict[str, int]


@dataclass(frozen=True, slots=True)
class ArchivedExecutionGraph:
    """Everything that is shown and kept of a job, running or ended.

    Args:
        job_id: of the job.
        name: of the job.
        kind: script or pipeline.
        status: its state.
        timestamps: when it last entered each of its states, by the state's name, in milliseconds since the epoch.
        tasks: each after those that it reads from.
        vertices: in topological order.
        failure: the error that made the job fail; None otherwise.
        failure_history: the last failures, also those that led to a restart; the newest last.
        restarts: how often some of its tasks were restarted.
        restart_strategy: its description, as text.
        failure_counts: number of failures of each kind, by the kind's name; only kinds that occurred. Failures that led
            to a restart count too. Failures with one cause, such as all tasks of a lost TaskExecutor, count once.
        checkpoints: the figures of its checkpoints.
        submitter: as in `JobGraph`.
        cancelled_because: why the cluster cancelled it; empty where a user cancelled it, or it was not cancelled.
        query_histories: the past figures of its streaming queries; only of a job that is over.
        is_function: as in `JobGraph`.
        owner: as in `JobGraph`.
        upgraded_from: as in `JobGraph`.
        trace_id: of its OpenTelemetry trace; empty if it has none.
        rescales: the last changes of the number of partitions of its state, the oldest first.
        advice: the autoscaler's last decision about each of its queries; empty where it has not decided, in answers of
            a JobMaster, and of a job that is over.
    """

    job_id: JobID
    name: str
    kind: JobKind
    status: JobStatus
    timestamps: dict[str, int]
    tasks: tuple[TaskInfo, ...]
    vertices: tuple[VertexInfo, ...]
    failure: ErrorInfo | None
    failure_history: tuple[ErrorInfo, ...]
    restarts: int
    restart_strategy: str
    failure_counts: dict[str, int] = field(default_factory=dict)
    checkpoints: CheckpointStatsSnapshot = field(default_factory=CheckpointStatsSnapshot)
    submitter: str = ""
    cancelled_because: str = ""
    query_histories: tuple[QueryHistory, ...] = ()
    is_function: bool = False
    owner: str = ""
    upgraded_from: str = ""
    trace_id: str = ""
    rescales: tuple[Rescale, ...] = ()
    advice: tuple[Advice, ...] = ()

    @property
    def start_ms(self) -> int:
        """Return when it was accepted, in milliseconds since the epoch."""
        return min(self.timestamps.values())

    @property
    def end_ms(self) -> int | None:
        """Return when it ended or was suspended, in milliseconds since the epoch; None while it has not."""
        return self.timestamps.get(self.status.value) if self.status.is_terminal else None

    @property
    def streams(self) -> bool:
        """Return whether one of its attempts has or had a streaming query."""
        return any(attempt.queries for task in self.tasks for attempt in task.attempts)

    def result(self) -> JobResult:
        """Return the outcome of the job; call it only for one that is over."""
        ran_ms = (self.end_ms or self.start_ms) - self.start_ms
        return JobResult(self.job_id, ApplicationStatus.of(self.status), ran_ms, self.failure, self.failure_counts)

    def details(self) -> JobDetails:
        """Return the job as one line of a list."""
        per_state: dict[str, int] = {}
        for task in self.tasks:
            per_state[task.state.value] = per_state.get(task.state.value, 0) + 1
        return JobDetails(
            self.job_id,
            self.name,
            self.kind,
            self.status,
            self.start_ms,
            self.end_ms,
            per_state,
            len(self.tasks),
            "" if self.failure is None else self.failure.cause,
            self.streams,
            self.submitter,
            self.is_function,
            self.owner,
        )

"""A job as it stands or as it ended, to be shown and kept (Flink's `ArchivedExecutionGraph` and `JobDetails`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from runtime.ids import ExecutionAttemptID, JobID, JobVertexID
from runtime.job_logs import KeptLog
from runtime.jobgraph.job_graph import JobKind, VertexRole
from runtime.protocol.checkpoint_statistics import CheckpointStatsSnapshot
from runtime.protocol.descriptor import ResultPartitionInfo, VertexProgress
from runtime.protocol.execution_state import ErrorInfo, ExecutionState, JobStatus
from runtime.protocol.streaming_query import (
    OperatorBackPressureStats,
    QueryHistory,
    StreamingQuery,
    back_pressure_stats,
)


@dataclass(frozen=True, slots=True)
class AttemptInfo:
    """One attempt of a task.

    Args:
        attempt_id: its id.
        number: from 0.
        state: its state.
        task_executor: resource id of where it runs or ran; empty before it had a slot.
        timestamps: when it entered each of its states, by the state's name, in milliseconds since the epoch.
        error: why it failed.
        exit_status: of its task process, negative for a signal; None while it runs or when it is not known.
        logs: what is kept of its logs; none while it runs, or when they could not be put.
        partitions: the results that it has materialised; they are released when nobody needs them any more.
        queries: its active streaming queries; of an attempt that has ended all that it has had, as they were seen last.
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

    @property
    def back_pressure(self) -> OperatorBackPressureStats | None:
        """Of its worst query; None where nothing is known, or it has ended."""
        return None if self.state.is_terminal else back_pressure_stats(self.number, self.queries)

    @property
    def end_ms(self) -> int | None:
        """When it ended, in milliseconds since the epoch; None while it has not."""
        return self.timestamps[self.state.value] if self.state.is_terminal else None


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """A task with all its attempts, the present one last.

    Args:
        key: `runtime.jobgraph.topology.Chain.key`.
        name: of the chain.
        vertices: of the chain.
        attempts: at least one.
        waiting_for: what keeps it from running, in words; empty if nothing does.
    """

    key: JobVertexID
    name: str
    vertices: tuple[JobVertexID, ...]
    attempts: tuple[AttemptInfo, ...]
    waiting_for: str

    @property
    def state(self) -> ExecutionState:
        """The state of the present attempt."""
        return self.attempts[-1].state


@dataclass(frozen=True, slots=True)
class VertexInfo:
    """A vertex: its place in the plan, its state (its task's), and Spark's counts of the present attempt."""

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
        tasks_per_state: how many tasks are in each state, by the state's name; only states that occur.
        tasks_total: how many tasks it has.
        error: why it failed, in one line; empty otherwise.
        streams: as in `ArchivedExecutionGraph`.
        submitter: as in `JobGraph`.
        is_function: as in `JobGraph`.
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


class ApplicationStatus(Enum):
    """How a job ended, or why a cluster is shut down (Flink's `ApplicationStatus`)."""

    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"
    UNKNOWN = "UNKNOWN"

    @classmethod
    def of(cls, status: JobStatus) -> ApplicationStatus:
        """What the state of a job that is over says; UNKNOWN for any other."""
        ends = {
            JobStatus.FINISHED: cls.SUCCEEDED,
            JobStatus.FAILED: cls.FAILED,
            JobStatus.CANCELED: cls.CANCELED,
        }
        return ends.get(status, cls.UNKNOWN)


@dataclass(frozen=True, slots=True)
class JobResult:
    """How a job ended (Flink's `JobResult`).

    Args:
        job_id: of the job.
        status: the same as Flink's client sees it.
        net_runtime_ms: milliseconds from its acceptance to its end.
        failure: what made the job fail; None otherwise.
        failure_counts: as in `ArchivedExecutionGraph`.
    """

    job_id: JobID
    status: ApplicationStatus
    net_runtime_ms: int
    failure: ErrorInfo | None
    failure_counts: dict[str, int]


@dataclass(frozen=True, slots=True)
class ArchivedExecutionGraph:
    """All there is to be said of a job; made of a running one as well as of one that ended.

    Args:
        job_id: of the job.
        name: of the job.
        kind: script or pipeline.
        status: its state.
        timestamps: when it last entered each of its states, by the state's name, in milliseconds since the epoch.
        tasks: in an order in which each comes after those it reads from.
        vertices: in topological order.
        failure: what made the job fail; None otherwise.
        failure_history: the last failures, restarted ones too, the newest last.
        restarts: how often some of its tasks were restarted.
        restart_strategy: in words.
        failure_counts: how many failures of each kind there were, restarted ones too, by the kind's name; only kinds
            that occurred. What fails for one cause, such as all tasks of a lost TaskExecutor, is one failure.
        checkpoints: the figures of its checkpoints.
        submitter: as in `JobGraph`.
        cancelled_because: why the cluster cancelled it; empty where somebody asked for it, or it was not cancelled.
        query_histories: the past figures of its streaming queries; only of a job that is over.
        is_function: as in `JobGraph`.
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

    @property
    def start_ms(self) -> int:
        """When it was accepted, in milliseconds since the epoch."""
        return min(self.timestamps.values())

    @property
    def end_ms(self) -> int | None:
        """When it ended, in milliseconds since the epoch; None while it has not."""
        return self.timestamps[self.status.value] if self.status.is_globally_terminal else None

    @property
    def streams(self) -> bool:
        """Whether a streaming query was seen in one of its attempts."""
        return any(attempt.queries for task in self.tasks for attempt in task.attempts)

    def result(self) -> JobResult:
        """How the job ended; only of one that is over."""
        ran_ms = (self.end_ms or self.start_ms) - self.start_ms
        return JobResult(self.job_id, ApplicationStatus.of(self.status), ran_ms, self.failure, self.failure_counts)

    def details(self) -> JobDetails:
        """The job in one line of a list."""
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
        )

"""Values that travel between the components and are nobody's state: registrations, reports, overviews."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from actors.rpc.gateway import FencingToken
from blob.gateway import BlobAddress
from runtime.ids import ExecutionAttemptID, InstanceID, JobID, ResourceID
from runtime.protocol.archived_execution_graph import JobDetails
from runtime.protocol.descriptor import TaskProgress
from runtime.protocol.diagnostics import TaskManagerMetrics
from runtime.protocol.execution_state import JobStatus
from runtime.protocol.slots import SlotCounts, SlotReport, SlotStatus


@dataclass(frozen=True, slots=True)
class LeaderAddress:
    """A leader's address together with the leadership under which it may be called."""

    address: str
    token: FencingToken


@dataclass(frozen=True, slots=True)
class TaskExecutorRegistration:
    """What a TaskExecutor says of itself when it registers.

    Args:
        resource_id: its name, e.g. ``tm-1``; stays the same when its process is replaced.
        address: where its gateway is reached.
        pid: its process.
        slots: number of slots.
        spark_version: version of Spark.
        java_version: version of its Java.
        spark_master: master URL of its Spark driver, e.g. ``local[2]``.
        spark_pid: process of its Spark driver.
        memory_bytes: heap limit of its Spark driver.
        version: of Understudy.
        shared_directory: the cluster's mark in ``cluster.shared-dir``, as it sees it; empty where there is none.
        spark_loss: when and why its Spark driver was lost last; empty where none was.
    """

    resource_id: ResourceID
    address: str
    pid: int
    slots: int
    spark_version: str
    java_version: str
    spark_master: str
    spark_pid: int
    memory_bytes: int
    version: str = ""
    shared_directory: str = ""
    spark_loss: str = ""


@dataclass(frozen=True, slots=True)
class RegistrationSuccess:
    """The ResourceManager's answer: the id of this registration, where the cluster's blobs are, and which system's
    receptionist it is to be listed at."""

    instance_id: InstanceID
    blob: BlobAddress
    system: str


@dataclass(frozen=True, slots=True)
class TaskManagerView:
    """A registered TaskExecutor as the listing commands show it."""

    registration: TaskExecutorRegistration
    instance_id: InstanceID
    free_slots: int
    registered_ms: int
    last_heartbeat_ms: int


@dataclass(frozen=True, slots=True)
class ResourceOverview:
    """Counts of the ResourceManager (Flink's `ResourceOverview`)."""

    task_managers: int
    slots: int
    free_slots: int
    pending_requests: int


@dataclass(frozen=True, slots=True)
class TaskExecutorHeartbeat:
    """What a TaskExecutor answers to the ResourceManager's sign of life (Flink's `TaskExecutorHeartbeatPayload`).

    Args:
        slots: what every slot is used for.
        metrics: what it takes of its machine.
    """

    slots: SlotReport
    metrics: TaskManagerMetrics


@dataclass(frozen=True, slots=True)
class JobHeartbeat:
    """What a TaskExecutor answers to a JobMaster's sign of life (Flink's `TaskExecutorToJobManagerHeartbeatPayload`).

    Args:
        executions: the attempts of the job that it holds (Flink's `ExecutionDeploymentReport`).
        progress: how far those are that run, so that a lost report of it costs nothing (Flink's `AccumulatorReport`).
    """

    executions: tuple[ExecutionAttemptID, ...]
    progress: tuple[TaskProgress, ...]


@dataclass(frozen=True, slots=True)
class TaskManagerInfo:
    """All that the ResourceManager knows of a TaskExecutor (Flink's `TaskManagerDetailsInfo`).

    Args:
        registration: what it said of itself.
        instance_id: of its registration.
        slots: how many it has, and how many of them are free or on their way to a job.
        allocations: whose each slot is; one on its way to a job is nobody's yet.
        registered_ms: when it registered, in milliseconds since the epoch.
        last_heartbeat_ms: when it was last heard of.
        metrics: what it took of its machine then; None before its first heartbeat.
    """

    registration: TaskExecutorRegistration
    instance_id: InstanceID
    slots: SlotCounts
    allocations: tuple[SlotStatus, ...]
    registered_ms: int
    last_heartbeat_ms: int
    metrics: TaskManagerMetrics | None


@dataclass(frozen=True, slots=True)
class ClusterOverview:
    """Counts of TaskExecutors, slots and jobs (Flink's `ClusterOverview`).

    Args:
        task_managers: registered TaskExecutors.
        slots: all their slots.
        free_slots: those that nobody has.
        pending_requests: requests for a slot that wait.
        jobs_running: jobs that are not over, the waiting ones too.
        jobs_finished: jobs that are remembered as FINISHED.
        jobs_cancelled: jobs that are remembered as CANCELED.
        jobs_failed: jobs that are remembered as FAILED.
    """

    task_managers: int
    slots: int
    free_slots: int
    pending_requests: int
    jobs_running: int
    jobs_finished: int
    jobs_cancelled: int
    jobs_failed: int

    @classmethod
    def of(cls, resources: ResourceOverview, running: int, ended: Iterable[JobStatus]) -> ClusterOverview:
        """Counts of the ResourceManager's and of the Dispatcher's."""
        counts = Counter(ended)
        return cls(
            resources.task_managers,
            resources.slots,
            resources.free_slots,
            resources.pending_requests,
            running,
            counts[JobStatus.FINISHED],
            counts[JobStatus.CANCELED],
            counts[JobStatus.FAILED],
        )


@dataclass(frozen=True, slots=True)
class MultipleJobsDetails:
    """Jobs in one line each, the newest first (Flink's `MultipleJobsDetails`)."""

    jobs: tuple[JobDetails, ...]


@dataclass(frozen=True, slots=True)
class TaskLog:
    """A log of one task attempt: a TRANSIENT blob, made for whoever asked, or the PERMANENT one that is kept of it.

    Args:
        job_id: the job.
        task: name of the task.
        attempt: number of the attempt, from 0.
        name: ``stdout`` or ``stderr``; of one that has ended also ``taskexecutor`` and ``spark``.
        size: bytes.
        blob_key: text of the blob's key; a permanent one is of `runtime.job_logs.logs_owner`. Empty for an empty log.
        attempt_id: the attempt.
    """

    job_id: JobID
    task: str
    attempt: int
    name: str
    size: int
    blob_key: str
    attempt_id: ExecutionAttemptID


@dataclass(frozen=True, slots=True)
class ProcessView:
    """A process of the cluster as `status` shows it; *leadership* is ``leader``, ``standby`` or empty.

    A worker *is_stopped* when nobody has used it for long: it has no process until requests wait for slots. A web
    endpoint has a *url*.
    """

    name: str
    role: str
    pid: int
    address: str
    restarts: int = 0
    leadership: str = ""
    is_stopped: bool = False
    url: str = ""


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """What a master says of the cluster: itself and the processes that it looks after, and where all masters are."""

    cluster_id: str
    version: str
    address: str
    started_ms: int
    processes: tuple[ProcessView, ...]
    masters: tuple[str, ...] = ()

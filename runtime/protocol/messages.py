"""Values that travel between the components and that none of them keeps as state: registrations, reports, overviews."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from actors.address import ActorAddress
from actors.rpc.gateway import FencingToken
from blob.gateway import BlobAddress
from runtime.feature_level import FIRST, Component, FeatureLevels, Release
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
class JobMasterRegistration:
    """The data with which a JobMaster registers. Earlier releases send and read a `LeaderAddress`, its first fields.

    Args:
        address: address of its gateway.
        token: the leadership under which it may be called.
        owner: name of the user who owns the job; empty if it has none.
        queue: name of the queue that the job asks for; empty for none.
        task_memory_mb: MB of memory that the job asks for each task; None if it does not say.
        task_cpus: processors that it asks for each task, as decimal text; empty if it does not say.
        blob_bytes: bytes of the blobs with its files.
    """

    address: str
    token: FencingToken
    owner: str = ""
    queue: str = ""
    task_memory_mb: int | None = None
    task_cpus: str = ""
    blob_bytes: int = 0

    @property
    def leader(self) -> LeaderAddress:
        """Return its address alone."""
        return LeaderAddress(self.address, self.token)


@dataclass(frozen=True, slots=True)
class TaskExecutorRegistration:
    """The data with which a TaskExecutor registers.

    Args:
        resource_id: its name, e.g. ``tm-1``; stays the same when its process is replaced.
        address: address of its gateway.
        pid: its process id.
        slots: number of slots.
        spark_version: version of Spark.
        java_version: version of its Java.
        spark_master: master URL of its Spark driver, e.g. ``local[2]``.
        spark_pid: process id of its Spark driver.
        memory_bytes: heap limit of its Spark driver.
        version: of Understudy.
        shared_directory: the cluster's mark that it reads in ``cluster.shared-dir``; empty where there is none.
        spark_loss: when and why its last Spark driver was lost; empty where none was lost.
        levels: the feature levels that it supports.
        serves_one_user: whether it gives its slots to the jobs of one user at a time, and renews its Spark driver
            before it serves another (``security.users.isolation``). Earlier releases do neither.
        predecessors: addresses of the TaskExecutors of its name whose tasks it has adopted.
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
    levels: FeatureLevels = FeatureLevels()  # noqa: RUF009  # frozen
    serves_one_user: bool = False
    predecessors: tuple[str, ...] = ()

    @property
    def component(self) -> Component:
        """Return its name and release."""
        return Component(f"TaskExecutor {self.resource_id}", Release(self.version, self.levels))


@dataclass(frozen=True, slots=True)
class RegistrationSuccess:
    """The ResourceManager's answer to a registration.

    It holds the id of the registration, the address of the cluster's blobs, and the actor system at whose receptionist
    the TaskExecutor lists itself.
    """

    instance_id: InstanceID
    blob: BlobAddress
    system: str


@dataclass(frozen=True, slots=True)
class TaskManagerView:
    """A registered TaskExecutor for the listing commands.

    Args:
        registration: the data with which it registered.
        instance_id: of its registration.
        free_slots: number of its free slots.
        registered_ms: when it registered, in milliseconds since the epoch.
        last_heartbeat_ms: when its last heartbeat arrived, in milliseconds since the epoch.
        user: the user whose jobs alone it serves at present; empty if there is none.
    """

    registration: TaskExecutorRegistration
    instance_id: InstanceID
    free_slots: int
    registered_ms: int
    last_heartbeat_ms: int
    user: str = ""


@dataclass(frozen=True, slots=True)
class ResourceOverview:
    """Counts of the ResourceManager (Flink's `ResourceOverview`)."""

    task_managers: int
    slots: int
    free_slots: int
    pending_requests: int


@dataclass(frozen=True, slots=True)
class TaskExecutorHeartbeat:
    """A TaskExecutor's answer to a heartbeat of the ResourceManager (Flink's `TaskExecutorHeartbeatPayload`).

    Args:
        slots: the use of every slot.
        metrics: the resources that it takes of its machine.
    """

    slots: SlotReport
    metrics: TaskManagerMetrics


@dataclass(frozen=True, slots=True)
class JobHeartbeat:
    """A TaskExecutor's answer to a heartbeat of a JobMaster (Flink's `TaskExecutorToJobManagerHeartbeatPayload`).

    Args:
        executions: the attempts of the job that it holds (Flink's `ExecutionDeploymentReport`).
        progress: the progress of running attempts, to make up for lost reports (Flink's `AccumulatorReport`).
    """

    executions: tuple[ExecutionAttemptID, ...]
    progress: tuple[TaskProgress, ...]


@dataclass(frozen=True, slots=True)
class TaskManagerInfo:
    """Everything that the ResourceManager knows of a TaskExecutor (Flink's `TaskManagerDetailsInfo`).

    Args:
        registration: the data with which it registered.
        instance_id: of its registration.
        slots: numbers of its slots: in all, free, and on their way to a job.
        allocations: the job and allocation of each slot; a slot on its way to a job has none yet.
        registered_ms: when it registered, in milliseconds since the epoch.
        last_heartbeat_ms: when its last heartbeat arrived, in milliseconds since the epoch.
        metrics: the resources that it took of its machine then; None before its first heartbeat.
        user: the user whose jobs alone it serves at present; empty if there is none.
    """

    registration: TaskExecutorRegistration
    instance_id: InstanceID
    slots: SlotCounts
    allocations: tuple[SlotStatus, ...]
    registered_ms: int
    last_heartbeat_ms: int
    metrics: TaskManagerMetrics | None
    user: str = ""


@dataclass(frozen=True, slots=True)
class ClusterOverview:
    """Counts of TaskExecutors, slots and jobs (Flink's `ClusterOverview`).

    Args:
        task_managers: registered TaskExecutors.
        slots: all their slots.
        free_slots: slots that no job has.
        pending_requests: requests that wait for a slot.
        jobs_running: jobs that are not over, also those that wait.
        jobs_finished: jobs that are remembered as FINISHED.
        jobs_cancelled: jobs that are remembered as CANCELED.
        jobs_failed: jobs that are remembered as FAILED.
        feature_level: of the cluster.
        newest_feature_level: the newest that the leading Dispatcher supports.
        savepoint_dir: directory of savepoints that are requested without one; empty: a Dispatcher of release 0.1.0.
    """

    task_managers: int
    slots: int
    free_slots: int
    pending_requests: int
    jobs_running: int
    jobs_finished: int
    jobs_cancelled: int
    jobs_failed: int
    feature_level: int = FIRST
    newest_feature_level: int = FIRST
    savepoint_dir: str = ""

    @classmethod
    def of(
        cls,
        resources: ResourceOverview,
        running: int,
        ended: Iterable[JobStatus],
        feature_level: int = FIRST,
        newest_feature_level: int = FIRST,
        savepoint_dir: str = "",
    ) -> ClusterOverview:
        """Return the counts of the ResourceManager and of the Dispatcher as one overview."""
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
            feature_level,
            newest_feature_level,
            savepoint_dir,
        )


@dataclass(frozen=True, slots=True)
class FeatureLevelChange:
    """The outcome of a request to raise the cluster's feature level.

    Args:
        before: the level before the request.
        level: the level now; the same, if all components support no higher one.
        held_by: if some components support a higher one: those that do not, and what they support.
    """

    before: int
    level: int
    held_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MultipleJobsDetails:
    """Jobs in one line each, the newest first (Flink's `MultipleJobsDetails`)."""

    jobs: tuple[JobDetails, ...]


@dataclass(frozen=True, slots=True)
class TaskLog:
    """A log of one task attempt: a TRANSIENT blob, made for the requester, or the kept PERMANENT one.

    Args:
        job_id: the job.
        task: name of the task.
        attempt: number of the attempt, from 0.
        name: ``stdout`` or ``stderr``; an attempt that has ended also has ``taskexecutor`` and ``spark``.
        size: bytes.
        blob_key: text of the blob's key; `runtime.job_logs.logs_owner` owns a permanent one. Empty for an empty log.
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
    """A process of the cluster for `status`; *leadership* is ``leader``, ``standby`` or empty.

    A worker that no job has used for long *is_stopped*: it has no process until requests wait for slots. A web
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
    """A master's report on the cluster: itself, the processes that it looks after, and the addresses of all masters.

    *levels* are the feature levels that the master's release supports.
    """

    cluster_id: str
    version: str
    address: str
    started_ms: int
    processes: tuple[ProcessView, ...]
    masters: tuple[str, ...] = ()
    levels: FeatureLevels = FeatureLevels()  # noqa: RUF009  # frozen

    @property
    def component(self) -> Component:
        """Return the master's name, by the address of its system, and its release."""
        system = ActorAddress.parse(self.address)
        return Component(f"the master at {system.host}:{system.port}", Release(self.version, self.levels))

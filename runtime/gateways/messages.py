"""Values that travel between the components and are nobody's state: registrations, reports, overviews."""

from __future__ import annotations

from dataclasses import dataclass

from actors.rpc.gateway import FencingToken
from blob.gateway import BlobAddress
from runtime.ids import ExecutionAttemptID, InstanceID, JobID, ResourceID


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
class ComponentLog:
    """A log of a TaskExecutor or of what belongs to it, uploaded as a TRANSIENT blob for whoever asked.

    Args:
        resource_id: the TaskExecutor.
        name: ``taskexecutor`` or ``spark``, its Spark driver's.
        size: bytes of the log.
        blob_key: text of the transient blob's key; of a long log it holds the head and the tail.
    """

    resource_id: ResourceID
    name: str
    size: int
    blob_key: str


@dataclass(frozen=True, slots=True)
class ProcessView:
    """A process of the cluster as `status` shows it; *leadership* is ``leader``, ``standby`` or empty."""

    name: str
    role: str
    pid: int
    address: str
    restarts: int = 0
    leadership: str = ""


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """What a master says of the cluster: itself and the processes that it looks after, and where all masters are."""

    cluster_id: str
    version: str
    address: str
    started_ms: int
    processes: tuple[ProcessView, ...]
    masters: tuple[str, ...] = ()

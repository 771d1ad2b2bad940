"""How a task's descriptor travels: what is the same for all tasks of the job apart from what is an attempt's own.

Flink's `TaskDeploymentDescriptor` does so with its serialized `JobInformation` and `TaskInformation`: the part that all
tasks share is the same bytes in every deployment, so that it is uploaded once where it is large.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from blob.offload import Inline, Offloaded
from runtime.checkpoint.messages import JobManagerTaskRestore
from runtime.ids import AllocationID, ExecutionAttemptID, JobID, JobVertexID
from runtime.jobgraph.codec import decode, encode
from runtime.jobgraph.job_graph import Artifact, JobKind
from runtime.jobmaster.descriptor import TaskDeploymentDescriptor, VertexDescriptor


@dataclass(frozen=True, slots=True)
class JobInformation:
    """What is the same in every deployment of a job, whichever JobMaster makes it; fields as in the descriptor."""

    job_id: JobID
    job_name: str
    kind: JobKind
    artifacts: tuple[Artifact, ...]
    argv: tuple[str, ...]
    parameters: dict[str, Any]
    spark_driver: str = ""


@dataclass(frozen=True, slots=True)
class AttemptInformation:
    """What is one attempt's own; fields as in the descriptor."""

    attempt_id: ExecutionAttemptID
    attempt_number: int
    allocation_id: AllocationID
    task_key: JobVertexID
    task_name: str
    vertices: tuple[VertexDescriptor, ...]
    jobmaster_address: str
    memory_bytes: int
    restore: JobManagerTaskRestore | None


@dataclass(frozen=True, slots=True)
class TaskDeployment:
    """A descriptor on its way.

    Args:
        job: the encoded `JobInformation`, as a blob when it is large.
        attempt: the encoded `AttemptInformation`, as a blob when it is large.
    """

    job: Inline | Offloaded
    attempt: Inline | Offloaded


def pack(descriptor: TaskDeploymentDescriptor) -> tuple[bytes, bytes]:
    """The two parts of a descriptor, encoded: the job's, and the attempt's."""
    job = JobInformation(
        descriptor.job_id,
        descriptor.job_name,
        descriptor.kind,
        descriptor.artifacts,
        descriptor.argv,
        descriptor.parameters,
        descriptor.spark_driver,
    )
    attempt = AttemptInformation(
        descriptor.attempt_id,
        descriptor.attempt_number,
        descriptor.allocation_id,
        descriptor.task_key,
        descriptor.task_name,
        descriptor.vertices,
        descriptor.jobmaster_address,
        descriptor.memory_bytes,
        descriptor.restore,
    )
    return encode(job), encode(attempt)


def unpack(job: bytes, attempt: bytes) -> TaskDeploymentDescriptor:
    """The descriptor that `pack` was given; raises WireError where the bytes are none."""
    shared, own = decode(job, JobInformation), decode(attempt, AttemptInformation)
    return TaskDeploymentDescriptor(
        job_id=shared.job_id,
        job_name=shared.job_name,
        kind=shared.kind,
        attempt_id=own.attempt_id,
        attempt_number=own.attempt_number,
        allocation_id=own.allocation_id,
        task_key=own.task_key,
        task_name=own.task_name,
        vertices=own.vertices,
        artifacts=shared.artifacts,
        argv=shared.argv,
        parameters=shared.parameters,
        jobmaster_address=own.jobmaster_address,
        memory_bytes=own.memory_bytes,
        restore=own.restore,
        spark_driver=shared.spark_driver,
    )

"""What the ExecutionGraph tells the JobMaster to do; the JobMaster does it and reports back by the graph's events."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.ids import ExecutionAttemptID, ResourceID, RestartID, SlotRequestID
from runtime.jobmaster.descriptor import TaskDeploymentDescriptor
from runtime.jobmaster.execution_state import ErrorInfo, JobStatus
from runtime.jobmaster.slot_pool import AllocatedSlot
from runtime.resourcemanager.slots import TaskManagerLocation


@dataclass(frozen=True, slots=True)
class RequestSlot:
    """Get a slot from the SlotPool, near *preferred_locations* if it can be had at once; answer with `slot_assigned` or
    `slot_unavailable`."""

    request_id: SlotRequestID
    task_name: str
    preferred_locations: tuple[TaskManagerLocation, ...] = ()


@dataclass(frozen=True, slots=True)
class CancelSlotRequest:
    """The slot is no longer needed: `SlotPool.cancel_request`."""

    request_id: SlotRequestID


@dataclass(frozen=True, slots=True)
class DeployTask:
    """Submit the task to the slot's TaskExecutor; a refusal is answered with `task_failed`."""

    slot: AllocatedSlot
    descriptor: TaskDeploymentDescriptor


@dataclass(frozen=True, slots=True)
class CancelTask:
    """Cancel the attempt at its TaskExecutor, after any `DeployTask` of it has been delivered.

    A TaskExecutor that does not know the attempt must be answered with a report of CANCELED.
    """

    attempt_id: ExecutionAttemptID
    resource_id: ResourceID


@dataclass(frozen=True, slots=True)
class ReleaseSlot:
    """The task that this request was made for is over, or no longer wants its slot: `SlotPool.release_slot`."""

    request_id: SlotRequestID


@dataclass(frozen=True, slots=True)
class ScheduleRestart:
    """Call `restart_due` after *delay_s* seconds."""

    restart_id: RestartID
    delay_s: float
    task_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReleasePartitions:
    """Remove materialised results that nobody needs any more, once it is written down who has read them."""

    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JobReachedTerminal:
    """The job is over (or SUSPENDED); nothing of it runs unless it is SUSPENDED. Told once."""

    status: JobStatus
    error: ErrorInfo | None


Instruction = (
    RequestSlot
    | CancelSlotRequest
    | DeployTask
    | CancelTask
    | ReleaseSlot
    | ScheduleRestart
    | ReleasePartitions
    | JobReachedTerminal
)

"""Slots in reports and requests, their locations, and the `SlotManager`'s instructions to its ResourceManager. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import IntEnum
from urllib.parse import urlsplit

from runtime.ids import AllocationID, InstanceID, JobID, ResourceID, SlotID


@dataclass(frozen=True, slots=True)
class TaskManagerLocation:
    """A TaskExecutor and the host of its address (Flink's `TaskManagerLocation`)."""

    resource_id: ResourceID
    host: str

    @classmethod
    def of(cls, resource_id: ResourceID, address: str) -> TaskManagerLocation:
        """Return the location of a TaskExecutor whose gateway has that address.

        An address without a host is never HOST_LOCAL to another.
        """
        return cls(resource_id, urlsplit(address).hostname or "")


class Locality(IntEnum):
    """Distance of a slot from the data that its task reads; the greater, the nearer.

    After Flink's `LocationPreferenceSlotSelectionStrategy`.
    """

    NON_LOCAL = 0
    HOST_LOCAL = 1
    LOCAL = 2


def locality_of(candidate: TaskManagerLocation, preferred: Collection[TaskManagerLocation]) -> Locality:
    """Return the locality of *candidate* to the nearest of *preferred*; NON_LOCAL where nothing is preferred."""
    if any(candidate.resource_id == location.resource_id for location in preferred):
        return Locality.LOCAL
    if candidate.host and any(candidate.host == location.host for location in preferred):
        return Locality.HOST_LOCAL
    return Locality.NON_LOCAL


@dataclass(frozen=True, slots=True)
class SlotStatus:
    """One slot in a TaskExecutor's report, with its job and allocation; both are None for a free slot."""

    slot_id: SlotID
    job_id: JobID | None = None
    allocation_id: AllocationID | None = None


@dataclass(frozen=True, slots=True)
class SlotReport:
    """All slots of a TaskExecutor.

    Args:
        slots: the status of each.
        user: the owner of the jobs that its Spark driver has served, empty for jobs without an owner; None if it has
            served no job, or if the TaskExecutor does not serve one user at a time.
    """

    slots: tuple[SlotStatus, ...]
    user: str | None = None


@dataclass(frozen=True, slots=True)
class SlotRequest:
    """A job's request for one slot (Flink's `SlotRequest`): idempotent by its allocation id.

    Args:
        job_id: the job.
        allocation_id: of the requested slot.
        job_name: for display.
        task_name: for display.
        priority: of the job; requests of a higher one are served first.
        preferred_locations: the TaskExecutors that made the results that the task reads.
    """

    job_id: JobID
    allocation_id: AllocationID
    job_name: str
    task_name: str
    priority: int = 0
    preferred_locations: tuple[TaskManagerLocation, ...] = ()


@dataclass(frozen=True, slots=True)
class AllocateSlot:
    """Request that the TaskExecutor gives the slot to the job, and report the outcome to the `SlotManager`."""

    instance_id: InstanceID
    address: str
    slot_id: SlotID
    request: SlotRequest


@dataclass(frozen=True, slots=True)
class FailRequest:
    """Report to the JobMaster that it will not get this slot; *reason* is for the user."""

    request: SlotRequest
    reason: str


@dataclass(frozen=True, slots=True)
class SlotGone:
    """Report to the JobMaster that a slot that was allocated to the job no longer is.

    Its TaskExecutor was lost, or freed it, perhaps before it offered it to the JobMaster.
    """

    job_id: JobID
    allocation_id: AllocationID


@dataclass(frozen=True, slots=True)
class RenewDriver:
    """Request that an idle TaskExecutor starts again with another Spark driver, and report a failure to do so.

    Args:
        instance_id: of its registration.
        reason: for its log.
    """

    instance_id: InstanceID
    reason: str


SlotManagerInstruction = AllocateSlot | FailRequest | SlotGone | RenewDriver


@dataclass(frozen=True, slots=True)
class SlotCounts:
    """Slots of one TaskExecutor, or of all: registered = free + pending (on their way to a job) + allocated."""

    registered: int = 0
    free: int = 0
    pending: int = 0

    @property
    def allocated(self) -> int:
        """Return the number of slots that are allocated to jobs."""
        return self.registered - self.free - self.pending

"""Table of the slots of a TaskExecutor and the jobs that hold them (Flink's `TaskSlotTable`). Pure."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.ids import AllocationID, JobID, ResourceID, SlotID
from runtime.protocol.descriptor import SlotOffer
from runtime.protocol.errors import SlotNotAllocatedError, SlotOccupiedError
from runtime.protocol.slots import SlotReport, SlotStatus

UNKNOWN_USER = "\0"
"""Stands for a user whose name is not known; names of users are printable."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """A slot that a job holds."""

    allocation_id: AllocationID
    job_id: JobID
    slot_id: SlotID


class TaskSlotTable:
    """The slots of one TaskExecutor.

    Args:
        resource_id: the TaskExecutor's.
        slots: how many there are.
        user: the owner of the jobs that the Spark driver has served before, as in the attribute.

    Attributes:
        user: the owner of the jobs that have had a slot, empty for jobs without an owner; None before the first job,
            and `UNKNOWN_USER` after one whose owner was not named. Another user needs another Spark driver.
    """

    def __init__(self, resource_id: ResourceID, slots: int, user: str | None = None) -> None:
        self.resource_id = resource_id
        self._slot_ids = tuple(SlotID(resource_id, index) for index in range(slots))
        self._allocations: dict[SlotID, Allocation] = {}
        self.user = user

    @property
    def all(self) -> tuple[Allocation, ...]:
        """All slots that jobs hold."""
        return tuple(self._allocations.values())

    @property
    def is_used(self) -> bool:
        """Return whether a job holds a slot."""
        return bool(self._allocations)

    def allocate(self, slot_id: SlotID, job_id: JobID, allocation_id: AllocationID, owner: str | None = None) -> bool:
        """Give a slot to a job; return False if the same allocation has it already.

        Args:
            slot_id: the slot.
            job_id: the job.
            allocation_id: of the request.
            owner: of the job, empty if it has none; None if all users share the slots.

        Raises:
            SlotOccupiedError: the slot does not exist, or belongs to another allocation; or the allocation has another
                slot, since the answer to an earlier request was lost; or the slots served another user.
        """
        if slot_id not in self._slot_ids:
            raise SlotOccupiedError(f"there is no slot {slot_id} here")
        known = self._allocations.get(slot_id)
        if known is not None:
            if known.allocation_id == allocation_id:
                return False
            raise SlotOccupiedError(f"slot {slot_id} belongs to job {known.job_id}")
        other = next((item for item in self._allocations.values() if item.allocation_id == allocation_id), None)
        if other is not None:
            raise SlotOccupiedError(f"job {job_id} has slot {other.slot_id} under allocation {allocation_id} already")
        if owner is not None and self.user not in (None, owner):
            raise SlotOccupiedError(
                f"the Spark driver of {self.resource_id} has served another user than the owner of job {job_id}"
            )
        self.user = UNKNOWN_USER if owner is None else owner
        self._allocations[slot_id] = Allocation(allocation_id, job_id, slot_id)
        return True

    def free(self, allocation_id: AllocationID) -> Allocation | None:
        """Free the slot of an allocation, and return it; None if the allocation has no slot (any more)."""
        for slot_id, allocation in self._allocations.items():
            if allocation.allocation_id == allocation_id:
                del self._allocations[slot_id]
                return allocation
        return None

    def of_job(self, job_id: JobID) -> list[Allocation]:
        """Return the slots of a job."""
        return [allocation for allocation in self._allocations.values() if allocation.job_id == job_id]

    def check(self, job_id: JobID, allocation_id: AllocationID) -> None:
        """Raise `SlotNotAllocatedError` unless the allocation is this job's."""
        if not any(allocation.allocation_id == allocation_id for allocation in self.of_job(job_id)):
            raise SlotNotAllocatedError(f"slot allocation {allocation_id} is not job {job_id}'s (any more)")

    def offers(self, job_id: JobID) -> list[SlotOffer]:
        """Return the job's slots as offers to its JobMaster."""
        return [SlotOffer(item.allocation_id, item.slot_id) for item in self.of_job(job_id)]

    def report(self) -> SlotReport:
        """Return the use of every slot."""
        statuses = []
        for slot_id in self._slot_ids:
            held = self._allocations.get(slot_id)
            statuses.append(
                SlotStatus(slot_id) if held is None else SlotStatus(slot_id, held.job_id, held.allocation_id)
            )
        return SlotReport(tuple(statuses), self.user)

"""The entries of the `SlotManager`'s book."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from runtime.ids import AllocationID, InstanceID, JobID, ResourceID, SlotID
from runtime.resourcemanager.locality import TaskManagerLocation
from runtime.resourcemanager.slots import SlotCounts, SlotRequest, SlotStatus

NO_SLOTS = SlotCounts()


class SlotState(Enum):
    """What the book says of a slot; of an UNKNOWN one the next report will say it."""

    FREE = "free"
    PENDING = "pending"
    UNKNOWN = "unknown"
    ALLOCATED = "allocated"


@dataclass(slots=True)
class Slot:
    """One slot."""

    slot_id: SlotID
    state: SlotState = SlotState.FREE
    allocation_id: AllocationID | None = None
    job_id: JobID | None = None

    @property
    def status(self) -> SlotStatus:
        """Whose it is, as its TaskExecutor would say it."""
        if self.state is SlotState.ALLOCATED:
            return SlotStatus(self.slot_id, self.job_id, self.allocation_id)
        return SlotStatus(self.slot_id)


@dataclass(slots=True)
class TaskManagerSlots:
    """The slots of one TaskExecutor.

    Args:
        number: of its registration.
        counted: its slots as they were counted last.
        idle_since: monotonic seconds; None while something uses it.
        released: nothing of it is given any more.
    """

    instance_id: InstanceID
    resource_id: ResourceID
    address: str
    location: TaskManagerLocation
    number: int
    slots: dict[SlotID, Slot]
    counted: SlotCounts = NO_SLOTS
    idle_since: float | None = None
    released: bool = False

    @property
    def is_idle(self) -> bool:
        """Whether all of its slots are free."""
        return all(slot.state is SlotState.FREE for slot in self.slots.values())

    def counts(self) -> SlotCounts:
        """Its slots, counted."""
        states = [slot.state for slot in self.slots.values()]
        return SlotCounts(
            len(states), states.count(SlotState.FREE), states.count(SlotState.PENDING) + states.count(SlotState.UNKNOWN)
        )


@dataclass(slots=True)
class PendingRequest:
    """A request without a confirmed slot; *slot_id* is one that is on its way to it."""

    request: SlotRequest
    deadline: float
    number: int
    slot_id: SlotID | None = None

    @property
    def rank(self) -> tuple[int, int, AllocationID]:
        """Its place among those that wait, the least first."""
        return -self.request.priority, self.number, self.request.allocation_id

"""The JobMaster's slots: requested, offered, in use and in reserve (Flink's `SlotPool`).

Pure: events in, instructions out; times are monotonic seconds. The pool requests one slot per waiting request from the
ResourceManager, which tells a TaskExecutor to give the job a slot. The TaskExecutor then offers it to the pool. A
released slot serves the next request of the same job; a slot that no request needs is returned after a while.

As in Flink's batch slot pool, a request does not time out while the job holds any slot. Sooner or later that slot is
released and serves the request. So a job of many tasks can finish with one slot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from runtime.ids import AllocationID, ResourceID, SlotID, SlotRequestID
from runtime.protocol.descriptor import SlotOffer
from runtime.protocol.slots import TaskManagerLocation, locality_of


@dataclass(frozen=True, slots=True)
class AllocatedSlot:
    """A slot of the job: allocation, slot, and the RPC address of its TaskExecutor."""

    allocation_id: AllocationID
    slot_id: SlotID
    address: str

    @property
    def location(self) -> TaskManagerLocation:
        """Location of its TaskExecutor."""
        return TaskManagerLocation.of(self.slot_id.resource_id, self.address)


@dataclass(frozen=True, slots=True)
class AskForSlot:
    """Request a slot from the ResourceManager (idempotent by allocation id)."""

    allocation_id: AllocationID
    task_name: str
    preferred_locations: tuple[TaskManagerLocation, ...] = ()


@dataclass(frozen=True, slots=True)
class WithdrawSlotRequest:
    """Withdraw a slot request from the ResourceManager."""

    allocation_id: AllocationID


@dataclass(frozen=True, slots=True)
class SlotReady:
    """The request has its slot."""

    request_id: SlotRequestID
    slot: AllocatedSlot


@dataclass(frozen=True, slots=True)
class SlotRequestFailed:
    """The request will not get a slot; *reason* is for the user."""

    request_id: SlotRequestID
    reason: str


@dataclass(frozen=True, slots=True)
class SlotLost:
    """A slot in use no longer exists; the task in it has failed."""

    allocation_id: AllocationID
    reason: str


@dataclass(frozen=True, slots=True)
class ReturnSlot:
    """Tell the slot's TaskExecutor to free it (idempotent by allocation id)."""

    slot: AllocatedSlot


SlotPoolInstruction = AskForSlot | WithdrawSlotRequest | SlotReady | SlotRequestFailed | SlotLost | ReturnSlot


@dataclass(slots=True)
class _Pending:
    request_id: SlotRequestID
    allocation_id: AllocationID
    task_name: str
    deadline: float
    preferred_locations: tuple[TaskManagerLocation, ...]


@dataclass(slots=True)
class _Held:
    slot: AllocatedSlot
    request_id: SlotRequestID | None
    idle_since: float


class SlotPool:
    """One job's slots.

    Args:
        request_timeout: seconds that a request waits while the job holds no slot. It should be a little longer than the
            ResourceManager's ``slot.request.timeout``, whose error message says more.
        idle_timeout: seconds that a free slot is held in reserve (``slot.idle.timeout``).
        new_allocation_id: returns new ids.
    """

    def __init__(
        self,
        request_timeout: float,
        idle_timeout: float,
        new_allocation_id: Callable[[], AllocationID] = AllocationID.random,
    ) -> None:
        self._request_timeout = request_timeout
        self._idle_timeout = idle_timeout
        self._new_allocation_id = new_allocation_id
        self._pending: dict[SlotRequestID, _Pending] = {}
        self._held: dict[AllocationID, _Held] = {}
        self._vacated: dict[ResourceID, float] = {}
        """TaskExecutors whose slots are returned at once when no task uses them, and until when."""
        self._connected = False
        self._closed = False

    @property
    def pending(self) -> tuple[SlotRequestID, ...]:
        """Requests that wait, oldest first."""
        return tuple(self._pending)

    @property
    def free_slots(self) -> tuple[AllocatedSlot, ...]:
        """Slots held in reserve."""
        return tuple(held.slot for held in self._held.values() if held.request_id is None)

    @property
    def allocated_slots(self) -> tuple[AllocatedSlot, ...]:
        """Slots in use."""
        return tuple(held.slot for held in self._held.values() if held.request_id is not None)

    def holds(self, allocation_id: AllocationID) -> bool:
        """Return whether the job holds the slot of an allocation, in use or in reserve."""
        return allocation_id in self._held

    def request_of(self, allocation_id: AllocationID) -> SlotRequestID | None:
        """Return the waiting request with this allocation id; None if it does not wait any more."""
        return next((item.request_id for item in self._pending.values() if item.allocation_id == allocation_id), None)

    def request_slot(
        self,
        request_id: SlotRequestID,
        task_name: str,
        now: float,
        preferred_locations: tuple[TaskManagerLocation, ...] = (),
    ) -> list[SlotPoolInstruction]:
        """Request a slot for a task, near *preferred_locations* if one is free there. Idempotent by request id."""
        if self._closed:
            return [SlotRequestFailed(request_id, "the job is ending")]
        if request_id in self._pending or any(held.request_id == request_id for held in self._held.values()):
            return []
        nearest = max(
            (held for held in self._held.values() if held.request_id is None),
            key=lambda held: locality_of(held.slot.location, preferred_locations),
            default=None,
        )
        if nearest is not None:
            nearest.request_id = request_id
            return [SlotReady(request_id, nearest.slot)]
        deadline = now + self._request_timeout
        pending = _Pending(request_id, self._new_allocation_id(), task_name, deadline, preferred_locations)
        self._pending[request_id] = pending
        return self._ask(pending)

    def cancel_request(self, request_id: SlotRequestID, now: float) -> list[SlotPoolInstruction]:
        """Cancel the request of a task, or release its slot if it has one. Unknown requests are ignored."""
        pending = self._pending.pop(request_id, None)
        if pending is not None:
            return self._withdraw(pending)
        return self.release_slot(request_id, now)

    def connect_resource_manager(self) -> list[SlotPoolInstruction]:
        """Send all pending requests to a ResourceManager, perhaps a new one, which accepts or rejects them."""
        self._connected = True
        return [item for pending in self._pending.values() for item in self._ask(pending)]

    def disconnect_resource_manager(self) -> None:
        """Note the loss of the ResourceManager; requests wait for the next one."""
        self._connected = False

    def ask_again(self, allocation_id: AllocationID) -> list[SlotPoolInstruction]:
        """Repeat a request whose slot is gone: it was allocated, and never offered. Ignore requests that do not wait.

        A TaskExecutor reports the loss of a slot that it has offered.
        """
        pending = next((item for item in self._pending.values() if item.allocation_id == allocation_id), None)
        return [] if pending is None else self._ask(pending)

    def offer_slot(self, offer: SlotOffer, address: str, now: float) -> tuple[bool, list[SlotPoolInstruction]]:
        """Process a TaskExecutor's offer of a slot; return whether it is accepted. Idempotent by allocation id.

        A slot serves the request that it was made for, else the oldest that waits. The pool rejects a slot that no
        request waits for, or a second slot of the same allocation. Then the TaskExecutor frees it.
        """
        held = self._held.get(offer.allocation_id)
        if held is not None:
            return held.slot.slot_id == offer.slot_id, []
        if self._closed or any(other.slot.slot_id == offer.slot_id for other in self._held.values()):
            return False, []
        pending = next((item for item in self._pending.values() if item.allocation_id == offer.allocation_id), None)
        if pending is None:
            pending = next(iter(self._pending.values()), None)
        if pending is None:
            return False, []
        slot = AllocatedSlot(offer.allocation_id, offer.slot_id, address)
        self._held[offer.allocation_id] = _Held(slot, None, now)
        return True, self._give(slot, pending)

    def adopt_slot(self, request_id: SlotRequestID, slot: AllocatedSlot, now: float) -> None:
        """Hold a slot that a former JobMaster of this job had: its task may still run there."""
        self._held[slot.allocation_id] = _Held(slot, request_id, now)

    def address_changed(self, resource_id: ResourceID, address: str) -> None:
        """Note the address of a TaskExecutor that has taken the slots of its predecessor over."""
        for held in self._held.values():
            if held.slot.slot_id.resource_id == resource_id:
                held.slot = replace(held.slot, address=address)

    def reconcile(self, resource_id: ResourceID, offers: Iterable[SlotOffer]) -> list[SlotPoolInstruction]:
        """Compare with the slots that a TaskExecutor has for this job; other slots held there do not exist any more."""
        there = {offer.allocation_id for offer in offers}
        gone = [
            held
            for held in self._held.values()
            if held.slot.slot_id.resource_id == resource_id and held.slot.allocation_id not in there
        ]
        for held in gone:
            del self._held[held.slot.allocation_id]
        reason = f"TaskExecutor {resource_id} no longer has the slot"
        return [SlotLost(held.slot.allocation_id, reason) for held in gone if held.request_id is not None]

    def release_slot(self, request_id: SlotRequestID, now: float) -> list[SlotPoolInstruction]:
        """Release the slot of a task that is over: it serves the oldest waiting request, or is held in reserve.

        The caller names the request, not the slot. By the time of a second, late release another request may have the
        slot, and must keep it. Requests without a slot are ignored.
        """
        held = next((item for item in self._held.values() if item.request_id == request_id), None)
        if held is None:
            return []
        held.request_id, held.idle_since = None, now
        if self._vacated.get(held.slot.slot_id.resource_id, now) > now:
            del self._held[held.slot.allocation_id]
            return [ReturnSlot(held.slot)]
        pending = next(iter(self._pending.values()), None)
        return [] if pending is None else self._give(held.slot, pending)

    def fail_allocation(self, allocation_id: AllocationID, reason: str, now: float) -> list[SlotPoolInstruction]:
        """Process a request that the ResourceManager has rejected, or a slot that its TaskExecutor has lost or freed.

        While the job holds another slot, a rejected request is sent again instead of failing.
        """
        pending = next((item for item in self._pending.values() if item.allocation_id == allocation_id), None)
        if pending is not None:
            if not self._held:
                del self._pending[pending.request_id]
                return [SlotRequestFailed(pending.request_id, reason)]
            pending.allocation_id = self._new_allocation_id()
            pending.deadline = now + self._request_timeout
            return self._ask(pending)
        held = self._held.pop(allocation_id, None)
        if held is None or held.request_id is None:
            return []
        return [SlotLost(allocation_id, reason)]

    def vacate(self, resource_id: ResourceID, until: float, now: float) -> list[SlotPoolInstruction]:
        """Hold no slot of a TaskExecutor in reserve until a time, since it is about to be exchanged. Idempotent."""
        self._vacated[resource_id] = until
        idle = [slot for slot in self.free_slots if slot.slot_id.resource_id == resource_id]
        for slot in idle:
            del self._held[slot.allocation_id]
        return [ReturnSlot(slot) for slot in idle]

    def release_task_executor(self, resource_id: ResourceID, now: float) -> None:
        """Remove the slots of a lost TaskExecutor. The time-out of all waiting requests then starts again.

        Its tasks have failed, all for one cause. Call `ExecutionGraph.task_executor_lost` *afterwards*: otherwise a
        slot that it releases could be given to the next request, although it no longer exists.
        """
        self._vacated.pop(resource_id, None)
        gone = [held for held in self._held.values() if held.slot.slot_id.resource_id == resource_id]
        for held in gone:
            del self._held[held.slot.allocation_id]
        if gone:
            for pending in self._pending.values():
                pending.deadline = now + self._request_timeout

    def expired(self, now: float) -> list[SlotPoolInstruction]:
        """Fail requests that have waited too long, and return slots that have been idle too long."""
        instructions: list[SlotPoolInstruction] = []
        for held in [item for item in self._held.values() if item.request_id is None]:
            if now - held.idle_since >= self._idle_timeout:
                del self._held[held.slot.allocation_id]
                instructions.append(ReturnSlot(held.slot))
        for pending in [item for item in self._pending.values() if item.deadline <= now]:
            if self._held:
                pending.deadline = now + self._request_timeout
                continue
            del self._pending[pending.request_id]
            missing = "" if self._connected else "; no ResourceManager is connected"
            reason = f"no slot for task {pending.task_name!r} within {self._request_timeout:g} s{missing}"
            instructions += [*self._withdraw(pending), SlotRequestFailed(pending.request_id, reason)]
        return instructions

    def next_deadline(self) -> float | None:
        """Return when `expired` will next have an effect, in monotonic seconds; None if nothing can expire."""
        deadlines = [pending.deadline for pending in self._pending.values()]
        deadlines += [held.idle_since + self._idle_timeout for held in self._held.values() if held.request_id is None]
        return min(deadlines, default=None)

    def close(self) -> list[SlotPoolInstruction]:
        """End the pool with its job: withdraw pending requests, return all slots, accept no more."""
        self._closed = True
        instructions: list[SlotPoolInstruction] = []
        for pending in self._pending.values():
            instructions += [*self._withdraw(pending), SlotRequestFailed(pending.request_id, "the job is ending")]
        instructions += [ReturnSlot(held.slot) for held in self._held.values()]
        self._pending.clear()
        self._held.clear()
        return instructions

    def _ask(self, pending: _Pending) -> list[SlotPoolInstruction]:
        if not self._connected:
            return []
        return [AskForSlot(pending.allocation_id, pending.task_name, pending.preferred_locations)]

    def _withdraw(self, pending: _Pending) -> list[SlotPoolInstruction]:
        return [WithdrawSlotRequest(pending.allocation_id)] if self._connected else []

    def _give(self, slot: AllocatedSlot, pending: _Pending) -> list[SlotPoolInstruction]:
        del self._pending[pending.request_id]
        self._held[slot.allocation_id].request_id = pending.request_id
        made_for_it = pending.allocation_id == slot.allocation_id
        return [*([] if made_for_it else self._withdraw(pending)), SlotReady(pending.request_id, slot)]

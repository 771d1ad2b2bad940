"""State of all slots and slot requests, and the decisions which request gets which slot (Flink's `SlotManager`).

Pure: events in, instructions out; times are monotonic seconds. Each TaskExecutor is the authority on its own slots: its
reports correct this state. If the outcome of an allocation is unknown (the ask timed out), the slot is not allocated
again until the next report.

Requests are served by the priority of their jobs, and at the same priority in the order of their arrival. With a file
of queues they are served in the order of `FairShare`, within its limits. No request waits for a nearer slot: it gets
the nearest free one. Among equally near TaskExecutors, the one with most free slots is chosen.

A TaskExecutor that serves one user at a time (``security.users.isolation``) gives its slots to that user alone:

1. A TaskExecutor belongs to the user whose job first got a slot of it, since its Spark driver may keep data of that
   user. Jobs without a user count as one user's.
2. Among equally near TaskExecutors, the jobs of a named user get the user's own before one without a user. So some are
   left for others. Jobs without a user are spread over all.
3. If no TaskExecutor is left for a user, an idle one of another user gets another driver (`RenewDriver`). It registers
   again without a user, and then serves the first request in order.
4. If none is idle either, one is drained until it is idle (`drain_phase`): no later request gets its free slots.
   Otherwise a user who always has one task somewhere could keep others out for ever.
"""

from __future__ import annotations

import heapq
import time
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from runtime.ids import AllocationID, InstanceID, JobID, ResourceID, SlotID
from runtime.protocol.queues import LimitedUse, QueuesOverview, QueueStatus, UserInQueue, WaitingRequest
from runtime.protocol.slots import (
    AllocateSlot,
    FailRequest,
    RenewDriver,
    SlotCounts,
    SlotGone,
    SlotManagerInstruction,
    SlotReport,
    SlotRequest,
    SlotStatus,
    TaskManagerLocation,
)
from runtime.queues.configuration import Asked, Member, Queues, Scope, mb
from runtime.queues.scheduling import NO_USE, NOTHING_ASKED, Claim, FairShare, Turn, Use
from runtime.resourcemanager.worker_allocator import RegisteredWorker

NO_SLOTS = SlotCounts()
WITHOUT_FILE = Queues()

DRAIN_AFTER_S = 10.0
"""Seconds for which a request waits before a TaskExecutor of another user is drained for it."""
FIRST_DRAIN_S = 30.0
"""Seconds of the first drain phase, and of the pause after it; each further one lasts twice as long."""
RENEWAL_S = 120.0
"""Seconds after which a TaskExecutor that left to renew its driver is no longer expected."""


def drain_phase(age_s: float) -> tuple[int | None, float]:
    """Return whether a TaskExecutor is drained for a request of that age, and the age at which that changes.

    Phases and pauses alternate and grow. So a phase is at some time longer than the tasks of others. Tasks that never
    end keep slots from others for half of the time at most.

    Args:
        age_s: seconds for which the request has waited.

    Returns:
        the number of the phase, from 0, or None in a pause; and the end of the phase or pause, as an age in seconds.
    """
    number, begin_s, length_s = 0, DRAIN_AFTER_S, FIRST_DRAIN_S
    while age_s >= begin_s:
        if age_s < begin_s + length_s:
            return number, begin_s + length_s
        number, begin_s, length_s = number + 1, begin_s + 2 * length_s, 2 * length_s
    return None, begin_s


class SlotState(Enum):
    """State of a slot; the next report settles that of an UNKNOWN one."""

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
        """Its owner, in the form of its TaskExecutor's report."""
        if self.state is SlotState.ALLOCATED:
            return SlotStatus(self.slot_id, self.job_id, self.allocation_id)
        return SlotStatus(self.slot_id)


@dataclass(slots=True)
class TaskManagerSlots:
    """The slots of one TaskExecutor.

    Args:
        instance_id: of its registration.
        resource_id: its name.
        address: of its endpoint.
        location: for preferences of requests.
        number: position of its registration in the order of all.
        slots: by their ids.
        counted: the last counts of its slots.
        idle_since: monotonic seconds; None while a slot is in use.
        released: whether its slots are no longer allocated, since its worker is being stopped.
        serves_one_user: whether it may belong to a user.
        user: the user to whom it belongs; None while it belongs to nobody.
        renewing: the user for whom its driver is being renewed; None while it is not.
        renewal_failed: whether the renewal has failed; the next report ends it.
        drained: whether its slots are kept for an earlier request, in the present pass.
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
    serves_one_user: bool = False
    user: str | None = None
    renewing: str | None = None
    renewal_failed: bool = False
    drained: bool = False

    @property
    def is_closed(self) -> bool:
        """True if none of its slots may be allocated."""
        return self.released or self.renewing is not None or self.drained

    def is_others(self, user: str) -> bool:
        """Return whether it belongs to another user."""
        return self.user is not None and self.user != user

    @property
    def is_idle(self) -> bool:
        """True if all its slots are free."""
        return all(slot.state is SlotState.FREE for slot in self.slots.values())

    def counts(self) -> SlotCounts:
        """Count its slots by state."""
        states = [slot.state for slot in self.slots.values()]
        return SlotCounts(
            len(states), states.count(SlotState.FREE), states.count(SlotState.PENDING) + states.count(SlotState.UNKNOWN)
        )


@dataclass(slots=True)
class PendingRequest:
    """A request without a confirmed slot, since a time; *slot_id* is a pending slot for it."""

    request: SlotRequest
    user: str
    since: float
    deadline: float
    number: int
    slot_id: SlotID | None = None

    @property
    def rank(self) -> tuple[int, int, AllocationID]:
        """Its sort key among waiting requests; the lowest is served first."""
        return -self.request.priority, self.number, self.request.allocation_id


ANY_HOST = ""
"""Stands for all hosts; no host has this name."""


_Place = tuple[str, str | None]
"""A host, or all of them, and the user to whom the TaskExecutors belong, or nobody."""


@dataclass(frozen=True, slots=True)
class _Room:
    places: tuple[_Place, ...]
    number: int
    free: int


class FreeSlots:
    """The TaskExecutors with free slots, by host, user and the number of free slots.

    A request must not check every TaskExecutor: with a thousand of them and four slots each, four thousand requests
    would make four million checks.
    """

    def __init__(self) -> None:
        self._rooms: dict[InstanceID, _Room] = {}
        self._by_room: dict[tuple[_Place, int], list[tuple[int, InstanceID]]] = {}
        self._sizes: dict[_Place, list[int]] = {}

    @property
    def is_empty(self) -> bool:
        """True if no slot is free."""
        return not self._rooms

    def set(
        self, instance_id: InstanceID, location: TaskManagerLocation, number: int, free: int, user: str | None = None
    ) -> None:
        """Note how many slots of a TaskExecutor are free.

        Args:
            instance_id: of the TaskExecutor.
            location: of the TaskExecutor.
            number: of its registration; among TaskExecutors with equally many free slots the lowest is found.
            free: how many; 0 if none may be allocated.
            user: whose jobs the TaskExecutor runs; None if it serves no user yet.
        """
        hosts = (ANY_HOST, location.host) if location.host else (ANY_HOST,)
        room = _Room(tuple((host, user) for host in hosts), number, free)
        if self._rooms.get(instance_id) == room:
            return
        self.forget(instance_id)
        if free:
            self._rooms[instance_id] = room
            for place in room.places:
                found = self._by_room.get((place, free))
                if found is None:
                    found = self._by_room[place, free] = []
                    insort(self._sizes.setdefault(place, []), free)
                insort(found, (number, instance_id))

    def forget(self, instance_id: InstanceID) -> None:
        """Remove a TaskExecutor; do nothing if it is not there."""
        room = self._rooms.pop(instance_id, None)
        if room is None:
            return
        for place in room.places:
            found = self._by_room[place, room.free]
            del found[bisect_left(found, (room.number, instance_id))]
            if not found:
                del self._by_room[place, room.free]
                self._sizes[place].remove(room.free)
                if not self._sizes[place]:
                    del self._sizes[place]

    def roomiest(self, host: str = ANY_HOST, user: str | None = None) -> InstanceID | None:
        """Return the TaskExecutor of a user, or of nobody, with most free slots, on one host or on all; else None."""
        place = host, user
        sizes = self._sizes.get(place)
        return self._by_room[place, sizes[-1]][0][1] if sizes else None


class SlotManager:
    """The ResourceManager's state of slots and requests.

    Args:
        request_timeout: seconds that a request may wait (``slot.request.timeout``).
        queues: queues and limits; by default one queue without limits.
        clock: returns monotonic seconds, for the slot-seconds that jobs use.

    Attributes:
        outlook: text for users, from the `WorkerAllocator`, whether more slots will come; empty without one.
    """

    def __init__(
        self, request_timeout: float, queues: Queues = WITHOUT_FILE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._request_timeout = request_timeout
        self._clock = clock
        self._share = FairShare(queues)
        self.outlook = ""
        self._requests_made = 0
        self._registrations = 0
        self._task_managers: dict[InstanceID, TaskManagerSlots] = {}
        self._by_name: dict[ResourceID, TaskManagerSlots] = {}
        self._slots: dict[SlotID, Slot] = {}
        self._requests: dict[AllocationID, PendingRequest] = {}
        # Derived from the above, so that no event has to read all slots, TaskExecutors or requests.
        self._waiting: dict[str, list[tuple[int, int, AllocationID]]] = {}
        """By user, in order; no list is empty."""
        self._held: Counter[AllocationID] = Counter()
        self._left: dict[AllocationID, JobID] = {}
        """Allocations that have left their last slot since the last `_match`."""
        self._free_slots = FreeSlots()
        self._belonging: Counter[str] = Counter()
        """The number of TaskExecutors that belong to each user."""
        self._renewing: set[InstanceID] = set()
        self._away: dict[ResourceID, tuple[str, float]] = {}
        """TaskExecutors that have left to renew their drivers, with the user for whom, and when."""
        self._draining: dict[InstanceID, float] = {}
        """TaskExecutors that are released because they are about to be exchanged, and until when."""
        self._exchanged: dict[ResourceID, float] = {}
        """TaskExecutors that have left to be exchanged, and when."""
        self._phase_ends: float | None = None
        """When a drain phase, or a pause between two, ends next; None without one."""
        self._counts = SlotCounts()
        self._fail_unfulfillable = False

    # ------------------------------------------------------------------ counts

    @property
    def pending_requests(self) -> tuple[SlotRequest, ...]:
        """Requests without a confirmed slot, oldest first."""
        return tuple(entry.request for entry in self._requests.values())

    @property
    def waiting(self) -> int:
        """The number of requests that would be served by further slots: they have none, not even a pending one."""
        return sum(1 for _ in self._order()) if self._share.queues.is_set else self._all_waiting

    @property
    def stuck(self) -> tuple[int, ...]:
        """The numbers, by user, of those `waiting` requests that no registered TaskExecutor can serve as it is.

        Empty if there is only one user. Requests for which a driver is being renewed do not count.
        """
        if len(self._belonging.keys() | self._waiting.keys()) < 2:
            return ()
        if self._share.queues.is_set:
            waiting = Counter(self._requests[claim.allocation_id].user for claim in self._order())
        else:
            waiting = Counter({user: len(line) for user, line in self._waiting.items()})
        waiting.subtract(self._renewed())
        return tuple(number for number in waiting.values() if number > 0)

    @property
    def _all_waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def _waiting_of(self, user: str) -> int:
        """Return the number of a user's waiting requests that no limit holds back."""
        if not self._share.queues.is_set:
            return len(self._waiting.get(user, ()))
        return sum(self._requests[claim.allocation_id].user == user for claim in self._order())

    def _renewed(self) -> Counter[str]:
        """Return the slots of the TaskExecutors whose drivers are being renewed, by the user for whom."""
        renewed: Counter[str] = Counter()
        for instance_id in self._renewing:
            manager = self._task_managers[instance_id]
            if manager.renewing is not None:
                renewed[manager.renewing] += len(manager.slots)
        return renewed

    @property
    def task_managers(self) -> tuple[InstanceID, ...]:
        """The registered TaskExecutors."""
        return tuple(self._task_managers)

    def counts(self, instance_id: InstanceID | None = None) -> SlotCounts:
        """Return the counts of one TaskExecutor's slots (none if it is unknown), or of all slots."""
        if instance_id is not None:
            manager = self._task_managers.get(instance_id)
            return SlotCounts() if manager is None else manager.counts()
        return self._counts

    def statuses(self, instance_id: InstanceID) -> tuple[SlotStatus, ...]:
        """Return the owner of each slot of a TaskExecutor; pending slots have none yet."""
        manager = self._task_managers.get(instance_id)
        return () if manager is None else tuple(slot.status for slot in manager.slots.values())

    def user_of(self, instance_id: InstanceID) -> str:
        """Return the user whom a TaskExecutor serves; empty if it serves nobody, everybody, or jobs without a user."""
        manager = self._task_managers.get(instance_id)
        return "" if manager is None else manager.user or ""

    def waiting_reason(self, allocation_id: AllocationID) -> str | None:
        """Return a text for users of what a request waits for; None if it does not wait."""
        entry = self._requests.get(allocation_id)
        if entry is None or entry.slot_id is not None:
            return None
        blocked = self._share.blocked_by(entry.request.job_id)
        if not blocked and self._share.queues.limits_sizes:
            turns = self._share.turns(self._claims(), self._clock())
            blocked = next((turn.blocked for turn in turns if turn.claim.allocation_id == allocation_id), ())
        return self._reason(entry.request, blocked)

    def _reason(self, request: SlotRequest, blocked: tuple[str, ...], place: int | None = None) -> str:
        """Return what a request waits for: its place in its queue, and the limits or the lack of slots."""
        member = self._share.member(request.job_id)
        if not self._share.queues.is_set:
            return f"1 slot for task {request.task_name!r}; {self._shortage(member.user)}"
        turn = f"in queue {member.queue}" if place is None else f"{ordinal(place)} in queue {member.queue}"
        reason = ", ".join(blocked) or self._shortage(member.user)
        return f"1 slot for task {request.task_name!r}, {turn}; {reason}"

    def queues(self, problem: str = "", *, has_file: bool = True) -> QueuesOverview:
        """Return the queues with their use, and what each request waits for.

        Args:
            problem: of the file of queues.
            has_file: whether there is one.
        """
        now, share = self._clock(), self._share
        turns = share.turns(self._claims(), now)
        waiting = Counter(turn.member for turn in turns)
        members = sorted({*waiting, *map(share.member, share.running)}, key=lambda member: member.user)
        uses: dict[Member, Use] = {}
        for job_id in share.running:
            member = share.member(job_id)
            uses[member] = uses.get(member, NO_USE).plus(share.slots_of(job_id), 1, share.demand(job_id))
        statuses = []
        for queue in share.queues.queues:
            use, limits = share.held(Scope("queue", queue.name)), queue.limits
            users = tuple(
                UserInQueue(
                    member.user,
                    (own := uses.get(member, NO_USE)).slots,
                    share.used_by(member, now),
                    waiting[member],
                    own.memory_mb,
                    float(own.cpus),
                )
                for member in members
                if member.queue == queue.name
            )
            statuses.append(
                QueueStatus(
                    queue.name,
                    queue.weight,
                    queue.priority,
                    use.slots,
                    limits.slots,
                    use.jobs,
                    limits.running_jobs,
                    sum(user.waiting for user in users),
                    share.used(queue.name, now),
                    users,
                    use.memory_mb,
                    limits.memory_mb,
                    float(use.cpus),
                    None if limits.cpus is None else float(limits.cpus),
                    mb(share.blob_bytes(Scope("queue", queue.name))),
                    limits.blob_mb,
                )
            )
        limited = tuple(self._limited(scope) for scope in share.scopes)
        return QueuesOverview(
            tuple(statuses), tuple(map(self._waits, turns)), share.running, problem, has_file, limited
        )

    def _limited(self, scope: Scope) -> LimitedUse:
        use, limits = self._share.held(scope), self._share.queues.limits_of(scope)
        return LimitedUse(
            scope.kind,
            scope.name,
            use.slots,
            limits.slots,
            use.jobs,
            limits.running_jobs,
            use.memory_mb,
            limits.memory_mb,
            float(use.cpus),
            None if limits.cpus is None else float(limits.cpus),
            mb(self._share.blob_bytes(scope)),
            limits.blob_mb,
        )

    def _waits(self, turn: Turn) -> WaitingRequest:
        request, member = self._requests[turn.claim.allocation_id].request, turn.member
        reason = self._reason(request, turn.blocked, turn.place)
        names = request.job_name, request.task_name
        return WaitingRequest(
            request.job_id, *names, request.allocation_id, member.user, member.queue, turn.place, reason
        )

    # ------------------------------------------------------------ jobs and queues

    @property
    def in_use(self) -> Queues:
        """Queues and limits in use."""
        return self._share.queues

    def configure(self, queues: Queues) -> list[SlotManagerInstruction]:
        """Use other queues and limits. Jobs keep their slots, also those beyond a new limit."""
        self._share.configure(queues, self._clock())
        return self._match()

    def register_job(
        self, job_id: JobID, owner: str, queue: str, asked: Asked = NOTHING_ASKED
    ) -> list[SlotManagerInstruction]:
        """Note the user of a job, and the queue that it asks for; both may be empty. Idempotent.

        Args:
            job_id: the job.
            owner: its user.
            queue: the queue that it asks for.
            asked: memory and processors of each of its tasks, and its blobs.
        """
        self._share.register(job_id, owner, queue, self._clock(), asked)
        return self._match()

    def forget_job(self, job_id: JobID) -> None:
        """Drop a job that has ended, as `unregister_job`; slots that it still has count as its user's until then."""
        self.unregister_job(job_id)
        self._share.unregister(job_id)

    def owner_of(self, job_id: JobID) -> str:
        """Return the user of a job; empty for none."""
        return self._share.member(job_id).user

    # ---------------------------------------------------------------- requests

    def register_slot_request(self, request: SlotRequest, now: float) -> list[SlotManagerInstruction]:
        """Add a job's request for a slot. Idempotent by allocation id."""
        allocation_id = request.allocation_id
        if allocation_id in self._requests or allocation_id in self._held:
            return []
        self._requests_made += 1
        entry = self._requests[allocation_id] = PendingRequest(
            request, self.owner_of(request.job_id), self._clock(), now + self._request_timeout, self._requests_made
        )
        self._wait(entry)
        if self._is_unfulfillable:
            return self._fail(entry)
        return self._match()

    def unregister_slot_request(self, allocation_id: AllocationID) -> None:
        """Drop a job's request. The job refuses a pending slot for it, which is then freed."""
        entry = self._requests.pop(allocation_id, None)
        if entry is not None and entry.slot_id is None:
            self._wait_no_more(entry)

    def unregister_job(self, job_id: JobID) -> None:
        """Drop the requests of a job that has ended. (Its TaskExecutors free its slots, and report that.)"""
        for entry in [item for item in self._requests.values() if item.request.job_id == job_id]:
            self.unregister_slot_request(entry.request.allocation_id)

    def set_fail_unfulfillable_request(self, fail: bool) -> list[SlotManagerInstruction]:
        """Set whether requests fail at once, instead of waiting, while the whole cluster has no slot.

        Flink sets it once the start-up period of the standalone ResourceManager is over.
        """
        self._fail_unfulfillable = fail
        return self._fail_all_if_unfulfillable()

    def expired(self, now: float) -> list[SlotManagerInstruction]:
        """Fail requests that have waited too long, except those with a pending slot; call it regularly.

        At the end of a drain phase, or of a pause between two, the free slots are given anew. So are those of a
        TaskExecutor that `drain_task_manager` was not called for again in time.
        """
        due = [entry for entry in self._requests.values() if entry.deadline <= now and entry.slot_id is None]
        if self._share.queues.is_set and self._slots:  # each waits for its turn, however long that takes
            for entry in due:
                entry.deadline = now + self._request_timeout
            due.clear()
        failed = [item for entry in due for item in self._fail(entry, f" within {self._request_timeout:g} s")]
        is_over = self._phase_ends is not None and self._phase_ends <= now
        for instance_id in [each for each, until in self._draining.items() if until <= now]:
            del self._draining[instance_id]
            failed += self.keep_task_manager(instance_id)
        return [*failed, *self._match()] if is_over else failed

    def next_deadline(self) -> float | None:
        """Return the monotonic time in seconds at which the next request, drain phase or drain ends; None for none."""
        ends = [entry.deadline for entry in self._requests.values() if entry.slot_id is None]
        ends += self._draining.values()
        return min(ends if self._phase_ends is None else [*ends, self._phase_ends], default=None)

    # ----------------------------------------------------------- task managers

    def register_task_manager(
        self,
        instance_id: InstanceID,
        resource_id: ResourceID,
        address: str,
        report: SlotReport,
        *,
        serves_one_user: bool = False,
    ) -> list[SlotManagerInstruction]:
        """Add a TaskExecutor. Idempotent by instance id; a new instance replaces the old one of its name.

        Args:
            instance_id: of its registration.
            resource_id: its name.
            address: of its endpoint.
            report: its slots.
            serves_one_user: whether all users share it, or it belongs to one at a time.
        """
        if instance_id in self._task_managers:
            return self.report_slot_status(instance_id, report)
        old = self._by_name.get(resource_id)
        if old is not None:
            self._remove(old)
        self._registrations += 1
        location = TaskManagerLocation.of(resource_id, address)
        manager = TaskManagerSlots(instance_id, resource_id, address, location, self._registrations, {})
        manager.serves_one_user = serves_one_user
        self._away.pop(resource_id, None)
        self._exchanged.pop(resource_id, None)
        self._task_managers[instance_id] = self._by_name[resource_id] = manager
        return self.report_slot_status(instance_id, report)

    def unregister_task_manager(self, instance_id: InstanceID) -> list[SlotManagerInstruction]:
        """Remove a TaskExecutor with its slots; requests for which one was pending wait again. Ignore unknown ones.

        The job of an allocated slot learns that it is gone (`SlotGone`). It may still wait for its offer.
        """
        manager = self._task_managers.get(instance_id)
        if manager is None:
            return []
        self._remove(manager)
        return [*self._match(), *self._fail_all_if_unfulfillable()]

    def registered_workers(self, now: float) -> tuple[RegisteredWorker, ...]:
        """Return the TaskExecutors that are not released, and how long they have been idle; call it regularly."""
        found = []
        for manager in self._task_managers.values():
            if manager.released:
                continue
            if not manager.is_idle:
                manager.idle_since = None
            elif manager.idle_since is None:
                manager.idle_since = now
            idle_s = None if manager.idle_since is None else now - manager.idle_since
            counts = manager.counts()
            found.append(
                RegisteredWorker(manager.instance_id, manager.resource_id, counts.registered, counts.free, idle_s)
            )
        return tuple(found)

    def release_task_manager(self, instance_id: InstanceID) -> None:
        """Allocate no more slots of a TaskExecutor whose worker is being stopped, until `keep_task_manager`."""
        manager = self._task_managers.get(instance_id)
        if manager is not None:
            manager.released, manager.idle_since = True, None
            self._count(manager)

    def keep_task_manager(self, instance_id: InstanceID) -> list[SlotManagerInstruction]:
        """Allocate slots of a released TaskExecutor again: its worker was not stopped."""
        manager = self._task_managers.get(instance_id)
        if manager is None or not manager.released:
            return []
        manager.released, manager.idle_since = False, None
        self._count(manager)
        return self._match()

    def drain_task_manager(self, instance_id: InstanceID, until: float) -> None:
        """Allocate no more slots of a TaskExecutor that is about to be exchanged, until a time or that of a later call.

        Ignore one whose worker is being stopped already.
        """
        manager = self._task_managers.get(instance_id)
        if manager is not None and (instance_id in self._draining or not manager.released):
            self._draining[instance_id] = until
            self.release_task_manager(instance_id)

    def report_slot_status(self, instance_id: InstanceID, report: SlotReport) -> list[SlotManagerInstruction]:
        """Update the slots of a TaskExecutor by its report. Ignore unknown instances: they must register first."""
        manager = self._task_managers.get(instance_id)
        if manager is None:
            return []
        reported = {
            status.slot_id: status for status in report.slots if status.slot_id.resource_id == manager.resource_id
        }
        for slot_id in [known for known in manager.slots if known not in reported]:
            slot = manager.slots.pop(slot_id)
            self._requeue(slot)
            self._hold(slot, None, None)
            del self._slots[slot_id]
        for slot_id, status in reported.items():
            if slot_id not in manager.slots:
                manager.slots[slot_id] = self._slots[slot_id] = Slot(slot_id)
            self._reconcile(manager.slots[slot_id], status)
        if manager.renewal_failed:
            self._renew(manager, None)
        if report.user is not None or manager.is_idle:
            # A report without a user may be older than the arrival of the first AllocateSlot.
            self._belong(manager, report.user)
        self._count(manager)
        if not manager.is_idle:
            manager.idle_since = None
        return self._match()

    # ----------------------------------------------------- outcome of AllocateSlot

    def slot_allocated(self, slot_id: SlotID, allocation_id: AllocationID) -> list[SlotManagerInstruction]:
        """Note that the TaskExecutor has allocated the slot to the job."""
        slot = self._slots.get(slot_id)
        if slot is not None and slot.state is SlotState.PENDING and slot.allocation_id == allocation_id:
            self.unregister_slot_request(allocation_id)
            self._become(slot, SlotState.ALLOCATED, allocation_id, slot.job_id)
        return []

    def slot_allocation_failed(self, slot_id: SlotID, allocation_id: AllocationID) -> list[SlotManagerInstruction]:
        """Note that the TaskExecutor refused, or did not answer in time; the request waits again, in its old place.

        The slot is not allocated again until the next report.

        Every `AllocateSlot` must be answered by `slot_allocated` or by this, or its slot stays pending.
        """
        slot = self._slots.get(slot_id)
        if slot is None or slot.state is not SlotState.PENDING or slot.allocation_id != allocation_id:
            return []
        self._requeue(slot)
        self._become(slot, SlotState.UNKNOWN)
        return self._match()

    def renewal_failed(self, instance_id: InstanceID) -> None:
        """Note that a TaskExecutor does not renew its driver, or did not answer; the next report settles that."""
        manager = self._task_managers.get(instance_id)
        if manager is not None and manager.renewing is not None:
            manager.renewal_failed = True

    # ---------------------------------------------------------------- internals

    def _belong(self, manager: TaskManagerSlots, user: str | None) -> None:
        """Note to whom a TaskExecutor belongs."""
        if not manager.serves_one_user or manager.user == user:
            return
        if manager.user is not None:
            self._belonging[manager.user] -= 1
            if not self._belonging[manager.user]:
                del self._belonging[manager.user]
        manager.user = user
        if user is not None:
            self._belonging[user] += 1

    def _renew(self, manager: TaskManagerSlots, user: str | None) -> None:
        """Note for whom the driver of a TaskExecutor is being renewed; None: it is not."""
        manager.renewing, manager.renewal_failed = user, False
        if user is None:
            self._renewing.discard(manager.instance_id)
        else:
            self._renewing.add(manager.instance_id)
        self._count(manager)

    def _reconcile(self, slot: Slot, status: SlotStatus) -> None:
        if status.allocation_id is None:
            # The report may be older than the arrival of AllocateSlot: only its outcome settles a pending slot.
            if slot.state is not SlotState.PENDING:
                self._become(slot, SlotState.FREE)
            return
        if slot.state is SlotState.PENDING and slot.allocation_id != status.allocation_id:
            self._requeue(slot)
        # An earlier AllocateSlot may have succeeded although its answer was lost. Then a second slot may be pending for
        # the same request: the job will refuse that one.
        self.unregister_slot_request(status.allocation_id)
        self._become(slot, SlotState.ALLOCATED, status.allocation_id, status.job_id)

    def _become(
        self, slot: Slot, state: SlotState, allocation_id: AllocationID | None = None, job_id: JobID | None = None
    ) -> None:
        if slot.state is state and slot.allocation_id == allocation_id and slot.job_id == job_id:
            return
        self._hold(slot, allocation_id, job_id)
        slot.state = state
        self._count(self._by_name[slot.slot_id.resource_id])

    def _hold(self, slot: Slot, allocation_id: AllocationID | None, job_id: JobID | None) -> None:
        """Set the allocation of a slot and its job; two slots may be pending for one request."""
        former, slot.job_id = slot.job_id, job_id
        if former != job_id:
            if job_id is not None:
                self._share.take(job_id, self._clock())
            if former is not None:
                self._share.give_back(former, self._clock())
        before, slot.allocation_id = slot.allocation_id, allocation_id
        if allocation_id is not None:
            self._held[allocation_id] += 1
        if before is not None:
            self._held[before] -= 1
            if not self._held[before]:
                del self._held[before]
                if former is not None:
                    self._left[before] = former

    def _count(self, manager: TaskManagerSlots) -> None:
        """Update the counts and free slots after a change of a TaskExecutor."""
        before, now, all_of_them = manager.counted, manager.counts(), self._counts
        manager.counted = now
        self._counts = SlotCounts(
            all_of_them.registered + now.registered - before.registered,
            all_of_them.free + now.free - before.free,
            all_of_them.pending + now.pending - before.pending,
        )
        free = 0 if manager.is_closed else now.free
        self._free_slots.set(manager.instance_id, manager.location, manager.number, free, manager.user)

    def _wait(self, entry: PendingRequest) -> None:
        insort(self._waiting.setdefault(entry.user, []), entry.rank)

    def _wait_no_more(self, entry: PendingRequest) -> None:
        line = self._waiting[entry.user]
        del line[bisect_left(line, entry.rank)]
        if not line:
            del self._waiting[entry.user]

    def _requeue(self, slot: Slot) -> None:
        entry = None if slot.allocation_id is None else self._requests.get(slot.allocation_id)
        if entry is not None and entry.slot_id == slot.slot_id:
            entry.slot_id = None
            self._wait(entry)

    def _remove(self, manager: TaskManagerSlots) -> None:
        now = self._clock()
        if manager.renewing is not None:
            self._away = {name: away for name, away in self._away.items() if away[1] > now - RENEWAL_S}
            self._away[manager.resource_id] = manager.renewing, now
            self._renew(manager, None)
        if self._draining.pop(manager.instance_id, None) is not None:
            self._exchanged = {name: left for name, left in self._exchanged.items() if left > now - RENEWAL_S}
            self._exchanged[manager.resource_id] = now
        self._belong(manager, None)
        for slot in manager.slots.values():
            self._requeue(slot)
            self._hold(slot, None, None)
            del self._slots[slot.slot_id]
        manager.slots.clear()
        self._count(manager)
        del self._task_managers[manager.instance_id], self._by_name[manager.resource_id]

    def _match(self) -> list[SlotManagerInstruction]:
        """Report the allocations that no slot has any more, and give the free slots to the waiting requests."""
        instructions: list[SlotManagerInstruction] = [
            SlotGone(job_id, allocation_id)
            for allocation_id, job_id in self._left.items()
            if allocation_id not in self._held and allocation_id not in self._requests
        ]
        self._left.clear()
        self._phase_ends = None
        drained: list[TaskManagerSlots] = []
        passed: set[str] = set()
        is_over = self._free_slots.is_empty
        while not is_over:
            is_over = True
            for entry in self._next_requests(passed):
                manager = self._nearest(entry.request, entry.user)
                slot = None if manager is None else _first_free(manager.slots.values())
                if manager is not None and slot is not None:
                    self._wait_no_more(entry)
                    entry.slot_id = slot.slot_id
                    manager.idle_since = None
                    self._belong(manager, entry.user)
                    self._become(slot, SlotState.PENDING, entry.request.allocation_id, entry.request.job_id)
                    instructions.append(AllocateSlot(manager.instance_id, manager.address, slot.slot_id, entry.request))
                elif not (is_over := self._free_slots.is_empty):
                    # The free slots belong to other users. Continue without this user's requests: they cannot be
                    # served, and must not count for the limits of a queue.
                    instructions += self._make_room(entry, drained)
                    passed.add(entry.user)
                    break
                else:
                    break
        for manager in drained:
            manager.drained = False
            self._count(manager)
        return instructions

    def _make_room(self, entry: PendingRequest, drained: list[TaskManagerSlots]) -> list[SlotManagerInstruction]:
        """Renew the driver of an idle TaskExecutor of another user, or drain one, for a request that finds no slot.

        Args:
            entry: the first such request of its user.
            drained: is appended to.
        """
        user = entry.user
        renewed = self._renewed()[user]
        if renewed and renewed >= self._waiting_of(user):
            return []
        others = [each for each in self._task_managers.values() if each.is_others(user) and not each.is_closed]
        others = [each for each in others if each.slots]
        idle = [each for each in others if each.is_idle]
        if idle:
            chosen = min(idle, key=lambda each: (-len(each.slots), each.number))
            self._renew(chosen, user)
            return [RenewDriver(chosen.instance_id, "it has served another user than the next job's")]
        # Rounding must not put the end of a phase before itself: then this would be called without end.
        phase, age_s = drain_phase(self._clock() - entry.since + 0.001)
        ends = entry.since + age_s
        self._phase_ends = ends if self._phase_ends is None else min(ends, self._phase_ends)
        if phase is not None and others:
            chosen = _to_be_drained(others, phase)
            chosen.drained = True
            drained.append(chosen)
            self._count(chosen)
        return []

    def _next_requests(self, passed: Collection[str]) -> Iterator[PendingRequest]:
        """Yield the waiting requests in the order in which they are served; each one gets a slot before the next.

        Args:
            passed: users whose requests are left out.
        """
        if self._share.queues.is_set:
            order = self._share.order(self._claims(passed), self._clock())
            yield from (self._requests[claim.allocation_id] for claim in order)
        else:
            while heads := [line[0] for user, line in self._waiting.items() if user not in passed]:
                yield self._requests[min(heads)[-1]]

    def _claims(self, passed: Collection[str] = ()) -> list[Claim]:
        lines = (line for user, line in self._waiting.items() if user not in passed)
        requests = (self._requests[allocation_id] for *_, allocation_id in heapq.merge(*lines))
        return [
            Claim(entry.request.job_id, entry.request.allocation_id, (-entry.request.priority, entry.number))
            for entry in requests
        ]

    def _order(self) -> Iterator[Claim]:
        """Yield the requests that no limit holds back, in order, each as if those before it were served."""
        return self._share.order(self._claims(), self._clock())

    def _nearest(self, request: SlotRequest, user: str) -> TaskManagerSlots | None:
        """Return the nearest TaskExecutor with a free slot for a user; of equally near ones, see the module."""
        preferred, classes = request.preferred_locations, (user, None)
        local = [self._by_name.get(location.resource_id) for location in preferred]
        here = [each for each in local if each is not None and each.counted.free and not each.is_closed]
        here = [each for each in here if not each.is_others(user)]
        if not here:
            hosts = [location.host for location in preferred if location.host]
            near = [self._free_slots.roomiest(host, each) for host in hosts for each in classes]
            here = [self._task_managers[found] for found in near if found is not None]
        if not here:
            far = [self._free_slots.roomiest(ANY_HOST, each) for each in classes]
            here = [self._task_managers[found] for found in far if found is not None]
        return min(
            here, key=lambda each: (bool(user) and each.user is None, -each.counted.free, each.number), default=None
        )

    @property
    def _is_unfulfillable(self) -> bool:
        """True if requests are to fail at once: there is no slot, and no TaskExecutor is expected back."""
        return self._fail_unfulfillable and not self._slots and not self._expected_back() and not self._in_exchange()

    def _in_exchange(self) -> list[ResourceID]:
        """Return the TaskExecutors that are being exchanged: those that are drained, and those that have left."""
        since = self._clock() - RENEWAL_S
        left = [name for name, at in self._exchanged.items() if at >= since]
        return sorted([*left, *(self._task_managers[each].resource_id for each in self._draining)])

    def _expected_back(self, user: str | None = None) -> list[ResourceID]:
        """Return the TaskExecutors that renew their drivers and have left for it, for one user or for all."""
        since = self._clock() - RENEWAL_S
        return [name for name, (wants, at) in self._away.items() if at >= since and user in (None, wants)]

    def _fail_all_if_unfulfillable(self) -> list[SlotManagerInstruction]:
        if not self._is_unfulfillable:
            return []
        return [item for entry in list(self._requests.values()) for item in self._fail(entry)]

    def _fail(self, entry: PendingRequest, within: str = "") -> list[SlotManagerInstruction]:
        request = entry.request
        self.unregister_slot_request(request.allocation_id)
        waiting = f"task {request.task_name!r} of job {request.job_name!r} waits for 1 slot"
        return [FailRequest(request, f"no slot{within}: {waiting}; {self._shortage(entry.user)}")]

    def _shortage(self, user: str) -> str:
        renewing = [each.resource_id for each in map(self._task_managers.__getitem__, self._renewing)]
        renewing = [name for name in renewing if self._by_name[name].renewing == user]
        if names := [*renewing, *self._expected_back(user)]:
            return f"{', '.join(sorted(names))} gets a new Spark driver first, after the jobs of another user"
        counts = self.counts()
        managers = len(self._task_managers)
        if not counts.registered:
            have = "no registered TaskExecutor" if not managers else f"{managers} TaskExecutor(s) have no slots"
            remedy = "see their logs, or start the cluster again"
        else:
            have = f"{counts.registered} slot(s) on {managers} TaskExecutor(s), {counts.free} free"
            remedy = "wait for other jobs, cancel one, or start the cluster with more slots"
        ahead = self._all_waiting - 1
        queue = f", {ahead} other request(s) waiting" if ahead > 0 else ""
        others = sum(number for each, number in self._belonging.items() if each != user)
        if others:
            queue += f"; {others} TaskExecutor(s) serve other users, and two users share none"
            remedy = "wait for other jobs, cancel one, or start more TaskExecutors"
        if names := self._in_exchange():
            queue += f"; {', '.join(names)} is being exchanged by an upgrade"
            remedy = "wait for it"
        remedy = self.outlook or remedy
        return f"the cluster has {have}{queue}; {remedy}"


def ordinal(number: int) -> str:
    """Return a number as ``1st``, ``2nd``, ``3rd``, ``4th``."""
    ends = {1: "st", 2: "nd", 3: "rd"}
    return f"{number}{'th' if number % 100 in (11, 12, 13) else ends.get(number % 10, 'th')}"


def _to_be_drained(managers: list[TaskManagerSlots], phase: int) -> TaskManagerSlots:
    """Return the TaskExecutor that is drained in a phase: in every other phase the least used one, else one in turn.

    The least used one may keep a task that never ends.
    """
    if phase % 2:
        return managers[phase // 2 % len(managers)]
    return min(managers, key=lambda each: (len(each.slots) - each.counted.free, each.number))


def _first_free(slots: Iterable[Slot]) -> Slot | None:
    return next((slot for slot in slots if slot.state is SlotState.FREE), None)

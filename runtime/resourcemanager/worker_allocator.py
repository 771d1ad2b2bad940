"""Decides when to start, stop or give up a worker (Flink's `ResourceAllocationStrategy` and `ActiveResourceManager`).

Pure: events in, decisions out; times are monotonic seconds. A worker is *pending* from the request for it until its
TaskExecutor registers. Pending workers count as if they had registered, so that none is requested twice. After a
timeout they no longer count, so that a worker that never registers is replaced.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from runtime.ids import InstanceID, ResourceID

FAILURE_WINDOW_S = 60.0


@dataclass(frozen=True, slots=True)
class AllocationLimits:
    """Limits that the configuration sets for workers.

    Args:
        slots_per_worker: slots of each worker (``taskmanager.numberOfTaskSlots``).
        min_slots: the least slots of the cluster (``slotmanager.number-of-slots.min``).
        max_slots: the most slots of the cluster (``slotmanager.number-of-slots.max``); None for no limit.
        redundant_workers: workers whose slots are kept free in addition to those requested
            (``slotmanager.redundant-taskmanager-num``).
        idle_timeout_s: seconds after which an unused worker is stopped (``resourcemanager.taskmanager-timeout``).
        registration_timeout_s: seconds after which a worker that has not registered is given up
            (``resourcemanager.taskmanager-registration.timeout``).
        max_failures: failed starts within a minute that are tolerated
            (``resourcemanager.start-worker.max-failure-rate``).
        retry_interval_s: seconds without a start after more failures than that
            (``resourcemanager.start-worker.retry-interval``).
        recovery_timeout_s: seconds for which workers of an earlier leader count as pending
            (``resourcemanager.previous-worker.recovery.timeout``).
    """

    slots_per_worker: int
    min_slots: int = 0
    max_slots: int | None = None
    redundant_workers: int = 0
    idle_timeout_s: float = 30.0
    registration_timeout_s: float = 300.0
    max_failures: float = 10.0
    retry_interval_s: float = 3.0
    recovery_timeout_s: float = 30.0


@dataclass(frozen=True, slots=True)
class RegisteredWorker:
    """A registered TaskExecutor; *idle_s* is None while one of its slots is used."""

    instance_id: InstanceID
    resource_id: ResourceID
    slots: int
    free: int
    idle_s: float | None


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Request a worker; answer with `requested`, `request_failed` or `none_left` of the `WorkerAllocator`."""

    request: int


@dataclass(frozen=True, slots=True)
class ReleaseWorker:
    """Stop a worker that no job has used for *idle_s* seconds."""

    instance_id: InstanceID
    resource_id: ResourceID
    idle_s: float


@dataclass(frozen=True, slots=True)
class GiveUpWorker:
    """Stop a worker that has not registered in time; it is no longer pending."""

    resource_id: ResourceID
    waited_s: float


Decision = StartWorker | ReleaseWorker | GiveUpWorker


@dataclass(slots=True)
class _Pending:
    since: float
    is_previous: bool = False
    has_been_here: bool = False


class WorkerAllocator:
    """The state of requested and registered workers.

    Args:
        limits: set by the configuration.
    """

    def __init__(self, limits: AllocationLimits) -> None:
        self.limits = limits
        self._requests = 0
        self._requested: set[int] = set()
        self._pending: dict[ResourceID, _Pending] = {}
        self._here: set[ResourceID] = set()
        self._failures: deque[float] = deque()
        self._paused_until = 0.0
        self._last_failure = ""
        self._is_recovered = False
        self._lacking = False

    # ------------------------------------------------------------------- events

    @property
    def pending_workers(self) -> int:
        """The number of workers that were requested and have not registered."""
        return len(self._requested) + len(self._pending)

    def recovered(self, workers: Iterable[ResourceID], now: float) -> None:
        """Add the workers of an earlier leader, as pending; without this call nothing is decided."""
        for name in workers:
            if name not in self._here:
                self._pending[name] = _Pending(now, is_previous=True)
        self._is_recovered = True
        self._last_failure = ""

    def recovery_failed(self, cause: str) -> None:
        """Note that the driver could not list them; the caller retries."""
        self._last_failure = cause

    def requested(self, request: int, resource_id: ResourceID, now: float) -> None:
        """Note that the driver is starting a worker of that name."""
        self._requested.discard(request)
        if resource_id not in self._here:
            self._pending[resource_id] = _Pending(now)

    def request_failed(self, request: int, cause: str, now: float) -> None:
        """Note that the driver could not start a worker."""
        self._requested.discard(request)
        self._failed(cause, now)

    def none_left(self, request: int, cause: str, now: float) -> None:
        """Note that the driver has no further worker, which is not a failure; pause for the retry interval."""
        self._requested.discard(request)
        self._paused_until = max(self._paused_until, now + self.limits.retry_interval_s)
        self._last_failure = cause

    def registered(self, resource_id: ResourceID) -> None:
        """Note that a TaskExecutor has registered, also one that this allocator did not request."""
        if self._pending.pop(resource_id, None) is not None:
            self._last_failure = ""
        self._here.add(resource_id)

    def unregistered(self, resource_id: ResourceID, now: float) -> None:
        """Note the end of a registration. The worker may live and register again, so it is pending until it ends."""
        if resource_id in self._here:
            self._here.discard(resource_id)
            self._pending[resource_id] = _Pending(now, has_been_here=True)

    def terminated(self, resource_id: ResourceID, cause: str, now: float) -> None:
        """Note the end of a worker; without a registration before, it counts as a failed start (as in Flink)."""
        pending = self._pending.pop(resource_id, None)
        self._here.discard(resource_id)
        if pending is not None and not (pending.has_been_here or pending.is_previous):
            self._failed(f"{resource_id} has ended before it registered: {cause}", now)

    def _failed(self, cause: str, now: float) -> None:
        self._last_failure = cause
        self._failures.append(now)
        while self._failures and self._failures[0] <= now - FAILURE_WINDOW_S:
            self._failures.popleft()
        if len(self._failures) > self.limits.max_failures:
            self._paused_until = max(self._paused_until, now + self.limits.retry_interval_s)

    # ---------------------------------------------------------------- decisions

    def decide(
        self, waiting: int, registered: Sequence[RegisteredWorker], now: float, stuck: Sequence[int] = ()
    ) -> list[Decision]:
        """Return the decisions that are due now.

        Args:
            waiting: the number of slot requests for which no registered TaskExecutor has a free slot.
            registered: the registered TaskExecutors that are not being stopped.
            now: monotonic seconds.
            stuck: the numbers, by user, of those requests that free slots of registered TaskExecutors do not help,
                because these serve other users. Two users share no worker.
        """
        if not self._is_recovered:
            return []
        decisions: list[Decision] = [*self._give_up(now)]
        slots, free = sum(item.slots for item in registered), sum(item.free for item in registered)
        starts = self._starts(waiting, slots, free, now, stuck)
        if starts:
            return [*decisions, *starts]
        if not waiting:
            decisions += self._releases(registered, slots, free)
        return decisions

    def next_deadline(self, registered: Sequence[RegisteredWorker], now: float) -> float | None:
        """Return the monotonic time in seconds at which `decide` has to be called next; None for never.

        Events may make an earlier call necessary.
        """
        limits, pending = self.limits, self._pending.values()
        moments = [item.since + limits.registration_timeout_s for item in pending]
        moments += [item.since + limits.recovery_timeout_s for item in pending if item.is_previous]
        moments += [now + limits.idle_timeout_s - item.idle_s for item in registered if item.idle_s is not None]
        moments.append(self._paused_until)
        return min((at for at in moments if now < at < math.inf), default=None)

    def _give_up(self, now: float) -> list[GiveUpWorker]:
        timeout_s = self.limits.registration_timeout_s
        late = [(name, now - item.since) for name, item in self._pending.items() if now - item.since >= timeout_s]
        for name, waited_s in late:
            del self._pending[name]
            self._failed(f"{name} did not register within {waited_s:.0f} s", now)
        return [GiveUpWorker(name, waited_s) for name, waited_s in late]

    def _coming(self, now: float) -> int:
        """Return the slots of pending workers; those of an earlier leader count until the recovery timeout."""
        counted = [
            item
            for item in self._pending.values()
            if not item.is_previous or now - item.since < self.limits.recovery_timeout_s
        ]
        return (len(self._requested) + len(counted)) * self.limits.slots_per_worker

    def _starts(self, waiting: int, slots: int, free: int, now: float, stuck: Sequence[int]) -> list[StartWorker]:
        limits, coming = self.limits, self._coming(now)
        spare = limits.redundant_workers * limits.slots_per_worker
        # The workers of a user who cannot use what is free are whole ones.
        own = sum(-(-number // limits.slots_per_worker) for number in stuck) * limits.slots_per_worker
        others = waiting - sum(stuck)
        missing = max(own + max(others + spare - free, 0) - coming, limits.min_slots - slots - coming)
        wanted = max(0, -(-missing // limits.slots_per_worker))
        self._lacking = False
        if limits.max_slots is not None:
            # Here all pending workers count, so that a late one does not exceed the limit.
            room = limits.max_slots - slots - self.pending_workers * limits.slots_per_worker
            allowed = max(0, room // limits.slots_per_worker)
            self._lacking = own + max(others - free, 0) > coming + allowed * limits.slots_per_worker
            wanted = min(wanted, allowed)
        if not wanted or now < self._paused_until:
            return []
        first = self._requests + 1
        self._requests += wanted
        self._requested.update(range(first, first + wanted))
        return [StartWorker(number) for number in range(first, first + wanted)]

    def _releases(self, registered: Sequence[RegisteredWorker], slots: int, free: int) -> list[ReleaseWorker]:
        limits = self.limits
        found: list[ReleaseWorker] = []
        idle = [(item.idle_s, item) for item in registered if item.idle_s is not None]
        for idle_s, item in sorted(idle, key=lambda pair: -pair[0]):
            slots, free = slots - item.slots, free - item.free
            if (
                idle_s < limits.idle_timeout_s
                or slots < limits.min_slots
                or free < limits.redundant_workers * limits.slots_per_worker
            ):
                break
            found.append(ReleaseWorker(item.instance_id, item.resource_id, idle_s))
        return found

    # ------------------------------------------------------------------- words

    def outlook(self, now: float) -> str:
        """Return a text for users whether waiting requests will get slots; empty without any news."""
        if not self._is_recovered:
            cause = f" ({self._last_failure})" if self._last_failure else ""
            return f"the workers of an earlier leader are being looked for{cause}"
        if self._lacking:
            return (
                f"there may be at most {self.limits.max_slots} (slotmanager.number-of-slots.max): raise that, wait for "
                "other jobs, or cancel one"
            )
        if now < self._paused_until and self._last_failure:
            return f"{self._last_failure}; the next try is in {self._paused_until - now:.0f} s"
        if self.pending_workers:
            cause = f" (before: {self._last_failure})" if self._last_failure else ""
            return f"{self.pending_workers} worker(s) are being started{cause}"
        return self._last_failure

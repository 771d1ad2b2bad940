"""When a worker is started, stopped or given up (Flink's `ResourceAllocationStrategy` and `ActiveResourceManager`).

Pure: events in, decisions out; times are monotonic seconds. A worker is *pending* from the request for it until its
TaskExecutor registers. What is pending counts as if it were there, so nothing is asked for twice; it does not count for
ever, so that a worker that never comes is replaced.
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
        slots_per_worker: that one brings (``taskmanager.numberOfTaskSlots``).
        min_slots: that are always there (``slotmanager.number-of-slots.min``).
        max_slots: that there may be (``slotmanager.number-of-slots.max``); None: any number.
        redundant_workers: whose slots are kept free beside what is asked for
            (``slotmanager.redundant-taskmanager-num``).
        idle_timeout_s: after which an unused worker is stopped (``resourcemanager.taskmanager-timeout``).
        registration_timeout_s: after which a worker that has not registered is given up
            (``resourcemanager.taskmanager-registration.timeout``).
        max_failures: of starts within a minute (``resourcemanager.start-worker.max-failure-rate``).
        retry_interval_s: without a start after more failures than that
            (``resourcemanager.start-worker.retry-interval``).
        recovery_timeout_s: for which those of an earlier leader count as coming
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
    """Ask for a worker; answer with `WorkerAllocator.requested` or `WorkerAllocator.request_failed`."""

    request: int


@dataclass(frozen=True, slots=True)
class ReleaseWorker:
    """Stop a worker that nobody has used for *idle_s* seconds."""

    instance_id: InstanceID
    resource_id: ResourceID
    idle_s: float


@dataclass(frozen=True, slots=True)
class GiveUpWorker:
    """Stop a worker that has not registered in time; it counts no more."""

    resource_id: ResourceID
    waited_s: float


Decision = StartWorker | ReleaseWorker | GiveUpWorker


@dataclass(slots=True)
class _Pending:
    since: float
    is_previous: bool = False
    has_been_here: bool = False


class WorkerAllocator:
    """The book of the workers that were asked for.

    Args:
        limits: what the configuration says.
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
        """Workers that were asked for and have not registered."""
        return len(self._requested) + len(self._pending)

    def recovered(self, workers: Iterable[ResourceID], now: float) -> None:
        """The driver has told which workers an earlier leader had; before this, nothing is decided."""
        for name in workers:
            if name not in self._here:
                self._pending[name] = _Pending(now, is_previous=True)
        self._is_recovered = True
        self._last_failure = ""

    def recovery_failed(self, cause: str) -> None:
        """The driver could not tell; it is asked again."""
        self._last_failure = cause

    def requested(self, request: int, resource_id: ResourceID, now: float) -> None:
        """The driver has begun to start a worker of that name."""
        self._requested.discard(request)
        if resource_id not in self._here:
            self._pending[resource_id] = _Pending(now)

    def request_failed(self, request: int, cause: str, now: float) -> None:
        """The driver could not start one."""
        self._requested.discard(request)
        self._failed(cause, now)

    def none_left(self, request: int, cause: str, now: float) -> None:
        """The driver has no further worker, which is no failure; it is asked again after the retry interval."""
        self._requested.discard(request)
        self._paused_until = max(self._paused_until, now + self.limits.retry_interval_s)
        self._last_failure = cause

    def registered(self, resource_id: ResourceID) -> None:
        """A TaskExecutor has registered, whoever started it."""
        if self._pending.pop(resource_id, None) is not None:
            self._last_failure = ""
        self._here.add(resource_id)

    def unregistered(self, resource_id: ResourceID, now: float) -> None:
        """A TaskExecutor is gone. Its worker may live, and start it again: so it is pending, unless it has ended."""
        if resource_id in self._here:
            self._here.discard(resource_id)
            self._pending[resource_id] = _Pending(now, has_been_here=True)

    def terminated(self, resource_id: ResourceID, cause: str, now: float) -> None:
        """A worker has ended; one that had never registered is a failure to start (Flink counts the same)."""
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

    def decide(self, waiting: int, registered: Sequence[RegisteredWorker], now: float) -> list[Decision]:
        """Return what is to be done now.

        Args:
            waiting: requests for a slot that no registered TaskExecutor has a free one for.
            registered: the TaskExecutors that are here and are not being stopped.
            now: monotonic seconds.
        """
        if not self._is_recovered:
            return []
        decisions: list[Decision] = [*self._give_up(now)]
        slots, free = sum(item.slots for item in registered), sum(item.free for item in registered)
        starts = self._starts(waiting, slots, free, now)
        if starts:
            return [*decisions, *starts]
        if not waiting:
            decisions += self._releases(registered, slots, free)
        return decisions

    def next_deadline(self, registered: Sequence[RegisteredWorker], now: float) -> float | None:
        """When `decide` could next decide otherwise by the passing of time alone; None: never as things are."""
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
        """Slots of what is pending; those of an earlier leader count for the time that they are waited for."""
        counted = [
            item
            for item in self._pending.values()
            if not item.is_previous or now - item.since < self.limits.recovery_timeout_s
        ]
        return (len(self._requested) + len(counted)) * self.limits.slots_per_worker

    def _starts(self, waiting: int, slots: int, free: int, now: float) -> list[StartWorker]:
        limits, coming = self.limits, self._coming(now)
        spare = limits.redundant_workers * limits.slots_per_worker
        missing = max(waiting + spare - free - coming, limits.min_slots - slots - coming)
        wanted = max(0, -(-missing // limits.slots_per_worker))
        self._lacking = False
        if limits.max_slots is not None:
            # All that is pending counts here, lest a late one exceed the limit.
            room = limits.max_slots - slots - self.pending_workers * limits.slots_per_worker
            allowed = max(0, room // limits.slots_per_worker)
            self._lacking = waiting > free + coming + allowed * limits.slots_per_worker
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
        """Return what those who wait for slots may hope for, in words; empty when nothing is to be said."""
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

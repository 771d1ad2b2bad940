"""Checkers over the slots of a simulated cluster: each has one owner that uses it, and goes back in time.

`ClusterChecks` looks at the books of the living components after each step, and at single calls (`patches`). It changes
nothing, and draws no random number. Times are virtual seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from runtime.ids import AllocationID, JobID, ResourceID, SlotID
from runtime.jobmaster.endpoint import JobMaster
from runtime.jobmaster.slot_pool import SlotPool
from runtime.protocol.slots import AllocateSlot
from runtime.resourcemanager.slot_manager import SlotManager
from runtime.taskexecutor.connections import JobConnections
from runtime.taskexecutor.endpoint import TaskExecutor
from runtime.taskexecutor.slot_table import Allocation, TaskSlotTable
from tests.simulation.faults import Fault
from tests.simulation.kernel import SimProcess, installed_kernel
from tests.simulation.patches import Patch
from tests.simulation.world import CHECK_EVERY_S, World

if TYPE_CHECKING:
    from tests.simulation.workloads.cluster import Cluster

HEARTBEAT_TIMEOUT_S = 4.0
ISOLATION_S = 2.5
JOB_MASTER_TIMEOUT_S = 15.0
IDLE_S = 2.0
"""The values of `configuration_of`."""
UNNEEDED_S = 8.0
"""Seconds without a fault in which a TaskExecutor frees a slot that its job does not have; an ask may time out."""
UNNEEDED_IN_FAULTS_S = 30.0
"""The same while faults happen; a TaskExecutor that misses the JobMaster waits for `JOB_MASTER_TIMEOUT_S`."""
MARGIN_S = 3.0
"""Further seconds in which a component acts, after a timeout is over."""
UNNEEDED = "a slot that its job does not have is free"
SHORT_KINDS = frozenset({"kill", "kill_at_effect", "break_after", "reset", "cut", "jump", "submit", "cancel"})
"""Faults whose arguments are no durations, and are over after `MARGIN_S`."""


def has_accepted(master: JobMaster, allocation: Allocation) -> bool:
    """Return whether a job has this slot; a request may get two, and its job refuses the second."""
    held = master._pool._held.get(allocation.allocation_id)
    return held is not None and held.slot.slot_id == allocation.slot_id


class Overdue:
    """How long each thing has been as it should not be; time in which its process stands still does not count."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._for_s: dict[tuple[SimProcess, object], float] = {}

    def look(self, found: Iterable[tuple[SimProcess, object, str, str, float]]) -> None:
        """Check what was found now: a process, a thing of it, a check, a text, and the seconds that are allowed."""
        for_s: dict[tuple[SimProcess, object], float] = {}
        for process, thing, check, text, allowed_s in found:
            key = process, thing
            for_s[key] = self._for_s.get(key, 0.0) + (CHECK_EVERY_S if runs(process) else 0.0)
            if for_s[key] > allowed_s:
                self._world.fail(check, f"{text}, for {for_s[key]:.1f} s")
        self._for_s = for_s


def runs(process: SimProcess) -> bool:
    """Return whether a process may run, and is not stopped within a stretch of code."""
    return process.may_run and process._busy_until <= process.kernel.now + 100_000_000


class ClusterChecks:
    """The checks of one run.

    Args:
        workload: what runs.
    """

    def __init__(self, workload: Cluster) -> None:
        self._workload = workload
        self._world = workload.world
        self._overdue = Overdue(workload.world)
        self._plan: list[Fault] = []
        self._lost: dict[tuple[JobConnections, JobID], float] = {}

    def begins(self, plan: list[Fault]) -> None:
        """Note the faults of a run."""
        self._plan = plan

    def is_disturbed(self) -> bool:
        """Return whether a fault happens at this time."""
        now = self._world.kernel.seconds
        if now > self._workload.faults_s + MARGIN_S:
            return False
        return any(fault.at_s <= now < fault.at_s + lasts(fault) + MARGIN_S for fault in self._plan)

    def look(self) -> None:
        """Check the books of all living components."""
        self._overdue.look([*self._slots(), *self._idle_slots(), *self._silent(), *self._cut_off()])

    def _job_masters(self) -> dict[JobID, JobMaster]:
        """Return the JobMasters that lead, and know their jobs' tasks."""
        found: dict[JobID, JobMaster] = {}
        for endpoint, process in self._workload.endpoints.items():
            if isinstance(endpoint, JobMaster) and process.alive and endpoint._graph is not None:
                found[endpoint._job_id] = endpoint
        return found

    def _slots(self) -> Iterator[tuple[SimProcess, object, str, str, float]]:
        is_disturbed = self.is_disturbed()
        masters = self._job_masters()
        for name, executor in self._workload.executors.items():
            process = self._world.find(name)
            if process is None or executor.service.loop is not process.loop:
                continue
            for held in executor.slots.all:
                master = masters.get(held.job_id)
                if master is None or has_accepted(master, held):
                    continue
                text = f"{name} has slot {held.slot_id} for job {held.job_id}, whose JobMaster does not have it"
                yield process, held, UNNEEDED, text, UNNEEDED_IN_FAULTS_S
                if not is_disturbed:
                    yield process, (UNNEEDED, held), UNNEEDED, text, UNNEEDED_S

    def _idle_slots(self) -> Iterator[tuple[SimProcess, object, str, str, float]]:
        for endpoint, process in self._workload.endpoints.items():
            if not isinstance(endpoint, JobMaster) or endpoint._graph is None or not process.may_run:
                continue
            if not self._workload._holds(endpoint, process):
                continue
            for held in endpoint._pool._held.values():
                if held.request_id is None:
                    text = f"job {endpoint._job_id} uses {held.slot.slot_id} no more"
                    yield process, held.slot.allocation_id, "an idle slot goes back", text, IDLE_S + MARGIN_S

    def _silent(self) -> Iterator[tuple[SimProcess, object, str, str, float]]:
        for process, manager in self._workload.managers.items():
            if not process.alive or not runs(process) or not self._workload._holds(manager, process):
                continue
            for name in self._workload.executors:
                silent = self._world.find(name)
                instance = manager._instances.find(ResourceID(name))
                if silent is None or instance is None or silent.may_run or instance.registration.pid != silent.pid:
                    continue
                text = f"{name} stands still, and is registered at {process.name}"
                allowed_s = HEARTBEAT_TIMEOUT_S + MARGIN_S
                yield process, instance.instance_id, "a silent TaskExecutor is lost", text, allowed_s

    def _cut_off(self) -> Iterator[tuple[SimProcess, object, str, str, float]]:
        hosts, link = self._world.kernel.hosts, self._world.network.link
        for task in self._workload.tasks:
            process = task.process
            if task.ended is not None or not process.alive:
                continue
            here = process.host
            others = [other for other in hosts.values() if other.name.startswith(("master", "keeper"))]
            if all(link(here, other).blocked and link(other, here).blocked for other in others):
                text = f"job {task.job_id} runs on {process.name}, which is cut off"
                check = "a TaskExecutor that is cut off ends its tasks"
                yield process, task.attempt_id, check, text, ISOLATION_S + MARGIN_S

    # ------------------------------------------------------------------ single calls

    def lost(self, connections: JobConnections, job_id: JobID) -> None:
        """Note that a TaskExecutor misses the JobMaster of a job."""
        self._lost[connections, job_id] = self._world.kernel.seconds

    def gives_up(self, executor: TaskExecutor, job_id: JobID) -> None:
        """Check that a TaskExecutor that cancels tasks for want of a JobMaster has waited for one."""
        waited_s = self._world.kernel.seconds - self._lost[executor._connections, job_id]
        if waited_s < JOB_MASTER_TIMEOUT_S * 0.95:
            self._world.fail(
                "tasks outlast their JobMaster", f"{executor.name} cancels job {job_id} after {waited_s} s"
            )

    def refused(self, executor: TaskExecutor, allocation_id: AllocationID) -> None:
        """Check a slot that a TaskExecutor frees because its job has not accepted it."""
        held = next((held for held in executor.slots.all if held.allocation_id == allocation_id), None)
        master = None if held is None else self._job_masters().get(held.job_id)
        if held is not None and master is not None and has_accepted(master, held):
            text = f"{executor.name} frees {allocation_id}, which job {master._job_id} has accepted"
            self._world.fail("a slot that its job has stays", text)

    def requested(self, manager: SlotManager, allocation_id: AllocationID, had_its_slot: bool) -> None:
        """Check a request that has had its slot before it came again."""
        if had_its_slot and allocation_id in manager._requests:
            self._world.fail("a request has one slot", f"request {allocation_id} has one, and waits for another")

    def not_allocated(self, slot_id: SlotID, instructions: Iterable[object]) -> None:
        """Check what follows the lost or negative answer to an allocation."""
        if any(isinstance(each, AllocateSlot) and each.slot_id == slot_id for each in instructions):
            self._world.fail("a slot of unknown outcome waits for a report", f"slot {slot_id} is given at once again")

    def allocated(self, slot_id: SlotID, before: Any, now: Any) -> None:
        """Check an allocation at a TaskExecutor."""
        if before is not None and before != now:
            self._world.fail("a slot has one owner", f"slot {slot_id} is given to {now}, and belongs to {before}")

    def offered(self, pool: SlotPool) -> None:
        """Check the slots of a job after an offer."""
        slots = [held.slot.slot_id for held in pool._held.values()]
        if len(slots) > len(set(slots)):
            self._world.fail("a slot has one allocation", f"a job has {slots}")


def lasts(fault: Fault) -> float:
    """Return the longest time that a fault may last, in seconds."""
    if fault.kind in SHORT_KINDS:
        return 0.0
    return max((float(value) for value in fault.args if isinstance(value, int | float)), default=0.0)


def patches(kernel: Any) -> list[Patch]:
    """Return the functions of the product that the checks watch."""

    def checks() -> ClusterChecks:
        found: ClusterChecks = installed_kernel().devices["cluster"].checks
        return found

    register, fail = SlotManager.register_slot_request, SlotManager.slot_allocation_failed
    allocate, offer = TaskSlotTable.allocate, SlotPool.offer_slot
    lost, drop, release = JobConnections.master_lost, TaskExecutor._drop_job, TaskExecutor.release_slot

    def watched_register(self: SlotManager, request: Any, now: float) -> Any:
        allocation_id = request.allocation_id
        had_its_slot = allocation_id in self._held and allocation_id not in self._requests
        instructions = register(self, request, now)
        checks().requested(self, allocation_id, had_its_slot)
        return instructions

    def watched_fail(self: SlotManager, slot_id: SlotID, allocation_id: AllocationID) -> Any:
        instructions = fail(self, slot_id, allocation_id)
        checks().not_allocated(slot_id, instructions)
        return instructions

    def watched_allocate(self: TaskSlotTable, slot_id: SlotID, *args: Any, **options: Any) -> bool:
        before = self._allocations.get(slot_id)
        is_new = allocate(self, slot_id, *args, **options)
        checks().allocated(slot_id, before, self._allocations.get(slot_id))
        return is_new

    def watched_offer(self: SlotPool, *args: Any) -> Any:
        answer = offer(self, *args)
        checks().offered(self)
        return answer

    def watched_lost(self: JobConnections, job_id: JobID) -> int | None:
        checks().lost(self, job_id)
        return lost(self, job_id)

    def watched_drop(self: TaskExecutor, job_id: JobID, reason: str) -> None:
        if reason.endswith("taskmanager.job-master.timeout"):
            checks().gives_up(self, job_id)
        drop(self, job_id, reason)

    def watched_release(self: TaskExecutor, allocation_id: AllocationID, reason: str) -> None:
        if reason == "the job does not need it":
            checks().refused(self, allocation_id)
        release(self, allocation_id, reason)

    return [
        (TaskExecutor, "release_slot", watched_release),
        (SlotManager, "register_slot_request", watched_register),
        (SlotManager, "slot_allocation_failed", watched_fail),
        (TaskSlotTable, "allocate", watched_allocate),
        (SlotPool, "offer_slot", watched_offer),
        (JobConnections, "master_lost", watched_lost),
        (TaskExecutor, "_drop_job", watched_drop),
    ]

"""A ResourceManager and a thousand TaskExecutors: registrations, heartbeats, slots, views, and the loss of many."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from actors.rpc.endpoint import FencedRpcEndpoint
from actors.rpc.fencing import Leadership
from actors.rpc.gateway import FencingToken, rpc_sync
from actors.rpc.service import RpcService
from conf.options import HeartbeatOptions
from runtime.ids import AllocationID, JobID
from runtime.leaders import LeaderFollower
from runtime.protocol.job_master import JobMasterGateway
from runtime.protocol.leader import RESOURCE_MANAGER, job_master
from runtime.protocol.messages import JobMasterRegistration, ResourceOverview
from runtime.protocol.resource_manager import ResourceManagerGateway
from runtime.protocol.slots import SlotRequest
from tests.acting import ActingEndpoint
from tests.bench.scale.executors import SLOTS, ExecutorsGateway
from tests.bench.scale.growth import Figures, growth
from tests.bench.scale.stubs import refuses_the_rest
from tests.bench.scale.surroundings import PATIENCE_S, Component, Surroundings, progress

PROCESSES = 2
INTERVALS = 5
VIEWS = 100
TOKEN = FencingToken(1, "bench")
COSTS = ("register", "heartbeat", "slots", "waiting_heartbeat", "free", "views")


@refuses_the_rest
class SlotTaker(FencedRpcEndpoint, JobMasterGateway):
    """A JobMaster that asks for slots and does nothing with them."""

    def __init__(self, service: RpcService) -> None:
        super().__init__(service, "slot-taker")
        self.fencing_token = TOKEN
        self.failures: list[str] = []

    @rpc_sync
    def heartbeat_from_resource_manager(self) -> None:
        """It is there."""

    @rpc_sync
    def notify_slot_gone(self, allocation_id: AllocationID) -> None:
        pass

    @rpc_sync
    def notify_allocation_failure(self, allocation_id: AllocationID, reason: str) -> None:
        self.failures.append(reason)


class _Measuring:
    """One ResourceManager, and the TaskExecutors so far."""

    def __init__(
        self,
        cluster: Surroundings,
        manager: Component,
        gateway: ResourceManagerGateway,
        executors: list[Component],
        job_id: JobID,
    ) -> None:
        self._manager = manager
        self._gateway = gateway
        self._executors = [
            cluster.service.gateway(one.actor.address, ExecutorsGateway, timeout_s=PATIENCE_S) for one in executors
        ]
        self._interval_s = cluster.context.configuration.get(HeartbeatOptions.INTERVAL)
        self._job_id = job_id
        self._taker = SlotTaker(cluster.service)
        self._cluster = cluster
        self.size = 0
        self._in_first = 0
        self._share = 0.0
        self.points: dict[str, list[tuple[float, float]]] = {name: [] for name in COSTS}

    async def start(self) -> None:
        """Register the job that takes slots."""
        await self._cluster.service.start_server(self._taker)
        await self._gateway.register_job_manager(self._job_id, JobMasterRegistration(str(self._taker.address), TOKEN))

    async def grow(self, size: int, registered_s: float) -> float:
        """Go on to *size* TaskExecutors and measure all; returns the processor seconds of all registrations."""
        before, began = self._share, time.monotonic()
        spent_s = await self._cpu(lambda: self._add(size))
        took_s = time.monotonic() - began
        heartbeats_s = await self._heartbeats()
        self._share = heartbeats_s / self._interval_s
        registered_s += max(spent_s - took_s * (self._share - before) / 2, 0.01)  # they came one after the other
        self._note("register", registered_s)
        self._note("heartbeat", heartbeats_s)
        requests = [self._request() for _ in range(SLOTS * size)]
        self._note("slots", await self._cpu(lambda: self._take(requests)))
        more = [self._request() for _ in range(size)]
        await self._ask_all(more)
        self._note("waiting_heartbeat", await self._heartbeats())
        for request in more:
            self._gateway.cancel_slot_request(request.allocation_id)
        await self._until(lambda found: found.pending_requests == 0)
        self._note("free", await self._cpu(self._free))
        self._note("views", await self._cpu(self._look) / VIEWS)
        if self._taker.failures:
            raise RuntimeError(f"{len(self._taker.failures)} slot requests failed: {self._taker.failures[0]}")
        return registered_s

    def _note(self, name: str, cost: float) -> None:
        progress(f"ResourceManager, {self.size} TaskExecutors: {name} {cost:.3f} s of processor time")
        self.points[name].append((self.size, cost))

    async def _cpu(self, work: Callable[[], Awaitable[object]]) -> float:
        """Processor seconds of *work*, without those of the heartbeats meanwhile."""
        began, before = time.monotonic(), self._manager.cpu_s()
        await work()
        spent_s = self._manager.cpu_s() - before - (time.monotonic() - began) * self._share
        return max(spent_s, 0.01)  # what the kernel counts in

    async def _add(self, size: int) -> None:
        shares = [range(self.size + number, size, PROCESSES) for number in range(PROCESSES)]
        await asyncio.gather(*(one.add(list(numbers)) for one, numbers in zip(self._executors, shares, strict=True)))
        self._in_first += len(shares[0])
        self.size = size
        await self._until(lambda found: found.slots == SLOTS * size)

    async def _heartbeats(self) -> float:
        """Processor seconds a heartbeat interval."""
        began, before = time.monotonic(), self._manager.cpu_s()
        await asyncio.sleep(INTERVALS * self._interval_s)
        intervals = (time.monotonic() - began) / self._interval_s
        return max(self._manager.cpu_s() - before, 0.01) / intervals  # what the kernel counts in

    def _request(self) -> SlotRequest:
        return SlotRequest(self._job_id, AllocationID.random(), "bench", "task")

    async def _ask_all(self, requests: list[SlotRequest]) -> None:
        for begin in range(0, len(requests), 100):
            await asyncio.gather(*(self._gateway.request_slot(one) for one in requests[begin : begin + 100]))

    async def _take(self, requests: list[SlotRequest]) -> None:
        await self._ask_all(requests)
        await self._until(lambda found: found.free_slots == 0 and found.pending_requests == 0)

    async def _free(self) -> None:
        await asyncio.gather(*(one.free_all() for one in self._executors))
        await self._until(lambda found: found.free_slots == SLOTS * self.size)

    async def _look(self) -> None:
        for _ in range(VIEWS):
            await self._gateway.request_task_managers()

    async def _until(self, condition: Callable[[ResourceOverview], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition(found := await self._gateway.request_resource_overview()):
            if time.monotonic() > deadline:
                raise RuntimeError(f"the ResourceManager stays at {found}")
            await asyncio.sleep(0.05)

    async def lose_first(self, lost: Component) -> float:
        """Kill the first of the processes; the processor seconds until all of its TaskExecutors are given up."""
        left = self.size - self._in_first

        async def lose() -> None:
            lost.kill()
            await self._until(lambda found: found.task_managers == left)

        return await self._cpu(lose)


async def measure(cluster: Surroundings, sizes: list[int]) -> Figures:
    """The figures of a ResourceManager with as many TaskExecutors as *sizes* say, one after the other."""
    cluster.configure({"slot.request.timeout": "600s", "heartbeat.timeout": "120s", "rpc.ask-timeout": "60s"})
    manager = await cluster.resource_manager()
    executors = [
        await cluster.host(f"executors-{number}", "tests.bench.scale.executors:create") for number in range(PROCESSES)
    ]
    job_id = JobID.random()
    leader = ActingEndpoint(cluster.service, "leader", Leadership(job_master(job_id), TOKEN.epoch, TOKEN.session))
    follower = LeaderFollower(leader, cluster.ha.leader_retrieval(RESOURCE_MANAGER), ResourceManagerGateway)
    await follower.start()
    measuring = _Measuring(cluster, manager, await follower.get(), executors, job_id)
    await measuring.start()
    empty_bytes, registered_s = manager.resident_bytes(), 0.0
    for size in sizes:
        registered_s = await measuring.grow(size, registered_s)
    most = sizes[-1]
    last = {name: points[-1][1] for name, points in measuring.points.items()}
    interval_s = cluster.context.configuration.get(HeartbeatOptions.INTERVAL)
    figures = {
        f"rm_heartbeat_core_share_{most}": last["heartbeat"] / interval_s,
        f"rm_heartbeat_core_share_{most}_with_{most}_waiting": last["waiting_heartbeat"] / interval_s,
        "rm_cpu_ms_per_registration": last["register"] / most * 1000,
        "rm_cpu_ms_per_slot": last["slots"] / most / SLOTS * 1000,
        "rm_cpu_ms_per_slot_freed": last["free"] / most / SLOTS * 1000,
        "rm_cpu_ms_per_view_of_all": last["views"] * 1000,
        "rm_bytes_per_executor": (manager.resident_bytes() - empty_bytes) / most,
        "rm_redis_keys": await cluster.redis_keys(),
    }
    for name in COSTS:
        figures |= growth(f"rm_{name}", measuring.points[name])
    figures[f"rm_cpu_s_to_lose_{most // PROCESSES}"] = await measuring.lose_first(executors[0])
    await follower.stop()
    return figures

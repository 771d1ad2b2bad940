"""A Dispatcher and ten thousand jobs: accepted, run, archived, listed, recovered, expired; and a thousand at once."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable

from actors.rpc.gateway import FencingToken
from blob.offload import Inline
from runtime.ids import JobID
from runtime.jobgraph.codec import encode
from runtime.jobgraph.job_graph import JobGraph
from runtime.leaders import LeaderFollower
from runtime.protocol.dispatcher import DispatcherGateway
from runtime.protocol.leader import DISPATCHER
from tests.bench.scale.growth import Figures, growth
from tests.bench.scale.growth import sizes as halves
from tests.bench.scale.job_masters import LightMaster
from tests.bench.scale.surroundings import LEASE_S, PATIENCE_S, Component, Surroundings, progress, until

AT_ONCE = 16
LISTINGS = 5
IDLE_S = LEASE_S / 3
"""In which everyone who follows a leader looks once."""
AT_ONCE_SHARE = 10
"""One in so many jobs of all runs at the same time as the others of its kind."""
COSTS = ("job", "list", "recovery", "expiry", "running_job", "running_list", "running_idle")


class _Measuring:
    """One Dispatcher after the other, on the same Redis, and the jobs so far."""

    def __init__(self, cluster: Surroundings, master: LightMaster) -> None:
        self._cluster, self._master = cluster, master
        self._follower = LeaderFollower(cluster.service, cluster.ha.leader_retrieval(DISPATCHER), DispatcherGateway)
        self.dispatcher: Component
        self.gateway: DispatcherGateway
        self._submitted = 0
        self.points: dict[str, list[tuple[float, float]]] = {name: [] for name in COSTS}

    async def follow(self) -> None:
        """Learn who leads."""
        await self._follower.start()

    async def start(self) -> float:
        """Start a Dispatcher on what there is; returns the processor seconds until it serves, but for its start."""
        before = self._follower.gateway
        self.dispatcher = await self._cluster.dispatcher(str(self._master.address))
        started_s = self.dispatcher.cpu_s()
        await until(lambda: self._follower.gateway not in (None, before), "a Dispatcher leads")
        found = self._follower.leader
        assert found is not None
        token = FencingToken(found.epoch, found.session)
        self.gateway = self._cluster.service.gateway(found.address, DispatcherGateway, token, PATIENCE_S)
        return max(self.dispatcher.cpu_s() - started_s, 0.01)

    async def stop(self) -> None:
        """End the Dispatcher."""
        await self._cluster.stop(self.dispatcher)

    def note(self, name: str, size: int, cost: float) -> None:
        """Add one measured cost."""
        self.points[name].append((size, cost))
        progress(f"Dispatcher, {size} jobs: {name} {cost:.3f} s of processor time")

    async def cpu(self, work: Callable[[], Awaitable[object]]) -> float:
        """Processor seconds of the Dispatcher while *work* lasts."""
        before = self.dispatcher.cpu_s()
        await work()
        return max(self.dispatcher.cpu_s() - before, 0.01)  # what the kernel counts in

    async def submit(self, count: int) -> None:
        """Submit jobs, some at once."""
        left = iter(range(self._submitted, self._submitted + count))
        self._submitted += count

        async def client() -> None:
            for number in left:
                now_ms = time.time_ns() // 1_000_000
                graph = JobGraph.for_script(f"job-{number}", job_id=JobID(f"{number:032x}"), created_ms=now_ms)
                await self.gateway.submit_job(Inline(encode(graph)))

        await asyncio.gather(*(client() for _ in range(AT_ONCE)))

    async def cleaned(self) -> None:
        """Wait until nothing of any job that is over is left but its result."""
        await until(lambda: self._master.stopped == self._submitted, "all JobMasters are stopped")
        deadline = time.monotonic() + PATIENCE_S
        registry = self._cluster.ha.running_jobs_registry()
        while await registry.dirty_results():
            if time.monotonic() > deadline:
                raise RuntimeError("jobs that are over are not cleaned up after")
            await asyncio.sleep(0.2)

    async def run(self, count: int) -> None:
        """Submit jobs and wait until they are archived and cleaned up after."""
        await self.submit(count)
        await self.cleaned()

    async def list_all(self) -> None:
        """Ask for all jobs in one line each, some times."""
        for _ in range(LISTINGS):
            await self.gateway.request_multiple_job_details()

    async def remembered(self) -> int:
        """How many jobs the registry knows."""
        return len(await self._cluster.ha.running_jobs_registry().entries())


async def measure(cluster: Surroundings, sizes: list[int]) -> Figures:
    """The figures of a Dispatcher with as many jobs as *sizes* say, one after the other."""
    cluster.configure({"jobstore.max-capacity": "1000000", "jobstore.cache-size": "10g", "rpc.ask-timeout": "60s"})
    await cluster.blob_server()
    master = LightMaster(cluster.service, cluster.ha, cluster.receptionist)
    await cluster.service.start_server(master)
    measuring = _Measuring(cluster, master)
    await measuring.follow()
    await measuring.start()
    master.let_end.set()
    empty_bytes, keys = measuring.dispatcher.resident_bytes(), await cluster.redis_keys()
    data_bytes, wall_s, spent_s, done = await cluster.redis_bytes(), 0.0, 0.0, 0
    commands: Counter[str] = Counter()
    for size in sizes:
        began, before = time.perf_counter(), await cluster.redis_commands()
        spent_s += await measuring.cpu(lambda: measuring.run(size - done))  # noqa: B023  # is run here
        wall_s += time.perf_counter() - began
        commands += await cluster.redis_commands() - before
        grown_bytes = measuring.dispatcher.resident_bytes() - empty_bytes
        done = size
        measuring.note("job", size, spent_s)
        await measuring.stop()
        measuring.note("recovery", size, await measuring.start())
        measuring.note("list", size, await measuring.cpu(measuring.list_all) / LISTINGS)
    last = {name: points[-1][1] for name, points in measuring.points.items() if points}
    figures = {
        "dispatcher_jobs_per_s": done / wall_s,
        "dispatcher_cpu_ms_per_job": spent_s / done * 1000,
        "dispatcher_bytes_per_job": grown_bytes / (sizes[-1] - sizes[-2]),
        f"dispatcher_cpu_ms_per_list_of_{done}": last["list"] * 1000,
        f"dispatcher_recovery_cpu_s_{done}": last["recovery"],
        "redis_writes_per_job": (commands["hset"] + commands["hdel"]) / done,
        "redis_scripts_per_job": commands["evalsha"] / done,
        "redis_keys_per_job": (await cluster.redis_keys() - keys) / done,
        "redis_bytes_per_job": (await cluster.redis_bytes() - data_bytes) / done,
    }
    figures |= await _expire(cluster, measuring, sizes)
    figures |= await _at_once(measuring, master, halves(sizes[-1] / AT_ONCE_SHARE))
    for name, points in measuring.points.items():
        figures |= growth(f"dispatcher_{name}", points)
    return figures


async def _expire(cluster: Surroundings, measuring: _Measuring, sizes: list[int]) -> Figures:
    """Dispatchers that may keep fewer jobs than they find."""
    expired, spent_s = 0, 0.0
    for size in (sizes[2], sizes[1], sizes[0], 1):
        before = await measuring.remembered()
        await measuring.stop()
        cluster.configure({"jobstore.max-capacity": str(size)})
        recovery_s = await measuring.start()
        spent_s += recovery_s + await measuring.cpu(lambda: _forgotten(measuring, size))  # noqa: B023  # is run here
        expired += before - size
        measuring.note("expiry", expired, spent_s)
    return {"dispatcher_cpu_ms_per_expired_job": spent_s / expired * 1000}


async def _forgotten(measuring: _Measuring, left: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while await measuring.remembered() > left:
        if time.monotonic() > deadline:
            raise RuntimeError("jobs that are to be forgotten are still remembered")
        await asyncio.sleep(0.2)


async def _at_once(measuring: _Measuring, master: LightMaster, sizes: list[int]) -> Figures:
    """Jobs that run all at the same time."""
    master.let_end.clear()
    running, spent_s = 0, 0.0
    for size in sizes:

        async def more() -> None:
            await measuring.submit(size - running)  # noqa: B023  # is run here
            await until(lambda: master.leading == size, f"{size} JobMasters lead")  # noqa: B023

        spent_s += await measuring.cpu(more)
        running = size
        measuring.note("running_job", size, spent_s)
        measuring.note("running_list", size, await measuring.cpu(measuring.list_all) / LISTINGS)
        began, before = time.monotonic(), measuring.dispatcher.cpu_s()
        await asyncio.sleep(IDLE_S)
        idle = (measuring.dispatcher.cpu_s() - before) / (time.monotonic() - began)
        measuring.note("running_idle", size, max(idle, 0.001))
    master.let_end.set()
    await measuring.cleaned()
    most = sizes[-1]
    last = {name: points[-1][1] for name, points in measuring.points.items()}
    return {
        f"dispatcher_core_share_{most}_running": last["running_idle"],
        f"dispatcher_cpu_ms_per_list_of_{most}_running": last["running_list"] * 1000,
        f"dispatcher_cpu_ms_per_running_job_of_{most}": last["running_job"] / most * 1000,
    }

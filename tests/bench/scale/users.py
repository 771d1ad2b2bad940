"""Fifty users with ten jobs each at one ResourceManager: equal shares of four slots, and nobody waits for ever.

All jobs wait from the beginning, registered user after user. The lengths of the jobs differ from user to user. The
TaskExecutor has no Spark: a job holds its slot for its time.

- ``fairness``: Jain's index of the users' slot-seconds, until a user has fewer than three jobs left: then the share of
  that user may end. 1 is equal shares.
- ``users``, ``user_jobs``: users, and jobs of theirs that have had a slot.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from actors.rpc.fencing import Leadership
from actors.rpc.service import RpcService
from runtime.ha.services import HighAvailabilityServices
from runtime.ids import AllocationID, JobID, ResourceID
from runtime.leaders import LeaderFollower
from runtime.protocol.leader import RESOURCE_MANAGER, job_master
from runtime.protocol.messages import JobMasterRegistration
from runtime.protocol.resource_manager import ResourceManagerGateway
from runtime.protocol.slots import SlotRequest
from tests.acting import ActingEndpoint
from tests.bench.scale.executors import LightTaskExecutor
from tests.bench.scale.growth import Figures
from tests.bench.scale.resource_manager import TOKEN, SlotTaker
from tests.bench.scale.surroundings import PATIENCE_S, Surroundings, progress

JOBS = 10
"""Jobs of each user."""
FEW = 3
"""The shares are compared until a user has fewer jobs left."""
UNIT_S = 0.02


class Work:
    """The jobs, and who has had slots for how long.

    Args:
        users: how many.
    """

    def __init__(self, users: int) -> None:
        self.users = users
        self.jobs = [JobID.random() for _ in range(users * JOBS)]
        self._user_of = {job: number // JOBS for number, job in enumerate(self.jobs)}
        self._seconds = {
            job: UNIT_S * (2 + (user * 7 + index * 3) % 9) for index, (job, user) in enumerate(self._user_of.items())
        }
        self._began: dict[JobID, float] = {}
        self._used = [0.0] * users
        self.left = Counter(dict.fromkeys(range(users), JOBS))
        self.shares: list[float] = []
        self.are_done = asyncio.Event()

    def user_of(self, job_id: JobID) -> str:
        """Return the name of the user who owns a job."""
        return f"user-{self._user_of[job_id]}"

    def begin(self, job_id: JobID) -> float:
        """Note that a job has its slot, and return for how long it holds it."""
        self._began[job_id] = time.monotonic()
        return self._seconds[job_id]

    def end(self, job_id: JobID) -> None:
        """Note that a job has given its slot back."""
        user = self._user_of[job_id]
        self._used[user] += time.monotonic() - self._began.pop(job_id)
        self.left[user] -= 1
        if not self.shares and self.left[user] < FEW:
            now, self.shares = time.monotonic(), list(self._used)
            for other, began in self._began.items():
                self.shares[self._user_of[other]] += now - began
        if not any(self.left.values()):
            self.are_done.set()


def jain(values: Sequence[float]) -> float:
    """Return Jain's index: 1 if all values are equal, 1/n if all but one are 0."""
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values))


class WorkingTaskExecutor(LightTaskExecutor):
    """A TaskExecutor whose slots are held for the time of each job."""

    def __init__(self, service: RpcService, ha: HighAvailabilityServices, directory: Path, work: Work) -> None:
        super().__init__(service, ha, ResourceID("tm-0"), directory)
        self._work = work

    def allocated(self, job_id: JobID, allocation_id: AllocationID) -> None:
        self.service.loop.call_later(self._work.begin(job_id), self._end, job_id, allocation_id)

    def _end(self, job_id: JobID, allocation_id: AllocationID) -> None:
        self.slots.free(allocation_id)
        self._resource_manager.slots_changed()
        self._work.end(job_id)


async def measure(cluster: Surroundings, sizes: list[int]) -> Figures:
    """Let as many users as the last of *sizes* have their jobs served."""
    queues = cluster.directory.root / "queues.yaml"
    queues.write_text("queues: {}\n")
    cluster.configure({"queues.file": str(queues), "slot.request.timeout": f"{PATIENCE_S:g}s"})
    await cluster.resource_manager()
    work, taker = Work(sizes[-1]), SlotTaker(cluster.service)
    await cluster.service.start_server(taker)
    gateways = {}
    for job_id in work.jobs:
        leader = ActingEndpoint(cluster.service, "leader", Leadership(job_master(job_id), TOKEN.epoch, TOKEN.session))
        follower = LeaderFollower(leader, cluster.ha.leader_retrieval(RESOURCE_MANAGER), ResourceManagerGateway)
        await follower.start()
        gateways[job_id] = await follower.get()
        await follower.stop()
        registration = JobMasterRegistration(str(taker.address), TOKEN, owner=work.user_of(job_id))
        await gateways[job_id].register_job_manager(job_id, registration)
        await gateways[job_id].request_slot(SlotRequest(job_id, AllocationID.random(), "bench", "task"))
    executors = cluster.directory.taskmanager(0)
    executors.mkdir(mode=0o700)
    await cluster.service.start_server(WorkingTaskExecutor(cluster.service, cluster.ha, executors, work))
    async with asyncio.timeout(PATIENCE_S):
        await work.are_done.wait()
    if taker.failures:
        raise RuntimeError(f"{len(taker.failures)} slot requests failed: {taker.failures[0]}")
    progress(f"users: {len(work.jobs)} jobs, Jain's index {jain(work.shares):.3f}")
    return {"users": work.users, "user_jobs": len(work.jobs), "fairness": jain(work.shares)}

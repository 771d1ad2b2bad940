"""A hundred streaming queries: their checkpoints are numbered, acknowledged, stored and subsumed, on one Redis."""

from __future__ import annotations

import asyncio
import time
from typing import Self

from runtime.checkpoint.configuration import CheckpointCoordinatorConfiguration
from runtime.checkpoint.coordinator import (
    AllocateCheckpointID,
    CheckpointCoordinator,
    CheckpointInstruction,
    CheckpointTask,
    RunningTasks,
    StoreCheckpoint,
    TriggerTasks,
)
from runtime.ha.connection import RedisConnection
from runtime.ha.keys import ClusterKeys
from runtime.ha.latch import RedisLeaderLatch
from runtime.ha.services import HighAvailabilityServices
from runtime.ids import ExecutionAttemptID, JobID, JobVertexID, ResourceID, TriggerID
from runtime.jobgraph.codec import decode, encode
from runtime.protocol.checkpoints import AcknowledgeCheckpoint, CheckpointMetadata, CheckpointTrigger, SnapshotType
from runtime.protocol.execution_state import Instant
from runtime.protocol.leader import LeaderTerm, job_master
from runtime.protocol.query_snapshot import QuerySnapshot
from tests.bench.scale.growth import Figures, growth
from tests.bench.scale.surroundings import PATIENCE_S, Surroundings, progress

ROUNDS = 10
RETAINED = 2


class StreamingQueryJob:
    """A job of one task with one query, and the JobMaster's part in its checkpoints."""

    def __init__(self, ha: HighAvailabilityServices, job_id: JobID, term: LeaderTerm) -> None:
        recovery = ha.checkpoint_recovery_factory()
        self._store = recovery.completed_checkpoint_store(job_id, RETAINED)
        self._counter = recovery.checkpoint_id_counter(job_id)
        self._term = term
        settings = CheckpointCoordinatorConfiguration()
        self._coordinator = CheckpointCoordinator(settings, job_id, f"/checkpoints/{job_id}", _now())
        self._task = CheckpointTask(
            ExecutionAttemptID.random(), JobVertexID.from_name(job_id), "counts", ResourceID("tm-0")
        )
        self._running = RunningTasks((self._task,), are_ready=True, are_stateful=True)

    @classmethod
    async def begin(cls, ha: HighAvailabilityServices, redis_url: str, cluster_id: str, job_id: JobID) -> Self:
        """A job whose JobMaster leads for long enough."""
        component = job_master(job_id)
        connection = RedisConnection(redis_url)
        reply = await RedisLeaderLatch(connection, ClusterKeys(cluster_id), component, PATIENCE_S).acquire("bench", 0)
        await connection.close()
        return cls(ha, job_id, LeaderTerm(component, reply.epoch, "bench"))

    async def checkpoint(self) -> None:
        """One checkpoint, from the request to the second phase."""
        trigger = CheckpointTrigger(TriggerID.random(), SnapshotType.CHECKPOINT)
        self._coordinator.trigger(trigger, _now())
        work = list(self._coordinator.advance(self._running, _now()))
        while work:
            work += await self._carry_out(work.pop(0))
        if self._coordinator.pending:
            raise RuntimeError(f"a checkpoint stays pending: {self._coordinator.pending}")

    async def _carry_out(self, step: CheckpointInstruction) -> list[CheckpointInstruction]:
        if isinstance(step, AllocateCheckpointID):
            return self._coordinator.id_allocated(await self._counter.get_and_increment(self._term), _now())
        if isinstance(step, TriggerTasks):
            snapshot = QuerySnapshot("counts", "id", "/live", None, step.directory, 7, ["{}"], 30, 1_000_000, 20_000)
            ack = AcknowledgeCheckpoint(step.checkpoint_id, self._task.attempt_id, step.trigger, (snapshot,))
            return self._coordinator.acknowledged(ack, _now())[1]
        if isinstance(step, StoreCheckpoint):
            number = step.metadata.checkpoint_id
            removed = await self._store.add(number, encode(step.metadata), self._term)
            subsumed = [decode(item.data, CheckpointMetadata) for item in removed if item.data is not None]
            return self._coordinator.stored(number, step.metadata.path, subsumed, _now())
        return []


def _now() -> Instant:
    return Instant(time.monotonic(), time.time_ns() // 1_000_000)


async def measure(cluster: Surroundings, sizes: list[int]) -> Figures:
    """The figures of as many streaming queries as *sizes* say, one after the other."""
    queries: list[StreamingQueryJob] = []
    keys = await cluster.redis_keys()
    points: list[tuple[float, float]] = []
    for size in sizes:
        while len(queries) < size:
            job_id = JobID(f"{len(queries):032x}")
            queries.append(await StreamingQueryJob.begin(cluster.ha, cluster.redis_url, cluster.cluster_id, job_id))
        # The latches are not what is counted.
        before, began_s = await cluster.redis_commands(), time.process_time()
        for _ in range(ROUNDS):
            await asyncio.gather(*(query.checkpoint() for query in queries))
        spent_s = (time.process_time() - began_s) / ROUNDS
        commands = await cluster.redis_commands() - before
        points.append((size, spent_s))
        progress(f"checkpoints, {size} queries: {spent_s:.3f} s of processor time a round")
    most = sizes[-1]
    return {
        "checkpoint_cpu_ms": points[-1][1] / most * 1000,
        "checkpoint_redis_writes": (commands["hset"] + commands["hdel"]) / most / ROUNDS,
        "checkpoint_redis_scripts": commands["evalsha"] / most / ROUNDS,
        "checkpoint_redis_keys_per_query": (await cluster.redis_keys() - keys) / most,
        **growth("checkpoint", points),
    }

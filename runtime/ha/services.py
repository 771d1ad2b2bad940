"""Everything that survives the loss of a component, behind one door (Flink's ``HighAvailabilityServices``)."""

from __future__ import annotations

import asyncio
import logging
import random
from pathlib import Path
from typing import Protocol
from weakref import WeakSet

from actors.address import ActorAddress
from actors.rpc.service import RpcService
from runtime.ha.changes import ChangeFeed, ChangeSource, RedisChangeSource
from runtime.ha.checkpoint_store import CheckpointRecoveryFactory
from runtime.ha.connection import RedisCheck, RedisConnection
from runtime.ha.election import DefaultLeaderElectionService, LatchLeaderElectionDriver, LeaderElectionService
from runtime.ha.fenced import FencedMaps, FencedWriter
from runtime.ha.keys import ClusterKeys
from runtime.ha.latch import LatchReader, LatchTiming, LeaderLatch, LeaderReader, RedisLeaderLatch
from runtime.ha.retrieval import DefaultLeaderRetrievalService, LeaderRetrievalService
from runtime.ha.running_jobs import RunningJobsRegistry
from runtime.ha.standalone_client import (
    MasterChangeSource,
    MasterConnection,
    MasterLeaderLatch,
    MasterLeaderReader,
    MasterMaps,
)
from runtime.ha.state_files import StateFiles
from runtime.ha.state_handles import (
    EXECUTIONS,
    JOB_GRAPHS,
    ExecutionStore,
    JobGraphStore,
    StateHandleStore,
)
from runtime.protocol.leader import LeaderInformation, LeaderTerm

logger = logging.getLogger(__name__)

MEMORY_THRESHOLD = 20 * 1024
LATCH_CONNECTIONS = 2
"""That `RedisHaServices.warm_up` makes: an election and the followers of leaders ask at the same time."""
DATA_CONNECTIONS = 3
"""That it makes for stores and registries."""


class HighAvailabilityServices(Protocol):
    """The services of one process; to be used from one event loop."""

    async def start(self) -> object:
        """Find out whether the services can be had; raises what is wrong, with the remedy."""

    async def warm_up(self) -> None:
        """Make what will be needed: connections, and a subscription to changes. Raises `HaError`."""

    def leader_election(self, component: str) -> LeaderElectionService:
        """A new election service for one contender of ``component``."""

    def leader_retrieval(self, component: str) -> LeaderRetrievalService:
        """A new retrieval service for one listener on ``component``."""

    async def current_leader(self, component: str) -> LeaderInformation | None:
        """Who leads at this moment; None while nobody does. Raises `HaError`."""

    async def depose(self, component: str, term: LeaderTerm) -> None:
        """End the term of a component that has ended itself, so that nothing of what it wrote can still arrive.

        Args:
            component: whose term; ``job_master(job_id)``.
            term: in whose name.

        Raises:
            LeadershipLostError: ``term`` is over.
            HaUnreachableError: the outcome is unknown.
        """

    def job_graph_store(self) -> JobGraphStore:
        """The graphs of accepted jobs."""

    def execution_store(self) -> ExecutionStore:
        """How far the executions of running jobs have come."""

    def running_jobs_registry(self) -> RunningJobsRegistry:
        """Status and results of jobs."""

    def checkpoint_recovery_factory(self) -> CheckpointRecoveryFactory:
        """The completed checkpoints of jobs, and their counters."""

    async def close(self) -> None:
        """Give back leaderships and connections; what is stored stays."""

    async def cleanup(self) -> None:
        """Delete everything stored of the whole cluster; for its end, when no component runs any more."""


class LatchedHaServices:
    """High availability by latches, and by states in files, or in their handles, which are where the latches are.

    Args:
        keys: names of everything that the cluster has there.
        storage_dir: where state files go; all masters of the cluster must see it.
        timing: the lease.
        retry: seconds between repetitions outside of the latch.
        maps: where the handles are.
        reader: says who leads.
        changes: tells of new leaders.
        memory_threshold: states of at most so many bytes are where their handles are, and in no file.
    """

    def __init__(
        self,
        keys: ClusterKeys,
        storage_dir: Path,
        timing: LatchTiming,
        retry: float,
        maps: FencedMaps,
        reader: LeaderReader,
        changes: ChangeSource,
        memory_threshold: int,
    ) -> None:
        self._keys = keys
        self._timing = timing
        self._retry = retry
        self._maps = maps
        self._reader = reader
        self._feed = ChangeFeed(changes, retry=retry)
        self._memory_threshold = memory_threshold
        self._phase = random.uniform(0.0, timing.renew_every)  # noqa: S311  # no secret
        self._directory = storage_dir / keys.cluster_id
        self._handles: dict[str, StateHandleStore] = {}
        self._registry = RunningJobsRegistry(maps, keys)
        self._graphs = JobGraphStore(self.state_handles(JOB_GRAPHS))
        self._executions = ExecutionStore(self.state_handles(EXECUTIONS))
        self._checkpoints = CheckpointRecoveryFactory(
            maps, keys, self._directory, retry=retry, memory_threshold=memory_threshold
        )
        # Weak: a service that runs is kept by its task, and one that was stopped and dropped need not be remembered.
        self._opened: WeakSet[DefaultLeaderElectionService | DefaultLeaderRetrievalService] = WeakSet()

    def latch(self, component: str) -> LeaderLatch:
        """The latch of a component."""
        raise NotImplementedError

    def leader_election(self, component: str) -> DefaultLeaderElectionService:
        driver = LatchLeaderElectionDriver(component, self.latch(component), self._feed, self._timing)
        service = DefaultLeaderElectionService(component, driver)
        self._opened.add(service)
        return service

    def leader_retrieval(self, component: str) -> DefaultLeaderRetrievalService:
        service = DefaultLeaderRetrievalService(component, self._reader, self._feed, self._timing, phase=self._phase)
        self._opened.add(service)
        return service

    async def warm_up(self) -> None:
        self._feed.start()

    async def current_leader(self, component: str) -> LeaderInformation | None:
        return await self._reader.leader(component)

    async def depose(self, component: str, term: LeaderTerm) -> None:
        await self._maps.depose(component, term)

    def job_graph_store(self) -> JobGraphStore:
        return self._graphs

    def execution_store(self) -> ExecutionStore:
        return self._executions

    def running_jobs_registry(self) -> RunningJobsRegistry:
        return self._registry

    def checkpoint_recovery_factory(self) -> CheckpointRecoveryFactory:
        return self._checkpoints

    def state_handles(self, kind: str) -> StateHandleStore:
        """The store of the states of one kind (``jobgraphs``, later checkpoints)."""
        if kind not in self._handles:
            files = StateFiles(self._directory / kind)
            self._handles[kind] = StateHandleStore(
                self._maps, self._keys, kind, files, retry=self._retry, memory_threshold=self._memory_threshold
            )
        return self._handles[kind]

    async def close(self) -> None:
        await asyncio.gather(*(service.stop() for service in list(self._opened)))
        await self._feed.close()

    async def cleanup(self) -> None:
        """Delete all latches and handles of the cluster, then all its state files.

        Raises:
            HaUnreachableError: who keeps them does not answer; the files stay, since handles may point to them.
        """
        await self._forget()
        await asyncio.to_thread(delete_state_files, self._directory)

    async def _forget(self) -> None:
        raise NotImplementedError


class RedisHaServices(LatchedHaServices):
    """High availability on one Redis.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://``; may hold a password.
        cluster_id: all keys and files of the cluster bear it.
        storage_dir: where state files go; all masters of the cluster must see it.
        lease: seconds after which the leadership of a silent leader ends.
        timeout: seconds that any call to Redis may take; by default 1 s, or a third of the lease where that is less and
            the call is about leadership.
        retry: seconds between repetitions outside of the latch; by default a sixth of the lease.
        memory_threshold: states of at most so many bytes are in Redis, and in no file.
    """

    def __init__(
        self,
        url: str,
        cluster_id: str,
        storage_dir: Path,
        *,
        lease: float = 3.0,
        timeout: float | None = None,
        retry: float | None = None,
        memory_threshold: int = MEMORY_THRESHOLD,
    ) -> None:
        keys, timing = ClusterKeys(cluster_id), LatchTiming(lease)
        limit = timing.call_timeout if timeout is None else timeout
        # Latches have connections of their own: a thousand waiting reads must not delay a renewal.
        self._latches = RedisConnection(url, timeout=limit)
        # And more time: a slow reply to a reader or writer is no reason to give up a leadership.
        self._data = RedisConnection(url, timeout=1.0 if timeout is None else timeout)
        self._latch_reader = LatchReader(self._latches, keys)
        super().__init__(
            keys,
            storage_dir,
            timing,
            timing.retry_every if retry is None else retry,
            FencedWriter(self._data, keys),
            self._latch_reader,
            RedisChangeSource(self._latches, keys),
            memory_threshold,
        )

    async def warm_up(self) -> None:
        await super().warm_up()
        await asyncio.gather(self._latches.warm_up(LATCH_CONNECTIONS), self._data.warm_up(DATA_CONNECTIONS))

    async def start(self) -> RedisCheck:
        """Check the server.

        Raises:
            RedisUnreachableError, RedisAuthenticationError, RedisRequirementError: each with the remedy.
        """
        return await self._data.check()

    def latch(self, component: str) -> RedisLeaderLatch:
        return RedisLeaderLatch(self._latches, self._keys, component, self._timing.lease)

    async def close(self) -> None:
        await super().close()
        await self._latch_reader.close()
        await self._latches.close()
        await self._data.close()

    async def _forget(self) -> None:
        cursor, removed = "0", 0
        while True:
            cursor, keys = await self._data.command("SCAN", cursor, "MATCH", self._keys.prefix + "*", "COUNT", 1000)
            if keys:
                removed += await self._data.command("UNLINK", *keys)
            if str(cursor) == "0":
                break
        logger.info("removed %d keys of cluster %s", removed, self._keys.cluster_id)


class StandaloneHaServices(LatchedHaServices):
    """Without Redis: the cluster's one master keeps latches and handles in memory (Flink's ``StandaloneHaServices``).

    Any component but the master may be lost and is replaced; with the master all jobs are lost.

    Args:
        service: the RPC service of the process; not closed here.
        system: any address at the master's port.
        cluster_id: all files of the cluster bear it.
        storage_dir: where state files go.
        lease: seconds after which the leadership of a silent leader ends.
        memory_threshold: states of at most so many bytes are in the master's memory, and in no file.
    """

    def __init__(
        self,
        service: RpcService,
        system: ActorAddress,
        cluster_id: str,
        storage_dir: Path,
        *,
        lease: float = 3.0,
        memory_threshold: int = MEMORY_THRESHOLD,
    ) -> None:
        timing = LatchTiming(lease)
        self._connection = MasterConnection(service, system, timing.call_timeout)
        super().__init__(
            ClusterKeys(cluster_id),
            storage_dir,
            timing,
            timing.retry_every,
            MasterMaps(self._connection),
            MasterLeaderReader(self._connection),
            MasterChangeSource(self._connection),
            memory_threshold,
        )

    async def start(self) -> None:
        """Ask the master for something; raises `MasterUnreachableError`."""
        await self._maps.get(self._keys.running_jobs, "")

    def latch(self, component: str) -> MasterLeaderLatch:
        return MasterLeaderLatch(self._connection, component, self._timing.lease)

    async def _forget(self) -> None:
        await self._connection.ask(self._connection.gateway.clear())


def delete_state_files(directory: Path) -> None:
    """Delete the state files of a cluster whose handles are gone.

    Args:
        directory: ``high-availability.storageDir``, below it the cluster's id.
    """
    if directory.is_dir():
        for kind in list(directory.iterdir()):
            StateFiles(kind).delete_all()
        if not any(directory.iterdir()):
            directory.rmdir()

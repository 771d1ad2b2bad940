"""Everything that survives the loss of a component, behind one door (Flink's ``HighAvailabilityServices``)."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Protocol
from weakref import WeakSet

from runtime.ha.changes import ChangeFeed
from runtime.ha.checkpoint_recovery import CheckpointRecoveryFactory, RedisCheckpointRecoveryFactory
from runtime.ha.connection import RedisCheck, RedisConnection
from runtime.ha.election import DefaultLeaderElectionService, LeaderElectionService, RedisLeaderElectionDriver
from runtime.ha.execution_store import KIND as EXECUTIONS
from runtime.ha.execution_store import ExecutionStore, RedisExecutionStore
from runtime.ha.job_graph_store import KIND as JOB_GRAPHS
from runtime.ha.job_graph_store import JobGraphStore, RedisJobGraphStore
from runtime.ha.keys import ClusterKeys
from runtime.ha.latch import LatchTiming, RedisLeaderLatch
from runtime.ha.latch_reader import LatchReader
from runtime.ha.retrieval import LeaderRetrievalService, RedisLeaderRetrievalService
from runtime.ha.running_jobs import RedisRunningJobsRegistry, RunningJobsRegistry
from runtime.ha.state_files import StateFiles
from runtime.ha.state_handles import StateHandleStore

logger = logging.getLogger(__name__)


class HighAvailabilityServices(Protocol):
    """The services of one process; to be used from one event loop."""

    async def start(self) -> object:
        """Find out whether the services can be had; raises what is wrong, with the remedy."""

    def leader_election(self, component: str) -> LeaderElectionService:
        """A new election service for one contender of ``component``."""

    def leader_retrieval(self, component: str) -> LeaderRetrievalService:
        """A new retrieval service for one listener on ``component``."""

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


class RedisHaServices:
    """High availability on one Redis.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://``; may hold a password.
        cluster_id: all keys and files of the cluster bear it.
        storage_dir: where state files go; all masters of the cluster must see it.
        lease: seconds after which the leadership of a silent leader ends.
        timeout: seconds that any call to Redis may take; by default 1 s, or a third of the lease where that is less and
            the call is about leadership.
        retry: seconds between repetitions outside of the latch; by default a sixth of the lease.
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
    ) -> None:
        self._keys = ClusterKeys(cluster_id)
        self._timing = LatchTiming(lease)
        limit = min(1.0, lease / 3) if timeout is None else timeout
        pause = self._timing.retry_every if retry is None else retry
        # Latches have connections of their own: a thousand waiting reads must not delay a renewal.
        self._latches = RedisConnection(url, timeout=limit)
        # And more time: a slow reply to a reader or writer is no reason to give up a leadership.
        self._data = RedisConnection(url, timeout=1.0 if timeout is None else timeout)
        self._reader = LatchReader(self._latches, self._keys)
        self._feed = ChangeFeed(self._latches, self._keys, retry=pause)
        self._directory = storage_dir / cluster_id
        self._handles: dict[str, StateHandleStore] = {}
        self._retry = pause
        self._registry = RedisRunningJobsRegistry(self._data, self._keys)
        self._graphs = RedisJobGraphStore(self.state_handles(JOB_GRAPHS))
        self._executions = RedisExecutionStore(self.state_handles(EXECUTIONS))
        # Weak: a service that runs is kept by its task, and one that was stopped and dropped need not be remembered.
        self._opened: WeakSet[DefaultLeaderElectionService | RedisLeaderRetrievalService] = WeakSet()

    async def start(self) -> RedisCheck:
        """Check the server.

        Raises:
            RedisUnreachableError, RedisAuthenticationError, RedisRequirementError: each with the remedy.
        """
        return await self._data.check()

    def leader_election(self, component: str) -> DefaultLeaderElectionService:
        driver = RedisLeaderElectionDriver(component, self._latch(component), self._feed, self._timing)
        service = DefaultLeaderElectionService(component, driver)
        self._opened.add(service)
        return service

    def leader_retrieval(self, component: str) -> RedisLeaderRetrievalService:
        service = RedisLeaderRetrievalService(component, self._reader, self._feed, self._timing)
        self._opened.add(service)
        return service

    def job_graph_store(self) -> RedisJobGraphStore:
        return self._graphs

    def execution_store(self) -> RedisExecutionStore:
        return self._executions

    def running_jobs_registry(self) -> RedisRunningJobsRegistry:
        return self._registry

    def state_handles(self, kind: str) -> StateHandleStore:
        """The store of the states of one kind (``jobgraphs``, later checkpoints)."""
        if kind not in self._handles:
            files = StateFiles(self._directory / kind)
            self._handles[kind] = StateHandleStore(self._data, self._keys, kind, files, retry=self._retry)
        return self._handles[kind]

    async def close(self) -> None:
        await asyncio.gather(*(service.stop() for service in list(self._opened)))
        await self._feed.close()
        await self._reader.close()
        await self._latches.close()
        await self._data.close()

    async def cleanup(self) -> None:
        """Delete all keys of the cluster, then all its state files.

        Raises:
            RedisUnreachableError: Redis is away; the files stay, since handles may point to them.
        """
        cursor, removed = "0", 0
        while True:
            cursor, keys = await self._data.command("SCAN", cursor, "MATCH", self._keys.prefix + "*", "COUNT", 1000)
            if keys:
                removed += await self._data.command("UNLINK", *keys)
            if str(cursor) == "0":
                break
        await asyncio.to_thread(self._delete_files)
        logger.info("removed %d keys of cluster %s", removed, self._keys.cluster_id)

    def _delete_files(self) -> None:
        if self._directory.is_dir():
            for kind in list(self._directory.iterdir()):
                StateFiles(kind).delete_all()
            if not any(self._directory.iterdir()):
                self._directory.rmdir()

    def _latch(self, component: str) -> RedisLeaderLatch:
        return RedisLeaderLatch(self._latches, self._keys, component, self._timing.lease)

    def checkpoint_recovery_factory(self) -> RedisCheckpointRecoveryFactory:
        return RedisCheckpointRecoveryFactory(self._data, self._keys, self._directory, retry=self._retry)

"""One interface to all that survives the loss of a component (Flink's ``HighAvailabilityServices``)."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol
from weakref import WeakSet

from actors.address import ActorAddress
from actors.rpc.service import RpcService
from conf.files import remove_tree
from runtime.ha.changes import ChangeFeed, ChangeSource, RedisChangeSource
from runtime.ha.checkpoint_store import CheckpointRecoveryFactory
from runtime.ha.connection import RedisCheck, RedisConnection
from runtime.ha.election import DefaultLeaderElectionService, LatchLeaderElectionDriver, LeaderElectionService
from runtime.ha.errors import HaUnreachableError
from runtime.ha.feature_level import FeatureLevelStore
from runtime.ha.fenced import FencedMaps, FencedWriter
from runtime.ha.keys import ClusterKeys
from runtime.ha.latch import LatchReader, LatchTiming, LeaderLatch, LeaderReader, RedisLeaderLatch
from runtime.ha.masters import MASTER_PREFIX
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
from runtime.ha.user_store import UserStore
from runtime.protocol.leader import LeaderInformation, LeaderTerm
from runtime.retry import retry

logger = logging.getLogger(__name__)

MEMORY_THRESHOLD = 20 * 1024
CONNECT_SESSIONS = "connect-sessions"
"""Directory of the records of named Spark Connect sessions, beside the state files."""
LATCH_CONNECTIONS = 2
"""How many connections `RedisHaServices.warm_up` opens for latches: elections and followers use them concurrently."""
DATA_CONNECTIONS = 3
"""How many connections it opens for stores and registries."""
CLEANUP_PATIENCE_S = 10.0
"""Seconds for which the end of a cluster waits for a Redis that is busy or being restarted."""


class HighAvailabilityServices(Protocol):
    """The services of one process; use them from one event loop."""

    async def start(self) -> object:
        """Check that the services are available; raises an error with a remedy if not."""

    async def warm_up(self) -> None:
        """Open connections and a subscription to changes in advance. Raises `HaError`."""

    def leader_election(self, component: str) -> LeaderElectionService:
        """Return a new election service for one contender of ``component``."""

    def leader_retrieval(self, component: str) -> LeaderRetrievalService:
        """Return a new retrieval service for one listener on ``component``."""

    async def current_leader(self, component: str) -> LeaderInformation | None:
        """Return the present leader; None while there is none. Raises `HaError`."""

    async def masters(self) -> list[str]:
        """Return the addresses of the masters with a `MasterRegistration`; none without Redis. Raises `HaError`."""

    async def depose(self, component: str, term: LeaderTerm) -> None:
        """End the term of a component that has ended, so that its delayed writes are refused.

        Args:
            component: the component whose term ends; ``job_master(job_id)``.
            term: the term of the caller's component.

        Raises:
            LeadershipLostError: ``term`` is over.
            HaUnreachableError: the outcome is unknown.
        """

    def job_graph_store(self) -> JobGraphStore:
        """Return the store of the graphs of accepted jobs."""

    def execution_store(self) -> ExecutionStore:
        """Return the store of the progress of running jobs."""

    def running_jobs_registry(self) -> RunningJobsRegistry:
        """Return the registry of the status and results of jobs."""

    def checkpoint_recovery_factory(self) -> CheckpointRecoveryFactory:
        """Return the factory of the jobs' checkpoint stores and counters."""

    def user_store(self) -> UserStore:
        """Return the store of users and their tokens."""

    def feature_level_store(self) -> FeatureLevelStore:
        """Return the store of the cluster's feature level."""

    async def close(self) -> None:
        """Release leaderships and connections; stored data stay."""

    async def cleanup(self, patience_s: float = CLEANUP_PATIENCE_S) -> None:
        """Delete the stored data of the cluster except its users; call it when no component runs any more.

        Args:
            patience_s: seconds for which it tries again if the store does not answer.
        """


class LatchedHaServices:
    """High availability by latches and state handles, both in Redis or in the master.

    The states are in files, or in their handles if they are small.

    Args:
        keys: names of all entries of the cluster.
        storage_dir: where state files go; all masters of the cluster must see it.
        timing: the lease.
        retry: seconds between retries of requests other than the latch's.
        maps: where the handles are.
        reader: reads the leaders.
        changes: notifies of new leaders.
        memory_threshold: states of at most so many bytes are in their handles, and in no file.
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
        self._users = UserStore(maps, keys)
        self._feature_level = FeatureLevelStore(maps, keys)
        self._graphs = JobGraphStore(self.state_handles(JOB_GRAPHS))
        self._executions = ExecutionStore(self.state_handles(EXECUTIONS))
        self._checkpoints = CheckpointRecoveryFactory(
            maps, keys, self._directory, retry=retry, memory_threshold=memory_threshold
        )
        # Weak: its task keeps a running service alive, and `close` does not need those that were stopped and dropped.
        self._opened: WeakSet[DefaultLeaderElectionService | DefaultLeaderRetrievalService] = WeakSet()

    def latch(self, component: str) -> LeaderLatch:
        """Return the latch of a component."""
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

    def user_store(self) -> UserStore:
        return self._users

    def feature_level_store(self) -> FeatureLevelStore:
        return self._feature_level

    def state_handles(self, kind: str) -> StateHandleStore:
        """Return the store of the states of one kind, for example ``jobgraphs``."""
        if kind not in self._handles:
            files = StateFiles(self._directory / kind)
            self._handles[kind] = StateHandleStore(
                self._maps, self._keys, kind, files, retry=self._retry, memory_threshold=self._memory_threshold
            )
        return self._handles[kind]

    async def close(self) -> None:
        await asyncio.gather(*(service.stop() for service in list(self._opened)))
        await self._feed.close()

    async def cleanup(self, patience_s: float = CLEANUP_PATIENCE_S) -> None:
        """Delete all latches and handles of the cluster, then all its state files; the users stay.

        Args:
            patience_s: seconds for which it tries again if Redis or the master does not answer.

        Raises:
            HaUnreachableError: it has not answered; the files stay, since handles may point to them.
        """
        await retry(
            self._forget,
            HaUnreachableError,
            what=f"removing the keys of cluster {self._keys.cluster_id}",
            log=logger,
            patience_s=patience_s,
        )
        await asyncio.to_thread(delete_state_files, self._directory)

    async def masters(self) -> list[str]:
        raise NotImplementedError

    async def _forget(self) -> None:
        raise NotImplementedError


class RedisHaServices(LatchedHaServices):
    """High availability on one Redis.

    Args:
        url: see `runtime.ha.connection.SentinelUrl`; may hold a password.
        cluster_id: part of the names of all keys and files of the cluster.
        storage_dir: where state files go; all masters of the cluster must see it.
        lease: seconds after which the leadership of a silent leader ends.
        timeout: seconds that each call to Redis may take. By default 1 s; for calls about leadership at most a third of
            the lease.
        retry: seconds between retries of requests other than the latch's; by default a sixth of the lease.
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
        # Other calls may take longer: a slow reply to them is no reason to give up a leadership.
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
            RedisUnreachableError, RedisAuthenticationError, RedisRequirementError: each with a remedy.
        """
        return await self._data.check()

    def latch(self, component: str) -> RedisLeaderLatch:
        return RedisLeaderLatch(self._latches, self._keys, component, self._timing.lease)

    async def close(self) -> None:
        await super().close()
        await self._latch_reader.close()
        await self._latches.close()
        await self._data.close()

    async def masters(self) -> list[str]:
        latches = self._keys.leader(MASTER_PREFIX)
        names = {MASTER_PREFIX + key.removeprefix(latches) async for keys in self._scan(latches) for key in keys}
        found = await asyncio.gather(*(self.current_leader(name) for name in sorted(names)))
        return [leader.address for leader in found if leader is not None]

    async def _forget(self) -> None:
        removed = 0
        async for found in self._scan(self._keys.prefix):
            if keys := [key for key in found if key != self._keys.users]:
                removed += await self._data.command("UNLINK", *keys)
        logger.info("removed %d keys of cluster %s", removed, self._keys.cluster_id)

    async def _scan(self, prefix: str) -> AsyncIterator[list[str]]:
        """Provide the keys that begin with *prefix*, some at a time; one may be repeated."""
        cursor = "0"
        while True:
            cursor, keys = await self._data.command("SCAN", cursor, "MATCH", prefix + "*", "COUNT", 1000)
            yield keys
            if str(cursor) == "0":
                return


class StandaloneHaServices(LatchedHaServices):
    """Services without Redis: the single master keeps latches and handles in memory (Flink's ``StandaloneHaServices``).

    A lost component is replaced, unless it is the master: with the master all jobs are lost.

    Args:
        service: the RPC service of the process; its owner closes it.
        system: any address at the master's port.
        cluster_id: part of the path of all files of the cluster.
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
        """Check that the master answers; raises `MasterUnreachableError`."""
        await self._maps.get(self._keys.running_jobs, "")

    async def masters(self) -> list[str]:
        return []

    def latch(self, component: str) -> MasterLeaderLatch:
        return MasterLeaderLatch(self._connection, component, self._timing.lease)

    async def _forget(self) -> None:
        await self._connection.ask(self._connection.gateway.clear())


def delete_state_files(directory: Path) -> None:
    """Delete the state files of a cluster whose handles are deleted, and the records of its named sessions.

    Args:
        directory: the directory with the cluster's id as its name, below ``high-availability.storageDir``.
    """
    remove_tree(directory / CONNECT_SESSIONS)
    if directory.is_dir():
        for kind in list(directory.iterdir()):
            StateFiles(kind).delete_all()
        if not any(directory.iterdir()):
            directory.rmdir()

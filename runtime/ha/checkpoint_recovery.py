"""What a job's checkpoints leave for its next JobMaster, and where it is (Flink's ``CheckpointRecoveryFactory``)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Protocol

from runtime.ha.checkpoint_counter import (
    INITIAL_CHECKPOINT_ID,
    CheckpointIDCounter,
    RedisCheckpointIDCounter,
    check_count,
)
from runtime.ha.checkpoint_store import (
    CompletedCheckpoint,
    CompletedCheckpointStore,
    RedisCompletedCheckpointStore,
    RetainedCheckpoints,
)
from runtime.ha.connection import RedisConnection
from runtime.ha.fenced import Demand, FencedWriter
from runtime.ha.keys import ClusterKeys
from runtime.ha.model import LeaderTerm
from runtime.ha.state_files import StateFiles
from runtime.ha.state_handles import StateHandleStore


class CheckpointRecoveryFactory(Protocol):
    """Stores and counters by job."""

    def completed_checkpoint_store(self, job_id: str, max_retained: int) -> CompletedCheckpointStore:
        """The store of a job, for its leading JobMaster.

        Args:
            max_retained: how many checkpoints it keeps, 1 or more.
        """

    def checkpoint_id_counter(self, job_id: str) -> CheckpointIDCounter:
        """The counter of a job, for its leading JobMaster."""

    async def clean_up(self, job_id: str, term: LeaderTerm) -> None:
        """Remove all of it, handles before files; to be called when the job is over and its JobMaster has ended.

        May be repeated. Raises as the writes of a store do.
        """


class RedisCheckpointRecoveryFactory:
    """Handles in a hash for each job, files in a directory for each.

    Args:
        directory: of the cluster's state files.
        retry: seconds between the looks after a lost reply.
    """

    def __init__(self, connection: RedisConnection, keys: ClusterKeys, directory: Path, *, retry: float) -> None:
        self._connection = connection
        self._keys = keys
        self._directory = directory
        self._retry = retry

    def completed_checkpoint_store(self, job_id: str, max_retained: int) -> RedisCompletedCheckpointStore:
        return RedisCompletedCheckpointStore(job_id, self._handles(job_id), max_retained)

    def checkpoint_id_counter(self, job_id: str) -> RedisCheckpointIDCounter:
        return RedisCheckpointIDCounter(self._connection, self._keys, job_id)

    async def clean_up(self, job_id: str, term: LeaderTerm) -> None:
        handles = self._handles(job_id)
        for name in await handles.names():
            await handles.remove(name, term)
        await FencedWriter(self._connection, self._keys).hdel(
            self._keys.checkpoint_ids, job_id, term, demand=Demand.ANY
        )
        await asyncio.to_thread(self._files(job_id).delete_all)

    def _handles(self, job_id: str) -> StateHandleStore:
        return StateHandleStore(self._connection, self._keys, _kind(job_id), self._files(job_id), retry=self._retry)

    def _files(self, job_id: str) -> StateFiles:
        return StateFiles(self._directory / _kind(job_id))


def _kind(job_id: str) -> str:
    return f"checkpoints-{job_id}"


class Fence(Protocol):
    """Who knows in memory which terms are current."""

    def require(self, term: LeaderTerm) -> None:
        """Raise `LeadershipLostError` unless the term is current."""


class MemoryCompletedCheckpointStore:
    """A `CompletedCheckpointStore` in memory (Flink's ``StandaloneCompletedCheckpointStore``)."""

    def __init__(self, fence: Fence, max_retained: int) -> None:
        self._fence = fence
        self._retained = RetainedCheckpoints(max_retained)

    async def recover(self, term: LeaderTerm) -> list[CompletedCheckpoint]:
        self._fence.require(term)
        return self._retained.kept()

    async def add(self, checkpoint_id: int, data: bytes, term: LeaderTerm) -> list[CompletedCheckpoint]:
        self._fence.require(term)
        self._retained.check_add(checkpoint_id, data)
        self._retained.stored(checkpoint_id, bytes(data))
        left = [self._retained.left(number) for number in self._retained.leaving()]
        return [item for item in left if item is not None]

    async def replace(self, checkpoint_id: int, data: bytes, term: LeaderTerm) -> None:
        self._fence.require(term)
        self._retained.check_replace(checkpoint_id)
        self._retained.stored(checkpoint_id, bytes(data))

    async def get_all(self) -> list[CompletedCheckpoint]:
        return self._retained.kept()

    async def release(self, checkpoint_id: int, term: LeaderTerm) -> bool:
        self._fence.require(term)
        return self._retained.left(checkpoint_id) is not None


class MemoryCheckpointIDCounter:
    """A `CheckpointIDCounter` in memory (Flink's ``StandaloneCheckpointIDCounter``)."""

    def __init__(self, fence: Fence) -> None:
        self._fence = fence
        self._count = INITIAL_CHECKPOINT_ID

    async def get_and_increment(self, term: LeaderTerm) -> int:
        self._fence.require(term)
        self._count += 1
        return self._count - 1

    async def get(self) -> int:
        return self._count

    async def set_count(self, count: int, term: LeaderTerm) -> None:
        self._fence.require(term)
        check_count(count)
        self._count = count


class MemoryCheckpointRecoveryFactory:
    """The stores and counters of one process, by job."""

    def __init__(self, fence: Fence) -> None:
        self._fence = fence
        self._stores: dict[str, MemoryCompletedCheckpointStore] = {}
        self._counters: dict[str, MemoryCheckpointIDCounter] = {}

    def completed_checkpoint_store(self, job_id: str, max_retained: int) -> MemoryCompletedCheckpointStore:
        return self._stores.setdefault(job_id, MemoryCompletedCheckpointStore(self._fence, max_retained))

    def checkpoint_id_counter(self, job_id: str) -> MemoryCheckpointIDCounter:
        return self._counters.setdefault(job_id, MemoryCheckpointIDCounter(self._fence))

    async def clean_up(self, job_id: str, term: LeaderTerm) -> None:
        self._fence.require(term)
        self._stores.pop(job_id, None)
        self._counters.pop(job_id, None)

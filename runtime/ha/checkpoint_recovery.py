"""What a job's checkpoints leave for its next JobMaster, and where it is (Flink's ``CheckpointRecoveryFactory``)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Protocol

from runtime.ha.checkpoint_counter import CheckpointIDCounter, DefaultCheckpointIDCounter
from runtime.ha.checkpoint_store import CompletedCheckpointStore, DefaultCompletedCheckpointStore
from runtime.ha.fenced import Demand, FencedMaps
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


class DefaultCheckpointRecoveryFactory:
    """Handles in a map for each job, files in a directory for each.

    Args:
        maps: where the handles and the numbers are.
        keys: their names.
        directory: of the cluster's state files.
        retry: seconds between the looks after a lost reply.
        memory_threshold: see `StateHandleStore`.
    """

    def __init__(
        self, maps: FencedMaps, keys: ClusterKeys, directory: Path, *, retry: float, memory_threshold: int = 0
    ) -> None:
        self._maps = maps
        self._keys = keys
        self._directory = directory
        self._retry = retry
        self._memory_threshold = memory_threshold

    def completed_checkpoint_store(self, job_id: str, max_retained: int) -> DefaultCompletedCheckpointStore:
        return DefaultCompletedCheckpointStore(job_id, self._handles(job_id), max_retained)

    def checkpoint_id_counter(self, job_id: str) -> DefaultCheckpointIDCounter:
        return DefaultCheckpointIDCounter(self._maps, self._keys, job_id)

    async def clean_up(self, job_id: str, term: LeaderTerm) -> None:
        handles = self._handles(job_id)
        for name in await handles.names():
            await handles.remove(name, term)
        await self._maps.hdel(self._keys.checkpoint_ids, job_id, term, demand=Demand.ANY)
        await asyncio.to_thread(self._files(job_id).delete_all)

    def _handles(self, job_id: str) -> StateHandleStore:
        return StateHandleStore(
            self._maps,
            self._keys,
            _kind(job_id),
            self._files(job_id),
            retry=self._retry,
            memory_threshold=self._memory_threshold,
        )

    def _files(self, job_id: str) -> StateFiles:
        return StateFiles(self._directory / _kind(job_id))


def _kind(job_id: str) -> str:
    return f"checkpoints-{job_id}"

"""The completed checkpoints of one job (Flink's ``CompletedCheckpointStore``).

A checkpoint is here a number, and bytes that mean something to the job's checkpoint coordinator. The bytes are in a
file, the handle in a map of the job's own; every write is conditional on the term of the job's JobMaster.

What is subsumed is given back to the caller after its handle is gone, so that whatever the bytes point to is deleted
after the handle, never before it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from runtime.ha.errors import (
    HaUnreachableError,
    StateCorruptedError,
    StateHandleConflictError,
    StateHandleNotFoundError,
    StateWriteUnknownError,
)
from runtime.ha.fenced import Demand, FencedMaps
from runtime.ha.keys import ClusterKeys
from runtime.ha.state_files import StateFiles
from runtime.ha.state_handles import StateHandleStore
from runtime.protocol.leader import LeaderTerm

logger = logging.getLogger(__name__)

INITIAL_CHECKPOINT_ID = 1
"""Flink's: the number of a job's first checkpoint."""


class CheckpointIDCounter:
    """The counter of one job, in a map of all (Flink: ``ZooKeeperCheckpointIDCounter``).

    Every write demands the value that was there before, so that one that was delayed cannot undo a later one. With the
    number goes the epoch of its writer: after a lost reply nobody takes a successor's write for his own.

    A write is refused (`LeadershipLostError`) when its term is over. After `StateWriteUnknownError` a write may be
    repeated: then a number may have been left out, but none is given out twice. Every method may raise
    `HaUnreachableError`; then nothing was changed.
    """

    def __init__(self, maps: FencedMaps, keys: ClusterKeys, job_id: str) -> None:
        self._maps = maps
        self._key = keys.checkpoint_ids
        self._job_id = job_id
        self._lock = asyncio.Lock()

    async def get_and_increment(self, term: LeaderTerm) -> int:
        """The number of the next checkpoint; nobody else gets it."""
        async with self._lock:
            before = await self._raw()
            count = _count(before)
            await self._write(before, count + 1, term)
            return count

    async def get(self) -> int:
        """The number that would be given out next."""
        return _count(await self._raw())

    async def set_count(self, count: int, term: LeaderTerm) -> None:
        """Give out ``count`` next, for example one more than that of the checkpoint that was restored."""
        check_count(count)
        async with self._lock:
            await self._write(await self._raw(), count, term)

    async def _write(self, before: str | None, count: int, term: LeaderTerm) -> None:
        text = f"{count}@{term.epoch}"
        demand = Demand.ABSENT if before is None else before
        try:
            write = await self._maps.hset(self._key, self._job_id, text, term, demand=demand)
        except HaUnreachableError as error:
            if before != text and await self._look(error) == text:
                return
            raise self._unknown(error) from error
        if not write.done:
            raise StateHandleConflictError(
                f"the checkpoint counter of job {self._job_id} was changed by somebody else; read it again"
            )

    async def _look(self, cause: HaUnreachableError) -> str | None:
        try:
            return await self._raw()
        except HaUnreachableError:
            raise self._unknown(cause) from cause

    def _unknown(self, cause: HaUnreachableError) -> StateWriteUnknownError:
        return StateWriteUnknownError(
            f"whether the checkpoint counter of job {self._job_id} was changed is not known ({cause.cause}); repeat it"
        )

    async def _raw(self) -> str | None:
        return await self._maps.get(self._key, self._job_id)


def check_count(count: int) -> None:
    """Raise ValueError unless it can be the number of a checkpoint."""
    if count < 0:
        raise ValueError(f"the number of a checkpoint is 0 or more, not {count}")


def _count(text: str | None) -> int:
    return INITIAL_CHECKPOINT_ID if text is None else int(text.partition("@")[0])


class CheckpointRecoveryFactory:
    """Stores and counters by job: handles in a map for each, files in a directory for each.

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

    def completed_checkpoint_store(self, job_id: str, max_retained: int) -> CompletedCheckpointStore:
        """The store of a job, for its leading JobMaster.

        Args:
            max_retained: how many checkpoints it keeps, 1 or more.
        """
        return CompletedCheckpointStore(job_id, self._handles(job_id), max_retained)

    def checkpoint_id_counter(self, job_id: str) -> CheckpointIDCounter:
        """The counter of a job, for its leading JobMaster."""
        return CheckpointIDCounter(self._maps, self._keys, job_id)

    async def clean_up(self, job_id: str, term: LeaderTerm) -> None:
        """Remove all of it, handles before files; to be called when the job is over and its JobMaster has ended.

        May be repeated. Raises as the writes of a store do.
        """
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


@dataclass(frozen=True, slots=True)
class CompletedCheckpoint:
    """A checkpoint that is complete.

    Args:
        checkpoint_id: 0 or more; a later checkpoint has a higher one.
        data: what the coordinator wrote.
    """

    checkpoint_id: int
    data: bytes


class RetainedCheckpoints:
    """Which checkpoints a store keeps, and which have to leave it. Pure.

    Args:
        max_retained: how many are kept (Flink's ``execution.checkpointing.num-retained``), 1 or more.
    """

    def __init__(self, max_retained: int) -> None:
        if max_retained < 1:
            raise ValueError(f"at least one checkpoint has to be retained, not {max_retained}")
        self._max_retained = max_retained
        self._kept: dict[int, bytes] = {}
        self._leaving: dict[int, bytes] = {}

    def found(self, checkpoints: list[CompletedCheckpoint]) -> None:
        """What the store was found to hold; what is to leave it stays so."""
        self._kept = {item.checkpoint_id: item.data for item in checkpoints if item.checkpoint_id not in self._leaving}

    def check_add(self, checkpoint_id: int, data: bytes) -> None:
        """Raise what `CompletedCheckpointStore.add` raises; the same again may be added."""
        if checkpoint_id < 0:
            raise ValueError(f"the number of a checkpoint is 0 or more, not {checkpoint_id}")
        same = self._kept.get(checkpoint_id)
        if same is not None and same != data:
            raise StateHandleConflictError(
                f"another checkpoint {checkpoint_id} is stored already; replace or release it"
            )
        newest = max([*self._kept, *self._leaving], default=-1)
        if same is None and checkpoint_id <= newest:
            raise StateHandleConflictError(f"checkpoint {checkpoint_id} comes after checkpoint {newest} was stored")

    def check_replace(self, checkpoint_id: int) -> None:
        """Raise `StateHandleNotFoundError` where it is not kept."""
        if checkpoint_id not in self._kept:
            raise StateHandleNotFoundError(f"checkpoint {checkpoint_id} is not in the store")

    def stored(self, checkpoint_id: int, data: bytes, needed: Collection[int] = ()) -> None:
        """Note a stored checkpoint; beyond the limit, the oldest that are not *needed* have to leave."""
        self._kept[checkpoint_id] = data
        for oldest in sorted(self._kept)[: -self._max_retained]:
            if oldest not in needed:
                self._leaving[oldest] = self._kept.pop(oldest)

    def leaving(self) -> list[int]:
        """What has to leave the store, the oldest first."""
        return sorted(self._leaving)

    def left(self, checkpoint_id: int) -> CompletedCheckpoint | None:
        """It is in the store no more; returns it where it was known."""
        data = self._leaving.pop(checkpoint_id, self._kept.pop(checkpoint_id, None))
        return None if data is None else CompletedCheckpoint(checkpoint_id, data)

    def kept(self) -> list[CompletedCheckpoint]:
        """What is to stay, the oldest first."""
        return [CompletedCheckpoint(number, self._kept[number]) for number in sorted(self._kept)]


class CompletedCheckpointStore:
    """The newest checkpoints of a job, at most a given number of them (Flink's ``DefaultCompletedCheckpointStore``).

    Used by the leading JobMaster only. A write is refused (`LeadershipLostError`) when its term is over, and is to be
    repeated after `StateWriteUnknownError`. Every method may raise `HaUnreachableError`.

    Args:
        handles: the handles of this job's checkpoints and of nothing else.
    """

    def __init__(self, job_id: str, handles: StateHandleStore, max_retained: int) -> None:
        self._job_id = job_id
        self._handles = handles
        self._retained = RetainedCheckpoints(max_retained)
        self._known = False
        self._lock = asyncio.Lock()

    async def recover(self, term: LeaderTerm) -> list[CompletedCheckpoint]:
        """Find what is stored, the oldest first, and delete what former terms left unfinished; to be called first.

        Raises:
            StateCorruptedError: a checkpoint is damaged; `release` it to go on without.
        """
        async with self._lock:
            await self._handles.sweep(term)
            await self._read()
            return self._retained.kept()

    async def add(
        self, checkpoint_id: int, data: bytes, term: LeaderTerm, needed: Collection[int] = ()
    ) -> list[CompletedCheckpoint]:
        """Store a checkpoint; returns those that it subsumes, which are in the store no more.

        One that could not be removed now, because nobody answered, is removed and returned by a later `add`.

        Args:
            checkpoint_id: its number.
            data: what the coordinator wrote.
            term: the leadership.
            needed: the numbers of those that it must not subsume, however many are kept.

        Raises:
            StateHandleConflictError: another one is stored under the number, or one with a higher number.
            OSError: the file cannot be written; nothing was changed.
        """
        async with self._lock:
            await self._know()
            self._retained.check_add(checkpoint_id, data)
            await self._put(checkpoint_id, data, term, needed)
            return await self._subsume(term)

    async def replace(self, checkpoint_id: int, data: bytes, term: LeaderTerm) -> None:
        """Store other bytes for a checkpoint that is there; `StateHandleNotFoundError` where it is not."""
        async with self._lock:
            await self._know()
            self._retained.check_replace(checkpoint_id)
            await self._put(checkpoint_id, data, term, [item.checkpoint_id for item in self._retained.kept()])

    async def get_all(self) -> list[CompletedCheckpoint]:
        """What is stored, the oldest first; `StateCorruptedError` where one is damaged."""
        found = []
        for name, data in (await self._handles.get_all()).items():
            if isinstance(data, StateCorruptedError):
                raise StateCorruptedError(
                    f"checkpoint {name} of job {self._job_id} cannot be used: {data}. Release it to go on without it."
                ) from data
            found.append(CompletedCheckpoint(int(name), data))
        return sorted(found, key=lambda item: item.checkpoint_id)

    async def release(self, checkpoint_id: int, term: LeaderTerm) -> bool:
        """Remove a checkpoint, damaged or not; whether it was there."""
        async with self._lock:
            there = await self._handles.remove(str(checkpoint_id), term)
            self._retained.left(checkpoint_id)
            return there

    async def _read(self) -> None:
        self._retained.found(await self.get_all())
        self._known = True

    async def _know(self) -> None:
        if not self._known:
            await self._read()

    async def _put(self, checkpoint_id: int, data: bytes, term: LeaderTerm, needed: Collection[int]) -> None:
        self._known = False  # until it is known what came of it
        await self._handles.put(str(checkpoint_id), data, term)
        self._retained.stored(checkpoint_id, data, needed)
        self._known = True

    async def _subsume(self, term: LeaderTerm) -> list[CompletedCheckpoint]:
        subsumed = []
        for checkpoint_id in self._retained.leaving():
            try:
                # It may be gone already: removed by an earlier call that was not answered.
                await self._handles.remove(str(checkpoint_id), term)
            except (HaUnreachableError, StateWriteUnknownError) as error:
                logger.warning("checkpoint %d of job %s is subsumed later: %s", checkpoint_id, self._job_id, error)
                break
            left = self._retained.left(checkpoint_id)
            if left is not None:
                subsumed.append(left)
        return subsumed

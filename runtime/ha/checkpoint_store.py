"""The completed checkpoints of one job (Flink's ``CompletedCheckpointStore``).

To this store, a checkpoint is a number and bytes that the job's checkpoint coordinator understands. The bytes are in a
file, the handle in a map of the job's own. Every write is conditional on the term of the job's JobMaster.

The store returns a subsumed checkpoint only after its handle is removed. So the caller deletes the files to which its
bytes refer after the handle, never before.

A stored checkpoint may be damaged. Then it is kept as well, until the next checkpoint is stored, which subsumes it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from runtime.ha.errors import (
    HaUnreachableError,
    LeadershipLostError,
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
"""The number of a job's first checkpoint, as in Flink."""


class CheckpointIDCounter:
    """The counter of one job, in a map of all counters (Flink: ``ZooKeeperCheckpointIDCounter``).

    Every write demands the value that was there before, so that a delayed write cannot undo a later one. The number is
    stored with the epoch of its writer. So after a lost reply, a JobMaster does not mistake its successor's write for
    its own.

    A write is refused (`LeadershipLostError`) when its term is over. After `StateWriteUnknownError` a write may be
    repeated: a number may then be skipped, but none is returned twice. Every method may raise `HaUnreachableError`;
    then nothing was changed.
    """

    def __init__(self, maps: FencedMaps, keys: ClusterKeys, job_id: str) -> None:
        self._maps = maps
        self._key = keys.checkpoint_ids
        self._job_id = job_id
        self._lock = asyncio.Lock()

    async def get_and_increment(self, term: LeaderTerm) -> int:
        """Return the number of the next checkpoint; no other call returns it."""
        async with self._lock:
            before = await self._raw()
            count = _count(before)
            await self._write(before, count + 1, term)
            return count

    async def get(self) -> int:
        """Return the number that `get_and_increment` would return next."""
        return _count(await self._raw())

    async def set_count(self, count: int, term: LeaderTerm) -> None:
        """Let `get_and_increment` return ``count`` next, for example one more than the restored checkpoint's number."""
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
                f"another write has changed the checkpoint counter of job {self._job_id}; read it again"
            )

    async def _look(self, cause: HaUnreachableError) -> str | None:
        try:
            return await self._raw()
        except HaUnreachableError:
            raise self._unknown(cause) from cause

    def _unknown(self, cause: HaUnreachableError) -> StateWriteUnknownError:
        return StateWriteUnknownError(
            f"the checkpoint counter of job {self._job_id} may or may not have changed ({cause.cause}); repeat the call"
        )

    async def _raw(self) -> str | None:
        return await self._maps.get(self._key, self._job_id)


def check_count(count: int) -> None:
    """Raise ValueError unless *count* can be the number of a checkpoint."""
    if count < 0:
        raise ValueError(f"the number of a checkpoint is 0 or more, not {count}")


def _count(text: str | None) -> int:
    return INITIAL_CHECKPOINT_ID if text is None else int(text.partition("@")[0])


class CheckpointRecoveryFactory:
    """Stores and counters by job: handles in a map for each, files in a directory for each.

    Args:
        maps: where the handles and the numbers are stored.
        keys: names of their keys.
        directory: of the cluster's state files.
        retry: seconds between attempts to read the outcome after a lost reply.
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
        """Return the store of a job, for its leading JobMaster.

        Args:
            job_id: of the job.
            max_retained: how many checkpoints it keeps, 1 or more.
        """
        return CompletedCheckpointStore(job_id, self._handles(job_id), max_retained)

    def checkpoint_id_counter(self, job_id: str) -> CheckpointIDCounter:
        """Return the counter of a job, for its leading JobMaster."""
        return CheckpointIDCounter(self._maps, self._keys, job_id)

    async def clean_up(self, job_id: str, term: LeaderTerm) -> None:
        """Remove the checkpoints and the counter of a job whose JobMaster has ended, handles before files.

        May be repeated. Raises the same errors as the writes of a store.
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
        data: the bytes that the coordinator wrote; None if they are damaged.
    """

    checkpoint_id: int
    data: bytes | None


class RetainedCheckpoints:
    """Decides which checkpoints a store keeps, and which have to leave it. Pure.

    Args:
        max_retained: how many are kept (Flink's ``execution.checkpointing.num-retained``), 1 or more.
    """

    def __init__(self, max_retained: int) -> None:
        if max_retained < 1:
            raise ValueError(f"at least one checkpoint has to be retained, not {max_retained}")
        self._max_retained = max_retained
        self._kept: dict[int, bytes] = {}
        self._leaving: dict[int, bytes | None] = {}
        self._damaged: set[int] = set()

    def found(self, checkpoints: list[CompletedCheckpoint]) -> None:
        """Replace the kept checkpoints by those found in the store, without those that have to leave it."""
        there = {item.checkpoint_id: item.data for item in checkpoints if item.checkpoint_id not in self._leaving}
        self._kept = {number: data for number, data in there.items() if data is not None}
        self._damaged = there.keys() - self._kept.keys()

    def check_add(self, checkpoint_id: int, data: bytes) -> None:
        """Raise the errors of `CompletedCheckpointStore.add`; the same checkpoint may be added twice."""
        if checkpoint_id < 0:
            raise ValueError(f"the number of a checkpoint is 0 or more, not {checkpoint_id}")
        same = self._kept.get(checkpoint_id)
        if same is not None and same != data:
            raise StateHandleConflictError(
                f"another checkpoint {checkpoint_id} is stored already; replace or release it"
            )
        newest = max([*self._kept, *self._leaving, *self._damaged], default=-1)
        if same is None and checkpoint_id <= newest:
            raise StateHandleConflictError(f"checkpoint {checkpoint_id} comes after checkpoint {newest} was stored")

    def check_replace(self, checkpoint_id: int) -> None:
        """Raise `StateHandleNotFoundError` if the checkpoint is not kept."""
        if checkpoint_id not in self._kept:
            raise StateHandleNotFoundError(f"checkpoint {checkpoint_id} is not in the store")

    def stored(self, checkpoint_id: int, data: bytes, needed: Collection[int] = ()) -> None:
        """Note a stored checkpoint; damaged ones have to leave, and the oldest beyond the limit.

        Those that are *needed* stay, however many are kept.
        """
        self._kept[checkpoint_id] = data
        self._leaving.update(dict.fromkeys(self._damaged))
        self._damaged.clear()
        for oldest in sorted(self._kept)[: -self._max_retained]:
            if oldest not in needed:
                self._leaving[oldest] = self._kept.pop(oldest)

    def leaving(self) -> list[int]:
        """Return the checkpoints that have to leave the store, oldest first."""
        return sorted(self._leaving)

    def left(self, checkpoint_id: int) -> CompletedCheckpoint | None:
        """Note that a checkpoint has left the store; return it if it was known."""
        self._damaged.discard(checkpoint_id)
        for known in (self._leaving, self._kept):
            if checkpoint_id in known:
                return CompletedCheckpoint(checkpoint_id, known.pop(checkpoint_id))
        return None

    def kept(self) -> list[CompletedCheckpoint]:
        """Return the checkpoints that stay, oldest first, and damaged ones."""
        return [CompletedCheckpoint(number, self._kept.get(number)) for number in sorted({*self._kept, *self._damaged})]


class CompletedCheckpointStore:
    """The newest checkpoints of a job, at most a given number of them (Flink's ``DefaultCompletedCheckpointStore``).

    Only the leading JobMaster uses it. A write is refused (`LeadershipLostError`) when its term is over, and has to be
    repeated after `StateWriteUnknownError`. Every method may raise `HaUnreachableError`.

    Args:
        job_id: of the job.
        handles: holds the handles of this job's checkpoints and no others.
        max_retained: how many checkpoints it keeps, 1 or more.
    """

    def __init__(self, job_id: str, handles: StateHandleStore, max_retained: int) -> None:
        self._job_id = job_id
        self._handles = handles
        self._retained = RetainedCheckpoints(max_retained)
        self._known = False
        self._lock = asyncio.Lock()

    async def recover(self, term: LeaderTerm) -> list[CompletedCheckpoint]:
        """Return the stored checkpoints, oldest first, and delete files without a handle of former terms.

        Call it before all other methods. A damaged checkpoint is returned without its bytes.
        """
        async with self._lock:
            await self._handles.sweep(term)
            await self._read()
            return self._retained.kept()

    async def add(
        self, checkpoint_id: int, data: bytes, term: LeaderTerm, needed: Collection[int] = ()
    ) -> list[CompletedCheckpoint]:
        """Store a checkpoint; return those that it subsumes, which are no longer in the store.

        It subsumes damaged checkpoints, which are returned without their bytes. If a reply is missing, or the term ends
        now, a subsumed checkpoint may stay; a later `add` removes and returns it.

        Args:
            checkpoint_id: its number.
            data: the bytes that the coordinator wrote.
            term: the leadership.
            needed: the numbers of those that it must not subsume, however many are kept.

        Raises:
            LeadershipLostError: the term is over; nothing was changed.
            StateHandleConflictError: another checkpoint is stored under the number, or one with a higher number.
            OSError: the file cannot be written; nothing was changed.
        """
        async with self._lock:
            await self._know()
            self._retained.check_add(checkpoint_id, data)
            await self._put(checkpoint_id, data, term, needed)
            return await self._subsume(term)

    async def replace(self, checkpoint_id: int, data: bytes, term: LeaderTerm) -> None:
        """Store other bytes for a stored checkpoint; raises `StateHandleNotFoundError` if it is not stored."""
        async with self._lock:
            await self._know()
            self._retained.check_replace(checkpoint_id)
            await self._put(checkpoint_id, data, term, [item.checkpoint_id for item in self._retained.kept()])

    async def get_all(self) -> list[CompletedCheckpoint]:
        """Return the stored checkpoints, oldest first; damaged ones without their bytes."""
        found = []
        for name, data in (await self._handles.get_all()).items():
            if isinstance(data, StateCorruptedError):
                logger.error("checkpoint %s of job %s cannot be used: %s", name, self._job_id, data)
                found.append(CompletedCheckpoint(int(name), None))
            else:
                found.append(CompletedCheckpoint(int(name), data))
        return sorted(found, key=lambda item: item.checkpoint_id)

    async def release(self, checkpoint_id: int, term: LeaderTerm) -> bool:
        """Remove a checkpoint, even a damaged one; return whether it was there."""
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
        self._known = False  # until the outcome of the write is known
        await self._handles.put(str(checkpoint_id), data, term)
        self._retained.stored(checkpoint_id, data, needed)
        self._known = True

    async def _subsume(self, term: LeaderTerm) -> list[CompletedCheckpoint]:
        subsumed = []
        for checkpoint_id in self._retained.leaving():
            try:
                # An earlier call without a reply may have removed it already.
                await self._handles.remove(str(checkpoint_id), term)
            except (HaUnreachableError, StateWriteUnknownError, LeadershipLostError) as error:
                logger.warning("checkpoint %d of job %s is subsumed later: %s", checkpoint_id, self._job_id, error)
                break
            left = self._retained.left(checkpoint_id)
            if left is not None:
                subsumed.append(left)
        return subsumed

"""The numbers of a job's checkpoints, each given out once (Flink's ``CheckpointIDCounter``)."""

from __future__ import annotations

import asyncio
from typing import Protocol

from runtime.ha.errors import HaUnreachableError, StateHandleConflictError, StateWriteUnknownError
from runtime.ha.fenced import Demand, FencedMaps
from runtime.ha.keys import ClusterKeys
from runtime.ha.model import LeaderTerm

INITIAL_CHECKPOINT_ID = 1
"""Flink's: the number of a job's first checkpoint."""


class CheckpointIDCounter(Protocol):
    """A write is refused (`LeadershipLostError`) when its term is over.

    After `StateWriteUnknownError` a write may be repeated: then a number may have been left out, but none is given out
    twice. Every method may raise `HaUnreachableError`; then nothing was changed.
    """

    async def get_and_increment(self, term: LeaderTerm) -> int:
        """The number of the next checkpoint; nobody else gets it."""

    async def get(self) -> int:
        """The number that would be given out next."""

    async def set_count(self, count: int, term: LeaderTerm) -> None:
        """Give out ``count`` next, for example one more than that of the checkpoint that was restored."""


class DefaultCheckpointIDCounter:
    """The counter of one job, in a map of all (Flink: ``ZooKeeperCheckpointIDCounter``).

    Every write demands the value that was there before, so that one that was delayed cannot undo a later one. With the
    number goes the epoch of its writer: after a lost reply nobody takes a successor's write for his own.
    """

    def __init__(self, maps: FencedMaps, keys: ClusterKeys, job_id: str) -> None:
        self._maps = maps
        self._key = keys.checkpoint_ids
        self._job_id = job_id
        self._lock = asyncio.Lock()

    async def get_and_increment(self, term: LeaderTerm) -> int:
        async with self._lock:
            before = await self._raw()
            count = _count(before)
            await self._write(before, count + 1, term)
            return count

    async def get(self) -> int:
        return _count(await self._raw())

    async def set_count(self, count: int, term: LeaderTerm) -> None:
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

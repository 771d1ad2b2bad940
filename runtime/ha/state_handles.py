"""Named states: the bytes are in a file, and the handle is in `FencedMaps` (Flink's ``StateHandleStore``).

A small state is in its handle. A file would cost two more syncs of the disk, and would be no more durable than the
handle that leads to it. With files, the order of writes matters:

- To store a state, write the file, then the handle. To remove it, remove the handle, then the file. So a handle always
  refers to a complete file.
- Every write of a handle is conditional on the leadership *and* on the handle that was there before.
- After a lost reply, the store reads whether the handle was written. If it cannot read it, the file stays, since a
  delayed write may still arrive. In a later epoch such a write is refused, and `sweep` deletes the file.

Flink's lock nodes and their ``release`` have no counterpart here. They prevent a former leader from deleting a state;
here such a deletion is refused.
"""

from __future__ import annotations

import asyncio
import logging

from runtime.ha.errors import (
    HaError,
    HaUnreachableError,
    StateCorruptedError,
    StateHandleConflictError,
    StateHandleNotFoundError,
    StateWriteUnknownError,
)
from runtime.ha.fenced import Demand, FencedMaps, HashWrite
from runtime.ha.keys import ClusterKeys
from runtime.ha.state_files import StateFiles, StateHandle
from runtime.protocol.leader import LeaderTerm

logger = logging.getLogger(__name__)

JOB_GRAPHS = "jobgraphs"


class JobGraphStore:
    """Serialised job graphs by job id, in a `StateHandleStore`.

    A write is refused (`LeadershipLostError`) when its term is over.
    """

    def __init__(self, handles: StateHandleStore) -> None:
        self._handles = handles

    async def put(self, job_id: str, data: bytes, term: LeaderTerm) -> None:
        """Store a graph; storing the same again changes nothing. Repeat the call after `StateWriteUnknownError`."""
        await self._handles.put(job_id, data, term)

    async def get(self, job_id: str) -> bytes:
        """Return a graph; raises `StateHandleNotFoundError`, or `StateCorruptedError` if it is damaged."""
        return await self._handles.get(job_id)

    async def get_all(self) -> dict[str, bytes | StateCorruptedError]:
        """Return all graphs, for recovery; an error for a damaged one, so that the others can be recovered."""
        return await self._handles.get_all()

    async def job_ids(self) -> list[str]:
        """Return the ids of all stored jobs."""
        return await self._handles.names()

    async def remove(self, job_id: str, term: LeaderTerm) -> bool:
        """Remove a graph; return whether it was there."""
        return await self._handles.remove(job_id, term)

    async def sweep(self, term: LeaderTerm) -> int:
        """Delete files of former leaders that have no handle; a new leader calls it. Returns how many files."""
        return await self._handles.sweep(term)


EXECUTIONS = "executions"


class ExecutionStore:
    """One state for each job, in a `StateHandleStore`.

    A write is refused (`LeadershipLostError`) when its term is over.
    """

    def __init__(self, handles: StateHandleStore) -> None:
        self._handles = handles

    async def put(self, job_id: str, data: bytes, term: LeaderTerm) -> None:
        """Store a state; it replaces the one before. Repeat the call after `StateWriteUnknownError`."""
        await self._handles.put(job_id, data, term)

    async def find(self, job_id: str) -> bytes | None:
        """Return the state of a job, None if there is none; raises `StateCorruptedError` if it is damaged."""
        try:
            return await self._handles.get(job_id)
        except StateHandleNotFoundError:
            return None

    async def remove(self, job_id: str, term: LeaderTerm) -> None:
        """Remove the state and all its files without a handle; call it when the job's JobMaster has ended."""
        await self._handles.remove(job_id, term)
        await self._handles.delete_orphans(job_id)

    async def sweep(self, term: LeaderTerm) -> int:
        """Delete files of the job's former JobMasters that have no handle; returns how many files."""
        return await self._handles.sweep(term)


_READS_AT_ONCE = 8
_LOOKS = 3


class StateHandleStore:
    """States of one kind, by name.

    Args:
        maps: where the handles go.
        keys: names of the cluster's keys.
        kind: for example ``jobgraphs``; part of the handles' key.
        files: where the bytes go.
        retry: seconds between attempts to read the outcome after a lost reply.
        memory_threshold: states of at most so many bytes are in their handles; with 0, only empty ones.
    """

    def __init__(
        self,
        maps: FencedMaps,
        keys: ClusterKeys,
        kind: str,
        files: StateFiles,
        *,
        retry: float = 0.2,
        memory_threshold: int = 0,
    ) -> None:
        self._maps = maps
        self._key = keys.handles(kind)
        self._kind = kind
        self._files = files
        self._retry = retry
        self._memory_threshold = memory_threshold
        self._last: tuple[str, str] | None = None
        """The name of the last write, and the text of its handle."""

    async def put(self, name: str, data: bytes, term: LeaderTerm) -> StateHandle:
        """Store ``data`` as ``name``, and replace the former state; storing the same again changes nothing.

        Raises:
            LeadershipLostError: the term is over; nothing was changed.
            StateHandleConflictError: another write stored under the name at the same time.
            StateWriteUnknownError: the reply to the write was lost; repeat the call.
            HaUnreachableError: Redis or the master did not answer before the write; nothing was changed.
            OSError: the file cannot be written.
        """
        if len(data) > self._memory_threshold:
            handle, write = await self._put_over(await self._raw(name), name, data, term)
        else:
            # A right guess costs one request; to read first costs two.
            guess = self._last[1] if self._last is not None and self._last[0] == name else None
            handle, write = await self._put_over(guess, name, data, term)
            if not write.done:
                handle, write = await self._put_over(write.found, name, data, term)
        self._demand_done(name, write)
        self._last = name, handle.to_json()
        return handle

    async def _put_over(
        self, before: str | None, name: str, data: bytes, term: LeaderTerm
    ) -> tuple[StateHandle, HashWrite]:
        if before is not None and (handle := _readable(before)) is not None and handle.describes(data):
            # Write it again unchanged: only the leader may get the answer that it is stored.
            return handle, await self._maps.hset(self._key, name, before, term, demand=before)
        handle = await self._written(name, data, term)
        text = handle.to_json()
        try:
            write = await self._maps.hset(
                self._key, name, text, term, demand=Demand.ABSENT if before is None else before
            )
        except HaUnreachableError as error:
            if await self._look(name) != text:
                raise StateWriteUnknownError(
                    f"whether {self._kind}/{name} was stored is not known ({error.cause}); repeat the call"
                ) from error
            write = HashWrite(True)
        except HaError:
            # The server answered: the handle was not written and never will be.
            await self._delete(handle)
            raise
        if not write.done:
            await self._delete(handle)
        elif before is not None and (old := _readable(before)) is not None:
            await self._delete(old)
        return handle, write

    async def get(self, name: str) -> bytes:
        """Return the bytes stored as ``name``, verified.

        Raises:
            StateHandleNotFoundError: there is no such entry.
            StateCorruptedError: the file is missing, or differs from what was stored.
            HaUnreachableError: Redis or the master does not answer.
        """
        data = await self._get(name)
        if data is None:
            raise StateHandleNotFoundError(f"{self._kind}/{name} is not in the store")
        return data

    async def get_all(self) -> dict[str, bytes | StateCorruptedError]:
        """Return every entry, or its error; read a few files at a time."""
        gate = asyncio.Semaphore(_READS_AT_ONCE)

        async def read(name: str) -> bytes | StateCorruptedError | None:
            async with gate:
                try:
                    return await self._get(name)
                except StateCorruptedError as error:
                    return error

        names = sorted(await self.names())
        states = await asyncio.gather(*(read(name) for name in names))
        return {name: state for name, state in zip(names, states, strict=True) if state is not None}

    async def names(self) -> list[str]:
        """Return the names of all entries."""
        return await self._maps.fields(self._key)

    async def remove(self, name: str, term: LeaderTerm) -> bool:
        """Remove an entry, then its file; return whether it was there.

        Only the leader gets the answer that it was not: a caller may delete files after it, see `delete_orphans`.

        Raises:
            LeadershipLostError: the term is over; nothing was changed.
            StateHandleConflictError: another write stored under the name at the same time.
            StateWriteUnknownError: the reply to the removal was lost; repeat the call.
            HaUnreachableError: Redis or the master did not answer before the removal; nothing was changed.
        """
        before = await self._raw(name)
        if before is None:
            self._demand_done(name, await self._maps.hdel(self._key, name, term, demand=Demand.ABSENT))
            return False
        try:
            write = await self._maps.hdel(self._key, name, term, demand=before)
        except HaUnreachableError as error:
            if await self._look(name) == before:
                raise StateWriteUnknownError(
                    f"whether {self._kind}/{name} was removed is not known ({error.cause}); repeat the call"
                ) from error
            write = HashWrite(True)
        if write.found is not None:
            self._demand_done(name, write)
        # A handle's text is never written twice, so no entry can refer to the file again.
        if (handle := _readable(before)) is not None:
            await self._delete(handle)
        return True

    async def sweep(self, term: LeaderTerm) -> int:
        """Delete the files that earlier terms of the component left without a handle; returns how many.

        Their writes are refused since ``term`` began, so a file without a handle will never get one.
        """
        old = await asyncio.to_thread(self._files.older_than, term)
        if not old:
            return 0
        handles = [_readable(text) for text in (await self._maps.get_all(self._key)).values()]
        live = {handle.path for handle in handles if handle is not None}
        # A handle that cannot be read may belong to any of the files: then none is deleted.
        orphans = [name for name in old if name not in live] if None not in handles else []
        await asyncio.to_thread(self._files.delete_named, orphans)
        return len(orphans)

    async def delete_orphans(self, name: str) -> int:
        """Delete the files of one name that have no handle; call it when no component writes under the name."""
        text = await self._raw(name)
        live = None if text is None else _readable(text)
        names = await asyncio.to_thread(self._files.of_name, name)
        orphans = [file for file in names if live is None or file != live.path]
        await asyncio.to_thread(self._files.delete_named, orphans)
        return len(orphans)

    async def _written(self, name: str, data: bytes, term: LeaderTerm) -> StateHandle:
        if len(data) <= self._memory_threshold:
            return StateHandle.of(name, data, term, inline=True)
        return await asyncio.to_thread(self._files.write, name, data, term)

    async def _delete(self, handle: StateHandle) -> None:
        if handle.content is None:
            await asyncio.to_thread(self._files.delete, handle)

    def _demand_done(self, name: str, write: HashWrite) -> None:
        if not write.done:
            raise StateHandleConflictError(f"another write has changed {self._kind}/{name}; read it again")

    async def _raw(self, name: str) -> str | None:
        return await self._maps.get(self._key, name)

    async def _get(self, name: str) -> bytes | None:
        text = await self._raw(name)
        while text is not None:
            handle = StateHandle.from_json(text)
            if handle.content is not None:
                return handle.decode()
            try:
                return await asyncio.to_thread(self._files.read, handle)
            except FileNotFoundError:
                # If the state was replaced between the two reads, there is another handle now.
                again = await self._raw(name)
                if again == text:
                    raise StateCorruptedError(
                        f"the file of {self._kind}/{name} is missing: {self._files.directory / handle.path}"
                    ) from None
                text = again
        return None

    async def _look(self, name: str) -> str | None:
        """Return the handle after a write whose reply was lost; raises `StateWriteUnknownError` without a reply."""
        for attempt in range(_LOOKS):
            try:
                return await self._raw(name)
            except HaError as error:
                if attempt == _LOOKS - 1:
                    raise StateWriteUnknownError(
                        f"whether the write to {self._kind}/{name} took effect is not known ({error}); repeat it"
                    ) from error
            await asyncio.sleep(self._retry)
        raise AssertionError("not reached")


def _readable(text: str) -> StateHandle | None:
    """Return the handle of a text; None for another text: such an entry can be replaced or removed, and has no file."""
    try:
        return StateHandle.from_json(text)
    except StateCorruptedError:
        logger.warning("an entry of the store is not a state handle: %.200r", text)
        return None

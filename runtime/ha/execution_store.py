"""How far the executions of running jobs have come, written by their JobMasters for their successors."""

from __future__ import annotations

from typing import Protocol

from runtime.ha.errors import StateHandleNotFoundError
from runtime.ha.model import LeaderTerm
from runtime.ha.state_handles import StateHandleStore

KIND = "executions"


class ExecutionStore(Protocol):
    """One state a job. A write is refused (`LeadershipLostError`) when its term is over."""

    async def put(self, job_id: str, data: bytes, term: LeaderTerm) -> None:
        """Store a state in place of the one before. Repeat it after `StateWriteUnknownError`."""

    async def find(self, job_id: str) -> bytes | None:
        """The state of a job, None where there is none; `StateCorruptedError` where it is damaged."""

    async def remove(self, job_id: str, term: LeaderTerm) -> None:
        """Remove the state and whatever was left unfinished of it; to be called when the job's JobMaster has ended."""

    async def sweep(self, term: LeaderTerm) -> int:
        """Delete what former JobMasters of the job left unfinished; returns how many files."""


class DefaultExecutionStore:
    """An `ExecutionStore` by indirection through a `StateHandleStore`."""

    def __init__(self, handles: StateHandleStore) -> None:
        self._handles = handles

    async def put(self, job_id: str, data: bytes, term: LeaderTerm) -> None:
        await self._handles.put(job_id, data, term)

    async def find(self, job_id: str) -> bytes | None:
        try:
            return await self._handles.get(job_id)
        except StateHandleNotFoundError:
            return None

    async def remove(self, job_id: str, term: LeaderTerm) -> None:
        await self._handles.remove(job_id, term)
        await self._handles.delete_orphans(job_id)

    async def sweep(self, term: LeaderTerm) -> int:
        return await self._handles.sweep(term)

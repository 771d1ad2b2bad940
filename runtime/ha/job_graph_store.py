"""The graphs of accepted jobs, kept until their jobs have ended (Flink's ``JobGraphStore``)."""

from __future__ import annotations

from typing import Protocol

from runtime.ha.errors import StateCorruptedError
from runtime.ha.model import LeaderTerm
from runtime.ha.state_handles import StateHandleStore

KIND = "jobgraphs"


class JobGraphStore(Protocol):
    """Serialised job graphs by job id. A write is refused (`LeadershipLostError`) when its term is over."""

    async def put(self, job_id: str, data: bytes, term: LeaderTerm) -> None:
        """Store a graph; storing the same again changes nothing. Repeat it after `StateWriteUnknownError`."""

    async def get(self, job_id: str) -> bytes:
        """A graph; `StateHandleNotFoundError` or `StateCorruptedError` where there is none or it is damaged."""

    async def get_all(self) -> dict[str, bytes | StateCorruptedError]:
        """All graphs, for recovery; a damaged one by its error, so that it cannot stop the others."""

    async def job_ids(self) -> list[str]:
        """The ids of all stored jobs."""

    async def remove(self, job_id: str, term: LeaderTerm) -> bool:
        """Remove a graph; whether it was there."""

    async def sweep(self, term: LeaderTerm) -> int:
        """Delete what former leaders left unfinished; to be called by a new leader. Returns how many files."""


class DefaultJobGraphStore:
    """A `JobGraphStore` by indirection through a `StateHandleStore`."""

    def __init__(self, handles: StateHandleStore) -> None:
        self._handles = handles

    async def put(self, job_id: str, data: bytes, term: LeaderTerm) -> None:
        await self._handles.put(job_id, data, term)

    async def get(self, job_id: str) -> bytes:
        return await self._handles.get(job_id)

    async def get_all(self) -> dict[str, bytes | StateCorruptedError]:
        return await self._handles.get_all()

    async def job_ids(self) -> list[str]:
        return await self._handles.names()

    async def remove(self, job_id: str, term: LeaderTerm) -> bool:
        return await self._handles.remove(job_id, term)

    async def sweep(self, term: LeaderTerm) -> int:
        return await self._handles.sweep(term)

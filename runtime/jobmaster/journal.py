"""Writes the state of a job's execution, and signals when it is written (see `runtime.jobmaster.execution`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from actors.rpc.endpoint import RpcEndpoint
from runtime.ha.errors import HaError, LeadershipLostError
from runtime.ha.state_handles import ExecutionStore
from runtime.protocol.errors import JobNotReachableError
from runtime.protocol.leader import LeaderTerm
from runtime.retry import retry


class ExecutionJournal:
    """Writes one state at a time; changes during a write go into the next. If Redis is away, it waits.

    Args:
        endpoint: the JobMaster, on whose main thread everything here runs.
        store: receives the state.
        job_id: of the job.
        term: the leadership under which it is written.
        take: returns the present state, encoded.
    """

    def __init__(
        self, endpoint: RpcEndpoint, store: ExecutionStore, job_id: str, term: LeaderTerm, take: Callable[[], bytes]
    ) -> None:
        self._endpoint = endpoint
        self._store = store
        self._job_id = job_id
        self._term = term
        self._take = take
        self._next: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._complete = False

    async def written(self) -> None:
        """Return once all changes so far are written.

        Raises:
            JobNotReachableError: the leadership is over; another JobMaster has the job.
        """
        if self._complete:
            return
        if self._closed:
            raise JobNotReachableError(f"job {self._job_id} has another JobMaster; look it up again")
        if self._next is None:
            self._next = self._endpoint.service.loop.create_future()
            self._next.add_done_callback(_retrieved)
        written = self._next
        if self._task is None or self._task.done():
            self._task = self._endpoint.spawn(self._write(), "writing the state of the execution")
        await asyncio.shield(written)

    def complete(self) -> None:
        """Write no more, because the end of the job is written; from now on `written` returns at once."""
        self._complete = True

    def close(self) -> None:
        """Write no more; callers that wait get an error, and look for the next JobMaster."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
        if self._next is not None and not self._next.done():
            self._next.set_exception(JobNotReachableError(f"job {self._job_id} is being recovered; retry in a moment"))

    async def _write(self) -> None:
        while self._next is not None:
            waiting, self._next = self._next, None
            try:
                await self._put(self._take())
            except BaseException as error:
                cause = str(error) or "retry in a moment"  # the error of a cancelled write is empty
                waiting.set_exception(JobNotReachableError(f"job {self._job_id} is being recovered: {cause}"))
                if isinstance(error, LeadershipLostError):
                    self._endpoint.log.warning("%s", error)
                    return  # the election notices it, too
                raise
            waiting.set_result(None)

    async def _put(self, data: bytes) -> None:
        await retry(
            lambda: self._store.put(self._job_id, data, self._term),
            (HaError, OSError),
            unless=LeadershipLostError,
            what=f"writing the state of job {self._job_id}",
            log=self._endpoint.log,
            level=logging.WARNING,
        )


def _retrieved(future: asyncio.Future[None]) -> None:
    """Mark a failure as seen, because the caller that waited for it may have ended."""
    if not future.cancelled():
        future.exception()

"""The large parts of one job's deployments, as blobs."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol, TypeVar

from blob.offload import BlobWriter, Inline, MaybeOffloaded, MessageOffload, Offloaded, offload_if_larger

T = TypeVar("T")
LONGEST_S = 3600.0
SHORTEST_S = 1.0


class RunBlocking(Protocol):
    """Runs blocking work on another thread: `RpcEndpoint.run_blocking`."""

    def __call__(self, function: Callable[..., T], *args: Any) -> Awaitable[T]:
        """The result of ``function(*args)``."""


class DeploymentOffload:
    """What is sent for the parts of a job's deployments.

    A part over the limit is uploaded once however many TaskExecutors it goes to at the same time. The one that all
    deployments share is kept for the next ones, until `release`.

    Args:
        writer: uploads and deletes.
        limit: most bytes that travel in the message.
        job_id: the job.
        run_blocking: for whatever uploads or deletes.
        ttl_s: seconds for which the server keeps a transient blob that nobody uses.
    """

    def __init__(self, writer: BlobWriter, limit: int, job_id: str, run_blocking: RunBlocking, ttl_s: float) -> None:
        self._writer = writer
        self._limit = limit
        self._job_id = job_id
        self._run_blocking = run_blocking
        self._messages = MessageOffload(writer, limit, job_id, lifetime_s=max(SHORTEST_S, min(ttl_s, LONGEST_S)))
        self._lock = threading.Lock()
        self._kept: contextlib.ExitStack | None = None
        self._permanent: tuple[bytes, MaybeOffloaded] | None = None

    @contextlib.asynccontextmanager
    async def delivery(self, data: bytes, *, keep: bool = False) -> AsyncIterator[MaybeOffloaded]:
        """What to send for *data* to one TaskExecutor; the ``async with`` lasts until that has answered.

        Args:
            data: a part of a deployment.
            keep: whether it is the part that other deployments share.

        Raises:
            BlobError: the upload failed.
        """
        if len(data) <= self._limit:
            yield Inline(data)
            return
        message, delivered = await self._run_blocking(self._begin, data, keep)
        try:
            yield message
        finally:
            await self._run_blocking(delivered)

    def _begin(self, data: bytes, keep: bool) -> tuple[MaybeOffloaded, Callable[[], None]]:
        with contextlib.ExitStack() as stack:
            message = stack.enter_context(self._messages.delivery(data))
            if keep:
                # The blob of this delivery may be a newer one than that which was kept: that one is over its half-life.
                kept = contextlib.ExitStack()
                kept.enter_context(self._messages.kept(data))
                with self._lock:
                    former, self._kept = self._kept, kept
                if former is not None:
                    former.close()
            return message, stack.pop_all().close

    async def lasting(self, data: bytes, message: MaybeOffloaded, *, keep: bool = False) -> MaybeOffloaded:
        """What to send instead, to a TaskExecutor that does not find the blob of *message*.

        It was swept, or the TaskExecutor uses another master's BlobServer: a transient blob is at one server alone, a
        permanent one is found in the store from anywhere, and goes with the job.

        Raises:
            BlobError: the upload failed.
        """
        if isinstance(message, Inline):
            return message
        return await self._run_blocking(self._lasting, data, message, keep)

    def _lasting(self, data: bytes, message: Offloaded, keep: bool) -> MaybeOffloaded:
        self._messages.lost(message)
        digest = hashlib.sha256(data).digest()
        permanent = self._permanent
        if permanent is not None and permanent[0] == digest:
            return permanent[1]
        sent = offload_if_larger(data, self._limit, self._writer, self._job_id)
        if keep:
            self._permanent = digest, sent
        return sent

    async def release(self) -> None:
        """Delete the shared part once no delivery of it is under way: the job is deployed no more."""
        with self._lock:
            kept, self._kept = self._kept, None
        if kept is not None:
            await self._run_blocking(kept.close)

    async def close(self) -> None:
        """Delete whatever is left."""
        await self.release()
        await self._run_blocking(self._messages.close)

"""Gateway of the BlobServer's actor: control only; bulk data uses the server's own port."""

from __future__ import annotations

from dataclasses import dataclass

from actors.rpc.gateway import Ask, FencingToken, RpcGateway, reads
from blob.settings import BlobServerStats

NAME = "blobserver"
PATH = f"/user/{NAME}"


@dataclass(frozen=True, slots=True)
class BlobAddress:
    """Address of the BlobServer for bulk transfers."""

    host: str
    port: int


class BlobServerGateway(RpcGateway):
    """Control of the blob service. Its parameters are job ids (32 hex digits) and the texts of blob keys."""

    @reads
    def request_address(self) -> Ask[BlobAddress]:
        """Return the server's address for bulk transfers."""
        raise NotImplementedError

    @reads
    def request_metrics(self) -> Ask[BlobServerStats]:
        """Return the server's statistics."""
        raise NotImplementedError

    @reads
    def lookup(self, job_id: str | None, key: str) -> Ask[int | None]:
        """Return the size of a blob in bytes; None if it is not in the server's directory (it may be in the store)."""
        raise NotImplementedError

    def use_job(self, job_id: str) -> Ask[None]:
        """Spare a job's blobs from sweeps for another orphan age; call it when a job is submitted or recovered."""
        raise NotImplementedError

    def cleanup_job(self, job_id: str, leader: FencingToken) -> Ask[None]:
        """Delete all blobs of a job that has ended and is no longer kept.

        It fails with FencingError when the server has seen a later leadership than *leader*, and then deletes nothing.
        """
        raise NotImplementedError

    def sweep_orphans(self, live_jobs: list[str], leader: FencingToken) -> Ask[list[str]]:
        """Delete the blobs of unknown jobs and return the ids of these jobs; see `BlobServer.sweep`.

        Args:
            live_jobs: the jobs that *leader* knows: running, being recovered, or kept after their end.
            leader: fences the call as in `cleanup_job`.
        """
        raise NotImplementedError

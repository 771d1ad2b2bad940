"""How the BlobServer's actor is asked: control only, bulk goes over the server's own port."""

from __future__ import annotations

from dataclasses import dataclass

from actors.rpc.gateway import Ask, FencingToken, RpcGateway, reads
from blob.settings import BlobServerStats

NAME = "blobserver"
PATH = f"/user/{NAME}"


@dataclass(frozen=True, slots=True)
class BlobAddress:
    """Where the BlobServer listens for bulk transfers."""

    host: str
    port: int


class BlobServerGateway(RpcGateway):
    """The control side of the blob service. Jobs are named by their 32 hex digits, blobs by their keys' text."""

    @reads
    def request_address(self) -> Ask[BlobAddress]:
        """Where it listens for bulk transfers."""
        raise NotImplementedError

    @reads
    def request_metrics(self) -> Ask[BlobServerStats]:
        """The server's figures."""
        raise NotImplementedError

    @reads
    def lookup(self, job_id: str | None, key: str) -> Ask[int | None]:
        """Bytes of a blob that the server has in its directory; None if it has not (it may be in the store)."""
        raise NotImplementedError

    def use_job(self, job_id: str) -> Ask[None]:
        """Spare a job's blobs from sweeps for another orphan age: to be asked when a job is submitted or recovered."""
        raise NotImplementedError

    def cleanup_job(self, job_id: str, leader: FencingToken) -> Ask[None]:
        """Delete all blobs of a job that is over and whose retention has ended.

        Fails with FencingError when a later leadership than *leader* has been heard of: nothing is deleted then.
        """
        raise NotImplementedError

    def sweep_orphans(self, live_jobs: list[str], leader: FencingToken) -> Ask[list[str]]:
        """Delete the blobs of jobs that nobody knows, and return whose: see `BlobServer.sweep`.

        Args:
            live_jobs: the jobs that *leader* knows: running, being recovered, or kept after their end.
            leader: fenced as in `cleanup_job`.
        """
        raise NotImplementedError

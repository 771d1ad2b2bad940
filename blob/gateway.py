"""How the BlobServer's actor is asked: control only, bulk goes over the server's own port."""

from __future__ import annotations

from dataclasses import dataclass

from actors.rpc.gateway import Ask, RpcGateway

NAME = "blobserver"
PATH = f"/user/{NAME}"


@dataclass(frozen=True, slots=True)
class BlobAddress:
    """Where the BlobServer listens for bulk transfers."""

    host: str
    port: int


class BlobServerGateway(RpcGateway):
    """The control side of the blob service."""

    def request_address(self) -> Ask[BlobAddress]:
        """Where it listens for bulk transfers."""
        raise NotImplementedError

    def cleanup_job(self, job_id: str) -> Ask[None]:
        """Delete all blobs of a job that is over; *job_id* is its 32 hexadecimal digits."""
        raise NotImplementedError

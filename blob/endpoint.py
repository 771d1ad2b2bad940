"""The actor of the BlobServer: owns the server, answers where it is, and cleans up after jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from actors.rpc.endpoint import RpcEndpoint
from actors.rpc.gateway import rpc, rpc_sync
from actors.rpc.service import RpcService
from blob.gateway import BlobAddress, BlobServerGateway
from blob.server import BlobServer, BlobServerOptions
from blob.store import FileSystemBlobStore


class BlobServerEndpoint(RpcEndpoint, BlobServerGateway):
    """Control of a `BlobServer` that runs in this process; its bulk I/O has threads of its own.

    Args:
        service: the RPC service of the process.
        name: the actor's name.
        server: the server, not started yet.
    """

    def __init__(self, service: RpcService, name: str, server: BlobServer) -> None:
        super().__init__(service, name)
        self._server = server

    async def on_start(self) -> None:
        await self._server.start()
        self.log.info("the BlobServer listens on %s:%d", *self._server.address)

    async def on_stop(self) -> None:
        await self._server.close()

    @rpc_sync
    def request_address(self) -> BlobAddress:
        return BlobAddress(*self._server.address)

    @rpc
    async def cleanup_job(self, job_id: str) -> None:
        await self._server.delete_job(job_id)


async def create(
    service: RpcService, name: str, *, directory: str, store: str, host: str, port: int, options: dict[str, Any]
) -> BlobServerEndpoint:
    """Factory for the actor's host; *options* are the fields of `BlobServerOptions`."""
    server = BlobServer(
        Path(directory),
        service.secret,
        host=host,
        port=port,
        store=FileSystemBlobStore(Path(store)),
        options=BlobServerOptions(**options),
    )
    return BlobServerEndpoint(service, name, server)

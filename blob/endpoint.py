"""The actor of the BlobServer: it owns the server, returns its address, and cleans up after jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from actors.rpc.endpoint import RpcEndpoint
from actors.rpc.gateway import FencingToken, rpc, rpc_sync
from actors.rpc.service import RpcService
from blob.gateway import BlobAddress, BlobServerGateway
from blob.key import BlobKey
from blob.server import BlobServer
from blob.settings import BlobServerOptions, BlobServerStats
from blob.stores import create_blob_store
from conf.secret import SecretStr


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

    @rpc_sync
    def request_metrics(self) -> BlobServerStats:
        return self.statistics()

    def statistics(self) -> BlobServerStats:
        """Return the server's statistics; call it on the endpoint's own thread."""
        return self._server.stats()

    @rpc_sync
    def lookup(self, job_id: str | None, key: str) -> int | None:
        return self._server.size_of(job_id, BlobKey.parse(key))

    @rpc_sync
    def use_job(self, job_id: str) -> None:
        self._server.use_job(job_id)

    @rpc
    async def cleanup_job(self, job_id: str, leader: FencingToken) -> None:
        await self._server.delete_job(job_id, token=leader)

    @rpc
    async def sweep_orphans(self, live_jobs: list[str], leader: FencingToken) -> list[str]:
        return await self._server.sweep(live_jobs, leader)


async def create(
    service: RpcService,
    name: str,
    *,
    directory: str,
    store: str | SecretStr,
    host: str,
    port: int,
    options: dict[str, Any],
) -> BlobServerEndpoint:
    """Create the endpoint in its host: *store* is a path or URL, *options* are the fields of `BlobServerOptions`.

    Blobs travel over TLS when the messages of *service* do, with the same certificates.
    """
    tls = service.config.tls
    server = BlobServer(
        Path(directory),
        service.secret,
        host=host,
        port=port,
        store=create_blob_store(store.reveal() if isinstance(store, SecretStr) else store),
        options=BlobServerOptions(**options),
        tls=None if tls is None else tls.contexts()[0],
    )
    return BlobServerEndpoint(service, name, server)

"""The BlobServer's actor, asked over RPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeVar

import pytest
import pytest_asyncio

from actors.errors import FencingError
from actors.rpc.gateway import FencingToken
from actors.rpc.service import RpcConfig, RpcService
from blob.client import BlobClient
from blob.endpoint import create
from blob.errors import BlobNotFound
from blob.gateway import NAME, BlobServerGateway
from blob.key import PermanentBlobKey, TransientBlobKey
from conf.secret import SecretStr
from tests.contract.blob_harness import JOB, OTHER_JOB, SECRET

T = TypeVar("T")
NEW, OLD = FencingToken(9, "new"), FencingToken(8, "old")


@pytest_asyncio.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[BlobServerGateway]:
    loop = asyncio.get_running_loop()
    service, caller = (RpcService(loop, SECRET, RpcConfig()) for _ in range(2))
    await service.listen()
    endpoint = await create(
        service,
        NAME,
        directory=str(tmp_path / "blob"),
        store=SecretStr(f"file://{tmp_path}/store"),
        host="127.0.0.1",
        port=0,
        options={"disk_reserve": 0, "orphan_age": 0.0},
    )
    await service.start_server(endpoint)
    yield caller.gateway(str(endpoint.address), BlobServerGateway)
    await service.stop_server(endpoint)
    await caller.close()
    await service.close()


async def with_client(gateway: BlobServerGateway, work: Callable[[BlobClient], T]) -> T:
    address = await gateway.request_address()

    def run() -> T:
        with BlobClient((address.host, address.port), SECRET, retries=0) as client:
            return work(client)

    return await asyncio.to_thread(run)


async def put(gateway: BlobServerGateway, job_id: str) -> PermanentBlobKey:
    return await with_client(gateway, lambda client: client.put_bytes(b"content", PermanentBlobKey, job_id))


async def test_lookup_and_metrics(gateway: BlobServerGateway) -> None:
    key = await put(gateway, JOB)
    assert await gateway.lookup(JOB, key) == 7
    assert await gateway.lookup(OTHER_JOB, key) is None
    assert await gateway.lookup(None, TransientBlobKey.create(bytes(32))) is None
    metrics = await gateway.request_metrics()
    assert (metrics.puts, metrics.bytes_received, metrics.total_bytes, metrics.owners) == (1, 7, 7, 1)
    with pytest.raises(Exception, match="not a PermanentBlobKey"):
        await gateway.lookup(JOB, "../../etc/passwd")


async def test_the_end_of_a_job(gateway: BlobServerGateway, tmp_path: Path) -> None:
    key = await put(gateway, JOB)
    await gateway.cleanup_job(JOB, NEW)
    await gateway.cleanup_job(JOB, NEW)
    with pytest.raises(BlobNotFound):
        await with_client(gateway, lambda client: client.get_bytes(key, JOB))
    assert {path.name for path in (tmp_path / "store").iterdir()} == {"fence"}


async def test_an_old_leader_deletes_nothing(gateway: BlobServerGateway) -> None:
    key = await put(gateway, JOB)
    assert await gateway.sweep_orphans([JOB], NEW) == []
    # It does not know of the job, and believes that it is over.
    with pytest.raises(FencingError, match="a leader of the past"):
        await gateway.sweep_orphans([], OLD)
    with pytest.raises(FencingError, match="a leader of the past"):
        await gateway.cleanup_job(JOB, OLD)
    assert await with_client(gateway, lambda client: client.get_bytes(key, JOB)) == b"content"


async def test_a_sweep(gateway: BlobServerGateway) -> None:
    for job_id in (JOB, OTHER_JOB):
        await put(gateway, job_id)
    assert await gateway.sweep_orphans([JOB], NEW) == [OTHER_JOB]
    assert (await gateway.request_metrics()).total_bytes == 7
    await gateway.use_job(JOB)
    with pytest.raises(Exception, match="not a job id"):
        await gateway.sweep_orphans(["../x"], NEW)
    with pytest.raises(Exception, match="not a job id"):
        await gateway.use_job("..")
    assert (await gateway.request_metrics()).total_bytes == 7

# ruff: noqa: F811 - fixtures are imported by name
"""A Dispatcher that finds a thousand jobs: real Redis, real services, and a master that starts no processes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import runtime
from actors.errors import FencingError
from actors.receptionist import Listing, Receptionist, receptionist_of
from actors.rpc.endpoint import RpcEndpoint
from actors.rpc.gateway import FencingToken, rpc, rpc_sync
from actors.rpc.service import RpcConfig, RpcService
from blob.client import BlobClient
from blob.endpoint import BlobServerEndpoint
from blob.gateway import NAME as BLOB_SERVER
from blob.gateway import BlobAddress
from blob.offload import Inline
from blob.server import BlobServer
from blob.settings import BlobServerOptions
from runtime.dispatcher.archive import MemoryArchivedExecutionGraphStore, Retention
from runtime.dispatcher.endpoint import Dispatcher
from runtime.feature_level import supported_levels
from runtime.ha.connection import RedisConnection
from runtime.ha.keys import ClusterKeys
from runtime.ha.latch import RedisLeaderLatch
from runtime.ha.services import RedisHaServices
from runtime.ids import JobID
from runtime.jobgraph.codec import encode
from runtime.jobgraph.job_graph import JobGraph
from runtime.protocol.dispatcher import DispatcherGateway
from runtime.protocol.execution_state import JobStatus
from runtime.protocol.leader import DISPATCHER, LeaderTerm
from runtime.protocol.master import MasterGateway, WorkerProcess
from runtime.protocol.messages import ClusterStatus
from tests.fakes.redis_server import RedisServer, redis_server, until  # noqa: F401
from tests.waiting import PATIENCE_S

SECRET = b"the secret of this test cluster."
JOBS = 1000
AT_ONCE = 4
LEASE = PATIENCE_S


class Guardian(RpcEndpoint, MasterGateway):
    """Starts no JobMaster before it is let, and counts."""

    def __init__(self, service: RpcService) -> None:
        super().__init__(service, "master")
        self.let = asyncio.Event()
        self.let_one: set[str] = set()
        self.under_way: set[str] = set()
        self.most = 0
        self.started: Counter[str] = Counter()
        self.stopped: Counter[str] = Counter()

    @rpc
    async def start_job_master(self, job_id: JobID) -> str:
        self.under_way.add(job_id)
        self.most = max(self.most, len(self.under_way))
        if job_id not in self.let_one:
            await self.let.wait()
        self.under_way.remove(job_id)
        self.started[job_id] += 1
        return ""

    @rpc_sync
    def stop_job_master(self, job_id: JobID) -> None:
        self.stopped[job_id] += 1

    @rpc_sync
    def stop_worker(self, name: str) -> bool:
        raise NotImplementedError

    @rpc_sync
    def start_worker(self) -> str:
        raise NotImplementedError

    @rpc_sync
    def request_worker(self) -> WorkerProcess:
        raise NotImplementedError

    @rpc_sync
    def request_workers(self) -> list[WorkerProcess]:
        raise NotImplementedError

    @rpc_sync
    def request_status(self) -> ClusterStatus:
        return ClusterStatus("c", runtime.__version__, str(self.address), 0, (), (), supported_levels())

    @rpc_sync
    def notify_feature_level(self, level: int) -> None:
        raise NotImplementedError

    @rpc_sync
    def shut_down_cluster(self) -> None:
        raise NotImplementedError


def graph(number: int) -> JobGraph:
    return JobGraph.for_script(f"job-{number}", job_id=JobID(f"{number:032x}"), argv=(), created_ms=number)


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[RpcService]:
    service = RpcService(asyncio.get_running_loop(), SECRET, RpcConfig(system="test", socket_dir=tmp_path))
    await service.listen()
    yield service
    await service.close()


async def store_jobs(redis: RedisServer, storage: Path) -> None:
    """What a Dispatcher that was killed leaves behind: its jobs, accepted and running, and no leader."""
    ha = RedisHaServices(redis.url, "c", storage, lease=LEASE, timeout=PATIENCE_S)
    connection = RedisConnection(redis.url, timeout=PATIENCE_S)
    latch = RedisLeaderLatch(connection, ClusterKeys("c"), DISPATCHER, 600.0)
    reply = await latch.acquire("predecessor", 0)
    term = LeaderTerm(DISPATCHER, reply.epoch, "predecessor")
    gate = asyncio.Semaphore(8)

    async def accept(number: int) -> None:
        async with gate:
            job = graph(number)
            await ha.running_jobs_registry().set_running(job.job_id, term)
            await ha.job_graph_store().put(job.job_id, encode(job), term)

    await asyncio.gather(*(accept(number) for number in range(JOBS)))
    await latch.release(term)
    await connection.close()
    await ha.close()


async def test_a_thousand_jobs_are_recovered_a_few_at_a_time_and_starve_no_call(
    redis_server: RedisServer, service: RpcService, tmp_path: Path
) -> None:
    await store_jobs(redis_server, tmp_path / "ha")
    receptionist, guardian = Receptionist(service), Guardian(service)
    await service.start_server(receptionist)
    await service.start_server(guardian)
    blob_server = BlobServer(tmp_path / "blob", SECRET, options=BlobServerOptions(disk_reserve=0))
    blobs = BlobServerEndpoint(service, BLOB_SERVER, blob_server)
    await service.start_server(blobs)
    receptionist.enter(Listing(blobs.path, str(blobs.address), 0, None))
    ha = RedisHaServices(redis_server.url, "c", tmp_path / "ha", lease=LEASE, timeout=PATIENCE_S)
    dispatcher = Dispatcher(
        service,
        "dispatcher",
        ha=ha,
        receptionist=receptionist_of(service, service.address_of("/user/x")),
        master_address=str(guardian.address),
        blob=BlobAddress(*blob_server.address),
        blobs=BlobClient(blob_server.address, SECRET),
        archive=MemoryArchivedExecutionGraphStore(Retention(1000, 1 << 20, 3600.0)),
        log_dir=tmp_path,
        savepoint_dir=tmp_path,
        sweep_interval_s=3600.0,
        starts_at_once=AT_ONCE,
    )
    (tmp_path / "archive").mkdir()
    await service.start_server(dispatcher)
    await until(lambda: dispatcher.fencing_token is not None)
    token = dispatcher.fencing_token
    assert token is not None
    gateway = service.gateway(
        dispatcher.address, DispatcherGateway, FencingToken(token.epoch, token.session), PATIENCE_S
    )
    await until(lambda: len(guardian.under_way) == AT_ONCE - 1)
    # The first starts hang. Meanwhile:
    listed = await gateway.request_multiple_job_details()
    assert Counter(job.status for job in listed.jobs) == {JobStatus.RECONCILING: JOBS}
    assert guardian.most == AT_ONCE - 1, "recovered jobs leave one start to those that are submitted"
    new = graph(JOBS)
    guardian.let_one.add(new.job_id)
    assert await gateway.submit_job(Inline(encode(new))) == new.job_id
    await until(lambda: guardian.started[new.job_id] == 1, what="a new job is started before a thousand old ones")
    assert sum(guardian.started.values()) == 1
    assert await gateway.request_job_status(JobID(f"{7:032x}")) is JobStatus.RECONCILING
    guardian.let.set()
    await until(lambda: len(guardian.started) == JOBS + 1)
    assert set(guardian.started.values()) == {1}, "each is started once"
    assert guardian.most == AT_ONCE
    assert len(await gateway.list_jobs()) == JOBS + 1
    assert dispatcher.fencing_token == token, "it led all the time"
    connection = RedisConnection(redis_server.url, timeout=PATIENCE_S)
    await connection.command("DEL", ClusterKeys("c").leader(DISPATCHER))  # it leads no more, and does not know yet
    with pytest.raises(FencingError):  # a client follows the leader then, and submits again
        await gateway.submit_job(Inline(encode(graph(JOBS + 1))))
    await connection.close()

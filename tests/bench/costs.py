"""What a job and a checkpoint cost in operations: counted, so the same on every machine, however busy.

The Dispatcher, Redis, the BlobServer and the stores are the true ones, in this process; JobMasters run nothing
(`tests.bench.scale.job_masters`). Not counted is what goes by time: elections, renewals, the repeated listing at the
receptionist.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from actors.receptionist import Listing, Receptionist, receptionist_of
from actors.rpc.gateway import FencingToken
from actors.rpc.service import RpcConfig, RpcService
from blob.client import BlobClient
from blob.endpoint import BlobServerEndpoint
from blob.gateway import NAME as BLOB_SERVER
from blob.gateway import BlobAddress
from blob.offload import Inline
from blob.server import BlobServer
from blob.settings import BlobServerOptions
from runtime.dispatcher.archive import FileArchivedExecutionGraphStore, Retention
from runtime.dispatcher.endpoint import Dispatcher
from runtime.ha.fenced import FencedWriter
from runtime.ha.keys import ClusterKeys
from runtime.ha.redis_process import EmbeddedRedis
from runtime.ha.services import RedisHaServices
from runtime.ids import AllocationID, JobID, ResourceID
from runtime.jobgraph.codec import encode
from runtime.jobgraph.job_graph import JobGraph
from runtime.protocol.dispatcher import DispatcherGateway
from runtime.protocol.messages import TaskExecutorHeartbeat
from runtime.taskexecutor.slot_table import TaskSlotTable
from tests.bench.scale.checkpoints import RETAINED, StreamingQueryJob
from tests.bench.scale.executors import METRICS, SLOTS
from tests.bench.scale.job_masters import LightMaster, finished

JOBS = 10
CHECKPOINTS = 10
PATIENCE_S = 120.0
LEASE_S = 60.0
BY_TIME = {"register", "deregister"}
"""Messages whose number depends on how long something took."""

Figures = dict[str, float]


def measure() -> Figures:
    """Count; some seconds."""
    with tempfile.TemporaryDirectory(prefix="us-costs-") as scratch:
        redis = EmbeddedRedis(Path(scratch) / "redis")
        redis.start()
        try:
            return asyncio.run(_measure(Path(scratch), redis.url)) | sizes()
        finally:
            redis.stop()


def sizes() -> Figures:
    """Bytes of what is sent and kept most often."""
    slots = TaskSlotTable(ResourceID("tm-1"), SLOTS)
    for status in slots.report().slots:
        slots.allocate(status.slot_id, JobID.random(), AllocationID.random())
    graph = _graph(0)
    return {
        "heartbeat_bytes": len(encode(TaskExecutorHeartbeat(slots.report(), METRICS))),
        "job_graph_bytes": len(encode(graph)),
        "archived_job_bytes": len(encode(finished(graph))),
        "job_details_bytes": len(encode(finished(graph).details())),
    }


async def _measure(scratch: Path, url: str) -> Figures:
    ha = RedisHaServices(url, "c", scratch / "ha", lease=LEASE_S, timeout=LEASE_S)
    try:
        figures = await _of_jobs(scratch, url, ha)
        return figures | await _of_checkpoints(url, ha)
    finally:
        await ha.close()


async def _of_jobs(scratch: Path, url: str, ha: RedisHaServices) -> Figures:
    async with _dispatcher(scratch, url, ha) as (gateway, master):
        await _run(gateway, master, ha, 0)  # what is done once for all is not one job's
        with _counted() as counts:
            for number in range(1, JOBS + 1):
                await _run(gateway, master, ha, number)
    each = {name: count / JOBS for name, count in counts.items()}
    return {
        "job_redis_reads": each["get"],
        "job_redis_writes": each["hset"] + each["hdel"] + each["depose"],
        "job_fsyncs": each["fsync"],
        "job_messages": each["message"],
    }


async def _of_checkpoints(url: str, ha: RedisHaServices) -> Figures:
    query = await StreamingQueryJob.begin(ha, url, "c", JobID("f" * 32))
    for _ in range(RETAINED + 1):
        await query.checkpoint()
    with _counted() as counts:
        for _ in range(CHECKPOINTS):
            await query.checkpoint()
    return {
        "checkpoint_redis_reads": counts["get"] / CHECKPOINTS,
        "checkpoint_redis_writes": (counts["hset"] + counts["hdel"]) / CHECKPOINTS,
    }


@contextlib.contextmanager
def _counted() -> Iterator[Counter[str]]:
    """Counts of calls to Redis's maps, of fsyncs and of messages, while the context lasts."""
    counts: Counter[str] = Counter()

    def counting(function: Callable[..., Any], name: Callable[..., str]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            counts[name(*arguments)] += 1
            return function(*arguments, **options)

        return call

    def message(_service: object, _target: object, spec: Any, *_rest: object) -> str:
        return "by time" if getattr(spec, "name", spec) in BY_TIME else "message"

    with contextlib.ExitStack() as stack:
        for name in ("get", "hset", "hdel", "depose"):
            known = getattr(FencedWriter, name)
            stack.enter_context(patch.object(FencedWriter, name, counting(known, lambda *_, name=name: name)))
        for name in ("ask", "tell"):
            stack.enter_context(patch.object(RpcService, name, counting(getattr(RpcService, name), message)))
        stack.enter_context(patch.object(os, "fsync", counting(os.fsync, lambda *_: "fsync")))
        yield counts


@contextlib.asynccontextmanager
async def _dispatcher(
    scratch: Path, url: str, ha: RedisHaServices
) -> AsyncIterator[tuple[DispatcherGateway, LightMaster]]:
    secret = secrets.token_hex(32).encode()
    service = RpcService(asyncio.get_running_loop(), secret, RpcConfig(ask_timeout_s=PATIENCE_S))
    await service.listen()
    receptionist, archive = Receptionist(service), scratch / "archive"
    archive.mkdir()
    await service.start_server(receptionist)
    blob_server = BlobServer(scratch / "blob", secret, options=BlobServerOptions(disk_reserve=0))
    blobs = BlobServerEndpoint(service, BLOB_SERVER, blob_server)
    await service.start_server(blobs)
    receptionist.enter(Listing(blobs.path, str(blobs.address), 0))
    directory = receptionist_of(service, receptionist.address)
    master = LightMaster(service, ha, directory)
    master.let_end.set()
    await service.start_server(master)
    dispatcher = Dispatcher(
        service,
        "dispatcher",
        ha=RedisHaServices(url, "c", scratch / "ha", lease=LEASE_S, timeout=LEASE_S),
        receptionist=directory,
        master_address=str(master.address),
        blob=BlobAddress(*blob_server.address),
        blobs=BlobClient(blob_server.address, secret),
        archive=FileArchivedExecutionGraphStore(Retention(1000, 1 << 30, 3600.0), archive),
        log_dir=scratch,
        savepoint_dir=scratch,
        sweep_interval_s=3600.0,
        starts_at_once=2,
    )
    await service.start_server(dispatcher)
    try:
        await _until(lambda: dispatcher.fencing_token is not None, "the Dispatcher leads")
        token = dispatcher.fencing_token
        assert token is not None
        yield service.gateway(dispatcher.address, DispatcherGateway, FencingToken(token.epoch, token.session)), master
    finally:
        await service.stop_server(dispatcher)
        await service.close()


async def _run(gateway: DispatcherGateway, master: LightMaster, ha: RedisHaServices, number: int) -> None:
    """One job, until nothing is left of it but its result."""
    graph = _graph(number)
    await gateway.submit_job(Inline(encode(graph)))
    await _until(lambda: master.stopped > number, "the JobMaster is stopped")
    deadline = time.monotonic() + PATIENCE_S
    while (await ha._maps.get_all(ClusterKeys("c").running_jobs))[graph.job_id].count('"dirty": true'):
        if time.monotonic() > deadline:
            raise RuntimeError(f"job {graph.job_id} is not cleaned up after")
        await asyncio.sleep(0.01)


def _graph(number: int) -> JobGraph:
    return JobGraph.for_script(f"job-{number}", job_id=JobID(f"{number:032x}"), created_ms=1_790_000_000_000)


async def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {PATIENCE_S:g} s: {what}")
        await asyncio.sleep(0.01)

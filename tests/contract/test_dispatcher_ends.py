# ruff: noqa: F811 - fixtures are imported by name
"""The end of a job is recorded before anybody is told of it, and by the next leader where that was cut short."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from unittest.mock import ANY

import pytest

from actors.errors import FencingError
from actors.rpc.fencing import Fence
from actors.rpc.service import RpcService
from runtime.dispatcher.archive import FileArchivedExecutionGraphStore
from runtime.ha.connection import RedisConnection
from runtime.ha.keys import ClusterKeys
from runtime.ha.latch import RedisLeaderLatch
from runtime.ha.running_jobs import JobEntry, JobSchedulingStatus
from runtime.ha.services import RedisHaServices
from runtime.ids import JobID
from runtime.jobgraph.codec import encode
from runtime.jobgraph.job_graph import JobKind
from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph
from runtime.protocol.dispatcher import DispatcherGateway
from runtime.protocol.execution_state import JobStatus
from runtime.protocol.leader import DISPATCHER, LeaderTerm, job_master
from tests.contract.test_dispatcher_recovery import service  # noqa: F401
from tests.contract.test_dispatcher_submission import JOB, RETENTION, World, graph, leading, registry  # noqa: F401
from tests.fakes.redis_server import RedisProxy, RedisServer, redis_proxy, redis_server, until  # noqa: F401
from tests.waiting import AT_ONCE, PATIENCE_S

END_MS = time.time_ns() // 1_000_000
FINISHED = ArchivedExecutionGraph(
    job_id=JOB,
    name="job",
    kind=JobKind.SCRIPT,
    status=JobStatus.FINISHED,
    timestamps={"CREATED": 1, "FINISHED": END_MS},
    tasks=(),
    vertices=(),
    failure=None,
    failure_history=(),
    restarts=0,
    restart_strategy="none",
    failure_counts={},
)


def job_master_of(world: World) -> DispatcherGateway:
    """The Dispatcher, for the JobMaster of the job."""
    dispatcher = world.dispatcher
    fence = Fence(dispatcher.fencing_token, lambda: LeaderTerm(job_master(JOB), 1, "job master"), lambda error: None)
    return dispatcher.service.gateway(dispatcher.address, DispatcherGateway, fence, PATIENCE_S)


async def all_cleaned_up(registry: RedisHaServices) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while (await registry.running_jobs_registry().entries())[JOB].dirty:  # noqa: ASYNC110 - in Redis
            await asyncio.sleep(0.01)


async def test_an_end_whose_record_is_unknown_is_recorded_again_and_told_afterwards(
    service: RpcService,
    redis_proxy: RedisProxy,
    registry: RedisHaServices,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The reply of the write is lost: nothing says that the JobMaster is still there to report the end once more."""
    monkeypatch.setattr("runtime.retry.SOON", AT_ONCE)
    async with leading(service, redis_proxy.url, tmp_path) as world:
        await world.submit(graph())
        redis_proxy.refuse = True
        redis_proxy.reset()
        report = asyncio.ensure_future(job_master_of(world).job_reached_terminal_state(FINISHED))
        await until(lambda: "is recorded is tried again" in caplog.text)
        assert await world.gateway.request_job_status(JOB) is JobStatus.INITIALIZING
        redis_proxy.refuse = False
        await report
        (job,) = (await world.gateway.request_multiple_job_details()).jobs
        assert (job.status, await world.gateway.request_job_status(JOB)) == (JobStatus.FINISHED, JobStatus.FINISHED)
        jobs = registry.running_jobs_registry()
        await until(lambda: world.guardian.stopped[JOB] == 1)
        await all_cleaned_up(registry)
        assert (await jobs.entries())[JOB].status is JobSchedulingStatus.DONE
        assert await registry.job_graph_store().job_ids() == []


class SlowlyEntering(FileArchivedExecutionGraphStore):
    """Has entered a job, and has not returned yet."""

    def __init__(self, root: Path) -> None:
        root.mkdir()
        super().__init__(RETENTION(), root)
        self.has_entered, self.may_return = threading.Event(), threading.Event()

    def enter(self, job: ArchivedExecutionGraph, size: int, now_ms: int) -> list[JobID]:
        dropped = super().enter(job, size, now_ms)
        self.has_entered.set()
        assert self.may_return.wait(PATIENCE_S)
        return dropped


async def test_a_job_that_is_in_the_archive_is_not_shown_as_running_any_more(
    service: RpcService, redis_server: RedisServer, tmp_path: Path
) -> None:
    archive = SlowlyEntering(tmp_path / "archive")
    async with leading(service, redis_server.url, tmp_path, archive) as world:
        await world.submit(graph())
        report = asyncio.ensure_future(job_master_of(world).job_reached_terminal_state(FINISHED))
        assert await asyncio.to_thread(archive.has_entered.wait, PATIENCE_S)
        (job,) = (await world.gateway.request_multiple_job_details()).jobs
        archive.may_return.set()
        assert job.status is JobStatus.FINISHED
        await report


async def test_who_does_not_lead_any_more_leaves_the_end_to_the_next(
    service: RpcService,
    redis_proxy: RedisProxy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("runtime.retry.SOON", AT_ONCE)
    async with leading(service, redis_proxy.url, tmp_path) as world:
        await world.submit(graph())
        redis_proxy.refuse = True
        redis_proxy.reset()
        report = asyncio.ensure_future(job_master_of(world).job_reached_terminal_state(FINISHED))
        await until(lambda: "is recorded is tried again" in caplog.text)
        world.dispatcher.revoke_leadership()
        with pytest.raises(FencingError, match=f"whether the end of job {JOB} is recorded is not known"):
            await report
        redis_proxy.refuse = False


async def test_the_next_leader_records_an_end_that_is_in_the_archive_alone(
    service: RpcService, redis_server: RedisServer, registry: RedisHaServices, tmp_path: Path
) -> None:
    connection = RedisConnection(redis_server.url, timeout=PATIENCE_S)
    latch = RedisLeaderLatch(connection, ClusterKeys("c"), DISPATCHER, 600.0)
    term = LeaderTerm(DISPATCHER, (await latch.acquire("predecessor", 0)).epoch, "predecessor")
    jobs = registry.running_jobs_registry()
    await jobs.set_running(JOB, term)
    await registry.job_graph_store().put(JOB, encode(graph()), term)
    await latch.release(term)
    await connection.close()
    (tmp_path / "archive").mkdir()
    FileArchivedExecutionGraphStore(RETENTION(), tmp_path / "archive").write(FINISHED)
    archive = FileArchivedExecutionGraphStore(RETENTION(), tmp_path / "archive")
    async with leading(service, redis_server.url, tmp_path, archive) as world:
        result = {"status": "FINISHED", "end_ms": END_MS}
        assert await jobs.entries() == {JOB: JobEntry(JobSchedulingStatus.DONE, result, dirty=ANY)}
        (job,) = (await world.gateway.request_multiple_job_details()).jobs
        assert job.status is JobStatus.FINISHED
        await all_cleaned_up(registry)
        assert await registry.job_graph_store().job_ids() == []
        assert world.guardian.started == {}

# ruff: noqa: F811 - fixtures are imported by name
"""A submission is accepted or leaves nothing behind, and nobody is told of an outcome that is not known."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from actors.errors import FencingError
from actors.receptionist import Listing, Receptionist, receptionist_of
from actors.rpc.gateway import FencingToken
from actors.rpc.service import RpcService
from blob.client import BlobClient
from blob.endpoint import BlobServerEndpoint
from blob.errors import BlobError
from blob.gateway import NAME as BLOB_SERVER
from blob.gateway import BlobAddress
from blob.offload import Inline
from blob.server import BlobServer
from blob.settings import BlobServerOptions
from runtime import client
from runtime.client import AsyncClusterClient, JobFile
from runtime.dispatcher.archive import ArchivedExecutionGraphStore, MemoryArchivedExecutionGraphStore, Retention
from runtime.dispatcher.endpoint import Dispatcher
from runtime.dispatcher.mini_dispatcher import end_of_cluster
from runtime.ha.connection import RedisConnection
from runtime.ha.keys import ClusterKeys
from runtime.ha.latch import RedisLeaderLatch
from runtime.ha.running_jobs import JobSchedulingStatus
from runtime.ha.services import MEMORY_THRESHOLD, RedisHaServices
from runtime.ids import JobID
from runtime.jobgraph.codec import encode
from runtime.jobgraph.job_graph import ArtifactRole, JobGraph
from runtime.protocol.archived_execution_graph import ApplicationStatus
from runtime.protocol.dispatcher import DispatcherGateway
from runtime.protocol.errors import JobSubmissionError, QueueRejectedError, SubmissionLimitError
from runtime.protocol.leader import DISPATCHER, LeaderTerm
from tests.contract.test_dispatcher_recovery import SECRET, Guardian, service  # noqa: F401
from tests.fakes.redis_server import RedisProxy, RedisServer, redis_proxy, redis_server, until  # noqa: F401
from tests.waiting import AT_ONCE, PATIENCE_S

LEASE = 30.0
RETENTION = partial(Retention, 1000, 1 << 20, 7 * 24 * 3600.0)
"""Jobs of these tests end when the tests are loaded, which may be more than an hour before they run."""
JOB, OTHER, FORGOTTEN = JobID("a" * 32), JobID("b" * 32), JobID("c" * 32)


def graph(job_id: JobID = JOB, size: int = 0) -> JobGraph:
    return JobGraph.for_script("job", job_id=job_id, argv=("x" * size,), created_ms=1)


class World:
    """A Dispatcher that leads, between a real Redis and a master that starts nothing."""

    def __init__(self, dispatcher: Dispatcher, guardian: Guardian) -> None:
        self.dispatcher = dispatcher
        self.guardian = guardian
        self.gateway = self.gateway_of_the_term()

    def gateway_of_the_term(self) -> DispatcherGateway:
        """The Dispatcher, for a client that has looked up its present leadership."""
        token = self.dispatcher.fencing_token
        assert token is not None
        token = FencingToken(token.epoch, token.session)
        return self.dispatcher.service.gateway(self.dispatcher.address, DispatcherGateway, token, PATIENCE_S)

    async def submit(self, job: JobGraph) -> JobID:
        return await self.gateway.submit_job(Inline(encode(job)))


@asynccontextmanager
async def leading(
    service: RpcService,
    url: str,
    directory: Path,
    archive: ArchivedExecutionGraphStore | None = None,
    *,
    kind: Callable[..., Dispatcher] = Dispatcher,
    guardian: Guardian | None = None,
    queues: Path | None = None,
) -> AsyncIterator[World]:
    receptionist = Receptionist(service)
    await service.start_server(receptionist)
    if guardian is None:
        guardian = Guardian(service)
        guardian.let.set()
    await service.start_server(guardian)
    blob_server = BlobServer(directory / "blob", SECRET, options=BlobServerOptions(disk_reserve=0))
    blobs = BlobServerEndpoint(service, BLOB_SERVER, blob_server)
    await service.start_server(blobs)
    receptionist.enter(Listing(blobs.path, str(blobs.address), 0, None))
    dispatcher = kind(
        service,
        "dispatcher",
        ha=RedisHaServices(url, "c", directory / "ha", lease=LEASE, timeout=PATIENCE_S, retry=0.01),
        receptionist=receptionist_of(service, service.address_of("/user/x")),
        master_address=str(guardian.address),
        blob=BlobAddress(*blob_server.address),
        blobs=BlobClient(blob_server.address, SECRET),
        archive=archive or MemoryArchivedExecutionGraphStore(RETENTION()),
        log_dir=directory,
        savepoint_dir=directory,
        sweep_interval_s=3600.0,
        starts_at_once=2,
        queues=queues,
    )
    await service.start_server(dispatcher)
    await until(lambda: dispatcher.fencing_token is not None)
    yield World(dispatcher, guardian)


@pytest.fixture
async def registry(redis_server: RedisServer, tmp_path: Path) -> AsyncIterator[RedisHaServices]:
    """What is stored, seen from outside."""
    ha = RedisHaServices(redis_server.url, "c", tmp_path / "ha", timeout=PATIENCE_S)
    yield ha
    await ha.close()


async def test_what_a_full_disk_refuses_leaves_no_entry_and_may_be_submitted_again(
    service: RpcService, redis_server: RedisServer, registry: RedisHaServices, tmp_path: Path
) -> None:
    async with leading(service, redis_server.url, tmp_path) as world:
        graphs = tmp_path / "ha" / "c" / "jobgraphs"
        graphs.parent.mkdir(parents=True, exist_ok=True)
        graphs.touch()  # nothing can be written below it
        job = graph(size=2 * MEMORY_THRESHOLD)
        with pytest.raises(JobSubmissionError, match="was not accepted"):
            await world.submit(job)
        entries = await registry.running_jobs_registry().entries()
        assert entries == {}
        end = end_of_cluster(entries, is_attached=False)
        assert end is not None, "a cluster of this job alone ends"
        assert end.status is ApplicationStatus.UNKNOWN
        assert world.guardian.started == {}
        graphs.unlink()
        assert await world.submit(job) == JOB
        await until(lambda: world.guardian.started[JOB] == 1)


async def test_a_write_whose_outcome_is_unknown_is_no_refusal(
    service: RpcService,
    redis_proxy: RedisProxy,
    registry: RedisHaServices,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("runtime.retry.SOON", AT_ONCE)
    async with leading(service, redis_proxy.url, tmp_path) as world:
        redis_proxy.hold = lambda request: (
            b"handles:jobgraphs" in request and b"absent" in request and not redis_proxy.held
        )
        assert await world.submit(graph()) == JOB
        assert len(redis_proxy.held) == 1, "the first write is on its way still"
        redis_proxy.held[0]()
        await until(lambda: world.guardian.started[JOB] == 1)
        assert await registry.job_graph_store().job_ids() == [JOB]
        assert (await registry.running_jobs_registry().entries())[JOB].status is JobSchedulingStatus.PENDING


async def test_a_leader_that_loses_its_term_meanwhile_leaves_the_answer_to_the_next(
    service: RpcService,
    redis_proxy: RedisProxy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("runtime.retry.SOON", AT_ONCE)
    async with leading(service, redis_proxy.url, tmp_path) as world:
        redis_proxy.refuse = True
        redis_proxy.reset()
        submission = asyncio.ensure_future(world.submit(graph()))
        await until(lambda: f"writing that job {JOB} was accepted is tried again" in caplog.text)
        assert not submission.done()
        world.dispatcher.revoke_leadership()
        with pytest.raises(FencingError, match=f"whether job {JOB} was accepted is not known"):
            await submission
        redis_proxy.refuse = False


async def test_the_next_leader_withdraws_what_was_not_stored_and_runs_what_was(
    service: RpcService, redis_server: RedisServer, registry: RedisHaServices, tmp_path: Path
) -> None:
    connection = RedisConnection(redis_server.url, timeout=PATIENCE_S)
    latch = RedisLeaderLatch(connection, ClusterKeys("c"), DISPATCHER, 600.0)
    term = LeaderTerm(DISPATCHER, (await latch.acquire("predecessor", 0)).epoch, "predecessor")
    for job_id in (JOB, OTHER):
        await registry.running_jobs_registry().set_pending(job_id, term)
    # A thawed JobMaster has entered a forgotten job again, and was lost before it withdrew the entry.
    await registry.running_jobs_registry().set_running(FORGOTTEN, term)
    await registry.job_graph_store().put(OTHER, encode(graph(OTHER)), term)
    await latch.release(term)
    await connection.close()
    async with leading(service, redis_server.url, tmp_path) as world:
        assert list(await registry.running_jobs_registry().entries()) == [OTHER]
        await until(lambda: world.guardian.started[OTHER] == 1)
        assert await world.submit(graph()) == JOB, "whoever was not told the outcome asks again"
        await until(lambda: world.guardian.started[JOB] == 1)


async def test_only_a_pending_entry_is_withdrawn(redis_server: RedisServer, registry: RedisHaServices) -> None:
    connection = RedisConnection(redis_server.url, timeout=PATIENCE_S)
    latch = RedisLeaderLatch(connection, ClusterKeys("c"), DISPATCHER, 600.0)
    term = LeaderTerm(DISPATCHER, (await latch.acquire("leader", 0)).epoch, "leader")
    jobs = registry.running_jobs_registry()
    await jobs.withdraw(JOB, term)
    await jobs.set_pending(JOB, term)
    await jobs.set_running(OTHER, term)
    for job_id in (JOB, OTHER):
        await jobs.withdraw(job_id, term)
    assert list(await jobs.entries()) == [OTHER]
    await connection.close()


# ------------------------------------------------------------------ uploads


class WorldLink:
    """The `runtime.client.Link` of a web endpoint, which uploads and submits for users."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def leader(self, name: str, gateway_type: Any, deadline: float) -> Any:
        return self._world.gateway

    async def lost(self, name: str, error: Exception) -> None:
        raise error

    def answered(self) -> None:
        pass

    def described(self, name: str) -> str:
        return name

    def blobs(self, address: BlobAddress) -> BlobClient:
        return BlobClient((address.host, address.port), SECRET)

    async def reply(self, ask: Any, timeout_s: float | None = None) -> Any:
        return await ask

    async def pause(self, seconds: float) -> None:
        raise AssertionError("nothing is to be waited for")

    async def blocking(self, work: Callable[[], Any]) -> Any:
        return await asyncio.to_thread(work)


class Users:
    """Users who submit to a cluster with a file of queues, and what is in its blob directory."""

    def __init__(self, world: World, directory: Path) -> None:
        self.client = AsyncClusterClient(WorldLink(world), PATIENCE_S, 1 << 20)  # type: ignore[arg-type]
        self._directory = directory

    async def submit(self, number: int, *sizes: int, owner: str = "ada", queue: str = "default") -> JobID:
        """Submit a job with files of these sizes."""
        files = []
        for place, size in enumerate(sizes):
            path = self._directory / f"file-{place}"
            path.write_bytes(bytes(size))
            files.append(JobFile(path.name, ArtifactRole.FILE if place else ArtifactRole.MAIN, path))
        job = JobGraph.for_script(f"job {number}", job_id=JobID(f"{number:032x}"), created_ms=1)
        return await self.client.submit(replace(job, owner=owner, configuration={"job.queue": queue}), files)

    def blobs(self) -> list[int]:
        """Sizes of all files on the BlobServer, also of incomplete ones."""
        directory = self._directory / "blob"
        kept = [*directory.glob("job_*/*"), *directory.glob("no_job/*"), *directory.glob("incoming/*")]
        return sorted(path.stat().st_size for path in kept)


@pytest.fixture
async def users(service: RpcService, redis_server: RedisServer, tmp_path: Path) -> AsyncIterator[Users]:
    queues = tmp_path / "queues.yaml"
    queues.write_text("each-user: {blob-mb: 1}")
    async with leading(service, redis_server.url, tmp_path, queues=queues) as world:
        yield Users(world, tmp_path)


async def test_an_upload_over_the_limit_is_refused_and_the_blob_directory_stays_empty(users: Users) -> None:
    with pytest.raises(
        QueueRejectedError, match="'job 1' was not accepted: its files have 2 MB, and user ada may hold"
    ):
        await users.submit(1, 700_000, 700_000)
    assert users.blobs() == []
    await users.submit(2, 700_000)
    with pytest.raises(SubmissionLimitError, match="'job 3' was not accepted: blobs of user ada: 1 of 1 MB held by"):
        await users.submit(3, 400_000)
    assert users.blobs() == [700_000]
    await users.submit(4, 700_000, owner="bob")
    assert users.blobs() == [700_000, 700_000]


async def test_a_refused_job_leaves_no_files_that_count_for_its_user(users: Users) -> None:
    for number in (1, 2):
        with pytest.raises(QueueRejectedError, match="'none' does not exist"):
            await users.submit(number, 700_000, queue="none")
        assert users.blobs() == []


async def test_an_upload_that_fails_leaves_no_files_that_count_for_its_user(
    users: Users, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, failures = BlobClient.put_file, [False, True]

    def put_file(blobs: BlobClient, path: Path, *arguments: Any) -> Any:
        if failures.pop(0):
            raise FileNotFoundError(path)
        return put(blobs, path, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(BlobClient, "put_file", put_file)
        with pytest.raises(FileNotFoundError):
            await users.submit(1, 400_000, 400_000)
    assert users.blobs() == []
    await users.submit(2, 400_000, 400_000)


async def test_a_graph_that_cannot_be_stored_does_not_count_for_its_user(
    users: Users, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph is submitted without its files, as by the Spark Connect gateway, and is too large for a message."""
    users.client._inline_limit = 1000

    def graph(number: int) -> JobGraph:
        job = JobGraph.for_script(f"job {number}", job_id=JobID(f"{number:032x}"), created_ms=1)
        return replace(job, owner="ada", argv=("x" * 600_000,))

    def refuse(*_: Any) -> Any:
        raise BlobError("no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(client, "offload_if_larger", refuse)
        for number in (1, 2):
            with pytest.raises(BlobError, match="no space"):
                await users.client.submit_graph(graph(number))
    assert users.blobs() == []
    await users.client.submit_graph(graph(3))


async def test_a_dispatcher_of_an_earlier_release_checks_the_submission_alone(
    service: RpcService, redis_server: RedisServer, tmp_path: Path
) -> None:
    queues = tmp_path / "queues.yaml"
    queues.write_text("each-user: {blob-mb: 1}")
    async with leading(service, redis_server.url, tmp_path, queues=queues) as world:
        table = service._dispatcher.served[world.dispatcher.path].table
        del table["admit_upload"], table["end_upload"]
        users = Users(world, tmp_path)
        await users.submit(1, 700_000)
        with pytest.raises(SubmissionLimitError, match="1 of 1 MB held"):
            await users.submit(2, 700_000)


async def test_a_client_of_an_earlier_release_is_checked_at_its_submission(users: Users) -> None:
    """Its uploads are not announced."""
    users.client.admit_upload = AsyncMock()  # type: ignore[method-assign]
    await users.submit(1, 700_000)
    with pytest.raises(SubmissionLimitError, match="1 of 1 MB held"):
        await users.submit(2, 700_000)
    assert users.blobs() == [700_000], "what was refused is deleted"

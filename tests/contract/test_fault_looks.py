# ruff: noqa: F811 - fixtures are imported by name
"""What the fault suite looks at: it sees what is there, and what is left behind."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from conf.configuration import Configuration
from runtime.environment.context import open_redis_services
from runtime.environment.directory import ClusterDirectory
from runtime.ha.connection import RedisConnection
from runtime.ha.keys import ClusterKeys
from runtime.ha.latch import RedisLeaderLatch
from runtime.ha.redis_process import EmbeddedRedis
from runtime.ha.services import RedisHaServices
from runtime.protocol.leader import DISPATCHER, LeaderTerm
from tests.cluster_harness import Cluster
from tests.fakes.redis_server import RedisServer, redis_server  # noqa: F401
from tests.faults.deeds import missing_files, working_jobs
from tests.faults.nemesis import leftovers_now
from tests.faults.redis_front import RedisFront

JOB, OTHER = "a" * 32, "b" * 32
LEASE_S = 600.0


@dataclass
class Stored:
    """A cluster that does not run, with a leader that stores what a cluster stores."""

    cluster: Cluster
    services: RedisHaServices
    term: LeaderTerm

    @property
    def files(self) -> list[Path]:
        return [path for path in self.cluster.directory.glob("ha/*/*/*@*") if path.is_file()]


@pytest.fixture
async def stored(redis_server: RedisServer, tmp_path: Path) -> AsyncIterator[Stored]:
    cluster = Cluster(tmp_path / "c")
    cluster.directory.mkdir()
    settings = {
        "high-availability.redis.url": redis_server.url,
        "high-availability.storageDir": str(cluster.directory / "ha"),
        "high-availability.memory-threshold": "0 b",
        "cluster.id": "c",
    }
    configuration = Configuration.from_dict(settings)
    configuration.write(cluster.directory / "configuration.json")
    services = open_redis_services(configuration)
    connection = RedisConnection(redis_server.url)
    latch = RedisLeaderLatch(connection, ClusterKeys("c"), DISPATCHER, LEASE_S)
    term = LeaderTerm(DISPATCHER, (await latch.acquire("leader", 0)).epoch, "leader")
    yield Stored(cluster, services, term)
    await services.close()
    await connection.close()


async def test_what_is_left_of_jobs_that_are_over_is_found(stored: Stored) -> None:
    assert await leftovers_now(stored.cluster, {JOB}) == []
    await stored.services.job_graph_store().put(JOB, b"graph", stored.term)
    (file,) = stored.files
    assert await leftovers_now(stored.cluster, {JOB}) == [
        f"the handle jobgraphs/{JOB} remains",
        f"the file {file} remains",
    ]
    await stored.services.job_graph_store().remove(JOB, stored.term)
    assert await leftovers_now(stored.cluster, {JOB}) == []
    for job_id in (JOB, OTHER):
        blob = stored.cluster.directory / "ha" / "c" / "blob" / f"job_{job_id}" / "blob_p-0"
        blob.parent.mkdir(parents=True)
        blob.touch()
    remains = await leftovers_now(stored.cluster, {JOB})
    assert [JOB in line for line in remains] == [True], "the other job is not over"


async def test_a_handle_whose_file_is_gone_is_found(stored: Stored) -> None:
    await stored.services.job_graph_store().put(JOB, b"graph", stored.term)
    assert await missing_files(stored.cluster.directory) == []
    (file,) = stored.files
    file.unlink()
    (problem,) = await missing_files(stored.cluster.directory)
    assert problem.startswith(f"the handle jobgraphs/{JOB} dangles: ")
    assert problem in await leftovers_now(stored.cluster, {JOB})


def test_a_job_works_as_long_as_a_process_is_in_its_tasks_directory(tmp_path: Path) -> None:
    directory = tmp_path / "c" / "work" / "tm-0" / "tasks" / JOB / "attempt"
    directory.mkdir(parents=True)
    assert working_jobs(tmp_path / "c") == frozenset()
    with subprocess.Popen([sys.executable, "-c", "input()"], cwd=directory, stdin=subprocess.PIPE) as process:
        try:
            assert working_jobs(tmp_path / "c") == {JOB}
            assert working_jobs(tmp_path / "another") == frozenset()
        finally:
            process.kill()
    assert working_jobs(tmp_path / "c") == frozenset()


@pytest.fixture
def directory() -> Iterator[ClusterDirectory]:
    """Of a cluster, with a path that is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="us-") as root:
        made = ClusterDirectory(Path(root))
        made.run.mkdir(mode=0o700)
        yield made


async def test_the_front_sees_all_that_redis_grants_a_leader(directory: ClusterDirectory) -> None:
    """Also what is asked on connections that were made before it was there."""
    server = EmbeddedRedis(directory.redis, socket_path=directory.socket_dir() / "redis.sock")
    server.start()
    front = RedisFront(directory.root, seed=1)
    connection = RedisConnection(server.url)
    services = RedisHaServices(server.url, "c", directory.root / "ha")
    latch = RedisLeaderLatch(connection, ClusterKeys("c"), DISPATCHER, LEASE_S)
    try:
        await services.running_jobs_registry().entries()
        await asyncio.to_thread(front.begin)
        term = LeaderTerm(DISPATCHER, (await latch.acquire("leader", 0)).epoch, "leader")
        assert await latch.renew(term, 60.0)
        assert await latch.confirm(term, "akka://address")
        await services.running_jobs_registry().set_pending(JOB, term)
        await services.job_graph_store().put(JOB, b"graph", term)
        assert not await latch.renew(LeaderTerm(DISPATCHER, term.epoch, "another"), 60.0)
        (reign,) = front.reigns
        assert (reign.component, reign.epoch, reign.session) == (DISPATCHER, term.epoch, "leader")
        assert reign.requests == 5
    finally:
        await services.close()
        await connection.close()
        front.end()
        server.stop()

# ruff: noqa: F811 - fixtures are imported by name
"""What the fault suite looks at: it sees what is there, and what is left behind."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from conf.configuration import Configuration
from runtime.environment.context import open_redis_services
from runtime.environment.directory import CLUSTER_DIR_VARIABLE, ClusterDirectory
from runtime.ha.connection import RedisConnection
from runtime.ha.keys import ClusterKeys
from runtime.ha.latch import RedisLeaderLatch
from runtime.ha.redis_process import EmbeddedRedis
from runtime.ha.services import RedisHaServices
from runtime.ids import JobID
from runtime.protocol.leader import DISPATCHER, LeaderTerm, job_master
from tests.cluster_harness import Cluster, await_value
from tests.fakes.redis_server import RedisServer, redis_server  # noqa: F401
from tests.faults.customers import JOB as JOB_CODE
from tests.faults.customers import executions
from tests.faults.deeds import missing_files, working_jobs
from tests.faults.nemesis import leftovers_now, remains
from tests.faults.redis_front import RedisFront
from tests.faults.sampling import take_sample
from tests.waiting import PATIENCE_S

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
    connection = RedisConnection(redis_server.url, timeout=PATIENCE_S)
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


async def test_an_entry_of_a_job_that_is_over_is_found_until_it_is_done_and_clean(stored: Stored) -> None:
    registry = stored.services.running_jobs_registry()
    for job_id in (JOB, OTHER):
        await registry.set_pending(job_id, stored.term)
    assert await leftovers_now(stored.cluster, {JOB}) == [f"the registry has job {JOB} as PENDING"]
    await registry.set_done(JOB, {"state": "FINISHED"}, stored.term)
    assert await leftovers_now(stored.cluster, {JOB}) == [f"the registry has job {JOB} as DONE, to be cleaned up after"]
    await registry.mark_clean(JOB, stored.term)
    assert await leftovers_now(stored.cluster, {JOB}) == []


async def test_keys_and_fields_of_a_job_that_is_over_are_found(stored: Stored, redis_server: RedisServer) -> None:
    """A former JobMaster's last write may come after the clean-up."""
    recovery, keys = stored.services.checkpoint_recovery_factory(), ClusterKeys("c")
    connection = RedisConnection(redis_server.url, timeout=PATIENCE_S)
    latches = [RedisLeaderLatch(connection, keys, job_master(JobID(job_id)), LEASE_S) for job_id in (JOB, OTHER)]
    for job_id, latch in zip((JOB, OTHER), latches, strict=True):
        epoch = (await latch.acquire("leader", 0)).epoch
        term = LeaderTerm(job_master(JobID(job_id)), epoch, "leader")
        await recovery.checkpoint_id_counter(job_id).get_and_increment(term)
        await recovery.completed_checkpoint_store(job_id, 1).add(1, b"checkpoint", term)
    files = sorted(path for path in stored.files if JOB in str(path))
    problems = await leftovers_now(stored.cluster, {JOB})
    assert [line for line in problems if line.startswith("the file ") and JOB in line] == [
        f"the file {file} remains" for file in files
    ]
    assert sorted(line for line in problems if not line.startswith("the file ")) == [
        f"the field {JOB} of {keys.checkpoint_ids} remains",
        f"the key {keys.handles(f'checkpoints-{JOB}')} remains",
        f"the key {keys.leader(job_master(JobID(JOB)))} remains",
    ]
    await stored.services.depose(job_master(JobID(JOB)), stored.term)
    await recovery.clean_up(JOB, stored.term)
    assert [line for line in await leftovers_now(stored.cluster, {JOB}) if JOB in line] == []
    await connection.close()


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


def test_what_a_stopped_cluster_has_left_is_found(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "c")
    for name in ("log", "archive"):
        (cluster.directory / name).mkdir(parents=True)
    assert remains(cluster) == [], "logs and ended jobs stay"
    (cluster.directory / "run").mkdir()
    (cluster.directory / "cluster.json").touch()
    environment = {**os.environ, CLUSTER_DIR_VARIABLE: str(cluster.directory)}
    with ExitStack() as stack:
        places: list[dict[str, Any]] = [{"env": environment}, {"cwd": cluster.directory / "log"}, {"cwd": tmp_path}]
        started = [stack.enter_context(waiting(**place)) for place in places]
        found = remains(cluster)
        assert [line for line in found if line.startswith("left behind: ")] == [
            f"left behind: {cluster.directory / name}" for name in ("run", "cluster.json")
        ]
        left = {line.rpartition(" ")[2] for line in found if line.startswith("left running: ")}
        assert left == {f"({process.pid})" for process in started[:2]}


@contextmanager
def waiting(code: str = "", **place: Any) -> Iterator[subprocess.Popen[str]]:
    """A process that runs some code, and waits."""
    command = [sys.executable, "-c", f"{code}\nprint('here', flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **place) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_job_notes_when_its_code_ran_and_whether_it_came_to_its_end(tmp_path: Path, is_killed: bool) -> None:
    (tmp_path / "job.py").write_text(JOB_CODE)
    notes, before = tmp_path / f"{JOB}.run", time.monotonic()
    seconds = 600 if is_killed else 0.2
    with subprocess.Popen([sys.executable, str(tmp_path / "job.py"), str(notes), str(seconds)]) as process:
        await_value(lambda: notes.exists() and "alive" in notes.read_text())
        if is_killed:
            process.kill()
    (execution,) = executions(tmp_path)
    assert (execution.job_id, execution.ended, execution.zygote) == (JOB, not is_killed, os.getpid())
    assert before < execution.began < execution.last_seen < time.monotonic()
    with notes.open("a") as file:
        file.write(f"began 7 {execution.last_seen + 1} 8\nalive 7 {execution.last_seen + 2} 8\n")
    assert [(each.zygote, each.ended) for each in executions(tmp_path)] == [(os.getpid(), not is_killed), (8, False)]


HUNGRY = """\
import threading
held = bytearray(b"x") * (64 << 20)
files = [open("/dev/null") for _ in range(50)]
for _ in range(20):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
"""


async def test_a_sample_shows_what_a_cluster_holds(stored: Stored) -> None:
    directory = stored.cluster.directory
    environment = {**os.environ, CLUSTER_DIR_VARIABLE: str(directory)}
    before = await asyncio.to_thread(take_sample, stored.cluster, 7.0)
    assert (before.at, before.processes) == (7.0, ())
    (directory / "log").mkdir()
    (directory / "log" / "x.log").write_bytes(bytes(3 << 20))
    await stored.services.job_graph_store().put(JOB, b"graph", stored.term)
    with waiting(HUNGRY, env=environment) as process:
        after = await asyncio.to_thread(take_sample, stored.cluster, 8.0)
    (seen,) = after.processes
    assert seen.pid == process.pid
    assert seen.role.startswith("python")
    assert seen.rss > seen.uss > 64 << 20
    assert seen.descriptors >= 50
    assert seen.threads >= 21
    assert after.redis["keys"] == before.redis["keys"] + 1
    assert after.redis["redis memory"] > 0
    assert after.files["log"] == (1, 3 << 20)
    assert after.files["ha"][0] == 1


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
    connection = RedisConnection(server.url, timeout=PATIENCE_S)
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

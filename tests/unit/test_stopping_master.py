"""A master that stops: it starts no process any more, and stops its JobMasters together."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from actors.address import ActorAddress
from actors.errors import ActorError, ActorProcessDied, EndpointStateError
from actors.process.host import HostSpec
from actors.process.system import HostedActor
from actors.receptionist import Receptionist
from actors.rpc.service import RpcConfig, RpcService
from blob.gateway import BlobAddress
from conf.configuration import Configuration
from runtime.cluster import supervisor as supervision
from runtime.cluster.master import ENTRYPOINTS, Master, entrypoint_of
from runtime.dispatcher import job_master_starts
from runtime.dispatcher.job_master_starts import JobMasterStarts
from runtime.environment.claims import Claim
from runtime.environment.context import ComponentContext
from runtime.environment.directory import ClusterDirectory
from runtime.ids import JobID
from runtime.protocol.leader import DISPATCHER, RESOURCE_MANAGER, job_master
from runtime.protocol.master import MasterGateway
from tests.waiting import PATIENCE_S

JOBS = 30
REDIS_S = 1.0
"""Seconds for which the end of a JobMaster waits for a Redis that does not answer."""


class System:
    """The actor system: counts what it starts, and takes virtual time for what it stops."""

    admin_pid = 1

    def __init__(self) -> None:
        self.began: list[str] = []
        self.stopped: list[list[str]] = []
        self.taken_s = 0.0
        self.threads: set[int] = set()
        self.down = False

    def start(self, spec: HostSpec) -> HostedActor:
        self.began.append(spec.name)
        number = len(self.began)
        return HostedActor(spec.name, ActorAddress("understudy", "127.0.0.1", number, f"/user/{spec.name}"), number)

    def stop(self, actor: HostedActor) -> None:
        self.stop_all([actor])

    def stop_all(self, actors: list[HostedActor]) -> None:
        self.threads.add(threading.get_ident())
        self.stopped.append([actor.name for actor in actors])
        self.taken_s += REDIS_S

    def keep_spare(self, spec: HostSpec) -> None:
        pass

    def shutdown(self) -> None:
        self.down = True


class Retrieval:
    async def start(self, listener: object) -> None:
        pass

    async def stop(self) -> None:
        pass


class Services:
    """High-availability services that follow nobody."""

    def leader_retrieval(self, component: str) -> Retrieval:
        return Retrieval()

    async def close(self) -> None:
        pass


class Lock:
    """The lock of a directory where another master runs."""

    exclusive = False

    def is_alone(self) -> bool:
        return False

    def leave(self) -> bool:
        return False


class Site:
    """A master of a cluster with other masters, and its actor system."""

    def __init__(self, root: Path, service: RpcService) -> None:
        directory = ClusterDirectory(root)
        directory.create()
        configuration = Configuration.from_dict({"cluster.runtime-dir": str(root)})
        context = ComponentContext(configuration, directory, ActorAddress("understudy", "127.0.0.1", 1, "/user/x"))
        self.system = System()
        assert entrypoint_of(configuration) in ENTRYPOINTS.values()
        self.master = Master(
            service,
            context,
            cast(Any, self.system),
            Receptionist(service),
            None,
            cast(Any, Services()),
            Claim(directory.claims / "master-0"),
            cast(Any, Lock()),
            entrypoint_of(configuration),
            is_member=False,
        )
        self.master._specs.blob = BlobAddress("127.0.0.1", 1)


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    async def never(pid: int) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(supervision, "wait_for_exit", never)
    service = RpcService(asyncio.get_running_loop(), b"x" * 32, RpcConfig())
    await service.listen()
    site = Site(tmp_path, service)
    await service.start_server(site.master)
    yield site
    await service.close()


async def test_a_stopping_master_starts_no_job_master_and_no_worker(site: Site) -> None:
    site.master.stop_requested.set()
    for call in (
        lambda: site.master.start_job_master(JobID.random()),
        site.master.start_worker,
        site.master.request_worker,
    ):
        with pytest.raises(ActorError, match="stops, and starts no process any more"):
            await call()
    assert site.system.began == []


async def test_a_job_master_whose_start_waits_for_its_stop_is_not_started_when_the_master_stops(site: Site) -> None:
    job_id = JobID.random()
    lock = site.master._job_masters.setdefault(job_id, asyncio.Lock())
    async with lock:
        start = asyncio.ensure_future(cast(Any, site.master.start_job_master(job_id)))
        await asyncio.sleep(0)
        site.master.stop_requested.set()
    with pytest.raises(ActorError):
        await start
    assert site.system.began == []


async def test_a_job_master_that_is_being_started_when_its_master_stops_is_refused_too(site: Site) -> None:
    def begin(_spec: HostSpec) -> HostedActor:
        site.master.service.loop.call_soon_threadsafe(down.set)
        assert removed.wait(PATIENCE_S)
        return HostedActor("job", ActorAddress("understudy", "127.0.0.1", 1, "/user/job"), 1)

    down, removed = asyncio.Event(), threading.Event()
    site.system.start = begin  # type: ignore[method-assign]
    start = asyncio.ensure_future(cast(Any, site.master.start_job_master(JobID.random())))
    await asyncio.wait_for(down.wait(), PATIENCE_S)
    stop = asyncio.ensure_future(site.master.bring_down())
    await asyncio.sleep(0)
    removed.set()
    with pytest.raises(EndpointStateError, match="stops, and starts no process any more"):
        await start
    await stop


async def test_the_dispatcher_of_a_stopping_master_tries_again_until_its_leadership_ends(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The job is neither lost nor failed: it stays in the store, where the next leader finds it.

    Such a stop is planned: one line says so, and it is not an error.
    """
    caplog.set_level(logging.INFO, job_master_starts.__name__)
    paused: list[float] = []
    tasks: set[asyncio.Task[None]] = set()
    enough = asyncio.Event()

    async def sleep(seconds: float) -> None:
        paused.append(seconds)
        if len(paused) == 3:
            starts.clear()  # the leadership is over
            enough.set()

    monkeypatch.setattr(job_master_starts, "asyncio", SimpleNamespace(sleep=sleep))
    spawn = lambda work, what: tasks.add(asyncio.ensure_future(work))  # noqa: E731
    starts = JobMasterStarts(cast(MasterGateway, site.master), spawn, 2)
    site.master.stop_requested.set()
    starts.recovered(JobID.random())
    await asyncio.wait_for(enough.wait(), PATIENCE_S)
    await asyncio.gather(*tasks)
    assert len(paused) == 3
    assert site.system.began == []
    (line,) = caplog.records
    assert line.levelno == logging.INFO
    assert "the next leader starts them: the master at " in line.message


async def test_a_start_that_fails_for_another_reason_is_an_error_each_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    outcomes = iter([ActorProcessDied("no room"), EndpointStateError("stops"), ActorProcessDied("no room"), None])

    class Stub:
        async def start_job_master(self, _job_id: JobID) -> str:
            if (error := next(outcomes)) is not None:
                raise error
            return "address"

    async def sleep(_seconds: float) -> None:
        pass

    monkeypatch.setattr(job_master_starts, "asyncio", SimpleNamespace(sleep=sleep))
    tasks: list[asyncio.Task[None]] = []
    spawn = lambda work, what: tasks.append(asyncio.ensure_future(work))  # noqa: E731
    JobMasterStarts(cast(MasterGateway, Stub()), spawn, 1).recovered(JobID.random())
    while pending := [task for task in tasks if not task.done()]:
        await asyncio.wait_for(asyncio.gather(*pending), PATIENCE_S)
    assert next(outcomes, "all") == "all"
    assert [line.levelno for line in caplog.records if line.levelno > logging.INFO] == [logging.ERROR] * 2


async def test_the_job_masters_stop_together_and_before_the_components(site: Site) -> None:
    """One after the other, 30 of them took 30 s if Redis did not answer, which is `cluster.stop-timeout`."""
    master, specs = site.master, site.master._specs
    manager = master._actor_child(RESOURCE_MANAGER, specs.resource_manager)
    dispatcher = master._actor_child(DISPATCHER, lambda: specs.dispatcher("m:create", str(master.address)))
    for component in (manager, dispatcher):
        await master._supervisor.add(component)
    jobs = [JobID.random() for _ in range(JOBS)]
    for job_id in jobs:
        await master.start_job_master(job_id)
    await master.bring_down()
    *together, first, second = site.system.stopped
    assert sorted(name for names in together for name in names) == sorted(map(job_master, jobs))
    assert [first, second] == [[DISPATCHER], [RESOURCE_MANAGER]], "in this order, each by itself"
    assert site.system.taken_s <= 4 * REDIS_S
    assert len(site.system.threads) == 1, "Thespian is not safe for threads"
    assert site.system.down


async def test_a_job_master_that_could_not_be_stopped_does_not_keep_the_others(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def stop_all(actors: list[HostedActor]) -> None:
        raise ActorProcessDied("no admin")

    await site.master.start_job_master(JobID.random())
    monkeypatch.setattr(site.system, "stop_all", stop_all)
    await site.master.bring_down()
    assert site.system.down

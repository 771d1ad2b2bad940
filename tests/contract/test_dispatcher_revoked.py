# ruff: noqa: F811 - fixtures are imported by name
"""A Dispatcher whose leadership ends amid its work, told of it or not, begins nothing and removes nothing more."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from actors.errors import FencingError
from actors.rpc.gateway import rpc, rpc_sync
from actors.rpc.service import RpcService
from blob.offload import Inline
from runtime.dispatcher import endpoint, mini_dispatcher
from runtime.dispatcher.archive import MemoryArchivedExecutionGraphStore
from runtime.dispatcher.endpoint import Dispatcher
from runtime.dispatcher.mini_dispatcher import MiniDispatcher
from runtime.ha.connection import RedisConnection
from runtime.ha.keys import ClusterKeys
from runtime.ha.latch import RedisLeaderLatch
from runtime.ha.running_jobs import JobSchedulingStatus
from runtime.ha.services import RedisHaServices
from runtime.ids import JobID
from runtime.jobgraph.codec import encode
from runtime.protocol.archived_execution_graph import ApplicationStatus
from runtime.protocol.dispatcher import DispatcherGateway
from runtime.protocol.leader import DISPATCHER, LeaderTerm, boottime, job_master
from runtime.protocol.messages import ClusterStatus
from tests.contract.test_dispatcher_ends import FINISHED, job_master_of
from tests.contract.test_dispatcher_recovery import Guardian, service  # noqa: F401
from tests.contract.test_dispatcher_submission import JOB, OTHER, RETENTION, World, graph, leading, registry  # noqa: F401
from tests.fakes.redis_server import RedisProxy, RedisServer, redis_proxy, redis_server, until  # noqa: F401
from tests.waiting import AT_ONCE, PATIENCE_S

THIRD, LATE = JobID("c" * 32), JobID("d" * 32)


class Successor:
    """Another master's Dispatcher, as far as Redis knows: it has the latch, which the former one's lease had ended."""

    def __init__(self, redis: RedisServer) -> None:
        self._connection = RedisConnection(redis.url, timeout=PATIENCE_S)
        self._latch = RedisLeaderLatch(self._connection, ClusterKeys("c"), DISPATCHER, 600.0)
        self._session = ""

    async def take_over(self, session: str = "successor") -> LeaderTerm:
        await self._connection.command("DEL", ClusterKeys("c").leader(DISPATCHER))
        reply = await self._latch.acquire(session, 0)
        assert reply.granted
        return LeaderTerm(DISPATCHER, reply.epoch, session)

    async def give_back(self, term: LeaderTerm) -> None:
        assert await self._latch.release(term)

    async def close(self) -> None:
        await self._connection.close()


@pytest.fixture
async def successor(redis_server: RedisServer) -> AsyncIterator[Successor]:
    made = Successor(redis_server)
    yield made
    await made.close()


class StandStill:
    """A Dispatcher that stands still, and goes on: its election is the last thing that its loop comes to then."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._driver: Any = dispatcher._election._driver  # type: ignore[attr-defined]
        self._election_goes_on = asyncio.Event()

    def begin(self) -> None:
        """Hear nothing of the election any more."""
        self._driver._carry_out = self._hold

    async def _hold(self, step: object, listener: object) -> None:
        await self._election_goes_on.wait()

    def end(self) -> None:
        """Let the election go on, too."""
        self._driver.__dict__.pop("_carry_out", None)
        self._election_goes_on.set()

    def over(self, after_s: float = 3600.0) -> None:
        """It goes on after so many seconds, by the clock of its lease."""
        self._driver._clock = lambda: boottime() + after_s

    async def step_down(self) -> None:
        """Let the election go on, and wait until it has ended the term."""
        self.end()
        await until(lambda: self._dispatcher.fencing_token is None)


Standing = Callable[[Dispatcher], StandStill]


@pytest.fixture
async def standing() -> AsyncIterator[Standing]:
    """Has a Dispatcher stand still until the end of the test at most."""
    begun: list[StandStill] = []

    def begin(dispatcher: Dispatcher) -> StandStill:
        begun.append(StandStill(dispatcher))
        begun[-1].begin()
        return begun[-1]

    yield begin
    for one in begun:
        one.end()


async def hear_of(term: LeaderTerm, dispatcher: Dispatcher) -> None:
    """Let a Dispatcher hear of its successor, and step down."""
    dispatcher._election.observe_epoch(term.epoch)
    await until(lambda: dispatcher.fencing_token is None)


def tasks_of(dispatcher: Dispatcher, what: str) -> list[asyncio.Task[Any]]:
    return [task for task in dispatcher._spawned if what in task.get_name()]


class Expiring(MemoryArchivedExecutionGraphStore):
    """Counts how often it was asked to drop what is old."""

    def __init__(self) -> None:
        super().__init__(RETENTION())
        self.asked = 0

    def expire(self, now_ms: int) -> list[JobID]:
        self.asked += 1
        return super().expire(now_ms)


async def test_a_thawed_dispatcher_answers_nobody_starts_nothing_and_writes_nothing(
    service: RpcService,
    redis_proxy: RedisProxy,
    registry: RedisHaServices,
    successor: Successor,
    standing: Standing,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It goes on before its election does: with calls that lie in its sockets, and what was under way in itself."""
    monkeypatch.setattr("runtime.retry.SOON", AT_ONCE)
    guardian, archive = Guardian(service), Expiring()
    async with leading(service, redis_proxy.url, tmp_path, archive, guardian=guardian) as world:
        dispatcher = world.dispatcher
        for job_id in (JOB, OTHER, THIRD):  # two are being started, and the third one waits in line
            await world.submit(graph(job_id))
        await until(lambda: guardian.under_way == {JOB, OTHER})
        redis_proxy.hold = lambda request: b"handles:jobgraphs" in request and LATE.encode() in request
        late = asyncio.ensure_future(world.submit(graph(LATE)))
        await until(lambda: redis_proxy.held)
        asked = archive.asked

        stands_still = standing(dispatcher)
        former = dispatcher.term
        await successor.take_over()
        stands_still.over()

        redis_proxy.hold = lambda request: False
        redis_proxy.held[0]()  # what it had sent before arrives after all
        reports = job_master_of(world)
        gateway = world.gateway
        for call in (
            gateway.list_jobs(),
            gateway.request_multiple_job_details(),
            gateway.request_job(JOB),
            gateway.request_job_status(JOB),
            gateway.request_job_result(JOB),
            gateway.request_cluster_overview(),
            gateway.cancel_job(JOB),
            gateway.submit_job(Inline(encode(graph(JobID("e" * 32))))),
            gateway.shut_down_cluster(),
            reports.job_reached_terminal_state(FINISHED),
        ):
            with pytest.raises(FencingError):
                await call
        with pytest.raises(FencingError, match=f"whether job {LATE} was accepted is not known"):
            await late
        guardian.let.set()
        await until(lambda: f"the JobMaster of job {THIRD} was not started" in caplog.text or guardian.started[THIRD])
        await dispatcher._cleaner.clean_up(JOB, former)
        await stands_still.step_down()
        await until(lambda: not tasks_of(dispatcher, "starting the JobMaster"))
        assert guardian.started == {JOB: 1, OTHER: 1}, "what it had asked for takes its course, and no more begins"
        assert archive.find(JOB) is None
        assert archive.asked == asked
        assert set(await registry.job_graph_store().job_ids()) == {JOB, OTHER, THIRD}
        entries = await registry.running_jobs_registry().entries()
        assert {entry.status for entry in entries.values()} == {JobSchedulingStatus.PENDING}
        assert not guardian.stopped


async def test_a_thawed_dispatcher_drops_no_old_jobs(
    service: RpcService,
    redis_server: RedisServer,
    successor: Successor,
    standing: Standing,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Which of them go is the next leader's to say, whose archive is the same directory."""
    monkeypatch.setattr(endpoint, "EXPIRY_INTERVAL_S", 0.01)
    archive = Expiring()
    async with leading(service, redis_server.url, tmp_path, archive) as world:
        dispatcher = world.dispatcher
        await until(lambda: archive.asked >= 2)
        stands_still = standing(dispatcher)
        await successor.take_over()
        (expiring,) = tasks_of(dispatcher, "dropping old jobs")
        stands_still.over()
        asked = archive.asked
        await until(lambda: expiring.done() or archive.asked >= asked + 3)
        assert archive.asked <= asked + 1, "but for one that was under way"


async def stored_jobs(redis: RedisServer, storage: Path, *job_ids: JobID) -> None:
    """What a Dispatcher that was killed leaves behind: jobs, accepted and running, and no leader."""
    ha, connection = (
        RedisHaServices(redis.url, "c", storage, timeout=PATIENCE_S),
        RedisConnection(redis.url, timeout=PATIENCE_S),
    )
    latch = RedisLeaderLatch(connection, ClusterKeys("c"), DISPATCHER, 600.0)
    term = LeaderTerm(DISPATCHER, (await latch.acquire("predecessor", 0)).epoch, "predecessor")
    for job_id in job_ids:
        await ha.running_jobs_registry().set_running(job_id, term)
        await ha.job_graph_store().put(job_id, encode(graph(job_id)), term)
    await latch.release(term)
    await connection.close()
    await ha.close()


@pytest.mark.parametrize("is_told", [True, False])
async def test_amid_a_recovery_no_further_job_master_is_started(
    is_told: bool,
    service: RpcService,
    redis_server: RedisServer,
    successor: Successor,
    standing: Standing,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await stored_jobs(redis_server, tmp_path / "ha", JOB, OTHER, THIRD)
    guardian = Guardian(service)
    async with leading(service, redis_server.url, tmp_path, guardian=guardian) as world:
        dispatcher = world.dispatcher
        await until(lambda: guardian.under_way)
        (first,) = guardian.under_way
        stands_still = None if is_told else standing(dispatcher)
        term = await successor.take_over()
        if stands_still is None:
            await hear_of(term, dispatcher)
        else:
            stands_still.over()
        guardian.let.set()
        await until(
            lambda: guardian.started and (is_told or len(guardian.started) > 1 or "was not started" in caplog.text)
        )
        if stands_still is not None:
            await stands_still.step_down()
        await until(lambda: not tasks_of(dispatcher, "starting the JobMaster"))
        assert guardian.started == {first: 1}


class HeldGuardian(Guardian):
    """A master that takes its time: *may_answer* lets it."""

    def __init__(self, service: RpcService) -> None:
        super().__init__(service)
        self.let.set()
        self.asked: list[str] = []
        self.ends: list[ApplicationStatus] = []
        self.serves = False
        self.may_answer = asyncio.Event()

    @rpc
    async def stop_job_master(self, job_id: JobID) -> None:
        self.asked.append("stop_job_master")
        await self.may_answer.wait()
        self.stopped[job_id] += 1

    @rpc
    async def request_status(self) -> ClusterStatus:
        if self.serves:  # and not already when a Dispatcher looks for the feature level of a new cluster
            self.asked.append("request_status")
            await self.may_answer.wait()
        self.serves = True
        return ClusterStatus("c", "0", str(self.address), 1, (), (str(self.address),))

    @rpc_sync
    def shut_down_cluster(self, status: ApplicationStatus = ApplicationStatus.UNKNOWN) -> None:
        self.ends.append(status)


@pytest.mark.parametrize("is_told", [True, False])
async def test_amid_a_clean_up_the_rest_is_left_to_the_next_leader(
    is_told: bool,
    service: RpcService,
    redis_server: RedisServer,
    registry: RedisHaServices,
    successor: Successor,
    standing: Standing,
    tmp_path: Path,
) -> None:
    guardian = HeldGuardian(service)
    async with leading(service, redis_server.url, tmp_path, guardian=guardian) as world:
        dispatcher = world.dispatcher
        await world.submit(graph())
        own = RedisLeaderLatch(
            RedisConnection(redis_server.url, timeout=PATIENCE_S), ClusterKeys("c"), job_master(JOB), 600.0
        )
        owner = LeaderTerm(job_master(JOB), (await own.acquire("job master", 0)).epoch, "job master")
        await registry.execution_store().put(JOB, b"how far it has come", owner)
        await job_master_of(world).job_reached_terminal_state(FINISHED)
        await until(lambda: guardian.asked == ["stop_job_master"])
        stands_still = None if is_told else standing(dispatcher)
        term = await successor.take_over()
        if stands_still is None:
            await hear_of(term, dispatcher)
        guardian.may_answer.set()
        await until(lambda: not tasks_of(dispatcher, "cleaning up"))
        assert await registry.execution_store().find(JOB) == b"how far it has come"
        assert (await registry.running_jobs_registry().entries())[JOB].dirty
        if is_told:  # whoever leads next does it
            await successor.give_back(term)
            await until(lambda: guardian.stopped[JOB] == 2)
            await until(lambda: not tasks_of(dispatcher, "cleaning up"))
            assert await registry.execution_store().find(JOB) is None
            assert not (await registry.running_jobs_registry().entries())[JOB].dirty


class Nobody:
    """A claim that no client holds."""

    def try_acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


@pytest.mark.parametrize("is_told", [True, False])
async def test_amid_a_shutdown_no_master_is_told_to_stop(
    is_told: bool,
    service: RpcService,
    redis_server: RedisServer,
    successor: Successor,
    standing: Standing,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The cluster has ended by the book of the former leader: of the present one's it need not have."""
    monkeypatch.setattr(mini_dispatcher, "CHECK_S", 0.01)
    guardian = HeldGuardian(service)
    of_one_job = functools.partial(MiniDispatcher, client=cast("Any", Nobody()))  # its client has gone
    async with leading(service, redis_server.url, tmp_path, kind=of_one_job, guardian=guardian) as world:
        dispatcher = world.dispatcher
        await until(lambda: guardian.asked == ["request_status"])
        (ending,) = tasks_of(dispatcher, "ending the cluster")
        stands_still = None if is_told else standing(dispatcher)
        term = await successor.take_over()
        if stands_still is None:
            await hear_of(term, dispatcher)
        else:
            stands_still.over()
        guardian.may_answer.set()
        await until(lambda: ending.done() or guardian.ends or "the cluster cannot end yet" in caplog.text)
        if stands_still is not None:
            await stands_still.step_down()
        await until(lambda: ending.done() or guardian.ends)
        assert guardian.ends == []
        if is_told:  # whoever leads next ends it
            await successor.give_back(term)
            await until(lambda: guardian.ends)
            assert set(guardian.ends) == {ApplicationStatus.UNKNOWN}


async def test_a_submission_that_is_repeated_over_failovers_is_one_job(
    service: RpcService,
    redis_proxy: RedisProxy,
    registry: RedisHaServices,
    successor: Successor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its outcome is unknown at the first failover; at the second it runs; then it is over."""
    monkeypatch.setattr("runtime.retry.SOON", AT_ONCE)

    async def fail_over(world: World, session: str) -> DispatcherGateway:
        former = world.dispatcher.fencing_token
        term = await successor.take_over(session)
        await hear_of(term, world.dispatcher)
        await successor.give_back(term)
        await until(lambda: world.dispatcher.fencing_token not in (None, former))
        return world.gateway_of_the_term()

    async with leading(service, redis_proxy.url, tmp_path) as world:
        submission = Inline(encode(graph()))
        redis_proxy.hold = lambda request: b"handles:jobgraphs" in request and b"absent" in request
        unanswered = asyncio.ensure_future(world.gateway.submit_job(submission))
        await until(lambda: redis_proxy.held)
        second = await fail_over(world, "first failover")
        with pytest.raises(FencingError, match=f"whether job {JOB} was accepted is not known"):
            await unanswered
        with pytest.raises(FencingError):
            await world.gateway.submit_job(submission)  # a client that has not heard of the failover
        assert world.guardian.started == {}
        redis_proxy.hold = lambda request: False
        assert await second.submit_job(submission) == JOB
        await until(lambda: world.guardian.started[JOB] == 1)
        for write in redis_proxy.held:
            write()  # of the first attempt, and too late
        assert await second.submit_job(submission) == JOB

        third = await fail_over(world, "second failover")
        assert await third.submit_job(submission) == JOB
        await until(
            lambda: world.guardian.started[JOB] >= 2
        )  # the next leader finds its JobMaster, and starts no other
        assert await third.submit_job(submission) == JOB
        assert await third.list_jobs() == [JOB]
        assert await registry.job_graph_store().job_ids() == [JOB]
        assert list(await registry.running_jobs_registry().entries()) == [JOB]

        await job_master_of(world).job_reached_terminal_state(FINISHED)
        await until(lambda: not tasks_of(world.dispatcher, "cleaning up"))
        assert await third.submit_job(submission) == JOB
        assert world.guardian.started == {JOB: 2}, "once for each leader, however often it was submitted"
        assert await third.list_jobs() == [JOB]
        assert await registry.job_graph_store().job_ids() == [], "it is over, and is not run again"
        assert (await registry.running_jobs_registry().entries())[JOB].status is JobSchedulingStatus.DONE

# ruff: noqa: F811 - fixtures are imported by name
"""A Dispatcher of a release with two levels: the level that it begins with, writes at, raises, or refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgpack
import pytest

import runtime.dispatcher.endpoint as dispatcher_module
from actors.errors import FencingError
from actors.rpc.config import RpcConfig
from actors.rpc.gateway import rpc_sync
from actors.rpc.service import RpcService
from runtime.feature_level import VERSIONS, Component, FeatureLevel, FeatureLevels, Format, Release
from runtime.ha.connection import RedisConnection
from runtime.ha.errors import HaUnreachableError
from runtime.ha.feature_level import FeatureLevelStore
from runtime.ha.keys import ClusterKeys
from runtime.ha.latch import RedisLeaderLatch
from runtime.ha.masters import MASTER_PREFIX, MasterRegistration
from runtime.ha.services import RedisHaServices
from runtime.protocol.errors import FeatureLevelHeldError
from runtime.protocol.leader import DISPATCHER, LeaderTerm
from runtime.protocol.messages import ClusterStatus
from tests.contract.test_dispatcher_recovery import Guardian, service  # noqa: F401
from tests.contract.test_dispatcher_submission import JOB, OTHER, SECRET, World, graph, leading, registry  # noqa: F401
from tests.fakes.redis_server import RedisServer, redis_server, until  # noqa: F401
from tests.waiting import PATIENCE_S

ELSEWHERE = "akka.tcp://understudy@127.0.0.1:1/system"


@pytest.fixture(autouse=True)
def second_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant a second level, at which job graphs have another version."""
    monkeypatch.setitem(VERSIONS, 2, {**VERSIONS[1], Format.JOB_GRAPH: 3})
    monkeypatch.setattr(dispatcher_module, "RELEASE_TIMEOUT_S", PATIENCE_S)


@asynccontextmanager
async def led_before(url: str) -> AsyncIterator[LeaderTerm]:
    """Provide the term of a former Dispatcher."""
    connection = RedisConnection(url, timeout=PATIENCE_S)
    latch = RedisLeaderLatch(connection, ClusterKeys("c"), DISPATCHER, 600.0)
    term = LeaderTerm(DISPATCHER, (await latch.acquire("predecessor", 0)).epoch, "predecessor")
    yield term
    await latch.release(term)
    await connection.close()


async def stored(registry: RedisHaServices, job_id: str) -> int:
    plain = msgpack.unpackb(await registry.job_graph_store().get(job_id), strict_map_key=False)
    return int(plain["format_version"])


class FirstRelease(Guardian):
    """A master of the first release, whose answer has no levels."""

    @rpc_sync
    def request_status(self) -> ClusterStatus:
        return ClusterStatus("c", "0.1.0", str(self.address), 0, ())


def components(*newest: int) -> list[Component]:
    return [Component(f"the master at h:{level}", Release(f"0.{level}.0", FeatureLevels(1, level))) for level in newest]


async def test_a_new_cluster_begins_at_the_newest_level(
    service: RpcService, redis_server: RedisServer, registry: RedisHaServices, tmp_path: Path
) -> None:
    async with leading(service, redis_server.url, tmp_path) as world:
        assert await registry.feature_level_store().find() == 2
        await world.submit(graph())
        assert await stored(registry, JOB) == 3


async def test_a_new_cluster_with_a_master_of_the_first_release_begins_at_the_first_level(
    service: RpcService, redis_server: RedisServer, registry: RedisHaServices, tmp_path: Path
) -> None:
    guardian = FirstRelease(service)
    guardian.let.set()
    async with leading(service, redis_server.url, tmp_path, guardian=guardian):
        assert await registry.feature_level_store().find() == 1


async def listed(registry: RedisHaServices, address: str) -> None:
    while address not in await registry.masters():  # noqa: ASYNC110  # another connection confirms it
        await asyncio.sleep(0.01)


@asynccontextmanager
async def registered(registry: RedisHaServices, address: str) -> AsyncIterator[None]:
    """Register a master of another host, whose runtime directory the Dispatcher's master does not see."""
    registration = MasterRegistration(registry, address, pytest.fail)
    await registration.start()
    await listed(registry, address)
    yield
    await registration.stop()
    assert address not in await registry.masters()


@asynccontextmanager
async def first_release_elsewhere() -> AsyncIterator[str]:
    """Provide the address of a master of the first release at another port, as on another host."""
    elsewhere = RpcService(asyncio.get_running_loop(), SECRET, RpcConfig())
    await elsewhere.listen()
    guardian = FirstRelease(elsewhere)
    await elsewhere.start_server(guardian)
    yield str(guardian.address)
    await elsewhere.close()


async def test_a_new_cluster_with_a_master_of_the_first_release_on_another_host_begins_at_the_first_level(
    service: RpcService, redis_server: RedisServer, registry: RedisHaServices, tmp_path: Path
) -> None:
    async with (
        first_release_elsewhere() as address,
        registered(registry, address),
        leading(service, redis_server.url, tmp_path),
    ):
        assert await registry.feature_level_store().find() == 1


async def test_the_level_is_not_raised_while_a_master_of_another_host_does_not_answer(
    service: RpcService,
    redis_server: RedisServer,
    registry: RedisHaServices,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatcher_module, "RELEASE_TIMEOUT_S", 0.5)
    async with led_before(redis_server.url) as term:
        await registry.feature_level_store().begin(1, term)
    async with leading(service, redis_server.url, tmp_path) as world:
        async with registered(registry, ELSEWHERE):
            with pytest.raises(FeatureLevelHeldError, match=r"the master at 127\.0\.0\.1:1 does not answer"):
                await world.gateway.finalize_feature_level()
        with pytest.raises(FeatureLevelHeldError, match="ResourceManager does not answer"):  # it asked all masters
            await world.gateway.finalize_feature_level()


async def test_a_master_that_missed_a_higher_level_is_refused(redis_server: RedisServer, tmp_path: Path) -> None:
    ha, refused = RedisHaServices(redis_server.url, "c", tmp_path, lease=1.0), asyncio.Queue[Exception]()
    registration = MasterRegistration(ha, ELSEWHERE, refused.put_nowait)
    await registration.start()
    await listed(ha, ELSEWHERE)
    connection = RedisConnection(redis_server.url, timeout=PATIENCE_S)
    latches = await connection.command("KEYS", ClusterKeys("c").leader(MASTER_PREFIX) + "*")
    async with led_before(redis_server.url) as term:
        await ha.feature_level_store().begin(9, term)
        assert refused.empty()
        assert await connection.command("DEL", *latches) == 1  # Redis has restarted, and lost the last second
        assert "the cluster has feature level 9, and " in str(await asyncio.wait_for(refused.get(), PATIENCE_S))
    await registration.stop()
    await connection.close()
    await ha.close()


async def test_a_master_contends_again_if_the_level_cannot_be_read(
    redis_server: RedisServer, registry: RedisHaServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures, refused = [HaUnreachableError("redis", "away")] * 2, list[Exception]()
    current = FeatureLevelStore.current

    async def failing(self: FeatureLevelStore) -> FeatureLevel:
        if failures:
            raise failures.pop()
        read.set()
        return await current(self)

    read = asyncio.Event()
    monkeypatch.setattr(FeatureLevelStore, "current", failing)
    registration = MasterRegistration(registry, ELSEWHERE, refused.append)
    await registration.start()
    await asyncio.wait_for(read.wait(), PATIENCE_S)
    await listed(registry, ELSEWHERE)
    assert not refused
    await registration.stop()


async def test_an_earlier_cluster_without_a_level_is_at_the_first(
    service: RpcService, redis_server: RedisServer, registry: RedisHaServices, tmp_path: Path
) -> None:
    async with led_before(redis_server.url) as term:
        await registry.running_jobs_registry().set_pending(OTHER, term)
    async with leading(service, redis_server.url, tmp_path):
        assert await registry.feature_level_store().find() == 1


async def test_a_lower_level_stays_until_it_is_finalized(
    service: RpcService,
    redis_server: RedisServer,
    registry: RedisHaServices,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with led_before(redis_server.url) as term:
        await registry.feature_level_store().begin(1, term)
    async with leading(service, redis_server.url, tmp_path) as world:
        await world.submit(graph())
        assert await stored(registry, JOB) == VERSIONS[1][Format.JOB_GRAPH]
        # No ResourceManager leads here, so it is not known which TaskExecutors there are.
        with monkeypatch.context() as patch:
            patch.setattr(dispatcher_module, "RELEASE_TIMEOUT_S", 0.5)
            with pytest.raises(FeatureLevelHeldError, match="does not answer"):
                await world.gateway.finalize_feature_level()
        for running in ([2, 1], [3, 1, 1]):
            found = components(*running)
            monkeypatch.setattr(world.dispatcher, "_components", lambda found=found: _answered(found))
            with pytest.raises(FeatureLevelHeldError, match=r"stays 1: the master at h:1 runs Understudy 0\.1\.0"):
                await world.gateway.finalize_feature_level()
        assert await registry.feature_level_store().find() == 1
        monkeypatch.setattr(world.dispatcher, "_components", lambda: _answered(components(2, 2)))
        for before in (1, 2):
            change = await world.gateway.finalize_feature_level()
            assert (change.before, change.level, change.held_by) == (before, 2, ())
        assert await registry.feature_level_store().find() == 2
        await world.submit(graph(OTHER))
        assert await stored(registry, OTHER) == 3
        assert await stored(registry, JOB) == VERSIONS[1][Format.JOB_GRAPH]


async def _answered(found: list[Component]) -> list[Component]:
    return found


async def test_a_dispatcher_whose_term_is_over_does_not_raise_the_level(
    service: RpcService,
    redis_server: RedisServer,
    registry: RedisHaServices,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with led_before(redis_server.url) as term:
        await registry.feature_level_store().begin(1, term)
    async with leading(service, redis_server.url, tmp_path) as world:

        async def lose_the_leadership() -> list[Component]:
            # Redis has another leader, of which this Dispatcher has not heard.
            connection = RedisConnection(redis_server.url, timeout=PATIENCE_S)
            await connection.command("DEL", ClusterKeys("c").leader(DISPATCHER))
            await connection.close()
            return components(2)

        monkeypatch.setattr(world.dispatcher, "_components", lose_the_leadership)
        with pytest.raises(FencingError, match="whether the feature level is 2 is not known"):
            await world.gateway.finalize_feature_level()
        assert await registry.feature_level_store().find() == 1


class DoesNotLeadError(Exception):
    """The Dispatcher has refused the leadership."""


async def test_a_release_that_does_not_support_the_level_does_not_lead_and_lets_others_lead(
    service: RpcService,
    redis_server: RedisServer,
    registry: RedisHaServices,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with led_before(redis_server.url) as term:
        await registry.feature_level_store().begin(3, term)

    async def until_refused(_condition: object, _within: float = PATIENCE_S) -> None:
        await until(lambda: "does not lead:" in caplog.text)
        raise DoesNotLeadError

    # Instead of waiting until it leads.
    monkeypatch.setattr("tests.contract.test_dispatcher_submission.until", until_refused)
    with pytest.raises(DoesNotLeadError):
        async with leading(service, redis_server.url, tmp_path):
            pass
    (record,) = [each for each in caplog.records if "does not lead:" in each.message]
    assert "the cluster has feature level 3" in record.message
    assert record.exc_info is None
    async with led_before(redis_server.url) as later:  # it has given the latch back, and does not contend for it
        assert later.epoch > term.epoch

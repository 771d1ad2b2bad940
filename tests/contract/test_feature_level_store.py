# ruff: noqa: F811 - fixtures are imported by name
"""The stored feature level: only a leader writes it, in Redis as in the memory of a master."""

from __future__ import annotations

import pytest

from runtime.feature_level import VERSIONS, FeatureLevel
from runtime.ha.errors import FeatureLevelUnsupportedError, LeadershipLostError, StateHandleConflictError
from runtime.protocol.leader import DISPATCHER
from tests.contract.test_ha_election import contend
from tests.fakes.ha_keeper import LONG_LEASE, Keeper, keeper  # noqa: F401
from tests.fakes.redis_server import redis_server, until  # noqa: F401


@pytest.fixture
def second_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VERSIONS, 2, VERSIONS[1])


async def test_a_leader_begins_and_raises_the_level_and_everyone_reads_it(keeper: Keeper, second_level: None) -> None:
    services, reader = keeper.open(lease=LONG_LEASE), keeper.open(lease=LONG_LEASE)
    leader = await contend(services)
    await until(lambda: leader.term)
    assert leader.term is not None
    store = services.feature_level_store()
    assert await store.find() is None
    assert await store.current() == FeatureLevel(1)
    assert await store.begin(1, leader.term) == 1
    assert await store.begin(2, leader.term) == 1  # the first one counts
    await store.raise_to(2, 1, leader.term)
    await store.raise_to(2, 1, leader.term)  # a write whose outcome was unknown is repeated
    with pytest.raises(StateHandleConflictError, match="is 2, not 1"):
        await store.raise_to(3, 1, leader.term)
    with pytest.raises(ValueError, match="cannot be lowered"):
        await store.raise_to(1, 2, leader.term)
    assert await reader.feature_level_store().current() == FeatureLevel(2)
    await leader.election.stop()


async def test_a_former_leader_can_neither_begin_nor_raise_the_level(keeper: Keeper, second_level: None) -> None:
    services = keeper.open(lease=3600.0), keeper.open(lease=3600.0)
    first = await contend(services[0])
    await until(lambda: first.term)
    term = first.terms[0]
    await first.election.stop()
    second = await contend(services[1])
    await until(lambda: second.term)
    former = services[0].feature_level_store()
    with pytest.raises(LeadershipLostError):
        await former.begin(1, term)
    assert await former.find() is None
    await services[1].feature_level_store().begin(1, second.terms[0])
    with pytest.raises(LeadershipLostError):
        await former.raise_to(2, 1, term)
    assert await former.find() == 1
    await second.election.stop()


async def test_a_release_below_the_level_reads_it_and_refuses(keeper: Keeper) -> None:
    services = keeper.open(lease=LONG_LEASE)
    leader = await contend(services, DISPATCHER)
    await until(lambda: leader.term)
    await services.feature_level_store().begin(2, leader.terms[0])
    assert await services.feature_level_store().find() == 2
    with pytest.raises(FeatureLevelUnsupportedError, match="feature level 2"):
        await services.feature_level_store().current()
    await leader.election.stop()


async def test_the_level_goes_with_the_cluster(keeper: Keeper) -> None:
    services = keeper.open(lease=LONG_LEASE)
    leader = await contend(services)
    await until(lambda: leader.term)
    await services.feature_level_store().begin(1, leader.terms[0])
    await leader.election.stop()
    await services.cleanup()
    assert await services.feature_level_store().find() is None

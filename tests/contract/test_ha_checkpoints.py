# ruff: noqa: F811 - fixtures are imported by name
"""The completed checkpoints of a job and their numbers: one suite over both implementations, then Redis' own faults."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from runtime.ha.checkpoint_store import CheckpointRecoveryFactory, CompletedCheckpoint
from runtime.ha.connection import RedisConnection
from runtime.ha.errors import (
    LeadershipLostError,
    RedisUnreachableError,
    StateHandleConflictError,
    StateHandleNotFoundError,
    StateWriteUnknownError,
)
from runtime.ha.fenced import Demand, FencedWriter, HashWrite
from runtime.ha.keys import ClusterKeys
from runtime.ha.latch import RedisLeaderLatch
from runtime.protocol.leader import DISPATCHER, LeaderTerm, job_master
from tests.fakes.ha_keeper import Keeper, keeper  # noqa: F401
from tests.fakes.redis_server import RedisProxy, RedisServer, redis_proxy, redis_server  # noqa: F401
from tests.waiting import PATIENCE_S

KEYS = ClusterKeys("c1")
JOB = "a" * 32
MASTER = job_master(JOB)


@dataclass
class Setting:
    """An implementation, and how one comes to lead."""

    factory: CheckpointRecoveryFactory
    lead: Callable[[str], Awaitable[LeaderTerm]]


async def lead(connection: RedisConnection, component: str = MASTER) -> LeaderTerm:
    """A new term, whoever led before."""
    session = f"s{next(_sessions)}"
    await connection.command("DEL", KEYS.leader(component))
    reply = await RedisLeaderLatch(connection, KEYS, component, 60.0).acquire(session, 0)
    return LeaderTerm(component, reply.epoch, session)


_sessions = itertools.count()


@pytest.fixture
async def direct(redis_server: RedisServer) -> AsyncIterator[RedisConnection]:
    connection = RedisConnection(redis_server.url, timeout=PATIENCE_S)
    yield connection
    await connection.close()


@pytest.fixture
async def proxied(redis_proxy: RedisProxy) -> AsyncIterator[RedisConnection]:
    connection = RedisConnection(redis_proxy.url, timeout=PATIENCE_S)
    yield connection
    await connection.close()


def factory(connection: RedisConnection, tmp_path: Path) -> CheckpointRecoveryFactory:
    return CheckpointRecoveryFactory(FencedWriter(connection, KEYS), KEYS, tmp_path / "ha", retry=0.02)


@pytest.fixture
async def setting(keeper: Keeper) -> Setting:
    held: dict[str, LeaderTerm] = {}

    async def lead_at_keeper(component: str) -> LeaderTerm:
        latch = keeper.latch(component, 60.0)
        if component in held:
            assert await latch.release(held[component])
        session = f"s{next(_sessions)}"
        reply = await latch.acquire(session, 0)
        assert reply.granted
        held[component] = LeaderTerm(component, reply.epoch, session)
        return held[component]

    return Setting(keeper.open().checkpoint_recovery_factory(), lead_at_keeper)


def checkpoint(number: int) -> CompletedCheckpoint:
    return CompletedCheckpoint(number, b"checkpoint %d" % number)


def files(tmp_path: Path) -> list[str]:
    return sorted(path.name.partition("@")[0] for path in (tmp_path / "ha").rglob("*@*"))


# ------------------------------------------------------------- the contract of both


async def test_the_newest_are_kept_and_what_they_subsume_is_given_back(setting: Setting) -> None:
    term = await setting.lead(MASTER)
    store = setting.factory.completed_checkpoint_store(JOB, 2)
    assert await store.recover(term) == []
    subsumed = [await store.add(number, checkpoint(number).data, term) for number in range(1, 5)]
    assert subsumed == [[], [], [checkpoint(1)], [checkpoint(2)]]
    assert await store.get_all() == [checkpoint(3), checkpoint(4)]


async def test_one_that_is_needed_stays_however_many_are_kept(setting: Setting) -> None:
    term = await setting.lead(MASTER)
    store = setting.factory.completed_checkpoint_store(JOB, 1)
    await store.add(1, b"1", term)
    assert await store.add(2, b"2", term, needed=[1]) == []
    assert [item.checkpoint_id for item in await store.get_all()] == [1, 2]
    assert [item.checkpoint_id for item in await store.add(3, b"3", term)] == [1, 2]


async def test_a_successor_finds_what_its_predecessor_stored(setting: Setting) -> None:
    old = await setting.lead(MASTER)
    store = setting.factory.completed_checkpoint_store(JOB, 2)
    for number in (9, 10, 11):
        await store.add(number, checkpoint(number).data, old)
    new = await setting.lead(MASTER)
    successor = setting.factory.completed_checkpoint_store(JOB, 2)
    assert await successor.recover(new) == [checkpoint(10), checkpoint(11)]
    assert await successor.add(12, checkpoint(12).data, new) == [checkpoint(10)]
    assert await successor.get_all() == [checkpoint(11), checkpoint(12)]


async def test_a_job_master_whose_term_is_over_changes_nothing(setting: Setting) -> None:
    old = await setting.lead(MASTER)
    store = setting.factory.completed_checkpoint_store(JOB, 2)
    counter = setting.factory.checkpoint_id_counter(JOB)
    await store.add(1, b"1", old)
    await counter.set_count(7, old)
    await setting.lead(MASTER)
    for write in (
        lambda: store.add(2, b"2", old),
        lambda: store.replace(1, b"x", old),
        lambda: store.release(1, old),
        lambda: counter.set_count(9, old),
        lambda: counter.get_and_increment(old),
    ):
        with pytest.raises(LeadershipLostError):
            await write()
    assert await store.get_all() == [CompletedCheckpoint(1, b"1")]
    assert await counter.get() == 7


async def test_the_same_may_be_added_again_and_nothing_else_in_its_place(setting: Setting) -> None:
    term = await setting.lead(MASTER)
    store = setting.factory.completed_checkpoint_store(JOB, 2)
    await store.add(5, b"5", term)
    assert await store.add(5, b"5", term) == []
    with pytest.raises(StateHandleConflictError, match="another checkpoint 5"):
        await store.add(5, b"other", term)
    with pytest.raises(StateHandleConflictError, match="checkpoint 4 comes after checkpoint 5"):
        await store.add(4, b"4", term)
    assert await store.get_all() == [CompletedCheckpoint(5, b"5")]


async def test_replace_and_release(setting: Setting) -> None:
    term = await setting.lead(MASTER)
    store = setting.factory.completed_checkpoint_store(JOB, 3)
    await store.add(1, b"1", term)
    await store.add(2, b"2", term)
    await store.replace(1, b"one", term)
    assert await store.get_all() == [CompletedCheckpoint(1, b"one"), CompletedCheckpoint(2, b"2")]
    with pytest.raises(StateHandleNotFoundError, match="checkpoint 3"):
        await store.replace(3, b"3", term)
    assert await store.release(1, term)
    assert not await store.release(1, term)
    assert await store.get_all() == [CompletedCheckpoint(2, b"2")]


async def test_numbers_are_given_out_once_also_after_a_failover(setting: Setting) -> None:
    old = await setting.lead(MASTER)
    counter = setting.factory.checkpoint_id_counter(JOB)
    assert await counter.get() == 1
    assert [await counter.get_and_increment(old) for _ in range(3)] == [1, 2, 3]
    new = await setting.lead(MASTER)
    successor = setting.factory.checkpoint_id_counter(JOB)
    assert sorted(await asyncio.gather(*(successor.get_and_increment(new) for _ in range(5)))) == [4, 5, 6, 7, 8]
    await successor.set_count(20, new)
    assert (await successor.get_and_increment(new), await successor.get()) == (20, 21)
    with pytest.raises(ValueError, match="0 or more"):
        await successor.set_count(-1, new)


async def test_jobs_do_not_see_each_other_and_nothing_is_left_of_one_that_is_over(
    setting: Setting, tmp_path: Path
) -> None:
    term = await setting.lead(MASTER)
    other = setting.factory.completed_checkpoint_store("b" * 32, 2)
    store, counter = setting.factory.completed_checkpoint_store(JOB, 2), setting.factory.checkpoint_id_counter(JOB)
    await store.add(1, b"1", term)
    await store.add(2, b"2", term)
    await counter.get_and_increment(term)
    assert await other.get_all() == []
    dispatcher = await setting.lead(DISPATCHER)
    for _ in range(2):
        await setting.factory.clean_up(JOB, dispatcher)
    assert await setting.factory.completed_checkpoint_store(JOB, 2).get_all() == []
    assert await setting.factory.checkpoint_id_counter(JOB).get() == 1
    assert files(tmp_path) == []


async def test_at_least_one_is_retained(setting: Setting) -> None:
    with pytest.raises(ValueError, match="at least one"):
        setting.factory.completed_checkpoint_store(JOB, 0)


# ------------------------------------------------------------------ faults of Redis


async def test_lost_replies_are_resolved_by_reading_and_nothing_dangles(
    direct: RedisConnection, proxied: RedisConnection, redis_proxy: RedisProxy, tmp_path: Path
) -> None:
    term = await lead(direct)
    store = factory(proxied, tmp_path).completed_checkpoint_store(JOB, 2)
    counter = factory(proxied, tmp_path).checkpoint_id_counter(JOB)
    await counter.set_count(1, term)
    await store.add(0, b"0", term)
    await store.release(0, term)
    redis_proxy.lose = lambda request: b"EVAL" in request
    numbers = [await counter.get_and_increment(term) for _ in range(4)]
    subsumed = [await store.add(number, checkpoint(number).data, term) for number in numbers]
    await store.replace(4, b"four", term)
    assert redis_proxy.lost == 4 + 4 + 2 + 1
    assert (numbers, subsumed) == ([1, 2, 3, 4], [[], [], [checkpoint(1)], [checkpoint(2)]])
    seen = factory(direct, tmp_path).completed_checkpoint_store(JOB, 2)
    assert await seen.get_all() == [checkpoint(3), CompletedCheckpoint(4, b"four")]
    assert files(tmp_path) == ["3", "4"]


async def test_a_removal_in_doubt_is_made_good_by_the_next_add(
    direct: RedisConnection, proxied: RedisConnection, redis_proxy: RedisProxy, tmp_path: Path
) -> None:
    term = await lead(direct)
    store = factory(proxied, tmp_path).completed_checkpoint_store(JOB, 1)
    await store.add(1, checkpoint(1).data, term)
    await store.add(2, checkpoint(2).data, term)
    removals = itertools.count()
    redis_proxy.hold = lambda request: b"EVAL" in request and next(removals) > 0
    assert await store.add(3, checkpoint(3).data, term) == [], "it is stored; what it subsumes could not be removed"
    redis_proxy.hold = lambda request: False
    assert await store.add(4, checkpoint(4).data, term) == [checkpoint(2), checkpoint(3)]
    redis_proxy.held[0]()  # the removal comes after all
    assert await store.get_all() == [checkpoint(4)]
    assert files(tmp_path) == ["4"]


async def test_a_checkpoint_that_was_stored_before_the_term_ended_is_not_told_as_refused(
    direct: RedisConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = await lead(direct)
    store = factory(direct, tmp_path).completed_checkpoint_store(JOB, 1)
    await store.add(1, checkpoint(1).data, old)
    successors: list[LeaderTerm] = []
    remove = FencedWriter.hdel

    async def remove_late(
        self: FencedWriter, key: str, field: str, term: LeaderTerm, *, demand: Demand | str
    ) -> HashWrite:
        successors.append(await lead(direct))
        return await remove(self, key, field, term, demand=demand)

    with monkeypatch.context() as patch:
        patch.setattr(FencedWriter, "hdel", remove_late)
        assert await store.add(2, checkpoint(2).data, old) == [], "it is stored; the successor removes the other one"
    with pytest.raises(LeadershipLostError):
        await store.add(3, checkpoint(3).data, old)
    (new,) = successors
    successor = factory(direct, tmp_path).completed_checkpoint_store(JOB, 1)
    assert await successor.recover(new) == [checkpoint(1), checkpoint(2)]
    assert await successor.add(3, checkpoint(3).data, new) == [checkpoint(1), checkpoint(2)]


async def test_an_add_in_doubt_is_repeated_and_counted_once(
    direct: RedisConnection, proxied: RedisConnection, redis_proxy: RedisProxy, tmp_path: Path
) -> None:
    term = await lead(direct)
    store = factory(proxied, tmp_path).completed_checkpoint_store(JOB, 1)
    await store.add(1, checkpoint(1).data, term)
    redis_proxy.hold = lambda request: b"EVAL" in request
    with pytest.raises(StateWriteUnknownError, match="repeat"):
        await store.add(2, checkpoint(2).data, term)
    redis_proxy.hold = lambda request: False
    assert await store.add(2, checkpoint(2).data, term) == [checkpoint(1)]
    redis_proxy.held[0]()
    assert await store.get_all() == [checkpoint(2)]
    new = await lead(direct)
    assert await factory(direct, tmp_path).completed_checkpoint_store(JOB, 1).recover(new) == [checkpoint(2)]
    assert files(tmp_path) == ["2"], "a successor deletes the file of the write that was refused"


async def test_a_delayed_increment_gives_no_number_out_twice(
    direct: RedisConnection, proxied: RedisConnection, redis_proxy: RedisProxy, tmp_path: Path
) -> None:
    old = await lead(direct)
    counter = factory(proxied, tmp_path).checkpoint_id_counter(JOB)
    assert await counter.get_and_increment(old) == 1
    redis_proxy.hold = lambda request: b"EVAL" in request
    with pytest.raises(StateWriteUnknownError, match="repeat"):
        await counter.get_and_increment(old)
    redis_proxy.hold = lambda request: False
    assert [await counter.get_and_increment(old) for _ in range(2)] == [2, 3]
    redis_proxy.held[0]()
    # The server works off what it has received before it answers what it receives later.
    for _ in range(3):
        await direct.command("PING")
    assert await counter.get_and_increment(old) == 4


async def test_a_successors_increment_is_not_taken_for_ones_own(
    direct: RedisConnection, proxied: RedisConnection, redis_proxy: RedisProxy, tmp_path: Path
) -> None:
    old = await lead(direct)
    stale, fresh = (factory(connection, tmp_path).checkpoint_id_counter(JOB) for connection in (proxied, direct))
    await stale.set_count(5, old)
    read = asyncio.Event()

    def hold(request: bytes) -> bool:
        if b"EVAL" in request:
            read.set()
            redis_proxy.cut.clear()
            return True
        return False

    redis_proxy.hold = hold
    increment = asyncio.create_task(stale.get_and_increment(old))
    await read.wait()
    assert await fresh.get_and_increment(await lead(direct)) == 5
    redis_proxy.hold = lambda request: False
    redis_proxy.cut.set()
    with pytest.raises(StateWriteUnknownError):
        await increment
    with pytest.raises(LeadershipLostError):
        await stale.get_and_increment(old)


async def test_redis_away_is_told_and_changes_nothing(
    redis_server: RedisServer, direct: RedisConnection, tmp_path: Path
) -> None:
    term = await lead(direct)
    store, counter = (
        factory(direct, tmp_path).completed_checkpoint_store(JOB, 2),
        factory(direct, tmp_path).checkpoint_id_counter(JOB),
    )
    await store.add(1, b"1", term)
    redis_server.kill()
    with pytest.raises(RedisUnreachableError):
        await store.add(2, b"2", term)
    with pytest.raises(RedisUnreachableError):
        await counter.get_and_increment(term)
    redis_server.start()
    assert await store.add(2, b"2", term) == []
    assert await counter.get_and_increment(term) == 1


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(b"x"), Path.unlink], ids=["changed", "missing"])
async def test_a_damaged_checkpoint_is_passed_over_and_subsumed_by_the_next(
    direct: RedisConnection, tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    term = await lead(direct)
    store = factory(direct, tmp_path).completed_checkpoint_store(JOB, 3)
    await store.add(1, b"1", term)
    await store.add(2, b"2", term)
    (path,) = (tmp_path / "ha").rglob("2@*")
    damage(path)
    new = await lead(direct)
    for _ in range(2):  # its entry stays, for a JobMaster that can read it again
        successor = factory(direct, tmp_path).completed_checkpoint_store(JOB, 3)
        assert await successor.recover(new) == [CompletedCheckpoint(1, b"1"), CompletedCheckpoint(2, None)]
    with pytest.raises(StateHandleConflictError):
        await successor.add(2, b"2", new)
    assert await successor.add(3, b"3", new) == [CompletedCheckpoint(2, None)]
    assert await successor.recover(new) == [CompletedCheckpoint(1, b"1"), CompletedCheckpoint(3, b"3")]
    assert files(tmp_path) == ["1", "3"]


async def test_a_damaged_checkpoint_can_be_released(direct: RedisConnection, tmp_path: Path) -> None:
    term = await lead(direct)
    store = factory(direct, tmp_path).completed_checkpoint_store(JOB, 3)
    await store.add(1, b"1", term)
    next((tmp_path / "ha").rglob("1@*")).write_bytes(b"x")
    successor, new = factory(direct, tmp_path).completed_checkpoint_store(JOB, 3), await lead(direct)
    assert await successor.recover(new) == [CompletedCheckpoint(1, None)]
    assert await successor.release(1, new)
    assert await successor.add(2, b"2", new) == []
    assert await successor.get_all() == [CompletedCheckpoint(2, b"2")]


async def test_a_full_disk_changes_nothing(direct: RedisConnection, tmp_path: Path) -> None:
    term = await lead(direct)
    store = factory(direct, tmp_path).completed_checkpoint_store(JOB, 1)
    await store.add(1, b"1", term)
    (directory,) = (tmp_path / "ha").iterdir()
    moved = directory.rename(tmp_path / "away")
    directory.write_bytes(b"in its place, so that nothing can be written there")
    with pytest.raises(OSError, match="exists"):
        await store.add(2, b"2", term)
    directory.unlink()
    moved.rename(directory)
    assert await store.add(2, b"2", term) == [CompletedCheckpoint(1, b"1")]

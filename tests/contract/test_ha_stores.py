# ruff: noqa: F811 - fixtures are imported by name
from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from runtime.ha.connection import RedisConnection
from runtime.ha.errors import (
    JobAlreadyDoneError,
    LeadershipLostError,
    RedisUnreachableError,
    StateCorruptedError,
    StateHandleConflictError,
    StateHandleNotFoundError,
    StateWriteUnknownError,
)
from runtime.ha.fenced import Demand, FencedWriter, HashWrite
from runtime.ha.keys import ClusterKeys
from runtime.ha.latch import RedisLeaderLatch
from runtime.ha.running_jobs import JobEntry, JobSchedulingStatus, RunningJobsRegistry
from runtime.ha.state_files import StateFiles
from runtime.ha.state_handles import ExecutionStore, StateHandleStore
from runtime.protocol.leader import DISPATCHER, LeaderTerm
from tests.fakes.ha_keeper import Keeper, keeper  # noqa: F401
from tests.fakes.redis_server import RedisProxy, RedisServer, redis_proxy, redis_server  # noqa: F401
from tests.waiting import PATIENCE_S

KEYS = ClusterKeys("c1")


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


async def lead(connection: RedisConnection, component: str = DISPATCHER, session: str = "s") -> LeaderTerm:
    reply = await RedisLeaderLatch(connection, KEYS, component, 60.0).acquire(session, 0)
    assert reply.granted
    return LeaderTerm(component, reply.epoch, session)


async def lead_at(keeper: Keeper, session: str = "s") -> LeaderTerm:
    reply = await keeper.latch(DISPATCHER, 60.0).acquire(session, 0)
    assert reply.granted
    return LeaderTerm(DISPATCHER, reply.epoch, session)


async def succeed_at(keeper: Keeper, term: LeaderTerm) -> LeaderTerm:
    await keeper.latch(DISPATCHER, 60.0).release(term)
    return await lead_at(keeper, term.session + "+")


def store_at(keeper: Keeper, tmp_path: Path, memory_threshold: int = 0) -> StateHandleStore:
    files = StateFiles(tmp_path / "files")
    return StateHandleStore(keeper.maps(), KEYS, "jobgraphs", files, retry=0.02, memory_threshold=memory_threshold)


async def succeed(connection: RedisConnection, term: LeaderTerm) -> LeaderTerm:
    """End ``term`` and begin the next."""
    await RedisLeaderLatch(connection, KEYS, term.component, 60.0).release(term)
    return await lead(connection, term.component, term.session + "+")


def store(connection: RedisConnection, tmp_path: Path, memory_threshold: int = 0) -> StateHandleStore:
    return StateHandleStore(
        FencedWriter(connection, KEYS),
        KEYS,
        "jobgraphs",
        StateFiles(tmp_path / "files"),
        retry=0.02,
        memory_threshold=memory_threshold,
    )


def files(tmp_path: Path) -> list[str]:
    directory = tmp_path / "files"
    return sorted(entry.name for entry in directory.iterdir()) if directory.exists() else []


async def check_nothing_dangles(connection: RedisConnection, tmp_path: Path) -> None:
    for state in (await store(connection, tmp_path).get_all()).values():
        assert isinstance(state, bytes)


async def test_put_get_replace_remove(keeper: Keeper, tmp_path: Path) -> None:
    states, term = store_at(keeper, tmp_path), await lead_at(keeper)
    first = await states.put("a", b"1" * 100_000, term)
    assert await states.get("a") == b"1" * 100_000
    assert await states.put("a", b"1" * 100_000, term) == first, "the same again changes nothing"
    second = await states.put("a", b"2", term)
    assert files(tmp_path) == [second.path], "the replaced file is gone"
    await states.put("b", b"3", term)
    assert sorted(await states.names()) == ["a", "b"]
    assert await states.get_all() == {"a": b"2", "b": b"3"}
    assert await states.remove("a", term)
    assert not await states.remove("a", term)
    with pytest.raises(StateHandleNotFoundError, match="jobgraphs/a"):
        await states.get("a")
    assert await states.remove("b", term)
    assert files(tmp_path) == []


async def test_a_stale_leader_changes_and_deletes_nothing(keeper: Keeper, tmp_path: Path) -> None:
    states, old = store_at(keeper, tmp_path), await lead_at(keeper)
    await states.put("a", b"1", old)
    new = await succeed_at(keeper, old)
    before = files(tmp_path)
    with pytest.raises(LeadershipLostError):
        await states.put("a", b"1", old)  # it is stored already, but not by who leads
    with pytest.raises(LeadershipLostError):
        await states.put("a", b"2", old)
    with pytest.raises(LeadershipLostError):
        await states.put("b", b"2", old)
    with pytest.raises(LeadershipLostError):
        await states.remove("a", old)
    assert files(tmp_path) == before, "its own new file is discarded, the live one stays"
    assert await states.get("a") == b"1"
    assert await states.remove("a", new)


async def test_a_stale_leader_that_removes_what_is_absent_deletes_no_file_that_gets_its_handle_later(
    keeper: Keeper, tmp_path: Path
) -> None:
    """A state's file is written before its handle."""
    states, old = store_at(keeper, tmp_path), await lead_at(keeper)
    new = await succeed_at(keeper, old)
    executions = ExecutionStore(states)
    await states.put("a", b"1", new)
    (text,) = (await states._maps.get_all(states._key)).values()
    await states._maps.hdel(states._key, "a", new, demand=text)  # the moment before the handle was written
    with pytest.raises(LeadershipLostError):
        await executions.remove("a", old)
    await states._maps.hset(states._key, "a", text, new, demand=Demand.ABSENT)
    assert await states.get("a") == b"1"
    assert not await states.remove("b", new)


async def test_the_lost_reply_of_a_put_is_found_to_have_been_written(
    direct: RedisConnection, proxied: RedisConnection, redis_proxy: RedisProxy, tmp_path: Path
) -> None:
    states, term = store(proxied, tmp_path), await lead(direct)
    await states.put("warm", b"0", term)
    await states.remove("warm", term)
    redis_proxy.lose = lambda request: b"EVAL" in request
    handle = await states.put("a", b"1", term)
    assert redis_proxy.lost == 1
    replaced = await states.put("a", b"2", term)
    assert handle.path not in files(tmp_path)
    assert replaced.path in files(tmp_path)
    assert await states.get("a") == b"2"
    assert await states.remove("a", term), "the lost reply of a removal likewise"
    assert redis_proxy.lost == 3
    assert files(tmp_path) == []
    await check_nothing_dangles(direct, tmp_path)


async def test_a_delayed_write_that_arrives_after_all_does_not_dangle(
    direct: RedisConnection, proxied: RedisConnection, redis_proxy: RedisProxy, tmp_path: Path
) -> None:
    states, term = store(proxied, tmp_path), await lead(direct)
    await states.put("warm", b"0", term)
    redis_proxy.hold = lambda request: b"EVAL" in request
    with pytest.raises(StateWriteUnknownError, match="repeat"):
        await states.put("a", b"1", term)
    assert len(files(tmp_path)) == 2, "the file is kept: the write may still arrive"
    redis_proxy.hold = lambda request: False
    assert len(redis_proxy.held) == 1
    redis_proxy.held[0]()
    seen: list[str] = []

    async def arrived() -> None:
        while "a" not in seen:
            seen[:] = await states.names()

    await asyncio.wait_for(arrived(), PATIENCE_S)
    assert await states.get("a") == b"1"
    await states.put("a", b"1", term)
    assert len(files(tmp_path)) == 2


async def test_a_delayed_write_is_refused_after_a_repetition_or_in_another_term(
    direct: RedisConnection, proxied: RedisConnection, redis_proxy: RedisProxy, tmp_path: Path
) -> None:
    states, term = store(proxied, tmp_path), await lead(direct)
    await states.put("warm", b"0", term)
    redis_proxy.hold = lambda request: b"EVAL" in request
    for name in ("a", "b"):
        with pytest.raises(StateWriteUnknownError):
            await states.put(name, b"1", term)
    redis_proxy.hold = lambda request: False
    handle = await states.put("a", b"1", term)
    new = await succeed(direct, term)
    assert await states.sweep(new) == 2, "what nobody owns is deleted in the next term"
    for let_through in redis_proxy.held:
        let_through()
    # The server works off what it has received before it answers what it receives later.
    for _ in range(3):
        await direct.command("PING")
    assert sorted(await states.names()) == ["a", "warm"]
    assert handle.path in files(tmp_path)
    await check_nothing_dangles(direct, tmp_path)


async def test_a_delayed_write_does_not_undo_a_later_one_of_its_own_term(
    direct: RedisConnection, proxied: RedisConnection, redis_proxy: RedisProxy, tmp_path: Path
) -> None:
    states, term = store(proxied, tmp_path), await lead(direct)
    await states.put("warm", b"0", term)
    redis_proxy.hold = lambda request: b"EVAL" in request
    with pytest.raises(StateWriteUnknownError):
        await states.put("a", b"1", term)
    redis_proxy.hold = lambda request: False
    await states.put("a", b"2", term)
    (let_through,) = redis_proxy.held
    let_through()
    # The server works off what it has received before it answers what it receives later.
    for _ in range(3):
        await direct.command("PING")
    assert await states.get("a") == b"2"


async def test_redis_gone_in_the_middle_is_told_as_unknown_and_can_be_repeated(
    redis_server: RedisServer,
    direct: RedisConnection,
    proxied: RedisConnection,
    redis_proxy: RedisProxy,
    tmp_path: Path,
) -> None:
    states, term = store(proxied, tmp_path), await lead(direct)
    await states.put("warm", b"0", term)

    def pause_at_write(request: bytes) -> bool:
        if b"EVAL" in request:
            redis_server.pause()
        return False

    redis_proxy.lose = pause_at_write
    proxied.timeout = 1.0  # nothing else tells that no reply comes
    with pytest.raises(StateWriteUnknownError, match="not known"):
        await states.put("a", b"1", term)
    with pytest.raises(RedisUnreachableError):
        await states.get("a")
    redis_server.resume()
    proxied.timeout = PATIENCE_S
    redis_proxy.lose = lambda request: False
    for _ in range(2):
        try:
            await states.put("a", b"1", term)
            break
        except StateHandleConflictError:
            continue  # the first write arrived between the look and the second write
    assert await states.get("a") == b"1"
    await check_nothing_dangles(direct, tmp_path)


async def test_damaged_and_missing_files_are_told_and_do_not_stop_the_others(
    direct: RedisConnection, tmp_path: Path
) -> None:
    states, term = store(direct, tmp_path), await lead(direct)
    damaged, missing = await states.put("a", b"1", term), await states.put("b", b"2", term)
    await states.put("c", b"3", term)
    (tmp_path / "files" / damaged.path).write_bytes(b"x")
    (tmp_path / "files" / missing.path).unlink()
    await direct.command("HSET", KEYS.handles("jobgraphs"), "d", "nonsense")
    with pytest.raises(StateCorruptedError, match="not what was stored"):
        await states.get("a")
    with pytest.raises(StateCorruptedError, match="missing"):
        await states.get("b")
    everything = await states.get_all()
    assert everything.pop("c") == b"3"
    assert sorted(everything) == ["a", "b", "d"]
    assert all(isinstance(each, StateCorruptedError) for each in everything.values())
    for name in everything:
        assert await states.remove(name, term)
    assert await states.names() == ["c"]


async def test_beside_a_handle_that_cannot_be_read_no_file_is_swept(direct: RedisConnection, tmp_path: Path) -> None:
    """The file may be its."""
    states, term = store(direct, tmp_path), await lead(direct)
    handle = await states.put("a", b"1", term)
    (text,) = (await states._maps.get_all(KEYS.handles("jobgraphs"))).values()
    await direct.command("HSET", KEYS.handles("jobgraphs"), "a", "nonsense")
    new = await succeed(direct, term)
    assert await states.sweep(new) == 0
    assert files(tmp_path) == [handle.path]
    await direct.command("HSET", KEYS.handles("jobgraphs"), "a", text)
    assert await states.get("a") == b"1"


async def test_readers_always_find_a_whole_state_while_it_is_replaced(keeper: Keeper, tmp_path: Path) -> None:
    states, term = store_at(keeper, tmp_path), await lead_at(keeper)
    await states.put("a", b"0" * 5000, term)
    writing = True

    async def write() -> None:
        nonlocal writing
        for number in range(1, 30):
            await states.put("a", str(number % 10).encode() * 5000, term)
        writing = False

    async def read() -> int:
        for count in itertools.count():
            if not writing:
                return count
            assert len(set(await states.get("a"))) == 1
        raise AssertionError

    _, *counts = await asyncio.gather(write(), read(), read())
    assert all(counts)
    assert len(files(tmp_path)) == 1


async def test_two_writers_of_one_term_cannot_overwrite_each_other_unseen(keeper: Keeper, tmp_path: Path) -> None:
    states, term = store_at(keeper, tmp_path), await lead_at(keeper)
    outcomes = await asyncio.gather(
        *(states.put("a", str(number).encode(), term) for number in range(6)), return_exceptions=True
    )
    for outcome in outcomes:
        assert not isinstance(outcome, BaseException) or isinstance(outcome, StateHandleConflictError)
    assert len(files(tmp_path)) == 1
    for state in (await states.get_all()).values():
        assert isinstance(state, bytes)


async def test_a_write_of_a_term_that_is_over_is_refused_with_the_leaders_epoch(direct: RedisConnection) -> None:
    writer, old = FencedWriter(direct, KEYS), await lead(direct)
    key = KEYS.prefix + "map"
    assert await writer.hset(key, "a", "1", old, demand=Demand.ANY) == HashWrite(True)
    new = await succeed(direct, old)
    with pytest.raises(LeadershipLostError, match=f"epoch {new.epoch} leads now"):
        await writer.hset(key, "a", "2", old, demand=Demand.ANY)
    await RedisLeaderLatch(direct, KEYS, DISPATCHER, 60.0).release(new)
    with pytest.raises(LeadershipLostError, match="no leader is known"):
        await writer.hset(key, "a", "3", new, demand=Demand.ANY)
    assert await writer.get(key, "a") == "1"


async def test_the_registry_of_jobs(keeper: Keeper) -> None:
    jobs, term = RunningJobsRegistry(keeper.maps(), KEYS), await lead_at(keeper)
    assert await jobs.entry("j") is None
    await jobs.set_pending("j", term)
    assert await jobs.set_running("j", term), "it has not run before"
    assert not await jobs.set_running("j", term)
    assert not await jobs.set_running("unknown", term), "who has forgotten it cannot know"
    await jobs.forget("unknown", term)
    await jobs.set_pending("j", term)
    assert await jobs.entry("j") == JobEntry(JobSchedulingStatus.RUNNING)
    await jobs.set_done("j", {"state": "FINISHED"}, term)
    await jobs.set_done("j", {"state": "FINISHED"}, term)
    new = await succeed_at(keeper, term)
    for run in (jobs.set_running("j", new), jobs.set_pending("j", new), jobs.set_done("j", {"state": "FAILED"}, new)):
        with pytest.raises(JobAlreadyDoneError):
            await run
    with pytest.raises(LeadershipLostError):
        await jobs.mark_clean("j", term)
    assert await jobs.dirty_results() == {"j": {"state": "FINISHED"}}
    await jobs.mark_clean("j", new)
    assert await jobs.dirty_results() == {}
    assert (await jobs.entries())["j"].status is JobSchedulingStatus.DONE
    await jobs.forget("j", new)
    assert await jobs.entries() == {}


async def test_lost_replies_of_the_registry_are_resolved_by_reading(
    direct: RedisConnection, proxied: RedisConnection, redis_proxy: RedisProxy
) -> None:
    jobs, term = RunningJobsRegistry(FencedWriter(proxied, KEYS), KEYS), await lead(direct)
    await jobs.set_pending("warm", term)
    counter = itertools.count()
    redis_proxy.lose = lambda request: b"EVAL" in request and next(counter) % 2 == 0
    await jobs.set_pending("j", term)
    assert not await jobs.set_running("j", term), "whether it had run is not known for certain"
    await jobs.set_done("j", {"state": "FINISHED"}, term)
    await jobs.mark_clean("j", term)
    assert redis_proxy.lost == 4
    assert await jobs.entry("j") == JobEntry(JobSchedulingStatus.DONE, {"state": "FINISHED"}, dirty=False)


async def test_many_entries_are_read_with_few_connections(direct: RedisConnection, tmp_path: Path) -> None:
    states, term = store(direct, tmp_path), await lead(direct)
    for number in range(200):
        await states.put(f"job-{number}", b"graph %d" % number, term)
    everything = await states.get_all()
    assert everything == {f"job-{number}": b"graph %d" % number for number in range(200)}
    assert len(str(await direct.command("CLIENT", "LIST")).splitlines()) <= 8

# ruff: noqa: F811 - fixtures are imported by name
"""States that are in their handles, and in no file: what holds of them beside what holds of files."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from runtime.ha.connection import RedisConnection
from runtime.ha.errors import LeadershipLostError, StateCorruptedError, StateHandleConflictError
from runtime.ha.fenced import Demand
from tests.contract.test_ha_stores import (
    KEYS,
    direct,  # noqa: F401
    files,
    lead,
    lead_at,
    proxied,  # noqa: F401
    store,
    store_at,
    succeed_at,
)
from tests.fakes.ha_keeper import Keeper, keeper  # noqa: F401
from tests.fakes.redis_server import RedisProxy, redis_proxy, redis_server  # noqa: F401


async def test_a_small_state_is_in_its_handle(keeper: Keeper, tmp_path: Path) -> None:
    states, term = store_at(keeper, tmp_path, memory_threshold=8), await lead_at(keeper)
    first = await states.put("a", b"\x00\xff 1", term)
    assert await states.put("a", b"\x00\xff 1", term) == first, "the same again changes nothing"
    assert await states.put("empty", b"", term) != first
    assert files(tmp_path) == []
    assert await states.get_all() == {"a": b"\x00\xff 1", "empty": b""}
    large = await states.put("a", b"123456789", term)
    assert files(tmp_path) == [large.path]
    elsewhere = store_at(keeper, tmp_path)
    assert await elsewhere.get_all() == {"a": b"123456789", "empty": b""}, "whatever a reader's own threshold"
    await states.put("a", b"12345678", term)
    assert files(tmp_path) == [], "the replaced file is gone"
    again = await states.put("a", b"\x00\xff 1", term)
    assert again != first, "a handle is never written twice"
    new = await succeed_at(keeper, term)
    for refused in (states.put("a", b"2", term), states.put("b", b"2", term), states.remove("a", term)):
        with pytest.raises(LeadershipLostError):
            await refused
    assert await states.sweep(new) == await states.delete_orphans("a") == 0
    assert await states.get("a") == b"\x00\xff 1"
    assert await states.remove("a", new)
    assert await states.names() == ["empty"]


async def test_two_writers_of_small_states_cannot_overwrite_each_other_unseen(keeper: Keeper, tmp_path: Path) -> None:
    states, term = store_at(keeper, tmp_path, memory_threshold=8), await lead_at(keeper)
    outcomes = await asyncio.gather(
        *(states.put("a", str(number).encode(), term) for number in range(6)), return_exceptions=True
    )
    written = [number for number, outcome in enumerate(outcomes) if not isinstance(outcome, BaseException)]
    assert {type(outcome) for outcome in outcomes if isinstance(outcome, BaseException)} <= {StateHandleConflictError}
    assert int(await states.get("a")) in written


async def test_the_lost_reply_of_a_small_put_is_found_to_have_been_written(
    direct: RedisConnection, proxied: RedisConnection, redis_proxy: RedisProxy, tmp_path: Path
) -> None:
    states, term = store(proxied, tmp_path, memory_threshold=8), await lead(direct)
    await states.put("warm", b"0", term)
    await states.remove("warm", term)
    redis_proxy.lose = lambda request: b"EVAL" in request
    await states.put("a", b"1", term)
    await states.put("a", b"2", term)
    assert await states.get("a") == b"2"
    assert await states.remove("a", term), "the lost reply of a removal likewise"
    assert redis_proxy.lost == 3
    assert await states.names() == files(tmp_path) == []


async def test_a_damaged_small_state_is_told_and_can_be_replaced(direct: RedisConnection, tmp_path: Path) -> None:
    states, term = store(direct, tmp_path, memory_threshold=8), await lead(direct)
    key = KEYS.handles("jobgraphs")
    for name, content in (("a", "MQ=="), ("b", "~"), ("c", "MQ=")):
        handle = await states.put(name, b"2", term)
        await direct.command("HSET", key, name, replace(handle, content=content).to_json())
    await states.put("d", b"3", term)
    everything = await states.get_all()
    assert everything.pop("d") == b"3"
    assert sorted(everything) == ["a", "b", "c"]
    for error in everything.values():
        assert isinstance(error, StateCorruptedError)
        assert "is not what was stored" in str(error)
    await states.put("a", b"4", term)
    assert await states.get("a") == b"4"
    assert await states.remove("b", term)


async def test_a_small_state_is_put_over_whatever_is_there(keeper: Keeper, tmp_path: Path) -> None:
    maps, term = keeper.maps(), await lead_at(keeper)
    one, other = (store_at(keeper, tmp_path, memory_threshold=8) for _ in range(2))
    await one.put("a", b"1", term)
    await other.put("a", b"2", term)  # written by none that it knows of
    await one.put("a", b"3", term)  # no longer what it wrote last
    assert await one.get("a") == b"3"
    await other.remove("a", term)
    await one.put("a", b"4", term)
    assert await other.get("a") == b"4"
    await maps.hset(KEYS.handles("jobgraphs"), "a", "no handle", term, demand=Demand.ANY)
    await one.put("a", b"5", term)
    assert await other.get("a") == b"5"
    await store_at(keeper, tmp_path).put("a", b"in a file", term)
    assert len(files(tmp_path)) == 1
    await one.put("a", b"6", term)
    assert files(tmp_path) == []

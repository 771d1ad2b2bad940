"""The store of users on a real Redis and in a master without one: fenced, and kept beyond the end of the cluster."""

# ruff: noqa: F811 - fixtures are imported by name
from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from runtime.ha.errors import LeadershipLostError, StateCorruptedError
from runtime.ha.fenced import Demand
from runtime.ha.keys import ClusterKeys
from runtime.ha.standalone_endpoint import HaMemory
from runtime.ha.user_store import UserFile, UserStore
from runtime.protocol.leader import DISPATCHER, LeaderTerm
from runtime.users.identities import (
    RANDOM_SIZE,
    ApiToken,
    Change,
    Identities,
    IdentityError,
    Role,
    TokenRefusedError,
    User,
    make_token,
)
from tests.fakes.ha_keeper import Keeper, MasterKeeper, keeper  # noqa: F401

KEYS = ClusterKeys("c1")
ADA = User("ada", Role.USER, 1)
TEXT, TOKEN = make_token("ada", "laptop", 1, None, bytes(RANDOM_SIZE))


async def lead(keeper: Keeper, session: str = "s") -> LeaderTerm:
    reply = await keeper.latch(DISPATCHER, 60.0).acquire(session, 0)
    assert reply.granted
    return LeaderTerm(DISPATCHER, reply.epoch, session)


async def with_ada(keeper: Keeper, term: LeaderTerm) -> UserStore:
    store = UserStore(keeper.maps(), KEYS)
    assert len(await store.change(lambda known: known.add_user(ADA), term)) == 1
    assert len(await store.change(lambda known: known.add_token(TOKEN), term)) == 1
    return store


async def identified(store: UserStore) -> str:
    return (await store.read()).authenticate(TEXT.encode(), 2).name


async def test_what_was_added_is_found_by_others_and_goes_when_it_is_removed(keeper: Keeper) -> None:
    term = await lead(keeper)
    store = await with_ada(keeper, term)
    other = UserStore(keeper.maps(), KEYS)
    assert await identified(other) == "ada"
    assert await store.change(lambda known: known.add_token(TOKEN), term) == [], "the same again"
    await store.change(lambda known: known.revoke_token(TOKEN.token_id), term)
    with pytest.raises(TokenRefusedError):
        await identified(other)
    await store.change(lambda known: known.add_token(TOKEN), term)
    assert len(await store.change(lambda known: known.remove_user("ada"), term)) == 2
    assert (await other.read()).users == []
    with pytest.raises(IdentityError):
        await store.change(lambda known: known.add_token(TOKEN), term)


async def test_a_former_leader_changes_nothing(keeper: Keeper) -> None:
    term = await lead(keeper)
    store = await with_ada(keeper, term)
    await keeper.latch(DISPATCHER, 60.0).release(term)
    successor = await lead(keeper, "t")
    for change in (
        lambda known: known.add_user(User("eve", Role.ADMIN)),
        lambda known: known.add_user(replace(ADA, role=Role.ADMIN)),
        lambda known: known.revoke_token(TOKEN.token_id),
        lambda known: known.remove_user("ada"),
    ):
        with pytest.raises(LeadershipLostError):
            await store.change(change, term)
    assert (await store.read()).users == [ADA]
    assert await identified(store) == "ada"
    await store.change(lambda known: known.remove_user("ada"), successor)


async def test_a_change_is_made_of_the_present_state(keeper: Keeper) -> None:
    """Another write comes between the reading and the writing: the change is decided anew."""
    term = await lead(keeper)
    store = await with_ada(keeper, term)
    seen: list[Identities] = []
    stale = await store.read()

    def promote(known: Identities) -> list[Change]:
        seen.append(known)
        return (stale if len(seen) == 1 else known).add_user(replace(ADA, role=Role.OPERATOR))

    await store.change(lambda known: known.add_user(replace(ADA, role=Role.VIEWER)), term)
    await store.change(promote, term)
    assert len(seen) == 2
    assert [user.role for user in (await store.read()).users] == [Role.OPERATOR]


async def test_users_outlive_the_end_of_the_cluster_and_the_keeper(keeper: Keeper) -> None:
    store = await with_ada(keeper, await lead(keeper))
    services = keeper.open()
    await services.running_jobs_registry().set_pending("a", await lead(keeper))
    await services.cleanup()
    assert await services.running_jobs_registry().entries() == {}
    assert await identified(store) == "ada"
    assert await identified(services.user_store()) == "ada"
    await keeper.restart(loses=False)
    assert await identified(UserStore(keeper.maps(), KEYS)) == "ada"


async def test_the_file_is_private_and_holds_no_token(tmp_path: Path) -> None:
    keeper = MasterKeeper(tmp_path)
    keeper.start()
    try:
        await with_ada(keeper, await lead(keeper))
        file = tmp_path / "users.json"
        assert file.stat().st_mode & 0o777 == 0o600
        assert TEXT.rpartition("_")[2] not in file.read_text()
        assert set(UserFile(file).read()) == {"user:ada", f"token:{TOKEN.token_id}"}
    finally:
        await keeper.close()
        keeper.stop()


def test_a_write_that_does_not_reach_the_disk_has_not_happened() -> None:
    def full(key: str, content: dict[str, str]) -> None:
        raise OSError(28, "No space left on device")

    memory = HaMemory(durable={KEYS.users: {"user:ada": "x"}}, keep=full)
    reply = memory.acquire(DISPATCHER, "s", 60.0, 0)
    term = LeaderTerm(DISPATCHER, reply.epoch, "s")
    for write in (
        lambda: memory.hset(KEYS.users, "user:bob", "y", term, Demand.ANY),
        lambda: memory.hdel(KEYS.users, "user:ada", term, Demand.ANY),
    ):
        with pytest.raises(OSError, match="No space"):
            write()
    assert memory.get_all(KEYS.users) == {"user:ada": "x"}
    memory.hset(KEYS.running_jobs, "j", "1", term, Demand.ANY)
    memory.clear()
    assert (memory.get_all(KEYS.users), memory.get_all(KEYS.running_jobs)) == ({"user:ada": "x"}, {})


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"entries": []}', '{"entries": {"a": 1}}', "null"])
def test_a_damaged_file_is_not_taken_for_no_users(tmp_path: Path, text: str) -> None:
    """The next change would replace it."""
    file = tmp_path / "users.json"
    file.write_text(text)
    with pytest.raises(StateCorruptedError, match=r"users\.json"):
        UserFile(file).read()
    assert UserFile(tmp_path / "none").read() == {}


def test_a_token_that_was_stored_is_read_as_it_was() -> None:
    assert ApiToken.from_json(TOKEN.to_json()) == TOKEN

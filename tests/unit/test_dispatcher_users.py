"""The Dispatcher changes users and tokens under its own term, and says what it could not do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from actors.errors import FencingError
from runtime.dispatcher.endpoint import Dispatcher
from runtime.ha.errors import HaUnreachableError, LeadershipLostError
from runtime.ha.fenced import Demand, HashWrite
from runtime.ha.keys import ClusterKeys
from runtime.ha.user_store import UserStore
from runtime.protocol.errors import IdentitiesUnreachableError, IdentityRejectedError
from runtime.protocol.leader import DISPATCHER, LeaderTerm
from runtime.rest.errors import status_of
from runtime.users.identities import RANDOM_SIZE, Role, User, make_token
from tests.dispatcher_arguments import dispatcher_arguments

TERM = LeaderTerm(DISPATCHER, 7, "s")
TEXT, TOKEN = make_token("ada", "laptop", 1, None, bytes(RANDOM_SIZE))


class Maps:
    """`FencedMaps` of one map; only `TERM` writes."""

    def __init__(self) -> None:
        self.content: dict[str, str] = {}
        self.failure: Exception | None = None

    async def get_all(self, key: str) -> dict[str, str]:
        found = dict(self.content)
        await asyncio.sleep(0)  # a reply takes time: other calls begin meanwhile
        if self.failure is not None:
            raise self.failure
        return found

    async def hset(self, key: str, field: str, value: str, term: LeaderTerm, *, demand: Demand | str) -> HashWrite:
        self._check(field, term, demand)
        self.content[field] = value
        return HashWrite(True)

    async def hdel(self, key: str, field: str, term: LeaderTerm, *, demand: Demand | str) -> HashWrite:
        self._check(field, term, demand)
        del self.content[field]
        return HashWrite(True)

    def _check(self, field: str, term: LeaderTerm, demand: Demand | str) -> None:
        if term != TERM:
            raise LeadershipLostError("another leads")
        assert self.content.get(field) == (None if demand is Demand.ABSENT else demand)


@pytest.fixture
async def maps() -> Maps:
    return Maps()


@pytest.fixture
async def dispatcher(maps: Maps, tmp_path: Path) -> AsyncIterator[Dispatcher]:
    given = dispatcher_arguments(tmp_path)
    given["ha"].user_store.return_value = UserStore(maps, ClusterKeys("c"))  # type: ignore[arg-type]
    made = Dispatcher(**given)
    made._term = TERM
    yield made
    await given["service"].close()


async def test_users_and_tokens_come_and_go_and_a_repeated_call_changes_nothing(
    dispatcher: Dispatcher, maps: Maps
) -> None:
    assert [await dispatcher.add_user(User("ada", Role.USER)) for _ in range(2)] == [True, False]
    (ada,) = await dispatcher.list_users()
    assert (ada.name, ada.role, ada.created_ms > 0) == ("ada", Role.USER, True)
    assert [await dispatcher.add_token(TOKEN) for _ in range(2)] == [True, False]
    assert await dispatcher.add_user(User("bob", Role.VIEWER))
    assert [len(await dispatcher.list_tokens(user)) for user in ("", "ada", "bob")] == [1, 1, 0]
    assert (await dispatcher.list_tokens("ada"))[0].digest == ""
    assert await dispatcher.add_user(User("ada", Role.ADMIN))
    assert (await dispatcher.list_users())[0].role is Role.ADMIN
    assert [await dispatcher.revoke_token(TOKEN.token_id) for _ in range(2)] == [True, False]
    await dispatcher.add_token(TOKEN)
    assert [await dispatcher.remove_user("ada") for _ in range(2)] == [True, False]
    assert list(maps.content) == ["user:bob"]


@pytest.mark.parametrize("first", ["the token", "the removal"])
async def test_no_token_comes_while_its_user_is_removed(dispatcher: Dispatcher, maps: Maps, first: str) -> None:
    """The user is gone by then, and a later user of the name would have the token."""
    await dispatcher.add_user(User("ada", Role.ADMIN))
    calls = [dispatcher.add_token(TOKEN), dispatcher.remove_user("ada")]
    token, removed = await asyncio.gather(*calls[:: 1 if first == "the token" else -1], return_exceptions=True)
    assert maps.content == {}
    assert removed is True or isinstance(removed, IdentityRejectedError)
    assert token is True or isinstance(token, IdentityRejectedError)


async def test_what_cannot_be_done_is_said_with_its_own_type(dispatcher: Dispatcher, maps: Maps) -> None:
    with pytest.raises(IdentityRejectedError, match="no user ada"):
        await dispatcher.add_token(TOKEN)
    with pytest.raises(IdentityRejectedError, match="not a valid user name"):
        await dispatcher.add_user(User("no name", Role.USER))
    maps.failure = HaUnreachableError("Redis cannot be reached", "gone")
    for ask in (dispatcher.list_users(), dispatcher.list_tokens(""), dispatcher.remove_user("ada")):
        with pytest.raises(IdentitiesUnreachableError, match="repeat the command") as told:
            await ask
        assert status_of(told.value) == 503


async def test_a_former_leader_changes_nothing(dispatcher: Dispatcher, maps: Maps) -> None:
    dispatcher._term = LeaderTerm(DISPATCHER, 6, "former")
    with pytest.raises(LeadershipLostError):
        await dispatcher.add_user(User("eve", Role.ADMIN))
    dispatcher._term = None
    with pytest.raises(FencingError):
        await dispatcher.add_user(User("eve", Role.ADMIN))
    assert maps.content == {}


async def test_an_entry_that_cannot_be_read_is_logged_without_its_content(
    dispatcher: Dispatcher, maps: Maps, caplog: pytest.LogCaptureFixture
) -> None:
    maps.content = {"user:eve": '{"hidden": 1}'}
    assert await dispatcher.list_users() == []
    assert "'user:eve'" in caplog.text
    assert "hidden" not in caplog.text


async def test_nothing_of_a_token_is_logged(dispatcher: Dispatcher, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    await dispatcher.add_user(User("ada", Role.USER))
    await dispatcher.add_token(TOKEN)
    assert TOKEN.token_id in caplog.text
    assert TOKEN.digest not in caplog.text
    assert TEXT.rpartition("_")[2] not in caplog.text

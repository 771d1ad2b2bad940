from __future__ import annotations

import collections
import enum
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from actors.errors import SerializationError
from actors.routing import (
    BroadcastAll,
    ConsistentHash,
    Group,
    Pool,
    Random,
    RoundRobin,
    RouterConfig,
    RoutingLogic,
    ScatterGatherFirstCompleted,
    SmallestMailbox,
    key_bytes,
)
from actors.serialization import Serializer
from actors.supervision import Directive, OneForOneStrategy

SERIALIZER = Serializer(lambda text: None)  # type: ignore[arg-type,return-value]
ABC = ("a", "b", "c")


def itself(message: Any) -> Any:
    return message


def unknown(routee: Any) -> int | None:
    return None


def chosen(logic: RoutingLogic, count: int, routees: tuple[Any, ...] = ABC) -> list[Any]:
    selector = logic.create(unknown)
    return [routee for number in range(count) for routee in selector.select(number, routees)]


LOGICS: list[RoutingLogic] = [
    RoundRobin(),
    Random(),
    Random(seed=3),
    SmallestMailbox(),
    BroadcastAll(),
    ScatterGatherFirstCompleted(1.5),
    ConsistentHash(itself),
    ConsistentHash("tests.unit.test_actor_routing:itself", virtual_nodes=3),
]


@pytest.mark.parametrize("logic", LOGICS, ids=repr)
def test_no_routees_and_one(logic: RoutingLogic) -> None:
    selector = logic.create(unknown)
    assert list(selector.select("m", ())) == []
    assert list(selector.select("m", ("only",))) == ["only"]
    assert list(selector.select("m", ())) == []


@pytest.mark.parametrize("logic", LOGICS, ids=repr)
def test_logics_travel(logic: RoutingLogic) -> None:
    for config in (
        Pool(3, logic, OneForOneStrategy({ValueError: Directive.STOP})),
        Pool(1, logic),
        Group(["/user/a", "b", "akka.tcp://s@h:1/user/c"], logic),
    ):
        arrived: RouterConfig = SERIALIZER.loads(SERIALIZER.dumps(config))
        assert arrived == config
        assert arrived.logic == logic


def test_round_robin() -> None:
    assert chosen(RoundRobin(), 7) == list("abcabca")


@given(st.lists(st.integers(1, 6), min_size=1, max_size=30))
def test_round_robin_over_changing_routees(sizes: list[int]) -> None:
    selector = RoundRobin().create(unknown)
    for size in sizes:
        routees = tuple(range(size))
        taken = [selector.select("m", routees)[0] for _ in range(size)]
        assert sorted(taken) == list(routees)


def test_random_is_even_and_repeatable() -> None:
    taken = chosen(Random(seed=5), 3000)
    assert taken == chosen(Random(seed=5), 3000)
    assert taken != chosen(Random(seed=6), 3000)
    assert all(900 < count < 1100 for count in collections.Counter(taken).values())


def test_broadcast_and_scatter_gather_take_all() -> None:
    assert chosen(BroadcastAll(), 2) == list("abcabc")
    assert chosen(ScatterGatherFirstCompleted(1), 1) == list("abc")


# ---------------------------------------------------------------------------------------------- smallest mailbox


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({"a": 3, "b": 1, "c": 2}, ["b"] * 3),
        ({"a": 0, "b": 1, "c": 0}, ["a", "c", "a"]),
        ({"a": None, "b": 9, "c": None}, ["b"] * 3),
        ({"a": None, "b": None, "c": None}, ["a", "b", "c"]),
        ({"a": 2, "b": 2, "c": 2}, ["a", "b", "c"]),
    ],
)
def test_smallest_mailbox(sizes: dict[str, int | None], expected: list[str]) -> None:
    selector = SmallestMailbox().create(sizes.__getitem__)
    assert [selector.select("m", ABC)[0] for _ in range(3)] == expected


@given(st.lists(st.integers(0, 5) | st.none(), min_size=1, max_size=8), st.integers(1, 20))
def test_smallest_mailbox_is_smallest(sizes: list[int | None], count: int) -> None:
    selector = SmallestMailbox().create(sizes.__getitem__)
    routees = tuple(range(len(sizes)))
    known = [size for size in sizes if size is not None]
    for _ in range(count):
        taken = sizes[selector.select("m", routees)[0]]
        assert taken == (min(known) if known else None)


@given(st.integers(1, 8), st.integers(1, 60))
def test_smallest_mailbox_fills_evenly(count: int, messages: int) -> None:
    sizes = [0] * count
    selector = SmallestMailbox().create(sizes.__getitem__)
    for _ in range(messages):
        sizes[selector.select("m", tuple(range(count)))[0]] += 1
    assert max(sizes) - min(sizes) <= 1


# ---------------------------------------------------------------------------------------------- consistent hashing


names = st.sets(st.text("abcdefgh", min_size=1, max_size=4), min_size=2, max_size=8)
KEYS = [f"key-{number}" for number in range(200)]


def owners(routees: tuple[str, ...], **options: int) -> dict[str, str]:
    selector = ConsistentHash(itself, **options).create(unknown)
    return {key: selector.select(key, routees)[0] for key in KEYS}


@given(names, st.integers(1, 20), st.randoms(use_true_random=False))
def test_the_order_of_the_routees_does_not_matter(routees: set[str], virtual_nodes: int, rng: Any) -> None:
    shuffled = list(routees)
    rng.shuffle(shuffled)
    first = owners(tuple(sorted(routees)), virtual_nodes=virtual_nodes)
    assert owners(tuple(shuffled), virtual_nodes=virtual_nodes) == first


@given(names, st.integers(1, 20), st.data())
def test_when_a_routee_leaves_only_its_own_keys_move(
    routees: set[str], virtual_nodes: int, data: st.DataObject
) -> None:
    gone = data.draw(st.sampled_from(sorted(routees)))
    before = owners(tuple(sorted(routees)), virtual_nodes=virtual_nodes)
    after = owners(tuple(sorted(routees - {gone})), virtual_nodes=virtual_nodes)
    assert {key for key in KEYS if before[key] != after[key]} == {key for key in KEYS if before[key] == gone}


@given(names, st.text("xyz", min_size=1, max_size=4))
def test_when_a_routee_comes_keys_move_to_it_only(routees: set[str], new: str) -> None:
    assume(new not in routees)
    before = owners(tuple(sorted(routees)))
    after = owners((*sorted(routees), new))
    assert {after[key] for key in KEYS if before[key] != after[key]} <= {new}


def test_one_selector_over_a_change() -> None:
    selector = ConsistentHash(itself).create(unknown)
    before = {key: selector.select(key, ABC)[0] for key in KEYS}
    for key in KEYS:
        selector.select(key, ("a", "b"))
    assert {key: selector.select(key, ABC)[0] for key in KEYS} == before


def test_keys_are_spread() -> None:
    counts = collections.Counter(owners(tuple("abcdefgh"), virtual_nodes=100).values())
    assert len(counts) == 8
    assert max(counts.values()) < 3 * len(KEYS) / 8


def test_the_ring_is_the_same_in_every_process() -> None:
    """Pinned: a router that moves to another process, or is of another version, sends keys to the same routees."""
    found = owners(ABC)
    assert "".join(found[key] for key in KEYS[:12]) == "bbcbbabbbabc"


def test_a_new_incarnation_takes_the_keys_of_the_old() -> None:
    first = owners(("/user/a#1", "/user/b#2", "/user/c#3"))
    second = owners(("/user/a#9", "/user/b#2", "/user/c#3"))
    assert {key: owner.replace("#9", "#1") for key, owner in second.items()} == first


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Number(enum.IntEnum):
    ONE = 1


DISTINCT: list[Any] = [
    "a",
    b"a",
    "1",
    1,
    1.5,
    None,
    "None",
    Colour.RED,
    Colour.BLUE,
    Number.ONE,
    (),
    ("a",),
    ("a", "b"),
]
DISTINCT += [("ab",), (("a",), "b"), ("a", ("b",)), True, "\udce9", -1]


def test_keys_that_differ_have_different_bytes() -> None:
    assert len({key_bytes(key) for key in DISTINCT}) == len(DISTINCT)


@given(st.recursive(st.text() | st.binary() | st.integers() | st.none(), lambda inner: st.lists(inner).map(tuple)))
def test_keys_that_are_equal_have_equal_bytes(key: Any) -> None:
    assert key_bytes(key) == key_bytes(key)


@pytest.mark.parametrize("key", [[], {}, object(), ("a", [])])
def test_what_is_no_key(key: Any) -> None:
    with pytest.raises(TypeError, match="a hash key is"):
        key_bytes(key)


# ---------------------------------------------------------------------------------------------- configurations


def test_the_default_strategy_of_a_pool_is_to_escalate() -> None:
    assert Pool(1, RoundRobin()).supervisor_strategy.decide(ValueError()) is Directive.ESCALATE
    own = OneForOneStrategy({ValueError: Directive.RESUME})
    assert Pool(1, RoundRobin(), own).supervisor_strategy is own


@pytest.mark.parametrize(
    "make",
    [
        lambda: Pool(0, RoundRobin()),
        lambda: Pool(True, RoundRobin()),
        lambda: Pool(1.5, RoundRobin()),  # type: ignore[arg-type]
        lambda: Pool(1, RoundRobin),  # type: ignore[arg-type]
        lambda: Pool(1, RoundRobin(), "stop"),  # type: ignore[arg-type]
        lambda: Group("/user/a", RoundRobin()),
        lambda: Group([1], RoundRobin()),  # type: ignore[list-item]
        lambda: Group(["/user/*"], RoundRobin()),
        lambda: Group(["/user/a b"], RoundRobin()),
        lambda: Group(["/user/a"], "round robin"),  # type: ignore[arg-type]
        lambda: ConsistentHash(itself, virtual_nodes=0),
        lambda: ConsistentHash("itself"),
        lambda: ConsistentHash(None),  # type: ignore[arg-type]
        lambda: ScatterGatherFirstCompleted(0),
        lambda: ScatterGatherFirstCompleted(float("nan")),
    ],
)
def test_bad_configurations(make: Callable[[], Any]) -> None:
    with pytest.raises(ValueError):
        make()


def test_a_key_without_a_name_stays_in_its_process() -> None:
    logic = ConsistentHash(lambda message: message)
    assert logic.create(unknown).select("x", ("a",)) == ("a",)
    with pytest.raises(SerializationError, match="import path"):
        SERIALIZER.dumps(Pool(1, logic))

from __future__ import annotations

from dataclasses import replace

import pytest

from runtime.checkpoint.description import OperatorDescription, QueryDescription, StoreDescription
from runtime.checkpoint.errors import SavepointError
from runtime.checkpoint.manifest import Savepoint, SavepointJob, SavepointQuery
from runtime.checkpoint.state_choice import choose_state
from runtime.checkpoint.state_schema import ColumnFamily
from runtime.protocol.query_snapshot import QuerySnapshot


def query(name: str, *operators: OperatorDescription) -> SavepointQuery:
    return SavepointQuery(QuerySnapshot(name, "id", "/x", None, "q", 3), QueryDescription(name, ("file",), operators))


def savepoint(*queries: SavepointQuery) -> Savepoint:
    return Savepoint(SavepointJob("0" * 32, "job"), 0, queries, {}, "4", "0")


COUNT = OperatorDescription(0, "stateStoreSave", (StoreDescription("default", 2),))
JOIN = OperatorDescription(1, "symmetricHashJoin", (StoreDescription("left", 2), StoreDescription("right", 2)))
VARIABLES = tuple(ColumnFamily(name, "{}", "{}") for name in ("a", "b"))
PROCESSOR = OperatorDescription(0, "transformWithStateInPandasExec", (StoreDescription("default", 2, VARIABLES),))


def test_what_is_not_said_is_the_only_one_or_the_first() -> None:
    found = choose_state(savepoint(query("stateless"), query("counts", COUNT, JOIN)))
    assert (found.query.snapshot.name, found.operator, found.store, found.variable) == ("counts", 0, "default", None)
    assert choose_state(savepoint(query("counts", COUNT, JOIN)), operator=1).store == "left"
    assert choose_state(savepoint(query("counts", COUNT, JOIN)), operator=1, store="right").store == "right"
    assert choose_state(savepoint(query("x", PROCESSOR)), variable="b").variable == "b"


def test_the_maps_of_a_join_in_one_store_are_chosen_as_stores() -> None:
    maps = tuple(ColumnFamily(name, "{}", "{}") for name in ("left-keyToNumValues", "left-keyWithIndexToValue"))
    joined = OperatorDescription(0, "symmetricHashJoin", (StoreDescription("default", 2, maps),))
    assert choose_state(savepoint(query("x", joined))).store == "left-keyToNumValues"
    assert choose_state(savepoint(query("x", joined)), store="left-keyWithIndexToValue").store == maps[1].name
    with pytest.raises(SavepointError, match="no store 'default'"):
        choose_state(savepoint(query("x", joined)), store="default")


@pytest.mark.parametrize(
    ("queries", "asked", "message", "remedy"),
    [
        ([query("stateless")], {}, "the savepoint has no query with state", ""),
        (
            [query("a", COUNT), query("b", COUNT)],
            {},
            "the savepoint has more than one query with state",
            "choose by --query: a, b",
        ),
        ([query("a", COUNT)], {"query": "z"}, "the savepoint has no query with state 'z'", "there is: a"),
        ([query("a", COUNT, JOIN)], {"operator": 7}, "the savepoint has no operator '7'", "there is: 0, 1"),
        ([query("a", JOIN)], {"store": "x"}, "the savepoint has no store 'x'", "there is: left, right"),
        ([query("a", PROCESSOR)], {}, "the savepoint has more than one state variable", "choose by --variable: a, b"),
        ([query("a", PROCESSOR)], {"variable": "c"}, "the savepoint has no state variable 'c'", "there is: a, b"),
        (
            [query("a", COUNT)],
            {"variable": "x"},
            "operator 0 (stateStoreSave) has no state variables, so none is 'x'",
            "leave out --variable: no operator of the query has any",
        ),
        (
            [query("a", COUNT, replace(PROCESSOR, id=3))],
            {"variable": "a"},
            "operator 0 (stateStoreSave) has no state variables, so none is 'a'",
            "choose by --operator: operator 3 has a, b",
        ),
    ],
)
def test_what_is_in_doubt_is_said(
    queries: list[SavepointQuery], asked: dict[str, object], message: str, remedy: str
) -> None:
    with pytest.raises(SavepointError) as caught:
        choose_state(savepoint(*queries), **asked)  # type: ignore[arg-type]
    assert (str(caught.value), caught.value.remedy) == (message, remedy)

from __future__ import annotations

from actors.remote.gateway import PATH, NodeId, Route
from actors.remote.root import RouteTable

ROOT = NodeId("s", "127.0.0.1", 1000, 1, "127.0.0.1", 1000, 1)
FIRST = NodeId("s", "127.0.0.1", 1001, 2, "127.0.0.1", 1000, 1)
SECOND = NodeId("s", "127.0.0.1", 1002, 3, "127.0.0.1", 1000, 1)


def table(**placed: NodeId) -> RouteTable:
    made = RouteTable(ROOT)
    for number, (name, node) in enumerate(placed.items()):
        made.begin(f"/user/{name}", 100 + number)
        assert made.settle(f"/user/{name}", 100 + number, node)
    return made


def test_what_was_not_placed_is_the_roots() -> None:
    assert table().find("/user/a", 5) == Route(ROOT)
    assert table().find("/", 0) == Route(ROOT)
    assert table().find("/deadLetters", 0) == Route(ROOT)


def test_what_is_below_a_placed_path_lives_there() -> None:
    routes = table(a=FIRST)
    assert routes.find("/user/a", 100) == Route(FIRST, exact=True)
    assert routes.find("/user/a", 0) == Route(FIRST, exact=True)
    assert routes.find("/user/a/b/c", 7) == Route(FIRST)
    assert routes.find("/user/ab", 0) == Route(ROOT), "elements are compared, not letters"


def test_the_longest_path_counts() -> None:
    routes = table(a=FIRST)
    routes.begin("/user/a/b", 7)
    routes.settle("/user/a/b", 7, SECOND)
    assert routes.find("/user/a/b/c", 0) == Route(SECOND)
    assert routes.find("/user/a/x", 0) == Route(FIRST)


def test_another_incarnation_is_not_where_this_one_is() -> None:
    assert table(a=FIRST).find("/user/a", 999) == Route(ROOT)


def test_during_creation_one_has_to_wait() -> None:
    routes = table()
    routes.begin("/user/a", 7)
    assert routes.find("/user/a", 7) == ("/user/a", 7)
    assert routes.find("/user/a/b", 8) == ("/user/a", 7)
    assert routes.settle("/user/a", 7, FIRST)
    assert routes.find("/user/a/b", 8) == Route(FIRST)


def test_a_creation_that_was_overtaken_does_not_count() -> None:
    routes = table()
    routes.begin("/user/a", 7)
    routes.begin("/user/a", 8)
    assert not routes.settle("/user/a", 7, FIRST)
    assert routes.remove("/user/a", 7) is None
    assert routes.settle("/user/a", 8, SECOND)
    assert routes.find("/user/a", 8) == Route(SECOND, exact=True)


def test_removing_names_where_it_was() -> None:
    routes = table(a=FIRST)
    assert routes.remove("/user/a", 100) == FIRST
    assert routes.remove("/user/a", 100) is None
    assert routes.find("/user/a", 100) == Route(ROOT)
    assert len(routes) == 0


def test_a_process_takes_its_paths_with_it() -> None:
    routes = table(a=FIRST, b=SECOND, c=FIRST)
    routes.begin("/user/d", 7)
    assert routes.drop_node(FIRST.uid) == [("/user/a", 100), ("/user/c", 102)]
    assert routes.find("/user/a", 0) == Route(ROOT)
    assert routes.find("/user/b", 0) == Route(SECOND, exact=True)
    assert len(routes) == 2


def test_ids_of_nodes() -> None:
    assert str(ROOT) == "system s@127.0.0.1:1000"
    assert str(FIRST) == "process 127.0.0.1:1001 of system s@127.0.0.1:1000"
    assert ROOT.is_root
    assert not FIRST.is_root
    assert str(FIRST.address) == f"akka.tcp://s@127.0.0.1:1001{PATH}"
    assert str(FIRST.root_address) == f"akka.tcp://s@127.0.0.1:1000{PATH}"

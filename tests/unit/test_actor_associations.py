from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.remote.peers import Associations


def test_an_unknown_node_is_welcome() -> None:
    nodes = Associations()
    assert nodes.accept_from(1)
    assert nodes.reason(1) is None
    assert nodes.seen("a", 1) is None
    assert nodes.seen("a", 1) is None
    assert nodes.accept_from(1)


def test_quarantine_is_for_ever() -> None:
    nodes = Associations()
    nodes.seen("a", 1)
    nodes.quarantine(1, "silent")
    nodes.quarantine(1, "again")
    assert nodes.reason(1) == "silent"
    assert nodes.seen("a", 1) is None
    assert nodes.seen("elsewhere", 1) is None
    assert not nodes.accept_from(1)
    assert nodes.seen("elsewhere", 2) is None, "one in quarantine is not noted at an address"


def test_only_another_incarnation_ends_it() -> None:
    nodes = Associations()
    nodes.seen("a", 1)
    nodes.quarantine(1, "silent")
    assert nodes.seen("a", 2) is None
    assert nodes.accept_from(2)
    assert not nodes.accept_from(1)


def test_another_incarnation_supersedes_a_living_one() -> None:
    nodes = Associations()
    nodes.seen("a", 1)
    assert nodes.seen("a", 2) == 1
    assert not nodes.accept_from(1)
    assert nodes.seen("a", 1) is None
    assert "another incarnation (2)" in (nodes.reason(1) or "")
    assert nodes.seen("a", 3) == 2


def test_late_news_of_a_predecessor_do_not_harm_the_successor() -> None:
    nodes = Associations()
    nodes.seen("a", 1)
    nodes.seen("a", 2)
    nodes.quarantine(1, "known by then")
    nodes.quarantine(77, "never seen here")
    assert nodes.accept_from(2)
    assert "another incarnation (2)" in (nodes.reason(1) or "")


def test_a_node_can_be_in_quarantine_before_it_is_seen() -> None:
    nodes = Associations()
    nodes.quarantine(1, "said somebody")
    assert nodes.seen("a", 1) is None
    assert not nodes.accept_from(1)
    assert nodes.seen("a", 2) is None


def test_addresses_do_not_mix() -> None:
    nodes = Associations()
    nodes.seen("a", 1)
    nodes.seen("b", 2)
    nodes.quarantine(1, "x")
    assert nodes.accept_from(2)
    assert nodes.reason(2) is None


def test_the_oldest_are_forgotten() -> None:
    nodes = Associations(3)
    nodes.seen("a0", 0)
    for uid in range(5):
        nodes.quarantine(uid, "x")
    assert [nodes.accept_from(uid) for uid in range(5)] == [True, True, False, False, False]
    assert nodes.seen("a0", 9) is None, "it is an address like any other"


def test_at_least_one_is_remembered() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Associations(0)


events = st.tuples(st.sampled_from(["seen", "quarantine"]), st.sampled_from("ab"), st.integers(0, 5))


@given(st.lists(events, max_size=40))
def test_the_dead_stay_dead(steps: list[tuple[str, str, int]]) -> None:
    nodes = Associations()
    dead: set[int] = set()
    last: dict[str, int] = {}
    for what, address, uid in steps:
        if what == "seen":
            superseded = nodes.seen(address, uid)
            if uid in dead:
                assert superseded is None
            else:
                previous = last.get(address)
                assert superseded == (previous if previous not in (None, uid) and previous not in dead else None)
                dead |= {superseded} - {None}  # type: ignore[arg-type]
                last[address] = uid
        else:
            nodes.quarantine(uid, "x")
            dead.add(uid)
        assert {each for each in range(6) if not nodes.accept_from(each)} == dead

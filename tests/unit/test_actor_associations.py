from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.remote.peers import Association, Associations, Seen, State


def table(remembered: int = 1000) -> Associations[str]:
    return Associations(remembered)


def test_an_unknown_node_is_welcome() -> None:
    nodes = table()
    assert nodes.accept_from(1)
    assert nodes.may_send_to("a")
    assert nodes.association("a") is None
    assert nodes.seen("a", 1) == Seen(True)
    assert nodes.association("a") == Association(1, State.ASSOCIATED)
    assert nodes.seen("a", 1) == Seen(True)


def test_unreachable_is_not_dead() -> None:
    nodes = table()
    assert not nodes.unreachable("a")
    nodes.seen("a", 1)
    assert nodes.unreachable("a")
    assert not nodes.unreachable("a")
    assert nodes.association("a") == Association(1, State.UNREACHABLE)
    assert nodes.accept_from(1)
    assert nodes.may_send_to("a")
    assert nodes.seen("a", 1) == Seen(True, returned=True)
    assert nodes.association("a") == Association(1, State.ASSOCIATED)


def test_quarantine_is_for_ever() -> None:
    nodes = table()
    nodes.seen("a", 1)
    assert nodes.quarantine("a", 1, "silent")
    assert not nodes.quarantine("a", 1, "again")
    assert nodes.association("a") == Association(1, State.QUARANTINED, "silent")
    assert not nodes.accept_from(1)
    assert not nodes.may_send_to("a")
    assert nodes.reason(1) == "silent"
    assert nodes.seen("a", 1) == Seen(False)
    assert nodes.seen("elsewhere", 1) == Seen(False)
    assert not nodes.unreachable("a")
    assert not nodes.may_send_to("a")


def test_only_another_incarnation_ends_it() -> None:
    nodes = table()
    nodes.seen("a", 1)
    nodes.quarantine("a", 1, "silent")
    assert nodes.seen("a", 2) == Seen(True)
    assert nodes.may_send_to("a")
    assert nodes.accept_from(2)
    assert not nodes.accept_from(1)


def test_another_incarnation_supersedes_a_living_one() -> None:
    nodes = table()
    nodes.seen("a", 1)
    assert nodes.seen("a", 2) == Seen(True, superseded=1)
    assert nodes.association("a") == Association(2, State.ASSOCIATED)
    assert not nodes.accept_from(1)
    assert nodes.seen("a", 1) == Seen(False)
    assert "another incarnation (2)" in (nodes.reason(1) or "")
    nodes.unreachable("a")
    assert nodes.seen("a", 3) == Seen(True, superseded=2)


def test_late_news_of_a_predecessor_do_not_harm_the_successor() -> None:
    nodes = table()
    nodes.seen("a", 1)
    nodes.seen("a", 2)
    assert not nodes.quarantine("a", 1, "known by then")
    assert nodes.quarantine("a", 77, "never seen here")
    assert nodes.may_send_to("a")
    assert nodes.association("a") == Association(2, State.ASSOCIATED)


def test_a_node_can_be_in_quarantine_before_it_is_seen() -> None:
    nodes = table()
    assert nodes.quarantine("a", 1, "said somebody")
    assert not nodes.may_send_to("a")
    assert nodes.seen("a", 1) == Seen(False)


def test_addresses_do_not_mix() -> None:
    nodes = table()
    nodes.seen("a", 1)
    nodes.seen("b", 2)
    nodes.quarantine("a", 1, "x")
    assert nodes.may_send_to("b")
    assert nodes.accept_from(2)
    assert nodes.reason(2) is None


def test_the_oldest_are_forgotten() -> None:
    nodes = table(3)
    for uid in range(5):
        nodes.quarantine(f"a{uid}", uid, "x")
    assert [nodes.accept_from(uid) for uid in range(5)] == [True, True, False, False, False]
    assert [nodes.may_send_to(f"a{uid}") for uid in range(5)] == [True, True, False, False, False]
    assert nodes.seen("a0", 0) == Seen(True)


def test_at_least_one_is_remembered() -> None:
    with pytest.raises(ValueError, match="at least one"):
        table(0)


events = st.one_of(
    st.tuples(st.just("seen"), st.sampled_from("ab"), st.integers(0, 5)),
    st.tuples(st.just("unreachable"), st.sampled_from("ab"), st.just(0)),
    st.tuples(st.just("quarantine"), st.sampled_from("ab"), st.integers(0, 5)),
)


@given(st.lists(events, max_size=40))
def test_the_dead_stay_dead(steps: list[tuple[str, str, int]]) -> None:
    nodes = table()
    dead: set[int] = set()
    last: dict[str, int] = {}
    for what, address, uid in steps:
        if what == "seen":
            seen = nodes.seen(address, uid)
            assert seen.accepted is (uid not in dead)
            if seen.accepted:
                previous = last.get(address)
                expected = previous if previous not in (None, uid) and previous not in dead else None
                assert seen.superseded == expected
                dead |= {seen.superseded} - {None}  # type: ignore[arg-type]
                last[address] = uid
        elif what == "unreachable":
            nodes.unreachable(address)
        else:
            assert nodes.quarantine(address, uid, "x") is (uid not in dead)
            dead.add(uid)
            last.setdefault(address, uid)
        assert {each for each in range(6) if not nodes.accept_from(each)} == dead
        for each in "ab":
            known = nodes.association(each)
            assert nodes.may_send_to(each) is (known is None or known.uid not in dead)
            assert known is None or (
                known.uid == last[each] and (known.state is State.QUARANTINED) is (known.uid in dead)
            )

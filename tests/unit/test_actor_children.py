"""The bookkeeping of children: names, and what waits for dying ones. Pure."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.actor import Actor
from actors.core.cell import Children, Waiting
from actors.errors import ActorSystemError, InvalidActorName
from actors.props import Props
from actors.ref import ActorRef, Origin

ORIGIN = Origin("s", "h", 1)
PROPS = Props(Actor)


def ref(name: str, uid: int = 1) -> ActorRef:
    return ActorRef(None, ORIGIN, f"/user/{name}", uid)


def with_children(*names: str) -> Children:
    children = Children()
    for name in names:
        children.add(children.reserve(name, "/user"), ref(name), PROPS)
    return children


def test_automatic_names_are_akkas() -> None:
    children = Children()
    names = [children.reserve(None, "/user") for _ in range(66)]
    assert names[:3] == ["$a", "$b", "$c"]
    assert names[63:] == ["$~", "$ab", "$bb"]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", ["a", "A-1", "x_y.z~", "1", "a$"])
def test_names(name: str) -> None:
    assert Children().reserve(name, "/user") == name


@pytest.mark.parametrize("name", ["", "$a", "a/b", "a b", "ä", ".", "..", "a#1", "*", "a\n", 7, b"a"])
def test_malformed_names(name: Any) -> None:
    with pytest.raises(InvalidActorName):
        Children().reserve(name, "/user")


def test_taken_names() -> None:
    children = with_children("a")
    with pytest.raises(InvalidActorName, match="already"):
        children.reserve("a", "/user")
    children.remove(ref("a"))
    assert children.reserve("a", "/user") == "a"


def test_incarnations_are_told_apart() -> None:
    children = with_children("a")
    assert children.find(ref("a")) is not None
    assert children.find(ref("a", 2)) is None


def test_nothing_to_wait_for() -> None:
    children = with_children("a", "b")
    assert not children.wait_for(Waiting.RECREATION, (ValueError(), 0.0))
    assert children.is_normal
    assert children.remove(ref("a")) == (Waiting.NOTHING, None)


def test_the_last_dying_child_sets_it_off() -> None:
    children = with_children("a", "b", "c")
    restart = (ValueError(), 1.0)
    children.shall_die(ref("a"))
    children.shall_die(ref("b"))
    assert children.wait_for(Waiting.RECREATION, restart)
    assert not children.is_normal
    assert children.remove(ref("a")) == (Waiting.NOTHING, None)
    assert children.remove(ref("b")) == (Waiting.RECREATION, restart)
    assert children.is_normal
    assert children.refs() == [ref("c")]


def test_termination_overrides() -> None:
    children = with_children("a")
    children.shall_die(ref("a"))
    assert children.wait_for(Waiting.RECREATION, (ValueError(), 0.0))
    assert children.wait_for(Waiting.TERMINATION)
    with pytest.raises(ActorSystemError, match="stopping"):
        children.reserve("b", "/user")
    assert children.remove(ref("a")) == (Waiting.TERMINATION, None)
    assert children.is_terminating


@given(st.lists(st.sampled_from("abcde"), unique=True), st.permutations("abcde"))
def test_whatever_the_order(dying: list[str], order: list[str]) -> None:
    children = with_children(*"abcde")
    for name in dying:
        children.shall_die(ref(name))
    waits = children.wait_for(Waiting.TERMINATION)
    assert waits == bool(dying)
    fired = [name for name in order if children.remove(ref(name))[0] is Waiting.TERMINATION]
    if dying:
        assert fired[0] == max(dying, key=order.index)
    assert children.refs() == []

"""Refs: text, equality, order, pickling, and what they are bound to."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from actors.actor import Actor
from actors.errors import ActorSystemError, AddressError
from actors.props import Props
from actors.ref import ActorRef
from actors.testkit import DeterministicSystem


class Echo(Actor):
    def receive(self, message: Any) -> None:
        self.reply(message)


@pytest.fixture
def system() -> Iterator[DeterministicSystem]:
    with DeterministicSystem() as made:
        yield made


def test_text_and_back(system: DeterministicSystem) -> None:
    ref = system.actor_of(Props(Echo), "echo")
    assert str(ref) == repr(ref) == f"akka.tcp://test@127.0.0.1:2552/user/echo#{ref.uid}"
    parsed = ActorRef.parse(str(ref), system)
    assert parsed == ref
    assert hash(parsed) == hash(ref)
    assert parsed.ask("x").result() == "x"


def test_without_uid_it_means_whoever_lives_there(system: DeterministicSystem) -> None:
    ref = ActorRef.parse("akka.tcp://test@127.0.0.1:2552/user/echo", system)
    assert ref.uid == 0
    first = system.actor_of(Props(Echo), "echo")
    assert ref.ask("x").result() == "x"
    system.graceful_stop(first).result()
    second = system.actor_of(Props(Echo), "echo")
    assert second != first
    assert ref.ask("y").result() == "y"


def test_the_parts(system: DeterministicSystem) -> None:
    ref = ActorRef.parse("akka.tcp://test@127.0.0.1:2552/user/a/b#7", system)
    assert (ref.path, ref.name, ref.uid) == ("/user/a/b", "b", 7)
    assert str(ref.address) == "akka.tcp://test@127.0.0.1:2552/user/a/b"
    assert not ref.is_ask
    assert ActorRef.parse("akka.tcp://test@h:1/temp/$1", system).is_ask


@pytest.mark.parametrize(
    "text", ["", "/user/a", "akka.tcp://s@h:1/user/a#", "akka.tcp://s@h:1/user/a#x", "akka.tcp://s@h:1"]
)
def test_no_ref(system: DeterministicSystem, text: str) -> None:
    with pytest.raises(AddressError):
        ActorRef.parse(text, system)


def test_order(system: DeterministicSystem) -> None:
    refs = [
        ActorRef.parse(f"akka.tcp://{text}", system)
        for text in ("a@h:1/user/a#1", "a@h:1/user/a#2", "a@h:1/user/b#1", "b@h:1/user/a#1")
    ]
    assert sorted([refs[2], refs[0], refs[3], refs[1]]) == refs
    assert refs[0] < refs[1] <= refs[1] < refs[2]
    assert refs[3] > refs[2] >= refs[2]
    assert len({*refs, *refs}) == 4


def test_pickled_refs_are_bound_to_the_only_node(system: DeterministicSystem) -> None:
    ref = system.actor_of(Props(Echo), "echo")
    loaded = pickle.loads(pickle.dumps(ref))
    assert loaded == ref
    assert loaded.ask("x").result() == "x"


def test_pickled_refs_of_nowhere() -> None:
    with DeterministicSystem() as system:
        data = pickle.dumps(system.actor_of(Props(Echo), "echo"))
    loaded = pickle.loads(data)
    with pytest.raises(ActorSystemError, match="no actor system"):
        loaded.tell("x")
    with DeterministicSystem("a"), DeterministicSystem("b"), pytest.raises(ActorSystemError, match="more than one"):
        loaded.tell("x")


def test_forward_outside_an_actor(system: DeterministicSystem) -> None:
    with pytest.raises(RuntimeError, match="inside an actor"):
        system.actor_of(Props(Echo)).forward("x")

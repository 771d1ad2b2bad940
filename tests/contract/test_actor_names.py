"""Contract: names, paths and children."""

from __future__ import annotations

from typing import Any

import pytest

from actors import Actor, ActorRef, Props
from actors.errors import InvalidActorName
from tests.contract.actor_harness import DEADLINE_S, World, everywhere
from tests.contract.actors_under_test import Boss, Echo


class Registrar(Actor):
    """Creates children under the names it is told, and answers with their refs or the error."""

    def receive(self, message: Any) -> None:
        match message:
            case ("create", name):
                try:
                    self.reply(self.context.actor_of(Props(Echo), name))
                except InvalidActorName as error:
                    self.reply(f"refused: {error}")
            case ("stop and create", name):
                child = self.context.child(name)
                assert child is not None
                self.context.stop(child)
                self.receive(("create", name))
            case ("child", name):
                self.reply(self.context.child(name))
            case "children":
                self.reply(sorted(child.name for child in self.context.children))


def test_paths(world: World) -> None:
    """Akka: the path of a child is its parent's and its name; the address names system, host and port."""
    boss = world.spawn(Boss, world.probe().ref, "a")
    (child,) = world.ask(boss, "children")
    assert boss.path == f"/user/{boss.name}"
    assert (child.path, child.name) == (f"/user/{boss.name}/a", "a")
    assert str(child.address).startswith("akka.tcp://contract@")
    assert str(child.address).endswith(child.path)
    assert repr(child).startswith(str(child.address))


def test_children_of_a_context(world: World) -> None:
    """Akka: the context knows the children, and each of them by name."""
    registrar = world.spawn(Registrar)
    made = world.ask(registrar, ("create", "a"))
    world.ask(registrar, ("create", "b"))
    assert world.ask(registrar, "children") == ["a", "b"]
    assert world.ask(registrar, ("child", "a")) == made
    assert world.ask(registrar, ("child", "z")) is None


def test_taken_name(world: World) -> None:
    """Akka: a name can be given once among the children of an actor; a second time is an error that names it."""
    registrar = world.spawn(Registrar)
    world.ask(registrar, ("create", "kid"))
    assert "kid" in world.ask(registrar, ("create", "kid"))
    taken = world.spawn(Echo)
    with pytest.raises(InvalidActorName, match=taken.name):
        world.system.actor_of(world.placed(Props(Echo)), taken.name)


def test_same_name_under_another_parent(world: World) -> None:
    """Akka: names are unique among brothers and sisters only."""
    first, second = (world.ask(world.spawn(Registrar), ("create", "kid")) for _ in range(2))
    assert (first.name, first == second) == (second.name, False)


@pytest.mark.parametrize("name", ["", "a/b", "a b", "ä", "/", "a#1", "a?", "*"])
def test_malformed_names(world: World, name: str) -> None:
    """Akka: a name that is not a path element is refused, and so is one that a selection could not name."""
    with pytest.raises(InvalidActorName):
        world.system.actor_of(Props(Echo), name)


@pytest.mark.parametrize("name", ["a", "A-b_c.d~e", "0", "a$b"])
def test_good_names(world: World, name: str) -> None:
    """Akka: letters, digits and a few signs make a name."""
    assert world.ask(world.spawn(Registrar), ("create", name)).name == name


def test_given_names(world: World) -> None:
    """Akka: an actor without a name is given one that no other has."""
    registrar = world.spawn(Registrar)
    names = [world.ask(registrar, ("create", None)).name for _ in range(40)]
    assert len(set(names)) == 40
    assert all(name.startswith("$") for name in names)


@everywhere
def test_name_is_free_again(world: World) -> None:
    """Akka: when an actor has terminated its name can be given again, to an actor with another ref."""
    first = world.spawn(Echo)
    world.stop(first)
    second = world.spawn(Echo, name=first.name)
    assert second.path == first.path
    assert second != first
    assert world.ask(second, "x") == "x"


def test_name_of_one_that_is_stopping(world: World) -> None:
    """Akka: stop is not done at once: the name is not free before the actor has terminated."""
    registrar = world.spawn(Registrar)
    world.ask(registrar, ("create", "kid"))
    assert world.ask(registrar, ("stop and create", "kid")).startswith("refused")


def test_stop_is_asynchronous_for_children(world: World) -> None:
    """Akka: the name of a child is free once its end is known to its parent."""
    registrar = world.spawn(Registrar)
    first = world.ask(registrar, ("create", "kid"))
    world.ask(registrar, ("stop and create", "kid"))
    world.wait_stopped(first)
    second = world.until(
        lambda: world.ask(registrar, ("create", "kid")), lambda made: isinstance(made, ActorRef), "a new kid"
    )
    assert second != first


def test_thousand_actors(world: World) -> None:
    """Thespian: many actors live side by side, each with an address of its own (its load suite)."""
    refs = [world.spawn(Echo) for _ in range(300)]
    assert len({ref.path for ref in refs}) == 300
    asks = [ref.ask(number, DEADLINE_S) for number, ref in enumerate(refs)]
    assert [ask.result() for ask in asks] == list(range(300))

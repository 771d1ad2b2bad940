"""Contract: props, and where actors live."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from actors import Actor, ActorRef, ActorSystem, DeadLetter, Props
from actors.errors import SerializationError
from tests.contract.actor_harness import DEADLINE_S, SHARED, World, everywhere, on_processes
from tests.contract.actors_under_test import Boss, Collector, Echo, Quiet


class Unsendable:
    """What cannot leave its process."""


class Parent(Actor):
    """Creates a child of each placement."""

    def __init__(self, probe: ActorRef) -> None:
        props = Props(Quiet, probe)
        self.kids = {
            "local": self.context.actor_of(props, "local"),
            "shared": self.context.actor_of(props.shared(), "shared"),
            "pinned": self.context.actor_of(props.pinned(), "pinned"),
        }

    async def receive(self, message: Any) -> None:
        asker = self.sender
        if message == "pids":
            asker.tell({"own": os.getpid(), **{name: await kid.ask("pid") for name, kid in self.kids.items()}})


class Tries(Actor):
    """Tries to tell what cannot be told."""

    def receive(self, message: Any) -> None:
        try:
            message.tell(Unsendable())
        except SerializationError as error:
            self.reply(str(error))
        else:
            self.reply("sent")


def test_props_are_values(world: World) -> None:
    """Akka: props are immutable values: each with_... makes new ones; the same actors can be made of them often."""
    probe = world.probe()
    props = Props(Collector, probe.ref)
    assert props.pinned() is not props
    first, second = world.spawn(props), world.spawn(props)
    first.tell("a")
    second.tell("b")
    assert sorted(probe.receive_n(2)) == ["a", "b"]
    with pytest.raises(AttributeError):
        props.actor_class = Echo  # type: ignore[misc]


def test_props_by_path(world: World) -> None:
    """Thespian: an actor's class may be given by its import path."""
    assert world.ask(world.spawn(Props("tests.contract.actors_under_test:Echo")), "x") == "x"


def test_throughput(world: World) -> None:
    """Akka: the throughput says how many messages an actor handles before another has its turn; order stays."""
    probe = world.probe()
    collector = world.spawn(Props(Collector, probe.ref).with_throughput(1))
    for number in range(50):
        collector.tell(number)
    assert probe.receive_n(50) == list(range(50))


@pytest.mark.parametrize("text", ["nothing", "no.module", "", 7])
def test_no_class_at_all(text: Any) -> None:
    """Thespian: what is not an actor class and names none is refused when the props are made."""
    with pytest.raises(TypeError):
        Props(text)


@pytest.mark.parametrize("path", ["no.such.module:Actor", "tests.contract.actors_under_test:NoSuchActor"])
def test_no_such_class(world: World, path: str) -> None:
    """Thespian: an actor whose class cannot be imported where it is to live is never made: its watchers are told."""
    ref = world.spawn(Props(path))
    world.wait_stopped(ref)
    with pytest.raises(ConnectionError):
        world.ask(ref, "x")


@on_processes
def test_processes(world: World) -> None:
    """Ours: a local child lives in its parent's process, a pinned one in its own, shared ones in one for all."""
    probe = world.probe()
    parent = world.spawn(Props(Parent, probe.ref))
    pids = world.ask(parent, "pids")
    assert pids["local"] == pids["own"] == pids["shared"]
    assert pids["pinned"] not in (pids["own"], os.getpid())


@pytest.mark.parametrize("world", [SHARED], indirect=True)
def test_many_share_a_process(world: World) -> None:
    """Akka: many actors share a thread's worth of machine: here a process."""
    probe = world.probe()
    pids = {world.ask(world.spawn(Quiet, probe.ref), "pid") for _ in range(10)}
    assert len(pids) == 1
    assert pids != {os.getpid()}


@pytest.mark.parametrize("world", [SHARED], indirect=True)
def test_default_placement(world: World) -> None:
    """Thespian: a top-level actor has a process of its own, unless its props say otherwise."""
    probe = world.probe()
    boss = world.system.actor_of(Props(Boss, probe.ref, "kid"), world.name())
    (kid,) = world.ask(boss, "children")
    worker = world.system.actor_of(Props(Quiet, probe.ref), world.name())
    pids = {world.ask(kid, "pid"), world.ask(worker, "pid"), os.getpid()}
    assert len(pids) == 3
    world.stop(boss)
    world.stop(worker)


@everywhere
def test_children_live_with_their_parent(world: World) -> None:
    """Akka: children live where their parent does, and are reached from anywhere."""
    boss = world.spawn(Boss, world.probe().ref, "a", "b")
    first, second = world.ask(boss, "children")
    assert world.ask(first, "pid") == world.ask(second, "pid")


@on_processes
def test_arguments_that_cannot_leave(world: World) -> None:
    """Ours: arguments that cannot travel are refused where the actor is ordered, with their type."""
    with pytest.raises(SerializationError, match="Unsendable"):
        world.spawn(Quiet, Unsendable())


@on_processes
def test_message_that_cannot_leave(world: World) -> None:
    """Ours: what cannot travel fails the ask; what a thread has told is a dead letter; nothing breaks by it."""
    echo, letters = world.spawn(Echo), world.probe()
    world.system.event_stream.subscribe(letters.ref, DeadLetter)
    echo.tell(Unsendable())
    assert isinstance(world.letter(letters, echo).message, Unsendable)
    with pytest.raises(SerializationError, match="Unsendable"):
        echo.ask(Unsendable(), DEADLINE_S).result()
    assert world.ask(echo, "x") == "x"


@on_processes
def test_message_of_an_actor_that_cannot_leave(world: World) -> None:
    """Ours: an actor that tells what cannot travel gets the error, with its type."""
    local = world.system.actor_of(Props(Collector, world.probe().ref).local(), world.name())
    assert "Unsendable" in world.ask(world.spawn(Tries), local)


@on_processes
def test_two_systems(world: World, tmp_path: Path) -> None:
    """Akka: systems reach each other by address, and an actor can be deployed to another system."""
    secret = tmp_path / "secret"
    secret.write_bytes(os.urandom(32).hex().encode())
    secret.chmod(0o600)
    with ActorSystem("one", secret_file=secret) as one, ActorSystem("two", secret_file=secret) as two:
        echo = two.actor_of(Props(Echo).local(), "echo")
        found = one.actor_selection(str(echo.address)).resolve_one(DEADLINE_S).result()
        assert found == echo
        assert found.ask("across", DEADLINE_S).result() == "across"
        deployed = one.actor_of(Props(Echo).deploy(str(two.address)), "away")
        assert deployed.ask("there", DEADLINE_S).result() == "there"
        assert "/remote/" in deployed.path


def test_terminate() -> None:
    """Pykka: a system that is terminated stops all actors (ActorRegistry.stop_all); after it nothing is answered."""
    system = ActorSystem("ending")
    echo = system.actor_of(Props(Echo).shared(), "echo")
    assert echo.ask("x", DEADLINE_S).result() == "x"
    system.terminate()
    system.terminate()
    with pytest.raises(ConnectionError):
        echo.ask("x", DEADLINE_S).result()

"""Contract: tell. Ordering, at-most-once delivery, senders, what a message may be."""

from __future__ import annotations

import asyncio
import datetime
import enum
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from actors import Actor, ActorRef, message
from tests.contract.actor_harness import QUIET_S, World, everywhere
from tests.contract.actors_under_test import Batch, Collector, Echo, Fail, Tagged, Worker


class SenderTeller(Actor):
    """Tells the probe who has sent it each message."""

    def __init__(self, probe: ActorRef) -> None:
        self.probe = probe

    def receive(self, message: Any) -> None:
        self.probe.tell((message, self.sender))


class Relay(Actor):
    """Tells an actor a message: as itself, or as somebody else."""

    def receive(self, message: Any) -> None:
        match message:
            case (ActorRef() as recipient, what):
                recipient.tell(what)
            case (ActorRef() as recipient, what, ActorRef() as sender):
                recipient.tell(what, sender=sender)
            case "me":
                self.reply(self.self_ref)


class Slow(Actor):
    """Takes a while over each message, and tells when it begins and when it has done."""

    def __init__(self, probe: ActorRef) -> None:
        self.probe = probe

    async def receive(self, message: Any) -> None:
        self.probe.tell(("begins", message))
        for _ in range(3):
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        self.probe.tell(("ends", message))


class Countdown(Actor):
    """Tells itself the next lower number."""

    def __init__(self, probe: ActorRef) -> None:
        self.probe = probe

    def receive(self, message: Any) -> None:
        self.probe.tell(message)
        if message == 3:
            self.self_ref.tell(2)
            self.self_ref.tell(1)
            self.probe.tell("told")


@message
class Colour(enum.Enum):
    RED = "red"


@message
class Parcel:
    label: str
    content: Any = None


@everywhere
def test_order_between_two(world: World) -> None:
    """Akka: messages from one sender to one recipient are received in the order in which they were sent."""
    probe = world.probe()
    collector = world.spawn(Collector, probe.ref)
    for number in range(500):
        collector.tell(number)
    assert probe.receive_n(500) == list(range(500))


@everywhere
def test_order_from_actors(world: World) -> None:
    """Akka: messages of several senders may interleave; those of each one keep their order."""
    probe = world.probe()
    collector = world.spawn(Collector, probe.ref)
    for tag in "ab":
        world.spawn(Batch).tell((collector, [Tagged(tag, number) for number in range(200)]))
    received = probe.receive_n(400)
    for tag in "ab":
        assert [each.number for each in received if each.tag == tag] == list(range(200))


def test_at_most_once(world: World) -> None:
    """Akka: a message is delivered at most once."""
    probe = world.probe()
    collector = world.spawn(Collector, probe.ref)
    for number in range(100):
        collector.tell(number)
    received = probe.receive_n(100)
    probe.expect_no_msg(QUIET_S)
    assert len(set(received)) == len(received)


def test_tell_returns_nothing(world: World) -> None:
    """Pykka: tell returns None at once, without waiting for the message to be handled."""
    assert world.spawn(Slow, world.probe().ref).tell("x") is None  # type: ignore[func-returns-value]


def test_tell_to_the_dead(world: World) -> None:
    """Akka: tell never raises for a dead recipient (Pykka's raises ActorDeadError: there is no such promise here)."""
    echo = world.spawn(Echo)
    world.stop(echo)
    echo.tell("into the void")


def test_no_sender(world: World) -> None:
    """Akka: what is told from outside any actor has dead letters for its sender."""
    probe = world.probe()
    world.spawn(SenderTeller, probe.ref).tell("x")
    assert probe.expect_msg_type(tuple) == ("x", world.system.dead_letters)


@everywhere
def test_implicit_sender(world: World) -> None:
    """Akka: what an actor tells has that actor for its sender."""
    probe = world.probe()
    relay = world.spawn(Relay)
    relay.tell((world.spawn(SenderTeller, probe.ref), "x"))
    assert probe.expect_msg_type(tuple) == ("x", relay)


def test_explicit_sender(world: World) -> None:
    """Akka: a sender that is given stands instead of the actor that tells."""
    probe = world.probe()
    teller = world.spawn(SenderTeller, probe.ref)
    world.spawn(Relay).tell((teller, "x", probe.ref))
    assert probe.expect_msg_type(tuple) == ("x", probe.ref)
    teller.tell("y", sender=probe.ref)
    assert probe.expect_msg_type(tuple) == ("y", probe.ref)


@everywhere
def test_reply_to_sender(world: World) -> None:
    """Akka, Thespian: a recipient can answer to the sender of a message, wherever each of them lives."""
    probe = world.probe()
    echo = world.spawn(Echo)
    echo.tell("x", sender=probe.ref)
    probe.expect_msg("x")
    assert probe.last_sender == echo


def test_probe_is_an_actor(world: World) -> None:
    """Akka: a probe answers to whoever has sent the last message."""
    probe, other = world.probe(), world.probe()
    world.spawn(Collector, probe.ref).tell("x", sender=other.ref)
    probe.expect_msg("x")
    probe.ref.tell("y", sender=other.ref)
    probe.expect_msg("y")
    probe.reply("answer")
    other.expect_msg("answer")


def test_one_at_a_time(world: World) -> None:
    """Akka: an actor handles one message at a time, also where its handler is a coroutine that waits."""
    probe = world.probe()
    slow = world.spawn(Slow, probe.ref)
    slow.tell(1)
    slow.tell(2)
    assert probe.receive_n(4) == [("begins", 1), ("ends", 1), ("begins", 2), ("ends", 2)]


def test_actors_run_side_by_side(world: World) -> None:
    """Akka: while one actor waits in its handler, others go on."""
    probe = world.probe()
    first, second = world.spawn(Slow, probe.ref), world.spawn(Slow, probe.ref)
    first.tell(1)
    second.tell(2)
    begun = [what for what in probe.receive_n(4) if what[0] == "begins"]
    assert sorted(begun) == [("begins", 1), ("begins", 2)]


def test_tell_oneself(world: World) -> None:
    """Pykka, Thespian: an actor may send to itself; the message waits until the present one is done."""
    probe = world.probe()
    world.spawn(Countdown, probe.ref).tell(3)
    assert probe.receive_n(4) == [3, "told", 2, 1]


def test_messages_behind_a_failing_one(world: World) -> None:
    """Akka: messages behind one that fails are handled all the same, in their order."""
    probe = world.probe()
    worker = world.spawn(Worker, probe.ref)
    worker.tell("a")
    worker.tell(Fail("ValueError"))
    worker.tell("b")
    worker.tell("c")
    got = [what[2] for what in probe.receive_n(8) if what[1] == "got"]
    assert got == ["a", "b", "c"]


def test_from_many_threads(world: World) -> None:
    """Pykka, Thespian: any thread may tell; what each thread tells keeps its order."""
    if world.is_deterministic:
        pytest.skip("a deterministic system is used from one thread")
    probe = world.probe()
    collector = world.spawn(Collector, probe.ref)

    def run(tag: str) -> None:
        for number in range(100):
            collector.tell(Tagged(tag, number))

    threads = [threading.Thread(target=run, args=(tag,)) for tag in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    received = probe.receive_n(300)
    for tag in "abc":
        assert [each.number for each in received if each.tag == tag] == list(range(100))


MESSAGES: dict[str, Any] = {
    "none": None,
    "true": True,
    "integer": -(2**62),
    "float": 123.456,
    "text": "grüße, 你好",
    "bytes": b"\x00\xff",
    "list": ["a", "list", [1, 2]],
    "tuple": ("a", "tuple", (1, ())),
    "dict": {"a": "dict", "b": {"c": None}},
    "dict of integers": {1: "one", 2: "two"},
    "set": {1, 2, 3},
    "frozenset": frozenset({"a"}),
    "enum": Colour.RED,
    "aware time": datetime.datetime(2026, 11, 21, 12, 0, 0, 5, tzinfo=datetime.UTC),
    "duration": datetime.timedelta(days=1, microseconds=1),
    "path": Path("/tmp/x"),
    "dataclass": Parcel("label", {"k": (1, Parcel("inner"))}),
}


@pytest.mark.parametrize("kind", MESSAGES)
def test_any_message(world: World, kind: str) -> None:
    """Pykka, Thespian: a message may be any plain value, nested, and arrives equal and of the same type."""
    answer = world.ask(world.spawn(Echo), MESSAGES[kind])
    assert answer == MESSAGES[kind]
    assert type(answer) is type(MESSAGES[kind])


def test_exception_as_message(world: World) -> None:
    """Pykka: an exception can be a message like any other."""
    probe = world.probe()
    world.spawn(Collector, probe.ref).tell(ValueError("as a message"))
    received = probe.expect_msg_type(ValueError)
    assert received.args == ("as a message",)


@everywhere
def test_ref_in_a_message(world: World) -> None:
    """Akka, Thespian: a ref in a message is a ref to the same actor at the recipient, who can send to it."""
    probe = world.probe()
    relay = world.spawn(Relay)
    relay.tell((world.spawn(Collector, probe.ref), "through two"))
    probe.expect_msg("through two")
    assert world.ask(relay, "me") == relay


def test_chain_of_refs(world: World) -> None:
    """Thespian: refs handed on from actor to actor stay good (its address passing suite)."""
    probe = world.probe()
    relays = [world.spawn(Relay) for _ in range(4)]
    what: Any = (probe.ref, "at the end")
    for relay in relays:
        what = (relay, what)
    world.spawn(Relay).tell(what)
    probe.expect_msg("at the end")
    assert probe.last_sender == relays[0]


@everywhere
def test_large_message(world: World) -> None:
    """Thespian: large messages arrive whole, and in their place among small ones."""
    probe = world.probe()
    collector = world.spawn(Collector, probe.ref)
    large = bytes(range(256)) * 4096
    collector.tell("before")
    collector.tell(large)
    collector.tell("after")
    assert probe.receive_n(3) == ["before", large, "after"]


def test_awaiting_inside_a_handler(world: World) -> None:
    """Ours: a coroutine handler may await an ask of another actor; its next message waits that long."""
    probe = world.probe()
    asking = world.spawn(Asking, probe.ref, world.spawn(Echo))
    asking.tell("a")
    asking.tell("b")
    assert probe.receive_n(2) == ["a", "b"]


class Asking(Actor):
    """Asks another and tells the probe the answer."""

    def __init__(self, probe: ActorRef, other: ActorRef) -> None:
        self.probe = probe
        self.ask: Callable[[Any], Awaitable[Any]] = other.ask

    async def receive(self, message: Any) -> None:
        self.probe.tell(await self.ask(message))

"""Contract: mailboxes. What a mailbox holds while its actor is busy, who is refused, what comes first."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from actors import Actor, ActorRef, ControlMessage, DeadLetter, Props, message
from actors.errors import MailboxFull
from actors.mailbox import (
    BoundedMailbox,
    ControlAwareMailbox,
    Overflow,
    PriorityMailbox,
    UnboundedMailbox,
)
from tests.contract.actor_harness import DEADLINE_S, QUIET_S, World, everywhere, in_one_process, on_processes
from tests.contract.actors_under_test import Batch, Collector, Tagged


@message
class Fill:
    """Tell yourself all of these, while you are busy with this one."""

    messages: list[Any]


@message
class Urgent(ControlMessage):
    """Overtakes the others in a control-aware mailbox."""

    text: str


class Filled(Actor):
    """Fills its own mailbox, then passes on what comes out of it to the probe."""

    def __init__(self, probe: ActorRef) -> None:
        self.probe = probe

    def receive(self, message: Any) -> None:
        if not isinstance(message, Fill):
            self.probe.tell(message)
            return
        for each in message.messages:
            try:
                self.self_ref.tell(each)
            except MailboxFull as error:
                named = self.self_ref.path in str(error)
                self.probe.tell(("refused" if named else "refused by nobody", each))


class SlowConsumer(Actor):
    """Takes a moment for each message."""

    def __init__(self, probe: ActorRef) -> None:
        self.probe = probe

    async def receive(self, message: Any) -> None:
        await asyncio.sleep(0.001)
        self.probe.tell(message)


class Flooder(Actor):
    """Tells another more than its mailbox holds, and reports each refusal."""

    def __init__(self, probe: ActorRef, to: ActorRef) -> None:
        self.probe = probe
        self.to = to

    def receive(self, count: int) -> None:
        for number in range(count):
            self.to.tell(number)
        self.probe.tell("sent")


def small_first(message: Any) -> int:
    """The priority of a message: numbers by their size, everything else last."""
    return message.number if isinstance(message, Tagged) else 1000


def filled(world: World, mailbox: Any, *messages: Any) -> tuple[ActorRef, Any]:
    probe = world.probe()
    actor = world.spawn(Props(Filled, probe.ref).with_mailbox(mailbox))
    actor.tell(Fill(list(messages)))
    return actor, probe


@everywhere
def test_unbounded(world: World) -> None:
    """Akka: the default mailbox holds whatever is sent, in its order."""
    _, probe = filled(world, UnboundedMailbox(), *range(3000))
    assert probe.receive_n(3000) == list(range(3000))


@everywhere
def test_bounded_fails_the_sender(world: World) -> None:
    """Akka: a full mailbox may refuse: the sender gets an error that names the actor; what was taken is kept."""
    _, probe = filled(world, BoundedMailbox(3, Overflow.FAIL), *range(5))
    assert probe.receive_n(5) == [("refused", 3), ("refused", 4), 0, 1, 2]


@everywhere
def test_bounded_drops_new(world: World) -> None:
    """Akka: a full mailbox may drop what is new; it goes to dead letters."""
    letters = world.probe()
    world.system.event_stream.subscribe(letters.ref, DeadLetter)
    actor, probe = filled(world, BoundedMailbox(3, Overflow.DROP_NEW), *range(5))
    assert probe.receive_n(3) == [0, 1, 2]
    assert [world.letter(letters, actor).message for _ in range(2)] == [3, 4]
    actor.tell("room again")
    probe.expect_msg("room again")


@everywhere
def test_bounded_drops_old(world: World) -> None:
    """Ours: a full mailbox may drop what is oldest; it goes to dead letters."""
    letters = world.probe()
    world.system.event_stream.subscribe(letters.ref, DeadLetter)
    actor, probe = filled(world, BoundedMailbox(3, Overflow.DROP_OLD), *range(5))
    assert probe.receive_n(3) == [2, 3, 4]
    assert [world.letter(letters, actor).message for _ in range(2)] == [0, 1]


def test_refused_ask(world: World) -> None:
    """Ours: an ask that a full mailbox refuses fails at once with MailboxFull, also when it comes from elsewhere."""
    probe = world.probe()
    actor = world.spawn(Props(Stuffed, probe.ref).with_mailbox(BoundedMailbox(2, Overflow.FAIL)))
    actor.tell("stuff")
    probe.expect_msg("stuffed")
    with pytest.raises(MailboxFull, match=actor.name):
        actor.ask("x", DEADLINE_S).result()
    probe.reply("go on")


class Stuffed(Actor):
    """Fills its mailbox, and then waits for a word of the probe, while senders find it full."""

    def __init__(self, probe: ActorRef) -> None:
        self.probe = probe

    async def receive(self, message: Any) -> None:
        if message == "stuff":
            for number in range(2):
                self.self_ref.tell(number)
            await self.probe.ask("stuffed", DEADLINE_S)


def test_full_and_stopped(world: World) -> None:
    """Akka: what the runtime tells an actor is not held up by a full mailbox: it can be stopped and watched."""
    probe = world.probe()
    actor = world.spawn(Props(Stuffed, probe.ref).with_mailbox(BoundedMailbox(2, Overflow.DROP_NEW)))
    actor.tell("stuff")
    probe.expect_msg("stuffed")
    world.system.stop(actor)
    watcher = world.probe()
    world.watch(watcher, actor)
    probe.reply("go on")
    watcher.expect_terminated(actor)


@on_processes
def test_back_pressure(world: World) -> None:
    """Ours: with back-pressure a fast sender in another process is slowed, and everything arrives in its order."""
    probe = world.probe()
    slow = world.spawn(Props(SlowConsumer, probe.ref).with_mailbox(BoundedMailbox(100, Overflow.BACKPRESSURE)))
    content = bytes(10_000)
    for number in range(2000):
        slow.tell((number, content))
    assert [number for number, _ in probe.receive_n(2000, DEADLINE_S)] == list(range(2000))


def test_flood_is_refused(world: World) -> None:
    """Ours: a sender that floods a bounded mailbox loses what it holds no room for; the actor goes on."""
    probe = world.probe()
    slow = world.spawn(Props(SlowConsumer, probe.ref).with_mailbox(BoundedMailbox(10, Overflow.DROP_NEW)))
    flooder = world.spawn(Flooder, probe.ref, slow)
    flooder.tell(500)
    received = [each for each in probe.receive_n(11) if each != "sent"]
    assert received == sorted(received)
    assert world.ask(world.spawn(Asked, slow), "still there") is True


class Asked(Actor):
    """Says whether the other can be identified."""

    def __init__(self, other: ActorRef) -> None:
        self.other = other

    async def receive(self, message: Any) -> None:
        asker = self.sender
        found = await self.context.actor_selection(self.other.path).resolve_one(DEADLINE_S)
        asker.tell(found == self.other)


@in_one_process
def test_refusal_in_the_sender(world: World) -> None:
    """Akka: whoever tells an actor of its own process, and finds its mailbox full, gets MailboxFull from tell."""
    probe = world.probe()
    slow = world.spawn(Props(SlowConsumer, probe.ref).with_mailbox(BoundedMailbox(1, Overflow.FAIL)))
    flooder = world.spawn(Catching, probe.ref, slow)
    flooder.tell("go")
    assert "refused" in probe.receive_n(2)


class Catching(Actor):
    """Tells until it is refused."""

    def __init__(self, probe: ActorRef, to: ActorRef) -> None:
        self.probe = probe
        self.to = to

    def receive(self, message: Any) -> None:
        try:
            for number in range(10):
                self.to.tell(number)
        except MailboxFull:
            self.probe.tell("refused")


@everywhere
def test_priority(world: World) -> None:
    """Akka: a priority mailbox gives the messages by their priority."""
    numbers = [Tagged("n", number) for number in (3, 1, 2)]
    _, probe = filled(world, PriorityMailbox("tests.contract.test_actor_mailboxes:small_first"), "last", *numbers)
    assert probe.receive_n(4) == [Tagged("n", 1), Tagged("n", 2), Tagged("n", 3), "last"]


def test_priority_is_stable(world: World) -> None:
    """Akka: among messages of one priority a (stable) priority mailbox keeps the order in which they were sent."""
    messages = [Tagged(tag, number) for tag in "abc" for number in (2, 1)]
    _, probe = filled(world, PriorityMailbox(small_first), *messages)
    assert probe.receive_n(6) == [Tagged(tag, number) for number in (1, 2) for tag in "abc"]


@everywhere
def test_control_aware(world: World) -> None:
    """Akka: a control-aware mailbox gives control messages before all others, in their own order."""
    _, probe = filled(world, ControlAwareMailbox(), "a", Urgent("first"), "b", Urgent("second"))
    assert probe.receive_n(4) == [Urgent("first"), Urgent("second"), "a", "b"]


@pytest.mark.parametrize("capacity", [0, -1])
def test_capacity(capacity: int) -> None:
    """Akka: a bounded mailbox holds at least one message."""
    with pytest.raises(ValueError):
        BoundedMailbox(capacity, Overflow.FAIL)


def test_mailbox_of_a_restarted_actor(world: World) -> None:
    """Akka: the mailbox keeps its kind over a restart."""
    probe = world.probe()
    actor = world.spawn(Props(Failing, probe.ref).with_mailbox(ControlAwareMailbox()))
    for what in ("fail", "a", Urgent("x")):
        actor.tell(what)
    assert set(map(str, probe.receive_n(2))) == {"a", str(Urgent("x"))}
    actor.tell(Fill(["b", Urgent("y")]))
    assert probe.receive_n(2) == [Urgent("y"), "b"]


class Failing(Filled):
    def receive(self, message: Any) -> None:
        if message == "fail":
            raise ValueError(message)
        super().receive(message)


def test_collector_under_load(world: World) -> None:
    """Thespian: many senders at once lose nothing on an unbounded mailbox."""
    probe = world.probe()
    collector = world.spawn(Collector, probe.ref)
    for tag in "abcdefgh":
        world.spawn(Batch).tell((collector, [Tagged(tag, number) for number in range(50)]))
    assert len(probe.receive_n(400)) == 400
    probe.expect_no_msg(QUIET_S)

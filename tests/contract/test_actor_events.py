"""Contract: dead letters and the event stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from actors import Actor, ActorRef, DeadLetter, PoisonPill, UnhandledMessage, message
from tests.contract.actor_harness import QUIET_S, World, everywhere
from tests.contract.actors_under_test import Echo, Silent


@message
class Event:
    """A kind of events of a test of its own: tests share the process system, and its event stream with it."""

    test: str
    what: Any = None


@message
class SpecialEvent(Event):
    """An event of a special kind."""


@message
class OtherEvent:
    test: str


class Publisher(Actor):
    """Publishes what it is told."""

    def receive(self, message: Any) -> None:
        self.context.system.event_stream.publish(message)


class Subscriber(Actor):
    """Subscribes itself, and passes on what it gets."""

    def __init__(self, probe: ActorRef, kind: str) -> None:
        self.probe = probe
        self.context.system.event_stream.subscribe(self.self_ref, {"Event": Event, "DeadLetter": DeadLetter}[kind])
        probe.tell("subscribed")

    def receive(self, message: Any) -> None:
        self.probe.tell(message)


@everywhere
def test_dead_letter(world: World) -> None:
    """Akka, Thespian: what is sent to an actor that has stopped is a dead letter: message, sender and recipient."""
    probe, sender = world.probe(), world.probe()
    echo = world.spawn(Echo)
    world.stop(echo)
    world.system.event_stream.subscribe(probe.ref, DeadLetter)
    echo.tell("x", sender=sender.ref)
    letter = world.letter(probe, echo)
    assert (letter.message, letter.sender, letter.recipient) == ("x", sender.ref, echo)


def test_dead_letter_to_nobody(world: World) -> None:
    """Akka: what is sent to a path where nobody has ever been is a dead letter."""
    probe = world.probe()
    world.system.event_stream.subscribe(probe.ref, DeadLetter)
    path = f"/user/{world.name('nobody')}"
    world.system.actor_selection(path).tell(("x", path))
    assert world.letter(probe, message=("x", path)).recipient.path == path


@everywhere
def test_a_dead_subscriber(world: World) -> None:
    """Akka: a subscriber that has stopped is subscribed no more, wherever it lived and whoever had subscribed it."""
    letters = world.probe()
    subscriber = world.spawn(Silent)
    world.system.event_stream.subscribe(subscriber, OtherEvent)
    world.system.event_stream.subscribe(letters.ref, DeadLetter)
    world.stop(subscriber)
    world.until(lambda: world.system.event_stream.table, lambda table: subscriber not in table, "its unsubscription")
    world.system.event_stream.publish(OtherEvent(world.name("gone")))
    world.no_letter(letters, subscriber)


@everywhere
def test_dead_letters_of_a_mailbox(world: World) -> None:
    """Akka: what waits in the mailbox of an actor when it stops goes to dead letters, in its order."""
    probe = world.probe()
    world.system.event_stream.subscribe(probe.ref, DeadLetter)
    silent = world.spawn(Silent)
    silent.tell(PoisonPill())
    for what in "abc":
        silent.tell(what)
    assert [world.letter(probe, silent).message for _ in range(3)] == ["a", "b", "c"]


def test_tell_dead_letters(world: World) -> None:
    """Akka: dead letters are an actor of the system like any other; what it is told is a dead letter."""
    probe = world.probe()
    world.system.event_stream.subscribe(probe.ref, DeadLetter)
    assert world.system.dead_letters.path == "/deadLetters"
    world.system.dead_letters.tell("straight to the dead")
    assert world.letter(probe, world.system.dead_letters).message == "straight to the dead"


def test_dead_letters_end(world: World) -> None:
    """Akka: a dead letter about a dead letter's subscriber goes round in no circle."""
    probe, watching = world.probe(), world.probe()
    subscriber = world.spawn(Subscriber, probe.ref, "DeadLetter")
    probe.expect_msg("subscribed")
    world.stop(subscriber)
    world.system.event_stream.subscribe(watching.ref, DeadLetter)
    subscriber.tell("x")
    assert world.letter(watching, subscriber).message == "x"
    world.no_letter(watching, subscriber)


def test_subscribe(world: World) -> None:
    """Akka: a subscriber gets the events of its class, and no others."""
    probe = world.probe()
    name = world.name()
    world.system.event_stream.subscribe(probe.ref, Event)
    world.system.event_stream.publish(OtherEvent(name))
    world.system.event_stream.publish(Event(name, 1))
    probe.expect_msg(Event(name, 1))
    probe.expect_no_msg(QUIET_S)


def test_subclasses(world: World) -> None:
    """Akka: a subscription holds for the subclasses too; one of a subclass not for its base."""
    probe, special = world.probe(), world.probe()
    name = world.name()
    world.system.event_stream.subscribe(probe.ref, Event)
    world.system.event_stream.subscribe(special.ref, SpecialEvent)
    world.system.event_stream.publish(SpecialEvent(name, 1))
    world.system.event_stream.publish(Event(name, 2))
    assert probe.receive_n(2) == [SpecialEvent(name, 1), Event(name, 2)]
    special.expect_msg(SpecialEvent(name, 1))
    special.expect_no_msg(QUIET_S)


def test_subscribed_twice(world: World) -> None:
    """Akka: whoever has subscribed to a class and to its base gets each event once."""
    probe = world.probe()
    name = world.name()
    for kind in (Event, Event, SpecialEvent):
        world.system.event_stream.subscribe(probe.ref, kind)
    world.system.event_stream.publish(SpecialEvent(name))
    probe.expect_msg(SpecialEvent(name))
    probe.expect_no_msg(QUIET_S)


def test_unsubscribe(world: World) -> None:
    """Akka: a subscriber may end one subscription, or all of them."""
    probe = world.probe()
    name = world.name()
    for kind in (Event, OtherEvent):
        world.system.event_stream.subscribe(probe.ref, kind)
    world.system.event_stream.unsubscribe(probe.ref, Event)
    world.system.event_stream.publish(Event(name))
    world.system.event_stream.publish(OtherEvent(name))
    probe.expect_msg(OtherEvent(name))
    world.system.event_stream.unsubscribe(probe.ref)
    world.system.event_stream.publish(OtherEvent(name))
    probe.expect_no_msg(QUIET_S)


@everywhere
def test_leave_out(world: World) -> None:
    """Akka: whoever unsubscribes from a class goes on being told of its base's other events."""
    probe = world.probe()
    name = world.name()
    world.system.event_stream.subscribe(probe.ref, Event)
    world.system.event_stream.unsubscribe(probe.ref, SpecialEvent)
    publisher = world.spawn(Publisher)
    world.until(heard_of(world, publisher, probe, name), bool, "an event of the other process")
    for event in (SpecialEvent(name), Event(name)):
        publisher.tell(event)
    while (event := probe.receive_one()) == OtherEvent(name):
        pass
    assert event == Event(name)


@everywhere
def test_published_elsewhere(world: World) -> None:
    """Ours: the event stream is the system's: events of other processes reach a subscriber here."""
    probe = world.probe()
    publisher = world.spawn(Publisher)
    heard = heard_of(world, publisher, probe, world.name())
    assert world.until(heard, bool, "an event of the other process")


@everywhere
def test_subscribed_elsewhere(world: World) -> None:
    """Ours: events of this process reach subscribers of others."""
    probe = world.probe()
    name = world.name()
    world.spawn(Subscriber, probe.ref, "Event")
    probe.expect_msg("subscribed")

    def published() -> bool:
        world.system.event_stream.publish(Event(name))
        return heard(probe, Event(name))

    assert world.until(published, bool, "an event in the other process")


@everywhere
def test_order_of_events(world: World) -> None:
    """Akka: events of one publisher are received in their order."""
    probe = world.probe()
    name = world.name()
    publisher = world.spawn(Publisher)
    world.system.event_stream.subscribe(probe.ref, Event)
    world.until(heard_of(world, publisher, probe, name), bool, "the subscription's arrival")
    for number in range(50):
        publisher.tell(Event(name, number))
    received: list[int] = []
    while len(received) < 50:
        received += [each.what for each in probe.receive_n(1) if isinstance(each, Event)]
    assert received == list(range(50))


def heard_of(world: World, publisher: ActorRef, probe: Any, name: str) -> Callable[[], bool]:
    """Asks whether an event of the publisher's comes through: its process hears of a subscription a moment later."""
    world.system.event_stream.subscribe(probe.ref, OtherEvent)

    def published() -> bool:
        publisher.tell(OtherEvent(name))
        return heard(probe, OtherEvent(name))

    return published


def heard(probe: Any, event: Any) -> bool:
    try:
        probe.expect_msg(event, 0.2)
    except AssertionError:
        return False
    return True


def test_dead_subscriber(world: World) -> None:
    """Akka: a subscriber that stops is unsubscribed."""
    probe, letters = world.probe(), world.probe()
    name = world.name()
    subscriber = world.spawn(Subscriber, probe.ref, "Event")
    probe.expect_msg("subscribed")
    world.stop(subscriber)
    world.system.event_stream.subscribe(letters.ref, DeadLetter)
    world.system.event_stream.publish(Event(name))
    world.no_letter(letters, subscriber)
    probe.expect_no_msg(QUIET_S)


def test_unhandled_event(world: World) -> None:
    """Akka: messages that nobody handles can be subscribed to."""
    probe = world.probe()
    world.system.event_stream.subscribe(probe.ref, UnhandledMessage)
    actor = world.spawn(Unwilling)
    actor.tell("x")
    assert probe.expect_msg_type(UnhandledMessage).recipient == actor


class Unwilling(Actor):
    def receive(self, message: Any) -> None:
        self.unhandled(message)

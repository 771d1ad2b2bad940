"""Contract: become, unbecome, stash, unhandled messages."""

from __future__ import annotations

import asyncio
from typing import Any

from actors import Actor, ActorRef, DeadLetter, PoisonPill, Terminated, UnhandledMessage
from tests.contract.actor_harness import DEADLINE_S, QUIET_S, World, everywhere
from tests.contract.actors_under_test import ERRORS, Fail, Silent


class Moody(Actor):
    """Says in which mood it is; moods are put on each other or replaced."""

    def receive(self, message: Any) -> None:
        self.obey(message, "default")

    def deep(self, message: Any) -> None:
        self.obey(message, "deep")

    async def deeper(self, message: Any) -> None:
        await asyncio.sleep(0)
        self.obey(message, "deeper")

    def obey(self, message: Any, mood: str) -> None:
        match message:
            case "mood":
                self.reply(mood)
            case ("become", name):
                self.context.become(getattr(self, name))
            case ("put on", name):
                self.context.become(getattr(self, name), discard_old=False)
            case "unbecome":
                self.context.unbecome()
            case Fail(kind, text):
                raise ERRORS[kind](text)
            case _:
                self.unhandled(message)


class Door(Actor):
    """Stashes whoever comes while it is closed."""

    def __init__(self, probe: ActorRef) -> None:
        self.probe = probe

    def receive(self, message: Any) -> None:
        match message:
            case "open":
                self.probe.tell("opened")
                self.context.become(self.opened)
                self.context.unstash_all()
            case Fail(kind, text):
                raise ERRORS[kind](text)
            case _:
                self.context.stash()

    def opened(self, message: Any) -> None:
        match message:
            case "close":
                self.context.unbecome()
            case "who":
                self.reply("open")
            case _:
                self.probe.tell((message, self.sender))


class StashesTwice(Actor):
    """Stashes the same message twice and tells what has come of it."""

    def receive(self, message: Any) -> None:
        self.context.stash()
        try:
            self.context.stash()
        except Exception as error:
            self.reply(type(error).__name__)
        else:
            self.reply("stashed twice")


def moods(world: World, *orders: Any) -> str:
    actor = world.spawn(Moody)
    for order in orders:
        actor.tell(order)
    mood: str = world.ask(actor, "mood")
    return mood


def test_become(world: World) -> None:
    """Akka, Pykka: become changes how the next message is handled."""
    assert moods(world) == "default"
    assert moods(world, ("become", "deep")) == "deep"


def test_become_coroutine(world: World) -> None:
    """Ours: a behaviour may be a coroutine."""
    assert moods(world, ("become", "deeper"), ("become", "deep"), ("become", "deeper")) == "deeper"


def test_become_replaces(world: World) -> None:
    """Akka, Pykka: become replaces the present behaviour: one unbecome leads back to receive."""
    assert moods(world, ("become", "deep"), ("become", "deeper"), "unbecome") == "default"


def test_become_stacks(world: World) -> None:
    """Akka, Pykka: become with discard_old=False puts a behaviour on the present one, unbecome takes it off."""
    assert moods(world, ("become", "deep"), ("put on", "deeper")) == "deeper"
    assert moods(world, ("become", "deep"), ("put on", "deeper"), "unbecome") == "deep"


def test_unbecome_at_the_bottom(world: World) -> None:
    """Pykka: the first behaviour, receive, cannot be taken off."""
    assert moods(world, "unbecome", ("become", "deep"), "unbecome", "unbecome") == "default"


def test_restart_resets_behaviour(world: World) -> None:
    """Akka: a restarted actor begins with receive again."""
    assert moods(world, ("become", "deep"), ("put on", "deeper"), Fail("ValueError")) == "default"


@everywhere
def test_unstash(world: World) -> None:
    """Akka: unstash_all puts the stashed messages before those that wait, in their order, with their senders."""
    probe, sender = world.probe(), world.probe()
    door = world.spawn(Door, probe.ref)
    for what in ("a", "b", "open", "c"):
        door.tell(what, sender=sender.ref)
    assert probe.receive_n(4) == ["opened", ("a", sender.ref), ("b", sender.ref), ("c", sender.ref)]


def test_stashed_asks(world: World) -> None:
    """Akka: an ask that was stashed is answered when it is unstashed."""
    door = world.spawn(Door, world.probe().ref)
    ask = door.ask("who", DEADLINE_S)
    door.tell("open")
    assert ask.result() == "open"


def test_stash_again(world: World) -> None:
    """Akka: a message that was unstashed may be stashed anew."""
    probe = world.probe()
    door = world.spawn(Door, probe.ref)
    for what in ("a", "close", "b", "open", "open"):
        door.tell(what, sender=probe.ref)
    assert probe.receive_n(4) == ["opened", ("a", probe.ref), "opened", ("b", probe.ref)]


def test_stash_twice(world: World) -> None:
    """Akka: to stash one message twice is an error."""
    assert world.ask(world.spawn(StashesTwice), "x") != "stashed twice"


def test_stash_survives_restart(world: World) -> None:
    """Akka: a restart puts what was stashed back into the mailbox."""
    probe = world.probe()
    door = world.spawn(Door, probe.ref)
    for what in ("a", Fail("ValueError"), "open"):
        door.tell(what, sender=probe.ref)
    assert probe.receive_n(2) == ["opened", ("a", probe.ref)]


def test_stash_of_a_stopped_actor(world: World) -> None:
    """Akka: what is in the stash when an actor stops goes to dead letters."""
    letters = world.probe()
    world.system.event_stream.subscribe(letters.ref, DeadLetter)
    door = world.spawn(Door, letters.ref)
    door.tell("a")
    world.stop(door)
    assert world.letter(letters, door).message == "a"


def test_poison_pill_is_not_stashed(world: World) -> None:
    """Akka: a poison pill is handled by the runtime, whatever the behaviour does with messages."""
    door = world.spawn(Door, world.probe().ref)
    door.tell("a")
    door.tell(PoisonPill())
    world.wait_stopped(door)


class Mourner(Actor):
    """Stashes whatever comes, until it is told to be open, or to be open after a restart."""

    def __init__(self, probe: ActorRef, watched: ActorRef) -> None:
        self.probe = probe
        self.context.watch(watched)
        self.watched = watched
        self.timers.start_single_timer("once", "tick", 0.0)

    def receive(self, message: Any) -> None:
        match message:
            case "open":
                self.context.become(self.opened)
                self.context.unstash_all()
            case "unwatch":
                self.context.unwatch(self.watched)
            case Fail(kind, text):
                raise ERRORS[kind](text)
            case _:
                self.context.stash()
                self.probe.tell("stashed")

    def opened(self, message: Any) -> None:
        self.probe.tell(("received", message))


@everywhere
def test_terminated_and_ticks_are_stashed(world: World) -> None:
    """Akka: a Terminated or a timer's message that was stashed is received when the stash is taken back."""
    probe, watched = world.probe(), world.spawn(Silent)
    mourner = world.spawn(Mourner, probe.ref, watched)
    probe.expect_msg("stashed")
    world.system.stop(watched)
    probe.expect_msg("stashed")
    mourner.tell("open")
    assert probe.receive_n(1) == [("received", "tick")]
    ((_, terminated),) = probe.receive_n(1)
    assert isinstance(terminated, Terminated)
    assert terminated.actor == watched


def test_unwatch_and_the_stash(world: World) -> None:
    """Ours: a Terminated in the stash is not received once its actor is not watched any more."""
    probe, watched = world.probe(), world.spawn(Silent)
    mourner = world.spawn(Mourner, probe.ref, watched)
    world.system.stop(watched)
    probe.receive_n(2)
    for what in ("unwatch", "open", "last"):
        mourner.tell(what)
    assert probe.receive_n(2) == [("received", "tick"), ("received", "last")]


def test_unhandled_is_published(world: World) -> None:
    """Akka: a message that the behaviour has no use for is published as UnhandledMessage; the actor goes on."""
    events = world.probe()
    world.system.event_stream.subscribe(events.ref, UnhandledMessage)
    moody = world.spawn(Moody)
    moody.tell("nonsense", sender=events.ref)
    event = events.expect_msg_type(UnhandledMessage)
    assert (event.message, event.sender, event.recipient) == ("nonsense", events.ref, moody)
    assert world.ask(moody, "mood") == "default"


def test_falling_through_is_handling(world: World) -> None:
    """Ours: a handler that simply returns has handled the message; only `unhandled` says otherwise."""
    events = world.probe()
    world.system.event_stream.subscribe(events.ref, UnhandledMessage)
    world.spawn(Silent).tell("nonsense")
    events.expect_no_msg(QUIET_S)

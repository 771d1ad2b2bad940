"""Contract: the life of an actor, from its creation to its end."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from actors import Actor, ActorRef, DeadLetter, Failure, Kill, PoisonPill, Props
from actors.errors import AskTimeout, RecipientTerminated, RemoteError
from actors.supervision import Directive, OneForOneStrategy
from tests.contract.actor_harness import DEADLINE_S, QUIET_S, World, everywhere
from tests.contract.actors_under_test import Boss, Echo, Fail, Quiet, Worker


class Built(Actor):
    """Tells the probe what it was built with, and what it saw of its context meanwhile."""

    def __init__(self, probe: ActorRef, *args: Any, **kwargs: Any) -> None:
        probe.tell((self.self_ref, self.context.parent.path, args, kwargs))


class AsyncHooks(Actor):
    """Has coroutines for hooks; each of them waits a little."""

    def __init__(self, probe: ActorRef) -> None:
        self.probe = probe

    async def pre_start(self) -> None:
        await asyncio.sleep(0.01)
        self.probe.tell("pre_start")

    async def post_stop(self) -> None:
        await asyncio.sleep(0.01)
        self.probe.tell("post_stop")

    async def receive(self, message: Any) -> None:
        await asyncio.sleep(0)
        self.probe.tell(message)


class Unbuildable(Actor):
    """Fails in its constructor, after it has told the probe."""

    def __init__(self, probe: ActorRef) -> None:
        probe.tell("built")
        raise ValueError("cannot be built")


class Unstartable(Actor):
    """Fails in pre_start."""

    def __init__(self, probe: ActorRef) -> None:
        self.probe = probe

    def pre_start(self) -> None:
        self.probe.tell("pre_start")
        raise ValueError("cannot be started")


class Unstoppable(Actor):
    """Fails in post_stop."""

    def __init__(self, probe: ActorRef) -> None:
        self.probe = probe

    def post_stop(self) -> None:
        self.probe.tell("post_stop")
        raise ValueError("cannot be stopped")

    def receive(self, message: Any) -> None:
        pass


class Ephemeral(Worker):
    """Stops itself before its first message."""

    def pre_start(self) -> None:
        self.context.stop(self.self_ref)


class Busy(Actor):
    """Is told to stop while it handles a message, and tells when it is through with it."""

    def __init__(self, probe: ActorRef) -> None:
        self.probe = probe

    async def receive(self, message: Any) -> None:
        self.context.stop(self.self_ref)
        self.context.stop(self.self_ref)
        await asyncio.sleep(0.01)
        self.probe.tell(("through", message))

    def post_stop(self) -> None:
        self.probe.tell("post_stop")


class LongGoodbye(Actor):
    """Stops when the probe has answered."""

    def __init__(self, probe: ActorRef) -> None:
        self.probe = probe

    async def post_stop(self) -> None:
        await self.probe.ask("may I stop?", DEADLINE_S)

    def receive(self, message: Any) -> None:
        pass


class Patriarch(Actor):
    """Three generations: a child, which has a child."""

    def __init__(self, probe: ActorRef, depth: int) -> None:
        self.probe = probe
        self.depth = depth
        if depth > 1:
            self.context.actor_of(Props(Patriarch, probe, depth - 1), "heir")

    def receive(self, message: Any) -> None:
        pass

    def post_stop(self) -> None:
        self.probe.tell(("post_stop", self.depth))


class Forgiving(Boss):
    """Restarts children that are killed."""

    supervisor_strategy = OneForOneStrategy({Exception: Directive.RESTART})
    child = Worker


@everywhere
def test_constructor(world: World) -> None:
    """Akka, Pykka: an actor is built with the arguments of its props; its context is there while it is built."""
    probe = world.probe()
    ref = world.spawn(Built, probe.ref, 1, "two", three=(3,))
    own, parent, args, kwargs = probe.expect_msg_type(tuple)
    assert (own, parent) == (ref, "/user")
    assert (tuple(args), kwargs) == ((1, "two"), {"three": (3,)})


@everywhere
def test_order_of_hooks(world: World) -> None:
    """Akka, Pykka: pre_start comes before the first message, post_stop after the last one."""
    probe = world.probe()
    worker = world.spawn(Worker, probe.ref)
    worker.tell("a")
    worker.tell("b")
    probe.receive_n(3)
    world.system.stop(worker)
    probe.expect_msg(("worker", "post_stop"))
    probe.expect_no_msg(QUIET_S)


def test_order_of_first_hooks(world: World) -> None:
    """Akka, Pykka: messages that were sent before the actor had started wait for pre_start."""
    probe = world.probe()
    world.spawn(Worker, probe.ref).tell("a")
    assert probe.receive_n(2) == [("worker", "pre_start"), ("worker", "got", "a")]


def test_async_hooks(world: World) -> None:
    """Ours: hooks may be coroutines; messages and the end wait for them."""
    probe = world.probe()
    actor = world.spawn(AsyncHooks, probe.ref)
    actor.tell("a")
    actor.tell(PoisonPill())
    assert probe.receive_n(3) == ["pre_start", "a", "post_stop"]


@everywhere
def test_constructor_fails(world: World) -> None:
    """Akka: an actor whose constructor fails is stopped; its watchers are told, and asks fail at once."""
    probe = world.probe()
    ref = world.spawn(Unbuildable, probe.ref)
    world.wait_stopped(ref)
    probe.expect_msg("built")
    probe.expect_no_msg(QUIET_S)
    with pytest.raises(RecipientTerminated):
        world.ask(ref, "x")


@everywhere
def test_pre_start_fails(world: World) -> None:
    """Akka, Pykka: an actor whose pre_start fails is stopped, not restarted."""
    probe = world.probe()
    world.wait_stopped(world.spawn(Unstartable, probe.ref))
    probe.expect_msg("pre_start")
    probe.expect_no_msg(QUIET_S)


def test_post_stop_fails(world: World) -> None:
    """Pykka: an actor whose post_stop fails has stopped all the same."""
    probe = world.probe()
    ref = world.spawn(Unstoppable, probe.ref)
    world.stop(ref)
    probe.expect_msg("post_stop")


def test_stop_in_pre_start(world: World) -> None:
    """Pykka: an actor may stop itself before its first message, which it then never gets."""
    probe = world.probe()
    ref = world.spawn(Ephemeral, probe.ref)
    ref.tell("a")
    world.wait_stopped(ref)
    probe.expect_msg(("worker", "post_stop"))
    probe.expect_no_msg(QUIET_S)


def test_stop_finishes_the_message(world: World) -> None:
    """Akka: stop lets the present message be finished; those behind it are dead letters. A second stop is harmless."""
    probe, letters = world.probe(), world.probe()
    world.system.event_stream.subscribe(letters.ref, DeadLetter)
    busy = world.spawn(Busy, probe.ref)
    busy.tell("a")
    busy.tell("b")
    assert probe.receive_n(2) == [("through", "a"), "post_stop"]
    assert world.letter(letters, busy).message == "b"
    probe.expect_no_msg(QUIET_S)


def test_stop_the_dead(world: World) -> None:
    """Pykka: stopping an actor that has stopped already does nothing."""
    echo = world.spawn(Echo)
    world.stop(echo)
    world.stop(echo)


@everywhere
def test_poison_pill(world: World) -> None:
    """Akka, Pykka: a poison pill stops the actor after the messages before it; those after it are dead letters."""
    probe, letters = world.probe(), world.probe()
    world.system.event_stream.subscribe(letters.ref, DeadLetter)
    worker = world.spawn(Worker, probe.ref)
    for what in ("a", "b", PoisonPill(), "c"):
        worker.tell(what)
    assert [what[1:] for what in probe.receive_n(4)] == [("pre_start",), ("got", "a"), ("got", "b"), ("post_stop",)]
    assert world.letter(letters, worker).message == "c"


@everywhere
def test_kill(world: World) -> None:
    """Akka: Kill makes the actor fail; by default its supervisor stops it, and watchers are told."""
    probe = world.probe()
    worker = world.spawn(Worker, probe.ref)
    worker.tell(Kill())
    world.wait_stopped(worker)
    assert probe.receive_n(2) == [("worker", "pre_start"), ("worker", "post_stop")]


def test_kill_is_a_failure(world: World) -> None:
    """Akka: what comes of Kill is for the supervisor to decide; it may restart the actor."""
    probe = world.probe()
    (child,) = world.ask(world.spawn(Forgiving, probe.ref, "kid"), "children")
    child.tell(Kill())
    child.tell("a")
    words = [what[1] for what in probe.receive_n(6)]
    assert words == ["pre_start", "pre_restart", "post_stop", "post_restart", "pre_start", "got"]


def test_graceful_stop(world: World) -> None:
    """Akka: graceful_stop answers True when the actor has terminated, post_stop included."""
    probe = world.probe()
    worker = world.spawn(Worker, probe.ref)
    assert world.system.graceful_stop(worker, DEADLINE_S).result() is True
    assert probe.receive_n(2) == [("worker", "pre_start"), ("worker", "post_stop")]
    world.spawn(Worker, probe.ref, name=worker.name)


def test_graceful_stop_of_the_dead(world: World) -> None:
    """Akka: graceful_stop of an actor that has stopped already answers True."""
    echo = world.spawn(Echo)
    world.stop(echo)
    assert world.system.graceful_stop(echo, DEADLINE_S).result() is True


def test_graceful_stop_too_slow(world: World) -> None:
    """Akka: graceful_stop fails with a timeout when the actor takes longer."""
    probe = world.probe()
    actor = world.spawn(LongGoodbye, probe.ref)
    with pytest.raises(AskTimeout, match=actor.name):
        world.system.graceful_stop(actor, 0.05).result()
    probe.expect_msg("may I stop?")
    probe.reply("yes")
    world.wait_stopped(actor)


@everywhere
def test_children_stop_first(world: World) -> None:
    """Akka, Thespian: an actor has stopped when all its children have, down to the last generation."""
    probe = world.probe()
    world.stop(world.spawn(Patriarch, probe.ref, 4))
    assert probe.receive_n(4) == [("post_stop", depth) for depth in (1, 2, 3, 4)]


def test_children_stop_with_a_killed_parent(world: World) -> None:
    """Thespian: children of an actor that was killed stop as well."""
    probe = world.probe()
    patriarch = world.spawn(Patriarch, probe.ref, 3)
    patriarch.tell(Kill())
    world.wait_stopped(patriarch)
    assert probe.receive_n(3) == [("post_stop", depth) for depth in (1, 2, 3)]


def test_stop_a_child(world: World) -> None:
    """Akka: an actor may stop a child; it has one less then, and its other children go on."""
    boss = world.spawn(Boss, world.probe().ref, "a", "b")
    a, b = world.ask(boss, "children")
    boss.tell(("stop", "a"))
    world.wait_stopped(a)
    assert world.until(lambda: world.ask(boss, "living"), lambda living: living == ["b"], "the end of a") == ["b"]
    assert world.ask(b, "count") == 0


def test_failing_is_not_stopping(world: World) -> None:
    """Akka: an actor that fails is restarted by default (Pykka stops it: there is no such promise here)."""
    worker = world.spawn(Quiet, world.probe().ref)
    worker.tell(Fail("ValueError"))
    assert world.ask(worker, "ref") == worker


@everywhere
def test_exit_of_a_handler(world: World) -> None:
    """Ours: sys.exit in a handler stops that actor; its asker is told, and the system and its process go on."""
    worker, other = world.spawn(Quiet, world.probe().ref), world.spawn(Quiet, world.probe().ref)
    with pytest.raises(RemoteError, match="SystemExit"):
        world.ask(worker, Fail("SystemExit"))
    world.wait_stopped(worker)
    assert world.ask(other, "count") == 0


def test_exit_of_what_is_piped(world: World) -> None:
    """Ours: sys.exit in a coroutine whose result is piped arrives as Failure."""
    probe = world.probe()
    world.spawn(Piper, probe.ref)
    failure = probe.expect_msg_type(Failure)
    assert isinstance(failure.error, SystemExit)


class Piper(Actor):
    """Pipes the result of a coroutine that exits."""

    def __init__(self, probe: ActorRef) -> None:
        self.context.pipe_to(self.leave(), probe)

    async def leave(self) -> None:
        sys.exit(3)

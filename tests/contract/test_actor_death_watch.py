"""Contract: death watch."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from actors import Actor, ActorRef, ActorSystem, AskTimeout, Kill, PoisonPill, Props, Terminated
from tests.contract.actor_harness import DEADLINE_S, QUIET_S, World, everywhere, on_pinned
from tests.contract.actors_under_test import Boss, Echo, Fail, Quiet, Worker
from tests.waiting import LONGER_THAN_PATIENCE_S, PATIENCE_S


class Watcher(Actor):
    """Watches whom it is told to and passes on what it hears."""

    def __init__(self, probe: ActorRef) -> None:
        self.probe = probe

    def receive(self, message: Any) -> None:
        match message:
            case ("watch", ref):
                self.context.watch(ref)
                self.reply("watching")
            case ("unwatch", ref):
                self.context.unwatch(ref)
                self.reply("not watching")
            case Terminated(actor=actor):
                self.probe.tell(("terminated", actor))
            case _:
                self.probe.tell(message)


class Mourner(Actor):
    """Watches and has no use for Terminated."""

    def __init__(self, probe: ActorRef, other: ActorRef) -> None:
        self.probe = probe
        self.context.watch(other)

    def receive(self, message: Any) -> None:
        if isinstance(message, Terminated):
            self.unhandled(message)

    def post_stop(self) -> None:
        self.probe.tell("post_stop")


class Talker(Actor):
    """Tells an actor some things, then stops."""

    def __init__(self, listener: ActorRef) -> None:
        self.listener = listener

    def receive(self, message: Any) -> None:
        for number in range(20):
            self.listener.tell(number)
        self.context.stop(self.self_ref)


class Successor(Actor):
    """Has a child, and makes another of that name when the first has gone."""

    def __init__(self, probe: ActorRef) -> None:
        self.probe = probe
        self.beget()

    def beget(self) -> None:
        self.child = self.context.actor_of(Props(Echo), "heir")
        self.context.watch(self.child)
        self.probe.tell(self.child)

    def receive(self, message: Any) -> None:
        match message:
            case Terminated():
                self.beget()
            case "stop":
                self.context.stop(self.child)


@everywhere
def test_terminated(world: World) -> None:
    """Akka: a watcher is told Terminated when the other has stopped (Thespian: ChildActorExited, for children only)."""
    probe = world.probe()
    echo = world.spawn(Echo)
    world.watch(probe, echo)
    world.system.stop(echo)
    terminated = probe.expect_terminated(echo)
    assert (terminated.actor, terminated.existence_confirmed, terminated.address_terminated) == (echo, True, False)


@everywhere
def test_watch_by_an_actor(world: World) -> None:
    """Akka: any actor may watch any other."""
    probe = world.probe()
    watcher, echo = world.spawn(Watcher, probe.ref), world.spawn(Echo)
    assert world.ask(watcher, ("watch", echo)) == "watching"
    echo.tell(PoisonPill())
    probe.expect_msg(("terminated", echo))


@pytest.mark.parametrize("end", ["stop", "poison", "kill", "self"])
def test_every_end(world: World, end: str) -> None:
    """Akka: Terminated comes whatever way the actor ends."""
    probe = world.probe()
    actor = world.spawn(Quiet, probe.ref)
    world.watch(probe, actor)
    match end:
        case "stop":
            world.system.stop(actor)
        case "poison":
            actor.tell(PoisonPill())
        case "kill":
            actor.tell(Kill())
        case "self":
            actor.tell("stop")
    probe.expect_terminated(actor)


def test_after_post_stop(world: World) -> None:
    """Akka: Terminated is sent after post_stop."""
    probe = world.probe()
    worker = world.spawn(Worker, probe.ref)
    probe.expect_msg(("worker", "pre_start"))
    world.watch(probe, worker)
    world.system.stop(worker)
    probe.expect_msg(("worker", "post_stop"))
    probe.expect_terminated(worker)


@everywhere
def test_after_the_last_words(world: World) -> None:
    """Akka: what an actor has told its watcher before its end arrives before Terminated."""
    probe = world.probe()
    talker = world.spawn(Talker, probe.ref)
    world.watch(probe, talker)
    talker.tell("go")
    assert probe.receive_n(20) == list(range(20))
    probe.expect_terminated(talker)


def test_watch_the_dead(world: World) -> None:
    """Akka: to watch an actor that has terminated gives Terminated at once."""
    echo = world.spawn(Echo)
    world.stop(echo)
    probe = world.probe()
    probe.watch(echo)
    probe.expect_terminated(echo)


@everywhere
def test_watch_one_that_never_was(world: World) -> None:
    """Akka: to watch one that never existed gives Terminated without existence confirmed."""
    probe = world.probe()
    dead = world.spawn(Echo)
    never = ActorRef.parse(str(dead.address.with_path(f"/user/{world.name('never')}")) + "#7", world.system)
    probe.watch(never)
    assert probe.expect_terminated(never).existence_confirmed is False


def test_unwatch(world: World) -> None:
    """Akka: after unwatch no Terminated comes."""
    probe = world.probe()
    watcher, echo = world.spawn(Watcher, probe.ref), world.spawn(Echo)
    world.ask(watcher, ("watch", echo))
    world.ask(watcher, ("unwatch", echo))
    world.stop(echo)
    probe.expect_no_msg(QUIET_S)


def test_unwatch_what_waits(world: World) -> None:
    """Akka: after unwatch Terminated is not received, even when it waits in the mailbox already."""
    probe = world.probe()
    boss = world.spawn(Late, probe.ref)
    boss.tell("go")
    probe.expect_msg("unwatched")
    probe.expect_no_msg(QUIET_S)


class Late(Actor):
    """Unwatches in the handler in which the other ends."""

    def __init__(self, probe: ActorRef) -> None:
        self.probe = probe
        self.child = self.context.actor_of(Props(Echo), "child")
        self.context.watch(self.child)

    async def receive(self, message: Any) -> None:
        if message == "go":
            probe_end = self.context.system.graceful_stop(self.child, DEADLINE_S)
            await probe_end
            self.context.unwatch(self.child)
            self.probe.tell("unwatched")
        else:
            self.probe.tell(message)


def test_watch_twice(world: World) -> None:
    """Akka: to watch twice is to watch once: one Terminated comes."""
    probe = world.probe()
    watcher, echo = world.spawn(Watcher, probe.ref), world.spawn(Echo)
    world.ask(watcher, ("watch", echo))
    world.ask(watcher, ("watch", echo))
    world.stop(echo)
    probe.expect_msg(("terminated", echo))
    probe.expect_no_msg(QUIET_S)


@everywhere
def test_many_watchers(world: World) -> None:
    """Akka: each watcher of an actor is told."""
    probe = world.probe()
    echo = world.spawn(Echo)
    for _ in range(5):
        world.ask(world.spawn(Watcher, probe.ref), ("watch", echo))
    world.system.stop(echo)
    assert probe.receive_n(5) == [("terminated", echo)] * 5


def test_not_on_restart(world: World) -> None:
    """Akka: a restart is not a death."""
    probe = world.probe()
    watcher, worker = world.spawn(Watcher, probe.ref), world.spawn(Quiet, probe.ref)
    world.ask(watcher, ("watch", worker))
    worker.tell(Fail("ValueError"))
    assert world.ask(worker, "count") == 0
    probe.expect_no_msg(QUIET_S)


def test_death_pact(world: World) -> None:
    """Akka: an actor that watches and does not handle Terminated fails with DeathPactError, and is stopped."""
    probe = world.probe()
    echo = world.spawn(Echo)
    mourner = world.spawn(Mourner, probe.ref, echo)
    world.stop(echo)
    probe.expect_msg("post_stop")
    world.wait_stopped(mourner)


def test_parent_watches(world: World) -> None:
    """Akka, Thespian: a parent may watch its child, and make another under the same name once it knows of its end."""
    probe = world.probe()
    successor = world.spawn(Successor, probe.ref)
    first = probe.expect_msg_type(ActorRef)
    successor.tell("stop")
    second = probe.expect_msg_type(ActorRef)
    assert (second.path, second == first) == (first.path, False)
    assert world.ask(second, "x") == "x"


def test_grandchild(world: World) -> None:
    """Akka: the end of a tree is told of each of its actors that is watched, the children's before the parent's."""
    probe = world.probe()
    boss = world.spawn(Boss, world.probe().ref, "a")
    (child,) = world.ask(boss, "children")
    watcher = world.spawn(Watcher, probe.ref)
    world.ask(watcher, ("watch", child))
    world.ask(watcher, ("watch", boss))
    world.system.stop(boss)
    assert probe.receive_n(2) == [("terminated", child), ("terminated", boss)]


def test_watcher_dies_first(world: World) -> None:
    """Akka: a watcher that has stopped is told nothing, and leaves nothing behind."""
    probe = world.probe()
    watcher, echo = world.spawn(Watcher, probe.ref), world.spawn(Echo)
    world.ask(watcher, ("watch", echo))
    world.stop(watcher)
    world.stop(echo)
    probe.expect_no_msg(QUIET_S)


@on_pinned
def test_killed_process(world: World) -> None:
    """Thespian: when the process of an actor is killed, whoever watches it is told (and that its address has gone)."""
    probe = world.probe()
    worker = world.spawn(Quiet, probe.ref)
    world.watch(probe, worker)
    os.kill(world.ask(worker, "pid"), signal.SIGKILL)
    assert probe.expect_terminated(worker).address_terminated is True


@on_pinned
def test_ask_of_a_killed_process(world: World) -> None:
    """Ours: an ask that is under way when the recipient's process is killed fails at once."""
    worker = world.spawn(Quiet, world.probe().ref)
    pid = world.ask(worker, "pid")
    ask = worker.ask("no reply", LONGER_THAN_PATIENCE_S)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ConnectionError):
        ask.result(PATIENCE_S)


def test_killed_process_of_many() -> None:
    """Ours: when a process that many actors share is killed, each of those that are watched is told of."""
    with ActorSystem("doomed") as system:
        doomed = World(system, "shared")
        probe = doomed.probe()
        refs = [doomed.spawn(Quiet, probe.ref) for _ in range(5)]
        for ref in refs:
            doomed.watch(probe, ref)
        os.kill(doomed.ask(refs[0], "pid"), signal.SIGKILL)
        ended = [each.actor for each in probe.receive_n(5)]
        assert sorted(ended) == sorted(refs)
        assert doomed.ask(doomed.spawn(Echo), "a new process") == "a new process"


class Clerk(Actor):
    """Watches whoever asks, at once or when it is told to, and tells the probe of their ends."""

    def __init__(self, probe: ActorRef) -> None:
        self.probe = probe

    def receive(self, message: Any) -> None:
        match message:
            case "watch":
                self.asker = self.context.watch(self.sender)
            case "watch and reply":
                self.asker = self.context.watch(self.sender)
                self.reply("done")
            case "reply":
                self.asker = self.sender
                self.reply("done")
            case "watch it now":
                self.context.watch(self.asker)
            case "unwatch it":
                self.context.unwatch(self.asker)
            case "answer it":
                self.asker.tell("done")
            case Terminated(actor):
                self.probe.tell(("ended", actor == self.asker))


@everywhere
def test_asker_that_was_answered(world: World) -> None:
    """Akka: an asker that is watched has terminated when it has its reply."""
    probe = world.probe()
    clerk = world.spawn(Clerk, probe.ref)
    assert world.ask(clerk, "watch and reply") == "done"
    probe.expect_msg(("ended", True))


@everywhere
def test_asker_that_has_no_time_left(world: World) -> None:
    """Akka: an asker that is watched has terminated when its time is over."""
    probe = world.probe()
    clerk = world.spawn(Clerk, probe.ref)
    with pytest.raises(AskTimeout):
        world.ask(clerk, "watch", 0.05)
    probe.expect_msg(("ended", True))


@everywhere
def test_asker_that_is_gone(world: World) -> None:
    """Akka: whoever watches an asker that waits no more is told at once."""
    probe = world.probe()
    clerk = world.spawn(Clerk, probe.ref)
    assert world.ask(clerk, "reply") == "done"
    clerk.tell("watch it now")
    probe.expect_msg(("ended", True))


def test_asker_that_is_not_watched_any_more(world: World) -> None:
    """Akka: an asker can be unwatched."""
    probe = world.probe()
    clerk = world.spawn(Clerk, probe.ref)
    ask = clerk.ask("watch", DEADLINE_S)
    clerk.tell("unwatch it")
    clerk.tell("answer it")
    assert ask.result() == "done"
    probe.expect_no_msg(QUIET_S)


class Passing(Actor):
    """Has another watch whoever asks, and answer."""

    def receive(self, message: Any) -> None:
        message.tell(("watch", self.sender), self.sender)


@everywhere
def test_asker_of_another_actor(world: World) -> None:
    """Ours: an asker that was passed on is watched from wherever the watcher lives."""
    probe = world.probe()
    watcher = world.spawn(Watcher, probe.ref)
    assert world.ask(world.spawn(Passing), watcher) == "watching"
    assert probe.receive_one()[0] == "terminated"

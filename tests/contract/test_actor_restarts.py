"""Contract: restarts. What is lost and what is kept, how often, how soon."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Any

from actors import Actor, ActorRef, Props
from actors.errors import ActorProcessDied
from actors.supervision import (
    Backoff,
    Directive,
    OneForOneStrategy,
)
from tests.contract.actor_families import Chief, Tree
from tests.contract.actor_harness import QUIET_S, World, everywhere, on_processes
from tests.contract.actors_under_test import Boss, Fail, Worker


class ThreeTries(Boss):
    supervisor_strategy = OneForOneStrategy(max_retries=3)


class NoTries(Boss):
    supervisor_strategy = OneForOneStrategy(max_retries=0)


class TwoTriesInAWhile(Boss):
    supervisor_strategy = OneForOneStrategy(max_retries=2, within_s=0.3)


class Patient(Boss):
    """Waits longer from restart to restart."""

    supervisor_strategy = OneForOneStrategy(backoff=Backoff(0.3, 5.0, factor=2.0, jitter=0.0))


class VeryPatient(Boss):
    """Waits longer than any test."""

    supervisor_strategy = OneForOneStrategy(backoff=Backoff(60.0, 60.0, jitter=0.0))


class Keeping(Worker):
    """Has a child, and keeps it when it is restarted itself."""

    def __init__(self, probe: ActorRef, label: str = "keeper") -> None:
        super().__init__(probe, label)
        self.kept = self.context.child("kept") or self.context.actor_of(Props(Worker, probe, "kept"), "kept")

    def pre_restart(self, reason: BaseException, message: Any) -> None:
        self.post_stop()

    def receive(self, message: Any) -> None:
        if message == "kept":
            self.reply(self.kept)
        else:
            super().receive(message)


class FailsAgain(Worker):
    """Cannot be restarted."""

    def post_restart(self, reason: BaseException) -> None:
        self.say("post_restart")
        raise ValueError("again")


class FailsAgainChief(Boss):
    child = FailsAgain


class ProcessOwner(Actor):
    """Has a child in a process of its own, and restarts it when that process dies."""

    supervisor_strategy = OneForOneStrategy({ActorProcessDied: Directive.RESTART})

    def __init__(self, probe: ActorRef) -> None:
        self.context.actor_of(Props(Worker, probe, "pinned").pinned(), "pinned")

    def receive(self, message: Any) -> None:
        if message == "child":
            self.reply(self.context.child("pinned"))


@everywhere
def test_restart(world: World) -> None:
    """Akka: restart makes a new instance without the old one's state; the ref stays good."""
    tree = Tree(world, Chief, "a")
    (kid,) = tree.kids
    for what in ("add", Fail("ValueError"), "add"):
        kid.tell(what)
    assert tree.count(kid) == 1
    assert world.ask(kid, "ref") == kid


def test_hooks_of_a_restart(world: World) -> None:
    """Akka: the old instance gets pre_restart (which calls post_stop), the new one post_restart (pre_start)."""
    tree = Tree(world, Chief, "a")
    tree.kids[0].tell(Fail("ValueError", "why"))
    assert tree.probe.receive_n(4) == [
        ("a", "pre_restart", "why", Fail("ValueError", "why")),
        ("a", "post_stop"),
        ("a", "post_restart", "why"),
        ("a", "pre_start"),
    ]


def test_failing_message_is_dropped(world: World) -> None:
    """Akka: the message that failed is not handled again (Thespian delivers it twice: no such promise here)."""
    tree = Tree(world, ThreeTries, "a")
    tree.kids[0].tell(Fail("ValueError"))
    assert tree.count(tree.kids[0]) == 0
    assert len(tree.probe.receive_n(4)) == 4
    tree.probe.expect_no_msg(QUIET_S)


@everywhere
def test_mailbox_is_kept(world: World) -> None:
    """Akka: the messages behind the failing one stay in the mailbox over a restart, in their order."""
    tree = Tree(world, Chief, "a")
    for what in (Fail("ValueError"), "x", "y", "z"):
        tree.kids[0].tell(what)
    got = [what[2] for what in tree.probe.receive_n(7) if what[1] == "got"]
    assert got == ["x", "y", "z"]


def test_limit(world: World) -> None:
    """Akka: after the given number of restarts the next failure stops the child."""
    tree = Tree(world, ThreeTries, "a")
    for number in range(3):
        tree.kids[0].tell(Fail("ValueError", str(number)))
        assert tree.count(tree.kids[0]) == 0
    tree.kids[0].tell(Fail("ValueError", "one too many"))
    world.wait_stopped(tree.kids[0])


def test_no_restart_allowed(world: World) -> None:
    """Akka: with a limit of none the first failure stops the child."""
    tree = Tree(world, NoTries, "a")
    tree.kids[0].tell(Fail("ValueError"))
    world.wait_stopped(tree.kids[0])


def test_limit_in_a_window(world: World) -> None:
    """Akka: with a window only the restarts within it count."""
    tree = Tree(world, TwoTriesInAWhile, "a")
    (kid,) = tree.kids
    for _ in range(2):
        for _ in range(2):
            kid.tell(Fail("ValueError"))
        assert tree.count(kid) == 0
        tree.probe.receive_n(8)
        tree.probe.expect_no_msg(0.4)
    watcher = world.probe()
    world.watch(watcher, kid)
    for _ in range(100):  # on a busy machine the first three may take longer than the window
        for _ in range(3):
            kid.tell(Fail("ValueError"))
        with contextlib.suppress(AssertionError):
            watcher.expect_terminated(kid, 1.0)
            break
    else:
        raise AssertionError("it was never given up")


def test_limits_are_per_child(world: World) -> None:
    """Akka: one-for-one counts the restarts of each child by itself."""
    tree = Tree(world, ThreeTries, "a", "b")
    for _ in range(3):
        for kid in tree.kids:
            kid.tell(Fail("ValueError"))
    assert [tree.count(kid) for kid in tree.kids] == [0, 0]


def test_backoff(world: World) -> None:
    """Akka: with a back-off the restart comes after a delay; messages wait for it."""
    tree = Tree(world, Patient, "a")
    (kid,) = tree.kids
    kid.tell(Fail("ValueError"))
    kid.tell("x")
    assert [what[1] for what in tree.probe.receive_n(2)] == ["pre_restart", "post_stop"]
    if world.is_deterministic:  # on a busy machine the delay may be over by now
        tree.probe.expect_no_msg(0.1)
    assert [what[1] for what in tree.probe.receive_n(3)] == ["post_restart", "pre_start", "got"]


def test_stop_during_backoff(world: World) -> None:
    """Ours: a child that waits for its restart can be stopped."""
    tree = Tree(world, VeryPatient, "a")
    tree.kids[0].tell(Fail("ValueError"))
    assert [what[1] for what in tree.probe.receive_n(2)] == ["pre_restart", "post_stop"]
    tree.boss.tell(("stop", "a"))
    world.wait_stopped(tree.kids[0])
    tree.probe.expect_no_msg(120.0 if world.is_deterministic else QUIET_S)


def test_children_of_a_restarted_actor(world: World) -> None:
    """Akka: by default a restart stops the children of the restarted actor; its constructor makes new ones."""
    tree = Tree(world, Chief, "a")
    tree.boss.tell(Fail("ValueError"))
    assert tree.probe.receive_n(2) == [("a", "post_stop"), ("a", "pre_start")]
    (new,) = world.ask(tree.boss, "children")
    assert new != tree.kids[0]


def test_children_may_be_kept(world: World) -> None:
    """Akka: an actor whose pre_restart does not stop them keeps its children over its restart."""
    probe = world.probe()
    keeper = world.spawn(Keeping, probe.ref)
    kept = world.ask(keeper, "kept")
    keeper.tell(Fail("ValueError"))
    assert world.ask(keeper, "kept") == kept
    assert world.ask(kept, "ref") == kept


def test_post_restart_fails(world: World) -> None:
    """Akka: an actor that fails while it is restarted is stopped (an initialization error)."""
    tree = Tree(world, FailsAgainChief, "a")
    tree.kids[0].tell(Fail("ValueError"))
    world.wait_stopped(tree.kids[0])


def test_context_of_a_restarted_actor(world: World) -> None:
    """Akka: self, parent and name stay the same over a restart."""
    tree = Tree(world, Chief, "a")
    (kid,) = tree.kids
    kid.tell(Fail("ValueError"))
    assert world.ask(kid, "ref") == kid
    assert world.ask(tree.boss, "living") == ["a"]


@on_processes
def test_process_of_a_child_dies(world: World) -> None:
    """Ours: a child whose process is killed may be restarted: a new incarnation, in a new process, under its name."""
    probe = world.probe()
    owner = world.spawn(ProcessOwner, probe.ref)
    first = world.ask(owner, "child")
    probe.expect_msg(("pinned", "pre_start"))
    pid = world.ask(first, "pid")
    os.kill(pid, signal.SIGKILL)
    probe.expect_msg(("pinned", "pre_start"))
    second = world.ask(owner, "child")
    assert (second.path, second == first) == (first.path, False)
    assert world.ask(second, "pid") != pid

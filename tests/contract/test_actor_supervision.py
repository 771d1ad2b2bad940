"""Contract: supervision. Who decides, what, and for whom."""

from __future__ import annotations

import asyncio
from typing import Any

from actors import Actor, ActorRef, Props
from actors.supervision import (
    AllForOneStrategy,
    Directive,
    OneForOneStrategy,
    SupervisorStrategy,
    stopping_strategy,
)
from tests.contract.actor_families import Chief, Tree, by_kind
from tests.contract.actor_harness import QUIET_S, World, everywhere, on_processes
from tests.contract.actors_under_test import Boss, Fail, PlainError, SecretError, Worker


class MappingChief(Boss):
    """Decides by a mapping; the most special type counts."""

    supervisor_strategy = OneForOneStrategy(
        {Exception: Directive.STOP, LookupError: Directive.RESTART, KeyError: Directive.RESUME}
    )


class FarChief(Boss):
    """Has its children in processes of their own, and decides by a mapping of classes."""

    supervisor_strategy = OneForOneStrategy(
        {
            ZeroDivisionError: Directive.RESUME,
            PlainError: Directive.RESUME,
            SecretError: Directive.RESUME,
            OSError: Directive.RESTART,
        }
    )

    def __init__(self, probe: ActorRef, *names: str) -> None:
        self.kids = [self.context.actor_of(Props(Worker, probe, name).pinned(), name) for name in names]


class AllChief(Boss):
    """Treats all children alike when one fails."""

    supervisor_strategy = AllForOneStrategy(by_kind)


class Stopping(Boss):
    supervisor_strategy = stopping_strategy()


class Property(Boss):
    """Has a strategy that depends on its state."""

    @property
    def supervisor_strategy(self) -> SupervisorStrategy:  # type: ignore[override]
        return OneForOneStrategy({Exception: Directive.STOP if len(self.kids) == 1 else Directive.RESUME})


class Escalating(Boss):
    supervisor_strategy = OneForOneStrategy({Exception: Directive.ESCALATE})


class Owner(Actor):
    """The parent of an escalating boss; tells the probe of what reaches it."""

    supervisor_strategy = OneForOneStrategy(by_kind)

    def __init__(self, probe: ActorRef) -> None:
        self.boss = self.context.actor_of(Props(Escalating, probe, "kid"), "boss")

    def receive(self, message: Any) -> None:
        if message == "boss":
            self.reply(self.boss)


class AsyncFailing(Worker):
    """Fails in a coroutine."""

    async def receive(self, message: Any) -> None:  # type: ignore[override]
        await asyncio.sleep(0.01)
        super().receive(message)


class AsyncChief(Chief):
    child = AsyncFailing


@everywhere
def test_resume(world: World) -> None:
    """Akka: resume keeps the instance and its state."""
    tree = Tree(world, Chief, "a")
    (kid,) = tree.kids
    for what in ("add", Fail("ArithmeticError"), "add"):
        kid.tell(what)
    assert tree.count(kid) == 2
    tree.probe.expect_no_msg(QUIET_S)


@on_processes
def test_rules_across_processes(world: World) -> None:
    """Akka: rules match by the type of the error and its bases, wherever the child lives."""
    tree = Tree(world, FarChief, "a")
    (kid,) = tree.kids
    for kind in ("ZeroDivisionError", "PlainError", "SecretError"):
        kid.tell("add")
        kid.tell(Fail(kind))
    assert tree.count(kid) == 3
    kid.tell(Fail("OSError"))
    assert tree.count(kid) == 0


@everywhere
def test_stop(world: World) -> None:
    """Akka: stop ends the child for good; its parent has it no more."""
    tree = Tree(world, Chief, "a", "b")
    tree.kids[0].tell(Fail("LookupError"))
    tree.probe.expect_msg(("a", "post_stop"))
    world.wait_stopped(tree.kids[0])
    world.until(lambda: world.ask(tree.boss, "living"), lambda living: living == ["b"], "the end of a")


def test_coroutine_fails(world: World) -> None:
    """Ours: a handler that is a coroutine fails like any other."""
    tree = Tree(world, AsyncChief, "a")
    (kid,) = tree.kids
    for what in ("add", Fail("ArithmeticError"), "add"):
        kid.tell(what)
    assert tree.count(kid) == 2
    kid.tell(Fail("ValueError"))
    assert tree.count(kid) == 0


def test_one_for_one(world: World) -> None:
    """Akka: one-for-one: the brothers and sisters of the one that fails go on."""
    tree = Tree(world, Chief, "a", "b")
    for kid in tree.kids:
        kid.tell("add")
    tree.kids[0].tell(Fail("ValueError"))
    assert [tree.count(kid) for kid in tree.kids] == [0, 1]


@everywhere
def test_all_for_one_restart(world: World) -> None:
    """Akka: all-for-one: when one is restarted, so are all."""
    tree = Tree(world, AllChief, "a", "b", "c")
    for kid in tree.kids:
        kid.tell("add")
    assert [tree.count(kid) for kid in tree.kids] == [1, 1, 1]
    tree.kids[1].tell(Fail("ValueError"))
    for kid in tree.kids:
        world.until(lambda kid=kid: tree.count(kid), lambda count: count == 0, f"a restart of {kid}")  # type: ignore[misc]


def test_all_for_one_stop(world: World) -> None:
    """Akka: all-for-one: when one is stopped, so are all."""
    tree = Tree(world, AllChief, "a", "b", "c")
    tree.kids[2].tell(Fail("LookupError"))
    for kid in tree.kids:
        world.wait_stopped(kid)


def test_all_for_one_resume(world: World) -> None:
    """Akka: all-for-one: when one is resumed, the others do not notice."""
    tree = Tree(world, AllChief, "a", "b")
    for what in ("add", Fail("ArithmeticError"), "add"):
        tree.kids[0].tell(what)
    tree.kids[1].tell("add")
    assert [tree.count(kid) for kid in tree.kids] == [2, 1]


@everywhere
def test_escalate(world: World) -> None:
    """Akka: escalate makes the parent fail with the child's error: its own supervisor decides, here to restart it."""
    probe = world.probe()
    owner = world.spawn(Owner, probe.ref)
    boss = world.ask(owner, "boss")
    (kid,) = world.ask(boss, "children")
    probe.expect_msg(("kid", "pre_start"))
    kid.tell(Fail("ValueError"))
    assert probe.receive_n(2) == [
        ("kid", "post_stop"),
        ("kid", "pre_start"),
    ]  # stopped with its parent, made anew by it
    (new,) = world.ask(boss, "children")
    assert (new.path, new == kid) == (kid.path, False)


def test_escalate_and_stop(world: World) -> None:
    """Akka: an escalated error may stop the parent, and all of its children with it."""
    probe = world.probe()
    boss = world.ask(world.spawn(Owner, probe.ref), "boss")
    (kid,) = world.ask(boss, "children")
    kid.tell(Fail("KeyError"))
    world.wait_stopped(boss)
    world.wait_stopped(kid)


def test_escalate_and_resume(world: World) -> None:
    """Akka: when the parent of an escalated failure is resumed, so is the child."""
    probe = world.probe()
    boss = world.ask(world.spawn(Owner, probe.ref), "boss")
    (kid,) = world.ask(boss, "children")
    for what in ("add", Fail("ArithmeticError"), "add"):
        kid.tell(what)
    assert world.ask(kid, "count") == 2


def test_default_strategy(world: World) -> None:
    """Akka: without a strategy of one's own, exceptions restart, without a limit."""
    tree = Tree(world, Boss, "a")
    for _ in range(20):
        tree.kids[0].tell(Fail("ValueError"))
    assert tree.count(tree.kids[0]) == 0


def test_top_level(world: World) -> None:
    """Akka: the guardian of the top-level actors has the default strategy."""
    probe = world.probe()
    worker = world.spawn(Worker, probe.ref)
    for what in ("add", Fail("ValueError")):
        worker.tell(what)
    assert world.ask(worker, "count") == 0


def test_mapping(world: World) -> None:
    """Ours: a strategy may be a mapping of error types; the most special one that fits counts."""
    tree = Tree(world, MappingChief, "a", "b", "c")
    resumed, restarted, stopped = tree.kids
    for kid, kind in ((resumed, "KeyError"), (restarted, "LookupError"), (stopped, "ValueError")):
        kid.tell("add")
        kid.tell(Fail(kind))
    assert (tree.count(resumed), tree.count(restarted)) == (1, 0)
    world.wait_stopped(stopped)


def test_stopping_strategy(world: World) -> None:
    """Akka: the stopping strategy stops a child at its first error (Pykka's only behaviour)."""
    tree = Tree(world, Stopping, "a")
    tree.kids[0].tell(Fail("ValueError"))
    world.wait_stopped(tree.kids[0])


def test_strategy_as_a_property(world: World) -> None:
    """Akka: the strategy may depend on the supervisor's state."""
    alone, two = Tree(world, Property, "a"), Tree(world, Property, "a", "b")
    alone.kids[0].tell(Fail("ValueError"))
    world.wait_stopped(alone.kids[0])
    two.kids[0].tell("add")
    two.kids[0].tell(Fail("ValueError"))
    assert two.count(two.kids[0]) == 1

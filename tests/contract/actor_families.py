"""Supervisors that several contract modules use, and their children."""

from __future__ import annotations

from actors import ActorRef
from actors.supervision import (
    Directive,
    OneForOneStrategy,
    SupervisorStrategy,
)
from tests.contract.actor_harness import World
from tests.contract.actors_under_test import Boss


def by_kind(error: BaseException) -> Directive:
    match error:
        case ArithmeticError():
            return Directive.RESUME
        case LookupError():
            return Directive.STOP
        case TypeError():
            return Directive.ESCALATE
        case _:
            return Directive.RESTART


class Chief(Boss):
    """Decides by the kind of the error."""

    supervisor_strategy: SupervisorStrategy = OneForOneStrategy(by_kind)


class Tree:
    """A boss of some kind, its children, and what they tell."""

    def __init__(self, world: World, boss: type[Boss], *names: str) -> None:
        self.world = world
        self.probe = world.probe()
        self.boss = world.spawn(boss, self.probe.ref, *names)
        self.kids: list[ActorRef] = world.ask(self.boss, "children")
        self.probe.receive_n(len(names))  # pre_start of each

    def count(self, kid: ActorRef) -> int:
        count: int = self.world.ask(kid, "count")
        return count

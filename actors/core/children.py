"""The children of an actor, and why it waits for some to stop (Akka's `ChildrenContainer`, `ChildRestartStats`)."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from actors.errors import ActorSystemError, InvalidActorName
from actors.props import Props
from actors.ref import ActorRef
from actors.supervision import BackoffCounter, RestartWindow

_NAME = re.compile(r"[A-Za-z0-9_.~$-]+")
_DIGITS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_~"


Restart = tuple[BaseException, float]
"""Why an actor is restarted, and when its next instance is to come, on the loop's clock."""


class Waiting(enum.Enum):
    """What an actor does when the last of its dying children has stopped."""

    NOTHING = "nothing"
    CREATION = "creation"
    RECREATION = "recreation"
    DELAY = "delay"
    """For the time of the next instance to come, not for children."""
    TERMINATION = "termination"


@dataclass(slots=True, eq=False)
class Child:
    """What a parent knows of a child.

    Args:
        ref: its ref; a child whose process died gets a new one.
        props: the recipe it was made by.
        window: how often it was restarted of late; None before its first failure.
        backoff: how long its restarts were put off of late; None without a strategy that does so.
        lost: whether its process has died, and it is not made anew yet.
    """

    ref: ActorRef
    props: Props
    window: RestartWindow | None = None
    backoff: BackoffCounter | None = None
    lost: bool = False


class Children:
    """The children by name, the dying ones among them, and what is to be done when those are gone. Pure bookkeeping."""

    __slots__ = ("_by_name", "_counter", "_dying", "restart", "waiting")

    def __init__(self) -> None:
        self._by_name: dict[str, Child] = {}
        self._dying: set[ActorRef] = set()
        self._counter = 0
        self.waiting = Waiting.NOTHING
        self.restart: Restart | None = None

    # ------------------------------------------------------------------ names

    def reserve(self, name: str | None, path: str) -> str:
        """A valid free name: *name*, or an automatic one.

        Raises:
            InvalidActorName: it is malformed or taken.
            ActorSystemError: the parent is stopping.
        """
        if self.waiting is Waiting.TERMINATION:
            raise ActorSystemError(f"{path} is stopping and cannot have new children")
        if name is None:
            return self._next_name()
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name.startswith("$") or name in (".", ".."):
            raise InvalidActorName(
                f"{name!r} is no actor name: it takes letters, digits and _ . ~ $ -, and must not begin with $"
            )
        if name in self._by_name:
            raise InvalidActorName(
                f"{path} has a child named {name!r} already; a name is free when its actor has stopped"
            )
        return name

    def _next_name(self) -> str:
        number, name = self._counter, "$"
        self._counter += 1
        while True:
            name += _DIGITS[number & 63]
            number >>= 6
            if number == 0:
                return name

    # ------------------------------------------------------------------ who is there

    def add(self, name: str, ref: ActorRef, props: Props) -> None:
        """A child has been made."""
        self._by_name[name] = Child(ref, props)

    def refs(self) -> list[ActorRef]:
        """All children that have not stopped yet."""
        return [child.ref for child in self._by_name.values()]

    def all(self) -> list[Child]:
        """What is known of each of them."""
        return list(self._by_name.values())

    def ref(self, name: str) -> ActorRef | None:
        """The child of that name."""
        child = self._by_name.get(name)
        return None if child is None else child.ref

    def find(self, ref: ActorRef) -> Child | None:
        """The child with exactly that ref, not another incarnation of it."""
        child = self._by_name.get(ref.name)
        return child if child is not None and child.ref == ref else None

    def is_dying(self, ref: ActorRef) -> bool:
        """Whether the child has been told to stop."""
        return ref in self._dying

    # ------------------------------------------------------------------ dying

    @property
    def is_normal(self) -> bool:
        """Whether nothing waits for children to stop."""
        return self.waiting is Waiting.NOTHING

    @property
    def is_terminating(self) -> bool:
        """Whether the parent itself stops when they have."""
        return self.waiting is Waiting.TERMINATION

    def shall_die(self, ref: ActorRef) -> None:
        """The child has been told to stop."""
        self._dying.add(ref)

    def wait_for(self, reason: Waiting, restart: Restart | None = None) -> bool:
        """Remember what to do when the dying ones are gone; False when there are none: then do it at once."""
        if not self._dying:
            if reason is Waiting.TERMINATION:
                self.waiting = reason
            return False
        self.waiting, self.restart = reason, restart
        return True

    def remove(self, ref: ActorRef) -> tuple[Waiting, Restart | None]:
        """The child has stopped: what is to be done now, if it was the last that something waited for."""
        self._by_name.pop(ref.name, None)
        self._dying.discard(ref)
        if self._dying or self.waiting in (Waiting.NOTHING, Waiting.DELAY):
            return Waiting.NOTHING, None
        reason, restart = self.waiting, self.restart
        self.restart = None
        if reason is not Waiting.TERMINATION:
            self.waiting = Waiting.NOTHING
        return reason, restart

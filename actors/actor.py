"""The class that users derive actors from (Akka's `Actor`), and what an actor can do (its `ActorContext`)."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from actors.ref import CURRENT, ActorRef
from actors.supervision import OneForOneStrategy, SupervisorStrategy

if TYPE_CHECKING:
    from actors.core.cell import Cell
    from actors.props import Props
    from actors.ref import ActorRef
    from actors.selection import ActorSelection
    from actors.system_api import ActorSystemBase
    from actors.timers import Timers


P = ParamSpec("P")
T = TypeVar("T")

Behavior = Callable[[Any], Any]


class ActorContext:
    """An actor's view of itself, its parent, its children and its system. For the actor's own use only.

    Args:
        cell: the cell that runs the actor.
    """

    __slots__ = ("_cell",)

    def __init__(self, cell: Cell) -> None:
        self._cell = cell

    # ------------------------------------------------------------------ who is who

    @property
    def self_ref(self) -> ActorRef:
        """The actor's own ref."""
        return self._cell.ref

    @property
    def sender(self) -> ActorRef:
        """Sender of the message that is being handled; dead letters when it has none."""
        cell = self._cell
        return cell.sender or cell.node.dead_letters

    @property
    def parent(self) -> ActorRef:
        """The actor that created this one and supervises it."""
        return self._cell.parent

    @property
    def props(self) -> Props:
        """The recipe from which this actor was created."""
        return self._cell.props

    @property
    def system(self) -> ActorSystemBase:
        """The actor's system."""
        return self._cell.node.system

    @property
    def children(self) -> list[ActorRef]:
        """The living children, in the order of their creation."""
        return self._cell.children.refs()

    def child(self, name: str) -> ActorRef | None:
        """Return the living child of that name, or None."""
        return self._cell.children.ref(name)

    # ------------------------------------------------------------------ making and stopping

    def actor_of(self, props: Props, name: str | None = None) -> ActorRef:
        """Create a child and return its ref at once. The child starts in the background; its messages wait until then.

        Args:
            props: the recipe.
            name: ``[A-Za-z0-9_.~$-]+``, not beginning with ``$``; default: ``$a``, ``$b`` and so on.

        Raises:
            InvalidActorName: the name is malformed, or taken by a child that has not stopped yet.
            ActorSystemError: the actor is stopping, or the class of a child for another process has no import path.
            SerializationError: the child belongs in another process, and its arguments cannot be serialized.
        """
        return self._cell.make_child(props, name)

    def stop(self, ref: ActorRef) -> None:
        """Stop a child, or the actor itself, after its current message; the children of a stopped actor stop first."""
        self._cell.stop(ref)

    def watch(self, ref: ActorRef) -> ActorRef:
        """Receive a `Terminated` when *ref* stops (at once if it does not exist). Idempotent; returns *ref*."""
        self._cell.watch(ref)
        return ref

    def unwatch(self, ref: ActorRef) -> ActorRef:
        """Stop watching that actor; drop its `Terminated`, even one already in the mailbox. Returns *ref*."""
        self._cell.unwatch(ref)
        return ref

    # ------------------------------------------------------------------ messages

    def reply(self, message: Any) -> None:
        """Send *message* to the sender of the current message; without a sender it becomes a dead letter."""
        self.sender.tell(message, self._cell.ref)

    def become(self, behavior: Behavior, discard_old: bool = True) -> None:
        """Handle the next messages with *behavior*; after ``discard_old=False`` `unbecome` restores the present one."""
        self._cell.become(behavior, discard_old)

    def unbecome(self) -> None:
        """Restore the behaviour before the present one, or `Actor.receive`."""
        self._cell.unbecome()

    def stash(self) -> None:
        """Put the current message aside until `unstash_all`.

        Raises:
            StashOverflow: the stash already holds `CoreSettings.stash_capacity` messages.
            RuntimeError: the actor is handling no message, or has already stashed it.
        """
        self._cell.stash()

    def unstash_all(self) -> None:
        """Move the stashed messages to the front of the mailbox, in their order."""
        self._cell.unstash_all()

    def unhandled(self, message: Any) -> None:
        """Run the default of `Actor.unhandled`."""
        self._cell.unhandled(message)

    def pipe_to(self, awaitable: Awaitable[Any], recipient: ActorRef | None = None, sender: ActorRef = CURRENT) -> None:
        """Send the result of *awaitable* as a message once it is available; an exception arrives as `Failure`.

        Args:
            awaitable: a coroutine, a future or an `Ask`.
            recipient: default: the actor itself.
            sender: default: the actor itself.
        """
        cell = self._cell
        cell.pipe_to(awaitable, recipient or cell.ref, cell.ref if sender is CURRENT else sender)

    def actor_selection(self, path: str) -> ActorSelection:
        """Select the actors that match *path*.

        Args:
            path: an absolute path, one relative to this actor, or an address; may contain ``..``, ``*`` and ``?``.
        """
        return self._cell.node.select(path, self._cell.ref)

    # ------------------------------------------------------------------ time and threads

    @property
    def timers(self) -> Timers:
        """Timers that send messages to the actor itself."""
        return self._cell.timers()

    def set_receive_timeout(self, seconds: float | None) -> None:
        """Receive a `ReceiveTimeout` after *seconds* without a message; None turns it off."""
        self._cell.set_receive_timeout(seconds)

    def run_blocking(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
        """Run a blocking function in a thread; await its result, or `pipe_to` it.

        Messages that the function tells have this actor as their sender.
        """
        return self._cell.node.run_blocking(function, *args, **kwargs)


class Actor:
    """An actor: private state, changed only by the messages that the actor handles, one at a time.

    Derive from it, write `receive`, and create it with `actor_of` (never by calling the class)::

        class Counter(Actor):
            def __init__(self, start: int) -> None:
                self.count = start

            def receive(self, message: Any) -> None:
                match message:
                    case "add":
                        self.count += 1
                    case "get":
                        self.reply(self.count)
                    case _:
                        self.unhandled(message)

    `receive` and the four hooks may be plain functions or ``async def``. The actor handles the next message only after
    the coroutine of the current one has ended. A handler that blocks (or computes for long) blocks all actors of its
    process: use `ActorContext.run_blocking` to run such work in a thread.

    `context` is set before the constructor runs.
    """

    context: ActorContext
    supervisor_strategy: SupervisorStrategy = OneForOneStrategy()
    """Strategy for children that fail; a class attribute or a property."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in ("receive", "pre_start", "post_stop", "pre_restart", "post_restart"):
            method = vars(cls).get(name)
            if inspect.isgeneratorfunction(method) or inspect.isasyncgenfunction(method):
                raise TypeError(
                    f"{cls.__qualname__}.{name} is a generator function, of which no line would run: "
                    "take the yield out of it; to wait for something, write async def and await"
                )

    def receive(self, message: Any) -> Awaitable[Any] | None:
        """Handle a message. The default treats every message as unhandled."""
        self.unhandled(message)
        return None

    def unhandled(self, message: Any) -> None:
        """Reject a message that `receive` does not handle; `receive` calls this.

        An ask ends in `UnhandledMessageError`. The event stream gets an `UnhandledMessage`.

        Raises:
            DeathPactError: the message is `Terminated`. An actor that watches another has to handle its `Terminated`.
        """
        self.context.unhandled(message)

    def pre_start(self) -> Awaitable[None] | None:
        """Hook that runs before the first message and, by default, after each restart; may be a coroutine."""
        return None

    def post_stop(self) -> Awaitable[None] | None:
        """Hook that runs after the actor and its children have stopped and, by default, before each restart."""
        return None

    def pre_restart(self, reason: BaseException, message: Any) -> Awaitable[None] | None:
        """Hook that runs on the old instance before a restart. By default it stops all children and calls `post_stop`.

        Args:
            reason: the error that causes the restart.
            message: the message that the actor was handling when it failed, or None.

        A coroutine function that overrides it calls ``super().pre_restart(...)`` and awaits the result unless that is
        None. An error raised here is logged; the restart continues.
        """
        for child in self.context.children:
            self.context.unwatch(child)
            self.context.stop(child)
        return self.post_stop()

    def post_restart(self, reason: BaseException) -> Awaitable[None] | None:
        """Hook that runs on the new instance after a restart, instead of `pre_start`; by default it calls that."""
        return self.pre_start()

    def reply(self, message: Any) -> None:
        """Send *message* to the sender of the current message; without a sender it becomes a dead letter."""
        self.context.reply(message)

    @property
    def self_ref(self) -> ActorRef:
        """The actor's own ref."""
        return self.context.self_ref

    @property
    def sender(self) -> ActorRef:
        """Sender of the message that is being handled; dead letters when it has none."""
        return self.context.sender

    @property
    def timers(self) -> Timers:
        """Timers that send messages to the actor itself."""
        return self.context.timers

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger named after the actor's module; each line begins with the actor's path."""
        return _PathLogger(logging.getLogger(type(self).__module__), {"path": self.context.self_ref.path})


class _PathLogger(logging.LoggerAdapter[logging.Logger]):
    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        path = self.extra["path"] if self.extra else ""
        return f"{path}: {msg}", kwargs

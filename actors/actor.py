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
        cell: what runs the actor.
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
        """The actor that made this one and supervises it."""
        return self._cell.parent

    @property
    def props(self) -> Props:
        """The recipe that this actor was made by."""
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
        """The living child of that name, if there is one."""
        return self._cell.children.ref(name)

    # ------------------------------------------------------------------ making and stopping

    def actor_of(self, props: Props, name: str | None = None) -> ActorRef:
        """Make a child and return its ref at once; it is created in the background, and its messages wait for that.

        Args:
            props: the recipe.
            name: ``[A-Za-z0-9_.~$-]+``, not beginning with ``$``; default: ``$a``, ``$b`` and so on.

        Raises:
            InvalidActorName: the name is malformed, or taken by a child that has not stopped yet.
            ActorSystemError: the actor is stopping; or the child is to live elsewhere, and cannot be ordered there.
            SerializationError: the child is to live elsewhere, and its arguments cannot travel.
        """
        return self._cell.make_child(props, name)

    def stop(self, ref: ActorRef) -> None:
        """Stop a child, or the actor itself, once it has handled the present message; its children stop first."""
        self._cell.stop(ref)

    def watch(self, ref: ActorRef) -> ActorRef:
        """Get a `Terminated` when that actor stops (at once when it is not there). Idempotent; returns *ref*."""
        self._cell.watch(ref)
        return ref

    def unwatch(self, ref: ActorRef) -> ActorRef:
        """Get no `Terminated` of that actor any more, not even one that is in the mailbox already; returns *ref*."""
        self._cell.unwatch(ref)
        return ref

    # ------------------------------------------------------------------ messages

    def reply(self, message: Any) -> None:
        """Send *message* to the sender of the message that is being handled; without one it is a dead letter."""
        self.sender.tell(message, self._cell.ref)

    def become(self, behavior: Behavior, discard_old: bool = True) -> None:
        """Handle messages with *behavior* from the next one on; with ``discard_old=False`` `unbecome` goes back."""
        self._cell.become(behavior, discard_old)

    def unbecome(self) -> None:
        """Go back to the behaviour before the present one, or to `Actor.receive`."""
        self._cell.unbecome()

    def stash(self) -> None:
        """Put the message that is being handled aside until `unstash_all`.

        Raises:
            StashOverflow: the stash holds `CoreSettings.stash_capacity` messages already.
            RuntimeError: no message is being handled, or it has been put aside already.
        """
        self._cell.stash()

    def unstash_all(self) -> None:
        """Put the messages of the stash back to the front of the mailbox, in their order."""
        self._cell.unstash_all()

    def unhandled(self, message: Any) -> None:
        """Do the default of `Actor.unhandled`."""
        self._cell.unhandled(message)

    def pipe_to(self, awaitable: Awaitable[Any], recipient: ActorRef | None = None, sender: ActorRef = CURRENT) -> None:
        """Send the result of *awaitable* as a message when it is there; an exception arrives as `Failure`.

        Args:
            awaitable: a coroutine, a future or an `Ask`.
            recipient: default: the actor itself.
            sender: default: the actor itself.
        """
        cell = self._cell
        cell.pipe_to(awaitable, recipient or cell.ref, cell.ref if sender is CURRENT else sender)

    def actor_selection(self, path: str) -> ActorSelection:
        """The actors that match *path*: absolute, relative to this one, or an address; with ``..``, ``*``, ``?``."""
        return self._cell.node.select(path, self._cell.ref)

    # ------------------------------------------------------------------ time and threads

    @property
    def timers(self) -> Timers:
        """Messages to itself after a time."""
        return self._cell.timers()

    def set_receive_timeout(self, seconds: float | None) -> None:
        """Get a `ReceiveTimeout` whenever no message has come for that long; None turns it off."""
        self._cell.set_receive_timeout(seconds)

    def run_blocking(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
        """Run a blocking function in a thread; await its result, or `pipe_to` it. What it tells has this sender."""
        return self._cell.node.run_blocking(function, *args, **kwargs)


class Actor:
    """An actor: state that only its own messages touch, one message at a time.

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

    `receive` and the four hooks may be plain or ``async def``. The next message is handled only when the coroutine of
    the present one has ended. A handler that blocks (or computes for long) blocks all actors of its process:
    `ActorContext.run_blocking` takes such work to a thread.

    `context` is there before the constructor runs.
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
        """Handle a message. Until it is overridden, all messages are unhandled."""
        self.unhandled(message)
        return None

    def unhandled(self, message: Any) -> None:
        """Called by `receive` for a message that it has no use for.

        An ask gets an `UnhandledMessageError`, and an `UnhandledMessage` is published on the event stream.

        Raises:
            DeathPactError: the message is `Terminated`: who watches another and does not handle its death dies with it.
        """
        self.context.unhandled(message)

    def pre_start(self) -> Awaitable[None] | None:
        """Called before the first message, and by default after each restart; may be a coroutine."""
        return None

    def post_stop(self) -> Awaitable[None] | None:
        """Called when the actor has stopped, its children too, and by default before each restart."""
        return None

    def pre_restart(self, reason: BaseException, message: Any) -> Awaitable[None] | None:
        """Called on the old instance before a restart. By default it stops all children and calls `post_stop`.

        Args:
            reason: why the actor is restarted.
            message: what it was handling when it failed, or None.

        An override that is a coroutine function calls ``super().pre_restart(...)`` and awaits what that returns, if
        anything.
        An error raised here is logged; the restart goes on.
        """
        for child in self.context.children:
            self.context.unwatch(child)
            self.context.stop(child)
        return self.post_stop()

    def post_restart(self, reason: BaseException) -> Awaitable[None] | None:
        """Called on the new instance after a restart, instead of `pre_start`, which it calls by default."""
        return self.pre_start()

    def reply(self, message: Any) -> None:
        """Send *message* to the sender of the message that is being handled; without one it is a dead letter."""
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
        """Messages to itself after a time."""
        return self.context.timers

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that is named after the actor's module; each line begins with the actor's path."""
        return _PathLogger(logging.getLogger(type(self).__module__), {"path": self.context.self_ref.path})


class _PathLogger(logging.LoggerAdapter[logging.Logger]):
    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        path = self.extra["path"] if self.extra else ""
        return f"{path}: {msg}", kwargs

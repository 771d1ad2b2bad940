"""What an actor can do beside handling messages (Akka's `ActorContext`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from actors.ref import CURRENT, ActorRef

if TYPE_CHECKING:
    from actors.core.cell import Cell
    from actors.props import Props
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
        """Who sent the message that is being handled; dead letters when nobody did."""
        cell = self._cell
        return cell.sender or cell.node.dead_letters

    @property
    def parent(self) -> ActorRef:
        """Who made this actor and supervises it."""
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
        """What `Actor.unhandled` does by default."""
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

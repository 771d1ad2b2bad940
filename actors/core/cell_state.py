"""The state of an actor cell, which the parts of its behaviour share (Akka's `ActorCell` and its traits)."""

from __future__ import annotations

import asyncio
import inspect
import types
from abc import abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from actors.context import ActorContext
from actors.core.children import Children
from actors.core.system_messages import SystemMessage
from actors.errors import ActorError
from actors.props import Props
from actors.ref import ActorRef

if TYPE_CHECKING:
    from actors.actor import Actor
    from actors.core.node import Node
    from actors.mailbox import Envelope, Mailbox
    from actors.timers import ReceiveTimer, Timers


class CellState:
    """What a cell consists of. There may be 100,000 in a process: what not every actor uses is made on demand.

    Args:
        node: the node it lives in.
        props: its recipe.
        path: its path.
        uid: its incarnation.
        parent: its parent, here or in another process.
    """

    __slots__ = (
        "__weakref__",
        "_behaviors",
        "_busy",
        "_children",
        "_closed",
        "_ended",
        "_failed",
        "_in_hook",
        "_receive",
        "_receive_timer",
        "_scheduled",
        "_stash",
        "_stopped_watchees",
        "_suspended",
        "_system",
        "_throughput",
        "_timers",
        "_watched_by",
        "_watching",
        "actor",
        "envelope",
        "mailbox",
        "node",
        "parent",
        "props",
        "ref",
    )

    def __init__(self, node: Node, props: Props, path: str, uid: int, parent: ActorRef) -> None:
        self.node = node
        self.props = props
        self.parent = parent
        self.ref = ActorRef(node, node.origin, path, uid, self)
        self.mailbox: Mailbox = node.new_mailbox(props, path)
        self.actor: Actor | None = None
        self.envelope: Envelope | None = None
        """The message that is being handled, or that the failed instance was handling."""
        self._receive: Callable[[Any], Any] = _nobody
        self._behaviors: list[Callable[[Any], Any]] | None = None
        self._stash: list[Envelope] | None = None
        self._timers: Timers | None = None
        self._receive_timer: ReceiveTimer | None = None
        self._children: Children | None = None
        self._watching: set[ActorRef] | None = None
        self._watched_by: set[ActorRef] | None = None
        self._stopped_watchees: set[ActorRef] | None = None
        """Whose `Terminated` is in the mailbox and is still wanted."""
        self._system: deque[SystemMessage] | None = None
        self._throughput = props.throughput or node.settings.throughput
        self._suspended = 0
        self._failed: ActorRef | None = None
        """Who has failed: the actor itself, or the child whose failure it has escalated."""
        self._ended = True
        """Whether the instance (if any) has had its last hook: pre_restart, post_stop or one that failed."""
        self._busy: asyncio.Task[None] | None = None
        self._in_hook = False
        self._scheduled = False
        self._closed = False

    # ------------------------------------------------------------------ as the other parts see each other

    @abstractmethod
    def deliver(self, message: Any, sender: ActorRef | None) -> None:
        """Put a message into the mailbox."""

    @abstractmethod
    def deliver_own(self, message: Any, sender: ActorRef | None) -> None:
        """Put a message of the runtime's into the mailbox, which must not refuse it."""

    @abstractmethod
    def deliver_envelope(self, envelope: Envelope) -> None:
        """The same for a message that has an envelope already."""

    @abstractmethod
    def deliver_system(self, message: SystemMessage) -> None:
        """Take a system message."""

    @abstractmethod
    def handle_failure(
        self, error: BaseException, handling: str, perpetrator: ActorRef | None = None, spare: tuple[ActorRef, ...] = ()
    ) -> None:
        """The actor has failed: suspend it, and ask its parent what is to be done."""

    @abstractmethod
    def child_terminated(self, ref: ActorRef) -> None:
        """A child has stopped."""

    @abstractmethod
    def child_lost(self, ref: ActorRef, error: BaseException) -> None:
        """A child's process has died, or its creation there has failed."""

    @abstractmethod
    def cancel_timers(self) -> None:
        """The instance is about to have its last hook."""

    @abstractmethod
    def reset_behavior(self) -> None:
        """Forget what the old instance has set up: behaviours, timers, the receive timeout."""

    @abstractmethod
    def unstash_all(self) -> None:
        """Put the messages of the stash back to the front of the mailbox."""

    @abstractmethod
    def wake(self) -> None:
        """Have a turn, if there is something to do."""

    @property
    def children(self) -> Children:
        """The bookkeeping of the children."""
        children = self._children
        if children is None:
            children = self._children = Children()
        return children

    @property
    def is_closed(self) -> bool:
        """Whether the actor has stopped."""
        return self._closed

    @property
    def is_occupied(self) -> bool:
        """Whether it could not handle a message now: it is busy with one, or suspended."""
        return self._busy is not None or self._suspended > 0

    # ------------------------------------------------------------------ instances and coroutines

    def new_instance(self) -> Actor:
        """Make an instance, which is the cell's from before its constructor runs."""
        props = self.props
        actor_class = props.load_class()
        actor: Actor = actor_class.__new__(actor_class)
        actor.context = ActorContext(self)  # type: ignore[arg-type]  # every cell state is a Cell
        self.actor = actor
        self._receive = actor.receive
        actor.__init__(*props.args, **props.kwargs)  # type: ignore[misc]  # the context has to be there before
        self._ended = False
        return actor

    def run_hook(self, result: Any, done: Callable[[], None], failed: Callable[[BaseException], None]) -> None:
        """Go on with *done* when what a hook has returned has ended: at once, unless it is a coroutine."""
        if result is None or not inspect.isawaitable(result):
            error = unrun(result)
            if error is None:
                done()
            else:
                failed(error)
            return
        self._in_hook = True
        self.run_async(result, done, failed)

    def run_async(
        self, awaitable: Awaitable[Any], done: Callable[[], None], failed: Callable[[BaseException], None]
    ) -> None:
        """Run a coroutine to its end, and handle nothing else meanwhile that might interfere with it."""
        self._busy = self.node.loop.create_task(self._drive(awaitable, done, failed))
        if self.node.aborting:
            self.abort()

    async def _drive(
        self, awaitable: Awaitable[Any], done: Callable[[], None], failed: Callable[[BaseException], None]
    ) -> None:
        error: BaseException | None = None
        try:
            await awaitable
        except KeyboardInterrupt:
            raise
        except asyncio.CancelledError as cancelled:  # of what it awaited, or at the end: no reason to end the system
            error = self.cancelled(cancelled)
        except BaseException as raised:  # also SystemExit: the supervisor decides
            error = raised
        self._busy = None
        self._in_hook = False
        if error is None:
            done()
        else:
            failed(error)
        self.wake()

    def cancelled(self, cancelled: asyncio.CancelledError) -> ActorError:
        """The failure of a handler or hook that a cancellation has ended."""
        error = ActorError(f"what {self.ref.path} was doing, or waiting for, was cancelled")
        error.__cause__ = cancelled
        return error

    def abort(self) -> None:
        """Cancel the coroutine that is running: the time allowed for stopping is over."""
        if self._busy is not None:
            self.node.loop.call_soon(self._busy.cancel)  # not at once: a coroutine that has not begun would never know


def unrun(result: Any) -> TypeError | None:
    """The error of a handler or hook that has returned a generator; None when it has not."""
    if not isinstance(result, (types.GeneratorType, types.AsyncGeneratorType)):
        return None
    return TypeError(
        f"{result.__qualname__} returned a generator, of which no line has run: take the yield out of it; "
        "to wait for something, write async def and await"
    )


def _nobody(message: Any) -> None:
    raise RuntimeError("a message was handled before its actor was made")

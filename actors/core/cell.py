"""Runs an actor (Akka's `ActorCell`, its traits, and `Mailbox`).

A cell keeps the mailbox, turns, behaviours, children, watched actors, failures and life cycle of its actor.
Hooks may be coroutines, so each step that calls a hook continues in a separate method. While a hook runs, the cell
handles nothing else, not even system messages, as if the hook were a plain function.
"""

from __future__ import annotations

import asyncio
import enum
import functools
import inspect
import logging
import random
import re
import traceback
import types
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from actors.actor import ActorContext
from actors.core.system_messages import (
    Create,
    DeathWatchNotification,
    Failed,
    Perform,
    Recreate,
    Resume,
    Suspend,
    SystemMessage,
    Terminate,
    Unwatch,
    Watch,
)
from actors.errors import (
    ActorError,
    ActorInitializationError,
    ActorKilled,
    ActorProcessDied,
    ActorSystemError,
    DeathPactError,
    EndpointStateError,
    InvalidActorName,
    MailboxFull,
    StashOverflow,
    UnhandledMessageError,
)
from actors.mailbox import Envelope, Mailbox
from actors.messages import (
    ActorIdentity,
    Failure,
    Identify,
    Kill,
    NotInfluenceReceiveTimeout,
    PoisonPill,
    Terminated,
    UnhandledMessage,
)
from actors.props import Props
from actors.ref import ActorRef, current_cell
from actors.supervision import BackoffCounter, Directive, RestartWindow, SupervisorStrategy
from actors.timers import ReceiveTimer, TimerEnvelope, Timers

if TYPE_CHECKING:
    from actors.actor import Actor
    from actors.core.node import Node


_NAME = re.compile(r"[A-Za-z0-9_.~$-]+")
_DIGITS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_~"


Restart = tuple[BaseException, float]
"""Cause of a restart, and the time of the next instance on the loop's clock."""

logger = logging.getLogger(__name__)
_WAIT_FOR_THE_MESSAGE = (Terminate, Recreate)
"""System messages that wait until a coroutine has handled its message; the cell handles all others while it runs."""


class Waiting(enum.Enum):
    """Next step of an actor when the last of its dying children has stopped."""

    NOTHING = "nothing"
    CREATION = "creation"
    RECREATION = "recreation"
    DELAY = "delay"
    """Waits for the time of the next instance, not for children."""
    TERMINATION = "termination"


@dataclass(slots=True, eq=False)
class Child:
    """Record that a parent keeps of a child.

    Args:
        ref: its ref; a child whose process died gets a new one.
        props: the recipe from which it was created.
        window: its recent restarts; None before its first failure.
        backoff: its recent restart delays; None without a strategy that delays restarts.
        lost: whether its process has died and the parent has not created it again yet.
    """

    ref: ActorRef
    props: Props
    window: RestartWindow | None = None
    backoff: BackoffCounter | None = None
    lost: bool = False


class Children:
    """The children by name, those that are stopping, and the next step after these have stopped. Pure."""

    __slots__ = ("_by_name", "_counter", "_dying", "restart", "waiting")

    def __init__(self) -> None:
        self._by_name: dict[str, Child] = {}
        self._dying: set[ActorRef] = set()
        self._counter = 0
        self.waiting = Waiting.NOTHING
        self.restart: Restart | None = None

    # ------------------------------------------------------------------ names

    def reserve(self, name: str | None, path: str) -> str:
        """Return a valid free name: *name*, or an automatic one.

        Raises:
            InvalidActorName: *name* is malformed or taken.
            ActorSystemError: the parent is stopping.
        """
        if self.waiting is Waiting.TERMINATION:
            raise ActorSystemError(f"{path} is stopping and cannot have new children")
        if name is None:
            return self._next_name()
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name.startswith("$") or name in (".", ".."):
            raise InvalidActorName(
                f"{name!r} is not an actor name: it takes letters, digits and _ . ~ $ -, and must not begin with $"
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
        """Record a new child."""
        self._by_name[name] = Child(ref, props)

    def refs(self) -> list[ActorRef]:
        """Return all children that have not stopped yet."""
        return [child.ref for child in self._by_name.values()]

    def all(self) -> list[Child]:
        """Return the record of each child."""
        return list(self._by_name.values())

    def ref(self, name: str) -> ActorRef | None:
        """Return the child of that name, or None."""
        child = self._by_name.get(name)
        return None if child is None else child.ref

    def find(self, ref: ActorRef) -> Child | None:
        """Return the child with exactly that ref; None for another incarnation."""
        child = self._by_name.get(ref.name)
        return child if child is not None and child.ref == ref else None

    def is_dying(self, ref: ActorRef) -> bool:
        """Return whether the parent has stopped that child."""
        return ref in self._dying

    # ------------------------------------------------------------------ dying

    @property
    def is_normal(self) -> bool:
        """Return whether no step waits for children to stop."""
        return self.waiting is Waiting.NOTHING

    @property
    def is_terminating(self) -> bool:
        """Return whether the parent itself is stopping."""
        return self.waiting is Waiting.TERMINATION

    def shall_die(self, ref: ActorRef) -> None:
        """Record that the parent has stopped that child."""
        self._dying.add(ref)

    def wait_for(self, reason: Waiting, restart: Restart | None = None) -> bool:
        """Remember the next step after all stopping children have stopped.

        Returns:
            False when no child is stopping; the caller then takes that step at once.
        """
        if not self._dying:
            if reason is Waiting.TERMINATION:
                self.waiting = reason
            return False
        self.waiting, self.restart = reason, restart
        return True

    def remove(self, ref: ActorRef) -> tuple[Waiting, Restart | None]:
        """Remove a child that has stopped; return the step that waited for it, if it was the last one."""
        self._by_name.pop(ref.name, None)
        self._dying.discard(ref)
        if self._dying or self.waiting in (Waiting.NOTHING, Waiting.DELAY):
            return Waiting.NOTHING, None
        reason, restart = self.waiting, self.restart
        self.restart = None
        if reason is not Waiting.TERMINATION:
            self.waiting = Waiting.NOTHING
        return reason, restart


class Call:
    """A call by a gateway, which waits in the mailbox like a message.

    Args:
        begin: starts the call; it handles the call's errors itself.
        refuse: called instead if the actor stops first.
    """

    __slots__ = ("begin", "refuse")

    def __init__(self, begin: Callable[[], None], refuse: Callable[[Exception], None]) -> None:
        self.begin = begin
        self.refuse = refuse


class Cell:
    """Runs one actor on the loop's thread, one turn at a time; a cell is in the run queue at most once.

    A process may have 100,000 cells, so a cell creates rarely used parts on demand.

    Args:
        node: its node.
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
        "held",
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
        """The current message, or the message that the failed instance was handling."""
        self._receive: Callable[[Any], Any] = _nobody
        self._behaviors: list[Callable[[Any], Any]] | None = None
        self._stash: list[Envelope] | None = None
        self._timers: Timers | None = None
        self._receive_timer: ReceiveTimer | None = None
        self._children: Children | None = None
        self._watching: set[ActorRef] | None = None
        self._watched_by: set[ActorRef] | None = None
        self._stopped_watchees: set[ActorRef] | None = None
        """Actors whose `Terminated` is in the mailbox or the stash and still wanted."""
        self._system: deque[SystemMessage] | None = None
        self._throughput = props.throughput or node.settings.throughput
        self._suspended = 0
        self.held = 0
        """Number of started calls that have not taken their first step; later messages wait for them."""
        self._failed: ActorRef | None = None
        """The actor that failed: this one, or the child whose failure it has escalated."""
        self._ended = True
        """Whether the instance (if any) has run its last hook: pre_restart, post_stop, or a hook that failed."""
        self._busy: asyncio.Task[None] | None = None
        self._in_hook = False
        self._scheduled = False
        self._closed = False

    @property
    def children(self) -> Children:
        """The records of the children."""
        children = self._children
        if children is None:
            children = self._children = Children()
        return children

    @property
    def is_closed(self) -> bool:
        """Return whether the actor has stopped."""
        return self._closed

    @property
    def is_occupied(self) -> bool:
        """Return whether it cannot handle a message now, because it is busy or suspended."""
        return self._busy is not None or self._suspended > 0

    def is_idle(self) -> bool:
        """Return whether a call that arrives now is the next message, so that its caller may handle it at once."""
        return not (self._scheduled or self.held or self._suspended or self._busy or self._system)

    def may_follow(self) -> bool:
        """Return whether only started calls precede a call that arrives now, so that it may start as the next task."""
        return not (
            self._scheduled
            or self._suspended
            or self._busy is not None
            or self._system is not None
            or len(self.mailbox)
        )

    def hold(self) -> None:
        """Handle no user messages until `release` has been called as often as this."""
        self.held += 1

    def release(self) -> None:
        """Undo one `hold`."""
        self.held -= 1
        if not self.held:
            self.wake()

    # ------------------------------------------------------------------ instances and coroutines

    def new_instance(self) -> Actor:
        """Create an instance; the cell has it before its constructor runs."""
        props = self.props
        actor = props.allocate()
        actor.context = ActorContext(self)
        self.actor = actor
        self._receive = actor.receive
        if props.made is None:
            actor.__init__(*props.args, **props.kwargs)  # type: ignore[misc]  # the context has to be set before
        self._ended = False
        return actor

    def run_hook(self, result: Any, done: Callable[[], None], failed: Callable[[BaseException], None]) -> None:
        """Call *done* or *failed* with the outcome of a hook; if the hook returned a coroutine, run that first."""
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
        """Run a coroutine to its end. Until then, the cell handles nothing that could interfere with it."""
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
        except asyncio.CancelledError as cancelled:  # what it awaited was cancelled, or `abort` did it
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
        """Return the failure of a handler or hook that a cancellation has ended."""
        error = ActorError(f"what {self.ref.path} was doing, or waiting for, was cancelled")
        error.__cause__ = cancelled
        return error

    def abort(self) -> None:
        """Cancel the running coroutine; called after the timeout for stopping."""
        if self._busy is not None:
            self.node.loop.call_soon(self._busy.cancel)  # not at once: a coroutine that has not started would miss it

    # ------------------------------------------------------------------ what comes in

    def deliver(self, message: Any, sender: ActorRef | None) -> None:
        """Put a message into the mailbox; raises `MailboxFull` if the mailbox is full and its policy says so."""
        if self._closed:
            self.node.undeliverable(self.ref, message, sender)
            return
        dropped = self.mailbox.put(Envelope(message, sender))
        if not self._scheduled and self._busy is None and not self._suspended and not self.held:
            self._scheduled = True
            self.node.schedule(self)
        if dropped:
            for envelope in dropped:
                self.node.undeliverable(self.ref, *envelope, MailboxFull(f"the mailbox of {self.ref.path} is full"))

    def deliver_own(self, message: Any, sender: ActorRef | None) -> None:
        """Put a message of the runtime into the mailbox, or at its front when the mailbox is full."""
        self.deliver_envelope(Envelope(message, sender))

    def deliver_envelope(self, envelope: Envelope) -> None:
        """Put an envelope of the runtime into the mailbox; see `deliver_own`."""
        if self._closed:
            return
        try:
            dropped = self.mailbox.put(envelope)
        except MailboxFull:
            dropped = [envelope]
        for each in dropped:
            if each is envelope:
                self.mailbox.put_first([envelope])
            else:
                self.node.undeliverable(self.ref, *each, MailboxFull(f"the mailbox of {self.ref.path} is full"))
        self.wake()

    def deliver_system(self, message: SystemMessage) -> None:
        """Queue a system message; the cell handles it before user messages."""
        if self._closed:
            self.node.undeliverable_system(self.ref, message)
            return
        if self._system is None:
            self._system = deque()
        self._system.append(message)
        if not self._scheduled and not self._in_hook:
            self._scheduled = True
            self.node.schedule(self)

    # ------------------------------------------------------------------ turns

    def turn(self) -> None:
        """Handle system messages, and user messages up to the throughput."""
        current_cell.set(self)
        if self._system is not None:
            self._run_system()
        if self._busy is None and not self._suspended and not self.held:
            take, left = self.mailbox.get, self._throughput
            while left:
                envelope = take()
                if envelope is None:
                    break
                left -= 1
                self._invoke(envelope)
                if self._system is not None:
                    self._run_system()
                if self._busy is not None or self._suspended or self.held:
                    break
        self._scheduled = False
        self.wake()

    def wake(self) -> None:
        """Schedule a turn if the cell has a message that it may handle."""
        if self._scheduled or self._closed:
            return
        if self._system is not None:
            ready = not self._in_hook and (self._busy is None or not isinstance(self._system[0], _WAIT_FOR_THE_MESSAGE))
        else:
            ready = False
        if ready or (self._busy is None and not self._suspended and not self.held and len(self.mailbox)):
            self._scheduled = True
            self.node.schedule(self)

    def interrupted(self) -> None:
        """Schedule another turn after an interrupt from outside has ended one."""
        self._scheduled = False
        self.wake()

    def _run_system(self) -> None:
        while (queue := self._system) is not None:
            if self._in_hook or (self._busy is not None and isinstance(queue[0], _WAIT_FOR_THE_MESSAGE)):
                return
            message = queue.popleft()
            if not queue:
                self._system = None
            try:
                _SYSTEM[type(message)](self, message)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # a decider that fails, for example: the actor fails
                self.handle_failure(error, type(message).__name__)

    def _invoke(self, envelope: Envelope) -> None:
        if type(envelope) is TimerEnvelope:
            if not envelope.is_wanted(self._timers):
                return
            envelope = Envelope(*envelope)  # from here it is an ordinary message, which may be stashed
        self.envelope = envelope
        message = envelope[0]
        try:
            special = _SPECIAL.get(type(message))
            result = self._receive(message) if special is None else special(self, message)
            if result is not None:
                if inspect.isawaitable(result):
                    self.run_async(result, self._handled, self._message_failed)
                    return
                error = unrun(result)
                if error is not None:
                    raise error
        except KeyboardInterrupt:
            raise
        except asyncio.CancelledError as cancelled:  # the handler took the result of a cancelled future
            self._message_failed(self.cancelled(cancelled))
            return
        except BaseException as error:  # the supervisor decides about any error
            self._message_failed(error)
            return
        self._handled()

    def _handled(self) -> None:
        envelope, self.envelope = self.envelope, None
        if self._receive_timer is None or envelope is None:
            return
        if not isinstance(envelope.message, NotInfluenceReceiveTimeout):
            self._receive_timer.restart()

    def _message_failed(self, error: BaseException) -> None:
        envelope = self.envelope
        assert envelope is not None
        sender = envelope.sender
        if sender is not None and sender.is_ask:
            self.node.fail_ask(sender, error)
        self.handle_failure(error, type(envelope.message).__name__)

    @property
    def sender(self) -> ActorRef | None:
        """Sender of the current message."""
        return None if self.envelope is None else self.envelope.sender

    # ------------------------------------------------------------------ messages that the runtime handles itself

    def _poisoned(self, _message: PoisonPill) -> None:
        self.stop(self.ref)

    def _killed(self, _message: Kill) -> None:
        raise ActorKilled(f"{self.ref.path} was sent Kill")

    def _identify(self, message: Identify) -> None:
        (self.sender or self.node.dead_letters).tell(ActorIdentity(message.message_id, self.ref), self.ref)

    def unhandled(self, message: Any) -> None:
        """Reject the current message, which the actor does not handle."""
        if isinstance(message, Terminated):
            raise DeathPactError(
                f"{self.ref.path} watches {message.actor.path}, which has stopped, and does not handle that"
            )
        sender = self.sender
        if sender is not None and sender.is_ask:
            what = type(message).__qualname__
            self.node.fail_ask(
                sender, UnhandledMessageError(f"{self.ref.path} has no use for a message of type {what}")
            )
        self.node.publish(UnhandledMessage(message, sender, self.ref))

    # ------------------------------------------------------------------ behaviours, stash, time

    def become(self, behavior: Callable[[Any], Any], discard_old: bool) -> None:
        """Handle the next messages with *behavior*."""
        if self._behaviors is None:
            self._behaviors = [self._receive]
        if discard_old:
            self._behaviors.pop()
        self._behaviors.append(behavior)
        self._receive = behavior

    def unbecome(self) -> None:
        """Restore the previous behaviour."""
        if self._behaviors is not None and len(self._behaviors) > 1:
            self._behaviors.pop()
            self._receive = self._behaviors[-1]
        elif self.actor is not None:
            self._behaviors = None
            self._receive = self.actor.receive

    def reset_behavior(self) -> None:
        """Drop the behaviours and timers of the old instance."""
        self._behaviors = None
        if self._timers is not None:
            self._timers.cancel_all()
            self._timers = None

    def cancel_timers(self) -> None:
        """Cancel all timers before the last hook of the instance."""
        if self._timers is not None:
            self._timers.cancel_all()

    def stash(self) -> None:
        """Put the current message aside."""
        envelope = self.envelope
        if envelope is None:
            raise RuntimeError("there is no message to stash: stash() is for messages that are being handled")
        if self._stash is None:
            self._stash = []
        if self._stash and self._stash[-1] is envelope:
            raise RuntimeError(f"the {type(envelope.message).__name__} was stashed already")
        capacity = self.node.settings.stash_capacity
        if len(self._stash) >= capacity:
            raise StashOverflow(f"the stash of {self.ref.path} holds {capacity} messages already")
        self._stash.append(envelope)
        if isinstance(envelope.message, Terminated):
            self.expect_terminated(envelope.message.actor)

    def unstash_all(self) -> None:
        """Move the stashed messages to the front of the mailbox."""
        stash, self._stash = self._stash, None
        if stash:
            self.mailbox.put_first(stash)
            self.wake()

    def timers(self) -> Timers:
        """Return the actor's timers."""
        if self._timers is None:
            self._timers = Timers(self)
        return self._timers

    def set_receive_timeout(self, seconds: float | None) -> None:
        """Set, change or cancel the receive timeout."""
        if self._receive_timer is not None:
            self._receive_timer.cancel()
        self._receive_timer = None if seconds is None else ReceiveTimer(self, seconds)

    def pipe_to(self, awaitable: Awaitable[Any], recipient: ActorRef, sender: ActorRef | None) -> None:
        """Tell the result of *awaitable* to *recipient*."""

        async def pipe() -> None:
            try:
                result = await awaitable
            except (Exception, asyncio.CancelledError, SystemExit) as error:
                result = Failure(error)
            recipient.tell(result, sender)

        self.node.run_in_background(pipe())

    # ------------------------------------------------------------------ children

    def make_child(self, props: Props, name: str | None) -> ActorRef:
        """Create a child; raises `InvalidActorName` and `ActorSystemError`."""
        if self._closed:
            raise ActorSystemError(f"{self.ref.path} has stopped and cannot have children")
        children = self.children
        former = None if name is None else children.ref(name)
        if former is not None and isinstance(former._target, Cell) and former._target.is_closed:
            self.child_terminated(former)  # it has stopped, but its notification still waits
        name = children.reserve(name, self.ref.path)
        ref = self.node.create_child(self, props, name)
        children.add(name, ref, props)
        return ref

    # ------------------------------------------------------------------ watching and being watched

    def watch(self, ref: ActorRef) -> None:
        """Watch *ref*; the actor receives a `Terminated` when it stops. Idempotent."""
        watching = self._watching
        if ref == self.ref or (watching is not None and ref in watching):
            return
        if watching is None:
            watching = self._watching = set()
        watching.add(ref)
        self.node.watching(ref, self)
        self.node.send_system(ref, Watch(self.ref))

    def unwatch(self, ref: ActorRef) -> None:
        """Stop watching *ref*, and drop its `Terminated`, even one that is already in the mailbox."""
        if self._watching is not None and ref in self._watching:
            self._watching.discard(ref)
            self._watch_ended(ref)
            self.node.send_system(ref, Unwatch(self.ref))
        if self._stopped_watchees is not None:
            self._stopped_watchees.discard(ref)

    def _watch_ended(self, ref: ActorRef) -> None:
        if self._children is None or self._children.find(ref) is None:
            self.node.unwatching(ref, self)

    def unwatch_all(self) -> None:
        """Stop watching all actors, because this actor stops."""
        for ref in list(self._watching or ()):
            self.unwatch(ref)
        self._watching = None
        self._stopped_watchees = None

    def add_watcher(self, watcher: ActorRef) -> None:
        """Add a watcher; it gets a notification when this actor stops."""
        if watcher != self.ref:
            if self._watched_by is None:
                self._watched_by = set()
            self._watched_by.add(watcher)

    def remove_watcher(self, watcher: ActorRef) -> None:
        """Remove a watcher."""
        if self._watched_by is not None:
            self._watched_by.discard(watcher)

    def watchee_terminated(self, notification: DeathWatchNotification) -> None:
        """Handle the end of an actor: a watched one, a child, or both; ignore any other."""
        ref = notification.actor
        if self._watching is not None and ref in self._watching:
            self._watching.discard(ref)
            self.node.unwatching(ref, self)
            self.announce(Terminated(ref, notification.existence_confirmed, notification.address_terminated))
        child = None if self._children is None else self._children.find(ref)
        if child is None:
            return
        self.node.unwatching(ref, self)
        if notification.address_terminated and not self.children.is_dying(ref):
            self.child_lost(ref, ActorProcessDied(f"the process of {ref.path} has ended"))
        else:
            self.child_terminated(ref)

    def announce(self, terminated: Terminated) -> None:
        """Queue a `Terminated` in the mailbox, behind earlier messages of the stopped actor."""
        if self._children is not None and self._children.is_terminating:
            return
        self.expect_terminated(terminated.actor)
        self.deliver_own(terminated, terminated.actor)

    def expect_terminated(self, ref: ActorRef) -> None:
        """Note that a `Terminated` of *ref* is in the mailbox or the stash; `unwatch` cancels it."""
        if self._stopped_watchees is None:
            self._stopped_watchees = set()
        self._stopped_watchees.add(ref)

    def receive_terminated(self, message: Terminated) -> Any:
        """Handle a `Terminated`, unless the actor has stopped watching since it was queued."""
        if self._stopped_watchees is not None and message.actor in self._stopped_watchees:
            self._stopped_watchees.discard(message.actor)
            return self._receive(message)
        return None

    def tell_watchers(self) -> None:
        """Notify the parent and the watchers that this actor has stopped."""
        notification = DeathWatchNotification(self.ref, True, False)
        watchers, self._watched_by = self._watched_by, None
        self.node.send_system(self.parent, notification)
        for watcher in watchers or ():
            if watcher != self.parent:
                self.node.send_system(watcher, notification)

    # ------------------------------------------------------------------ creation

    def create(self) -> None:
        """Create the instance and call `pre_start`."""
        try:
            result = self.new_instance().pre_start()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # the supervisor decides about any error here
            self._creation_failed(error)
            return
        self.run_hook(result, self.wake, self._creation_failed)

    def _creation_failed(self, error: BaseException) -> None:
        self.reset_behavior()
        self.actor = None
        self._ended = True
        self.handle_failure(self._initialization_error("creation", error), "its creation")

    def _initialization_error(self, what: str, error: BaseException) -> ActorInitializationError:
        wrapped = ActorInitializationError(f"{self.ref.path}: {what} failed: {type(error).__name__}: {error}")
        wrapped.__cause__ = error
        return wrapped

    def _create_anew(self) -> None:
        """Create the instance again after a failed creation, once children of the failed constructor have stopped."""
        self._stop_children()
        if not self.children.wait_for(Waiting.CREATION):
            self._finish_creation()

    def _finish_creation(self) -> None:
        self._suspended -= 1
        self._failed = None
        self.create()

    # ------------------------------------------------------------------ failure

    def handle_failure(
        self, error: BaseException, handling: str, perpetrator: ActorRef | None = None, spare: tuple[ActorRef, ...] = ()
    ) -> None:
        """Suspend this actor and its children, and ask the parent for a directive.

        Args:
            error: the error with which it fails.
            handling: the message or step that it was handling.
            perpetrator: the child whose failure this actor escalates.
            spare: children that stay as they are, because they are suspended already.
        """
        if self._failed is not None:
            logger.error(
                "%s failed in %s while it was failing or stopping already", self.ref.path, handling, exc_info=error
            )
            return
        self._suspended += 1
        self._failed = perpetrator or self.ref
        if self._children is not None:
            for child in self._children.refs():
                if child not in spare:
                    self.node.send_system(child, Suspend())
        is_far = self.parent._target is None
        trace = "".join(traceback.format_exception(error)) if is_far else ""
        failed = Failed(self.ref, error, handling, trace, escalated=perpetrator is not None)
        self.node.send_system(self.parent, failed)

    def suspend(self) -> None:
        """Stop handling user messages, here and in the children."""
        self._suspended += 1
        if self._children is not None:
            for child in self._children.refs():
                self.node.send_system(child, Suspend())

    def resume(self, cause: BaseException | None) -> None:
        """Undo one suspension, here and in the children.

        Args:
            cause: the failure of this actor that its supervisor ignores; None when another actor failed.
        """
        if self.actor is None:
            self._create_anew()
        elif cause is not None and self._ended and self._failed is not None:
            self.recreate(cause)  # no instance is left that could continue
        else:
            self._resume(cause)

    def _resume(self, cause: BaseException | None) -> None:
        perpetrator = self._failed
        self._suspended -= 1
        if cause is not None:
            self._failed = None
            self.envelope = None
        if self._children is not None:
            for child in self._children.refs():
                self.node.send_system(child, Resume(cause if child == perpetrator else None))

    # ------------------------------------------------------------------ restart

    def recreate(self, cause: BaseException, delay_s: float = 0.0) -> None:
        """Restart the actor.

        1. Call `pre_restart` of the old instance.
        2. Wait until the children that it stops have stopped.
        3. Create a new instance. With *delay_s*, only that comes later (as with Akka's `BackoffSupervisor`).
        """
        due = self.node.loop.time() + delay_s
        if self.actor is None:
            self._create_anew()
        elif not self.children.is_normal:
            self._resume(None)  # a restart or stop is under way: only keep the suspensions balanced
        elif self._ended:
            self._await_children(cause, due)
        else:
            self.unstash_all()
            self.cancel_timers()
            message = None if self.envelope is None else self.envelope.message
            try:
                result = self.actor.pre_restart(cause, message)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                self._pre_restart_failed(cause, due, error)
                return
            self.run_hook(
                result,
                functools.partial(self._await_children, cause, due),
                functools.partial(self._pre_restart_failed, cause, due),
            )

    def _pre_restart_failed(self, cause: BaseException, due: float, error: BaseException) -> None:
        # As in Akka: the old instance has failed once more, and is replaced anyway.
        logger.error("%s failed in pre_restart; it is restarted all the same", self.ref.path, exc_info=error)
        self._await_children(cause, due)

    def _await_children(self, cause: BaseException, due: float) -> None:
        self._ended = True
        self.reset_behavior()
        if not self.children.wait_for(Waiting.RECREATION, (cause, due)):
            self._await_time(cause, due)

    def _await_time(self, cause: BaseException, due: float) -> None:
        if due > self.node.loop.time():
            self.children.waiting = Waiting.DELAY
            come = Perform(functools.partial(self._time_has_come, cause))
            self.node.loop.call_at(due, self.deliver_system, come)
        else:
            self._finish_recreation(cause)

    def _time_has_come(self, cause: BaseException) -> None:
        if self._children is not None and self._children.waiting is Waiting.DELAY:  # not stopped during the delay
            self._children.waiting = Waiting.NOTHING
            self._finish_recreation(cause)

    def _finish_recreation(self, cause: BaseException) -> None:
        survivors = tuple(self.children.refs())
        self._suspended -= 1
        self._failed = None
        self.envelope = None
        try:
            result = self.new_instance().post_restart(cause)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._recreation_failed(survivors, error)
            return
        self.run_hook(
            result,
            functools.partial(self._recreated, survivors, cause),
            functools.partial(self._recreation_failed, survivors),
        )

    def _recreated(self, survivors: tuple[ActorRef, ...], cause: BaseException) -> None:
        if self._receive_timer is not None:
            self._receive_timer.restart()
        for child in survivors:  # children that pre_restart has not stopped restart with their parent
            self.node.send_system(child, Recreate(cause))
        self.wake()

    def _recreation_failed(self, survivors: tuple[ActorRef, ...], error: BaseException) -> None:
        self.reset_behavior()
        self._ended = True
        self.handle_failure(self._initialization_error("restart", error), "its restart", spare=survivors)

    # ------------------------------------------------------------------ termination

    def stop_from_outside(self) -> None:
        """Stop this actor as its parent would."""
        parent = self.parent._target
        if isinstance(parent, Cell):
            parent.stop(self.ref)
        else:
            self.deliver_system(Terminate())

    def stop(self, ref: ActorRef) -> None:
        """Stop a child, or this actor itself."""
        child = None if self._children is None else self._children.find(ref)
        if child is not None and child.lost:
            self.child_terminated(ref)  # its process has died, and no other has been started yet
            return
        if child is not None:
            self.children.shall_die(ref)
        self.node.send_system(ref, Terminate())

    def _stop_children(self) -> None:
        if self._children is not None:
            for child in self._children.refs():
                self.stop(child)

    def terminate(self) -> None:
        """Stop the children, then call the instance's `post_stop`; messages that remain become dead letters."""
        if self._receive_timer is not None:
            self._receive_timer.cancel()
        self.unwatch_all()
        was_terminating = self._children is not None and self._children.is_terminating
        self._stop_children()
        if not was_terminating:
            # Handle no more user messages, and ignore failures of children that are stopping.
            self._suspended += 1
            self._failed = self.ref
        if self._children is None or not self._children.wait_for(Waiting.TERMINATION):
            self._finish_termination()

    def _finish_termination(self) -> None:
        actor = self.actor
        if actor is None or self._ended:
            self._terminated()
            return
        self._ended = True
        self.cancel_timers()
        try:
            result = actor.post_stop()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._post_stop_failed(error)
            return
        self.run_hook(result, self._terminated, self._post_stop_failed)

    def _post_stop_failed(self, error: BaseException) -> None:
        logger.error("%s failed in post_stop; it is stopped all the same", self.ref.path, exc_info=error)
        self._terminated()

    def _terminated(self) -> None:
        self.reset_behavior()
        self._closed = True
        stash, self._stash = self._stash, None
        left = [*(stash or ()), *self.mailbox.drain()]
        if self._receive_timer is not None:
            self._receive_timer.cancel()
        self.node.cell_stopped(self)
        for envelope in left:
            if type(envelope.message) is Call:
                envelope.message.refuse(EndpointStateError(f"{self.ref.path} has stopped"))
            elif type(envelope) is not TimerEnvelope:
                self.node.undeliverable(self.ref, *envelope)
        self.tell_watchers()
        waiting, self._system = self._system, None
        for message in waiting or ():
            self.node.undeliverable_system(self.ref, message)
        self.actor = None
        self.envelope = None
        self._children = None
        self._watching = None

    def child_terminated(self, ref: ActorRef) -> None:
        """Free the name of a child that has stopped; after the last one, take the step that waited for it."""
        waiting, restart = self.children.remove(ref)
        if waiting is Waiting.TERMINATION:
            self._finish_termination()
        elif waiting is Waiting.RECREATION and restart is not None:
            self._await_time(*restart)
        elif waiting is Waiting.CREATION:
            self._finish_creation()

    # ------------------------------------------------------------------ the supervision of its children

    def handle_failed(self, failed: Failed) -> None:
        """Decide about a child that has failed and waits for a directive."""
        child = None if self._children is None else self._children.find(failed.child)
        if child is None:
            return  # an earlier incarnation, or a child that has stopped since then
        self._decide(child, failed)

    def child_lost(self, ref: ActorRef, error: BaseException) -> None:
        """Handle the death of a child's process, or the failure of its creation in another process.

        The strategy decides as for any error. Restart creates a new incarnation in a new process. Resume is impossible,
        so the child stops instead.
        """
        child = None if self._children is None else self._children.find(ref)
        if child is None or child.lost:
            return
        if self._watching is not None and ref in self._watching:
            self._watching.discard(ref)
            self.announce(Terminated(ref, existence_confirmed=True, address_terminated=True))
        self.node.unwatching(ref, self)
        if self.children.is_dying(ref):
            self.child_terminated(ref)
            return
        child.lost = True
        self._decide(child, Failed(ref, error, "its process"))

    def _decide(self, child: Child, failed: Failed) -> None:
        if self.actor is None:  # its own creation has failed: no strategy can decide
            self.stop(child.ref)
            return
        strategy = self.actor.supervisor_strategy
        directive = strategy.decide(failed.error)
        if child.lost and directive is Directive.RESUME:
            directive = Directive.STOP
        affected = self.children.all() if strategy.all_for_one else [child]
        delay_s = 0.0
        verdict = directive.name.lower()
        if directive is Directive.RESTART:
            now = self.node.loop.time()
            allowed = [
                _may_restart(each, strategy, now) for each in affected
            ]  # the restart counts for each child, whatever the others' limits
            if all(allowed):
                delay_s = _delay(child, strategy, now, self.node.rng)
                verdict = f"restart in {delay_s:.2f} s" if delay_s else verdict
            else:
                directive = Directive.STOP
                verdict = "stop, for it has failed too often"
        self._report(failed, verdict)
        unmatched = strategy.unmatched(failed.error)
        if unmatched is not None:
            logger.warning("%s: %s", self.ref.path, unmatched)
        match directive:
            case Directive.RESUME:
                self.node.send_system(child.ref, Resume(failed.error))
            case Directive.RESTART:
                self._restart(affected, child, failed.error, delay_s)
            case Directive.STOP:
                for each in affected:
                    self.stop(each.ref)
            case Directive.ESCALATE:
                if child.lost:
                    self.child_terminated(child.ref)
                self.handle_failure(failed.error, failed.handling, failed.child, spare=(failed.child,))

    def _report(self, failed: Failed, verdict: str) -> None:
        """Log one line per decision; log the traceback only at the failure, not at each level of escalation."""
        path = failed.child.path
        error: Any = failed.error
        name = type(error).__name__
        if failed.escalated:
            logger.error("%s has escalated %s: %s; directive: %s", path, name, error, verdict)
        elif failed.trace:
            logger.error(
                "%s failed in %s: %s: %s; directive: %s\n%s", path, failed.handling, name, error, verdict, failed.trace
            )
        else:
            trace = None if isinstance(error, ActorProcessDied) else error  # a dead process leaves no stack
            logger.error(
                "%s failed in %s: %s: %s; directive: %s", path, failed.handling, name, error, verdict, exc_info=trace
            )

    # ------------------------------------------------------------------ restarting

    def _restart(self, affected: list[Child], failed: Child, cause: BaseException, delay_s: float) -> None:
        for each in affected:
            if each is not failed and not each.lost:
                self.node.send_system(each.ref, Suspend())
        for each in affected:
            if not each.lost:
                self.node.send_system(each.ref, Recreate(cause, delay_s))
            elif delay_s:
                self._later(delay_s, functools.partial(self._make_again, each))
            else:
                self._make_again(each)

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        self.node.loop.call_later(delay_s, self.deliver_system, Perform(action))

    def _make_again(self, child: Child) -> None:
        """Create a new incarnation in a new process for a child whose process has died."""
        if self._children is None or self._children.find(child.ref) is not child:
            return  # it was stopped while it waited
        name = child.ref.name
        try:
            ref = self.node.create_child(self, child.props, name)
        except ActorError as error:
            logger.error("%s cannot be made again: %s", child.ref.path, error)
            self.child_terminated(child.ref)
            return
        child.lost = False
        child.ref = ref


def unrun(result: Any) -> TypeError | None:
    """Return the error for a handler or hook that has returned a generator; None for any other result."""
    if not isinstance(result, (types.GeneratorType, types.AsyncGeneratorType)):
        return None
    return TypeError(
        f"{result.__qualname__} returned a generator, of which no line has run: take the yield out of it; "
        "to wait for something, write async def and await"
    )


def _nobody(message: Any) -> None:
    raise RuntimeError("a message was handled before its actor was made")


def _may_restart(child: Child, strategy: SupervisorStrategy, now: float) -> bool:
    if child.window is None:
        child.window = strategy.window()
    return child.window.restart_permissible(now)


def _delay(child: Child, strategy: SupervisorStrategy, now: float, rng: random.Random) -> float:
    """Return the delay of the restart, in seconds."""
    if strategy.backoff is None:
        return 0.0
    if child.backoff is None:
        child.backoff = BackoffCounter(strategy.backoff)
    return child.backoff.next_delay(now, rng)


_SPECIAL: dict[type, Callable[[Cell, Any], Any]] = {
    PoisonPill: Cell._poisoned,
    Kill: Cell._killed,
    Identify: Cell._identify,
    Terminated: Cell.receive_terminated,
    Call: lambda cell, message: message.begin(),
}


_SYSTEM: dict[type, Callable[[Cell, Any], None]] = {
    Create: lambda cell, message: cell.create(),
    Suspend: lambda cell, message: cell.suspend(),
    Resume: lambda cell, message: cell.resume(message.cause),
    Recreate: lambda cell, message: cell.recreate(message.cause, message.delay_s),
    Terminate: lambda cell, message: cell.terminate(),
    Watch: lambda cell, message: cell.add_watcher(message.watcher),
    Unwatch: lambda cell, message: cell.remove_watcher(message.watcher),
    DeathWatchNotification: Cell.watchee_terminated,
    Failed: Cell.handle_failed,
    Perform: lambda cell, message: message.action(),
}

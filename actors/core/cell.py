"""What runs an actor (Akka's `ActorCell` and `Mailbox`): its mailbox, its turns, its behaviours and its children."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from actors.core.cell_state import unrun
from actors.core.supervising import Supervising
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
    ActorKilled,
    ActorSystemError,
    DeathPactError,
    MailboxFull,
    StashOverflow,
    UnhandledMessageError,
)
from actors.mailbox import Envelope
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
from actors.timers import ReceiveTimer, TimerEnvelope, Timers

log = logging.getLogger(__name__)

_WAIT_FOR_THE_MESSAGE = (Terminate, Recreate)
"""What waits until the message that is being handled by a coroutine has been handled; the rest is done meanwhile."""


class Cell(Supervising):
    """Runs one actor, on the loop's thread, a turn at a time; a cell is in the run queue at most once."""

    __slots__ = ()

    # ------------------------------------------------------------------ what comes in

    def deliver(self, message: Any, sender: ActorRef | None) -> None:
        """Put a message into the mailbox; raises `MailboxFull` when that is its policy."""
        if self._closed:
            self.node.undeliverable(self.ref, message, sender)
            return
        dropped = self.mailbox.put(Envelope(message, sender))
        if not self._scheduled and self._busy is None and not self._suspended:
            self._scheduled = True
            self.node.schedule(self)
        if dropped:
            for envelope in dropped:
                self.node.undeliverable(self.ref, *envelope, MailboxFull(f"the mailbox of {self.ref.path} is full"))

    def deliver_own(self, message: Any, sender: ActorRef | None) -> None:
        """Put a message of the runtime's into the mailbox; where that is full, to its front."""
        self.deliver_envelope(Envelope(message, sender))

    def deliver_envelope(self, envelope: Envelope) -> None:
        """The same for a message that has an envelope already."""
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
        """Take a system message, to be handled before user messages."""
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
        if self._busy is None and not self._suspended:
            take, left = self.mailbox.get, self._throughput
            while left:
                envelope = take()
                if envelope is None:
                    break
                left -= 1
                self._invoke(envelope)
                if self._system is not None:
                    self._run_system()
                if self._busy is not None or self._suspended:
                    break
        self._scheduled = False
        self.wake()

    def wake(self) -> None:
        """Have a turn, if there is something to do."""
        if self._scheduled or self._closed:
            return
        if self._system is not None:
            ready = not self._in_hook and (self._busy is None or not isinstance(self._system[0], _WAIT_FOR_THE_MESSAGE))
        else:
            ready = False
        if ready or (self._busy is None and not self._suspended and len(self.mailbox)):
            self._scheduled = True
            self.node.schedule(self)

    def interrupted(self) -> None:
        """A turn was ended by an interrupt from outside: what is left is for the next one."""
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
            except BaseException as error:  # a decider that fails, for example: as if the actor had
                self.handle_failure(error, type(message).__name__)

    def _invoke(self, envelope: Envelope) -> None:
        if type(envelope) is TimerEnvelope:
            if not envelope.is_wanted(self._timers):
                return
            envelope = Envelope(*envelope)  # from now on a message like any other, which may be stashed
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
        except asyncio.CancelledError as cancelled:  # of a future whose result it took
            self._message_failed(self.cancelled(cancelled))
            return
        except BaseException as error:  # whatever it is, the supervisor decides
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
        """Who sent the message that is being handled."""
        return None if self.envelope is None else self.envelope.sender

    # ------------------------------------------------------------------ messages that the runtime handles itself

    def _poisoned(self, _message: PoisonPill) -> None:
        self.stop(self.ref)

    def _killed(self, _message: Kill) -> None:
        raise ActorKilled(f"{self.ref.path} was sent Kill")

    def _identify(self, message: Identify) -> None:
        (self.sender or self.node.dead_letters).tell(ActorIdentity(message.message_id, self.ref), self.ref)

    def unhandled(self, message: Any) -> None:
        """The actor has no use for the message that it is handling."""
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
        """Handle messages otherwise from now on."""
        if self._behaviors is None:
            self._behaviors = [self._receive]
        if discard_old:
            self._behaviors.pop()
        self._behaviors.append(behavior)
        self._receive = behavior

    def unbecome(self) -> None:
        """Back to the behaviour before."""
        if self._behaviors is not None and len(self._behaviors) > 1:
            self._behaviors.pop()
            self._receive = self._behaviors[-1]
        elif self.actor is not None:
            self._behaviors = None
            self._receive = self.actor.receive

    def reset_behavior(self) -> None:
        """Forget what the old instance has set up."""
        self._behaviors = None
        if self._timers is not None:
            self._timers.cancel_all()
            self._timers = None

    def cancel_timers(self) -> None:
        """The instance is about to have its last hook."""
        if self._timers is not None:
            self._timers.cancel_all()

    def stash(self) -> None:
        """Put the present message aside."""
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
        """Put the messages of the stash back to the front of the mailbox."""
        stash, self._stash = self._stash, None
        if stash:
            self.mailbox.put_first(stash)
            self.wake()

    def timers(self) -> Timers:
        """The actor's timers."""
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
        """Make a child; raises `InvalidActorName`."""
        if self._closed:
            raise ActorSystemError(f"{self.ref.path} has stopped and cannot have children")
        children = self.children
        name = children.reserve(name, self.ref.path)
        ref = self.node.create_child(self, props, name)
        children.add(name, ref, props)
        return ref


_SPECIAL: dict[type, Callable[[Cell, Any], Any]] = {
    PoisonPill: Cell._poisoned,
    Kill: Cell._killed,
    Identify: Cell._identify,
    Terminated: Cell.receive_terminated,
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

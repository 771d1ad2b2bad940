"""Where messages of a node go: to a cell, to an ask, to another process, or to nobody (part of `ActorRefProvider`)."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Any, Protocol

from actors.core.asking import Asking
from actors.core.cell import Cell
from actors.core.dead_letters import DeadLetters
from actors.core.guardians import Root
from actors.core.promise import Promise, Promises
from actors.core.settings import CoreSettings
from actors.core.system_messages import DeathWatchNotification, SystemMessage, Watch
from actors.errors import ActorError, MailboxFull, RecipientTerminated
from actors.event_stream import EventStream
from actors.messages import ActorIdentity, Identify, PoisonPill, ReceiveTimeout, Terminated
from actors.props import CreateOrder
from actors.ref import ActorRef, Origin, Target
from actors.selection import ActorSelection, SelectionMessage, step
from actors.serialization import Serializer

log = logging.getLogger(__name__)

_UNMOURNED = (PoisonPill, Terminated, ReceiveTimeout)
"""What is no loss when its recipient is gone (Akka's `DeadLetterSuppression`)."""


class Remote(Protocol):
    """How a node reaches what is not in its process. Called on the node's loop only."""

    def send(self, ref: ActorRef, message: Any, sender: ActorRef | None) -> None:
        """Send a message; raises `SerializationError` when it cannot travel. What is lost: `Node.undeliverable`."""

    def send_system(self, ref: ActorRef, message: SystemMessage) -> None:
        """Send a system message."""

    def create(self, order: CreateOrder, ref: ActorRef, on_failed: Callable[[Exception], None]) -> None:
        """Have an actor made elsewhere. What is sent to *ref* from now on waits for that."""

    def watching(self, ref: ActorRef) -> None:
        """From now on say it when the process of *ref* ends: `Node.process_ended`."""

    def unwatching(self, ref: ActorRef) -> None:
        """That is of interest no more."""

    def closed(self) -> None:
        """The node has ended."""


class Delivery(Asking):
    """The part of a node that knows whom a ref means.

    Args:
        loop: see `Dispatcher`.
        turn_budget_s: see `Dispatcher`.
        origin: see `Asking`.
        settings: see `Asking`.
        remote: how other nodes are reached, if there are others.
        temp: what the paths of asks begin with.
        rng: where random numbers come from.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        turn_budget_s: float | None,
        origin: Origin,
        settings: CoreSettings,
        remote: Remote | None,
        temp: str,
        rng: random.Random,
    ) -> None:
        super().__init__(loop, turn_budget_s, origin, settings)
        self.remote = remote
        self.rng = rng
        self.cells: dict[str, Cell] = {}
        self.root: Root | None = None
        self.promises = Promises(self.as_node, temp, rng.getrandbits(61) + 1)
        self.serializer = Serializer(lambda text: ActorRef.parse(text, self.as_node))
        self.dead_letters = ActorRef(self.as_node, origin, "/deadLetters", 0, _Grave(self))
        self.event_stream = EventStream(self.run_on_loop, self._event_refused, self.watch_subscriber)
        self.letters = DeadLetters(loop, self.event_stream.publish)

    # ------------------------------------------------------------------ refs

    def ref(self, path: str, uid: int, origin: Origin | None = None) -> ActorRef:
        """The ref of the actor at *path*, bound to this node; with uid 0 of whichever lives there when it is used."""
        if uid and (origin is None or origin == self.origin):
            target = self._find(path, uid)
            if target is not None:
                return target.ref
        if path == "/deadLetters":
            return self.dead_letters
        return ActorRef(self.as_node, origin or self.origin, path, uid)

    def _find(self, path: str, uid: int) -> Cell | Promise | None:
        found = self.cells.get(path) or self.promises.get(path)
        return found if found is not None and uid in (found.ref.uid, 0) else None

    def target_of(self, ref: ActorRef) -> Target | None:
        """What a ref leads to, where that lives here."""
        return self._find(ref.path, ref.uid) if ref.uid and ref.origin == self.origin else None

    def select(self, path: str, base: ActorRef) -> ActorSelection:
        """The actors that match *path*, relative to *base*."""
        return ActorSelection(self.as_node, path, base)

    # ------------------------------------------------------------------ messages

    def send(self, ref: ActorRef, message: Any, sender: ActorRef | None) -> None:
        """Send a message of an actor of this node, or of nobody. Raises `MailboxFull` and `SerializationError`."""
        target = ref._target
        if target is not None:
            target.deliver(message, sender)
        elif ref._origin != self.origin:
            self._send_away(ref, message, sender)
        elif (found := self._find(ref.path, ref.uid)) is None:
            if ref.path == "/" and self.root is not None:
                self._deliver_found(self.root, message, sender)
            else:
                self._send_away(ref, message, sender)
        else:
            self._deliver_found(found, message, sender)

    def _send_away(self, ref: ActorRef, message: Any, sender: ActorRef | None) -> None:
        if self.remote is None or self.is_closed:
            self.undeliverable(ref, message, sender)
        else:
            self.remote.send(ref, message, sender)

    def deliver(self, ref: ActorRef, message: Any, sender: ActorRef | None) -> None:
        """Deliver a message that came from elsewhere. Never raises: a full mailbox makes a dead letter."""
        self.deliver_text(ref.path, ref.uid, message, sender)

    def deliver_text(self, path: str, uid: int, message: Any, sender: ActorRef | None) -> None:
        """The same by path and uid, which need no ref when the actor is there."""
        found: Target | None = self._find(path, uid)
        if found is None and path == "/":
            found = self.root
        if found is None:
            self.undeliverable(self.ref(path, uid), message, sender)
            return
        try:
            self._deliver_found(found, message, sender)
        except Exception as error:  # a full mailbox, or a user's priority function: the sender is elsewhere
            self.undeliverable(self.ref(path, uid), message, sender, error)

    def _deliver_found(self, found: Target, message: Any, sender: ActorRef | None) -> None:
        if type(message) is SelectionMessage and not isinstance(found, Promise):
            self._pass_on(found, message, sender)
        else:
            found.deliver(message, sender)

    def _pass_on(self, at: Target, selection: SelectionMessage, sender: ActorRef | None) -> None:
        """Take a selection one element further, at a cell or at the root of all paths."""
        assert isinstance(at, (Cell, Root))
        children = at.children
        way = step(selection, [ref.name for ref in children.refs()])
        if way.missed:
            self.undeliverable(at.ref, selection, sender)
            return
        refs = (
            [at.parent] if way.to_parent else [ref for name in way.children if (ref := children.ref(name)) is not None]
        )
        for ref in refs:
            if isinstance(way.rest, SelectionMessage) and isinstance(ref._target, (Cell, Root)):
                self._pass_on(ref._target, way.rest, sender)
            else:
                try:
                    self.send(ref, way.rest, sender)
                except ActorError as error:  # the others are to get it all the same
                    self.undeliverable(ref, way.rest, sender, error)

    def post_message(self, ref: ActorRef, message: Any, sender: ActorRef | None) -> None:
        """Send a message from another thread."""
        self.post(self._send_posted, ref, message, sender)

    def _send_posted(self, ref: ActorRef, message: Any, sender: ActorRef | None) -> None:
        try:
            self.send(ref, message, sender)
        except Exception as error:  # there is nobody to raise it at any more
            log.warning("a %s for %s was not sent: %s", type(message).__name__, ref.path, error)
            self.undeliverable(ref, message, sender, error)

    # ------------------------------------------------------------------ system messages

    def send_system(self, ref: ActorRef, message: SystemMessage) -> None:
        """Send a system message, to here or elsewhere."""
        target = ref._target
        if target is None and ref._origin == self.origin:
            target = self._find(ref.path, ref.uid)
        if target is not None:
            target.deliver_system(message)
        elif self.remote is None or self.is_closed:
            self.undeliverable_system(ref, message)
        else:
            self.remote.send_system(ref, message)

    def deliver_system(self, ref: ActorRef, message: SystemMessage) -> None:
        """Deliver a system message that came for this node from elsewhere."""
        target: Target | None = self._find(ref.path, ref.uid)
        if target is None and ref.path == "/":
            target = self.root
        if target is None:
            self.undeliverable_system(ref, message)
        else:
            target.deliver_system(message)

    def undeliverable_system(self, ref: ActorRef, message: SystemMessage) -> None:
        """*ref* has stopped, or never lived: who wants to watch it is told; the rest is of no interest any more."""
        if isinstance(message, Watch):
            self.send_system(message.watcher, DeathWatchNotification(ref, existence_confirmed=False))

    # ------------------------------------------------------------------ what nobody gets

    def undeliverable(
        self, ref: ActorRef, message: Any, sender: ActorRef | None, error: BaseException | None = None
    ) -> None:
        """A message has no recipient, or that has refused it: a dead letter, and an asker is told at once.

        Args:
            ref: the recipient.
            message: the message.
            sender: its sender.
            error: why; default: the recipient has terminated.
        """
        while type(message) is SelectionMessage:
            message = message.message
        if type(message) is Identify:
            (sender or self.dead_letters).tell(ActorIdentity(message.message_id, None), ref)
            return
        if not isinstance(message, _UNMOURNED):
            self.letters.put(message, sender, ref, error)
        if sender is not None and sender.is_ask:
            self.fail_ask(sender, error or RecipientTerminated(f"{ref} has stopped, or never lived"))

    def dead_letter(self, message: Any, sender: ActorRef | None, recipient: ActorRef) -> None:
        """Count, log and publish a message that nobody gets."""
        self.letters.put(message, sender, recipient)

    @property
    def dead_letters_count(self) -> int:
        """How many dead letters there have been in this process."""
        return self.letters.count

    def publish(self, event: Any) -> None:
        """Publish an event on the event stream."""
        self.event_stream.publish(event)

    def _event_refused(self, subscriber: ActorRef, event: Any, error: MailboxFull) -> None:
        self.letters.put(event, None, subscriber, error)


class _Grave:
    """The target of `/deadLetters`."""

    def __init__(self, node: Delivery) -> None:
        self._node = node

    def deliver(self, message: Any, sender: ActorRef | None) -> None:
        self._node.undeliverable(self._node.dead_letters, message, sender)

    def deliver_system(self, message: SystemMessage) -> None:
        self._node.undeliverable_system(self._node.dead_letters, message)

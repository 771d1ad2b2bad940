"""What one node sends to another: messages, system messages, asks. Each knows how it travels and what if it cannot."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from actors.core.system_messages import AskFailed, DeathWatchNotification, SystemMessage, Watch
from actors.errors import ActorError, EndpointStateError, RecipientTerminated, RecipientUnreachable
from actors.event_stream import Table
from actors.ref import ActorRef
from actors.remote.gateway import PATH, NodeGateway
from actors.rpc.gateway import Ask
from actors.serialization import Serializer

if TYPE_CHECKING:
    from actors.core.node import Node

logger = logging.getLogger(__name__)


class Outgoing:
    """To one recipient.

    Args:
        node: the sending node.
        origin: uid of the sending process.
        ref: the recipient.
    """

    __slots__ = ("node", "origin", "ref")

    urgent = False
    payload: bytes

    def __init__(self, node: Node, origin: int, ref: ActorRef) -> None:
        self.node = node
        self.origin = origin
        self.ref = ref

    @property
    def size(self) -> int:
        """How many bytes it holds while it waits."""
        return len(self.payload)

    def send(self, gateway: NodeGateway) -> None:
        """Send it to the process that hosts the recipient."""
        raise NotImplementedError

    def deliver_here(self) -> None:
        """The recipient, if it lives, lives in this process."""
        raise NotImplementedError

    def undeliverable(self, error: ActorError) -> None:
        """The recipient cannot be reached."""
        raise NotImplementedError


class OutgoingMessage(Outgoing):
    """A tell. Its payload is made when it is sent, not when it leaves: errors are the sender's, changes too late."""

    __slots__ = ("message", "payload", "sender", "sender_text")

    def __init__(
        self,
        node: Node,
        origin: int,
        ref: ActorRef,
        message: Any,
        sender: ActorRef | None,
        sender_text: str,
        payload: bytes,
    ) -> None:
        super().__init__(node, origin, ref)
        self.message = message
        self.sender = sender
        self.sender_text = sender_text
        self.payload = payload

    def send(self, gateway: NodeGateway) -> None:
        gateway.deliver(self.origin, self.ref.path, self.ref.uid, self.sender_text, self.payload)

    def deliver_here(self) -> None:
        self.node.deliver(self.ref, self.message, self.sender)

    def undeliverable(self, error: ActorError) -> None:
        self.node.undeliverable(self.ref, self.message, self.sender, error)


class OutgoingSystem(Outgoing):
    """A system message."""

    __slots__ = ("message", "payload")

    urgent = True

    def __init__(self, node: Node, origin: int, ref: ActorRef, message: SystemMessage, payload: bytes) -> None:
        super().__init__(node, origin, ref)
        self.message = message
        self.payload = payload

    def send(self, gateway: NodeGateway) -> None:
        gateway.deliver_system(self.origin, self.ref.path, self.ref.uid, self.payload)

    def deliver_here(self) -> None:
        self.node.deliver_system(self.ref, self.message)

    def undeliverable(self, error: ActorError) -> None:
        if isinstance(self.message, Watch):
            # Whether it ever lived is not known; that its process is gone, or cannot be reached, is.
            ended = DeathWatchNotification(self.ref, existence_confirmed=False, address_terminated=True)
            self.node.send_system(self.message.watcher, ended)


class OutgoingAsk(Outgoing):
    """A message from somebody of this process who waits for the reply, which comes back over the same connection.

    Args:
        broke: called with this and the error when the connection broke, or could not be made.
    """

    __slots__ = ("asker", "broke", "message", "payload", "timeout_s")

    def __init__(
        self,
        node: Node,
        origin: int,
        ref: ActorRef,
        message: Any,
        asker: ActorRef,
        payload: bytes,
        timeout_s: float,
        broke: Callable[[OutgoingAsk, RecipientUnreachable], None],
    ) -> None:
        super().__init__(node, origin, ref)
        self.broke = broke
        self.message = message
        self.asker = asker
        self.payload = payload
        self.timeout_s = timeout_s

    def send(self, gateway: NodeGateway) -> None:
        ask: Ask[bytes] = gateway.ask(self.origin, self.ref.path, self.ref.uid, self.timeout_s, self.payload)
        ask.add_done_callback(self._answered)

    def _answered(self, future: Any) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if isinstance(error, EndpointStateError) and str(error).startswith(PATH):
            error = RecipientTerminated(f"{self.ref} has stopped: its process is ending")
        if error is None:
            try:
                reply = self.node.serializer.loads(future.result())
            except ActorError as undecodable:
                error = undecodable
            else:
                self.node.deliver(self.asker, reply, None)
                return
        if type(error) is RecipientUnreachable:
            self.broke(self, error)
        else:
            self.failed(error)

    def failed(self, error: BaseException) -> None:
        """There will be no reply."""
        self.node.deliver_system(self.asker, AskFailed(error))

    def deliver_here(self) -> None:
        self.node.deliver(self.ref, self.message, self.asker)

    def undeliverable(self, error: ActorError) -> None:
        self.node.undeliverable(self.ref, self.message, self.asker, error)


class SubscriptionsParcel:
    """A table of subscriptions to the event stream, on its way between a host and its system's root node."""

    urgent = True
    size = 0

    def __init__(self, origin: int, serializer: Serializer, table: Table) -> None:
        self._origin = origin
        self._payload = serializer.dumps([[ref, list(entries)] for ref, entries in table.items()])

    def send(self, gateway: NodeGateway) -> None:
        gateway.subscriptions(self._origin, self._payload)

    def undeliverable(self, error: ActorError) -> None:
        logger.debug("a table of subscriptions was not sent: %s", error)  # that process has ended


class NodeDownParcel:
    """The news that a process of the system has ended, on its way from the root node to a host."""

    urgent = True
    size = 0

    def __init__(self, uid: int, reason: str) -> None:
        self._uid = uid
        self._reason = reason

    def send(self, gateway: NodeGateway) -> None:
        gateway.node_down(self._uid, self._reason)

    def undeliverable(self, error: ActorError) -> None:
        logger.debug("a host was not told that another one has ended: %s", error)  # it has ended itself


class StoppedParcel:
    """Tells the root node that a guest has left."""

    urgent = True
    size = 0

    def __init__(self, origin: int, path: str, uid: int) -> None:
        self._origin = origin
        self._path = path
        self._uid = uid

    def send(self, gateway: NodeGateway) -> None:
        gateway.stopped(self._origin, self._path, self._uid)

    def undeliverable(self, error: ActorError) -> None:
        logger.warning("the root node was not told that %s has stopped: %s", self._path, error)

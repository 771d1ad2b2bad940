"""Actor references (Akka's `ActorRef`): they identify an actor and send it messages, wherever it runs."""

from __future__ import annotations

import re
import threading
import weakref
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from actors.address import ActorAddress
from actors.errors import ActorSystemError, AddressError

if TYPE_CHECKING:
    from actors.core.cell import Cell
    from actors.core.node import Node
    from actors.core.system_messages import SystemMessage
    from actors.rpc.gateway import Ask
    from actors.system_api import ActorSystemBase

CURRENT: Any = object()
"""Stands for "the actor that is running here" as the sender of a message."""

current_cell: ContextVar[Cell | None] = ContextVar("current_cell", default=None)
"""The actor whose code is running, also in coroutines and tasks that it has started."""

TEMP_PREFIX = "/temp/"

_UID = re.compile(r"[0-9]{1,19}")
_living_nodes: weakref.WeakSet[Node] = weakref.WeakSet()
_get_ident = threading.get_ident


class Origin(NamedTuple):
    """The canonical address of an actor system: the part of a ref that names no actor.

    Args:
        system: its name.
        host: host of its root node (IPv6 without brackets).
        port: port of its root node.
    """

    system: str
    host: str
    port: int


class Target(Protocol):
    """Target of a ref of this process: a cell, a promise, or a guardian's parent."""

    def deliver(self, message: Any, sender: ActorRef | None) -> None:
        """Take a message."""

    def deliver_system(self, message: SystemMessage) -> None:
        """Take a system message."""


class ActorRef:
    """An immutable reference to one incarnation of an actor; hashable, comparable, orderable, and sendable in messages.

    Its text is ``akka.tcp://<system>@<host>:<port>/user/a/b#<uid>``. Host and port are those of the actor's *system*,
    not of the process that hosts it, so a ref stays valid in any process. The uid is that of the incarnation: a ref to
    a stopped actor never reaches the next actor of that name. A supervised restart keeps the uid.

    `actor_of` creates refs, messages carry them, and `parse` reads them. User code does not call the constructor.

    Args:
        node: the node in which it is used; None for a ref that was unpickled in a process without a node.
        origin: the actor's system.
        path: absolute path, e.g. ``/user/dispatcher``.
        uid: the incarnation; 0 for the present one, whichever that is.
        target: the actor itself, if it runs in this process.
    """

    __slots__ = ("__weakref__", "_node", "_origin", "_target", "path", "uid")

    def __init__(self, node: Node | None, origin: Origin, path: str, uid: int, target: Target | None = None) -> None:
        self._node = node
        self._origin = origin
        self._target = target
        self.path = path
        self.uid = uid

    @property
    def address(self) -> ActorAddress:
        """The actor's address: that of its system, with the actor's path."""
        return ActorAddress(*self._origin, self.path)

    @property
    def origin(self) -> Origin:
        """The address of the actor's system."""
        return self._origin

    @property
    def name(self) -> str:
        """The last element of the path."""
        return self.path.rpartition("/")[2]

    @property
    def is_ask(self) -> bool:
        """Return whether it is the temporary ref of an ask that waits for a reply (Akka's `PromiseActorRef`)."""
        return self.path.startswith(TEMP_PREFIX)

    def tell(self, message: Any, sender: ActorRef | None = CURRENT) -> None:
        """Send *message*: at most once, in order for each pair of sender and recipient, from any thread.

        An actor of the same process gets the message by reference, so do not change a message after sending it.
        A message that cannot be delivered becomes a dead letter.

        Args:
            message: any object for an actor of the same process, else one that `actors.serialization` can encode.
            sender: the sender that the recipient sees; default: the actor that is running here, if any.

        Raises:
            MailboxFull: the recipient runs in this process and its bounded mailbox rejects the message.
            SerializationError: the recipient runs in another process and the message cannot be serialized.
            ActorSystemError: the ref was unpickled in a process without an actor system.
        """
        if sender is CURRENT:
            cell = current_cell.get()
            sender = None if cell is None else cell.ref
        node = self._node or self._bind()
        if _get_ident() == node.thread:
            target = self._target
            if target is not None:
                target.deliver(message, sender)
            else:
                node.send(self, message, sender)
        else:
            node.post_message(self, message, sender)

    def ask(self, message: Any, timeout_s: float | None = None) -> Ask[Any]:
        """Send *message* and return an `Ask` for the reply; await it in a coroutine, or wait for it in a plain thread.

        The ask ends with the reply, or with the error that the handler raised, which the actor's supervisor gets too.
        It can also end in one of these errors:

        - `AskTimeout`: no reply came within *timeout_s* seconds (default: the system's `ask_timeout_s`).
        - `RecipientTerminated`: the actor has stopped.
        - `UnhandledMessageError`: the actor does not handle the message.
        - `MailboxFull`: the actor's bounded mailbox rejects the message.
        - `RecipientUnreachable`: the connection to the actor's process broke.
        """
        return (self._node or self._bind()).ask(self, message, timeout_s)

    def forward(self, message: Any) -> None:
        """Send *message* with the sender of the current message as its sender.

        Raises:
            RuntimeError: called outside an actor.
        """
        cell = current_cell.get()
        if cell is None:
            raise RuntimeError(
                "forward() keeps the sender of the current message: call it inside an actor, or use tell()"
            )
        self.tell(message, cell.sender)

    def _bind(self) -> Node:
        """Bind an unpickled ref to the only node of this process, and return that node."""
        nodes = list(_living_nodes)
        if len(nodes) != 1:
            raise ActorSystemError(
                f"{self} was unpickled where there is {'more than one' if nodes else 'no'} actor system; "
                "use ActorRef.parse(str(ref), system) with the system that is meant"
            )
        self._node = nodes[0]
        self._target = nodes[0].target_of(self)
        return nodes[0]

    @classmethod
    def parse(cls, text: str, system: ActorSystemBase | Node) -> ActorRef:
        """Make a ref from its text form, for use in *system*. Without ``#<uid>`` it means any actor at the path.

        Raises:
            AddressError: *text* does not have that form.
        """
        address, separator, uid = text.partition("#")
        if separator and not _UID.fullmatch(uid):
            raise AddressError(
                f"{text!r} is not an actor ref; the form is akka.tcp://<system>@<host>:<port>/user/<name>#<uid>"
            )
        parsed = ActorAddress.parse(address)
        node = cast("Node", getattr(cast("Any", system), "node", system))
        return node.ref(parsed.path, int(uid or 0), Origin(parsed.system, parsed.host, parsed.port))

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (str(self),)

    def _key(self) -> tuple[Origin, str, int]:
        return self._origin, self.path, self.uid

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, ActorRef) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash((self.path, self.uid))

    def __lt__(self, other: ActorRef) -> bool:
        return self._key() < other._key()

    def __le__(self, other: ActorRef) -> bool:
        return self._key() <= other._key()

    def __gt__(self, other: ActorRef) -> bool:
        return self._key() > other._key()

    def __ge__(self, other: ActorRef) -> bool:
        return self._key() >= other._key()

    def __str__(self) -> str:
        return f"{self.address}#{self.uid}" if self.uid else str(self.address)

    __repr__ = __str__


def _unpickle(text: str) -> ActorRef:
    address, _, uid = text.partition("#")
    parsed = ActorAddress.parse(address)
    ref = ActorRef(None, Origin(parsed.system, parsed.host, parsed.port), parsed.path, int(uid or 0))
    if len(_living_nodes) == 1:
        ref._bind()
    return ref


def register_node(node: Node) -> None:
    """Register a node of this process. Unpickled refs are bound to it while it is the only one."""
    _living_nodes.add(node)


def forget_node(node: Node) -> None:
    """Forget a node that has ended."""
    _living_nodes.discard(node)

"""Messages that the runtime itself handles: lifecycle, watching, routers, dead letters (named as in Akka)."""

from __future__ import annotations

from typing import Any

from actors.ref import ActorRef
from actors.serialization import message, name_of


class ControlMessage:
    """Marker base class: a control-aware mailbox lets such messages pass all others (Akka's `ControlMessage`)."""

    __slots__ = ()


class NotInfluenceReceiveTimeout:
    """Marker base class: such messages do not reset the receive timeout (Akka's trait of that name)."""

    __slots__ = ()


@message
class PoisonPill:
    """Stops the actor after all messages that precede it in the mailbox."""


@message
class Kill:
    """Makes the actor fail with `ActorKilled`; its supervisor stops it unless it decides otherwise."""


@message
class Identify(NotInfluenceReceiveTimeout):
    """A request that the runtime answers for every actor with `ActorIdentity`, which returns *message_id*."""

    message_id: Any


@message
class ActorIdentity:
    """The answer to `Identify`: the actor, or None when no actor matched."""

    message_id: Any
    ref: ActorRef | None


@message
class Terminated:
    """A watched actor has stopped.

    Args:
        actor: the actor.
        existence_confirmed: False when there was no such actor when it was watched.
        address_terminated: whether it was lost with its process or host.
    """

    actor: ActorRef
    existence_confirmed: bool = True
    address_terminated: bool = False


@message
class ReceiveTimeout:
    """No message has come for the time set with `ActorContext.set_receive_timeout`."""


@message
class Failure:
    """A reply that makes the ask raise *error* (Akka's `Status.Failure`); `pipe_to` sends it for an exception."""

    error: BaseException


@message
class DeadLetter:
    """A message that could not be delivered, published on the event stream."""

    message: Any
    sender: ActorRef | None
    recipient: ActorRef


@message
class UnhandledMessage:
    """A message that its recipient did not handle, published on the event stream."""

    message: Any
    sender: ActorRef | None
    recipient: ActorRef


@message
class Broadcast:
    """To a router: send *message* to all routees, whatever the routing logic."""

    message: Any


@message
class GetRoutees:
    """To a router: answer with `Routees`."""


@message
class Routees:
    """The routees of a router."""

    refs: list[ActorRef]


@message
class AddRoutee:
    """To a router: add a routee."""

    ref: ActorRef


@message
class RemoveRoutee:
    """To a router: remove a routee; a pool stops it after the messages that are already in its mailbox."""

    ref: ActorRef


@message
class AdjustPoolSize:
    """To a pool: add *change* routees, or remove some when *change* is negative."""

    change: int


@message
class Subscribe:
    """To ``/system/event-stream`` of a component's actor system: send its events of a class to the sender.

    Args:
        classes: the names of the class and all its bases; see `Subscribe.to`.
    """

    classes: tuple[str, ...]

    @classmethod
    def to(cls, kind: type) -> Subscribe:
        """Return a subscription to events of the class *kind* and of its subclasses. The answer is `Subscribed`."""
        return cls(tuple(name_of(base) for base in kind.__mro__))


@message
class Subscribed:
    """The answer to `Subscribe`: the subscriber gets all events published from now on."""


@message
class Unsubscribe:
    """To ``/system/event-stream``: stop sending events to the sender."""


@message
class RpcInvocation:
    """A call by a gateway, as a `DeadLetter` shows it when the actor or the method does not exist.

    Args:
        method: the name of the method.
    """

    method: str

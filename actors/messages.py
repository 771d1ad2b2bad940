"""Messages that the runtime itself knows: lifecycle, watching, routers, dead letters (Akka's of the same names)."""

from __future__ import annotations

from typing import Any

from actors.ref import ActorRef
from actors.serialization import message, name_of


class ControlMessage:
    """Marker base class: a control-aware mailbox lets such messages pass all others (Akka's `ControlMessage`)."""

    __slots__ = ()


class NotInfluenceReceiveTimeout:
    """Marker base class: such messages do not put off the receive timeout (Akka's trait of that name)."""

    __slots__ = ()


@message
class PoisonPill:
    """Stops the actor when its turn in the mailbox comes."""


@message
class Kill:
    """Makes the actor fail with `ActorKilled`; its supervisor stops it unless it decides otherwise."""


@message
class Identify(NotInfluenceReceiveTimeout):
    """Answered by the runtime for every actor with `ActorIdentity`, which carries *message_id* back."""

    message_id: Any


@message
class ActorIdentity:
    """The answer to `Identify`: the actor, or None where there is none."""

    message_id: Any
    ref: ActorRef | None


@message
class Terminated:
    """A watched actor has stopped.

    Args:
        actor: the actor.
        existence_confirmed: False when there was no such actor by the time it was watched.
        address_terminated: whether it is gone because its process or host is.
    """

    actor: ActorRef
    existence_confirmed: bool = True
    address_terminated: bool = False


@message
class ReceiveTimeout:
    """No message has come for as long as `ActorContext.set_receive_timeout` says."""


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
    """A message that its recipient had no use for, published on the event stream."""

    message: Any
    sender: ActorRef | None
    recipient: ActorRef


@message
class Broadcast:
    """To a router: *message* goes to all routees, whatever the routing logic."""

    message: Any


@message
class GetRoutees:
    """To a router: answered with `Routees`."""


@message
class Routees:
    """The routees of a router."""

    refs: list[ActorRef]


@message
class AddRoutee:
    """To a router: one routee more."""

    ref: ActorRef


@message
class RemoveRoutee:
    """To a router: one routee less; a pool stops it once it has handled what it has."""

    ref: ActorRef


@message
class AdjustPoolSize:
    """To a pool: *change* routees more, or fewer when negative."""

    change: int


@message
class Subscribe:
    """Told to ``/system/event-stream`` of a component's actor system: tell the sender its events of a class.

    Args:
        classes: the class and all that it is derived from, by name; see `Subscribe.to`.
    """

    classes: tuple[str, ...]

    @classmethod
    def to(cls, kind: type) -> Subscribe:
        """For events of the class *kind* and of classes derived from it. Answered with `Subscribed`."""
        return cls(tuple(name_of(base) for base in kind.__mro__))


@message
class Subscribed:
    """The answer to `Subscribe`: events that are published from now on are told."""


@message
class Unsubscribe:
    """Told to ``/system/event-stream``: tell the sender no events any more."""


@message
class RpcInvocation:
    """A call by a gateway, as the `DeadLetter` of one for an actor or a method that is not there has it.

    Args:
        method: the name of the method.
    """

    method: str

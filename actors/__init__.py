"""The Akka of Understudy: actors, supervision, remoting and typed RPC. The only package that imports thespian.

The names below are imported when they are first used: importing the package is cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actors.own_modules import import_own

if TYPE_CHECKING:
    from actors.actor import Actor as Actor
    from actors.actor import ActorContext as ActorContext
    from actors.actor_system import ActorSystem as ActorSystem
    from actors.address import ActorAddress as ActorAddress
    from actors.errors import ActorError as ActorError
    from actors.errors import ActorInitializationError as ActorInitializationError
    from actors.errors import ActorKilled as ActorKilled
    from actors.errors import ActorNotFound as ActorNotFound
    from actors.errors import ActorProcessDied as ActorProcessDied
    from actors.errors import ActorSystemError as ActorSystemError
    from actors.errors import AskTimeout as AskTimeout
    from actors.errors import AuthenticationError as AuthenticationError
    from actors.errors import DeathPactError as DeathPactError
    from actors.errors import InvalidActorName as InvalidActorName
    from actors.errors import MailboxFull as MailboxFull
    from actors.errors import Quarantined as Quarantined
    from actors.errors import RecipientTerminated as RecipientTerminated
    from actors.errors import RecipientUnreachable as RecipientUnreachable
    from actors.errors import RemoteError as RemoteError
    from actors.errors import SerializationError as SerializationError
    from actors.errors import StashOverflow as StashOverflow
    from actors.errors import UnhandledMessageError as UnhandledMessageError
    from actors.mailbox import BoundedMailbox as BoundedMailbox
    from actors.mailbox import ControlAwareMailbox as ControlAwareMailbox
    from actors.mailbox import Overflow as Overflow
    from actors.mailbox import PriorityMailbox as PriorityMailbox
    from actors.mailbox import UnboundedMailbox as UnboundedMailbox
    from actors.messages import ActorIdentity as ActorIdentity
    from actors.messages import AddRoutee as AddRoutee
    from actors.messages import AdjustPoolSize as AdjustPoolSize
    from actors.messages import Broadcast as Broadcast
    from actors.messages import ControlMessage as ControlMessage
    from actors.messages import DeadLetter as DeadLetter
    from actors.messages import Failure as Failure
    from actors.messages import GetRoutees as GetRoutees
    from actors.messages import Identify as Identify
    from actors.messages import Kill as Kill
    from actors.messages import NotInfluenceReceiveTimeout as NotInfluenceReceiveTimeout
    from actors.messages import PoisonPill as PoisonPill
    from actors.messages import ReceiveTimeout as ReceiveTimeout
    from actors.messages import RemoveRoutee as RemoveRoutee
    from actors.messages import Routees as Routees
    from actors.messages import Subscribe as Subscribe
    from actors.messages import Subscribed as Subscribed
    from actors.messages import Terminated as Terminated
    from actors.messages import UnhandledMessage as UnhandledMessage
    from actors.messages import Unsubscribe as Unsubscribe
    from actors.props import Props as Props
    from actors.ref import ActorRef as ActorRef
    from actors.routing import BroadcastAll as BroadcastAll
    from actors.routing import ConsistentHash as ConsistentHash
    from actors.routing import Group as Group
    from actors.routing import Pool as Pool
    from actors.routing import Random as Random
    from actors.routing import RoundRobin as RoundRobin
    from actors.routing import ScatterGatherFirstCompleted as ScatterGatherFirstCompleted
    from actors.routing import SmallestMailbox as SmallestMailbox
    from actors.rpc.gateway import Ask as Ask
    from actors.selection import ActorSelection as ActorSelection
    from actors.serialization import message as message
    from actors.supervision import AllForOneStrategy as AllForOneStrategy
    from actors.supervision import Backoff as Backoff
    from actors.supervision import Directive as Directive
    from actors.supervision import OneForOneStrategy as OneForOneStrategy
    from actors.supervision import SupervisorStrategy as SupervisorStrategy
    from actors.supervision import stopping_strategy as stopping_strategy
    from actors.system_api import ActorSystemBase as ActorSystemBase
    from actors.system_client import ActorSystemClient as ActorSystemClient
    from actors.system_config import SystemConfig as SystemConfig

_HOMES = {
    "actors.actor": ("Actor", "ActorContext"),
    "actors.actor_system": ("ActorSystem",),
    "actors.address": ("ActorAddress",),
    "actors.errors": (
        "ActorError",
        "ActorInitializationError",
        "ActorKilled",
        "ActorNotFound",
        "ActorProcessDied",
        "ActorSystemError",
        "AskTimeout",
        "AuthenticationError",
        "DeathPactError",
        "InvalidActorName",
        "MailboxFull",
        "Quarantined",
        "RecipientTerminated",
        "RecipientUnreachable",
        "RemoteError",
        "SerializationError",
        "StashOverflow",
        "UnhandledMessageError",
    ),
    "actors.mailbox": ("BoundedMailbox", "ControlAwareMailbox", "Overflow", "PriorityMailbox", "UnboundedMailbox"),
    "actors.messages": (
        "ActorIdentity",
        "AddRoutee",
        "AdjustPoolSize",
        "Broadcast",
        "ControlMessage",
        "DeadLetter",
        "Failure",
        "GetRoutees",
        "Identify",
        "Kill",
        "NotInfluenceReceiveTimeout",
        "PoisonPill",
        "ReceiveTimeout",
        "RemoveRoutee",
        "Routees",
        "Subscribe",
        "Subscribed",
        "Terminated",
        "UnhandledMessage",
        "Unsubscribe",
    ),
    "actors.props": ("Props",),
    "actors.ref": ("ActorRef",),
    "actors.routing": (
        "BroadcastAll",
        "ConsistentHash",
        "Group",
        "Pool",
        "Random",
        "RoundRobin",
        "ScatterGatherFirstCompleted",
        "SmallestMailbox",
    ),
    "actors.rpc.gateway": ("Ask",),
    "actors.selection": ("ActorSelection",),
    "actors.serialization": ("message",),
    "actors.supervision": (
        "AllForOneStrategy",
        "Backoff",
        "Directive",
        "OneForOneStrategy",
        "SupervisorStrategy",
        "stopping_strategy",
    ),
    "actors.system_api": ("ActorSystemBase",),
    "actors.system_client": ("ActorSystemClient",),
    "actors.system_config": ("SystemConfig",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__all__":  # not written down a third time
        return sorted(_HOME_OF)
    module = _HOME_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'actors' has no attribute {name!r}")
    value = globals()[name] = getattr(import_own(module), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})

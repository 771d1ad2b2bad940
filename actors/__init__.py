"""The Akka of Understudy: actors, supervision, remoting and typed RPC. The only package that imports thespian.

The names below are imported when they are first used: importing the package is cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actors.own_modules import import_own

if TYPE_CHECKING:
    from actors.actor import Actor
    from actors.actor_system import ActorSystem
    from actors.address import ActorAddress
    from actors.context import ActorContext
    from actors.errors import (
        ActorError,
        ActorInitializationError,
        ActorKilled,
        ActorNotFound,
        ActorProcessDied,
        ActorSystemError,
        AskTimeout,
        AuthenticationError,
        DeathPactError,
        InvalidActorName,
        MailboxFull,
        Quarantined,
        RecipientTerminated,
        RecipientUnreachable,
        RemoteError,
        SerializationError,
        StashOverflow,
        UnhandledMessageError,
    )
    from actors.mailbox import BoundedMailbox, ControlAwareMailbox, Overflow, PriorityMailbox, UnboundedMailbox
    from actors.messages import (
        ActorIdentity,
        AddRoutee,
        AdjustPoolSize,
        Broadcast,
        ControlMessage,
        DeadLetter,
        Failure,
        GetRoutees,
        Identify,
        Kill,
        NotInfluenceReceiveTimeout,
        PoisonPill,
        ReceiveTimeout,
        RemoveRoutee,
        Routees,
        Subscribe,
        Subscribed,
        Terminated,
        UnhandledMessage,
        Unsubscribe,
    )
    from actors.props import Props
    from actors.ref import ActorRef
    from actors.routing import (
        BroadcastAll,
        ConsistentHash,
        Group,
        Pool,
        Random,
        RoundRobin,
        ScatterGatherFirstCompleted,
        SmallestMailbox,
    )
    from actors.rpc.gateway import Ask
    from actors.selection import ActorSelection
    from actors.serialization import message
    from actors.supervision import (
        AllForOneStrategy,
        Backoff,
        Directive,
        OneForOneStrategy,
        SupervisorStrategy,
        stopping_strategy,
    )
    from actors.system_api import ActorSystemBase
    from actors.system_client import ActorSystemClient
    from actors.system_config import SystemConfig

_HOMES = {
    "actors.actor": ("Actor",),
    "actors.actor_system": ("ActorSystem",),
    "actors.address": ("ActorAddress",),
    "actors.context": ("ActorContext",),
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

__all__ = [
    "Actor",
    "ActorAddress",
    "ActorContext",
    "ActorError",
    "ActorIdentity",
    "ActorInitializationError",
    "ActorKilled",
    "ActorNotFound",
    "ActorProcessDied",
    "ActorRef",
    "ActorSelection",
    "ActorSystem",
    "ActorSystemBase",
    "ActorSystemClient",
    "ActorSystemError",
    "AddRoutee",
    "AdjustPoolSize",
    "AllForOneStrategy",
    "Ask",
    "AskTimeout",
    "AuthenticationError",
    "Backoff",
    "BoundedMailbox",
    "Broadcast",
    "BroadcastAll",
    "ConsistentHash",
    "ControlAwareMailbox",
    "ControlMessage",
    "DeadLetter",
    "DeathPactError",
    "Directive",
    "Failure",
    "GetRoutees",
    "Group",
    "Identify",
    "InvalidActorName",
    "Kill",
    "MailboxFull",
    "NotInfluenceReceiveTimeout",
    "OneForOneStrategy",
    "Overflow",
    "PoisonPill",
    "Pool",
    "PriorityMailbox",
    "Props",
    "Quarantined",
    "Random",
    "ReceiveTimeout",
    "RecipientTerminated",
    "RecipientUnreachable",
    "RemoteError",
    "RemoveRoutee",
    "RoundRobin",
    "Routees",
    "ScatterGatherFirstCompleted",
    "SerializationError",
    "SmallestMailbox",
    "StashOverflow",
    "Subscribe",
    "Subscribed",
    "SupervisorStrategy",
    "SystemConfig",
    "Terminated",
    "UnboundedMailbox",
    "UnhandledMessage",
    "UnhandledMessageError",
    "Unsubscribe",
    "message",
    "stopping_strategy",
]


def __getattr__(name: str) -> Any:
    module = _HOME_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'actors' has no attribute {name!r}")
    value = globals()[name] = getattr(import_own(module), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})

"""The actor systems of processes that a launcher has started: a component's own, and an `ActorSystem`'s part there.

A process of a cluster has a system of its own (`start_actor_system`), as each process of Flink's has. It has the
endpoints of the RPC service, and the actors that are made beside and below them. Others select, tell, ask and watch
what lives there by the service's address, ``akka.tcp://<system>@<host>:<port>/user/<name>``. A host process of an
`actors.actor_system.ActorSystem` is one node of that system (`start_hosted_node`).
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from actors.actor import Actor
from actors.address import ActorAddress
from actors.core.node import Node
from actors.errors import ActorSystemError
from actors.event_stream import Table
from actors.messages import Subscribe, Subscribed, Unsubscribe
from actors.props import CreateOrder, Placement, Props
from actors.remote.endpoint import NodeEndpoint
from actors.remote.gateway import NodeGateway, NodeId, Route
from actors.remote.heartbeats import Pulse, PulseEndpoint
from actors.remote.remote import Remoting
from actors.rpc.endpoint import SYSTEM, RpcEndpoint
from actors.rpc.service import RpcService
from actors.system_api import ActorSystemBase
from actors.system_config import SystemConfig

Directory = Callable[[str], ActorAddress | None]
"""Says in which process an actor of another one lives that is known here by its path, and None of all others."""


class ServiceActorSystem(ActorSystemBase):
    """Made by `start_actor_system`. It ends with the service: `RpcService.close`."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def terminate(self, timeout_s: float = 10.0) -> None:
        """Not to be had.

        Raises:
            ActorSystemError: always.
        """
        raise ActorSystemError(f"the actors of {self.address} end with the component that they live with: stop that")


EVENT_STREAM = f"{SYSTEM}/event-stream"


class EventStreamActor(Actor):
    """The event stream as actors of other processes reach it: they subscribe; what else they tell it is an event."""

    def receive(self, message: Any) -> None:
        stream, who = self.context.system.event_stream, self.sender
        match message:
            case Subscribe() if who.is_ask or who == self.context.system.dead_letters:
                self.unhandled(message)  # there is nobody who could be told
            case Subscribe(classes=classes):
                stream.subscribe_by_name(who, classes)
                self.reply(Subscribed())
            case Unsubscribe():
                stream.unsubscribe(who)
            case _:
                stream.publish(message)


class ServicePlacing:
    """Where actors are and come, in a process that hosts its own actors only: a node's `Placing`.

    Args:
        remoting: of the node.
        host_here: creates an actor in this process.
        directory: knows the actors that have a process of their own and are found by an address of this one.
    """

    def __init__(
        self,
        remoting: Remoting,
        host_here: Callable[[NodeId, CreateOrder], Awaitable[None]],
        directory: Directory | None,
    ) -> None:
        self._remoting = remoting
        self._host_here = host_here
        self._directory = directory

    async def resolve(self, path: str, uid: int) -> Route:
        """Where *path* is hosted."""
        me = self._remoting.me
        there = None if uid or self._directory is None else self._directory(path)
        if there is None or (there.host, there.port) == (me.host, me.port):
            return Route(me)
        gateway = await self._remoting.peers.link(there).ready()
        return await gateway.resolve(path, uid)

    async def create(self, creator: NodeId, order: CreateOrder) -> Route:
        """Create an actor of this process.

        Raises:
            ActorSystemError: another process orders it, or it is to have a process of its own.
        """
        me = self._remoting.me
        if creator.uid != me.uid:
            raise ActorSystemError(f"{me} takes no actors of other processes: it is a component of a cluster")
        if Placement(order.placement) in (Placement.PINNED, Placement.SHARED):
            raise ActorSystemError(f"{me} starts no processes for actors: use Props.local(), or an ActorSystem")
        await self._host_here(creator, order)
        return Route(me, exact=True)

    def stopped(self, path: str, uid: int) -> None:
        """An actor has stopped: there is no table that it would be in."""

    def subscribed(self, origin: int, table: Table) -> None:
        """The subscriptions to the event stream have changed: there is no other node that would have to know."""


async def start_actor_system(service: RpcService, directory: Directory | None = None) -> ServiceActorSystem:
    """Make the actor system of a service that listens, before its first endpoint is started.

    Args:
        service: the service.
        directory: see `ServicePlacing`.
    """
    uid, rpc = secrets.randbits(62) + 1, service.config
    config = SystemConfig(ask_timeout_s=rpc.ask_timeout_s, frame_size=rpc.frame_size, tls=rpc.tls)
    host, port = rpc.bind_host, service.port
    me = NodeId(rpc.system, host, port, uid, host, port, uid, port)
    remoting = Remoting(service, me, config)
    remoting.node.system = system = ServiceActorSystem(remoting.node)
    endpoint = NodeEndpoint(remoting, takes_orders=False)
    remoting.placing = ServicePlacing(remoting, endpoint.host_here, directory)
    await service.start_server(PulseEndpoint(service, uid))
    await service.start_server(endpoint)
    remoting.node.cells[SYSTEM].make_child(Props(EventStreamActor).local(), EVENT_STREAM.rpartition("/")[2])
    return system


class HostedSystem(ActorSystemBase):
    """The actor system as the actors of a host process see it."""

    def __init__(self, remoting: Remoting) -> None:
        self.node = remoting.node
        self._remoting = remoting

    def terminate(self, timeout_s: float = 10.0) -> None:
        """Have the whole actor system terminated; returns at once, for this process ends by it."""
        self.node.post(self._terminate)

    def _terminate(self) -> None:
        me = self._remoting.me
        self._remoting.service.gateway(me.root_address, NodeGateway).terminate(me.uid)


async def start_hosted_node(
    service: RpcService, name: str, *, uid: int, root: NodeId, config: SystemConfig
) -> RpcEndpoint:
    """Make the node of a host process of an `ActorSystem` (the factory that its `HostSpec` names).

    Args:
        service: the RPC service of the process, which listens already.
        name: the host's name.
        uid: uid of its node.
        root: the root node of the system.
        config: settings of the system.
    """
    host = service.config.bind_host
    pulse = Pulse(service.secret, root.system, host, uid, service.config.tls)
    me = NodeId(root.system, host, service.port, uid, root.host, root.port, root.system_uid, pulse.port)
    remoting = Remoting(service, me, config, temp=f"{uid:x}")
    remoting.node.system = HostedSystem(remoting)
    remoting.peers.link(root.address, root).open()
    return NodeEndpoint(remoting, pulse=pulse)

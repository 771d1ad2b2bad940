"""The actor systems of processes that a launcher has started: a component's own, or a node of an `ActorSystem`.

Each process of a cluster has a system of its own (`start_actor_system`), as in Flink. It contains the endpoints of the
RPC service, and the actors created beside and below them. Other processes select, tell, ask and watch these actors at
the service's address, ``akka.tcp://<system>@<host>:<port>/user/<name>``. A host process of an
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
"""Returns the address of an actor of another process that is known here by its path; None for all other paths."""


class ServiceActorSystem(ActorSystemBase):
    """The actor system of a component, made by `start_actor_system`; `RpcService.close` ends it."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def terminate(self, timeout_s: float = 10.0) -> None:
        """Reject the call: the system ends with its component.

        Raises:
            ActorSystemError: always.
        """
        raise ActorSystemError(f"the actors of {self.address} end with the component that they live with: stop that")


EVENT_STREAM = f"{SYSTEM}/event-stream"


class EventStreamActor(Actor):
    """Makes the event stream available to other processes: they subscribe to it; other messages are events."""

    def receive(self, message: Any) -> None:
        stream, who = self.context.system.event_stream, self.sender
        match message:
            case Subscribe() if who.is_ask or who == self.context.system.dead_letters:
                self.unhandled(message)  # the sender cannot receive events
            case Subscribe(classes=classes):
                stream.subscribe_by_name(who, classes)
                self.reply(Subscribed())
            case Unsubscribe():
                stream.unsubscribe(who)
            case _:
                stream.publish(message)


class ServicePlacing:
    """Finds and places actors in a process that hosts its own actors only: a node's `Placing`.

    Args:
        remoting: the remoting of the node.
        host_here: creates an actor in this process.
        directory: finds actors that have a process of their own and an address at this process.
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
        """Return the node that hosts *path*."""
        me = self._remoting.me
        there = None if uid or self._directory is None else self._directory(path)
        if there is None or (there.host, there.port) == (me.host, me.port):
            return Route(me)
        gateway = await self._remoting.peers.link(there).ready()
        return await gateway.resolve(path, uid)

    async def create(self, creator: NodeId, order: CreateOrder) -> Route:
        """Create an actor in this process.

        Raises:
            ActorSystemError: the order comes from another process, or asks for another process.
        """
        me = self._remoting.me
        if creator.uid != me.uid:
            raise ActorSystemError(f"{me} takes no actors of other processes: it is a component of a cluster")
        if Placement(order.placement) in (Placement.PINNED, Placement.SHARED):
            raise ActorSystemError(f"{me} starts no processes for actors: use Props.local(), or an ActorSystem")
        await self._host_here(creator, order)
        return Route(me, exact=True)

    def stopped(self, path: str, uid: int) -> None:
        """Do nothing: this process keeps no table of its actors."""

    def subscribed(self, origin: int, table: Table) -> None:
        """Do nothing: no other node needs the subscriptions to the event stream."""


async def start_actor_system(service: RpcService, directory: Directory | None = None) -> ServiceActorSystem:
    """Start the actor system of a service that listens. Call it before its first endpoint starts.

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
    """The actor system as actors of a host process see it."""

    def __init__(self, remoting: Remoting) -> None:
        self.node = remoting.node
        self._remoting = remoting

    def terminate(self, timeout_s: float = 10.0) -> None:
        """Request the end of the whole actor system. It returns at once, because this process ends too."""
        self.node.post(self._terminate)

    def _terminate(self) -> None:
        me = self._remoting.me
        self._remoting.service.gateway(me.root_address, NodeGateway).terminate(me.uid)


async def start_hosted_node(
    service: RpcService, name: str, *, uid: int, root: NodeId, config: SystemConfig
) -> RpcEndpoint:
    """Start the node of a host process of an `ActorSystem`; its `HostSpec` names this function as the factory.

    Args:
        service: the RPC service of the process; it listens already.
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

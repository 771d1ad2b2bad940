"""A host process of an actor system: what runs in a `HostActor` whose factory is `create` in this module."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from actors.address import ActorAddress
from actors.core.node import Node
from actors.errors import ActorSystemError
from actors.props import Props
from actors.ref import ActorRef
from actors.remote.endpoint import NodeEndpoint
from actors.remote.gateway import NodeGateway, NodeId
from actors.remote.pulse import Pulse
from actors.remote.remote import Remoting
from actors.rpc.endpoint import RpcEndpoint
from actors.rpc.service import RpcService
from actors.system_api import ActorSystemBase

if TYPE_CHECKING:
    from actors.system_config import SystemConfig

logger = logging.getLogger(__name__)


class HostedSystem(ActorSystemBase):
    """The actor system as the actors of a host process see it."""

    def __init__(self, node: Node, remoting: Remoting) -> None:
        self._node = node
        self._remoting = remoting

    @property
    def node(self) -> Node:
        """The node of this process."""
        return self._node

    def _actor_of(self, props: Props, name: str | None) -> ActorRef:
        raise ActorSystemError(
            "top-level actors are made in the process of the ActorSystem; make a child with context.actor_of, "
            "or have an actor of that process make one"
        )

    def terminate(self, timeout_s: float = 10.0) -> None:
        """Have the whole actor system terminated; returns at once, for this process ends by it."""
        self._node.post(self._terminate)

    def _terminate(self) -> None:
        me = self._remoting.me
        self._remoting.service.gateway(me.root_address, NodeGateway).terminate(me.uid)


class _HostEndpoint(NodeEndpoint):
    """The node endpoint of a host, which has a pulse."""

    def __init__(self, remoting: Remoting, node: Node, pulse: Pulse) -> None:
        super().__init__(remoting, node)
        self._pulse = pulse

    async def on_stop(self) -> None:
        """Stop the actors, then the pulse."""
        await super().on_stop()
        self._pulse.close()


async def create(service: RpcService, name: str, *, uid: int, root: NodeId, config: SystemConfig) -> RpcEndpoint:
    """Make the node of a host process (the factory that `HostSpec` names).

    Args:
        service: the RPC service of the process, which listens already.
        name: the host's name.
        uid: uid of its node.
        root: the root node of the system.
        config: settings of the system.
    """
    pulse = Pulse(service.secret, root.system, service.config.bind_host, uid, service.config.tls)
    me = NodeId(
        root.system, service.config.bind_host, service.port, uid, root.host, root.port, root.system_uid, pulse.port
    )
    remoting = Remoting(service, me, config.heartbeat, config.pending_capacity)
    address = ActorAddress(root.system, root.host, root.port, "/")
    node = Node(service.loop, root.system, address, uid, settings=config, remote=remoting, root=False, temp=f"{uid:x}")
    remoting.bind(node)
    service.node = node
    node.system = HostedSystem(node, remoting)
    remoting.peers.link(root.address, root).open()
    return _HostEndpoint(remoting, node, pulse)

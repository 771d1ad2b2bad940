"""Messages between nodes: the typed gateway of a process of an actor system."""

from __future__ import annotations

from dataclasses import dataclass

from actors.address import ActorAddress
from actors.rpc.gateway import Ask, RpcGateway, reads

PATH = "/system/node"


@dataclass(frozen=True, slots=True)
class NodeId:
    """A process of an actor system, in one incarnation.

    Args:
        system: name of its actor system.
        host: host of its RPC port.
        port: its RPC port; 0 for a client, which does not listen.
        uid: random number of this incarnation of the process.
        root_host: host of its system's root node, which is the system's canonical address.
        root_port: port of its system's root node.
        system_uid: the `uid` of its system's root node.
        pulse_port: where its heartbeats are asked for; 0 for none.
    """

    system: str
    host: str
    port: int
    uid: int
    root_host: str
    root_port: int
    system_uid: int
    pulse_port: int = 0

    @property
    def address(self) -> ActorAddress:
        """Where its node gateway is reached."""
        return ActorAddress(self.system, self.host, self.port, PATH)

    @property
    def root_address(self) -> ActorAddress:
        """Where the node gateway of its system's root node is reached."""
        return ActorAddress(self.system, self.root_host, self.root_port, PATH)

    @property
    def is_root(self) -> bool:
        """Whether it is its system's root node."""
        return self.uid == self.system_uid

    def __str__(self) -> str:
        kind = f"{self.system}@{self.root_host}:{self.root_port}"
        return f"system {kind}" if self.is_root else f"process {self.host}:{self.port} of system {kind}"


@dataclass(frozen=True, slots=True)
class Route:
    """Where a path is hosted.

    Args:
        node: the hosting process.
        exact: whether the path itself was placed there, not one above it.
    """

    node: NodeId
    exact: bool = False


class NodeGateway(RpcGateway):
    """A node as other nodes see it. ``origin`` is the calling node; payloads are made by `actors.serialization`."""

    def associate(self, origin: NodeId) -> Ask[NodeId]:
        """Introduce *origin*; raises `Quarantined` when it was declared dead before."""
        raise NotImplementedError

    def attach(self, origin: int) -> Ask[str]:
        """Answered when this node wants to hear no more of *origin*, with the reason; else never.

        It is how a node learns within a moment that a connection broke: what waits for a reply is told.
        """
        raise NotImplementedError

    def deliver(self, origin: int, path: str, uid: int, sender: str, payload: bytes) -> None:
        """A message to the actor at *path* in the incarnation *uid* (0: whichever); *sender* is a ref's text or ""."""
        raise NotImplementedError

    def deliver_system(self, origin: int, path: str, uid: int, payload: bytes) -> None:
        """A system message to an actor: watching, supervision, termination."""
        raise NotImplementedError

    def ask(self, origin: int, path: str, uid: int, timeout_s: float, payload: bytes) -> Ask[bytes]:
        """A message whose reply is the answer; raises `RecipientTerminated`, `AskTimeout`, or what the reply raises."""
        raise NotImplementedError

    def graceful_stop(self, origin: int, path: str, uid: int, timeout_s: float) -> Ask[bool]:
        """Stop an actor once it has handled what it has, and wait for its end: for clients, whom nobody can tell."""
        raise NotImplementedError

    @reads
    def resolve(self, path: str, uid: int) -> Ask[Route]:
        """Where *path* is hosted; asked of the root node. Waits while the actor is being created."""
        raise NotImplementedError

    def create(self, origin: NodeId, order: bytes) -> Ask[Route]:
        """Place and create an actor; asked of the root node of the system that is to host it."""
        raise NotImplementedError

    def host(self, creator: NodeId, order: bytes) -> Ask[None]:
        """Create an actor in this very process; asked by the root node on behalf of *creator*."""
        raise NotImplementedError

    def stopped(self, origin: int, path: str, uid: int) -> None:
        """An actor that was created by `host` has stopped for good; told to the root node."""
        raise NotImplementedError

    def node_down(self, uid: int, reason: str) -> None:
        """A process of the own system has ended; told by the root node."""
        raise NotImplementedError

    def subscriptions(self, origin: int, payload: bytes) -> None:
        """To the root node: who has subscribed to the event stream at *origin*; to others: who has elsewhere."""
        raise NotImplementedError

    def terminate(self, origin: int) -> None:
        """Terminate the whole actor system; told to the root node."""
        raise NotImplementedError


class PulseGateway(RpcGateway):
    """Shows that a process runs, from a thread of its own: an actor that computes for a minute is not dead."""

    @reads
    def beat(self) -> Ask[int]:
        """The uid of the node that runs here."""
        raise NotImplementedError

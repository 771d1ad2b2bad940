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
        pulse_port: port of its heartbeats; 0 for none.
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
        """Address of its node gateway."""
        return ActorAddress(self.system, self.host, self.port, PATH)

    @property
    def root_address(self) -> ActorAddress:
        """Address of the node gateway of its system's root node."""
        return ActorAddress(self.system, self.root_host, self.root_port, PATH)

    @property
    def is_root(self) -> bool:
        """Return whether it is its system's root node."""
        return self.uid == self.system_uid

    def __str__(self) -> str:
        kind = f"{self.system}@{self.root_host}:{self.root_port}"
        return f"system {kind}" if self.is_root else f"process {self.host}:{self.port} of system {kind}"


@dataclass(frozen=True, slots=True)
class Route:
    """Process that hosts a path.

    Args:
        node: the hosting process.
        exact: whether the path itself was placed there; otherwise an ancestor of it was.
    """

    node: NodeId
    exact: bool = False


class NodeGateway(RpcGateway):
    """Interface of a node for other nodes. ``origin`` is the calling node; `actors.serialization` encodes payloads."""

    def associate(self, origin: NodeId) -> Ask[NodeId]:
        """Introduce *origin*; raises `Quarantined` when it was declared dead before."""
        raise NotImplementedError

    def attach(self, origin: int) -> Ask[str]:
        """Wait until this node rejects *origin*; return the reason.

        The ask fails when its connection breaks, which tells the calling node of the break at once.
        """
        raise NotImplementedError

    def deliver(self, origin: int, path: str, uid: int, sender: str, payload: bytes) -> None:
        """Deliver a message to incarnation *uid* (0 for any) of the actor at *path*; *sender* is a ref's text or ""."""
        raise NotImplementedError

    def deliver_system(self, origin: int, path: str, uid: int, payload: bytes) -> None:
        """Deliver a system message to an actor: watching, supervision, termination."""
        raise NotImplementedError

    def ask(self, origin: int, path: str, uid: int, timeout_s: float, payload: bytes) -> Ask[bytes]:
        """Deliver a message and return the reply; raises `RecipientTerminated`, `AskTimeout`, or the reply's error."""
        raise NotImplementedError

    def graceful_stop(self, origin: int, path: str, uid: int, timeout_s: float) -> Ask[bool]:
        """Stop an actor after the messages in its mailbox, and wait for its end; for clients, which cannot watch it."""
        raise NotImplementedError

    @reads
    def resolve(self, path: str, uid: int) -> Ask[Route]:
        """Return the process that hosts *path*; for root nodes. It waits while the actor is being created."""
        raise NotImplementedError

    def create(self, origin: NodeId, order: bytes) -> Ask[Route]:
        """Place and create an actor; for the root node of the system that hosts it."""
        raise NotImplementedError

    def host(self, creator: NodeId, order: bytes) -> Ask[None]:
        """Create an actor in this process; the root node calls this on behalf of *creator*."""
        raise NotImplementedError

    def stopped(self, origin: int, path: str, uid: int) -> None:
        """Inform the root node that an actor created by `host` has stopped for good."""
        raise NotImplementedError

    def node_down(self, uid: int, reason: str) -> None:
        """Inform a node that a process of its own system has ended; the root node calls this."""
        raise NotImplementedError

    def subscriptions(self, origin: int, payload: bytes) -> None:
        """Send event stream subscriptions: to the root node those of *origin*, to a host those of all other nodes."""
        raise NotImplementedError

    def terminate(self, origin: int) -> None:
        """Terminate the whole actor system; for the root node."""
        raise NotImplementedError


class PulseGateway(RpcGateway):
    """Shows that a process runs. It answers from a thread of its own, so an actor that computes does not delay it."""

    @reads
    def beat(self) -> Ask[int]:
        """Return the uid of the node of this process."""
        raise NotImplementedError

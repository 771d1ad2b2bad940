"""Endpoint of the node gateway, by which other processes reach a process of an actor system."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from actors.core.node import Node
from actors.core.promise import Promise
from actors.core.system_messages import DeathWatchNotification, SystemMessage, Terminate
from actors.errors import (
    ActorSystemError,
    EndpointStateError,
    Quarantined,
    RecipientUnreachable,
    SerializationError,
    WireError,
)
from actors.event_stream import Table
from actors.messages import Failure
from actors.props import CreateOrder
from actors.ref import ActorRef
from actors.remote.gateway import NodeGateway, NodeId, Route
from actors.remote.heartbeats import Pulse
from actors.remote.link import Notice
from actors.remote.peers import Peers
from actors.remote.remote import Placing, Remoting
from actors.rpc.endpoint import RpcEndpoint
from actors.rpc.gateway import rpc_sync, rpc_tell

logger = logging.getLogger(__name__)


class Guests:
    """Actors of this process whose parents are in other processes.

    They stop when the process of their parent dies, because they have no supervisor then.

    Args:
        node: their node.
        me: its id.
        peers: the other nodes.
    """

    def __init__(self, node: Node, me: NodeId, peers: Peers) -> None:
        self._node = node
        self._me = me
        self._peers = peers
        self._creators: dict[str, tuple[int, NodeId]] = {}
        peers.on_down.append(self._orphaned)

    def arrived(self, path: str, uid: int, creator: NodeId) -> None:
        """Record an actor that is created here for a parent in *creator*."""
        self._creators[path] = (uid, creator)
        if creator.system_uid != self._me.system_uid and creator.port:
            link = self._peers.link(creator.address, creator)
            link.guests += 1
            self._peers.monitor(link)
        reason = self._peers.associations.reason(creator.uid)
        if reason is not None:
            self._orphaned(creator.uid, reason)

    def left(self, path: str, uid: int) -> bool:
        """Forget an actor of this node that has stopped; return whether it was a guest."""
        known = self._creators.get(path)
        if known is None or known[0] != uid:
            return False
        creator = self._creators.pop(path)[1]
        link = self._peers.link_to(creator.uid)
        if link is not None and creator.system_uid != self._me.system_uid:
            link.guests -= 1
            self._peers.relax(link)
        return True

    def stop_all(self) -> None:
        """Stop all guests, because this process ends."""
        for path, (uid, _) in list(self._creators.items()):
            self._node.deliver_system(self._node.ref(path, uid), Terminate())

    def _orphaned(self, creator: int, reason: str) -> None:
        for path, (uid, node) in list(self._creators.items()):
            if node.uid == creator:
                logger.warning("%s is stopped: %s, where its parent lived, has ended (%s)", path, node, reason)
                self._node.deliver_system(self._node.ref(path, uid), Terminate())


ATTACHED_LIMIT = 4096
SENDER_CACHE = 1024
GRACE_S = 7.0
"""Seconds that the actors of an ending process have to stop."""
DRAIN_S = 2.0
"""Seconds for sending their last messages after that; both together are less than the host's `STOP_DEADLINE_S`."""

T = TypeVar("T")


class NodeEndpoint(RpcEndpoint, NodeGateway):
    """Receives the calls of other nodes.

    Args:
        remoting: the remoting of the node.
        takes_orders: whether other processes may create actors here and terminate the system.
        pulse: closed with the endpoint.
    """

    parent_path = None

    def __init__(self, remoting: Remoting, *, takes_orders: bool = True, pulse: Pulse | None = None) -> None:
        super().__init__(remoting.service, "node")
        self._takes_orders = takes_orders
        self._remoting = remoting
        self._node = node = remoting.node
        self._pulse = pulse
        self._known: dict[int, NodeId] = {}
        self._attached: dict[int, asyncio.Future[str]] = {}
        self._senders: dict[str, ActorRef] = {}
        self._last_left: asyncio.Future[None] | None = None
        self._peers = remoting.peers
        self._guests = Guests(node, remoting.me, remoting.peers)
        self._accepts = remoting.peers.associations.accept_from
        self._leaving: dict[str, asyncio.Future[None]] = {}
        node.on_cell_stopped = self._cell_stopped
        node.event_stream.on_change = self._subscriptions_changed
        remoting.peers.on_down.append(self._node_down)

    # ------------------------------------------------------------------ associations

    @rpc_sync
    def associate(self, origin: NodeId) -> NodeId:
        if not self._peers.heard_of(origin):
            self._check(origin.uid)
            self._check(origin.system_uid)
        if len(self._known) >= ATTACHED_LIMIT:
            self._forget(next(iter(self._known)))
        self._known[origin.uid] = origin
        return self._remoting.me

    def _check(self, uid: int) -> None:
        reason = self._peers.associations.reason(uid)
        if reason is not None:
            raise Quarantined(self._refusal(reason))

    def _refusal(self, reason: str) -> str:
        return (
            f"{self._remoting.me} has declared this process dead ({reason}) and rejects its messages; "
            "restart this actor system to be accepted again"
        )

    @rpc_sync
    def attach(self, origin: int) -> asyncio.Future[str]:
        if origin not in self._known:
            raise EndpointStateError("unknown node: associate first")
        previous = self._attached.pop(origin, None)
        if previous is not None and not previous.done():
            previous.set_result("")
        waiting: asyncio.Future[str] = self.service.loop.create_future()
        self._attached[origin] = waiting
        return waiting

    def _forget(self, uid: int) -> None:
        self._known.pop(uid, None)
        waiting = self._attached.pop(uid, None)
        if waiting is not None and not waiting.done():
            waiting.set_result("")

    def _node_down(self, uid: int, reason: str) -> None:
        self._known.pop(uid, None)
        waiting = self._attached.pop(uid, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(self._refusal(reason))

    # ------------------------------------------------------------------ messages

    @rpc_tell
    def deliver(self, origin: int, path: str, uid: int, sender: str, payload: bytes) -> None:
        if not self._accepts(origin):
            return
        who = (self._senders.get(sender) or self._sender(sender)) if sender else None
        self._deliver(path, uid, self._node.serializer.loads(payload), who)

    def _deliver(self, path: str, uid: int, message: Any, sender: ActorRef | None) -> None:
        if path not in self._node.cells and self._is_relayed(path, uid):
            # The sender learned of the actor before the root node did.
            self._node.send(self._node.ref(path, uid), message, sender)
        else:
            self._node.deliver_text(path, uid, message, sender)
            cell = self._node.cells.get(path)
            if cell is not None and cell.mailbox.saturated:
                caller = self.service.caller
                if caller is not None:
                    caller.hold()
                    cell.mailbox.when_relieved(functools.partial(self.service.loop.call_soon, caller.release))

    def _is_relayed(self, path: str, uid: int) -> bool:
        return uid != 0 and self._remoting.has_created(self._node.ref(path, uid))

    @rpc_tell
    def deliver_system(self, origin: int, path: str, uid: int, payload: bytes) -> None:
        if not self._accepts(origin):
            return
        message = self._node.serializer.loads(payload)
        if not isinstance(message, SystemMessage):
            raise WireError(f"{type(message).__name__} is not a system message")
        if isinstance(message, DeathWatchNotification):
            self._remoting.forget(message.actor)
        ref = self._node.ref(path, uid)
        if path not in self._node.cells and self._is_relayed(path, uid):
            self._node.send_system(ref, message)
        else:
            self._node.deliver_system(ref, message)

    @rpc_sync
    def ask(self, origin: int, path: str, uid: int, timeout_s: float, payload: bytes) -> asyncio.Future[bytes]:
        self._check(origin)
        message = self._node.serializer.loads(payload)
        reply: asyncio.Future[bytes] = self.service.loop.create_future()
        recipient = self._node.ref(path, uid)
        promise = _WirePromise(self._node, reply, recipient, type(message).__qualname__, timeout_s)
        self._deliver(path, uid, message, promise.ref)
        return reply

    def _sender(self, text: str) -> ActorRef:
        if len(self._senders) >= SENDER_CACHE:
            self._senders.clear()
        ref = self._senders[text] = ActorRef.parse(text, self._node)
        return ref

    @rpc_sync
    def graceful_stop(self, origin: int, path: str, uid: int, timeout_s: float) -> asyncio.Future[bool]:
        self._check(origin)
        return asyncio.ensure_future(self._node.graceful_stop(self._node.ref(path, uid), timeout_s))

    # ------------------------------------------------------------------ where actors are, and their creation

    @rpc_sync
    def resolve(self, path: str, uid: int) -> asyncio.Future[Route]:
        return self._promised(self._placing().resolve(path, uid))

    @rpc_sync
    def create(self, origin: NodeId, order: bytes) -> asyncio.Future[Route]:
        self._check(origin.uid)
        return self._promised(self._placing().create(origin, self._order(order)))

    def _promised(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Run *work* as a task, not as a coroutine handler.

        A connection limits its coroutine handlers, and these tasks wait for other calls.
        """
        return self.service.loop.create_task(work)

    def _placing(self) -> Placing:
        if self._remoting.placing is None:
            raise EndpointStateError(f"{self._remoting.me} is not a root node")
        return self._remoting.placing

    def _order(self, payload: bytes) -> CreateOrder:
        order = self._node.serializer.loads(payload)
        if not isinstance(order, CreateOrder):
            raise WireError(f"{type(order).__name__} is not an order to create an actor")
        return order

    @rpc_sync
    def host(self, creator: NodeId, order: bytes) -> asyncio.Future[None]:
        self._check_orders()
        return self._promised(self.host_here(creator, self._order(order)))

    def _check_orders(self) -> None:
        if not self._takes_orders:
            raise ActorSystemError(
                f"{self._remoting.me} takes no orders of other processes: it is a cluster's component"
            )

    async def host_here(self, creator: NodeId, order: CreateOrder) -> None:
        """Create an actor in this process for a parent in another process; stop an earlier incarnation first.

        Raises:
            ActorSystemError: the actor's class cannot be imported here.
        """
        while (earlier := self._node.cells.get(order.path)) is not None:
            # Its parent's process has died, else it would not be created again: no supervisor waits for it.
            gone = self._leaving.setdefault(order.path, self.service.loop.create_future())
            earlier.deliver_system(Terminate())
            await asyncio.shield(gone)
        self._remoting.lives_with(order.parent, creator)
        self._guests.arrived(order.path, order.uid, creator)
        self._node.create_ordered(order)

    def _cell_stopped(self, ref: ActorRef) -> None:
        """Handle the final stop of an actor of this node."""
        path, uid = ref.path, ref.uid
        if self._last_left is not None and not self._node.cells and not self._last_left.done():
            self._last_left.set_result(None)
        gone = self._leaving.pop(path, None)
        if gone is not None:
            gone.set_result(None)
        if not self._guests.left(path, uid):
            return
        if self._remoting.placing is not None:
            self._remoting.placing.stopped(path, uid)
        else:
            me = self._remoting.me
            self._peers.link(me.root_address).send(
                Notice(lambda root: root.stopped(me.uid, path, uid), f"the end of {path}", logging.WARNING)
            )

    @rpc_tell
    def stopped(self, origin: int, path: str, uid: int) -> None:
        self._placing().stopped(path, uid)

    # ------------------------------------------------------------------ the system

    @rpc_tell
    def node_down(self, uid: int, reason: str) -> None:
        self._peers.node_down(uid, reason)

    @rpc_tell
    def subscriptions(self, origin: int, payload: bytes) -> None:
        table = {ref: tuple(entries) for ref, entries in self._node.serializer.loads(payload)}
        if self._remoting.placing is not None:
            self._remoting.placing.subscribed(origin, table)
        else:
            self._node.event_stream.replace(table)

    def _subscriptions_changed(self, table: Table) -> None:
        """Send the changed subscriptions of this node to the root node, which sends them to the other nodes."""
        me = self._remoting.me
        if self._remoting.placing is not None:
            self._remoting.placing.subscribed(me.uid, table)
        else:
            self._remoting.send_subscriptions(self._peers.link(me.root_address), table)

    @rpc_tell
    def terminate(self, origin: int) -> None:
        self._check_orders()
        logger.info("an actor of this system has asked for its termination")
        threading.Thread(target=self._node.system.terminate, name="actors-terminate", daemon=True).start()

    async def on_stop(self) -> None:
        """Stop the actors of this process, because it ends."""
        node = self._node
        self._guests.stop_all()
        if node.root is None and node.cells:
            self._last_left = self.service.loop.create_future()
            try:
                async with asyncio.timeout(GRACE_S):
                    await self._last_left
            except TimeoutError:
                logger.warning(
                    "actors of this process did not stop within %g s: their coroutines are cancelled", GRACE_S
                )
                node.abort()
        await self._remoting.drain(DRAIN_S)
        for waiting in self._attached.values():
            if not waiting.done():
                waiting.set_result("")
        node.close()
        for _ in range(3):
            await asyncio.sleep(0)  # cancelled tasks end in these turns
        if self._pulse is not None:
            self._pulse.close()


class _WirePromise(Promise):
    """Waits for the reply to an ask from another process, and encodes it."""

    __slots__ = ()

    def _succeed(self, value: Any) -> None:
        if self._future.done():
            return
        try:
            self._future.set_result(self._node.serializer.dumps(value))
        except SerializationError as error:
            self._future.set_exception(error)

    def fail(self, error: BaseException) -> None:
        """End the ask with *error*, which travels like an error in a message: as its own type where possible."""
        if isinstance(error, RecipientUnreachable):
            super().fail(error)  # the link of the asking node checks for this type
        else:
            self._succeed(Failure(error))

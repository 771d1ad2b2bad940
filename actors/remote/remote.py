"""Link of a node to the actors of other processes and systems: finds them, keeps the order, notices their end.

Akka's ``RemoteActorRefProvider``. An incarnation of an actor never moves, so a node looks up its process once for each
ref. Until the process is known, messages queue here; after that they queue at the link to that process. So they always
arrive in the order in which they were sent.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from actors.address import ActorAddress
from actors.core.node import Node
from actors.core.system_messages import SystemMessage
from actors.errors import ActorError, ActorSystemError, RecipientTerminated, RecipientUnreachable
from actors.event_stream import Table
from actors.props import CreateOrder
from actors.ref import ActorRef, Origin
from actors.remote.gateway import PATH, NodeGateway, NodeId, Route
from actors.remote.link import Link, Notice, Outgoing, OutgoingAsk, OutgoingMessage, OutgoingSystem
from actors.remote.peers import Peers
from actors.rpc.service import RpcService
from actors.system_config import SystemConfig


class Placing(Protocol):
    """Directory of a root node, the only node that knows the process of every actor."""

    async def resolve(self, path: str, uid: int) -> Route:
        """Return the process that hosts *path*; wait while the actor is being created."""

    async def create(self, creator: NodeId, order: CreateOrder) -> Route:
        """Place and create an actor."""

    def stopped(self, path: str, uid: int) -> None:
        """Forget a placed actor that has stopped for good."""

    def subscribed(self, origin: int, table: Table) -> None:
        """Take the event stream subscriptions of a node of this system."""


ROUTE_CACHE = 100_000
TEXT_CACHE = 4096
CREATION_TIMEOUT_S = 90.0


class Remoting:
    """The `Remote` of a node that reaches other nodes. All methods run on the node's loop.

    Args:
        service: the RPC service of this process.
        me: this node.
        config: settings of the system.
        temp: see `Node`.

    Attributes:
        node: the node, created by the constructor; the caller sets `Node.system`.
    """

    def __init__(self, service: RpcService, me: NodeId, config: SystemConfig, temp: str = "") -> None:
        self.service = service
        self.me = me
        self.origin = Origin(me.system, me.root_host, me.root_port)
        self.placing: Placing | None = None
        self.peers = Peers(service, me, config.heartbeat, self._lost)
        self._capacity = config.pending_capacity
        self._routes: dict[ActorRef, Link] = {}
        self._waiting: dict[ActorRef, deque[Outgoing]] = {}
        self._waiting_bytes = 0
        self._waiting_limit = service.config.outbox_size // 2
        self._watched: set[ActorRef] = set()
        self._created: set[ActorRef] = set()
        self._texts: dict[ActorRef, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        root = me.root_address
        service.node = self.node = Node(service.loop, me.system, root, me.uid, settings=config, remote=self, temp=temp)

    # ------------------------------------------------------------------ sending

    def send(self, ref: ActorRef, message: Any, sender: ActorRef | None) -> None:
        """Send a message to an actor of another process (`Remote`)."""
        payload = self.node.serializer.dumps(message)
        me = self.me
        if sender is not None and sender.is_ask and (timeout_s := self.node.ask_time_left(sender)) is not None:
            self._send(OutgoingAsk(self.node, me.uid, ref, message, sender, payload, timeout_s, self._ask_broke))
            return
        text = "" if sender is None else self._texts.get(sender) or self._text(sender)
        link = self._routes.get(ref)
        if link is not None and link.is_up and link.has_room:
            link.gateway.deliver(me.uid, ref.path, ref.uid, text, payload)
        else:
            self._send(OutgoingMessage(self.node, me.uid, ref, message, sender, text, payload))

    def send_system(self, ref: ActorRef, message: SystemMessage) -> None:
        """Send a system message to an actor of another process (`Remote`)."""
        self._send(OutgoingSystem(self.node, self.me.uid, ref, message, self.node.serializer.dumps(message)))

    def send_subscriptions(self, link: Link, table: Table) -> None:
        """Send a table of event stream subscriptions from a host to the root node, or from the root node to a host."""
        payload = self.node.serializer.dumps([[ref, list(entries)] for ref, entries in table.items()])
        link.send(Notice(lambda there: there.subscriptions(self.me.uid, payload), "a table of subscriptions"))

    def _text(self, ref: ActorRef) -> str:
        if len(self._texts) >= TEXT_CACHE:
            self._texts.clear()
        text = self._texts[ref] = str(ref)
        return text

    def _send(self, outgoing: Outgoing) -> None:
        ref = outgoing.ref
        link = self._routes.get(ref)
        if link is not None:
            link.send(outgoing)
            return
        waiting = self._waiting.get(ref)
        if waiting is None:
            waiting = self._waiting[ref] = deque()
            self._run(self._find(ref), f"finding {ref}")
        if not outgoing.urgent and (len(waiting) >= self._capacity or self._waiting_bytes >= self._waiting_limit):
            text = f"{len(waiting)} messages for {ref.path} (and {self._waiting_bytes} bytes for all) wait already"
            outgoing.undeliverable(RecipientUnreachable(f"{text} for its process to be known"))
        else:
            waiting.append(outgoing)
            self._waiting_bytes += outgoing.size

    def _run(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = self.service.loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ------------------------------------------------------------------ finding

    async def _find(self, ref: ActorRef) -> None:
        try:
            route = await self.resolve(ref)
        except Exception as error:  # any error of the other side: the queued messages must not wait for ever
            self._not_found(ref, _as_actor_error(error))
        else:
            self._found(ref, route)

    async def resolve(self, ref: ActorRef) -> Route:
        """Ask the root node of the ref's system for the process that hosts it.

        Raises:
            RecipientUnreachable: the root node cannot be reached.
        """
        if ref.origin == self.origin and self.placing is not None:
            return await self.placing.resolve(ref.path, ref.uid)
        root = self.peers.link(ActorAddress(*ref.origin, PATH))
        for attempt in (1, 2):
            gateway = await root.ready()
            try:
                return await gateway.resolve(ref.path, ref.uid)
            except RecipientUnreachable:
                if attempt == 2:
                    raise
        raise AssertionError("unreachable")

    def _found(self, ref: ActorRef, route: Route) -> None:
        waiting = self._no_longer_waiting(ref)
        if route.node.uid == self.me.uid:
            for outgoing in waiting:
                outgoing.deliver_here()
            return
        link = self.peers.link(route.node.address, route.node)
        if ref.uid and not ref.is_ask and link.dead is None:
            if len(self._routes) >= ROUTE_CACHE:
                del self._routes[next(iter(self._routes))]
            self._routes[ref] = link
        if ref in self._watched:
            self._monitor(ref, link)
        for outgoing in waiting:
            link.send(outgoing)

    def _ask_broke(self, ask: OutgoingAsk, error: RecipientUnreachable) -> None:
        """Find out whether the actor has stopped, or only the connection to its process broke; then fail the ask."""
        self._run(self._explain(ask, error), f"what became of {ask.ref}")

    async def _explain(self, ask: OutgoingAsk, error: RecipientUnreachable) -> None:
        link = self._routes.get(ask.ref)
        better: BaseException = error
        with contextlib.suppress(Exception):  # then report the first error
            route = await self.resolve(ask.ref)
            if link is None or link.node is None or route.node.uid != link.node.uid:
                better = RecipientTerminated(f"{ask.ref} has stopped; whether it got the message is unknown: {error}")
        ask.failed(better)

    def _not_found(self, ref: ActorRef, error: ActorError) -> None:
        for outgoing in self._no_longer_waiting(ref):
            outgoing.undeliverable(error)

    def _no_longer_waiting(self, ref: ActorRef) -> deque[Outgoing]:
        waiting = self._waiting.pop(ref, deque())
        self._waiting_bytes -= sum(outgoing.size for outgoing in waiting)
        return waiting

    # ------------------------------------------------------------------ creating

    def create(self, order: CreateOrder, ref: ActorRef, on_failed: Callable[[Exception], None]) -> None:
        """Create an actor in another process (`Remote`); messages to it wait until it exists."""
        payload = self.node.serializer.dumps(order)
        self._waiting[ref] = deque()
        self._created.add(ref)
        self._run(self._create(order, payload, ref, on_failed), f"creation of {ref}")

    async def _create(
        self, order: CreateOrder, payload: bytes, ref: ActorRef, on_failed: Callable[[Exception], None]
    ) -> None:
        try:
            if ref.origin == self.origin and self.placing is not None:
                route = await self.placing.create(self.me, order)
            else:
                root = self.peers.link(ActorAddress(*ref.origin, PATH))
                await root.ready()
                gateway = self.service.gateway(root.address, NodeGateway, timeout_s=CREATION_TIMEOUT_S)
                route = await gateway.create(self.me, payload)
        except Exception as error:  # any error: the parent has to learn that its child was not created
            self._created.discard(ref)
            self._not_found(ref, _as_actor_error(error))
            on_failed(error)
        else:
            self._found(ref, route)

    def lives_with(self, ref: ActorRef, node: NodeId) -> None:
        """Record that an actor of another process lives in *node*, which saves the look-up."""
        if node.uid != self.me.uid and ref not in self._waiting:
            self._routes.setdefault(ref, self.peers.link(node.address, node))

    def has_created(self, ref: ActorRef) -> bool:
        """Return whether this node has created the actor of *ref*, or is creating it."""
        return ref in self._created

    # ------------------------------------------------------------------ watching

    def watching(self, ref: ActorRef) -> None:
        """Watch the process of *ref*, because an actor here watches *ref* (`Remote`)."""
        self._watched.add(ref)
        link = self._routes.get(ref)
        if link is not None:
            self._monitor(ref, link)

    def unwatching(self, ref: ActorRef) -> None:
        """Stop watching the process of *ref* (`Remote`)."""
        self._watched.discard(ref)
        self._created.discard(ref)
        link = self._routes.get(ref)
        if link is not None:
            link.watched.discard(ref)
            self.peers.relax(link)

    def forget(self, ref: ActorRef) -> None:
        """Forget the process of an actor that has stopped there; later messages to the ref are looked up again."""
        link = self._routes.pop(ref, None)
        if link is not None:
            link.watched.discard(ref)
            self.peers.relax(link)

    def _monitor(self, ref: ActorRef, link: Link) -> None:
        if link.dead is not None:
            self.node.process_ended(ref)
            return
        link.watched.add(ref)
        self.peers.monitor(link)

    def _lost(self, link: Link, watched: set[ActorRef]) -> None:
        """Report the watched actors of a dead node as ended, and drop its routes, so that refs are looked up again."""
        self._routes = {ref: known for ref, known in self._routes.items() if known is not link}
        for ref in watched:
            self.node.process_ended(ref)

    # ------------------------------------------------------------------ end

    async def drain(self, timeout_s: float) -> None:
        """Wait until all messages have left, for at most *timeout_s* seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._tasks:
                    await asyncio.wait(self._tasks)
                await self.peers.drained()

    def closed(self) -> None:
        """Stop, because the node has ended (`Remote`)."""
        for task in self._tasks:
            task.cancel()
        self.peers.close()
        self._routes.clear()


def _as_actor_error(error: Exception) -> ActorError:
    return error if isinstance(error, ActorError) else ActorSystemError(f"{type(error).__name__}: {error}")

"""A link from this node to another one: it queues while it connects, keeps the order, and detects the other's death.

A link carries parcels: messages, system messages, asks, notices. Each parcel can send itself, and handles its own
failure.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from actors.address import ActorAddress
from actors.core.node import Node
from actors.core.system_messages import AskFailed, DeathWatchNotification, SystemMessage, Watch
from actors.errors import (
    ActorError,
    AskTimeout,
    AuthenticationError,
    EndpointStateError,
    Quarantined,
    RecipientTerminated,
    RecipientUnreachable,
    UnknownActor,
    WireError,
)
from actors.ref import ActorRef
from actors.remote.gateway import PATH, NodeGateway, NodeId
from actors.rpc.gateway import Ask
from actors.rpc.service import RpcService

logger = logging.getLogger(__name__)

QUEUE_LIMIT = 10_000
NEVER_S = 3e8
"""Timeout of the ask that the other side answers only when it rejects this node: ten years, in seconds."""
RETRY_S = 0.2
ATTEMPTS = 3
REFUSED_FOR_S = 5.0
PROBE_TIMEOUT_S = 2.0


class Parcel(Protocol):
    """An item to send to a node."""

    @property
    def urgent(self) -> bool:
        """Return whether it belongs to the runtime, so that limits for messages of actors do not apply."""

    @property
    def size(self) -> int:
        """Number of bytes that it holds while it waits."""

    def send(self, gateway: NodeGateway) -> None:
        """Send it over the open connection."""

    def undeliverable(self, error: ActorError) -> None:
        """Handle that it cannot be sent."""


class Notice:
    """A parcel of the runtime.

    Args:
        tell: sends it.
        what: its name in the log when it cannot be sent.
        level: log level for that case. Usually the receiving process has ended.
    """

    urgent = True
    size = 0

    def __init__(self, tell: Callable[[NodeGateway], None], what: str, level: int = logging.DEBUG) -> None:
        self.send = tell
        self._what = what
        self._level = level

    def undeliverable(self, error: ActorError) -> None:
        logger.log(self._level, "%s was not sent: %s", self._what, error)


class _Arrival:
    """A parcel that sends nothing, but completes a future once the connection is open."""

    urgent = True
    size = 0

    def __init__(self, future: asyncio.Future[NodeGateway]) -> None:
        self._future = future

    def send(self, gateway: NodeGateway) -> None:
        if not self._future.done():
            self._future.set_result(gateway)

    def undeliverable(self, error: ActorError) -> None:
        if not self._future.done():
            self._future.set_exception(type(error)(str(error)))


class Outgoing:
    """A parcel for one recipient.

    Args:
        node: the sending node.
        origin: uid of the sending process.
        ref: the recipient.
    """

    __slots__ = ("node", "origin", "ref")

    urgent = False
    payload: bytes

    def __init__(self, node: Node, origin: int, ref: ActorRef) -> None:
        self.node = node
        self.origin = origin
        self.ref = ref

    @property
    def size(self) -> int:
        """Number of bytes that it holds while it waits."""
        return len(self.payload)

    def send(self, gateway: NodeGateway) -> None:
        """Send it to the process that hosts the recipient."""
        raise NotImplementedError

    def deliver_here(self) -> None:
        """Deliver it in this process, which hosts the recipient if that lives."""
        raise NotImplementedError

    def undeliverable(self, error: ActorError) -> None:
        """Handle that the recipient cannot be reached."""
        raise NotImplementedError


class OutgoingMessage(Outgoing):
    """A tell. It is encoded when the sender tells it: errors reach the sender, and later changes have no effect."""

    __slots__ = ("message", "payload", "sender", "sender_text")

    def __init__(
        self,
        node: Node,
        origin: int,
        ref: ActorRef,
        message: Any,
        sender: ActorRef | None,
        sender_text: str,
        payload: bytes,
    ) -> None:
        super().__init__(node, origin, ref)
        self.message = message
        self.sender = sender
        self.sender_text = sender_text
        self.payload = payload

    def send(self, gateway: NodeGateway) -> None:
        gateway.deliver(self.origin, self.ref.path, self.ref.uid, self.sender_text, self.payload)

    def deliver_here(self) -> None:
        self.node.deliver(self.ref, self.message, self.sender)

    def undeliverable(self, error: ActorError) -> None:
        self.node.undeliverable(self.ref, self.message, self.sender, error)


class OutgoingSystem(Outgoing):
    """A system message."""

    __slots__ = ("message", "payload")

    urgent = True

    def __init__(self, node: Node, origin: int, ref: ActorRef, message: SystemMessage, payload: bytes) -> None:
        super().__init__(node, origin, ref)
        self.message = message
        self.payload = payload

    def send(self, gateway: NodeGateway) -> None:
        gateway.deliver_system(self.origin, self.ref.path, self.ref.uid, self.payload)

    def deliver_here(self) -> None:
        self.node.deliver_system(self.ref, self.message)

    def undeliverable(self, error: ActorError) -> None:
        if isinstance(self.message, Watch):
            # It is unknown whether the actor ever existed. Its process has ended or cannot be reached.
            ended = DeathWatchNotification(self.ref, existence_confirmed=False, address_terminated=True)
            self.node.send_system(self.message.watcher, ended)


class OutgoingAsk(Outgoing):
    """A message of an ask of this process. The reply returns over the same connection.

    Args:
        broke: called with this parcel and the error when the connection broke, or could not be opened.
    """

    __slots__ = ("asker", "broke", "message", "payload", "timeout_s")

    def __init__(
        self,
        node: Node,
        origin: int,
        ref: ActorRef,
        message: Any,
        asker: ActorRef,
        payload: bytes,
        timeout_s: float,
        broke: Callable[[OutgoingAsk, RecipientUnreachable], None],
    ) -> None:
        super().__init__(node, origin, ref)
        self.broke = broke
        self.message = message
        self.asker = asker
        self.payload = payload
        self.timeout_s = timeout_s

    def send(self, gateway: NodeGateway) -> None:
        ask: Ask[bytes] = gateway.ask(self.origin, self.ref.path, self.ref.uid, self.timeout_s, self.payload)
        ask.add_done_callback(self._answered)

    def _answered(self, future: Any) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if isinstance(error, EndpointStateError | UnknownActor) and PATH in str(error):
            error = RecipientTerminated(f"{self.ref} has stopped: its process is ending")
        if error is None:
            try:
                reply = self.node.serializer.loads(future.result())
            except ActorError as undecodable:
                error = undecodable
            else:
                self.node.deliver(self.asker, reply, None)
                return
        if type(error) is RecipientUnreachable:
            self.broke(self, error)
        else:
            self.failed(error)

    def failed(self, error: BaseException) -> None:
        """End the ask with *error*."""
        self.node.deliver_system(self.asker, AskFailed(error))

    def deliver_here(self) -> None:
        self.node.deliver(self.ref, self.message, self.asker)

    def undeliverable(self, error: ActorError) -> None:
        self.node.undeliverable(self.ref, self.message, self.asker, error)


class Link:
    """A connection to a node. It opens at first use, and again after a break, until that node has died.

    Args:
        service: the RPC service of this process.
        me: this node.
        address: address of the other node's process.
        on_up: called when the other node is reached for the first time.
        on_dead: called once with this link and the reason, when the other node has died or another one has its address.
    """

    def __init__(
        self,
        service: RpcService,
        me: NodeId,
        address: ActorAddress,
        on_up: Callable[[Link], None],
        on_dead: Callable[[Link, str], None],
    ) -> None:
        self.key = (address.host, address.port)
        self.address = address.with_path(PATH)
        self.gateway: NodeGateway = service.gateway(self.address, NodeGateway)
        self.node: NodeId | None = None
        self.watched: set[ActorRef] = set()
        self.guests = 0
        self.dead: str | None = None
        self._attaching: NodeGateway = service.gateway(self.address, NodeGateway, timeout_s=NEVER_S)
        self._service = service
        self._me = me
        self._capacity = service.config.outbox_size // 2
        self._on_up = on_up
        self._on_dead = on_dead
        self._up = False
        self._queue: deque[Parcel] = deque()
        self._queued_bytes = 0
        self._task: asyncio.Task[None] | None = None
        self._refusal: ActorError | None = None
        self._refused_until = 0.0

    def send(self, parcel: Parcel) -> None:
        """Send a parcel, or queue it until the other node is reached; call its `undeliverable` if neither works."""
        if self._up and not self._queue:
            if parcel.urgent or self.has_room:
                parcel.send(self.gateway)
            else:
                parcel.undeliverable(self._full())
            return
        refusal = self._refused()
        if refusal is not None:
            parcel.undeliverable(refusal)
            if self._refused_until == math.inf:
                self.open()  # another incarnation may have the address by now
        elif not parcel.urgent and (len(self._queue) >= QUEUE_LIMIT or self._queued_bytes >= self._capacity):
            waiting = f"{len(self._queue)} messages of {self._queued_bytes} bytes"
            parcel.undeliverable(RecipientUnreachable(f"{waiting} wait already for the connection to {self.name}"))
        else:
            self._queue.append(parcel)
            self._queued_bytes += parcel.size
            self.open()

    def suspect(self, reason: str) -> None:
        """Quarantine the node at that address: send nothing until another incarnation of it answers."""
        self._refusal = Quarantined(
            f"{self.name} is in quarantine: {reason}; only a new incarnation of it is reached again"
        )
        self._refused_until = math.inf

    def _refused(self) -> ActorError | None:
        if self.dead is not None:
            return self._its_end()
        if self._refusal is not None and self._service.loop.time() < self._refused_until:
            return self._refusal
        return None

    @property
    def is_up(self) -> bool:
        """Return whether a parcel that is sent now leaves at once."""
        return self._up

    @property
    def has_room(self) -> bool:
        """Return whether more messages of actors may be sent; the rest of the buffer is for the runtime."""
        return self._service.unsent(self.key) < self._capacity

    def _full(self) -> RecipientUnreachable:
        waiting = self._service.unsent(self.key)
        return RecipientUnreachable(f"{self.name} is sent more than it takes: {waiting} bytes wait for it already")

    @property
    def name(self) -> str:
        """The other node, as text for people."""
        return str(self.address.with_path("/")) if self.node is None else str(self.node)

    async def ready(self) -> NodeGateway:
        """Wait until the other node is reached.

        Raises:
            RecipientUnreachable: the other node has died, or cannot be reached.
            Quarantined: the other node rejects this node.
            AuthenticationError: the other node has another secret.
        """
        if not self._up or self._queue:
            arrived: asyncio.Future[NodeGateway] = self._service.loop.create_future()
            self.send(_Arrival(arrived))
            return await arrived
        return self.gateway

    async def drained(self) -> None:
        """Wait until the queued parcels have been sent; raises as `ready`."""
        if self._queue:
            await self.ready()

    def open(self) -> None:
        """Start connecting, unless the link is connected or connecting."""
        if self._task is None and self.dead is None:
            self._task = self._service.loop.create_task(self._run(), name=f"link to {self.address}")

    async def _run(self) -> None:
        """Connect, stay attached, and connect again after a break, until the other node is dead or rejects this one."""
        try:
            while self.dead is None and await self._connect():
                try:
                    reason = await self._attaching.attach(self._me.uid)
                except (RecipientUnreachable, EndpointStateError, UnknownActor, AskTimeout):
                    self._up = False  # the connection broke; the next attempt shows whether the node lives
                    if self.node is not None and self.node.system_uid == self._me.system_uid:
                        # The root node reports the end of its hosts, so there is no hurry.
                        await asyncio.sleep(RETRY_S)
                else:
                    if reason:
                        self._refuse(Quarantined(reason))
                        return
        except asyncio.CancelledError:
            raise
        except ActorError as error:
            self._refuse(error)
        finally:
            self._task = None

    async def _connect(self) -> bool:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                node = await self.gateway.associate(self._me)
            except (Quarantined, AuthenticationError, WireError) as error:
                self._refuse(error)
                return False
            except UnknownActor:
                self.declare_dead("another program has its port")
                return False
            except (RecipientUnreachable, AskTimeout, EndpointStateError) as error:
                if isinstance(error, RecipientUnreachable) and await self._is_port_closed():
                    self.declare_dead("its port is closed")
                    return False
                if attempt == ATTEMPTS:
                    self._refuse(RecipientUnreachable(str(error)))
                    return False
                await asyncio.sleep(RETRY_S * attempt)
            else:
                return self._arrived(node)
        return False

    def _arrived(self, node: NodeId) -> bool:
        if self.node is not None and node.uid != self.node.uid:
            self.declare_dead("another incarnation has its address")
            return False
        first, self.node = self.node is None, node
        self._refusal = None
        self._refused_until = 0.0
        if first:
            self._on_up(self)
        if self.dead is not None:
            return False
        self._up = True
        self._queued_bytes = 0
        while self._queue:
            self._queue.popleft().send(self.gateway)
        return True

    async def _is_port_closed(self) -> bool:
        """Return whether the machine answers but nothing listens, which proves that the process has ended."""
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                _, writer = await asyncio.open_connection(*self.key)
        except ConnectionRefusedError:
            return True
        except (OSError, TimeoutError, UnicodeError):
            return False
        writer.close()
        return False

    def _refuse(self, error: ActorError) -> None:
        """Give up for `REFUSED_FOR_S` seconds; hand the queued parcels back."""
        if isinstance(error, Quarantined):
            logger.error("%s", error)
        else:
            logger.warning("%s cannot be reached: %s", self.name, error)
        self._up = False
        if self._refused_until != math.inf:
            self._refusal = error
            self._refused_until = self._service.loop.time() + REFUSED_FOR_S
        self._hand_back(error)

    def _hand_back(self, error: ActorError) -> None:
        waiting, self._queue = self._queue, deque()
        self._queued_bytes = 0
        for parcel in waiting:
            parcel.undeliverable(error)

    def declare_dead(self, reason: str) -> None:
        """Declare the other node dead and send nothing more; idempotent."""
        if self.dead is not None:
            return
        self.dead = reason
        self._up = False
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        self._on_dead(self, reason)
        self._hand_back(self._its_end())

    def _its_end(self) -> RecipientTerminated:
        return RecipientTerminated(f"{self.name} has ended: {self.dead}")

    def close(self) -> None:
        """Stop connecting."""
        self.dead = self.dead or "the actor system was terminated"
        self._up = False
        if self._task is not None:
            self._task.cancel()
            self._task = None

"""Several nodes in one loop, joined by a network in memory: what they send is encoded, queued, and lost on order."""

from __future__ import annotations

import functools
import random
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from actors.address import ActorAddress
from actors.core.node import Node
from actors.core.system_messages import AskFailed, DeathWatchNotification, SystemMessage, Terminate, Watch
from actors.errors import ActorError, ActorSystemError, RecipientUnreachable
from actors.event_stream import Table
from actors.props import CreateOrder, Placement
from actors.ref import ActorRef, Origin

if TYPE_CHECKING:
    from actors.core.cell import Cell
    from actors.core.settings import CoreSettings
    from actors.testkit.virtual_loop import VirtualLoop

HOST = "127.0.0.1"
FIRST_PORT = 2552

Drop = Callable[[ActorRef, Any], bool]


class MemoryNode(Node):
    """A node that can be killed: it then does nothing any more, as a process after SIGKILL."""

    is_dead = False

    def schedule(self, cell: Cell) -> None:
        """Have the cell take a turn soon, if the node lives."""
        if not self.is_dead:
            super().schedule(cell)


class MemoryNetwork:
    """Joins the nodes of one or more deterministic systems.

    Args:
        loop: the loop that all of them run on.
    """

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.drop: Drop | None = None
        """Called with recipient and message of all that is sent between nodes: what it says True to is lost."""
        self._systems: dict[Origin, list[MemoryNode]] = {}
        self._routes: dict[tuple[Origin, str], MemoryNode] = {}
        self._delays: dict[tuple[Node, Node], float] = {}
        self._cuts: set[tuple[Node, Node]] = set()
        self._queues: dict[tuple[Node, Node], deque[tuple[float, Callable[[], None]]]] = {}
        self._turns: dict[Origin, int] = {}

    # ------------------------------------------------------------------ nodes

    def new_address(self, system: str) -> ActorAddress:
        """The address of another system of this network."""
        return ActorAddress(system, HOST, FIRST_PORT + len(self._systems), "/")

    def add_node(
        self, address: ActorAddress, number: int, rng: random.Random, settings: CoreSettings, remote: bool
    ) -> Node:
        """One node more; number 0 is its system's root."""
        node = MemoryNode(
            self.loop,
            address.system,
            address,
            rng.getrandbits(62) + 1,
            settings=settings,
            remote=None,
            root=number == 0,
            temp=str(number) if number else "",
            rng=rng,
            turn_budget_s=None,
        )
        if remote:
            node.remote = MemoryLink(self, node)
        self._systems.setdefault(node.origin, []).append(node)
        if number:
            self._routes[node.origin, f"/temp/{number}"] = node
        node.event_stream.on_change = functools.partial(self._subscriptions_changed, node.origin)
        return node

    def _subscriptions_changed(self, origin: Origin, _table: Table) -> None:
        """Every node knows at once whom the others' subscriptions are for."""
        nodes = self._systems[origin]
        for node in nodes:
            table: dict[ActorRef, tuple[str, ...]] = {}
            for other in nodes:
                if other is not node:
                    for ref, entries in other.event_stream.table.items():
                        here = node.ref(ref.path, ref.uid, ref.origin)
                        table[here] = (*table.get(here, ()), *entries)
            node.event_stream.replace(table)

    def find(self, ref: ActorRef) -> MemoryNode | None:
        """The node where *ref* lives, or would live; None when there is no such system."""
        nodes = self._systems.get(ref.origin)
        if nodes is None:
            return None
        prefix = ref.path
        while prefix:
            found = self._routes.get((ref.origin, prefix))
            if found is not None:
                return found
            prefix = prefix.rpartition("/")[0]
        return nodes[0]

    def place(self, order: CreateOrder, origin: Origin) -> MemoryNode:
        """The node where an actor is to live: the root for local ones, the first other for shared ones, else by turns.

        Raises:
            RecipientUnreachable: there is no such system.
            ActorSystemError: no node is left for it.
        """
        nodes = self._systems.get(origin)
        if nodes is None:
            raise RecipientUnreachable(f"nothing listens at {origin.host}:{origin.port}")
        hosts = [node for node in nodes[1:] if not node.is_dead]
        if len(nodes) == 1 or Placement(order.placement) is Placement.LOCAL:
            return nodes[0]
        if not hosts:
            raise ActorSystemError(f"{origin.system} has no node left for {order.path}")
        turn = 0
        if Placement(order.placement) is not Placement.SHARED:
            turn = self._turns.get(origin, 0)
            self._turns[origin] = turn + 1
        return hosts[turn % len(hosts)]

    def route(self, ref: ActorRef, node: MemoryNode) -> None:
        """From now on what is sent to *ref*, and to all below it, goes to *node*."""
        self._routes[ref.origin, ref.path] = node

    # ------------------------------------------------------------------ what may go wrong

    def delay(self, sender: Node, recipient: Node, seconds: float) -> None:
        """From now on what goes from one node to the other takes so long; it stays in order."""
        self._delays[sender, recipient] = seconds

    def cut(self, one: Node, other: Node) -> None:
        """From now on all that goes between the two nodes is lost."""
        self._cuts |= {(one, other), (other, one)}

    def heal(self, one: Node, other: Node) -> None:
        """They are joined again."""
        self._cuts -= {(one, other), (other, one)}

    def kill(self, victim: Node) -> None:
        """End a node at once, as SIGKILL does a process, and let all others know."""
        assert isinstance(victim, MemoryNode)
        victim.is_dead = True
        if victim.root is not None:
            for other in self._systems[victim.origin]:
                other.is_dead = True
        for nodes in self._systems.values():
            for node in nodes:
                if not node.is_dead and isinstance(node.remote, MemoryLink):
                    node.remote.learn_of_deaths()

    def transmit(self, sender: MemoryNode, recipient: MemoryNode, arrive: Callable[[], None]) -> None:
        """Have *arrive* called when what *sender* sends now is at *recipient*, if it ever is."""
        if sender.is_dead or (sender, recipient) in self._cuts:
            return
        queue = self._queues.setdefault((sender, recipient), deque())
        due = self.loop.time() + self._delays.get((sender, recipient), 0.0)
        if queue:
            due = max(due, queue[-1][0])  # a delay that was shortened lets nothing overtake
        queue.append((due, arrive))
        if due > self.loop.time():
            self.loop.call_at(due, self._arrive, queue, recipient)
        else:
            self.loop.call_soon(self._arrive, queue, recipient)

    @staticmethod
    def _arrive(queue: deque[tuple[float, Callable[[], None]]], recipient: MemoryNode) -> None:
        _, arrive = queue.popleft()
        if not recipient.is_dead and not recipient.is_closed:
            arrive()


class MemoryLink:
    """The `Remote` of a node in a `MemoryNetwork`.

    Args:
        network: the network.
        node: the node.
    """

    def __init__(self, network: MemoryNetwork, node: MemoryNode) -> None:
        self._network = network
        self._node = node
        self._watched: set[ActorRef] = set()

    def send(self, ref: ActorRef, message: Any, sender: ActorRef | None) -> None:
        """Send a message."""
        payload = self._node.serializer.dumps(message)
        there = self._network.find(ref)
        if there is None or there.is_dead:
            error = RecipientUnreachable(f"the process of {ref.path} cannot be reached")
            self._node.undeliverable(ref, message, sender, error)
            return
        if there is self._node:
            self._node.deliver(ref, message, sender)
            return
        if self._network.drop is not None and self._network.drop(ref, message):
            return
        text = None if sender is None else str(sender)

        def arrive() -> None:
            who = None if text is None else ActorRef.parse(text, there)
            there.deliver_text(ref.path, ref.uid, there.serializer.loads(payload), who)

        self._network.transmit(self._node, there, arrive)

    def send_system(self, ref: ActorRef, message: SystemMessage) -> None:
        """Send a system message."""
        payload = self._node.serializer.dumps(message)
        there = self._network.find(ref)
        if there is None or there.is_dead:
            if isinstance(message, Watch):
                ended = DeathWatchNotification(ref, existence_confirmed=False, address_terminated=True)
                self._node.send_system(message.watcher, ended)
        elif there is self._node:
            self._node.deliver_system(ref, message)
        elif self._network.drop is None or not self._network.drop(ref, message):

            def arrive() -> None:
                there.deliver_system(there.ref(ref.path, ref.uid), there.serializer.loads(payload))

            self._network.transmit(self._node, there, arrive)

    def create(self, order: CreateOrder, ref: ActorRef, on_failed: Callable[[Exception], None]) -> None:
        """Have an actor made in another node."""
        payload = self._node.serializer.dumps(order)
        try:
            there = self._network.place(order, ref.origin)
        except ActorError as error:
            self._node.loop.call_soon(on_failed, error)
            return
        self._network.route(ref, there)

        def arrive() -> None:
            try:
                there.create_ordered(there.serializer.loads(payload))
            except ActorError as error:
                self._network.transmit(there, self._node, lambda error=error: on_failed(error))  # type: ignore[misc]

        self._network.transmit(self._node, there, arrive)

    def watching(self, ref: ActorRef) -> None:
        """Say it when the node of *ref* dies."""
        self._watched.add(ref)

    def unwatching(self, ref: ActorRef) -> None:
        """That is of interest no more."""
        self._watched.discard(ref)

    def closed(self) -> None:
        """The node has ended."""
        self._watched.clear()

    def learn_of_deaths(self) -> None:
        """Some node has died: those who waited for actors there are told, and actors whose parents lived there stop."""
        node = self._node
        for ref in [ref for ref in self._watched if self._is_dead(ref)]:
            node.process_ended(ref)
        for promise in node.promises.all():
            if self._is_dead(promise.recipient):
                error = RecipientUnreachable(f"the process of {promise.recipient.path} has ended")
                promise.deliver_system(AskFailed(error))
        for cell in list(node.cells.values()):
            if cell.parent._target is None and self._is_dead(cell.parent):
                cell.deliver_system(Terminate())

    def _is_dead(self, ref: ActorRef) -> bool:
        there = self._network.find(ref)
        return there is None or there.is_dead

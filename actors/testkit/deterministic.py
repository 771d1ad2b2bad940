"""An actor system in the test's own thread, under virtual time: the same code as the real system, without waiting.

`DeterministicSystem` is the system. A `MemoryNetwork` connects its nodes: it encodes and queues their messages, and
delays or loses them as the test says. Everything runs on a `VirtualLoop` (Akka's `ExplicitlyTriggeredScheduler`).
asyncio asks the selector to wait until the next timer. The selector moves the clock forward instead, or stops the loop
when the timer is due after the time that the test lets pass. It really waits for threads (`run_in_executor`).
"""

from __future__ import annotations

import asyncio
import functools
import logging
import random
import selectors
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple, Unpack

from actors.address import ActorAddress
from actors.core.node import Node
from actors.core.system_messages import AskFailed, DeathWatchNotification, SystemMessage, Terminate, Watch
from actors.errors import ActorError, ActorSystemError, AskTimeout, RecipientUnreachable
from actors.event_stream import Table
from actors.props import CreateOrder, Placement
from actors.ref import ActorRef, Origin
from actors.rpc.gateway import Ask
from actors.system_api import ActorSystemBase
from actors.system_config import CoreSettings

if TYPE_CHECKING:
    from actors.core.cell import Cell
    from actors.system_config import CoreSettings


THREADS_DEADLINE_S = 10.0
"""Real seconds for which the clock stands still while threads work."""

_START = 1000.0

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

logger = logging.getLogger(__name__)
HOST = "127.0.0.1"
FIRST_PORT = 2552
Drop = Callable[[ActorRef, Any], bool]


class _VirtualSelector(selectors.DefaultSelector):
    """Moves the clock of its loop instead of sleeping."""

    loop: VirtualLoop | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events: list[tuple[selectors.SelectorKey, int]] = super().select(0)
        if self.loop is not None and not events:
            wait = self.loop.nothing_ready(timeout)
            if wait:
                events = super().select(wait)
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop with a virtual clock, driven by `drive`. Run like any other loop, it jumps from timer to timer."""

    def __init__(self) -> None:
        selector = _VirtualSelector()
        self._virtual_time = _START
        self._until: float | None = None
        self._done: Callable[[], bool] | None = None
        self._driven = False
        self._exhausted = False
        self._jobs = 0
        self._waits_since: float | None = None
        super().__init__(selector)
        selector.loop = self

    def time(self) -> float:
        """Return the virtual time, in seconds."""
        return self._virtual_time

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Run a function in a thread, like any loop; the clock stands still while the thread works."""
        future = super().run_in_executor(executor, func, *args)
        self._jobs += 1
        future.add_done_callback(self._job_done)
        return future

    def _job_done(self, _future: Any) -> None:
        self._jobs -= 1

    def drive(self, seconds: float = 0.0, done: Callable[[], bool] | None = None) -> None:
        """Run for *seconds* of virtual time, then until nothing is ready any more; stop early when *done* is true.

        Raises:
            RuntimeError: called from within the loop.
        """
        if self.is_running():
            raise RuntimeError("the loop is running: this is for the test, not for the actors")
        self._until = self._virtual_time + seconds
        self._done = done
        self._driven = True
        self._exhausted = False
        try:
            while not self._exhausted:
                self.run_forever()
        finally:
            self._driven = False

    def nothing_ready(self, timeout: float | None) -> float:
        """Move the clock or stop the loop; return the real seconds to wait. The selector calls this.

        Args:
            timeout: virtual seconds until the next timer; None without a timer; 0 when a callback is ready.
        """
        if self._driven and self._done is not None and self._done():
            self._stop()
            return 0.0
        if timeout is not None and timeout <= 0:
            return 0.0
        if self._jobs and self._may_wait():
            return 0.05
        self._waits_since = None
        wake = None if timeout is None else self._virtual_time + timeout
        if not self._driven:
            if wake is None:
                return 0.05
            self._virtual_time = wake
        elif self._until is not None and wake is not None and wake <= self._until:
            self._virtual_time = wake
        else:
            self._virtual_time = max(self._virtual_time, self._until or 0.0)
            self._stop()
        return 0.0

    def _may_wait(self) -> bool:
        now = time.monotonic()
        if self._waits_since is None:
            self._waits_since = now
        return now - self._waits_since < THREADS_DEADLINE_S

    def _stop(self) -> None:
        self._exhausted = True
        self.stop()


class MemoryNode(Node):
    """A node that can be killed: it then does nothing more, like a process after SIGKILL."""

    is_dead = False

    def schedule(self, cell: Cell) -> None:
        """Queue the cell for a turn if the node lives."""
        if not self.is_dead:
            super().schedule(cell)


class MemoryNetwork:
    """Connects the nodes of one or more deterministic systems.

    Args:
        loop: the loop on which all of them run.
    """

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.drop: Drop | None = None
        """Called with recipient and message for each message between nodes; returns True to lose it."""
        self._systems: dict[Origin, list[MemoryNode]] = {}
        self._routes: dict[tuple[Origin, str], MemoryNode] = {}
        self._delays: dict[tuple[Node, Node], float] = {}
        self._cuts: set[tuple[Node, Node]] = set()
        self._queues: dict[tuple[Node, Node], deque[tuple[float, Callable[[], None]]]] = {}
        self._turns: dict[Origin, int] = {}

    # ------------------------------------------------------------------ nodes

    def new_address(self, system: str) -> ActorAddress:
        """Return the address for a new system of this network."""
        return ActorAddress(system, HOST, FIRST_PORT + len(self._systems), "/")

    def add_node(
        self, address: ActorAddress, number: int, rng: random.Random, settings: CoreSettings, remote: bool
    ) -> Node:
        """Add a node; number 0 is its system's root."""
        node = MemoryNode(
            self.loop,
            address.system,
            address,
            rng.getrandbits(62) + 1,
            settings=settings,
            remote=None,
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
        """Give every node the subscriptions of the other nodes at once."""
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
        """Return the node that hosts *ref*, or would host it; None when there is no such system."""
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
        """Return the node for a new actor.

        Local actors go to the root, shared ones to the first other node. All others take turns over the other nodes.

        Raises:
            RecipientUnreachable: there is no such system.
            ActorSystemError: no node is left for the actor.
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
        """Send messages to *ref*, and to all actors below it, to *node* from now on."""
        self._routes[ref.origin, ref.path] = node

    # ------------------------------------------------------------------ faults

    def delay(self, sender: Node, recipient: Node, seconds: float) -> None:
        """Delay messages from one node to the other by *seconds* from now on; they stay in order."""
        self._delays[sender, recipient] = seconds

    def cut(self, one: Node, other: Node) -> None:
        """Lose all messages between the two nodes from now on."""
        self._cuts |= {(one, other), (other, one)}

    def heal(self, one: Node, other: Node) -> None:
        """Connect the two nodes again."""
        self._cuts -= {(one, other), (other, one)}

    def kill(self, victim: Node) -> None:
        """End a node at once, as SIGKILL ends a process, and inform all other nodes."""
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
        """Call *arrive* when a message that *sender* sends now reaches *recipient*, unless it is lost."""
        if sender.is_dead or (sender, recipient) in self._cuts:
            return
        queue = self._queues.setdefault((sender, recipient), deque())
        due = self.loop.time() + self._delays.get((sender, recipient), 0.0)
        if queue:
            due = max(due, queue[-1][0])  # a shorter delay must not reorder messages
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
        """Create an actor in another node."""
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
        """Watch the node of *ref*, and call `Node.process_ended` when it dies."""
        self._watched.add(ref)

    def unwatching(self, ref: ActorRef) -> None:
        """Stop watching the node of *ref*."""
        self._watched.discard(ref)

    def closed(self) -> None:
        """Stop watching, because the node has ended."""
        self._watched.clear()

    def learn_of_deaths(self) -> None:
        """Handle the death of a node: notify watchers, fail asks to its actors, and stop children of its actors."""
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


class DrivenAsk(Ask[T]):
    """An ask made by the test; waiting for its reply drives the loop."""

    __slots__ = ()

    def result(self, timeout: float | None = None) -> T:
        """Let virtual time pass until the reply comes, at most *timeout* seconds (default: the ask's own timeout).

        Raises:
            AskTimeout: no reply came in that time.
            RuntimeError: called by an actor, which would wait for itself.
        """
        loop = self._loop
        assert isinstance(loop, VirtualLoop)
        if loop.is_running():
            raise RuntimeError("Ask.result() would block the actor's own thread; await it instead")
        if not self._future.done():
            loop.drive(self._deadline_s + 1.0 if timeout is None else timeout, self._future.done)
        if not self._future.done():
            self._future.add_done_callback(lambda future: future.cancelled() or future.exception())  # read it
            raise AskTimeout(f"no reply within {self._deadline_s if timeout is None else timeout:g} s")
        return self._future.result()


class DeterministicSystem(ActorSystemBase):
    """An actor system without processes or threads, which runs in the same order each time.

    It runs only in `advance`, in `run_until_idle`, and while the test waits for an `Ask` or a `TestProbe`.

    With one node, all placements mean this node. With more, pinned actors take turns over the other nodes, and shared
    ones run in the first of these. Messages to them are encoded and decoded as between processes. The `network` can
    lose and delay messages, and kill nodes.

    Args:
        name: the system's name.
        nodes: number of nodes.
        seed: seed of uids and jitter.
        settings: settings of the actors.
        network: the network of another system, to connect this one with it; both then share loop and time.
    """

    def __init__(
        self,
        name: str = "test",
        nodes: int = 1,
        seed: int = 0,
        settings: CoreSettings | None = None,
        network: MemoryNetwork | None = None,
    ) -> None:
        self._owns_loop = network is None
        self.network = network or MemoryNetwork(VirtualLoop())
        self.loop = self.network.loop
        address = self.network.new_address(name)
        rng = random.Random(seed)  # noqa: S311  # must be the same each time
        self.nodes: list[Node] = [
            self.network.add_node(
                address, number, rng, settings or CoreSettings(), remote=nodes > 1 or network is not None
            )
            for number in range(nodes)
        ]
        self.node = self.nodes[0]
        for node in self.nodes:
            node.ask_type = DrivenAsk
            node.system = self if node is self.node else _NodeView(node, self)
        self._terminated = False
        self.run_until_idle()

    @property
    def now(self) -> float:
        """The virtual time, in seconds."""
        return self.loop.time()

    def advance(self, seconds: float) -> None:
        """Let *seconds* of virtual time pass, and run all work that is due in them."""
        self.loop.drive(seconds)

    def run_until_idle(self) -> None:
        """Run all work that is ready, without letting time pass."""
        self.loop.drive()

    def terminate(self, timeout_s: float = 10.0) -> None:
        """Stop all actors, children first; cancel those that still run after *timeout_s* virtual seconds."""
        node = self.node
        assert node.root is not None
        if self.loop.is_running():  # an actor calls this: waiting here would block it
            node.root.terminate(timeout_s)
            return
        if self._terminated:
            return
        self._terminated = True
        node.root.terminate(timeout_s)
        self.loop.drive(timeout_s + 60.0, node.terminated.done)
        self.run_until_idle()
        error = node.terminated.exception() if node.terminated.done() else None
        if error is not None:
            logger.error("%s", error)
        for each in self.nodes:
            each.close()
        if self._owns_loop:
            self.run_until_idle()
            for task in asyncio.all_tasks(self.loop):  # tasks of killed nodes, and those that do not stop
                task.cancel()
            self.run_until_idle()
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()

    def __repr__(self) -> str:
        return f"DeterministicSystem({self.name!r})"


class _NodeView(ActorSystemBase):
    """The system as actors of a node other than the root see it."""

    def __init__(self, node: Node, whole: DeterministicSystem) -> None:
        self.node = node
        self._whole = whole

    def terminate(self, timeout_s: float = 10.0) -> None:
        self._whole.terminate(timeout_s)

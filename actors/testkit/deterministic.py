"""An actor system in the test's own thread, under virtual time: the same code as the real one, and no waiting."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TypeVar

from actors.core.node import Node
from actors.core.settings import CoreSettings
from actors.errors import ActorSystemError, AskTimeout
from actors.props import Props
from actors.ref import ActorRef
from actors.rpc.gateway import Ask
from actors.system_api import ActorSystemBase
from actors.testkit.network import MemoryNetwork
from actors.testkit.virtual_loop import VirtualLoop

logger = logging.getLogger(__name__)

T = TypeVar("T")


class DrivenAsk(Ask[T]):
    """An ask of the test's: to wait for it is to drive the loop."""

    __slots__ = ()

    def result(self, timeout: float | None = None) -> T:
        """Let virtual time pass until the reply is there, at most *timeout* seconds of it (default: the ask's own).

        Raises:
            RuntimeError: called by an actor, which would wait for itself.
        """
        if self._loop.is_running():
            raise RuntimeError("Ask.result() would block the actor's own thread; await it instead")
        if not self._future.done():
            assert isinstance(self._loop, VirtualLoop)
            self._loop.drive(self._deadline_s + 1.0 if timeout is None else timeout, self._future.done)
        if not self._future.done():
            self._future.add_done_callback(lambda future: future.cancelled() or future.exception())  # nobody waits now
            raise AskTimeout(f"no reply within {self._deadline_s if timeout is None else timeout:g} s")
        return self._future.result()


class DeterministicSystem(ActorSystemBase):
    """An actor system without processes or threads. Nothing happens but in `advance`, `run_until_idle`, and while an
    `Ask` or a `TestProbe` is waited for; then everything happens in the same order each time.

    With one node all placements mean this node. With more, pinned actors live in the others by turns and shared ones in
    the first of those; what they are sent is encoded and decoded as between processes. The `network` can lose and delay
    it, and kill nodes.

    Args:
        name: the system's name.
        nodes: how many nodes it has.
        seed: of uids and jitter.
        settings: how the actors behave.
        network: that of another system, to which this one is to be connected; then they share loop and time.
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
        rng = random.Random(seed)  # noqa: S311  # the same each time, that is the point
        self.nodes: list[Node] = [
            self.network.add_node(
                address, number, rng, settings or CoreSettings(), remote=nodes > 1 or network is not None
            )
            for number in range(nodes)
        ]
        for node in self.nodes:
            node.ask_type = DrivenAsk
            node.system = self if node is self.node else _NodeView(node, self)
        self._terminated = False
        self.run_until_idle()

    @property
    def node(self) -> Node:
        """The root node."""
        return self.nodes[0]

    @property
    def now(self) -> float:
        """The virtual time, in seconds."""
        return self.loop.time()

    def advance(self, seconds: float) -> None:
        """Let virtual time pass, and everything happen that is due within it."""
        self.loop.drive(seconds)

    def run_until_idle(self) -> None:
        """Let everything happen that needs no time."""
        self.loop.drive()

    def terminate(self, timeout_s: float = 10.0) -> None:
        """Stop all actors, children first; what does not stop within *timeout_s* virtual seconds is cancelled."""
        node = self.node
        assert node.root is not None
        if self.loop.is_running():  # by an actor: it cannot be waited for here
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
            for task in asyncio.all_tasks(self.loop):  # of killed nodes, and what does not stop
                task.cancel()
            self.run_until_idle()
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()

    def __repr__(self) -> str:
        return f"DeterministicSystem({self.name!r})"


class _NodeView(ActorSystemBase):
    """The system as the actors of a node other than the root see it."""

    def __init__(self, node: Node, whole: DeterministicSystem) -> None:
        self._node = node
        self._whole = whole

    @property
    def node(self) -> Node:
        return self._node

    def _actor_of(self, props: Props, name: str | None) -> ActorRef:
        raise ActorSystemError(
            "top-level actors are made in the system's root node; make a child with context.actor_of"
        )

    def terminate(self, timeout_s: float = 10.0) -> None:
        self._whole.terminate(timeout_s)

"""A probe: an actor whose messages a test inspects (Akka's `TestProbe`). It works with any actor system."""

from __future__ import annotations

import itertools
import queue
import time
from typing import Any, TypeVar

from actors.actor import Actor
from actors.core.cell import Cell
from actors.messages import Terminated
from actors.props import Props
from actors.ref import ActorRef
from actors.system_api import ActorSystemBase
from actors.testkit.deterministic import DeterministicSystem

M = TypeVar("M")

DEFAULT_TIMEOUT_S = 10.0
DEFAULT_SILENCE_S = 0.1

_numbers = itertools.count(1)
_Received = tuple[Any, "ActorRef | None"]


class _ProbeActor(Actor):
    """Puts its messages into a queue.

    Args:
        received: the queue.
    """

    def __init__(self, received: queue.SimpleQueue[_Received]) -> None:
        self.received = received

    def receive(self, message: Any) -> None:
        self.received.put((message, self.context.sender))


class TestProbe:
    """An actor below ``/system`` whose messages the test inspects, one after the other.

    With a `DeterministicSystem` waiting takes virtual time; with a system of processes it takes real time.

    Args:
        system: the actor system.
        name: its name; default: ``testProbe-1`` and so on.
        timeout_s: seconds that its methods wait for a message where they are given no other time.
    """

    __test__ = False  # pytest takes it for a test class by its name

    def __init__(self, system: ActorSystemBase, name: str | None = None, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self._system = system
        self._timeout_s = timeout_s
        self._received: queue.SimpleQueue[_Received] = queue.SimpleQueue()
        self._last_sender: ActorRef | None = None
        props = Props(_ProbeActor, self._received).local()
        root = system.node.root
        assert root is not None, "a probe lives in the process of the actor system"
        self.ref: ActorRef = system.on_loop(root.system.make_child, props, name or f"testProbe-{next(_numbers)}")

        assert isinstance(self.ref._target, Cell)
        self._cell = self.ref._target

    @property
    def last_sender(self) -> ActorRef:
        """Sender of the last message inspected; dead letters when it had none, or no message was inspected."""
        return self._last_sender or self._system.dead_letters

    # ------------------------------------------------------------------ looking

    def receive_one(self, timeout_s: float | None = None) -> Any:
        """Return the next message of any type.

        Raises:
            AssertionError: no message came within *timeout_s* seconds (default: the probe's).
        """
        if timeout_s is None:
            timeout_s = self._timeout_s
        received = self._next(timeout_s)
        if received is None:
            raise AssertionError(f"no message came within {timeout_s:g} s")
        message, self._last_sender = received
        return message

    def _next(self, timeout_s: float) -> _Received | None:
        if isinstance(self._system, DeterministicSystem):
            self._system.loop.drive(0.0)
            if self._received.empty():
                self._system.loop.drive(timeout_s, lambda: not self._received.empty())
            timeout_s = 0.0
        try:
            return self._received.get(timeout_s > 0, timeout_s or None)
        except queue.Empty:
            return None

    def expect_msg(self, expected: M, timeout_s: float | None = None) -> M:
        """Return the next message; assert that it equals *expected*."""
        message: M = self.receive_one(timeout_s)
        assert message == expected, f"expected {expected!r}, got {message!r}"
        return message

    def expect_msg_type(self, expected: type[M], timeout_s: float | None = None) -> M:
        """Return the next message; assert that it has that type."""
        message = self.receive_one(timeout_s)
        assert isinstance(message, expected), f"expected a {expected.__name__}, got {message!r}"
        return message

    def expect_no_msg(self, seconds: float = DEFAULT_SILENCE_S) -> None:
        """Assert that no message comes for *seconds*."""
        received = self._next(seconds)
        assert received is None, f"expected no message, got {received[0]!r}" if received else ""

    def expect_terminated(self, ref: ActorRef, timeout_s: float | None = None) -> Terminated:
        """Return the next message; assert that it is the `Terminated` of *ref*."""
        terminated = self.expect_msg_type(Terminated, timeout_s)
        assert terminated.actor == ref, f"expected the end of {ref}, got that of {terminated.actor}"
        return terminated

    def receive_n(self, number: int, timeout_s: float | None = None) -> list[Any]:
        """Return the next *number* messages; all have to come within *timeout_s* seconds (default: the probe's)."""
        deadline = self._now() + (self._timeout_s if timeout_s is None else timeout_s)
        return [self.receive_one(max(deadline - self._now(), 0.0)) for _ in range(number)]

    def _now(self) -> float:
        return self._system.now if isinstance(self._system, DeterministicSystem) else time.monotonic()

    # ------------------------------------------------------------------ acting

    def watch(self, ref: ActorRef) -> ActorRef:
        """Receive a `Terminated` when *ref* stops."""
        self._system.on_loop(self._cell.watch, ref)
        return ref

    def unwatch(self, ref: ActorRef) -> ActorRef:
        """Stop watching *ref*."""
        self._system.on_loop(self._cell.unwatch, ref)
        return ref

    def send(self, ref: ActorRef, message: Any) -> None:
        """Send *message* with the probe as its sender."""
        ref.tell(message, self.ref)

    def reply(self, message: Any) -> None:
        """Reply to the last message inspected."""
        self.last_sender.tell(message, self.ref)

    def forward(self, ref: ActorRef, message: Any) -> None:
        """Send *message* with the sender of the last message inspected as its sender."""
        ref.tell(message, self._last_sender)

    def __repr__(self) -> str:
        return f"TestProbe({self.ref})"

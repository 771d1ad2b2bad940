"""What the actor contract tests share: a world, which is a system of either kind with a placement for its actors.

Each test of the modules `test_actor_*` is one row of the contract: its docstring names whose promise it is (Akka's
classic documentation, Pykka's or Thespian's test suite, or our own) and what is promised. `ACTOR_BEHAVIOURS.md` lists
them, and what those suites promise that has no counterpart here.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from actors import ActorRef, DeadLetter, Identify, Props
from actors.testkit import DeterministicSystem, TestProbe
from tests.waiting import PATIENCE_S

T = TypeVar("T")

DEADLINE_S = PATIENCE_S
QUIET_S = 0.15
"""How long a test that expects silence listens, in seconds."""

DETERMINISTIC, NODES = "deterministic", "deterministic-nodes"
LOCAL, SHARED, PINNED = "process-local", "process-shared", "process-pinned"
EVERYWHERE = [DETERMINISTIC, NODES, LOCAL, SHARED, PINNED]

everywhere = pytest.mark.parametrize("world", EVERYWHERE, indirect=True)
on_processes = pytest.mark.parametrize("world", [SHARED], indirect=True)
on_pinned = pytest.mark.parametrize("world", [PINNED], indirect=True)
in_one_process = pytest.mark.parametrize("world", [DETERMINISTIC, LOCAL], indirect=True)

_names = itertools.count(1)


class World:
    """A system, where its top-level actors live, and what the test has made in it.

    Args:
        system: a `DeterministicSystem` or an `ActorSystem`.
        placement: "local", "shared" or "pinned".
    """

    def __init__(self, system: Any, placement: str) -> None:
        self.system = system
        self.placement = placement
        self._made: list[ActorRef] = []

    @property
    def is_deterministic(self) -> bool:
        """Whether time is virtual."""
        return isinstance(self.system, DeterministicSystem)

    def name(self, stem: str = "actor") -> str:
        """A name that no other test uses."""
        return f"{stem}-{next(_names)}"

    def placed(self, props: Props) -> Props:
        """The props with the world's placement."""
        placed: Props = getattr(props, self.placement)()
        return placed

    def spawn(self, actor: type | Props, *args: Any, name: str | None = None, **kwargs: Any) -> ActorRef:
        """A top-level actor; it is stopped when the test ends."""
        props = actor if isinstance(actor, Props) else Props(actor, *args, **kwargs)
        ref: ActorRef = self.system.actor_of(self.placed(props), name or self.name())
        self._made.append(ref)
        return ref

    def probe(self) -> TestProbe:
        """A probe of this system."""
        made = TestProbe(self.system, timeout_s=DEADLINE_S)
        self._made.append(made.ref)
        return made

    def ask(self, ref: ActorRef, message: Any, timeout_s: float = DEADLINE_S) -> Any:
        """Ask and wait."""
        return ref.ask(message, timeout_s).result()

    def watch(self, probe: TestProbe, ref: ActorRef) -> None:
        """Have a probe watch an actor; what is sent to that from now on comes after."""
        probe.watch(ref)
        self.ask(probe.ref, Identify(None))

    def letter(self, probe: TestProbe, recipient: ActorRef | None = None, message: Any = None) -> DeadLetter:
        """The next dead letter to an actor, or with a message; other tests of the system have theirs meanwhile."""
        while True:
            found = probe.expect_msg_type(DeadLetter)
            if found.recipient == recipient or (recipient is None and found.message == message):
                return found

    def no_letter(self, probe: TestProbe, recipient: ActorRef) -> None:
        """There is no dead letter to an actor for a while."""
        while True:
            try:
                letter = probe.receive_one(QUIET_S)
            except AssertionError:
                return
            assert letter.recipient != recipient, f"expected no dead letter, got {letter}"

    def wait_stopped(self, ref: ActorRef) -> None:
        """Wait until an actor that was told to stop has stopped."""
        watcher = self.probe()
        watcher.watch(ref)
        watcher.expect_terminated(ref)

    def stop(self, ref: ActorRef) -> None:
        """Stop an actor and wait for it."""
        self.system.stop(ref)
        self.wait_stopped(ref)

    def until(self, value: Callable[[], T], accept: Callable[[T], bool], what: str) -> T:
        """Repeat a question until its answer is accepted; the deadline is in the system's own time."""
        deadline = time.monotonic() + DEADLINE_S
        for _ in range(100_000):
            answer = value()
            if accept(answer):
                return answer
            if time.monotonic() > deadline:
                break
            self.pass_time(0.01)
        raise AssertionError(f"{what} did not come about; the last answer was {answer!r}")

    def pass_time(self, seconds: float) -> None:
        """Let time pass: virtual time where there is such a thing."""
        if self.is_deterministic:
            self.system.advance(seconds)
        else:
            time.sleep(seconds)

    def close(self) -> None:
        """Stop what the test has made."""
        for ref in reversed(self._made):
            self.system.stop(ref)

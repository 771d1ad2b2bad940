"""Actors and helpers that the tests of the process system share, and a second system in a process of its own.

Run as a module, this file is that second system: its arguments are name, port and secret file; it prints its address
and the pids of its hosts, and ends when its input does.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import psutil

from actors import (
    Actor,
    ActorError,
    ActorRef,
    ActorSystem,
    OneForOneStrategy,
    Props,
    RecipientUnreachable,
    SystemConfig,
    Terminated,
    message,
)
from actors.supervision import Directive, SupervisorStrategy
from tests.processes import lives
from tests.waiting import LONGER_THAN_PATIENCE_S, PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
MODULE = "tests.integration.actors_kit"
DEADLINE_S = PATIENCE_S
PAUSE_S = 10.0
"""How long a process may stand still before it is held for dead, in seconds: long enough for a busy machine."""
QUICK = SystemConfig(
    heartbeat_interval_s=0.1,
    heartbeat_threshold=8.0,
    heartbeat_acceptable_pause_s=PAUSE_S,
    ask_timeout_s=PATIENCE_S,
)
"""For a test in which something stands still."""
PATIENT = SystemConfig(heartbeat_acceptable_pause_s=LONGER_THAN_PATIENCE_S, ask_timeout_s=PATIENCE_S)
"""For all other tests: nothing is held for dead because the machine is busy."""

T = TypeVar("T")


@message
class Work:
    """A message with something in it."""

    number: int
    text: str = ""


@message
class Make:
    """Make a child: its class by import path, where, and its name."""

    placement: str
    name: str
    class_path: str = f"{MODULE}:Echo"


@message
class Tell:
    """Tell somebody something."""

    recipient: ActorRef
    what: Any


@message
class WatchThis:
    """Watch an actor."""

    ref: ActorRef


class Echo(Actor):
    """Answers what it is asked, and does some tricks."""

    def receive(self, message: Any) -> None:
        match message:
            case "pid":
                self.reply(os.getpid())
            case "self":
                self.reply(self.self_ref)
            case "sender":
                self.reply(self.sender)
            case "die":
                os._exit(3)
            case "stop":
                self.context.stop(self.self_ref)
            case "fail":
                raise ValueError("as ordered")
            case "forget":
                pass
            case ("compute", seconds):
                ends = time.monotonic() + seconds
                while time.monotonic() < ends:
                    pass
                self.reply("computed")
            case Tell(recipient, what):
                recipient.tell(what)
            case _:
                self.reply(message)


class Collector(Actor):
    """Keeps what it is sent; answers "got" with it."""

    def __init__(self) -> None:
        self.got: list[Any] = []

    def receive(self, message: Any) -> None:
        if message == "got":
            self.reply(self.got)
        elif message == "count":
            self.reply(len(self.got))
        else:
            self.got.append(message)


class Forwarder(Actor):
    """Passes everything on."""

    def __init__(self, to: ActorRef) -> None:
        self.to = to

    def receive(self, message: Any) -> None:
        self.to.forward(message)


class Parent(Actor):
    """Makes children, watches on order, and tells of what it sees."""

    def __init__(self, observer: ActorRef | None = None, directive: str = "restart", max_retries: int = 10) -> None:
        self.observer = observer
        self.directive = Directive[directive.upper()]
        self.max_retries = max_retries

    @property
    def supervisor_strategy(self) -> SupervisorStrategy:  # type: ignore[override]
        def decide(error: BaseException) -> Directive:
            self.observe(("failed", type(error).__name__, str(error)))
            return self.directive

        return OneForOneStrategy(decide, max_retries=self.max_retries)

    def observe(self, what: Any) -> None:
        if self.observer is not None:
            self.observer.tell(what)

    def receive(self, message: Any) -> None:
        match message:
            case Make(placement, name, class_path):
                props: Props = getattr(Props(class_path), placement)()
                self.reply(self.context.actor_of(props, name))
            case "children":
                self.reply(self.context.children)
            case "pid":
                self.reply(os.getpid())
            case ("child", str(name)):
                self.reply(self.context.child(name))
            case ("stop", str(name)):
                child = self.context.child(name)
                if child is not None:
                    self.context.stop(child)
            case WatchThis(ref):
                self.context.watch(ref)
                self.reply("watching")
            case Terminated():  # not as it is: the runtime drops those of actors that the recipient does not watch
                self.observe(("terminated", message.actor, message.address_terminated))
            case "die":
                os._exit(3)
            case _:
                self.reply(message)


class Deployer(Echo):
    """Deploys a child to the system that it is told."""

    def receive(self, message: Any) -> None:
        address, name = message
        self.reply(self.context.actor_of(Props(Echo).deploy(address), name))


class Loud(Echo):
    """Tells of every step of its life."""

    def __init__(self, observer: ActorRef) -> None:
        self.observer = observer
        observer.tell(("made", os.getpid()))

    def post_stop(self) -> None:
        self.observer.tell("post_stop")

    def pre_restart(self, reason: BaseException, message: Any) -> None:
        self.observer.tell(("pre_restart", str(reason)))

    def post_restart(self, reason: BaseException) -> None:
        self.observer.tell(("post_restart", str(reason)))


def until(ask: Callable[[], T], accept: Callable[[T], Any] = bool, what: str = "what was waited for") -> T:
    """Ask until the answer is accepted; at the deadline the last one is an error."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        answer = ask()
        if accept(answer):
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come about; the last answer was {answer!r}")
        time.sleep(0.01)


def await_count(collector: ActorRef, count: int) -> None:
    """Wait until a `Collector` has got so many messages."""
    until(lambda: collector.ask("count").result(), lambda got: got == count, f"{count} messages")


def await_gone(ref: ActorRef) -> None:
    """Wait until an actor is known to have stopped."""

    def is_gone() -> bool:
        try:
            ref.ask("x", 1.0).result()
        except RecipientUnreachable:
            return True
        except ActorError:
            pass
        return False

    until(is_gone, what=f"the end of {ref}")


def find(system: ActorSystem, path: str) -> ActorRef | None:
    """Whoever lives at *path*."""
    with contextlib.suppress(ActorError):
        return system.actor_selection(path).resolve_one(1.0).result()
    return None


def await_actor(system: ActorSystem, path: str, other_than: ActorRef | None = None) -> ActorRef:
    """Wait until somebody (else) lives at *path*."""
    found = until(lambda: find(system, path), lambda ref: ref is not None and ref != other_than, f"an actor at {path}")
    assert found is not None
    return found


def descendants(pid: int) -> list[int]:
    """All processes below one."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return [process.pid for process in psutil.Process(pid).children(recursive=True)]
    return []


class OtherSystem:
    """A system in a process of its own, with actors /user/echo (pinned), /user/parent (local) and /user/shared."""

    def __init__(self, secret_file: Path, name: str = "other", port: int = 0) -> None:
        self._errors = secret_file.with_name(f"{name}-{time.monotonic_ns()}.err")
        with self._errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", MODULE, name, str(port), str(secret_file)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=ROOT,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"the other system did not start: {self.errors()}")
        told = json.loads(line)
        self.address: str = told["address"]
        self.port: int = told["port"]
        self.hosts: dict[str, int] = told["hosts"]

    @property
    def pids(self) -> list[int]:
        """All of its processes."""
        return [self.process.pid, *descendants(self.process.pid)]

    def errors(self) -> str:
        """What it has logged."""
        return self._errors.read_text()

    def kill(self) -> None:
        """SIGKILL its root process; the others follow."""
        pids = self.pids
        self.process.kill()
        self.process.wait(DEADLINE_S)
        until(lambda: not any(map(lives, pids)), what="the end of all its processes")

    def close(self) -> None:
        """End it in order."""
        if self.process.poll() is None:
            assert self.process.stdin is not None
            self.process.stdin.close()
            try:
                self.process.wait(DEADLINE_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(DEADLINE_S)


@contextlib.contextmanager
def other_system(secret_file: Path, name: str = "other", port: int = 0) -> Iterator[OtherSystem]:
    """A second system for the length of a test."""
    other = OtherSystem(secret_file, name, port)
    try:
        yield other
    finally:
        other.close()


def _serve(name: str, port: int, secret_file: str) -> None:
    logging.basicConfig(level="INFO", stream=sys.stderr)
    with ActorSystem(name, port=port, secret_file=secret_file, config=PATIENT) as system:
        pinned = system.actor_of(Props(Echo), "echo")
        shared = system.actor_of(Props(Echo).shared(), "shared")
        system.actor_of(Props(Parent).local(), "parent")
        for ref in (pinned, shared):
            ref.ask("pid").result()
        hosts = {"echo": pinned.ask("pid").result(), "shared": shared.ask("pid").result()}
        address = str(system.address).removesuffix("/user")
        sys.stdout.write(json.dumps({"address": address, "port": system.address.port, "hosts": hosts}) + "\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    # The classes by the name that other processes know them by, not those of __main__.
    from tests.integration import actors_kit

    actors_kit._serve(sys.argv[1], int(sys.argv[2]), sys.argv[3])

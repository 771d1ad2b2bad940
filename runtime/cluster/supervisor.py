"""Keeps the processes of a cluster running: each is a child actor, whose failure is the end of its process.

The decisions are those of every supervisor of actors: a `SupervisorStrategy` with a back-off. The end of a process is
seen by pidfd.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from actors import Actor, ActorProcessDied, ActorRef, Backoff, Directive, OneForOneStrategy, Props, message
from actors.address import ActorAddress
from actors.core.node import Guardian, Node
from runtime.environment.context import wait_for_process, wait_readable

logger = logging.getLogger(__name__)

COMPONENTS = OneForOneStrategy(
    decider={Exception: Directive.RESTART}, backoff=Backoff(0.1, 10.0, jitter=0.0, reset_after_s=30.0)
)
"""A cluster's own components are always wanted back.

The pause before a restart doubles from 0.1 s to 10 s while a child keeps dying, and is short again once it has run for
30 s.
"""

STOP_LIMIT_S = 3600.0


@dataclass(frozen=True, slots=True)
class Running:
    """A started process: its number, its address if it has one, and whatever stopping it needs."""

    pid: int
    address: str = ""
    handle: Any = None


@dataclass(slots=True)
class Child:
    """A process that is to be running.

    Args:
        name: unique among the children.
        role: what it is, for listings.
        start: starts it.
        stop: stops it in good order and returns when it has ended.
        is_kept: whether it is started again when it has ended; otherwise it is a child no more then.
        running: the present process, or None while there is none.
        restarts: how often it was started again.
        ref: its actor.
        first: its first start.
        is_detached: whether its process is to run on when its actor stops.
    """

    name: str
    role: str
    start: Callable[[], Awaitable[Running]]
    stop: Callable[[Running], Awaitable[None]]
    is_kept: bool = True
    running: Running | None = None
    restarts: int = 0
    ref: ActorRef | None = field(default=None, repr=False)
    first: asyncio.Future[Running] | None = field(default=None, repr=False)
    is_detached: bool = False


class ChildRemoved(Exception):
    """A child was removed while it was being started; what was started has been stopped."""


@message
class Ended:
    """A process has ended, or could not be started.

    Args:
        what: what has happened, for the log.
        pid: its process; 0 for one that was not started.
    """

    what: str
    pid: int = 0


class ComponentProcess(Actor):
    """The process of a child: it starts with this actor, and this actor fails with it.

    Args:
        child: what is to be running.
        on_exit: see `Supervisor`.
    """

    def __init__(self, child: Child, on_exit: Callable[[Child, int], None]) -> None:
        self._child = child
        self._on_exit = on_exit
        self._watch: asyncio.Task[None] | None = None

    async def pre_start(self) -> None:
        first = self._child.first
        assert first is not None
        try:
            running = await self._start()
        except Exception as error:  # the caller of `Supervisor.add` knows what to do about it
            if not first.done():
                first.set_exception(error)
            self.context.stop(self.self_ref)
        else:
            if not first.done():
                first.set_result(running)

    def pre_restart(self, reason: BaseException, message: Any) -> None:
        """Do nothing: the process has ended already."""

    async def post_restart(self, reason: BaseException) -> None:
        self._child.restarts += 1
        try:
            running = await self._start()
        except Exception as error:  # whatever hinders the start, it is tried again: there is nobody else to do it
            self.self_ref.tell(Ended(f"could not be started again: {error}"))
        else:
            logger.info("%s runs again as process %d", self._child.name, running.pid)

    async def post_stop(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        running, self._child.running = self._child.running, None
        if running is not None and not self._child.is_detached:
            await self._child.stop(running)

    async def _start(self) -> Running:
        self._child.running = running = await self._child.start()
        self._watch = asyncio.get_running_loop().create_task(self._await_end(running.pid))
        return running

    async def _await_end(self, pid: int) -> None:
        await wait_for_exit(pid)
        self.self_ref.tell(Ended(f"(process {pid}) has ended", pid), None)

    def receive(self, message: Any) -> None:  # the decorator is used above alone
        child = self._child
        if not isinstance(message, Ended):
            return self.unhandled(message)
        if message.pid:
            child.running = None
            self._on_exit(child, message.pid)
        if not child.is_kept:
            return self.context.stop(self.self_ref)
        raise ActorProcessDied(f"{child.name} {message.what}")


class Supervisor:
    """The processes that an actor supervises by the strategy `COMPONENTS`.

    Args:
        on_exit: called with the child and the pid of its process whenever one has ended unasked.
        node: where that actor lives.
        parent: its path.
    """

    def __init__(self, on_exit: Callable[[Child, int], None], node: Node, parent: str) -> None:
        self.children: dict[str, Child] = {}
        self._told = on_exit
        self._node = node
        self._parent = parent
        self._numbers = itertools.count(1)

    def _on_exit(self, child: Child, pid: int) -> None:
        if self.children.get(child.name) is child:
            if not child.is_kept:
                del self.children[child.name]
            self._told(child, pid)

    async def add(self, child: Child) -> Running:
        """Start a child and watch it from then on; the error of a failing first start is the caller's.

        A caller that is cancelled leaves the start to itself: the child is one until `remove`.

        Raises:
            ChildRemoved: `remove` was called meanwhile.
        """
        self.children[child.name] = child
        child.first = self._node.loop.create_future()
        child.is_detached = False
        recipe = Props(ComponentProcess, child, self._on_exit).local()
        # An actor of the same name may have a last step to take.
        child.ref = self._node.cells[self._parent].make_child(recipe, f"{child.name}~{next(self._numbers)}")
        try:
            running = await asyncio.shield(child.first)
        except Exception:
            if self.children.get(child.name) is child:
                del self.children[child.name]
            raise
        if self.children.get(child.name) is not child:
            raise ChildRemoved(child.name)
        return running

    async def remove(self, name: str) -> None:
        """Stop a child and watch it no longer; no error when there is none of that name.

        A start of it that is under way is waited for: its process is stopped too.
        """
        child = self.children.pop(name, None)
        if child is not None:
            await self._stop(child)

    async def detach(self, name: str) -> None:
        """Watch a child no longer, and leave it running; no error when there is none of that name."""
        child = self.children.get(name)
        if child is not None:
            child.is_detached = True
            await self._stop(child)
            self.children.pop(name, None)

    async def _stop(self, child: Child) -> None:
        parent = self._node.cells.get(self._parent)
        if parent is None or child.ref is None:
            return
        parent.stop(child.ref)
        await self._node.graceful_stop(child.ref, STOP_LIMIT_S)


def own_supervisor(on_exit: Callable[[Child, int], None]) -> Supervisor:
    """A supervisor for a process that has no actors but those of its children; to be called on its loop."""
    node = Node(asyncio.get_running_loop(), "understudy", ActorAddress("understudy", "127.0.0.1", 0, "/"), 1)
    assert node.root is not None
    node.root.user.make_child(Props(Guardian, COMPONENTS).local(), "components")
    return Supervisor(on_exit, node, "/user/components")


async def wait_for_exit(pid: int) -> None:
    """Wait until a process has ended; it is reaped if it is a child of this one."""
    await wait_for_process(pid)
    reap(pid)


def reap(pid: int) -> None:
    """Collect the exit status of a child that has ended, so that it does not stay as a zombie."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return  # not a child of ours, or collected already


async def terminate(pid: int, deadline_s: float) -> None:
    """Send SIGTERM, wait, and after *deadline_s* seconds SIGKILL; returns when the process has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except (ProcessLookupError, FileNotFoundError):  # newer kernels say the latter while it is reaped
        return
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGTERM)
        try:
            await asyncio.wait_for(wait_readable(descriptor), deadline_s)
        except TimeoutError:
            logger.warning("process %d did not end within %g s after SIGTERM: killed", pid, deadline_s)
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            await wait_readable(descriptor)
    except ProcessLookupError:
        pass  # it ended between the two
    finally:
        os.close(descriptor)
    reap(pid)

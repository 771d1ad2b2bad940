"""Keeps the processes of a cluster running, including workers, and takes over those that a killed master has left.

Each process is a child actor, which fails when its process ends (a pidfd shows this). A `SupervisorStrategy` with a
back-off then decides, as for all actors.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from actors import Actor, ActorProcessDied, ActorRef, Backoff, Directive, OneForOneStrategy, Props, message
from actors.address import ActorAddress
from actors.core.node import Guardian, Node
from runtime.environment.claims import Claim
from runtime.environment.context import ComponentContext, wait_for_process, wait_readable
from runtime.environment.descriptor import ProcessRecord
from runtime.protocol.master import WorkerProcess
from runtime.taskexecutor.worker_files import Successor

logger = logging.getLogger(__name__)

COMPONENTS = OneForOneStrategy(
    decider={Exception: Directive.RESTART}, backoff=Backoff(0.1, 10.0, jitter=0.0, reset_after_s=30.0)
)
"""Strategy that always restarts.

The pause doubles from 0.1 s to 10 s while a child keeps dying. It is short again once the child has run for 30 s."""

STOP_LIMIT_S = 3600.0
PROCESS_STOP_S = 20.0
WORKER_PREFIX = "taskmanager-"
GATE_VARIABLE = "UNDERSTUDY_GATE"
"""Environment variable with the descriptor on which a started process waits in `await_gate`."""


@dataclass(frozen=True, slots=True)
class Running:
    """A started process: its process id, its address if it has one, and what is needed to stop it."""

    pid: int
    address: str = ""
    handle: Any = None


@dataclass(slots=True)
class Child:
    """A process to keep running.

    Args:
        name: unique among the children.
        role: of the process, for listings.
        start: starts it.
        stop: stops it in good order, and returns once it has ended.
        is_kept: whether it is restarted when it has ended; otherwise it is removed then.
        running: the present process, or None while there is none.
        restarts: number of restarts.
        ref: its actor.
        first: its first start.
        is_detached: whether its process keeps running when its actor stops.
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
    """A child was removed during its start; the started process has been stopped."""


@message
class Ended:
    """A process has ended, or could not be started.

    Args:
        what: the event, for the log.
        pid: of the process; 0 if it could not be started.
    """

    what: str
    pid: int = 0


class ComponentProcess(Actor):
    """The actor of a child's process: starts it, and fails when it ends.

    Args:
        child: the process to keep running.
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
        except Exception as error:  # for the caller of `Supervisor.add`
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
        except Exception as error:  # any error: no other actor would try again
            self.self_ref.tell(Ended(f"could not be restarted: {error}"))
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

    def receive(self, message: Any) -> None:  # `message` hides the decorator here
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
        on_exit: called with the child and the pid of its process when that has ended by itself.
        node: node of the supervising actor.
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
        """Start a child and keep it running; raise the error of a first start that fails.

        If the caller is cancelled, the start continues, and the child stays until `remove`.

        Raises:
            ChildRemoved: `remove` was called during the start.
        """
        self.children[child.name] = child
        child.first = self._node.loop.create_future()
        child.is_detached = False
        recipe = Props(ComponentProcess, child, self._on_exit).local()
        # An earlier actor of this child may still be stopping, so each gets a name of its own.
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
        """Stop a child and forget it; no error if there is none of that name.

        Waits for a start that is under way, and stops that process too.
        """
        child = self.children.pop(name, None)
        if child is not None:
            await self._stop(child)

    async def detach(self, name: str) -> None:
        """Forget a child and leave its process running; no error if there is none of that name."""
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
    """Return a supervisor for a process without other actors; call it on the process's event loop."""
    node = Node(asyncio.get_running_loop(), "understudy", ActorAddress("understudy", "127.0.0.1", 0, "/"), 1)
    assert node.root is not None
    node.root.user.make_child(Props(Guardian, COMPONENTS).local(), "components")
    return Supervisor(on_exit, node, "/user/components")


async def wait_for_exit(pid: int) -> None:
    """Wait until a process has ended; reap it if it is a child of this one."""
    await wait_for_process(pid)
    reap(pid)


def reap(pid: int) -> None:
    """Collect the exit status of a child that has ended, so that it does not stay as a zombie."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return  # not a child of ours, or collected already


async def terminate(pid: int, deadline_s: float) -> None:
    """Send SIGTERM, and after *deadline_s* seconds SIGKILL; return once the process has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except (ProcessLookupError, FileNotFoundError):  # newer kernels raise the latter while it is reaped
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


# --------------------------------------------------------- processes, workers


def start_process(
    context: ComponentContext,
    name: str,
    module: str,
    arguments: Sequence[str],
    note: Callable[[int], None] = lambda pid: None,
) -> subprocess.Popen[bytes]:
    """Start a process that waits until it is noted; the fork takes some milliseconds. Raises OSError.

    If this process is killed before the note is written, the started one ends before it does anything. Otherwise the
    next master could not find it.

    Args:
        context: the surroundings of the components; its arguments come first.
        name: of the file in the log directory that the process writes to.
        module: the module that it runs.
        arguments: after those of the context.
        note: writes the pid of the process.
    """
    path = context.directory.log / f"{name}.out"
    command = [sys.executable, "-P", "-m", module, *map(str, context.arguments().values()), *arguments]
    waiting, letting_go = os.pipe()
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as output:  # noqa: PTH123
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(waiting,),
                env={**os.environ, GATE_VARIABLE: str(waiting)},
            )
        note(process.pid)
        os.write(letting_go, b"\n")
    finally:
        os.close(waiting)
        os.close(letting_go)
    return process


def become(environment: Successor, module: str, arguments: Sequence[str]) -> NoReturn:
    """Continue as a program of another environment: the same process, with the same children. Raises OSError."""
    for handler in logging.getLogger().handlers:
        handler.flush()
    os.execve(  # noqa: S606  # this process's own program
        environment.python,
        [environment.python, "-P", "-m", module, *arguments],
        {**os.environ, "PYTHONPATH": environment.path},
    )


def await_gate() -> None:
    """Wait until the parent has noted this process; end it if the parent died before that."""
    gate = os.environ.pop(GATE_VARIABLE, None)
    if gate is not None:
        noted = os.read(int(gate), 1)
        os.close(int(gate))
        if not noted:
            sys.exit(1)


def process_child(
    context: ComponentContext,
    name: str,
    role: str,
    module: str,
    arguments: Sequence[str],
    claim: Claim | None = None,
    *,
    is_kept: bool = True,
) -> Child:
    """Return a child that is a process of its own.

    Args:
        context: the surroundings of the components; its arguments come first.
        name: of the child, and of the file in the log directory that it writes to.
        role: of the process, for listings.
        module: the module that it runs.
        arguments: after those of the context.
        claim: names the process for the next master, and is held; the process of a killed master is taken over. None:
            the process belongs to this one only.
        is_kept: whether it is restarted when it has ended.
    """

    async def start() -> Running:
        living = None if claim is None else claim.living()
        if living is not None:
            logger.info("%s already runs as process %d", name, living[0].pid)
            return Running(living[0].pid)

        def note(pid: int) -> None:
            if claim is not None:
                claim.note(ProcessRecord.of(name, pid))

        process = start_process(context, name, module, arguments, note)
        return Running(process.pid, "", process)

    async def stop(running: Running) -> None:
        await terminate(running.pid, PROCESS_STOP_S)

    return Child(name, role, start, stop, is_kept=is_kept)


def worker_child(context: ComponentContext, index: int, claim: Claim, *, is_kept: bool = True) -> Child:
    """Return a worker as a child: found running by its claim, which is held, or started now."""
    name = f"{WORKER_PREFIX}{index}"
    return process_child(context, name, "worker", "runtime.cluster.worker", (str(index),), claim, is_kept=is_kept)


class OnDemandWorkers:
    """The workers that a ResourceManager requests; it decides whether an ended one is started again.

    Args:
        context: the surroundings of the components.
        supervisor: of the master.
    """

    def __init__(self, context: ComponentContext, supervisor: Supervisor) -> None:
        self._context = context
        self._supervisor = supervisor
        self._claims: dict[str, Claim] = {}

    def _claim(self, index: int) -> Claim:
        name = f"{WORKER_PREFIX}{index}"
        if name not in self._claims:
            self._claims[name] = self._context.directory.claim(name)
        return self._claims[name]

    async def start(self) -> WorkerProcess:
        """Start a worker with the lowest free number. Raises OSError."""
        index = 0
        while self._claim(index).held or not self._claim(index).try_acquire() or await self._adopted(index):
            index += 1
        return await self._supervise(index)

    async def _supervise(self, index: int) -> WorkerProcess:
        child = worker_child(self._context, index, self._claim(index), is_kept=False)
        try:
            running = await self._supervisor.add(child)
        except BaseException:
            self.ended(child.name)
            raise
        return WorkerProcess(child.name, running.pid)

    async def _adopted(self, index: int) -> bool:
        """Supervise the worker with that number, whose claim is held, if it runs; return whether it does."""
        if self._claim(index).living() is None:
            return False
        await self._supervise(index)
        return True

    async def list(self) -> list[WorkerProcess]:
        """Return the running workers; adopt those whose master has ended."""
        for path in self._context.directory.claims.glob(f"{WORKER_PREFIX}*"):
            claim = self._claim(int(path.name.removeprefix(WORKER_PREFIX)))
            if not claim.held and claim.living() is not None and claim.try_acquire():
                await self._adopt_or_release(path.name)
        children = [self._supervisor.children.get(name) for name in self._claims]
        return [
            WorkerProcess(child.name, child.running.pid) for child in children if child is not None and child.running
        ]

    async def _adopt_or_release(self, name: str) -> None:
        if not await self._adopted(int(name.removeprefix(WORKER_PREFIX))):
            self.ended(name)

    async def stop(self, name: str) -> bool:
        """Stop a worker; return whether it has ended, which is not known for a worker of another master."""
        await self.list()
        if name not in self._claims or not self._claims[name].held:
            return name in self._claims and self._claims[name].living() is None
        await self._supervisor.remove(name)
        self.ended(name)
        return True

    def let_go(self) -> None:
        """Leave the running workers to another master."""
        for claim in self._claims.values():
            claim.release()

    def ended(self, name: str) -> None:
        """Free a worker's number; no error for a process that is not one of these workers."""
        claim = self._claims.get(name)
        if claim is not None:
            claim.forget()

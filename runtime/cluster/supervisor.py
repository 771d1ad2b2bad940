"""Keeps the processes of a cluster running: starts them, sees them end by pidfd, starts them again."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from runtime.environment.context import wait_for_process, wait_readable

logger = logging.getLogger(__name__)

FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 10.0
STEADY_AFTER_S = 30.0


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
        starting: the start that is under way. Nothing interrupts it: what it starts would be known to nobody.
    """

    name: str
    role: str
    start: Callable[[], Awaitable[Running]]
    stop: Callable[[Running], Awaitable[None]]
    is_kept: bool = True
    running: Running | None = None
    restarts: int = 0
    delay_s: float = FIRST_DELAY_S
    task: asyncio.Task[None] | None = field(default=None, repr=False)
    starting: asyncio.Task[Running] | None = field(default=None, repr=False)


class ChildRemoved(Exception):
    """A child was removed while it was being started; what was started has been stopped."""


class Supervisor:
    """One-for-one supervision without a limit: a cluster's own components are always wanted back.

    The pause before a restart doubles from 0.1 s to 10 s while a child keeps dying, and is short again once it has run
    for 30 s.

    Args:
        on_exit: called with the child and the pid of its process whenever one has ended unasked.
    """

    def __init__(self, on_exit: Callable[[Child, int], None]) -> None:
        self.children: dict[str, Child] = {}
        self._on_exit = on_exit

    async def add(self, child: Child) -> Running:
        """Start a child and watch it from then on; the error of a failing first start is the caller's.

        A caller that is cancelled leaves the start to itself: the child is one until `remove`.

        Raises:
            ChildRemoved: `remove` was called meanwhile.
        """
        self.children[child.name] = child
        try:
            running = await self._start(child)
        except Exception:
            if self.children.get(child.name) is child:
                del self.children[child.name]
            raise
        child.task = asyncio.get_running_loop().create_task(self._watch(child), name=f"watch {child.name}")
        return running

    async def _start(self, child: Child) -> Running:
        child.starting = asyncio.ensure_future(child.start())
        running = await asyncio.shield(child.starting)
        if self.children.get(child.name) is not child:
            raise ChildRemoved(child.name)
        child.running, child.starting = running, None
        return running

    async def remove(self, name: str) -> None:
        """Stop a child and watch it no longer; no error when there is none of that name.

        A start of it that is under way is waited for: its process is stopped too.
        """
        child = self.children.pop(name, None)
        if child is None:
            return
        if child.task is not None:
            child.task.cancel()
            await asyncio.gather(child.task, return_exceptions=True)
        if child.starting is not None:
            (started,) = await asyncio.gather(child.starting, return_exceptions=True)
            child.running, child.starting = started if isinstance(started, Running) else None, None
        if child.running is not None:
            await child.stop(child.running)
            child.running = None

    async def detach(self, name: str) -> None:
        """Watch a child no longer, and leave it running; no error when there is none of that name."""
        child = self.children.get(name)
        if child is None:
            return
        if child.task is not None:
            child.task.cancel()
        await asyncio.gather(*(task for task in (child.task, child.starting) if task), return_exceptions=True)
        self.children.pop(name, None)

    async def _watch(self, child: Child) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if child.running is not None:
                started, pid = loop.time(), child.running.pid
                await wait_for_exit(pid)
                child.running = None
                if not child.is_kept:
                    self.children.pop(child.name, None)
                self._on_exit(child, pid)
                if not child.is_kept:
                    return
                if loop.time() - started > STEADY_AFTER_S:
                    child.delay_s = FIRST_DELAY_S
                logger.error("%s (process %d) has ended; it is started again in %g s", child.name, pid, child.delay_s)
            await asyncio.sleep(child.delay_s)
            child.delay_s = min(2 * child.delay_s, LONGEST_DELAY_S)
            child.restarts += 1
            try:
                running = await self._start(child)
            except Exception as error:  # whatever hinders the start, it is tried again: there is nobody else to do it
                logger.error("%s could not be started again: %s; next try in %g s", child.name, error, child.delay_s)
            else:
                logger.info("%s runs again as process %d", child.name, running.pid)


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

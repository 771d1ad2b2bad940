"""The host processes of an actor system: started and ended through Thespian, seen to end by the kernel's word."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from actors.address import ActorAddress
from actors.errors import ActorError, ActorSystemError
from actors.process.host import HostSpec
from actors.process.system import HostedActor, ProcessActorSystem

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Host:
    """A host process.

    Args:
        name: its name, as processes' listings show it.
        uid: uid of its node.
        shared: whether many actors share it, or one has it alone.
        hosted: the process, None while it starts.
    """

    name: str
    uid: int
    shared: bool
    hosted: HostedActor | None = None
    pidfd: int | None = field(default=None, repr=False)
    ending: bool = False
    killed_because: str = ""

    @property
    def address(self) -> ActorAddress:
        """Where its node gateway is reached."""
        if self.hosted is None:
            raise ActorSystemError(f"{self.name} has not started yet")
        return self.hosted.address


class _Worker:
    """One thread for calls that block. Not an executor: those take no work any more while the interpreter exits."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="actors-hosts", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call *function* in the thread, after all that was ordered before."""
        future: asyncio.Future[T] = self._loop.create_future()

        def settle(result: Any, error: Exception | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        def call() -> None:
            try:
                result = function(*arguments)
            except Exception as error:  # the caller's to know, whatever it is
                self._loop.call_soon_threadsafe(settle, None, error)
            else:
                self._loop.call_soon_threadsafe(settle, result, None)

        self._calls.put(call)
        return await future

    def close(self) -> None:
        """End the thread after what was ordered."""
        self._calls.put(None)
        self._thread.join()


class Hosts:
    """Starts host processes, one after the other, in a thread of its own, and tells when one has ended.

    Args:
        loop: the root node's loop.
        processes: starts and stops them.
        on_exit: called on the loop with the host and why it ended.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        processes: ProcessActorSystem,
        on_exit: Callable[[Host, str], None],
    ) -> None:
        self._loop = loop
        self._processes = processes
        self._on_exit = on_exit
        # Thespian's own calls block, and are to come from one thread at a time.
        self._worker = _Worker(loop)
        self._hosts: dict[int, Host] = {}

    def __iter__(self) -> Iterator[Host]:
        return iter(list(self._hosts.values()))

    def get(self, uid: int) -> Host | None:
        """The running host with this uid."""
        return self._hosts.get(uid)

    async def start(self, host: Host, spec: HostSpec) -> None:
        """Start a host process.

        Raises:
            ActorSystemError: it does not start.
        """
        hosted = await self._worker.run(self._processes.start, spec)
        host.hosted = hosted
        try:
            host.pidfd = os.pidfd_open(hosted.pid)
        except (ProcessLookupError, FileNotFoundError):  # newer kernels say the latter while it is reaped
            raise ActorSystemError(f"{host.name} (process {hosted.pid}) ended right after its start") from None
        self._hosts[host.uid] = host
        self._loop.add_reader(host.pidfd, self._exited, host)

    def _exited(self, host: Host) -> None:
        if host.pidfd is None:
            return
        self._loop.remove_reader(host.pidfd)
        os.close(host.pidfd)
        host.pidfd = None
        del self._hosts[host.uid]
        pid = 0 if host.hosted is None else host.hosted.pid
        if host.ending:
            reason = f"process {pid} was stopped"
        elif host.killed_because:
            reason = f"process {pid} was killed: {host.killed_because}"
        else:
            reason = f"process {pid} ended"
            logger.warning("the actor host %s (process %d) has ended unexpectedly", host.name, pid)
        self._on_exit(host, reason)

    def kill(self, host: Host, reason: str) -> None:
        """End a host by force: what was declared dead must not go on."""
        if host.pidfd is not None and host.hosted is not None:
            logger.error("the actor host %s (process %d) is killed: %s", host.name, host.hosted.pid, reason)
            host.killed_because = reason
            with contextlib.suppress(ProcessLookupError):  # it ended just now
                signal.pidfd_send_signal(host.pidfd, signal.SIGKILL)

    async def stop(self, host: Host, deadline_s: float | None = None) -> None:
        """End a host in order: its actors are stopped first."""
        if host.ending or host.hosted is None:
            return
        host.ending = True
        arguments = (host.hosted,) if deadline_s is None else (host.hosted, deadline_s)
        try:
            await self._worker.run(self._processes.stop, *arguments)
        except (ActorError, OSError) as error:
            logger.warning("the actor host %s was not stopped in order: %s", host.name, error)

    def close(self) -> None:
        """End the thread and forget the processes; what still runs ends with Thespian's admin."""
        self._worker.close()
        for host in self:
            if host.pidfd is not None:
                self._loop.remove_reader(host.pidfd)
                os.close(host.pidfd)
                host.pidfd = None
        self._hosts.clear()

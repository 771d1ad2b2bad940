"""The process system: starts hosted actors in processes of their own, through Thespian, and waits for their end."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import os
import secrets
import select
import signal
import socket
import sys
import time
from collections.abc import Collection, Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

from thespian.actors import ActorExitRequest, ActorSystem

from actors.address import ActorAddress
from actors.errors import ActorSystemError
from actors.process.host import STOP_DEADLINE_S, HostFailed, HostReady, HostSpare, HostSpec, HostStarted
from actors.process.thespian_base import HardenedSystemBase, become_subreaper, harden

logger = logging.getLogger(__name__)

START_DEADLINE_S = 60.0
EXIT_DEADLINE_S = 5.0
SHUTDOWN_DEADLINE_S = STOP_DEADLINE_S + 2
TRANSMIT_SLICE_S = 0.05
LISTEN_SLICE = timedelta(seconds=0.25)
NOWHERE = ActorAddress("understudy", "127.0.0.1", 0, "/")  # a spare process has no actor yet


@dataclasses.dataclass(frozen=True, slots=True)
class HostedActor:
    """An actor that runs in a process of its own.

    Args:
        name: its name.
        address: address of its gateway.
        pid: pid of its process.
    """

    name: str
    address: ActorAddress
    pid: int
    thespian_address: Any = dataclasses.field(repr=False, compare=False, default=None)


class _Capabilities:
    """The part of an ActorSystem object that Thespian's system base uses."""

    def __init__(self, admin_port: int) -> None:
        self.capabilities: dict[str, Any] = {"Admin Port": admin_port, "Process Startup Method": "fork"}


class ProcessActorSystem:
    """A Thespian system whose actors are `HostActor`s. Its methods block; call them from one thread at a time.

    Create it before the process starts threads: it forks its admin from this process, and the admin forks every actor.

    Raises:
        ActorSystemError: Thespian's admin does not start, or its version is not the supported one.
    """

    def __init__(self) -> None:
        harden()
        become_subreaper()
        before = _children(os.getpid())
        with socket.socket() as reservation:
            # Bound until the admin listens, so that the kernel gives this port to no other process. The admin can still
            # bind it, because both sockets set SO_REUSEADDR and this one never listens.
            reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reservation.bind(("127.0.0.1", 0))
            try:
                self._base = HardenedSystemBase(_Capabilities(reservation.getsockname()[1]), None)
                self._system = ActorSystem(systemBase=self._base, transientUnique=True)
            except Exception as error:  # Thespian raises a family of its own and bare socket errors
                raise ActorSystemError(f"the actor system's admin could not be started: {error}{_hint()}") from error
        self.admin_pid = _adopted_admin(before)
        self._started: dict[int, HostedActor] = {}
        self._spare: tuple[HostSpare, HostedActor] | None = None

    def start(self, spec: HostSpec) -> HostedActor:
        """Start an actor and wait until its endpoint runs. Use the spare process if it fits.

        Raises:
            ActorSystemError: the actor could not be started; the message contains the actor's error.
        """
        return self._start(dataclasses.replace(spec, nonce=secrets.token_hex(8)), spec.name, self._take_spare(spec))

    def keep_spare(self, spec: HostSpec) -> None:
        """Start a spare process for the next actor whose `HostSpec` has the settings of *spec*. Idempotent.

        The spare process has the modules that this process had imported when it created the system. It listens, and has
        run the preparation of *spec*, so that `start` needs only one message.

        Raises:
            ActorSystemError: the process could not be started.
        """
        wanted = spec.spare()
        if self._spare is not None and self._spare[0] == wanted and not _ends_within(self._spare[1].pid, 0.0):
            return
        spare = self._start(dataclasses.replace(wanted, nonce=secrets.token_hex(8)), "a spare process", None)
        self._spare = wanted, spare

    def _take_spare(self, spec: HostSpec) -> HostedActor | None:
        if self._spare is None or not self._spare[0].fits(spec):
            return None
        (_, spare), self._spare = self._spare, None
        return None if _ends_within(spare.pid, 0.0) else spare

    def _start(self, spec: HostSpec | HostSpare, name: str, spare: HostedActor | None) -> HostedActor:
        process: int | None = None
        if _ends_within(self.admin_pid, 0.0):  # Thespian would try to reach it for 35 s
            raise ActorSystemError(f"{name} could not be started: {self._admin_has_ended()}")
        try:
            if spare is None:
                before = _children(self.admin_pid)
                thespian_address = self._system.createActor(f"{__package__}.host.HostActor")
                process = _pidfd_of_new(_children(self.admin_pid), before)
            else:
                thespian_address, process = spare.thespian_address, os.pidfd_open(spare.pid)
            answer = self._await_answer(thespian_address, spec, process)
            if isinstance(answer, HostStarted | HostReady):
                address = ActorAddress.parse(answer.address) if isinstance(answer, HostStarted) else NOWHERE
                actor = HostedActor(name, address, answer.pid, thespian_address)
                self._started[actor.pid] = actor
                return actor
            if isinstance(answer, HostFailed):
                reason = answer.error
            elif process is not None and _wait(process, 0.0):
                reason = "its process ended without a word"
            else:
                reason = f"no answer within {START_DEADLINE_S:g} s"
            self._order_exit(thespian_address, EXIT_DEADLINE_S, process)
            if process is not None and not _wait(process, EXIT_DEADLINE_S):
                signal.pidfd_send_signal(process, signal.SIGKILL)
        except Exception as error:
            reason = self._admin_has_ended() if _ends_within(self.admin_pid, 0.2) else str(error)
            raise ActorSystemError(f"{name} could not be started: {reason}") from error
        finally:
            if process is not None:
                os.close(process)
        where = (spec.log.file if isinstance(spec, HostSpec) else None) or "above"
        raise ActorSystemError(f"{name} could not be started: {reason} (see {where})")

    def _admin_has_ended(self) -> str:
        return f"the actor system's admin (process {self.admin_pid}) has ended"

    def _await_answer(
        self, thespian_address: Any, spec: HostSpec | HostSpare, process: int | None
    ) -> HostStarted | HostReady | HostFailed | None:
        """Send *spec* and wait for its answer; return None when none comes in time, or the process has ended.

        Thespian does not correlate answers to external asks, so this skips answers to earlier asks that timed out.
        Nor does Thespian report that a process has ended (out of memory, by a signal, in native code), so this checks
        the process.
        """
        deadline = time.monotonic() + START_DEADLINE_S
        answer = self._system.ask(thespian_address, spec, LISTEN_SLICE)
        while getattr(answer, "nonce", None) != spec.nonce:
            if time.monotonic() > deadline or (process is not None and _wait(process, 0.0)):
                return None
            answer = self._system.listen(LISTEN_SLICE)
        return cast("HostStarted | HostReady | HostFailed", answer)

    def stop(self, actor: HostedActor, deadline_s: float = STOP_DEADLINE_S + 2) -> None:
        """Stop an actor and wait for the end of its process; kill the process after *deadline_s* seconds."""
        self.stop_all([actor], deadline_s)

    def stop_all(self, actors: Iterable[HostedActor], deadline_s: float = STOP_DEADLINE_S + 2) -> None:
        """Stop actors at the same time; otherwise as `stop`."""
        self._end(actors, deadline_s)
        for actor in actors:
            self._started.pop(actor.pid, None)

    def _order_exit(self, thespian_address: Any, timeout_s: float, pidfd: int | None = None) -> None:
        """Send the exit request until the actor has taken it, the process has ended, or the time is over."""
        deadline = time.monotonic() + timeout_s
        with contextlib.suppress(Exception):  # a dead target is fine; the caller kills a hanging one
            self._base.post(thespian_address, ActorExitRequest())
            while not self._base.transmit(TRANSMIT_SLICE_S) and time.monotonic() < deadline:
                if pidfd is not None and _wait(pidfd, 0.0):
                    return

    def _end(self, actors: Iterable[HostedActor], deadline_s: float, *, kills_suspended: bool = False) -> None:
        """Send exit requests, and wait for the ends of the processes; kill those that run after *deadline_s* seconds.

        Args:
            kills_suspended: whether a suspended process is killed at once: it cannot end.
        """
        deadline = time.monotonic() + deadline_s
        with contextlib.ExitStack() as opened:
            running: dict[int, HostedActor] = {}
            for actor in actors:
                descriptor = opened.enter_context(_process(actor.pid))
                if descriptor is not None:
                    running[descriptor] = actor
            for actor in running.values():
                if not (kills_suspended and _is_suspended(actor.pid)):
                    with contextlib.suppress(Exception):  # a dead target is fine; a hanging one is killed
                        self._base.post(actor.thespian_address, ActorExitRequest())
            while (waiting := _unended(running)) and time.monotonic() < deadline:
                for descriptor in waiting if kills_suspended else ():
                    if _is_suspended(running[descriptor].pid):  # check each time: a signal takes a moment to act
                        _kill(running[descriptor], descriptor, "is suspended and cannot stop")
                if self._transmit():
                    _ready(waiting, min(TRANSMIT_SLICE_S, max(deadline - time.monotonic(), 0.0)))
            for descriptor in waiting:
                _kill(running[descriptor], descriptor, f"did not stop within {deadline_s:g} s")
            for descriptor in waiting:
                _wait(descriptor, 5.0)

    def _transmit(self) -> bool:
        """Continue sending; return whether nothing is left to be sent, or nothing can be sent."""
        try:
            return self._base.transmit(TRANSMIT_SLICE_S)
        except Exception:  # Thespian raises a family of its own and bare socket errors
            return True

    def shutdown(self, deadline_s: float = SHUTDOWN_DEADLINE_S) -> None:
        """Stop the system and every actor that still runs in it; idempotent.

        Args:
            deadline_s: seconds until actors that still run are killed. A suspended actor (SIGSTOP) cannot end, and is
                killed at once.
        """
        # The admin reaps actors that end before it; those that outlive it for a moment become our children.
        admin_runs = not _ends_within(self.admin_pid, 0.0)
        members = self._started.keys() | (_children(self.admin_pid) if admin_runs else set())
        if admin_runs:  # else the actors have died with it
            # Others' pids may be reused.
            own = [self._started[pid] for pid in self._started.keys() & _children(self.admin_pid)]
            self._end(own, deadline_s, kills_suspended=True)
        with _process(self.admin_pid) as descriptor:
            if descriptor is None:
                return
            try:
                self._system.shutdown()
                if not _wait(descriptor, 5.0):
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)  # its actors die with it
                    _wait(descriptor, 5.0)
            finally:
                for pid in (self.admin_pid, *members):
                    _collect(pid)


@contextlib.contextmanager
def _process(pid: int) -> Iterator[int | None]:
    """Open a descriptor of a process; yield None when it has ended."""
    descriptor = None
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):  # newer kernels: the latter while it is reaped
        descriptor = os.pidfd_open(pid)
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _kill(actor: HostedActor, pidfd: int, why: str) -> None:
    logger.warning("%s (process %d) %s: killed", actor.name, actor.pid, why)
    with contextlib.suppress(ProcessLookupError):  # it has just ended, and was reaped
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)


def _is_suspended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "Tt"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _collect(pid: int) -> None:
    """Wait for the end of an adopted process of the system and reap it, so that it does not stay a zombie."""
    if _ends_within(pid, 5.0):
        with contextlib.suppress(ChildProcessError):  # its parent has reaped it
            os.waitpid(pid, os.WNOHANG)


def _wait(pidfd: int, timeout_s: float) -> bool:
    return bool(_ready([pidfd], timeout_s))


def _ready(pidfds: Iterable[int], timeout_s: float) -> set[int]:
    """Return the descriptors of ended processes; wait until there is one."""
    poll = select.poll()  # select() takes no descriptor above 1023, and a master of many jobs has more
    for pidfd in pidfds:
        poll.register(pidfd, select.POLLIN)
    return {pidfd for pidfd, _ in poll.poll(math.ceil(timeout_s * 1000))}


def _unended(pidfds: Collection[int]) -> list[int]:
    ended = _ready(pidfds, 0.0)
    return [pidfd for pidfd in pidfds if pidfd not in ended]


def _hint() -> str:
    """Return the remedy for a known cause of a failed start, as the end of a message; empty if there is none."""
    if "grpc" not in sys.modules or os.environ.get("GRPC_ENABLE_FORK_SUPPORT") == "0":
        return ""
    return (
        ". This process has loaded gRPC, as a Spark Connect client does, which may have ended it. Create the actor "
        "system before the first gRPC call, or start the process with GRPC_ENABLE_FORK_SUPPORT=0"
    )


def _adopted_admin(before: set[int]) -> int:
    """Return the admin's pid; reap the process between the admin and this one, which its double fork has left."""
    living = []
    for pid in _children(os.getpid()) - before:
        if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
            os.waitpid(pid, 0)
        else:
            living.append(pid)
    if not living:
        raise ActorSystemError("the actor system's admin did not become a child of this process")
    return living[0]


def _ends_within(pid: int, timeout_s: float) -> bool:
    with _process(pid) as descriptor:
        return descriptor is None or _wait(descriptor, timeout_s)


def _pidfd_of_new(after: set[int], before: set[int]) -> int | None:
    """Return a descriptor of the only new process; None when there is not exactly one."""
    new = after - before
    return os.pidfd_open(new.pop()) if len(new) == 1 else None


def _children(pid: int) -> set[int]:
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}

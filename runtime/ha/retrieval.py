"""Finding the leader of a component and following it (Flink's ``LeaderRetrievalService`` and ``Listener``)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from runtime.ha.changes import ChangeFeed
from runtime.ha.errors import HaError
from runtime.ha.latch import LatchTiming, LeaderReader
from runtime.ha.tasks import cancel_and_wait
from runtime.protocol.leader import LeaderInformation, boottime

logger = logging.getLogger(__name__)


class LeaderRetrievalListener(Protocol):
    """A follower of a leader. The methods are called on the event loop and must not block."""

    def notify_leader_address(self, leader: LeaderInformation | None) -> None:
        """Follow another leader; None: no leader has confirmed its leadership."""

    def handle_error(self, error: Exception) -> None:
        """Handle the end of the retrieval: a defect, or the listener's own exception; never a missing reply."""


class LeaderRetrievalService(Protocol):
    """Notifies one listener of the leader."""

    async def start(self, listener: LeaderRetrievalListener) -> None:
        """Notify the listener of the first leader found, and of every change."""

    async def stop(self) -> None:
        """Stop notifying."""


class RetrievalState:
    """The known leader of a component. Pure: no clock, no I/O.

    While the latch cannot be read, the last known leader counts as leader until its lease must be over. By then it has
    given up by itself.

    Args:
        lease: the lease of leaders, in seconds.
    """

    def __init__(self, lease: float) -> None:
        self._lease = lease
        self._known_at = float("-inf")
        self.leader: LeaderInformation | None = None

    def read(self, now: float, leader: LeaderInformation | None) -> bool:
        """Note the leader that was read at ``now``; return whether it differs from the last one."""
        self._known_at = now
        return self._set(leader)

    def unreachable(self, now: float) -> bool:
        """Note that the latch could not be read; return whether the leader is dropped because of that."""
        return now - self._known_at >= self._lease and self._set(None)

    def _set(self, leader: LeaderInformation | None) -> bool:
        changed = leader != self.leader
        self.leader = leader
        return changed


def next_look(now: float, every: float, phase: float) -> float:
    """Return the seconds until the next common moment of all services with this *phase*. Pure.

    Never less than a tenth of *every*, since a service that wakes a moment too early would read twice.
    """
    left = every - (now + phase) % every
    return left if left >= every / 10 else left + every


class DefaultLeaderRetrievalService:
    """Reads the latch after each notification of a change, and every third of a lease in any case.

    Args:
        component: the component whose leader it follows.
        reader: reads the latch.
        feed: notifies of changes.
        timing: the lease.
        clock: seconds; also counts while the machine is suspended.
        phase: seconds. All services of a process have the same one, and so read at the same moments in one request.
            Those of other processes read at other moments.
    """

    def __init__(
        self,
        component: str,
        reader: LeaderReader,
        feed: ChangeFeed,
        timing: LatchTiming,
        *,
        clock: Callable[[], float] = boottime,
        phase: float = 0.0,
    ) -> None:
        self.component = component
        self._reader = reader
        self._timing = timing
        self._phase = phase
        self._clock = clock
        self._state = RetrievalState(timing.lease)
        self._changes = feed.subscribe(component)
        self._task: asyncio.Task[None] | None = None
        self._outage = False

    async def start(self, listener: LeaderRetrievalListener) -> None:
        if self._task is not None:
            raise ValueError(f"the retrieval of {self.component} already has a listener")
        self._state = RetrievalState(self._timing.lease)  # so that a new listener is notified of the present leader
        self._task = asyncio.create_task(self._run(listener), name=f"ha-retrieval-{self.component}")

    async def stop(self) -> None:
        if self._task is not None:
            await cancel_and_wait(self._task)
            self._task = None

    async def _run(self, listener: LeaderRetrievalListener) -> None:
        try:
            with self._changes:
                while True:
                    if await self._look():
                        listener.notify_leader_address(self._state.leader)
                    await self._changes.wait(next_look(self._clock(), self._timing.renew_every, self._phase))
        except Exception as error:
            logger.exception("following the leader of %s ended by a defect", self.component)
            listener.handle_error(error)

    async def _look(self) -> bool:
        try:
            leader = await self._reader.leader(self.component)
        except HaError as error:
            if not self._outage:
                self._outage = True
                logger.warning("following the leader of %s: %s", self.component, error)
            return self._state.unreachable(self._clock())
        self._outage = False
        return self._state.read(self._clock(), leader)

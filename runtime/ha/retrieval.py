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
    """Who follows a leader. Called on the event loop; must not block."""

    def notify_leader_address(self, leader: LeaderInformation | None) -> None:
        """The leader is another one now, or (None) there is none that has confirmed its leadership."""

    def handle_error(self, error: Exception) -> None:
        """The retrieval cannot go on (a defect, or the listener's own exception); never mere unreachability."""


class LeaderRetrievalService(Protocol):
    """Tells one listener who leads."""

    async def start(self, listener: LeaderRetrievalListener) -> None:
        """Begin; the listener is told of every change, and of the first leader found."""

    async def stop(self) -> None:
        """Tell no more."""


class RetrievalState:
    """What is known of a leader. Pure: no clock, no I/O.

    While the latch cannot be read, the last leader found is taken to lead until its lease must be over: it steps down
    itself then.

    Args:
        lease: the lease of leaders, in seconds.
    """

    def __init__(self, lease: float) -> None:
        self._lease = lease
        self._known_at = float("-inf")
        self.leader: LeaderInformation | None = None

    def read(self, now: float, leader: LeaderInformation | None) -> bool:
        """It was read at ``now`` who leads; whether that is news."""
        self._known_at = now
        return self._set(leader)

    def unreachable(self, now: float) -> bool:
        """The latch could not be read; whether the leader is given up for that."""
        return now - self._known_at >= self._lease and self._set(None)

    def _set(self, leader: LeaderInformation | None) -> bool:
        changed = leader != self.leader
        self.leader = leader
        return changed


def next_look(now: float, every: float, phase: float) -> float:
    """Seconds until the next look of all that look every so often. Pure.

    Never less than a tenth of *every*, since who is woken a moment too early would look twice.
    """
    left = every - (now + phase) % every
    return left if left >= every / 10 else left + every


class DefaultLeaderRetrievalService:
    """Reads the latch when it is said to have changed, and every third of a lease in any case.

    Args:
        clock: seconds; runs through suspend.
        phase: seconds; those of one process have the same, and look at the same moments, so that one request reads for
            all of them. Those of other processes look at other moments.
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
        self._state = RetrievalState(self._timing.lease)  # a listener that begins anew is told of the leader once more
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

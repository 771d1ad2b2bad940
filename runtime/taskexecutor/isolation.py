"""Ends what a TaskExecutor runs once it is cut off from its cluster.

`Isolation` is a lease: others may run these tasks again once they have heard nothing for ``heartbeat.timeout``, so the
tasks must have ended by then. Akka's split brain resolver likewise downs an isolated node.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable

from runtime.ha.errors import HaError
from runtime.ha.services import HighAvailabilityServices
from runtime.protocol.leader import RESOURCE_MANAGER, boottime

logger = logging.getLogger(__name__)


class Isolation:
    """Tells from the time since the cluster was last heard of whether one is cut off (pure).

    Times are seconds, of a clock that runs through suspend.

    Args:
        timeout_s: seconds without a sign of it after which one is cut off.
        now: when one begins to listen.
    """

    def __init__(self, timeout_s: float, now: float) -> None:
        self._timeout_s = timeout_s
        self._last_heard = now

    def heard(self, now: float) -> None:
        """A ResourceManager, a JobMaster or the store of the leaders has given a sign of life."""
        self._last_heard = max(self._last_heard, now)

    def silent_for(self, now: float) -> float:
        """For how many seconds nothing was heard."""
        return max(now - self._last_heard, 0.0)

    def is_isolated(self, now: float) -> bool:
        """Whether that is too long."""
        return self.silent_for(now) >= self._timeout_s


class IsolationWatch:
    """Listens for the cluster, and asks the store of the leaders when nobody speaks.

    Args:
        ha: whether it is reached is what tells a cluster without a leader from one that is cut off.
        timeout_s: see `Isolation`; None: one never takes itself for cut off.
        interval_s: ``heartbeat.interval``: seconds between two looks at the most.
        has_tasks: whether there is anything to end.
        driver_pid: process of the Spark driver.
        clock: seconds; runs through suspend.
    """

    def __init__(
        self,
        ha: HighAvailabilityServices,
        timeout_s: float | None,
        interval_s: float,
        has_tasks: Callable[[], bool],
        driver_pid: int,
        clock: Callable[[], float] = boottime,
    ) -> None:
        self._ha = ha
        self._isolation = None if timeout_s is None else Isolation(timeout_s, clock())
        self._interval_s = interval_s
        self._step_s = interval_s / 2  # one for the pause, one for the answer
        self._has_tasks = has_tasks
        self._driver_pid = driver_pid
        self._clock = clock

    def heard(self) -> None:
        """The cluster has given a sign of life."""
        if self._isolation is not None:
            self._isolation.heard(self._clock())

    async def run(self) -> None:
        """Watch until the process ends, or there is nothing to watch."""
        while self._isolation is not None:
            await asyncio.sleep(self._step_s)
            await self.look(self._isolation)

    async def look(self, isolation: Isolation) -> None:
        """Ask the store of the leaders if nobody has spoken for an interval, and end it all if that was too long."""
        asked = self._clock()
        if isolation.silent_for(asked) > self._interval_s:
            try:
                async with asyncio.timeout(self._step_s):
                    await self._ha.current_leader(RESOURCE_MANAGER)
            except (HaError, TimeoutError) as error:
                logger.debug("the store of the leaders does not answer: %s", error)
            else:
                isolation.heard(asked)
        now = self._clock()
        if isolation.is_isolated(now) and self._has_tasks():
            self._end(isolation.silent_for(now))

    def _end(self, silent_s: float) -> None:
        """Not in good order, which takes its time: by now the tasks may be run elsewhere."""
        logger.critical(
            "nothing was heard of the cluster for %.1f s (taskmanager.isolation.timeout): this TaskExecutor kills its "
            "tasks with their Spark driver (process %d), and begins anew",
            silent_s,
            self._driver_pid,
        )
        for pid in (self._driver_pid, os.getpid()):
            os.kill(pid, signal.SIGKILL)

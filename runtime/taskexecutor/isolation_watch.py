"""Ends what a TaskExecutor runs once it is cut off from its cluster; see `runtime.taskexecutor.isolation`."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable

from runtime.ha.errors import HaError
from runtime.ha.model import RESOURCE_MANAGER, boottime
from runtime.ha.services import HighAvailabilityServices
from runtime.taskexecutor.isolation import Isolation

log = logging.getLogger(__name__)


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
                log.debug("the store of the leaders does not answer: %s", error)
            else:
                isolation.heard(asked)
        now = self._clock()
        if isolation.is_isolated(now) and self._has_tasks():
            self._end(isolation.silent_for(now))

    def _end(self, silent_s: float) -> None:
        """Not in good order, which takes its time: by now the tasks may be run elsewhere."""
        log.critical(
            "nothing was heard of the cluster for %.1f s (taskmanager.isolation.timeout): this TaskExecutor kills its "
            "tasks with their Spark driver (process %d), and begins anew",
            silent_s,
            self._driver_pid,
        )
        for pid in (self._driver_pid, os.getpid()):
            os.kill(pid, signal.SIGKILL)

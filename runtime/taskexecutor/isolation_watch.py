"""Ends what a TaskExecutor runs once it is cut off from its cluster; see `runtime.taskexecutor.isolation`."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable

from runtime.ha.errors import HaError
from runtime.ha.model import RESOURCE_MANAGER
from runtime.ha.services import HighAvailabilityServices
from runtime.taskexecutor.isolation import Isolation

log = logging.getLogger(__name__)


class IsolationWatch:
    """Listens for the cluster, and asks the store of the leaders when nobody speaks.

    Args:
        ha: whether it is reached is what tells a cluster without a leader from one that is cut off.
        timeout_s: see `Isolation`; None: one never takes itself for cut off.
        interval_s: seconds between two looks.
        has_tasks: whether there is anything to end.
        driver_pid: process of the Spark driver.
    """

    def __init__(
        self,
        ha: HighAvailabilityServices,
        timeout_s: float | None,
        interval_s: float,
        has_tasks: Callable[[], bool],
        driver_pid: int,
    ) -> None:
        self._ha = ha
        self._isolation = None if timeout_s is None else Isolation(timeout_s, time.monotonic())
        self._interval_s = interval_s
        self._has_tasks = has_tasks
        self._driver_pid = driver_pid

    def heard(self) -> None:
        """The cluster has given a sign of life."""
        if self._isolation is not None:
            self._isolation.heard(time.monotonic())

    async def run(self) -> None:
        """Watch until the process ends, or there is nothing to watch."""
        isolation = self._isolation
        while isolation is not None:
            await asyncio.sleep(self._interval_s)
            asked = time.monotonic()
            if isolation.silent_for(asked) > self._interval_s:
                try:
                    async with asyncio.timeout(self._interval_s):
                        await self._ha.current_leader(RESOURCE_MANAGER)
                except (HaError, TimeoutError) as error:
                    log.debug("the store of the leaders does not answer: %s", error)
                else:
                    isolation.heard(asked)
            now = time.monotonic()
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

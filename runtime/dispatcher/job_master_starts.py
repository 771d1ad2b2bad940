"""Order of the starts of JobMasters, and the starts themselves.

Each JobMaster is a process. If a thousand recovered jobs were started at once, the master would not answer, and newly
submitted jobs would have to wait. (Flink starts all recovered jobs at once: its JobMasters are objects in one process.)
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from actors.errors import ActorError, EndpointStateError
from actors.supervision import Backoff
from runtime.ids import JobID
from runtime.protocol.master import MasterGateway
from runtime.retry import pauses

logger = logging.getLogger(__name__)

BETWEEN_STARTS = Backoff(0.5, 2.0)
"""Pauses in seconds after a failed start, whose cause may be too many processes."""


class StartQueue:
    """Order of starts. Pure: no clock, no I/O.

    New jobs come before recovered ones; within each group, the first comes first. At most *at_once* starts are under
    way. Of recovered jobs there is one fewer, if *at_once* is more than 1, so that a new job never waits for them. A
    job whose start failed goes behind those that wait.

    Args:
        at_once: most starts that may be under way, 1 or more.
    """

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._recovered_at_once = max(1, at_once - 1)
        self._lines: dict[bool, OrderedDict[JobID, None]] = {True: OrderedDict(), False: OrderedDict()}
        self._wanted: dict[JobID, bool] = {}
        self._under_way: dict[JobID, bool] = {}

    def submitted(self, job_id: JobID) -> None:
        """Queue a job that was just accepted."""
        self._want(job_id, new=True)

    def recovered(self, job_id: JobID) -> None:
        """Queue a job that was found in the store."""
        self._want(job_id, new=False)

    def _want(self, job_id: JobID, *, new: bool) -> None:
        if job_id not in self._wanted:
            self._wanted[job_id] = new
            self.again(job_id)

    def next(self) -> list[JobID]:
        """Return the jobs to start now, and count them as under way."""
        found = []
        while len(self._under_way) < self._at_once:
            recovering = sum(not new for new in self._under_way.values())
            new = bool(self._lines[True])
            if not new and (not self._lines[False] or recovering >= self._recovered_at_once):
                break
            job_id, _ = self._lines[new].popitem(last=False)
            self._under_way[job_id] = new
            found.append(job_id)
        return found

    def started(self, job_id: JobID) -> None:
        """Note that the JobMaster of a job runs."""
        self._under_way.pop(job_id, None)
        self.forget(job_id)

    def failed(self, job_id: JobID) -> None:
        """Note a failed start; the job does not wait in line until `again`."""
        self._under_way.pop(job_id, None)

    def again(self, job_id: JobID) -> None:
        """Queue a job again whose start failed, unless it was forgotten since."""
        new = self._wanted.get(job_id)
        if new is not None and job_id not in self._under_way:
            self._lines[new].setdefault(job_id)

    def forget(self, job_id: JobID) -> None:
        """Start no JobMaster of this job any more: the job is over."""
        new = self._wanted.pop(job_id, None)
        if new is not None:
            self._lines[new].pop(job_id, None)

    def clear(self) -> None:
        """Forget all jobs."""
        self._wanted.clear()
        for line in self._lines.values():
            line.clear()


class JobMasterStarts:
    """Requests the starts of JobMasters from the master, in the order of a `StartQueue`, again until each succeeds.

    Args:
        spawn: runs a coroutine; the Dispatcher's.
        at_once: most starts that may be under way (`jobmanager.job-masters.concurrent-starts`).
    """

    def __init__(
        self, master: MasterGateway, spawn: Callable[[Coroutine[Any, Any, None], str], object], at_once: int
    ) -> None:
        self._master = master
        self._spawn = spawn
        self._queue = StartQueue(at_once)
        self._pauses: dict[JobID, Iterator[float]] = {}
        self._is_refused = False

    def submitted(self, job_id: JobID) -> None:
        """Start the JobMaster of a new job."""
        self._queue.submitted(job_id)
        self._begin()

    def recovered(self, job_id: JobID) -> None:
        """Start the JobMaster of a recovered job, or find it running."""
        self._queue.recovered(job_id)
        self._begin()

    def forget(self, job_id: JobID) -> None:
        """Start no JobMaster of this job any more: the job is over."""
        self._queue.forget(job_id)
        self._pauses.pop(job_id, None)

    def clear(self) -> None:
        """Begin no start any more: the leadership is over. Starts that are under way continue."""
        self._queue.clear()
        self._pauses.clear()

    def _begin(self) -> None:
        for job_id in self._queue.next():
            self._spawn(self._start(job_id), f"starting the JobMaster of job {job_id}")

    async def _start(self, job_id: JobID) -> None:
        try:
            await self._master.start_job_master(job_id)
        except ActorError as error:
            self._log(job_id, error)
            self._queue.failed(job_id)
            self._begin()
            await asyncio.sleep(next(self._pauses.setdefault(job_id, pauses(BETWEEN_STARTS))))
            self._queue.again(job_id)
        else:
            self._is_refused = False
            self._queue.started(job_id)
            self._pauses.pop(job_id, None)
        self._begin()

    def _log(self, job_id: JobID, error: ActorError) -> None:
        if not isinstance(error, EndpointStateError):
            logger.error("the JobMaster of job %s was not started, trying again: %s", job_id, error)
        elif not self._is_refused:  # a planned stop: once, not for each job and each attempt
            self._is_refused = True
            logger.info("JobMasters are not started here any more, and the next leader starts them: %s", error)

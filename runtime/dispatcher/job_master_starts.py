"""Which JobMasters are started next, and having them started.

A JobMaster is a process: a thousand recovered jobs must not be started at once, keep the master from answering, or be
in the way of a job that somebody submits meanwhile. (Flink starts all that it recovers at once: its JobMasters are
objects in one process.)
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from actors.errors import ActorError
from actors.supervision import Backoff
from runtime.ids import JobID
from runtime.protocol.master import MasterGateway
from runtime.retry import pauses

logger = logging.getLogger(__name__)

BETWEEN_STARTS = Backoff(0.5, 2.0)
"""A start costs a process: what kept one from it may be that there are too many."""


class StartQueue:
    """The order of starts. Pure: no clock, no I/O.

    New jobs come before recovered ones, and among each the first comes first. At most *at_once* starts are under way,
    and of recovered jobs one fewer (where there may be more than one), so that a new job never waits for their starts.
    One that failed goes behind those that wait.

    Args:
        at_once: how many starts may be under way, 1 or more.
    """

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._recovered_at_once = max(1, at_once - 1)
        self._lines: dict[bool, OrderedDict[JobID, None]] = {True: OrderedDict(), False: OrderedDict()}
        self._wanted: dict[JobID, bool] = {}
        self._under_way: dict[JobID, bool] = {}

    def submitted(self, job_id: JobID) -> None:
        """A job was accepted."""
        self._want(job_id, new=True)

    def recovered(self, job_id: JobID) -> None:
        """A job was found in the store."""
        self._want(job_id, new=False)

    def _want(self, job_id: JobID, *, new: bool) -> None:
        if job_id not in self._wanted:
            self._wanted[job_id] = new
            self.again(job_id)

    def next(self) -> list[JobID]:
        """The jobs whose start begins now."""
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
        """Its JobMaster runs."""
        self._under_way.pop(job_id, None)
        self.forget(job_id)

    def failed(self, job_id: JobID) -> None:
        """Its JobMaster was not started; it does not wait in line until `again`."""
        self._under_way.pop(job_id, None)

    def again(self, job_id: JobID) -> None:
        """A start that failed may be tried again, unless the job was forgotten meanwhile."""
        new = self._wanted.get(job_id)
        if new is not None and job_id not in self._under_way:
            self._lines[new].setdefault(job_id)

    def forget(self, job_id: JobID) -> None:
        """The job is over: no start of its JobMaster begins any more."""
        new = self._wanted.pop(job_id, None)
        if new is not None:
            self._lines[new].pop(job_id, None)

    def clear(self) -> None:
        """Forget all jobs."""
        self._wanted.clear()
        for line in self._lines.values():
            line.clear()


class JobMasterStarts:
    """Has JobMasters started by the master, in the order of a `StartQueue`, again until it succeeds.

    Args:
        spawn: runs a coroutine; the Dispatcher's.
        at_once: how many starts may be under way (`jobmanager.job-masters.concurrent-starts`).
    """

    def __init__(
        self, master: MasterGateway, spawn: Callable[[Coroutine[Any, Any, None], str], object], at_once: int
    ) -> None:
        self._master = master
        self._spawn = spawn
        self._queue = StartQueue(at_once)
        self._pauses: dict[JobID, Iterator[float]] = {}

    def submitted(self, job_id: JobID) -> None:
        """Start the JobMaster of a new job."""
        self._queue.submitted(job_id)
        self._begin()

    def recovered(self, job_id: JobID) -> None:
        """Start the JobMaster of a recovered job, or find it running."""
        self._queue.recovered(job_id)
        self._begin()

    def forget(self, job_id: JobID) -> None:
        """The job is over."""
        self._queue.forget(job_id)
        self._pauses.pop(job_id, None)

    def clear(self) -> None:
        """The leadership is over: begin no start any more. What is under way takes its course."""
        self._queue.clear()
        self._pauses.clear()

    def _begin(self) -> None:
        for job_id in self._queue.next():
            self._spawn(self._start(job_id), f"starting the JobMaster of job {job_id}")

    async def _start(self, job_id: JobID) -> None:
        try:
            await self._master.start_job_master(job_id)
        except ActorError as error:
            logger.error("the JobMaster of job %s was not started, trying again: %s", job_id, error)
            self._queue.failed(job_id)
            self._begin()
            await asyncio.sleep(next(self._pauses.setdefault(job_id, pauses(BETWEEN_STARTS))))
            self._queue.again(job_id)
        else:
            self._queue.started(job_id)
            self._pauses.pop(job_id, None)
        self._begin()

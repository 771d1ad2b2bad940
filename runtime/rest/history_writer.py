"""Writes the history of a running cluster: figures over time, and the present states of the jobs that are not over.

The leading web endpoint does so at an interval (``history.interval``), since it collects the metrics of all processes.
The Dispatcher keeps ended jobs, and deletes what is too old (`runtime.dispatcher.archive`).
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Iterable
from dataclasses import replace

from actors.errors import ActorError
from blob.errors import BlobError
from conf.configuration import Configuration
from conf.options import HistoryOptions
from runtime.history.directory import HistoryDirectory
from runtime.history.figures import FigureFile, Sample
from runtime.ids import JobID
from runtime.metrics.metric import Value
from runtime.metrics.store import MetricStore
from runtime.protocol.archived_execution_graph import JobDetails
from runtime.protocol.errors import GatewayError
from runtime.protocol.messages import ClusterOverview
from runtime.rest.backend import ClusterBackend
from runtime.rest.errors import RestError

logger = logging.getLogger(__name__)

MOST_JOBS = 100
"""How many jobs' states are written at a time; the others follow at the next times."""
HEAP_USED, HEAP_MAX = "Status.JVM.Memory.Heap.Used", "Status.JVM.Memory.Heap.Max"
ROWS = "numRecordsInPerSecond"
_FAILURES = (ActorError, GatewayError, BlobError, RestError, OSError, TimeoutError)


def sample_of(at_ms: int, overview: ClusterOverview, metrics: MetricStore) -> Sample:
    """Return the figures of a cluster at one time, of what it shows otherwise. Pure."""
    rows: dict[str, float] = {}
    for (job_id, _), values in metrics.tasks.items():
        rate = values.get(ROWS)
        if isinstance(rate, int | float) and math.isfinite(rate):
            rows[job_id] = rows.get(job_id, 0.0) + rate
    return Sample(
        at_ms,
        overview.task_managers,
        overview.slots,
        overview.free_slots,
        overview.pending_requests,
        overview.jobs_running,
        _sum(values.get(HEAP_USED) for values in metrics.task_managers.values()),
        _sum(values.get(HEAP_MAX) for values in metrics.task_managers.values()),
        rows,
    )


def _sum(values: Iterable[Value | None]) -> int | None:
    known = [value for value in values if isinstance(value, int | float) and math.isfinite(value)]
    return int(sum(known)) if known else None


def due(jobs: Iterable[JobDetails], written: Iterable[JobID], most: int) -> list[JobID]:
    """Return the jobs whose states are to be written next: those that are not over, the longest ago written first.

    Args:
        jobs: of the cluster.
        written: jobs whose states were written, the longest ago first.
        most: how many.
    """
    running = [job.job_id for job in jobs if not job.status.is_globally_terminal]
    order = {job_id: number for number, job_id in enumerate(written)}
    return sorted(running, key=lambda job_id: order.get(job_id, -1))[:most]


class HistoryWriter:
    """Writes the history at an interval, while this web endpoint leads.

    Args:
        backend: the cluster.
        directory: of the history.
        interval_s: seconds between two points.
    """

    def __init__(self, backend: ClusterBackend, directory: HistoryDirectory, interval_s: float) -> None:
        self._backend = backend
        self._directory = directory
        self._figures = FigureFile(directory.root)
        self._interval_s = interval_s
        self._written: dict[JobID, None] = {}
        self._complaint = ""
        self._work: asyncio.Task[None] | None = None

    @classmethod
    def of(cls, configuration: Configuration, backend: ClusterBackend) -> HistoryWriter | None:
        """Return the configured writer; None if the cluster keeps no history."""
        directory = HistoryDirectory.of(configuration)
        return None if directory is None else cls(backend, directory, configuration.get(HistoryOptions.INTERVAL))

    def start(self) -> None:
        """Begin; the first point is written after an interval. Call it on the event loop."""
        self._work = asyncio.get_running_loop().create_task(self._run(), name="writing the history")

    async def stop(self) -> None:
        """Stop. No error before `start`."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)
            self._work = None

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await self.write(time.time_ns() // 1_000_000)
            except _FAILURES as error:
                if str(error) != self._complaint:
                    logger.warning("the history misses figures: %s", error)
                self._complaint = str(error)
            else:
                self._complaint = ""

    async def write(self, at_ms: int) -> None:
        """Write the figures and the states of running jobs at a time, in milliseconds since the epoch.

        Raises:
            ActorError, GatewayError, RestError: the cluster does not answer.
            OSError: the history cannot be written.
        """
        sample = sample_of(at_ms, await self._backend.overview(), await self._backend.metrics())
        await asyncio.to_thread(self._figures.append, sample)
        jobs = await self._backend.jobs()
        for job_id in due(jobs, self._written, MOST_JOBS):
            try:
                graph = await self._backend.job(job_id)
                histories = await self._backend.query_histories(job_id)
            except (ActorError, GatewayError) as error:  # it has just ended, or its JobMaster is being replaced
                logger.debug("the state of job %s is not written: %s", job_id, error)
                continue
            if graph.status.is_globally_terminal:
                continue
            await asyncio.to_thread(self._directory.note_running, replace(graph, query_histories=tuple(histories)))
            self._written.pop(job_id, None)
            self._written[job_id] = None
        over = {job.job_id for job in jobs if job.status.is_globally_terminal}
        await asyncio.to_thread(self._forget, over)

    def _forget(self, over: set[JobID]) -> None:
        for job_id in self._directory.running():
            if job_id in over:
                self._directory.forget_running(job_id)
                self._written.pop(job_id, None)

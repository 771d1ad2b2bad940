"""What is removed when a job has ended, and when it is forgotten (Flink's `DispatcherResourceCleanerFactory`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from actors.errors import ActorError
from runtime.dispatcher.job_blobs import JobBlobs, live_jobs
from runtime.gateways.master import MasterGateway
from runtime.ha.errors import HaError, LeadershipLostError
from runtime.ha.model import LeaderTerm, job_master
from runtime.ha.running_jobs import JobEntry, JobSchedulingStatus
from runtime.ha.services import HighAvailabilityServices
from runtime.ids import JobID
from runtime.job_logs import logs_owner

RETRY_S = 1.0
AT_ONCE = 16
"""Jobs that are cleaned up after at once, and as many that are forgotten: ten thousand would all wait for one of a few
connections to Redis, and most of them in vain."""

log = logging.getLogger(__name__)


class ResourceCleaner:
    """Cleans up for a Dispatcher, as long as that leads.

    Args:
        ha: has the handles of the jobs.
        master: stops their JobMasters.
        blobs: has their files deleted.
        log_dir: where the JobMasters' logs are, which go when their jobs are forgotten.
        leads: whether the Dispatcher still leads under a term.
    """

    def __init__(
        self,
        ha: HighAvailabilityServices,
        master: MasterGateway,
        blobs: JobBlobs,
        log_dir: Path,
        leads: Callable[[LeaderTerm], bool],
    ) -> None:
        self._ha = ha
        self._master = master
        self._blobs = blobs
        self._log_dir = log_dir
        self._leads = leads
        self._cleaning = asyncio.Semaphore(AT_ONCE)
        self._forgetting = asyncio.Semaphore(AT_ONCE)

    async def clean_up(self, job_id: JobID, term: LeaderTerm) -> None:
        """Remove what an ended job left, until nothing is left of it or the term is over."""
        await self._insist(self._clean_up_once, job_id, term)

    async def take_back(self, job_id: JobID, term: LeaderTerm) -> None:
        """Remove what a refused submission has stored, until nothing is left of it or the term is over.

        The next leader does so for a term that ends: an entry that is PENDING and has no graph was never accepted.
        """
        await self._insist(self._take_back_once, job_id, term)

    async def _insist(
        self, once: Callable[[JobID, LeaderTerm], Awaitable[None]], job_id: JobID, term: LeaderTerm
    ) -> None:
        while self._leads(term):
            try:
                async with self._cleaning:
                    await once(job_id, term)
            except LeadershipLostError:
                break
            except (ActorError, HaError, OSError) as error:
                log.warning("job %s is not cleaned up wholly yet: %s", job_id, error)
                await asyncio.sleep(RETRY_S)
            else:
                break

    async def _take_back_once(self, job_id: JobID, term: LeaderTerm) -> None:
        registry = self._ha.running_jobs_registry()
        if await registry.entry(job_id) == JobEntry(JobSchedulingStatus.PENDING):
            await self._ha.job_graph_store().remove(job_id, term)
            await registry.withdraw(job_id, term)

    async def _clean_up_once(self, job_id: JobID, term: LeaderTerm) -> None:
        """First the handle, then everything that it points to."""
        await self._ha.job_graph_store().remove(job_id, term)
        await self._master.stop_job_master(job_id)
        # A write of the JobMaster's may still be on its way; it must not come after the removals.
        await self._ha.depose(job_master(job_id), term)
        await self._ha.execution_store().remove(job_id, term)
        await self._ha.checkpoint_recovery_factory().clean_up(job_id, term)
        await self._blobs.clean_up(job_id, term)
        await self._ha.running_jobs_registry().mark_clean(job_id, term)

    async def forget(self, job_id: JobID, term: LeaderTerm) -> None:
        """Remove what was kept of a job after its end, once that was cleaned up after, or until the term is over."""
        while self._leads(term):
            try:
                async with self._forgetting:
                    entry = await self._ha.running_jobs_registry().entry(job_id)
                    if entry is None or not entry.dirty:
                        await self._forget_once(job_id, term)
                        break
            except LeadershipLostError:
                break
            except (HaError, OSError) as error:
                log.warning("job %s is not forgotten yet: %s", job_id, error)
            await asyncio.sleep(RETRY_S)

    async def _forget_once(self, job_id: JobID, term: LeaderTerm) -> None:
        try:
            await self._blobs.clean_up(logs_owner(job_id), term)
        except ActorError as error:
            log.info("the logs of job %s are left to a sweep: %s", job_id, error)
        await self._ha.running_jobs_registry().forget(job_id, term)
        for path in self._log_dir.glob(f"{job_master(job_id)}*.log*"):  # of every master's, and what was put aside
            path.unlink(missing_ok=True)

    async def sweep_blobs(
        self,
        term: LeaderTerm,
        interval_s: float,
        archived: Callable[[], Iterable[str]],
        known: Callable[[], Iterable[str]],
    ) -> None:
        """Have the blobs deleted that were uploaded and never submitted, or left over; as long as the term lasts.

        Args:
            term: the leadership.
            interval_s: seconds between two sweeps.
            archived: ended jobs that are kept.
            known: jobs that are not over, or being submitted.
        """
        while self._leads(term):
            try:
                registry = await self._ha.running_jobs_registry().entries()
                stored = await self._ha.job_graph_store().job_ids()
                ended = list(archived())
                if not self._leads(term):
                    return  # what it knew went with its leadership
                await self._blobs.sweep(live_jobs(known(), ended, stored, registry), term)
            except (ActorError, HaError) as error:
                log.warning("blobs that nobody knows were not swept, the next time they are: %s", error)
            await asyncio.sleep(interval_s)

"""Removes what an ended or forgotten job leaves behind (Flink's `DispatcherResourceCleanerFactory`).

This includes the job's blobs, and blobs without an owner; Flink does not sweep the latter.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from actors.errors import ActorError
from actors.receptionist import ReceptionistGateway
from actors.rpc.endpoint import RpcEndpoint
from blob.gateway import PATH as BLOB_SERVER_PATH
from blob.gateway import BlobServerGateway
from runtime.ha.errors import HaError, LeadershipLostError
from runtime.ha.running_jobs import JobEntry, JobSchedulingStatus
from runtime.ha.services import HighAvailabilityServices
from runtime.ids import JobID
from runtime.job_logs import logs_owner
from runtime.protocol.leader import LeaderTerm, job_master
from runtime.protocol.master import MasterGateway
from runtime.retry import pauses, retry

AT_ONCE = 16
"""Most jobs that are cleaned up at the same time, and most that are forgotten at the same time.

Ten thousand at once would all wait for one of a few connections to Redis, and most of them in vain."""

logger = logging.getLogger(__name__)
T = TypeVar("T")


def live_jobs(
    known: Iterable[str], archived: Iterable[str], stored: Iterable[str], registry: Mapping[str, JobEntry]
) -> list[str]:
    """Return whose blobs a sweep spares: all jobs with a record, and the owners of their logs, in order.

    A job that is only in the registry, as PENDING, does not count: its graph was never stored, so it can never run.

    Args:
        known: the present Dispatcher's jobs that are not over, or are being submitted. Read these after the others,
            because a job that was accepted in between is in none of the others.
        archived: ended jobs that are kept.
        stored: jobs whose graph is stored, whether or not it can be read.
        registry: the state of each job.
    """
    begun = {job_id for job_id, entry in registry.items() if entry.status is not JobSchedulingStatus.PENDING}
    jobs = {*known, *archived, *stored, *begun}
    return sorted({*jobs, *(logs_owner(JobID(job_id)) for job_id in jobs)})


class JobBlobs:
    """Sends requests to the BlobServer of the Dispatcher's own master, wherever it is at present.

    Args:
        owner: the Dispatcher, whose leadership the requests carry.
        receptionist: the system's directory.

    Every method raises ActorError if the BlobServer does not answer, or rejects the request.
    """

    def __init__(self, owner: RpcEndpoint, receptionist: ReceptionistGateway) -> None:
        self._owner = owner
        self._receptionist = receptionist

    async def _server(self) -> BlobServerGateway:
        listing = await self._receptionist.find(BLOB_SERVER_PATH)
        return self._owner.gateway(listing.address, BlobServerGateway)

    async def size_of(self, job_id: str, key: str) -> int | None:
        """Return the size of a blob in bytes; None if the BlobServer does not have it (it may be in the store)."""
        return await (await self._server()).lookup(job_id, key)

    async def use(self, *job_ids: str) -> None:
        """Spare these jobs' blobs from a sweep that does not know of them yet."""
        if not job_ids:
            return
        server = await self._server()
        outcomes = await asyncio.gather(*(server.use_job(job_id) for job_id in job_ids), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def clean_up(self, job_id: str, term: LeaderTerm) -> None:
        """Delete all blobs of a job that is over, or those of its logs, given their owner, when it is forgotten."""
        await (await self._server()).cleanup_job(job_id, term.token)

    async def sweep(self, live: list[str], term: LeaderTerm) -> None:
        """Delete the blobs of all other jobs that were not used for `blob.service.cleanup.ttl`."""
        swept = await (await self._server()).sweep_orphans(live, term.token)
        if swept:
            logger.info("the blobs of jobs without a record were deleted: %s", ", ".join(swept))

    async def try_to_use(self, *job_ids: str) -> None:
        """Do as `use`, but only log if the BlobServer does not answer: the next one counts again before it sweeps."""
        try:
            await self.use(*job_ids)
        except ActorError as error:
            logger.warning("the BlobServer does not know of %d recovered jobs: %s", len(job_ids), error)


class ResourceCleaner:
    """Cleans up for a Dispatcher while it leads.

    Args:
        ha: has the handles of the jobs.
        master: stops their JobMasters.
        blobs: deletes their files.
        log_dir: directory of the JobMasters' logs, which are removed when their jobs are forgotten.
        leads: returns whether the Dispatcher still leads under a term.
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
        """Remove what an ended job left, until nothing of it is left or the term is over."""
        await self._insist(self._clean_up_once, job_id, term)

    async def take_back(self, job_id: JobID, term: LeaderTerm) -> None:
        """Remove what a rejected submission has stored, until nothing of it is left or the term is over.

        If the term ends, the next leader does so: an entry that is PENDING and has no graph was never accepted.
        """
        await self._insist(self._take_back_once, job_id, term)

    async def _insist(
        self, once: Callable[[JobID, LeaderTerm], Awaitable[None]], job_id: JobID, term: LeaderTerm
    ) -> None:
        async def attempt() -> None:
            async with self._cleaning:
                if self._leads(term):
                    await once(job_id, term)

        await self._until_lost(attempt, f"cleaning up after job {job_id}")

    @staticmethod
    async def _until_lost(attempt: Callable[[], Awaitable[T]], what: str) -> T | None:
        """Repeat *attempt* until it succeeds; return None if another Dispatcher leads."""
        errors = (ActorError, HaError, OSError)
        try:
            return await retry(
                attempt, errors, unless=LeadershipLostError, what=what, log=logger, level=logging.WARNING
            )
        except LeadershipLostError:
            return None

    async def _take_back_once(self, job_id: JobID, term: LeaderTerm) -> None:
        registry = self._ha.running_jobs_registry()
        if await registry.entry(job_id) == JobEntry(JobSchedulingStatus.PENDING):
            await self._ha.job_graph_store().remove(job_id, term)
            await registry.withdraw(job_id, term)

    async def _clean_up_once(self, job_id: JobID, term: LeaderTerm) -> None:
        """Remove the handle first, then everything that it points to."""
        await self._ha.job_graph_store().remove(job_id, term)
        await self._master.stop_job_master(job_id)
        # A write of the JobMaster may still be on its way; it must not arrive after the removals.
        await self._ha.depose(job_master(job_id), term)
        await self._ha.execution_store().remove(job_id, term)
        await self._ha.checkpoint_recovery_factory().clean_up(job_id, term)
        await self._blobs.clean_up(job_id, term)
        await self._ha.running_jobs_registry().mark_clean(job_id, term)

    async def forget(self, job_id: JobID, term: LeaderTerm) -> None:
        """Remove what was kept of a job after its end, once the job is cleaned up, until the term is over."""

        async def attempt() -> bool:
            async with self._forgetting:
                if not self._leads(term):
                    return True
                entry = await self._ha.running_jobs_registry().entry(job_id)
                if entry is not None and entry.dirty:
                    return False
                await self._forget_once(job_id, term)
                return True

        for pause_s in pauses():
            if await self._until_lost(attempt, f"forgetting job {job_id}") is not False:
                return
            await asyncio.sleep(pause_s)  # until the job is cleaned up

    async def _forget_once(self, job_id: JobID, term: LeaderTerm) -> None:
        try:
            await self._blobs.clean_up(logs_owner(job_id), term)
        except ActorError as error:
            logger.info("the logs of job %s are left to a sweep: %s", job_id, error)
        await self._ha.running_jobs_registry().forget(job_id, term)
        for path in self._log_dir.glob(f"{job_master(job_id)}*.log*"):  # of every master, rotated ones too
            path.unlink(missing_ok=True)

    async def sweep_blobs(
        self,
        term: LeaderTerm,
        interval_s: float,
        archived: Callable[[], Iterable[str]],
        known: Callable[[], Iterable[str]],
    ) -> None:
        """Delete the blobs that were uploaded but never submitted, and left-over blobs, while the term lasts.

        Args:
            term: the leadership.
            interval_s: seconds between two sweeps.
            archived: returns the ended jobs that are kept.
            known: returns the jobs that are not over, or are being submitted.
        """
        while self._leads(term):
            try:
                registry = await self._ha.running_jobs_registry().entries()
                stored = await self._ha.job_graph_store().job_ids()
                ended = list(archived())
                if not self._leads(term):
                    return  # its lists are not valid after its leadership
                await self._blobs.sweep(live_jobs(known(), ended, stored, registry), term)
            except (ActorError, HaError) as error:
                logger.warning("blobs of jobs without a record were not swept; the next sweep tries again: %s", error)
            await asyncio.sleep(interval_s)

"""The care of the Dispatcher for its jobs' blobs: which are to be kept, and the BlobServer's orders (Flink's
`DispatcherResourceCleanerFactory` for the `BlobServer`; Flink has no sweep)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping

from actors.errors import ActorError
from actors.receptionist import ReceptionistGateway
from actors.rpc.endpoint import RpcEndpoint
from blob.gateway import PATH as BLOB_SERVER_PATH
from blob.gateway import BlobServerGateway
from runtime.ha.model import LeaderTerm
from runtime.ha.running_jobs import JobEntry, JobSchedulingStatus
from runtime.ids import JobID
from runtime.job_logs import logs_owner

log = logging.getLogger(__name__)


def live_jobs(
    known: Iterable[str], archived: Iterable[str], stored: Iterable[str], registry: Mapping[str, JobEntry]
) -> list[str]:
    """Whose blobs a sweep spares: the jobs that anybody has a record of, and the owners of their logs, in order.

    A job that is in the registry as PENDING, and nowhere else, does not count: whoever submitted it did not get as far
    as to have its graph stored, and nobody can run it.

    Args:
        known: the jobs of the Dispatcher that runs: not over, or being submitted. To be looked at after the others
            were read, since a job that was accepted meanwhile is in none of them.
        archived: ended jobs that are kept.
        stored: jobs whose graph is stored, whether or not it can be read.
        registry: how far each job has come.
    """
    begun = {job_id for job_id, entry in registry.items() if entry.status is not JobSchedulingStatus.PENDING}
    jobs = {*known, *archived, *stored, *begun}
    return sorted({*jobs, *(logs_owner(JobID(job_id)) for job_id in jobs)})


class JobBlobs:
    """Orders to the BlobServer of the Dispatcher's own master, wherever that is at present.

    Args:
        owner: the Dispatcher, under whose leadership the BlobServer is told.
        receptionist: the system's directory.

    Every method raises ActorError when the BlobServer does not answer, or refuses.
    """

    def __init__(self, owner: RpcEndpoint, receptionist: ReceptionistGateway) -> None:
        self._owner = owner
        self._receptionist = receptionist

    async def _server(self) -> BlobServerGateway:
        listing = await self._receptionist.find(BLOB_SERVER_PATH)
        return self._owner.gateway(listing.address, BlobServerGateway)

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
        """Delete all blobs of a job that is over, or in the name of its logs when it is forgotten."""
        await (await self._server()).cleanup_job(job_id, term.token)

    async def sweep(self, live: list[str], term: LeaderTerm) -> None:
        """Delete the blobs of all other jobs that were not used for `blob.service.cleanup.ttl`."""
        swept = await (await self._server()).sweep_orphans(live, term.token)
        if swept:
            log.info("the blobs of jobs that nobody knows were deleted: %s", ", ".join(swept))

    async def try_to_use(self, *job_ids: str) -> None:
        """As `use`, but a BlobServer that does not answer is none that sweeps: its next one begins to count anew."""
        try:
            await self.use(*job_ids)
        except ActorError as error:
            log.warning("the BlobServer was not told of %d recovered jobs: %s", len(job_ids), error)

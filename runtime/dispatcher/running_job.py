"""A job that is not over, as the Dispatcher shows it: by its JobMaster, or while that does not answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from actors.errors import ActorError
from runtime.dispatcher.autoscaling import Autoscaling
from runtime.ids import JobID
from runtime.leaders import LeaderFollower
from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph, JobDetails
from runtime.protocol.errors import GatewayError, JobNotReachableError
from runtime.protocol.execution_state import JobStatus
from runtime.protocol.job_master import JobMasterGateway
from runtime.protocol.rescales import Advice

DETAILS_TIMEOUT_S = 2.0

logger = logging.getLogger(__name__)


class RunningJob:
    """A job that is not over, as its JobMaster reports it, or has reported it last.

    Args:
        first: its details before its JobMaster has answered.
        leader: follows its JobMaster.
        ended: returns how the job has ended once it is archived; None before.
        queue: name of the queue that it asks for; empty for none.
        blob_bytes: bytes of the blobs with its files.

    Attributes:
        advice: the autoscaler's last decision about each of its queries, by this Dispatcher.
    """

    def __init__(
        self,
        first: JobDetails,
        leader: LeaderFollower[JobMasterGateway],
        ended: Callable[[JobID], JobDetails | None],
        queue: str = "",
        blob_bytes: int = 0,
    ) -> None:
        self.job_id = first.job_id
        self.owner = first.owner
        self.queue = queue
        self.autoscaling: Autoscaling | None = None
        self.advice: tuple[Advice, ...] = ()
        self.blob_bytes = blob_bytes
        self.leader = leader
        self.over = asyncio.Event()
        self._last_known = first
        self._ended = ended

    @property
    def gateway(self) -> JobMasterGateway:
        """Gateway of the present JobMaster; raises `JobNotReachableError`."""
        if self.leader.gateway is None:
            raise JobNotReachableError(f"the JobMaster of job {self.job_id} is being started; retry in a moment")
        return self.leader.gateway

    def last_known(self) -> ArchivedExecutionGraph:
        """Return what is known of the job without its JobMaster: no tasks."""
        known = self._last_known
        return ArchivedExecutionGraph(
            job_id=known.job_id,
            name=known.name,
            kind=known.kind,
            status=known.status,
            timestamps={JobStatus.INITIALIZING.value: known.start_ms},
            tasks=(),
            vertices=(),
            failure=None,
            failure_history=(),
            restarts=0,
            restart_strategy="",
            submitter=known.submitter,
            is_function=known.is_function,
            owner=known.owner,
        )

    async def details(self) -> JobDetails:
        """Return the job in one line."""
        if self.leader.gateway is not None:
            try:
                async with asyncio.timeout(DETAILS_TIMEOUT_S):
                    details = await self.leader.gateway.request_job_details()
                    if details.status.is_globally_terminal:
                        # No client sees an end before it is recorded: the JobMaster is about to report it.
                        await self.over.wait()
                        return self._ended(self.job_id) or details
                    self._last_known = details
            except (ActorError, GatewayError, TimeoutError) as error:
                logger.info("the JobMaster of job %s does not answer: %s", self.job_id, error)
            else:
                return self._last_known
        return self._unconfirmed()

    def _unconfirmed(self) -> JobDetails:
        """Return the state to show while a job's JobMaster does not answer: never RUNNING, which is not known then."""
        known = self._last_known
        if known.status in (JobStatus.INITIALIZING, JobStatus.RECONCILING):
            return known
        return replace(known, status=JobStatus.RECONCILING, end_ms=None, tasks_per_state={}, tasks_total=0)

    async def request(self) -> ArchivedExecutionGraph:
        """Return the job with its tasks; wait for an end that is not recorded yet.

        Raises:
            JobNotReachableError: the job has no JobMaster at present, or its end is still being recorded.
        """
        graph = await self.gateway.request_job()
        self._last_known = replace(self._last_known, status=graph.status)
        if graph.status.is_globally_terminal:
            try:
                async with asyncio.timeout(DETAILS_TIMEOUT_S):
                    await self.over.wait()
            except TimeoutError:
                raise JobNotReachableError(
                    f"the end of job {self.job_id} is being recorded; retry in a moment"
                ) from None
        return graph

    async def try_to_request(self) -> ArchivedExecutionGraph | None:
        """Return the job with its tasks; None while its JobMaster does not answer."""
        try:
            async with asyncio.timeout(DETAILS_TIMEOUT_S):
                graph = await self.gateway.request_job()
                self._last_known = replace(self._last_known, status=graph.status)
                return graph
        except (ActorError, JobNotReachableError, TimeoutError) as error:
            logger.info("the JobMaster of job %s does not answer: %s", self.job_id, error)
            return None

"""A job that is not over, as the Dispatcher knows it: by its JobMaster, or by what that said last."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from actors.errors import ActorError
from runtime.ids import JobID
from runtime.leaders import LeaderFollower
from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph, JobDetails
from runtime.protocol.errors import GatewayError, JobNotReachableError
from runtime.protocol.execution_state import JobStatus
from runtime.protocol.job_master import JobMasterGateway

DETAILS_TIMEOUT_S = 2.0

logger = logging.getLogger(__name__)


class RunningJob:
    """One job.

    Args:
        first: what is known of it before its JobMaster has spoken.
        leader: follows its JobMaster.
        ended: how the job has ended, once it is archived; None before.
    """

    def __init__(
        self,
        first: JobDetails,
        leader: LeaderFollower[JobMasterGateway],
        ended: Callable[[JobID], JobDetails | None],
    ) -> None:
        self.job_id = first.job_id
        self.leader = leader
        self.over = asyncio.Event()
        self._last_known = first
        self._ended = ended

    @property
    def gateway(self) -> JobMasterGateway:
        """The JobMaster at present; raises `JobNotReachableError`."""
        if self.leader.gateway is None:
            raise JobNotReachableError(f"the JobMaster of job {self.job_id} is being started; ask again in a moment")
        return self.leader.gateway

    async def details(self) -> JobDetails:
        """The job in one line."""
        if self.leader.gateway is not None:
            try:
                async with asyncio.timeout(DETAILS_TIMEOUT_S):
                    details = await self.leader.gateway.request_job_details()
                    if details.status.is_globally_terminal:
                        # Nobody is told of an end before it is written down: the JobMaster is about to report it.
                        await self.over.wait()
                        return self._ended(self.job_id) or details
                    self._last_known = details
            except (ActorError, GatewayError, TimeoutError) as error:
                logger.info("the JobMaster of job %s does not answer: %s", self.job_id, error)
            else:
                return self._last_known
        return self._unconfirmed()

    def _unconfirmed(self) -> JobDetails:
        """What is said of a job whose JobMaster does not answer: never RUNNING, for that is not known."""
        known = self._last_known
        if known.status in (JobStatus.INITIALIZING, JobStatus.RECONCILING):
            return known
        return replace(known, status=JobStatus.RECONCILING, end_ms=None, tasks_per_state={}, tasks_total=0)

    async def request(self) -> ArchivedExecutionGraph:
        """The job with its tasks; an end that is not recorded yet is waited for.

        Raises:
            JobNotReachableError: there is no JobMaster at present, or the end is still being recorded.
        """
        graph = await self.gateway.request_job()
        self._last_known = replace(self._last_known, status=graph.status)
        if graph.status.is_globally_terminal:
            try:
                async with asyncio.timeout(DETAILS_TIMEOUT_S):
                    await self.over.wait()
            except TimeoutError:
                raise JobNotReachableError(f"the end of job {self.job_id} is being recorded; ask again") from None
        return graph

    async def try_to_request(self) -> ArchivedExecutionGraph | None:
        """The job with its tasks; None while its JobMaster does not answer."""
        try:
            async with asyncio.timeout(DETAILS_TIMEOUT_S):
                graph = await self.gateway.request_job()
                self._last_known = replace(self._last_known, status=graph.status)
                return graph
        except (ActorError, JobNotReachableError, TimeoutError) as error:
            logger.info("the JobMaster of job %s does not answer: %s", self.job_id, error)
            return None

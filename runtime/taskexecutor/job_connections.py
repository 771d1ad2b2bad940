"""The TaskExecutor's connections to the JobMasters of the jobs that it has slots for (Flink's `JobLeaderService`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from actors.errors import ActorError
from actors.rpc.gateway import FencingToken
from runtime.gateways.errors import GatewayError, UnknownTaskExecutorError
from runtime.gateways.job_master import JobMasterGateway
from runtime.gateways.messages import LeaderAddress
from runtime.ha.model import job_master
from runtime.ha.services import HighAvailabilityServices
from runtime.ids import JobID
from runtime.leaders import LeaderFollower

if TYPE_CHECKING:
    from runtime.taskexecutor.endpoint import TaskExecutor

RETRY_S = 0.5


@dataclass(slots=True)
class JobConnection:
    """One job: its JobMaster of the highest epoch that was heard of."""

    job_id: JobID
    token: FencingToken
    gateway: JobMasterGateway
    follower: LeaderFollower[JobMasterGateway]
    offering: asyncio.Task[None] | None = None
    registered: bool = False
    losses: int = 0


class JobConnections:
    """Registers with each JobMaster and offers it its slots, again whenever another one leads.

    Args:
        endpoint: the TaskExecutor.
        ha: finds the leaders.
        on_connected: called when a JobMaster has registered this TaskExecutor.
    """

    def __init__(
        self, endpoint: TaskExecutor, ha: HighAvailabilityServices, on_connected: Callable[[JobID], None]
    ) -> None:
        self._endpoint = endpoint
        self._ha = ha
        self._on_connected = on_connected
        self._jobs: dict[JobID, JobConnection] = {}

    def find(self, job_id: JobID) -> JobConnection | None:
        """The connection of a job."""
        return self._jobs.get(job_id)

    def jobs(self) -> list[JobID]:
        """All jobs that are connected to, or wanted to be."""
        return list(self._jobs)

    async def add(self, job_id: JobID, leader: LeaderAddress) -> None:
        """There are slots for this job, and this was its JobMaster when they were given."""
        known = self._jobs.get(job_id)
        if known is None:
            follower = LeaderFollower(
                self._endpoint,
                self._ha.leader_retrieval(job_master(job_id)),
                JobMasterGateway,
                lambda gateway: self._leader_changed(job_id, gateway),
            )
            gateway = self._endpoint.gateway(leader.address, JobMasterGateway, leader.token)
            self._jobs[job_id] = JobConnection(job_id, leader.token, gateway, follower)
            self.offer(job_id)
            await follower.start()
        else:
            self._switch(known, leader)
            self.offer(job_id)

    async def remove(self, job_id: JobID) -> None:
        """The job has no slots and no tasks here any more."""
        connection = self._jobs.pop(job_id, None)
        if connection is not None:
            if connection.offering is not None:
                connection.offering.cancel()
            await connection.follower.stop()

    def master_lost(self, job_id: JobID) -> int | None:
        """The job's JobMaster is silent: it has to be registered with anew.

        Returns:
            the number of this loss, for `is_lost`; None if there is no connection.
        """
        connection = self._jobs.get(job_id)
        if connection is None:
            return None
        connection.registered = False
        connection.losses += 1
        return connection.losses

    def master_heard(self, job_id: JobID, leader: LeaderAddress) -> bool:
        """A JobMaster speaks: one that is new, or was taken for lost, is registered with; a former one is ignored.

        Returns:
            whether it is the job's present JobMaster, as far as is known.
        """
        connection = self._jobs.get(job_id)
        if connection is None or leader.token < connection.token:
            return False
        if self._switch(connection, leader) or (
            not connection.registered and (connection.offering is None or connection.offering.done())
        ):
            self.offer(job_id)
        return True

    def is_lost(self, job_id: JobID, loss: int) -> bool:
        """Whether no JobMaster has been registered with since that loss."""
        connection = self._jobs.get(job_id)
        return connection is not None and connection.losses == loss and not connection.registered

    def _leader_changed(self, job_id: JobID, gateway: JobMasterGateway | None) -> None:
        connection = self._jobs.get(job_id)
        if connection is None or gateway is None or connection.follower.leader is None:
            return
        leader = connection.follower.leader
        address = LeaderAddress(leader.address, FencingToken(leader.epoch, leader.session))
        if self._switch(connection, address):
            self.offer(job_id)

    def _switch(self, connection: JobConnection, leader: LeaderAddress) -> bool:
        if leader.token <= connection.token:
            return False
        connection.token = leader.token
        connection.gateway = self._endpoint.gateway(leader.address, JobMasterGateway, leader.token)
        connection.registered = False
        return True

    def offer(self, job_id: JobID) -> None:
        """Register with the job's JobMaster and offer it all of its slots."""
        connection = self._jobs.get(job_id)
        if connection is None:
            return
        if connection.offering is not None:
            connection.offering.cancel()
        connection.offering = self._endpoint.spawn(self._offer(connection), f"offering slots to job {job_id}")

    async def _offer(self, connection: JobConnection) -> None:
        endpoint, job_id = self._endpoint, connection.job_id
        while self._jobs.get(job_id) is connection:
            token = connection.token
            try:
                if not connection.registered:
                    report = endpoint.report_of(job_id)
                    await connection.gateway.register_task_manager(endpoint.registration, report)
                    connection.registered = connection.token == token
                    self._on_connected(job_id)
                offers = endpoint.slots.offers(job_id)
                accepted = await connection.gateway.offer_slots(endpoint.resource_id, offers)
            except (ActorError, GatewayError) as error:
                if isinstance(error, UnknownTaskExecutorError):
                    connection.registered = False
                endpoint.log.info("the JobMaster of job %s does not take slots yet: %s", job_id, error)
                await asyncio.sleep(RETRY_S)
                continue
            for offer in offers:
                if offer.allocation_id not in accepted:
                    endpoint.release_slot(offer.allocation_id, "the job does not need it")
            return

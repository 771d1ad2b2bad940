"""Connections of the TaskExecutor: to the ResourceManager, and to the JobMasters of the jobs that have slots here.

`IsolationWatch` kills the tasks and their Spark driver once the TaskExecutor is cut off from all of them.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

from actors.errors import ActorError, AuthenticationError
from actors.rpc.endpoint import RpcEndpoint
from actors.rpc.gateway import FencingToken
from blob.gateway import BlobAddress
from conf.configuration import Configuration
from conf.options import ResourceManagerDriverType, ResourceManagerOptions, TaskManagerOptions
from runtime.ha.errors import HaError
from runtime.ha.services import HighAvailabilityServices
from runtime.heartbeat import Silence
from runtime.ids import AllocationID, InstanceID, JobID
from runtime.leaders import LeaderFollower
from runtime.protocol.descriptor import JobReport
from runtime.protocol.errors import GatewayError, RegistrationRejectedError, UnknownTaskExecutorError
from runtime.protocol.job_master import JobMasterGateway
from runtime.protocol.leader import RESOURCE_MANAGER, boottime, job_master
from runtime.protocol.messages import LeaderAddress, RegistrationSuccess, TaskExecutorRegistration
from runtime.protocol.resource_manager import ResourceManagerGateway
from runtime.retry import retry
from runtime.taskexecutor.slot_table import TaskSlotTable
from runtime.taskexecutor.worker_files import REFUSED, REGISTERED, WAITING, RegistrationState

logger = logging.getLogger(__name__)


class ResourceManagerConnection:
    """Keeps the TaskExecutor registered at the leading ResourceManager, and reports the slots to it.

    Flink's `TaskExecutorToResourceManagerConnection`.

    Args:
        endpoint: the TaskExecutor.
        ha: finds the leader.
        slots: the slots that it reports.
        registration: returns what the TaskExecutor registers with.
        silence_s: seconds without a heartbeat after which it registers again (``heartbeat.timeout``).
        on_registered: called with the answer to each registration.
        state: file that shows how far the registration is.
    """

    def __init__(
        self,
        endpoint: RpcEndpoint,
        ha: HighAvailabilityServices,
        slots: TaskSlotTable,
        registration: Callable[[], TaskExecutorRegistration],
        silence_s: float,
        on_registered: Callable[[RegistrationSuccess], None],
        state: RegistrationState,
    ) -> None:
        self._endpoint = endpoint
        self._slots = slots
        self._registration = registration
        self._silence_s = silence_s
        self._on_registered = on_registered
        self._state = state
        self._follower = LeaderFollower(
            endpoint, ha.leader_retrieval(RESOURCE_MANAGER), ResourceManagerGateway, self._leader_changed
        )
        self._instance_id: InstanceID | None = None
        self._registering: asyncio.Task[None] | None = None
        self._silence = Silence()
        self._abandoned = Silence()
        self.blob: BlobAddress | None = None
        """Address of the leader's BlobServer; None before the first registration."""

    async def start(self) -> None:
        """Follow the leader."""
        self._state.write(WAITING, "no ResourceManager leads, or the leader cannot be found")
        await self._follower.start()

    async def stop(self) -> None:
        """Tell the leader that this TaskExecutor stops, and follow the leader no more."""
        self.disconnect("it stops")
        await self._follower.stop()

    def disconnect(self, reason: str) -> None:
        """Tell the leader, if one is known, that this TaskExecutor stops."""
        if self._follower.gateway is not None:
            self._follower.gateway.disconnect_task_manager(self._slots.resource_id, reason)

    def heard(self) -> None:
        """Note that the ResourceManager has requested a heartbeat."""
        self._silence.heard()
        self._abandoned.heard()

    async def end_when_abandoned(self, configuration: Configuration, runner_pid: int) -> None:
        """End the worker's process after ``taskmanager.registration.timeout`` without a sign of a ResourceManager.

        No process would ever stop a worker that was started on demand and whose cluster no longer exists (Flink's
        `onRegistrationTimeout`). Only time in which this process has run counts: after a suspend it listens first.
        """
        if configuration.get(ResourceManagerOptions.DRIVER) is ResourceManagerDriverType.STANDALONE:
            return
        timeout_s = configuration.get(TaskManagerOptions.REGISTRATION_TIMEOUT)
        await self._abandoned.lasts(timeout_s)
        self._endpoint.log.error("no ResourceManager was heard of for %g s: this worker ends itself", timeout_s)
        os.kill(runner_pid, signal.SIGTERM)

    def slots_changed(self) -> None:
        """Report the slots."""
        gateway = self._follower.gateway
        if gateway is not None and self._instance_id is not None:
            gateway.notify_slot_available(self._instance_id, self._slots.report())

    def _leader_changed(self, gateway: ResourceManagerGateway | None) -> None:
        if self._registering is not None:
            self._registering.cancel()
            self._registering = None
        self._instance_id = None
        if gateway is not None:
            self._registering = self._endpoint.spawn(
                self._stay_registered(gateway), "registering at the ResourceManager"
            )

    async def _stay_registered(self, gateway: ResourceManagerGateway) -> None:
        endpoint, silence_s = self._endpoint, self._silence_s
        while True:
            await retry(
                lambda: self._register(gateway),
                (ActorError, GatewayError),
                what="registering at the ResourceManager",
                log=endpoint.log,
            )
            endpoint.log.info("registered at the ResourceManager")
            self._state.write(REGISTERED)
            self.heard()
            await self._silence.lasts(silence_s)
            endpoint.log.warning("the ResourceManager was silent for %g s: registering again", silence_s)

    async def _register(self, gateway: ResourceManagerGateway) -> None:
        try:
            success = await gateway.register_task_executor(self._registration())
            self.blob, self._instance_id = success.blob, success.instance_id
            self._on_registered(success)
            await gateway.send_slot_report(success.instance_id, self._slots.report())
        except (ActorError, GatewayError) as error:
            is_refused = isinstance(error, RegistrationRejectedError | AuthenticationError)
            self._state.write(REFUSED if is_refused else WAITING, str(error))
            raise


@dataclass(slots=True)
class JobConnection:
    """Connection to the JobMaster of one job: the one with the highest epoch that is known."""

    job_id: JobID
    leader: LeaderAddress
    gateway: JobMasterGateway
    follower: LeaderFollower[JobMasterGateway]
    offering: asyncio.Task[None] | None = None
    registered: bool = False
    registration: int = 0
    losses: int = 0

    @property
    def token(self) -> FencingToken:
        """The leadership of that JobMaster."""
        return self.leader.token


class JobConnections:
    """Registers with each JobMaster and offers its slots, again whenever the leader changes.

    Flink's `JobLeaderService`.

    Args:
        endpoint: the TaskExecutor.
        ha: finds the leaders.
        slots: the slots that are offered.
        registration: returns what the TaskExecutor registers with.
        report_of: returns the attempts and slots of a job.
        release_slot: frees a slot that its job does not need, with the reason.
        on_connected: called when a JobMaster has registered this TaskExecutor.
    """

    def __init__(
        self,
        endpoint: RpcEndpoint,
        ha: HighAvailabilityServices,
        slots: TaskSlotTable,
        registration: Callable[[], TaskExecutorRegistration],
        report_of: Callable[[JobID], JobReport],
        release_slot: Callable[[AllocationID, str], None],
        on_connected: Callable[[JobID], None],
    ) -> None:
        self._endpoint = endpoint
        self._slots = slots
        self._registration = registration
        self._report_of = report_of
        self._release_slot = release_slot
        self._ha = ha
        self._on_connected = on_connected
        self._jobs: dict[JobID, JobConnection] = {}
        self._numbers = itertools.count(1)

    def find(self, job_id: JobID) -> JobConnection | None:
        """Return the connection of a job; None if the job has none."""
        return self._jobs.get(job_id)

    def jobs(self) -> list[JobID]:
        """Return all jobs that have a connection, established or not."""
        return list(self._jobs)

    def leaders(self) -> dict[JobID, LeaderAddress]:
        """Return the JobMaster of each job that has a connection."""
        return {job_id: connection.leader for job_id, connection in self._jobs.items()}

    def registrations(self) -> dict[JobID, int]:
        """Return the number of the last registration with each job that has a connection; no two have the same."""
        return {job_id: connection.registration for job_id, connection in self._jobs.items()}

    async def add(self, job_id: JobID, leader: LeaderAddress) -> None:
        """Connect to a job that has received slots; *leader* was its JobMaster at that moment."""
        known = self._jobs.get(job_id)
        if known is None:
            follower = LeaderFollower(
                self._endpoint,
                self._ha.leader_retrieval(job_master(job_id)),
                JobMasterGateway,
                lambda gateway: self._leader_changed(job_id, gateway),
            )
            gateway = self._endpoint.gateway(leader.address, JobMasterGateway, leader.token)
            self._jobs[job_id] = JobConnection(job_id, leader, gateway, follower)
            self.offer(job_id)
            await follower.start()
        else:
            self._switch(known, leader)
            self.offer(job_id)

    async def remove(self, job_id: JobID) -> None:
        """Drop the connection of a job that has no slots and no tasks here any more."""
        connection = self._jobs.pop(job_id, None)
        if connection is not None:
            if connection.offering is not None:
                connection.offering.cancel()
            await connection.follower.stop()

    def master_lost(self, job_id: JobID) -> int | None:
        """Note that the job's JobMaster is silent, so that this TaskExecutor registers with it again.

        Returns:
            the number of this loss, for `is_lost`; None if the job has no connection.
        """
        connection = self._jobs.get(job_id)
        if connection is None:
            return None
        connection.registered = False
        connection.losses += 1
        return connection.losses

    def master_heard(self, job_id: JobID, leader: LeaderAddress) -> bool:
        """Note a heartbeat of a JobMaster. Register with it if it is new or was lost; ignore a former leader.

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
        """Return whether no JobMaster has registered this TaskExecutor since that loss."""
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
        connection.leader = leader
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
        await retry(
            lambda: self._offer_once(connection),
            (ActorError, GatewayError),
            what=f"offering slots to the JobMaster of job {connection.job_id}",
            log=self._endpoint.log,
        )

    async def _offer_once(self, connection: JobConnection) -> None:
        job_id, token = connection.job_id, connection.token
        if self._jobs.get(job_id) is not connection:
            return
        if not connection.registered:
            await connection.gateway.register_task_manager(self._registration(), self._report_of(job_id))
            connection.registered = connection.token == token
            connection.registration = next(self._numbers)
            self._on_connected(job_id)
        offers = self._slots.offers(job_id)
        try:
            accepted = await connection.gateway.offer_slots(self._slots.resource_id, offers)
        except UnknownTaskExecutorError:
            connection.registered = False
            raise
        for offer in offers:
            if offer.allocation_id not in accepted:
                self._release_slot(offer.allocation_id, "the job does not need it")


class Isolation:
    """Decides from the last sign of life of the cluster whether this TaskExecutor is cut off. Pure.

    It is a lease. The cluster may run these tasks again after ``heartbeat.timeout`` without a sign from here, and by
    then they must have ended. Akka's split brain resolver likewise downs an isolated node.

    Times are seconds, of a clock that runs through suspend.

    Args:
        timeout_s: seconds without a sign of life after which the TaskExecutor counts as cut off.
        now: when the TaskExecutor begins to listen.
    """

    def __init__(self, timeout_s: float, now: float) -> None:
        self._timeout_s = timeout_s
        self._last_heard = now

    def heard(self, now: float) -> None:
        """Note a sign of life of a ResourceManager, a JobMaster or the store of the leaders."""
        self._last_heard = max(self._last_heard, now)

    def silent_for(self, now: float) -> float:
        """Return the number of seconds since the last sign of life."""
        return max(now - self._last_heard, 0.0)

    def is_isolated(self, now: float) -> bool:
        """Return whether the silence has reached the timeout."""
        return self.silent_for(now) >= self._timeout_s


class IsolationWatch:
    """Listens for the cluster, and queries the store of the leaders while the cluster is silent.

    Args:
        ha: a store that answers shows that this TaskExecutor is not cut off, only without a leader.
        timeout_s: see `Isolation`; None: the TaskExecutor never counts as cut off.
        interval_s: ``heartbeat.interval``: most seconds between two checks.
        has_tasks: returns whether any task runs.
        driver_pid: process of the Spark driver.
        clock: seconds; runs through suspend.
    """

    def __init__(
        self,
        ha: HighAvailabilityServices,
        timeout_s: float | None,
        interval_s: float,
        has_tasks: Callable[[], bool],
        driver_pid: int,
        clock: Callable[[], float] = boottime,
    ) -> None:
        self._ha = ha
        self._isolation = None if timeout_s is None else Isolation(timeout_s, clock())
        self._interval_s = interval_s
        self._step_s = interval_s / 2  # one for the pause, one for the answer
        self._has_tasks = has_tasks
        self._driver_pid = driver_pid
        self._clock = clock

    def heard(self) -> None:
        """Note a sign of life of the cluster."""
        if self._isolation is not None:
            self._isolation.heard(self._clock())

    async def run(self) -> None:
        """Watch until the process ends, or there is nothing to watch."""
        while self._isolation is not None:
            await asyncio.sleep(self._step_s)
            await self.look(self._isolation)

    async def look(self, isolation: Isolation) -> None:
        """Query the store of the leaders after an interval of silence; kill tasks and driver once cut off."""
        asked = self._clock()
        if isolation.silent_for(asked) > self._interval_s:
            try:
                async with asyncio.timeout(self._step_s):
                    await self._ha.current_leader(RESOURCE_MANAGER)
            except (HaError, TimeoutError) as error:
                logger.debug("the store of the leaders does not answer: %s", error)
            else:
                isolation.heard(asked)
        now = self._clock()
        if isolation.is_isolated(now) and self._has_tasks():
            self._end(isolation.silent_for(now))

    def _end(self, silent_s: float) -> None:
        """Kill the tasks at once: an orderly end takes time, and by now the tasks may run elsewhere."""
        logger.critical(
            "nothing was heard of the cluster for %.1f s (taskmanager.isolation.timeout): this TaskExecutor kills its "
            "tasks with their Spark driver (process %d), and restarts",
            silent_s,
            self._driver_pid,
        )
        for pid in (self._driver_pid, os.getpid()):
            os.kill(pid, signal.SIGKILL)

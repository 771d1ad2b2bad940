"""The JobMaster's connection to the leading ResourceManager (Flink's `EstablishedResourceManagerConnection`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from actors.errors import ActorError
from conf.options import JobOptions
from runtime.ha.services import HighAvailabilityServices
from runtime.heartbeat import Silence
from runtime.ids import AllocationID, JobID, ResourceID
from runtime.jobgraph.job_graph import JobGraph
from runtime.jobmaster.slot_pool import AskForSlot
from runtime.leaders import LeaderFollower
from runtime.leadership import LeaderEndpoint
from runtime.protocol.errors import UnknownJobManagerError, UnknownTaskExecutorError
from runtime.protocol.leader import RESOURCE_MANAGER
from runtime.protocol.messages import JobMasterRegistration, TaskExecutorRegistration
from runtime.protocol.resource_manager import ResourceManagerGateway
from runtime.protocol.slots import SlotRequest
from runtime.queues.configuration import Asked
from runtime.retry import retry


class ResourceManagerConnection:
    """Registers the job with each new leader, and again after a heartbeat time-out of silence.

    Args:
        endpoint: the JobMaster.
        job_id: the job.
        ha: finds the leader.
        silence_s: seconds without a heartbeat after which the job registers again.
        on_connected: called once a registration is under way: later requests arrive after it.
        on_lost: called when there is no ResourceManager any more.
        on_waiting: called with a slot request and what it waits for, as the ResourceManager reports it.
    """

    def __init__(
        self,
        endpoint: LeaderEndpoint,
        job_id: JobID,
        ha: HighAvailabilityServices,
        silence_s: float,
        *,
        on_connected: Callable[[], None],
        on_lost: Callable[[], None],
        on_waiting: Callable[[AllocationID, str], None],
    ) -> None:
        self._endpoint = endpoint
        self._job_id = job_id
        self._job: JobGraph | None = None
        self._silence_s = silence_s
        self._on_connected = on_connected
        self._on_lost = on_lost
        self._on_waiting = on_waiting
        self._leader = LeaderFollower(
            endpoint, ha.leader_retrieval(RESOURCE_MANAGER), ResourceManagerGateway, self._leader_changed
        )
        self._gateway: ResourceManagerGateway | None = None
        self._may_register = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._silence = Silence()
        self._over = False

    async def start(self) -> None:
        """Begin to follow the leader; the job is registered from `register` on."""
        self._over = False
        await self._leader.start()

    def register(self, job: JobGraph) -> None:
        """Register *job* with the leader: from now on the job has its graph, and its JobMaster leads."""
        self._job = job
        self._may_register.set()

    async def stop(self) -> None:
        """Stop following the leader."""
        self._over = True
        self._may_register.clear()
        await self._leader.stop()
        self._forget()

    def heartbeat(self) -> None:
        """Note a sign of life of the ResourceManager."""
        self._silence.heard()

    def _leader_changed(self, gateway: ResourceManagerGateway | None) -> None:
        self._forget()
        if gateway is not None and not self._over:
            self._task = self._endpoint.spawn(self._stay_registered(gateway), "registering at the ResourceManager")

    def _forget(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if self._gateway is not None:
            self._gateway = None
            self._on_lost()

    async def _stay_registered(self, gateway: ResourceManagerGateway) -> None:
        await self._may_register.wait()
        while not self._over and self._endpoint.fencing_token is not None:
            await retry(
                lambda: self._register(gateway),
                (ActorError, UnknownJobManagerError),
                what=f"registering job {self._job_id} at the ResourceManager",
                log=self._endpoint.log,
            )

    async def _register(self, gateway: ResourceManagerGateway) -> None:
        """Register the job, and return once the ResourceManager has been silent for too long after that."""
        token = self._endpoint.fencing_token
        if self._over or token is None:
            return
        job = self._job
        owner, queue = ("", "") if job is None else (job.owner, job.configuration.get(JobOptions.QUEUE.key, ""))
        asked = Asked() if job is None else Asked.of(job.configuration, job.largest_memory, job.blob_bytes)
        cpus = "" if asked.cpus is None else str(asked.cpus)
        address = str(self._endpoint.address)
        registration = JobMasterRegistration(address, token, owner, queue, asked.memory_mb, cpus, asked.blob_bytes)
        registered = gateway.register_job_manager(self._job_id, registration)
        # Requests from now on arrive after the registration, on the same connection, and are rejected without it.
        self._gateway = gateway
        self._silence.heard()
        self._on_connected()
        try:
            await registered
            await self._silence.lasts(self._silence_s)
            self._endpoint.log.warning("the ResourceManager was silent for %g s: registering again", self._silence_s)
        finally:
            if self._gateway is gateway:
                self._gateway = None
                self._on_lost()

    def ask_for_slot(self, request: AskForSlot, job: JobGraph) -> None:
        """Send a slot request to the present leader."""
        if self._gateway is not None:
            wanted = SlotRequest(
                self._job_id,
                request.allocation_id,
                job.name,
                request.task_name,
                job.priority,
                request.preferred_locations,
            )
            self._endpoint.spawn(self._ask(self._gateway, wanted), f"asking for slot {request.allocation_id}")

    async def _ask(self, gateway: ResourceManagerGateway, request: SlotRequest) -> None:

        async def ask() -> None:
            if gateway is self._gateway:
                self._on_waiting(request.allocation_id, await gateway.request_slot(request))

        what = f"the slot request for {request.task_name!r}"
        await retry(ask, (ActorError, UnknownJobManagerError), what=what, log=self._endpoint.log)

    async def registration_of(self, resource_id: ResourceID) -> TaskExecutorRegistration | None:
        """Return the registration of a TaskExecutor at the present leader; None if there is none, or no answer."""
        if self._gateway is None:
            return None
        try:
            return (await self._gateway.request_task_manager_info(resource_id)).registration
        except (ActorError, UnknownTaskExecutorError):
            return None

    def withdraw(self, allocation_id: AllocationID) -> None:
        """Withdraw a slot request."""
        if self._gateway is not None:
            self._gateway.cancel_slot_request(allocation_id)

    def job_over(self, status: str) -> None:
        """Tell the ResourceManager that the job has reached its end."""
        self._over = True
        if self._gateway is not None:
            self._gateway.disconnect_job_manager(self._job_id, f"the job is {status}")

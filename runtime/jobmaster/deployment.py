"""The TaskExecutors of one job, as its JobMaster sees them: deploying, cancelling and giving back slots."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from actors.errors import ActorError
from blob.gateway import BlobAddress
from conf.configuration import Configuration
from conf.options import BlobOptions, RpcOptions
from runtime.environment.context import blob_client
from runtime.gateways.errors import DeploymentNotFoundError, SlotNotAllocatedError, UnknownTaskExecutorError
from runtime.gateways.messages import TaskExecutorRegistration
from runtime.gateways.task_executor import TaskExecutorGateway
from runtime.ids import ExecutionAttemptID, JobID, ResourceID
from runtime.jobmaster.deployment_message import TaskDeployment, pack
from runtime.jobmaster.deployment_offload import DeploymentOffload
from runtime.jobmaster.descriptor import TaskDeploymentDescriptor
from runtime.jobmaster.slot_pool import AllocatedSlot
from runtime.leadership import LeaderEndpoint

CANCEL_RETRY_S = 1.0


@dataclass(slots=True)
class _Worker:
    registration: TaskExecutorRegistration
    gateway: TaskExecutorGateway


class TaskManagers:
    """The registered TaskExecutors of one job.

    Args:
        endpoint: the JobMaster, whose main thread everything here runs on.
        job_id: the job.
        configuration: the cluster's.
        blob: where what is over the limit of a descriptor is uploaded to.
    """

    def __init__(
        self, endpoint: LeaderEndpoint, job_id: JobID, configuration: Configuration, blob: BlobAddress
    ) -> None:
        self._endpoint = endpoint
        self._job_id = job_id
        self._blobs = blob_client(configuration, blob, endpoint.service.secret)
        self._offload = DeploymentOffload(
            self._blobs,
            # Both parts of a descriptor go in one message.
            min(configuration.get(BlobOptions.OFFLOAD_MINSIZE), configuration.get(RpcOptions.FRAME_SIZE) // 4),
            job_id,
            endpoint.run_blocking,
            configuration.get(BlobOptions.CLEANUP_TTL),
        )
        self._workers: dict[ResourceID, _Worker] = {}
        self._expected: dict[ResourceID, str] = {}
        self._deploying: dict[ExecutionAttemptID, asyncio.Event] = {}

    def add(self, registration: TaskExecutorRegistration) -> TaskExecutorGateway:
        """A TaskExecutor has registered; returns its gateway."""
        gateway = self._endpoint.gateway(registration.address, TaskExecutorGateway, term=self._endpoint.term)
        self._endpoint.service.connect(registration.address)  # while it offers its slots
        self._expected.pop(registration.resource_id, None)
        self._workers[registration.resource_id] = _Worker(registration, gateway)
        return gateway

    def expect(self, resource_id: ResourceID, address: str) -> None:
        """A former JobMaster of the job used that TaskExecutor; it has not registered with this one yet."""
        self._expected[resource_id] = address

    def is_replaced_by(self, registration: TaskExecutorRegistration) -> bool:
        """Whether another process was known, or expected, under this resource id."""
        known = self._workers.get(registration.resource_id)
        address = self._expected.get(registration.resource_id) if known is None else known.registration.address
        return address is not None and address != registration.address

    def remove(self, resource_id: ResourceID) -> bool:
        """Forget a TaskExecutor; returns whether it was known or expected."""
        expected = self._expected.pop(resource_id, None) is not None
        return self._workers.pop(resource_id, None) is not None or expected

    def address_of(self, resource_id: ResourceID) -> str:
        """RPC address of a registered TaskExecutor; raises `UnknownTaskExecutorError`."""
        worker = self._workers.get(resource_id)
        if worker is None:
            raise UnknownTaskExecutorError(f"TaskExecutor {resource_id} is not registered for this job; register again")
        return worker.registration.address

    def gateway(self, resource_id: ResourceID) -> TaskExecutorGateway | None:
        """A registered TaskExecutor; None where there is none of that name."""
        worker = self._workers.get(resource_id)
        return None if worker is None else worker.gateway

    async def deploy(
        self,
        resource_id: ResourceID,
        descriptor: TaskDeploymentDescriptor,
        written: Callable[[], Awaitable[None]],
    ) -> None:
        """Send a task to its TaskExecutor, once *written* has returned: the deployment is known to any successor.

        Raises:
            SlotNotAllocatedError: the TaskExecutor is gone, or has not registered with this JobMaster: one that has
                freed the slots that it had for a former JobMaster never does.
            ActorError, GatewayError: it did not take the task.
            BlobError: the descriptor is large and could not be uploaded.
        """
        worker = self._workers.get(resource_id)
        if worker is None:
            raise SlotNotAllocatedError(f"TaskExecutor {resource_id} is not registered: it has no slot for this job")
        sent = self._deploying[descriptor.attempt_id] = asyncio.Event()
        try:
            await self._send(worker.gateway, descriptor, written)
        finally:
            sent.set()
            del self._deploying[descriptor.attempt_id]

    async def _send(
        self,
        gateway: TaskExecutorGateway,
        descriptor: TaskDeploymentDescriptor,
        written: Callable[[], Awaitable[None]],
    ) -> None:
        offload = self._offload
        job, attempt = pack(descriptor)
        async with offload.delivery(job, keep=True) as job_sent, offload.delivery(attempt) as attempt_sent:
            await written()
            try:
                await gateway.submit_task(TaskDeployment(job_sent, attempt_sent))
            except DeploymentNotFoundError as error:
                self._endpoint.log.info("%s is sent again: %s", descriptor.task_name, error)
                lasting = TaskDeployment(
                    await offload.lasting(job, job_sent, keep=True), await offload.lasting(attempt, attempt_sent)
                )
                await gateway.submit_task(lasting)

    def cancel(self, attempt_id: ExecutionAttemptID, resource_id: ResourceID) -> None:
        """Have an attempt cancelled, after its deployment has been delivered; repeated until it is answered."""
        self._endpoint.spawn(self._cancel(attempt_id, resource_id), f"cancelling {attempt_id}")

    async def _cancel(self, attempt_id: ExecutionAttemptID, resource_id: ResourceID) -> None:
        if attempt_id in self._deploying:
            await self._deploying[attempt_id].wait()
        while (worker := self._workers.get(resource_id)) is not None:
            try:
                await worker.gateway.cancel_task(attempt_id)
            except ActorError as error:
                self._endpoint.log.info("TaskExecutor %s does not take a cancellation: %s", resource_id, error)
                await asyncio.sleep(CANCEL_RETRY_S)  # until it answers, or its loss ends the attempt
            else:
                return

    def free_slot(self, slot: AllocatedSlot) -> None:
        """Give a slot back."""
        self._endpoint.spawn(self._free(slot), f"giving back {slot.slot_id}")

    async def _free(self, slot: AllocatedSlot) -> None:
        worker = self._workers.get(slot.slot_id.resource_id)
        if worker is None:
            return
        try:
            await worker.gateway.free_slot(slot.allocation_id, "the job needs it no more")
        except ActorError as error:
            # A TaskExecutor frees the slots of a job whose JobMaster it hears nothing from.
            self._endpoint.log.info("%s was not given back: %s", slot.slot_id, error)

    def job_over(self, reason: str) -> None:
        """Tell all TaskExecutors that the job is over."""
        for worker in self._workers.values():
            worker.gateway.disconnect_job_manager(self._job_id, reason)
        self._release_blobs()

    def clear(self) -> None:
        """Forget all TaskExecutors: another JobMaster leads, and if it is this one again they register anew."""
        self._workers.clear()
        self._expected.clear()
        self._release_blobs()

    def _release_blobs(self) -> None:
        self._endpoint.spawn(self._offload.release(), "deleting what was kept for further deployments")

    async def close(self) -> None:
        """Delete what is left of deployments, and close the connection to the BlobServer."""
        await self._offload.close()
        self._blobs.close()

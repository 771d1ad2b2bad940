"""The TaskExecutors of one job, as its JobMaster sees them: deploying, cancelling and giving back slots."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from actors.errors import ActorError
from actors.rpc.endpoint import RpcEndpoint
from actors.rpc.gateway import FencingToken
from blob.gateway import BlobAddress
from blob.offload import MaybeOffloaded, offload_if_larger
from conf.configuration import Configuration
from conf.options import BlobOptions, RpcOptions
from runtime.environment.context import blob_client
from runtime.gateways.messages import TaskExecutorRegistration
from runtime.gateways.task_executor import TaskExecutorGateway
from runtime.ids import ExecutionAttemptID, JobID, ResourceID
from runtime.jobgraph.codec import encode
from runtime.jobmaster.descriptor import TaskDeploymentDescriptor
from runtime.jobmaster.slot_pool import AllocatedSlot

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
        blob: where descriptors over the limit are uploaded to.
    """

    def __init__(self, endpoint: RpcEndpoint, job_id: JobID, configuration: Configuration, blob: BlobAddress) -> None:
        self._endpoint = endpoint
        self._job_id = job_id
        self._offload_limit = min(
            configuration.get(BlobOptions.OFFLOAD_MINSIZE), configuration.get(RpcOptions.FRAME_SIZE) // 2
        )
        self._blobs = blob_client(configuration, blob, endpoint.service.secret)
        self._workers: dict[ResourceID, _Worker] = {}
        self._expected: dict[ResourceID, str] = {}
        self._deploying: dict[ExecutionAttemptID, asyncio.Event] = {}

    def add(self, registration: TaskExecutorRegistration) -> TaskExecutorGateway:
        """A TaskExecutor has registered; returns its gateway."""
        gateway = self._endpoint.service.gateway(registration.address, TaskExecutorGateway)
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
        """RPC address of a registered TaskExecutor; raises KeyError."""
        return self._workers[resource_id].registration.address

    async def deploy(
        self,
        resource_id: ResourceID,
        descriptor: TaskDeploymentDescriptor,
        token: FencingToken,
        written: Callable[[], Awaitable[None]],
    ) -> None:
        """Send a task to its TaskExecutor, once *written* has returned: the deployment is known to any successor.

        Raises:
            KeyError: the TaskExecutor is gone.
            ActorError, GatewayError: it did not take the task.
            BlobError: the descriptor is large and could not be uploaded.
        """
        worker = self._workers[resource_id]
        sent = self._deploying[descriptor.attempt_id] = asyncio.Event()
        try:
            packed = await self._pack(descriptor)
            await written()
            await worker.gateway.submit_task(packed, token)
        finally:
            sent.set()
            del self._deploying[descriptor.attempt_id]

    async def _pack(self, descriptor: TaskDeploymentDescriptor) -> MaybeOffloaded:
        data = encode(descriptor)
        return await self._endpoint.run_blocking(
            offload_if_larger, data, self._offload_limit, self._blobs, self._job_id
        )

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

    def clear(self) -> None:
        """Forget all TaskExecutors: another JobMaster leads, and if it is this one again they register anew."""
        self._workers.clear()
        self._expected.clear()

    def close(self) -> None:
        """Close the connection to the BlobServer."""
        self._blobs.close()

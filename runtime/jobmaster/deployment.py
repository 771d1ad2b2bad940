"""The TaskExecutors of one job, as its JobMaster sees them: deploying, cancelling and returning slots."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from actors.errors import ActorError, AskTimeout, RecipientTerminated, RecipientUnreachable
from blob.gateway import BlobAddress
from blob.offload import BlobWriter, Inline, MaybeOffloaded, MessageOffload, Offloaded, offload_if_larger
from conf.configuration import Configuration
from conf.options import BlobOptions, RpcOptions
from runtime.environment.context import blob_client
from runtime.ids import ExecutionAttemptID, JobID, ResourceID
from runtime.jobmaster.slot_pool import AllocatedSlot
from runtime.leadership import LeaderEndpoint
from runtime.protocol.checkpoints import JobManagerTaskRestore
from runtime.protocol.descriptor import TaskDeployment, TaskDeploymentDescriptor, pack
from runtime.protocol.errors import DeploymentNotFoundError, SlotNotAllocatedError, UnknownTaskExecutorError
from runtime.protocol.messages import TaskExecutorRegistration
from runtime.protocol.task_executor import TaskExecutorGateway
from runtime.retry import retry

T = TypeVar("T")
LONGEST_LIFETIME_S = 3600.0
SHORTEST_LIFETIME_S = 1.0


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
        blob: address of the BlobServer for the parts of a descriptor that are over the limit.
        on_unreachable: called when a TaskExecutor cannot be reached, or the connection to it has broken. It may live.
    """

    def __init__(
        self,
        endpoint: LeaderEndpoint,
        job_id: JobID,
        configuration: Configuration,
        blob: BlobAddress,
        on_unreachable: Callable[[ResourceID], None],
    ) -> None:
        self._endpoint = endpoint
        self._on_unreachable = on_unreachable
        self._job_id = job_id
        self._blobs = blob_client(configuration, blob, endpoint.service.secret)
        self._offload = DeploymentOffload(
            self._blobs,
            # One message has both parts of a descriptor.
            min(configuration.get(BlobOptions.OFFLOAD_MINSIZE), configuration.get(RpcOptions.FRAME_SIZE) // 4),
            job_id,
            endpoint.run_blocking,
            configuration.get(BlobOptions.CLEANUP_TTL),
        )
        self._workers: dict[ResourceID, _Worker] = {}
        self._expected: dict[ResourceID, str] = {}
        self._succeeded: dict[ResourceID, int] = {}
        self._deploying: dict[ExecutionAttemptID, asyncio.Event] = {}

    def add(self, registration: TaskExecutorRegistration) -> TaskExecutorGateway:
        """Add a TaskExecutor that has registered; return its gateway."""
        gateway = self._endpoint.gateway(registration.address, TaskExecutorGateway, term=self._endpoint.term)
        self._endpoint.service.connect(registration.address)  # while it offers its slots
        self._expected.pop(registration.resource_id, None)
        self._succeeded.pop(registration.resource_id, None)
        self._workers[registration.resource_id] = _Worker(registration, gateway)
        return gateway

    def expect(self, resource_id: ResourceID, address: str) -> None:
        """Expect that a TaskExecutor, which a former JobMaster of the job used, registers with this one."""
        self._expected[resource_id] = address

    def is_replaced_by(self, registration: TaskExecutorRegistration) -> bool:
        """Return whether another process was known, or expected, under this resource id, and has lost its tasks."""
        known = self._workers.get(registration.resource_id)
        address = self._expected.get(registration.resource_id) if known is None else known.registration.address
        return address is not None and address not in (registration.address, *registration.predecessors)

    def await_successor(self, resource_id: ResourceID, until_ms: int) -> None:
        """Wait for the successor of a TaskExecutor until a time, in milliseconds since the epoch."""
        self._succeeded[resource_id] = until_ms

    @property
    def awaited_successors(self) -> dict[ResourceID, int]:
        """The TaskExecutors whose successor is awaited, each with the time until which it is."""
        return dict(self._succeeded)

    def remove(self, resource_id: ResourceID) -> bool:
        """Forget a TaskExecutor; return whether it was known or expected."""
        self._succeeded.pop(resource_id, None)
        expected = self._expected.pop(resource_id, None) is not None
        return self._workers.pop(resource_id, None) is not None or expected

    def address_of(self, resource_id: ResourceID) -> str:
        """Return the RPC address of a registered TaskExecutor; raises `UnknownTaskExecutorError`."""
        worker = self._workers.get(resource_id)
        if worker is None:
            raise UnknownTaskExecutorError(f"TaskExecutor {resource_id} is not registered for this job; register again")
        return worker.registration.address

    def gateway(self, resource_id: ResourceID) -> TaskExecutorGateway | None:
        """Return the gateway of a registered TaskExecutor; None if it is not registered."""
        worker = self._workers.get(resource_id)
        return None if worker is None else worker.gateway

    async def deploy(
        self,
        resource_id: ResourceID,
        descriptor: TaskDeploymentDescriptor,
        restore: Callable[[], Awaitable[JobManagerTaskRestore | None]],
        written: Callable[[], Awaitable[None]],
        is_over: Callable[[], bool],
    ) -> None:
        """Send a task to its TaskExecutor, once *written* has returned: then the next JobMaster knows the deployment.

        A broken connection, or a late answer, does not show whether the task has started. It is then sent again, which
        starts it at most once, until the TaskExecutor answers, is lost, or *is_over* says that the attempt has ended.

        Args:
            resource_id: the TaskExecutor.
            descriptor: the task.
            restore: returns the state that the task starts from.
            written: returns once the deployment is written.
            is_over: returns whether the attempt has ended.

        Raises:
            RecipientTerminated: the TaskExecutor is about to end.
            SlotNotAllocatedError: the TaskExecutor has ended, or has not registered with this JobMaster. It never
                registers if it has freed the slots that it had for a former JobMaster.
            ActorError, GatewayError: it did not accept the task.
            BlobError: the descriptor is large and could not be uploaded.
        """
        sent = self._deploying[descriptor.attempt.attempt_id] = asyncio.Event()
        try:
            attempt = replace(descriptor.attempt, restore=await restore())
            if resource_id not in self._workers:
                raise SlotNotAllocatedError(
                    f"TaskExecutor {resource_id} is not registered: it has no slot for this job"
                )
            await self._send(resource_id, replace(descriptor, attempt=attempt), written, is_over)
        finally:
            sent.set()
            del self._deploying[descriptor.attempt.attempt_id]

    async def _send(
        self,
        resource_id: ResourceID,
        descriptor: TaskDeploymentDescriptor,
        written: Callable[[], Awaitable[None]],
        is_over: Callable[[], bool],
    ) -> None:
        async def submit(deployment: TaskDeployment) -> None:
            worker = self._workers.get(resource_id)
            if worker is None or is_over():
                return
            try:
                await worker.gateway.submit_task(deployment)
            except RecipientUnreachable:
                self._on_unreachable(resource_id)
                raise

        async def deliver(deployment: TaskDeployment) -> None:
            await retry(
                lambda: submit(deployment),
                (RecipientUnreachable, AskTimeout),
                unless=RecipientTerminated,
                what=f"deploying {descriptor.attempt.task_name} at TaskExecutor {resource_id}",
                log=self._endpoint.log,
            )

        offload = self._offload
        job, attempt = pack(descriptor)
        async with offload.delivery(job, keep=True) as job_sent, offload.delivery(attempt) as attempt_sent:
            await written()
            try:
                await deliver(TaskDeployment(job_sent, attempt_sent))
            except DeploymentNotFoundError as error:
                self._endpoint.log.info("%s is sent again: %s", descriptor.attempt.task_name, error)
                lasting = TaskDeployment(
                    await offload.lasting(job, job_sent, keep=True), await offload.lasting(attempt, attempt_sent)
                )
                await deliver(lasting)

    def cancel(self, attempt_id: ExecutionAttemptID, resource_id: ResourceID) -> None:
        """Cancel an attempt, after its deployment has been delivered; repeated until the TaskExecutor answers."""
        self._endpoint.spawn(self._cancel(attempt_id, resource_id), f"cancelling {attempt_id}")

    async def _cancel(self, attempt_id: ExecutionAttemptID, resource_id: ResourceID) -> None:
        if attempt_id in self._deploying:
            await self._deploying[attempt_id].wait()

        async def cancel() -> None:  # repeated until it answers, or its loss ends the attempt
            worker = self._workers.get(resource_id)
            if worker is not None:
                await worker.gateway.cancel_task(attempt_id)

        await retry(cancel, ActorError, what=f"cancelling at TaskExecutor {resource_id}", log=self._endpoint.log)

    def disconnect(self, resource_id: ResourceID, reason: str) -> None:
        """Tell a TaskExecutor that counts as lost, and may live even so, to end its tasks of this job.

        (Flink's `JobMaster.disconnectTaskManager` does so.) Nothing comes of it if the TaskExecutor cannot be reached.
        """
        gateway = self.gateway(resource_id)
        if gateway is None and resource_id in self._expected:
            address = self._expected[resource_id]
            gateway = self._endpoint.gateway(address, TaskExecutorGateway, term=self._endpoint.term)
        if gateway is not None:
            gateway.disconnect_job_manager(self._job_id, reason)

    def free_slot(self, slot: AllocatedSlot, is_held: Callable[[], bool]) -> None:
        """Return a slot to its TaskExecutor; repeated until it answers, is lost, or has offered the slot again.

        Args:
            slot: the slot.
            is_held: returns whether the job holds the slot again.
        """
        self._endpoint.spawn(self._free(slot, is_held), f"returning {slot.slot_id}")

    async def _free(self, slot: AllocatedSlot, is_held: Callable[[], bool]) -> None:
        async def free() -> None:
            worker = self._workers.get(slot.slot_id.resource_id)
            if worker is not None and not is_held():
                await worker.gateway.free_slot(slot.allocation_id, "the job does not need it any more")

        await retry(free, ActorError, what=f"returning {slot.slot_id}", log=self._endpoint.log)

    def job_over(self, reason: str) -> None:
        """Tell all TaskExecutors that the job is over."""
        for worker in self._workers.values():
            worker.gateway.disconnect_job_manager(self._job_id, reason)
        self._release_blobs()

    def clear(self) -> None:
        """Forget all TaskExecutors: another JobMaster leads; if it is this one again, they register again."""
        self._workers.clear()
        self._expected.clear()
        self._succeeded.clear()
        self._release_blobs()

    def _release_blobs(self) -> None:
        self._endpoint.spawn(self._offload.release(), "deleting the blobs kept for further deployments")

    async def close(self) -> None:
        """Delete what is left of deployments, and close the connection to the BlobServer."""
        await self._offload.close()
        self._blobs.close()


class RunBlocking(Protocol):
    """Run blocking work on another thread: `RpcEndpoint.run_blocking`."""

    def __call__(self, function: Callable[..., T], *args: Any) -> Awaitable[T]:
        """Return the result of ``function(*args)``."""


class DeploymentOffload:
    """The large parts of a job's deployments, uploaded as blobs.

    A part over the limit is uploaded once for all TaskExecutors that need it at the same time. The part that all
    deployments share is kept for the next ones, until `release`.

    Args:
        writer: uploads and deletes.
        limit: most bytes that travel in the message.
        job_id: the job.
        run_blocking: runs uploads and deletions on another thread.
        ttl_s: seconds for which the server keeps an unused transient blob.
    """

    def __init__(self, writer: BlobWriter, limit: int, job_id: str, run_blocking: RunBlocking, ttl_s: float) -> None:
        self._writer = writer
        self._limit = limit
        self._job_id = job_id
        self._run_blocking = run_blocking
        self._messages = MessageOffload(
            writer, limit, job_id, lifetime_s=max(SHORTEST_LIFETIME_S, min(ttl_s, LONGEST_LIFETIME_S))
        )
        self._lock = threading.Lock()
        self._kept: contextlib.ExitStack | None = None
        self._permanent: tuple[bytes, MaybeOffloaded] | None = None

    @contextlib.asynccontextmanager
    async def delivery(self, data: bytes, *, keep: bool = False) -> AsyncIterator[MaybeOffloaded]:
        """Yield what to send for *data* to one TaskExecutor; leave the ``async with`` once it has answered.

        Args:
            data: a part of a deployment.
            keep: whether it is the part that all deployments share.

        Raises:
            BlobError: the upload failed.
        """
        if len(data) <= self._limit:
            yield Inline(data)
            return
        message, delivered = await self._run_blocking(self._begin, data, keep)
        try:
            yield message
        finally:
            await self._run_blocking(delivered)

    def _begin(self, data: bytes, keep: bool) -> tuple[MaybeOffloaded, Callable[[], None]]:
        with contextlib.ExitStack() as stack:
            message = stack.enter_context(self._messages.delivery(data))
            if keep:
                # The blob of this delivery may be newer than the kept one, which is past half of its lifetime.
                kept = contextlib.ExitStack()
                kept.enter_context(self._messages.kept(data))
                with self._lock:
                    former, self._kept = self._kept, kept
                if former is not None:
                    former.close()
            return message, stack.pop_all().close

    async def lasting(self, data: bytes, message: MaybeOffloaded, *, keep: bool = False) -> MaybeOffloaded:
        """Return what to send instead to a TaskExecutor that does not find the blob of *message*.

        Either the blob was swept, or the TaskExecutor uses another master's BlobServer. A transient blob is at one
        server only. A permanent one is found in the store from any server, and is deleted with the job.

        Raises:
            BlobError: the upload failed.
        """
        if isinstance(message, Inline):
            return message
        return await self._run_blocking(self._lasting, data, message, keep)

    def _lasting(self, data: bytes, message: Offloaded, keep: bool) -> MaybeOffloaded:
        self._messages.lost(message)
        digest = hashlib.sha256(data).digest()
        permanent = self._permanent
        if permanent is not None and permanent[0] == digest:
            return permanent[1]
        sent = offload_if_larger(data, self._limit, self._writer, self._job_id)
        if keep:
            self._permanent = digest, sent
        return sent

    async def release(self) -> None:
        """Delete the shared part once no delivery of it is under way: the job is not deployed any more."""
        with self._lock:
            kept, self._kept = self._kept, None
        if kept is not None:
            await self._run_blocking(kept.close)

    async def close(self) -> None:
        """Delete all blobs that are left."""
        await self.release()
        await self._run_blocking(self._messages.close)

"""What a JobMaster asks a TaskExecutor to do with its tasks; a part of `runtime.taskexecutor.endpoint.TaskExecutor`."""

from __future__ import annotations

from actors.errors import ActorError, RecipientTerminated
from actors.rpc.endpoint import RpcEndpoint
from actors.rpc.gateway import rpc, rpc_sync, rpc_tell
from blob.cache import BlobCache
from blob.errors import BlobNotFound
from blob.offload import Inline, resolve
from runtime.checkpoint.messages import TriggerCheckpoint
from runtime.gateways.errors import DeploymentNotFoundError, NoSuchTaskError
from runtime.ids import ExecutionAttemptID, JobID
from runtime.jobmaster.deployment_message import TaskDeployment, unpack
from runtime.jobmaster.descriptor import TaskDeploymentDescriptor
from runtime.taskexecutor.logs import AttemptDirectories, LogKeeper
from runtime.taskexecutor.services import TaskServices
from runtime.taskexecutor.slot_table import TaskSlotTable
from runtime.taskexecutor.task_pool_policy import TaskPoolReport
from runtime.taskexecutor.task_table import TaskTable


class TaskExecutorTasks(RpcEndpoint):
    """The part of a `TaskExecutor` that starts tasks, cancels them and has them checkpointed."""

    slots: TaskSlotTable
    _attempts: AttemptDirectories
    _own_logs: LogKeeper
    _services: TaskServices | None
    _tasks: TaskTable
    goes = ""
    """Why this TaskExecutor is about to end; empty while it is not."""

    def refuse_if_it_goes(self) -> None:
        """Refuse what this TaskExecutor cannot do any more; raises `RecipientTerminated`."""
        if self.goes:
            raise RecipientTerminated(f"TaskExecutor {self.name} ends: {self.goes}")

    @rpc
    async def submit_task(self, deployment: TaskDeployment) -> None:
        services = self._require_services()
        descriptor = await self._read(deployment, services.blobs)
        self.fences.check_again()
        self.refuse_if_it_goes()
        if descriptor.attempt_id in self._tasks:
            return
        self.slots.check(descriptor.job_id, descriptor.allocation_id)
        directory = self._attempts.make(descriptor)
        self._tasks.start(descriptor, directory, services, self._own_logs.keeper_of(descriptor))

    async def _read(self, deployment: TaskDeployment, blobs: BlobCache) -> TaskDeploymentDescriptor:
        try:
            job, attempt = [
                # A small one is here, and needs no thread.
                part.data if isinstance(part, Inline) else await self.run_blocking(resolve, part, blobs)
                for part in (deployment.job, deployment.attempt)
            ]
        except BlobNotFound as error:
            raise DeploymentNotFoundError(str(error)) from error
        return unpack(job, attempt)

    def _require_services(self) -> TaskServices:
        if self._services is None:
            raise ActorError("the TaskExecutor has not started")
        return self._services

    @rpc_sync
    def cancel_task(self, attempt_id: ExecutionAttemptID) -> None:
        self._tasks.cancel(attempt_id)

    # ------------------------------------------------------------- checkpoints

    @rpc_sync
    def trigger_checkpoint(self, job_id: JobID, trigger: TriggerCheckpoint) -> None:
        checkpoints = self._tasks.checkpoints(trigger.attempt_id)
        if checkpoints is None:
            raise NoSuchTaskError(f"attempt {trigger.attempt_id} does not run here any more")
        checkpoints.trigger(trigger)

    @rpc_tell
    def notify_checkpoint_complete(self, attempt_id: ExecutionAttemptID, checkpoint_id: int) -> None:
        checkpoints = self._tasks.checkpoints(attempt_id)
        if checkpoints is not None:
            checkpoints.completed(checkpoint_id)

    @rpc_tell
    def notify_checkpoint_aborted(self, attempt_id: ExecutionAttemptID, checkpoint_id: int) -> None:
        checkpoints = self._tasks.checkpoints(attempt_id)
        if checkpoints is not None:
            checkpoints.aborted(checkpoint_id)

    @rpc_sync
    def request_task_pool(self) -> TaskPoolReport:
        return self._require_services().pool.report()

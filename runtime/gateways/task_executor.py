"""How a TaskExecutor is asked (Flink's `TaskExecutorGateway`)."""

from __future__ import annotations

from actors.rpc.gateway import Ask, FencingToken, RpcGateway
from blob.offload import Inline, Offloaded
from runtime.gateways.messages import LeaderAddress, TaskLog
from runtime.ids import AllocationID, ExecutionAttemptID, JobID, SlotID
from runtime.resourcemanager.slot_manager import SlotReport


class TaskExecutorGateway(RpcGateway):
    """Unfenced itself; calls that change something name the leadership they come from, and older ones are refused."""

    def request_slot(
        self,
        slot_id: SlotID,
        job_id: JobID,
        allocation_id: AllocationID,
        job_master: LeaderAddress,
        resource_manager: FencingToken,
    ) -> Ask[None]:
        """From the ResourceManager: give this slot to the job and offer it to its JobMaster.

        Raises:
            SlotOccupiedError: another allocation holds it.
        """
        raise NotImplementedError

    def free_slot(self, allocation_id: AllocationID, reason: str) -> Ask[None]:
        """From a JobMaster: it needs the slot no more. No error when it is free already."""
        raise NotImplementedError

    def submit_task(self, descriptor: Inline | Offloaded, job_master: FencingToken) -> Ask[None]:
        """From a JobMaster: run an attempt; the encoded `TaskDeploymentDescriptor`, as a blob when it is large.

        Idempotent by attempt. Its states follow as `JobMasterGateway.update_task_execution_state`.

        Raises:
            SlotNotAllocatedError: the allocation is not this job's any more.
        """
        raise NotImplementedError

    def cancel_task(self, attempt_id: ExecutionAttemptID) -> Ask[None]:
        """From a JobMaster: cancel an attempt; CANCELED is reported when nothing of it runs any more."""
        raise NotImplementedError

    def heartbeat_from_resource_manager(self) -> Ask[SlotReport]:
        """A sign of life of the ResourceManager's; the answer is what every slot is used for."""
        raise NotImplementedError

    def heartbeat_from_job_manager(self, job_id: JobID, job_master: LeaderAddress) -> Ask[list[ExecutionAttemptID]]:
        """A sign of life of a JobMaster's; the answer is which attempts of its job are here.

        A JobMaster that is new to the TaskExecutor is registered with.
        """
        raise NotImplementedError

    def disconnect_job_manager(self, job_id: JobID, reason: str) -> None:
        """The job is over or its JobMaster gone: cancel what runs of it and free its slots."""
        raise NotImplementedError

    def request_task_logs(self, job_id: JobID) -> Ask[list[TaskLog]]:
        """Upload the logs of all attempts of the job that ran here as TRANSIENT blobs, and name them."""
        raise NotImplementedError

"""How a TaskExecutor stands to its JobMasters; a part of `runtime.taskexecutor.endpoint.TaskExecutor`."""

from __future__ import annotations

from actors.rpc.endpoint import RpcEndpoint
from actors.rpc.gateway import rpc_sync, rpc_tell
from conf.configuration import Configuration
from conf.options import TaskManagerOptions
from runtime.gateways.messages import JobHeartbeat, LeaderAddress
from runtime.heartbeat.manager import HeartbeatManager, Silence
from runtime.ids import AllocationID, JobID
from runtime.jobmaster.descriptor import JobReport
from runtime.taskexecutor.connections import JobConnections, ResourceManagerConnection
from runtime.taskexecutor.isolation import IsolationWatch
from runtime.taskexecutor.services import TaskServices
from runtime.taskexecutor.slot_table import TaskSlotTable
from runtime.taskexecutor.task_table import TaskTable


class TaskExecutorJobs(RpcEndpoint):
    """The part of a `TaskExecutor` that hears of JobMasters, reports to them, and leaves jobs that are over."""

    slots: TaskSlotTable
    _configuration: Configuration
    _connections: JobConnections
    _isolation: IsolationWatch
    _job_heartbeats: HeartbeatManager
    _resource_manager: ResourceManagerConnection
    _services: TaskServices | None
    _tasks: TaskTable

    def _job_connected(self, job_id: JobID) -> None:
        self._job_heartbeats.monitor(job_id)

    def _job_master_silent(self, target: str, reason: str) -> None:
        """Keep what runs of the job for its next JobMaster, for as long as the configuration says."""
        job_id = JobID(target)
        loss = self._connections.master_lost(job_id)
        patience_s = self._configuration.get(TaskManagerOptions.JOB_MASTER_TIMEOUT)
        if loss is None or not self.report_of(job_id).executions:
            self.log.warning("the JobMaster of job %s is silent: %s", target, reason)
            self._drop_job(job_id, reason)
            return
        self.log.warning(
            "the JobMaster of job %s is silent: %s. Its tasks go on for %g s without one "
            "(taskmanager.job-master.timeout)",
            target,
            reason,
            patience_s,
        )
        self.spawn(self._give_up_job_master(job_id, loss, patience_s), f"waiting for a JobMaster of job {job_id}")

    async def _give_up_job_master(self, job_id: JobID, loss: int, patience_s: float) -> None:
        await Silence().lasts(patience_s)
        if self._connections.is_lost(job_id, loss):
            self.log.error("no JobMaster of job %s has come back: its tasks are cancelled", job_id)
            self._drop_job(job_id, "no JobMaster within taskmanager.job-master.timeout")

    def report_of(self, job_id: JobID) -> JobReport:
        """All that is here of a job."""
        return JobReport(self._tasks.executions(job_id), tuple(self.slots.offers(job_id)))

    @rpc_sync
    def heartbeat_from_job_manager(self, job_id: JobID, job_master: LeaderAddress) -> JobHeartbeat:
        self._isolation.heard()
        if self._connections.master_heard(job_id, job_master):
            self._job_heartbeats.received(job_id)
        held = tuple(report.state.attempt_id for report in self.report_of(job_id).executions)
        return JobHeartbeat(held, self._tasks.progress(job_id))

    @rpc_tell
    def disconnect_job_manager(self, job_id: JobID, reason: str) -> None:
        self._drop_job(job_id, reason)

    def _drop_job(self, job_id: JobID, reason: str) -> None:
        self._job_heartbeats.unmonitor(job_id)
        self._tasks.cancel_job(job_id)
        self.spawn(self._leave_job(job_id, reason), f"leaving job {job_id}")

    async def _leave_job(self, job_id: JobID, reason: str) -> None:
        """Free the job's slots once none of its tasks runs any more."""
        await self._tasks.job_ended(job_id)
        for allocation in self.slots.of_job(job_id):
            self.release_slot(allocation.allocation_id, reason)
        await self._connections.remove(job_id)
        self._tasks.forget(job_id)
        if self._services is not None:
            await self.run_blocking(self._services.blobs.release_job, job_id)

    @rpc_sync
    def free_slot(self, allocation_id: AllocationID, reason: str) -> None:
        self.release_slot(allocation_id, reason)

    def release_slot(self, allocation_id: AllocationID, reason: str) -> None:
        """Free a slot, cancel what still runs in it, and tell the ResourceManager."""
        allocation = self.slots.free(allocation_id)
        if allocation is None:
            return
        self.log.info("slot %s of job %s is free: %s", allocation.slot_id, allocation.job_id, reason)
        self._tasks.cancel_allocation(allocation_id)
        self._resource_manager.slots_changed()

"""The gateway of a TaskExecutor (Flink's `TaskExecutorGateway`)."""

from __future__ import annotations

from actors.rpc.gateway import Ask, RpcGateway, fenced_by, reads
from blob.gateway import BlobAddress
from runtime.ids import AllocationID, ExecutionAttemptID, JobID, SlotID
from runtime.job_logs import KeptLog, LogChunk
from runtime.protocol.checkpoints import TriggerCheckpoint
from runtime.protocol.descriptor import TaskDeployment
from runtime.protocol.diagnostics import ComponentLog, LogInfo, TaskPoolReport, ThreadDump
from runtime.protocol.hand_over import HandOverReport
from runtime.protocol.leader import JOB_MASTER, RESOURCE_MANAGER
from runtime.protocol.messages import JobHeartbeat, LeaderAddress, TaskExecutorHeartbeat, TaskLog
from runtime.protocol.session import SessionAddress
from runtime.stack_samples import StackProfile


class TaskExecutorGateway(RpcGateway):
    """Calls to a TaskExecutor. It is not fenced itself, but it rejects changes under a leadership that has ended."""

    @fenced_by(RESOURCE_MANAGER)
    def request_slot(
        self,
        slot_id: SlotID,
        job_id: JobID,
        allocation_id: AllocationID,
        job_master: LeaderAddress,
        owner: str | None = None,
    ) -> Ask[None]:
        """Give this slot to the job and offer it to its JobMaster; called by the ResourceManager.

        Name the owner of the job, empty if it has none, only to a TaskExecutor that serves one user at a time. Others
        may be of an earlier release, which does not know this argument.

        Raises:
            SlotOccupiedError: another allocation holds it, or the allocation holds another slot here, or the Spark
                driver has served another user.
        """
        raise NotImplementedError

    @fenced_by(RESOURCE_MANAGER)
    def renew_driver(self, reason: str) -> Ask[None]:
        """End the Spark driver, the task processes and this TaskExecutor; its worker starts all of them again.

        The answer comes before the end. Only for a TaskExecutor that serves one user at a time.

        Raises:
            SlotOccupiedError: a job holds a slot, or the driver belongs to another owner.
        """
        raise NotImplementedError

    @fenced_by(JOB_MASTER)
    def free_slot(self, allocation_id: AllocationID, reason: str) -> Ask[None]:
        """Free a slot that a JobMaster no longer needs. No error when it is free already."""
        raise NotImplementedError

    @fenced_by(JOB_MASTER)
    def submit_task(self, deployment: TaskDeployment) -> Ask[None]:
        """Run an attempt for a JobMaster; large parts of the descriptor are blobs.

        Idempotent by attempt. Its states follow as `JobMasterGateway.update_task_execution_state`.

        Raises:
            SlotNotAllocatedError: the allocation is not this job's any more.
            DeploymentNotFoundError: one of the blobs was not found, and nothing was started.
        """
        raise NotImplementedError

    @fenced_by(JOB_MASTER)
    def cancel_task(self, attempt_id: ExecutionAttemptID) -> Ask[None]:
        """Cancel an attempt for a JobMaster; CANCELED is reported when nothing of the attempt runs any more."""
        raise NotImplementedError

    @fenced_by(JOB_MASTER)
    def trigger_checkpoint(self, job_id: JobID, trigger: TriggerCheckpoint) -> Ask[None]:
        """Let an attempt take part in a JobMaster's checkpoint. Idempotent by attempt and number.

        The outcome follows as `JobMasterGateway.acknowledge_checkpoint` or `decline_checkpoint`.

        Raises:
            NoSuchTaskError: the attempt does not run here.
        """
        raise NotImplementedError

    @fenced_by(JOB_MASTER)
    def notify_checkpoint_complete(self, attempt_id: ExecutionAttemptID, checkpoint_id: int) -> None:
        """Report that the checkpoint is complete, its second phase (Flink's ``confirmCheckpoint``)."""
        raise NotImplementedError

    @fenced_by(JOB_MASTER)
    def notify_checkpoint_aborted(self, attempt_id: ExecutionAttemptID, checkpoint_id: int) -> None:
        """Report that the JobMaster has aborted the checkpoint (Flink's ``abortCheckpoint``)."""
        raise NotImplementedError

    @fenced_by(RESOURCE_MANAGER)
    def heartbeat_from_resource_manager(self) -> Ask[TaskExecutorHeartbeat]:
        """Answer a heartbeat of the ResourceManager with the use of the slots and the resources taken."""
        raise NotImplementedError

    @fenced_by(JOB_MASTER)
    def heartbeat_from_job_manager(self, job_id: JobID, job_master: LeaderAddress) -> Ask[JobHeartbeat]:
        """Answer a heartbeat of a JobMaster with the attempts of its job that are here and their progress.

        The TaskExecutor registers at a JobMaster that it does not know yet.
        """
        raise NotImplementedError

    @fenced_by(JOB_MASTER)
    def disconnect_job_manager(self, job_id: JobID, reason: str) -> None:
        """Cancel the attempts of a job and free its slots: the job is over or its JobMaster has stopped."""
        raise NotImplementedError

    def request_task_logs(self, job_id: JobID, blob_server: BlobAddress) -> Ask[list[TaskLog]]:
        """Upload the logs of all attempts of the job that ran here as TRANSIENT blobs, and name them.

        Name the BlobServer from which they will be fetched. Each master has one, and a transient blob exists only at
        the one that received it.
        """
        raise NotImplementedError

    @fenced_by(JOB_MASTER)
    def keep_task_logs(self, job_id: JobID, attempt_id: ExecutionAttemptID) -> Ask[list[KeptLog]]:
        """Upload the logs of an attempt whose end was not reported, as PERMANENT blobs of `logs_owner`.

        Returns an empty list where the attempt did not run here. Fails with the error of the blob service.
        """
        raise NotImplementedError

    @reads
    def read_task_log(self, job_id: JobID, attempt_id: ExecutionAttemptID, name: str, offset: int) -> Ask[LogChunk]:
        """Return a piece of ``stdout`` or ``stderr`` of an attempt that runs or ran here, from byte *offset* on.

        At most `runtime.job_logs.CHUNK` bytes; none at the current end, or while the file does not exist.

        Raises:
            NoSuchLogError: there is no log of that name, or the offset is negative.
        """
        raise NotImplementedError

    @reads
    def request_log_list(self) -> Ask[list[LogInfo]]:
        """Return the logs of the TaskExecutor itself and of its Spark driver."""
        raise NotImplementedError

    def request_file_upload(self, name: str, blob_server: BlobAddress | None = None) -> Ask[ComponentLog]:
        """Upload one of `request_log_list` as a TRANSIENT blob, and name it. Fails with the error of the blob service.

        Args:
            name: the log.
            blob_server: the target, as in `request_task_logs`. Default: the BlobServer beside the ResourceManager.

        Raises:
            NoSuchLogError: there is no log of that name; other files are never served.
        """
        raise NotImplementedError

    @reads
    def read_log(self, name: str, offset: int) -> Ask[LogChunk]:
        """Return a piece of one of `request_log_list`, from byte *offset* on; otherwise as `read_task_log`."""
        raise NotImplementedError

    @reads
    def request_hand_over(self) -> Ask[HandOverReport]:
        """Return whether it can hand its tasks over to a successor now, and what prevents that."""
        raise NotImplementedError

    def hand_over(self, lifetime_s: float) -> Ask[None]:
        """Leave the running tasks to the next TaskExecutor of this worker, and end without ending them.

        The answer comes before the end. A checkpoint that has begun meanwhile is completed first. After other changes,
        or after 10 s, this TaskExecutor continues. Jobs keep its slots, and count it as lost if no successor registers
        in time. Called by `understudy cluster upgrade`.

        Args:
            lifetime_s: seconds after which the tasks and their Spark driver are killed if no successor has adopted
                them.

        Raises:
            HandOverRefusedError: it cannot at present; see `request_hand_over`.
        """
        raise NotImplementedError

    @reads
    def request_thread_dump(self, attempt_id: ExecutionAttemptID | None = None) -> Ask[ThreadDump]:
        """Return the current stacks of the TaskExecutor's threads, or of the threads of an attempt's task process.

        Raises:
            NoSuchTaskError: no process of that attempt runs here.
            TaskNotRespondingError: the process does not answer, for example because native code holds its interpreter.
        """
        raise NotImplementedError

    @reads
    def request_profile(
        self, samples: int, interval_ms: int, attempt_id: ExecutionAttemptID | None = None
    ) -> Ask[StackProfile]:
        """Sample the stacks of the TaskExecutor's threads, or of the threads of an attempt's task process.

        Args:
            samples: number of samples, at most `runtime.stack_samples.MOST_SAMPLES`.
            interval_ms: the pause between two samples, from 1 to 1000.
            attempt_id: the attempt. Default: the TaskExecutor itself.

        Raises:
            NoSuchTaskError, TaskNotRespondingError: as `request_thread_dump`; also if the process ends while sampled.
        """
        raise NotImplementedError

    @reads
    def request_session(self, job_id: JobID) -> Ask[SessionAddress]:
        """Return where the Spark Connect session of a job is open. The answer holds a secret.

        Raises:
            NoSuchSessionError: the job has none here, or it is not open.
        """
        raise NotImplementedError

    def end_session(self, job_id: JobID) -> Ask[None]:
        """Let the job of a Spark Connect session FINISH, because its client has released the session. Idempotent."""
        raise NotImplementedError

    @reads
    def request_task_pool(self) -> Ask[TaskPoolReport]:
        """Return the counts of its pool of ready task processes since it started."""
        raise NotImplementedError

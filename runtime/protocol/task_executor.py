"""How a TaskExecutor is asked (Flink's `TaskExecutorGateway`)."""

from __future__ import annotations

from actors.rpc.gateway import Ask, RpcGateway, fenced_by, reads
from blob.gateway import BlobAddress
from runtime.ids import AllocationID, ExecutionAttemptID, JobID, SlotID
from runtime.job_logs import KeptLog, LogChunk
from runtime.protocol.checkpoints import TriggerCheckpoint
from runtime.protocol.descriptor import TaskDeployment
from runtime.protocol.diagnostics import ComponentLog, LogInfo, TaskPoolReport, ThreadDump
from runtime.protocol.leader import JOB_MASTER, RESOURCE_MANAGER
from runtime.protocol.messages import JobHeartbeat, LeaderAddress, TaskExecutorHeartbeat, TaskLog
from runtime.stack_samples import StackProfile


class TaskExecutorGateway(RpcGateway):
    """Unfenced itself; calls that change something act under a leadership, and a former one is refused."""

    @fenced_by(RESOURCE_MANAGER)
    def request_slot(
        self,
        slot_id: SlotID,
        job_id: JobID,
        allocation_id: AllocationID,
        job_master: LeaderAddress,
    ) -> Ask[None]:
        """From the ResourceManager: give this slot to the job and offer it to its JobMaster.

        Raises:
            SlotOccupiedError: another allocation holds it.
        """
        raise NotImplementedError

    @fenced_by(JOB_MASTER)
    def free_slot(self, allocation_id: AllocationID, reason: str) -> Ask[None]:
        """From a JobMaster: it needs the slot no more. No error when it is free already."""
        raise NotImplementedError

    @fenced_by(JOB_MASTER)
    def submit_task(self, deployment: TaskDeployment) -> Ask[None]:
        """From a JobMaster: run an attempt; parts of the descriptor that are large are blobs.

        Idempotent by attempt. Its states follow as `JobMasterGateway.update_task_execution_state`.

        Raises:
            SlotNotAllocatedError: the allocation is not this job's any more.
            DeploymentNotFoundError: one of the blobs is not to be found; nothing was begun.
        """
        raise NotImplementedError

    @fenced_by(JOB_MASTER)
    def cancel_task(self, attempt_id: ExecutionAttemptID) -> Ask[None]:
        """From a JobMaster: cancel an attempt; CANCELED is reported when nothing of it runs any more."""
        raise NotImplementedError

    @fenced_by(JOB_MASTER)
    def trigger_checkpoint(self, job_id: JobID, trigger: TriggerCheckpoint) -> Ask[None]:
        """From a JobMaster: have an attempt take part in a checkpoint. Idempotent by attempt and number.

        What comes of it follows as `JobMasterGateway.acknowledge_checkpoint` or `decline_checkpoint`.

        Raises:
            NoSuchTaskError: the attempt does not run here.
        """
        raise NotImplementedError

    @fenced_by(JOB_MASTER)
    def notify_checkpoint_complete(self, attempt_id: ExecutionAttemptID, checkpoint_id: int) -> None:
        """From a JobMaster, the second phase: the checkpoint is complete (Flink's ``confirmCheckpoint``)."""
        raise NotImplementedError

    @fenced_by(JOB_MASTER)
    def notify_checkpoint_aborted(self, attempt_id: ExecutionAttemptID, checkpoint_id: int) -> None:
        """From a JobMaster: the checkpoint came to nothing (Flink's ``abortCheckpoint``)."""
        raise NotImplementedError

    @fenced_by(RESOURCE_MANAGER)
    def heartbeat_from_resource_manager(self) -> Ask[TaskExecutorHeartbeat]:
        """A sign of life of the ResourceManager's; the answer is what its slots are used for, and what it takes."""
        raise NotImplementedError

    @fenced_by(JOB_MASTER)
    def heartbeat_from_job_manager(self, job_id: JobID, job_master: LeaderAddress) -> Ask[JobHeartbeat]:
        """A sign of life of a JobMaster's; the answer is which attempts of its job are here, and how far they are.

        A JobMaster that is new to the TaskExecutor is registered with.
        """
        raise NotImplementedError

    @fenced_by(JOB_MASTER)
    def disconnect_job_manager(self, job_id: JobID, reason: str) -> None:
        """The job is over or its JobMaster gone: cancel what runs of it and free its slots."""
        raise NotImplementedError

    def request_task_logs(self, job_id: JobID, blob_server: BlobAddress) -> Ask[list[TaskLog]]:
        """Upload the logs of all attempts of the job that ran here as TRANSIENT blobs, and name them.

        They go to the BlobServer that whoever fetches them will ask: transient blobs are there alone, and each master
        has one.
        """
        raise NotImplementedError

    @fenced_by(JOB_MASTER)
    def keep_task_logs(self, job_id: JobID, attempt_id: ExecutionAttemptID) -> Ask[list[KeptLog]]:
        """From a JobMaster: put the logs of an attempt that ended untold as PERMANENT blobs of `logs_owner`.

        The answer is empty where the attempt did not run here. Fails with the error of the blob service.
        """
        raise NotImplementedError

    @reads
    def read_task_log(self, job_id: JobID, attempt_id: ExecutionAttemptID, name: str, offset: int) -> Ask[LogChunk]:
        """A piece of ``stdout`` or ``stderr`` of an attempt that runs or ran here, from byte *offset* on.

        At most `runtime.job_logs.CHUNK` bytes; none at the present end, or while there is no such file.

        Raises:
            NoSuchLogError: the name is no log's, or the offset is negative.
        """
        raise NotImplementedError

    @reads
    def request_log_list(self) -> Ask[list[LogInfo]]:
        """The logs of the TaskExecutor itself: its own and its Spark driver's."""
        raise NotImplementedError

    def request_file_upload(self, name: str, blob_server: BlobAddress | None = None) -> Ask[ComponentLog]:
        """Upload one of `request_log_list` as a TRANSIENT blob, and name that. It fails as the blob service does.

        Args:
            name: the log.
            blob_server: where to; as in `request_task_logs`. Default: the BlobServer beside the ResourceManager.

        Raises:
            NoSuchLogError: there is no log of that name; no other file is ever served.
        """
        raise NotImplementedError

    @reads
    def read_log(self, name: str, offset: int) -> Ask[LogChunk]:
        """A piece of one of `request_log_list`, from byte *offset* on; as `read_task_log`."""
        raise NotImplementedError

    @reads
    def request_thread_dump(self, attempt_id: ExecutionAttemptID | None = None) -> Ask[ThreadDump]:
        """Where the threads of the TaskExecutor are at present, or those of the task process of an attempt.

        Raises:
            NoSuchTaskError: no process of that attempt runs here.
            TaskNotRespondingError: the process does not answer, for example because native code holds its interpreter.
        """
        raise NotImplementedError

    @reads
    def request_profile(
        self, samples: int, interval_ms: int, attempt_id: ExecutionAttemptID | None = None
    ) -> Ask[StackProfile]:
        """Where the threads of the TaskExecutor, or of the task process of an attempt, are again and again.

        Args:
            samples: how many times, at most `runtime.stack_samples.MOST_SAMPLES`.
            interval_ms: the pause between two looks, from 1 to 1000.
            attempt_id: the attempt; the TaskExecutor itself unless it is given.

        Raises:
            NoSuchTaskError, TaskNotRespondingError: as `request_thread_dump`; also of one that ends meanwhile.
        """
        raise NotImplementedError

    @reads
    def request_task_pool(self) -> Ask[TaskPoolReport]:
        """What its pool of ready task processes did since it started."""
        raise NotImplementedError

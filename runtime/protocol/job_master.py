"""The gateway of a job's JobMaster (Flink's `JobMasterGateway`)."""

from __future__ import annotations

from actors.rpc.gateway import RECIPIENT, Ask, FencedRpcGateway, fenced_by, reads
from runtime.feature_level import Release
from runtime.ids import AllocationID, ResourceID, TriggerID
from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph, JobDetails
from runtime.protocol.checkpoint_statistics import CheckpointStatsSnapshot
from runtime.protocol.checkpoints import (
    AcknowledgeCheckpoint,
    CheckpointOutcome,
    DeclineCheckpoint,
    OperationStatus,
)
from runtime.protocol.descriptor import JobReport, SlotOffer, TaskExecutionState, TaskProgress
from runtime.protocol.execution_state import ErrorInfo
from runtime.protocol.leader import DISPATCHER, RESOURCE_MANAGER
from runtime.protocol.messages import TaskExecutorRegistration
from runtime.protocol.rescales import Rescale
from runtime.protocol.streaming_query import QueryHistory


class JobMasterGateway(FencedRpcGateway):
    """Calls to the leading JobMaster of a job. Fenced: every call names the leadership that it is meant for."""

    @fenced_by(RECIPIENT)
    def register_task_manager(self, registration: TaskExecutorRegistration, report: JobReport) -> Ask[None]:
        """Register a TaskExecutor that has slots for this job; *report* names its attempts and slots of the job."""
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def offer_slots(self, resource_id: ResourceID, offers: list[SlotOffer]) -> Ask[list[AllocationID]]:
        """Offer slots of a registered TaskExecutor; returns the accepted ones. The TaskExecutor may free the others.

        Raises:
            UnknownTaskExecutorError: it is not registered, or was lost since; it has to register again.
        """
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def update_task_execution_state(self, state: TaskExecutionState) -> Ask[None]:
        """Report that an attempt has entered a state. Idempotent; TaskExecutors repeat it until it is answered.

        The answer to a terminal state comes once it is persisted, so that no successor of this JobMaster needs it.
        """
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def update_task_progress(self, progress: TaskProgress) -> None:
        """Report the progress of an attempt; each report replaces the one before."""
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def disconnect_task_manager(self, resource_id: ResourceID, cause: ErrorInfo) -> None:
        """Report that a TaskExecutor has left or is leaving; *cause* is the failure of its tasks."""
        raise NotImplementedError

    @fenced_by(RESOURCE_MANAGER)
    def notify_allocation_failure(self, allocation_id: AllocationID, reason: str) -> Ask[None]:
        """Report that the ResourceManager cannot fulfil a slot request."""
        raise NotImplementedError

    @fenced_by(RESOURCE_MANAGER)
    def heartbeat_from_resource_manager(self) -> Ask[None]:
        """Answer a heartbeat of the ResourceManager."""
        raise NotImplementedError

    @fenced_by(RESOURCE_MANAGER)
    def notify_slot_gone(self, allocation_id: AllocationID) -> Ask[None]:
        """Report that a slot that was allocated to the job no longer is. Idempotent.

        If it was never offered to the JobMaster, its request still waits, and the JobMaster repeats it.
        """
        raise NotImplementedError

    @fenced_by(RESOURCE_MANAGER)
    def vacate_task_manager(self, resource_id: ResourceID, lifetime_s: float, moves_tasks: bool) -> Ask[None]:
        """Return the slots of a TaskExecutor that no task uses, and those of its tasks as they end. Idempotent.

        See `ResourceManagerGateway.drain_task_manager`. Tasks that are moved end and run again without a failure: the
        restart strategy does not count that.
        """
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def expect_successor(self, resource_id: ResourceID, lifetime_s: float) -> Ask[None]:
        """Wait for the successor of a TaskExecutor that is about to end, whose tasks run on. Idempotent.

        The job keeps its slots and tasks there. They are lost if no TaskExecutor of that name registers in time, or if
        it has not adopted them (`TaskExecutorRegistration.predecessors`). The answer comes when the next JobMaster
        would know this too.

        Args:
            resource_id: the TaskExecutor.
            lifetime_s: seconds to wait.

        Raises:
            UnknownTaskExecutorError: it is not registered for this job.
            JobNotReachableError: another JobMaster has the job.
        """
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def cancel(self, because: str = "") -> Ask[None]:
        """Cancel the job; it is CANCELED when nothing of it runs any more. Idempotent.

        Args:
            because: why the cluster cancels the job by itself; empty where a user cancels it.

        Raises:
            JobAlreadyTerminatedError: it is FINISHED or FAILED, which the Dispatcher may not know yet.
        """
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def acknowledge_checkpoint(self, ack: AcknowledgeCheckpoint) -> Ask[CheckpointOutcome]:
        """Report that a task has done its part of a checkpoint. Idempotent.

        Returns the outcome of the checkpoint so far. If it is ABORTED, the task's snapshots are removed.
        """
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def decline_checkpoint(self, decline: DeclineCheckpoint) -> Ask[None]:
        """Report that a task cannot do its part of a checkpoint. Idempotent."""
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def trigger_checkpoint(self, trigger_id: TriggerID) -> Ask[OperationStatus]:
        """Take a checkpoint. Idempotent by trigger id: repeat the call for its status."""
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def trigger_savepoint(
        self, trigger_id: TriggerID, target_directory: str, cancel_job: bool = False
    ) -> Ask[OperationStatus]:
        """Make a savepoint in *target_directory*; otherwise as `trigger_checkpoint`.

        With *cancel_job* the queries are stopped first, and the job is cancelled once the savepoint is complete. If the
        savepoint fails, the job keeps running.
        """
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def stop_with_savepoint(self, trigger_id: TriggerID, target_directory: str, drain: bool) -> Ask[OperationStatus]:
        """Stop the queries, make a savepoint, and let the job finish; otherwise as `trigger_checkpoint`.

        With *drain* the queries first process what their sources have. The job keeps running where the savepoint fails.
        """
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def roll_back(self, trigger_id: TriggerID, target: str, new_query_id: bool) -> Ask[OperationStatus]:
        """Roll the job back to one of its checkpoints or savepoints; see `DispatcherGateway.roll_back`."""
        raise NotImplementedError

    @fenced_by(DISPATCHER)
    def report_rescale(self, rescale: Rescale) -> Ask[None]:
        """Record a rescale of the job, or what is known of it since; see `DispatcherGateway.report_rescale`."""
        raise NotImplementedError

    @fenced_by(DISPATCHER)
    def notify_feature_level(self, level: int) -> Ask[None]:
        """Report the feature level that the cluster stores now. Idempotent; a lower one has no effect."""
        raise NotImplementedError

    @reads
    def request_release(self) -> Ask[Release]:
        """Return the release that it runs, and the feature levels that this release supports."""
        raise NotImplementedError

    @reads
    def request_operation_status(self, trigger_id: TriggerID) -> Ask[OperationStatus]:
        """Return the status of the request with this trigger id; raises `UnknownOperationError`."""
        raise NotImplementedError

    @reads
    def request_checkpoint_statistics(self) -> Ask[CheckpointStatsSnapshot]:
        """Return the figures of the job's checkpoints (Flink's ``requestCheckpointStats``)."""
        raise NotImplementedError

    @reads
    def request_job(self) -> Ask[ArchivedExecutionGraph]:
        """Return the job with its tasks in their present states."""
        raise NotImplementedError

    @reads
    def request_query_histories(self) -> Ask[list[QueryHistory]]:
        """Return past figures of the job's streaming queries, as far as this JobMaster has received them."""
        raise NotImplementedError

    @reads
    def request_job_details(self) -> Ask[JobDetails]:
        """Return the job as one line of a list."""
        raise NotImplementedError

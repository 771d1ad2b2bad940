"""How the JobMaster of a job is asked (Flink's `JobMasterGateway`)."""

from __future__ import annotations

from actors.rpc.gateway import RECIPIENT, Ask, FencedRpcGateway, fenced_by, reads
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
from runtime.protocol.leader import RESOURCE_MANAGER
from runtime.protocol.messages import TaskExecutorRegistration
from runtime.protocol.streaming_query import QueryHistory


class JobMasterGateway(FencedRpcGateway):
    """Fenced: every call names the leadership that it is meant for."""

    @fenced_by(RECIPIENT)
    def register_task_manager(self, registration: TaskExecutorRegistration, report: JobReport) -> Ask[None]:
        """From a TaskExecutor that has slots for this job; *report* says what it holds of it already."""
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def offer_slots(self, resource_id: ResourceID, offers: list[SlotOffer]) -> Ask[list[AllocationID]]:
        """From a registered TaskExecutor; the answer names the offers that are taken, the others it may free.

        Raises:
            UnknownTaskExecutorError: it is not registered, or was lost since; it has to register again.
        """
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def update_task_execution_state(self, state: TaskExecutionState) -> Ask[None]:
        """From a TaskExecutor: an attempt has entered a state. Idempotent; repeated until it is answered.

        The answer to a terminal state comes when it is written down: no successor of this JobMaster will ask for it.
        """
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def update_task_progress(self, progress: TaskProgress) -> None:
        """From a TaskExecutor: how far an attempt is; the last one counts."""
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def disconnect_task_manager(self, resource_id: ResourceID, cause: ErrorInfo) -> None:
        """A TaskExecutor is gone, or goes; *cause* is what its tasks have failed of."""
        raise NotImplementedError

    @fenced_by(RESOURCE_MANAGER)
    def notify_allocation_failure(self, allocation_id: AllocationID, reason: str) -> Ask[None]:
        """From the ResourceManager: a slot request cannot be served."""
        raise NotImplementedError

    @fenced_by(RESOURCE_MANAGER)
    def heartbeat_from_resource_manager(self) -> Ask[None]:
        """A sign of life of the ResourceManager's."""
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def cancel(self, because: str = "") -> Ask[None]:
        """Cancel the job; it is CANCELED when nothing of it runs any more. Idempotent.

        Args:
            because: why the cluster does so by itself; empty where somebody asks for it.

        Raises:
            JobAlreadyTerminatedError: it is FINISHED or FAILED, which the Dispatcher may not know yet.
        """
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def acknowledge_checkpoint(self, ack: AcknowledgeCheckpoint) -> Ask[CheckpointOutcome]:
        """From a TaskExecutor: a task has done its part of a checkpoint. Idempotent.

        The answer is what has become of the checkpoint so far; where it is ABORTED, what the task has made is removed.
        """
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def decline_checkpoint(self, decline: DeclineCheckpoint) -> Ask[None]:
        """From a TaskExecutor: a task cannot do its part of a checkpoint. Idempotent."""
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def trigger_checkpoint(self, trigger_id: TriggerID) -> Ask[OperationStatus]:
        """Take a checkpoint. Idempotent by trigger id: ask again to learn what became of it."""
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def trigger_savepoint(
        self, trigger_id: TriggerID, target_directory: str, cancel_job: bool = False
    ) -> Ask[OperationStatus]:
        """Make a savepoint in *target_directory*; as `trigger_checkpoint`.

        With *cancel_job* the queries are stopped for it, and the job is cancelled when the savepoint is complete. Where
        it fails the job goes on.
        """
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def stop_with_savepoint(self, trigger_id: TriggerID, target_directory: str, drain: bool) -> Ask[OperationStatus]:
        """Stop the queries, make a savepoint, and let the job finish; as `trigger_checkpoint`.

        With *drain* the queries first work off what their sources have. Where the savepoint fails the job goes on.
        """
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def roll_back(self, trigger_id: TriggerID, target: str, new_query_id: bool) -> Ask[OperationStatus]:
        """Go back to one of the job's checkpoints or savepoints; see `DispatcherGateway.roll_back`."""
        raise NotImplementedError

    @reads
    def request_operation_status(self, trigger_id: TriggerID) -> Ask[OperationStatus]:
        """What became of a trigger; raises `UnknownOperationError`."""
        raise NotImplementedError

    @reads
    def request_checkpoint_statistics(self) -> Ask[CheckpointStatsSnapshot]:
        """The figures of the job's checkpoints (Flink's ``requestCheckpointStats``)."""
        raise NotImplementedError

    @reads
    def request_job(self) -> Ask[ArchivedExecutionGraph]:
        """The job with its tasks, as it stands."""
        raise NotImplementedError

    @reads
    def request_query_histories(self) -> Ask[list[QueryHistory]]:
        """The past figures of the job's streaming queries, as far as this JobMaster has heard of them."""
        raise NotImplementedError

    @reads
    def request_job_details(self) -> Ask[JobDetails]:
        """The job in one line."""
        raise NotImplementedError

"""The gateway of the ResourceManager (Flink's `ResourceManagerGateway`)."""

from __future__ import annotations

from actors.rpc.gateway import RECIPIENT, Ask, FencedRpcGateway, fenced_by, reads
from runtime.feature_level import Release
from runtime.ids import AllocationID, InstanceID, JobID, ResourceID
from runtime.metrics.metric import TaskManagerMetricAddress
from runtime.protocol.archived_execution_graph import ApplicationStatus
from runtime.protocol.diagnostics import ComponentLog
from runtime.protocol.leader import DISPATCHER, JOB_MASTER
from runtime.protocol.messages import (
    JobMasterRegistration,
    RegistrationSuccess,
    ResourceOverview,
    TaskExecutorRegistration,
    TaskManagerInfo,
    TaskManagerView,
)
from runtime.protocol.queues import QueuesOverview
from runtime.protocol.slots import SlotReport, SlotRequest


class ResourceManagerGateway(FencedRpcGateway):
    """Calls to the leading ResourceManager. Fenced: every call names the leadership that it is meant for.

    Flink's ``heartbeatFromTaskManager`` and ``heartbeatFromJobManager`` are the answers to
    `TaskExecutorGateway.heartbeat_from_resource_manager` and `JobMasterGateway.heartbeat_from_resource_manager`.
    """

    @fenced_by(RECIPIENT)
    def register_task_executor(self, registration: TaskExecutorRegistration) -> Ask[RegistrationSuccess]:
        """Register a TaskExecutor. An earlier registration of the same resource id is ended."""
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def send_slot_report(self, instance_id: InstanceID, report: SlotReport) -> Ask[None]:
        """Report the use of a TaskExecutor's slots, after it has registered.

        Raises:
            UnknownTaskExecutorError: the registration has been ended; register again.
        """
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def notify_slot_available(self, instance_id: InstanceID, report: SlotReport) -> None:
        """Report that a slot of a TaskExecutor has become free.

        *report* holds all its slots, so that the next report makes up for a lost one.
        """
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def disconnect_task_manager(self, resource_id: ResourceID, reason: str) -> None:
        """Deregister a TaskExecutor that is shutting down."""
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def drain_task_manager(self, resource_id: ResourceID, lifetime_s: float, moves_tasks: bool) -> Ask[TaskManagerInfo]:
        """Allocate no more slots of a TaskExecutor that is about to be exchanged, and have jobs leave it. Idempotent.

        Call this repeatedly: without a further call, jobs get slots of it again after *lifetime_s* seconds.

        Args:
            resource_id: the TaskExecutor.
            lifetime_s: seconds for which this holds.
            moves_tasks: whether its tasks are ended and run again elsewhere; otherwise those that run may finish.

        Returns:
            the TaskExecutor, with the slots that jobs still hold.

        Raises:
            UnknownTaskExecutorError: it is not registered.
        """
        raise NotImplementedError

    @fenced_by(JOB_MASTER)
    def register_job_manager(self, job_id: JobID, job_master: JobMasterRegistration) -> Ask[None]:
        """Register the JobMaster that leads this job.

        Raises:
            FencingError: a later JobMaster of the job is known; the message names its epoch.
        """
        raise NotImplementedError

    @fenced_by(JOB_MASTER)
    def disconnect_job_manager(self, job_id: JobID, reason: str) -> None:
        """Deregister the JobMaster of a job that is over, and drop its requests."""
        raise NotImplementedError

    @fenced_by(JOB_MASTER)
    def request_slot(self, request: SlotRequest) -> Ask[str]:
        """Allocate a slot for a job; a TaskExecutor will offer it to the JobMaster. Idempotent by allocation id.

        Jobs of a higher priority come first. Jobs of the same priority are served in the order of their requests. With
        ``queues.file``, queues and users come first (`runtime.queues.scheduling`).

        Returns what the request waits for, or an empty text when a slot is on its way. If a request cannot be served
        within ``slot.request.timeout``, the ResourceManager calls `JobMasterGateway.notify_allocation_failure`.

        Raises:
            UnknownJobManagerError: the job is not registered; register again.
        """
        raise NotImplementedError

    @fenced_by(JOB_MASTER)
    def cancel_slot_request(self, allocation_id: AllocationID) -> None:
        """Cancel a JobMaster's request for a slot that it no longer needs."""
        raise NotImplementedError

    @reads
    def request_resource_overview(self) -> Ask[ResourceOverview]:
        """Return the counts of TaskExecutors, slots and waiting requests."""
        raise NotImplementedError

    @reads
    def request_queues(self) -> Ask[QueuesOverview]:
        """Return the queues with their use, and what each waiting request waits for."""
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def deregister_application(self, status: ApplicationStatus, diagnostics: str) -> Ask[None]:
        """Report that the cluster is about to be shut down; called by the Dispatcher or an operator. Idempotent.

        From now on requests for slots fail, with *diagnostics* as the reason, and no TaskExecutor is registered.
        """
        raise NotImplementedError

    @reads
    def request_task_manager_info(self, resource_id: ResourceID) -> Ask[TaskManagerInfo]:
        """Return everything known of one TaskExecutor; raises `UnknownTaskExecutorError`."""
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def request_task_manager_file_upload(self, resource_id: ResourceID, name: str) -> Ask[ComponentLog]:
        """Have a TaskExecutor upload one of the logs of `TaskExecutorGateway.request_log_list`.

        Raises:
            UnknownTaskExecutorError: it is not registered.
            NoSuchLogError: it has no log of that name.
            ActorError: it does not answer.
        """
        raise NotImplementedError

    @reads
    def request_task_manager_metric_query_service_addresses(self) -> Ask[list[TaskManagerMetricAddress]]:
        """Return the addresses that serve the metrics of the registered TaskExecutors."""
        raise NotImplementedError

    @fenced_by(DISPATCHER)
    def notify_feature_level(self, level: int) -> Ask[None]:
        """Report the feature level that the cluster stores now. Idempotent.

        TaskExecutors that do not support it are deregistered.
        """
        raise NotImplementedError

    @reads
    def request_release(self) -> Ask[Release]:
        """Return the release that it runs, and the feature levels that this release supports."""
        raise NotImplementedError

    @reads
    def request_task_managers(self) -> Ask[list[TaskManagerView]]:
        """Return the registered TaskExecutors."""
        raise NotImplementedError

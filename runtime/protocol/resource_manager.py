"""How the ResourceManager is asked (Flink's `ResourceManagerGateway`)."""

from __future__ import annotations

from actors.rpc.gateway import RECIPIENT, Ask, FencedRpcGateway, fenced_by, reads
from runtime.ids import AllocationID, InstanceID, JobID, ResourceID
from runtime.metrics.metric import TaskManagerMetricAddress
from runtime.protocol.archived_execution_graph import ApplicationStatus
from runtime.protocol.diagnostics import ComponentLog
from runtime.protocol.leader import JOB_MASTER
from runtime.protocol.messages import (
    LeaderAddress,
    RegistrationSuccess,
    ResourceOverview,
    TaskExecutorRegistration,
    TaskManagerInfo,
    TaskManagerView,
)
from runtime.protocol.slots import SlotReport, SlotRequest


class ResourceManagerGateway(FencedRpcGateway):
    """Fenced: every call names the leadership that it is meant for.

    Flink's ``heartbeatFromTaskManager`` and ``heartbeatFromJobManager`` are the answers to
    `TaskExecutorGateway.heartbeat_from_resource_manager` and `JobMasterGateway.heartbeat_from_resource_manager`.
    """

    @fenced_by(RECIPIENT)
    def register_task_executor(self, registration: TaskExecutorRegistration) -> Ask[RegistrationSuccess]:
        """From a TaskExecutor: it is here. An earlier registration of the same resource id is ended."""
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def send_slot_report(self, instance_id: InstanceID, report: SlotReport) -> Ask[None]:
        """From a TaskExecutor, after registering: what its slots are used for.

        Raises:
            UnknownTaskExecutorError: the registration has been ended; register again.
        """
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def notify_slot_available(self, instance_id: InstanceID, report: SlotReport) -> None:
        """From a TaskExecutor: a slot has become free; its whole report, so that a lost one costs nothing."""
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def disconnect_task_manager(self, resource_id: ResourceID, reason: str) -> None:
        """From a TaskExecutor that goes away in good order."""
        raise NotImplementedError

    @fenced_by(JOB_MASTER)
    def register_job_manager(self, job_id: JobID, job_master: LeaderAddress) -> Ask[None]:
        """From a JobMaster: it leads this job.

        Raises:
            FencingError: a later JobMaster of the job is known; it says of which epoch.
        """
        raise NotImplementedError

    @fenced_by(JOB_MASTER)
    def disconnect_job_manager(self, job_id: JobID, reason: str) -> None:
        """From a JobMaster whose job is over: its requests end."""
        raise NotImplementedError

    @fenced_by(JOB_MASTER)
    def request_slot(self, request: SlotRequest) -> Ask[str]:
        """From a JobMaster: allocate a slot; a TaskExecutor will offer it. Idempotent by allocation id.

        Jobs of a higher priority come first, those of the same in the order in which they asked.

        The answer says what the request waits for, or is empty when a slot is on its way. A request that cannot be
        served within ``slot.request.timeout`` ends in `JobMasterGateway.notify_allocation_failure`.

        Raises:
            UnknownJobManagerError: the job is not registered; register again.
        """
        raise NotImplementedError

    @fenced_by(JOB_MASTER)
    def cancel_slot_request(self, allocation_id: AllocationID) -> None:
        """From a JobMaster: the slot is needed no more."""
        raise NotImplementedError

    @reads
    def request_resource_overview(self) -> Ask[ResourceOverview]:
        """Counts of task managers, slots and waiting requests."""
        raise NotImplementedError

    @fenced_by(RECIPIENT)
    def deregister_application(self, status: ApplicationStatus, diagnostics: str) -> Ask[None]:
        """From the Dispatcher, or an operator: the cluster is about to be shut down. Idempotent.

        From now on requests for slots fail, with *diagnostics* as the reason, and no TaskExecutor is registered.
        """
        raise NotImplementedError

    @reads
    def request_task_manager_info(self, resource_id: ResourceID) -> Ask[TaskManagerInfo]:
        """All that is known of one TaskExecutor; raises `UnknownTaskExecutorError`."""
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
        """Where the metrics of the registered TaskExecutors are asked for."""
        raise NotImplementedError

    @reads
    def request_task_managers(self) -> Ask[list[TaskManagerView]]:
        """The registered TaskExecutors."""
        raise NotImplementedError

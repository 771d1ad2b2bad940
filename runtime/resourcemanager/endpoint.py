"""The ResourceManager: TaskExecutors register here, and JobMasters request slots (Flink's `ResourceManager`)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal

import runtime
from actors.address import ActorAddress
from actors.errors import ActorError
from actors.receptionist import ReceptionistGateway, receptionist_of
from actors.rpc.endpoint import RpcEndpoint
from actors.rpc.gateway import rpc, rpc_sync, rpc_tell
from actors.rpc.service import RpcService
from blob.gateway import BlobAddress
from conf.configuration import Configuration
from conf.options import ClusterOptions, JobOptions, QueueOptions, ResourceManagerOptions
from runtime.alarm import Alarm
from runtime.environment.context import ComponentContext
from runtime.environment.shared_directory import shared_directory_mark
from runtime.feature_level import Release, supported_levels
from runtime.ha.feature_level import checked, own_release
from runtime.ha.services import HighAvailabilityServices
from runtime.heartbeat import HeartbeatManager
from runtime.ids import AllocationID, InstanceID, JobID, ResourceID
from runtime.leadership import LeaderEndpoint
from runtime.metrics.metric import MetricScope, ScopeCategory, ScopeDump, TaskManagerMetricAddress, Value, gauges
from runtime.metrics.registry import MetricRegistry, add_process_metrics, beside, serve_metrics
from runtime.protocol.archived_execution_graph import ApplicationStatus
from runtime.protocol.diagnostics import ComponentLog
from runtime.protocol.errors import (
    RegistrationRejectedError,
    ShuttingDownError,
    SlotOccupiedError,
    UnknownJobManagerError,
    UnknownTaskExecutorError,
)
from runtime.protocol.events import TaskExecutorLost
from runtime.protocol.job_master import JobMasterGateway
from runtime.protocol.leader import RESOURCE_MANAGER, LeaderTerm
from runtime.protocol.messages import (
    JobMasterRegistration,
    LeaderAddress,
    RegistrationSuccess,
    ResourceOverview,
    TaskExecutorHeartbeat,
    TaskExecutorRegistration,
    TaskManagerInfo,
    TaskManagerView,
)
from runtime.protocol.queues import QueuesOverview, QueueStatus
from runtime.protocol.resource_manager import ResourceManagerGateway
from runtime.protocol.resource_manager_driver import ResourceManagerDriver
from runtime.protocol.slots import (
    AllocateSlot,
    FailRequest,
    RenewDriver,
    SlotGone,
    SlotManagerInstruction,
    SlotReport,
    SlotRequest,
)
from runtime.protocol.task_executor import TaskExecutorGateway
from runtime.queues.configuration import Asked, QueuesError, QueuesFile
from runtime.resourcemanager.active import ActiveResourceManager
from runtime.resourcemanager.drivers import allocation_limits, create_driver
from runtime.resourcemanager.instance_manager import Instance, InstanceManager
from runtime.resourcemanager.slot_manager import SlotManager
from runtime.retry import retry

QUEUES_INTERVAL_S = 1.0
"""Seconds between two looks at the file of queues."""
SOON_S = 0.5
"""Seconds from a change until workers are started or stopped; several changes within that time are handled at once."""


def resource_manager_metrics(
    service: RpcService,
    overview: Callable[[], ResourceOverview | None],
    queues: Callable[[], QueuesOverview | None] = lambda: None,
) -> MetricRegistry:
    """Return the metrics of a ResourceManager's process.

    Args:
        service: its RPC service.
        overview: returns the counts of the cluster; None while the ResourceManager does not lead.
        queues: returns the queues; None without a file of queues.
    """
    registry = MetricRegistry()

    def counts() -> dict[str, Value | None]:
        found = overview()
        if found is None:
            return {}
        known = queues()
        return {
            "numRegisteredTaskManagers": found.task_managers,
            "taskSlotsTotal": found.slots,
            "taskSlotsAvailable": found.free_slots,
            "numPendingSlotRequests": found.pending_requests,
            **({} if known is None else _queue_counts(known)),
        }

    def of_queues() -> list[ScopeDump]:
        known = None if overview() is None else queues()
        return [
            ScopeDump(
                MetricScope(ScopeCategory.JOB_MANAGER, queue=queue.name),
                gauges({f"Queue.{name}": value for name, value in _figures(queue).items()}),
            )
            for queue in (() if known is None else known.queues)
        ]

    registry.group(MetricScope(ScopeCategory.JOB_MANAGER)).gauges("", counts)
    registry.add_source(of_queues)
    add_process_metrics(registry.group(MetricScope(ScopeCategory.JOB_MANAGER, component="resourcemanager")), service)
    return registry


def _queue_counts(known: QueuesOverview) -> dict[str, Value | None]:
    return {f"Queue.{queue.name}.{name}": value for queue in known.queues for name, value in _figures(queue).items()}


def _figures(queue: QueueStatus) -> dict[str, Value | None]:
    return {
        "taskSlotsUsed": queue.slots,
        "numPendingSlotRequests": queue.waiting,
        "taskMemoryUsedMb": queue.memory_mb,
        "taskCpusUsed": queue.cpus,
        "blobMb": queue.blob_mb,
    }


class Admission:
    """Check of TaskExecutors that register (Flink's `RegistrationResponse.Rejection`).

    Args:
        configuration: of the ResourceManager's machine.
    """

    def __init__(self, configuration: Configuration) -> None:
        self._host = configuration.get(ClusterOptions.HOST)
        self._shared = shared_directory_mark(
            configuration.get(ClusterOptions.SHARED_DIR), configuration.get(ClusterOptions.ID)
        )

    def check(self, registration: TaskExecutorRegistration, former: Instance | None, level: int) -> None:
        """Refuse a TaskExecutor that cannot work for this cluster.

        Args:
            registration: of the TaskExecutor.
            former: the current registration of its name; None if there is none.
            level: the feature level of the cluster.

        Raises:
            RegistrationRejectedError: it does not support the cluster's feature level, another machine has its name, or
                it sees another shared directory.
        """
        name, host = registration.resource_id, ActorAddress.parse(registration.address).host
        if level not in registration.levels:
            raise RegistrationRejectedError(
                f"{name} on {host} runs Understudy {registration.version or 'of an unknown version'}, which does not "
                f"support the cluster's feature level {level}; the master runs {runtime.__version__}: install the same "
                "version on all hosts"
            )
        other = None if former is None else ActorAddress.parse(former.registration.address).host
        if other not in (None, host):
            raise RegistrationRejectedError(
                f"{name} is registered from {other} already, and {host} uses the same name: leave "
                "taskmanager.resource-id out, or give each host one of its own"
            )
        if host != self._host and registration.shared_directory != self._shared:
            raise RegistrationRejectedError(
                f"cluster.shared-dir on {host} is not the directory that the master on {self._host} sees: mount one "
                "file system at that path on all hosts"
            )


@dataclass(slots=True)
class _Job:
    leader: LeaderAddress
    gateway: JobMasterGateway


class ResourceManager(LeaderEndpoint, ResourceManagerGateway):
    """The owner of the state of TaskExecutors and slots while it leads. It stores none: they report it to a new leader.

    Args:
        service: the RPC service of the process.
        name: the actor's name.
        ha: high-availability services; closed with the endpoint.
        receptionist: the system's directory.
        configuration: of the cluster.
        blob: address of the BlobServer.
        system: the address of its system.
        create_driver: makes the driver for this endpoint; returns None if workers are neither started nor stopped.
    """

    def __init__(
        self,
        service: RpcService,
        name: str,
        ha: HighAvailabilityServices,
        receptionist: ReceptionistGateway,
        configuration: Configuration,
        blob: BlobAddress,
        system: ActorAddress,
        create_driver: Callable[[RpcEndpoint], ResourceManagerDriver | None],
    ) -> None:
        super().__init__(service, name, ha.leader_election(RESOURCE_MANAGER), receptionist)
        self._ha = ha
        self._configuration = configuration
        self._blob = blob
        self._system = str(system)
        self._admission = Admission(configuration)
        self._instances = InstanceManager()
        self._instances.add_instance_listener(self)
        self._shutting_down = ""
        self._level: int | None = None
        self._driver = create_driver(self)
        self._jobs: dict[JobID, _Job] = {}
        self._queues = QueuesFile(configuration.get(QueueOptions.FILE))
        self._alarm = Alarm(self, self._look)
        self._begin_books()
        self.metrics = resource_manager_metrics(
            service,
            lambda: None if self._term is None else self._overview(),
            lambda: self._slots.queues() if self._queues.is_set else None,
        )
        self._worker_heartbeats: HeartbeatManager | None = None
        self._job_heartbeats: HeartbeatManager | None = None

    def _begin_books(self) -> None:
        self._slots = SlotManager(
            self._configuration.get(JobOptions.SLOT_REQUEST_TIMEOUT), clock=lambda: time.monotonic()
        )
        limits = allocation_limits(self._configuration)
        self._workers = ActiveResourceManager(
            self,
            self._driver,
            limits,
            self._slots,
            self._instances.unregister,
            self._carry_out,
            self._may_act_now,
            self._look_soon,
        )

    def _may_act_now(self) -> bool:
        return self._term is not None and self.may_act(self._term)

    # --------------------------------------------------------------- leadership

    async def lead(self, term: LeaderTerm) -> None:
        """Begin with an empty state: TaskExecutors and JobMasters register with the new leader."""
        self._level = await self._ha.feature_level_store().find()
        if self._level is not None:
            checked(self._level)
        self._begin_books()
        if self._queues.is_set:
            await self._read_queues()
        self._shutting_down = ""
        configuration = self._configuration
        self._worker_heartbeats = HeartbeatManager(
            self, configuration, on_timeout=self._worker_lost, on_payload=self._worker_heard
        )
        self._job_heartbeats = HeartbeatManager(self, configuration, on_timeout=self._job_master_lost)
        self._worker_heartbeats.start()
        self._job_heartbeats.start()
        start_up_s = self._configuration.get(ResourceManagerOptions.START_UP_TIME)
        self._workers.start()
        if start_up_s and self._driver is None:
            self.schedule_run_async(start_up_s, lambda: self._start_up_is_over(term))

    async def serve(self) -> None:
        """Follow the file of queues, if there is one."""
        if self._queues.is_set and self._term is not None:
            self.spawn(self._follow_queues(self._term), "reading the file of queues")

    async def _follow_queues(self, term: LeaderTerm) -> None:
        while self._term == term:
            await self._read_queues()
            await asyncio.sleep(QUEUES_INTERVAL_S)

    async def _read_queues(self) -> None:
        """Use the present content of the file of queues; report a wrong one once, and keep what was in use."""
        before = self._queues.problem
        try:
            queues = await self.run_blocking(self._queues.read)
        except QueuesError:
            queues = None
        if self._queues.problem and self._queues.problem != before:
            self.log.error("the file of queues is not used as it is: %s", self._queues.problem)
        if queues is not None and queues is not self._slots.in_use:
            self.log.info("the queues are %s", ", ".join(queue.name for queue in queues.queues))
            self._carry_out(self._slots.configure(queues))

    def _start_up_is_over(self, term: LeaderTerm) -> None:
        if self._term == term:
            self._carry_out(self._slots.set_fail_unfulfillable_request(True))

    async def on_revoked(self) -> None:
        """Drop all registrations; TaskExecutors and JobMasters find the new leader by themselves."""
        for heartbeats in (self._worker_heartbeats, self._job_heartbeats):
            if heartbeats is not None:
                heartbeats.stop()
        self._alarm.clear()
        self._instances.clear()
        self._jobs.clear()
        await self._workers.stop()

    async def on_stop(self) -> None:
        await super().on_stop()
        await self._ha.close()

    def _look(self) -> None:
        """Handle due decisions and requests, and set the alarm for the next ones; an idle cluster has none."""
        if self._may_act_now():
            self._workers.decide()  # first, so that refused requests name the current outlook
            expired = self._slots.expired(time.monotonic())
            if expired:
                self._carry_out(expired)
            self._alarm.set(self._slots.next_deadline())
            self._alarm.set(self._workers.next_deadline())

    def _look_soon(self) -> None:
        if self._term is not None:
            self._alarm.set_in(SOON_S)

    # ------------------------------------------------------------ TaskExecutors

    @rpc
    async def register_task_executor(self, registration: TaskExecutorRegistration) -> RegistrationSuccess:
        term = self.term
        level = await self._current_level()
        self.act(term)
        if self._shutting_down:
            raise ShuttingDownError(f"TaskExecutor {registration.resource_id} is not registered: {self._shutting_down}")
        self._admission.check(registration, self._instances.find(registration.resource_id), level)
        gateway = self.gateway(registration.address, TaskExecutorGateway, term=term)
        instance = self._instances.register(InstanceID.random(), registration, gateway, _now_ms())
        return RegistrationSuccess(instance.instance_id, self._blob, self._system)

    async def _current_level(self) -> int:
        """Return the feature level of the cluster; this release's newest until the first Dispatcher has stored one.

        A level never falls, so the newest is not read again. A lower one is: the message about a raise may be lost.
        """
        newest = supported_levels().newest
        if self._level != newest:
            self._level = await self._ha.feature_level_store().find()
        return self._level or newest

    @rpc_sync
    def notify_feature_level(self, level: int) -> None:
        self._level = level
        for instance in list(self._instances):
            if level not in instance.registration.levels:
                reason = f"{instance.registration.component.limit()}: the cluster has feature level {level}"
                self._instances.unregister(instance.instance_id, reason)

    @rpc_sync
    def request_release(self) -> Release:
        return own_release()

    def new_instance_available(self, instance: Instance) -> None:
        """Begin heartbeats with a TaskExecutor; the InstanceManager calls this."""
        if self._worker_heartbeats is not None:
            self._worker_heartbeats.monitor(instance.instance_id, instance.gateway.heartbeat_from_resource_manager)
        self.log.info(
            "TaskExecutor %s (process %d) registered with %d slots at %s",
            instance.resource_id,
            instance.registration.pid,
            instance.registration.slots,
            instance.registration.address,
        )

    def instance_died(self, instance: Instance, reason: str) -> None:
        """Announce the loss of a TaskExecutor and drop its slots; the InstanceManager calls this."""
        self.log.warning("TaskExecutor %s is gone: %s", instance.resource_id, reason)
        self.announce(TaskExecutorLost(str(instance.resource_id), reason))
        if self._worker_heartbeats is not None:
            self._worker_heartbeats.unmonitor(instance.instance_id)
        self._workers.unregistered(instance.resource_id)
        self._carry_out(self._slots.unregister_task_manager(instance.instance_id))

    @rpc_sync
    def send_slot_report(self, instance_id: InstanceID, report: SlotReport) -> None:
        instance = self._instances.get(instance_id)
        if instance is None:
            raise UnknownTaskExecutorError(f"registration {instance_id} has been ended; register again")
        address, serves_one_user = instance.registration.address, instance.registration.serves_one_user
        # Not before: without its slots it would be neither pending nor present, and another one would be started.
        self._workers.registered(instance.resource_id)
        self._carry_out(
            self._slots.register_task_manager(
                instance_id, instance.resource_id, address, report, serves_one_user=serves_one_user
            )
        )

    @rpc_tell
    def notify_slot_available(self, instance_id: InstanceID, report: SlotReport) -> None:
        self._carry_out(self._slots.report_slot_status(instance_id, report))

    @rpc_sync
    def drain_task_manager(self, resource_id: ResourceID, lifetime_s: float, moves_tasks: bool) -> TaskManagerInfo:
        instance_id = self._registered(resource_id).instance_id
        self._slots.drain_task_manager(instance_id, time.monotonic() + lifetime_s)
        self._look_soon()
        for job_id in {slot.job_id for slot in self._slots.statuses(instance_id)}:
            if (job := None if job_id is None else self._jobs.get(job_id)) is not None:
                self.spawn(self._vacate(job, resource_id, lifetime_s, moves_tasks), f"draining {resource_id}")
        return self._info(resource_id)

    async def _vacate(self, job: _Job, resource_id: ResourceID, lifetime_s: float, moves_tasks: bool) -> None:
        try:
            await job.gateway.vacate_task_manager(resource_id, lifetime_s, moves_tasks)
        except ActorError as error:  # the next call of `drain_task_manager` repeats it
            self.log.warning("%s was not asked to leave %s: %s", job.leader.address, resource_id, error)

    @rpc_tell
    def disconnect_task_manager(self, resource_id: ResourceID, reason: str) -> None:
        instance = self._instances.find(resource_id)
        if instance is not None:
            self._instances.unregister(instance.instance_id, reason)

    def _worker_heard(self, target: str, heartbeat: TaskExecutorHeartbeat) -> None:
        instance_id = InstanceID(target)
        self._instances.heard(instance_id, heartbeat, _now_ms())
        before = self._slots.counts(instance_id)
        instructions = self._slots.report_slot_status(instance_id, heartbeat.slots)
        if instructions or self._slots.counts(instance_id) != before:
            self._carry_out(instructions)

    def _worker_lost(self, target: str, reason: str) -> None:
        self._instances.unregister(InstanceID(target), reason)

    # --------------------------------------------------------------- JobMasters

    @rpc_sync
    def register_job_manager(self, job_id: JobID, job_master: JobMasterRegistration) -> None:
        known = self._jobs.get(job_id)
        if known is not None and known.leader.token < job_master.token:
            self._slots.unregister_job(job_id)  # the successor requests the slots that it needs
        gateway = self.gateway(job_master.address, JobMasterGateway, job_master.token, term=self.term)
        self._jobs[job_id] = _Job(job_master.leader, gateway)
        cpus = Decimal(job_master.task_cpus) if job_master.task_cpus else None
        asked = Asked(job_master.task_memory_mb, cpus, job_master.blob_bytes)
        self._carry_out(self._slots.register_job(job_id, job_master.owner, job_master.queue, asked))
        if self._job_heartbeats is not None:
            self._job_heartbeats.monitor(job_id, gateway.heartbeat_from_resource_manager)

    @rpc_tell
    def disconnect_job_manager(self, job_id: JobID, reason: str) -> None:
        self._drop_job(job_id, reason)

    def _job_master_lost(self, target: str, reason: str) -> None:
        self.log.warning("the JobMaster of job %s is gone: %s", target, reason)
        self._drop_job(JobID(target), reason)

    def _drop_job(self, job_id: JobID, _reason: str) -> None:
        if self._jobs.pop(job_id, None) is not None:
            self._slots.forget_job(job_id)
            self._look_soon()
            if self._job_heartbeats is not None:
                self._job_heartbeats.unmonitor(job_id)

    @rpc_sync
    def request_slot(self, request: SlotRequest) -> str:
        if request.job_id not in self._jobs:
            raise UnknownJobManagerError(f"the JobMaster of job {request.job_id} is not registered; register again")
        if self._shutting_down:
            # With a delay: a job that holds another slot repeats its request at once.
            refusal = FailRequest(request, self._shutting_down)
            self.schedule_run_async(SOON_S, lambda: self._carry_out([refusal]))
            return self._shutting_down
        self._carry_out(self._slots.register_slot_request(request, time.monotonic()))
        self._workers.decide()
        return self._slots.waiting_reason(request.allocation_id) or ""

    @rpc_tell
    def cancel_slot_request(self, allocation_id: AllocationID) -> None:
        self._slots.unregister_slot_request(allocation_id)
        self._look_soon()

    @rpc_sync
    def deregister_application(self, status: ApplicationStatus, diagnostics: str) -> None:
        self.log.info("the cluster is about to be shut down (%s): %s", status.value, diagnostics)
        self._shutting_down = diagnostics
        self._workers.refuse_all()
        for request in self._slots.pending_requests:
            self._slots.unregister_slot_request(request.allocation_id)
            self._carry_out([FailRequest(request, diagnostics)])

    # ------------------------------------------------------------- instructions

    def _carry_out(self, instructions: Sequence[SlotManagerInstruction]) -> None:
        """Carry out the instructions after a change of slots, and check soon whether workers have to change, too."""
        self._look_soon()
        for instruction in instructions:
            match instruction:
                case AllocateSlot():
                    self.spawn(self._allocate(instruction), f"allocating {instruction.slot_id}")
                case RenewDriver():
                    self.spawn(self._renew_driver(instruction), f"renewing the driver of {instruction.instance_id}")
                case SlotGone():
                    self.spawn(self._tell_gone(instruction), f"reporting the lost slot {instruction.allocation_id}")
                case FailRequest():
                    self.spawn(self._fail(instruction), f"refusing slot request {instruction.request.allocation_id}")

    async def _allocate(self, instruction: AllocateSlot) -> None:
        slot_id, request, slots = instruction.slot_id, instruction.request, self._slots
        worker, job = self._instances.get(instruction.instance_id), self._jobs.get(request.job_id)
        allocated = False
        try:
            if worker is not None and job is not None:
                owner = (slots.owner_of(request.job_id),) if worker.registration.serves_one_user else ()
                await worker.gateway.request_slot(slot_id, request.job_id, request.allocation_id, job.leader, *owner)
                allocated = True
        except (ActorError, SlotOccupiedError) as error:
            self.log.warning("%s was not allocated to job %s: %s", slot_id, request.job_id, error)
        finally:
            # Report every outcome: a slot that stays pending is lost for all jobs.
            outcome = slots.slot_allocated if allocated else slots.slot_allocation_failed
            if slots is self._slots:
                self._carry_out(outcome(slot_id, request.allocation_id))

    async def _renew_driver(self, instruction: RenewDriver) -> None:
        worker, slots = self._instances.get(instruction.instance_id), self._slots
        try:
            if worker is not None:
                self.log.info("TaskExecutor %s gets a new Spark driver: %s", worker.resource_id, instruction.reason)
                await worker.gateway.renew_driver(instruction.reason)
        except (ActorError, SlotOccupiedError) as error:
            self.log.warning("the driver of %s is not renewed: %s", instruction.instance_id, error)
            slots.renewal_failed(instruction.instance_id)

    async def _fail(self, instruction: FailRequest) -> None:
        """Refuse a request until the JobMaster answers: with a file of queues it waits for a slot without a limit."""
        slots, request = self._slots, instruction.request

        async def tell() -> None:
            job = self._jobs.get(request.job_id)
            if job is not None and slots is self._slots:
                await job.gateway.notify_allocation_failure(request.allocation_id, instruction.reason)

        what = f"refusing a slot to the JobMaster of job {request.job_id}"
        await retry(tell, ActorError, what=what, log=self.log)

    async def _tell_gone(self, instruction: SlotGone) -> None:
        """Report the loss of a slot until the JobMaster answers, its job ends, or another ResourceManager leads."""
        slots = self._slots

        async def tell() -> None:
            job = self._jobs.get(instruction.job_id)
            if job is not None and slots is self._slots:
                await job.gateway.notify_slot_gone(instruction.allocation_id)

        what = f"reporting a lost slot to the JobMaster of job {instruction.job_id}"
        await retry(tell, ActorError, what=what, log=self.log)

    # -------------------------------------------------------------------- views

    @rpc_sync
    def request_resource_overview(self) -> ResourceOverview:
        return self._overview()

    def _overview(self) -> ResourceOverview:
        counts = self._slots.counts()
        return ResourceOverview(
            len(self._slots.task_managers), counts.registered, counts.free, len(self._slots.pending_requests)
        )

    @rpc_sync
    def request_queues(self) -> QueuesOverview:
        return self._slots.queues(self._queues.problem, has_file=self._queues.is_set)

    @rpc_sync
    def request_task_managers(self) -> list[TaskManagerView]:
        return [
            TaskManagerView(
                instance.registration,
                instance.instance_id,
                self._slots.counts(instance.instance_id).free,
                instance.registered_ms,
                instance.last_heartbeat_ms,
                self._slots.user_of(instance.instance_id),
            )
            for instance in self._instances
        ]

    @rpc_sync
    def request_task_manager_info(self, resource_id: ResourceID) -> TaskManagerInfo:
        return self._info(resource_id)

    def _info(self, resource_id: ResourceID) -> TaskManagerInfo:
        instance = self._registered(resource_id)
        return TaskManagerInfo(
            instance.registration,
            instance.instance_id,
            self._slots.counts(instance.instance_id),
            self._slots.statuses(instance.instance_id),
            instance.registered_ms,
            instance.last_heartbeat_ms,
            instance.metrics,
            self._slots.user_of(instance.instance_id),
        )

    @rpc_sync
    def request_task_manager_metric_query_service_addresses(self) -> list[TaskManagerMetricAddress]:
        registered = [instance.registration for instance in self._instances]
        return [TaskManagerMetricAddress(one.resource_id, beside(one.address)) for one in registered]

    @rpc
    async def request_task_manager_file_upload(self, resource_id: ResourceID, name: str) -> ComponentLog:
        return await self._registered(resource_id).gateway.request_file_upload(name)

    def _registered(self, resource_id: ResourceID) -> Instance:
        instance = self._instances.find(resource_id)
        if instance is None:
            raise UnknownTaskExecutorError(
                f"no TaskExecutor {resource_id} is registered; `understudy status` shows those that are"
            )
        return instance


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


async def create(
    service: RpcService, name: str, *, runtime_dir: str, system: str, blob_host: str, blob_port: int
) -> ResourceManager:
    """Create the ResourceManager, in the process that hosts the actor."""
    context = ComponentContext.read(runtime_dir, system)
    context.offload_large_calls(service, BlobAddress(blob_host, blob_port))
    receptionist = receptionist_of(service, context.system)
    manager = ResourceManager(
        service,
        name,
        await context.ha_services(service),
        receptionist,
        context.configuration,
        BlobAddress(blob_host, blob_port),
        context.system,
        lambda owner: create_driver(owner, receptionist, context),
    )
    await serve_metrics(service, manager.metrics)
    return manager

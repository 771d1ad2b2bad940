"""The JobMaster: carries one job from its graph to its end (Flink's `JobMaster`).

All decisions are the pure `ExecutionGraph`'s and `SlotPool`'s; here their instructions are carried out and the answers
brought back to them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from actors.errors import ActorError, FencingError
from actors.process.log_context import set_process_context
from actors.receptionist import receptionist_of
from actors.rpc.gateway import FencingToken, rpc, rpc_sync, rpc_tell
from actors.rpc.service import RpcService
from blob.gateway import BlobAddress
from conf.options import HeartbeatOptions
from runtime.environment.context import ComponentContext
from runtime.gateways.errors import JobAlreadyTerminatedError
from runtime.gateways.job_master import JobMasterGateway
from runtime.gateways.messages import JobHeartbeat, LeaderAddress, TaskExecutorRegistration
from runtime.gateways.resource_manager import ResourceManagerGateway
from runtime.gateways.task_executor import TaskExecutorGateway
from runtime.ha.errors import HaError
from runtime.ha.model import RESOURCE_MANAGER, LeaderTerm
from runtime.ha.services import HighAvailabilityServices
from runtime.heartbeat.manager import HeartbeatManager
from runtime.ids import AllocationID, ExecutionAttemptID, JobID, ResourceID
from runtime.jobmaster.archived_execution_graph import ArchivedExecutionGraph, JobDetails
from runtime.jobmaster.checkpointing_job import CheckpointingJob
from runtime.jobmaster.descriptor import JobReport, TaskExecutionState, TaskProgress
from runtime.jobmaster.execution_state import ErrorInfo, JobStatus
from runtime.jobmaster.job_execution import current_instant
from runtime.jobmaster.metrics import job_metrics
from runtime.jobmaster.slot_pool import SlotOffer
from runtime.metrics.dump import MetricScope, ScopeCategory, ScopeDump
from runtime.metrics.process import add_process_metrics
from runtime.metrics.query_service import serve_metrics
from runtime.metrics.registry import MetricRegistry

CHECK_INTERVAL_S = 0.5

JobHeartbeatAnswer = tuple[frozenset[ExecutionAttemptID], JobHeartbeat]
"""A TaskExecutor's answer to a heartbeat, and the attempts that it was known to hold when it was asked."""


class JobMaster(CheckpointingJob, JobMasterGateway):
    """One job. Its arguments are those of `JobExecution`."""

    # --------------------------------------------------------------- leadership

    async def serve(self) -> None:
        """Begin to run the job, or go on with it."""
        graph, term = self._graph, self._term
        if graph is None or self._job is None or term is None:
            return
        self.log.info("job %s (%s) %s", self._job_id, self._job.name, "goes on" if self._resumes else "starts")
        self._heartbeats = HeartbeatManager(
            self,
            interval_s=self._configuration.get(HeartbeatOptions.INTERVAL),
            timeout_s=self._configuration.get(HeartbeatOptions.TIMEOUT),
            failure_threshold=self._configuration.get(HeartbeatOptions.RPC_FAILURE_THRESHOLD),
            on_timeout=self._task_manager_lost,
            on_payload=self._task_manager_heard,
        )
        self._heartbeats.start()
        self._resource_manager.register()
        for resource_id, address in self._known_addresses.items():
            # It registers by itself, unless it is gone; that is seen here.
            self._task_managers.expect(resource_id, address)
            gateway = self.gateway(address, TaskExecutorGateway, term=term)
            self._heartbeats.monitor(resource_id, self._heartbeat_of(resource_id, gateway))
        self._do(graph.resume(current_instant()) if self._resumes else graph.start(current_instant()))
        if self._cannot_begin:
            self._checkpoints_fail(self._cannot_begin)
        self._check(term)

    def _heartbeat_of(
        self, resource_id: ResourceID, gateway: TaskExecutorGateway
    ) -> Callable[[], Awaitable[JobHeartbeatAnswer]]:
        async def ask() -> JobHeartbeatAnswer:
            if self.fencing_token is None or self._graph is None:
                raise FencingError(f"{self.path} does not lead")
            own = LeaderAddress(str(self.address), self.fencing_token)
            asked_for = self._graph.attempts_seen_at(resource_id)
            return asked_for, await gateway.heartbeat_from_job_manager(self._job_id, own)

        return ask

    async def step_back(self) -> None:
        """Leave the job to the next leader."""
        if self._journal is not None:
            self._journal.close()
        if self._graph is not None:
            self._graph.suspend(current_instant())
            self._graph = None
        if self._checkpoints is not None:
            self._checkpoints.close()
            self._checkpoints = None
        if self._heartbeats is not None:
            self._heartbeats.stop()
            self._heartbeats = None
        self._task_managers.clear()
        await self._resource_manager.stop()
        await self._dispatcher.stop()

    async def on_stop(self) -> None:
        await super().on_stop()
        await self._task_managers.close()
        await self._ha.close()

    def _check(self, term: LeaderTerm) -> None:
        if self._term == term and self._graph is not None and self.may_act(term):
            self._do(self._pool.expired(time.monotonic()))
            self._advance_checkpoints()
            self.schedule_run_async(CHECK_INTERVAL_S, lambda: self._check(term))

    # ------------------------------------------------------------ TaskExecutors

    @rpc_sync
    def register_task_manager(self, registration: TaskExecutorRegistration, report: JobReport) -> None:
        graph = self._require_graph()
        resource_id = registration.resource_id
        if self._task_managers.is_replaced_by(registration):
            self._task_manager_lost(resource_id, "its process was replaced")
        gateway = self._task_managers.add(registration)
        if self._heartbeats is not None:
            self._heartbeats.monitor(resource_id, self._heartbeat_of(resource_id, gateway))
        was_reconciling = graph.is_reconciling
        reported = graph.executions_reported(resource_id, report.executions, current_instant())
        self._do([*reported, *self._pool.reconcile(resource_id, report.slots)])
        if was_reconciling and not graph.is_reconciling:
            self.log.info("job %s is reconciled with its TaskExecutors: %s", self._job_id, graph.status.value)

    @rpc_sync
    def offer_slots(self, resource_id: ResourceID, offers: list[SlotOffer]) -> list[AllocationID]:
        self._require_graph()
        address = self._task_managers.address_of(resource_id)
        accepted = []
        for offer in offers:
            taken, instructions = self._pool.offer_slot(offer, address, time.monotonic())
            if taken:
                accepted.append(offer.allocation_id)
            self._do(instructions)
        return accepted

    @rpc
    async def update_task_execution_state(self, state: TaskExecutionState) -> None:
        self._do(self._require_graph().task_state_reported(state, current_instant()))
        self._advance_checkpoints()
        if state.state.is_terminal:
            await self._written()

    @rpc_tell
    def update_task_progress(self, progress: TaskProgress) -> None:
        self._require_graph().progress_reported(progress)

    @rpc_tell
    def disconnect_task_manager(self, resource_id: ResourceID, cause: ErrorInfo) -> None:
        self._task_manager_lost(resource_id, cause.message, cause)

    def _task_manager_heard(self, target: str, answer: JobHeartbeatAnswer) -> None:
        asked_for, heartbeat = answer
        if self._graph is not None:
            for progress in heartbeat.progress:
                self._graph.progress_reported(progress)
            self._do(
                self._graph.deployments_reported(ResourceID(target), heartbeat.executions, asked_for, current_instant())
            )

    # ------------------------------------------------------------ ResourceManager

    @rpc_sync
    def notify_allocation_failure(self, allocation_id: AllocationID, reason: str) -> None:
        self._do(self._pool.fail_allocation(allocation_id, reason, time.monotonic()))

    @rpc_sync
    def heartbeat_from_resource_manager(self) -> None:
        self._resource_manager.heartbeat()

    # -------------------------------------------------------------------- clients

    @rpc
    async def cancel(self) -> None:
        graph = self._require_graph()
        if graph.status in (JobStatus.FINISHED, JobStatus.FAILED):
            await self._written()  # else a successor, which knows nothing of the end, would run a job that is "over"
            raise JobAlreadyTerminatedError(f"job {self._job_id} is {graph.status.value} already: nothing to cancel")
        self.log.info("job %s is to be cancelled", self._job_id)
        self._do(graph.cancel(current_instant()))
        await self._written()

    @rpc_sync
    def request_job(self) -> ArchivedExecutionGraph:
        return self._archive(self._require_graph())

    def current_metrics(self) -> list[ScopeDump]:
        """The metrics of the job as it stands; none while this JobMaster does not lead."""
        return [] if self._graph is None else job_metrics(self._archive(self._graph), current_instant().epoch_ms)

    @rpc_sync
    def request_job_details(self) -> JobDetails:
        return self._require_graph().archive().details()


class _Prepared(NamedTuple):
    context: ComponentContext
    ha: HighAvailabilityServices


_prepared: list[_Prepared] = []
"""What this process has made ready for its JobMaster, if it was started ahead of it."""


async def prepare(service: RpcService, *, runtime_dir: str, system: str, **_others: object) -> None:
    """Have ready what any JobMaster needs: the configuration, and connections to Redis and to the ResourceManager.

    To be called in a process that is started ahead. Who does not answer now may do so when there is a job.
    """
    context = ComponentContext.read(runtime_dir, system)
    ha = await context.ha_services(service)
    _prepared.append(_Prepared(context, ha))
    with contextlib.suppress(HaError, ActorError):
        await ha.warm_up()
        leader = await ha.current_leader(RESOURCE_MANAGER)
        if leader is not None:
            token = FencingToken(leader.epoch, leader.session)
            await service.gateway(leader.address, ResourceManagerGateway, token).request_resource_overview()


async def create(
    service: RpcService, name: str, *, runtime_dir: str, system: str, job_id: str, blob_host: str, blob_port: int
) -> JobMaster:
    """Factory for the actor's host."""
    set_process_context(job=job_id)
    if _prepared:
        context, ha = _prepared.pop()
    else:
        context = ComponentContext.read(runtime_dir, system)
        ha = await context.ha_services(service)
    context.offload_large_calls(service, BlobAddress(blob_host, blob_port))
    master = JobMaster(
        service,
        name,
        JobID(job_id),
        ha,
        receptionist_of(service, context.system),
        context.configuration,
        context.results,
        BlobAddress(blob_host, blob_port),
    )
    registry = MetricRegistry()
    registry.add_source(master.current_metrics)
    add_process_metrics(registry.group(MetricScope(ScopeCategory.JOB, component="jobmaster", job_id=job_id)), service)
    await serve_metrics(service, registry)
    return master

"""The JobMaster: runs one job from its graph to its end (Flink's `JobMaster`).

The pure `ExecutionGraph`, `SlotPool` and `CheckpointCoordinator` decide. The endpoint reports events to them, and its
parts carry out their instructions. `TaskManagers` deploys and cancels, and `ResourceManagerConnection` requests slots.
`JobCheckpoints` takes checkpoints, and `ExecutionJournal` writes the state that the next JobMaster needs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import shutil
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from actors.errors import ActorError, FencingError, RecipientTerminated, WireError
from actors.process.logs import set_process_context
from actors.receptionist import ReceptionistGateway, receptionist_of
from actors.rpc.gateway import FencingToken, rpc, rpc_sync, rpc_tell
from actors.rpc.service import RpcService
from blob.errors import BlobError
from blob.gateway import BlobAddress
from conf.configuration import Configuration
from conf.errors import ConfigurationError
from conf.options import HeartbeatOptions, JobOptions, QueueOptions
from runtime.alarm import Alarm
from runtime.checkpoint.errors import CheckpointError
from runtime.environment.context import ComponentContext
from runtime.feature_level import Format, Release, can_read, lowest_level, readable_versions
from runtime.ha.errors import (
    FeatureLevelUnsupportedError,
    HaError,
    JobAlreadyDoneError,
    StateCorruptedError,
    StateHandleNotFoundError,
)
from runtime.ha.feature_level import checked, own_release
from runtime.ha.running_jobs import JobSchedulingStatus
from runtime.ha.services import HighAvailabilityServices
from runtime.heartbeat import HeartbeatManager
from runtime.ids import AllocationID, ExecutionAttemptID, JobID, ResourceID, TriggerID
from runtime.jobgraph.codec import decode, decode_job_graph, encode
from runtime.jobgraph.job_graph import JobGraph
from runtime.jobmaster.checkpointing import JobCheckpoints
from runtime.jobmaster.deployment import TaskManagers
from runtime.jobmaster.execution import ExecutionGraphSnapshot
from runtime.jobmaster.execution_graph import (
    ACTIVE,
    CancelSlotRequest,
    CancelTask,
    DeployTask,
    ExecutionGraph,
    Instruction,
    JobReachedTerminal,
    ReleasePartitions,
    ReleaseSlot,
    RequestSlot,
    ScheduleRestart,
)
from runtime.jobmaster.journal import ExecutionJournal
from runtime.jobmaster.metrics import job_metrics
from runtime.jobmaster.rescale_history import RescaleHistory
from runtime.jobmaster.resource_manager_connection import ResourceManagerConnection
from runtime.jobmaster.restart_strategy import restart_strategies
from runtime.jobmaster.slot_pool import (
    AskForSlot,
    ReturnSlot,
    SlotLost,
    SlotPool,
    SlotPoolInstruction,
    SlotReady,
    SlotRequestFailed,
    WithdrawSlotRequest,
)
from runtime.jobmaster.traces import JobTraces, senders_of, sends_traces
from runtime.leaders import LeaderFollower
from runtime.leadership import LeaderEndpoint
from runtime.metrics.metric import MetricScope, ScopeCategory, ScopeDump, Value
from runtime.metrics.registry import MetricRegistry, add_process_metrics, serve_metrics
from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph, JobDetails
from runtime.protocol.checkpoint_statistics import CheckpointStatsSnapshot
from runtime.protocol.checkpoints import (
    NO_TOTALS,
    AcknowledgeCheckpoint,
    CheckpointOutcome,
    CheckpointTrigger,
    DeclineCheckpoint,
    JobManagerTaskRestore,
    OperationState,
    OperationStatus,
    SnapshotType,
)
from runtime.protocol.descriptor import JobReport, SlotOffer, TaskExecutionState, TaskProgress
from runtime.protocol.dispatcher import DispatcherGateway
from runtime.protocol.errors import (
    JobAlreadyTerminatedError,
    JobNotReachableError,
    SlotNotAllocatedError,
    UnknownTaskExecutorError,
)
from runtime.protocol.execution_state import ErrorInfo, FailureKind, Instant, JobStatus
from runtime.protocol.job_master import JobMasterGateway
from runtime.protocol.leader import DISPATCHER, RESOURCE_MANAGER, LeaderTerm, job_master
from runtime.protocol.messages import JobHeartbeat, LeaderAddress, TaskExecutorRegistration
from runtime.protocol.rescales import Rescale
from runtime.protocol.resource_manager import ResourceManagerGateway
from runtime.protocol.streaming_query import QueryHistory
from runtime.protocol.task_executor import TaskExecutorGateway
from runtime.retry import retry
from runtime.trace_context import JobTrace

LOST_LOGS_TIMEOUT_S = 5.0
SUCCESSOR_INTERVAL_S = 1.0
"""Seconds between two questions to the ResourceManager whether a TaskExecutor has another successor than expected."""
SLOT_GONE_DELAY_S = 0.5
POOL_GRACE_S = 5.0  # the ResourceManager's rejection comes first, and its message says more

JobHeartbeatAnswer = tuple[frozenset[ExecutionAttemptID], JobHeartbeat]
"""A TaskExecutor's answer to a heartbeat, and the attempts that it had reported before the heartbeat was sent."""


class JobMaster(LeaderEndpoint, JobMasterGateway):
    """The endpoint of one job: reads it from the store, carries out the graph's instructions, and reports its end.

    Args:
        service: the RPC service of the process.
        name: the actor's name.
        job_id: the job.
        ha: high-availability services; closed with the endpoint.
        receptionist: the system's directory.
        configuration: the cluster's.
        jobs_dir: directory of the jobs' materialised results.
        blob: address of the BlobServer.
    """

    def __init__(
        self,
        service: RpcService,
        name: str,
        job_id: JobID,
        ha: HighAvailabilityServices,
        receptionist: ReceptionistGateway,
        configuration: Configuration,
        jobs_dir: Path,
        blob: BlobAddress,
    ) -> None:
        super().__init__(service, name, ha.leader_election(job_master(job_id)), receptionist)
        self._job_id = job_id
        self._ha = ha
        self._configuration = configuration
        self._results_dir = jobs_dir / job_id / "results"
        self._job: JobGraph | None = None
        self._graph: ExecutionGraph | None = None
        self._pool = self._new_pool()
        self._work: deque[Instruction | SlotPoolInstruction] = deque()
        self._working = False
        self._dispatcher = LeaderFollower(self, ha.leader_retrieval(DISPATCHER), DispatcherGateway)
        silence_s = configuration.get(HeartbeatOptions.TIMEOUT)
        self._resource_manager = ResourceManagerConnection(
            self,
            job_id,
            ha,
            silence_s,
            on_connected=lambda: self._do(self._pool.connect_resource_manager()),
            on_lost=lambda: self._pool.disconnect_resource_manager(),
            on_waiting=self._slot_request_waits,
        )
        self._task_managers = TaskManagers(self, job_id, configuration, blob, self._task_manager_unreachable)
        self._heartbeats: HeartbeatManager | None = None
        self._journal: ExecutionJournal | None = None
        self._checkpoints: JobCheckpoints | None = None
        self._cannot_begin = ""
        self._rescales = RescaleHistory()
        self._level = lowest_level()
        self._resumes = False
        self._known_addresses: dict[ResourceID, str] = {}
        self._alarm = Alarm(self, self._wake)
        self._traces: JobTraces | None = None

    # --------------------------------------------------------------- leadership

    async def lead(self, term: LeaderTerm) -> None:
        """Read the job from the store and build its execution graph."""
        await self._dispatcher.start()  # finds its leader while the rest is read
        await self._resource_manager.start()
        store = self._ha.execution_store()
        level, is_new, encoded = await asyncio.gather(
            self._ha.feature_level_store().current(),
            self._ha.running_jobs_registry().set_running(self._job_id, term),
            self._ha.job_graph_store().get(self._job_id),
            return_exceptions=True,
        )
        if isinstance(level, BaseException):
            raise level
        self._level = level
        if isinstance(is_new, JobAlreadyDoneError):  # even if its graph could not be read, which may be removed
            self.log.warning("job %s is over already: it is not run again", self._job_id)
            await self._election.stop()  # there is nothing to lead, and the Dispatcher knows nothing of this JobMaster
            return
        if isinstance(is_new, BaseException):
            raise is_new
        if isinstance(encoded, StateHandleNotFoundError):
            # This process stood still while the job ended and was forgotten: nothing would ever end the new entry.
            await self._ha.running_jobs_registry().withdraw(self._job_id, term, JobSchedulingStatus.RUNNING)
        if isinstance(encoded, BaseException):
            raise encoded
        saved = None
        if not is_new:
            _, saved = await asyncio.gather(store.sweep(term), self._saved_execution())
        self._job = job = decode_job_graph(encoded)
        configuration = self._configuration_of(job)
        strategy, streaming_strategy = restart_strategies(job.restart_strategy, configuration)
        self._pool = self._new_pool()
        self._resumes = saved is not None
        self._journal = ExecutionJournal(self, store, self._job_id, term, self._encoded_execution)
        trace = JobTrace.of(self._job_id, job.traceparent, sends_traces(self._configuration))
        if trace.trace_id:
            set_process_context(trace_id=trace.trace_id)
        if trace.records and self._traces is None:  # what it has sent as an earlier leader, it sends no more
            self._traces = JobTraces(self, trace, job, senders_of(self._configuration), self._traced)
        self._graph = ExecutionGraph(
            job,
            strategy,
            current_instant(),
            results_dir=str(self._results_dir),
            streaming_strategy=streaming_strategy,
            trace=trace,
        )
        self._checkpoints = JobCheckpoints(
            self,
            job,
            term,
            self._ha,
            configuration,
            self._task_managers,
            current_instant,
            self._checkpoints_fail,
            self._cancel_with_savepoint,
            self._written,
            self._advance_checkpoints,
            lambda: self._level,
        )
        await self._take_up(saved, is_new)

    async def _take_up(self, saved: ExecutionGraphSnapshot | None, is_new: bool) -> None:
        """Continue from the state that the former JobMaster has left, if there is one."""
        graph, checkpoints = self._require_graph(), self._require_checkpoints()
        self._rescales = RescaleHistory(() if saved is None else saved.rescales)
        rollback, totals = (None, NO_TOTALS) if saved is None else (saved.rollback, saved.checkpoints)
        self._cannot_begin = await checkpoints.recover(rollback, totals, is_new=is_new) or self._cannot_begin
        self._known_addresses.clear()
        if saved is not None:
            now = current_instant()
            for resource_id, until_ms in saved.awaited_successors.items():
                if until_ms > now.epoch_ms:  # else its tasks have ended by now, unless it has a successor
                    self._task_managers.await_successor(resource_id, until_ms)
            for request_id, slot in graph.restore(saved, now):
                self._pool.adopt_slot(request_id, slot, now.monotonic_s)
                self._known_addresses[slot.slot_id.resource_id] = slot.address

    def _new_pool(self) -> SlotPool:
        wait_s = self._configuration.get(JobOptions.SLOT_REQUEST_TIMEOUT) + POOL_GRACE_S
        if self._configuration.get(QueueOptions.FILE) is not None:
            wait_s = math.inf  # its turn may come in hours; the ResourceManager refuses a request without any slot
        return SlotPool(wait_s, self._configuration.get(JobOptions.SLOT_IDLE_TIMEOUT))

    def _configuration_of(self, job: JobGraph) -> Configuration:
        """Return the cluster's configuration, with the job's own settings over it."""
        self._cannot_begin = ""
        try:
            configuration = self._configuration.overlaid(job.configuration, "the job")
        except ConfigurationError as error:  # each setting is valid by itself, but they contradict each other
            self._cannot_begin = str(error)
            return self._configuration
        configuration.report_warnings(lambda text: self.log.warning("%s", text))
        return configuration

    async def _saved_execution(self) -> ExecutionGraphSnapshot | None:
        """Return the state that the former JobMaster has written; None if there is none, or it cannot be read."""
        try:
            data = await self._ha.execution_store().find(self._job_id)
            saved = None if data is None else decode(data, ExecutionGraphSnapshot)
            if saved is not None and not can_read(Format.EXECUTION, saved.format_version):
                readable = readable_versions(Format.EXECUTION)
                raise WireError(f"it has format {saved.format_version}, this version reads {readable}")
        except (StateCorruptedError, WireError) as error:
            self.log.error("job %s restarts from the beginning, its state cannot be read: %s", self._job_id, error)
            return None
        return saved

    def _encoded_execution(self) -> bytes:
        saved = replace(
            self._require_graph().snapshot(current_instant()),
            rescales=self._rescales.all,
            awaited_successors=self._task_managers.awaited_successors,
        )
        checkpoints = self._checkpoints
        if checkpoints is not None:
            saved = replace(saved, rollback=checkpoints.rollback, checkpoints=checkpoints.totals)
        return encode(self._level.marked(saved, Format.EXECUTION))

    async def serve(self) -> None:
        """Start the job, or resume it."""
        graph, term = self._graph, self._term
        if graph is None or self._job is None or term is None:
            return
        self.log.info("job %s (%s) %s", self._job_id, self._job.name, "is resumed" if self._resumes else "starts")
        self._heartbeats = HeartbeatManager(
            self, self._configuration, on_timeout=self._task_manager_silent, on_payload=self._task_manager_heard
        )
        self._heartbeats.start()
        self._resource_manager.register(self._job)
        for resource_id, address in self._known_addresses.items():
            # It registers by itself, unless it has ended, which the heartbeats show.
            self._task_managers.expect(resource_id, address)
            if (until_ms := self._task_managers.awaited_successors.get(resource_id)) is not None:
                self._look_for_successor(resource_id, until_ms)
                continue
            gateway = self.gateway(address, TaskExecutorGateway, term=term)
            self._heartbeats.monitor(resource_id, self._heartbeat_of(resource_id, gateway))
        self._do(graph.resume(current_instant()) if self._resumes else graph.start(current_instant()))
        if self._cannot_begin:
            self._checkpoints_fail(self._cannot_begin)
        elif self._checkpoints is not None:
            self._checkpoints.begin()

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

    async def on_revoked(self) -> None:
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
        self._alarm.clear()
        self._task_managers.clear()
        await self._resource_manager.stop()
        await self._dispatcher.stop()

    async def on_stop(self) -> None:
        await super().on_stop()
        await self._task_managers.close()
        if self._traces is not None:
            await self._traces.close()
        await self._ha.close()

    def _arm(self) -> None:
        """Set the alarm for the next moment at which the passing of time changes something, if any."""
        if self._term is not None and self._graph is not None:
            self._alarm.set(self._pool.next_deadline())
            if self._checkpoints is not None:
                self._alarm.set(self._checkpoints.next_deadline())
            if self._traces is not None:
                self._traces.changed()

    def _wake(self) -> None:
        if self._graph is not None and self._term is not None and self.may_act(self._term):
            self._do(self._pool.expired(time.monotonic()))

    # ------------------------------------------------------------- instructions

    def _do(self, instructions: Sequence[Instruction | SlotPoolInstruction]) -> None:
        """Carry out instructions, and those that they cause, in order and without recursion."""
        self._work.extend(instructions)
        if self._working:
            return
        self._working = True
        try:
            while self._work:
                self._work.extend(self._carry_out(self._work.popleft()))
        finally:
            self._working = False
        self._advance_checkpoints()

    def _carry_out(
        self, instruction: Instruction | SlotPoolInstruction
    ) -> list[Instruction] | list[SlotPoolInstruction]:
        graph, now = self._require_graph(), current_instant()
        match instruction:
            case RequestSlot():
                return self._pool.request_slot(
                    instruction.request_id, instruction.task_name, now.monotonic_s, instruction.preferred_locations
                )
            case CancelSlotRequest():
                return self._pool.cancel_request(instruction.request_id, now.monotonic_s)
            case ReleaseSlot():
                return self._pool.release_slot(instruction.request_id, now.monotonic_s)
            case DeployTask():
                self.spawn(self._deploy(instruction), f"deploying {instruction.descriptor.attempt.task_name}")
            case CancelTask():
                self._task_managers.cancel(instruction.attempt_id, instruction.resource_id)
            case ScheduleRestart():
                self.log.warning(
                    "job %s: %s restarts in %g s", self._job_id, ", ".join(instruction.task_names), instruction.delay_s
                )
                restart_id = instruction.restart_id
                self.schedule_run_async(
                    instruction.delay_s, lambda: self._do(graph.restart_due(restart_id, current_instant()))
                )
            case ReleasePartitions():
                self.spawn(self._release(instruction), "releasing materialised results")
            case JobReachedTerminal():
                self.spawn(self._finish(instruction), "reporting the end of the job")
            case AskForSlot():
                if self._job is not None:
                    self._resource_manager.ask_for_slot(instruction, self._job)
            case WithdrawSlotRequest():
                self._resource_manager.withdraw(instruction.allocation_id)
            case SlotReady():
                return graph.slot_assigned(instruction.request_id, instruction.slot, now)
            case SlotRequestFailed():
                return graph.slot_unavailable(instruction.request_id, instruction.reason, now)
            case SlotLost():
                return graph.slot_lost(instruction.allocation_id, instruction.reason, now)
            case ReturnSlot():
                slot = instruction.slot
                self._task_managers.free_slot(slot, lambda: self._pool.holds(slot.allocation_id))
        return []

    async def _deploy(self, instruction: DeployTask) -> None:
        descriptor, graph = instruction.descriptor, self._graph
        journal, checkpoints = self._journal, self._checkpoints
        if journal is None or checkpoints is None or graph is None:
            return

        def restore() -> Awaitable[JobManagerTaskRestore | None]:
            return checkpoints.restore(descriptor.attempt.task_key)

        try:
            await self._task_managers.deploy(
                instruction.slot.slot_id.resource_id,
                descriptor,
                restore,
                journal.written,
                lambda: graph.has_ended(descriptor.attempt.attempt_id),
            )
        except SlotNotAllocatedError as error:
            allocation_id = instruction.slot.allocation_id
            self._do(self._pool.fail_allocation(allocation_id, str(error), time.monotonic()))
        except JobNotReachableError as error:
            self.log.info("%s is left to the next JobMaster: %s", descriptor.attempt.task_name, error)
        except FencingError as error:
            self.log.info("%s is left to a later JobMaster: %s", descriptor.attempt.task_name, error)
        except RecipientTerminated as error:
            # Its process ends. The heartbeats show that later; until then its slots must not be tried again.
            self._task_manager_lost(instruction.slot.slot_id.resource_id, str(error))
        except Exception as error:  # any error of the deployment is the failure of this attempt
            kind = FailureKind.TASK_EXECUTOR_LOST if isinstance(error, ActorError) else FailureKind.RUNTIME
            info = ErrorInfo(
                kind, "TaskDeploymentException", f"{descriptor.attempt.task_name} was not deployed: {error}"
            )
            if self._graph is not None:
                self._do(self._graph.task_failed(descriptor.attempt.attempt_id, info, current_instant()))

    async def _release(self, instruction: ReleasePartitions) -> None:
        graph, journal = self._graph, self._journal
        if graph is None or journal is None:
            return
        try:
            await journal.written()  # else the next JobMaster might think that a task still reads them
        except JobNotReachableError as error:
            self.log.info("results of job %s are left to the next JobMaster: %s", self._job_id, error)
            return
        if self._graph is graph and not graph.status.is_terminal:  # the end of the job removes all of them at once
            for path in instruction.paths:
                await self.run_blocking(_remove_tree, Path(path))
            self.log.info("released %s", ", ".join(instruction.paths))

    async def _finish(self, instruction: JobReachedTerminal) -> None:
        graph, journal = self._graph, self._journal
        if graph is None or journal is None or not instruction.status.is_globally_terminal:
            return
        try:
            # Before anything is removed: a next JobMaster that did not know of the end would look for removed files.
            await journal.written()
        except JobNotReachableError as error:
            self.log.info("the end of job %s is left to the next JobMaster: %s", self._job_id, error)
            return
        if self._checkpoints is not None:
            failure = "" if instruction.error is None else instruction.error.cause
            await self._checkpoints.finish(instruction.status, failure)
        await self._keep_lost_logs(graph)
        if self._graph is not graph:
            return  # another JobMaster reports the end, or this one does so later
        journal.complete()  # the Dispatcher removes the written state
        self.log.info("job %s is %s", self._job_id, instruction.status.value)
        self._do(self._pool.close())
        self._task_managers.job_over(f"job {self._job_id} is {instruction.status.value}")
        self._resource_manager.job_over(instruction.status.value)
        try:
            await self.run_blocking(_remove_tree, self._results_dir.parent)
        except OSError as error:
            self.log.warning("intermediate results of job %s are left behind, remove them: %s", self._job_id, error)
        self._rescales.job_ended(current_instant().epoch_ms)
        archived = self._archive(graph)
        if self._traces is not None:
            self._traces.collect()

        async def report() -> None:
            dispatcher = await self._dispatcher.get()
            if self._graph is graph:
                await dispatcher.job_reached_terminal_state(archived)

        # After any error: a job whose end is not reported never ends.
        what = f"telling the Dispatcher of the end of job {self._job_id}"
        await retry(report, Exception, what=what, log=self.log, level=logging.WARNING)

    def _archive(self, graph: ExecutionGraph) -> ArchivedExecutionGraph:
        archived = replace(graph.archive(), rescales=self._rescales.all)
        return archived if self._checkpoints is None else replace(archived, checkpoints=self._checkpoints.statistics())

    def _traced(self) -> ArchivedExecutionGraph | None:
        return None if self._graph is None else self._archive(self._graph)

    async def _keep_lost_logs(self, graph: ExecutionGraph) -> None:
        """Keep the logs of attempts that were lost with their TaskExecutor, if it has registered again."""

        async def keep(attempt_id: ExecutionAttemptID, resource_id: ResourceID) -> None:
            try:
                address = self._task_managers.address_of(resource_id)
                async with asyncio.timeout(LOST_LOGS_TIMEOUT_S):
                    gateway = self.gateway(address, TaskExecutorGateway)
                    graph.logs_kept(attempt_id, tuple(await gateway.keep_task_logs(self._job_id, attempt_id)))
            except UnknownTaskExecutorError:
                self.log.info("the logs of attempt %s stay where it ran: %s is not registered", attempt_id, resource_id)
            except (ActorError, BlobError, TimeoutError) as error:
                self.log.warning("the logs of attempt %s are left at %s: %s", attempt_id, resource_id, error)

        await asyncio.gather(*(keep(*attempt) for attempt in graph.attempts_without_logs()))

    # ------------------------------------------------------------ TaskExecutors

    @rpc
    async def register_task_manager(self, registration: TaskExecutorRegistration, report: JobReport) -> None:
        self._register(registration, report)
        if registration.predecessors:
            await self._written()  # otherwise the next JobMaster would look for the predecessor

    def _register(self, registration: TaskExecutorRegistration, report: JobReport) -> None:
        graph = self._require_graph()
        resource_id = registration.resource_id
        if self._task_managers.is_replaced_by(registration):
            self._task_manager_lost(resource_id, "its process was replaced")
        gateway = self._task_managers.add(registration)
        if registration.predecessors:
            self._pool.address_changed(resource_id, registration.address)
            graph.address_changed(resource_id, registration.address)
        if self._heartbeats is not None:
            self._heartbeats.monitor(resource_id, self._heartbeat_of(resource_id, gateway))
        was_reconciling = graph.is_reconciling
        reported = graph.executions_reported(
            resource_id, report.executions, current_instant(), has_adopted=bool(registration.predecessors)
        )
        self._do([*reported, *self._pool.reconcile(resource_id, report.slots)])
        if was_reconciling and not graph.is_reconciling:
            self.log.info("job %s is reconciled with its TaskExecutors: %s", self._job_id, graph.status.value)

    @rpc
    async def expect_successor(self, resource_id: ResourceID, lifetime_s: float) -> None:
        self._require_graph()
        self._task_managers.address_of(resource_id)
        until_ms = current_instant().epoch_ms + round(lifetime_s * 1000)
        self.log.info("TaskExecutor %s of job %s is about to have a successor", resource_id, self._job_id)
        if self._heartbeats is not None:
            self._heartbeats.unmonitor(resource_id)
        self._task_managers.await_successor(resource_id, until_ms)
        self._look_for_successor(resource_id, until_ms)
        await self._written()

    def _look_for_successor(self, resource_id: ResourceID, until_ms: int) -> None:
        self.spawn(self._await_successor(resource_id, until_ms), f"awaiting the successor of {resource_id}")

    async def _await_successor(self, resource_id: ResourceID, until_ms: int) -> None:
        """Count a TaskExecutor as lost at a time, or once the ResourceManager has another one that adopted nothing.

        By then its tasks have ended: see `Predecessor`. A TaskExecutor without tasks registers with no JobMaster.
        """

        def is_awaited() -> bool:
            return self._task_managers.awaited_successors.get(resource_id) == until_ms

        while is_awaited():
            left_s = (until_ms - current_instant().epoch_ms) / 1000
            found = await self._resource_manager.registration_of(resource_id)
            if not is_awaited():
                return
            if left_s <= 0:
                self._task_manager_lost(resource_id, "no successor of it has registered in time")
            elif found is not None and self._task_managers.is_replaced_by(found):
                self._task_manager_lost(resource_id, "its process was replaced, and has adopted nothing")
            else:
                await asyncio.sleep(min(left_s, SUCCESSOR_INTERVAL_S))

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
        if state.state.is_terminal:
            await self._written()

    @rpc_tell
    def update_task_progress(self, progress: TaskProgress) -> None:
        self._require_graph().progress_reported(progress, current_instant())
        self._advance_checkpoints()

    @rpc_tell
    def disconnect_task_manager(self, resource_id: ResourceID, cause: ErrorInfo) -> None:
        self._task_manager_lost(resource_id, cause.message, cause)

    def _task_manager_heard(self, target: str, answer: JobHeartbeatAnswer) -> None:
        asked_for, heartbeat = answer
        if self._graph is not None:
            for progress in heartbeat.progress:
                self._graph.progress_reported(progress, current_instant())
            self._do(
                self._graph.deployments_reported(ResourceID(target), heartbeat.executions, asked_for, current_instant())
            )

    def _task_manager_unreachable(self, resource_id: ResourceID) -> None:
        """Find out soon whether a TaskExecutor has ended, or only the connection to it."""
        if self._heartbeats is not None:
            self._heartbeats.ask_now(resource_id)

    def _task_manager_silent(self, target: str, reason: str) -> None:
        """Count a TaskExecutor as lost by its heartbeats; one that can be reached after all ends its tasks."""
        self._task_managers.disconnect(ResourceID(target), reason)
        self._task_manager_lost(target, reason)

    def _task_manager_lost(self, resource_id: str, reason: str, cause: ErrorInfo | None = None) -> None:
        lost = ResourceID(resource_id)
        if not self._task_managers.remove(lost) or self._graph is None:
            return
        self.log.warning("job %s lost TaskExecutor %s: %s", self._job_id, lost, reason)
        if self._heartbeats is not None:
            self._heartbeats.unmonitor(lost)
        self._pool.release_task_executor(lost, time.monotonic())
        self._do(self._graph.task_executor_lost(lost, reason, current_instant(), cause))

    # ------------------------------------------------------------ ResourceManager

    @rpc_sync
    def notify_allocation_failure(self, allocation_id: AllocationID, reason: str) -> None:
        self._do(self._pool.fail_allocation(allocation_id, reason, time.monotonic()))

    @rpc_sync
    def notify_slot_gone(self, allocation_id: AllocationID) -> None:
        # A little later: its offer may still arrive; and a slot that is refused each time must not keep both busy.
        self.schedule_run_async(SLOT_GONE_DELAY_S, lambda: self._ask_again(allocation_id))

    def _ask_again(self, allocation_id: AllocationID) -> None:
        if self._graph is not None:
            self._do(self._pool.ask_again(allocation_id))

    @rpc_sync
    def vacate_task_manager(self, resource_id: ResourceID, lifetime_s: float, moves_tasks: bool) -> None:
        graph, now = self._require_graph(), current_instant()
        self._do(self._pool.vacate(resource_id, now.monotonic_s + lifetime_s, now.monotonic_s))
        if moves_tasks and (moved := graph.move_tasks(resource_id, now)):
            self.log.info("job %s leaves TaskExecutor %s, which is about to be exchanged", self._job_id, resource_id)
            self._do(moved)

    @rpc_sync
    def notify_feature_level(self, level: int) -> None:
        if level > self._level.number:
            try:
                self._level = checked(level)
            except FeatureLevelUnsupportedError as error:
                self.spawn(self.give_up(error), "giving up the leadership")
            else:
                self.log.info("job %s is written at feature level %d from now on", self._job_id, level)

    @rpc_sync
    def request_release(self) -> Release:
        return own_release()

    @rpc_sync
    def heartbeat_from_resource_manager(self) -> None:
        self._resource_manager.heartbeat()

    def _slot_request_waits(self, allocation_id: AllocationID, reason: str) -> None:
        """Show what a slot request waits for, as the ResourceManager reports it."""
        request_id = self._pool.request_of(allocation_id)
        if self._graph is not None and request_id is not None:
            self._graph.slot_waiting(request_id, reason)

    # -------------------------------------------------------------- checkpoints

    def _advance_checkpoints(self) -> None:
        """Advance the checkpoints: time has passed, or other tasks run."""
        if self._checkpoints is not None and self._graph is not None and not self._checkpoints.is_idle:
            self._checkpoints.advance(self._graph.running_tasks())
        self._arm()

    def _require_checkpoints(self) -> JobCheckpoints:
        """Return the job's checkpoints, once its tasks are known; until then earlier requests are not known either."""
        if self._checkpoints is None or self._require_graph().is_reconciling:
            raise JobNotReachableError(f"job {self._job_id} is being recovered; retry in a moment")
        return self._checkpoints

    @rpc
    async def acknowledge_checkpoint(self, ack: AcknowledgeCheckpoint) -> CheckpointOutcome:
        outcome = await self._require_checkpoints().acknowledge(ack)
        self._advance_checkpoints()
        return outcome

    @rpc_sync
    def decline_checkpoint(self, decline: DeclineCheckpoint) -> None:
        self._require_checkpoints().decline(decline)
        self._advance_checkpoints()

    @rpc
    async def trigger_checkpoint(self, trigger_id: TriggerID) -> OperationStatus:
        return await self._trigger(CheckpointTrigger(trigger_id, SnapshotType.CHECKPOINT))

    @rpc
    async def trigger_savepoint(
        self, trigger_id: TriggerID, target_directory: str, cancel_job: bool = False
    ) -> OperationStatus:
        kind = SnapshotType.SAVEPOINT_CANCEL if cancel_job else SnapshotType.SAVEPOINT
        return await self._trigger(CheckpointTrigger(trigger_id, kind, target_directory))

    @rpc
    async def stop_with_savepoint(self, trigger_id: TriggerID, target_directory: str, drain: bool) -> OperationStatus:
        kind = SnapshotType.SAVEPOINT_TERMINATE if drain else SnapshotType.SAVEPOINT_SUSPEND
        return await self._trigger(CheckpointTrigger(trigger_id, kind, target_directory))

    async def _trigger(self, trigger: CheckpointTrigger) -> OperationStatus:
        status = await self._require_checkpoints().trigger(trigger)
        self._advance_checkpoints()
        return status

    @rpc
    async def roll_back(self, trigger_id: TriggerID, target: str, new_query_id: bool) -> OperationStatus:
        checkpoints = self._require_checkpoints()
        if await checkpoints.roll_back(trigger_id, target, new_query_id, self._check_active):
            graph = self._require_graph()
            self.log.warning("job %s is rolled back to %s", self._job_id, target)
            self._rescales.rolled_back(trigger_id, target, current_instant().epoch_ms)
            instructions = graph.restart_all(current_instant())
            self._advance_checkpoints()  # so that no checkpoint starts with the tasks that run now
            await self._written()
            self._do(instructions)
        await self._written()
        await checkpoints.rollback_written()
        return OperationStatus(trigger_id, OperationState.COMPLETED, path=target)

    def _check_active(self) -> None:
        status = self._require_graph().status
        if status not in ACTIVE:
            raise CheckpointError(f"job {self._job_id} is {status.value} and cannot be rolled back")

    @rpc
    async def report_rescale(self, rescale: Rescale) -> None:
        self._require_graph()
        self._rescales.report(rescale, current_instant().epoch_ms)
        await self._written()

    @rpc_sync
    def request_operation_status(self, trigger_id: TriggerID) -> OperationStatus:
        return self._require_checkpoints().operation(trigger_id)

    @rpc_sync
    def request_checkpoint_statistics(self) -> CheckpointStatsSnapshot:
        self._require_graph()
        return CheckpointStatsSnapshot() if self._checkpoints is None else self._checkpoints.statistics()

    def _checkpoints_fail(self, reason: str) -> None:
        """Fail the job because no restart helps: its savepoint cannot be used, or too many checkpoints have failed."""
        if self._graph is not None:
            error = ErrorInfo(FailureKind.RUNTIME, "CheckpointException", reason)
            self._do(self._graph.fail(error, current_instant()))

    def _cancel_with_savepoint(self) -> None:
        if self._graph is not None:
            self.log.info("job %s is cancelled: the savepoint before it is complete", self._job_id)
            self._do(self._graph.cancel(current_instant()))

    # -------------------------------------------------------------------- clients

    @rpc
    async def cancel(self, because: str = "") -> None:
        graph = self._require_graph()
        if graph.status in (JobStatus.FINISHED, JobStatus.FAILED):
            await self._written()  # else the next JobMaster, which does not know the end, would run the job again
            raise JobAlreadyTerminatedError(f"job {self._job_id} is {graph.status.value} already: nothing to cancel")
        self.log.info("job %s is to be cancelled%s", self._job_id, f": {because}" if because else "")
        self._do(graph.cancel(current_instant(), because))
        await self._written()

    @rpc_sync
    def request_job(self) -> ArchivedExecutionGraph:
        return self._archive(self._require_graph())

    @rpc_sync
    def request_query_histories(self) -> list[QueryHistory]:
        return self._require_graph().query_histories()

    def current_metrics(self) -> list[ScopeDump]:
        """Return the present metrics of the job; none while this JobMaster does not lead."""
        return [] if self._graph is None else job_metrics(self._archive(self._graph), current_instant().epoch_ms)

    def trace_counts(self) -> dict[str, Value | None]:
        """Return how many spans were exported and dropped; none if the job has no trace."""
        return {} if self._traces is None else {**self._traces.counts()}

    @rpc_sync
    def request_job_details(self) -> JobDetails:
        return self._require_graph().archive().details()

    # -------------------------------------------------------------------- helpers

    def _require_graph(self) -> ExecutionGraph:
        if self._graph is None:
            raise JobNotReachableError(f"job {self._job_id} is being recovered; retry in a moment")
        return self._graph

    async def _written(self) -> None:
        """Return once the next JobMaster would know all changes so far."""
        if self._journal is not None:
            await self._journal.written()


def _remove_tree(path: Path) -> None:
    while path.exists():
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            continue  # another deletion ran at the same moment


def current_instant() -> Instant:
    """Read both clocks."""
    return Instant(time.monotonic(), time.time_ns() // 1_000_000)


class _Prepared(NamedTuple):
    context: ComponentContext
    ha: HighAvailabilityServices


_prepared: list[_Prepared] = []
"""Context that this process has prepared for its JobMaster, if it was started in advance."""


async def prepare(service: RpcService, *, runtime_dir: str, system: str, **_others: object) -> None:
    """Prepare what any JobMaster needs: the configuration, and connections to Redis and to the ResourceManager.

    Call this in a process that is started in advance. A component that does not answer now may do so later, for a job.
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
    """Create the JobMaster in the actor's host."""
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
    own = registry.group(MetricScope(ScopeCategory.JOB, component="jobmaster", job_id=job_id))
    own.gauges("Traces", master.trace_counts)
    add_process_metrics(own, service)
    await serve_metrics(service, registry)
    return master

"""What carries a job out: the instructions of `ExecutionGraph` and `SlotPool`, and what follows from them.

The part of the `JobMaster` that acts; the rest of it, in `runtime.jobmaster.endpoint`, listens.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from actors.errors import ActorError, FencingError, RecipientUnreachable, WireError
from actors.receptionist import ReceptionistGateway
from actors.rpc.service import RpcService
from blob.errors import BlobError
from blob.gateway import BlobAddress
from conf.configuration import Configuration
from conf.errors import ConfigurationError
from conf.options import HeartbeatOptions, JobOptions, RestartStrategyOptions
from runtime.checkpoint.messages import NO_TOTALS
from runtime.gateways.dispatcher import DispatcherGateway
from runtime.gateways.errors import JobNotReachableError, SlotNotAllocatedError, UnknownTaskExecutorError
from runtime.gateways.task_executor import TaskExecutorGateway
from runtime.ha.errors import JobAlreadyDoneError, StateCorruptedError
from runtime.ha.model import DISPATCHER, LeaderTerm, job_master
from runtime.ha.services import HighAvailabilityServices
from runtime.heartbeat.manager import HeartbeatManager
from runtime.ids import AllocationID, ExecutionAttemptID, JobID, ResourceID
from runtime.jobgraph.codec import decode, decode_job_graph, encode
from runtime.jobgraph.job_graph import JobGraph
from runtime.jobmaster.archived_execution_graph import ArchivedExecutionGraph
from runtime.jobmaster.checkpointing import JobCheckpoints
from runtime.jobmaster.defaults import default_restart_strategy
from runtime.jobmaster.deployment import TaskManagers
from runtime.jobmaster.execution import FORMAT_VERSION as SNAPSHOT_VERSION
from runtime.jobmaster.execution import ExecutionGraphSnapshot
from runtime.jobmaster.execution_graph import (
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
from runtime.jobmaster.execution_state import ErrorInfo, FailureKind, Instant
from runtime.jobmaster.journal import ExecutionJournal
from runtime.jobmaster.resource_manager_connection import ResourceManagerConnection
from runtime.jobmaster.restart_strategy import create_restart_strategy
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
from runtime.leaders import LeaderFollower
from runtime.leadership import LeaderEndpoint

RETRY_S = 0.5
LOST_LOGS_TIMEOUT_S = 5.0
POOL_GRACE_S = 5.0  # the ResourceManager's refusal comes first, and says more


class JobExecution(LeaderEndpoint):
    """One job: from the store to its graph, from the graph's instructions to the world, and to its end.

    Args:
        service: the RPC service of the process.
        name: the actor's name.
        job_id: the job.
        ha: high-availability services; closed with the endpoint.
        receptionist: the system's directory.
        configuration: the cluster's.
        jobs_dir: directory of the jobs' materialised results.
        blob: where the BlobServer listens.
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
        self._resource_manager = ResourceManagerConnection(self, job_id, ha, silence_s)
        self._task_managers = TaskManagers(self, job_id, configuration, blob)
        self._heartbeats: HeartbeatManager | None = None
        self._journal: ExecutionJournal | None = None
        self._checkpoints: JobCheckpoints | None = None
        self._cannot_begin = ""
        self._resumes = False
        self._known_addresses: dict[ResourceID, str] = {}

    # --------------------------------------------------------------- the job and its graph

    def _new_pool(self) -> SlotPool:
        wait_s = self._configuration.get(JobOptions.SLOT_REQUEST_TIMEOUT)
        return SlotPool(wait_s + POOL_GRACE_S, self._configuration.get(JobOptions.SLOT_IDLE_TIMEOUT))

    async def lead(self, term: LeaderTerm) -> None:
        """Read the job from the store and build its execution graph."""
        await self._dispatcher.start()  # who leads there is found out meanwhile
        await self._resource_manager.start()
        store = self._ha.execution_store()
        is_new, encoded = await asyncio.gather(
            self._ha.running_jobs_registry().set_running(self._job_id, term),
            self._ha.job_graph_store().get(self._job_id),
            return_exceptions=True,
        )
        if isinstance(is_new, JobAlreadyDoneError):  # whatever came of reading its graph, which may be gone
            self.log.warning("job %s is over already: it is not run again", self._job_id)
            return
        if isinstance(is_new, BaseException):
            raise is_new
        if isinstance(encoded, BaseException):
            raise encoded
        saved = None
        if not is_new:
            _, saved = await asyncio.gather(store.sweep(term), self._saved_execution())
        self._job = job = decode_job_graph(encoded)
        configuration = self._configuration_of(job)
        strategy = job.restart_strategy or default_restart_strategy(configuration)
        self._pool = self._new_pool()
        self._resumes = saved is not None
        self._journal = ExecutionJournal(self, store, self._job_id, term, self._encoded_execution)
        self._graph = graph = ExecutionGraph(
            job,
            create_restart_strategy(strategy),
            current_instant(),
            results_dir=str(self._results_dir),
            jobmaster_address=str(self.address),
            # The same code on the same data fails again: it is only run again when somebody has asked for that.
            restart_user_failures=job.restart_strategy is not None or configuration.is_set(RestartStrategyOptions.TYPE),
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
        )
        rollback, totals = (None, NO_TOTALS) if saved is None else (saved.rollback, saved.checkpoints)
        self._cannot_begin = await self._checkpoints.recover(rollback, totals, is_new=is_new) or self._cannot_begin
        self._known_addresses.clear()
        if saved is not None:
            now = current_instant()
            for request_id, slot in graph.restore(saved, now):
                self._pool.adopt_slot(request_id, slot, now.monotonic_s)
                self._known_addresses[slot.slot_id.resource_id] = slot.address

    def _configuration_of(self, job: JobGraph) -> Configuration:
        """The cluster's, with what the job sets for itself."""
        self._cannot_begin = ""
        try:
            return self._configuration.overlaid(job.configuration, "the job")
        except ConfigurationError as error:  # each of them is right in itself, and they do not go together
            self._cannot_begin = str(error)
            return self._configuration

    def _checkpoints_fail(self, reason: str) -> None:
        """What no restart mends: the savepoint that the job was to begin from, or too many failed checkpoints."""
        if self._graph is not None:
            error = ErrorInfo(FailureKind.RUNTIME, "CheckpointException", reason)
            self._do(self._graph.fail(error, current_instant()))

    def _cancel_with_savepoint(self) -> None:
        if self._graph is not None:
            self.log.info("job %s is cancelled: the savepoint before it is complete", self._job_id)
            self._do(self._graph.cancel(current_instant()))

    async def _saved_execution(self) -> ExecutionGraphSnapshot | None:
        """What the predecessor had written down; None where there was none, or it cannot be read."""
        try:
            data = await self._ha.execution_store().find(self._job_id)
            saved = None if data is None else decode(data, ExecutionGraphSnapshot)
            if saved is not None and saved.format_version != SNAPSHOT_VERSION:
                raise WireError(f"it has format {saved.format_version}, this version reads {SNAPSHOT_VERSION}")
        except (StateCorruptedError, WireError) as error:
            self.log.error("job %s begins anew, its state cannot be read: %s", self._job_id, error)
            return None
        return saved

    def _encoded_execution(self) -> bytes:
        saved = self._require_graph().snapshot(current_instant())
        checkpoints = self._checkpoints
        if checkpoints is not None:
            saved = replace(saved, rollback=checkpoints.rollback, checkpoints=checkpoints.totals)
        return encode(saved)

    # ------------------------------------------------------------- instructions

    def _do(self, instructions: Sequence[Instruction | SlotPoolInstruction]) -> None:
        """Carry out instructions, and those that follow from them, in order and without recursion."""
        self._work.extend(instructions)
        if self._working:
            return
        self._working = True
        try:
            while self._work:
                self._work.extend(self._carry_out(self._work.popleft()))
        finally:
            self._working = False

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
                self.spawn(self._deploy(instruction), f"deploying {instruction.descriptor.task_name}")
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
                self._task_managers.free_slot(instruction.slot)
        return []

    async def _deploy(self, instruction: DeployTask) -> None:
        descriptor, journal = instruction.descriptor, self._journal
        if journal is None or self._checkpoints is None:
            return
        descriptor = replace(descriptor, restore=self._checkpoints.restore(descriptor.task_key))
        try:
            await self._task_managers.deploy(instruction.slot.slot_id.resource_id, descriptor, journal.written)
        except SlotNotAllocatedError as error:
            allocation_id = instruction.slot.allocation_id
            self._do(self._pool.fail_allocation(allocation_id, str(error), time.monotonic()))
        except JobNotReachableError as error:
            self.log.info("%s is left to the next JobMaster: %s", descriptor.task_name, error)
        except FencingError as error:
            self.log.info("%s is left to a later JobMaster: %s", descriptor.task_name, error)
        except RecipientUnreachable as error:
            # Its process is gone, which the heartbeats will find out too: until then its slots must not be tried again.
            self._task_manager_lost(instruction.slot.slot_id.resource_id, str(error))
        except Exception as error:  # whatever kept the task from being deployed is why this attempt failed
            kind = FailureKind.TASK_EXECUTOR_LOST if isinstance(error, ActorError) else FailureKind.RUNTIME
            info = ErrorInfo(kind, "TaskDeploymentException", f"{descriptor.task_name} was not deployed: {error}")
            if self._graph is not None:
                self._do(self._graph.task_failed(descriptor.attempt_id, info, current_instant()))

    async def _release(self, instruction: ReleasePartitions) -> None:
        graph, journal = self._graph, self._journal
        if graph is None or journal is None:
            return
        try:
            await journal.written()  # or a successor might think that somebody still reads them
        except JobNotReachableError as error:
            self.log.info("results of job %s are left to the next JobMaster: %s", self._job_id, error)
            return
        if self._graph is graph and not graph.status.is_terminal:  # at its end all of them go at once
            for path in instruction.paths:
                await self.run_blocking(_remove_tree, Path(path))
            self.log.info("released %s", ", ".join(instruction.paths))

    async def _finish(self, instruction: JobReachedTerminal) -> None:
        graph, journal = self._graph, self._journal
        if graph is None or journal is None or not instruction.status.is_globally_terminal:
            return
        try:
            # Before anything of it is given up: a successor that did not know of the end would look for what is gone.
            await journal.written()
        except JobNotReachableError as error:
            self.log.info("the end of job %s is left to the next JobMaster: %s", self._job_id, error)
            return
        if self._checkpoints is not None:
            failure = "" if instruction.error is None else instruction.error.cause
            await self._checkpoints.finish(instruction.status, failure)
        await self._keep_lost_logs(graph)
        if self._graph is not graph:
            return  # another JobMaster reports the end, or this one anew
        journal.complete()  # the Dispatcher removes what was written
        self.log.info("job %s is %s", self._job_id, instruction.status.value)
        self._do(self._pool.close())
        self._task_managers.job_over(f"job {self._job_id} is {instruction.status.value}")
        self._resource_manager.job_over(instruction.status.value)
        try:
            await self.run_blocking(_remove_tree, self._results_dir.parent)
        except OSError as error:
            self.log.warning("intermediate results of job %s are left behind, remove them: %s", self._job_id, error)
        archived = self._archive(graph)
        while self._graph is graph:
            try:
                dispatcher = await self._dispatcher.get()
                await dispatcher.job_reached_terminal_state(archived)
            except Exception as error:  # whatever kept it from that: a job of which nobody reports the end never ends
                self.log.warning("the Dispatcher was not told of the end of job %s: %s", self._job_id, error)
                await asyncio.sleep(RETRY_S)
            else:
                return

    def _archive(self, graph: ExecutionGraph) -> ArchivedExecutionGraph:
        archived = graph.archive()
        return archived if self._checkpoints is None else replace(archived, checkpoints=self._checkpoints.statistics())

    async def _keep_lost_logs(self, graph: ExecutionGraph) -> None:
        """An attempt that was lost with its TaskExecutor left its logs there: where that is back, they are kept too."""

        async def keep(attempt_id: ExecutionAttemptID, resource_id: ResourceID) -> None:
            try:
                address = self._task_managers.address_of(resource_id)
                async with asyncio.timeout(LOST_LOGS_TIMEOUT_S):
                    gateway = self.gateway(address, TaskExecutorGateway)
                    graph.logs_kept(attempt_id, tuple(await gateway.keep_task_logs(self._job_id, attempt_id)))
            except UnknownTaskExecutorError:
                self.log.info("the logs of attempt %s are left where it ran: %s is not here", attempt_id, resource_id)
            except (ActorError, BlobError, TimeoutError) as error:
                self.log.warning("the logs of attempt %s are left at %s: %s", attempt_id, resource_id, error)

        await asyncio.gather(*(keep(*attempt) for attempt in graph.attempts_without_logs()))

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

    def resource_manager_connected(self) -> None:
        """The present ResourceManager has been told of this job: what it is asked now comes after that."""
        self._do(self._pool.connect_resource_manager())

    def resource_manager_lost(self) -> None:
        """There is no ResourceManager at present."""
        self._pool.disconnect_resource_manager()

    def slot_request_waits(self, allocation_id: AllocationID, reason: str) -> None:
        """The ResourceManager says what a slot request waits for."""
        request_id = self._pool.request_of(allocation_id)
        if self._graph is not None and request_id is not None:
            self._graph.slot_waiting(request_id, reason)

    # -------------------------------------------------------------------- helpers

    def _require_graph(self) -> ExecutionGraph:
        if self._graph is None:
            raise JobNotReachableError(f"job {self._job_id} is being recovered; ask again")
        return self._graph

    async def _written(self) -> None:
        """Return when what was done so far is known to any successor."""
        if self._journal is not None:
            await self._journal.written()


def _remove_tree(path: Path) -> None:
    while path.exists():
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            continue  # some of it was released at the same moment


def current_instant() -> Instant:
    """A reading of both clocks."""
    return Instant(time.monotonic(), time.time_ns() // 1_000_000)

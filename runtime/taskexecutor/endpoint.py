"""The TaskExecutor: offers slots, runs tasks in processes of their own, and starts Spark (Flink's `TaskExecutor`)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import runtime
from actors.address import ActorAddress
from actors.errors import ActorError, RecipientTerminated
from actors.receptionist import Listing, ReceptionistGateway, receptionist_of
from actors.rpc.endpoint import RpcEndpoint
from actors.rpc.gateway import rpc, rpc_sync, rpc_tell
from actors.rpc.service import RpcService
from blob.cache import BlobCache
from blob.client import BlobClient
from blob.errors import BlobNotFound
from blob.gateway import BlobAddress
from blob.offload import Inline, resolve
from conf.configuration import Configuration
from conf.options import (
    ClusterOptions,
    HeartbeatOptions,
    JobOptions,
    SecurityOptions,
    SparkOptions,
    TaskManagerOptions,
)
from runtime.environment.context import (
    ComponentContext,
    blob_client,
    offload_large_calls,
    wait_for_process,
)
from runtime.environment.shared_directory import shared_directory_mark
from runtime.feature_level import supported_levels
from runtime.ha.services import HighAvailabilityServices
from runtime.heartbeat import HeartbeatManager, Silence
from runtime.ids import AllocationID, ExecutionAttemptID, JobID, ResourceID, SlotID
from runtime.job_logs import KeptLog, LogChunk
from runtime.metrics.registry import serve_metrics
from runtime.protocol.checkpoints import TriggerCheckpoint
from runtime.protocol.descriptor import JobReport, TaskDeployment, TaskDeploymentDescriptor, unpack
from runtime.protocol.diagnostics import ComponentLog, LogInfo, TaskManagerMetrics, TaskPoolReport, ThreadDump
from runtime.protocol.errors import (
    DeploymentNotFoundError,
    GatewayError,
    HandOverRefusedError,
    NoSuchTaskError,
    SlotOccupiedError,
)
from runtime.protocol.execution_state import ErrorInfo, FailureKind
from runtime.protocol.hand_over import VERSION, HandOverReport, Obstacle, python_version
from runtime.protocol.leader import boottime
from runtime.protocol.messages import (
    JobHeartbeat,
    LeaderAddress,
    RegistrationSuccess,
    TaskExecutorHeartbeat,
    TaskExecutorRegistration,
    TaskLog,
)
from runtime.protocol.session import SessionAddress
from runtime.protocol.task_executor import TaskExecutorGateway
from runtime.spark.driver.api import SparkDriver
from runtime.spark.driver.local import LocalDriver
from runtime.spark.driver.remote import adopt_driver
from runtime.spark.driver.warm import keep_warming, try_driver, warm_up
from runtime.spark.errors import SparkError
from runtime.spark.task.zygote_client import TaskProcess, Zygote
from runtime.stack_samples import StackProfile
from runtime.taskexecutor.connections import IsolationWatch, JobConnections, ResourceManagerConnection
from runtime.taskexecutor.diagnostics import MetricsSampler, ThreadDumps, task_executor_metrics
from runtime.taskexecutor.driver_health import DriverLosses, DriverWatch
from runtime.taskexecutor.hand_over import HandOver, HeldSlot, Leaving, Predecessor, tasks_of
from runtime.taskexecutor.logs import AttemptDirectories, LogKeeper
from runtime.taskexecutor.services import TaskHost, TaskServices, create_services
from runtime.taskexecutor.slot_table import UNKNOWN_USER, TaskSlotTable
from runtime.taskexecutor.spark_options import warm_up_queries
from runtime.taskexecutor.task_pool import TaskPool
from runtime.taskexecutor.task_table import TaskTable
from runtime.taskexecutor.worker_files import DriverUser, RegistrationState

StartHost = Callable[[Path], Awaitable[TaskHost]]

LISTING_INTERVAL_S = 2.0
EXPIRY_INTERVAL_S = 60.0
LAST_WORDS_S = 10.0
FLUSH_S = 0.1
LEAVING_PATIENCE_S = 10.0
"""Seconds for which a TaskExecutor that is to leave its tasks waits for what passes, such as a checkpoint."""
SUCCESSOR_MARGIN_S = 5.0
"""Seconds for which JobMasters wait for a successor beyond the end of the tasks that no successor has adopted."""


async def _start_zygote(directory: Path) -> Zygote:
    return await Zygote.start(directory / "zygote.log")


class TaskExecutor(RpcEndpoint, TaskExecutorGateway):
    """One worker. It depends on no leader: it finds the leaders by retrieval, and reports to them what it holds.

    Args:
        service: the RPC service of the process.
        resource_id: its name in the cluster, also the actor's.
        ha: high-availability services; closed with the endpoint.
        receptionist: the system's directory.
        configuration: the cluster's.
        driver: the Spark driver, owned by the worker process, not by this actor.
        directory: the worker's own directory.
        warm_up: whether the driver is new, and has to be warmed beside the first tasks.
        log_file: log file of this process.
        runner_pid: the worker's process, which is ended when no ResourceManager is left to work for.
        start_host: starts the source of task processes, given the worker's own directory.
    """

    goes = ""
    """Reason why this TaskExecutor is about to end; empty while it is not."""

    def __init__(
        self,
        service: RpcService,
        resource_id: ResourceID,
        ha: HighAvailabilityServices,
        receptionist: ReceptionistGateway,
        configuration: Configuration,
        driver: SparkDriver,
        directory: Path,
        warm_up: bool,
        log_file: Path,
        runner_pid: int,
        start_host: StartHost = _start_zygote,
    ) -> None:
        super().__init__(service, resource_id)
        self.resource_id = resource_id
        self._driver_user = DriverUser(directory, driver.info.pid, driver.info.start_time)
        self._noted_user = self._driver_user.read()
        slots = configuration.get(TaskManagerOptions.NUM_TASK_SLOTS)
        self.slots = TaskSlotTable(resource_id, slots, self._noted_user)
        self._ha = ha
        self._receptionist = receptionist
        self._configuration = configuration
        self._driver = driver
        self._directory = directory
        self._warm_up = warm_up
        self._attempts = AttemptDirectories(directory / "tasks")
        own_logs = {"taskexecutor": log_file, "spark": Path(driver.info.log_file)}
        self._logs = LogKeeper(
            self, self._attempts, own_logs, self._blob_client, configuration.get(JobOptions.LOGS_MAX_SIZE)
        )
        self._metrics = MetricsSampler(driver.info.pid)
        self._job_heartbeats = HeartbeatManager(self, configuration, on_timeout=self._job_master_silent)
        self._connections = JobConnections(
            self,
            ha,
            self.slots,
            lambda: self.registration,
            self.report_of,
            self.release_slot,
            self._job_heartbeats.monitor,
        )
        self._tasks = TaskTable(self, self._connections)
        self._threads = ThreadDumps(self, self._tasks.process)
        self._resource_manager = ResourceManagerConnection(
            self,
            ha,
            self.slots,
            lambda: self.registration,
            configuration.get(HeartbeatOptions.TIMEOUT),
            self._registered,
            RegistrationState(directory),
        )
        self._isolation = IsolationWatch(
            ha,
            configuration.get(TaskManagerOptions.ISOLATION_TIMEOUT),
            configuration.get(HeartbeatOptions.INTERVAL),
            lambda: len(self._tasks) > 0,
            driver.info.pid,
        )
        self._runner_pid = runner_pid
        self._start_host = start_host
        self._losses = DriverLosses(directory)
        self.metrics = task_executor_metrics(
            service,
            resource_id,
            self.slots.report,
            self._sample,
            lambda: None if self._services is None else self._services.pool.report(),
        )
        self._services: TaskServices | None = None
        self._stopping = False
        self._renewal = ""
        self._zygotes: list[Zygote] = []
        self._predecessors: tuple[str, ...] = ()
        self._hands_over = False

    @property
    def registration(self) -> TaskExecutorRegistration:
        """Registration that this TaskExecutor sends to the leaders."""
        info = self._driver.info
        return TaskExecutorRegistration(
            resource_id=self.resource_id,
            address=str(self.address),
            pid=os.getpid(),
            slots=len(self.slots.report().slots),
            spark_version=info.spark_version,
            java_version=info.java_version,
            spark_master=info.master,
            spark_pid=info.pid,
            memory_bytes=self._configuration.get(SparkOptions.DRIVER_MEMORY),
            version=runtime.__version__,
            shared_directory=shared_directory_mark(
                self._configuration.get(ClusterOptions.SHARED_DIR), self._configuration.get(ClusterOptions.ID)
            ),
            spark_loss=self._losses.last(),
            levels=supported_levels(),
            serves_one_user=self._driver.is_ours and self._configuration.get(SecurityOptions.USERS_ISOLATION),
            predecessors=self._predecessors,
        )

    # ---------------------------------------------------------------- life

    async def on_start(self) -> None:
        offload_large_calls(self.service, self._configuration, self._blob_location)
        predecessor = Predecessor(self._directory, self._driver.info)
        await self.run_blocking(predecessor.look)
        left = predecessor.left
        # Ends what the tasks of a killed predecessor left running.
        await self._driver.reset(() if left is None else [task.endpoint for task in left.tasks])
        host = await self._start_host(self._directory)
        zygote = host if isinstance(host, Zygote) else None
        if zygote is not None:
            self._zygotes.append(zygote)
        # At the endpoint of another owner a waiting session may be closed at any time.
        size = self._configuration.get(TaskManagerOptions.TASK_POOL_SIZE) if self._driver.is_ours else 0
        pool = TaskPool(self, self._driver, zygote, self._directory / "ready", size)
        watch = self._new_watch(zygote)
        self._services = create_services(
            self._configuration,
            self._directory,
            self._driver,
            host,
            pool,
            watch,
            self._blob_client,
            adopted=() if left is None else [task.descriptor.attempt.attempt_id for task in left.tasks],
        )
        if watch is not None:
            self.spawn(watch.run(), "watching whether Spark runs jobs")
        self._job_heartbeats.start()
        if left is not None:
            await self._adopt(predecessor, left, self._services)
        await self._resource_manager.start()
        self.spawn(self._list(), "listing itself")
        self.spawn(self._resource_manager.end_when_abandoned(self._configuration, self._runner_pid), "being needed")
        spark_lost = FailureKind.SPARK_LOST, "SparkDriverLostException"
        self.spawn(
            self._die_with(self._driver.info.role, self._driver.info.pid, *spark_lost), "watching the Spark driver"
        )
        zygote_lost = FailureKind.TASK_EXECUTOR_LOST, "TaskExecutorLostException"
        self.spawn(self._die_with("zygote", host.pid, *zygote_lost), "watching the zygote")
        self.spawn(self._isolation.run(), "watching whether it is cut off")
        self.spawn(self._metrics.ask_jvm(self._driver), "asking the Spark driver for its memory")
        self.spawn(self._warm(zygote, pool), "warming the Spark driver")
        self.schedule_run_async(EXPIRY_INTERVAL_S, self._expire)

    def _new_watch(self, zygote: Zygote | None) -> DriverWatch | None:
        if not self._driver.is_ours or zygote is None:
            return None
        directory = self._directory / "spark" / "trial"
        return DriverWatch(
            self._driver, lambda: try_driver(self._driver, zygote, directory), lambda: len(self._tasks) > 0
        )

    async def _adopt(self, predecessor: Predecessor, left: HandOver, services: TaskServices) -> None:
        """Continue with the slots and tasks that the predecessor has left. From here on they end with this process."""
        zygotes = await self.run_blocking(predecessor.adopt)
        processes: dict[int, TaskProcess] = {}
        for held in zygotes:
            zygote, tasks = held.owned()
            self._zygotes.append(zygote)
            processes |= tasks
            self.spawn(self._end_when_idle(zygote), "ending the zygote of a predecessor when its tasks have ended")
        self._predecessors = left.predecessors
        for slot in left.slots:
            self.slots.allocate(slot.slot_id, slot.job_id, slot.allocation_id, self._noted_owner)
        for task, process in tasks_of(left, processes):
            logs = self._logs.keeper_of(task.descriptor, task.logs)
            self._tasks.adopt(task, process, self._attempts.of(task.descriptor), services, logs)
        self.log.info("%d tasks of %s run on here", len(self._tasks), left.predecessors[-1])
        for job_id, job_master in left.job_masters.items():
            self._job_heartbeats.monitor(job_id)
            await self._connections.add(job_id, job_master)

    @property
    def _noted_owner(self) -> str | None:
        """Owner of the jobs that have had slots on the driver, as `request_slot` names it."""
        return None if self._noted_user == UNKNOWN_USER else self._noted_user

    async def _end_when_idle(self, zygote: Zygote) -> None:
        await zygote.wait_until_idle()
        self._zygotes.remove(zygote)
        await zygote.stop()

    async def on_stop(self) -> None:
        self._stopping = True  # from here on the end of a process is not a loss
        self._job_heartbeats.stop()
        await self._resource_manager.stop()
        self._tasks.cancel_all()
        services = self._services
        if services is not None:
            await services.pool.stop()
            await services.task_host.stop()
            for zygote in self._zygotes:
                if zygote is not services.task_host:
                    await zygote.stop()
            await self.run_blocking(services.blobs.close)
        self._logs.close()
        await self._ha.close()
        await self._driver.close()

    async def _warm(self, zygote: Zygote | None, pool: TaskPool) -> None:
        """Warm Spark first, if it is new; then fill the pool, whose sessions profit from the warm driver."""
        if self._warm_up and zygote is not None:
            directory = self._directory / "spark" / "warm-up"
            try:
                await warm_up(self._driver, zygote, directory)
            except SparkError as error:
                self.log.warning("the Spark driver is not warm: %s", error)
            queries = warm_up_queries(self._configuration)
            self.spawn(
                keep_warming(self._driver, zygote, directory, queries, self._rest), "warming the Spark driver further"
            )
        await pool.fill()

    async def _rest(self, seconds: float) -> None:
        """Sleep for so long, and until no task runs, to leave the cores to the tasks."""
        await asyncio.sleep(seconds)
        await self._tasks.wait_until_idle()

    def _blob_location(self) -> tuple[str, int]:
        blob = self._resource_manager.blob
        if blob is None:
            raise ActorError("this TaskExecutor is not registered: it does not know the BlobServer yet")
        return blob.host, blob.port

    def _blob_client(self, server: BlobAddress | None = None) -> BlobClient:
        """Return a client of a BlobServer; by default of the one that the ResourceManager has named."""
        return blob_client(self._configuration, server or self._blob_location, self.service.secret)

    async def _die_with(self, what: str, pid: int, kind: FailureKind, name: str) -> None:
        """End this process after the end of one that every task needs; the worker then starts all of them again.

        From then on this TaskExecutor rejects slot requests and tasks, so that no task is restarted here.
        """
        await wait_for_process(pid)
        if self._stopping:
            return
        reason = f"its {what} (process {pid}) has ended"
        if self._renewal:
            reason = self._renewal
        elif kind is FailureKind.SPARK_LOST:
            loss = self._driver.loss
            reason = f"its {loss.removeprefix('the ')}"
            self._losses.note(loss, time.time())
        self.log.log(logging.INFO if self._renewal else logging.ERROR, "this TaskExecutor ends: %s", reason)
        self.goes = reason
        self._tasks.hold_ends_back()
        self._resource_manager.disconnect(reason)
        cause = ErrorInfo(kind, name, f"TaskExecutor {self.resource_id} is lost: {reason}")
        await self._tasks.last_words(cause, LAST_WORDS_S)
        await asyncio.sleep(FLUSH_S)
        os.kill(os.getpid(), signal.SIGKILL)

    async def _list(self) -> None:
        while True:
            try:
                await self._receptionist.register(Listing(self.path, str(self.address), os.getpid()))
            except ActorError as error:
                self.log.debug("the receptionist does not answer: %s", error)
            await asyncio.sleep(LISTING_INTERVAL_S)

    def _expire(self) -> None:
        retention_s = self._configuration.get(JobOptions.LOGS_RETENTION)
        busy = {allocation.job_id for allocation in self.slots.all} | self._tasks.jobs
        self.spawn(self.run_blocking(self._attempts.expire, retention_s, busy), "removing old logs")
        if self._services is not None:
            libraries = self._services.libraries
            self.spawn(self.run_blocking(libraries.remove_unused), "removing unused environments")
        self.schedule_run_async(EXPIRY_INTERVAL_S, self._expire)

    # ----------------------------------------------------- the ResourceManager

    def _registered(self, success: RegistrationSuccess) -> None:
        self._receptionist = receptionist_of(self.service, ActorAddress.parse(success.system))

    @rpc_sync
    def heartbeat_from_resource_manager(self) -> TaskExecutorHeartbeat:
        self._resource_manager.heard()
        self._isolation.heard()
        return TaskExecutorHeartbeat(self.slots.report(), self._sample())

    def _sample(self) -> TaskManagerMetrics:
        return self._metrics.sample(len(self._tasks))

    @rpc
    async def request_slot(
        self,
        slot_id: SlotID,
        job_id: JobID,
        allocation_id: AllocationID,
        job_master: LeaderAddress,
        owner: str | None = None,
    ) -> None:
        self.refuse_if_it_goes()
        self.slots.allocate(slot_id, job_id, allocation_id, owner)
        if self.slots.user is not None and self.slots.user != self._noted_user:
            self._note_user(self.slots.user, allocation_id)
        if self._connections.find(job_id) is None:
            # Not only from its registration on: a JobMaster that has ended by now never registers this TaskExecutor.
            self._job_heartbeats.monitor(job_id)
        await self._connections.add(job_id, job_master)

    def _note_user(self, user: str, allocation_id: AllocationID) -> None:
        """Store the user of the driver before the first task: the driver may outlive this process."""
        try:
            self._driver_user.write(user)
        except OSError as error:
            self.slots.free(allocation_id)
            raise SlotOccupiedError(f"{self.name} cannot store the user of its Spark driver: {error}") from error
        self._noted_user = user

    @rpc_sync
    def renew_driver(self, reason: str) -> None:
        if self.goes:
            return
        if self.slots.is_used or not self._driver.is_ours:
            cause = "a job holds a slot" if self.slots.is_used else "the driver belongs to another owner"
            raise SlotOccupiedError(f"TaskExecutor {self.name} does not renew its Spark driver: {cause}")
        self.goes = self._renewal = f"it gets a new Spark driver: {reason}"
        self.spawn(self._end_driver(), "ending the Spark driver")

    async def _end_driver(self) -> None:
        """Kill the driver once no task of a freed slot runs, or after `LAST_WORDS_S`; `_die_with` does the rest."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                await self._tasks.wait_until_idle()
        self._driver.kill(self._renewal)

    # ------------------------------------------------------------- a successor

    def _obstacles(self) -> list[Obstacle]:
        """Return what keeps this TaskExecutor from handing its tasks over now."""
        if not isinstance(self._driver, LocalDriver):
            return [Obstacle("its Spark does not belong to this worker")]
        if self._services is None or not self._zygotes or self.goes:
            return [Obstacle(f"it ends: {self.goes}" if self.goes else "it starts", passes=True)]
        found = self._tasks.obstacles()
        for job_id in self._connections.jobs():
            connection = self._connections.find(job_id)
            if connection is not None and not connection.registered:
                found.append(Obstacle("its JobMaster is being replaced", True, job_id))
        running = {allocation.job_id for allocation in self.slots.all} - set(self._connections.jobs())
        found += [Obstacle("its JobMaster is not known yet", True, job_id) for job_id in sorted(running)]
        if any(zygote.is_busy for zygote in self._zygotes) and not found:
            found.append(Obstacle("a task process is being started", passes=True))
        return found

    @rpc_sync
    def request_hand_over(self) -> HandOverReport:
        return HandOverReport(VERSION, python_version(), tuple(self._obstacles()))

    @rpc
    async def hand_over(self, lifetime_s: float) -> None:
        if self._hands_over:
            return
        if obstacles := self._obstacles():
            raise HandOverRefusedError(f"TaskExecutor {self.name} keeps its tasks: {obstacles[0].reason}")
        # Before the first JobMaster begins to wait: the tasks end before any of them gives its wait up.
        self._hands_over, tasks_end, waiting = True, boottime() + lifetime_s, self._connections.registrations()
        try:
            for job_id in waiting:
                connection = self._connections.find(job_id)
                if connection is not None:
                    await connection.gateway.expect_successor(self.resource_id, lifetime_s + SUCCESSOR_MARGIN_S)
        except (ActorError, GatewayError) as error:
            self._keep(f"a JobMaster does not wait for a successor: {error}")
            raise HandOverRefusedError(f"TaskExecutor {self.name} keeps its tasks: {error}") from error
        self._leave_soon(Leaving(waiting, tasks_end, boottime() + LEAVING_PATIENCE_S))

    def _leave_soon(self, leaving: Leaving) -> None:
        self.schedule_run_async(FLUSH_S, lambda: self._leave_all(leaving))

    def _leave_all(self, leaving: Leaving) -> None:
        """Leave everything to the successor, and end. Nothing else of this process runs between its first line and end.

        So the state that it leaves is the last one. Once the first zygote has it, there is no way back: a successor may
        have the tasks. Then this process ends in any case.
        """
        obstacle = leaving.obstacle(self._obstacles(), self._connections.registrations(), boottime())
        if obstacle is not None and obstacle.passes:
            self._leave_soon(leaving)
            return
        if obstacle is not None:
            self._keep(obstacle.reason)
            return
        state = HandOver(
            (*self._predecessors, str(self.address)),
            self._driver.info.pid,
            self._driver.info.start_time,
            tuple(HeldSlot(each.slot_id, each.job_id, each.allocation_id) for each in self.slots.all),
            self._connections.leaders(),
            self._tasks.held(),
        ).encode()
        driver, processes = (self._driver.info.pid, self._driver.info.start_time), self._tasks.processes()
        self.log.info("this TaskExecutor ends, and leaves %d tasks to its successor", len(processes))
        try:
            for zygote in self._zygotes:
                kept = [process for process in processes if zygote.runs(process)]
                zygote.hand_over(kept, state, leaving.tasks_end, driver, self._directory)
        except (OSError, SparkError):
            self.log.exception("tasks end with this TaskExecutor: their zygote does not keep them")
        os.kill(os.getpid(), signal.SIGKILL)

    def _keep(self, reason: str) -> None:
        """Keep the tasks after all, and say so to the JobMasters by registering again."""
        self.log.info("this TaskExecutor keeps its tasks: %s", reason)
        self._hands_over = False
        for job_id in self._connections.jobs():
            self._connections.master_lost(job_id)
            self._connections.offer(job_id)

    def refuse_if_it_goes(self) -> None:
        """Raise `RecipientTerminated` if this TaskExecutor is about to end."""
        if self.goes:
            raise RecipientTerminated(f"TaskExecutor {self.name} ends: {self.goes}")

    # ---------------------------------------------------------- the JobMasters

    def _job_master_silent(self, target: str, reason: str) -> None:
        """Keep the job's tasks for its next JobMaster, for as long as the configuration says."""
        job_id = JobID(target)
        loss = self._connections.master_lost(job_id)
        patience_s = self._configuration.get(TaskManagerOptions.JOB_MASTER_TIMEOUT)
        if loss is None or not self.report_of(job_id).executions:
            self.log.warning("the JobMaster of job %s is silent: %s", target, reason)
            self._drop_job(job_id, reason)
            return
        self.log.warning(
            "the JobMaster of job %s is silent: %s. Its tasks run for %g s without one "
            "(taskmanager.job-master.timeout)",
            target,
            reason,
            patience_s,
        )
        self.spawn(self._give_up_job_master(job_id, loss, patience_s), f"waiting for a JobMaster of job {job_id}")

    async def _give_up_job_master(self, job_id: JobID, loss: int, patience_s: float) -> None:
        await Silence().lasts(patience_s)
        if self._connections.is_lost(job_id, loss):
            self.log.error("no JobMaster of job %s has registered again: its tasks are cancelled", job_id)
            self._drop_job(job_id, "no JobMaster within taskmanager.job-master.timeout")

    def report_of(self, job_id: JobID) -> JobReport:
        """Return the attempts and slots of a job that are here."""
        return JobReport(self._tasks.executions(job_id), tuple(self.slots.offers(job_id)))

    @rpc_sync
    def heartbeat_from_job_manager(self, job_id: JobID, job_master: LeaderAddress) -> JobHeartbeat:
        self._isolation.heard()
        if self._connections.master_heard(job_id, job_master):
            self._job_heartbeats.received(job_id)
        held = tuple(report.state.attempt_id for report in self.report_of(job_id).executions)
        return JobHeartbeat(held, self._tasks.progress(job_id))

    @rpc_tell
    def disconnect_job_manager(self, job_id: JobID, reason: str) -> None:
        self._drop_job(job_id, reason)

    def _drop_job(self, job_id: JobID, reason: str) -> None:
        self._job_heartbeats.unmonitor(job_id)
        self._tasks.cancel_job(job_id)
        left = [allocation.allocation_id for allocation in self.slots.of_job(job_id)]
        self.spawn(self._leave_job(job_id, left, reason), f"leaving job {job_id}")

    async def _leave_job(self, job_id: JobID, left: Sequence[AllocationID], reason: str) -> None:
        """Free the slots that a job leaves, once its present tasks have ended."""
        await self._tasks.job_ended(job_id)
        for allocation_id in left:
            self.release_slot(allocation_id, reason)
        if self.slots.of_job(job_id):  # given to it meanwhile: its JobMaster had only lost the connection
            self._job_heartbeats.monitor(job_id)
            return
        await self._connections.remove(job_id)
        self._tasks.forget(job_id)
        if self._services is not None:
            await self.run_blocking(self._services.blobs.release_job, job_id)

    @rpc_sync
    def free_slot(self, allocation_id: AllocationID, reason: str) -> None:
        self.release_slot(allocation_id, reason)

    def release_slot(self, allocation_id: AllocationID, reason: str) -> None:
        """Free a slot, cancel what still runs in it, and tell the ResourceManager."""
        allocation = self.slots.free(allocation_id)
        if allocation is None:
            return
        self.log.info("slot %s of job %s is free: %s", allocation.slot_id, allocation.job_id, reason)
        self._tasks.cancel_allocation(allocation_id)
        self._resource_manager.slots_changed()

    # ------------------------------------------------------------------- tasks

    @rpc
    async def submit_task(self, deployment: TaskDeployment) -> None:
        services = self._require_services()
        descriptor = await self._read(deployment, services.blobs)
        self.fences.check_again()
        self.refuse_if_it_goes()
        if descriptor.attempt.attempt_id in self._tasks:
            return
        self.slots.check(descriptor.job.job_id, descriptor.attempt.allocation_id)
        directory = self._attempts.make(descriptor)
        self._tasks.start(descriptor, directory, services, self._logs.keeper_of(descriptor))

    async def _read(self, deployment: TaskDeployment, blobs: BlobCache) -> TaskDeploymentDescriptor:
        try:
            job, attempt = [
                # A small part came with the call, and needs no thread.
                part.data if isinstance(part, Inline) else await self.run_blocking(resolve, part, blobs)
                for part in (deployment.job, deployment.attempt)
            ]
        except BlobNotFound as error:
            raise DeploymentNotFoundError(str(error)) from error
        return unpack(job, attempt)

    def _require_services(self) -> TaskServices:
        if self._services is None:
            raise ActorError("the TaskExecutor has not started")
        return self._services

    @rpc_sync
    def cancel_task(self, attempt_id: ExecutionAttemptID) -> None:
        self._tasks.cancel(attempt_id)

    @rpc_sync
    def trigger_checkpoint(self, job_id: JobID, trigger: TriggerCheckpoint) -> None:
        checkpoints = self._tasks.checkpoints(trigger.attempt_id)
        if checkpoints is None:
            raise NoSuchTaskError(f"attempt {trigger.attempt_id} does not run here any more")
        checkpoints.trigger(trigger)

    @rpc_tell
    def notify_checkpoint_complete(self, attempt_id: ExecutionAttemptID, checkpoint_id: int) -> None:
        checkpoints = self._tasks.checkpoints(attempt_id)
        if checkpoints is not None:
            checkpoints.completed(checkpoint_id)

    @rpc_tell
    def notify_checkpoint_aborted(self, attempt_id: ExecutionAttemptID, checkpoint_id: int) -> None:
        checkpoints = self._tasks.checkpoints(attempt_id)
        if checkpoints is not None:
            checkpoints.aborted(checkpoint_id)

    @rpc_sync
    def request_session(self, job_id: JobID) -> SessionAddress:
        return self._tasks.session(job_id)

    @rpc
    async def end_session(self, job_id: JobID) -> None:
        await self._tasks.end_session(job_id)

    @rpc_sync
    def request_task_pool(self) -> TaskPoolReport:
        return self._require_services().pool.report()

    # -------------------------------------------------------- logs and threads

    @rpc
    async def request_task_logs(self, job_id: JobID, blob_server: BlobAddress) -> list[TaskLog]:
        return await self._logs.upload_attempts(job_id, blob_server)

    @rpc
    async def keep_task_logs(self, job_id: JobID, attempt_id: ExecutionAttemptID) -> list[KeptLog]:
        return await self._logs.keep(job_id, attempt_id)

    @rpc
    async def read_task_log(self, job_id: JobID, attempt_id: ExecutionAttemptID, name: str, offset: int) -> LogChunk:
        return await self.run_blocking(self._attempts.read, job_id, attempt_id, name, offset)

    @rpc
    async def request_log_list(self) -> list[LogInfo]:
        return await self.run_blocking(self._logs.infos)

    @rpc
    async def request_file_upload(self, name: str, blob_server: BlobAddress | None = None) -> ComponentLog:
        return await self._logs.upload(name, blob_server)

    @rpc
    async def read_log(self, name: str, offset: int) -> LogChunk:
        return await self.run_blocking(self._logs.read, name, offset)

    @rpc
    async def request_thread_dump(self, attempt_id: ExecutionAttemptID | None = None) -> ThreadDump:
        return await self._threads.dump(attempt_id)

    @rpc
    async def request_profile(
        self, samples: int, interval_ms: int, attempt_id: ExecutionAttemptID | None = None
    ) -> StackProfile:
        return await self._threads.profile(samples, interval_ms, attempt_id)


async def create(
    service: RpcService,
    name: str,
    *,
    runtime_dir: str,
    system: str,
    directory: str,
    driver_file: str,
    warm_up: bool,
    runner_pid: int,
    adopt: Callable[[Path], Awaitable[SparkDriver]] = adopt_driver,
    start_host: StartHost = _start_zygote,
) -> TaskExecutor:
    """Create the TaskExecutor in the actor's host. *adopt* finds the driver of *driver_file*; see `TaskExecutor`."""
    context = ComponentContext.read(runtime_dir, system)
    executor = TaskExecutor(
        service,
        ResourceID(name),
        await context.ha_services(service),
        receptionist_of(service, context.system),
        context.configuration,
        await adopt(Path(driver_file)),
        Path(directory),
        warm_up,
        context.directory.log / f"{name}.log",
        runner_pid,
        start_host,
    )
    await serve_metrics(service, executor.metrics)
    return executor

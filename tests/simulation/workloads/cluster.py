"""Workload ``cluster``: two masters, workers on two hosts, and clients that submit, list and cancel jobs.

Real are the Dispatchers, ResourceManagers with their SlotManagers, JobMasters with journals, TaskExecutors with slot
and task tables, elections, stores, heartbeats, the archive, the RPC layer, and the client of the REST endpoint
(`ClusterBackend`). A stranger makes calls that each receiver has to refuse. Modelled are the guardian that starts
JobMasters (`Guardian`), the control of the BlobServer, and what is below `runtime.spark`: a driver process, and tasks
that run for a while and may fail (`ModelTask`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import actors.rpc.dispatch as dispatch_module
import actors.rpc.fencing as fencing_module
import runtime
import runtime.dispatcher.endpoint as dispatcher_module
import runtime.jobmaster.deployment as deployment_module
import runtime.rest.backend as backend_module
import runtime.taskexecutor.endpoint as executor_module
import runtime.taskexecutor.task_table as table_module
from actors.address import ActorAddress
from actors.errors import ActorError, ActorSystemError, FencingError
from actors.receptionist import PATH as RECEPTIONIST_PATH
from actors.receptionist import Listing, Receptionist, receptionist_of
from actors.rpc.config import RpcConfig
from actors.rpc.endpoint import RpcEndpoint
from actors.rpc.fencing import Fence, Fences, Leadership
from actors.rpc.gateway import Ask, FencingToken, rpc, rpc_sync
from actors.rpc.service import RpcService
from actors.service_system import start_actor_system
from blob.gateway import NAME as BLOB_SERVER
from blob.gateway import PATH as BLOB_SERVER_PATH
from blob.gateway import BlobAddress, BlobServerGateway
from blob.settings import BlobServerStats
from conf.configuration import Configuration
from conf.files import make_private
from runtime.client import NoAnswerError, SubmissionUnknownError
from runtime.cluster.master import JOB_MASTER_CHECK_S
from runtime.dispatcher.archive import create_archive
from runtime.dispatcher.endpoint import Dispatcher
from runtime.feature_level import supported_levels
from runtime.ha.errors import HaError
from runtime.ha.keys import ClusterKeys
from runtime.ha.running_jobs import JobEntry, JobSchedulingStatus
from runtime.ha.services import RedisHaServices
from runtime.ha.state_handles import EXECUTIONS, JOB_GRAPHS
from runtime.ids import JobID, JobVertexID, ResourceID
from runtime.jobgraph.job_graph import JobEdge, JobGraph, JobKind, JobVertex, VertexRole
from runtime.jobmaster.endpoint import JobMaster
from runtime.leadership import LeaderEndpoint
from runtime.protocol.archived_execution_graph import ApplicationStatus
from runtime.protocol.descriptor import ExecutionReport, TaskExecutionState, TaskProgress
from runtime.protocol.diagnostics import TaskManagerMetrics
from runtime.protocol.dispatcher import DispatcherGateway
from runtime.protocol.errors import (
    GatewayError,
    JobAlreadyTerminatedError,
    JobNotFoundError,
    JobNotReachableError,
    JobSubmissionError,
)
from runtime.protocol.execution_state import ErrorInfo, ExecutionState, FailureKind, JobStatus
from runtime.protocol.job_master import JobMasterGateway
from runtime.protocol.leader import LeaderTerm
from runtime.protocol.master import MasterGateway, WorkerProcess
from runtime.protocol.messages import ClusterStatus
from runtime.protocol.resource_manager import ResourceManagerGateway
from runtime.protocol.task_executor import TaskExecutorGateway
from runtime.resourcemanager.endpoint import ResourceManager
from runtime.rest.backend import ClusterBackend
from runtime.spark.driver.api import DriverInfo
from runtime.taskexecutor.endpoint import TaskExecutor
from tests.simulation.cluster_checks import ClusterChecks
from tests.simulation.cluster_checks import patches as patches_of_the_checks
from tests.simulation.disk import ROOT
from tests.simulation.faults import Fault, FaultPlan, add_kinds
from tests.simulation.kernel import SimHost, SimProcess, installed_kernel
from tests.simulation.patches import Patch, add_patches
from tests.simulation.processes import System
from tests.simulation.redis import Outcome, RedisDeployment
from tests.simulation.world import World

CLUSTER = "sim"
SECRET = b"s" * 32
PORT = 6123
LEASE_S = 2.0
HEARTBEATS_S = 0.8
"""Seconds in which a leader sends heartbeats to everyone."""
SLOTS = 2
SHARED = Path(ROOT) / "shared"
LOCAL = Path(ROOT) / "local"
USERS = "", "ada", "bob"
STRANGER_S = 6.0
"""When the stranger begins, in virtual seconds."""
NO_TOKEN = FencingToken(1, "stranger")
NO_LEADER = Fence(None, lambda: Leadership("stranger", 1, "stranger"), lambda error: None)
METRICS = TaskManagerMetrics(60_000_000, 1.5, 12, 40, 900_000_000, 20.0, 0)


def here() -> SimProcess:
    """Return the current simulated process."""
    process = installed_kernel().current
    assert process is not None
    return process


def configuration_of(host: SimHost) -> Configuration:
    """Return the configuration of the cluster on a host."""
    return Configuration.from_dict(
        {
            "cluster.id": CLUSTER,
            "cluster.host": host.address,
            "cluster.runtime-dir": str(LOCAL / host.name),
            "cluster.shared-dir": str(SHARED / "cluster"),
            "high-availability.type": "redis",
            "high-availability.redis.url": "redis://redis:6379/0",
            "high-availability.storageDir": str(SHARED / "ha"),
            "high-availability.lease": "2 s",
            "heartbeat.interval": "500 ms",
            "heartbeat.timeout": "4 s",
            "taskmanager.isolation.timeout": "2500 ms",
            "taskmanager.numberOfTaskSlots": SLOTS,
            "taskmanager.job-master.timeout": "15 s",
            "taskmanager.task-pool.size": 0,
            "slot.request.timeout": "60 s",
            "jobstore.expiration-time": "30 d",
            "slot.idle.timeout": "2 s",
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": 10000,
            "restart-strategy.fixed-delay.delay": "200 ms",
        }
    )


# ------------------------------------------------------------------ models


class NoBlobs:
    """A client of a BlobServer that has nothing: no job of this workload has files."""

    def close(self) -> None:
        """Do nothing."""

    def release_job(self, job_id: str) -> None:
        """Do nothing."""

    def remove_unused(self) -> None:
        """Do nothing."""


class ModelBlobServer(RpcEndpoint, BlobServerGateway):
    """The control of a BlobServer without blobs."""

    def __init__(self, service: RpcService) -> None:
        super().__init__(service, BLOB_SERVER)

    @rpc_sync
    def request_address(self) -> BlobAddress:
        return BlobAddress(self.service.config.bind_host, 1)

    @rpc_sync
    def request_metrics(self) -> BlobServerStats:
        raise NotImplementedError

    @rpc_sync
    def lookup(self, job_id: str | None, key: str) -> int | None:
        return None

    @rpc_sync
    def use_job(self, job_id: str) -> None:
        """Spare nothing."""

    @rpc
    async def cleanup_job(self, job_id: str, leader: FencingToken) -> None:
        """Delete nothing."""

    @rpc
    async def sweep_orphans(self, live_jobs: list[str], leader: FencingToken) -> list[str]:
        return []


class ModelDriver:
    """What a TaskExecutor needs of its Spark driver: a process, whose death is a loss."""

    is_ours = True
    has_streaming = False
    alive = True

    def __init__(self, process: SimProcess, directory: Path) -> None:
        self.info = DriverInfo(process.pid, 1, "4.1.0", "local[2]", str(directory), str(directory / "spark.log"))

    @property
    def loss(self) -> str:
        """The text that reports its loss."""
        return self.info.loss

    async def reset(self, kept: object = ()) -> None:
        """End what a predecessor left."""

    def kill(self, why: str) -> None:
        """End the process."""
        installed_kernel().devices["cluster"].world.count("renewed drivers")
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.info.pid, signal.SIGKILL)

    async def close(self) -> None:
        """Take as long as a plan wants."""
        if pause_s := installed_kernel().devices["cluster"].driver_close_s:
            await asyncio.sleep(pause_s)

    async def jvm_figures(self) -> None:
        """Have no figures."""

    async def cores(self) -> None:
        """Have no number of cores."""


class ModelHost:
    """The source of task processes: it only has a process, that of the driver."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    async def stop(self) -> None:
        """Do nothing."""


class ModelSampler:
    """Measures nothing."""

    def __init__(self, spark_pid: int) -> None:
        self._pid = spark_pid

    async def ask_jvm(self, driver: object) -> None:
        """Ask nothing."""

    def sample(self, tasks: int) -> TaskManagerMetrics:
        """Return some figures."""
        return METRICS


class ModelTask:
    """An attempt: it starts, runs for as long as the job's arguments say, and ends; see `runtime.taskexecutor.task`."""

    process = None
    checkpoints = None

    def __init__(
        self,
        descriptor: Any,
        directory: Path,
        services: Any,
        on_state: Callable[[TaskExecutionState], None],
        on_progress: Callable[[TaskProgress], None],
        logs: Any,
        responder: Any,
        epoch: int,
        adopted: None,
    ) -> None:
        self.descriptor = descriptor
        self._on_state = on_state
        self._cancelled = asyncio.Event()
        self._attempt = descriptor.attempt
        self.progress = TaskProgress(self._attempt.attempt_id, (), ())
        self._workload: Cluster = installed_kernel().devices["cluster"]

    def cancel(self) -> None:
        """End it soon."""
        self._cancelled.set()

    async def run(self) -> None:
        """Run it to its end."""
        workload, rng = self._workload, random.Random()
        job_id, attempt_id = self.descriptor.job.job_id, self._attempt.attempt_id
        self._enter(ExecutionState.INITIALIZING)
        running = workload.task_starts(job_id, attempt_id, self._attempt.task_name)
        durations, part = self.descriptor.job.argv
        number = int(self._attempt.task_name.split(" ")[0][3:] or 0)
        duration_s, failing = float(durations.split("/")[number]), float(part)
        error = None
        try:
            await self._sleep(rng.random() * 0.3)
            if not self._cancelled.is_set():
                self._enter(ExecutionState.RUNNING)
                await self._sleep(duration_s)
            if self._cancelled.is_set():
                await asyncio.sleep(rng.random() * 0.3)
                end = ExecutionState.CANCELED
            elif rng.random() < failing:
                end = ExecutionState.FAILED
                error = ErrorInfo(FailureKind.TASK_PROCESS_LOST, "LostException", "the process ended", "", "", 0)
            else:
                end = ExecutionState.FINISHED
        finally:
            workload.task_ends(running)
        self._enter(end, error)

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._cancelled.wait()
        except TimeoutError:
            pass

    def _enter(self, state: ExecutionState, error: ErrorInfo | None = None) -> None:
        self.state = TaskExecutionState(self._attempt.attempt_id, state, error)
        self._since_ms = time.time_ns() // 1_000_000
        self._on_state(self.state)

    def report(self) -> ExecutionReport:
        """Report it to a JobMaster that did not deploy it."""
        return ExecutionReport(self.state, self._since_ms, self._attempt.task_key, self._attempt.allocation_id)


class Guardian(RpcEndpoint, MasterGateway):
    """Starts a process for each JobMaster, and starts it again when it dies."""

    def __init__(self, workload: Cluster, service: RpcService) -> None:
        super().__init__(service, "master")
        self._workload = workload
        self._process = here()
        self._children: dict[JobID, Child] = {}

    @rpc
    async def start_job_master(self, job_id: JobID) -> str:
        child = self._children.get(job_id)
        if child is None and self._workload.failing_starts:
            self._workload.failing_starts -= 1
            raise ActorSystemError(f"the JobMaster of job {job_id} did not start: no process")
        if child is None:
            child = self._children[job_id] = Child(self._workload, self._process, job_id)
        return await child.ready()

    @rpc
    async def stop_job_master(self, job_id: JobID) -> None:
        child = self._children.pop(job_id, None)
        if child is not None:
            child.stop()

    async def stop_idle(self, ha: RedisHaServices) -> None:
        """Stop the JobMasters of ended jobs, of which the Dispatcher of another master does not know."""
        while True:
            await asyncio.sleep(JOB_MASTER_CHECK_S)
            for job_id in list(self._children):
                try:
                    entry = await ha.running_jobs_registry().entry(job_id)
                except HaError:
                    continue
                if entry is None or entry.status is JobSchedulingStatus.DONE:
                    await self.stop_job_master(job_id)

    @rpc_sync
    def stop_worker(self, name: str) -> bool:
        return False

    @rpc_sync
    def start_worker(self) -> str:
        return ""

    @rpc_sync
    def request_worker(self) -> WorkerProcess:
        raise NotImplementedError

    @rpc_sync
    def request_workers(self) -> list[WorkerProcess]:
        return []

    @rpc_sync
    def request_status(self) -> ClusterStatus:
        return ClusterStatus("c", runtime.__version__, str(self.address), 0, (), (), supported_levels())

    @rpc_sync
    def notify_feature_level(self, level: int) -> None:
        """Do nothing: it writes no description of the cluster."""

    @rpc_sync
    def shut_down_cluster(self, status: ApplicationStatus = ApplicationStatus.UNKNOWN) -> None:
        raise NotImplementedError


class Child:
    """A JobMaster's process, as its master keeps it alive."""

    def __init__(self, workload: Cluster, master: SimProcess, job_id: JobID) -> None:
        self._workload = workload
        self._master = master
        self._job_id = job_id
        self._stopped = False
        self._ready = asyncio.Event()
        self._address = ""
        self._start()

    def _start(self) -> None:
        if self._stopped or not self._master.alive:
            return
        name = f"jobmaster-{self._job_id[:6]}"
        self._process = self._master.host.start(name, self._workload.job_master, self._job_id, self._serves)
        self._process.on_end.append(self._ended)

    def _serves(self, address: str) -> None:
        self._address = address
        assert self._master.loop is not None
        self._master.loop.call_soon_threadsafe(self._ready.set)

    def _ended(self, silent: bool) -> None:
        self._ready.clear()
        self._workload.world.kernel.after(0.1 + 0.2 * self._workload.world.random.random(), self._start)

    async def ready(self) -> str:
        """Wait until it serves, and return its address."""
        await self._ready.wait()
        return self._address

    def stop(self) -> None:
        """End it in good order."""
        self._stopped = True
        self._workload.stop_process(self._process)


@dataclass(eq=False)
class RunningTask:
    """A task that runs somewhere, as nobody but the simulator knows."""

    job_id: JobID
    attempt_id: str
    process: SimProcess
    began: int
    ended: int | None = None
    task: str = "job"


class Cluster:
    """See the module."""

    name: ClassVar[str] = "cluster"
    has_stranger: ClassVar[bool] = True
    faults_s: float = 60.0
    calm_s: float = 60.0

    def __init__(self, world: World) -> None:
        self.world = world
        self.system = System(world.kernel)
        self.endpoints: dict[LeaderEndpoint, SimProcess] = {}
        self.executors: dict[str, TaskExecutor] = {}
        self.managers: dict[SimProcess, ResourceManager] = {}
        self.tasks: list[RunningTask] = []
        self.accepted: dict[JobID, int] = {}
        self.submitted: dict[JobID, int] = {}
        self.cancelling: set[JobID] = set()
        self.cancelled: set[JobID] = set()
        self.ended: dict[JobID, tuple[int, JobStatus]] = {}
        self.answered_s: dict[str, float] = {}
        self._epochs: dict[tuple[RpcEndpoint, str], int] = {}
        self._observed: dict[tuple[Fences, str], int] = {}
        self._stops: dict[SimProcess, asyncio.Event] = {}
        self._attempts: dict[str, RunningTask] = {}
        self._users: dict[tuple[str, int], str] = {}
        self.failing_starts = 0
        self.driver_close_s = 0.0
        self._disturbs = False
        self._is_ordered = False
        """Whether the plan of faults submits the jobs, and the clients do not."""
        self._ordered: list[asyncio.Task[None]] = []
        self._backends: dict[str, tuple[SimProcess, ClusterBackend]] = {}
        self.checks = ClusterChecks(self)
        self._listing: tuple[JobStatus, ...] = ()
        world.kernel.devices["cluster"] = self

    # ------------------------------------------------------------------ history

    def task_starts(self, job_id: JobID, attempt_id: str, name: str) -> RunningTask:
        """Note that a task starts to run."""
        world, now = self.world, self.world.kernel.now
        task = RunningTask(job_id, attempt_id, here(), now, task=name)
        world.kernel.trace("task starts", job_id[:6])
        world.count("tasks")
        (driver,) = [one._driver.info.pid for one in self.executors.values() if one.service.loop is here().loop]
        user = self._users.setdefault((here().host.name, driver), self.owner(job_id))
        if user != self.owner(job_id):
            world.fail("no driver serves two users", f"job {job_id} of {self.owner(job_id)!r} starts on {user!r}'s")
        if attempt_id in self._attempts:
            world.fail("each attempt runs once", f"attempt {attempt_id} of job {job_id} starts again")
        ended = self.ended.get(job_id)
        if ended is not None and not self._disturbs:
            world.fail("no job runs after its end", f"job {job_id} is {ended[1].value} since {ended[0] / 1e9:.3f} s")
        others = [one for one in self.tasks if (one.job_id, one.task, one.ended) == (job_id, name, None)]
        others = [one for one in others if one.process.alive]
        if others and not self._disturbs:
            world.fail("no job runs twice", f"job {job_id} starts on {task.process}, and runs on {others[0].process}")
        self._attempts[attempt_id] = task
        self.tasks = [one for one in self.tasks if one.ended is None and one.process.alive]
        self.tasks.append(task)
        return task

    def owner(self, job_id: JobID) -> str:
        """Return the user who has submitted a job, or nobody; few TaskExecutors serve one of three users each."""
        return USERS[int(job_id, 16) % len(USERS)]

    def task_ends(self, task: RunningTask) -> None:
        """Note that it runs no more."""
        task.ended = self.world.kernel.now

    def seen(self, job_id: JobID, status: JobStatus) -> None:
        """Check a state that a client was shown."""
        if not status.is_globally_terminal:
            known = self.ended.get(job_id)
            if known is not None and known[0] < self._asked:
                self.world.fail("an end stays", f"job {job_id} was {known[1].value} and is shown as {status.value}")
            return
        known = self.ended.setdefault(job_id, (self.world.kernel.now, status))
        entry = self._entries().get(job_id)
        if entry is None or entry.status is not JobSchedulingStatus.DONE:
            self.world.fail("a shown end is recorded", f"job {job_id} is shown as {status.value}: {entry}")
        if known[1] is not status:
            self.world.fail("an end stays", f"job {job_id} was {known[1].value} and is shown as {status.value}")
        running = [one for one in self.tasks if one.job_id == job_id and one.ended is None and one.process.alive]
        if running and not self._disturbs:
            self.world.fail(
                "an end is true", f"job {job_id} is shown as {status.value}, and runs on {running[0].process}"
            )

    _asked = 0

    def _entries(self) -> dict[str, JobEntry]:
        """Return what Redis has of the jobs."""
        return {job_id: JobEntry.from_json(text) for job_id, text in self._hash(ClusterKeys(CLUSTER).running_jobs)}

    def _is_accepted(self, job_id: JobID) -> bool:
        """Whether Redis has the graph of a job, or the job has begun."""
        entry = self._entries().get(job_id)
        is_stored = job_id in dict(self._hash(ClusterKeys(CLUSTER).handles(JOB_GRAPHS)))
        return is_stored or (entry is not None and entry.status is not JobSchedulingStatus.PENDING)

    def _hash(self, key: str) -> list[tuple[str, str]]:
        assert self.world.redis is not None
        found = self.world.redis.master.data.values.get(key, {})
        assert isinstance(found, dict)
        return list(found.items())

    def admitted(self, endpoint: RpcEndpoint, leadership: Leadership | None) -> None:
        """Check a call that an endpoint accepts."""
        kernel = self.world.kernel
        if not endpoint.running:
            self.world.fail("only started endpoints accept calls", f"{endpoint.path} on {kernel.current}")
        if isinstance(endpoint, LeaderEndpoint) and not self._holds(endpoint, kernel.current):
            self.world.fail("only leaders accept calls", f"{endpoint.path} on {kernel.current} has no lease")
        if leadership is None:
            return
        key = endpoint, leadership.component
        highest = max(self._epochs.get(key, 0), self._observed.get((endpoint.fences, leadership.component), 0))
        if leadership.epoch < highest:
            self.world.fail(
                "no call of a former leader is accepted",
                f"{endpoint.path} accepts {leadership} after it has seen epoch {highest}",
            )
        self._epochs[key] = max(highest, leadership.epoch)
        self.world.count("fenced calls")

    def observed(self, fences: Fences, leadership: Leadership) -> None:
        """Note a leadership of which an endpoint has learnt."""
        key = fences, leadership.component
        self._observed[key] = max(self._observed.get(key, 0), leadership.epoch)

    def sends(self, fence: Fence) -> None:
        """Check a message of a leader that is about to leave."""
        owner = getattr(getattr(fence._leadership, "func", None), "__self__", None)
        if isinstance(owner, LeaderEndpoint) and not self._holds(owner, self.world.kernel.current):
            self.world.fail("only leaders send", f"{owner.path} sends a call, and its lease is over")

    def acts(self, endpoint: LeaderEndpoint, term: LeaderTerm | None, own: LeaderTerm) -> None:
        """Check an act that a leader may carry out under its own term."""
        if term not in (None, own):
            self.world.fail("no act of a former term", f"{endpoint.path}, for {term}, under {own}")

    @staticmethod
    def _holds(endpoint: LeaderEndpoint, process: SimProcess | None) -> bool:
        return endpoint._term is not None and endpoint._election.has_leadership(endpoint._term)

    # ------------------------------------------------------------------ building

    def disks(self) -> None:
        self.world.add_disk("shared")
        self.world.add_disk("local")

    def build(self) -> None:
        world = self.world
        add = world.kernel.add_host
        rng = world.kernel.random("clocks")
        hosts = [
            add(name, drift=rng.uniform(-0.003, 0.003), wall_offset_s=rng.uniform(-5.0, 5.0))
            for name in ("master1", "master2", "worker1", "worker2", "client1")
        ]
        redis = add("keeper")
        world.redis = RedisDeployment(world.kernel, world.network, redis, persistent=True)
        for host in hosts[:2]:
            self._start_master(host)
        for number, host in enumerate((hosts[2], hosts[2], hosts[3]), 1):
            self._start_worker(host, f"taskmanager-{number}")
        for number in (1, 2):
            self._start(hosts[4], f"client{number}", partial(self._client, f"client{number}"))
        if self.has_stranger:
            world.kernel.after(STRANGER_S, self._start, hosts[4], "client-stranger", self._stranger)

    def _start(self, host: SimHost, name: str, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def run() -> None:
            await main()

        def start() -> SimProcess | None:
            return host.start(name, run) if host.up else None

        process = start()
        assert process is not None
        self.world.supervise(process, start)

    def _start_master(self, host: SimHost) -> None:
        def start() -> SimProcess | None:
            if not host.up:
                return None
            master = host.start(f"{host.name}-master", self._master)
            for role, main in (("dispatcher", self._dispatcher), ("resourcemanager", self._manager)):

                def again(role: str = role, main: Callable[..., Any] = main) -> SimProcess | None:
                    return host.start(f"{host.name}-{role}", main) if master.alive else None

                child = again()
                assert child is not None
                self.world.supervise(child, again)

            def ended(silent: bool) -> None:
                for process in list(host.processes):
                    process.kill()

            if not self.world.stopping:
                master.on_end.insert(0, ended)
            return master

        process = start()
        assert process is not None
        self.world.supervise(process, start)

    def _start_worker(self, host: SimHost, name: str) -> None:
        """Start a TaskExecutor with its driver; both start anew when one of them ends."""

        def start() -> SimProcess | None:
            if not host.up:
                return None
            driver = self.world.find(f"spark-{name}") or host.start(f"spark-{name}", self._spark)
            return host.start(name, self._executor, name, driver)

        process = start()
        assert process is not None
        self.world.supervise(process, start)

    # ------------------------------------------------------------------ processes

    async def _spark(self) -> None:
        await self._stopped()

    async def _stopped(self) -> None:
        stop = self._stops[here()] = asyncio.Event()
        await stop.wait()

    async def _service(self, port: int = 0, master: str | None = None) -> tuple[RpcService, ActorAddress]:
        host = here().host
        config = RpcConfig(bind_host=host.address, port=port, ask_timeout_s=5.0, connect_timeout_s=2.0)
        service = RpcService(asyncio.get_running_loop(), SECRET, config)
        await service.listen()
        await start_actor_system(service)
        return service, ActorAddress("understudy", master or host.address, PORT, RECEPTIONIST_PATH)

    def _ha(self) -> RedisHaServices:
        return RedisHaServices("redis://redis:6379/0", CLUSTER, SHARED / "ha", lease=LEASE_S)

    def _watch(self, endpoint: LeaderEndpoint) -> None:
        self.endpoints = {one: process for one, process in self.endpoints.items() if process.alive}
        self.endpoints[endpoint] = here()

    async def _master(self) -> None:
        for directory in (
            SHARED / "cluster" / "archive",
            SHARED / "cluster" / "jobs",
            LOCAL / here().host.name / "log",
        ):
            make_private(directory, durable=True)
        service, _ = await self._service(PORT)
        receptionist = Receptionist(service)
        await service.start_server(receptionist)
        blobs = ModelBlobServer(service)
        await service.start_server(blobs)
        receptionist.enter(Listing(BLOB_SERVER_PATH, str(blobs.address), here().pid))
        guardian = Guardian(self, service)
        await service.start_server(guardian)
        ha = self._ha()
        if await self._may_serve(ha):
            guardian.spawn(guardian.stop_idle(ha), "stopping the JobMasters of ended jobs")
            await self._stopped()
        await service.close()
        await ha.close()

    async def _may_serve(self, ha: RedisHaServices) -> bool:
        """Return whether the release of the current process, a master, may work for the cluster."""
        return True

    async def _dispatcher(self) -> None:
        service, system = await self._service()
        configuration = configuration_of(here().host)
        dispatcher = Dispatcher(
            service,
            "dispatcher",
            ha=self._ha(),
            receptionist=receptionist_of(service, system),
            master_address=str(system.with_path("/user/master")),
            blob=BlobAddress(here().host.address, 1),
            blobs=NoBlobs(),  # type: ignore[arg-type]
            archive=create_archive(configuration, SHARED / "cluster" / "archive"),
            log_dir=LOCAL / here().host.name / "log",
            savepoint_dir=SHARED / "savepoints",
            sweep_interval_s=3600.0,
            starts_at_once=4,
        )
        self._watch(dispatcher)
        await service.start_server(dispatcher)
        await self._stopped()
        await service.close()

    async def _manager(self) -> None:
        service, system = await self._service()
        manager = ResourceManager(
            service,
            "resourcemanager",
            self._ha(),
            receptionist_of(service, system),
            configuration_of(here().host),
            BlobAddress(here().host.address, 1),
            system,
            lambda owner: None,
        )
        self._watch(manager)
        self.managers[here()] = manager
        await service.start_server(manager)
        await self._stopped()
        await service.close()

    async def job_master(self, job_id: JobID, serves: Callable[[str], None]) -> None:
        """Run a JobMaster."""
        service, system = await self._service()
        master = JobMaster(
            service,
            f"jobmaster-{job_id}",
            job_id,
            self._ha(),
            receptionist_of(service, system),
            configuration_of(here().host),
            SHARED / "cluster" / "jobs",
            BlobAddress(here().host.address, 1),
        )
        self._watch(master)
        await service.start_server(master)
        serves(str(master.address))
        await self._stopped()
        await service.close()

    async def _executor(self, name: str, driver: SimProcess) -> None:
        directory = LOCAL / here().host.name / name
        directory.mkdir(parents=True, exist_ok=True)
        service, system = await self._service(master="10.0.0.1")

        async def start_host(_directory: Path) -> Any:
            return ModelHost(driver.pid)

        executor = TaskExecutor(
            service,
            ResourceID(name),
            self._ha(),
            receptionist_of(service, system),
            configuration_of(here().host),
            ModelDriver(driver, directory),  # type: ignore[arg-type]
            directory,
            False,
            directory / "log",
            here().pid,
            start_host,
        )
        self.executors[name] = executor
        await service.start_server(executor)
        await self._stopped()
        await service.close()

    # ------------------------------------------------------------------ clients

    async def _client(self, name: str) -> None:
        service, system = await self._service()
        endpoint = RpcEndpoint(service, "rest")
        await service.start_server(endpoint)
        ha = self._ha()
        backend = ClusterBackend(endpoint, ha, configuration_of(here().host), system)
        await backend.start()
        rng = random.Random()
        self._backends[name] = here(), backend
        working = asyncio.create_task(self._work(name, backend, rng), name="work")
        await self._stopped()
        working.cancel()
        await asyncio.wait([working])
        await backend.stop()
        await ha.close()
        await service.close()

    async def _work(self, name: str, backend: ClusterBackend, rng: random.Random) -> None:
        kernel = self.world.kernel
        while True:
            await asyncio.sleep(rng.random() * 1.0)
            what = rng.randrange(10)
            quiet = kernel.seconds > self.faults_s
            began = kernel.now
            try:
                if what < 4 and self._is_ordered:
                    await self._list(name, backend)
                elif what < 3 and not quiet:
                    await self._submit(name, backend, rng)
                elif what == 3 and not quiet:
                    await self._cancel(name, backend, rng)
                elif what < 7:
                    await self._list(name, backend)
                else:
                    await self._look(name, backend, rng)
            except (NoAnswerError, SubmissionUnknownError, JobSubmissionError, JobNotReachableError) as error:
                kernel.trace("no answer", type(error).__name__)
            except (ActorError, GatewayError, HaError) as error:
                self.world.fail(
                    "errors are those that are promised", f"{name}: {error!r} after {kernel.now - began} ns"
                )

    async def _submit(self, name: str, backend: ClusterBackend, rng: random.Random) -> None:
        duration_s = round(rng.random() ** 2 * 4, 2)
        failing = rng.choice(("0", "0", "0", "0.3"))
        job_id = JobID.random()
        graph = JobGraph.for_script(
            "job", job_id=job_id, argv=(str(duration_s), failing), created_ms=time.time_ns() // 1_000_000
        )
        await self._submit_graph(name, backend, graph, rng)

    async def _submit_graph(self, name: str, backend: ClusterBackend, graph: JobGraph, rng: random.Random) -> None:
        job_id, kernel = graph.job_id, self.world.kernel
        graph = replace(graph, owner=self.owner(job_id))
        self.submitted[job_id] = kernel.now
        is_refused = True
        for _ in range(5):
            try:
                await backend.submit_graph(graph)
            except (NoAnswerError, SubmissionUnknownError, JobSubmissionError) as error:
                is_refused = is_refused and isinstance(error, JobSubmissionError)
                if is_refused and self._is_accepted(job_id):
                    self.world.fail("a refused job is not accepted", f"job {job_id}: {error}")
                await asyncio.sleep(rng.random())
            else:
                self._answered(name)
                kernel.trace("accepted", job_id[:6])
                self.accepted[job_id] = kernel.now
                self.world.count("accepted jobs")
                return

    async def _cancel(self, name: str, backend: ClusterBackend, rng: random.Random) -> None:
        candidates = [job_id for job_id in self.accepted if job_id not in self.ended]
        if not candidates:
            return
        await self._cancel_job(name, backend, rng.choice(candidates))

    async def _cancel_job(self, name: str, backend: ClusterBackend, job_id: JobID) -> None:
        self.cancelling.add(job_id)
        try:
            await backend.cancel(job_id)
        except JobAlreadyTerminatedError:
            pass
        except JobNotFoundError as error:
            self.world.fail("an accepted job is known", f"cancelling {job_id}: {error}")
        else:
            self.cancelled.add(job_id)
        self._answered(name)
        self.world.count("cancelled jobs")

    async def _list(self, name: str, backend: ClusterBackend) -> None:
        asked = self.world.kernel.now
        jobs = await backend.jobs()
        self._answered(name)
        shown = {job.job_id: job.status for job in jobs}
        self._listing = tuple(shown.values())
        for job_id, at in self.accepted.items():
            if at < asked and job_id not in shown:
                self.world.fail(
                    "an accepted job is known", f"job {job_id}, accepted at {at / 1e9:.3f} s, is not listed"
                )
        for job_id, status in shown.items():
            self._shown(job_id, status, asked)
        self.world.count("lists")

    async def _look(self, name: str, backend: ClusterBackend, rng: random.Random) -> None:
        if not self.accepted:
            return
        job_id = rng.choice(list(self.accepted))
        asked = self.world.kernel.now
        try:
            job = await backend.job(job_id)
        except JobNotFoundError as error:
            self.world.fail("an accepted job is known", f"looking at {job_id}: {error}")
            return
        self._answered(name)
        self._shown(job_id, job.status, asked)

    def _answered(self, name: str) -> None:
        """Note that the cluster has answered a client: one that has nothing to ask does not count."""
        self.answered_s[name] = self.world.kernel.seconds

    def _shown(self, job_id: JobID, status: JobStatus, asked: int) -> None:
        self._asked = asked
        self.seen(job_id, status)

    def order(self, client: str, work: Callable[[ClusterBackend], Coroutine[Any, Any, None]]) -> bool:
        """Have a client do something; return whether it runs."""
        process, backend = self._backends.get(client, (None, None))
        if process is None or backend is None or not process.alive or process.loop is None:
            return False

        async def begin() -> None:
            with contextlib.suppress(NoAnswerError, SubmissionUnknownError, JobSubmissionError, JobNotReachableError):
                await work(backend)

        loop = process.loop
        loop.call_soon_threadsafe(lambda: self._ordered.append(loop.create_task(begin(), name="an order")))
        return True

    # ------------------------------------------------------------------ a stranger

    async def _stranger(self) -> None:
        service, _ = await self._service()
        calling = asyncio.create_task(self._call_as_stranger(service, random.Random()), name="strange calls")
        await self._stopped()
        calling.cancel()
        await asyncio.wait([calling])
        await service.close()

    async def _call_as_stranger(self, service: RpcService, rng: random.Random) -> None:
        """Make calls without the leadership that they take, or to none that there is."""
        while True:
            await asyncio.sleep(rng.random() * 2.0)
            leaders = [endpoint for endpoint, process in self.endpoints.items() if process.alive]
            target = rng.choice([*leaders, *self.executors.values()])
            try:
                answer = await self._strange_call(service, target, rng)
            except FencingError:
                self.world.count("refused strangers")
            except ActorError as error:
                self.world.kernel.trace("no answer", type(error).__name__)
            else:
                self.world.fail("a stranger is refused", f"{target.path} answers {answer!r}")

    @staticmethod
    def _strange_call(service: RpcService, target: RpcEndpoint, rng: random.Random) -> Ask[Any]:
        address = target.address
        if isinstance(target, TaskExecutor):
            fence = rng.choice((None, NO_LEADER))
            return service.gateway(address, TaskExecutorGateway, fence).heartbeat_from_resource_manager()
        token = rng.choice((None, NO_TOKEN))
        if isinstance(target, Dispatcher):
            return service.gateway(address, DispatcherGateway, token).list_jobs()
        if isinstance(target, ResourceManager):
            return service.gateway(address, ResourceManagerGateway, token).request_resource_overview()
        return service.gateway(address, JobMasterGateway, token).request_job()

    # ------------------------------------------------------------------ faults

    def plan(self, rng: random.Random) -> list[Fault]:
        weights = {
            "kill": 2.0,
            "kill_at_effect": 5.0,
            "stall_at_effect": 3.0,
            "freeze": 1.5,
            "suspend": 0.7,
            "crash": 0.3,
            "jump": 1.0,
            "partition": 1.5,
            "isolate": 0.7,
            "slow": 1.5,
            "reset": 2.0,
            "cut": 1.0,
            "break_after": 4.0,
            "redis_kill": 0.5,
            "redis_freeze": 1.0,
            "redis_slow": 0.7,
            "disk_full": 0.2,
        }
        if rng.random() < 0.5:
            for kind in ("freeze", "suspend", "partition", "isolate", "slow", "stall_at_effect"):
                del weights[kind]  # then tasks that run twice, and ends that are shown too early, are seen
        hosts = ["master1", "master2", "worker1", "worker2"]
        processes = [f"{host}-{role}" for host in hosts[:2] for role in ("master", "dispatcher", "resourcemanager")]
        workers = [f"taskmanager-{number}" for number in (1, 2, 3)]
        faults = FaultPlan(
            hosts=hosts,
            processes=[
                *processes,
                *workers,
                *(f"spark-{one}" for one in workers),
                "jobmaster",
                "jobmaster",
                "jobmaster",
            ],
            weights=weights,
            rate=2.0,
            until_s=self.faults_s,
            longest_s=12.0,
            jumps=[*hosts, "client1"],
            disks=["shared"],
            all_hosts=[*hosts, "client1", "keeper"],
        ).draw(rng)
        leaders = [name for name in processes if not name.endswith("-master")] + ["jobmaster"] * 4
        for _ in range(rng.choice((0, 0, 1, 2, 4))):
            at = round(rng.uniform(5.0, self.faults_s - 15.0), 6)
            faults.append(Fault(at, "deposed", (rng.choice(leaders), round(rng.uniform(2.0, 12.0), 3))))
        return sorted(faults, key=lambda fault: fault.at_s)

    def begins(self, plan: list[Fault]) -> None:
        """Note the faults of a run: some make it impossible to know from far whether a task runs."""
        hiding = {"freeze", "suspend", "partition", "isolate", "slow", "stall_at_effect", "crash"}
        self._disturbs = any(fault.kind in hiding for fault in plan)
        self._is_ordered = any(fault.kind == "submit" for fault in plan)
        self.checks.begins(plan)

    # ------------------------------------------------------------------ checks

    def check_often(self) -> None:
        kernel = self.world.kernel
        holders: dict[str, list[str]] = {}
        for endpoint, process in self.endpoints.items():
            if process.alive:
                kernel.current = process
                if self._holds(endpoint, process):
                    holders.setdefault(endpoint._election.component, []).append(str(process))  # type: ignore[attr-defined]
        kernel.current = None
        for component, names in holders.items():
            if len(names) > 1 and not self._has_ended(component):
                self.world.fail("one leader at a time", f"{component}: {names}")
        self.checks.look()

    def _has_ended(self, component: str) -> bool:
        """Whether a component is the JobMaster of an ended job: the Dispatcher takes its leadership away."""
        assert self.world.redis is not None
        jobs = self.world.redis.master.data.values.get(ClusterKeys(CLUSTER).running_jobs, {})
        entry = jobs.get(component.removeprefix("jobmaster-")) if isinstance(jobs, dict) else None
        if not component.startswith("jobmaster-"):
            return False
        return entry is None or JobEntry.from_json(entry).status is JobSchedulingStatus.DONE

    def check_healed(self) -> None:
        world, kernel = self.world, self.world.kernel
        for name in ("client1", "client2"):
            if self.answered_s.get(name, 0.0) < kernel.seconds - 15.0:
                world.fail(
                    "the cluster answers", f"{name} had its last answer at {self.answered_s.get(name, 0.0):.1f} s"
                )
        for job_id in self.accepted:
            known = self.ended.get(job_id)
            if known is None:
                world.fail("an accepted job ends", f"job {job_id} has not ended; clients see {self._listing}")
                return
            expected = {JobStatus.FINISHED} | ({JobStatus.CANCELED} if job_id in self.cancelling else set())
            if known[1] not in expected:
                world.fail("an accepted job ends well", f"job {job_id} is {known[1].value}")
            if job_id in self.cancelled and known[1] is not JobStatus.CANCELED:
                world.fail("an acknowledged cancellation stays", f"job {job_id} is {known[1].value}")
        self._check_left()
        leaders = [one for process, one in self.managers.items() if process.alive and one._term is not None]
        if len(leaders) != 1:
            world.fail("one ResourceManager leads", f"{len(leaders)} do")
            return
        overview = leaders[0]._overview()
        if (overview.task_managers, overview.slots) != (3, 3 * SLOTS):
            world.fail("all TaskExecutors are registered", str(overview))
        if overview.free_slots != overview.slots or overview.pending_requests:
            world.fail("no slot leaks", str(overview))
        for name, executor in self.executors.items():
            taken = [slot for slot in executor.slots.report().slots if slot.allocation_id is not None]
            if taken:
                world.fail("no slot leaks", f"{name} has allocated {taken}")
        left = [process.name for host in kernel.hosts.values() for process in host.processes]
        masters = [name for name in left if name.startswith("jobmaster")]
        if masters:
            world.fail("no JobMaster is left", f"{masters}")

    def _check_left(self) -> None:
        """Check that nothing of a job is left but its end, in Redis and in the Dispatcher, once all have ended."""
        keys = ClusterKeys(CLUSTER)
        for job_id, entry in self._entries().items():
            if entry.status is not JobSchedulingStatus.DONE or entry.dirty:
                self.world.fail("no job leaves anything", f"the entry of job {job_id} is {entry}")
        for key in (keys.handles(JOB_GRAPHS), keys.handles(EXECUTIONS), keys.checkpoint_ids):
            if left := self._hash(key):
                self.world.fail("no job leaves anything", f"{key} has {[name for name, _ in left]}")
        for endpoint, process in self.endpoints.items():
            if isinstance(endpoint, Dispatcher) and process.alive:
                followed = [name for name in endpoint._ha._feed._subscriptions if name.startswith("jobmaster-")]  # type: ignore[attr-defined]
                if followed or endpoint._jobs:
                    self.world.fail("no job is followed after its end", f"{process} follows {followed}")

    def stop_process(self, process: SimProcess) -> None:
        """End a process in good order, now or as soon as it has started."""
        stop = self._stops.get(process)
        if stop is not None and process.loop is not None:
            process.loop.call_soon_threadsafe(stop.set)
        elif process.alive:
            self.world.kernel.after(0.1, self.stop_process, process)

    def stop(self) -> None:
        order = ("client", "spark", "taskmanager", "dispatcher", "resourcemanager", "jobmaster", "master")
        for host in self.world.kernel.hosts.values():
            for process in list(host.processes):
                rank = next(number for number, part in enumerate(order) if part in process.name)
                if process.name.endswith("-master"):
                    rank = len(order)
                    process.on_end.pop(0)
                if process.name.startswith("spark"):
                    rank = len(order)
                self.world.kernel.after(rank * 1.0, self.stop_process, process)

    def check_stopped(self) -> None:
        world = self.world
        for host in world.kernel.hosts.values():
            for process in host.processes:
                world.fail("a stop ends", f"{process} still runs:\n" + "\n".join(process.waits()))
        assert world.redis is not None
        held = [key for key in world.redis.master.data._live() if ":leader:" in key]
        if held:
            world.fail("a stop releases the latches", str(held))
        if world.files is not None and (left := world.files.open_files()):
            world.fail("nothing is left open", str(left))
        if world.network.listeners:
            world.fail("nothing is left open", str(world.network.listeners))


# ------------------------------------------------------------------ faults of this workload


def _deposed(world: World, name: str, seconds: float) -> bool:
    """Hold back what a process sends, and kill it: its last calls arrive when another one may lead."""
    process = world.find(name)
    if process is None or not world.network.delay(process, seconds):
        return False
    world.kernel.after(min(seconds, HEARTBEATS_S), process.kill)
    return True


def _submit(world: World, client: str, number: int, durations: str, failing: float = 0.0) -> bool:
    """Have a client submit a job; only plans by hand have this.

    Args:
        world: the world.
        client: its name.
        number: of the job, which becomes its id.
        durations: seconds that each task runs, with slashes between them.
        failing: how probable it is that a task fails at its end.
    """
    workload: Cluster = world.kernel.devices["cluster"]
    names = [f"job{task or ''}" for task in range(durations.count("/") + 1)]
    graph = JobGraph.for_script("job", job_id=JobID(f"{number:032x}"), argv=(durations, str(failing)))
    if len(names) > 1:
        sources = [JobVertex(JobVertexID.of("job", name), name, "f:f", VertexRole.SOURCE) for name in names]
        sinks = [
            JobVertex(JobVertexID.of("job", f"to {one.name}"), f"to {one.name}", "f:f", VertexRole.SINK)
            for one in sources
        ]
        edges = tuple(JobEdge(one.id, other.id) for one, other in zip(sources, sinks, strict=True))
        graph = replace(graph, kind=JobKind.PIPELINE, vertices=(*sources, *sinks), edges=edges)
    return workload.order(client, lambda backend: workload._submit_graph(client, backend, graph, random.Random(number)))


def _cancel(world: World, client: str, number: int) -> bool:
    """Have a client cancel a job; only plans by hand have this."""
    workload: Cluster = world.kernel.devices["cluster"]
    return workload.order(client, lambda backend: workload._cancel_job(client, backend, JobID(f"{number:032x}")))


def _at_request(
    world: World,
    name: str,
    command: str,
    text: str,
    count: int,
    outcome: Outcome,
    then: Sequence[tuple[float, str, tuple[Any, ...]]],
) -> bool:
    """Wait for a request to Redis, and let it come to an outcome and further faults happen. No seed draws this one.

    Args:
        world: the world.
        name: part of the name of the process that sends it.
        command: or script.
        text: part of the request.
        count: which of these requests it is, from 1 on.
        outcome: `lose` the request, `lose reply`, `pass`, the seconds by which the reply is late, or `late` and those
            by which the request is late.
        then: faults with the seconds after which each happens. *this* is the process, *here* its host.
    """
    assert world.redis is not None
    waiting, left = world.redis.waiting_faults, count

    def requested(process: SimProcess, shown: str, parts: tuple[Any, ...]) -> Outcome:
        nonlocal left
        if name not in process.name or shown != command or not any(text in str(part) for part in parts):
            return "pass"
        left -= 1
        if left or world.kernel.seconds >= world.quiet_from_s:
            return "pass"
        waiting.remove(requested)
        world.kernel.trace("fault at a request", process.name, outcome)
        meant = {"this": process.name, "here": process.host.name}
        for after_s, kind, args in then:
            fault = Fault(0.0, kind, tuple(meant.get(arg, arg) if isinstance(arg, str) else arg for arg in args))
            world.kernel.after(after_s, fault.apply, world)
        return outcome

    waiting.append(requested)
    return True


def _stop_process(world: World, name: str, driver_close_s: float) -> bool:
    """Stop a process in good order, as SIGTERM does; it starts again. No seed draws this one.

    Args:
        world: the world.
        name: of the process.
        driver_close_s: seconds that a TaskExecutor takes to close its driver from now on.
    """
    process = world.find(name)
    if process is None:
        return False
    workload: Cluster = world.kernel.devices["cluster"]
    workload.driver_close_s = driver_close_s
    workload.stop_process(process)
    return True


def _epoch_repeated(world: World, component: str) -> bool:
    """Let Redis forget the grant to a leader, which ends: its successor gets the same epoch. No seed draws this one.

    A failover does so that forgets a grant, if the clock of the next server is behind.
    """
    assert world.redis is not None
    workload: Cluster = world.kernel.devices["cluster"]
    server, keys = world.redis.master, ClusterKeys(CLUSTER)
    epoch = int(server.data._hash(keys.leader(component)).get("epoch", 0))
    leaders = [
        process
        for endpoint, process in workload.endpoints.items()
        if process.alive and endpoint._term is not None and endpoint._term.epoch == epoch
    ]
    if not leaders:
        return False
    for process in leaders:
        process.kill()
    server.host.jump((epoch - server._milliseconds()) / 1000 - 1.0)
    server.data.values[keys.epoch] = str(epoch - 1)
    server.data._delete(keys.leader(component))
    return True


def _starts_fail(world: World, count: int) -> bool:
    """Let the master fail to start the next JobMasters, as it does if it gets no process. No seed draws this one."""
    workload: Cluster = world.kernel.devices["cluster"]
    workload.failing_starts = count
    return True


add_kinds(
    {
        "deposed": _deposed,
        "submit": _submit,
        "cancel": _cancel,
        "at_request": _at_request,
        "epoch_repeated": _epoch_repeated,
        "starts_fail": _starts_fail,
        "stop_process": _stop_process,
    }
)


# ------------------------------------------------------------------ seams


def _patches(kernel: Any) -> list[Patch]:
    if "cluster" not in kernel.devices:
        return []
    workload: Cluster = kernel.devices["cluster"]
    admit = dispatch_module.Served.admit
    act = LeaderEndpoint.act
    fields, observe = fencing_module.Fence.fields, fencing_module.Fences.observe

    def watched_admit(self: Any, token: Any, spec: Any) -> Any:
        try:
            leadership = admit(self, token, spec)
        except FencingError:
            workload.world.count("refused calls")
            raise
        workload.admitted(self.endpoint, leadership)
        return leadership

    def watched_act(self: LeaderEndpoint, term: LeaderTerm | None = None) -> LeaderTerm:
        own = act(self, term)
        workload.acts(self, term, own)
        return own

    def watched_observe(self: Fences, leadership: Leadership) -> None:
        observe(self, leadership)
        workload.observed(self, leadership)

    def watched_fields(self: Fence) -> tuple[Any, ...]:
        found = fields(self)
        workload.sends(self)
        return found

    def create_services(*_: Any, **__: Any) -> Any:
        async def nothing() -> None:
            return None

        pool = SimpleNamespace(stop=nothing, report=lambda: None)
        host = SimpleNamespace(stop=nothing)
        return SimpleNamespace(pool=pool, task_host=host, blobs=NoBlobs(), libraries=NoBlobs())

    def no_blob_client(*_: Any) -> Any:
        return NoBlobs()

    return [
        (dispatch_module.Served, "admit", watched_admit),
        (LeaderEndpoint, "act", watched_act),
        (fencing_module.Fence, "fields", watched_fields),
        (fencing_module.Fences, "observe", watched_observe),
        (executor_module, "create_services", create_services),
        (executor_module, "MetricsSampler", ModelSampler),
        (executor_module, "blob_client", no_blob_client),
        (deployment_module, "blob_client", no_blob_client),
        (backend_module, "blob_client", no_blob_client),
        (table_module, "Task", ModelTask),
        *patches_of_the_checks(kernel),
    ]


add_patches(_patches)

__all__ = ["Awaitable", "Cluster", "dispatcher_module"]

"""The master: guardian of a cluster's processes, one of several that share a Redis and a runtime directory.

Each master has an actor system with its own Dispatcher, ResourceManager and BlobServer. They contend for leadership
with those of the other masters. Redis and the workers exist once on a machine. The master that holds the claim of such
a process keeps it running, and takes over the processes of a killed master.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import runtime
from actors.errors import ActorError, ActorSystemError, EndpointStateError
from actors.process.host import HostSpec
from actors.process.system import HostedActor, ProcessActorSystem
from actors.receptionist import Listing, Receptionist
from actors.rpc.endpoint import USER, RpcEndpoint
from actors.rpc.gateway import rpc, rpc_sync
from actors.rpc.service import RpcService
from blob.gateway import NAME as BLOB_SERVER
from blob.gateway import BlobAddress, BlobServerGateway
from conf.configuration import Configuration
from conf.options import (
    BlobOptions,
    ClusterOptions,
    DeploymentOptions,
    ExecutionTarget,
    ResourceManagerDriverType,
    ResourceManagerOptions,
    RestOptions,
)
from runtime.cluster.host_processes import fixed_workers
from runtime.cluster.leftovers import collect_orphans, remove_abandoned_sockets, remove_surplus_job_master_logs
from runtime.cluster.supervisor import (
    COMPONENTS,
    WORKER_PREFIX,
    Child,
    ChildRemoved,
    OnDemandWorkers,
    Running,
    Supervisor,
    process_child,
    wait_for_exit,
    worker_child,
)
from runtime.environment.claims import Claim
from runtime.environment.context import ComponentContext, blob_store_url, bound_outputs, has_redis, log_config
from runtime.environment.descriptor import ClusterDescriptor, ProcessRecord
from runtime.environment.directory import ClusterDirectory, ClusterLock
from runtime.errors import ClusterError
from runtime.feature_level import lowest_level, supported_levels
from runtime.ha.errors import FeatureLevelUnsupportedError, HaError, HaUnreachableError
from runtime.ha.feature_level import checked
from runtime.ha.masters import MasterRegistration
from runtime.ha.redis_process import EmbeddedRedis
from runtime.ha.retrieval import LeaderRetrievalService
from runtime.ha.running_jobs import JobSchedulingStatus
from runtime.ha.services import HighAvailabilityServices
from runtime.ids import JobID
from runtime.protocol.archived_execution_graph import ApplicationStatus
from runtime.protocol.leader import (
    DISPATCHER,
    RESOURCE_MANAGER,
    REST_ENDPOINT,
    LeaderInformation,
    LeaderTerm,
    job_master,
)
from runtime.protocol.master import MasterGateway, WorkerProcess
from runtime.protocol.messages import ClusterStatus, ProcessView
from runtime.protocol.web_monitor import RestAddress, WebMonitorGateway

logger = logging.getLogger(__name__)


_EXIT_CODES = {ApplicationStatus.FAILED: 1, ApplicationStatus.UNKNOWN: 2}


@dataclass(frozen=True, slots=True)
class ClusterEntrypoint:
    """A kind of cluster (Flink's `ClusterEntrypoint` and its subclasses).

    A session cluster lives until it is stopped. The others have one application and end after it. For a per-job cluster
    the application is its job, for an application cluster the user's main() with all jobs that it executes. Any master,
    even one that joins later, finds the kind in the cluster's configuration.

    Attributes:
        is_own: whether it has one application, and ends after it.
        dispatcher: factory of its Dispatcher, as an actor's host takes it.
        bootstrap: module of a process that its masters keep running beside its components; empty for none.
    """

    is_own: bool
    dispatcher: str = "runtime.dispatcher.endpoint:create"
    bootstrap: str = ""

    def exit_code(self, status: ApplicationStatus) -> int:
        """Return the exit status of a stopped master.

        0 for a session cluster. Otherwise 0 for SUCCEEDED or CANCELED, 1 for FAILED, 2 for UNKNOWN: Flink's 0, 1443
        and 1445 do not fit into a byte.
        """
        return _EXIT_CODES.get(status, 0) if self.is_own else 0

    def clean_up(self, directory: ClusterDirectory, *, is_forgotten: bool = True) -> None:
        """Remove the files that the ended cluster does not need; called by its last master.

        Args:
            directory: of the cluster.
            is_forgotten: whether the cluster's jobs were removed from Redis. If not, a session cluster keeps its
                files, as after a kill, and `understudy stop` removes both.

        Raises:
            OSError: a file cannot be removed.
        """
        if not (is_forgotten or self.is_own):
            return
        directory.clean()
        if self.is_own:
            directory.discard()


ENTRYPOINTS = {
    ExecutionTarget.SESSION: ClusterEntrypoint(is_own=False),
    ExecutionTarget.PER_JOB: ClusterEntrypoint(is_own=True, dispatcher="runtime.dispatcher.mini_dispatcher:create"),
    ExecutionTarget.APPLICATION: ClusterEntrypoint(is_own=True, bootstrap="runtime.cluster.application_bootstrap"),
}


def entrypoint_of(configuration: Configuration) -> ClusterEntrypoint:
    """Return the kind of cluster that a configuration describes (``execution.target``)."""
    return ENTRYPOINTS[configuration.get(DeploymentOptions.TARGET)]


class LeaderEntry:
    """Enters the leader of a component into the receptionist, so that every living master answers for all components.

    Args:
        receptionist: of this master.
        component: the component.
        retrieval: finds the leader.
        observe: called with each new leadership.

    Attributes:
        address: of the present leader; empty while there is none.
    """

    def __init__(
        self,
        receptionist: Receptionist,
        component: str,
        retrieval: LeaderRetrievalService,
        observe: Callable[[LeaderTerm], None],
    ) -> None:
        self._receptionist = receptionist
        self._observe = observe
        self._path = f"{USER}/{component}"
        self.retrieval = retrieval
        self.address = ""

    def notify_leader_address(self, leader: LeaderInformation | None) -> None:
        """Enter a new leader, or remove the former one; called by the retrieval service."""
        if leader is not None:
            self._observe(leader.term)
            self._receptionist.enter(Listing(self._path, leader.address, 0, leader.term.token))
        elif self.address:
            self._receptionist.deregister(self._path, self.address)
        self.address = "" if leader is None else leader.address

    def handle_error(self, error: Exception) -> None:
        """Log an error that ends the retrieval; called by the retrieval service."""
        logger.error("following the leader of %s failed", self._path, exc_info=error)


class ComponentSpecs:
    """Describes how to start the components of one master.

    Args:
        context: their surroundings.
        suffix: of this master's logs and of its BlobServer's directory; empty for the first one.

    Attributes:
        blob: address of this master's BlobServer, once it has been started.
        rest: address of this master's web endpoint, once it has been started.
    """

    def __init__(self, context: ComponentContext, suffix: str) -> None:
        self._context = context
        self._suffix = suffix
        self.blob: BlobAddress | None = None
        self.rest: RestAddress | None = None

    def _spec(self, name: str, factory: str, arguments: dict[str, Any]) -> HostSpec:
        log = log_config(self._context.configuration, self._context.directory, name + self._suffix)
        return replace(self._context.host_spec(name, factory, **arguments), log=log)

    def blob_server(self) -> HostSpec:
        """Return the spec of the BlobServer, which keeps its port when it is restarted."""
        get, directory = self._context.configuration.get, self._context.directory
        wanted = 0 if self._suffix else get(BlobOptions.SERVER_PORT)
        local = Path(f"{directory.blob}{self._suffix}")
        local.mkdir(mode=0o700, exist_ok=True)
        arguments = {
            "directory": str(local),
            "store": blob_store_url(self._context.configuration),
            "host": get(ClusterOptions.HOST),
            "port": wanted if self.blob is None else self.blob.port,
            "options": {
                "max_connections": get(BlobOptions.MAX_CONNECTIONS),
                "transient_ttl": get(BlobOptions.CLEANUP_TTL),
                "cleanup_interval": get(BlobOptions.CLEANUP_INTERVAL),
                "disk_reserve": get(BlobOptions.DISK_RESERVE),
                "orphan_age": get(BlobOptions.CLEANUP_TTL),
                "timeout": get(BlobOptions.SERVER_SOCKET_TIMEOUT),
                "max_bytes": get(BlobOptions.SERVER_MAX_SIZE),
                "max_bytes_per_job": get(BlobOptions.JOB_MAX_SIZE),
            },
        }
        spec = self._spec(BLOB_SERVER, "runtime.cluster.blob_server:create", {})
        return replace(spec, arguments=arguments)

    def _blob_arguments(self) -> dict[str, Any]:
        if self.blob is None:
            raise ActorError("the BlobServer has not been started")
        host = self._context.configuration.get(ClusterOptions.HOST)
        return {"blob_host": host, "blob_port": self.blob.port}

    def resource_manager(self) -> HostSpec:
        """Return the spec of the ResourceManager."""
        return self._spec(RESOURCE_MANAGER, "runtime.resourcemanager.endpoint:create", self._blob_arguments())

    def dispatcher(self, factory: str, master_address: str) -> HostSpec:
        """Return the spec of the Dispatcher of *factory*; the master at *master_address* starts its JobMasters."""
        arguments = {"master_address": master_address, **self._blob_arguments()}
        return self._spec(DISPATCHER, factory, arguments)

    def web_monitor(self) -> HostSpec:
        """Return the spec of the web endpoint, which keeps its port when it is restarted."""
        arguments = {"port": 0 if self.rest is None else self.rest.port, "others_serve": bool(self._suffix)}
        return self._spec(REST_ENDPOINT, "runtime.rest.endpoint:create", arguments)

    def job_master(self, job_id: JobID) -> HostSpec:
        """Return the spec of the JobMaster of a job."""
        arguments = {"job_id": job_id, **self._blob_arguments()}
        spec = self._spec(job_master(job_id), "runtime.jobmaster.endpoint:create", arguments)
        return replace(spec, prepare="runtime.jobmaster.endpoint:prepare")


REDIS = "redis"
DESCRIPTOR = "descriptor"
APPLICATION = "application"
JOB_MASTER = job_master("")
ELECTED = (DISPATCHER, RESOURCE_MANAGER, REST_ENDPOINT)
CLAIM_INTERVAL_S = 0.25
JOB_MASTER_CHECK_S = 2.0
SPARE_DELAY_S = 0.1


def _is_of_machine(name: str) -> bool:
    """Return whether a child exists once on the machine and ends with the last master."""
    return name.startswith((WORKER_PREFIX, APPLICATION))


class Master(RpcEndpoint, MasterGateway):
    """The guardian as an endpoint: starts, restarts and stops the processes of the cluster.

    Args:
        service: the RPC service at the system's port.
        context: the surroundings of the components.
        system: the actor system that they run in.
        receptionist: the directory that names them.
        redis: the embedded Redis, or None if another one is configured.
        ha: high-availability services; closed with the endpoint.
        claim: its own, with its number.
        lock: of the runtime directory; shows whether other masters run or are being started.
        entrypoint: the kind of its cluster.
        is_member: whether it is one host's master of a cluster on several hosts.

    Attributes:
        application_status: how the application of a per-job or application cluster has ended.
        stop_requested: set when the master is to end.
        failure: why the master ends and leaves the cluster to others; None if a user ends it.
    """

    supervisor_strategy = COMPONENTS

    def __init__(
        self,
        service: RpcService,
        context: ComponentContext,
        system: ProcessActorSystem,
        receptionist: Receptionist,
        redis: EmbeddedRedis | None,
        ha: HighAvailabilityServices,
        claim: Claim,
        lock: ClusterLock,
        entrypoint: ClusterEntrypoint,
        *,
        is_member: bool,
    ) -> None:
        super().__init__(service, "master")
        self._context = context
        self._system = system
        self._receptionist = receptionist
        self._redis = redis
        self._ha = ha
        self._claim = claim
        self._lock = lock
        self._joins = not lock.exclusive
        self._entrypoint = entrypoint
        self._is_member = is_member
        number = claim.path.name.removeprefix("master-")
        self._suffix = "" if number == "0" else f"-{number}"
        self._specs = ComponentSpecs(context, self._suffix)
        self._leaders = {
            component: LeaderEntry(receptionist, component, ha.leader_retrieval(component), self.fences.observe)
            for component in ELECTED
        }
        self._system_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="actor-system")
        self._supervisor = Supervisor(self._process_ended, service.node, self.path)
        driver = context.configuration.get(ResourceManagerOptions.DRIVER)
        self._starts_on_demand = driver is ResourceManagerDriverType.PROCESS
        self._on_demand = OnDemandWorkers(context, self._supervisor)
        self._claims: dict[str, Claim] = {}
        self._looked_after: dict[str, Callable[[Claim], Child]] = {}
        self._job_masters: dict[JobID, asyncio.Lock] = {}
        self._stopping: deque[HostedActor] = deque()
        self._stopped_workers: dict[str, Child] = {}
        self._started_ms = time.time_ns() // 1_000_000
        self._level = lowest_level()
        self._registration: MasterRegistration | None = None
        self._described: tuple[str, ...] = ()
        self._is_up = False
        self._ends_cluster = False
        self.application_status = ApplicationStatus.UNKNOWN
        self.is_forgotten = True
        self.stop_requested = asyncio.Event()
        self.failure: ClusterError | FeatureLevelUnsupportedError | None = None

    # ------------------------------------------------------------------ start, stop

    async def bring_up(self) -> None:
        """Start all components, in the order of their dependencies.

        Raises:
            ClusterError: the master was stopped during the start.
            FeatureLevelUnsupportedError: its release must not work for this cluster.
        """
        self.spawn(self._end_with_system(), "watching the actor system")
        if self._redis is not None:
            redis = self._redis
            await self._look_after(REDIS, lambda claim: self._redis_child(redis))
        if has_redis(self._context.configuration):
            # Before it reads the level: a Dispatcher that raises it asks all registered masters.
            self._registration = MasterRegistration(self._ha, str(self._context.system), self._fail)
            await self._registration.start()
        try:
            self._level = await self._ha.feature_level_store().current()
        except HaUnreachableError as error:
            logger.warning("the cluster's feature level is not known yet: %s", error)  # leaders check it themselves
        for entry in self._leaders.values():
            await entry.retrieval.start(entry)
        self._check_wanted()
        blob = await self._supervisor.add(self._actor_child(BLOB_SERVER, self._specs.blob_server))
        self._specs.blob = await self.service.gateway(blob.address, BlobServerGateway).request_address()
        self._check_wanted()
        await self._supervisor.add(self._actor_child(RESOURCE_MANAGER, self._specs.resource_manager))
        dispatcher = functools.partial(self._specs.dispatcher, self._entrypoint.dispatcher, str(self.address))
        await self._supervisor.add(self._actor_child(DISPATCHER, dispatcher))
        self._check_wanted()
        for index in range(fixed_workers(self._context.configuration)):
            await self._look_after(f"{WORKER_PREFIX}{index}", functools.partial(worker_child, self._context, index))
        if bootstrap := self._entrypoint.bootstrap:
            application = functools.partial(process_child, self._context, APPLICATION, "application", bootstrap, ())
            await self._look_after(APPLICATION, application)
        if self._context.configuration.get(RestOptions.ENABLED):
            await self._supervisor.add(self._actor_child(REST_ENDPOINT, self._specs.web_monitor))
        self._check_wanted()
        self._claim.note(ProcessRecord.of("master", os.getpid()), str(self._context.system))
        self._is_up = True
        self._describe()
        self.spawn(collect_orphans(), "collecting orphans")
        self.spawn(remove_abandoned_sockets(self._context.directory.socket_dir()), "removing abandoned sockets")
        self.spawn(bound_outputs(self._context), "keeping what processes print within bounds")
        self.spawn(self._keep_describing(), "describing the cluster")
        self.spawn(self._stop_idle_job_masters(), "stopping the JobMasters of ended jobs")
        self.spawn(remove_surplus_job_master_logs(self._context, self._ha), "removing logs of forgotten jobs")
        self._keep_spare()

    async def _end_with_system(self) -> None:
        """End this master once the actor system's admin has ended: only a new process can have another one."""
        await wait_for_exit(self._system.admin_pid)
        remedy = "start another master with `understudy start-master`"
        self._fail(ClusterError("the actor system's admin has ended", remedy))

    def _fail(self, error: ClusterError | FeatureLevelUnsupportedError) -> None:
        """End this master, and leave the cluster to another one."""
        logger.critical("this master ends, and leaves the cluster to another one: %s", error)
        self.failure = error
        self.stop_requested.set()

    def _check_wanted(self) -> None:
        if self.failure is not None:
            raise self.failure
        if self.stop_requested.is_set():
            raise ClusterError("the master was stopped while it was starting", "start it again")

    def _check_runs(self) -> None:
        """Refuse to start a process in a master that stops; the next leader starts it at its own master."""
        if self.stop_requested.is_set():
            raise EndpointStateError(f"the master at {self.address} stops, and starts no process any more")

    async def _look_after(self, name: str, child: Callable[[Claim], Child]) -> None:
        """Keep a process of this machine running: now, or once the master that keeps it running has ended."""
        self._looked_after[name] = child
        claim = self._claims[name] = self._context.directory.claim(name)
        if claim.try_acquire():
            await self._supervisor.add(child(claim))
        else:
            self.spawn(self._take_over(name, claim, child), f"waiting to take over {name}")

    async def _take_over(self, name: str, claim: Claim, child: Callable[[Claim], Child]) -> None:
        while not claim.try_acquire():  # noqa: ASYNC110  # a file lock has no event
            await asyncio.sleep(CLAIM_INTERVAL_S)
        logger.warning("the master that kept %s running has ended: this one takes over", name)
        while not self.stop_requested.is_set():
            try:
                await self._supervisor.add(child(claim))
            except ChildRemoved:
                return
            except Exception as error:  # any error: no other master would try again
                logger.error("%s could not be started: %s", name, error)
                await asyncio.sleep(1.0)
            else:
                return

    async def bring_down(self) -> None:
        """Stop this master's processes, and if it is the last master, the cluster; failures to stop one are logged.

        Jobs end only by a request, not by a signal: see `_is_outlived_by_jobs`.

        The last master is the one that holds the lock alone, at once or after its components have ended. Any other
        master leaves the workers and Redis to those that also hold the lock, even if they are still starting. A master
        that could not join a cluster whose masters were all killed leaves them to the next one. So does a master that
        has lost its actor system, or must not work for the cluster any more.
        """
        self.stop_requested.set()
        for task in list(self._spawned):
            task.cancel()
        may_end = self._ends_cluster or (self.failure is None if self._is_up else not self._joins)
        is_last = may_end and self._lock.is_alone()
        if is_last:
            await self._adopt()
        names = list(self._supervisor.children)
        workers = [name for name in names if _is_of_machine(name)]
        jobs = [name for name in names if name.startswith(JOB_MASTER)]
        await self._stop(jobs)
        if is_last:
            await self._stop(workers)
        await self._stop([name for name in reversed(names) if name not in (*workers, *jobs, REDIS)])
        await self.service.loop.run_in_executor(self._system_thread, self._system.shutdown)
        for entry in self._leaders.values():
            await entry.retrieval.stop()
        if self._registration is not None:
            await self._registration.stop()
        if not is_last:
            await self._let_go()
            is_last = self._lock.leave() and may_end
            if is_last:  # the other masters have released their locks too
                await self._adopt()
                await self._stop([name for name in self._supervisor.children if _is_of_machine(name)])
        if is_last and self._is_up:
            if self._ends_cluster or not self._is_outlived_by_jobs():
                await self._clean_up_ha()
            else:
                self.is_forgotten = self._is_member  # its files are not those of the jobs
        await self._ha.close()
        if is_last:
            await self._stop([REDIS])
        self._system_thread.shutdown()

    def _is_outlived_by_jobs(self) -> bool:
        """Return whether jobs stay for masters that start later if a signal stops the last one, e.g. at a reboot.

        Flink keeps them likewise. Nobody starts a per-job or application cluster of one host again.
        """
        return self._is_member or (not self._entrypoint.is_own and has_redis(self._context.configuration))

    async def _stop(self, names: Sequence[str]) -> None:
        outcomes = await asyncio.gather(*(self._supervisor.remove(name) for name in names), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                logger.error("a process could not be stopped: %s", outcome)

    async def _adopt(self) -> None:
        """Take over the processes that other masters have left running on this machine, to end them."""
        if self._starts_on_demand:
            await self._on_demand.list()
        for name, child in self._looked_after.items():
            claim = self._claims[name]
            if name in self._supervisor.children or not claim.try_acquire():
                continue
            if name == REDIS or claim.living() is not None:  # removing the cluster's keys needs a running Redis
                try:
                    await self._supervisor.add(child(claim))
                except Exception as error:  # the others must end all the same
                    logger.error("%s could not be taken over: %s", name, error)

    async def _let_go(self) -> None:
        """Leave the processes of this machine running for the next master that claims them."""
        for name in list(self._supervisor.children):
            await self._supervisor.detach(name)
        self._on_demand.let_go()
        for claim in self._claims.values():
            claim.release()

    async def _clean_up_ha(self) -> None:
        try:
            await self._ha.cleanup()
        except HaError as error:
            self.is_forgotten = False
            logger.error("the cluster's keys stay in Redis: %s", error)

    # -------------------------------------------------------------------- children

    def _actor_child(self, name: str, spec: Callable[[], HostSpec]) -> Child:
        stop = self._stop_with_others if name.startswith(JOB_MASTER) else self._stop_actor
        return Child(name, "actor", lambda: self._start_actor(spec()), stop)

    async def _start_actor(self, spec: HostSpec) -> Running:
        actor = await self.service.loop.run_in_executor(self._system_thread, self._system.start, spec)
        if spec.name == BLOB_SERVER:  # elected components list themselves when they lead
            self._receptionist.enter(Listing(actor.address.path, str(actor.address), actor.pid))
        if spec.name == REST_ENDPOINT:
            self._specs.rest = await self.service.gateway(actor.address, WebMonitorGateway).request_rest_address()
        return Running(actor.pid, str(actor.address), actor)

    async def _stop_actor(self, running: Running) -> None:
        if isinstance(running.handle, HostedActor):
            await self.service.loop.run_in_executor(self._system_thread, self._system.stop, running.handle)
        self._receptionist.forget_process(running.pid)

    async def _stop_with_others(self, running: Running) -> None:
        """Stop a JobMaster together with those whose stop was also requested: each may wait for a Redis that is down.

        The actor system is used by one thread. Its next turn stops all that wait for it.
        """
        self._stopping.append(running.handle)
        await asyncio.sleep(0)  # requests of the same moment get the same turn
        await self.service.loop.run_in_executor(self._system_thread, self._stop_waiting)
        self._receptionist.forget_process(running.pid)

    def _stop_waiting(self) -> None:
        actors = [self._stopping.popleft() for _ in range(len(self._stopping))]
        if actors:
            self._system.stop_all(actors)

    def _redis_child(self, redis: EmbeddedRedis) -> Child:
        async def start() -> Running:
            if redis.pid is None:  # the first one was started before its URL was known
                await redis.start_async()
            return Running(redis.pid or 0, str(redis.socket_path))

        async def stop(_running: Running) -> None:
            await redis.stop_async()

        return Child(REDIS, "redis", start, stop)

    def _process_ended(self, child: Child, pid: int) -> None:
        self._receptionist.forget_process(pid)
        if not child.is_kept:
            self._on_demand.ended(child.name)

    # ----------------------------------------------------------------- JobMasters

    @rpc
    async def start_job_master(self, job_id: JobID) -> str:
        name = job_master(job_id)
        async with self._job_masters.setdefault(job_id, asyncio.Lock()):
            child = self._supervisor.children.get(name)
            if child is None:
                self._check_runs()
                spec = self._actor_child(name, lambda: self._specs.job_master(job_id))
                try:
                    address = (await self._supervisor.add(spec)).address
                except ChildRemoved:  # by the stop of this master
                    self._check_runs()
                    raise
                self.schedule_run_async(SPARE_DELAY_S, self._keep_spare)
                return address
            return "" if child.running is None else child.running.address

    def _keep_spare(self) -> None:
        """Start a spare process for the JobMaster of the next job."""
        if not self.stop_requested.is_set():
            self.spawn(self._start_spare(), "starting a spare process")

    async def _start_spare(self) -> None:
        spec = self._specs.job_master(JobID.random())
        try:
            await self.service.loop.run_in_executor(self._system_thread, self._system.keep_spare, spec)
        except ActorSystemError as error:
            logger.warning("the next JobMaster starts in a new process: %s", error)

    @rpc
    async def stop_job_master(self, job_id: JobID) -> None:
        await self._stop_job_master(job_id)

    async def _stop_job_master(self, job_id: JobID) -> None:
        async with self._job_masters.setdefault(job_id, asyncio.Lock()):
            await self._supervisor.remove(job_master(job_id))
        self._job_masters.pop(job_id, None)

    async def _stop_idle_job_masters(self) -> None:
        """Stop the JobMasters of ended jobs: a Dispatcher stops only those of its own master."""
        registry = self._ha.running_jobs_registry()
        while True:
            await asyncio.sleep(JOB_MASTER_CHECK_S)
            for name in [name for name in self._supervisor.children if name.startswith(JOB_MASTER)]:
                job_id = JobID(name.removeprefix(JOB_MASTER))
                try:
                    entry = await registry.entry(job_id)
                except HaError as error:
                    logger.debug("it is not known whether job %s is over: %s", job_id, error)
                    continue
                if entry is None or entry.status is JobSchedulingStatus.DONE:
                    await self._stop_job_master(job_id)

    # ---------------------------------------------------------------------- workers

    @rpc
    async def stop_worker(self, name: str) -> bool:
        if self._starts_on_demand:
            return await self._on_demand.stop(name)
        child = self._supervisor.children.get(name)
        if child is not None and child.role == "worker":
            self._stopped_workers[name] = child
            await self._supervisor.remove(name)
        return name in self._stopped_workers

    @rpc
    async def start_worker(self) -> str:
        self._check_runs()
        for name, child in list(self._stopped_workers.items()):
            if name not in self._supervisor.children and child.running is None:
                await self._supervisor.add(child)
                del self._stopped_workers[name]
                return name
        return ""

    @rpc
    async def request_worker(self) -> WorkerProcess:
        self._check_runs()
        return await self._on_demand.start()

    @rpc
    async def request_workers(self) -> list[WorkerProcess]:
        return await self._on_demand.list()

    # -------------------------------------------------------------------- gateway

    @rpc_sync
    def request_status(self) -> ClusterStatus:
        processes = [ProcessView(f"master{self._suffix}", "master", os.getpid(), str(self.address))]
        processes += [self._view(child) for child in self._supervisor.children.values()]
        processes += [
            ProcessView(name, child.role, 0, "", child.restarts, is_stopped=True)
            for name, child in self._stopped_workers.items()
            if name not in self._supervisor.children
        ]
        return ClusterStatus(
            self._context.configuration.get(ClusterOptions.ID),
            runtime.__version__,
            str(self._context.system),
            self._started_ms,
            tuple(processes),
            tuple(self._context.directory.masters().values()),
            supported_levels(),
        )

    def _view(self, child: Child) -> ProcessView:
        pid, address = (0, "") if child.running is None else (child.running.pid, child.running.address)
        entry = self._leaders.get(child.name)
        leadership = "" if entry is None else "leader" if entry.address == address else "standby"
        name = child.name + (self._suffix if child.role == "actor" else "")
        url = self._specs.rest.url if child.name == REST_ENDPOINT and pid and self._specs.rest is not None else ""
        return ProcessView(name, child.role, pid, address, child.restarts, leadership, url=url)

    @rpc_sync
    def notify_feature_level(self, level: int) -> None:
        if level > self._level.number:
            try:
                self._level = checked(level)
            except FeatureLevelUnsupportedError as error:
                self._fail(error)
            else:
                self._describe()

    @rpc_sync
    def shut_down_cluster(self, status: ApplicationStatus = ApplicationStatus.UNKNOWN) -> None:
        logger.info("a request to stop the cluster has arrived (%s)", status.value)
        self._ends_cluster, self.application_status = True, status
        self.stop_requested.set()

    # ----------------------------------------------------------------- cluster.json

    async def _keep_describing(self) -> None:
        claim = self._claims[DESCRIPTOR]
        while True:
            await asyncio.sleep(CLAIM_INTERVAL_S)
            if claim.try_acquire() and tuple(self._context.directory.masters().values()) != self._described:
                self._describe()

    def _describe(self) -> None:
        claim = self._claims.setdefault(DESCRIPTOR, self._context.directory.claim(DESCRIPTOR))
        if not claim.try_acquire():
            return
        directory, configuration = self._context.directory, self._context.configuration
        children = [child for child in self._supervisor.children.values() if child.running is not None]
        records = [ProcessRecord.of("master", os.getpid())]
        for child in children:
            with contextlib.suppress(ProcessLookupError):  # it has just died, and is being restarted
                records.append(ProcessRecord.of(child.name, child.running.pid if child.running else 0))
        self._described = tuple(directory.masters().values())
        directory.write_descriptor(
            ClusterDescriptor(
                cluster_id=configuration.get(ClusterOptions.ID),
                system_address=str(self._context.system),
                started_ms=self._started_ms,
                runtime_dir=str(directory.root),
                log_dir=str(directory.log),
                socket_dir=str(directory.socket_dir()),
                processes=tuple(records),
                versions={"understudy": runtime.__version__, "python": sys.version.split()[0]},
                addresses={child.name: child.running.address for child in children if child.running},
                masters=self._described,
            ),
            self._level,
        )

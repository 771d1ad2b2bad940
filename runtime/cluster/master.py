"""The master: guardian of a cluster's processes. Owns Redis, the actor system, and everything that runs in it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import runtime
from actors.errors import ActorError
from actors.host import HostSpec
from actors.receptionist import Listing, Receptionist
from actors.rpc.endpoint import RpcEndpoint
from actors.rpc.gateway import rpc, rpc_sync
from actors.rpc.service import RpcService
from actors.system import HostedActor, ProcessActorSystem
from blob.gateway import NAME as BLOB_SERVER
from blob.gateway import BlobAddress, BlobServerGateway
from conf.options import (
    BlobOptions,
    ClusterOptions,
    JobManagerOptions,
    TaskManagerOptions,
)
from runtime.cluster.supervisor import Child, Running, Supervisor, terminate
from runtime.environment.context import ComponentContext, blob_store_url, open_ha_services
from runtime.environment.descriptor import ClusterDescriptor, ProcessRecord
from runtime.gateways.master import MasterGateway
from runtime.gateways.messages import ClusterStatus, ProcessView
from runtime.ha.errors import HaError
from runtime.ha.model import DISPATCHER, RESOURCE_MANAGER, job_master
from runtime.ha.redis_process import EmbeddedRedis
from runtime.ids import JobID

log = logging.getLogger(__name__)

REDIS = "redis"
WORKER_STOP_S = 20.0


class Master(RpcEndpoint, MasterGateway):
    """The guardian as an endpoint: starts, watches, restarts and stops the processes of the cluster.

    Args:
        service: the RPC service at the system's port.
        context: the surroundings of the components.
        system: the actor system that they run in.
        receptionist: the directory that names them.
        redis: the embedded Redis, or None when another is configured.
    """

    def __init__(
        self,
        service: RpcService,
        context: ComponentContext,
        system: ProcessActorSystem,
        receptionist: Receptionist,
        redis: EmbeddedRedis | None,
    ) -> None:
        super().__init__(service, "master")
        self._context = context
        self._system = system
        self._receptionist = receptionist
        self._redis = redis
        self._system_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="actor-system")
        self._supervisor = Supervisor(self._process_ended)
        self._blob: BlobAddress | None = None
        self._job_masters: dict[JobID, asyncio.Lock] = {}
        self._started_ms = time.time_ns() // 1_000_000
        self.stop_requested = asyncio.Event()

    # ------------------------------------------------------------------ start, stop

    async def bring_up(self) -> None:
        """Start everything in the order in which it depends on each other."""
        if self._redis is not None:
            await self._supervisor.add(self._redis_child(self._redis))
        blob = await self._supervisor.add(self._actor_child(BLOB_SERVER, self._blob_server_spec))
        self._blob = await self.service.gateway(blob.address, BlobServerGateway).request_address()
        await self._supervisor.add(self._actor_child(RESOURCE_MANAGER, self._resource_manager_spec))
        await self._supervisor.add(self._actor_child(DISPATCHER, self._dispatcher_spec))
        for index in range(self._context.configuration.get(TaskManagerOptions.COUNT)):
            await self._supervisor.add(self._worker_child(index))
        self._write_descriptor()

    async def bring_down(self) -> None:
        """Stop everything: workers first, so that their tasks end, Redis last. What one refuses hinders no other."""
        names = list(self._supervisor.children)
        workers = [name for name in names if name.startswith("taskmanager-")]
        jobs = [name for name in names if name.startswith(job_master(""))]
        others = [name for name in reversed(names) if name not in (*workers, *jobs, REDIS)]
        for group in (jobs, workers, others):
            for outcome in await asyncio.gather(
                *(self._supervisor.remove(name) for name in group), return_exceptions=True
            ):
                if isinstance(outcome, BaseException):
                    log.error("a process could not be stopped: %s", outcome)
        await self.service.loop.run_in_executor(self._system_thread, self._system.shutdown)
        await self._clean_up_ha()
        with contextlib.suppress(KeyError):
            await self._supervisor.remove(REDIS)
        self._system_thread.shutdown()

    async def _clean_up_ha(self) -> None:
        services = await open_ha_services(self._context.configuration)
        try:
            await services.cleanup()
        except HaError as error:
            log.error("the cluster's keys stay in Redis: %s", error)
        finally:
            await services.close()

    # -------------------------------------------------------------------- children

    def _actor_child(self, name: str, spec: Any) -> Child:
        return Child(name, "actor", lambda: self._start_actor(spec()), self._stop_actor)

    async def _start_actor(self, spec: HostSpec) -> Running:
        actor = await self.service.loop.run_in_executor(self._system_thread, self._system.start, spec)
        self._receptionist.enter(Listing(actor.address.path, str(actor.address), actor.pid))
        return Running(actor.pid, str(actor.address), actor)

    async def _stop_actor(self, running: Running) -> None:
        if isinstance(running.handle, HostedActor):
            await self.service.loop.run_in_executor(self._system_thread, self._system.stop, running.handle)
        self._receptionist.forget_process(running.pid)

    def _blob_server_spec(self) -> HostSpec:
        get, directory = self._context.configuration.get, self._context.directory
        port = get(BlobOptions.SERVER_PORT) if self._blob is None else self._blob.port
        spec = self._context.host_spec(BLOB_SERVER, "blob.endpoint:create")
        arguments = {
            "directory": str(directory.blob),
            "store": blob_store_url(self._context.configuration),
            "host": get(JobManagerOptions.RPC_ADDRESS),
            "port": port,
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
        return HostSpec(spec.name, spec.factory, arguments, spec.rpc, spec.secret_file, spec.log)

    def _blob_arguments(self) -> dict[str, Any]:
        if self._blob is None:
            raise ActorError("the BlobServer has not been started")
        host = self._context.configuration.get(JobManagerOptions.RPC_ADDRESS)
        return {"blob_host": host, "blob_port": self._blob.port}

    def _resource_manager_spec(self) -> HostSpec:
        return self._context.host_spec(
            RESOURCE_MANAGER, "runtime.resourcemanager.endpoint:create", **self._blob_arguments()
        )

    def _dispatcher_spec(self) -> HostSpec:
        return self._context.host_spec(
            DISPATCHER,
            "runtime.dispatcher.endpoint:create",
            master_address=str(self.address),
            **self._blob_arguments(),
        )

    def _job_master_spec(self, job_id: JobID) -> HostSpec:
        return self._context.host_spec(
            job_master(job_id), "runtime.jobmaster.endpoint:create", job_id=job_id, **self._blob_arguments()
        )

    def _worker_child(self, index: int) -> Child:
        name = f"taskmanager-{index}"
        command = [sys.executable, "-m", "runtime.cluster.worker", *map(str, self._context.arguments().values())]

        async def start() -> Running:
            path = self._context.directory.log / f"{name}.out"
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as output:  # noqa: ASYNC230, PTH123
                process = subprocess.Popen(  # noqa: ASYNC220  # a fork of some milliseconds, from the main thread
                    [*command, str(index)],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            return Running(process.pid, "", process)

        async def stop(running: Running) -> None:
            await terminate(running.pid, WORKER_STOP_S)

        return Child(name, "worker", start, stop)

    def _redis_child(self, redis: EmbeddedRedis) -> Child:
        async def start() -> Running:
            if redis.pid is None:  # the first one was started before its URL could be known
                await redis.start_async()
            return Running(redis.pid or 0, str(redis.socket_path))

        async def stop(_running: Running) -> None:
            await redis.stop_async()

        return Child(REDIS, "redis", start, stop)

    def _process_ended(self, child: Child, pid: int) -> None:
        self._receptionist.forget_process(pid)

    # -------------------------------------------------------------------- gateway

    @rpc
    async def start_job_master(self, job_id: JobID) -> str:
        name = job_master(job_id)
        async with self._job_masters.setdefault(job_id, asyncio.Lock()):
            child = self._supervisor.children.get(name)
            if child is None:
                return (
                    await self._supervisor.add(self._actor_child(name, lambda: self._job_master_spec(job_id)))
                ).address
            return "" if child.running is None else child.running.address

    @rpc
    async def stop_job_master(self, job_id: JobID) -> None:
        async with self._job_masters.setdefault(job_id, asyncio.Lock()):
            await self._supervisor.remove(job_master(job_id))
        self._job_masters.pop(job_id, None)

    @rpc_sync
    def request_status(self) -> ClusterStatus:
        processes = [ProcessView("master", "master", os.getpid(), str(self.address))]
        processes += [
            ProcessView(
                child.name,
                child.role,
                child.running.pid if child.running else 0,
                child.running.address if child.running else "",
                child.restarts,
            )
            for child in self._supervisor.children.values()
        ]
        return ClusterStatus(
            self._context.configuration.get(ClusterOptions.ID),
            runtime.__version__,
            str(self._context.system),
            self._started_ms,
            tuple(processes),
        )

    @rpc_sync
    def shut_down_cluster(self) -> None:
        log.info("the cluster is asked to stop")
        self.stop_requested.set()

    def _write_descriptor(self) -> None:
        directory, configuration = self._context.directory, self._context.configuration
        children = [child for child in self._supervisor.children.values() if child.running is not None]
        records = [ProcessRecord.of("master", os.getpid())]
        for child in children:
            with contextlib.suppress(ProcessLookupError):  # it died meanwhile, and is being started again
                records.append(ProcessRecord.of(child.name, child.running.pid if child.running else 0))
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
            )
        )

"""Drivers that start and stop workers: those that ask masters for processes, and the choice by the configuration.

One master supervises each worker. A ResourceManager requests workers from the master of its own system.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import Sequence

from actors.address import ActorAddress
from actors.errors import ActorError
from actors.receptionist import ReceptionistGateway, receptionist_of
from actors.rpc.endpoint import RpcEndpoint
from conf.configuration import Configuration
from conf.options import ResourceManagerDriverType, ResourceManagerOptions, TaskManagerOptions
from runtime.environment.context import ComponentContext, wait_for_process
from runtime.environment.directory import ClusterDirectory
from runtime.ids import ResourceID
from runtime.protocol.master import MASTER, MasterGateway, WorkerProcess
from runtime.protocol.resource_manager_driver import DriverError, NoWorkerLeft, OnTerminated, ResourceManagerDriver
from runtime.resourcemanager.worker_allocator import AllocationLimits

logger = logging.getLogger(__name__)

TIMEOUT_S = 120.0  # a worker is stopped with its Spark driver


async def find_master(owner: RpcEndpoint, receptionist: ReceptionistGateway) -> MasterGateway:
    """Return the master of a system; raises `ActorError`."""
    listing = await receptionist.find(MASTER)
    return owner.gateway(listing.address, MasterGateway, timeout_s=TIMEOUT_S)


class StandaloneDriver(ResourceManagerDriver):
    """The workers of `understudy start` (``standalone``): an unused one is stopped, and started when needed.

    Their number is fixed. Their master restarts workers that end, so this driver reports none as terminated.

    Args:
        owner: the ResourceManager, whose leadership is part of requests to masters.
        receptionist: the system's directory, which knows the master.
    """

    def __init__(self, owner: RpcEndpoint, receptionist: ReceptionistGateway) -> None:
        self._owner = owner
        self._receptionist = receptionist

    async def initialize(self, on_terminated: OnTerminated) -> Sequence[ResourceID]:
        """Return none: running workers register by themselves."""
        return ()

    async def request_resource(self) -> ResourceID:
        """Start one of the stopped workers."""
        try:
            name = await (await find_master(self._owner, self._receptionist)).start_worker()
        except ActorError as error:
            raise DriverError(f"no stopped worker was started: {error}") from error
        if not name:
            raise NoWorkerLeft("")
        return ResourceID(name)

    async def release_resource(self, resource_id: ResourceID) -> bool:
        """Stop a worker, until it is needed again."""
        try:
            return await (await find_master(self._owner, self._receptionist)).stop_worker(resource_id)
        except ActorError as error:
            raise DriverError(f"its master does not answer: {error}") from error

    async def stop(self) -> None:
        """Do nothing: this driver watches no process."""


class ProcessDriver(ResourceManagerDriver):
    """Workers as processes of this machine, started when they are needed (``process``).

    The masters of the runtime directory start and stop them. So a worker outlives its ResourceManager, and its master
    too: the next master finds it by its claim. This driver watches them by pidfd, which does not need their parent.

    Args:
        owner: the ResourceManager, whose leadership is part of requests to masters.
        receptionist: of the own system, whose master starts workers.
        system: the own system's address.
        directory: lists the other masters, and contains the workers' output files.
    """

    def __init__(
        self, owner: RpcEndpoint, receptionist: ReceptionistGateway, system: ActorAddress, directory: ClusterDirectory
    ) -> None:
        self._owner = owner
        self._receptionist = receptionist
        self._system = system
        self._directory = directory
        self._on_terminated: OnTerminated = lambda resource_id, cause: None
        self._watches: dict[ResourceID, asyncio.Task[None]] = {}

    async def initialize(self, on_terminated: OnTerminated) -> Sequence[ResourceID]:
        """Return all workers of all masters; the own master takes over those whose master has ended."""
        self._on_terminated = on_terminated
        try:
            own = await find_master(self._owner, self._receptionist)
            found = list(await own.request_workers())
        except ActorError as error:
            raise DriverError(f"the master does not list its workers: {error}") from error
        for receptionist in self._others():
            try:
                found += await (await find_master(self._owner, receptionist)).request_workers()
            except ActorError as error:  # it may be about to end; its workers register even so
                logger.warning("another master does not list its workers: %s", error)
        for worker in found:
            self._watch(worker)
        return [ResourceID(worker.name) for worker in found]

    def _others(self) -> list[ReceptionistGateway]:
        addresses = self._directory.masters().values()
        return [
            receptionist_of(self._owner.service, ActorAddress.parse(one))
            for one in addresses
            if one != str(self._system)
        ]

    async def request_resource(self) -> ResourceID:
        """Start a process with the lowest free number."""
        try:
            worker = await (await find_master(self._owner, self._receptionist)).request_worker()
        except ActorError as error:
            raise DriverError(f"the master started no worker: {error}") from error
        self._watch(worker)
        return ResourceID(worker.name)

    async def release_resource(self, resource_id: ResourceID) -> bool:
        """Have the master that supervises a worker stop it."""
        watch = self._watches.pop(resource_id, None)
        if watch is not None:
            watch.cancel()
        try:
            if await (await find_master(self._owner, self._receptionist)).stop_worker(resource_id):
                return True
            for receptionist in self._others():
                if await (await find_master(self._owner, receptionist)).stop_worker(resource_id):
                    return True
        except ActorError as error:
            raise DriverError(f"its master does not answer: {error}") from error
        return False

    async def stop(self) -> None:
        """Stop watching the workers, which keep running."""
        watches, self._watches = list(self._watches.values()), {}
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)

    def _watch(self, worker: WorkerProcess) -> None:
        name = ResourceID(worker.name)
        former = self._watches.pop(name, None)
        if former is not None:
            former.cancel()
        self._watches[name] = self._owner.service.loop.create_task(
            self._await_end(name, worker.pid), name=f"watch {name}"
        )

    async def _await_end(self, name: ResourceID, pid: int) -> None:
        await wait_for_process(pid)
        del self._watches[name]
        self._on_terminated(name, f"process {pid} has ended{self._last_words(name)}; see {self._log_of(name)}")

    def _log_of(self, name: ResourceID) -> str:
        return f"{self._directory.log / name}*.log"

    def _last_words(self, name: ResourceID) -> str:
        try:
            lines = (self._directory.log / f"{name}.out").read_text(errors="replace").strip().splitlines()
        except OSError:
            return ""
        error = lines[-1] if lines else ""
        return f" ({error.removeprefix('error: ')})" if error.startswith("error: ") else ""


def create_driver(
    owner: RpcEndpoint, receptionist: ReceptionistGateway, context: ComponentContext
) -> ResourceManagerDriver | None:
    """Return the configured driver; None if workers are neither started nor stopped."""
    configuration = context.configuration
    match configuration.get(ResourceManagerOptions.DRIVER):
        case ResourceManagerDriverType.PROCESS:
            return ProcessDriver(owner, receptionist, context.system, context.directory)
        case ResourceManagerDriverType.KUBERNETES:
            from runtime.kubernetes.client import KubernetesApi
            from runtime.kubernetes.driver import KubernetesDriver

            return KubernetesDriver(configuration, KubernetesApi(configuration))
    if configuration.get(ResourceManagerOptions.TASK_MANAGER_TIMEOUT):
        return StandaloneDriver(owner, receptionist)
    return None


def allocation_limits(configuration: Configuration) -> AllocationLimits:
    """Return the limits that the configuration sets for workers."""
    get = configuration.get
    slots, max_slots = get(TaskManagerOptions.NUM_TASK_SLOTS), get(ResourceManagerOptions.MAX_SLOTS)
    kind = get(ResourceManagerOptions.DRIVER)
    is_fixed = kind is ResourceManagerDriverType.STANDALONE
    if max_slots is None and kind is ResourceManagerDriverType.PROCESS:
        max_slots = slots * (os.cpu_count() or 1)
    return AllocationLimits(
        slots_per_worker=slots,
        min_slots=0 if is_fixed else get(ResourceManagerOptions.MIN_SLOTS),
        max_slots=None if is_fixed else max_slots,
        redundant_workers=0 if is_fixed else get(ResourceManagerOptions.REDUNDANT_TASK_MANAGERS),
        idle_timeout_s=get(ResourceManagerOptions.TASK_MANAGER_TIMEOUT) or math.inf,
        registration_timeout_s=get(ResourceManagerOptions.REGISTRATION_TIMEOUT),
        max_failures=get(ResourceManagerOptions.START_WORKER_MAX_FAILURE_RATE),
        retry_interval_s=get(ResourceManagerOptions.START_WORKER_RETRY_INTERVAL),
        recovery_timeout_s=get(ResourceManagerOptions.PREVIOUS_WORKER_RECOVERY_TIMEOUT),
    )

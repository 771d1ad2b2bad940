"""Workers as processes of this machine, started when they are needed (``process``).

The masters of the runtime directory start and stop them, so that a worker outlives its ResourceManager, and its master
too: the next one finds it by its claim. Here they are watched by pidfd, whoever their parent is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from actors.address import ActorAddress
from actors.errors import ActorError
from actors.receptionist import ReceptionistGateway, receptionist_of
from actors.rpc.endpoint import RpcEndpoint
from runtime.environment.context import wait_for_process
from runtime.environment.directory import ClusterDirectory
from runtime.gateways.master import WorkerProcess
from runtime.ids import ResourceID
from runtime.resourcemanager.driver import DriverError, OnTerminated, ResourceManagerDriver
from runtime.resourcemanager.standalone_driver import find_master

log = logging.getLogger(__name__)


class ProcessDriver(ResourceManagerDriver):
    """See the module.

    Args:
        owner: the ResourceManager, under whose leadership masters are asked.
        receptionist: of the own system, whose master starts workers.
        system: the own system's address.
        directory: tells the other masters, and holds what workers wrote when they ended.
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
        """Those whose master is gone belong to this one's from now on."""
        self._on_terminated = on_terminated
        try:
            own = await find_master(self._owner, self._receptionist)
            found = list(await own.request_workers())
        except ActorError as error:
            raise DriverError(f"the master does not tell its workers: {error}") from error
        for receptionist in self._others():
            try:
                found += await (await find_master(self._owner, receptionist)).request_workers()
            except ActorError as error:  # it may be about to end; its workers register all the same
                log.warning("another master does not tell its workers: %s", error)
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
        """A process with the lowest free number."""
        try:
            worker = await (await find_master(self._owner, self._receptionist)).request_worker()
        except ActorError as error:
            raise DriverError(f"the master started no worker: {error}") from error
        self._watch(worker)
        return ResourceID(worker.name)

    async def release_resource(self, resource_id: ResourceID) -> bool:
        """Have whichever master looks after it stop it."""
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
        """The workers run on."""
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

"""The workers that `start` started: one that nobody uses is stopped, and started again (``standalone``).

A worker belongs to whichever master looks after it; a ResourceManager asks that of its own system.
"""

from __future__ import annotations

from collections.abc import Sequence

from actors.errors import ActorError
from actors.receptionist import ReceptionistGateway
from actors.rpc.endpoint import RpcEndpoint
from runtime.gateways.master import MASTER, MasterGateway
from runtime.ids import ResourceID
from runtime.resourcemanager.driver import DriverError, NoWorkerLeft, OnTerminated, ResourceManagerDriver

TIMEOUT_S = 120.0  # a worker is stopped with its Spark driver


async def find_master(owner: RpcEndpoint, receptionist: ReceptionistGateway) -> MasterGateway:
    """The master of a system; raises `ActorError`."""
    listing = await receptionist.find(MASTER)
    return owner.gateway(listing.address, MasterGateway, timeout_s=TIMEOUT_S)


class StandaloneDriver(ResourceManagerDriver):
    """A fixed number of workers. Their master starts again those that end, so none is ever reported as terminated.

    Args:
        owner: the ResourceManager, under whose leadership masters are asked.
        receptionist: the system's directory, which knows the master.
    """

    def __init__(self, owner: RpcEndpoint, receptionist: ReceptionistGateway) -> None:
        self._owner = owner
        self._receptionist = receptionist

    async def initialize(self, on_terminated: OnTerminated) -> Sequence[ResourceID]:
        """Those that run come by themselves."""
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
        """Nothing is watched."""

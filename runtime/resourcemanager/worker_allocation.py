"""Stopping workers that nobody uses, and starting them again (Flink's `ResourceManagerDriver`).

A worker belongs to whichever master looks after it; a ResourceManager asks that of its own system.
"""

from __future__ import annotations

import asyncio
import logging
import time

from actors.errors import ActorError
from actors.receptionist import ReceptionistGateway
from actors.rpc.service import RpcService
from runtime.gateways.master import MasterGateway
from runtime.ids import ResourceID

MASTER = "/user/master"
TIMEOUT_S = 120.0  # a worker is stopped with its Spark driver, and started with it

log = logging.getLogger(__name__)


class WorkerAllocation:
    """The workers of the master.

    Args:
        service: the RPC service of the process.
        receptionist: the system's directory, which knows the master.
    """

    def __init__(self, service: RpcService, receptionist: ReceptionistGateway) -> None:
        self._service = service
        self._receptionist = receptionist
        self._starting = asyncio.Lock()
        self._coming = ""
        self._coming_until = 0.0

    async def _master(self) -> MasterGateway:
        listing = await self._receptionist.find(MASTER)
        return self._service.gateway(listing.address, MasterGateway, timeout_s=TIMEOUT_S)

    async def stop(self, resource_id: ResourceID, idle_s: float) -> bool:
        """Stop a worker that nobody has used for *idle_s* seconds; returns whether it is stopped."""
        try:
            stopped = await (await self._master()).stop_worker(resource_id)
        except ActorError as error:
            log.warning("TaskExecutor %s, which nobody uses, was not stopped: %s", resource_id, error)
            return False
        if stopped:
            log.info("TaskExecutor %s was stopped: nobody had used it for %g s", resource_id, idle_s)
        return stopped

    async def start(self) -> None:
        """Start one of the stopped workers, if there is one, and not while one that was started has yet to register."""
        if self._starting.locked() or (self._coming and time.monotonic() < self._coming_until):
            return
        async with self._starting:
            try:
                self._coming = await (await self._master()).start_worker()
            except ActorError as error:
                log.warning("no further TaskExecutor was started: %s", error)
                return
        if self._coming:
            self._coming_until = time.monotonic() + TIMEOUT_S
            log.info("TaskExecutor %s was started: requests wait for slots", self._coming)

    def has_come(self, resource_id: ResourceID) -> None:
        """A TaskExecutor has registered."""
        if self._coming == resource_id:
            self._coming = ""

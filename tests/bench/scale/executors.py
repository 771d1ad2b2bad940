"""Many TaskExecutors in one process: the true gateway, registration and slot table, and no Spark."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import runtime
from actors.rpc.endpoint import RpcEndpoint
from actors.rpc.gateway import Ask, RpcGateway, rpc, rpc_sync
from actors.rpc.service import RpcService
from runtime.environment.context import ComponentContext
from runtime.ha.services import HighAvailabilityServices
from runtime.ids import AllocationID, JobID, ResourceID, SlotID
from runtime.protocol.diagnostics import TaskManagerMetrics
from runtime.protocol.messages import LeaderAddress, TaskExecutorHeartbeat, TaskExecutorRegistration
from runtime.protocol.task_executor import TaskExecutorGateway
from runtime.taskexecutor.connections import ResourceManagerConnection
from runtime.taskexecutor.slot_table import TaskSlotTable
from runtime.taskexecutor.worker_files import RegistrationState
from tests.bench.scale.stubs import refuses_the_rest

SLOTS = 4
SILENCE_S = 120.0
METRICS = TaskManagerMetrics(60_000_000, 1.5, 12, 40, 900_000_000, 20.0, 0)


@refuses_the_rest
class LightTaskExecutor(RpcEndpoint, TaskExecutorGateway):
    """Registers, heartbeats, gives its slots and takes them back."""

    def __init__(
        self, service: RpcService, ha: HighAvailabilityServices, resource_id: ResourceID, directory: Path
    ) -> None:
        super().__init__(service, f"taskmanager-{resource_id}")
        self.resource_id = resource_id
        self.slots = TaskSlotTable(resource_id, SLOTS)
        self.registrations = 0
        self._resource_manager = ResourceManagerConnection(
            self, ha, self.slots, lambda: self.registration, SILENCE_S, self._registered, RegistrationState(directory)
        )

    @property
    def registration(self) -> TaskExecutorRegistration:
        """What it says of itself."""
        return TaskExecutorRegistration(
            resource_id=self.resource_id,
            address=str(self.address),
            pid=os.getpid(),
            slots=SLOTS,
            spark_version="4.1.0",
            java_version="21",
            spark_master="local[2]",
            spark_pid=os.getpid(),
            memory_bytes=1 << 30,
            version=runtime.__version__,
        )

    def _registered(self, _success: object) -> None:
        self.registrations += 1

    async def on_start(self) -> None:
        await self._resource_manager.start()

    async def on_stop(self) -> None:
        await self._resource_manager.stop()

    @rpc_sync
    def heartbeat_from_resource_manager(self) -> TaskExecutorHeartbeat:
        self._resource_manager.heard()
        return TaskExecutorHeartbeat(self.slots.report(), METRICS)

    @rpc_sync
    def request_slot(
        self,
        slot_id: SlotID,
        job_id: JobID,
        allocation_id: AllocationID,
        job_master: LeaderAddress,
        owner: str | None = None,
    ) -> None:
        self.slots.allocate(slot_id, job_id, allocation_id, owner)
        self.allocated(job_id, allocation_id)

    def allocated(self, job_id: JobID, allocation_id: AllocationID) -> None:
        """Called after a slot was given to a job; this one does not use it."""

    def free_all(self) -> None:
        """Free every slot, and say so for each, as a TaskExecutor does."""
        for status in self.slots.report().slots:
            if status.allocation_id is not None:
                self.slots.free(status.allocation_id)
                self._resource_manager.slots_changed()


class ExecutorsGateway(RpcGateway):
    """How the benchmark orders TaskExecutors."""

    def add(self, numbers: list[int]) -> Ask[None]:
        """Start more, named by their numbers; answered when all are registered."""
        raise NotImplementedError

    def free_all(self) -> Ask[None]:
        """Free all slots of all of them."""
        raise NotImplementedError

    def close_all(self) -> Ask[None]:
        """End all, in good order."""
        raise NotImplementedError


class Executors(RpcEndpoint, ExecutorsGateway):
    """The TaskExecutors of one process. Each has an RPC service, and so sockets, of its own."""

    def __init__(self, service: RpcService, name: str, ha: HighAvailabilityServices, directory: Path) -> None:
        super().__init__(service, name)
        self._ha = ha
        self._directory = directory
        self._executors: list[LightTaskExecutor] = []

    @rpc
    async def add(self, numbers: list[int]) -> None:
        config = replace(self.service.config, port=0)
        for number in numbers:
            service = RpcService(self.service.loop, self.service.secret, config)
            await service.listen()
            resource_id = ResourceID(f"tm-{number}")
            own = self._directory / resource_id
            own.mkdir(mode=0o700)
            executor = LightTaskExecutor(service, self._ha, resource_id, own)
            await service.start_server(executor)
            self._executors.append(executor)
        while not all(executor.registrations for executor in self._executors):  # noqa: ASYNC110  # a condition of many
            await asyncio.sleep(0.02)

    @rpc
    async def free_all(self) -> None:
        for executor in self._executors:
            executor.free_all()
            await asyncio.sleep(0)

    @rpc
    async def close_all(self) -> None:
        while self._executors:
            await self._executors.pop().service.close()

    async def on_stop(self) -> None:
        await self.close_all()
        await self._ha.close()


async def create(service: RpcService, name: str, *, runtime_dir: str, system: str) -> Executors:
    """Factory for the actor's host."""
    context = ComponentContext.read(runtime_dir, system)
    return Executors(service, name, await context.ha_services(service), Path(runtime_dir))

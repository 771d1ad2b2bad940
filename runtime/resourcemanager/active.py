"""Carries out the decisions of the `WorkerAllocator` with a driver (Flink's `ActiveResourceManager`)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from actors.rpc.endpoint import RpcEndpoint
from runtime.ids import InstanceID, ResourceID
from runtime.protocol.resource_manager_driver import DriverError, NoWorkerLeft, ResourceManagerDriver
from runtime.protocol.slots import SlotManagerInstruction
from runtime.resourcemanager.slot_manager import SlotManager
from runtime.resourcemanager.worker_allocator import (
    AllocationLimits,
    GiveUpWorker,
    ReleaseWorker,
    StartWorker,
    WorkerAllocator,
)

logger = logging.getLogger(__name__)


class ActiveResourceManager:
    """The workers of one term of leadership.

    Args:
        endpoint: the ResourceManager, in whose event loop this works.
        driver: starts and stops workers, in all terms; None if workers are neither started nor stopped.
        limits: set by the configuration.
        slots: the slots of this term.
        on_stopped: called with the registration of a worker that was stopped, and the reason.
        carry_out: called with instructions of *slots*.
        may_act: returns whether the leadership still holds, by the clock.
        on_change: called after a change that may lead to new decisions.
    """

    def __init__(
        self,
        endpoint: RpcEndpoint,
        driver: ResourceManagerDriver | None,
        limits: AllocationLimits,
        slots: SlotManager,
        on_stopped: Callable[[InstanceID, str], None],
        carry_out: Callable[[list[SlotManagerInstruction]], None],
        may_act: Callable[[], bool],
        on_change: Callable[[], None],
    ) -> None:
        self._endpoint = endpoint
        self._driver = driver
        self._allocator = WorkerAllocator(limits)
        self._slots = slots
        self._on_stopped = on_stopped
        self._carry_out = carry_out
        self._may_act = may_act
        self._on_change = on_change
        self._releasing: set[ResourceID] = set()
        self._recovering: asyncio.Task[None] | None = None
        self._ended = False

    def start(self) -> None:
        """Begin to look for the workers of an earlier leader; retry until the driver answers."""
        if self._driver is not None:
            self._recovering = self._endpoint.spawn(self._recover(self._driver), "recovering workers")

    async def stop(self) -> None:
        """End this term; the workers keep running for the next leader."""
        self._ended = True
        if self._recovering is not None:
            self._recovering.cancel()
            await asyncio.gather(self._recovering, return_exceptions=True)
        if self._driver is not None:
            await self._driver.stop()

    def refuse_all(self) -> None:
        """Start and stop no more workers, since the cluster is about to be shut down."""
        self._ended = True

    async def _recover(self, driver: ResourceManagerDriver) -> None:
        while not self._ended:
            try:
                workers = await driver.initialize(self._terminated)
            except DriverError as error:
                logger.warning("the workers of an earlier leader are not known yet: %s", error)
                self._allocator.recovery_failed(str(error))
                self._on_change()
                await asyncio.sleep(self._allocator.limits.retry_interval_s)
                continue
            self._allocator.recovered(workers, time.monotonic())
            if workers:
                logger.info("found running: %s", ", ".join(workers))
            self._on_change()
            return

    # ------------------------------------------------------------------- events

    def registered(self, resource_id: ResourceID) -> None:
        """Note a TaskExecutor that has registered, with its slots."""
        self._allocator.registered(resource_id)

    def unregistered(self, resource_id: ResourceID) -> None:
        """Note the end of a TaskExecutor's registration."""
        if resource_id in self._releasing:
            self._allocator.terminated(resource_id, "it was stopped", time.monotonic())
        else:
            self._allocator.unregistered(resource_id, time.monotonic())

    def _terminated(self, resource_id: ResourceID, cause: str) -> None:
        if not self._ended:
            logger.warning("worker %s has ended: %s", resource_id, cause)
            self._allocator.terminated(resource_id, cause, time.monotonic())
            self.decide()
            self._on_change()

    # ---------------------------------------------------------------- decisions

    def decide(self) -> None:
        """Start and stop workers as due, and set the outlook for waiting requests."""
        if self._ended or self._driver is None or not self._may_act():
            return
        now = time.monotonic()
        slots = self._slots
        for decision in self._allocator.decide(slots.waiting, slots.registered_workers(now), now, slots.stuck):
            match decision:
                case StartWorker():
                    self._endpoint.spawn(self._request(self._driver, decision.request), "starting a worker")
                case ReleaseWorker():
                    self._slots.release_task_manager(decision.instance_id)
                    self._endpoint.spawn(self._release(self._driver, decision), f"stopping {decision.resource_id}")
                case GiveUpWorker():
                    logger.error("%s did not register within %.0f s: given up", decision.resource_id, decision.waited_s)
                    name = decision.resource_id
                    self._endpoint.spawn(self._release_by(self._driver, name), f"stopping {name}")
        words = (self._allocator.outlook(now), self._driver.hindrance() if self._allocator.pending_workers else "")
        self._slots.outlook = "; ".join(filter(None, words))

    def next_deadline(self) -> float | None:
        """Return the monotonic time in seconds at which `decide` has to be called next; None for never.

        Events may make an earlier call necessary.
        """
        if self._ended or self._driver is None:
            return None
        now = time.monotonic()
        return self._allocator.next_deadline(self._slots.registered_workers(now), now)

    async def _request(self, driver: ResourceManagerDriver, request: int) -> None:
        try:
            resource_id = await driver.request_resource()
        except NoWorkerLeft as error:
            self._allocator.none_left(request, str(error), time.monotonic())
        except DriverError as error:
            logger.error("no further worker was started: %s", error)
            self._allocator.request_failed(request, str(error), time.monotonic())
        else:
            logger.info("worker %s is being started", resource_id)
            self._allocator.requested(request, resource_id, time.monotonic())
        self._on_change()

    async def _release(self, driver: ResourceManagerDriver, decision: ReleaseWorker) -> None:
        name = decision.resource_id
        self._releasing.add(name)
        try:
            if await self._release_by(driver, name):
                logger.info("worker %s was stopped: no job had used it for %g s", name, decision.idle_s)
                self._on_stopped(decision.instance_id, "no job used it")
                self._allocator.terminated(name, "no job used it", time.monotonic())
            elif not self._ended:
                self._carry_out(self._slots.keep_task_manager(decision.instance_id))
        finally:
            self._releasing.discard(name)
            self._on_change()

    async def _release_by(self, driver: ResourceManagerDriver, resource_id: ResourceID) -> bool:
        try:
            return await driver.release_resource(resource_id)
        except DriverError as error:
            logger.warning("worker %s was not stopped: %s", resource_id, error)
            return False

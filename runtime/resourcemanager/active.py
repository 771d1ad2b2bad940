"""Carries out what the `WorkerAllocator` decides, by a driver (Flink's `ActiveResourceManager`)."""

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
        endpoint: the ResourceManager, whose loop it works in.
        driver: starts and stops workers; of all terms. None: workers are what they are, and nothing is done.
        limits: what the configuration says.
        slots: the book of slots of this term.
        on_stopped: told the registration of a worker that was stopped.
        carry_out: told what the book of slots has to be done.
        may_act: whether the leadership holds, by the clock of this moment.
        on_change: called when something has changed that `decide` may go on from.
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
        """Look for the workers of an earlier leader, as often as it takes."""
        if self._driver is not None:
            self._recovering = self._endpoint.spawn(self._recover(self._driver), "recovering workers")

    async def stop(self) -> None:
        """Leave the workers to the next leader."""
        self._ended = True
        if self._recovering is not None:
            self._recovering.cancel()
            await asyncio.gather(self._recovering, return_exceptions=True)
        if self._driver is not None:
            await self._driver.stop()

    def refuse_all(self) -> None:
        """The cluster is about to be shut down: nothing is started any more."""
        self._ended = True

    async def _recover(self, driver: ResourceManagerDriver) -> None:
        while not self._ended:
            try:
                workers = await driver.initialize(self._terminated)
            except DriverError as error:
                logger.warning("the workers of an earlier leader cannot be known yet: %s", error)
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
        """A TaskExecutor has registered, with its slots."""
        self._allocator.registered(resource_id)

    def unregistered(self, resource_id: ResourceID) -> None:
        """A TaskExecutor is gone."""
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
        """Start and stop what is due, and say what those who wait may hope for."""
        if self._ended or self._driver is None or not self._may_act():
            return
        now = time.monotonic()
        for decision in self._allocator.decide(self._slots.waiting, self._slots.registered_workers(now), now):
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
        """When `decide` has to be called by the passing of time alone, in monotonic seconds; None: never."""
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
                logger.info("worker %s was stopped: nobody had used it for %g s", name, decision.idle_s)
                self._on_stopped(decision.instance_id, "nobody used it")
                self._allocator.terminated(name, "nobody used it", time.monotonic())
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

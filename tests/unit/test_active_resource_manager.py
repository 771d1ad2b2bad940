"""What becomes of the allocator's decisions when the driver fails, is slow, or is told to stop; a worker left alone."""

from __future__ import annotations

import asyncio
import logging
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock, create_autospec

import pytest

from actors.rpc.endpoint import RpcEndpoint
from conf.configuration import Configuration
from runtime.ha.services import HighAvailabilityServices
from runtime.ids import AllocationID, InstanceID, JobID, ResourceID, SlotID
from runtime.protocol.messages import TaskExecutorRegistration
from runtime.protocol.resource_manager_driver import DriverError, OnTerminated, ResourceManagerDriver
from runtime.protocol.slots import SlotReport, SlotRequest, SlotStatus
from runtime.resourcemanager.active import ActiveResourceManager
from runtime.resourcemanager.endpoint import ResourceManager
from runtime.resourcemanager.slot_manager import SlotManager
from runtime.resourcemanager.worker_allocator import AllocationLimits
from runtime.taskexecutor.connections import ResourceManagerConnection
from runtime.taskexecutor.slot_table import TaskSlotTable
from runtime.taskexecutor.worker_files import RegistrationState

NAME = ResourceID("tm-1")
INSTANCE = InstanceID("1" * 32)
REQUEST = SlotRequest(JobID("a" * 32), AllocationID("b" * 32), "flights", "join")


class Endpoint:
    """As much of one as has work done beside its messages."""

    log = logging.getLogger("test")

    def spawn(self, work: Any, what: str) -> asyncio.Task[Any]:
        return asyncio.get_running_loop().create_task(work, name=what)


class Driver(ResourceManagerDriver):
    """Does what the test says, and notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.errors: list[DriverError] = []
        self.stops = True
        self.on_terminated: OnTerminated | None = None

    def _note(self, what: str) -> None:
        self.asked.append(what)
        if self.errors:
            raise self.errors.pop(0)

    async def initialize(self, on_terminated: OnTerminated) -> Sequence[ResourceID]:
        self.on_terminated = on_terminated
        self._note("initialize")
        return ()

    async def request_resource(self) -> ResourceID:
        self._note("request")
        return NAME

    async def release_resource(self, resource_id: ResourceID) -> bool:
        self._note(f"release {resource_id}")
        return self.stops

    async def stop(self) -> None:
        self.asked.append("stop")

    def hindrance(self) -> str:
        return "no node"


class Books:
    """A manager with its book of slots, and the registrations that it ended."""

    def __init__(self, driver: Driver | None, retry_interval_s: float = 3600.0, **limits: Any) -> None:
        self.slots = SlotManager(100.0)
        self.ended: list[InstanceID] = []
        self.leads = True
        self.manager = ActiveResourceManager(
            cast(RpcEndpoint, Endpoint()),
            driver,
            AllocationLimits(slots_per_worker=1, retry_interval_s=retry_interval_s, **limits),
            self.slots,
            lambda instance_id, reason: self.ended.append(instance_id),
            lambda instructions: None,
            lambda: self.leads,
            lambda: None,
        )

    async def begun(self) -> ActiveResourceManager:
        self.manager.start()
        await settled()
        return self.manager

    def register(self) -> None:
        report = SlotReport((SlotStatus(SlotID(NAME, 0)),))
        self.slots.register_task_manager(INSTANCE, NAME, "address", report)
        self.manager.registered(NAME)

    def reason(self) -> str:
        return str(self.slots.waiting_reason(REQUEST.allocation_id))


async def settled() -> None:
    """All tasks have come as far as they can without time."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_request_starts_a_worker_once_and_says_what_keeps_it() -> None:
    driver = Driver()
    books = Books(driver)
    manager = await books.begun()
    books.slots.register_slot_request(REQUEST, 0.0)
    manager.decide()
    await settled()
    manager.decide()
    assert driver.asked == ["initialize", "request"]
    assert books.reason().endswith("1 worker(s) are being started; no node")
    assert driver.on_terminated is not None
    driver.on_terminated(NAME, "OOMKilled")
    await settled()
    assert driver.asked == ["initialize", "request", "request"], "another one in its place, at once"
    manager.refuse_all()
    driver.on_terminated(NAME, "the cluster is being shut down")
    manager.decide()
    assert driver.asked[2:] == ["request"]
    await manager.stop()


async def test_a_worker_is_coming_until_its_slots_are_known() -> None:
    """It registers, and tells its slots in a second call: nobody else is started between the two."""
    driver = Driver()
    books = Books(driver, max_slots=1)
    manager = await books.begun()
    books.slots.register_slot_request(REQUEST, 0.0)
    manager.decide()
    instance = Mock(resource_id=NAME, registration=Mock(pid=1, slots=1, address="address"))
    endpoint: Any = SimpleNamespace(
        log=Endpoint.log,
        _workers=manager,
        _worker_heartbeats=None,
        _instances=Mock(get=lambda instance_id: instance),
        _slots=books.slots,
        _carry_out=lambda instructions: None,
    )
    await settled()
    ResourceManager.new_instance_available(endpoint, instance)
    manager.decide()
    await settled()
    assert driver.asked == ["initialize", "request"], "there may be one"
    assert books.reason().endswith("1 worker(s) are being started; no node")
    ResourceManager.send_slot_report(endpoint, INSTANCE, SlotReport((SlotStatus(SlotID(NAME, 0)),)))
    manager.decide()
    await settled()
    assert driver.asked == ["initialize", "request"]
    assert [worker.resource_id for worker in books.slots.registered_workers(0.0)] == [NAME]
    assert not books.slots.waiting
    await manager.stop()


async def test_a_driver_that_cannot_begin_is_asked_again_and_says_why() -> None:
    driver = Driver()
    driver.errors = [DriverError("the API server is away")] * 1000
    books = Books(driver, retry_interval_s=0.01)
    manager = await books.begun()
    books.slots.register_slot_request(REQUEST, 0.0)
    manager.decide()
    assert "the API server is away" in books.reason()
    while driver.asked.count("initialize") < 2:  # noqa: ASYNC110  # it is asked again after the retry interval
        await asyncio.sleep(0.005)
    await manager.stop()


async def test_what_the_driver_refuses_is_told() -> None:
    driver = Driver()
    books = Books(driver, max_failures=0)
    manager = await books.begun()
    driver.errors = [DriverError("the quota is exceeded")]
    books.slots.register_slot_request(REQUEST, 0.0)
    manager.decide()
    await settled()
    manager.decide()
    assert "the quota is exceeded" in books.reason()
    await manager.stop()


@pytest.mark.parametrize("outcome", ["stopped", "not ours", "unknown"])
async def test_an_idle_worker_that_cannot_be_stopped_is_used_again(outcome: str) -> None:
    driver = Driver()
    books = Books(driver, idle_timeout_s=0.0)
    manager = await books.begun()
    books.register()
    driver.stops = outcome == "stopped"
    driver.errors = [DriverError("its master does not answer")] if outcome == "unknown" else []
    manager.decide()
    assert books.slots.register_slot_request(REQUEST, 0.0) == [], "it is being stopped: given to nobody"
    await settled()
    assert driver.asked[1:] == [f"release {NAME}"]
    assert books.ended == ([INSTANCE] if outcome == "stopped" else [])
    assert books.slots.waiting == (1 if outcome == "stopped" else 0), "it is given to who waits, or is gone"
    await manager.stop()


async def test_without_a_driver_nothing_is_done_and_nothing_said() -> None:
    books = Books(None, idle_timeout_s=0.0, min_slots=5)
    manager = await books.begun()
    books.slots.register_slot_request(REQUEST, 0.0)
    manager.decide()
    await manager.stop()
    assert "start the cluster again" in books.reason()


async def test_a_worker_that_was_started_on_demand_ends_when_no_resource_manager_is_left(
    tmp_path: Path,
) -> None:
    ha = create_autospec(HighAvailabilityServices, instance=True)
    endpoint: Any = create_autospec(RpcEndpoint, instance=True)
    endpoint.service, endpoint.log = None, logging.getLogger("test")
    slots, registration = TaskSlotTable(NAME, 1), create_autospec(TaskExecutorRegistration)
    connection = ResourceManagerConnection(
        endpoint, ha, slots, lambda: registration, 1.0, lambda success: None, RegistrationState(tmp_path)
    )
    process = subprocess.Popen(["/bin/sleep", "600"])  # noqa: ASYNC220  # a fork of some milliseconds
    try:
        fixed = Configuration.from_dict({"taskmanager.registration.timeout": "1s"})
        await connection.end_when_abandoned(fixed, process.pid)
        assert process.poll() is None, "one of `start` waits for ever"
        on_demand = Configuration.from_dict(
            {"taskmanager.registration.timeout": "1s", "resourcemanager.driver": "process"}
        )
        watching = asyncio.create_task(connection.end_when_abandoned(on_demand, process.pid))
        for _ in range(30):
            connection.heard()
            await asyncio.sleep(0.05)
        assert process.poll() is None, "it was heard of all the time"
        await watching
        assert await asyncio.to_thread(process.wait, 60) == -15
    finally:
        process.kill()
        process.wait()

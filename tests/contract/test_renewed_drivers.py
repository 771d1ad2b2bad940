"""A TaskExecutor keeps to one user: it refuses slots to others, remembers that, and renews its driver on request."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from unittest.mock import AsyncMock, Mock, create_autospec

import pytest

from actors.errors import RecipientTerminated
from actors.receptionist import ReceptionistGateway
from actors.rpc.fencing import Leadership
from actors.rpc.gateway import FencingToken
from actors.rpc.service import RpcConfig, RpcService
from conf.configuration import Configuration
from runtime.ha.services import HighAvailabilityServices, LeaderRetrievalService
from runtime.ids import AllocationID, JobID, ResourceID, SlotID
from runtime.protocol.errors import SlotOccupiedError
from runtime.protocol.leader import RESOURCE_MANAGER
from runtime.protocol.messages import LeaderAddress
from runtime.protocol.task_executor import TaskExecutorGateway
from runtime.taskexecutor.endpoint import TaskExecutor
from runtime.taskexecutor.slot_table import UNKNOWN_USER
from runtime.taskexecutor.worker_files import DriverUser
from tests.acting import acting
from tests.waiting import PATIENCE_S

NAME = ResourceID("tm")
SLOTS = SlotID(NAME, 0), SlotID(NAME, 1)
JOBS = JobID("a" * 32), JobID("b" * 32)
ALLOCATIONS = AllocationID("1" * 32), AllocationID("2" * 32)
MASTER = LeaderAddress("akka.tcp://u@127.0.0.1:1/user/jm", FencingToken(7, "s"))
START = 17


class QuietTaskExecutor(TaskExecutor):
    """A TaskExecutor without Spark, a zygote, or registrations of its own."""

    async def on_start(self) -> None:
        pass

    async def on_stop(self) -> None:
        pass


class Executors:
    """Makes TaskExecutors of one worker, one after the other: each adopts the driver."""

    def __init__(self, service: RpcService, directory: Path) -> None:
        self.service = service
        self.directory = directory
        self.killed = asyncio.Event()
        self.made = 0

    async def start(
        self, *, pid: int = os.getpid(), is_ours: bool = True, **settings: str
    ) -> tuple[QuietTaskExecutor, TaskExecutorGateway]:
        driver = AsyncMock()
        driver.info.pid, driver.info.start_time, driver.is_ours = pid, START, is_ours
        driver.info.log_file = str(self.directory / "spark.log")
        driver.kill = Mock(side_effect=lambda why: self.killed.set())
        ha = create_autospec(HighAvailabilityServices, instance=True)
        ha.leader_retrieval.side_effect = lambda _: create_autospec(LeaderRetrievalService, instance=True)
        self.made += 1
        executor = QuietTaskExecutor(
            self.service,
            ResourceID(f"tm{'' if self.made == 1 else self.made}"),
            ha,
            create_autospec(ReceptionistGateway, instance=True),
            Configuration.from_dict({"taskmanager.numberOfTaskSlots": "2", **settings}),
            driver,
            self.directory,
            False,
            self.directory / "log",
            1,
        )
        await self.service.start_server(executor)
        leadership = acting(Leadership(RESOURCE_MANAGER, 5, "m"))
        return executor, self.service.gateway(executor.address, TaskExecutorGateway, leadership)


@pytest.fixture
async def executors(tmp_path: Path) -> AsyncIterator[Executors]:
    service = RpcService(asyncio.get_running_loop(), b"s" * 32, RpcConfig())
    await service.listen()
    yield Executors(service, tmp_path)
    await service.close()


async def test_a_second_user_is_refused_and_the_first_is_reported(executors: Executors) -> None:
    executor, gateway = await executors.start()
    assert executor.registration.serves_one_user
    assert executor.slots.report().user is None
    await gateway.request_slot(SLOTS[0], JOBS[0], ALLOCATIONS[0], MASTER, "ada")
    assert (await gateway.heartbeat_from_resource_manager()).slots.user == "ada"
    with pytest.raises(SlotOccupiedError, match="has served another user"):
        await gateway.request_slot(SLOTS[1], JOBS[1], ALLOCATIONS[1], MASTER, "bob")
    executor.release_slot(ALLOCATIONS[0], "its job is over")
    with pytest.raises(SlotOccupiedError, match="has served another user"):
        await gateway.request_slot(SLOTS[1], JOBS[1], ALLOCATIONS[1], MASTER, "")
    await gateway.request_slot(SLOTS[1], JOBS[1], ALLOCATIONS[1], MASTER, "ada")


async def test_the_next_task_executor_that_adopts_the_driver_knows_its_user(executors: Executors) -> None:
    _, gateway = await executors.start()
    await gateway.request_slot(SLOTS[0], JOBS[0], ALLOCATIONS[0], MASTER, "ada")
    adopter, _ = await executors.start()
    assert adopter.slots.user == "ada"
    other, _ = await executors.start(pid=os.getppid())
    assert other.slots.user is None, "another driver has served nobody"


async def test_a_file_that_cannot_be_read_is_of_an_unknown_user(executors: Executors) -> None:
    _, gateway = await executors.start()
    await gateway.request_slot(SLOTS[0], JOBS[0], ALLOCATIONS[0], MASTER, "ada")
    (executors.directory / "driver-user.json").write_text("{")
    adopter, _ = await executors.start()
    assert adopter.slots.user == UNKNOWN_USER


async def test_no_slot_is_given_whose_user_could_not_be_stored(
    executors: Executors, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: DriverUser, user: str) -> None:
        raise OSError("the disk is full")

    write = DriverUser.write
    monkeypatch.setattr(DriverUser, "write", full)
    executor, gateway = await executors.start()
    with pytest.raises(SlotOccupiedError, match="cannot store the user of its Spark driver: the disk is full"):
        await gateway.request_slot(SLOTS[0], JOBS[0], ALLOCATIONS[0], MASTER, "ada")
    assert not executor.slots.is_used
    monkeypatch.setattr(DriverUser, "write", write)
    await gateway.request_slot(SLOTS[0], JOBS[0], ALLOCATIONS[0], MASTER, "ada")
    adopter, _ = await executors.start()
    assert adopter.slots.user == "ada", "stored by the next request"


async def test_a_manager_that_names_no_user_leaves_a_driver_that_nobody_else_gets(executors: Executors) -> None:
    """One of an earlier release."""
    executor, gateway = await executors.start()
    await gateway.request_slot(SLOTS[0], JOBS[0], ALLOCATIONS[0], MASTER)
    assert executor.slots.user == UNKNOWN_USER
    with pytest.raises(SlotOccupiedError, match="has served another user"):
        await gateway.request_slot(SLOTS[1], JOBS[1], ALLOCATIONS[1], MASTER, "ada")


async def test_a_driver_is_renewed_once_no_slot_is_used_and_no_slot_is_given_meanwhile(executors: Executors) -> None:
    executor, gateway = await executors.start()
    await gateway.request_slot(SLOTS[0], JOBS[0], ALLOCATIONS[0], MASTER, "ada")
    with pytest.raises(SlotOccupiedError, match="a job holds a slot"):
        await gateway.renew_driver("the next job is bob's")
    assert not executors.killed.is_set()
    executor.release_slot(ALLOCATIONS[0], "its job is over")
    await gateway.renew_driver("the next job is bob's")
    await asyncio.wait_for(executors.killed.wait(), PATIENCE_S)
    with pytest.raises(RecipientTerminated, match="it gets a new Spark driver: the next job is bob's"):
        await gateway.request_slot(SLOTS[0], JOBS[1], ALLOCATIONS[1], MASTER, "ada")


async def test_a_driver_is_killed_only_after_the_last_task_has_ended(
    executors: Executors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slot is free before the task that was cancelled in it has ended."""
    executor, gateway = await executors.start()
    ended = asyncio.Event()
    monkeypatch.setattr(executor._tasks, "wait_until_idle", ended.wait)
    await gateway.renew_driver("the next job is bob's")
    await gateway.heartbeat_from_resource_manager()
    assert not executors.killed.is_set()
    ended.set()
    await asyncio.wait_for(executors.killed.wait(), PATIENCE_S)


async def test_the_spark_of_another_owner_and_one_without_isolation_serve_all_users(executors: Executors) -> None:
    remote, gateway = await executors.start(is_ours=False)
    assert not remote.registration.serves_one_user
    with pytest.raises(SlotOccupiedError, match="belongs to another owner"):
        await gateway.renew_driver("the next job is bob's")
    off, _ = await executors.start(**{"security.users.isolation": "false"})
    assert not off.registration.serves_one_user

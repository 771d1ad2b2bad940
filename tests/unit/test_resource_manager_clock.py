"""When a ResourceManager wakes up by itself: soon after a change, at its deadlines, and not otherwise."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import AsyncMock, MagicMock, Mock

import pytest

from actors.address import ActorAddress
from actors.errors import ActorError
from actors.rpc.service import RpcConfig, RpcService
from blob.gateway import BlobAddress
from conf.configuration import Configuration
from runtime.ids import AllocationID, InstanceID, JobID, ResourceID, SlotID
from runtime.protocol.diagnostics import TaskManagerMetrics
from runtime.protocol.errors import UnknownTaskExecutorError
from runtime.protocol.leader import LeaderTerm
from runtime.protocol.messages import TaskExecutorHeartbeat
from runtime.protocol.resource_manager_driver import ResourceManagerDriver
from runtime.protocol.slots import FailRequest, SlotReport, SlotRequest, SlotStatus
from runtime.resourcemanager import endpoint as module
from runtime.resourcemanager.endpoint import ResourceManager
from runtime.resourcemanager.instance_manager import Instance
from runtime.resourcemanager.slot_manager import SlotManager
from tests.waiting import PATIENCE_S

TERM = LeaderTerm("resourcemanager", 1, "session")
NAME, INSTANCE, JOB = ResourceID("tm-1"), InstanceID("1" * 32), JobID("a" * 32)
FREE = SlotReport((SlotStatus(SlotID(NAME, 0)),))
USED = SlotReport((SlotStatus(SlotID(NAME, 0), JOB, AllocationID("b" * 32)),))
OTHER = JobID("d" * 32)
TWO_SLOTS = SlotReport((*USED.slots, SlotStatus(SlotID(NAME, 1))))
METRICS = TaskManagerMetrics(1, 1.0, 1, 1, 1, 1.0, 0, {})


class Clock:
    """A ResourceManager that leads; its driver stops workers that nobody has used for a second."""

    def __init__(self, service: RpcService, **further: str) -> None:
        self.driver = MagicMock(spec=ResourceManagerDriver)
        self.driver.release_resource = AsyncMock(return_value=True)
        self.driver.initialize = AsyncMock(return_value=[])
        self.driver.hindrance = Mock(return_value="")
        configuration = Configuration.from_dict(
            {"resourcemanager.driver": "process", "resourcemanager.taskmanager-timeout": "1 s", **further}
        )
        made: Any = ResourceManager(
            service,
            "resourcemanager",
            MagicMock(),
            MagicMock(),
            configuration,
            BlobAddress("127.0.0.1", 1),
            ActorAddress.parse("akka.tcp://system@127.0.0.1:2/user/receptionist"),
            lambda owner: self.driver,
        )
        made._term = TERM
        made._slots = made._workers._slots = SlotManager(0.5)
        self.manager = made

    @property
    def timers(self) -> int:
        return len(self.manager._scheduled)

    async def rest(self) -> None:
        """Let what is soon be over."""
        async with asyncio.timeout(PATIENCE_S):
            while self.manager._alarm._rings_at < time.monotonic() + 0.3:  # noqa: ASYNC110  # it tells nobody
                await asyncio.sleep(0.005)


async def test_a_job_is_told_of_a_slot_that_was_allocated_to_it_and_is_gone(clock: Clock) -> None:
    manager = clock.manager
    request = SlotRequest(JOB, AllocationID("b" * 32), "job", "t")
    told, failures = asyncio.Event(), [ActorError("it does not answer")]

    async def notify(allocation_id: AllocationID) -> None:
        assert allocation_id == request.allocation_id
        if failures:
            raise failures.pop()
        told.set()

    manager._jobs[JOB] = Mock(gateway=Mock(notify_slot_gone=notify))
    manager._slots.register_task_manager(INSTANCE, NAME, "addr", USED)
    manager.notify_slot_available(INSTANCE, FREE)
    await asyncio.wait_for(told.wait(), PATIENCE_S)


async def test_a_job_is_told_of_its_refused_request_until_it_answers(clock: Clock) -> None:
    request, reason = SlotRequest(JOB, AllocationID("b" * 32), "job", "t"), "no TaskExecutor fits"
    told, failures = list[tuple[AllocationID, str]](), [ActorError("it does not answer")]

    async def notify(allocation_id: AllocationID, why: str) -> None:
        if failures:
            raise failures.pop()
        told.append((allocation_id, why))

    clock.manager._jobs[JOB] = Mock(gateway=Mock(notify_allocation_failure=notify))
    await clock.manager._fail(FailRequest(request, reason))
    assert told == [(request.allocation_id, reason)]


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Clock]:
    monkeypatch.setattr(module, "SOON_S", 0.01)
    service = RpcService(asyncio.get_running_loop(), b"s" * 32, RpcConfig())
    made = Clock(service)
    yield made
    made.manager._term = None
    await service.close()


async def test_a_cluster_at_rest_sets_no_timer(clock: Clock) -> None:
    clock.manager._workers.start()
    await clock.rest()
    clock.manager._slots.register_task_manager(INSTANCE, NAME, "address", USED)
    clock.manager._worker_heard(INSTANCE, TaskExecutorHeartbeat(USED, METRICS))
    assert clock.timers == 0


async def test_a_request_that_waits_too_long_is_refused_at_its_deadline(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[Any] = []
    monkeypatch.setattr(clock.manager, "spawn", lambda work, what: (work.close(), refused.append(what)))
    clock.driver.request_resource = AsyncMock()
    began = time.monotonic()
    clock.manager._jobs[JOB] = Mock()
    request = SlotRequest(JOB, AllocationID("c" * 32), "flights", "join")
    clock.manager.request_slot(request)
    async with asyncio.timeout(PATIENCE_S):
        while not any("refusing" in what for what in refused):  # noqa: ASYNC110  # it tells nobody
            await asyncio.sleep(0.005)
    assert time.monotonic() - began >= 0.5
    await clock.rest()
    assert clock.timers == 0


async def test_a_worker_that_nobody_uses_is_stopped_when_its_time_is_over(clock: Clock) -> None:
    clock.manager._workers.start()
    clock.manager._slots.register_task_manager(INSTANCE, NAME, "address", USED)
    clock.manager._workers.registered(NAME)
    await clock.rest()
    assert clock.timers == 0, "it is used"
    began = time.monotonic()
    clock.manager._worker_heard(INSTANCE, TaskExecutorHeartbeat(FREE, METRICS))
    assert clock.timers == 1
    async with asyncio.timeout(PATIENCE_S):
        while not clock.driver.release_resource.await_count:  # noqa: ASYNC110  # a mock tells nobody
            await asyncio.sleep(0.005)
    assert time.monotonic() - began >= 1.0


async def test_a_drained_task_executor_is_left_by_its_jobs_and_used_again_when_nobody_repeats_that(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = clock.manager
    job = Mock(gateway=Mock(vacate_task_manager=AsyncMock(side_effect=[ActorError("it does not answer"), None])))
    manager._jobs = {JOB: job, OTHER: Mock()}
    registration = Mock(resource_id=NAME, address="address", serves_one_user=False)
    manager._instances._instances[INSTANCE] = instance = Instance(INSTANCE, registration, Mock(), 0, 0)
    manager._instances._by_name[NAME] = instance
    manager._slots = SlotManager(60.0)
    manager._slots.register_task_manager(INSTANCE, NAME, "address", TWO_SLOTS)
    given: list[Any] = []
    monkeypatch.setattr(manager, "_allocate", AsyncMock(side_effect=given.append))

    with pytest.raises(UnknownTaskExecutorError, match="no TaskExecutor tm-9 is registered"):
        manager.drain_task_manager(ResourceID("tm-9"), 0.2, moves_tasks=False)
    info = manager.drain_task_manager(NAME, 60.0, moves_tasks=False)
    assert (info.registration, [slot.job_id for slot in info.allocations]) == (registration, [JOB, None])
    manager.drain_task_manager(NAME, 0.2, moves_tasks=True)
    manager.request_slot(SlotRequest(OTHER, AllocationID("c" * 32), "flights", "join"))
    async with asyncio.timeout(PATIENCE_S):
        while not given:  # noqa: ASYNC110  # it tells nobody
            await asyncio.sleep(0.005)
    assert given[0].slot_id == SlotID(NAME, 1)
    assert [call.args for call in job.gateway.vacate_task_manager.await_args_list] == [
        (NAME, 60.0, False),
        (NAME, 0.2, True),
    ]

"""The ResourceManager names the owner of a job to TaskExecutors that serve one user, and has drivers renewed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import pytest

from actors.errors import ActorError
from actors.rpc.gateway import FencingToken
from actors.rpc.service import RpcConfig, RpcService
from runtime.ids import AllocationID, JobID
from runtime.protocol.errors import SlotOccupiedError
from runtime.protocol.messages import LeaderAddress
from runtime.protocol.slots import AllocateSlot, RenewDriver, SlotRequest
from runtime.resourcemanager.slot_manager import SlotManager
from tests.unit.test_resource_manager_clock import FREE, INSTANCE, JOB, NAME, Clock

LEADER = LeaderAddress("akka.tcp://u@127.0.0.1:1/user/jm", FencingToken(1, "s"))
REQUEST = SlotRequest(JOB, AllocationID("b" * 32), "flights", "join")
OTHER = JobID("c" * 32)


class Manager:
    """A ResourceManager with one TaskExecutor and the jobs of two users."""

    def __init__(self, clock: Clock, *, serves_one_user: bool) -> None:
        self.endpoint: Any = clock.manager
        self.slots: SlotManager = clock.manager._slots
        self.gateway = Mock(request_slot=AsyncMock(), renew_driver=AsyncMock())
        worker = SimpleNamespace(
            gateway=self.gateway, resource_id=NAME, registration=SimpleNamespace(serves_one_user=serves_one_user)
        )
        self.endpoint._instances = {INSTANCE: worker}
        self.endpoint._jobs = {JOB: Mock(leader=LEADER), OTHER: Mock(leader=LEADER)}
        self.slots.register_job(JOB, "ada", "")
        self.slots.register_job(OTHER, "bob", "")
        self.slots.register_task_manager(INSTANCE, NAME, "addr", FREE, serves_one_user=serves_one_user)

    async def allocate(self, request: SlotRequest) -> None:
        (instruction,) = self.slots.register_slot_request(request, 0.0)
        await self.endpoint._allocate(cast(AllocateSlot, instruction))


@pytest.fixture
async def clock() -> AsyncIterator[Clock]:
    service = RpcService(asyncio.get_running_loop(), b"s" * 32, RpcConfig())
    made = Clock(service)
    yield made
    made.manager._term = None
    await service.close()


async def test_the_owner_is_named_to_a_task_executor_that_serves_one_user(clock: Clock) -> None:
    manager = Manager(clock, serves_one_user=True)
    await manager.allocate(REQUEST)
    slot = FREE.slots[0].slot_id
    manager.gateway.request_slot.assert_awaited_once_with(slot, JOB, REQUEST.allocation_id, LEADER, "ada")


async def test_a_task_executor_of_an_earlier_release_gets_no_argument_that_it_does_not_know(clock: Clock) -> None:
    manager = Manager(clock, serves_one_user=False)
    await manager.allocate(REQUEST)
    slot = FREE.slots[0].slot_id
    manager.gateway.request_slot.assert_awaited_once_with(slot, JOB, REQUEST.allocation_id, LEADER)


@pytest.mark.parametrize("error", [ActorError("it does not answer"), SlotOccupiedError("a job holds a slot")])
async def test_a_driver_is_renewed_and_a_failure_is_settled_by_the_next_report(clock: Clock, error: Exception) -> None:
    manager = Manager(clock, serves_one_user=True)
    await manager.allocate(REQUEST)
    manager.slots.register_slot_request(SlotRequest(OTHER, AllocationID("d" * 32), "later", "t"), 0.0)
    (renewal,) = manager.slots.report_slot_status(INSTANCE, FREE.__class__(FREE.slots, "ada"))[1:]
    assert isinstance(renewal, RenewDriver)
    manager.gateway.renew_driver.side_effect = error
    await manager.endpoint._renew_driver(renewal)
    manager.gateway.renew_driver.assert_awaited_once_with(renewal.reason)
    (again,) = manager.slots.report_slot_status(INSTANCE, FREE.__class__(FREE.slots, "ada"))
    assert again == renewal

# ruff: noqa: F811 - fixtures are imported by name
"""A JobMaster is lost while a TaskExecutor offers it slots: none leaks, and none is taken from its successor."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actors.rpc import codec
from actors.rpc.endpoint import FencedRpcEndpoint
from actors.rpc.fencing import Leadership
from actors.rpc.gateway import rpc, rpc_tell
from actors.rpc.service import RpcService
from runtime.ids import AllocationID, JobID, ResourceID, SlotID
from runtime.protocol.descriptor import SlotOffer
from runtime.protocol.errors import JobNotReachableError, UnknownTaskExecutorError
from runtime.protocol.job_master import JobMasterGateway
from runtime.protocol.leader import RESOURCE_MANAGER, LeaderInformation, job_master
from runtime.protocol.messages import LeaderAddress, TaskExecutorRegistration
from runtime.protocol.task_executor import TaskExecutorGateway
from runtime.taskexecutor import connections
from tests.acting import acting
from tests.contract.test_fencing import JOB, QuietTaskExecutor, executor, service  # noqa: F401
from tests.waiting import AT_ONCE, PATIENCE_S

ALLOCATION, OTHER = AllocationID("1" * 32), AllocationID("2" * 32)


class Desk:
    """A JobMaster that takes offers. It answers once *may_answer* is set, with those of *accepts*."""

    def __init__(self, service: RpcService, name: str, epoch: int, *accepts: AllocationID) -> None:
        self.leadership = Leadership(job_master(JOB), epoch, name)
        self.accepts = list(accepts)
        self.registered = 0
        self.offered: list[list[AllocationID]] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.fails: list[Exception] = []
        self.endpoint = self._endpoint(service, name)
        self.endpoint.fencing_token = self.leadership.token
        self.address = LeaderAddress(str(self.endpoint.address), self.leadership.token)

    def _endpoint(self, service: RpcService, name: str) -> FencedRpcEndpoint:
        def unwanted(is_ask: bool) -> Any:
            async def ask(self: object, *args: object) -> None:
                raise NotImplementedError

            return rpc(ask) if is_ask else rpc_tell(lambda self, *args: None)

        async def register(_: object, registration: TaskExecutorRegistration, report: object) -> None:
            self.registered += 1

        async def offer(_: object, resource_id: ResourceID, offers: list[SlotOffer]) -> list[AllocationID]:
            self.offered.append([one.allocation_id for one in offers])
            await self.may_answer.wait()
            if self.fails:
                raise self.fails.pop(0)
            return self.accepts

        specs = codec.method_specs(JobMasterGateway)
        methods = {name: unwanted(spec.is_ask) for name, spec in specs.items()}
        methods |= {"register_task_manager": rpc(register), "offer_slots": rpc(offer)}
        made: FencedRpcEndpoint = type("Desk", (FencedRpcEndpoint, JobMasterGateway), methods)(service, name)
        return made


class World:
    """A TaskExecutor, and what its ResourceManager and the latch of a job tell it."""

    def __init__(self, service: RpcService, executor: QuietTaskExecutor) -> None:
        self.service = service
        self.executor = executor
        leadership = Leadership(RESOURCE_MANAGER, 5, "m")
        self._manager = service.gateway(executor.address, TaskExecutorGateway, acting(leadership))

    async def desk(self, name: str, epoch: int, *accepts: AllocationID) -> Desk:
        desk = Desk(self.service, name, epoch, *accepts)
        await self.service.start_server(desk.endpoint)
        return desk

    async def give(self, index: int, allocation: AllocationID, to: Desk) -> None:
        await self._manager.request_slot(SlotID(ResourceID("tm"), index), JOB, allocation, to.address)

    def leads(self, desk: Desk) -> None:
        """The latch says so."""
        information = LeaderInformation(
            job_master(JOB), desk.address.address, desk.leadership.epoch, desk.leadership.session
        )
        self.connection.follower.notify_leader_address(information)

    @property
    def connection(self) -> connections.JobConnection:
        found = self.executor._connections.find(JOB)
        assert found is not None
        return found

    @property
    def held(self) -> list[AllocationID]:
        return [one.allocation_id for one in self.executor.slots.of_job(JobID(JOB))]


@pytest.fixture
def world(
    service: RpcService,
    executor: QuietTaskExecutor,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> World:
    monkeypatch.setattr("runtime.retry.SOON", AT_ONCE)
    registration = TaskExecutorRegistration(
        resource_id=executor.resource_id,
        address=str(executor.address),
        pid=1,
        slots=2,
        spark_version="",
        java_version="",
        spark_master="",
        spark_pid=1,
        memory_bytes=1,
        version="",
        shared_directory="",
    )
    monkeypatch.setattr(QuietTaskExecutor, "registration", replace(registration), raising=True)
    return World(service, executor)


async def until(condition: Any) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - of another endpoint
            await asyncio.sleep(0.005)


async def test_a_former_job_masters_late_answer_frees_no_slot(world: World) -> None:
    former, present = await world.desk("former", 7), await world.desk("present", 9, ALLOCATION, OTHER)
    former.may_answer.clear()
    await world.give(0, ALLOCATION, former)
    await until(lambda: former.offered)
    offering = world.connection.offering
    assert offering is not None
    world.leads(present)  # the former one was lost in the middle of the offer
    await until(lambda: present.offered)
    former.may_answer.set()
    await until(offering.done)
    assert world.held == [ALLOCATION]
    await world.give(1, OTHER, present)
    await until(lambda: [ALLOCATION, OTHER] in present.offered)
    assert world.held == [ALLOCATION, OTHER]
    assert present.registered == 1


async def test_an_offer_that_was_not_answered_is_made_again(world: World) -> None:
    """Its JobMaster could not say whether it took the slots: it is asked once more, not held for a refusal."""
    desk = await world.desk("desk", 7, ALLOCATION)
    desk.fails = [JobNotReachableError("it does not lead yet") for _ in range(2)]
    await world.give(0, ALLOCATION, desk)
    await until(lambda: len(desk.offered) == 3 or (offering := world.connection.offering) is None or offering.done())
    assert desk.offered == [[ALLOCATION]] * 3
    offering = world.connection.offering
    assert offering is not None
    await until(offering.done)
    assert world.held == [ALLOCATION]


async def test_a_job_that_has_lost_the_task_executor_meanwhile_is_registered_with_again(world: World) -> None:
    desk = await world.desk("desk", 7, ALLOCATION)
    desk.fails = [UnknownTaskExecutorError("register again")]
    await world.give(0, ALLOCATION, desk)
    await until(lambda: len(desk.offered) == 2)
    offering = world.connection.offering
    assert offering is not None
    await until(offering.done)
    assert (desk.registered, world.held) == (2, [ALLOCATION])


async def test_a_slot_that_is_not_taken_is_free_again(world: World) -> None:
    desk = await world.desk("desk", 7, OTHER)
    await world.give(0, ALLOCATION, desk)
    await until(lambda: desk.offered)
    offering = world.connection.offering
    assert offering is not None
    await until(offering.done)
    assert world.held == []
    await world.give(0, OTHER, desk)  # and may be given to another allocation
    await until(lambda: desk.offered[-1] == [OTHER])
    assert world.held == [OTHER]


async def test_a_slot_whose_job_has_no_job_master_any_more_is_free_again(
    world: World,
    service: RpcService,
) -> None:
    """The request for it came late: the job was over, so that nobody ever registers the TaskExecutor."""
    gone = Desk(service, "gone", 7)  # which nobody has started
    await world.give(0, ALLOCATION, gone)
    heartbeats = world.executor._job_heartbeats
    assert world.held == [ALLOCATION]
    heartbeats._tick()
    assert world.held == [ALLOCATION], "it may yet begin to serve"
    heartbeats._clock = lambda: time.monotonic() + 3600.0
    heartbeats._next_tick = math.inf
    heartbeats._tick()
    leaving = [task for task in world.executor._spawned if "leaving job" in task.get_name()]
    assert len(leaving) == 1
    await asyncio.gather(*leaving)
    assert world.held == []
    assert world.executor._connections.find(JOB) is None
    present = await world.desk("present", 9, OTHER)
    await world.give(0, OTHER, present)
    await until(lambda: present.offered == [[OTHER]])


async def test_a_job_that_gets_a_slot_while_its_former_ones_are_left_keeps_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = asyncio.Event()

    async def job_ended(_job_id: JobID) -> None:
        await ended.wait()

    monkeypatch.setattr(world.executor._tasks, "job_ended", job_ended)
    desk = await world.desk("desk", 7, ALLOCATION, OTHER)
    await world.give(0, ALLOCATION, desk)
    await until(lambda: [ALLOCATION] in desk.offered)
    world.executor._drop_job(JobID(JOB), "no heartbeat")
    await world.give(1, OTHER, desk)
    await until(lambda: [ALLOCATION, OTHER] in desk.offered)
    ended.set()
    await until(lambda: ALLOCATION not in world.held)
    assert world.held == [OTHER]
    assert world.connection.registered, "its JobMaster is still connected"

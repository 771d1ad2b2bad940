"""The ResourceManager reports on its file of queues: none, a right one, one that has become wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from unittest.mock import AsyncMock, MagicMock

import pytest

from actors.rpc.gateway import FencingToken
from actors.rpc.service import RpcConfig, RpcService
from runtime.ids import JobID
from runtime.jobmaster.resource_manager_connection import ResourceManagerConnection
from runtime.leadership import LeaderEndpoint
from runtime.protocol.errors import UnknownJobManagerError
from runtime.protocol.leader import LeaderTerm
from runtime.protocol.messages import JobMasterRegistration
from runtime.protocol.queues import QueuesOverview
from runtime.queues.configuration import Demand
from tests.unit.test_dispatcher_queues import graph
from tests.unit.test_resource_manager_clock import Clock


@pytest.fixture
async def service() -> AsyncIterator[RpcService]:
    made = RpcService(asyncio.get_running_loop(), b"s" * 32, RpcConfig())
    yield made
    await made.close()


async def reported(clock: Clock) -> QueuesOverview:
    if clock.manager._queues.is_set:
        await clock.manager._read_queues()
    found: QueuesOverview = clock.manager.request_queues()
    return found


async def test_a_cluster_without_a_file_says_so(service: RpcService) -> None:
    found = await reported(Clock(service))
    assert [queue.name for queue in found.queues] == ["default"]
    assert (found.has_file, found.problem) == (False, "")


async def test_a_wrong_file_is_a_problem_and_its_last_right_content_is_reported(
    service: RpcService, tmp_path: Path
) -> None:
    file = tmp_path / "queues.yaml"
    file.write_text("queues: {etl: {slots: 2}}")
    clock = Clock(service, **{"queues.file": str(file)})
    found = await reported(clock)
    assert [(queue.name, queue.slots_limit) for queue in found.queues] == [("etl", 2), ("default", None)]
    assert (found.has_file, found.problem) == (True, "")
    file.write_text("queues: {etl: {slotz: 2}}")
    wrong = await reported(clock)
    assert (wrong.queues, wrong.has_file) == (found.queues, True)
    assert "slotz" in wrong.problem


async def test_what_tasks_take_is_registered_with_their_job(service: RpcService, tmp_path: Path) -> None:
    file = tmp_path / "queues.yaml"
    file.write_text("each-task: {memory-mb: 100, cpus: 1}\neach-user: {cpus: 4}")
    clock = Clock(service, **{"queues.file": str(file)})
    await reported(clock)
    address, token = "akka.tcp://understudy@127.0.0.1:9/user/job", FencingToken(1, "s")
    for job_id, *asked in (("a" * 32, 2048, "0.5", 5 << 20), ("b" * 32,)):
        clock.manager.register_job_manager(JobID(job_id), JobMasterRegistration(address, token, "ada", "", *asked))
    assert [queue.blob_mb for queue in (await reported(clock)).queues] == [5]
    share = clock.manager._slots._share
    assert share.demand(JobID("a" * 32)) == Demand(2048, Decimal("0.5"))
    assert share.demand(JobID("b" * 32)) == Demand(100, Decimal(1)), "as a JobMaster of an earlier release registers"


class Registering(LeaderEndpoint):
    """A JobMaster that leads."""

    def __init__(self, service: RpcService) -> None:
        super().__init__(service, "job-master", AsyncMock(), AsyncMock())
        self.fencing_token = FencingToken(1, "s")

    async def lead(self, term: LeaderTerm) -> None:
        raise NotImplementedError

    async def on_revoked(self) -> None:
        raise NotImplementedError


async def test_a_job_master_registers_what_the_settings_of_its_job_say(service: RpcService) -> None:
    connection = ResourceManagerConnection(
        Registering(service),
        graph(1).job_id,
        MagicMock(),
        1.0,
        on_connected=lambda: None,
        on_lost=lambda: None,
        on_waiting=lambda allocation_id, reason: None,
    )
    sent: list[JobMasterRegistration] = []
    gateway = MagicMock()

    async def register(_job_id: JobID, registration: JobMasterRegistration) -> None:
        sent.append(registration)
        raise UnknownJobManagerError("that is all the test wants to see")

    gateway.register_job_manager = register

    (main,) = graph(1).artifacts
    large = graph(1, queue="etl", memory="1500 mb", cpus="0.25").with_artifacts(replace(main, size=77))
    for job in (large, graph(1, "")):
        connection.register(job)
        with pytest.raises(UnknownJobManagerError):
            await connection._register(gateway)
    assert [(each.owner, each.queue, each.task_memory_mb, each.task_cpus, each.blob_bytes) for each in sent] == [
        ("ada", "etl", 1500, "0.250", 77),
        ("", "", None, "", 0),
    ]


async def test_a_file_that_was_never_right_is_a_file(service: RpcService, tmp_path: Path) -> None:
    found = await reported(Clock(service, **{"queues.file": str(tmp_path / "absent.yaml")}))
    assert found.has_file
    assert "absent.yaml" in found.problem

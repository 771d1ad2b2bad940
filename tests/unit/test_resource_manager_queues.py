"""The ResourceManager reports on its file of queues: none, a right one, one that has become wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from actors.rpc.service import RpcConfig, RpcService
from runtime.protocol.queues import QueuesOverview
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


async def test_a_file_that_was_never_right_is_a_file(service: RpcService, tmp_path: Path) -> None:
    found = await reported(Clock(service, **{"queues.file": str(tmp_path / "absent.yaml")}))
    assert found.has_file
    assert "absent.yaml" in found.problem

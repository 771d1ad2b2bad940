"""When a JobMaster wakes up by itself: at the deadlines of its parts, and not otherwise."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, MagicMock, Mock

import pytest

from actors.rpc.service import RpcConfig, RpcService
from blob.gateway import BlobAddress
from conf.configuration import Configuration
from runtime.ids import AllocationID, JobID, ResourceID, SlotID, SlotRequestID
from runtime.jobgraph.codec import decode
from runtime.jobmaster import endpoint as module
from runtime.jobmaster.deployment import TaskManagers
from runtime.jobmaster.endpoint import JobMaster, current_instant
from runtime.jobmaster.execution import ExecutionGraphSnapshot
from runtime.jobmaster.execution_graph import ReleaseSlot, RequestSlot
from runtime.jobmaster.rescale_history import RescaleHistory
from runtime.jobmaster.restart_strategy import RestartStrategyState
from runtime.jobmaster.slot_pool import AllocatedSlot, SlotPool
from runtime.protocol.descriptor import JobReport, SlotOffer
from runtime.protocol.errors import UnknownTaskExecutorError
from runtime.protocol.execution_state import JobStatus
from runtime.protocol.leader import LeaderTerm
from runtime.protocol.messages import TaskExecutorRegistration
from tests.waiting import PATIENCE_S

TERM = LeaderTerm("jobmaster-j", 1, "session")
SLOT = AllocatedSlot(AllocationID.random(), SlotID(ResourceID("tm-0"), 1), "akka.tcp://x@127.0.0.1:2/user/tm-0")
REQUEST = SlotRequestID.random()
WORKER = SLOT.slot_id.resource_id
SNAPSHOT = ExecutionGraphSnapshot(JobID("a" * 32), JobStatus.RUNNING, {}, None, (), 0, RestartStrategyState(), 0, ())


@pytest.fixture
async def master(tmp_path: Path) -> AsyncIterator[Any]:
    """A JobMaster that leads, whose requests wait for 0.2 s and whose slots are held in reserve for 0.2 s."""
    service = RpcService(asyncio.get_running_loop(), b"s" * 32, RpcConfig())
    blob = BlobAddress("127.0.0.1", 1)
    made: Any = JobMaster(
        service, "jobmaster-j", JobID("a" * 32), MagicMock(), MagicMock(), Configuration(), tmp_path, blob
    )
    made._term = TERM
    made._graph = Mock(slot_unavailable=Mock(return_value=[]), slot_assigned=Mock(return_value=[]))
    made._task_managers = Mock()
    made._checkpoints = Mock(is_idle=True, next_deadline=Mock(return_value=None))
    made._pool = SlotPool(0.2, 0.2)
    yield made
    made._term = None
    await service.close()


async def called(mock: Mock, times: int = 1) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while mock.call_count < times:  # noqa: ASYNC110  # a mock tells nobody
            await asyncio.sleep(0.01)


def timers(master: Any) -> int:
    return len(master._scheduled)


async def test_a_job_that_waits_for_nothing_sets_no_timer(master: Any) -> None:
    master._pool.adopt_slot(REQUEST, SLOT, 0.0)
    master._do([])
    master._advance_checkpoints()
    assert timers(master) == 0


async def test_a_request_ends_and_a_slot_goes_back_at_its_deadline_and_not_before(master: Any) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    master._do([RequestSlot(REQUEST, "t")])
    assert timers(master) == 1
    await called(master._graph.slot_unavailable)
    assert loop.time() - began >= 0.2
    assert timers(master) == 0

    master._pool.adopt_slot(REQUEST, SLOT, 0.0)
    began = loop.time()
    master._do([ReleaseSlot(REQUEST)])
    assert timers(master) == 1
    await called(master._task_managers.free_slot)
    assert loop.time() - began >= 0.2
    assert timers(master) == 0


async def test_a_request_is_sent_again_whose_slot_was_allocated_and_never_offered(
    master: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SLOT_GONE_DELAY_S", 0.01)
    master._pool, master._job = SlotPool(60.0, 60.0), Mock()
    master._resource_manager = Mock()
    master._pool.connect_resource_manager()
    master._do([RequestSlot(REQUEST, "t")])
    (asked,) = (call.args[0] for call in master._resource_manager.ask_for_slot.call_args_list)
    master.notify_slot_gone(asked.allocation_id)
    await called(master._resource_manager.ask_for_slot, 2)
    assert master._resource_manager.ask_for_slot.call_args.args[0] == asked


async def test_slots_of_a_vacated_task_executor_go_back_at_once_and_its_tasks_move_if_they_are_to(master: Any) -> None:
    worker = SLOT.slot_id.resource_id
    master._pool = SlotPool(60.0, 60.0)
    master._pool.adopt_slot(REQUEST, SLOT, 0.0)
    master._graph.move_tasks = Mock(return_value=[ReleaseSlot(REQUEST)])
    master.vacate_task_manager(worker, 60.0, moves_tasks=False)
    assert not master._graph.move_tasks.called
    master.vacate_task_manager(worker, 60.0, moves_tasks=True)
    assert master._graph.move_tasks.call_args.args[0] == worker
    assert [call.args[0] for call in master._task_managers.free_slot.call_args_list] == [SLOT]


def registration(address: str, *predecessors: str) -> TaskExecutorRegistration:
    local = ("4.3.0", "17", "local[2]", 2, 1)
    return TaskExecutorRegistration(WORKER, address, 1, 1, *local, predecessors=predecessors)


async def test_a_task_executor_is_awaited_until_its_successor_registers_or_the_time_is_over(master: Any) -> None:
    lost = Mock(side_effect=lambda *_: managers.remove(WORKER))
    master._task_manager_lost = lost
    master._resource_manager = Mock(registration_of=AsyncMock(return_value=None))
    master._task_managers = managers = TaskManagers(
        master, JobID("a" * 32), Configuration(), BlobAddress("127.0.0.1", 1), lost
    )
    first, second = "akka.tcp://x@127.0.0.1:2/user/tm-0", "akka.tcp://x@127.0.0.1:3/user/tm-0"
    with pytest.raises(UnknownTaskExecutorError):
        await master.expect_successor(WORKER, 60.0)
    managers.add(registration(first))
    master._heartbeats, master._written = Mock(), AsyncMock()
    await master.expect_successor(WORKER, 60.0)
    assert master._written.await_count == 1, "the next JobMaster would know"
    assert master._heartbeats.unmonitor.call_args.args == (WORKER,)
    assert WORKER in managers.awaited_successors

    assert managers.is_replaced_by(registration(second)), "it has none of the tasks"
    assert not managers.is_replaced_by(registration(second, "akka.tcp://x@127.0.0.1:1/user/tm-0", first))
    managers.add(registration(second, first))
    assert managers.awaited_successors == {}
    await master.expect_successor(WORKER, 0.0)
    await called(lost)
    assert "no successor" in lost.call_args.args[1]


async def test_a_successor_that_has_adopted_nothing_shows_that_the_tasks_are_lost(
    master: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SUCCESSOR_INTERVAL_S", 0.01)
    first, second = "akka.tcp://x@127.0.0.1:2/user/tm-0", "akka.tcp://x@127.0.0.1:3/user/tm-0"
    answers = iter([None, registration(first), registration(second, first), registration(second)])
    master._resource_manager = Mock(registration_of=AsyncMock(side_effect=answers))
    lost = Mock(side_effect=lambda *_: managers.remove(WORKER))
    master._task_manager_lost, master._heartbeats, master._written = lost, Mock(), AsyncMock()
    master._task_managers = managers = TaskManagers(
        master, JobID("a" * 32), Configuration(), BlobAddress("127.0.0.1", 1), Mock()
    )
    managers.add(registration(first))
    await master.expect_successor(WORKER, 600.0)
    await called(lost)
    assert "has adopted nothing" in lost.call_args.args[1]
    assert master._resource_manager.registration_of.await_count == 4


async def test_an_adopting_task_executor_is_answered_once_the_next_job_master_would_know_its_address(
    master: Any,
) -> None:
    second = "akka.tcp://x@127.0.0.1:3/user/tm-0"
    master._task_managers = managers = TaskManagers(
        master, JobID("a" * 32), Configuration(), BlobAddress("127.0.0.1", 1), Mock()
    )
    managers.add(registration(SLOT.address))
    master._pool.adopt_slot(REQUEST, SLOT, 0.0)
    master._graph.executions_reported, master._written = Mock(return_value=[]), AsyncMock()
    held = JobReport((), (SlotOffer(SLOT.allocation_id, SLOT.slot_id),))
    await master.register_task_manager(registration(SLOT.address), held)
    assert not master._written.await_count
    await master.register_task_manager(registration(second, SLOT.address), held)
    assert master._written.await_count == 1
    assert master._graph.address_changed.call_args.args == (WORKER, second)
    assert [slot.address for slot in master._pool.allocated_slots] == [second]


async def test_the_next_job_master_awaits_the_successor_too(master: Any) -> None:
    master._task_managers = managers = TaskManagers(
        master, JobID("a" * 32), Configuration(), BlobAddress("127.0.0.1", 1), Mock()
    )
    managers.await_successor(WORKER, current_instant().epoch_ms + 60_000)
    master._graph.snapshot = Mock(return_value=SNAPSHOT)
    master._rescales, master._checkpoints = RescaleHistory(()), None
    saved = decode(master._encoded_execution(), ExecutionGraphSnapshot)
    assert saved.awaited_successors == managers.awaited_successors

    master._known_addresses = {WORKER: "akka.tcp://x@127.0.0.1:2/user/tm-0"}
    master._resource_manager = Mock(registration_of=AsyncMock(return_value=None))
    master._resumes, master._job = True, Mock()
    master._graph.resume = Mock(return_value=[])
    await master.serve()
    assert master._heartbeats._monitor.targets() == (), "a refused connection shows no end of its tasks"
    assert not managers.is_replaced_by(
        registration("akka.tcp://x@127.0.0.1:3/user/tm-0", *master._known_addresses.values())
    )
    master._heartbeats.stop()


async def test_what_is_due_earlier_is_not_kept_waiting_by_a_later_timer(
    master: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does the later timer do anything when its time comes, or keep the next one from being set."""
    master._pool = SlotPool(60.0, 0.1)
    master._do([RequestSlot(REQUEST, "t")])
    later = SlotRequestID.random()
    master._pool.adopt_slot(later, SLOT, 0.0)
    master._pool.cancel_request(REQUEST, 0.0)
    master._do([ReleaseSlot(later)])
    await called(master._task_managers.free_slot)
    monkeypatch.setattr(master, "may_act", Mock(side_effect=AssertionError("a replaced timer acts")))
    master._alarm._timer_ends(1.0)


async def test_a_leadership_sets_its_own_timer_whatever_a_former_one_had_set(master: Any) -> None:
    master._resource_manager.stop = master._dispatcher.stop = Mock(side_effect=lambda: asyncio.sleep(0))
    master._do([RequestSlot(REQUEST, "t")])
    graph, checkpoints = master._graph, master._checkpoints
    await master.on_revoked()
    master._term, master._graph, master._checkpoints = LeaderTerm("jobmaster-j", 2, "session"), graph, checkpoints
    master._do([])
    await called(graph.slot_unavailable)


async def test_checkpoints_are_looked_at_when_one_of_their_deadlines_has_come(master: Any) -> None:
    checkpoints, loop = master._checkpoints, asyncio.get_running_loop()
    checkpoints.is_idle = False
    pauses_s = iter((0.1, 0.1))
    checkpoints.next_deadline = Mock(
        side_effect=lambda: next((time.monotonic() + pause_s for pause_s in pauses_s), None)
    )
    master._advance_checkpoints()
    assert timers(master) == 1
    began = loop.time()
    await called(checkpoints.advance, 3)  # now, and at each deadline
    assert loop.time() - began >= 0.1
    assert timers(master) == 0


async def test_what_comes_of_a_checkpoint_sets_the_timer_for_the_next(master: Any) -> None:
    master._advance_checkpoints()
    assert timers(master) == 0
    master._checkpoints.next_deadline.return_value = time.monotonic() + PATIENCE_S
    master._advance_checkpoints()  # `JobCheckpoints` calls it
    assert timers(master) == 1

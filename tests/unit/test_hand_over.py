"""The state that a TaskExecutor leaves to its successor, and the rules when it leaves it."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from actors.errors import WireError
from actors.rpc.gateway import FencingToken
from conf.configuration import Configuration
from runtime.ids import AllocationID, JobID, ResourceID, SlotID
from runtime.jobgraph.codec import encode
from runtime.jobgraph.job_graph import JobKind
from runtime.protocol.descriptor import TaskDeploymentDescriptor, TaskExecutionState
from runtime.protocol.execution_state import ExecutionState
from runtime.protocol.hand_over import READABLE, VERSION, Obstacle
from runtime.protocol.messages import LeaderAddress
from runtime.protocol.query_snapshot import QueryLocation, QuerySnapshot
from runtime.protocol.streaming_query import StreamingQuery
from runtime.spark.spec import ClassicEndpoint, JobPlace
from runtime.taskexecutor.connections import JobConnection, JobConnections
from runtime.taskexecutor.hand_over import (
    HandOver,
    HeldCheckpoints,
    HeldSlot,
    HeldTask,
    Leaving,
    TaskFacts,
    obstacle_of,
)
from runtime.taskexecutor.services import FairPools
from runtime.taskexecutor.slot_table import TaskSlotTable
from runtime.taskexecutor.task import Task
from runtime.taskexecutor.worker_files import Successor

JOB, OTHER = JobID("1" * 32), JobID("2" * 32)
RUNNING = TaskFacts(JOB, ExecutionState.RUNNING)
WORKER = ResourceID("taskmanager-0")


def a_task() -> HeldTask:
    descriptor = TaskDeploymentDescriptor.internal("stream", JobKind.SCRIPT)
    query = QueryLocation("counts", "/live", "/out")
    snapshot = QuerySnapshot("counts", "id", "/live", "/out", "/chk-4/counts", 4, ["{}"])
    return HeldTask(
        descriptor,
        TaskExecutionState(descriptor.attempt.attempt_id, ExecutionState.RUNNING),
        1000,
        4711,
        b"\x00half a message",
        "job-3",
        7,
        classic=ClassicEndpoint("name", 4040, "secret", "tag"),
        place=JobPlace("/dir", "/dir/stream.py", "stream.py", ("/dir",)),
        note="why",
        queries=(StreamingQuery("id", "run", "counts", 4),),
        seen_queries=(StreamingQuery("id", "run", "counts", 4),),
        logs={"taskexecutor": 12},
        checkpoints=HeldCheckpoints((query,), {"counts": 2}, (snapshot,), {5: (snapshot,)}, ("other",)),
    )


def all_of_it() -> HandOver:
    slot = HeldSlot(SlotID(WORKER, 1), JOB, AllocationID.random())
    master = LeaderAddress("akka.tcp://x@127.0.0.1:1/user/jobmaster", FencingToken(3, "session"))
    return HandOver(("akka.tcp://x@127.0.0.1:2/user/tm",), 10, 20, (slot,), {JOB: master}, (a_task(),))


def test_what_is_left_arrives_as_it_was() -> None:
    left = all_of_it()
    assert HandOver.decode(left.encode()) == left
    assert left.tasks[0].endpoint == left.tasks[0].classic
    assert left.version == VERSION
    assert VERSION in READABLE


def test_another_version_is_refused_before_its_content_is_read() -> None:
    with pytest.raises(WireError, match="it has version 99, this release reads 1"):
        HandOver.decode(encode(replace(all_of_it(), version=99)))
    with pytest.raises(WireError):
        HandOver.decode(b"nothing of that kind")


@pytest.mark.parametrize(
    ("facts", "reason", "passes"),
    [
        (replace(RUNNING, state=ExecutionState.INITIALIZING), "INITIALIZING", True),
        (replace(RUNNING, state=ExecutionState.DEPLOYING), "DEPLOYING", True),
        (replace(RUNNING, is_ending=True), "is ending", True),
        (replace(RUNNING, is_talking=True), "waits for an answer", True),
        (replace(RUNNING, takes_checkpoint=True), "takes a checkpoint", True),
        (replace(RUNNING, has_own_driver=True), "a Spark driver of its own", False),
        (replace(RUNNING, has_own_driver=True, is_ending=True), "a Spark driver of its own", False),
    ],
)
def test_a_task_is_left_only_while_it_runs_and_nothing_of_it_is_under_way(
    facts: TaskFacts, reason: str, passes: bool
) -> None:
    obstacle = obstacle_of(facts)
    assert obstacle is not None
    assert reason in obstacle.reason
    assert (obstacle.passes, obstacle.job_id) == (passes, JOB)
    assert obstacle_of(RUNNING) is None


def test_an_adopted_task_keeps_its_pool_and_others_get_another() -> None:
    pools = FairPools()
    assert pools.enter(JOB, "job-1") == "job-1"
    assert pools.enter(JOB) == "job-1"
    assert pools.enter(OTHER) == "job-0"
    pools.leave(JOB)
    assert pools.enter(JobID("3" * 32)) == "job-2"


def test_slots_are_left_and_taken() -> None:
    table, successor = TaskSlotTable(WORKER, 3), TaskSlotTable(WORKER, 3)
    table.allocate(SlotID(WORKER, 1), JOB, AllocationID("a" * 32))
    for each in table.all:
        successor.allocate(each.slot_id, each.job_id, each.allocation_id)
    assert successor.report() == table.report()
    assert successor.offers(JOB) == table.offers(JOB)


def test_what_passes_is_waited_for_and_whatever_else_comes_in_between_ends_the_order() -> None:
    leaving = Leaving({JOB: 1}, tasks_end=300.0, given_up=10.0)
    checkpoint, driver = Obstacle("it takes a checkpoint", passes=True), Obstacle("it has a Spark driver of its own")
    assert leaving.obstacle([], {JOB: 1}, 0.0) is None
    assert leaving.obstacle([], {}, 0.0) is None, "the job has ended meanwhile"
    assert leaving.obstacle([checkpoint], {JOB: 1}, 9.9) == checkpoint
    assert leaving.obstacle([checkpoint], {JOB: 1}, 10.0) == replace(checkpoint, passes=False)
    assert leaving.obstacle([checkpoint, driver], {JOB: 1}, 0.0) == driver
    for registrations in ({JOB: 2}, {JOB: 1, OTHER: 1}):
        found = leaving.obstacle([checkpoint], registrations, 0.0)
        assert found is not None
        assert not found.passes
        assert "does not wait" in found.reason


async def test_each_registration_with_a_job_has_another_number() -> None:
    nothing: Any = None
    slots: Any = SimpleNamespace(offers=lambda job_id: [], resource_id=WORKER)
    connections = JobConnections(nothing, nothing, slots, Mock(), Mock(), Mock(), Mock())
    gateway: Any = AsyncMock(offer_slots=AsyncMock(return_value=[]))
    leader = LeaderAddress("akka://x", FencingToken(1, "s"))

    async def offered(connection: JobConnection) -> dict[JobID, int]:
        connections._jobs[JOB] = connection
        await connections._offer_once(connection)
        return connections.registrations()

    first = JobConnection(JOB, leader, gateway, nothing)
    number = await offered(first)
    assert await offered(first) == number, "more slots need no other registration"
    connections.master_lost(JOB)
    again = await offered(first)
    back = await offered(JobConnection(JOB, leader, gateway, nothing))  # the job had left, and has slots again
    assert len({each[JOB] for each in (number, again, back)}) == 3


def test_the_order_to_a_worker_holds_for_one_task_executor_and_once(tmp_path: Path) -> None:
    order = Successor(10, sys.executable, "/packages")
    assert Successor.take(tmp_path, 10) is None
    order.write(tmp_path)
    assert Successor.take(tmp_path, 10) == order
    assert Successor.take(tmp_path, 10) is None
    order.write(tmp_path)
    assert Successor.take(tmp_path, 11) is None, "that of an earlier one"
    assert not Successor.file(tmp_path).exists()
    replace(order, python=str(tmp_path / "python")).write(tmp_path)
    assert Successor.take(tmp_path, 10) is None, "its environment was removed"
    Successor.file(tmp_path).write_text(json.dumps({"python": sys.executable}))
    assert Successor.take(tmp_path, 10) is None


async def test_an_adopted_task_leaves_what_its_predecessor_has_left(tmp_path: Path) -> None:
    held = replace(a_task(), stands_by=True)
    process: Any = SimpleNamespace(pid=held.pid, unread=held.unread)
    services: Any = SimpleNamespace(configuration=Configuration(), driver=None, blobs=None)
    logs: Any = SimpleNamespace(starts=held.logs)
    nothing: Any = None
    task = Task(
        held.descriptor, tmp_path, services, nothing, nothing, logs, nothing, held.epoch, adopted=(held, process)
    )
    assert task.held() == held
    assert task.progress.stands_by

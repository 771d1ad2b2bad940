"""What is done for one event does not grow with how much there is: counted, not timed; and how growth is read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from runtime.dispatcher import resource_cleaner
from runtime.dispatcher.archive import Retention
from runtime.dispatcher.job_master_starts import StartQueue
from runtime.dispatcher.resource_cleaner import ResourceCleaner
from runtime.ha.changes import ChangeFeed, Wake
from runtime.heartbeat import HeartbeatMonitor
from runtime.ids import AllocationID, InstanceID, JobID, ResourceID, SlotID
from runtime.protocol.leader import LeaderTerm
from runtime.protocol.slots import SlotReport, SlotRequest, SlotStatus
from runtime.resourcemanager.slot_manager import SlotManager, TaskManagerSlots
from tests.bench.scale.growth import bend, exponent, sizes

TERM = LeaderTerm("dispatcher", 1, "s")


def job(number: int) -> JobID:
    return JobID(f"{number:032x}")


class Counted:
    """Stands before a function and counts its calls."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.calls = 0
        self._function = function

    def __get__(self, instance: Any, _owner: type) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self.calls += 1
            return self._function(instance, *arguments)

        return call


@pytest.mark.parametrize("executors", [50, 500])
def test_a_slot_costs_as_much_among_many_task_executors_as_among_few(
    executors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = Counted(TaskManagerSlots.counts)
    monkeypatch.setattr(TaskManagerSlots, "counts", looks)
    manager = SlotManager(10.0)
    reports = {}
    for number in range(executors):
        instance, name = InstanceID(f"{number:032x}"), ResourceID(f"tm-{number}")
        reports[instance] = SlotReport(tuple(SlotStatus(SlotID(name, index)) for index in range(2)))
        manager.register_task_manager(instance, name, f"akka.tcp://u@10.0.0.{number % 9}:1/user/tm", reports[instance])
    given: list[Any] = []
    for number in range(3 * executors):
        request = SlotRequest(JobID("a" * 32), AllocationID(f"{number:032x}"), "job", "task")
        given += manager.register_slot_request(request, 0.0)
        manager.waiting_reason(request.allocation_id)
    assert len({item.slot_id for item in given}) == len(given) == 2 * executors
    for item in given:
        manager.slot_allocated(item.slot_id, item.request.allocation_id)
    for instance in reports:
        held = [item for item in given if item.instance_id == instance]
        slots = tuple(SlotStatus(item.slot_id, item.request.job_id, item.request.allocation_id) for item in held)
        assert manager.report_slot_status(instance, SlotReport(slots)) == [], "a heartbeat while others wait"
    assert manager.counts().free == 0
    assert manager.waiting
    assert looks.calls <= 15 * executors, "some looks for each event at one TaskExecutor, none at all of them"


def test_of_many_that_are_gone_at_once_each_is_looked_at_by_itself() -> None:
    monitor = HeartbeatMonitor(1.0, 5.0, rpc_failure_threshold=1)
    for name in ("tm-1", "tm-2", "tm-3"):
        monitor.monitor(0.0, name)
    monitor.report_unreachable("tm-1")
    monitor.report_unreachable("tm-3")
    assert [loss.target for loss in monitor.expired_one(1.0, "tm-1")] == ["tm-1"]
    assert monitor.expired_one(1.0, "tm-1") == [], "told once"
    assert monitor.expired_one(1.0, "tm-2") == []
    assert [loss.target for loss in monitor.expired(1.0)] == ["tm-3"]
    assert monitor.targets() == ("tm-2",)


def test_jobs_that_end_later_do_not_have_all_kept_ones_sorted() -> None:
    class Job(str):
        compared = 0

        def __lt__(self, other: str) -> bool:
            Job.compared += 1
            return str.__lt__(self, other)

    retention = Retention(1000, 1 << 30, 1e9)
    for number in range(3000):
        retention.add(cast(JobID, Job(f"{number:032x}")), number, 1)
        assert len(retention.drop_surplus(number)) == (number >= 1000)
    assert Job.compared == 0, "their ends and numbers tell them apart"
    assert retention.size == 1000


def test_starts_are_in_their_order_and_one_that_is_forgotten_is_out_of_the_line() -> None:
    queue = StartQueue(1)
    for number in range(5):
        queue.submitted(job(number))
    queue.forget(job(1))
    queue.again(job(3))
    begun = []
    while following := queue.next():
        begun += following
        queue.started(following[0])
    assert begun == [job(0), job(2), job(3), job(4)]


async def test_a_change_wakes_only_those_that_follow_that_leader() -> None:
    told: list[Wake] = []
    listening = asyncio.Event()

    class Source:
        async def listen(self, wake: Wake) -> None:
            told.append(wake)
            listening.set()
            await asyncio.Event().wait()

    feed = ChangeFeed(Source())
    with (
        feed.subscribe("jobmaster-1") as one,
        feed.subscribe("jobmaster-2") as two,
        feed.subscribe("jobmaster-2") as three,
    ):
        await listening.wait()
        told[0]("jobmaster-2")
        assert [await waiting.wait(0) for waiting in (one, two, three)] == [False, True, True]
        told[0](None)
        assert [await waiting.wait(0) for waiting in (one, two, three)] == [True, True, True]
    told[0]("jobmaster-2")
    assert not feed._subscriptions, "nothing is kept of components that nobody follows"
    await feed.close()


async def test_jobs_are_forgotten_a_few_at_a_time(tmp_path: Path) -> None:
    under_way, most, forgotten = 0, 0, []

    class World:
        def running_jobs_registry(self) -> World:
            return self

        async def entry(self, _job_id: JobID) -> None:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0)

        async def clean_up(self, _job_id: str, _term: LeaderTerm) -> None:
            await asyncio.sleep(0)

        async def forget(self, job_id: JobID, _term: LeaderTerm) -> None:
            nonlocal under_way
            under_way -= 1
            forgotten.append(job_id)

    world = cast(Any, World())
    cleaner = ResourceCleaner(world, world, world, tmp_path, lambda _: True)
    await asyncio.gather(*(cleaner.forget(job(number), TERM) for number in range(200)))
    assert sorted(forgotten) == [job(number) for number in range(200)]
    assert most == resource_cleaner.AT_ONCE


def test_growth_is_the_slope_of_the_logarithms_and_a_bend_is_named() -> None:
    linear = [(size, 3.0 * size) for size in (125, 250, 500, 1000)]
    square = [(size, 0.1 * size * size) for size in (125, 250, 500, 1000)]
    assert exponent(linear) == pytest.approx(1.0)
    assert exponent(square) == pytest.approx(2.0)
    assert bend(linear) == 0
    assert bend([*linear[:3], (1000, 9000.0)]) == 500
    assert sizes(1000) == [125, 250, 500, 1000]
    assert sizes(0.4) == [2, 4, 8, 16], "four different ones, however small a part is asked for"

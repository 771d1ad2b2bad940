"""The supervisor of processes: whatever it has started it knows, also while it is told to stop it."""

from __future__ import annotations

import asyncio

import pytest

from actors import Backoff
from runtime.cluster import supervisor as module
from runtime.cluster.supervisor import Child, ChildRemoved, Running, own_supervisor
from tests.waiting import PATIENCE_S


class Starts:
    """A child whose starts wait to be let go, and whose processes end when they are told to."""

    def __init__(self) -> None:
        self.let = asyncio.Event()
        self.begun = 0
        self.under_way = asyncio.Semaphore(0)
        self.fails = False
        self.stopped: list[int] = []
        self.ends: dict[int, asyncio.Event] = {}
        self.child = Child("one", "role", self._start, self._stop)
        self.supervisor = own_supervisor(lambda child, pid: None)

    async def _start(self) -> Running:
        self.begun += 1
        number = self.begun
        self.under_way.release()
        await self.let.wait()
        if self.fails:
            raise OSError("no process")
        self.ends[number] = asyncio.Event()
        return Running(number)

    async def _stop(self, running: Running) -> None:
        self.stopped.append(running.pid)

    async def wait_for_exit(self, pid: int) -> None:
        await self.ends[pid].wait()


@pytest.fixture
async def starts(monkeypatch: pytest.MonkeyPatch) -> Starts:
    made = Starts()
    monkeypatch.setattr(module, "wait_for_exit", made.wait_for_exit)
    monkeypatch.setattr(Backoff, "delay", lambda self, count, rng: 0.0)
    return made


async def test_a_process_that_ends_is_started_again_and_again_where_that_fails(starts: Starts) -> None:
    starts.let.set()
    await starts.supervisor.add(starts.child)
    await starts.under_way.acquire()
    starts.let.clear()
    starts.ends[1].set()
    async with asyncio.timeout(PATIENCE_S):
        await starts.under_way.acquire()
        starts.fails = True
        starts.let.set()  # for the second one, which fails
        starts.let.clear()
        await starts.under_way.acquire()
    starts.fails = False
    starts.let.set()
    await starts.supervisor.remove("one")
    assert (starts.begun, starts.stopped, starts.child.restarts) == (3, [3], 2)


async def test_a_restart_that_is_under_way_when_the_child_is_removed_leaves_no_process(starts: Starts) -> None:
    starts.let.set()
    await starts.supervisor.add(starts.child)
    starts.let.clear()
    await starts.under_way.acquire()
    starts.ends[1].set()
    await starts.under_way.acquire()
    removing = asyncio.ensure_future(starts.supervisor.remove("one"))
    await asyncio.sleep(0)
    assert not removing.done(), "the process that is being started is to be stopped too"
    starts.let.set()
    await removing
    assert starts.stopped == [2]
    assert (starts.supervisor.children, starts.child.running) == ({}, None)


async def test_a_first_start_that_is_under_way_when_the_child_is_removed_leaves_no_process(starts: Starts) -> None:
    adding = asyncio.ensure_future(starts.supervisor.add(starts.child))
    await starts.under_way.acquire()
    removing = asyncio.ensure_future(starts.supervisor.remove("one"))
    await asyncio.sleep(0)
    starts.let.set()
    await removing
    with pytest.raises(ChildRemoved):
        await adding
    assert starts.stopped == [1]
    assert starts.begun == 1, "nobody watches it, and starts it again"


async def test_a_start_whose_caller_is_cancelled_is_known_until_it_is_removed(starts: Starts) -> None:
    adding = asyncio.ensure_future(starts.supervisor.add(starts.child))
    await starts.under_way.acquire()
    adding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await adding
    assert list(starts.supervisor.children) == ["one"]
    starts.let.set()
    await starts.supervisor.remove("one")
    assert starts.stopped == [1]


async def test_a_start_that_fails_while_the_child_is_removed_has_nothing_to_stop(starts: Starts) -> None:
    starts.fails = True
    adding = asyncio.ensure_future(starts.supervisor.add(starts.child))
    await starts.under_way.acquire()
    removing = asyncio.ensure_future(starts.supervisor.remove("one"))
    await asyncio.sleep(0)
    starts.let.set()
    await removing
    with pytest.raises(OSError, match="no process"):
        await adding
    assert starts.stopped == []


async def test_a_child_that_is_detached_runs_on_and_is_started_by_nobody(starts: Starts) -> None:
    starts.let.set()
    await starts.supervisor.add(starts.child)
    await starts.supervisor.detach("one")
    starts.ends[1].set()
    for _ in range(20):
        await asyncio.sleep(0)
    assert (starts.begun, starts.stopped) == (1, [])
    assert starts.supervisor.children == {}

"""Where threads are: of this process, and of a task process by its control socket."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runtime.spark.errors import SparkError, ZygoteError
from runtime.spark.messages import FromTask, Running
from runtime.spark.task.control import Cancellation, TaskControl
from runtime.spark.task.zygote_client import TaskProcess
from runtime.spark.wire import BlockingChannel, encode
from runtime.taskexecutor import diagnostics
from runtime.taskexecutor.diagnostics import DUMP_LIMIT, JvmRates, MetricsSampler, bounded_threads
from runtime.threads import thread_stacks, thread_states
from tests.waiting import PATIENCE_S


@pytest.fixture
def standing() -> Iterator[str]:
    """The name of a thread that stands in `stand_still`."""
    stands, go_on = threading.Event(), threading.Event()

    def stand_still() -> None:
        stands.set()
        go_on.wait(PATIENCE_S)

    thread = threading.Thread(target=stand_still, name="stands")
    thread.start()
    stands.wait(PATIENCE_S)
    yield thread.name
    go_on.set()
    thread.join()


def test_each_thread_is_named_with_where_it_is_the_main_thread_first(standing: str) -> None:
    threads = thread_stacks()
    assert threads[0][0] == "MainThread"
    assert "in test_each_thread_is_named_with_where_it_is" in threads[0][1]
    assert "in stand_still" in dict(threads)[standing]


def test_a_dump_is_bounded_and_says_what_is_left_out() -> None:
    large = [("a", "x" * 1000)] * (DUMP_LIMIT // 1000 + 20)
    bounded = bounded_threads(large)
    assert sum(len(thread.name) + len(thread.stack) for thread in bounded) <= DUMP_LIMIT + 20
    assert bounded[-1].name == f"{len(large) - len(bounded) + 1} more"
    assert [thread.name for thread in bounded_threads([("a", "b")])] == ["a"]


@pytest.fixture
async def process() -> AsyncIterator[tuple[TaskProcess, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    yield TaskProcess(ours), theirs
    ours.close()
    theirs.close()


@contextlib.asynccontextmanager
async def following(task: TaskProcess) -> AsyncIterator[asyncio.Queue[FromTask]]:
    """What the task tells, read as its TaskExecutor does."""
    told: asyncio.Queue[FromTask] = asyncio.Queue()

    async def follow() -> None:
        async for message in task.messages():
            told.put_nowait(message)

    reading = asyncio.create_task(follow())
    yield told
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)


async def test_a_task_process_tells_its_threads_while_its_main_thread_is_busy(
    process: tuple[TaskProcess, socket.socket], standing: str
) -> None:
    task, theirs = process
    ended = threading.Event()
    TaskControl(BlockingChannel(theirs), Cancellation().request, on_end=ended.set).start()
    async with following(task) as told:
        first, second = await asyncio.wait_for(asyncio.gather(task.thread_dump(), task.thread_dump()), PATIENCE_S)
        assert "in stand_still" in dict(first)[standing]
        assert "in stand_still" in dict(second)[standing]
        assert told.empty(), "a dump is not a message of the task's"
    theirs.shutdown(socket.SHUT_RD)
    assert await asyncio.to_thread(ended.wait, PATIENCE_S), "its thread reads from no descriptor of a later test"


async def test_what_a_task_process_says_of_its_threads_is_not_trusted(
    process: tuple[TaskProcess, socket.socket],
) -> None:
    task, theirs = process
    async with following(task) as told:
        dump = asyncio.create_task(task.thread_dump())
        await asyncio.get_running_loop().run_in_executor(None, theirs.recv, 100)  # it has been asked
        for message in (
            {"type": "Answer"},
            {"type": "Answer", "number": [], "values": 5},
            {"type": "Answer", "number": 7, "values": []},
            {"type": "Answer", "number": 1, "values": [5, ["a"], ["b", 3], {"c": 1}]},
            {"type": "Running"},
        ):
            theirs.sendall(encode(message))
        assert await asyncio.wait_for(dump, PATIENCE_S) == [("b", "3")]
        assert await asyncio.wait_for(told.get(), PATIENCE_S) == Running()


async def test_a_dump_ends_with_its_process(process: tuple[TaskProcess, socket.socket]) -> None:
    task, theirs = process
    dump = asyncio.create_task(task.thread_dump())
    await asyncio.get_running_loop().run_in_executor(None, theirs.recv, 100)  # it has been asked
    task.ended(0)
    with pytest.raises(ZygoteError, match="has ended"):
        await dump


def test_what_a_process_takes_is_sampled_and_a_gone_spark_driver_takes_nothing() -> None:
    metrics = MetricsSampler(2**22 + 1).sample(3)
    assert min(metrics.memory_bytes, metrics.threads, metrics.open_files) > 0
    assert (metrics.spark_memory_bytes, metrics.spark_cpu_s, metrics.tasks) == (0, 0.0, 3)


class Driver:
    """Answers, or not; is gone after its last answer."""

    def __init__(self, *answers: dict[str, int] | Exception | None) -> None:
        self.answers = list(answers)

    info = SimpleNamespace(application="local-1")

    @property
    def alive(self) -> bool:
        return bool(self.answers)

    async def jvm_figures(self) -> dict[str, int] | None:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def cores(self) -> int | None:
        return 2


async def test_the_jvms_figures_are_what_the_driver_says_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnostics, "JVM_INTERVAL_S", 0.0)
    told = {"Memory.Heap.Used": 10, "GarbageCollector.All.Time": 30}
    sampler = MetricsSampler(os.getpid())
    assert (sampler.sample(0).jvm, sampler.sample(0).cores) == ({}, None)
    await sampler.ask_jvm(cast(Any, Driver(told)))
    found = sampler.sample(0).jvm
    assert {name: found[name] for name in told} == told
    assert 0 < found["FileDescriptor.Open"] <= found["FileDescriptor.Max"]
    assert found["GarbageCollector.All.TimeMsPerSecond"] == 0
    assert (sampler.sample(0).cores, sampler.sample(0).application) == (2, "local-1")
    await sampler.ask_jvm(cast(Any, Driver(told, SparkError("it does not answer"))))
    assert (sampler.sample(0).jvm, sampler.sample(0).cores) == ({}, None), "what is not known any more is not told"
    await sampler.ask_jvm(cast(Any, Driver(None, told)))
    assert sampler.sample(0).jvm == {}, "somebody else's JVM is not asked again"


def test_rates_of_the_jvm_are_those_of_the_last_minute() -> None:
    rates = JvmRates(cores=4)
    assert rates.rates(100.0, 8.0, {"All.Time": 500})["CPU.Load"] == 0
    found = rates.rates(110.0, 28.0, {"All.Time": 600, "Threads.Count": 9})
    assert found == {"CPU.Load": 0.5, "All.TimeMsPerSecond": 10.0}
    found = rates.rates(165.0, 28.0, {"All.Time": 655})
    assert found == {"CPU.Load": 0.0, "All.TimeMsPerSecond": 1.0}, "what is older than a minute does not count"


def test_the_state_of_each_thread_is_the_kernels() -> None:
    done, busy = threading.Event(), threading.Event()

    def spin() -> None:
        while not done.is_set():
            busy.set()

    waits = threading.Thread(target=done.wait, name="waits")
    spins = threading.Thread(target=spin, name="spins")
    for thread in (waits, spins):
        thread.start()
    assert busy.wait(PATIENCE_S)
    try:
        states = thread_states()
        assert states["waits"] == "WAITING"
        assert {"spins", "MainThread"} <= set(states)
        assert states["MainThread"] == "RUNNABLE", "it is the one that looks"
        shown = {thread.name: thread.state for thread in bounded_threads(thread_stacks(), states)}
        assert shown["waits"] == "WAITING"
    finally:
        done.set()
        for thread in (waits, spins):
            thread.join()

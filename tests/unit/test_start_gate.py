"""Starts of queries while a job is stopped with a savepoint: those in progress end first, later ones wait."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from runtime.protocol.query_snapshot import QueryLocation
from runtime.spark.errors import StartRefusedError, TaskCancelled
from runtime.spark.messages import Answer, QueryStarts, pack
from runtime.spark.task.control import TaskControl
from runtime.spark.task.start_gate import StartGate
from runtime.spark.task.zygote_client import TaskProcess
from runtime.spark.wire import BlockingChannel, encode
from tests.waiting import PATIENCE_S


class Start:
    """One start of a query, which takes until it may end."""

    def __init__(self, gate: StartGate, **options: Any) -> None:
        self._gate, self._options = gate, options
        self.begun, self.may_end = threading.Event(), threading.Event()

    def __call__(self) -> str:
        with self._gate.passing("counts", **self._options):
            self.begun.set()
            assert self.may_end.wait(PATIENCE_S)
            return "started"


@pytest.fixture
def run() -> Iterator[Callable[[Start], Future[str]]]:
    with ThreadPoolExecutor(2) as threads:
        yield threads.submit


def test_a_start_in_progress_ends_before_further_ones_are_held(run: Callable[[Start], Future[str]]) -> None:
    gate = StartGate()
    first, second = Start(gate), Start(gate)
    started = run(first)
    assert first.begun.wait(PATIENCE_S)
    assert gate.hold(1, timeout_s=0.0) == ["counts"]
    later = run(second)
    assert second.begun.wait(PATIENCE_S), "nothing is held while a query is being started"
    for start in (first, second):
        start.may_end.set()
    assert [each.result(PATIENCE_S) for each in (started, later)] == ["started"] * 2
    assert gate.hold(2, timeout_s=0.0) == []


def test_a_hold_that_waits_is_answered_when_the_query_has_started(run: Callable[[Start], Future[str]]) -> None:
    gate = StartGate()
    start = Start(gate)
    started = run(start)
    assert start.begun.wait(PATIENCE_S)
    with ThreadPoolExecutor(1) as other:
        held = other.submit(gate.hold, 1, PATIENCE_S)
        start.may_end.set()
        assert held.result(PATIENCE_S) == []
    assert started.result(PATIENCE_S) == "started"


def test_held_starts_happen_if_the_job_is_not_stopped(run: Callable[[Start], Future[str]]) -> None:
    gate = StartGate()
    start = Start(gate)
    assert gate.hold(1) == []
    started = run(start)
    assert not start.begun.is_set()
    start.may_end.set()
    gate.decide(1, stops=False)
    assert started.result(PATIENCE_S) == "started"


@pytest.mark.parametrize(
    ("options", "error"), [({}, TaskCancelled), ({"refusal": StartRefusedError}, StartRefusedError)]
)
def test_no_query_starts_once_the_job_is_stopped(
    run: Callable[[Start], Future[str]], options: dict[str, Any], error: type[BaseException]
) -> None:
    gate = StartGate()
    held, late = Start(gate, **options), Start(gate, **options)
    for start in (held, late):
        start.may_end.set()
    assert gate.hold(1) == []
    refused = run(held)
    gate.decide(1, stops=True)
    gate.decide(sys.maxsize, stops=False)
    for each in (refused, run(late)):
        found = each.exception(PATIENCE_S)
        assert isinstance(found, error)
        assert "query counts is not started: the job is stopped" in str(found)
    assert [each.begun.is_set() for each in (held, late)] == [False, False]


def test_a_hold_that_comes_after_its_end_holds_nothing(run: Callable[[Start], Future[str]]) -> None:
    gate = StartGate()
    gate.decide(1, stops=False)
    gate.hold(1)
    start = Start(gate)
    start.may_end.set()
    assert run(start).result(PATIENCE_S) == "started"


async def test_a_process_holds_its_starts_until_its_task_executor_has_decided() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    control = TaskControl(BlockingChannel(theirs), lambda: None, lambda: None)
    serving = asyncio.create_task(asyncio.to_thread(control.serve))
    process = TaskProcess(ours)
    heard = asyncio.create_task(_hear(process))
    start = Start(control.starts)
    start.may_end.set()
    assert await asyncio.wait_for(process.hold_starts(), PATIENCE_S) == []
    started = asyncio.create_task(asyncio.to_thread(start))
    await process.end_hold(stops=False)
    assert await asyncio.wait_for(started, PATIENCE_S) == "started"
    assert await asyncio.wait_for(process.hold_starts(), PATIENCE_S) == []
    process.close()  # its TaskExecutor has gone in the middle of a stop
    await asyncio.wait_for(serving, PATIENCE_S)
    assert await asyncio.wait_for(asyncio.to_thread(start), PATIENCE_S) == "started"
    heard.cancel()
    theirs.close()


async def _hear(process: TaskProcess) -> None:
    async for _ in process.messages():
        pass


async def test_an_answer_comes_after_the_messages_before_it() -> None:
    """Else a stop would not know of a query that has started just before the starts were held."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    process = TaskProcess(ours)
    held = asyncio.create_task(process.hold_starts())
    await asyncio.sleep(0)
    sent = QueryStarts(QueryLocation("counts", "/live", None), -1)
    theirs.sendall(encode(pack(sent)) + encode(pack(Answer(1, []))))
    messages = process.messages()
    assert await asyncio.wait_for(anext(messages), PATIENCE_S) == sent
    for _ in range(10):
        await asyncio.sleep(0)
    assert not held.done()
    following = asyncio.create_task(anext(messages, None))
    assert await asyncio.wait_for(held, PATIENCE_S) == []
    theirs.close()
    assert await asyncio.wait_for(following, PATIENCE_S) is None
    process.close()

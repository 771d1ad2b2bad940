"""The loop of virtual time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from actors.testkit import VirtualLoop
from tests.waiting import PATIENCE_S


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    made = VirtualLoop()
    yield made
    made.run_until_complete(made.shutdown_default_executor())
    made.close()


def test_time_stands_still_unless_driven(loop: VirtualLoop) -> None:
    before = loop.time()
    called: list[float] = []
    loop.call_later(5.0, lambda: called.append(loop.time() - before))
    loop.drive()
    assert (called, loop.time()) == ([], before)
    loop.drive(4.0)
    assert (called, loop.time() - before) == ([], 4.0)
    loop.drive(2.0)
    assert called == [5.0]
    assert loop.time() - before == 6.0


def test_hours_take_no_time(loop: VirtualLoop) -> None:
    async def day() -> str:
        for _ in range(24):
            await asyncio.sleep(3600.0)
        return "over"

    before, real = loop.time(), time.monotonic()
    assert loop.run_until_complete(day()) == "over"
    assert loop.time() - before == pytest.approx(86400.0)
    assert time.monotonic() - real < PATIENCE_S


def test_timers_fire_in_order(loop: VirtualLoop) -> None:
    seen: list[int] = []
    for delay in (3, 1, 2, 1):
        loop.call_later(delay, seen.append, delay)
    loop.drive(10.0)
    assert seen == [1, 1, 2, 3]


def test_until_done(loop: VirtualLoop) -> None:
    before = loop.time()
    future = loop.create_future()
    loop.call_later(3.0, future.set_result, None)
    loop.call_later(4.0, pytest.fail)
    loop.drive(10.0, future.done)
    assert loop.time() - before == 3.0
    assert future.done()


def test_what_is_done_already(loop: VirtualLoop) -> None:
    before = loop.time()
    loop.drive(10.0, lambda: True)
    assert loop.time() == before


def test_threads_are_waited_for(loop: VirtualLoop) -> None:
    released = threading.Event()
    future = loop.run_in_executor(None, released.wait, 10.0)
    threading.Timer(0.05, released.set).start()
    loop.call_later(1.0, lambda: None)
    before = loop.time()
    loop.drive(0.0, future.done)
    assert future.result() is True
    assert loop.time() == before


def test_calls_of_other_threads_arrive(loop: VirtualLoop) -> None:
    seen: list[int] = []
    thread = threading.Thread(target=loop.call_soon_threadsafe, args=(seen.append, 1))
    thread.start()
    thread.join()
    loop.drive()
    assert seen == [1]


def test_driving_from_within(loop: VirtualLoop) -> None:
    errors: list[BaseException] = []

    def drive() -> None:
        try:
            loop.drive()
        except RuntimeError as error:
            errors.append(error)

    loop.call_soon(drive)
    loop.drive()
    assert len(errors) == 1

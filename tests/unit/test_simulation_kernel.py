"""The simulator's kernel: virtual time, kills, stalls, blocking threads, and one trace for one seed."""

from __future__ import annotations

import asyncio
import concurrent.futures
import concurrent.futures.thread as futures_thread
import os
import queue
import random
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.simulation.kernel import Kernel, ProcessKilled, SimulationError
from tests.simulation.patches import installed
from tests.waiting import PATIENCE_S


def test_time_passes_only_in_the_simulation() -> None:
    began = time.monotonic()
    seen: list[float] = []

    async def main() -> None:
        for _ in range(3):
            await asyncio.sleep(1000)
            seen.append(round(time.monotonic() - start, 3))

    kernel = Kernel(1)
    with installed(kernel):
        host = kernel.add_host("one")
        start = host.monotonic(0) / 1e9
        process = host.start("main", main)
        kernel.run(until_s=5000)
        assert process.exit_code == 0
    assert seen == [1000.0, 2000.0, 3000.0]
    assert time.monotonic() - began < PATIENCE_S


def test_a_thread_of_the_test_process_goes_on_and_changes_nothing() -> None:
    begun, ended = threading.Event(), threading.Event()
    turns: list[int] = []

    def stranger() -> None:
        while not ended.is_set():
            time.sleep(0.0001)
            turns.append(len(os.urandom(4)) + random.getrandbits(1))
            begun.set()

    async def main() -> None:
        for _ in range(3000):
            await asyncio.sleep(random.random())
            drawn.append(random.random())

    drawn: list[float] = []
    for beside in (False, True):
        thread = threading.Thread(target=stranger)
        kernel = Kernel(1)
        if beside:
            thread.start()
            assert begun.wait(PATIENCE_S)
        before = len(turns)
        with installed(kernel):
            process = kernel.add_host("one").start("main", main)
            kernel.run(until_s=5000)
            assert process.exit_code == 0
    assert thread.is_alive()
    assert len(turns) > before
    ended.set()
    thread.join()
    assert drawn[:3000] == drawn[3000:]


def test_clocks_of_hosts_differ_and_only_boot_time_runs_through_suspend() -> None:
    seen = {}

    async def main(name: str) -> None:
        first = time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME), time.time()
        await asyncio.sleep(10)
        last = time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME), time.time()
        seen[name] = [round(after - before, 2) for before, after in zip(first, last, strict=True)]

    kernel = Kernel(1)
    with installed(kernel):
        one, two = kernel.add_host("one", wall_offset_s=100), kernel.add_host("two", drift=0.01)
        for host in (one, two):
            host.start(host.name, main, host.name)
        kernel.after(1, one.suspend)
        kernel.after(6, one.resume)
        kernel.after(7, one.jump, -50)
        kernel.run(until_s=100)
    assert seen == {"one": [10.0, 15.0, -35.0], "two": [10.0, 10.0, 10.0]}


def test_a_killed_process_runs_nothing_any_more() -> None:
    done: list[float] = []

    async def main() -> None:
        process = kernel.current
        assert process is not None
        try:
            while True:
                await asyncio.sleep(1)
                process.effect()
                done.append(time.monotonic())
        finally:
            with pytest.raises(ProcessKilled):
                process.effect()

    kernel = Kernel(1)
    with installed(kernel):
        process = kernel.add_host("one").start("main", main)
        kernel.after(0.5, process.kill_at_effect, 4)
        kernel.run(until_s=100)
        assert process.exit_code == -9
        assert len(done) == 3
        assert kernel.complaints == []


def test_a_stall_in_the_middle_of_code_shows_on_its_clock_and_delays_the_rest() -> None:
    seen: list[float] = []

    async def main() -> None:
        process = kernel.current
        assert process is not None
        before = time.monotonic()
        process.effect()
        seen.append(round(time.monotonic() - before, 3))
        await asyncio.sleep(0)
        seen.append(round(time.monotonic() - before, 3))

    kernel = Kernel(1)
    with installed(kernel):
        process = kernel.add_host("one").start("main", main)
        process.stall_at_effect(1, 3.0)
        kernel.run(until_s=2.9)
        assert process.alive
        kernel.run(until_s=3.1)
        assert not process.alive
    assert seen == [3.0, 3.0]


def test_a_frozen_process_goes_on_where_it_was() -> None:
    seen: list[float] = []

    async def main() -> None:
        for _ in range(3):
            await asyncio.sleep(1)
            seen.append(kernel.seconds)

    kernel = Kernel(1)
    with installed(kernel):
        process = kernel.add_host("one").start("main", main)
        kernel.after(1.5, process.freeze)
        kernel.after(10, process.thaw)
        kernel.run(until_s=100)
    assert [round(at) for at in seen] == [1, 10, 11]


def slow_square(number: int) -> int:
    """Take a second."""
    time.sleep(1)
    return number * number


def blocking_program(log: list[str]) -> None:
    """Use what blocks: threads, queues, conditions, executors, and loops in threads."""
    items: queue.Queue[int | None] = queue.Queue(maxsize=2)
    rng = random.Random()

    def produce() -> None:
        for number in range(5):
            time.sleep(rng.random())
            items.put(number)
        items.put(None)

    producer = threading.Thread(target=produce, name="producer")
    producer.start()
    while (item := items.get()) is not None:
        time.sleep(rng.random() / 2)
        log.append(f"{item} at {time.monotonic():.6f}")
    producer.join()
    assert not producer.is_alive()
    assert not threading.Event().wait(2.0)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        log.extend(str(value) for value in pool.map(slow_square, range(4)))

    async def inside() -> str:
        first = asyncio.to_thread(time.sleep, 1)
        second = asyncio.sleep(2, "slept")
        return (await asyncio.gather(first, second))[1]

    log.append(asyncio.run(inside()))
    log.append(f"{uuid.uuid4()} {os.getpid()} at {time.monotonic():.6f}")


def test_threads_block_in_virtual_time_and_in_the_same_order_for_a_seed() -> None:
    logs = []
    for seed in (5, 5, 6):
        log: list[str] = []
        kernel = Kernel(seed)
        with installed(kernel):
            process = kernel.add_host("one").start("main", blocking_program, log)
            kernel.run(until_s=1000)
            assert process.exit_code == 0, kernel.complaints
        logs.append(log)
    assert logs[0] == logs[1]
    assert logs[0] != logs[2]
    assert logs[0][5:10] == ["0", "1", "4", "9", "slept"]


@pytest.mark.parametrize("driven", [True, False])
def test_a_reply_wakes_a_loop_at_once_also_one_that_runs_in_a_thread(driven: bool) -> None:
    seen: list[float] = []

    async def ask() -> None:
        reply = asyncio.get_running_loop().create_future()
        kernel.after(0.25, reply.set_result, None)  # as a model of a server settles it, outside of the process
        async with asyncio.timeout(1.0):
            await reply
        seen.append(kernel.seconds)

    kernel = Kernel(1)
    with installed(kernel):
        kernel.add_host("one").start("main", ask if driven else lambda: asyncio.run(ask()))
        kernel.run(until_s=5)
    assert seen == [0.25]


def test_a_thread_that_sleeps_alone_keeps_control_and_passes_over_nothing() -> None:
    seen: list[tuple[str, float]] = []

    def sleep() -> None:
        for _ in range(100):
            time.sleep(1.0)
        seen.append(("sleeper", round(time.monotonic() - start)))

    def look() -> None:
        seen.append(("event", kernel.seconds))

    kernel = Kernel(1)
    with installed(kernel):
        host = kernel.add_host("one")
        start = host.monotonic(0) / 1e9
        process = host.start("sleeper", sleep)
        kernel.after(10.5, look)
        kernel.run(until_s=50)
        assert seen == [("event", 10.5)]
        assert kernel.seconds == 50
        assert process.alive
        kernel.run(until_s=200, stop=lambda: kernel.seconds > 70)
        assert 70 < kernel.seconds < 72
        kernel.run(until_s=200)
    assert seen == [("event", 10.5), ("sleeper", 100)]
    assert kernel.steps < 10


def test_an_event_that_time_has_passed_is_reported() -> None:
    kernel = Kernel(1)
    with installed(kernel):
        kernel.add_host("one").start("sleeper", time.sleep, 20.0)
        kernel.after(1.0, list)
        kernel.run(until_s=0.5)
        kernel.now = 2_000_000_000
        with pytest.raises(SimulationError, match=r"the clock is at 2\.0 s, and an event was due at 1\.0 s"):
            kernel.run(until_s=50)


def test_a_process_that_is_stopped_in_a_thread_does_not_go_on_after_its_sleep() -> None:
    seen: list[float] = []

    def stop_itself() -> None:
        time.sleep(0.5)  # by now nothing else is due
        process.freeze()
        time.sleep(1.0)
        seen.append(kernel.seconds)

    kernel = Kernel(1)
    with installed(kernel):
        process = kernel.add_host("one").start("main", stop_itself)
        kernel.run(until_s=50)
        assert seen == []
        process.thaw()
        kernel.run(until_s=60)
    assert seen == [50]


def test_a_killed_process_with_blocked_threads_leaves_none() -> None:
    def main() -> None:
        lock = threading.Lock()
        lock.acquire()
        others = [threading.Thread(target=lock.acquire), threading.Thread(target=time.sleep, args=(1e6,))]
        for other in others:
            other.start()
        for other in others:
            other.join()

    kernel = Kernel(1)
    before = threading.active_count()
    with installed(kernel):
        process = kernel.add_host("one").start("main", main)
        kernel.run(until_s=10)
        waits = kernel.describe_waits()
        process.kill()
        assert process.threads == []
    assert "a lock" in waits
    assert "sleep(1e+06)" in waits
    assert threading.active_count() == before


def test_a_killed_thread_that_waits_for_a_condition_unwinds_without_its_lock() -> None:
    failed: list[BaseException] = []

    def main() -> None:
        changed = threading.Condition()

        def wait() -> None:
            try:
                with changed:
                    changed.wait()
            except RuntimeError as error:
                failed.append(error)

        threading.Thread(target=wait).start()
        time.sleep(1)
        with changed:
            changed.notify_all()
            time.sleep(1e6)

    kernel = Kernel(1)
    with installed(kernel):
        process = kernel.add_host("one").start("main", main)
        kernel.run(until_s=10)
        process.kill()
        assert process.threads == []
    assert failed == []


def test_a_loop_that_spins_is_reported() -> None:
    async def main() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(0)

    kernel = Kernel(1)
    with installed(kernel):
        kernel.add_host("one").start("main", main)
        with pytest.raises(SimulationError, match="spins"):
            kernel.run(until_s=1)


def test_a_driven_loop_that_would_block_is_reported() -> None:
    async def main() -> None:
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()

    kernel = Kernel(1)
    with installed(kernel):
        process = kernel.add_host("one").start("main", main)
        kernel.run(until_s=1)
        assert isinstance(process.error, SimulationError)


def test_all_is_undone_afterwards() -> None:
    before = (time.time, os.urandom, random.random, threading.Lock, threading.Thread.start, os.getpid)
    with installed(Kernel(1)):
        assert time.time is not before[0]
    assert (time.time, os.urandom, random.random, threading.Lock, threading.Thread.start, os.getpid) == before


def test_the_threads_of_a_pool_are_the_same_whatever_the_standard_library_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.12 starts a third thread here: there, one with a request ahead of it is not idle."""
    monkeypatch.setattr(futures_thread, "_worker", lambda *_: pytest.fail("a thread of the standard library"))
    seen: list[tuple[str, str]] = []

    def main() -> None:
        def note(what: str) -> None:
            seen.append((what, threading.current_thread().name))

        def note_and_submit() -> None:
            note("second")
            pool.submit(note, "third")

        with ThreadPoolExecutor(8, "pool") as pool:
            pool.submit(note, "first")
            pool.submit(note_and_submit)
            time.sleep(1)
            assert len(pool._threads) == 2

    kernel = Kernel(1)
    with installed(kernel):
        process = kernel.add_host("one").start("main", main)
        kernel.run(until_s=10)
        assert process.exit_code == 0, kernel.complaints
    assert seen == [("first", "pool_0"), ("second", "pool_0"), ("third", "pool_0")]


def test_a_pool_that_nobody_has_any_more_ends_its_threads() -> None:
    def main() -> None:
        ThreadPoolExecutor(1, "pool").submit(int).result()
        time.sleep(1)

    kernel = Kernel(1)
    with installed(kernel):
        process = kernel.add_host("one").start("main", main)
        kernel.after(0.5, lambda: names.extend(thread.name for thread in process.threads))
        names: list[str] = []
        kernel.run(until_s=10)
        assert process.exit_code == 0, kernel.complaints
    assert names == ["MainThread"]

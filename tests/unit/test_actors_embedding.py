"""A plain `select` loop plays Thespian: it watches the one descriptor and gives the loop a turn when it is readable."""

from __future__ import annotations

import asyncio
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from actors.process.loops import LINGER_S, TURN_BUDGET_S, EmbeddedLoop
from tests.waiting import PATIENCE_S

DEADLINE_S = PATIENCE_S


@pytest.fixture
def embedded() -> Iterator[EmbeddedLoop]:
    embedded = EmbeddedLoop()
    yield embedded
    with embedded.outside_thespian():
        embedded.loop.run_until_complete(asyncio.sleep(0))
    embedded.close()
    asyncio.set_event_loop(None)


def readable(embedded: EmbeddedLoop, timeout_s: float) -> bool:
    return bool(select.select([embedded.fileno()], [], [], timeout_s)[0])


def play_thespian(embedded: EmbeddedLoop, until: Callable[[], bool]) -> int:
    """Wake the loop by its descriptor only, until the condition holds; returns the number of wake-ups."""
    deadline, turns = time.monotonic() + DEADLINE_S, 0
    while not until():
        if not readable(embedded, max(deadline - time.monotonic(), 0.0)):
            raise AssertionError(f"nothing woke the loop within {DEADLINE_S} s ({turns} turns)")
        embedded.turn()
        turns += 1
    return turns


def settle(embedded: EmbeddedLoop) -> None:
    """Give turns until nothing is due any more."""
    deadline = time.monotonic() + DEADLINE_S
    while readable(embedded, 0.05):
        assert time.monotonic() < deadline, "the loop never comes to rest"
        embedded.turn()


def test_an_idle_loop_asks_for_no_turn(embedded: EmbeddedLoop) -> None:
    settle(embedded)
    assert not readable(embedded, 0.2)


@pytest.mark.parametrize("delay_s", [0.0, LINGER_S / 2, LINGER_S, 5 * LINGER_S, 0.1])
def test_a_timer_fires_by_a_wake_up_of_its_own(embedded: EmbeddedLoop, delay_s: float) -> None:
    settle(embedded)
    fired: list[float] = []
    begin = time.monotonic()
    with embedded.outside_thespian():
        embedded.loop.call_later(delay_s, lambda: fired.append(time.monotonic()))
    play_thespian(embedded, lambda: bool(fired))
    assert fired[0] - begin >= delay_s - 1e-3


def test_timers_fire_in_their_order_and_far_ones_do_not_burn_turns(embedded: EmbeddedLoop) -> None:
    fired: list[int] = []

    def arrange() -> None:
        for number, delay_s in ((3, 0.15), (1, 0.02), (2, 0.08)):
            embedded.loop.call_later(delay_s, fired.append, number)

    embedded.loop.call_soon_threadsafe(arrange)
    turns = play_thespian(embedded, lambda: len(fired) == 3)
    assert fired == [1, 2, 3]
    assert turns < 20


def test_a_cancelled_timer_does_not_fire_and_the_loop_comes_to_rest(embedded: EmbeddedLoop) -> None:
    fired: list[str] = []
    done: list[bool] = []

    def arrange() -> None:
        embedded.loop.call_later(0.03, fired.append, "cancelled").cancel()
        embedded.loop.call_later(0.06, done.append, True)

    embedded.loop.call_soon_threadsafe(arrange)
    play_thespian(embedded, lambda: bool(done))
    assert fired == []
    settle(embedded)


def test_call_soon_threadsafe_wakes_a_sleeping_loop(embedded: EmbeddedLoop) -> None:
    settle(embedded)
    called: list[int] = []
    thread = threading.Timer(0.05, lambda: embedded.loop.call_soon_threadsafe(called.append, 1))
    thread.start()
    play_thespian(embedded, lambda: bool(called))
    thread.join()


def test_an_executor_brings_its_result_back(embedded: EmbeddedLoop) -> None:
    results: list[int] = []

    async def work() -> None:
        results.append(await embedded.loop.run_in_executor(None, os.getpid))

    with embedded.outside_thespian():
        task = embedded.loop.create_task(work())
    play_thespian(embedded, task.done)
    assert results == [os.getpid()]
    with embedded.outside_thespian():
        embedded.loop.run_until_complete(embedded.loop.shutdown_default_executor())


def test_sockets_wake_the_loop(embedded: EmbeddedLoop) -> None:
    echoed: list[bytes] = []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        echoed.append(await reader.readexactly(5))
        writer.write(echoed[0])
        await writer.drain()
        writer.close()

    async def listen() -> asyncio.Server:
        return await asyncio.start_server(echo, "127.0.0.1", 0)

    with embedded.outside_thespian():
        server = embedded.loop.run_until_complete(listen())
    received: list[bytes] = []

    def ask() -> None:
        with socket.create_connection(server.sockets[0].getsockname(), timeout=DEADLINE_S) as sock:
            sock.sendall(b"hello")
            received.append(sock.recv(100))

    thread = threading.Thread(target=ask)
    thread.start()
    play_thespian(embedded, lambda: bool(echoed))  # not until it is received: that wakes nothing
    thread.join()
    assert received == [b"hello"]
    server.close()


def test_what_is_made_ready_outside_thespian_runs_at_the_next_turn(embedded: EmbeddedLoop) -> None:
    settle(embedded)
    called: list[str] = []
    with embedded.outside_thespian():
        embedded.loop.call_soon(called.append, "made ready without a wake-up of its own")
    assert called == []
    assert readable(embedded, DEADLINE_S)
    embedded.turn()
    assert called == ["made ready without a wake-up of its own"]


def test_a_task_begun_outside_thespian_goes_on_inside(embedded: EmbeddedLoop) -> None:
    steps: list[int] = []

    async def work() -> None:
        for step in range(5):
            steps.append(step)
            await asyncio.sleep(0.005)

    async def begin() -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work())
        await asyncio.sleep(0)
        return task

    with embedded.outside_thespian():
        task = embedded.loop.run_until_complete(begin())
    assert steps == [0]
    play_thespian(embedded, task.done)
    assert steps == [0, 1, 2, 3, 4]


def test_outside_thespian_the_loop_sleeps_as_an_ordinary_one(embedded: EmbeddedLoop) -> None:
    begin = time.monotonic()
    with embedded.outside_thespian():
        embedded.loop.run_until_complete(asyncio.sleep(20 * LINGER_S))
    assert time.monotonic() - begin >= 20 * LINGER_S - 1e-3


class WorkClock:
    """Time that passes only while the loop works: how busy the machine is does not count."""

    STEP_S = TURN_BUDGET_S / 10

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def work(self) -> None:
        self.now += self.STEP_S

    def length_of_turn(self, embedded: EmbeddedLoop) -> float:
        assert readable(embedded, DEADLINE_S), "a loop with ready work must ask for its next turn by itself"
        begin = self.now
        embedded.turn()
        return self.now - begin


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> WorkClock:
    clock = WorkClock()
    monkeypatch.setattr("actors.process.loops.time", clock)
    return clock


IN_BUDGET = pytest.approx(TURN_BUDGET_S, abs=2 * WorkClock.STEP_S + 1e-9)


def test_a_busy_loop_gives_thespian_its_turn_within_the_budget_and_goes_on(
    embedded: EmbeddedLoop, clock: WorkClock
) -> None:
    busy = True

    def work() -> None:
        clock.work()
        if busy:
            embedded.loop.call_soon(work)

    embedded.loop.call_soon_threadsafe(work)
    for _ in range(20):
        assert clock.length_of_turn(embedded) == IN_BUDGET
    busy = False
    settle(embedded)


def test_a_flood_of_socket_data_does_not_hold_thespian_up(embedded: EmbeddedLoop, clock: WorkClock) -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    received = 0

    def on_readable() -> None:
        nonlocal received
        received += len(ours.recv(65536))
        clock.work()

    embedded.loop.add_reader(ours, on_readable)
    stop = threading.Event()

    def flood() -> None:
        theirs.settimeout(0.1)
        while not stop.is_set():
            try:
                theirs.send(bytes(65536))
            except TimeoutError:
                continue

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        for _ in range(20):
            assert clock.length_of_turn(embedded) <= TURN_BUDGET_S + 2 * WorkClock.STEP_S
    finally:
        stop.set()
        thread.join()
        embedded.loop.remove_reader(ours)
        ours.close()
        theirs.close()
    assert received > 0


def test_an_exception_in_a_callback_does_not_leave_the_turn(embedded: EmbeddedLoop) -> None:
    reported: list[str] = []
    embedded.loop.set_exception_handler(lambda _, context: reported.append(str(context.get("exception"))))
    called: list[int] = []

    def fail() -> None:
        raise ValueError("in a callback")

    embedded.loop.call_soon_threadsafe(fail)
    embedded.loop.call_soon_threadsafe(called.append, 1)
    play_thespian(embedded, lambda: bool(called))
    assert reported == ["in a callback"]


def test_close_gives_all_descriptors_back() -> None:
    def count() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = count()
    for _ in range(5):
        embedded = EmbeddedLoop()
        with embedded.outside_thespian():
            embedded.loop.run_until_complete(asyncio.sleep(0))
        embedded.close()
    asyncio.set_event_loop(None)
    assert count() == before


def test_a_turn_that_is_over_before_it_begins_still_asks_for_the_next(
    embedded: EmbeddedLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine the time of a turn may be over at its first look, while the timer that woke it is ready."""
    settle(embedded)
    monkeypatch.setattr("actors.process.loops.TURN_BUDGET_S", 0.0)
    steps: list[int] = []

    def step() -> None:
        steps.append(len(steps))
        if len(steps) < 50:
            embedded.loop.call_soon(step)

    with embedded.outside_thespian():
        embedded.loop.call_soon(step)
    play_thespian(embedded, lambda: len(steps) == 50)


# ------------------------------------------------------------------ direct callbacks


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.settimeout(DEADLINE_S)
    yield ours, theirs
    ours.close()
    theirs.close()


def test_a_direct_reader_wakes_the_loop_and_is_called_without_asyncio(
    embedded: EmbeddedLoop, pair: tuple[socket.socket, socket.socket]
) -> None:
    settle(embedded)
    ours, theirs = pair
    received: list[bytes] = []
    embedded.loop.add_direct_reader(ours.fileno(), lambda: received.append(ours.recv(100)))
    theirs.send(b"x")
    assert play_thespian(embedded, lambda: received == [b"x"]) == 1
    embedded.loop.remove_direct_reader(ours.fileno())
    theirs.send(b"y")
    assert not readable(embedded, 0.1)


def test_one_turn_serves_a_serial_asker_for_as_long_as_it_goes_on(
    embedded: EmbeddedLoop, pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(embedded)
    monkeypatch.setattr("actors.process.loops.TURN_BUDGET_S", DEADLINE_S)
    monkeypatch.setattr("actors.process.loops.LINGER_S", 0.2)
    ours, theirs = pair
    embedded.loop.add_direct_reader(ours.fileno(), lambda: ours.send(ours.recv(100)))
    answered: list[bytes] = []

    def ask() -> None:
        for number in range(100):
            theirs.send(b"%d" % number)
            answered.append(theirs.recv(100))

    thread = threading.Thread(target=ask)
    thread.start()
    assert play_thespian(embedded, lambda: len(answered) == 100) == 1
    thread.join()
    embedded.loop.remove_direct_reader(ours.fileno())


def test_work_that_a_direct_callback_makes_runs_at_once(
    embedded: EmbeddedLoop, pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(embedded)
    monkeypatch.setattr("actors.process.loops.LINGER_S", DEADLINE_S)
    ours, theirs = pair
    steps: list[str] = []

    async def work() -> None:
        steps.append("task")
        await asyncio.sleep(0.01)
        steps.append("slept")

    tasks: list[asyncio.Task[None]] = []
    future: asyncio.Future[None] = embedded.loop.create_future()
    future.add_done_callback(lambda _: steps.append("future"))

    def on_readable() -> None:
        ours.recv(100)
        embedded.loop.call_soon(steps.append, "soon")
        embedded.loop.call_later(0.005, steps.append, "later")
        future.set_result(None)
        tasks.append(embedded.loop.create_task(work()))
        tasks[0].add_done_callback(lambda _: monkeypatch.setattr("actors.process.loops.LINGER_S", 0.001))

    embedded.loop.add_direct_reader(ours.fileno(), on_readable)
    theirs.send(b"x")
    play_thespian(embedded, lambda: "slept" in steps)
    assert steps == ["soon", "future", "task", "later", "slept"]
    embedded.loop.remove_direct_reader(ours.fileno())


def test_a_timer_that_is_due_is_not_held_up_by_direct_callbacks(
    embedded: EmbeddedLoop, pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(embedded)
    monkeypatch.setattr("actors.process.loops.TURN_BUDGET_S", DEADLINE_S)
    ours, theirs = pair
    theirs.send(b"never read, so it is always ready")
    calls: list[float] = []
    fired: list[float] = []
    with embedded.outside_thespian():
        embedded.loop.call_later(0.05, lambda: fired.append(time.monotonic()))
        embedded.loop.add_direct_reader(ours.fileno(), lambda: calls.append(time.monotonic()))
    begin = time.monotonic()

    def stop() -> None:
        embedded.loop.remove_direct_reader(ours.fileno())

    embedded.loop.call_soon_threadsafe(lambda: embedded.loop.call_later(0.1, stop))
    play_thespian(embedded, lambda: bool(fired))
    assert fired[0] - begin < DEADLINE_S, "it waited for the end of the turn"
    assert len(calls) > 100
    stop()


def test_a_flood_for_a_direct_reader_does_not_hold_thespian_up(
    embedded: EmbeddedLoop, pair: tuple[socket.socket, socket.socket], clock: WorkClock
) -> None:
    settle(embedded)
    ours, theirs = pair
    theirs.send(b"never read, so it is always ready")
    embedded.loop.add_direct_reader(ours.fileno(), clock.work)
    for _ in range(20):
        assert clock.length_of_turn(embedded) == IN_BUDGET
    embedded.loop.remove_direct_reader(ours.fileno())


def test_what_a_direct_callback_raises_goes_to_the_exception_handler(
    embedded: EmbeddedLoop, pair: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = pair
    reported: list[str] = []
    embedded.loop.set_exception_handler(lambda _, context: reported.append(str(context.get("exception"))))

    def fail() -> None:
        ours.recv(100)
        raise ValueError("in a direct callback")

    embedded.loop.add_direct_reader(ours.fileno(), fail)
    theirs.send(b"x")
    play_thespian(embedded, lambda: bool(reported))
    assert reported == ["in a direct callback"]
    theirs.send(b"x")
    play_thespian(embedded, lambda: len(reported) == 2)
    embedded.loop.remove_direct_reader(ours.fileno())


def test_direct_writers_hang_ups_and_callbacks_that_remove_each_other(
    embedded: EmbeddedLoop, pair: tuple[socket.socket, socket.socket]
) -> None:
    settle(embedded)
    ours, theirs = pair
    events: list[str] = []

    def on_writable() -> None:
        events.append("writable")
        embedded.loop.remove_direct_writer(ours.fileno())

    def on_readable() -> None:
        events.append("readable" if ours.recv(100) else "ended")
        if events[-1] == "ended":
            embedded.loop.remove_direct_reader(ours.fileno())

    embedded.loop.add_direct_reader(ours.fileno(), on_readable)
    embedded.loop.add_direct_writer(ours.fileno(), on_writable)
    with pytest.raises(KeyError):
        embedded.loop.add_reader(ours, on_readable)
    play_thespian(embedded, lambda: events == ["writable"])
    theirs.send(b"x")
    play_thespian(embedded, lambda: events == ["writable", "readable"])
    theirs.close()
    play_thespian(embedded, lambda: events == ["writable", "readable", "ended"])
    settle(embedded)


def test_direct_callbacks_run_outside_thespian_too(
    embedded: EmbeddedLoop, pair: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = pair
    future: asyncio.Future[bytes] = embedded.loop.create_future()
    embedded.loop.add_direct_reader(ours.fileno(), lambda: future.set_result(ours.recv(100)))
    theirs.send(b"x")
    with embedded.outside_thespian():
        assert embedded.loop.run_until_complete(asyncio.wait_for(future, DEADLINE_S)) == b"x"
    embedded.loop.remove_direct_reader(ours.fileno())


def test_a_descriptor_belongs_to_asyncio_or_is_direct(
    embedded: EmbeddedLoop, pair: tuple[socket.socket, socket.socket]
) -> None:
    ours, _ = pair
    embedded.loop.add_reader(ours, lambda: None)
    with pytest.raises(KeyError):
        embedded.loop.add_direct_reader(ours.fileno(), lambda: None)
    embedded.loop.remove_reader(ours)

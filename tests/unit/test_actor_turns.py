"""Turns: fairness, order, senders, and what other threads may do."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from actors.actor import Actor
from actors.errors import AskTimeout, MailboxFull, RecipientTerminated
from actors.mailbox import BoundedMailbox, ControlAwareMailbox, PriorityMailbox
from actors.messages import (
    ControlMessage,
    DeadLetter,
    Failure,
    NotInfluenceReceiveTimeout,
    ReceiveTimeout,
    Terminated,
)
from actors.props import Props
from actors.ref import ActorRef
from actors.serialization import message
from actors.system_config import SystemConfig
from actors.testkit import DeterministicSystem, TestProbe
from tests.waiting import PATIENCE_S

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="")


@pytest.fixture
def system() -> Iterator[DeterministicSystem]:
    with DeterministicSystem() as made:
        yield made


@pytest.fixture
def probe(system: DeterministicSystem) -> TestProbe:
    return TestProbe(system)


class Log(Actor):
    """Writes down what it gets, with its name, into a list of the test's."""

    def __init__(self, name: str, seen: list[Any]) -> None:
        self.name = name
        self.seen = seen

    def receive(self, message: Any) -> None:
        self.seen.append((self.name, message))


def test_turns_are_shared(system: DeterministicSystem) -> None:
    seen: list[Any] = []
    one = system.actor_of(Props(Log, "one", seen).with_throughput(2))
    two = system.actor_of(Props(Log, "two", seen))
    for number in range(5):
        one.tell(number)
    two.tell("x")
    system.run_until_idle()
    assert seen.index(("two", "x")) == 2
    assert [what for name, what in seen if name == "one"] == [0, 1, 2, 3, 4]


def test_timers_get_their_turn_between_those_of_actors(system: DeterministicSystem) -> None:
    class Busy(Actor):
        def receive(self, message: Any) -> None:
            if message:
                self.self_ref.tell(message - 1)

    busy = system.actor_of(Props(Busy).with_throughput(1))
    busy.tell(10_000)
    called: list[int] = []
    system.loop.call_soon(lambda: system.loop.call_soon(called.append, 1))
    system.loop.drive(0.0, lambda: bool(called))
    assert called


class Context(Actor):
    """Leaks a context variable, as user code may."""

    def receive(self, message: Any) -> None:
        self.reply(variable.get())
        variable.set(message)


def test_context_variables_do_not_leak(system: DeterministicSystem) -> None:
    one, two = system.actor_of(Props(Context)), system.actor_of(Props(Context))
    asks = [ref.ask(f"set by {number}") for number, ref in enumerate((one, two, one))]
    assert [ask.result() for ask in asks][:2] == ["", ""]


class Async(Actor):
    """Tells from a coroutine, and from a task that it starts."""

    def __init__(self, probe: ActorRef) -> None:
        self.probe = probe

    async def receive(self, message: Any) -> None:
        await asyncio.sleep(0.1)
        self.probe.tell("handler")
        await asyncio.create_task(self.more())
        self.reply(message)

    async def more(self) -> None:
        self.probe.tell("task")


def test_the_sender_in_coroutines(system: DeterministicSystem, probe: TestProbe) -> None:
    actor = system.actor_of(Props(Async, probe.ref))
    probe.send(actor, "x")
    for expected in ("handler", "task", "x"):
        probe.expect_msg(expected)
        assert probe.last_sender == actor


def test_no_sender_outside(system: DeterministicSystem, probe: TestProbe) -> None:
    probe.ref.tell("x")
    probe.expect_msg("x")
    assert probe.last_sender == system.dead_letters


class Worker(Actor):
    """Works in a thread."""

    def __init__(self, probe: ActorRef) -> None:
        self.probe = probe

    async def receive(self, message: Any) -> None:
        match message:
            case "thread":
                self.reply(await self.context.run_blocking(self.work))
            case "pipe":
                self.context.pipe_to(self.context.run_blocking(self.work), self.probe)
            case "fail":
                self.context.pipe_to(self.context.run_blocking(int, "x"), self.probe)

    def work(self) -> bool:
        self.probe.tell("working")
        return threading.current_thread() is threading.main_thread()


def test_run_blocking(system: DeterministicSystem, probe: TestProbe) -> None:
    worker = system.actor_of(Props(Worker, probe.ref))
    assert worker.ask("thread").result() is False
    probe.expect_msg("working")
    assert probe.last_sender == worker
    worker.tell("pipe")
    assert probe.receive_n(2) == ["working", False]
    worker.tell("fail")
    failure = probe.expect_msg_type(Failure)
    assert isinstance(failure.error, ValueError)
    assert probe.last_sender == worker


def test_other_threads(system: DeterministicSystem) -> None:
    seen: list[Any] = []
    actors = [system.actor_of(Props(Log, str(number), seen)) for number in range(3)]

    def send(number: int) -> None:
        for count in range(200):
            actors[number].tell((number, count))

    threads = [threading.Thread(target=send, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    system.run_until_idle()
    for number in range(3):
        assert [what for name, what in seen if name == str(number)] == [(number, count) for count in range(200)]


def test_a_fast_thread_waits(system: DeterministicSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.core.node.POST_LIMIT", 10)
    seen: list[Any] = []
    log = system.actor_of(Props(Log, "log", seen))
    sent = threading.Semaphore(0)

    def send() -> None:
        for number in range(100):
            log.tell(number)
            sent.release()

    thread = threading.Thread(target=send)
    thread.start()
    for _ in range(10):
        assert sent.acquire(timeout=PATIENCE_S)
    assert not sent.acquire(timeout=0.05)
    while thread.is_alive():
        system.run_until_idle()
        thread.join(0.001)
    system.run_until_idle()
    assert [what for _, what in seen] == list(range(100))


def test_asks_of_other_threads(system: DeterministicSystem) -> None:
    class Echo(Actor):
        def receive(self, message: Any) -> None:
            self.reply(message)

    echo = system.actor_of(Props(Echo))
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(echo.ask("x", 10.0).result()))
    thread.start()
    while thread.is_alive():
        system.run_until_idle()
        thread.join(0.001)
    assert results == ["x"]


@message
class Urgent(ControlMessage):
    """Passes others."""


class Slow(Actor):
    """Handles a message a second; its own timers and watches go through its mailbox as well."""

    def __init__(self, probe: ActorRef, watched: ActorRef | None = None) -> None:
        self.probe = probe
        if watched is not None:
            self.context.watch(watched)

    async def receive(self, message: Any) -> None:
        match message:
            case Terminated():
                self.probe.tell("terminated")
            case ("timer", what):
                self.timers.start_single_timer("key", what, 0.5)
            case _:
                await asyncio.sleep(1.0)
                self.probe.tell(message)


def test_a_full_mailbox_takes_what_is_the_runtimes(system: DeterministicSystem, probe: TestProbe) -> None:
    watched = system.actor_of(Props(Async, probe.ref))
    slow = system.actor_of(Props(Slow, probe.ref, watched).with_mailbox(BoundedMailbox(1)))
    system.run_until_idle()
    slow.tell("one")
    system.run_until_idle()
    slow.tell("two")
    with pytest.raises(MailboxFull):
        slow.tell("three")
    with pytest.raises(MailboxFull):
        slow.ask("four").result()
    system.stop(watched)
    assert probe.receive_n(3) == ["one", "terminated", "two"]


def by_length(message: Any) -> int:
    return -len(message)


def test_the_mailbox_sees_the_message_of_a_timer(system: DeterministicSystem, probe: TestProbe) -> None:
    slow = system.actor_of(Props(Slow, probe.ref).with_mailbox(PriorityMailbox(by_length)))
    for each in (("timer", "longest"), "first", "long", "s"):
        slow.tell(each)
        system.run_until_idle()
    assert probe.receive_n(4) == ["first", "longest", "long", "s"]


def test_control_messages(system: DeterministicSystem, probe: TestProbe) -> None:
    slow = system.actor_of(Props(Slow, probe.ref).with_mailbox(ControlAwareMailbox()))
    slow.tell("one")
    system.run_until_idle()
    for each in ("two", Urgent()):
        slow.tell(each)
    assert probe.receive_n(3) == ["one", Urgent(), "two"]


def test_a_refused_message_of_another_thread_is_a_dead_letter(system: DeterministicSystem, probe: TestProbe) -> None:
    system.event_stream.subscribe(probe.ref, DeadLetter)
    slow = system.actor_of(Props(Slow, probe.ref).with_mailbox(BoundedMailbox(1)))
    slow.tell("one")
    system.run_until_idle()
    slow.tell("two")
    thread = threading.Thread(target=slow.tell, args=("three",))
    thread.start()
    thread.join()
    assert probe.expect_msg_type(DeadLetter).message == "three"
    assert probe.receive_n(2) == ["one", "two"]


@message
class Tick(NotInfluenceReceiveTimeout):
    """Does not count."""


class Idler(Actor):
    """Ticks three times a second, and tells when it was idle for a second all the same."""

    def __init__(self, probe: ActorRef) -> None:
        self.probe = probe
        self.timers.start_timer_at_fixed_rate("tick", Tick(), 0.3)
        self.context.set_receive_timeout(1.0)

    def receive(self, message: Any) -> None:
        if isinstance(message, ReceiveTimeout):
            self.probe.tell("idle")


def test_ticks_do_not_put_off_the_receive_timeout(system: DeterministicSystem, probe: TestProbe) -> None:
    idler = system.actor_of(Props(Idler, probe.ref))
    probe.expect_msg("idle", 1.1)
    system.advance(0.5)
    idler.tell("x")
    probe.expect_no_msg(0.9)
    probe.expect_msg("idle", 0.2)


class Clock(Actor):
    """Runs a timer that it handles slowly."""

    def __init__(self, probe: ActorRef, fixed_rate: bool) -> None:
        self.probe = probe
        start = self.timers.start_timer_at_fixed_rate if fixed_rate else self.timers.start_timer_with_fixed_delay
        start("key", "tick", 1.0, 0.5)

    def receive(self, message: Any) -> None:
        self.probe.tell(round(self.context.system.node.loop.time(), 3))


@pytest.mark.parametrize("fixed_rate", [True, False])
def test_periodic_timers(system: DeterministicSystem, probe: TestProbe, fixed_rate: bool) -> None:
    start = system.now
    system.actor_of(Props(Clock, probe.ref, fixed_rate))
    assert [when - start for when in probe.receive_n(3)] == [0.5, 1.5, 2.5]


def test_timers_need_an_interval(system: DeterministicSystem) -> None:
    class Wrong(Actor):
        def receive(self, message: Any) -> None:
            self.timers.start_timer_with_fixed_delay("key", "tick", 0.0)

    with pytest.raises(ValueError, match="positive"):
        system.actor_of(Props(Wrong)).ask("x").result()


def test_many_actors_and_no_growth(system: DeterministicSystem) -> None:
    class Echo(Actor):
        def receive(self, message: Any) -> None:
            self.reply(message)

    for _ in range(3):
        refs = [system.actor_of(Props(Echo)) for _ in range(300)]
        assert [ref.ask(ref.name).result() for ref in refs] == [ref.name for ref in refs]
        for stopping in [system.graceful_stop(ref) for ref in refs]:
            assert stopping.result() is True
    assert set(system.node.cells) == {"/user", "/system"}
    assert system.node.promises.all() == []


class Becomes(Actor):
    """Takes a behaviour that is a generator function."""

    def receive(self, message: Any) -> None:
        self.context.become(self.steps)

    def steps(self, message: Any) -> Any:
        yield message


class BadHook(Actor):
    def receive(self, message: Any) -> None:
        self.reply("lives")

    def pre_start(self) -> Any:
        return (step for step in ())


def test_a_behaviour_that_is_a_generator_fails() -> None:
    with DeterministicSystem() as system:
        actor = system.actor_of(Props(Becomes))
        actor.tell("become")
        with pytest.raises(TypeError, match="returned a generator, of which no line has run"):
            actor.ask("x").result()


def test_a_hook_that_returns_a_generator_fails() -> None:
    with DeterministicSystem() as system, pytest.raises(RecipientTerminated):
        system.actor_of(Props(BadHook)).ask("x").result()


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan")])
def test_an_ask_needs_time(timeout_s: float) -> None:
    with DeterministicSystem() as system:
        actor = system.actor_of(Props(BadHook))
        for wait in (lambda: actor.ask("x", timeout_s), lambda: system.graceful_stop(actor, timeout_s)):
            with pytest.raises(ValueError, match="positive number of seconds"):
                wait()


@pytest.mark.parametrize("timeout_s", [0, -1.0, float("nan")])
def test_the_default_time_of_asks_is_positive(timeout_s: float) -> None:
    with pytest.raises(ValueError, match="ask_timeout_s has to be positive"):
        SystemConfig(ask_timeout_s=timeout_s)


class Asks(Actor):
    """Asks another, who is silent, and answers with the error."""

    async def receive(self, message: Any) -> None:
        try:
            await message.ask("x", 0.1)
        except AskTimeout as error:
            self.reply(str(error))


class Mute(Actor):
    def receive(self, message: Any) -> None:
        pass


def test_a_timeout_names_who_has_asked() -> None:
    with DeterministicSystem() as system:
        mute, asks = system.actor_of(Props(Mute), "mute"), system.actor_of(Props(Asks), "asks")
        assert (
            asks.ask(mute).result()
            == "/user/mute did not answer a message of type str in 0.1 s; /user/asks has sent it"
        )
        with pytest.raises(AskTimeout, match=r"in 0.1 s$"):
            mute.ask("x", 0.1).result()

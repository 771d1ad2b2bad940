"""Creation, failure, restart and termination: the corners, many of them with coroutines for hooks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from actors.actor import Actor
from actors.errors import ActorError, AskTimeout
from actors.messages import DeadLetter, PoisonPill, ReceiveTimeout, Terminated
from actors.props import Props
from actors.ref import ActorRef
from actors.supervision import AllForOneStrategy, Backoff, Directive, OneForOneStrategy, SupervisorStrategy
from actors.testkit import DeterministicSystem, TestProbe


@pytest.fixture
def system() -> Iterator[DeterministicSystem]:
    with DeterministicSystem() as made:
        yield made


@pytest.fixture
def probe(system: DeterministicSystem) -> TestProbe:
    return TestProbe(system)


class Boss(Actor):
    """Makes children of the props it is told; answers with their refs."""

    def __init__(self, strategy: SupervisorStrategy | None = None) -> None:
        self.supervisor_strategy = strategy or OneForOneStrategy()

    def receive(self, message: Any) -> None:
        match message:
            case Props():
                self.reply(self.context.actor_of(message))
            case (Props() as props, str(name)):
                self.reply(self.context.actor_of(props, name))
            case "children":
                self.reply([child.name for child in self.context.children])
            case ("stop", ActorRef() as ref):
                self.context.stop(ref)
            case "fail":
                raise ValueError("the boss")


class Slow(Actor):
    """Each hook takes a second; says when it begins and ends."""

    fail_in: ClassVar[str] = ""

    def __init__(self, probe: ActorRef, fail_in: str = "") -> None:
        self.probe = probe
        self.fails = fail_in

    async def step(self, name: str) -> None:
        self.probe.tell(f"{name} begins")
        await asyncio.sleep(1.0)
        if name == self.fails:
            raise ValueError(name)
        self.probe.tell(f"{name} ends")

    async def pre_start(self) -> None:
        await self.step("pre_start")

    async def post_stop(self) -> None:
        await self.step("post_stop")

    async def pre_restart(self, reason: BaseException, message: Any) -> None:
        self.probe.tell(("pre_restart", message))
        stopping = super().pre_restart(reason, message)
        if stopping is not None:
            await stopping

    async def post_restart(self, reason: BaseException) -> None:
        await self.step("post_restart")

    async def receive(self, message: Any) -> None:
        if message == "fail":
            raise ValueError("as told")
        await self.step(message)


def steps(*names: str) -> list[str]:
    return [f"{name} {when}" for name in names for when in ("begins", "ends")]


def test_hooks_do_not_overlap(system: DeterministicSystem, probe: TestProbe) -> None:
    slow = system.actor_of(Props(Slow, probe.ref))
    for message in ("one", "fail", "two"):
        slow.tell(message)
    slow.tell(PoisonPill())
    expected = [
        *steps("pre_start", "one"),
        ("pre_restart", "fail"),
        *steps("post_stop", "post_restart", "two", "post_stop"),
    ]
    assert probe.receive_n(len(expected)) == expected


def test_stop_during_pre_start(system: DeterministicSystem, probe: TestProbe) -> None:
    slow = system.actor_of(Props(Slow, probe.ref))
    slow.tell("one")
    system.advance(0.5)
    system.stop(slow)
    assert probe.receive_n(4) == steps("pre_start", "post_stop")
    probe.expect_no_msg(5.0)


def test_stop_during_a_message(system: DeterministicSystem, probe: TestProbe) -> None:
    slow = system.actor_of(Props(Slow, probe.ref))
    slow.tell("one")
    slow.tell("two")
    system.advance(1.5)
    system.stop(slow)
    assert probe.receive_n(6) == steps("pre_start", "one", "post_stop")


def test_a_coroutine_pre_start_that_fails(system: DeterministicSystem, probe: TestProbe) -> None:
    slow = probe.watch(system.actor_of(Props(Slow, probe.ref, "pre_start")))
    probe.expect_msg("pre_start begins")
    probe.expect_terminated(slow)


def test_a_coroutine_post_stop_that_fails(
    system: DeterministicSystem, probe: TestProbe, caplog: pytest.LogCaptureFixture
) -> None:
    slow = probe.watch(system.actor_of(Props(Slow, probe.ref, "post_stop")))
    slow.tell(PoisonPill())
    probe.receive_n(3)
    probe.expect_terminated(slow)
    assert "failed in post_stop" in caplog.text


def test_a_pre_restart_that_fails_is_logged(
    system: DeterministicSystem, probe: TestProbe, caplog: pytest.LogCaptureFixture
) -> None:
    """As in Akka: the restart goes on."""
    slow = system.actor_of(Props(Slow, probe.ref, "post_stop"))
    slow.tell("fail")
    slow.tell("one")
    probe.receive_n(4)
    assert probe.receive_n(4) == steps("post_restart", "one")
    assert "failed in pre_restart" in caplog.text


def test_a_post_restart_that_fails_stops_it(system: DeterministicSystem, probe: TestProbe) -> None:
    slow = probe.watch(system.actor_of(Props(Slow, probe.ref, "post_restart")))
    slow.tell("fail")
    assert probe.receive_n(6) == [
        *steps("pre_start"),
        ("pre_restart", "fail"),
        *steps("post_stop"),
        "post_restart begins",
    ]
    probe.expect_terminated(slow)


class Reluctant(Actor):
    """Its first constructions fail."""

    failures: ClassVar[int] = 0

    def __init__(self, probe: ActorRef, in_constructor: bool = True) -> None:
        self.probe = probe
        if in_constructor:
            self.fail("constructor")

    def fail(self, where: str) -> None:
        self.probe.tell(where)
        if Reluctant.failures > 0:
            Reluctant.failures -= 1
            raise ValueError(where)

    def post_restart(self, reason: BaseException) -> None:
        self.probe.tell("post_restart")

    def receive(self, message: Any) -> None:
        if message == "fail":
            raise ValueError("as told")
        self.reply(message)


ALWAYS = OneForOneStrategy({Exception: Directive.RESTART})


def test_a_creation_that_is_restarted(system: DeterministicSystem, probe: TestProbe) -> None:
    boss = system.actor_of(Props(Boss, ALWAYS))
    Reluctant.failures = 2
    child = boss.ask(Props(Reluctant, probe.ref)).result()
    assert child.ask("x").result() == "x"
    assert probe.receive_n(3) == ["constructor"] * 3
    probe.expect_no_msg()


def test_a_restart_that_fails_is_restarted(system: DeterministicSystem, probe: TestProbe) -> None:
    boss = system.actor_of(Props(Boss, ALWAYS))
    Reluctant.failures = 0
    child = boss.ask(Props(Reluctant, probe.ref)).result()
    assert child.ask("x").result() == "x"
    Reluctant.failures = 2
    child.tell("fail")
    assert child.ask("y").result() == "y"
    assert probe.receive_n(5) == [*["constructor"] * 4, "post_restart"]


def test_a_failed_creation_that_is_resumed_is_created(system: DeterministicSystem, probe: TestProbe) -> None:
    boss = system.actor_of(Props(Boss, OneForOneStrategy({Exception: Directive.RESUME})))
    Reluctant.failures = 1
    child = boss.ask(Props(Reluctant, probe.ref)).result()
    assert child.ask("x").result() == "x"


class Keeper(Boss):
    """Does not stop its children when it is restarted."""

    def pre_restart(self, reason: BaseException, message: Any) -> None:
        pass


class Stage(Actor):
    """Tells of its life."""

    def __init__(self, probe: ActorRef, name: str = "") -> None:
        self.probe = probe
        self.name = name
        self.count = 0

    def post_stop(self) -> None:
        self.probe.tell(("stopped", self.name))

    def post_restart(self, reason: BaseException) -> None:
        self.probe.tell(("restarted", self.name, str(reason)))

    def receive(self, message: Any) -> None:
        match message:
            case "fail":
                raise ValueError(self.name)
            case BaseException():
                raise message
            case "add":
                self.count += 1
                self.reply(self.count)
            case "wait":
                self.context.set_receive_timeout(1.0)
            case ReceiveTimeout():
                self.probe.tell("timeout")
                self.context.set_receive_timeout(None)
            case _:
                self.reply(message)


def test_children_that_are_kept_are_restarted(system: DeterministicSystem, probe: TestProbe) -> None:
    boss = system.actor_of(Props(Keeper))
    child = boss.ask(Props(Stage, probe.ref, "kept")).result()
    boss.tell("fail")
    assert probe.receive_n(2) == [("stopped", "kept"), ("restarted", "kept", "the boss")]
    assert child.ask("x").result() == "x"
    assert boss.ask("children").result() == [child.name]


def test_the_escalated_error_restarts_the_parent(system: DeterministicSystem, probe: TestProbe) -> None:
    boss = system.actor_of(Props(Keeper, OneForOneStrategy({Exception: Directive.ESCALATE})))
    one = boss.ask(Props(Stage, probe.ref, "one")).result()
    two = boss.ask(Props(Stage, probe.ref, "two")).result()
    one.tell("fail")
    seen = probe.receive_n(4)
    assert set(seen) == {
        ("stopped", "one"),
        ("restarted", "one", "one"),
        ("stopped", "two"),
        ("restarted", "two", "one"),
    }
    assert [two.ask("x").result(), one.ask("y").result()] == ["x", "y"]


def test_an_escalation_that_is_resumed_resumes_all(system: DeterministicSystem, probe: TestProbe) -> None:
    top = system.actor_of(Props(Boss, OneForOneStrategy({Exception: Directive.RESUME})))
    boss = top.ask(Props(Boss, OneForOneStrategy({Exception: Directive.ESCALATE}))).result()
    kids = [boss.ask(Props(Stage, probe.ref, name)).result() for name in "ab"]
    assert [kid.ask("add").result() for kid in kids] == [1, 1]
    kids[0].tell("fail")
    assert [kid.ask("add").result() for kid in kids] == [2, 2]
    assert boss.ask("children").result() == [kid.name for kid in kids]


def test_what_is_no_exception_is_escalated_to_the_end(caplog: pytest.LogCaptureFixture) -> None:
    """It goes up to the guardian, and ends the system."""
    system = DeterministicSystem()
    probe = TestProbe(system)
    system.actor_of(Props(Stage, probe.ref)).tell(BaseException("enough"))
    system.run_until_idle()
    assert system.when_terminated.done()
    assert "is terminated" in caplog.text
    system.terminate()


class Awaiting(Actor):
    """Awaits what is cancelled."""

    async def receive(self, message: Any) -> None:
        if message == "await":
            future = asyncio.get_running_loop().create_future()
            future.cancel()
            await future
        self.reply(message)


def test_a_cancelled_coroutine_is_a_failure_like_others(system: DeterministicSystem) -> None:
    awaiting = system.actor_of(Props(Awaiting))
    with pytest.raises(ActorError, match="cancelled"):
        awaiting.ask("await").result()
    assert awaiting.ask("x").result() == "x"
    assert not system.when_terminated.done()


def test_all_for_one_suspends_the_others(system: DeterministicSystem, probe: TestProbe) -> None:
    backoff = Backoff(1.0, 1.0, jitter=0.0)
    boss = system.actor_of(Props(Boss, AllForOneStrategy(backoff=backoff)))
    one, two = (boss.ask(Props(Stage, probe.ref, name)).result() for name in ("one", "two"))
    one.tell("fail")
    assert sorted(probe.receive_n(2, 0.5)) == [("stopped", "one"), ("stopped", "two")]
    ask = two.ask("x")
    system.advance(0.9)
    assert not ask.done()
    assert sorted(probe.receive_n(2, 0.2)) == [("restarted", "one", "one"), ("restarted", "two", "one")]
    assert ask.result() == "x"


def test_a_limit_that_is_reached_by_one_stops_all(system: DeterministicSystem, probe: TestProbe) -> None:
    boss = system.actor_of(Props(Boss, AllForOneStrategy(max_retries=1)))
    one, two = (boss.ask(Props(Stage, probe.ref, name)).result() for name in ("one", "two"))
    for ref in (one, two):
        probe.watch(ref)
    one.tell("fail")
    probe.receive_n(4)
    two.tell("fail")
    assert {message.actor for message in probe.receive_n(4) if isinstance(message, Terminated)} == {one, two}


def test_stop_while_the_restart_is_put_off(system: DeterministicSystem, probe: TestProbe) -> None:
    boss = system.actor_of(Props(Boss, OneForOneStrategy(backoff=Backoff(5.0, 5.0))))
    child = probe.watch(boss.ask(Props(Stage, probe.ref, "a")).result())
    child.tell("fail")
    probe.expect_msg(("stopped", "a"))
    boss.tell(("stop", child))
    probe.expect_terminated(child)
    probe.expect_no_msg(20.0)
    assert boss.ask("children").result() == []


def test_a_decider_that_fails_fails_its_owner(system: DeterministicSystem, probe: TestProbe) -> None:
    def decider(error: BaseException) -> Directive:
        raise LookupError("no idea")

    boss = system.actor_of(Props(Boss, OneForOneStrategy(decider)))
    child = probe.watch(boss.ask(Props(Stage, probe.ref, "a")).result())
    child.tell("fail")
    assert probe.receive_n(1) == [("stopped", "a")]
    probe.expect_terminated(child)
    assert boss.ask("children").result() == []


def test_one_error_line_with_all_that_is_known(
    system: DeterministicSystem, probe: TestProbe, caplog: pytest.LogCaptureFixture
) -> None:
    child = system.actor_of(Props(Stage, probe.ref, "the reason"), "child")
    with caplog.at_level(logging.ERROR):
        child.tell("fail")
        system.run_until_idle()
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "/user/child failed in str: ValueError: the reason; directive: restart" in record.getMessage()
    assert record.exc_info


def test_the_receive_timeout_outlives_a_restart(system: DeterministicSystem, probe: TestProbe) -> None:
    """As in Akka: it is the cell's, unlike timers."""
    child = system.actor_of(Props(Stage, probe.ref, "a"))
    child.tell("wait")
    child.tell("fail")
    assert probe.receive_n(3) == [("stopped", "a"), ("restarted", "a", "a"), "timeout"]


def test_the_end_of_a_family(system: DeterministicSystem, probe: TestProbe) -> None:
    boss = system.actor_of(Props(Boss))
    middle = boss.ask(Props(Boss)).result()
    leaf = middle.ask(Props(Slow, probe.ref)).result()
    probe.receive_n(2)
    for ref in (boss, middle, leaf):
        probe.watch(ref)
    system.stop(boss)
    assert [probe.receive_one() for _ in range(2)] == steps("post_stop")
    assert [probe.receive_one().actor for _ in range(3)] == [leaf, middle, boss]


class Endless(Actor):
    """Never ends a message, nor its post_stop."""

    async def receive(self, message: Any) -> None:
        await asyncio.get_running_loop().create_future()

    async def post_stop(self) -> None:
        await asyncio.get_running_loop().create_future()


def test_terminate_cancels_what_does_not_end(caplog: pytest.LogCaptureFixture) -> None:
    system = DeterministicSystem()
    endless = system.actor_of(Props(Endless))
    ask = endless.ask("x", 1000.0)
    system.run_until_idle()
    before = system.now
    system.terminate(3.0)
    assert 3.0 <= system.now - before < 4.0
    assert system.when_terminated.done()
    assert system.when_terminated.exception() is None
    with pytest.raises(ActorError):
        ask.result()
    assert "did not stop within 3 s" in caplog.text


class Stubborn(Actor):
    """Does not let itself be cancelled, the first time."""

    async def receive(self, message: Any) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(100.0)
        await asyncio.sleep(100.0)


def test_terminate_gives_up_at_last(caplog: pytest.LogCaptureFixture) -> None:
    system = DeterministicSystem()
    system.actor_of(Props(Stubborn), "stubborn").tell("x")
    system.run_until_idle()
    system.terminate(1.0)
    assert isinstance(system.when_terminated.exception(), AskTimeout)
    assert "/user/stubborn" in caplog.text


def test_after_the_end() -> None:
    with DeterministicSystem() as system:
        probe = TestProbe(system)
        echo = system.actor_of(Props(Stage, probe.ref))
        assert echo.ask("x").result() == "x"
    echo.tell("y")
    with pytest.raises(ActorError, match="terminated"):
        echo.ask("y").result()
    with pytest.raises(ActorError):
        system.actor_of(Props(Boss))
    system.terminate()


def test_what_is_left_becomes_dead_letters(system: DeterministicSystem, probe: TestProbe) -> None:
    system.event_stream.subscribe(probe.ref, DeadLetter)
    child = system.actor_of(Props(Stage, probe.ref))
    child.tell(PoisonPill())
    child.tell("left")
    child.tell(PoisonPill())
    probe.expect_msg(("stopped", ""))
    assert probe.expect_msg_type(DeadLetter).message == "left"
    probe.expect_no_msg()
    assert system.dead_letters_count == 1

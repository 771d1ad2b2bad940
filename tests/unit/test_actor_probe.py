"""The test probe, and what asks and watches look like from a test."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from actors.actor import Actor
from actors.errors import AskTimeout, RecipientTerminated
from actors.messages import PoisonPill, Terminated
from actors.props import Props
from actors.testkit import DeterministicSystem, TestProbe


@pytest.fixture
def system() -> Iterator[DeterministicSystem]:
    with DeterministicSystem() as made:
        yield made


@pytest.fixture
def probe(system: DeterministicSystem) -> TestProbe:
    return TestProbe(system)


class Echo(Actor):
    """Answers, after a second if that is what it is sent."""

    async def receive(self, message: Any) -> None:
        if message == "slow":
            await asyncio.sleep(1.0)
        self.reply(message)


def test_expectations(system: DeterministicSystem, probe: TestProbe) -> None:
    echo = system.actor_of(Props(Echo))
    for each in ("x", 1, [2]):
        probe.send(echo, each)
    assert probe.expect_msg("x") == "x"
    assert probe.last_sender == echo
    assert probe.expect_msg_type(int) == 1
    assert probe.receive_n(1) == [[2]]
    probe.expect_no_msg(1.0)
    probe.reply("back")
    assert probe.receive_one() == "back"


def test_disappointments(system: DeterministicSystem, probe: TestProbe) -> None:
    for each in ("x", "y", "z"):
        probe.ref.tell(each)
    with pytest.raises(AssertionError, match="expected 'a', got 'x'"):
        probe.expect_msg("a")
    with pytest.raises(AssertionError, match="expected a int"):
        probe.expect_msg_type(int)
    with pytest.raises(AssertionError, match="expected no message, got 'z'"):
        probe.expect_no_msg()
    before = system.now
    with pytest.raises(AssertionError, match="within 2 s"):
        probe.receive_one(2.0)
    assert system.now - before == 2.0


def test_it_takes_no_more_time_than_needed(system: DeterministicSystem, probe: TestProbe) -> None:
    before = system.now
    probe.send(system.actor_of(Props(Echo)), "slow")
    probe.expect_msg("slow", 60.0)
    assert system.now - before == 1.0


def test_watching(system: DeterministicSystem, probe: TestProbe) -> None:
    first, second = system.actor_of(Props(Echo)), system.actor_of(Props(Echo))
    for _ in range(2):
        probe.watch(first)
        probe.watch(second)
    probe.unwatch(second)
    for ref in (second, first):
        ref.tell(PoisonPill())
    assert probe.expect_terminated(first) == Terminated(first, True, False)
    probe.expect_no_msg()


def test_several_probes_and_their_names(system: DeterministicSystem) -> None:
    one, two = TestProbe(system), TestProbe(system, "two")
    assert one.ref != two.ref
    assert two.ref.path == "/system/two"
    two.forward(one.ref, "x")
    one.expect_msg("x")


def test_asks(system: DeterministicSystem) -> None:
    echo = system.actor_of(Props(Echo), "echo")
    before = system.now
    ask = echo.ask("slow")
    assert not ask.done()
    assert ask.result() == "slow"
    assert system.now - before == 1.0
    assert ask.result() == "slow"
    with pytest.raises(AskTimeout, match=r"/user/echo did not answer a message of type str in 0\.5 s"):
        echo.ask("slow", 0.5).result()
    with pytest.raises(AskTimeout, match=r"within 0\.25 s"):
        echo.ask("slow").result(0.25)


def test_asks_end_with_the_system() -> None:
    with DeterministicSystem() as system:
        probe = TestProbe(system)
        ask = probe.ref.ask("x", 1000.0)
        system.run_until_idle()
    with pytest.raises(RecipientTerminated, match="has been terminated"):
        ask.result()


def test_graceful_stop(system: DeterministicSystem) -> None:
    echo = system.actor_of(Props(Echo))
    slow = echo.ask("slow")
    stopping = system.graceful_stop(echo, 5.0)
    assert slow.result() == "slow"
    assert stopping.result() is True
    assert system.graceful_stop(echo).result() is True
    busy = system.actor_of(Props(Echo))
    busy.tell("slow")
    with pytest.raises(AskTimeout, match=r"did not stop within 0\.5 s"):
        system.graceful_stop(busy, 0.5).result()


def test_a_stopped_probe(system: DeterministicSystem, probe: TestProbe) -> None:
    system.stop(probe.ref)
    with pytest.raises(RecipientTerminated):
        probe.ref.ask("x").result()

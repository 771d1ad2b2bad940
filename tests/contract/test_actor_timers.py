"""Contract: timers and the receive timeout."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from actors import Actor, ActorRef, Identify, NotInfluenceReceiveTimeout, ReceiveTimeout, message
from actors.testkit import TestProbe
from tests.contract.actor_harness import DETERMINISTIC, QUIET_S, World, everywhere
from tests.contract.actors_under_test import ERRORS, Fail

TICK_S = 0.05
LONG_S = 60.0
"""For timers that must not fire, in seconds: a busy machine takes the next message in far less."""


def expect_no_tick(world: World, probe: TestProbe, clock: ActorRef, *keys: str) -> None:
    """None of the timers is active, and none fires; on real clocks nobody waits that long."""
    assert [world.ask(clock, ("active", key)) for key in keys] == [False] * len(keys)
    probe.expect_no_msg(3 * LONG_S if world.is_deterministic else QUIET_S)


class Clock(Actor):
    """Starts and cancels timers as it is told; passes on everything else, ticks included, to the probe."""

    def __init__(self, probe: ActorRef) -> None:
        self.probe = probe

    def receive(self, message: Any) -> None:
        match message:
            case ("single", key, what, delay_s):
                self.timers.start_single_timer(key, what, delay_s)
            case ("several", *delays):
                for key, delay_s in delays:
                    self.timers.start_single_timer(key, key, delay_s)
            case ("fixed delay", key, what, delay_s):
                self.timers.start_timer_with_fixed_delay(key, what, delay_s)
            case ("fixed delay", key, what, delay_s, initial_s):
                self.timers.start_timer_with_fixed_delay(key, what, delay_s, initial_delay_s=initial_s)
            case ("fixed rate", key, what, interval_s):
                self.timers.start_timer_at_fixed_rate(key, what, interval_s)
            case ("cancel", key):
                self.timers.cancel(key)
            case "cancel all":
                self.timers.cancel_all()
            case ("active", key):
                self.reply(self.timers.is_timer_active(key))
            case ("start and cancel", key):
                # The timer fires while this message is handled: its message waits in the mailbox when it is cancelled.
                self.timers.start_single_timer(key, "cancelled tick", 0)
                self.self_ref.tell(("cancel", key))
            case Fail(kind, text):
                raise ERRORS[kind](text)
            case _:
                self.probe.tell(message)


class Idler(Actor):
    """Has a receive timeout, and remembers how long, by its own clock, it had heard nothing each time."""

    def __init__(self, probe: ActorRef, seconds: float | None) -> None:
        self.probe = probe
        self.heard = asyncio.get_running_loop().time()
        self.silences: list[float] = []
        self.context.set_receive_timeout(seconds)

    def receive(self, message: Any) -> None:
        since, self.heard = self.heard, asyncio.get_running_loop().time()
        match message:
            case ReceiveTimeout():
                self.silences.append(self.heard - since)
                self.probe.tell("idle")
            case "silences":
                self.reply(self.silences)
            case ("timeout", seconds):
                self.context.set_receive_timeout(seconds)
            case _:
                self.probe.tell("busy")


@message
class Background(NotInfluenceReceiveTimeout):
    """A message that is no sign of life."""


@everywhere
def test_single(world: World) -> None:
    """Akka: a single timer sends its message once, after the delay (Thespian: wakeupAfter)."""
    probe = world.probe()
    clock = world.spawn(Clock, probe.ref)
    clock.tell(("single", "k", "tick", TICK_S))
    probe.expect_msg("tick")
    probe.expect_no_msg(QUIET_S)
    assert world.ask(clock, ("active", "k")) is False


def test_single_not_before(world: World) -> None:
    """Akka: a timer does not fire before its delay is over; meanwhile it is active."""
    probe = world.probe()
    clock = world.spawn(Clock, probe.ref)
    clock.tell(("single", "k", "tick", 30.0))
    probe.expect_no_msg(QUIET_S)
    assert world.ask(clock, ("active", "k")) is True


def test_several_timers(world: World) -> None:
    """Thespian: several timers may be pending; they fire in the order of their times."""
    probe = world.probe()
    clock = world.spawn(Clock, probe.ref)
    clock.tell(("several", ("c", 0.15), ("a", 0.03), ("b", 0.09)))
    assert probe.receive_n(3) == ["a", "b", "c"]


def test_key_replaces(world: World) -> None:
    """Akka: a timer replaces the one that has its key."""
    probe = world.probe()
    clock = world.spawn(Clock, probe.ref)
    clock.tell(("fixed delay", "k", "old", LONG_S))
    clock.tell(("single", "k", "new", TICK_S))
    assert probe.receive_n(1) == ["new"]
    expect_no_tick(world, probe, clock, "k")


@everywhere
def test_fixed_delay(world: World) -> None:
    """Akka: a timer with a fixed delay repeats until it is cancelled."""
    probe = world.probe()
    clock = world.spawn(Clock, probe.ref)
    clock.tell(("fixed delay", "k", "tick", 0.02))
    assert probe.receive_n(4) == ["tick"] * 4
    assert world.ask(clock, ("active", "k")) is True
    clock.tell(("cancel", "k"))
    assert world.ask(clock, ("active", "k")) is False
    clock.tell("last")
    while probe.receive_n(1) != ["last"]:
        pass
    probe.expect_no_msg(QUIET_S)


def test_initial_delay(world: World) -> None:
    """Akka: the first of a repeating timer's messages may have a delay of its own."""
    probe = world.probe()
    world.spawn(Clock, probe.ref).tell(("fixed delay", "k", "tick", 30.0, 0.02))
    probe.expect_msg("tick")
    probe.expect_no_msg(QUIET_S)


def test_fixed_rate(world: World) -> None:
    """Akka: a timer at a fixed rate repeats."""
    probe = world.probe()
    world.spawn(Clock, probe.ref).tell(("fixed rate", "k", "tick", 0.02))
    assert probe.receive_n(4) == ["tick"] * 4


def test_cancel(world: World) -> None:
    """Akka: a cancelled timer does not fire; to cancel one that is not there does nothing."""
    probe = world.probe()
    clock = world.spawn(Clock, probe.ref)
    clock.tell(("single", "k", "tick", LONG_S))
    clock.tell(("cancel", "k"))
    clock.tell(("cancel", "no such timer"))
    expect_no_tick(world, probe, clock, "k")


def test_cancel_what_waits(world: World) -> None:
    """Akka: the message of a timer that was cancelled is not received, even when it waits in the mailbox already."""
    probe = world.probe()
    world.spawn(Clock, probe.ref).tell(("start and cancel", "k"))
    probe.expect_no_msg(QUIET_S)


def test_cancel_all(world: World) -> None:
    """Akka: cancel_all cancels every timer."""
    probe = world.probe()
    clock = world.spawn(Clock, probe.ref)
    for key in "abc":
        clock.tell(("fixed rate", key, key, LONG_S))
    clock.tell("cancel all")
    expect_no_tick(world, probe, clock, *"abc")


@everywhere
def test_restart_cancels(world: World) -> None:
    """Akka: a restart cancels the timers."""
    probe = world.probe()
    clock = world.spawn(Clock, probe.ref)
    clock.tell(("fixed delay", "k", "tick", LONG_S))
    clock.tell(Fail("ValueError"))
    expect_no_tick(world, probe, clock, "k")


def test_stop_cancels(world: World) -> None:
    """Akka, Thespian: the timers of an actor end with it."""
    probe = world.probe()
    clock = world.spawn(Clock, probe.ref)
    clock.tell(("fixed delay", "k", "tick", LONG_S))
    world.stop(clock)
    probe.expect_no_msg(3 * LONG_S if world.is_deterministic else QUIET_S)


def test_keys_of_any_kind(world: World) -> None:
    """Akka: a timer's key is any value that has an equal."""
    probe = world.probe()
    clock = world.spawn(Clock, probe.ref)
    for key in (1, "1", (1, "a")):
        clock.tell(("single", key, key, 0.01))
    assert set(probe.receive_n(3)) == {1, "1", (1, "a")}


@everywhere
def test_receive_timeout(world: World) -> None:
    """Akka: an actor that gets no message for the time it has set gets ReceiveTimeout, again and again."""
    probe = world.probe()
    world.spawn(Idler, probe.ref, 0.03)
    assert probe.receive_n(3) == ["idle"] * 3


def test_receive_timeout_is_put_off(world: World) -> None:
    """Akka: every message puts the receive timeout off."""
    probe = world.probe()
    idler = world.spawn(Idler, probe.ref, 0.4)
    for _ in range(6):
        idler.tell("x")
        world.pass_time(0.1)
    messages: list[str] = []
    while messages.count("busy") < 6 or "idle" not in messages:
        messages.append(probe.receive_one())
    assert min(world.ask(idler, "silences")) > 0.39


def test_receive_timeout_off(world: World) -> None:
    """Akka: the receive timeout can be changed, and turned off."""
    probe = world.probe()
    idler = world.spawn(Idler, probe.ref, None)
    probe.expect_no_msg(QUIET_S)
    idler.tell(("timeout", 0.02))
    probe.expect_msg("idle")
    idler.tell(("timeout", None))
    idler.tell("x")
    while probe.receive_n(1) != ["busy"]:
        pass
    probe.expect_no_msg(QUIET_S)


def test_receive_timeout_and_background(world: World) -> None:
    """Akka: messages marked NotInfluenceReceiveTimeout do not put the receive timeout off."""
    probe = world.probe()
    idler = world.spawn(Idler, probe.ref, 0.2)
    received: list[Any] = []
    for _ in range(40):
        idler.tell(Background())
        received += probe.receive_n(1)
        if "idle" in received:
            break
        world.pass_time(0.02)
    assert "idle" in received


@pytest.mark.parametrize("world", [DETERMINISTIC], indirect=True)
def test_receive_timeout_and_identify(world: World) -> None:
    """Akka: Identify does not put the receive timeout off."""
    probe = world.probe()
    idler = world.spawn(Idler, probe.ref, 0.2)
    for _ in range(40):
        world.ask(idler, Identify(None))
        world.pass_time(0.02)
    assert "idle" in probe.receive_n(1)
    assert min(world.ask(idler, "silences")) < 0.4


class Winder(Actor):
    """Has a timer, and tells in each of its last hooks whether that is still active."""

    def __init__(self, probe: ActorRef) -> None:
        self.probe = probe
        self.timers.start_timer_with_fixed_delay("k", "tick", LONG_S)

    def pre_restart(self, reason: BaseException, message: Any) -> None:
        self.probe.tell(("pre_restart", self.timers.is_timer_active("k")))

    def post_stop(self) -> None:
        self.probe.tell(("post_stop", self.timers.is_timer_active("k")))

    def receive(self, message: Any) -> None:
        match message:
            case "active":
                self.reply(self.timers.is_timer_active("k"))
            case Fail(kind, text):
                raise ERRORS[kind](text)


def test_timers_in_the_last_hooks(world: World) -> None:
    """Akka: timers are cancelled before pre_restart and post_stop are called."""
    probe = world.probe()
    winder = world.spawn(Winder, probe.ref)
    assert world.ask(winder, "active")
    winder.tell(Fail("ValueError"))
    probe.expect_msg(("pre_restart", False))
    assert world.ask(winder, "active")
    world.system.stop(winder)
    probe.expect_msg(("post_stop", False))

"""Contract: forward, pipe_to, blocking work."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from actors import Actor, ActorRef, Failure
from tests.contract.actor_harness import World, everywhere
from tests.contract.actors_under_test import ERRORS, Collector, Echo, Fail, Silent


class Forwarder(Actor):
    """Forwards everything."""

    def __init__(self, to: ActorRef) -> None:
        self.to = to

    def receive(self, message: Any) -> None:
        self.to.forward(message)


class LateForwarder(Actor):
    """Forwards from a coroutine, after it has waited."""

    def __init__(self, to: ActorRef) -> None:
        self.to = to

    async def receive(self, message: Any) -> None:
        await asyncio.sleep(0.01)
        self.to.forward(message)


class Senders(Actor):
    """Answers with who has sent, and what."""

    def receive(self, message: Any) -> None:
        self.reply((self.sender, message))


async def outcome(message: Any) -> Any:
    await asyncio.sleep(0.01)
    if isinstance(message, Fail):
        raise ERRORS[message.kind](message.text)
    return ("came of", message)


class Piper(Actor):
    """Has the outcome of some work sent to somebody, or to itself."""

    def __init__(self, probe: ActorRef) -> None:
        self.probe = probe

    def receive(self, message: Any) -> None:
        match message:
            case ("to", ref, what):
                self.context.pipe_to(outcome(what), ref)
            case ("to", ref, what, sender):
                self.context.pipe_to(outcome(what), ref, sender=sender)
            case ("ask", ref, what):
                self.context.pipe_to(ref.ask(what, 0.1), self.probe)
            case ("self", what):
                self.context.pipe_to(outcome(what))
            case "count":
                self.reply(0)
            case _:
                self.probe.tell((message, self.sender))


class Blocker(Actor):
    """Does blocking work beside its loop."""

    async def receive(self, message: Any) -> None:
        here = threading.get_ident()
        there, answer = await self.context.run_blocking(work, message)
        self.reply((answer, here != there, threading.get_ident() == here))


def work(message: Any) -> tuple[int, Any]:
    return threading.get_ident(), f"worked on {message}"


@everywhere
def test_forward(world: World) -> None:
    """Akka: a forwarded message keeps its sender, who gets the answer."""
    probe = world.probe()
    forwarder = world.spawn(Forwarder, world.spawn(Senders))
    forwarder.tell("x", sender=probe.ref)
    probe.expect_msg((probe.ref, "x"))


def test_forward_twice(world: World) -> None:
    """Akka: a message may be forwarded again and again."""
    assert world.ask(world.spawn(Forwarder, world.spawn(Forwarder, world.spawn(Echo))), "x") == "x"


def test_forward_in_a_coroutine(world: World) -> None:
    """Ours: a coroutine handler knows its sender after an await too."""
    probe = world.probe()
    world.spawn(LateForwarder, world.spawn(Senders)).tell("x", sender=probe.ref)
    probe.expect_msg((probe.ref, "x"))


def test_forward_outside(world: World) -> None:
    """Ours: outside an actor there is nothing to forward."""
    with pytest.raises(RuntimeError):
        world.spawn(Silent).forward("x")


@everywhere
def test_pipe(world: World) -> None:
    """Akka: pipe_to sends the outcome of a future to an actor, from the one that piped."""
    probe = world.probe()
    piper = world.spawn(Piper, probe.ref)
    piper.tell(("to", probe.ref, "x"))
    probe.expect_msg(("came of", "x"))
    assert probe.last_sender == piper


def test_pipe_with_sender(world: World) -> None:
    """Akka: pipe_to may name another sender."""
    probe, other = world.probe(), world.probe()
    world.spawn(Piper, probe.ref).tell(("to", probe.ref, "x", other.ref))
    probe.expect_msg(("came of", "x"))
    assert probe.last_sender == other.ref


def test_pipe_to_oneself(world: World) -> None:
    """Akka: an actor may pipe to itself, and goes on with other messages until the outcome is there."""
    probe = world.probe()
    piper = world.spawn(Piper, probe.ref)
    piper.tell(("self", "x"))
    assert world.ask(piper, "count") == 0
    probe.expect_msg((("came of", "x"), piper))


@everywhere
def test_pipe_a_failure(world: World) -> None:
    """Akka: when the future fails, Failure (Status.Failure) with the error is sent; the actor itself goes on."""
    probe = world.probe()
    piper = world.spawn(Piper, probe.ref)
    piper.tell(("to", world.spawn(Collector, probe.ref), Fail("ValueError", "in vain")))
    failure = probe.expect_msg_type(Failure)
    assert (type(failure.error), str(failure.error)) == (ValueError, "in vain")
    assert world.ask(piper, "count") == 0


def test_pipe_an_ask(world: World) -> None:
    """Akka: the reply to an ask can be piped, and its timeout."""
    probe = world.probe()
    piper = world.spawn(Piper, probe.ref)
    piper.tell(("ask", world.spawn(Echo), "x"))
    probe.expect_msg("x")
    piper.tell(("ask", world.spawn(Silent), "x"))
    assert isinstance(probe.expect_msg_type(Failure).error, TimeoutError)


@everywhere
def test_blocking_work(world: World) -> None:
    """Ours: blocking work runs on a thread of its own; the handler goes on where it was."""
    assert world.ask(world.spawn(Blocker), "x") == ("worked on x", True, True)

"""Contract: ask. It ends in a reply, a typed error or a timeout, never in silence."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from actors import Actor, ActorRef, DeadLetter, Failure, PoisonPill
from actors.errors import AskTimeout, RecipientTerminated, RecipientUnreachable, RemoteError, UnhandledMessageError
from tests.contract.actor_harness import DEADLINE_S, World, everywhere
from tests.contract.actors_under_test import Echo, Fail, KnownError, PlainError, Quiet, Silent, Worker
from tests.waiting import LONGER_THAN_PATIENCE_S


class Deferring(Actor):
    """Answers the earlier asks only when it is told to, the last one first."""

    def __init__(self) -> None:
        self.askers: list[tuple[Any, ActorRef]] = []

    def receive(self, message: Any) -> None:
        if message == "now":
            while self.askers:
                what, asker = self.askers.pop()
                asker.tell(("late", what))
        else:
            self.askers.append((message, self.sender))


class Twice(Actor):
    """Answers twice."""

    def receive(self, message: Any) -> None:
        self.reply("first")
        self.reply(f"second of {self.self_ref.name}")


class Refuser(Actor):
    """Answers that it has failed, without failing."""

    def receive(self, message: Any) -> None:
        self.reply(Failure(ValueError("refused")))


class Delegator(Actor):
    """Has another actor answer."""

    def __init__(self, to: ActorRef) -> None:
        self.to = to

    def receive(self, message: Any) -> None:
        self.to.forward(message)


class Slowly(Actor):
    """Answers after the given number of seconds."""

    async def receive(self, message: Any) -> None:
        await asyncio.sleep(message)
        self.reply(f"done by {self.self_ref.name}")


class Literal(Actor):
    """Knows one message."""

    def receive(self, message: Any) -> None:
        if message == "known":
            self.reply("yes")
        else:
            self.unhandled(message)


class Inquirer(Actor):
    """Asks another actor in a coroutine and answers with what has come of it."""

    def __init__(self, other: ActorRef, timeout_s: float = DEADLINE_S) -> None:
        self.other = other
        self.timeout_s = timeout_s

    async def receive(self, message: Any) -> None:
        asker = self.sender
        try:
            asker.tell(("answer", await self.other.ask(message, self.timeout_s)))
        except Exception as error:
            asker.tell((type(error).__name__, str(error)))


class WhoAsks(Actor):
    """Answers with the path of the asker."""

    def receive(self, message: Any) -> None:
        self.reply(self.sender.path)


@everywhere
def test_reply(world: World) -> None:
    """Akka, Pykka, Thespian: an ask gives the reply."""
    assert world.spawn(Echo).ask("x", DEADLINE_S).result() == "x"


def test_reply_none(world: World) -> None:
    """Thespian: None is a reply like any other."""
    assert world.ask(world.spawn(Echo), None) is None


def test_future(world: World) -> None:
    """Pykka: an ask returns at once, with a future that can be looked at, called back and waited for, twice too."""
    ask = world.spawn(Echo).ask("x", DEADLINE_S)
    seen: list[Any] = []
    ask.add_done_callback(lambda future: seen.append(future.result()))
    assert ask.result() == ask.result() == "x"
    assert ask.done()
    assert world.until(lambda: seen, bool, "the callback") == ["x"]


def test_await(world: World) -> None:
    """Ours: the same return value can be awaited in a coroutine of any event loop."""
    if world.is_deterministic:
        pytest.skip("a deterministic system has the only loop there is; see test_await_in_a_handler")
    echo = world.spawn(Echo)

    async def ask_both() -> list[Any]:
        return list(await asyncio.gather(echo.ask(1), echo.ask(2)))

    assert asyncio.run(ask_both()) == [1, 2]


def test_await_in_a_handler(world: World) -> None:
    """Ours: in a coroutine handler an ask is awaited."""
    assert world.ask(world.spawn(Inquirer, world.spawn(Echo)), "x") == ("answer", "x")


def test_errors_in_a_handler(world: World) -> None:
    """Ours: an awaited ask raises what the other side has raised, and its timeout."""
    probe = world.probe()
    assert world.ask(world.spawn(Inquirer, world.spawn(Quiet, probe.ref)), Fail("ValueError")) == (
        "ValueError",
        "as ordered",
    )
    assert world.ask(world.spawn(Inquirer, world.spawn(Silent), 0.2), "x")[0] == "AskTimeout"


def test_many_asks(world: World) -> None:
    """Pykka: each of many asks under way gets its own reply."""
    echo = world.spawn(Echo)
    asks = [echo.ask(number, DEADLINE_S) for number in range(300)]
    assert [ask.result() for ask in asks] == list(range(300))


def test_deferred_reply(world: World) -> None:
    """Akka, Thespian: the reply may come from a later message, in any order, to the sender that was kept."""
    deferring = world.spawn(Deferring)
    asks = [deferring.ask(number, DEADLINE_S) for number in range(3)]
    deferring.tell("now")
    assert [ask.result() for ask in asks] == [("late", 0), ("late", 1), ("late", 2)]


def test_reply_by_another(world: World) -> None:
    """Akka, Thespian: the reply may come from an actor to which the message was forwarded."""
    assert world.ask(world.spawn(Delegator, world.spawn(Echo)), "x") == "x"


def test_asker_is_temporary(world: World) -> None:
    """Akka: the sender of an ask is a temporary ref below /temp."""
    assert world.ask(world.spawn(WhoAsks), "x").startswith("/temp/")


@everywhere
def test_typed_error(world: World) -> None:
    """Pykka: an exception of the handler is raised by the ask, with its type and text."""
    worker = world.spawn(Quiet, world.probe().ref)
    with pytest.raises(ValueError, match=r"^no such thing$"):
        world.ask(worker, Fail("ValueError", "no such thing"))


@everywhere
def test_registered_error(world: World) -> None:
    """Ours: an exception type that is registered for the wire arrives as itself."""
    worker = world.spawn(Quiet, world.probe().ref)
    with pytest.raises(KnownError, match="known"):
        world.ask(worker, Fail("KnownError", "known"))


@everywhere
def test_unknown_error(world: World) -> None:
    """Ours: an exception that cannot be rebuilt arrives as a RemoteError with its name, text and traceback."""
    worker = world.spawn(Quiet, world.probe().ref)
    with pytest.raises(RemoteError) as caught:
        world.ask(worker, Fail("SecretError", "hidden"))
    assert caught.value.type_name.endswith("SecretError")
    assert caught.value.message == "hidden"
    assert "raise ERRORS[kind](text)" in caught.value.remote_traceback


@everywhere
def test_plain_error(world: World) -> None:
    """Ours: an exception of plain arguments arrives as itself, with the traceback as a note."""
    worker = world.spawn(Quiet, world.probe().ref)
    with pytest.raises(PlainError, match="plain") as caught:
        world.ask(worker, Fail("PlainError", "plain"))
    assert any("raise ERRORS[kind](text)" in note for note in caught.value.__notes__)


def test_failure_message(world: World) -> None:
    """Akka: a reply of Failure (Status.Failure) makes the ask raise what it carries; the actor itself goes on."""
    refuser = world.spawn(Refuser)
    for _ in range(2):
        with pytest.raises(ValueError, match="refused"):
            world.ask(refuser, "x")


def test_supervision_beside_the_answer(world: World) -> None:
    """Akka: an error that an asker is told is its supervisor's business all the same: the actor is restarted."""
    worker = world.spawn(Quiet, world.probe().ref)
    worker.tell("add")
    assert world.ask(worker, "count") == 1
    with pytest.raises(ValueError):
        world.ask(worker, Fail("ValueError"))
    assert world.ask(worker, "count") == 0


@everywhere
def test_timeout(world: World) -> None:
    """Akka, Pykka: an ask without a reply fails after its time; the error names the recipient and the message."""
    silent = world.spawn(Silent)
    with pytest.raises(AskTimeout) as caught:
        silent.ask(Fail("ValueError"), 0.05).result()
    assert silent.name in str(caught.value)
    assert "Fail" in str(caught.value)


def test_timeout_is_a_timeout_error(world: World) -> None:
    """Pykka: the timeout can be caught as Python's own TimeoutError."""
    with pytest.raises(TimeoutError):
        world.spawn(Silent).ask("x", 0.05).result()


def test_late_reply(world: World) -> None:
    """Akka: a reply that comes after the timeout is a dead letter, and answers no later ask."""
    probe = world.probe()
    world.system.event_stream.subscribe(probe.ref, DeadLetter)
    deferring = world.spawn(Deferring)
    with pytest.raises(AskTimeout):
        deferring.ask(deferring.name, 0.02).result()
    later = deferring.ask("later", DEADLINE_S)
    deferring.tell("now")
    assert world.letter(probe, message=("late", deferring.name)).recipient.path.startswith("/temp/")
    assert later.result() == ("late", "later")


def test_second_reply(world: World) -> None:
    """Akka: the first reply counts; the second one is a dead letter."""
    probe = world.probe()
    world.system.event_stream.subscribe(probe.ref, DeadLetter)
    twice = world.spawn(Twice)
    assert world.ask(twice, "x") == "first"
    world.letter(probe, message=f"second of {twice.name}")


@everywhere
def test_dead_recipient(world: World) -> None:
    """Pykka: an ask of an actor that has stopped fails at once, not at its timeout."""
    echo = world.spawn(Echo)
    world.stop(echo)
    with pytest.raises(RecipientTerminated, match=echo.name):
        echo.ask("x", LONGER_THAN_PATIENCE_S).result()


def test_dead_recipient_is_unreachable(world: World) -> None:
    """Ours: whoever handles RecipientUnreachable (also a ConnectionError) handles a dead recipient too."""
    assert issubclass(RecipientTerminated, RecipientUnreachable)
    echo = world.spawn(Echo)
    world.stop(echo)
    with pytest.raises(ConnectionError):
        world.ask(echo, "x")


@everywhere
def test_left_in_the_mailbox(world: World) -> None:
    """Pykka: asks that are left in the mailbox when the actor stops fail at once."""
    slowly = world.spawn(Slowly)
    first = slowly.ask(0.05, DEADLINE_S)
    slowly.tell(PoisonPill())
    second = slowly.ask(0, LONGER_THAN_PATIENCE_S)
    assert first.result() == f"done by {slowly.name}"
    with pytest.raises(RecipientTerminated):
        second.result()


def test_unhandled(world: World) -> None:
    """Ours: an ask that the actor has no use for fails at once, with the type of the message."""
    literal = world.spawn(Literal)
    assert world.ask(literal, "known") == "yes"
    with pytest.raises(UnhandledMessageError, match="Fail"):
        world.ask(literal, Fail("ValueError"))


def test_default_timeout(world: World) -> None:
    """Ours: without a timeout of its own an ask takes the system's; it never waits for ever."""
    ask = world.spawn(Echo).ask("x")
    assert ask.result() == "x"


def test_result_inside_an_actor(world: World) -> None:
    """Ours: waiting for an ask on the actor's own thread is refused, with the remedy, instead of blocking for ever."""
    blocking = world.spawn(Blocking, world.spawn(Echo))
    with pytest.raises(RuntimeError, match="await"):
        world.ask(blocking, "x")


class Blocking(Actor):
    """Makes the mistake of waiting for an ask in a plain handler."""

    def __init__(self, other: ActorRef) -> None:
        self.other = other

    def receive(self, message: Any) -> None:
        self.reply(self.other.ask(message).result())


def test_ask_of_a_worker_restarted(world: World) -> None:
    """Akka: a ref stays good across restarts: asks behind the failing message are answered by the new instance."""
    worker = world.spawn(Worker, world.probe().ref)
    worker.tell("add")
    worker.tell(Fail("ValueError"))
    assert world.ask(worker, "count") == 0

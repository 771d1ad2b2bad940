"""Actors that several contract modules use. Other processes make them by import path; what they see goes to a probe."""

from __future__ import annotations

import os
import threading
from typing import Any

from actors import Actor, ActorRef, Props, message
from actors.rpc.codec import wire_error


@message
class Fail:
    """An order to raise an error of a kind."""

    kind: str
    text: str = "as ordered"


@message
class Tagged:
    """A message that says who sent it."""

    tag: str
    number: int


@wire_error
class KnownError(Exception):
    """An error that travels as itself."""


class PlainError(Exception):
    """An error that nobody has registered for travelling, with plain arguments."""


class SecretError(LookupError):
    """An error that cannot be rebuilt in another process, for it holds a lock."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


ERRORS: dict[str, type[BaseException]] = {
    kind.__name__: kind
    for kind in (
        ValueError,
        KeyError,
        LookupError,
        ArithmeticError,
        ZeroDivisionError,
        OSError,
        TypeError,
        KnownError,
        PlainError,
        SecretError,
        SystemExit,
    )
}


class Echo(Actor):
    """Answers with what it is asked."""

    def receive(self, message: Any) -> None:
        self.reply(message)


class Silent(Actor):
    """Takes everything and answers nothing."""

    def receive(self, message: Any) -> None:
        pass


class Collector(Actor):
    """Passes on to the probe all that it gets."""

    def __init__(self, probe: ActorRef) -> None:
        self.probe = probe

    def receive(self, message: Any) -> None:
        self.probe.tell(message)


class Worker(Actor):
    """Counts, fails and stops on order, and tells the probe of every step of its life, each with its label."""

    def __init__(self, probe: ActorRef, label: str = "worker") -> None:
        self.probe = probe
        self.label = label
        self.count = 0

    def say(self, *words: Any) -> None:
        self.probe.tell((self.label, *words))

    def pre_start(self) -> None:
        self.say("pre_start")

    def post_stop(self) -> None:
        self.say("post_stop")

    def pre_restart(self, reason: BaseException, message: Any) -> None:
        self.say("pre_restart", str(reason), message)
        super().pre_restart(reason, message)

    def post_restart(self, reason: BaseException) -> None:
        self.say("post_restart", str(reason))
        super().post_restart(reason)

    def receive(self, message: Any) -> None:
        match message:
            case "add":
                self.count += 1
            case "count":
                self.reply(self.count)
            case "pid":
                self.reply(os.getpid())
            case "ref":
                self.reply(self.self_ref)
            case "stop":
                self.context.stop(self.self_ref)
            case Fail(kind, text):
                raise ERRORS[kind](text)
            case _:
                self.say("got", message)


class Quiet(Worker):
    """A worker that keeps the steps of its life to itself."""

    def say(self, *words: Any) -> None:
        if words[0] == "got":
            super().say(*words)


class Boss(Actor):
    """Has children with the given names, all of them workers; answers with their refs."""

    child: type[Worker] = Worker

    def __init__(self, probe: ActorRef, *names: str) -> None:
        self.kids = [self.context.actor_of(Props(self.child, probe, name), name) for name in names]

    def receive(self, message: Any) -> None:
        match message:
            case "children":
                self.reply(self.kids)
            case "living":
                self.reply(sorted(child.name for child in self.context.children))
            case ("stop", str(name)):
                child = self.context.child(name)
                assert child is not None
                self.context.stop(child)
            case "ref":
                self.reply(self.self_ref)
            case Fail(kind, text):
                raise ERRORS[kind](text)


class Batch(Actor):
    """Sends messages to an actor one after the other, without a pause between them."""

    def receive(self, message: Any) -> None:
        recipient, messages = message
        for each in messages:
            recipient.tell(each)

"""Errors of an ask over a link."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from actors.errors import EndpointStateError, RecipientTerminated, UnknownActor
from actors.ref import ActorRef, Origin
from actors.remote.gateway import PATH
from actors.remote.link import OutgoingAsk


class Asked:
    """Stands for the gateway of a process that answers each ask with an error, and for the future of that ask."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def ask(self, *arguments: object) -> Asked:
        return self

    def add_done_callback(self, callback: Callable[[Asked], None]) -> None:
        callback(self)

    def cancelled(self) -> bool:
        return False

    def exception(self) -> Exception:
        return self.error


class Told:
    """Stands for the node of the asker, and keeps the system messages that it gets."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []

    def deliver_system(self, asker: ActorRef, message: Any) -> None:
        self.errors.append(message.error)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (EndpointStateError(f"{PATH} has stopped"), RecipientTerminated),
        (UnknownActor(f"no actor {PATH} lives at 127.0.0.1:34757"), RecipientTerminated),
        (UnknownActor("no actor /user/other lives here"), UnknownActor),
    ],
)
def test_an_ask_of_a_process_that_is_ending_fails_as_an_ask_of_a_stopped_actor(
    error: Exception, told: type[Exception]
) -> None:
    node: Any = Told()
    gateway: Any = Asked(error)
    ref = ActorRef(None, Origin("s", "127.0.0.1", 1000), "/user/a", 7)
    OutgoingAsk(node, 0, ref, "message", ref, b"", 1.0, lambda ask, broken: None).send(gateway)
    assert [type(error) for error in node.errors] == [told]

"""The port of a process that is gone may be a stranger's by now: a client that was answered before looks elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from actors.address import ActorAddress
from actors.errors import ActorError, AuthenticationError, WireError
from actors.receptionist import Listing
from runtime.client import ClusterClient
from runtime.gateways.dispatcher import DispatcherGateway

SYSTEMS = ["akka.tcp://understudy@127.0.0.1:1/user/master", "akka.tcp://understudy@127.0.0.1:2/user/master"]


class Dispatcher(DispatcherGateway):
    def __init__(self, port: int, strangers: dict[int, Exception]) -> None:
        self.port, self.strangers = port, strangers

    def request_status(self) -> None:
        raise ActorError("which masters there are is not told here")


class Actors:
    """In the place of `ActorClient`: each port has a master and a Dispatcher, unless it is a stranger's."""

    def __init__(self) -> None:
        self.strangers: dict[int, Exception] = {}

    def find(self, address: ActorAddress) -> Listing:
        if address.port in self.strangers:
            raise self.strangers[address.port]
        return Listing(address.path, str(address), 1)

    def gateway(self, address: str, _type: object, _token: object) -> Dispatcher:
        return Dispatcher(ActorAddress.parse(address).port, self.strangers)


def port_of(gateway: Any) -> int:
    if gateway.port in gateway.strangers:
        raise gateway.strangers[gateway.port]
    return int(gateway.port)


@pytest.fixture
def actors() -> Actors:
    return Actors()


@pytest.fixture
def ask(actors: Actors) -> Callable[[], int]:
    client = ClusterClient(SYSTEMS, b"s" * 32, patience_s=0.3)
    client._actors = actors  # type: ignore[assignment]
    return lambda: client.call("dispatcher", DispatcherGateway, port_of)


@pytest.mark.parametrize("error", [AuthenticationError("another secret"), WireError("not our protocol")])
def test_a_master_whose_port_is_a_strangers_is_passed_over(
    actors: Actors, ask: Callable[[], int], error: Exception
) -> None:
    actors.strangers[1] = error
    assert ask() == 2


def test_a_dispatcher_whose_port_is_a_strangers_is_looked_up_anew(actors: Actors, ask: Callable[[], int]) -> None:
    assert ask() == 1
    actors.strangers[1] = AuthenticationError("another secret")
    assert ask() == 2


def test_who_was_never_answered_has_the_wrong_secret(actors: Actors, ask: Callable[[], int]) -> None:
    actors.strangers |= {1: AuthenticationError("another secret"), 2: AuthenticationError("another secret")}
    with pytest.raises(AuthenticationError, match="another secret"):
        ask()


def test_a_cluster_that_is_gone_for_good_is_told_with_what_was_found_there(
    actors: Actors, ask: Callable[[], int]
) -> None:
    assert ask() == 1
    actors.strangers |= {1: AuthenticationError("another secret"), 2: AuthenticationError("another secret")}
    with pytest.raises(ActorError, match="does not answer: another secret"):
        ask()

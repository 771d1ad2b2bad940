"""An actor that no master lists: a name that never appears is refused soon, one that may appear is waited for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from actors.address import ActorAddress
from actors.errors import AskTimeout, RecipientUnreachable, UnknownActor
from actors.receptionist import Listing
from runtime import client as client_module
from runtime.client import UNLISTED_S, ClusterClient, NoAnswerError
from runtime.notebook.cluster import Cluster
from runtime.protocol.dispatcher import DispatcherGateway
from runtime.protocol.leader import is_component, job_master

SYSTEM = "akka.tcp://understudy@127.0.0.1:{}/user/master"


class Gateway(DispatcherGateway):
    """An actor at some port, and the master there."""

    def __init__(self, port: int, masters: tuple[str, ...]) -> None:
        self.port, self.masters = port, masters

    def request_status(self) -> Any:
        return SimpleNamespace(result=lambda: SimpleNamespace(masters=self.masters))

    def get_blob_server_port(self) -> Any:
        return self.port


class Actors:
    """In the place of `ActorClient`: masters by port, what they list and from when on, and a virtual clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.listed: dict[int, dict[str, float]] = {1: {}}
        self.silent: set[int] = set()
        self.masters: tuple[str, ...] = (SYSTEM.format(1),)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def find(self, address: ActorAddress) -> Listing:
        if address.port in self.silent:
            raise AskTimeout("no reply")
        if address.port not in self.listed:
            raise RecipientUnreachable(f"nothing listens at {address.port}")
        name = address.path.rpartition("/")[2]
        if name != "master" and self.listed[address.port].get(name, float("inf")) > self.now:
            raise UnknownActor(f"no actor {address.path} is known to {address.port}")
        return Listing(address.path, str(address), 1)

    def gateway(self, address: str, _type: object, _token: object) -> Gateway:
        return Gateway(ActorAddress.parse(address).port, self.masters)

    def close(self) -> None:
        pass


@pytest.fixture
def actors(monkeypatch: pytest.MonkeyPatch) -> Actors:
    actors = Actors()
    monkeypatch.setattr(client_module, "time", actors)
    return actors


def cluster_of(actors: Actors, *ports: int) -> Cluster:
    client = ClusterClient([SYSTEM.format(port) for port in ports or (1,)], b"s" * 32, patience_s=60.0)
    client._link.actors = actors  # type: ignore[attr-defined]
    return Cluster(client)


def test_a_name_that_no_master_lists_is_unknown_soon_with_a_remedy(actors: Actors) -> None:
    """`actor` raises the error itself: without that, each call waits for a minute and blames the cluster."""
    with pytest.raises(UnknownActor, match="has no actor 'nosuch'; `understudy status` shows its processes"):
        cluster_of(actors).actor("nosuch", DispatcherGateway)
    assert UNLISTED_S <= actors.now - 100.0 < UNLISTED_S + 1.0


def test_a_task_executor_that_a_new_master_does_not_list_yet_is_found(actors: Actors) -> None:
    actors.listed[1]["taskmanager-0"] = 102.0
    assert cluster_of(actors).actor("taskmanager-0", DispatcherGateway).get_blob_server_port() == 1


def test_a_task_executor_of_a_master_that_the_client_does_not_know_yet_is_found(actors: Actors) -> None:
    actors.masters = (SYSTEM.format(1), SYSTEM.format(2))
    actors.listed[2] = {"taskmanager-0": 0.0}
    assert cluster_of(actors).actor("taskmanager-0", DispatcherGateway).get_blob_server_port() == 2
    assert actors.now < 101.0


def test_a_master_that_has_ended_knows_no_actor_and_one_that_hangs_may(actors: Actors) -> None:
    for ports in ((1, 3), (3, 1)):
        with pytest.raises(UnknownActor, match="has no actor 'nosuch'"):
            cluster_of(actors, *ports).actor("nosuch", DispatcherGateway)
    actors.silent = {3}
    for ports in ((1, 3), (3, 1)):
        with pytest.raises(NoAnswerError):
            cluster_of(actors, *ports).actor("nosuch", DispatcherGateway)


@pytest.mark.parametrize("name", ["dispatcher", "resourcemanager", "rest", "master", job_master("a" * 32)])
def test_a_component_whose_leader_changes_is_waited_for_by_its_calls_alone(actors: Actors, name: str) -> None:
    assert is_component(name)
    component = cluster_of(actors).actor(name, DispatcherGateway)
    assert actors.now == 100.0, "no call"
    actors.listed[1][name] = 130.0
    assert component.get_blob_server_port() == 1


def test_an_actor_that_was_there_is_waited_for_while_it_is_restarted(actors: Actors) -> None:
    actors.listed[1]["taskmanager-0"] = 0.0
    cluster = cluster_of(actors)
    worker = cluster.actor("taskmanager-0", DispatcherGateway)
    actors.listed[1]["taskmanager-0"] = 130.0
    cluster.client._link._gateways.clear()  # type: ignore[attr-defined]  # its process has ended
    assert worker.get_blob_server_port() == 1
    assert actors.now >= 130.0


def test_a_cluster_that_does_not_answer_does_not_make_a_name_unknown(actors: Actors) -> None:
    actors.listed = {}
    with pytest.raises(NoAnswerError, match="does not answer"):
        cluster_of(actors).actor("nosuch", DispatcherGateway)

"""An actor that no master lists: a name that never appears is refused soon, one that may appear is waited for."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from actors.address import ActorAddress
from actors.errors import AskTimeout, RecipientUnreachable, UnknownActor
from actors.receptionist import Listing
from runtime import client as client_module
from runtime.client import UNLISTED_S, ClusterClient, NoAnswerError
from runtime.ids import JobID
from runtime.notebook.cluster import Cluster
from runtime.protocol.dispatcher import DispatcherGateway
from runtime.protocol.errors import JobNotFoundError
from runtime.protocol.execution_state import JobStatus
from runtime.protocol.leader import is_component, job_master

JOB = JobID("b" * 32)
SYSTEM = "akka.tcp://understudy@127.0.0.1:{}/user/master"


class Gateway(DispatcherGateway):
    """An actor at some port, and the master there."""

    def __init__(self, actors: Actors, port: int) -> None:
        self.actors, self.port, self.masters = actors, port, actors.masters

    def request_status(self) -> Any:
        return SimpleNamespace(result=lambda: SimpleNamespace(masters=self.masters))

    def get_blob_server_port(self) -> Any:
        return self.port

    def request_job_status(self, job_id: JobID) -> Any:
        status = self.actors.jobs.get(job_id)
        return SimpleNamespace(result=lambda: status or self.missing(job_id))

    def missing(self, job_id: JobID) -> JobStatus:
        raise JobNotFoundError(f"no job {job_id} is running or remembered")


class Actors:
    """In the place of `ActorClient`: masters by port, what they list and from when on, and a virtual clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.listed: dict[int, dict[str, float]] = {1: {}}
        self.silent: set[int] = set()
        self.masters: tuple[str, ...] = (SYSTEM.format(1),)
        self.jobs: dict[JobID, JobStatus] = {}
        self.at: tuple[float, Callable[[], object]] = (float("inf"), bool)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.now >= self.at[0]:
            self.at[1]()

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
        return Gateway(self, ActorAddress.parse(address).port)

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


@pytest.mark.parametrize(
    ("name", "status", "said"),
    [
        (job_master(JOB), None, f"no job {JOB} is running or remembered"),
        (job_master(JOB), JobStatus.FINISHED, "the job is FINISHED, and its JobMaster has ended with it"),
        (job_master("nosuch"), None, "'nosuch' is not a valid JobID"),
    ],
)
def test_the_job_master_of_a_job_that_is_over_or_does_not_exist_is_unknown_at_once(
    actors: Actors, name: str, status: JobStatus | None, said: str
) -> None:
    """Other components are waited for, because their leader may be changing."""
    actors.listed[1]["dispatcher"] = 0.0
    if status is not None:
        actors.jobs[JOB] = status
    with pytest.raises(UnknownActor, match=f"has no actor {name!r}: {said}"):
        cluster_of(actors).actor(name, DispatcherGateway)
    assert actors.now == 100.0


def test_a_call_of_a_job_master_ends_when_its_job_does(actors: Actors) -> None:
    actors.listed[1]["dispatcher"] = 110.0
    actors.jobs[JOB] = JobStatus.RUNNING
    component = cluster_of(actors).actor(job_master(JOB), DispatcherGateway)
    actors.at = 120.0, lambda: actors.jobs.update({JOB: JobStatus.CANCELED})
    with pytest.raises(UnknownActor, match="the job is CANCELED"):
        component.get_blob_server_port()
    assert 120.0 <= actors.now < 121.0, "it was waited for while its job ran"


def test_the_job_master_of_a_job_that_runs_is_waited_for(actors: Actors) -> None:
    actors.listed[1] |= {"dispatcher": 0.0, job_master(JOB): 130.0}
    actors.jobs[JOB] = JobStatus.RECONCILING
    assert cluster_of(actors).actor(job_master(JOB), DispatcherGateway).get_blob_server_port() == 1
    assert actors.now >= 130.0


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

"""Two actor systems on one machine: look-up, messages, watching, remote deployment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors import (
    ActorError,
    ActorNotFound,
    ActorRef,
    ActorSystem,
    AuthenticationError,
    Props,
    RecipientTerminated,
)
from actors.rpc.security import load_or_create_secret
from actors.testkit import TestProbe
from tests.integration.actors_kit import (
    DEADLINE_S,
    PATIENT,
    Collector,
    Echo,
    Loud,
    Make,
    OtherSystem,
    Parent,
    Tell,
    Work,
    await_count,
    await_gone,
    other_system,
    until,
)
from tests.processes import lives


@pytest.fixture(scope="module")
def system() -> Iterator[ActorSystem]:
    with ActorSystem("here", config=PATIENT) as made:
        yield made


@pytest.fixture(scope="module")
def other(system: ActorSystem) -> Iterator[OtherSystem]:
    with other_system(system.secret_file) as made:
        yield made


def find(system: ActorSystem, other: OtherSystem, path: str) -> ActorRef:
    found: ActorRef = system.actor_selection(f"{other.address}{path}").resolve_one(DEADLINE_S).result()
    return found


def test_actors_of_another_system_are_found_by_address(system: ActorSystem, other: OtherSystem) -> None:
    for name in ("echo", "shared"):
        ref = find(system, other, f"/user/{name}")
        assert str(ref).startswith(f"{other.address}/user/{name}#")
        assert ref.ask("pid").result() == other.hosts[name], "in the process that really hosts it"
        assert ref.ask(Work(1, "x")).result() == Work(1, "x")
        with pytest.raises(ValueError, match="as ordered"):
            ref.ask("fail").result()
    assert find(system, other, "/user/parent").ask("pid").result() == other.process.pid
    with pytest.raises(ActorNotFound):
        system.actor_selection(f"{other.address}/user/nobody").resolve_one(DEADLINE_S).result()


def test_replies_and_refs_cross_systems(system: ActorSystem, other: OtherSystem) -> None:
    echo = find(system, other, "/user/echo")
    for placement in ("local", "shared", "pinned"):
        collector = system.actor_of(getattr(Props(Collector), placement)(), f"crossing-{placement}")
        for number in range(500):
            echo.tell(Tell(collector, number))
        await_count(collector, 500)
        assert collector.ask("got").result() == list(range(500))
        assert system.graceful_stop(collector, DEADLINE_S).result()
    probe = TestProbe(system)
    probe.send(echo, "sender")
    assert probe.expect_msg(probe.ref) == probe.ref


def test_an_actor_of_another_system_is_watched_and_stopped(system: ActorSystem, other: OtherSystem) -> None:
    parent = find(system, other, "/user/parent")
    for placement in ("local", "shared", "pinned"):
        victim = parent.ask(Make(placement, f"victim-{placement}")).result()
        assert victim.ask("x").result() == "x"
        probe = TestProbe(system)
        probe.watch(victim)
        victim.tell("stop")
        told = probe.expect_terminated(victim, DEADLINE_S)
        assert told.existence_confirmed
        assert not told.address_terminated
        with pytest.raises(RecipientTerminated):
            victim.ask("x").result()


def test_a_wrong_secret_is_an_error_that_says_so(other: OtherSystem, tmp_path: Path) -> None:
    load_or_create_secret(tmp_path / "secret")
    with ActorSystem("stranger", secret_file=tmp_path / "secret", config=PATIENT) as stranger:
        selection = stranger.actor_selection(f"{other.address}/user/echo")
        with pytest.raises(ActorError):
            selection.resolve_one(DEADLINE_S).result()
        ref = ActorRef.parse(f"{other.address}/user/echo", stranger)
        with pytest.raises(AuthenticationError, match="secret"):
            ref.ask("x").result()
    assert other.process.poll() is None


# ------------------------------------------------------------------ remote deployment


def test_an_actor_is_deployed_to_another_system(system: ActorSystem, other: OtherSystem) -> None:
    probe = TestProbe(system)
    ref = system.actor_of(Props(Loud, probe.ref).deploy(other.address), "deployed")
    here = f"here@127.0.0.1_{system.address.port}"
    assert ref.path == f"/remote/{here}/user/deployed"
    assert str(ref).startswith(other.address)
    pid = ref.ask("pid").result()
    assert pid in other.pids
    assert pid != os.getpid()
    assert probe.receive_one(DEADLINE_S) == ("made", pid)
    ref.tell("fail")
    assert probe.receive_one(DEADLINE_S) == ("pre_restart", "as ordered"), "its parent here has decided"
    assert probe.receive_one(DEADLINE_S)[0] == "made"
    assert probe.receive_one(DEADLINE_S) == ("post_restart", "as ordered")
    assert ref.ask("pid").result() == pid
    probe.watch(ref)
    assert system.graceful_stop(ref, DEADLINE_S).result()
    assert probe.receive_one(DEADLINE_S) == "post_stop"
    probe.expect_terminated(ref, DEADLINE_S)
    until(lambda: lives(pid) and pid != other.process.pid, lambda running: not running, "the end of its process")


@pytest.mark.parametrize("placement", ["local", "shared", "pinned"])
def test_a_deployed_actor_has_children_of_its_own(system: ActorSystem, other: OtherSystem, placement: str) -> None:
    parent = system.actor_of(Props(Parent).deploy(other.address), f"deployed-parent-{placement}")
    child = parent.ask(Make(placement, "kid")).result()
    assert child.path == f"{parent.path}/kid"
    assert child.ask("x").result() == "x"
    assert system.graceful_stop(parent, DEADLINE_S).result()
    with pytest.raises(RecipientTerminated):
        child.ask("x").result()
    again = system.actor_of(Props(Parent).deploy(other.address), f"deployed-parent-{placement}")
    assert again.ask("x").result() == "x"
    assert system.graceful_stop(again, DEADLINE_S).result()


def test_an_actor_in_a_host_deploys_one_too(system: ActorSystem, other: OtherSystem) -> None:
    boss = system.actor_of(Props(Deploys, other.address).pinned(), "boss")
    child = boss.ask("deploy").result()
    assert child.ask("pid").result() in other.pids
    assert system.graceful_stop(boss, DEADLINE_S).result()
    await_gone(child)


class Deploys(Echo):
    def __init__(self, address: str) -> None:
        self.address = address

    def receive(self, message: object) -> None:
        if message == "deploy":
            self.reply(self.context.actor_of(Props(Echo).deploy(self.address), "far"))


def test_a_deployment_that_fails_is_told_of(system: ActorSystem, other: OtherSystem) -> None:
    ref = system.actor_of(Props("no.such.module:Actor").deploy(other.address), "undeployable")
    with pytest.raises(ActorError):
        ref.ask("x").result()
    nowhere = system.actor_of(Props(Echo).deploy("akka.tcp://nowhere@127.0.0.1:1"), "nowhere")
    with pytest.raises(ActorError):
        nowhere.ask("x").result()

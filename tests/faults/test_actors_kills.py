"""What actors see of processes and systems that are killed, stopped, and started again."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors import ActorSystem, Props, RecipientTerminated, RecipientUnreachable, SystemConfig, Terminated
from actors.rpc.security import load_or_create_secret
from actors.testkit import TestProbe
from tests.integration.actors_kit import (
    DEADLINE_S,
    MODULE,
    PATIENT,
    PAUSE_S,
    QUICK,
    Echo,
    Loud,
    Make,
    Parent,
    WatchThis,
    await_actor,
    await_gone,
    descendants,
    other_system,
    until,
)
from tests.processes import lives
from tests.waiting import LONGER_THAN_PATIENCE_S


@pytest.fixture
def system() -> Iterator[ActorSystem]:
    with ActorSystem("here", config=PATIENT) as made:
        yield made


@pytest.fixture
def quick_system() -> Iterator[ActorSystem]:
    """One that finds out soon what stands still."""
    with ActorSystem("here", config=QUICK) as made:
        yield made


# ------------------------------------------------------------------ processes of one system


def test_a_watcher_is_told_of_a_kill_before_any_heartbeat_is_missed() -> None:
    deaf = SystemConfig(heartbeat_acceptable_pause_s=LONGER_THAN_PATIENCE_S)
    with ActorSystem("here", config=deaf) as system:
        victim = system.actor_of(Props(Echo).pinned(), "victim")
        pid = victim.ask("pid").result()
        probe = TestProbe(system)
        probe.watch(victim)
        probe.send(victim, "in order behind the watch")
        probe.receive_one(DEADLINE_S)
        os.kill(pid, signal.SIGKILL)
        assert probe.expect_terminated(victim, DEADLINE_S).address_terminated
        with pytest.raises(RecipientUnreachable):
            victim.ask("x").result()


def test_a_watcher_in_another_process_is_told_of_a_kill(system: ActorSystem) -> None:
    probe = TestProbe(system)
    watcher = system.actor_of(Props(Parent, probe.ref).pinned(), "watcher")
    victim = system.actor_of(Props(Echo).pinned(), "victim")
    assert watcher.ask(WatchThis(victim)).result() == "watching"
    pid = victim.ask("pid").result()
    assert victim.ask("x").result() == "x"
    os.kill(pid, signal.SIGKILL)
    probe.expect_msg(("terminated", victim, True), DEADLINE_S)


def test_who_asks_a_killed_actor_is_told_at_once(system: ActorSystem) -> None:
    victim = system.actor_of(Props(Echo).pinned(), "victim")
    pid = victim.ask("pid").result()
    ask = victim.ask("forget", LONGER_THAN_PATIENCE_S)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(RecipientUnreachable):
        ask.result()


def test_a_killed_child_is_made_again_in_a_new_process(system: ActorSystem) -> None:
    probe = TestProbe(system)
    parent = system.actor_of(Props(Parent, probe.ref).shared(), "parent")
    child = parent.ask(Make("pinned", "kid")).result()
    for _ in range(3):
        pid = child.ask("pid").result()
        probe.watch(child)
        os.kill(pid, signal.SIGKILL)
        messages = probe.receive_n(2, DEADLINE_S)
        failed = next(message for message in messages if isinstance(message, tuple))
        assert failed[:2] == ("failed", "ActorProcessDied")
        assert any(isinstance(message, Terminated) and message.actor == child for message in messages)
        again = await_actor(system, child.path, child)
        assert again.path == child.path
        assert again.ask("pid").result() != pid
        with pytest.raises(RecipientTerminated):
            child.ask("x").result()
        child = again


def test_a_child_that_dies_too_often_is_given_up(system: ActorSystem) -> None:
    probe = TestProbe(system)
    parent = system.actor_of(Props(Parent, probe.ref, "restart", 1).local(), "parent")
    child = parent.ask(Make("pinned", "kid")).result()
    os.kill(child.ask("pid").result(), signal.SIGKILL)
    again = until(lambda: parent.ask(("child", "kid")).result(), lambda ref: ref not in (None, child))
    os.kill(again.ask("pid").result(), signal.SIGKILL)
    until(lambda: parent.ask("children").result(), lambda children: children == [])


def test_a_killed_shared_host_takes_its_actors_and_a_new_one_is_started(system: ActorSystem) -> None:
    probe = TestProbe(system)
    refs = [system.actor_of(Props(Parent).shared(), f"shared-{number}") for number in range(5)]
    pids = {ref.ask("pid").result() for ref in refs}
    assert len(pids) == 1
    for ref in refs:
        probe.watch(ref)
    os.kill(pids.pop(), signal.SIGKILL)
    told = probe.receive_n(5, DEADLINE_S)
    assert {message.actor for message in told} == set(refs)
    found = [await_actor(system, ref.path, ref) for ref in refs]
    assert len({ref.ask("pid").result() for ref in found}) == 1


def test_the_children_of_a_killed_parent_are_stopped_wherever_they_live(system: ActorSystem) -> None:
    probe = TestProbe(system)
    grand = system.actor_of(Props(Parent, probe.ref, "stop").local(), "grand")
    parent = grand.ask(Make("pinned", "parent", f"{Parent.__module__}:Parent")).result()
    children = [parent.ask(Make(placement, f"kid-{placement}")).result() for placement in ("pinned", "shared", "local")]
    pids = [child.ask("pid").result() for child in children]
    os.kill(parent.ask("pid").result(), signal.SIGKILL)
    for child in children:
        await_gone(child)
    until(lambda: lives(pids[0]), lambda running: not running, "the end of the pinned child's process")


def test_a_stopped_host_is_found_out_and_killed(quick_system: ActorSystem) -> None:
    probe = TestProbe(quick_system)
    victim = quick_system.actor_of(Props(Loud, probe.ref).pinned(), "victim")
    pid = probe.receive_one(DEADLINE_S)[1]
    probe.watch(victim)
    time_of_heartbeats = until(lambda: quick_system.on_loop(lambda: _beats(quick_system)), lambda beats: beats >= 3)
    assert time_of_heartbeats
    began = time.monotonic()
    os.kill(pid, signal.SIGSTOP)
    messages = probe.receive_n(2, DEADLINE_S)
    assert any(isinstance(message, Terminated) and message.actor == victim for message in messages)
    assert time.monotonic() - began > PAUSE_S / 2
    until(lambda: lives(pid), lambda running: not running, "its end: what is said of it has to be true")


def _beats(system: ActorSystem) -> int:
    """How many heartbeats of its one host the root node has seen."""
    monitored = list(system._remoting.peers.heartbeats._monitored.values())
    return monitored[0].beats if monitored else 0


def test_an_actor_that_computes_is_not_held_for_dead(quick_system: ActorSystem) -> None:
    busy = quick_system.actor_of(Props(Echo).pinned(), "busy")
    pid = busy.ask("pid").result()
    until(lambda: quick_system.on_loop(lambda: _beats(quick_system)), lambda beats: beats >= 3)
    assert busy.ask(("compute", 2 * PAUSE_S)).result() == "computed"
    assert busy.ask("pid").result() == pid


def test_a_killed_admin_ends_all_hosts_and_every_watcher_is_told(system: ActorSystem) -> None:
    probe = TestProbe(system)
    refs = [system.actor_of(Props(Parent, None, "stop").pinned(), f"pinned-{number}") for number in range(2)]
    for ref in refs:
        ref.ask("x").result()
        probe.watch(ref)
    os.kill(system._processes.admin_pid, signal.SIGKILL)
    told = probe.receive_n(2, DEADLINE_S)
    assert {message.actor for message in told} == set(refs)


# ------------------------------------------------------------------ other systems


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    load_or_create_secret(tmp_path / "secret")
    return tmp_path / "secret"


def test_a_killed_system_is_noticed_and_its_next_incarnation_is_another(secret_file: Path) -> None:
    with (
        ActorSystem("here", secret_file=secret_file, config=PATIENT) as system,
        other_system(secret_file) as other,
    ):
        probe = TestProbe(system)
        watcher = system.actor_of(Props(Parent, probe.ref).pinned(), "watcher")
        refs = [await_actor(system, f"{other.address}/user/{name}") for name in ("echo", "shared", "parent")]
        for ref in refs:
            probe.watch(ref)
        assert watcher.ask(WatchThis(refs[0])).result() == "watching"
        for ref in refs:
            ref.ask("x").result()
        other.kill()
        told = probe.receive_n(4, DEADLINE_S)
        assert ("terminated", refs[0], True) in told, "by the watcher in a host"
        told = [message for message in told if isinstance(message, Terminated)]
        assert {message.actor for message in told} == set(refs)
        assert all(message.address_terminated for message in told)
        with pytest.raises(RecipientUnreachable):
            refs[0].ask("x").result()
        with other_system(secret_file, port=other.port) as again:
            assert again.address == other.address
            found = await_actor(system, f"{again.address}/user/echo")
            assert found != refs[0]
            assert found.ask("pid").result() == again.hosts["echo"]
            with pytest.raises(RecipientTerminated):
                refs[0].ask("x").result()


def test_only_one_process_of_another_system_is_killed(secret_file: Path) -> None:
    with (
        ActorSystem("here", secret_file=secret_file, config=PATIENT) as system,
        other_system(secret_file) as other,
    ):
        probe = TestProbe(system)
        echo, shared = (await_actor(system, f"{other.address}/user/{name}") for name in ("echo", "shared"))
        probe.watch(echo)
        probe.watch(shared)
        assert echo.ask("x").result() == "x"
        os.kill(other.hosts["echo"], signal.SIGKILL)
        assert probe.expect_terminated(echo, DEADLINE_S).address_terminated
        assert shared.ask("x").result() == "x"
        probe.expect_no_msg(0.3)
        again = await_actor(system, f"{other.address}/user/echo", echo)
        assert again.ask("x").result() == "x"


def test_a_deployed_actor_ends_with_its_parents_system(secret_file: Path) -> None:
    with (
        ActorSystem("here", secret_file=secret_file, config=PATIENT) as system,
        other_system(secret_file) as other,
    ):
        probe = TestProbe(system)
        parent = await_actor(system, f"{other.address}/user/parent")
        assert parent.ask("x").result() == "x"
        deploys = parent.ask(Make("local", "deploys", f"{MODULE}:Deployer")).result()
        here = str(system.address).removesuffix("/user")
        child = deploys.ask((here, "far")).result()
        pid = child.ask("pid").result()
        assert pid in [os.getpid(), *descendants(os.getpid())]
        probe.watch(child)
        other.kill()
        probe.expect_terminated(child, DEADLINE_S)


def test_a_stopped_system_is_held_for_dead_and_stays_in_quarantine(
    secret_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with (
        ActorSystem("here", secret_file=secret_file, config=QUICK) as system,
        other_system(secret_file) as other,
    ):
        probe = TestProbe(system)
        parent = await_actor(system, f"{other.address}/user/parent")
        assert parent.ask("x").result() == "x"
        watched = system.actor_of(Props(Echo).local(), "watched")
        assert parent.ask(WatchThis(watched)).result() == "watching"
        probe.watch(parent)
        until(lambda: system.on_loop(lambda: _beats(system)), lambda beats: beats >= 3)
        os.kill(other.process.pid, signal.SIGSTOP)
        told = probe.expect_terminated(parent, DEADLINE_S)
        assert told.address_terminated
        with pytest.raises(RecipientUnreachable):
            parent.ask("x", 2.0).result()
        os.kill(other.process.pid, signal.SIGCONT)
        until(lambda: "restart this actor system" in other.errors(), what="the word to the one in quarantine")
        with pytest.raises(RecipientUnreachable):
            parent.ask("x", 2.0).result()
        assert "it stays unreachable until it is restarted" in caplog.text

"""Actor systems whose processes talk by TLS."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from actors import Actor, ActorError, ActorRef, ActorSystem, Props, SystemConfig
from actors.messages import Terminated
from actors.rpc.security import load_or_create_secret
from tests.fakes.certificates import CertificateAuthority
from tests.waiting import PATIENCE_S

DEADLINE_S = PATIENCE_S


class Echo(Actor):
    def receive(self, message: Any) -> None:
        if message == "die":
            os._exit(3)
        self.reply(message)


class Watcher(Actor):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def receive(self, message: Any) -> None:
        match message:
            case ActorRef():
                self.context.watch(message)
                self.reply("watching")
            case Terminated(actor):
                self.seen.append(actor.name)
            case _:
                self.reply(self.seen)


@pytest.fixture
def files(tmp_path: Path) -> tuple[CertificateAuthority, Path]:
    load_or_create_secret(tmp_path / "secret")
    return CertificateAuthority(tmp_path), tmp_path / "secret"


def until(condition: Any) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_two_systems_of_one_authority_work_together(files: tuple[CertificateAuthority, Path]) -> None:
    authority, secret = files
    with (
        ActorSystem("one", secret_file=secret, config=SystemConfig(tls=authority.issue())) as one,
        ActorSystem("two", secret_file=secret, config=SystemConfig(tls=authority.issue())) as two,
    ):
        one.actor_of(Props(Echo), "pinned")
        pinned = two.actor_selection(f"{one.address}/pinned").resolve_one(DEADLINE_S).result()
        assert pinned.ask("over tls", DEADLINE_S).result() == "over tls"
        assert pinned.ask(bytes(1 << 20), DEADLINE_S).result() == bytes(1 << 20)
        watcher = two.actor_of(Props(Watcher).local(), "watcher")
        assert watcher.ask(pinned, DEADLINE_S).result() == "watching"
        pinned.tell("die")
        until(lambda: watcher.ask("seen", DEADLINE_S).result() == ["pinned"])


def test_a_system_without_a_certificate_reaches_nobody(
    files: tuple[CertificateAuthority, Path], tmp_path: Path
) -> None:
    authority, secret = files
    other = tmp_path / "other"
    other.mkdir()
    with ActorSystem("one", secret_file=secret, config=SystemConfig(tls=authority.issue())) as one:
        one.actor_of(Props(Echo).local(), "echo")
        for tls in (None, CertificateAuthority(other).issue()):
            config = SystemConfig(tls=tls)
            with (
                ActorSystem("stranger", secret_file=secret, config=config) as stranger,
                pytest.raises(ActorError),
            ):
                stranger.actor_selection(f"{one.address}/echo").resolve_one(2.0).result()

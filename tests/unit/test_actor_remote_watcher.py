"""Heartbeats in virtual time: the other node's pulse is a fake gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from actors.errors import RecipientUnreachable
from actors.remote.gateway import NodeId
from actors.remote.heartbeats import Heartbeats
from actors.system_config import HeartbeatConfig
from actors.testkit.deterministic import VirtualLoop

NODE = NodeId("s", "127.0.0.1", 1001, 42, "127.0.0.1", 1000, 1, pulse_port=1002)
CONFIG = HeartbeatConfig(interval_s=1.0, threshold=8.0, acceptable_pause_s=3.0)


class Pulse:
    """Answers with its uid, is silent, or is not to be reached."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.uid = NODE.uid
        self.how = "alive"
        self.asked = 0

    async def beat(self) -> int:
        self.asked += 1
        if self.how == "silent":
            await self.loop.create_future()
        if self.how == "unreachable":
            raise RecipientUnreachable("nothing there")
        return self.uid


class Service:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.pulse = Pulse(loop)
        self.address: Any = None

    def gateway(self, address: Any, _kind: type, timeout_s: float) -> Pulse:
        self.address = address
        return self.pulse


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    made = VirtualLoop()
    yield made
    for task in asyncio.all_tasks(made):
        task.cancel()
    made.drive(0.0)
    made.close()


def monitored(loop: VirtualLoop) -> tuple[Service, Heartbeats, list[tuple[NodeId, str, float]]]:
    service, lost = Service(loop), []
    heartbeats = Heartbeats(service, CONFIG, lambda node, why: lost.append((node, why, loop.time())))  # type: ignore[arg-type]
    heartbeats.watch(NODE)
    return service, heartbeats, lost


def test_a_node_that_answers_is_alive(loop: VirtualLoop) -> None:
    service, _, lost = monitored(loop)
    loop.drive(60)
    assert not lost
    assert 55 <= service.pulse.asked <= 65
    assert service.address.port == NODE.pulse_port


@pytest.mark.parametrize("how", ["silent", "unreachable"])
def test_a_node_that_falls_silent_is_reported_once(loop: VirtualLoop, how: str) -> None:
    service, _, lost = monitored(loop)
    loop.drive(30)
    began = loop.time()
    service.pulse.how = how
    loop.drive(60)
    assert len(lost) == 1
    node, why, when = lost[0]
    assert node == NODE
    assert "heartbeats (phi" in why
    assert 3 < when - began < 10


def test_a_pause_that_is_acceptable_is_accepted(loop: VirtualLoop) -> None:
    service, _, lost = monitored(loop)
    loop.drive(30)
    service.pulse.how = "unreachable"
    loop.drive(2.5)
    service.pulse.how = "alive"
    loop.drive(30)
    assert not lost


def test_another_uid_at_the_address_counts_at_once(loop: VirtualLoop) -> None:
    service, _, lost = monitored(loop)
    loop.drive(5)
    service.pulse.uid = 43
    loop.drive(1.5)
    assert [(node, why) for node, why, _ in lost] == [(NODE, "another incarnation has its address")]


def test_who_is_not_monitored_any_more_is_not_asked(loop: VirtualLoop) -> None:
    service, heartbeats, lost = monitored(loop)
    heartbeats.watch(NODE)
    loop.drive(5)
    heartbeats.unwatch(NODE.uid)
    heartbeats.unwatch(NODE.uid)
    asked = service.pulse.asked
    loop.drive(60)
    assert service.pulse.asked == asked
    heartbeats.watch(NODE)
    loop.drive(5)
    assert service.pulse.asked > asked
    assert not lost
    heartbeats.close()


def test_a_client_has_no_pulse(loop: VirtualLoop) -> None:
    service, lost = Service(loop), []
    heartbeats = Heartbeats(service, CONFIG, lambda *found: lost.append(found))  # type: ignore[arg-type]
    heartbeats.watch(NodeId("s", "", 0, 7, "127.0.0.1", 1000, 7))
    loop.drive(60)
    assert service.pulse.asked == 0


def test_an_own_standstill_is_nobody_elses_fault(loop: VirtualLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    service, _, lost = monitored(loop)
    loop.drive(30)
    monkeypatch.setattr(loop, "time", lambda base=loop.time: base() + 100.0)
    loop.drive(30)
    assert not lost
    assert service.pulse.asked >= 50

"""The latches and maps of a master without Redis, and the log of changes."""

from __future__ import annotations

import pytest

from runtime.ha.errors import LeadershipLostError
from runtime.ha.fenced import Demand, HashWrite
from runtime.ha.standalone_endpoint import ChangeLog, HaMemory
from runtime.protocol.leader import DISPATCHER, LeaderInformation, LeaderTerm

LEASE = 3.0


class Clocks:
    def __init__(self) -> None:
        self.now = 100.0
        self.changed: list[str] = []

    def memory(self) -> HaMemory:
        return HaMemory(
            clock=lambda: self.now, milliseconds=lambda: int(self.now * 1000), on_change=self.changed.append
        )


def lead(memory: HaMemory, session: str = "s", floor: int = 0) -> LeaderTerm:
    reply = memory.acquire(DISPATCHER, session, LEASE, floor)
    assert reply.granted
    return LeaderTerm(DISPATCHER, reply.epoch, session)


def test_a_latch_is_one_sessions_until_it_expires_or_is_released() -> None:
    clocks = Clocks()
    memory = clocks.memory()
    term = lead(memory)
    clocks.now += 1.0
    refused = memory.acquire(DISPATCHER, "t", LEASE, 0)
    assert (refused.granted, refused.epoch, refused.expires_in) == (False, term.epoch, 2.0)
    again = memory.acquire(DISPATCHER, "s", LEASE, 0)
    assert (again.granted, again.epoch, again.expires_in) == (True, term.epoch, 2.0), "the lost reply, no new lease"
    assert memory.renew(term, LEASE)
    clocks.now += LEASE
    assert not memory.renew(term, LEASE)
    assert not memory.release(term)
    successor = lead(memory, "t")
    assert successor.epoch > term.epoch
    assert memory.release(successor)
    assert lead(memory, "u").epoch > successor.epoch


def test_epochs_pass_the_floor_and_the_clock_and_never_go_back() -> None:
    clocks = Clocks()
    memory = clocks.memory()
    first = lead(memory)
    assert first.epoch == 100_000
    assert lead(memory, "s", floor=200_000).epoch == 200_001, "its own session, for an epoch above a higher one"
    memory.clear()
    assert lead(memory).epoch == 200_002
    clocks.now = 300.0
    assert lead(clocks.memory()).epoch == 300_000, "another master's epochs are above all before"


def test_the_leader_is_known_once_it_is_confirmed_and_while_its_lease_runs() -> None:
    clocks = Clocks()
    memory = clocks.memory()
    term = lead(memory)
    assert memory.leader(DISPATCHER) is None
    assert memory.confirm(term, "akka://a")
    assert memory.leader(DISPATCHER) == LeaderInformation(DISPATCHER, "akka://a", term.epoch, "s")
    assert not memory.confirm(LeaderTerm(DISPATCHER, term.epoch, "other"), "akka://b")
    clocks.now += LEASE
    assert memory.leader(DISPATCHER) is None
    assert clocks.changed == [DISPATCHER]


def test_a_write_needs_the_leadership_and_what_it_demands() -> None:
    clocks = Clocks()
    memory = clocks.memory()
    term = lead(memory)
    assert memory.hset("k", "f", "1", term, Demand.ABSENT) == HashWrite(True)
    assert memory.hset("k", "f", "2", term, Demand.ABSENT) == HashWrite(False, "1")
    assert memory.hset("k", "f", "2", term, "0") == HashWrite(False, "1")
    assert memory.hset("k", "f", "2", term, "1") == HashWrite(True)
    assert memory.hdel("k", "g", term, "1") == HashWrite(False, None)
    assert memory.get_all("k") == {"f": "2"}
    clocks.now += LEASE
    with pytest.raises(LeadershipLostError, match="no leader is known"):
        memory.hset("k", "f", "3", term, Demand.ANY)
    successor = lead(memory, "t")
    with pytest.raises(LeadershipLostError, match=f"epoch {successor.epoch} leads now"):
        memory.hdel("k", "f", term, Demand.ANY)
    with pytest.raises(LeadershipLostError):
        memory.depose(successor.component, term)
    assert memory.renew(successor, LEASE)
    assert memory.get("k", "f") == "2"
    assert memory.hdel("k", "f", successor, Demand.ANY) == HashWrite(True)
    assert memory.get("k", "f") is None


def test_changes_are_told_by_name_or_as_all() -> None:
    log = ChangeLog()
    assert log.since(-1).components is None, "who asks for the first time looks at all"
    start = log.version
    log.add("a")
    log.add("b")
    log.add("a")
    assert log.since(start).components == ["a", "b"]
    assert log.since(log.version - 1).components == ["a"]
    assert log.since(log.version).components == []
    assert log.since(log.version + 5).components is None, "of another master"
    for _ in range(2000):
        log.add("c")
    assert log.since(start).components is None, "too long ago"

"""A fast sender over a slow recipient in another process: refused or slowed, never out of memory."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import psutil
import pytest

from actors import (
    Actor,
    ActorRef,
    ActorSystem,
    BoundedMailbox,
    MailboxFull,
    Overflow,
    Props,
    RecipientUnreachable,
)
from tests.integration.actors_kit import PATIENT, await_count, until
from tests.waiting import PATIENCE_S

MEGABYTE = 1024 * 1024
MESSAGES = 20_000
CONTENT = bytes(20_000)
"""400 MB in all."""


class Slow(Actor):
    """Takes its time until it is told to hurry; counts."""

    def __init__(self) -> None:
        self.count = 0
        self.last = -1
        self.in_order = True

    async def receive(self, message: Any) -> None:
        match message:
            case "count":
                self.reply(self.count)
            case "state":
                self.reply((self.count, self.in_order))
            case (int(number), bytes()):
                self.in_order = self.in_order and number > self.last
                self.last = number
                self.count += 1
                await asyncio.sleep(0.0001 if number % 50 else 0.005)


class Flooder(Actor):
    """Sends everything at once; and asks, behind all that it sent, how much of it has come."""

    def __init__(self) -> None:
        self.slow: ActorRef | None = None

    async def receive(self, message: Any) -> None:
        if isinstance(message, ActorRef):
            self.slow = message
            for number in range(MESSAGES):
                message.tell((number, CONTENT))
        elif message == "come" and self.slow is not None:
            try:
                self.reply(await self.slow.ask("count", PATIENCE_S))
            except (MailboxFull, RecipientUnreachable):
                self.reply(-1)  # there is no room for the question
            return
        self.reply(psutil.Process(os.getpid()).memory_info().rss)


@pytest.mark.parametrize("overflow", [Overflow.BACKPRESSURE, Overflow.DROP_NEW])
def test_memory_stays_bounded_on_both_sides(overflow: Overflow) -> None:
    with ActorSystem("flood", config=PATIENT) as system:
        slow = system.actor_of(Props(Slow).pinned().with_mailbox(BoundedMailbox(100, overflow)), "slow")
        flooder = system.actor_of(Props(Flooder).pinned(), "flooder")
        for ref in (slow, flooder):
            ref.ask("count").result()
        hosts = {name.split("-")[0]: psutil.Process(pid) for name, pid in system.processes.items()}
        before = {name: host.memory_info().rss for name, host in hosts.items()}
        after = flooder.ask(slow, PATIENCE_S).result()
        assert after - before["flooder"] < 150 * MEGABYTE
        most, come = 0, flooder.ask("come", PATIENCE_S)

        def settled() -> bool:
            nonlocal most, come
            most = max(most, hosts["slow"].memory_info().rss)
            if not come.done():
                return False
            if come.result() < 0:
                come = flooder.ask("come", PATIENCE_S)
                return False
            return True

        until(settled)
        assert most - before["slow"] < 100 * MEGABYTE
        count, in_order = slow.ask("state").result()
        assert in_order
        assert 100 <= count < MESSAGES


def test_with_back_pressure_nothing_is_lost_below_what_may_wait() -> None:
    with ActorSystem("pressure", config=PATIENT) as system:
        slow = system.actor_of(Props(Slow).pinned().with_mailbox(BoundedMailbox(10, Overflow.BACKPRESSURE)), "slow")
        slow.ask("count").result()
        for number in range(1000):
            slow.tell((number, CONTENT))
        await_count(slow, 1000)
        assert slow.ask("state").result() == (1000, True)

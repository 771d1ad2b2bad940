"""A watcher that stood still: what it did not hear meanwhile is held against nobody."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from actors.errors import RecipientUnreachable
from actors.rpc.endpoint import RpcEndpoint
from conf.configuration import Configuration
from runtime.heartbeat import HeartbeatManager, Silence

INTERVAL, TIMEOUT = 1.0, 5.0


class Watcher:
    """An endpoint whose time is the test's."""

    log = logging.getLogger("test")

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.lost: list[tuple[str, str]] = []
        self.spawned: list[asyncio.Task[Any]] = []
        self.manager = HeartbeatManager(
            cast(RpcEndpoint, self),
            Configuration.from_dict(
                {
                    "heartbeat.interval": f"{INTERVAL} s",
                    "heartbeat.timeout": f"{TIMEOUT} s",
                    "heartbeat.rpc-failure-threshold": "2",
                }
            ),
            on_timeout=lambda target, reason: self.lost.append((target, reason)),
            clock=lambda: self.now,
        )
        self.manager.start()

    def schedule_run_async(self, delay_s: float, action: Callable[[], None]) -> None:
        self.timers.append((self.now + delay_s, action))

    def spawn(self, work: Coroutine[Any, Any, Any], what: str) -> None:
        self.spawned.append(asyncio.create_task(work, name=what))

    def run_for(self, seconds: float) -> None:
        """The time passes, and each timer fires when it is due."""
        end = self.now + seconds
        while due := [timer for timer in self.timers if timer[0] <= end]:
            first = min(due, key=lambda timer: timer[0])
            self.now = max(self.now, first[0])
            self.timers.remove(first)
            first[1]()
        self.now = end

    def stand_still(self, seconds: float) -> None:
        """The time passes, and nothing of this process runs."""
        self.now += seconds


def test_a_target_that_is_silent_while_the_watcher_runs_is_lost() -> None:
    watcher = Watcher()
    watcher.manager.monitor("tm-1")
    watcher.run_for(4.9)
    assert watcher.lost == []
    watcher.run_for(0.2)
    assert [target for target, _ in watcher.lost] == ["tm-1"]


def test_a_watcher_without_targets_sets_no_timer() -> None:
    watcher = Watcher()
    assert watcher.timers == []
    watcher.manager.monitor("tm-1")
    watcher.manager.monitor("tm-2")
    assert [at for at, _ in watcher.timers] == [watcher.now + INTERVAL]
    watcher.manager.unmonitor("tm-1")
    watcher.manager.unmonitor("tm-2")
    watcher.run_for(10 * TIMEOUT)
    assert (watcher.timers, watcher.lost) == ([], [])
    watcher.manager.monitor("tm-3")
    watcher.run_for(TIMEOUT)
    assert [target for target, _ in watcher.lost] == ["tm-3"]


def test_a_thawed_watcher_loses_nobody_at_its_first_look_and_the_dead_a_time_out_later() -> None:
    watcher = Watcher()
    for target in ("living", "dead"):
        watcher.manager.monitor(target)
    watcher.run_for(3.0)
    watcher.manager.received("living")
    watcher.stand_still(60.0)
    watcher.run_for(0.5)  # the late tick: the watcher has run for 4.5 s since it began
    assert watcher.lost == []
    watcher.manager.received("living")
    watcher.run_for(0.6)
    assert [target for target, _ in watcher.lost] == ["dead"]
    watcher.run_for(3.9)
    assert [target for target, _ in watcher.lost] == ["dead"]
    watcher.run_for(1.0)
    assert [target for target, _ in watcher.lost] == ["dead", "living"], "the standstill counts once"


async def test_an_answer_that_fails_right_after_the_thaw_does_not_count_the_standstill_as_silence() -> None:
    """The reply of an ask that was under way is read before the late tick."""
    watcher, answer = Watcher(), asyncio.get_running_loop().create_future()
    watcher.manager.monitor("tm-1", lambda: answer)
    watcher.run_for(1.5)
    await asyncio.sleep(0)
    watcher.stand_still(60.0)
    answer.set_exception(RecipientUnreachable("the connection broke"))
    await asyncio.gather(*watcher.spawned)
    assert watcher.lost == []


async def test_a_listener_that_stood_still_goes_on_listening(monkeypatch: pytest.MonkeyPatch) -> None:
    silence, slept = Silence(), 0.0

    async def sleep(seconds: float) -> None:
        """However long a step takes on the clock, it is one."""
        nonlocal slept
        slept += seconds

    monkeypatch.setattr(asyncio, "sleep", sleep)
    await silence.lasts(TIMEOUT)
    assert slept == pytest.approx(TIMEOUT)
    silence.heard()
    await silence.lasts(TIMEOUT)
    assert slept == pytest.approx(2 * TIMEOUT)


async def test_a_target_that_may_have_ended_is_asked_at_once_and_lost_at_the_second_refusal() -> None:
    watcher, asked = Watcher(), 0

    async def refuse() -> None:
        nonlocal asked
        asked += 1
        raise RecipientUnreachable("nothing listens there")

    watcher.manager.monitor("tm-1", refuse)
    watcher.manager.ask_now("tm-1")
    watcher.manager.ask_now("tm-1")
    watcher.manager.ask_now("another")
    await asyncio.gather(*watcher.spawned)
    assert (asked, watcher.lost) == (1, [])
    watcher.run_for(0.2)
    await asyncio.gather(*watcher.spawned)
    assert asked == 2
    assert [target for target, _ in watcher.lost] == ["tm-1"]

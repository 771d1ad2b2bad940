"""The timer of a component: one for all that it waits for, and none where it waits for nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from actors.rpc.endpoint import RpcEndpoint
from runtime.alarm import Alarm


class Clock:
    """An endpoint whose time is the test's."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.rang: list[float] = []
        self.alarm = Alarm(cast(RpcEndpoint, self), lambda: self.rang.append(self.now), lambda: self.now)

    def schedule_run_async(self, delay_s: float, action: Callable[[], None]) -> None:
        self.timers.append((self.now + delay_s, action))

    def run_until(self, end: float) -> None:
        while due := [timer for timer in self.timers if timer[0] <= end]:
            first = min(due, key=lambda timer: timer[0])
            self.now = first[0]
            self.timers.remove(first)
            first[1]()
        self.now = end


def test_without_a_moment_there_is_no_timer() -> None:
    clock = Clock()
    clock.alarm.set(None)
    clock.alarm.clear()
    assert clock.timers == []


def test_it_rings_once_at_the_earliest_moment() -> None:
    clock = Clock()
    for at in (130.0, 110.0, 120.0, 110.0):
        clock.alarm.set(at)
    assert len(clock.timers) == 2
    clock.run_until(200.0)
    assert (clock.rang, clock.timers) == ([110.0], [])


def test_a_moment_that_is_over_is_now() -> None:
    clock = Clock()
    clock.alarm.set(1.0)
    clock.run_until(100.0)
    assert clock.rang == [100.0]


def test_it_is_set_anew_after_it_has_rung_or_was_cleared() -> None:
    clock = Clock()
    clock.alarm.set(110.0)
    clock.alarm.clear()
    clock.alarm.set_in(50.0)
    clock.run_until(149.0)
    assert clock.rang == []
    clock.run_until(151.0)
    clock.alarm.set(160.0)
    clock.run_until(170.0)
    assert clock.rang == [150.0, 160.0]

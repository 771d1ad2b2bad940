from __future__ import annotations

import asyncio
from typing import Any

import pytest

from actors.errors import AskTimeout
from actors.rpc.connection import PendingAsk, PendingAsks


class ManualLoop:
    """A clock that is set by hand, with the timers that were asked of it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[ManualTimer] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, action: Any) -> ManualTimer:
        timer = ManualTimer(when, action)
        self.timers.append(timer)
        return timer

    def advance(self, now: float) -> None:
        self.now = now
        for timer in [item for item in self.timers if not item.gone and item._when <= now]:
            timer.gone = True
            timer.action()

    @property
    def armed(self) -> list[float]:
        return [timer._when for timer in self.timers if not timer.gone]


class ManualTimer:
    def __init__(self, when: float, action: Any) -> None:
        self._when, self.action, self.gone = when, action, False

    def when(self) -> float:
        return self._when

    def cancel(self) -> None:
        self.gone = True


def ask(deadline: float) -> PendingAsk:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    return PendingAsk(future, lambda value: value, deadline, lambda: AskTimeout(f"at {deadline:g}"))


async def test_each_ask_times_out_at_its_own_deadline_with_one_timer() -> None:
    loop = ManualLoop()
    pending = PendingAsks(loop)  # type: ignore[arg-type]
    asks = {deadline: ask(deadline) for deadline in (5.0, 3.0, 9.0, 3.5)}
    for number, one in enumerate(asks.values()):
        pending.add(number, one)
    assert loop.armed == [3.0]
    for now, done in ((2.9, []), (3.0, [3.0]), (4.0, [3.0, 3.5]), (9.0, [3.0, 3.5, 5.0, 9.0])):
        loop.advance(now)
        assert sorted(deadline for deadline, one in asks.items() if one.future.done()) == done
        assert len(loop.armed) == (0 if len(done) == 4 else 1)
    with pytest.raises(AskTimeout, match="at 5"):
        asks[5.0].future.result()
    for one in asks.values():
        one.future.exception()


async def test_an_answered_ask_is_taken_once_and_never_times_out() -> None:
    loop = ManualLoop()
    pending = PendingAsks(loop)  # type: ignore[arg-type]
    one = ask(1.0)
    pending.add(7, one)
    assert pending.take(7) is one
    assert pending.take(7) is None
    loop.advance(2.0)
    assert not one.future.done()
    assert loop.armed == []


async def test_all_fail_when_the_connection_is_gone() -> None:
    loop = ManualLoop()
    pending = PendingAsks(loop)  # type: ignore[arg-type]
    asks = [ask(1.0), ask(2.0)]
    for number, one in enumerate(asks):
        pending.add(number, one)
    asks[0].future.set_result("its asker has given up")
    pending.fail_all(lambda: ConnectionError("gone"))
    assert asks[0].future.result() == "its asker has given up"
    with pytest.raises(ConnectionError, match="gone"):
        asks[1].future.result()
    assert loop.armed == []

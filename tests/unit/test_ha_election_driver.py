"""How a contender carries out what its latch state decides: which moments it counts, and in which order it acts."""

from __future__ import annotations

import asyncio
from unittest import mock
from unittest.mock import create_autospec

from runtime.ha.changes import ChangeFeed, ChangeSource
from runtime.ha.election import LatchLeaderElectionDriver, LeaderElectionListener
from runtime.ha.latch import AcquireReply, LatchTiming, LeaderLatch
from runtime.protocol.leader import LeaderTerm
from tests.waiting import PATIENCE_S

LEASE = 60.0
TIMING = LatchTiming(LEASE)


class Seconds:
    """A clock that moves when it is told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class SlowLatch:
    """A latch that is everybody's, and whose answers take *takes* seconds."""

    def __init__(self, clock: Seconds, takes: float) -> None:
        self._clock = clock
        self._takes = takes
        self.renewed = asyncio.Event()

    async def acquire(self, session: str, floor: int) -> AcquireReply:
        self._clock.now += self._takes
        return AcquireReply(True, floor + 1, LEASE)

    async def renew(self, term: LeaderTerm, timeout: float) -> bool:
        self._clock.now += self._takes
        self.renewed.set()
        return True

    async def release(self, term: LeaderTerm) -> bool:
        return True


async def test_a_lease_is_counted_from_before_its_request_was_sent() -> None:
    clock = Seconds()
    latch = SlowLatch(clock, takes=10.0)
    feed = ChangeFeed(create_autospec(ChangeSource, instance=True))
    driver = LatchLeaderElectionDriver("dispatcher", latch, feed, TIMING, clock=clock)
    listener = create_autospec(LeaderElectionListener, instance=True)
    granted: asyncio.Future[LeaderTerm] = asyncio.get_running_loop().create_future()
    listener.on_grant.side_effect = granted.set_result
    await driver.start(listener)
    term = await asyncio.wait_for(granted, PATIENCE_S)  # sent at 0, answered at 10
    clock.now = LEASE - TIMING.margin - 0.001
    assert driver.holds(term)
    clock.now = LEASE - TIMING.margin
    assert not driver.holds(term)
    clock.now = sent = TIMING.renew_every
    driver.observe_epoch(term.epoch)  # no higher one, but news: it looks at its clock
    await asyncio.wait_for(latch.renewed.wait(), PATIENCE_S)
    clock.now = sent + LEASE - TIMING.margin - 0.001
    assert driver.holds(term)
    clock.now = sent + LEASE - TIMING.margin
    assert not driver.holds(term)
    await driver.stop()
    await feed.close()


async def test_a_leader_is_told_before_its_latch_is_given_back() -> None:
    seen = mock.Mock()
    latch = create_autospec(LeaderLatch, instance=True)
    latch.acquire.return_value = AcquireReply(True, 1, LEASE)
    latch.release.side_effect = seen.released
    feed = ChangeFeed(create_autospec(ChangeSource, instance=True))
    driver = LatchLeaderElectionDriver("dispatcher", latch, feed, TIMING, clock=Seconds())
    listener = create_autospec(LeaderElectionListener, instance=True)
    granted = asyncio.Event()
    listener.on_grant.side_effect = lambda _: granted.set()
    listener.on_revoke.side_effect = seen.revoked
    await driver.start(listener)
    await asyncio.wait_for(granted.wait(), PATIENCE_S)
    await driver.stop()
    assert [name for name, _, _ in seen.method_calls] == ["revoked", "released"]
    await feed.close()

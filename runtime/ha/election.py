"""Leader election (Flink's ``LeaderElectionService``, ``LeaderContender``, ``LeaderElectionDriver``).

A *driver* determines the leader (in Redis, or in memory). The *service* connects it with one contender: it passes on
grants and revocations in order, and protects the driver from a contender's exceptions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol
from uuid import uuid4

from runtime.ha.changes import ChangeFeed
from runtime.ha.errors import HaError
from runtime.ha.latch import Acquire, LatchState, LatchTiming, LeaderLatch, Renew, StepDown, Wait
from runtime.protocol.leader import LeaderTerm, boottime

logger = logging.getLogger(__name__)


class LeaderContender(Protocol):
    """A component that contends for leadership.

    The methods are called on the event loop, one at a time, and must not block.
    """

    def grant_leadership(self, term: LeaderTerm) -> None:
        """Begin to lead in ``term``; call `LeaderElectionService.confirm_leadership` when ready to receive calls."""

    def revoke_leadership(self) -> None:
        """Stop leading at once; another contender may lead a moment later."""

    def handle_error(self, error: Exception) -> None:
        """Handle the end of the election: a defect, or the contender's own exception; never a missing reply."""


class LeaderElectionListener(Protocol):
    """Receiver of a driver's events."""

    def on_grant(self, term: LeaderTerm) -> None:
        """Begin the term."""

    def on_revoke(self) -> None:
        """End the term."""

    def on_error(self, error: Exception) -> None:
        """Handle a defect that has ended the driver."""


class LeaderElectionDriver(Protocol):
    """Determines the leader."""

    async def start(self, listener: LeaderElectionListener) -> None:
        """Begin to contend."""

    async def stop(self) -> None:
        """Stop contending: revoke a current term, then release its latch."""

    def holds(self, term: LeaderTerm) -> bool:
        """Return whether ``term`` is the current one and its lease still runs."""

    async def publish(self, term: LeaderTerm, address: str) -> bool:
        """Publish the leader's address; return False if the term is over."""

    def observe_epoch(self, epoch: int) -> None:
        """Lead only with an epoch above ``epoch``, which a receiver has seen."""

    def step_down(self, term: LeaderTerm, reason: str) -> None:
        """Give up ``term`` and contend again."""


class LeaderElectionService(Protocol):
    """The interface through which a component becomes leader."""

    async def start(self, contender: LeaderContender) -> None:
        """Begin to contend for ``contender``; grants may come at any later time."""

    async def stop(self) -> None:
        """Stop contending. If leading: revoke the contender's leadership, then release the latch."""

    def has_leadership(self, term: LeaderTerm) -> bool:
        """Return whether ``term`` is current now, by the clock."""

    async def confirm_leadership(self, term: LeaderTerm, address: str) -> bool:
        """Publish ``address`` as the leader's; return False if ``term`` is over by then."""

    def observe_epoch(self, epoch: int) -> None:
        """Note an epoch that a receiver has seen; a leader of a lower one gives up and contends for a higher one."""

    def step_down(self, term: LeaderTerm, reason: str) -> None:
        """Give up ``term`` because the contender cannot lead, and contend again."""


class DefaultLeaderElectionService:
    """One contender on one driver (Flink's ``DefaultLeaderElectionService``)."""

    def __init__(self, component: str, driver: LeaderElectionDriver) -> None:
        self.component = component
        self._driver = driver
        self._contender: LeaderContender | None = None
        self._granted: LeaderTerm | None = None

    async def start(self, contender: LeaderContender) -> None:
        if self._contender is not None:
            raise ValueError(f"the election of {self.component} already has a contender")
        self._contender = contender
        await self._driver.start(self)

    async def stop(self) -> None:
        if self._contender is not None:
            await self._driver.stop()
            self._contender = None

    def has_leadership(self, term: LeaderTerm) -> bool:
        return self._granted == term and self._driver.holds(term)

    async def confirm_leadership(self, term: LeaderTerm, address: str) -> bool:
        return self._granted == term and await self._driver.publish(term, address)

    def observe_epoch(self, epoch: int) -> None:
        self._driver.observe_epoch(epoch)

    def step_down(self, term: LeaderTerm, reason: str) -> None:
        self._driver.step_down(term, reason)

    def on_grant(self, term: LeaderTerm) -> None:
        logger.info("%s leads with epoch %d", self.component, term.epoch)
        self._granted = term
        if not self._tell(lambda contender: contender.grant_leadership(term)):
            self._driver.step_down(term, "the contender failed to take office")

    def on_revoke(self) -> None:
        if self._granted is not None:
            logger.info("%s of epoch %d leads no more", self.component, self._granted.epoch)
            self._granted = None
            self._tell(lambda contender: contender.revoke_leadership())

    def on_error(self, error: Exception) -> None:
        self._tell(lambda contender: contender.handle_error(error))

    def _tell(self, message: Callable[[LeaderContender], None]) -> bool:
        if self._contender is None:
            return True
        try:
            message(self._contender)
        except Exception as error:
            logger.exception("the contender of %s failed", self.component)
            try:
                self._contender.handle_error(error)
            except Exception:
                logger.exception("the contender of %s failed to handle its own error", self.component)
            return False
        return True


class LatchLeaderElectionDriver:
    """Holds one latch as long as it can: `LatchState` decides, and this class carries out its steps.

    If Redis (or the master that keeps the latch) does not answer, or answers with errors, the contender becomes a
    standby. A leader gives up before its lease ends, and contends again. The listener gets no error.

    Args:
        component: the component that contends.
        latch: the latch to hold.
        feed: wakes a standby when the latch is released.
        timing: the lease.
        clock: seconds; also counts while the machine is suspended.
    """

    def __init__(
        self,
        component: str,
        latch: LeaderLatch,
        feed: ChangeFeed,
        timing: LatchTiming,
        *,
        clock: Callable[[], float] = boottime,
    ) -> None:
        self._component = component
        self._latch = latch
        self._feed = feed
        self._timing = timing
        self._clock = clock
        self._state = LatchState(component, timing, lambda: uuid4().hex)
        self._changes = feed.subscribe(component)
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._outage = False

    async def start(self, listener: LeaderElectionListener) -> None:
        self._task = asyncio.create_task(self._run(listener), name=f"ha-election-{self._component}")

    async def stop(self) -> None:
        if self._task is not None:
            self._stopping = True
            self._state.abandon("stopped")
            self._changes.notify()
            await asyncio.wait([self._task])
            self._task = None

    def holds(self, term: LeaderTerm) -> bool:
        return self._state.term == term and self._state.leading(self._clock())

    async def publish(self, term: LeaderTerm, address: str) -> bool:
        while self.holds(term):
            try:
                return await self._latch.confirm(term, address)
            except HaError as error:
                self._failed(error)
                await asyncio.sleep(self._timing.retry_every / 2)
        return False

    def observe_epoch(self, epoch: int) -> None:
        if self._state.observed(epoch):
            self._changes.notify()

    def step_down(self, term: LeaderTerm, reason: str) -> None:
        if self._state.term == term:
            self._state.abandon(reason)
            self._changes.notify()

    async def _run(self, listener: LeaderElectionListener) -> None:
        try:
            with self._changes:
                while True:
                    step = self._state.next_step(self._clock())
                    # `stop` first gives up a current term, and begins none.
                    if self._stopping and not isinstance(step, StepDown):
                        return
                    await self._carry_out(step, listener)
        except Exception as error:
            logger.exception("the election of %s ended by a defect", self._component)
            self._state.abandon("a defect")
            listener.on_revoke()
            listener.on_error(error)

    async def _carry_out(self, step: Wait | Acquire | Renew | StepDown, listener: LeaderElectionListener) -> None:
        match step:
            case Wait(until):
                if await self._changes.wait(until - self._clock()):
                    self._state.changed()
            case Acquire():
                await self._acquire(step, listener)
            case Renew():
                await self._renew(step)
            case StepDown():
                await self._step_down(step, listener)

    async def _acquire(self, step: Acquire, listener: LeaderElectionListener) -> None:
        sent = self._clock()
        try:
            reply = await self._latch.acquire(step.session, step.floor)
        except HaError as error:
            self._failed(error)
            self._state.unreachable(self._clock())
            return
        self._answered()
        now = self._clock()
        if not reply.granted:
            self._state.held_by_other(now, reply.expires_in)
        elif self._stopping:
            await self._release(LeaderTerm(self._component, reply.epoch, step.session))
        elif self._state.granted(sent, now, step.session, reply.epoch, reply.expires_in):
            assert self._state.term is not None
            listener.on_grant(self._state.term)

    async def _renew(self, step: Renew) -> None:
        sent = self._clock()
        try:
            renewed = await self._latch.renew(step.term, step.timeout)
        except HaError as error:
            self._failed(error)
            self._state.unreachable(self._clock())
            return
        self._answered()
        if renewed:
            self._state.renewed(sent)
        else:
            self._state.refused()

    async def _step_down(self, step: StepDown, listener: LeaderElectionListener) -> None:
        logger.info("%s of epoch %d steps down: %s", self._component, step.term.epoch, step.reason)
        listener.on_revoke()
        await self._release(step.term)
        self._state.stepped_down(self._clock())

    async def _release(self, term: LeaderTerm) -> None:
        try:
            await self._latch.release(term)
        except HaError as error:
            # No harm: the latch expires by itself.
            self._failed(error)

    def _failed(self, error: HaError) -> None:
        if not self._outage:
            self._outage = True
            logger.warning("election of %s: %s", self._component, error)

    def _answered(self) -> None:
        if self._outage:
            self._outage = False
            logger.warning("election of %s: the latch can be reached again", self._component)

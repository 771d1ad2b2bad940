"""The leader latch: `LatchState` decides, a `LeaderLatch` asks whoever keeps it, `RedisLeaderLatch` Redis.

A lease is counted from before its request was sent, so the leader's view of it always ends before the server's. The
leader steps down a margin before that, which leaves the contender time to be told while nobody else can lead.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from runtime.ha.connection import RedisConnection
from runtime.ha.keys import ClusterKeys
from runtime.ha.scripts import ACQUIRE, CONFIRM, LEADERS, RELEASE, RENEW
from runtime.ha.tasks import cancel_and_wait
from runtime.protocol.leader import LeaderInformation, LeaderTerm

_AT_ONCE = 100
"""Latches read by one script: Redis does nothing else meanwhile."""


class LatchReader:
    """Reads who leads, for all followers in a process: those who ask while a request is under way share the next one.

    A Dispatcher follows a JobMaster for each of its jobs. A thousand followers that ask Redis one by one are in the way
    of the leader's own renewals, and cost it its leadership; so they ask together.
    """

    def __init__(self, connection: RedisConnection, keys: ClusterKeys) -> None:
        self._connection = connection
        self._keys = keys
        self._waiting: deque[tuple[str, asyncio.Future[LeaderInformation | None]]] = deque()
        self._task: asyncio.Task[None] | None = None

    async def leader(self, component: str) -> LeaderInformation | None:
        """The confirmed leader; None while there is none.

        Raises:
            RedisUnreachableError, RedisAuthenticationError, RedisCommandError: as `RedisConnection.command`.
        """
        answer: asyncio.Future[LeaderInformation | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((component, answer))
        if self._task is None:
            self._task = asyncio.create_task(self._read(), name="ha-latch-reader")
        return await answer

    async def close(self) -> None:
        """Stop a request that is under way; nobody waits for it any more."""
        if self._task is not None:
            await cancel_and_wait(self._task)

    async def _read(self) -> None:
        try:
            while self._waiting:
                await self._read_some([self._waiting.popleft() for _ in range(min(_AT_ONCE, len(self._waiting)))])
        finally:
            self._task = None

    async def _read_some(self, asked: Sequence[tuple[str, asyncio.Future[LeaderInformation | None]]]) -> None:
        components = sorted({component for component, _ in asked})
        try:
            replies = await self._connection.run(LEADERS, [self._keys.leader(name) for name in components], ())
            found = {name: _leader(name, reply) for name, reply in zip(components, replies, strict=True)}
        except Exception as error:  # whoever asked deals with it
            for _, answer in asked:
                if not answer.done():
                    answer.set_exception(error)
        else:
            for component, answer in asked:
                if not answer.done():
                    answer.set_result(found[component])


def _leader(component: str, reply: list[str | None]) -> LeaderInformation | None:
    session, epoch, address = reply
    if not session or not epoch or not address:
        return None
    return LeaderInformation(component, address, int(epoch), session)


_NO_EPOCH = 2**52
"""Lua's numbers count whole ones up to 2**53: what is as high was never handed out, and would leave no room above."""


@dataclass(frozen=True, slots=True)
class LatchTiming:
    """The times of a latch in seconds, all derived from the lease.

    Args:
        lease: for how long Redis keeps a latch that is not renewed.
    """

    lease: float

    def __post_init__(self) -> None:
        if not 0.1 <= self.lease <= 3600:
            raise ValueError(f"high-availability.lease of {self.lease:g} s must be between 0.1 s and 1 h")

    @property
    def renew_every(self) -> float:
        """From the sending of one renewal to the next."""
        return self.lease / 3

    @property
    def retry_every(self) -> float:
        """Between attempts while Redis does not answer, and the longest a standby goes without looking."""
        return self.lease / 6

    @property
    def call_timeout(self) -> float:
        """The longest that a call may take: there is time for another one within the lease."""
        return min(1.0, self.lease / 3)

    @property
    def margin(self) -> float:
        """How long before the end of its lease a leader steps down: time to be told, and for clocks that drift."""
        return self.lease / 10


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before ``until`` (seconds on the clock that was passed in)."""

    until: float


@dataclass(frozen=True, slots=True)
class Acquire:
    """Ask for the latch as ``session``, for an epoch above ``floor``."""

    session: str
    floor: int


@dataclass(frozen=True, slots=True)
class Renew:
    """Ask for another lease; give up on the reply after ``timeout`` seconds, when the lease is over."""

    term: LeaderTerm
    timeout: float


@dataclass(frozen=True, slots=True)
class StepDown:
    """Stop leading at once."""

    term: LeaderTerm
    reason: str


Step = Wait | Acquire | Renew | StepDown


class LatchState:
    """What one contender should do next about its latch. Pure: no clock, no I/O.

    Every term has a session of its own; the same session asking twice is the same request (its reply was lost).

    Args:
        component: whose latch it is.
        timing: lease and what derives from it.
        new_session: makes a name for the next term, never the same twice.
    """

    def __init__(self, component: str, timing: LatchTiming, new_session: Callable[[], str]) -> None:
        self._component = component
        self._timing = timing
        self._new_session = new_session
        self._session = new_session()
        self._floor = 0
        self._next_attempt = float("-inf")
        self._not_before = float("-inf")
        self._term: LeaderTerm | None = None
        self._deadline = float("-inf")
        self._lost: str | None = None

    @property
    def term(self) -> LeaderTerm | None:
        """The term of office, until `stepped_down`; ask `leading` whether it is still good."""
        return self._term

    def leading(self, now: float) -> bool:
        """Whether the latch is ours and its lease still runs."""
        return self._term is not None and self._lost is None and now < self._deadline

    def next_step(self, now: float) -> Step:
        """What is due at ``now``."""
        if self._term is None:
            if now < self._next_attempt:
                return Wait(self._next_attempt)
            return Acquire(self._session, self._floor)
        if self._lost is not None:
            return StepDown(self._term, self._lost)
        if now >= self._deadline:
            return StepDown(self._term, f"no renewal within the lease of {self._timing.lease:g} s")
        if now < self._next_attempt:
            return Wait(min(self._next_attempt, self._deadline))
        return Renew(self._term, self._deadline - now)

    def granted(self, sent: float, now: float, session: str, epoch: int, expires_in: float) -> bool:
        """Redis granted ``session`` the latch for ``expires_in`` seconds, by a request sent at ``sent``.

        Returns:
            whether the term may begin: not where the reply is so late that the lease is over, nor for a session that
            was given up in the meantime.
        """
        lease_began = sent + min(expires_in, self._timing.lease) - self._timing.lease
        deadline = lease_began + self._timing.lease - self._timing.margin
        if session != self._session or epoch <= self._floor or now >= deadline:
            self.held_by_other(now, sent + expires_in - now)
            return False
        self._term = LeaderTerm(self._component, epoch, session)
        self._deadline = deadline
        self._next_attempt = lease_began + self._timing.renew_every
        return True

    def held_by_other(self, now: float, expires_in: float) -> None:
        """Another session has the latch for ``expires_in`` more seconds, unless renewed or released before."""
        self._next_attempt = now + min(max(expires_in, 0.0) + 0.002, self._timing.retry_every)

    def renewed(self, sent: float) -> None:
        """Redis granted another lease, by a request sent at ``sent``."""
        self._deadline = sent + self._timing.lease - self._timing.margin
        self._next_attempt = sent + self._timing.renew_every

    def refused(self) -> None:
        """Redis refused the renewal: the latch is not ours any more."""
        self._lost = "the latch was lost"

    def unreachable(self, now: float) -> None:
        """No answer from Redis: a standby stays one, a leader has until its deadline."""
        self._next_attempt = self._not_before = now + self._timing.retry_every

    def observed(self, epoch: int) -> bool:
        """A receiver has seen ``epoch``: a leader of a lower one gives up, the next term will be above it.

        Returns:
            whether that is news.
        """
        if not self._floor < epoch < _NO_EPOCH:
            return False
        self._floor = epoch
        if self._term is not None and self._term.epoch < self._floor and self._lost is None:
            self._lost = f"a receiver has seen epoch {epoch}"
        return True

    def abandon(self, reason: str) -> None:
        """The contender cannot lead (or is being stopped): `StepDown` is the next step, if there is a term."""
        if self._term is not None and self._lost is None:
            self._lost = reason

    def stepped_down(self, now: float) -> None:
        """The contender was told; the next term is another session's, and others have the first try at it."""
        self._term = None
        self._lost = None
        self._session = self._new_session()
        self._next_attempt = self._not_before = now + self._timing.retry_every

    def changed(self) -> None:
        """The latch has changed hands: a standby looks at once, unless it has just given up or failed itself."""
        if self._term is None:
            self._next_attempt = min(self._next_attempt, self._not_before)


@dataclass(frozen=True, slots=True)
class AcquireReply:
    """The answer: granted with this epoch, or held by the leader of this epoch; in ``expires_in`` s it expires.

    Epoch 0: nobody is known to hold it, but there may be a leader that the server has forgotten.
    """

    granted: bool
    epoch: int
    expires_in: float


class LeaderLatch(Protocol):
    """The latch of one component. Every method raises `HaError` where it is not answered."""

    async def acquire(self, session: str, floor: int) -> AcquireReply:
        """Take the latch if it is free (or is this session's already), with an epoch above ``floor``."""

    async def renew(self, term: LeaderTerm, timeout: float) -> bool:
        """Begin another lease; False where the latch is not the term's any more."""

    async def release(self, term: LeaderTerm) -> bool:
        """Give the latch back and tell everyone who waits for it; False where it was not the term's any more."""

    async def confirm(self, term: LeaderTerm, address: str) -> bool:
        """Publish the leader's address; False where the latch is not the term's any more."""


class LeaderReader(Protocol):
    """Who leads, for all components. Every method raises `HaError` where it is not answered."""

    async def leader(self, component: str) -> LeaderInformation | None:
        """The confirmed leader; None while there is none."""


class RedisLeaderLatch:
    """The latch of one component in Redis (Flink on ZooKeeper: Curator's ``LeaderLatch``); one script a request."""

    def __init__(self, connection: RedisConnection, keys: ClusterKeys, component: str, lease: float) -> None:
        self._connection = connection
        self._key = keys.leader(component)
        self._epoch_key = keys.epoch
        self._incarnation_key = keys.incarnation
        self._changes = keys.changes
        self._component = component
        self._lease_ms = int(lease * 1000)

    async def acquire(self, session: str, floor: int) -> AcquireReply:
        granted, epoch, ttl = await self._connection.run(
            ACQUIRE, (self._key, self._epoch_key, self._incarnation_key), (session, self._lease_ms, floor)
        )
        return AcquireReply(granted == 1, int(epoch), ttl / 1000)

    async def renew(self, term: LeaderTerm, timeout: float) -> bool:
        arguments = (term.session, term.epoch, self._lease_ms)
        return bool(await self._connection.run(RENEW, (self._key,), arguments, timeout=timeout) == 1)

    async def release(self, term: LeaderTerm) -> bool:
        arguments = (term.session, term.epoch, self._changes, self._component)
        return bool(await self._connection.run(RELEASE, (self._key,), arguments) == 1)

    async def confirm(self, term: LeaderTerm, address: str) -> bool:
        arguments = (term.session, term.epoch, self._changes, self._component, address)
        return bool(await self._connection.run(CONFIRM, (self._key,), arguments) == 1)

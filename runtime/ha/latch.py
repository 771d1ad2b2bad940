"""The leader latch: `LatchState` decides, and a `LeaderLatch` sends its requests to Redis or the master.

The leader counts a lease from before it sent the request, so its view of the lease always ends before the server's. It
gives up a margin before that. So the contender stops while no other one can lead.
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
"""Latches that one script reads: Redis does nothing else while a script runs."""


class LatchReader:
    """Reads leaders for all followers in a process; calls during a request share the next one.

    A Dispatcher follows the JobMaster of each of its jobs. A thousand single requests would delay the leader's own
    renewals, and cost it its leadership. So the followers share requests.
    """

    def __init__(self, connection: RedisConnection, keys: ClusterKeys) -> None:
        self._connection = connection
        self._keys = keys
        self._waiting: deque[tuple[str, asyncio.Future[LeaderInformation | None]]] = deque()
        self._task: asyncio.Task[None] | None = None

    async def leader(self, component: str) -> LeaderInformation | None:
        """Return the confirmed leader; None while there is none.

        Raises:
            RedisUnreachableError, RedisAuthenticationError, RedisCommandError: as `RedisConnection.command`.
        """
        answer: asyncio.Future[LeaderInformation | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((component, answer))
        if self._task is None:
            self._task = asyncio.create_task(self._read(), name="ha-latch-reader")
        return await answer

    async def close(self) -> None:
        """Cancel the current request; call it when no caller waits for a reply."""
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
        except Exception as error:  # the callers of `leader` handle it
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
"""Upper limit of epochs, below Lua's limit of 2**53 for exact numbers. No server grants so high an epoch."""


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
        """Time from one renewal to the next."""
        return self.lease / 3

    @property
    def retry_every(self) -> float:
        """Time between attempts while Redis does not answer, and the longest time between a standby's attempts."""
        return self.lease / 6

    @property
    def call_timeout(self) -> float:
        """The longest that a call may take; leaves time for another one within the lease."""
        return min(1.0, self.lease / 3)

    @property
    def margin(self) -> float:
        """Time before the end of its lease at which a leader gives up; it covers the revocation and clock drift."""
        return self.lease / 10


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing before ``until`` (seconds of the clock that was passed in)."""

    until: float


@dataclass(frozen=True, slots=True)
class Acquire:
    """Request the latch as ``session``, with an epoch above ``floor``."""

    session: str
    floor: int


@dataclass(frozen=True, slots=True)
class Renew:
    """Request another lease; wait ``timeout`` seconds for the reply, until the lease is over."""

    term: LeaderTerm
    timeout: float


@dataclass(frozen=True, slots=True)
class StepDown:
    """Stop leading at once."""

    term: LeaderTerm
    reason: str


Step = Wait | Acquire | Renew | StepDown


class LatchState:
    """Decides the next step of one contender for its latch. Pure: no clock, no I/O.

    Every term has a session of its own. Two requests of one session count as one, since the first reply may be lost.

    Args:
        component: the component of the latch.
        timing: the lease, and the times derived from it.
        new_session: makes a unique name for the next term.
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
        """The term, until `stepped_down`; `leading` says whether it is still valid."""
        return self._term

    def leading(self, now: float) -> bool:
        """Return whether this contender holds the latch and its lease still runs."""
        return self._term is not None and self._lost is None and now < self._deadline

    def next_step(self, now: float) -> Step:
        """Return the step that is due at ``now``."""
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
        """Note that Redis granted ``session`` the latch for ``expires_in`` seconds, by a request sent at ``sent``.

        Returns:
            whether the term may begin. It may not if the lease is already over, if the session was given up, or if a
            receiver has seen such an epoch.
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
        """Note that another session holds the latch for ``expires_in`` more seconds, if not renewed or released."""
        self._next_attempt = now + min(max(expires_in, 0.0) + 0.002, self._timing.retry_every)

    def renewed(self, sent: float) -> None:
        """Note that Redis granted another lease, by a request sent at ``sent``."""
        self._deadline = sent + self._timing.lease - self._timing.margin
        self._next_attempt = sent + self._timing.renew_every

    def refused(self) -> None:
        """Note that Redis refused the renewal: this contender has lost the latch."""
        self._lost = "the latch was lost"

    def unreachable(self, now: float) -> None:
        """Note that Redis did not answer: a standby stays one, a leader leads until its deadline."""
        self._next_attempt = self._not_before = now + self._timing.retry_every

    def observed(self, epoch: int) -> bool:
        """Note that a receiver has seen ``epoch``: a leader of a lower one gives up, and the next term is above it.

        Returns:
            whether this epoch is higher than all noted before.
        """
        if not self._floor < epoch < _NO_EPOCH:
            return False
        self._floor = epoch
        if self._term is not None and self._term.epoch < self._floor and self._lost is None:
            self._lost = f"a receiver has seen epoch {epoch}"
        return True

    def abandon(self, reason: str) -> None:
        """Make `StepDown` the next step, if there is a term: the contender cannot lead, or is being stopped."""
        if self._term is not None and self._lost is None:
            self._lost = reason

    def stepped_down(self, now: float) -> None:
        """End the term after the contender's leadership was revoked; use a new session, and let others try first."""
        self._term = None
        self._lost = None
        self._session = self._new_session()
        self._next_attempt = self._not_before = now + self._timing.retry_every

    def changed(self) -> None:
        """Note a change of leader: a standby tries at once, unless it has just given up or failed itself."""
        if self._term is None:
            self._next_attempt = min(self._next_attempt, self._not_before)


@dataclass(frozen=True, slots=True)
class AcquireReply:
    """Reply to a request for the latch.

    Args:
        granted: whether the session holds the latch.
        epoch: of the session, or of the leader that holds it. 0: no leader is known, but there may be one that the
            server has forgotten.
        expires_in: seconds until the latch expires.
    """

    granted: bool
    epoch: int
    expires_in: float


class LeaderLatch(Protocol):
    """The latch of one component. Every method raises `HaError` if there is no reply."""

    async def acquire(self, session: str, floor: int) -> AcquireReply:
        """Take the latch if it is free (or already held by this session), with an epoch above ``floor``."""

    async def renew(self, term: LeaderTerm, timeout: float) -> bool:
        """Begin another lease; return False if the term no longer holds the latch."""

    async def release(self, term: LeaderTerm) -> bool:
        """Release the latch and notify all waiters; return False if the term no longer held it."""

    async def confirm(self, term: LeaderTerm, address: str) -> bool:
        """Publish the leader's address; return False if the term no longer holds the latch."""


class LeaderReader(Protocol):
    """Reads the leaders of all components. Every method raises `HaError` if there is no reply."""

    async def leader(self, component: str) -> LeaderInformation | None:
        """Return the confirmed leader; None while there is none."""


class RedisLeaderLatch:
    """The latch of one component in Redis, one script per request (Flink on ZooKeeper: Curator's ``LeaderLatch``)."""

    def __init__(self, connection: RedisConnection, keys: ClusterKeys, component: str, lease: float) -> None:
        self._connection = connection
        self._key = keys.leader(component)
        self._epoch_key = keys.epoch
        self._incarnation_key = keys.incarnation
        self._changes = keys.changes
        self._component = component
        self._lease_ms = int(lease * 1000)
        self._confirmed: tuple[LeaderTerm, str] | None = None

    async def acquire(self, session: str, floor: int) -> AcquireReply:
        granted, epoch, ttl = await self._connection.run(
            ACQUIRE, (self._key, self._epoch_key, self._incarnation_key), (session, self._lease_ms, floor)
        )
        return AcquireReply(granted == 1, int(epoch), ttl / 1000)

    async def renew(self, term: LeaderTerm, timeout: float) -> bool:
        arguments: tuple[str | int, ...] = (term.session, term.epoch, self._lease_ms)
        if self._confirmed is not None and self._confirmed[0] == term:
            arguments += (self._changes, self._component, self._confirmed[1])
        return bool(await self._connection.run(RENEW, (self._key,), arguments, timeout=timeout) == 1)

    async def release(self, term: LeaderTerm) -> bool:
        arguments = (term.session, term.epoch, self._changes, self._component)
        return bool(await self._connection.run(RELEASE, (self._key,), arguments) == 1)

    async def confirm(self, term: LeaderTerm, address: str) -> bool:
        arguments = (term.session, term.epoch, self._changes, self._component, address)
        confirmed = bool(await self._connection.run(CONFIRM, (self._key,), arguments) == 1)
        if confirmed:
            self._confirmed = term, address
        return confirmed

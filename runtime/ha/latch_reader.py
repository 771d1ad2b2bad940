"""Reading who leads, for all who follow leaders in a process.

A Dispatcher follows a JobMaster for each of its jobs. A thousand followers that ask Redis each for himself are in the
way of the leader's own renewals, and cost it its leadership; so they ask together.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from runtime.ha.connection import RedisConnection
from runtime.ha.keys import ClusterKeys
from runtime.ha.model import LeaderInformation
from runtime.ha.scripts import LEADERS
from runtime.ha.tasks import cancel_and_wait

_AT_ONCE = 100
"""Latches read by one script: Redis does nothing else meanwhile."""


class LatchReader:
    """Reads latches, those that are asked for while a request is under way with the next one."""

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

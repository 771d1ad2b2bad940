"""Notifications of leader changes: one subscription per process, shared by all waiters.

Messages are lost when a connection breaks. So notifications only shorten the wait: each waiter also reads the latch
from time to time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

from redis import exceptions as redis_errors

from runtime.ha.connection import RedisConnection
from runtime.ha.errors import HaError, RedisUnreachableError
from runtime.ha.keys import ClusterKeys
from runtime.ha.tasks import cancel_and_wait

logger = logging.getLogger(__name__)

_SILENCE = 30.0
"""Seconds without a message after which the process subscribes again."""


Wake = Callable[[str | None], None]
"""Called with the component whose leader has changed; None: the leader of any component may have."""


class ChangeSource(Protocol):
    """Source of notifications."""

    async def listen(self, wake: Wake) -> None:
        """Call ``wake`` for each change; return to be called again. Raises `HaError` when the connection broke."""


class ChangeSubscription:
    """Wakes one waiter when the leader of its component changes."""

    def __init__(self, feed: ChangeFeed, component: str) -> None:
        self._feed = feed
        self.component = component
        self._changed = asyncio.Event()

    def notify(self) -> None:
        """Wake the waiter; if there is none, let the next `wait` return at once."""
        self._changed.set()

    async def wait(self, timeout: float) -> bool:
        """Wait for a change, at most ``timeout`` seconds; return whether there was one."""
        try:
            async with asyncio.timeout(max(timeout, 0)):
                await self._changed.wait()
        except TimeoutError:
            return False
        self._changed.clear()
        return True

    def __enter__(self) -> ChangeSubscription:
        self._feed.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._feed.discard(self)


class ChangeFeed:
    """Listens to changes of the cluster's leaders, from `start` or the first subscription until `close`.

    Args:
        source: of the notifications.
        retry: seconds between attempts to listen again after the connection broke.
    """

    def __init__(self, source: ChangeSource, *, retry: float = 0.5) -> None:
        self._source = source
        self._retry = retry
        # By component: a change does not have to search a thousand followers.
        self._subscriptions: defaultdict[str, set[ChangeSubscription]] = defaultdict(set)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to listen even without a subscription."""
        if self._task is None:
            self._task = asyncio.create_task(self._listen(), name="ha-changes")

    def subscribe(self, component: str) -> ChangeSubscription:
        """Return a subscription; enter it as a context."""
        return ChangeSubscription(self, component)

    def add(self, subscription: ChangeSubscription) -> None:
        """Begin to wake ``subscription``."""
        self._subscriptions[subscription.component].add(subscription)
        self.start()

    def discard(self, subscription: ChangeSubscription) -> None:
        """Stop waking ``subscription``."""
        waiting = self._subscriptions[subscription.component]
        waiting.discard(subscription)
        if not waiting:
            del self._subscriptions[subscription.component]

    async def close(self) -> None:
        """Stop listening."""
        if self._task is not None:
            await cancel_and_wait(self._task)
            self._task = None

    def _wake(self, component: str | None) -> None:
        woken = self._subscriptions if component is None else (component,)
        for name in woken:
            for subscription in self._subscriptions.get(name, ()):
                subscription.notify()

    async def _listen(self) -> None:
        while True:
            try:
                await self._source.listen(self._wake)
            except HaError as error:
                logger.debug("listening to leader changes broke: %s", error)
            await asyncio.sleep(self._retry)


class RedisChangeSource:
    """The cluster's pub/sub channel.

    Args:
        connection: provides the subscription's connection.
        keys: names of the cluster's keys and of its channel.
    """

    def __init__(self, connection: RedisConnection, keys: ClusterKeys) -> None:
        self._connection = connection
        self._channel = keys.changes

    async def listen(self, wake: Wake) -> None:
        try:
            await self._listen(wake)
        except (redis_errors.RedisError, OSError, TimeoutError) as error:
            raise RedisUnreachableError(self._connection.where, str(error)) from error

    async def _listen(self, wake: Wake) -> None:
        pubsub = self._connection.pubsub()
        try:
            async with asyncio.timeout(self._connection.timeout):
                await pubsub.subscribe(self._channel)
            # Messages published before the subscription are lost: wake all waiters.
            wake(None)
            while True:
                message = await pubsub.get_message(timeout=_SILENCE)
                if message is None:
                    # After such a silence the connection may be dead without an error: subscribe again.
                    return
                if message["type"] == "message":
                    wake(str(message["data"]))
        finally:
            await pubsub.aclose()  # type: ignore[no-untyped-call, unused-ignore]

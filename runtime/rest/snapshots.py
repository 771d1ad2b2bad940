"""Recent answers of the cluster, shared by concurrent requests."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any

MAX_SNAPSHOTS = 128


@dataclass(slots=True)
class _Snapshot:
    asked_at: float
    value: Any


class Snapshots:
    """Cache of answers that are at most *max_age_s* old, counted from before the request to the cluster.

    Concurrent callers share one request. Errors are not kept (Flink's `ExecutionGraphCache`).

    Args:
        max_age_s: seconds.
        clock: returns monotonic seconds.
    """

    def __init__(self, max_age_s: float, clock: Callable[[], float]) -> None:
        self._max_age_s = max_age_s
        self._clock = clock
        self._kept: OrderedDict[Hashable, _Snapshot] = OrderedDict()
        self._asking: dict[Hashable, asyncio.Task[Any]] = {}

    def find(self, key: Hashable) -> Any | None:
        """Return the answer if it is recent enough; None otherwise."""
        snapshot = self._kept.get(key)
        if snapshot is None or self._clock() - snapshot.asked_at >= self._max_age_s:
            return None
        return snapshot.value

    async def get(self, key: Hashable, ask: Callable[[], Awaitable[Any]]) -> Any:
        """Return the answer; call *ask* if none is recent enough."""
        found = self.find(key)
        if found is not None:
            return found
        task = self._asking.get(key)
        if task is None:
            task = self._asking[key] = asyncio.ensure_future(self._ask(key, ask))
            task.add_done_callback(noticed)
        return await asyncio.shield(task)  # a caller that is cancelled must not cancel the others' request

    async def _ask(self, key: Hashable, ask: Callable[[], Awaitable[Any]]) -> Any:
        own, asked_at = asyncio.current_task(), self._clock()
        try:
            value = await ask()
            if self._asking.get(key) is own:  # else `forget` was called during the request
                self._kept[key] = _Snapshot(asked_at, value)
                self._kept.move_to_end(key)
                while len(self._kept) > MAX_SNAPSHOTS:
                    self._kept.popitem(last=False)
            return value
        finally:
            if self._asking.get(key) is own:
                del self._asking[key]

    def forget(self) -> None:
        """Drop all answers after a change: later calls return no answer to a request from before it."""
        self._kept.clear()
        self._asking.clear()


def noticed(task: asyncio.Task[Any]) -> None:
    """Retrieve the error of a task whose callers may all be gone, so that the event loop does not log it."""
    if not task.cancelled():
        task.exception()

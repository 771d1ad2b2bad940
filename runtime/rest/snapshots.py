"""What the cluster said a moment ago, for all who ask at once (Flink's `ExecutionGraphCache`)."""

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
    """Answers that are at most *max_age_s* old, from before they were asked for; whoever asks meanwhile waits for the
    one question. An error is nobody's snapshot.

    Args:
        max_age_s: seconds.
        clock: gives monotonic seconds.
    """

    def __init__(self, max_age_s: float, clock: Callable[[], float]) -> None:
        self._max_age_s = max_age_s
        self._clock = clock
        self._kept: OrderedDict[Hashable, _Snapshot] = OrderedDict()
        self._asking: dict[Hashable, asyncio.Task[Any]] = {}

    def find(self, key: Hashable) -> Any | None:
        """The answer, if it is young enough; None otherwise."""
        snapshot = self._kept.get(key)
        if snapshot is None or self._clock() - snapshot.asked_at >= self._max_age_s:
            return None
        return snapshot.value

    async def get(self, key: Hashable, ask: Callable[[], Awaitable[Any]]) -> Any:
        """The answer, asked for with *ask* where there is none that is young enough."""
        found = self.find(key)
        if found is not None:
            return found
        task = self._asking.get(key)
        if task is None:
            task = self._asking[key] = asyncio.ensure_future(self._ask(key, ask))
            task.add_done_callback(noticed)
        return await asyncio.shield(task)  # one who goes away takes the answer from nobody else

    async def _ask(self, key: Hashable, ask: Callable[[], Awaitable[Any]]) -> Any:
        own, asked_at = asyncio.current_task(), self._clock()
        try:
            value = await ask()
            if self._asking.get(key) is own:  # otherwise something has changed since it was asked
                self._kept[key] = _Snapshot(asked_at, value)
                self._kept.move_to_end(key)
                while len(self._kept) > MAX_SNAPSHOTS:
                    self._kept.popitem(last=False)
            return value
        finally:
            if self._asking.get(key) is own:
                del self._asking[key]

    def forget(self) -> None:
        """Something was changed: no answer that was asked for before that is given any more."""
        self._kept.clear()
        self._asking.clear()


def noticed(task: asyncio.Task[Any]) -> None:
    """All who asked may be gone: its error is theirs, not the loop's."""
    if not task.cancelled():
        task.exception()

"""Read and write locks by key (Flink's `ReadWriteLock` of the BlobServer, one per blob here instead of one for all)."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class _State:
    __slots__ = ("readers", "users", "writers_waiting", "writing")

    def __init__(self) -> None:
        self.readers = 0
        self.writing = False
        self.writers_waiting = 0
        self.users = 0


class KeyedLocks(Generic[K]):
    """A read-write lock for every key; one that nobody holds or waits for takes no memory.

    Writers go before readers that come later, so that readers cannot keep them out. Not reentrant.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._states: dict[K, _State] = {}

    def __len__(self) -> int:
        return len(self._states)

    @contextmanager
    def shared(self, key: K) -> Iterator[None]:
        """Hold the read lock of *key* in a ``with``: many may, while nobody writes."""
        with self._changed:
            state = self._enter(key)
            while state.writing or state.writers_waiting:
                self._changed.wait()
            state.readers += 1
        try:
            yield
        finally:
            with self._changed:
                state.readers -= 1
                self._leave(key, state)

    @contextmanager
    def exclusive(self, key: K) -> Iterator[None]:
        """Hold the write lock of *key* in a ``with``: nobody else holds either."""
        with self._changed:
            state = self._enter(key)
            state.writers_waiting += 1
            while state.writing or state.readers:
                self._changed.wait()
            state.writers_waiting -= 1
            state.writing = True
        try:
            yield
        finally:
            with self._changed:
                state.writing = False
                self._leave(key, state)

    def _enter(self, key: K) -> _State:
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = _State()
        state.users += 1
        return state

    def _leave(self, key: K, state: _State) -> None:
        state.users -= 1
        if state.users:
            self._changed.notify_all()
        else:
            del self._states[key]

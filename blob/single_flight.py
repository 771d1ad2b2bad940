"""One execution for all threads that request the same thing at the same time (Go's `singleflight`)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SingleFlight(Generic[K, V]):
    """Runs a function once per key at a time; other callers during that time get its result, or its exception."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[K, Future[V]] = {}

    def run(self, key: K, function: Callable[[], V]) -> V:
        """Return the result of ``function()``, called by this thread or by one that already runs it for *key*."""
        with self._lock:
            flight = self._flights.get(key)
            if leader := flight is None:
                flight = self._flights[key] = Future()
        assert flight is not None
        if not leader:
            return flight.result()
        try:
            flight.set_result(function())
        except BaseException as error:
            flight.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._flights[key]
        return flight.result()

"""Holds the starts of streaming queries in a task process while the job is stopped with a savepoint."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from runtime.spark.errors import TaskCancelled

START_S = 1.0
"""Longest time in seconds that one `StartGate.hold` waits for queries that are being started."""


class StartGate:
    """The gate that each start of a streaming query passes; all threads of the process may use it.

    A stop-with-savepoint stops the queries that Spark has at one moment. A query that starts later would run batches
    that are not in the savepoint, and the job would not end. So the TaskExecutor lets the gate *hold* before it stops
    the queries: a start that is in progress ends first, and later ones wait. The TaskExecutor then *decides*: they
    start after all, or the job is stopped and none may start.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._in_progress: list[str] = []
        self._holds = False
        self._stops = False
        self._decided = 0

    @contextlib.contextmanager
    def passing(self, name: str, refusal: Callable[[str], BaseException] = TaskCancelled) -> Iterator[None]:
        """Start a query in the body, once the gate does not hold.

        Args:
            name: of the query.
            refusal: makes the exception if the job is stopped; `except Exception` in the job's code does not catch its
                default.

        Raises:
            BaseException: *refusal* of a text; the query must not start.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._stops or not self._holds)
            if self._stops:
                raise refusal(f"streaming query {name} is not started: the job is stopped with a savepoint")
            self._in_progress.append(name)
        try:
            yield
        finally:
            with self._changed:
                self._in_progress.remove(name)
                self._changed.notify_all()

    def hold(self, number: int, timeout_s: float = START_S) -> list[str]:
        """Hold further starts, unless one is in progress; wait for its end.

        Args:
            number: of the request. Later requests have higher numbers.
            timeout_s: longest time in seconds to wait.

        Returns:
            names of the queries that are being started still. If there are any, nothing is held.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._in_progress, timeout_s)
            self._holds = self._holds or (not self._in_progress and number > self._decided)
            return list(self._in_progress)

    def decide(self, number: int, *, stops: bool) -> None:
        """End all holds up to a number; *stops*: no query may start any more."""
        with self._changed:
            self._decided = number
            self._holds = False
            self._stops = self._stops or stops
            self._changed.notify_all()

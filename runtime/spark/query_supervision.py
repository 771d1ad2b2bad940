"""Sees that no streaming query of a task fails unseen.

Spark tells of a query's failure whoever waits for that query. A program that waits for the first of eight hears nothing
of the others. So each query that the task's code starts is looked at, by the process that the code runs in. A failure
is the code's own business while it can do something about it: it was told of it, or it starts the query again.
Otherwise the task has failed, and its restart starts all of its queries again.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

INTERVAL_S = 1.0
CONNECT_INTERVAL_S = 5.0
"""On Spark Connect each question is an operation of the session, and costs the driver some milliseconds."""


@dataclass(slots=True)
class _Run:
    query_id: str
    unattended_since: float | None = None
    """When it failed, or was last seen to be somebody's business; None while it runs."""
    told: list[object] = field(default_factory=list)


class QuerySupervision:
    """Which failures nobody attends to (pure).

    Args:
        grace_s: seconds that the code has to start a query again, or to ask what became of it.
    """

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._runs: dict[str, _Run] = {}

    @property
    def running(self) -> list[str]:
        """Runs that have not been seen to end."""
        return [run_id for run_id, run in self._runs.items() if run.unattended_since is None]

    def started(self, run_id: str, query_id: str) -> None:
        """A query was started; one of its id that had failed was started again by this."""
        for known in [known for known, run in self._runs.items() if run.query_id == query_id]:
            del self._runs[known]
        self._runs[run_id] = _Run(query_id)

    def stopped(self, run_id: str) -> None:
        """The code itself stops the query: whatever comes of that is no failure."""
        self._runs.pop(run_id, None)

    def stopped_all(self) -> None:
        """The code itself stops all of its queries, with their session."""
        self._runs.clear()

    def ended(self, run_id: str, now: float, *, failed: bool) -> None:
        """The query was seen to have ended."""
        run = self._runs.get(run_id)
        if run is None:
            return
        if not failed:
            del self._runs[run_id]
        elif run.unattended_since is None:
            run.unattended_since = now

    def told(self, listener: object, run_id: str | None = None) -> None:
        """On the thread *listener* the code was told of the failure of a query, or of all that have failed so far."""
        for known, run in self._runs.items():
            if run.unattended_since is not None and run_id in (None, known):
                run.told.append(listener)

    def unattended(self, is_alive: Callable[[object], bool]) -> list[str]:
        """Runs that have failed, and that nobody attends to yet."""
        failed = (item for item in self._runs.items() if item[1].unattended_since is not None)
        return [run_id for run_id, run in failed if not any(is_alive(listener) for listener in run.told)]

    def overdue(self, now: float, is_alive: Callable[[object], bool]) -> str | None:
        """A run that has failed and that nobody attends to.

        Args:
            now: seconds of a clock that never goes back.
            is_alive: whether a thread that was told still runs. One that has ended can start nothing again.
        """
        for run_id, run in self._runs.items():
            if run.unattended_since is None:
                continue
            if any(is_alive(listener) for listener in run.told):
                run.unattended_since = now
            elif now - run.unattended_since >= self._grace_s:
                return run_id
        return None


class QuerySupervisor:
    """Looks at the queries of this process, on a thread of its own from the first one on.

    Args:
        grace_s: see `QuerySupervision`.
        tell: told the run id and the exception of a query that has failed unattended; once for each.
    """

    def __init__(self, grace_s: float, tell: Callable[[str, BaseException], None]) -> None:
        self._policy = QuerySupervision(grace_s)
        self._tell = tell
        self._lock = threading.RLock()
        self._queries: dict[str, Any] = {}
        self._errors: dict[str, BaseException] = {}
        self._asked: dict[type, Callable[[Any], BaseException | None]] = {}
        self._thread: threading.Thread | None = None

    def started(self, query: Any) -> None:
        """The code has started a query (PySpark's `StreamingQuery`, classic or Connect)."""
        with self._lock:
            self._hook(type(query))
            run_id = str(query.runId)
            self._queries[run_id] = query
            self._policy.started(run_id, str(query.id))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="query-supervisor", daemon=True)
                self._thread.start()

    def stopped_all(self) -> None:
        """The code ends its session, and with it its queries."""
        with self._lock:
            self._policy.stopped_all()

    def look(self, now: float) -> None:
        """See which queries have ended, and tell what nobody attends to."""
        self._observe(now)
        with self._lock:
            overdue = self._policy.overdue(now, _is_alive)
            if overdue is not None:
                self._policy.stopped(overdue)
        if overdue is not None:
            self._tell(overdue, self._errors[overdue])

    def unattended(self) -> list[tuple[str, BaseException]]:
        """Run ids and exceptions of the queries that have failed and that nobody attends to, at the end of the code."""
        self._observe(time.monotonic())
        with self._lock:
            return [(run_id, self._errors[run_id]) for run_id in self._policy.unattended(_is_alive)]

    def _observe(self, now: float) -> None:
        with self._lock:
            running = self._policy.running
        for run_id in running:
            self._ask(run_id, self._queries[run_id], now)

    def _ask(self, run_id: str, query: Any, now: float) -> None:
        try:
            still_active = query.isActive
            error = None if still_active else self._asked[type(query)](query)
        except Exception:  # its session was ended, or Spark is gone: the code and the TaskExecutor hear of that
            with self._lock:
                self._policy.stopped(run_id)
            return
        if error is not None:
            self._errors[run_id] = error
        if not still_active:
            with self._lock:
                self._policy.ended(run_id, now, failed=error is not None)

    def _run(self) -> None:
        while True:
            on_connect = any(".connect." in kind.__module__ for kind in self._asked)
            time.sleep(CONNECT_INTERVAL_S if on_connect else INTERVAL_S)
            self.look(time.monotonic())

    def _hook(self, kind: Any) -> None:
        """Note what the code does with its queries, in this process only."""
        if kind in self._asked:
            return
        self._asked[kind] = kind.exception
        for name in ("awaitTermination", "processAllAvailable"):
            self._tell_of_failures(kind, name, lambda query: str(query.runId))
        self._note_exception_asked(kind)
        self._note_stop(kind)
        manager = getattr(sys.modules[kind.__module__], "StreamingQueryManager", None)
        if manager is not None:
            self._tell_of_failures(manager, "awaitAnyTermination", lambda manager: None)

    def _tell_of_failures(self, kind: Any, name: str, run_id_of: Callable[[Any], str | None]) -> None:
        original, supervisor = getattr(kind, name), self

        @functools.wraps(original)
        def wait(self: Any, *arguments: Any, **keywords: Any) -> Any:
            try:
                return original(self, *arguments, **keywords)
            except Exception:
                supervisor._told(run_id_of(self))
                raise

        setattr(kind, name, wait)

    def _note_exception_asked(self, kind: Any) -> None:
        original, supervisor = kind.exception, self

        @functools.wraps(original)
        def exception(self: Any) -> Any:
            found = original(self)
            if found is not None:
                supervisor._told(str(self.runId))
            return found

        kind.exception = exception

    def _note_stop(self, kind: Any) -> None:
        original, supervisor = kind.stop, self

        @functools.wraps(original)
        def stop(self: Any) -> Any:
            with supervisor._lock:
                supervisor._policy.stopped(str(self.runId))
            return original(self)

        kind.stop = stop

    def _told(self, run_id: str | None) -> None:
        self._observe(time.monotonic())  # what has failed is known from now on
        with self._lock:
            self._policy.told(threading.current_thread(), run_id)


def _is_alive(listener: object) -> bool:
    return isinstance(listener, threading.Thread) and listener.is_alive()

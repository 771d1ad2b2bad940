"""Sees that no streaming query of a task fails, or is lost, unseen.

Spark tells of a query's failure whoever waits for that query. A program that waits for the first of eight hears nothing
of the others. So each query that the task's code starts is looked at, by the process that the code runs in. A failure
is the code's own business while it can do something about it: it was told of it, or it starts the query again.
Otherwise the task has failed, and its restart starts all of its queries again.

A query ends without a failure when the code stops it, or when its trigger says so (``availableNow``). One that ends
otherwise is *lost*: somebody else in the driver has stopped it. `awaitTermination` returns then, as if all were well;
so only a new start of the query attends to its loss.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from runtime.spark.errors import QueryLostError

INTERVAL_S = 1.0
CONNECT_INTERVAL_S = 5.0
"""On Spark Connect each question is an operation of the session, and costs the driver some milliseconds."""

REPORTED = 50
"""Of how many queries the last report is told at the end of the code."""


@dataclass(slots=True)
class _Run:
    query_id: str
    ends_itself: bool
    unattended_since: float | None = None
    """When it failed or was lost, or was last seen to be somebody's business; None while it runs."""
    is_lost: bool = False
    told: list[object] = field(default_factory=list)


class QuerySupervision:
    """Which failures and losses nobody attends to (pure).

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

    @property
    def failed(self) -> list[str]:
        """Runs that have failed and were not started again, whether somebody attends to them or not."""
        return [key for key, run in self._runs.items() if run.unattended_since is not None and not run.is_lost]

    @property
    def lost(self) -> list[str]:
        """Runs that are lost and were not started again."""
        return [run_id for run_id, run in self._runs.items() if run.is_lost]

    def started(self, run_id: str, query_id: str, *, ends_itself: bool = False) -> None:
        """A query was started; one of its id that had failed was started again by this.

        *ends_itself*: its trigger ends it when it has worked off what there is.
        """
        for known in [known for known, run in self._runs.items() if run.query_id == query_id]:
            del self._runs[known]
        self._runs[run_id] = _Run(query_id, ends_itself)

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
        if not failed and run.ends_itself:
            del self._runs[run_id]
        elif run.unattended_since is None:
            run.unattended_since, run.is_lost = now, not failed

    def told(self, listener: object, run_id: str | None = None) -> None:
        """On the thread *listener* the code was told of the failure of a query, or of all that have failed so far."""
        for known, run in self._runs.items():
            if run.unattended_since is not None and not run.is_lost and run_id in (None, known):
                run.told.append(listener)

    def unattended(self, is_alive: Callable[[object], bool]) -> list[str]:
        """Runs that have failed, and that nobody attends to yet."""
        return [key for key in self.failed if not any(is_alive(listener) for listener in self._runs[key].told)]

    def overdue(self, now: float, is_alive: Callable[[object], bool]) -> str | None:
        """A run that has failed or is lost, and that nobody attends to.

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
        tell: told the run id and the exception of a query that has failed unattended, or is lost
            (`QueryLostError`); once for each.
        seen: told the run id and the exception of each query that has failed, whoever attends to it; once for each.
    """

    def __init__(
        self,
        grace_s: float,
        tell: Callable[[str, BaseException], None],
        seen: Callable[[str, BaseException], None] = lambda run_id, error: None,
    ) -> None:
        self._policy = QuerySupervision(grace_s)
        self._tell = tell
        self._seen = seen
        self._lock = threading.RLock()
        self._queries: dict[str, Any] = {}
        self._reports: list[dict[str, str]] = []
        self._errors: dict[str, BaseException] = {}
        self._asked: dict[type, Callable[[Any], BaseException | None]] = {}
        self._thread: threading.Thread | None = None
        self._is_stopped_elsewhere = False

    def started(self, query: Any, *, ends_itself: bool = False, has_code_elsewhere: bool = False) -> None:
        """The code has started a query (PySpark's `StreamingQuery`, classic or Connect).

        Args:
            query: what it was given.
            ends_itself: its trigger ends it.
            has_code_elsewhere: functions of it run in another process, and may stop queries of the task there: from
                now on a query that ends without a failure may have been stopped by the code.
        """
        with self._lock:
            self._hook(type(query))
            run_id = str(query.runId)
            self._queries[run_id] = query
            self._is_stopped_elsewhere = self._is_stopped_elsewhere or has_code_elsewhere
            self._policy.started(run_id, str(query.id), ends_itself=ends_itself)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="query-supervisor", daemon=True)
                self._thread.start()

    def stopped_all(self) -> None:
        """The code ends its session, and with it its queries: they cannot be asked any more."""
        reports = self.last_progress()
        with self._lock:
            self._reports = reports
            self._queries.clear()
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

    def failed(self) -> list[tuple[str, BaseException]]:
        """Run ids and exceptions of all queries that have failed and were not started again."""
        self._observe(time.monotonic())
        with self._lock:
            return [(run_id, self._errors[run_id]) for run_id in self._policy.failed]

    def lost(self) -> list[str]:
        """Run ids of the queries that are lost and were not started again."""
        self._observe(time.monotonic())
        with self._lock:
            return self._policy.lost

    def last_progress(self) -> list[dict[str, str]]:
        """Return the last report of each query, of the newest `REPORTED` ones: ``id``, ``run_id``, ``name``, ``json``.

        A query of which Spark has no report, or does not answer any more, is left out.
        """
        with self._lock:
            newest = list(self._queries.items())[-REPORTED:]
            reports = list(self._reports)
        for run_id, query in newest:
            text = _last_progress(query)
            if text is not None:
                reports.append({"id": str(query.id), "run_id": run_id, "name": str(query.name or ""), "json": text})
        return reports[-REPORTED:]

    def _observe(self, now: float) -> None:
        with self._lock:
            running = [(run_id, self._queries[run_id]) for run_id in self._policy.running]
        for run_id, query in running:
            self._ask(run_id, query, now)

    def _ask(self, run_id: str, query: Any, now: float) -> None:
        try:
            still_active = query.isActive
            error = None if still_active else self._asked[type(query)](query)
        except Exception:  # its session was ended, or Spark is gone: the code and the TaskExecutor hear of that
            with self._lock:
                self._policy.stopped(run_id)
            return
        if still_active:
            return
        with self._lock:
            is_new = run_id not in self._errors
            self._errors[run_id] = error or QueryLostError("somebody else in its Spark driver has stopped it")
        if error is not None and is_new:
            self._seen(run_id, error)
        with self._lock:
            if error is None and self._is_stopped_elsewhere:
                self._policy.stopped(run_id)
            else:
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


def _last_progress(query: Any) -> str | None:
    """Spark's last report of a query as JSON."""
    try:
        progress = query.lastProgress
    except Exception:  # its session was ended, or Spark is gone
        return None
    return None if progress is None else str(progress.json)

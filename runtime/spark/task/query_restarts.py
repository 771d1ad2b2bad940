"""Restarts of single failed queries under the handles that the code has.

PySpark's `StreamingQuery` refers to one run of a query in the JVM. A restart of the query alone is another run, so code
that waits for the first one would see it as failed. `QueryRestarts` starts a failed query again with the same
`DataStreamWriter`, and exchanges the run to which the handle refers:

- `StreamingQuery.awaitTermination` and `StreamingQueryManager.awaitAnyTermination` restart a query whose failure they
  get, and continue to wait. They raise only when the policy gives up.
- `QueryRestarts.attend` restarts a query that no thread waits for.
- A query that the code stops, or starts again itself, is not restarted.
- A second handle of the query, as of `spark.streams.get`, refers to the same run as the first one.

Works with classic PySpark only. Handles of Spark Connect belong to their session's server.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark.errors import StreamingQueryException

from runtime.causes import cause_of
from runtime.spark.errors import StartRefusedError, TaskCancelled


class RestartPolicy(Protocol):
    """Decides whether a failed query is started again; a `RestartStrategy` of the runtime has this form."""

    def notify_failure(self, now: float) -> None:
        """Note a failure."""

    def can_restart(self, now: float) -> bool:
        """Return whether the query may be started again."""

    @property
    def delay(self) -> float:
        """Return the seconds before the next start."""


_RUN = "_jsq"
"""Attribute of PySpark's `StreamingQuery` with its run in the JVM."""

_RUN_ID = "_understudy_run_id"
_IS_PINNED = "_understudy_is_pinned"


@dataclass(slots=True)
class FixedDelay:
    """Restarts a query a fixed number of times, after a fixed delay.

    Args:
        attempts: the most restarts.
        delay: seconds before each of them.
        failures: number of failures so far.
    """

    attempts: int
    delay: float
    failures: int = 0

    def notify_failure(self, now: float) -> None:
        """Note a failure."""
        self.failures += 1

    def can_restart(self, now: float) -> bool:
        """Return whether the query may be started again."""
        return self.failures <= self.attempts


class ManagedRun:
    """A query through all its restarts.

    Args:
        name: for messages.
        query: the handle that the code has.
        start: starts the query again.
        policy: of this query alone.
        session: of the query.
    """

    def __init__(
        self, name: str, query: Any, start: Callable[[], Any], policy: RestartPolicy, session: Any = None
    ) -> None:
        self.name = name
        self.query = query
        self.start = start
        self.policy = policy
        self.session = session
        self.lock = threading.Lock()
        self.is_stopped = False
        """Whether the code has stopped the query, or started it again itself."""
        self.has_given_up = False
        self.is_restarted = False
        """Whether it was restarted since the last `resetTerminated`, so that Spark remembers a failure that is over."""

    @property
    def has_failed(self) -> bool:
        """Return whether the present run has failed."""
        return not self.query._jsq.isActive() and self.query._jsq.exception().isDefined()

    @property
    def has_ended(self) -> bool:
        """Return whether the present run has ended without a failure."""
        return not self.query._jsq.isActive() and not self.query._jsq.exception().isDefined()


class QueryRestarts:
    """Hooks PySpark's classes in this process.

    Args:
        new_policy: creates the `RestartPolicy` of one query.
        before_start: called with the session of each query that the code starts.
    """

    def __init__(
        self, new_policy: Callable[[], RestartPolicy], before_start: Callable[[Any], object] = lambda session: None
    ) -> None:
        self._new_policy = new_policy
        self._before_start = before_start
        self.runs: dict[str, ManagedRun] = {}
        """By the ids of all their runs in the JVM."""
        self._ended = threading.Event()
        self._ended_before: set[str] = set()

    def install_waits(self, query: Any, manager: Any) -> None:
        """Hook `StreamingQuery` and `StreamingQueryManager`; call it before other hooks see failures there."""
        self._follow_restarts(query)
        self._restart_where_awaited(query)
        self._note_stop(query)
        self._restart_where_any_is_awaited(manager)

    def install_starts(self, writer: Any) -> None:
        """Hook `DataStreamWriter`; call it when all other hooks of a start are installed, which restarts use too."""
        for method in ("start", "toTable"):
            self._record_start(writer, method)

    def end(self, *, wait: bool = False) -> None:
        """Restart nothing from now on; with *wait*, return when restarts that have begun are done."""
        self._ended.set()
        if wait:
            for run in list(self.runs.values()):
                with run.lock:
                    pass

    def attend(self, run_id: str, give_up: Callable[[], object]) -> None:
        """Restart a failed query that no thread waits for, on a thread of its own.

        Args:
            run_id: the failed run.
            give_up: called if the policy does not allow it, or the query is not known.
        """

        def work() -> None:
            run = self.runs.get(run_id)
            with contextlib.suppress(TaskCancelled):
                if run is None or (not self.restart(run_id) and run.has_given_up):
                    give_up()

        threading.Thread(target=work, name="query-restart", daemon=True).start()

    def restart(self, run_id: str) -> bool:
        """Restart a failed query after its policy's delay; return whether its failure is over.

        It is over once a further run is active, or has ended without a failure.
        """
        run = self.runs.get(run_id)
        return run is not None and self._restart(run)

    def restart_failed(self) -> None:
        """Restart all queries that have failed."""
        for run in self._known():
            if not run.is_stopped and run.has_failed:
                self._restart(run)

    def _restart(self, run: ManagedRun) -> bool:
        with run.lock:
            query = run.query
            while not query._jsq.isActive():
                if not query._jsq.exception().isDefined():
                    return True  # another thread has restarted it, or the new run was short
                if self._is_over(run):
                    return False
                now = time.monotonic()
                run.policy.notify_failure(now)
                if not run.policy.can_restart(now):
                    run.has_given_up = True
                    _say(f"streaming query {run.name} has failed and is not started again")
                    return False
                cause = cause_of(str(query._jsq.exception().get().getMessage()))
                _say(f"streaming query {run.name} has failed and is started again: {cause}")
                self._ended.wait(run.policy.delay)
                if self._is_over(run):
                    return False
                try:
                    started = run.start()
                except StartRefusedError:  # the job is being stopped
                    return False
                except Exception as error:  # any error of Spark or of the source counts as one more failure
                    _say(f"streaming query {run.name} cannot be started again: {type(error).__name__}: {error}")
                    continue
                setattr(started, _IS_PINNED, True)  # its supervisor reports the figures of this run only
                query._jsq = started._jsq  # from now on, the code's handles belong to the new run
                run.is_restarted = True
                self.runs[str(query._jsq.runId())] = run
                if run.is_stopped:  # the code's stop() came during the start, and met the former run
                    query._jsq.stop()
                    return False
        return True

    def _is_over(self, run: ManagedRun) -> bool:
        return self._ended.is_set() or run.is_stopped or run.has_given_up

    def _known(self) -> list[ManagedRun]:
        return list(dict.fromkeys(self.runs.values()))

    def _record_start(self, writer: Any, method: str) -> None:
        hooked, managed = getattr(writer, method), self

        @functools.wraps(hooked)
        def start(self: Any, *arguments: Any, **keywords: Any) -> Any:
            session = self._spark
            managed._before_start(session)
            query = hooked(self, *arguments, **keywords)
            for known in managed._known():
                if str(known.query.id) == str(query.id):
                    known.is_stopped = True
            again = functools.partial(hooked, self, *arguments, **keywords)
            run = ManagedRun(query.name or str(query.id), query, again, managed._new_policy(), session)
            managed.runs[str(query.runId)] = run
            return query

        setattr(writer, method, start)

    def _follow_restarts(self, kind: Any) -> None:
        """Let all handles of a query, also those that were made before its restart, refer to its present run."""
        managed = self

        def present(self: Any) -> Any:
            own = self.__dict__[_RUN]
            if not managed.runs or _IS_PINNED in self.__dict__:
                return own
            if _RUN_ID not in self.__dict__:
                self.__dict__[_RUN_ID] = str(own.runId())  # a call of the JVM
            run = managed.runs.get(self.__dict__[_RUN_ID])
            return own if run is None else run.query.__dict__[_RUN]

        def exchange(self: Any, jsq: Any) -> None:
            self.__dict__.pop(_RUN_ID, None)
            self.__dict__[_RUN] = jsq

        setattr(kind, _RUN, property(present, exchange))

    def _restart_where_awaited(self, kind: Any) -> None:
        original, managed = kind.awaitTermination, self

        @functools.wraps(original)
        def await_termination(self: Any, timeout: float | None = None) -> Any:
            deadline = None if timeout is None else time.monotonic() + timeout
            while True:
                run_id = str(self.runId)
                try:
                    left = None if deadline is None else max(deadline - time.monotonic(), 0.001)
                    return original(self) if left is None else original(self, left)
                except StreamingQueryException:
                    if not managed.restart(run_id):
                        raise

        kind.awaitTermination = await_termination

    def _note_stop(self, kind: Any) -> None:
        original, managed = kind.stop, self

        @functools.wraps(original)
        def stop(self: Any) -> Any:
            run = managed.runs.get(str(self.runId))
            if run is not None:
                run.is_stopped = True
            return original(self)

        kind.stop = stop

    def _restart_where_any_is_awaited(self, kind: Any) -> None:
        original, reset, managed = kind.awaitAnyTermination, kind.resetTerminated, self

        @functools.wraps(original)
        def await_any(self: Any, timeout: float | None = None) -> Any:
            deadline = None if timeout is None else time.monotonic() + timeout
            while True:
                try:
                    left = None if deadline is None else max(deadline - time.monotonic(), 0.001)
                    return original(self) if left is None else original(self, left)
                except StreamingQueryException:
                    if not managed._restart_all(self, reset):
                        raise
                if managed._any_ended(self):  # Spark forgets it with the failure
                    return None if timeout is None else True

        @functools.wraps(reset)
        def reset_terminated(self: Any) -> Any:
            ended = [run for run in managed._runs_of(self) if not run.query._jsq.isActive()]
            managed._ended_before.update(str(run.query._jsq.runId()) for run in ended)
            return reset(self)

        kind.awaitAnyTermination, kind.resetTerminated = await_any, reset_terminated

    def _restart_all(self, manager: Any, reset: Callable[[Any], object]) -> bool:
        """Restart the failed queries of a session, and let Spark forget the failures; return False if one stays so."""
        runs = self._runs_of(manager)
        is_known = False
        while True:
            failed = [run for run in runs if self._counts(run) and run.has_failed]
            if not all(self._restart(run) for run in failed):
                return False
            is_known = is_known or bool(failed) or any(run.is_restarted for run in runs)
            if not is_known:
                return False  # the failure of a query that this process has not started
            for run in runs:
                run.is_restarted = False
            reset(manager)
            if not any(self._counts(run) and run.has_failed for run in runs):
                return True

    def _any_ended(self, manager: Any) -> bool:
        return any(self._counts(run) and run.has_ended for run in self._runs_of(manager))

    def _counts(self, run: ManagedRun) -> bool:
        """Return whether `awaitAnyTermination` has to see the end of a run: it was before no `resetTerminated`."""
        return str(run.query._jsq.runId()) not in self._ended_before

    def _runs_of(self, manager: Any) -> list[ManagedRun]:
        """Return the runs of a manager's session."""
        return [run for run in self._known() if run.session._jsparkSession.streams().equals(manager._jsqm)]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201

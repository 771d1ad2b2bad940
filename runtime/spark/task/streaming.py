"""The streaming queries of a task: prepares them before they start, and reports each that fails or is lost.

`StreamingQueries` is a hook around PySpark's `DataStreamWriter`, in task processes only, for both scripts (classic) and
Connect. A query that names no checkpointLocation gets one in the job's own directory, so that its restart resumes from
there. If the job starts from state, the query's state is restored before the query starts.

Spark reports a query's failure only to code that waits for that query. A program that waits for the first of eight
learns nothing of the others. So `QuerySupervisor` checks each query that the task's code starts, in the same process.
The code may handle a failure itself: a thread that Spark has notified of it may react, or the code starts the query
again. Otherwise the task fails, and its restart starts all of its queries again.

A query ends without a failure when the code stops it, or when its trigger ends it (``availableNow``). A query that ends
otherwise is *lost*: another user of the driver has stopped it. `awaitTermination` then returns without an error, so
only a new start of the query handles its loss.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import posixpath
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.causes import cause_of
from runtime.checkpoint.names import directory_name
from runtime.protocol.checkpoints import JobManagerTaskRestore
from runtime.protocol.query_snapshot import QueryLocation
from runtime.spark.errors import QueryLostError, QueryRunsAlreadyError, TaskCancelled, UnsupportedByEndpointError
from runtime.spark.messages import Finished, Note, QueryFailed, QueryRestores, QueryStarts, StandsBy
from runtime.spark.spec import STOP_ACTIVE_RUN, StreamingSpec, TaskSpec
from runtime.spark.task.control import FailedQuery, TaskControl, describe
from runtime.spark.task.start_gate import StartGate

if TYPE_CHECKING:
    from runtime.checkpoint.task_restore import TaskRestore


INTERVAL_S = 1.0
CONNECT_INTERVAL_S = 5.0
"""Longer than `INTERVAL_S`: each check is an operation of the session, and costs the driver some milliseconds."""

REPORTED = 50
"""Largest number of queries whose last reports are sent at the end of the code."""


@dataclass(slots=True)
class _Run:
    query_id: str
    ends_itself: bool
    unattended_since: float | None = None
    """Time of its failure or loss, or of the last check at which a notified thread was alive; None while it runs."""
    is_lost: bool = False
    told: list[object] = field(default_factory=list)


class QuerySupervision:
    """Failures and losses of queries, and the threads that may handle them (pure).

    Args:
        grace_s: seconds that the code has to start a query again, or to ask for its exception.
    """

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._runs: dict[str, _Run] = {}

    @property
    def running(self) -> list[str]:
        """Return the runs that are not known to have ended."""
        return [run_id for run_id, run in self._runs.items() if run.unattended_since is None]

    @property
    def failed(self) -> list[str]:
        """Return the runs that have failed and were not started again, whether a thread handles them or not."""
        return [key for key, run in self._runs.items() if run.unattended_since is not None and not run.is_lost]

    @property
    def lost(self) -> list[str]:
        """Return the runs that are lost and were not started again."""
        return [run_id for run_id, run in self._runs.items() if run.is_lost]

    def started(self, run_id: str, query_id: str, *, ends_itself: bool = False) -> None:
        """Record the start of a query, which restarts a failed one of the same id.

        *ends_itself*: its trigger ends it when it has processed the available data.
        """
        for known in [known for known, run in self._runs.items() if run.query_id == query_id]:
            del self._runs[known]
        self._runs[run_id] = _Run(query_id, ends_itself)

    def stopped(self, run_id: str) -> None:
        """Record that the code itself stops the query: its end is not a failure."""
        self._runs.pop(run_id, None)

    def stopped_all(self) -> None:
        """Record that the code itself stops all of its queries, with their session."""
        self._runs.clear()

    def ended(self, run_id: str, now: float, *, failed: bool) -> None:
        """Record that the query has ended."""
        run = self._runs.get(run_id)
        if run is None:
            return
        if not failed and run.ends_itself:
            del self._runs[run_id]
        elif run.unattended_since is None:
            run.unattended_since, run.is_lost = now, not failed

    def told(self, listener: object, run_id: str | None = None) -> None:
        """Record that the thread *listener* was notified of a query's failure, or of all failures so far."""
        for known, run in self._runs.items():
            if run.unattended_since is not None and not run.is_lost and run_id in (None, known):
                run.told.append(listener)

    def unattended(self, is_alive: Callable[[object], bool]) -> list[str]:
        """Return the failed runs of which no living thread was notified."""
        return [key for key in self.failed if not any(is_alive(listener) for listener in self._runs[key].told)]

    def overdue(self, now: float, is_alive: Callable[[object], bool]) -> str | None:
        """Return a run that has failed or is lost, and that no thread has handled for the grace period.

        Args:
            now: seconds of a clock that never goes back.
            is_alive: whether a notified thread still runs. A thread that has ended cannot restart a query.
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
    """Checks the queries of this process, on its own thread, which the first query starts.

    Args:
        grace_s: see `QuerySupervision`.
        tell: called with run id and exception of each query that has failed and that no thread handles, or that is lost
            (`QueryLostError`).
        seen: called once with run id and exception of each query that has failed, whether a thread handles it or not.
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
        """Record that the code has started a query (PySpark's `StreamingQuery`, classic or Connect).

        Args:
            query: the query that the code got.
            ends_itself: its trigger ends it.
            has_code_elsewhere: its functions run in another process, and may stop queries of the task there. From now
                on, the code may have stopped any query that ends without a failure.
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
        """Record that the code ends its session and so its queries, which do not answer any more."""
        reports = self.last_progress()
        with self._lock:
            self._reports = reports
            self._queries.clear()
            self._policy.stopped_all()

    def look(self, now: float) -> None:
        """Check which queries have ended, and report one that no thread has handled in time."""
        self._observe(now)
        with self._lock:
            overdue = self._policy.overdue(now, _is_alive)
            if overdue is not None:
                self._policy.stopped(overdue)
        if overdue is not None:
            self._tell(overdue, self._errors[overdue])

    def unattended(self) -> list[tuple[str, BaseException]]:
        """Return run ids and exceptions of the failed queries that no living thread was notified of."""
        self._observe(time.monotonic())
        with self._lock:
            return [(run_id, self._errors[run_id]) for run_id in self._policy.unattended(_is_alive)]

    def failed(self) -> list[tuple[str, BaseException]]:
        """Return run ids and exceptions of all queries that have failed and were not started again."""
        self._observe(time.monotonic())
        with self._lock:
            return [(run_id, self._errors[run_id]) for run_id in self._policy.failed]

    def lost(self) -> list[str]:
        """Return run ids of the queries that are lost and were not started again."""
        self._observe(time.monotonic())
        with self._lock:
            return self._policy.lost

    def last_progress(self) -> list[dict[str, str]]:
        """Return the last reports of the newest `REPORTED` queries: ``id``, ``run_id``, ``name``, ``json``.

        A query without a report, or one for which Spark does not answer any more, is left out.
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
        except Exception:  # its session or Spark has ended, which the code and the TaskExecutor notice themselves
            with self._lock:
                self._policy.stopped(run_id)
            return
        if still_active:
            return
        with self._lock:
            is_new = run_id not in self._errors
            self._errors[run_id] = error or QueryLostError("another user of its Spark driver has stopped it")
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
        """Hook PySpark's classes to see how the code handles its queries, in this process only."""
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
        self._observe(time.monotonic())  # so that the policy knows all failures of this moment
        with self._lock:
            self._policy.told(threading.current_thread(), run_id)


def _is_alive(listener: object) -> bool:
    return isinstance(listener, threading.Thread) and listener.is_alive()


def _last_progress(query: Any) -> str | None:
    """Return Spark's last report of a query as JSON."""
    try:
        progress = query.lastProgress
    except Exception:  # its session or Spark has ended
        return None
    return None if progress is None else str(progress.json)


FILE_FORMATS = frozenset({"parquet", "json", "csv", "orc", "text", "avro", "xml"})
LOCATION = "checkpointlocation"
_DEFAULT_LOCATIONS = "spark.sql.streaming.checkpointLocation"
_DEFAULT_FS = "fs.defaultFS"
_SCHEME = re.compile(r"([^/:]+):")
"""Scheme of a path, as Hadoop reads it."""
_SETTINGS = "_understudy_settings"
_RUNS_ALREADY = re.compile(r"Cannot start query with id (\S+) as another|CONCURRENT_QUERY")
"""Spark's message when a query of the same id runs in any session of the driver."""


class StreamingQueries:
    """The queries of this task process.

    Args:
        spec: their settings.
        restore: the state that they start from; None for a task that starts without state.
        tell: called with a message before each query starts, and with notes to add to the failure of the task.
        acquire_lease: see `TaskControl.acquire_lease`.
        on_failed: called with run id, name and exception of a query that has failed, or is lost, and that the code does
            not handle. Default: `tell_failed`.
        gate: each query passes it at its start. Default: one that is always open.
        refusal: see `StartGate.passing`.
        attempt_id: of the task.
    """

    def __init__(
        self,
        spec: StreamingSpec,
        restore: JobManagerTaskRestore | None,
        tell: Callable[[StandsBy | QueryRestores | QueryStarts | Note | QueryFailed], object],
        acquire_lease: Callable[[str], None],
        on_failed: Callable[[str, str, BaseException], None] | None = None,
        gate: StartGate | None = None,
        refusal: Callable[[str], BaseException] = TaskCancelled,
        attempt_id: str = "",
    ) -> None:
        self._spec = spec
        self._attempt_id = attempt_id
        self.gate = gate or StartGate()
        """The gate that each query passes at its start."""
        self._refusal = refusal
        self._begin_with = restore
        self._tell = tell
        self._names: dict[str, str] = {}
        self._acquire_lease = acquire_lease
        self._unnamed = 0
        self._runs: dict[str, str] = {}
        self._at: dict[str, Any] = {}
        self._starting = threading.Lock()
        self._taking_over = threading.Lock()
        self._locations: dict[str, tuple[QueryLocation, int]] = {}
        on_failed = on_failed or self.tell_failed
        self._supervisor = QuerySupervisor(
            spec.failure_grace_s, lambda run_id, error: on_failed(run_id, self._runs[run_id], error), self._seen_failed
        )

    def install(self, writer: Any) -> None:
        """Install the hook in a `DataStreamWriter` class, in this process only."""
        for method, record in RECORDED.items():
            record_calls(writer, method, record)
        for method in ("start", "toTable"):
            self._prepare_before(writer, method)

    @cached_property
    def _restore(self) -> TaskRestore:
        from runtime.checkpoint.task_restore import TaskRestore  # imported here: most tasks have no streaming query

        return TaskRestore(Path(self._spec.directory), self._begin_with, self._attempt_id)

    @property
    def have_started(self) -> bool:
        """Return whether the code has started any query."""
        return bool(self._runs)

    def _warn_of_failures(self) -> None:
        """Name in the job's standard error the failed queries that the code has not noticed before it ended."""
        for run_id, error in self._supervisor.unattended():
            text = f"streaming query {self._runs[run_id]} has failed, and the job's code has ended without a look at it"
            print(f"{text}: {str(error).partition(chr(10))[0]}", file=sys.stderr, flush=True)  # noqa: T201

    def _warn_of_unclaimed(self) -> None:
        """Name in the job's standard error the queries with state that the job has not started."""
        if self._begin_with is None:
            return
        for name in self._restore.unclaimed:
            print(f"the state of query {name} was not restored: the job has not started it", file=sys.stderr)  # noqa: T201

    def _prepare_before(self, writer: Any, method: str) -> None:
        original = getattr(writer, method)
        signature = inspect.signature(original)
        queries = self

        @functools.wraps(original)
        def start(self: Any, *arguments: Any, **keywords: Any) -> Any:
            given = signature.bind(self, *arguments, **keywords).arguments
            take_given(self, given)  # PySpark itself sets the same values again
            path = given.get("path")
            name, located = queries._prepare(self, None if path is None else str(path), is_table=method == "toTable")
            with queries.gate.passing(name, queries._refusal):  # until a stop of the job finds the query in Spark
                if located is not None:
                    queries._restore_state(located)
                location = "" if located is None else located.location
                with queries._ending_no_other(self, name, location):
                    query = original(self, *arguments, **keywords)
                return queries._started(query, name, location, settings_of(self))

        setattr(writer, method, start)

    def stopped_all(self) -> None:
        """Record that the code ends its session: the end of its queries is not a failure."""
        self._supervisor.stopped_all()

    def finished(self) -> Finished:
        """Warn of failures and state that the code has not noticed, and return the final message of the queries."""
        self._warn_of_failures()
        self._warn_of_unclaimed()
        lost = [self._runs[run_id] for run_id in self._supervisor.lost()]
        return Finished(lost_queries=lost, queries=self._supervisor.last_progress())

    def failed(self) -> list[FailedQuery]:
        """Return each query that has failed and was not started again, even if the code has noticed its failure."""
        return [(run_id, self._runs[run_id], cause_of(str(error))) for run_id, error in self._supervisor.failed()]

    @contextlib.contextmanager
    def _ending_no_other(self, writer: Any, name: str, location: str) -> Iterator[None]:
        """Prevent the start of a query from ending another job's query, as Spark does if both have one id.

        If the session asks Spark to stop a running query of the id, only the task's own query at that location is
        stopped.
        """
        conf = _session_of(writer).conf
        with self._starting:  # another thread might be between the two settings
            stops = conf.get(STOP_ACTIVE_RUN, "true").lower() == "true"
            if stops:
                own = self._at.get(location)
                if own is not None and own.isActive:
                    own.stop()
                conf.set(STOP_ACTIVE_RUN, "false")
            try:
                yield
            except Exception as error:
                found = _RUNS_ALREADY.search(str(error))
                if found is None:
                    raise
                raise QueryRunsAlreadyError(_runs_already(name, location, found[1])) from error
            finally:
                if stops:
                    conf.set(STOP_ACTIVE_RUN, "true")

    def _started(self, query: Any, name: str, location: str, settings: dict[str, str]) -> Any:
        self._runs[str(query.runId)] = name
        self._at[location] = query
        calls_back_elsewhere = settings.get("format") == "foreachbatch" and ".connect." in type(query).__module__
        self._supervisor.started(
            query, ends_itself=settings.get("trigger") == "once", has_code_elsewhere=calls_back_elsewhere
        )
        return query

    def _prepare(self, writer: Any, path: str | None, *, is_table: bool) -> tuple[str, QueryLocation | None]:
        """Prepare the start of a query; return its name, and its location if it can resume from one."""
        settings = settings_of(writer)
        kind = settings.get("format", "table" if is_table else "parquet")
        given = settings.get(LOCATION)
        if given is None and (kind == "memory" and settings.get("outputmode") != "complete"):
            return settings.get("queryname") or "memory", None  # Spark cannot resume such a query from a location
        query_name = settings.get("queryname")
        if given is None and query_name and (below := _default_locations(writer)):
            given = posixpath.join(below, query_name)
        name = query_name or self._name_of(given)
        from conf.files import make_private

        if given is None:
            location = str(Path(self._spec.directory, "live", directory_name(name)))
            make_private(Path(location))
            writer.option("checkpointLocation", location)
        else:
            location = self._absolute(given)
        self._names[location] = name
        sink = path or settings.get("path")
        is_file_sink = kind in FILE_FORMATS and sink is not None
        query = QueryLocation(name, location, self._absolute(sink) if is_file_sink and sink else None)
        self._await_former_job()
        if self._begin_with is not None and self._restore.has_state_of(name):
            self._check_restorable(writer, query, given or "", sink)
        self._acquire_lease(location)
        return name, query

    def _restore_state(self, query: QueryLocation) -> None:
        """Restore a query's state if need be, and report that the query starts."""
        note, batch = self._restored(query)
        self._locations[query.name] = query, batch
        if note:
            print(note, file=sys.stderr, flush=True)  # noqa: T201
        self._tell(QueryStarts(query, batch, note))

    def _restored(self, query: QueryLocation) -> tuple[str, int]:
        """Restore a query's state; return the note of `TaskRestore.prepare`, and the query's last batch.

        That may take minutes, while other queries of the task run. A savepoint waits for it.
        """
        if self._begin_with is not None:
            self._tell(QueryRestores(query.name))
        try:
            return self._restore.prepare(query), self._restore.began_at(query)
        except BaseException:
            if self._begin_with is not None:
                self._tell(QueryRestores(query.name, has_failed=True))
            raise

    def _check_restorable(self, writer: Any, query: QueryLocation, location: str, sink: str | None) -> None:
        """Check that Spark reads a query's state where the runtime restores it.

        The runtime takes a path without a scheme for one of the local disk, Spark for one of its default file system.

        Args:
            writer: of the query.
            query: its name, location and file sink.
            location: the text of its checkpointLocation; empty if it names none.
            sink: the text of its path.

        Raises:
            SnapshotError: it would be restored where Spark does not look.
        """
        from runtime.checkpoint.errors import SnapshotError
        from runtime.checkpoint.remote_files import is_remote

        default = _default_file_system(writer)
        for what, text, known in (
            ("checkpointLocation", location, query.location),
            ("file sink", sink or "", query.sink),
        ):
            if known is None or is_remote(known):
                continue
            named = _SCHEME.match(text)
            if (named is None and not default.startswith("file:")) or (named is not None and named[1] != "file"):
                raise SnapshotError(
                    f"the state of query {query.name!r} is not restored: the {what} {text or known} leads to "
                    f"{default if named is None else named[1] + ':'} in Spark, and Understudy would restore it to the "
                    "local disk",
                    f"give the query a {what} with scheme and host, such as file:///dir or hdfs://namenode/dir",
                )

    def _await_former_job(self) -> None:
        """Wait until the job whose state this one takes over has ended; raises SnapshotError."""
        from runtime.checkpoint.handover import pause_s, read_handover

        with self._taking_over:
            begin_with = self._begin_with
            if begin_with is None or not begin_with.pending:
                return
            self._tell(StandsBy())
            begun = time.monotonic()
            while (found := read_handover(Path(begin_with.pending))) is None:
                time.sleep(pause_s(time.monotonic() - begun))
            self._begin_with = found

    def tell_failed(self, run_id: str, name: str, error: BaseException) -> None:
        """Report a query that has failed or is lost, so that the task fails."""
        self._tell(QueryFailed(name, None if isinstance(error, QueryLostError) else describe(error)))

    def _seen_failed(self, run_id: str, error: BaseException) -> None:
        """Report it if a query has failed because its state could not be loaded."""
        known = self._locations.get(self._runs[run_id])
        note = "" if known is None else self._restore.failed(*known, str(error))
        if note:
            print(note, file=sys.stderr, flush=True)  # noqa: T201
            self._tell(Note(note))

    def _name_of(self, given: str | None) -> str:
        """Return the name of a query without one: its number in the order of starts, which restarts do not change."""
        known = None if given is None else self._names.get(self._absolute(given))
        if known is not None:
            return known
        self._unnamed += 1
        return f"query-{self._unnamed - 1}"

    def _absolute(self, path: str) -> str:
        """Return a path as the driver sees it; a URI of another file system than the local one is unchanged."""
        from runtime.checkpoint.files import named_path

        if "://" in path and not path.startswith("file:"):
            return path
        joined = posixpath.join(self._spec.driver_directory, named_path(path))
        return posixpath.normpath(f"/{joined.lstrip('/')}")


def watch_streaming_queries(
    spec: TaskSpec,
    control: TaskControl,
    writer: Any,
    on_failed: Callable[[StreamingQueries, str, str, BaseException], None] | None = None,
) -> StreamingQueries | None:
    """Install the hook in a `DataStreamWriter` class; return None if only Spark looks after the task's queries.

    *on_failed* gets the queries too; otherwise as in `StreamingQueries`.
    """
    if spec.streaming is None:
        return None
    queries: StreamingQueries
    handle = None
    if on_failed is not None:
        given = on_failed

        def handle(run_id: str, name: str, error: BaseException) -> None:
            given(queries, run_id, name, error)

    attempt = spec.descriptor.attempt
    queries = StreamingQueries(
        spec.streaming,
        attempt.restore,
        control.tell,
        control.acquire_lease,
        handle,
        gate=control.starts,
        attempt_id=attempt.attempt_id,
    )
    queries.install(writer)
    control.failed_queries = queries.failed
    return queries


def refuse_streaming_queries(writer: Any) -> None:
    """Make a `DataStreamWriter` class reject the start of queries, in this process only.

    The runtime could neither checkpoint nor restore their state.
    """

    def refuse(*_arguments: Any, **_keywords: Any) -> Any:
        raise UnsupportedByEndpointError(
            "a streaming query cannot be started on the Spark Connect endpoint of spark.remote: its state could be "
            "neither checkpointed nor restored there; run the job on a cluster without spark.remote"
        )

    writer.start = writer.toTable = refuse


def settings_of(writer: Any) -> dict[str, str]:
    """Return the settings of a writer or reader that were recorded, by lower-case names."""
    settings: dict[str, str] = writer.__dict__.setdefault(_SETTINGS, {})
    return settings


def take_given(writer: Any, given: Mapping[str, Any]) -> None:
    """Apply the arguments of ``start`` or ``toTable`` to their writer as settings."""
    writer.options(**given.get("options", {}))
    for name in ("format", "outputMode", "queryName"):
        if given.get(name) is not None:
            getattr(writer, name)(given[name])


def _session_of(writer: Any) -> Any:
    """Return the session of a writer, classic or Connect."""
    return getattr(writer, "_spark", None) or writer._session


def _default_locations(writer: Any) -> str | None:
    found: str | None = _session_of(writer).conf.get(_DEFAULT_LOCATIONS, None)
    return found


def _default_file_system(writer: Any) -> str:
    """Return the URL of the file system to which a path without a scheme leads in a query of this writer's session."""
    session = _session_of(writer)
    java = getattr(session, "_jsparkSession", None)
    if java is not None:
        return str(java.sessionState().newHadoopConf().get(_DEFAULT_FS))
    # A Connect session shows Spark's settings, and not those of Hadoop's own files.
    get = session.conf.get
    return str(get(_DEFAULT_FS, None) or get(f"spark.hadoop.{_DEFAULT_FS}", None) or "file:///")


def _runs_already(name: str, location: str, query_id: str | None) -> str:
    which = "its id" if query_id is None else f"its id ({query_id})"
    return (
        f"streaming query {name} is not started at {location}: a query with {which} runs in this Spark driver already. "
        "If that is this job's own, stop() it first. A copy of another query's checkpointLocation needs an id of its "
        "own: begin it with `understudy job run --from SAVEPOINT --new-query-id`"
    )


def record_calls(writer: Any, method: str, record: Callable[..., dict[str, Any]]) -> None:
    """Make a class record the arguments of its *method*, which *record* turns into settings."""
    original = getattr(writer, method)

    @functools.wraps(original)
    def recorded(self: Any, *arguments: Any, **keywords: Any) -> Any:
        returned = original(self, *arguments, **keywords)
        found = {key: str(value) for key, value in record(*arguments, **keywords).items() if value is not None}
        settings_of(self).update(found)
        return returned

    setattr(writer, method, recorded)


def _lower(options: dict[str, Any]) -> dict[str, Any]:
    return {key.lower(): value for key, value in options.items()}


def _kind_of_trigger(given: dict[str, Any]) -> str:
    if given.get("once") or given.get("availableNow"):
        return "once"
    return "continuous" if given.get("continuous") or given.get("realTime") else "repeated"


RECORDED: dict[str, Callable[..., dict[str, Any]]] = {
    "format": lambda source: {"format": source.lower()},
    "outputMode": lambda outputMode: {"outputmode": outputMode.lower()},  # noqa: N803
    "queryName": lambda queryName: {"queryname": queryName},  # noqa: N803
    "option": lambda key, value: _lower({key: value}),
    "options": lambda **options: _lower(options),
    "trigger": lambda **given: {"trigger": _kind_of_trigger(given)},
    "foreach": lambda f: {"format": "foreach"},
    "foreachBatch": lambda func: {"format": "foreachbatch"},
}

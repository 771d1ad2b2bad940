"""Sees a task's streaming queries before they start: their names, where their state and their sink are.

A hook around PySpark's `DataStreamWriter`, in task processes only, for scripts (classic) and Connect alike. A query
that names no checkpointLocation gets one in the job's own directory, so that its restart goes on where it was; state
that the job begins with is put back before the query starts.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import posixpath
import re
import sys
import threading
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.causes import cause_of
from runtime.checkpoint.names import directory_name
from runtime.protocol.checkpoints import JobManagerTaskRestore
from runtime.protocol.query_snapshot import NOTHING_COMMITTED, QueryLocation
from runtime.spark.control import FailedQuery, TaskControl
from runtime.spark.errors import QueryRunsAlreadyError, UnsupportedByEndpointError
from runtime.spark.query_supervision import QuerySupervisor
from runtime.spark.spec import STOP_ACTIVE_RUN, StreamingSpec, TaskSpec

if TYPE_CHECKING:
    from runtime.checkpoint.task_restore import TaskRestore

FILE_FORMATS = frozenset({"parquet", "json", "csv", "orc", "text", "avro", "xml"})
LOCATION = "checkpointlocation"
_DEFAULT_LOCATIONS = "spark.sql.streaming.checkpointLocation"
_SETTINGS = "_understudy_settings"
_RUNS_ALREADY = re.compile(r"Cannot start query with id (\S+) as another|CONCURRENT_QUERY")
"""What Spark says of the start of a query whose id one has that runs, in whichever session of the driver."""


class StreamingQueries:
    """The queries of this task process.

    Args:
        spec: what they begin with.
        restore: what there is of their state; None for a task that begins without.
        tell: told each query before it starts, with the last batch that it has committed, and what was restored.
        tell_failed: told the name and the exception of a query that has failed, and that the code leaves alone.
        tell_note: told what is to be added to the failure of the task.
        acquire_lease: see `TaskControl.acquire_lease`.
    """

    def __init__(
        self,
        spec: StreamingSpec,
        restore: JobManagerTaskRestore | None,
        tell: Callable[[QueryLocation, int, str], None],
        tell_failed: Callable[[str, BaseException], None],
        tell_note: Callable[[str], None],
        acquire_lease: Callable[[str], None],
    ) -> None:
        self._spec = spec
        self._begin_with = restore
        self._tell = tell
        self._names: dict[str, str] = {}
        self._acquire_lease = acquire_lease
        self._unnamed = 0
        self._runs: dict[str, str] = {}
        self._at: dict[str, Any] = {}
        self._starting = threading.Lock()
        self._tell_note = tell_note
        self._locations: dict[str, tuple[QueryLocation, int]] = {}
        self._supervisor = QuerySupervisor(
            spec.failure_grace_s, lambda run_id, error: tell_failed(self._runs[run_id], error), self._seen_failed
        )

    def install(self, writer: Any) -> None:
        """Put the hook into a `DataStreamWriter` class, in this process only."""
        for method, record in RECORDED.items():
            record_calls(writer, method, record)
        for method in ("start", "toTable"):
            self._prepare_before(writer, method)

    @cached_property
    def _restore(self) -> TaskRestore:
        from runtime.checkpoint.task_restore import TaskRestore  # most tasks have no streaming query

        return TaskRestore(Path(self._spec.directory), self._begin_with)

    @property
    def have_started(self) -> bool:
        """Whether the code has started any."""
        return bool(self._runs)

    def warn_of_failures(self) -> None:
        """Say in the job's standard error which queries have failed unseen by the code, which has ended well."""
        for run_id, error in self._supervisor.unattended():
            text = f"streaming query {self._runs[run_id]} has failed, and the job's code has ended without a look at it"
            print(f"{text}: {str(error).partition(chr(10))[0]}", file=sys.stderr, flush=True)  # noqa: T201

    def warn_of_unclaimed(self) -> None:
        """Say in the job's standard error of which queries there is state that nobody has claimed."""
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
            options = given.get("options", {})
            self.options(**options)  # and once more by PySpark itself: what they say is the same
            for name in ("format", "outputMode", "queryName"):
                if given.get(name) is not None:
                    getattr(self, name)(given[name])
            path = given.get("path")
            name, location = queries._prepare(self, None if path is None else str(path), is_table=method == "toTable")
            with queries._ending_no_other(self, name, location):
                query = original(self, *arguments, **keywords)
            return queries._started(query, name, location, settings_of(self))

        setattr(writer, method, start)

    def stopped_all(self) -> None:
        """The code ends its session: what its queries end with is no failure."""
        self._supervisor.stopped_all()

    def summary(self) -> dict[str, Any]:
        """Return what is told of the queries when the code has come to its end."""
        lost = [self._runs[run_id] for run_id in self._supervisor.lost()]
        return {"lost_queries": lost, "queries": self._supervisor.last_progress()}

    def failed(self) -> list[FailedQuery]:
        """Return each query that has failed and was not started again, whether the code knows of it or not."""
        return [(run_id, self._runs[run_id], cause_of(str(error))) for run_id, error in self._supervisor.failed()]

    @contextlib.contextmanager
    def _ending_no_other(self, writer: Any, name: str, location: str) -> Iterator[None]:
        """Let the start of a query end no query of another job, which Spark does where both have one id.

        A session that has Spark stop what runs under the id has its way with the task's own query at that location.
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

    def _prepare(self, writer: Any, path: str | None, *, is_table: bool) -> tuple[str, str]:
        """Make ready for a query; returns its name, and its location where it has one."""
        settings = settings_of(writer)
        kind = settings.get("format", "table" if is_table else "parquet")
        given = settings.get(LOCATION)
        if given is None and (kind == "memory" and settings.get("outputmode") != "complete"):
            return settings.get("queryname") or "memory", ""  # Spark lets no such query go on from a location
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
        note, batch = "", NOTHING_COMMITTED
        if "://" not in location:
            self._acquire_lease(location)
            note = self._restore.prepare(query)
            batch = self._restore.began_at(query)
            self._locations[name] = query, batch
        if note:
            print(note, file=sys.stderr, flush=True)  # noqa: T201
        self._tell(query, batch, note)
        return name, location

    def _seen_failed(self, run_id: str, error: BaseException) -> None:
        """See whether a query has failed because its state could not be loaded."""
        known = self._locations.get(self._runs[run_id])
        note = "" if known is None else self._restore.failed(*known, str(error))
        if note:
            print(note, file=sys.stderr, flush=True)  # noqa: T201
            self._tell_note(note)

    def _name_of(self, given: str | None) -> str:
        """The name of a query without one: its place in the order of start, however often it is started again."""
        known = None if given is None else self._names.get(self._absolute(given))
        if known is not None:
            return known
        self._unnamed += 1
        return f"query-{self._unnamed - 1}"

    def _absolute(self, path: str) -> str:
        """A path as the driver sees it; a URI of another file system than the local one stays as it is."""
        from runtime.checkpoint.files import path_of

        if "://" in path and not path.startswith("file:"):
            return path
        return posixpath.normpath(posixpath.join(self._spec.driver_directory, path_of(path)))


def watch_streaming_queries(spec: TaskSpec, control: TaskControl, writer: Any) -> StreamingQueries | None:
    """Install the hook into a `DataStreamWriter` class; None where Spark alone looks after the task's queries."""
    if spec.streaming is None:
        return None
    queries = StreamingQueries(
        spec.streaming,
        spec.descriptor.attempt.restore,
        control.tell_query,
        control.tell_query_failed,
        control.tell_note,
        control.acquire_lease,
    )
    queries.install(writer)
    control.failed_queries = queries.failed
    return queries


def refuse_streaming_queries(writer: Any) -> None:
    """Let a `DataStreamWriter` class start no query, in this process only: nobody could look after it."""

    def refuse(*_arguments: Any, **_keywords: Any) -> Any:
        raise UnsupportedByEndpointError(
            "a streaming query cannot be started on the Spark Connect endpoint of spark.remote: its state could be "
            "neither checkpointed nor restored there; run the job on a cluster without spark.remote"
        )

    writer.start = writer.toTable = refuse


def settings_of(writer: Any) -> dict[str, str]:
    """What a writer or reader was told by the calls that are recorded, by lower-case names."""
    settings: dict[str, str] = writer.__dict__.setdefault(_SETTINGS, {})
    return settings


def _session_of(writer: Any) -> Any:
    """The session of a writer, classic or Connect."""
    return getattr(writer, "_spark", None) or writer._session


def _default_locations(writer: Any) -> str | None:
    found: str | None = _session_of(writer).conf.get(_DEFAULT_LOCATIONS, None)
    return found


def _runs_already(name: str, location: str, query_id: str | None) -> str:
    which = "its id" if query_id is None else f"its id ({query_id})"
    return (
        f"streaming query {name} is not started at {location}: a query with {which} runs in this Spark driver already. "
        "If that is this job's own, stop() it first. A copy of another query's checkpointLocation needs an id of its "
        "own: begin it with `job run --from SAVEPOINT --new-query-id`"
    )


def record_calls(writer: Any, method: str, record: Callable[..., dict[str, Any]]) -> None:
    """Have a class record what its *method* is called with, as *record* makes settings of it."""
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


RECORDED: dict[str, Callable[..., dict[str, Any]]] = {
    "format": lambda source: {"format": source.lower()},
    "outputMode": lambda outputMode: {"outputmode": outputMode.lower()},  # noqa: N803
    "queryName": lambda queryName: {"queryname": queryName},  # noqa: N803
    "option": lambda key, value: _lower({key: value}),
    "options": lambda **options: _lower(options),
    "trigger": lambda **given: {"trigger": "once" if given.get("once") or given.get("availableNow") else "repeated"},
    "foreach": lambda f: {"format": "foreach"},
    "foreachBatch": lambda func: {"format": "foreachbatch"},
}

"""Describes the streaming queries of a job without running the job: each query runs one batch of no rows.

The job's code runs in this process, on a Spark of one core, until it first waits for a query. Every streaming source is
replaced by an empty one with the same columns, and every sink by one that discards its rows. Every checkpointLocation
is replaced by one of this run. So Spark plans a first batch and writes its description of the state, but reads, writes
and commits no data of the user. Other code of the job has its usual effects.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import json
import os
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

from runtime.checkpoint.compatibility import ALL_NULLABLE
from runtime.checkpoint.description import QueryDescription
from runtime.checkpoint.errors import SnapshotError
from runtime.checkpoint.files import path_of
from runtime.checkpoint.rehearsal import StartedQuery, source_problem
from runtime.checkpoint.snapshot import describe_query
from runtime.protocol.query_snapshot import QueryLocation
from runtime.spark.driver.java import find_java, launcher_home
from runtime.spark.driver.launch import WORKER_PYTHON
from runtime.spark.errors import DriverStartError
from runtime.spark.task.sources import READS, Sources, kind_by_offsets
from runtime.spark.task.streaming import LOCATION, RECORDED, record_calls, settings_of, take_given

_SOURCE_NAME = "name of the source"


class _WaitingError(BaseException):
    """The script waits for a query; the rest of it is not run."""


@contextmanager
def one_core_session(conf: Mapping[str, str], java_home: str | None, scratch: Path) -> Iterator[Any]:
    """Yield a classic session of one core, which the job's own `getOrCreate` returns; for a process that ends soon.

    *scratch* is a directory that exists until then.

    Raises:
        SparkError: there is no usable Java, or Spark does not start in it.
    """
    for name in [name for name in os.environ if name.startswith(("SPARK_", "PYSPARK_"))]:
        del os.environ[name]  # variables for the user's own Spark
    java = launcher_home(find_java(java_home), scratch / "java")
    python = conf.get(WORKER_PYTHON, sys.executable)  # by default PySpark takes the `python3` of the PATH
    os.environ |= {"JAVA_HOME": str(java), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": python}
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[1]").appName("understudy-check")
    # a query that began with nullable columns fits all others, and one of an earlier Spark keeps those that are not
    for key, value in {"spark.ui.enabled": "false", "spark.log.level": "ERROR", **conf, ALL_NULLABLE: "false"}.items():
        builder = builder.config(key, value)
    try:
        session = builder.getOrCreate()
    except PySparkException as error:
        raise DriverStartError(f"Spark does not start with the job's settings: {error}") from error
    try:
        yield session
    finally:
        session.stop()


class DryRun:
    """Watches PySpark's streaming classes, in this process only, while a job's code runs.

    Args:
        spark: a session of `one_core_session`.
        scratch: a directory for its files.
    """

    def __init__(self, spark: Any, scratch: Path) -> None:
        self._spark = spark
        self._scratch = scratch
        self._sources = Sources()
        self._kinds: list[str] = []
        self._exact_kinds: list[str] = []
        self._problems: dict[int, str] = {}
        self._locations: list[Path] = []
        self._unnamed = 0
        self.queries: list[QueryDescription] = []
        """The queries that were found, in the order of their start."""
        self.started: list[StartedQuery] = []
        """The same queries, with their sinks and triggers."""

    def run_script(
        self, path: Path, argv: Sequence[str], content: bytes | None = None, beside: Path | None = None
    ) -> None:
        """Run a script as a program, up to its first wait. Raises the script's own exceptions, also SystemExit.

        Args:
            path: the script, as the user named it: its ``__file__`` and ``sys.argv[0]``.
            argv: its arguments.
            content: the code that runs. Default: what the file holds.
            beside: the directory of the modules beside it. Default: the file's.
        """
        from pyspark.sql.streaming.query import StreamingQuery, StreamingQueryManager

        self._watch()
        for method in ("awaitTermination", "processAllAvailable"):
            setattr(StreamingQuery, method, _stop_here)
        setattr(StreamingQueryManager, "awaitAnyTermination", _stop_here)  # noqa: B010
        code = compile(path.read_bytes() if content is None else content, str(path), "exec", dont_inherit=True)
        main = types.ModuleType("__main__")
        main.__dict__.update(__file__=str(path), __builtins__=builtins, __cached__=None, __spec__=None)
        ours, sys.modules["__main__"] = sys.modules["__main__"], main
        sys.argv = [str(path), *argv]
        sys.path.insert(0, str(path.parent if beside is None else beside))
        with redirect_stdout(sys.stderr):
            try:
                exec(code, main.__dict__)  # noqa: S102 -- as the job itself would run it
            except _WaitingError:
                return
            finally:
                sys.modules["__main__"] = ours

    def run_pipeline(self, run_local: Callable[[Any], object]) -> None:
        """Run all vertices of a pipeline. Raises their exceptions."""
        self._watch()
        with redirect_stdout(sys.stderr):
            run_local(self._spark)

    def _watch(self) -> None:
        from pyspark.sql.datasource import DataSourceRegistration
        from pyspark.sql.streaming.query import StreamingQuery
        from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

        self._sources.install(DataSourceRegistration)
        self._await: Any = StreamingQuery.awaitTermination
        for method in ("format", "option", "options"):
            record_calls(DataStreamReader, method, RECORDED[method])
        if hasattr(DataStreamReader, "name"):  # since Spark 4.2
            record_calls(DataStreamReader, "name", lambda source_name: {_SOURCE_NAME: source_name})
        for method, arguments in RECORDED.items():
            record_calls(DataStreamWriter, method, arguments)
        self._read_parquet: Any = DataStreamReader.parquet
        self._start: Any = DataStreamWriter.start
        for method in READS:
            self._replace_source(DataStreamReader, method)
        for method in ("start", "toTable"):
            self._replace_start(DataStreamWriter, method)

    def _replace_source(self, reader: Any, method: str) -> None:
        original, run = getattr(reader, method), self

        @functools.wraps(original)
        def read(self: Any, *arguments: Any, **keywords: Any) -> Any:
            frame = original(self, *arguments, **keywords)
            kind = run._sources.kind(self, method)
            if problem := source_problem(kind, {**settings_of(self), **keywords}):
                run._problems[len(run._kinds)] = problem
            run._exact_kinds.append(kind)
            return run._empty(self, frame.schema, kind_by_offsets(method, settings_of(self)))

        setattr(reader, method, read)

    def _empty(self, reader: Any, schema: Any, kind: str) -> Any:
        """Return a source without rows that has these columns."""
        directory = self._scratch / f"source-{len(self._kinds)}"
        self._kinds.append(kind)
        reader._spark.createDataFrame([], schema).write.parquet(str(directory))
        empty, name = reader._spark.readStream.schema(schema), settings_of(reader).get(_SOURCE_NAME)
        return self._read_parquet(empty if name is None else empty.name(name), str(directory))

    def _replace_start(self, writer: Any, method: str) -> None:
        signature, run = inspect.signature(getattr(writer, method)), self

        def start(self: Any, *arguments: Any, **keywords: Any) -> Any:
            take_given(self, signature.bind(self, *arguments, **keywords).arguments)
            return run._started(self)

        setattr(writer, method, start)

    def _started(self, writer: Any) -> Any:
        """Run a query's batch of no rows, and record the query's description."""
        settings = dict(settings_of(writer))
        location = self._scratch / f"query-{len(self._locations)}"
        self._locations.append(location)
        query = self._start(
            writer.format("noop").trigger(availableNow=True).option("checkpointLocation", str(location))
        )
        self._await(query)
        is_kept = settings.get("format") != "memory" or LOCATION in settings or settings.get("outputmode") == "complete"
        if is_kept:  # Spark does not resume other queries with a memory sink
            name = settings.get("queryname") or self._next_name()
            found, numbers = self._described(name, location)
            self.queries.append(found)
            sink, trigger = settings.get("format", "parquet"), settings.get("trigger", "repeated")
            problem = next((self._problems[number] for number in numbers if number in self._problems), "")
            kinds = tuple(self._exact_kinds[number] for number in numbers)
            self.started.append(StartedQuery(name, sink, trigger, kinds, problem))
        return query

    def _next_name(self) -> str:
        self._unnamed += 1
        return f"query-{self._unnamed - 1}"

    def _described(self, name: str, location: Path) -> tuple[QueryDescription, list[int]]:
        """Return the description of a query, and the numbers of its sources among all that the code has made."""
        found = describe_query(QueryLocation(name, str(location)))
        places = found.source_names or tuple(map(str, range(len(found.sources))))
        entries = [location / "sources" / place / "0" for place in places]
        numbers = [self._number_of(entry) for entry in entries]
        return replace(found, sources=tuple(self._kinds[number] for number in numbers)), numbers

    def _number_of(self, entry: Path) -> int:
        """Return the number of a query's real source, by the empty directory that replaces it."""
        try:
            directory = path_of(json.loads(entry.read_text().splitlines()[1])["path"]).parent.name
            number = int(directory.removeprefix("source-"))
            self._kinds[number]
        except (OSError, ValueError, IndexError, KeyError) as error:
            raise SnapshotError(f"the source in {entry} does not belong to this dry run: {error}") from error
        return number


def _stop_here(*_: Any, **__: Any) -> None:
    raise _WaitingError

"""Runs the code of a job over batches that were run before, in a task of its own: for ``job upgrade --shadow``.

The task's job file is `SCRIPT`, made by `runtime.cluster.job_shadow`. It replaces the start of streaming queries in
PySpark, in this process only, and then runs the code of the job. The start of a query runs all of its planned batches:

1. The offsets of the next batch are put into a private copy of the query's checkpointLocation.
2. The query is started there with a trigger that ends after one batch. Spark runs a planned batch that is not
   committed with the input that its offsets name.
3. The rows of the batch are written to a private directory in place of the query's sink.
4. A function of ``foreachBatch`` with a parameter ``colour=None`` is then called with these rows, the number of the
   batch, and the colour of the version.

After the last query the code is ended. What it does besides starting queries has its usual effects.
"""

from __future__ import annotations

import functools
import inspect
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

from conf.files import make_private, write_private
from runtime.checkpoint.errors import CheckpointError
from runtime.checkpoint.files import list_names
from runtime.checkpoint.metadata_log import entries
from runtime.checkpoint.rehearsal import (
    SAMPLES,
    Plan,
    PlannedQuery,
    RehearsedBatch,
    RehearsedQuery,
    RehearsedState,
    StartedQuery,
    decode_plan,
    decode_result,
    encode,
    refusal,
    source_problem,
    source_refusal,
    takes_colour,
)
from runtime.checkpoint.snapshot import describe_query
from runtime.protocol.query_snapshot import NOTHING_COMMITTED, QueryLocation
from runtime.spark.task.sources import READS, Sources
from runtime.spark.task.streaming import LOCATION, RECORDED, record_calls, settings_of, take_given

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCRIPT = """\
# Made by `understudy job upgrade --shadow`: runs the job's code without the sinks of its queries.
exec(__import__("understudy.runtime.spark.task.rehearsal", fromlist=["begin"]).begin({plan!r}, __file__), globals())
"""
"""The job file of a rehearsal. A release that cannot rehearse has no such module, so it runs nothing of the job."""

_WRITTEN = {
    "ignoreNullFields": "false",
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""Options of rows as JSON texts, so that the settings of a version's session do not change them."""
_FUNCTION = "_understudy_function"
"""Attribute of a writer: the function that its ``foreachBatch`` got."""
_DIGEST = "CAST(sum(CAST(xxhash64(value) AS DECIMAL(38, 0))) AS STRING)"
_PROCESSOR = "transformWithState"


def begin(plan_file: str, shown: str) -> CodeType:
    """Divert the streaming queries of this process; return the code of the job.

    Args:
        plan_file: the plan.
        shown: path of the job's file that its code sees.

    Raises:
        OSError, ValueError, WireError: the plan or the job file cannot be read.
    """
    from pyspark.sql.datasource import DataSourceRegistration
    from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

    plan = decode_plan(Path(plan_file).read_bytes())
    Rehearsal(plan).install(DataStreamReader, DataStreamWriter, DataSourceRegistration)
    return compile(Path(plan.code).read_bytes(), shown, "exec", dont_inherit=True)


class Rehearsal:
    """Runs the planned batches of queries when the code of a job starts them.

    Args:
        plan: the plan.
    """

    def __init__(self, plan: Plan) -> None:
        self._colour = plan.colour
        self._planned = {query.name: query for query in plan.queries}
        self._blue = {query.name: query for query in plan.blue}
        self._names: dict[str, str] = {}
        self._unnamed = 0
        self._done: dict[str, Any] = {}

    def install(self, reader: Any, writer: Any, registration: Any) -> None:
        """Install the rehearsal in PySpark's classes, whose calls `runtime.spark.task.streaming` records."""
        self._start: Callable[[Any], Any] = inspect.unwrap(writer.start)
        self._writer = writer
        sources = Sources()
        sources.install(registration, _not_committing)
        for method in ("format", "option", "options"):
            record_calls(reader, method, RECORDED[method])
        for method in READS:
            _check_source(reader, method, sources)
        _keep_function(writer)
        for method in ("start", "toTable"):
            self._replace(writer, method)

    def _replace(self, writer: Any, method: str) -> None:
        signature = inspect.signature(inspect.unwrap(getattr(writer, method)))
        is_table, rehearsal = method == "toTable", self

        def start(self: Any, *arguments: Any, **keywords: Any) -> Any:
            take_given(self, signature.bind(self, *arguments, **keywords).arguments)
            return rehearsal._started(self, is_table=is_table)

        setattr(writer, method, start)

    def _started(self, writer: Any, *, is_table: bool) -> Any:
        """Run the batches of a query; return it, and end the code if it was the last one."""
        settings = settings_of(writer)
        name = settings.get("queryname") or self._name_of(settings.get(LOCATION))
        if name in self._done:
            return self._done[name]
        sink = settings.get("format", "table" if is_table else "parquet")
        if reason := refusal(StartedQuery(name, sink, settings.get("trigger", "repeated"))):
            raise CheckpointError(reason)
        planned = self._planned.get(name)
        if planned is None:
            raise CheckpointError(f"query {name!r} is new, so there are no batches to rehearse")
        query, result = self._run(writer, settings, planned)
        self._done[name] = query
        write_private(Path(planned.result), encode(result))
        if self._done.keys() == self._planned.keys():
            sys.exit(0)
        return query

    def _name_of(self, location: str | None) -> str:
        """Return the name of a query without one, as `StreamingQueries` numbers them."""
        if location is not None and location in self._names:
            return self._names[location]
        name = f"query-{self._unnamed}"
        self._unnamed += 1
        if location is not None:
            self._names[location] = name
        return name

    def _run(self, writer: Any, settings: dict[str, str], planned: PlannedQuery) -> tuple[Any, RehearsedQuery]:
        frame = writer._df
        given: Any = writer.__dict__.get(_FUNCTION) if settings.get("format") == "foreachbatch" else None
        is_called = None if given is None or not planned.batches else takes_colour(given)
        sink = _Sink(planned, functools.partial(given, colour=self._colour) if is_called else None)
        diverted = self._diverted(frame, settings, planned, sink)
        known = self._result_of_blue(planned.name)
        if not planned.batches:
            return self._run_idle(diverted), RehearsedQuery(planned.name, frame.schema.simpleString(), ())
        query, batches = None, []
        for batch_id in planned.batches:
            query, duration_ms = self._run_batch(diverted, planned, batch_id, sink)
            text = _rows(frame.sparkSession, planned, batch_id)
            count, digest = _figures(text)
            batch = RehearsedBatch(batch_id, count, digest, duration_ms)
            if known is not None:
                batch = self._compared(batch, text, known)
            batches.append(batch)
        state, unread = _state_of(frame.sparkSession, planned)
        columns = frame.schema.simpleString()
        return query, RehearsedQuery(planned.name, columns, tuple(batches), state, unread, is_called)

    def _diverted(self, frame: Any, settings: dict[str, str], planned: PlannedQuery, sink: _Sink) -> Any:
        """Return a writer of the same rows, which records them. It has nothing else of the real sink."""
        make_private(Path(planned.rows))
        writer = self._writer(frame).foreachBatch(sink.take).trigger(once=True)
        if "outputmode" in settings:
            writer = writer.outputMode(settings["outputmode"])
        return writer.option("checkpointLocation", f"file:{planned.location}")

    def _run_batch(self, writer: Any, planned: PlannedQuery, batch_id: int, sink: _Sink) -> tuple[Any, int | None]:
        """Run one batch; return the query, which has ended, and the duration in milliseconds."""
        location = Path(planned.location)
        shutil.copyfile(Path(planned.offsets) / str(batch_id), location / "offsets" / str(batch_id))
        query = self._start(writer)
        try:
            query.awaitTermination()
        finally:
            sink.check(batch_id)
        for log in ("offsets", "commits"):
            last = max(entries(list_names(location / log)), default=NOTHING_COMMITTED)
            if last != batch_id:
                raise CheckpointError(
                    f"batch {batch_id} of query {planned.name!r} was not repeated: the last one in {log} is {last}"
                )
        progress = query.lastProgress
        return query, None if progress is None else progress["durationMs"].get("triggerExecution")

    def _run_idle(self, writer: Any) -> Any:
        """Start a query without batches to repeat, for the code; its private copy takes any batch that it runs."""
        query = self._start(writer)
        query.awaitTermination()
        return query

    def _result_of_blue(self, name: str) -> RehearsedQuery | None:
        planned = self._blue.get(name)
        return None if planned is None else decode_result(Path(planned.result).read_bytes())

    def _compared(self, batch: RehearsedBatch, text: DataFrame, known: RehearsedQuery) -> RehearsedBatch:
        """Return a batch of green with what makes it differ from that of blue."""
        before = {one.batch_id: one for one in known.batches}[batch.batch_id]
        if before.is_same(batch):
            return batch
        others = _rows(text.sparkSession, self._blue[known.name], batch.batch_id)
        gone, added = others.exceptAll(text), text.exceptAll(others)
        return replace(
            batch,
            only_blue=gone.count(),
            only_green=added.count(),
            blue_samples=_samples(gone),
            green_samples=_samples(added),
        )


class _Sink:
    """Takes the batches of a query in place of its sink.

    Args:
        planned: the query.
        function: called with the rows and the number of each planned batch after these were recorded; None: nothing is.
    """

    def __init__(self, planned: PlannedQuery, function: Callable[[Any, int], object] | None) -> None:
        self._planned = planned
        self._function = function
        self._error: BaseException | None = None

    def take(self, rows: DataFrame, batch_id: int) -> None:
        """Record the rows of a batch, and call the function."""
        if self._function is None or batch_id not in self._planned.batches:
            self._record(rows, batch_id)
            return
        rows.persist()  # computed once: the function gets the rows that are recorded, and state is read once
        try:
            self._record(rows, batch_id)
            self._call(rows, batch_id)
        finally:
            rows.unpersist()

    def check(self, batch_id: int) -> None:
        """Raise `CheckpointError` if the function has failed. The error of Spark has it only as a text."""
        if self._error is not None:
            cause = f"{type(self._error).__name__}: {str(self._error).partition(chr(10))[0]}"
            raise CheckpointError(
                f"the function of foreachBatch of query {self._planned.name!r} has failed in batch {batch_id}: {cause}"
            ) from self._error

    def _record(self, rows: DataFrame, batch_id: int) -> None:
        from pyspark.sql import functions as sf

        text = rows.select(sf.to_json(sf.struct("*"), _WRITTEN).alias("value"))
        text.write.mode("overwrite").text(f"file:{self._planned.rows}/{batch_id}")

    def _call(self, rows: DataFrame, batch_id: int) -> None:
        assert self._function is not None
        try:
            self._function(rows, batch_id)
        except BaseException as error:
            self._error = error
            raise


def _keep_function(writer: Any) -> None:
    """Let each writer keep the function that its ``foreachBatch`` gets."""
    original = writer.foreachBatch

    @functools.wraps(original)
    def foreach_batch(self: Any, func: Any) -> Any:
        returned = original(self, func)
        self.__dict__[_FUNCTION] = func
        return returned

    writer.foreachBatch = foreach_batch


def _check_source(reader: Any, method: str, sources: Sources) -> None:
    """Let the code read only sources whose batches can be repeated, and that do not remove what the job reads."""
    original = getattr(reader, method)

    @functools.wraps(original)
    def read(self: Any, *arguments: Any, **keywords: Any) -> Any:
        kind = sources.kind(self, method)
        if reason := source_refusal(kind):
            raise CheckpointError(f"a source cannot be read in a rehearsal, because it is {reason}")
        if problem := source_problem(kind, {**settings_of(self), **keywords}):
            raise CheckpointError(f"a source cannot be read in a rehearsal, because it {problem}")
        return original(self, *arguments, **keywords)

    setattr(reader, method, read)


def _not_committing(data_source: Any) -> Any:
    """Return a Python data source as *data_source*, whose reader must have no ``commit`` that does anything.

    Such a method may remove the input of batches, for the running job too. The class is pickled by value, and names
    nothing of this package: Spark's Python workers may lack it.
    """

    def check(reader: Any) -> Any:
        code = getattr(type(reader).commit, "__code__", None)  # that of `pass` has no names
        if code is None or code.co_names or code.co_freevars or any(hasattr(one, "co_code") for one in code.co_consts):
            raise ValueError(
                f"{type(reader).__name__} has a method commit, by which the source may remove the input of batches, so "
                "they cannot be rehearsed"
            )
        return reader

    class Checked(data_source):  # type: ignore[misc]
        def streamReader(self, schema: Any) -> Any:  # noqa: N802
            return check(data_source.streamReader(self, schema))

        def simpleStreamReader(self, schema: Any) -> Any:  # noqa: N802
            return check(data_source.simpleStreamReader(self, schema))

    Checked.__name__ = Checked.__qualname__ = data_source.__name__
    return Checked


def _rows(spark: SparkSession, planned: PlannedQuery, batch_id: int) -> DataFrame:
    return spark.read.text(f"file:{planned.rows}/{batch_id}")


def _figures(text: DataFrame) -> tuple[int, str]:
    """Return the number of rows and their checksum, which does not depend on their order."""
    [row] = text.selectExpr("count(*) AS count", f"{_DIGEST} AS digest").collect()
    return int(row["count"]), row["digest"] or ""


def _samples(text: DataFrame) -> tuple[str, ...]:
    return tuple(row["value"] for row in text.orderBy("value").limit(SAMPLES).collect())


def _state_of(spark: SparkSession, planned: PlannedQuery) -> tuple[tuple[RehearsedState, ...], tuple[str, ...]]:
    """Return the state of a query after its last batch, and why that of some operators cannot be read."""
    from pyspark.errors import PySparkException

    found, unread = [], []
    for operator in describe_query(QueryLocation(planned.name, planned.location)).operators:
        what = f"the state of operator {operator.id} ({operator.name}) was not compared"
        if operator.name.startswith(_PROCESSOR):
            unread.append(f"{what}: it has several variables")
            continue
        try:
            found += [_state(spark, planned, operator.id, store.name) for store in operator.stores]
        except PySparkException as error:
            first = str(error).partition("\n")[0]
            unread.append(f"{what}: Spark cannot read it: {first}")
    return tuple(found), tuple(unread)


def _state(spark: SparkSession, planned: PlannedQuery, operator: int, store: str) -> RehearsedState:
    from pyspark.sql import functions as sf

    reader = spark.read.format("statestore").option("batchId", planned.last).option("operatorId", operator)
    if store != "default":
        reader = reader.option("storeName", store)
    rows = reader.load(f"file:{planned.location}")
    text = rows.select(sf.to_json(sf.struct("key", "value"), _WRITTEN).alias("value"))
    return RehearsedState(operator, store, *_figures(text))

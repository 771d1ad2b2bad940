"""Runs the code of a job over batches that were run before, in a task of its own: for ``job upgrade --shadow``.

The task's job file is `SCRIPT`, made by `runtime.cluster.job_shadow`. It replaces the start of streaming queries in
PySpark, in this process only, and then runs the code of the job. The start of a query runs all of its planned batches:

1. The offsets of the next batch are put into a private copy of the query's checkpointLocation.
2. The query is started there with a trigger that ends after one batch. Spark runs a planned batch that is not
   committed with the input that its offsets name.
3. The rows of the batch are written to a private directory in place of the query's sink.

After the last query the code is ended. What it does besides starting queries has its usual effects.
"""

from __future__ import annotations

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
    removes_files,
)
from runtime.checkpoint.snapshot import describe_query
from runtime.protocol.query_snapshot import NOTHING_COMMITTED, QueryLocation
from runtime.spark.task.streaming import LOCATION, RECORDED, record_calls, settings_of, take_given

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCRIPT = """\
# Made by `understudy job upgrade --shadow`: runs the job's code without the sinks of its queries.
exec(__import__("understudy.runtime.spark.task.rehearsal", fromlist=["begin"]).begin({plan!r}, __file__), globals())
"""
"""The job file of a rehearsal. A release that cannot rehearse has no such module, so it runs nothing of the job."""

_READS = ("load", "json", "orc", "parquet", "text", "csv", "xml")
_WRITTEN = {
    "ignoreNullFields": "false",
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""Options of rows as JSON texts, so that the settings of a version's session do not change them."""
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
    from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

    plan = decode_plan(Path(plan_file).read_bytes())
    Rehearsal(plan).install(DataStreamReader, DataStreamWriter)
    return compile(Path(plan.code).read_bytes(), shown, "exec", dont_inherit=True)


class Rehearsal:
    """Runs the planned batches of queries when the code of a job starts them.

    Args:
        plan: the plan.
    """

    def __init__(self, plan: Plan) -> None:
        self._planned = {query.name: query for query in plan.queries}
        self._blue = {query.name: query for query in plan.blue}
        self._names: dict[str, str] = {}
        self._unnamed = 0
        self._done: dict[str, Any] = {}

    def install(self, reader: Any, writer: Any) -> None:
        """Install it in PySpark's classes, whose calls `runtime.spark.task.streaming` records."""
        self._start: Callable[[Any], Any] = inspect.unwrap(writer.start)
        self._writer = writer
        for method in ("option", "options"):
            record_calls(reader, method, RECORDED[method])
        for method in _READS:
            _keep_files(reader, method)
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
        diverted = self._diverted(frame, settings, planned)
        known = self._result_of_blue(planned.name)
        if not planned.batches:
            return self._run_idle(diverted), RehearsedQuery(planned.name, frame.schema.simpleString(), ())
        query, batches = None, []
        for batch_id in planned.batches:
            query, duration_ms = self._run_batch(diverted, planned, batch_id)
            text = _rows(frame.sparkSession, planned, batch_id)
            count, digest = _figures(text)
            batch = RehearsedBatch(batch_id, count, digest, duration_ms)
            if known is not None:
                batch = self._compared(batch, text, known)
            batches.append(batch)
        state, unread = _state_of(frame.sparkSession, planned)
        return query, RehearsedQuery(planned.name, frame.schema.simpleString(), tuple(batches), state, unread)

    def _diverted(self, frame: Any, settings: dict[str, str], planned: PlannedQuery) -> Any:
        """Return a writer of the same rows, which records them. It has nothing else of the real sink."""
        from pyspark.sql import functions as sf

        make_private(Path(planned.rows))

        def record(rows: DataFrame, batch_id: int) -> None:
            text = rows.select(sf.to_json(sf.struct("*"), _WRITTEN).alias("value"))
            text.write.mode("overwrite").text(f"file:{planned.rows}/{batch_id}")

        writer = self._writer(frame).foreachBatch(record).trigger(once=True)
        if "outputmode" in settings:
            writer = writer.outputMode(settings["outputmode"])
        return writer.option("checkpointLocation", f"file:{planned.location}")

    def _run_batch(self, writer: Any, planned: PlannedQuery, batch_id: int) -> tuple[Any, int | None]:
        """Run one batch; return the query, which has ended, and the duration in milliseconds."""
        location = Path(planned.location)
        shutil.copyfile(Path(planned.offsets) / str(batch_id), location / "offsets" / str(batch_id))
        query = self._start(writer)
        query.awaitTermination()
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


def _keep_files(reader: Any, method: str) -> None:
    """Let sources not remove the files that they have read: the running job reads them, too."""
    original = getattr(reader, method)

    def read(self: Any, *arguments: Any, **keywords: Any) -> Any:
        if removes_files({**settings_of(self), **keywords}):
            raise CheckpointError("a source has the option cleanSource, which removes the input of its batches")
        return original(self, *arguments, **keywords)

    setattr(reader, method, read)


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

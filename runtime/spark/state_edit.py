"""Changes the state in a savepoint by a function over DataFrames.

    from understudy import edit_savepoint

    def edit(state, part):
        return state.where("key.k <> 'a closed account'")

    edit_savepoint("/savepoints/savepoint-0123ab-...", edit, "/savepoints/edited")

The original is not changed, and the result appears under its name only when it is whole and verified. For each query:

1. The state is restored into a work directory beside the result. The function gets each part of it (`StatePart`) as a
   DataFrame with the columns ``key``, ``value`` and ``partition_id``, and what it returns is stored.
2. Rows are encoded as Spark's stores hold them (`runtime.spark.state_encoding`). This is done with the old rows first:
   unless each byte of the old state comes out the same, the edit is refused.
3. Spark writes the state as a batch of its own (`StateWriter`), as in a rescale.
4. The new state is restored once more and read in both forms. The encoded rows of all stores must be those that were
   written, each in the partition that the hash of its key names. The decoded rows must be those that the function gave.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conf.files import make_private
from runtime.checkpoint.edit import (
    EditPlan,
    PartKind,
    StatePart,
    expected,
    is_void,
    named_schema,
    partition_paths,
    plan_edit,
)
from runtime.checkpoint.errors import SavepointError
from runtime.checkpoint.manifest import EditedFrom, Savepoint, SavepointQuery
from runtime.checkpoint.metadata_log import DEFAULT_COMPACT_INTERVAL
from runtime.checkpoint.rescale import (
    FamilyState,
    differences,
    finish_batch,
    partitions_of,
    refuse,
    settings_of,
)
from runtime.checkpoint.restore import restore_snapshot
from runtime.checkpoint.savepoint import write_savepoint
from runtime.checkpoint.state_rows import InvalidRowError
from runtime.checkpoint.work_directory import work_directory
from runtime.protocol.query_snapshot import QuerySnapshot
from runtime.spark.connect_session import connect_session
from runtime.spark.driver.local import LocalDriver
from runtime.spark.driver.state_writer import ENCODED, NewFamily, StatePlace
from runtime.spark.edit_function import Edit, call_function, result_problem, wrong_sessions
from runtime.spark.errors import DriverCallError
from runtime.spark.rescale import SparkStateReader, run_with_driver
from runtime.spark.state_encoding import encode_files
from runtime.spark.state_reader import read_once

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SETTINGS = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
}
_SAME_TYPES = "return a DataFrame with the columns key and value of the types that `understudy savepoint info` shows"
_SESSIONS_APART = "merge the sessions of a key that overlap or meet"
Write = Callable[..., None]
"""Writes state; see `DriverGateway.write_state`."""
_DIGEST = "CAST(coalesce(sum(CAST(xxhash64({}) AS DECIMAL(38, 0))), 0) AS STRING)"


def edit_savepoint(
    path: str | Path,
    function: Edit,
    to: str | Path,
    *,
    query: str | None = None,
    operator: int | None = None,
    variable: str | None = None,
    java_home: str | None = None,
    compact_interval: int = DEFAULT_COMPACT_INTERVAL,
) -> Savepoint:
    """Write a savepoint with the state that a function makes of the state of another one.

    Starts a Spark for it, which ends with this call.

    Args:
        path: of the savepoint, which is verified first, and not changed.
        function: called with each part of the state: a DataFrame with ``key``, ``value`` and ``partition_id``, and a
            `StatePart` that names it. Returns the DataFrame of the new state, with ``key`` and ``value`` of the same
            types; the same DataFrame for no change. `PartKind` says what key and value are.
        to: directory of the result, which must not exist; it appears when it is whole and verified.
        query: name of the only query to edit. Default: all with state.
        operator: id of the only operator to edit. Default: all.
        variable: name of the only state variable of a transformWithState to edit. Default: all.
        java_home: the Java to use, None to find one.
        compact_interval: ``spark.sql.streaming.fileSink.log.compactInterval`` of the job's sessions.

    Raises:
        SavepointError: a part cannot be edited, the function fails or returns something else, or the new state is not
            what it returned.
        SnapshotError: the state cannot be copied.
        SparkError: Spark cannot be started, or fails.
    """
    plan = plan_edit(Path(path), Path(to), query, operator, variable)
    return edit(plan, function, java_home, compact_interval)


def edit(
    plan: EditPlan,
    function: Edit,
    java_home: str | None = None,
    compact_interval: int = DEFAULT_COMPACT_INTERVAL,
) -> Savepoint:
    """Run an edit that was planned; otherwise as `edit_savepoint`."""
    return run_with_driver(lambda driver: edit_with(driver, plan, function, compact_interval), java_home)


async def edit_with(
    driver: LocalDriver, plan: EditPlan, function: Edit, compact_interval: int = DEFAULT_COMPACT_INTERVAL
) -> Savepoint:
    """Run an edit in a running driver; otherwise as `edit`."""
    return await with_writer(driver, lambda spark, write: _run(plan, function, spark, write, compact_interval))


async def with_writer(driver: LocalDriver, run: Callable[[SparkSession, Write], Savepoint]) -> Savepoint:
    """Run a function in a thread, with a session of a running driver, and with what writes state in it."""
    loop = asyncio.get_running_loop()
    endpoint = await driver.open_session(isolated=False)

    def write(
        location: Path,
        batch: int,
        partitions: int,
        settings: Mapping[str, str],
        families: Sequence[NewFamily],
        former: StatePlace | None = None,
    ) -> None:
        call = driver.write_state(location, batch, partitions, settings, families, former)
        asyncio.run_coroutine_threadsafe(call, loop).result()

    def work() -> Savepoint:
        with connect_session(endpoint.url, driver) as spark:
            for name, value in _SETTINGS.items():
                spark.conf.set(name, value)
            return run(spark, write)

    return await asyncio.to_thread(work)


def _run(plan: EditPlan, function: Edit, spark: SparkSession, write: Write, interval: int) -> Savepoint:
    old, target = plan.savepoint, plan.target
    with work_directory(target, "edit", f"{old.path} cannot be edited into {target}") as work:
        editors = [
            _QueryEditor(spark, one, plan.of_query(one.snapshot.name), work / str(number), write)
            for number, one in enumerate(old.queries)
        ]
        edited = [editor for editor in editors if editor.take(function)]
        if not edited:
            raise SavepointError("the function changes nothing: it returned each DataFrame as it was", "change it")
        snapshots = [editor.finish(interval) if editor in edited else editor.query.snapshot for editor in editors]
        names = tuple(editor.query.snapshot.name for editor in edited)
        origin = EditedFrom(old.path, old.created_ms, names)
        return write_savepoint(target.parent, old.job, snapshots, name=target.name, work=work, edited=origin)


@dataclass(frozen=True, slots=True)
class NewPart:
    """New rows of a part: decoded and encoded, as Parquet."""

    part: StatePart
    decoded: Path
    encoded: Encoded


Encoded = Sequence[tuple[NewFamily, FamilyState]]
"""Encoded rows of a part: its own family, then the one that has the number of each key's values, if there is one."""


class SavedState:
    """The state of a committed batch in a checkpointLocation, as Spark reads it.

    Args:
        spark: a session, used by this edit alone: its settings change.
        query: gives the operators, the number of partitions and the settings under which the state was written.
        location: the checkpointLocation.
        batch_id: the batch.
    """

    def __init__(self, spark: SparkSession, query: SavepointQuery, location: Path, batch_id: int) -> None:
        self._spark = spark
        self._query = query
        self._location = location
        self._batch_id = batch_id

    def families(self) -> list[FamilyState]:
        """Return what all stores hold; see `SparkStateReader.read`."""
        reader = SparkStateReader(self._spark)
        operators, settings = self._query.description.operators, settings_of(self._query)
        return reader.read(self._location, self._batch_id, partitions_of(self._query), operators, settings)

    def decoded(self, part: StatePart) -> DataFrame:
        """Return keys and values of a part; fields that have the same name are numbered."""
        from pyspark.sql import functions as sf

        rows = self._reader(part.operator, part.store)
        if part.kind is PartKind.JOIN:
            return self._decoded_side(part)
        if part.variable is not None:
            rows = rows.option("stateVarName", part.variable)
        if part.kind is PartKind.LIST:
            rows = rows.option("flattenCollectionTypes", "false")
        key, value = sf.col("key"), sf.col("value")
        if part.kind is PartKind.LIST:
            value = sf.col("list_value")
        if part.kind is PartKind.MAP:
            key, value = sf.struct(key, sf.col("user_map_key")), sf.col("user_map_value")
        columns = [
            column.cast(spark_type(kind)).alias(name)
            for name, column, kind in (("key", key, part.key_type), ("value", value, part.value_type))
        ]
        found: DataFrame = rows.load(f"file:{self._location}").select(*columns, "partition_id")
        return found

    def _decoded_side(self, part: StatePart) -> DataFrame:
        """Return the keys of a join's side, each with its rows in the order of their index."""
        from pyspark.sql import functions as sf

        name = part.store if part.store != "default" else part.family.name
        rows = self._reader(part.operator, part.store).option("storeName", name).load(f"file:{self._location}")
        *key, index = named_schema(part.family.key)["fields"]
        rows = rows.select(
            sf.col("key").cast(spark_type(named_schema(part.family.key))).alias("key"),
            sf.col("value").cast(spark_type(named_schema(part.family.value))).alias("value"),
            "partition_id",
        )
        named = sf.struct(*(sf.col("key").getField(one["name"]).alias(one["name"]) for one in key))
        indexed = sf.struct(sf.col("key").getField(index["name"]).alias("index"), sf.col("value"))
        found = rows.groupBy(named.alias("key")).agg(
            sf.sort_array(sf.collect_list(indexed)).getField("value").alias("value"),
            sf.min("partition_id").alias("partition_id"),
        )
        value = sf.col("value").cast(spark_type(part.value_type)).alias("value")
        sides: DataFrame = found.select("key", value, "partition_id")
        return sides

    def encoded(self, operator: int, store: str) -> DataFrame:
        """Return all rows of a store in their encoded form, with what is hashed for the partition."""
        rows: DataFrame = (
            self._reader(operator, store).option("_readAllColumnFamilies", "true").load(f"file:{self._location}")
        )
        return rows

    def partition_paths(self, part: StatePart) -> list[tuple[int, ...]]:
        """Return where the fields of the key are that decide the partition.

        Raises:
            SavepointError: they are not known.
        """
        hashed = self.encoded(part.operator, part.store).schema["partition_key"].dataType.json()
        found = partition_paths(part, hashed)
        if found is None:
            raise SavepointError(f"{part} cannot be edited: the partition of a key is not known from its fields")
        return found

    def _reader(self, operator: int, store: str) -> Any:
        reader = self._spark.read.format("statestore").option("batchId", self._batch_id).option("operatorId", operator)
        return reader if store == "default" else reader.option("storeName", store)


class _QueryEditor:
    """Edits the state of one query.

    Args:
        spark: a session, used by this edit alone: its settings change.
        query: the query.
        parts: of its state that the function gets.
        work: a directory for its files.
        write: writes the state; see `DriverGateway.write_state`.
    """

    def __init__(
        self,
        spark: SparkSession,
        query: SavepointQuery,
        parts: Sequence[StatePart],
        work: Path,
        write: Write,
    ) -> None:
        self._spark = spark
        self.query = query
        self._parts = parts
        self._work = work
        self._write = write
        self._clone = work / "location"
        self._state = SavedState(spark, query, self._clone, query.snapshot.batch_id)
        self._new: list[NewPart] = []
        self._before: list[FamilyState] = []

    def take(self, function: Edit) -> bool:
        """Call the function with each part, and store and encode what it returns; return whether a part is changed.

        Raises:
            SavepointError: the function fails, or its result cannot be the state.
        """
        if not self._parts:
            return False
        restore_snapshot(self.query.snapshot, self._clone, None)
        self._before = self._state.families()
        for number, part in enumerate(self._parts):
            state = read_once(self._state.decoded(part))
            result = call_function(function, state, part)
            if result is not state:
                directory = self._work / f"part-{number}"
                make_private(directory)
                hashed = self._state.partition_paths(part)
                check_encoding(self._spark, part, hashed, state, self._before, directory)
                self._new.append(take_result(self._spark, part, hashed, result, directory))
        return bool(self._new)

    def finish(self, interval: int) -> QuerySnapshot:
        """Write the new state, verify it, and return a snapshot of it.

        Args:
            interval: `COMPACT_INTERVAL`, as far as it is known.

        Raises:
            SavepointError: the new state is not what the function returned.
            SnapshotError: it is not whole.
            SparkError: Spark cannot write it.
        """
        old, settings = self.query.snapshot, settings_of(self.query)
        families = [family for one in self._new for family, _ in one.encoded]
        self._write(self._clone, old.batch_id, partitions_of(self.query), settings, families)
        taken = finish_batch(old, self._clone, self._work, interval)
        after = SavedState(self._spark, self.query, self._work / "verified", taken.batch_id)
        wanted = expected(self._before, [state for one in self._new for _, state in one.encoded])
        check_written(self._spark, old.name, wanted, self._new, after)
        return replace(taken, location=old.location, sink=old.sink, is_proven=False)


def check_written(
    spark: SparkSession, query: str, wanted: Sequence[FamilyState], parts: Sequence[NewPart], after: SavedState
) -> None:
    """Raise `SavepointError` unless Spark reads from new state what was written.

    Args:
        spark: the session.
        query: name of the query.
        wanted: the encoded rows of all stores.
        parts: the decoded rows that the function returned.
        after: the state, restored as a job will do it.
    """
    wrong = differences(wanted, after.families())
    for one in parts:
        if _digest(after.decoded(one.part), one.part) != _digest(spark.read.parquet(f"file:{one.decoded}"), one.part):
            wrong.append(f"{one.part}: Spark reads other keys or values than the function returned")
    refuse(wrong, f"the edited state of query {query!r} is not what it should be", "report this")


def take_result(
    spark: SparkSession, part: StatePart, hashed: Sequence[tuple[int, ...]], result: DataFrame, directory: Path
) -> NewPart:
    """Store and encode the rows that a function returned.

    Args:
        spark: the session.
        part: of the new state.
        hashed: where the fields of the key are that decide the partition.
        result: what the function returned.
        directory: for the files; it exists.

    Raises:
        SavepointError: it cannot be the state of the part.
    """
    problem = result_problem(part, result)
    if problem:
        raise SavepointError(f"{part}: what the function returned cannot be the state: {problem}", _SAME_TYPES)
    decoded, encoded = directory / "decoded", directory / "encoded"
    try:
        found = _encode(spark, part, hashed, result, decoded, encoded)
    except InvalidRowError as error:
        raise SavepointError(f"{part}: what the function returned cannot be the state: {error}") from error
    if part.kind is PartKind.SESSIONS:
        wrong = wrong_sessions(spark.read.parquet(f"file:{decoded}"), part)
        refuse([wrong] if wrong else [], f"{part}: what the function returned cannot be the state", _SESSIONS_APART)
    keys = spark.read.parquet(f"file:{found[-1][0].directory}").groupBy("key_bytes").count()
    if twice := keys.where("count > 1").count():
        raise SavepointError(
            f"{part}: the function returned {twice} keys more than once", "return each key at most once"
        )
    return NewPart(part, decoded, found)


def check_encoding(
    spark: SparkSession,
    part: StatePart,
    hashed: Sequence[tuple[int, ...]],
    state: DataFrame,
    before: Sequence[FamilyState],
    directory: Path,
) -> None:
    """Raise `SavepointError` unless each byte and each place of the present state is known.

    Args:
        spark: the session.
        part: of the present state.
        hashed: where the fields of the key are that decide the partition.
        state: the rows of the part.
        before: the encoded rows of all stores.
        directory: for the files; it exists.
    """
    try:
        encoded = _encode(spark, part, hashed, state, directory / "before", directory / "before-encoded")
    except InvalidRowError as error:
        wrong = [str(error)]
    else:
        found = [one for _, one in encoded]
        present = [one for one in before if _family_of(one) in map(_family_of, found)]
        wrong = differences(present, found)
        misplaced = [one.misplaced for one in present if one.misplaced]
        wrong += [f"{count} rows are in another partition than Spark's hash names" for count in misplaced]
    if wrong:
        raise SavepointError(
            f"{part} cannot be edited: Understudy does not encode its present rows as Spark has ({wrong[0]})",
            "nothing was written; edit only other parts, by --operator or --variable, and report this",
        )


def _encode(
    spark: SparkSession,
    part: StatePart,
    hashed: Sequence[tuple[int, ...]],
    rows: DataFrame,
    decoded: Path,
    encoded: Path,
) -> Encoded:
    """Store rows as Parquet, decoded and encoded; return the encoded ones.

    Raises:
        InvalidRowError: a row is not of the schemas.
    """
    from pyspark.errors import PySparkException

    try:
        _storable(rows, part).write.parquet(f"file:{decoded}")
    except PySparkException as error:
        first = str(error).partition("\n")[0]
        raise SavepointError(f"{part}: the DataFrame of the function fails: {first}", "mend the function") from error
    places = [(part.store, part.family, encoded)]
    if part.counter is not None:
        places.append((part.counter.store, part.counter.family, encoded.with_name(f"{encoded.name}-counts")))
    targets = [directory / "rows.parquet" for _, _, directory in places]
    for target in targets:
        target.parent.mkdir(mode=0o700)
    encode_files(part, hashed, sorted(decoded.glob("*.parquet")), *targets)
    found = []
    for store, family, directory in places:
        state = stored_rows(spark, part.operator, store, family.name, directory)
        found.append((NewFamily(part.operator, store, family.name, directory, len(hashed)), state))
    return found


def stored_rows(spark: SparkSession, operator: int, store: str, family: str, directory: Path) -> FamilyState:
    """Return the number and the checksum of encoded rows in Parquet files."""
    rows = spark.read.parquet(f"file:{directory}")
    return FamilyState(operator, store, family, *_count_and_digest(rows, ", ".join(ENCODED)))


def _family_of(state: FamilyState) -> tuple[int, str, str]:
    return state.operator, state.store, state.family


def _storable(rows: DataFrame, part: StatePart) -> DataFrame:
    """Return the columns of a part that Parquet can hold: all but those that are always null."""
    from pyspark.sql import functions as sf

    fields = part.value_type.get("fields", [])
    kept = [field["name"] for field in fields if not is_void(field)]
    if len(kept) == len(fields):
        return rows.select("key", "value")
    value = sf.struct(*(sf.col("value").getField(name).alias(name) for name in kept))
    known = sf.when(sf.col("value").isNotNull(), value).alias("value")  # a null stays one, and is refused
    return rows.select("key", *([known] if kept else []))


def spark_type(kind: dict[str, Any]) -> Any:
    """Return a type of PySpark, a struct or an array, of its form in JSON."""
    from pyspark.sql.types import ArrayType, StructType

    return ArrayType.fromJson(kind) if kind["type"] == "array" else StructType.fromJson(kind)


def _digest(rows: DataFrame, part: StatePart) -> tuple[int, int]:
    """Return the number of decoded rows and a checksum."""
    stored = _storable(rows, part)
    return _count_and_digest(stored, ", ".join(stored.columns))


def _count_and_digest(rows: DataFrame, columns: str) -> tuple[int, int]:
    from pyspark.errors import PySparkException

    try:
        [row] = rows.selectExpr("count(*) AS count", f"{_DIGEST.format(columns)} AS digest").collect()
    except PySparkException as error:
        raise DriverCallError(f"Spark cannot read the rows again: {str(error).partition(chr(10))[0]}") from error
    return int(row["count"]), int(row["digest"])

"""Changes the state in a savepoint by a function over DataFrames.

    from understudy import edit_savepoint

    def edit(state, part):
        return state.where("key.k <> 'a closed account'")

    edit_savepoint("/savepoints/savepoint-0123ab-...", edit, "/savepoints/edited")

The original is not changed, and the result appears under its name only when it is whole and verified. For each query:

1. The state is restored into a work directory beside the result. The function gets each part of it (`StatePart`) as a
   DataFrame with the columns ``key``, ``value`` and ``partition_id``, and what it returns is stored.
2. Rows are encoded as Spark's stores hold them (`runtime.checkpoint.state_rows`). This is done with the old rows first:
   unless each byte of the old state comes out the same, the edit is refused.
3. Spark writes the state as a batch of its own (`StateWriter`), as in a rescale.
4. The new state is restored once more and read in both forms. The encoded rows of all stores must be those that were
   written, each in the partition that the hash of its key names. The decoded rows must be those that the function gave.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from conf.files import make_private, remove_tree
from runtime.checkpoint.edit import (
    EditPlan,
    PartKind,
    StatePart,
    expected,
    is_void,
    named_schema,
    partition_paths,
    plan_edit,
    schema_problem,
    session_field,
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
from runtime.checkpoint.state_rows import InvalidRowError, RowEncoder
from runtime.protocol.query_snapshot import QuerySnapshot
from runtime.spark.connect_session import CONNECT_MODE, connect_session
from runtime.spark.driver.local import LocalDriver
from runtime.spark.driver.state_writer import ENCODED, POSITION, NewFamily, partition_column
from runtime.spark.errors import DriverCallError
from runtime.spark.rescale import SparkStateReader, run_with_driver
from runtime.spark.state_reader import read_once

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Edit = Callable[["DataFrame", StatePart], "DataFrame"]
"""Returns what shall be the state of a part; the same DataFrame leaves the part as it is."""

_NAME = "edit"
_SETTINGS = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
}
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


def load_function(path: Path) -> Edit:
    """Return the function ``edit`` of a user's file, which is run for it; for a process that does nothing else.

    Raises:
        SavepointError: the file cannot be read, fails, or has no such function.
    """
    import pyspark.cloudpickle

    remedy = f"it has to define `def {_NAME}(state, part)`, which returns a DataFrame"
    name = f"understudy_{_NAME}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise SavepointError(f"{path} is no file of Python", remedy)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    os.environ[CONNECT_MODE] = "1"  # or functions that the file makes at once do not fit the DataFrames
    try:
        spec.loader.exec_module(module)
    except OSError as error:
        raise SavepointError(f"{path} cannot be read: {error.strerror}", remedy) from error
    except (Exception, SystemExit) as error:  # else `sys.exit()` would end the command with 0, without a result
        raise SavepointError(f"{path} fails{_place(error, path)}: {type(error).__name__}: {error}", remedy) from error
    register: Any = pyspark.cloudpickle.register_pickle_by_value
    register(module)  # Spark's Python workers cannot import the file
    function = getattr(module, _NAME, None)
    if not callable(function):
        raise SavepointError(f"{path} has no function {_NAME}", remedy)
    found: Edit = function
    return found


def _place(error: BaseException, path: Path) -> str:
    """Return the last line of a user's file in the traceback of an error."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path]
    return f" in line {lines[-1]}" if lines else ""


async def edit_with(
    driver: LocalDriver, plan: EditPlan, function: Edit, compact_interval: int = DEFAULT_COMPACT_INTERVAL
) -> Savepoint:
    """Run an edit in a running driver; otherwise as `edit`."""
    loop = asyncio.get_running_loop()
    endpoint = await driver.open_session(isolated=False)

    def write(
        location: Path, batch: int, partitions: int, settings: Mapping[str, str], families: Sequence[NewFamily]
    ) -> None:
        call = driver.write_state(location, batch, partitions, settings, families)
        asyncio.run_coroutine_threadsafe(call, loop).result()

    def run() -> Savepoint:
        with connect_session(endpoint.url, driver) as spark:
            for name, value in _SETTINGS.items():
                spark.conf.set(name, value)
            return _run(plan, function, spark, write, compact_interval)

    return await asyncio.to_thread(run)


def _run(plan: EditPlan, function: Edit, spark: SparkSession, write: Callable[..., None], interval: int) -> Savepoint:
    old, target = plan.savepoint, plan.target
    work = None
    try:
        make_private(target.parent, durable=True)
        work = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".edit", dir=target.parent))
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
        return write_savepoint(target.parent, old.job, snapshots, name=target.name, edited=origin)
    except OSError as error:
        raise SavepointError(f"{old.path} cannot be edited into {target}: {error}") from error
    finally:
        if work is not None:
            remove_tree(work)


@dataclass(frozen=True, slots=True)
class _NewPart:
    """New rows of a part: decoded and encoded, as Parquet."""

    part: StatePart
    decoded: Path
    encoded: Encoded


Encoded = Sequence[tuple[NewFamily, FamilyState]]
"""Encoded rows of a part: its own family, then the one that has the number of each key's values, if there is one."""


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
        write: Callable[..., None],
    ) -> None:
        self._spark = spark
        self.query = query
        self._parts = parts
        self._work = work
        self._write = write
        self._clone = work / "location"
        self._new: list[_NewPart] = []
        self._before: list[FamilyState] = []

    def take(self, function: Edit) -> bool:
        """Call the function with each part, and store and encode what it returns; return whether a part is changed.

        Raises:
            SavepointError: the function fails, or its result cannot be the state.
        """
        if not self._parts:
            return False
        snapshot = self.query.snapshot
        restore_snapshot(snapshot, self._clone, None)
        self._before = self._read(self._clone, snapshot.batch_id)
        for number, part in enumerate(self._parts):
            state = read_once(self._decoded(self._clone, snapshot.batch_id, part))
            result = _result(function, state, part)
            if result is not state:
                self._new.append(self._take(part, state, result, self._work / f"part-{number}"))
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
        verified = self._work / "verified"
        after = self._read(verified, taken.batch_id)
        wrong = differences(expected(self._before, [state for one in self._new for _, state in one.encoded]), after)
        for one in self._new:
            decoded = self._decoded(verified, taken.batch_id, one.part)
            if _digest(decoded, one.part) != _digest(self._spark.read.parquet(f"file:{one.decoded}"), one.part):
                wrong.append(f"{one.part}: Spark reads other keys or values than the function returned")
        refuse(wrong, f"the edited state of query {old.name!r} is not what it should be", "report this")
        return replace(taken, location=old.location, sink=old.sink, is_proven=False)

    def _read(self, location: Path, batch_id: int) -> list[FamilyState]:
        reader = SparkStateReader(self._spark)
        operators, settings = self.query.description.operators, settings_of(self.query)
        return reader.read(location, batch_id, partitions_of(self.query), operators, settings)

    def _decoded(self, location: Path, batch_id: int, part: StatePart) -> DataFrame:
        """Return keys and values of a part; fields that have the same name are numbered."""
        from pyspark.sql import functions as sf

        rows = self._reader(batch_id, part)
        if part.kind is PartKind.JOIN:
            return self._decoded_side(location, batch_id, part)
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
            column.cast(_spark_type(kind)).alias(name)
            for name, column, kind in (("key", key, part.key_type), ("value", value, part.value_type))
        ]
        found: DataFrame = rows.load(f"file:{location}").select(*columns, "partition_id")
        return found

    def _decoded_side(self, location: Path, batch_id: int, part: StatePart) -> DataFrame:
        """Return the keys of a join's side, each with its rows in the order of their index."""
        from pyspark.sql import functions as sf

        name = part.store if part.store != "default" else part.family.name
        rows = self._reader(batch_id, part).option("storeName", name).load(f"file:{location}")
        *key, index = named_schema(part.family.key)["fields"]
        rows = rows.select(
            sf.col("key").cast(_spark_type(named_schema(part.family.key))).alias("key"),
            sf.col("value").cast(_spark_type(named_schema(part.family.value))).alias("value"),
            "partition_id",
        )
        named = sf.struct(*(sf.col("key").getField(one["name"]).alias(one["name"]) for one in key))
        indexed = sf.struct(sf.col("key").getField(index["name"]).alias("index"), sf.col("value"))
        found = rows.groupBy(named.alias("key")).agg(
            sf.sort_array(sf.collect_list(indexed)).getField("value").alias("value"),
            sf.min("partition_id").alias("partition_id"),
        )
        value = sf.col("value").cast(_spark_type(part.value_type)).alias("value")
        sides: DataFrame = found.select("key", value, "partition_id")
        return sides

    def _reader(self, batch_id: int, part: StatePart) -> Any:
        reader = self._spark.read.format("statestore").option("batchId", batch_id).option("operatorId", part.operator)
        return reader if part.store == "default" else reader.option("storeName", part.store)

    def _take(self, part: StatePart, state: DataFrame, result: DataFrame, directory: Path) -> _NewPart:
        make_private(directory)
        self._encode_present(part, state, directory)
        problem = _problem(part, result)
        if problem:
            raise SavepointError(f"{part}: what the function returned cannot be the state: {problem}", _SAME_TYPES)
        decoded, encoded = directory / "decoded", directory / "encoded"
        try:
            found = self._encode(part, result, decoded, encoded)
        except InvalidRowError as error:
            raise SavepointError(f"{part}: what the function returned cannot be the state: {error}") from error
        if part.kind is PartKind.SESSIONS:
            wrong = _wrong_sessions(self._spark.read.parquet(f"file:{decoded}"), part)
            refuse([wrong] if wrong else [], f"{part}: what the function returned cannot be the state", _SESSIONS_APART)
        keys = self._spark.read.parquet(f"file:{found[-1][0].directory}").groupBy("key_bytes").count()
        if twice := keys.where("count > 1").count():
            raise SavepointError(
                f"{part}: the function returned {twice} keys more than once", "return each key at most once"
            )
        return _NewPart(part, decoded, found)

    def _encode_present(self, part: StatePart, state: DataFrame, directory: Path) -> None:
        """Raise `SavepointError` unless each byte and each place of the present state is known."""
        try:
            found = [one for _, one in self._encode(part, state, directory / "before", directory / "before-encoded")]
        except InvalidRowError as error:
            wrong = [str(error)]
        else:
            present = [one for one in self._before if _family_of(one) in map(_family_of, found)]
            wrong = differences(present, found)
            misplaced = [one.misplaced for one in present if one.misplaced]
            wrong += [f"{count} rows are in another partition than Spark's hash names" for count in misplaced]
        if wrong:
            raise SavepointError(
                f"{part} cannot be edited: Understudy does not encode its present rows as Spark has ({wrong[0]})",
                "nothing was written; edit only other parts, by --operator or --variable, and report this",
            )

    def _encode(self, part: StatePart, rows: DataFrame, decoded: Path, encoded: Path) -> Encoded:
        """Store rows as Parquet, decoded and encoded; return the encoded ones.

        Raises:
            InvalidRowError: a row is not of the schemas.
        """
        from pyspark.errors import PySparkException

        hashed = self._partition_paths(part)
        try:
            _storable(rows, part).write.parquet(f"file:{decoded}")
        except PySparkException as error:
            first = str(error).partition("\n")[0]
            raise SavepointError(
                f"{part}: the DataFrame of the function fails: {first}", "mend the function"
            ) from error
        places = [(part.store, part.family, encoded)]
        if part.counter is not None:
            places.append((part.counter.store, part.counter.family, encoded.with_name(f"{encoded.name}-counts")))
        targets = [directory / "rows.parquet" for _, _, directory in places]
        for target in targets:
            target.parent.mkdir(mode=0o700)
        encode_files(part, hashed, sorted(decoded.glob("*.parquet")), *targets)
        found = []
        for store, family, directory in places:
            stored = self._spark.read.parquet(f"file:{directory}")
            state = FamilyState(part.operator, store, family.name, *_count_and_digest(stored, ", ".join(ENCODED)))
            found.append((NewFamily(part.operator, store, family.name, directory, len(hashed)), state))
        return found

    def _partition_paths(self, part: StatePart) -> list[tuple[int, ...]]:
        """Return where the fields of the key are that decide the partition."""
        rows = self._reader(self.query.snapshot.batch_id, part).option("_readAllColumnFamilies", "true")
        hashed = rows.load(f"file:{self._clone}").schema["partition_key"].dataType.json()
        found = partition_paths(part, hashed)
        if found is None:
            raise SavepointError(f"{part} cannot be edited: the partition of a key is not known from its fields")
        return found


_SAME_TYPES = "return a DataFrame with the columns key and value of the types that `understudy savepoint info` shows"

_SESSIONS_APART = "merge the sessions of a key that overlap or meet"


def _wrong_sessions(rows: DataFrame, part: StatePart) -> str:
    """Return what is wrong with the times of session windows; empty if nothing is.

    Spark merges sessions of a key that overlap or meet when it gets rows, and finds none of them in its state before.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as sf

    position = session_field(part.family)
    assert position is not None  # `parts_of` has refused it
    *group, _ = (field["name"] for field in named_schema(part.family.key)["fields"])
    window = sf.col("value").getField(named_schema(part.family.value)["fields"][position]["name"])
    names = [f"group_{number}" for number in range(len(group))]
    times = rows.select(
        *(sf.col("key").getField(name).alias(alias) for name, alias in zip(group, names, strict=True)),
        window.getField("start").alias("start"),
        window.getField("end").alias("end"),
    )
    if empty := times.where("end IS NULL OR end <= start").count():
        return f"{empty} sessions end before they start"
    following = sf.lead("start").over(Window.partitionBy(*names).orderBy("start"))
    met = times.withColumn("following", following).where("following <= end").count()
    return f"{met} sessions overlap or meet the next one of their key" if met else ""


def _family_of(state: FamilyState) -> tuple[int, str, str]:
    return state.operator, state.store, state.family


def _result(function: Edit, state: DataFrame, part: StatePart) -> DataFrame:
    """Call the user's function."""
    from pyspark.sql import DataFrame

    file = Path(getattr(getattr(function, "__code__", None), "co_filename", ""))
    try:
        result = function(state, part)
    except (Exception, SystemExit) as error:
        first = str(error).partition("\n")[0]
        raise SavepointError(
            f"{part}: the function fails{_place(error, file)}: {type(error).__name__}: {first}", "mend the function"
        ) from error
    if not isinstance(result, DataFrame):
        raise SavepointError(
            f"{part}: the function returned {type(result).__name__}, and not a DataFrame",
            "return the DataFrame of the new state, or the given one to change nothing",
        )
    return result


def _problem(part: StatePart, result: DataFrame) -> str:
    """Return why a DataFrame cannot be the state of a part; empty if it can."""
    from pyspark.errors import PySparkException

    try:
        found = {field["name"]: field["type"] for field in result.schema.jsonValue()["fields"]}
    except PySparkException as error:
        return str(error).partition("\n")[0]
    for name, wanted in (("key", part.key_type), ("value", part.value_type)):
        if name not in found:
            if name == "value" and all(is_void(field) for field in wanted["fields"]):
                continue
            return f"it has no column {name}"
        if problem := schema_problem(wanted, found[name], name):
            return problem
    return ""


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


def _spark_type(kind: dict[str, Any]) -> Any:
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


def encode_files(
    part: StatePart,
    hashed: Sequence[Sequence[int]],
    sources: Sequence[Path],
    target: Path,
    counts: Path | None = None,
) -> None:
    """Encode the rows of Parquet files into another one, batch by batch.

    Args:
        part: with the schemas.
        hashed: where the key's fields are that decide the partition (`partition_paths`); columns of the result.
        sources: with the columns ``key`` and ``value``; fields that are always null are not in ``value``.
        target: the result.
        counts: the number of values of each key, for a part that has a counter.

    Raises:
        InvalidRowError: a row is not of the schemas.
    """
    import pyarrow
    import pyarrow.parquet

    encoder = _PartEncoder(part)
    with contextlib.ExitStack() as files:
        rows = files.enter_context(_EncodedFile(target, hashed))
        counted = None if counts is None else files.enter_context(_EncodedFile(counts, hashed))
        for source in sources:
            file = pyarrow.parquet.ParquetFile(source)
            for one in (rows, counted):
                if one is not None:  # a file without rows has the columns too
                    one.add(pyarrow.array([], file.schema_arrow.field("key").type), [], [])
            for batch in file.iter_batches(_ROWS if counted is None else _LISTS):
                key = batch.column("key")
                if key.null_count:
                    raise InvalidRowError("a key is null")
                if counted is None:
                    rows.add(key, *encoder.rows(batch))
                    continue
                positions, *encoded, numbers = encoder.lists(batch)
                rows.add(key.take(pyarrow.array(positions, pyarrow.int64())), *encoded)
                counted.add(key, *numbers)


_ROWS, _LISTS = 65536, 1024


class _EncodedFile:
    """A Parquet file of encoded rows, as `NewFamily` describes it."""

    def __init__(self, path: Path, hashed: Sequence[Sequence[int]]) -> None:
        self._path = path
        self._hashed = hashed
        self._names = [*(partition_column(number) for number in range(len(hashed))), *ENCODED, POSITION]
        self._writer: Any = None
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def add(self, keys: Any, encoded: Sequence[bytes], content: Sequence[bytes]) -> None:
        """Add rows: their decoded keys as an array of pyarrow, the encoded keys, and the encoded values."""
        import pyarrow
        import pyarrow.parquet

        positions = range(self._count, self._count + len(keys))
        self._count += len(keys)
        arrays = [_field_at(keys, path) for path in self._hashed]
        arrays += [pyarrow.array(one, pyarrow.binary()) for one in (encoded, content)]
        arrays.append(pyarrow.array(positions, pyarrow.int64()))
        batch = pyarrow.RecordBatch.from_arrays(arrays, names=self._names)
        self._writer = self._writer or pyarrow.parquet.ParquetWriter(self._path, batch.schema)
        self._writer.write_batch(batch)


class _PartEncoder:
    """Encodes the keys and values of a part."""

    def __init__(self, part: StatePart) -> None:
        self._keys, self._values = RowEncoder(part.family.key, is_key=True), RowEncoder(part.family.value)
        self._voids = [number for number, one in enumerate(named_schema(part.family.value)["fields"]) if is_void(one)]
        self._sessions = RowEncoder(part.family.key)
        self._window = session_field(part.family) if part.kind is PartKind.SESSIONS else None
        self._is_map, self._is_join = part.kind is PartKind.MAP, part.kind is PartKind.JOIN
        self._counted = RowEncoder(part.counter.family.key, is_key=True) if part.counter is not None else self._keys
        self._counts = RowEncoder(part.counter.family.value) if part.counter is not None else None

    def rows(self, batch: Any) -> tuple[list[bytes], list[bytes]]:
        """Return encoded keys and values, one of each for a row.

        Raises:
            InvalidRowError: a row is not of the schemas.
        """
        decoded = column_values(batch.column("key"))
        if self._is_map and any(None in row for row in decoded):
            raise InvalidRowError("the group or the userKey of a map is null")
        keys = [self._keys.encode(row) for row in decoded]
        rows = list(_value_rows(batch, self._voids))
        if self._window is not None:
            for key, row in zip(keys, rows, strict=True):
                named = session_key(row[: len(self._keys.names)], self._window)
                if key != self._sessions.encode(named):
                    raise InvalidRowError("a key is not that of the columns and the session start in its value")
        return keys, [self._values.encode(row) for row in rows]

    def lists(self, batch: Any) -> tuple[list[int], list[bytes], list[bytes], tuple[list[bytes], list[bytes]]]:
        """Return each element's row in the batch, its encoded key and value; and keys and numbers of elements.

        Raises:
            InvalidRowError: a row is not of the schemas, or a list has no elements.
        """
        assert self._counts is not None
        positions, keys, values = [], [], []
        counted: tuple[list[bytes], list[bytes]] = [], []
        pairs = zip(column_values(batch.column("key")), column_values(batch.column("value")), strict=True)
        for number, (key, elements) in enumerate(pairs):
            if not elements:
                raise InvalidRowError("a list is null or has no values; leave out its key")
            if None in elements:
                raise InvalidRowError("a value in a list is null")
            if self._is_join and any(one[-1] is None for one in elements):
                raise InvalidRowError("matched is null")
            encoded = self._counted.encode(key)
            positions += [number] * len(elements)
            keys += self._indexed(key, len(elements)) if self._is_join else [encoded] * len(elements)
            values += [self._values.encode(one) for one in elements]
            counted[0].append(encoded)
            counted[1].append(self._counts.encode((len(elements),)))
        return positions, keys, values, counted

    def _indexed(self, key: Sequence[Any], count: int) -> list[bytes]:
        """Return the keys of a join's rows: the index of each row follows the columns of the join."""
        return [self._keys.encode((*key, index)) for index in range(count)]


def _field_at(array: Any, path: Sequence[int]) -> Any:
    for number in path:
        array = array.flatten()[number]
    return array


def session_key(row: Sequence[Any], position: int) -> list[Any]:
    """Return the key that Spark makes from the first fields of a session's value.

    Args:
        row: as many fields as the key has.
        position: that of the session window.
    """
    window = row[position]
    return [*row[:position], *row[position + 1 :], None if window is None else window[0]]


def _value_rows(batch: Any, voids: Sequence[int]) -> Iterator[Sequence[Any]]:
    """Yield the values of a batch, with nulls for the fields that are always null."""
    if len(voids) and "value" not in batch.schema.names:
        yield from [[None] * len(voids)] * len(batch)
        return
    column = batch.column("value")
    if column.null_count:
        raise InvalidRowError("a value is null")
    for row in column_values(column):
        found = list(row)
        for position in voids:
            found.insert(position, None)
        yield found


def column_values(array: Any) -> list[Any]:
    """Return the values of an array of pyarrow in the form that `RowEncoder` takes."""
    import pyarrow

    kind = array.type
    if pyarrow.types.is_struct(kind):
        columns = [column_values(child) for child in array.flatten()]
        rows: list[Any] = list(zip(*columns, strict=True)) if columns else [()] * len(array)
        return [row if there else None for row, there in zip(rows, array.is_valid().to_pylist(), strict=True)]
    if pyarrow.types.is_list(kind):
        inner = iter(column_values(array.flatten()))
        sizes = array.value_lengths().to_pylist()
        return [None if size is None else [next(inner) for _ in range(size)] for size in sizes]
    if pyarrow.types.is_timestamp(kind):
        return list(array.cast(pyarrow.int64()).to_pylist())
    if pyarrow.types.is_date32(kind):
        return list(array.cast(pyarrow.int32()).to_pylist())
    return list(array.to_pylist())

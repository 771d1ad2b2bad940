"""Moves the state in a savepoint from Spark's HDFS-backed store into RocksDB.

    from understudy import convert_savepoint

    convert_savepoint("/savepoints/savepoint-0123ab-...", "/savepoints/rocksdb")

The original is not changed, and the result appears under its name only when it is whole and verified. For each query:

1. The state is restored into a work directory beside the result. Spark reads its keys and values, for a checksum.
2. The files of the store are decompressed and read (`runtime.checkpoint.convert`). Their encoded rows are stored, with
   the partition in which they were.
3. The offset log gets RocksDB as the query's store. Spark writes the rows as a batch of its own (`StateWriter`).
4. The new state is restored once more and read in both forms. In each store the encoded rows must be those of the
   files, each in the partition that the hash of its key names. The decoded rows must be those that Spark has read
   before, each in the same partition.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from conf.files import make_private, remove_tree
from runtime.checkpoint.convert import (
    ROCKSDB_PROVIDER,
    ConversionPlan,
    codec_of,
    plan_conversion,
    read_changes,
    state_files,
    with_rocksdb,
)
from runtime.checkpoint.errors import SavepointError
from runtime.checkpoint.files import list_files
from runtime.checkpoint.manifest import EditedFrom, Savepoint, SavepointQuery
from runtime.checkpoint.metadata_log import DEFAULT_COMPACT_INTERVAL, IncompleteError
from runtime.checkpoint.rescale import (
    PROVIDER,
    FamilyState,
    differences,
    finish_batch,
    partitions_of,
    refuse,
    settings_of,
)
from runtime.checkpoint.restore import restore_snapshot, rewrite
from runtime.checkpoint.savepoint import write_savepoint
from runtime.checkpoint.state_layout import DEFAULT_STORE
from runtime.checkpoint.state_schema import DEFAULT_FAMILY
from runtime.checkpoint.work_directory import work_directory
from runtime.protocol.query_snapshot import QuerySnapshot
from runtime.spark.connect_session import connect_session
from runtime.spark.driver.local import LocalDriver
from runtime.spark.driver.state_writer import ENCODED, PLACE, NewFamily
from runtime.spark.errors import DriverCallError
from runtime.spark.rescale import SparkStateReader, run_with_driver

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MAPS_TOO = "spark.sql.legacy.allowHashOnMapType"
_CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
_ROWS = 65536
_TRIES_PER_PARTITION = 64

Unpack = Callable[[Mapping[Path, Path], str], None]
Decoded = dict[tuple[int, str], tuple[int, int]]
"""Number of the keys and a checksum, by operator and store."""


def convert_savepoint(
    path: str | Path,
    to: str | Path,
    *,
    query: str | None = None,
    java_home: str | None = None,
    compact_interval: int = DEFAULT_COMPACT_INTERVAL,
) -> Savepoint:
    """Write a savepoint that has the state of another one in RocksDB.

    Starts a Spark for it, which ends with this call.

    Args:
        path: of the savepoint, which is verified first, and not changed.
        to: directory of the result, which must not exist; it appears when it is whole and verified.
        query: name of the only query to convert. Default: all whose state is in Spark's HDFS-backed store.
        java_home: the Java to use, None to find one.
        compact_interval: ``spark.sql.streaming.fileSink.log.compactInterval`` of the job's sessions.

    Raises:
        SavepointError: the savepoint cannot be converted, or the new state is not the same.
        SnapshotError: the state cannot be copied.
        SparkError: Spark cannot be started, or fails.
    """
    return convert(plan_conversion(Path(path), Path(to), query), java_home, compact_interval)


def convert(
    plan: ConversionPlan, java_home: str | None = None, compact_interval: int = DEFAULT_COMPACT_INTERVAL
) -> Savepoint:
    """Run a conversion that was planned; otherwise as `convert_savepoint`."""
    return run_with_driver(lambda driver: convert_with(driver, plan, compact_interval), java_home)


async def convert_with(
    driver: LocalDriver, plan: ConversionPlan, compact_interval: int = DEFAULT_COMPACT_INTERVAL
) -> Savepoint:
    """Run a conversion in a running driver; otherwise as `convert`."""
    loop = asyncio.get_running_loop()
    endpoint = await driver.open_session(isolated=False)

    def unpack(files: Mapping[Path, Path], codec: str) -> None:
        asyncio.run_coroutine_threadsafe(driver.unpack_files(files, codec), loop).result()

    def write(
        location: Path, batch: int, partitions: int, settings: Mapping[str, str], families: Sequence[NewFamily]
    ) -> None:
        call = driver.write_state(location, batch, partitions, settings, families)
        asyncio.run_coroutine_threadsafe(call, loop).result()

    def run() -> Savepoint:
        with connect_session(endpoint.url, driver) as spark:
            spark.conf.set(_MAPS_TOO, "true")
            return _run(plan, spark, unpack, write, compact_interval)

    return await asyncio.to_thread(run)


def _run(
    plan: ConversionPlan, spark: SparkSession, unpack: Unpack, write: Callable[..., None], interval: int
) -> Savepoint:
    old, target = plan.savepoint, plan.target
    with work_directory(target, "convert", f"{old.path} cannot be converted to {target}") as work:
        snapshots = [
            _Converter(spark, one, work / str(number), unpack, write).run(interval)
            if one in plan.queries
            else one.snapshot
            for number, one in enumerate(old.queries)
        ]
        origin = EditedFrom(old.path, old.created_ms, tuple(one.snapshot.name for one in plan.queries))
        return write_savepoint(target.parent, old.job, snapshots, name=target.name, work=work, edited=origin)


class _Converter:
    """Converts the state of one query.

    Args:
        spark: a session, used by this conversion alone: its settings change.
        query: the query.
        work: a directory for its files.
        unpack: decompresses files; see `DriverGateway.unpack_files`.
        write: writes the state; see `DriverGateway.write_state`.
    """

    def __init__(
        self, spark: SparkSession, query: SavepointQuery, work: Path, unpack: Unpack, write: Callable[..., None]
    ) -> None:
        self._spark = spark
        self._query = query
        self._work = work
        self._unpack = unpack
        self._write = write
        self._clone = work / "location"

    def run(self, interval: int) -> QuerySnapshot:
        """Write the state into RocksDB, verify it, and return a snapshot of it.

        Args:
            interval: `COMPACT_INTERVAL`, as far as it is known.

        Raises:
            SavepointError: the new state is not the old one.
            SnapshotError: it is not whole.
            SparkError: Spark cannot read or write it.
        """
        old, partitions = self._query.snapshot, partitions_of(self._query)
        settings = {**settings_of(self._query), PROVIDER: ROCKSDB_PROVIDER, _CHANGELOG: "true"}
        restore_snapshot(old, self._clone, None, copy=True)
        decoded = self._decoded(self._clone, old.batch_id)
        taken_rows = self._take_rows(partitions)
        for name in list_files(self._clone):
            if name.startswith("offsets/") and not name.endswith(".crc"):
                rewrite(self._clone / name, with_rocksdb((self._clone / name).read_bytes()))
        self._write(self._clone, old.batch_id, partitions, settings, [family for family, _ in taken_rows])
        taken = finish_batch(old, self._clone, self._work, interval)
        verified = self._work / "verified"
        operators = self._query.description.operators
        after = SparkStateReader(self._spark).read(verified, taken.batch_id, partitions, operators, settings)
        wrong = differences((state for _, state in taken_rows), after)
        now = self._decoded(verified, taken.batch_id)
        wrong += [
            f"operator {operator}, store {store}: Spark reads other keys or values than before"
            for (operator, store), content in decoded.items()
            if now[operator, store] != content
        ]
        refuse(
            wrong,
            f"the state of query {old.name!r} in RocksDB is not what it was",
            "keep the state store, and report this",
        )
        return replace(taken, location=old.location, sink=old.sink, is_proven=False)

    def _take_rows(self, partitions: int) -> list[tuple[NewFamily, FamilyState]]:
        """Store the encoded rows of all stores as Parquet."""
        places = _places(self._spark, partitions)
        by_store: dict[tuple[int, str], dict[int, list[Path]]] = defaultdict(dict)
        unpacked: dict[Path, Path] = {}
        raw = self._work / "raw"
        make_private(raw)
        for place, names in state_files(list_files(self._clone)).items():
            targets = [raw / f"{len(unpacked) + number}" for number in range(len(names))]
            unpacked |= dict(zip([self._clone / name for name in names], targets, strict=True))
            by_store[place.operator, place.store][place.partition] = targets
        self._unpack(unpacked, codec_of(self._query))
        found = []
        for operator in self._query.description.operators:
            for store in operator.stores:
                directory = self._work / f"rows-{operator.id}-{store.name}"
                make_private(directory)
                write_rows(directory / "rows.parquet", by_store[operator.id, store.name], places)
                columns = f"CAST(coalesce(sum(CAST(xxhash64({', '.join(ENCODED)}) AS DECIMAL(38, 0))), 0) AS STRING)"
                stored = self._spark.read.parquet(f"file:{directory}")
                state = FamilyState(operator.id, store.name, DEFAULT_FAMILY, *_count_and_digest(stored, columns))
                found.append((NewFamily(operator.id, store.name, DEFAULT_FAMILY, directory, 0, is_placed=True), state))
        remove_tree(raw)
        return found

    def _decoded(self, location: Path, batch_id: int) -> Decoded:
        """Return what Spark reads of each store; the checksum includes the partition of each key."""
        found = {}
        columns = "CAST(coalesce(sum(CAST(xxhash64(key, value, partition_id) AS DECIMAL(38, 0))), 0) AS STRING)"
        for operator in self._query.description.operators:
            for store in operator.stores:
                reader = self._spark.read.format("statestore").option("batchId", batch_id)
                reader = reader.option("operatorId", operator.id)
                if store.name != DEFAULT_STORE:
                    reader = reader.option("storeName", store.name)
                found[operator.id, store.name] = _count_and_digest(reader.load(f"file:{location}"), columns)
        return found


def _places(spark: SparkSession, partitions: int) -> list[int]:
    """Return a number for each partition whose hash names it."""
    numbers = spark.range(_TRIES_PER_PARTITION * partitions).selectExpr("INT(id) AS place")
    hashed = numbers.selectExpr("place", f"INT(pmod(hash(place), {partitions})) AS partition")
    found = {
        row["partition"]: row["first"]
        for row in hashed.groupBy("partition").agg({"place": "min"}).toDF("partition", "first").collect()
    }
    return [found[number] for number in range(partitions)]


def write_rows(target: Path, files: Mapping[int, Sequence[Path]], places: Sequence[int]) -> None:
    """Write the encoded rows of a store in all partitions into one Parquet file.

    All rows of a partition are in memory, because later files change and remove those of earlier ones.

    Args:
        target: the file.
        files: decompressed files of the store by partition, in the order in which they are read.
        places: see `PLACE`; one for each partition.

    Raises:
        SavepointError: a file is damaged, or a partition has none.
    """
    import pyarrow
    import pyarrow.parquet

    kinds = [(PLACE, pyarrow.int32()), *((name, pyarrow.binary()) for name in ENCODED)]
    with pyarrow.parquet.ParquetWriter(target, pyarrow.schema(kinds)) as writer:
        for partition, place in enumerate(places):
            rows: dict[bytes, bytes] = {}
            for path in files.get(partition, ()):
                try:
                    read_changes(path.read_bytes(), rows)
                except IncompleteError as error:
                    raise SavepointError(f"the state of partition {partition} cannot be read: {error}") from error
            items = iter(rows.items())
            while some := list(islice(items, _ROWS)):
                columns = [[place] * len(some), *zip(*some, strict=True)]
                arrays = [pyarrow.array(one, kind) for one, (_, kind) in zip(columns, kinds, strict=True)]
                writer.write_table(pyarrow.Table.from_arrays(arrays, [name for name, _ in kinds]))


def _count_and_digest(rows: DataFrame, digest: str) -> tuple[int, int]:
    from pyspark.errors import PySparkException

    try:
        [row] = rows.selectExpr("count(*) AS count", f"{digest} AS digest").collect()
    except PySparkException as error:
        raise DriverCallError(f"Spark cannot read the state: {str(error).partition(chr(10))[0]}") from error
    return int(row["count"]), int(row["digest"])

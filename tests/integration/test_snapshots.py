"""Snapshots, rollbacks and savepoints of real queries: what comes out equals an undisturbed run, whatever was done."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import pytest_asyncio
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from runtime.checkpoint.compatibility import Fit, check_query
from runtime.checkpoint.errors import SnapshotLostError
from runtime.checkpoint.files import list_files, list_names
from runtime.checkpoint.layout import last_commit
from runtime.checkpoint.manifest import SavepointJob
from runtime.checkpoint.savepoint import open_savepoint, verify_savepoint, write_savepoint
from runtime.checkpoint.snapshot import describe_query, inspect_location, restore_snapshot, take_snapshot
from runtime.checkpoint.state_schema import schema_fields
from runtime.protocol.query_snapshot import QueryLocation
from runtime.spark.driver.launch import DriverOptions
from runtime.spark.driver.local import LocalDriver
from runtime.spark.state_reader import read_state
from tests.damage import DAMAGES, Damage, damaged_files, found_in_live, found_in_snapshot
from tests.json_output import parsed
from tests.python_workers import run_to_its_end
from tests.seeds import printed_seed
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.asyncio(loop_scope="module")

DEADLINE = PATIENCE_S
"""Seconds to wait for a condition."""

FILES = 6
_EPOCH = 1_700_000_000
_PREFIX = "spark.sql.streaming.stateStore."
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_CHANGELOG = f"{_PREFIX}rocksdb.changelogCheckpointing.enabled"
PROVIDERS = {
    "hdfs": {},
    "rocksdb": {f"{_PREFIX}providerClass": _ROCKSDB},
    "changelog": {f"{_PREFIX}providerClass": _ROCKSDB, _CHANGELOG: "true"},
}


def providers(*short: str) -> list[Any]:
    """All of them as parameters; those that are not named are long forms."""
    return [name if name in short else pytest.param(name, marks=pytest.mark.slow) for name in PROVIDERS]


Rows = list[tuple[Any, ...]]


@dataclass
class Stream:
    """One query over a directory of files, and its files."""

    spark: SparkSession
    root: Path
    input: Path
    provider: str = "hdfs"

    @property
    def location(self) -> Path:
        return self.root / "checkpoint"

    @property
    def sink(self) -> Path:
        return self.root / "out"

    @property
    def query(self) -> QueryLocation:
        return QueryLocation("counts", str(self.location), str(self.sink))

    def feed(self, *numbers: int) -> None:
        self.input.mkdir(parents=True, exist_ok=True)
        for number in numbers:
            rows = [{"k": (number * 7 + n) % 11, "at": f"2024-01-01T00:{number:02}:{n:02}"} for n in range(20)]
            part = self.input / f".{number:03}.json"
            part.write_text("\n".join(map(json.dumps, rows)))
            os.utime(part, (_EPOCH + number, _EPOCH + number))  # Spark takes the oldest first
            part.rename(self.input / f"{number:03}.json")

    def frame(self) -> DataFrame:
        files = self.spark.readStream.schema("k INT, at TIMESTAMP").option("maxFilesPerTrigger", 1)
        rows = files.json(str(self.input)).withWatermark("at", "1 minute")
        return rows.groupBy(sf.window("at", "2 minutes"), "k").count()

    def start(self, **trigger: Any) -> StreamingQuery:
        for name, value in PROVIDERS[self.provider].items():
            self.spark.conf.set(name, value)
        try:
            return (
                self.frame()
                .writeStream.format("parquet")
                .option("path", str(self.sink))
                .option("checkpointLocation", str(self.location))
                .queryName(self.root.name)
                .trigger(**(trigger or {"processingTime": "0 seconds"}))
                .start()
            )
        finally:
            for name in PROVIDERS[self.provider]:
                self.spark.conf.unset(name)

    def run(self) -> None:
        """Take in all that there is."""
        run_to_its_end(lambda: self.start(availableNow=True))

    @property
    def committed(self) -> int:
        return last_commit(f"commits/{name}" for name in list_names(self.location / "commits"))

    def rows(self) -> Rows:
        frame = self.spark.read.parquet(str(self.sink))
        return sorted(tuple(row) for row in frame.selectExpr("string(window)", "k", "count").collect())


def until(condition: Callable[[], bool], query: StreamingQuery, what: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline, f"{what}: not within {DEADLINE:.0f} s"
        time.sleep(0.02)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def spark(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SparkSession]:
    directory = tmp_path_factory.mktemp("driver")
    options = DriverOptions(
        work_dir=directory / "driver",
        log_file=directory / "log" / "spark-driver.log",
        master="local[2]",
        die_with_parent=True,
        conf={"spark.sql.shuffle.partitions": "2", "spark.sql.streaming.noDataMicroBatches.enabled": "false"},
    )
    driver = await LocalDriver.start(options)
    endpoint = await driver.open_session(isolated=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")  # PySpark sets it, and leaves it for all that come after
        session = await asyncio.to_thread(SparkSession.builder.remote(endpoint.url).getOrCreate)
        try:
            yield session
        finally:
            await asyncio.to_thread(session.stop)
            await driver.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def undisturbed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Rows:
    root = tmp_path_factory.mktemp("undisturbed")
    stream = Stream(spark, root, root / "in")
    stream.feed(*range(FILES))
    await asyncio.to_thread(stream.run)
    rows = await asyncio.to_thread(stream.rows)
    assert len(rows) > FILES
    return rows


@pytest.mark.parametrize("provider", providers("changelog"))  # test_state_backends has one of the others
async def test_taken_while_it_runs_and_rolled_back(
    spark: SparkSession, undisturbed: Rows, tmp_path: Path, provider: str
) -> None:
    await asyncio.to_thread(_rolled_back, spark, undisturbed, tmp_path, provider)


def _rolled_back(spark: SparkSession, undisturbed: Rows, tmp_path: Path, provider: str) -> None:
    stream = Stream(spark, tmp_path / f"live-{provider}", tmp_path / "in", provider)
    stream.feed(*range(FILES - 3))
    query = stream.start()
    until(lambda: stream.committed >= 2, query, "the third batch")
    first = take_snapshot(stream.query, tmp_path / "chk-1")
    stream.feed(FILES - 3, FILES - 2)
    until(lambda: stream.committed >= FILES - 2, query, "all batches")
    abandoned = take_snapshot(stream.query, tmp_path / "chk-2", first)
    query.stop()
    assert 2 <= first.batch_id < abandoned.batch_id
    assert first.offsets == [json.dumps({"logOffset": first.batch_id}, separators=(",", ":"))]
    assert abandoned.new_bytes < abandoned.bytes

    # In place: the batches since are done again, and what they had written is gone.
    restore_snapshot(first, stream.location, stream.sink)
    assert inspect_location(stream.query) == first.batch_id
    named = {path.name for path in stream.sink.glob("part-*")}
    stream.run()
    assert named < {path.name for path in stream.sink.glob("part-*")}
    with pytest.raises(SnapshotLostError, match="abandoned by a rollback"):
        restore_snapshot(abandoned, stream.location, stream.sink)

    # As a savepoint in another place, which knows nothing of the first; the sink's files were moved there as well.
    job = SavepointJob("ab" * 16, "counts")
    savepoint = write_savepoint(tmp_path / "savepoints", job, [take_snapshot(stream.query, tmp_path / "chk-3")])
    moved = Stream(spark, tmp_path / f"moved-{provider}", stream.input, provider)
    shutil.copytree(stream.sink, moved.sink, ignore=shutil.ignore_patterns("_spark_metadata"))
    shutil.rmtree(stream.root)
    [query_of_it] = open_savepoint(Path(savepoint.path).rename(tmp_path / "taken along")).queries
    restore_snapshot(query_of_it.snapshot, moved.location, moved.sink, copy=True, new_query_id=True)
    moved.feed(FILES - 1)
    moved.run()
    assert moved.rows() == undisturbed
    assert query_of_it.description.sources == ("file",)
    [operator] = query_of_it.description.operators
    assert (operator.name, operator.stores[0].partitions) == ("stateStoreSave", 2)
    assert dict(schema_fields(operator.stores[0].families[0].value)) == {"count": "long"}

    state = read_state(spark, tmp_path / "taken along", tmp_path / "state", query=stream.query.name)
    open_windows = {(row.key["k"], row.value["count"]) for row in state.collect()}
    assert open_windows
    assert verify_savepoint(tmp_path / "taken along") == []


def _is_passed_over(name: str, kind: str, needed: frozenset[str]) -> bool:
    """Whether this damage of a live location does no harm, as far as is known of Spark; a sample of it is tried."""
    path, own = Path(name), Path(name).name
    if own.startswith(".") and own.endswith(".crc"):
        of = str(path.with_name(own[1:-4]))
        return of not in needed or kind in ("removed", "emptied", "truncated")  # Hadoop passes over one without header
    if path.parts[0] == "commits":
        return name not in needed or kind == "removed"
    return name not in needed


@pytest.mark.parametrize("provider", providers("changelog"))
async def test_damage_of_any_file_is_found_or_spark_goes_on_all_the_same(
    spark: SparkSession, undisturbed: Rows, tmp_path: Path, provider: str
) -> None:
    await asyncio.to_thread(_damaged, spark, undisturbed, tmp_path, provider)


def _damaged(spark: SparkSession, undisturbed: Rows, tmp_path: Path, provider: str) -> None:
    stream = Stream(spark, tmp_path / "live", tmp_path / "in", provider)
    stream.feed(*range(FILES - 1))
    stream.run()
    taken = take_snapshot(stream.query, tmp_path / "chk")
    needed = frozenset(name.removeprefix("checkpoint/") for name in list_files(Path(taken.path)))
    harmless: list[Damage] = []
    for damage in damaged_files(stream.location, DAMAGES):
        if not found_in_live(stream.query, taken):
            assert _is_passed_over(damage.path, damage.kind, needed), f"{damage} was not found"
            harmless.append(damage)
    copied = shutil.copytree(taken.path, tmp_path / "copy")
    missed = [damage.path for damage in damaged_files(copied, DAMAGES) if not found_in_snapshot(taken, copied)]
    assert set(missed) == {"snapshot.json"}, "which no restore reads"
    savepoint = write_savepoint(tmp_path / "savepoints", SavepointJob("ab" * 16, "counts"), [taken])
    assert not [damage for damage in damaged_files(Path(savepoint.path), DAMAGES) if not verify_savepoint(damage.root)]

    # What is passed over, Spark passes over as well: a sample of it.
    stream.feed(FILES - 1)
    shutil.copytree(stream.root, tmp_path / "kept")
    for one in random.Random(printed_seed()).sample(harmless, 2):
        shutil.rmtree(stream.root)
        shutil.copytree(tmp_path / "kept", stream.root)
        for damage in damaged_files(stream.location, (one.kind,), only=one.path):
            stream.run()
            assert stream.rows() == undisturbed, damage
            break


class Total(StatefulProcessor):
    """How many rows of a key there were so far."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.total = handle.getValueState("total", "n LONG")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timer_values: Any) -> Iterator[Any]:  # noqa: N802
        total = (self.total.get()[0] if self.total.exists() else 0) + sum(len(part) for part in rows)
        self.total.update((total,))
        yield pd.DataFrame({"k": [key[0]], "n": [total]})

    def close(self) -> None:
        pass


class Totals(Stream):
    def frame(self) -> DataFrame:
        cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Spark's Python workers do not have the tests
        rows = self.spark.readStream.schema("k INT, at TIMESTAMP").json(str(self.input)).groupBy("k")
        return rows.transformWithStateInPandas(Total(), "k INT, n LONG", "append", "none")

    def rows(self) -> Rows:
        return sorted(tuple(row) for row in self.spark.read.parquet(str(self.sink)).collect())


@pytest.mark.slow
async def test_state_of_a_processor_in_another_place(spark: SparkSession, tmp_path: Path) -> None:
    """Its metadata name their schemas by absolute paths, of the place where it began."""
    await asyncio.to_thread(_processor_moved, spark, tmp_path)


def _processor_moved(spark: SparkSession, tmp_path: Path) -> None:
    stream = Totals(spark, tmp_path / "first", tmp_path / "in", "changelog")
    stream.feed(0)
    stream.run()
    before = stream.rows()
    snapshot = take_snapshot(stream.query, tmp_path / "chk")
    moved = Totals(spark, tmp_path / "second", stream.input, "changelog")
    shutil.copytree(stream.sink, moved.sink)
    shutil.rmtree(stream.root)
    restore_snapshot(snapshot, moved.location, moved.sink)
    moved.feed(1)
    moved.run()
    totals = dict(before)
    for key in (row["k"] for row in map(json.loads, (moved.input / "001.json").read_text().splitlines())):
        totals[key] = totals.get(key, 0) + 1
    assert sorted(set(moved.rows()) - set(before)) == sorted(totals.items())
    job = SavepointJob("ab" * 16, "totals")
    savepoint = write_savepoint(tmp_path / "savepoints", job, [take_snapshot(moved.query, tmp_path / "chk-2")])
    state = read_state(spark, savepoint.path, tmp_path / "state", variable="total")
    assert {row.key["k"]: row.value["n"] for row in state.collect()} == totals
    command = [sys.executable, "-m", "runtime.cluster", "savepoint", "state", "--json", savepoint.path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0, done.stderr
    shown = parsed(("savepoint", "state"), done.stdout)
    assert (shown["query"], shown["operator"], shown["store"]) == ("counts", 0, "default")
    assert {row["key"]["k"]: row["value"]["n"] for row in shown["rows"]} == totals


@dataclass
class Changed(Stream):
    """The query after its job was changed."""

    change: str = ""

    def frame(self) -> DataFrame:
        rows = self.source("k STRING, at TIMESTAMP" if self.change == "key type" else "k INT, at TIMESTAMP")
        if self.change == "another source":
            rows = rows.union(self.source("k INT, at TIMESTAMP"))
        if self.change == "another operator":
            return rows.dropDuplicates(["k", "at"])
        key = "carrier" if self.change == "key's name" else "k"
        return rows.withColumnRenamed("k", key).groupBy(sf.window("at", "2 minutes"), key).count()

    def source(self, schema: str) -> DataFrame:
        return self.spark.readStream.schema(schema).json(str(self.input)).withWatermark("at", "1 minute")


async def test_what_is_said_to_fit_is_what_spark_takes(spark: SparkSession, tmp_path: Path) -> None:
    await asyncio.to_thread(_changed, spark, tmp_path)


def _changed(spark: SparkSession, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path / "kept", tmp_path / "in")
    stream.feed(0)
    stream.run()
    snapshot = take_snapshot(stream.query, tmp_path / "chk")
    stream.feed(1)
    fits = {"key's name": True, "key type": False, "another operator": False, "another source": False}
    for change, expected in fits.items():
        trial = Changed(spark, tmp_path / f"trial of {change}", stream.input, change=change)
        trial.run()
        verdict = check_query(describe_query(stream.query), describe_query(trial.query))
        assert (verdict.fit is not Fit.DOES_NOT_FIT) is expected, (change, verdict)
        real = Changed(spark, tmp_path / f"real {change}", stream.input, change=change)
        restore_snapshot(snapshot, real.location, real.sink)
        if expected:
            real.run()
            assert real.committed > snapshot.batch_id
        else:
            with pytest.raises(StreamingQueryException):
                real.run()

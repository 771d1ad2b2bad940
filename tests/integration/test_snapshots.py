"""Snapshots, rollbacks and savepoints of real queries: what comes out equals an undisturbed run, whatever was done."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming import StreamingQuery

from runtime.checkpoint.files import list_names
from runtime.checkpoint.layout import last_commit
from runtime.checkpoint.model import QueryLocation
from runtime.checkpoint.snapshot import inspect_location, restore_snapshot, take_snapshot
from runtime.spark import DriverOptions, SparkDriver

pytestmark = pytest.mark.asyncio(loop_scope="module")

DEADLINE = 120.0
"""Seconds to wait for a condition."""

FILES = 8
_EPOCH = 1_700_000_000
_PREFIX = "spark.sql.streaming.stateStore."
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_CHANGELOG = f"{_PREFIX}rocksdb.changelogCheckpointing.enabled"
_FORMAT = f"{_PREFIX}checkpointFormatVersion"
PROVIDERS = {
    "hdfs": {},
    "rocksdb": {f"{_PREFIX}providerClass": _ROCKSDB},
    "changelog": {f"{_PREFIX}providerClass": _ROCKSDB, _CHANGELOG: "true"},
    "unique": {f"{_PREFIX}providerClass": _ROCKSDB, _CHANGELOG: "true", _FORMAT: "2"},
}

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
        self.start(availableNow=True).awaitTermination()

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
        archive_dir=None,
        die_with_parent=True,
        conf={"spark.sql.shuffle.partitions": "2"},
    )
    driver = await SparkDriver.start(options)
    endpoint = await driver.open_session(isolated=False)
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


@pytest.mark.parametrize("provider", PROVIDERS)
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
    stream.feed(*range(FILES - 3, FILES))
    until(lambda: stream.committed >= FILES - 1, query, "all batches")
    second = take_snapshot(stream.query, tmp_path / "chk-2", first)
    query.stop()
    assert 2 <= first.batch_id < second.batch_id
    assert first.offsets == [json.dumps({"logOffset": first.batch_id}, separators=(",", ":"))]
    assert second.new_bytes < second.bytes

    # in place: the batches since are abandoned, and done again
    restore_snapshot(first, stream.location, stream.sink)
    assert inspect_location(stream.query) == first.batch_id
    named = len(list(stream.sink.glob("part-*")))
    stream.run()
    assert stream.rows() == undisturbed
    assert named < len(list(stream.sink.glob("part-*")))

    # in another place, which knows nothing of the first: with the sink's files, which readers look for there
    moved = Stream(spark, tmp_path / f"moved-{provider}", stream.input, provider)
    restore_snapshot(second, stream.location, stream.sink)
    shutil.copytree(stream.sink, moved.sink, ignore=shutil.ignore_patterns("_spark_metadata"))
    shutil.rmtree(stream.root)
    restore_snapshot(second, moved.location, moved.sink, copy=True, new_query_id=True)
    moved.run()
    assert moved.rows() == undisturbed
    assert inspect_location(moved.query) >= second.batch_id

"""Converted savepoints on real Spark: a query goes on from one in RocksDB, and gives the rows of an undisturbed run."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from runtime.checkpoint.convert import ROCKSDB_PROVIDER, plan_conversion
from runtime.checkpoint.errors import SavepointError
from runtime.checkpoint.manifest import EditedFrom
from runtime.checkpoint.rescale import PROVIDER, is_rocksdb, plan_rescale
from runtime.checkpoint.savepoint import open_savepoint, verify_savepoint
from runtime.checkpoint.snapshot import restore_snapshot
from runtime.spark.driver.local import LocalDriver
from runtime.spark.driver.state_writer import NewFamily
from runtime.spark.rescale import rescale_with
from runtime.spark.state_convert import convert_with
from tests.integration.test_savepoint_rescale import OPERATORS, Rows, Stream, contents, feed
from tests.integration.test_savepoint_rescale import driver as driver
from tests.integration.test_savepoint_rescale import spark as spark

pytestmark = pytest.mark.asyncio(loop_scope="module")

_HASHMAP = {PROVIDER: ROCKSDB_PROVIDER.replace("RocksDB", "HDFSBacked")}
_ONLY_ROCKSDB = ("aggregation-second-format", "join-3", "transformWithState", "collections", "timers", "aging")
_FITTING = [name for name in OPERATORS if name not in _ONLY_ROCKSDB]


@pytest.mark.parametrize(
    "name", [name if name == "aggregation" else pytest.param(name, marks=pytest.mark.slow) for name in _FITTING]
)
async def test_a_query_goes_on_in_rocksdb(driver: LocalDriver, spark: SparkSession, tmp_path: Path, name: str) -> None:
    build, settings = OPERATORS[name]
    stream = Stream(spark, tmp_path / "live", tmp_path / "in", build, {**settings, **_HASHMAP})
    undisturbed = Stream(spark, tmp_path / "undisturbed", stream.input, build, {**settings, **_HASHMAP})
    feed(stream.input, 0)
    await asyncio.to_thread(stream.run)
    await asyncio.to_thread(undisturbed.run)
    saved = await asyncio.to_thread(stream.savepoint, tmp_path)
    before = contents(Path(saved.path))
    with pytest.raises(SavepointError, match="Spark can only rescale RocksDB") as refused:
        plan_rescale(Path(saved.path), 3, tmp_path / "of-3")
    assert "savepoint convert" in refused.value.remedy

    converted = await convert_with(driver, plan_conversion(Path(saved.path), tmp_path / "rocksdb"))
    assert converted.edited == EditedFrom(saved.path, saved.created_ms, ("counts",))
    assert contents(Path(saved.path)) == before
    assert verify_savepoint(Path(converted.path)) == []
    assert not [path for path in contents(Path(converted.path)) if path.endswith((".delta", ".snapshot"))]
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]
    [query] = open_savepoint(Path(converted.path)).queries
    assert is_rocksdb(query.description)

    def go_on(number: int) -> tuple[Rows, Rows]:
        feed(stream.input, number)
        stream.run()  # its session asks for the HDFS-backed store; the offset log decides
        undisturbed.run()
        return undisturbed.rows(), stream.rows()

    await asyncio.to_thread(restore_snapshot, query.snapshot, stream.location, stream.sink)
    expected, found = await asyncio.to_thread(go_on, 1)
    assert found == expected
    later = await asyncio.to_thread(stream.savepoint, tmp_path / "later")
    assert all(is_rocksdb(one.description) for one in later.queries)

    final = await rescale_with(driver, plan_rescale(Path(later.path), 3, tmp_path / "of-3"))
    [query] = open_savepoint(Path(final.path)).queries
    await asyncio.to_thread(restore_snapshot, query.snapshot, stream.location, stream.sink)
    expected, found = await asyncio.to_thread(go_on, 2)
    assert expected.total() > 0
    assert found == expected


async def test_wrong_state_is_found_and_nothing_is_left(
    driver: LocalDriver, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, settings = OPERATORS["dropDuplicates"]
    stream = Stream(spark, tmp_path / "live", tmp_path / "in", build, {**settings, **_HASHMAP})
    feed(stream.input, 0)
    await asyncio.to_thread(stream.run)
    saved = await asyncio.to_thread(stream.savepoint, tmp_path)
    there = set(tmp_path.iterdir())
    write = driver.write_state

    async def damaging(
        location: Path, batch: int, partitions: int, settings: Mapping[str, str], families: Sequence[NewFamily]
    ) -> None:
        await write(location, batch, partitions, settings, families)
        state = location / "state" / "0"
        first, second = state / "0", state / "1"
        first.rename(state / "x")
        second.rename(first)
        (state / "x").rename(second)
        (second / "_metadata").rename(first / "_metadata")

    monkeypatch.setattr(driver, "write_state", damaging)
    with pytest.raises(SavepointError, match="in another partition than their keys belong to"):
        await convert_with(driver, plan_conversion(Path(saved.path), tmp_path / "rocksdb"))
    assert set(tmp_path.iterdir()) == there

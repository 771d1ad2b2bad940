"""Savepoints with named sources and other offsets on real Spark: what a query reads when it goes on from them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from runtime.checkpoint.compatibility import Fit, check_query
from runtime.checkpoint.manifest import Savepoint
from runtime.checkpoint.metadata_log import SOURCE_EVOLUTION
from runtime.checkpoint.rescale import plan_rescale
from runtime.checkpoint.savepoint import open_savepoint, verify_savepoint, write_savepoint
from runtime.checkpoint.snapshot import describe_query, restore_snapshot, take_snapshot
from runtime.checkpoint.source_edit import name_sources, set_offsets
from runtime.protocol.query_snapshot import QueryLocation
from runtime.spark.driver.local import LocalDriver
from runtime.spark.rescale import rescale_with
from tests.integration.test_savepoint_rescale import _CHANGELOG as CHANGELOG
from tests.integration.test_savepoint_rescale import JOB, _totals, contents
from tests.integration.test_savepoint_rescale import driver as driver
from tests.integration.test_savepoint_rescale import spark as spark
from tests.python_workers import run_to_its_end

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Totals:
    """A query that counts the rows of each of its sources since its first start."""

    def __init__(self, spark: SparkSession, root: Path, name: str) -> None:
        self.spark, self.root = spark, root
        self.location = QueryLocation("totals", str(root / name / "checkpoint"), str(root / name / "out"))

    def put(self, source: int, file: int) -> None:
        directory = self.root / f"in-{source}"
        directory.mkdir(parents=True, exist_ok=True)
        part = directory / f".{file}.json"
        part.write_text("\n".join(json.dumps({"k": source}) for _ in range(10)))
        part.rename(directory / f"{file}.json")

    def run(self, *sources: int, named: bool) -> None:
        settings = {**CHANGELOG, SOURCE_EVOLUTION: str(named).lower()}
        for key, value in settings.items():
            self.spark.conf.set(key, value)
        try:
            frames = [self._read(source, named) for source in sources]
            rows = frames[0]
            for frame in frames[1:]:
                rows = rows.union(frame)
            writer = _totals(lambda: rows).writeStream.format("parquet").option("path", self.location.sink)
            writer = writer.option("checkpointLocation", self.location.location)
            run_to_its_end(writer.trigger(availableNow=True).start)
        finally:
            for key in settings:
                self.spark.conf.unset(key)

    def _read(self, source: int, named: bool) -> DataFrame:
        reader = self.spark.readStream.schema("k INT")
        return (reader.name(f"s_{source}") if named else reader).json(str(self.root / f"in-{source}"))

    def totals(self) -> dict[int, int]:
        rows = self.spark.read.parquet(str(self.location.sink)).groupBy("k").agg(sf.max("n").alias("n"))
        return {row.k: row.n for row in rows.collect()}

    def savepoint(self, name: str) -> Savepoint:
        snapshot = take_snapshot(self.location, self.root / f"chk-{name}")
        return write_savepoint(self.root, JOB, [snapshot], name=name)

    def restore(self, savepoint: Savepoint) -> None:
        [query] = savepoint.queries
        assert self.location.sink is not None
        restore_snapshot(query.snapshot, Path(self.location.location), Path(self.location.sink))


async def test_sources_that_got_names_are_moved_added_and_removed(
    driver: LocalDriver, spark: SparkSession, tmp_path: Path
) -> None:
    stream = Totals(spark, tmp_path, "live")

    def begin() -> Savepoint:
        for source in (0, 1):
            stream.put(source, 0)
        stream.run(0, 1, named=False)
        return stream.savepoint("of-places")

    def go_on(saved: Savepoint) -> Savepoint:
        stream.restore(saved)
        for source in (0, 1, 2):
            stream.put(source, 1)
        stream.run(2, 1, 0, named=True)
        assert stream.totals() == {0: 20, 1: 20, 2: 10}
        stream.put(0, 2)
        kept = stream.savepoint("of-names")
        [query] = kept.queries
        assert set(query.description.source_names) == {"s_0", "s_1", "s_2"}
        assert query.description.sources == ("file", "file", "file")
        stream.run(2, 0, named=True)
        assert stream.totals() == {0: 30, 1: 20, 2: 10}
        verdict = check_query(query.description, describe_query(stream.location))
        assert verdict.fit is Fit.FITS_WITH_LOSS
        assert "source s_1 is not there any more" in verdict.losses[0]
        return kept

    saved = await asyncio.to_thread(begin)
    before = contents(Path(saved.path))
    named = await asyncio.to_thread(name_sources, saved.path, ["s_0", "s_1"], tmp_path / "named")
    assert contents(Path(saved.path)) == before
    assert verify_savepoint(Path(named.path)) == []
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]
    kept = await asyncio.to_thread(go_on, named)

    # a snapshot has no entry of a later batch, and its state can be rescaled
    assert {path.name for path in Path(kept.queries[0].snapshot.path, "checkpoint/sources/s_0").glob("?")} == {"0", "1"}
    rescaled = await rescale_with(driver, plan_rescale(Path(kept.path), 5, tmp_path / "of-5"))

    def finish() -> None:
        stream.restore(rescaled)
        stream.run(0, 2, 1, named=True)
        assert stream.totals() == {0: 30, 1: 20, 2: 10}

    await asyncio.to_thread(finish)


@pytest.mark.slow  # shows a behaviour of Spark
async def test_a_source_that_comes_back(spark: SparkSession, tmp_path: Path) -> None:
    stream = Totals(spark, tmp_path, "live")

    def run_alone(file: int) -> None:
        stream.put(0, file)
        stream.run(0, named=True)

    def go_on() -> None:
        for source in (0, 1):
            stream.put(source, 0)
        stream.run(0, 1, named=True)
        run_alone(1)
        after_one = stream.savepoint("after-one")
        stream.put(1, 1)
        stream.run(0, 1, named=True)
        assert stream.totals() == {0: 20, 1: 20}
        stream.restore(after_one)
        stream.run(0, 1, named=True)
        assert stream.totals() == {0: 20, 1: 20}
        run_alone(2)
        run_alone(3)
        after_two = stream.savepoint("after-two")
        stream.run(0, 1, named=True)
        assert stream.totals() == {0: 40, 1: 40}
        stream.restore(after_two)
        stream.run(0, 1, named=True)
        assert stream.totals() == {0: 40, 1: 40}

    await asyncio.to_thread(go_on)


async def test_a_query_reads_on_from_other_offsets(spark: SparkSession, tmp_path: Path) -> None:
    location = QueryLocation("numbers", str(tmp_path / "checkpoint"), str(tmp_path / "out"))

    def run() -> list[int]:
        numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 3).load().select("value")
        writer = numbers.writeStream.format("parquet").option("path", location.sink)
        run_to_its_end(writer.option("checkpointLocation", location.location).trigger(once=True).start)
        return sorted(row.value for row in spark.read.parquet(str(location.sink)).collect())

    def go_on() -> None:
        assert run() == [0, 1, 2]
        saved = write_savepoint(tmp_path, JOB, [take_snapshot(location, tmp_path / "chk")], name="of-3")
        [offset] = saved.queries[0].snapshot.offsets
        assert json.loads(offset)["offset"] == 3
        assert run() == [0, 1, 2, 3, 4, 5]
        moved = set_offsets(saved.path, {"0": offset.replace('"offset":3', '"offset":33')}, tmp_path / "of-33")
        assert verify_savepoint(Path(moved.path)) == []
        [query] = open_savepoint(Path(moved.path)).queries
        restore_snapshot(query.snapshot, Path(location.location), tmp_path / "out")
        assert run() == [0, 1, 2, 33, 34, 35]

    await asyncio.to_thread(go_on)

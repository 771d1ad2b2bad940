"""Rescaled savepoints on real Spark: a query that goes on from one gives the rows of an undisturbed run."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import pytest_asyncio
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.state import GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from runtime.checkpoint.errors import SavepointError
from runtime.checkpoint.files import list_names
from runtime.checkpoint.manifest import RescaledFrom, Savepoint, SavepointJob
from runtime.checkpoint.metadata_log import opens
from runtime.checkpoint.rescale import plan_rescale
from runtime.checkpoint.savepoint import open_savepoint, verify_savepoint, write_savepoint
from runtime.checkpoint.snapshot import restore_snapshot, take_snapshot
from runtime.protocol.query_snapshot import QueryLocation
from runtime.spark.driver.launch import DriverOptions
from runtime.spark.driver.local import LocalDriver
from runtime.spark.rescale import rescale_with
from tests.python_workers import run_to_its_end

pytestmark = pytest.mark.asyncio(loop_scope="module")

_STORE = "spark.sql.streaming.stateStore."
_CHANGELOG = {
    f"{_STORE}providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    f"{_STORE}rocksdb.changelogCheckpointing.enabled": "true",
}
_SECOND_FORMAT = {f"{_STORE}checkpointFormatVersion": "2"}
_JOIN = "spark.sql.streaming.join.stateFormatVersion"
JOB = SavepointJob("ab" * 16, "rescaled")
Rows = Counter[tuple[Any, ...]]
Read = Callable[[], DataFrame]


class Total(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self.total = handle.getValueState("total", "n LONG")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timer_values: Any) -> Iterator[Any]:  # noqa: N802
        total = (self.total.get()[0] if self.total.exists() else 0) + sum(len(part) for part in rows)
        self.total.update((total,))
        yield pd.DataFrame({"k": [key[0]], "n": [total]})

    def close(self) -> None:
        pass


class Collections(StatefulProcessor):
    """Keeps all values of a key in their order, and how many of them have each remainder by 5."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.values = handle.getListState("values", "v LONG")
        self.counts = handle.getMapState("counts", "d LONG", "n LONG")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timer_values: Any) -> Iterator[Any]:  # noqa: N802
        values = [int(value) for part in rows for value in part.v]
        self.values.appendList([(value,) for value in values])
        for digit in (value % 5 for value in values):
            count = self.counts.getValue((digit,))[0] if self.counts.containsKey((digit,)) else 0
            self.counts.updateValue((digit,), (count + 1,))
        listed = str([value for (value,) in self.values.get()])
        counted = str(sorted((digit, count) for (digit,), (count,) in self.counts.iterator()))
        yield pd.DataFrame({"k": [key[0]], "listed": [listed], "counted": [counted]})

    def close(self) -> None:
        pass


class Timed(StatefulProcessor):
    """Keeps all values of a key until a moment, 90 s after the first row of the tests."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.values = handle.getListState("values", "v LONG")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timer_values: Any) -> Iterator[Any]:  # noqa: N802
        if not self.values.exists():
            self.handle.registerTimer(1_704_067_290_000)
        self.values.appendList([(int(value),) for part in rows for value in part.v])
        yield self._row(key, "kept")

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:  # noqa: N802, N803
        yield self._row(key, "expired")
        self.values.clear()

    def _row(self, key: Any, event: str) -> Any:
        listed = str([value for (value,) in self.values.get()])
        return pd.DataFrame({"k": [key[0]], "event": [event], "listed": [listed]})

    def close(self) -> None:
        pass


class Aging(StatefulProcessor):
    """Keeps values that expire before the next batch, and some that do not; each key has a timer in processing time."""

    total = "n LONG"
    lives_ms: int | None = 864_000_000

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.brief = handle.getValueState("brief", "n LONG", 1)
        self.lasting = handle.getValueState("lasting", "n LONG", self.lives_ms)
        self.sizes = handle.getListState("sizes", "n LONG", 864_000_000)
        self.counts = handle.getMapState("counts", "d LONG", "n LONG", 864_000_000)
        self.sum = handle.getValueState("total", self.total)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timer_values: Any) -> Iterator[Any]:  # noqa: N802
        values = [int(value) for part in rows for value in part.v]
        event = "known" if self.brief.exists() else "new"
        self.brief.update((len(values),))
        self.lasting.update(((self.lasting.get()[0] if self.lasting.exists() else 0) + len(values),))
        self.sizes.appendList([(len(values),)])
        self.counts.updateValue((len(values),), (len(values),))
        former = int(self.sum.get()[0]) if self.sum.exists() else 0
        self.sum.update((str(former + sum(values)) if "STRING" in self.total else former + sum(values),))
        self.handle.registerTimer(timer_values.getCurrentProcessingTimeInMs() + 1)
        yield self._row(key, event)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:  # noqa: N802, N803
        yield self._row(key, "expired")

    def _row(self, key: Any, event: str) -> Any:
        counts = sorted((digit, count) for (digit,), (count,) in self.counts.iterator())
        kept = [self.lasting.get()[0], [size for (size,) in self.sizes.get()], counts, int(self.sum.get()[0])]
        return pd.DataFrame({"k": [key[0]], "event": [event], "kept": [str(kept)]})

    def close(self) -> None:
        pass


def _count(key: Any, frames: Any, state: Any) -> Iterator[Any]:
    total = (state.get[0] if state.exists else 0) + sum(len(frame) for frame in frames)
    state.update((total,))
    yield pd.DataFrame({"k": [key[0]], "n": [total]})


def _windows(read: Read) -> DataFrame:
    return read().groupBy(sf.window("at", "10 seconds"), "k").agg(sf.count("*").alias("n"), sf.sum("v").alias("v"))


def _sessions(read: Read) -> DataFrame:
    return read().groupBy(sf.session_window("at", "4 seconds"), "k").count()


def _joined(read: Read) -> DataFrame:
    other = read().select(sf.col("k").alias("k2"), sf.col("at").alias("at2"), sf.col("v").alias("v2"))
    within = "k = k2 AND at2 >= at - INTERVAL 15 SECONDS AND at2 <= at + INTERVAL 15 SECONDS"
    return read().join(other, sf.expr(within), "left_outer")


def _totals(read: Read) -> DataFrame:
    return (
        read()
        .groupBy("k")
        .applyInPandasWithState(_count, "k INT, n LONG", "n LONG", "append", GroupStateTimeout.NoTimeout)
    )


def _processed(read: Read) -> DataFrame:
    return read().groupBy("k").transformWithStateInPandas(Total(), "k INT, n LONG", "append", "none")


def _collected(read: Read) -> DataFrame:
    columns = "k INT, listed STRING, counted STRING"
    return read().groupBy("k").transformWithStateInPandas(Collections(), columns, "append", "none")


def _timed(read: Read) -> DataFrame:
    columns = "k INT, event STRING, listed STRING"
    return read().groupBy("k").transformWithStateInPandas(Timed(), columns, "append", "EventTime")


def _aging(read: Read) -> DataFrame:
    return aging(read, Aging())


def aging(read: Read, processor: Aging) -> DataFrame:
    columns = "k INT, event STRING, kept STRING"
    return read().groupBy("k").transformWithStateInPandas(processor, columns, "append", "ProcessingTime")


Build = Callable[[Read], DataFrame]
OPERATORS: dict[str, tuple[Build, Mapping[str, str]]] = {
    "aggregation": (_windows, {}),
    "aggregation-second-format": (_windows, _SECOND_FORMAT),
    "dropDuplicates": (lambda read: read().dropDuplicates(["k", "at"]), {}),
    "dropDuplicatesWithinWatermark": (lambda read: read().dropDuplicatesWithinWatermark(["k"]).select("k"), {}),
    "session": (_sessions, {}),
    "join-2": (_joined, {_JOIN: "2"}),
    "join-3": (_joined, {_JOIN: "3"}),
    "applyInPandasWithState": (_totals, {}),
    "transformWithState": (_processed, {}),
    "collections": (_collected, {}),
    "timers": (_timed, {}),
    "aging": (_aging, {"spark.sql.streaming.noDataMicroBatches.enabled": "false"}),  # there would be no last batch
}
REFUSED: dict[str, tuple[Build, Mapping[str, str], str]] = {
    "join-4": (_joined, {_JOIN: "4"}, "is a join with state format 4"),
    "limit": (lambda read: read().select("k").limit(30), {}, "is a limit"),
    "hashmap": (
        _windows,
        {f"{_STORE}providerClass": _CHANGELOG[f"{_STORE}providerClass"].replace("RocksDB", "HDFSBacked")},
        "Spark can only rescale RocksDB",
    ),
}


@dataclass
class Stream:
    spark: SparkSession
    root: Path
    input: Path
    build: Build
    settings: Mapping[str, str]

    @property
    def location(self) -> Path:
        return self.root / "checkpoint"

    @property
    def sink(self) -> Path:
        return self.root / "out"

    def read(self) -> DataFrame:
        files = self.spark.readStream.schema("k INT, at TIMESTAMP, v LONG").json(str(self.input))
        return files.withWatermark("at", "5 seconds")

    def run(self) -> None:
        for name, value in {**_CHANGELOG, **self.settings}.items():
            self.spark.conf.set(name, value)
        try:
            writer = self.build(self.read).writeStream.format("parquet")
            writer = writer.option("path", str(self.sink)).option("checkpointLocation", str(self.location))
            run_to_its_end(writer.trigger(availableNow=True).start)
        finally:
            for name in {**_CHANGELOG, **self.settings}:
                self.spark.conf.unset(name)

    def rows(self) -> Rows:
        frame = self.spark.read.parquet(str(self.sink))
        return Counter(tuple(map(str, row)) for row in frame.collect())

    def families(self) -> Counter[str]:
        """Return how many rows each column family of the first operator has."""
        state = self.spark.read.format("statestore").option("_readAllColumnFamilies", "true").load(str(self.location))
        return Counter({row[0]: row[1] for row in state.groupBy("column_family_name").count().collect()})

    def savepoint(self, directory: Path) -> Savepoint:
        query = QueryLocation("counts", str(self.location), str(self.sink))
        return write_savepoint(directory, JOB, [take_snapshot(query, directory / f"chk-{self.root.name}")])


def feed(directory: Path, number: int) -> None:
    directory.mkdir(exist_ok=True)
    rows = [{"k": (number * 7 + n) % 23, "at": f"2024-01-01T00:{number:02}:{n % 30:02}", "v": n} for n in range(60)]
    part = directory / f".{number}.json"
    part.write_text("\n".join(map(json.dumps, rows)))
    os.utime(part, (1_700_000_000 + number,) * 2)
    part.rename(directory / f"{number}.json")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def driver(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalDriver]:
    directory = tmp_path_factory.mktemp("driver")
    conf = {
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    options = DriverOptions(
        work_dir=directory / "driver",
        log_file=directory / "log" / "spark-driver.log",
        master="local[2]",
        die_with_parent=True,
        conf=conf,
    )
    driver = await LocalDriver.start(options)
    try:
        yield driver
    finally:
        await driver.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def spark(driver: LocalDriver) -> AsyncIterator[SparkSession]:
    endpoint = await driver.open_session(isolated=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")  # PySpark sets it, and leaves it for all that come after
        cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Spark's Python workers do not have the tests
        session = await asyncio.to_thread(SparkSession.builder.remote(endpoint.url).create)
        try:
            yield session
        finally:
            await asyncio.to_thread(session.stop)


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.slow  # test_rescaled_jobs rescales a running query
@pytest.mark.parametrize("name", OPERATORS)
async def test_a_query_goes_on_with_other_partitions(
    driver: LocalDriver, spark: SparkSession, tmp_path: Path, name: str
) -> None:
    build, settings = OPERATORS[name]
    stream = Stream(spark, tmp_path / "live", tmp_path / "in", build, settings)
    undisturbed = Stream(spark, tmp_path / "undisturbed", stream.input, build, settings)
    feed(stream.input, 0)
    await asyncio.to_thread(stream.run)
    await asyncio.to_thread(undisturbed.run)
    saved = await asyncio.to_thread(stream.savepoint, tmp_path)
    before = contents(Path(saved.path))
    up = await rescale_with(driver, plan_rescale(Path(saved.path), 5, tmp_path / "of-5"), at_once=2)
    assert up.rescaled == RescaledFrom(saved.path, saved.created_ms, 5, ("counts",))
    final = await rescale_with(driver, plan_rescale(Path(up.path), 3, tmp_path / "of-3"))
    assert contents(Path(saved.path)) == before
    assert verify_savepoint(Path(final.path)) == []
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]
    [query] = open_savepoint(Path(final.path)).queries
    assert {store.partitions for one in query.description.operators for store in one.stores} == {3}
    assert query.description.conf["spark.sql.shuffle.partitions"] == "3"

    def go_on() -> tuple[Rows, Rows]:
        restore_snapshot(query.snapshot, stream.location, stream.sink)
        for number in (1, 2):
            feed(stream.input, number)
            stream.run()
            undisturbed.run()
        return undisturbed.rows(), stream.rows()

    expected, found = await asyncio.to_thread(go_on)
    assert expected.total() > 0
    assert found == expected
    if name == "aging":  # values of other keys expire, too, by the times that Spark keeps beside them
        assert await asyncio.to_thread(stream.families) == await asyncio.to_thread(undisturbed.families)


async def test_wrong_state_is_found_and_nothing_is_left(
    driver: LocalDriver, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Stream(spark, tmp_path / "live", tmp_path / "in", lambda read: read().dropDuplicates(["k"]), {})
    feed(stream.input, 0)
    await asyncio.to_thread(stream.run)
    saved = await asyncio.to_thread(stream.savepoint, tmp_path)
    repartition = driver.repartition_state

    def misplace(state: Path) -> None:
        first, second = state / "0", state / "1"
        first.rename(state / "x")
        second.rename(first)
        (state / "x").rename(second)
        (second / "_metadata").rename(first / "_metadata")

    def lose(state: Path) -> None:
        parts = [part for part in state.iterdir() if part.name.isdigit() and part.name not in ("0", "1")]
        full = next(part for part in parts if list(part.glob("SSTs/*.sst")))
        empty = next(part for part in parts if not list(part.glob("SSTs/*.sst")))
        shutil.rmtree(full)
        shutil.copytree(empty, full)

    there = set(tmp_path.iterdir())
    for damage, expected in (
        (misplace, "in another partition than their keys belong to"),
        (lose, r"it had \d+ rows and has"),
    ):

        async def damaging(
            location: Path, partitions: int, conf: Mapping[str, str], damage: Callable[[Path], None] = damage
        ) -> None:
            await repartition(location, partitions, conf)
            damage(location / "state" / "0")

        monkeypatch.setattr(driver, "repartition_state", damaging)
        with pytest.raises(SavepointError, match=f"operator 0, store default, column family default: .*{expected}"):
            await rescale_with(driver, plan_rescale(Path(saved.path), 16, tmp_path / "of-16"), at_once=1)
        assert set(tmp_path.iterdir()) == there


@pytest.mark.parametrize(  # tests/unit/test_savepoint_rescale.py shows the refusals of the long forms
    "name", [name if name == "join-4" else pytest.param(name, marks=pytest.mark.slow) for name in REFUSED]
)
async def test_what_does_not_fit_is_refused_before_spark(spark: SparkSession, tmp_path: Path, name: str) -> None:
    build, settings, why = REFUSED[name]
    stream = Stream(spark, tmp_path / "live", tmp_path / "in", build, settings)
    feed(stream.input, 0)
    await asyncio.to_thread(stream.run)
    saved = await asyncio.to_thread(stream.savepoint, tmp_path)
    there = set(tmp_path.iterdir())
    with pytest.raises(SavepointError, match=why):
        plan_rescale(Path(saved.path), 5, tmp_path / "of-5")
    assert set(tmp_path.iterdir()) == there


@pytest.mark.parametrize("is_of_an_earlier_release", [True, pytest.param(False, marks=pytest.mark.slow)])
async def test_spark_opens_the_logs_of_a_query_that_was_restored_twice(
    spark: SparkSession, tmp_path: Path, is_of_an_earlier_release: bool
) -> None:
    """Spark computes the interval of a log from its compacted files; earlier releases left it one of them."""

    def one_by_one(read: Read) -> DataFrame:
        files = spark.readStream.schema("k INT, at TIMESTAMP, v LONG").option("maxFilesPerTrigger", 1)
        return files.json(str(tmp_path / "in"))

    stream = Stream(spark, tmp_path / "live", tmp_path / "in", one_by_one, {})
    logs = (stream.location / "sources" / "0", stream.sink / "_spark_metadata")

    def run(files: range) -> None:
        for number in files:
            feed(stream.input, number)
        stream.run()

    def restore(name: str) -> None:
        if is_of_an_earlier_release:
            for path in (path for log in logs for path in [*sorted(log.glob("?9.compact"))[:-1], log / "9.compact"]):
                path.unlink(missing_ok=True)
        snapshot = take_snapshot(QueryLocation("rows", str(stream.location), str(stream.sink)), tmp_path / name)
        restore_snapshot(snapshot, stream.location, stream.sink)

    def work() -> Rows:
        run(range(25))
        restore("first")
        run(range(25, 52))
        restore("second")
        run(range(52, 53))
        return stream.rows()

    rows = await asyncio.to_thread(work)
    assert (rows.total(), len(rows)) == (53 * 60, 53 * 60)
    assert [opens(list_names(log)) for log in logs] == [True, True]


async def test_the_state_stores_of_ended_queries_are_closed_with_their_task(
    driver: LocalDriver, spark: SparkSession, tmp_path: Path
) -> None:
    """Else Spark uploads their last snapshots up to a minute later, perhaps into a location that was restored."""
    endpoint = await driver.open_session(isolated=False)
    build, settings = OPERATORS["aggregation"]
    of_all = driver._gateway._handles

    def runs() -> set[str]:
        return {str(key.queryRunId()) for key in of_all.as_java(of_all.loaded_states.keysIterator().toSeq())}

    def work() -> str:
        feed(tmp_path / "in", 0)
        Stream(spark.builder.remote(endpoint.url).create(), tmp_path / "ended", tmp_path / "in", build, settings).run()
        stream = Stream(spark, tmp_path / "runs", tmp_path / "in", build, settings)
        writer = stream.build(stream.read).writeStream.format("parquet").option("path", str(stream.sink))
        query = writer.option("checkpointLocation", str(stream.location)).start()
        query.processAllAvailable()
        return str(query.runId)

    running = await asyncio.to_thread(work)
    try:
        assert runs() > {running}
        await driver.release(endpoint)
        assert runs() == {running}
    finally:
        await asyncio.to_thread(lambda: [query.stop() for query in spark.streams.active])

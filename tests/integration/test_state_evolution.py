"""Savepoints whose state gets the operators and types of a new version, on real Spark.

A query of the former version processes rows, and one of the new version a batch without rows. The state of the first
gets the form of the second. Afterwards the new version continues from it, as if it had processed all rows.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

from runtime.checkpoint.errors import SavepointError
from runtime.checkpoint.manifest import EditedFrom
from runtime.checkpoint.savepoint import open_savepoint, verify_savepoint
from runtime.checkpoint.snapshot import restore_snapshot
from runtime.checkpoint.state_evolution import plan_evolution
from runtime.spark.driver.local import LocalDriver
from runtime.spark.edit_function import load_function
from runtime.spark.state_evolution import evolve_with
from tests.integration.test_savepoint_edit import FIRST, LATER, put
from tests.integration.test_savepoint_rescale import (
    OPERATORS,
    Aging,
    Build,
    Read,
    Rows,
    Stream,
    Timed,
    aging,
    contents,
)
from tests.integration.test_savepoint_rescale import driver as driver
from tests.integration.test_savepoint_rescale import spark as spark

pytestmark = pytest.mark.asyncio(loop_scope="module")

AGAIN = [FIRST[59], (98, 28, 1)]
"""Rows after the savepoint: the first of them came before."""


def _counted(read: Read) -> DataFrame:
    return read().groupBy(sf.window("at", "10 seconds"), "k").agg(sf.count("*").alias("n"), sf.max("v").alias("most"))


def _summed(read: Read) -> DataFrame:
    """Aggregate as `_counted`, with another type and another function, over rows without duplicates."""
    values = (sf.count("*").alias("n"), sf.sum("v").alias("v"), sf.max(sf.col("v").cast("int")).alias("top"))
    return read().dropDuplicates(["k", "at", "v"]).groupBy(sf.window("at", "10 seconds"), "k").agg(*values)


_SUMMED = """
from pyspark.sql import functions as sf

def edit(state, part, former):
    rows = state.sparkSession.read.schema("k INT, at TIMESTAMP, v LONG").json({history!r})
    if part.name == "dedupe":
        assert state.count() == 0 and state.schema["key"].dataType.names == ["k", "at", "v"], state.schema
        return rows.select(sf.struct("k", "at", "v").alias("key")).distinct()
    assert state.selectExpr("value.*").columns == ["count", "max"], state.schema
    assert former.read(0).count() == state.count() > 0
    sums = rows.groupBy(sf.window("at", "10 seconds").alias("window"), "k").agg(sf.sum("v").alias("sum"))
    sums = sums.select(sf.struct("window", "k").alias("key"), "sum")
    value = sf.struct("value.count", "sum", sf.col("value.max").cast("int").alias("max"))
    return state.join(sums, "key").select("key", value.alias("value"))
"""

_SAME = """
def edit(state, part):
    return state
"""


def _without_duplicates(read: Read) -> DataFrame:
    return _counted(lambda: read().dropDuplicates(["k", "at", "v"]))


def _once(read: Read) -> DataFrame:
    """Aggregate as `_counted`. The operator with the number 0 is another one.

    Spark 4.3 fails in its first batch if both have the same keys (docs/troubleshooting.md).
    """
    return _counted(read).dropDuplicates(["window", "k", "n"])


_ONCE = """
def edit(state, part, former):
    return former.read(operator=0) if part.name == "stateStoreSave" else state
"""


def _rows(read: Read) -> DataFrame:
    return read().select("k", "v")


_SEEDED = """
from pyspark.sql import functions as sf

def edit(state, part, former):
    assert former.parts == () and part.operator == 0
    rows = state.sparkSession.read.schema("k INT, at TIMESTAMP, v LONG").json({history!r})
    made = rows.groupBy(sf.window("at", "10 seconds").alias("window"), "k").agg(
        sf.count("*").alias("count"), sf.max("v").alias("max")
    )
    made = made.where("window.end > TIMESTAMP '2024-01-01 00:00:24'")  # the others have been sent
    return made.select(sf.struct("window", "k").alias("key"), sf.struct("count", "max").alias("value"))
"""


def _sessions(kind: str) -> Build:
    def build(read: Read) -> DataFrame:
        window = sf.session_window("at", "4 seconds").alias("session")
        top = sf.max(sf.col("v").cast(kind)).alias("top" if kind == "int" else "most")
        return read().groupBy("k", window).agg(sf.count("*").alias("n"), top)

    return build


_SESSIONS = """
from pyspark.sql import functions as sf

def edit(state, part):
    return state.withColumn("value", sf.col("value").withField("max", sf.col("value.max").cast("int")))
"""


def _joined(read: Read) -> DataFrame:
    return _join(read(), read)


def _joined_with_more(read: Read) -> DataFrame:
    """Join as `_joined`; the rows of the left side have another column."""
    return _join(read().withColumn("w", sf.expr("k * 2")), read)


def _join(left: DataFrame, read: Read) -> DataFrame:
    other = read().where("v % 2 = 0 OR v = 1").selectExpr("k AS k2", "at AS at2", "v AS v2")
    within = "k = k2 AND at2 >= at - INTERVAL 15 SECONDS AND at2 <= at + INTERVAL 15 SECONDS"
    return left.join(other, sf.expr(within), "left_outer")


_JOINED = """
from pyspark.sql import functions as sf

def edit(state, part):
    if part.side == "right":
        return state
    more = "named_struct('k', x.k, 'at', x.at, 'v', x.v, 'w', x.k * 2, 'matched', x.matched)"
    return state.select("key", sf.expr(f"transform(value, x -> {{more}})").alias("value"))
"""


class Counted(Timed):
    """Keeps what `Timed` keeps, as texts, and the number of values; it has the same timers."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.values = handle.getListState("values", "v STRING")
        self.count = handle.getValueState("count", "n LONG")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timer_values: Any) -> Iterator[Any]:  # noqa: N802
        values = [str(value) for part in rows for value in part.v]
        if not self.values.exists():
            self.handle.registerTimer(1_704_067_290_000)
        self.values.appendList([(value,) for value in values])
        self.count.update(((self.count.get()[0] if self.count.exists() else 0) + len(values),))
        yield self._row(key, f"kept {self.count.get()[0]}")


def _with_timers(read: Read) -> DataFrame:
    columns = "k INT, event STRING, listed STRING"
    return read().groupBy("k").transformWithStateInPandas(Counted(), columns, "append", "EventTime")


_VARIABLES = """
from pyspark.sql import functions as sf

def edit(state, part, former):
    if part.variable == "count":
        assert state.count() == 0
        number = sf.struct(sf.size("value").cast("bigint").alias("n"))
        return former.read(0, "values").select("key", number.alias("value"))
    return state.select("key", sf.expr("transform(value, x -> named_struct('v', string(x.v)))").alias("value"))
"""


class Lasting(Aging):
    """Keeps the total as a text, and `lasting` without a time to live."""

    total = "n STRING"
    lives_ms = None


_LASTING = """
from pyspark.sql import functions as sf

def edit(state, part):
    if part.variable == "total":
        return state.select("key", sf.struct(sf.col("value.n").cast("string").alias("n")).alias("value"))
    assert part.variable == "lasting" and state.schema["value"].dataType.names == ["value", "ttlExpirationMs"]
    return state.select("key", "value.value")
"""

JOIN_2, JOIN_3 = OPERATORS["join-2"][1], OPERATORS["join-3"][1]
SECOND_FORMAT, AGING = OPERATORS["aggregation-second-format"][1], OPERATORS["aging"][1]

CASES: dict[str, tuple[Build, Build, Mapping[str, str], str, tuple[str, ...]]] = {
    "aggregation": (_counted, _summed, {}, _SUMMED, ()),
    "aggregation-second-format": (_counted, _summed, SECOND_FORMAT, _SUMMED, ()),
    "operator-removed": (_without_duplicates, _counted, {}, _SAME, ("operator 1 (dedupe)",)),
    "operator-moved": (_counted, _once, {}, _ONCE, ()),
    "all-operators-removed": (_counted, _rows, {}, _SAME, ("operator 0 (stateStoreSave)",)),
    "first-operator": (_rows, _counted, {}, _SEEDED, ()),
    "sessions": (_sessions("long"), _sessions("int"), {}, _SESSIONS, ()),
    "join-2": (_joined, _joined_with_more, JOIN_2, _JOINED, ()),
    "join-3": (_joined, _joined_with_more, JOIN_3, _JOINED, ()),
    "variables-and-timers": (OPERATORS["timers"][0], _with_timers, {}, _VARIABLES, ()),
    "variables-that-expire": (OPERATORS["aging"][0], lambda read: aging(read, Lasting()), AGING, _LASTING, ()),
}
"""The query, its new version, settings, the user's file, and what the result lacks."""
SHORT_CASES = ("aggregation",)


@pytest.mark.parametrize(
    "name", [name if name in SHORT_CASES else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
async def test_a_new_version_goes_on_as_if_it_had_seen_all_rows(
    driver: LocalDriver, spark: SparkSession, tmp_path: Path, name: str
) -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Spark's Python workers do not have the tests
    before, after, settings, function, dropped = CASES[name]
    stream = Stream(spark, tmp_path / "live", tmp_path / "in", before, settings)
    empty = Stream(spark, tmp_path / "new", tmp_path / "new-in", after, settings)
    other = Stream(spark, tmp_path / "other", tmp_path / "other-in", after, settings)

    def begin() -> None:
        some = FIRST[:7] if name == "aggregation" else []  # rows of the new version are only compared
        for one, rows in ((stream, FIRST), (empty, some), (other, FIRST)):
            put(one.input, 0, rows)
            one.run()

    await asyncio.to_thread(begin)
    put(tmp_path / "history", 0, FIRST)
    file = tmp_path / "evolve.py"
    file.write_text(function.format(history=str(tmp_path / "history")))
    saved, form = [await asyncio.to_thread(one.savepoint, tmp_path) for one in (stream, empty)]
    there = [contents(Path(one.path)) for one in (saved, form)]
    plan = plan_evolution(Path(saved.path), Path(form.path), tmp_path / "evolved")
    if name == "aggregation":
        with pytest.raises(SavepointError, match="value has the fields count, max; the state has count, sum, max"):
            await evolve_with(driver, plan, lambda state, part: state)
        assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]
        assert not (tmp_path / "evolved").exists()
    evolved = await evolve_with(driver, plan, load_function(file))
    assert evolved.edited is not None
    assert evolved.edited == EditedFrom(saved.path, saved.created_ms, ("counts",), form.path, evolved.edited.dropped)
    assert len(evolved.edited.dropped) == len(dropped)
    assert all(one in text for one, text in zip(dropped, evolved.edited.dropped, strict=True))
    assert [contents(Path(one.path)) for one in (saved, form)] == there
    assert verify_savepoint(Path(evolved.path)) == []
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]
    [query] = open_savepoint(Path(evolved.path)).queries
    [former] = saved.queries
    assert query.snapshot.query_id == former.snapshot.query_id
    assert query.snapshot.offsets == former.snapshot.offsets
    assert query.watermark_ms == former.watermark_ms
    schema = (await asyncio.to_thread(spark.read.parquet, str(other.sink))).schema

    def rows(one: Stream) -> Rows:
        found = spark.read.schema(schema).parquet(str(one.sink))
        return Counter(tuple(map(str, row)) for row in found.collect())

    def go_on() -> tuple[Rows, Rows]:
        restore_snapshot(query.snapshot, stream.location, stream.sink)
        sent, sent_by_other = rows(stream), rows(other)
        stream.build = after
        for number, more in enumerate([[*AGAIN, *LATER[0]], *LATER[1:]], start=1):
            for one in (stream, other):
                put(one.input, number, more)
                one.run()
        return rows(stream) - sent, rows(other) - sent_by_other

    found, expected = await asyncio.to_thread(go_on)
    assert expected.total() > 0
    assert found == expected
    if name == "variables-that-expire":
        assert await asyncio.to_thread(stream.families) == await asyncio.to_thread(other.families)

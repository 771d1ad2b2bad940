"""Edited savepoints on real Spark: a query that goes on from one is as if it had another history.

Each edit drops the state of a key, changes that of another, and adds a third. A second query has the history that
leads to this state. Afterwards both get the same rows, and their file sinks have to get the same.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet
import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from runtime.checkpoint.edit import StatePart, plan_edit
from runtime.checkpoint.errors import SavepointError
from runtime.checkpoint.manifest import EditedFrom
from runtime.checkpoint.savepoint import open_savepoint, verify_savepoint
from runtime.checkpoint.snapshot import restore_snapshot
from runtime.spark.driver.local import LocalDriver
from runtime.spark.driver.state_writer import NewFamily, StatePlace, StateWriter
from runtime.spark.edit_function import load_function
from runtime.spark.errors import DriverLostError
from runtime.spark.state_edit import edit_savepoint, edit_with
from runtime.spark.state_reader import read_state
from tests.integration.test_savepoint_rescale import OPERATORS, Build, Read, Rows, Stream, contents
from tests.integration.test_savepoint_rescale import driver as driver
from tests.integration.test_savepoint_rescale import spark as spark

pytestmark = pytest.mark.asyncio(loop_scope="module")

Row = tuple[int, int, int]
Edit = Callable[[DataFrame, StatePart], DataFrame]

FIRST = [(n % 23, n % 30, n) for n in range(60)]
"""Rows before the savepoint: key, second and value. The watermark is then 24 s, and the window from 20 s on is open."""
LATER = [[(5, 28, 1), (6, 29, 1), (20, 28, 1), (21, 28, 1), (98, 28, 1), (97, 28, 1)], [(0, 900, 0)]]
"""Rows after it, by batch. The last one closes all windows."""


def _types(read: Read) -> DataFrame:
    """Aggregate keys and values of many types; the other operator with state is not edited."""
    keys = (
        sf.window("at", "10 seconds"),
        "k",
        sf.concat(sf.lit("a name of the key "), "k").alias("name"),
        (sf.col("k") / 4).cast("decimal(24, 2)").alias("exact"),
        (sf.col("k") / 2).alias("half"),
        (sf.col("k") > 9).alias("is_big"),
    )
    text = sf.when(sf.col("v") % 2 == 0, sf.concat(sf.lit("text "), "v"))
    values = (
        sf.count("*").alias("n"),
        sf.sum("v").alias("v"),
        sf.avg("v").alias("mean"),
        sf.sum(sf.col("v").cast("decimal(25, 3)")).alias("exactly"),
        sf.max(text).alias("text"),
        sf.max(sf.to_date("at")).alias("day"),
        sf.min("at").alias("first"),
        sf.max(sf.col("v").cast("float")).alias("single"),
        sf.max(sf.array("v", sf.lit(None))).alias("many"),
        sf.max(sf.struct(sf.col("v").cast("short").alias("short"), text.alias("text"))).alias("both"),
    )
    return read().dropDuplicates(["k", "at"]).groupBy(*keys).agg(*values)


def _edit(state: DataFrame, part: StatePart) -> DataFrame:
    """Drop key 20, give the state of key 22 to key 21, and to a new key 98."""
    model = state.where("key.k = 22").selectExpr("value AS model")
    assert model.count() == 1
    kept = state.where("key.k <> 20").crossJoin(model)
    value = sf.when(sf.col("key.k") == 21, sf.col("model")).otherwise(sf.col("value"))
    changed = kept.select("key", value.alias("value"))
    key = sf.col("key").withField("k", sf.lit(98))
    if "_groupingexpression_2" in state.select("key.*").columns:  # keys that are computed have no other name
        key = key.withField("_groupingexpression", sf.lit("a name of the key 98"))
        key = key.withField("_groupingexpression_2", sf.lit(24.5).cast("decimal(24, 2)"))
        key = key.withField("_groupingexpression_3", sf.lit(49.0))
    return changed.unionByName(state.where("key.k = 22").select(key.alias("key"), "value"))


EDITED = [(21, 22, 22), (98, 22, 22)] + [row for row in FIRST if row not in ((20, 20, 20), (21, 21, 21))]
"""The history that leads to this state: in the open window each key has one row, and the first row of a key counts."""


def _edit_counts(state: DataFrame, part: StatePart) -> DataFrame:
    """Drop key 20, give the state of key 5 to key 21, and to a new key 98."""
    model = state.where("key.k = 5").selectExpr("value AS model")
    kept = state.where("key.k <> 20").crossJoin(model)
    value = sf.when(sf.col("key.k") == 21, sf.col("model")).otherwise(sf.col("value"))
    new = state.where("key.k = 5").select(sf.col("key").withField("k", sf.lit(98)).alias("key"), "value")
    return kept.select("key", value.alias("value")).unionByName(new)


COUNTS = [row for row in FIRST if row[0] != 20] + [(21, 25, 0)] + [(98, 25, 0)] * 3
"""Three rows have the key 5, two the key 21."""


def _edit_pairs(state: DataFrame, part: StatePart) -> DataFrame:
    """Drop the pair of key 5, and add one of key 98: the state has no values."""
    kept = state.where("key.k <> 5").select("key")
    return kept.unionByName(kept.where("key.k = 12").withColumn("key", sf.col("key").withField("k", sf.lit(98))))


PAIRS = [row for row in FIRST if row != (5, 28, 28)] + [(98, 28, 28)]

_FILE = """
from pyspark.sql import functions as sf

plus_five = sf.udf(lambda n: n + 5, "bigint")

def edit(state, part):
    assert (part.operator, part.variable) == (0, "total"), part
    more = sf.col("value").withField("n", plus_five("value.n"))
    value = sf.when(sf.col("key.k") == 21, more).otherwise(sf.col("value")).alias("value")
    new = state.sparkSession.sql("SELECT struct(98 AS k) AS key, struct(3L AS n) AS value")
    return state.where("key.k <> 20").select("key", value).unionByName(new)
"""
"""A user's file, with a function that Spark's Python workers run."""

TOTALS = [row for row in FIRST if row[0] != 20] + [(21, 25, 0)] * 5 + [(98, 25, 0)] * 3


def _sessions(read: Read) -> DataFrame:
    """Aggregate sessions whose window stands between the other columns of the group."""
    window = sf.session_window("at", "4 seconds").alias("session")
    grouped = read().groupBy("k", window, (sf.col("k") % 2 == 0).alias("even"))
    return grouped.agg(sf.count("*").alias("n"), sf.sum("v").alias("v"))


def _at(second: int) -> Column:
    return sf.lit(f"2024-01-01 00:00:{second}").cast("timestamp")


def _session(state: DataFrame, model: str, k: int, first: int, last: int, n: int, v: int) -> DataFrame:
    """Return a session with the fields of another one, but for those that are named here."""
    key, value = (state.schema[name].dataType for name in ("key", "value"))
    assert isinstance(key, StructType)
    assert isinstance(value, StructType)
    _, even, start = key.names
    _, window, _, count, total = value.names
    assert (start, count, total) == ("sessionStartTime", "count", "sum")
    same = {"k": sf.lit(k), even: sf.lit(k % 2 == 0)}
    times = sf.struct(_at(first).alias("start"), _at(last).alias("end"))
    fields = {"key": {**same, start: _at(first)}, "value": {**same, window: times, count: sf.lit(n), total: sf.lit(v)}}
    found = state.where(model)
    for name, changed in fields.items():
        for field, content in changed.items():
            kind = "long" if field in (count, total) else "int" if field == "k" else None
            found = found.withColumn(name, sf.col(name).withField(field, content.cast(kind) if kind else content))
    return found.select("key", "value")


def _edit_sessions(state: DataFrame, part: StatePart) -> DataFrame:
    """Drop the session of key 4, move that of key 21, merge those of key 5, and add one of a new key 98."""
    kept = state.where("key.k NOT IN (4, 5, 21)").select("key", "value")
    merged = ("key.k = 5 AND second(key.sessionStartTime) = 21", 5, 21, 32, 3, 79)
    for made in (("key.k = 21", 21, 24, 30, 2, 5), merged, ("key.k = 3", 98, 26, 30, 1, 26)):
        kept = kept.unionByName(_session(state, *made))
    return kept


SESSIONS = [row for row in FIRST if row not in ((4, 27, 27), (21, 21, 21))]
SESSIONS += [(21, 24, 0), (21, 26, 5), (5, 25, 0), (98, 26, 26)]


def _edit_collections(state: DataFrame, part: StatePart) -> DataFrame:
    """Drop key 20, add and remove a value of others, and add a new key 98."""
    if part.variable == "counts":
        seven = sf.when(sf.expr("key.key.k = 21 AND key.userKey.d = 4"), sf.struct(sf.lit(2).cast("long").alias("n")))
        kept = state.where("key.key.k <> 20 AND NOT (key.key.k = 5 AND key.userKey.d = 3)")
        kept = kept.select("key", sf.coalesce(seven, "value").alias("value"))
        new = "named_struct('key', named_struct('k', 98), 'userKey', named_struct('d', d)) AS key"
        return kept.unionByName(
            state.sparkSession.sql(f"SELECT {new}, struct(1L AS n) AS value FROM VALUES (3L), (4L) AS (d)")
        )
    more = sf.when(
        sf.expr("key.k = 21"),
        sf.expr("concat(array(struct(44L AS v)), filter(value, x -> x.v <> 44), array(struct(9L AS v)))"),
    )
    fewer = sf.when(sf.expr("key.k = 5"), sf.expr("filter(value, x -> x.v <> 28)"))
    kept = state.where("key.k <> 20").select("key", sf.coalesce(more, fewer, "value").alias("value"))
    return kept.unionByName(
        state.sparkSession.sql("SELECT struct(98 AS k) AS key, array(struct(4L AS v), struct(3L AS v)) AS value")
    )


def _write_counts_again(state: DataFrame, part: StatePart) -> DataFrame:
    """Write the map as it is: Spark writes the list beside it again too, in its order."""
    return state.select("key", "value") if part.variable == "counts" else state


def _edit_values(state: DataFrame, part: StatePart) -> DataFrame:
    """Add a value to the list of key 21, which has a timer."""
    more = sf.when(sf.expr("key.k = 21"), sf.expr("concat(value, array(struct(9L AS v)))"))
    return state.select("key", sf.coalesce(more, "value").alias("value"))


def _edit_total(state: DataFrame, part: StatePart) -> DataFrame:
    """Add to the total of key 21; the other variables of the key expire."""
    more = sf.when(sf.expr("key.k = 21"), sf.expr("named_struct('n', value.n + 5)"))
    return state.select("key", sf.coalesce(more, "value").alias("value"))


COLLECTIONS = [row for row in FIRST if row[0] not in (20, 21) and row != (5, 28, 28)]
COLLECTIONS += [(21, 14, 44), (21, 21, 21), (21, 22, 9), (98, 25, 4), (98, 25, 3)]


def _joined(read: Read) -> DataFrame:
    """Join rows with those of an even value: rows of an odd one may have no other."""
    other = read().where("v % 2 = 0 OR v = 1").selectExpr("k AS k2", "at AS at2", "v AS v2")
    within = "k = k2 AND at2 >= at - INTERVAL 15 SECONDS AND at2 <= at + INTERVAL 15 SECONDS"
    return read().join(other, sf.expr(within), "left_outer")


def _edit_join(state: DataFrame, part: StatePart) -> DataFrame:
    """Drop key 20, change rows of keys 5 and 21, and add keys 96 and 98, where one row has no other."""
    two = {"left": "", "right": "2"}[str(part.side)]

    def row(k: int, second: int, v: int, matched: str) -> str:
        at = f"TIMESTAMP '2024-01-01 00:00:{second}'"
        return f"named_struct('k{two}', {k}, 'at{two}', {at}, 'v{two}', {v}L, 'matched', {matched})"

    changed = f"transform(value, x -> IF(x.v{two} = 28, {row(5, 29, 30, 'true')}, x))"
    kept = state.where("key.field0 NOT IN (20, 21)")
    kept = kept.select("key", sf.expr(f"IF(key.field0 = 5, {changed}, value)").alias("value"))
    new = {98: [row(98, 25, 4, "true")]}
    if part.side == "left":
        new[98].append(row(98, 26, 3, "true"))
        new |= {96: [row(96, 26, 3, "false")], 21: [row(21, 26, 7, "false")]}
    for key, rows in new.items():
        more = f"SELECT named_struct('field0', {key}) AS key, array({', '.join(rows)}) AS value"
        kept = kept.unionByName(state.sparkSession.sql(more))
    return kept


JOINED = [row for row in FIRST if row[0] not in (20, 21) and row != (5, 28, 28)]
JOINED += [(5, 29, 30), (21, 26, 7), (96, 26, 3), (98, 25, 4), (98, 26, 3)]
JOIN_2, JOIN_3 = OPERATORS["join-2"][1], OPERATORS["join-3"][1]
SECOND_FORMAT = OPERATORS["aggregation-second-format"][1]

CASES: dict[str, tuple[Build, Mapping[str, str], Edit | str, Sequence[Row], int | None]] = {
    "types": (_types, {}, _edit, EDITED, 0),
    "transformWithState": (*OPERATORS["transformWithState"], _FILE, TOTALS, None),
    "collections": (*OPERATORS["collections"], _edit_collections, COLLECTIONS, None),
    "collections-as-they-were": (*OPERATORS["collections"], _write_counts_again, FIRST, None),
    "join-2": (_joined, JOIN_2, _edit_join, JOINED, None),
    "join-2-second-format": (_joined, {**JOIN_2, **SECOND_FORMAT}, _edit_join, JOINED, None),
    "join-3": (_joined, JOIN_3, _edit_join, JOINED, None),
    "timers": (*OPERATORS["timers"], _edit_values, [*FIRST, (21, 22, 9)], None),
    "aging": (*OPERATORS["aging"], _edit_total, [(k, at, 26 if v == 21 else v) for k, at, v in FIRST], None),
    "aggregation": (*OPERATORS["aggregation"], _edit, EDITED, None),
    "aggregation-second-format": (*OPERATORS["aggregation-second-format"], _edit, EDITED, None),
    "applyInPandasWithState": (*OPERATORS["applyInPandasWithState"], _edit_counts, COUNTS, None),
    "sessions": (_sessions, {}, _edit_sessions, SESSIONS, None),
    "dropDuplicates": (*OPERATORS["dropDuplicates"], _edit_pairs, PAIRS, None),
    "dropDuplicatesWithinWatermark": (*OPERATORS["dropDuplicatesWithinWatermark"], _edit, EDITED, None),
}
"""Query, settings, edit, history that leads to the same state, and id of the only edited operator."""
VARIABLES = {"timers": "values", "aging": "total"}
"""The only edited state variable of a case."""
SHORT_CASES = ("types",)


def put(directory: Path, number: int, rows: Sequence[Row]) -> None:
    directory.mkdir(exist_ok=True)
    made = [{"k": k, "at": f"2024-01-01T00:{at // 60:02}:{at % 60:02}", "v": v} for k, at, v in rows]
    part = directory / f".{number}.json"
    part.write_text("\n".join(map(json.dumps, made)))
    os.utime(part, (1_700_000_000 + number,) * 2)
    part.rename(directory / f"{number}.json")


@pytest.mark.parametrize(
    "name", [name if name in SHORT_CASES else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
async def test_a_query_goes_on_as_with_another_history(
    driver: LocalDriver, spark: SparkSession, tmp_path: Path, name: str
) -> None:
    build, settings, function, history, operator = CASES[name]
    if isinstance(function, str):
        file = tmp_path / "change.py"
        file.write_text(function)
        function = load_function(file)
    stream = Stream(spark, tmp_path / "live", tmp_path / "in", build, settings)
    other = Stream(spark, tmp_path / "other", tmp_path / "other-in", build, settings)

    def begin() -> tuple[Rows, Rows]:
        for one, rows in ((stream, FIRST), (other, history)):
            put(one.input, 0, rows)
            one.run()
        return stream.rows(), other.rows()

    sent, sent_by_other = await asyncio.to_thread(begin)
    saved = await asyncio.to_thread(stream.savepoint, tmp_path)
    before = contents(Path(saved.path))
    if name == "timers":
        with pytest.raises(SavepointError, match="timers stay as they are"):
            plan_edit(Path(saved.path), tmp_path / "edited")
    if name == "aging":
        for variable, why in {"sizes": "time to live", "$procTimers_keyToTimestamp": "timers stay as they are"}.items():
            with pytest.raises(SavepointError, match=why):
                plan_edit(Path(saved.path), tmp_path / "edited", variable=variable)
    plan = plan_edit(Path(saved.path), tmp_path / "edited", operator=operator, variable=VARIABLES.get(name))
    edited = await edit_with(driver, plan, function)
    assert edited.edited == EditedFrom(saved.path, saved.created_ms, ("counts",))
    assert contents(Path(saved.path)) == before
    assert verify_savepoint(Path(edited.path)) == []
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]
    [query] = open_savepoint(Path(edited.path)).queries

    def go_on() -> tuple[Rows, Rows]:
        restore_snapshot(query.snapshot, stream.location, stream.sink)
        for number, rows in enumerate(LATER, start=1):
            for one in (stream, other):
                put(one.input, number, rows)
                one.run()
        return stream.rows() - sent, other.rows() - sent_by_other

    found, expected = await asyncio.to_thread(go_on)
    assert expected.total() > 0
    assert found == expected
    if name == "aging":  # values of other keys expire, too, by the times that Spark keeps beside them
        assert await asyncio.to_thread(stream.families) == await asyncio.to_thread(other.families)


_SEED = """
from pyspark.sql import functions as sf

def edit(state, part):
    rows = state.sparkSession.read.schema("k INT, at TIMESTAMP, v LONG").json({history!r})
    {made}
"""
"""A user's file that makes a state of a batch query."""
SEEDS: dict[str, tuple[str, bool]] = {
    "aggregation": (
        """made = rows.groupBy(sf.window("at", "10 seconds").alias("window"), "k").agg(
        sf.count("*").alias("count"), sf.sum("v").alias("sum")
    )
    return made.select(sf.struct("window", "k").alias("key"), sf.struct("count", "sum").alias("value"))""",
        True,
    ),
    "dropDuplicates": ("""return rows.select(sf.struct("k", "at").alias("key")).distinct()""", False),
    "transformWithState": (
        """made = rows.groupBy("k").agg(sf.count("*").alias("n"))
    return made.select(sf.struct("k").alias("key"), sf.struct("n").alias("value"))""",
        False,
    ),
}
"""The code of each batch query, and whether the rows that are sent because of the history come out once more."""


@pytest.mark.parametrize(
    "name", [name if name == "aggregation" else pytest.param(name, marks=pytest.mark.slow) for name in SEEDS]
)
async def test_a_query_with_the_state_of_a_batch_query_goes_on_as_if_it_had_seen_all_rows(
    driver: LocalDriver, spark: SparkSession, tmp_path: Path, name: str
) -> None:
    made, sends_again = SEEDS[name]
    stream = Stream(spark, tmp_path / "live", tmp_path / "in", *OPERATORS[name])
    undisturbed = Stream(spark, tmp_path / "undisturbed", tmp_path / "in-of-all", *OPERATORS[name])
    put(tmp_path / "history", 0, FIRST)
    put(undisturbed.input, 0, FIRST)
    put(stream.input, 0, [])  # a batch without rows: the state has schemas, and is empty
    file = tmp_path / "seed.py"
    file.write_text(_SEED.format(history=str(tmp_path / "history"), made=made))
    await asyncio.to_thread(stream.run)
    saved = await asyncio.to_thread(stream.savepoint, tmp_path)
    plan = plan_edit(Path(saved.path), tmp_path / "seeded")
    [query] = (await edit_with(driver, plan, load_function(file))).queries

    def go_on() -> tuple[Rows, Rows]:
        undisturbed.run()
        sent = Rows() if sends_again else undisturbed.rows()
        restore_snapshot(query.snapshot, stream.location, stream.sink)
        for number, rows in enumerate(LATER, start=1):
            for one in (stream, undisturbed):
                put(one.input, number, rows)
                one.run()
        return stream.rows(), undisturbed.rows() - sent

    found, expected = await asyncio.to_thread(go_on)
    assert expected.total() > 0
    assert found == expected


async def test_a_list_has_its_values_in_order_in_whatever_order_spark_reads_them(
    driver: LocalDriver, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark promises no order of the rows after a shuffle, and keeps the one of a small file by chance."""
    stream = Stream(spark, tmp_path / "live", tmp_path / "in", *OPERATORS["collections"])
    put(stream.input, 0, FIRST)
    await asyncio.to_thread(stream.run)
    saved = await asyncio.to_thread(stream.savepoint, tmp_path)
    run, turned = StateWriter.run, list[str]()

    def run_backwards(writer: StateWriter, families: Sequence[NewFamily]) -> None:
        for family in families:
            for file in family.directory.rglob("*.parquet") if family.directory.is_dir() else [family.directory]:
                table = pyarrow.parquet.read_table(file)
                pyarrow.parquet.write_table(table.take(list(range(len(table)))[::-1]), file)
                turned.append(family.family)
        run(writer, families)

    monkeypatch.setattr(StateWriter, "run", run_backwards)

    def edit(state: DataFrame, part: StatePart) -> DataFrame:
        values = ", ".join(f"named_struct('v', {number}L)" for number in (3, 1, 4, 1, 5, 9, 2, 6, 5, 8))
        return state.select("key", sf.expr(f"array({values})").alias("value"))

    plan = plan_edit(Path(saved.path), tmp_path / "edited", variable="values")
    edited = await edit_with(driver, plan, edit)  # compares what Spark reads with what the function returned
    assert verify_savepoint(Path(edited.path)) == []
    assert turned


async def test_tasks_that_read_the_same_partition_at_once_get_its_rows(
    driver: LocalDriver, spark: SparkSession, tmp_path: Path
) -> None:
    """Each of four tasks reads each partition, and two of them run at once; see `read_once`."""
    stream = Stream(spark, tmp_path / "live", tmp_path / "in", *OPERATORS["aggregation"])
    put(stream.input, 0, [(key, 20, key) for key in range(5000)])
    await asyncio.to_thread(stream.run)
    saved = await asyncio.to_thread(stream.savepoint, tmp_path)
    seen: list[tuple[int, int]] = []

    def look(state: DataFrame) -> None:
        four = state.sparkSession.range(0, 4, 1, 4).hint("shuffle_replicate_nl")
        times = state.select("key").crossJoin(four).groupBy("key").agg(sf.count("*").alias("times"))
        seen.extend((row.times, row["count"]) for row in times.groupBy("times").count().collect())

    def edit(state: DataFrame, part: StatePart) -> DataFrame:
        look(state)
        return state

    with pytest.raises(SavepointError, match="changes nothing"):
        await edit_with(driver, plan_edit(Path(saved.path), tmp_path / "edited"), edit)
    await asyncio.to_thread(lambda: look(read_state(spark, saved.path, tmp_path / "read")))
    assert seen == [(4, 5000)] * 2


@pytest.mark.slow  # unit/test_state_choice.py shows the names
async def test_the_maps_of_a_join_in_one_store_are_read(
    driver: LocalDriver, spark: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path / "live", tmp_path / "in", _joined, JOIN_3)
    put(stream.input, 0, FIRST)
    await asyncio.to_thread(stream.run)
    saved = await asyncio.to_thread(stream.savepoint, tmp_path)

    def count(directory: str, store: str | None, number: str) -> int:
        state = read_state(spark, saved.path, tmp_path / directory, store=store)
        return int(state.selectExpr(number).collect()[0][0])

    counted = await asyncio.to_thread(count, "first", None, "sum(value.value)")
    assert 0 < counted == await asyncio.to_thread(count, "second", "left-keyWithIndexToValue", "count(value.matched)")


async def test_an_edit_ends_when_its_spark_is_killed(driver: LocalDriver, spark: SparkSession, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path / "live", tmp_path / "in", *OPERATORS["aggregation"])
    put(stream.input, 0, FIRST)
    await asyncio.to_thread(stream.run)
    saved = await asyncio.to_thread(stream.savepoint, tmp_path)
    there = set(tmp_path.iterdir())

    def edit(state: DataFrame, part: StatePart) -> DataFrame:
        [jvm] = [one for one in psutil.Process().children() if one.name() == "java" and one.pid != driver.info.pid]
        jvm.kill()
        return state.where("key.k <> 20")

    with pytest.raises(DriverLostError, match=r"the Spark driver \(process \d+\) has ended"):
        await asyncio.to_thread(edit_savepoint, saved.path, edit, tmp_path / "edited")
    assert set(tmp_path.iterdir()) == there


def _fails(state: DataFrame, part: StatePart) -> DataFrame:
    raise ValueError("the function's own error")


WRONG: dict[str, tuple[Callable[[DataFrame, StatePart], Any], str]] = {
    "nothing": (lambda state, part: None, "returned NoneType, and not a DataFrame"),
    "unchanged": (lambda state, part: state, "changes nothing"),
    "raises": (_fails, r"the function fails in line \d+: ValueError: the function's own error"),
    "no key": (lambda state, part: state.select("value"), "it has no column key"),
    "type": (
        lambda state, part: state.withColumn("value", sf.col("value").withField("count", sf.lit(1))),
        "value.count is integer; the state has long",
    ),
    "twice": (
        lambda state, part: state.select("key", "value").unionByName(state.select("key", "value").limit(3)),
        "3 keys more than once",
    ),
    "null": (
        lambda state, part: state.withColumn("key", sf.when(sf.col("key.k") != 21, sf.col("key"))),
        "a key is null",
    ),
    "fails later": (
        lambda state, part: state.where(sf.raise_error(sf.lit("not now")).cast("boolean")),
        "the DataFrame of the function fails",
    ),
}


@pytest.mark.slow  # unit/test_savepoint_edit.py shows the refusals
async def test_what_cannot_be_the_state_is_refused_and_nothing_is_left(
    driver: LocalDriver, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Stream(spark, tmp_path / "live", tmp_path / "in", *OPERATORS["aggregation"])
    put(stream.input, 0, FIRST)
    await asyncio.to_thread(stream.run)
    saved = await asyncio.to_thread(stream.savepoint, tmp_path)
    there = set(tmp_path.iterdir())
    plan = plan_edit(Path(saved.path), tmp_path / "edited")
    for name, (function, why) in WRONG.items():
        with pytest.raises(SavepointError, match=why):
            await edit_with(driver, plan, function)
        assert set(tmp_path.iterdir()) == there, name
    write = driver.write_state

    async def misplace(*arguments: Any) -> None:
        await write(*arguments)
        state = arguments[0] / "state" / "0"
        for old, new in (("0", "x"), ("1", "0"), ("x", "1")):
            (state / old).rename(state / new)
        (state / "1" / "_metadata").rename(state / "0" / "_metadata")

    async def lose(
        location: Path,
        batch: int,
        partitions: int,
        settings: Mapping[str, str],
        families: Sequence[NewFamily],
        former: StatePlace | None,
    ) -> None:
        await write(location, batch, partitions, settings, ())

    for damage, expected in ((misplace, "in another partition than their keys"), (lose, r"it had \d+ rows and has")):
        monkeypatch.setattr(driver, "write_state", damage)
        with pytest.raises(SavepointError, match=f"operator 0, store default, column family default: .*{expected}"):
            await edit_with(driver, plan, lambda state, part: state.where("key.k <> 20"))
        assert set(tmp_path.iterdir()) == there
    monkeypatch.setattr(driver, "write_state", write)
    emptied = await edit_with(driver, plan, lambda state, part: state.limit(0))  # deletes an operator's state
    assert verify_savepoint(Path(emptied.path)) == []


WRONG_SESSIONS: dict[str, tuple[Edit, str]] = {
    "meets": (
        lambda state, part: _session(
            state, "key.k = 5 AND second(key.sessionStartTime) = 21", 5, 21, 28, 1, 51
        ).unionByName(state.where("NOT (key.k = 5 AND second(key.sessionStartTime) = 21)").select("key", "value")),
        "1 sessions overlap or meet the next one of their key",
    ),
    "ends at its start": (
        lambda state, part: _session(state, "key.k = 4", 4, 27, 27, 1, 27),
        "1 sessions end before they start",
    ),
    "moved in its key only": (
        lambda state, part: state.withColumn("key", sf.col("key").withField("sessionStartTime", _at(50))).limit(1),
        "a key is not that of the columns and the session start in its value",
    ),
}


@pytest.mark.slow  # unit/test_savepoint_edit.py shows the last one
async def test_sessions_that_spark_would_not_have_are_refused(
    driver: LocalDriver, spark: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path / "live", tmp_path / "in", _sessions, {})
    put(stream.input, 0, FIRST)
    await asyncio.to_thread(stream.run)
    saved = await asyncio.to_thread(stream.savepoint, tmp_path)
    there = set(tmp_path.iterdir())
    plan = plan_edit(Path(saved.path), tmp_path / "edited")
    for name, (function, why) in WRONG_SESSIONS.items():
        with pytest.raises(SavepointError, match=why):
            await edit_with(driver, plan, function)
        assert set(tmp_path.iterdir()) == there, name

"""Decisions of an edit of a savepoint without Spark: the parts that fit, the schemas, the encoded files."""

from __future__ import annotations

import datetime
import json
import os
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from runtime.checkpoint.description import OperatorDescription, QueryDescription, StoreDescription
from runtime.checkpoint.edit import (
    OPERATORS,
    StatePart,
    expected,
    named_schema,
    partition_fields,
    parts_of,
    plan_edit,
    schema_problem,
)
from runtime.checkpoint.errors import SavepointError
from runtime.checkpoint.manifest import SavepointJob
from runtime.checkpoint.rescale import FamilyState
from runtime.checkpoint.savepoint import write_savepoint
from runtime.checkpoint.snapshot import take_snapshot
from runtime.checkpoint.state_layout import OperatorInfo
from runtime.checkpoint.state_rows import InvalidRowError, RowEncoder
from runtime.checkpoint.state_schema import ColumnFamily
from runtime.spark.state_edit import column_values, encode_files, load_function
from tests.streaming_files import StreamingFiles

_STORE = "spark.sql.streaming.stateStore."
ROCKSDB = {f"{_STORE}providerClass": "org.example.RocksDBStateStoreProvider", "spark.sql.shuffle.partitions": "2"}
PROCESSOR = "transformWithStateInPandasExec"
MAP = {"type": "map", "keyType": "long", "valueType": "long", "valueContainsNull": True}


def schema(**fields: Any) -> str:
    listed = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in fields.items()]
    return json.dumps({"type": "struct", "fields": listed})


def query(
    *operators: str, key: str | None = None, value: str | None = None, family: str = "default", **conf: str
) -> Any:
    kept = ColumnFamily(family, key or schema(k="string"), value or schema(n="long"))
    made = tuple(
        OperatorDescription(number, name, (StoreDescription("default", 2, (kept,)),))
        for number, name in enumerate(operators)
    )
    return QueryDescription("counts", ("file",), made, {**ROCKSDB, **conf})


def properties(*kinds: tuple[str, str], ttl: bool = False) -> list[OperatorInfo]:
    variables = [{"stateName": name, "stateVariableType": kind, "ttlEnabled": ttl} for name, kind in kinds]
    return [OperatorInfo(0, PROCESSOR, (), json.dumps({"timeMode": "NoTime", "stateVariables": variables}))]


@pytest.mark.parametrize("name", sorted({*OPERATORS} - {"sessionWindowStateStoreSaveExec"}))
def test_operators_that_fit(name: str) -> None:
    [part] = parts_of(query(name, family="n"), properties(("n", "ValueState")))
    assert (part.name, part.operator, part.family.name) == (name, 0, "n")
    assert part.variable == ("n" if name == PROCESSOR else None)


@pytest.mark.parametrize(
    ("kept", "infos", "why"),
    [
        (query("dedupe", **{f"{_STORE}providerClass": "a.HDFSBackedStateStoreProvider"}), [], "not RocksDB"),
        (query("globalLimit"), [], r"operator 0 \(globalLimit\) is a limit"),
        (query("dedupe", "globalLimit"), [], r"operator 1 \(globalLimit\) is a limit"),
        (query("symmetricHashJoin", **{"spark.sql.streaming.join.stateFormatVersion": "2"}), [], "no test edits"),
        (query("sessionWindowStateStoreSaveExec"), [], "do not name the key and the session window"),
        (query("stateStoreSave", key=schema()), [], "aggregation without keys"),
        (query("stateStoreSave", value=schema(m=MAP)), [], "m is map<long,long>, which Understudy cannot write"),
        (query("dedupe", key=schema(t="time(6)")), [], r"t is time\(6\), which Understudy cannot write"),
        (
            query(PROCESSOR, family="n"),
            properties(("n", "ListState")),
            r"counts the values of a list in \$rowCounter_n",
        ),
        (query(PROCESSOR, family="n"), properties(("n", "TimerState")), "timers stay as they are"),
        (query(PROCESSOR, family="n"), properties(("n", "ValueState"), ttl=True), "time to live"),
    ],
)
def test_what_does_not_fit_is_named(kept: QueryDescription, infos: list[OperatorInfo], why: str) -> None:
    with pytest.raises(SavepointError, match=why) as caught:
        parts_of(kept, infos)
    assert "query 'counts'" in str(caught.value)
    assert caught.value.remedy


def test_one_operator_or_variable_of_several() -> None:
    joined = query("dedupe", "symmetricHashJoin", **{"spark.sql.streaming.join.stateFormatVersion": "2"})
    assert [part.operator for part in parts_of(joined, [], operator=0)] == [0]
    with pytest.raises(SavepointError, match=r"operator 1 \(symmetricHashJoin\) cannot be edited") as caught:
        parts_of(joined, [])
    assert "by --operator" in caught.value.remedy
    with pytest.raises(SavepointError, match="has no operator 5"):
        parts_of(joined, [], operator=5)
    families = tuple(ColumnFamily(name, schema(k="long"), schema(n="long")) for name in ("a", "b", "$internal"))
    several = query(PROCESSOR)
    several = replace(
        several, operators=(replace(several.operators[0], stores=(StoreDescription("default", 2, families),)),)
    )
    kinds = properties(("a", "ValueState"), ("b", "TimerState"))
    assert [part.variable for part in parts_of(several, kinds, variable="a")] == ["a"]
    with pytest.raises(SavepointError, match="state variable 'b' cannot be edited"):
        parts_of(several, kinds)
    with pytest.raises(SavepointError, match="no state variable '\\$internal'"):
        parts_of(several, kinds, variable="$internal")


def test_a_plan_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    files = StreamingFiles(tmp_path / "live")
    files.run(2)
    kept = write_savepoint(tmp_path, SavepointJob("ab" * 16, "job"), [take_snapshot(files.query, tmp_path / "chk")])
    there = set(tmp_path.iterdir())
    with pytest.raises(SavepointError, match="exists already"):
        plan_edit(Path(kept.path), tmp_path / "chk")
    with pytest.raises(SavepointError, match="no query 'x'"):
        plan_edit(Path(kept.path), tmp_path / "to", "x")
    with pytest.raises(SavepointError, match="not RocksDB"):
        plan_edit(Path(kept.path), tmp_path / "to")
    assert set(tmp_path.iterdir()) == there


WANTED = named_schema(
    schema(
        n="long",
        inner=json.loads(schema(s="string")),
        many=json.loads('{"type": "array", "elementType": "long", "containsNull": true}'),
    )
)


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (schema(n="integer"), "value has the fields n; the state has n, inner, many"),
        (schema(n="integer", inner="string", many="string"), "value.n is integer; the state has long"),
        (schema(n="long", inner="string", many="string"), "value.inner is string; the state has struct<s:string>"),
        (
            schema(n="long", inner=json.loads(schema(s="long")), many="string"),
            "value.inner.s is long; the state has string",
        ),
        (
            schema(
                n="long",
                inner=json.loads(schema(s="string")),
                many={"type": "array", "elementType": "string", "containsNull": False},
            ),
            "value.many.element is string; the state has long",
        ),
    ],
)
def test_a_schema_that_is_not_that_of_the_state(found: str, problem: str) -> None:
    assert schema_problem(WANTED, json.loads(found), "value") == problem


def test_nullability_and_metadata_do_not_matter() -> None:
    found = json.loads(json.dumps(WANTED).replace("true", "false"))
    found["fields"][0]["metadata"] = {"comment": "x"}
    assert schema_problem(WANTED, found, "value") == ""


def test_the_fields_that_decide_the_partition() -> None:
    key = schema(k="string", n="long", start="timestamp")
    assert partition_fields(key, key) == [0, 1, 2]
    assert partition_fields(key, schema(n="long", k="string")) == [1, 0]
    assert partition_fields(key, schema(n="integer")) is None
    assert partition_fields(key, schema(other="long")) is None
    assert partition_fields(key, schema()) is None


def test_what_the_stores_must_hold_after_an_edit() -> None:
    before = [FamilyState(0, "default", "default", 5, 55), FamilyState(1, "default", "n", 3, 33)]
    edited = FamilyState(0, "default", "default", 4, 44)
    assert expected(before, [edited]) == [before[1], edited]


def test_values_of_arrow_for_the_encoder() -> None:
    utc = datetime.UTC
    inner = pyarrow.struct([("at", pyarrow.timestamp("us", "UTC")), ("day", pyarrow.date32())])
    rows = [
        {
            "a": {"at": datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=utc), "day": datetime.date(1970, 1, 3)},
            "b": [1, 2],
        },
        {"a": None, "b": None},
        {"a": {"at": None, "day": None}, "b": []},
    ]
    array = pyarrow.array(rows, pyarrow.struct([("a", inner), ("b", pyarrow.list_(pyarrow.int64()))]))
    values = [((1_000_000, 2), [1, 2]), (None, None), ((None, None), [])]
    assert column_values(array) == values
    assert column_values(array.slice(1)) == values[1:]
    assert column_values(pyarrow.array([Decimal("1.50")])) == [Decimal("1.50")]


def part(key: str, value: str) -> StatePart:
    return StatePart("counts", 0, "dedupe", "default", None, ColumnFamily("default", key, value))


def test_files_are_encoded_with_the_fields_of_the_partition(tmp_path: Path) -> None:
    key, value = schema(k="string", n="integer"), schema(empty="void", s="long", end="void")
    keys = pyarrow.array(
        [{"k": "a", "n": 1}, {"k": "b", "n": None}],
        pyarrow.struct([("k", pyarrow.string()), ("n", pyarrow.int32())]),
    )
    values = pyarrow.array([{"s": 5}, {"s": 6}])
    source, target = tmp_path / "in.parquet", tmp_path / "out.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"key": keys, "value": values}), source)
    encode_files(part(key, value), [(1,)], [source], target)
    found = pyarrow.parquet.read_table(target).to_pylist()
    encode_key, encode_value = RowEncoder(key, is_key=True).encode, RowEncoder(value).encode
    assert found == [
        {
            "partition_0": number,
            "key_bytes": encode_key((name, number)),
            "value_bytes": encode_value((None, content, None)),
            "position": position,
        }
        for position, (name, number, content) in enumerate([("a", 1, 5), ("b", None, 6)])
    ]
    pyarrow.parquet.write_table(pyarrow.table({"key": keys}), source)
    encode_files(part(key, schema(dummy="void")), [(0,)], [source], target)
    assert [row["value_bytes"] for row in pyarrow.parquet.read_table(target).to_pylist()] == [b"\1" + bytes(15)] * 2


def test_null_keys_and_rows_are_refused(tmp_path: Path) -> None:
    kind = pyarrow.struct([("n", pyarrow.int64())])
    source = tmp_path / "in.parquet"
    for keys, values, why in (
        ([None], [{"n": 1}], "a key is null"),
        ([{"n": 1}], [None], "a value is null"),
    ):
        table = pyarrow.table({"key": pyarrow.array(keys, kind), "value": pyarrow.array(values, kind)})
        pyarrow.parquet.write_table(table, source)
        with pytest.raises(InvalidRowError, match=why):
            encode_files(part(schema(n="long"), schema(n="long")), [(0,)], [source], tmp_path / "out.parquet")


def test_the_function_of_a_users_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "0")
    file = tmp_path / "drop.py"
    with pytest.raises(SavepointError, match=r"drop\.py cannot be read"):
        load_function(file)
    file.write_text("n = 1\n")
    with pytest.raises(SavepointError, match="has no function edit") as caught:
        load_function(file)
    assert "def edit(state, part)" in caught.value.remedy
    file.write_text("n = 1\nm = n / 0\n")
    with pytest.raises(SavepointError, match="fails in line 2: ZeroDivisionError"):
        load_function(file)
    file.write_text("import sys\nsys.exit(0)\n")
    with pytest.raises(SavepointError, match="fails in line 2: SystemExit: 0"):
        load_function(file)
    file.write_text("def edit(:\n")
    with pytest.raises(SavepointError, match="SyntaxError"):
        load_function(file)
    file.write_text("def edit(state, part):\n    return state, part\n")
    made: Any = load_function(file)
    assert made(1, 2) == (1, 2)
    assert os.environ["SPARK_CONNECT_MODE_ENABLED"] == "1"

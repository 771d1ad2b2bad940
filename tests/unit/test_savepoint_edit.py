"""Decisions of an edit of a savepoint without Spark: the parts that fit, the schemas, the encoded files."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Collection
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
    Counter,
    PartKind,
    StatePart,
    expected,
    named_schema,
    partition_fields,
    partition_paths,
    parts_of,
    plan_edit,
    schema_problem,
    session_field,
)
from runtime.checkpoint.errors import SavepointError
from runtime.checkpoint.manifest import SavepointJob
from runtime.checkpoint.rescale import FamilyState
from runtime.checkpoint.savepoint import write_savepoint
from runtime.checkpoint.snapshot import take_snapshot
from runtime.checkpoint.state_layout import OperatorInfo
from runtime.checkpoint.state_rows import InvalidRowError, RowEncoder
from runtime.checkpoint.state_schema import ColumnFamily
from runtime.spark.edit_function import load_function
from runtime.spark.state_encoding import column_values, encode_files
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


def struct(**fields: Any) -> Any:
    return json.loads(schema(**fields))


def of_families(operator: str, *families: ColumnFamily, stores: bool = False) -> Any:
    """Return a query with one operator; each family is a store of its own or not."""
    kept = query(operator, **{"spark.sql.streaming.join.stateFormatVersion": "2" if stores else "3"})
    made = (
        tuple(StoreDescription(one.name, 2, (replace(one, name="default"),)) for one in families)
        if stores
        else (StoreDescription("default", 2, families),)
    )
    return replace(kept, operators=(OperatorDescription(0, operator, made),))


SESSIONS = "sessionWindowStateStoreSaveExec"
WINDOW = struct(start="timestamp", end="timestamp")


def session_family(
    key: str = schema(k="long", b="string", sessionStartTime="timestamp"), **fields: Any
) -> ColumnFamily:
    """Return the schemas of sessions, whose window has the mark that Spark gives it."""
    value = struct(**(fields or {"k": "long", "window": WINDOW, "b": "string", "count": "long"}))
    for field in value["fields"]:
        if field["name"] == "window":
            field["metadata"] = {"spark.sessionWindow": True}
    return ColumnFamily("default", key, json.dumps(value))


LIST = (
    ColumnFamily("n", schema(k="long"), schema(v="string")),
    ColumnFamily("$rowCounter_n", schema(k="long"), schema(count="long")),
)
JOIN = tuple(
    ColumnFamily(f"{side}-{name}", key, value)
    for side in ("left", "right")
    for name, key, value in (
        ("keyToNumValues", schema(field0="long"), schema(value="long")),
        ("keyWithIndexToValue", schema(field0="long", index="long"), schema(v="string", matched="boolean")),
    )
)


def properties(*kinds: tuple[str, str], ttl: Collection[str] = ()) -> list[OperatorInfo]:
    variables = [{"stateName": name, "stateVariableType": kind, "ttlEnabled": name in ttl} for name, kind in kinds]
    return [OperatorInfo(0, PROCESSOR, (), json.dumps({"timeMode": "NoTime", "stateVariables": variables}))]


@pytest.mark.parametrize("name", sorted({*OPERATORS} - {SESSIONS, "symmetricHashJoin"}))
def test_operators_that_fit(name: str) -> None:
    [part] = parts_of(query(name, family="n"), properties(("n", "ValueState")))
    assert (part.name, part.operator, part.family.name) == (name, 0, "n")
    assert part.variable == ("n" if name == PROCESSOR else None)


def test_session_windows_fit_where_the_window_and_the_group_are_known() -> None:
    [part] = parts_of(of_families(SESSIONS, session_family()), [])
    assert (part.kind, session_field(part.family)) == (PartKind.SESSIONS, 1)
    assert partition_paths(part, schema(k="long", b="string")) == [(0,), (1,)]
    for family in (
        ColumnFamily("default", part.family.key, part.family.value.replace("spark.sessionWindow", "no mark")),
        session_family(k="long", window=WINDOW, c="string"),
        session_family(k="long", b="string", n="long", window=WINDOW),
        session_family(k="long", window=struct(start="timestamp"), b="string"),
    ):
        assert session_field(family) is None
        with pytest.raises(SavepointError, match="do not name the key and the session window") as caught:
            parts_of(of_families(SESSIONS, family), [])
        assert "by --operator" in caught.value.remedy


def test_maps_and_lists_of_a_state_variable_fit() -> None:
    [part] = parts_of(of_families(PROCESSOR, *LIST), properties(("n", "ListState")))
    assert (part.kind, part.counter) == (PartKind.LIST, Counter("default", LIST[1]))
    assert part.value_type == {"type": "array", "elementType": named_schema(schema(v="string")), "containsNull": True}
    assert partition_paths(part, schema(k="long")) == [(0,)]
    both = ColumnFamily("n", schema(key=struct(a="string", b="long"), userKey=struct(a="string")), schema(v="string"))
    [part] = parts_of(of_families(PROCESSOR, both), properties(("n", "MapState")))
    assert (part.kind, part.counter) == (PartKind.MAP, None)
    assert partition_paths(part, schema(a="string", b="long")) == [(0, 0), (0, 1)]
    assert partition_paths(part, schema(c="double")) is None


@pytest.mark.parametrize("stores", [True, False])
def test_each_side_of_a_join_is_a_part(stores: bool) -> None:
    parts = parts_of(of_families("symmetricHashJoin", *JOIN, stores=stores), [])
    assert [(part.kind, part.side) for part in parts] == [(PartKind.JOIN, "left"), (PartKind.JOIN, "right")]
    left = parts[0]
    store, family = ("left-keyToNumValues", "default") if stores else ("default", "left-keyToNumValues")
    assert left.counter == Counter(store, replace(JOIN[0], name=family))
    assert left.key_type == named_schema(schema(field0="long"))
    assert left.value_type["elementType"] == named_schema(schema(v="string", matched="boolean"))
    assert partition_paths(left, schema(field0="long")) == [(0,)]
    assert str(left).endswith("(symmetricHashJoin), left side")


@pytest.mark.parametrize(
    "families",
    [
        JOIN[:3],
        (*JOIN[:3], replace(JOIN[3], key=schema(field0="long", number="long"))),
        (*JOIN[:3], replace(JOIN[3], key=schema(field0="string", index="long"))),
        (*JOIN[:3], replace(JOIN[3], value=schema(v="string", seen="boolean"))),
        (*JOIN[:2], replace(JOIN[2], value=schema(value="string")), JOIN[3]),
    ],
)
def test_a_join_whose_maps_do_not_fit_together_is_refused(families: tuple[ColumnFamily, ...]) -> None:
    with pytest.raises(SavepointError, match="does not keep the rows of its right side as Spark") as caught:
        parts_of(of_families("symmetricHashJoin", *families), [])
    assert "by --operator" in caught.value.remedy


@pytest.mark.parametrize(
    ("kept", "infos", "why"),
    [
        (query("dedupe", **{f"{_STORE}providerClass": "a.HDFSBackedStateStoreProvider"}), [], "not RocksDB"),
        (query("globalLimit"), [], r"operator 0 \(globalLimit\) is a limit"),
        (query("dedupe", "globalLimit"), [], r"operator 1 \(globalLimit\) is a limit"),
        (query("symmetricHashJoin", **{"spark.sql.streaming.join.stateFormatVersion": "4"}), [], "state format 4"),
        (query("stateStoreSave", key=schema()), [], "aggregation without keys"),
        (query("stateStoreSave", value=schema(m=MAP)), [], "m is map<long,long>, which Understudy cannot write"),
        (query("dedupe", key=schema(t="time(6)")), [], r"t is time\(6\), which Understudy cannot write"),
        (
            query(PROCESSOR, family="n"),
            properties(("n", "ListState")),
            r"counts the values of a list in \$rowCounter_n",
        ),
        (query(PROCESSOR, family="n"), properties(("n", "TimerState")), "timers stay as they are"),
        (
            query(PROCESSOR, family="n"),
            properties(("n", "NewState")),
            "it is a NewState, and only ValueState, MapState",
        ),
        (
            of_families(PROCESSOR, replace(LIST[0], value=schema(v="void")), LIST[1]),
            properties(("n", "ListState")),
            "always null",
        ),
        (query(PROCESSOR, family="n"), properties(("n", "ValueState"), ttl="n"), "stays as it is while the others"),
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
    with pytest.raises(SavepointError, match=r"operator 1 \(symmetricHashJoin\) does not keep the rows") as caught:
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
    expiring = properties(("a", "ValueState"), ("b", "ValueState"), ttl="b")
    assert [part.variable for part in parts_of(several, expiring, variable="a")] == ["a"]
    with pytest.raises(SavepointError, match="'b' cannot be edited: it has a time to live") as caught:
        parts_of(several, expiring)
    assert "by --variable" in caught.value.remedy
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


def stored(source: Path, rows: list[dict[str, Any]], **types: Any) -> list[Path]:
    """Write rows as Parquet, as Spark would."""
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, pyarrow.schema(list(types.items()))), source)
    return [source]


def test_lists_are_encoded_in_their_order_and_counted(tmp_path: Path) -> None:
    key = pyarrow.struct([("k", pyarrow.int64())])
    for kind, families, element in (
        (PartKind.LIST, LIST, {"v": "a"}),
        (PartKind.JOIN, (JOIN[1], JOIN[0]), {"v": "a", "matched": True}),
    ):
        made = StatePart("counts", 0, "", "default", None, families[0], kind=kind, counter=Counter("x", families[1]))
        fields = [("v", pyarrow.string()), *([("matched", pyarrow.bool_())] if kind is PartKind.JOIN else [])]
        value = pyarrow.list_(pyarrow.struct(fields))
        rows = [{"key": {"k": 7}, "value": [element, {**element, "v": "b"}]}, {"key": {"k": 8}, "value": [element]}]
        files = stored(tmp_path / "in.parquet", rows, key=key, value=value)
        target, counts = tmp_path / "rows.parquet", tmp_path / "counts.parquet"
        encode_files(made, [(0,)], files, target, counts)
        encode_key, encode_value = RowEncoder(families[0].key, is_key=True).encode, RowEncoder(families[0].value).encode
        rest = tuple(element.values())[1:]
        found = [tuple(row.values()) for row in pyarrow.parquet.read_table(target).to_pylist()]
        assert found == [
            (k, encode_key((k, index) if kind is PartKind.JOIN else (k,)), encode_value((text, *rest)), position)
            for position, (k, index, text) in enumerate([(7, 0, "a"), (7, 1, "b"), (8, 0, "a")])
        ]
        encode_key, encode_value = RowEncoder(families[1].key, is_key=True).encode, RowEncoder(families[1].value).encode
        found = [tuple(row.values()) for row in pyarrow.parquet.read_table(counts).to_pylist()]
        assert found == [(7, encode_key((7,)), encode_value((2,)), 0), (8, encode_key((8,)), encode_value((1,)), 1)]
        wrong: list[tuple[Any, str]] = [
            (None, "null or has no values"),
            ([], "no values"),
            ([None], "in a list is null"),
        ]
        if kind is PartKind.JOIN:
            wrong.append(([{**element, "matched": None}], "matched is null"))
        for content, why in wrong:
            stored(files[0], [{"key": {"k": 7}, "value": content}], key=key, value=value)
            with pytest.raises(InvalidRowError, match=why):
                encode_files(made, [(0,)], files, target, counts)
        encode_files(made, [(0,)], stored(files[0], [], key=key, value=value), target, counts)
        assert pyarrow.parquet.read_table(counts).column_names == [
            "partition_0",
            "key_bytes",
            "value_bytes",
            "position",
        ]


def test_the_partition_of_a_map_is_that_of_its_group(tmp_path: Path) -> None:
    family = ColumnFamily("n", schema(key=struct(k="long"), userKey=struct(d="string")), schema(v="string"))
    made = StatePart("counts", 0, PROCESSOR, "default", "n", family, kind=PartKind.MAP)
    group, inner = pyarrow.struct([("k", pyarrow.int64())]), pyarrow.struct([("d", pyarrow.string())])
    rows = [{"key": {"key": {"k": 7}, "userKey": {"d": "x"}}, "value": {"v": "a"}}]
    types = {
        "key": pyarrow.struct([("key", group), ("userKey", inner)]),
        "value": pyarrow.struct([("v", pyarrow.string())]),
    }
    target = tmp_path / "out.parquet"
    encode_files(made, [(0, 0)], stored(tmp_path / "in.parquet", rows, **types), target)
    [found] = pyarrow.parquet.read_table(target).to_pylist()
    assert (found["partition_0"], found["key_bytes"]) == (7, RowEncoder(family.key, is_key=True).encode(((7,), ("x",))))
    for half in ("key", "userKey"):
        rows[0]["key"] = {"key": {"k": 7}, "userKey": {"d": "x"}, half: None}
        with pytest.raises(InvalidRowError, match="the group or the userKey of a map is null"):
            encode_files(made, [(0, 0)], stored(tmp_path / "in.parquet", rows, **types), target)


def test_the_key_of_a_session_is_that_of_its_value(tmp_path: Path) -> None:
    family = session_family()
    made = StatePart("counts", 0, SESSIONS, "default", None, family, kind=PartKind.SESSIONS)
    time = pyarrow.timestamp("us", "UTC")
    key = pyarrow.struct([("k", pyarrow.int64()), ("b", pyarrow.string()), ("sessionStartTime", time)])
    window = pyarrow.struct([("start", time), ("end", time)])
    value = pyarrow.struct(
        [("k", pyarrow.int64()), ("window", window), ("b", pyarrow.string()), ("count", pyarrow.int64())]
    )
    good = {"k": 1, "window": {"start": 5, "end": 9}, "b": "x", "count": 2}
    target = tmp_path / "out.parquet"
    for content in (good, {**good, "k": 2}, {**good, "b": None}, {**good, "window": {"start": 6, "end": 9}}):
        row = {"key": {"k": 1, "b": "x", "sessionStartTime": 5}, "value": content}
        files = stored(tmp_path / "in.parquet", [row], key=key, value=value)
        if content is good:
            encode_files(made, [(0,), (1,)], files, target)
            assert pyarrow.parquet.read_table(target).num_rows == 1
            continue
        with pytest.raises(InvalidRowError, match="not that of the columns and the session start in its value"):
            encode_files(made, [(0,), (1,)], files, target)


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
    file.write_text("n = 1\nopen('/nowhere/accounts.csv')\n")
    with pytest.raises(SavepointError, match=r"fails in line 2: FileNotFoundError: .*accounts\.csv"):
        load_function(file)
    file.write_text("def edit(:\n")
    with pytest.raises(SavepointError, match="SyntaxError"):
        load_function(file)
    file.write_text("def edit(state, part):\n    return state, part\n")
    made: Any = load_function(file)
    assert made(1, 2) == (1, 2)
    assert os.environ["SPARK_CONNECT_MODE_ENABLED"] == "1"


def test_the_function_is_made_of_the_text_that_its_file_has_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "0")
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    file = tmp_path / "drop.py"
    for number in (1, 2):
        file.write_text(f"def edit(state, part):\n    return {number}\n")
        os.utime(file, (1, 1))  # so a cache of its byte code would count as that of this text
        made: Any = load_function(file)
        assert made(None, None) == number
    assert list(tmp_path.iterdir()) == [file]

"""Decisions of an evolution of state without Spark: which forms fit, what stays, and what is left out."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtime.checkpoint.description import QueryDescription
from runtime.checkpoint.edit import StatePart, can_encode, parts_of, readable_parts
from runtime.checkpoint.errors import SavepointError
from runtime.checkpoint.files import list_files
from runtime.checkpoint.manifest import Savepoint, SavepointJob, SavepointQuery
from runtime.checkpoint.metadata_log import SOURCE_EVOLUTION, read_offsets
from runtime.checkpoint.rescale import FamilyState
from runtime.checkpoint.restore import restore_snapshot
from runtime.checkpoint.savepoint import write_savepoint
from runtime.checkpoint.snapshot import take_snapshot
from runtime.checkpoint.state_evolution import (
    Evolution,
    check_forms,
    check_lifetimes,
    kept_families,
    places_of,
    plan_evolution,
    prepare,
    with_conf,
)
from runtime.checkpoint.state_layout import OperatorInfo, StoreInfo
from runtime.checkpoint.state_schema import ColumnFamily
from runtime.protocol.query_snapshot import NOTHING_COMMITTED, QuerySnapshot
from runtime.spark.edit_function import call_function
from tests.streaming_files import StreamingFiles, write
from tests.unit.test_savepoint_edit import (
    JOIN,
    LIST,
    MAP,
    PROCESSOR,
    ROCKSDB,
    of_families,
    properties,
    query,
    schema,
)

PROVIDER, PARTITIONS, ENCODING = (
    "spark.sql.streaming.stateStore.providerClass",
    "spark.sql.shuffle.partitions",
    "spark.sql.streaming.stateStore.encodingFormat",
)
HASHED = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
OLD, NEW = query("stateStoreSave"), query("stateStoreSave", "dedupe", value=schema(n="long", v="long"))
TIMERS = ColumnFamily("$eventTimers_keyToTimestamp", schema(key="long", at="long"), schema(dummy="void"))


def with_setting(one: QueryDescription, key: str, value: str) -> QueryDescription:
    return replace(one, conf={**one.conf, key: value})


def evolution(old: QueryDescription, new: QueryDescription, infos: Any = (), new_infos: Any = ()) -> Evolution:
    snapshot = QuerySnapshot("counts", "id", "/live", None, "/snapshot", 3, [], 0, 0)
    parts = parts_of(new, new_infos, times_stay=True)
    kept = tuple(kept_families(old, new, parts))
    queries = [SavepointQuery(snapshot, one) for one in (old, new)]
    return Evolution(*queries, parts, readable_parts(old, infos), kept)


def test_versions_that_fit() -> None:
    check_forms(OLD, NEW, ("1", "1"), (0, 5), ())
    stateless = replace(OLD, operators=())
    check_forms(stateless, with_setting(NEW, PARTITIONS, "7"), ("1", "1"), (0, 0), ())
    check_forms(with_setting(stateless, PROVIDER, HASHED), NEW, ("2", "2"), (0, 0), ())
    check_forms(OLD, with_setting(stateless, PROVIDER, HASHED), ("1", "1"), (0, 0), ())
    check_forms(OLD, NEW, ("1", "1"), (4, 5), [OperatorInfo(0, PROCESSOR, (StoreInfo("default", 2, ("a",)),))])


@pytest.mark.parametrize(
    ("old", "new", "commits", "why", "remedy"),
    [
        (with_setting(OLD, PROVIDER, HASHED), NEW, ("1", "1"), "its state is not in RocksDB", "savepoint convert"),
        (
            OLD,
            with_setting(NEW, PROVIDER, HASHED),
            ("1", "1"),
            "of the new version is not in RocksDB",
            "-D state.backend",
        ),
        (OLD, with_setting(NEW, PARTITIONS, "7"), ("1", "1"), "has 2 partitions, and .* new version 7", "partitions=2"),
        (OLD, NEW, ("1", "2"), "has format 1, and that of the new version 2", "checkpointFormatVersion=1"),
        (OLD, with_setting(NEW, ENCODING, "avro"), ("1", "1"), "keeps its state in avro", "encodingFormat=unsaferow"),
    ],
)
def test_settings_that_do_not_fit_are_refused_with_what_makes_them_fit(
    old: QueryDescription, new: QueryDescription, commits: tuple[str, str], why: str, remedy: str
) -> None:
    with pytest.raises(SavepointError, match=why) as caught:
        check_forms(old, new, commits, (0, 0), ())
    assert remedy in caught.value.remedy


def test_schemas_of_a_later_batch_than_the_result_has_are_refused() -> None:
    infos = [OperatorInfo(0, PROCESSOR, (StoreInfo("default", 2, ("a",)),))]
    with pytest.raises(SavepointError, match="is at batch 6, and it is at batch 4") as caught:
        check_forms(OLD, NEW, ("1", "1"), (4, 6), infos)
    assert "after its first batch" in caught.value.remedy


def test_a_part_has_the_former_one_of_the_same_operator_and_variable() -> None:
    made = evolution(OLD, NEW)
    first, second = made.parts
    former = made.former_of(first)
    assert former is not None
    assert former.family.value == schema(n="long")
    assert made.former_of(second) is None
    assert evolution(query("dedupe"), NEW).former_of(first) is None
    joined = of_families("symmetricHashJoin", *JOIN), of_families("symmetricHashJoin", *JOIN, stores=True)
    left, right = (found := evolution(*joined)).parts
    assert [str(found.former_of(one)) for one in (left, right)] == [str(left), str(right)]
    values = replace(of_families(PROCESSOR, ColumnFamily("n", schema(k="long"), schema(v="long"))))
    found = evolution(
        values,
        of_families(PROCESSOR, *LIST, ColumnFamily("m", schema(k="long"), schema(v="long"))),
        properties(("n", "ValueState")),
        properties(("n", "ListState"), ("m", "ValueState")),
    )
    assert [found.former_of(one) is not None for one in found.parts] == [True, False]


def test_timers_stay_where_both_versions_have_them_with_the_same_schemas() -> None:
    kinds = properties(("n", "ValueState"), (TIMERS.name, "TimerState"))
    value = ColumnFamily("n", schema(k="long"), schema(v="long"))
    old = of_families(PROCESSOR, value, TIMERS)
    new = of_families(PROCESSOR, replace(value, value=schema(v="string")), TIMERS)
    made = evolution(old, new, kinds, kinds)
    assert [part.variable for part in made.parts] == ["n"]
    assert made.kept == ((0, "default", TIMERS.name),)
    assert (
        evolution(old, of_families(PROCESSOR, value, replace(TIMERS, key=schema(key="int"))), kinds, kinds).kept == ()
    )
    assert evolution(query("dedupe"), new, (), kinds).kept == ()


EXPIRING = (
    *LIST,
    ColumnFamily("$ttl_n", schema(at="long", k="long"), schema(v="void")),
    ColumnFamily("$min_n", schema(k="long"), schema(at="long")),
    ColumnFamily("$count_n", schema(k="long"), schema(n="long")),
)


def test_values_with_a_time_to_live_stay_where_both_versions_have_the_same() -> None:
    kinds = properties(("n", "ListState"), ttl="n")
    both = of_families(PROCESSOR, *EXPIRING)
    check_lifetimes(both, both, kinds, kinds)
    made = evolution(both, both, kinds, kinds)
    assert made.parts == ()
    assert [name for _, _, name in made.kept] == [one.name for one in EXPIRING]
    check_lifetimes(query("dedupe"), both, (), kinds)  # the variable is new, and has no values at first
    check_lifetimes(of_families(PROCESSOR, TIMERS), both, properties((TIMERS.name, "TimerState")), kinds)
    check_lifetimes(both, of_families(PROCESSOR, *LIST), kinds, properties(("n", "ListState")))


@pytest.mark.parametrize(
    ("families", "kind", "ttl"),
    [
        (LIST, "ListState", ""),
        (EXPIRING, "ValueState", "n"),
        ((replace(LIST[0], value=schema(v="date")), *EXPIRING[1:]), "ListState", "n"),
        (EXPIRING[:-1], "ListState", "n"),
    ],
)
def test_values_with_a_time_to_live_that_had_none_or_another_type_are_refused(
    families: tuple[ColumnFamily, ...], kind: str, ttl: str
) -> None:
    new = of_families(PROCESSOR, *EXPIRING), properties(("n", "ListState"), ttl="n")
    with pytest.raises(SavepointError, match="state variable 'n': its time to live is new") as caught:
        check_lifetimes(of_families(PROCESSOR, *families), new[0], properties(("n", kind), ttl=ttl), new[1])
    assert "another name" in caught.value.remedy


def test_a_version_without_the_time_to_live_reads_the_values() -> None:
    old, new = of_families(PROCESSOR, *EXPIRING), of_families(PROCESSOR, *LIST)
    made = evolution(old, new, properties(("n", "ListState"), ttl="n"), properties(("n", "ListState")))
    [part] = made.parts
    former = made.former_of(part)
    assert former is not None
    before = [FamilyState(0, "default", one.name, 5, 0) for one in EXPIRING]
    assert made.dropped(before, [former]) == ()
    assert len(made.dropped(before, ())) == len(EXPIRING)


def test_state_that_nothing_has_read_is_named() -> None:
    old = of_families(PROCESSOR, *LIST, TIMERS)
    kinds = properties(("n", "ListState"), (TIMERS.name, "TimerState"))
    made = evolution(old, NEW, kinds)
    before = [FamilyState(0, "default", one.name, 5, 0) for one in (*LIST, TIMERS)]
    [timers] = made.dropped(before, made.former)
    assert TIMERS.name in timers
    assert "operator 0 (transformWithStateInPandasExec)" in timers
    assert "5 rows" in timers
    assert len(made.dropped(before, ())) == 3
    assert made.dropped([replace(one, rows=0) for one in before], ()) == ()
    assert evolution(old, old, kinds, kinds).dropped(before, made.former) == ()


def test_what_cannot_be_written_can_be_read() -> None:
    [part] = readable_parts(query("stateStoreSave", value=schema(m=MAP)), ())
    assert not can_encode(part)
    assert can_encode(readable_parts(OLD, ())[0])
    assert readable_parts(query("globalLimit", "dedupe"), ())[0].operator == 1
    assert places_of(readable_parts(of_families("symmetricHashJoin", *JOIN), ())[0]) == [
        (0, "default", "left-keyWithIndexToValue"),
        (0, "default", "left-keyToNumValues"),
    ]


def test_the_settings_of_the_new_version_count_but_for_those_of_the_offsets() -> None:
    metadata = {"batchWatermarkMs": 7, "conf": {"a": "1", "b": "2", SOURCE_EVOLUTION: "true"}}
    content = f"v2\n{json.dumps(metadata)}\nus:1\n".encode()
    found = with_conf(content, {"a": "3", "c": "4", SOURCE_EVOLUTION: "false"})
    read = read_offsets(found)
    assert read.conf == {"a": "3", "c": "4", SOURCE_EVOLUTION: "true"}
    assert (read.watermark_ms, read.sources, read.names) == (7, ("1",), ("us",))
    assert SOURCE_EVOLUTION not in read_offsets(with_conf(b'v1\n{"conf":{}}\n1', {SOURCE_EVOLUTION: "true"})).conf


def test_a_function_gets_the_former_state_if_it_takes_it() -> None:
    [part] = readable_parts(OLD, ())

    def two(state: object, part: StatePart) -> object:
        return (state, part)

    def three(state: object, part: StatePart, former: object) -> object:
        return (state, part, former)

    for function, former, given in ((two, "former", 2), (three, "former", 3), (two, None, 2)):
        with pytest.raises(SavepointError, match="returned tuple"):
            call_function(function, "state", part, former)  # type: ignore[arg-type]
        assert given
    with pytest.raises(SavepointError, match="missing 1 required positional argument: 'former'"):
        call_function(three, "state", part)  # type: ignore[arg-type]


def saved(
    tmp_path: Path, name: str, value: str, *, batches: int = 2, queries: str = "counts", **conf: str
) -> Savepoint:
    """Write a savepoint of a query whose state has a schema of values."""
    files = StreamingFiles(tmp_path / name, provider="changelog", name=queries)
    if batches:
        files.run(batches, whole=range(1, batches + 1))
    texts = [text.encode() for text in ("v1", schema(k="string"), value)]
    content = b"".join(struct.pack(">H", len(text)) + text for text in texts)
    write(files.location / "state/0/_metadata/metadata", json_metadata())
    write(files.location / "state/0/0/_metadata/schema", content)
    for log in (files.location / "offsets").glob("[0-9]*"):
        version, text, *offsets = log.read_text().splitlines()
        changed = {**json.loads(text), "conf": {**ROCKSDB, **conf}}
        write(log, "\n".join([version, json.dumps(changed), *offsets]))
    return write_savepoint(
        tmp_path, SavepointJob("ab" * 16, "job"), [take_snapshot(files.query, tmp_path / f"chk-{name}")]
    )


def json_metadata() -> str:
    stores = [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": 2}]
    return f"v1\n{json.dumps({'operatorInfo': {'operatorId': 0, 'operatorName': 'dedupe'}, 'stateStoreInfo': stores})}"


def test_a_plan_has_the_queries_whose_state_has_another_form(tmp_path: Path) -> None:
    old, same, new = (
        Path(saved(tmp_path, name, schema(**{column: kind})).path)
        for name, column, kind in (("old", "n", "long"), ("same", "n", "long"), ("new", "n", "string"))
    )
    [found] = plan_evolution(old, new, tmp_path / "to").queries
    assert [part.family.value for part in (*found.parts, *found.former)] == [schema(n="string"), schema(n="long")]
    there = set(tmp_path.iterdir())
    with pytest.raises(SavepointError, match=r"no query of .* has other operators or other types") as caught:
        plan_evolution(old, same, tmp_path / "to")
    assert "without --schemas-from" in caught.value.remedy
    assert len(plan_evolution(old, same, tmp_path / "to", "counts").queries) == 1
    with pytest.raises(SavepointError, match="no query 'x'"):
        plan_evolution(old, new, tmp_path / "to", "x")
    with pytest.raises(SavepointError, match="exists already"):
        plan_evolution(old, new, tmp_path / "chk-old")
    assert set(tmp_path.iterdir()) == there


def test_a_query_without_a_batch_has_no_form(tmp_path: Path) -> None:
    old = saved(tmp_path, "old", schema(n="long"))
    none = saved(tmp_path, "none", schema(n="string"), batches=0)
    assert none.queries[0].snapshot.batch_id == NOTHING_COMMITTED
    for one, other in ((old, none), (none, old)):
        with pytest.raises(SavepointError, match="has committed no batch"):
            plan_evolution(Path(one.path), Path(other.path), tmp_path / "to")


def test_the_prepared_location_has_one_position_and_the_other_schemas_and_no_rows(tmp_path: Path) -> None:
    old = saved(tmp_path, "old", schema(n="long"), batches=4, a="1")
    new = saved(tmp_path, "new", schema(n="string"), a="2", b="3")
    plan = plan_evolution(Path(old.path), Path(new.path), tmp_path / "to")
    restore_snapshot(new.queries[0].snapshot, tmp_path / "form", None)
    prepare(plan.queries[0], tmp_path / "location", tmp_path / "form")
    found = {name: (tmp_path / "location" / name).read_bytes() for name in list_files(tmp_path / "location")}
    assert {name for name in found if name.startswith("state/") and not name.endswith(".crc")} == {
        "state/0/_metadata/metadata",
        "state/0/0/_metadata/schema",
    }
    assert b"string" in found["state/0/0/_metadata/schema"].rpartition(b'"n"')[2]
    former = read_offsets((tmp_path / "old/checkpoint/offsets/3").read_bytes())
    offsets = read_offsets(found["offsets/3"])
    assert (offsets.sources, offsets.watermark_ms) == (former.sources, former.watermark_ms)
    assert offsets.conf == {**ROCKSDB, "a": "2", "b": "3"}
    assert read_offsets(found["offsets/2"]).conf == {**ROCKSDB, "a": "1"}
    assert found["metadata"] == (tmp_path / "old/checkpoint/metadata").read_bytes()

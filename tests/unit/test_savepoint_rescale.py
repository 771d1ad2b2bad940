"""What a rescale decides: which state fits, the entry of the file sink's log, and whether new state is the old one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from runtime.checkpoint import rescale
from runtime.checkpoint.description import OperatorDescription, QueryDescription, StoreDescription
from runtime.checkpoint.errors import SavepointError
from runtime.checkpoint.manifest import RescaledFrom, Savepoint, SavepointJob, SavepointQuery
from runtime.checkpoint.metadata_log import IncompleteError
from runtime.checkpoint.rescale import (
    OPERATORS,
    FamilyState,
    RescalePlan,
    Undo,
    check,
    differences,
    is_result,
    obstacles,
    plan_start,
    stand_in,
    undo_of,
)
from runtime.checkpoint.savepoint import write_savepoint
from runtime.checkpoint.snapshot import take_snapshot
from runtime.checkpoint.state_layout import OperatorInfo
from runtime.checkpoint.state_schema import ColumnFamily
from runtime.protocol.query_snapshot import QuerySnapshot
from tests.streaming_files import StreamingFiles

_PREFIX = "spark.sql.streaming."
CONF = {
    f"{_PREFIX}stateStore.providerClass": "org.example.RocksDBStateStoreProvider",
    f"{_PREFIX}join.stateFormatVersion": "2",
    "spark.sql.shuffle.partitions": "2",
}


def schema(*fields: str) -> str:
    return json.dumps({"type": "struct", "fields": [{"name": "k", "type": kind} for kind in fields]})


def query(name: str = "stateStoreSave", key: str = schema("string"), **conf: str) -> QueryDescription:
    store = StoreDescription("default", 2, (ColumnFamily("default", key, schema("long")),))
    return QueryDescription("counts", ("file",), (OperatorDescription(0, name, (store,)),), {**CONF, **conf})


def info(**properties: object) -> list[OperatorInfo]:
    return [OperatorInfo(0, "", (), json.dumps(properties))]


PROCESSOR = "transformWithStateInPandasExec"
PROPERTIES = {"timeMode": "NoTime", "stateVariables": [{"stateName": "n", "ttlEnabled": False}]}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_that_fit(name: str) -> None:
    assert obstacles(query(name), info(**PROPERTIES), 5) == []


def test_values_with_a_time_to_live_fit() -> None:
    lasting = {"timeMode": "ProcessingTime", "stateVariables": [{"stateName": "n", "ttlEnabled": True}]}
    assert obstacles(query(PROCESSOR), info(**lasting), 5) == []


@pytest.mark.parametrize(
    ("kept", "properties", "why"),
    [
        (query(**{f"{_PREFIX}stateStore.providerClass": "a.HDFSBackedStateStoreProvider"}), {}, "HDFSBacked"),
        (query("globalLimit", schema("void")), {}, "is a limit"),
        (query(key=schema()), {}, "without keys"),
        (query(key=schema("void")), {}, "without keys"),
        (query("symmetricHashJoin", **{f"{_PREFIX}join.stateFormatVersion": "4"}), {}, "state format 4"),
        (query("symmetricHashJoin", **{f"{_PREFIX}join.stateFormatVersion": "1"}), {}, "state format 1"),
        (query("flatMapGroupsWithState"), {}, "not tested"),
        (query(PROCESSOR), {**PROPERTIES, "timeMode": "OtherTime"}, "time mode OtherTime"),
        (query(PROCESSOR), {**PROPERTIES, "stateVariables": [{"stateName": "n"}]}, "unknown properties"),
        (query(PROCESSOR), {**PROPERTIES, "stateVariables": [{"ttlEnabled": "?"}]}, "unknown properties"),
        (query(PROCESSOR), {}, "unknown properties"),
        (query(**{"spark.sql.shuffle.partitions": "5"}), {}, "5 partitions already"),
    ],
)
def test_what_does_not_fit_is_named(kept: QueryDescription, properties: dict[str, object], why: str) -> None:
    [(found, remedy)] = obstacles(kept, info(**properties), 5)
    assert why in found
    assert remedy


def savepoint(*queries: QueryDescription) -> Savepoint:
    kept = tuple(SavepointQuery(QuerySnapshot(one.name, "id", "/ck", None, "/sp", 1), one) for one in queries)
    return Savepoint(SavepointJob("ab" * 16, "job"), 1, kept, {}, "4.3.0", "0.1.0")


def test_the_queries_of_a_savepoint() -> None:
    stateless = QueryDescription("plain", ("file",))
    limited = replace(query("globalLimit"), name="limited")
    kept = savepoint(query(), stateless, limited)
    infos = dict.fromkeys(["counts", "plain", "limited"], info())
    assert [one.snapshot.name for one in check(kept, infos, 5, "counts")] == ["counts"]
    two = savepoint(query(), replace(query(), name="limited"), replace(query(), name="third"))
    chosen = check(two, dict.fromkeys(["counts", "limited", "third"], info()), 5, "third", "counts")
    assert [one.snapshot.name for one in chosen] == ["counts", "third"]
    with pytest.raises(SavepointError, match="'limited' cannot be rescaled") as caught:
        check(kept, infos, 5)
    assert "--query" in caught.value.remedy
    with pytest.raises(SavepointError, match="'plain' has no stateful operator"):
        check(kept, infos, 5, "plain")
    with pytest.raises(SavepointError, match="no query 'x'"):
        check(kept, infos, 5, "x")
    for number in (0, -1):
        with pytest.raises(SavepointError, match="not a number of partitions"):
            check(kept, infos, number, "counts")
    with pytest.raises(SavepointError, match="nothing to rescale"):
        check(savepoint(stateless), infos, 5)


def test_a_query_that_has_the_number_already_is_copied() -> None:
    other = replace(query(**{"spark.sql.shuffle.partitions": "5"}), name="other")
    infos = dict.fromkeys(["counts", "other"], info())
    assert [one.snapshot.name for one in check(savepoint(query(), other), infos, 5)] == ["counts"]
    with pytest.raises(SavepointError, match="'other' cannot be rescaled: its state has 5 partitions already"):
        check(savepoint(query(), other), infos, 5, "other")
    with pytest.raises(SavepointError, match="'other' cannot be rescaled: its state has 5 partitions already"):
        check(savepoint(other), infos, 5)


def after_a_rescale(original: Savepoint, *names: str, batch_id: int = 7, sink: str | None = "/out") -> Savepoint:
    """The savepoint that a rescale of these queries to 5 partitions has made."""
    kept = tuple(replace(one, snapshot=replace(one.snapshot, batch_id=batch_id, sink=sink)) for one in original.queries)
    origin = RescaledFrom(original.path, original.created_ms, 5, names)
    return replace(original, queries=kept, path="/of-5", created_ms=9, rescaled=origin)


def test_an_undo_goes_back_itself_only_where_no_query_has_committed_a_batch() -> None:
    other = replace(query(**{"spark.sql.shuffle.partitions": "5"}), name="other")  # had 5 already
    original = replace(savepoint(query(), other), path="/of-2")
    made = after_a_rescale(original, "counts")
    for committed, is_unused in (({"counts": 7, "other": 7}, True), ({"counts": 7, "other": 8}, False)):
        assert undo_of(made, original, committed) == Undo("/of-5", "/of-2", 2, ("counts",), is_unused, 5)
    without_sink = after_a_rescale(original, "counts", sink=None)  # a rollback would write its batches twice
    assert not undo_of(without_sink, original, {"counts": 7, "other": 7}).is_unused


def test_an_undo_needs_the_savepoint_from_before_and_one_former_number() -> None:
    original = savepoint(query(), replace(query(**{"spark.sql.shuffle.partitions": "3"}), name="other"))
    committed = {"counts": 7, "other": 7}
    with pytest.raises(SavepointError, match=r"different numbers of partitions \(counts: 2, other: 3\)"):
        undo_of(after_a_rescale(original, "counts", "other"), original, committed)
    assert undo_of(after_a_rescale(original, "other"), original, committed).partitions == 3
    for wrong in (replace(original, created_ms=2), replace(original, job=SavepointJob("cd" * 16, "job"))):
        with pytest.raises(SavepointError, match="is not the savepoint that /of-5 was rescaled from"):
            undo_of(after_a_rescale(original, "other"), wrong, committed)
    with pytest.raises(SavepointError, match="is not the savepoint"):
        undo_of(original, original, committed)


JOB = SavepointJob("ab" * 16, "job")


@pytest.fixture
def written(tmp_path: Path) -> Savepoint:
    files = StreamingFiles(tmp_path / "live")
    files.run(2)
    return write_savepoint(tmp_path / "savepoints", JOB, [take_snapshot(files.query, tmp_path / "chk")], name="one")


def test_a_job_starts_from_a_rescaled_savepoint_beside_the_original(
    written: Savepoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(written.path)
    same = plan_start(path, 2)
    assert isinstance(same, Savepoint)
    assert same.path == written.path
    with pytest.raises(SavepointError, match="its state store is an unknown provider"):
        plan_start(path, 3)
    monkeypatch.setattr(rescale, "obstacles", lambda *_: [])
    plan = plan_start(path, 3)
    assert isinstance(plan, RescalePlan)
    assert plan.target == path.parent / "one-3-partitions"
    assert [one.name for one in path.parent.iterdir()] == ["one"]

    origin = RescaledFrom(written.path, written.created_ms, 3, ("counts",))
    snapshots = [one.snapshot for one in written.queries]
    made = write_savepoint(path.parent, JOB, snapshots, name=plan.target.name, rescaled=origin)
    earlier = plan_start(path, 3)
    assert isinstance(earlier, Savepoint)
    assert earlier.path == str(plan.target)
    for other in (
        replace(made, rescaled=None),
        replace(made, job=SavepointJob("cd" * 16, "job")),
        replace(made, rescaled=replace(origin, created_ms=1)),
        replace(made, rescaled=replace(origin, partitions=4)),
        replace(made, rescaled=replace(origin, queries=())),
    ):
        assert not is_result(other, plan)
    moved = path.parent.rename(tmp_path / "moved") / "one"
    assert isinstance(plan_start(moved, 3), Savepoint), "both were moved"


def test_what_is_in_the_way_of_a_rescaled_savepoint_stays(written: Savepoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rescale, "obstacles", lambda *_: [])
    path = Path(written.path)
    snapshots = [one.snapshot for one in written.queries]
    write_savepoint(path.parent, JOB, snapshots, name="one-3-partitions")
    (path.parent / "one-4-partitions").mkdir()
    for number, why in ((3, "it is not a rescaled copy of"), (4, "is not a savepoint")):
        with pytest.raises(SavepointError, match=f"one-{number}-partitions is in the way: .*{why}") as caught:
            plan_start(path, number)
        assert "move it away" in caught.value.remedy


def log(*names: str) -> dict[str, bytes]:
    return {name: f'v1\n{{"path":"{name}"}}'.encode() for name in names}


def test_the_entry_of_a_log_that_was_never_compacted() -> None:
    files = log("0", "1")
    assert stand_in(files, 2, files.__getitem__) == ("2.compact", b'v1\n{"path":"0"}\n{"path":"1"}')


@pytest.mark.parametrize(
    ("first", "last", "interval", "name"),
    [
        (9, 12, 10, "13"),
        (9, 18, 10, "19.compact"),
        (19, 25, 5, "26.compact"),  # 24.compact is missing, so the interval was another one
    ],
)
def test_the_entry_of_a_compacted_log(first: int, last: int, interval: int, name: str) -> None:
    files = log(f"{first}.compact", *(str(number) for number in range(first + 1, last + 1)))
    found, content = stand_in(files, last + 1, files.__getitem__, interval)
    assert found == name
    assert content.count(b"path") == (len(files) if "compact" in name else 0)


def test_two_compacted_files_tell_the_interval() -> None:
    files = log("9.compact", "19.compact", *map(str, range(20, 29)))
    name, content = stand_in(files, 29, files.__getitem__)
    assert (name, content.count(b"path")) == ("29.compact", 10)  # 19.compact alone would stand for an interval of 20
    files = log("19.compact", "39.compact", *map(str, range(40, 49)))
    assert stand_in(files, 49, files.__getitem__) == ("49", b"v1")


def test_the_entry_at_a_compaction() -> None:
    files = log("29.compact", *map(str, range(30, 39)))
    assert stand_in(files, 39, files.__getitem__)[0] == "39.compact"
    with pytest.raises(IncompleteError):
        stand_in(files, 41, files.__getitem__)


def test_differences_name_operator_store_and_family() -> None:
    state = FamilyState(0, "left", "default", 10, 99)
    assert differences([state], [state]) == []
    where = "operator 0, store left, column family default: "
    assert differences([state], []) == [f"{where}it had 10 rows and has 0"]
    assert differences([], [state]) == [f"{where}it had 0 rows and has 10"]
    assert differences([state], [replace(state, checksum=1)]) == [f"{where}it has as many rows, but not the same"]
    assert differences([state], [replace(state, misplaced=3)]) == [
        f"{where}3 of 10 rows are in another partition than their keys belong to"
    ]

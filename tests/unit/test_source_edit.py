"""Sources of a savepoint's query that get names or other offsets, without Spark; the integration test reads them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runtime.checkpoint.description import QueryDescription
from runtime.checkpoint.errors import SavepointError
from runtime.checkpoint.manifest import EditedFrom, Savepoint, SavepointJob
from runtime.checkpoint.metadata_log import SOURCE_EVOLUTION, read_offsets
from runtime.checkpoint.savepoint import verify_savepoint, write_savepoint
from runtime.checkpoint.snapshot import restore_snapshot, take_snapshot
from runtime.checkpoint.source_edit import check_names, check_offsets, moved, name_sources, named, set_offsets
from runtime.protocol.query_snapshot import QueryLocation
from tests.streaming_files import StreamingFiles, write

PLACES = b'v1\n{"batchWatermarkMs":3,"conf":{"a":"b"}}\n{"logOffset":1}\n-'
NAMES = b'v2\n{"batchWatermarkMs":3,"conf":{},"sourceMetadataInfo":{}}\nus:{"a":{"0":7}}\neu:-'
QUERY = QueryDescription("counts", ("file", "kafka:a,b", "rate", "other"))


@pytest.fixture
def savepoint(tmp_path: Path) -> Savepoint:
    files = StreamingFiles(tmp_path / "live")
    files.run(3)
    snapshot = take_snapshot(files.query, tmp_path / "chk")
    return write_savepoint(tmp_path / "savepoints", SavepointJob("ab" * 16, "job"), [snapshot])


def test_an_offset_log_with_names() -> None:
    found = read_offsets(NAMES)
    assert (found.names, found.places) == (("us", "eu"), ("us", "eu"))
    assert found.sources == ('{"a":{"0":7}}', None)
    assert read_offsets(PLACES).places == ("0", "1")
    assert read_offsets(b'v2\n{}\n{"a":"1"}').places == (), "an unknown form"


def test_names_for_a_file_of_the_offset_log() -> None:
    found = read_offsets(named(PLACES, ["us", "eu"]))
    assert (found.names, found.sources) == (("us", "eu"), ('{"logOffset":1}', None))
    assert (found.conf, found.watermark_ms) == ({"a": "b", SOURCE_EVOLUTION: "true"}, 3)


def test_other_offsets_in_a_file_of_the_offset_log() -> None:
    assert read_offsets(moved(PLACES, {1: "5"})).sources == ('{"logOffset":1}', "5")
    assert read_offsets(moved(NAMES, {0: "5"})).sources == ("5", None)
    assert read_offsets(moved(NAMES, {0: "5"})).names == ("us", "eu")


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["a", "b"], r"has 4 sources \(file, kafka, rate, other\), and 2 names are given"),
        (["a", "b", "c", "a"], "two sources have one name"),
        (["a", "b", "c", "d-e"], "'d-e' is not a valid name"),
        (["a", "b", "c", ""], "'' is not a valid name"),
    ],
)
def test_names_that_are_refused(names: list[str], why: str) -> None:
    with pytest.raises(SavepointError, match=why):
        check_names(QUERY, names)


def test_queries_whose_sources_get_no_names() -> None:
    with pytest.raises(SavepointError, match="have names already: us"):
        check_names(QueryDescription("counts", ("file",), source_names=("us",)), ["eu"])
    with pytest.raises(SavepointError, match="has committed no batch"):
        check_names(QueryDescription("counts"), [])


@pytest.mark.parametrize(
    ("place", "text", "why"),
    [
        ("4", "1", "has no source '4'"),
        ("0", '{"logOffset":1}', "source 0 of query 'counts' reads files"),
        ("1", '{"a":{"0":-2}}', "is not an offset of source 1, which is kafka"),
        ("1", '{"a":7}', "is not an offset of source 1, which is kafka"),
        ("1", "{}", "is not an offset of source 1, which is kafka"),
        ("2", "true", "is not an offset of source 2, which is rate"),
        ("3", '"x"', "is not an offset of source 3, which is other"),
        ("3", '{"logOffset":1}', "is not an offset of source 3, which is other"),
        ("3", "{", "is not JSON"),
    ],
)
def test_offsets_that_are_refused(place: str, text: str, why: str) -> None:
    with pytest.raises(SavepointError, match=why):
        check_offsets(QUERY, {place: text})


def test_offsets_are_written_in_one_line() -> None:
    assert check_offsets(QUERY, {"1": '{"a":\n {"0": 7}}', "2": "3"}) == {1: '{"a":{"0":7}}', 2: "3"}
    by_name = QueryDescription("counts", ("file", "rate"), source_names=("us", "clock"))
    assert check_offsets(by_name, {"clock": "3"}) == {1: "3"}


def test_a_savepoint_whose_sources_have_names(savepoint: Savepoint, tmp_path: Path) -> None:
    result = name_sources(savepoint.path, ["us", "0"], tmp_path / "named")
    assert verify_savepoint(Path(result.path)) == verify_savepoint(Path(savepoint.path)) == []
    assert result.edited == EditedFrom(savepoint.path, savepoint.created_ms, ("counts",))
    [query] = result.queries
    [before] = savepoint.queries
    assert (query.snapshot.batch_id, query.snapshot.location) == (before.snapshot.batch_id, before.snapshot.location)
    assert (query.snapshot.sink, query.snapshot.query_id) == (before.snapshot.sink, before.snapshot.query_id)
    assert query.description.source_names == ("us", "0")
    assert query.description.sources == before.description.sources
    restore_snapshot(query.snapshot, tmp_path / "restored", None)
    for number in (1, 2):  # Spark reads the batch before, too
        assert read_offsets((tmp_path / "restored" / "offsets" / str(number)).read_bytes()).names == ("us", "0")
    logs = tmp_path / "restored" / "sources"
    assert {path.name for path in logs.iterdir()} == {"us", "0"}
    assert (logs / "us" / "2").exists()
    assert (logs / "0" / "0").read_text() == '{"x":0}'
    assert not list(tmp_path.glob(".*"))


def test_names_may_be_the_numbers_of_other_sources(savepoint: Savepoint, tmp_path: Path) -> None:
    [query] = name_sources(savepoint.path, ["1", "0"], tmp_path / "named").queries
    restore_snapshot(query.snapshot, tmp_path / "restored", None)
    logs = tmp_path / "restored" / "sources"
    assert (logs / "1" / "2").exists()
    assert (logs / "0" / "0").read_text() == '{"x":0}'


def test_a_snapshot_has_no_later_entries_of_a_source_with_a_name(savepoint: Savepoint, tmp_path: Path) -> None:
    [query] = name_sources(savepoint.path, ["us", "eu"], tmp_path / "named").queries
    live = tmp_path / "restored"
    restore_snapshot(query.snapshot, live, None)
    write(live / "sources" / "us" / "3", "v1\n{}")  # of a batch that was not planned
    taken = take_snapshot(QueryLocation("counts", str(live)), tmp_path / "chk-again")
    names = {path.name for path in (Path(taken.path) / "checkpoint" / "sources" / "us").iterdir()}
    assert "2" in names
    assert "3" not in names


def test_a_savepoint_from_other_offsets(savepoint: Savepoint, tmp_path: Path) -> None:
    result = set_offsets(savepoint.path, {"1": '{"x": 77}'}, tmp_path / "moved")
    assert verify_savepoint(Path(result.path)) == []
    [query] = result.queries
    assert [json.loads(offset) for offset in query.snapshot.offsets] == [{"logOffset": 2}, {"x": 77}]


def test_refusals_leave_nothing(savepoint: Savepoint, tmp_path: Path) -> None:
    there = set(tmp_path.iterdir())
    with pytest.raises(SavepointError, match="exists already"):
        name_sources(savepoint.path, ["a", "b"], tmp_path / "chk")
    with pytest.raises(SavepointError, match="no query 'x'"):
        set_offsets(savepoint.path, {"1": "7"}, tmp_path / "to", query="x")
    with pytest.raises(SavepointError, match="3 names are given"):
        name_sources(savepoint.path, ["a", "b", "c"], tmp_path / "to")
    assert set(tmp_path.iterdir()) == there

"""What a conversion into RocksDB decides, and how it reads the files of the HDFS-backed store."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet
import pytest

from runtime.checkpoint.convert import (
    ROCKSDB_PROVIDER,
    StorePlace,
    obstacle,
    plan_conversion,
    read_changes,
    state_files,
    with_rocksdb,
)
from runtime.checkpoint.description import QueryDescription
from runtime.checkpoint.errors import SavepointError
from runtime.checkpoint.manifest import SavepointJob, SavepointQuery
from runtime.checkpoint.metadata_log import IncompleteError, read_offsets
from runtime.checkpoint.rescale import PROVIDER, obstacles
from runtime.checkpoint.savepoint import write_savepoint
from runtime.checkpoint.snapshot import take_snapshot
from runtime.protocol.query_snapshot import QuerySnapshot
from runtime.spark.state_convert import write_rows
from tests.streaming_files import StreamingFiles
from tests.unit.test_savepoint_rescale import info, query, schema

_HASHMAP = ROCKSDB_PROVIDER.replace("RocksDB", "HDFSBacked")
KEY, OTHER, ONE, TWO = (bytes([number]) * 16 for number in range(1, 5))


def packed(*rows: tuple[bytes, bytes | None]) -> bytes:
    """A file as Spark writes it, without its compression; None removes the key."""
    parts = []
    for key, value in rows:
        parts += [
            struct.pack(">i", len(key)),
            key,
            struct.pack(">i", -1 if value is None else len(value)),
            value or b"",
        ]
    return b"".join([*parts, struct.pack(">i", -1)])


def test_changes_set_and_remove_keys() -> None:
    rows: dict[bytes, bytes] = {}
    read_changes(packed((KEY, ONE), (OTHER, TWO)), rows)
    read_changes(packed((KEY, TWO), (OTHER, None), (ONE, None)), rows)
    assert rows == {KEY: TWO}
    read_changes(packed(), rows)
    assert rows == {KEY: TWO}


def test_rows_are_written_part_by_part_with_their_partition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.spark.state_convert._ROWS", 2)
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    first.write_bytes(packed((KEY, ONE), (OTHER, TWO), (ONE, TWO)))
    second.write_bytes(packed((KEY, TWO), (TWO, ONE)))
    third.write_bytes(packed())
    write_rows(tmp_path / "rows.parquet", {0: [first, second], 1: [third], 2: [second]}, [70, 71, 72])
    file = pyarrow.parquet.ParquetFile(tmp_path / "rows.parquet")
    groups = [file.read_row_group(number).to_pylist() for number in range(file.num_row_groups)]
    assert [[tuple(row.values()) for row in group] for group in groups] == [
        [(70, KEY, TWO), (70, OTHER, TWO)],
        [(70, ONE, TWO), (70, TWO, ONE)],
        [(72, KEY, TWO), (72, TWO, ONE)],
    ]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "end of the file"),
        (packed((KEY, ONE))[:-4], "end of the file"),
        (packed((KEY, ONE))[:-6], "truncated"),
        (packed((KEY, ONE)) + b"\0", "1 bytes follow"),
        (packed((KEY + b"\0\0\0\0", ONE)), "row of 20 bytes"),  # with a checksum
    ],
)
def test_files_of_another_form_are_refused(content: bytes, why: str) -> None:
    with pytest.raises(IncompleteError, match=why):
        read_changes(content, {})


def test_files_are_read_from_the_last_whole_one_on() -> None:
    names = [
        "state/0/1/10.delta",
        "state/0/1/9.delta",
        "state/0/1/9.snapshot",
        "state/0/1/8.delta",
        "state/0/1/.9.snapshot.crc",
        "state/0/0/_metadata/schema",
        "state/1/0/left-keyToNumValues/2.delta",
        "state/1/0/left-keyToNumValues/1.delta",
        "offsets/9",
    ]
    directory = "state/1/0/left-keyToNumValues"
    assert state_files(names) == {
        StorePlace(0, "default", 1): ["state/0/1/9.snapshot", "state/0/1/10.delta"],
        StorePlace(1, "left-keyToNumValues", 0): [f"{directory}/1.delta", f"{directory}/2.delta"],
    }


def test_the_offset_log_names_rocksdb() -> None:
    conf = {PROVIDER: _HASHMAP, "spark.sql.shuffle.partitions": "2"}
    content = "\n".join(["v1", json.dumps({"batchWatermarkMs": 7, "conf": conf}), '{"logOffset":3}', "-"]).encode()
    before, after = read_offsets(content), read_offsets(with_rocksdb(content))
    assert after == replace(before, conf={**conf, PROVIDER: ROCKSDB_PROVIDER})


def kept(description: QueryDescription) -> SavepointQuery:
    return SavepointQuery(QuerySnapshot(description.name, "id", "/ck", None, "/sp", 1), description)


@pytest.mark.parametrize(
    ("description", "why"),
    [
        (query(), ""),
        (query("dedupe"), ""),
        (query("globalLimit"), "is a limit"),
        (query(key=schema()), "without keys"),
        (query("flatMapGroupsWithState"), "not tested"),
        (query(**{"spark.sql.streaming.stateStore.rowChecksum.enabled": "true"}), "have checksums"),
    ],
)
def test_what_cannot_be_converted_is_named(description: QueryDescription, why: str) -> None:
    found = obstacle(kept(description), info())
    assert why in found
    assert bool(found) == bool(why)


def test_a_refused_rescale_names_the_conversion() -> None:
    [(_, remedy)] = obstacles(query(**{PROVIDER: _HASHMAP}), info(), 5)
    assert "savepoint convert" in remedy
    [(_, remedy)] = obstacles(query(**{PROVIDER: "org.example.Unknown"}), info(), 5)
    assert "savepoint convert" not in remedy


def test_refusals_come_before_anything_is_written(tmp_path: Path) -> None:
    files = StreamingFiles(tmp_path / "live")
    files.run(2)
    job = SavepointJob("ab" * 16, "job")
    written = write_savepoint(tmp_path / "savepoints", job, [take_snapshot(files.query, tmp_path / "chk")], name="one")
    path, target = Path(written.path), tmp_path / "savepoints" / "rocksdb"
    for name in (None, "counts"):
        with pytest.raises(SavepointError, match="has no state in Spark's HDFS-backed store"):
            plan_conversion(path, target, name)
    with pytest.raises(SavepointError, match="no query 'x'"):
        plan_conversion(path, target, "x")
    assert [one.name for one in path.parent.iterdir()] == ["one"]

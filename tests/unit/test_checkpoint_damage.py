"""For every file of every state store, sink and source log: damaged in any way it is found, or does no harm.

The files are those of `tests.streaming_files`; `tests/integration/test_damage.py` does the same with Spark's own.
"""

from __future__ import annotations

import hashlib
import shutil
import zlib
from pathlib import Path

import pytest

from runtime.checkpoint.errors import CheckpointError
from runtime.checkpoint.integrity import ContentCheck, FileRecord, check_sizes
from runtime.checkpoint.manifest import SavepointJob
from runtime.checkpoint.metadata_log import IncompleteError
from runtime.checkpoint.savepoint import verify_savepoint, write_savepoint
from runtime.checkpoint.snapshot import inspect_location, take_snapshot
from runtime.checkpoint.stored_snapshot import check_snapshot
from tests.damage import DAMAGES, damaged_files, found_in_live, found_in_snapshot
from tests.streaming_files import PROVIDERS, StreamingFiles, start, write

BATCHES = {"hdfs": 3, "rocksdb": 3, "changelog": 11, "unique": 3}
"""Of one so many that its logs are compacted."""


@pytest.fixture(params=PROVIDERS)
def files(tmp_path: Path, request: pytest.FixtureRequest) -> StreamingFiles:
    made = StreamingFiles(tmp_path / "live", request.param)
    made.run(BATCHES[request.param], whole=[1])
    return made


def test_a_live_location_is_found_to_be_damaged_or_spark_starts_from_it_all_the_same(
    files: StreamingFiles, tmp_path: Path
) -> None:
    before = take_snapshot(files.query, tmp_path / "chk")
    seen = harmless = 0
    for damage in damaged_files(files.location, DAMAGES):
        seen += 1
        if found_in_live(files.query, before):
            continue
        harmless += 1
        assert start(files.location, files.sink) == before.batch_id, f"{damage} was not found"
    assert 0 < harmless < seen
    assert inspect_location(files.query, before) == before.batch_id, "nothing is wrong with it any more"


def test_a_checkpoint_and_a_savepoint_are_found_to_be_damaged(files: StreamingFiles, tmp_path: Path) -> None:
    older = take_snapshot(files.query, tmp_path / "chk-1")
    files.run(1)
    taken = take_snapshot(files.query, tmp_path / "chk-2", older)
    # With links, damage in place would be in the live files as well.
    copied = shutil.copytree(taken.path, tmp_path / "copy")
    savepoint = write_savepoint(tmp_path / "savepoints", SavepointJob("ab" * 16, "job"), [taken])
    missed = [str(item) for item in damaged_files(copied, DAMAGES) if not found_in_snapshot(taken, copied)]
    assert {name.rpartition(" ")[2] for name in missed} == {"snapshot.json"}, "which no restore reads"
    missed = [str(item) for item in damaged_files(Path(savepoint.path), DAMAGES) if not verify_savepoint(item.root)]
    assert missed == []
    assert verify_savepoint(Path(savepoint.path)) == []


def test_files_are_there_with_their_sizes() -> None:
    records = {"commits/3": FileRecord(7, 0, "")}
    check_sizes(records, {"commits/3": 7, "commits/4": 1})
    with pytest.raises(IncompleteError, match="commits/3 is missing"):
        check_sizes(records, {"commits/4": 1})
    with pytest.raises(IncompleteError, match="commits/3 has 6 bytes in place of 7"):
        check_sizes(records, {"commits/3": 6})


def test_a_file_of_a_committed_batch_that_was_replaced_is_in_no_checkpoint(tmp_path: Path) -> None:
    """Its checksums are those of what is there now: only the earlier checkpoint knows better."""
    files = StreamingFiles(tmp_path / "live", "hdfs")
    files.run(2)
    earlier = take_snapshot(files.query, tmp_path / "chk-1")
    files.run(1)
    state = files.location / "state" / "0" / "0" / "1.delta"
    write(state, bytes(len(state.read_bytes())))
    with pytest.raises(CheckpointError, match=r"1\.delta is not what it was when an earlier checkpoint was taken"):
        take_snapshot(files.query, tmp_path / "chk-2", earlier)
    assert not (tmp_path / "chk-2").exists()


def test_a_content_that_ends_before_its_checksums_is_damaged() -> None:
    blocks = [b"x" * 512, b"y" * 512]
    checksums = b"crc\0" + (512).to_bytes(4, "big") + b"".join(zlib.crc32(one).to_bytes(4, "big") for one in blocks)
    for content, is_whole in ((b"".join(blocks), True), (blocks[0], False), (b"".join(blocks) + b"z", False)):
        check = ContentCheck(checksums)
        check.update(content)
        assert check.end() == (hashlib.sha256(content).hexdigest(), is_whole)


def test_no_checkpoint_is_taken_of_what_is_damaged(files: StreamingFiles, tmp_path: Path) -> None:
    previous = take_snapshot(files.query, tmp_path / "chk-0")
    files.run(1)
    taken = 0
    for number, damage in enumerate(damaged_files(files.location, ("emptied", "removed", "bit turned"), every=5)):
        target = tmp_path / "chk" / str(number)
        try:
            snapshot = take_snapshot(files.query, target, previous)
        except CheckpointError:
            continue
        taken += 1
        check_snapshot(snapshot)
        assert start(target / "checkpoint") == snapshot.batch_id, damage
        shutil.rmtree(target)
    assert taken

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.checkpoint.files import list_files, list_sizes
from runtime.checkpoint.layout import (
    BatchFiles,
    abandoned_sink_files,
    files_of_batch,
    files_of_restart,
    last_commit,
    sink_files,
)
from runtime.checkpoint.metadata_log import (
    IncompleteError,
    chain,
    derived_interval,
    interval_of,
    opens,
    read_offsets,
    restart_chain,
    source_chain,
)
from runtime.checkpoint.state_layout import files_of_version
from tests.streaming_files import PROVIDERS, StreamingFiles, start, write

JOIN = ("left-keyToNumValues", "left-keyWithIndexToValue", "right-keyToNumValues", "right-keyWithIndexToValue")


def choose(location: Path, batch_id: int) -> BatchFiles:
    return files_of_batch(list_sizes(location), batch_id, lambda path: (location / path).read_bytes())


def copy(location: Path, files: tuple[str, ...], target: Path) -> None:
    for path in files:
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(location / path, target / path)


@pytest.mark.parametrize(
    ("provider", "state"),
    [
        ("hdfs", ["3.snapshot", "4.delta", "5.delta"]),
        ("rocksdb", ["5.zip"]),
        ("changelog", ["3.zip", "4.changelog", "5.changelog"]),
    ],
)
def test_the_files_of_a_batch_are_these_and_no_others(tmp_path: Path, provider: str, state: list[str]) -> None:
    files = StreamingFiles(tmp_path, provider, partitions=1)
    files.run(7, whole=[2, 6])
    batch = choose(files.location, 4)
    plain = [path for path in batch.files if not path.endswith(".crc") and "/SSTs/" not in path]
    assert plain == sorted(
        [
            *(
                "commits/3",
                "commits/4",
                "metadata",
                "offsets/3",
                "offsets/4",
                "sources/1/0",
                "state/0/_metadata/metadata",
            ),
            *(f"sources/0/{number}" for number in range(5)),
            *(f"state/0/0/{name}" for name in state),
        ]
    )
    assert {path for path in batch.files if path.endswith(".crc")} == {
        f"{path.rpartition('/')[0]}/.{path.rpartition('/')[2]}.crc".removeprefix("/")
        for path in batch.files
        if not path.endswith(".crc")
    }
    assert batch.query_id == files.query_id
    assert batch.offsets.sources == ('{"logOffset":4}', '{"x":4}')
    assert batch.offsets.watermark_ms == 4
    assert [(operator.name, operator.stores[0].partitions) for operator in batch.operators] == [("save", 1)]


def test_a_query_that_committed_nothing_keeps_its_id_and_what_its_sources_begin_at(tmp_path: Path) -> None:
    files = StreamingFiles(tmp_path)
    files.plan()
    listing = list_files(files.location)
    assert last_commit(listing) == -1
    batch = choose(files.location, -1)
    assert [path for path in batch.files if "crc" not in path] == ["metadata", "sources/0/0", "sources/1/0"]


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("operators", [(("default",),), (JOIN,), (("default",), JOIN)])
def test_spark_starts_from_the_files_of_any_batch_alone(
    tmp_path: Path, provider: str, operators: tuple[tuple[str, ...], ...]
) -> None:
    files = StreamingFiles(tmp_path / "live", provider, operators)
    files.run(13, whole=[4, 11])
    for batch_id in range(-1, 13):
        target = tmp_path / str(batch_id)
        copy(files.location, choose(files.location, batch_id).files, target)
        if batch_id >= 0:
            assert start(target) == batch_id


@settings(deadline=None, max_examples=60)
@given(
    provider=st.sampled_from(PROVIDERS),
    steps=st.lists(st.one_of(st.sampled_from(["batch", "whole", "purge"]), st.integers(0, 10_000)), max_size=30),
)
def test_what_is_chosen_is_enough_or_said_to_be_incomplete(provider: str, steps: list[str | int]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        files = StreamingFiles(Path(directory) / "live", provider, (("default",), ("left", "right")), partitions=1)
        files.run()
        for number, step in enumerate(steps):
            if step == "purge":
                files.purge()
            elif isinstance(step, str):
                files.run(whole=[0] if step == "whole" else [])
            else:  # lose a file, and see that this is either noticed or does not matter
                lost = sorted(list_files(files.location))[step % len(list_files(files.location))]
                content = (files.location / lost).read_bytes()
                (files.location / lost).unlink()
                target = Path(directory) / str(number)
                batch_id = last_commit(list_files(files.location))
                try:
                    copy(files.location, choose(files.location, batch_id).files, target)
                except IncompleteError:
                    pass
                else:
                    if batch_id >= 0:
                        assert start(target) == batch_id
                (files.location / lost).write_bytes(content)
        assert choose(files.location, last_commit(list_files(files.location))).batch_id == files.next_batch - 1


def test_a_file_cut_short_is_noticed(tmp_path: Path) -> None:
    files = StreamingFiles(tmp_path, "rocksdb", partitions=1)
    files.run(2)
    for path in ("metadata", "offsets/1", "offsets/0", "commits/1", "state/0/0/2.zip", "state/0/_metadata/metadata"):
        content = (files.location / path).read_bytes()
        for size in (0, len(content) // 2, len(content) - 1):
            (files.location / path).write_bytes(content[:size])
            if (path, size) in {("offsets/1", len(content) - 1), ("offsets/0", len(content) - 1)}:
                continue  # a source's offset is its own text, which nobody but the source understands
            with pytest.raises(IncompleteError):
                choose(files.location, 1)
        (files.location / path).write_bytes(content)
    choose(files.location, 1)


def test_a_version_that_another_run_wrote_is_not_taken_for_the_committed_one(tmp_path: Path) -> None:
    files = StreamingFiles(tmp_path, "unique", partitions=1)
    files.run(3)
    [version] = files.location.glob("state/0/0/3_*.changelog")
    version.rename(version.with_name("3_00000000-0000-0000-0000-000000000000.changelog"))
    with pytest.raises(IncompleteError, match=r"state/0/0: version 3 lacks the changes of 3"):
        choose(files.location, 2)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_an_operator_without_keys_has_one_partition_whatever_its_metadata_say(tmp_path: Path, provider: str) -> None:
    files = StreamingFiles(tmp_path, provider, partitions=1)
    files.run(3, whole=[1])
    metadata = files.location / "state" / "0" / "_metadata" / "metadata"
    said = metadata.read_text()
    metadata.write_text(said.replace('"numPartitions": 1', '"numPartitions": 3'))
    assert metadata.read_text() != said
    assert any(path.startswith("state/0/0/") for path in choose(files.location, 2).files)
    shutil.rmtree(files.location / "state" / "0" / "0")
    with pytest.raises(IncompleteError, match="state/0/0"):
        choose(files.location, 2)


def test_a_partition_that_is_lost_is_noticed(tmp_path: Path) -> None:
    for lost in range(3):
        files = StreamingFiles(tmp_path / str(lost), partitions=3)
        files.run(3)
        shutil.rmtree(files.location / "state" / "0" / str(lost))
        with pytest.raises(IncompleteError, match=f"state/0/{lost}"):
            choose(files.location, 2)


def test_what_is_not_known_is_kept(tmp_path: Path) -> None:
    files = StreamingFiles(tmp_path, partitions=1)
    files.run(2)
    (files.location / "later").mkdir()
    (files.location / "later" / "file").touch()
    (files.location / "sources" / "1" / "notes").touch()
    (files.location / "commits" / ".2.f00.tmp").touch()
    chosen = choose(files.location, 1).files
    assert {"later/file", "sources/1/notes"} <= set(chosen)
    assert not any("tmp" in path for path in chosen)


def test_chains_of_a_compacted_log() -> None:
    names = ["5", "6", "7", "8", "9.compact", "10", "11", ".10.crc"]
    assert chain(names, -1) == []
    assert chain(names, 9) == ["9.compact"]
    assert chain(names, 11) == ["9.compact", "10", "11"]
    with pytest.raises(IncompleteError, match="entries 12 of the log are missing"):
        chain(names, 12)
    with pytest.raises(IncompleteError, match="entries 0, 1, 2 of"):
        chain(names, 8)
    # a source knows more than it has read, and has the entries of its last batch one by one
    assert source_chain(names, 6, 8) == ["9.compact", "7", "8"]
    assert source_chain(names, 7, 11) == ["9.compact", "10", "11", "8"]
    with pytest.raises(IncompleteError):
        source_chain(["11"], 10, 11)


def test_a_restart_needs_the_two_newest_compacted_files() -> None:
    names = ["9.compact", "19.compact", "29.compact", "30", "31", "39.compact"]
    assert restart_chain(names, 31) == ["19.compact", "29.compact", "30", "31"]
    assert source_chain(names, 30, 31) == ["19.compact", "29.compact", "30", "31"]
    assert restart_chain(["9.compact", "10"], 10) == ["9.compact", "10"]
    assert sink_files([*names, ".19.compact.crc"], 30) == (".19.compact.crc", "19.compact", "29.compact", "30")


def test_the_interval_is_sparks() -> None:
    assert [derived_interval(10, last) for last in (2, 9, 19, 29, 39, 41)] == [3, 10, 20, 10, 10, 14]
    for last in range(1, 200):
        assert (last + 1) % derived_interval(10, last) == 0
    assert interval_of(["0", "1"]) == 10
    assert interval_of(["19.compact", "20"]) == 20
    assert interval_of(["9.compact", "19.compact", "20"]) == 10


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["0", "1"], True),
        (["notes"], True),
        (["9.compact", *map(str, range(10, 19))], True),
        (["19.compact", *map(str, range(20, 39))], True),
        (["19.compact", *map(str, range(20, 40))], False),
        (["39.compact", *map(str, range(40, 49))], True),
        (["39.compact", *map(str, range(40, 51))], False),  # it was written with an interval of 20 or 40
        (["19.compact", "39.compact", *map(str, range(40, 51))], True),
        (["19.compact", "26.compact"], False),
    ],
)
def test_a_log_that_lacks_a_compacted_file_does_not_open(names: list[str], expected: bool) -> None:
    assert opens(names) == expected


def test_the_log_of_a_file_sink() -> None:
    names = ["8", ".8.crc", "9.compact", ".9.compact.crc", "10", "11", "19.compact"]
    assert sink_files(names, 10) == (".9.compact.crc", "10", "9.compact")
    assert abandoned_sink_files(names, 10) == ["11", "19.compact"]
    with pytest.raises(IncompleteError):
        sink_files(names, 12)


def test_offsets_of_sources_by_name_are_not_taken_for_those_by_place() -> None:
    assert read_offsets(b'v1\n{"batchWatermarkMs":3}\n-\n{"logOffset":1}').sources == (None, '{"logOffset":1}')
    assert not read_offsets(b'v2\n{"batchWatermarkMs":3}\n{"a":"1"}').is_positional
    for content in (b"", b"v1", b"v1\n[]\n", b"v1\n{", b"\xff"):
        with pytest.raises(IncompleteError):
            read_offsets(content)


def restart(files: StreamingFiles) -> BatchFiles:
    """What Spark reads of the live files as they are."""
    sink_log = [path.name for path in (files.sink / "_spark_metadata").iterdir()]
    location = files.location
    return files_of_restart(list_sizes(location), sink_log, lambda path: (location / path).read_bytes())


def test_changes_alone_are_no_state_of_a_store_with_column_families() -> None:
    """As of a transformWithState: its families are in the whole files only."""
    files = {"1.changelog": 5, "2.changelog": 5}
    assert files_of_version(files, 2, lambda path: b"") == ["1.changelog", "2.changelog"]
    with pytest.raises(IncompleteError, match="version 2 has no whole file to begin with"):
        files_of_version(files, 2, lambda path: b"", needs_whole=True)


def test_a_restart_reads_a_batch_that_was_planned_too(tmp_path: Path) -> None:
    files = StreamingFiles(tmp_path)
    files.run(2)
    assert "offsets/2" not in restart(files).files
    files.plan()
    assert {"offsets/2", "sources/0/2"} <= set(restart(files).files)
    (files.location / "sources" / "0" / "2").unlink()
    with pytest.raises(IncompleteError, match="entries 2 of the log are missing"):
        restart(files)


def test_a_batch_that_the_sink_has_and_nobody_has_planned_would_lose_rows(tmp_path: Path) -> None:
    files = StreamingFiles(tmp_path)
    files.run(3)
    files.delete(files.location / "commits" / "2")
    assert restart(files).batch_id == 1, "it is done again, with the same input"
    files.delete(files.location / "offsets" / "2")
    with pytest.raises(IncompleteError, match="offsets/2 is missing, a batch that the file sink has in its log"):
        restart(files)


@pytest.mark.parametrize(
    "name",
    [
        "checkpoint/commits/3",
        "checkpoint/offsets/3",
        "checkpoint/sources/0/3",
        "checkpoint/state/0/0/_metadata/schema",
        "checkpoint/state/0/_metadata/v2/3",
        "out dir/_spark_metadata/3",
    ],
)
def test_checksums_that_are_in_the_way_of_what_spark_writes_next_are_found(tmp_path: Path, name: str) -> None:
    files = StreamingFiles(tmp_path)
    files.run(3)
    write(tmp_path / name, "as Spark has written it")
    (tmp_path / name).unlink()
    with pytest.raises(IncompleteError, match=f"{Path(name).name} is missing, though its checksums are there"):
        restart(files)


@pytest.mark.parametrize(
    "name",
    [
        "checkpoint/commits/0",  # purged: it is not written again
        "checkpoint/commits/.3.0a1b.tmp",  # a name that is used once
        "checkpoint/state/0/0/4.delta",  # overwritten
        "checkpoint/sources/1/initial",  # another source's own
        "checkpoint/of somebody else/file",
        "out dir/_spark_metadata/0",
    ],
)
def test_other_checksums_that_are_left_over_do_no_harm(tmp_path: Path, name: str) -> None:
    files = StreamingFiles(tmp_path)
    files.run(3)
    write(tmp_path / name, "as it was written")
    (tmp_path / name).unlink()
    assert restart(files).batch_id == 2


def test_spark_begins_with_the_newest_whole_file_and_a_snapshot_with_any(tmp_path: Path) -> None:
    files = StreamingFiles(tmp_path, "changelog", partitions=1)
    files.run(5, whole=[1, 3])
    next(iter((files.location / "state" / "0" / "0" / "SSTs").glob("000004*.sst"))).unlink()
    assert "state/0/0/2.zip" in choose(files.location, 4).files
    with pytest.raises(IncompleteError, match=r"state/0/0: SSTs/000004.* is missing, which 4.zip names"):
        restart(files)

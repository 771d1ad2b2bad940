from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from runtime.spark.errors import PartitionNotFoundError
from runtime.spark.task.result_partition import MANIFEST, ResultPartition, discard_unfinished


@pytest.fixture
def partition(tmp_path: Path) -> ResultPartition:
    return ResultPartition("v" * 32, tmp_path / "results" / "v" / "attempt-0")


def write(partition: ResultPartition) -> dict[str, object]:
    """What Spark and the task do."""
    directory = partition.begin()
    directory.mkdir()
    for number in range(3):
        (directory / f"part-0000{number}.parquet").write_bytes(b"x" * (number + 1))
    (directory / "_SUCCESS").touch()
    return partition.finish(lambda file: f"schema of {file.name}")


def test_a_result_is_there_when_it_is_whole_and_not_before(partition: ResultPartition) -> None:
    directory = partition.begin()
    directory.mkdir()
    (directory / "part-00000.parquet").write_bytes(b"half of it")
    with pytest.raises(PartitionNotFoundError, match="cannot be read: No such file"):
        partition.check()
    assert not partition.path.exists()
    assert write(partition) == {
        "vertex_id": "v" * 32,
        "path": str(partition.path),
        "subpartitions": 3,
        "bytes": 6,
    }
    assert partition.check() == "schema of part-00000.parquet"
    assert not partition.in_progress.exists()
    assert stat.S_IMODE((partition.path / MANIFEST).stat().st_mode) == 0o600
    for directory in partition.path.parents[:2]:
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_a_second_run_of_the_same_attempt_replaces_the_first(partition: ResultPartition) -> None:
    write(partition)
    (partition.path / "part-00009.parquet").touch()
    write(partition)
    partition.check()
    assert not (partition.path / "part-00009.parquet").exists()


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"files": 3}', b'{"files": {"a": "x"}}', b"\xff"])
def test_a_damaged_manifest_is_a_lost_result(partition: ResultPartition, content: bytes) -> None:
    write(partition)
    (partition.path / MANIFEST).write_bytes(content)
    with pytest.raises(PartitionNotFoundError, match="is damaged") as caught:
        partition.check()
    assert caught.value.vertex_id == "v" * 32


def test_the_schema_of_a_result_of_an_earlier_version_has_to_be_looked_for(partition: ResultPartition) -> None:
    write(partition)
    manifest = json.loads((partition.path / MANIFEST).read_text())
    del manifest["schema"]
    (partition.path / MANIFEST).write_text(json.dumps(manifest))
    assert partition.check() is None


def test_a_file_that_is_gone_or_cut_is_a_lost_result(partition: ResultPartition) -> None:
    write(partition)
    file = partition.path / "part-00002.parquet"
    file.write_bytes(b"x")
    with pytest.raises(PartitionNotFoundError, match="has 1 bytes in place of 3"):
        partition.check()
    file.unlink()
    with pytest.raises(PartitionNotFoundError, match=r"part-00002.parquet cannot be read"):
        partition.check()


def test_an_error_is_blamed_on_a_result_that_is_lost_or_that_spark_cannot_read(partition: ResultPartition) -> None:
    write(partition)
    error = ValueError("the user's own")
    assert partition.is_blamed_by(error) is None
    unreadable = RuntimeError(
        f"[FAILED_READ_FILE.NO_HINT] while reading file:{partition.path}/part-00001.parquet.\nmore"
    )
    error.__cause__ = unreadable
    unreadable.__cause__ = error  # whatever a user's code makes of it
    lost = partition.is_blamed_by(error)
    assert lost is not None
    assert "\n" not in str(lost)
    other = RuntimeError("[FAILED_READ_FILE.NO_HINT] while reading file:/data/flights/part-00001.parquet")
    assert partition.is_blamed_by(other) is None, "the user's own file"
    (partition.path / "part-00000.parquet").unlink()
    assert partition.is_blamed_by(other) is not None


def test_only_what_is_unfinished_is_discarded(partition: ResultPartition) -> None:
    discard_unfinished([str(partition.path)])
    write(partition)
    partition.in_progress.mkdir()
    (partition.in_progress / "part-00000").touch()
    discard_unfinished([str(partition.path)])
    assert not partition.in_progress.exists()
    partition.check()

from __future__ import annotations

import json
import os
import shutil
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from runtime.checkpoint.errors import SavepointError, SnapshotLostError
from runtime.checkpoint.files import list_files
from runtime.checkpoint.manifest import Savepoint, SavepointJob, digest_of
from runtime.checkpoint.retained import open_checkpoint, verify_state, write_metadata
from runtime.checkpoint.savepoint import (
    MANIFEST,
    dispose_savepoint,
    list_savepoints,
    open_savepoint,
    read_savepoint,
    verify_savepoint,
    write_savepoint,
)
from runtime.checkpoint.snapshot import restore_snapshot, take_snapshot
from runtime.ids import JobID, JobVertexID
from runtime.protocol.checkpoints import CheckpointMetadata, TaskSnapshot
from tests.streaming_files import StreamingFiles, rows, start

JOB = SavepointJob("0123456789abcdef" * 2, "flights")


@pytest.fixture
def files(tmp_path: Path) -> StreamingFiles:
    files = StreamingFiles(tmp_path / "live", "rocksdb", (("default",), ("left", "right")))
    files.run(4)
    return files


@pytest.fixture
def savepoint(files: StreamingFiles, tmp_path: Path) -> Savepoint:
    return write_savepoint(tmp_path / "savepoints", JOB, [take_snapshot(files.query, tmp_path / "chk" / "counts")])


def test_a_savepoint_can_be_moved_and_restored_without_all_else(
    files: StreamingFiles, savepoint: Savepoint, tmp_path: Path
) -> None:
    files.run(3)
    shutil.rmtree(tmp_path / "chk")
    shutil.rmtree(files.location)
    moved = tmp_path / "elsewhere" / "mine"
    moved.parent.mkdir()
    Path(savepoint.path).rename(moved)
    found = open_savepoint(moved)
    assert (found.job, found.files) == (savepoint.job, savepoint.files)
    [query] = found.queries
    assert Path(query.snapshot.path).is_relative_to(moved)
    restore_snapshot(query.snapshot, files.location, files.sink, copy=True)
    assert start(files.location, files.sink) == 3
    assert rows(files.sink) == [f"rows of {number}" for number in range(4)]
    assert verify_savepoint(moved) == []
    assert not {(moved / name).stat().st_ino for name in list_files(moved)} & {
        (files.root / name).stat().st_ino for name in list_files(files.root)
    }


def test_its_files_are_on_the_disk_before_it_is_one(
    files: StreamingFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = take_snapshot(files.query, tmp_path / "chk")
    synced: set[tuple[str, int]] = set()
    sync = os.fsync

    def note(descriptor: int) -> None:
        sync(descriptor)
        synced.add((Path(f"/proc/self/fd/{descriptor}").readlink().name, os.fstat(descriptor).st_ino))

    monkeypatch.setattr(os, "fsync", note)
    (tmp_path / "made" / "by" / "another").mkdir(parents=True)  # process, which was killed before it has synced a name
    path = Path(write_savepoint(tmp_path / "made" / "by" / "another" / "savepoints", JOB, [snapshot]).path)
    inodes = {inode for _, inode in synced}
    above = list(path.parents)[:5]
    assert above[-1] == tmp_path
    assert [name for name in (path, *path.rglob("*"), *above) if name.stat().st_ino not in inodes] == []


def test_what_the_manifest_says(files: StreamingFiles, savepoint: Savepoint) -> None:
    manifest = json.loads((Path(savepoint.path) / MANIFEST).read_text())
    assert Path(savepoint.path).name.startswith("savepoint-012345-")
    assert manifest["format_version"] == 1
    assert manifest["job"] == {"id": JOB.id, "name": "flights", "owner": ""}
    assert set(manifest) >= {"created_ms", "spark_version", "version", "digest"}
    assert set(manifest["files"]) == set(list_files(Path(savepoint.path))) - {MANIFEST}
    [query] = manifest["queries"]
    assert query["snapshot"]["path"] == "queries/0-counts"
    assert (query["snapshot"]["query_id"], query["snapshot"]["batch_id"]) == (files.query_id, 3)
    assert query["snapshot"]["offsets"] == ['{"logOffset":3}', '{"x":3}']
    assert query["watermark_ms"] == 3
    assert query["description"]["sources"] == ["file", "other"]
    assert [(one["id"], one["name"]) for one in query["description"]["operators"]] == [(0, "save"), (1, "save")]
    assert [store["partitions"] for one in query["description"]["operators"] for store in one["stores"]] == [2, 2, 2]
    for name in list_files(Path(savepoint.path)):
        assert stat.S_IMODE((Path(savepoint.path) / name).stat().st_mode) == 0o600
    assert stat.S_IMODE(Path(savepoint.path).stat().st_mode) == 0o700


def test_every_damage_is_found(savepoint: Savepoint) -> None:
    root = Path(savepoint.path)
    for name in sorted(list_files(root)):
        content = (root / name).read_bytes()
        for damaged in (content[:-1], bytes([content[0] ^ 1]) + content[1:], content + b" "):
            if name == MANIFEST and damaged == content + b" ":
                continue  # white space says nothing
            (root / name).write_bytes(damaged)
            [problem] = verify_savepoint(root)
            assert name in problem or (name == MANIFEST and "the manifest of" in problem)
            with pytest.raises(SavepointError, match="cannot be used"):
                open_savepoint(root)
        (root / name).unlink()
        assert len(verify_savepoint(root)) == 1
        (root / name).write_bytes(content)
    (root / "queries" / "more").touch()
    assert verify_savepoint(root) == ["queries/more is not in the manifest"]
    (root / "queries" / "more").unlink()
    assert verify_savepoint(root) == []


def test_where_there_is_no_savepoint_nothing_can_be_verified(savepoint: Savepoint) -> None:
    parent = Path(savepoint.path).parent
    for place, why in ((parent, f"it has no {MANIFEST}"), (parent / "missing", "there is no such directory")):
        for use in (open_savepoint, read_savepoint):
            with pytest.raises(SavepointError) as caught:
                use(place)
            assert str(caught.value) == f"{place} is not a savepoint: {why}"
            assert caught.value.remedy == "`understudy savepoint list DIR` shows the savepoints in a directory"


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "queries/../../x"])
def test_a_manifest_cannot_name_files_outside(savepoint: Savepoint, path: str) -> None:
    root = Path(savepoint.path)
    manifest = json.loads((root / MANIFEST).read_text())
    manifest["queries"][0]["snapshot"]["path"] = path
    del manifest["digest"]
    (root / MANIFEST).write_text(json.dumps({**manifest, "digest": digest_of(manifest)}))
    with pytest.raises(SavepointError, match="names a file outside of it"):
        read_savepoint(root)


def test_a_later_form_is_refused_with_the_remedy(savepoint: Savepoint) -> None:
    root = Path(savepoint.path)
    manifest = json.loads((root / MANIFEST).read_text())
    (root / MANIFEST).write_text(json.dumps({**manifest, "format_version": 2}))
    with pytest.raises(SavepointError, match="has format 2; this version of Understudy reads up to 1") as caught:
        read_savepoint(root)
    assert caught.value.remedy == "use the version that wrote it, or a later one"


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"digest": 1, "format_version": "x"}', '"x"'])
def test_what_is_no_manifest(savepoint: Savepoint, content: str) -> None:
    (Path(savepoint.path) / MANIFEST).write_text(content)
    with pytest.raises(SavepointError, match=r"the manifest of .* is damaged"):
        read_savepoint(Path(savepoint.path))


def test_a_half_written_one_is_never_seen(
    files: StreamingFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = take_snapshot(files.query, tmp_path / "chk" / "counts")
    fsync = os.fsync
    left = 0

    def fail(descriptor: int) -> None:
        nonlocal left
        if Path(f"/proc/self/fd/{descriptor}").readlink() != tmp_path / "savepoints":  # which has the name by then
            assert list_savepoints(tmp_path / "savepoints") == []
        left -= 1
        if left == 0:
            raise OSError(28, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail)
    directories = len([path for path in Path(snapshot.path).rglob("*") if path.is_dir()])
    manifest = snapshot.files + 1
    for fails_at in (1, 5, snapshot.files, manifest, manifest + 2, manifest + directories):
        left = fails_at
        with pytest.raises(SavepointError, match=r"no savepoint of job 'flights' in .*: .*No space left"):
            write_savepoint(tmp_path / "savepoints", JOB, [snapshot])
        assert list((tmp_path / "savepoints").iterdir()) == []
    assert verify_savepoint(Path(write_savepoint(tmp_path / "savepoints", JOB, [snapshot]).path)) == []


def test_processes_that_give_one_name_share_no_file(files: StreamingFiles, tmp_path: Path) -> None:
    """One was killed, another one still writes, and of the others the first to be ready gets the name."""
    snapshot = take_snapshot(files.query, tmp_path / "chk" / "counts")
    writes = tmp_path / "work-1" / ".made.part" / "queries"
    writes.mkdir(parents=True)
    made = write_savepoint(tmp_path, JOB, [snapshot], name="made", work=tmp_path / "work-2")
    with pytest.raises(SavepointError, match="not empty"):
        write_savepoint(tmp_path, JOB, [snapshot], name="made", work=tmp_path / "work-3")
    assert verify_savepoint(Path(made.path)) == []
    assert writes.exists()
    assert list((tmp_path / "work-3").iterdir()) == []


def test_of_a_snapshot_that_is_not_whole(files: StreamingFiles, tmp_path: Path) -> None:
    snapshot = take_snapshot(files.query, tmp_path / "chk" / "counts")
    (Path(snapshot.path) / "checkpoint" / "state" / "0" / "0" / "4.zip").unlink()
    with pytest.raises(SnapshotLostError):
        write_savepoint(tmp_path / "savepoints", JOB, [snapshot])
    assert list((tmp_path / "savepoints").iterdir()) == []


def test_of_a_snapshot_that_was_damaged_since(files: StreamingFiles, tmp_path: Path) -> None:
    snapshot = take_snapshot(files.query, tmp_path / "chk" / "counts")
    damaged = Path(snapshot.path) / "sink" / "3"
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    with pytest.raises(SavepointError, match="sink/3 is damaged: its digest is another one"):
        write_savepoint(tmp_path / "savepoints", JOB, [snapshot])
    assert list((tmp_path / "savepoints").iterdir()) == []


def test_queries_of_one_name_or_of_none_that_a_file_may_have(files: StreamingFiles, tmp_path: Path) -> None:
    snapshot = take_snapshot(files.query, tmp_path / "chk" / "counts")
    other = replace(snapshot, name="../über all")
    savepoint = write_savepoint(tmp_path / "savepoints", JOB, [snapshot, snapshot, other])
    assert [Path(query.snapshot.path).name for query in savepoint.queries] == ["0-counts", "1-counts", "2-..__ber_all"]
    assert savepoint.queries[2].snapshot.name == "../über all"
    assert verify_savepoint(Path(savepoint.path)) == []


def test_of_a_job_without_queries(tmp_path: Path) -> None:
    savepoint = write_savepoint(tmp_path, JOB, [])
    assert open_savepoint(Path(savepoint.path)).queries == ()


def test_the_list_has_the_newest_first_and_says_what_is_damaged(savepoint: Savepoint, tmp_path: Path) -> None:
    directory = tmp_path / "savepoints"
    later = write_savepoint(directory, JOB, [])
    (directory / "savepoint-empty").mkdir()
    (directory / "something else").mkdir()
    (directory / ".savepoint-abc.part").mkdir()
    damaged = next(Path(savepoint.path).glob("queries/*/checkpoint/offsets/3"))
    damaged.write_text("")
    listed = list_savepoints(directory)
    assert [one.path for one in listed] == [later.path, savepoint.path, str(directory / "savepoint-empty")]
    assert [bool(one.problems) for one in listed] == [False, True, True]
    assert listed[1].savepoint == savepoint
    assert "has 0 bytes in place of" in listed[1].problems[0]
    assert "is not a savepoint" in listed[2].problems[0]
    with pytest.raises(SavepointError, match=r"missing cannot be read: No such file"):
        list_savepoints(directory / "missing")


def test_disposal(savepoint: Savepoint, tmp_path: Path) -> None:
    assert dispose_savepoint(Path(savepoint.path))
    assert not dispose_savepoint(Path(savepoint.path))
    assert list((tmp_path / "savepoints").iterdir()) == []
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "mine").touch()
    with pytest.raises(SavepointError, match="precious is not a savepoint: it is left alone"):
        dispose_savepoint(precious)
    (precious / MANIFEST).touch()  # somebody else's
    with pytest.raises(SavepointError, match="precious is not a savepoint"):
        dispose_savepoint(precious)
    assert (precious / "mine").exists()


def test_the_current_directory_is_disposed_of_by_its_name(
    savepoint: Savepoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(savepoint.path)
    assert dispose_savepoint(Path())
    monkeypatch.chdir(tmp_path)
    assert list((tmp_path / "savepoints").iterdir()) == []
    for other in (Path(), Path(".."), Path("/")):
        with pytest.raises(SavepointError, match="is not a savepoint: it is left alone"):
            dispose_savepoint(other)


def test_disposal_follows_no_link(savepoint: Savepoint, tmp_path: Path) -> None:
    real, precious = Path(savepoint.path), tmp_path / "precious"
    precious.mkdir()
    (precious / "mine").touch()
    link = tmp_path / "savepoint-link"
    link.symlink_to(real)
    assert dispose_savepoint(link)
    assert (link.is_symlink(), verify_savepoint(real)) == (False, [])
    (real / "queries" / "more").symlink_to(precious)
    assert dispose_savepoint(real)
    assert (real.exists(), (precious / "mine").exists()) == (False, True)


def test_disposal_of_a_damaged_one(savepoint: Savepoint) -> None:
    (Path(savepoint.path) / MANIFEST).unlink()
    assert dispose_savepoint(Path(savepoint.path))


def test_of_queries_of_which_one_has_read_what_the_other_wrote_later(tmp_path: Path) -> None:
    writer = StreamingFiles(tmp_path / "writer")
    reader = StreamingFiles(tmp_path / "reader", name="reader", upstream=writer)
    taken = []
    for files in (writer, reader):
        writer.run()
        reader.run()
        taken.append(take_snapshot(files.query, tmp_path / "chk" / files.name))
    made = Path(write_savepoint(tmp_path / "savepoints", JOB, taken).path)
    (problem,) = verify_savepoint(made)
    assert "query 'reader' has read what query 'counts' wrote after its batch 0" in problem
    with pytest.raises(SavepointError, match="after a restore these rows would be read twice"):
        open_savepoint(made)
    task = TaskSnapshot(JobVertexID.random(), "stream", tuple(taken))
    kept = CheckpointMetadata(JobID(JOB.id), 1, str(tmp_path / "chk"), 0, 0, (task,))
    write_metadata(kept)
    assert verify_state(tmp_path / "chk") == [problem.replace(str(made), str(tmp_path / "chk"))]
    with pytest.raises(SnapshotLostError, match="cannot be restored: query 'reader' has read"):
        open_checkpoint(tmp_path / "chk")

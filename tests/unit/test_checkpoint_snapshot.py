from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime.checkpoint import restore
from runtime.checkpoint.errors import SnapshotError, SnapshotLostError
from runtime.checkpoint.files import list_files, list_names
from runtime.checkpoint.lease import lease_file
from runtime.checkpoint.metadata_log import opens
from runtime.checkpoint.snapshot import (
    committed_batch,
    describe_query,
    discard_snapshot,
    finish_restore,
    inspect_location,
    load_snapshot,
    restore_snapshot,
    take_snapshot,
)
from runtime.protocol.query_snapshot import NOTHING_COMMITTED, QuerySnapshot
from tests import streaming_files
from tests.streaming_files import PROVIDERS, StreamingFiles, read_log, rows, start, write

JOIN = ("left-keyToNumValues", "right-keyToNumValues")


@pytest.fixture
def files(tmp_path: Path) -> StreamingFiles:
    return StreamingFiles(tmp_path / "live", "changelog", (("default",), JOIN))


def take(files: StreamingFiles, name: str, previous: QuerySnapshot | None = None) -> QuerySnapshot:
    return take_snapshot(files.query, files.root.parent / "chk" / name / "counts", previous)


def inodes(path: Path) -> set[int]:
    return {(path / name).stat().st_ino for name in list_files(path)}


def new_bytes(first: QuerySnapshot, second: QuerySnapshot) -> int:
    new = set(list_files(Path(second.path))) - set(list_files(Path(first.path)))
    return sum((Path(second.path) / name).stat().st_size for name in new)


def test_a_snapshot_is_links_to_what_its_batch_needs(files: StreamingFiles) -> None:
    files.run(5)
    snapshot = take(files, "1")
    assert (snapshot.name, snapshot.batch_id, snapshot.query_id) == ("counts", 4, files.query_id)
    assert snapshot.offsets == ['{"logOffset":4}', '{"x":4}']
    assert inodes(Path(snapshot.path) / "checkpoint") <= inodes(files.location)
    assert inodes(Path(snapshot.path) / "sink") <= inodes(files.sink / "_spark_metadata")
    kept = [name for name in list_files(Path(snapshot.path)) if name not in ("snapshot.json", "files.json")]
    assert snapshot.files == len(kept)
    assert snapshot.bytes == snapshot.new_bytes == sum((Path(snapshot.path) / name).stat().st_size for name in kept)
    assert stat.S_IMODE(Path(snapshot.path).stat().st_mode) == 0o700
    assert load_snapshot(Path(snapshot.path)) == snapshot
    assert take(files, "1") == snapshot  # once more is once
    files.run(3)
    assert start(Path(snapshot.path) / "checkpoint") == 4
    with pytest.raises(SnapshotError, match="holds a snapshot of query 'counts', not of 'other'"):
        take_snapshot(replace(files.query, name="other"), Path(snapshot.path))


@pytest.mark.parametrize("is_of_an_earlier_release", [False, True])
@pytest.mark.parametrize("interval", [10, 20])
def test_spark_opens_the_logs_of_a_restored_query(
    files: StreamingFiles, monkeypatch: pytest.MonkeyPatch, interval: int, is_of_an_earlier_release: bool
) -> None:
    """Spark takes 39.compact alone for a sign of an interval of 10, and then looks for 49.compact."""
    monkeypatch.setattr(streaming_files, "COMPACT", interval)
    files.run(52)
    logs = (files.location / "sources" / "0", files.sink / "_spark_metadata")
    if is_of_an_earlier_release:  # whose restores left the newest compacted file alone
        for log in logs:
            for path in sorted(log.glob("*.compact"), key=lambda path: int(path.stem))[:-1]:
                files.delete(path)
    entries = [read_log(log, 51) for log in logs]
    snapshot = take(files, "1")
    files.run(1)
    restore_snapshot(snapshot, files.location, files.sink)
    assert [read_log(log, 51) for log in logs] == entries
    assert [opens(list_names(log)) for log in logs] == [True, True]
    assert start(files.location) == 51
    is_as_it_was = interval == 10 or not is_of_an_earlier_release
    assert [(log / "51.compact").exists() for log in logs] == [not is_as_it_was] * 2


@contextlib.contextmanager
def synced(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[int]]:
    """The inodes that were synced so far."""
    found, sync = set[int](), os.fsync

    def note(descriptor: int) -> None:
        sync(descriptor)
        found.add(os.fstat(descriptor).st_ino)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", note)
        yield found


@pytest.mark.parametrize("linked", [True, False])
def test_it_is_on_the_disk_before_it_is_one(
    files: StreamingFiles, monkeypatch: pytest.MonkeyPatch, linked: bool
) -> None:
    files.run(3)
    if not linked:
        monkeypatch.setattr(os, "link", _no_links)
    with synced(monkeypatch) as inodes_synced:
        first = Path(take(files, "1").path)
        everything = [first, *first.rglob("*"), *list(first.parents)[:3]]
        assert [path for path in everything if path.stat().st_ino not in inodes_synced] == []
    with synced(monkeypatch) as inodes_synced:
        take(files, "1")
        assert first.parent.stat().st_ino in inodes_synced, "whose name its process may not have synced"
    files.run(1)
    with synced(monkeypatch) as inodes_synced:
        second = Path(take(files, "2", load_snapshot(first)).path)
        known = {second / name for name in list_files(first)}
        new = [path for path in second.rglob("*") if path not in known]
        assert [path for path in new if path.stat().st_ino not in inodes_synced] == [], "the rest was synced before"


def _no_links(*_args: object, **_options: object) -> None:
    raise OSError(errno.EXDEV, "Invalid cross-device link")


@pytest.mark.parametrize("copy", [True, False])
def test_each_step_of_a_rollback_is_on_the_disk_before_its_journal_says_so(
    files: StreamingFiles, monkeypatch: pytest.MonkeyPatch, copy: bool
) -> None:
    files.run(2)
    snapshot = take(files, "1")
    files.run(2)
    phases = []
    workspaces = (files.location.with_name(f".{files.location.name}.restore"), files.sink / "_understudy_restore")
    write_journal = restore._write

    def checked(workspace: Path, journal: Any) -> None:
        phases.append(journal.phase)
        if journal.phase == "exchanging":
            everything = [path for root in workspaces for path in (root.parent, root, *root.rglob("*"))]
            everything = [path for path in everything if copy or not path.is_file()]  # a snapshot's files are synced
            assert [path for path in everything if path.stat().st_ino not in inodes_synced] == []
            inodes_synced.clear()
        if journal.phase == "removing":
            parents = (files.location.parent, files.sink, *workspaces)
            assert [path for path in parents if path.stat().st_ino not in inodes_synced] == []
        write_journal(workspace, journal)

    monkeypatch.setattr(restore, "_write", checked)
    with synced(monkeypatch) as inodes_synced:
        restore_snapshot(snapshot, files.location, files.sink, copy=copy)
    assert phases == ["preparing", "exchanging", "removing"]


def test_another_process_sees_the_batch_of_a_location_at_each_step_of_its_restore(
    files: StreamingFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.run(2)
    snapshot = take(files, "1")
    files.run(2)
    seen = []
    list_names, rename, write_journal = restore.list_names, restore.rename_durably, restore._write

    def look() -> None:
        seen.append((files.location.exists(), restore.batch_to_start_from(files.location)))

    def renamed(old: Path, new: Path) -> None:
        look()
        rename(old, new)

    def written(workspace: Path, journal: Any) -> None:
        write_journal(workspace, journal)
        look()

    with monkeypatch.context() as patch:
        patch.setattr(restore, "rename_durably", renamed)
        patch.setattr(restore, "_write", written)
        restore_snapshot(snapshot, files.location, files.sink)
    look()
    # prepared, exchanging, the location's own move, its sink's, exchanged, removed
    assert seen == [(True, 3), (True, 3), (False, 1), (True, 1), (True, 1), (True, 1)]

    def moved_back(directory: Path) -> list[str]:
        """Let the location appear while a directory that is not there is listed."""
        names = list_names(directory)
        if (away := files.location.with_name("away")).exists():
            away.rename(files.location)
        return names

    files.location.rename(files.location.with_name("away"))
    assert restore.batch_to_start_from(files.location) is None
    monkeypatch.setattr(restore, "list_names", moved_back)
    assert restore.batch_to_start_from(files.location) == 1


def test_the_offsets_of_kafka_go_back_with_a_query(files: StreamingFiles, tmp_path: Path) -> None:
    """Without a broker this is what there is to see: Kafka's source keeps its place in the offsets' log alone."""
    files.run(3)
    offsets = files.location / "offsets" / "2"
    head = "\n".join(offsets.read_text().splitlines()[:2])
    of_kafka = ['{"clicks":{"0":120,"1":98},"orders":{"0":7}}', '{"refunds":{"0":3}}']
    write(offsets, "\n".join([head, *of_kafka]))
    snapshot = take(files, "1")
    assert snapshot.offsets == of_kafka
    files.run(2)
    assert take(files, "2").offsets != of_kafka
    restore_snapshot(snapshot, files.location, files.sink)
    assert (files.location / "offsets" / "2").read_text().splitlines()[2:] == of_kafka
    assert not (files.location / "offsets" / "3").exists(), "what was read after it is read again"
    assert describe_query(files.query).sources == ("kafka:clicks,orders", "kafka:refunds")


def test_only_what_changed_is_new_and_what_is_shared_goes_with_the_last(files: StreamingFiles) -> None:
    files.run(9)
    first = take(files, "1")
    files.run(1)
    second = take(files, "2", first)
    assert second.new_bytes == new_bytes(first, second) < second.bytes
    shutil.rmtree(files.root)
    discard_snapshot(first)
    discard_snapshot(first)
    assert not Path(first.path).exists()
    assert start(Path(second.path) / "checkpoint") == 9
    with pytest.raises(SnapshotLostError, match=r"there is no snapshot in .*: No such file"):
        load_snapshot(Path(first.path))


def no_links_from(root: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Links to files below *root* cannot be had, as if it were another device."""
    link = os.link

    def refuse(source: Any, target: Any, **more: Any) -> None:
        if Path(source).is_relative_to(root):
            raise OSError(code, os.strerror(code), str(source))
        link(source, target, **more)

    monkeypatch.setattr(os, "link", refuse)


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EPERM, errno.EMLINK])
def test_where_there_are_no_links_each_file_is_copied_once(
    files: StreamingFiles, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    no_links_from(files.root, monkeypatch, code)
    files.run(9)
    first = take(files, "1")
    assert not inodes(Path(first.path)) & inodes(files.root)
    files.run(1)
    second = take(files, "2", first)
    assert inodes(Path(second.path) / "checkpoint") & inodes(Path(first.path) / "checkpoint")
    assert second.new_bytes == new_bytes(first, second) < second.bytes
    discard_snapshot(first)
    assert start(Path(second.path) / "checkpoint") == 9
    files.run(1)
    third = take(files, "3", first)  # which is gone
    assert third.new_bytes == third.bytes


def test_a_snapshot_of_another_query_is_not_taken_for_ones_own(tmp_path: Path) -> None:
    files = StreamingFiles(tmp_path / "live", "hdfs", partitions=1)
    files.run(1)
    taken = take_snapshot(files.query, tmp_path / "chk")
    assert take_snapshot(files.query, tmp_path / "chk") == taken, "the same again is the same"
    with pytest.raises(SnapshotError, match="holds a snapshot of query 'counts', not of 'other'"):
        take_snapshot(replace(files.query, name="other"), tmp_path / "chk")


def test_a_disk_that_is_full_leaves_nothing_behind(files: StreamingFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    files.run(2)
    no_links_from(files.root, monkeypatch, errno.ENOSPC)
    with pytest.raises(SnapshotError, match=r"no snapshot of query 'counts' at .*: .*No space left"):
        take(files, "1")
    assert list((files.root.parent / "chk" / "1").iterdir()) == []


@pytest.mark.parametrize("provider", PROVIDERS)
def test_what_is_purged_meanwhile_makes_it_begin_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, provider: str
) -> None:
    files = StreamingFiles(tmp_path / "live", provider)
    files.run(14)
    link, calls = os.link, 0

    def race(source: Any, target: Any, **more: Any) -> None:
        nonlocal calls
        calls += 1
        if calls % 25 == 10 and calls < 200:
            files.run(3, whole=[1])
            files.purge()
        link(source, target, **more)

    monkeypatch.setattr(os, "link", race)
    snapshot = take(files, "1")
    assert calls > 25
    assert snapshot.batch_id > 13
    assert start(Path(snapshot.path) / "checkpoint") == snapshot.batch_id
    restore_snapshot(snapshot, files.location, files.sink)
    assert rows(files.sink) == [f"rows of {number}" for number in range(snapshot.batch_id + 1)]


def test_a_query_that_purges_faster_than_a_snapshot_is_taken_is_given_up(
    files: StreamingFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.run(1)

    def gone(source: Any, target: Any, **more: Any) -> None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(source))

    monkeypatch.setattr(os, "link", gone)
    with pytest.raises(SnapshotError, match=r"no snapshot of query 'counts' at .*: .*No such file or directory: "):
        take(files, "1")


def test_a_location_that_is_not_whole(files: StreamingFiles) -> None:
    assert inspect_location(files.query) == -1
    files.run(4)
    files.plan()
    assert inspect_location(files.query) == 3
    (files.location / "state" / "0" / "1" / "2.changelog").unlink()
    remains = r"state/0/1: version 4 lacks the changes of 2"
    with pytest.raises(SnapshotError, match=rf"query 'counts' cannot continue from .*: {remains}"):
        inspect_location(files.query)
    with pytest.raises(SnapshotError, match=remains):
        take(files, "1")
    other = StreamingFiles(files.root.parent / "other")
    other.run(3)
    with pytest.raises(SnapshotError, match="entries 0, 1, 2 of the log are missing"):
        inspect_location(replace(other.query, sink=str(files.root.parent / "elsewhere")))


def expected(batch_id: int) -> list[str]:
    return [f"rows of {number}" for number in range(batch_id + 1)]


def check_restored(files: StreamingFiles, batch_id: int, more: int = 12) -> None:
    """The query and its sink are at a batch, and going on makes what an undisturbed run makes."""
    location, sink = files.location, files.sink
    assert start(location, sink) == batch_id
    assert rows(sink) == expected(batch_id)
    assert sorted(path.read_text() for path in sink.glob("part-*")) == sorted(expected(batch_id))
    assert not list(location.parent.glob(".*"))
    assert not list(sink.glob("_understudy*"))
    files.next_batch = batch_id + 1
    files.run(more)
    assert start(location, sink) == batch_id + more
    assert rows(sink) == expected(batch_id + more)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("batches", [1, 9, 10, 12])
def test_a_rollback_in_place(tmp_path: Path, provider: str, batches: int) -> None:
    files = StreamingFiles(tmp_path / "live", provider, (("default",), JOIN))
    files.run(batches, whole=[3])
    snapshot = take(files, "1")
    files.run(14, whole=[5])
    files.plan()
    restore_snapshot(snapshot, files.location, files.sink)
    check_restored(files, batches - 1)
    # the snapshot is as it was, and good for another time
    restore_snapshot(snapshot, files.location, files.sink, copy=True)
    assert not inodes(files.location) & inodes(Path(snapshot.path))
    check_restored(files, batches - 1)
    files.run(11)
    assert start(Path(snapshot.path) / "checkpoint") == batches - 1


def test_back_to_the_beginning(files: StreamingFiles) -> None:
    snapshot = take(files, "1")
    assert snapshot.batch_id == -1
    files.run(11)
    restore_snapshot(snapshot, files.location, files.sink)
    check_restored(files, -1)


def test_an_empty_location_is_no_state_of_a_sink_that_has_batches(files: StreamingFiles, tmp_path: Path) -> None:
    files.run(2)
    other = tmp_path / "other"
    with pytest.raises(SnapshotError, match=r"has no batch, but the log of its file sink .* has batch 1"):
        take_snapshot(replace(files.query, location=str(other)), tmp_path / "chk-1")
    write(other / "offsets" / "0", (files.location / "offsets" / "0").read_text())
    with pytest.raises(SnapshotError, match="has batch 1"):
        take_snapshot(replace(files.query, location=str(other)), tmp_path / "chk-1")
    assert not list(tmp_path.glob("*chk-1*"))


def test_a_query_that_is_about_to_commit_its_first_batch_has_a_snapshot(files: StreamingFiles, tmp_path: Path) -> None:
    files.run()
    files.delete(files.location / "commits" / "0")
    assert take_snapshot(files.query, tmp_path / "chk-1").batch_id == NOTHING_COMMITTED


def test_a_new_query_id_is_asked_for(files: StreamingFiles) -> None:
    files.run(2)
    snapshot = take(files, "1")
    restore_snapshot(snapshot, files.location, files.sink)
    assert files.query_id in (files.location / "metadata").read_text()
    restore_snapshot(snapshot, files.location, files.sink, new_query_id=True)
    assert files.query_id not in (files.location / "metadata").read_text()
    assert not (files.location / ".metadata.crc").exists()  # Spark would take the file for damaged
    assert take(files, "2").query_id not in (files.query_id, "")
    assert files.query_id in (Path(snapshot.path) / "checkpoint" / "metadata").read_text()


def test_into_another_place_the_old_one_is_left_alone(files: StreamingFiles, tmp_path: Path) -> None:
    files.run(4)
    snapshot = take(files, "1")
    files.run(9)
    moved = StreamingFiles(tmp_path / "moved", "changelog", files.operators)
    restore_snapshot(snapshot, moved.location, moved.sink)
    # the new sink shows the old one's files where they are
    assert rows(moved.sink) == expected(3)
    assert start(moved.location, moved.sink) == 3
    assert start(files.location, files.sink) == 12
    assert rows(files.sink) == expected(12)
    moved.next_batch = 4
    moved.run(9)
    assert rows(moved.sink) == expected(12)


def test_into_another_place_with_the_sinks_files(files: StreamingFiles, tmp_path: Path) -> None:
    files.run(12)
    snapshot = take(files, "1")
    files.run(2)
    moved = StreamingFiles(tmp_path / "moved to", "changelog", files.operators)
    shutil.copytree(files.sink, moved.sink)
    shutil.rmtree(files.root)
    restore_snapshot(snapshot, moved.location, moved.sink)
    assert rows(moved.sink) == expected(11)
    # What the abandoned batches wrote is named by its old place in the copied log: it is not ours to judge.
    assert len(list(moved.sink.glob("part-*"))) == 14


def test_files_outside_of_the_sink_are_never_removed(files: StreamingFiles, tmp_path: Path) -> None:
    files.run(1)
    snapshot = take(files, "1")
    outside = tmp_path / "precious"
    outside.write_text("mine")
    (files.sink / "mine").write_text("too")
    files.run(1)
    log = files.sink / "_spark_metadata" / "1"
    with log.open("a") as file:
        file.write(f'\n{{"path":"file://{outside}"}}\n{{"path":"file://{files.sink}/../../precious"}}')
    restore_snapshot(snapshot, files.location, files.sink)
    assert outside.read_text() == "mine"
    assert (files.sink / "mine").read_text() == "too"
    check_restored(files, 0)


def test_what_was_abandoned_by_a_rollback_is_no_place_to_go_back_to(files: StreamingFiles) -> None:
    files.run(2)
    first = take(files, "1")
    files.run(2)
    second = take(files, "2")
    restore_snapshot(first, files.location, files.sink)
    files.next_batch = 2
    files.run(3)
    with pytest.raises(SnapshotLostError, match=r"cannot go back to batch 3: its file sink has lost 2 of 4 files"):
        restore_snapshot(second, files.location, files.sink)
    assert start(files.location, files.sink) == 4
    assert rows(files.sink) == expected(4)


def test_a_damaged_entry_of_an_abandoned_batch_does_not_stop_it(
    files: StreamingFiles, caplog: pytest.LogCaptureFixture
) -> None:
    files.run(1)
    snapshot = take(files, "1")
    files.run(2)
    (files.sink / "_spark_metadata" / "1").write_text("v1\n{")
    restore_snapshot(snapshot, files.location, files.sink)
    assert start(files.location, files.sink) == 0
    assert rows(files.sink) == expected(0)
    assert "files of abandoned batches stay in" in caplog.text


def test_a_damaged_snapshot_changes_nothing(files: StreamingFiles) -> None:
    files.run(5)
    snapshot = take(files, "1")
    files.run(2)
    before = sorted(list_files(files.root))
    root = Path(snapshot.path)
    for path in ("checkpoint/state/0/0/3.changelog", "checkpoint/commits/4", "sink/2", "checkpoint/metadata"):
        content = (root / path).read_bytes()
        (root / path).unlink()
        with pytest.raises(SnapshotLostError, match=r"the snapshot of query 'counts' in .* is not whole: "):
            restore_snapshot(snapshot, files.location, files.sink)
        (root / path).write_bytes(content)
    assert sorted(list_files(files.root)) == before
    assert start(files.location, files.sink) == 6


class Killed(BaseException):
    """SIGKILL: nothing more happens."""


_CHANGES = ("link", "rename", "replace", "unlink", "rmdir", "mkdir", "open", "chmod")


class Reaper:
    """Kills at the n-th change of a file; from then on nothing changes any more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int | None) -> None:
        self.at, self.count = at, 0
        for name in _CHANGES:
            monkeypatch.setattr(os, name, self._counted(getattr(os, name), name))

    def _counted(self, call: Callable[..., Any], name: str) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            if name != "open" or (len(args) > 1 and args[1] & os.O_CREAT):
                self.count += 1
                if self.at is not None and self.count >= self.at:
                    raise Killed
            return call(*args, **kwargs)

        return counted


def crashes(run: Callable[[], object], files: StreamingFiles) -> Iterator[None]:
    """Run something again and again from the same files, killed at another change each time, until it is not."""
    backup = Path(tempfile.mkdtemp(dir=files.root.parent)) / "live"
    shutil.copytree(files.root, backup, copy_function=os.link)
    at = 1
    while True:
        with pytest.MonkeyPatch.context() as patch:
            Reaper(patch, at)
            try:
                run()
                return
            except Killed:
                pass
        yield
        shutil.rmtree(files.root)
        shutil.copytree(backup, files.root, copy_function=os.link)
        at += 1


@pytest.mark.parametrize("how", ["repeated", "finished"])
def test_killed_at_any_step_of_a_rollback(tmp_path: Path, how: str) -> None:
    files = StreamingFiles(tmp_path / "live", "hdfs", partitions=1)
    files.run(2)
    snapshot = take(files, "1")
    files.run(2)
    old_rows, finished, batch_ids = rows(files.sink), [], []
    for _ in crashes(lambda: restore_snapshot(snapshot, files.location, files.sink), files):
        if how == "repeated":
            restore_snapshot(snapshot, files.location, files.sink)
            check_restored(files, 1, more=1)
        else:
            # Another process, which knows the location only: either nothing had changed, or it is brought to its end,
            # without the snapshot.
            hidden = Path(snapshot.path).rename(tmp_path / "hidden")
            finished.append(finish_restore(files.location))
            hidden.rename(snapshot.path)
            batch_ids.append(start(files.location, files.sink))
            assert batch_ids[-1] == 1 or not finished[-1]
            assert rows(files.sink) == (expected(1) if batch_ids[-1] == 1 else old_rows)
            assert not list(files.location.parent.glob(".*"))
            assert not list(files.sink.glob("_understudy*"))
        assert start(Path(snapshot.path) / "checkpoint") == 1
    if how == "finished":
        assert batch_ids == sorted(batch_ids, reverse=True)  # up to some step it is given up, from then on finished
        assert set(batch_ids) == {3, 1}
        assert True in finished


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kills=st.lists(st.integers(1, 150), min_size=2, max_size=5), batches=st.integers(0, 12), more=st.integers(0, 12))
def test_killed_again_and_again(
    tmp_path_factory: pytest.TempPathFactory, kills: list[int], batches: int, more: int
) -> None:
    files = StreamingFiles(tmp_path_factory.mktemp("kills") / "live", "rocksdb", partitions=1)
    files.run(batches)
    snapshot = take(files, "1")
    files.run(more)
    for at in kills:
        with pytest.MonkeyPatch.context() as patch:
            Reaper(patch, at)
            try:
                restore_snapshot(snapshot, files.location, files.sink)
            except Killed:
                continue
    restore_snapshot(snapshot, files.location, files.sink)
    check_restored(files, batches - 1)


def test_killed_while_a_snapshot_is_taken_or_discarded(tmp_path: Path) -> None:
    files = StreamingFiles(tmp_path / "live", "hdfs", partitions=1)
    files.run(3)
    target = tmp_path / "live" / "chk" / "counts"
    for _ in crashes(lambda: take_snapshot(files.query, target), files):
        if target.exists():
            assert start(target / "checkpoint") == 2
        assert take_snapshot(files.query, target).batch_id == 2
        assert [path.name for path in target.parent.iterdir()] == ["counts"]
    snapshot = take_snapshot(files.query, target)
    for _ in crashes(lambda: discard_snapshot(snapshot), files):
        if target.exists():
            assert start(target / "checkpoint") == 2
        discard_snapshot(snapshot)
        assert list(target.parent.iterdir()) == []


@pytest.mark.parametrize("name", ["report.csv", "archive/2025.csv", ".git/HEAD", "a/b", "_spark_metadata/0"])
def test_a_location_that_holds_anything_else_is_not_replaced(files: StreamingFiles, name: str) -> None:
    files.run(2)
    snapshot = take(files, "1")
    files.run(2)
    other = files.location / name
    other.parent.mkdir(exist_ok=True)
    other.write_text("precious")
    (files.location / "_$folder$").touch()
    (files.location / "offsets_$folder$").touch()
    (files.location / ".metadata.1.tmp").touch()
    with pytest.raises(SnapshotError, match=f"and '{name.split('/')[0]}' in it are not the query's") as refused:
        restore_snapshot(snapshot, files.location, files.sink)
    assert "checkpointLocation of its own" in refused.value.remedy
    assert (other.read_text(), start(files.location, files.sink)) == ("precious", 3)
    assert not list(files.location.parent.glob(".*"))
    other.unlink()
    if other.parent != files.location:
        other.parent.rmdir()
    restore_snapshot(snapshot, files.location, files.sink)
    assert start(files.location, files.sink) == 1


def test_a_location_with_a_source_of_its_own_is_replaced(files: StreamingFiles) -> None:
    write(files.location / "custom" / "0", "x")
    files.run(2)
    snapshot = take(files, "1")
    files.run(1)
    restore_snapshot(snapshot, files.location, files.sink)
    assert (files.location / "custom" / "0").read_text() == "x"


def test_a_location_that_contains_the_file_sink_is_not_replaced(files: StreamingFiles, tmp_path: Path) -> None:
    """The sink's log would go back to what it was in the snapshot, which may be ahead of the batch."""
    files.run(2)
    snapshot = take(files, "1")
    (tmp_path / "link").symlink_to(files.location)
    for sink in (files.location / "out", tmp_path / "link" / "out", files.location):
        with pytest.raises(SnapshotError, match="is in that directory"):
            restore_snapshot(snapshot, files.location, sink)
    restore_snapshot(snapshot, files.sink / "checkpoint", files.sink)
    assert start(files.sink / "checkpoint", files.sink) == 1


def busy(monkeypatch: pytest.MonkeyPatch, location: Path) -> None:
    """Let a directory be one that cannot be renamed, as a mount point."""
    rename = Path.rename

    def renamed(path: Path, target: Path) -> Path:
        if path == location:
            raise OSError(errno.EBUSY, "Device or resource busy")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", renamed)


@pytest.mark.parametrize("is_seen", [True, False])
def test_a_location_that_cannot_be_moved_is_left_as_it_was(
    files: StreamingFiles, monkeypatch: pytest.MonkeyPatch, is_seen: bool
) -> None:
    """A volume of a container is a mount point. Some are seen only when they are moved."""
    files.run(2)
    snapshot = take(files, "1")
    files.run(2)
    before = rows(files.sink)
    busy(monkeypatch, files.location)
    monkeypatch.setattr(Path, "is_mount", lambda path: is_seen and path == files.location)
    phases: list[str] = []
    write_journal = restore._write

    def noted(workspace: Path, journal: Any) -> None:
        phases.append(journal.phase)
        write_journal(workspace, journal)

    monkeypatch.setattr(restore, "_write", noted)
    with pytest.raises(SnapshotError, match="it is a mount point, which cannot be moved") as refused:
        restore_snapshot(snapshot, files.location, files.sink)
    assert "a directory below it" in refused.value.remedy
    assert phases == ([] if is_seen else ["preparing", "exchanging", "preparing"])
    assert (start(files.location, files.sink), rows(files.sink)) == (3, before)
    assert finish_restore(files.location) is False
    assert not list(files.location.parent.glob(".*"))
    assert not list(files.sink.glob("_understudy*"))


def test_a_restore_that_has_exchanged_the_location_is_finished_later(
    files: StreamingFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.run(2)
    snapshot = take(files, "1")
    files.run(2)
    with monkeypatch.context() as patch:
        busy(patch, files.sink / "_spark_metadata")
        with pytest.raises(SnapshotError, match="resource busy"):
            restore_snapshot(snapshot, files.location, files.sink)
    assert finish_restore(files.location)
    check_restored(files, 1, more=1)


def test_a_location_that_is_a_link_stays_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the target would keep the abandoned batches, and the lease would be another file from now on."""
    (tmp_path / "big" / "checkpoint").mkdir(parents=True)
    (tmp_path / "live").mkdir()
    (tmp_path / "live" / "checkpoint").symlink_to(tmp_path / "big" / "checkpoint")
    files = StreamingFiles(tmp_path / "live")
    files.run(2)
    snapshot = take(files, "1")
    files.run(2)
    lease = lease_file(str(files.location))
    with monkeypatch.context() as patch:
        busy(patch, files.sink / "_spark_metadata")
        with pytest.raises(SnapshotError, match="resource busy"):
            restore_snapshot(snapshot, files.location, files.sink)
    assert (tmp_path / "big" / ".checkpoint.restore").is_dir()
    assert finish_restore(files.location)
    assert (files.location.is_symlink(), lease_file(str(files.location))) == (True, lease)
    assert committed_batch(replace(files.query, location=str(tmp_path / "big" / "checkpoint"))) == 1
    assert not list((tmp_path / "live").glob(".*"))
    check_restored(files, 1, more=1)

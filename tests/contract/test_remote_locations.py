"""CheckpointLocations in a remote file system: a real FTP server, whose files the tests see on the disk, and S3."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.config import conf

from runtime.checkpoint import remote_files
from runtime.checkpoint.errors import SavepointError, SnapshotError, SnapshotLostError
from runtime.checkpoint.files import list_files
from runtime.checkpoint.remote_files import RemoteDirectory
from runtime.checkpoint.remote_location import MARK, RemoteLocation
from runtime.checkpoint.restore import restore_snapshot, restore_to_url
from runtime.checkpoint.snapshot import committed_batch, describe_query, inspect_location, take_snapshot
from runtime.checkpoint.stored_snapshot import CHECKPOINT, check_snapshot
from runtime.checkpoint.task_restore import TaskRestore
from runtime.protocol.checkpoints import JobManagerTaskRestore
from runtime.protocol.query_snapshot import NOTHING_COMMITTED, QueryLocation, QuerySnapshot
from tests.ftp_server import PASSWORD, USER, FtpServer
from tests.s3_server import BUCKET, S3Server
from tests.streaming_files import PROVIDERS, StreamingFiles, rows, start
from tests.waiting import PATIENCE_S


@pytest.fixture
def ftp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FtpServer]:
    logging.getLogger("pyftpdlib").setLevel(logging.WARNING)
    monkeypatch.setitem(conf, "ftp", {"username": USER, "password": PASSWORD})
    server = FtpServer(tmp_path / "ftp")
    yield server
    server.close()


@pytest.fixture
def in_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lets fsspec's file system in memory pass for an object store."""
    monkeypatch.setattr(remote_files, "_PRIVATE_TO_A_PROCESS", frozenset())
    monkeypatch.setattr("blob.fsspec_store.OBJECT_STORES", frozenset({"memory"}))
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    yield
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    server = S3Server()
    monkeypatch.setitem(conf, "s3", server.settings)
    yield server
    server.close()


class Query:
    """A query whose checkpointLocation is on the server, and whose file sink is a local directory."""

    def __init__(self, ftp: FtpServer, directory: Path, provider: str = "rocksdb") -> None:
        self.files = StreamingFiles(ftp.directory / "q", provider)
        self.directory = directory
        self.url = f"ftp://127.0.0.1:{ftp.port}/q/checkpoint"
        self.location = QueryLocation("counts", self.url, str(self.files.sink))

    def take(self, number: int, previous: QuerySnapshot | None = None, **options: Any) -> QuerySnapshot:
        return take_snapshot(self.location, self.directory / f"chk-{number}" / "counts", previous, **options)

    def restore(self, snapshot: QuerySnapshot) -> None:
        restore_to_url(snapshot, self.url, self.files.sink, self.directory / "prepared")

    def started(self) -> int:
        """Do as Spark at a start, from the files as they are on the server."""
        return start(self.files.location, self.files.sink)


@pytest.fixture
def query(ftp: FtpServer, tmp_path: Path) -> Query:
    return Query(ftp, tmp_path)


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are fetched."""
    names: list[str] = []
    get = RemoteDirectory.get

    def seen(directory: RemoteDirectory, name: str, local: Path) -> None:
        names.append(name)
        get(directory, name, local)

    monkeypatch.setattr(RemoteDirectory, "get", seen)
    return names


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_snapshot_holds_the_last_committed_batch_and_can_be_restored(
    ftp: FtpServer, tmp_path: Path, provider: str
) -> None:
    query = Query(ftp, tmp_path, provider)
    query.files.run(4)
    query.files.plan()  # a batch that is not committed
    snapshot = query.take(1)
    assert (snapshot.batch_id, snapshot.location, snapshot.is_proven) == (3, query.url, True)
    assert describe_query(query.location).operators
    check_snapshot(snapshot)
    restore_snapshot(snapshot, tmp_path / "here", None)
    assert start(tmp_path / "here") == 3
    assert not list((tmp_path / "chk-1").rglob("fetched"))


def test_only_what_is_new_is_fetched_and_the_rest_is_linked(query: Query, fetched: list[str]) -> None:
    query.files.run(3)
    first = query.take(1)
    assert first.new_bytes == first.bytes
    query.files.run(1)
    fetched.clear()
    second = query.take(2, first)
    assert second.batch_id == 3
    assert 0 < second.new_bytes < second.bytes
    old = {name for name in list_files(Path(first.path) / CHECKPOINT) if (Path(second.path, CHECKPOINT, name)).exists()}
    assert old
    assert not old & set(fetched)
    assert all(Path(first.path, CHECKPOINT, name).samefile(Path(second.path, CHECKPOINT, name)) for name in old)


def test_a_file_that_was_written_again_is_fetched_again(query: Query, fetched: list[str]) -> None:
    query.files.run(2)
    first = query.take(1)
    changed = query.files.location / "metadata"
    text = changed.read_text()
    changed.write_text(text[:-3] + ("0" if text[-3] != "0" else "1") + text[-2:])  # of the same size
    query.files.delete(changed.with_name("none"))
    changed.with_name(".metadata.crc").unlink()
    os.utime(changed, (1, 1))
    fetched.clear()
    second = query.take(2, first)
    assert fetched == ["metadata"]
    assert (Path(second.path) / CHECKPOINT / "metadata").read_text() == changed.read_text()


def test_a_batch_that_is_purged_meanwhile_is_given_up_for_a_newer_one(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    query.files.run(2)
    get, first, purged = RemoteDirectory.get, threading.Semaphore(), threading.Event()

    def purging(directory: RemoteDirectory, name: str, local: Path) -> None:
        if first.acquire(blocking=False):
            query.files.run(3)
            query.files.purge()
            purged.set()
        assert purged.wait(PATIENCE_S)  # or the other threads might have fetched all that is purged
        get(directory, name, local)

    monkeypatch.setattr(RemoteDirectory, "get", purging)
    assert query.take(1).batch_id == 4


def test_a_lost_location_is_not_taken_for_one_without_a_batch(query: Query) -> None:
    query.files.plan()
    query.files.delete(query.files.location / "offsets" / "0")
    taken = query.take(1)
    assert taken.batch_id == inspect_location(query.location, taken) == NOTHING_COMMITTED
    query.files.delete(query.files.location / "sources" / "1" / "0")
    with pytest.raises(SnapshotError, match="sources/1/0 is missing, which an earlier checkpoint has"):
        inspect_location(query.location, taken)


def test_what_a_restart_needs_is_checked(query: Query, ftp: FtpServer) -> None:
    assert committed_batch(query.location) == NOTHING_COMMITTED
    query.files.run(3)
    assert (committed_batch(query.location), inspect_location(query.location)) == (2, 2)
    offsets = query.files.location / "offsets" / "2"
    content = offsets.read_bytes()
    offsets.unlink()
    with pytest.raises(SnapshotError, match="offsets/2 is missing"):
        inspect_location(query.location)
    offsets.write_bytes(content)
    ftp.close()
    for act in (committed_batch, inspect_location, describe_query):
        with pytest.raises(SavepointError, match="cannot"):
            act(query.location)
    with pytest.raises(SavepointError, match="cannot"):
        query.take(1)
    assert not list(query.directory.glob("chk-1/*"))


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_file_that_was_cut_short_is_not_taken_for_the_one_of_the_checkpoint(
    ftp: FtpServer, tmp_path: Path, provider: str
) -> None:
    query = Query(ftp, tmp_path, provider)
    query.files.run(3)
    taken = query.take(1)
    assert inspect_location(query.location, taken) == 2
    damaged = next(
        file
        for file in sorted(query.files.location.glob("state/0/0/**/*"))
        if file.suffix in (".sst", ".delta", ".changelog")
        and (tmp_path / "chk-1" / "counts" / CHECKPOINT / file.relative_to(query.files.location)).exists()
    )
    damaged.write_bytes(damaged.read_bytes()[:-1])
    with pytest.raises(SnapshotError, match=rf"{damaged.name} has \d+ bytes in place of \d+"):
        inspect_location(query.location, taken)
    note = TaskRestore(tmp_path / "task", JobManagerTaskRestore(7, (taken,))).prepare(query.location)
    assert "continues from checkpoint 7, batch 2" in note
    assert inspect_location(query.location, taken) == 2


def test_a_query_goes_back_and_runs_on_as_if_nothing_had_been(query: Query) -> None:
    query.files.run(3)
    snapshot = query.take(1)
    query.files.run(2)
    query.restore(snapshot)
    assert query.started() == 2
    assert rows(query.files.sink) == [f"rows of {batch}" for batch in range(3)]
    assert not (query.files.location / MARK).exists()
    assert not (query.directory / "prepared").exists()
    resumed = StreamingFiles(query.files.root, "rocksdb", query_id=query.files.query_id, next_batch=3)
    resumed.run(2)
    assert query.take(2, snapshot).batch_id == 4
    assert len(rows(query.files.sink)) == 5


def test_a_local_snapshot_is_restored_to_a_url_and_a_remote_one_to_a_directory(ftp: FtpServer, tmp_path: Path) -> None:
    local = StreamingFiles(tmp_path / "live", "changelog")
    local.run(4)
    snapshot = take_snapshot(local.query, tmp_path / "chk-1" / "counts")
    url = f"ftp://127.0.0.1:{ftp.port}/elsewhere/checkpoint"
    restore_to_url(snapshot, url, None, tmp_path / "prepared")
    there = ftp.directory / "elsewhere" / "checkpoint"
    assert start(there) == 3
    assert not list(there.rglob(".*.crc"))
    again = take_snapshot(QueryLocation("counts", url), tmp_path / "chk-2" / "counts")
    restore_snapshot(again, tmp_path / "back", None)
    assert start(tmp_path / "back") == 3


CHANGES = ("make", "put_whole", "remove", "put")


def test_an_interrupted_restore_is_found_and_done_again_whatever_was_left(
    in_memory: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted before each change of the location in turn, as by a kill."""
    local = StreamingFiles(tmp_path / "live", "hdfs", partitions=1)
    local.run(3)
    snapshot = take_snapshot(local.query, tmp_path / "chk-1" / "counts")
    query = QueryLocation("counts", "memory://bucket/q/checkpoint", str(local.sink))
    restore_to_url(snapshot, query.location, local.sink, tmp_path / "prepared")
    begun_from, before = (
        JobManagerTaskRestore(0, (snapshot,), "/savepoints/one"),
        RemoteDirectory(query.location).files(),
    )
    real = {name: getattr(RemoteDirectory, name) for name in CHANGES}
    monkeypatch.setattr(RemoteDirectory, "each", lambda _self, names, action: [action(name) for name in names])
    left, interrupted = 0, 0

    class KilledError(BaseException):
        pass

    def counted(name: str) -> Callable[..., Any]:
        def change(*arguments: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise KilledError
            return real[name](*arguments)

        return change

    for allowed in range(200):
        for name in CHANGES:
            monkeypatch.setattr(RemoteDirectory, name, counted(name))
        left = allowed
        try:
            restore_to_url(snapshot, query.location, local.sink, tmp_path / "prepared")
        except KilledError:
            interrupted += 1
        else:
            break
        finally:
            for name in CHANGES:
                monkeypatch.setattr(RemoteDirectory, name, real[name])
        is_marked = RemoteLocation(query.location).is_half_restored()
        assert is_marked or RemoteDirectory(query.location).files() == before, "what has changed is marked"
        if is_marked:
            with pytest.raises(SnapshotError, match="is not complete"):
                take_snapshot(query, tmp_path / "none" / "counts")
            with pytest.raises(SnapshotError, match="a restore there was interrupted"):
                TaskRestore(tmp_path / f"task-{allowed}", None).prepare(query)
            with pytest.raises(SnapshotError, match="was interrupted"):
                inspect_location(query)
        note = TaskRestore(tmp_path / f"task-{allowed}", begun_from).prepare(query)
        assert "begins from batch 2" in note
        restore_snapshot(take_snapshot(query, tmp_path / f"taken-{allowed}"), tmp_path / f"back-{allowed}", None)
        assert start(tmp_path / f"back-{allowed}") == 2
    else:
        pytest.fail("it never came to its end")
    assert interrupted > 20


def test_a_task_begins_with_its_remote_files_with_a_checkpoint_or_not_at_all(query: Query, ftp: FtpServer) -> None:
    query.files.run(3)
    taken = query.take(1)
    checkpoint = JobManagerTaskRestore(7, (taken,))
    query.files.run(1)
    task = TaskRestore(query.directory / "task", checkpoint)
    assert task.prepare(query.location) == ""
    assert task.began_at(query.location) == 3
    for number in (2, 3):
        (query.files.location / "commits" / str(number)).unlink()
    note = TaskRestore(query.directory / "task", checkpoint).prepare(query.location)
    assert f"continues from checkpoint 7, batch 2: the query cannot continue from {query.url}: commits/2 is" in note
    assert query.started() == 2
    ftp.close()
    with pytest.raises(SavepointError, match="cannot"):  # it may be ahead of the checkpoint
        TaskRestore(query.directory / "task", checkpoint).prepare(query.location)
    none = TaskRestore(query.directory / "task", None)
    assert none.prepare(query.location) == "", "Spark may reach what this process cannot"
    unknown = none.began_at(query.location)
    assert unknown > taken.batch_id, "no checkpoint counts as one that this run has loaded"


@pytest.mark.parametrize("remote", [False, True])
def test_a_query_gets_no_file_sink_that_is_ahead_of_its_state(query: Query, ftp: FtpServer, remote: bool) -> None:
    """The state is of a time when the query had none, so it has no log to put back."""
    query.files.run(3)
    taken = take_snapshot(QueryLocation("counts", query.url), query.directory / "chk-1" / "counts")
    begun_from = JobManagerTaskRestore(0, (taken,), "/savepoints/one")
    sink = f"ftp://127.0.0.1:{ftp.port}/out" if remote else str(ftp.directory / "out")
    local = QueryLocation("counts", str(query.directory / "live"), sink)
    assert "begins from batch 2" in TaskRestore(query.directory / "task", begun_from).prepare(local)
    assert start(query.directory / "live") == 2
    log = ftp.directory / "out" / "_spark_metadata"
    log.mkdir(parents=True)
    for batch in range(4):
        (log / str(batch)).write_text("v1")
    with pytest.raises(SnapshotError, match=r"cannot go back to batch 2: its file sink .*/out has batch 3"):
        TaskRestore(query.directory / "again", begun_from).prepare(local)
    assert not list(Path.cwd().glob("ftp:*")), "a URL is not a directory here"


def test_what_the_sink_has_lost_changes_nothing(query: Query) -> None:
    query.files.run(2)
    snapshot = query.take(1)
    next(query.files.sink.glob("part-*")).unlink()
    before = {name: (query.files.location / name).read_bytes() for name in list_files(query.files.location)}
    with pytest.raises(SnapshotLostError, match="its file sink has lost 1"):
        query.restore(snapshot)
    assert before == {name: (query.files.location / name).read_bytes() for name in list_files(query.files.location)}


def test_what_the_storage_shows_otherwise_than_written_keeps_the_mark(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    query.files.run(2)
    snapshot = query.take(1)
    put = RemoteDirectory.put
    monkeypatch.setattr(
        RemoteDirectory, "put", lambda self, local, name: None if name == "commits/1" else put(self, local, name)
    )
    with pytest.raises(SnapshotError, match="differs from what was written there: commits/1"):
        query.restore(snapshot)
    assert RemoteLocation(query.url).is_half_restored()


@pytest.mark.parametrize("tells_changes", [True, False])
def test_a_location_in_an_object_store(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tells_changes: bool
) -> None:
    """Which has no directories. If it tells no times and digests either, all files are fetched each time."""
    if not tells_changes:
        monkeypatch.setattr(remote_files, "_CHANGED", ())
    local = StreamingFiles(tmp_path / "live", "unique")
    local.run(4)
    snapshot = take_snapshot(local.query, tmp_path / "chk-1" / "counts")
    location = QueryLocation("counts", f"s3://{BUCKET}/q/checkpoint", str(local.sink))
    restore_to_url(snapshot, location.location, local.sink, tmp_path / "prepared")
    again = take_snapshot(location, tmp_path / "chk-2" / "counts")
    third = take_snapshot(location, tmp_path / "chk-3" / "counts", again)
    assert (again.batch_id, third.batch_id) == (3, 3)
    fetched = Path(third.path) / CHECKPOINT
    size = sum((fetched / name).stat().st_size for name in list_files(fetched))
    assert third.new_bytes == (0 if tells_changes else size)
    restore_snapshot(third, tmp_path / "back", None)
    assert start(tmp_path / "back") == 3


def test_the_log_of_a_file_sink_in_an_object_store_goes_back(s3: S3Server, tmp_path: Path) -> None:
    url = f"s3://{BUCKET}/q"
    files = StreamingFiles(tmp_path / "live", "hdfs", partitions=1, url=url)
    files.run(2)
    query = QueryLocation("counts", str(files.location), f"{url}/{files.sink.name}")
    sink = RemoteDirectory(f"{url}/{files.sink.name}")

    def upload() -> None:
        for name in [name for name in list_files(files.sink) if not name.endswith(".crc")]:
            sink.put(files.sink / name, name)

    upload()
    snapshot = take_snapshot(query, tmp_path / "chk-1" / "counts")
    files.run(2)
    upload()
    restore_snapshot(snapshot, files.location, query.sink)
    names = sink.files()
    assert sorted(name for name in names if not name.startswith("part-")) == [f"_spark_metadata/{n}" for n in (0, 1)]
    assert len(names) == 4
    assert start(files.location) == 1


def test_a_remote_location_that_holds_anything_else_is_not_replaced(query: Query) -> None:
    query.files.run(2)
    snapshot = query.take(1)
    query.files.run(1)
    other = query.files.location / "archive" / "all.parquet"
    other.parent.mkdir()
    other.write_text("precious")
    with pytest.raises(SnapshotError, match="'archive' in it are not the query's"):
        query.restore(snapshot)
    assert (other.read_text(), query.started()) == ("precious", 2)
    assert not (query.files.location / MARK).exists()


@pytest.mark.usefixtures("in_memory")
def test_a_whole_bucket_is_not_replaced(tmp_path: Path) -> None:
    files = StreamingFiles(tmp_path / "live")
    files.run(2)
    snapshot = take_snapshot(files.query, tmp_path / "chk-1" / "counts")
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/bucket/offsets/0", b"precious")
    with pytest.raises(SnapshotError, match="a whole bucket or file system") as refused:
        restore_to_url(snapshot, "memory://bucket/", None, tmp_path / "prepared")
    assert "a directory below it" in refused.value.remedy
    assert memory.find("/bucket") == ["/bucket/offsets/0"]


class Chain:
    """A query with a local file sink, and a reader of that sink whose checkpointLocation is on the server."""

    def __init__(self, ftp: FtpServer, directory: Path) -> None:
        self.writer = StreamingFiles(directory / "writer")
        self.writer.run(3)
        self.files = StreamingFiles(ftp.directory / "reader", name="reader", upstream=self.writer)
        self.files.run()
        self.reader = QueryLocation("reader", f"ftp://127.0.0.1:{ftp.port}/reader/checkpoint", str(self.files.sink))
        place = directory / "chk-1"
        self.states = tuple(take_snapshot(one, place / one.name) for one in (self.writer.query, self.reader))

    def run_on_and_break(self) -> None:
        """Let both run on, and damage the writer, which has to go back then."""
        self.writer.run(2)
        self.files.run(2)
        (self.writer.location / "offsets" / "4").unlink()


@pytest.fixture
def chain(ftp: FtpServer, tmp_path: Path) -> Chain:
    return Chain(ftp, tmp_path)


@pytest.mark.parametrize("is_reader_first", [False, True])
def test_a_reader_with_a_remote_location_goes_back_with_its_writer(
    chain: Chain, tmp_path: Path, is_reader_first: bool
) -> None:
    restore = TaskRestore(tmp_path / "task", JobManagerTaskRestore(7, chain.states))
    chain.run_on_and_break()
    order = (chain.reader, chain.writer.query) if is_reader_first else (chain.writer.query, chain.reader)
    notes = {query.name: restore.prepare(query) for query in order}
    assert (inspect_location(chain.writer.query), inspect_location(chain.reader)) == (2, 0)
    assert f"it has read {chain.writer.sink}/part-" in notes["reader"]


def test_a_reader_with_a_remote_location_stays_where_it_is_if_its_writer_does(chain: Chain, tmp_path: Path) -> None:
    restore = TaskRestore(tmp_path / "task", JobManagerTaskRestore(7, chain.states))
    chain.writer.run(2)
    chain.files.run(2)
    assert [restore.prepare(query) for query in (chain.reader, chain.writer.query)] == ["", ""]
    assert inspect_location(chain.reader) == 2


def test_a_writer_does_not_go_back_behind_a_started_reader_with_a_remote_location(chain: Chain, tmp_path: Path) -> None:
    restore = TaskRestore(tmp_path / "task", JobManagerTaskRestore(7, chain.states))
    assert restore.prepare(chain.reader) == ""
    chain.run_on_and_break()
    with pytest.raises(SnapshotError, match="query 'reader', which has started, has read what it wrote later"):
        restore.prepare(chain.writer.query)


def test_a_reader_with_a_remote_location_and_without_state_is_refused_if_its_writer_has_gone_back(
    chain: Chain, tmp_path: Path
) -> None:
    rolled_back = JobManagerTaskRestore(0, chain.states[:1], "/savepoints/one", rollback="one")
    chain.run_on_and_break()
    restore = TaskRestore(tmp_path / "task", rolled_back)
    restore.prepare(chain.writer.query)
    with pytest.raises(SnapshotError, match="has gone back to batch 2 without it, so rows would be read twice"):
        restore.prepare(chain.reader)

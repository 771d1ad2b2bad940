"""File sinks in a remote file system: a real FTP server, and a kill at each change of the log."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.config import conf

from runtime.checkpoint import remote_files
from runtime.checkpoint.alignment import Alignment, find_misaligned
from runtime.checkpoint.errors import RemoteStorageError, SnapshotError, SnapshotLostError
from runtime.checkpoint.files import list_files
from runtime.checkpoint.layout import SINK_LOG
from runtime.checkpoint.remote_files import RemoteDirectory
from runtime.checkpoint.restore import finish_restore, restore_snapshot
from runtime.checkpoint.sink_log import SINK_WORKSPACE, RemoteSink
from runtime.checkpoint.snapshot import inspect_location, take_snapshot
from runtime.checkpoint.stored_snapshot import SINK, check_snapshot
from runtime.checkpoint.task_restore import TaskRestore
from runtime.protocol.checkpoints import JobManagerTaskRestore
from runtime.protocol.query_snapshot import QueryLocation, QuerySnapshot
from tests.ftp_server import PASSWORD, USER, FtpServer
from tests.streaming_files import StreamingFiles, rows, start


@pytest.fixture
def ftp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FtpServer]:
    logging.getLogger("pyftpdlib").setLevel(logging.WARNING)
    monkeypatch.setitem(conf, "ftp", {"username": USER, "password": PASSWORD})
    server = FtpServer(tmp_path / "ftp")
    yield server
    server.close()


class Query:
    """A query whose file sink is on the server, and its checkpointLocation too if *is_remote*; else that is local."""

    def __init__(self, ftp: FtpServer, directory: Path, *, is_remote: bool) -> None:
        self.url = f"ftp://127.0.0.1:{ftp.port}/q"
        self.files = StreamingFiles(ftp.directory / "q", "hdfs", url=self.url, partitions=1)
        self.directory = directory
        self.sink = f"{self.url}/out dir"
        location = f"{self.url}/checkpoint" if is_remote else str(self.files.location)
        self.query = QueryLocation("counts", location, f"{self.sink}/")  # as a user may write it

    def take(self, number: int, previous: QuerySnapshot | None = None) -> QuerySnapshot:
        return take_snapshot(self.query, self.directory / f"chk-{number}" / "counts", previous)

    def restore(self, snapshot: QuerySnapshot, task: str = "task") -> str:
        restore = JobManagerTaskRestore(0, (snapshot,), "/savepoints/one")
        return TaskRestore(self.directory / task, restore).prepare(self.query)

    def started(self) -> int:
        """Do as Spark at a start; the query continues from there."""
        batch = start(self.files.location, self.files.sink)
        self.files.next_batch = batch + 1
        return batch

    def data(self) -> list[str]:
        """The contents of the files in the sink, whether its log names them or not."""
        return sorted(path.read_text() for path in self.files.sink.glob("part-*.parquet"))


@pytest.fixture(params=[False, True], ids=["local", "remote"])
def query(ftp: FtpServer, tmp_path: Path, request: pytest.FixtureRequest) -> Query:
    return Query(ftp, tmp_path, is_remote=request.param)


def rows_to(batch: int) -> list[str]:
    return [f"rows of {number}" for number in range(batch + 1)]


def test_a_remote_sink_goes_back_with_its_query_and_the_batches_are_written_again(query: Query) -> None:
    query.files.run(3)
    first = query.take(1)
    query.files.run(10)
    query.files.plan()  # a batch that is not committed
    snapshot = query.take(2, first)
    assert (snapshot.batch_id, snapshot.sink) == (12, query.query.sink)
    check_snapshot(snapshot)
    assert not list(query.directory.rglob("fetched"))
    names = {name for name in list_files(Path(snapshot.path) / SINK) if not name.endswith(".crc")}
    assert names == {"9.compact", "10", "11", "12"}
    query.files.commit()
    query.files.run(16)
    query.files.purge()
    assert inspect_location(query.query) == 29
    for number, kept in enumerate((snapshot, first)):
        assert f"begins from batch {kept.batch_id}" in query.restore(kept, f"task-{number}")
        assert query.started() == kept.batch_id
        assert rows(query.files.sink) == rows_to(kept.batch_id)
        assert len(query.data()) == kept.batch_id + 1, "what only later batches named is gone"
        assert not (query.files.sink / SINK_WORKSPACE).exists()
        query.files.run(2)
        assert rows(query.files.sink) == rows_to(kept.batch_id + 2)
        assert query.take(3 + number, kept).batch_id == kept.batch_id + 2
    query.files.run(20)
    assert rows(query.files.sink) == rows_to(24)


def test_entries_that_the_last_snapshot_has_are_not_fetched_again(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[str] = []
    get = RemoteDirectory.get

    def seen(directory: RemoteDirectory, name: str, local: Path) -> None:
        fetched.append(f"{directory.url}/{name}")
        get(directory, name, local)

    monkeypatch.setattr(RemoteDirectory, "get", seen)
    query.files.run(3)
    first = query.take(1)
    query.files.run(1)
    fetched.clear()
    second = query.take(2, first)
    log = f"{query.sink}/{SINK_LOG}/"
    assert [url for url in fetched if url.startswith(log) and not url.endswith(".crc")] == [f"{log}3"]
    for name in ("0", "1", "2"):
        assert Path(first.path, SINK, name).samefile(Path(second.path, SINK, name))


def test_a_sink_that_has_lost_files_or_entries_is_noticed(query: Query) -> None:
    query.files.run(3)
    snapshot = query.take(1)
    query.files.delete(query.files.sink / SINK_LOG / "1")
    with pytest.raises(SnapshotError, match="entries 1 of the log are missing"):
        inspect_location(query.query)
    assert "continues from checkpoint 7" in TaskRestore(
        query.directory / "task", JobManagerTaskRestore(7, (snapshot,))
    ).prepare(query.query)
    assert (query.started(), rows(query.files.sink)) == (2, rows_to(2))
    query.files.run(1)
    next(path for path in query.files.sink.glob("part-00001*")).unlink()
    before = {name: (query.files.root / name).read_bytes() for name in list_files(query.files.root)}
    with pytest.raises(SnapshotLostError, match="its file sink has lost 1 of 3 files"):
        query.restore(snapshot, "again")
    assert before == {name: (query.files.root / name).read_bytes() for name in list_files(query.files.root)}


def test_a_damaged_entry_of_an_abandoned_batch_leaves_its_files(query: Query) -> None:
    query.files.run(2)
    snapshot = query.take(1)
    query.files.run(1)
    (query.files.sink / SINK_LOG / "2").write_text("v1\n{")
    query.restore(snapshot)
    assert (query.started(), rows(query.files.sink)) == (1, rows_to(1))
    assert len(query.data()) == 3


def test_a_sink_moves_between_file_systems_with_its_files(ftp: FtpServer, tmp_path: Path) -> None:
    query = Query(ftp, tmp_path, is_remote=False)
    query.files.run(3)
    there = query.take(1)
    here = tmp_path / "here"
    here.mkdir()
    for path in query.files.sink.glob("part-*[0-9a-f].parquet"):
        path.rename(here / path.name)
    restore_snapshot(there, tmp_path / "live", here)
    assert rows(here) == rows_to(2)
    assert "ftp:" not in (here / SINK_LOG / "0").read_text()
    local = take_snapshot(QueryLocation("counts", str(tmp_path / "live"), str(here)), tmp_path / "chk-2" / "counts")
    restore_snapshot(local, tmp_path / "other", f"{query.url}/other")
    assert "file:" in (query.files.root / "other" / SINK_LOG / "0").read_text(), "files that stayed keep their place"
    for path in here.glob("part-*[0-9a-f].parquet"):
        path.rename(query.files.sink / path.name)
    restore_snapshot(local, tmp_path / "back", query.sink)
    assert rows(query.files.sink) == rows_to(2)
    assert "file:" not in (query.files.sink / SINK_LOG / "0").read_text()


def test_a_sink_out_of_reach_keeps_its_query_from_a_start(ftp: FtpServer, tmp_path: Path) -> None:
    query = Query(ftp, tmp_path, is_remote=False)
    query.files.run(2)
    snapshot = query.take(1)
    query.files.run(2)
    before = (query.started(), rows(query.files.sink))
    ftp.close()
    with pytest.raises(RemoteStorageError):
        query.restore(snapshot)
    with pytest.raises(RemoteStorageError):
        inspect_location(query.query)
    with pytest.raises(RemoteStorageError):
        query.take(2)
    assert (query.started(), rows(query.files.sink)) == before
    finish_restore(query.files.location)  # one that had only prepared is given up without the sink
    ftp.open()
    with pytest.MonkeyPatch.context() as patch:

        def close(self: RemoteSink, prepared: Path) -> None:
            ftp.close()
            put_back(self, prepared)

        put_back = RemoteSink.put_back
        patch.setattr(RemoteSink, "put_back", close)
        with pytest.raises(RemoteStorageError):
            query.restore(snapshot)
    with pytest.raises(RemoteStorageError):  # the location is exchanged, and the log is not
        TaskRestore(tmp_path / "none", None).prepare(query.query)
    ftp.open()
    assert TaskRestore(tmp_path / "none", None).prepare(query.query) == ""
    assert (query.started(), rows(query.files.sink), query.data()) == (1, rows_to(1), rows_to(1))


CHANGES = ("make", "put_whole", "remove", "put")


class KilledError(BaseException):
    pass


@contextmanager
def killed_after(changes: int) -> Iterator[None]:
    """Kill this process, as it were, before a change of a remote file system."""
    left = changes

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def change(*arguments: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise KilledError
            return real(*arguments)

        return change

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RemoteDirectory, "each", lambda _self, names, action: [action(name) for name in names])
        for name in CHANGES:
            patch.setattr(RemoteDirectory, name, counted(getattr(RemoteDirectory, name)))
        yield


@pytest.mark.parametrize("is_remote", [False, True], ids=["local", "remote"])
def test_killed_at_each_change_of_a_remote_sink(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_remote: bool
) -> None:
    """Readers always find a log of whole batches, and no query starts before it is the one that was restored."""
    monkeypatch.setattr(remote_files, "_PRIVATE_TO_A_PROCESS", frozenset())
    monkeypatch.setattr("blob.fsspec_store.OBJECT_STORES", frozenset({"memory"}))
    memory = fsspec.filesystem("memory")
    url = "memory://bucket/q"
    files = StreamingFiles(tmp_path / "live", "hdfs", partitions=1, url=url)
    location = f"{url}/checkpoint" if is_remote else str(files.location)
    query = QueryLocation("counts", location, f"{url}/{files.sink.name}")

    def upload() -> None:
        memory.store.clear()
        for name in [name for name in list_files(files.root) if not name.endswith(".crc")]:
            memory.pipe_file(f"/bucket/q/{name}", (files.root / name).read_bytes())

    def rows_there() -> list[str]:
        there = tmp_path / "there"
        shutil.rmtree(there, ignore_errors=True)
        for name in memory.find(f"/bucket/q/{files.sink.name}"):
            target = there / name.removeprefix("/bucket/q/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(memory.cat_file(name))
        return rows(there / files.sink.name)

    files.run(9)
    upload()
    snapshot = take_snapshot(query, tmp_path / "chk-1" / "counts")
    files.run(4)
    files.purge()
    states, interrupted = {name: (files.root / name).read_bytes() for name in list_files(files.root)}, 0
    for allowed in range(200):
        for name, content in states.items():
            (files.root / name).parent.mkdir(parents=True, exist_ok=True)
            (files.root / name).write_bytes(content)
        upload()
        restore = JobManagerTaskRestore(0, (snapshot,), "/savepoints/one")
        try:
            with killed_after(allowed):
                TaskRestore(tmp_path / f"task-{allowed}", restore).prepare(query)
        except KilledError:
            interrupted += 1
        else:
            break
        assert rows_there() in [rows_to(batch) for batch in range(8, 13)]
        TaskRestore(tmp_path / f"task-{allowed}", restore).prepare(query)
        assert rows_there() == rows_to(8)
        left = {name.removeprefix(f"/bucket/q/{files.sink.name}/") for name in memory.find("/bucket/q")}
        assert not [name for name in left if SINK_WORKSPACE in name]
        assert len([name for name in left if name.startswith("part-")]) == 9
        assert take_snapshot(query, tmp_path / f"taken-{allowed}").batch_id == 8
    else:
        pytest.fail("it never came to its end")
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]
    assert interrupted > 20


def test_a_reader_that_is_ahead_of_a_remote_sink_does_not_fit(query: Query, tmp_path: Path) -> None:
    query.files.run(3)
    reader = StreamingFiles(tmp_path / "reader", name="reader", upstream=query.files)
    reader.run()
    before = take_snapshot(reader.query, query.directory / "chk-1" / "reader")
    first = query.take(1)
    assert find_misaligned([before, first]) == Alignment((), frozenset({("reader", "counts")}))
    query.files.run(2)
    reader.run()
    ahead = take_snapshot(reader.query, query.directory / "chk-2" / "reader")
    for are_running in (False, True):
        (found,) = find_misaligned([first, ahead], are_running=are_running).misaligned
        assert (found.reader, found.writer, found.batch_id, len(found.files)) == ("reader", "counts", 2, 2)
        assert f"{query.sink}/part-" in str(found)
    assert not find_misaligned([ahead, query.take(2)]).misaligned


def test_a_reader_is_not_started_on_what_a_restore_of_a_remote_sink_has_removed(query: Query, tmp_path: Path) -> None:
    query.files.run(3)
    reader = StreamingFiles(tmp_path / "reader", name="reader", upstream=query.files)
    reader.run()
    states = (take_snapshot(reader.query, query.directory / "chk-1" / "reader"), query.take(1))
    query.files.run(2)
    reader.run()
    for batch in ("3", "4"):  # so the writer has to go back
        (query.files.location / "commits" / batch).unlink()
    attempt = TaskRestore(tmp_path / "attempt", JobManagerTaskRestore(7, states))
    assert "continues from checkpoint 7, batch 2" in attempt.prepare(query.query)
    note = attempt.prepare(reader.query)
    assert f"continues from checkpoint 7, batch 0: it has read {query.sink}/part-" in note

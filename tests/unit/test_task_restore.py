"""What a streaming query begins with: its live files, a checkpoint, or a savepoint; and how that is found out."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from runtime.checkpoint import task_restore as module
from runtime.checkpoint.errors import SavepointError, SnapshotError, SnapshotLostError
from runtime.checkpoint.snapshot import inspect_location, take_snapshot
from runtime.checkpoint.task_restore import TaskRestore
from runtime.protocol.checkpoints import EarlierCheckpoint, JobManagerTaskRestore
from runtime.protocol.query_snapshot import QuerySnapshot
from tests.streaming_files import StreamingFiles, start, write


@pytest.fixture
def files(tmp_path: Path) -> StreamingFiles:
    made = StreamingFiles(tmp_path / "live")
    made.run(3)
    return made


def snapshot(files: StreamingFiles, name: str = "chk-1") -> QuerySnapshot:
    return take_snapshot(files.query, files.root.parent / name / "counts")


def checkpoint(*queries: QuerySnapshot) -> JobManagerTaskRestore:
    return JobManagerTaskRestore(7, queries)


def test_the_live_files_are_used_where_they_are_not_behind(files: StreamingFiles, tmp_path: Path) -> None:
    restore = TaskRestore(tmp_path / "task", checkpoint(snapshot(files)))
    files.run(2)
    assert restore.prepare(files.query) == ""
    assert inspect_location(files.query) == 4
    assert restore.unclaimed == []


def test_a_checkpoint_is_put_back_where_the_live_files_are_behind(files: StreamingFiles, tmp_path: Path) -> None:
    taken = snapshot(files)
    files.delete(files.location / "commits" / "2")
    note = TaskRestore(tmp_path / "task", checkpoint(taken)).prepare(files.query)
    assert "continues from checkpoint 7, batch 2: its checkpointLocation is at batch 1" in note
    assert inspect_location(files.query) == 2


def test_a_checkpoint_is_put_back_where_the_live_files_are_broken(files: StreamingFiles, tmp_path: Path) -> None:
    taken = snapshot(files)
    (files.location / "offsets" / "2").unlink()
    note = TaskRestore(tmp_path / "task", checkpoint(taken)).prepare(files.query)
    assert "continues from checkpoint 7" in note
    assert "offsets/2" in note, "what was broken is told"
    assert inspect_location(files.query) == 2


@pytest.mark.parametrize("lost", ["sources/1/0", "sources/0/0", "metadata", "."])
def test_a_lost_location_is_not_taken_for_one_without_a_batch(lost: str, tmp_path: Path) -> None:
    files = StreamingFiles(tmp_path / "live")
    files.plan()
    files.delete(files.location / "offsets" / "0")
    begin = {path: (files.location / path).read_bytes() for path in ("sources/0/0", "sources/1/0", "metadata")}
    restore = checkpoint(snapshot(files))
    assert TaskRestore(tmp_path / "task", restore).prepare(files.query) == "", "its files are as they were"
    if lost == ".":
        shutil.rmtree(files.location)
    else:
        files.delete(files.location / lost)
    note = TaskRestore(tmp_path / "task", restore).prepare(files.query)
    assert "continues from checkpoint 7, batch -1" in note
    assert "is missing, which an earlier checkpoint has" in note
    assert {path: (files.location / path).read_bytes() for path in begin} == begin, "it begins where it began"


def test_a_savepoint_is_put_back_once_even_over_newer_files(files: StreamingFiles, tmp_path: Path) -> None:
    begun_from = JobManagerTaskRestore(0, (snapshot(files),), "/savepoints/one")
    files.run(3)
    assert "begins from batch 2 of /savepoints/one" in TaskRestore(tmp_path / "task", begun_from).prepare(files.query)
    assert inspect_location(files.query) == 2
    resumed = StreamingFiles(files.root, query_id=files.query_id, next_batch=3)
    resumed.run(2)
    again = TaskRestore(tmp_path / "task", begun_from)
    assert again.prepare(files.query) == "", "the second attempt goes on from where the first one was"
    assert inspect_location(files.query) == 4


def test_a_query_goes_on_with_the_files_that_the_former_job_has_left(files: StreamingFiles, tmp_path: Path) -> None:
    taken_over = JobManagerTaskRestore(0, (snapshot(files),), "/savepoints/one", continues=True)
    before = inodes(files)
    restore = TaskRestore(tmp_path / "task", taken_over)
    assert "begins from batch 2 of /savepoints/one" in restore.prepare(files.query)
    assert inodes(files) == before, "nothing was copied"
    files.run(2)
    assert TaskRestore(tmp_path / "task", taken_over).prepare(files.query) == ""
    assert inspect_location(files.query) == 4, "the second attempt goes on from where the first one was"


@pytest.mark.parametrize("why", ["it has planned a batch", "a file is damaged", "its sink is another one"])
def test_a_query_begins_from_a_copy_where_the_former_job_has_left_something_else(
    files: StreamingFiles, tmp_path: Path, why: str
) -> None:
    taken_over = JobManagerTaskRestore(0, (snapshot(files),), "/savepoints/one", continues=True)
    before, query = inodes(files), files.query
    if "planned" in why:
        files.plan()
    elif "damaged" in why:
        write(files.location / "offsets" / "2", (files.location / "offsets" / "1").read_text())
    else:
        query = replace(query, sink=str(tmp_path / "elsewhere"))
    assert "begins from batch 2" in TaskRestore(tmp_path / "task", taken_over).prepare(query)
    assert inodes(files).isdisjoint(before)
    assert inspect_location(query) == 2
    assert not (files.location / "offsets" / "3").exists()


def test_a_batch_after_the_savepoint_is_not_committed_by_both_versions(files: StreamingFiles, tmp_path: Path) -> None:
    taken_over = JobManagerTaskRestore(0, (snapshot(files),), "/savepoints/one", continues=True)
    files.run(1)
    with pytest.raises(SnapshotError, match="at batch 2 of the savepoint: batch 3 was committed since") as refused:
        TaskRestore(tmp_path / "task", taken_over).prepare(files.query)
    assert "job run --from" in refused.value.remedy
    assert inspect_location(files.query) == 3


def inodes(files: StreamingFiles) -> set[int]:
    return {path.stat().st_ino for path in files.location.rglob("*") if path.is_file()}


def test_a_rollback_is_put_back_once_for_each_wish(files: StreamingFiles, tmp_path: Path) -> None:
    first = snapshot(files)
    begun_from = JobManagerTaskRestore(0, (first,), "/savepoints/one")
    TaskRestore(tmp_path / "task", begun_from).prepare(files.query)
    for request in ("a" * 32, "b" * 32):
        files.next_batch = start(files.location, files.sink) + 1
        files.run(2)
        back = replace(begun_from, rollback=request)
        assert "begins from batch 2" in TaskRestore(tmp_path / "task", back).prepare(files.query)
        assert start(files.location, files.sink) == 2
        files.next_batch = 3
        files.run(1)
        assert TaskRestore(tmp_path / "task", back).prepare(files.query) == "", "an attempt after it goes on"
    renamed = replace(begun_from, rollback="c" * 32, new_query_id=True)
    TaskRestore(tmp_path / "task", renamed).prepare(files.query)
    assert json.loads((files.location / "metadata").read_text())["id"] != files.query_id
    assert TaskRestore(tmp_path / "task", renamed).prepare(files.query) == "", "the new id is not damage"


def test_what_was_restored_shares_no_file_with_the_savepoint(files: StreamingFiles, tmp_path: Path) -> None:
    taken = snapshot(files)
    files.run(1)
    TaskRestore(tmp_path / "task", JobManagerTaskRestore(0, (taken,), "/s")).prepare(files.query)
    kept = {path.stat().st_ino for path in Path(taken.path).rglob("*") if path.is_file()}
    assert kept.isdisjoint(path.stat().st_ino for path in files.location.rglob("*") if path.is_file())


def test_a_query_of_another_name_does_not_begin_anew_unless_that_is_allowed(
    files: StreamingFiles, tmp_path: Path
) -> None:
    taken = snapshot(files)
    other = replace(files.query, name="other", location=str(tmp_path / "elsewhere"))
    with pytest.raises(SavepointError, match=f"no state of query 'other', but of '{files.query.name}'"):
        TaskRestore(tmp_path / "task", JobManagerTaskRestore(0, (taken,), "/s")).prepare(other)
    allowed = TaskRestore(tmp_path / "task", JobManagerTaskRestore(0, (taken,), "/s", True))
    assert allowed.prepare(other) == ""
    assert allowed.unclaimed == [files.query.name]
    both = TaskRestore(tmp_path / "task", JobManagerTaskRestore(0, (taken,), "/s"))
    both.prepare(files.query)
    assert both.prepare(other) == "", "a query that is new in the job begins without state"


@pytest.mark.parametrize("rollback", ["", "a" * 32])
@pytest.mark.parametrize("batches", [1, 5])
def test_a_checkpoint_is_not_put_back_to_another_location_that_has_the_name_in_turn(
    files: StreamingFiles, tmp_path: Path, batches: int, rollback: str
) -> None:
    other = StreamingFiles(tmp_path / "other")
    other.run(batches)
    restore = replace(checkpoint(snapshot(files)), savepoint="/chk-7" if rollback else "", rollback=rollback)
    before, task = inodes(other), TaskRestore(tmp_path / "task", restore)
    assert task.prepare(other.query) == (
        f"query counts starts at {other.location} without the state of checkpoint 7, which is at {files.location}"
    )
    assert task.unclaimed == ["counts"]
    assert bool(task.prepare(files.query)) is bool(rollback)
    assert task.unclaimed == []
    assert "without the state" in task.prepare(other.query)
    assert (inodes(other), start(other.location, other.sink)) == (before, batches - 1)


def test_an_earlier_checkpoint_of_another_location_is_not_put_back(files: StreamingFiles, tmp_path: Path) -> None:
    other = StreamingFiles(tmp_path / "other")
    other.run(2)
    latest, earlier = snapshot(files), take_snapshot(other.query, tmp_path / "chk-0" / "counts")
    (Path(latest.path) / "checkpoint" / "offsets" / "2").unlink()
    (files.location / "offsets" / "2").unlink()
    restore = replace(checkpoint(latest), earlier=(EarlierCheckpoint(6, (earlier,)),))
    with pytest.raises(SnapshotLostError, match="neither from its own files nor from a checkpoint"):
        TaskRestore(tmp_path / "task", restore).prepare(files.query)


def test_a_savepoint_is_put_back_to_one_location_of_a_name(files: StreamingFiles, tmp_path: Path) -> None:
    begun_from = JobManagerTaskRestore(0, (snapshot(files),), "/savepoints/one")
    other = StreamingFiles(tmp_path / "other")
    other.run(1)
    task = TaskRestore(tmp_path / "task", begun_from)
    assert "begins from batch 2" in task.prepare(files.query)
    assert "starts at" in task.prepare(other.query)
    assert start(other.location, other.sink) == 0


def begun_elsewhere(files: StreamingFiles, tmp_path: Path, new_query_id: bool | None) -> tuple[str, str]:
    """What is told of a query that begins from a snapshot in another place, and the id that it has there."""
    restore = JobManagerTaskRestore(0, (snapshot(files),), "/savepoints/one", new_query_id=new_query_id)
    other = replace(files.query, location=str(tmp_path / "elsewhere" / "checkpoint"), sink=None)
    told = TaskRestore(tmp_path / "task", restore).prepare(other)
    return told, str(json.loads(Path(other.location, "metadata").read_text())["id"])


@pytest.mark.parametrize(
    ("new_query_id", "is_written_to", "renamed"),
    [(None, False, False), (None, True, True), (False, True, False), (True, False, True)],
)
def test_a_query_that_begins_elsewhere_is_another_one_while_its_former_place_is_written_to(
    files: StreamingFiles,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    new_query_id: bool | None,
    is_written_to: bool,
    renamed: bool,
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(module, "may_be_written_to", lambda location: asked.append(location) or is_written_to)
    told, query_id = begun_elsewhere(files, tmp_path, new_query_id)
    assert (query_id != files.query_id) is renamed
    assert told.endswith("under a new query id") is renamed
    assert asked == ([str(files.location)] if new_query_id is None else [])


def test_in_its_own_place_it_is_the_same_query_whoever_holds_the_lease(
    files: StreamingFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "may_be_written_to", lambda location: True)  # this attempt holds it itself
    restore = JobManagerTaskRestore(0, (snapshot(files),), "/savepoints/one", new_query_id=None)
    TaskRestore(tmp_path / "task", restore).prepare(files.query)
    assert json.loads((files.location / "metadata").read_text())["id"] == files.query_id


def test_a_checkpoint_that_is_damaged_is_passed_over_for_an_earlier_one(files: StreamingFiles, tmp_path: Path) -> None:
    earlier = snapshot(files, "chk-6")
    files.run(1)
    latest = snapshot(files)
    (Path(latest.path) / "checkpoint" / "offsets" / "3").unlink()
    write(files.location / "commits" / "3", "v1\n{}")  # not what the checkpoint has
    restore = JobManagerTaskRestore(7, (latest,), earlier=(EarlierCheckpoint(6, (earlier,)),))
    note = TaskRestore(tmp_path / "task", restore).prepare(files.query)
    assert "continues from checkpoint 6, batch 2: " in note
    assert "commits/3 is not what it was" in note
    assert "checkpoint 7 cannot be restored" in note
    assert start(files.location, files.sink) == 2


def test_a_query_begins_from_nothing_else_where_no_checkpoint_is_whole(files: StreamingFiles, tmp_path: Path) -> None:
    taken = snapshot(files)
    (Path(taken.path) / "files.json").write_text("{}")
    (files.location / "offsets" / "2").unlink()
    with pytest.raises(SnapshotLostError, match=r"neither from its own files nor from a checkpoint: .*offsets/2"):
        TaskRestore(tmp_path / "task", checkpoint(taken)).prepare(files.query)


def test_a_query_that_cannot_load_its_state_twice_goes_back_to_what_was_loaded(
    files: StreamingFiles, tmp_path: Path
) -> None:
    """Damage that nothing here knows of: the files look whole, and Spark refuses them."""
    proven = snapshot(files, "chk-6")
    files.run(1)
    unproven = take_snapshot(files.query, tmp_path / "chk-7" / "counts", loaded=3)
    assert (proven.is_proven, unproven.is_proven) == (True, False)
    restore = JobManagerTaskRestore(7, (unproven,), earlier=(EarlierCheckpoint(6, (proven,)),))
    error = "[STREAM_FAILED] Query terminated with exception: [CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error"

    def attempt(message: str) -> tuple[str, str]:
        task = TaskRestore(tmp_path / "task", restore)
        note = task.prepare(files.query)
        return note, task.failed(files.query, task.began_at(files.query), message)

    assert attempt("[PYTHON_EXCEPTION] the user's own") == ("", "")
    assert attempt("[CANNOT_LOAD_STATE_STORE.ROCKSDB_STORE_PROVIDER_OUT_OF_MEMORY] more memory") == ("", "")
    assert "tries once more" in attempt(error)[1], "it may have been a passing cause"
    assert "its next start goes back" in attempt(error)[1]
    note, _ = attempt("")
    assert (
        "continues from checkpoint 6, batch 2: Spark could not load its state as of batch 3, 2 times in a row" in note
    )
    assert start(files.location, files.sink) == 2

    task = TaskRestore(tmp_path / "task", restore)
    began_at = task.began_at(files.query)
    files.next_batch = 3
    files.run(1)
    assert task.failed(files.query, began_at, error) == "", "it had loaded its state, and gone on from it"


def test_a_savepoint_is_put_back_once_more_where_the_live_files_are_damaged(
    files: StreamingFiles, tmp_path: Path
) -> None:
    begun_from = JobManagerTaskRestore(0, (snapshot(files),), "/savepoints/one")
    TaskRestore(tmp_path / "task", begun_from).prepare(files.query)
    resumed = StreamingFiles(files.root, query_id=files.query_id, next_batch=3)
    resumed.run(1)
    (files.location / "state" / "0" / "1" / "4.delta").write_bytes(b"")
    note = TaskRestore(tmp_path / "task", begun_from).prepare(files.query)
    assert "begins from batch 2 of /savepoints/one once more: " in note
    assert start(files.location, files.sink) == 2


def test_a_savepoint_that_is_put_back_once_more_gives_a_copy_an_id_of_its_own_again(
    files: StreamingFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The original may have ended since: the copy stays a query of its own."""
    restore = JobManagerTaskRestore(0, (snapshot(files),), "/savepoints/one", new_query_id=None)
    other = replace(files.query, location=str(tmp_path / "elsewhere" / "checkpoint"), sink=None)
    monkeypatch.setattr(module, "may_be_written_to", lambda location: True)
    TaskRestore(tmp_path / "task", restore).prepare(other)
    (Path(other.location) / "offsets" / "2").unlink()
    monkeypatch.setattr(module, "may_be_written_to", lambda location: False)
    told = TaskRestore(tmp_path / "task", restore).prepare(other)
    assert "once more" in told
    assert json.loads(Path(other.location, "metadata").read_text())["id"] != files.query_id


def test_a_query_that_the_first_checkpoint_lacks_starts_from_the_savepoint(
    files: StreamingFiles, tmp_path: Path
) -> None:
    """The query was still being restored when the checkpoint was taken."""
    begun_from = JobManagerTaskRestore(0, (snapshot(files),), "/savepoints/one")
    restarted = JobManagerTaskRestore(1, (), begun_from=begun_from.initial)
    elsewhere = replace(files.query, location=str(tmp_path / "new" / "checkpoint"), sink=None)
    restore = TaskRestore(tmp_path / "task", restarted)
    assert restore.unclaimed == ["counts"]
    assert "begins from batch 2 of /savepoints/one" in restore.prepare(elsewhere)
    assert inspect_location(elsewhere) == 2
    resumed = StreamingFiles(tmp_path / "new", query_id=files.query_id, next_batch=3)
    resumed.run(1)
    mark = next((tmp_path / "task" / "restored").iterdir())
    mark.write_text(json.dumps({**json.loads(mark.read_text()), "rollback": "a" * 32}))
    assert TaskRestore(tmp_path / "task", restarted).prepare(elsewhere) == "", "once, also after a rollback"
    assert inspect_location(elsewhere) == 3


def test_a_renamed_query_is_rejected_also_after_a_checkpoint(files: StreamingFiles, tmp_path: Path) -> None:
    kept = snapshot(files)
    lost, new = replace(kept, name="lost"), replace(files.query, name="new", location=str(tmp_path / "new"))
    begun_from = JobManagerTaskRestore(0, (kept, lost), "/savepoints/one").initial
    restarted = JobManagerTaskRestore(1, (kept,), begun_from=begun_from)
    with pytest.raises(SavepointError, match="/savepoints/one holds no state of query 'new', but of 'lost'"):
        TaskRestore(tmp_path / "task", restarted).prepare(new)
    allowed = replace(restarted, begun_from=replace(begun_from, allow_non_restored_state=True))
    assert TaskRestore(tmp_path / "task", allowed).prepare(new) == ""
    complete = replace(restarted, begun_from=replace(begun_from, queries=(kept,)))
    assert TaskRestore(tmp_path / "task", complete).prepare(new) == "", "a query of the checkpoint has its name"


@pytest.fixture
def pair(files: StreamingFiles, tmp_path: Path) -> tuple[StreamingFiles, StreamingFiles]:
    """A query, and one that reads the directory of its file sink."""
    reader = StreamingFiles(tmp_path / "reader", name="reader", upstream=files)
    reader.run()
    return files, reader


def both(pair: tuple[StreamingFiles, StreamingFiles], name: str = "chk-1") -> tuple[QuerySnapshot, QuerySnapshot]:
    writer, reader = pair
    place = writer.root.parent / name
    return take_snapshot(writer.query, place / "counts"), take_snapshot(reader.query, place / "reader")


def run_on_and_break(pair: tuple[StreamingFiles, StreamingFiles]) -> None:
    """Let both go on, and damage the writer, which has to go back then."""
    writer, reader = pair
    writer.run(2)
    reader.run(2)
    (writer.location / "offsets" / "4").unlink()


@pytest.mark.parametrize("is_reader_first", [False, True])
def test_a_reader_goes_back_with_its_writer(
    pair: tuple[StreamingFiles, StreamingFiles], tmp_path: Path, is_reader_first: bool
) -> None:
    writer, reader = pair
    restore = TaskRestore(tmp_path / "task", checkpoint(*both(pair)))
    run_on_and_break(pair)
    first, second = (reader, writer) if is_reader_first else (writer, reader)
    notes = [restore.prepare(first.query), restore.prepare(second.query)]
    assert [inspect_location(files.query) for files in pair] == [2, 0]
    why = (
        "which the restore of query counts removes"
        if is_reader_first
        else "which a restore of query counts has removed"
    )
    assert why in notes[0 if is_reader_first else 1]


def test_a_reader_goes_back_also_if_its_writer_did_so_in_an_earlier_attempt(
    pair: tuple[StreamingFiles, StreamingFiles], tmp_path: Path
) -> None:
    writer, reader = pair
    state = checkpoint(*both(pair))
    run_on_and_break(pair)
    TaskRestore(tmp_path / "task", state).prepare(writer.query)
    StreamingFiles(writer.root, query_id=writer.query_id, next_batch=3).run(4)
    restore = TaskRestore(tmp_path / "task", state)
    assert restore.prepare(writer.query) == ""
    assert "a restore of query counts has removed" in restore.prepare(reader.query)
    assert inspect_location(reader.query) == 0


def test_a_reader_stays_where_it_is_if_its_writer_does(
    pair: tuple[StreamingFiles, StreamingFiles], tmp_path: Path
) -> None:
    writer, reader = pair
    state = checkpoint(*both(pair))
    writer.run(2)
    reader.run(2)
    for queries in (pair, pair[::-1]):
        restore = TaskRestore(tmp_path / "task", state)
        assert [restore.prepare(files.query) for files in queries] == ["", ""]
    assert inspect_location(reader.query) == 2


def test_a_writer_does_not_go_back_behind_a_reader_that_has_started(
    pair: tuple[StreamingFiles, StreamingFiles], tmp_path: Path
) -> None:
    writer, reader = pair
    restore = TaskRestore(tmp_path / "task", checkpoint(*both(pair)))
    assert restore.prepare(reader.query) == ""
    run_on_and_break(pair)
    with pytest.raises(SnapshotError, match="query 'reader', which has started, has read what it wrote later"):
        restore.prepare(writer.query)
    assert len(list((writer.sink / "_spark_metadata").glob("[0-9]"))) == 5, "nothing has changed"


def test_a_reader_goes_back_as_far_as_its_writer(pair: tuple[StreamingFiles, StreamingFiles], tmp_path: Path) -> None:
    writer, reader = pair
    earlier = both(pair)
    writer.run()
    reader.run()
    latest = both(pair, "chk-2")
    run_on_and_break((writer, reader))
    (Path(latest[0].path) / "checkpoint" / "commits" / "3").unlink()
    (writer.location / "commits" / "5").unlink()
    state = JobManagerTaskRestore(7, latest, earlier=(EarlierCheckpoint(6, earlier),))
    restore = TaskRestore(tmp_path / "task", state)
    assert "continues from checkpoint 6, batch 2" in restore.prepare(writer.query)
    note = restore.prepare(reader.query)
    assert "continues from checkpoint 6, batch 0" in note
    assert "query 'counts' has gone back to batch 2" in note


def test_a_reader_that_is_not_in_the_state_is_refused_if_its_writer_has_gone_back(
    pair: tuple[StreamingFiles, StreamingFiles], tmp_path: Path
) -> None:
    writer, reader = pair
    rolled_back = JobManagerTaskRestore(0, both(pair)[:1], "/savepoints/one", rollback="one")
    run_on_and_break(pair)
    restore = TaskRestore(tmp_path / "task", rolled_back)
    restore.prepare(writer.query)
    with pytest.raises(SnapshotError, match="has gone back to batch 2 without it, so rows would be read twice"):
        restore.prepare(reader.query)

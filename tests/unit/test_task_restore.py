"""What a streaming query begins with: its live files, a checkpoint, or a savepoint; and how that is found out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from runtime.checkpoint.errors import SavepointError
from runtime.checkpoint.messages import JobManagerTaskRestore
from runtime.checkpoint.model import QuerySnapshot
from runtime.checkpoint.snapshot import inspect_location, take_snapshot
from runtime.checkpoint.task_restore import TaskRestore
from tests.streaming_files import StreamingFiles, start


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
    (files.location / "commits" / "2").unlink()
    note = TaskRestore(tmp_path / "task", checkpoint(taken)).prepare(files.query)
    assert "goes on from checkpoint 7, batch 2: its checkpointLocation is at batch 1" in note
    assert inspect_location(files.query) == 2


def test_a_checkpoint_is_put_back_where_the_live_files_are_broken(files: StreamingFiles, tmp_path: Path) -> None:
    taken = snapshot(files)
    (files.location / "offsets" / "2").unlink()
    note = TaskRestore(tmp_path / "task", checkpoint(taken)).prepare(files.query)
    assert "goes on from checkpoint 7" in note
    assert "offsets/2" in note, "what was broken is told"
    assert inspect_location(files.query) == 2


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


def test_a_rollback_is_put_back_once_for_each_wish(files: StreamingFiles, tmp_path: Path) -> None:
    first = snapshot(files)
    begun_from = JobManagerTaskRestore(0, (first,), "/savepoints/one")
    TaskRestore(tmp_path / "task", begun_from).prepare(files.query)
    for wish in ("a" * 32, "b" * 32):
        files.next_batch = start(files.location, files.sink) + 1
        files.run(2)
        back = replace(begun_from, rollback=wish)
        assert "begins from batch 2" in TaskRestore(tmp_path / "task", back).prepare(files.query)
        assert start(files.location, files.sink) == 2
        files.next_batch = 3
        files.run(1)
        assert TaskRestore(tmp_path / "task", back).prepare(files.query) == "", "an attempt after it goes on"
    renamed = replace(begun_from, rollback="c" * 32, new_query_id=True)
    TaskRestore(tmp_path / "task", renamed).prepare(files.query)
    assert json.loads((files.location / "metadata").read_text())["id"] != files.query_id


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

"""The part of a task in checkpoints: snapshots, declines, and what a stop makes of the task's end."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conf.files import make_private, remove_tree
from runtime.checkpoint import snapshot
from runtime.checkpoint.alignment import find_misaligned
from runtime.checkpoint.snapshot import take_snapshot
from runtime.checkpoint.task_restore import TaskRestore
from runtime.ids import AllocationID, ExecutionAttemptID, JobVertexID, TriggerID
from runtime.protocol.checkpoints import (
    AcknowledgeCheckpoint,
    CheckpointOutcome,
    CheckpointTrigger,
    DeclineCheckpoint,
    JobManagerTaskRestore,
    SnapshotType,
    TriggerCheckpoint,
)
from runtime.protocol.descriptor import AttemptInformation
from runtime.protocol.query_snapshot import NOTHING_COMMITTED, QueryLocation, QuerySnapshot
from runtime.spark.errors import SparkError
from runtime.taskexecutor import task_checkpoints
from runtime.taskexecutor.task_checkpoints import (
    DrainFailedError,
    NotStoppedError,
    StopOutcome,
    StopReport,
    TaskCheckpoints,
)
from tests.streaming_files import StreamingFiles
from tests.waiting import PATIENCE_S

ATTEMPT, TASK = ExecutionAttemptID.random(), JobVertexID.random()


class Responder:
    """A JobMaster that answers as it is told."""

    def __init__(self) -> None:
        self.answer = CheckpointOutcome.PENDING
        self.decided = asyncio.Event()
        self.told: list[AcknowledgeCheckpoint | DeclineCheckpoint] = []
        self.heard = asyncio.Event()

    async def acknowledge(
        self, ack: AcknowledgeCheckpoint, timeout_s: float, *, until_decided: bool = False
    ) -> CheckpointOutcome:
        self.told.append(ack)
        self.heard.set()
        if until_decided:
            await self.decided.wait()
        return self.answer

    async def decline(self, decline: DeclineCheckpoint) -> None:
        self.told.append(decline)
        self.heard.set()

    async def next(self) -> Any:
        await asyncio.wait_for(self.heard.wait(), PATIENCE_S)
        self.heard.clear()
        return self.told[-1]


class Stopper:
    def __init__(self, error: Exception | None = None) -> None:
        self.drains: list[bool] = []
        self._error = error

    async def __call__(self, drain: bool) -> StopReport:
        self.drains.append(drain)
        if self._error is not None:
            raise self._error
        return StopReport(("by force",), drained=not drain)


Make = Callable[..., tuple[TaskCheckpoints, Responder, Stopper]]


@pytest.fixture
def files(tmp_path: Path) -> StreamingFiles:
    made = StreamingFiles(tmp_path / "live")
    made.run(2)
    return made


def made(
    restore: JobManagerTaskRestore | None = None,
    error: Exception | None = None,
    reported: Callable[[], Mapping[str, str]] = dict,
) -> tuple[TaskCheckpoints, Responder, Stopper]:
    responder, stopper = Responder(), Stopper(error)
    attempt = AttemptInformation(ATTEMPT, 0, AllocationID.random(), TASK, "stream", (), restore=restore)
    return TaskCheckpoints(attempt, responder, stopper, reported), responder, stopper  # type: ignore[arg-type]


def trigger(directory: Path, number: int = 1, kind: SnapshotType = SnapshotType.CHECKPOINT) -> TriggerCheckpoint:
    place = directory / f"chk-{number}"
    make_private(place)
    request = CheckpointTrigger(TriggerID.random(), kind)
    return TriggerCheckpoint(ATTEMPT, number, request, str(place), 60.0)


async def test_each_query_is_snapshotted_below_its_task(files: StreamingFiles, tmp_path: Path) -> None:
    checkpoints, responder, _ = made()
    checkpoints.query_started(files.query)
    wanted = trigger(tmp_path)
    checkpoints.trigger(wanted)
    checkpoints.trigger(wanted)
    ack = await responder.next()
    (query,) = ack.queries
    assert (query.batch_id, query.path) == (1, str(tmp_path / "chk-1" / TASK / files.query.name))
    assert len(responder.told) == 1, "twice is once"
    assert await checkpoints.end() is StopOutcome.NOT_ASKED


async def test_a_complete_checkpoint_is_what_the_next_builds_upon(files: StreamingFiles, tmp_path: Path) -> None:
    checkpoints, responder, _ = made()
    checkpoints.query_started(files.query)
    checkpoints.trigger(trigger(tmp_path, 1))
    first = (await responder.next()).queries[0]
    assert first.new_bytes == first.bytes
    checkpoints.completed(1)
    checkpoints.trigger(trigger(tmp_path, 2))
    second = (await responder.next()).queries[0]
    assert second.new_bytes == 0


async def test_a_successor_builds_upon_what_its_predecessor_has_taken(files: StreamingFiles, tmp_path: Path) -> None:
    former, responder, _ = made()
    former.query_started(files.query, 1)
    former.trigger(trigger(tmp_path, 1))
    assert not former.is_quiet
    await responder.next()
    await asyncio.wait_for(asyncio.gather(*former._runs.values()), PATIENCE_S)
    await asyncio.sleep(0)  # its end is noted
    assert former.is_quiet
    successor, responder, _ = made()
    successor.take_over(former.held())
    assert successor.held() == former.held()
    successor.completed(1)  # its outcome was not known when the tasks were handed over
    successor.trigger(trigger(tmp_path, 2))
    (second,) = (await responder.next()).queries
    assert (second.batch_id, second.new_bytes) == (1, 0)


async def test_what_cannot_be_snapshotted_is_declined(tmp_path: Path) -> None:
    checkpoints, responder, _ = made()
    checkpoints.query_started(QueryLocation("far", "nosuch://name/live"))
    checkpoints.trigger(trigger(tmp_path))
    decline = await responder.next()
    assert isinstance(decline, DeclineCheckpoint)
    assert "nosuch://name/live cannot be used: no file system for the scheme" in decline.reason


async def test_a_query_whose_file_sink_is_in_its_remote_location_is_not_checkpointed(tmp_path: Path) -> None:
    checkpoints, responder, _ = made()
    checkpoints.query_started(QueryLocation("far", "s3://bucket/live/", "s3://bucket//live/out"))
    checkpoints.trigger(trigger(tmp_path))
    decline = await responder.next()
    assert isinstance(decline, DeclineCheckpoint)
    assert "the file sink of query 'far' is in its checkpointLocation s3://bucket/live/" in decline.reason


@pytest.mark.parametrize("kind", [SnapshotType.CHECKPOINT, SnapshotType.SAVEPOINT_SUSPEND])
@pytest.mark.parametrize("is_handed_over", [False, True])
async def test_a_name_that_two_locations_have_in_turn_is_not_checkpointed(
    files: StreamingFiles, tmp_path: Path, kind: SnapshotType, is_handed_over: bool
) -> None:
    checkpoints, responder, stopper = made()
    checkpoints.query_started(files.query)
    checkpoints.query_started(files.query)
    checkpoints.trigger(trigger(tmp_path))
    assert isinstance(await responder.next(), AcknowledgeCheckpoint), "one location is not a problem"
    checkpoints.query_started(replace(files.query, location=str(tmp_path / "other")))
    checkpoints.query_started(files.query)
    if is_handed_over:
        held = checkpoints.held()
        checkpoints, responder, stopper = made()
        checkpoints.take_over(held)
    checkpoints.trigger(trigger(tmp_path, 2, kind))
    decline = await responder.next()
    assert isinstance(decline, DeclineCheckpoint)
    assert f"of the name 'counts' at {files.location} and at {tmp_path / 'other'}" in decline.reason
    assert "queryName()" in decline.reason
    assert stopper.drains == []


@pytest.mark.parametrize("name", ["counts", ""])
async def test_a_query_that_writes_elsewhere_is_not_checkpointed_nor_stopped(
    files: StreamingFiles, tmp_path: Path, name: str
) -> None:
    checkpoints, responder, stopper = made(reported=lambda: {"id of counts": name, files.query_id: ""})
    checkpoints.query_started(replace(files.query, name="other"))
    checkpoints.query_started(QueryLocation("counts", str(tmp_path / "nothing")))
    for number, kind in enumerate((SnapshotType.CHECKPOINT, SnapshotType.SAVEPOINT_SUSPEND), 1):
        checkpoints.trigger(trigger(tmp_path, number, kind))
        decline = await responder.next()
        assert isinstance(decline, DeclineCheckpoint)
        assert f"query 'counts' has run batches, but has no files at {tmp_path / 'nothing'}" in decline.reason
    assert stopper.drains == []


async def test_a_new_query_without_files_is_checkpointed_beside_others(files: StreamingFiles, tmp_path: Path) -> None:
    checkpoints, responder, _ = made(reported=lambda: {files.query_id: files.query.name, "in memory": "table"})
    checkpoints.query_started(files.query)
    checkpoints.query_started(QueryLocation("new", str(tmp_path / "nothing")))
    checkpoints.trigger(trigger(tmp_path))
    ack = await responder.next()
    assert [query.batch_id for query in ack.queries] == [1, NOTHING_COMMITTED]


@pytest.mark.parametrize("content", [None, b"", b"other"])
async def test_no_checkpoint_is_taken_of_damaged_state(
    files: StreamingFiles, tmp_path: Path, content: bytes | None
) -> None:
    state = files.location / "state" / "0" / "1" / "1.delta"
    state.unlink()
    if content is not None:
        state.write_bytes(content)
    checkpoints, responder, _ = made()
    checkpoints.query_started(files.query)
    checkpoints.trigger(trigger(tmp_path))
    assert "state/0/1" in (await responder.next()).reason
    assert list((tmp_path / "chk-1" / TASK).iterdir()) == []


async def test_a_task_that_was_restored_waits_for_its_queries(files: StreamingFiles, tmp_path: Path) -> None:
    former = QuerySnapshot(files.query.name, "id", "/l", None, "/p", 1)
    checkpoints, responder, _ = made(JobManagerTaskRestore(1, (former,)))
    checkpoints.trigger(trigger(tmp_path, 2))
    await asyncio.sleep(0)
    assert responder.told == []
    checkpoints.query_started(files.query)
    assert isinstance(await responder.next(), AcknowledgeCheckpoint)


def ran_before(query: QueryLocation, directory: Path, attempt: str = "former") -> None:
    """A query that an attempt of the task has started; the job's directory is that of `trigger`."""
    TaskRestore(directory / "tasks" / TASK, None, attempt).prepare(query)


@pytest.mark.parametrize("kind", [kind for kind in SnapshotType if kind.is_savepoint])
async def test_a_savepoint_has_a_query_that_has_not_started_again_since_a_restart(
    files: StreamingFiles, tmp_path: Path, kind: SnapshotType
) -> None:
    """The job has no checkpoint of it, from which the query would be waited for."""
    ran_before(files.query, tmp_path)
    checkpoints, responder, stopper = made()
    checkpoints.trigger(trigger(tmp_path, 1, kind))
    part = await responder.next()
    assert [(query.name, query.batch_id, query.is_proven) for query in part.queries] == [("counts", 1, False)]
    assert ["'counts' has not started again" in note for note in part.notes] == [True]
    assert stopper.drains == []
    responder.decided.set()
    checkpoints.query_started(files.query)
    checkpoints.trigger(trigger(tmp_path, 2, SnapshotType.SAVEPOINT))
    part = await responder.next()
    assert ([query.name for query in part.queries], part.notes) == (["counts"], ())


async def test_a_checkpoint_needs_no_query_that_has_not_started_again(files: StreamingFiles, tmp_path: Path) -> None:
    """Its own files stay where they are. It would be waited for after the next restart."""
    ran_before(files.query, tmp_path)
    checkpoints, responder, _ = made()
    checkpoints.trigger(trigger(tmp_path))
    assert (await responder.next()).queries == ()


async def test_a_query_that_starts_for_the_first_time_is_in_no_savepoint_yet(
    files: StreamingFiles, tmp_path: Path
) -> None:
    ran_before(files.query, tmp_path, ATTEMPT)
    ran_before(QueryLocation("gone", str(tmp_path / "gone")), tmp_path)  # its files were removed
    checkpoints, responder, _ = made()
    checkpoints.trigger(trigger(tmp_path, 1, SnapshotType.SAVEPOINT))
    part = await responder.next()
    assert (part.queries, part.notes) == ((), ())


async def test_a_stop_waits_for_the_queries_of_a_task_that_was_restored(files: StreamingFiles, tmp_path: Path) -> None:
    former = QuerySnapshot(files.query.name, "id", "/l", None, "/p", 1)
    checkpoints, responder, stopper = made(JobManagerTaskRestore(1, (former,)))
    checkpoints.trigger(trigger(tmp_path, 2, SnapshotType.SAVEPOINT_SUSPEND))
    await asyncio.sleep(0)
    assert (responder.told, stopper.drains) == ([], [])
    checkpoints.query_started(files.query)
    assert isinstance(await responder.next(), AcknowledgeCheckpoint)
    assert stopper.drains == [False], "the query was not left running beside its savepoint"
    responder.answer = CheckpointOutcome.COMPLETED
    responder.decided.set()
    assert await checkpoints.end() is StopOutcome.COMPLETED


@pytest.mark.parametrize("kind", [SnapshotType.CHECKPOINT, SnapshotType.SAVEPOINT, SnapshotType.SAVEPOINT_SUSPEND])
async def test_a_task_that_ends_without_its_queries_leaves_a_request_to_its_jobmaster(
    tmp_path: Path, kind: SnapshotType
) -> None:
    """Its end is reported after this, and the JobMaster repeats the request then. A decline ended the request."""
    former = QuerySnapshot("counts", "id", "/l", None, "/p", 1)
    checkpoints, responder, _ = made(JobManagerTaskRestore(1, (former,)))
    checkpoints.trigger(trigger(tmp_path, 2, kind))
    (part,) = checkpoints._runs.values()
    assert await checkpoints.end() is StopOutcome.NOT_ASKED
    await asyncio.wait_for(part, PATIENCE_S)
    assert responder.told == []


async def test_a_query_that_does_not_start_again_in_time_is_named(tmp_path: Path) -> None:
    former = QuerySnapshot("counts", "id", "/l", None, "/p", 1)
    checkpoints, responder, _ = made(JobManagerTaskRestore(1, (former,)))
    checkpoints.trigger(replace(trigger(tmp_path, 2, SnapshotType.SAVEPOINT), timeout_s=0.0))
    assert "'counts' has not been started again" in (await responder.next()).reason


async def test_the_end_of_a_task_waits_for_a_snapshot_that_is_being_taken(
    files: StreamingFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the job removes its files; a snapshot that is written later would stay for ever."""
    begun, may_end = threading.Event(), threading.Event()

    def slow(*arguments: Any, **options: Any) -> QuerySnapshot:
        begun.set()
        assert may_end.wait(PATIENCE_S)
        return take_snapshot(*arguments, **options)

    monkeypatch.setattr(task_checkpoints, "take_snapshot", slow)
    checkpoints, responder, _ = made()
    checkpoints.query_started(files.query)
    checkpoints.trigger(trigger(tmp_path))
    assert await asyncio.to_thread(begun.wait, PATIENCE_S)
    ending = asyncio.create_task(checkpoints.end())
    for _ in range(10):
        await asyncio.sleep(0)
    is_over = ending.done()
    may_end.set()  # also if it does not wait: else the thread would keep the test from its end
    assert not is_over
    assert await asyncio.wait_for(ending, PATIENCE_S) is StopOutcome.NOT_ASKED
    assert (tmp_path / "chk-1").exists()
    await responder.next()
    checkpoints.trigger(trigger(tmp_path, 2))
    assert list((tmp_path / "chk-2").iterdir()) == []


@pytest.mark.parametrize("step", ["", "_choose", "take_files", "sink_files"])
async def test_a_task_that_comes_late_makes_no_checkpoint_again_that_was_removed(
    files: StreamingFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Its TaskExecutor stood still and was given up. The job has ended since, and removes no files any more."""
    checkpoints, responder, _ = made()
    checkpoints.query_started(files.query)
    assert files.query.sink is not None
    wanted = trigger(tmp_path)
    if step:
        take = getattr(snapshot, step)

        def removed(*arguments: Any) -> Any:
            remove_tree(Path(wanted.directory))
            monkeypatch.setattr(snapshot, step, take)  # once: it tries again
            return take(*arguments)

        monkeypatch.setattr(snapshot, step, removed)
    else:
        remove_tree(Path(wanted.directory))
    checkpoints.trigger(wanted)
    assert "No such file or directory" in (await responder.next()).reason
    assert await checkpoints.end() is StopOutcome.NOT_ASKED
    assert not Path(wanted.directory).exists()


@pytest.mark.parametrize("answer", [CheckpointOutcome.COMPLETED, CheckpointOutcome.ABORTED])
async def test_the_end_of_a_stopped_task_waits_for_its_savepoint(
    files: StreamingFiles, tmp_path: Path, answer: CheckpointOutcome
) -> None:
    checkpoints, responder, stopper = made()
    checkpoints.query_started(files.query)
    checkpoints.trigger(trigger(tmp_path, kind=SnapshotType.SAVEPOINT_TERMINATE))
    ack = await responder.next()
    assert (stopper.drains, ack.notes, ack.drained) == ([True], ("by force",), False)
    end = asyncio.create_task(checkpoints.end())
    checkpoints.aborted(1)  # only the answer counts
    await asyncio.sleep(0)
    assert not end.done()
    responder.answer = answer
    responder.decided.set()
    completed = answer is CheckpointOutcome.COMPLETED
    assert await end is (StopOutcome.COMPLETED if completed else StopOutcome.FAILED)
    assert checkpoints.stopped.is_set() == completed


async def test_a_task_without_queries_is_not_stopped_and_ends_as_it_ends(tmp_path: Path) -> None:
    checkpoints, responder, stopper = made()
    checkpoints.trigger(trigger(tmp_path, kind=SnapshotType.SAVEPOINT_SUSPEND))
    assert (await responder.next()).queries == ()
    assert stopper.drains == []
    assert await checkpoints.end() is StopOutcome.NOT_ASKED


@pytest.mark.parametrize("remote", ["location", "sink"])
async def test_queries_whose_state_cannot_be_kept_are_not_stopped(
    files: StreamingFiles, tmp_path: Path, remote: str
) -> None:
    checkpoints, responder, stopper = made()
    checkpoints.query_started(replace(files.query, **{remote: "nosuch://bucket/live"}))
    checkpoints.trigger(trigger(tmp_path, kind=SnapshotType.SAVEPOINT_SUSPEND))
    assert "nosuch://bucket/live" in (await responder.next()).reason
    assert stopper.drains == []
    assert await checkpoints.end() is StopOutcome.NOT_ASKED


async def test_queries_that_cannot_be_stopped_fail_the_stop(files: StreamingFiles, tmp_path: Path) -> None:
    checkpoints, responder, _ = made(error=SparkError("the driver is gone"))
    checkpoints.query_started(files.query)
    checkpoints.trigger(trigger(tmp_path, kind=SnapshotType.SAVEPOINT_SUSPEND))
    assert (await responder.next()).reason == "the driver is gone"
    assert await checkpoints.end() is StopOutcome.FAILED


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (NotStoppedError("it has failed by itself"), StopOutcome.NOT_ASKED),
        (DrainFailedError("streaming query counts has failed: ValueError"), StopOutcome.DRAIN_FAILED),
        (SparkError("the driver is gone"), StopOutcome.FAILED),
    ],
)
async def test_a_stop_that_failed_makes_no_savepoint_and_says_why(
    files: StreamingFiles, tmp_path: Path, error: Exception, outcome: StopOutcome
) -> None:
    checkpoints, responder, _ = made(error=error)
    checkpoints.query_started(files.query)
    checkpoints.trigger(trigger(tmp_path, kind=SnapshotType.SAVEPOINT_TERMINATE))
    decline = await responder.next()
    assert isinstance(decline, DeclineCheckpoint)
    assert decline.reason == str(error)
    assert await checkpoints.end() is outcome
    assert not list(tmp_path.glob("chk-1/*/*"))


async def test_a_savepoint_waits_for_a_query_that_is_being_restored(files: StreamingFiles, tmp_path: Path) -> None:
    checkpoints, responder, stopper = made()
    checkpoints.query_started(files.query)
    checkpoints.query_restores("b")
    checkpoints.trigger(trigger(tmp_path, 1))
    assert isinstance(await responder.next(), AcknowledgeCheckpoint), "a checkpoint may be without it"
    checkpoints.trigger(replace(trigger(tmp_path, 2, SnapshotType.SAVEPOINT_SUSPEND), timeout_s=0.001))
    assert "streaming query 'b' is still being restored" in (await responder.next()).reason
    assert stopper.drains == []
    checkpoints.trigger(trigger(tmp_path, 3, SnapshotType.SAVEPOINT))
    await asyncio.sleep(0)
    successor, responder, _ = made()
    successor.take_over(checkpoints.held())
    successor.trigger(trigger(tmp_path, 4, SnapshotType.SAVEPOINT))
    for _ in range(10):
        await asyncio.sleep(0)
    assert responder.told == []
    successor.query_restores("b", is_over=True)
    assert [query.name for query in (await responder.next()).queries] == ["counts"]
    checkpoints.query_started(replace(files.query, name="b"))
    await checkpoints.end()


async def test_a_query_whose_file_sink_is_in_its_location_is_not_checkpointed(
    files: StreamingFiles, tmp_path: Path
) -> None:
    checkpoints, responder, stopper = made()
    checkpoints.query_started(replace(files.query, sink=f"{files.query.location}/out"))
    checkpoints.trigger(trigger(tmp_path, kind=SnapshotType.SAVEPOINT_SUSPEND))
    decline = await responder.next()
    assert isinstance(decline, DeclineCheckpoint)
    assert "the file sink of query 'counts' is in its checkpointLocation" in decline.reason
    assert stopper.drains == []
    within = f"{files.query.sink}/_checkpoint"
    shutil.copytree(files.query.location, within)
    checkpoints, responder, _ = made()
    checkpoints.query_started(replace(files.query, location=within))
    checkpoints.trigger(trigger(tmp_path, 2))
    assert isinstance(await responder.next(), AcknowledgeCheckpoint)


@pytest.fixture
def pair(files: StreamingFiles, tmp_path: Path) -> tuple[StreamingFiles, StreamingFiles]:
    """A query, and one that reads the directory of its file sink."""
    reader = StreamingFiles(tmp_path / "reader", name="reader", upstream=files)
    reader.run()
    return files, reader


def noted(monkeypatch: pytest.MonkeyPatch, between: Callable[[], None]) -> list[str]:
    """Run something after each snapshot; return the names of the queries in the order of their snapshots."""
    names = []

    def take(query: QueryLocation, *arguments: Any, **keywords: Any) -> QuerySnapshot:
        names.append(query.name)
        snapshot = take_snapshot(query, *arguments, **keywords)
        between()
        return snapshot

    monkeypatch.setattr(task_checkpoints, "take_snapshot", take)
    return names


@pytest.mark.parametrize("is_reader_first", [True, False])
async def test_a_reader_is_snapshotted_before_its_writer_while_both_run(
    pair: tuple[StreamingFiles, StreamingFiles], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_reader_first: bool
) -> None:
    writer, reader = pair
    checkpoints, responder, _ = made()
    for files in reversed(pair) if is_reader_first else pair:
        checkpoints.query_started(files.query)

    def run_on() -> None:
        writer.run()
        reader.run()

    names = noted(monkeypatch, run_on)
    checkpoints.trigger(trigger(tmp_path, 1))
    await responder.next()
    names.clear()
    checkpoints.trigger(trigger(tmp_path, 2))
    ack = await responder.next()
    assert isinstance(ack, AcknowledgeCheckpoint), ack
    assert names == ["reader", "counts"]
    assert [query.name for query in ack.queries] == [files.name for files in (pair[::-1] if is_reader_first else pair)]
    assert not find_misaligned(ack.queries).misaligned


async def test_a_writer_is_snapshotted_again_if_its_reader_was_ahead(
    pair: tuple[StreamingFiles, StreamingFiles], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark adds a batch to the log of the sink before it commits it, and a reader may be faster."""
    writer, reader = pair
    writer.run()
    commit = writer.location / "commits" / "2"
    late = commit.rename(tmp_path / "late")
    reader.run()
    checkpoints, responder, _ = made()
    for files in pair:
        checkpoints.query_started(files.query)
    names = noted(monkeypatch, lambda: late.rename(commit) if names.count("counts") == 1 and late.exists() else None)
    checkpoints.trigger(trigger(tmp_path))
    ack = await responder.next()
    assert names == ["reader", "counts", "counts"]
    assert [query.batch_id for query in ack.queries] == [2, 1]


@pytest.mark.parametrize("kind", [SnapshotType.CHECKPOINT, SnapshotType.SAVEPOINT, SnapshotType.SAVEPOINT_SUSPEND])
async def test_snapshots_that_do_not_fit_together_are_declined(
    pair: tuple[StreamingFiles, StreamingFiles],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: SnapshotType,
) -> None:
    monkeypatch.setattr(task_checkpoints, "_ALIGNMENT_S", 0.0)
    writer, reader = pair
    writer.run()
    writer.delete(writer.location / "commits" / "2")
    reader.run()
    checkpoints, responder, _ = made()
    for files in pair:
        checkpoints.query_started(files.query)
    checkpoints.trigger(trigger(tmp_path, kind=kind))
    decline = await responder.next()
    assert isinstance(decline, DeclineCheckpoint)
    assert "'reader' has read what query 'counts' wrote after its batch 1" in decline.reason


async def test_queries_that_read_each_other_in_a_cycle_are_named(
    pair: tuple[StreamingFiles, StreamingFiles], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_checkpoints, "_ALIGNMENT_S", 0.0)
    writer, reader = pair
    writer.upstream = reader
    checkpoints, responder, _ = made()
    for files in pair:
        checkpoints.query_started(files.query)

    def run_on() -> None:
        reader.run()
        writer.run()

    noted(monkeypatch, run_on)
    checkpoints.trigger(trigger(tmp_path))
    decline = await responder.next()
    assert isinstance(decline, DeclineCheckpoint)
    assert decline.reason.endswith("; queries 'counts', 'reader' read each other's output in a cycle")


class Starts:
    """A task process: the queries that it is starting, and what its TaskExecutor makes of later starts."""

    def __init__(self, *starting: str) -> None:
        self.starting = list(starting)
        self.asked = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.ends: list[bool] = []

    async def hold(self) -> list[str]:
        found = list(self.starting)
        self.asked.set()
        if found:
            await self.may_answer.wait()
            self.may_answer.clear()
        return found

    async def end(self, stops: bool) -> None:
        self.ends.append(stops)


def holding(starts: Starts) -> tuple[TaskCheckpoints, Responder, Stopper]:
    responder, stopper = Responder(), Stopper()
    attempt = AttemptInformation(ATTEMPT, 0, AllocationID.random(), TASK, "stream", ())
    ends = {"hold_starts": starts.hold, "end_hold": starts.end}
    return TaskCheckpoints(attempt, responder, stopper, **ends), responder, stopper  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [kind for kind in SnapshotType if kind.ends_the_job])
async def test_a_stop_waits_until_spark_has_the_query_that_is_being_started(
    files: StreamingFiles, tmp_path: Path, kind: SnapshotType
) -> None:
    """Its state was restored, and Spark did not have it yet: nothing was stopped, and it ran on after the savepoint."""
    starts = Starts("counts")
    checkpoints, responder, stopper = holding(starts)
    checkpoints.query_started(files.query, 1, was_restored=True)
    checkpoints.trigger(trigger(tmp_path, kind=kind))
    for _ in range(10):
        await asyncio.sleep(0)
    assert (starts.asked.is_set(), responder.told, stopper.drains) == (True, [], [])
    starts.starting.clear()
    starts.may_answer.set()
    assert isinstance(await responder.next(), AcknowledgeCheckpoint)
    assert stopper.drains == [kind.drains]
    assert starts.ends == [], "no other query starts before the savepoint is complete"
    responder.answer = CheckpointOutcome.COMPLETED
    responder.decided.set()
    assert await checkpoints.end() is StopOutcome.COMPLETED
    assert starts.ends == [True]


async def test_a_query_whose_start_takes_too_long_keeps_the_job_from_its_stop(
    files: StreamingFiles, tmp_path: Path
) -> None:
    starts = Starts("counts")
    checkpoints, responder, stopper = holding(starts)
    checkpoints.query_started(files.query)
    starts.may_answer.set()
    checkpoints.trigger(replace(trigger(tmp_path, kind=SnapshotType.SAVEPOINT_TERMINATE), timeout_s=0.0))
    assert "streaming query 'counts' is still being started" in (await responder.next()).reason
    assert (stopper.drains, starts.ends) == ([], [False])
    assert await checkpoints.end() is StopOutcome.NOT_ASKED


async def test_a_task_that_ends_while_it_starts_a_query_leaves_its_stop_to_its_jobmaster(tmp_path: Path) -> None:
    starts = Starts("counts")
    checkpoints, responder, stopper = holding(starts)
    checkpoints.trigger(trigger(tmp_path, kind=SnapshotType.SAVEPOINT_SUSPEND))
    (part,) = checkpoints._runs.values()
    await asyncio.wait_for(starts.asked.wait(), PATIENCE_S)
    ending = asyncio.create_task(checkpoints.end())
    await asyncio.sleep(0)
    starts.may_answer.set()
    assert await asyncio.wait_for(ending, PATIENCE_S) is StopOutcome.NOT_ASKED
    await asyncio.wait_for(part, PATIENCE_S)
    assert (responder.told, stopper.drains, starts.ends) == ([], [], [False])


async def test_a_checkpoint_and_a_savepoint_hold_no_start(files: StreamingFiles, tmp_path: Path) -> None:
    starts = Starts("counts")
    checkpoints, responder, _ = holding(starts)
    checkpoints.query_started(files.query)
    for number, kind in enumerate((SnapshotType.CHECKPOINT, SnapshotType.SAVEPOINT), 1):
        checkpoints.trigger(trigger(tmp_path, number, kind))
        assert isinstance(await responder.next(), AcknowledgeCheckpoint)
    await checkpoints.end()
    assert (starts.asked.is_set(), starts.ends) == (False, [])


@pytest.mark.parametrize("answer", [CheckpointOutcome.COMPLETED, CheckpointOutcome.ABORTED])
async def test_a_task_without_queries_starts_none_after_the_stop_of_its_job(
    tmp_path: Path, answer: CheckpointOutcome
) -> None:
    """If the stop fails, its queries start: nothing of it was stopped."""
    starts = Starts()
    checkpoints, responder, stopper = holding(starts)
    checkpoints.trigger(trigger(tmp_path, kind=SnapshotType.SAVEPOINT_SUSPEND))
    assert (await responder.next()).queries == ()
    assert starts.ends == []
    (part,) = checkpoints._runs.values()
    responder.answer = answer
    responder.decided.set()
    await asyncio.wait_for(part, PATIENCE_S)
    is_complete = answer is CheckpointOutcome.COMPLETED
    assert (starts.ends, stopper.drains) == ([is_complete], [])
    assert await checkpoints.end() is (StopOutcome.COMPLETED_BY_OTHERS if is_complete else StopOutcome.NOT_ASKED)


async def test_a_failed_stop_starts_no_query_while_the_next_one_holds_them(tmp_path: Path) -> None:
    starts = Starts()
    checkpoints, responder, _ = holding(starts)
    checkpoints.trigger(trigger(tmp_path, 1, SnapshotType.SAVEPOINT_SUSPEND))
    await responder.next()
    former = checkpoints._runs[1]
    decided, responder.decided = responder.decided, asyncio.Event()
    checkpoints.trigger(trigger(tmp_path, 2, SnapshotType.SAVEPOINT_SUSPEND))
    await responder.next()
    latter = checkpoints._runs[2]
    responder.answer = CheckpointOutcome.ABORTED
    decided.set()
    await asyncio.wait_for(former, PATIENCE_S)
    assert starts.ends == []
    responder.decided.set()
    await asyncio.wait_for(latter, PATIENCE_S)
    assert starts.ends == [False]

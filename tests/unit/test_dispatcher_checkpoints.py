"""What the Dispatcher answers of a request for a savepoint while the job comes to its end, and after it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runtime.checkpoint.names import savepoint_name
from runtime.checkpoint.savepoint import SavepointJob, write_savepoint
from runtime.checkpoint.snapshot import take_snapshot
from runtime.dispatcher.endpoint import Dispatcher
from runtime.ids import JobID, TriggerID
from runtime.protocol.checkpoint_statistics import CheckpointStats, CheckpointStatsSnapshot, CheckpointStatsStatus
from runtime.protocol.checkpoints import OperationState, OperationStatus, SnapshotType
from runtime.protocol.errors import JobAlreadyTerminatedError
from runtime.protocol.streaming_query import QueryHistory
from tests.streaming_files import StreamingFiles
from tests.unit.test_jobgraph import vid

JOB, TRIGGER = JobID("a" * 32), TriggerID("b" * 32)
DONE = OperationStatus(TRIGGER, OperationState.COMPLETED, 1, "/savepoints/one")
STOP = CheckpointStats(
    1, CheckpointStatsStatus.COMPLETED, SnapshotType.SAVEPOINT_SUSPEND, 0, None, 1, 1, 0, 0, 0, external_path="/one"
)


class Ended(Dispatcher):
    """A job that ends when it has been looked for *looks* times; of it these figures are kept."""

    def __init__(self, directory: Path, figures: CheckpointStatsSnapshot, looks: int = 0) -> None:
        self._savepoint_dir = directory
        self._savepoint_target = str(directory)
        self._archived = cast(Any, SimpleNamespace(checkpoints=figures))
        self._looks = looks
        self.asked: list[str] = []

    async def run_blocking(self, function: Any, *arguments: Any) -> Any:
        return function(*arguments)

    def _running(self, job_id: JobID) -> Any:
        raise JobAlreadyTerminatedError(f"job {job_id} is FINISHED already")

    def _find(self, job_id: JobID) -> Any:
        raise AssertionError("it is not asked")

    async def _ended(self, job_id: JobID) -> Any:
        self._looks -= 1
        return None if self._looks >= 0 else self._archived


async def test_the_figures_of_an_ended_jobs_queries_are_those_of_its_archive(tmp_path: Path) -> None:
    dispatcher, history = Ended(tmp_path, CheckpointStatsSnapshot()), QueryHistory(vid("a"), "q", "r", "counts", (1,))
    dispatcher._archived.query_histories = (history,)
    assert await dispatcher.request_query_histories(JOB) == [history]


@pytest.mark.parametrize("looks", [0, 1])
async def test_a_stop_hears_of_its_savepoint_though_the_job_ends_between_two_looks(tmp_path: Path, looks: int) -> None:
    dispatcher = Ended(tmp_path, CheckpointStatsSnapshot(operations=(DONE,)), looks)
    assert await dispatcher.stop_with_savepoint(JOB, TRIGGER, "", True) == DONE
    assert (
        await Ended(tmp_path, CheckpointStatsSnapshot(operations=(DONE,)), looks).trigger_savepoint(JOB, TRIGGER, "")
        == DONE
    )


async def test_a_stop_of_a_stopped_job_names_the_savepoint_of_the_first(tmp_path: Path) -> None:
    dispatcher = Ended(tmp_path, CheckpointStatsSnapshot(latest_savepoint=STOP))
    with pytest.raises(JobAlreadyTerminatedError, match="is FINISHED already: it was stopped with savepoint /one"):
        await dispatcher.stop_with_savepoint(JOB, TRIGGER, "", False)
    other = Ended(tmp_path, CheckpointStatsSnapshot(latest_savepoint=replace(STOP, type=SnapshotType.SAVEPOINT)))
    with pytest.raises(JobAlreadyTerminatedError, match=r"is FINISHED already$"):
        await other.stop_with_savepoint(JOB, TRIGGER, "", False)


@pytest.mark.parametrize("target", ["", "elsewhere"])
async def test_a_savepoint_that_only_a_lost_job_master_knew_of_is_found(
    tmp_path: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = StreamingFiles(tmp_path / "live")
    files.run(1)
    snapshot = take_snapshot(files.query, tmp_path / "chk" / "counts")
    parent = tmp_path / (target or "default")
    made = write_savepoint(tmp_path / "made", SavepointJob(JOB, "stream"), [snapshot])
    parent.mkdir()
    Path(made.path).rename(parent / savepoint_name(JOB, TRIGGER))
    dispatcher = Ended(tmp_path / "default", CheckpointStatsSnapshot())
    synced: list[Path] = []
    sync = os.fsync

    def note(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    status = await dispatcher.stop_with_savepoint(JOB, TRIGGER, str(parent) if target else "", False)
    assert parent in synced, "the JobMaster may have been lost between the rename and the sync"
    assert (status.state, status.path) == (OperationState.COMPLETED, str(parent / savepoint_name(JOB, TRIGGER)))
    with pytest.raises(JobAlreadyTerminatedError):
        await dispatcher.trigger_checkpoint(JOB, TRIGGER)
    with pytest.raises(JobAlreadyTerminatedError):
        await dispatcher.stop_with_savepoint(JOB, TriggerID.random(), str(parent), False)

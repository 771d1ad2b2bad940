"""How a JobMaster carries checkpoints out: the store, the files, the savepoints, and what a successor finds."""

from __future__ import annotations

import asyncio
import logging
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from conf.configuration import Configuration
from runtime.checkpoint.errors import SavepointError, SnapshotLostError
from runtime.checkpoint.messages import (
    AcknowledgeCheckpoint,
    CheckpointOutcome,
    CheckpointTrigger,
    OperationState,
    OperationStatus,
    SnapshotType,
    TriggerCheckpoint,
)
from runtime.checkpoint.pending import CheckpointTask, RunningTasks
from runtime.checkpoint.retained import describe_state, find_state, open_checkpoint, read_state
from runtime.checkpoint.snapshot import take_snapshot
from runtime.gateways.errors import NoSuchTaskError
from runtime.ha.checkpoint_store import CompletedCheckpoint, RetainedCheckpoints
from runtime.ha.errors import HaUnreachableError, LeadershipLostError
from runtime.ha.model import LeaderTerm
from runtime.ids import ExecutionAttemptID, JobVertexID, ResourceID, TriggerID
from runtime.jobgraph.job_graph import JobGraph, SavepointRestoreSettings
from runtime.jobmaster import checkpointing as module
from runtime.jobmaster.checkpointing import JobCheckpoints
from runtime.jobmaster.execution_state import JobStatus
from runtime.jobmaster.job_execution import current_instant
from tests.streaming_files import StreamingFiles

TERM = LeaderTerm("jobmaster-x", 1, "s")
TASK = CheckpointTask(ExecutionAttemptID.random(), JobVertexID.random(), "stream", ResourceID("tm-0"))
READY = RunningTasks((TASK,), are_ready=True, are_stateful=True)


class Endpoint:
    log = logging.getLogger("test")
    fencing_token = object()

    def spawn(self, work: Any, what: str) -> asyncio.Task[Any]:
        return asyncio.create_task(work, name=what)

    async def run_blocking(self, function: Any, *arguments: Any) -> Any:
        return await asyncio.to_thread(function, *arguments)


class Keeper:
    """The store and the counter of a job, which outlive its JobMasters; *failures* come before each success."""

    def __init__(self) -> None:
        self.retained = RetainedCheckpoints(1)
        self.count = 1
        self.failures: list[Exception] = []

    def checkpoint_recovery_factory(self) -> Keeper:
        return self

    def completed_checkpoint_store(self, job_id: str, max_retained: int) -> Keeper:
        return self

    def checkpoint_id_counter(self, job_id: str) -> Keeper:
        return self

    async def get_and_increment(self, term: LeaderTerm) -> int:
        self.count += 1
        return self.count - 1

    async def recover(self, term: LeaderTerm) -> list[CompletedCheckpoint]:
        return self.retained.kept()

    async def add(self, checkpoint_id: int, data: bytes, term: LeaderTerm) -> list[CompletedCheckpoint]:
        await asyncio.sleep(0)
        if self.failures:
            raise self.failures.pop(0)
        self.retained.check_add(checkpoint_id, data)
        self.retained.stored(checkpoint_id, data)
        left = [self.retained.left(number) for number in self.retained.leaving()]
        return [item for item in left if item is not None]


class TaskExecutor:
    """Takes snapshots when it is triggered, and says so."""

    def __init__(self, files: StreamingFiles) -> None:
        self.files = files
        self.checkpoints: JobCheckpoints | None = None
        self.refuses = False
        self.is_silent = False
        self.acks: list[AcknowledgeCheckpoint] = []
        self.outcomes: list[CheckpointOutcome] = []
        self.notified: list[tuple[str, int]] = []

    async def trigger_checkpoint(self, job_id: str, trigger: TriggerCheckpoint, token: object) -> None:
        if self.refuses:
            raise NoSuchTaskError("it does not run here")
        target = Path(trigger.directory, TASK.key, "counts")
        query = await asyncio.to_thread(take_snapshot, self.files.query, target)
        ack = AcknowledgeCheckpoint(trigger.checkpoint_id, trigger.attempt_id, trigger.trigger, (query,))
        self.acks.append(ack)
        if not self.is_silent:
            await self.acknowledge(ack)

    async def acknowledge(self, ack: AcknowledgeCheckpoint) -> CheckpointOutcome:
        assert self.checkpoints is not None
        self.outcomes.append(await self.checkpoints.acknowledge(ack))
        return self.outcomes[-1]

    def notify_checkpoint_complete(self, attempt_id: str, checkpoint_id: int) -> None:
        self.notified.append(("complete", checkpoint_id))

    def notify_checkpoint_aborted(self, attempt_id: str, checkpoint_id: int) -> None:
        self.notified.append(("aborted", checkpoint_id))


@dataclass
class Job:
    root: Path
    files: StreamingFiles
    savepoint: SavepointRestoreSettings | None = None
    keeper: Keeper = field(default_factory=Keeper)
    failures: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.manager = TaskExecutor(self.files)
        self.graph = JobGraph.for_script("stream")

    @property
    def directory(self) -> Path:
        return self.root / "checkpoints" / self.graph.job_id

    async def lead(self, **settings: str) -> JobCheckpoints:
        """A JobMaster of the job, a new one each time."""
        values = {"cluster.runtime-dir": str(self.root), **settings}
        checkpoints = JobCheckpoints(
            cast(Any, Endpoint()),
            replace(self.graph, savepoint=self.savepoint),
            TERM,
            cast(Any, self.keeper),
            Configuration.from_dict(values),
            cast(Any, SimpleNamespace(gateway=lambda resource_id: self.manager)),
            current_instant,
            self.failures.append,
        )
        assert await checkpoints.recover() == ""
        self.manager.checkpoints = checkpoints
        return checkpoints

    def kept(self) -> list[str]:
        return sorted(path.name for path in self.directory.glob("chk-*"))


@pytest.fixture
def job(tmp_path: Path) -> Job:
    files = StreamingFiles(tmp_path / "live")
    files.run(2)
    return Job(tmp_path, files)


async def until(checkpoints: JobCheckpoints, trigger: CheckpointTrigger) -> OperationStatus:
    """Ask until it is done, as a client does."""
    async with asyncio.timeout(60):
        while (status := await checkpoints.trigger(trigger)).state is OperationState.IN_PROGRESS:
            checkpoints.advance(READY)
            await asyncio.sleep(0.01)
    while checkpoints._work:
        await asyncio.wait(checkpoints._work)
    return status


def wish(kind: SnapshotType = SnapshotType.CHECKPOINT, target: Path | None = None) -> CheckpointTrigger:
    return CheckpointTrigger(TriggerID.random(), kind, "" if target is None else str(target))


async def test_the_new_checkpoint_is_stored_before_the_oldest_loses_its_files(job: Job) -> None:
    checkpoints = await job.lead()
    first = await until(checkpoints, wish())
    assert (first.state, Path(first.path).name) == (OperationState.COMPLETED, "chk-1")
    assert job.kept() == ["chk-1"]
    job.files.run(1)
    assert (await until(checkpoints, wish())).state is OperationState.COMPLETED
    assert job.kept() == ["chk-2"]
    assert job.manager.notified == [("complete", 1), ("complete", 2)]
    restore = checkpoints.restore(TASK.key)
    assert restore is not None
    assert [(query.name, query.batch_id) for query in restore.queries] == [("counts", 2)]
    assert checkpoints.restore(JobVertexID.random()) is None


async def test_a_checkpoint_that_cannot_be_stored_leaves_the_others_alone(job: Job) -> None:
    checkpoints = await job.lead()
    await until(checkpoints, wish())
    job.keeper.failures.append(OSError("no space left on the device"))
    failed = await until(checkpoints, wish())
    assert (failed.state, failed.error) == (OperationState.FAILED, "no space left on the device")
    assert job.kept() == ["chk-1"]
    assert checkpoints.restore(TASK.key) is not None


async def test_a_store_that_does_not_answer_is_asked_again(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.0)
    checkpoints = await job.lead()
    job.keeper.failures += [HaUnreachableError("redis", "gone")] * 3
    assert (await until(checkpoints, wish())).state is OperationState.COMPLETED


async def test_a_leader_that_is_none_any_more_decides_nothing(job: Job) -> None:
    checkpoints = await job.lead()
    job.keeper.failures.append(LeadershipLostError("another leads"))
    await checkpoints.trigger(wish())
    checkpoints.advance(READY)
    while checkpoints._work:
        await asyncio.wait(checkpoints._work)
    assert job.kept() == ["chk-1"], "it may be in the store"
    successor = await job.lead()
    assert job.kept() == [], "it was not"
    assert successor.restore(TASK.key) is None


async def test_a_successor_knows_what_is_stored_and_sweeps_the_rest(job: Job) -> None:
    first = await job.lead()
    await until(first, wish())
    job.manager.is_silent = True
    await first.trigger(wish())
    first.advance(READY)
    while first._work:
        await asyncio.wait(first._work)
    assert job.kept() == ["chk-1", "chk-2"]
    job.manager.is_silent = False
    second = await job.lead()
    assert job.kept() == ["chk-1"]
    assert await job.manager.acknowledge(job.manager.acks[0]) is CheckpointOutcome.COMPLETED
    assert await job.manager.acknowledge(job.manager.acks[1]) is CheckpointOutcome.ABORTED
    assert Path((await until(second, wish())).path).name == "chk-3", "no number is given out twice"


async def test_a_task_that_is_gone_declines(job: Job) -> None:
    checkpoints = await job.lead()
    job.manager.refuses = True
    failed = await until(checkpoints, wish())
    assert (failed.state, failed.error) == (OperationState.FAILED, "it does not run here")


async def test_a_savepoint_is_found_by_a_successor_and_made_once(job: Job, tmp_path: Path) -> None:
    wanted = wish(SnapshotType.SAVEPOINT_SUSPEND, tmp_path / "savepoints")
    made = await until(await job.lead(), wanted)
    assert made.state is OperationState.COMPLETED, made.error
    assert job.kept() == [], "what it was copied from"
    successor = await job.lead()
    # The TaskExecutor, too, asks again, for its answer was lost.
    assert await job.manager.acknowledge(job.manager.acks[0]) is CheckpointOutcome.COMPLETED
    again = await until(successor, wanted)
    assert (again.state, again.path) == (OperationState.COMPLETED, made.path)
    assert [path.name for path in (tmp_path / "savepoints").iterdir()] == [Path(made.path).name]


async def test_a_savepoint_goes_where_the_configuration_says(job: Job, tmp_path: Path) -> None:
    checkpoints = await job.lead(**{"execution.checkpointing.savepoint-dir": str(tmp_path / "mine")})
    made = await until(checkpoints, wish(SnapshotType.SAVEPOINT))
    assert Path(made.path).parent == tmp_path / "mine"
    blocked = tmp_path / "file"
    blocked.touch()
    failed = await until(checkpoints, wish(SnapshotType.SAVEPOINT, blocked))
    assert failed.state is OperationState.FAILED
    assert str(blocked) in failed.error


async def test_a_job_begins_from_a_savepoint_and_goes_on_from_its_own_checkpoint(job: Job, tmp_path: Path) -> None:
    made = await until(await job.lead(), wish(SnapshotType.SAVEPOINT))
    other = Job(tmp_path / "other", job.files, SavepointRestoreSettings(made.path))
    checkpoints = await other.lead()
    restore = checkpoints.restore(TASK.key)
    assert restore is not None
    assert (restore.savepoint, [query.name for query in restore.queries]) == (made.path, ["counts"])
    await until(checkpoints, wish())
    restore = checkpoints.restore(TASK.key)
    assert restore is not None
    assert (restore.savepoint, restore.checkpoint_id) == ("", 1)
    figures = checkpoints.statistics()
    assert figures.counts.restored == 2


async def test_a_damaged_savepoint_is_said_to_be_one(job: Job) -> None:
    made = await until(await job.lead(), wish(SnapshotType.SAVEPOINT))
    next(path for path in Path(made.path).rglob("offsets/*") if path.is_file()).write_text("damaged")
    job.savepoint = SavepointRestoreSettings(made.path)
    with pytest.raises(AssertionError, match="cannot be used"):
        await job.lead()


async def test_the_end_of_the_job_waits_for_what_is_written_and_removes_the_rest(job: Job) -> None:
    checkpoints = await job.lead()
    await until(checkpoints, wish())
    wanted = wish(SnapshotType.SAVEPOINT)
    await checkpoints.trigger(wanted)
    checkpoints.advance(READY)
    while not job.manager.outcomes[1:]:
        await asyncio.wait(checkpoints._work, return_when=asyncio.FIRST_COMPLETED)
    await checkpoints.finish(JobStatus.CANCELED)
    assert checkpoints.operation(wanted.trigger_id).state is OperationState.COMPLETED
    assert not job.directory.exists()


RETENTION = "execution.checkpointing.externalized-checkpoint-retention"


@pytest.mark.parametrize(
    ("retention", "kept_by"),
    [
        ("NO_EXTERNALIZED_CHECKPOINTS", set()),
        ("DELETE_ON_CANCELLATION", {JobStatus.FAILED}),
        ("RETAIN_ON_CANCELLATION", {JobStatus.FAILED, JobStatus.CANCELED}),
    ],
)
@pytest.mark.parametrize("status", [JobStatus.FINISHED, JobStatus.CANCELED, JobStatus.FAILED])
async def test_what_is_retained_is_found_by_the_job_that_begins_from_it(
    job: Job, retention: str, kept_by: set[JobStatus], status: JobStatus
) -> None:
    checkpoints = await job.lead(**{RETENTION: retention})
    for _ in range(2):
        job.files.run()
        await until(checkpoints, wish())
    (job.directory / "tasks").mkdir()
    (job.directory / "chk-9").mkdir()  # of one that came to nothing
    await checkpoints.finish(status)
    if status not in kept_by:
        assert not job.directory.exists()
        return
    assert [path.name for path in job.directory.iterdir()] == ["chk-2"]

    elsewhere = job.root / "moved"
    (job.directory / "chk-2").rename(elsewhere)
    job.graph, job.keeper, job.savepoint = (
        JobGraph.for_script("again"),
        Keeper(),
        SavepointRestoreSettings(str(elsewhere)),
    )
    later = await job.lead()
    restore = later.restore(TASK.key)
    assert restore is not None
    assert (restore.checkpoint_id, restore.savepoint) == (2, str(elsewhere))
    assert [(query.batch_id, query.path) for query in restore.queries] == [(3, str(elsewhere / TASK.key / "counts"))]
    restored = later.statistics().latest_restored
    assert restored is not None
    assert (restored.id, restored.is_savepoint) == (2, False)


async def test_a_retained_checkpoint_is_named_by_its_path_or_its_job(job: Job) -> None:
    checkpoints = await job.lead(**{"execution.checkpointing.num-retained": "1"})
    await until(checkpoints, wish())
    of_all, job_id = job.root / "checkpoints", job.graph.job_id
    directory = job.directory / "chk-1"
    assert find_state(job_id, of_all) == find_state(f"{job_id}/chk-1", of_all) == find_state(str(directory), of_all)
    for unknown in (f"{job_id}/chk-7", "0" * 32):
        with pytest.raises(SnapshotLostError, match=f"there is no checkpoint {unknown}"):
            find_state(unknown, of_all)
    with pytest.raises(SavepointError, match="is no savepoint"):
        read_state(job.root)


async def test_a_retained_checkpoint_that_is_not_whole_is_refused(job: Job) -> None:
    checkpoints = await job.lead(**{RETENTION: "RETAIN_ON_CANCELLATION"})
    await until(checkpoints, wish())
    await checkpoints.finish(JobStatus.CANCELED)
    directory = job.directory / "chk-1"
    assert [query.name for query in describe_state(directory)] == ["counts"]
    next(directory.rglob("*.delta")).unlink()
    with pytest.raises(SnapshotLostError, match="is not whole"):
        open_checkpoint(directory)
    (directory / "_metadata").write_text("{}")
    with pytest.raises(SnapshotLostError, match="is damaged"):
        read_state(directory)


async def test_a_job_goes_back_until_a_later_checkpoint_stands_for_itself(job: Job, tmp_path: Path) -> None:
    checkpoints = await job.lead(**{"execution.checkpointing.num-retained": "1"})
    await until(checkpoints, wish())
    await checkpoints.roll_back(TriggerID("a" * 32), "1", False)
    for leader in (checkpoints, None):
        if leader is None:  # whoever leads next
            leader = await job.lead()
            assert await leader.recover(checkpoints.rollback) == ""
        restore = leader.restore(TASK.key)
        assert restore is not None
        assert (restore.checkpoint_id, restore.rollback, restore.new_query_id) == (1, "a" * 32, False)
        assert [(query.name, query.batch_id) for query in restore.queries] == [("counts", 1)]
        job.manager.checkpoints = checkpoints

    job.files.run(2)
    await until(checkpoints, wish())
    assert job.kept() == ["chk-2"], "what it has gone back to is subsumed"
    again = checkpoints.restore(TASK.key)
    assert again is not None
    assert (again.checkpoint_id, again.rollback) == (2, "")

    made = await until(checkpoints, wish(SnapshotType.SAVEPOINT, tmp_path / "kept"))
    await checkpoints.roll_back(TriggerID("b" * 32), made.path, True)
    restore = checkpoints.restore(TASK.key)
    assert restore is not None
    assert (restore.checkpoint_id, restore.new_query_id, restore.queries[0].batch_id) == (0, True, 3)
    restored = checkpoints.statistics().latest_restored
    assert restored is not None
    assert (restored.external_path, restored.is_savepoint) == (made.path, True)
    assert [path.name for path in job.directory.glob("rollback-*")] == [f"rollback-{'b' * 12}"], "one is kept"

    # Disposed of, it is still there for whoever leads next; and is not needed once a checkpoint stands for itself.
    shutil.rmtree(made.path)
    later = await job.lead()
    assert await later.recover(checkpoints.rollback) == ""
    assert later.restore(TASK.key) == restore
    job.manager.checkpoints = checkpoints
    job.files.run(1)
    await until(checkpoints, wish())
    shutil.rmtree(restore.savepoint)
    last = await job.lead()
    assert await last.recover(checkpoints.rollback) == ""
    latest = last.restore(TASK.key)
    assert latest is not None
    assert (latest.checkpoint_id, latest.rollback, last.rollback) == (4, "", checkpoints.rollback)


async def test_a_job_goes_back_to_what_is_its_own_and_whole(job: Job, tmp_path: Path) -> None:
    checkpoints = await job.lead()
    await until(checkpoints, wish())
    made = await until(checkpoints, wish(SnapshotType.SAVEPOINT, tmp_path / "kept"))
    for target, why in (("chk-7", "is no savepoint"), (str(tmp_path), "is no savepoint")):
        with pytest.raises(SavepointError, match=why):
            await checkpoints.roll_back(TriggerID.random(), target, False)
    next(path for path in job.files.sink.glob("part-*")).unlink()
    with pytest.raises(SnapshotLostError, match="its file sink has lost"):
        await checkpoints.roll_back(TriggerID.random(), "chk-1", False)
    job.graph, job.keeper = JobGraph.for_script("other"), Keeper()
    with pytest.raises(SavepointError, match="is of job"):
        await (await job.lead()).roll_back(TriggerID.random(), made.path, False)
    assert checkpoints.rollback is None

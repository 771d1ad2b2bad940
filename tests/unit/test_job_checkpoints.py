"""How a JobMaster carries checkpoints out: the store, the files, the savepoints, and what a successor finds."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import logging
import os
import shutil
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import fsspec
import pytest

from actors.errors import FencingError
from conf.configuration import Configuration
from conf.files import make_private
from runtime.checkpoint import remote_files
from runtime.checkpoint.coordinator import CheckpointTask, RunningTasks
from runtime.checkpoint.errors import CheckpointError, SavepointError, SnapshotLostError
from runtime.checkpoint.handover import LATER_S, SOON_S, pause_s, read_handover
from runtime.checkpoint.remote_savepoint import dispose_at, verify_at
from runtime.checkpoint.retained import (
    describe_state,
    find_state,
    open_checkpoint,
    read_checkpoint,
    read_state,
    verify_state,
    write_metadata,
)
from runtime.checkpoint.savepoint import SavepointJob, read_savepoint, verify_savepoint, write_savepoint
from runtime.checkpoint.snapshot import take_snapshot
from runtime.checkpoint.task_restore import TaskRestore
from runtime.ha.checkpoint_store import CompletedCheckpoint, RetainedCheckpoints
from runtime.ha.errors import HaUnreachableError, LeadershipLostError
from runtime.ha.running_jobs import JobEntry, JobSchedulingStatus
from runtime.ids import ExecutionAttemptID, JobID, JobVertexID, ResourceID, TriggerID
from runtime.jobgraph.job_graph import JobGraph, SavepointRestoreSettings
from runtime.jobmaster import checkpointing, savepoints
from runtime.jobmaster.checkpointing import REMOVED, JobCheckpoints
from runtime.jobmaster.endpoint import current_instant
from runtime.jobmaster.savepoints import SavepointWriter
from runtime.protocol.checkpoint_statistics import CheckpointStatsCounts
from runtime.protocol.checkpoints import (
    NO_TOTALS,
    AcknowledgeCheckpoint,
    CheckpointOutcome,
    CheckpointTotals,
    CheckpointTrigger,
    DeclineCheckpoint,
    JobManagerTaskRestore,
    OperationState,
    OperationStatus,
    SnapshotType,
    TriggerCheckpoint,
)
from runtime.protocol.errors import NoSuchTaskError, UnknownOperationError
from runtime.protocol.execution_state import JobStatus
from runtime.protocol.leader import LeaderTerm
from runtime.protocol.query_snapshot import NOTHING_COMMITTED, QueryLocation
from tests.streaming_files import StreamingFiles
from tests.waiting import AT_ONCE, PATIENCE_S

TERM = LeaderTerm("jobmaster-x", 1, "s")
TASK = CheckpointTask(ExecutionAttemptID.random(), JobVertexID.random(), "stream", ResourceID("tm-0"))
READY = RunningTasks((TASK,), are_ready=True, are_stateful=True)


class Endpoint:
    log = logging.getLogger("test")

    def __init__(self) -> None:
        self.leads = True

    def act(self, term: LeaderTerm) -> LeaderTerm:
        if not self.leads:
            raise FencingError("its lease may be over")
        return term

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
        self.jobs: dict[str, JobEntry] = {}
        self.is_open = asyncio.Event()
        """Checkpoints are stored only while this is set."""
        self.is_open.set()
        self.adds = asyncio.Event()

    def running_jobs_registry(self) -> Keeper:
        return self

    async def entry(self, job_id: str) -> JobEntry | None:
        return self.jobs.get(job_id)

    def checkpoint_recovery_factory(self) -> Keeper:
        return self

    def completed_checkpoint_store(self, job_id: str, max_retained: int) -> Keeper:
        return self

    def checkpoint_id_counter(self, job_id: str) -> Keeper:
        return self

    async def get_and_increment(self, term: LeaderTerm) -> int:
        self.count += 1
        return self.count - 1

    async def get(self) -> int:
        return self.count

    async def set_count(self, count: int, term: LeaderTerm) -> None:
        self.count = count

    async def recover(self, term: LeaderTerm) -> list[CompletedCheckpoint]:
        return self.retained.kept()

    async def add(
        self, checkpoint_id: int, data: bytes, term: LeaderTerm, needed: Collection[int] = ()
    ) -> list[CompletedCheckpoint]:
        await asyncio.sleep(0)
        if self.failures:
            raise self.failures.pop(0)
        self.adds.set()
        await self.is_open.wait()
        self.retained.check_add(checkpoint_id, data)
        self.retained.stored(checkpoint_id, data, needed)
        left = [self.retained.left(number) for number in self.retained.leaving()]
        return [item for item in left if item is not None]


class TaskExecutor:
    """Takes snapshots when it is triggered, and says so."""

    def __init__(self, files: StreamingFiles) -> None:
        self.files = files
        self.checkpoints: JobCheckpoints | None = None
        self.refuses = False
        self.loaded = NOTHING_COMMITTED
        self.is_silent = False
        self.asked: Callable[[], None] = lambda: None
        self.acks: list[AcknowledgeCheckpoint] = []
        self.outcomes: list[CheckpointOutcome] = []
        self.acknowledged = asyncio.Event()
        self.notified: list[tuple[str, int]] = []

    async def trigger_checkpoint(self, job_id: str, trigger: TriggerCheckpoint) -> None:
        if self.refuses:
            raise NoSuchTaskError("it does not run here")
        assert Path(trigger.directory).is_dir()
        target = Path(trigger.directory, TASK.key, "counts")
        query = await asyncio.to_thread(take_snapshot, self.files.query, target, loaded=self.loaded)
        ack = AcknowledgeCheckpoint(trigger.checkpoint_id, trigger.attempt_id, trigger.trigger, (query,))
        self.acks.append(ack)
        self.asked()
        if not self.is_silent:
            await self.acknowledge(ack)

    async def acknowledge(self, ack: AcknowledgeCheckpoint) -> CheckpointOutcome:
        assert self.checkpoints is not None
        self.outcomes.append(await self.checkpoints.acknowledge(ack))
        self.acknowledged.set()
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
    term: LeaderTerm = TERM
    endpoint: Endpoint = field(default_factory=Endpoint)
    totals: CheckpointTotals = NO_TOTALS
    changes: int = 0

    def __post_init__(self) -> None:
        self.manager = TaskExecutor(self.files)
        self.graph = JobGraph.for_script("stream")

    @property
    def directory(self) -> Path:
        return self.root / "checkpoints" / self.graph.job_id

    async def lead(self, *, is_new: bool = False, **settings: str) -> JobCheckpoints:
        """A JobMaster of the job, a new one each time."""
        values = {"cluster.runtime-dir": str(self.root), **settings}
        checkpoints = JobCheckpoints(
            cast(Any, self.endpoint),
            replace(self.graph, savepoint=self.savepoint),
            self.term,
            cast(Any, self.keeper),
            Configuration.from_dict(values),
            cast(Any, SimpleNamespace(gateway=lambda resource_id: self.manager)),
            current_instant,
            self.failures.append,
            self.cancel,
            self.written,
            self.changed,
        )
        assert await checkpoints.recover(None, self.totals, is_new=is_new) == ""
        self.manager.checkpoints = checkpoints
        return checkpoints

    def changed(self) -> None:
        self.changes += 1

    def cancel(self) -> None:
        self.manager.notified.append(("cancel", 0))

    async def written(self) -> None:
        assert self.manager.checkpoints is not None
        self.totals = self.manager.checkpoints.totals

    def kept(self) -> list[str]:
        return sorted(path.name for path in self.directory.glob("chk-*"))


@pytest.fixture
def job(tmp_path: Path) -> Job:
    files = StreamingFiles(tmp_path / "live")
    files.run(2)
    return Job(tmp_path, files)


async def until(
    checkpoints: JobCheckpoints, trigger: CheckpointTrigger, running: RunningTasks | None = None
) -> OperationStatus:
    """Ask until it is done, as a client does."""
    async with asyncio.timeout(PATIENCE_S):
        while (status := await checkpoints.trigger(trigger)).state is OperationState.IN_PROGRESS:
            checkpoints.advance(running or READY)
            await asyncio.sleep(0.01)
    while checkpoints._work:
        await asyncio.wait(checkpoints._work)
    return status


def request(kind: SnapshotType = SnapshotType.CHECKPOINT, target: Path | None = None) -> CheckpointTrigger:
    return CheckpointTrigger(TriggerID.random(), kind, "" if target is None else str(target))


async def test_the_last_checkpoint_that_was_loaded_is_kept_until_a_newer_one_is(job: Job) -> None:
    checkpoints = await job.lead()
    await until(checkpoints, request())
    job.manager.loaded = 1  # the query was restarted, and has committed nothing since
    for kept in (["chk-1", "chk-2"], ["chk-1", "chk-3"]):
        assert (await until(checkpoints, request())).state is OperationState.COMPLETED
        assert job.kept() == kept
    successor = await job.lead()
    restore = await successor.restore(TASK.key)
    assert restore is not None
    assert (restore.checkpoint_id, [item.checkpoint_id for item in restore.earlier]) == (3, [1])
    assert [query.is_proven for item in restore.earlier for query in item.queries] == [True]
    job.files.run(1)
    await until(successor, request())
    assert job.kept() == ["chk-4"]
    restore = await successor.restore(TASK.key)
    assert restore is not None
    assert restore.earlier == ()


async def test_the_new_checkpoint_is_stored_before_the_oldest_loses_its_files(job: Job) -> None:
    checkpoints = await job.lead()
    first = await until(checkpoints, request())
    assert (first.state, Path(first.path).name) == (OperationState.COMPLETED, "chk-1")
    assert job.kept() == ["chk-1"]
    job.files.run(1)
    assert (await until(checkpoints, request())).state is OperationState.COMPLETED
    assert job.kept() == ["chk-2"]
    assert job.manager.notified == [("complete", 1), ("complete", 2)]
    restore = await checkpoints.restore(TASK.key)
    assert restore is not None
    assert [(query.name, query.batch_id) for query in restore.queries] == [("counts", 2)]
    assert await checkpoints.restore(JobVertexID.random()) is None


@pytest.mark.parametrize("stores", [True, False], ids=["is stored", "cannot be stored"])
async def test_a_task_restarts_only_when_it_is_known_whether_a_checkpoint_is_stored(job: Job, stores: bool) -> None:
    """Else the restart goes back to the checkpoint before, and removes files that the sink of the new one needs."""
    checkpoints = await job.lead()
    await until(checkpoints, request())
    job.files.run(1)
    job.keeper.is_open.clear()
    job.keeper.adds.clear()
    await checkpoints.trigger(request())
    checkpoints.advance(READY)
    await asyncio.wait_for(job.keeper.adds.wait(), PATIENCE_S)
    restoring = asyncio.create_task(checkpoints.restore(TASK.key))
    assert await asyncio.wait({restoring}, timeout=0.05) == (set(), {restoring})
    if not stores:
        job.keeper.retained.found([CompletedCheckpoint(9, b"a later one")])
    job.keeper.is_open.set()
    restore = await restoring
    assert restore is not None
    assert restore.checkpoint_id == (2 if stores else 1)


@dataclass
class Held:
    """A function that waits before it returns, in the thread that has called it."""

    reached: asyncio.Event
    goes_on: threading.Event

    @classmethod
    @contextlib.contextmanager
    def at(cls, monkeypatch: pytest.MonkeyPatch, place: object, name: str) -> Iterator[Held]:
        """Hold a function of *place* until the end of the block, in all threads."""
        held, loop, function = cls(asyncio.Event(), threading.Event()), asyncio.get_running_loop(), getattr(place, name)

        def call(*arguments: Any, **named: Any) -> Any:
            result = function(*arguments, **named)
            loop.call_soon_threadsafe(held.reached.set)
            held.goes_on.wait(PATIENCE_S)
            return result

        monkeypatch.setattr(place, name, call)
        try:
            yield held
        finally:
            held.goes_on.set()


async def test_a_savepoint_of_batches_that_a_rollback_abandons_is_made_again(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the job would end with a savepoint that names files which the rollback has removed from the sink."""
    checkpoints = await job.lead()
    await until(checkpoints, request())
    job.files.run(1)
    wanted = request(SnapshotType.SAVEPOINT_CANCEL, tmp_path / "savepoints")
    with Held.at(monkeypatch, savepoints.TaskRestores, "prepare") as held:
        rolling_back = asyncio.create_task(checkpoints.roll_back(TriggerID("a" * 32), "1", False))
        await asyncio.wait_for(held.reached.wait(), PATIENCE_S)
        job.manager.acknowledged.clear()
        await checkpoints.trigger(wanted)
        checkpoints.advance(READY)
        await asyncio.wait_for(job.manager.acknowledged.wait(), PATIENCE_S)
        job.manager.is_silent = True
    await rolling_back
    await _assert_made_again(job, checkpoints, wanted)


@pytest.mark.parametrize("is_copied", [False, True])
async def test_a_savepoint_is_made_again_if_a_task_restarts_while_it_is_written(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_copied: bool
) -> None:
    """The task may have lost its location, and go back to the checkpoint before."""
    copied, is_written, write = asyncio.Event(), asyncio.Event(), job.written

    async def written() -> None:
        copied.set()
        await is_written.wait()
        await write()

    monkeypatch.setattr(job, "written", written)
    checkpoints = await job.lead()
    await until(checkpoints, request())
    job.files.run(1)
    wanted = request(SnapshotType.SAVEPOINT_CANCEL, tmp_path / "savepoints")
    with contextlib.nullcontext() if is_copied else Held.at(monkeypatch, savepoints, "write_savepoint") as held:
        await checkpoints.trigger(wanted)
        checkpoints.advance(READY)
        await asyncio.wait_for((copied if held is None else held.reached).wait(), PATIENCE_S)
        await asyncio.wait_for(checkpoints.restore(TASK.key), PATIENCE_S)
        job.manager.is_silent = True
        is_written.set()
    await _assert_made_again(job, checkpoints, wanted)


async def _assert_made_again(job: Job, checkpoints: JobCheckpoints, wanted: CheckpointTrigger) -> None:
    """Check that savepoint 2 is given up without a trace, and that savepoint 3 cancels the job."""
    while checkpoints._work:
        await asyncio.wait(checkpoints._work)
    assert list(Path(wanted.target).glob("*")) == []
    assert job.manager.notified[-1] == ("aborted", 2)
    assert checkpoints.operation(wanted.trigger_id).state is OperationState.IN_PROGRESS
    assert ("cancel", 0) not in job.manager.notified
    assert await job.manager.acknowledge(job.manager.acks[2]) is CheckpointOutcome.PENDING
    made = await until(checkpoints, wanted)
    assert (made.state, made.checkpoint_id) == (OperationState.COMPLETED, 3)
    assert job.manager.notified[-2:] == [("cancel", 0), ("complete", 3)]


async def test_a_task_restarts_after_a_savepoint_that_is_being_published(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing can call it back then, so it is complete before the task may remove files that it names."""
    checkpoints = await job.lead()
    await until(checkpoints, request())
    wanted = request(SnapshotType.SAVEPOINT, tmp_path / "savepoints")
    with Held.at(monkeypatch, SavepointWriter, "publish") as held:
        await checkpoints.trigger(wanted)
        checkpoints.advance(READY)
        await asyncio.wait_for(held.reached.wait(), PATIENCE_S)
        restoring = asyncio.create_task(checkpoints.restore(TASK.key))
        assert await asyncio.wait({restoring}, timeout=0.05) == (set(), {restoring})
    await asyncio.wait_for(restoring, PATIENCE_S)
    assert checkpoints.operation(wanted.trigger_id).state is OperationState.COMPLETED


async def test_a_job_that_must_not_go_back_any_more_does_not(job: Job) -> None:
    checkpoints = await job.lead()
    await until(checkpoints, request())

    def check() -> None:
        raise CheckpointError("the job is CANCELLING")

    with pytest.raises(CheckpointError, match="CANCELLING"):
        await checkpoints.roll_back(TriggerID("a" * 32), "1", False, check)
    assert checkpoints.rollback is None, "a request that is repeated is not answered as if it were done"


async def test_time_matters_while_a_checkpoint_is_asked_for_or_under_way_or_due_now_and_then(job: Job) -> None:
    checkpoints = await job.lead()
    assert (checkpoints.next_deadline(), checkpoints.is_idle) == (None, True)
    began = current_instant().monotonic_s
    await checkpoints.trigger(request())
    assert not checkpoints.is_idle
    assert_close(checkpoints.next_deadline(), began + 600.0)
    job.manager.is_silent = True
    checkpoints.advance(READY)
    while checkpoints._work:
        await asyncio.wait(checkpoints._work)
    assert_close(checkpoints.next_deadline(), began + 600.0)
    assert job.changes > 0
    await job.manager.acknowledge(job.manager.acks.pop())
    while checkpoints._work:
        await asyncio.wait(checkpoints._work)
    assert (checkpoints.next_deadline(), checkpoints.is_idle) == (None, True)
    began = current_instant().monotonic_s
    periodic = await job.lead(**{"execution.checkpointing.interval": "1 min"})
    assert periodic.next_deadline() is None, "none is due before the tasks run"
    assert not periodic.is_idle
    periodic.advance(READY)
    assert_close(periodic.next_deadline(), began + 60.0)
    periodic.close()
    assert (periodic.next_deadline(), periodic.is_idle) == (None, True)


def assert_close(deadline: float | None, expected: float) -> None:
    """See that a deadline is *expected*, but for the time that the test itself takes."""
    assert deadline is not None
    assert expected <= deadline < expected + PATIENCE_S / 12


async def test_a_checkpoint_whose_directory_cannot_be_made_fails(job: Job) -> None:
    checkpoints = await job.lead()
    job.directory.parent.write_text("a file")
    failed = await until(checkpoints, request())
    assert failed.state is OperationState.FAILED
    assert f"{job.directory / 'chk-1'} cannot be made: " in failed.error
    job.directory.parent.unlink()
    assert (await until(checkpoints, request())).state is OperationState.COMPLETED


async def test_the_directory_of_a_checkpoint_that_ends_while_it_is_made_does_not_stay(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints, run_blocking = await job.lead(), job.endpoint.run_blocking

    async def ended_meanwhile(function: Any, *arguments: Any) -> Any:
        if getattr(function, "func", None) is not make_private:
            return await run_blocking(function, *arguments)
        checkpoints.decline(DeclineCheckpoint(1, TASK.attempt_id, "it has ended"))
        await asyncio.wait(checkpoints._work - {asyncio.current_task()})  # the removal of its files
        await run_blocking(function, *arguments)
        assert job.kept() == ["chk-1"]
        return None

    monkeypatch.setattr(job.endpoint, "run_blocking", ended_meanwhile)
    assert (await until(checkpoints, request())).error == "it has ended"
    assert (job.kept(), job.manager.acks) == ([], [])


async def test_a_checkpoint_that_cannot_be_stored_leaves_the_others_alone(job: Job) -> None:
    checkpoints = await job.lead()
    await until(checkpoints, request())
    job.keeper.failures.append(OSError("no space left on the device"))
    failed = await until(checkpoints, request())
    assert (failed.state, failed.error) == (OperationState.FAILED, "no space left on the device")
    assert job.kept() == ["chk-1"]
    assert await checkpoints.restore(TASK.key) is not None


async def test_a_store_that_does_not_answer_is_asked_again(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.retry.SOON", AT_ONCE)
    checkpoints = await job.lead()
    job.keeper.failures += [HaUnreachableError("redis", "gone")] * 3
    assert (await until(checkpoints, request())).state is OperationState.COMPLETED


async def test_a_leader_that_is_none_any_more_decides_nothing(job: Job) -> None:
    checkpoints = await job.lead()
    job.keeper.failures.append(LeadershipLostError("another leads"))
    await checkpoints.trigger(request())
    checkpoints.advance(READY)
    while checkpoints._work:
        await asyncio.wait(checkpoints._work)
    assert job.kept() == ["chk-1"], "it may be in the store"
    successor = await job.lead()
    assert job.kept() == [], "it was not"
    assert await successor.restore(TASK.key) is None


async def test_a_successor_knows_what_is_stored_and_sweeps_the_rest(job: Job) -> None:
    first = await job.lead()
    await until(first, request())
    job.manager.is_silent = True
    await first.trigger(request())
    first.advance(READY)
    while first._work:
        await asyncio.wait(first._work)
    assert job.kept() == ["chk-1", "chk-2"]
    job.manager.is_silent = False
    second = await job.lead()
    assert job.kept() == ["chk-1"]
    assert await job.manager.acknowledge(job.manager.acks[0]) is CheckpointOutcome.COMPLETED
    assert await job.manager.acknowledge(job.manager.acks[1]) is CheckpointOutcome.ABORTED
    assert Path((await until(second, request())).path).name == "chk-3", "no number is given out twice"


@pytest.mark.parametrize("data", [None, b"of another version"], ids=["damaged", "other"])
async def test_a_stored_checkpoint_that_cannot_be_read_does_not_keep_later_ones_away(
    job: Job, data: bytes | None
) -> None:
    job.keeper.retained = RetainedCheckpoints(2)
    first = await job.lead()
    await until(first, request())
    await until(first, request())
    whole, broken = job.keeper.retained.kept()
    job.keeper.retained.found([whole, CompletedCheckpoint(broken.checkpoint_id, data)])
    successor = await job.lead()
    assert job.kept() == ["chk-1", "chk-2"], "what is in the store keeps its files"
    assert successor.statistics().counts == CheckpointStatsCounts(restored=0, total=2, completed=2)
    restore = await successor.restore(TASK.key)
    assert restore is not None
    assert restore.checkpoint_id == 1
    for _ in range(2):
        assert (await until(successor, request())).state is OperationState.COMPLETED
    assert job.kept() == ["chk-3", "chk-4"]


async def test_the_counters_go_on_from_those_of_the_former_job_master(job: Job) -> None:
    checkpoints = await job.lead()
    for kind in (SnapshotType.CHECKPOINT, SnapshotType.SAVEPOINT, SnapshotType.CHECKPOINT):
        assert (await until(checkpoints, request(kind))).state is OperationState.COMPLETED
    job.manager.refuses = True
    assert (await until(checkpoints, request())).state is OperationState.FAILED
    job.manager.refuses, job.manager.is_silent = False, True
    await checkpoints.restore(TASK.key)
    await job.written()  # as at the deployment of what is restored
    await checkpoints.trigger(request())
    checkpoints.advance(READY)
    while checkpoints._work:
        await asyncio.wait(checkpoints._work)
    before = checkpoints.statistics().counts
    assert before == CheckpointStatsCounts(restored=1, total=5, in_progress=1, completed=3, failed=1)

    job.manager.is_silent = False
    successor = await job.lead()
    after = successor.statistics().counts
    assert after == CheckpointStatsCounts(restored=1, total=5, in_progress=0, completed=3, failed=2)
    await until(successor, request())
    # What is stored with a checkpoint needs no other write: a journal that is behind takes nothing back.
    job.totals = CheckpointTotals()
    third = await job.lead()
    assert third.statistics().counts == CheckpointStatsCounts(1, 6, 0, 4, 2)


async def test_a_job_master_that_may_not_lead_any_more_sweeps_nothing(job: Job) -> None:
    """It stood still while it took over: what it finds then may be its successor's."""
    job.manager.is_silent = True
    present = await job.lead()
    await present.trigger(request())
    present.advance(READY)
    while present._work:
        await asyncio.wait(present._work)
    job.endpoint = Endpoint()
    job.endpoint.leads = False
    with pytest.raises(FencingError):
        await job.lead()
    assert job.kept() == ["chk-1"]


async def test_a_task_that_is_gone_declines(job: Job) -> None:
    checkpoints = await job.lead()
    job.manager.refuses = True
    failed = await until(checkpoints, request())
    assert (failed.state, failed.error) == (OperationState.FAILED, "it does not run here")


async def test_a_savepoint_is_found_by_a_successor_and_made_once(job: Job, tmp_path: Path) -> None:
    wanted = request(SnapshotType.SAVEPOINT_SUSPEND, tmp_path / "savepoints")
    made = await until(await job.lead(), wanted)
    assert made.state is OperationState.COMPLETED, made.error
    assert job.kept() == [], "what it was copied from"
    successor = await job.lead()
    # The TaskExecutor, too, asks again, for its answer was lost.
    assert await job.manager.acknowledge(job.manager.acks[0]) is CheckpointOutcome.COMPLETED
    again = await until(successor, wanted)
    assert (again.state, again.path) == (OperationState.COMPLETED, made.path)
    assert [path.name for path in (tmp_path / "savepoints").iterdir()] == [Path(made.path).name]


async def test_a_successor_that_is_asked_for_a_savepoint_again_finds_it(job: Job, tmp_path: Path) -> None:
    wanted = request(SnapshotType.SAVEPOINT, tmp_path / "savepoints")
    made = await until(await job.lead(), wanted)
    again = await (await job.lead()).trigger(wanted)
    assert (again.state, again.path) == (OperationState.COMPLETED, made.path)


async def test_a_thawed_job_master_leaves_the_savepoint_of_its_successor_alone(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have copied the files and stand before the last step; the former one is the first to go on."""
    held: list[threading.Event] = []
    copied: asyncio.Queue[int] = asyncio.Queue()
    loop, write = asyncio.get_running_loop(), savepoints.write_savepoint

    def write_and_wait(*arguments: Any, **named: Any) -> Any:
        made = write(*arguments, **named)
        held.append(threading.Event())
        loop.call_soon_threadsafe(copied.put_nowait, len(held))
        held[-1].wait(PATIENCE_S)
        return made

    monkeypatch.setattr(savepoints, "write_savepoint", write_and_wait)
    wanted = request(SnapshotType.SAVEPOINT, tmp_path / "savepoints")
    try:
        former, endpoint = await job.lead(), job.endpoint
        await former.trigger(wanted)
        former.advance(READY)
        await copied.get()

        job.term, job.endpoint, endpoint.leads = replace(TERM, epoch=TERM.epoch + 1), Endpoint(), False
        successor = await job.lead()
        await successor.trigger(wanted)
        successor.advance(READY)
        await copied.get()
        held[0].set()
        while former._work:
            await asyncio.wait(former._work)
        assert former.operation(wanted.trigger_id).state is OperationState.IN_PROGRESS, "it decides nothing"
        assert [path.name for path in (tmp_path / "savepoints").glob("savepoint-*")] == []
    finally:
        for event in held:
            event.set()
    made = await until(successor, wanted)
    assert (made.state, made.error) == (OperationState.COMPLETED, "")
    assert verify_savepoint(Path(made.path)) == []
    assert [path.name for path in (tmp_path / "savepoints").iterdir()] == [Path(made.path).name], "nothing is left"


async def test_requests_whose_ids_are_counted_make_a_savepoint_each(job: Job, tmp_path: Path) -> None:
    checkpoints = await job.lead()
    ids = [TriggerID(f"{number:032x}") for number in (1, 2)]
    target = str(tmp_path / "savepoints")
    first = await until(checkpoints, CheckpointTrigger(ids[0], SnapshotType.SAVEPOINT, target))
    job.files.run(3)
    last = await until(checkpoints, CheckpointTrigger(ids[1], SnapshotType.SAVEPOINT_CANCEL, target))
    assert [read_savepoint(Path(made.path)).queries[0].snapshot.batch_id for made in (first, last)] == [1, 4]
    again = await job.lead()
    for trigger_id, made in zip(ids, (first, last), strict=True):
        status = await again.trigger(CheckpointTrigger(trigger_id, SnapshotType.SAVEPOINT, target))
        assert (status.state, status.path) == (OperationState.COMPLETED, made.path)


async def test_a_rollback_keeps_its_files_if_the_next_one_of_a_similar_id_fails(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = await job.lead()
    made = await until(checkpoints, request())
    await checkpoints.roll_back(TriggerID(f"{1:032x}"), made.path, False)

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(savepoints, "take_files", fail)
    with pytest.raises(CheckpointError):
        await checkpoints.roll_back(TriggerID(f"{2:032x}"), made.path, False)
    pinned = job.directory / f"rollback-{1:032x}-1"
    assert open_checkpoint(pinned).queries[0].batch_id == 1


async def test_a_savepoint_that_is_begun_takes_away_what_former_job_masters_were_writing(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that whoever stands still just before the last step cannot do it any more."""
    wanted = request(SnapshotType.SAVEPOINT, tmp_path / "savepoints")
    writer = SavepointWriter(job.graph, Configuration.from_dict({}))
    files = take_snapshot(job.files.query, tmp_path / "chk-1" / "counts")
    metadata = cast(Any, SimpleNamespace(queries=(files,)))
    part = writer.copy(wanted, metadata, 1, lambda: True)
    assert writer.find(wanted) == ""
    latest = writer.copy(wanted, metadata, 2, lambda: True)
    with pytest.raises(FileNotFoundError):
        writer.publish(wanted, part)
    writer.discard(wanted, writer.copy(wanted, metadata, 1, lambda: True))  # by the former one: the latest stays
    assert verify_savepoint(Path(writer.publish(wanted, latest))) == []
    # One that nobody wants any more when it is copied is removed.
    unwanted = request(SnapshotType.SAVEPOINT, tmp_path / "savepoints")
    writer.copy(unwanted, metadata, 3, lambda: False)
    assert [str(path) for path in (tmp_path / "savepoints").iterdir()] == [writer.find(wanted)]


@pytest.mark.parametrize("owner", ["ada", ""])
async def test_a_savepoint_names_the_owner_of_its_job(job: Job, tmp_path: Path, owner: str) -> None:
    wanted = request(SnapshotType.SAVEPOINT, tmp_path / "savepoints")
    writer = SavepointWriter(replace(job.graph, owner=owner), Configuration.from_dict({}))
    files = take_snapshot(job.files.query, tmp_path / "chk-1" / "counts")
    made = writer.copy(wanted, cast(Any, SimpleNamespace(queries=(files,))), 1, lambda: True)
    found = read_savepoint(Path(writer.publish(wanted, made))).job
    assert (found.id, found.name, found.owner) == (job.graph.job_id, job.graph.name, owner)


async def test_a_savepoint_that_a_former_job_master_publishes_at_the_last_moment_is_taken_over(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A savepoint of a former JobMaster is published after this one has looked for it, and before it begins its own."""
    wanted = request(SnapshotType.SAVEPOINT, tmp_path / "savepoints")
    former = SavepointWriter(job.graph, Configuration.from_dict({}))
    files = take_snapshot(job.files.query, tmp_path / "chk-1" / "counts")
    made = former.copy(wanted, cast(Any, SimpleNamespace(queries=(files,))), 1, lambda: True)
    checkpoints, copy = await job.lead(), SavepointWriter.copy

    def publish_first(writer: SavepointWriter, *arguments: Any) -> Path:
        former.publish(wanted, made)
        return copy(writer, *arguments)

    monkeypatch.setattr(SavepointWriter, "copy", publish_first)
    status = await until(checkpoints, wanted)
    assert (status.state, status.error) == (OperationState.COMPLETED, "")
    assert verify_savepoint(Path(status.path)) == []
    assert [path.name for path in (tmp_path / "savepoints").iterdir()] == [Path(status.path).name], "nothing is left"


async def test_a_savepoint_goes_where_the_configuration_says(job: Job, tmp_path: Path) -> None:
    checkpoints = await job.lead(**{"execution.checkpointing.savepoint-dir": str(tmp_path / "mine")})
    made = await until(checkpoints, request(SnapshotType.SAVEPOINT))
    assert Path(made.path).parent == tmp_path / "mine"
    blocked = tmp_path / "file"
    blocked.touch()
    failed = await until(checkpoints, request(SnapshotType.SAVEPOINT, blocked))
    assert failed.state is OperationState.FAILED
    assert str(blocked) in failed.error


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A remote file system in the memory of this process, which is an object store."""
    monkeypatch.setattr(remote_files, "_PRIVATE_TO_A_PROCESS", frozenset())
    monkeypatch.setattr("blob.fsspec_store.OBJECT_STORES", frozenset({"memory"}))
    memory = fsspec.filesystem("memory")
    yield "memory://bucket/savepoints"
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]


async def test_a_savepoint_in_a_remote_file_system(job: Job, tmp_path: Path, url: str) -> None:
    checkpoints = await job.lead()
    await until(checkpoints, request())
    made = await until(checkpoints, replace(request(SnapshotType.SAVEPOINT), target=url))
    assert (made.state, made.error) == (OperationState.COMPLETED, "")
    assert (made.path.startswith(f"{url}/savepoint-"), verify_at(made.path)) == (True, [])
    assert sorted(path.name for path in job.directory.iterdir()) == ["chk-1"], "no copy is left here"

    # A job starts from it, and this one is rolled back to it; both also once it is gone.
    other = Job(tmp_path / "other", job.files, SavepointRestoreSettings(made.path))
    begun = await other.lead()
    restore = await begun.restore(TASK.key)
    assert restore is not None
    assert (restore.savepoint, [query.name for query in restore.queries]) == (made.path, ["counts"])
    await checkpoints.roll_back(TriggerID("b" * 32), made.path, False)
    restored = await checkpoints.restore(TASK.key)
    assert restored is not None
    assert Path(restored.queries[0].path).is_relative_to(job.directory / f"rollback-{'b' * 32}-1")
    assert checkpoints.statistics().rolled_back_to == made.path
    assert dispose_at(made.path)
    await checkpoints.roll_back(TriggerID("b" * 32), made.path, False)
    assert await checkpoints.restore(TASK.key) == restored, "the same request needs no second copy"
    await checkpoints.rollback_written()
    assert [path.name for path in job.directory.glob("f*")] == [], "the copy is not needed any more"
    assert await (await job.lead()).recover(checkpoints.rollback) == ""
    assert await (await other.lead()).restore(TASK.key) == restore


async def test_a_remote_target_that_cannot_be_written_is_refused_before_anything_is_taken(
    job: Job, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    def fail(*_: object) -> None:
        raise PermissionError("403 Forbidden")

    checkpoints = await job.lead(**{"execution.checkpointing.savepoint-url": url})
    monkeypatch.setattr("fsspec.implementations.memory.MemoryFileSystem.pipe_file", fail)
    for kind in (SnapshotType.SAVEPOINT, SnapshotType.SAVEPOINT_SUSPEND):
        wanted = request(kind)
        with pytest.raises(SavepointError, match="cannot write it: 403 Forbidden; check that the storage is reachable"):
            await checkpoints.trigger(wanted)
        with pytest.raises(UnknownOperationError):
            checkpoints.operation(wanted.trigger_id)
    monkeypatch.undo()


async def test_a_request_that_is_repeated_while_the_server_does_not_answer_waits_for_the_same_answer(
    job: Job, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    asked: asyncio.Queue[int] = asyncio.Queue()
    loop, answers, count = asyncio.get_running_loop(), threading.Event(), itertools.count(1)

    def wait(target: str) -> None:
        loop.call_soon_threadsafe(asked.put_nowait, next(count))
        assert answers.wait(PATIENCE_S)
        raise SavepointError(f"{target} does not answer", "start it")

    monkeypatch.setattr(savepoints, "check_target", wait)
    checkpoints = await job.lead()
    wanted = replace(request(SnapshotType.SAVEPOINT), target=url)
    requests = [asyncio.create_task(checkpoints.trigger(wanted)) for _ in range(2)]
    try:
        await asked.get()
        requests[0].cancel()  # its time is over
        requests.append(asyncio.create_task(checkpoints.trigger(wanted)))
        await asyncio.sleep(0)
    finally:
        answers.set()
    ended = await asyncio.gather(*requests, return_exceptions=True)
    assert [type(one) for one in ended] == [asyncio.CancelledError, SavepointError, SavepointError]
    assert next(count) == 2, "the server was asked once"


async def test_a_job_begins_from_a_savepoint_and_goes_on_from_its_own_checkpoint(job: Job, tmp_path: Path) -> None:
    made = await until(await job.lead(), request(SnapshotType.SAVEPOINT))
    other = Job(tmp_path / "other", job.files, SavepointRestoreSettings(made.path))
    checkpoints = await other.lead()
    restore = await checkpoints.restore(TASK.key)
    assert restore is not None
    assert (restore.savepoint, [query.name for query in restore.queries]) == (made.path, ["counts"])
    await until(checkpoints, request())
    restore = await checkpoints.restore(TASK.key)
    assert restore is not None
    assert (restore.savepoint, restore.checkpoint_id) == ("", 1)
    figures = checkpoints.statistics()
    assert figures.counts.restored == 2


@pytest.mark.parametrize(
    ("asked", "status", "given"),
    [
        (None, None, None),  # it is forgotten, or another cluster's: the tasks look at the leases
        (None, JobSchedulingStatus.DONE, None),
        (None, JobSchedulingStatus.RUNNING, True),  # also where it restarts, and holds no lease at the moment
        (None, JobSchedulingStatus.PENDING, True),
        (False, JobSchedulingStatus.RUNNING, False),
        (True, None, True),
    ],
)
async def test_the_queries_of_a_copy_are_others_while_the_job_runs_that_they_were_taken_of(
    job: Job, tmp_path: Path, asked: bool | None, status: JobSchedulingStatus | None, given: bool | None
) -> None:
    made = await until(await job.lead(), request(SnapshotType.SAVEPOINT))
    other = Job(tmp_path / "other", job.files, SavepointRestoreSettings(made.path, new_query_id=asked))
    if status is not None:
        other.keeper.jobs[job.graph.job_id] = JobEntry(status)
    restore = await (await other.lead()).restore(TASK.key)
    assert restore is not None
    assert restore.new_query_id is given


async def test_a_store_that_is_away_does_not_make_the_savepoint_unreadable(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await until(await job.lead(), request(SnapshotType.SAVEPOINT))
    copy = Job(job.root, job.files, SavepointRestoreSettings(made.path))
    away: list[Exception] = [HaUnreachableError("redis", "gone")]

    async def entry(job_id: str) -> JobEntry | None:
        if away:
            raise away.pop()
        return None

    monkeypatch.setattr(copy.keeper, "entry", entry)
    with pytest.raises(HaUnreachableError):  # the leadership is given up, and the job is led again
        await copy.lead()
    assert await (await copy.lead()).restore(TASK.key) is not None


async def test_a_damaged_savepoint_is_said_to_be_one(job: Job) -> None:
    made = await until(await job.lead(), request(SnapshotType.SAVEPOINT))
    next(path for path in Path(made.path).rglob("offsets/*") if path.is_file()).write_text("damaged")
    job.savepoint = SavepointRestoreSettings(made.path)
    with pytest.raises(AssertionError, match="cannot be used"):
        await job.lead()


async def test_the_end_of_the_job_waits_for_what_is_written_and_removes_the_rest(job: Job) -> None:
    checkpoints = await job.lead()
    await until(checkpoints, request())
    wanted = request(SnapshotType.SAVEPOINT)
    await checkpoints.trigger(wanted)
    checkpoints.advance(READY)
    while not job.manager.outcomes[1:]:
        await asyncio.wait(checkpoints._work, return_when=asyncio.FIRST_COMPLETED)
    await checkpoints.finish(JobStatus.CANCELED)
    assert checkpoints.operation(wanted.trigger_id).state is OperationState.COMPLETED
    assert not job.directory.exists()


@pytest.mark.parametrize("retention", ["NO_EXTERNALIZED_CHECKPOINTS", "RETAIN_ON_CANCELLATION"])
async def test_a_task_executor_that_was_lost_writes_nothing_into_what_is_being_removed(
    job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, retention: str
) -> None:
    checkpoints = await job.lead(**{RETENTION: retention})
    await until(checkpoints, request())
    late = job.directory / "chk-2" / "task"
    make_private(late)
    removing, refused = os.rmdir, []

    def late_write(*arguments: Any, **named: Any) -> None:
        """Remove a directory; before that, take part in a checkpoint that is over."""
        try:
            (late / f"file{len(refused)}").write_text("a part of a snapshot")
        except FileNotFoundError as error:
            refused.append(error)
        removing(*arguments, **named)

    monkeypatch.setattr(os, "rmdir", late_write)
    await checkpoints.finish(JobStatus.CANCELED)
    assert refused
    assert "could not be removed" not in caplog.text
    assert not late.parent.exists()
    assert [str(path) for path in job.directory.parent.rglob(f".*{REMOVED}")] == []


async def test_a_successor_ends_the_removal_that_a_former_job_master_has_begun(job: Job) -> None:
    checkpoints = await job.lead()
    await until(checkpoints, request())
    checkpoints.close()
    successor = await job.lead()
    job.directory.rename(job.directory.with_name(f".{job.directory.name}{REMOVED}"))
    await successor.finish(JobStatus.CANCELED)
    assert list(job.directory.parent.iterdir()) == []


async def test_a_job_ends_whose_directory_cannot_be_renamed(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = await job.lead()
    await until(checkpoints, request())

    def fail(self: Path, target: Path) -> Path:
        raise PermissionError("no renames here")

    monkeypatch.setattr(Path, "rename", fail)
    await checkpoints.finish(JobStatus.CANCELED)
    assert not job.directory.exists()


RETENTION = "execution.checkpointing.externalized-checkpoint-retention"


async def retained_before(job: Job) -> Job:
    """The same job id again, whose first job has retained two checkpoints and left an incomplete one."""
    settings = {RETENTION: "RETAIN_ON_CANCELLATION", "execution.checkpointing.num-retained": "2"}
    job.keeper.retained = RetainedCheckpoints(2)
    checkpoints = await job.lead(is_new=True, **settings)
    for _ in range(2):
        job.files.run()
        await until(checkpoints, request())
    await checkpoints.finish(JobStatus.CANCELED)
    (job.directory / "chk-3").mkdir()
    again = Job(job.root, job.files, SavepointRestoreSettings(str(job.directory / "chk-2")))
    again.graph = job.graph
    return again


@pytest.mark.parametrize("retention", ["NO_EXTERNALIZED_CHECKPOINTS", "RETAIN_ON_CANCELLATION"])
@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_job_whose_id_is_used_again_keeps_what_the_former_one_has_retained(
    job: Job, retention: str, is_lost: bool
) -> None:
    again = await retained_before(job)
    checkpoints = await again.lead(is_new=True, **{RETENTION: retention})
    assert again.kept() == ["chk-1", "chk-2"], "the incomplete one is removed"
    restore = await checkpoints.restore(TASK.key)
    assert restore is not None
    assert restore.queries[0].batch_id == 3
    again.files.run()
    made = await until(checkpoints, request())
    assert Path(made.path).name == "chk-4", "no number is used twice"
    if is_lost:
        checkpoints.close()
        (again.directory / "chk-5").mkdir()
        write_metadata(replace(read_checkpoint(Path(made.path)), path=str(again.directory / "chk-5")))
        checkpoints = await again.lead(**{RETENTION: retention})
        assert again.kept() == ["chk-1", "chk-2", "chk-4"], "an own one that is not in the store is removed"
    await checkpoints.finish(JobStatus.CANCELED)
    own = ["chk-4"] if "RETAIN" in retention else []
    assert sorted(path.name for path in again.directory.iterdir()) == ["chk-1", "chk-2", *own]
    assert [verify_state(again.directory / name) for name in again.kept()] == [[]] * len(again.kept())


async def test_a_successor_keeps_what_was_retained_before_if_the_first_job_master_was_lost_at_once(job: Job) -> None:
    again = await retained_before(job)
    await again.lead()
    assert again.kept() == ["chk-1", "chk-2"]
    (again.directory / "retained-before" / "names.json").write_bytes(b"damaged")
    checkpoints = await again.lead()
    assert again.kept() == ["chk-1", "chk-2"]
    await checkpoints.finish(JobStatus.FINISHED)
    assert again.kept() == ["chk-1", "chk-2"]


async def test_a_job_does_not_start_if_it_cannot_note_what_was_retained_before(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = await retained_before(job)

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpointing, "write_private", fail)
    with pytest.raises(AssertionError, match=r"beside the checkpoints of an earlier job of its id: .*No space left"):
        await again.lead(is_new=True)
    assert again.kept() == ["chk-1", "chk-2"]


async def test_a_task_of_the_former_job_of_an_id_removes_nothing_of_what_was_retained(job: Job) -> None:
    again = await retained_before(job)
    checkpoints = await again.lead(is_new=True)
    late = AcknowledgeCheckpoint(
        1, job.manager.acks[0].attempt_id, request(), read_checkpoint(job.directory / "chk-1").queries
    )
    assert await checkpoints.acknowledge(late) is CheckpointOutcome.ABORTED
    await checkpoints.finish(JobStatus.CANCELED)
    assert verify_state(job.directory / "chk-1") == []


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
        await until(checkpoints, request())
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
    restore = await later.restore(TASK.key)
    assert restore is not None
    assert (restore.checkpoint_id, restore.savepoint) == (2, str(elsewhere))
    assert [(query.batch_id, query.path) for query in restore.queries] == [(3, str(elsewhere / TASK.key / "counts"))]
    restored = later.statistics().latest_restored
    assert restored is not None
    assert (restored.id, restored.is_savepoint) == (2, False)


async def test_a_retained_checkpoint_is_named_by_its_path_or_its_job(job: Job) -> None:
    checkpoints = await job.lead(**{"execution.checkpointing.num-retained": "1"})
    await until(checkpoints, request())
    of_all, job_id = job.root / "checkpoints", job.graph.job_id
    directory = job.directory / "chk-1"
    assert find_state(job_id, of_all) == find_state(f"{job_id}/chk-1", of_all) == find_state(str(directory), of_all)
    for unknown in (f"{job_id}/chk-7", "0" * 32):
        with pytest.raises(SnapshotLostError, match=f"there is no checkpoint {unknown}"):
            find_state(unknown, of_all)
    with pytest.raises(SavepointError, match="is not a savepoint"):
        read_state(job.root)


async def test_a_retained_checkpoint_that_is_not_whole_is_refused(job: Job) -> None:
    checkpoints = await job.lead(**{RETENTION: "RETAIN_ON_CANCELLATION"})
    await until(checkpoints, request())
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
    await until(checkpoints, request())
    assert checkpoints.statistics().rolled_back_to == ""
    await checkpoints.roll_back(TriggerID("a" * 32), "1", False)
    assert checkpoints.statistics().rolled_back_to == str(job.directory / "chk-1")
    for leader in (checkpoints, None):
        if leader is None:  # whoever leads next
            leader = await job.lead()
            assert await leader.recover(checkpoints.rollback) == ""
        restore = await leader.restore(TASK.key)
        assert restore is not None
        assert (restore.checkpoint_id, restore.rollback, restore.new_query_id) == (1, "a" * 32, False)
        assert [(query.name, query.batch_id) for query in restore.queries] == [("counts", 1)]
        job.manager.checkpoints = checkpoints

    job.files.run(2)
    await until(checkpoints, request())
    assert job.kept() == ["chk-2"], "what it has gone back to is subsumed"
    again = await checkpoints.restore(TASK.key)
    assert again is not None
    assert (again.checkpoint_id, again.rollback) == (2, "")

    made = await until(checkpoints, request(SnapshotType.SAVEPOINT, tmp_path / "kept"))
    await checkpoints.roll_back(TriggerID("b" * 32), made.path, True)
    restore = await checkpoints.restore(TASK.key)
    assert restore is not None
    assert (restore.checkpoint_id, restore.new_query_id, restore.queries[0].batch_id) == (0, True, 3)
    restored = checkpoints.statistics().latest_restored
    assert restored is not None
    assert (restored.external_path, restored.is_savepoint) == (made.path, True)
    kept = [job.directory / f"rollback-{trigger_id * 32}-1" for trigger_id in "ab"]
    assert sorted(job.directory.glob("rollback-*")) == kept, "the former one, until this one is written down"
    job.endpoint.leads = False
    with pytest.raises(FencingError):
        await checkpoints.rollback_written()
    assert kept[0].exists(), "a later JobMaster may have written down another one"
    job.endpoint.leads = True
    await checkpoints.rollback_written()
    assert list(job.directory.glob("rollback-*")) == kept[1:]

    # Disposed of, it is still there for whoever leads next; and is not needed once a checkpoint stands for itself.
    shutil.rmtree(made.path)
    later = await job.lead()
    assert await later.recover(checkpoints.rollback) == ""
    assert await later.restore(TASK.key) == restore
    assert later.statistics().rolled_back_to == made.path
    job.manager.checkpoints = checkpoints
    job.files.run(1)
    await until(checkpoints, request())
    shutil.rmtree(restore.savepoint)
    last = await job.lead()
    assert await last.recover(checkpoints.rollback) == ""
    latest = await last.restore(TASK.key)
    assert latest is not None
    assert (latest.checkpoint_id, latest.rollback, last.rollback) == (4, "", checkpoints.rollback)


async def test_a_rollback_that_was_not_written_down_leaves_the_former_one_to_the_next_job_master(job: Job) -> None:
    checkpoints = await job.lead()
    await until(checkpoints, request())
    await checkpoints.roll_back(TriggerID("a" * 32), "1", False)
    written = checkpoints.rollback
    await checkpoints.roll_back(TriggerID("b" * 32), "1", False)  # and is killed before that is written down
    shutil.rmtree(job.directory / "chk-1")
    job.keeper.retained, job.keeper.count = RetainedCheckpoints(1), 2
    successor = await job.lead()
    assert await successor.recover(written) == ""
    restore = await successor.restore(TASK.key)
    assert restore is not None
    assert restore.rollback == "a" * 32
    assert [path.name for path in job.directory.glob("rollback-*")] == [f"rollback-{'a' * 32}-1"]


async def test_a_former_job_master_touches_no_rollback_of_a_later_one(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The former one was suspended while it prepared a rollback that the client then requests of the later one."""
    former = await job.lead()
    await until(former, request())
    job.term = replace(TERM, epoch=2)
    later = await job.lead()
    await later.roll_back(TriggerID("a" * 32), "1", False)
    restore = await later.restore(TASK.key)
    assert restore is not None

    def fail(*_: Any, **__: Any) -> None:
        raise FileNotFoundError("the checkpoint was subsumed")

    with monkeypatch.context() as patch:
        patch.setattr(savepoints, "take_files", fail)
        with pytest.raises(CheckpointError):
            await former.roll_back(TriggerID("a" * 32), "1", False)
    assert open_checkpoint(Path(restore.savepoint)).queries[0].batch_id == 1
    await former.roll_back(TriggerID("b" * 32), "1", False)
    await former.rollback_written()  # its lease has ended since it looked at the clock
    assert open_checkpoint(Path(restore.savepoint)).queries[0].batch_id == 1
    (job.directory / f"rollback-{'1' * 32}").mkdir()  # of an earlier release
    await later.rollback_written()
    assert [str(path) for path in job.directory.glob("rollback-*")] == [restore.savepoint]


@pytest.mark.parametrize("retention", ["NO_EXTERNALIZED_CHECKPOINTS", "RETAIN_ON_CANCELLATION"])
async def test_what_the_end_of_a_job_removes_does_not_come_back_after_a_loss_of_power(
    job: Job, monkeypatch: pytest.MonkeyPatch, retention: str
) -> None:
    checkpoints = await job.lead(**{RETENTION: retention})
    await until(checkpoints, request())
    (job.directory / "tasks").mkdir()
    changed = job.directory if retention.startswith("RETAIN") else job.directory.parent
    left: list[list[str]] = []
    sync = os.fsync

    def note(descriptor: int) -> None:
        sync(descriptor)
        if os.fstat(descriptor).st_ino == changed.stat().st_ino:
            left.append([path.name for path in changed.iterdir()])

    monkeypatch.setattr(os, "fsync", note)
    await checkpoints.finish(JobStatus.CANCELED)
    assert left == [[path.name for path in changed.iterdir()]], "it is synced once, when all is removed"


async def test_a_job_ends_although_a_removal_cannot_be_synced(
    job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = await job.lead()
    await until(checkpoints, request())

    def fail(descriptor: int) -> None:
        raise OSError("the disk failed")

    monkeypatch.setattr(os, "fsync", fail)
    await checkpoints.finish(JobStatus.CANCELED)
    assert "the disk failed" in caplog.text


async def test_what_a_rollback_keeps_is_on_the_disk(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = await job.lead()
    await until(checkpoints, request())
    synced, sync = set[int](), os.fsync

    def note(descriptor: int) -> None:
        sync(descriptor)
        synced.add(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(os, "fsync", note)
    await checkpoints.roll_back(TriggerID("a" * 32), "1", False)
    [kept] = job.directory.glob("rollback-*")
    directories = [job.directory, kept, *(path for path in kept.rglob("*") if path.is_dir())]
    assert [path for path in directories if path.stat().st_ino not in synced] == []


async def test_a_job_goes_back_to_what_is_its_own_and_whole(job: Job, tmp_path: Path) -> None:
    checkpoints = await job.lead()
    await until(checkpoints, request())
    made = await until(checkpoints, request(SnapshotType.SAVEPOINT, tmp_path / "kept"))
    gone = f"^job {job.graph.job_id} has no checkpoint chk-7: it has chk-1$"
    for target, why in (("chk-7", gone), ("7", gone), (str(tmp_path), "is not a savepoint")):
        with pytest.raises(SavepointError, match=why):
            await checkpoints.roll_back(TriggerID.random(), target, False)
    next(path for path in job.files.sink.glob("part-*")).unlink()
    with pytest.raises(SnapshotLostError, match="its file sink has lost"):
        await checkpoints.roll_back(TriggerID.random(), "chk-1", False)
    job.graph, job.keeper = JobGraph.for_script("other"), Keeper()
    with pytest.raises(SavepointError, match="is of job"):
        await (await job.lead()).roll_back(TriggerID.random(), made.path, False)
    assert checkpoints.rollback is None


async def test_a_job_is_cancelled_with_its_savepoint_before_a_task_hears_that_it_may_end(job: Job) -> None:
    checkpoints = await job.lead()
    target = job.root / "savepoints"
    trigger = request(SnapshotType.SAVEPOINT_CANCEL, target)
    made = await until(checkpoints, trigger)
    assert (made.state, Path(made.path).parent) == (OperationState.COMPLETED, target)
    assert job.manager.notified == [("cancel", 0), ("complete", 1)]
    job.manager.notified.clear()
    successor = await job.lead()  # the first was lost before it could write that down
    assert (await successor.trigger(trigger)).path == made.path
    assert job.manager.notified == [("cancel", 0)]


async def test_a_savepoint_is_acknowledged_when_its_name_is_on_the_disk(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = await job.lead()
    target = job.root / "savepoints"
    trigger, sync = request(SnapshotType.SAVEPOINT, target), os.fsync
    seen: list[tuple[bool, OperationState]] = []

    def note(descriptor: int) -> None:
        sync(descriptor)
        if Path(f"/proc/self/fd/{descriptor}").readlink() == target:
            seen.append((any(target.glob("savepoint-*")), checkpoints.operation(trigger.trigger_id).state))

    monkeypatch.setattr(os, "fsync", note)
    made = await until(checkpoints, trigger)
    assert seen[-1] == (True, OperationState.IN_PROGRESS)
    assert {state for _, state in seen} == {OperationState.IN_PROGRESS}
    seen.clear()
    successor = await job.lead()  # the first may have been lost between the rename and the sync
    monkeypatch.setattr(
        checkpoints, "operation", lambda _: OperationStatus(made.trigger_id, OperationState.IN_PROGRESS)
    )
    assert (await successor.trigger(trigger)).path == made.path
    assert seen == [(True, OperationState.IN_PROGRESS)]


async def test_a_job_goes_on_whose_savepoint_before_its_cancellation_fails(job: Job) -> None:
    checkpoints = await job.lead()
    job.manager.refuses = True
    failed = await until(checkpoints, request(SnapshotType.SAVEPOINT_CANCEL, job.root / "savepoints"))
    assert (failed.state, job.manager.notified) == (OperationState.FAILED, [("aborted", 1)])


async def test_the_figures_have_the_jobs_own_settings_of_checkpoints(job: Job) -> None:
    own = {"execution.checkpointing.interval": "1 min", "state.backend.type": "rocksdb"}
    job.graph = replace(job.graph, configuration=own | {"spark.hadoop.password": "secret"})
    assert (await job.lead()).statistics().settings == own


FORMER = JobID("b1" * 16)


async def taken_over(job: Job) -> tuple[JobCheckpoints, JobManagerTaskRestore]:
    """A JobMaster whose job takes over from another one, and the state of its task."""
    path = job.root / "savepoints" / "one"
    job.savepoint = SavepointRestoreSettings(str(path), True, new_query_id=False, after=FORMER)
    checkpoints = await job.lead()
    restore = await checkpoints.restore(TASK.key)
    assert restore is not None
    checkpoints.begin()
    return checkpoints, restore


def leave_savepoint(job: Job) -> None:
    snapshot = take_snapshot(job.files.query, job.root / "snapshots" / "counts")
    write_savepoint(job.root / "savepoints", SavepointJob(FORMER, "clicks"), [snapshot], name="one")


async def test_the_tasks_wait_for_the_end_of_the_job_whose_state_they_take_over(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []
    look = job.keeper.entry

    async def entry(job_id: str) -> JobEntry | None:
        looks.append(job_id)
        return await look(job_id)

    monkeypatch.setattr(job.keeper, "entry", entry)
    job.keeper.jobs[FORMER] = JobEntry(JobSchedulingStatus.RUNNING)
    _, restore = await taken_over(job)
    file = Path(restore.pending)
    leave_savepoint(job)  # it is there before the former job has ended, and the former job may still go on
    async with asyncio.timeout(PATIENCE_S):
        while len(looks) < 3:
            assert (job.failures, read_handover(file)) == ([], None)
            await asyncio.sleep(0)
        job.keeper.jobs[FORMER] = JobEntry(JobSchedulingStatus.DONE)
        while (found := read_handover(file)) is None:
            assert job.failures == []
            await asyncio.sleep(0.01)
    assert [(query.name, query.batch_id) for query in found.queries] == [("counts", 1)]
    assert (found.pending, found.continues, found.new_query_id) == ("", True, False)
    # The next JobMaster writes it again, also for tasks that have waited since the former one.
    file.unlink()
    successor, again = await taken_over(job)
    assert again.pending == restore.pending
    async with asyncio.timeout(PATIENCE_S):
        while read_handover(file) is None or (now := await successor.restore(TASK.key)) == again:
            assert job.failures == []
            await asyncio.sleep(0.01)
    assert now == found
    await successor.finish(JobStatus.CANCELED)


async def test_a_job_fails_whose_former_job_has_left_no_savepoint(job: Job) -> None:
    job.keeper.jobs[FORMER] = JobEntry(JobSchedulingStatus.DONE)
    _, restore = await taken_over(job)
    async with asyncio.timeout(PATIENCE_S):
        while not job.failures:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert f"job {FORMER} has ended without the savepoint" in job.failures[0]
    assert read_handover(Path(restore.pending)) is None


def test_a_job_that_stands_by_for_long_looks_less_often() -> None:
    assert pause_s(0.0) == pause_s(SOON_S - 1) < pause_s(SOON_S) == pause_s(1e9) == LATER_S


async def test_a_job_that_stands_by_can_be_cancelled(job: Job) -> None:
    job.keeper.jobs[FORMER] = JobEntry(JobSchedulingStatus.RUNNING)
    checkpoints, restore = await taken_over(job)
    async with asyncio.timeout(PATIENCE_S):
        await checkpoints.finish(JobStatus.CANCELED)
    job.keeper.jobs[FORMER] = JobEntry(JobSchedulingStatus.DONE)
    assert [task for task in asyncio.all_tasks() if task.get_name() == "taking over the state of a job"] == []
    assert not Path(restore.pending).exists()


async def test_a_task_executor_that_knows_no_standby_starts_no_query_of_such_a_job(job: Job) -> None:
    job.keeper.jobs[FORMER] = JobEntry(JobSchedulingStatus.RUNNING)
    checkpoints, restore = await taken_over(job)
    earlier_release = TaskRestore(job.root / "task", replace(restore, pending=""))
    with pytest.raises(SavepointError, match=f"no state of query 'counts', but of '<job {FORMER} has not ended>'"):
        earlier_release.prepare(job.files.query)
    await checkpoints.finish(JobStatus.CANCELED)


async def test_the_next_job_master_needs_no_savepoint_whose_state_was_read(job: Job, tmp_path: Path) -> None:
    made = await until(await job.lead(), request(SnapshotType.SAVEPOINT, tmp_path / "sp"))
    later = Job(tmp_path / "later", job.files, SavepointRestoreSettings(made.path))
    later.keeper.jobs[job.graph.job_id] = JobEntry(JobSchedulingStatus.RUNNING)
    begun = await (await later.lead()).restore(TASK.key)
    assert begun is not None
    assert begun.new_query_id, "its own job runs"
    later.keeper.jobs[job.graph.job_id] = JobEntry(JobSchedulingStatus.DONE)
    assert dispose_at(made.path)
    assert await (await later.lead()).restore(TASK.key) == begun
    (later.directory / "started-from" / "state.json").write_text("{")
    with pytest.raises(AssertionError, match=r"sp/savepoint-.* cannot be read|is not a savepoint"):
        await later.lead()


async def test_the_next_job_master_of_an_upgraded_job_needs_no_savepoint_either(job: Job, tmp_path: Path) -> None:
    made = await until(await job.lead(), request(SnapshotType.SAVEPOINT, tmp_path / "sp"))
    settings = SavepointRestoreSettings(made.path, after=job.graph.job_id)
    later = Job(tmp_path / "later", job.files, settings)
    later.keeper.jobs[job.graph.job_id] = JobEntry(JobSchedulingStatus.DONE)
    restores = []
    for _ in range(2):
        checkpoints = await later.lead()
        checkpoints.begin()
        assert checkpoints._taking_over is not None
        await checkpoints._taking_over
        restores.append(await checkpoints.restore(TASK.key))
        dispose_at(made.path)
    assert restores[0] == restores[1]
    assert later.failures == []


async def test_checkpoints_that_cannot_be_removed_keep_no_job_from_its_end(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    retained = {"execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION"}
    checkpoints = await job.lead(**retained)
    await until(checkpoints, request())
    shutil.rmtree(job.directory)
    await checkpoints.finish(JobStatus.CANCELED)
    assert f"{job.directory} is left behind, remove what is not retained" in caplog.text


async def test_a_rollback_that_is_requested_again_meanwhile_is_decided_once(job: Job) -> None:
    checkpoints = await job.lead()
    await until(checkpoints, request())
    both = (checkpoints.roll_back(TriggerID("a" * 32), "1", False) for _ in range(2))
    assert await asyncio.gather(*both) == [True, False]


async def test_the_savepoint_is_kept_beside_a_checkpoint_that_lacks_one_of_its_queries(
    job: Job, tmp_path: Path
) -> None:
    """The query is still being restored when the first checkpoint is taken. Without its state it would begin anew."""
    taken = [take_snapshot(replace(job.files.query, name=name), tmp_path / name) for name in ("counts", "slow")]
    made = write_savepoint(tmp_path / "savepoints", SavepointJob(job.graph.job_id, "stream"), taken).path
    other = Job(tmp_path / "other", job.files, SavepointRestoreSettings(made))
    checkpoints = await other.lead()
    begun = await checkpoints.restore(TASK.key)
    assert begun is not None
    await until(checkpoints, request())
    for master in (checkpoints, await other.lead()):
        restore = await master.restore(TASK.key)
        assert restore is not None
        assert (restore.savepoint, restore.checkpoint_id) == ("", 1)
        assert restore.begun_from == begun.initial
        assert await master.restore(JobVertexID.random()) == begun, "a task that took no part"
    await checkpoints.roll_back(TriggerID("c" * 32), "chk-1", False)
    restore = await checkpoints.restore(TASK.key)
    assert restore is not None
    assert (restore.rollback, restore.begun_from) == ("c" * 32, begun.initial)


@pytest.mark.parametrize("kind", [SnapshotType.CHECKPOINT, SnapshotType.SAVEPOINT])
async def test_snapshots_of_two_tasks_of_which_one_reads_the_others_output_have_to_fit(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: SnapshotType
) -> None:
    writer, reader = job.files, StreamingFiles(tmp_path / "reader", name="reader", upstream=job.files)
    reader.run()
    other = replace(TASK, attempt_id=ExecutionAttemptID.random(), key=JobVertexID.random())
    at_once, taking = [TASK, other], asyncio.Lock()
    held: dict[str, AcknowledgeCheckpoint] = {}

    async def trigger_checkpoint(job_id: str, trigger: TriggerCheckpoint) -> None:
        """Take both snapshots with the first request: that of the writer, then that of the reader, or the reverse."""
        async with taking:
            for task in at_once if not held else []:
                query = (writer if task is TASK else reader).query
                target = Path(trigger.directory, task.key, query.name)
                taken = await asyncio.to_thread(take_snapshot, query, target)
                held[task.attempt_id] = AcknowledgeCheckpoint(
                    trigger.checkpoint_id, task.attempt_id, trigger.trigger, (taken,)
                )
                writer.run()
                reader.run()
        await job.manager.acknowledge(held[trigger.attempt_id])

    monkeypatch.setattr(job.manager, "trigger_checkpoint", trigger_checkpoint)
    checkpoints = await job.lead(**{"execution.checkpointing.tolerable-failed-checkpoints": "0"})
    tasks = RunningTasks((TASK, other), are_ready=True, are_stateful=True)
    failed = await until(checkpoints, request(kind), tasks)
    assert failed.state is OperationState.FAILED
    assert "the snapshots of the job's tasks do not fit together: query 'reader' has read what" in failed.error
    assert job.failures == [], "one task was faster than the other, which fails no job"
    at_once.reverse()
    held.clear()
    assert (await until(checkpoints, request(kind), tasks)).state is OperationState.COMPLETED


SLOW = "slow"
"""A query of a savepoint that the job from it has not started."""


def begun_from_two(job: Job, tmp_path: Path, **settings: Any) -> Job:
    """A job that starts from a savepoint of 'counts' and of `SLOW`, and has started only the first."""
    taken = [take_snapshot(replace(job.files.query, name=name), tmp_path / "of" / name) for name in ("counts", SLOW)]
    made = write_savepoint(tmp_path / "savepoints", SavepointJob(job.graph.job_id, "stream"), taken).path
    return Job(tmp_path / "other", job.files, SavepointRestoreSettings(made, **settings))


def start(job: Job, restore: JobManagerTaskRestore, name: str, location: Path) -> str:
    """Start a query of the job, as its task does, elsewhere than `Job.files`; return the note."""
    task = TaskRestore(job.directory / "tasks" / TASK.key, restore)
    return task.prepare(QueryLocation(name, str(location)))


async def saved(job: Job, checkpoints: JobCheckpoints) -> tuple[dict[str, int], tuple[str, ...]]:
    """The queries of a new savepoint with their batches, and what the user is told of it."""
    made = await until(checkpoints, request(SnapshotType.SAVEPOINT, job.root / "sp"))
    assert made.state is OperationState.COMPLETED, made.error
    assert verify_savepoint(Path(made.path)) == []
    found = read_savepoint(Path(made.path)).queries
    return {one.snapshot.name: one.snapshot.batch_id for one in found}, made.notes


@pytest.mark.parametrize("dropped", [None, ()], ids=["run --from", "upgrade"])
async def test_a_savepoint_has_the_state_of_a_query_that_has_not_started(
    job: Job, tmp_path: Path, dropped: tuple[str, ...] | None
) -> None:
    """Without it the next job from that savepoint would begin the query without state, and would not say so."""
    other = begun_from_two(job, tmp_path, allow_non_restored_state=dropped is not None, dropped=dropped)
    checkpoints = await other.lead()
    begun = await checkpoints.restore(TASK.key)
    assert begun is not None
    job.files.run(1)
    for _ in range(2):
        batches, notes = await saved(other, checkpoints)
        assert batches == {"counts": 2, SLOW: 1}
        assert notes == (
            f"the state of query 'slow' in {begun.savepoint} is carried over: the job has not started the query",
        )
        checkpoints = await other.lead()
    start(other, begun, SLOW, tmp_path / "slow")
    assert await saved(other, checkpoints) == ({"counts": 2}, ()), "its task has ended since, and its state is older"


async def test_a_query_that_starts_while_a_savepoint_is_taken_is_in_it(job: Job, tmp_path: Path) -> None:
    other = begun_from_two(job, tmp_path)
    checkpoints = await other.lead()
    begun = await checkpoints.restore(TASK.key)
    assert begun is not None
    other.manager.is_silent = True
    asked = asyncio.Event()
    other.manager.asked = asked.set
    asking = asyncio.create_task(saved(other, checkpoints))
    await asyncio.wait_for(asked.wait(), PATIENCE_S)
    start(other, begun, SLOW, tmp_path / "slow")
    await other.manager.acknowledge(other.manager.acks[0])
    batches, _ = await asking
    assert batches == {"counts": 1, SLOW: 1}


@pytest.mark.parametrize("dropped", [None, (SLOW,)], ids=["run --from", "upgrade"])
async def test_state_that_a_job_leaves_on_purpose_is_not_carried_over(
    job: Job, tmp_path: Path, dropped: tuple[str, ...] | None
) -> None:
    other = begun_from_two(job, tmp_path, allow_non_restored_state=True, dropped=dropped)
    batches, notes = await saved(other, await other.lead())
    assert batches == {"counts": 1}
    assert [SLOW in note for note in notes] == ([True] if dropped is None else []), "a query that starts late is told"


def kept_at(path: str) -> dict[str, int]:
    """The queries that a job which starts from a checkpoint gets, with their batches."""
    assert verify_state(Path(path)) == []
    return {query.name: query.batch_id for query in open_checkpoint(Path(path)).queries}


async def test_a_checkpoint_that_may_be_retained_has_the_state_of_a_query_that_has_not_started(
    job: Job, tmp_path: Path
) -> None:
    other = begun_from_two(job, tmp_path)
    other.keeper.retained = RetainedCheckpoints(2)
    retained = {RETENTION: "RETAIN_ON_CANCELLATION"}
    checkpoints = await other.lead(**retained)
    begun = await checkpoints.restore(TASK.key)
    assert begun is not None
    assert other.savepoint is not None
    first = await until(checkpoints, request())
    assert kept_at(first.path) == {"counts": 1, SLOW: 1}
    dispose_at(other.savepoint.path)
    job.files.run(1)
    checkpoints = await other.lead(**retained)
    second = await until(checkpoints, request())
    assert kept_at(second.path) == {"counts": 2, SLOW: 1}, "the savepoint is gone, and the job has a copy"
    assert (await saved(other, checkpoints))[0] == {"counts": 2, SLOW: 1}
    shutil.move(other.directory / "chk-1", tmp_path / "moved")
    assert kept_at(str(tmp_path / "moved")) == {"counts": 1, SLOW: 1}
    shutil.move(tmp_path / "moved", other.directory / "chk-1")

    # The job itself restores each query from where it would without this.
    await checkpoints.roll_back(TriggerID("c" * 32), "chk-1", False)
    restore = await checkpoints.restore(TASK.key)
    assert restore is not None
    assert ([query.name for query in restore.queries], restore.begun_from) == (["counts"], begun.initial)
    await checkpoints.finish(JobStatus.CANCELED)
    assert sorted(path.name for path in other.directory.iterdir()) == ["chk-1", "chk-2"]


async def test_a_checkpoint_lacks_a_query_that_has_started_and_is_in_no_task_any_more(job: Job, tmp_path: Path) -> None:
    other = begun_from_two(job, tmp_path)
    checkpoints = await other.lead(**{RETENTION: "RETAIN_ON_CANCELLATION"})
    begun = await checkpoints.restore(TASK.key)
    assert begun is not None
    start(other, begun, SLOW, tmp_path / "slow")
    assert kept_at((await until(checkpoints, request())).path) == {"counts": 1}


@pytest.mark.parametrize(
    ("retention", "allows", "breaks"),
    [
        ("NO_EXTERNALIZED_CHECKPOINTS", False, False),
        ("RETAIN_ON_CANCELLATION", True, False),
        ("RETAIN_ON_CANCELLATION", False, True),
    ],
    ids=["not retained", "left on purpose", "no space"],
)
async def test_a_checkpoint_is_complete_without_the_state_of_a_query_that_has_not_started(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retention: str, allows: bool, breaks: bool
) -> None:
    other = begun_from_two(job, tmp_path, allow_non_restored_state=allows)
    checkpoints = await other.lead(**{RETENTION: retention})

    def fails(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    if breaks:
        monkeypatch.setattr("runtime.checkpoint.retained.take_files", fails)
    made = await until(checkpoints, request())
    assert made.state is OperationState.COMPLETED, made.error
    assert kept_at(made.path) == {"counts": 1}
    assert not list(other.directory.rglob("carried-over/*"))
    assert not list(other.directory.glob("chk-1/carried-over"))


async def test_a_savepoint_is_made_although_the_one_before_is_gone(job: Job, tmp_path: Path) -> None:
    other = begun_from_two(job, tmp_path)
    checkpoints = await other.lead()
    assert other.savepoint is not None
    dispose_at(other.savepoint.path)
    batches, [note] = await saved(other, checkpoints)
    assert batches == {"counts": 1}
    assert "state of query 'slow'" in note
    assert note.endswith("is gone")


async def test_a_savepoint_fails_if_it_is_not_known_which_queries_have_started(job: Job, tmp_path: Path) -> None:
    other = begun_from_two(job, tmp_path)
    checkpoints = await other.lead()
    begun = await checkpoints.restore(TASK.key)
    assert begun is not None
    start(other, begun, SLOW, tmp_path / "slow")
    [mark] = other.directory.glob("tasks/*/restored/*.json")
    mark.write_text("{")
    failed = await until(checkpoints, request(SnapshotType.SAVEPOINT, tmp_path / "sp"))
    assert failed.state is OperationState.FAILED
    assert "the marks of the queries that have started cannot be read" in failed.error


@pytest.mark.parametrize("has_checkpoint", [False, True])
async def test_a_rollback_waits_for_no_query_that_has_not_started(
    job: Job, tmp_path: Path, has_checkpoint: bool
) -> None:
    """As `job rescale` does: back to a savepoint of its own, which has the state of such a query."""
    other = begun_from_two(job, tmp_path)
    checkpoints = await other.lead()
    begun = await checkpoints.restore(TASK.key)
    assert begun is not None
    start(other, begun, "counts", tmp_path / "counts")
    if has_checkpoint:
        await until(checkpoints, request())
    made = await until(checkpoints, request(SnapshotType.SAVEPOINT, tmp_path / "sp"))
    await checkpoints.roll_back(TriggerID("c" * 32), made.path, False)
    for _ in range(2):
        restore = await checkpoints.restore(TASK.key)
        assert restore is not None
        assert [query.name for query in restore.queries] == ["counts"]
        assert restore.begun_from is not None
        assert restore.begun_from.savepoint == restore.savepoint
        note = start(other, restore, SLOW, tmp_path / "slow")
        assert ("begins from batch 1" in note) == (not (tmp_path / "done").exists())
        (tmp_path / "done").touch()


@pytest.mark.parametrize("has_checkpoint", [False, True])
async def test_after_a_rollback_to_a_savepoint_each_task_waits_for_its_own_queries(
    job: Job, tmp_path: Path, has_checkpoint: bool
) -> None:
    """A task that waited for those of another one took part in no checkpoint, and the savepoint was refused."""
    checkpoints, other = await job.lead(), JobVertexID.random()
    if has_checkpoint:
        await until(checkpoints, request())
    for key, name in ((TASK.key, "counts"), (other, "others")):
        location = QueryLocation(name, str(tmp_path / name))
        TaskRestore(job.directory / "tasks" / key, None, "first").prepare(location)
    taken = [
        take_snapshot(replace(job.files.query, name=name), tmp_path / "of" / name) for name in ("counts", "others")
    ]
    made = write_savepoint(tmp_path / "savepoints", SavepointJob(job.graph.job_id, "stream"), taken).path
    await checkpoints.roll_back(TriggerID("c" * 32), made, False)
    for key, name in ((TASK.key, "counts"), (other, "others")):
        restore = await checkpoints.restore(key)
        assert restore is not None
        assert (restore.rollback, [query.name for query in restore.queries]) == ("c" * 32, [name])

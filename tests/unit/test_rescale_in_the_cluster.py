"""A rescale that the cluster does: the job that is made for it, its task, and what clients are told."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest
from click.testing import CliRunner

from actors.errors import ActorError, UnknownActor
from actors.rpc.codec import decode_error, encode_error
from actors.rpc.gateway import FencingToken
from conf.configuration import Configuration
from runtime.checkpoint.description import OperatorDescription, QueryDescription
from runtime.checkpoint.errors import SavepointError
from runtime.checkpoint.names import change_lock, rescale_job_id, savepoint_name
from runtime.client import ClusterClient, NoAnswerError
from runtime.cluster import rescale_task
from runtime.cluster.cli import cli
from runtime.cluster.command_line import ExitStatus
from runtime.cluster.documents import RescaledJob
from runtime.cluster.rescale_task import _arguments
from runtime.cluster.rescaling import changing
from runtime.dispatcher import rescales
from runtime.dispatcher.autoscaling import AutoscalePolicy, Autoscaling
from runtime.dispatcher.rescale_job import rescale_graph, rescale_status
from runtime.dispatcher.running_job import RunningJob
from runtime.environment.directory import CLUSTER_DIR_VARIABLE, ClusterDirectory
from runtime.errors import ClusterError
from runtime.ha.errors import HaUnreachableError
from runtime.ids import InstanceID, JobID, ResourceID, SlotID, TriggerID
from runtime.jobgraph.codec import encode
from runtime.jobgraph.job_graph import JobGraph
from runtime.jobgraph.restart_config import RestartStrategyConfig
from runtime.jobgraph.validation import MAX_NAME_LENGTH, validate
from runtime.jobmaster.rescale_history import RescaleHistory
from runtime.notebook import AsyncJob, Job
from runtime.protocol.checkpoint_statistics import CheckpointStats, CheckpointStatsSnapshot, CheckpointStatsStatus
from runtime.protocol.checkpoints import OperationState, OperationStatus, SnapshotType
from runtime.protocol.diagnostics import TaskManagerMetrics
from runtime.protocol.errors import (
    JobAlreadyTerminatedError,
    JobNotFoundError,
    JobSubmissionError,
    RescaleInProgressError,
    SubmissionLimitError,
    UnknownOperationError,
    UnknownTaskExecutorError,
)
from runtime.protocol.execution_state import JobStatus
from runtime.protocol.messages import TaskExecutorRegistration, TaskManagerInfo
from runtime.protocol.rescales import VANISHED, Rescale, RescaleCause, VertexResourceRequirements
from runtime.protocol.slots import SlotCounts, SlotStatus
from runtime.protocol.streaming_query import QueryHistory, StreamingQuery
from runtime.rest.errors import status_of
from runtime.spark.errors import DriverCallError, ScriptExitError
from tests.dispatcher_arguments import dispatcher_arguments
from tests.json_output import parsed
from tests.unit.test_dispatcher_queues import TERM, Storing
from tests.unit.test_dispatcher_queues import graph as job_of
from tests.unit.test_rest_app import Site
from tests.unit.test_rest_messages import ID, READ, WRITE
from tests.unit.test_rest_messages import graph as shown
from tests.waiting import PATIENCE_S

TRIGGER = TriggerID("b" * 32)
JOB = replace(
    job_of(7, owner="ada", queue="etl"),
    priority=3,
    submitter="ada-on-laptop",
    restart_strategy=RestartStrategyConfig.fixed_delay(3, 1.0),
    environment={"SECRET": "of-the-job"},
    configuration={
        "job.queue": "etl",
        "job.task.memory": "2 gb",
        "job.task.cpus": "1.5",
        "spark.sql.streaming.fileSink.log.compactInterval": "5",
        "task.spark-driver": "own",
        "spark.driver.memory": "9g",
    },
)


# ------------------------------------------------------------------ the job of a rescale


def test_a_rescale_is_a_job_of_the_owner_of_the_other_job_and_is_never_restarted() -> None:
    made = rescale_graph(JOB, TRIGGER, 8, "", "", 5)
    validate(made)
    assert made.job_id == rescale_job_id(JOB.job_id, TRIGGER) == rescale_graph(JOB, TRIGGER, 9, "", "", 6).job_id
    assert made.job_id != rescale_graph(JOB, TriggerID("c" * 32), 8, "", "", 5).job_id
    assert (made.name, made.created_ms) == ("rescale job 7 to 8 partitions", 5)
    assert (made.owner, made.submitter, made.priority) == ("ada", "ada-on-laptop", 3)
    assert made.restart_strategy == RestartStrategyConfig.none()
    assert made.environment == {}
    assert made.configuration == {
        "job.queue": "etl",
        "job.task.memory": "2 gb",
        "job.task.cpus": "1.5",
        "spark.sql.streaming.fileSink.log.compactInterval": "5",
    }


@pytest.mark.parametrize("query", ["", "counts", "--undo", "a b"])
@pytest.mark.parametrize("directory", ["", "/save points"])
def test_the_task_understands_what_the_dispatcher_tells_it(query: str, directory: str) -> None:
    given = _arguments(rescale_graph(JOB, TRIGGER, 8, query, directory, 0).argv)
    assert (given.job_id, given.trigger_id, given.partitions, given.undo) == (JOB.job_id, TRIGGER, 8, False)
    assert (given.query or "", str(given.savepoint or "")) == (query, directory)
    undo = rescale_graph(JOB, TRIGGER, None, "", directory, 0)
    assert undo.name == "undo the rescale of job 7"
    given = _arguments(undo.argv)
    assert (given.partitions, given.undo, str(given.savepoint or "")) == (None, True, directory)


def test_a_long_name_is_cut() -> None:
    made = rescale_graph(replace(JOB, name="x" * MAX_NAME_LENGTH), TRIGGER, 8, "", "", 0)
    validate(made)
    assert (len(made.name), made.name[-18:]) == (MAX_NAME_LENGTH, "xx to 8 partitions")


@pytest.mark.parametrize(
    ("partitions", "query", "why"),
    [(0, "", "0 is not a number of partitions"), (None, "counts", "one query alone"), (8, "a\0b", "NUL character")],
)
def test_nonsense_is_refused_before_there_is_a_job(partitions: int | None, query: str, why: str) -> None:
    with pytest.raises(SavepointError, match=why):
        rescale_graph(JOB, TRIGGER, partitions, query, "", 0)


def test_the_rollback_decides_what_became_of_a_rescale() -> None:
    name = savepoint_name(ID, TRIGGER)

    def status(job: JobStatus, rolled_back_to: str) -> tuple[OperationState, str, str]:
        found = rescale_status(ID, TRIGGER, shown(job), rolled_back_to)
        assert found.trigger_id == TRIGGER
        return found.state, found.path, found.error

    done = f"/savepoints/{name}-8-partitions"
    assert status(JobStatus.RUNNING, "") == (OperationState.IN_PROGRESS, "", "")
    assert status(JobStatus.FINISHED, done) == (OperationState.COMPLETED, done, "")
    assert status(JobStatus.FAILED, done) == (OperationState.COMPLETED, done, "")  # lost after the rollback
    assert status(JobStatus.FINISHED, "/savepoints/before") == (OperationState.COMPLETED, "/savepoints/before", "")
    for other in ("", "/savepoints/before", f"/savepoints/{name}"):
        state, path, error = status(JobStatus.CANCELED, other)
        assert (state, path) == (OperationState.FAILED, "")
        assert error == f"job {ID}, which rescales job {ID}, has not succeeded: it is CANCELED"


# ------------------------------------------------------------------ the Dispatcher

PLAIN = replace(JOB, configuration={})  # no file of queues is here


class Jobs:
    """The store of job graphs."""

    async def get(self, job_id: JobID) -> bytes:
        assert job_id == JOB.job_id
        return encode(PLAIN)


class Master:
    """The JobMaster of the job that is rescaled."""

    def __init__(self) -> None:
        self.history = RescaleHistory()
        self.failure: Exception | None = None
        self.figures = CheckpointStatsSnapshot()
        self.queries: list[QueryHistory] = []
        self.status = JobStatus.RUNNING
        self.names: tuple[str, ...] = ()
        self.task_executor = ""

    async def request_job(self) -> Any:
        found = shown(self.status, job_id=JOB.job_id, rescales=self.history.all, checkpoints=self.figures)
        placed = [replace(task.attempts[-1], task_executor=self.task_executor) for task in found.tasks]
        pairs = zip(found.tasks, placed, strict=True)
        found = replace(found, tasks=tuple(replace(task, attempts=(*task.attempts[:-1], last)) for task, last in pairs))
        if not self.names:
            return found
        reads, *others = found.tasks
        *before, last = reads.attempts
        last = replace(last, queries=tuple(StreamingQuery("q", "r", name, 3) for name in self.names))
        return replace(found, tasks=(replace(reads, attempts=(*before, last)), *others))

    async def request_query_histories(self) -> list[QueryHistory]:
        return self.queries

    async def report_rescale(self, rescale: Rescale) -> None:
        if self.failure is not None:
            raise self.failure
        self.history.report(rescale, 5)


class Recording(Storing):
    """Keeps the graphs that it accepts."""

    accepted: list[JobGraph]
    master: Master

    async def _run(self, graph: JobGraph, status: JobStatus) -> None:
        self.accepted.append(graph)
        await super()._run(graph, status)
        self._jobs[graph.job_id].leader.gateway = cast("Any", self.master)


@pytest.fixture
async def dispatcher(tmp_path: Path) -> AsyncIterator[Recording]:
    given = dispatcher_arguments(tmp_path)
    made = Recording(**given)
    made.accepted = []
    made.master = Master()
    made._term = TERM
    made.fencing_token = FencingToken(TERM.epoch, TERM.session)
    made._resource_manager = AsyncMock()
    made._ha = cast("Any", SimpleNamespace(job_graph_store=Jobs, close=AsyncMock()))
    yield made
    await given["service"].close()


async def test_a_request_that_is_repeated_makes_one_job(dispatcher: Recording) -> None:
    with pytest.raises(JobNotFoundError):
        await dispatcher.trigger_rescale(JOB.job_id, TRIGGER, 8, "", "")
    await dispatcher._run(PLAIN, JobStatus.RUNNING)
    asked = [dispatcher.trigger_rescale(JOB.job_id, TRIGGER, 8, "", "/data") for _ in range(3)]
    assert await asyncio.gather(*asked) == [rescale_job_id(JOB.job_id, TRIGGER)] * 3
    (made,) = dispatcher.accepted[1:]
    assert replace(made, created_ms=0) == rescale_graph(PLAIN, TRIGGER, 8, "", "/data", 0)
    with pytest.raises(SavepointError, match="0 is not a number"):
        await dispatcher.trigger_rescale(JOB.job_id, TriggerID("c" * 32), 0, "", "")
    del dispatcher._jobs[JOB.job_id]  # the job is over
    again = await dispatcher.trigger_rescale(JOB.job_id, TRIGGER, 8, "", "/data")
    assert again == made.job_id
    assert len(dispatcher.accepted) == 2


async def test_a_second_rescale_is_refused_while_the_first_is_under_way(dispatcher: Recording) -> None:
    await dispatcher._run(PLAIN, JobStatus.RUNNING)
    second = TriggerID("c" * 32)
    asked = [dispatcher.trigger_rescale(JOB.job_id, trigger_id, 8, "", "") for trigger_id in (TRIGGER, second, TRIGGER)]
    first, refused, again = await asyncio.gather(*asked, return_exceptions=True)
    doing = rescale_job_id(JOB.job_id, TRIGGER)
    assert (first, again) == (doing, doing)
    assert str(refused) == (f"job {doing} rescales job {JOB.job_id} already; wait until it has ended, or cancel it")
    assert isinstance(refused, RescaleInProgressError)
    assert (status_of(refused), isinstance(decode_error(*encode_error(refused)), RescaleInProgressError)) == (409, True)
    by_command = Rescale(TriggerID("e" * 32), 4)
    with pytest.raises(RescaleInProgressError):
        await dispatcher.report_rescale(JOB.job_id, by_command)
    await dispatcher.report_rescale(JOB.job_id, Rescale(TRIGGER, 8, {"counts": 2}))  # the task of the first
    (known,) = dispatcher.master.history.all
    assert (known.rescale_job, known.before, known.state) == (doing, {"counts": 2}, OperationState.IN_PROGRESS)
    del dispatcher._jobs[doing]  # it is over, without a word
    await dispatcher.report_rescale(JOB.job_id, by_command)
    assert len(dispatcher.accepted) == 2


async def test_a_dispatcher_that_leads_again_refuses_a_second_rescale(dispatcher: Recording) -> None:
    await dispatcher.on_revoked()
    await dispatcher._run(PLAIN, JobStatus.RUNNING)
    await dispatcher.trigger_rescale(JOB.job_id, TRIGGER, 8, "", "")
    with pytest.raises(RescaleInProgressError):
        await dispatcher.trigger_rescale(JOB.job_id, TriggerID("c" * 32), 8, "", "")


async def test_a_rescale_is_refused_while_a_command_changes_the_job(dispatcher: Recording, tmp_path: Path) -> None:
    await dispatcher._run(PLAIN, JobStatus.RUNNING)
    with changing(change_lock(tmp_path, JOB.job_id), JOB.job_id):
        with pytest.raises(RescaleInProgressError, match=f"a command rescales or upgrades job {JOB.job_id}"):
            await dispatcher.trigger_rescale(JOB.job_id, TRIGGER, 8, "", "")
        assert (len(dispatcher.accepted), dispatcher.master.history.all) == (1, ())
    await dispatcher.trigger_rescale(JOB.job_id, TRIGGER, 8, "", "")


async def test_a_rescale_whose_job_is_not_accepted_has_failed(dispatcher: Recording) -> None:
    await dispatcher._run(PLAIN, JobStatus.RUNNING)
    dispatcher.failure = JobSubmissionError("the disk is full")
    with pytest.raises(JobSubmissionError):
        await dispatcher.trigger_rescale(JOB.job_id, TRIGGER, 8, "", "")
    (known,) = dispatcher.master.history.all
    assert (known.state, known.error) == (OperationState.FAILED, "the disk is full")
    dispatcher.failure, dispatcher.master.failure = None, UnknownActor("no method")  # a JobMaster of release 0.1.0
    await dispatcher.trigger_rescale(JOB.job_id, TriggerID("c" * 32), 8, "", "")
    assert dispatcher.master.history.all == (known,)


async def test_a_rescale_that_was_killed_is_shown_and_recorded_as_failed(dispatcher: Recording, tmp_path: Path) -> None:
    """At once for a job of the cluster, and for a command as soon as the kernel has released its lock."""

    async def look() -> list[tuple[OperationState, str]]:
        seen = (await dispatcher.request_job(JOB.job_id)).rescales
        await asyncio.gather(*dispatcher._spawned)
        return [(one.state, one.error) for one in seen]

    await dispatcher._run(PLAIN, JobStatus.RUNNING)
    doing = await dispatcher.trigger_rescale(JOB.job_id, TRIGGER, 8, "", "")
    assert await look() == [(OperationState.IN_PROGRESS, "")]
    del dispatcher._jobs[doing]
    lost = (OperationState.FAILED, VANISHED)
    assert await look() == [lost]
    with changing(change_lock(tmp_path, JOB.job_id), JOB.job_id):
        await dispatcher.report_rescale(JOB.job_id, Rescale(TriggerID("e" * 32), 4))
        assert await look() == [lost, (OperationState.IN_PROGRESS, "")]
    assert await look() == [lost, lost]
    assert [one.ended_ms for one in dispatcher.master.history.all] == [5, 5]


@pytest.fixture
async def busy(dispatcher: Recording, monkeypatch: pytest.MonkeyPatch) -> Recording:
    """Its job has a query with 4 partitions that has been busy for 90 % of the time until now."""
    now_ms = round(time.time() * 1000)
    count = 9
    at_ms = tuple(now_ms - 1000 * back for back in reversed(range(count)))
    dispatcher.master.queries = [
        QueryHistory(READ, "q", "r", "counts", at_ms, lags=(None,) * count, busy=(0.9,) * count)
    ]
    dispatcher.master.figures = CheckpointStatsSnapshot(
        latest_completed=CheckpointStats(
            1, CheckpointStatsStatus.COMPLETED, SnapshotType.CHECKPOINT, 1, 1, 1, 1, 0, 0, 0, external_path="/c/7"
        )
    )

    def describe(path: Path) -> list[QueryDescription]:
        assert str(path) == "/c/7"
        conf = {"spark.sql.shuffle.partitions": "4"}
        return [QueryDescription("counts", operators=(OperatorDescription(0, "dedupe"),), conf=conf)]

    monkeypatch.setattr(rescales, "describe_state", describe)
    await dispatcher._run(PLAIN, JobStatus.RUNNING)
    return dispatcher


async def test_the_requirements_of_a_job_are_the_numbers_of_its_saved_state(
    busy: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = VertexResourceRequirements(
        WRITE, 1, 1, fixed_because="it has no streaming query with saved state; the next checkpoint of the job saves it"
    )
    busy.master.names = ("counts",)

    async def found() -> VertexResourceRequirements:
        read, write = await busy.request_job_resource_requirements(JOB.job_id)
        assert write == replace(other, fixed_because=write.fixed_because if read.queries == () else other.fixed_because)
        return read

    known = await found()
    assert (known.lower_bound, known.upper_bound, known.queries) == (1, 4, ("counts",))
    assert known.fixed_because == "the state of query 'counts' is not in RocksDB, the only store that Spark rescales"
    described = rescales.describe_state
    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

    def on_rocksdb(path: Path) -> list[QueryDescription]:
        key = "spark.sql.streaming.stateStore.providerClass"
        return [replace(one, conf={**one.conf, key: provider}) for one in described(path)]

    monkeypatch.setattr(rescales, "describe_state", on_rocksdb)
    assert await found() == VertexResourceRequirements(READ, 1, 4, ("counts",))
    job = busy._jobs[JOB.job_id]
    job.autoscaling = Autoscaling(AutoscalePolicy(least=2, most=16), is_dry_run=True)
    assert (await found()).upper_bound == 4
    job.autoscaling = replace(job.autoscaling, is_dry_run=False)
    known = await found()
    assert (known.lower_bound, known.upper_bound) == (2, 16)
    assert "the autoscaler chooses the number" in known.fixed_because

    asked: list[Path] = []

    def deleted(path: Path) -> list[QueryDescription]:
        asked.append(path)
        raise SavepointError(f"there is no savepoint {path}")

    monkeypatch.setattr(rescales, "describe_state", deleted)
    assert (await found()).fixed_because == "the saved state cannot be read: there is no savepoint /c/7"
    assert len(asked) == rescales.READS
    busy.master.figures = CheckpointStatsSnapshot()
    assert (await found()).fixed_because == other.fixed_because
    del busy._jobs[JOB.job_id]
    with pytest.raises(JobNotFoundError):
        await busy.request_job_resource_requirements(JOB.job_id)


async def look(dispatcher: Recording, **settings: str) -> None:
    """Let it look at the job once, as its loop does."""
    job = dispatcher._jobs[JOB.job_id]
    given = {"autoscaling.partitions": "2..16", **{f"autoscaling.{key}": text for key, text in settings.items()}}
    found = dispatcher._rescales.autoscaling_of(replace(PLAIN, configuration=given))
    assert found is not None
    await dispatcher._rescales.look_at(job, found)


def with_cores(dispatcher: Recording, cores: int | None, spark_master: str = "local[*]") -> None:
    """Have a TaskExecutor with so many cores run the job's first task, beside a task of another job."""
    name = ResourceID("tm-1")
    dispatcher.master.task_executor = name
    registration = TaskExecutorRegistration(name, "rpc://h:1/a", 1, 2, "4", "21", spark_master, 2, 3)
    jobs = JOB.job_id, JobID("f" * 32)
    slots = tuple(SlotStatus(SlotID(name, number), job_id) for number, job_id in enumerate(jobs))
    metrics = TaskManagerMetrics(1, 2.0, 3, 4, 5, 6.0, 7, cores=cores)
    info = TaskManagerInfo(registration, InstanceID.random(), SlotCounts(2), slots, 0, 0, metrics)
    manager = dispatcher._resource_manager.get.return_value  # type: ignore[attr-defined]
    manager.request_task_manager_info = AsyncMock(return_value=info)


async def test_the_cores_of_the_jobs_driver_bound_its_partitions_and_the_job_shows_that(
    busy: Recording, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with_cores(busy, 4)
    assert (await busy.request_job(JOB.job_id)).advice == ()
    await look(busy)
    await look(busy)
    (known,) = (await busy.request_job(JOB.job_id)).advice
    assert (known.partitions, known.wanted, known.lacks_cores) == (4, 4, True)
    assert (known.cores, known.task_executor, known.other_jobs) == (4, "tm-1", 1)
    assert known.reason == (
        "90% busy, above 80%; at most 4 partition(s) for the 4 core(s) of tm-1's Spark driver, shared with 1 other "
        "job(s): give it more cores, or run the job on a TaskExecutor with fewer jobs"
    )
    assert caplog.text.count(known.reason) == 1, "the log has it once, not at each look"
    assert len(busy.accepted) == 1
    await look(busy, **{"partitions-per-core": "2"})
    assert busy.accepted[1].argv[:2] == ("--partitions", "6")
    (found,) = busy.master.history.all
    assert found.reason == "90% busy, above 80%"


async def test_the_history_says_where_cores_bound_the_number(busy: Recording) -> None:
    with_cores(busy, 5, "spark://h:7077")
    await look(busy)
    (found,) = busy.master.history.all
    assert (found.partitions, found.reason) == (
        5,
        "90% busy, above 80%; at most 5 partition(s) for the 5 core(s) of the executors of tm-1's Spark driver, shared "
        "with 1 other job(s): add executors, or run the job on a TaskExecutor with fewer jobs",
    )


async def test_a_task_executor_that_has_left_bounds_nothing(busy: Recording) -> None:
    with_cores(busy, 4)
    manager = busy._resource_manager.get.return_value  # type: ignore[attr-defined]
    manager.request_task_manager_info.side_effect = UnknownTaskExecutorError("no TaskExecutor tm-1 is registered")
    await look(busy)
    assert busy.accepted[1].argv[:2] == ("--partitions", "6")


async def test_a_store_that_does_not_answer_ends_no_autoscaling(
    busy: Recording, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(busy._rescales, "_submitted", AsyncMock(side_effect=HaUnreachableError("Redis", "away")))
    await look(busy)
    assert "is not rescaled by itself now" in caplog.text
    assert len(busy.accepted) == 1


async def test_a_busy_job_is_rescaled_by_itself_and_the_history_says_why(busy: Recording) -> None:
    await look(busy)
    (made,) = busy.accepted[1:]
    assert made.argv[:3] == ("--partitions", "6", "--query=counts")
    (known,) = busy.master.history.all
    assert (known.cause, known.reason) == (RescaleCause.AUTOSCALER, "90% busy, above 80%")
    assert (known.partitions, known.rescale_job, known.state) == (6, made.job_id, OperationState.IN_PROGRESS)
    await look(busy)  # while it is in progress
    busy.master.history.report(replace(known, state=OperationState.FAILED), round(time.time() * 1000))
    del busy._jobs[made.job_id]
    await look(busy)  # soon after it has failed
    assert len(busy.accepted) == 2


@pytest.mark.parametrize("why", ["dry run", "restarting", "no saved state", "bounds", "one more rescales"])
async def test_a_job_is_not_rescaled_by_itself(busy: Recording, why: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    other = TriggerID("e" * 32)
    settings = {"dry-run": "true"} if why == "dry run" else {"partitions": "1..4"} if why == "bounds" else {}
    busy.master.status = JobStatus.RESTARTING if why == "restarting" else JobStatus.RUNNING
    if why == "no saved state":
        busy.master.figures = CheckpointStatsSnapshot()
    if why == "one more rescales":
        await busy.trigger_rescale(JOB.job_id, other, 8, "", "")
    await look(busy, **settings)
    assert [one.trigger_id for one in busy.master.history.all] == [other] * (why == "one more rescales")
    line = f"would rescale query 'counts' of job {JOB.job_id} from 4 to 6 partitions: 90% busy, above 80%"
    assert (line in caplog.text) == (why == "dry run")


async def test_a_look_that_fails_ends_nothing(busy: Recording, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    busy.failure = SubmissionLimitError("too many jobs")
    await look(busy)
    assert "is not rescaled by itself now: too many jobs" in caplog.text
    (known,) = busy.master.history.all
    assert (known.cause, known.state, known.error) == (
        RescaleCause.AUTOSCALER,
        OperationState.FAILED,
        "too many jobs",
    )
    busy._jobs[JOB.job_id].leader.gateway = None
    await look(busy)
    assert "is being started" in caplog.text


async def test_the_leader_looks_at_the_jobs_that_ask_for_it_until_it_is_revoked(
    busy: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[JobID] = []

    async def look_at(job: RunningJob, settings: Autoscaling) -> None:
        looked.append(job.job_id)
        if len(looked) == 3:
            busy._term = None

    monkeypatch.setattr(busy._rescales, "look_at", look_at)
    monkeypatch.setattr(busy, "may_act", lambda term: busy._term == term)
    busy._rescales._configuration = SimpleNamespace(get=lambda option: 0.0)  # type: ignore[assignment]
    await busy._run(job_of(8), JobStatus.RUNNING)
    policy = AutoscalePolicy()
    busy._jobs[JOB.job_id].autoscaling = Autoscaling(policy, is_dry_run=False)
    await asyncio.wait_for(busy._rescales.autoscale(TERM), PATIENCE_S)
    assert looked == [JOB.job_id] * 3


async def test_settings_that_a_release_does_not_know_leave_the_job_alone(
    dispatcher: Recording, caplog: pytest.LogCaptureFixture
) -> None:
    later = replace(PLAIN, configuration={"autoscaling.partitions": "2..16", "autoscaling.of-tomorrow": "1"})
    assert dispatcher._rescales.autoscaling_of(later) is None
    assert f"job {JOB.job_id} is not rescaled by itself" in caplog.text
    assert dispatcher._rescales.autoscaling_of(PLAIN) is None


async def test_what_became_of_a_rescale_is_known_by_its_job_and_the_rollback(
    dispatcher: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        UnknownOperationError, match=f"no rescale of job {JOB.job_id} is known by the trigger {TRIGGER}"
    ):
        await dispatcher.request_rescale_status(JOB.job_id, TRIGGER)
    doing = shown(JobStatus.RUNNING, job_id=rescale_job_id(JOB.job_id, TRIGGER))
    path = f"/s/{savepoint_name(JOB.job_id, TRIGGER)}-8-partitions"

    async def job(job_id: JobID) -> Any:
        assert job_id == doing.job_id
        return doing

    async def figures(job_id: JobID) -> CheckpointStatsSnapshot:
        assert job_id == JOB.job_id
        return CheckpointStatsSnapshot(rolled_back_to=path)

    monkeypatch.setattr(dispatcher, "_job", job)
    monkeypatch.setattr(dispatcher, "_checkpoint_statistics", figures)
    assert (await dispatcher.request_rescale_status(JOB.job_id, TRIGGER)).state is OperationState.IN_PROGRESS
    doing = replace(doing, status=JobStatus.FAILED)
    done = OperationStatus(TRIGGER, OperationState.COMPLETED, path=path)
    assert await dispatcher.request_rescale_status(JOB.job_id, TRIGGER) == done


# ------------------------------------------------------------------ its task


class Task:
    """The task of a rescale: how it connects, and what its rescaler does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        self.failure: Exception | None = None
        self.called: list[Any] = []
        self.rescaler: dict[str, Any] = {}
        monkeypatch.setenv(CLUSTER_DIR_VARIABLE, str(root))
        Configuration().write(ClusterDirectory(root).configuration_file)
        monkeypatch.setattr(rescale_task, "connect_locally", self.connect)
        monkeypatch.setattr(rescale_task, "JobRescaler", self.make)
        self.runtime_dir: Path | None = None

    def connect(self, configuration: Configuration) -> Any:
        from conf.options import ClusterOptions

        self.runtime_dir = configuration.get(ClusterOptions.RUNTIME_DIR)
        client = SimpleNamespace(__enter__=lambda: client, __exit__=lambda *_: None)

        class Client:
            def __enter__(self) -> Any:
                return client

            def __exit__(self, *_: object) -> None:
                pass

        return Client()

    def make(self, client: Any, *given: Any, **more: Any) -> Any:
        self.rescaler = more

        def rescale(*arguments: Any, **named: Any) -> RescaledJob:
            self.called.append((arguments, named))
            with more["step"]("making a savepoint", "what is left"):
                more["note"]("a note\x1b")
            if self.failure is not None:
                raise self.failure
            return RescaledJob(JOB.job_id, 8, "/s/one-8-partitions", "/s/one")

        return SimpleNamespace(rescale=rescale, undo=rescale)

    def run(self, monkeypatch: pytest.MonkeyPatch, graph: JobGraph) -> None:
        monkeypatch.setattr("sys.argv", ["rescale.py", *graph.argv])
        rescale_task.main()


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Task:
    return Task(monkeypatch, tmp_path)


def test_the_task_rescales_the_job_in_its_own_spark(
    task: Task, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    task.run(monkeypatch, rescale_graph(JOB, TRIGGER, 8, "counts", "/data", 0))
    task.run(monkeypatch, rescale_graph(JOB, TRIGGER, None, "", "", 0))
    assert task.called == [
        ((JOB.job_id, 8, "counts"), {"directory": Path("/data")}),
        ((JOB.job_id, None), {}),
    ]
    assert (task.rescaler["run"], task.rescaler["trigger_id"]) == (rescale_task.rescale_in_task, TRIGGER)
    assert task.runtime_dir == tmp_path
    done = f"job {JOB.job_id} has 8 partitions: its tasks restart from /s/one-8-partitions"
    assert capsys.readouterr().out.splitlines() == ["making a savepoint", "a note\\x1b", done] * 2


@pytest.mark.parametrize(
    ("failure", "text"),
    [
        (SavepointError("it does not fit", "keep it"), "it does not fit; keep it"),
        (JobAlreadyTerminatedError("it is over"), "it is over"),
        (DriverCallError("Spark\nis away"), "Spark\\nis away"),
        (NoAnswerError("nobody answers"), "nobody answers"),
    ],
)
def test_the_failure_of_its_job_is_one_line_with_the_remedy(
    task: Task, monkeypatch: pytest.MonkeyPatch, failure: Exception, text: str
) -> None:
    task.failure = failure
    with pytest.raises(ScriptExitError) as caught:
        task.run(monkeypatch, rescale_graph(JOB, TRIGGER, 8, "", "", 0))
    assert (str(caught.value), caught.value.text, caught.value.status) == (text, text, 1)


def test_a_task_outside_of_a_cluster_says_so(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CLUSTER_DIR_VARIABLE)
    with pytest.raises(ScriptExitError, match="has no runtime directory; run `understudy job rescale` without"):
        task.run(monkeypatch, rescale_graph(JOB, TRIGGER, 8, "", "", 0))


# ------------------------------------------------------------------ by REST


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def asked(site: Site, body: Any, job_id: str = ID) -> Any:
    return await site.ask("POST", f"/v1/jobs/{job_id}/rescales", [json.dumps(body).encode()])


async def test_a_rescale_is_asked_for_by_rest_and_asked_after(site: Site, tmp_path: Path) -> None:
    body = {"partitions": 8, "query": "counts", "targetDirectory": f"file:{tmp_path}/s", "triggerId": TRIGGER}
    told = await asked(site, body)
    assert told.status == 202
    assert told.json == {"request-id": TRIGGER, "rescale-job": rescale_job_id(ID, TRIGGER)}
    undo = await asked(site, {"undo": True, "partitions": None, "query": None})
    assert undo.status == 202
    assert site.cluster.rescaled == [
        (ID, TRIGGER, 8, "counts", f"{tmp_path}/s"),
        (ID, undo.json["request-id"], None, "", ""),
    ]
    status = f"/v1/jobs/{ID}/rescales/{TRIGGER}"
    assert (await site.ask("GET", status)).status == 404
    for known, answer in (
        (OperationStatus(TRIGGER, OperationState.IN_PROGRESS), {"status": {"id": "IN_PROGRESS"}, "operation": None}),
        (
            OperationStatus(TRIGGER, OperationState.COMPLETED, path="/s/one"),
            {"status": {"id": "COMPLETED"}, "operation": {"location": "file:/s/one"}},
        ),
    ):
        site.cluster.operations[TRIGGER] = known
        assert (await site.ask("GET", status)).json == answer
    site.cluster.operations[TRIGGER] = OperationStatus(TRIGGER, OperationState.FAILED, error="it does not fit")
    told = (await site.ask("GET", status)).json
    assert "it does not fit" in told["operation"]["failure-cause"]["stack-trace"]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({}, "give either `partitions`, the new number, or `undo: true`"),
        ({"partitions": 8, "undo": True}, "give either `partitions`"),
        ({"undo": False}, "give either `partitions`"),
        ({"undo": True, "query": "counts"}, "undo takes no query"),
        ({"partitions": True}, "partitions must be an integer"),
        ({"partitions": "8"}, "partitions must be an integer"),
        ({"partitions": 8.0}, "partitions must be an integer"),
        ({"partitions": 0}, "partitions must be a whole number from 1 to 2147483647"),
        ({"partitions": 1 << 31}, "partitions must be a whole number from 1 to 2147483647"),
        ({"partitions": 8, "undo": 1}, "undo must be a boolean"),
        ({"partitions": 8, "parallelism": 8}, "there is no field 'parallelism'"),
        ({"partitions": 8, "targetDirectory": "elsewhere"}, "not an absolute local path"),
        ({"partitions": 8, "triggerId": "x"}, "not a trigger id"),
        ([], "must be an object"),
    ],
)
async def test_a_wrong_request_is_refused_with_one_line(site: Site, body: Any, why: str) -> None:
    told = await asked(site, body)
    assert (told.status, why in told.error) == (400, True), told.error
    assert site.cluster.rescaled == []


async def test_a_job_that_is_over_or_unknown_is_not_rescaled(site: Site) -> None:
    assert (await asked(site, {"partitions": 8}, site.cluster.finished.job_id)).status == 409
    assert (await asked(site, {"partitions": 8}, "9" * 32)).status == 404


# ------------------------------------------------------------------ the command, and Python


class Client:
    """A client whose cluster rescales."""

    def __init__(self, *statuses: OperationStatus) -> None:
        self.statuses = list(statuses)
        self.asked: list[tuple[Any, ...]] = []
        self.awaited: list[tuple[JobID, TriggerID]] = []

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def trigger_rescale(self, *asked: Any) -> JobID:
        self.asked.append(asked)
        return JobID("d" * 32)

    def await_rescale(self, job_id: JobID, trigger_id: TriggerID) -> OperationStatus:
        self.awaited.append((job_id, trigger_id))
        return self.statuses.pop(0)

    def web_page(self, job_id: JobID) -> str:
        return f"http://127.0.0.1:1/#/jobs/{job_id}"


def test_the_command_returns_at_once_with_the_job_that_does_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    client = Client()
    monkeypatch.setattr("runtime.cluster.discovery.connect", lambda configuration: client)
    words = ["job", "rescale", "--detach", "--partitions", "8", "--query", "counts", "--savepoint", str(tmp_path), ID]
    done = CliRunner().invoke(cli, words)
    assert (done.exit_code, done.stdout) == (ExitStatus.DONE, "d" * 32 + "\n"), done.stderr
    assert f"job {ID} is rescaled by job {'d' * 32}: `understudy job info {'d' * 32}` shows" in done.stderr
    words = ["job", "rescale", "--undo", "--detached", "--json", ID]
    printed = parsed(words, CliRunner().invoke(cli, words).stdout)
    assert printed["job_id"] == "d" * 32
    assert client.asked == [(ID, 8, "counts", tmp_path), (ID, None, "", None)]


async def test_a_handle_has_the_cluster_rescale_and_waits() -> None:
    done = OperationStatus(TRIGGER, OperationState.COMPLETED, path="/s/one-8-partitions")
    client = Client(done, done, OperationStatus(TRIGGER, OperationState.FAILED, error="it does not fit"))
    job: Job[Any] = Job(cast("ClusterClient", client), ID)
    assert job.rescale_in_cluster(8, query="counts", directory="/data") == Path("/s/one-8-partitions")
    assert await AsyncJob(job).rescale_in_cluster(None) == Path("/s/one-8-partitions")
    assert [asked[:4] for asked in client.asked] == [(ID, 8, "counts", Path("/data")), (ID, None, "", None)]
    assert [(ID, asked[4]) for asked in client.asked] == client.awaited
    with pytest.raises(ClusterError, match="it does not fit") as caught:
        job.rescale_in_cluster(8)
    assert f"job {ID} continues as it was" in caught.value.remedy
    assert not isinstance(caught.value, ActorError)

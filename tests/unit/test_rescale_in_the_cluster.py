"""A rescale that the cluster does: the job that is made for it, its task, and what clients are told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest
from click.testing import CliRunner

from actors.errors import ActorError
from actors.rpc.gateway import FencingToken
from conf.configuration import Configuration
from runtime.checkpoint.errors import SavepointError
from runtime.checkpoint.names import rescale_job_id, savepoint_name
from runtime.client import ClusterClient, NoAnswerError
from runtime.cluster import rescale_task
from runtime.cluster.cli import cli
from runtime.cluster.command_line import ExitStatus
from runtime.cluster.documents import RescaledJob
from runtime.cluster.rescale_task import _arguments
from runtime.dispatcher.rescale_job import rescale_graph, rescale_status
from runtime.environment.directory import CLUSTER_DIR_VARIABLE, ClusterDirectory
from runtime.errors import ClusterError
from runtime.ids import JobID, TriggerID
from runtime.jobgraph.codec import encode
from runtime.jobgraph.job_graph import JobGraph
from runtime.jobgraph.restart_config import RestartStrategyConfig
from runtime.jobgraph.validation import MAX_NAME_LENGTH, validate
from runtime.notebook import AsyncJob, Job
from runtime.protocol.checkpoint_statistics import CheckpointStatsSnapshot
from runtime.protocol.checkpoints import OperationState, OperationStatus
from runtime.protocol.errors import JobAlreadyTerminatedError, JobNotFoundError, UnknownOperationError
from runtime.protocol.execution_state import JobStatus
from runtime.spark.errors import DriverCallError, ScriptExitError
from tests.dispatcher_arguments import dispatcher_arguments
from tests.json_output import parsed
from tests.unit.test_dispatcher_queues import TERM, Storing
from tests.unit.test_dispatcher_queues import graph as job_of
from tests.unit.test_rest_app import Site
from tests.unit.test_rest_messages import ID
from tests.unit.test_rest_messages import graph as shown

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
    [(0, "", "0 is no number of partitions"), (None, "counts", "one query alone"), (8, "a\0b", "NUL character")],
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


class Recording(Storing):
    """Keeps the graphs that it accepts."""

    accepted: list[JobGraph]

    async def _run(self, graph: JobGraph, status: JobStatus) -> None:
        self.accepted.append(graph)
        await super()._run(graph, status)


@pytest.fixture
async def dispatcher(tmp_path: Path) -> AsyncIterator[Recording]:
    given = dispatcher_arguments(tmp_path)
    made = Recording(**given)
    made.accepted = []
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
    with pytest.raises(SavepointError, match="0 is no number"):
        await dispatcher.trigger_rescale(JOB.job_id, TriggerID("c" * 32), 0, "", "")
    del dispatcher._jobs[JOB.job_id]  # the job is over
    again = await dispatcher.trigger_rescale(JOB.job_id, TRIGGER, 8, "", "/data")
    assert again == made.job_id
    assert len(dispatcher.accepted) == 2


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
        ({}, "name either partitions, the new number, or undo: true"),
        ({"partitions": 8, "undo": True}, "name either partitions"),
        ({"undo": False}, "name either partitions"),
        ({"undo": True, "query": "counts"}, "undo takes no query"),
        ({"partitions": True}, "partitions must be an integer"),
        ({"partitions": "8"}, "partitions must be an integer"),
        ({"partitions": 8.0}, "partitions must be an integer"),
        ({"partitions": 0}, "partitions must be a whole number from 1 to 2147483647"),
        ({"partitions": 1 << 31}, "partitions must be a whole number from 1 to 2147483647"),
        ({"partitions": 8, "undo": 1}, "undo must be a boolean"),
        ({"partitions": 8, "parallelism": 8}, "there is no field 'parallelism'"),
        ({"partitions": 8, "targetDirectory": "elsewhere"}, "no absolute local path"),
        ({"partitions": 8, "triggerId": "x"}, "no trigger id"),
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

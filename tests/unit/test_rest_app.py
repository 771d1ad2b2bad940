"""The REST API over a cluster that is made up: routes, errors, bounds, and the document that describes it all."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack
import pytest

from actors.address import ActorAddress
from actors.errors import RecipientUnreachable
from actors.process.diagnostics import ActorInfo, LogLevelError, ProcessActors
from blob.errors import BlobNotFound
from blob.gateway import BlobAddress
from blob.key import BlobKey, TransientBlobKey
from conf.configuration import Configuration
from runtime.api import Pipeline
from runtime.checkpoint.errors import SavepointError
from runtime.checkpoint.manifest import SavepointJob
from runtime.checkpoint.names import rescale_job_id
from runtime.checkpoint.savepoint import write_savepoint
from runtime.checkpoint.snapshot import take_snapshot
from runtime.client import JobFile
from runtime.ids import ExecutionAttemptID, InstanceID, JobID, ResourceID, TriggerID
from runtime.job_logs import LogChunk
from runtime.jobgraph.job_graph import JobGraph, JobKind, SavepointRestoreSettings
from runtime.jobgraph.json_form import to_json
from runtime.jobmaster.metrics import job_metrics
from runtime.metrics.store import MetricStore
from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph, AttemptInfo, JobDetails
from runtime.protocol.checkpoint_statistics import CheckpointStatsSnapshot
from runtime.protocol.checkpoints import CheckpointTrigger, OperationState, OperationStatus
from runtime.protocol.diagnostics import ComponentLog, LogInfo, ThreadDump, ThreadInfo
from runtime.protocol.errors import (
    JobAlreadyTerminatedError,
    JobNotFoundError,
    NoSuchLogError,
    NoSuchTaskError,
    SubmissionLimitError,
    UnknownOperationError,
    UnknownTaskExecutorError,
)
from runtime.protocol.execution_state import JobStatus
from runtime.protocol.leader import DISPATCHER, LeaderInformation
from runtime.protocol.messages import (
    ClusterOverview,
    ClusterStatus,
    MultipleJobsDetails,
    ProcessView,
    TaskManagerInfo,
    TaskManagerView,
)
from runtime.protocol.processes import LogLevelChange, UnknownProcessError
from runtime.protocol.queues import QueuesOverview
from runtime.protocol.rescales import VertexResourceRequirements
from runtime.protocol.slots import SlotCounts
from runtime.protocol.streaming_query import QueryHistory
from runtime.rest.access import AccessPolicy
from runtime.rest.app import RestApplication
from runtime.rest.authorization import KnownIdentities, nobody
from runtime.rest.context import Rest
from runtime.rest.page_login import PageLogin
from runtime.rest.snapshots import Snapshots
from runtime.stack_samples import FoldedStack, StackProfile
from runtime.users.audit import AuditLog
from runtime.users.login import LoginOffer
from tests.streaming_files import StreamingFiles
from tests.unit.metric_values import METRICS
from tests.unit.test_rest_messages import FIGURES, HISTORY, ID, QUEUES, READ, REGISTRATION, WRITE, graph
from tests.unit.test_trace_context import TEXT

TOKEN = b"t" * 64
MAX_CONTENT = 100_000
UNKNOWN = JobID("f" * 32)
BLOB = str(TransientBlobKey.create(hashlib.sha256(b"a blob").digest(), b"r" * 16))


class MadeUpBlobs:
    """Blobs in memory, by their keys."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.failure: Exception | None = None

    def put_file(self, path: Path, key_type: type[Any], job_id: str | None = None) -> Any:
        return self.put_bytes(path.read_bytes(), key_type, job_id)

    def put_bytes(self, data: bytes, key_type: type[Any], job_id: str | None = None) -> Any:
        if self.failure is not None:
            raise self.failure
        key = key_type.create(hashlib.sha256(data).digest())
        self.kept[str(key)] = data
        return key

    def get_bytes(self, key: BlobKey, job_id: str | None = None) -> bytes:
        if str(key) not in self.kept:
            raise BlobNotFound(f"no blob {key}")
        return self.kept[str(key)]

    def delete(self, key: BlobKey, job_id: str | None = None) -> bool:
        return self.kept.pop(str(key), None) is not None


class MadeUpGateway:
    """Any gateway of the made-up cluster: notes what is asked of it, and answers what the cluster knows."""

    def __init__(self, cluster: MadeUpCluster, name: str) -> None:
        self._cluster = cluster
        self._name = name

    def __getattr__(self, method: str) -> Any:
        async def answer(*arguments: Any) -> Any:
            self._cluster.called.append((self._name, method, arguments))
            match method:
                case "request_cluster_overview":
                    return await self._cluster.overview()
                case "request_multiple_job_details":
                    return MultipleJobsDetails(await self._cluster.jobs())
                case "request_job":
                    return await self._cluster.job(*arguments)
                case "request_job_status":
                    return (await self._cluster.job(*arguments)).status
                case "cancel_job":
                    return await self._cluster.cancel(*arguments)
                case "get_blob_server":
                    return BlobAddress("blobs.example", 1)
                case "request_task_managers":
                    return await self._cluster.task_managers()
                case "request_status":
                    return await self._cluster.status()
                case "request_file_upload":
                    return ComponentLog(ResourceID("tm-0"), arguments[0], 3, BLOB)
            return self._cluster.answers[method]

        return answer


class MadeUpLink:
    """The link of the made-up cluster."""

    system = ActorAddress.parse("akka.tcp://u@h:1/user/receptionist")

    def __init__(self, cluster: MadeUpCluster) -> None:
        self._cluster = cluster

    def master(self) -> Any:
        return MadeUpGateway(self._cluster, "master")

    def gateway(self, address: ActorAddress, gateway_type: type[Any], timeout_s: float | None = None) -> Any:
        return MadeUpGateway(self._cluster, str(address))


class MadeUpCluster:
    """A running job, a finished one, a TaskExecutor; counts what was done to it."""

    def __init__(self) -> None:
        self.running = graph()
        self.finished = graph(JobStatus.FINISHED, job_id=JobID("2" * 32))
        self.cancelled: list[JobID] = []
        self.submitted: list[tuple[JobGraph, list[tuple[JobFile, bytes]]]] = []
        self.stopped = False
        self.triggered: list[tuple[JobID, CheckpointTrigger]] = []
        self.rolled_back: list[tuple[TriggerID, str, bool]] = []
        self.requirements = [
            VertexResourceRequirements(READ, 1, 4, ("clicks",)),
            VertexResourceRequirements(WRITE, 1, 1, fixed_because="it has no streaming query"),
        ]
        self.rescaled: list[tuple[JobID, TriggerID, int | None, str, str]] = []
        self.operations: dict[TriggerID, OperationStatus] = {}
        self.savepoints: set[str] = set()
        self.failure: Exception | None = None
        self.asked = 0
        self.levels = {"root": "INFO"}
        self.called: list[tuple[str, str, tuple[Any, ...]]] = []
        self.answers: dict[str, Any] = {}
        self.link = MadeUpLink(self)
        self.blobs = MadeUpBlobs()
        self.blobs.kept[BLOB] = b"a blob"
        self.uploads: list[tuple[JobID, str, int, str, str]] = []
        self.uploads_ended: list[tuple[JobID, str]] = []
        self.most_uploaded: int | None = None

    async def admit_upload(self, job_id: JobID, upload_id: str, size: int, owner: str, name: str = "") -> None:
        if self.most_uploaded is not None and size > self.most_uploaded:
            raise SubmissionLimitError.of(f"job {name!r} was not accepted: {size} bytes", 10)
        self.uploads.append((job_id, upload_id, size, owner, name))

    async def end_upload(self, job_id: JobID, owner: str) -> None:
        self.uploads_ended.append((job_id, owner))

    async def call(self, name: str, gateway_type: type[Any], question: Callable[[Any], Any]) -> Any:
        return await question(MadeUpGateway(self, name))

    async def ask(self, question: Callable[[Any], Any]) -> Any:
        return await question(MadeUpGateway(self, DISPATCHER))

    async def with_blobs(self, work: Callable[[Any], Any]) -> Any:
        return work(self.blobs)

    async def blob_server(self) -> BlobAddress:
        return BlobAddress("blobs.example", 1)

    async def submit_graph(self, job_graph: JobGraph) -> JobID:
        self._fail()
        self.submitted.append((job_graph, []))
        return job_graph.job_id

    def _fail(self) -> None:
        self.asked += 1
        if self.failure is not None:
            raise self.failure

    async def jobs(self) -> tuple[JobDetails, ...]:
        self._fail()
        return (self.running.details(), self.finished.details())

    async def job(self, job_id: JobID) -> ArchivedExecutionGraph:
        self._fail()
        for job in (self.running, self.finished):
            if job.job_id == job_id:
                return job
        raise JobNotFoundError(f"no job {job_id}")

    async def cancel(self, job_id: JobID) -> None:
        job = await self.job(job_id)
        if job.status.is_terminal:
            raise JobAlreadyTerminatedError(f"job {job_id} is over")
        self.cancelled.append(job_id)

    async def query_histories(self, job_id: JobID) -> list[QueryHistory]:
        await self.job(job_id)
        return [HISTORY]

    async def checkpoints(self, job_id: JobID) -> CheckpointStatsSnapshot:
        await self.job(job_id)
        return FIGURES

    async def trigger(self, job_id: JobID, trigger: CheckpointTrigger) -> OperationStatus:
        job = await self.job(job_id)
        if job.status.is_terminal:
            raise JobAlreadyTerminatedError(f"job {job_id} is over")
        self.triggered.append((job_id, trigger))
        begun = OperationStatus(trigger.trigger_id, OperationState.IN_PROGRESS)
        return self.operations.setdefault(trigger.trigger_id, begun)

    async def roll_back(self, job_id: JobID, trigger_id: TriggerID, target: str, new_query_id: bool) -> OperationStatus:
        await self.job(job_id)
        if target == "chk-7":
            raise SavepointError("chk-7 is not a savepoint")
        self.rolled_back.append((trigger_id, target, new_query_id))
        return OperationStatus(trigger_id, OperationState.COMPLETED, path=target)

    async def trigger_rescale(
        self, job_id: JobID, trigger_id: TriggerID, partitions: int | None, query: str, directory: str
    ) -> JobID:
        job = await self.job(job_id)
        if job.status.is_terminal:
            raise JobAlreadyTerminatedError(f"job {job_id} is over")
        self.rescaled.append((job_id, trigger_id, partitions, query, directory))
        return rescale_job_id(job_id, trigger_id)

    async def resource_requirements(self, job_id: JobID) -> list[VertexResourceRequirements]:
        job = await self.job(job_id)
        if job.status.is_terminal:
            raise JobAlreadyTerminatedError(f"job {job_id} is over")
        return self.requirements

    async def rescale_status(self, job_id: JobID, trigger_id: TriggerID) -> OperationStatus:
        return await self.operation(job_id, trigger_id)

    async def operation(self, job_id: JobID, trigger_id: TriggerID) -> OperationStatus:
        await self.job(job_id)
        if trigger_id not in self.operations:
            raise UnknownOperationError(f"no trigger {trigger_id}")
        return self.operations[trigger_id]

    async def dispose_savepoint(self, path: str) -> bool:
        self._fail()
        if path.endswith("precious"):
            raise SavepointError(f"{path} is not a savepoint: it is left alone")
        if path not in self.savepoints:
            return False
        self.savepoints.remove(path)
        return True

    async def submit(self, job_graph: JobGraph, files: Iterable[JobFile]) -> JobID:
        self._fail()
        self.submitted.append((job_graph, [(file, file.path.read_bytes()) for file in files]))
        return job_graph.job_id

    async def overview(self) -> ClusterOverview:
        self._fail()
        return ClusterOverview(1, 2, 1, 0, 1, 1, 0, 0)

    async def queues(self) -> QueuesOverview:
        self._fail()
        return QUEUES

    async def task_managers(self) -> list[TaskManagerView]:
        return [TaskManagerView(REGISTRATION, InstanceID("1" * 32), 1, 10, 4000)]

    async def task_manager(self, resource_id: ResourceID) -> TaskManagerInfo:
        if resource_id != REGISTRATION.resource_id:
            raise UnknownTaskExecutorError(f"no TaskExecutor {resource_id}")
        return TaskManagerInfo(REGISTRATION, InstanceID("1" * 32), SlotCounts(2, 1), (), 10, 4000, None)

    async def task_manager_logs(self, resource_id: ResourceID) -> list[LogInfo]:
        await self.task_manager(resource_id)
        return [LogInfo("taskexecutor", 5, 4000)]

    async def task_manager_log(self, resource_id: ResourceID, name: str) -> bytes:
        await self.task_manager(resource_id)
        if name != "taskexecutor":
            raise NoSuchLogError(f"no log {name!r}")
        return b"a log"

    async def task_manager_profile(
        self, resource_id: ResourceID, samples: int, interval_ms: int, attempt_id: ExecutionAttemptID | None
    ) -> StackProfile:
        await self.task_manager(resource_id)
        if attempt_id not in (None, "1" * 32):
            raise NoSuchTaskError(f"no process of attempt {attempt_id}")
        return StackProfile(7, samples, interval_ms, (FoldedStack(("main", "run (a.py)"), samples),))

    async def task_manager_log_from(self, resource_id: ResourceID, name: str, offset: int) -> LogChunk:
        return LogChunk((await self.task_manager_log(resource_id, name))[offset:], 5)

    async def task_manager_threads(self, resource_id: ResourceID) -> ThreadDump:
        await self.task_manager(resource_id)
        return ThreadDump(1, (ThreadInfo("main", "at x"),))

    async def task_log(self, job_id: JobID, attempt: AttemptInfo, name: str, offset: int) -> tuple[bytes, bool]:
        return b"0123456789"[offset:], attempt.state.is_terminal

    async def metrics(self) -> MetricStore:
        self._fail()
        return MetricStore([*METRICS, *job_metrics(self.running, 5000)])

    async def process_actors(self) -> dict[str, ProcessActors | None]:
        self._fail()
        actors = (ActorInfo("/user/dispatcher", "Dispatcher", True, 41, 2, 1),)
        return {"dispatcher": ProcessActors(7, 3, 5, actors), "master": None}

    async def log_levels(self) -> dict[str, dict[str, str] | None]:
        self._fail()
        return {"dispatcher": dict(self.levels), "master": None}

    async def set_log_level(self, process: str | None, logger: str, level: str) -> list[LogLevelChange]:
        self._fail()
        if process not in (None, "dispatcher"):
            raise UnknownProcessError(f"no process {process!r} can be asked; there are dispatcher")
        if logger not in self.levels:
            raise LogLevelError(f"no logger {logger!r}")
        was, self.levels[logger] = self.levels[logger], level
        return [LogLevelChange("dispatcher", logger, level, was)]

    async def status(self) -> ClusterStatus:
        self._fail()
        processes = (ProcessView("dispatcher", "actor", 7, "akka.tcp://u@h:1/user/dispatcher", 2, "leader"),)
        return ClusterStatus("made-up", "0.1.0", "akka.tcp://u@h:1", 100, processes)

    def leaders(self) -> list[LeaderInformation]:
        return [LeaderInformation(DISPATCHER, "akka.tcp://u@h:1/user/dispatcher", 12, "s")]

    async def shut_down(self) -> None:
        self.stopped = True


@dataclass
class Answer:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        (message,) = self.json["errors"]
        return str(message)


class Site:
    """Asks an application as a server does."""

    def __init__(
        self,
        directory: Path,
        max_age_s: float = 0.0,
        clock: Any = lambda: 0.0,
        identities: KnownIdentities | None = None,
        audit: AuditLog | None = None,
        offer: LoginOffer | None = None,
        page_login: Callable[[AccessPolicy], PageLogin | None] = lambda policy: None,
    ) -> None:
        self.cluster = MadeUpCluster()
        configuration = Configuration.from_dict(
            {"high-availability.redis.url": "redis://:hidden@h/0", "cluster.runtime-dir": str(directory / "runtime")}
        )
        rest = Rest(
            self.cluster,
            Snapshots(max_age_s, clock),
            configuration,
            directory,
            "http://localhost:8081",
            identities=identities or KnownIdentities(nobody),
        )
        policy = AccessPolicy(TOKEN, [], "http", MAX_CONTENT, has_issuer=offer is not None)
        self.app = RestApplication(
            rest,
            policy,
            MAX_CONTENT,
            with_token=True,
            audit=audit,
            offer=offer,
            page_login=page_login(policy),
        )

    async def ask(
        self,
        method: str,
        target: str,
        body: Iterable[bytes] = (),
        *headers: tuple[bytes, bytes],
        token: bytes = TOKEN,
        client: str = "127.0.0.1",
    ) -> Answer:
        path, _, query = target.partition("?")
        answer, pieces = Answer(), itertools.chain(body, (b"",))

        async def receive() -> dict[str, Any]:
            piece = next(pieces, None)
            if piece is None:
                await asyncio.Event().wait()  # the client neither sends anything more nor goes away
                raise AssertionError
            return {"type": "http.request", "body": piece, "more_body": piece != b""}

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                answer.status = message["status"]
                answer.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            else:
                answer.body += message.get("body", b"")

        shown = [(b"host", b"localhost"), (b"authorization", b"Bearer " + token), *headers]
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": shown,
            "client": (client, 5),
            "state": {"admit": lambda: True},
        }
        await self.app(scope, receive, send)  # type: ignore[arg-type]
        return answer


@pytest.fixture
def site(tmp_path: Path) -> Site:
    (tmp_path / "master.log").write_text("a line\n")
    (tmp_path / "master.out").write_text("")
    return Site(tmp_path)


def filled(path: str) -> str:
    """A path with parameters that exist, where there are any."""
    values = {
        "jobid": ID,
        "applicationid": ID,
        "vertexid": READ,
        "subtaskindex": "0",
        "attempt": "1",
        "attemptid": "1" * 32,
        "log": "stdout",
        "taskmanagerid": "tm-0",
        "filename": "taskexecutor" if "taskmanagers" in path else "master.log",
        "checkpointid": "1",
        "triggerid": "a" * 32,
        "rescaleuuid": "a" * 32,
        "gateway": "dispatcher",
        "method": "request_cluster_overview",
        "key": BLOB,
    }
    return re.sub(r"\{(\w+)\}", lambda match: str(values[match.group(1)]), path)


def requirements_body(upper: int, **others: tuple[int, int]) -> bytes:
    """A request for resource requirements: of the vertex that reads, and others than its present ones of the other."""
    bounds = {READ: (1, upper), WRITE: (1, 1), **others}
    return json.dumps(
        {vertex: {"parallelism": {"lowerBound": least, "upperBound": most}} for vertex, (least, most) in bounds.items()}
    ).encode()


async def test_every_route_answers_as_it_is_described(site: Site) -> None:
    bodies = {
        "/savepoint-disposal": b'{"savepoint-path": "/data/savepoint-1", "triggerId": "%s"}' % (b"a" * 32),
        "/jobs/{jobid}/rescales": b'{"partitions": 8}',
        "/jobs/{jobid}/resource-requirements": requirements_body(8),
        "/jobs/{jobid}/rollback": b'{"target": "chk-3"}',
        "/gateways/{gateway}/{method}": msgpack.packb([]),
    }
    queries = {"/log-levels": "?level=DEBUG", "/blobs": f"?job={ID}"}
    site.cluster.operations[TriggerID("a" * 32)] = OperationStatus(TriggerID("a" * 32), OperationState.IN_PROGRESS)
    for route in site.app.routes:
        if route.path in ("/scripts", "/graphs"):
            continue
        for prefix in ("", "/v1"):
            target = prefix + filled(route.path) + (queries.get(route.path, "") if route.method != "GET" else "")
            kind = (b"content-type", route.body.encode())
            answer = await site.ask(route.method, target, [bodies.get(route.path, b"")], kind)
            where = f"{route.method} {prefix}{route.path}"
            assert answer.status == route.status, f"{where}: {answer.status} {answer.body!r}"
            assert answer.headers["content-type"].startswith(route.media.partition(";")[0]), where
            assert answer.headers["x-content-type-options"] == "nosniff", where
            if route.media.startswith("application/json"):
                assert isinstance(answer.json, dict | list), where


async def test_a_profile_is_a_flame_graph_in_flinks_form(site: Site) -> None:
    path = "/taskmanagers/tm-0/flamegraph"
    told = (await site.ask("GET", f"{path}?samples=5&interval=2")).json
    assert (told["pid"], told["samples"], told["interval"]) == (7, 5, 2)
    run = {"name": "run (a.py)", "value": 5, "children": []}
    assert told["root"] == {
        "name": "all threads",
        "value": 5,
        "children": [{"name": "main", "value": 5, "children": [run]}],
    }
    for query, status in (("attempt=" + "1" * 32, 200), ("attempt=" + "2" * 32, 404), ("attempt=x", 400)):
        assert (await site.ask("GET", f"{path}?{query}")).status == status
    for query in ("samples=1000&interval=1000", "samples=-1", "interval=x"):
        assert (await site.ask("GET", f"{path}?{query}")).status == 400


@pytest.mark.parametrize(
    ("path", "whole"),
    [("/jobmanager/logs/master.log", b"a line\n"), ("/taskmanagers/tm-0/logs/taskexecutor", b"a log")],
)
async def test_a_log_is_read_on_from_where_one_was(site: Site, path: str, whole: bytes) -> None:
    size = str(len(whole))
    for offset, wanted in ((0, whole), (2, whole[2:]), (len(whole), b""), (999_999_999, b"")):
        answer = await site.ask("GET", f"{path}?offset={offset}")
        assert (answer.status, answer.body, answer.headers["x-log-size"]) == (200, wanted, size)
    assert (await site.ask("GET", path)).body == whole
    for offset in ("-1", "x", ""):
        assert (await site.ask("GET", f"{path}?offset={offset}")).status == 400


async def test_every_route_needs_the_token(site: Site) -> None:
    for route in site.app.routes:
        answer = await site.ask(route.method, filled(route.path), token=b"wrong")
        assert answer.status == 401, route.path
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert "token" in answer.error
    assert (site.cluster.asked, site.cluster.cancelled, site.cluster.stopped) == (0, [], False)


async def test_the_document_describes_the_routes_and_nothing_else(site: Site) -> None:
    document = (await site.ask("GET", "/v1/openapi.json")).json
    described = {(path, verb) for path, verbs in document["paths"].items() for verb in verbs}
    assert described == {(f"/v1{route.path}", route.method.lower()) for route in site.app.routes}
    names = [operation["operationId"] for verbs in document["paths"].values() for operation in verbs.values()]
    assert len(set(names)) == len(names)
    for path, verbs in document["paths"].items():
        for operation in verbs.values():
            told = {parameter["name"] for parameter in operation["parameters"] if parameter["in"] == "path"}
            assert told == set(re.findall(r"\{(\w+)\}", path)), path
    assert document["security"] == [{"token": []}]
    (form,) = document["paths"]["/v1/scripts"]["post"]["requestBody"]["content"].values()
    assert form["schema"]["required"] == ["script"]


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("GET", "/nothing", 404),
        ("POST", "/", 404),
        ("GET", "/v1", 404),
        ("GET", "/v1/v1/overview", 404),
        ("GET", "/overview/", 404),
        ("GET", "//overview", 404),
        ("PUT", "/overview", 405),
        ("TRACE", "/overview", 405),
        ("POST", "/jobs/overview", 405),
        ("GET", "/scripts", 405),
        ("GET", f"/jobs/{UNKNOWN}", 404),
        ("GET", f"/jobs/{str(ID).upper()[:31]}A", 400),
        ("GET", "/jobs/00000000-0000-0000-0000-000000000001", 400),
        ("GET", "/jobs/x\0y", 400),
        ("GET", f"/jobs/{ID}/exceptions?maxExceptions=x", 400),
        ("GET", f"/jobs/{ID}/exceptions?maxExceptions=-1", 400),
        ("GET", f"/jobs/{ID}/vertices/{'9' * 32}", 404),
        ("GET", f"/jobs/{ID}/vertices/{READ}/subtasks/1", 404),
        ("GET", f"/jobs/{ID}/vertices/{READ}/subtasks/0/attempts/9", 404),
        ("PATCH", f"/jobs/{ID}?mode=stop", 308),
        ("PATCH", f"/jobs/{UNKNOWN}?mode=cancel", 404),
        ("PATCH", "/log-levels", 400),
        ("PATCH", "/log-levels?level=LOUD", 400),
        ("PATCH", "/log-levels?level=DEBUG&process=nobody", 400),
        ("PATCH", "/log-levels?level=DEBUG&logger=no.such", 400),
        ("PATCH", f"/jobs/{'2' * 32}?mode=cancel", 409),
        ("POST", "/jobs", 400),
        ("POST", "/jars/upload", 400),
        ("POST", "/savepoint-disposal", 400),
        ("POST", f"/jobs/{UNKNOWN}/savepoints", 404),
        ("POST", f"/jobs/{UNKNOWN}/stop", 404),
        ("POST", f"/jobs/{UNKNOWN}/checkpoints", 404),
        ("POST", f"/jobs/{'2' * 32}/savepoints", 409),
        ("POST", f"/jobs/{'2' * 32}/stop", 409),
        ("POST", f"/jobs/{'2' * 32}/checkpoints", 409),
        ("GET", f"/jobs/{UNKNOWN}/checkpoints", 404),
        ("GET", f"/jobs/{UNKNOWN}/checkpoints/config", 404),
        ("GET", f"/jobs/{ID}/checkpoints/details/99", 404),
        ("GET", f"/jobs/{ID}/checkpoints/details/-1", 400),
        ("GET", f"/jobs/{ID}/checkpoints/details/99/subtasks/{'0' * 32}", 404),
        ("GET", f"/jobs/{ID}/checkpoints/details/{'9' * 4301}", 400),
        ("GET", f"/jobs/{ID}/checkpoints/{'b' * 32}", 404),
        ("GET", f"/jobs/{ID}/savepoints/{'b' * 32}", 404),
        ("GET", f"/jobs/{UNKNOWN}/savepoints/{'b' * 32}", 404),
        ("GET", f"/jobs/{ID}/savepoints/00000000-0000-0000-0000-000000000001", 400),
        ("GET", f"/savepoint-disposal/{'b' * 32}", 404),
        ("GET", "/taskmanagers/tm-9", 404),
        ("GET", "/taskmanagers/tm 0", 400),
        ("GET", "/taskmanagers/tm-0/logs/passwd", 404),
        ("GET", "/taskmanagers/tm-0/logs/../../etc/passwd", 404),
        ("GET", "/jobmanager/logs/../secret", 404),
        ("GET", "/jobmanager/logs/%2e%2e%2fsecret", 404),
        ("GET", "/jobmanager/logs//etc/passwd", 404),
        ("GET", "/jobmanager/logs/..", 404),
    ],
)
async def test_what_cannot_be_answered_is_told_in_flinks_form(
    site: Site, method: str, target: str, status: int
) -> None:
    answer = await site.ask(method, target)
    assert answer.status == status
    assert answer.headers["content-type"] == "application/json"
    assert "\n" not in answer.error
    assert "Traceback" not in answer.error
    assert site.cluster.cancelled == []


async def test_head_answers_as_get_does(site: Site) -> None:
    assert (await site.ask("HEAD", "/config")).status == 200
    assert (await site.ask("HEAD", "/nothing")).status == 404


async def test_a_job_is_cancelled_by_each_of_flinks_ways(site: Site) -> None:
    for method, target in (
        ("PATCH", f"/v1/jobs/{ID}?mode=cancel"),
        ("PATCH", f"/jobs/{ID}"),
        ("GET", f"/jobs/{ID}/yarn-cancel"),
        ("POST", f"/applications/{ID}/cancel"),
    ):
        answer = await site.ask(method, target, [b"{}"])
        assert (answer.status, answer.json) == (202, {})
    assert site.cluster.cancelled == [ID] * 4


async def test_a_body_of_a_get_is_no_matter(site: Site) -> None:
    assert (await site.ask("GET", "/jobs/overview", [b"{}"])).status == 200


async def test_what_is_unexpected_is_told_to_the_log_only(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.cluster.failure = ZeroDivisionError("a detail of ours")
    for target in ("/jobs/overview", f"/jobs/{ID}"):
        answer = await site.ask("GET", target)
        assert answer.status == 500
        assert "detail" not in answer.error
        number = answer.error.rpartition(" ")[2]
        assert number in caplog.text
        assert "a detail of ours" in caplog.text


async def test_a_cluster_that_does_not_answer_is_503(site: Site) -> None:
    site.cluster.failure = RecipientUnreachable("nobody at 127.0.0.1:1")
    for target in ("/jobs/overview", "/overview", f"/jobs/{ID}", "/applications/overview"):
        assert (await site.ask("GET", target)).status == 503


async def test_snapshots_are_shared_and_end_with_a_change(tmp_path: Path) -> None:
    site = Site(tmp_path, max_age_s=10.0)
    for _ in range(3):
        for target in ("/jobs/overview", "/v1/jobs/overview", f"/jobs/{ID}", f"/jobs/{ID}/plan"):
            assert (await site.ask("GET", target)).status == 200
    assert site.cluster.asked == 2
    await site.ask("PATCH", f"/jobs/{ID}")
    before = site.cluster.asked
    await site.ask("GET", "/jobs/overview")
    assert site.cluster.asked == before + 1


async def test_secrets_of_the_configuration_are_masked(site: Site) -> None:
    for target in ("/jobmanager/config", f"/jobs/{ID}/jobmanager/config"):
        answer = await site.ask("GET", target)
        assert b"redis://" in answer.body
        assert b"hidden" not in answer.body


BOUNDARY = b"xxBOUNDARYxx"
FORM = (b"content-type", b"multipart/form-data; boundary=" + BOUNDARY)


A_PIPELINE = b"from understudy import Pipeline\ndef pipeline(argv): return Pipeline('x')"


def form(*parts: tuple[str, bytes, str | None]) -> list[bytes]:
    """A form: names, contents, and file names."""
    body = b""
    for name, content, file_name in parts:
        kind = "" if file_name is None else f'; filename="{file_name}"'
        body += b"--" + BOUNDARY + f'\r\nContent-Disposition: form-data; name="{name}"{kind}\r\n\r\n'.encode()
        body += content + b"\r\n"
    return [body + b"--" + BOUNDARY + b"--\r\n"]


async def test_a_script_is_submitted_with_its_files(site: Site) -> None:
    body = form(
        ("script", b"print(1)\n", "count_words.py"),
        ("py-file", b"X = 1\n", "helpers.py"),
        ("jar", b"PK", "a.jar"),
        ("arg", b"--out", None),
        ("arg", b"/tmp/x", None),
        ("name", b"words", None),
        ("priority", b"-3", None),
        ("job-id", str(UNKNOWN).encode(), None),
    )
    answer = await site.ask("POST", "/v1/scripts", body, FORM, (b"traceparent", TEXT.encode()))
    assert (answer.status, answer.json) == (202, {"jobid": UNKNOWN, "jobUrl": f"/v1/jobs/{UNKNOWN}"})
    ((submitted, files),) = site.cluster.submitted
    assert submitted.traceparent == TEXT
    assert (submitted.name, submitted.argv, submitted.priority) == ("words", ("--out", "/tmp/x"), -3)
    told = [(file.name, file.role.value, content) for file, content in files]
    assert told == [
        ("count_words.py", "main", b"print(1)\n"),
        ("helpers.py", "py-file", b"X = 1\n"),
        ("a.jar", "jar", b"PK"),
    ]
    assert not any(file.path.exists() for file, _ in files)


async def test_a_script_begins_from_a_savepoint(site: Site, tmp_path: Path) -> None:
    live = StreamingFiles(tmp_path / "live", "rocksdb", (("default",),))
    live.run(2)
    snapshot = take_snapshot(live.query, tmp_path / "chk" / "counts")
    found = write_savepoint(tmp_path / "savepoints", SavepointJob("0" * 32, "flights"), [snapshot])
    script = ("script", b"print(1)\n", "count.py")
    savepoint = ("savepoint", found.path.encode(), None)
    for more, wanted in (
        ([("allow-non-restored-state", b"true", None)], SavepointRestoreSettings(found.path, True)),
        ([("new-query-id", b"false", None)], SavepointRestoreSettings(found.path, new_query_id=False)),
        ([("new-query-id", b"true", None)], SavepointRestoreSettings(found.path, new_query_id=True)),
    ):
        assert (await site.ask("POST", "/scripts", form(script, savepoint, *more), FORM)).status == 202
        assert site.cluster.submitted[-1][0].savepoint == wanted
    for where, said in (
        (str(tmp_path / "chk"), "not a savepoint"),
        ("../x", "absolute"),
        (str(tmp_path / "runtime"), "own"),
    ):
        answer = await site.ask("POST", "/scripts", form(script, ("savepoint", where.encode(), None)), FORM)
        assert answer.status == 400
        assert said in answer.error
    assert len(site.cluster.submitted) == 3


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ([], "exactly one file"),
        ([("script", b"print(1)", None)], "exactly one file"),
        ([("script", b"1", "a.py"), ("script", b"2", "b.py")], "exactly one file"),
        ([("script", b"print(", "a.py")], "not valid Python"),
        ([("script", A_PIPELINE, "a.py")], "a pipeline"),
        ([("script", b"print(1)", "a.py"), ("kind", b"pipeline", None)], "a pipeline"),
        ([("script", b"print(1)", "a.py"), ("kind", b"streamlet", None)], "kind must be script or pipeline"),
        ([("script", b"\0", "a.py")], "not valid Python"),
        ([("script", b"1", "../a.py")], "plain file name"),
        ([("script", b"1", "..")], "plain file name"),
        ([("script", b"1", "/etc/passwd")], "plain file name"),
        ([("script", b"1", "a\\\\b.py")], "plain file name"),
        ([("script", b"1", "a.py"), ("py-file", b"1", None)], "plain file name"),
        ([("script", b"1", "a.py"), ("job-id", b"x", None)], "JobID"),
        ([("script", b"1", "a.py"), ("priority", b"high", None)], "priority"),
        ([("script", b"1", "a.py"), ("name", b"a\nb", None)], "name"),
        ([("script", b"1", "a.py"), ("allow-non-restored-state", b"maybe", None)], "true or false"),
        ([("script", b"1", "a.py"), ("new-query-id", b"maybe", None)], "true or false"),
        ([("script", b"1", "a.py"), ("parallelism", b"2", None)], "no field"),
        ([("script", b"1", "a.py"), *[("py-file", b"1", f"m{number}.py") for number in range(100)]], "form"),
        ([("script", b"1", "a.py"), ("arg", b"x" * 70000, None)], "form"),
    ],
)
async def test_what_is_no_script_is_refused(site: Site, parts: list[tuple[str, bytes, str | None]], said: str) -> None:
    answer = await site.ask("POST", "/scripts", form(*parts), FORM)
    assert answer.status == 400
    assert said in answer.error
    assert site.cluster.submitted == []


async def test_a_function_called_pipeline_makes_no_pipeline_of_a_script(site: Site) -> None:
    for parts in (
        [("script", b"def pipeline(df): return df", "a.py")],
        [("script", A_PIPELINE, "a.py"), ("kind", b"script", None)],
    ):
        assert (await site.ask("POST", "/scripts", form(*parts), FORM)).status == 202
        assert site.cluster.submitted[-1][0].kind is JobKind.SCRIPT


@pytest.mark.parametrize("kind", [b"application/json", b"application/x-www-form-urlencoded", b""])
async def test_a_script_comes_as_a_form_of_parts(site: Site, kind: bytes) -> None:
    assert (await site.ask("POST", "/scripts", [b"{}"], (b"content-type", kind))).status == 415


@pytest.mark.parametrize("kind", [b"multipart/form-data", b"multipart/form-data; boundary=", FORM[1]])
async def test_a_form_that_is_none_is_refused(site: Site, kind: bytes) -> None:
    answer = await site.ask("POST", "/scripts", [b"this is not a form"], (b"content-type", kind))
    assert answer.status == 400
    assert "Traceback" not in answer.error


def job_graph(**changes: Any) -> bytes:
    """A job graph as a client sends it."""
    pipeline = Pipeline("squares")
    pipeline.source("rows", rows).sink("show", show)
    return json.dumps({**json.loads(to_json(pipeline.to_job_graph(JobID("7" * 32), (), 1))), **changes}).encode()


def rows(ctx: Any) -> None:
    """A source."""


def show(ctx: Any, rows: Any) -> None:
    """A sink."""


async def test_a_job_graph_is_submitted_with_its_code(site: Site) -> None:
    body = form(
        ("graph", job_graph(priority=3), "graph.json"), ("main", b"x = 1", "squares.py"), ("py-file", b"", "m.py")
    )
    answer = await site.ask("POST", "/v1/graphs", body, FORM)
    assert (answer.status, answer.json["jobid"]) == (202, "7" * 32)
    ((submitted, files),) = site.cluster.submitted
    assert (submitted.name, submitted.priority, [vertex.name for vertex in submitted.vertices]) == (
        "squares",
        3,
        ["rows", "show"],
    )
    assert [(file.name, file.role.value) for file, _ in files] == [("squares.py", "main"), ("m.py", "py-file")]


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ([("graph", b"{}", "g.json")], "in the field `main`"),
        ([("graph", b"{}", None), ("main", b"", "a.py")], "in the field `graph`"),
        ([("graph", b"{", "g.json"), ("main", b"", "a.py")], "not JSON"),
        ([("graph", b"[" * 60_000, "g.json"), ("main", b"", "a.py")], "not JSON"),
        ([("graph", b"[]", "g.json"), ("main", b"", "a.py")], "must be an object"),
        ([("graph", b"{}", "g.json"), ("main", b"", "a.py")], "cannot be read"),
        ([("graph", job_graph(), "g.json"), ("main", b"def (", "a.py")], "not valid Python"),
        ([("graph", job_graph(), "g.json"), ("main", b"", "../a.py")], "plain file name"),
        ([("graph", job_graph(vertices=[]), "g.json"), ("main", b"", "a.py")], "has no vert"),
        ([("graph", job_graph(savepoint={"path": "/nowhere"}), "g.json"), ("main", b"", "a.py")], "is not a savepoint"),
        ([("graph", job_graph(savepoint={"path": "../x"}), "g.json"), ("main", b"", "a.py")], "not an absolute"),
        ([("graph", job_graph(), "g.json"), ("main", b"", "a.py"), ("name", b"x", None)], "no field 'name'"),
    ],
)
async def test_what_is_no_job_graph_is_refused(
    site: Site, parts: list[tuple[str, bytes, str | None]], said: str
) -> None:
    answer = await site.ask("POST", "/graphs", form(*parts), FORM)
    assert answer.status == 400
    assert said in answer.error
    assert site.cluster.submitted == []


@pytest.mark.parametrize("target", ["/scripts", "/graphs", "/jobs", "/jars/upload"])
async def test_a_body_without_end_is_cut_off(site: Site, target: str) -> None:
    body = [form(("script", b"x", "a.py"))[0][:-20], *[b"x" * 50_000] * 4]
    answer = await site.ask("POST", target, body, FORM)
    assert answer.status == 413
    assert answer.headers["connection"] == "close"
    assert site.cluster.submitted == []


async def test_a_message_of_another_protocol_is_nothing(site: Site) -> None:
    async def receive() -> Any:
        raise AssertionError

    async def send(message: Any) -> None:
        raise AssertionError

    await site.app({"type": "websocket"}, receive, send)

"""The REST API over the history of clusters: the routes that it serves, and the link that answers them from files.

The routes are Flink's HistoryServer's, and those of the web page. All others are refused with one line.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn, Self, TypeVar, cast

from starlette.requests import Request
from starlette.responses import Response

from actors.address import ActorAddress
from actors.errors import ActorError, WireError
from actors.rpc.gateway import Ask, RpcGateway
from blob.errors import BlobNotFound
from blob.gateway import BlobAddress
from blob.key import BlobKey
from conf.configuration import Configuration
from conf.options import ClusterOptions, RestOptions
from runtime.client import Blobs
from runtime.history.reader import ClusterHistory
from runtime.ids import JobID, TriggerID
from runtime.leaders import LeaderFollower
from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph
from runtime.protocol.checkpoint_statistics import CheckpointStatsSnapshot
from runtime.protocol.checkpoints import OperationStatus
from runtime.protocol.errors import JobNotFoundError, UnknownOperationError
from runtime.protocol.leader import DISPATCHER
from runtime.protocol.master import MasterGateway
from runtime.protocol.messages import ClusterOverview, MultipleJobsDetails, ResourceOverview, TaskManagerView
from runtime.protocol.streaming_query import QueryHistory
from runtime.rest.access import AccessPolicy, changes_state
from runtime.rest.app import RestApplication
from runtime.rest.authorization import KnownIdentities
from runtime.rest.backend import ClusterBackend
from runtime.rest.context import Rest
from runtime.rest.errors import RestError
from runtime.rest.handlers import ROUTES
from runtime.rest.listening import allowed_hosts
from runtime.rest.routing import Handler, RestRoute
from runtime.rest.snapshots import Snapshots

T = TypeVar("T")
G = TypeVar("G", bound=RpcGateway)

_JOB = "/jobs/{jobid}"
_VERTEX = _JOB + "/vertices/{vertexid}"
_SUBTASK = _VERTEX + "/subtasks/{subtaskindex}"
_CHECKPOINT = _JOB + "/checkpoints/details/{checkpointid}"
_APPLICATION = "/applications/{applicationid}"

SERVED = frozenset(
    (
        "/openapi.json",
        "/config",
        "/overview",
        "/figures",
        "/audit",
        "/jobs",
        "/jobs/overview",
        _JOB,
        f"{_JOB}/accumulators",
        f"{_JOB}/checkpoints",
        f"{_JOB}/rescales/decisions",
        f"{_JOB}/rescales/history",
        f"{_JOB}/rescales/overview",
        f"{_JOB}/rescales/summary",
        f"{_JOB}/rescales/details/{{rescaleuuid}}",
        _CHECKPOINT,
        f"{_CHECKPOINT}/subtasks/{{vertexid}}",
        f"{_JOB}/config",
        f"{_JOB}/exceptions",
        f"{_JOB}/execution-result",
        f"{_JOB}/logs",
        f"{_JOB}/logs/{{attemptid}}/{{log}}",
        f"{_JOB}/plan",
        f"{_JOB}/queries",
        f"{_JOB}/spark",
        f"{_JOB}/status",
        _VERTEX,
        f"{_VERTEX}/accumulators",
        f"{_VERTEX}/subtasktimes",
        f"{_VERTEX}/taskmanagers",
        f"{_VERTEX}/subtasks/accumulators",
        _SUBTASK,
        f"{_SUBTASK}/attempts/{{attempt}}",
        f"{_SUBTASK}/attempts/{{attempt}}/accumulators",
        "/applications/overview",
        _APPLICATION,
        f"{_APPLICATION}/exceptions",
    )
)
"""Paths of the routes that a history answers, all with GET."""


def routes_of_history(routes: Sequence[RestRoute]) -> tuple[RestRoute, ...]:
    """Return the same routes; those that a history does not serve are refused. Pure."""
    return tuple(
        route if route.method == "GET" and route.path in SERVED else replace(route, handler=_refusal_of(route))
        for route in routes
    )


def _refusal_of(route: RestRoute) -> Handler:
    status = 405 if changes_state(route.method, route.path) else 404

    async def refuse(rest: Rest, request: Request) -> Response:
        whose = ", ".join(history.name for history in rest.histories)
        raise RestError(
            status,
            f"{route.method} {route.path} needs a running cluster, and this is the history of {whose}, which can only "
            "be read; `understudy status` shows where a cluster serves",
        )

    return refuse


class Histories:
    """The histories of several clusters as one. A job belongs to the first one that has it. Its methods do file I/O."""

    def __init__(self, histories: Sequence[ClusterHistory]) -> None:
        self._histories = tuple(histories)

    def jobs(self) -> MultipleJobsDetails:
        """Return the jobs of all, the newest first. Raises OSError."""
        known = {job.job_id: job for history in reversed(self._histories) for job in history.jobs()}
        return MultipleJobsDetails(tuple(sorted(known.values(), key=lambda job: job.start_ms, reverse=True)))

    def find(self, job_id: JobID) -> ArchivedExecutionGraph:
        """Return a job.

        Raises:
            JobNotFoundError: no history has it.
            RestError: its file cannot be read.
        """
        for history in self._histories:
            try:
                graph = history.job(job_id)
            except (OSError, WireError) as error:
                because = " ".join(str(error).split())
                raise RestError(
                    503, f"the archived job {job_id} of {history.name} cannot be read: {because}"
                ) from error
            if graph is not None:
                return graph
        raise JobNotFoundError(f"the history has no job {job_id}; GET /jobs/overview shows those that it has")

    def log(self, owner: str | None, key: str) -> bytes:
        """Return a kept log by the owner and the key of its blob. Raises `BlobNotFound`, or OSError."""
        for history in self._histories:
            content = None if owner is None else history.log(owner, key)
            if content is not None:
                return content
        raise BlobNotFound("this log is not in the history any more: it was deleted with its job, or by its age")


class _KeptLogs:
    """The BlobServer of a history: it only reads kept logs."""

    def __init__(self, histories: Histories) -> None:
        self._histories = histories

    def get_bytes(self, key: BlobKey, job_id: str | None = None, /) -> bytes:
        return self._histories.log(job_id, str(key))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        pass


class _ArchivedDispatcher:
    """Answers the Dispatcher's calls that read jobs; `HistoryLink` returns it as the leader."""

    def __init__(self, histories: Histories) -> None:
        self._histories = histories

    async def request_multiple_job_details(self) -> MultipleJobsDetails:
        return await asyncio.to_thread(self._histories.jobs)

    async def request_job(self, job_id: JobID) -> ArchivedExecutionGraph:
        return await asyncio.to_thread(self._histories.find, job_id)

    async def request_query_histories(self, job_id: JobID) -> list[QueryHistory]:
        return list((await self.request_job(job_id)).query_histories)

    async def request_checkpoint_statistics(self, job_id: JobID) -> CheckpointStatsSnapshot:
        return (await self.request_job(job_id)).checkpoints

    async def get_triggered_savepoint_status(self, job_id: JobID, trigger_id: TriggerID) -> OperationStatus:
        operations = (await self.request_job(job_id)).checkpoints.operations
        found = next((status for status in operations if status.trigger_id == trigger_id), None)
        if found is None:
            raise UnknownOperationError(f"job {job_id} is over, and no trigger {trigger_id} of it is known")
        return found

    async def request_cluster_overview(self) -> ClusterOverview:
        ended = [job.status for job in (await self.request_multiple_job_details()).jobs]
        return ClusterOverview.of(ResourceOverview(0, 0, 0, 0), 0, ended)

    async def request_task_managers(self) -> list[TaskManagerView]:
        return []

    async def get_blob_server(self) -> BlobAddress:
        return BlobAddress("history", 0)


class HistoryLink:
    """The `BackendLink` of a history. There are no components but the one that reads jobs.

    Args:
        histories: of the clusters.
    """

    system = ActorAddress("history", "localhost", 0, "/")

    def __init__(self, histories: Histories) -> None:
        self._dispatcher = _ArchivedDispatcher(histories)
        self._blobs = _KeptLogs(histories)
        self.followers: dict[str, LeaderFollower[Any]] = {}

    def described(self, name: str) -> str:
        return f"the {name} of a history"

    async def leader(self, name: str, gateway_type: type[G], deadline: float) -> G:
        if name != DISPATCHER:
            _no_cluster(name)
        return cast(G, self._dispatcher)

    async def lost(self, name: str, error: Exception) -> None:
        raise error

    def answered(self) -> None:
        pass

    def master(self) -> MasterGateway:
        _no_cluster("master")

    def gateway(self, address: ActorAddress, gateway_type: type[G], timeout_s: float | None = None) -> G:
        _no_cluster(str(address))

    def blobs(self, address: BlobAddress) -> Blobs:
        return cast(Blobs, self._blobs)

    async def reply(self, ask: Ask[T], timeout_s: float | None = None) -> T:
        return await ask

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def blocking(self, work: Callable[[], T]) -> T:
        return await asyncio.to_thread(work)


def _no_cluster(name: str) -> NoReturn:
    raise ActorError(f"this is a history, and has no {name}")


def history_application(
    histories: Sequence[ClusterHistory],
    configuration: Configuration,
    url: str,
    closing: asyncio.Event,
    token: bytes | None,
    identities: KnownIdentities,
) -> RestApplication:
    """Return the application of a history server. Nothing that it does changes a file.

    Args:
        histories: of the clusters to show.
        configuration: of the server.
        url: its own address.
        closing: set when it stops.
        token: its token; None if it asks for none.
        identities: users and their tokens.
    """
    get = configuration.get
    backend = ClusterBackend.over(HistoryLink(Histories(histories)), configuration)
    snapshots = Snapshots(get(RestOptions.REFRESH_INTERVAL), time.monotonic)
    log_dir = get(ClusterOptions.RUNTIME_DIR) / "log"
    rest = Rest(
        backend,
        snapshots,
        configuration,
        log_dir,
        url,
        closing,
        identities=identities,
        histories=tuple(histories),
        is_history=True,
    )
    max_content = get(RestOptions.MAX_CONTENT_LENGTH)
    policy = AccessPolicy(token, allowed_hosts(configuration), url.partition(":")[0], max_content)
    return RestApplication(rest, policy, max_content, with_token=token is not None, routes=routes_of_history(ROUTES))

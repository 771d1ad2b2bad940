"""What the web endpoint asks the cluster, whoever leads it (what Flink's handlers have in `RestfulGateway`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar

from actors.address import ActorAddress
from actors.errors import ActorError
from actors.process.diagnostics import DiagnosticsGateway, ProcessActors, diagnostics_at
from actors.rpc.endpoint import RpcEndpoint
from blob.client import BlobClient
from blob.gateway import BlobAddress
from blob.key import PermanentBlobKey, TransientBlobKey
from blob.offload import Inline, Offloaded, offload_if_larger
from conf.configuration import Configuration
from conf.options import BlobOptions, RpcOptions
from runtime.environment.context import blob_client
from runtime.ha.services import HighAvailabilityServices
from runtime.ids import ExecutionAttemptID, JobID, ResourceID, TriggerID
from runtime.job_logs import KeptLog, LogChunk, logs_owner
from runtime.jobgraph.codec import encode
from runtime.jobgraph.job_graph import Artifact, ArtifactRole, JobGraph
from runtime.leaders import G, LeaderFollower
from runtime.metrics.metric import MetricQueryServiceGateway, MetricScope, ScopeCategory, ScopeDump
from runtime.metrics.registry import MetricRegistry, add_process_metrics
from runtime.metrics.store import MetricStore
from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph, AttemptInfo, JobDetails
from runtime.protocol.checkpoint_statistics import CheckpointStatsSnapshot
from runtime.protocol.checkpoints import CheckpointTrigger, OperationStatus, SnapshotType
from runtime.protocol.diagnostics import LogInfo, ThreadDump
from runtime.protocol.dispatcher import DispatcherGateway
from runtime.protocol.errors import PASSING, NoSuchLogError, UnknownTaskExecutorError
from runtime.protocol.leader import DISPATCHER, RESOURCE_MANAGER, REST_ENDPOINT, LeaderInformation
from runtime.protocol.master import MasterGateway
from runtime.protocol.messages import ClusterOverview, ClusterStatus, TaskManagerInfo, TaskManagerView
from runtime.protocol.processes import LogLevelChange, chosen, log_level_changes, process_addresses
from runtime.protocol.resource_manager import ResourceManagerGateway
from runtime.protocol.task_executor import TaskExecutorGateway
from runtime.rest.errors import RestError
from runtime.stack_samples import StackProfile

logger = logging.getLogger(__name__)

T = TypeVar("T")

PATIENCE_S = 10.0
RETRY_S = 0.1
SLOW_ASK_S = 60.0
PROCESS_ASK_S = 3.0
"""Longest that one process is waited for where all are asked."""
PROCESS_ASKS_AT_ONCE = 64
MOST_OF_A_LOG = 1024 * 1024
"""Most bytes of a log that is still written which one answer brings; whoever wants more asks on."""


@dataclass(frozen=True, slots=True)
class JobFile:
    """A file of a job to be submitted: its name, what it is for, and where it lies until then."""

    name: str
    role: ArtifactRole
    path: Path


class Backend(Protocol):
    """What the handlers need of a cluster; the errors of `runtime.protocol.errors`, or `RestError` of status 503."""

    async def jobs(self) -> tuple[JobDetails, ...]:
        """Running and finished jobs, the newest first."""

    async def job(self, job_id: JobID) -> ArchivedExecutionGraph:
        """One job."""

    async def cancel(self, job_id: JobID) -> None:
        """Begin to cancel a job."""

    async def submit(self, graph: JobGraph, files: Iterable[JobFile]) -> JobID:
        """Upload a job's files and submit it."""

    async def overview(self) -> ClusterOverview:
        """The counts of the cluster."""

    async def task_managers(self) -> list[TaskManagerView]:
        """The registered TaskExecutors."""

    async def task_manager(self, resource_id: ResourceID) -> TaskManagerInfo:
        """One TaskExecutor."""

    async def task_manager_logs(self, resource_id: ResourceID) -> list[LogInfo]:
        """The logs of a TaskExecutor."""

    async def task_manager_log(self, resource_id: ResourceID, name: str) -> bytes:
        """One of them, or its head and tail."""

    async def task_manager_log_from(self, resource_id: ResourceID, name: str, offset: int) -> LogChunk:
        """One of them from a byte on, at most `MOST_OF_A_LOG` bytes, and how many it has."""

    async def task_manager_threads(self, resource_id: ResourceID) -> ThreadDump:
        """Where the threads of a TaskExecutor are."""

    async def task_manager_profile(
        self, resource_id: ResourceID, samples: int, interval_ms: int, attempt_id: ExecutionAttemptID | None
    ) -> StackProfile:
        """Where the threads of a TaskExecutor, or of the task process of an attempt there, are again and again."""

    async def task_log(self, job_id: JobID, attempt: AttemptInfo, name: str, offset: int) -> tuple[bytes, bool]:
        """A log of an attempt from a byte on, and whether that is all there will be."""

    async def status(self) -> ClusterStatus:
        """The processes of all masters that answer."""

    def leaders(self) -> list[LeaderInformation]:
        """Who leads at present, of the components that are followed."""

    async def shut_down(self) -> None:
        """Begin to stop the cluster."""

    # ------------------------------------------------------------- checkpoints

    async def checkpoints(self, job_id: JobID) -> CheckpointStatsSnapshot:
        """The figures of a job's checkpoints."""

    async def trigger(self, job_id: JobID, trigger: CheckpointTrigger) -> OperationStatus:
        """Have a checkpoint or savepoint made. Idempotent by trigger id."""

    async def roll_back(self, job_id: JobID, trigger_id: TriggerID, target: str, new_query_id: bool) -> OperationStatus:
        """Have a job go back. Idempotent by trigger id; raises `CheckpointError` where it cannot."""

    async def operation(self, job_id: JobID, trigger_id: TriggerID) -> OperationStatus:
        """What became of that; raises `UnknownOperationError`."""

    async def dispose_savepoint(self, path: str) -> bool:
        """Remove a savepoint; False where there is none. Raises `SavepointError` where something else is there."""

    # ------------------------------------------------- each process of the cluster

    async def metrics(self) -> MetricStore:
        """The metrics of the whole cluster, as they are now."""

    async def process_actors(self) -> dict[str, ProcessActors | None]:
        """The actors of each process, by its name; None where it does not answer."""

    async def log_levels(self) -> dict[str, dict[str, str] | None]:
        """The log levels of each process, by its name; None where it does not answer."""

    async def set_log_level(self, process: str | None, logger: str, level: str) -> list[LogLevelChange]:
        """Change the level of a logger in one process or in all; raises `UnknownProcessError`, `LogLevelError`."""


class ClusterBackend:
    """The cluster that the web endpoint belongs to.

    Args:
        endpoint: whose RPC service and I/O threads are used.
        ha: says who leads.
        configuration: the cluster's.
        system: address of the endpoint's own system.
    """

    def __init__(
        self, endpoint: RpcEndpoint, ha: HighAvailabilityServices, configuration: Configuration, system: ActorAddress
    ) -> None:
        service = endpoint.service
        self._endpoint = endpoint
        self._system = system
        self._configuration = configuration
        self._dispatcher = LeaderFollower(service, ha.leader_retrieval(DISPATCHER), DispatcherGateway)
        self._resource_manager = LeaderFollower(service, ha.leader_retrieval(RESOURCE_MANAGER), ResourceManagerGateway)
        self._metrics = MetricRegistry()

    async def start(self) -> None:
        """Begin to follow the leaders."""
        own = self._metrics.group(MetricScope(ScopeCategory.JOB_MANAGER, component=REST_ENDPOINT))
        add_process_metrics(own, self._endpoint.service)
        await self._dispatcher.start()
        await self._resource_manager.start()

    async def stop(self) -> None:
        """Follow them no more."""
        await self._dispatcher.stop()
        await self._resource_manager.stop()

    async def _ask(self, leader: LeaderFollower[G], question: Callable[[G], Awaitable[T]], who: str) -> T:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_S
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    gateway = await leader.get()
            except TimeoutError:
                raise RestError(503, f"no {who} leads at present; ask again, or see `status`") from None
            try:
                return await question(gateway)
            except PASSING as error:
                if loop.time() >= deadline:
                    raise RestError(503, f"the {who} does not answer: {error}") from error
                await asyncio.sleep(RETRY_S)

    async def _ask_dispatcher(self, question: Callable[[DispatcherGateway], Awaitable[T]]) -> T:
        return await self._ask(self._dispatcher, question, "Dispatcher")

    def _metric_query_service(self, address: str) -> MetricQueryServiceGateway:
        return self._endpoint.service.gateway(address, MetricQueryServiceGateway, timeout_s=PROCESS_ASK_S)

    def _diagnostics(self, address: str) -> DiagnosticsGateway:
        return self._endpoint.service.gateway(diagnostics_at(address), DiagnosticsGateway, timeout_s=PROCESS_ASK_S)

    def _own_metrics(self) -> list[ScopeDump]:
        return self._metrics.snapshot()

    async def jobs(self) -> tuple[JobDetails, ...]:
        return (await self._ask_dispatcher(lambda dispatcher: dispatcher.request_multiple_job_details())).jobs

    async def job(self, job_id: JobID) -> ArchivedExecutionGraph:
        return await self._ask_dispatcher(lambda dispatcher: dispatcher.request_job(job_id))

    async def cancel(self, job_id: JobID) -> None:
        await self._ask_dispatcher(lambda dispatcher: dispatcher.cancel_job(job_id))

    async def overview(self) -> ClusterOverview:
        return await self._ask_dispatcher(lambda dispatcher: dispatcher.request_cluster_overview())

    async def task_managers(self) -> list[TaskManagerView]:
        return await self._ask_dispatcher(lambda dispatcher: dispatcher.request_task_managers())

    async def status(self) -> ClusterStatus:
        first = await self._master(self._system).request_status()
        others = [ActorAddress.parse(text) for text in first.masters]
        own = (self._system.host, self._system.port)
        asked = [self._master(other).request_status() for other in others if (other.host, other.port) != own]
        found = await asyncio.gather(*asked, return_exceptions=True)
        processes = list(first.processes)
        for answered in found:
            if isinstance(answered, ClusterStatus):
                processes += answered.processes
            elif not isinstance(answered, ActorError):  # it is gone, or stands still: the living ones say so soon
                raise answered
        return replace(first, processes=tuple(processes))

    def _master(self, system: ActorAddress) -> MasterGateway:
        return self._endpoint.service.gateway(system.with_path("/user/master"), MasterGateway)

    def leaders(self) -> list[LeaderInformation]:
        found = (self._dispatcher.leader, self._resource_manager.leader)
        return [leader for leader in found if leader is not None]

    async def shut_down(self) -> None:
        await self._ask_dispatcher(lambda dispatcher: dispatcher.shut_down_cluster())

    async def task_manager(self, resource_id: ResourceID) -> TaskManagerInfo:
        return await self._ask(
            self._resource_manager, lambda manager: manager.request_task_manager_info(resource_id), "ResourceManager"
        )

    async def _task_executor(self, resource_id: ResourceID) -> TaskExecutorGateway:
        for view in await self.task_managers():
            if view.registration.resource_id == resource_id:
                return self._endpoint.service.gateway(
                    view.registration.address, TaskExecutorGateway, timeout_s=SLOW_ASK_S
                )
        raise UnknownTaskExecutorError(f"no TaskExecutor {resource_id} is registered; GET /taskmanagers shows those")

    async def task_manager_logs(self, resource_id: ResourceID) -> list[LogInfo]:
        return await (await self._task_executor(resource_id)).request_log_list()

    async def task_manager_threads(self, resource_id: ResourceID) -> ThreadDump:
        return await (await self._task_executor(resource_id)).request_thread_dump()

    async def task_manager_profile(
        self, resource_id: ResourceID, samples: int, interval_ms: int, attempt_id: ExecutionAttemptID | None
    ) -> StackProfile:
        return await (await self._task_executor(resource_id)).request_profile(samples, interval_ms, attempt_id)

    async def task_manager_log(self, resource_id: ResourceID, name: str) -> bytes:
        gateway, address = await self._task_executor(resource_id), await self._blob_server()
        log = await gateway.request_file_upload(name, address)
        return await self._endpoint.run_blocking(self._fetch_once, address, log.blob_key)

    async def task_manager_log_from(self, resource_id: ResourceID, name: str, offset: int) -> LogChunk:
        gateway, data = await self._task_executor(resource_id), bytearray()
        while True:
            piece = await gateway.read_log(name, offset + len(data))
            data += piece.data
            if not piece.data or len(data) >= MOST_OF_A_LOG:
                return LogChunk(bytes(data), piece.size)

    async def task_log(self, job_id: JobID, attempt: AttemptInfo, name: str, offset: int) -> tuple[bytes, bool]:
        kept = next((log for log in attempt.logs if log.name == name), None)
        if kept is None or not kept.is_whole:
            try:
                data, at_end = await self._read_on(job_id, attempt, name, offset)
                return data, at_end and attempt.state.is_terminal
            except (ActorError, UnknownTaskExecutorError, NoSuchLogError):
                if kept is None:
                    raise
        if offset >= kept.kept:
            return b"", True
        address = await self._blob_server()
        return (await self._endpoint.run_blocking(self._fetch_kept, address, kept, job_id))[offset:], True

    async def _read_on(self, job_id: JobID, attempt: AttemptInfo, name: str, offset: int) -> tuple[bytes, bool]:
        gateway, data = await self._task_executor(ResourceID(attempt.task_executor)), bytearray()
        while len(data) < MOST_OF_A_LOG:
            piece = (await gateway.read_task_log(job_id, attempt.attempt_id, name, offset + len(data))).data
            if not piece:
                return bytes(data), True
            data += piece
        return bytes(data), False

    def _fetch_kept(self, address: BlobAddress, log: KeptLog, job_id: JobID) -> bytes:
        with self._blobs(address) as blobs:
            return blobs.get_bytes(PermanentBlobKey(log.blob_key), logs_owner(job_id)) if log.blob_key else b""

    async def _blob_server(self) -> BlobAddress:
        return await self._ask_dispatcher(lambda dispatcher: dispatcher.get_blob_server())

    def _blobs(self, address: BlobAddress) -> BlobClient:
        return blob_client(self._configuration, address, self._endpoint.service.secret)

    def _fetch_once(self, address: BlobAddress, key: str) -> bytes:
        if not key:
            return b""
        with self._blobs(address) as blobs:
            data = blobs.get_bytes(TransientBlobKey(key))
            blobs.delete(TransientBlobKey(key))
            return data

    async def submit(self, graph: JobGraph, files: Iterable[JobFile]) -> JobID:
        address, given = await self._blob_server(), list(files)

        def upload() -> Inline | Offloaded:
            with self._blobs(address) as blobs:
                artifacts = [
                    Artifact(file.name, file.role, str(blobs.put_file(file.path, PermanentBlobKey, graph.job_id)))
                    for file in given
                ]
                limit = self._configuration.get(BlobOptions.OFFLOAD_MINSIZE)
                limit = min(limit, self._configuration.get(RpcOptions.FRAME_SIZE) // 2)
                return offload_if_larger(encode(graph.with_artifacts(*artifacts)), limit, blobs, graph.job_id)

        message = await self._endpoint.run_blocking(upload)
        sent = False

        async def submit_job(dispatcher: DispatcherGateway) -> JobID:
            nonlocal sent
            sent = True
            return await dispatcher.submit_job(message)

        try:
            return await self._ask_dispatcher(submit_job)
        except RestError as error:
            if not sent:
                raise
            raise RestError(
                503, f"whether job {graph.job_id} was accepted is not known: {error}; GET /jobs/{graph.job_id} shows it"
            ) from error

    # ------------------------------------------------------------- checkpoints

    async def checkpoints(self, job_id: JobID) -> CheckpointStatsSnapshot:
        return await self._ask_dispatcher(lambda dispatcher: dispatcher.request_checkpoint_statistics(job_id))

    async def trigger(self, job_id: JobID, trigger: CheckpointTrigger) -> OperationStatus:
        wanted, target, kind = trigger.trigger_id, trigger.target, trigger.type

        def ask(dispatcher: DispatcherGateway) -> Awaitable[OperationStatus]:
            match kind:
                case SnapshotType.CHECKPOINT:
                    return dispatcher.trigger_checkpoint(job_id, wanted)
                case SnapshotType.SAVEPOINT | SnapshotType.SAVEPOINT_CANCEL:
                    cancel_job = kind is SnapshotType.SAVEPOINT_CANCEL
                    return dispatcher.trigger_savepoint(job_id, wanted, target, cancel_job)
                case SnapshotType.SAVEPOINT_SUSPEND | SnapshotType.SAVEPOINT_TERMINATE:
                    return dispatcher.stop_with_savepoint(job_id, wanted, target, kind.drains)

        return await self._ask_dispatcher(ask)

    async def roll_back(self, job_id: JobID, trigger_id: TriggerID, target: str, new_query_id: bool) -> OperationStatus:
        return await self._ask_dispatcher(
            lambda dispatcher: dispatcher.roll_back(job_id, trigger_id, target, new_query_id)
        )

    async def operation(self, job_id: JobID, trigger_id: TriggerID) -> OperationStatus:
        return await self._ask_dispatcher(
            lambda dispatcher: dispatcher.get_triggered_savepoint_status(job_id, trigger_id)
        )

    async def dispose_savepoint(self, path: str) -> bool:
        asked = 0

        def ask(dispatcher: DispatcherGateway) -> Awaitable[bool]:
            nonlocal asked
            asked += 1
            return dispatcher.dispose_savepoint(path)

        return await self._ask_dispatcher(ask) or asked > 1  # the first answer may have been lost

    # ------------------------------------------------- each process of the cluster

    async def metrics(self) -> MetricStore:
        addresses = await self._ask_dispatcher(lambda dispatcher: dispatcher.request_metric_query_service_addresses())
        workers = await self._ask_dispatcher(
            lambda dispatcher: dispatcher.request_task_manager_metric_query_service_addresses()
        )
        room = asyncio.Semaphore(PROCESS_ASKS_AT_ONCE)
        told = await asyncio.gather(
            *(self._query(address, room) for address in [*addresses, *(worker.address for worker in workers)])
        )
        return MetricStore([*self._own_metrics(), *(dump for dumps in told for dump in dumps)])

    async def _query(self, address: str, room: asyncio.Semaphore) -> list[ScopeDump]:
        """The metrics of one process; none where it does not answer: what is gone has no metrics."""
        async with room:
            try:
                return await self._metric_query_service(address).query_metrics()
            except ActorError as error:
                logger.info("the metrics of %s are not known: %s", address, error)
                return []

    async def _addresses(self) -> dict[str, str]:
        return process_addresses(await self.status(), await self.task_managers())

    async def _ask_all(
        self, addresses: Mapping[str, str], question: Callable[[DiagnosticsGateway], Awaitable[T]]
    ) -> dict[str, T | ActorError]:
        room = asyncio.Semaphore(PROCESS_ASKS_AT_ONCE)

        async def ask(address: str) -> T | ActorError:
            async with room:
                try:
                    return await question(self._diagnostics(address))
                except ActorError as error:  # it has ended, stands still, or refuses: what is told of it
                    return error

        names = sorted(addresses)
        answers = await asyncio.gather(*(ask(addresses[name]) for name in names))
        return dict(zip(names, answers, strict=True))

    async def process_actors(self) -> dict[str, ProcessActors | None]:
        told = await self._ask_all(await self._addresses(), lambda process: process.request_actors())
        return {name: None if isinstance(answer, ActorError) else answer for name, answer in told.items()}

    async def log_levels(self) -> dict[str, dict[str, str] | None]:
        told = await self._ask_all(await self._addresses(), lambda process: process.request_log_levels())
        return {name: None if isinstance(answer, ActorError) else answer for name, answer in told.items()}

    async def set_log_level(self, process: str | None, logger: str, level: str) -> list[LogLevelChange]:
        addresses = await self._addresses()
        meant = {name: addresses[name] for name in chosen(addresses, process)}
        return log_level_changes(
            await self._ask_all(meant, lambda one: one.set_log_level(logger, level)), logger, level
        )

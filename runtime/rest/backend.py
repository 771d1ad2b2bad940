"""The web endpoint's client of the cluster: it runs on the endpoint's event loop and follows the leaders."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Protocol, Self, TypeVar

from actors.address import ActorAddress
from actors.errors import ActorError, AuthenticationError
from actors.process.diagnostics import DiagnosticsGateway, ProcessActors, diagnostics_at
from actors.rpc.endpoint import RpcEndpoint
from actors.rpc.gateway import Ask, RpcGateway
from actors.rpc.service import RpcService
from blob.client import BlobClient
from blob.gateway import BlobAddress
from conf.configuration import Configuration
from conf.options import BlobOptions, RpcOptions
from runtime.client import AsyncClusterClient, JobFile, Link, NoAnswerError, SubmissionUnknownError
from runtime.environment.context import blob_client
from runtime.ha.services import HighAvailabilityServices
from runtime.ids import ExecutionAttemptID, JobID, ResourceID
from runtime.job_logs import LogChunk
from runtime.jobgraph.job_graph import JobGraph
from runtime.leaders import LeaderFollower
from runtime.metrics.metric import MetricQueryServiceGateway, MetricScope, ScopeCategory, ScopeDump
from runtime.metrics.registry import MetricRegistry, add_process_metrics
from runtime.metrics.store import MetricStore
from runtime.protocol.archived_execution_graph import AttemptInfo
from runtime.protocol.diagnostics import LogInfo, ThreadDump
from runtime.protocol.dispatcher import DispatcherGateway
from runtime.protocol.errors import NoSuchLogError, UnknownTaskExecutorError
from runtime.protocol.leader import DISPATCHER, RESOURCE_MANAGER, REST_ENDPOINT, LeaderInformation
from runtime.protocol.master import MasterGateway
from runtime.protocol.messages import TaskManagerInfo
from runtime.protocol.processes import LogLevelChange, chosen, log_level_changes, process_addresses
from runtime.protocol.queues import QueuesOverview
from runtime.protocol.resource_manager import ResourceManagerGateway
from runtime.protocol.task_executor import TaskExecutorGateway
from runtime.rest.errors import RestError
from runtime.stack_samples import StackProfile

logger = logging.getLogger(__name__)

T = TypeVar("T")
G = TypeVar("G", bound=RpcGateway)

PATIENCE_S = 10.0
SLOW_ASK_S = 60.0
PROCESS_ASK_S = 3.0
"""Longest wait for one process in a request to all of them."""
PROCESS_ASKS_AT_ONCE = 64
MOST_OF_A_LOG = 1024 * 1024
"""Most bytes of a growing log in one answer; a client that wants more sends further requests."""


class BackendLink(Link, Protocol):
    """The `Link` of a `ClusterBackend`: to a running cluster, or to the history of clusters."""

    @property
    def followers(self) -> Mapping[str, LeaderFollower[Any]]:
        """Return followers of the leaders, by the components' names; none in a history."""


class EndpointLink:
    """The `Link` of an endpoint: its RPC service and I/O threads, and the leaders by high availability.

    Args:
        endpoint: provides the RPC service and I/O threads.
        ha: provides the leaders.
        configuration: of the cluster.
        system: address of the endpoint's own system.
    """

    def __init__(
        self, endpoint: RpcEndpoint, ha: HighAvailabilityServices, configuration: Configuration, system: ActorAddress
    ) -> None:
        self.endpoint = endpoint
        self.system = system
        self._configuration = configuration
        service = endpoint.service
        self.followers: dict[str, LeaderFollower[Any]] = {
            DISPATCHER: LeaderFollower(service, ha.leader_retrieval(DISPATCHER), DispatcherGateway),
            RESOURCE_MANAGER: LeaderFollower(service, ha.leader_retrieval(RESOURCE_MANAGER), ResourceManagerGateway),
        }

    def described(self, name: str) -> str:
        return f"the {self._role(name)}"

    @staticmethod
    def _role(name: str) -> str:
        return "Dispatcher" if name == DISPATCHER else "ResourceManager"

    async def leader(self, name: str, gateway_type: type[G], deadline: float) -> G:
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                gateway: G = await self.followers[name].get()
        except TimeoutError:
            raise NoAnswerError(f"no {self._role(name)} leads at present; retry, or see `understudy status`") from None
        return gateway

    async def lost(self, name: str, error: Exception) -> None:
        """Raise *error* if the component has another secret; else do nothing: the followers learn the next leader."""
        if isinstance(error, AuthenticationError):
            raise error

    def answered(self) -> None:
        pass

    def master(self) -> MasterGateway:
        return self.gateway(self.system.with_path("/user/master"), MasterGateway)

    def gateway(self, address: ActorAddress, gateway_type: type[G], timeout_s: float | None = None) -> G:
        return self.endpoint.service.gateway(address, gateway_type, timeout_s=timeout_s)

    def blobs(self, address: BlobAddress) -> BlobClient:
        return blob_client(self._configuration, address, self.endpoint.service.secret)

    async def reply(self, ask: Ask[T], timeout_s: float | None = None) -> T:
        return await ask

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def blocking(self, work: Callable[[], T]) -> T:
        return await self.endpoint.run_blocking(work)


class ClusterBackend(AsyncClusterClient):
    """The cluster of the web endpoint: a client with further methods for handlers.

    Args:
        endpoint: provides the RPC service and I/O threads.
        ha: provides the leaders.
        configuration: of the cluster.
        system: address of the endpoint's own system.
    """

    def __init__(
        self, endpoint: RpcEndpoint, ha: HighAvailabilityServices, configuration: Configuration, system: ActorAddress
    ) -> None:
        self._begin(EndpointLink(endpoint, ha, configuration, system), configuration)
        self._service: RpcService | None = endpoint.service

    @classmethod
    def over(cls, link: BackendLink, configuration: Configuration) -> Self:
        """Return a backend that uses *link*."""
        backend = cls.__new__(cls)
        backend._begin(link, configuration)
        return backend

    def _begin(self, link: BackendLink, configuration: Configuration) -> None:
        limit = min(configuration.get(BlobOptions.OFFLOAD_MINSIZE), configuration.get(RpcOptions.FRAME_SIZE) // 2)
        super().__init__(link, PATIENCE_S, limit)
        self._link = link
        self._metrics = MetricRegistry()
        self._service = None

    async def start(self) -> None:
        """Begin to follow the leaders."""
        if self._service is not None:
            own = self._metrics.group(MetricScope(ScopeCategory.JOB_MANAGER, component=REST_ENDPOINT))
            add_process_metrics(own, self._service)
        for follower in self._link.followers.values():
            await follower.start()

    async def stop(self) -> None:
        """Stop following the leaders."""
        for follower in self._link.followers.values():
            await follower.stop()

    def leaders(self) -> list[LeaderInformation]:
        """Return the present leaders of the components that are followed."""
        found = (follower.leader for follower in self._link.followers.values())
        return [leader for leader in found if leader is not None]

    async def submit(self, graph: JobGraph, files: Iterable[JobFile]) -> JobID:
        """Upload a job's files and submit it, as `AsyncClusterClient.submit` does, with another remedy."""
        try:
            return await super().submit(graph, files)
        except SubmissionUnknownError as error:
            why, job_id = error.__cause__, graph.job_id
            raise RestError(
                503, f"job {job_id} may or may not have been accepted: {why}; GET /jobs/{job_id} shows it"
            ) from error

    async def shut_down(self) -> None:
        """Begin to stop the cluster."""
        await self.ask(lambda dispatcher: dispatcher.shut_down_cluster())

    def _metric_query_service(self, address: str) -> MetricQueryServiceGateway:
        return self._link.gateway(ActorAddress.parse(address), MetricQueryServiceGateway, PROCESS_ASK_S)

    def _diagnostics(self, address: str) -> DiagnosticsGateway:
        return self._link.gateway(diagnostics_at(address), DiagnosticsGateway, PROCESS_ASK_S)

    def _own_metrics(self) -> list[ScopeDump]:
        return self._metrics.snapshot()

    async def queues(self) -> QueuesOverview:
        """Return the queues with their use, and what each waiting request waits for."""
        return await self.call(RESOURCE_MANAGER, ResourceManagerGateway, lambda manager: manager.request_queues())

    async def task_manager(self, resource_id: ResourceID) -> TaskManagerInfo:
        """Return one TaskExecutor; raises `UnknownTaskExecutorError`."""
        return await self.call(
            RESOURCE_MANAGER, ResourceManagerGateway, lambda manager: manager.request_task_manager_info(resource_id)
        )

    async def _executor(self, resource_id: ResourceID) -> TaskExecutorGateway:
        return await self.task_executor(resource_id, SLOW_ASK_S)

    async def task_manager_logs(self, resource_id: ResourceID) -> list[LogInfo]:
        """Return the logs of a TaskExecutor."""
        return await (await self._executor(resource_id)).request_log_list()

    async def task_manager_threads(self, resource_id: ResourceID) -> ThreadDump:
        """Return the stacks of a TaskExecutor's threads."""
        return await (await self._executor(resource_id)).request_thread_dump()

    async def task_manager_profile(
        self, resource_id: ResourceID, samples: int, interval_ms: int, attempt_id: ExecutionAttemptID | None
    ) -> StackProfile:
        """Sample the stacks of a TaskExecutor's threads, or of those of the task process of an attempt there."""
        return await (await self._executor(resource_id)).request_profile(samples, interval_ms, attempt_id)

    async def task_manager_log(self, resource_id: ResourceID, name: str) -> bytes:
        """Return a log of a TaskExecutor, or its head and tail."""
        return (await self.component_log(await self._executor(resource_id), name))[1]

    async def task_manager_log_from(self, resource_id: ResourceID, name: str, offset: int) -> LogChunk:
        """Return a TaskExecutor's log from a byte on, about `MOST_OF_A_LOG` bytes at most, and its size."""
        gateway = await self._executor(resource_id)
        return (await _read_on(lambda at: gateway.read_log(name, at), offset))[0]

    async def task_log(self, job_id: JobID, attempt: AttemptInfo, name: str, offset: int) -> tuple[bytes, bool]:
        """Return a log of an attempt from a byte on, and whether it is complete after that."""
        kept = next((log for log in attempt.logs if log.name == name), None)
        if kept is None or not kept.is_whole:
            try:
                gateway = await self._executor(ResourceID(attempt.task_executor))
                chunk, at_end = await _read_on(
                    lambda at: gateway.read_task_log(job_id, attempt.attempt_id, name, at), offset
                )
                return chunk.data, at_end and attempt.state.is_terminal
            except (ActorError, UnknownTaskExecutorError, NoSuchLogError):
                if kept is None:
                    raise
        if offset >= kept.kept:
            return b"", True
        return (await self.kept_log(job_id, kept))[offset:], True

    # ------------------------------------------------- each process of the cluster

    async def metrics(self) -> MetricStore:
        """Return the present metrics of the whole cluster."""
        addresses = await self.ask(lambda dispatcher: dispatcher.request_metric_query_service_addresses())
        workers = await self.ask(lambda dispatcher: dispatcher.request_task_manager_metric_query_service_addresses())
        known = [*addresses, *(worker.address for worker in workers)]
        told = await self._ask_each(known, lambda address: self._metric_query_service(address).query_metrics())
        dumps = self._own_metrics()
        for address, answer in zip(known, told, strict=True):
            if isinstance(answer, ActorError):  # a process that has ended has no metrics
                logger.info("the metrics of %s are not known: %s", address, answer)
            else:
                dumps += answer
        return MetricStore(dumps)

    async def _ask_each(
        self, addresses: Iterable[str], question: Callable[[str], Awaitable[T]]
    ) -> list[T | ActorError]:
        """Ask the processes at these addresses; return an error for one that has ended, hangs or refuses."""
        room = asyncio.Semaphore(PROCESS_ASKS_AT_ONCE)

        async def ask(address: str) -> T | ActorError:
            async with room:
                try:
                    return await question(address)
                except ActorError as error:
                    return error

        return await asyncio.gather(*map(ask, addresses))

    async def _addresses(self) -> dict[str, str]:
        return process_addresses(await self.status(), await self.task_managers())

    async def _ask_all(
        self, addresses: Mapping[str, str], question: Callable[[DiagnosticsGateway], Awaitable[T]]
    ) -> dict[str, T | ActorError]:
        names = sorted(addresses)
        answers = await self._ask_each(
            [addresses[name] for name in names], lambda address: question(self._diagnostics(address))
        )
        return dict(zip(names, answers, strict=True))

    async def process_actors(self) -> dict[str, ProcessActors | None]:
        """Return the actors of each process, by its name; None for a process that does not answer."""
        told = await self._ask_all(await self._addresses(), lambda process: process.request_actors())
        return {name: None if isinstance(answer, ActorError) else answer for name, answer in told.items()}

    async def log_levels(self) -> dict[str, dict[str, str] | None]:
        """Return the log levels of each process, by its name; None for a process that does not answer."""
        told = await self._ask_all(await self._addresses(), lambda process: process.request_log_levels())
        return {name: None if isinstance(answer, ActorError) else answer for name, answer in told.items()}

    async def set_log_level(self, process: str | None, logger: str, level: str) -> list[LogLevelChange]:
        """Change the level of a logger in one process or in all; raises `UnknownProcessError`, `LogLevelError`."""
        addresses = await self._addresses()
        meant = {name: addresses[name] for name in chosen(addresses, process)}
        return log_level_changes(
            await self._ask_all(meant, lambda one: one.set_log_level(logger, level)), logger, level
        )


async def _read_on(read: Callable[[int], Awaitable[LogChunk]], offset: int) -> tuple[LogChunk, bool]:
    """Read a log in pieces; return about `MOST_OF_A_LOG` bytes at most, and whether they reach its present end."""
    data = bytearray()
    while True:
        piece = await read(offset + len(data))
        data += piece.data
        if not piece.data or len(data) >= MOST_OF_A_LOG:
            return LogChunk(bytes(data), piece.size), not piece.data

"""The Dispatcher's metrics, by Flink's names where Flink has them (``numRunningJobs``), and where others' are."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable

from actors.errors import ActorError
from actors.receptionist import ReceptionistGateway
from actors.rpc.endpoint import RpcEndpoint
from actors.rpc.gateway import rpc
from actors.rpc.service import RpcService
from blob.gateway import PATH as BLOB_SERVER_PATH
from runtime.dispatcher.running_job import RunningJob
from runtime.gateways.metric_query_service import TaskManagerMetricAddress
from runtime.gateways.resource_manager import ResourceManagerGateway
from runtime.ids import JobID
from runtime.jobmaster.archived_execution_graph import JobDetails
from runtime.jobmaster.execution_state import JobStatus
from runtime.leaders import LeaderFollower
from runtime.metrics.dump import MetricScope, ScopeCategory
from runtime.metrics.metric import Value
from runtime.metrics.process import add_process_metrics
from runtime.metrics.query_service import beside
from runtime.metrics.registry import MetricRegistry

FIND_TIMEOUT_S = 2.0
NAMES = {
    JobStatus.FINISHED: "numFinishedJobs",
    JobStatus.CANCELED: "numCanceledJobs",
    JobStatus.FAILED: "numFailedJobs",
}


class MetricAddresses(RpcEndpoint):
    """The part of a `Dispatcher` that says where metrics are asked for."""

    _jobs: dict[JobID, RunningJob]
    _resource_manager: LeaderFollower[ResourceManagerGateway]
    _receptionist: ReceptionistGateway

    @rpc
    async def request_metric_query_service_addresses(self) -> list[str]:
        found = [str(self.address)]
        try:
            async with asyncio.timeout(FIND_TIMEOUT_S):
                found.append((await self._receptionist.find(BLOB_SERVER_PATH)).address)
        except (ActorError, TimeoutError) as error:
            self.log.info("the metrics of the BlobServer are not known: %s", error)
        leaders = [self._resource_manager.leader, *(job.leader.leader for job in self._jobs.values())]
        return [beside(address) for address in (*found, *(leader.address for leader in leaders if leader is not None))]

    @rpc
    async def request_task_manager_metric_query_service_addresses(self) -> list[TaskManagerMetricAddress]:
        return await (await self._resource_manager.get()).request_task_manager_metric_query_service_addresses()


class DispatcherMetrics:
    """Counts of jobs, which are the cluster's; how long submissions take, and what the process does.

    Args:
        service: the RPC service of the process.
        running: how many jobs are not over; None for a standby, which knows nothing of jobs, and says nothing.
        archived: gives those that are.
    """

    def __init__(
        self,
        service: RpcService,
        running: Callable[[], int | None],
        archived: Callable[[], Iterable[JobDetails]],
    ) -> None:
        self.registry = registry = MetricRegistry()
        began = time.monotonic()

        def jobs() -> dict[str, Value | None]:
            alive = running()
            if alive is None:
                return {}
            ended = Counter(job.status for job in archived())
            counts: dict[str, Value | None] = {name: ended[status] for status, name in NAMES.items()}
            return {"numRunningJobs": alive, **counts}

        cluster = registry.group(MetricScope(ScopeCategory.JOB_MANAGER))
        cluster.gauges("", jobs)
        own = registry.group(MetricScope(ScopeCategory.JOB_MANAGER, component="dispatcher"))
        own.gauge("uptime", lambda: int((time.monotonic() - began) * 1000))
        self._submissions = own.meter("numSubmittedJobsPerSecond")
        self._submitted = own.counter("numSubmittedJobs")
        self._duration = own.histogram("jobSubmissionTime")
        add_process_metrics(own, service)

    def submitted(self, took_s: float) -> None:
        """A job was accepted, *took_s* seconds after it was submitted."""
        self._submitted.inc()
        self._submissions.mark()
        self._duration.update(took_s * 1000)

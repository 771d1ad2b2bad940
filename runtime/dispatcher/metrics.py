"""The Dispatcher's metrics, by Flink's names where Flink has them (``numRunningJobs``), and where others' are."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable

from actors.rpc.service import RpcService
from runtime.metrics.metric import MetricScope, ScopeCategory, Value
from runtime.metrics.registry import MetricRegistry, add_process_metrics
from runtime.protocol.archived_execution_graph import JobDetails
from runtime.protocol.execution_state import JobStatus

NAMES = {
    JobStatus.FINISHED: "numFinishedJobs",
    JobStatus.CANCELED: "numCanceledJobs",
    JobStatus.FAILED: "numFailedJobs",
}


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

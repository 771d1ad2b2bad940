"""The rescales of the Dispatcher's jobs: one at a time for each job, and those that the cluster begins by itself."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from weakref import WeakValueDictionary

from actors.errors import ActorError, UnknownActor
from conf.configuration import Configuration
from conf.errors import ConfigurationError
from conf.options import AutoscalingOptions
from runtime.checkpoint.description import QueryDescription
from runtime.checkpoint.errors import CheckpointError
from runtime.checkpoint.names import change_lock, rescale_job_id
from runtime.checkpoint.rescale import is_rocksdb
from runtime.checkpoint.retained import describe_state
from runtime.dispatcher.autoscaling import (
    Autoscaling,
    DriverShare,
    advise,
    autoscaling_of,
    changed_at,
    drivers_of,
    next_change,
    obstacle,
    present_state,
    task_executors_of,
)
from runtime.dispatcher.rescale_job import rescale_graph, settled
from runtime.dispatcher.running_job import RunningJob
from runtime.environment.claims import is_claimed
from runtime.ha.errors import HaError
from runtime.ids import JobID, JobVertexID, TriggerID
from runtime.jobgraph.errors import JobGraphError
from runtime.jobgraph.job_graph import JobGraph
from runtime.leadership import LeaderEndpoint
from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph, JobDetails
from runtime.protocol.checkpoints import OperationState
from runtime.protocol.errors import GatewayError, RescaleInProgressError
from runtime.protocol.execution_state import JobStatus
from runtime.protocol.leader import LeaderTerm
from runtime.protocol.rescales import Advice, Rescale, RescaleCause, VertexResourceRequirements
from runtime.protocol.resource_manager import ResourceManagerGateway

LOOK_TIMEOUT_S = 30.0
READS = 3
"""How often saved state is read that is deleted meanwhile, as a checkpoint that a newer one has replaced."""

_PARTITIONS = "spark.sql.shuffle.partitions"


class Rescales:
    """Begins rescales, refuses a second one of a job, and has the JobMasters record them in the jobs' histories.

    Args:
        endpoint: the Dispatcher, whose leadership and threads it uses.
        jobs: returns the jobs that are not over.
        ended: returns how a job has ended once it is archived; None before.
        savepoint_dir: directory with the locks of jobs that are changed.
        configuration: of the cluster, for jobs that do not set ``autoscaling.*``.
        running: returns a job that is not over; raises `JobNotFoundError` or `JobAlreadyTerminatedError`.
        show: returns a job with its tasks.
        submitted: returns the graph with which a job was submitted.
        submit: accepts a job of the cluster's own.
        resource_manager: returns the gateway of the leading ResourceManager.
    """

    def __init__(
        self,
        endpoint: LeaderEndpoint,
        jobs: Callable[[], Mapping[JobID, RunningJob]],
        ended: Callable[[JobID], JobDetails | None],
        savepoint_dir: Path,
        configuration: Configuration,
        *,
        running: Callable[[JobID], RunningJob],
        show: Callable[[JobID], Awaitable[ArchivedExecutionGraph]],
        submitted: Callable[[JobID], Awaitable[JobGraph]],
        submit: Callable[[JobGraph], Awaitable[JobID]],
        resource_manager: Callable[[], Awaitable[ResourceManagerGateway]],
    ) -> None:
        self._endpoint = endpoint
        self._jobs = jobs
        self._ended = ended
        self._savepoint_dir = savepoint_dir
        self._configuration = configuration
        self._running = running
        self._show = show
        self._submitted = submitted
        self._submit = submit
        self._resource_manager = resource_manager
        self._locks: WeakValueDictionary[JobID, asyncio.Lock] = WeakValueDictionary()

    async def begin(self, job_id: JobID, begun: Rescale, query: str, target_directory: str) -> JobID:
        """Submit the job that rescales another one, unless it was submitted; raises as `trigger_rescale`."""
        trigger_id, rescale_id = begun.trigger_id, JobID(begun.rescale_job)
        lock = self._locks.setdefault(job_id, asyncio.Lock())
        async with lock:
            if rescale_id in self._jobs() or self._ended(rescale_id) is not None:
                return rescale_id
            running = self._running(job_id)
            job = await self._submitted(job_id)
            graph = rescale_graph(job, trigger_id, begun.partitions, query, target_directory, _now_ms())
            await self._refuse_second(running, trigger_id)
            # A command locks the file before it reports its rescale, which waits for this: one of the two is refused.
            if await self._endpoint.run_blocking(is_claimed, change_lock(self._savepoint_dir, job_id)):
                raise RescaleInProgressError(
                    f"a command rescales or upgrades job {job_id} at this moment; try again when it has ended"
                )
            await self._record(running, begun)
            try:
                return await self._submit(graph)
            except (GatewayError, JobGraphError) as error:
                await self._record(running, replace(begun, state=OperationState.FAILED, error=str(error)))
                raise

    async def report(self, job_id: JobID, rescale: Rescale) -> None:
        """Record a rescale that a command or a task does.

        Raises:
            RescaleInProgressError: it begins, and a job of the cluster rescales the job already.
        """
        lock = self._locks.setdefault(job_id, asyncio.Lock())
        async with lock:
            running = self._running(job_id)
            if not rescale.is_over:
                await self._refuse_second(running, rescale.trigger_id)
            await self._record(running, rescale)

    async def _refuse_second(self, job: RunningJob, trigger_id: TriggerID) -> None:
        """Raise `RescaleInProgressError` if another job of the cluster rescales this one."""
        for other in (await job.gateway.request_job()).rescales:
            if not other.is_over and other.trigger_id != trigger_id and other.rescale_job in self._jobs():
                raise RescaleInProgressError(
                    f"job {other.rescale_job} rescales job {job.job_id} already; wait until it has ended, or cancel it"
                )

    async def _record(self, job: RunningJob, rescale: Rescale) -> None:
        try:
            await job.gateway.report_rescale(rescale)
        except UnknownActor as error:  # a JobMaster of release 0.1.0
            self._endpoint.log.warning("the history of job %s misses a rescale: %s", job.job_id, error)

    async def _record_end(self, job: RunningJob, rescale: Rescale) -> None:
        try:
            await self._record(job, rescale)
        except (ActorError, GatewayError) as error:
            self._endpoint.log.info("a later request records the end of a rescale of job %s: %s", job.job_id, error)

    async def with_ended(self, job: RunningJob, graph: ArchivedExecutionGraph) -> ArchivedExecutionGraph:
        """Return a job with the autoscaler's last decisions, and with rescales as failed if nothing does them any more.

        The job's history gets to know of those that have failed.
        """
        graph = replace(graph, advice=job.advice) if job.advice else graph
        if all(rescale.is_over for rescale in graph.rescales):
            return graph
        is_locked = await self._endpoint.run_blocking(is_claimed, change_lock(self._savepoint_dir, job.job_id))
        lock = self._locks.get(job.job_id)
        is_requested = lock is not None and lock.locked()
        shown = []
        for known in graph.rescales:
            if known.rescale_job:
                does = JobID(known.rescale_job)
                rescale = settled(known, is_alive=is_requested or does in self._jobs(), ended=self._ended(does))
            else:
                rescale = settled(known, is_alive=is_locked)
            if rescale is not known:
                self._endpoint.spawn(self._record_end(job, rescale), f"recording a rescale of job {job.job_id}")
            shown.append(rescale)
        return replace(graph, rescales=tuple(shown))

    async def requirements(self, job: RunningJob) -> list[VertexResourceRequirements]:
        """Return the numbers of partitions of a job's state; raises as `request_job_resource_requirements`."""
        graph = await self._show(job.job_id)
        unknown = "it has no streaming query with saved state; the next checkpoint of the job saves it"
        for _ in range(READS):
            state = present_state(graph.checkpoints, graph.rescales)
            if not state:
                break
            try:
                saved = await self._endpoint.run_blocking(describe_state, Path(state))
                return vertex_requirements(graph, saved, job.autoscaling, unknown)
            except (CheckpointError, OSError) as error:
                unknown = f"the saved state cannot be read: {error}"
                graph = await self._show(job.job_id)
        return vertex_requirements(graph, (), job.autoscaling, unknown)

    def autoscaling_of(self, graph: JobGraph) -> Autoscaling | None:
        """Return how the cluster rescales a job by itself; None if it does not, or does not know a setting."""
        own = {key: text for key, text in graph.configuration.items() if key.startswith("autoscaling.")}
        try:
            return autoscaling_of(self._configuration.overlaid(own, "the job") if own else self._configuration)
        except ConfigurationError as error:
            self._endpoint.log.warning("job %s is not rescaled by itself: %s", graph.job_id, error)
            return None

    async def autoscale(self, term: LeaderTerm) -> None:
        """Look at the jobs that ask for it, again and again while the Dispatcher leads."""
        interval_s = self._configuration.get(AutoscalingOptions.INTERVAL)
        while self._endpoint.may_act(term):
            await asyncio.sleep(interval_s)
            for job in list(self._jobs().values()):
                if job.autoscaling is not None and self._endpoint.may_act(term):
                    await self.look_at(job, job.autoscaling)

    async def look_at(self, job: RunningJob, settings: Autoscaling) -> None:
        """Look at one job, and rescale it if that is to be; a failure is retried at a later look."""
        try:
            async with asyncio.timeout(LOOK_TIMEOUT_S):
                change = await self._change_of(job, settings)
            if change is None:
                return
            what = f"query {change.query!r} of job {job.job_id} from {change.partitions} to {change.wanted} partitions"
            if settings.is_dry_run:
                self._endpoint.log.info("would rescale %s: %s", what, change.reason)
                return
            self._endpoint.log.info("rescales %s: %s", what, change.reason)
            trigger_id = TriggerID.random()
            begun = Rescale(
                trigger_id,
                change.wanted,
                cause=RescaleCause.AUTOSCALER,
                reason=change.reason,
                rescale_job=rescale_job_id(job.job_id, trigger_id),
            )
            await self.begin(job.job_id, begun, change.query, "")
        except (ActorError, GatewayError, HaError, JobGraphError, CheckpointError, OSError) as error:
            self._endpoint.log.info(
                "job %s is not rescaled by itself now: %s", job.job_id, error or type(error).__name__
            )

    async def _change_of(self, job: RunningJob, settings: Autoscaling) -> Advice | None:
        """Return the change that a job needs now; None if it needs none, or none can be made."""
        graph = await self._show(job.job_id)
        state = present_state(graph.checkpoints, graph.rescales)
        if graph.status is not JobStatus.RUNNING or not state:
            return None
        histories = await job.gateway.request_query_histories()
        saved = await self._endpoint.run_blocking(describe_state, Path(state))
        restored = graph.checkpoints.latest_restored
        changed_ms = changed_at(None if restored is None else restored.restore_timestamp, graph.rescales)
        drivers = await self._drivers_of(graph)
        advice = advise(settings.policy, histories, saved, _now_ms(), changed_ms, drivers)
        lacked_before = {one.query for one in job.advice if one.lacks_cores}
        for one in advice:
            level = logging.INFO if one.lacks_cores and one.query not in lacked_before else logging.DEBUG
            self._endpoint.log.log(level, "job %s, query %r: %s", job.job_id, one.query, one.reason)
        job.advice = tuple(advice)
        change = next_change(advice)
        why_not = obstacle(settings.policy, graph.rescales, _now_ms())
        if change is not None and why_not:
            self._endpoint.log.debug("job %s would get %s partitions, but %s", job.job_id, change.wanted, why_not)
        return None if why_not else change

    async def _drivers_of(self, graph: ArchivedExecutionGraph) -> dict[JobVertexID, DriverShare]:
        """Return the Spark driver of each task of a job, as far as the ResourceManager knows it now."""
        known = {}
        for name in task_executors_of(graph):
            try:
                known[name] = await (await self._resource_manager()).request_task_manager_info(name)
            except (ActorError, GatewayError) as error:
                self._endpoint.log.debug("the cores of TaskExecutor %s are not known: %s", name, error)
        return drivers_of(graph, known)


def vertex_requirements(
    graph: ArchivedExecutionGraph, saved: Iterable[QueryDescription], autoscaling: Autoscaling | None, unknown: str
) -> list[VertexResourceRequirements]:
    """Return the bounds of each task of a job.

    Args:
        graph: the job.
        saved: the present state of its queries; queries without a number of partitions are left out.
        autoscaling: how the cluster rescales the job by itself; None if it does not.
        unknown: why the bounds of a task without saved state are fixed.
    """
    known = {one.name: one for one in saved if one.operators and one.conf.get(_PARTITIONS, "").isdecimal()}
    found = []
    for task in graph.tasks:
        queries = next((attempt.queries for attempt in reversed(task.attempts) if attempt.queries), ())
        own = [known[query.name] for query in queries if query.name in known]
        if not own:
            found.append(VertexResourceRequirements(task.key, 1, 1, fixed_because=unknown))
            continue
        names = tuple(one.name for one in own)
        other = next((one.name for one in own if not is_rocksdb(one)), None)
        if autoscaling is not None and not autoscaling.is_dry_run:
            least, most = autoscaling.policy.least, autoscaling.policy.most
            why = "the autoscaler chooses the number, within the job's setting autoscaling.partitions"
        else:
            least, most = 1, max(int(one.conf[_PARTITIONS]) for one in own)
            why = "" if other is None else f"the state of query {other!r} is not in RocksDB, the only store that Spark"
            why += " rescales" if why else ""
        found.append(VertexResourceRequirements(task.key, least, most, names, why))
    return found


def _now_ms() -> int:
    return round(time.time() * 1000)

"""The Dispatcher: accepts jobs, starts a JobMaster for each, and remembers how they ended (Flink's `Dispatcher`)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from actors.address import ActorAddress
from actors.errors import ActorError, FencingError, WireError
from actors.receptionist import ReceptionistGateway, receptionist_of
from actors.rpc.gateway import rpc, rpc_sync
from actors.rpc.service import RpcService
from blob.client import BlobClient
from blob.errors import BlobConnectionError, BlobError, BlobServerError
from blob.gateway import PATH as BLOB_SERVER_PATH
from blob.gateway import BlobAddress
from blob.key import BlobKey
from blob.offload import Inline, MaybeOffloaded
from conf.configuration import Configuration
from conf.files import sync_names
from conf.options import BlobOptions, CheckpointingOptions, JobOptions, QueueOptions
from runtime.checkpoint.errors import CheckpointError
from runtime.checkpoint.names import rescale_job_id, savepoint_name
from runtime.checkpoint.remote_savepoint import dispose_at, read_at
from runtime.dispatcher.archive import ArchivedExecutionGraphStore, create_archive
from runtime.dispatcher.attached_jobs import AttachedJobs
from runtime.dispatcher.job_master_starts import JobMasterStarts
from runtime.dispatcher.rescale_job import rescale_status
from runtime.dispatcher.rescales import Rescales
from runtime.dispatcher.resource_cleaner import JobBlobs, ResourceCleaner
from runtime.dispatcher.running_job import DETAILS_TIMEOUT_S, RunningJob
from runtime.environment.context import ComponentContext, blob_client
from runtime.feature_level import (
    Component,
    FeatureLevel,
    Format,
    Release,
    level_to_begin_with,
    level_to_finalize,
    lowest_level,
    supported_levels,
)
from runtime.ha.errors import (
    HaError,
    HaUnreachableError,
    JobAlreadyDoneError,
    LeadershipLostError,
    StateWriteUnknownError,
)
from runtime.ha.feature_level import checked
from runtime.ha.running_jobs import JobSchedulingStatus
from runtime.ha.services import HighAvailabilityServices
from runtime.history.directory import HistoryDirectory
from runtime.history.reader import log_keys
from runtime.ids import ExecutionAttemptID, JobID, JobVertexID, TriggerID
from runtime.job_logs import FUNCTION_FILES, logs_owner
from runtime.jobgraph.codec import decode_job_graph, encode
from runtime.jobgraph.errors import JobGraphVersionError
from runtime.jobgraph.job_graph import JobGraph
from runtime.jobgraph.validation import validate
from runtime.leaders import LeaderFollower
from runtime.leadership import LeaderEndpoint
from runtime.metrics.metric import MetricScope, ScopeCategory, TaskManagerMetricAddress, Value
from runtime.metrics.registry import MetricRegistry, add_process_metrics, beside, serve_metrics
from runtime.protocol.archived_execution_graph import (
    ApplicationStatus,
    ArchivedExecutionGraph,
    AttemptInfo,
    JobDetails,
    JobResult,
)
from runtime.protocol.checkpoint_statistics import CheckpointStatsSnapshot
from runtime.protocol.checkpoints import OperationState, OperationStatus
from runtime.protocol.dispatcher import DispatcherGateway
from runtime.protocol.errors import (
    PASSING,
    FeatureLevelHeldError,
    GatewayError,
    IdentitiesUnreachableError,
    IdentityRejectedError,
    JobAlreadyTerminatedError,
    JobIDRejectedError,
    JobNotFoundError,
    JobNotReachableError,
    JobSubmissionError,
    JobVertexNotFoundError,
    QueueRejectedError,
    SubmissionLimitError,
    UnknownOperationError,
)
from runtime.protocol.events import JobReachedTerminalState
from runtime.protocol.execution_state import ExecutionState, JobStatus
from runtime.protocol.job_master import JobMasterGateway
from runtime.protocol.leader import DISPATCHER, RESOURCE_MANAGER, LeaderTerm, job_master
from runtime.protocol.master import MASTER, MasterGateway
from runtime.protocol.messages import (
    ClusterOverview,
    ClusterStatus,
    FeatureLevelChange,
    MultipleJobsDetails,
    TaskLog,
    TaskManagerView,
)
from runtime.protocol.places import is_url, place_below
from runtime.protocol.queues import WaitingRequest
from runtime.protocol.rescales import Rescale, VertexResourceRequirements
from runtime.protocol.resource_manager import ResourceManagerGateway
from runtime.protocol.streaming_query import OperatorBackPressureStats, QueryHistory
from runtime.protocol.task_executor import TaskExecutorGateway
from runtime.queues.admission import Admission, OverLimitError
from runtime.queues.configuration import Asked, Member, QueueRefusedError, Queues, QueuesError, QueuesFile
from runtime.retry import retry
from runtime.users.identities import ApiToken, Change, Identities, IdentityError, User

T = TypeVar("T")

EXPIRY_INTERVAL_S = 30.0
HISTORY_EXPIRY_INTERVAL_S = 600.0
RESULT_WAIT_S = 5.0
MASTER_TIMEOUT_S = 60.0
LOGS_TIMEOUT_S = 30.0
FIND_TIMEOUT_S = 2.0
RELEASE_TIMEOUT_S = 5.0

_ENDED_JOBS = {
    JobStatus.FINISHED: "numFinishedJobs",
    JobStatus.CANCELED: "numCanceledJobs",
    JobStatus.FAILED: "numFailedJobs",
}

logger = logging.getLogger(__name__)


class DispatcherMetrics:
    """Metrics of the cluster's jobs, of submissions, and of the Dispatcher's process.

    Their names are Flink's if Flink has them (``numRunningJobs``).

    Args:
        service: the RPC service of the process.
        running: returns how many jobs are not over; None in a standby, which knows no jobs and reports no counts.
        archived: returns the jobs that are over.
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
            counts: dict[str, Value | None] = {name: ended[status] for status, name in _ENDED_JOBS.items()}
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
        """Count a job that was accepted *took_s* seconds after it was submitted."""
        self._submitted.inc()
        self._submissions.mark()
        self._duration.update(took_s * 1000)


class Dispatcher(LeaderEndpoint, DispatcherGateway):
    """Accepts jobs and answers questions about them. Its JobMasters are the master's children, so they outlive it.

    Args:
        service: the RPC service of the process.
        name: the actor's name.
        ha: high-availability services; closed with the endpoint.
        receptionist: the system's directory.
        master_address: address of the guardian that starts JobMasters.
        blob: address of the BlobServer.
        blobs: a client of it; closed with the endpoint.
        archive: finished jobs.
        log_dir: directory of the JobMasters' logs, which are removed with their jobs.
        savepoint_dir: directory of savepoints that are requested without one.
        sweep_interval_s: seconds between two sweeps of blobs of jobs without a record.
        starts_at_once: most JobMasters that may be starting at the same time.
        queues: the file of queues and limits; None without one.
        history: keeps jobs that the archive drops, and those that run when the cluster is stopped; None for none.
        configuration: of the cluster; None for the defaults.
    """

    def __init__(
        self,
        service: RpcService,
        name: str,
        *,
        ha: HighAvailabilityServices,
        receptionist: ReceptionistGateway,
        master_address: str,
        blob: BlobAddress,
        blobs: BlobClient,
        archive: ArchivedExecutionGraphStore,
        log_dir: Path,
        savepoint_dir: Path,
        sweep_interval_s: float,
        starts_at_once: int,
        queues: Path | None = None,
        history: HistoryDirectory | None = None,
        configuration: Configuration | None = None,
    ) -> None:
        super().__init__(service, name, ha.leader_election(DISPATCHER), receptionist)
        self._ha = ha
        master = self._master = self.gateway(master_address, MasterGateway, timeout_s=MASTER_TIMEOUT_S)
        self._blob = blob
        self._blobs = blobs
        self._archive = archive
        self._log_dir = log_dir
        self._savepoint_dir = savepoint_dir
        url = None if configuration is None else configuration.get(CheckpointingOptions.SAVEPOINT_URL)
        self._savepoint_target = url or str(savepoint_dir)
        self._history = history
        self._sweep_interval_s = sweep_interval_s
        self._job_blobs = JobBlobs(self, receptionist)
        self._cleaner = ResourceCleaner(ha, master, self._job_blobs, log_dir, lambda term: self._term == term)
        self._jobs: dict[JobID, RunningJob] = {}
        self._submitting: dict[JobID, asyncio.Event] = {}
        self._rescales = Rescales(
            self,
            lambda: self._jobs,
            archive.find,
            savepoint_dir,
            configuration or Configuration(),
            running=self._running,
            show=self._job,
            submitted=self._graph_of,
            submit=lambda graph: self.submit_job(Inline(encode(graph))),
            resource_manager=lambda: self._resource_manager.get(),
        )
        self.metrics = DispatcherMetrics(service, lambda: len(self._jobs) if self._term else None, archive.details)
        self._attached = AttachedJobs()
        self._queues = QueuesFile(queues)
        self._admission = Admission()
        self._upload_lifetime_s = (configuration or Configuration()).get(BlobOptions.CLEANUP_TTL)
        self._level = lowest_level()
        self._finalizing = asyncio.Lock()
        self._watching_clients: asyncio.Task[None] | None = None
        self._starts = JobMasterStarts(master, self.spawn, starts_at_once)
        self._resource_manager = LeaderFollower(self, ha.leader_retrieval(RESOURCE_MANAGER), ResourceManagerGateway)

    # --------------------------------------------------------------- leadership

    async def on_start(self) -> None:
        await self._resource_manager.start()
        await super().on_start()

    async def on_stop(self) -> None:
        if self._history is not None and self._jobs:
            await self.run_blocking(self._note_unfinished, self._history, list(self._jobs.values()))
        await super().on_stop()
        await self._resource_manager.stop()
        self._blobs.close()
        await self._ha.close()

    async def lead(self, term: LeaderTerm) -> None:
        """Recover finished jobs from the archive and the others from the store; start or find their JobMasters."""
        self._level = await self._feature_level(term)
        await self.run_blocking(self._archive.load)  # with ten thousand jobs this takes longer than a lease
        store, registry = self._ha.job_graph_store(), self._ha.running_jobs_registry()
        await store.sweep(term)
        entries = await registry.entries()
        for job_id in [job_id for job_id, entry in entries.items() if entry.dirty]:
            self.spawn(self._cleaner.clean_up(JobID(job_id), term), f"cleaning up after job {job_id}")
        if not self._archive.survives_its_process:
            ended = [JobID(job_id) for job_id, entry in entries.items() if entry.status is JobSchedulingStatus.DONE]
            self._forget([job_id for job_id in ended if self._archive.find(job_id) is None], term)
        graphs = await store.get_all()
        for job_id, entry in entries.items():
            archived = self._archive.find(JobID(job_id))
            if archived is not None and entry.status is not JobSchedulingStatus.DONE:
                self.log.info("job %s is %s: the former Dispatcher did not record it", job_id, archived.status.value)
                await self._record_end(archived, term)
                graphs.pop(job_id, None)
                self.spawn(self._cleaner.clean_up(JobID(job_id), term), f"cleaning up after job {job_id}")
            elif entry.status is not JobSchedulingStatus.DONE and job_id not in graphs:
                # Its submission was not completed; or it was forgotten, and a JobMaster that stood still has not yet
                # withdrawn the entry that it made again.
                self.log.info("job %s has no graph: its entry (%s) is dropped", job_id, entry.status.value)
                await registry.withdraw(job_id, term, entry.status)
        await self._job_blobs.try_to_use(*graphs)
        for job_id, stored in graphs.items():
            await asyncio.sleep(0)  # a thousand jobs must not hold up the renewal of the leadership
            if self._term != term:
                return
            if job_id in entries and entries[job_id].status is JobSchedulingStatus.DONE:
                continue
            try:
                if isinstance(stored, Exception):
                    raise stored
                graph = decode_job_graph(stored)
            except (HaError, WireError, JobGraphVersionError) as error:
                self.log.error("job %s cannot be recovered: %s", job_id, error)
            else:
                self.log.info("job %s (%s) is recovered", job_id, graph.name)
                await self._run(graph, JobStatus.RECONCILING)

    async def _feature_level(self, term: LeaderTerm) -> FeatureLevel:
        """Return the level that the cluster stores. A new cluster gets the newest, any other without one the first.

        Raises:
            FeatureLevelUnsupportedError: this release must not lead the cluster.
        """
        store = self._ha.feature_level_store()
        found = await store.find()
        if found is None:
            is_new = not await self._ha.running_jobs_registry().entries()
            found = await store.begin(level_to_begin_with(is_new, await self._masters_that_answer()), term)
            self.log.info("the feature level of this %s cluster is %d", "new" if is_new else "earlier", found)
        return checked(found)

    async def serve(self) -> None:
        """Begin to expire archived jobs, and to sweep the blobs of jobs without a record."""
        if self._term is not None:
            self.spawn(self._expire(self._term), "dropping old jobs")
            self.spawn(self._rescales.autoscale(self._term), "rescaling jobs by itself")
            # At once: from then on the BlobServer rejects a former leader, whose list may be older.
            sweeping = self._cleaner.sweep_blobs(
                self._term,
                self._sweep_interval_s,
                lambda: [job.job_id for job in self._archive.details()],
                lambda: [*self._jobs, *self._submitting],
            )
            self.spawn(sweeping, "sweeping blobs of jobs without a record")

    async def on_revoked(self) -> None:
        """Leave the jobs to the next leader; their JobMasters keep running."""
        self._starts.clear()
        self._attached.clear()
        self._admission.clear()
        jobs, self._jobs = self._jobs, {}
        for job in jobs.values():
            await job.leader.stop()

    # -------------------------------------------------------------------- jobs

    @rpc
    async def submit_job(self, job_graph: MaybeOffloaded) -> JobID:
        term, began = self.term, time.monotonic()
        graph = decode_job_graph(await self._read(job_graph))
        validate(graph)
        job_id = graph.job_id
        # Two clients may submit the same job at once: the second waits for the outcome of the first.
        while job_id in self._submitting:
            await self._submitting[job_id].wait()
        if job_id in self._jobs or self._archive.find(job_id) is not None:
            return job_id
        done = self._submitting[job_id] = asyncio.Event()
        try:
            await self._check_id(graph)
            graph = await self._with_sizes(graph)
            await self._admit(graph)
            await self._keep_blobs(job_id)
            await self._store(graph, term)
            await self._run(graph, JobStatus.INITIALIZING)
        except JobAlreadyDoneError:
            return job_id
        except JobSubmissionError:
            if graph.owner and self._queues.is_set and self._admission.uploader(job_id) in (None, graph.owner):
                # Before the answer: the user may submit again at once, with another upload.
                await self._delete_upload(job_id, term)
            raise
        finally:
            self._admission.settle(job_id)
            del self._submitting[job_id]
            done.set()
        self.metrics.submitted(time.monotonic() - began)
        self.log.info("job %s (%s) was accepted", job_id, graph.name)
        return job_id

    async def _check_id(self, graph: JobGraph) -> None:
        """Check that a user's job has not the id of another's in the history, whose file it would replace at its end.

        Raises:
            JobIDRejectedError: it has, or the file of that id cannot be read.
        """
        if self._history is None or not graph.owner:
            return
        try:
            owner = await self.run_blocking(self._history.owner_of, graph.job_id)
        except (OSError, WireError) as error:
            problem = f"job {graph.job_id} is not accepted: the history has a job of this id that cannot be read"
            raise JobIDRejectedError(f"{problem} ({error}); submit with another id") from error
        if owner is not None and owner != graph.owner:
            raise JobIDRejectedError(
                f"job {graph.job_id} is not accepted for {graph.owner}: the history has a job of this id that belongs "
                f"to {owner or 'the cluster'}; submit with another id"
            )

    async def _admit(self, graph: JobGraph) -> None:
        """Check a job by the queues and limits, and count it.

        Raises:
            SubmissionLimitError: it is over a limit.
            QueueRejectedError: it may not use its queue, or takes more memory, processors or blobs than a limit can
                ever give.
            JobSubmissionError: the file of queues is missing or wrong.
            JobNotReachableError: the ResourceManager does not answer which jobs run.
        """
        with self._refusals(f"job {graph.name!r} was not accepted"):
            queues = await self._read_queues()
            member = Member(graph.owner, queues.queue_of(graph.owner, _queue_of(graph)).name)
            if not queues.is_set:
                return
            queues.check_blobs(queues.scopes_of(member.user, member.queue), graph.blob_bytes, graph.blobs_text)
            queues.check_demand(member, queues.demand(Asked.of(graph.configuration, graph.largest_memory)))
            live, running = self._members(queues), list[JobID]()
            if self._admission.needs_running(queues, member, live):
                running = await self._running_jobs()
                live = self._members(queues)
            self._admission.admit(
                queues,
                graph.job_id,
                member,
                live,
                running,
                time.monotonic(),
                blob_bytes=graph.blob_bytes,
                blobs_text=graph.blobs_text,
                held_bytes=self._held_bytes(),
            )

    async def _read_queues(self) -> Queues:
        return await self.run_blocking(self._queues.read) if self._queues.is_set else self._queues.read()

    @staticmethod
    @contextlib.contextmanager
    def _refusals(problem: str) -> Iterator[None]:
        """Translate refusals by queues and limits into those that a client receives; *problem* begins their text."""
        try:
            yield
        except OverLimitError as error:
            raise SubmissionLimitError.of(f"{problem}: {error}", error.retry_after_s) from None
        except QueueRefusedError as error:
            raise QueueRejectedError(f"{problem}: {error}") from None
        except QueuesError as error:
            raise JobSubmissionError(f"no job is accepted before the file of queues is right: {error}") from None

    @rpc
    async def admit_upload(self, job_id: JobID, upload_id: str, size: int, owner: str, name: str = "") -> None:
        term = self.term
        if not owner or not self._queues.is_set:
            return
        what = f"job {name!r} was not accepted" if name else f"a file of job {job_id} was not accepted"
        with self._refusals(what):
            queues = await self._read_queues()
            await self._delete_expired_uploads(term)
            while job_id in self._submitting:
                await self._submitting[job_id].wait()
            if self._term != term:
                raise FencingError(f"an upload for job {job_id} is not checked: the Dispatcher does not lead any more")
            job = self._jobs.get(job_id)
            user = owner if job is None else job.owner  # files added to an accepted job count for its owner
            if self._admission.uploader(job_id) not in (None, user):
                raise JobIDRejectedError(f"{what}: another user uploads files under this id; submit with another id")
            live, now = self._members(queues), time.monotonic()
            self._admission.admit_upload(
                queues, job_id, upload_id, size, user, live, now, held_bytes=self._held_bytes()
            )

    @rpc
    async def end_upload(self, job_id: JobID, owner: str) -> None:
        term = self.term
        while job_id in self._submitting:
            await self._submitting[job_id].wait()
        if not owner or not self._queues.is_set or job_id in self._jobs:
            return
        if self._admission.uploader(job_id) in (None, owner):
            await self._delete_unsubmitted(job_id, term)

    async def _delete_expired_uploads(self, term: LeaderTerm) -> None:
        """Delete uploads that were neither submitted nor continued for `blob.service.cleanup.ttl`."""

        def expired() -> list[JobID]:
            kept = {*self._jobs, *self._submitting}
            return self._admission.expired_uploads(kept, time.monotonic(), self._upload_lifetime_s)

        for job_id in expired():
            # Another upload may have had it deleted meanwhile, and its user may upload it again.
            if job_id in expired() and not await self._delete_unsubmitted(job_id, term):
                return  # the BlobServer does not answer: the next upload tries again

    async def _delete_unsubmitted(self, job_id: JobID, term: LeaderTerm) -> bool:
        """Delete an upload while no submission and no further upload of the job begins; return whether it succeeded."""
        done = self._submitting[job_id] = asyncio.Event()
        try:
            return await self._delete_upload(job_id, term)
        finally:
            del self._submitting[job_id]
            done.set()

    async def _delete_upload(self, job_id: JobID, term: LeaderTerm) -> bool:
        """Delete the files of a job that is not accepted; return whether it succeeded. They count until it does."""
        try:
            await self._job_blobs.clean_up(job_id, term)
        except ActorError as error:
            self.log.warning("the files of job %s, which is not accepted, are not deleted yet: %s", job_id, error)
            return False
        self._admission.end_upload(job_id)
        return True

    def _held_bytes(self) -> dict[JobID, int]:
        return {job_id: job.blob_bytes for job_id, job in self._jobs.items()}

    async def _with_sizes(self, graph: JobGraph) -> JobGraph:
        """Return a job with the sizes of its blobs. Without a file of queues none are needed, and none are believed.

        They are stored with the job, so that the next leader counts the same.

        Raises:
            JobSubmissionError: a blob is missing.
            JobNotReachableError: the BlobServer does not answer.
        """
        artifacts = [replace(artifact, size=0) for artifact in graph.artifacts]
        if self._queues.is_set:
            try:
                artifacts = [
                    replace(each, size=await self._size_of(graph.job_id, each.blob_key)) if each.blob_key else each
                    for each in artifacts
                ]
            except (ActorError, BlobConnectionError) as error:
                problem = f"job {graph.job_id} is not accepted without the sizes of its files: {error}"
                raise JobNotReachableError(problem) from error
            except BlobError as error:
                raise JobSubmissionError(f"job {graph.name!r} was not accepted: {error}") from error
        return graph.with_artifacts(*artifacts)

    async def _size_of(self, job_id: JobID, text: str) -> int:
        """Return the size of a blob; have the BlobServer fetch one from the store that another master's has received.

        Raises:
            BlobError: it is missing.
            ActorError: the BlobServer does not answer.
        """
        key = BlobKey.parse(text)
        size = await self._job_blobs.size_of(job_id, text)
        if size is None:
            await self.run_blocking(self._fetch_to_server, key, job_id)
            size = await self._job_blobs.size_of(job_id, text)
        if size is None:
            raise BlobServerError(f"the BlobServer has lost {text}; submit again")
        return size

    def _fetch_to_server(self, key: BlobKey, job_id: JobID) -> None:
        with Path(os.devnull).open("wb") as sink:
            self._blobs.get_to_stream(key, sink, job_id)

    def _members(self, queues: Queues) -> dict[JobID, Member]:
        """Return user and queue of each job that is not over; a job whose queue is gone is in the default one."""
        return {job_id: queues.member(job.owner, job.queue) for job_id, job in self._jobs.items()}

    async def _running_jobs(self) -> list[JobID]:
        try:
            async with asyncio.timeout(DETAILS_TIMEOUT_S):
                return list((await (await self._resource_manager.get()).request_queues()).running)
        except (ActorError, TimeoutError) as error:
            raise JobNotReachableError(f"the ResourceManager does not answer which jobs wait: {error}") from error

    async def _store(self, graph: JobGraph, term: LeaderTerm) -> None:
        """Make a job durable, and return once that is known to have succeeded.

        A write whose outcome is unknown is repeated until it is known. The client may have ended by then. It submits
        again under the same id, here or to the next leader, which finds the job stored or withdraws its entry.

        Raises:
            JobSubmissionError: the job cannot be stored; parts that were stored are removed.
            JobAlreadyDoneError: the job has ended already.
            FencingError: the term is over; only the next leader can tell whether the job was accepted.
        """
        job_id, data = graph.job_id, self._encoded(graph)

        async def write() -> None:
            await self._ha.running_jobs_registry().set_pending(job_id, term)
            await self._ha.job_graph_store().put(job_id, data, term)

        try:
            await self._until_known(write, f"job {job_id} was accepted", term)
        except (FencingError, JobAlreadyDoneError):
            raise
        except (HaError, OSError) as error:
            await self._cleaner.take_back(job_id, term)
            raise JobSubmissionError(f"job {graph.name!r} ({job_id}) was not accepted: {error}") from error

    def _encoded(self, graph: JobGraph) -> bytes:
        """Return a job graph as it is stored at the cluster's feature level; clients may write another version."""
        return encode(self._level.marked(graph, Format.JOB_GRAPH))

    async def _until_known(self, write: Callable[[], Awaitable[None]], what: str, term: LeaderTerm) -> None:
        """Repeat a write whose outcome is unknown, until it is known.

        Raises:
            FencingError: the term is over; only the next leader can tell whether it was written.
        """

        async def attempt() -> None:
            if self._term == term:
                await write()
            if self._term != term:
                raise FencingError(f"whether {what} is not known: the Dispatcher does not lead any more")

        unknown = (HaUnreachableError, StateWriteUnknownError)
        try:
            await retry(attempt, unknown, what=f"writing that {what}", log=self.log, level=logging.WARNING)
        except LeadershipLostError as error:
            raise FencingError(f"whether {what} is not known: {error}") from error

    async def _keep_blobs(self, job_id: JobID) -> None:
        """Spare the job's files from all sweeps, including one that began before the job was submitted."""
        try:
            await self._job_blobs.use(job_id)
        except ActorError as error:
            raise JobNotReachableError(f"job {job_id} is not accepted without the BlobServer: {error}") from error

    async def _read(self, sent: MaybeOffloaded) -> bytes:
        if isinstance(sent, Inline):
            return sent.data
        return await self.run_blocking(self._blobs.get_bytes, BlobKey.parse(sent.key), sent.job_id)

    async def _run(self, graph: JobGraph, status: JobStatus) -> None:
        """Register the job, follow its JobMaster, and start that."""
        job_id, now_ms = graph.job_id, _now_ms()
        details = JobDetails(
            job_id,
            graph.name,
            graph.kind,
            status,
            graph.created_ms or now_ms,
            None,
            {},
            0,
            "",
            submitter=graph.submitter,
            is_function=graph.is_function,
            owner=graph.owner,
        )
        leader = LeaderFollower(self, self._ha.leader_retrieval(job_master(job_id)), JobMasterGateway)
        running = RunningJob(details, leader, self._archive.find, _queue_of(graph), graph.blob_bytes)
        running.autoscaling = self._rescales.autoscaling_of(graph)
        self._jobs[job_id] = running
        await leader.start()
        if graph.client_heartbeat_timeout_s is not None:
            self._attach(job_id, graph.client_heartbeat_timeout_s)
        if status is JobStatus.RECONCILING:
            self._starts.recovered(job_id)
        else:
            self._starts.submitted(job_id)

    def _attach(self, job_id: JobID, timeout_s: float) -> None:
        self._attached.attach(time.monotonic(), job_id, timeout_s)
        if self._watching_clients is None or self._watching_clients.done():
            self._watching_clients = self.spawn(self._watch_clients(), "watching the clients of attached jobs")

    async def _watch_clients(self) -> None:
        """Cancel attached jobs whose clients have vanished, while any job is attached."""
        while (pause_s := self._attached.pause_s) is not None:
            due = time.monotonic() + pause_s
            await asyncio.sleep(pause_s)
            for job_id, because in self._attached.look(time.monotonic(), due).items():
                self.spawn(self._cancel_vanished(job_id, because, self.term), f"cancelling job {job_id}")

    async def _cancel_vanished(self, job_id: JobID, because: str, term: LeaderTerm) -> None:
        async def cancel() -> None:
            job = self._jobs.get(job_id)
            if job is not None and self.may_act(term):
                await (await job.leader.get()).cancel(because)

        self.log.warning("job %s is cancelled: %s", job_id, because)
        try:
            await retry(cancel, (*PASSING, ActorError), what=f"cancelling job {job_id}", log=self.log)
        except JobAlreadyTerminatedError:
            self.log.info("job %s has ended at the same moment", job_id)

    @rpc_sync
    def report_job_client_heartbeat(self, job_id: JobID) -> None:
        self._attached.heard(time.monotonic(), job_id)

    @rpc
    async def detach_job(self, job_id: JobID) -> None:
        term = self.term
        if job_id not in self._jobs:
            return
        store = self._ha.job_graph_store()
        graph = decode_job_graph(await store.get(job_id))
        data = self._encoded(replace(graph, client_heartbeat_timeout_s=None))
        await self._until_known(lambda: store.put(job_id, data, term), f"job {job_id} is detached", term)
        self._attached.detach(job_id)
        self.log.info("job %s runs on without its client", job_id)

    @rpc
    async def job_reached_terminal_state(self, job: ArchivedExecutionGraph) -> None:
        job_id, term = job.job_id, self.term
        # No client sees the end before it is recorded. A leader that finds it only in the archive records it.
        size = await self.run_blocking(self._archive.write, job)
        await self._record_end(job, term)
        dropped = await self.run_blocking(self._archive.enter, job, size, _now_ms())
        self._starts.forget(job_id)
        self._attached.detach(job_id)
        known = self._jobs.pop(job_id, None)
        self._admission.end_upload(job_id)
        if known is not None:
            known.over.set()
            await known.leader.stop()
        self.log.info("job %s (%s) is %s", job_id, job.name, job.status.value)
        self.announce(JobReachedTerminalState(str(job_id), job.name, job.status.value))
        self.spawn(self._cleaner.clean_up(job_id, term), f"cleaning up after job {job_id}")
        self._forget(dropped, term)

    async def _record_end(self, job: ArchivedExecutionGraph | JobDetails, term: LeaderTerm) -> None:
        """Record the end of a job in the registry, and return once that has succeeded; raises FencingError."""
        result = {"status": job.status.value, "end_ms": job.end_ms}
        registry = self._ha.running_jobs_registry()
        try:
            write = lambda: registry.set_done(job.job_id, result, term)  # noqa: E731
            await self._until_known(write, f"the end of job {job.job_id} is recorded", term)
        except JobAlreadyDoneError as error:
            self.log.warning("%s", error)

    async def _expire(self, term: LeaderTerm) -> None:
        history_due = time.monotonic()
        while self.may_act(term):  # the archive is a directory of all masters, and does not compare terms
            dropped = await self.run_blocking(self._archive.expire, _now_ms())
            if self._history is not None:
                for job_id in dropped:
                    await self.run_blocking(self._keep_log_ends, self._history, job_id)
                if time.monotonic() >= history_due:  # it may be tens of thousands of files
                    history_due += HISTORY_EXPIRY_INTERVAL_S
                    await self.run_blocking(self._history.expire, _now_ms())
            self._forget(dropped, term)
            await asyncio.sleep(EXPIRY_INTERVAL_S)

    def _keep_log_ends(self, history: HistoryDirectory, job_id: JobID) -> None:
        """Copy the ends of a job's kept logs into the history: their blobs are deleted with the job."""
        try:
            graph = history.read_ended(job_id)
            for log in () if graph is None else log_keys(graph, tuple(FUNCTION_FILES)):
                history.keep_log(log.blob_key, self._blobs.get_bytes(BlobKey.parse(log.blob_key), logs_owner(job_id)))
        except (OSError, WireError, BlobError) as error:
            self.log.warning("not all logs of job %s are kept in the history: %s", job_id, error)

    def _note_unfinished(self, history: HistoryDirectory, jobs: Sequence[RunningJob]) -> None:
        """Note the jobs that are not over, unless a fuller state of them is stored, in case this ends the cluster."""
        for job in jobs:
            try:
                if not history.knows_running(job.job_id):
                    history.note_running(job.last_known())
            except OSError as error:
                self.log.error("the history misses job %s, which is not over: %s", job.job_id, error)

    def _forget(self, job_ids: Iterable[JobID], term: LeaderTerm) -> None:
        for job_id in job_ids:
            self.spawn(self._cleaner.forget(job_id, term), f"forgetting job {job_id}")

    # ------------------------------------------------------------------- users

    async def _change_users(self, to: Callable[[Identities], list[Change]], what: str) -> bool:
        """Change users or tokens; return whether anything was changed. Raises `IdentityRejectedError`, FencingError."""
        try:
            changes = await self._ha.user_store().change(to, self.term)
        except IdentityError as error:
            raise IdentityRejectedError(str(error)) from None
        except LeadershipLostError:
            raise
        except HaError as error:
            raise IdentitiesUnreachableError(f"{what} may or may not be done: {error}; repeat the command") from error
        if changes:
            self.log.info("%s", what)
        return bool(changes)

    async def _identities(self) -> Identities:
        try:
            found = await self._ha.user_store().read()
        except HaError as error:
            raise IdentitiesUnreachableError(f"the users cannot be read: {error}; repeat the command") from error
        for field in found.unreadable:
            self.log.warning("the entry %r of the store of users cannot be read; the cluster rejects its tokens", field)
        return found

    @rpc
    async def add_user(self, user: User) -> bool:
        user = replace(user, created_ms=_now_ms())
        return await self._change_users(
            lambda known: known.add_user(user), f"the user {user.name[:80]!r} has the role {user.role.value}"
        )

    @rpc
    async def remove_user(self, name: str) -> bool:
        return await self._change_users(lambda known: known.remove_user(name), f"removing the user {name[:80]!r}")

    @rpc
    async def list_users(self) -> list[User]:
        return (await self._identities()).users

    @rpc
    async def add_token(self, token: ApiToken) -> bool:
        return await self._change_users(
            lambda known: known.add_token(token), f"adding the token {token.token_id[:16]!r} of {token.user[:80]!r}"
        )

    @rpc
    async def revoke_token(self, token_id: str) -> bool:
        return await self._change_users(lambda known: known.revoke_token(token_id), f"revoking {token_id[:16]!r}")

    @rpc
    async def list_tokens(self, user: str) -> list[ApiToken]:
        return [token for token in (await self._identities()).tokens if user in ("", token.user)]

    # ------------------------------------------------------------------- views

    @rpc_sync
    def list_jobs(self) -> list[JobID]:
        return list(dict.fromkeys([*self._jobs, *(job.job_id for job in self._archive.details())]))

    @rpc
    async def request_multiple_job_details(self) -> MultipleJobsDetails:
        running = await asyncio.gather(*(job.details() for job in list(self._jobs.values())))
        if any(ExecutionState.SCHEDULED.value in job.tasks_per_state for job in running):
            reasons = {request.job_id: request.reason for request in reversed(await self._waiting())}
            running = [replace(job, waiting_for=reasons.get(job.job_id, "")) for job in running]
        known = {job.job_id: job for job in [*running, *self._archive.details()]}
        return MultipleJobsDetails(tuple(sorted(known.values(), key=lambda job: job.start_ms, reverse=True)))

    async def _waiting(self) -> Sequence[WaitingRequest]:
        """Return the requests that wait for slots, the next one first; none without an answer.

        None either without a file of queues and users: then what a job waits for is the JobMaster's to say.
        """
        if not self._queues.is_set and not any(job.owner for job in self._jobs.values()):
            return ()
        try:
            async with asyncio.timeout(DETAILS_TIMEOUT_S):
                return (await (await self._resource_manager.get()).request_queues()).waiting
        except (ActorError, TimeoutError) as error:
            self.log.info("the ResourceManager does not answer what jobs wait for: %s", error)
            return ()

    def _find(self, job_id: JobID) -> RunningJob:
        job = self._jobs.get(job_id)
        if job is None and self.fencing_token is None:
            # The call began under a leadership that is over: only the next leader knows the jobs.
            raise JobNotReachableError(
                f"the Dispatcher does not lead any more and cannot find job {job_id}; retry in a moment"
            )
        if job is None:
            raise JobNotFoundError(
                f"no job {job_id} is running or remembered; `understudy job list` shows those that are"
            )
        return job

    @rpc
    async def request_job(self, job_id: JobID) -> ArchivedExecutionGraph:
        return await self._job(job_id)

    @rpc
    async def request_job_graph(self, job_id: JobID) -> bytes:
        self._running(job_id)
        return await self._ha.job_graph_store().get(job_id)

    async def _job(self, job_id: JobID) -> ArchivedExecutionGraph:
        archived = await self.run_blocking(self._archive.get, job_id)
        if archived is not None:
            return archived
        running = self._find(job_id)
        graph = await self._rescales.with_ended(running, await running.request())
        if all(task.state is not ExecutionState.SCHEDULED for task in graph.tasks):
            return graph
        # The JobMaster knows what each request waited for when it was made; its place has changed since.
        reasons = {each.task_name: each.reason for each in await self._waiting() if each.job_id == job_id}
        tasks = (replace(task, waiting_for=reasons.get(task.name, task.waiting_for)) for task in graph.tasks)
        return replace(graph, tasks=tuple(tasks))

    @rpc
    async def request_job_status(self, job_id: JobID) -> JobStatus:
        archived = self._archive.find(job_id)
        return (archived or await self._find(job_id).details()).status

    @rpc
    async def request_job_result(self, job_id: JobID) -> JobResult | None:
        archived = await self.run_blocking(self._archive.get, job_id)
        if archived is None:
            try:
                async with asyncio.timeout(RESULT_WAIT_S):
                    await self._find(job_id).over.wait()
            except TimeoutError:
                return None
            archived = await self.run_blocking(self._archive.get, job_id)
        if archived is None:
            raise JobNotFoundError(f"job {job_id} has ended and is not remembered any more (jobstore.max-capacity)")
        return archived.result()

    def _running(self, job_id: JobID) -> RunningJob:
        """Return a job that is not over; raises `JobNotFoundError`, or `JobAlreadyTerminatedError`."""
        archived = self._archive.find(job_id)
        if archived is not None:
            raise JobAlreadyTerminatedError(_ended_already(archived))
        return self._find(job_id)

    async def _graph_of(self, job_id: JobID) -> JobGraph:
        return decode_job_graph(await self._ha.job_graph_store().get(job_id))

    async def _ended(self, job_id: JobID) -> ArchivedExecutionGraph | None:
        """Return a job that is over; None for any other."""
        return await self.run_blocking(self._archive.get, job_id)

    @rpc
    async def cancel_job(self, job_id: JobID) -> None:
        archived = self._archive.find(job_id)
        if archived is not None:
            raise JobAlreadyTerminatedError(f"{_ended_already(archived)}: nothing to cancel")
        job = self._find(job_id)
        await (await job.leader.get()).cancel()

    @rpc
    async def request_operator_back_pressure_stats(
        self, job_id: JobID, vertex_id: JobVertexID
    ) -> OperatorBackPressureStats | None:
        tasks = {task.key: task for task in (await self._job(job_id)).tasks}
        if vertex_id not in tasks:
            raise JobVertexNotFoundError(f"job {job_id} has no task {vertex_id}: its tasks are {', '.join(tasks)}")
        return tasks[vertex_id].attempts[-1].back_pressure

    @rpc
    async def request_job_logs(self, job_id: JobID) -> list[TaskLog]:
        archived = await self.run_blocking(self._archive.get, job_id)
        if archived is not None and is_whole(archived):
            return merged_logs(archived, [])
        job = archived or await self._find(job_id).try_to_request()
        return merged_logs(job, await self._logs_at_task_executors(job_id))

    async def _logs_at_task_executors(self, job_id: JobID) -> list[TaskLog]:
        """Return the logs of a job that the TaskExecutors have; one that does not answer is left out."""
        try:
            async with asyncio.timeout(LOGS_TIMEOUT_S):
                workers = await (await self._resource_manager.get()).request_task_managers()
                gateways = [self.gateway(view.registration.address, TaskExecutorGateway) for view in workers]
                answers = await asyncio.gather(
                    *(gateway.request_task_logs(job_id, self._blob) for gateway in gateways), return_exceptions=True
                )
        except (ActorError, TimeoutError) as error:
            self.log.warning("no TaskExecutor could be reached for logs of job %s: %s", job_id, error)
            return []
        found = []
        for view, answer in zip(workers, answers, strict=True):
            if isinstance(answer, BaseException):
                self.log.warning("%s does not return its logs: %s", view.registration.resource_id, answer)
            else:
                found += answer
        return found

    # ------------------------------------------------------------- checkpoints and savepoints

    @rpc
    async def trigger_checkpoint(self, job_id: JobID, trigger_id: TriggerID) -> OperationStatus:
        return await self._operate(job_id, trigger_id, lambda job: job.trigger_checkpoint(trigger_id))

    @rpc
    async def trigger_savepoint(
        self, job_id: JobID, trigger_id: TriggerID, target_directory: str, cancel_job: bool = False
    ) -> OperationStatus:
        return await self._operate(
            job_id,
            trigger_id,
            lambda job: job.trigger_savepoint(trigger_id, target_directory, cancel_job),
            target_directory,
        )

    @rpc
    async def stop_with_savepoint(
        self, job_id: JobID, trigger_id: TriggerID, target_directory: str, drain: bool
    ) -> OperationStatus:
        return await self._operate(
            job_id,
            trigger_id,
            lambda job: job.stop_with_savepoint(trigger_id, target_directory, drain),
            target_directory,
        )

    @rpc
    async def roll_back(self, job_id: JobID, trigger_id: TriggerID, target: str, new_query_id: bool) -> OperationStatus:
        return await self._running(job_id).gateway.roll_back(trigger_id, target, new_query_id)

    @rpc
    async def trigger_rescale(
        self, job_id: JobID, trigger_id: TriggerID, partitions: int | None, query: str, target_directory: str
    ) -> JobID:
        rescale_id = rescale_job_id(job_id, trigger_id)
        begun = Rescale(trigger_id, partitions, is_undo=partitions is None, rescale_job=rescale_id)
        return await self._rescales.begin(job_id, begun, query, target_directory)

    @rpc
    async def report_rescale(self, job_id: JobID, rescale: Rescale) -> None:
        await self._rescales.report(job_id, rescale)

    @rpc
    async def request_job_resource_requirements(self, job_id: JobID) -> list[VertexResourceRequirements]:
        return await self._rescales.requirements(self._running(job_id))

    @rpc
    async def request_rescale_status(self, job_id: JobID, trigger_id: TriggerID) -> OperationStatus:
        try:
            rescale = await self._job(rescale_job_id(job_id, trigger_id))
        except JobNotFoundError:
            raise UnknownOperationError(f"no rescale of job {job_id} is known by the trigger {trigger_id}") from None
        rolled_back_to = ""
        if rescale.status.is_globally_terminal:
            rolled_back_to = (await self._checkpoint_statistics(job_id)).rolled_back_to
        return rescale_status(job_id, trigger_id, rescale, rolled_back_to)

    @rpc
    async def get_triggered_savepoint_status(self, job_id: JobID, trigger_id: TriggerID) -> OperationStatus:
        known = await self._ended_with(job_id, trigger_id)
        if known is None and await self._ended(job_id) is not None:
            raise UnknownOperationError(f"job {job_id} is over, and no trigger {trigger_id} of it is known")
        return known or await self._find(job_id).gateway.request_operation_status(trigger_id)

    @rpc
    async def dispose_savepoint(self, path: str) -> bool:
        return await self.run_blocking(dispose_at, path)

    @rpc
    async def request_checkpoint_statistics(self, job_id: JobID) -> CheckpointStatsSnapshot:
        return await self._checkpoint_statistics(job_id)

    async def _checkpoint_statistics(self, job_id: JobID) -> CheckpointStatsSnapshot:
        archived = await self._ended(job_id)
        if archived is not None:
            return archived.checkpoints
        return await self._find(job_id).gateway.request_checkpoint_statistics()

    @rpc
    async def request_query_histories(self, job_id: JobID) -> list[QueryHistory]:
        archived = await self._ended(job_id)
        if archived is not None:
            return list(archived.query_histories)
        return await self._find(job_id).gateway.request_query_histories()

    async def _operate(
        self,
        job_id: JobID,
        trigger_id: TriggerID,
        ask: Callable[[JobMasterGateway], Awaitable[OperationStatus]],
        target: str | None = None,
    ) -> OperationStatus:
        """Send a request to the job's JobMaster; for a job that is over, return the outcome of the request.

        Args:
            job_id: the job.
            trigger_id: of the request.
            ask: sends the request to the JobMaster, for the first time or again.
            target: directory for a savepoint, empty for the cluster's; None for a checkpoint.

        Raises:
            JobNotFoundError: no such job exists.
            JobAlreadyTerminatedError: the job has ended without this request. The message names the savepoint that it
                was stopped with, if there is one.
        """
        known = await self._ended_with(job_id, trigger_id)
        if known is not None:
            return known
        try:
            running = self._running(job_id)
        except JobAlreadyTerminatedError as error:
            # It may have ended between the two looks, because of this same request.
            known = await self._ended_with(job_id, trigger_id) or await self._written(job_id, trigger_id, target)
            if known is not None:
                return known
            stopped_with = await self._stopped_with(job_id)
            if not stopped_with:
                raise
            raise JobAlreadyTerminatedError(f"{error}: it was stopped with savepoint {stopped_with}") from error
        return await ask(running.gateway)

    async def _written(self, job_id: JobID, trigger_id: TriggerID, target: str | None) -> OperationStatus | None:
        """Return the savepoint of a trigger that the last JobMaster did not know; None if there is none.

        A former JobMaster wrote it, and was lost before it answered.
        """
        if target is None:
            return None
        place = place_below(target or self._savepoint_target, savepoint_name(job_id, trigger_id))
        try:
            await self.run_blocking(read_at, place)
            if not is_url(place):
                await self.run_blocking(sync_names, Path(place))  # it may have been lost before it has synced that
        except (CheckpointError, OSError):
            return None
        return OperationStatus(trigger_id, OperationState.COMPLETED, path=place)

    async def _stopped_with(self, job_id: JobID) -> str:
        """Return the savepoint that an ended job was stopped with; empty if there is none."""
        archived = await self._ended(job_id)
        latest = None if archived is None else archived.checkpoints.latest_savepoint
        return (latest.external_path or "") if latest is not None and latest.type.ends_the_job else ""

    async def _ended_with(self, job_id: JobID, trigger_id: TriggerID) -> OperationStatus | None:
        """Return the outcome of a trigger in a job that is over, for example because the trigger stopped the job."""
        archived = await self._ended(job_id)
        operations = () if archived is None else archived.checkpoints.operations
        return next((status for status in operations if status.trigger_id == trigger_id), None)

    # ------------------------------------------------------------- the cluster

    @rpc_sync
    def get_blob_server(self) -> BlobAddress:
        return self._blob

    @rpc_sync
    def get_blob_server_port(self) -> int:
        return self._blob.port

    @rpc
    async def request_cluster_overview(self) -> ClusterOverview:
        resources = await (await self._resource_manager.get()).request_resource_overview()
        ended = [job.status for job in self._archive.details()]
        newest = supported_levels().newest
        return ClusterOverview.of(
            resources, len(self._jobs), ended, self._level.number, newest, str(self._savepoint_dir)
        )

    @rpc
    async def request_task_managers(self) -> list[TaskManagerView]:
        return await (await self._resource_manager.get()).request_task_managers()

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

    @rpc
    async def request_masters(self) -> list[str]:
        return list((await self._master.request_status()).masters)

    # ------------------------------------------------------------- the feature level

    @rpc
    async def finalize_feature_level(self) -> FeatureLevelChange:
        async with self._finalizing:
            term, before = self.term, self._level.number
            level, held_by = level_to_finalize(before, await self._components())
            limits = tuple(component.limit() for component in held_by)
            if level == before and limits:
                others = f" (and {len(limits) - 1} more)" if len(limits) > 1 else ""
                raise FeatureLevelHeldError(f"the feature level stays {before}: {limits[0]}{others}")
            if level > before:
                store = self._ha.feature_level_store()
                write = lambda: store.raise_to(level, before, term)  # noqa: E731
                await self._until_known(write, f"the feature level is {level}", term)
                self._level = checked(level)
                self.log.info("the feature level is raised from %d to %d", before, level)
            await self._notify_level(level)
            return FeatureLevelChange(before, level, limits)

    async def _components(self) -> list[Component]:
        """Return the running masters, leaders, TaskExecutors and JobMasters with their releases.

        Raises:
            FeatureLevelHeldError: one of them does not answer.
        """

        async def release(name: str, ask: Awaitable[Release]) -> Component:
            return Component(name, await _answer(name, ask))

        own, others = await self._masters()
        asked = [
            _answer(f"the master at {system.host}:{system.port}", gateway.request_status())
            for system, gateway in others
        ]
        masters = [own, *await asyncio.gather(*asked)]
        manager = await _answer("the ResourceManager", self._resource_manager.get())
        workers = await _answer("the ResourceManager", manager.request_task_managers())
        # A job without a JobMaster gets one of a master that is in the list.
        jobs = [
            release(f"the JobMaster of job {job.job_id}", job.leader.gateway.request_release())
            for job in self._jobs.values()
            if job.leader.gateway is not None
        ]
        return [
            *(status.component for status in masters),
            await release("the ResourceManager", manager.request_release()),
            *(view.registration.component for view in workers),
            *await asyncio.gather(*jobs),
        ]

    async def _masters(self) -> tuple[ClusterStatus, list[tuple[ActorAddress, MasterGateway]]]:
        """Return the own master's answer, and the other masters.

        Raises:
            FeatureLevelHeldError: the own master or Redis does not answer.
        """
        own = await _answer("the own master", self._master.request_status())
        return own, self._other_masters(own, await _answer("Redis", self._ha.masters()))

    def _other_masters(self, own: ClusterStatus, registered: Iterable[str]) -> list[tuple[ActorAddress, MasterGateway]]:
        """Return the other masters by the addresses of their systems: those of this host, and the registered ones."""
        here = ActorAddress.parse(own.address)
        systems = {
            (system.host, system.port): system for system in map(ActorAddress.parse, (*own.masters, *registered))
        }
        systems.pop((here.host, here.port), None)
        return [(system, self.gateway(system.with_path(MASTER), MasterGateway)) for system in systems.values()]

    async def _masters_that_answer(self) -> list[Component]:
        try:
            async with asyncio.timeout(FIND_TIMEOUT_S):
                own = await self._master.request_status()
                others = self._other_masters(own, await self._ha.masters())
                answers = await asyncio.gather(*(each.request_status() for _, each in others), return_exceptions=True)
        except (ActorError, HaError, TimeoutError) as error:
            self.log.info("not all masters answer: %s", error)
            return []
        return [own.component, *(each.component for each in answers if not isinstance(each, BaseException))]

    async def _notify_level(self, level: int) -> None:
        """Notify the writers of stored values. One that misses this keeps writing what all releases read."""
        try:
            _, others = await self._masters()
        except FeatureLevelHeldError as error:
            self.log.warning("other masters do not know yet that the feature level is %d: %s", level, error.__cause__)
            others = []
        asks = {
            "the own master": self._master.notify_feature_level(level),
            **{
                f"the master at {system.host}:{system.port}": gateway.notify_feature_level(level)
                for system, gateway in others
            },
            **{
                f"the JobMaster of job {job.job_id}": job.leader.gateway.notify_feature_level(level)
                for job in self._jobs.values()
                if job.leader.gateway is not None
            },
        }
        if self._resource_manager.gateway is not None:
            asks["the ResourceManager"] = self._resource_manager.gateway.notify_feature_level(level)
        answers = await asyncio.gather(*asks.values(), return_exceptions=True)
        for name, answer in zip(asks, answers, strict=True):
            if isinstance(answer, BaseException):
                self.log.warning("%s does not know yet that the feature level is %d: %s", name, level, answer)

    @rpc
    async def shut_down_cluster(self) -> None:
        await self._shut_down(ApplicationStatus.UNKNOWN, "the cluster is being shut down")

    async def _shut_down(self, end: ApplicationStatus, diagnostics: str) -> None:
        """Stop all masters; raises `ActorError` if the own master does not answer."""
        status = await self._master.request_status()
        manager = self._resource_manager.gateway
        if manager is not None:
            try:
                await manager.deregister_application(end, diagnostics)
            except ActorError as error:
                self.log.info("the ResourceManager was not notified of the end of the cluster: %s", error)
        own = ActorAddress.parse(status.address)
        for system in map(ActorAddress.parse, status.masters):
            if (system.host, system.port) != (own.host, own.port):
                try:
                    await self.gateway(system.with_path("/user/master"), MasterGateway).shut_down_cluster(end)
                except ActorError as error:
                    self.log.info("the master at %s cannot be stopped, it may have ended: %s", system, error)
        await self._master.shut_down_cluster(end)


def is_whole(job: ArchivedExecutionGraph) -> bool:
    """Return whether all logs of the job's attempts are kept, so that no TaskExecutor has to be queried. Pure."""
    attempts = [attempt for task in job.tasks for attempt in task.attempts if _has_begun(attempt)]
    return all(attempt.logs and all(log.is_whole for log in attempt.logs) for attempt in attempts)


def _has_begun(attempt: AttemptInfo) -> bool:
    return ExecutionState.DEPLOYING.value in attempt.timestamps


def merged_logs(job: ArchivedExecutionGraph | None, found: Iterable[TaskLog]) -> list[TaskLog]:
    """Return the logs in the order in which their attempts began, each once. Pure.

    The kept copy of a log wins over another one, unless it is cut short.

    Args:
        job: has the kept logs; None if they are not known.
        found: the logs that the TaskExecutors have; those of an attempt are in order.
    """
    if job is None:
        return list(found)
    present = {(log.attempt_id, log.name): log for log in found}
    begun: dict[ExecutionAttemptID, int] = {}
    for task in job.tasks:
        for attempt in task.attempts:
            begun[attempt.attempt_id] = attempt.timestamps.get(ExecutionState.DEPLOYING.value, 0)
            for log in attempt.logs:
                key = attempt.attempt_id, log.name
                if log.is_whole or key not in present:
                    present[key] = TaskLog(
                        job.job_id, task.name, attempt.number, log.name, log.size, log.blob_key, attempt.attempt_id
                    )
    # An attempt that the job has forgotten was one of its first.
    return sorted(present.values(), key=lambda log: begun.get(log.attempt_id, 0))


def _queue_of(graph: JobGraph) -> str:
    return graph.configuration.get(JobOptions.QUEUE.key, "")


def _ended_already(job: JobDetails) -> str:
    because = f" ({job.error})" if job.error else ""
    return f"job {job.job_id} is {job.status.value} already{because}"


async def _answer(name: str, ask: Awaitable[T]) -> T:
    """Return the answer of a component; raises `FeatureLevelHeldError` if it does not answer in time."""
    try:
        async with asyncio.timeout(RELEASE_TIMEOUT_S):
            return await ask
    except (ActorError, GatewayError, HaError, TimeoutError) as error:
        because = str(error) or f"no answer within {RELEASE_TIMEOUT_S:g} s"
        raise FeatureLevelHeldError(f"the feature level was not raised: {name} does not answer: {because}") from error


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


async def create(
    service: RpcService,
    name: str,
    *,
    runtime_dir: str,
    system: str,
    master_address: str,
    blob_host: str,
    blob_port: int,
    kind: Callable[..., Dispatcher] = Dispatcher,
) -> Dispatcher:
    """Create the Dispatcher in the actor's host."""
    context = ComponentContext.read(runtime_dir, system)
    blob = BlobAddress(blob_host, blob_port)
    history = HistoryDirectory.of(context.configuration)
    context.offload_large_calls(service, blob)
    dispatcher = kind(
        service,
        name,
        ha=await context.ha_services(service),
        receptionist=receptionist_of(service, context.system),
        master_address=master_address,
        blob=blob,
        blobs=blob_client(context.configuration, blob, service.secret),
        archive=create_archive(context.configuration, context.archive, history),
        log_dir=context.directory.log,
        savepoint_dir=context.configuration.get(CheckpointingOptions.SAVEPOINT_DIR),
        sweep_interval_s=context.configuration.get(BlobOptions.CLEANUP_INTERVAL),
        starts_at_once=context.configuration.get(JobOptions.JOB_MASTER_STARTS),
        queues=context.configuration.get(QueueOptions.FILE),
        history=history,
        configuration=context.configuration,
    )
    await serve_metrics(service, dispatcher.metrics.registry)
    return dispatcher

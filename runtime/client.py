"""The client of a cluster for plain programs, notebooks and the command line: synchronous, and follows the leader."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from actors.address import ActorAddress
from actors.client import ActorClient
from actors.errors import (
    ActorError,
    AskTimeout,
    AuthenticationError,
    RecipientUnreachable,
    UnknownActor,
    WireError,
)
from actors.process.diagnostics import DiagnosticsGateway, diagnostics_at
from actors.rpc.gateway import Ask, FencingToken, RpcGateway
from actors.rpc.service import RpcConfig
from blob.client import BlobClient
from blob.errors import BlobConnectionError, BlobServerError
from blob.gateway import BlobAddress
from blob.key import BlobKey, PermanentBlobKey, TransientBlobKey
from blob.offload import Inline, MaybeOffloaded, offload_if_larger
from blob.rpc_offload import BlobOffloader
from runtime.ids import ExecutionAttemptID, JobID, ResourceID, TriggerID
from runtime.job_logs import FUNCTION_RESULT, KeptLog, logs_owner
from runtime.jobgraph.codec import encode
from runtime.jobgraph.errors import InvalidFunctionError
from runtime.jobgraph.functions import TYPED_IN
from runtime.jobgraph.job_graph import Artifact, ArtifactRole, JobGraph
from runtime.protocol.archived_execution_graph import ApplicationStatus, ArchivedExecutionGraph, JobDetails, JobResult
from runtime.protocol.checkpoint_statistics import CheckpointStatsSnapshot
from runtime.protocol.checkpoints import OperationState, OperationStatus
from runtime.protocol.diagnostics import ComponentLog, TaskPoolReport, ThreadDump
from runtime.protocol.dispatcher import DispatcherGateway
from runtime.protocol.errors import PASSING, UnknownTaskExecutorError
from runtime.protocol.execution_state import JobStatus
from runtime.protocol.master import MasterGateway
from runtime.protocol.messages import ClusterOverview, ClusterStatus, TaskLog, TaskManagerView
from runtime.protocol.processes import process_addresses
from runtime.protocol.task_executor import TaskExecutorGateway

T = TypeVar("T")
G = TypeVar("G", bound=RpcGateway)

RETRY_S = 0.1
POLL_S = 0.1
CARRIED_SIZE = 16 * 1024
"""Bytes that a job's files may have together to travel in its graph, and with it to be in Redis."""
CARRIED_ROLES = {ArtifactRole.MAIN, ArtifactRole.FILE}  # libraries are shared by their blobs' keys


class NoAnswerError(ActorError):
    """The cluster did not answer within ``client.timeout``; whether what was asked took effect is unknown."""


class ClusterStoppedError(ActorError):
    """The cluster was stopped, and its unfinished jobs are over with it."""

    remedy = "`python -m runtime.cluster start` starts a new one; submit unfinished jobs again"


class SubmissionUnknownError(NoAnswerError):
    """No answer came to a submission, so the job may have been accepted or not; submitting it again is safe.

    Args:
        name: of the job.
        job_id: under which it was submitted.
        cause: why there is no answer.
    """

    def __init__(self, name: str, job_id: JobID, cause: Exception) -> None:
        super().__init__(f"whether job {name!r} ({job_id}) was accepted is not known: {cause}")
        self.remedy = (
            f"once the cluster answers `job info {job_id}` shows the job, if it was accepted; "
            f"submitted again with --job-id {job_id} it is not run twice"
        )


class ClusterClient:
    """Speaks to one cluster.

    Args:
        system: address of the cluster's actor system (any actor's address at its port), or of several masters' systems;
            the others are learned from the first one that answers.
        secret: the cluster's secret.
        rpc: settings of the connections; ``socket_dir`` in it makes a cluster of this machine a little faster.
        inline_limit: a job graph of more bytes is submitted as a blob (``blob.offload.minsize``).
        patience_s: seconds for which a leader that does not answer is looked up again (``client.timeout``).
        find_masters: says anew where the cluster's masters are, when none of those that are known answers.
        was_stopped: says, when nobody answers, whether the cluster was stopped: then the client does not wait for it.

    Every method raises `ActorError` when the cluster does not answer in that time, and the errors of
    `runtime.protocol.errors` that it answers with.
    """

    def __init__(
        self,
        system: ActorAddress | str | Sequence[str],
        secret: bytes,
        *,
        rpc: RpcConfig | None = None,
        inline_limit: int = 1024 * 1024,
        patience_s: float = 60.0,
        find_masters: Callable[[], Iterable[str]] = tuple,
        was_stopped: Callable[[], bool] = bool,
    ) -> None:
        self._systems = _addresses(system)
        self._was_stopped = was_stopped
        self._find_masters = find_masters
        self._learned = False
        self._secret = secret
        self._patience_s = patience_s
        self._inline_limit = inline_limit
        self._tls = None if rpc is None else rpc.tls
        self._actors = ActorClient(secret, rpc, BlobOffloader(self._blob_client, self._blob_location))
        self._gateways: dict[str, RpcGateway] = {}
        self._highest: dict[str, FencingToken] = {}

    @property
    def system(self) -> ActorAddress:
        """Address of the system of the master that is spoken to."""
        return self._systems[0]

    def lookup(self, name: str, gateway_type: type[G]) -> G:
        """A typed gateway to the actor ``/user/<name>`` of the cluster; any of its masters knows the leaders."""
        for _ in self._systems[1:]:
            try:
                return self._gateway(name, gateway_type)
            except (RecipientUnreachable, UnknownActor, AskTimeout, AuthenticationError, WireError):
                self._systems = [*self._systems[1:], self._systems[0]]
        return self._gateway(name, gateway_type)

    def lookup_address(self, address: ActorAddress | str, gateway_type: type[G]) -> G:
        """A typed gateway to the actor at any address, of another system too if it has the same secret."""
        return self._actors.lookup(address, gateway_type)

    def _gateway(self, name: str, gateway_type: type[G]) -> G:
        listing = self._actors.find(self.system.with_path(f"/user/{name}"))
        token, highest = listing.token, self._highest.get(name)
        if token is not None:
            # A leader behind what was seen is called with that: it refuses, and learns that it has to lead above it.
            token = highest if highest is not None and highest.epoch > token.epoch else token
            self._highest[name] = token
        return self._actors.gateway(listing.address, gateway_type, token)

    def _learn_masters(self) -> None:
        """Remember all masters of the cluster while one of them answers."""
        self._learned = True
        with contextlib.suppress(ActorError):
            self._add_masters(self.lookup("master", MasterGateway).request_status().result().masters)

    def _add_masters(self, addresses: Iterable[str]) -> None:
        found = [ActorAddress.parse(text) for text in addresses]
        known = {(system.host, system.port) for system in self._systems}
        self._systems += [system for system in found if (system.host, system.port) not in known]

    def _ask(self, question: Callable[[DispatcherGateway], T]) -> T:
        return self.call("dispatcher", DispatcherGateway, question)

    def call(self, name: str, gateway_type: type[G], question: Callable[[G], T]) -> T:
        """Ask the actor ``/user/<name>``, whoever leads, and look it up again while it does not answer.

        Args:
            name: of the actor.
            gateway_type: its gateway.
            question: what is asked of it; asked again when the reply is lost, so it is to be idempotent.

        Raises:
            NoAnswerError: it does not answer for ``patience_s``.
            ClusterStoppedError: the cluster was stopped.
        """
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                gateway = self._gateways.get(name)
                if not isinstance(gateway, gateway_type):
                    gateway = self._gateways[name] = self.lookup(name, gateway_type)
                answer = question(gateway)
            except (*PASSING, AuthenticationError) as error:
                self._gateways.pop(name, None)
                # Who was answered before has the right secret: a process is gone, and its port is a stranger's.
                if isinstance(error, AuthenticationError) and not self._learned:
                    raise
                if self._was_stopped():
                    raise ClusterStoppedError(f"the cluster at {self.system} was stopped") from error
                if time.monotonic() > deadline:
                    raise NoAnswerError(f"the cluster at {self.system} does not answer: {error}") from error
                self._add_masters(self._find_masters())
                time.sleep(RETRY_S)
            else:
                if not self._learned:
                    self._learn_masters()
                return answer

    # --------------------------------------------------------------------- jobs

    def submit(
        self,
        graph: JobGraph,
        main: Path,
        py_files: Iterable[Path] = (),
        libraries: Iterable[tuple[Path, ArtifactRole]] = (),
    ) -> JobID:
        """Upload a job's files and submit it; returns when the cluster has persisted it.

        Args:
            graph: the job; its artifacts are filled in here.
            main: the job file.
            py_files: modules and archives for the job's Python path.
            libraries: what else the job's code imports: packages, requirements, packed environments, jars.

        Raises:
            OSError: a file cannot be read.
            BlobError: a file cannot be uploaded.
            JobGraphError, JobSubmissionError: the cluster does not accept the job.
            SubmissionUnknownError: whether it has accepted the job is not known.
        """
        if main.stem != TYPED_IN and any(
            (vertex.function or "").startswith(f"{TYPED_IN}:") for vertex in graph.vertices
        ):
            raise InvalidFunctionError(
                f"functions of job {graph.name!r} were typed into a prompt or notebook, so {main.name} does not have "
                "them: submit the Pipeline with runtime.notebook, or put them into a file"
            )
        files = [(main, ArtifactRole.MAIN)]
        files += [(path, ArtifactRole.PY_FILE) for path in py_files]
        files += libraries
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                message = self._upload(graph, files)
                break
            except (BlobConnectionError, BlobServerError):
                # The BlobServer is being replaced, or another master's serves from now on.
                if time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_S)
        sent = False

        def submit(dispatcher: DispatcherGateway) -> JobID:
            nonlocal sent
            sent = True
            return dispatcher.submit_job(message).result()

        try:
            return self._ask(submit)
        except NoAnswerError as error:
            if not sent:
                raise
            raise SubmissionUnknownError(graph.name, graph.job_id, error) from error

    def _upload(self, graph: JobGraph, files: Sequence[tuple[Path, ArtifactRole]]) -> MaybeOffloaded:
        carried = _carried(files)
        if carried is not None and len(data := encode(graph.with_artifacts(*carried))) <= self._inline_limit:
            return Inline(data)
        with self.blobs() as blobs:
            artifacts = [
                Artifact(path.name, role, str(blobs.put_file(path, PermanentBlobKey, graph.job_id)))
                for path, role in files
            ]
            data = encode(graph.with_artifacts(*artifacts))
            return offload_if_larger(data, self._inline_limit, blobs, graph.job_id)

    @contextlib.contextmanager
    def blobs(self) -> Iterator[BlobClient]:
        """A client of the BlobServer of the master that leads, for the time of a ``with`` statement."""
        with self._blob_client(self._blob_location()) as client:
            yield client

    def _blob_location(self) -> tuple[str, int]:
        address = self._ask(lambda dispatcher: dispatcher.get_blob_server().result())
        return address.host, address.port

    def _blob_client(self, location: tuple[str, int]) -> BlobClient:
        return BlobClient(location, self._secret, tls=None if self._tls is None else self._tls.contexts()[1])

    def list_jobs(self) -> list[JobDetails]:
        """Running and finished jobs, the newest first."""
        return list(self._ask(lambda dispatcher: dispatcher.request_multiple_job_details().result()).jobs)

    def job(self, job_id: JobID) -> ArchivedExecutionGraph:
        """One job with its tasks; raises `JobNotFoundError`."""
        return self._ask(lambda dispatcher: dispatcher.request_job(job_id).result())

    def status_of(self, job_id: JobID) -> JobStatus:
        """The state of one job; raises `JobNotFoundError`."""
        return self._ask(lambda dispatcher: dispatcher.request_job_status(job_id).result())

    def result(self, job_id: JobID) -> JobResult:
        """How a job ended, once it has; raises `JobNotFoundError`."""
        while (result := self._ask(lambda dispatcher: dispatcher.request_job_result(job_id).result())) is None:
            pass  # each ask waits for some seconds
        return result

    def cancel(self, job_id: JobID) -> None:
        """Begin to cancel a job; raises `JobNotFoundError` or `JobAlreadyTerminatedError`."""
        self._ask(lambda dispatcher: dispatcher.cancel_job(job_id).result())

    def task_executor(self, resource_id: ResourceID) -> TaskExecutorGateway:
        """The TaskExecutor of that name, to be asked itself; raises `UnknownTaskExecutorError`."""
        for view in self.task_managers():
            if view.registration.resource_id == resource_id:
                return self._actors.gateway(ActorAddress.parse(view.registration.address), TaskExecutorGateway)
        raise UnknownTaskExecutorError(f"no TaskExecutor {resource_id} is registered; `status` shows those that are")

    def thread_dump(self, resource_id: ResourceID, attempt_id: ExecutionAttemptID | None = None) -> ThreadDump:
        """Where the threads of a TaskExecutor are, or those of the task process of an attempt that runs there.

        Raises:
            UnknownTaskExecutorError: it is not registered.
            NoSuchTaskError, TaskNotRespondingError: as `TaskExecutorGateway.request_thread_dump`.
        """
        return self.task_executor(resource_id).request_thread_dump(attempt_id).result()

    def watch(self, job_id: JobID, interval_s: float = 0.2) -> Iterator[ArchivedExecutionGraph]:
        """The job again and again until it is over, the last time as it ended.

        Args:
            job_id: the job.
            interval_s: seconds between two looks; the first ones are closer together.
        """
        pause_s = interval_s / 8
        end: Ask[JobResult | None] | None = None
        while True:
            job = self.job(job_id)
            yield job
            if job.status.is_globally_terminal:
                return
            end = self._pause(job_id, end, pause_s)
            pause_s = min(interval_s, pause_s * 1.3)

    def _pause(self, job_id: JobID, end: Ask[JobResult | None] | None, pause_s: float) -> Ask[JobResult | None] | None:
        """Wait, but not beyond the end of the job; returns the question for its end while that is not answered."""
        until = time.monotonic() + pause_s
        end = end or self._ask(lambda dispatcher: dispatcher.request_job_result(job_id))
        try:
            end.result(pause_s)
        except PASSING:
            if not end.done():
                return end
            time.sleep(max(0.0, until - time.monotonic()))  # the leader is gone: the next look finds the new one
        return None

    # ------------------------------------------------- checkpoints and savepoints
    # A request bears a trigger id, and is repeated with it until it is done, whoever leads.

    def trigger_checkpoint(self, job_id: JobID, trigger_id: TriggerID | None = None) -> OperationStatus:
        """Have a job checkpointed, and wait for it; the rest is as in `trigger_savepoint`."""
        wanted = trigger_id or TriggerID.random()
        return self._operation(lambda dispatcher: dispatcher.trigger_checkpoint(job_id, wanted).result())

    def trigger_savepoint(
        self, job_id: JobID, target: Path | None = None, trigger_id: TriggerID | None = None
    ) -> OperationStatus:
        """Make a savepoint of a job, and wait for it.

        Args:
            job_id: the job.
            target: in which directory; None for the cluster's (``execution.checkpointing.savepoint-dir``).
            trigger_id: identifies the request; repeating it returns the status of the first. None for a new one.

        Raises:
            JobNotFoundError, JobAlreadyTerminatedError: there is no such job, or it is over.
        """
        wanted, directory = trigger_id or TriggerID.random(), _directory(target)
        return self._operation(lambda dispatcher: dispatcher.trigger_savepoint(job_id, wanted, directory).result())

    def stop_with_savepoint(
        self, job_id: JobID, target: Path | None = None, *, drain: bool = False, trigger_id: TriggerID | None = None
    ) -> OperationStatus:
        """Stop a job's queries between two batches, make a savepoint, and wait for it; the job then finishes.

        With *drain* the queries first work off what their sources have; the rest is as in `trigger_savepoint`.
        """
        wanted, directory = trigger_id or TriggerID.random(), _directory(target)
        return self._operation(
            lambda dispatcher: dispatcher.stop_with_savepoint(job_id, wanted, directory, drain).result()
        )

    def stop_and_await_end(
        self, job_id: JobID, target: Path | None = None, *, drain: bool = False
    ) -> tuple[OperationStatus, JobStatus | None]:
        """`stop_with_savepoint`, and wait for the end of the job; its state is None where the job goes on."""
        wanted = TriggerID.random()
        while True:
            status = self.stop_with_savepoint(job_id, target, drain=drain, trigger_id=wanted)
            if status.state is not OperationState.COMPLETED:
                return status, None
            job_status = self._ask(lambda dispatcher: dispatcher.request_job_status(job_id).result())
            if job_status.is_globally_terminal:
                return status, job_status
            time.sleep(POLL_S)

    @staticmethod
    def stop_failure(status: OperationStatus, job_status: JobStatus | None) -> str:
        """Return why `stop_and_await_end` has not done all that was asked for; empty where it has."""
        if status.state is not OperationState.COMPLETED:
            return status.error
        if job_status is not JobStatus.FINISHED:
            ended = "goes on" if job_status is None else f"is {job_status.value}"
            return f"savepoint {status.path} is whole, but the job {ended}"
        return (
            "" if status.drained else f"the job is not drained: {'; '.join(status.notes)}; its savepoint: {status.path}"
        )

    def roll_back(
        self, job_id: JobID, target: str | Path, *, new_query_id: bool = False, trigger_id: TriggerID | None = None
    ) -> OperationStatus:
        """Restart a running job from one of its checkpoints or savepoints.

        Args:
            job_id: the job.
            target: a checkpoint's number or ``chk-<number>``, or the directory of a savepoint.
            new_query_id: whether the queries get new ids, so that sinks that remember batches take them again.
            trigger_id: identifies the request; repeating it is the same rollback. None for a new one.

        Raises:
            JobNotFoundError, JobAlreadyTerminatedError: there is no such job, or it is over.
            CheckpointError: the job cannot go back there, and goes on as before.
        """
        wanted, path = trigger_id or TriggerID.random(), str(target.resolve()) if isinstance(target, Path) else target
        return self._ask(lambda dispatcher: dispatcher.roll_back(job_id, wanted, path, new_query_id).result())

    def checkpoint_statistics(self, job_id: JobID) -> CheckpointStatsSnapshot:
        """The figures of a job's checkpoints; raises `JobNotFoundError`."""
        return self._ask(lambda dispatcher: dispatcher.request_checkpoint_statistics(job_id).result())

    def dispose_savepoint(self, path: Path) -> None:
        """Remove a savepoint; raises `SavepointError` where the directory is none."""
        self._ask(lambda dispatcher: dispatcher.dispose_savepoint(str(path.resolve())).result())

    def _operation(self, ask: Callable[[DispatcherGateway], OperationStatus]) -> OperationStatus:
        while (status := self._ask(ask)).state is OperationState.IN_PROGRESS:
            time.sleep(POLL_S)
        return status

    # --------------------------------------------------------------------- logs

    def logs(self, job_id: JobID) -> list[tuple[TaskLog, bytes]]:
        """The logs of a job's attempts, oldest attempt first: while they run, and until the job is forgotten.

        Of one that has ended also what its TaskExecutor (``taskexecutor``) and Spark (``spark``) logged meanwhile.

        Raises:
            JobNotFoundError: no such job is running or remembered.
        """
        logs = self._ask(lambda dispatcher: dispatcher.request_job_logs(job_id).result(60.0))
        with self.blobs() as blobs:
            return [(log, _fetch_log(blobs, log.blob_key, job_id)) for log in logs if log.name != FUNCTION_RESULT]

    def function_result(self, job_id: JobID) -> bytes | None:
        """What a job that runs a function returned, pickled; None where it returned nothing that is kept.

        Raises:
            JobNotFoundError: no such job is running or remembered.
        """
        attempts = [attempt for task in self.job(job_id).tasks for attempt in task.attempts]
        kept = [log for attempt in attempts for log in attempt.logs if log.name == FUNCTION_RESULT]
        return self.kept_log(job_id, kept[-1]) if kept else None

    def kept_log(self, job_id: JobID, log: KeptLog) -> bytes:
        """What is kept of the log of an attempt that is over (`AttemptInfo.logs`); raises BlobError."""
        with self.blobs() as blobs:
            return _fetch_log(blobs, log.blob_key, job_id)

    def task_executor_logs(self, resource_id: ResourceID) -> list[tuple[ComponentLog, bytes]]:
        """The log of a TaskExecutor and that of its Spark driver, or their heads and tails.

        Raises:
            UnknownTaskExecutorError: it is not registered.
        """
        location, gateway = self._blob_location(), self.task_executor(resource_id)
        names = [log.name for log in gateway.request_log_list().result()]
        logs = [gateway.request_file_upload(name, BlobAddress(*location)).result(60.0) for name in names]
        with self._blob_client(location) as blobs:
            return [(log, _fetch_once(blobs, TransientBlobKey(log.blob_key))) for log in logs]

    # ------------------------------------------------------------------ cluster

    def status(self) -> ClusterStatus:
        """The cluster's processes, those of all masters that answer."""
        first = self.lookup("master", MasterGateway).request_status().result()
        processes = first.processes
        for master in self._masters(first.masters):
            with contextlib.suppress(ActorError):  # it is gone, or stands still: the living ones say so soon
                processes += master.request_status().result().processes
        return replace(first, processes=processes)

    def _masters(self, addresses: Iterable[str]) -> list[MasterGateway]:
        """Gateways to the masters at these addresses, but for the one that is spoken to."""
        systems = [ActorAddress.parse(text) for text in addresses]
        own = (self.system.host, self.system.port)
        others = [system for system in systems if (system.host, system.port) != own]
        return [self._actors.gateway(system.with_path("/user/master"), MasterGateway) for system in others]

    def diagnostics(self) -> dict[str, DiagnosticsGateway]:
        """Gateways to what each process of the cluster tells of itself, by its name; some may have ended meanwhile."""
        addresses = process_addresses(self.status(), self.task_managers())
        return {
            name: self._actors.gateway(diagnostics_at(address), DiagnosticsGateway)
            for name, address in addresses.items()
        }

    def task_managers(self) -> list[TaskManagerView]:
        """The registered TaskExecutors."""
        return self._ask(lambda dispatcher: dispatcher.request_task_managers().result())

    def task_pools(self) -> dict[ResourceID, TaskPoolReport]:
        """What the pools of ready task processes did, by TaskExecutor; those that answer."""
        found = {}
        for view in self.task_managers():
            address = ActorAddress.parse(view.registration.address)
            with contextlib.suppress(ActorError):  # it is gone, or stands still: the rest is told all the same
                gateway = self._actors.gateway(address, TaskExecutorGateway)
                found[view.registration.resource_id] = gateway.request_task_pool().result()
        return found

    def overview(self) -> ClusterOverview:
        """Counts of TaskExecutors, slots and jobs."""
        return self._ask(lambda dispatcher: dispatcher.request_cluster_overview().result())

    def shut_down(self, status: ApplicationStatus = ApplicationStatus.UNKNOWN) -> None:
        """Tell the cluster to stop; it does so after the reply. *status* is how its application ended."""
        first = self.lookup("master", MasterGateway)
        for master in self._masters(first.request_status().result().masters):
            with contextlib.suppress(ActorError):  # one that is gone has nothing to stop
                master.shut_down_cluster(status).result()
        first.shut_down_cluster(status).result()

    def close(self) -> None:
        """Close all connections."""
        self._actors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _addresses(system: ActorAddress | str | Sequence[str]) -> list[ActorAddress]:
    if isinstance(system, ActorAddress):
        return [system]
    texts = [system] if isinstance(system, str) else system
    return [ActorAddress.parse(text) for text in dict.fromkeys(texts)]


def _carried(files: Sequence[tuple[Path, ArtifactRole]]) -> list[Artifact] | None:
    """The job's files with their contents; None where they are too large for its graph, or are libraries."""
    if (
        any(role not in CARRIED_ROLES for _, role in files)
        or sum(path.stat().st_size for path, _ in files) > CARRIED_SIZE
    ):
        return None
    return [Artifact(path.name, role, content=path.read_bytes()) for path, role in files]


def _directory(target: Path | None) -> str:
    return "" if target is None else str(target.resolve())


def _fetch_log(blobs: BlobClient, key: str, job_id: JobID) -> bytes:
    if not key:
        return b""
    parsed = BlobKey.parse(key)
    return (
        _fetch_once(blobs, parsed)
        if isinstance(parsed, TransientBlobKey)
        else blobs.get_bytes(parsed, logs_owner(job_id))
    )


def _fetch_once(blobs: BlobClient, key: TransientBlobKey) -> bytes:
    """Fetch a transient blob that was made for this client alone, and delete it."""
    content = blobs.get_bytes(key)
    blobs.delete(key)
    return content

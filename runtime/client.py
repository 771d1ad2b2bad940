"""The client of a cluster: finds the leaders, repeats calls while leaders change, and submits jobs with their files.

`AsyncClusterClient` implements it once, as coroutines over a `Link`, which makes the calls and waits for them. The web
endpoint runs the coroutines on its event loop. `ClusterClient` runs them in a plain thread, for the command line,
notebooks and programs. There the link blocks instead of suspending, so that a coroutine runs to its end in one step and
needs no event loop.
"""

from __future__ import annotations

import contextlib
import functools
import getpass
import logging
import os
import sys
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar

from actors.address import ActorAddress
from actors.client import ActorClient
from actors.errors import (
    ActorError,
    AskTimeout,
    AuthenticationError,
    ClientClosed,
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
from runtime.job_logs import FUNCTION_ERROR, FUNCTION_FILES, FUNCTION_RESULT, KeptLog, logs_owner
from runtime.jobgraph.codec import decode_job_graph, encode
from runtime.jobgraph.errors import InvalidFunctionError, JobGraphError
from runtime.jobgraph.functions import TYPED_IN
from runtime.jobgraph.job_graph import Artifact, ArtifactRole, JobGraph, files_text
from runtime.jobgraph.validation import check_name
from runtime.protocol.archived_execution_graph import ApplicationStatus, ArchivedExecutionGraph, JobDetails, JobResult
from runtime.protocol.checkpoint_statistics import CheckpointStatsSnapshot
from runtime.protocol.checkpoints import CheckpointTrigger, OperationState, OperationStatus, SnapshotType
from runtime.protocol.diagnostics import ComponentLog, TaskPoolReport, ThreadDump
from runtime.protocol.dispatcher import DispatcherGateway
from runtime.protocol.errors import (
    PASSING,
    GatewayError,
    JobNotFoundError,
    QueueRejectedError,
    SubmissionLimitError,
    UnknownTaskExecutorError,
)
from runtime.protocol.execution_state import JobStatus
from runtime.protocol.leader import DISPATCHER, is_component, job_of
from runtime.protocol.master import MasterGateway
from runtime.protocol.messages import ClusterOverview, ClusterStatus, FeatureLevelChange, TaskLog, TaskManagerView
from runtime.protocol.places import absolute_place
from runtime.protocol.processes import process_addresses
from runtime.protocol.rescales import Rescale, VertexResourceRequirements
from runtime.protocol.streaming_query import QueryHistory
from runtime.protocol.task_executor import TaskExecutorGateway
from runtime.trace_context import current_traceparent

T = TypeVar("T")
P = ParamSpec("P")
G = TypeVar("G", bound=RpcGateway)
Key = TypeVar("Key", bound=BlobKey)

logger = logging.getLogger(__name__)

LEARN_EVERY_S = 60.0
"""Seconds after which a client that was given addresses asks again which masters there are."""

SILENCE_S = 3.0
"""Seconds after which a command says that the cluster does not answer."""
UNLISTED_S = 5.0
"""Seconds after which an actor that no master lists is unknown. Living actors list themselves every 2 s."""
RETRY_S = 0.1
POLL_S = 0.1
UPLOAD_S = 60.0
"""Seconds that a component may take to put logs into the BlobServer."""
CARRIED_SIZE = 16 * 1024
"""Largest total size, in bytes, of a job's files that travel in its graph, and are stored with it (in Redis, say)."""
CARRIED_ROLES = {ArtifactRole.MAIN, ArtifactRole.FILE}  # libraries are shared by their blobs' keys


_MISSING = ("has no method", "clients call no such method")
"""What the Dispatcher and the web endpoint of an earlier release answer to a call of a method that they do not have."""


def _is_missing(error: ActorError) -> bool:
    return any(text in str(error) for text in _MISSING)


class NoAnswerError(ActorError):
    """The cluster did not answer within ``client.timeout``; it is unknown whether the call took effect."""


class ClusterStoppedError(ActorError):
    """The cluster was stopped, and with it its unfinished jobs."""

    remedy = "`understudy start` starts a new one; submit unfinished jobs again"


class SubmissionUnknownError(NoAnswerError):
    """No answer came to a submission, so the job may have been accepted or not; submitting it again is safe.

    Args:
        name: of the job.
        job_id: id under which it was submitted.
        cause: the reason why there is no answer.
    """

    def __init__(self, name: str, job_id: JobID, cause: Exception) -> None:
        super().__init__(f"whether job {name!r} ({job_id}) was accepted is not known: {cause}")
        self.remedy = (
            f"once the cluster answers `understudy job info {job_id}` shows the job, if it was accepted; "
            f"submitted again with --job-id {job_id} it is not run twice"
        )


@dataclass(frozen=True, slots=True)
class JobFile:
    """A file of a job to submit: its name in the job, its role, and its local path."""

    name: str
    role: ArtifactRole
    path: Path


class Blobs(Protocol):
    """Calls of a `BlobClient` that clients of a cluster need; used as a context manager."""

    def put_file(self, path: Path, key_type: type[Key], job_id: str | None = None, /) -> Key:
        """Upload a file."""

    def put_bytes(self, data: bytes, key_type: type[Key], job_id: str | None = None, /) -> Key:
        """Upload *data*."""

    def get_bytes(self, key: BlobKey, job_id: str | None = None, /) -> bytes:
        """Return a blob's content."""

    def delete(self, key: TransientBlobKey, job_id: str | None = None, /) -> bool:
        """Delete a transient blob; False if there was none."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_error: object) -> None: ...


class Link(Protocol):
    """Makes a client's calls and waits for them: in a plain thread, or on the event loop of a component."""

    @property
    def system(self) -> ActorAddress:
        """Return the address of the actor system of the master that the client calls."""

    def described(self, name: str) -> str:
        """Return the name of the unanswering peer, for an error about the component *name*."""

    async def leader(self, name: str, gateway_type: type[G], deadline: float) -> G:
        """Return a gateway to the leading component ``/user/<name>``, before *deadline* (`time.monotonic`).

        Raises:
            NoAnswerError: there is no leader until then.
            ActorError: one of `PASSING`, or `AuthenticationError`: repeat the call.
        """

    async def lost(self, name: str, error: Exception) -> None:
        """Handle that a component did not answer; raises an error if repeating the call is of no use."""

    def answered(self) -> None:
        """Handle that a component has answered."""

    def master(self) -> MasterGateway:
        """Return a gateway to a master that answers."""

    def gateway(self, address: ActorAddress, gateway_type: type[G], timeout_s: float | None = None) -> G:
        """Return a gateway to the actor at this address."""

    def blobs(self, address: BlobAddress) -> Blobs:
        """Return a client of the BlobServer at an address."""

    async def reply(self, ask: Ask[T], timeout_s: float | None = None) -> T:
        """Wait for a reply, at most *timeout_s* seconds in a plain thread. Default: the gateway's time-out."""

    async def pause(self, seconds: float) -> None:
        """Wait for some seconds."""

    async def blocking(self, work: Callable[[], T]) -> T:
        """Run blocking work, and return its result."""


class BlockingLink(Link, Protocol):
    """Link of a plain thread: it blocks instead of suspending, so that no coroutine over it ever suspends."""

    @property
    def address(self) -> str:
        """Return the address of the Dispatcher, or of the web endpoint, that the client calls. Makes no call."""

    @property
    def sees_files(self) -> bool:
        """Return whether this process is assumed to see the cluster's files: it then checks savepoints itself."""

    def lookup(self, name: str, gateway_type: type[G]) -> G:
        """Return a gateway to the actor ``/user/<name>`` of the cluster, at its present leader if it has one."""

    def lookup_address(self, address: ActorAddress | str, gateway_type: type[G]) -> G:
        """Return a gateway to the actor at an address."""

    def close(self) -> None:
        """Close all connections."""


class AsyncClusterClient:
    """Calls one cluster at its present leaders.

    Args:
        link: makes the calls.
        patience_s: seconds for which a leader that does not answer is looked up again.
        inline_limit: a job graph of more bytes is submitted as a blob (``blob.offload.minsize``).

    Every method raises `NoAnswerError` when the cluster does not answer in that time, and the errors of
    `runtime.protocol.errors` with which the cluster answers.
    """

    def __init__(self, link: Link, patience_s: float, inline_limit: int) -> None:
        self.link = link
        self._patience_s = patience_s
        self._inline_limit = inline_limit
        self.tell: Callable[[str], object] | None = None
        """Called with one line, on a thread of its own, if the first answer takes longer than `SILENCE_S`."""

    async def call(self, name: str, gateway_type: type[G], question: Callable[[G], Awaitable[T]]) -> T:
        """Call the leader of the component ``/user/<name>``, and look it up again while it does not answer.

        Args:
            name: of the component.
            gateway_type: its gateway.
            question: makes the call; repeated when the reply is lost, so the call has to be idempotent.

        Raises:
            NoAnswerError: it does not answer for ``patience_s``.
            UnknownActor: there is no such actor; see `ThreadLink.lost` and `check_job`.
        """
        with self._telling_of_silence(name):
            return await self._call(name, gateway_type, question)

    async def _call(self, name: str, gateway_type: type[G], question: Callable[[G], Awaitable[T]]) -> T:
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                gateway = await self.link.leader(name, gateway_type, deadline)
                answer = await question(gateway)
            except (*PASSING, AuthenticationError) as error:
                await self.link.lost(name, error)
                if time.monotonic() > deadline:
                    raise NoAnswerError(f"{self.link.described(name)} does not answer: {error}") from error
                if isinstance(error, UnknownActor):
                    await self.check_job(name)
                await self.link.pause(RETRY_S)
            else:
                self.tell = None
                self.link.answered()
                return answer

    async def check_job(self, name: str) -> None:
        """Check that a JobMaster of this name may be found, by a single call of the Dispatcher. Other names pass.

        So does each name while no Dispatcher answers.

        Raises:
            UnknownActor: there is no such job, or it is over.
        """
        text = job_of(name)
        if text is None:
            return
        try:
            job_id = JobID(text)
            gateway = await self.link.leader(DISPATCHER, DispatcherGateway, time.monotonic())
            status = await self.link.reply(gateway.request_job_status(job_id))
        except (*PASSING, AuthenticationError, NoAnswerError) as error:
            await self.link.lost(DISPATCHER, error)
            return
        except (ValueError, JobNotFoundError) as error:
            raise UnknownActor(f"the cluster has no actor {name!r}: {error}") from error
        if status.is_globally_terminal:
            raise UnknownActor(
                f"the cluster has no actor {name!r}: the job is {status.value}, and its JobMaster has ended with it"
            )

    @contextlib.contextmanager
    def _telling_of_silence(self, name: str) -> Iterator[None]:
        if (tell := self.tell) is None:
            yield
            return
        line = f"{self.link.described(name)} does not answer yet; trying for {self._patience_s:g} s (client.timeout)"
        timer = threading.Timer(SILENCE_S, tell, (line,))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    async def ask(self, question: Callable[[DispatcherGateway], Ask[T]], timeout_s: float | None = None) -> T:
        """Call the Dispatcher, and wait for its reply; otherwise as `call`."""
        return await self.call(
            DISPATCHER, DispatcherGateway, lambda dispatcher: self.link.reply(question(dispatcher), timeout_s)
        )

    # --------------------------------------------------------------------- jobs

    async def submit(self, graph: JobGraph, files: Iterable[JobFile]) -> JobID:
        """Upload a job's files and submit it; returns once the cluster has persisted it.

        Args:
            graph: the job; this method adds its artifacts.
            files: its code, and the files that the code imports. Few and small ones travel in the graph.

        Raises:
            OSError: a file cannot be read.
            BlobError: a file cannot be uploaded.
            JobGraphError, JobSubmissionError: the cluster does not accept the job.
            SubmissionUnknownError: it is unknown whether the cluster has accepted the job.
        """
        return await self._submit(graph, await self._uploaded(graph, list(files)))

    async def submit_graph(self, graph: JobGraph) -> JobID:
        """Submit a job whose files are uploaded already, or in its graph; raises the same as `submit`."""
        data = encode(graph)
        if len(data) <= self._inline_limit:
            return await self._submit(graph, Inline(data))
        await self.admit_upload(graph.job_id, uuid.uuid4().hex, len(data), graph.owner, graph.name)
        stored = await self._announced(graph, lambda blobs: self._offloaded(graph, blobs))
        return await self._submit(graph, stored)

    async def _submit(self, graph: JobGraph, message: MaybeOffloaded) -> JobID:
        sent = False

        def submit_job(dispatcher: DispatcherGateway) -> Ask[JobID]:
            nonlocal sent
            sent = True
            return dispatcher.submit_job(message)

        try:
            return await self.ask(submit_job)
        except NoAnswerError as error:
            if not sent:
                raise
            raise SubmissionUnknownError(graph.name, graph.job_id, error) from error

    async def _uploaded(self, graph: JobGraph, files: Sequence[JobFile]) -> MaybeOffloaded:
        carried = await self.link.blocking(lambda: self._carried(graph, files))
        if carried is not None:
            return carried
        size = await self.link.blocking(lambda: sum(file.path.stat().st_size for file in files))
        try:
            await self.admit_upload(graph.job_id, uuid.uuid4().hex, size, graph.owner, graph.name)
        except (QueueRejectedError, SubmissionLimitError) as error:  # the cluster knows the size, and not the files
            raise error.with_more(await self.link.blocking(lambda: _files_text(files))) from None
        return await self._announced(graph, lambda blobs: self._upload(blobs, graph, files))

    async def _announced(self, graph: JobGraph, upload: Callable[[Blobs], T]) -> T:
        """Run an upload that was admitted. If it fails, delete the files of the job, which is not submitted."""
        try:
            return await self.with_blobs(upload)
        except (BlobConnectionError, BlobServerError):
            raise  # nothing answers that could delete the files; they expire
        except BaseException:
            await self._try_to_end_upload(graph.job_id, graph.owner)
            raise

    async def admit_upload(self, job_id: JobID, upload_id: str, size: int, owner: str, name: str = "") -> None:
        """Have the Dispatcher check an upload by the limits of its user; see `DispatcherGateway.admit_upload`.

        A cluster of an earlier release does not check it before the submission.
        """

        async def admit(dispatcher: DispatcherGateway) -> None:
            try:
                await self.link.reply(dispatcher.admit_upload(job_id, upload_id, size, owner, name))
            except ActorError as error:
                if not _is_missing(error):
                    raise

        await self.call(DISPATCHER, DispatcherGateway, admit)

    async def end_upload(self, job_id: JobID, owner: str) -> None:
        """Delete the files of a job that is not submitted after all; see `DispatcherGateway.end_upload`."""
        await self.ask(lambda dispatcher: dispatcher.end_upload(job_id, owner))

    async def _try_to_end_upload(self, job_id: JobID, owner: str) -> None:
        """Do as `end_upload` with one attempt. If it fails, the files expire."""
        try:
            dispatcher = await self.link.leader(DISPATCHER, DispatcherGateway, time.monotonic() + SILENCE_S)
            await self.link.reply(dispatcher.end_upload(job_id, owner), SILENCE_S)
        except (ActorError, GatewayError) as error:
            logger.debug("the files of job %s are not deleted yet: %s", job_id, error)

    async def with_blobs(self, work: Callable[[Blobs], T]) -> T:
        """Run blocking work with the leading master's BlobServer, and repeat it while that is being replaced."""

        def run(address: BlobAddress) -> T:
            with self.link.blobs(address) as blobs:
                return work(blobs)

        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                address = await self.blob_server()
                return await self.link.blocking(lambda: run(address))  # noqa: B023
            except (BlobConnectionError, BlobServerError):
                # The BlobServer is being replaced, or another master's BlobServer serves from now on.
                if time.monotonic() > deadline:
                    raise
                await self.link.pause(RETRY_S)

    def _carried(self, graph: JobGraph, files: Sequence[JobFile]) -> Inline | None:
        carried = _carried(files)
        data = b"" if carried is None else encode(graph.with_artifacts(*carried))
        return Inline(data) if data and len(data) <= self._inline_limit else None

    def _upload(self, blobs: Blobs, graph: JobGraph, files: Sequence[JobFile]) -> MaybeOffloaded:
        artifacts = [
            Artifact(file.name, file.role, str(blobs.put_file(file.path, PermanentBlobKey, graph.job_id)))
            for file in files
        ]
        return self._offloaded(graph.with_artifacts(*artifacts), blobs)

    def _offloaded(self, graph: JobGraph, blobs: Blobs) -> MaybeOffloaded:
        return offload_if_larger(encode(graph), self._inline_limit, blobs, graph.job_id)

    async def jobs(self) -> tuple[JobDetails, ...]:
        """Return running and finished jobs, the newest first."""
        return (await self.ask(lambda dispatcher: dispatcher.request_multiple_job_details())).jobs

    async def job(self, job_id: JobID) -> ArchivedExecutionGraph:
        """Return one job with its tasks; raises `JobNotFoundError`."""
        return await self.ask(lambda dispatcher: dispatcher.request_job(job_id))

    async def job_graph(self, job_id: JobID) -> JobGraph:
        """Return the graph of a job that is not over, with the values of its environment.

        Raises:
            JobNotFoundError, JobAlreadyTerminatedError: there is no such job, or it is over.
            JobSubmissionError: the cluster runs this job alone.
        """
        return decode_job_graph(await self.ask(lambda dispatcher: dispatcher.request_job_graph(job_id)))

    async def cancel(self, job_id: JobID) -> None:
        """Begin to cancel a job; raises `JobNotFoundError` or `JobAlreadyTerminatedError`."""
        await self.ask(lambda dispatcher: dispatcher.cancel_job(job_id))

    async def query_histories(self, job_id: JobID) -> list[QueryHistory]:
        """Return the past figures of a job's streaming queries; raises `JobNotFoundError`."""
        return await self.ask(lambda dispatcher: dispatcher.request_query_histories(job_id))

    # ------------------------------------------------- checkpoints and savepoints

    async def checkpoints(self, job_id: JobID) -> CheckpointStatsSnapshot:
        """Return the figures of a job's checkpoints; raises `JobNotFoundError`."""
        return await self.ask(lambda dispatcher: dispatcher.request_checkpoint_statistics(job_id))

    async def trigger(self, job_id: JobID, trigger: CheckpointTrigger) -> OperationStatus:
        """Request a checkpoint or savepoint; repeating a trigger id returns the status of the first request.

        Raises:
            JobNotFoundError, JobAlreadyTerminatedError: there is no such job, or it is over.
        """
        wanted, target, kind = trigger.trigger_id, trigger.target, trigger.type

        def ask(dispatcher: DispatcherGateway) -> Ask[OperationStatus]:
            match kind:
                case SnapshotType.CHECKPOINT:
                    return dispatcher.trigger_checkpoint(job_id, wanted)
                case SnapshotType.SAVEPOINT | SnapshotType.SAVEPOINT_CANCEL:
                    cancel_job = kind is SnapshotType.SAVEPOINT_CANCEL
                    return dispatcher.trigger_savepoint(job_id, wanted, target, cancel_job)
                case SnapshotType.SAVEPOINT_SUSPEND | SnapshotType.SAVEPOINT_TERMINATE:
                    return dispatcher.stop_with_savepoint(job_id, wanted, target, kind.drains)

        return await self.ask(ask)

    async def operation(self, job_id: JobID, trigger_id: TriggerID) -> OperationStatus:
        """Return the status of a request; raises `UnknownOperationError`."""
        return await self.ask(lambda dispatcher: dispatcher.get_triggered_savepoint_status(job_id, trigger_id))

    async def roll_back(self, job_id: JobID, trigger_id: TriggerID, target: str, new_query_id: bool) -> OperationStatus:
        """Restart a running job from a checkpoint or savepoint; idempotent by trigger id.

        Raises:
            JobNotFoundError, JobAlreadyTerminatedError: there is no such job, or it is over.
            CheckpointError: the job cannot be rolled back to the target, and keeps running as before.
        """
        return await self.ask(lambda dispatcher: dispatcher.roll_back(job_id, trigger_id, target, new_query_id))

    async def trigger_rescale(
        self, job_id: JobID, trigger_id: TriggerID, partitions: int | None, query: str = "", directory: str = ""
    ) -> JobID:
        """Have the cluster rescale a job; idempotent by trigger id. See `DispatcherGateway.trigger_rescale`."""
        return await self.ask(
            lambda dispatcher: dispatcher.trigger_rescale(job_id, trigger_id, partitions, query, directory)
        )

    async def resource_requirements(self, job_id: JobID) -> list[VertexResourceRequirements]:
        """Return the numbers of partitions of a running job's state, for each task.

        Raises:
            JobNotFoundError, JobAlreadyTerminatedError: there is no such job, or it is over.
        """
        return await self.ask(lambda dispatcher: dispatcher.request_job_resource_requirements(job_id))

    async def report_rescale(self, job_id: JobID, rescale: Rescale) -> None:
        """Record a rescale in a job's history; see `DispatcherGateway.report_rescale`."""
        await self.ask(lambda dispatcher: dispatcher.report_rescale(job_id, rescale))

    async def rescale_status(self, job_id: JobID, trigger_id: TriggerID) -> OperationStatus:
        """Return what became of a rescale; see `DispatcherGateway.request_rescale_status`."""
        return await self.ask(lambda dispatcher: dispatcher.request_rescale_status(job_id, trigger_id))

    async def dispose_savepoint(self, path: str) -> bool:
        """Remove a savepoint; return False if there is none. Raises `SavepointError` if *path* is not a savepoint."""
        asked = 0

        def ask(dispatcher: DispatcherGateway) -> Ask[bool]:
            nonlocal asked
            asked += 1
            return dispatcher.dispose_savepoint(path)

        return await self.ask(ask) or asked > 1  # the first answer may have been lost

    # ------------------------------------------------------------------ cluster

    async def overview(self) -> ClusterOverview:
        """Return counts of TaskExecutors, slots and jobs."""
        return await self.ask(lambda dispatcher: dispatcher.request_cluster_overview())

    async def finalize_feature_level(self) -> FeatureLevelChange:
        """Raise the cluster's feature level to the highest that all its components support; idempotent.

        Raises:
            FeatureLevelHeldError: a component supports no higher one, or does not answer.
        """
        return await self.ask(lambda dispatcher: dispatcher.finalize_feature_level())

    async def task_managers(self) -> list[TaskManagerView]:
        """Return the registered TaskExecutors."""
        return await self.ask(lambda dispatcher: dispatcher.request_task_managers())

    async def task_executor(self, resource_id: ResourceID, timeout_s: float | None = None) -> TaskExecutorGateway:
        """Return a gateway to the TaskExecutor of that name; raises `UnknownTaskExecutorError`."""
        for view in await self.task_managers():
            if view.registration.resource_id == resource_id:
                address = ActorAddress.parse(view.registration.address)
                return self.link.gateway(address, TaskExecutorGateway, timeout_s)
        raise UnknownTaskExecutorError(
            f"no TaskExecutor {resource_id} is registered; `understudy status` shows those that are"
        )

    async def status(self) -> ClusterStatus:
        """Return the cluster's processes: those of all masters that answer."""
        first = await self.link.reply(self.link.master().request_status())
        processes = first.processes
        for ask in [other.request_status() for other in self.other_masters(first.masters)]:
            with contextlib.suppress(ActorError):  # it has ended or hangs, which the other masters report soon
                processes += (await self.link.reply(ask)).processes
        return replace(first, processes=processes)

    def other_masters(self, addresses: Iterable[str]) -> list[MasterGateway]:
        """Return gateways to the masters at these addresses, except for the one that the client calls."""
        systems = [ActorAddress.parse(text) for text in addresses]
        own = (self.link.system.host, self.link.system.port)
        others = [system for system in systems if (system.host, system.port) != own]
        return [self.link.gateway(system.with_path("/user/master"), MasterGateway) for system in others]

    # --------------------------------------------------------------- logs, blobs

    async def blob_server(self) -> BlobAddress:
        """Return the address of the leading master's BlobServer."""
        return await self.ask(lambda dispatcher: dispatcher.get_blob_server())

    async def component_log(self, executor: TaskExecutorGateway, name: str) -> tuple[ComponentLog, bytes]:
        """Fetch a log of a TaskExecutor or of its Spark driver, or its head and tail."""
        address = await self.blob_server()
        log = await self.link.reply(executor.request_file_upload(name, address), UPLOAD_S)
        return log, await self._fetch(address, log.blob_key)

    async def kept_log(self, job_id: JobID, log: KeptLog) -> bytes:
        """Fetch a kept log of an attempt that is over (`AttemptInfo.logs`); raises BlobError."""
        return await self._fetch(await self.blob_server(), log.blob_key, job_id)

    async def _fetch(self, address: BlobAddress, key: str, job_id: JobID | None = None) -> bytes:
        def fetch() -> bytes:
            with self.link.blobs(address) as blobs:
                return _fetch_log(blobs, key, job_id)

        return await self.link.blocking(fetch)


class ThreadLink:
    """The `Link` of a plain thread: it blocks, and learns the cluster's masters from the first one that answers.

    Its arguments are those of `ClusterClient`, and *blob_location*, which returns host and port of the BlobServer for
    arguments that do not fit into a message.
    """

    def __init__(
        self,
        systems: Sequence[ActorAddress],
        secret: bytes,
        rpc: RpcConfig | None,
        find_masters: Callable[[], Iterable[str]],
        was_stopped: Callable[[], bool],
        blob_location: Callable[[], tuple[str, int]],
    ) -> None:
        self._systems = list(systems)
        self._was_stopped = was_stopped
        self.find_masters = find_masters
        self._learned = False
        self._learn_at = 0.0
        self._secret = secret
        self._tls = None if rpc is None else rpc.tls
        self.actors = ActorClient(
            secret, replace(rpc or RpcConfig(), caller=user_name()), BlobOffloader(self._blob_client, blob_location)
        )
        self._gateways: dict[str, RpcGateway] = {}
        self._highest: dict[str, FencingToken] = {}
        self._found: set[str] = set()
        self._unlisted_since: dict[str, float] = {}

    @property
    def system(self) -> ActorAddress:
        """Return the address of the actor system of the master that the client calls."""
        return self._systems[0]

    @property
    def address(self) -> str:
        """Return the address of the Dispatcher at the master that the client calls."""
        return str(self.system.with_path(f"/user/{DISPATCHER}"))

    @property
    def sees_files(self) -> bool:
        return True

    def lookup(self, name: str, gateway_type: type[G]) -> G:
        """Return a gateway to the actor ``/user/<name>`` of the cluster; any of its masters knows the leaders."""
        unlisted, is_silent = None, False
        for _ in self._systems[1:]:
            try:
                return self._lookup(name, gateway_type)
            except (RecipientUnreachable, UnknownActor, AskTimeout, AuthenticationError, WireError) as error:
                unlisted = error if isinstance(error, UnknownActor) else unlisted
                is_silent = is_silent or isinstance(error, AskTimeout)
                self._systems = [*self._systems[1:], self._systems[0]]
        try:
            return self._lookup(name, gateway_type)
        except UnknownActor as error:
            if is_silent:  # a master that hangs may list it
                raise AskTimeout(f"a master does not answer, and {error}") from error
            raise
        except RecipientUnreachable as error:
            if unlisted is not None and not is_silent and not isinstance(error, ClientClosed):
                raise unlisted from error  # a master that has ended lists nothing
            raise

    def _lookup(self, name: str, gateway_type: type[G]) -> G:
        listing = self.actors.find(self.system.with_path(f"/user/{name}"))
        token, highest = listing.token, self._highest.get(name)
        if token is not None:
            # A leader with an older epoch is called with the highest seen: it rejects that, and takes a higher epoch.
            token = highest if highest is not None and highest.epoch > token.epoch else token
            self._highest[name] = token
        self._found.add(name)
        return self.actors.gateway(listing.address, gateway_type, token)

    def lookup_address(self, address: ActorAddress | str, gateway_type: type[G]) -> G:
        """Return a gateway to the actor at any address, also of another system with the same secret."""
        return self.actors.lookup(address, gateway_type)

    def described(self, name: str) -> str:
        return f"the cluster at {self.system}"

    async def leader(self, name: str, gateway_type: type[G], deadline: float) -> G:
        gateway = self._gateways.get(name)
        if not isinstance(gateway, gateway_type):
            gateway = self._gateways[name] = self.lookup(name, gateway_type)
        return gateway

    async def lost(self, name: str, error: Exception) -> None:
        """Forget the gateway, and look for more masters.

        An actor that no master lists for `UNLISTED_S` is unknown. A component is waited for instead, since its leader
        may be changing. So is an actor that this client has found before, since it may be restarting.

        Raises:
            ClusterStoppedError: the cluster was stopped.
            UnknownActor: there is no such actor.
            ActorError: *error*, if it means a wrong secret or that the client was closed.
        """
        if isinstance(error, ClientClosed):
            raise error
        self._gateways.pop(name, None)
        self._learn_at = 0.0
        # A client that was answered before has the right secret: an unrelated process now has a dead master's port.
        if isinstance(error, AuthenticationError) and not self._learned:
            raise error
        if self._was_stopped():
            raise ClusterStoppedError(f"the cluster at {self.system} was stopped") from error
        self._add_masters(self.find_masters())
        if isinstance(error, UnknownActor) and not (name in self._found or is_component(name)):
            self._unlisted(name, error)
        else:
            self._unlisted_since.pop(name, None)

    def _unlisted(self, name: str, error: UnknownActor) -> None:
        now = time.monotonic()
        if name not in self._unlisted_since:
            self.answered()  # the actor may be listed at a master that is not known yet
        if now - self._unlisted_since.setdefault(name, now) >= UNLISTED_S:
            del self._unlisted_since[name]
            raise UnknownActor(
                f"the cluster at {self.system} has no actor {name!r}; `understudy status` shows its processes"
            ) from error

    def answered(self) -> None:
        """Ask a master that answers for the addresses of all masters, and remember them.

        It is asked again after `LEARN_EVERY_S`, since masters join, after a failed call, and if it has not answered.
        """
        self._learned, now = True, time.monotonic()
        if now < self._learn_at:
            return
        with contextlib.suppress(ActorError):
            self._add_masters(self.master().request_status().result().masters)
            self._learn_at = now + LEARN_EVERY_S

    def _add_masters(self, addresses: Iterable[str]) -> None:
        found = [ActorAddress.parse(text) for text in addresses]
        known = {(system.host, system.port) for system in self._systems}
        self._systems += [system for system in found if (system.host, system.port) not in known]

    def master(self) -> MasterGateway:
        return self.lookup("master", MasterGateway)

    def gateway(self, address: ActorAddress, gateway_type: type[G], timeout_s: float | None = None) -> G:
        return self.actors.gateway(address, gateway_type, None, timeout_s)

    def blobs(self, address: BlobAddress) -> BlobClient:
        return self._blob_client((address.host, address.port))

    def _blob_client(self, location: tuple[str, int]) -> BlobClient:
        return BlobClient(location, self._secret, tls=None if self._tls is None else self._tls.contexts()[1])

    async def reply(self, ask: Ask[T], timeout_s: float | None = None) -> T:
        return ask.result() if timeout_s is None else ask.result(timeout_s)

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251

    async def blocking(self, work: Callable[[], T]) -> T:
        return work()

    def close(self) -> None:
        """Close all connections."""
        self.actors.close()


def user_name() -> str:
    """Return the name of this process's user, by the environment or by the system; ``uid-N`` for one without a name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # KeyError: before Python 3.13
        return f"uid-{os.getuid()}"


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of an `AsyncClusterClient` over a `BlockingLink`, which blocks and never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        answer: T = done.value
        return answer
    raise RuntimeError("a call in a plain thread has waited for an event loop")


def _in_a_thread(
    method: Callable[Concatenate[AsyncClusterClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[ClusterClient, P], T]:
    """Turn a method of `AsyncClusterClient` into a blocking one of `ClusterClient`."""

    @functools.wraps(method)
    def call(client: ClusterClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return _run(method(client._cluster, *args, **kwargs))

    return call


class ClusterClient:
    """Calls one cluster from a plain thread: synchronous, and follows the leaders.

    Args:
        system: address of the cluster's actor system (any actor's address at its port), or of several masters' systems.
            The client learns the others from the first one that answers.
        secret: the cluster's secret.
        rpc: settings of the connections; its ``socket_dir`` makes calls to a cluster of this machine a little faster.
        inline_limit: a job graph of more bytes is submitted as a blob (``blob.offload.minsize``).
        patience_s: seconds for which a leader that does not answer is looked up again (``client.timeout``).
        find_masters: returns addresses of the cluster's masters, called when no known one answers.
        was_stopped: returns whether the cluster was stopped, called when no master answers; the client then gives up.

    Every method raises `ActorError` when the cluster does not answer in that time, and the errors of
    `runtime.protocol.errors` with which the cluster answers.
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
        link = ThreadLink(_addresses(system), secret, rpc, find_masters, was_stopped, self._blob_location)
        self._begin(link, patience_s, inline_limit)

    @classmethod
    def over(cls, link: BlockingLink, *, patience_s: float = 60.0, inline_limit: int = 1024 * 1024) -> Self:
        """Return a client that uses *link*, and closes it; the other arguments are those of the constructor."""
        client = cls.__new__(cls)
        client._begin(link, patience_s, inline_limit)
        return client

    def tell_of_silence(self, tell: Callable[[str], object]) -> None:
        """Call *tell* with one line if the cluster's first answer takes longer than `SILENCE_S`."""
        self._cluster.tell = tell

    def _begin(self, link: BlockingLink, patience_s: float, inline_limit: int) -> None:
        self._link = link
        self._cluster = AsyncClusterClient(link, patience_s, inline_limit)

    @property
    def system(self) -> ActorAddress:
        """Return the address of the actor system of the master that the client calls."""
        return self._link.system

    @property
    def address(self) -> str:
        """Return the address of the Dispatcher, or of the web endpoint, that the client calls."""
        return self._link.address

    @property
    def sees_files(self) -> bool:
        """Return whether this process is assumed to see the cluster's files, such as its savepoints."""
        return self._link.sees_files

    def lookup(self, name: str, gateway_type: type[G]) -> G:
        """Return a typed gateway to the actor ``/user/<name>`` of the cluster; any of its masters knows the leaders."""
        return self._link.lookup(name, gateway_type)

    def lookup_address(self, address: ActorAddress | str, gateway_type: type[G]) -> G:
        """Return a typed gateway to the actor at any address, also of another system with the same secret."""
        return self._link.lookup_address(address, gateway_type)

    def gateway_at(self, address: str, gateway_type: type[G]) -> G:
        """Return a typed gateway to the actor of a process that has no receptionist, such as a TaskExecutor."""
        return self._link.gateway(ActorAddress.parse(address), gateway_type)

    def _ask(self, question: Callable[[DispatcherGateway], Ask[T]], timeout_s: float | None = None) -> T:
        return _run(self._cluster.ask(question, timeout_s))

    def call(self, name: str, gateway_type: type[G], question: Callable[[G], T]) -> T:
        """Call the leader of the actor ``/user/<name>``, and look it up again while it does not answer.

        Args:
            name: of the actor.
            gateway_type: its gateway.
            question: makes the call and returns its answer; repeated when the reply is lost, so it must be idempotent.

        Raises:
            NoAnswerError: it does not answer for ``patience_s``.
            ClusterStoppedError: the cluster was stopped.
            UnknownActor: no master has listed such an actor for 5 s, and it is not a component with a leader.
                Or it is the JobMaster of a job that is over, or does not exist.
        """

        async def ask(gateway: G) -> T:
            return question(gateway)

        return _run(self._cluster.call(name, gateway_type, ask))

    def check_job(self, name: str) -> None:
        """Raise `UnknownActor` if *name* is that of the JobMaster of a job that is over, or does not exist."""
        _run(self._cluster.check_job(name))

    # --------------------------------------------------------------------- jobs

    def submit(
        self,
        graph: JobGraph,
        main: Path,
        py_files: Iterable[Path] = (),
        libraries: Iterable[tuple[Path, ArtifactRole]] = (),
    ) -> JobID:
        """Upload a job's files and submit it; returns once the cluster has persisted it.

        Args:
            graph: the job; this method adds its artifacts, and its submitter and trace context if it names none.
            main: the job file.
            py_files: modules and archives for the job's Python path.
            libraries: other imports of the job's code: packages, requirements, packed environments, jars.

        Raises:
            OSError: a file cannot be read.
            BlobError: a file cannot be uploaded.
            JobGraphError, JobSubmissionError: the cluster does not accept the job.
            SubmissionUnknownError: it is unknown whether the cluster has accepted the job.
        """
        if main.stem != TYPED_IN and any(
            (vertex.function or "").startswith(f"{TYPED_IN}:") for vertex in graph.vertices
        ):
            raise InvalidFunctionError(
                f"functions of job {graph.name!r} are from a prompt or notebook, and not in {main.name}: "
                "submit the Pipeline with runtime.notebook, or put them into a file"
            )
        named = [(main, ArtifactRole.MAIN), *((path, ArtifactRole.PY_FILE) for path in py_files), *libraries]
        graph = _traced(_signed(graph))
        return _run(self._cluster.submit(graph, [JobFile(path.name, role, path) for path, role in named]))

    @contextlib.contextmanager
    def blobs(self) -> Iterator[Blobs]:
        """Open a client of the leading master's BlobServer, for the duration of a ``with`` statement."""
        with self._link.blobs(_run(self._cluster.blob_server())) as client:
            yield client

    def _blob_location(self) -> tuple[str, int]:
        address = _run(self._cluster.blob_server())
        return address.host, address.port

    def list_jobs(self) -> list[JobDetails]:
        """Return running and finished jobs, the newest first."""
        return list(_run(self._cluster.jobs()))

    job = _in_a_thread(AsyncClusterClient.job)
    job_graph = _in_a_thread(AsyncClusterClient.job_graph)
    cancel = _in_a_thread(AsyncClusterClient.cancel)
    task_executor = _in_a_thread(AsyncClusterClient.task_executor)

    @contextlib.contextmanager
    def heartbeats(self, job_id: JobID, interval_s: float) -> Iterator[None]:
        """Report from a separate thread that the client of an attached job is alive, during a ``with`` statement.

        Args:
            job_id: the job.
            interval_s: seconds between two heartbeats (``client.heartbeat.interval``).
        """
        over = threading.Event()

        def report() -> None:
            while not over.wait(interval_s):
                try:
                    self._ask(lambda dispatcher: dispatcher.report_job_client_heartbeat(job_id))
                except (ActorError, GatewayError) as error:
                    logger.debug("a heartbeat for job %s: %s", job_id, error)  # the thread that waits reports it

        threading.Thread(target=report, name="client-heartbeats", daemon=True).start()
        try:
            yield
        finally:
            over.set()

    def detach(self, job_id: JobID, patience_s: float) -> None:
        """Detach an attached job, which keeps running without its client; wait at most *patience_s* for the reply."""
        cluster = AsyncClusterClient(self._link, patience_s, 0)
        _run(cluster.ask(lambda dispatcher: dispatcher.detach_job(job_id), patience_s))

    def status_of(self, job_id: JobID) -> JobStatus:
        """Return the state of one job; raises `JobNotFoundError`."""
        return self._ask(lambda dispatcher: dispatcher.request_job_status(job_id))

    def result(self, job_id: JobID) -> JobResult:
        """Wait for the end of a job and return its result; raises `JobNotFoundError`."""
        while (result := self._ask(lambda dispatcher: dispatcher.request_job_result(job_id))) is None:
            pass  # each ask waits for some seconds
        return result

    def on_end(self, job_id: JobID, wake: Callable[[], object]) -> bool:
        """Call *wake* once when the job may be over, on a thread of the client, so it must not block.

        It is also called after some seconds if the job still runs: check the job, and call this method again.

        Returns:
            True. A client that cannot do this returns False; the caller then has to poll the job.
        """
        ask = self.call(DISPATCHER, DispatcherGateway, lambda dispatcher: dispatcher.request_job_result(job_id))
        ask.add_done_callback(lambda _: wake())
        return True

    def thread_dump(self, resource_id: ResourceID, attempt_id: ExecutionAttemptID | None = None) -> ThreadDump:
        """Return the stacks of a TaskExecutor's threads, or of the task process of an attempt that runs there.

        Raises:
            UnknownTaskExecutorError: it is not registered.
            NoSuchTaskError, TaskNotRespondingError: as `TaskExecutorGateway.request_thread_dump`.
        """
        return self.task_executor(resource_id).request_thread_dump(attempt_id).result()

    def watch(self, job_id: JobID, interval_s: float = 0.2) -> Iterator[ArchivedExecutionGraph]:
        """Yield the job repeatedly until it is over, and its final state at last.

        Args:
            job_id: the job.
            interval_s: seconds between two requests; the first ones are closer together.
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
        """Wait, but not beyond the end of the job; return the pending request for its end, None once it is answered."""
        until = time.monotonic() + pause_s
        end = end or self.call(DISPATCHER, DispatcherGateway, lambda dispatcher: dispatcher.request_job_result(job_id))
        try:
            end.result(pause_s)
        except PASSING:
            if not end.done():
                return end
            time.sleep(max(0.0, until - time.monotonic()))  # the leader has ended: the next request finds the new one
        return None

    # ------------------------------------------------- checkpoints and savepoints
    # A request has a trigger id, and is repeated with it until it is done, also by another leader.

    def trigger_checkpoint(self, job_id: JobID, trigger_id: TriggerID | None = None) -> OperationStatus:
        """Take a checkpoint of a job, and wait for it; otherwise as `trigger_savepoint`."""
        return self._operation(job_id, SnapshotType.CHECKPOINT, None, trigger_id)

    def trigger_savepoint(
        self, job_id: JobID, target: Path | str | None = None, trigger_id: TriggerID | None = None
    ) -> OperationStatus:
        """Make a savepoint of a job, and wait for it.

        Args:
            job_id: the job.
            target: its directory, or a URL of one. Default: the cluster's (``execution.checkpointing.savepoint-url``,
                or else ``savepoint-dir``).
            trigger_id: identifies the request; repeating it returns the status of the first. Default: a new one.

        Raises:
            JobNotFoundError, JobAlreadyTerminatedError: there is no such job, or it is over.
            CheckpointError: the URL cannot be written to. Nothing was begun.
        """
        return self._operation(job_id, SnapshotType.SAVEPOINT, target, trigger_id)

    def stop_with_savepoint(
        self,
        job_id: JobID,
        target: Path | str | None = None,
        *,
        drain: bool = False,
        trigger_id: TriggerID | None = None,
    ) -> OperationStatus:
        """Stop a job's queries between two batches, make a savepoint, and wait for it; the job then finishes.

        With *drain* the queries first process what their sources have. Otherwise as `trigger_savepoint`.
        """
        kind = SnapshotType.SAVEPOINT_TERMINATE if drain else SnapshotType.SAVEPOINT_SUSPEND
        return self._operation(job_id, kind, target, trigger_id)

    def stop_and_await_end(
        self,
        job_id: JobID,
        target: Path | str | None = None,
        *,
        drain: bool = False,
        trigger_id: TriggerID | None = None,
    ) -> tuple[OperationStatus, JobStatus | None]:
        """Call `stop_with_savepoint`, and wait for the end of the job; its state is None if the job keeps running."""
        wanted = trigger_id or TriggerID.random()
        while True:
            status = self.stop_with_savepoint(job_id, target, drain=drain, trigger_id=wanted)
            if status.state is not OperationState.COMPLETED:
                return status, None
            job_status = self.status_of(job_id)
            if job_status.is_globally_terminal:
                return status, job_status
            time.sleep(POLL_S)

    @staticmethod
    def stop_failure(status: OperationStatus, job_status: JobStatus | None) -> str:
        """Return why `stop_and_await_end` has not done everything requested; empty if it has."""
        if status.state is not OperationState.COMPLETED:
            return status.error
        if job_status is not JobStatus.FINISHED:
            ended = "keeps running" if job_status is None else f"is {job_status.value}"
            return f"savepoint {status.path} is complete, but the job {ended}"
        return (
            "" if status.drained else f"the job is not drained: {'; '.join(status.notes)}; its savepoint: {status.path}"
        )

    def roll_back(
        self, job_id: JobID, target: str | Path, *, new_query_id: bool = False, trigger_id: TriggerID | None = None
    ) -> OperationStatus:
        """Restart a running job from one of its checkpoints or savepoints.

        Args:
            job_id: the job.
            target: a checkpoint's number or ``chk-<number>``, or the directory or URL of a savepoint.
            new_query_id: whether the queries get new ids, so that sinks that remember batches accept them again.
            trigger_id: identifies the request; repeating it does not roll back again. Default: a new one.

        Raises:
            JobNotFoundError, JobAlreadyTerminatedError: there is no such job, or it is over.
            CheckpointError: the job cannot be rolled back to the target, and keeps running as before.
        """
        wanted, path = trigger_id or TriggerID.random(), str(target.resolve()) if isinstance(target, Path) else target
        return _run(self._cluster.roll_back(job_id, wanted, path, new_query_id))

    def trigger_rescale(
        self,
        job_id: JobID,
        partitions: int | None,
        query: str = "",
        target: Path | None = None,
        trigger_id: TriggerID | None = None,
    ) -> JobID:
        """Have the cluster give the state of a running job another number of partitions.

        Args:
            job_id: the job.
            partitions: the new number; None for the one before the job's last rescale.
            query: name of the only query to rescale; empty for all with state.
            target: directory of the savepoints. Default: the cluster's (``execution.checkpointing.savepoint-dir``).
            trigger_id: identifies the request; repeating it starts no other rescale. Default: a new one.

        Returns:
            the id of the job that does it; its end is that of the rescale.

        Raises:
            JobNotFoundError, JobAlreadyTerminatedError: there is no such job, or it is over.
            CheckpointError: *partitions* is not a number of partitions.
            RescaleInProgressError: the job is being rescaled or upgraded already.
            JobSubmissionError: the cluster accepts no further job at present.
        """
        directory = "" if target is None else str(target.resolve())
        wanted = trigger_id or TriggerID.random()
        return _run(self._cluster.trigger_rescale(job_id, wanted, partitions, query, directory))

    def await_rescale(self, job_id: JobID, trigger_id: TriggerID) -> OperationStatus:
        """Wait for the end of a rescale, and return what became of it; raises `UnknownOperationError`."""
        while True:
            status = _run(self._cluster.rescale_status(job_id, trigger_id))
            if status.state is not OperationState.IN_PROGRESS:
                return status
            time.sleep(POLL_S)

    report_rescale = _in_a_thread(AsyncClusterClient.report_rescale)
    checkpoint_statistics = _in_a_thread(AsyncClusterClient.checkpoints)
    query_histories = _in_a_thread(AsyncClusterClient.query_histories)
    operation = _in_a_thread(AsyncClusterClient.operation)

    def dispose_savepoint(self, path: Path | str) -> None:
        """Remove a savepoint; raises `SavepointError` if *path*, a directory or URL, is not a savepoint."""
        _run(self._cluster.dispose_savepoint(absolute_place(path)))

    def _operation(
        self, job_id: JobID, kind: SnapshotType, target: Path | str | None, trigger_id: TriggerID | None
    ) -> OperationStatus:
        directory = "" if target is None else absolute_place(target)
        trigger = CheckpointTrigger(trigger_id or TriggerID.random(), kind, directory)
        while (status := _run(self._cluster.trigger(job_id, trigger))).state is OperationState.IN_PROGRESS:
            time.sleep(POLL_S)
        return status

    # --------------------------------------------------------------------- logs

    def logs(self, job_id: JobID) -> list[tuple[TaskLog, bytes]]:
        """Fetch the logs of a job's attempts, oldest attempt first: while they run, and until the job is forgotten.

        An attempt that has ended also has the lines that its TaskExecutor (``taskexecutor``) and Spark (``spark``)
        logged while it ran.

        Raises:
            JobNotFoundError: no such job is running or remembered.
        """
        logs = self._ask(lambda dispatcher: dispatcher.request_job_logs(job_id), UPLOAD_S)
        with self.blobs() as blobs:
            return [(log, _fetch_log(blobs, log.blob_key, job_id)) for log in logs if log.name not in FUNCTION_FILES]

    def function_result(self, job_id: JobID) -> bytes | None:
        """Return the pickled result of a job that runs a function; None where none is kept.

        Raises:
            JobNotFoundError: no such job is running or remembered.
        """
        return self._function_file(job_id, FUNCTION_RESULT)

    def function_error(self, job_id: JobID) -> bytes | None:
        """Return the pickled exception of a function whose job has failed; None where none is kept.

        Raises:
            JobNotFoundError: no such job is running or remembered.
        """
        return self._function_file(job_id, FUNCTION_ERROR)

    def _function_file(self, job_id: JobID, name: str) -> bytes | None:
        """Fetch a file of the last attempt, not of earlier ones that failed."""
        attempts = [attempt for task in self.job(job_id).tasks for attempt in task.attempts]
        kept = [log for attempt in attempts[-1:] for log in attempt.logs if log.name == name]
        return self.kept_log(job_id, kept[-1]) if kept else None

    kept_log = _in_a_thread(AsyncClusterClient.kept_log)

    def task_executor_logs(self, resource_id: ResourceID) -> list[tuple[ComponentLog, bytes]]:
        """Fetch the log of a TaskExecutor and that of its Spark driver, or their heads and tails.

        Raises:
            UnknownTaskExecutorError: it is not registered.
        """
        executor = self.task_executor(resource_id)
        names = [log.name for log in executor.request_log_list().result()]
        return [_run(self._cluster.component_log(executor, name)) for name in names]

    # ------------------------------------------------------------------ cluster

    overview = _in_a_thread(AsyncClusterClient.overview)
    finalize_feature_level = _in_a_thread(AsyncClusterClient.finalize_feature_level)
    status = _in_a_thread(AsyncClusterClient.status)
    task_managers = _in_a_thread(AsyncClusterClient.task_managers)

    def web_page(self, job_id: JobID | None = None) -> str:
        """Return the URL of the cluster's web page, or of a job on it; empty if there is none, or no answer."""
        with contextlib.suppress(ActorError):
            for process in self._link.master().request_status().result().processes:
                if process.url:
                    return f"{process.url}/#/jobs/{job_id}" if job_id else process.url
        return ""

    def worker_hosts(self) -> list[str]:
        """Return the hosts of the TaskExecutors; the master's host if none is known."""
        master = self._link.system.host
        if master == "localhost" or master.startswith("127."):
            return [master]  # no other machine reaches it
        with contextlib.suppress(ActorError):  # the caller submits the job in any case
            views = self.task_managers()
            return [ActorAddress.parse(view.registration.address).host for view in views] or [master]
        return [master]

    def diagnostics(self) -> dict[str, DiagnosticsGateway]:
        """Return gateways to the diagnostics of each process, by its name; some may have ended since it was listed."""
        addresses = process_addresses(self.status(), self.task_managers())
        return {
            name: self._link.gateway(diagnostics_at(address), DiagnosticsGateway) for name, address in addresses.items()
        }

    def task_pools(self) -> dict[ResourceID, TaskPoolReport]:
        """Return reports on the pools of ready task processes, of each TaskExecutor that answers."""
        found = {}
        for view in self.task_managers():
            address = ActorAddress.parse(view.registration.address)
            with contextlib.suppress(ActorError):  # it has ended or hangs: return the reports of the others
                gateway = self._link.gateway(address, TaskExecutorGateway)
                found[view.registration.resource_id] = gateway.request_task_pool().result()
        return found

    def shut_down(self, status: ApplicationStatus = ApplicationStatus.UNKNOWN) -> None:
        """Stop the cluster, which ends after its reply. *status* is its application's outcome."""
        first = self._link.master()
        for master in self._cluster.other_masters(first.request_status().result().masters):
            with contextlib.suppress(ActorError):  # a master that has ended needs no stop
                master.shut_down_cluster(status).result()
        first.shut_down_cluster(status).result()

    def close(self) -> None:
        """Close all connections."""
        self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def _addresses(system: ActorAddress | str | Sequence[str]) -> list[ActorAddress]:
    if isinstance(system, ActorAddress):
        return [system]
    texts = [system] if isinstance(system, str) else system
    return [ActorAddress.parse(text) for text in dict.fromkeys(texts)]


def _signed(graph: JobGraph) -> JobGraph:
    """Return the graph with this process's user as its submitter, if it names none and the user has a name."""
    try:
        name = graph.submitter or getpass.getuser()
        check_name("submitter", name)
    except (
        OSError,
        KeyError,
        JobGraphError,
    ):  # a container may know no name for its user; KeyError: before Python 3.13
        return graph
    return replace(graph, submitter=name)


def _traced(graph: JobGraph) -> JobGraph:
    """Return the graph with the trace context of the calling code, if it names none."""
    return graph if graph.traceparent else replace(graph, traceparent=current_traceparent(os.environ, sys.modules))


def _carried(files: Sequence[JobFile]) -> list[Artifact] | None:
    """Read the job's files; None where they are too large for its graph, or are libraries."""
    if (
        any(file.role not in CARRIED_ROLES for file in files)
        or sum(file.path.stat().st_size for file in files) > CARRIED_SIZE
    ):
        return None
    return [Artifact(file.name, file.role, content=file.path.read_bytes()) for file in files]


def _files_text(files: Sequence[JobFile]) -> str:
    """Name the files of a job that is refused; see `files_text`."""
    return files_text((file.name, file.role, file.path.stat().st_size) for file in files)


def _fetch_log(blobs: Blobs, key: str, job_id: JobID | None) -> bytes:
    """Fetch the content of a log; delete a transient blob, which was made for this client alone."""
    if not key:
        return b""
    parsed = BlobKey.parse(key)
    if not isinstance(parsed, TransientBlobKey):
        return blobs.get_bytes(parsed, None if job_id is None else logs_owner(job_id))
    content = blobs.get_bytes(parsed)
    blobs.delete(parsed)
    return content

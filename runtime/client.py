"""The client of a cluster for plain programs, notebooks and the command line: synchronous, and follows the leader."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from actors.address import ActorAddress
from actors.client import ActorClient
from actors.errors import ActorError, AskTimeout, FencingError, RecipientUnreachable, UnknownActor
from actors.rpc.gateway import RpcGateway
from actors.rpc.service import RpcConfig
from blob.client import BlobClient
from blob.key import PermanentBlobKey, TransientBlobKey
from blob.offload import offload_if_larger
from runtime.gateways.dispatcher import DispatcherGateway
from runtime.gateways.errors import JobNotReachableError
from runtime.gateways.master import MasterGateway
from runtime.gateways.messages import ClusterStatus, ResourceOverview, TaskLog, TaskManagerView
from runtime.ids import JobID
from runtime.jobgraph.codec import encode
from runtime.jobgraph.job_graph import Artifact, ArtifactRole, JobGraph
from runtime.jobmaster.archived_execution_graph import ArchivedExecutionGraph, JobDetails
from runtime.jobmaster.execution_state import JobStatus

T = TypeVar("T")
G = TypeVar("G", bound=RpcGateway)

RETRY_S = 0.1
# A leader that changes, or is not there yet: look it up again. What is asked for is idempotent, so a lost reply too.
_PASSING = (FencingError, RecipientUnreachable, UnknownActor, AskTimeout, JobNotReachableError)


class ClusterClient:
    """Speaks to one cluster.

    Args:
        system: address of the cluster's actor system (any actor's address at its port).
        secret: the cluster's secret.
        rpc: settings of the connections; ``socket_dir`` in it makes a cluster of this machine a little faster.
        inline_limit: a job graph of more bytes is submitted as a blob (``blob.offload.minsize``).
        patience_s: seconds for which a leader that does not answer is looked up again (``client.timeout``).

    Every method raises `ActorError` when the cluster does not answer in that time, and the errors of
    `runtime.gateways.errors` that it answers with.
    """

    def __init__(
        self,
        system: ActorAddress | str,
        secret: bytes,
        *,
        rpc: RpcConfig | None = None,
        inline_limit: int = 1024 * 1024,
        patience_s: float = 60.0,
    ) -> None:
        self.system = ActorAddress.parse(system) if isinstance(system, str) else system
        self._secret = secret
        self._patience_s = patience_s
        self._inline_limit = inline_limit
        self._tls = None if rpc is None else rpc.tls
        self._actors = ActorClient(secret, rpc)
        self._dispatcher: DispatcherGateway | None = None

    def lookup(self, name: str, gateway_type: type[G]) -> G:
        """A typed gateway to the actor ``/user/<name>`` of the cluster."""
        return self._actors.lookup(self.system.with_path(f"/user/{name}"), gateway_type)

    def _ask(self, question: Callable[[DispatcherGateway], T]) -> T:
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                if self._dispatcher is None:
                    self._dispatcher = self.lookup("dispatcher", DispatcherGateway)
                return question(self._dispatcher)
            except _PASSING as error:
                self._dispatcher = None
                if time.monotonic() > deadline or isinstance(error, AskTimeout):
                    raise ActorError(f"the cluster at {self.system} does not answer: {error}") from error
                time.sleep(RETRY_S)

    # --------------------------------------------------------------------- jobs

    def submit(self, graph: JobGraph, main: Path, py_files: Iterable[Path] = ()) -> JobID:
        """Upload a job's files and submit it; returns when the cluster has persisted it.

        Args:
            graph: the job; its artifacts are filled in here.
            main: the job file.
            py_files: modules and archives for the job's Python path.

        Raises:
            OSError: a file cannot be read.
            BlobError: a file cannot be uploaded.
            JobGraphError, JobSubmissionError: the cluster does not accept the job.
        """
        files = [(main, ArtifactRole.MAIN)]
        files += [(path, ArtifactRole.PY_FILE) for path in py_files]
        with self._blobs() as blobs:
            artifacts = [
                Artifact(path.name, role, str(blobs.put_file(path, PermanentBlobKey, graph.job_id)))
                for path, role in files
            ]
            message = offload_if_larger(
                encode(graph.with_artifacts(*artifacts)), self._inline_limit, blobs, graph.job_id
            )
        return self._ask(lambda dispatcher: dispatcher.submit_job(message).result())

    @contextlib.contextmanager
    def _blobs(self) -> Iterator[BlobClient]:
        address = self._ask(lambda dispatcher: dispatcher.get_blob_server().result())
        tls = None if self._tls is None else self._tls.contexts()[1]
        with BlobClient((address.host, address.port), self._secret, tls=tls) as client:
            yield client

    def list_jobs(self) -> list[JobDetails]:
        """Running and finished jobs, the newest first."""
        return self._ask(lambda dispatcher: dispatcher.list_jobs().result())

    def job(self, job_id: JobID) -> ArchivedExecutionGraph:
        """One job with its tasks; raises `JobNotFoundError`."""
        return self._ask(lambda dispatcher: dispatcher.request_job(job_id).result())

    def status_of(self, job_id: JobID) -> JobStatus:
        """The state of one job; raises `JobNotFoundError`."""
        return self._ask(lambda dispatcher: dispatcher.request_job_status(job_id).result())

    def cancel(self, job_id: JobID) -> None:
        """Begin to cancel a job; raises `JobNotFoundError` or `JobAlreadyTerminatedError`."""
        self._ask(lambda dispatcher: dispatcher.cancel_job(job_id).result())

    def logs(self, job_id: JobID) -> list[tuple[TaskLog, bytes]]:
        """The logs of a job's attempts, oldest attempt first; raises `JobNotFoundError`."""
        logs = self._ask(lambda dispatcher: dispatcher.request_job_logs(job_id).result(60.0))
        with self._blobs() as blobs:
            return [(log, _fetch_once(blobs, TransientBlobKey(log.blob_key))) for log in logs]

    def watch(self, job_id: JobID, interval_s: float = 0.2) -> Iterator[ArchivedExecutionGraph]:
        """The job again and again until it is over, the last time as it ended.

        Args:
            job_id: the job.
            interval_s: seconds between two looks; the first ones are closer together.
        """
        pause_s = interval_s / 8
        while True:
            job = self.job(job_id)
            yield job
            if job.status.is_globally_terminal:
                return
            time.sleep(pause_s)
            pause_s = min(interval_s, pause_s * 1.3)

    # ------------------------------------------------------------------ cluster

    def status(self) -> ClusterStatus:
        """The cluster's processes."""
        return self.lookup("master", MasterGateway).request_status().result()

    def task_managers(self) -> list[TaskManagerView]:
        """The registered TaskExecutors."""
        return self._ask(lambda dispatcher: dispatcher.request_task_managers().result())

    def overview(self) -> ResourceOverview:
        """Counts of TaskExecutors and slots."""
        return self._ask(lambda dispatcher: dispatcher.request_cluster_overview().result())

    def shut_down(self) -> None:
        """Tell the cluster to stop; it does so after the reply."""
        self.lookup("master", MasterGateway).shut_down_cluster().result()

    def close(self) -> None:
        """Close all connections."""
        self._actors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _fetch_once(blobs: BlobClient, key: TransientBlobKey) -> bytes:
    """Fetch a transient blob that was made for this client alone, and delete it."""
    content = blobs.get_bytes(key)
    blobs.delete(key)
    return content

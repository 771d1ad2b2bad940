"""Connection of main() to its cluster, through the process that runs it: only that process has the cluster's secret.

Both ends are here. They exchange typed values in frames over a socket pair. Nothing that main() sends is unpickled.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

from actors.rpc.codec import from_plain, to_plain
from runtime.application.state import ExecuteIds
from runtime.client import ClusterClient
from runtime.errors import NotebookError
from runtime.ids import JobID
from runtime.jobgraph.codec import decode_job_graph, encode
from runtime.jobgraph.job_graph import ArtifactRole, JobGraph
from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph, JobDetails, JobResult
from runtime.protocol.errors import JobAlreadyTerminatedError, JobNotFoundError, JobSubmissionError
from runtime.protocol.execution_state import JobStatus
from runtime.protocol.messages import TaskLog
from runtime.spark.wire import BlockingChannel, Message

POLL_S = 0.2

_ERRORS: dict[str, type[Exception]] = {
    error.__name__: error for error in (JobNotFoundError, JobAlreadyTerminatedError, JobSubmissionError)
}


_CALLS = frozenset({"status_of", "job", "cancel", "function_result", "function_error", "logs", "list_jobs"})
"""Methods of `ClusterClient` that main() may call."""


class ApplicationClient:
    """The `runtime.client.ClusterClient` of main(), limited to the jobs of its application.

    Args:
        channel: to the process that runs main().
    """

    sees_files = True

    def __init__(self, channel: BlockingChannel) -> None:
        self._channel = channel
        self._lock = threading.Lock()

    def _ask(self, op: str, **arguments: Any) -> Any:
        with self._lock:
            self._channel.send({"op": op, **arguments})
            answer = self._channel.receive()
        if answer is None:
            raise NotebookError("the connection to the cluster is lost", "the cluster runs main() again by itself")
        if "error" in answer:
            kind = _ERRORS.get(answer["error"])
            raise kind(answer["text"]) if kind else NotebookError(answer["text"], answer["remedy"])
        return answer["value"]

    def submit(self, graph: JobGraph, main: Path, libraries: Iterable[tuple[Path, ArtifactRole]] = ()) -> JobID:
        """Execute a job of the application; its id is made from the application's, its name and its number."""
        files = [[str(path.resolve()), role.value] for path, role in libraries]
        return JobID(self._ask("submit", graph=encode(graph), main=str(main.resolve()), files=files))

    def status_of(self, job_id: JobID) -> JobStatus:
        """Return the state of a job; as `ClusterClient.status_of`."""
        found: JobStatus = from_plain(self._ask("status_of", job_id=job_id), JobStatus)
        return found

    def job(self, job_id: JobID) -> ArchivedExecutionGraph:
        """Return a job with its tasks; as `ClusterClient.job`."""
        found: ArchivedExecutionGraph = from_plain(self._ask("job", job_id=job_id), ArchivedExecutionGraph)
        return found

    def watch(self, job_id: JobID) -> Iterator[ArchivedExecutionGraph]:
        """Yield a job until it is over; as `ClusterClient.watch`."""
        while True:
            job = self.job(job_id)
            yield job
            if job.status.is_globally_terminal:
                return
            time.sleep(POLL_S)

    def result(self, job_id: JobID) -> JobResult:
        """Wait for the end of a job, and return its result; as `ClusterClient.result`."""
        while not self.status_of(job_id).is_globally_terminal:
            time.sleep(POLL_S)
        return self.job(job_id).result()

    def cancel(self, job_id: JobID) -> None:
        """Cancel a job; as `ClusterClient.cancel`."""
        self._ask("cancel", job_id=job_id)

    def function_result(self, job_id: JobID) -> bytes | None:
        """Return the pickled return value of a function; as `ClusterClient.function_result`."""
        found: bytes | None = self._ask("function_result", job_id=job_id)
        return found

    def function_error(self, job_id: JobID) -> bytes | None:
        """Return the pickled exception of a function; as `ClusterClient.function_error`."""
        found: bytes | None = self._ask("function_error", job_id=job_id)
        return found

    def on_end(self, job_id: JobID, wake: Callable[[], object]) -> bool:
        """Return False: this client cannot wake its caller, unlike `ClusterClient.on_end`."""
        return False

    def logs(self, job_id: JobID) -> list[tuple[TaskLog, bytes]]:
        """Return the logs of a job's tasks; as `ClusterClient.logs`."""
        return [(from_plain(log, TaskLog), content) for log, content in self._ask("logs", job_id=job_id)]

    def list_jobs(self) -> list[JobDetails]:
        """Return the jobs of the application; as `ClusterClient.list_jobs`."""
        return [from_plain(job, JobDetails) for job in self._ask("list_jobs")]

    def close(self) -> None:
        """Do nothing: main() needs the connection for as long as it runs."""

    def __getattr__(self, name: str) -> NoReturn:
        raise NotebookError(
            f"{name!r} is not available in an application's main(): it reaches its jobs only",
            "use it from outside, with the cluster.id that `understudy job run` has printed",
        )


_current: ApplicationClient | None = None


def application_client() -> ApplicationClient | None:
    """Return the client of the application whose main() runs in this process; None in any other process."""
    return _current


def use(client: ApplicationClient) -> None:
    """Make *client* this process's connection to its cluster."""
    global _current  # a process has one main()
    _current = client


class ApplicationGateway:
    """The other end: handles the requests of one run of main().

    Args:
        client: of the cluster.
        ids: of its jobs.
        libraries: libraries that all jobs of the application import, in addition to their own.
        insist: calls a function until the cluster has answered.
        environment: environment variables of all its jobs, in addition to their own.
    """

    def __init__(
        self,
        client: ClusterClient,
        ids: ExecuteIds,
        libraries: Iterable[tuple[Path, ArtifactRole]],
        insist: Callable[[Callable[[], Any]], Any],
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._client = client
        self._ids = ids
        self._libraries = tuple(libraries)
        self._insist = insist
        self._environment = environment

    def answer(self, message: Message) -> Message:
        """Return the answer to a request of main(); an error of the request is the answer, too."""
        try:
            return {"value": self._value(str(message["op"]), message)}
        except Exception as error:  # user code may send anything; main() gets the error
            return {"error": type(error).__name__, "text": str(error), "remedy": str(getattr(error, "remedy", ""))}

    def _value(self, op: str, message: Message) -> Any:
        if op == "submit":
            return self._submit(message)
        if op not in _CALLS:
            raise ValueError(f"main() requests {op!r}, which does not exist")
        job_ids = [JobID(message["job_id"])] if "job_id" in message else []
        return to_plain(self._insist(lambda: getattr(self._client, op)(*job_ids)))

    def _submit(self, message: Message) -> JobID:
        graph = decode_job_graph(message["graph"])
        environment = {**self._environment, **graph.environment}
        graph = replace(graph, job_id=self._ids.next(graph.name), environment=environment)
        try:
            self._insist(lambda: self._client.status_of(graph.job_id))
        except JobNotFoundError:
            libraries = [(Path(path), ArtifactRole(role)) for path, role in message["files"]]
            main = Path(message["main"])
            self._insist(lambda: self._client.submit(graph, main, libraries=[*libraries, *self._libraries]))
        return graph.job_id

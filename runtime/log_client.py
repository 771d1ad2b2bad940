"""What a client asks of logs; a part of `runtime.client.ClusterClient`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

from blob.client import BlobClient
from blob.gateway import BlobAddress
from blob.key import BlobKey, TransientBlobKey
from runtime.gateways.diagnostics import ComponentLog
from runtime.gateways.dispatcher import DispatcherGateway
from runtime.gateways.messages import TaskLog
from runtime.gateways.task_executor import TaskExecutorGateway
from runtime.ids import JobID, ResourceID
from runtime.job_logs import FUNCTION_RESULT, KeptLog, logs_owner
from runtime.jobmaster.archived_execution_graph import ArchivedExecutionGraph

T = TypeVar("T")


class LogClient(ABC):
    """A client of the logs of jobs and TaskExecutors, which travel as blobs."""

    @abstractmethod
    def _ask(self, question: Callable[[DispatcherGateway], T]) -> T:
        """Ask the Dispatcher that leads."""

    @abstractmethod
    def job(self, job_id: JobID) -> ArchivedExecutionGraph:
        """One job with its tasks; raises `JobNotFoundError`."""

    @abstractmethod
    def task_executor(self, resource_id: ResourceID) -> TaskExecutorGateway:
        """The TaskExecutor of that name; raises `UnknownTaskExecutorError`."""

    @abstractmethod
    def blobs(self) -> AbstractContextManager[BlobClient]:
        """A client of the BlobServer of the master that leads."""

    @abstractmethod
    def _blob_location(self) -> tuple[str, int]:
        """Where that BlobServer is."""

    @abstractmethod
    def _blob_client(self, location: tuple[str, int]) -> BlobClient:
        """A client of the BlobServer there."""

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

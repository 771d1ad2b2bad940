"""The logs of a TaskExecutor and of its attempts, and their upload to the BlobServer."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType

from actors.errors import ActorError
from actors.rpc.endpoint import RpcEndpoint
from blob.client import BlobClient
from blob.errors import BlobConnectionError, BlobError, BlobServerError
from blob.gateway import BlobAddress
from blob.key import PermanentBlobKey, TransientBlobKey
from conf.files import write_private
from runtime.ids import ExecutionAttemptID, JobID, ResourceID
from runtime.job_logs import (
    FUNCTION_FILES,
    TASK_LOGS,
    KeptLog,
    LogChunk,
    bounded,
    logs_owner,
    read_chunk,
)
from runtime.protocol.descriptor import TaskDeploymentDescriptor
from runtime.protocol.diagnostics import ComponentLog, LogInfo
from runtime.protocol.errors import NoSuchLogError
from runtime.protocol.messages import TaskLog
from runtime.retry import retry

logger = logging.getLogger(__name__)

TRANSIENT_MAX_SIZE = 128 * 1024 * 1024  # most bytes of one log that a client gets
_DESCRIPTION = "attempt.json"


PATIENCE_S = 15.0
"""Longest time in seconds that an attempt's end waits for its logs to be uploaded: enough to replace a BlobServer."""

OWN_MAX_SIZE = 256 * 1024
"""Most bytes that are kept, with an attempt, of each of the TaskExecutor's own logs."""


class AttemptDirectories:
    """The directories of all attempts that ran in one TaskExecutor, including its earlier processes.

    ``<tasks>/<job id>/<attempt id>/`` has the files of one attempt and its logs. The methods do file I/O.

    Args:
        root: the directory; made with mode 0700.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._stuck = set[str]()
        root.mkdir(mode=0o700, parents=True, exist_ok=True)

    def make(self, descriptor: TaskDeploymentDescriptor) -> Path:
        """Make and return the directory of a new attempt."""
        directory = self.of(descriptor)
        directory.parent.mkdir(mode=0o700, exist_ok=True)
        directory.mkdir(mode=0o700, exist_ok=True)
        description = {
            "task": descriptor.attempt.task_name,
            "attempt": descriptor.attempt.attempt_number,
            "began": time.time(),
        }
        write_private(directory / _DESCRIPTION, json.dumps(description).encode(), durable=False)
        return directory

    def of(self, descriptor: TaskDeploymentDescriptor) -> Path:
        """Return the directory of an attempt."""
        return self._root / descriptor.job.job_id / descriptor.attempt.attempt_id

    def upload_logs(self, job_id: JobID, blobs: BlobClient) -> list[TaskLog]:
        """Upload the logs of all attempts of a job as TRANSIENT blobs; raises BlobError."""
        found = []
        for directory in (self._root / job_id).glob("*"):
            try:
                described = json.loads((directory / _DESCRIPTION).read_bytes())
            except FileNotFoundError:
                continue  # it is being made at this moment, or removed
            for name in TASK_LOGS:
                path = directory / name
                if path.exists():
                    with bounded(path, TRANSIENT_MAX_SIZE) as (file, size, _):
                        key = blobs.put_stream(file, TransientBlobKey)  # not owned by the job, whose blobs end with it
                    attempt_id = ExecutionAttemptID(directory.name)
                    log = TaskLog(job_id, described["task"], described["attempt"], name, size, str(key), attempt_id)
                    found.append((described["began"], log))
        return [log for _, log in sorted(found, key=lambda item: item[0])]

    def keep_logs(
        self, job_id: JobID, attempt_id: ExecutionAttemptID, blobs: BlobClient, max_size: int
    ) -> list[KeptLog]:
        """Upload an attempt's logs as PERMANENT blobs, cut to *max_size* bytes each; none if it did not run here.

        Raises BlobError.
        """
        directory = self._root / job_id / attempt_id
        if not directory.exists():
            return []
        kept = [keep_log(name, directory / name, job_id, blobs, max_size) for name in TASK_LOGS]
        for name, limit in FUNCTION_FILES.items():
            path = directory / name
            if path.is_file() and not path.is_symlink() and path.stat().st_size <= limit:
                kept.append(keep_log(name, path, job_id, blobs, limit))
        return kept

    def read(self, job_id: JobID, attempt_id: ExecutionAttemptID, name: str, offset: int) -> LogChunk:
        """Return a piece of a log; raises NoSuchLogError for a name of no log, or a negative offset."""
        if name not in TASK_LOGS or offset < 0:
            raise NoSuchLogError(
                f"{name[:40]!r} from byte {offset} is not a log of a task: {' and '.join(TASK_LOGS)} are"
            )
        return read_chunk(self._root / job_id / attempt_id / name, offset)

    def expire(self, retention_s: float, busy: Collection[JobID] = ()) -> None:
        """Remove the directories of jobs that nothing has written to for *retention_s* seconds.

        Args:
            retention_s: the least age of what is removed.
            busy: jobs that have a task or a slot here. Their directories stay, though a job may write nothing for days.
        """
        for job in self._root.glob("*"):
            if job.name in busy:
                continue
            try:  # a link may lead nowhere, and a file may be removed meanwhile by what the job has left running
                newest = max((path.lstat().st_mtime for path in job.rglob("*")), default=job.stat().st_mtime)
                if time.time() - newest > retention_s:
                    shutil.rmtree(job)
            except FileNotFoundError:
                continue  # looked at again next time
            except OSError as error:
                if job.name not in self._stuck:
                    self._stuck.add(job.name)
                    logger.warning("%s could not be removed, remove it by hand: %s", job, error)


def keep_log(name: str, path: Path, job_id: JobID, blobs: BlobClient, max_size: int, start: int = 0) -> KeptLog:
    """Upload a log from byte *start* on, cut to *max_size*, as a PERMANENT blob; raises BlobError, OSError."""
    if not path.exists():
        return KeptLog(name, 0, 0, "")
    with bounded(path, max_size, start) as (file, size, kept):
        key = blobs.put_stream(file, PermanentBlobKey, logs_owner(job_id)) if kept else ""
    return KeptLog(name, size, kept, str(key))


def upload_log(resource_id: ResourceID, name: str, path: Path, blobs: BlobClient, max_size: int) -> ComponentLog:
    """Upload a TaskExecutor's own log as a TRANSIENT blob; raises BlobError, OSError."""
    with bounded(path, max_size) as (file, size, _):
        return ComponentLog(resource_id, name, size, str(blobs.put_stream(file, TransientBlobKey)))


class AttemptLogKeeper:
    """Uploads the logs of one attempt.

    They include the lines that the TaskExecutor and its Spark driver logged while the attempt ran, also of other tasks.
    If the upload fails, a log line says so, and the attempt ends all the same.

    Args:
        endpoint: the TaskExecutor.
        deployment: of the attempt.
        put: uploads what the attempt wrote; blocks, and raises BlobError or OSError.
        put_own: uploads what the TaskExecutor logged while the attempt ran, likewise.
        starts: sizes of the TaskExecutor's logs when the attempt began, by name.
    """

    def __init__(
        self,
        endpoint: RpcEndpoint,
        deployment: TaskDeploymentDescriptor,
        put: Callable[[], list[KeptLog]],
        put_own: Callable[[], list[KeptLog]],
        starts: dict[str, int],
    ) -> None:
        self.starts = starts
        self._endpoint = endpoint
        self._deployment = deployment
        self._put = put
        self._put_own = put_own
        self._early: asyncio.Task[list[KeptLog] | None] | None = None

    def begin(self) -> None:
        """Upload the TaskExecutor's own logs early: the attempt's work is done, and its process is about to end."""
        self._early = self._endpoint.spawn(self._try_early(), "putting logs")

    async def keep(self, well: bool) -> tuple[KeptLog, ...]:
        """Upload the rest after the attempt's end; *well*: what `begin` has uploaded is complete."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                own = await self._early if well and self._early is not None else None
                put = await retry(
                    lambda: self._endpoint.run_blocking(self._put_rest, own),
                    (BlobConnectionError, BlobServerError),
                    what="putting logs",
                    log=self._endpoint.log,
                )
                return tuple(put)
        except (ActorError, BlobError, OSError, TimeoutError) as error:
            self._endpoint.log.warning(
                "the logs of %s of job %s stay in this TaskExecutor alone: %s: %s",
                self._deployment.attempt.task_name,
                self._deployment.job.job_id,
                type(error).__name__,
                error,
            )
            return ()

    def _put_rest(self, own: list[KeptLog] | None) -> list[KeptLog]:
        return self._put() + (self._put_own() if own is None else own)

    async def _try_early(self) -> list[KeptLog] | None:
        try:
            return await self._endpoint.run_blocking(self._put_own)
        except (ActorError, BlobError, OSError) as error:
            self._endpoint.log.info("logs are put later: %s", error)
            return None


class LogKeeper:
    """Uploads and reads the logs of a TaskExecutor and of its attempts.

    Args:
        endpoint: the TaskExecutor.
        attempts: has the files of its attempts.
        own: its own logs by name. Only these are served, never the output of the Spark driver's JVM (its ``.out``):
            Spark's workers print tokens there.
        connect: makes a client of a BlobServer; of None, the one that the ResourceManager names.
        max_size: most bytes that are kept of an attempt's log (``job.logs.max-size``).
    """

    def __init__(
        self,
        endpoint: RpcEndpoint,
        attempts: AttemptDirectories,
        own: Mapping[str, Path],
        connect: Callable[[BlobAddress | None], BlobClient],
        max_size: int,
    ) -> None:
        self._endpoint = endpoint
        self._attempts = attempts
        self._own = own
        self._connect = connect
        self._max_size = max_size
        self._kept: BlobClient | None = None

    def close(self) -> None:
        """Close the connection to the BlobServer."""
        if self._kept is not None:
            self._kept.close()

    def _client(self) -> BlobClient:
        if self._kept is None:
            self._kept = self._connect(None)
        return self._kept

    def keeper_of(
        self, deployment: TaskDeploymentDescriptor, former: Mapping[str, int] = MappingProxyType({})
    ) -> AttemptLogKeeper:
        """Return the keeper of an attempt's logs. It starts now, or began when the logs had the *former* sizes."""
        starts = {name: path.stat().st_size if path.exists() else 0 for name, path in self._own.items()} | {**former}

        def put() -> list[KeptLog]:
            job_id, client = deployment.job.job_id, self._client()
            return self._attempts.keep_logs(job_id, deployment.attempt.attempt_id, client, self._max_size)

        def put_own() -> list[KeptLog]:
            job_id, client, own = deployment.job.job_id, self._client(), self._own.items()
            return [keep_log(name, path, job_id, client, OWN_MAX_SIZE, starts[name]) for name, path in own]

        return AttemptLogKeeper(self._endpoint, deployment, put, put_own, starts)

    async def upload_attempts(self, job_id: JobID, blob_server: BlobAddress) -> list[TaskLog]:
        """Upload the logs of all attempts of a job as TRANSIENT blobs; raises BlobError."""
        with self._connect(blob_server) as client:
            return await self._endpoint.run_blocking(self._attempts.upload_logs, job_id, client)

    async def keep(self, job_id: JobID, attempt_id: ExecutionAttemptID) -> list[KeptLog]:
        """Upload an attempt's logs as PERMANENT blobs; none if it did not run here. Raises BlobError."""
        work, client = self._attempts.keep_logs, self._client()
        return await self._endpoint.run_blocking(work, job_id, attempt_id, client, self._max_size)

    def infos(self) -> list[LogInfo]:
        """Return names, sizes and times of the TaskExecutor's own logs."""
        found = ((name, path.stat()) for name, path in self._own.items() if path.exists())
        return [LogInfo(name, status.st_size, status.st_mtime_ns // 1_000_000) for name, status in found]

    async def upload(self, name: str, blob_server: BlobAddress | None) -> ComponentLog:
        """Upload one of the TaskExecutor's own logs as a TRANSIENT blob; raises NoSuchLogError, BlobError."""
        if blob_server is None:
            return await self._endpoint.run_blocking(self._upload, name, self._client())
        with self._connect(blob_server) as client:
            return await self._endpoint.run_blocking(self._upload, name, client)

    def _upload(self, name: str, client: BlobClient) -> ComponentLog:
        path = self._path_of(name)
        return upload_log(ResourceID(self._endpoint.name), name, path, client, self._max_size)

    def read(self, name: str, offset: int) -> LogChunk:
        """Return a piece of one of them; raises NoSuchLogError for another name, or a negative offset."""
        path = self._path_of(name)
        if offset < 0:
            raise NoSuchLogError(f"a log has no byte {offset}")
        return read_chunk(path, offset)

    def _path_of(self, name: str) -> Path:
        path = self._own.get(name)
        if path is None or not path.exists():
            raise NoSuchLogError(f"{name[:40]!r} is not a log of a TaskExecutor: {' and '.join(self._own)} are")
        return path

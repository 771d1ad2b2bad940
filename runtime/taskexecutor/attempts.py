"""The directories of task attempts: ``<tasks>/<job id>/<attempt id>/`` with the files of one attempt and its logs."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

from blob.client import BlobClient
from blob.key import PermanentBlobKey, TransientBlobKey
from conf.files import write_private
from runtime.gateways.diagnostics import ComponentLog
from runtime.gateways.errors import NoSuchLogError
from runtime.gateways.messages import TaskLog
from runtime.ids import ExecutionAttemptID, JobID, ResourceID
from runtime.job_logs import (
    FUNCTION_RESULT,
    FUNCTION_RESULT_MAX_SIZE,
    TASK_LOGS,
    KeptLog,
    LogChunk,
    bounded,
    logs_owner,
    read_chunk,
)
from runtime.jobmaster.descriptor import TaskDeploymentDescriptor

TRANSIENT_MAX_SIZE = 128 * 1024 * 1024  # what a client takes at once has an end too
_DESCRIPTION = "attempt.json"


class AttemptDirectories:
    """All attempts that ran in one TaskExecutor, those of its earlier processes included. Its methods do file I/O.

    Args:
        root: the directory; made with mode 0700.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(mode=0o700, parents=True, exist_ok=True)

    def make(self, descriptor: TaskDeploymentDescriptor) -> Path:
        """The directory of a new attempt."""
        job = self._root / descriptor.job_id
        job.mkdir(mode=0o700, exist_ok=True)
        directory = job / descriptor.attempt_id
        directory.mkdir(mode=0o700, exist_ok=True)
        description = {"task": descriptor.task_name, "attempt": descriptor.attempt_number, "began": time.time()}
        write_private(directory / _DESCRIPTION, json.dumps(description).encode(), durable=False)
        return directory

    def upload_logs(self, job_id: JobID, blobs: BlobClient) -> list[TaskLog]:
        """Put the logs of all attempts of a job as TRANSIENT blobs; raises BlobError."""
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
                        key = blobs.put_stream(file, TransientBlobKey)  # not the job's: its blobs go when it ends
                    attempt_id = ExecutionAttemptID(directory.name)
                    log = TaskLog(job_id, described["task"], described["attempt"], name, size, str(key), attempt_id)
                    found.append((described["began"], log))
        return [log for _, log in sorted(found, key=lambda item: item[0])]

    def keep_logs(
        self, job_id: JobID, attempt_id: ExecutionAttemptID, blobs: BlobClient, max_size: int
    ) -> list[KeptLog]:
        """Put what is kept of an attempt's logs as PERMANENT blobs; none if it did not run here. Raises BlobError."""
        directory = self._root / job_id / attempt_id
        if not directory.exists():
            return []
        kept = [keep_log(name, directory / name, job_id, blobs, max_size) for name in TASK_LOGS]
        result = directory / FUNCTION_RESULT
        if result.is_file() and not result.is_symlink() and result.stat().st_size <= FUNCTION_RESULT_MAX_SIZE:
            kept.append(keep_log(FUNCTION_RESULT, result, job_id, blobs, FUNCTION_RESULT_MAX_SIZE))
        return kept

    def read(self, job_id: JobID, attempt_id: ExecutionAttemptID, name: str, offset: int) -> LogChunk:
        """A piece of a log; raises NoSuchLogError for a name that is no log's, or a negative offset."""
        if name not in TASK_LOGS or offset < 0:
            raise NoSuchLogError(f"{name[:40]!r} from byte {offset} is no log of a task: {' and '.join(TASK_LOGS)} are")
        return read_chunk(self._root / job_id / attempt_id / name, offset)

    def expire(self, retention_s: float) -> None:
        """Remove the directories of jobs that nothing was written to for *retention_s* seconds."""
        for job in self._root.glob("*"):
            newest = max((path.stat().st_mtime for path in job.rglob("*")), default=job.stat().st_mtime)
            if time.time() - newest > retention_s:
                shutil.rmtree(job)


def keep_log(name: str, path: Path, job_id: JobID, blobs: BlobClient, max_size: int, start: int = 0) -> KeptLog:
    """Put what is kept of a log, from byte *start* on, as a PERMANENT blob; raises BlobError, OSError."""
    if not path.exists():
        return KeptLog(name, 0, 0, "")
    with bounded(path, max_size, start) as (file, size, kept):
        key = blobs.put_stream(file, PermanentBlobKey, logs_owner(job_id)) if kept else ""
    return KeptLog(name, size, kept, str(key))


def upload_log(resource_id: ResourceID, name: str, path: Path, blobs: BlobClient, max_size: int) -> ComponentLog:
    """Put a TaskExecutor's own log as a TRANSIENT blob; raises BlobError, OSError."""
    with bounded(path, max_size) as (file, size, _):
        return ComponentLog(resource_id, name, size, str(blobs.put_stream(file, TransientBlobKey)))

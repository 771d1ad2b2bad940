"""The directories of task attempts: ``<tasks>/<job id>/<attempt id>/`` with the files of one attempt and its logs."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

from blob.client import BlobClient
from blob.key import TransientBlobKey
from conf.files import write_private
from runtime.gateways.messages import TaskLog
from runtime.ids import JobID
from runtime.jobmaster.descriptor import TaskDeploymentDescriptor

LOGS = ("stdout", "stderr")
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
        write_private(directory / _DESCRIPTION, json.dumps(description).encode())
        return directory

    def upload_logs(self, job_id: JobID, blobs: BlobClient) -> list[TaskLog]:
        """Put the logs of all attempts of a job as TRANSIENT blobs; raises BlobError."""
        found = []
        for directory in (self._root / job_id).glob("*"):
            try:
                described = json.loads((directory / _DESCRIPTION).read_bytes())
            except FileNotFoundError:
                continue  # it is being made at this moment, or removed
            for name in LOGS:
                path = directory / name
                if path.exists():
                    key = blobs.put_file(path, TransientBlobKey)  # not the job's: its blobs go when it ends
                    log = TaskLog(job_id, described["task"], described["attempt"], name, path.stat().st_size, str(key))
                    found.append((described["began"], log))
        return [log for _, log in sorted(found, key=lambda item: item[0])]

    def expire(self, retention_s: float) -> None:
        """Remove the directories of jobs that nothing was written to for *retention_s* seconds."""
        for job in self._root.glob("*"):
            newest = max((path.stat().st_mtime for path in job.rglob("*")), default=job.stat().st_mtime)
            if time.time() - newest > retention_s:
                shutil.rmtree(job)

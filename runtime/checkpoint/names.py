"""Names of the directories of queries and savepoints, and ids that follow from requests."""

from __future__ import annotations

import hashlib
from pathlib import Path
from urllib.parse import quote

from runtime.ids import JobID

TASKS = "tasks"
"""Directory with those of the tasks, in the directory of a job's checkpoints."""


def directory_name(query_name: str) -> str:
    """Return the name of a query's directory, unique for each query name.

    It never begins with a dot and has no slash, so the directory is not hidden and stays inside its parent.
    """
    quoted = quote(query_name, safe="")
    return f"%2E{quoted[1:]}" if quoted.startswith(".") else quoted


def savepoint_name(job_id: str, trigger_id: str) -> str:
    """Return the name of a savepoint's directory, by which a JobMaster that knows the trigger id finds it again.

    It has a digest of both ids: clients may count theirs, which then differ in the last digits only. Release 0.1.0 used
    the first 12 digits of the trigger id, so a request that is repeated after an upgrade may make a second savepoint.
    """
    digest = hashlib.sha256(f"{job_id}/{trigger_id}".encode()).hexdigest()
    return f"savepoint-{job_id[:6]}-{digest[:12]}"


def change_lock(savepoint_dir: Path, job_id: str) -> Path:
    """Return the file that is locked while a process rescales or upgrades a job, so that no other one does.

    Args:
        savepoint_dir: the cluster's directory of savepoints.
        job_id: the job.
    """
    return savepoint_dir / ".upgrades" / f"{job_id}.lock"


def rescale_job_id(job_id: str, trigger_id: str) -> JobID:
    """Return the id of the job that rescales a job on a request, so that a repeated request starts no other one."""
    return JobID.from_name("rescale", job_id, trigger_id)

"""The exception tree of the cluster and its command line.

ClusterError
├── ClusterAlreadyRunning      a second ``start`` on the same runtime directory
├── ClusterNotRunning          a command for a cluster that is not there
├── RuntimeDirectoryError      the runtime directory cannot be made, is not ours, or holds what we cannot read
└── PreflightError             the machine lacks what a start needs

Every one has a ``remedy``: one line that says what to do about it.
"""

from __future__ import annotations

from concurrent.futures import CancelledError

from runtime.ids import JobID


class ClusterError(Exception):
    """Base of every error of the cluster and its command line.

    Args:
        message: what is wrong, on one line.
        remedy: what to do about it, on one line.
    """

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


class ClusterAlreadyRunning(ClusterError):
    """Another process runs a cluster in the same runtime directory."""


class ClusterNotRunning(ClusterError):
    """No cluster runs in the runtime directory."""


class RuntimeDirectoryError(ClusterError):
    """The runtime directory cannot be made, is not ours, or holds what we cannot read."""


class PreflightError(ClusterError):
    """The machine lacks what a start needs."""


class NotebookError(ClusterError):
    """Base of the errors of a client in Python; ``remedy`` says what to do, ``details`` is the user's own traceback."""

    def __init__(self, message: str, remedy: str, details: str = "") -> None:
        super().__init__(message, remedy)
        self.details = details


class JobFailedError(NotebookError):
    """A job whose result was asked for has failed, or was cancelled; ``job_id`` says which, where it has ended so.

    Where a function raised an exception that can be made again here, that is raised: ``function_error``, of which this
    error is the cause.
    """

    job_id: JobID | None = None
    function_error: Exception | None = None


class JobCancelledError(JobFailedError, CancelledError):
    """A job whose result was asked for was cancelled; a `concurrent.futures.CancelledError` too.

    It is no `asyncio.CancelledError`, by which a coroutine would seem to be cancelled that only awaits the job.
    """


class SavepointFailedError(NotebookError):
    """A checkpoint or savepoint could not be made, or a job was not stopped as it was asked to be."""

"""The exception tree of the cluster and its command line.

    ClusterError
    ├── ClusterAlreadyRunning      a second ``start`` on the same runtime directory
    ├── ClusterNotRunning          a command for a cluster that does not run
    ├── RuntimeDirectoryError      the runtime directory cannot be created or read, or belongs to another user
    └── PreflightError             the machine lacks something that a start needs

Every one has a ``remedy``: one line that tells the user what to do.
"""

from __future__ import annotations

from concurrent.futures import CancelledError

from runtime.ids import JobID


class ClusterError(Exception):
    """Base of every error of the cluster and its command line.

    Args:
        message: the problem, on one line.
        remedy: the action that solves it, on one line.
    """

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


class ClusterAlreadyRunning(ClusterError):
    """Another process runs a cluster in the same runtime directory."""


class ClusterNotRunning(ClusterError):
    """No cluster runs in the runtime directory."""


class RuntimeDirectoryError(ClusterError):
    """The runtime directory cannot be created or read, or belongs to another user."""


class PreflightError(ClusterError):
    """The machine lacks something that a start needs."""


class NotebookError(ClusterError):
    """Base of the errors of a Python client; ``remedy`` tells the user what to do, ``details`` is their traceback."""

    def __init__(self, message: str, remedy: str, details: str = "") -> None:
        super().__init__(message, remedy)
        self.details = details


class JobFailedError(NotebookError):
    """A job whose result was requested has failed or was cancelled, or its result was not kept.

    ``job_id`` is its id; None where it is unknown.

    If the job is a function whose exception can be rebuilt here, ``function_error`` is that exception. The client then
    raises it, with this error as its cause.
    """

    job_id: JobID | None = None
    function_error: Exception | None = None


class JobCancelledError(JobFailedError, CancelledError):
    """A job whose result was requested was cancelled; also a `concurrent.futures.CancelledError`.

    It is no `asyncio.CancelledError`, by which a coroutine that only awaits the job would seem to be cancelled itself.
    """


class SavepointFailedError(NotebookError):
    """A checkpoint or savepoint could not be made, or a job was not stopped as requested."""

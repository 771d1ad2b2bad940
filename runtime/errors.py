"""The exception tree of the cluster and its command line.

ClusterError
├── ClusterAlreadyRunning      a second ``start`` on the same runtime directory
├── ClusterNotRunning          a command for a cluster that is not there
├── RuntimeDirectoryError      the runtime directory cannot be made, is not ours, or holds what we cannot read
└── PreflightError             the machine lacks what a start needs

Every one has a ``remedy``: one line that says what to do about it.
"""

from __future__ import annotations

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
    """Base of them; it has a ``remedy`` as every `ClusterError`. ``details`` is the user's own traceback, or empty."""

    def __init__(self, message: str, remedy: str, details: str = "") -> None:
        super().__init__(message, remedy)
        self.details = details


class JobFailedError(NotebookError):
    """A job whose result was asked for has failed, or was cancelled; ``job_id`` says which, where it has ended so."""

    job_id: JobID | None = None


class SavepointFailedError(NotebookError):
    """A checkpoint or savepoint could not be made, or a job was not stopped as it was asked to be."""

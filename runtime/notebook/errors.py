"""The exceptions of the notebook's client.

NotebookError
├── JobFailedError         a job whose result was asked for has failed, or was cancelled
└── SavepointFailedError   a checkpoint or savepoint could not be made
"""

from __future__ import annotations

from runtime.environment.errors import ClusterError
from runtime.ids import JobID


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

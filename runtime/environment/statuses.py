"""HTTP statuses of the components' errors, by which the web endpoint answers and the audit log names outcomes."""

from __future__ import annotations

from actors.errors import ActorError
from actors.process.diagnostics import LogLevelError
from blob.errors import BlobError, BlobNotFound
from runtime.checkpoint.errors import CheckpointError
from runtime.jobgraph.errors import JobGraphError
from runtime.protocol.errors import (
    IdentitiesUnreachableError,
    IdentityRejectedError,
    JobAlreadyTerminatedError,
    JobIDRejectedError,
    JobNotFoundError,
    JobSubmissionError,
    NoSuchLogError,
    NoSuchTaskError,
    QueueRejectedError,
    RescaleInProgressError,
    SubmissionLimitError,
    TaskNotRespondingError,
    UnknownOperationError,
    UnknownTaskExecutorError,
)
from runtime.protocol.processes import UnknownProcessError

_STATUS: tuple[tuple[type[Exception], int], ...] = (
    (JobNotFoundError, 404),
    (UnknownTaskExecutorError, 404),
    (NoSuchLogError, 404),
    (NoSuchTaskError, 404),
    (TaskNotRespondingError, 503),
    (UnknownProcessError, 400),  # this and the next are named by parameters, not by the path
    (LogLevelError, 400),
    (BlobNotFound, 404),
    (UnknownOperationError, 404),
    (JobAlreadyTerminatedError, 409),
    (RescaleInProgressError, 409),
    (IdentitiesUnreachableError, 503),
    (IdentityRejectedError, 409),
    (CheckpointError, 409),
    (JobGraphError, 400),
    (SubmissionLimitError, 429),
    (QueueRejectedError, 400),
    (JobIDRejectedError, 403),
    (JobSubmissionError, 503),
    (BlobError, 503),
    (ActorError, 503),
)


def status_of(error: Exception) -> int:
    """Return the HTTP status of an error of a component; 500 for an unexpected one."""
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)

"""Errors of the REST API with their HTTP statuses, and the statuses of the components' errors (Flink's
`RestHandlerException`).

An error is answered as ``{"errors": ["one line"]}``: the thing, the cause and the remedy, never a stack trace.
"""

from __future__ import annotations

import json

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


class RestError(Exception):
    """A request that is answered with an error.

    Args:
        status: the HTTP status.
        message: one line for the client.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def status_of(error: Exception) -> int:
    """Return the HTTP status of an error; 500 for an unexpected one."""
    if isinstance(error, RestError):
        return error.status
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def retry_after(error: Exception) -> dict[str, str]:
    """Return the header that says when to submit again, for an error that knows it; else none."""
    seconds = error.retry_after_s if isinstance(error, SubmissionLimitError) else None
    return {} if seconds is None else {"retry-after": str(seconds)}


def error_body(message: str, *, kind: str | None = None) -> bytes:
    """Return the body of an answer that is an error.

    Args:
        message: for the client.
        kind: name of the error's type, for a client that raises the same error with the same message.
    """
    body: dict[str, object] = {"errors": [" ".join(message.split())]}
    return json.dumps(body if kind is None else {**body, "type": kind, "message": message}).encode()

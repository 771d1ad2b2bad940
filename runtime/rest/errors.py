"""Errors of the REST API with their HTTP statuses (Flink's `RestHandlerException`).

An error is answered as ``{"errors": ["one line"]}``: the thing, the cause and the remedy, never a stack trace.
"""

from __future__ import annotations

import json

from runtime.environment import statuses
from runtime.protocol.errors import SubmissionLimitError


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
    return statuses.status_of(error)


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

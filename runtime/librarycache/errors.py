"""Errors of the library cache."""

from __future__ import annotations

from actors.rpc.codec import wire_error


@wire_error
class LibraryCacheError(Exception):
    """A job's environment is not available."""


@wire_error
class LeaseConflictError(LibraryCacheError):
    """A job requests another environment than the one that it holds on this worker."""


class DirectoryNotPackedError(Exception):
    """A directory of the user cannot be packed for a job.

    Args:
        message: the cause, on one line.
        remedy: the remedy, on one line.
    """

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


@wire_error
class EnvironmentBuildError(LibraryCacheError):
    """A job's environment could not be built; the message names the cause and the remedy."""

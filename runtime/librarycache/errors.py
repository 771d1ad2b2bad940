"""Errors of the library cache."""

from __future__ import annotations

from actors.rpc.codec import wire_error


@wire_error
class LibraryCacheError(Exception):
    """A job's environment cannot be had."""


@wire_error
class LeaseConflictError(LibraryCacheError):
    """A job asks for another environment than the one that it holds on this worker."""


@wire_error
class EnvironmentBuildError(LibraryCacheError):
    """A job's environment could not be built; the message carries the reason and what to do."""

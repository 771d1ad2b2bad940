"""The exception tree of checkpoints and savepoints.

CheckpointError
├── SnapshotError              a snapshot cannot be taken, is not whole, or cannot be put back
│   └── SnapshotLostError      what it needs is gone: no repetition helps
└── SavepointError             a directory is no savepoint, or not one that can be used
"""

from __future__ import annotations

from actors.rpc.codec import wire_error
from runtime.errors import ClusterError


@wire_error
class CheckpointError(ClusterError):
    """Base of the errors of checkpoints and savepoints.

    Args:
        message: what is wrong, on one line.
        remedy: what to do about it, on one line; empty where the message says it.
    """

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message, remedy)


@wire_error
class SnapshotError(CheckpointError):
    """A snapshot cannot be taken, is not whole, or cannot be put back."""


@wire_error
class SnapshotLostError(SnapshotError):
    """What a snapshot needs is gone: no repetition helps."""


@wire_error
class SavepointError(CheckpointError):
    """A directory is no savepoint, or not one that can be used."""

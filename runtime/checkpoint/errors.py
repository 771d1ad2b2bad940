"""The exception tree of checkpoints and savepoints.

All of them are `ClusterError`, and RPC carries them unchanged:

    CheckpointError
    ├── SnapshotError              a snapshot cannot be taken, is not whole, or cannot be restored
    │   └── SnapshotLostError      files of a snapshot are missing or damaged: a retry does not help
    └── SavepointError             a directory is not a savepoint, or not one that can be used
        └── RemoteStorageError     a remote file system does not answer, or refuses
"""

from __future__ import annotations

from actors.rpc.codec import wire_error
from runtime.errors import ClusterError


@wire_error
class CheckpointError(ClusterError):
    """Base of the errors of checkpoints and savepoints.

    Args:
        message: the problem, on one line.
        remedy: the advice to users, on one line; empty if the message contains it.
    """

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message, remedy)


@wire_error
class SnapshotError(CheckpointError):
    """A snapshot cannot be taken, is not whole, or cannot be restored."""


@wire_error
class SnapshotLostError(SnapshotError):
    """Files that a snapshot needs are missing or damaged: a retry does not help."""


@wire_error
class SavepointError(CheckpointError):
    """A directory is not a savepoint, or not one that can be used."""


@wire_error
class RemoteStorageError(SavepointError):
    """A remote file system does not answer, or refuses; a retry may help."""


@wire_error
class MisalignedError(CheckpointError):
    """Snapshots of queries in several tasks do not fit together: one task was faster than another."""

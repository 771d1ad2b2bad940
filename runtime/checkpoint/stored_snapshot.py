"""A snapshot as it is kept: a directory that is there when it is whole, and not before.

It has ``checkpoint/`` (as the checkpointLocation), ``sink/`` (the file sink's log) and ``snapshot.json``.
"""

from __future__ import annotations

import json
from pathlib import Path

from actors.errors import WireError
from actors.rpc.codec import from_plain
from runtime.checkpoint.errors import SnapshotError, SnapshotLostError
from runtime.checkpoint.files import list_files, list_names, remove_tree
from runtime.checkpoint.layout import BatchFiles, files_of_batch, sink_files
from runtime.checkpoint.metadata_log import IncompleteError
from runtime.checkpoint.model import QuerySnapshot

CHECKPOINT = "checkpoint"
SINK = "sink"
DESCRIPTION = "snapshot.json"


def load_snapshot(path: Path) -> QuerySnapshot:
    """The snapshot in a directory.

    Raises:
        SnapshotLostError: there is none.
    """
    try:
        snapshot: QuerySnapshot = from_plain(json.loads((path / DESCRIPTION).read_bytes()), QuerySnapshot)
    except OSError as error:
        raise SnapshotLostError(f"there is no snapshot in {path}: {error.strerror}") from error
    except (ValueError, WireError) as error:
        raise SnapshotLostError(f"the snapshot in {path} is damaged: {error}") from error
    return snapshot


def check_snapshot(snapshot: QuerySnapshot) -> BatchFiles:
    """See that a snapshot is whole, as far as names tell; return its files.

    Raises:
        SnapshotLostError: it is not.
    """
    root = Path(snapshot.path)
    try:
        checkpoint = root / CHECKPOINT
        batch = files_of_batch(list_files(checkpoint), snapshot.batch_id, lambda path: (checkpoint / path).read_bytes())
        if snapshot.sink is not None:
            sink_files(list_names(root / SINK), snapshot.batch_id)
    except (IncompleteError, OSError) as error:
        raise SnapshotLostError(f"the snapshot of query {snapshot.name!r} in {root} is not whole: {error}") from error
    return batch


def discard_snapshot(snapshot: QuerySnapshot) -> None:
    """Remove a snapshot; one that is not there, or only partly, is fine.

    Raises:
        SnapshotError: it cannot be removed.
    """
    target = Path(snapshot.path)
    part = part_of(target)
    try:
        remove_tree(part)
        if target.exists():
            target.rename(part)  # so that half of it is never taken for a snapshot
            remove_tree(part)
    except OSError as error:
        raise SnapshotError(f"the snapshot in {target} cannot be removed: {error}") from error


def part_of(target: Path) -> Path:
    """Where a snapshot is made before it gets its name, and what it is renamed to before it is removed."""
    return target.with_name(f".{target.name}.part")

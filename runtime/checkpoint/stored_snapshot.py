"""Stored snapshots: directories, which have their final name only when they are complete.

A snapshot has ``checkpoint/`` (as the checkpointLocation), ``sink/`` (the file sink's log), ``files.json`` (sizes and
digests of these files) and ``snapshot.json`` (a `QuerySnapshot`).
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

from actors.errors import WireError
from actors.rpc.codec import from_plain
from conf.files import remove_tree
from runtime.checkpoint.errors import SnapshotError, SnapshotLostError
from runtime.checkpoint.files import list_names, list_sizes, read_checked, record_files
from runtime.checkpoint.integrity import FileRecord, check_sizes, decode_records
from runtime.checkpoint.layout import BatchFiles, files_of_batch, sink_files
from runtime.checkpoint.metadata_log import IncompleteError
from runtime.protocol.query_snapshot import QuerySnapshot

CHECKPOINT = "checkpoint"
SINK = "sink"
DESCRIPTION = "snapshot.json"
FILES = "files.json"


def load_snapshot(path: Path) -> QuerySnapshot:
    """Return the snapshot in a directory.

    Raises:
        SnapshotLostError: there is none, or its description is damaged.
    """
    try:
        snapshot: QuerySnapshot = from_plain(json.loads((path / DESCRIPTION).read_bytes()), QuerySnapshot)
    except OSError as error:
        raise SnapshotLostError(f"there is no snapshot in {path}: {error.strerror}") from error
    except (ValueError, WireError) as error:
        raise SnapshotLostError(f"the snapshot in {path} is damaged: {error}") from error
    return snapshot


def read_records(snapshot: QuerySnapshot) -> dict[str, FileRecord]:
    """Return the records of a snapshot's files by their paths below it; none if it has no list of files.

    Raises:
        IncompleteError: the list is damaged.
        OSError: it cannot be read.
    """
    return decode_records((Path(snapshot.path) / FILES).read_bytes(), snapshot.digest) if snapshot.digest else {}


def check_snapshot(snapshot: QuerySnapshot, *, contents: bool = True) -> BatchFiles:
    """Check that a snapshot is whole, and return its files.

    Args:
        snapshot: the snapshot.
        contents: whether to read all files and compare them with their digests and with Hadoop's checksums. Without,
            only names and sizes are checked, and the few files that name others are read.

    Raises:
        SnapshotLostError: it is not whole.
    """
    root = Path(snapshot.path)
    checkpoint = root / CHECKPOINT
    try:
        records = read_records(snapshot)
        check_sizes(records, list_sizes(root))
        batch = files_of_batch(list_sizes(checkpoint), snapshot.batch_id, partial(read_checked, checkpoint))
        log = () if snapshot.sink is None else sink_files(list_names(root / SINK), snapshot.batch_id)
        if contents:
            names = [*(f"{CHECKPOINT}/{name}" for name in batch.files), *(f"{SINK}/{name}" for name in log)]
            for name, now in record_files(root, records or names).items():
                if records and records[name].sha256 != now.sha256:
                    raise IncompleteError(f"{name} is damaged: its digest is another one")
    except (IncompleteError, OSError) as error:
        raise SnapshotLostError(f"the snapshot of query {snapshot.name!r} in {root} is not whole: {error}") from error
    return batch


def discard_snapshot(snapshot: QuerySnapshot) -> None:
    """Remove a snapshot, also one that is removed in part; do nothing if there is none.

    Raises:
        SnapshotError: it cannot be removed.
    """
    target = Path(snapshot.path)
    part = part_of(target)
    try:
        remove_tree(part)
        if target.exists():
            target.rename(part)  # so that a half-removed one is never found
            remove_tree(part)
    except OSError as error:
        raise SnapshotError(f"the snapshot in {target} cannot be removed: {error}") from error


def part_of(target: Path) -> Path:
    """Return the path of an incomplete snapshot: before it gets its final name, and while it is removed."""
    return target.with_name(f".{target.name}.part")

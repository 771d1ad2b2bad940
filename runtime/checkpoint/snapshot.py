"""Snapshots of streaming queries, taken while they run.

The files of a committed batch are immutable and stay for ``spark.sql.streaming.minBatchesToRetain`` batches, so a
snapshot is: look what the last commit is, choose what its batch needs (`runtime.checkpoint.layout`), link that. The
query is neither asked nor stopped. What Spark purged meanwhile means that a newer batch is there: choose anew.

Since hard links are counted by the file system, a file of several snapshots is stored once, and goes with the last of
them (Flink's ``SharedStateRegistry``, without a registry).

All functions block.
"""

from __future__ import annotations

import json
from pathlib import Path

from actors.rpc.codec import to_plain
from conf.files import write_private
from runtime.checkpoint.description import QueryDescription, describe
from runtime.checkpoint.errors import SnapshotError
from runtime.checkpoint.files import list_files, list_names, make_private, remove_tree, take_files
from runtime.checkpoint.layout import SINK_LOG, BatchFiles, files_of_batch, last_commit, sink_files
from runtime.checkpoint.metadata_log import IncompleteError
from runtime.checkpoint.model import NOTHING_COMMITTED, QueryLocation, QuerySnapshot
from runtime.checkpoint.restore import finish_restore, restore_snapshot
from runtime.checkpoint.stored_snapshot import CHECKPOINT, DESCRIPTION, SINK, discard_snapshot, load_snapshot, part_of

__all__ = [
    "describe_query",
    "discard_snapshot",
    "finish_restore",
    "inspect_location",
    "load_snapshot",
    "restore_snapshot",
    "take_snapshot",
]

_ATTEMPTS = 10
"""How often a snapshot is begun anew because files that it needs went away; each begins at a newer commit."""


def take_snapshot(query: QueryLocation, target: Path, previous: QuerySnapshot | None = None) -> QuerySnapshot:
    """Take a snapshot of the last batch that a query has committed.

    Args:
        query: the query, running or not.
        target: directory that is made; if it holds a snapshot of the query already, that is returned.
        previous: an earlier snapshot of the query: where links to the query's files cannot be had, what is in both is
            linked from there. It may be gone by now.

    Raises:
        SnapshotError: the files of no committed batch are whole, or something cannot be read or written. Nothing is
            left behind at *target*.
    """
    if target.exists():
        snapshot = load_snapshot(target)
        if snapshot.name != query.name:
            raise SnapshotError(f"{target} holds a snapshot of query {snapshot.name!r}, not of {query.name!r}")
        return snapshot
    part = part_of(target)
    try:
        for attempt in range(1, _ATTEMPTS + 1):
            remove_tree(part)
            make_private(part)
            try:
                snapshot = _take(query, part, target, Path(previous.path) if previous else None)
                break
            except (IncompleteError, FileNotFoundError) as error:
                if attempt == _ATTEMPTS:
                    raise SnapshotError(f"no snapshot of query {query.name!r} at {query.location}: {error}") from error
        write_private(part / DESCRIPTION, json.dumps(to_plain(snapshot), indent=1).encode())
        part.rename(target)
    except OSError as error:
        raise SnapshotError(f"no snapshot of query {query.name!r} at {query.location}: {error}") from error
    finally:
        remove_tree(part)
    return snapshot


def inspect_location(query: QueryLocation) -> int:
    """See that a query could go on from its own files as they are; return the last batch that it has committed.

    Raises:
        SnapshotError: they are damaged, or not all there.
    """
    try:
        batch = _choose(query)
        if query.sink is not None:
            sink_files(list_names(Path(query.sink) / SINK_LOG), batch.batch_id)
    except (IncompleteError, OSError) as error:
        raise SnapshotError(f"query {query.name!r} cannot go on from {query.location}: {error}") from error
    return batch.batch_id


def describe_query(query: QueryLocation) -> QueryDescription:
    """What the state of a query is, from its own files.

    Raises:
        SnapshotError: they are damaged, or not all there.
    """
    try:
        return describe(query.name, _choose(query), lambda path: (Path(query.location) / path).read_bytes())
    except (IncompleteError, OSError) as error:
        raise SnapshotError(f"what query {query.name!r} at {query.location} is cannot be told: {error}") from error


def _choose(query: QueryLocation) -> BatchFiles:
    """The files of the last committed batch."""
    location = Path(query.location)
    # The commits are looked at before all else: what the last of them needs was there before it.
    batch_id = last_commit(f"commits/{name}" for name in list_names(location / "commits"))
    listing = list_files(location) if location.exists() else []
    return files_of_batch(listing, batch_id, lambda path: (location / path).read_bytes())


def _take(query: QueryLocation, part: Path, target: Path, previous: Path | None) -> QuerySnapshot:
    location = Path(query.location)
    batch = _choose(query)
    make_private(part / CHECKPOINT)
    taken = take_files(location, batch.files, part / CHECKPOINT, previous / CHECKPOINT if previous else None)
    if query.sink is not None:
        log = Path(query.sink) / SINK_LOG
        names = () if batch.batch_id == NOTHING_COMMITTED else sink_files(list_names(log), batch.batch_id)
        make_private(part / SINK)
        more = take_files(log, names, part / SINK, previous / SINK if previous else None)
        taken.files += more.files
        taken.bytes += more.bytes
        taken.new_bytes += more.new_bytes
    return QuerySnapshot(
        name=query.name,
        query_id=batch.query_id,
        location=query.location,
        sink=query.sink,
        path=str(target),
        batch_id=batch.batch_id,
        offsets=[offset or "-" for offset in batch.offsets.sources],
        files=taken.files,
        bytes=taken.bytes,
        new_bytes=taken.new_bytes,
    )

"""Snapshots of streaming queries, taken while they run.

The files of a committed batch are immutable, and Spark keeps them for ``spark.sql.streaming.minBatchesToRetain``
batches. So a snapshot needs neither a request to the query nor a pause:

1. Find the last commit.
2. Choose the files that its batch needs (`runtime.checkpoint.layout`).
3. Link them. If Spark has purged one of them, there is a newer batch: start again.
4. Read the new ones, and compare them with their checksums. Damaged files make the snapshot fail.

The file system counts hard links. So a file of several snapshots is stored once, and is removed with the last of them
(Flink's ``SharedStateRegistry``, without a registry).

The files of a remote location, and of a remote sink's log, are fetched first (`runtime.checkpoint.remote_location`).

All functions block.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

from actors.rpc.codec import to_plain
from conf.files import make_private, remove_tree, rename_durably, sync_directory, sync_names, write_private
from runtime.checkpoint.description import QueryDescription, describe
from runtime.checkpoint.errors import SnapshotError
from runtime.checkpoint.files import (
    list_names,
    list_sizes,
    read_checked,
    record_files,
    take_files,
)
from runtime.checkpoint.integrity import FileRecord, check_unchanged, encode_records, never_rewritten
from runtime.checkpoint.layout import (
    SINK_LOG,
    BatchFiles,
    files_of_batch,
    files_of_restart,
    last_commit,
    sink_files,
)
from runtime.checkpoint.metadata_log import IncompleteError, compacted, entries, last_entry
from runtime.checkpoint.remote_files import RemoteDirectory, is_remote
from runtime.checkpoint.remote_location import RemoteLocation
from runtime.checkpoint.restore import finish_restore, restore_snapshot
from runtime.checkpoint.sink_log import RemoteSink, files_in_log, log_names
from runtime.checkpoint.stored_snapshot import (
    CHECKPOINT,
    DESCRIPTION,
    FILES,
    SINK,
    discard_snapshot,
    load_snapshot,
    part_of,
    read_records,
)
from runtime.protocol.query_snapshot import NOTHING_COMMITTED, QueryLocation, QuerySnapshot

__all__ = [
    "committed_batch",
    "describe_query",
    "discard_snapshot",
    "finish_restore",
    "inspect_location",
    "load_snapshot",
    "restore_snapshot",
    "take_snapshot",
]

_FETCHED = "fetched"
"""Directory below an incomplete snapshot with files of a remote location, or of a remote sink's log."""

_ATTEMPTS = 10
"""How often a snapshot is tried when files that it needs disappear; each attempt takes the newest commit."""


def take_snapshot(
    query: QueryLocation,
    target: Path,
    previous: QuerySnapshot | None = None,
    *,
    loaded: int = NOTHING_COMMITTED,
    below: Path | None = None,
) -> QuerySnapshot:
    """Take a snapshot of the last batch that a query has committed.

    Args:
        query: the query, running or not.
        target: directory that is created, and synced to disk with all its files. If it already holds a snapshot of the
            query, that is returned.
        previous: an earlier snapshot of the query, which may have been removed. Files that both have must be the same.
            They are read again only if size or time of change differ. They are linked from there if the query's own
            files cannot be linked.
        loaded: the batch from which the query's run started; see `QuerySnapshot.is_proven`.
        below: a parent of *target* that has to exist, and is not made again if another process removes it.

    Raises:
        SnapshotError: no committed batch has all its files undamaged, or a file cannot be read or written. Nothing is
            left behind at *target*.
        SavepointError: the file system of a remote location or sink cannot be reached.
    """
    if target.exists():
        snapshot = load_snapshot(target)
        if snapshot.name != query.name:
            raise SnapshotError(f"{target} holds a snapshot of query {snapshot.name!r}, not of {query.name!r}")
        try:
            sync_names(target)  # the process that has taken it may have been lost before it has synced that
        except OSError as error:
            raise SnapshotError(f"the snapshot {target} may not be on the disk: {error}") from error
        return snapshot
    part = part_of(target)
    try:
        for attempt in range(1, _ATTEMPTS + 1):
            remove_tree(part)
            make_private(part, below=below)
            try:
                snapshot = _take(query, part, target, previous, loaded)
                break
            except (IncompleteError, FileNotFoundError) as error:
                if attempt == _ATTEMPTS:
                    raise SnapshotError(f"no snapshot of query {query.name!r} at {query.location}: {error}") from error
        write_private(part / DESCRIPTION, json.dumps(to_plain(snapshot), indent=1).encode())
        rename_durably(part, target)
    except OSError as error:
        raise SnapshotError(f"no snapshot of query {query.name!r} at {query.location}: {error}") from error
    finally:
        remove_tree(part)
    return snapshot


def inspect_location(query: QueryLocation, previous: QuerySnapshot | None = None) -> int:
    """Check that a query can continue from its own files; return the last batch that it has committed.

    This reads all files that Spark reads when the query starts, if they are local.

    Args:
        query: the query, which does not run.
        previous: a snapshot of it; files that both have are compared. If it was taken before the first commit, and
            there is still none, its files must be there: a lost location is not the same as no batch.

    Raises:
        SnapshotError: a file is damaged or missing.
        SavepointError: the file system of a remote location or sink cannot be reached.
    """
    location, before = Path(query.location), _records_of(previous, query)
    try:
        names = None if query.sink is None else log_names(query.sink)
        if is_remote(query.location):
            own = {name.removeprefix(f"{CHECKPOINT}/"): record for name, record in never_rewritten(before).items()}
            batch_id = RemoteLocation(query.location).restart_batch(names, _begun(previous), own)
        else:
            listing = list_sizes(location) if location.exists() else {}
            batch = files_of_restart(listing, names, partial(read_checked, location), begun=_begun(previous))
            _compare(CHECKPOINT, record_files(location, batch.files), before)
            batch_id = batch.batch_id
        if query.sink is not None and names is not None:
            # The log may have an entry of a batch that was planned but not committed.
            entries = sink_files(names, max(batch_id, last_entry(names)))
            if not is_remote(query.sink):
                _compare(SINK, record_files(Path(query.sink) / SINK_LOG, entries), before)
    except (IncompleteError, OSError) as error:
        raise SnapshotError(f"query {query.name!r} cannot continue from {query.location}: {error}") from error
    return batch_id


def committed_batch(query: QueryLocation) -> int:
    """Return the last batch that a query has committed; `NOTHING_COMMITTED` if there is none.

    Raises:
        SavepointError: the file system of a remote location cannot be reached.
    """
    if is_remote(query.location):
        return RemoteLocation(query.location).committed_batch()
    return last_commit(f"commits/{name}" for name in list_names(Path(query.location) / "commits"))


def live_batches(location: str) -> tuple[int, int]:
    """Return the last planned and the last committed batch at a checkpointLocation; `NOTHING_COMMITTED` for none.

    Raises:
        SavepointError: the file system of a remote location cannot be reached.
    """
    names = _remote_names if is_remote(location) else _local_names
    planned = max(entries(names(location, "offsets")), default=NOTHING_COMMITTED)
    return planned, last_commit(f"commits/{name}" for name in names(location, "commits"))


def _local_names(location: str, log: str) -> list[str]:
    return list_names(Path(location) / log)


def _remote_names(location: str, log: str) -> list[str]:
    return list(RemoteDirectory(f"{location}/{log}").files())


def describe_query(query: QueryLocation) -> QueryDescription:
    """Return the description of a query's state, from its own files.

    Raises:
        SnapshotError: a file is damaged or missing.
    """
    location = Path(query.location)
    try:
        if is_remote(query.location):
            remote = RemoteLocation(query.location)
            return describe(query.name, remote.last_batch()[0], remote.read)
        return describe(query.name, _choose(location), lambda path: (location / path).read_bytes())
    except (IncompleteError, OSError) as error:
        raise SnapshotError(f"the state of query {query.name!r} at {query.location} cannot be read: {error}") from error


def _choose(location: Path) -> BatchFiles:
    """Return the files of the last committed batch."""
    # Read the commits first: Spark writes the files that a commit needs before the commit.
    batch_id = last_commit(f"commits/{name}" for name in list_names(location / "commits"))
    listing = list_sizes(location) if location.exists() else {}
    return files_of_batch(listing, batch_id, partial(read_checked, location))


def _take(query: QueryLocation, part: Path, target: Path, previous: QuerySnapshot | None, loaded: int) -> QuerySnapshot:
    location, older = Path(query.location), Path(previous.path) if previous else None
    known = _records_of(previous, query)
    if is_remote(query.location):
        location = part / _FETCHED
        RemoteLocation(query.location).fetch(location, older / CHECKPOINT if older and known else None)
    batch = _choose(location)
    make_private(part / CHECKPOINT, below=part)
    taken = take_files(location, batch.files, part / CHECKPOINT, older / CHECKPOINT if older else None)
    if is_remote(query.location):
        remove_tree(location)  # its files have their other names now
    records = _recorded(CHECKPOINT, part, batch.files, known)
    if query.sink is not None:
        log, found = Path(query.sink) / SINK_LOG, log_names(query.sink)
        if batch.batch_id == NOTHING_COMMITTED:
            _check_not_foreign(found, query)
        names = () if batch.batch_id == NOTHING_COMMITTED else sink_files(found, batch.batch_id)
        if is_remote(query.sink):
            log = part / _FETCHED
            RemoteSink(query.sink).fetch(names, log, older / SINK if older and known else None)
        make_private(part / SINK, below=part)
        more = take_files(log, names, part / SINK, older / SINK if older else None)
        if is_remote(query.sink):
            remove_tree(log)
        records |= _recorded(SINK, part, names, known)
        new = [name for name in names if f"{SINK}/{name}" not in known]
        if not is_remote(query.sink):
            _sync_rows(part / SINK, new, Path(query.sink), None if older is None else older / SINK)
        taken.files += more.files
        taken.bytes += more.bytes
        taken.new_bytes += more.new_bytes
    content = encode_records(records)
    write_private(part / FILES, content)
    digest = hashlib.sha256(content).hexdigest()
    is_same = previous is not None and previous.digest == digest
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
        digest=digest,
        is_proven=batch.batch_id == NOTHING_COMMITTED
        or batch.batch_id > loaded
        or (is_same and previous is not None and previous.is_proven),
    )


def _check_not_foreign(log: Iterable[str], query: QueryLocation) -> None:
    """Check that a query without a commit has planned the batches in its sink's log; a restore would remove them.

    Otherwise Spark may write the query's files elsewhere, or another query wrote the log.

    Raises:
        IncompleteError: the log has batches that were not planned in this location.
    """
    written = last_entry(log)
    planned = NOTHING_COMMITTED
    if written > planned and not is_remote(query.location):
        planned = last_entry(list_names(Path(query.location) / "offsets"))
    if written > planned:
        raise IncompleteError(f"it has no batch, but the log of its file sink {query.sink} has batch {written}")


def _records_of(snapshot: QuerySnapshot | None, query: QueryLocation) -> dict[str, FileRecord]:
    """Return an earlier snapshot's records of a query's files; none if it was removed, or is of another location."""
    if snapshot is None or (snapshot.location, snapshot.sink) != (query.location, query.sink):
        return {}
    try:
        return read_records(snapshot)
    except (IncompleteError, OSError):
        return {}  # then all files are read again, and compared with their checksums alone


def _begun(snapshot: QuerySnapshot | None) -> list[str]:
    """Return the files of a snapshot's checkpointLocation, if it was taken before the first commit; otherwise none.

    Their checksums are left out: remote locations have none.
    """
    if snapshot is None or snapshot.batch_id != NOTHING_COMMITTED:
        return []
    try:
        names = read_records(snapshot)
    except (IncompleteError, OSError):
        return []  # nothing could be restored from it either
    place = f"{CHECKPOINT}/"
    return [name.removeprefix(place) for name in names if name.startswith(place) and not name.endswith(".crc")]


def _recorded(place: str, part: Path, names: Iterable[str], known: Mapping[str, FileRecord]) -> dict[str, FileRecord]:
    """Return records of the files that were taken; read the new ones, and sync them to disk."""
    before = {name: record for name in names if (record := known.get(f"{place}/{name}")) is not None}
    found = record_files(part / place, names, before, durable=True)
    return _compare(place, found, known)


def _sync_rows(log: Path, new: Iterable[str], sink: Path, older: Path | None) -> None:
    """Sync the files that new entries of a sink's log name, and their names: Spark does not.

    Otherwise a loss of power could leave a complete checkpoint whose rows are lost.

    Args:
        log: directory of the log in the snapshot.
        new: names of its files that the previous snapshot does not have.
        sink: directory of the file sink.
        older: directory of the log in the previous snapshot, which has synced the files of its entries.

    Raises:
        IncompleteError: an entry is damaged.
        OSError: a file cannot be synced.
    """
    names = [name for name in new if not name.endswith(".crc")]
    try:
        written = files_in_log((log / name).read_bytes() for name in names)
        if older is not None and compacted(names):
            written -= files_in_log((older / name).read_bytes() for name in list_names(older) if name.isdigit())
            written -= files_in_log((older / name).read_bytes() for name in compacted(list_names(older)).values())
    except ValueError as error:
        raise IncompleteError(f"the log of the file sink is damaged: {error}") from error
    paths = [Path(place) for place in sorted(written) if not is_remote(place)]
    directories = {parent for path in paths for parent in path.parents if parent.is_relative_to(sink)}
    for path in paths:
        # Users may remove rows, or own them.
        with contextlib.suppress(FileNotFoundError, PermissionError), path.open("rb") as file:
            os.fsync(file.fileno())
    for directory in sorted(directories):
        with contextlib.suppress(FileNotFoundError, PermissionError):
            sync_directory(directory)
    if paths:
        sync_names(sink)


def _compare(place: str, found: Mapping[str, FileRecord], known: Mapping[str, FileRecord]) -> dict[str, FileRecord]:
    """Check that files have not changed; return their records by their paths below a snapshot."""
    for name, now in found.items():
        check_unchanged(f"{place}/{name}", now, known.get(f"{place}/{name}"))
    return {f"{place}/{name}": record for name, record in found.items()}

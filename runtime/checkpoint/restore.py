"""Restores a snapshot: a query continues from it, in its own location (a rollback) or in another one.

Two directories change: the checkpointLocation and the file sink's log. A process may be killed at any moment, so a
restore has three phases, which a journal records:

1. Both directories are prepared beside the live ones. A restore that is interrupted here has changed nothing.
2. They are exchanged, the location first. From here on the snapshot is not needed any more. `finish_restore` completes
   a restore that is interrupted here or later; it runs before each start of a query. If the location cannot be moved,
   because it is a mount point, nothing has changed yet, and the restore is given up.
3. The former directories are removed, and the journal last.

Files:

    <parent>/.<location>.restore/      journal.json, location/ (prepared), old-<n>/ (former)
    <sink>/_understudy_restore/        log/ (prepared), old-<n>/ (former)

The log of a sink in a remote file system is prepared in ``.<location>.restore/log/``. Such a file system has no rename
of whole directories. So the exchange changes the log file by file (`runtime.checkpoint.sink_log`), and is repeated
after an interruption.

If the location is a symbolic link, its target is replaced, and these files are beside the target, as the lease is.

No query may run on the location during a restore. All functions block. A remote location has no such journal; see
`runtime.checkpoint.remote_location`.
"""

from __future__ import annotations

import errno
import json
import os
import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from conf.files import make_private, remove_tree, rename_durably, sync_directories, write_private
from runtime.checkpoint.errors import SnapshotError
from runtime.checkpoint.files import list_files, list_names, path_of, take_files
from runtime.checkpoint.layout import SINK_LOG, foreign_names, last_commit, sink_files
from runtime.checkpoint.metadata_log import compacted, last_entry, merged, opens
from runtime.checkpoint.remote_files import is_remote
from runtime.checkpoint.remote_location import RemoteLocation, foreign_error
from runtime.checkpoint.sink_log import (
    SINK_WORKSPACE,
    RemoteSink,
    SinkFiles,
    abandoned_files,
    check_named_files,
    relocated,
    sink_of,
)
from runtime.checkpoint.stored_snapshot import CHECKPOINT, SINK, check_snapshot
from runtime.protocol.query_snapshot import NOTHING_COMMITTED, QuerySnapshot

_JOURNAL = "journal.json"

_PREPARING = "preparing"  # nothing has changed
_EXCHANGING = "exchanging"  # all is prepared, and one or both directories may be exchanged
_REMOVING = "removing"  # both are exchanged, and the former directories remain to be removed


@dataclass(frozen=True, slots=True)
class _Journal:
    """A restore that is to be finished.

    Args:
        batch_id: the batch that is restored.
        sink: the sink's directory or URL, if its log is exchanged.
        phase: how far the restore is.
    """

    batch_id: int
    sink: str | None
    phase: str = _PREPARING


def restore_snapshot(
    snapshot: QuerySnapshot, location: Path, sink: Path | str | None, *, new_query_id: bool = False, copy: bool = False
) -> None:
    """Restore a snapshot into a checkpointLocation, and set the file sink's log back to the same batch.

    Both are replaced as a whole. Files of the sink that only later batches named are removed. After an interruption
    call this or `finish_restore` again.

    Args:
        snapshot: the snapshot to restore.
        location: the checkpointLocation from now on.
        sink: directory or URL of the file sink from now on; None if there is none, and then no sink is changed. If it
            differs from the one of the snapshot, the log names files that were moved along by their new path.
        new_query_id: whether the query gets a new id. With the old one, sinks that remember batches by query and batch
            skip those that they have; with a new one they write them again.
        copy: whether all files are copied, so that the location shares no file with the snapshot.

    Raises:
        SnapshotLostError: the snapshot is not whole, or files are missing in the sink that its log names. A rollback to
            an earlier batch removes such files, for example. Nothing was changed.
        SnapshotError: a file cannot be read or written; or the location is a mount point, or holds the file sink or
            files that are not Spark's. Nothing was changed.
        SavepointError: the file system of a remote sink cannot be reached. `finish_restore` may complete the restore.
    """
    finish_restore(location)
    files = check_snapshot(snapshot).files
    place = None if sink is None or snapshot.sink is None else sink_of(str(sink))
    workspace = _workspace_of(location.resolve())
    try:
        _check_place(snapshot, location.resolve(), sink, files)
        if place is not None:
            check_sink(snapshot, place)
        journal = _Journal(snapshot.batch_id, place)
        make_private(workspace / "location", durable=True)
        _write(workspace, journal)
        take_files(Path(snapshot.path) / CHECKPOINT, files, workspace / "location", copy=copy)
        _adapt(workspace / "location", files, f"file:{location}", new_query_id=new_query_id)
        if place is not None:
            _prepare_sink(snapshot, place, workspace, copy=copy)
        sync_directories(workspace)
        _write(workspace, replace(journal, phase=_EXCHANGING))  # all prepared files are on the disk
    except OSError as error:
        raise SnapshotError(f"query {snapshot.name!r} cannot be restored to {location}: {error}") from error
    finish_restore(location)


def restore_to_url(
    snapshot: QuerySnapshot,
    url: str,
    sink: Path | str | None,
    work: Path,
    *,
    new_query_id: bool = False,
    copy: bool = False,
) -> None:
    """Restore a snapshot into a checkpointLocation in a remote file system, as `restore_snapshot` does.

    After an interruption no query starts there until a restore has completed; it may be of another snapshot.

    Args:
        snapshot: the snapshot to restore.
        url: the checkpointLocation from now on.
        sink: directory or URL of the file sink from now on; None if there is none.
        work: a directory that is made for the prepared files, and removed.
        new_query_id: as in `restore_snapshot`.
        copy: whether the sink's log shares no file with the snapshot.

    Raises:
        SnapshotLostError: as `restore_snapshot`. Nothing was changed.
        SnapshotError: as `restore_snapshot`, or the location is a whole bucket.
        SavepointError: the remote file system cannot be reached.
    """
    files = [name for name in check_snapshot(snapshot).files if not name.endswith(".crc")]  # only local ones have these
    location, place = RemoteLocation(url), None if sink is None or snapshot.sink is None else sink_of(str(sink))
    stage = work / "location"
    try:
        if place is not None:
            check_sink(snapshot, place)
        remove_tree(work)
        make_private(stage)
        take_files(Path(snapshot.path) / CHECKPOINT, files, stage)
        _adapt(stage, files, location.url, new_query_id=new_query_id)
        location.replace(snapshot.name, stage, list_files(stage))
        if place is not None:
            _prepare_sink(snapshot, place, work, copy=copy)
            _exchange_log(place, work)
            _sweep(place, snapshot.batch_id)
        location.complete()
    except OSError as error:
        raise SnapshotError(f"query {snapshot.name!r} cannot be restored to {location.url}: {error}") from error
    finally:
        remove_tree(work)


def finish_restore(location: Path) -> bool:
    """Finish a restore that was interrupted; call it before a query starts on a location.

    Returns:
        whether there was one that had begun to exchange directories. One that had only prepared them is given up.

    Raises:
        SnapshotError: a file cannot be read or written.
        SavepointError: the file system of a remote sink cannot be reached.
    """
    location = location.resolve()
    workspace = _workspace_of(location)
    if not workspace.exists():
        return False
    try:
        journal = _read(workspace)
        if journal is not None:
            if journal.phase == _EXCHANGING:
                try:
                    _exchange(workspace, journal, location)
                except OSError as error:
                    if error.errno != errno.EBUSY or not _is_unchanged(workspace, journal, location):
                        raise
                    journal = replace(journal, phase=_PREPARING)
                    _write(workspace, journal)
                    _remove(workspace, journal)
                    remove_tree(workspace)
                    raise _mounted(location) from error
            _remove(workspace, journal)
        remove_tree(workspace)
    except OSError as error:
        raise SnapshotError(f"the restore of {location} cannot be finished: {error}") from error
    return journal is not None and journal.phase != _PREPARING


def batch_to_start_from(location: Path) -> int | None:
    """Return the last batch that is committed at a location, also while a restore in another process exchanges it.

    Returns:
        `NOTHING_COMMITTED` if there is no batch; None if the location does not exist, and no restore makes it.

    Raises:
        OSError: a directory cannot be read.
    """
    location = location.resolve()
    for place in (location, _workspace_of(location) / "location", location):
        before = _identity(place)
        names = list_names(place / "commits")
        if before is not None and _identity(place) == before:  # else it was moved while it was read
            return last_commit(f"commits/{name}" for name in names)
    return None


def _identity(directory: Path) -> tuple[int, int] | None:
    try:
        status = directory.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _check_place(snapshot: QuerySnapshot, location: Path, sink: Path | str | None, files: Iterable[str]) -> None:
    """Check that a location may be replaced as a whole; raises SnapshotError, OSError."""
    if sink is not None and not is_remote(str(sink)) and Path(sink).resolve().is_relative_to(location):
        raise SnapshotError(
            f"query {snapshot.name!r} cannot be restored to {location}: its file sink {sink} is in that directory",
            "give the query a checkpointLocation that does not contain its sink",
        )
    if location.is_mount():
        raise _mounted(location)
    if location.exists():
        with os.scandir(location) as entries:
            found = foreign_names({entry.name: entry.is_dir() for entry in entries}, files)
        if found:
            raise foreign_error(snapshot.name, str(location), found)


def _mounted(location: Path) -> SnapshotError:
    return SnapshotError(
        f"{location} cannot be replaced by a restore: it is a mount point, which cannot be moved",
        "give the query a directory below it as its checkpointLocation",
    )


def _workspace_of(location: Path) -> Path:
    """Return the workspace beside a location, which is resolved: no link."""
    return location.with_name(f".{location.name}.restore")


def _write(workspace: Path, journal: _Journal) -> None:
    write_private(workspace / _JOURNAL, json.dumps(asdict(journal)).encode())


def _read(workspace: Path) -> _Journal | None:
    try:
        return _Journal(**json.loads((workspace / _JOURNAL).read_bytes()))
    except FileNotFoundError:
        return None


def _adapt(stage: Path, files: Iterable[str], root: str, *, new_query_id: bool) -> None:
    """Change the files of a prepared checkpointLocation that contain its URI *root* or the query's id."""
    for path in files:
        if path == "metadata" and new_query_id:
            rewrite(stage / path, json.dumps({"id": str(uuid.uuid4())}).encode())
        if "/_metadata/v2/" in path and not path.endswith(".crc"):
            rewrite(stage / path, _with_schemas_at(root, (stage / path).read_bytes()))
    for log in sorted({path.rpartition("/")[0] for path in files if path.startswith("sources/")}):
        _make_readable(stage / log)


def _make_readable(log: Path) -> None:
    """Compact a prepared log that Spark would not open, because a snapshot of an earlier release lacks a file.

    One compacted file with all entries is left. Spark derives the interval from its number, so that fits.
    """
    names = [name for name in list_names(log) if not name.startswith(".")]
    if opens(names):
        return
    last, former = last_entry(names), compacted(names)
    content = merged(names, last, lambda name: (log / name).read_bytes())
    mode = (log / former[max(former)]).stat().st_mode & 0o777
    for name in (*former.values(), str(last)):
        (log / name).unlink(missing_ok=True)
        (log / f".{name}.crc").unlink(missing_ok=True)
    write_private(log / f"{last}.compact", content)
    (log / f"{last}.compact").chmod(mode)


def _with_schemas_at(root: str, content: bytes) -> bytes:
    """Return the metadata of a transformWithState with the absolute paths of its schemas below the URI *root*."""
    version, text = content.decode().split("\n", 1)
    metadata = json.loads(text)
    for store in metadata["stateStoreInfo"]:
        parts = [path_of(schema).parts for schema in store.get("stateSchemaFilePaths", ())]
        store["stateSchemaFilePaths"] = ["/".join((root, "state", *part[-4:])) for part in parts]
    return f"{version}\n{json.dumps(metadata, separators=(',', ':'))}".encode()


def _log_of(snapshot: QuerySnapshot) -> tuple[str, ...]:
    """Return the files of the sink's log in a snapshot."""
    if snapshot.batch_id == NOTHING_COMMITTED:
        return ()
    return sink_files(list_names(Path(snapshot.path) / SINK), snapshot.batch_id)


def check_sink(snapshot: QuerySnapshot, sink: str) -> None:
    """Check that the sink still has the files that the log of a snapshot names: Spark ignores missing ones silently.

    Args:
        snapshot: the snapshot to restore, of a query with a file sink.
        sink: place of the file sink after the restore.

    Raises:
        SnapshotLostError: files are missing.
        SavepointError: the file system of a remote sink cannot be reached.
    """
    names = [name for name in _log_of(snapshot) if not name.endswith(".crc")]
    old = sink if snapshot.sink is None else sink_of(snapshot.sink)
    goal = f"query {snapshot.name!r} cannot go back to batch {snapshot.batch_id}"
    check_named_files(Path(snapshot.path) / SINK, names, old, sink_of(sink), goal)


def _prepare_sink(snapshot: QuerySnapshot, sink: str, workspace: Path, *, copy: bool) -> None:
    """Prepare the sink's log of a snapshot on the disk: beside the live one, or in *workspace* for a remote one."""
    stage = _stage_of(sink, workspace)
    if is_remote(sink):
        RemoteSink(sink).names()  # while nothing has changed, it must be in reach
        make_private(stage, durable=True)
        names = [name for name in _log_of(snapshot) if not name.endswith(".crc")]  # only local ones have these
        _fill_log(snapshot, stage, names, sink, copy=copy)
        return
    remove_tree(stage.parent)  # left by a restore whose location a user has removed
    Path(sink).mkdir(parents=True, exist_ok=True)
    make_private(stage, durable=True)
    _fill_log(snapshot, stage, _log_of(snapshot), sink, copy=copy)
    mode = Path(sink).stat().st_mode & 0o777
    if copy:
        for name in list_names(stage):
            (stage / name).chmod(mode & 0o666)
    stage.chmod(mode)  # users who may read the sink may read its log
    sync_directories(stage.parent)


def _fill_log(snapshot: QuerySnapshot, stage: Path, names: Iterable[str], sink: str, *, copy: bool) -> None:
    take_files(Path(snapshot.path) / SINK, names, stage, copy=copy)
    _make_readable(stage)
    old = sink if snapshot.sink is None else sink_of(snapshot.sink)
    if sink != old:
        files = SinkFiles(sink)
        for name in [name for name in list_names(stage) if not name.endswith(".crc")]:
            rewrite(stage / name, relocated((stage / name).read_bytes(), old, sink, files.exist))


def _stage_of(sink: str, workspace: Path) -> Path:
    """Return the directory in which the log of a sink is prepared."""
    return (workspace if is_remote(sink) else Path(sink) / SINK_WORKSPACE) / "log"


def rewrite(path: Path, content: bytes) -> None:
    """Replace a file, never the one it is hard-linked to; first remove its checksums, which would be wrong then."""
    if content == path.read_bytes():
        return
    mode = path.stat().st_mode & 0o777
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    write_private(path, content)
    path.chmod(mode)


def _exchange(workspace: Path, journal: _Journal, location: Path) -> None:
    """Exchange the prepared directories that are not exchanged yet; the location first, see `_is_unchanged`."""
    _replace(location, workspace / "location")
    if journal.sink is not None:
        _exchange_log(journal.sink, workspace)
    _write(workspace, replace(journal, phase=_REMOVING))


def _exchange_log(sink: str, workspace: Path) -> None:
    if is_remote(sink):
        RemoteSink(sink).put_back(_stage_of(sink, workspace))
    else:
        _replace(Path(sink) / SINK_LOG, _stage_of(sink, workspace))


def _is_unchanged(workspace: Path, journal: _Journal, location: Path) -> bool:
    """Return whether an exchange has changed nothing. Earlier releases exchanged the sink's log first."""
    prepared = [workspace / "location"]
    if journal.sink is not None:
        prepared.append(_stage_of(journal.sink, workspace))
    return location.exists() and all(path.exists() for path in prepared)


def _remove(workspace: Path, journal: _Journal) -> None:
    """Remove the former directories, or those prepared in vain. The caller removes the journal last, to repeat this."""
    if journal.sink is not None and not (is_remote(journal.sink) and journal.phase == _PREPARING):
        _sweep(journal.sink, journal.batch_id)
    for name in list_names(workspace):
        if name != _JOURNAL:
            remove_tree(workspace / name)


def _replace(place: Path, prepared: Path) -> None:
    """Move a prepared directory to *place*, unless that was done; the former one is kept in the workspace."""
    if not prepared.exists():
        return
    if place.exists():
        old = sum(name.startswith("old-") for name in list_names(prepared.parent))
        place.rename(prepared.with_name(f"old-{old}"))
    make_private(place.parent, durable=True)
    rename_durably(prepared, place)  # durable before the journal records it


def _sweep(sink: str, batch_id: int) -> None:
    """Remove the files of the sink that only abandoned batches named, and what a restore has left beside its log."""
    if is_remote(sink):
        RemoteSink(sink).sweep(batch_id)
        return
    log, workspace = Path(sink) / SINK_LOG, Path(sink) / SINK_WORKSPACE
    kept = [(log / name).read_bytes() for name in list_names(log) if not name.endswith(".crc")]
    for old in [workspace / name for name in list_names(workspace) if name.startswith("old-")]:
        former = {name: (old / name).read_bytes for name in list_names(old)}
        for path in map(Path, abandoned_files(former, kept, sink, batch_id)):
            path.unlink(missing_ok=True)
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    remove_tree(workspace)

"""Puts a snapshot back: a query goes on from it, in its own place (a rollback) or in another one.

Two places change, the checkpointLocation and the file sink's log, and a process may be killed at any moment. So all is
prepared beside them first; then a journal says that they are to be exchanged, which is done, and done again by whoever
finds the journal (`finish_restore`), until the journal is gone. Before the journal says so nothing has changed; from
then on the snapshot is not needed any more.

    <parent>/.<location>.restore/      journal.json, location/ (prepared), old-<n>/ (what was there)
    <sink>/_understudy_restore/        log/ (prepared), old-<n>/ (what was there)

No query may run on the location meanwhile. All functions block.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from conf.files import make_private, remove_tree, rename_durably, sync_directories, write_private
from runtime.checkpoint.errors import SnapshotError, SnapshotLostError
from runtime.checkpoint.files import list_names, path_of, take_files, uri_of
from runtime.checkpoint.layout import SINK_LOG, abandoned_sink_files, sink_files
from runtime.checkpoint.stored_snapshot import CHECKPOINT, SINK, check_snapshot
from runtime.protocol.query_snapshot import NOTHING_COMMITTED, QuerySnapshot


def files_in_log(contents: Iterable[bytes]) -> set[Path]:
    """Return the files that entries of a file sink's log (``_spark_metadata``) name: those that its readers see.

    A query that goes back to batch N needs the log to go back with it: the sink passes over every batch that its log
    has, and with it that batch's changes of state are lost. The files that only later batches named are orphans then.

    Raises:
        ValueError: an entry is damaged.
    """
    found = set()
    for content in contents:
        for line in content.decode().splitlines()[1:]:
            entry = json.loads(line)
            if not isinstance(entry, dict) or not isinstance(entry.get("path"), str):
                raise ValueError(f"not an entry of a file sink's log: {line[:100]!r}")
            found.add(path_of(entry["path"]))
    return found


def moved(path: Path, old: Path, new: Path) -> Path:
    """Where a file is that was below *old*, and moved with it to *new*; *path* itself if it was not."""
    return new / path.relative_to(old) if path.is_relative_to(old) else path


def relocated(content: bytes, old: Path, new: Path, exists: Callable[[Path], bool]) -> bytes:
    """An entry of the log for a sink that was moved from *old* to *new*: names what is there by its new place.

    Files that *exists* does not find in the new place keep their name: readers find them where they are.

    Raises:
        ValueError: the entry is damaged.
    """
    version, *lines = content.decode().splitlines()
    result = [version]
    for line in lines:
        entry = json.loads(line)
        path = path_of(entry["path"])
        place = moved(path, old, new)
        if place != path and exists(place):
            entry["path"] = uri_of(place)
            line = json.dumps(entry, separators=(",", ":"), ensure_ascii=False)
        result.append(line)
    return "\n".join(result).encode()


def orphans(abandoned: Iterable[bytes], kept: Iterable[bytes], sink: Path) -> set[Path]:
    """The files of the sink that only abandoned batches named; never one outside of the sink's directory.

    Raises:
        ValueError: an entry is damaged.
    """
    named = files_in_log(abandoned) - files_in_log(kept)
    return {path for path in named if path.is_relative_to(sink) and ".." not in path.parts}


_JOURNAL = "journal.json"
_SINK_WORKSPACE = "_understudy_restore"  # Spark does not read names that begin with an underscore

_PREPARING = "preparing"  # nothing has changed
_EXCHANGING = "exchanging"  # all is prepared: some of it may be in its place
_REMOVING = "removing"  # all is in its place: what was there before remains to be removed

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Journal:
    """What is to be finished.

    Args:
        batch_id: that is restored.
        sink: the sink's directory, if its log is exchanged.
        phase: how far it is.
    """

    batch_id: int
    sink: str | None
    phase: str = _PREPARING


def restore_snapshot(
    snapshot: QuerySnapshot, location: Path, sink: Path | None, *, new_query_id: bool = False, copy: bool = False
) -> None:
    """Put a snapshot into a checkpointLocation, and the file sink's log back to the same batch.

    What was there is replaced. Files of the sink that only later batches named are removed. May be repeated, and is to
    be, when it was interrupted; `finish_restore` does as well.

    Args:
        snapshot: where to go back to.
        location: the checkpointLocation from now on.
        sink: directory of the file sink from now on; None if there is none, and then no sink is touched. If it is
            not the one of the snapshot, files that were moved there along are named by their new place.
        new_query_id: whether the query gets a new id. With the old one, sinks that remember batches by query and batch
            pass over those that they have; with a new one they take them again.
        copy: whether nothing is linked: what is restored shares no file with the snapshot.

    Raises:
        SnapshotLostError: the snapshot is not whole, or files of the sink are gone that it counts on: those of batches
            that were abandoned by a rollback behind it, for one. Nothing was changed.
        SnapshotError: a file cannot be read or written.
    """
    finish_restore(location)
    files = check_snapshot(snapshot).files
    keeps_log = sink is not None and snapshot.sink is not None
    workspace = _workspace_of(location)
    try:
        if sink is not None and snapshot.sink is not None:
            check_sink(snapshot, Path(snapshot.sink), sink)
        journal = _Journal(snapshot.batch_id, str(sink) if keeps_log else None)
        make_private(workspace / "location", durable=True)
        _write(workspace, journal)
        take_files(Path(snapshot.path) / CHECKPOINT, files, workspace / "location", copy=copy)
        _adapt(workspace / "location", files, location, new_query_id=new_query_id)
        if sink is not None and keeps_log:
            remove_tree(sink / _SINK_WORKSPACE)  # of a location that somebody has removed in the middle of a restore
            _prepare_log(snapshot, sink / _SINK_WORKSPACE / "log", sink, copy=copy)
            sync_directories(sink / _SINK_WORKSPACE)
        sync_directories(workspace)
        _write(workspace, replace(journal, phase=_EXCHANGING))  # all that it counts on is on the disk
    except OSError as error:
        raise SnapshotError(f"query {snapshot.name!r} cannot be restored to {location}: {error}") from error
    finish_restore(location)


def finish_restore(location: Path) -> bool:
    """Finish a restore that was interrupted; to be called before a query starts on a location.

    Returns:
        whether there was one that had changed something already. One that had only prepared is given up.

    Raises:
        SnapshotError: a file cannot be read or written.
    """
    workspace = _workspace_of(location)
    if not workspace.exists():
        return False
    try:
        journal = _read(workspace)
        if journal is not None:
            if journal.phase == _EXCHANGING:
                _exchange(workspace, journal, location)
            _remove(workspace, journal)
        remove_tree(workspace)
    except OSError as error:
        raise SnapshotError(f"the restore of {location} cannot be finished: {error}") from error
    return journal is not None and journal.phase != _PREPARING


def _workspace_of(location: Path) -> Path:
    return location.with_name(f".{location.name}.restore")


def _write(workspace: Path, journal: _Journal) -> None:
    write_private(workspace / _JOURNAL, json.dumps(asdict(journal)).encode())


def _read(workspace: Path) -> _Journal | None:
    try:
        return _Journal(**json.loads((workspace / _JOURNAL).read_bytes()))
    except FileNotFoundError:
        return None


def _adapt(stage: Path, files: Iterable[str], location: Path, *, new_query_id: bool) -> None:
    """Change what in a prepared checkpointLocation depends on the place that it goes to, or on the query's id."""
    for path in files:
        if path == "metadata" and new_query_id:
            _rewrite(stage / path, json.dumps({"id": str(uuid.uuid4())}).encode())
        if "/_metadata/v2/" in path and not path.endswith(".crc"):
            _rewrite(stage / path, _with_schemas_at(location, (stage / path).read_bytes()))


def _with_schemas_at(location: Path, content: bytes) -> bytes:
    """The metadata of a transformWithState, which name their schemas by absolute paths, for a location."""
    version, text = content.decode().split("\n", 1)
    metadata = json.loads(text)
    for store in metadata["stateStoreInfo"]:
        parts = [path_of(schema).parts for schema in store.get("stateSchemaFilePaths", ())]
        store["stateSchemaFilePaths"] = ["file:" + "/".join((str(location), "state", *part[-4:])) for part in parts]
    return f"{version}\n{json.dumps(metadata, separators=(',', ':'))}".encode()


def _log_of(snapshot: QuerySnapshot) -> tuple[str, ...]:
    """The files of the sink's log in a snapshot."""
    if snapshot.batch_id == NOTHING_COMMITTED:
        return ()
    return sink_files(list_names(Path(snapshot.path) / SINK), snapshot.batch_id)


def check_sink(snapshot: QuerySnapshot, old: Path, new: Path) -> None:
    """See that the sink still has what the log of a snapshot names: Spark passes over missing files in silence.

    Args:
        snapshot: that is to be restored.
        old: directory of its file sink.
        new: directory of the file sink from then on.

    Raises:
        SnapshotLostError: files are gone.
    """
    log = Path(snapshot.path) / SINK
    try:
        named = files_in_log((log / name).read_bytes() for name in _log_of(snapshot) if not name.endswith(".crc"))
    except ValueError as error:
        raise SnapshotLostError(f"the log of the file sink in {log} is damaged: {error}") from error
    gone = [path for path in sorted(named) if not moved(path, old, new).exists() and not path.exists()]
    if gone:
        raise SnapshotLostError(
            f"query {snapshot.name!r} cannot go back to batch {snapshot.batch_id}: its file sink has lost {len(gone)} "
            f"of {len(named)} files of that time, {gone[0]} among them; they were removed, or abandoned by a rollback",
            "take an earlier snapshot, or put the files back",
        )


def _prepare_log(snapshot: QuerySnapshot, stage: Path, sink: Path, *, copy: bool) -> None:
    source = Path(snapshot.path) / SINK
    sink.mkdir(parents=True, exist_ok=True)
    make_private(stage, durable=True)
    names = _log_of(snapshot)
    take_files(source, names, stage, copy=copy)
    mode = sink.stat().st_mode & 0o777
    for name in names:
        if snapshot.sink is not None and sink != Path(snapshot.sink) and not name.endswith(".crc"):
            content = (source / name).read_bytes()
            _rewrite(stage / name, relocated(content, Path(snapshot.sink), sink, Path.exists))
        if copy:
            (stage / name).chmod(mode & 0o666)
    stage.chmod(mode)  # whoever reads the sink reads its log


def _rewrite(path: Path, content: bytes) -> None:
    """Replace a file (never what it is linked to); its checksum, which would be wrong now, goes first."""
    if content == path.read_bytes():
        return
    mode = path.stat().st_mode & 0o777
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    write_private(path, content)
    path.chmod(mode)


def _exchange(workspace: Path, journal: _Journal, location: Path) -> None:
    """Put what is prepared into its place, as far as it is not there yet."""
    if journal.sink is not None:
        _replace(Path(journal.sink) / SINK_LOG, Path(journal.sink) / _SINK_WORKSPACE / "log")
    _replace(location, workspace / "location")
    _write(workspace, replace(journal, phase=_REMOVING))


def _remove(workspace: Path, journal: _Journal) -> None:
    """Remove what was there before, or what was prepared in vain; the journal goes last, since it leads here again."""
    if journal.sink is not None:
        _sweep(Path(journal.sink), journal.batch_id)
        remove_tree(Path(journal.sink) / _SINK_WORKSPACE)
    for name in list_names(workspace):
        if name != _JOURNAL:
            remove_tree(workspace / name)


def _replace(place: Path, prepared: Path) -> None:
    """Put a directory into its place, unless it is there already; what was there goes beside the prepared one."""
    if not prepared.exists():
        return
    if place.exists():
        old = sum(name.startswith("old-") for name in list_names(prepared.parent))
        place.rename(prepared.with_name(f"old-{old}"))
    make_private(place.parent, durable=True)
    rename_durably(prepared, place)  # before the journal says so


def _sweep(sink: Path, batch_id: int) -> None:
    """Remove the files of the sink that only abandoned batches named."""
    log = sink / SINK_LOG
    kept = [(log / name).read_bytes() for name in list_names(log) if not name.endswith(".crc")]
    for name in list_names(sink / _SINK_WORKSPACE):
        old = sink / _SINK_WORKSPACE / name
        if name.startswith("old-"):
            try:
                abandoned = [(old / entry).read_bytes() for entry in abandoned_sink_files(list_names(old), batch_id)]
                for path in orphans(abandoned, kept, sink):
                    path.unlink(missing_ok=True)
                    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
            except ValueError as error:
                # Readers of the sink go by the log, so what stays of the abandoned batches is a waste and no error.
                logger.warning("files of abandoned batches stay in %s: %s", sink, error)

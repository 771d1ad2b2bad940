"""Savepoints: self-contained snapshots of all queries of a job, which can be moved, copied and restored elsewhere.

    savepoint-<first 6 of the job's id>-<random>/
      manifest.json                 the fields of `Savepoint`, with a digest of itself
      queries/<n>-<name>/           as a snapshot: checkpoint/, sink/

All files are copies, with their digests in the manifest. The directory has another name until it is complete, so an
incomplete one is never found. Nothing in it depends on its path. (Flink's savepoints in the canonical format.)

All functions block.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import runtime
from conf.files import make_private, remove_tree, rename_durably, write_private
from runtime.checkpoint.alignment import alignment_problems
from runtime.checkpoint.description import describe
from runtime.checkpoint.errors import SavepointError, SnapshotError
from runtime.checkpoint.files import list_files, list_names
from runtime.checkpoint.manifest import (
    EditedFrom,
    RescaledFrom,
    Savepoint,
    SavepointFile,
    SavepointJob,
    SavepointQuery,
    from_manifest,
    to_manifest,
)
from runtime.checkpoint.metadata_log import IncompleteError
from runtime.checkpoint.stored_snapshot import CHECKPOINT, DESCRIPTION, check_snapshot, read_records
from runtime.feature_level import FeatureLevel, Format, lowest_level
from runtime.protocol.query_snapshot import QuerySnapshot

__all__ = [
    "MANIFEST",
    "ListedSavepoint",
    "Savepoint",
    "SavepointJob",
    "dispose_savepoint",
    "list_savepoints",
    "open_savepoint",
    "read_savepoint",
    "verify_savepoint",
    "write_savepoint",
]

MANIFEST = "manifest.json"
PREFIX = "savepoint-"

_CHUNK = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ListedSavepoint:
    """A savepoint, or a directory that is named like one: then `savepoint` is None, and `problems` say why."""

    path: str
    savepoint: Savepoint | None
    problems: list[str]


def write_savepoint(
    directory: Path,
    job: SavepointJob,
    snapshots: Sequence[QuerySnapshot],
    level: FeatureLevel | None = None,
    *,
    name: str | None = None,
    work: Path | None = None,
    rescaled: RescaledFrom | None = None,
    edited: EditedFrom | None = None,
    attempt: str = "",
) -> Savepoint:
    """Copy snapshots into a new savepoint.

    Args:
        directory: where the savepoint's own directory is made.
        job: the job of the queries.
        snapshots: one of each query of the job.
        level: of the cluster, which decides the version of the manifest. Default: the lowest of this release.
        name: of the savepoint's own directory. Default: a new one.
        work: directory of the caller alone, in the same file system, where the files are before they have that name.
            Needed with *name*, which several processes may give at once.
        rescaled: what the snapshots were rescaled from.
        edited: what the snapshots were edited from.
        attempt: begins the names of the queries' directories, so that writers of one savepoint share no file.

    Raises:
        SnapshotError: a snapshot is not whole.
        SavepointError: a file cannot be read or written. Nothing is left behind.
    """
    name = name or f"{PREFIX}{job.id[:6]}-{secrets.token_hex(6)}"
    part = (work or directory) / f".{name}.part"
    try:
        make_private(part, durable=True)
        files: dict[str, SavepointFile] = {}
        queries = tuple(
            _write_query(part, f"{attempt}{number}", snapshot, files) for number, snapshot in enumerate(snapshots)
        )
        savepoint = Savepoint(
            job,
            int(time.time() * 1000),
            queries,
            files,
            importlib.metadata.version("pyspark"),
            runtime.__version__,
            rescaled=rescaled,
            edited=edited,
        )
        write_private(part / MANIFEST, to_manifest((level or lowest_level()).marked(savepoint, Format.SAVEPOINT)))
        rename_durably(part, directory / name)
    except (OSError, IncompleteError) as error:
        raise SavepointError(f"no savepoint of job {job.name!r} in {directory}: {error}") from error
    finally:
        remove_tree(part)
    return read_savepoint(directory / name)


def read_savepoint(path: Path) -> Savepoint:
    """Return the savepoint in a directory, by its manifest; its files are not checked.

    Raises:
        SavepointError: it is not a savepoint, or its manifest is damaged or has a later format.
    """
    try:
        content = (path / MANIFEST).read_bytes()
    except OSError as error:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            why = f"{path / MANIFEST} cannot be read: {error.strerror}"
        else:
            why = f"it has no {MANIFEST}" if path.is_dir() else "there is no such directory"
        raise SavepointError(
            f"{path} is not a savepoint: {why}", "`understudy savepoint list DIR` shows the savepoints in a directory"
        ) from error
    savepoint = from_manifest(path, content)
    root = path.absolute()
    queries = tuple(
        replace(query, snapshot=replace(query.snapshot, path=str(root / query.snapshot.path)))
        for query in savepoint.queries
    )
    return replace(savepoint, queries=queries, path=str(root))


def verify_savepoint(path: Path) -> list[str]:
    """Return the problems of a savepoint, by the digests of all files; none if it is as it was written."""
    try:
        savepoint = read_savepoint(path)
        found = set(list_files(path)) - {MANIFEST}
    except SavepointError as error:
        return [str(error)]
    except OSError as error:
        return [f"{path} cannot be read: {error.strerror}"]
    problems = [f"{name} is missing" for name in sorted(set(savepoint.files) - found)]
    problems += [f"{name} is not in the manifest" for name in sorted(found - set(savepoint.files))]
    for name in sorted(found & set(savepoint.files)):
        expected = savepoint.files[name]
        try:
            actual = _digest(path / name)
        except OSError as error:
            problems.append(f"{name} cannot be read: {error.strerror}")
            continue
        if actual.size != expected.size:
            problems.append(f"{name} has {actual.size} bytes in place of {expected.size}")
        elif actual != expected:
            problems.append(f"{name} is damaged: its digest is another one")
    if not problems:
        for query in savepoint.queries:
            try:
                check_snapshot(query.snapshot)
            except SnapshotError as error:  # it was already damaged when the savepoint was written
                problems.append(str(error))
    if not problems:
        problems += alignment_problems([query.snapshot for query in savepoint.queries])
    return problems


def open_savepoint(path: Path) -> Savepoint:
    """Verify a savepoint, and return it for a restore.

    Raises:
        SavepointError: it has problems, or there is none.
    """
    if not os.path.lexists(path / MANIFEST):
        return read_savepoint(path)  # raises: there is nothing to verify
    problems = verify_savepoint(path)
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise SavepointError(
            f"{path} cannot be used: {problems[0]}{more}", f"`understudy savepoint verify {path}` shows all"
        )
    return read_savepoint(path)


def list_savepoints(directory: Path) -> list[ListedSavepoint]:
    """Verify and return the savepoints in a directory, newest first; those that cannot be read come last.

    Raises:
        SavepointError: the directory cannot be read.
    """
    try:
        paths = sorted(path for path in directory.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError as error:
        raise SavepointError(f"{directory} cannot be read: {error.strerror}") from error
    listed = []
    for path in paths:
        if (path / MANIFEST).exists() or path.name.startswith(PREFIX):
            try:
                savepoint = read_savepoint(path)
            except SavepointError as error:
                listed.append(ListedSavepoint(str(path), None, [str(error)]))
            else:
                listed.append(ListedSavepoint(str(path), savepoint, verify_savepoint(path)))
    return sorted(listed, key=lambda one: -one.savepoint.created_ms if one.savepoint else 0)


def dispose_savepoint(path: Path) -> bool:
    """Remove a savepoint, even a damaged one; never another directory.

    Returns:
        whether there was one.

    Raises:
        SavepointError: the directory is not a savepoint, or cannot be removed.
    """
    path = Path(os.path.abspath(path))  # noqa: PTH100  # "." has no name; links in it are not followed
    part = path.with_name(f".{path.name}.part") if path.name else path / ".part"
    try:
        was_begun = part.exists()
        if path.exists():
            foreign = set(list_names(path)) - {MANIFEST, "queries"}
            if foreign or not (path.name.startswith(PREFIX) or (path / MANIFEST).is_file()):
                raise SavepointError(f"{path} is not a savepoint: it is left alone")
            remove_tree(part)
            rename_durably(path, part)  # so that a half-removed one is never found
            was_begun = True
        remove_tree(part)
    except OSError as error:
        raise SavepointError(f"{path} cannot be removed: {error}") from error
    return was_begun


def _write_query(part: Path, number: str, snapshot: QuerySnapshot, files: dict[str, SavepointFile]) -> SavepointQuery:
    batch = check_snapshot(snapshot, contents=False)  # contents are compared while they are copied
    records = read_records(snapshot)
    source = Path(snapshot.path)
    place = f"queries/{number}-{re.sub(r'[^A-Za-z0-9_.-]', '_', snapshot.name)[:64]}"
    make_private(part / place / CHECKPOINT)
    size = 0
    for name in sorted(list_files(source)):
        if name != DESCRIPTION:
            files[f"{place}/{name}"] = copied = _copy(source / name, part / place / name)
            if name in records and records[name].sha256 != copied.sha256:
                raise IncompleteError(f"{source / name} is damaged: its digest is another one")
            size += copied.size
    description = describe(snapshot.name, batch, lambda path: (source / CHECKPOINT / path).read_bytes())
    kept = replace(snapshot, path=place, bytes=size, new_bytes=size)
    return SavepointQuery(kept, description, batch.offsets.watermark_ms)


def _copy(source: Path, target: Path) -> SavepointFile:
    make_private(target.parent)
    digest, size = hashlib.sha256(), 0
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with source.open("rb") as reading, os.fdopen(descriptor, "wb") as writing:
        while chunk := reading.read(_CHUNK):
            digest.update(chunk)
            writing.write(chunk)
            size += len(chunk)
        writing.flush()
        os.fsync(descriptor)
    return SavepointFile(size, digest.hexdigest())


def _digest(path: Path) -> SavepointFile:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return SavepointFile(file.tell(), digest)

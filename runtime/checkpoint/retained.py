"""Checkpoints that outlive their job: a directory ``chk-<number>`` with ``_metadata``; a later job can start from it.

As Flink's externalized checkpoints: the metadata of each checkpoint are beside its files, so that the directory is
complete by itself. All functions block.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from actors.errors import WireError
from actors.rpc.codec import from_plain, to_plain
from conf.files import make_private, remove_tree, rename_durably, sync_directories, sync_names, write_private
from runtime.checkpoint.alignment import alignment_problems
from runtime.checkpoint.description import QueryDescription, describe
from runtime.checkpoint.errors import SnapshotError, SnapshotLostError
from runtime.checkpoint.files import list_files, list_names, take_files
from runtime.checkpoint.manifest import Savepoint, digest_of
from runtime.checkpoint.metadata_log import IncompleteError
from runtime.checkpoint.names import directory_name
from runtime.checkpoint.savepoint import open_savepoint, read_savepoint, verify_savepoint
from runtime.checkpoint.stored_snapshot import CHECKPOINT, check_snapshot
from runtime.feature_level import Format, can_read, readable_versions
from runtime.ids import JobVertexID
from runtime.protocol.checkpoints import CheckpointMetadata, TaskSnapshot
from runtime.protocol.query_snapshot import QuerySnapshot

METADATA = "_metadata"
PREFIX = "chk-"

NOT_STARTED = JobVertexID("0" * 32)
"""Key of the queries that the job has not started, instead of a task's, in a checkpoint's metadata."""

CARRIED = "carried-over"
"""Directory of their snapshots, in the checkpoint and in that of the job's checkpoints."""

_ID = re.compile(r"([0-9a-f]{32})(?:/(chk-[0-9]+))?")


def write_metadata(metadata: CheckpointMetadata) -> None:
    """Write a checkpoint's metadata into its directory; raises OSError."""
    path = Path(metadata.path)
    make_private(path, durable=True)
    write_private(path / METADATA, encode_metadata(metadata))


def carry_into(checkpoint: CheckpointMetadata, snapshots: Sequence[QuerySnapshot]) -> CheckpointMetadata:
    """Add the state of queries that the job has not started to a checkpoint's directory; return metadata with it.

    The files are copied once for the job, so that they share none with the user's savepoint, and are linked from there.

    Raises:
        CheckpointError, OSError: they cannot be copied, or do not fit the checkpoint. Nothing of them is left in it.
    """
    directory = Path(checkpoint.path)
    copies, target = directory.parent / CARRIED, directory / CARRIED
    try:
        carried = tuple(_carry(query, copies, target) for query in snapshots)
        for problem in alignment_problems((*checkpoint.queries, *carried)):
            raise SnapshotError(problem)
        sync_directories(target)
        sync_names(target)
    except BaseException:
        remove_tree(target)
        raise
    late = TaskSnapshot(NOT_STARTED, "not started", carried)
    return replace(checkpoint, tasks=(*checkpoint.tasks, late))


def _carry(query: QuerySnapshot, copies: Path, target: Path) -> QuerySnapshot:
    copy, place = (below / directory_name(query.name) for below in (copies, target))
    if not copy.exists():
        part = copy.with_name(f".{copy.name}.{os.urandom(4).hex()}.part")  # another JobMaster may copy it, too
        try:
            make_private(part, durable=True)
            take_files(Path(query.path), list_files(Path(query.path)), part, copy=True)
            rename_durably(part, copy)
        finally:
            remove_tree(part)
    make_private(place, below=target.parent)
    take_files(copy, list_files(copy), place)
    return replace(query, path=str(place))


def encode_metadata(metadata: CheckpointMetadata) -> bytes:
    """Return the content of a checkpoint's metadata file: JSON, with a digest of itself."""
    plain = to_plain(metadata)
    return json.dumps({**plain, "digest": digest_of(plain)}, indent=1).encode()


def is_checkpoint(path: Path) -> bool:
    """Return whether a directory is a checkpoint that was completed, or is about to be."""
    return (path / METADATA).is_file()


def read_checkpoint(path: Path) -> CheckpointMetadata:
    """Return the checkpoint in a directory, with paths adapted to where it is now; its files are not checked.

    Raises:
        SnapshotLostError: there is none, or its metadata are damaged or have another format.
    """
    root = path.absolute()
    try:
        plain = json.loads((root / METADATA).read_bytes())
        digest = plain.pop("digest", "")
        if digest and digest != digest_of(plain):
            raise ValueError(f"the digest of {METADATA} is another one")
        metadata: CheckpointMetadata = from_plain(plain, CheckpointMetadata)
        if not digest and (unknown := sorted(plain.keys() - to_plain(metadata).keys())):
            raise ValueError(f"{METADATA} has an unknown part {unknown[0]!r}")
        if not can_read(Format.CHECKPOINT_METADATA, metadata.format_version):
            readable = readable_versions(Format.CHECKPOINT_METADATA)
            raise SnapshotLostError(
                f"the checkpoint {path} has format {metadata.format_version}; this version reads {readable}",
                "use the version that wrote it",
            )
        tasks = tuple(
            replace(task, queries=tuple(_moved(query, Path(metadata.path), root) for query in task.queries))
            for task in metadata.tasks
        )
    except OSError as error:
        raise SnapshotLostError(f"{path} is not a checkpoint: {METADATA} cannot be read: {error.strerror}") from error
    except (ValueError, WireError) as error:
        raise SnapshotLostError(f"the checkpoint {path} is damaged: {error}") from error
    return replace(metadata, path=str(root), tasks=tasks)


def _moved(query: QuerySnapshot, old: Path, new: Path) -> QuerySnapshot:
    return replace(query, path=str(new / Path(query.path).relative_to(old)))


def open_checkpoint(path: Path) -> CheckpointMetadata:
    """Return a checkpoint to restore, after checking that its snapshots are whole.

    Raises:
        SnapshotLostError: as `read_checkpoint`, or one of its files is missing or damaged, or the snapshots do not fit
            together.
    """
    metadata = read_checkpoint(path)
    for query in metadata.queries:
        check_snapshot(query)
    for problem in alignment_problems(metadata.queries):
        raise SnapshotLostError(f"the checkpoint {path} cannot be restored: {problem}", "take another one")
    return metadata


def verify_state(path: Path) -> list[str]:
    """Return the problems of a savepoint or a checkpoint, by its digests; none if it can be restored."""
    if not is_checkpoint(path):
        return verify_savepoint(path)
    problems = []
    try:
        queries = read_checkpoint(path).queries
    except SnapshotLostError as error:
        return [str(error)]
    for query in queries:
        try:
            check_snapshot(query)
        except SnapshotLostError as error:
            problems.append(str(error))
    return problems or alignment_problems(queries)


def read_state(path: Path) -> CheckpointMetadata | Savepoint:
    """Return the checkpoint or savepoint in a directory; its files are not checked. Raises CheckpointError."""
    return read_checkpoint(path) if is_checkpoint(path) else read_savepoint(path)


def describe_state(path: Path) -> list[QueryDescription]:
    """Verify a checkpoint or savepoint, and describe the state of each of its queries.

    Raises:
        CheckpointError: it is neither, or not whole.
    """
    if not is_checkpoint(path):
        return [query.description for query in open_savepoint(path).queries]
    return [_describe(query) for query in read_checkpoint(path).queries]


def _describe(query: QuerySnapshot) -> QueryDescription:
    root = Path(query.path) / CHECKPOINT
    try:
        return describe(query.name, check_snapshot(query, contents=False), lambda name: (root / name).read_bytes())
    except (IncompleteError, OSError) as error:
        raise SnapshotError(f"the snapshot of query {query.name!r} in {query.path} cannot be read: {error}") from error


def find_state(name: str, checkpoints_dir: Path) -> Path:
    """Return the directory that a user names.

    Args:
        name: a path, ``<job id>/chk-<number>``, or a job's id for its latest checkpoint.
        checkpoints_dir: where the cluster's checkpoints are.

    Raises:
        SnapshotLostError: there is no such directory.
    """
    path, known = Path(name), _ID.fullmatch(name)
    if path.exists() or known is None:
        return path.resolve()
    directory = checkpoints_dir / known[1]
    found = [
        number for number in map(number_of, list_names(directory)) if is_checkpoint(directory / f"{PREFIX}{number}")
    ]
    if known[2] is None and found:
        return directory / f"{PREFIX}{max(found)}"
    if known[2] is not None and int(known[2].removeprefix(PREFIX)) in found:
        return directory / known[2]
    kept = ", ".join(f"{PREFIX}{number}" for number in sorted(found)) or "none"
    raise SnapshotLostError(
        f"there is no checkpoint {name} in {checkpoints_dir}; of that job there is: {kept}",
        "execution.checkpointing.externalized-checkpoint-retention says which are kept after the end of a job",
    )


def number_of(name: str) -> int:
    """Return the number of a checkpoint by the name of its directory; -1 if it is no such name."""
    digits = name.removeprefix(PREFIX)
    return int(digits) if name.startswith(PREFIX) and digits.isascii() and digits.isdigit() else -1

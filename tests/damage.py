"""Damages the files of a directory in every way, one after the other, and mends each again."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from runtime.checkpoint.errors import SnapshotError
from runtime.checkpoint.files import list_files
from runtime.checkpoint.snapshot import inspect_location
from runtime.checkpoint.stored_snapshot import check_snapshot
from runtime.protocol.query_snapshot import QueryLocation, QuerySnapshot

DAMAGES = ("removed", "emptied", "truncated", "bit turned", "replaced by another version")


@dataclass(frozen=True)
class Damage:
    """One file of a directory that is damaged now."""

    root: Path
    path: str
    kind: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.path}"


def damaged_files(root: Path, kinds: Sequence[str], *, every: int = 1, only: str = "") -> Iterator[Damage]:
    """Damage each file below a directory in each way; before the next one it is as it was, but for its times.

    Args:
        root: the directory.
        kinds: the ways, of `DAMAGES`.
        every: only each so-manieth file is damaged.
        only: the one file that is damaged.
    """
    names = sorted(list_files(root))
    for name in [only] if only else names[::every]:
        content = (root / name).read_bytes()
        for kind in kinds:
            changed = _damaged(root, name, names, content, kind)
            if changed == content:
                continue
            mode = (root / name).stat().st_mode & 0o777
            _put(root / name, changed, mode)
            try:
                yield Damage(root, name, kind)
            finally:
                _put(root / name, content, mode)


def _damaged(root: Path, name: str, names: Sequence[str], content: bytes, kind: str) -> bytes | None:
    match kind:
        case "removed":
            return None
        case "emptied":
            return b""
        case "truncated":
            return content[: len(content) // 2]
        case "bit turned":
            at = len(content) * 2 // 3
            return content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :] if content else content
        case _:
            return (root / _sibling(name, names)).read_bytes()


def _sibling(name: str, names: Sequence[str]) -> str:
    """Another file of the same directory and kind: of another batch or version, where there is one."""
    directory, _, own = name.rpartition("/")
    kind = (own.startswith("."), own.rpartition(".")[2] if "." in own.lstrip(".") else "")
    for other in names:
        parent, _, found = other.rpartition("/")
        same = (found.startswith("."), found.rpartition(".")[2] if "." in found.lstrip(".") else "")
        if parent == directory and other != name and same == kind:
            return other
    return name


def _put(path: Path, content: bytes | None, mode: int) -> None:
    """Put a file in its place that shares nothing with what was there."""
    path.unlink(missing_ok=True)
    if content is not None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)


def found_in_live(query: QueryLocation, previous: QuerySnapshot | None) -> str:
    """What a start finds wrong with a query's own files; empty for nothing."""
    try:
        batch_id = inspect_location(query, previous)
    except SnapshotError as error:
        return str(error)
    if previous is not None and batch_id < previous.batch_id:
        return f"it is at batch {batch_id}"
    return ""


def found_in_snapshot(snapshot: QuerySnapshot, path: Path) -> str:
    """What a restore finds wrong with a copy of a snapshot; empty for nothing."""
    try:
        check_snapshot(replace(snapshot, path=str(path)))
    except SnapshotError as error:
        return str(error)
    return ""

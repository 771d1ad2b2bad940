"""Savepoints as values, and their manifest: JSON that holds a digest of itself. Pure."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from actors.errors import WireError
from actors.rpc.codec import from_plain, to_plain
from runtime.checkpoint.description import QueryDescription
from runtime.checkpoint.errors import SavepointError
from runtime.feature_level import Format, newest_version, oldest_version
from runtime.protocol.query_snapshot import QuerySnapshot


@dataclass(frozen=True, slots=True)
class SavepointJob:
    """The job of a savepoint.

    Args:
        id: 32 hexadecimal digits.
        name: for display.
        owner: name of the user who submitted it; empty if it had none.
    """

    id: str
    name: str
    owner: str = ""


@dataclass(frozen=True, slots=True)
class SavepointFile:
    """A file of a savepoint: its size in bytes and SHA-256 digest in hexadecimal digits."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class SavepointQuery:
    """One query of a savepoint.

    Args:
        snapshot: its state handle; the path is relative in the manifest, and absolute in what `read_savepoint` returns.
        description: of its state.
        watermark_ms: the event-time watermark, in milliseconds since the epoch; 0 if it has none.
    """

    snapshot: QuerySnapshot
    description: QueryDescription
    watermark_ms: int = 0


@dataclass(frozen=True, slots=True)
class RescaledFrom:
    """The savepoint that another one was rescaled from.

    Args:
        path: its directory at that time.
        created_ms: when it was written, in milliseconds since the epoch.
        partitions: the new number.
        queries: names of the queries that were rescaled.
    """

    path: str
    created_ms: int
    partitions: int
    queries: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EditedFrom:
    """The savepoint whose state was edited for another one.

    Args:
        path: its directory at that time.
        created_ms: when it was written, in milliseconds since the epoch.
        queries: names of the queries whose state was edited.
        schemas: directory of the savepoint whose operators and schemas the state got; empty if it kept its own.
        dropped: in words, the state that went into no part of the result.
    """

    path: str
    created_ms: int
    queries: tuple[str, ...]
    schemas: str = ""
    dropped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Savepoint:
    """A savepoint.

    Args:
        job: the job that it belongs to.
        created_ms: when it was written, in milliseconds since the epoch.
        queries: of the job.
        files: all files except the manifest, by their path below the savepoint.
        spark_version: version of Spark that wrote the state.
        version: version of Understudy that wrote the savepoint.
        format_version: of the manifest.
        path: where it is now; not part of the manifest.
        rescaled: what it was rescaled from, at `created_ms`; None if it was taken of a job.
        edited: what it was edited from, at `created_ms`; None if it was taken of a job.
    """

    job: SavepointJob
    created_ms: int
    queries: tuple[SavepointQuery, ...]
    files: dict[str, SavepointFile]
    spark_version: str
    version: str
    format_version: int = oldest_version(Format.SAVEPOINT)
    path: str = field(default="", compare=False)
    rescaled: RescaledFrom | None = None
    edited: EditedFrom | None = None

    @property
    def bytes(self) -> int:
        """Total size of its files, in bytes."""
        return sum(file.size for file in self.files.values())


def digest_of(manifest: dict[str, Any]) -> str:
    """Return the digest that a manifest has of itself, without its ``digest``."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def to_manifest(savepoint: Savepoint) -> bytes:
    """Return the content of a savepoint's manifest."""
    manifest = to_plain(savepoint)
    del manifest["path"]
    return json.dumps({**manifest, "digest": digest_of(manifest)}, indent=1).encode()


def from_manifest(path: Path | str, content: bytes) -> Savepoint:
    """Return the savepoint of a manifest, with its relative paths.

    Args:
        path: of the savepoint, for the errors.
        content: of the manifest.

    Raises:
        SavepointError: the manifest is damaged, has a later format, or names files outside of the savepoint.
    """
    try:
        manifest = json.loads(content)
        digest = manifest.pop("digest")
        version = manifest["format_version"]
        if isinstance(version, int) and version > (newest := newest_version(Format.SAVEPOINT)):
            raise SavepointError(
                f"the savepoint {path} has format {version}; this version of Understudy reads up to {newest}",
                "use the version that wrote it, or a later one",
            )
        if digest != digest_of(manifest):
            raise ValueError("its digest is another one")
        savepoint: Savepoint = from_plain(manifest, Savepoint)
    except (ValueError, KeyError, TypeError, AttributeError, WireError) as error:
        raise SavepointError(f"the manifest of {path} is damaged: {error}") from error
    for relative in (*savepoint.files, *(query.snapshot.path for query in savepoint.queries)):
        if PurePosixPath(relative).is_absolute() or ".." in PurePosixPath(relative).parts:
            raise SavepointError(f"the manifest of {path} names a file outside of it: {relative}")
    return savepoint

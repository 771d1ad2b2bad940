"""The materialised result of a vertex, as files (Flink's `ResultPartition`). Importable without pyspark.

A result is written beside its place and moved there whole, with a manifest that lists its files: what is in its place
is complete, and what has been lost of it since is found out by looking. Each file is a subpartition: what one partition
of the producer's Spark plan made. The manifest has the result's schema, too: Spark would run a job of its own to find
it in the files, for each reader.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.spark.errors import PartitionNotFoundError

MANIFEST = "_partition.json"
"""Spark does not read files whose names begin with an underscore."""

IN_PROGRESS = ".inprogress"
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class ResultPartition:
    """One attempt's result of one vertex.

    Args:
        vertex_id: of the vertex that makes it.
        path: directory; it is there when the result is complete, and not before.
    """

    vertex_id: str
    path: Path

    @property
    def in_progress(self) -> Path:
        """Directory to which it is written until it is complete."""
        return self.path.with_name(self.path.name + IN_PROGRESS)

    def begin(self) -> Path:
        """Remove what an earlier run may have left, and return `in_progress`."""
        for leftover in (self.in_progress, self.path):
            if leftover.exists():
                shutil.rmtree(leftover)
        _make_private(self.path.parent)
        return self.in_progress

    def finish(self, schema_of: Callable[[Path], str | None]) -> dict[str, Any]:
        """Make what was written to `in_progress` the result; return what is announced of it, as plain data.

        Args:
            schema_of: reads a file's schema, as Spark's JSON; None where there is none.

        Raises:
            OSError: it cannot be moved.
        """
        parts = sorted(self.in_progress.glob("part-*"))
        files = {file.name: file.stat().st_size for file in parts}
        schema = schema_of(parts[0]) if parts else None
        manifest = json.dumps({"format": _FORMAT, "vertex": self.vertex_id, "files": files, "schema": schema}).encode()
        descriptor = os.open(self.in_progress / MANIFEST, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(manifest)
        self.in_progress.rename(self.path)
        return {
            "vertex_id": self.vertex_id,
            "path": str(self.path),
            "subpartitions": len(files),
            "bytes": sum(files.values()),
        }

    def check(self) -> str | None:
        """See that all of it is there; return its schema, as Spark's JSON, or None if that has to be looked for.

        Raises:
            PartitionNotFoundError: some of it is not; the message says what.
        """
        manifest = self.path / MANIFEST
        try:
            listed = json.loads(manifest.read_bytes())
            files = {str(name): int(size) for name, size in listed["files"].items()}
            schema = listed.get("schema")  # none in a result of an earlier version
        except OSError as error:
            raise self._lost(f"{manifest} cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise self._lost(f"{manifest} is damaged") from error
        for name, size in files.items():
            try:
                found = (self.path / name).stat().st_size
            except OSError as error:
                raise self._lost(f"{self.path / name} cannot be read: {error.strerror}") from error
            if found != size:
                raise self._lost(f"{self.path / name} has {found} bytes in place of {size}")
        return None if schema is None else str(schema)

    def is_blamed_by(self, error: BaseException) -> PartitionNotFoundError | None:
        """The error to be raised instead, if it is for want of this result that *error* was raised."""
        try:
            self.check()
        except PartitionNotFoundError as lost:
            return lost
        seen: list[BaseException] = []
        cause: BaseException | None = error
        while cause is not None and cause not in seen:
            seen.append(cause)
            text = str(cause)
            if "FAILED_READ_FILE" in text and f"{self.path}/" in text:  # Spark's error condition; it names the file
                return self._lost(f"Spark cannot read it: {text.splitlines()[0]}")
            cause = cause.__cause__ or cause.__context__
        return None

    def _lost(self, why: str) -> PartitionNotFoundError:
        return PartitionNotFoundError(self.vertex_id, f"the materialised result {self.path} is lost: {why}")


def _make_private(directory: Path) -> None:
    """Make a directory, and those above it that are missing, for their owner only."""
    if not directory.exists():
        _make_private(directory.parent)
        directory.mkdir(mode=0o700, exist_ok=True)


def discard_unfinished(paths: Iterable[str]) -> None:
    """Remove what an attempt that did not finish has left of its results; raises OSError."""
    for path in paths:
        left = ResultPartition("", Path(path)).in_progress
        if left.exists():
            shutil.rmtree(left)

"""The materialised result of a vertex, as files (Flink's `ResultPartition`). Importable without pyspark.

A result is written to a temporary directory, and moved to its path as a whole, with a manifest that lists its files. So
a result at its path was complete; `check` finds files that were lost since. Each file is a subpartition, written by one
partition of the producer's Spark plan. The manifest also holds the result's schema: without it, Spark would run a job
for each reader to find it in the files.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conf.files import make_private
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
        path: its directory, which exists only once the result is complete.
    """

    vertex_id: str
    path: Path

    @property
    def in_progress(self) -> Path:
        """Return the directory to which it is written until it is complete."""
        return self.path.with_name(self.path.name + IN_PROGRESS)

    def begin(self) -> Path:
        """Remove the files of an earlier run, and return `in_progress`."""
        for leftover in (self.in_progress, self.path):
            if leftover.exists():
                shutil.rmtree(leftover)
        make_private(self.path.parent)
        return self.in_progress

    def finish(self, schema_of: Callable[[Path], str | None]) -> dict[str, Any]:
        """Move `in_progress` to the result's path; return the result's announcement, as plain data.

        Args:
            schema_of: reads a file's schema, as Spark's JSON; returns None where there is none.

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
        """Check that all its files exist; return its schema, as Spark's JSON, or None if the manifest has none.

        Raises:
            PartitionNotFoundError: some of it is missing or damaged; the message names the file.
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
        """Return the error to raise instead of *error*, if the loss of this result caused it; else None."""
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


def discard_unfinished(paths: Iterable[str]) -> None:
    """Remove the unfinished results of an attempt that did not finish; raises OSError."""
    for path in paths:
        left = ResultPartition("", Path(path)).in_progress
        if left.exists():
            shutil.rmtree(left)

"""Sends what a job imports to executors on other machines, which do not see the directories of this one.

The modules, archives and directories are packed into one archive, which Spark brings to each executor and unpacks there
once. Its name is its paths' and their times: two jobs with one environment share an archive, and two versions of a
module never meet.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
from collections.abc import Sequence
from pathlib import Path


class ShippedPath:
    """What is sent.

    Args:
        paths: modules, archives and directories, in the order in which they come on the path.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = tuple(paths)
        stamps = "\0".join(f"{path}\0{Path(path).stat().st_mtime_ns}" for path in self._paths)
        self.name = f"understudy-{hashlib.blake2b(stamps.encode(), digest_size=12).hexdigest()}"

    @property
    def entries(self) -> list[str]:
        """What comes on the path of a Python worker, below its directory of files (`SparkFiles.getRootDirectory`)."""
        return list(dict.fromkeys(self._entry(number, Path(path)) for number, path in enumerate(self._paths)))

    def _entry(self, number: int, path: Path) -> str:
        place = f"{self.name}/{number:03d}"
        return place if path.is_dir() or path.suffix == ".py" else f"{place}/{path.name}"

    def pack(self, directory: Path) -> str:
        """The archive in *directory*, made where it is missing, as `addArchive` and `addArtifacts` take it."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        target = directory / f"{self.name}.tar.gz"
        if not target.exists():
            unfinished = target.with_name(f".{os.getpid()}-{target.name}")  # another task may pack the same
            with tarfile.open(unfinished, "w:gz", compresslevel=1) as packed:
                for number, path in enumerate(map(Path, self._paths)):
                    packed.add(path, f"{number:03d}" if path.is_dir() else f"{number:03d}/{path.name}")
            unfinished.rename(target)
        return f"{target}#{self.name}"

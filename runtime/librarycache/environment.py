"""The imports of a job's code: the description of a Python environment, and the one that was built of it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import Enum
from pathlib import Path


class LibraryKind(Enum):
    """Kind of a file of an environment (Flink's ``-pyfs``, ``-pyreq`` and ``-pyarch``, and Spark's jars)."""

    PY_FILE = "py-file"
    """A module, or an archive or wheel of pure Python that is imported as it is."""
    PACKAGE = "package"
    """A wheel or source distribution to be installed, with what it needs."""
    REQUIREMENTS = "requirements"
    """A requirements file to be installed."""
    ARCHIVE = "archive"
    """A packed virtual environment, or an archive with modules at its top."""
    JAR = "jar"
    WORKING_DIRECTORY = "working-directory"
    """A directory that each attempt of the job gets a copy of, packed by `runtime.librarycache.packing`."""


@dataclass(frozen=True, slots=True, order=True)
class Library:
    """One file of an environment.

    Args:
        name: the user's own name of the file.
        kind: what it adds.
        digest: of its content, in hexadecimal.
    """

    name: str
    kind: LibraryKind
    digest: str

    def __str__(self) -> str:
        return f"{self.name} ({self.digest[:8]})"


@dataclass(frozen=True, slots=True)
class EnvironmentSpec:
    """The files of an environment, in the order in which they come on the path.

    Two jobs whose files have the same names, kinds and contents have the same environment, and share it.
    """

    libraries: tuple[Library, ...]

    @property
    def key(self) -> str:
        """A name for the environment: a digest over all of it."""
        digest = hashlib.blake2b(digest_size=16)
        for library in self.libraries:
            for text in (library.name, library.kind.value, library.digest):
                digest.update(f"{len(text)}:{text}".encode())
        return digest.hexdigest()

    def __str__(self) -> str:
        return ", ".join(str(library) for library in self.libraries) or "no files"


@dataclass(frozen=True, slots=True)
class PythonEnvironment:
    """An environment that was built.

    Args:
        directory: all of it; read only by convention, shared by the jobs that lease it.
        py_files: modules and archives, in the order given.
        site: directory of installed packages, None without any.
        archives: import directories of unpacked archives.
        jars: for the job's Spark session.
        working_directory: to be copied for each attempt; None without one.
    """

    directory: Path
    py_files: tuple[Path, ...] = ()
    site: Path | None = None
    archives: tuple[Path, ...] = ()
    jars: tuple[Path, ...] = ()
    working_directory: Path | None = None

    @property
    def import_files(self) -> tuple[str, ...]:
        """The same, but with modules themselves in the place of their directories: what Spark's workers are given."""
        others = (*self.archives, *(() if self.site is None else (self.site,)))
        return tuple(str(path) for path in (*self.py_files, *others))

    @property
    def import_path(self) -> tuple[str, ...]:
        """Entries that come first on ``sys.path``: py-files, then archives, then installed packages."""
        entries = [str(path.parent if path.suffix == ".py" else path) for path in self.py_files]
        entries += [str(path) for path in self.archives]
        if self.site is not None:
            entries.append(str(self.site))
        return tuple(dict.fromkeys(entries))

"""The imports of a job's code: the specification of a Python environment, and the environment built from it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import Enum
from pathlib import Path


class LibraryKind(Enum):
    """Kind of a file of an environment (Flink's ``-pyfs``, ``-pyreq`` and ``-pyarch``, and Spark's jars)."""

    PY_FILE = "py-file"
    """A module, or an archive or wheel of pure Python that is imported without installation."""
    PACKAGE = "package"
    """A wheel or source distribution to install, with its dependencies."""
    REQUIREMENTS = "requirements"
    """A requirements file to install."""
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
        kind: its kind.
        digest: of its content, in hexadecimal.
    """

    name: str
    kind: LibraryKind
    digest: str

    def __str__(self) -> str:
        return f"{self.name} ({self.digest[:8]})"


@dataclass(frozen=True, slots=True)
class EnvironmentSpec:
    """The files of an environment, in their order on the path.

    Two jobs whose files have the same names, kinds and contents share one environment.
    """

    libraries: tuple[Library, ...]

    @property
    def key(self) -> str:
        """Return the environment's name: a digest of all its files' names, kinds and contents."""
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
        directory: its root; read-only by convention, since all jobs that lease it share it.
        py_files: modules and archives, in the order given.
        site: directory of installed packages, None without any.
        archives: import directories of unpacked archives.
        jars: for the job's Spark session.
        working_directory: copied for each attempt; None without one.
    """

    directory: Path
    py_files: tuple[Path, ...] = ()
    site: Path | None = None
    archives: tuple[Path, ...] = ()
    jars: tuple[Path, ...] = ()
    working_directory: Path | None = None

    @property
    def import_files(self) -> tuple[str, ...]:
        """Return the files for Spark's workers: as `import_path`, but with modules instead of their directories."""
        others = (*self.archives, *(() if self.site is None else (self.site,)))
        return tuple(str(path) for path in (*self.py_files, *others))

    @property
    def import_path(self) -> tuple[str, ...]:
        """Return the first entries of ``sys.path``: py-files, then archives, then installed packages."""
        entries = [str(path.parent if path.suffix == ".py" else path) for path in self.py_files]
        entries += [str(path) for path in self.archives]
        if self.site is not None:
            entries.append(str(self.site))
        return tuple(dict.fromkeys(entries))

"""The program of an application and its result, as files in the runtime directory of its cluster."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from actors.rpc.codec import from_plain, to_plain
from conf.files import make_private, private_file, write_private
from runtime.application.state import ApplicationResult
from runtime.environment.directory import ClusterDirectory
from runtime.ids import ApplicationID
from runtime.jobgraph.codec import decode, encode
from runtime.jobgraph.job_graph import ArtifactRole
from runtime.jobgraph.working_directory import WorkingDirectory


@dataclass(frozen=True, slots=True)
class PackagedProgram:
    """The user's program (Flink's `PackagedProgram`).

    Args:
        id: of the application; the ids of its jobs come from it.
        name: shown to the user.
        file: the program; run as ``__main__``.
        argv: its arguments.
        libraries: what its jobs import: path and `ArtifactRole`; main() itself imports the py-files among them.
        environment: environment variables of main() and of its jobs; never shown.
        working_directory: where main() runs, if its process can reach it; else main() has a directory of its own, with
            a copy of the directory that was shipped, if any.
    """

    id: ApplicationID
    name: str
    file: str
    argv: tuple[str, ...]
    libraries: tuple[tuple[str, ArtifactRole], ...] = ()
    environment: dict[str, str] = field(default_factory=dict, repr=False)
    working_directory: WorkingDirectory | None = None

    @property
    def python_path(self) -> tuple[str, ...]:
        """Entries of main()'s path for its py-files: archives themselves, and the directories of modules."""
        files = [Path(path) for path, role in self.libraries if role is ArtifactRole.PY_FILE]
        return tuple(str(path.parent if path.suffix == ".py" else path) for path in files)


class ApplicationFiles:
    """The files of a cluster's one application.

    Args:
        directory: the cluster's.

    Attributes:
        work: the working directory of main(), if it does not run in its caller's.
        packed: the packed directory of which ``work`` is a copy; missing if none was shipped.
        stdout: the output of the last run of main(); ``stderr`` likewise.
    """

    def __init__(self, directory: ClusterDirectory) -> None:
        self._root = directory.application
        self._program = self._root / "program"
        self._cancelled = self._root / "cancelled"
        self._result = directory.archive / "application.json"
        self.work = self._root / "work"
        self.packed = self._root / "working-directory.zip"
        self.stdout = directory.log / "application.stdout"
        self.stderr = directory.log / "application.stderr"

    def deploy(
        self,
        application_id: ApplicationID,
        name: str,
        file: Path,
        argv: Iterable[str],
        libraries: Iterable[tuple[Path, ArtifactRole]],
        environment: Mapping[str, str] | None = None,
        working_directory: WorkingDirectory | None = None,
        packed: Path | None = None,
    ) -> PackagedProgram:
        """Copy a program and its files for the cluster that will run it; *packed* is of `ship_directory`.

        Raises:
            OSError: a file cannot be copied.
        """
        if self._root.exists():
            shutil.rmtree(self._root)
        self._result.unlink(missing_ok=True)
        make_private(self._root, durable=True)
        self.work.mkdir(mode=0o700)
        if packed is not None:
            _copy_durably(packed, self.packed)
        copies = [(self._copy(path, str(number)), role) for number, (path, role) in enumerate(libraries)]
        program = PackagedProgram(
            application_id,
            name,
            self._copy(file, "main"),
            tuple(argv),
            tuple(copies),
            dict(environment or {}),
            working_directory,
        )
        write_private(self._program, encode(program))
        return program

    def _copy(self, path: Path, folder: str) -> str:
        place = self._root / folder
        make_private(place, durable=True)
        _copy_durably(path, place / path.name)
        return str(place / path.name)

    def program(self) -> PackagedProgram:
        """Read the program that `deploy` has written. Raises OSError, WireError."""
        return decode(self._program.read_bytes(), PackagedProgram)

    def cancel(self) -> None:
        """Mark the application as cancelled, for the process that runs it now or next. Raises OSError."""
        self._cancelled.touch(mode=0o600)

    @property
    def is_cancelled(self) -> bool:
        """Return whether the application is marked as cancelled."""
        return self._cancelled.exists()

    def write_result(self, result: ApplicationResult) -> None:
        """Write how the application ended. Raises OSError."""
        write_private(self._result, json.dumps(to_plain(result)).encode())  # in JSON, as people read it later

    def result(self) -> ApplicationResult | None:
        """Return how the application ended; None while it has not. Raises OSError, WireError."""
        try:
            found: ApplicationResult = from_plain(json.loads(self._result.read_bytes()), ApplicationResult)
        except FileNotFoundError:
            return None
        return found


def _copy_durably(source: Path, target: Path) -> None:
    with source.open("rb") as reading, private_file(target) as writing:
        shutil.copyfileobj(reading, writing)

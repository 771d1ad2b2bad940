"""The program whose Spark a worker uses, as the worker's directory names it; see `runtime.embedded`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from conf.files import write_private


@dataclass(frozen=True, slots=True)
class ProgramInfo:
    """The program that embeds the cluster: its process, and the Unix socket at which it takes its task."""

    pid: int
    socket: str

    @classmethod
    def file(cls, directory: Path) -> Path:
        """Where a worker's directory says that the worker's Spark is a program's own."""
        return directory / "program.json"

    @classmethod
    def read(cls, directory: Path) -> ProgramInfo:
        """Raises OSError, ValueError."""
        return cls(**json.loads(cls.file(directory).read_bytes()))

    def write(self, directory: Path) -> None:
        """Raises OSError."""
        write_private(self.file(directory), json.dumps(asdict(self)).encode())

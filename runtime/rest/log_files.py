"""The log files of this machine's control plane. What may be read is what is listed: a name is never made into a path
unless it is in the list, and links are not followed."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from runtime.rest.errors import RestError

MAIN_LOG = "master.log"
STDOUT = "master.out"
CHUNK = 256 * 1024


@dataclass(frozen=True, slots=True)
class LogFile:
    """A log: its name, its bytes, and when it was written to last, in milliseconds since the epoch."""

    name: str
    size: int
    mtime_ms: int


def is_control_plane(name: str) -> bool:
    """Whether a file is a log of the control plane, not of a worker, which serves its own."""
    return not name.startswith(("taskmanager", "."))


def list_logs(directory: Path, wanted: Callable[[str], bool] = is_control_plane) -> list[LogFile]:
    """The plain files of a directory, by name; raises OSError."""
    found = []
    with os.scandir(directory) as entries:
        for entry in entries:
            if wanted(entry.name) and entry.is_file(follow_symlinks=False):
                status = entry.stat(follow_symlinks=False)
                found.append(LogFile(entry.name, status.st_size, status.st_mtime_ns // 1_000_000))
    return sorted(found, key=lambda log: log.name)


class OpenLog:
    """A log that is being read, as long as it was when it was opened.

    Args:
        directory: of the logs.
        name: as in `list_logs`.
        offset: the byte from which on it is read; nothing is read where it has no such byte.

    Raises:
        RestError: 404: there is no log of that name.
    """

    def __init__(self, directory: Path, name: str, offset: int = 0) -> None:
        if name not in {log.name for log in list_logs(directory)}:
            raise RestError(404, f"there is no log {name!r}; GET /jobmanager/logs shows those that there are")
        try:
            self._descriptor = os.open(directory / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise RestError(404, f"the log {name!r} cannot be read: {error.strerror}") from error
        status = os.fstat(self._descriptor)
        self.size = status.st_size if stat.S_ISREG(status.st_mode) else 0
        self._left = max(0, self.size - offset)
        if self._left:
            os.lseek(self._descriptor, offset, os.SEEK_SET)

    def read(self) -> bytes:
        """The next piece; none at the end."""
        data = os.read(self._descriptor, min(CHUNK, self._left)) if self._left else b""
        self._left -= len(data)
        return data

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

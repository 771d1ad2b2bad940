"""Small file systems of their own in the place of a cluster's directories, so that a disk can be filled for real."""

from __future__ import annotations

import errno
import subprocess
from contextlib import suppress
from pathlib import Path

SIZE = "96m"


class SmallDisk:
    """A tmpfs on one directory.

    Attributes:
        why_not: why there is none: what `mount` said; "" where there is one.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.why_not = _run("mount", "-t", "tmpfs", "-o", f"size={SIZE},mode=0700", "understudy-test", str(directory))
        self._ballast = directory / "ballast"

    def fill(self) -> None:
        """Write until nothing fits any more."""
        block = bytes(1 << 16)
        with suppress(FileNotFoundError), self._ballast.open("wb", buffering=0) as file:
            while True:
                try:
                    file.write(block)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    if len(block) == 1:
                        return
                    block = bytes(len(block) // 16)

    def free(self) -> None:
        """Make room again."""
        self._ballast.unlink(missing_ok=True)

    def close(self) -> None:
        """Take it away, with all that is on it."""
        if not self.why_not:
            self.why_not = "it was closed"
            problem = _run("umount", "--lazy", str(self._directory))
            if problem:
                raise RuntimeError(f"{self._directory} is still mounted: {problem}")


def _run(*command: str) -> str:
    """What went wrong, in words; "" where nothing did."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        return str(error)
    return "" if done.returncode == 0 else done.stderr.strip() or f"{command[0]} ended with {done.returncode}"

"""A PATH as of a machine that has no Java."""

from __future__ import annotations

import os
from pathlib import Path


def path_without_java(directory: Path) -> str:
    """Fill a new directory with links to all that is on the PATH, but for Java; it is the PATH to use."""
    directory.mkdir()
    for folder in map(Path, os.environ["PATH"].split(os.pathsep)):
        for program in folder.iterdir() if folder.is_dir() else ():
            link = directory / program.name
            if not program.name.startswith("java") and not link.is_symlink():
                link.symlink_to(program)
    return str(directory)

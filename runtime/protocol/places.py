"""Places of savepoints: local directories, and URLs of directories in remote file systems."""

from __future__ import annotations

import re
from pathlib import Path

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(?:::|://)")


def is_url(text: str) -> bool:
    """Return whether a text names a place in a remote file system, and not a local path or ``file:`` URL."""
    return _URL.match(text) is not None and not text.startswith("file:")


def place_below(parent: str, name: str) -> str:
    """Return the place of a savepoint of that name in a directory, which is local or a URL."""
    return f"{parent.rstrip('/')}/{name}" if is_url(parent) else str(Path(parent) / name)


def absolute_place(place: str | Path) -> str:
    """Return a local path as an absolute one, and a URL as it is."""
    return place if isinstance(place, str) and is_url(place) else str(Path(place).resolve())

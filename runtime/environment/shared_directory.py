"""Marks by which machines check that they see the same directory (``cluster.shared-dir``)."""

from __future__ import annotations

import contextlib
import secrets
from pathlib import Path

from conf.files import make_private, write_private

_MARK = ".understudy-{}"


def mark_shared_directory(directory: Path, cluster_id: str) -> None:
    """Create the directory with mode 0700, and write the cluster's mark, unless it has one. Raises OSError.

    The first master writes the mark. A machine that reads the same mark sees the same directory.
    """
    make_private(directory, durable=True)
    path = directory / _MARK.format(cluster_id)
    with contextlib.suppress(FileExistsError):  # another master was first
        write_private(path, secrets.token_hex(16).encode(), replace=False)


def shared_directory_mark(directory: Path, cluster_id: str) -> str:
    """Return the mark of the cluster in a directory; empty if there is none, or it cannot be read."""
    try:
        return (directory / _MARK.format(cluster_id)).read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""

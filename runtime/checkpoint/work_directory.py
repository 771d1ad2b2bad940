"""Directories in which a process makes the files of a savepoint out of another one; see `work_directory`."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from conf.files import LEFT_BEHIND_S, make_private, remove_tree
from runtime.checkpoint.errors import SavepointError

_NAME = re.compile(r"\..+\.[a-z0-9_]{8}\.[a-z]+-work")


@contextlib.contextmanager
def work_directory(target: Path, kind: str, failed: str) -> Iterator[Path]:
    """Make a hidden directory beside a result, as a context, and remove it in the end.

    It is locked while its process lives. Those that killed processes have left beside it are removed first: each may
    hold copies of all state of a job.

    Args:
        target: directory of the result.
        kind: of the work, in lower-case letters; part of the name.
        failed: begins the message of an error.

    Raises:
        SavepointError: a file cannot be read or written, here or in the block.
    """
    try:
        make_private(target.parent, durable=True)
        _remove_left_behind(target.parent)
        work = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=f".{kind}-work", dir=target.parent))
        try:
            descriptor = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                with contextlib.suppress(OSError):  # a file system without locks, where none is removed either
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield work
            finally:
                os.close(descriptor)
        finally:
            remove_tree(work)
    except OSError as error:
        raise SavepointError(f"{failed}: {error}") from error


def _remove_left_behind(parent: Path) -> None:
    for found in [path for path in parent.iterdir() if _NAME.fullmatch(path.name)]:
        with contextlib.suppress(OSError):  # its process lives, or another one removes it
            descriptor = os.open(found, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if time.time() - os.fstat(descriptor).st_mtime > LEFT_BEHIND_S:  # a new one may not be locked yet
                    remove_tree(found)
            finally:
                os.close(descriptor)

"""Removes the Unix sockets of processes that were killed: nobody listens there, and nobody else would remove them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import stat
import time
from pathlib import Path

INTERVAL_S = 60.0
LEAST_AGE_S = 10.0
"""A process binds its socket a moment before it listens."""


async def remove_abandoned_sockets(directory: Path, interval_s: float = INTERVAL_S) -> None:
    """Go on removing them; to be cancelled.

    Args:
        directory: where the processes of the cluster have their sockets.
        interval_s: seconds between two looks.
    """
    while True:
        await asyncio.sleep(interval_s)
        await asyncio.to_thread(sweep, directory, time.time() - LEAST_AGE_S)


def sweep(directory: Path, made_before: float) -> list[Path]:
    """Remove the sockets that were made before a moment (seconds since 1970) and that nobody serves; returns them."""
    removed = []
    for path in directory.glob("rpc-*"):
        with contextlib.suppress(FileNotFoundError):  # its process has ended in good order meanwhile
            found = path.stat()
            if stat.S_ISSOCK(found.st_mode) and found.st_mtime < made_before and not _is_served(path):
                path.unlink()
                removed.append(path)
    return removed


def _is_served(path: Path) -> bool:
    """Whether somebody listens there, if only one that stands still."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
        except OSError:  # many wait for it to accept them
            return True
        return True

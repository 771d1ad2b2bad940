"""Removes what killed processes left: their Unix sockets, and their children as zombies.

Nobody listens at the sockets of a process that was killed, and nobody else would remove them. An actor system's process
is a subreaper (`actors.process.thespian_base.become_subreaper`): it inherits the descendants of its children when those
have ended, so nobody else waits for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import stat
import time
from pathlib import Path

from runtime.cluster.supervisor import reap

SOCKETS_INTERVAL_S = 60.0
LEAST_AGE_S = 10.0
"""A process binds its socket a moment before it listens."""


async def remove_abandoned_sockets(directory: Path, interval_s: float = SOCKETS_INTERVAL_S) -> None:
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


CHILDREN_INTERVAL_S = 5.0


def ended_children() -> set[int]:
    """Children of this process that have ended and that nobody has waited for yet (Linux)."""
    found: set[int] = set()
    for listing in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended: another has its children
            found.update(int(word) for word in listing.read_text().split())
    return {pid for pid in found if _is_zombie(pid)}


def _is_zombie(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False  # somebody has waited for it meanwhile
    return stat.rpartition(")")[2].split()[0] == "Z"


async def collect_orphans(interval_s: float = CHILDREN_INTERVAL_S) -> None:
    """Go on collecting; to be cancelled.

    Whoever starts a child of this process also waits for it, and does so at once. So an ended child that is still there
    at the next look is nobody's.

    Args:
        interval_s: seconds between two looks.
    """
    before: set[int] = set()
    while True:
        await asyncio.sleep(interval_s)
        now = ended_children()
        for pid in before & now:
            reap(pid)
        before = now - before

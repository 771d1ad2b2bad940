"""Collects what this process has inherited: the descendants of its children, once they have ended.

An actor system's process is a subreaper (`actors.process.thespian_base.become_subreaper`): who started those has
ended before them, so nobody else waits for them, and they would stay as zombies.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from runtime.cluster.supervisor import reap

INTERVAL_S = 5.0


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


async def collect_orphans(interval_s: float = INTERVAL_S) -> None:
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

"""Whether processes live, which everything that kills some has to know."""

from __future__ import annotations

import psutil


def lives(pid: int) -> bool:
    """Whether a process may still do something, or holds a file, a lock or a port.

    One is a zombie as soon as its first thread has ended; what it holds it lets go of with the last one.
    """
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            return process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD) or process.num_threads() > 1
    except psutil.NoSuchProcess:
        return False

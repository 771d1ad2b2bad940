"""Stacks and states of this process's Python threads, for thread dumps."""

from __future__ import annotations

import sys
import threading
import traceback
from pathlib import Path

MAX_FRAMES = 64
"""Largest number of frames of one thread in a dump: the innermost ones."""


_STATES = {"R": "RUNNABLE", "D": "BLOCKED"}
"""Java's words for the kernel's states of a thread; every other is WAITING."""


def thread_states() -> dict[str, str]:
    """Return the state of each thread of this process by its name, in Java's terms.

    RUNNABLE: it has a processor, or waits for one. BLOCKED: it waits for a disk. WAITING: it waits for anything else,
    such as a lock, a socket, or the interpreter.
    """
    found = {}
    for thread in threading.enumerate():
        try:
            line = Path(f"/proc/self/task/{thread.native_id}/stat").read_text()
        except OSError:
            continue  # it has ended
        found[thread.name] = _STATES.get(line.rpartition(") ")[2][:1], "WAITING")
    return found


def thread_stacks() -> list[tuple[str, str]]:
    """Return name and stack of each thread, as in a traceback; the main thread first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    frames = sorted(sys._current_frames().items(), key=lambda item: item[0] != main)
    return [
        (names.get(ident, f"thread {ident}"), "".join(traceback.format_stack(frame, -MAX_FRAMES)))
        for ident, frame in frames
    ]

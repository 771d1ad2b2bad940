"""Where the Python threads of this process are: what a thread dump is made of."""

from __future__ import annotations

import sys
import threading
import traceback

MAX_FRAMES = 64
"""Most frames that are told of one thread, the innermost."""


def thread_stacks() -> list[tuple[str, str]]:
    """The name of each thread and where it is at present, as in a traceback; the main thread first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    frames = sorted(sys._current_frames().items(), key=lambda item: item[0] != main)
    return [
        (names.get(ident, f"thread {ident}"), "".join(traceback.format_stack(frame, -MAX_FRAMES)))
        for ident, frame in frames
    ]

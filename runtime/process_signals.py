"""Signals to processes that are known by their number, which a later process may have by now."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable


def signal_process(pid: int, number: int, is_meant: Callable[[], bool]) -> bool:
    """Send a signal to a process, if it still is the one that is meant.

    The process is held by a pidfd before it is checked. So the signal reaches the process that was checked, or none.

    Args:
        pid: its number.
        number: the signal.
        is_meant: returns whether the process that now has this number is the one that is meant. It raises OSError if
            that process has ended, or is another user's and shows nothing.

    Returns:
        whether the signal was sent.

    Raises:
        PermissionError: the process that is meant is another user's.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except (ProcessLookupError, FileNotFoundError):  # newer kernels say the latter while it is reaped
        return False
    try:
        try:
            if not is_meant():
                return False
        except OSError:
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True

"""Killing processes, and having them stand still."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

import psutil

from tests.cluster_harness import await_value
from tests.processes import lives


def _stands_still(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.NoSuchProcess:
        return False


def kill(pid: int) -> bool:
    """SIGKILL; False where there is no such process."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


@contextlib.contextmanager
def standing_still(pid: int) -> Iterator[None]:
    """The process does nothing meanwhile."""
    try:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
        await_value(lambda: _stands_still(pid) or not lives(pid))
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

"""Killing processes, and having them stand still."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

import psutil

from tests.cluster_harness import await_value

OVER = ("", psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


def state(pid: int) -> str:
    """What the process does, in psutil's words; "" where there is none."""
    try:
        return str(psutil.Process(pid).status())
    except psutil.NoSuchProcess:
        return ""


def lives(pid: int) -> bool:
    """Whether the process may still do something."""
    return state(pid) not in OVER


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
        await_value(lambda: state(pid) in (*OVER, psutil.STATUS_STOPPED))
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

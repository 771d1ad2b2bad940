"""Puts a task process under its limits, and says when it has reached one."""

from __future__ import annotations

import resource
import signal
from pathlib import Path
from types import FrameType

from runtime.spark.errors import TaskLimitError
from runtime.spark.memory_limit import limit_memory
from runtime.spark.spec import ResourceLimits

_LAST_WORDS_S = 5
"""CPU seconds between the signal that raises an exception in the job's code and the one that kills."""


def impose(limits: ResourceLimits) -> None:
    """Limit this process, and those that it starts each for itself; on the main thread."""
    if limits.memory_bytes is not None:
        limit_memory(limits.memory_bytes, for_good=True)
    if limits.cpu_s is not None:
        signal.signal(signal.SIGXCPU, lambda number, frame: _out_of_time(limits, number, frame))
        resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu_s, limits.cpu_s + _LAST_WORDS_S))


def enter(group: tuple[str, ...]) -> None:
    """Have this process, and those that it starts, in a control group.

    Raises:
        TaskLimitError: it cannot be entered.
    """
    for entry in group:
        try:
            Path(entry).write_text("0")
        except OSError as error:
            raise TaskLimitError(
                f"the task cannot enter its control group ({entry}: {error.strerror}): the TaskExecutor has to run in "
                "one below the same group, or as root (taskmanager.cgroup)"
            ) from error


def explain(error: BaseException, limits: ResourceLimits) -> str:
    """Which limit an error comes from, in words; nothing for another error."""
    if limits.memory_bytes is None or not isinstance(error, MemoryError):
        return ""
    return f"the task has reached taskmanager.task.memory.limit ({limits.memory_bytes >> 20} MB)"


def _out_of_time(limits: ResourceLimits, _number: int, _frame: FrameType | None) -> None:
    raise TaskLimitError(f"the task has reached taskmanager.task.cpu-time.limit ({limits.cpu_s} s)")

"""Runs a user's program as `__main__` in a task process, under the process's limits."""

from __future__ import annotations

import atexit
import builtins
import resource
import signal
import sys
import threading
import types
from collections.abc import Iterable
from pathlib import Path
from types import FrameType

from runtime.spark.errors import EXIT_FAILED, ScriptExitError, TaskLimitError
from runtime.spark.spec import ResourceLimits


def limit_memory(extra_bytes: int, *, for_good: bool = False) -> None:
    """Limit this process to *extra_bytes* more than it has now; further allocations fail with `MemoryError`.

    The limit counts memory that the process may write to (the kernel's RLIMIT_DATA), not files that it maps and shares.
    Unlike RLIMIT_AS, it does not count address space that allocators and threads reserve and never write to. A lower
    limit that is set already stays. The process itself cannot raise a limit that is imposed *for_good*.
    """
    status = Path("/proc/self/status").read_text()
    taken_kb = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmData:"))
    limit = taken_kb * 1024 + extra_bytes
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    for held in (soft, hard):
        if held != resource.RLIM_INFINITY:
            limit = min(limit, held)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit if for_good else hard))


_LAST_WORDS_S = 5
"""CPU seconds between the signal that raises an exception in the job's code and the signal that kills the process."""


def impose(limits: ResourceLimits) -> None:
    """Limit this process, and each process that it starts; call it on the main thread."""
    if limits.memory_bytes is not None:
        limit_memory(limits.memory_bytes, for_good=True)
    if limits.cpu_s is not None:
        signal.signal(signal.SIGXCPU, lambda number, frame: _out_of_time(limits, number, frame))
        resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu_s, limits.cpu_s + _LAST_WORDS_S))


def enter(group: tuple[str, ...]) -> None:
    """Move this process, and with it those that it starts, into a control group.

    Raises:
        TaskLimitError: the group cannot be entered.
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
    """Return a message that names the limit that caused an error; empty for another error."""
    if limits.memory_bytes is None or not isinstance(error, MemoryError):
        return ""
    return f"the task has reached taskmanager.task.memory.limit ({limits.memory_bytes >> 20} MB)"


def _out_of_time(limits: ResourceLimits, _number: int, _frame: FrameType | None) -> None:
    raise TaskLimitError(f"the task has reached taskmanager.task.cpu-time.limit ({limits.cpu_s} s)")


def run_main(file: str, argv: Iterable[str], import_path: Iterable[str], shown: str = "") -> None:
    """Run a program as the interpreter does: run its code, join its threads, call its exit functions.

    Args:
        file: the program.
        argv: its ``sys.argv``.
        import_path: first entries of `sys.path`, starting with the program's own directory.
        shown: its ``__file__``. Default: *file*.

    Raises:
        ScriptExitError: it has exited with another status than 0.
        BaseException: the program's own exceptions.
    """
    shown = shown or file
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=shown, __builtins__=builtins, __cached__=None, __spec__=None)
    sys.modules["__main__"] = main
    sys.argv = list(argv)
    sys.path[:0] = import_path
    try:
        code = compile(Path(file).read_bytes(), shown, "exec", dont_inherit=True)
        exec(code, main.__dict__)  # noqa: S102 -- running the user's program is what this process is for
    except SystemExit as leaving:
        _check_exit(leaving, Path(shown).name)
    finally:
        _wind_up()


def _wind_up() -> None:
    """Join the non-daemon threads and call the exit functions, as the interpreter does at its end."""
    shutdown = getattr(threading, "_shutdown", None)  # as multiprocessing does in its children
    if shutdown is not None:
        shutdown()
    atexit._run_exitfuncs()


def _check_exit(leaving: SystemExit, name: str) -> None:
    """Raise `ScriptExitError` if plain Python would end with another status than 0, which has one byte."""
    code = leaving.code
    if code is None:
        return
    if isinstance(code, int):
        status = int(code) & 0xFF if -sys.maxsize <= code <= sys.maxsize else 0xFF
        if status:
            raise ScriptExitError(f"{name} ended with exit status {status}", status) from None
        return
    raise ScriptExitError(f"{name} ended itself with: {code}", EXIT_FAILED, str(code)) from None

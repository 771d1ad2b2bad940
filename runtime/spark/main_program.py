"""Runs a user's program as `__main__` of this process."""

from __future__ import annotations

import atexit
import builtins
import sys
import threading
import types
from collections.abc import Iterable
from pathlib import Path

from runtime.spark.errors import EXIT_FAILED, ScriptExitError


def run_main(file: str, argv: Iterable[str], python_path: Iterable[str]) -> None:
    """What the interpreter does with a program: run it, join its threads, call its exit functions.

    Args:
        file: the program.
        argv: its arguments.
        python_path: what comes before the rest of `sys.path`, after the program's own directory.

    Raises:
        ScriptExitError: it has left with another exit status than 0.
        BaseException: whatever it raises.
    """
    path = Path(file)
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=file, __builtins__=builtins, __cached__=None, __spec__=None)
    sys.modules["__main__"] = main
    sys.argv = [file, *argv]
    sys.path[:0] = [str(path.parent), *python_path]
    try:
        code = compile(path.read_bytes(), file, "exec", dont_inherit=True)
        exec(code, main.__dict__)  # noqa: S102 -- running the user's program is what this process is for
    except SystemExit as leaving:
        _check_exit(leaving, path.name)
    finally:
        _wind_up()


def _wind_up() -> None:
    """Join the non-daemon threads and call the exit functions, as the interpreter does at its end."""
    shutdown = getattr(threading, "_shutdown", None)  # as multiprocessing does in its children
    if shutdown is not None:
        shutdown()
    atexit._run_exitfuncs()


def _check_exit(leaving: SystemExit, name: str) -> None:
    code = leaving.code
    if code is None or code == 0:
        return
    if isinstance(code, int):
        raise ScriptExitError(f"{name} ended with exit status {code}", code & 0xFF) from None
    raise ScriptExitError(f"{name} ended itself with: {code}", EXIT_FAILED) from None

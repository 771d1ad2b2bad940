"""Runs an unchanged PySpark program as `__main__` of a task process."""

from __future__ import annotations

import atexit
import sys
import threading
import types
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.readwriter import DataStreamWriter

from .classic import ClassicAttachment
from .control import Cancellation, TaskControl
from .errors import EXIT_FAILED, ScriptExitError
from .progress import ProgressReporter, TaskProgress
from .spec import TaskSpec
from .status import StatusPoller
from .streaming_writer import watch_streaming_queries


def run_script(
    spec: TaskSpec, control: TaskControl, cancellation: Cancellation, reporter: ProgressReporter, gateway: Any = None
) -> dict[str, Any]:
    """Run the task's script; return its result. Raises what the script raises.

    *gateway* is the connection to the task's Py4J server where there is one already.
    """
    if spec.classic is None:
        raise ValueError(f"task {spec.task_name!r} is a script and has no classic endpoint to attach to")
    attachment = ClassicAttachment(spec, spec.classic, cancellation, gateway)
    attachment.install()
    queries = watch_streaming_queries(spec, control, DataStreamWriter)
    if queries is not None:
        attachment.before_stop = queries.stopped_all
    cancellation.on_request(attachment.stop_spark)
    control.tell("running")
    vertex = spec.vertices[0].id
    reporter.change(TaskProgress.start, vertex, force=True)
    poller = StatusPoller(attachment.status_reader(), reporter, vertex, spec.progress_interval)
    poller.start()
    try:
        _run_main(spec)
        cancellation.checkpoint()
        attachment.warn_of_active_queries()
        if queries is not None:
            queries.warn_of_failures()
            queries.warn_of_unclaimed()
    finally:
        cancellation.close()
        poller.stop()
        attachment.close()
    return {}


def _run_main(spec: TaskSpec) -> None:
    """What the interpreter does with a program: run it, join its threads, call its exit functions."""
    path = Path(spec.file)
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=spec.file, __builtins__=__builtins__, __cached__=None, __spec__=None)
    sys.modules["__main__"] = main
    sys.argv = [spec.file, *spec.argv]
    sys.path[:0] = [str(path.parent), *spec.python_path]
    try:
        code = compile(path.read_bytes(), spec.file, "exec", dont_inherit=True)
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

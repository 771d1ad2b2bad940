"""The process of a user's main(): `python -m understudy.runtime.application.main FD PARENT`.

It has the limits of a task process, and no secret. FD is a socket, over which it receives the program to run, sends
its requests to the cluster, and reports how main() has ended. It dies with the process that started it.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from runtime.application.client import ApplicationClient, use
from runtime.errors import JobFailedError, NotebookError
from runtime.ids import JobID
from runtime.spark.errors import ScriptExitError
from runtime.spark.process import die_with
from runtime.spark.spec import ResourceLimits
from runtime.spark.task.control import describe
from runtime.spark.task.program import explain, impose, run_main
from runtime.spark.wire import BlockingChannel

_CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"  # Python's own words


def main() -> int:
    """Return the exit status: 0 if the user's main() has ended in good order, else 1."""
    descriptor, parent = int(sys.argv[1]), int(sys.argv[2])
    die_with(parent)
    channel = BlockingChannel(socket.socket(fileno=descriptor))
    os.set_inheritable(descriptor, False)
    order = channel.receive()
    if order is None:
        return 1
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    limits = ResourceLimits(order["memory_bytes"], order["cpu_s"])
    impose(limits)
    use(ApplicationClient(channel))
    shown = order["shown"]
    try:
        run_main(order["file"], order["argv"], order["import_path"], shown)
    except BaseException as error:  # any exception is the end of main()
        raised = error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)  # without this function
        described = describe(raised, {shown: Path(shown).name})
        words = explain(error, limits) or f"{described.type}: {described.message}"
        trace, said, status = described.traceback, None, None
        if isinstance(error, ScriptExitError):
            words, trace, status = str(error), "", error.status
            said = f"{error.text}\n" if error.text else ""
        elif isinstance(error, NotebookError):
            words = str(error)
            if error.details:
                trace = f"{error.details.rstrip()}\n{_CAUSE}{trace}"
        sys.stderr.write(trace if said is None else said)
        sys.stderr.flush()
        end = {"op": "failed", "error": words, "traceback": trace, "job_id": _cause(error), "exit_status": status}
        channel.send(end)
        return 1
    channel.send({"op": "finished"})
    return 0


def _cause(error: BaseException | None) -> JobID | None:
    """Return the job whose failure or cancellation main() did not handle; None if it failed for another reason."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, JobFailedError):
            return error.job_id
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None

"""The life of a task process, from the fork to its exit status.

It sends the messages of `runtime.spark.messages` to the TaskExecutor, and `Finished`, `Failed` or `Canceled` at the
end. A process that ends without one of these has crashed; its exit status shows how.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import MutableMapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from runtime.jobgraph.job_graph import JobKind
from runtime.spark.errors import EXIT_FAILED, ScriptExitError, TaskCancelled
from runtime.spark.messages import Canceled, Failed, Finished, Progress
from runtime.spark.spec import TaskSpec
from runtime.spark.task.control import Cancellation, TaskControl, describe
from runtime.spark.task.program import enter, explain, impose
from runtime.spark.task.progress import ProgressReporter, TaskProgress
from runtime.spark.wire import BlockingChannel
from runtime.trace_context import TRACEPARENT

EXIT_CANCELED = 143


def run_task(spec: TaskSpec, channel: BlockingChannel, opened: Any = None) -> int:
    """Run one task in this process, which has run none before; return its exit status.

    *opened* is the Spark session or gateway that a prepared process has open already (see `run_prepared`).
    """
    _settle(spec)
    impose(spec.limits)
    cancellation = Cancellation()
    cancellation.install()
    control = TaskControl(channel, cancellation.request)
    control.start()
    vertices = spec.descriptor.attempt.vertices
    upstream: dict[str, list[str]] = {v.id: [i.source for i in v.inputs if i.path is None] for v in vertices}
    progress = TaskProgress(upstream)
    reporter = ProgressReporter(progress, lambda vertices: control.tell(Progress(vertices)), time.monotonic)
    try:
        enter(spec.limits.group)
        finished = _run(spec, control, cancellation, reporter, opened)
    except BaseException as error:
        cancellation.close()
        if isinstance(error, TaskCancelled) or cancellation.requested.is_set():
            control.tell(Canceled())
            return EXIT_CANCELED
        _tell_failure(spec, control, error)
        return error.status if isinstance(error, ScriptExitError) else EXIT_FAILED
    reporter.change(TaskProgress.finish_all, force=True)
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    control.tell(finished)
    return 0


def _run(
    spec: TaskSpec, control: TaskControl, cancellation: Cancellation, reporter: ProgressReporter, opened: Any
) -> Finished:
    # imported here, so that the zygote may be tested and imported without pyspark
    if spec.descriptor.job.kind is JobKind.SCRIPT:
        from runtime.spark.task.classic import run_script

        return run_script(spec, control, cancellation, reporter, opened)
    from runtime.spark.task.pipeline import run_pipeline

    return run_pipeline(spec, control, cancellation, reporter, opened)


def _tell_failure(spec: TaskSpec, control: TaskControl, error: BaseException) -> None:
    described = describe(error, {spec.shown_file: Path(spec.file).name})
    if limit := explain(error, spec.limits):
        described = replace(described, message=limit)
    said = described.traceback
    if isinstance(error, ScriptExitError):  # as Python does: no traceback, only the text of `sys.exit(text)`
        described = replace(described, traceback="", exit_status=error.status)
        said = f"{error.text}\n" if error.text else ""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.write(said)
        sys.stderr.flush()
    control.tell(Failed(described))


def _settle(spec: TaskSpec) -> None:
    """Give the forked process its own output, directory, environment and random state."""
    os.chdir(spec.work_dir)
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, descriptor)
        os.close(file)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.chdir(spec.directory)
    set_variables(spec, os.environ)
    sys.dont_write_bytecode = True  # it would be useless later, and readable to others beside the job's files
    if "numpy" in sys.modules:  # Python's own generator reseeds itself after a fork
        sys.modules["numpy"].random.seed()


def set_variables(spec: TaskSpec, environment: MutableMapping[str, str]) -> None:
    """Set a task's environment variables: those of its place and its span, and over them the job's own.

    Args:
        spec: the task.
        environment: of its process, which is that of the cluster.
    """
    environment.pop(TRACEPARENT, None)  # of the command that started the cluster
    if spec.descriptor.attempt.traceparent:
        environment[TRACEPARENT] = spec.descriptor.attempt.traceparent
    environment.update({**spec.env, **spec.descriptor.job.environment})

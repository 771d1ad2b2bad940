"""Runs an unchanged PySpark program as `__main__` of a task process."""

from __future__ import annotations

from typing import Any

from pyspark.sql.streaming.readwriter import DataStreamWriter

from runtime.spark.classic import ClassicAttachment
from runtime.spark.control import Cancellation, TaskControl
from runtime.spark.main_program import run_main
from runtime.spark.progress import ProgressReporter, TaskProgress
from runtime.spark.spec import TaskSpec
from runtime.spark.status import StatusPoller
from runtime.spark.streaming_writer import watch_streaming_queries


def run_script(
    spec: TaskSpec, control: TaskControl, cancellation: Cancellation, reporter: ProgressReporter, gateway: Any = None
) -> dict[str, Any]:
    """Run the task's script; return its result. Raises what the script raises.

    *gateway* is the connection to the task's Py4J server where there is one already.
    """
    if spec.classic is None:
        raise ValueError(
            f"task {spec.descriptor.attempt.task_name!r} is a script and has no classic endpoint to attach to"
        )
    attachment = ClassicAttachment(spec, spec.classic, cancellation, gateway)
    attachment.install()
    queries = watch_streaming_queries(spec, control, DataStreamWriter)
    if queries is not None:
        attachment.before_stop = queries.stopped_all
    cancellation.on_request(attachment.stop_spark)
    control.tell("running")
    vertex = spec.descriptor.attempt.vertices[0].id
    reporter.change(TaskProgress.start, vertex, force=True)
    poller = StatusPoller(attachment.status_reader(), reporter, vertex, spec.progress_interval)
    poller.start()
    try:
        run_main(spec.file, spec.descriptor.job.argv, spec.python_path)
        cancellation.checkpoint()
        attachment.warn_of_active_queries()
        if queries is not None:
            queries.warn_of_failures()
            queries.warn_of_unclaimed()
            return queries.summary()
        return {}
    finally:
        cancellation.close()
        poller.stop()
        attachment.close()

"""The Python daemons of the driver JVM: Spark keeps one for each set of environment variables, until the JVM ends.

Tasks without files of their own share one daemon, which is warm. A task with py-files has one of its own, which has to
be ended with the task.
"""

from __future__ import annotations

import contextlib

import psutil

from runtime.spark.process import children_of

WORKER_VARIABLE = "UNDERSTUDY_TASK"
"""In the environment of the Python workers of a classic task with py-files: the task's name."""

ARTIFACT_VARIABLE = "SPARK_JOB_ARTIFACT_UUID"
"""In the environment of the Python workers of an artifact set: the UUID of its Connect session, or the name of the
script's task. Set by Spark."""


def kill_workers(driver: int, name: str) -> None:
    """Kill the Python daemons, with their workers, of a task or of an artifact set, by its name."""
    for process in children_of(driver):
        with contextlib.suppress(psutil.Error):
            environment = process.environ()
            if name in (environment.get(WORKER_VARIABLE), environment.get(ARTIFACT_VARIABLE)):
                process.kill()


def kill_abandoned(driver: int) -> str:
    """Kill the Python workers that the JVM has hung up on; return in words which they were, nothing for none.

    Where a task of Spark's is interrupted, Spark closes the connection to its Python worker and forgets it. A worker
    that waits for its next task ends; one that is inside the job's own code goes on with it, for as long as that takes.
    """
    found = []
    for process in children_of(driver):
        with contextlib.suppress(psutil.Error):
            if any(item.status == psutil.CONN_CLOSE_WAIT for item in process.net_connections("tcp")):
                process.kill()
                found.append(f"Python worker {process.pid}")
    return ", ".join(found)

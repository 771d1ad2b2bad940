"""The exceptions of the Spark runtime. Their messages name the thing, the cause and the remedy."""

from __future__ import annotations

import actors.errors

EXIT_FAILED = 1
"""Exit status of a task process whose code has failed, unless the code sets another one."""

STOP_REFUSED = "Cannot stop SparkContext within listener bus thread"
"""Spark's message when `runtime.spark.driver.script_application` has forbidden a stop."""


class SparkError(Exception):
    """Root of all errors raised by `runtime.spark` outside of a task process."""


class JavaNotFoundError(SparkError):
    """No usable Java runtime was found."""


class UnsupportedJavaError(SparkError):
    """A Java runtime was found, but Spark does not run on its version."""


class DriverError(SparkError):
    """Root of the errors of the driver JVM."""


class DriverStartError(DriverError):
    """The driver JVM ended, or did not answer in time, while it was being started."""


class PackagesError(SparkError):
    """A Maven package is not available; the message is one line that names it, the cause and the remedy."""


class DriverLostError(DriverError):
    """The driver JVM has ended, or another process answers at its address."""


class DriverCallError(DriverError):
    """A call into a living driver JVM failed; the Java exception is the message."""


class HistoryServerError(SparkError):
    """Spark's History Server ended, or did not listen in time."""


class UnsupportedByEndpointError(DriverError):
    """The task needs a feature of Spark that an external endpoint does not offer."""


class StillRunningError(DriverError):
    """Work that a task left running in the driver JVM does not end."""


class ZygoteError(SparkError):
    """The zygote could not be started, or could not fork a task process."""


class ZygoteLostError(ZygoteError):
    """The zygote died; it took its task processes with it."""


class WireError(SparkError, actors.errors.WireError):
    """A peer of a control socket sent invalid data."""


class TaskError(Exception):
    """Root of the errors that a task process finds in a job's code, beside the code's own exceptions."""


class ScriptExitError(TaskError):
    """The script ended itself with a non-zero exit status; as in the interpreter, a text counts as 1.

    Args:
        message: the error message.
        status: the exit status.
        text: the argument of `sys.exit(text)`; empty for a script that ended itself in another way.
    """

    def __init__(self, message: str, status: int, text: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.text = text


class TaskLimitError(TaskError):
    """The task's process has reached one of its limits."""


class QueryRunsAlreadyError(TaskError):
    """A streaming query cannot be started: a query of its id runs in the task's Spark driver."""


class QueryLostError(TaskError):
    """A streaming query has ended without a failure, and the task's code has not stopped it."""


class SharedDriverError(TaskError):
    """The script changes something in Spark that would affect every job of the driver."""


class VertexResultError(TaskError):
    """A vertex function returned a value that does not fit its edges."""


class PartitionNotFoundError(TaskError):
    """A materialised result that the task reads is missing or incomplete, and has to be computed again.

    Args:
        vertex_id: the vertex that makes it.
        message: names the missing files.
    """

    def __init__(self, vertex_id: str, message: str) -> None:
        super().__init__(message)
        self.vertex_id = vertex_id


class VertexFunctionError(TaskError):
    """A vertex refers to a function that its job file does not define."""


class FunctionTaskError(TaskError):
    """A function cannot be run as a job, or its result cannot be pickled."""


class StartRefusedError(SparkError):
    """A streaming query is not started, because the job is stopped with a savepoint."""


class TaskCancelled(KeyboardInterrupt):
    """Raised inside the user's code when its task is cancelled.

    It is a `KeyboardInterrupt`, so that scripts that end cleanly on Ctrl-C do the same on a cancel, and
    `except Exception` does not catch it.
    """

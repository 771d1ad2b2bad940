"""The exceptions of the Spark vehicle. Their messages name the thing, the cause and the remedy."""

from __future__ import annotations

import actors.errors

EXIT_FAILED = 1
"""Exit status of a task process whose code has failed, unless it says another itself."""

STOP_REFUSED = "Cannot stop SparkContext within listener bus thread"
"""Spark's message where `runtime.spark.driver.script_application` has refused a stop."""


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


class DriverLostError(DriverError):
    """The driver JVM is gone, or what answers at its address is not the one that was started."""


class DriverCallError(DriverError):
    """A call into a living driver JVM failed; the Java exception is the message."""


class UnsupportedByEndpointError(DriverError):
    """The task needs something of Spark that an endpoint of somebody else's does not give."""


class StillRunningError(DriverError):
    """Work that a task left running in the driver JVM does not end."""


class ZygoteError(SparkError):
    """The zygote could not be started, or could not fork a task process."""


class ZygoteLostError(ZygoteError):
    """The zygote died; it took its task processes with it."""


class WireError(SparkError, actors.errors.WireError):
    """A peer of a control socket sent something that is not a frame."""


class TaskError(Exception):
    """Root of the errors that a task process finds in a job's code, beside the code's own exceptions."""


class ScriptExitError(TaskError):
    """The script ended itself with a non-zero exit status, as the interpreter understands it: 1 for a text.

    Args:
        message: says so.
        status: the exit status.
        text: of a script that ends itself with a text, as `sys.exit(text)`; else empty.
    """

    def __init__(self, message: str, status: int, text: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.text = text


class TaskLimitError(TaskError):
    """The task's process has used as much of something as it may."""


class QueryRunsAlreadyError(TaskError):
    """A streaming query cannot be started: one of its id runs in the task's Spark driver."""


class QueryLostError(TaskError):
    """A streaming query has ended without a failure, and the task's code has not stopped it."""


class SharedDriverError(TaskError):
    """The script asks Spark for something that every job of the driver would get."""


class VertexResultError(TaskError):
    """A vertex function returned something else than its edges need."""


class PartitionNotFoundError(TaskError):
    """A materialised result that the task reads is not there (any more), or not whole: it has to be made again.

    Args:
        vertex_id: the vertex that makes it.
        message: what is missing.
    """

    def __init__(self, vertex_id: str, message: str) -> None:
        super().__init__(message)
        self.vertex_id = vertex_id


class VertexFunctionError(TaskError):
    """A vertex refers to a function that its job file does not define."""


class FunctionTaskError(TaskError):
    """A function cannot be run as a job, or what it returns cannot travel."""


class TaskCancelled(KeyboardInterrupt):
    """Raised inside the user's code when its task is cancelled.

    It is a `KeyboardInterrupt`, so that scripts which end themselves cleanly on Ctrl-C do the same on a cancel, and
    `except Exception` does not swallow it.
    """

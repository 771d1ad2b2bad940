"""What of the driver JVM is looked up once: with Py4J every name on the way to a class is a question to the JVM."""

from __future__ import annotations

from functools import cached_property
from typing import Any

_SESSION_KEY = "org.apache.spark.sql.connect.service.SessionKey"
_CONNECT_SERVICE = "org.apache.spark.sql.connect.service.SparkConnectService$"


class JvmHandles:
    """Classes, methods and singletons of one JVM, which live as long as it does. Thread-safe.

    Args:
        jvm: Py4J's view of the JVM.
    """

    def __init__(self, jvm: Any) -> None:
        self.jvm = jvm

    @cached_property
    def properties(self) -> Any:
        """The system properties."""
        return self.jvm.java.lang.System.getProperties()

    @cached_property
    def as_java(self) -> Any:
        """Makes a Java collection of one of Scala's."""
        return self.jvm.scala.jdk.javaapi.CollectionConverters.asJava

    @cached_property
    def await_result(self) -> Any:
        """Waits for a Scala future, with a duration."""
        return self.jvm.scala.concurrent.Await.result

    @cached_property
    def new_duration(self) -> Any:
        """Makes a Scala duration of a text."""
        return self.jvm.scala.concurrent.duration.Duration.create

    @cached_property
    def all_stack_traces(self) -> Any:
        """Returns the stacks of all threads."""
        return self.jvm.java.lang.Thread.getAllStackTraces

    @cached_property
    def unsuccessful(self) -> list[Any]:
        """The states of Spark jobs that run or did not succeed."""
        status = self.jvm.org.apache.spark.JobExecutionStatus
        return [status.RUNNING, status.FAILED]

    @cached_property
    def connect_service(self) -> Any:
        """The Spark Connect server."""
        return getattr(getattr(self.jvm, _CONNECT_SERVICE), "MODULE$")

    @cached_property
    def session_manager(self) -> Any:
        """The sessions of the Spark Connect server."""
        return self.connect_service.sessionManager()

    @cached_property
    def new_session_key(self) -> Any:
        """Makes the key of a Connect session of a user id and a session id."""
        return getattr(self.jvm, _SESSION_KEY)

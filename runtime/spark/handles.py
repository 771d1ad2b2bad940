"""What of the driver JVM is looked up once: with Py4J every name on the way to a class is a question to the JVM."""

from __future__ import annotations

from functools import cached_property
from typing import Any

REGISTRY_KEY = "understudy.tasks"
"""System property under which the JVM keeps the open task servers: an adopter finds those of its predecessor there."""
LOCKS_KEY = "understudy.locks"
"""System property under which the JVM keeps the files that it has locked for tasks."""
BASELINE_KEY = "understudy.properties"
"""System property under which the JVM keeps its first system properties."""
OWN_KEYS = (REGISTRY_KEY, LOCKS_KEY, BASELINE_KEY)
"""System properties that stay at the end of a script: an adopter of the JVM finds there what it has to know."""

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
    def beans(self) -> Any:
        """Where the JVM's beans of management are found (Java's `ManagementFactory`)."""
        return self.jvm.java.lang.management.ManagementFactory

    @cached_property
    def memory_bean(self) -> Any:
        """Tells the JVM's memory."""
        return self.beans.getMemoryMXBean()

    @cached_property
    def metaspace_beans(self) -> list[Any]:
        """Tells the memory of the JVM's classes, where the JVM is of the HotSpot kind; others have no such pool."""
        return [bean for bean in self.beans.getMemoryPoolMXBeans() if bean.getName() == "Metaspace"]

    @cached_property
    def buffer_beans(self) -> dict[str, Any]:
        """Tell the memory of ``direct`` and ``mapped`` buffers, by that name."""
        kind = self.jvm.java.lang.Class.forName("java.lang.management.BufferPoolMXBean")
        found = {str(bean.getName()): bean for bean in self.beans.getPlatformMXBeans(kind)}
        return {name: found[name] for name in ("direct", "mapped")}

    @cached_property
    def collector_beans(self) -> dict[str, Any]:
        """Tell what the JVM's garbage collectors did, by their names."""
        return {str(bean.getName()): bean for bean in self.beans.getGarbageCollectorMXBeans()}

    @cached_property
    def class_bean(self) -> Any:
        """Tells how many classes were loaded."""
        return self.beans.getClassLoadingMXBean()

    @cached_property
    def thread_bean(self) -> Any:
        """Tells how many threads the JVM has."""
        return self.beans.getThreadMXBean()

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

    @cached_property
    def as_scala(self) -> Any:
        """Makes a Scala collection of one of Java's."""
        return self.jvm.scala.jdk.javaapi.CollectionConverters.asScala

    @cached_property
    def none(self) -> Any:
        """Scala's `None`."""
        return getattr(getattr(self.jvm, "scala.None$"), "MODULE$")

    @cached_property
    def empty_map(self) -> Any:
        """Scala's immutable map of nothing."""
        return getattr(getattr(self.jvm, "scala.collection.immutable.Map$"), "MODULE$").empty()

    def new_kryo(self) -> Any:
        """A copier of objects, for one thread."""
        kryo = self.jvm.com.esotericsoftware.kryo.Kryo()
        kryo.setInstantiatorStrategy(self.jvm.org.objenesis.strategy.StdInstantiatorStrategy())
        return kryo

    @cached_property
    def within_listener_thread(self) -> Any:
        """Spark's mark of threads that may not stop a SparkContext."""
        bus = getattr(getattr(self.jvm, "org.apache.spark.scheduler.LiveListenerBus$"), "MODULE$")
        return bus.withinListenerThread()

    @cached_property
    def active_streaming_context(self) -> Any:
        """Returns the JVM's running StreamingContext, as an option."""
        return self.jvm.org.apache.spark.streaming.StreamingContext.getActive

    @cached_property
    def set_default_session(self) -> Any:
        """Sets the JVM's default session."""
        return getattr(self.jvm, "org.apache.spark.sql.classic.SparkSession").setDefaultSession

    @cached_property
    def set_log_level(self) -> Any:
        """Sets the level of the root logger."""
        return self.jvm.org.apache.logging.log4j.core.config.Configurator.setRootLevel

    @cached_property
    def log_level(self) -> Any:
        """The level that Spark's log begins with; see `runtime.spark.launch`."""
        return self.jvm.org.apache.logging.log4j.Level.INFO

    @cached_property
    def files_directory(self) -> str:
        """Where Spark keeps what was added, in the driver."""
        return str(self.jvm.org.apache.spark.SparkFiles.getRootDirectory())

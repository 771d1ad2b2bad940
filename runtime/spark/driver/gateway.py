"""Calls into the driver JVM over Py4J, blocking; `SparkDriver` runs them on its executor. Needs py4j, not pyspark.

Every task has a Py4J server of its own (6 ms), so that its Java objects are released with it. The server is started
from a JVM thread that carries the task's Spark job tag and SQL session: the threads that serve the task inherit both,
which is why every Spark job of a task bears its tag, whatever thread of the task started it.
"""

from __future__ import annotations

import contextlib
import logging
import re
import secrets
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from py4j.clientserver import ClientServer, JavaParameters, PythonParameters
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError

from runtime.spark.driver.api import StoppedQueries, StreamingQueryInfo
from runtime.spark.driver.jvm import (
    REGISTRY_KEY,
    JvmHandles,
    LeftoverSparkWork,
    lock_file,
    query_info,
    stop_at_boundary,
    unlock_files,
)
from runtime.spark.driver.script_application import ScriptApplications
from runtime.spark.errors import DriverCallError, DriverLostError
from runtime.spark.spec import ClassicEndpoint, ConnectEndpoint

TAG_PREFIX = "understudy-task-"
_JAVA_SPARK_CONTEXT = "org.apache.spark.api.java.JavaSparkContext"
_MEMORY = re.compile(r"= (-?\d+)\(")
"""A number in Java's `MemoryUsage.toString`: ``used = 178736408(174547K)``. All four in one call."""

ALL_COLLECTORS = "GarbageCollector.All"
_SPARK_SESSION = "org.apache.spark.sql.classic.SparkSession"


class DriverGateway:
    """The blocking Py4J client of a driver. Thread-safe; each calling thread has a JVM thread of its own."""

    def __init__(self, port: int, secret: str) -> None:
        self._server: Any = ClientServer(
            java_parameters=JavaParameters(port=port, auth_token=secret, auto_convert=True),
            python_parameters=PythonParameters(port=0, eager_load=False),
        )
        self._handles = JvmHandles(self._server.jvm)
        self._context: Any = None
        self._session: Any = None

    def close(self) -> None:
        """Close the connections; the JVM goes on."""
        self._server.close()
        self._server._gateway_client.is_connected = False  # Py4J would go on to release objects of a JVM that is gone

    # --- the driver as a whole

    def create_context(self, conf: dict[str, str]) -> None:
        """Create the JVM's SparkContext and root session. The settings travel here, so that secrets stay off `ps`."""
        with _calls():
            java_conf = self._jvm.org.apache.spark.SparkConf(False)
            for key, value in conf.items():
                java_conf.set(key, value)
            context = getattr(self._jvm, _JAVA_SPARK_CONTEXT)(java_conf)
            # the constructor makes a session of its own and does not touch the default one
            session = getattr(self._jvm, _SPARK_SESSION)(context.sc())
            session_class = getattr(self._jvm, _SPARK_SESSION)
            session_class.setDefaultSession(session)
            registry = self._jvm.java.util.concurrent.ConcurrentHashMap()
            self._handles.properties.put(REGISTRY_KEY, registry)
            self._context, self._session = context, session
            self._applications.note_baseline()

    def attach(self) -> None:
        """Find the SparkContext and root session that the JVM has. Raises `DriverLostError` where it has none."""
        with _calls():
            default = getattr(self._jvm, _SPARK_SESSION).getDefaultSession()
            if default.isEmpty():
                raise DriverLostError("the driver JVM has no SparkContext: it was stopped; start the driver again")
            self._session = default.get()
            self._context = getattr(self._jvm, _JAVA_SPARK_CONTEXT).fromSparkContext(self._session.sparkContext())

    def ping(self) -> bool:
        """Whether the JVM answers and its SparkContext is not stopped."""
        with _calls():
            return not self._context.sc().isStopped()

    def pid(self) -> int:
        """The JVM's process id, as it sees it."""
        with _calls():
            return int(self._jvm.java.lang.ProcessHandle.current().pid())

    def jvm_figures(self) -> dict[str, int]:
        """What the JVM says of itself, by the names of Flink's metrics below ``Status.JVM`` (Flink's `MetricUtils`).

        Memory is in bytes (a maximum of -1: none), times of garbage collection are in milliseconds since the start.
        """
        with _calls():
            beans = self._handles
            found: dict[str, int] = {
                "ClassLoader.ClassesLoaded": beans.class_bean.getTotalLoadedClassCount(),
                "ClassLoader.ClassesUnloaded": beans.class_bean.getUnloadedClassCount(),
                "Threads.Count": beans.thread_bean.getThreadCount(),
            }
            for name, usage in (
                ("Heap", beans.memory_bean.getHeapMemoryUsage()),
                ("NonHeap", beans.memory_bean.getNonHeapMemoryUsage()),
                *(("Metaspace", bean.getUsage()) for bean in beans.metaspace_beans),
            ):
                _, *numbers = (int(number) for number in _MEMORY.findall(str(usage.toString())))
                found |= zip((f"Memory.{name}.{part}" for part in ("Used", "Committed", "Max")), numbers, strict=True)
            for name, bean in beans.buffer_beans.items():
                pool = f"Memory.{name.capitalize()}"
                found[f"{pool}.Count"] = bean.getCount()
                found[f"{pool}.MemoryUsed"] = bean.getMemoryUsed()
                found[f"{pool}.TotalCapacity"] = bean.getTotalCapacity()
            collectors = [
                (bean.getCollectionCount(), bean.getCollectionTime()) for bean in beans.collector_beans.values()
            ]
            names = [f"GarbageCollector.{name.replace(' ', '_')}" for name in beans.collector_beans]
            totals = (sum(count for count, _ in collectors), sum(spent for _, spent in collectors))
            for name, (count, spent) in zip([*names, ALL_COLLECTORS], [*collectors, totals], strict=True):
                found |= {f"{name}.Count": count, f"{name}.Time": spent}
            return found

    def shares_classes(self) -> bool:
        """Whether the JVM runs with a class-data-sharing archive."""
        with _calls():
            return "sharing" in str(self._jvm.java.lang.System.getProperty("java.vm.info"))

    def connect_port(self) -> int:
        """The port of the Spark Connect server."""
        with _calls():
            return int(self._handles.connect_service.localPort())

    def warm_up(self) -> None:
        """Load Spark's SQL engine: one small query with a shuffle, 1 to 3 s in a cold JVM."""
        with _calls():
            self._session.sql("SELECT id % 7, count(*) FROM range(1000) GROUP BY 1").count()

    # --- classic tasks

    def open_classic(self, name: str, output: str, alone: bool) -> ClassicEndpoint:
        """Start a Py4J server for one task, with a SQL session of its own.

        What Spark prints for it (the console sink of streaming queries) is appended to the file *output*. A task that
        is *alone* has the driver to itself, and gets Spark as it is; others see `script_application`.
        """
        with _calls():
            if alone:
                return self._open_classic(name, output, self._session.newSession(), alone)
            with self._applications.refuse_stop():
                return self._open_classic(name, output, self._applications.create(), alone)

    def _open_classic(self, name: str, output: str, session: Any, alone: bool) -> ClassicEndpoint:
        endpoint_secret = secrets.token_hex(32)
        tag = TAG_PREFIX + name
        sessions = self._jvm.java.util.Vector()
        sessions.add(session)
        loopback = self._jvm.java.net.InetAddress.getByName("127.0.0.1")
        builder = getattr(self._jvm, "py4j.ClientServer$ClientServerBuilder")(sessions)
        builder.authToken(endpoint_secret).javaPort(0).javaAddress(loopback)
        session_class = getattr(self._jvm, _SPARK_SESSION)
        console = getattr(getattr(self._jvm, "scala.Console$"), "MODULE$")
        shared_output = console.out()
        own_output = self._jvm.java.io.PrintStream(self._jvm.java.io.FileOutputStream(output, True), True)
        # this thread of ours is one thread of the JVM's too, from here to the `finally`
        console.setOutDirect(own_output)
        self._context.sc().addJobTag(tag)
        self._context.sc().setInterruptOnCancel(True)  # as Connect does: a cancel is to end what blocks, too
        session_class.setActiveSession(session)
        try:
            server = builder.build()  # starts it, too
        finally:
            console.setOutDirect(shared_output)
            session_class.clearActiveSession()
            self._context.sc().setInterruptOnCancel(False)
            self._context.sc().clearJobTags()
        port = int(server.getJavaServer().getListeningPort())
        entry = self._jvm.java.util.ArrayList()
        entry.add(server)
        entry.add(sessions)
        entry.add(own_output)
        self._registry().put(name, entry)
        return ClassicEndpoint(name, port, endpoint_secret, tag, alone)

    def close_classic(self, name: str, interrupted: bool) -> LeftoverSparkWork:
        """Cancel what a task left running, stop its streaming queries, close its server. May be repeated.

        `interrupted`: see `LeftoverSparkWork`. Returns what to look at until it has all ended; see `still_runs`.
        """
        with _calls():
            self._close_classic(name)
            tag = TAG_PREFIX + name
            return LeftoverSparkWork(self._handles, self._context, (tag,), tag, (tag,), interrupted)

    def still_runs(self, remains: LeftoverSparkWork) -> str:
        """What of a task that was ended has not ended yet, in words; nothing where all has."""
        with _calls():
            return remains.look()

    def _close_classic(self, name: str) -> None:
        entry = self._registry().remove(name)
        self._context.sc().cancelJobsWithTag(TAG_PREFIX + name)
        if entry is None:
            return
        server, sessions = entry.get(0), entry.get(1)
        for session in list(sessions):
            for query in list(session.streams().active()):
                query.stop()
        server.shutdown()
        entry.get(2).close()
        self._applications.end(name, sessions.get(0))

    def classic_names(self) -> list[str]:
        """Names of the tasks that have a server."""
        with _calls():
            return [str(name) for name in self._registry().keySet()]

    # --- file locks

    def lock_file(self, path: str, owner: str) -> bool:
        """See `runtime.spark.driver.jvm`."""
        with _calls():
            return lock_file(self._handles, path, owner)

    def unlock_files(self, owner: str | None = None) -> None:
        """See `runtime.spark.driver.jvm`."""
        with _calls():
            unlock_files(self._handles, owner)

    # --- Spark jobs

    def active_jobs(self, tag: str) -> list[int]:
        """Ids of the running Spark jobs that bear a tag, or a tag that starts with it."""
        with _calls():
            tracker = self._context.sc().statusTracker()
            store = self._context.sc().statusStore()
            found = []
            for job_id in tracker.getActiveJobIds():
                with contextlib.suppress(Py4JJavaError):  # NoSuchElementException: it is over, and out of the store
                    tags = self._handles.as_java(store.job(job_id).jobTags())
                    if any(str(item).startswith(tag) for item in tags):
                        found.append(int(job_id))
            return sorted(found)

    def cancel_tag(self, tag: str) -> None:
        """Cancel the Spark jobs that bear a tag."""
        with _calls():
            self._context.sc().cancelJobsWithTag(tag)

    def cancel_all(self) -> None:
        """Cancel every Spark job of the driver."""
        with _calls():
            self._context.sc().cancelAllJobs()

    # --- Connect sessions

    def open_session(self, user_id: str, session_id: str) -> None:
        """Create a Connect session whose artifacts (py-files, jars) are its own.

        A session that a client makes has its isolation decided before the client can ask for it.
        """
        with _calls():
            session = self._session.newSession()
            session.conf().set("spark.sql.artifact.isolation.enabled", "true")
            session.conf().set("spark.sql.artifact.isolation.alwaysApplyClassloader", "true")
            self._handles.session_manager.registerExistingSession(user_id, session_id, session)

    def interrupt_session(self, user_id: str, session_id: str) -> None:
        """Interrupt everything that a Connect session runs."""
        with _calls():
            holder = self._holder(user_id, session_id)
            if holder is not None:
                holder.interruptAll()

    def release_session(self, user_id: str, session_id: str, interrupted: bool) -> tuple[str, LeftoverSparkWork] | None:
        """Interrupt a Connect session, stop its streaming queries and close it.

        `interrupted`: see `LeftoverSparkWork`. Returns the UUID of its Spark session, and what is to be looked at until
        it has all ended (`still_runs`). One that never was opened is no error, and returns None.
        """
        with _calls():
            holder = self._holder(user_id, session_id)
            if holder is None:
                return None
            uuid = str(holder.session().sessionUUID())
            operations = [str(item) for item in self._handles.as_java(holder.listActiveOperationIds())]
            holder.interruptAll()
            for query in list(holder.session().streams().active()):
                query.stop()
            self._handles.session_manager.closeSession(self._handles.new_session_key(user_id, session_id), False)
            prefix = operation_tag(user_id, session_id)
            tags = [prefix + item for item in operations]
            threads = [f"SparkConnectExecuteThread_opId={item}" for item in operations]
            return uuid, LeftoverSparkWork(self._handles, self._context, tags, prefix, threads, interrupted)

    def connect_sessions(self) -> list[tuple[str, str]]:
        """User and id of the open Connect sessions."""
        with _calls():
            infos = self._handles.as_java(self._handles.session_manager.listActiveSessions())
            return [(str(info.userId()), str(info.sessionId())) for info in infos]

    def configure_session(self, user_id: str, session_id: str, conf: Mapping[str, str]) -> bool:
        """Set configuration of a Connect session; whether it is open."""
        with _calls():
            holder = self._holder(user_id, session_id)
            if holder is None:
                return False
            settings = holder.session().conf()
            for key, value in conf.items():
                settings.set(key, value)
            return True

    def session_queries(self, user_id: str, session_id: str) -> list[StreamingQueryInfo]:
        """The running streaming queries of a Connect session."""
        with _calls():
            holder = self._holder(user_id, session_id)
            return [] if holder is None else [query_info(q) for q in holder.session().streams().active()]

    def classic_queries(self, name: str) -> list[StreamingQueryInfo]:
        """The running streaming queries of a classic task."""
        with _calls():
            entry = self._registry().get(name)
            sessions = [] if entry is None else list(entry.get(1))
            return [query_info(query) for session in sessions for query in session.streams().active()]

    def active_classic_queries(self, name: str) -> list[Any]:
        """The running streaming queries of a classic task, for `stop_at_boundary`."""
        with _calls():
            entry = self._registry().get(name)
            sessions = [] if entry is None else list(entry.get(1))
            return [query for session in sessions for query in session.streams().active()]

    def active_session_queries(self, user_id: str, session_id: str) -> list[Any]:
        """The running streaming queries of a Connect session, for `stop_at_boundary`."""
        with _calls():
            holder = self._holder(user_id, session_id)
            return [] if holder is None else list(holder.session().streams().active())

    def stop_at_boundary(self, queries: list[Any], drain: bool, timeout_s: float) -> StoppedQueries:
        """Stop streaming queries between two batches; see `runtime.spark.driver.jvm`."""
        with _calls():
            return stop_at_boundary(queries, drain=drain, timeout_s=timeout_s)

    def stop_queries(self) -> None:
        """Stop every streaming query of the driver."""
        with _calls():
            active = self._session.sharedState().activeStreamingQueries()
            for query in list(active.values()):
                query.stop()

    @property
    def _jvm(self) -> Any:
        return self._handles.jvm

    @cached_property
    def _applications(self) -> ScriptApplications:
        return ScriptApplications(self._handles, self._context.sc(), self._session)

    def _registry(self) -> Any:
        return self._handles.properties.get(REGISTRY_KEY)

    def _holder(self, user_id: str, session_id: str) -> Any:
        found = self._handles.session_manager.getIsolatedSessionIfPresent(
            self._handles.new_session_key(user_id, session_id)
        )
        return found.get() if found.isDefined() else None


def operation_tag(user_id: str, session_id: str) -> str:
    """What the Spark job tags of a Connect session's operations begin with; the operation's id follows."""
    return f"SparkConnect_OperationTag_User_{user_id}_Session_{session_id}_Operation_"


def job_tag(endpoint: ClassicEndpoint | ConnectEndpoint) -> str:
    """The Spark job tag of a task; Connect's is one for each operation, and this what they begin with."""
    if isinstance(endpoint, ClassicEndpoint):
        return endpoint.tag
    return operation_tag(endpoint.user_id, endpoint.session_id)


@contextlib.contextmanager
def _calls() -> Iterator[None]:
    """Turn Py4J's errors into ours: the JVM is gone, or it answered with an exception."""
    try:
        yield
    except (Py4JNetworkError, ConnectionError) as error:
        raise DriverLostError(f"the driver JVM does not answer: {error}") from error
    except Py4JJavaError as error:
        raise DriverCallError(str(error.java_exception)) from error
    except Py4JError as error:
        raise DriverCallError(str(error).strip()) from error


logging.getLogger("py4j").setLevel(logging.CRITICAL)
"""Py4J logs every refused connection with a traceback; the exception that follows says the same."""

"""Blocking calls into the driver JVM over Py4J; `SparkDriver` runs them on a thread pool. Needs py4j, not pyspark.

Every task has its own Py4J server (started in 6 ms), so that its Java objects are released with it. A JVM thread with
the task's Spark job tag and SQL session starts the server. The threads that serve the task inherit both, so every Spark
job of a task bears its tag, whatever thread of the task started it.
"""

from __future__ import annotations

import contextlib
import logging
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from py4j.clientserver import ClientServer, JavaParameters, PythonParameters
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError

from conf.files import write_private
from runtime.protocol.descriptor import EndedSparkJob
from runtime.spark.driver.api import ActiveQueries, SparkEndpoint, StoppedQueries, StreamingQueryInfo
from runtime.spark.driver.jvm import (
    JAVA_SPARK_CONTEXT,
    REGISTRY_KEY,
    SPARK_SESSION,
    JvmHandles,
    LeftoverSparkWork,
    ended_job,
    holds,
    is_taken_at_start,
    lock_file,
    query_info,
    stop_at_boundary,
    unlock_files,
)
from runtime.spark.driver.packages import OFFLINE_SETTINGS, PackageRequest
from runtime.spark.driver.script_application import ScriptApplications
from runtime.spark.driver.state_writer import NewFamily, StatePlace, StateWriter
from runtime.spark.driver.tables import TableRecord
from runtime.spark.errors import DriverCallError, DriverLostError, PackagesError
from runtime.spark.spec import ClassicEndpoint, ConnectEndpoint

logger = logging.getLogger(__name__)

TAG_PREFIX = "understudy-task-"
OFFERED = "program"
"""Name in the JVM's registry for the sessions of a program that has offered its JVM."""

_MEMORY = re.compile(r"= (-?\d+)\(")
"""A number in Java's `MemoryUsage.toString`: ``used = 178736408(174547K)``. All four in one call."""

ALL_COLLECTORS = "GarbageCollector.All"

_MOST_KNOWN_RUNS = 256
"""Number of runs of streaming queries whose last batch is remembered."""


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
        self._record_directory: Path | None = None
        self._known_batches: dict[str, int] = {}

    def close(self) -> None:
        """Close the connections; the JVM keeps running."""
        self._server.close()
        self._server._gateway_client.is_connected = False  # or Py4J keeps releasing objects of a JVM that has ended

    # --- the driver as a whole

    def create_context(self, conf: dict[str, str]) -> None:
        """Create the JVM's SparkContext and root session. The settings travel here, so that secrets stay off `ps`."""
        with _calls():
            java_conf = self._jvm.org.apache.spark.SparkConf(False)
            for key, value in conf.items():
                java_conf.set(key, value)
            context = getattr(self._jvm, JAVA_SPARK_CONTEXT)(java_conf)
            # the constructor makes a session of its own and does not touch the default one
            session = getattr(self._jvm, SPARK_SESSION)(context.sc())
            session_class = getattr(self._jvm, SPARK_SESSION)
            session_class.setDefaultSession(session)
            registry = self._jvm.java.util.concurrent.ConcurrentHashMap()
            self._handles.properties.put(REGISTRY_KEY, registry)
            self._context, self._session = context, session
            self._applications.note_baseline()

    def attach(self) -> None:
        """Find the SparkContext and root session that the JVM has. Raises `DriverLostError` where it has none."""
        with _calls():
            default = getattr(self._jvm, SPARK_SESSION).getDefaultSession()
            if default.isEmpty():
                raise DriverLostError("the driver JVM has no SparkContext: it was stopped; start the driver again")
            self._session = default.get()
            self._context = getattr(self._jvm, JAVA_SPARK_CONTEXT).fromSparkContext(self._session.sparkContext())

    def attach_program(self) -> None:
        """Find the sessions of a program that has offered its JVM; raises `DriverLostError` where it offers none."""
        with _calls():
            registry = self._registry()
            if registry is None:
                raise DriverLostError("the program has taken its driver back")
            self._session = registry.get(OFFERED).get(1).get(0)
            self._context = getattr(self._jvm, JAVA_SPARK_CONTEXT).fromSparkContext(self._session.sparkContext())

    def share_program(self, name: str) -> ClassicEndpoint:
        """Share the program's sessions with an attempt under its own name. Opens no server, which no task would use."""
        with _calls():
            registry = self._registry()
            registry.put(name, registry.get(OFFERED))
            return ClassicEndpoint(name, 0, "", TAG_PREFIX + name)

    def unshare_program(self, name: str) -> None:
        """Undo `share_program`."""
        with _calls():
            registry = self._registry()
            if registry is not None:  # or the program has taken its driver back
                registry.remove(name)

    def start_settings(self, settings: Mapping[str, str]) -> dict[str, bool]:
        """Return the keys of settings that Spark reads only at its start, each with whether the JVM has its value."""
        with _calls():
            conf, session_conf = self._context.getConf(), self._session.conf()
            return {
                key: holds(key, value, conf.get(key, ""))
                for key, value in settings.items()
                if is_taken_at_start(self._handles, session_conf, key)
            }

    def resolve_packages(self, request: PackageRequest) -> list[Path]:
        """Return the jars of Maven packages. Spark's Ivy fetches them into its cache as for ``spark-submit``.

        It needs no SparkContext. Raises `PackagesError`.
        """
        settings_file = request.settings_file or None
        if request.offline:
            settings_file = str(request.directory / OFFLINE_SETTINGS)
            write_private(Path(settings_file), request.offline_settings().encode())
        with _calls():
            try:
                found = self._jvm.org.apache.spark.util.DependencyUtils.resolveMavenDependencies(
                    True,
                    request.excludes,
                    request.coordinates,
                    request.used_repositories,
                    str(request.directory),
                    self._jvm.scala.Option.apply(settings_file),
                )
            except Py4JJavaError as error:
                raise PackagesError(request.explain(str(error.java_exception))) from error
            return [Path(str(item).removeprefix("file:")) for item in self._handles.as_java(found)]

    def ping(self) -> bool:
        """Return whether the JVM answers and its SparkContext is not stopped."""
        with _calls():
            return not self._context.sc().isStopped()

    def pid(self) -> int:
        """Return the process id that the JVM itself reports."""
        with _calls():
            return int(self._jvm.java.lang.ProcessHandle.current().pid())

    def application_id(self) -> str:
        """Return the id of the Spark application."""
        with _calls():
            return str(self._context.sc().applicationId())

    def ui_port(self) -> int:
        """Return the port of Spark's own UI; 0 if it has none."""
        with _calls():
            url = self._context.sc().uiWebUrl()
            return int(urlsplit(str(url.get())).port or 0) if url.isDefined() else 0

    def cores(self) -> int | None:
        """Return how many tasks Spark can run at once: the cores of ``local[N]``, or those of all present executors.

        None while there is no executor, and with dynamic allocation, which adds executors for waiting tasks.
        """
        with _calls():
            context = self._context.sc()
            if context.executorAllocationManager().isDefined():
                return None
            return context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()) or None

    def jvm_figures(self) -> dict[str, int]:
        """Return the JVM's figures by Flink's metric names below ``Status.JVM`` (Flink's `MetricUtils`).

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
        """Return whether the JVM runs with a class-data-sharing archive."""
        with _calls():
            return "sharing" in str(self._jvm.java.lang.System.getProperty("java.vm.info"))

    def connect_port(self) -> int:
        """Return the port of the Spark Connect server."""
        with _calls():
            return int(self._handles.connect_service.localPort())

    def warm_up(self) -> None:
        """Load Spark's SQL engine: one small query with a shuffle, 1 to 3 s in a cold JVM."""
        with _calls():
            self._session.sql("SELECT id % 7, count(*) FROM range(1000) GROUP BY 1").count()

    def repartition_state(self, location: str, partitions: int, settings: Mapping[str, str]) -> None:
        """Repartition the state of a stopped streaming query, under settings of a session of its own.

        Args:
            location: its checkpointLocation.
            partitions: the new number.
            settings: of Spark, under which the state was written.
        """
        with _calls():
            session = self._session.newSession()
            for key, value in settings.items():
                session.conf().set(key, value)
            session.streamingCheckpointManager().repartition(location, partitions, True)

    def write_state(
        self,
        location: Path,
        batch_id: int,
        partitions: int,
        settings: Mapping[str, str],
        families: Sequence[NewFamily],
        former: StatePlace | None = None,
    ) -> None:
        """Write the state of a stopped streaming query again, as a batch of its own; see `StateWriter`.

        Args:
            location: its checkpointLocation.
            batch_id: its last batch, which is committed.
            partitions: number of partitions of the state.
            settings: of Spark, under which the state was written.
            families: the new rows; other state is written as it was.
            former: where that is read; None for its last batch.
        """
        with _calls():
            session = self._session.newSession()
            for key, value in settings.items():
                session.conf().set(key, value)
            StateWriter(self._jvm, session, location, batch_id, partitions, former).run(families)

    def unpack_files(self, files: Mapping[Path, Path], codec: str) -> None:
        """Decompress files that Spark has written.

        Args:
            files: where each goes, by its path.
            codec: Spark's name of the codec.
        """
        with _calls():
            spark = self._jvm.org.apache.spark
            unpacking = spark.io.CompressionCodec.createCodec(self._session.sparkContext().conf(), codec)
            for source, target in files.items():
                packed = self._jvm.java.io.FileInputStream(str(source))
                unpacked = self._jvm.java.io.FileOutputStream(str(target))
                try:
                    unpacking.compressedInputStream(packed).transferTo(unpacked)
                finally:
                    unpacked.close()
                    packed.close()

    # --- tables

    def keep_tables(self, directory: Path) -> None:
        """Keep the tables in a record; it is used from the next `load_tables` on."""
        self._record_directory = directory

    def load_tables(self) -> None:
        """Load into the catalog what other drivers have changed. A failure is only logged, so that no task fails."""
        if self._record_directory is not None and self._record_directory.exists():
            with _unfailing("the cluster's tables cannot be loaded"):
                self._tables.load()

    def save_tables(self) -> None:
        """Write the catalog's changes to the record. A failure is only logged, so that no task fails."""
        if self._record_directory is not None:
            with _unfailing("the cluster's tables cannot be written down"):
                self._tables.save()

    # --- classic tasks

    def open_classic(self, name: str, output: str, alone: bool) -> ClassicEndpoint:
        """Start a Py4J server for one task, with a SQL session of its own.

        Spark's own output for it (the console sink of streaming queries) is appended to the file *output*. A task that
        is *alone* has the driver to itself, and gets Spark unchanged; for others see `script_application`.
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
        session_class = getattr(self._jvm, SPARK_SESSION)
        console = getattr(getattr(self._jvm, "scala.Console$"), "MODULE$")
        shared_output = console.out()
        own_output = self._jvm.java.io.PrintStream(self._jvm.java.io.FileOutputStream(output, True), True)
        # until the `finally`, one thread of the JVM serves this thread
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

    def release_classic(self, name: str, interrupted: bool) -> tuple[str, LeftoverSparkWork]:
        """Cancel what a script left running, stop its streaming queries, close its server. May be repeated.

        The task stays among the `classic_names` until all of that is done. So a repetition, or a reset of the driver,
        finds what an interrupted or failed call has left.

        `interrupted`: see `LeftoverSparkWork`. Returns the name that its own Python workers bear, and the leftover work
        to pass to `still_runs` until all of it has ended.
        """
        with _calls():
            tag = TAG_PREFIX + name
            entry = self._registry().get(name)
            self._context.sc().cancelJobsWithTag(tag)
            if entry is not None:
                server, sessions = entry.get(0), entry.get(1)
                _stop(query for session in list(sessions) for query in list(session.streams().active()))
                server.shutdown()
                entry.get(2).close()
                self._applications.end(name, sessions.get(0))
                self._registry().remove(name)
            return name, LeftoverSparkWork(self._handles, self._context, (tag,), tag, (tag,), interrupted)

    def still_runs(self, remains: LeftoverSparkWork) -> str:
        """Return a description of an ended task's work that still runs; empty where all of it has ended."""
        with _calls():
            return remains.look()

    def classic_names(self) -> list[str]:
        """Return the names of the tasks that have a server."""
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

    def active_jobs(self, endpoint: SparkEndpoint) -> list[int]:
        """Return the ids of a task's running Spark jobs.

        They bear the task's tag; tags of a Connect session end with the operation's id.
        """
        tag = endpoint.tag if isinstance(endpoint, ClassicEndpoint) else operation_tag(endpoint)
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

    def cancel_all(self) -> None:
        """Cancel every Spark job of the driver."""
        with _calls():
            self._context.sc().cancelAllJobs()

    # --- Connect sessions

    def open_session(self, endpoint: ConnectEndpoint) -> None:
        """Create a Connect session with its own artifacts (py-files, jars).

        Spark decides the isolation of a session that a client creates before the client can request it.
        """
        with _calls():
            session = self._session.newSession()
            session.conf().set("spark.sql.artifact.isolation.enabled", "true")
            session.conf().set("spark.sql.artifact.isolation.alwaysApplyClassloader", "true")
            names = endpoint.user_id, endpoint.session_id
            self._handles.session_manager.registerExistingSession(*names, session)

    def ended_jobs(self, endpoint: ConnectEndpoint, most: int) -> list[EndedSparkJob]:
        """Return the Spark jobs of a Connect session that have ended, the oldest first; at most the last *most* ones.

        Spark tags the jobs of a session with its id. Jobs that are out of Spark's store are left out.
        """
        with _calls():
            holder = self._holder(endpoint)
            if holder is None:
                return []
            context = self._context.sc()
            ids = context.statusTracker().getJobIdsForTag(f"spark-session-{holder.session().sessionUUID()}")
            found = (ended_job(context.statusStore(), job_id) for job_id in sorted(ids)[-most:])
            return [job for job in found if job is not None]

    def release_session(self, endpoint: ConnectEndpoint, interrupted: bool) -> tuple[str, LeftoverSparkWork] | None:
        """Interrupt a Connect session, stop its streaming queries and close it.

        Returns the same as `release_classic`. Returns None for a session that was never opened, which is not an error.
        """
        with _calls():
            holder = self._holder(endpoint)
            if holder is None:
                return None
            uuid = str(holder.session().sessionUUID())
            operations = [str(item) for item in self._handles.as_java(holder.listActiveOperationIds())]
            holder.interruptAll()
            _stop(list(holder.session().streams().active()))
            self._handles.session_manager.closeSession(self._key(endpoint), False)
            prefix = operation_tag(endpoint)
            tags = [prefix + item for item in operations]
            threads = [f"SparkConnectExecuteThread_opId={item}" for item in operations]
            return uuid, LeftoverSparkWork(self._handles, self._context, tags, prefix, threads, interrupted)

    def connect_sessions(self) -> list[tuple[str, str]]:
        """Return id and user of each open Connect session."""
        with _calls():
            infos = self._handles.as_java(self._handles.session_manager.listActiveSessions())
            return [(str(info.sessionId()), str(info.userId())) for info in infos]

    def configure_session(self, endpoint: ConnectEndpoint, conf: Mapping[str, str]) -> bool:
        """Set configuration of a Connect session; return whether the session is open."""
        with _calls():
            holder = self._holder(endpoint)
            if holder is None:
                return False
            settings = holder.session().conf()
            for key, value in conf.items():
                settings.set(key, value)
            return True

    # --- streaming queries

    def streaming_queries(self, endpoint: SparkEndpoint) -> list[StreamingQueryInfo]:
        """Return the running streaming queries of a task."""
        with _calls():
            found = [query_info(query, self._known_batches) for query in self._queries(endpoint)]
        for info in found:
            self._known_batches.pop(info.run_id, None)
            if info.batch is not None:
                self._known_batches[info.run_id] = info.batch  # at the end, as the one that was looked at last
        while len(self._known_batches) > _MOST_KNOWN_RUNS:
            del self._known_batches[next(iter(self._known_batches))]
        return found

    def active_queries(self, endpoint: SparkEndpoint) -> ActiveQueries:
        """Return the running streaming queries of a task, for `stop_at_boundary`."""
        with _calls():
            return self._queries(endpoint)

    def stop_at_boundary(self, queries: ActiveQueries, drain: bool, timeout_s: float) -> StoppedQueries:
        """See `runtime.spark.driver.jvm`."""
        with _calls():
            return stop_at_boundary(queries, drain=drain, timeout_s=timeout_s)

    def stop_queries(self) -> None:
        """Stop every streaming query of the driver."""
        with _calls():
            active = self._session.sharedState().activeStreamingQueries()
            _stop(list(active.values()))

    def close_ended_states(self) -> None:
        """Close the state stores of streaming queries that have ended.

        Spark keeps them until its next maintenance, for up to a minute, and then uploads their last snapshots. A query
        may have been restored to an earlier batch of the same location by then. Later it would read such a snapshot,
        whose number is right and whose state is that of the abandoned batches.
        """
        with _calls():
            loaded = self._handles.loaded_states
            if loaded.isEmpty():
                return
            active = self._session.sharedState().activeStreamingQueries().values()
            runs = {str(query.runId().toString()) for query in list(active)}
            for key in list(self._handles.as_java(loaded.keysIterator().toSeq())):
                if str(key.queryRunId().toString()) not in runs:
                    self._handles.state_store.removeFromLoadedProvidersAndClose(key)

    @property
    def _jvm(self) -> Any:
        return self._handles.jvm

    @cached_property
    def _applications(self) -> ScriptApplications:
        return ScriptApplications(self._handles, self._context.sc(), self._session)

    @cached_property
    def _tables(self) -> TableRecord:
        assert self._record_directory is not None
        return TableRecord(self._handles, self._session, self._record_directory)

    def _registry(self) -> Any:
        return self._handles.properties.get(REGISTRY_KEY)

    def _queries(self, endpoint: SparkEndpoint) -> ActiveQueries:
        if isinstance(endpoint, ClassicEndpoint):
            entry = self._registry().get(endpoint.name)
            sessions = [] if entry is None else list(entry.get(1))
        else:
            holder = self._holder(endpoint)
            sessions = [] if holder is None else [holder.session()]
        return [query for session in sessions for query in session.streams().active()]

    def _key(self, endpoint: ConnectEndpoint) -> Any:
        return self._handles.new_session_key(endpoint.user_id, endpoint.session_id)

    def _holder(self, endpoint: ConnectEndpoint) -> Any:
        found = self._handles.session_manager.getIsolatedSessionIfPresent(self._key(endpoint))
        return found.get() if found.isDefined() else None


def operation_tag(endpoint: ConnectEndpoint) -> str:
    """Return the prefix of the Spark job tags of a Connect session's operations; the operation's id follows it."""
    return f"SparkConnect_OperationTag_User_{endpoint.user_id}_Session_{endpoint.session_id}_Operation_"


def _stop(queries: Iterable[Any]) -> None:
    """Stop streaming queries; one that does not stop (a timeout of the script's own) leaves no other one running."""
    failures = []
    for query in queries:
        try:
            query.stop()
        except Py4JJavaError as error:
            failures.append(error)
    if failures:
        raise failures[0]


@contextlib.contextmanager
def _calls() -> Iterator[None]:
    """Translate Py4J's errors: `DriverLostError` for a JVM that does not answer, `DriverCallError` for an exception."""
    try:
        yield
    except (Py4JNetworkError, ConnectionError) as error:
        raise DriverLostError(f"the driver JVM does not answer: {error}") from error
    except Py4JJavaError as error:
        raise DriverCallError(str(error.java_exception)) from error
    except Py4JError as error:
        raise DriverCallError(str(error).strip()) from error


@contextlib.contextmanager
def _unfailing(what: str) -> Iterator[None]:
    """Log a failure that is not the loss of the JVM."""
    try:
        with _calls():
            yield
    except (DriverCallError, OSError) as error:
        logger.warning("%s: %s", what, str(error).partition("\n")[0])


logging.getLogger("py4j").setLevel(logging.CRITICAL)
"""Py4J logs every refused connection with a traceback; the exception that follows holds the same information."""

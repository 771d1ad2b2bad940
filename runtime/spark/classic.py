"""Attaches an unchanged PySpark program to the driver JVM, so that it seems to have a Spark application of its own.

PySpark asks the JVM for a SparkContext and for the default session; here it gets the driver's SparkContext and a
session of the task's own. What would reach beyond the task (stopping the context, cancelling all jobs, changing the
JVM's default session) is confined to the task. Settings that Spark takes only at start are ignored, as
`getOrCreate` does with a running application.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from py4j.clientserver import JavaClient
from py4j.java_gateway import GatewayClient
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession
from pyspark.sql.classic.dataframe import DataFrame

from .callbacks import authenticate_callbacks
from .control import Cancellation
from .shipped_path import ShippedPath
from .spec import SCHEDULER_POOL, ClassicEndpoint, TaskSpec
from .status import StatusReader
from .workers import WORKER_VARIABLE

_JAVA_SPARK_CONTEXT = "org.apache.spark.api.java.JavaSparkContext"


class ClassicAttachment:
    """The attachment of this process to a driver JVM; make one in a task process, once."""

    def __init__(
        self, spec: TaskSpec, endpoint: ClassicEndpoint, cancellation: Cancellation, gateway: Any = None
    ) -> None:
        self._spec = spec
        self._name = endpoint.name
        self._tag = endpoint.tag
        self._cancellation = cancellation
        self._gateway: Any = gateway or connect(endpoint)
        # the entry point of the task's Py4J server: the sessions of the task, ours first; the driver ends their queries
        self._sessions: Any = self._gateway.entry_point
        self._first_session: Any = self._sessions.get(0)
        self._java_context: Any = self._context_of(self._first_session)
        self._current: Any = None
        self._cached: list[Any] = []
        self.before_stop: Callable[[], None] = lambda: None
        """Called before the script's queries are stopped with its session."""

    def install(self) -> None:
        """Put the task's own behaviour into PySpark's classes, in this process only."""
        SparkContext._gateway = self._gateway
        SparkContext._jvm = self._gateway.jvm
        self._guard_calls()
        self._own_context()
        self._own_session()
        self._track_cached()
        self._configure(self._first_session)
        pool = self._spec.conf.get(SCHEDULER_POOL)
        if pool is not None:  # for the RDD API on this thread; queries take it from their session
            self._java_context.setLocalProperty(SCHEDULER_POOL, pool)

    def stop_spark(self) -> None:
        """End the task's Spark jobs and streaming queries; for a thread of its own."""
        self.before_stop()
        self._stop_queries()
        self._java_context.sc().cancelJobsWithTag(self._tag)

    def warn_of_active_queries(self) -> None:
        """Say in the script's standard error what ends with it: a query that nobody waits for, as in `spark-submit`."""
        for index in range(self._sessions.size()):
            for query in self._sessions.get(index).streams().active():
                name = query.name() or query.id().toString()
                print(  # noqa: T201
                    f"the script has ended while its streaming query {name} was active: the query is stopped; "
                    "end the script with awaitTermination() to let it run",
                    file=sys.stderr,
                )

    def status_reader(self) -> StatusReader:
        """What reads the counts of the task's Spark jobs."""
        return StatusReader(self._gateway.jvm, self._java_context, self._tag)

    def close(self) -> None:
        """Release what the script left: cached data, streaming queries, temporary files."""
        with contextlib.suppress(Py4JError, OSError):  # the driver may be gone
            for frame in self._cached:
                frame.unpersist(False)
            self._stop_queries()
        context = SparkContext._active_spark_context
        if context is not None:
            shutil.rmtree(getattr(context, "_temp_dir", None) or "", ignore_errors=True)

    def _stop_queries(self) -> None:
        for index in range(self._sessions.size()):
            for query in list(self._sessions.get(index).streams().active()):
                query.stop()

    def _context_of(self, session: Any) -> Any:
        return getattr(self._gateway.jvm, _JAVA_SPARK_CONTEXT).fromSparkContext(session.sparkContext())

    def _guard_calls(self) -> None:
        """Let a cancel wait for the return of a call, see `Cancellation.call`."""
        send_command = GatewayClient.send_command
        cancellation = self._cancellation

        def guarded(client: Any, *arguments: Any, **keywords: Any) -> Any:
            with cancellation.call():
                return send_command(client, *arguments, **keywords)

        GatewayClient.send_command = guarded

    def _own_context(self) -> None:
        attachment, spec = self, self._spec
        initialize: Any = SparkContext._do_init
        clear_tags: Any = SparkContext.clearJobTags

        def do_init(
            context: Any, master: Any, app_name: Any, spark_home: Any, py_files: Any, environment: Any, batch_size: Any,
            serializer: Any, conf: Any, *rest: Any,
        ) -> None:  # fmt: skip
            conf = conf or SparkConf(_jvm=SparkContext._jvm)
            conf.setIfMissing("spark.app.name", spec.job_name)
            conf.setIfMissing("spark.master", attachment._java_context.master())
            environment = {**(environment or {}), **attachment._worker_environment()}
            attachment._warn_of_ignored_settings(conf)
            initialize(
                context, master, app_name, spark_home, py_files, environment, batch_size, serializer, conf, *rest
            )
            # A worker puts these before the driver's own directory of files, where Spark leaves a copy of the first
            # file of each name that any session ever added; by PYTHONPATH they would come after it.
            context._python_includes.extend(attachment._worker_path(context, spec.py_files) or spec.python_path)

        def stop(context: Any) -> None:
            if getattr(context, "_jsc", None) is None:
                return
            attachment.stop_spark()
            context._jsc = None
            # its end takes half a second, for which nothing needs to wait
            threading.Thread(target=context._accumulatorServer.shutdown, daemon=True).start()
            context._accumulatorServer = None
            shutil.rmtree(context._temp_dir, ignore_errors=True)
            with SparkContext._lock:
                SparkContext._active_spark_context = None
            attachment._current = None

        def cancel_all_jobs(_context: Any) -> None:
            attachment._java_context.sc().cancelJobsWithTag(attachment._tag)

        def clear_job_tags(context: Any) -> None:
            clear_tags(context)
            context.addJobTag(attachment._tag)

        def add_py_file(context: Any, path: str) -> None:
            attachment._add_py_file(context, path)

        patched: Any = SparkContext
        patched._do_init = do_init
        patched._initialize_context = lambda _context, _java_conf: attachment._java_context
        patched.stop = stop
        patched.cancelAllJobs = cancel_all_jobs
        patched.clearJobTags = clear_job_tags
        patched.addPyFile = add_py_file

    def _warn_of_ignored_settings(self, conf: Any) -> None:
        """Say which of the script's settings Spark takes only at its start, where they differ from the cluster's."""
        runtime, own = self._sessions.get(0).conf(), self._java_context.getConf()
        for key, value in conf.getAll():
            if key in ("spark.app.name", "spark.master") or not key.startswith("spark.") or runtime.isModifiable(key):
                continue
            if own.get(key, "") != value:
                from conf.registry import is_sensitive  # which most scripts do not need
                from conf.secret import MASK

                shown = MASK if is_sensitive(key) else value
                print(  # noqa: T201
                    f"the setting {key}={shown} is ignored: Spark takes it only at its start, and the script runs on "
                    f"the cluster's; start the cluster with -D {key}={shown}",
                    file=sys.stderr,
                )

    def _worker_environment(self) -> dict[str, str]:
        """What makes the job's Python workers its own, so that two versions of a py-file do not meet in one."""
        if not self._spec.py_files:
            return {}
        return {WORKER_VARIABLE: self._name}

    def _worker_path(self, context: Any, paths: Sequence[str]) -> list[str]:
        """Where Python workers on other machines find what is sent to them; nothing where they see this one's files."""
        if not self._spec.shipping_dir or not paths:
            return []
        shipped = ShippedPath(paths)
        context.addArchive(shipped.pack(Path(self._spec.shipping_dir)))
        return shipped.entries

    def _add_py_file(self, context: Any, path: str) -> None:
        """`sc.addPyFile` for this task alone: Spark's own is the whole application's, and refuses a second version."""
        local = self._fetched(path)
        entry = str(local.parent) if local.suffix == ".py" else str(local)
        sys.path.insert(1, entry)
        context._python_includes.extend(self._worker_path(context, [str(local)]) or [entry])
        context.environment[WORKER_VARIABLE] = self._name

    def _fetched(self, path: str) -> Path:
        """A copy in the task's directory: a worker may start long after the script has changed its file."""
        if "://" in path and not path.startswith("file://"):
            source = Path(self._spec.work_dir) / "py-files" / path.rsplit("/", 1)[1]
            source.parent.mkdir(mode=0o700, exist_ok=True)
            java_path: Any = self._gateway.jvm.org.apache.hadoop.fs.Path(path)
            file_system = java_path.getFileSystem(self._java_context.hadoopConfiguration())
            file_system.copyToLocalFile(java_path, self._gateway.jvm.org.apache.hadoop.fs.Path(str(source)))
            return source
        target = Path(self._spec.work_dir) / "py-files" / Path(path).name
        target.parent.mkdir(mode=0o700, exist_ok=True)
        shutil.copy(path.removeprefix("file://"), target)
        return target

    def _own_session(self) -> None:
        attachment = self
        initialize: Any = SparkSession.__init__
        get_class: Any = SparkSession._get_j_spark_session_class

        def init(session: Any, context: Any, java_session: Any = None, options: Any = None) -> None:
            initialize(session, context, java_session, options or {})
            if not attachment._sessions.contains(session._jsparkSession):
                attachment._sessions.add(session._jsparkSession)

        patched: Any = SparkSession
        patched.__init__ = init
        patched._get_j_spark_session_class = staticmethod(lambda jvm: _SessionClass(attachment, get_class(jvm)))

    def _configure(self, session: Any) -> None:
        for key, value in self._spec.conf.items():
            session.conf().set(key, value)

    def _track_cached(self) -> None:
        """Note what the script caches: Spark keeps it for the whole application until it is unpersisted."""
        cached = self._cached
        persist: Any = DataFrame.persist
        cache: Any = DataFrame.cache

        def tracked_persist(frame: Any, *arguments: Any, **keywords: Any) -> Any:
            cached.append(frame._jdf)
            return persist(frame, *arguments, **keywords)

        def tracked_cache(frame: Any) -> Any:
            cached.append(frame._jdf)
            return cache(frame)

        patched: Any = DataFrame
        patched.persist, patched.cache = tracked_persist, tracked_cache

    def default_session(self) -> Any:
        """The Java session that `getOrCreate` finds: the task's first one, a new one after each `stop`."""
        if self._current is None:
            if self._first_session is not None:
                self._current, self._first_session = self._first_session, None
            else:
                self._current = self._sessions.get(0).newSession()
                self._configure(self._current)
        return self._current


class _SessionClass:
    """The Java class SparkSession, with a default session that is the task's and not the JVM's."""

    def __init__(self, attachment: ClassicAttachment, java_class: Any) -> None:
        self._attachment = attachment
        self._java_class = java_class

    def __getattr__(self, name: str) -> Any:
        return getattr(self._java_class, name)

    def __call__(self, *arguments: Any) -> Any:
        return self._java_class(*arguments)

    def getDefaultSession(self) -> _Some:  # noqa: N802
        return _Some(self._attachment.default_session())

    def setDefaultSession(self, _session: Any) -> None:  # noqa: N802
        return None

    def clearDefaultSession(self) -> None:  # noqa: N802
        return None


class _Some:
    """As much of Scala's `Some` as PySpark asks for."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def isDefined(self) -> bool:  # noqa: N802
        return True

    def get(self) -> Any:
        return self._value


def _name_java_threads(name: str) -> None:
    """Name the JVM's threads that serve this process, so that `TaskRemains` sees whether one still works for it."""
    create: Any = JavaClient._create_new_connection

    def named(client: Any) -> Any:
        connection = create(client)
        thread = connection.send_command("c\nz:java.lang.Thread\ncurrentThread\ne\n")[len("yr") :]
        connection.send_command(f"c\n{thread}\nsetName\ns{name}\ne\n")
        connection.send_command(f"m\nd\n{thread}\ne\n")
        return connection

    patched: Any = JavaClient
    patched._create_new_connection = named


def connect(endpoint: ClassicEndpoint) -> Any:
    """Connect to a task's Py4J server; 20 round trips."""
    _name_java_threads(endpoint.tag)
    os.environ["PYSPARK_GATEWAY_PORT"] = str(endpoint.port)
    os.environ["PYSPARK_GATEWAY_SECRET"] = endpoint.secret
    os.environ["PYSPARK_PIN_THREAD"] = "true"
    try:
        launch: Any = launch_gateway
        gateway = launch()
    finally:  # not for the script's own child processes
        del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]
    authenticate_callbacks(gateway, endpoint.secret)
    return gateway

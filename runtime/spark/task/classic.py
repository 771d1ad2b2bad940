"""Attaches an unchanged PySpark program to the driver JVM, so that it seems to have its own Spark application.

PySpark requests a SparkContext and the default session from the JVM. Here it gets those that the driver has created for
the task (see `runtime.spark.driver.script_application`). Calls that would affect other tasks are confined to this one:
stopping the context, cancelling all jobs, job groups and tags, the log level, added files, the JVM's default session.
Settings that Spark reads only at its start, and was not started with, are ignored with a line (`ScriptSettings`).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from py4j.clientserver import JavaClient
from py4j.java_gateway import GatewayClient, JavaObject
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext, SparkFiles, StatusTracker, java_gateway
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery, StreamingQueryManager
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.streaming import StreamingContext

from runtime.spark.driver.jvm import JAVA_SPARK_CONTEXT, JvmHandles, ended_job, holds, is_taken_at_start
from runtime.spark.driver.script_application import enter_files, own_files, use_files
from runtime.spark.errors import QueryLostError, SharedDriverError
from runtime.spark.messages import Finished, Running
from runtime.spark.spec import SCHEDULER_POOL, WORKER_VARIABLE, ClassicEndpoint, TaskSpec, ignored_setting
from runtime.spark.task.control import Cancellation, FailedQuery, TaskControl
from runtime.spark.task.imports import ShippedPath
from runtime.spark.task.program import run_main
from runtime.spark.task.progress import (
    MOST_STAGES,
    Counts,
    ProgressReporter,
    Stage,
    TaskProgress,
    parents_of,
)
from runtime.spark.task.streaming import StreamingQueries, watch_streaming_queries
from runtime.spark.task.working_directory import carry_surroundings, resolve_paths_of

_EDGES = re.compile(r"RDDOperationEdge\((\d+),\d+\)")
"""Spark's edges between RDDs, as text; the group is the one that is read."""
_BUS_WAIT_MS = 1000
"""Longest wait for Spark's events at the end of a script, in milliseconds; they take a few."""


class StatusPoller:
    """Reads a vertex's stage and task counts from the JVM's status tracker at an interval, on its own thread.

    It reads the Spark jobs that bear a task's tag; each finished one once.

    Args:
        jvm: of the task's gateway.
        java_context: the Java SparkContext.
        tag: of the task.
        reporter: receives the counts.
        vertex: the task's one vertex.
        interval: seconds between two reads.
        reads_times: whether to read when each job began and ended, for traces. It takes some calls into the JVM.
    """

    def __init__(
        self,
        jvm: Any,
        java_context: Any,
        tag: str,
        reporter: ProgressReporter,
        vertex: str,
        interval: float,
        *,
        reads_times: bool = False,
    ) -> None:
        self._arrays: Any = jvm.java.util.Arrays
        self._context: Any = java_context
        self._tracker: Any = java_context.statusTracker()
        self._by_tag: Any = java_context.sc().statusTracker()  # Java's wrapper does not know tags
        self._store: Any = java_context.sc().statusStore()
        self._tag = tag
        self._reporter = reporter
        self._vertex = vertex
        self._interval = interval
        self._reads_times = reads_times
        self._done: set[int] = set()
        self._parents: dict[int, dict[int, tuple[int, ...]]] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spark-status", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Read the counts a last time, and end the thread."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            last = self._ended.wait(self._interval)
            try:
                if last:
                    self._await_events()
                found = list(self._read())
                ended = [job_id for job_id, _, _, over in found if over and self._reads_times]
                jobs = [job for job_id in ended if (job := ended_job(self._store, job_id)) is not None]
            except (Py4JError, OSError):  # the JVM has ended, which the script's own call reports better
                return
            for job in jobs:
                self._reporter.change(TaskProgress.job_ended, self._vertex, job)
            for job_id, counts, stages, over in found:
                self._reporter.change(TaskProgress.update, self._vertex, f"job-{job_id}", counts, stages)
                if over:
                    self._reporter.change(TaskProgress.complete, f"job-{job_id}")
            if last:
                return
            self._reporter.tick()

    def _await_events(self) -> None:
        """Wait until Spark has counted what has ended: a job's result comes before its thread of events has seen it."""
        with contextlib.suppress(Py4JJavaError):  # a TimeoutException: on a busy bus the counts may be older
            self._context.sc().listenerBus().waitUntilEmpty(_BUS_WAIT_MS)

    def _read(self) -> Iterator[tuple[int, Counts, list[Stage], bool]]:
        """Yield id, counts, stages, and whether it is over, of jobs that run or have ended since the last read."""
        for job_id in sorted(set(self._numbers(self._by_tag.getJobIdsForTag(self._tag))) - self._done):
            job = self._tracker.getJobInfo(job_id)
            if job is None:
                continue
            status = str(job.status().name())
            over = status in ("SUCCEEDED", "FAILED")
            stages, counts = [], Counts()
            stage_ids = self._numbers(job.stageIds())
            parents = self._parents_of(job_id, stage_ids)
            for stage_id in stage_ids:
                stage = self._stage(stage_id, status, parents.get(stage_id, ()))
                counts += Counts(stages=1) if stage is None else stage.counts
                stages += [] if stage is None else [stage]
            if over:
                self._done.add(job_id)
                self._parents.pop(job_id, None)
            yield job_id, counts, stages, over

    def _stage(self, stage_id: int, job: str, parents: tuple[int, ...]) -> Stage | None:
        info = self._tracker.getStageInfo(stage_id)
        if info is None:
            return None
        total, completed, active = info.numTasks(), info.numCompletedTasks(), info.numActiveTasks()
        return Stage.of(stage_id, str(info.name()), total, completed, active, job, parents)

    def _parents_of(self, job_id: int, stage_ids: list[int]) -> dict[int, tuple[int, ...]]:
        """Read once which stages of a job feed which: Spark knows all of them when the job starts."""
        if not 1 < len(stage_ids) <= MOST_STAGES:  # the page draws no more
            return {}
        if job_id not in self._parents:
            try:
                rdds = {stage_id: self._rdds_of(stage_id) for stage_id in stage_ids}
                inputs = {stage_id: self._inputs_of(stage_id) for stage_id in stage_ids}
            except Py4JJavaError:  # NoSuchElementException: Spark has dropped the stage from its store
                return {}
            self._parents[job_id] = parents_of(rdds, inputs)
        return self._parents[job_id]

    def _rdds_of(self, stage_id: int) -> frozenset[int]:
        return frozenset(map(int, str(self._store.lastStageAttempt(stage_id).rddIds().mkString(" ")).split()))

    def _inputs_of(self, stage_id: int) -> frozenset[int]:
        edges = self._store.operationGraphForStage(stage_id).incomingEdges()
        return frozenset(map(int, _EDGES.findall(str(edges.mkString(" ")))))

    def _numbers(self, array: Any) -> list[int]:
        """Return the numbers of a Java int array, in one call instead of one for each element."""
        text = str(self._arrays.toString(array)).strip("[]")
        return [int(part) for part in text.split(",")] if text else []


def authenticate_callbacks(gateway: Any, secret: str) -> None:
    """Authenticate calls of the JVM into this process by the secret of the task's gateway; call it once per process.

    PySpark accepts such calls (`foreachBatch`, listeners of queries) from any client on loopback. So every user of the
    machine could call the registered functions, for example `foreachBatch`'s with a batch of their choice. Py4J can
    require a token, and the JVM's side has the task's. But it loses the token
    (`PythonClient.copyWith`) when PySpark sets the port, so this function sets it again.
    """
    gateway.callback_server_parameters.auth_token = secret
    module: Any = java_gateway
    start = module.ensure_callback_server_started

    def ensure_callback_server_started(asked: Any) -> None:
        start(asked)
        client = JavaObject("GATEWAY_SERVER", asked._gateway_client).getCallbackClient()
        field = client.getClass().getSuperclass().getDeclaredField("authToken")
        field.setAccessible(True)
        field.set(client, secret)

    module.ensure_callback_server_started = ensure_callback_server_started


class ScriptSettings:
    """The settings that a script makes for Spark: effective ones are applied, and each other one is reported once.

    A script attaches to a running SparkContext. So a setting that Spark reads only at its start is effective only if
    the context was started with it. A script cannot read back a setting that is not effective.

    Args:
        jvm: the script's view of the JVM.
        java_context: the task's JavaSparkContext.
        session: its first session (Java's).
        is_alone: whether the driver was started for this task.
    """

    def __init__(self, jvm: Any, java_context: Any, session: Any, *, is_alone: bool) -> None:
        self._jvm = jvm
        self._java_context = java_context
        self._session_conf = session.conf()
        self._handles = JvmHandles(jvm)
        self._is_alone = is_alone
        self._judged: dict[tuple[str, str], bool] = {}

    def take(self, asked: Mapping[str, str]) -> SparkConf:
        """Apply the effective settings to the task's SparkContext, and return them."""
        context = self._java_context.sc()
        held = SparkConf(_jvm=self._jvm)
        for key, value in self.holding(asked).items():
            held.set(key, value)
            if key.startswith(_HADOOP):
                context.hadoopConfiguration().set(key.removeprefix(_HADOOP), value)
            elif key != _MASTER:
                context.conf().set(key, value)
        held.set(_MASTER, self._java_context.master())
        return held

    def holding(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Return the effective settings; name each other one once in the script's standard error."""
        return {key: value for key, value in asked.items() if self._holds(key, str(value))}

    def _holds(self, key: str, value: str) -> bool:
        if (key, value) not in self._judged:
            self._judged[key, value] = self._judge(key, value)
            if not self._judged[key, value]:
                print(ignored_setting(key, value, is_alone=self._is_alone), file=sys.stderr)  # noqa: T201
        return self._judged[key, value]

    def _judge(self, key: str, value: str) -> bool:
        if not key.startswith("spark.") or not is_taken_at_start(self._handles, self._session_conf, key):
            return True
        return holds(key, value, self._java_context.getConf().get(key, ""))


_MASTER = "spark.master"
_HADOOP = "spark.hadoop."
"""Prefix of Hadoop's settings."""

_GAP = r"(?:\s|--[^\n]*|/\*(?:[^*]|\*(?!/))*\*/)"
"""White space or a comment between the words of a statement."""

_ADDS_JAR = re.compile(
    rf"{_GAP}*(?:ADD{_GAP}+JARS?\b"
    r"|CREATE\b.*\bFUNCTION\b.*\bUSING\b.*\bJARS?\b"
    rf"|(?:\w+{_GAP}*:{_GAP}*)?(?:BEGIN|EXECUTE)\b.*\b(?:ADD|USING)\b.*\bJARS?\b)",
    re.IGNORECASE | re.DOTALL,
)
_MAY_ADD = re.compile(
    r"\b(?:ADD|USING)\b.*\b(?:FILE|ARCHIVE)S?\b|\bEXECUTE\b.*\bIMMEDIATE\b", re.IGNORECASE | re.DOTALL
)


def adds_jar(statement: str) -> bool:
    """Return whether a statement of Spark's SQL adds a jar, by ``ADD JAR`` or as the resource of a function. Pure.

    Not seen is one that ``EXECUTE IMMEDIATE`` makes of variables.
    """
    return _ADDS_JAR.match(statement) is not None


def may_add_files(statement: str) -> bool:
    """Return whether a statement may add a file or an archive; some that add none are taken for such. Pure."""
    return _MAY_ADD.search(statement) is not None


class ClassicAttachment:
    """The attachment of this process to a driver JVM; create one per task process."""

    def __init__(
        self, spec: TaskSpec, endpoint: ClassicEndpoint, cancellation: Cancellation, gateway: Any = None
    ) -> None:
        self._spec = spec
        self._name = endpoint.name
        self._tag = endpoint.tag
        self._cancellation = cancellation
        self._gateway: Any = gateway or connect(endpoint)
        # the entry point of the task's Py4J server: the sessions of the task, the first of which is the driver's; the
        # driver ends their queries
        self._sessions: Any = self._gateway.entry_point
        self._first_session: Any = self._sessions.get(0)
        self._java_context: Any = self._context_of(self._first_session)
        self._alone = endpoint.alone
        self._settings = ScriptSettings(
            self._gateway.jvm, self._java_context, self._first_session, is_alone=endpoint.alone
        )
        self._current: Any = None
        self._files: Any = None
        """The artifact set to which the script's files are added; None before the first."""
        self._thread = threading.local()
        self.before_stop: Callable[[], None] = lambda: None
        """Called before the script's queries are stopped with its session."""

    def install(self) -> None:
        """Patch PySpark's classes with the task's own behaviour, in this process only."""
        SparkContext._gateway = self._gateway
        SparkContext._jvm = self._gateway.jvm
        self._guard_calls()
        self._own_context()
        self._own_session()
        self._own_streaming_context()
        if not self._alone:
            self._own_files()
            self._own_jobs()
            self._keep_log_level()
        self._configure(self._first_session)
        pool = self._spec.conf.get(SCHEDULER_POOL)
        if pool is not None:  # for the RDD API on this thread; queries take it from their session
            self._java_context.setLocalProperty(SCHEDULER_POOL, pool)

    def stop_spark(self) -> None:
        """End the task's Spark jobs and streaming queries; may run on any thread."""
        self.before_stop()
        self._stop_queries()
        self._java_context.sc().cancelJobsWithTag(self._tag)

    def warn_of_active_queries(self) -> None:
        """Name in the script's standard error each active query, which ends with the script as in `spark-submit`."""
        for index in range(self._sessions.size()):
            for query in self._sessions.get(index).streams().active():
                name = query.name() or query.id().toString()
                print(  # noqa: T201
                    f"the script has ended while its streaming query {name} was active: the query is stopped; "
                    "end the script with awaitTermination() to let it run",
                    file=sys.stderr,
                )

    def poll_status(self, reporter: ProgressReporter, vertex: str) -> StatusPoller:
        """Start reading the counts of the task's Spark jobs."""
        interval = self._spec.progress_interval
        return StatusPoller(
            self._gateway.jvm,
            self._java_context,
            self._tag,
            reporter,
            vertex,
            interval,
            reads_times=bool(self._spec.descriptor.attempt.traceparent),
        )

    def close(self) -> None:
        """Stop the script's streaming queries and remove its temporary files. The driver releases the rest."""
        with contextlib.suppress(Py4JError, OSError):  # the driver may have ended
            self._stop_queries()
        context = SparkContext._active_spark_context
        if context is not None:
            shutil.rmtree(getattr(context, "_temp_dir", None) or "", ignore_errors=True)

    def _stop_queries(self) -> None:
        for index in range(self._sessions.size()):
            for query in list(self._sessions.get(index).streams().active()):
                query.stop()

    def _context_of(self, session: Any) -> Any:
        return getattr(self._gateway.jvm, JAVA_SPARK_CONTEXT).fromSparkContext(session.sparkContext())

    def _guard_calls(self) -> None:
        """Let a cancel wait for the return of a call, see `Cancellation.call`."""
        send_command = GatewayClient.send_command
        cancellation = self._cancellation

        def guarded(client: Any, *arguments: Any, **keywords: Any) -> Any:
            self._enter_files()
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
            asked = {key: value for key, value in spec.conf.items() if key != SCHEDULER_POOL}
            asked |= (conf or SparkConf(_jvm=SparkContext._jvm)).getAll()
            asked |= {_MASTER: master} if master else {}
            asked |= {"spark.app.name": app_name} if app_name else {}
            asked.setdefault("spark.app.name", spec.descriptor.job.job_name)
            environment = {**(environment or {}), **attachment._worker_environment()}
            held = attachment._settings.take(asked)
            initialize(context, None, app_name, spark_home, py_files, environment, batch_size, serializer, held, *rest)
            # A worker puts these before the driver's own directory of files. Spark leaves a copy there of the first
            # file of each name that any session ever added. Entries of PYTHONPATH would come after it.
            context._python_includes.extend(attachment._worker_path(context, spec.py_files) or spec.python_path)

        def stop(context: Any) -> None:
            if getattr(context, "_jsc", None) is None:
                return
            attachment.stop_spark()
            context._jsc = None
            # its end takes half a second, and nothing needs to wait for it
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
            context._jsc.addJobTag(attachment._tag)

        def add_py_file(context: Any, path: str) -> None:
            attachment._add_py_file(context, path)

        patched: Any = SparkContext
        patched._do_init = do_init
        patched._initialize_context = lambda _context, _java_conf: attachment._java_context
        patched.stop = stop
        patched.cancelAllJobs = cancel_all_jobs
        patched.clearJobTags = clear_job_tags
        patched.addPyFile = add_py_file

    def _worker_environment(self) -> dict[str, str]:
        """Return the job's variables, and the one that gives it its own Python workers, if it needs them."""
        if not self._spec.has_own_workers:
            return {}
        return {**self._spec.descriptor.job.environment, WORKER_VARIABLE: self._name}

    def _worker_path(self, context: Any, paths: Sequence[str]) -> list[str]:
        """Send files to workers on other machines, and return their paths there; nothing if all workers are here."""
        if not self._spec.shipping_dir or not paths:
            return []
        if not self._alone:
            self._use_own_files()
        shipped = ShippedPath(paths)
        context.addArchive(shipped.pack(Path(self._spec.shipping_dir)))
        return shipped.entries

    def _add_py_file(self, context: Any, path: str) -> None:
        """Add a file as `sc.addPyFile` does, but for this task alone.

        Spark's own method affects the whole application, and rejects a second version of a file.
        """
        local = self._fetched(path)
        entry = str(local.parent) if local.suffix == ".py" else str(local)
        sys.path.insert(1, entry)
        context._python_includes.extend(self._worker_path(context, [str(local)]) or [entry])
        context.environment[WORKER_VARIABLE] = self._name

    def _fetched(self, path: str) -> Path:
        """Return a copy in the task's directory, since a worker may start after the script has changed its file."""
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
        get_module: Any = SparkSession._get_j_spark_session_module

        def init(session: Any, context: Any, java_session: Any = None, options: Any = None) -> None:
            initialize(session, context, java_session, options or {})
            if not attachment._sessions.contains(session._jsparkSession):
                attachment._sessions.add(session._jsparkSession)
                if attachment._files is not None:
                    use_files(session._jsparkSession, attachment._files)

        patched: Any = SparkSession
        patched.__init__ = init
        patched._get_j_spark_session_class = staticmethod(lambda jvm: _SessionClass(attachment, get_class(jvm)))
        patched._get_j_spark_session_module = staticmethod(lambda jvm: _SessionModule(attachment, get_module(jvm)))

    def _own_streaming_context(self) -> None:
        """Let `StreamingContext.stop` stop the streams, and call the task's `SparkContext.stop`."""
        attachment = self

        def stop(streaming: Any, stopSparkContext: bool = True, stopGraceFully: bool = False) -> None:  # noqa: N803
            with attachment._stop_allowed():
                streaming._jssc.stop(False, stopGraceFully)
            StreamingContext._activeContext = None
            if stopSparkContext:
                streaming._sc.stop()

        patched: Any = StreamingContext
        patched.stop = stop

    @contextlib.contextmanager
    def _stop_allowed(self) -> Iterator[None]:
        """Lift `ScriptApplications.refuse_stop` for this thread, since it also prevents stopping streams."""
        if self._alone:
            yield
            return
        within = JvmHandles(self._gateway.jvm).within_listener_thread
        assign = getattr(within, "value_$eq")
        assign(False)
        try:
            yield
        finally:
            assign(True)

    def _own_files(self) -> None:
        """Isolate the files that the script adds: Spark has one directory of files, with one file of each name."""
        attachment = self
        add_file: Any = SparkContext.addFile
        add_archive: Any = SparkContext.addArchive
        root_directory: Any = SparkFiles.getRootDirectory.__func__  # type: ignore[attr-defined]
        sql: Any = SparkSession.sql

        def own_add_file(context: Any, path: str, recursive: bool = False) -> None:
            attachment._use_own_files()
            add_file(context, attachment._snapshot(path), recursive)

        def own_add_archive(context: Any, path: str) -> None:
            attachment._use_own_files()
            add_archive(context, attachment._snapshot(path))

        def own_root_directory(files: Any) -> str:
            root: str = root_directory(files)
            return root if attachment._files is None else str(Path(root) / attachment._name)

        def own_sql(session: Any, sqlQuery: str, *arguments: Any, **keywords: Any) -> Any:  # noqa: N803
            if adds_jar(sqlQuery):
                raise SharedDriverError(
                    "the statement would give its jar to every job of the cluster: submit the job with --jar FILE or "
                    "with --own-driver"
                )
            if may_add_files(sqlQuery):
                attachment._use_own_files()
            return sql(session, sqlQuery, *arguments, **keywords)

        context_class, files_class, session_class = (
            cast(Any, SparkContext),
            cast(Any, SparkFiles),
            cast(Any, SparkSession),
        )
        context_class.addFile, context_class.addArchive = own_add_file, own_add_archive
        files_class.getRootDirectory = classmethod(own_root_directory)
        session_class.sql = own_sql

    def _use_own_files(self) -> None:
        if self._files is None:
            self._thread.entered = True  # the calls below do not need the files
            sessions = [self._sessions.get(index) for index in range(self._sessions.size())]
            self._files = own_files(
                self._gateway.jvm,
                self._java_context.sc(),
                sessions,
                self._name,
                is_local=not self._spec.shipping_dir,
            )
            self._thread.entered = False

    def _enter_files(self) -> None:
        """Let the JVM's thread that serves this one see the script's files."""
        if self._files is not None and not getattr(self._thread, "entered", False):
            self._thread.entered = True
            enter_files(self._gateway.jvm, self._files)

    def _snapshot(self, path: str) -> str:
        """Return a copy of a local file, since each executor compares what it fetches with its earlier copy."""
        source = Path(path.partition("#")[0].removeprefix("file://"))
        if ("://" in path and not path.startswith("file://")) or not source.is_file():
            return path
        place = Path(self._spec.work_dir) / "files" / hashlib.sha256(str(source.resolve()).encode()).hexdigest()[:8]
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        target = place / source.name
        if not target.exists():
            part = place / f".{source.name}"
            part.touch(mode=source.stat().st_mode & 0o700 | 0o600)  # private, like all files that the runtime writes
            shutil.copyfile(source, part).rename(target)
        return str(target) + path[len(path.partition("#")[0]) :]

    def _own_jobs(self) -> None:
        """Make names of groups and tags private to the script, and show the status tracker only the script's jobs."""
        attachment, prefix = self, f"{self._name}:"

        def named(method: Any) -> Any:
            @functools.wraps(method)
            def own(context: Any, name: str, *arguments: Any, **keywords: Any) -> Any:
                return method(context, prefix + name, *arguments, **keywords)

            return own

        context_class, tracker_class = cast(Any, SparkContext), cast(Any, StatusTracker)
        for name in ("setJobGroup", "cancelJobGroup", "addJobTag", "removeJobTag", "cancelJobsWithTag"):
            setattr(context_class, name, named(getattr(context_class, name)))
        job_tags: Any = SparkContext.getJobTags
        ids_for_group: Any = StatusTracker.getJobIdsForGroup

        def get_job_tags(context: Any) -> set[str]:
            return {tag.removeprefix(prefix) for tag in job_tags(context) if tag.startswith(prefix)}

        def get_job_ids_for_group(tracker: Any, jobGroup: str | None = None) -> list[int]:  # noqa: N803
            ids = ids_for_group(tracker, None if jobGroup is None else prefix + jobGroup)
            return ids if jobGroup is not None else sorted(attachment._own_job_ids() & set(ids))

        def get_active_jobs_ids(tracker: Any) -> list[int]:
            return sorted(attachment._own_job_ids() & set(tracker._jtracker.getActiveJobIds()))

        def get_active_stage_ids(tracker: Any) -> list[int]:
            jobs = [tracker.getJobInfo(job) for job in get_active_jobs_ids(tracker)]
            stages = {stage for job in jobs if job is not None for stage in job.stageIds}
            return sorted(stages & set(tracker._jtracker.getActiveStageIds()))

        context_class.getJobTags = get_job_tags
        tracker_class.getJobIdsForGroup = get_job_ids_for_group
        tracker_class.getActiveJobsIds = get_active_jobs_ids
        tracker_class.getActiveStageIds = get_active_stage_ids

    def _own_job_ids(self) -> set[int]:
        """Return the ids of the task's Spark jobs, as far as Spark remembers them."""
        as_java = self._gateway.jvm.scala.jdk.javaapi.CollectionConverters.asJava
        jobs = as_java(self._java_context.sc().statusStore().jobsList(None))
        return {int(job.jobId()) for job in jobs if any(str(tag) == self._tag for tag in as_java(job.jobTags()))}

    def _keep_log_level(self) -> None:
        def set_log_level(_context: Any, logLevel: str) -> None:  # noqa: N803
            print(  # noqa: T201
                f"setLogLevel({logLevel!r}) has no effect: Spark's log is the cluster's, and is not written to the "
                "script's output; submit the job with --own-driver to have a log of its own",
                file=sys.stderr,
            )

        patched: Any = SparkContext
        patched.setLogLevel = set_log_level

    def _configure(self, session: Any) -> None:
        for key, value in self._spec.conf.items():
            if not key.startswith(_HADOOP):
                session.conf().set(key, value)

    def held_settings(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the effective options of a session."""
        return self._settings.holding(options)

    def default_session(self) -> Any:
        """Return the Java session that `getOrCreate` finds: the task's first one, or a new one after each `stop`."""
        if self._current is None:
            if self._first_session is not None:
                self._current, self._first_session = self._first_session, None
            else:
                self._current = self._sessions.get(0).newSession()
                self._configure(self._current)
        return self._current


class _SessionClass:
    """The Java class SparkSession with the task's default session instead of the JVM's."""

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


class _SessionModule:
    """Scala's object SparkSession, which applies only a script's effective settings to a session."""

    def __init__(self, attachment: ClassicAttachment, module: Any) -> None:
        self._attachment = attachment
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def applyModifiableSettings(self, session: Any, options: Mapping[str, Any]) -> None:  # noqa: N802
        self._module.applyModifiableSettings(session, self._attachment.held_settings(options))


class _Some:
    """The part of Scala's `Some` that PySpark uses."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def isDefined(self) -> bool:  # noqa: N802
        return True

    def get(self) -> Any:
        return self._value


def _name_java_threads(name: str) -> None:
    """Name the JVM's threads that serve this process, so that `LeftoverSparkWork` finds those that still run."""
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
    """Connect to a task's Py4J server, in 20 round trips."""
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


def _watch_queries(spec: TaskSpec, control: TaskControl, attachment: ClassicAttachment) -> StreamingQueries | None:
    """Install the hooks of streaming queries; with restarts of single queries, if the task has any."""
    settings = spec.streaming
    if settings is None or not settings.query_restarts:
        queries = watch_streaming_queries(spec, control, DataStreamWriter)
        if queries is not None:
            attachment.before_stop = queries.stopped_all
        return queries
    from runtime.spark.task.query_restarts import FixedDelay, QueryRestarts  # imported here: few tasks have restarts

    restarts = QueryRestarts(lambda: FixedDelay(settings.query_restarts, settings.query_restart_delay_s))

    def failed(queries: StreamingQueries, run_id: str, name: str, error: BaseException) -> None:
        if isinstance(error, QueryLostError):
            queries.tell_failed(run_id, name, error)
        else:
            restarts.attend(run_id, lambda: queries.tell_failed(run_id, name, error))

    restarts.install_waits(StreamingQuery, StreamingQueryManager)
    watched = watch_streaming_queries(spec, control, DataStreamWriter, failed)
    assert watched is not None
    restarts.install_starts(DataStreamWriter)

    def stopped_all() -> None:
        restarts.end()
        watched.stopped_all()

    def failed_queries() -> list[FailedQuery]:
        restarts.end(wait=True)  # the TaskExecutor asks because it stops the queries
        return watched.failed()

    attachment.before_stop = stopped_all
    control.failed_queries = failed_queries
    return watched


def run_script(
    spec: TaskSpec, control: TaskControl, cancellation: Cancellation, reporter: ProgressReporter, gateway: Any = None
) -> Finished:
    """Run the task's script. Raises the script's exceptions.

    *gateway* is the connection to the task's Py4J server. Default: open one.
    """
    if spec.classic is None:
        raise ValueError(
            f"task {spec.descriptor.attempt.task_name!r} is a script and has no classic endpoint to attach to"
        )
    attachment = ClassicAttachment(spec, spec.classic, cancellation, gateway)
    attachment.install()
    queries = _watch_queries(spec, control, attachment)
    carry_surroundings(spec)
    resolve_paths_of(spec)
    cancellation.on_request(attachment.stop_spark)
    control.tell(Running())
    vertex = spec.descriptor.attempt.vertices[0].id
    reporter.change(TaskProgress.start, vertex, force=True)
    poller = attachment.poll_status(reporter, vertex)
    try:
        run_main(spec.file, spec.argv, spec.import_path, spec.shown_file)
        cancellation.checkpoint()
        attachment.warn_of_active_queries()
        return Finished() if queries is None else queries.finished()
    finally:
        cancellation.close()
        poller.stop()
        attachment.close()

"""Functions on objects of the driver JVM: cached handles, settings, leftover work, file locks, streaming queries.

All of them are blocking and use Py4J; see `DriverGateway`.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JJavaError

from runtime.causes import cause_of
from runtime.checkpoint.alignment import upstream_waves
from runtime.checkpoint.files import named_path
from runtime.protocol.descriptor import EndedSparkJob
from runtime.spark.driver.api import QueryFailure, StoppedQueries, StreamingQueryInfo
from runtime.spark.driver.packages import PACKAGES
from runtime.spark.driver.ui import UI_ENABLED
from runtime.spark.task.progress import MOST_OF_A_NAME

SPARK_SESSION = "org.apache.spark.sql.classic.SparkSession"
JAVA_SPARK_CONTEXT = "org.apache.spark.api.java.JavaSparkContext"

REGISTRY_KEY = "understudy.tasks"
"""System property in which the JVM keeps the open task servers, so that an adopter finds those of its predecessor."""

LOCKS_KEY = "understudy.locks"
"""System property in which the JVM keeps the files that it has locked for tasks."""

BASELINE_KEY = "understudy.properties"
"""System property in which the JVM keeps a copy of its initial system properties."""

LOCALE_KEY = "understudy.locale"
"""System property in which the JVM keeps its initial locale."""

OWN_KEYS = (REGISTRY_KEY, LOCKS_KEY, BASELINE_KEY, LOCALE_KEY)
"""System properties that are kept at the end of a script, since an adopter of the JVM needs them."""


class JvmHandles:
    """Classes, methods and singletons of one JVM, by the names of `_LOOK_UPS`. Thread-safe.

    Each is looked up once: with Py4J every part of a class's qualified name is a call to the JVM.

    Args:
        jvm: Py4J's view of the JVM.
    """

    def __init__(self, jvm: Any) -> None:
        self.jvm = jvm

    def __getattr__(self, name: str) -> Any:
        if name not in _LOOK_UPS:
            raise AttributeError(f"{type(self).__name__} has no {name!r}")
        found = self.__dict__[name] = _LOOK_UPS[name](self)
        return found

    def new_kryo(self) -> Any:
        """Return a copier of objects, for one thread."""
        kryo = self.jvm.com.esotericsoftware.kryo.Kryo()
        kryo.setInstantiatorStrategy(self.jvm.org.objenesis.strategy.StdInstantiatorStrategy())
        return kryo


def _singleton(of: JvmHandles, name: str) -> Any:
    """Return a singleton object of Scala."""
    return getattr(getattr(of.jvm, name), "MODULE$")


def _buffers(of: JvmHandles) -> dict[str, Any]:
    kind = of.jvm.java.lang.Class.forName("java.lang.management.BufferPoolMXBean")
    found = {str(bean.getName()): bean for bean in of.beans.getPlatformMXBeans(kind)}
    return {name: found[name] for name in ("direct", "mapped")}


def _loaded_states(of: JvmHandles) -> Any:
    """Return Spark's own map of the state stores that are open in this JVM."""
    field = of.state_store.getClass().getDeclaredField("loadedProviders")
    field.setAccessible(True)
    return field.get(None)


_LOOK_UPS: dict[str, Callable[[JvmHandles], Any]] = {
    # the JVM: its system properties, the stacks of its threads, its time zone and locale, its management beans
    "properties": lambda of: of.jvm.java.lang.System.getProperties(),
    "all_stack_traces": lambda of: of.jvm.java.lang.Thread.getAllStackTraces,
    "time_zone": lambda of: of.jvm.java.util.TimeZone,
    "locale": lambda of: of.jvm.java.util.Locale,
    "beans": lambda of: of.jvm.java.lang.management.ManagementFactory,
    "memory_bean": lambda of: of.beans.getMemoryMXBean(),
    "class_bean": lambda of: of.beans.getClassLoadingMXBean(),
    "thread_bean": lambda of: of.beans.getThreadMXBean(),
    # only a HotSpot JVM has this pool
    "metaspace_beans": lambda of: [bean for bean in of.beans.getMemoryPoolMXBeans() if bean.getName() == "Metaspace"],
    "buffer_beans": _buffers,
    "collector_beans": lambda of: {str(bean.getName()): bean for bean in of.beans.getGarbageCollectorMXBeans()},
    # Scala
    "as_java": lambda of: of.jvm.scala.jdk.javaapi.CollectionConverters.asJava,
    "as_scala": lambda of: of.jvm.scala.jdk.javaapi.CollectionConverters.asScala,
    "await_result": lambda of: of.jvm.scala.concurrent.Await.result,
    "new_duration": lambda of: of.jvm.scala.concurrent.duration.Duration.create,
    "none": lambda of: _singleton(of, "scala.None$"),
    "empty_map": lambda of: _singleton(of, "scala.collection.immutable.Map$").empty(),
    # Spark
    "set_default_session": lambda of: getattr(of.jvm, SPARK_SESSION).setDefaultSession,
    "files_directory": lambda of: str(of.jvm.org.apache.spark.SparkFiles.getRootDirectory()),
    "state_store": lambda of: _singleton(of, "org.apache.spark.sql.execution.streaming.state.StateStore$"),
    "loaded_states": _loaded_states,
    "active_streaming_context": lambda of: of.jvm.org.apache.spark.streaming.StreamingContext.getActive,
    # states of Spark jobs that run or did not succeed
    "unsuccessful": lambda of: [getattr(of.jvm.org.apache.spark.JobExecutionStatus, s) for s in ("RUNNING", "FAILED")],
    # mark of threads that may not stop a SparkContext
    "within_listener_thread": lambda of: _singleton(
        of, "org.apache.spark.scheduler.LiveListenerBus$"
    ).withinListenerThread(),
    "config_entries": lambda of: of.jvm.org.apache.spark.internal.config.ConfigEntry,
    "partitioning": lambda of: of.jvm.org.apache.spark.sql.execution.datasources.PartitioningUtils,
    "table_type": lambda of: of.jvm.org.apache.spark.sql.catalyst.catalog.CatalogTableType,
    "connect_service": lambda of: _singleton(of, "org.apache.spark.sql.connect.service.SparkConnectService$"),
    "session_manager": lambda of: of.connect_service.sessionManager(),
    "new_session_key": lambda of: getattr(of.jvm, "org.apache.spark.sql.connect.service.SessionKey"),
    # the root logger, and the level with which `runtime.spark.driver.launch` starts it
    "set_log_level": lambda of: of.jvm.org.apache.logging.log4j.core.config.Configurator.setRootLevel,
    "log_level": lambda of: of.jvm.org.apache.logging.log4j.Level.INFO,
}


# ------------------------------------------------------------------ settings

_APPLIED = ("spark.app.name", "spark.hadoop.", "spark.sql.catalog.")
"""Prefixes of settings that a session or a script applies when it starts."""

_OTHERS = ("spark.master", "spark.ssl.", "spark.metrics.", "spark.kubernetes.", "spark.yarn.")
"""Prefixes of settings that Spark reads at its start and whose keys a running Spark does not declare."""


def is_taken_at_start(handles: JvmHandles, session_conf: Any, key: str) -> bool:
    """Return whether Spark reads a setting only when it starts, for its SparkContext.

    A setting that Spark does not know belongs to the program, which reads it from its session.

    Args:
        handles: of the JVM.
        session_conf: the `RuntimeConfig` of a session.
        key: of the setting.
    """
    if key.startswith(_APPLIED) or session_conf.isModifiable(key):
        return False
    return key.startswith(_OTHERS) or handles.config_entries.findEntry(key) is not None


def holds(key: str, asked: str, actual: str) -> bool:
    """Return whether a setting has the requested value, or an equivalent one; there may be more memory, or a UI."""
    if key == UI_ENABLED and _plain(asked) == "false":
        return True
    if key == "spark.driver.memory":
        wanted, has = _megabytes(asked), _megabytes(actual)
        return wanted is not None and has is not None and wanted <= has
    if key in ("spark.jars", "spark.plugins"):
        names = {Path(item.strip()).name for item in actual.split(",")}
        return all(Path(item.strip()).name in names for item in asked.split(","))
    if key == PACKAGES:
        return set(asked.replace(" ", "").split(",")) <= set(actual.split(","))
    return _plain(asked) == _plain(actual)


def _plain(value: str) -> str:
    """Return a value without the changes that Spark makes to paths and truth values."""
    is_truth = value.lower() in ("true", "false")
    return value.lower() if is_truth else re.sub("^file:/+", "/", value).rstrip("/")


def _megabytes(text: str) -> float | None:
    """Return the megabytes of a size in Spark's notation; None for an invalid one."""
    found = re.fullmatch(r"(\d+)\s*([kmgt]?)b?", text.strip().lower())
    if found is None:
        return None
    return int(found[1]) * {"k": 1 / 1024, "": 1, "m": 1, "g": 1024, "t": 1024 * 1024}[found[2]]


# ------------------------------------------------------------------ leftover work
# Spark's cancel returns before the work has ended. The scheduler marks the jobs, and the executors' threads end when
# they notice. A thread that was between two Spark jobs still submits the next one. So a caller checks here until no
# work is left, before it reports CANCELED.

_ANSWER = "10s"
_BUS_WAIT_MS = 1000
_NEWEST = 100
"""Number of the JVM's newest jobs that are searched for cancelled ones, whose tasks end in seconds, or never."""


class LeftoverSparkWork:
    """Work of an ended task that is left in the JVM: its Spark jobs, their running tasks, its own threads.

    Repeat `look` until it returns an empty text. Blocking, and not thread-safe.

    Args:
        handles: of the driver's JVM.
        context: its JavaSparkContext.
        tags: the tags of the Spark jobs that may run.
        prefix: the common prefix of the tags of the task's Spark jobs.
        thread_names: suffixes of the names of the task's JVM threads.
        interrupted: whether the task may have been interrupted before. Its earlier Spark jobs are then checked too,
            since tasks of a cancelled job may still run.
    """

    def __init__(
        self,
        handles: JvmHandles,
        context: Any,
        tags: Iterable[str],
        prefix: str,
        thread_names: Iterable[str],
        interrupted: bool,
    ) -> None:
        self._handles = handles
        self._context: Any = context.sc()
        self._tracker: Any = context.statusTracker()
        self._tags = tuple(tags)
        self._prefix = prefix
        self._thread_names = tuple(thread_names)
        self._jobs: set[int] = set()
        self.interrupted = interrupted

    def look(self) -> str:
        """Cancel the work; return a description of what still runs, empty where all of it has ended."""
        for tag in self._tags:
            self._jobs |= self._cancel(tag)
        left = [f"thread {name}" for name in self._threads()]
        self.interrupted = self.interrupted or bool(self._jobs)
        if self.interrupted:
            with contextlib.suppress(Py4JJavaError):  # a TimeoutException: on a busy bus the next look is as good
                self._context.listenerBus().waitUntilEmpty(_BUS_WAIT_MS)
            self._jobs |= self._unsuccessful()
            left += [text for job_id in sorted(self._jobs) if (text := self._running(job_id))]
        return ", ".join(left)

    def _cancel(self, tag: str) -> set[int]:
        """Cancel the jobs that bear a tag, and return their ids.

        The ids come from the scheduler itself, not from the events that it has published.
        """
        cancelled = self._context.cancelJobsWithTagWithFuture(tag, "its task has ended")
        jobs = self._handles.await_result(cancelled, self._handles.new_duration(_ANSWER))
        return {int(job.jobId()) for job in self._handles.as_java(jobs)}

    def _unsuccessful(self) -> set[int]:
        """Return the ids of the task's newest jobs that run or did not succeed."""
        as_java = self._handles.as_java
        jobs = as_java(self._context.statusStore().jobsList(self._handles.unsuccessful).take(_NEWEST))
        return {
            int(job.jobId()) for job in jobs if any(str(t).startswith(self._prefix) for t in as_java(job.jobTags()))
        }

    def _running(self, job_id: int) -> str:
        job = self._tracker.getJobInfo(job_id)
        if job is None:
            return ""
        if str(job.status().name()) == "RUNNING":
            return f"Spark job {job_id}"
        for stage_id in job.stageIds():
            stage = self._tracker.getStageInfo(stage_id)
            if stage is not None and stage.numActiveTasks() > 0:
                return f"{stage.numActiveTasks()} tasks of Spark job {job_id}"
        return ""

    def _threads(self) -> list[str]:
        if not self._thread_names:
            return []
        living = self._handles.all_stack_traces().keySet().toString()  # not a call for each thread
        return [name for name in self._thread_names if f"{name}," in living]


# ------------------------------------------------------------------ file locks
# A lock ends when its task is released, or with the JVM. Locks are the kernel's record locks, which belong to a
# process: two tasks of one JVM would not exclude each other. Closing a file also releases all locks of the process on
# it. So the JVM keeps a table of locks and owners, which an adopter of the JVM finds again.

_LOCKED = 3
"""Number of items in an entry of the lock table: owner, file and lock. The lock is added once it is held."""

_guard = threading.Lock()


def lock_file(handles: JvmHandles, path: str, owner: str) -> bool:
    """Lock a file for a task, and create the file if necessary; return whether the task has the lock now."""
    with _guard:
        book = _book(handles)
        entry = book.get(path)
        if entry is not None and entry.size() == _LOCKED:
            return str(entry.get(0)) == owner
        if entry is not None:  # an earlier caller lost its connection before it knew whether it had the lock
            entry.get(1).close()
        file = handles.jvm.java.io.RandomAccessFile(path, "rw")
        entry = handles.jvm.java.util.ArrayList()
        entry.add(owner)
        entry.add(file)
        book.put(path, entry)  # before the lock: one that is not in the table would last until the JVM ends
        lock = file.getChannel().tryLock()
        if lock is None:
            file.close()
            book.remove(path)
            return False
        entry.add(lock)
        return True


def unlock_files(handles: JvmHandles, owner: str | None = None) -> None:
    """Release the locks of a task, or of all tasks by default."""
    with _guard:
        book = _book(handles)
        for path in [str(path) for path in book.keySet()]:
            entry = book.get(path)
            if owner is None or str(entry.get(0)) == owner:
                entry.get(1).close()
                book.remove(path)


def _book(handles: JvmHandles) -> Any:
    book = handles.properties.get(LOCKS_KEY)
    if book is None:
        handles.properties.put(LOCKS_KEY, handles.jvm.java.util.HashMap())
        book = handles.properties.get(LOCKS_KEY)
    return book


# ------------------------------------------------------------------ streaming queries


def ended_job(store: Any, job_id: int) -> EndedSparkJob | None:
    """Read name and times of an ended Spark job; None if it runs, or Spark has dropped it from its store."""
    try:
        data = store.job(job_id)
        start_ms, end_ms = (int(of().get().getTime()) for of in (data.submissionTime, data.completionTime))
    except Py4JJavaError:  # NoSuchElementException
        return None
    return EndedSparkJob(job_id, str(data.name())[:MOST_OF_A_NAME], start_ms, end_ms, str(data.status()) == "FAILED")


_MOST_EARLIER = 8
"""Number of batches between two looks whose reports are read; each costs a round trip."""


def query_info(query: JavaObject, known: Mapping[str, int]) -> StreamingQueryInfo:
    """Read the state of an `org.apache.spark.sql.streaming.StreamingQuery`, in some Py4J round trips.

    Args:
        query: the query.
        known: the last batch that was known at the last look, by the query's run.
    """
    name, progress, run_id = query.name(), query.lastProgress(), str(query.runId().toString())
    batch = None if progress is None else int(progress.batchId())
    return StreamingQueryInfo(
        query.id().toString(),
        run_id,
        None if name is None else str(name),
        bool(query.isActive()),
        batch,
        None if progress is None else str(progress.json()),
        _trigger_interval_ms(query),
        bool(query.status().isTriggerActive()),
        () if batch is None else _reports_between(query, known.get(run_id, batch), batch),
    )


def _reports_between(query: JavaObject, known: int, last: int) -> tuple[str, ...]:
    """Return the reports of the newest batches after *known* and before *last*, the oldest first."""
    found: list[str] = []
    if last - known > 1:
        recent = query.recentProgress()
        for progress in (recent[index] for index in reversed(range(len(recent)))):
            batch = int(progress.batchId())
            if batch <= known or len(found) == _MOST_EARLIER:
                break
            if batch < last:
                found.append(str(progress.json()))
    return tuple(reversed(found))


def _trigger_interval_ms(query: JavaObject) -> int | None:
    trigger = query.streamingQuery().trigger()
    if trigger.getClass().getSimpleName() != "ProcessingTimeTrigger":
        return None
    return int(trigger.intervalMs())


POLL_S = 0.01


def stop_at_boundary(queries: list[Any], *, drain: bool, timeout_s: float) -> StoppedQueries:
    """Stop queries of the driver JVM, each while it runs no batch.

    So Spark's `stop` does not interrupt a batch. A query that is always in a batch is stopped as soon as it has
    committed one. A query that commits none within *timeout_s* is interrupted in a batch, and repeats the batch when it
    is started again.

    A query that reads what another one writes is drained after that one. None is stopped before all are drained: some
    programs end with the first of their queries, and that stops the others.

    Args:
        queries: `org.apache.spark.sql.streaming.StreamingQuery` objects; one that is named twice is stopped once.
        drain: whether the queries first process what their sources have now.
        timeout_s: seconds for all of it.
    """
    deadline = time.monotonic() + timeout_s
    each: list[Any] = []
    for query in queries:
        if query not in each:
            each.append(query)
    if not each:
        return StoppedQueries()
    undrained: list[Any] = []
    with ThreadPoolExecutor(len(each), "stop-query") as pool:
        for wave in _waves(each, deadline) if drain else []:
            done = pool.map(lambda query: _drained(query, deadline), wave)
            undrained += [query for query, is_drained in zip(wave, done, strict=True) if not is_drained]
        parts = list(pool.map(lambda query: _stop(query, deadline), each))
    return StoppedQueries(
        tuple(failure for part in parts for failure in part.failures),
        tuple(map(_name, undrained)),
        tuple(name for part in parts for name in part.forced),
    )


def _waves(queries: list[Any], deadline: float) -> list[list[Any]]:
    """Return queries in groups, each after those whose output it reads."""
    if len(queries) == 1:
        return [queries]
    read = {str(number): _directories(_sources(query, deadline), _SOURCE) for number, query in enumerate(queries)}
    written = {str(number): _directories([_sink(query)], _SINK) for number, query in enumerate(queries)}
    reads = {
        (reader, writer)
        for reader, sources in read.items()
        for writer, sinks in written.items()
        if any(_meet(source, sink) for source in sources for sink in sinks)
    }
    return [[queries[int(name)] for name in group] for group in upstream_waves(list(read), reads)]


_SOURCE = re.compile(r"FileStreamSource\[(.*)\]")
_SINK = re.compile(r"FileSink\[(.*)\]")
_PATTERN = re.compile(r"/[^/]*[*?\[{].*")


def _sources(query: Any, deadline: float) -> list[str]:
    """Return the descriptions of a query's sources, once it has been planned: a moment after its start."""
    while True:
        found = str(query.streamingQuery().sources().mkString("\n"))
        if found or not query.isActive() or time.monotonic() >= deadline:
            return found.split("\n")
        time.sleep(POLL_S)


def _sink(query: Any) -> str:
    return str(query.streamingQuery().sink().toString())


def _directories(descriptions: list[str], form: re.Pattern[str]) -> list[PurePosixPath]:
    """Return the directories of those that are file sources, or a file sink."""
    found = map(form.fullmatch, descriptions)
    return [PurePosixPath(_PATTERN.sub("", named_path(match[1]), count=1)) for match in found if match]


def _meet(source: PurePosixPath, sink: PurePosixPath) -> bool:
    return source.is_relative_to(sink) or sink.is_relative_to(source)


def _name(query: Any) -> str:
    return str(query.name() or query.id().toString())


def _stop(query: Any, deadline: float) -> StoppedQueries:
    is_forced = False
    batch = _last_batch(query)
    while query.isActive() and query.status().isTriggerActive() and _last_batch(query) == batch:
        if time.monotonic() >= deadline:
            is_forced = True
            break
        time.sleep(POLL_S)
    failure = query.exception()  # its own failure: an error from now on may be caused by the stop
    query.stop()
    if failure.isDefined():
        error = cause_of(str(failure.get().getMessage()))
        return StoppedQueries(failures=(QueryFailure(query.runId().toString(), _name(query), error),))
    return StoppedQueries(forced=(_name(query),) * is_forced)


def _last_batch(query: Any) -> int | None:
    progress = query.lastProgress()
    return None if progress is None else int(progress.batchId())


def _drained(query: Any, deadline: float) -> bool:
    """Return whether the query has processed in time what its sources had."""
    done = threading.Event()

    def wait() -> None:
        try:
            query.processAllAvailable()
        except Py4JJavaError:
            return  # it was stopped, or has failed, which `_stop` finds
        done.set()

    threading.Thread(target=wait, name="drain-query", daemon=True).start()
    while query.isActive() and time.monotonic() < deadline:
        if done.wait(POLL_S):
            return True
    return done.is_set() or not query.isActive()

"""The Spark application that a script sees: copies of the objects that all tasks of a driver share.

Spark keeps one SparkContext and one SharedState in a JVM; through them, one program can see and change state of
another. Each script gets a shallow copy of both. A copy shares the original's objects (scheduler, block manager,
catalog), except for these fields, which belong to the script:

- SparkContext: its settings, the Hadoop configuration, the checkpoint directory, the persistent RDDs, the added files
  and jars;
- SharedState: the cache of tables and DataFrames, the global temporary views.

Sessions that a script derives from its first session share the copies. `end` restores state elsewhere in the JVM:
system properties, time zone and locale, the log level, the default session, an active StreamingContext. `refuse_stop`
prevents threads of a script from stopping the SparkContext.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError

from runtime.spark.driver.jvm import BASELINE_KEY, LOCALE_KEY, OWN_KEYS, SPARK_SESSION, JvmHandles

_ADDED = ("addedFiles", "addedArchives", "addedJars")
"""Fields of SparkContext that hold added files, archives and jars, by the id of an artifact set."""


class ScriptApplications:
    """Makes and ends the applications of scripts in one JVM. Blocking; thread-safe.

    Args:
        handles: of the JVM.
        context: its SparkContext (Scala's).
        session: its root session.
    """

    def __init__(self, handles: JvmHandles, context: Any, session: Any) -> None:
        self._handles = handles
        self._context = context
        self._session = session

    def note_baseline(self) -> None:
        """Note the JVM's system properties and locale, before any script can change them."""
        properties = self._handles.properties
        if properties.get(BASELINE_KEY) is None:
            baseline = properties.clone()
            for key in OWN_KEYS:
                baseline.remove(key)
            properties.put(BASELINE_KEY, baseline)
            properties.put(LOCALE_KEY, self._handles.locale.getDefault())

    def create(self) -> Any:
        """Return the first session of a new application."""
        jvm, shared = self._handles.jvm, self._session.sharedState()
        context = self._copy(self._context)
        _set(context, "_conf", context.conf().clone())
        _set(context, "_hadoopConfiguration", jvm.org.apache.hadoop.conf.Configuration(context.hadoopConfiguration()))
        _set(context, "checkpointDir", self._handles.none)
        # weak, as in Spark: Spark's cleaner removes an RDD that the script does not reference any more
        rdds = jvm.org.sparkproject.guava.collect.MapMaker().weakValues().makeMap()
        _set(context, "persistentRdds", self._handles.as_scala(rdds))
        for name in _ADDED:
            _set(context, name, self._handles.as_scala(jvm.java.util.concurrent.ConcurrentHashMap()))
        # Spark creates both on first use; every copy has to share the same objects
        shared.externalCatalog()
        shared.globalTempViewManager()
        state = self._copy(shared)
        _set(state, "sparkContext", context)  # a session's reads start from its Hadoop configuration
        _set(state, "cacheManager", jvm.org.apache.spark.sql.execution.CacheManager())
        views = jvm.org.apache.spark.sql.catalyst.catalog.GlobalTempViewManager(shared.globalTempDB())
        _set(state, "globalTempViewManager", views)
        none, empty = self._handles.none, self._handles.empty_map
        session_class = getattr(jvm, SPARK_SESSION)
        return session_class(context, jvm.scala.Some(state), none, self._session.extensions(), empty, empty)

    @contextlib.contextmanager
    def refuse_stop(self) -> Iterator[None]:
        """Forbid stopping a SparkContext to threads that this one starts within the block, and to their descendants.

        Spark forbids it to its listeners, which it recognises by an inheritable thread-local variable.
        """
        within = self._handles.within_listener_thread
        assign = getattr(within, "value_$eq")
        assign(True)
        try:
            yield
        finally:
            assign(False)

    def end(self, name: str, session: Any) -> None:
        """Release the resources of an application, and restore the JVM's state that it may have changed.

        Args:
            name: the task's.
            session: the application's first.
        """
        context = session.sparkContext()
        streaming = self._handles.active_streaming_context()
        if streaming.isDefined() and streaming.get().sparkContext().equals(context):
            with contextlib.suppress(Py4JJavaError):  # it fails where it needs the script's Python functions
                streaming.get().stop(False, False)
        session.sharedState().cacheManager().clearCache()
        for rdd in list(self._handles.as_java(context.persistentRdds()).values()):
            rdd.unpersist(False)
        self._remove_files(name)
        self._handles.set_default_session(self._session)
        self._handles.set_log_level(self._handles.log_level)
        self._restore_properties()

    def _remove_files(self, name: str) -> None:
        """Remove the files that the script has added under its own name, see `own_files`."""
        for added in _ADDED:
            getattr(self._context, added)().remove(name)
        shutil.rmtree(Path(self._handles.files_directory) / name, ignore_errors=True)

    def _restore_properties(self) -> None:
        properties = self._handles.properties
        baseline = properties.get(BASELINE_KEY)
        keys = self._handles.jvm.java.util.HashSet(baseline.keySet())
        for key in OWN_KEYS:
            keys.add(key)
        properties.keySet().retainAll(keys)
        properties.putAll(baseline)
        self._handles.time_zone.setDefault(None)  # Java determines it from the properties again
        locale = properties.get(LOCALE_KEY)
        if locale is not None:  # a driver that an earlier release has started has none
            self._handles.locale.setDefault(locale)

    def _copy(self, original: Any) -> Any:
        return self._handles.new_kryo().copyShallow(original)


def _set(target: Any, name: str, value: Any) -> None:
    field = target.getClass().getDeclaredField(name)
    field.setAccessible(True)
    field.set(target, value)


def own_files(jvm: Any, context: Any, sessions: Iterable[Any], name: str, *, is_local: bool) -> Any:
    """Give a script its own directory for files that it adds from now on; the script's process calls this.

    It uses Spark's artifact sets, which Spark itself uses for Connect sessions. The set's files, archives and Python
    workers are separate from all others. The script's first Python function then starts its own worker, in 1 to 2 s.

    Args:
        jvm: the script's view of the JVM.
        context: its SparkContext (Scala's).
        sessions: its sessions.
        name: of the set.
        is_local: whether the executors see the driver's directory of the set. Other executors fetch the files by the
            one list that Spark has for this; tasks of every script without a set then fetch them too.

    Returns:
        The state to pass to `enter_files`.
    """
    if not is_local:
        scheduler = context.dagScheduler().sc()  # whose lists Spark reads when it starts a stage
        for added in _ADDED:
            _set(context, added, getattr(scheduler, added)())
    none = getattr(getattr(jvm, "scala.None$"), "MODULE$")
    state = getattr(jvm, "org.apache.spark.JobArtifactState")(name, none)
    for session in sessions:
        use_files(session, state)
    return state


def use_files(session: Any, state: Any) -> None:
    """Let the queries of a session see the files of an artifact set."""
    manager = session.artifactManager()
    manager.state()  # the first use creates the state, which must not happen after `_set`
    _set(manager, "state", state)


def enter_files(jvm: Any, state: Any) -> None:
    """Let the JVM's thread that serves this one add to an artifact set, and let its RDDs see the set."""
    artifacts = jvm.java.lang.Class.forName("org.apache.spark.JobArtifactSet$")
    for field in artifacts.getDeclaredFields():
        if str(field.getType().getName()) == "java.lang.ThreadLocal":
            field.setAccessible(True)
            field.get(None).set(jvm.scala.Some(state))

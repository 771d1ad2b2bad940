"""A program's side of an embedded cluster: the program offers its own driver, and the cluster manages its queries.

`OfferedDriver` opens a second Py4J server in the program's JVM, on the loopback address and with its own secret. It
writes the server's address into a `driver.json`. A TaskExecutor adopts that driver (`runtime.spark.driver.adopted`).

`ProgramQueries` installs the hook of task processes (`StreamingQueries`) on PySpark's classes in the program's own
process, and removes it again. The restart strategy restarts a failed query from its checkpointLocation, under the
handle that the program has. So `awaitTermination` continues, and raises only when the strategy gives up.
"""

from __future__ import annotations

import contextlib
import functools
import secrets
import shutil
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql.streaming.query import StreamingQuery, StreamingQueryManager
from pyspark.sql.streaming.readwriter import DataStreamWriter

from runtime.protocol.checkpoints import JobManagerTaskRestore
from runtime.spark.driver.api import DriverInfo
from runtime.spark.driver.gateway import OFFERED
from runtime.spark.driver.jvm import REGISTRY_KEY, JvmHandles, unlock_files
from runtime.spark.errors import DriverStartError, StartRefusedError
from runtime.spark.messages import FromTask
from runtime.spark.process import start_time
from runtime.spark.spec import StreamingSpec
from runtime.spark.task.control import FailedQuery
from runtime.spark.task.query_restarts import QueryRestarts, RestartPolicy
from runtime.spark.task.start_gate import StartGate
from runtime.spark.task.streaming import StreamingQueries

_JAVA_ERROR = "py4j.protocol.Py4JJavaError: An error occurred while calling"
_INTERRUPTIONS = (
    "java.lang.InterruptedException",
    "java.io.InterruptedIOException",
    "java.nio.channels.ClosedByInterruptException",
)
_FUNCTION_TEXT = 300


class InterruptedBatchError(Py4JJavaError):  # type: ignore[misc]  # py4j has no types
    """An interruption inside foreachBatch, with a text short enough for Spark to search it on a stack of 1 MB.

    Spark distinguishes a stopped query from a failed one by a regular expression on this text. Its search takes a Java
    frame for each character.
    """

    def __init__(self, text: str) -> None:
        Exception.__init__(self, text)

    def __str__(self) -> str:
        return str(self.args[0])


# Spark searches for the name of the base class.
InterruptedBatchError.__module__, InterruptedBatchError.__qualname__ = "py4j.protocol", "Py4JJavaError"


def interruptible(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function for foreachBatch that raises an `InterruptedBatchError` when Spark interrupts it."""

    @functools.wraps(function)
    def run(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except Exception:
            _, found, text = traceback.format_exc().partition(_JAVA_ERROR)
            interruption = next((name for name in _INTERRUPTIONS if found and name in text), None)
            if interruption is None:
                raise
            raise InterruptedBatchError(
                f"An error occurred while calling{text[:_FUNCTION_TEXT]} ... {interruption}: the query is being stopped"
            ) from None

    return run


def python_of_workers(spark: Any) -> str | None:
    """Return the Python of Spark's workers on this machine; None where the workers are on other machines."""
    context = spark.sparkContext
    if not str(context.master).startswith("local"):
        return None
    named = str(context.pythonExec)
    return shutil.which(named) or named


class OfferedDriver:
    """The offer of a program's JVM to a cluster.

    Args:
        spark: a classic `pyspark.sql.SparkSession`.
        work_dir: directory of the `driver.json`.
        log_file: the file that `driver.json` names as Spark's log.

    Raises:
        DriverStartError: the session does not belong to a JVM of this process.
    """

    def __init__(self, spark: Any, work_dir: Path, log_file: Path) -> None:
        if ".connect." in type(spark).__module__:
            raise DriverStartError(
                "the session is one of Spark Connect, whose driver is another process: embed in the program that has "
                "the driver, with SparkSession.builder.master(...)"
            )
        self._jvm: Any = spark._jvm
        self._handles = JvmHandles(self._jvm)
        self._properties = self._handles.properties
        if self._properties.get(REGISTRY_KEY) is not None:
            raise DriverStartError(
                "the driver of this session belongs to a cluster already; call stop() on that cluster first"
            )
        secret = secrets.token_hex(32)
        self._sessions = self._jvm.java.util.Vector()
        self.add(spark)
        loopback = self._jvm.java.net.InetAddress.getByName("127.0.0.1")
        builder = getattr(self._jvm, "py4j.ClientServer$ClientServerBuilder")(self._sessions)
        builder.authToken(secret).javaPort(0).javaAddress(loopback)
        self._server = builder.build()
        registry = self._jvm.java.util.concurrent.ConcurrentHashMap()
        entry = self._jvm.java.util.ArrayList()
        for item in (self._server, self._sessions):
            entry.add(item)
        registry.put(OFFERED, entry)
        self._properties.put(REGISTRY_KEY, registry)
        self._info(spark, work_dir, log_file, secret).write()

    def add(self, spark: Any) -> None:
        """Add a session of the program, so that the cluster sees its queries."""
        if not self._sessions.contains(spark._jsparkSession):
            self._sessions.add(spark._jsparkSession)

    def stop_queries(self) -> None:
        """Stop the streaming queries of the program's sessions."""
        for index in range(self._sessions.size()):
            for query in list(self._sessions.get(index).streams().active()):
                query.stop()

    def withdraw(self) -> None:
        """Withdraw the offer; the JVM keeps running. A JVM that has ended is not an error."""
        with contextlib.suppress(Py4JError, OSError):
            self._properties.remove(REGISTRY_KEY)
            self._server.shutdown()
            unlock_files(self._handles)

    def _info(self, spark: Any, work_dir: Path, log_file: Path, secret: str) -> DriverInfo:
        pid = int(self._jvm.java.lang.ProcessHandle.current().pid())
        started = start_time(pid)
        if started is None:
            raise DriverStartError(f"the driver's JVM (process {pid} where it runs) is not on this machine")
        system = self._jvm.java.lang.System
        return DriverInfo(
            pid=pid,
            start_time=started,
            gateway_port=int(self._server.getJavaServer().getListeningPort()),
            gateway_secret=secret,
            java_home=str(system.getProperty("java.home")),
            java_version=str(system.getProperty("java.version")),
            spark_version=str(spark.version),
            master=str(spark.sparkContext.master),
            work_dir=str(work_dir),
            log_file=str(log_file),
        )


class ProgramQueries:
    """Hooks PySpark's classes in this process, from `install` to `uninstall`.

    Args:
        spec: names the directory of checkpointLocations for queries that have none.
        restore: the state that they start from; None where the program starts without state.
        tell: see `StreamingQueries`.
        acquire_lease: see `TaskControl.acquire_lease`.
        new_policy: creates the `RestartPolicy` of one query.
        add_session: called with the session of each query.
    """

    def __init__(
        self,
        spec: StreamingSpec,
        restore: JobManagerTaskRestore | None,
        tell: Callable[[FromTask], object],
        acquire_lease: Callable[[str], None],
        new_policy: Callable[[], RestartPolicy],
        add_session: Callable[[Any], None],
    ) -> None:
        self._restarts = QueryRestarts(new_policy, add_session)
        self._queries = StreamingQueries(
            spec, restore, tell, acquire_lease, self._failed_unattended, refusal=StartRefusedError
        )
        self._classes = (DataStreamWriter, StreamingQuery, StreamingQueryManager)
        self._originals = {kind: dict(vars(kind)) for kind in self._classes}

    def install(self) -> None:
        """Install the hooks."""
        self._restarts.install_waits(StreamingQuery, StreamingQueryManager)
        self._queries.install(DataStreamWriter)
        self._shorten_interruptions()
        self._restarts.install_starts(DataStreamWriter)

    def uninstall(self) -> None:
        """Remove the hooks: PySpark is unchanged again, and the queries keep running unmanaged."""
        self._restarts.end()
        for kind, originals in self._originals.items():
            for name in [name for name in vars(kind) if name not in originals]:
                delattr(kind, name)
            for name, value in originals.items():
                if vars(kind).get(name) is not value:
                    setattr(kind, name, value)

    def pass_through(self, gate: StartGate) -> None:
        """Let queries start from now on only if *gate*, which belongs to the present TaskExecutor, is open."""
        self._queries.gate = gate

    def failed(self) -> list[FailedQuery]:
        """Return the failed queries, see `StreamingQueries.failed`."""
        return self._queries.failed()

    def stopped_all(self) -> None:
        """Note that the cluster stops the queries, so that none is started again."""
        self._restarts.end()
        self._queries.stopped_all()

    def _shorten_interruptions(self) -> None:
        original: Any = DataStreamWriter.foreachBatch

        @functools.wraps(original)
        def foreach_batch(writer: Any, func: Callable[..., Any]) -> Any:
            return original(writer, interruptible(func))

        patched: Any = DataStreamWriter
        patched.foreachBatch = foreach_batch

    def _failed_unattended(self, run_id: str, name: str, error: BaseException) -> None:
        """Restart failed queries even though the program does not wait for them."""
        self._restarts.restart_failed()

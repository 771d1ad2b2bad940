"""Runs a chain of vertex functions on one Spark Connect session.

Every function is called once, in topological order. A DataFrame goes to its pipelined consumers as it is, lazy; where a
blocking edge leaves the vertex it becomes a `ResultPartition` of uncompressed parquet (the fastest way of those tried),
and pipelined consumers of that vertex in the same task read that instead of computing it again. A DataFrame that nobody
consumes is computed and thrown away (Spark's `noop` sink).
"""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pyspark.cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.connect.streaming.readwriter import DataStreamWriter

from runtime.protocol.descriptor import VertexDescriptor
from runtime.spark.context import VertexContext
from runtime.spark.control import Cancellation, TaskControl
from runtime.spark.errors import VertexFunctionError, VertexResultError
from runtime.spark.executor_archive import ShippedPath
from runtime.spark.function_sys_path import carry_path
from runtime.spark.input_gate import InputGate
from runtime.spark.memory_limit import limit_memory
from runtime.spark.progress import Counts, ProgressReporter, TaskProgress
from runtime.spark.result_partition import ResultPartition
from runtime.spark.spec import ConnectEndpoint, TaskSpec
from runtime.spark.stored_schema import stored_schema
from runtime.spark.streaming_writer import refuse_streaming_queries, watch_streaming_queries


def run_pipeline(
    spec: TaskSpec, control: TaskControl, cancellation: Cancellation, reporter: ProgressReporter, session: Any = None
) -> dict[str, Any]:
    """Run the task's vertices; return what is announced of the results that were written (`partitions`), and whether
    streaming queries were started, or may have been (`streaming`).

    *session* is the task's session where it is open already.
    """
    if spec.connect is None:
        raise ValueError(f"task {spec.descriptor.attempt.task_name!r} is a pipeline and has no Connect endpoint")
    spark = session or open_session(spec.connect)
    _configure(spark, spec)
    cancellation.on_request(lambda: _interrupt(spark))
    if spec.descriptor.attempt.memory_bytes:
        limit_memory(spec.descriptor.attempt.memory_bytes)
    if spec.connect.remote:
        refuse_streaming_queries(DataStreamWriter)
    queries = watch_streaming_queries(spec, control, DataStreamWriter)
    if queries is not None:
        _call_before_stop(type(spark), queries.stopped_all)
    control.tell("running")
    try:
        result = _Chain(spec, spark, reporter).run()
        if queries is None:
            return result | {"streaming": True}
        queries.warn_of_failures()
        queries.warn_of_unclaimed()
        return result | {"streaming": queries.have_started} | queries.summary()
    finally:
        cancellation.checkpoint()
        cancellation.close()
        _run_exit_functions(spark)


def _call_before_stop(session_class: Any, stopped_all: Callable[[], None]) -> None:
    """Have it told, in this process only, when the code ends its session, and with it its queries."""
    stop = session_class.stop

    def stop_all(session: Any) -> None:
        stopped_all()
        stop(session)

    session_class.stop = stop_all


def _run_exit_functions(spark: SparkSession) -> None:
    """Do what is registered for the end of the process: files that a vertex wants removed, say. A forked one would not.

    Left out is what PySpark's client registers: it has the driver empty a cache of the session, which is closed anyway.
    """
    client: Any = spark.client
    atexit.unregister(client._on_exit)
    atexit._run_exitfuncs()


def open_session(endpoint: ConnectEndpoint) -> SparkSession:
    """Open a Connect session."""
    return SparkSession.builder.remote(endpoint.url).getOrCreate()


def _configure(spark: SparkSession, spec: TaskSpec) -> None:
    for key, value in spec.conf.items():
        spark.conf.set(key, value)
    files = [path for path in spec.py_files if Path(path).is_file()]
    if files:
        spark.addArtifacts(*files, pyfile=True)
    if spec.jars:
        spark.addArtifacts(*spec.jars)
    directories = [path for path in spec.py_files if Path(path).is_dir()]
    if directories:
        carry_path(_shipped(spark, directories, spec.shipping_dir) if spec.shipping_dir else directories)


def _shipped(spark: SparkSession, directories: list[str], shipping_dir: str) -> list[str]:
    """Send directories to the executors of the session; returns where they are there."""
    shipped = ShippedPath(directories)
    spark.addArtifacts(shipped.pack(Path(shipping_dir)), archive=True)
    return shipped.entries


def _interrupt(spark: SparkSession) -> None:
    for query in spark.streams.active:
        query.stop()
    spark.interruptAll()


class _Chain:
    """One run over the vertices of a task."""

    def __init__(self, spec: TaskSpec, spark: SparkSession, reporter: ProgressReporter) -> None:
        self._job, self._attempt = spec.descriptor.job, spec.descriptor.attempt
        self._spark = spark
        self._reporter = reporter
        self._module = _load(spec)
        self._log = _logger(self._job.job_name)
        self._results: dict[str, DataFrame] = {}
        self._partitions: list[dict[str, Any]] = []
        vertices = self._attempt.vertices
        self._gate = InputGate(spark, vertices, self._results)
        self._current: str = vertices[0].id
        self._consumed = {item.source for vertex in vertices for item in vertex.inputs if item.path is None}

    def run(self) -> dict[str, Any]:
        self._gate.check()
        calls = [(vertex, _function(self._module, vertex)) for vertex in self._attempt.vertices]
        handler: Any = self._on_progress
        self._spark.registerProgressHandler(handler)
        try:
            for vertex, function in calls:
                self._current = vertex.id
                self._reporter.change(TaskProgress.start, vertex.id, force=True)
                inputs = [self._gate.read(item, vertex.parallelism) for item in vertex.inputs]
                self._accept(vertex, function(self._context(vertex), *inputs))
            self._gate.check()  # Spark reads the files that it finds: what is all there now was all there then
        except Exception as error:
            self._gate.blame(error)
            raise
        return {"partitions": self._partitions}

    def _accept(self, vertex: VertexDescriptor, returned: Any) -> None:
        """Do with a function's result what its edges ask for."""
        consumed = vertex.id in self._consumed
        result = check_result(vertex.name, returned, is_read=consumed or vertex.result_path is not None)
        if result is not None and vertex.result_path is not None:
            partition = ResultPartition(vertex.id, Path(vertex.result_path))
            result.write.option("compression", "uncompressed").parquet(str(partition.begin()))
            self._partitions.append(partition.finish(stored_schema))
            if consumed:
                self._results[vertex.id] = self._spark.read.parquet(vertex.result_path)
        elif result is not None and consumed:
            self._results[vertex.id] = result
            return  # its work is done by whoever acts on it
        elif result is not None:
            result.write.format("noop").mode("overwrite").save()
        self._reporter.change(TaskProgress.finish, vertex.id, force=True)

    def _context(self, vertex: VertexDescriptor) -> VertexContext:
        job, number = self._job, self._attempt.attempt_number
        log = self._log.getChild(vertex.name)
        return VertexContext(self._spark, dict(job.parameters), vertex.name, job.job_id, number, log)

    def _on_progress(self, stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        """Connect's progress handler, called on the thread that runs the operation."""
        operation, vertex = operation_id or "", self._current
        infos = list(stages or ())
        counts = Counts(
            stages=len(infos),
            stages_completed=sum(info.num_completed_tasks >= info.num_tasks for info in infos),
            tasks_total=sum(info.num_tasks for info in infos),
            tasks_completed=sum(info.num_completed_tasks for info in infos),
            tasks_active=inflight_tasks,
        )
        self._reporter.change(TaskProgress.update, vertex, operation, counts)
        if done:
            self._reporter.change(TaskProgress.complete, operation)


def check_result(vertex_name: str, result: Any, *, is_read: bool) -> DataFrame | None:
    """What a vertex's function returned, if it is what its edges need; raises `VertexResultError`."""
    if result is None and is_read:
        raise VertexResultError(f"vertex {vertex_name!r} returned None, but other vertices read its result")
    if result is not None and not isinstance(result, DataFrame):
        raise VertexResultError(
            f"vertex {vertex_name!r} returned a {type(result).__name__}: return a DataFrame, or None from a sink"
        )
    return result


def _load(spec: TaskSpec) -> ModuleType:
    """Import the job's file under its own name; its functions and classes are pickled by value for Spark's workers."""
    path = Path(spec.file)
    sys.argv = [spec.file, *spec.descriptor.job.argv]
    sys.path[:0] = [str(path.parent), *spec.python_path]
    name = path.stem if path.stem not in sys.modules else f"understudy_job_{path.stem}"
    module_spec = importlib.util.spec_from_file_location(name, path)
    if module_spec is None or module_spec.loader is None:
        raise VertexFunctionError(f"{path.name} is not a Python module: the file of a pipeline must end in .py")
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module
    module_spec.loader.exec_module(module)
    register: Any = pyspark.cloudpickle.register_pickle_by_value
    register(module)
    return module


def _function(module: ModuleType, vertex: VertexDescriptor) -> Callable[..., Any]:
    module_name, _, qualname = vertex.function.rpartition(":")
    file = Path(str(module.__file__))
    found: Any = module if module_name in ("", file.stem) else importlib.import_module(module_name)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise VertexFunctionError(
            f"vertex {vertex.name!r} refers to {vertex.function!r}, which {module_name or file.name} does not define"
        )
    function: Callable[..., Any] = found
    return function


def _logger(name: str) -> logging.Logger:
    """A logger to the task's standard error, beside whatever logging the job's code sets up."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    log = logging.getLogger(name)
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    return log

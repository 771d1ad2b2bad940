"""Runs a chain of vertex functions on one Spark Connect session.

Every function is called once, in topological order. Pipelined consumers get a DataFrame unchanged and lazy. If a
blocking edge leaves the vertex, its DataFrame becomes a `ResultPartition` of uncompressed Parquet, the fastest of the
formats tried. Pipelined consumers of that vertex in the same task then read the files instead of computing them again.
A DataFrame without consumers is computed and discarded (Spark's `noop` sink).
"""

from __future__ import annotations

import atexit
import builtins
import copy
import importlib
import importlib.util
import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow.parquet
import pyspark.cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.connect.streaming.readwriter import DataStreamWriter

from runtime.ids import JobVertexID
from runtime.jobgraph.job_graph import ExchangeMode, JobGraph, ShipStrategy
from runtime.jobgraph.topology import topological_order
from runtime.protocol.descriptor import VertexDescriptor, VertexInput
from runtime.spark.errors import VertexFunctionError, VertexResultError
from runtime.spark.messages import Finished, Running
from runtime.spark.spec import ConnectEndpoint, TaskSpec
from runtime.spark.task.control import Cancellation, TaskControl
from runtime.spark.task.imports import ShippedPath
from runtime.spark.task.program import limit_memory
from runtime.spark.task.progress import Counts, ProgressReporter, TaskProgress
from runtime.spark.task.result_partition import ResultPartition
from runtime.spark.task.streaming import refuse_streaming_queries, watch_streaming_queries
from runtime.spark.task.working_directory import carry_surroundings, resolve_paths_of


@dataclass(frozen=True, slots=True)
class VertexContext:
    """The surroundings of a vertex function.

    Args:
        spark: the task's Spark Connect session, shared by the vertices of the task.
        parameters: the job's parameters.
        vertex_name, job_id: of the vertex and of its job.
        attempt: number of earlier attempts of the task.
        log: writes to the task's standard error.
    """

    spark: SparkSession
    parameters: dict[str, Any]
    vertex_name: str
    job_id: str
    attempt: int
    log: logging.Logger


_KEY = b"org.apache.spark.sql.parquet.row.metadata"
"""Key under which Spark's `ParquetWriteSupport` stores a file's schema, and `ParquetFileFormat` finds it."""


def stored_schema(file: Path) -> str | None:
    """Return the schema of a Parquet file as Spark's JSON; None if the file has none.

    Raises:
        OSError: the file cannot be read.
        pyarrow.ArrowInvalid: it is not a Parquet file.
    """
    found = (pyarrow.parquet.read_metadata(file).metadata or {}).get(_KEY)
    return None if found is None else found.decode()


def select_channels(
    frame: DataFrame, ship: ShipStrategy, keys: tuple[str, ...] = (), parallelism: int = 0
) -> DataFrame:
    """Distribute *frame* among the partitions of a reader.

    The repartitioning is part of the reader's own plan, so that Spark knows of it. Spark then adds no exchange before a
    join or an aggregation by the same keys.

    Args:
        frame: the input.
        ship: FORWARD leaves the partitions unchanged; BROADCAST hints that every partition gets all rows in joins.
        keys: columns of HASH: rows that are equal in them go to one partition.
        parallelism: number of partitions for HASH and REBALANCE; 0 lets Spark choose at run time.
    """
    match ship:
        case ShipStrategy.HASH if parallelism:
            return frame.repartition(parallelism, *keys)
        case ShipStrategy.HASH:
            return frame.repartition(*keys)
        case ShipStrategy.REBALANCE:
            return frame.repartition(parallelism) if parallelism else frame.hint("rebalance")
        case ShipStrategy.BROADCAST:
            return frame.hint("broadcast")
        case ShipStrategy.FORWARD:
            return frame


class InputGate:
    """All inputs of a task's vertices.

    Args:
        spark: the task's session.
        vertices: of the task.
        results: DataFrames that its vertices have returned so far, by vertex; the task fills it.
    """

    def __init__(
        self, spark: SparkSession, vertices: Iterable[VertexDescriptor], results: Mapping[str, DataFrame]
    ) -> None:
        self._spark = spark
        self._results = results
        self._schemas: dict[str, str | None] = {}
        vertices = tuple(vertices)
        own = {vertex.id for vertex in vertices}
        self._foreign = {
            item.path: ResultPartition(item.source, Path(item.path))
            for vertex in vertices
            for item in vertex.inputs
            if item.path is not None and item.source not in own
        }

    def check(self) -> None:
        """Check that the results of other tasks exist; raises `PartitionNotFoundError`."""
        for path, partition in self._foreign.items():
            self._schemas[path] = partition.check()

    def read(self, item: VertexInput, parallelism: int) -> DataFrame:
        """Return an input, distributed according to its edge; *parallelism* is that of its reader."""
        frame = self._results[item.source] if item.path is None else self._read(item.path)
        return select_channels(frame, item.ship_strategy, item.keys, parallelism)

    def _read(self, path: str) -> DataFrame:
        reader, schema = self._spark.read, self._schemas.get(path)
        return (reader if schema is None else reader.schema(schema)).parquet(path)

    def blame(self, error: BaseException) -> None:
        """Raise `PartitionNotFoundError` if another task's result has been lost since `check`, and caused *error*."""
        for partition in self._foreign.values():
            lost = partition.is_blamed_by(error)
            if lost is not None:
                raise lost from error


def run_pipeline(
    spec: TaskSpec, control: TaskControl, cancellation: Cancellation, reporter: ProgressReporter, session: Any = None
) -> Finished:
    """Run the task's vertices. Raises their exceptions.

    *session* is the task's open session. Default: open one.
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
    resolve_paths_of(spec)
    control.tell(Running())
    try:
        partitions = _Chain(spec, spark, reporter).run()
        if queries is None:
            return Finished(partitions)
        return replace(queries.finished(), partitions=partitions, streaming=queries.have_started)
    finally:
        cancellation.checkpoint()
        cancellation.close()
        _run_exit_functions(spark)


def _call_before_stop(session_class: Any, stopped_all: Callable[[], None]) -> None:
    """Call *stopped_all* when the code ends its session, which stops its queries; in this process only."""
    stop = session_class.stop

    def stop_all(session: Any) -> None:
        stopped_all()
        stop(session)

    session_class.stop = stop_all


def _run_exit_functions(spark: SparkSession) -> None:
    """Run the functions that are registered for the process's end, which a forked process would not run.

    A vertex may register the removal of files, for example. The function of PySpark's client is left out: it empties a
    cache of the session, which is closed anyway.
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
    if directories and spec.shipping_dir:
        directories = _shipped(spark, directories, spec.shipping_dir)
    carry_surroundings(spec, directories)


def _shipped(spark: SparkSession, directories: list[str], shipping_dir: str) -> list[str]:
    """Send directories to the executors of the session, and return their paths there."""
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

    def run(self) -> list[dict[str, Any]]:
        """Run the vertices, and return the announcements of the results that they wrote."""
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
            self._gate.check()  # Spark reads the files that it finds: results that are whole now were whole then
        except Exception as error:
            self._gate.blame(error)
            raise
        return self._partitions

    def _accept(self, vertex: VertexDescriptor, returned: Any) -> None:
        """Pass a function's result to its edges: keep it lazy, write it, or compute and discard it."""
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
            return  # its consumers compute it
        elif result is not None:
            result.write.format("noop").mode("overwrite").save()
        self._reporter.change(TaskProgress.finish, vertex.id, force=True)

    def _context(self, vertex: VertexDescriptor) -> VertexContext:
        job, number = self._job, self._attempt.attempt_number
        log = self._log.getChild(vertex.name)
        return VertexContext(self._spark, dict(job.parameters), vertex.name, job.job_id, number, log)

    def _on_progress(self, stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        """Handle progress of Connect, on the thread that runs the operation."""
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
    """Return the result of a vertex's function, if its edges can use it; raises `VertexResultError`."""
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
    sys.argv = spec.argv
    sys.path[:0] = spec.import_path
    name = path.stem if path.stem not in sys.modules else f"understudy_job_{path.stem}"
    module_spec = importlib.util.spec_from_file_location(name, spec.shown_file)
    if module_spec is None or module_spec.loader is None:
        raise VertexFunctionError(f"{path.name} is not a Python module: the file of a pipeline must end in .py")
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module
    module.__dict__["__builtins__"] = builtins  # Python's own: those of this module have another import function
    code = compile(path.read_bytes(), spec.shown_file, "exec", dont_inherit=True)  # as it was submitted
    exec(code, module.__dict__)  # noqa: S102 -- running the user's code is what this process is for
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
    """Return a logger to the task's standard error, independent of the job's own logging setup."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    log = logging.getLogger(name)
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    return log


def run_local(
    graph: JobGraph, functions: Mapping[JobVertexID, Callable[..., Any]], spark: SparkSession
) -> dict[str, DataFrame | None]:
    """Call every vertex's function once, in topological order; see `runtime.api.Pipeline.run_local`."""
    results: dict[JobVertexID, DataFrame] = {}
    returned: dict[str, DataFrame | None] = {}
    for vertex in topological_order(graph):
        inputs = [
            select_channels(results[edge.source], edge.ship_strategy, edge.keys, vertex.parallelism)
            for edge in graph.inputs_of(vertex.id)
        ]
        log = logging.getLogger(graph.name).getChild(vertex.name)
        context = VertexContext(spark, copy.deepcopy(graph.parameters), vertex.name, graph.job_id, 0, log)
        readers = graph.outputs_of(vertex.id)
        result = check_result(vertex.name, functions[vertex.id](context, *inputs), is_read=bool(readers))
        if result is not None:
            if any(edge.exchange is ExchangeMode.BLOCKING for edge in readers):
                result = result.localCheckpoint(eager=True)
            elif not readers:
                result.write.format("noop").mode("overwrite").save()
            results[vertex.id] = result
        returned[vertex.name] = result
    return returned

"""The pipeline API, by which a user describes a job as named PySpark functions that feed each other.

A job file has a top-level function ``pipeline(argv) -> Pipeline``::

    from runtime.api import Context, Pipeline

    def read(ctx: Context):
        return ctx.spark.read.parquet(ctx.parameters["input"])

    def count(ctx: Context, flights):
        return flights.groupBy("carrier").count()

    def write(ctx: Context, counts):
        counts.write.mode("overwrite").parquet(ctx.parameters["output"])

    def pipeline(argv):
        p = Pipeline("count-flights", parameters={"input": argv[0], "output": argv[1]})
        flights = p.source("read", read)
        p.sink("write", write, flights.then("count", count).blocking())
        return p

Vertices joined by pipelined edges (the default) run as one task and one lazy Spark plan. A blocking edge is
materialised: its consumer is another task, deployed when the result is there and restarted without computing it again.
This module does not import pyspark: a pipeline is built, checked and shown without Spark. Its functions are plain
functions that a test may call. `Pipeline.run_local` runs the whole pipeline on a SparkSession of the test.
docs/pipelines.md explains the edges.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, TypeVar, Unpack

from conf.values import MemorySize
from runtime.ids import JobID, JobVertexID
from runtime.jobgraph.errors import (
    DuplicateVertexError,
    InvalidEdgeError,
    InvalidVertexError,
    UnknownVertexError,
)
from runtime.jobgraph.functions import function_reference
from runtime.jobgraph.job_graph import (
    DEFAULT_SLOT_SHARING_GROUP,
    ExchangeMode,
    JobEdge,
    JobGraph,
    JobKind,
    JobVertex,
    ShipStrategy,
    VertexRole,
)
from runtime.jobgraph.parameters import Parameter, parse_parameters
from runtime.jobgraph.restart_config import RestartStrategyConfig
from runtime.jobgraph.validation import check_name, check_parameters, validate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "Context",
    "Parameter",
    "Pipeline",
    "RestartStrategyConfig",
    "Stream",
    "VertexFunction",
    "parse_parameters",
]

E = TypeVar("E", ExchangeMode, ShipStrategy)

VertexFunction = Callable[..., Any]
"""``def f(ctx, *inputs)``: the inputs are DataFrames, so is the result; a sink's result is not used."""


class VertexSettings(TypedDict, total=False):
    """Settings of an operator or a sink, as keyword arguments.

    - ``exchange``: ``"pipelined"`` (the default) or ``"blocking"``, for inputs that do not set it themselves.
    - ``ship``: ``"forward"`` (the default), ``"hash"`` with ``keys``, ``"rebalance"`` or ``"broadcast"``, for inputs
      that do not set it themselves.
    - ``parallelism``: the number of partitions for hash and rebalance; 0, the default, leaves it to Spark.
    - The others are those of `VertexResources`.
    """

    exchange: ExchangeMode | str | None
    ship: ShipStrategy | str | None
    keys: Sequence[str]
    parallelism: int
    slot_sharing_group: str
    retries: int
    memory: str | int


class VertexResources(TypedDict, total=False):
    """Settings of any vertex, as keyword arguments; the largest value of chained vertices applies to their task.

    - ``slot_sharing_group``: vertices of one group may share a slot. Default: ``"default"``.
    - ``retries``: number of failures of the vertex's own code, or losses of its process, that restart its task before
      the job's restart strategy decides. Default: 0.
    - ``memory``: memory that the task's Python process may take in addition to that at its start, e.g. ``"512 mb"``.
      Spark's own memory does not count. Default: no limit.
    """

    slot_sharing_group: str
    retries: int
    memory: str | int


class Context(Protocol):
    """The first argument of a vertex function; use it as a type annotation."""

    @property
    def spark(self) -> SparkSession:
        """Return the task's session."""

    @property
    def parameters(self) -> dict[str, Any]:
        """Return the pipeline's parameters."""

    @property
    def job_id(self) -> str:
        """Return the job's id, 32 hexadecimal digits."""

    @property
    def vertex_name(self) -> str:
        """Return the name of the vertex that runs."""

    @property
    def attempt(self) -> int:
        """Return the number of earlier attempts of the task, 0 at first."""

    @property
    def log(self) -> logging.Logger:
        """Return a logger that writes to the task's log."""


@dataclass(frozen=True, slots=True)
class Stream:
    """The result of a vertex, as an input of others; created by `Pipeline`'s methods.

    The methods that are named after an edge's settings, such as `blocking` and `hash`, return a copy with that setting.
    It applies to the vertex to which the copy is passed, and does not affect other readers.
    """

    pipeline: Pipeline = field(repr=False, compare=False)
    vertex_id: JobVertexID
    name: str
    exchange: ExchangeMode | None = None
    ship_strategy: ShipStrategy | None = None
    keys: tuple[str, ...] = ()

    def blocking(self) -> Stream:
        """Read the materialised result, in another task than the one that makes it."""
        return replace(self, exchange=ExchangeMode.BLOCKING)

    def pipelined(self) -> Stream:
        """Read within the same task and Spark plan."""
        return replace(self, exchange=ExchangeMode.PIPELINED)

    def forward(self) -> Stream:
        """Leave the partitions unchanged."""
        return replace(self, ship_strategy=ShipStrategy.FORWARD, keys=())

    def hash(self, *keys: str) -> Stream:
        """Repartition by the columns *keys*."""
        return replace(self, ship_strategy=ShipStrategy.HASH, keys=keys)

    def rebalance(self) -> Stream:
        """Spread the rows evenly over the partitions."""
        return replace(self, ship_strategy=ShipStrategy.REBALANCE, keys=())

    def broadcast(self) -> Stream:
        """Give every partition of the reader all rows (Spark's broadcast hint in joins)."""
        return replace(self, ship_strategy=ShipStrategy.BROADCAST, keys=())

    def then(self, name: str, function: VertexFunction, *more: Stream, **settings: Unpack[VertexSettings]) -> Stream:
        """Feed this, and *more* after it, to an operator; settings as in `Pipeline.operator`."""
        return self.pipeline.operator(name, function, self, *more, **settings)

    def sink(self, name: str, function: VertexFunction, *more: Stream, **settings: Unpack[VertexSettings]) -> Stream:
        """Feed this, and *more* after it, to a sink; settings as in `Pipeline.sink`."""
        return self.pipeline.sink(name, function, self, *more, **settings)


class Pipeline:
    """A job under construction.

    Args:
        name: the job's name; with the vertex names it determines the vertex ids, so keep it from run to run.
        parameters: JSON-like values for ``ctx.parameters``; copied.
        restart_strategy: None for the cluster's default.

    Raises:
        JobGraphError: the name or a parameter cannot be used.
    """

    def __init__(
        self,
        name: str,
        parameters: dict[str, Any] | None = None,
        restart_strategy: RestartStrategyConfig | None = None,
    ) -> None:
        check_name("job", name)
        check_parameters({} if parameters is None else parameters)
        self.name = name
        self.parameters: dict[str, Any] = copy.deepcopy(parameters or {})
        self.restart_strategy = restart_strategy
        self._vertices: dict[JobVertexID, JobVertex] = {}
        self._edges: list[JobEdge] = []
        self._functions: dict[JobVertexID, VertexFunction] = {}

    def __repr__(self) -> str:
        return f"<Pipeline {self.name!r}: {', '.join(vertex.name for vertex in self._vertices.values()) or 'empty'}>"

    @property
    def functions(self) -> tuple[VertexFunction, ...]:
        """Return the functions of its vertices, in the order in which they were added."""
        return tuple(self._functions.values())

    def source(
        self,
        name: str,
        function: VertexFunction,
        **settings: Unpack[VertexResources],
    ) -> Stream:
        """Add a vertex without inputs: ``def f(ctx) -> DataFrame``; settings as in `VertexResources`.

        Raises:
            JobGraphError: the name is taken, or the function cannot be found or called by a task.
        """
        return self._add(VertexRole.SOURCE, name, function, (), **settings)

    def operator(
        self,
        name: str,
        function: VertexFunction,
        *inputs: Stream,
        **settings: Unpack[VertexSettings],
    ) -> Stream:
        """Add a vertex that reads *inputs*: ``def f(ctx, *inputs) -> DataFrame``.

        Args:
            name: unique in the pipeline.
            function: a module-level function; it is found again by its name.
            inputs: results of other vertices, passed to the function in this order.
            settings: see `VertexSettings`.

        Raises:
            JobGraphError: one of its subclasses; the message names the problem.
        """
        return self._add(VertexRole.OPERATOR, name, function, inputs, **settings)

    def sink(
        self,
        name: str,
        function: VertexFunction,
        *inputs: Stream,
        **settings: Unpack[VertexSettings],
    ) -> Stream:
        """Add a vertex without readers, which does its work as a Spark action. Arguments as in `operator`.

        A sink without inputs is a whole job in one function.
        """
        return self._add(VertexRole.SINK, name, function, inputs, **settings)

    def to_job_graph(self, job_id: JobID | None = None, argv: Sequence[str] = (), created_ms: int = 0) -> JobGraph:
        """Return the finished, checked graph, to which the client adds the artifacts.

        Args:
            job_id: its id. Default: a random one.
            argv: the command line's arguments, kept for the record.
            created_ms: time of its creation, in milliseconds since the epoch.

        Raises:
            JobGraphError: one of its subclasses, for example if the graph is empty or a result has no reader.
        """
        graph = JobGraph(
            job_id=job_id or JobID.random(),
            name=self.name,
            kind=JobKind.PIPELINE,
            vertices=tuple(self._vertices.values()),
            edges=tuple(self._edges),
            parameters=copy.deepcopy(self.parameters),
            argv=tuple(argv),
            restart_strategy=self.restart_strategy,
            created_ms=created_ms,
        )
        validate(graph)
        return graph

    def run_local(self, spark: SparkSession) -> dict[str, DataFrame | None]:
        """Run the pipeline in this process on *spark*, without a cluster: for tests.

        Every edge has the same effect as on a cluster; a blocking one is materialised in Spark's own storage
        (`DataFrame.localCheckpoint`).

        Args:
            spark: a `pyspark.sql.SparkSession`, classic or Connect; it stays open.

        Returns:
            The DataFrame of each vertex, or None, by the vertex's name.

        Raises:
            JobGraphError: the pipeline is not valid.
            TaskError: a function returned a value that does not fit its edges.
            Exception: a function's own exception.
        """
        from runtime.spark.task.pipeline import run_local  # imported here, since it needs pyspark

        return run_local(self.to_job_graph(), dict(self._functions), spark)

    def _add(
        self,
        role: VertexRole,
        name: str,
        function: VertexFunction,
        inputs: Sequence[Stream],
        exchange: ExchangeMode | str | None = None,
        ship: ShipStrategy | str | None = None,
        keys: Sequence[str] = (),
        parallelism: int = 0,
        slot_sharing_group: str = DEFAULT_SLOT_SHARING_GROUP,
        retries: int = 0,
        memory: str | int = 0,
    ) -> Stream:
        check_name("vertex", name)
        vertex_id = JobVertexID.of(self.name, name)
        if vertex_id in self._vertices:
            raise DuplicateVertexError(
                f"pipeline {self.name!r} already has a vertex named {name!r}: rename one of them"
            )
        if role is VertexRole.OPERATOR and not inputs:
            raise InvalidVertexError(f"operator {name!r} has no inputs: pass some, or add it with source()")
        default_exchange = _setting(ExchangeMode, "exchange", exchange, name) or ExchangeMode.PIPELINED
        default_ship = _setting(ShipStrategy, "ship", ship, name) or ShipStrategy.FORWARD
        columns = (keys,) if isinstance(keys, str) else tuple(keys)
        edges = [self._edge(vertex_id, name, stream, default_exchange, default_ship, columns) for stream in inputs]
        reference = function_reference(function, name, len(inputs))
        memory_bytes = _memory(memory, name)
        self._vertices[vertex_id] = JobVertex(
            vertex_id, name, reference, role, parallelism, slot_sharing_group, retries, memory_bytes
        )
        self._functions[vertex_id] = function
        self._edges += edges
        return Stream(self, vertex_id, name)

    def _edge(
        self,
        target: JobVertexID,
        name: str,
        stream: Stream,
        exchange: ExchangeMode,
        ship: ShipStrategy,
        keys: tuple[str, ...],
    ) -> JobEdge:
        if not isinstance(stream, Stream):
            raise UnknownVertexError(
                f"an input of {name!r} is a {type(stream).__name__}: pass what source() or operator() returned"
            )
        if stream.pipeline is not self:
            raise UnknownVertexError(f"input {stream.name!r} of {name!r} belongs to another pipeline")
        own = stream.ship_strategy is not None
        chosen = stream.ship_strategy or ship
        columns = stream.keys if own else keys if chosen is ShipStrategy.HASH else ()
        if chosen is ShipStrategy.HASH and not columns:
            raise InvalidEdgeError(f"input {stream.name!r} of {name!r} is hashed by no columns: name them")
        return JobEdge(stream.vertex_id, target, chosen, stream.exchange or exchange, columns)


def _setting(kind: type[E], what: str, value: E | str | None, name: str) -> E | None:
    try:
        return None if value is None else kind(value)
    except ValueError:
        choices = ", ".join(repr(member.value) for member in kind)
        raise InvalidEdgeError(f"{what}={value!r} of vertex {name!r} is unknown; it is one of {choices}") from None


def _memory(value: str | int, name: str) -> int:
    try:
        return MemorySize().parse(str(value))
    except ValueError:
        raise InvalidVertexError(f"memory={value!r} of vertex {name!r} is not a size: write it as '512 mb'") from None

"""Check of JobGraphs: each rule has a message that names the vertex and the remedy."""

from __future__ import annotations

import math
import re
from typing import Any

from conf.configuration import Configuration
from conf.errors import ConfigurationError
from conf.options import JOB_OPTIONS
from conf.registry import is_job_setting
from runtime.feature_level import Format, can_read, readable_versions
from runtime.jobgraph.errors import (
    DuplicateVertexError,
    EmptyJobGraphError,
    InvalidConfigurationError,
    InvalidEdgeError,
    InvalidFunctionError,
    InvalidParameterError,
    InvalidVertexError,
    JobGraphError,
    JobGraphVersionError,
    UnknownVertexError,
)
from runtime.jobgraph.job_graph import (
    JobGraph,
    JobKind,
    JobVertex,
    ShipStrategy,
    VertexRole,
)
from runtime.jobgraph.topology import chains, topological_order

MAX_NAME_LENGTH = 256
MAX_RETRIES = 100
MIN_MEMORY_BYTES = 16 << 20
MAX_ENVIRONMENT = 64 << 10
RESERVED_VARIABLES = frozenset({"UNDERSTUDY_CLUSTER_DIR", "UNDERSTUDY_TASK"})
"""Variables by which the processes of a cluster, and a job's Spark workers, are found."""
SESSION_ID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
"""Form of the ids of Spark Connect sessions."""
_MAX_DEPTH = 32
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_JOB_KEYS = frozenset(option.key for option in JOB_OPTIONS)
"""Options that a job may set, for messages; it may also set Spark's settings."""


def validate(graph: JobGraph) -> None:
    """Check the whole graph; the client calls this before it submits, the Dispatcher again before it accepts.

    Raises:
        JobGraphError: or a subclass, for the first broken rule.
    """
    if not can_read(Format.JOB_GRAPH, graph.format_version):
        readable = readable_versions(Format.JOB_GRAPH)
        raise JobGraphVersionError(
            f"job {graph.name!r} is in job graph format {graph.format_version}, this version reads {readable}; "
            "use the same version of understudy for client and cluster"
        )
    check_name("job", graph.name)
    if graph.submitter:
        check_name("submitter", graph.submitter)
    if graph.owner:
        check_name("owner", graph.owner)
    if graph.session_id and SESSION_ID.fullmatch(graph.session_id) is None:
        raise JobGraphError(f"{graph.session_id[:40]!r} is not an id of a Spark Connect session: it must be a UUID")
    if graph.session_id and graph.kind is not JobKind.PIPELINE:
        raise JobGraphError(f"job {graph.name!r} has a Spark Connect session: only a pipeline can have one")
    if not graph.vertices:
        raise EmptyJobGraphError(f"job {graph.name!r} has no vertices: add at least one sink to its pipeline")
    names: set[str] = set()
    for vertex in graph.vertices:
        check_name("vertex", vertex.name)
        if vertex.name in names:
            raise DuplicateVertexError(
                f"job {graph.name!r} has two vertices named {vertex.name!r}: names must be unique, rename one of them"
            )
        names.add(vertex.name)
    if len({vertex.id for vertex in graph.vertices}) < len(graph.vertices):
        raise DuplicateVertexError(f"job {graph.name!r} has two vertices with one id: make ids with JobVertexID.of()")
    if graph.kind is JobKind.SCRIPT:
        _check_script(graph)
    _check_edges(graph)
    topological_order(graph)
    if graph.kind is JobKind.PIPELINE:
        for vertex in graph.vertices:
            _check_vertex(graph, vertex)
        _check_slot_sharing_groups(graph)
    check_parameters(graph.parameters)
    check_configuration(graph.configuration)
    check_environment(graph.environment)


def check_configuration(configuration: dict[str, str]) -> None:
    """Check the job's own settings; raises `InvalidConfigurationError`."""
    for key in configuration:
        if not is_job_setting(key):
            raise InvalidConfigurationError(
                f"a job cannot set {key!r} for itself, only Spark's settings and {', '.join(sorted(_JOB_KEYS))}; set "
                "it for the cluster"
            )
    try:
        Configuration.from_dict(configuration, "the job")
    except ConfigurationError as error:
        raise InvalidConfigurationError(str(error)) from error


def check_environment(environment: dict[str, str]) -> None:
    """Check the environment variables of a job; raises `JobGraphError`, without any value in the message."""
    for name, value in environment.items():
        if not _VARIABLE.fullmatch(name):
            raise JobGraphError(f"{name[:40]!r} is not a valid name of an environment variable")
        if name in RESERVED_VARIABLES:
            raise JobGraphError(
                f"the environment variable {name} is reserved for the cluster; give the job's variable another name"
            )
        if "\0" in value:
            raise JobGraphError(f"the value of the environment variable {name} has a NUL character")
    if sum(len(name) + len(value) for name, value in environment.items()) > MAX_ENVIRONMENT:
        raise JobGraphError(f"the job's environment variables have more than {MAX_ENVIRONMENT:,} characters")


def check_name(what: str, name: str) -> None:
    """Check the name of a job or a vertex: printable, not blank, at most `MAX_NAME_LENGTH` characters."""
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        raise JobGraphError(f"{name!r} is not a valid {what} name: it must be printable text and not blank")
    if len(name) > MAX_NAME_LENGTH:
        raise JobGraphError(f"the {what} name {name[:40]!r}... has {len(name)} characters, over {MAX_NAME_LENGTH}")


def check_parameters(parameters: dict[str, Any]) -> None:
    """Check that *parameters* are JSON-like: None, bool, 64-bit int, finite float, str, list, dict with str keys.

    Raises:
        InvalidParameterError: the message names the place, e.g. ``parameters['limits'][2]``.
    """
    if not isinstance(parameters, dict):
        raise InvalidParameterError(f"parameters must be a dict, not {type(parameters).__name__}")
    _check_value(parameters, "parameters", 0)


def _check_value(value: Any, where: str, depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise InvalidParameterError(f"{where[:80]} is nested more than {_MAX_DEPTH} levels deep (does it hold itself?)")
    if value is None or type(value) in (bool, str):
        return
    if type(value) is int:
        if not -(2**63) <= value < 2**63:
            raise InvalidParameterError(f"{where} does not fit 64 bits: pass it as a string")
    elif type(value) is float:
        if not math.isfinite(value):
            raise InvalidParameterError(f"{where} is {value!r}, which JSON does not know: pass None or a string")
    elif type(value) is list:
        for index, item in enumerate(value):
            _check_value(item, f"{where}[{index}]", depth + 1)
    elif type(value) is dict:
        for key, item in value.items():
            if type(key) is not str:
                raise InvalidParameterError(f"{where} has the key {key!r}: keys must be strings")
            _check_value(item, f"{where}[{key!r}]", depth + 1)
    else:
        hint = "use a list" if isinstance(value, tuple | set | frozenset) else "pass a string, number, list or dict"
        raise InvalidParameterError(f"{where} is a {type(value).__name__}, which cannot travel as JSON: {hint}")


def _check_script(graph: JobGraph) -> None:
    if len(graph.vertices) != 1 or graph.edges or graph.vertices[0].role is not VertexRole.SCRIPT:
        raise InvalidVertexError(f"script job {graph.name!r} must have exactly one vertex, of the role script")
    if graph.vertices[0].function is not None:
        raise InvalidFunctionError(f"script job {graph.name!r} names a function; a script runs as a whole")


def _check_edges(graph: JobGraph) -> None:
    names = {vertex.id: vertex.name for vertex in graph.vertices}
    for edge in graph.edges:
        for end in (edge.source, edge.target):
            if end not in names:
                raise UnknownVertexError(
                    f"job {graph.name!r} has an edge from {names.get(edge.source, edge.source)!r} to "
                    f"{names.get(edge.target, edge.target)!r}, but no vertex {end}: add the vertex or drop the edge"
                )
        link = f"the edge from {names[edge.source]!r} to {names[edge.target]!r}"
        if edge.ship_strategy is ShipStrategy.HASH and not edge.keys:
            raise InvalidEdgeError(f"{link} is shipped by hash but names no key columns: use .hash('column', ...)")
        if edge.ship_strategy is not ShipStrategy.HASH and edge.keys:
            raise InvalidEdgeError(f"{link} names key columns but is shipped {edge.ship_strategy.value}, not hash")


def _check_vertex(graph: JobGraph, vertex: JobVertex) -> None:
    where = f"vertex {vertex.name!r} of job {graph.name!r}"
    module, _, qualname = (vertex.function or "").partition(":")
    if not module or not qualname:
        raise InvalidFunctionError(
            f"{where} has no function (it says {vertex.function!r}): give it one as 'module:function'"
        )
    if vertex.parallelism < 0:
        raise InvalidVertexError(
            f"{where} has parallelism {vertex.parallelism}: use 1 or more, or 0 to leave it to Spark"
        )
    if not vertex.slot_sharing_group:
        raise InvalidVertexError(f"{where} has an empty slot sharing group: name it, or leave it out")
    if not 0 <= vertex.retries <= MAX_RETRIES:
        raise InvalidVertexError(f"{where} has {vertex.retries} retries: use 0 to {MAX_RETRIES}")
    if vertex.memory_bytes and vertex.memory_bytes < MIN_MEMORY_BYTES:
        raise InvalidVertexError(
            f"{where} may take {vertex.memory_bytes} bytes of memory: give it {MIN_MEMORY_BYTES >> 20} mb or more"
        )
    inputs, outputs = graph.inputs_of(vertex.id), graph.outputs_of(vertex.id)
    divided = [edge for edge in inputs if edge.ship_strategy in (ShipStrategy.HASH, ShipStrategy.REBALANCE)]
    if vertex.parallelism and not divided:
        raise InvalidVertexError(
            f"{where} has parallelism {vertex.parallelism}, but no input that is divided into partitions: "
            "read one with .hash('column') or .rebalance(), or leave the parallelism to Spark"
        )
    match vertex.role:
        case VertexRole.SCRIPT:
            raise InvalidVertexError(f"{where} has the role script, which only a script job has")
        case VertexRole.SOURCE if inputs:
            raise InvalidVertexError(f"{where} is a source but has inputs: make it an operator")
        case VertexRole.OPERATOR if not inputs:
            raise InvalidVertexError(f"{where} is an operator without inputs: make it a source, or give it inputs")
        case VertexRole.SINK if outputs:
            raise InvalidVertexError(f"{where} is a sink but is read by others: make it an operator")
        case VertexRole.SOURCE | VertexRole.OPERATOR if not outputs:
            raise InvalidVertexError(f"the result of {where} goes nowhere: feed it to a sink, or make it one")


def _check_slot_sharing_groups(graph: JobGraph) -> None:
    """Check that each chain is in one group: it is one task and needs one slot (as in Flink)."""
    for chain in chains(graph):
        first, *others = (graph.vertex(vertex_id) for vertex_id in chain.vertices)
        for other in others:
            if other.slot_sharing_group != first.slot_sharing_group:
                raise InvalidVertexError(
                    f"vertices {first.name!r} and {other.name!r} of job {graph.name!r} run as one task, but are in the "
                    f"slot sharing groups {first.slot_sharing_group!r} and {other.slot_sharing_group!r}; "
                    "make an edge between them blocking, or put them into one group"
                )

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgpack
import pytest
from cattrs.preconf.msgpack import make_converter
from hypothesis import given
from hypothesis import strategies as st

from runtime.ids import JobID, JobVertexID
from runtime.jobgraph.errors import (
    CyclicJobGraphError,
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
    Artifact,
    ArtifactRole,
    ExchangeMode,
    JobEdge,
    JobGraph,
    JobKind,
    JobVertex,
    ShipStrategy,
    VertexRole,
)
from runtime.jobgraph.restart_config import RestartStrategyConfig
from runtime.jobgraph.topology import chains, strongly_connected, topological_order
from runtime.jobgraph.validation import validate


def vid(name: str) -> JobVertexID:
    return JobVertexID.of("job", name)


def make_graph(*links: str, names: str = "", **changes: Any) -> JobGraph:
    """A graph from links such as ``a-b`` (pipelined) and ``a=b`` (blocking)."""
    edges: list[JobEdge] = []
    seen = dict.fromkeys(names)
    for link in links:
        mode = ExchangeMode.BLOCKING if "=" in link else ExchangeMode.PIPELINED
        source, target = link.replace("=", "-").split("-")
        seen |= dict.fromkeys((source, target))
        edges.append(JobEdge(vid(source), vid(target), exchange=mode))
    sources, targets = {edge.source for edge in edges}, {edge.target for edge in edges}

    def role(name: str) -> VertexRole:
        if vid(name) not in sources:
            return VertexRole.SINK
        return VertexRole.OPERATOR if vid(name) in targets else VertexRole.SOURCE

    vertices = tuple(JobVertex(vid(name), name, f"m:{name}", role(name)) for name in seen)
    graph = JobGraph(JobID("0" * 32), "job", JobKind.PIPELINE, vertices, tuple(edges))
    return replace(graph, **changes)


def shape(graph: JobGraph) -> dict[str, str]:
    """Chain names and the names of the chains that they wait for."""
    found = chains(graph)
    names = {chain.key: chain.name for chain in found}
    return {chain.name: " & ".join(names[key] for key in chain.inputs) for chain in found}


def test_a_graph_and_a_script_are_valid() -> None:
    validate(make_graph("read-clean", "clean=join", "weather-join", "join-write"))
    validate(JobGraph.for_script("count.py", argv=("--out", "x")))
    validate(make_graph(names="a"))


def test_topological_order_keeps_the_users_order_among_equals() -> None:
    graph = make_graph("c-d", "b-d", "a-d", names="dcba")
    assert [vertex.name for vertex in topological_order(graph)] == ["c", "b", "a", "d"]


@pytest.mark.parametrize(
    ("links", "expected"),
    [
        (["a-b", "b-c"], {"a -> b -> c": ""}),
        (["a=b", "b=c"], {"a": "", "b": "a", "c": "b"}),
        (["flights-clean", "clean-join", "weather-join"], {"flights, weather -> clean -> join": ""}),
        (["a-b", "b=c", "b=d"], {"a -> b": "", "c": "a -> b", "d": "a -> b"}),
        (["a=c", "b=c", "c-d"], {"a": "", "b": "", "c -> d": "a & b"}),
        # A blocking edge beside a pipelined path: one task, or it would wait for itself.
        (["a=b", "a-c", "c-b"], {"a -> c -> b": ""}),
        # Two pipelined regions that read each other's blocking results: merged, as Flink does.
        (["a-b", "c-d", "a=d", "c=b"], {"a, c -> b, d": ""}),
        (["a-b", "c-d", "a=d", "c=b", "x=a", "d=y"], {"x": "", "c, a -> b, d": "x", "y": "c, a -> b, d"}),
    ],
)
def test_chains(links: list[str], expected: dict[str, str]) -> None:
    assert shape(make_graph(*links)) == expected


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.booleans()), max_size=25))
def test_chains_partition_every_acyclic_graph_and_can_be_run_one_after_the_other(
    links: list[tuple[int, int, bool]],
) -> None:
    names = "abcdefghij"
    graph = make_graph(
        *(f"{names[min(a, b)]}{'=' if mode else '-'}{names[max(a, b)]}" for a, b, mode in links if a != b), names=names
    )
    found = chains(graph)
    members = [vertex for chain in found for vertex in chain.vertices]
    assert sorted(members) == sorted(vertex.id for vertex in graph.vertices)
    of = {vertex: chain.key for chain in found for vertex in chain.vertices}
    position = {chain.key: index for index, chain in enumerate(found)}
    for chain in found:
        assert chain.key == chain.vertices[0]
        assert all(position[source] < position[chain.key] for source in chain.inputs)
        inside = {vertex: index for index, vertex in enumerate(chain.vertices)}
        for edge in graph.edges:
            if edge.source in inside and edge.target in inside:
                assert inside[edge.source] < inside[edge.target]
    for edge in graph.edges:
        assert edge.exchange is ExchangeMode.BLOCKING or of[edge.source] == of[edge.target]


def test_strongly_connected_components() -> None:
    found = strongly_connected({1: [2], 2: [3], 3: [1, 4], 4: [5], 5: [4], 6: []})
    assert sorted(sorted(group) for group in found) == [[1, 2, 3], [4, 5], [6]]


def test_a_long_chain_needs_no_deep_stack() -> None:
    assert len(strongly_connected({n: [n + 1] if n < 5000 else [] for n in range(5001)})) == 5001


def test_a_cycle_is_named_by_its_vertices() -> None:
    graph = make_graph("read-a", "a-b", "b-c", "c-a", "c-write")
    with pytest.raises(CyclicJobGraphError) as caught:
        validate(graph)
    cycle = str(caught.value).split("circle: ")[1].split(";")[0].split(" -> ")
    assert cycle[0] == cycle[-1]
    assert sorted(cycle[1:]) == ["a", "b", "c"]
    assert "read" not in cycle


def test_a_vertex_that_reads_itself_is_a_cycle() -> None:
    with pytest.raises(CyclicJobGraphError, match="b -> b"):
        validate(make_graph("a-b", "b-b", "b-c"))


@pytest.mark.parametrize(
    ("graph", "error", "message"),
    [
        (make_graph(), EmptyJobGraphError, "no vertices"),
        (make_graph("a-b", format_version=99), JobGraphVersionError, "format 99"),
        (make_graph("a-b", name=" "), JobGraphError, "not a valid job name"),
        (make_graph("a-b", name="a\x1b[31m"), JobGraphError, "not a valid job name"),
        (
            make_graph("a-b", vertices=(replace(make_graph("a-b").vertices[0], name="a\nb"),)),
            JobGraphError,
            "not a valid vertex name",
        ),
        (make_graph("a-b", name="x" * 300), JobGraphError, "300 characters"),
        (make_graph("a-b", submitter="ada\n"), JobGraphError, "not a valid submitter name"),
        (make_graph("a-b", edges=(JobEdge(vid("a"), vid("z")),)), UnknownVertexError, "no vertex"),
        (make_graph("a-b", vertices=make_graph("a-b").vertices * 2), DuplicateVertexError, "named 'a'"),
        (
            make_graph("a-b", vertices=(*make_graph("a-b").vertices, JobVertex(vid("a"), "c", "m:c", VertexRole.SINK))),
            DuplicateVertexError,
            "one id",
        ),
        (
            make_graph("a-b", edges=(JobEdge(vid("a"), vid("b"), ShipStrategy.HASH),)),
            InvalidEdgeError,
            "no key columns",
        ),
        (
            make_graph("a-b", edges=(JobEdge(vid("a"), vid("b"), ShipStrategy.BROADCAST, keys=("k",)),)),
            InvalidEdgeError,
            "broadcast, not hash",
        ),
        (make_graph("a-b", kind=JobKind.SCRIPT), InvalidVertexError, "exactly one vertex"),
        (make_graph("a-b", parameters={"x": (1,)}), InvalidParameterError, "use a list"),
    ],
)
def test_bad_graphs_are_refused_with_a_reason(graph: JobGraph, error: type[JobGraphError], message: str) -> None:
    with pytest.raises(error, match=message):
        validate(graph)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"function": None}, InvalidFunctionError, "'a' of job 'job' has no function"),
        ({"function": "f"}, InvalidFunctionError, "module:function"),
        ({"parallelism": -1}, InvalidVertexError, "parallelism -1"),
        ({"slot_sharing_group": ""}, InvalidVertexError, "slot sharing group"),
        ({"role": VertexRole.OPERATOR}, InvalidVertexError, "operator without inputs"),
        ({"role": VertexRole.SINK}, InvalidVertexError, "sink but is read"),
        ({"role": VertexRole.SCRIPT}, InvalidVertexError, "only a script job"),
    ],
)
def test_bad_vertices_are_refused_with_a_reason(
    change: dict[str, Any], error: type[JobGraphError], message: str
) -> None:
    first, second = make_graph("a-b").vertices
    with pytest.raises(error, match=message):
        validate(make_graph("a-b", vertices=(replace(first, **change), second)))


@pytest.mark.parametrize(("role", "message"), [(VertexRole.SOURCE, "has inputs"), (VertexRole.OPERATOR, "nowhere")])
def test_the_last_vertex_must_be_a_sink(role: VertexRole, message: str) -> None:
    first, second = make_graph("a-b").vertices
    with pytest.raises(InvalidVertexError, match=message):
        validate(make_graph("a-b", vertices=(first, replace(second, role=role))))


LOOP: dict[str, Any] = {}
LOOP["again"] = LOOP


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"a": {"b": [1, object()]}}, r"parameters\['a'\]\['b'\]\[1\] is a object"),
        ({"a": float("nan")}, "is nan"),
        ({"a": 2**63}, "64 bits"),
        ({1: 2}, "keys must be strings"),
        (LOOP, "does it hold itself"),
        ([], "must be a dict"),
        ({"a": JobID("0" * 32)}, "is a JobID"),
    ],
)
def test_parameters_must_be_json_like(parameters: Any, message: str) -> None:
    with pytest.raises(InvalidParameterError, match=message):
        validate(make_graph("a-b", parameters=parameters))


def test_a_graph_travels_whole() -> None:
    graph = make_graph(
        "a=b",
        "a-c",
        parameters={"limits": [1, 2.5, None, {"on": True}], "name": "ü"},
        artifacts=(Artifact("job.py", ArtifactRole.MAIN, "p-abc"), Artifact("x.jar", ArtifactRole.JAR, "p-def")),
        argv=("--out", "dir"),
        restart_strategy=RestartStrategyConfig.fixed_delay(3, 0.5),
        created_ms=1_700_000_000_000,
    )
    converter = make_converter()
    received = converter.structure(msgpack.unpackb(msgpack.packb(converter.unstructure(graph))), JobGraph)
    assert received == graph
    assert type(received.job_id) is JobID
    assert type(received.edges[0].source) is JobVertexID
    assert received.edges[0].exchange is ExchangeMode.BLOCKING
    validate(received)


@pytest.mark.parametrize(
    "change",
    [
        {"attempts": -1},
        {"delay_s": -1.0},
        {"delay_s": float("nan")},
        {"backoff_multiplier": 0.5},
        {"jitter_factor": 2.0},
    ],
)
def test_restart_settings_out_of_range_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        replace(RestartStrategyConfig.none(), **change)


def test_what_a_job_sets_for_itself_is_an_option_of_jobs() -> None:
    validate(
        make_graph("a-b", configuration={"restart-strategy.type": "none", "execution.checkpointing.interval": "5 s"})
    )
    validate(make_graph("a-b", configuration={"spark.sql.shuffle.partitions": "3", "spark.driver.memory": "3g"}))
    for key, value in {"rest.port": "1", "spark.remote": "sc://x:1", "spark.cds.enabled": "false"}.items():
        with pytest.raises(InvalidConfigurationError, match=rf"cannot set '{key}' for itself"):
            validate(make_graph("a-b", configuration={key: value}))
    with pytest.raises(InvalidConfigurationError, match=r"restart-strategy\.type"):
        validate(make_graph("a-b", configuration={"restart-strategy.type": "never"}))


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"1A": "s3cret"}, "'1A' is not a valid name of an environment variable"),
        ({"A B": "s3cret"}, "is not a valid name"),
        ({"UNDERSTUDY_CLUSTER_DIR": "s3cret"}, "is reserved for the cluster"),
        ({"A": "s3cret\0"}, "has a NUL character"),
        ({"A": "s3cret" * 20_000}, "more than 65,536 characters"),
    ],
)
def test_variables_that_cannot_be_and_no_value_is_shown(environment: dict[str, str], said: str) -> None:
    with pytest.raises(JobGraphError, match=said) as caught:
        validate(replace(JobGraph.for_script("job"), environment=environment))
    assert "s3cret" not in str(caught.value)
    validate(replace(JobGraph.for_script("job"), environment={"A": "", "_b1": "x"}))

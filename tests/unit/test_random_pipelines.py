"""Any pipeline that the API takes: valid graphs, chains, ids that stay, bytes that come back, whole pictures."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from actors.errors import WireError
from actors.rpc.codec import to_plain
from runtime.api import Pipeline, Stream
from runtime.feature_level import Format, newest_version
from runtime.ids import JobID
from runtime.jobgraph.codec import decode_job_graph, encode
from runtime.jobgraph.errors import InvalidVertexError, JobGraphVersionError
from runtime.jobgraph.explain import explain_dot, explain_plan, explain_text
from runtime.jobgraph.job_graph import ExchangeMode, JobGraph, ShipStrategy
from runtime.jobgraph.svg import Box, explain_svg, picture_of
from runtime.jobgraph.topology import chains
from runtime.jobgraph.validation import validate

CURRENT = newest_version(Format.JOB_GRAPH)
SVG = "{http://www.w3.org/2000/svg}"


def work(ctx: Any, *inputs: Any) -> None:
    pass


@dataclass(frozen=True)
class Plan:
    """A pipeline to be built: for each vertex its name, and its inputs as (vertex, edge kind, blocking)."""

    names: tuple[str, ...]
    inputs: tuple[tuple[tuple[int, str, bool], ...], ...]

    def build(self, names: tuple[str, ...] = ()) -> JobGraph:
        names = names or self.names
        pipeline = Pipeline("job")
        read = {source for inputs in self.inputs for source, _, _ in inputs}
        made: list[Stream] = []
        for index, inputs in enumerate(self.inputs):
            streams = [_edge(made[source], kind, blocking) for source, kind, blocking in inputs]
            divided = any(kind in ("hash", "rebalance") for _, kind, _ in inputs)
            settings: dict[str, Any] = {"parallelism": 3} if divided else {}
            if index not in read:
                made.append(pipeline.sink(names[index], work, *streams, **settings))
            elif inputs:
                made.append(pipeline.operator(names[index], work, *streams, **settings))
            else:
                made.append(pipeline.source(names[index], work))
        return pipeline.to_job_graph(JobID("1" * 32))


def _edge(stream: Stream, kind: str, blocking: bool) -> Stream:
    stream = {
        "forward": stream.forward,
        "hash": lambda: stream.hash("a", "b"),
        "rebalance": stream.rebalance,
        "broadcast": stream.broadcast,
    }[kind]()
    return stream.blocking() if blocking else stream.pipelined()


NAMES = st.text(st.characters(categories=("L", "N", "P", "S")), min_size=1, max_size=50).filter(
    lambda name: bool(name.strip()) and name.isprintable()
)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    size = draw(st.integers(1, 9))
    names = draw(st.lists(NAMES, min_size=size, max_size=size, unique=True))
    kinds = st.sampled_from([strategy.value for strategy in ShipStrategy])
    inputs = [
        tuple(draw(st.lists(st.tuples(st.integers(0, index - 1), kinds, st.booleans()), max_size=3))) if index else ()
        for index in range(size)
    ]
    return Plan(tuple(names), tuple(inputs))


@given(plans())
def test_every_pipeline_is_a_valid_graph_that_comes_back_from_its_bytes(plan: Plan) -> None:
    graph = plan.build()
    validate(graph)
    back = decode_job_graph(encode(graph))
    assert back == graph
    validate(back)
    assert chains(back) == chains(graph)


@given(plans(), st.integers(0, 8), NAMES)
def test_an_id_is_the_vertexs_own(plan: Plan, index: int, other: str) -> None:
    graph, again = plan.build(), plan.build()
    assert [vertex.id for vertex in graph.vertices] == [vertex.id for vertex in again.vertices]
    if index < len(plan.names) and other not in plan.names:
        renamed = plan.build((*plan.names[:index], other, *plan.names[index + 1 :]))
        kept = [vertex.id for vertex in graph.vertices if vertex.name != plan.names[index]]
        assert kept == [vertex.id for vertex in renamed.vertices if vertex.name != other]
        assert renamed.vertices[index].id != graph.vertices[index].id


@given(plans())
def test_vertices_of_one_task_are_those_that_cannot_be_cut_apart(plan: Plan) -> None:
    graph = plan.build()
    task_of = {vertex: task.key for task in chains(graph) for vertex in task.vertices}
    for edge in graph.edges:
        assert edge.exchange is ExchangeMode.BLOCKING or task_of[edge.source] == task_of[edge.target]
    groups = {vertex.id: f"group of {task_of[vertex.id]}" for vertex in graph.vertices}
    validate(replace(graph, vertices=tuple(replace(v, slot_sharing_group=groups[v.id]) for v in graph.vertices)))


def test_one_task_cannot_be_in_two_slot_sharing_groups() -> None:
    p = Pipeline("job")
    p.source("a", work, slot_sharing_group="big").sink("b", work)
    with pytest.raises(InvalidVertexError, match="make an edge between them blocking"):
        p.to_job_graph()


@pytest.mark.parametrize("version", [1, CURRENT + 1, None, "x"])
def test_a_graph_in_another_format_is_refused_whatever_else_is_in_it(version: object) -> None:
    p = Pipeline("job")
    p.sink("a", work)
    plain = to_plain(p.to_job_graph(JobID("1" * 32)))
    plain["format_version"] = version
    plain["vertices"] = "something new"
    plain["more"] = 1
    with pytest.raises(JobGraphVersionError, match=f"is in format {version}, this version reads {CURRENT}; use"):
        decode_job_graph(msgpack.packb(plain))


@given(st.binary(max_size=60))
def test_other_bytes_are_no_graph(data: bytes) -> None:
    with pytest.raises((WireError, JobGraphVersionError)):
        decode_job_graph(data)


# ---------------------------------------------------------------------------- pictures


def overlap(one: Box, other: Box) -> bool:
    across = one.x < other.x + other.width and other.x < one.x + one.width
    return across and one.y < other.y + other.height and other.y < one.y + one.height


def holds(outer: Box, inner: Box) -> bool:
    across = outer.x <= inner.x and inner.x + inner.width <= outer.x + outer.width
    return across and outer.y <= inner.y and inner.y + inner.height <= outer.y + outer.height


# What only others read stands in the middle of its task: 6 beside 1, which 4 and 5 read.
READ_BY_OTHERS = Plan(
    ("0", "1", "2", "3", "4", "5", "6", "7", "8"),
    (
        (),
        ((0, "forward", False),),
        (),
        (),
        ((1, "forward", False),),
        ((1, "forward", False),),
        ((0, "forward", False),),
        (),
        ((6, "forward", True),),
    ),
)


@given(plans())
@example(READ_BY_OTHERS)
def test_nothing_in_a_picture_lies_on_anything_else(plan: Plan) -> None:
    graph = plan.build()
    picture = picture_of(graph)
    for boxes in (list(picture.vertices.values()), list(picture.tasks.values())):
        for index, box in enumerate(boxes):
            assert not any(overlap(box, other) for other in boxes[:index])
            assert holds(Box(0, 0, picture.width, picture.height), box)
    for task in chains(graph):
        for vertex, box in picture.vertices.items():
            assert holds(picture.tasks[task.key], box) == (vertex in task.vertices)
    for edge, way in zip(graph.edges, picture.ways, strict=True):
        source, target = picture.vertices[edge.source], picture.vertices[edge.target]
        assert way[0][0] == source.x + source.width
        assert way[-1][1] == target.x - 1
        xs = [x for left, right, _ in way for x in (left, right)]
        assert all(before <= after + 1e-6 for before, after in pairwise(xs)), "it leads to the right"
        for left, right, y in way[1:-1]:
            line = Box(left + 0.1, y - 0.1, max(right - left - 0.2, 0.1), 0.2)
            assert not any(overlap(line, box) for box in picture.vertices.values()), "a line runs through a box"


@given(plans())
def test_a_picture_is_well_formed_and_shows_everything(plan: Plan) -> None:
    graph = plan.build()
    root = ElementTree.fromstring(explain_svg(graph))
    boxes = [rect for rect in root.iter(f"{SVG}rect") if rect.get("class", "").startswith("vertex")]
    shown = {str(box.findtext(f"{SVG}title")).rpartition(": ")[0] for box in boxes}
    assert shown == {vertex.name for vertex in graph.vertices}
    lines = [path for path in root.iter(f"{SVG}path") if path.get("class", "").startswith("edge")]
    assert len(lines) == len(graph.edges)
    assert sum("blocking" in str(line.get("class")) for line in lines) == sum(
        edge.exchange is ExchangeMode.BLOCKING for edge in graph.edges
    )


@given(plans())
def test_text_dot_and_data_name_every_vertex_and_edge(plan: Plan) -> None:
    graph = plan.build()
    text, dot, data = explain_text(graph), explain_dot(graph), explain_plan(graph)
    assert text.count("\n    reads ") == len(graph.edges) == dot.count('" -> "')
    assert [vertex["name"] for vertex in data["vertices"]] == [
        graph.vertex(vertex).name for task in chains(graph) for vertex in task.vertices
    ]
    for vertex in graph.vertices:
        assert f"\n  {vertex.name} ({vertex.role.value})" in text
        assert f'"{vertex.id}" [label=' in dot


def test_text_says_what_each_vertex_reads_and_how() -> None:
    p = Pipeline("sales", {"day": "monday"})
    orders = p.source("orders", work, retries=2)
    p.sink("write", work, orders.blocking().hash("customer"), memory="64 mb", parallelism=4)
    assert explain_text(p.to_job_graph()) == (
        "pipeline sales: 2 vertices in 2 tasks\n"
        "  day = 'monday'\n"
        "\n"
        "task 1: orders\n"
        "  orders (source), 2 retries\n"
        "  its result is materialised, and read by task 2\n"
        "\n"
        "task 2: write\n"
        "  write (sink), parallelism 4, memory 64 mb\n"
        "    reads orders of task 1: hash(customer), blocking"
    )


def test_dot_quotes_what_it_must() -> None:
    p = Pipeline('a "job"')
    p.sink('say "x\\y"', work)
    dot = explain_dot(p.to_job_graph())
    assert 'digraph "a \\"job\\""' in dot
    assert '[label="say \\"x\\\\y\\"\\nsink"]' in dot

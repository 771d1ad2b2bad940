"""Job graphs as SVG pictures: a frame for each task, a box for each vertex, bold lines for blocking edges. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Generic, TypeVar
from xml.sax.saxutils import escape, quoteattr

from runtime.ids import JobVertexID
from runtime.jobgraph.explain import edge_label, vertex_settings
from runtime.jobgraph.job_graph import ExchangeMode, JobEdge, JobGraph, JobVertex, ShipStrategy
from runtime.jobgraph.topology import Chain, chains

K = TypeVar("K", bound=Hashable)

SWEEPS = 8
LANE_HEIGHT = 12.0


@dataclass(frozen=True, slots=True)
class Layout(Generic[K]):
    """Positions of nodes and edges; the origin is at the upper left.

    Args:
        places: the upper left corner of each node.
        columns: the left and the right of each node's layer.
        lanes: for an edge over several layers, the pieces (left, right, height) on which it passes those in between.
        width, height: of the whole.
    """

    places: dict[K, tuple[float, float]]
    columns: dict[K, tuple[float, float]]
    lanes: dict[tuple[K, K], list[tuple[float, float, float]]]
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class _Passing:
    """The place of an edge in a layer that it passes."""

    edge: tuple[Any, Any]
    layer: int


def lay_out(
    sizes: Mapping[K, tuple[float, float]],
    edges: Sequence[tuple[K, K]],
    gap_x: float,
    gap_y: float,
    last: Collection[K] = (),
) -> Layout[K]:
    """Place nodes so that every edge leads to the right and nothing overlaps (a simple form of Sugiyama's method).

    - The longest path to a node determines its layer.
    - An edge over several layers gets a place of its own in each layer in between, so that it crosses no node.
    - Barycentres determine the order within the layers. Each layer is centred.

    Args:
        sizes: width and height of each node, in an order in which each comes after those that lead to it.
        edges: without repetitions and loops.
        gap_x: between layers.
        gap_y: between nodes of a layer.
        last: nodes without edges out of them, to be placed in the last layer.
    """
    layers, ways = _layers(sizes, edges, last)
    _sort(layers, ways)
    extent = {item: _extent(sizes, item) for layer in layers for item in layer}
    widths = [max(extent[item][0] for item in layer) for layer in layers]
    heights = [sum(extent[item][1] for item in layer) + gap_y * (len(layer) - 1) for layer in layers]
    total = max(heights, default=0.0)
    places: dict[K, tuple[float, float]] = {}
    columns: dict[K, tuple[float, float]] = {}
    lanes: dict[tuple[K, K], list[tuple[float, float, float]]] = {edge: [] for edge in edges}
    x = 0.0
    for layer, width, height in zip(layers, widths, heights, strict=True):
        y = (total - height) / 2
        for item in layer:
            if isinstance(item, _Passing):
                lanes[item.edge].append((x, x + width, y + LANE_HEIGHT / 2))
            else:
                columns[item] = (x, x + width)
                places[item] = (x + (width - extent[item][0]) / 2, y)
            y += extent[item][1] + gap_y
        x += width + gap_x
    return Layout(places, columns, lanes, max(x - gap_x, 0.0), total)


def _extent(sizes: Mapping[K, tuple[float, float]], item: K | _Passing) -> tuple[float, float]:
    return (0.0, LANE_HEIGHT) if isinstance(item, _Passing) else sizes[item]


def _layers(
    sizes: Mapping[K, tuple[float, float]], edges: Sequence[tuple[K, K]], last: Collection[K]
) -> tuple[list[list[K | _Passing]], list[list[K | _Passing]]]:
    """Return the content of each layer, with the places of passing edges, and the way of each edge through them."""
    level = dict.fromkeys(sizes, 0)
    sources: dict[K, list[K]] = {key: [] for key in sizes}
    for source, target in edges:
        sources[target].append(source)
    for key in sizes:
        level[key] = max((level[source] + 1 for source in sources[key]), default=0)
    level.update(dict.fromkeys(last, max(level.values(), default=0)))
    layers: list[list[K | _Passing]] = [[] for _ in range(max(level.values(), default=-1) + 1)]
    for key in sizes:
        layers[level[key]].append(key)
    ways: list[list[K | _Passing]] = []
    for edge in edges:
        passing = [_Passing(edge, layer) for layer in range(level[edge[0]] + 1, level[edge[1]])]
        for place in passing:
            layers[place.layer].append(place)
        ways.append([edge[0], *passing, edge[1]])
    return layers, ways


def _sort(layers: list[list[K | _Passing]], ways: list[list[K | _Passing]]) -> None:
    """Sort each layer by the mean position of its neighbours in the previous layer, then in the next; repeat this."""
    before: dict[K | _Passing, list[K | _Passing]] = {}
    after: dict[K | _Passing, list[K | _Passing]] = {}
    for way in ways:
        for left, right in pairwise(way):
            before.setdefault(right, []).append(left)
            after.setdefault(left, []).append(right)
    position = {item: index / len(layer) for layer in layers for index, item in enumerate(layer)}
    for sweep in range(SWEEPS):
        forward = sweep % 2 == 0
        near = before if forward else after
        for layer in layers if forward else reversed(layers):
            means = {
                item: sum(position[other] for other in near[item]) / len(near[item]) if item in near else position[item]
                for item in layer
            }
            layer.sort(key=means.__getitem__)
            position.update((item, index / len(layer)) for index, item in enumerate(layer))


_MARGIN = 20.0
_CHARACTER = 6.8  # the mean width of a character in 12 px, for the sizes of boxes
_LINE = 16.0
_PADDING = 14.0
_HEADER = 20.0
_GAP_Y = 18.0
_MIN_GAP_X = 40.0
_MAX_TEXT = 40
_ARROW = 12.0

_STYLE = (
    "text{font:12px sans-serif;fill:#1c2733}.small{font-size:10px;fill:#5b6b7b}"
    ".label{paint-order:stroke;stroke:#f5f8fa;stroke-width:3px}.title{font-size:15px;font-weight:bold}"
    ".task{fill:#eef2f6;stroke:#c6d0da}.vertex{fill:#fff;stroke:#5b7fa6}.source{stroke:#3d8b5f}.sink{stroke:#a6663d}"
    ".edge{fill:none;stroke:#7a8896;stroke-width:1.2}.blocking{stroke:#1c4f82;stroke-width:2.6}"
)


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle of the picture."""

    x: float
    y: float
    width: float
    height: float


Lane = tuple[float, float, float]
"""A level piece of an edge: left, right, height."""


@dataclass(frozen=True, slots=True)
class Picture:
    """Positions of all parts of the picture.

    Args:
        vertices: the box of each vertex.
        tasks: the frame of each task, by its key, around the boxes of its vertices.
        ways: the level pieces of each edge of the graph, from its source's box to its target's.
        width, height: of the whole.
    """

    vertices: dict[JobVertexID, Box]
    tasks: dict[JobVertexID, Box]
    ways: list[list[Lane]]
    width: float
    height: float


def picture_of(graph: JobGraph) -> Picture:
    """Place the vertices within their tasks, and the tasks in the picture."""
    tasks = chains(graph)
    task_of = {vertex: task.key for task in tasks for vertex in task.vertices}
    gap_x = max([_MIN_GAP_X, *(_width(_label(edge)) * 0.85 + 2 * _PADDING for edge in graph.edges)])
    inner = {task.key: _lay_out_task(graph, task, gap_x) for task in tasks}
    frames = {
        task.key: (
            max(inner[task.key].width, _width(f"task {index}")) + 2 * _PADDING,
            inner[task.key].height + _HEADER + _PADDING,
        )
        for index, task in enumerate(tasks, 1)
    }
    between = [(task_of[edge.source], task_of[edge.target]) for edge in graph.edges]
    outer = lay_out(frames, list(dict.fromkeys(link for link in between if link[0] != link[1])), gap_x, _GAP_Y)
    top = _MARGIN + 2 * _LINE
    boxes: dict[JobVertexID, Box] = {}
    around: dict[JobVertexID, Box] = {}
    for task in tasks:
        x, y = outer.places[task.key]
        around[task.key] = Box(_MARGIN + x, top + y, *frames[task.key])
        for vertex_id in task.vertices:
            within_x, within_y = inner[task.key].places[vertex_id]
            size = _size(graph, graph.vertex(vertex_id))
            boxes[vertex_id] = Box(_MARGIN + x + _PADDING + within_x, top + y + _HEADER + within_y, *size)

    ports = {vertex.id: iter(_ports(graph, boxes[vertex.id], vertex.id)) for vertex in graph.vertices}
    ways = []
    for edge, (source, target) in zip(graph.edges, between, strict=True):
        start, end, port = boxes[edge.source], boxes[edge.target], next(ports[edge.target])
        out_of, into = inner[source], inner[target]
        here = (around[source].x + _PADDING, around[source].y + _HEADER)
        there = (around[target].x + _PADDING, around[target].y + _HEADER)
        way = [(start.x + start.width, here[0] + out_of.columns[edge.source][1], start.y + start.height / 2)]
        left = there[0] + into.columns[edge.target][0]
        if source == target:
            way += _moved(out_of.lanes[edge.source, edge.target], *here)
        else:
            leave, enter = _exit(edge.source), _entry(edge.target)
            outside = _MARGIN + outer.columns[source][1]
            if leave in out_of.places:
                way += _moved(out_of.lanes[edge.source, leave], *here)
                way.append((here[0] + out_of.columns[leave][0], outside, here[1] + _middle(out_of, leave)))
            else:
                way.append((way[-1][1], outside, way[-1][2]))
            way += _moved(outer.lanes[source, target], _MARGIN, top)
            outside = _MARGIN + outer.columns[target][0]
            if enter in into.places:
                way.append((outside, there[0] + into.columns[enter][1], there[1] + _middle(into, enter)))
                way += _moved(into.lanes[enter, edge.target], *there)
            else:
                left = outside
        ways.append([*way, (min(left, end.x - _ARROW), end.x - 1, port)])
    width = max(outer.width, 1.4 * _width(_headline(graph)), 400.0) + 2 * _MARGIN
    return Picture(boxes, around, ways, width, top + outer.height + 2 * _MARGIN + _LINE)


def explain_svg(graph: JobGraph) -> str:
    """Return the picture as an SVG document."""
    picture = picture_of(graph)
    tasks = chains(graph)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{picture.width:.0f}" height="{picture.height:.0f}" '
        f'viewBox="0 0 {picture.width:.0f} {picture.height:.0f}" role="img">',
        f"<title>{escape(graph.name)}</title>",
        f"<style>{_STYLE}</style>",
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
        'markerUnits="userSpaceOnUse" orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="#5b6b7b"/></marker></defs>',
        f'<rect width="{picture.width:.0f}" height="{picture.height:.0f}" fill="#fff"/>',
        f'<text class="title" x="{_MARGIN:.0f}" y="{_MARGIN + 8:.0f}">{escape(_headline(graph))}</text>',
    ]
    for index, task in enumerate(tasks, 1):
        frame = picture.tasks[task.key]
        lines.append(_rectangle("task", frame, 8, task.name))
        lines.append(f'<text class="small" x="{frame.x + 8:.1f}" y="{frame.y + 14:.1f}">task {index}</text>')
    lines += [_line(edge, way) for edge, way in zip(graph.edges, picture.ways, strict=True)]
    for vertex in graph.vertices:
        lines += _vertex(picture.vertices[vertex.id], vertex)
    for edge, way in zip(graph.edges, picture.ways, strict=True):
        _, x, y = way[-1]
        label = escape(_label(edge))
        lines.append(f'<text class="small label" text-anchor="end" x="{x - 9:.1f}" y="{y - 4:.1f}">{label}</text>')
    legend = picture.height - _MARGIN
    lines.append(
        f'<text class="small" x="{_MARGIN:.0f}" y="{legend:.1f}">'
        "a frame is one task; bold lines are blocking: their result is materialised</text>"
    )
    return "\n".join([*lines, "</svg>"]) + "\n"


def _headline(graph: JobGraph) -> str:
    return _short(f"{graph.name} ({graph.kind.value})", 2 * _MAX_TEXT)


def _lay_out_task(graph: JobGraph, task: Chain, gap_x: float) -> Layout[str]:
    """Place the vertices of a task, and the points where edges to and from other tasks pass them."""
    own = set(task.vertices)
    links: dict[tuple[str, str], None] = {}
    sizes: dict[str, tuple[float, float]] = {}
    last = []
    for vertex_id in task.vertices:
        inputs = {edge.source for edge in graph.inputs_of(vertex_id)}
        if inputs & own and inputs - own:
            sizes[_entry(vertex_id)] = (0.0, LANE_HEIGHT)
            links[_entry(vertex_id), vertex_id] = None
    for vertex_id in task.vertices:
        sizes[vertex_id] = _size(graph, graph.vertex(vertex_id))
        links |= {(edge.source, vertex_id): None for edge in graph.inputs_of(vertex_id) if edge.source in own}
    for vertex_id in task.vertices:
        readers = {edge.target for edge in graph.outputs_of(vertex_id)}
        if readers & own and readers - own:
            last.append(_exit(vertex_id))
            sizes[_exit(vertex_id)] = (0.0, LANE_HEIGHT)
            links[vertex_id, _exit(vertex_id)] = None
        elif readers - own:
            last.append(vertex_id)  # otherwise its edges would cross nodes in later layers
    return lay_out(sizes, list(links), gap_x, _GAP_Y, last)


def _entry(vertex_id: JobVertexID) -> str:
    return f"into {vertex_id}"


def _exit(vertex_id: JobVertexID) -> str:
    return f"out of {vertex_id}"


def _middle(layout: Layout[str], key: str) -> float:
    return layout.places[key][1] + LANE_HEIGHT / 2


def _moved(lanes: Sequence[Lane], x: float, y: float) -> list[Lane]:
    return [(x + left, x + right, y + height) for left, right, height in lanes]


def _label(edge: JobEdge) -> str:
    """Return the label of an edge; empty if the partitions stay the same."""
    if edge.ship_strategy is ShipStrategy.FORWARD:
        return ""
    return _short(f"{edge.ship_strategy.value}({', '.join(edge.keys)})" if edge.keys else edge.ship_strategy.value)


def _texts(vertex: JobVertex) -> tuple[str, str]:
    return _short(vertex.name), _short(", ".join([vertex.role.value, *vertex_settings(vertex)]), 2 * _MAX_TEXT)


def _size(graph: JobGraph, vertex: JobVertex) -> tuple[float, float]:
    name, settings = _texts(vertex)
    width = max(_width(name), 0.85 * _width(settings), 60.0) + 2 * _PADDING
    return width, max(2 * _LINE + 12, (len(graph.inputs_of(vertex.id)) + 1) * _LINE)


def _ports(graph: JobGraph, box: Box, vertex_id: JobVertexID) -> list[float]:
    """Return the heights at which inputs enter a vertex's box, from above in the order of the function's arguments."""
    inputs = len(graph.inputs_of(vertex_id))
    return [box.y + box.height * (position + 1) / (inputs + 1) for position in range(inputs)]


def _line(edge: JobEdge, way: list[Lane]) -> str:
    (x, right, y), *others = way
    path = [f"M{x:.1f},{y:.1f} H{right:.1f}"]
    x = right
    for left, right, height in others:
        half = (x + left) / 2
        path.append(f"C{half:.1f},{y:.1f} {half:.1f},{height:.1f} {left:.1f},{height:.1f} H{right:.1f}")
        x, y = right, height
    kind = "edge blocking" if edge.exchange is ExchangeMode.BLOCKING else "edge"
    title = escape(edge_label(edge))
    return f'<path class="{kind}" marker-end="url(#arrow)" d="{" ".join(path)}"><title>{title}</title></path>'


def _vertex(box: Box, vertex: JobVertex) -> list[str]:
    name, settings = _texts(vertex)
    middle = box.x + box.width / 2
    first = box.y + box.height / 2 - 3
    return [
        _rectangle(f"vertex {vertex.role.value}", box, 4, f"{vertex.name}: {vertex.function or 'a script'}"),
        f'<text text-anchor="middle" x="{middle:.1f}" y="{first:.1f}">{escape(name)}</text>',
        f'<text class="small" text-anchor="middle" x="{middle:.1f}" y="{first + 14:.1f}">{escape(settings)}</text>',
    ]


def _rectangle(kind: str, box: Box, radius: int, title: str) -> str:
    return (
        f'<rect class={quoteattr(kind)} x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" '
        f'height="{box.height:.1f}" rx="{radius}"><title>{escape(title)}</title></rect>'
    )


def _width(text: str) -> float:
    return _CHARACTER * sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


def _short(text: str, limit: int = _MAX_TEXT) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"

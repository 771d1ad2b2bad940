"""A layered drawing of an acyclic graph, from left to right (Sugiyama's method, in a small form). Pure.

Layers by longest path; edges over several layers get places of their own in between, so that they need not run through
anything; order within the layers by barycentres; each layer is centred.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

SWEEPS = 8
LANE_HEIGHT = 12.0


@dataclass(frozen=True, slots=True)
class Layout(Generic[K]):
    """Where everything is; the origin is at the upper left.

    Args:
        places: the upper left corner of each node.
        columns: the left and the right of each node's layer.
        lanes: of an edge over several layers the points (left, right, height) at which it passes those in between.
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
    """Place nodes so that every edge leads to the right and nothing overlaps.

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
    """What is in each layer, the places of passing edges among it; and the way of each edge through the layers."""
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
    """Sort each layer by the mean position of its neighbours in the layer before, then behind, some times over."""
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

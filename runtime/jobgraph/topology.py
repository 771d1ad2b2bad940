"""The shape of a JobGraph: topological order, cycles, and the chains that become tasks."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from runtime.ids import JobVertexID
from runtime.jobgraph.errors import CyclicJobGraphError
from runtime.jobgraph.job_graph import DEFAULT_SLOT_SHARING_GROUP, ExchangeMode, JobEdge, JobGraph, JobVertex

N = TypeVar("N", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Chain:
    """The vertices that one task runs as one Spark plan: a pipelined region (Flink's `SchedulingPipelinedRegion`).

    Args:
        key: the id of the first vertex; names the task within the job.
        name: as Flink names chains, e.g. ``read-flights, read-weather -> clean -> join``.
        vertices: in topological order.
        inputs: keys of the chains whose blocking results this one reads, each once.
        slot_sharing_group: of its vertices.
        retries: the most that any of its vertices has.
        memory_bytes: the most that any of its vertices may take; 0 for no limit.
    """

    key: JobVertexID
    name: str
    vertices: tuple[JobVertexID, ...]
    inputs: tuple[JobVertexID, ...]
    slot_sharing_group: str = DEFAULT_SLOT_SHARING_GROUP
    retries: int = 0
    memory_bytes: int = 0


def topological_order(graph: JobGraph) -> tuple[JobVertex, ...]:
    """Return the vertices in an order in which every edge leads forward; otherwise in the user's order.

    Raises:
        CyclicJobGraphError: there is no such order; the message names a cycle.
    """
    position = {vertex.id: index for index, vertex in enumerate(graph.vertices)}
    successors, waiting = _adjacency(graph)
    ready = [position[vertex_id] for vertex_id, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    order: list[JobVertex] = []
    while ready:
        vertex = graph.vertices[heapq.heappop(ready)]
        order.append(vertex)
        for target in successors[vertex.id]:
            waiting[target] -= 1
            if waiting[target] == 0:
                heapq.heappush(ready, position[target])
    if len(order) < len(graph.vertices):
        names = [graph.vertex(vertex_id).name for vertex_id in _find_cycle(graph)]
        raise CyclicJobGraphError(
            f"job {graph.name!r} goes round in a circle: {' -> '.join([*names, names[0]])}; "
            "a batch pipeline must lead from sources to sinks, so drop one of these inputs"
        )
    return tuple(order)


def chains(graph: JobGraph) -> tuple[Chain, ...]:
    """Cut the graph into tasks, in an order in which each comes after those it reads from.

    Vertices joined by pipelined edges form a region, which becomes a task. Two regions that would wait for each other
    (a blocking edge beside a pipelined path) are merged, as in Flink's `SchedulingPipelinedRegionComputeUtil`. Blocking
    edges inside a merged region are still materialised, within the task, but its parts cannot be restarted separately.

    Raises:
        CyclicJobGraphError: the graph itself has a cycle.
    """
    order = topological_order(graph)
    region = _regions(order, graph.edges)
    members: dict[JobVertexID, list[JobVertexID]] = {}
    for vertex in order:
        members.setdefault(region[vertex.id], []).append(vertex.id)
    key_of = {vertex_id: group[0] for group in members.values() for vertex_id in group}
    inputs: dict[JobVertexID, dict[JobVertexID, None]] = {group[0]: {} for group in members.values()}
    for edge in graph.edges:
        source, target = key_of[edge.source], key_of[edge.target]
        if source != target:
            inputs[target][source] = None
    groups = {group[0]: tuple(group) for group in members.values()}
    return tuple(_chain(graph, key, groups[key], tuple(inputs[key])) for key in _order_of(groups, inputs))


def _chain(
    graph: JobGraph, key: JobVertexID, vertices: tuple[JobVertexID, ...], inputs: tuple[JobVertexID, ...]
) -> Chain:
    members = [graph.vertex(vertex_id) for vertex_id in vertices]
    return Chain(
        key,
        _chain_name(graph, vertices),
        vertices,
        inputs,
        members[0].slot_sharing_group,
        max(vertex.retries for vertex in members),
        max(vertex.memory_bytes for vertex in members),
    )


def _adjacency(graph: JobGraph) -> tuple[dict[JobVertexID, list[JobVertexID]], dict[JobVertexID, int]]:
    successors: dict[JobVertexID, list[JobVertexID]] = {vertex.id: [] for vertex in graph.vertices}
    incoming = dict.fromkeys(successors, 0)
    for edge in graph.edges:
        successors[edge.source].append(edge.target)
        incoming[edge.target] += 1
    return successors, incoming


def _find_cycle(graph: JobGraph) -> list[JobVertexID]:
    """Return a cycle of a graph that has one, from any of its vertices, in the direction of the edges."""
    successors, _ = _adjacency(graph)
    largest = next(
        group for group in strongly_connected(successors) if len(group) > 1 or group[0] in successors[group[0]]
    )
    inside = set(largest)
    path, seen = [largest[0]], {largest[0]: 0}
    while True:
        following = next(target for target in successors[path[-1]] if target in inside)
        if following in seen:
            return path[seen[following] :]
        seen[following] = len(path)
        path.append(following)


def _regions(order: Sequence[JobVertex], edges: Iterable[JobEdge]) -> dict[JobVertexID, JobVertexID]:
    parent = {vertex.id: vertex.id for vertex in order}

    def find(vertex_id: JobVertexID) -> JobVertexID:
        while parent[vertex_id] != vertex_id:
            parent[vertex_id] = vertex_id = parent[parent[vertex_id]]
        return vertex_id

    edges = tuple(edges)
    for edge in edges:
        if edge.exchange is ExchangeMode.PIPELINED:
            parent[find(edge.target)] = find(edge.source)
    between: dict[JobVertexID, list[JobVertexID]] = {find(vertex.id): [] for vertex in order}
    for edge in edges:
        between[find(edge.source)].append(find(edge.target))
    for group in strongly_connected(between):
        for other in group[1:]:
            parent[find(other)] = find(group[0])
    return {vertex.id: find(vertex.id) for vertex in order}


def strongly_connected(successors: Mapping[N, Sequence[N]]) -> list[list[N]]:
    """Return the strongly connected components of a graph (Kosaraju's algorithm, without recursion)."""
    finished: list[N] = []
    seen: set[N] = set()
    for root in successors:
        if root in seen:
            continue
        seen.add(root)
        stack = [(root, iter(successors[root]))]
        while stack:
            node, following = stack[-1]
            for target in following:
                if target not in seen:
                    seen.add(target)
                    stack.append((target, iter(successors[target])))
                    break
            else:
                finished.append(node)
                stack.pop()
    predecessors: dict[N, list[N]] = {node: [] for node in successors}
    for node, targets in successors.items():
        for target in targets:
            predecessors[target].append(node)
    components: list[list[N]] = []
    placed: set[N] = set()
    for root in reversed(finished):
        if root in placed:
            continue
        placed.add(root)
        component, todo = [root], [root]
        while todo:
            for source in predecessors[todo.pop()]:
                if source not in placed:
                    placed.add(source)
                    component.append(source)
                    todo.append(source)
        components.append(component)
    return components


def _order_of(groups: Mapping[N, object], inputs: Mapping[N, Iterable[N]]) -> list[N]:
    done: dict[N, None] = {}
    waiting = list(groups)
    while waiting:
        ready = [key for key in waiting if all(source in done for source in inputs[key])]
        done.update(dict.fromkeys(ready))
        waiting = [key for key in waiting if key not in done]
    return list(done)


def _chain_name(graph: JobGraph, vertices: Sequence[JobVertexID]) -> str:
    inside = set(vertices)
    level: dict[JobVertexID, int] = {}
    for vertex_id in vertices:  # topological order: the sources' levels are known
        sources = [edge.source for edge in graph.inputs_of(vertex_id) if edge.source in inside]
        level[vertex_id] = 1 + max((level[source] for source in sources), default=-1)
    steps: list[list[str]] = [[] for _ in range(1 + max(level.values()))]
    for vertex_id in vertices:
        steps[level[vertex_id]].append(graph.vertex(vertex_id).name)
    return " -> ".join(", ".join(step) for step in steps)

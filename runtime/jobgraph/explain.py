"""Job graphs for display: as text, as data for programs (Flink's JSON plan) and for graphviz. Pure."""

from __future__ import annotations

from typing import Any

from runtime.jobgraph.job_graph import DEFAULT_SLOT_SHARING_GROUP, ExchangeMode, JobEdge, JobGraph, JobVertex
from runtime.jobgraph.topology import Chain, chains


def edge_label(edge: JobEdge) -> str:
    """Return an edge's distribution of rows and its exchange mode, e.g. ``hash(carrier), blocking``."""
    keys = f"({', '.join(edge.keys)})" if edge.keys else ""
    return f"{edge.ship_strategy.value}{keys}, {edge.exchange.value}"


def vertex_settings(vertex: JobVertex) -> list[str]:
    """Return the settings of a vertex that differ from the defaults, as texts."""
    settings = []
    if vertex.parallelism:
        settings.append(f"parallelism {vertex.parallelism}")
    if vertex.slot_sharing_group != DEFAULT_SLOT_SHARING_GROUP:
        settings.append(f"slot sharing group {vertex.slot_sharing_group}")
    if vertex.retries:
        settings.append(f"{vertex.retries} retries")
    if vertex.memory_bytes:
        settings.append(f"memory {vertex.memory_bytes >> 20} mb")
    return settings


def explain_text(graph: JobGraph) -> str:
    """Return the graph as text: the tasks in an order in which they may run, their vertices, and each one's inputs."""
    tasks = chains(graph)
    number = {vertex: index for index, task in enumerate(tasks, 1) for vertex in task.vertices}
    lines = [
        f"{graph.kind.value} {graph.name}: {_count(len(graph.vertices), 'vertex', 'vertices')} "
        f"in {_count(len(tasks), 'task', 'tasks')}"
    ]
    lines += [f"  {name} = {value!r}" for name, value in graph.parameters.items()]
    for index, task in enumerate(tasks, 1):
        lines += ["", f"task {index}: {task.name}"]
        for vertex_id in task.vertices:
            vertex = graph.vertex(vertex_id)
            lines.append(f"  {', '.join([f'{vertex.name} ({vertex.role.value})', *vertex_settings(vertex)])}")
            for edge in graph.inputs_of(vertex_id):
                origin = "" if number[edge.source] == index else f" of task {number[edge.source]}"
                lines.append(f"    reads {graph.vertex(edge.source).name}{origin}: {edge_label(edge)}")
        readers = sorted({number[edge.target] for edge in _leaving(graph, task)})
        if readers:
            lines.append(f"  its result is materialised, and read by task {', '.join(map(str, readers))}")
    return "\n".join(lines)


def explain_plan(graph: JobGraph) -> dict[str, Any]:
    """Return the graph as plain data, for programs."""
    tasks = chains(graph)
    task_of = {vertex: task.key for task in tasks for vertex in task.vertices}
    return {
        "name": graph.name,
        "kind": graph.kind.value,
        "format_version": graph.format_version,
        "parameters": graph.parameters,
        "tasks": [
            {
                "id": task.key,
                "name": task.name,
                "vertices": list(task.vertices),
                "inputs": list(task.inputs),
                "slot_sharing_group": task.slot_sharing_group,
            }
            for task in tasks
        ],
        "vertices": [
            {
                "id": vertex.id,
                "name": vertex.name,
                "role": vertex.role.value,
                "function": vertex.function,
                "task": task_of[vertex.id],
                "parallelism": vertex.parallelism,
                "slot_sharing_group": vertex.slot_sharing_group,
                "retries": vertex.retries,
                "memory_bytes": vertex.memory_bytes,
                "inputs": [
                    {
                        "id": edge.source,
                        "ship_strategy": edge.ship_strategy.value,
                        "keys": list(edge.keys),
                        "exchange": edge.exchange.value,
                    }
                    for edge in graph.inputs_of(vertex.id)
                ],
            }
            for task in tasks
            for vertex in map(graph.vertex, task.vertices)
        ],
    }


def explain_dot(graph: JobGraph) -> str:
    """Return the graph in graphviz's language: tasks are clusters, blocking edges bold."""
    lines = [
        f"digraph {_quoted(graph.name)} {{",
        "  rankdir=LR;",
        '  node [shape=box, style="rounded,filled", fillcolor=white, fontname="sans-serif"];',
        '  edge [fontname="sans-serif", fontsize=10];',
    ]
    for index, task in enumerate(chains(graph), 1):
        lines += [f"  subgraph cluster_{index} {{", f'    label="task {index}"; style=filled; color="#e8edf3";']
        for vertex_id in task.vertices:
            vertex = graph.vertex(vertex_id)
            label = "\n".join([vertex.name, ", ".join([vertex.role.value, *vertex_settings(vertex)])])
            lines.append(f"    {_quoted(vertex_id)} [label={_quoted(label)}];")
        lines.append("  }")
    for edge in graph.edges:
        style = ", style=bold" if edge.exchange is ExchangeMode.BLOCKING else ""
        lines.append(f"  {_quoted(edge.source)} -> {_quoted(edge.target)} [label={_quoted(edge_label(edge))}{style}];")
    return "\n".join([*lines, "}"])


def _leaving(graph: JobGraph, task: Chain) -> list[JobEdge]:
    return [edge for edge in graph.edges if edge.source in task.vertices and edge.target not in task.vertices]


def _count(number: int, one: str, more: str) -> str:
    return f"{number} {one if number == 1 else more}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'

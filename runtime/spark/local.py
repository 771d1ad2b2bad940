"""Runs a whole pipeline in this process, on a given session: how a pipeline is tested without a cluster."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from runtime.ids import JobVertexID
from runtime.jobgraph.job_graph import ExchangeMode, JobGraph
from runtime.jobgraph.topology import topological_order
from runtime.spark.channel_selector import select_channels
from runtime.spark.context import VertexContext
from runtime.spark.pipeline import check_result


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

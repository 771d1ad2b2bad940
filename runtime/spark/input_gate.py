"""Where a vertex reads its inputs (Flink's `InputGate`): from its own task as they are, others' results from files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from runtime.protocol.descriptor import VertexDescriptor, VertexInput
from runtime.spark.channel_selector import select_channels
from runtime.spark.result_partition import ResultPartition


class InputGate:
    """All inputs of a task's vertices.

    Args:
        spark: the task's session.
        vertices: of the task.
        results: what its vertices have returned so far, by vertex; filled by the task.
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
        """See that the results of other tasks are there; raises `PartitionNotFoundError`."""
        for path, partition in self._foreign.items():
            self._schemas[path] = partition.check()

    def read(self, item: VertexInput, parallelism: int) -> DataFrame:
        """Return an input, divided as its edge says; *parallelism* is that of its reader."""
        frame = self._results[item.source] if item.path is None else self._read(item.path)
        return select_channels(frame, item.ship_strategy, item.keys, parallelism)

    def _read(self, path: str) -> DataFrame:
        reader, schema = self._spark.read, self._schemas.get(path)
        return (reader if schema is None else reader.schema(schema)).parquet(path)

    def blame(self, error: BaseException) -> None:
        """Raise `PartitionNotFoundError` if *error* comes of another task's result that has been lost meanwhile."""
        for partition in self._foreign.values():
            lost = partition.is_blamed_by(error)
            if lost is not None:
                raise lost from error

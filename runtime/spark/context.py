"""What a vertex function gets as its first argument."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class VertexContext:
    """The surroundings of a vertex function.

    Args:
        spark: the task's Spark Connect session, shared by the vertices of the task.
        parameters: the job's parameters.
        vertex_name, job_id: of the vertex and of its job.
        attempt: how often the task was started before.
        log: writes to the task's standard error.
    """

    spark: SparkSession
    parameters: dict[str, Any]
    vertex_name: str
    job_id: str
    attempt: int
    log: logging.Logger

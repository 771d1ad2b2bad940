"""Between a task's descriptor and its process: what the process is told, and what it says (pure)."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from runtime.checkpoint.model import QueryLocation
from runtime.ids import JobVertexID
from runtime.jobgraph.job_graph import ArtifactRole, JobKind
from runtime.jobmaster.descriptor import TaskDeploymentDescriptor, VertexProgress
from runtime.librarycache.environment import PythonEnvironment
from runtime.spark.spec import (
    ClassicEndpoint,
    ConnectEndpoint,
    ResourceLimits,
    ShipStrategy,
    TaskKind,
    TaskSpec,
    VertexInput,
    VertexSpec,
)


def task_spec(
    descriptor: TaskDeploymentDescriptor,
    directory: Path,
    files: dict[ArtifactRole, list[Path]],
    environment: PythonEnvironment | None,
    endpoint: ClassicEndpoint | ConnectEndpoint,
    limits: ResourceLimits,
    conf: dict[str, str],
) -> TaskSpec:
    """What the process of an attempt is told.

    Args:
        descriptor: the attempt.
        directory: its own directory.
        files: the job's files, by their role.
        environment: what the job brings to import; None where it brings nothing.
        endpoint: where it reaches Spark.
        limits: what its process may take.
        conf: settings of its Spark session.
    """
    return TaskSpec(
        job_id=descriptor.job_id,
        job_name=descriptor.job_name,
        attempt_id=descriptor.attempt_id,
        task_name=descriptor.task_name,
        kind=TaskKind.SCRIPT if descriptor.kind is JobKind.SCRIPT else TaskKind.PIPELINE,
        file=str(files[ArtifactRole.MAIN][0]),
        work_dir=str(directory),
        vertices=_vertices(descriptor),
        attempt_number=descriptor.attempt_number,
        argv=descriptor.argv,
        parameters=descriptor.parameters,
        py_files=() if environment is None else environment.import_files,
        jars=() if environment is None else tuple(str(path) for path in environment.jars),
        classic=endpoint if isinstance(endpoint, ClassicEndpoint) else None,
        connect=endpoint if isinstance(endpoint, ConnectEndpoint) else None,
        memory_bytes=descriptor.memory_bytes,
        limits=limits,
        conf=conf,
    )


def _vertices(descriptor: TaskDeploymentDescriptor) -> tuple[VertexSpec, ...]:
    return tuple(
        VertexSpec(
            id=vertex.id,
            name=vertex.name,
            function=vertex.function or "",
            inputs=tuple(
                VertexInput(
                    item.source, item.path, ShipStrategy(item.ship_strategy.value), item.keys, vertex.parallelism
                )
                for item in vertex.inputs
            ),
            result_path=vertex.result_path,
        )
        for vertex in descriptor.vertices
    )


def vertex_progress(vertices: dict[str, dict[str, int]]) -> tuple[VertexProgress, ...]:
    """Spark's counts as the task process sends them."""
    return tuple(
        VertexProgress(
            JobVertexID(vertex_id),
            stages=counts.get("stages", 0),
            stages_completed=counts.get("stages_completed", 0),
            tasks_total=counts.get("tasks_total", 0),
            tasks_completed=counts.get("tasks_completed", 0),
            tasks_active=counts.get("tasks_active", 0),
        )
        for vertex_id, counts in vertices.items()
    )


def query_location(message: dict[str, Any]) -> QueryLocation:
    """A streaming query as the task process tells of it before it starts."""
    sink = message["sink"]
    return QueryLocation(str(message["name"]), str(message["location"]), None if sink is None else str(sink))


def describe_exit(status: int | None, limits: ResourceLimits) -> str:
    """How a task process ended that has not said so itself."""
    if status is None:
        return "the task process was not started"
    if status < 0:
        perhaps = f"; it may have reached {limits}" if str(limits) else ""
        return f"the task process was killed by {signal.Signals(-status).name}{perhaps}"
    return f"the task process ended with status {status} before its code had finished"

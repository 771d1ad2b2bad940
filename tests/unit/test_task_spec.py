"""What a task process is told of its limits, and what is said of its end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runtime.jobgraph.codec import decode, encode
from runtime.jobgraph.job_graph import JobKind
from runtime.protocol.descriptor import TaskDeploymentDescriptor
from runtime.spark.spec import ResourceLimits, TaskSpec
from runtime.spark.task.run import set_variables
from runtime.taskexecutor.task import describe_exit
from tests.unit.test_trace_context import TEXT

LIMITED = ResourceLimits(memory_bytes=1 << 30, cpu_s=60)


@pytest.mark.parametrize(
    ("status", "limits", "text"),
    [
        (None, LIMITED, "the task process was not started"),
        (-9, ResourceLimits(), "the task process was killed by SIGKILL"),
        (
            -6,
            LIMITED,
            "the task process was killed by SIGABRT; it may have reached taskmanager.task.memory.limit "
            "(1073741824 bytes) or taskmanager.task.cpu-time.limit (60 s)",
        ),
        (3, LIMITED, "the task process ended with status 3 before its code had finished"),
    ],
)
def test_how_a_process_ended(status: int | None, limits: ResourceLimits, text: str) -> None:
    assert describe_exit(status, limits) == text


def test_a_task_knows_its_span_and_never_that_of_the_command_that_started_the_cluster() -> None:
    made = TaskDeploymentDescriptor.internal("task", JobKind.SCRIPT)
    spec = TaskSpec(made, "f.py", "/work", env={"PYSPARK_PYTHON": "p"})
    started_with = {"TRACEPARENT": "of the cluster", "HOME": "/h"}
    set_variables(spec, environment := dict(started_with))
    assert environment == {"HOME": "/h", "PYSPARK_PYTHON": "p"}
    traced = replace(spec, descriptor=replace(made, attempt=replace(made.attempt, traceparent=TEXT)))
    set_variables(traced, environment := dict(started_with))
    assert environment["TRACEPARENT"] == TEXT
    own = replace(made.job, environment={"TRACEPARENT": "its own"})
    set_variables(replace(traced, descriptor=replace(traced.descriptor, job=own)), environment := dict(started_with))
    assert environment["TRACEPARENT"] == "its own"


def test_limits_travel() -> None:
    spec = TaskSpec(TaskDeploymentDescriptor.internal("task", JobKind.SCRIPT), "f.py", "/work", limits=LIMITED)
    assert decode(encode(spec), TaskSpec) == spec

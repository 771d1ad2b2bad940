"""What a task process is told of its limits, and what is said of its end."""

from __future__ import annotations

import pytest

from runtime.jobgraph.codec import decode, encode
from runtime.jobgraph.job_graph import JobKind
from runtime.spark.spec import ResourceLimits, TaskSpec
from runtime.taskexecutor.task_outcome import describe_exit

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


def test_limits_travel() -> None:
    spec = TaskSpec("job", "name", "attempt", "task", JobKind.SCRIPT, "f.py", "/work", (), limits=LIMITED)
    assert decode(encode(spec), TaskSpec) == spec

"""Rescales of a job, as its JobMaster records them and clients see them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from runtime.ids import JobVertexID, TriggerID
from runtime.protocol.checkpoints import OperationState

MOST_RESCALES = 20
"""Number of rescales that a job remembers."""

VANISHED = "the process that rescales it has ended before it was done"
"""Error of a rescale that nothing does any more."""


class RescaleCause(StrEnum):
    """Origin of a request for a rescale."""

    USER = "USER"
    AUTOSCALER = "AUTOSCALER"


@dataclass(frozen=True, slots=True)
class Rescale:
    """A change of the number of partitions of a job's state.

    Args:
        trigger_id: of the request.
        partitions: the new number; None for an undo that has not found the former one yet.
        before: the number before, of each query whose state is rescaled; empty until they are known.
        is_undo: whether it undoes the rescale before.
        cause: origin of the request.
        reason: why the autoscaler asks for it; empty for a user.
        rescale_job: id of the cluster's job that does it; empty if a command or a program does it.
        number: counts the job's rescales, from 1.
        started_ms: time of the request, in milliseconds since the epoch.
        ended_ms: time of its end; None before, and where it is not known.
        state: its outcome; COMPLETED means that the tasks restart from the rescaled state.
        error: why it has failed.
        savepoint: directory of the savepoint from which the tasks restart; empty before.
    """

    trigger_id: TriggerID
    partitions: int | None
    before: dict[str, int] = field(default_factory=dict)
    is_undo: bool = False
    cause: RescaleCause = RescaleCause.USER
    reason: str = ""
    rescale_job: str = ""
    number: int = 0
    started_ms: int = 0
    ended_ms: int | None = None
    state: OperationState = OperationState.IN_PROGRESS
    error: str = ""
    savepoint: str = ""

    @property
    def is_over(self) -> bool:
        """Return whether it has an outcome."""
        return self.state is not OperationState.IN_PROGRESS


@dataclass(frozen=True, slots=True)
class Advice:
    """The autoscaler's decision about a query of a job.

    Args:
        query: its name.
        partitions: the present number of partitions of its state; null if it has no state, or none is saved.
        wanted: the number that it should have; null if there is no present one.
        reason: why, on one line.
        lacks_cores: whether the number would be larger if Spark had more cores.
        cores: tasks that the Spark of its TaskExecutor can run at once; null if that is not known, and where Spark adds
            executors by itself.
        task_executor: the TaskExecutor that runs it; empty if that is not known.
        other_jobs: number of other jobs that hold slots of this TaskExecutor.
        at_ms: when it was decided, in milliseconds since the epoch.
    """

    query: str
    partitions: int | None
    wanted: int | None
    reason: str
    lacks_cores: bool = False
    cores: int | None = None
    task_executor: str = ""
    other_jobs: int = 0
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class VertexResourceRequirements:
    """Bounds of the number of partitions of a task's state (Flink's `JobVertexResourceRequirements`).

    Args:
        vertex_id: key of the task, a vertex in Flink's API.
        lower_bound: smallest number: the autoscaler's if it is on, else 1.
        upper_bound: the autoscaler's largest number if it is on, else the present number. 1 for a task whose queries
            have no saved state. If its queries have several numbers, the largest of them.
        queries: names of its queries with saved state.
        fixed_because: why a request cannot change the bounds; empty if it can.
    """

    vertex_id: JobVertexID
    lower_bound: int
    upper_bound: int
    queries: tuple[str, ...] = ()
    fixed_because: str = ""

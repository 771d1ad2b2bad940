"""What the command line shows of jobs and TaskManagers: plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the commands that show nothing of these need not load them
    from runtime.protocol.archived_execution_graph import ArchivedExecutionGraph, JobDetails, TaskInfo, VertexInfo
    from runtime.protocol.messages import TaskManagerView
    from runtime.protocol.streaming_query import BackPressure, QueryProgress


@dataclass(frozen=True, slots=True)
class FailureView:
    """Why a job failed.

    Attributes:
        type: name of the exception's type.
        message: its text.
        traceback: the user's own traceback, or empty.
        task: name of the task, or empty for the job as a whole.
        remedy: what to do where the cause is the cluster's; empty where it is the job's.
    """

    type: str
    message: str
    traceback: str = ""
    task: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class VertexView:
    """A vertex of a job.

    Attributes:
        id: its id.
        name: its name.
        state: Flink's name of its execution state.
        attempt: 0 for the first attempt.
        started_ms: when its attempt was deployed, in milliseconds since 1970; None before that.
        ended_ms: when it ended; None before that.
        tasks_total: Spark tasks known so far; 0 while none are.
        tasks_completed: those of them that are completed.
        task_manager: where it runs, or empty.
    """

    id: str
    name: str
    state: str
    attempt: int = 0
    started_ms: int | None = None
    ended_ms: int | None = None
    tasks_total: int = 0
    tasks_completed: int = 0
    task_manager: str = ""


@dataclass(frozen=True, slots=True)
class QueryView:
    """An active streaming query of a job.

    Attributes:
        name: as the job named it, or empty.
        id: Spark's id.
        run_id: Spark's id of this run.
        batch: number of the last batch that it has reported; None before the first.
        progress: of that batch.
        trigger_interval_ms: None where one batch follows the other.
        back_pressure: whether it keeps up; None while that is not known.
    """

    name: str
    id: str
    run_id: str
    batch: int | None = None
    progress: QueryProgress | None = None
    trigger_interval_ms: int | None = None
    back_pressure: BackPressure | None = None


@dataclass(frozen=True, slots=True)
class JobView:
    """A job.

    Attributes:
        id: its id.
        name: its name.
        state: Flink's name of its state.
        started_ms: when it was accepted, in milliseconds since 1970.
        ended_ms: when it ended; None before that.
        restarts: how often it was restarted.
        waiting_for: what it waits for, such as ``2 slots``; empty when for nothing.
        vertices: in topological order; empty where only the job's own line is shown.
        failure: why it failed or was last restarted.
        failures: how many failures of each kind there were, by the kind.
        queries: its active streaming queries.
    """

    id: str
    name: str
    state: str
    started_ms: int
    ended_ms: int | None = None
    restarts: int = 0
    waiting_for: str = ""
    vertices: tuple[VertexView, ...] = ()
    failure: FailureView | None = None
    failures: Mapping[str, int] = field(default_factory=dict)
    queries: tuple[QueryView, ...] = ()


@dataclass(frozen=True, slots=True)
class TaskManagerRow:
    """A registered TaskManager.

    Attributes:
        id: its resource id.
        address: its gateway's address.
        slots: how many it has.
        free_slots: how many of them are free.
        spark_master: master URL of its Spark driver.
        memory_bytes: heap of its Spark driver.
        pid: its process.
        spark_pid: process of its Spark driver.
        last_heartbeat_ms: when it was last heard of, in milliseconds since 1970.
        spark_loss: when and why its Spark driver was lost last; empty where none was.
    """

    id: str
    address: str
    slots: int
    free_slots: int
    spark_master: str
    memory_bytes: int
    pid: int
    spark_pid: int
    last_heartbeat_ms: int
    spark_loss: str = ""


def view_of_details(details: JobDetails) -> JobView:
    """The line of a job in a list."""
    return JobView(details.job_id, details.name, details.status.value, details.start_ms, details.end_ms)


def view_of_job(job: ArchivedExecutionGraph) -> JobView:
    """A job with its vertices; each has the state and the times of the present attempt of its task."""
    tasks = {task.key: task for task in job.tasks}
    waiting = [task.waiting_for for task in job.tasks if task.state.value == "SCHEDULED" and task.waiting_for]
    if any(task.state.is_deployed for task in job.tasks):
        waiting = []  # it goes on: what is still to come waits for its own tasks
    error = job.failure
    return JobView(
        id=job.job_id,
        name=job.name,
        state=job.status.value,
        started_ms=job.start_ms,
        ended_ms=job.end_ms,
        restarts=job.restarts,
        waiting_for=", ".join(dict.fromkeys(waiting)),
        vertices=tuple(_view_of_vertex(vertex, tasks[vertex.task]) for vertex in job.vertices),
        failure=None
        if error is None
        else FailureView(error.type, error.message, error.traceback, error.task, error.kind.remedy),
        failures=job.failure_counts,
        queries=tuple(
            QueryView(
                query.name,
                query.id,
                query.run_id,
                query.batch,
                query.progress,
                query.trigger_interval_ms,
                query.back_pressure,
            )
            for task in job.tasks
            if not task.state.is_terminal
            for query in task.attempts[-1].queries
        ),
    )


def view_of_task_manager(view: TaskManagerView) -> TaskManagerRow:
    """The line of a TaskManager in a list."""
    registration = view.registration
    return TaskManagerRow(
        id=registration.resource_id,
        address=registration.address,
        slots=registration.slots,
        free_slots=view.free_slots,
        spark_master=registration.spark_master,
        memory_bytes=registration.memory_bytes,
        pid=registration.pid,
        spark_pid=registration.spark_pid,
        last_heartbeat_ms=view.last_heartbeat_ms,
        spark_loss=registration.spark_loss,
    )


def _view_of_vertex(vertex: VertexInfo, task: TaskInfo) -> VertexView:
    attempt = task.attempts[-1]
    return VertexView(
        id=vertex.id,
        name=vertex.name,
        state=vertex.state.value,
        attempt=attempt.number,
        started_ms=attempt.timestamps.get("DEPLOYING"),
        ended_ms=attempt.end_ms,
        tasks_total=vertex.progress.tasks_total,
        tasks_completed=vertex.progress.tasks_completed,
        task_manager=attempt.task_executor,
    )

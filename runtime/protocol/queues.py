"""Queues with their use: what the ResourceManager reports, ``queue list --json`` prints and ``GET /queues`` answers."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.ids import AllocationID, JobID


@dataclass(frozen=True, slots=True)
class UserInQueue:
    """Use of a queue by one user.

    Args:
        user: name of the user; empty for jobs without a user.
        slots: that the user's jobs hold.
        slot_seconds: that they have used; those of a half-life ago count half.
        waiting: requests for slots that wait.
        memory_mb: memory of the tasks in these slots, as their jobs ask for it.
        cpus: processors of these tasks.
    """

    user: str
    slots: int
    slot_seconds: float
    waiting: int
    memory_mb: int = 0
    cpus: float = 0.0


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """A queue with its use.

    Args:
        name: of the queue.
        weight: its share of the slots among queues of the same priority.
        priority: queues of a higher one are served first.
        slots: that its jobs hold.
        slots_limit: most slots; null without a limit.
        running_jobs: jobs that hold a slot.
        running_jobs_limit: most of them; null without a limit.
        waiting: requests for slots that wait.
        slot_seconds: that its jobs have used; those of a half-life ago count half.
        users: users with slots or waiting requests, by name.
        memory_mb: memory of the tasks in the slots, as their jobs ask for it.
        memory_mb_limit: most of it; null without a limit.
        cpus: processors of these tasks.
        cpus_limit: most of them; null without a limit.
        blob_mb: MB of the blobs with the files of its jobs that are not over.
        blob_mb_limit: most of it; null without a limit.
    """

    name: str
    weight: float
    priority: int
    slots: int
    slots_limit: int | None
    running_jobs: int
    running_jobs_limit: int | None
    waiting: int
    slot_seconds: float
    users: tuple[UserInQueue, ...] = ()
    memory_mb: int = 0
    memory_mb_limit: int | None = None
    cpus: float = 0.0
    cpus_limit: float | None = None
    blob_mb: int = 0
    blob_mb_limit: int | None = None


@dataclass(frozen=True, slots=True)
class LimitedUse:
    """Use of the whole cluster by a user or a group, with their limits.

    Args:
        kind: ``user`` or ``group``.
        name: of it.
        slots: that its jobs hold.
        slots_limit: most slots; null without a limit.
        running_jobs: jobs that hold a slot.
        running_jobs_limit: most of them; null without a limit.
        memory_mb: memory of the tasks in these slots, as their jobs ask for it.
        memory_mb_limit: most of it; null without a limit.
        cpus: processors of these tasks.
        cpus_limit: most of them; null without a limit.
        blob_mb: MB of the blobs with the files of its jobs that are not over.
        blob_mb_limit: most of it; null without a limit.
    """

    kind: str
    name: str
    slots: int
    slots_limit: int | None
    running_jobs: int
    running_jobs_limit: int | None
    memory_mb: int = 0
    memory_mb_limit: int | None = None
    cpus: float = 0.0
    cpus_limit: float | None = None
    blob_mb: int = 0
    blob_mb_limit: int | None = None


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """A request for a slot that waits.

    Args:
        job_id: of the job.
        job_name: of the job.
        task_name: of the task.
        allocation_id: of the request.
        user: of the job; empty if it has none.
        queue: of the job.
        place: in its queue, from 1; requests that a limit holds back come last.
        reason: what it waits for, in words.
    """

    job_id: JobID
    job_name: str
    task_name: str
    allocation_id: AllocationID
    user: str
    queue: str
    place: int
    reason: str


@dataclass(frozen=True, slots=True)
class QueuesOverview:
    """The queues, and what waits in them.

    Args:
        queues: in the order of the file.
        waiting: the requests that wait, the next one first; those that a limit holds back come last.
        running: ids of the jobs that hold a slot.
        problem: why the present content of the file of queues is not in use; empty if it is.
        has_file: whether the cluster has a file of queues; without one it has one queue without limits.
        limits: users and groups with jobs or with limits of their own, with their use.
    """

    queues: tuple[QueueStatus, ...]
    waiting: tuple[WaitingRequest, ...] = ()
    running: tuple[JobID, ...] = ()
    problem: str = ""
    has_file: bool = True
    limits: tuple[LimitedUse, ...] = ()

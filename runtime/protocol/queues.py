"""Queues with their use, as the ResourceManager reports them."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.ids import AllocationID, JobID


@dataclass(frozen=True, slots=True)
class UserInQueue:
    """Use of a queue by one user.

    Args:
        user: the name; empty for jobs without a user.
        slots: that the user's jobs hold.
        slot_seconds: that they have used, with decay.
        waiting: requests that wait.
    """

    user: str
    slots: int
    slot_seconds: float
    waiting: int


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """A queue with its use.

    Args:
        name: of the queue.
        weight: its share among queues of its priority.
        priority: queues of a higher one are served first.
        slots: that its jobs hold.
        slots_limit: most slots; None without a limit.
        running_jobs: jobs that hold a slot.
        running_jobs_limit: most of them; None without a limit.
        waiting: requests that wait.
        slot_seconds: that its jobs have used, with decay.
        users: with slots or waiting requests, by name.
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


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """A request that waits for a slot.

    Args:
        job_id: the job.
        job_name: for display.
        task_name: for display.
        allocation_id: of the request.
        user: of the job; empty if it has none.
        queue: of the job.
        place: in its queue, from 1.
        reason: what it waits for, for users.
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
    """All queues.

    Args:
        queues: in the order of the file.
        waiting: the requests that wait, in the order in which they are served; last those beyond a limit.
        running: jobs that hold a slot.
        problem: why the present content of the file of queues is not in use; empty if it is.
    """

    queues: tuple[QueueStatus, ...]
    waiting: tuple[WaitingRequest, ...] = ()
    running: tuple[JobID, ...] = ()
    problem: str = ""

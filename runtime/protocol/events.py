"""What the components of a cluster publish on its event stream, beside `actors.receptionist.LeaderChanged`."""

from __future__ import annotations

from actors import message


@message
class JobReachedTerminalState:
    """A job is over.

    Args:
        job_id: of the job.
        name: of the job.
        status: FINISHED, FAILED or CANCELED.
    """

    job_id: str
    name: str
    status: str


@message
class TaskExecutorLost:
    """A TaskExecutor is one of the cluster no more: it was stopped, has died, or is silent.

    Args:
        resource_id: of the TaskExecutor.
        reason: in words.
    """

    resource_id: str
    reason: str

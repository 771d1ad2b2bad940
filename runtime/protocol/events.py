"""Events that the components publish on the cluster's event stream, beside `actors.receptionist.LeaderChanged`."""

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
    """A TaskExecutor no longer belongs to the cluster: it was stopped, has died, or does not answer.

    Args:
        resource_id: of the TaskExecutor.
        reason: the cause, as text.
    """

    resource_id: str
    reason: str

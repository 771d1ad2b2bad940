"""Which logs of a job there are: what is kept of attempts that are over, and what TaskExecutors still have. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from runtime.gateways.messages import TaskLog
from runtime.ids import ExecutionAttemptID
from runtime.jobmaster.archived_execution_graph import ArchivedExecutionGraph, AttemptInfo
from runtime.jobmaster.execution_state import ExecutionState


def is_whole(job: ArchivedExecutionGraph) -> bool:
    """Whether all that its attempts wrote is kept: nobody else needs to be asked."""
    attempts = [attempt for task in job.tasks for attempt in task.attempts if _has_begun(attempt)]
    return all(attempt.logs and all(log.is_whole for log in attempt.logs) for attempt in attempts)


def _has_begun(attempt: AttemptInfo) -> bool:
    return ExecutionState.DEPLOYING.value in attempt.timestamps


def merged_logs(job: ArchivedExecutionGraph | None, found: Iterable[TaskLog]) -> list[TaskLog]:
    """The logs in the order in which their attempts began, each once: the kept one if it is whole or the only one.

    Args:
        job: with the kept ones; None where nobody can say.
        found: those that the TaskExecutors have, of an attempt in order.
    """
    if job is None:
        return list(found)
    present = {(log.attempt_id, log.name): log for log in found}
    begun: dict[ExecutionAttemptID, int] = {}
    for task in job.tasks:
        for attempt in task.attempts:
            begun[attempt.attempt_id] = attempt.timestamps.get(ExecutionState.DEPLOYING.value, 0)
            for log in attempt.logs:
                key = attempt.attempt_id, log.name
                if log.is_whole or key not in present:
                    present[key] = TaskLog(
                        job.job_id, task.name, attempt.number, log.name, log.size, log.blob_key, attempt.attempt_id
                    )
    # An attempt that the job does not remember any more was one of its first.
    return sorted(present.values(), key=lambda log: begun.get(log.attempt_id, 0))

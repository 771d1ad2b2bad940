"""What a JobMaster must have written down before it acts, so that its successor can go on: the state of one execution.

Flink's JobMaster begins a job anew from its last checkpoint; here the successor finds the tasks running. For that the
book must be ahead of the world: an attempt is written down before it is deployed, an end before its report is
acknowledged, a cancellation before it is promised. What only the TaskExecutors know (that an attempt is RUNNING) is not
written: they tell it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from runtime.checkpoint.messages import NO_TOTALS, CheckpointTotals
from runtime.ids import ExecutionAttemptID, JobID, JobVertexID
from runtime.job_logs import KeptLog
from runtime.jobmaster.descriptor import ResultPartitionInfo
from runtime.jobmaster.execution import Execution, Task
from runtime.jobmaster.execution_state import ErrorInfo, ExecutionState, JobStatus
from runtime.jobmaster.restart_strategy import RestartStrategyState
from runtime.jobmaster.rollback import Rollback
from runtime.jobmaster.slot_pool import AllocatedSlot

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class AttemptSnapshot:
    """One attempt: as `Execution`, without what is shown only."""

    attempt_id: ExecutionAttemptID
    number: int
    state: ExecutionState
    timestamps: dict[str, int]
    slot: AllocatedSlot | None
    error: ErrorInfo | None
    exit_status: int | None
    logs: tuple[KeptLog, ...] = ()
    partitions: tuple[ResultPartitionInfo, ...] = ()


@dataclass(frozen=True, slots=True)
class TaskSnapshot:
    """One task: its attempts, the present one last, whether its restart is scheduled, and its retries used up."""

    key: JobVertexID
    restarting: bool
    attempts: tuple[AttemptSnapshot, ...]
    retried: int = 0


@dataclass(frozen=True, slots=True)
class ExecutionGraphSnapshot:
    """One job's execution.

    Args:
        job_id: of the job.
        status: its state.
        timestamps: when it last entered each of its states, by the state's name, in milliseconds since the epoch.
        failure: what makes it fail.
        failures: the last failures.
        restarts: how often some of its tasks were restarted.
        strategy: what the restart strategy remembers.
        taken_ms: when it was taken, in milliseconds since the epoch.
        tasks: all of them.
        format_version: of this form.
        failure_counts: how many failures of each kind there were, by the kind's name.
        rollback: where the job has gone back to last.
        checkpoints: how many there were; the completed checkpoints in the store may have later totals.
    """

    job_id: JobID
    status: JobStatus
    timestamps: dict[str, int]
    failure: ErrorInfo | None
    failures: tuple[ErrorInfo, ...]
    restarts: int
    strategy: RestartStrategyState
    taken_ms: int
    tasks: tuple[TaskSnapshot, ...]
    format_version: int = FORMAT_VERSION
    failure_counts: dict[str, int] = field(default_factory=dict)
    rollback: Rollback | None = None
    checkpoints: CheckpointTotals = NO_TOTALS


def snapshot_tasks(tasks: Iterable[Task]) -> tuple[TaskSnapshot, ...]:
    """The tasks as plain data."""
    return tuple(
        TaskSnapshot(
            task.chain.key, task.restarting, tuple(_snapshot(execution) for execution in task.attempts), task.retried
        )
        for task in tasks
    )


def _snapshot(execution: Execution) -> AttemptSnapshot:
    return AttemptSnapshot(
        execution.attempt_id,
        execution.number,
        execution.state,
        {state.value: entered for state, entered in execution.timestamps.items()},
        execution.slot,
        execution.error,
        execution.exit_status,
        execution.logs,
        execution.partitions,
    )


def restore_attempt(saved: AttemptSnapshot) -> Execution:
    """A former attempt, as it was."""
    execution = Execution(saved.attempt_id, saved.number, 0)
    execution.state = saved.state
    execution.timestamps = {ExecutionState(state): entered for state, entered in saved.timestamps.items()}
    execution.slot = saved.slot
    execution.error = saved.error
    execution.exit_status = saved.exit_status
    execution.logs = saved.logs
    execution.partitions = saved.partitions
    return execution


def restore_current_attempt(saved: AttemptSnapshot, now_ms: int) -> Execution:
    """The present attempt, as far as it is known: what was deployed is RECONCILING until its TaskExecutor speaks.

    A request for a slot died with the JobMaster that made it: the attempt begins anew. One that was being cancelled
    still is.
    """
    execution = restore_attempt(saved)
    if execution.state is ExecutionState.SCHEDULED:
        execution.state = ExecutionState.CREATED
        del execution.timestamps[ExecutionState.SCHEDULED]
    elif execution.state.is_deployed:
        if execution.state is not ExecutionState.CANCELING:
            execution.state = ExecutionState.RECONCILING
        execution.timestamps[ExecutionState.RECONCILING] = now_ms
    return execution

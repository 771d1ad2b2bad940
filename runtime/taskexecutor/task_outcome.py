"""How an attempt ended, from what was heard of it while it ran (pure)."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import replace

from runtime.ids import JobVertexID
from runtime.jobgraph.job_graph import JobKind
from runtime.protocol.descriptor import ResultPartitionInfo, TaskDeploymentDescriptor, TaskExecutionState
from runtime.protocol.execution_state import ErrorInfo, ExecutionState, FailureKind
from runtime.spark.driver.api import StoppedQueries
from runtime.spark.spec import ResourceLimits
from runtime.taskexecutor.task_checkpoints import StopOutcome


class TaskOutcome:
    """Collects what is heard of one attempt; the first failure counts.

    Args:
        descriptor: the attempt.
        limits: those of its process, which may be what ended it.
    """

    def __init__(self, descriptor: TaskDeploymentDescriptor, limits: ResourceLimits) -> None:
        self._descriptor = descriptor
        self._limits = limits
        self._partitions: tuple[ResultPartitionInfo, ...] = ()
        self.failure: ErrorInfo | None = None
        self.finished = False
        """Whether its code came to its own end."""
        self.explanation = ""
        """Why its failure may be, where more is known than it says."""

    def finish(self, partitions: Iterable[ResultPartitionInfo]) -> None:
        """Its code has come to its end; *partitions* are its results."""
        self.finished = True
        self._partitions = tuple(partitions)

    def fail(
        self,
        kind: FailureKind,
        name: str,
        message: str,
        traceback: str = "",
        lost_result: str | None = None,
        *,
        now_ms: int,
    ) -> None:
        """Note a failure, and that it was seen at *now_ms*, in milliseconds since the epoch."""
        if self.failure is None:
            lost = None if lost_result is None else JobVertexID(lost_result)
            self.failure = ErrorInfo(kind, name, message, traceback, self._descriptor.task_name, now_ms, lost)

    def blame(self, kind: FailureKind, name: str, message: str) -> None:
        """Give the noted failure another cause than it seemed to have."""
        assert self.failure is not None
        self.failure = replace(self.failure, kind=kind, type=name, message=message)

    def final_state(self, status: int | None, stop: StopOutcome, cancelled: bool, *, now_ms: int) -> TaskExecutionState:
        """Return the attempt's last state.

        Args:
            status: exit status of its process; None: there was no process.
            stop: what came of a stop-with-savepoint.
            cancelled: whether it was to end.
            now_ms: the time of a failure that shows only now, in milliseconds since the epoch.
        """
        attempt_id = self._descriptor.attempt_id
        if stop is StopOutcome.COMPLETED:
            # The job is over, and its state kept; what its code made of the end of its queries is no failure.
            return TaskExecutionState(
                attempt_id, ExecutionState.FINISHED, exit_status=status, partitions=self._partitions
            )
        if cancelled:
            return TaskExecutionState(attempt_id, ExecutionState.CANCELED, exit_status=status)
        if stop is StopOutcome.FAILED:
            # Its queries were stopped and its state not kept: the job is not over, and goes on.
            self.failure = None
            message = "the job was to be stopped with a savepoint, which failed after its queries had been stopped"
            self.fail(FailureKind.RUNTIME, "StopWithSavepointStoppingException", message, now_ms=now_ms)
        if self.failure is None and not self.finished and not self._ended_itself_well(status):
            text = describe_exit(status, self._limits)
            self.fail(FailureKind.TASK_PROCESS_LOST, "TaskProcessLostException", text, now_ms=now_ms)
        if self.failure is not None:
            if self.explanation:
                self.failure = replace(self.failure, message=f"{self.failure.message} ({self.explanation})")
            return TaskExecutionState(attempt_id, ExecutionState.FAILED, self.failure, status)
        return TaskExecutionState(attempt_id, ExecutionState.FINISHED, exit_status=status, partitions=self._partitions)

    def _ended_itself_well(self, status: int | None) -> bool:
        """A script may leave by `os._exit(0)`: to whoever runs a program, its exit status is its word."""
        return status == 0 and self._descriptor.kind is JobKind.SCRIPT


def describe_exit(status: int | None, limits: ResourceLimits) -> str:
    """Return how a task process ended that has not said so itself."""
    if status is None:
        return "the task process was not started"
    if status < 0:
        perhaps = f"; it may have reached {limits}" if str(limits) else ""
        return f"the task process was killed by {signal.Signals(-status).name}{perhaps}"
    return f"the task process ended with status {status} before its code had finished"


def lost_query(name: str) -> str:
    """Return what is told of a query that has ended, though neither the job's code nor the cluster has stopped it."""
    return (
        f"streaming query {name} has ended, and neither the job's code nor the cluster has stopped it: it goes on from "
        "its last batch when the task is restarted"
    )


def stop_notes(stopped: StoppedQueries) -> list[str]:
    """Return what whoever has stopped a job's queries should know of them."""
    return [
        *(f"query {name} had not worked off all that its sources have in time" for name in stopped.undrained),
        *(
            f"query {name} was stopped by force in the middle of a batch, which is done again from there"
            for name in stopped.forced
        ),
    ]

"""The state of a job's execution: events in, instructions out (Flink's `ExecutionGraph` with its `DefaultScheduler`).

Pure, in the manner of Dask's worker state machine: every event method changes the state and returns what is to be done.
Events may come late, twice or about attempts long gone; they are then ignored.

A task is a chain of vertices (`runtime.jobgraph.topology.chains`) and a region of failover at once. It asks for a slot
as soon as all tasks that it reads from have FINISHED. When it fails and the restart strategy allows, it is restarted
with those of its consumers that have not finished; finished results are kept. When not, the job is FAILING until
nothing of it runs.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from runtime.ids import AllocationID, ExecutionAttemptID, ResourceID, RestartID, SlotRequestID
from runtime.jobmaster.archived_execution_graph import (
    ArchivedExecutionGraph,
    AttemptInfo,
    JobDetails,
    TaskInfo,
    VertexInfo,
)
from runtime.jobmaster.descriptor import ExecutionReport, TaskExecutionState
from runtime.jobmaster.execution_state import (
    EXECUTION_TRANSITIONS,
    ErrorInfo,
    ExecutionState,
    FailureKind,
    Instant,
    JobStatus,
)
from runtime.jobmaster.failover import region_to_restart
from runtime.jobmaster.instructions import CancelTask, DeployTask, Instruction, JobReachedTerminal, ReleaseSlot
from runtime.jobmaster.scheduler import ACTIVE, Scheduler
from runtime.jobmaster.slot_pool import AllocatedSlot

__all__ = ["ArchivedExecutionGraph", "AttemptInfo", "ExecutionGraph", "JobDetails", "TaskInfo", "VertexInfo"]


class ExecutionGraph(Scheduler):
    """A job being run: what may happen to it. Its arguments are those of `ExecutionGraphState`."""

    # ------------------------------------------------------- events: the job's life

    def resume(self, at: Instant) -> list[Instruction]:
        """Go on after `restore`: restart what waits for it, deploy what is missing, end what is over."""
        if self._status.is_terminal:
            return [JobReachedTerminal(self._status, self._failure)]
        waiting = {key for key, task in self._tasks.items() if task.restarting}
        instructions = self._add_restart(waiting) if waiting else []
        instructions += self._release(self._tasks)  # the former JobMaster may not have come to it
        return instructions + self._settle(at)

    def start(self, at: Instant) -> list[Instruction]:
        """Begin to run. Ignored unless the job is CREATED."""
        if self._status is not JobStatus.CREATED:
            return []
        self._transition(JobStatus.RUNNING, at)
        return self._schedule(at)

    def cancel(self, at: Instant) -> list[Instruction]:
        """Cancel the job: CANCELLING until nothing of it runs. Ignored when it is on its way there, or over."""
        if self._status.is_terminal or self._status is JobStatus.CANCELLING:
            return []
        self._transition(JobStatus.CANCELLING, at)
        self._failure = None
        return self._cancel_tasks(at) + self._settle(at)

    def fail(self, error: ErrorInfo, at: Instant) -> list[Instruction]:
        """Fail the job without a restart: something that no restart mends, outside its tasks."""
        if self._status.is_terminal or self._status in (JobStatus.FAILING, JobStatus.CANCELLING):
            return []
        self._record_failure(error)
        return self._begin_to_fail(error, at) + self._settle(at)

    def restart_all(self, at: Instant) -> list[Instruction]:
        """Run all tasks again that have not finished, which is no failure; ignored where nothing may be restarted."""
        if self._status not in ACTIVE:
            return []
        unfinished = {key for key, task in self._tasks.items() if not task.is_finished}
        return self._restart(region_to_restart(self._tasks, unfinished), at) + self._settle(at)

    def suspend(self, at: Instant) -> list[Instruction]:
        """This JobMaster no longer leads the job: its tasks run on, another JobMaster takes them over."""
        if self._status.is_terminal:
            return []
        self._transition(JobStatus.SUSPENDED, at)
        return [JobReachedTerminal(JobStatus.SUSPENDED, None)]

    def restart_due(self, restart_id: RestartID, at: Instant) -> list[Instruction]:
        """The delay of a `ScheduleRestart` is over."""
        self._restarts.mark_due(restart_id)
        return self._settle(at)

    # --------------------------------------------------------------- events: slots

    def slot_assigned(self, request_id: SlotRequestID, slot: AllocatedSlot, at: Instant) -> list[Instruction]:
        """The SlotPool has a slot for the request; if nobody waits for it any more, it is released at once."""
        task = self._waiting_task(request_id)
        if task is None:
            return [ReleaseSlot(request_id)]
        execution = task.current
        execution.slot = slot
        execution.waiting_for = ""
        execution.transition(ExecutionState.DEPLOYING, at.epoch_ms)
        return [DeployTask(slot, self._descriptor(task, slot))]

    def slot_unavailable(self, request_id: SlotRequestID, reason: str, at: Instant) -> list[Instruction]:
        """The request ended without a slot: the job fails, for it has waited for as long as it may."""
        task = self._waiting_task(request_id)
        if task is None:
            return []
        task.current.request_id = None
        error = ErrorInfo(FailureKind.NO_RESOURCE, "NoResourceAvailableException", reason)
        return self._fail_tasks([task], error, at)

    def slot_waiting(self, request_id: SlotRequestID, reason: str) -> None:
        """What the request waits for, in words, to be shown."""
        task = self._waiting_task(request_id)
        if task is not None:
            task.current.waiting_for = reason

    def slot_lost(self, allocation_id: AllocationID, reason: str, at: Instant) -> list[Instruction]:
        """A slot in use is gone, and what ran in it."""
        error = ErrorInfo(FailureKind.TASK_EXECUTOR_LOST, "SlotLostException", reason)
        return self._lose(lambda slot: slot.allocation_id == allocation_id, error, at)

    def task_executor_lost(
        self, resource_id: ResourceID, reason: str, at: Instant, cause: ErrorInfo | None = None
    ) -> list[Instruction]:
        """A TaskExecutor is gone, and what ran there; tell `SlotPool.release_task_executor` first.

        *cause* is what it named itself as it went: it takes its tasks along when its Spark driver is lost.
        """
        error = cause or ErrorInfo(
            FailureKind.TASK_EXECUTOR_LOST, "TaskExecutorLostException", f"TaskExecutor {resource_id} is lost: {reason}"
        )
        return self._lose(lambda slot: slot.slot_id.resource_id == resource_id, error, at)

    # --------------------------------------------------------------- events: tasks

    def task_state_reported(self, report: TaskExecutionState, at: Instant) -> list[Instruction]:
        """A TaskExecutor reports the state of an attempt."""
        task = self._current_task(report.attempt_id)
        if task is None:
            return []
        execution, state = task.current, report.state
        if state.is_terminal:
            execution.exit_status = report.exit_status
            execution.logs = report.logs
            execution.partitions = report.partitions
        if execution.state is ExecutionState.CANCELING:
            # However it ended, it did so while it was being cancelled (as in Flink).
            return self._end(task, ExecutionState.CANCELED, at) + self._settle(at) if state.is_terminal else []
        match state:
            case ExecutionState.FAILED:
                fallback = ErrorInfo(FailureKind.RUNTIME, "UnknownFailure", "the TaskExecutor named no cause")
                return self._fail_tasks([task], report.error or fallback, at)
            case ExecutionState.CANCELED:
                error = ErrorInfo(FailureKind.RUNTIME, "TaskCanceledException", "the task was cancelled by no request")
                return self._fail_tasks([task], report.error or error, at)
            case ExecutionState.FINISHED:
                return self._end(task, ExecutionState.FINISHED, at) + self._settle(at)
            case ExecutionState.INITIALIZING | ExecutionState.RUNNING:
                if state in EXECUTION_TRANSITIONS[execution.state]:
                    execution.transition(state, at.epoch_ms)
                    return self._settle(at) if self._status is JobStatus.RECONCILING else []
        return []

    def task_failed(self, attempt_id: ExecutionAttemptID, error: ErrorInfo, at: Instant) -> list[Instruction]:
        """An attempt failed otherwise than by its TaskExecutor's report, e.g. it could not be deployed."""
        return self.task_state_reported(TaskExecutionState(attempt_id, ExecutionState.FAILED, error), at)

    def attempts_seen_at(self, resource_id: ResourceID) -> frozenset[ExecutionAttemptID]:
        """Return the attempts that a TaskExecutor has reported, and whose end nobody has."""
        return frozenset(
            task.current.attempt_id
            for task in self._tasks.values()
            if task.current.was_seen_at(resource_id) and not task.current.is_expected_at(resource_id)
        )

    def deployments_reported(
        self,
        resource_id: ResourceID,
        attempt_ids: Iterable[ExecutionAttemptID],
        asked_for: frozenset[ExecutionAttemptID],
        at: Instant,
    ) -> list[Instruction]:
        """A TaskExecutor says which attempts it holds, those included whose end it has not been able to report.

        What should run there but is not held has failed; what is held but should not be is cancelled (Flink's
        `ExecutionDeploymentReconciler`). Attempts whose deployment may be under way are left alone.

        Args:
            resource_id: the TaskExecutor.
            attempt_ids: that it held when it answered.
            asked_for: `attempts_seen_at` it when it was asked. What it has begun since may be missing in its answer,
                which is older than the news of that, and may come after it: by another connection.
            at: now.
        """
        held = set(attempt_ids)
        if self._status.is_terminal:
            return []
        gone = (asked_for & self.attempts_seen_at(resource_id)) - held
        missing = [task for task in self._tasks.values() if task.current.attempt_id in gone]
        unknown = [attempt_id for attempt_id in sorted(held) if self._current_task(attempt_id) is None]
        instructions: list[Instruction] = [CancelTask(attempt_id, resource_id) for attempt_id in unknown]
        instructions += self._without_the_awaited(resource_id, held, at)
        if missing:
            error = ErrorInfo(
                FailureKind.RUNTIME, "TaskVanishedException", f"TaskExecutor {resource_id} no longer knows the task"
            )
            instructions += self._fail_tasks(missing, error, at)
        return instructions

    def executions_reported(
        self, resource_id: ResourceID, reports: Iterable[ExecutionReport], at: Instant
    ) -> list[Instruction]:
        """A TaskExecutor has registered and says what it holds: what it runs is adopted, what is not ours cancelled.

        What a former JobMaster had decided to deploy there and the TaskExecutor does not know has never begun: it is
        deployed anew, and that is no failure. (A TaskExecutor whose process was replaced is lost before it reports.)
        """
        if self._status.is_terminal:
            return []
        held = {report.state.attempt_id: report for report in reports}
        instructions: list[Instruction] = []
        for attempt_id, report in held.items():
            task = self._current_task(attempt_id)
            is_over = report.state.state.is_terminal
            if not is_over and (task is None or task.current.state is ExecutionState.CANCELING):
                instructions.append(CancelTask(attempt_id, resource_id))
            elif task is not None:
                instructions += self.task_state_reported(report.state, Instant(at.monotonic_s, report.since_ms))
        return instructions + self._without_the_awaited(resource_id, held, at) + self._settle(at)

    def _without_the_awaited(
        self, resource_id: ResourceID, held: Container[ExecutionAttemptID], at: Instant
    ) -> list[Instruction]:
        """What was to be deployed there by a former JobMaster and is not held."""
        awaited = [
            task
            for task in self._tasks.values()
            if task.current.attempt_id not in held and task.current.is_expected_at(resource_id)
        ]
        instructions: list[Instruction] = []
        for task in awaited:
            instructions += self._end(task, ExecutionState.CANCELED, at)
            if self._status in ACTIVE and not task.restarting:
                self._new_attempt(task, at)
        return instructions + (self._settle(at) if awaited else [])

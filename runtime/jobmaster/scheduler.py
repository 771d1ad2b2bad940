"""What runs next, what is restarted, when a job is over (Flink's `SchedulerBase`, its `ExecutionFailureHandler`).

Pure, as `ExecutionGraph`, whose events end in these decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from runtime.ids import JobVertexID
from runtime.jobgraph.job_graph import ExchangeMode
from runtime.jobmaster.descriptor import TaskDeploymentDescriptor, describe_task_deployment, result_path
from runtime.jobmaster.execution import Task
from runtime.jobmaster.execution_graph_state import ExecutionGraphState
from runtime.jobmaster.execution_state import ErrorInfo, ExecutionState, FailureKind, Instant, JobStatus
from runtime.jobmaster.failover import is_released, region_to_restart, use_retry
from runtime.jobmaster.instructions import (
    CancelSlotRequest,
    CancelTask,
    Instruction,
    JobReachedTerminal,
    ReleasePartitions,
    ReleaseSlot,
    RequestSlot,
    ScheduleRestart,
)
from runtime.jobmaster.slot_pool import AllocatedSlot
from runtime.resourcemanager.slots import TaskManagerLocation

ACTIVE = (JobStatus.RUNNING, JobStatus.RESTARTING, JobStatus.RECONCILING)
"""The states in which what fails may be restarted."""


class Scheduler(ExecutionGraphState):
    """The decisions about a job's tasks."""

    # ------------------------------------------------------------------ scheduling

    def _schedule(self, at: Instant) -> list[Instruction]:
        instructions: list[Instruction] = []
        for task in self._tasks.values():
            execution = task.current
            ready = all(self._tasks[key].is_finished for key in task.chain.inputs)
            if ready and execution.state is ExecutionState.CREATED:
                execution.request_id = self._new_request_id()
                execution.transition(ExecutionState.SCHEDULED, at.epoch_ms)
                instructions.append(RequestSlot(execution.request_id, task.chain.name, self._locations_of_inputs(task)))
        return instructions

    def _locations_of_inputs(self, task: Task) -> tuple[TaskManagerLocation, ...]:
        """Where the results were made that the task reads, each place once."""
        producers = (self._tasks[key].current.slot for key in task.chain.inputs)
        return tuple(dict.fromkeys(slot.location for slot in producers if slot is not None))

    def _descriptor(self, task: Task, slot: AllocatedSlot) -> TaskDeploymentDescriptor:
        results = {
            vertex: result_path(self._results_dir, vertex, self._tasks[key].current.number)
            for key in task.chain.inputs
            for vertex in self._tasks[key].chain.vertices
        }
        return describe_task_deployment(
            self._graph,
            task.chain,
            attempt_id=task.current.attempt_id,
            attempt_number=task.current.number,
            allocation_id=slot.allocation_id,
            results_dir=self._results_dir,
            results=results,
            jobmaster_address=self._jobmaster_address,
        )

    # --------------------------------------------------------------------- failing

    def _lose(self, is_lost: Callable[[AllocatedSlot], bool], error: ErrorInfo, at: Instant) -> list[Instruction]:
        if self._status.is_terminal:
            return []
        lost = [
            task
            for task in self._tasks.values()
            if task.current.state.is_deployed and task.current.slot is not None and is_lost(task.current.slot)
        ]
        return self._fail_tasks(lost, error, at) if lost else []

    def _fail_tasks(self, tasks: Sequence[Task], error: ErrorInfo, at: Instant) -> list[Instruction]:
        """End the attempts of *tasks* for one and the same cause, and restart them or fail the job."""
        instructions: list[Instruction] = []
        failed: list[Task] = []
        for task in tasks:
            if task.current.state is ExecutionState.CANCELING:
                instructions += self._end(task, ExecutionState.CANCELED, at)
                continue
            task.current.error = replace(error, task=task.chain.name, timestamp_ms=error.timestamp_ms or at.epoch_ms)
            instructions += self._end(task, ExecutionState.FAILED, at)
            failed.append(task)
        if failed and failed[0].current.error is not None:
            cause = failed[0].current.error
            self._record_failure(cause)
            if self._status in ACTIVE:
                if use_retry(failed, cause) or self._strategy_allows_restart(cause, at):
                    instructions += self._schedule_restart(failed, cause, at)
                else:
                    instructions += self._begin_to_fail(cause, at)
        return instructions + self._settle(at)

    def _strategy_allows_restart(self, cause: ErrorInfo, at: Instant) -> bool:
        self._strategy.notify_failure(at.monotonic_s)
        wanted = self._restart_user_failures or cause.kind is not FailureKind.USER_CODE
        return cause.kind.is_recoverable and wanted and self._strategy.can_restart(at.monotonic_s)

    def _begin_to_fail(self, error: ErrorInfo, at: Instant) -> list[Instruction]:
        self._transition(JobStatus.FAILING, at)
        self._failure = error
        return self._cancel_tasks(at)

    def _schedule_restart(self, failed: Sequence[Task], cause: ErrorInfo, at: Instant) -> list[Instruction]:
        keys = {task.chain.key for task in failed}
        if cause.lost_result in self._task_of:
            keys.add(self._task_of[cause.lost_result].chain.key)
        return self._restart(region_to_restart(self._tasks, keys), at)

    def _restart(self, region: set[JobVertexID], at: Instant) -> list[Instruction]:
        instructions: list[Instruction] = []
        for key in region:
            task = self._tasks[key]
            task.restarting = True
            if task.current.state is not ExecutionState.CREATED:
                instructions += self._cancel_task(task, at)
        instructions += self._add_restart(region)
        self._transition(self._active_status(), at)
        return instructions

    def _add_restart(self, region: set[JobVertexID]) -> list[Instruction]:
        restart_id = self._new_restart_id()
        self._restarts.add(restart_id, region)
        names = tuple(task.chain.name for key, task in self._tasks.items() if key in region)
        return [ScheduleRestart(restart_id, self._strategy.delay, names)]

    def _restart_what_is_due(self, at: Instant) -> None:
        for region in self._restarts.take_ready(lambda key: not self._tasks[key].is_active):
            self._num_restarts += 1
            for key in region:
                task = self._tasks[key]
                task.restarting = False
                if task.current.state is not ExecutionState.CREATED:
                    self._new_attempt(task, at)
        self._transition(self._active_status(), at)

    # --------------------------------------------------------------------- ending

    def _settle(self, at: Instant) -> list[Instruction]:
        """After any task's end: go on, restart, or end the job."""
        match self._status:
            case JobStatus.RUNNING | JobStatus.RESTARTING | JobStatus.RECONCILING:
                self._restart_what_is_due(at)
                if all(task.is_finished for task in self._tasks.values()):
                    return self._terminate(JobStatus.FINISHED, at)
                return self._schedule(at)
            case JobStatus.FAILING if not any(task.is_active for task in self._tasks.values()):
                return self._terminate(JobStatus.FAILED, at)
            case JobStatus.CANCELLING if not any(task.is_active for task in self._tasks.values()):
                return self._terminate(JobStatus.CANCELED, at)
        return []

    def _terminate(self, status: JobStatus, at: Instant) -> list[Instruction]:
        self._transition(status, at)
        return [JobReachedTerminal(status, self._failure)]

    def _cancel_tasks(self, at: Instant) -> list[Instruction]:
        self._restarts.clear()
        instructions: list[Instruction] = []
        for task in self._tasks.values():
            task.restarting = False
            instructions += self._cancel_task(task, at)
        return instructions

    def _cancel_task(self, task: Task, at: Instant) -> list[Instruction]:
        execution = task.current
        if execution.state in (ExecutionState.CREATED, ExecutionState.SCHEDULED):
            return self._end(task, ExecutionState.CANCELED, at)
        if execution.state is ExecutionState.CANCELING or not execution.state.is_deployed or execution.slot is None:
            return []
        execution.transition(ExecutionState.CANCELING, at.epoch_ms)
        return [CancelTask(execution.attempt_id, execution.slot.slot_id.resource_id)]

    def _end(self, task: Task, state: ExecutionState, at: Instant) -> list[Instruction]:
        """Bring the present attempt to its end, and let go of its slot or its request for one."""
        execution = task.current
        execution.transition(state, at.epoch_ms)
        instructions = self._release(task.chain.inputs) if task.is_finished else []
        if execution.request_id is None:
            return instructions
        release = CancelSlotRequest if execution.slot is None else ReleaseSlot
        return [*instructions, release(execution.request_id)]

    def _release(self, keys: Iterable[JobVertexID]) -> list[Instruction]:
        """Let go of what nobody needs any more of these tasks' results."""
        released = [self._tasks[key] for key in keys if is_released(self._tasks, key)]
        paths = [
            result_path(self._results_dir, edge.source, task.current.number)
            for task in released
            for edge in self._graph.edges
            if edge.exchange is ExchangeMode.BLOCKING and edge.source in task.chain.vertices
        ]
        return [ReleasePartitions(tuple(dict.fromkeys(paths)))] if paths else []

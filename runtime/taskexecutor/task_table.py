"""The tasks of a TaskExecutor, and the reports of their states (the other half of Flink's `TaskSlotTable`)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from pathlib import Path

from actors.errors import ActorError
from actors.process.logs import log_context
from actors.rpc.endpoint import RpcEndpoint
from runtime.ids import AllocationID, ExecutionAttemptID, JobID, ResourceID
from runtime.protocol.descriptor import (
    ExecutionReport,
    TaskDeploymentDescriptor,
    TaskExecutionState,
    TaskProgress,
)
from runtime.protocol.errors import GatewayError, NoSuchSessionError
from runtime.protocol.execution_state import ErrorInfo
from runtime.protocol.hand_over import Obstacle
from runtime.protocol.session import SessionAddress
from runtime.retry import retry
from runtime.spark.task.zygote_client import TaskProcess
from runtime.taskexecutor.connections import JobConnections
from runtime.taskexecutor.hand_over import HeldTask, obstacle_of
from runtime.taskexecutor.logs import AttemptLogKeeper
from runtime.taskexecutor.services import TaskServices
from runtime.taskexecutor.task import Task
from runtime.taskexecutor.task_checkpoints import CheckpointResponder, TaskCheckpoints
from runtime.trace_context import TraceContext

ENDED = 1000
"""Number of ended attempts that are remembered: a deployment that was sent again may arrive after the attempt's end."""


class TaskTable:
    """Attempts that run here, and those whose end is not reported yet.

    Args:
        endpoint: the TaskExecutor.
        connections: to the JobMasters that get the reports.
    """

    def __init__(self, endpoint: RpcEndpoint, connections: JobConnections) -> None:
        self._endpoint = endpoint
        self._connections = connections
        self._tasks: dict[ExecutionAttemptID, Task] = {}
        self._runs: dict[ExecutionAttemptID, asyncio.Task[None]] = {}
        self._reports: dict[ExecutionAttemptID, asyncio.Task[None]] = {}
        self._unreported: dict[ExecutionAttemptID, tuple[JobID, ExecutionReport]] = {}
        self._ended: dict[ExecutionAttemptID, None] = {}
        self._holds_back = False
        self._idle = asyncio.Event()
        self._idle.set()

    def __contains__(self, attempt_id: ExecutionAttemptID) -> bool:
        """Return whether the attempt runs here, or has run here."""
        return attempt_id in self._tasks or attempt_id in self._unreported or attempt_id in self._ended

    def __len__(self) -> int:
        """Return the number of attempts that run here."""
        return len(self._tasks)

    @property
    def jobs(self) -> set[JobID]:
        """Jobs of which an attempt runs here."""
        return {task.descriptor.job.job_id for task in self._tasks.values()}

    async def wait_until_idle(self) -> None:
        """Wait until no attempt runs here."""
        await self._idle.wait()

    def start(
        self,
        descriptor: TaskDeploymentDescriptor,
        directory: Path,
        services: TaskServices,
        logs: AttemptLogKeeper,
    ) -> None:
        """Run an attempt that the present JobMaster has deployed; see `Task`."""
        connection = self._connections.find(descriptor.job.job_id)
        self._run(descriptor, directory, services, logs, 0 if connection is None else connection.token.epoch, None)

    def adopt(
        self, held: HeldTask, process: TaskProcess, directory: Path, services: TaskServices, logs: AttemptLogKeeper
    ) -> None:
        """Continue with an attempt of a predecessor, which runs."""
        self._run(held.descriptor, directory, services, logs, held.epoch, (held, process))

    def _run(
        self,
        descriptor: TaskDeploymentDescriptor,
        directory: Path,
        services: TaskServices,
        logs: AttemptLogKeeper,
        epoch: int,
        adopted: tuple[HeldTask, TaskProcess] | None,
    ) -> None:
        job_id, attempt_id = descriptor.job.job_id, descriptor.attempt.attempt_id
        task = Task(
            descriptor,
            directory,
            services,
            lambda state: self._state_entered(job_id, state),
            lambda progress: self._progressed(job_id, progress),
            logs,
            CheckpointResponder(self._connections, job_id),
            epoch,
            adopted,
        )
        self._tasks[attempt_id] = task
        self._idle.clear()
        begins = "starts" if adopted is None else f"runs on in process {adopted[1].pid}"
        self._endpoint.log.info("%s of job %s %s, attempt %s", descriptor.attempt.task_name, job_id, begins, attempt_id)
        self._runs[attempt_id] = run = self._endpoint.spawn(_run(task), f"running {descriptor.attempt.task_name}")
        run.add_done_callback(lambda _: self._runs.pop(attempt_id, None))

    def obstacles(self) -> list[Obstacle]:
        """Return what keeps the attempts from being handed over."""
        found = [obstacle for task in self._tasks.values() if (obstacle := obstacle_of(task.facts)) is not None]
        late = {job_id for job_id, _ in self._unreported.values()}
        found += [Obstacle("the end of a task of it is not reported yet", True, job_id) for job_id in sorted(late)]
        if self._reports and not found:
            found.append(Obstacle("a state of a task is being reported", passes=True))
        return found

    def held(self) -> tuple[HeldTask, ...]:
        """Return what a successor has to know of the attempts, while there are no `obstacles`."""
        return tuple(task.held() for task in self._tasks.values())

    def processes(self) -> list[TaskProcess]:
        """Return the processes of the attempts that have one."""
        return [task.process for task in self._tasks.values() if task.process is not None]

    def executions(self, job_id: JobID) -> tuple[ExecutionReport, ...]:
        """Return reports of a job's attempts that run here or whose end is not reported yet."""
        running = [task.report() for task in self._of_job(job_id)]
        ended = [report for job, report in self._unreported.values() if job == job_id]
        return tuple(running + ended)

    def progress(self, job_id: JobID) -> tuple[TaskProgress, ...]:
        """Return the progress of the running attempts of a job."""
        return tuple(task.progress for task in self._of_job(job_id))

    def process(self, attempt_id: ExecutionAttemptID) -> TaskProcess | None:
        """Return the process of an attempt; None if it does not run here or has none."""
        task = self._tasks.get(attempt_id)
        return None if task is None else task.process

    def checkpoints(self, attempt_id: ExecutionAttemptID) -> TaskCheckpoints | None:
        """Return the part of an attempt in checkpoints; None if it does not run here."""
        task = self._tasks.get(attempt_id)
        return None if task is None else task.checkpoints

    def session(self, job_id: JobID) -> SessionAddress:
        """Return where the Spark Connect session of a job is open; raises `NoSuchSessionError`."""
        for task in self._of_job(job_id):
            if (found := task.session) is not None:
                return found
        raise NoSuchSessionError(f"job {job_id} has no open session on {self._endpoint.name}")

    async def end_session(self, job_id: JobID) -> None:
        """End the attempts of a job that keep a session open, as FINISHED."""
        for task in self._of_job(job_id):
            await task.end_session()

    def cancel(self, attempt_id: ExecutionAttemptID) -> None:
        """Cancel one attempt, if it runs here."""
        task = self._tasks.get(attempt_id)
        if task is not None:
            task.cancel()

    def cancel_job(self, job_id: JobID) -> None:
        """Cancel all attempts of a job."""
        _cancel(self._of_job(job_id))

    def cancel_allocation(self, allocation_id: AllocationID) -> None:
        """Cancel the attempts in the slot of an allocation."""
        _cancel([task for task in self._tasks.values() if task.descriptor.attempt.allocation_id == allocation_id])

    def cancel_all(self) -> None:
        """Cancel all attempts."""
        _cancel(list(self._tasks.values()))

    async def job_ended(self, job_id: JobID) -> None:
        """Wait until no attempt of a job runs."""
        runs = [self._runs[task.descriptor.attempt.attempt_id] for task in self._of_job(job_id)]
        await asyncio.gather(*runs, return_exceptions=True)

    def forget(self, job_id: JobID) -> None:
        """Stop reporting how the job's attempts ended."""
        for attempt_id in [attempt for attempt, (job, _) in self._unreported.items() if job == job_id]:
            del self._unreported[attempt_id]

    def hold_ends_back(self) -> None:
        """From here on, report no end of an attempt before `last_words`."""
        self._holds_back = True

    async def last_words(self, cause: ErrorInfo, timeout: float) -> None:
        """Wait until all attempts have ended; then report these ends, and this TaskExecutor's, to each JobMaster.

        Both at once: a JobMaster that knew only the ends of the attempts would restart its tasks here.

        Args:
            cause: why this TaskExecutor ends.
            timeout: seconds to wait for the tasks, and again for the JobMasters.
        """
        if self._runs:
            await asyncio.wait(self._runs.values(), timeout=timeout)
        told = []
        for job_id in self._connections.jobs():
            connection = self._connections.find(job_id)
            if connection is not None:
                ends = [report.state for job, report in self._unreported.values() if job == job_id]
                told += [connection.gateway.update_task_execution_state(state) for state in ends]
                connection.gateway.disconnect_task_manager(ResourceID(self._endpoint.name), cause)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await asyncio.gather(*told, return_exceptions=True)

    def _of_job(self, job_id: JobID) -> list[Task]:
        return [task for task in self._tasks.values() if task.descriptor.job.job_id == job_id]

    def _state_entered(self, job_id: JobID, state: TaskExecutionState) -> None:
        if state.state.is_terminal:
            task = self._tasks.pop(state.attempt_id)
            if not self._tasks:
                self._idle.set()
            self._endpoint.log.info("%s of job %s is %s", task.descriptor.attempt.task_name, job_id, state.state.value)
            self._unreported[state.attempt_id] = job_id, task.report()
            self._ended[state.attempt_id] = None
            if len(self._ended) > ENDED:
                del self._ended[next(iter(self._ended))]
            if self._holds_back:
                return
        attempt_id = state.attempt_id
        self._reports[attempt_id] = report = self._endpoint.spawn(
            self._report(job_id, state), f"reporting {state.state.value}"
        )
        report.add_done_callback(lambda done: self._forget_report(attempt_id, done))

    def _forget_report(self, attempt_id: ExecutionAttemptID, report: asyncio.Task[None]) -> None:
        if self._reports.get(attempt_id) is report:
            del self._reports[attempt_id]

    async def _report(self, job_id: JobID, state: TaskExecutionState) -> None:
        async def tell() -> None:
            connection = self._connections.find(job_id)
            if connection is not None:
                await connection.gateway.update_task_execution_state(state)

        what = f"telling the JobMaster of job {job_id} of {state.state.value}"
        await retry(tell, (ActorError, GatewayError), what=what, log=self._endpoint.log)
        if state.state.is_terminal:
            self._unreported.pop(state.attempt_id, None)

    def _progressed(self, job_id: JobID, progress: TaskProgress) -> None:
        connection = self._connections.find(job_id)
        if connection is not None:
            connection.gateway.update_task_progress(progress)


def _cancel(tasks: Iterable[Task]) -> None:
    for task in tasks:
        task.cancel()


async def _run(task: Task) -> None:
    """Run an attempt; log lines of it name the job, the attempt and its span."""
    attempt = task.descriptor.attempt
    span = TraceContext.parse(attempt.traceparent)
    ids = {} if span is None else {"trace_id": span.trace_id, "span_id": span.span_id}
    with log_context(job=task.descriptor.job.job_id, attempt=attempt.attempt_id, **ids):
        await task.run()

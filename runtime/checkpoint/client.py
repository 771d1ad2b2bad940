"""What a client asks of a job's checkpoints and savepoints; a part of `runtime.client.ClusterClient`."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from runtime.checkpoint.messages import OperationState, OperationStatus
from runtime.checkpoint.statistics import CheckpointStatsSnapshot
from runtime.gateways.dispatcher import DispatcherGateway
from runtime.ids import JobID, TriggerID
from runtime.jobmaster.execution_state import JobStatus

T = TypeVar("T")

POLL_S = 0.1


class CheckpointClient(ABC):
    """A client of checkpoints. A wish bears a trigger id, and is repeated with it until it is done, whoever leads."""

    @abstractmethod
    def _ask(self, question: Callable[[DispatcherGateway], T]) -> T:
        """Ask the Dispatcher that leads."""

    def trigger_checkpoint(self, job_id: JobID, trigger_id: TriggerID | None = None) -> OperationStatus:
        """Have a job checkpointed, and wait for it; the rest is as in `trigger_savepoint`."""
        wanted = trigger_id or TriggerID.random()
        return self._operation(lambda dispatcher: dispatcher.trigger_checkpoint(job_id, wanted).result())

    def trigger_savepoint(
        self, job_id: JobID, target: Path | None = None, trigger_id: TriggerID | None = None
    ) -> OperationStatus:
        """Make a savepoint of a job, and wait for it.

        Args:
            job_id: the job.
            target: in which directory; None for the cluster's (``execution.checkpointing.savepoint-dir``).
            trigger_id: of the wish; the same again asks what became of it. None for a new one.

        Raises:
            JobNotFoundError, JobAlreadyTerminatedError: there is no such job, or it is over.
        """
        wanted, directory = trigger_id or TriggerID.random(), _directory(target)
        return self._operation(lambda dispatcher: dispatcher.trigger_savepoint(job_id, wanted, directory).result())

    def stop_with_savepoint(
        self, job_id: JobID, target: Path | None = None, *, drain: bool = False, trigger_id: TriggerID | None = None
    ) -> OperationStatus:
        """Stop a job's queries between two batches, make a savepoint, and wait for it; the job then finishes.

        With *drain* the queries first work off what their sources have; the rest is as in `trigger_savepoint`.
        """
        wanted, directory = trigger_id or TriggerID.random(), _directory(target)
        return self._operation(
            lambda dispatcher: dispatcher.stop_with_savepoint(job_id, wanted, directory, drain).result()
        )

    def stop_and_await_end(
        self, job_id: JobID, target: Path | None = None, *, drain: bool = False
    ) -> tuple[OperationStatus, JobStatus | None]:
        """`stop_with_savepoint`, and wait for the end of the job; its state is None where the job goes on."""
        wanted = TriggerID.random()
        while True:
            status = self.stop_with_savepoint(job_id, target, drain=drain, trigger_id=wanted)
            if status.state is not OperationState.COMPLETED:
                return status, None
            job_status = self._ask(lambda dispatcher: dispatcher.request_job_status(job_id).result())
            if job_status.is_globally_terminal:
                return status, job_status
            time.sleep(POLL_S)

    @staticmethod
    def stop_failure(status: OperationStatus, job_status: JobStatus | None) -> str:
        """Return why `stop_and_await_end` has not done all that was asked for; empty where it has."""
        if status.state is not OperationState.COMPLETED:
            return status.error
        if job_status is not JobStatus.FINISHED:
            ended = "goes on" if job_status is None else f"is {job_status.value}"
            return f"savepoint {status.path} is whole, but the job {ended}"
        return (
            "" if status.drained else f"the job is not drained: {'; '.join(status.notes)}; its savepoint: {status.path}"
        )

    def roll_back(
        self, job_id: JobID, target: str | Path, *, new_query_id: bool = False, trigger_id: TriggerID | None = None
    ) -> OperationStatus:
        """Restart a running job from one of its checkpoints or savepoints.

        Args:
            job_id: the job.
            target: a checkpoint's number or ``chk-<number>``, or the directory of a savepoint.
            new_query_id: whether the queries get new ids, so that sinks that remember batches take them again.
            trigger_id: of the wish; the same again is the same rollback. None for a new one.

        Raises:
            JobNotFoundError, JobAlreadyTerminatedError: there is no such job, or it is over.
            CheckpointError: the job cannot go back there, and goes on as before.
        """
        wanted, path = trigger_id or TriggerID.random(), str(target.resolve()) if isinstance(target, Path) else target
        return self._ask(lambda dispatcher: dispatcher.roll_back(job_id, wanted, path, new_query_id).result())

    def checkpoint_statistics(self, job_id: JobID) -> CheckpointStatsSnapshot:
        """The figures of a job's checkpoints; raises `JobNotFoundError`."""
        return self._ask(lambda dispatcher: dispatcher.request_checkpoint_statistics(job_id).result())

    def dispose_savepoint(self, path: Path) -> None:
        """Remove a savepoint; raises `SavepointError` where the directory is none."""
        self._ask(lambda dispatcher: dispatcher.dispose_savepoint(str(path.resolve())).result())

    def _operation(self, ask: Callable[[DispatcherGateway], OperationStatus]) -> OperationStatus:
        while (status := self._ask(ask)).state is OperationState.IN_PROGRESS:
            time.sleep(POLL_S)
        return status


def _directory(target: Path | None) -> str:
    return "" if target is None else str(target.resolve())

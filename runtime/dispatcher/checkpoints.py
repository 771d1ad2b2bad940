"""The Dispatcher's methods on checkpoints and savepoints: to the job's JobMaster, or from what is kept of the job."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable
from pathlib import Path

from actors.rpc.endpoint import RpcEndpoint
from actors.rpc.gateway import rpc
from runtime.checkpoint.errors import CheckpointError
from runtime.checkpoint.messages import OperationState, OperationStatus
from runtime.checkpoint.names import savepoint_name
from runtime.checkpoint.savepoint import dispose_savepoint, read_savepoint
from runtime.checkpoint.statistics import CheckpointStatsSnapshot
from runtime.dispatcher.running_job import RunningJob
from runtime.gateways.errors import JobAlreadyTerminatedError, UnknownOperationError
from runtime.gateways.job_master import JobMasterGateway
from runtime.ids import JobID, TriggerID
from runtime.jobmaster.archived_execution_graph import ArchivedExecutionGraph


class DispatcherCheckpoints(RpcEndpoint):
    """A part of the Dispatcher."""

    _savepoint_dir: Path

    @abstractmethod
    def _running(self, job_id: JobID) -> RunningJob:
        """A job that is not over."""

    @abstractmethod
    def _find(self, job_id: JobID) -> RunningJob:
        """A job that is not over, as far as the archive has not been asked."""

    @abstractmethod
    async def _ended(self, job_id: JobID) -> ArchivedExecutionGraph | None:
        """A job that is over."""

    @rpc
    async def trigger_checkpoint(self, job_id: JobID, trigger_id: TriggerID) -> OperationStatus:
        return await self._operate(job_id, trigger_id, lambda job: job.trigger_checkpoint(trigger_id))

    @rpc
    async def trigger_savepoint(
        self, job_id: JobID, trigger_id: TriggerID, target_directory: str, cancel_job: bool = False
    ) -> OperationStatus:
        return await self._operate(
            job_id,
            trigger_id,
            lambda job: job.trigger_savepoint(trigger_id, target_directory, cancel_job),
            target_directory,
        )

    @rpc
    async def stop_with_savepoint(
        self, job_id: JobID, trigger_id: TriggerID, target_directory: str, drain: bool
    ) -> OperationStatus:
        return await self._operate(
            job_id,
            trigger_id,
            lambda job: job.stop_with_savepoint(trigger_id, target_directory, drain),
            target_directory,
        )

    @rpc
    async def roll_back(self, job_id: JobID, trigger_id: TriggerID, target: str, new_query_id: bool) -> OperationStatus:
        return await self._running(job_id).gateway.roll_back(trigger_id, target, new_query_id)

    @rpc
    async def get_triggered_savepoint_status(self, job_id: JobID, trigger_id: TriggerID) -> OperationStatus:
        known = await self._ended_with(job_id, trigger_id)
        if known is None and await self._ended(job_id) is not None:
            raise UnknownOperationError(f"job {job_id} is over, and no trigger {trigger_id} of it is known")
        return known or await self._find(job_id).gateway.request_operation_status(trigger_id)

    @rpc
    async def dispose_savepoint(self, path: str) -> bool:
        return await self.run_blocking(dispose_savepoint, Path(path))

    @rpc
    async def request_checkpoint_statistics(self, job_id: JobID) -> CheckpointStatsSnapshot:
        archived = await self._ended(job_id)
        if archived is not None:
            return archived.checkpoints
        return await self._find(job_id).gateway.request_checkpoint_statistics()

    async def _operate(
        self,
        job_id: JobID,
        trigger_id: TriggerID,
        ask: Callable[[JobMasterGateway], Awaitable[OperationStatus]],
        target: str | None = None,
    ) -> OperationStatus:
        """Ask the job's JobMaster; of a job that is over, return what became of the wish.

        Args:
            job_id: the job.
            trigger_id: of the wish.
            ask: puts it to the JobMaster, for the first time or once more.
            target: where a savepoint is wished for, empty for the cluster's directory; None for a checkpoint.

        Raises:
            JobNotFoundError: there is no such job.
            JobAlreadyTerminatedError: it is over, and has ended without this wish; names the savepoint that it was
                stopped with, if it was.
        """
        known = await self._ended_with(job_id, trigger_id)
        if known is not None:
            return known
        try:
            running = self._running(job_id)
        except JobAlreadyTerminatedError as error:
            # It may have ended between the two looks, by this very wish.
            known = await self._ended_with(job_id, trigger_id) or await self._written(job_id, trigger_id, target)
            if known is not None:
                return known
            stopped_with = await self._stopped_with(job_id)
            if not stopped_with:
                raise
            raise JobAlreadyTerminatedError(f"{error}: it was stopped with savepoint {stopped_with}") from error
        return await ask(running.gateway)

    async def _written(self, job_id: JobID, trigger_id: TriggerID, target: str | None) -> OperationStatus | None:
        """Find the savepoint of a trigger that the JobMaster that reported the job's end did not know of.

        It was written by a former one, whose answer was lost with it.
        """
        if target is None:
            return None
        parent = Path(target) if target else self._savepoint_dir
        path = parent / savepoint_name(job_id, trigger_id)
        try:
            await self.run_blocking(read_savepoint, path)
        except (CheckpointError, OSError):
            return None
        return OperationStatus(trigger_id, OperationState.COMPLETED, path=str(path))

    async def _stopped_with(self, job_id: JobID) -> str:
        """The savepoint that an ended job was stopped with; empty where it was not."""
        archived = await self._ended(job_id)
        latest = None if archived is None else archived.checkpoints.latest_savepoint
        return (latest.external_path or "") if latest is not None and latest.type.ends_the_job else ""

    async def _ended_with(self, job_id: JobID, trigger_id: TriggerID) -> OperationStatus | None:
        """What became of a trigger of a job that is over by now, for example because it was stopped by it."""
        archived = await self._ended(job_id)
        operations = () if archived is None else archived.checkpoints.operations
        return next((status for status in operations if status.trigger_id == trigger_id), None)

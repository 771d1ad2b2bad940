"""The Dispatcher's methods on checkpoints and savepoints: to the job's JobMaster, or from what is kept of the job."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path

from actors.rpc.endpoint import RpcEndpoint
from actors.rpc.gateway import rpc
from runtime.checkpoint.messages import OperationStatus
from runtime.checkpoint.savepoint import dispose_savepoint
from runtime.checkpoint.statistics import CheckpointStatsSnapshot
from runtime.dispatcher.running_job import RunningJob
from runtime.gateways.errors import UnknownOperationError
from runtime.ids import JobID, TriggerID
from runtime.jobmaster.archived_execution_graph import ArchivedExecutionGraph


class DispatcherCheckpoints(RpcEndpoint):
    """A part of the Dispatcher."""

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
        known = await self._ended_with(job_id, trigger_id)
        return known or await self._running(job_id).gateway.trigger_checkpoint(trigger_id)

    @rpc
    async def trigger_savepoint(self, job_id: JobID, trigger_id: TriggerID, target_directory: str) -> OperationStatus:
        known = await self._ended_with(job_id, trigger_id)
        return known or await self._running(job_id).gateway.trigger_savepoint(trigger_id, target_directory)

    @rpc
    async def stop_with_savepoint(
        self, job_id: JobID, trigger_id: TriggerID, target_directory: str, drain: bool
    ) -> OperationStatus:
        known = await self._ended_with(job_id, trigger_id)
        return known or await self._running(job_id).gateway.stop_with_savepoint(trigger_id, target_directory, drain)

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

    async def _ended_with(self, job_id: JobID, trigger_id: TriggerID) -> OperationStatus | None:
        """What became of a trigger of a job that is over by now, for example because it was stopped by it."""
        archived = await self._ended(job_id)
        operations = () if archived is None else archived.checkpoints.operations
        return next((status for status in operations if status.trigger_id == trigger_id), None)

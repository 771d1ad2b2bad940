"""The JobMaster's methods on checkpoints and savepoints; the base of its endpoint."""

from __future__ import annotations

from actors.rpc.gateway import rpc, rpc_sync
from runtime.checkpoint.errors import CheckpointError
from runtime.checkpoint.messages import (
    AcknowledgeCheckpoint,
    CheckpointOutcome,
    CheckpointTrigger,
    DeclineCheckpoint,
    OperationState,
    OperationStatus,
    SnapshotType,
)
from runtime.checkpoint.statistics import CheckpointStatsSnapshot
from runtime.gateways.errors import JobNotReachableError
from runtime.ids import TriggerID
from runtime.jobmaster.checkpointing import JobCheckpoints
from runtime.jobmaster.execution_graph import ACTIVE
from runtime.jobmaster.job_execution import JobExecution, current_instant


class CheckpointingJob(JobExecution):
    """One job with its checkpoints. Its arguments are those of `JobExecution`."""

    def _advance_checkpoints(self) -> None:
        if self._checkpoints is not None and self._graph is not None:
            self._checkpoints.advance(self._graph.running_tasks())

    def _require_checkpoints(self) -> JobCheckpoints:
        """The job's checkpoints, once its tasks are known: what they were asked before is not known till then."""
        if self._checkpoints is None or self._require_graph().is_reconciling:
            raise JobNotReachableError(f"job {self._job_id} is being recovered; ask again")
        return self._checkpoints

    @rpc
    async def acknowledge_checkpoint(self, ack: AcknowledgeCheckpoint) -> CheckpointOutcome:
        return await self._require_checkpoints().acknowledge(ack)

    @rpc_sync
    def decline_checkpoint(self, decline: DeclineCheckpoint) -> None:
        self._require_checkpoints().decline(decline)

    @rpc
    async def trigger_checkpoint(self, trigger_id: TriggerID) -> OperationStatus:
        return await self._trigger(CheckpointTrigger(trigger_id, SnapshotType.CHECKPOINT))

    @rpc
    async def trigger_savepoint(
        self, trigger_id: TriggerID, target_directory: str, cancel_job: bool = False
    ) -> OperationStatus:
        kind = SnapshotType.SAVEPOINT_CANCEL if cancel_job else SnapshotType.SAVEPOINT
        return await self._trigger(CheckpointTrigger(trigger_id, kind, target_directory))

    @rpc
    async def stop_with_savepoint(self, trigger_id: TriggerID, target_directory: str, drain: bool) -> OperationStatus:
        kind = SnapshotType.SAVEPOINT_TERMINATE if drain else SnapshotType.SAVEPOINT_SUSPEND
        return await self._trigger(CheckpointTrigger(trigger_id, kind, target_directory))

    async def _trigger(self, trigger: CheckpointTrigger) -> OperationStatus:
        status = await self._require_checkpoints().trigger(trigger)
        self._advance_checkpoints()
        return status

    @rpc
    async def roll_back(self, trigger_id: TriggerID, target: str, new_query_id: bool) -> OperationStatus:
        checkpoints = self._require_checkpoints()
        if checkpoints.rollback is None or checkpoints.rollback.trigger_id != trigger_id:
            await checkpoints.roll_back(trigger_id, target, new_query_id)
            graph = self._require_graph()
            if graph.status not in ACTIVE:
                raise CheckpointError(f"job {self._job_id} is {graph.status.value}: it goes back nowhere")
            self.log.warning("job %s goes back to %s", self._job_id, target)
            instructions = graph.restart_all(current_instant())
            self._advance_checkpoints()  # none is begun with what runs now
            await self._written()
            self._do(instructions)
        await self._written()
        await checkpoints.rollback_written()
        return OperationStatus(trigger_id, OperationState.COMPLETED, path=target)

    @rpc_sync
    def request_operation_status(self, trigger_id: TriggerID) -> OperationStatus:
        return self._require_checkpoints().operation(trigger_id)

    @rpc_sync
    def request_checkpoint_statistics(self) -> CheckpointStatsSnapshot:
        self._require_graph()
        return CheckpointStatsSnapshot() if self._checkpoints is None else self._checkpoints.statistics()

"""What the web endpoint asks of checkpoints and savepoints; a part of `runtime.rest.backend`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from runtime.checkpoint.messages import CheckpointTrigger, OperationStatus, SnapshotType
from runtime.checkpoint.statistics import CheckpointStatsSnapshot
from runtime.gateways.dispatcher import DispatcherGateway
from runtime.ids import JobID, TriggerID

T = TypeVar("T")


class CheckpointBackend(Protocol):
    """What the handlers need; the errors are those of `runtime.rest.backend.Backend`."""

    async def checkpoints(self, job_id: JobID) -> CheckpointStatsSnapshot:
        """The figures of a job's checkpoints."""

    async def trigger(self, job_id: JobID, trigger: CheckpointTrigger) -> OperationStatus:
        """Have a checkpoint or savepoint made. Idempotent by trigger id."""

    async def roll_back(self, job_id: JobID, trigger_id: TriggerID, target: str, new_query_id: bool) -> OperationStatus:
        """Have a job go back. Idempotent by trigger id; raises `CheckpointError` where it cannot."""

    async def operation(self, job_id: JobID, trigger_id: TriggerID) -> OperationStatus:
        """What became of that; raises `UnknownOperationError`."""

    async def dispose_savepoint(self, path: str) -> bool:
        """Remove a savepoint; False where there is none. Raises `SavepointError` where something else is there."""


class ClusterCheckpoints(ABC):
    """The part of `ClusterBackend`."""

    @abstractmethod
    async def _ask_dispatcher(self, question: Callable[[DispatcherGateway], Awaitable[T]]) -> T:
        """Ask the Dispatcher that leads, again and again for a while."""

    async def checkpoints(self, job_id: JobID) -> CheckpointStatsSnapshot:
        return await self._ask_dispatcher(lambda dispatcher: dispatcher.request_checkpoint_statistics(job_id))

    async def trigger(self, job_id: JobID, trigger: CheckpointTrigger) -> OperationStatus:
        wanted, target, kind = trigger.trigger_id, trigger.target, trigger.type

        def ask(dispatcher: DispatcherGateway) -> Awaitable[OperationStatus]:
            match kind:
                case SnapshotType.CHECKPOINT:
                    return dispatcher.trigger_checkpoint(job_id, wanted)
                case SnapshotType.SAVEPOINT | SnapshotType.SAVEPOINT_CANCEL:
                    cancel_job = kind is SnapshotType.SAVEPOINT_CANCEL
                    return dispatcher.trigger_savepoint(job_id, wanted, target, cancel_job)
                case SnapshotType.SAVEPOINT_SUSPEND | SnapshotType.SAVEPOINT_TERMINATE:
                    return dispatcher.stop_with_savepoint(job_id, wanted, target, kind.drains)

        return await self._ask_dispatcher(ask)

    async def roll_back(self, job_id: JobID, trigger_id: TriggerID, target: str, new_query_id: bool) -> OperationStatus:
        return await self._ask_dispatcher(
            lambda dispatcher: dispatcher.roll_back(job_id, trigger_id, target, new_query_id)
        )

    async def operation(self, job_id: JobID, trigger_id: TriggerID) -> OperationStatus:
        return await self._ask_dispatcher(
            lambda dispatcher: dispatcher.get_triggered_savepoint_status(job_id, trigger_id)
        )

    async def dispose_savepoint(self, path: str) -> bool:
        asked = 0

        def ask(dispatcher: DispatcherGateway) -> Awaitable[bool]:
            nonlocal asked
            asked += 1
            return dispatcher.dispose_savepoint(path)

        return await self._ask_dispatcher(ask) or asked > 1  # the first answer may have been lost

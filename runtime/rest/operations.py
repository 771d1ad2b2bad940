"""What was asked for through this endpoint and takes its time (Flink's `CompletedOperationCache`)."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from runtime.ids import JobID, TriggerID
from runtime.protocol.checkpoints import CheckpointTrigger, OperationState, OperationStatus
from runtime.protocol.errors import JobAlreadyTerminatedError, UnknownOperationError
from runtime.rest.backend import Backend
from runtime.rest.errors import RestError
from runtime.rest.snapshots import noticed

KEPT = 256
"""How many of each kind are remembered."""


@dataclass(slots=True)
class _Triggered:
    trigger: CheckpointTrigger
    ended: OperationStatus | None = None


class TriggeredOperations:
    """Checkpoints and savepoints of jobs, by their trigger ids.

    The JobMaster knows what became of them. Its successor does not know those that were under way: then they are
    triggered again by the same id, as a client of the Dispatcher does. So an endpoint that was asked to make a
    savepoint sees to it for as long as somebody asks it what became of it.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[JobID, TriggerID], _Triggered] = OrderedDict()

    async def begin(self, backend: Backend, job_id: JobID, trigger: CheckpointTrigger) -> None:
        """Have it made; the same id again changes nothing."""
        key = (job_id, trigger.trigger_id)
        if key in self._known:
            return
        await backend.trigger(job_id, trigger)
        self._known.setdefault(key, _Triggered(trigger))
        while len(self._known) > KEPT:
            self._known.popitem(last=False)

    def find(self, job_id: JobID, trigger_id: TriggerID) -> CheckpointTrigger | None:
        """What was asked for with an id; None where it was asked elsewhere, or long ago."""
        known = self._known.get((job_id, trigger_id))
        return None if known is None else known.trigger

    async def status(self, backend: Backend, job_id: JobID, trigger_id: TriggerID) -> OperationStatus:
        """What became of it so far; raises `UnknownOperationError` where nobody knows of it."""
        known = self._known.get((job_id, trigger_id))
        if known is None:
            return await backend.operation(job_id, trigger_id)
        if known.ended is not None:
            return known.ended
        try:
            status = await backend.operation(job_id, trigger_id)
        except UnknownOperationError:
            try:
                status = await backend.trigger(job_id, known.trigger)
            except JobAlreadyTerminatedError as error:
                status = OperationStatus(trigger_id, OperationState.FAILED, error=str(error))
        if status.state is not OperationState.IN_PROGRESS and not known.trigger.type.ends_the_job:
            known.ended = status  # the end of one that stops the job may still be undone
        return status


class Disposals:
    """Removals of savepoints, by their trigger ids."""

    def __init__(self) -> None:
        self._tasks: OrderedDict[TriggerID, asyncio.Task[None]] = OrderedDict()

    def begin(self, trigger_id: TriggerID, work: Coroutine[Any, Any, None]) -> None:
        """Do the work in the background; the same id again changes nothing. Raises RestError of status 503."""
        if trigger_id in self._tasks:
            work.close()
            return
        if len(self._tasks) >= KEPT:
            ended = next((key for key, task in self._tasks.items() if task.done()), None)
            if ended is None:
                work.close()
                raise RestError(503, f"{KEPT} savepoints are being disposed of; ask again later")
            del self._tasks[ended]
        task = self._tasks[trigger_id] = asyncio.ensure_future(work)
        task.add_done_callback(noticed)  # who asked for it may never ask what became of it

    def find(self, trigger_id: TriggerID) -> asyncio.Task[None] | None:
        """The work; None where it was asked for elsewhere, or long ago."""
        return self._tasks.get(trigger_id)

"""What carries out a job's checkpoints: the instructions of `CheckpointCoordinator`, and what follows from them.

The part of the JobMaster between the coordinator, the tasks, the store of completed checkpoints, and the files.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from actors.errors import ActorError, WireError
from actors.rpc.endpoint import FencedRpcEndpoint
from conf.configuration import Configuration
from conf.options import CheckpointingOptions
from runtime.checkpoint.configuration import CheckpointCoordinatorConfiguration
from runtime.checkpoint.coordinator import CheckpointCoordinator
from runtime.checkpoint.errors import CheckpointError
from runtime.checkpoint.instructions import (
    AllocateCheckpointID,
    CheckpointInstruction,
    DiscardSnapshots,
    FailJob,
    NotifyAborted,
    NotifyComplete,
    StoreCheckpoint,
    TriggerTasks,
)
from runtime.checkpoint.messages import (
    FORMAT_VERSION,
    AcknowledgeCheckpoint,
    CheckpointMetadata,
    CheckpointOutcome,
    CheckpointTrigger,
    DeclineCheckpoint,
    JobManagerTaskRestore,
    OperationStatus,
    TriggerCheckpoint,
)
from runtime.checkpoint.pending import CheckpointTask, RunningTasks
from runtime.checkpoint.retained import write_metadata
from runtime.checkpoint.snapshot import discard_snapshot
from runtime.checkpoint.statistics import CheckpointStatsSnapshot
from runtime.gateways.errors import GatewayError, UnknownOperationError
from runtime.ha.checkpoint_counter import CheckpointIDCounter
from runtime.ha.checkpoint_store import CompletedCheckpointStore
from runtime.ha.errors import HaError, LeadershipLostError, StateCorruptedError, StateHandleConflictError
from runtime.ha.model import LeaderTerm
from runtime.ha.services import HighAvailabilityServices
from runtime.ids import JobVertexID, TriggerID
from runtime.jobgraph.codec import decode, encode
from runtime.jobgraph.job_graph import JobGraph
from runtime.jobmaster.deployment import TaskManagers
from runtime.jobmaster.execution_state import Instant, JobStatus
from runtime.jobmaster.rollback import JobRollbacks, Rollback
from runtime.jobmaster.savepoints import SavepointWriter

RETRY_S = 0.5


class JobCheckpoints:
    """The checkpoints of one job, under one leadership of its JobMaster; everything runs on that's main thread.

    Args:
        endpoint: the JobMaster.
        job: the job.
        term: the leadership.
        ha: has the store and the counter.
        configuration: the cluster's.
        task_managers: who is told.
        now: the time.
        fail_job: called when too many checkpoints have failed, with why.
    """

    def __init__(
        self,
        endpoint: FencedRpcEndpoint,
        job: JobGraph,
        term: LeaderTerm,
        ha: HighAvailabilityServices,
        configuration: Configuration,
        task_managers: TaskManagers,
        now: Callable[[], Instant],
        fail_job: Callable[[str], None],
    ) -> None:
        self._endpoint = endpoint
        self._job = job
        self._term = term
        self._task_managers = task_managers
        self._now = now
        self._fail_job = fail_job
        settings = CheckpointCoordinatorConfiguration.of(configuration)
        self._settings = settings
        self._directory = configuration.get(CheckpointingOptions.CHECKPOINTS_DIR) / job.job_id
        self._coordinator = CheckpointCoordinator(settings, job.job_id, str(self._directory), now())
        factory = ha.checkpoint_recovery_factory()
        retained = configuration.get(CheckpointingOptions.NUM_RETAINED)
        self._store: CompletedCheckpointStore = factory.completed_checkpoint_store(job.job_id, retained)
        self._counter: CheckpointIDCounter = factory.checkpoint_id_counter(job.job_id)
        self._savepoints = SavepointWriter(job, configuration)
        self._rollbacks = JobRollbacks(job.job_id, self._directory)
        self._initial: JobManagerTaskRestore | None = None
        self._storing = asyncio.Lock()
        self._work: set[asyncio.Task[None]] = set()
        self._closed = False

    # --------------------------------------------------------------- the beginning and the end

    async def recover(self, rollback: Rollback | None = None, *, is_new: bool = False) -> str:
        """Find what former JobMasters have stored, and what the job begins from; raises HaError.

        Args:
            rollback: the last one, as it was written down.
            is_new: whether there have been no former JobMasters.

        Returns:
            why the savepoint that the job is to begin from cannot be used; empty if it can, or there is none.
        """
        completed = []
        for checkpoint_id, data in [] if is_new else await self._recover_store():
            try:
                completed.append(_decode(data))
            except WireError as error:
                self._endpoint.log.error("checkpoint %d is passed over: %s", checkpoint_id, error)
        self._coordinator.recovered(completed)
        if not is_new or self._directory.exists():  # as it is when Redis has lost what it knew of the job
            await self._endpoint.run_blocking(self._sweep, {item.path for item in completed})
        if self._job.savepoint is not None and not completed:
            try:
                self._initial = await self._endpoint.run_blocking(self._savepoints.read, self._job.savepoint)
            except (CheckpointError, OSError) as error:
                return str(error)
        if rollback is not None:
            try:
                latest_id = completed[-1].checkpoint_id if completed else 0
                await self._endpoint.run_blocking(self._rollbacks.take_up, rollback, latest_id)
            except (CheckpointError, OSError) as error:
                return str(error)
        return ""

    async def _recover_store(self) -> list[tuple[int, bytes]]:
        try:
            found = await self._store.recover(self._term)
        except StateCorruptedError as error:
            # The live state of the queries is what counts; a checkpoint is for when that is lost.
            self._endpoint.log.error("the job goes on without its checkpoints: %s", error)
            return []
        return [(item.checkpoint_id, item.data) for item in found]

    def _sweep(self, kept: set[str]) -> None:
        """Remove the directories of checkpoints that former JobMasters had begun."""
        for path in self._directory.glob("chk-*"):
            if str(path) not in kept:
                self._remove_tree(path)

    def _remove_tree(self, path: Path) -> None:
        """As far as that is possible: what is left fails no job, but whoever misses the room finds it in the log."""
        shutil.rmtree(path, ignore_errors=True)
        if path.exists():
            self._endpoint.log.warning("%s could not be removed wholly: remove it by hand", path)

    async def finish(self, status: JobStatus) -> None:
        """The job is over: wait for a savepoint that is being written, then remove all that is the job's own.

        Completed checkpoints stay where they are to outlive a job that has come to that end.
        """
        self._do(self._coordinator.close("the job is over", self._now()))
        while self._work:
            await asyncio.wait(self._work)
        self.close()
        kept = self._coordinator.completed if self._settings.retains(status) else ()
        if not kept:
            await self._endpoint.run_blocking(self._remove_tree, self._directory)
            return
        self._endpoint.log.info("of job %s %s are retained", self._job.job_id, ", ".join(sorted(kept)))
        for path in self._directory.iterdir():
            if path.name not in kept:
                await self._endpoint.run_blocking(self._remove_tree, path)

    def close(self) -> None:
        """Leave the job to the next JobMaster."""
        self._closed = True
        for work in self._work:
            work.cancel()

    # ------------------------------------------------------------------------------- questions

    def statistics(self) -> CheckpointStatsSnapshot:
        """The figures now."""
        return self._coordinator.statistics(self._now())

    def restore(self, task_key: JobVertexID) -> JobManagerTaskRestore | None:
        """What a task that is about to be deployed is given to begin with."""
        self._coordinator.stop_undone()
        latest = self._coordinator.latest
        rolled_back = self._rollbacks.restore(task_key, latest)
        if rolled_back is not None and self._rollbacks.last is not None:
            self._coordinator.restored(rolled_back.checkpoint_id, self._rollbacks.last.shown, self._now())
            return rolled_back
        if latest is None:
            if self._initial is not None:
                self._coordinator.restored(self._initial.checkpoint_id, self._initial.savepoint, self._now())
            return self._initial
        own = [task for task in latest.tasks if task.task_key == task_key]
        if not own:
            return None
        self._coordinator.restored(latest.checkpoint_id, latest.path, self._now())
        return JobManagerTaskRestore(latest.checkpoint_id, own[0].queries)

    @property
    def rollback(self) -> Rollback | None:
        """The last rollback, which a successor has to know."""
        return self._rollbacks.last

    async def roll_back(self, trigger_id: TriggerID, target: str, new_query_id: bool) -> None:
        """Decide that the job goes back; the caller has it written down, and the tasks restarted.

        See `JobRollbacks.prepare`, also for what it raises.
        """
        async with self._storing:  # or what it goes back to might be subsumed meanwhile
            prepared = await self._endpoint.run_blocking(self._rollbacks.prepare, trigger_id, target, new_query_id)
            decided = replace(prepared, after=self._coordinator.last_number)
            await self._endpoint.run_blocking(self._rollbacks.take_up, decided)

    def operation(self, trigger_id: TriggerID) -> OperationStatus:
        """What became of a trigger; raises `UnknownOperationError`."""
        status = self._coordinator.operation(trigger_id)
        if status is None:
            raise UnknownOperationError(f"job {self._job.job_id} knows of no trigger {trigger_id}")
        return status

    # ---------------------------------------------------------------------------------- events

    def advance(self, running: RunningTasks) -> None:
        """The time has passed, and these tasks run."""
        if not self._closed:
            self._do(self._coordinator.advance(running, self._now()))

    async def trigger(self, trigger: CheckpointTrigger) -> OperationStatus:
        """Somebody wishes for a checkpoint or savepoint; the same again is a question what became of it."""
        known = self._coordinator.operation(trigger.trigger_id)
        if known is not None:
            return known
        there = await self._endpoint.run_blocking(self._savepoints.find, trigger)
        if there:
            return self._coordinator.already_there(trigger, there)
        return self._coordinator.trigger(trigger, self._now())

    async def acknowledge(self, ack: AcknowledgeCheckpoint) -> CheckpointOutcome:
        """A task has done its part."""
        if self._coordinator.outcome(ack.checkpoint_id) is None:
            there = await self._endpoint.run_blocking(self._savepoints.find, ack.trigger)
            if there:  # written by a former JobMaster, whose answer was lost
                self._coordinator.already_there(ack.trigger, there)
                return CheckpointOutcome.COMPLETED
        outcome, instructions = self._coordinator.acknowledged(ack, self._now())
        self._do(instructions)
        return outcome

    def decline(self, decline: DeclineCheckpoint) -> None:
        """A task cannot do its part."""
        self._endpoint.log.warning("checkpoint %d was declined: %s", decline.checkpoint_id, decline.reason)
        self._do(self._coordinator.declined(decline, self._now()))

    # ---------------------------------------------------------------------------- instructions

    def _do(self, instructions: Sequence[CheckpointInstruction]) -> None:
        for instruction in instructions:
            match instruction:
                case AllocateCheckpointID():
                    self._spawn(self._allocate(), "numbering a checkpoint")
                case TriggerTasks():
                    for task in instruction.tasks:
                        self._spawn(self._trigger(instruction, task), f"triggering {task.name}")
                case StoreCheckpoint():
                    self._spawn(self._make_last(instruction), "storing a checkpoint")
                case NotifyComplete():
                    for task in instruction.tasks:
                        gateway = self._task_managers.gateway(task.resource_id)
                        if gateway is not None:
                            gateway.notify_checkpoint_complete(task.attempt_id, instruction.checkpoint_id)
                case NotifyAborted():
                    for task in instruction.tasks:
                        gateway = self._task_managers.gateway(task.resource_id)
                        if gateway is not None:
                            gateway.notify_checkpoint_aborted(task.attempt_id, instruction.checkpoint_id)
                case DiscardSnapshots():
                    self._spawn(self._discard(instruction), "removing the files of a checkpoint")
                case FailJob():
                    self._fail_job(instruction.reason)

    def _spawn(self, work: Coroutine[Any, Any, None], what: str) -> None:
        task = self._endpoint.spawn(work, what)
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    async def _allocate(self) -> None:
        while True:
            try:
                number = await self._counter.get_and_increment(self._term)
            except LeadershipLostError as error:
                self._endpoint.log.info("no checkpoint is begun: %s", error)
                return
            except HaError as error:
                self._endpoint.log.warning("a checkpoint waits for its number: %s", error)
                await asyncio.sleep(RETRY_S)  # a number may be left out, none is given out twice
            else:
                break
        self._do(self._coordinator.id_allocated(number, self._now()))

    async def _trigger(self, instruction: TriggerTasks, task: CheckpointTask) -> None:
        number, token = instruction.checkpoint_id, self._endpoint.fencing_token
        message = TriggerCheckpoint(
            task.attempt_id, number, instruction.trigger, instruction.directory, self._settings.timeout_s
        )
        reason = f"TaskExecutor {task.resource_id} is gone"
        while self._coordinator.outcome(number) is CheckpointOutcome.PENDING and not self._closed:
            gateway = self._task_managers.gateway(task.resource_id)
            if gateway is None or token is None:
                break
            try:
                await gateway.trigger_checkpoint(self._job.job_id, message, token)
            except GatewayError as error:
                reason = str(error)
                break
            except ActorError as error:
                reason = str(error)
                await asyncio.sleep(RETRY_S)
            else:
                return
        self.decline(DeclineCheckpoint(number, task.attempt_id, reason))

    async def _make_last(self, instruction: StoreCheckpoint) -> None:
        """One at a time: the store takes checkpoints in the order of their numbers."""
        number = instruction.metadata.checkpoint_id
        subsumed: list[CheckpointMetadata] = []
        path = instruction.metadata.path
        async with self._storing:
            try:
                if instruction.trigger.type.is_savepoint:
                    path = await self._endpoint.run_blocking(
                        self._savepoints.write, instruction.trigger, instruction.metadata
                    )
                else:
                    await self._endpoint.run_blocking(write_metadata, instruction.metadata)
                    subsumed = await self._add(instruction.metadata)
            except LeadershipLostError as error:
                self._endpoint.log.info("checkpoint %d is left: %s", number, error)
                return  # whether it is in the store the next JobMaster finds out
            except (CheckpointError, StateHandleConflictError, OSError) as error:
                instructions = self._coordinator.store_failed(number, str(error), self._now())
            else:
                self._endpoint.log.info("checkpoint %d of job %s is complete: %s", number, self._job.job_id, path)
                instructions = self._coordinator.stored(number, path, subsumed, self._now())
        self._do(instructions)

    async def _add(self, metadata: CheckpointMetadata) -> list[CheckpointMetadata]:
        """Add a checkpoint to the store, and again for as long as it is not known whether it is there."""
        complained = False
        while True:
            try:
                removed = await self._store.add(metadata.checkpoint_id, encode(metadata), self._term)
                return [_decode(item.data) for item in removed]
            except (LeadershipLostError, StateHandleConflictError):
                raise
            except HaError as error:
                if not complained:
                    self._endpoint.log.warning("checkpoint %d waits to be stored: %s", metadata.checkpoint_id, error)
                complained = True
            await asyncio.sleep(RETRY_S)

    async def _discard(self, instruction: DiscardSnapshots) -> None:
        try:
            await self._endpoint.run_blocking(self._remove, instruction)
        except (CheckpointError, OSError) as error:
            # It goes with the job at the latest.
            self._endpoint.log.warning("checkpoint %d was not removed wholly: %s", instruction.checkpoint_id, error)

    def _remove(self, instruction: DiscardSnapshots) -> None:
        for query in instruction.queries:
            discard_snapshot(query)
        self._remove_tree(Path(instruction.directory))


def _decode(data: bytes) -> CheckpointMetadata:
    """A stored checkpoint; raises WireError."""
    metadata = decode(data, CheckpointMetadata)
    if metadata.format_version != FORMAT_VERSION:
        raise WireError(f"it is in format {metadata.format_version}, this version reads {FORMAT_VERSION}")
    return metadata

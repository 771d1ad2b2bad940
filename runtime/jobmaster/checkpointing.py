"""Carries out a job's checkpoints: the instructions of `CheckpointCoordinator`, and their consequences.

It is the part of the JobMaster between the coordinator, the tasks, the store of completed checkpoints, and the files.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import shutil
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from actors.errors import ActorError, FencingError, WireError
from conf.configuration import Configuration
from conf.files import make_private, sync_directory, write_private
from conf.options import CheckpointingOptions
from conf.options.checkpointing import ExternalizedCheckpointRetention
from runtime.checkpoint.alignment import alignment_problems
from runtime.checkpoint.configuration import CheckpointCoordinatorConfiguration
from runtime.checkpoint.coordinator import (
    AllocateCheckpointID,
    CheckpointCoordinator,
    CheckpointInstruction,
    CheckpointTask,
    DiscardSnapshots,
    FailJob,
    NotifyAborted,
    NotifyComplete,
    RunningTasks,
    StoreCheckpoint,
    TriggerTasks,
)
from runtime.checkpoint.errors import CheckpointError, MisalignedError
from runtime.checkpoint.handover import pause_s
from runtime.checkpoint.retained import CARRIED, PREFIX, carry_into, is_checkpoint, number_of, write_metadata
from runtime.checkpoint.snapshot import discard_snapshot
from runtime.feature_level import FeatureLevel, Format, can_read, lowest_level, readable_versions
from runtime.ha.checkpoint_store import (
    INITIAL_CHECKPOINT_ID,
    CheckpointIDCounter,
    CompletedCheckpoint,
    CompletedCheckpointStore,
)
from runtime.ha.errors import HaError, LeadershipLostError, StateHandleConflictError
from runtime.ha.running_jobs import JobSchedulingStatus, RunningJobsRegistry
from runtime.ha.services import HighAvailabilityServices
from runtime.ids import JobID, JobVertexID, TriggerID
from runtime.jobgraph.codec import decode, encode
from runtime.jobgraph.job_graph import JobGraph, SavepointRestoreSettings
from runtime.jobmaster.deployment import TaskManagers
from runtime.jobmaster.savepoints import CarriedOver, Rollback, SavepointWriter, TaskRestores, carry_over
from runtime.leadership import LeaderEndpoint
from runtime.protocol.checkpoint_statistics import CheckpointStatsSnapshot
from runtime.protocol.checkpoints import (
    NO_TOTALS,
    AcknowledgeCheckpoint,
    CheckpointMetadata,
    CheckpointOutcome,
    CheckpointTotals,
    CheckpointTrigger,
    DeclineCheckpoint,
    JobManagerTaskRestore,
    OperationStatus,
    SnapshotType,
    TriggerCheckpoint,
)
from runtime.protocol.errors import GatewayError, JobNotReachableError, UnknownOperationError
from runtime.protocol.execution_state import Instant, JobStatus
from runtime.protocol.leader import LeaderTerm
from runtime.retry import retry

LOOK_S = 0.05
"""Seconds between two looks whether the job has ended whose state this one takes over."""

REMOVED = ".removed"
"""How the name of a directory ends while it is removed; it begins with a dot."""

_FORMER = "retained-before"
"""Directory of the note that names the checkpoints of an earlier job of the same id."""

_SETTINGS = ("execution.checkpointing.", "state.")
"""How the keys of a job's settings begin that its figures show."""


class JobCheckpoints:
    """The checkpoints of one job, under one leadership of its JobMaster; all of it runs on the JobMaster's main thread.

    Args:
        endpoint: the JobMaster.
        job: the job.
        term: the leadership.
        ha: has the store and the counter.
        configuration: the cluster's.
        task_managers: TaskExecutors that take part.
        now: returns the time.
        fail_job: called with the reason when too many checkpoints have failed.
        cancel_job: called when the savepoint that cancels the job is complete, before the tasks are notified.
        written: returns once the state of the execution is written under the leadership; raises `JobNotReachableError`
            if that is over.
        on_change: called when work has ended after which `advance` may be able to do more.
        level: returns the feature level of the cluster, at which checkpoints and savepoints are written.
    """

    def __init__(
        self,
        endpoint: LeaderEndpoint,
        job: JobGraph,
        term: LeaderTerm,
        ha: HighAvailabilityServices,
        configuration: Configuration,
        task_managers: TaskManagers,
        now: Callable[[], Instant],
        fail_job: Callable[[str], None],
        cancel_job: Callable[[], None],
        written: Callable[[], Awaitable[None]],
        on_change: Callable[[], None],
        level: Callable[[], FeatureLevel] = lowest_level,
    ) -> None:
        self._endpoint = endpoint
        self._on_change = on_change
        self._level = level
        self._job = job
        self._term = term
        self._task_managers = task_managers
        self._now = now
        self._fail_job = fail_job
        self._cancel_job = cancel_job
        self._written = written
        settings = CheckpointCoordinatorConfiguration.of(configuration)
        self._settings = settings
        self._directory = configuration.get(CheckpointingOptions.CHECKPOINTS_DIR) / job.job_id
        self._coordinator = CheckpointCoordinator(settings, job.job_id, str(self._directory), now())
        factory = ha.checkpoint_recovery_factory()
        retained = configuration.get(CheckpointingOptions.NUM_RETAINED)
        self._store: CompletedCheckpointStore = factory.completed_checkpoint_store(job.job_id, retained)
        self._counter: CheckpointIDCounter = factory.checkpoint_id_counter(job.job_id)
        self._running_jobs: RunningJobsRegistry = ha.running_jobs_registry()
        self._savepoints = SavepointWriter(job, configuration)
        self._restores = TaskRestores(job.job_id, self._directory, term.epoch)
        self._storing = asyncio.Lock()
        self._preparing: dict[TriggerID, asyncio.Future[str]] = {}
        self._work: set[asyncio.Task[None]] = set()
        self._completing: set[asyncio.Task[None]] = set()
        self._taking_over: asyncio.Task[None] | None = None
        self._closed = False
        self._former: frozenset[str] = frozenset()
        self._started: dict[int, frozenset[str]] = {}
        """Queries that had taken their state from the job's start when a checkpoint was triggered, by its number."""

    # --------------------------------------------------------------- the beginning and the end

    async def recover(
        self, rollback: Rollback | None = None, totals: CheckpointTotals = NO_TOTALS, *, is_new: bool = False
    ) -> str:
        """Find the checkpoints of former JobMasters, and the state that the job starts from; raises HaError.

        Args:
            rollback: the last one, as it was written.
            totals: the counters, as they were written.
            is_new: whether there have been no former JobMasters.

        Raises:
            FencingError: the leadership may be over; nothing was removed.

        Returns:
            why the job cannot start, for example because its savepoint cannot be used; empty if it can.
        """
        # Before the leadership is checked: a checkpoint that starts later is the next JobMaster's, and is not swept.
        begun = await self._endpoint.run_blocking(self._begun)
        self._endpoint.act(self._term)
        completed, unreadable = self._decoded([] if is_new else await self._store.recover(self._term))
        # A checkpoint that cannot be read is still in the store: its files stay until a later one subsumes it.
        kept = {item.path for item in completed} | {str(self._directory / f"{PREFIX}{number}") for number in unreadable}
        others = [path for path in begun if str(path) not in kept]
        problem = await self._find_former(others, is_new=is_new) if others else ""
        abandoned = [path for path in others if path.name not in self._former]
        self._coordinator.recovered(completed, totals, len(abandoned), unreadable)
        if abandoned:
            await self._endpoint.run_blocking(self._sweep, abandoned)
        if problem:
            return problem
        if self._job.savepoint is not None and self._job.savepoint.after and not completed:
            self._restores.initial = self._savepoints.pending(self._job.savepoint)
        elif self._job.savepoint is not None and not completed:
            try:
                self._restores.initial = await self._initial(self._job.savepoint, is_new=is_new)
            except (CheckpointError, OSError) as error:
                return str(error)
        elif self._job.savepoint is not None:
            self._restores.initial = await self._endpoint.run_blocking(self._savepoints.beside_checkpoints)
        if rollback is not None:
            try:
                latest_id = completed[-1].checkpoint_id if completed else 0
                self._restores.take_up(await self._endpoint.run_blocking(self._restores.read, rollback, latest_id))
            except (CheckpointError, OSError) as error:
                return str(error)
            await self.rollback_written()
        return ""

    def begin(self) -> None:
        """Begin to wait for the job whose state this one takes over, if there is one that may not have ended."""
        settings, initial = self._job.savepoint, self._restores.initial
        if settings is not None and initial is not None and initial.pending:
            self._taking_over = self._endpoint.spawn(self._take_over(settings), "taking over the state of a job")

    async def _take_over(self, settings: SavepointRestoreSettings) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while not await self._has_ended(JobID(settings.after)):  # noqa: ASYNC110  # of another process
            await asyncio.sleep(pause_s(loop.time() - begun, LOOK_S))
        try:
            self._restores.initial = await self._endpoint.run_blocking(self._savepoints.take_over, settings)
        except (CheckpointError, OSError) as error:
            if not self._closed:
                self._fail_job(str(error))

    async def _has_ended(self, job_id: JobID) -> bool:
        """Return whether a job has ended: then no process of it runs any more."""
        try:
            entry = await self._running_jobs.entry(job_id)
        except HaError as error:
            self._endpoint.log.info("whether job %s has ended is asked again: %s", job_id, error)
            return False
        return entry is None or entry.status is JobSchedulingStatus.DONE

    async def _initial(self, settings: SavepointRestoreSettings, *, is_new: bool) -> JobManagerTaskRestore:
        """Return the state that the job starts from: as a former JobMaster has read it, or from the savepoint."""
        left = None if is_new else await self._endpoint.run_blocking(self._savepoints.begun_from)
        if left is not None:
            return left
        initial = await self._read_initial(settings)
        self._endpoint.act(self._term)
        try:
            await self._endpoint.run_blocking(self._savepoints.note_begin, initial)
        except OSError as error:
            text = "job %s needs %s until it has a checkpoint: %s"
            self._endpoint.log.warning(text, self._job.job_id, settings.path, error)
        return initial

    async def _read_initial(self, settings: SavepointRestoreSettings) -> JobManagerTaskRestore:
        """Read the savepoint that the job starts from. While its own job runs, the queries here get new ids.

        That job may be between two attempts, so that it does not hold the lease of its location.
        """
        owner, initial = await self._endpoint.run_blocking(self._savepoints.read, settings)
        if initial.new_query_id is None and owner != self._job.job_id:
            entry = await self._running_jobs.entry(owner)
            if entry is not None and entry.status is not JobSchedulingStatus.DONE:
                return replace(initial, new_query_id=True)
        return initial

    def _decoded(self, found: Sequence[CompletedCheckpoint]) -> tuple[list[CheckpointMetadata], list[int]]:
        """Return checkpoints of the store, and the numbers of those that are damaged or of another version.

        The job continues without these. The live state of the queries counts; a checkpoint is only needed if that is
        lost.
        """
        completed, unreadable = [], []
        for item in found:
            try:
                if item.data is None:
                    raise WireError("it is damaged")
                completed.append(_decode(item.data))
            except WireError as error:
                self._endpoint.log.error("checkpoint %d is passed over: %s", item.checkpoint_id, error)
                unreadable.append(item.checkpoint_id)
        return completed, unreadable

    async def _find_former(self, begun: Sequence[Path], *, is_new: bool) -> str:
        """Find the checkpoints that an earlier job of the same id has retained, and number this job's above all there.

        They are noted for the next JobMasters. A checkpoint of this job may also be complete without being in the
        store, and is removed then.

        Returns:
            why they cannot be noted; empty if they are.
        """
        note = self._directory / _FORMER / "names.json"
        counted = await self._counter.get()
        if not is_new and counted != INITIAL_CHECKPOINT_ID:
            self._former = await self._endpoint.run_blocking(_read_former, note, begun)
            return ""
        self._former = await self._endpoint.run_blocking(_complete, begun)
        self._endpoint.act(self._term)
        try:
            await self._endpoint.run_blocking(_write_former, note, self._former)
        except OSError as error:
            return f"job {self._job.job_id} does not start beside the checkpoints of an earlier job of its id: {error}"
        highest = max(number_of(path.name) for path in begun)
        await self._counter.set_count(max(counted, highest + 1), self._term)
        return ""

    def _begun(self) -> list[Path]:
        """Return the directories of checkpoints that were begun, completed or not."""
        return sorted(self._directory.glob("chk-*"))

    def _sweep(self, abandoned: Sequence[Path]) -> None:
        """Remove the directories of checkpoints that former JobMasters started and did not complete."""
        for path in abandoned:
            self._remove_tree(path)

    def _remove_tree(self, path: Path) -> None:
        """Remove as much as possible. A rest fails no job, but the log names it."""
        shutil.rmtree(path, ignore_errors=True)
        if path.exists():
            self._endpoint.log.warning("%s could not be removed completely: remove it by hand", path)

    def _remove_for_good(self, path: Path) -> None:
        """Remove a directory at the end of the job, also if a TaskExecutor that was lost still writes into it.

        The directory gets another name first. Otherwise a file may appear in a part of it that was listed already, and
        nobody would remove that later.
        """
        removed = path if path.name.startswith(".") else path.with_name(f".{path.name}{REMOVED}")
        if removed.exists():
            shutil.rmtree(removed, ignore_errors=True)  # an interrupted removal
        try:
            path.rename(removed)
        except FileNotFoundError:
            return
        except OSError as error:
            self._endpoint.log.info("%s is removed in place: %s", path, error)
            removed = path
        self._remove_tree(removed)

    async def finish(self, status: JobStatus, failure: str = "") -> None:
        """End the job's checkpoints: wait for a savepoint that is being written, then remove the job's own files.

        Completed checkpoints are kept if the configuration retains them after this kind of end. Requests for a
        checkpoint or savepoint that is not complete fail, with the job's end and the *failure* that led to it.
        """
        reason = f"the job is {status.value}{failure and f': {failure}'}"
        self._do(self._coordinator.close(reason, self._now()))
        self._stop_taking_over()
        while self._work:
            await asyncio.wait(self._work)
        self.close()
        kept = self._coordinator.completed if self._settings.retains(status) else frozenset[str]()
        try:
            await self._remove_all_but(kept | self._former)
        except OSError as error:  # the job has ended all the same
            self._endpoint.log.warning("%s is left behind, remove what is not retained: %s", self._directory, error)

    async def _remove_all_but(self, kept: Collection[str]) -> None:
        if not kept:
            await self._endpoint.run_blocking(self._remove_for_good, self._directory)
            await self._endpoint.run_blocking(self._sync_removal, self._directory.parent)
            return
        self._endpoint.log.info("job %s: retained %s", self._job.job_id, ", ".join(sorted(kept)))
        for path in self._directory.iterdir():
            if path.name not in kept:
                await self._endpoint.run_blocking(self._remove_for_good, path)
        await self._endpoint.run_blocking(self._sync_removal, self._directory)

    def _sync_removal(self, directory: Path) -> None:
        """Make a removal durable before the job is forgotten: afterwards nobody would remove what came back."""
        try:
            sync_directory(directory)
        except FileNotFoundError:
            return  # the job never had a checkpoint
        except OSError as error:
            self._endpoint.log.warning("after a loss of power, removed checkpoints may be in %s: %s", directory, error)

    def close(self) -> None:
        """Stop all work here: the next JobMaster has the job."""
        self._closed = True
        self._stop_taking_over()
        for work in self._work:
            work.cancel()

    def _stop_taking_over(self) -> None:
        if self._taking_over is not None:
            self._taking_over.cancel()

    # ------------------------------------------------------------------------------- questions

    @property
    def totals(self) -> CheckpointTotals:
        """Counters that the next JobMaster needs."""
        return self._coordinator.totals

    @property
    def is_idle(self) -> bool:
        """Return whether `advance` would do nothing, whichever tasks run."""
        return self._closed or self._coordinator.is_idle

    def next_deadline(self) -> float | None:
        """Return when `advance` must be called even if nothing happens, in monotonic seconds; None: never."""
        return None if self._closed else self._coordinator.next_deadline()

    def statistics(self) -> CheckpointStatsSnapshot:
        """Return the present figures."""
        last = self._restores.last
        settings = {key: text for key, text in self._job.configuration.items() if key.startswith(_SETTINGS)}
        shown = "" if last is None else last.shown
        return replace(self._coordinator.statistics(self._now()), rolled_back_to=shown, settings=settings)

    async def restore(self, task_key: JobVertexID) -> JobManagerTaskRestore | None:
        """Return the state that a task starts from, just before it is deployed.

        Wait for a checkpoint that is being stored, and for a savepoint that is being published: the task must not start
        from the one before. Going back to that one removes files of the sink, and the new one would be complete and
        could not be restored.
        """
        while self._completing:
            await asyncio.wait(self._completing)
        if not self._closed:
            self._do(self._coordinator.task_restarts(task_key, self._now()))
        self._coordinator.stop_undone()
        latest = self._coordinator.latest
        completed = () if latest is None else (latest, *self._coordinator.earlier)
        found = self._restores.restore(task_key, completed)
        if found is None:
            return None
        restore, shown = found
        self._coordinator.restored(restore.checkpoint_id, shown, self._now())
        return restore

    @property
    def rollback(self) -> Rollback | None:
        """The last rollback, which the next JobMaster needs."""
        return self._restores.last

    async def roll_back(
        self, trigger_id: TriggerID, target: str, new_query_id: bool, check: Callable[[], None] = lambda: None
    ) -> bool:
        """Decide that the job is rolled back; the caller writes that, and restarts the tasks.

        Checkpoints and savepoints that are not complete are aborted: they are of the batches that are abandoned.

        Args:
            trigger_id: as in `TaskRestores.prepare`, like the others.
            target: the state to go back to.
            new_query_id: whether the queries get new ids.
            check: called at the last moment; nothing is decided if it raises.

        Returns:
            False if it was decided before: a client repeats a request that takes long.

        Raises:
            CheckpointError: as `TaskRestores.prepare`.
        """
        async with self._storing:  # else the checkpoint of the rollback might be subsumed
            if self.rollback is not None and self.rollback.trigger_id == trigger_id:
                return False
            prepared = await self._endpoint.run_blocking(self._restores.prepare, trigger_id, target, new_query_id)
            read = await self._endpoint.run_blocking(self._restores.read, prepared)
            check()
            decided = replace(prepared, after=self._coordinator.last_number)
            self._restores.take_up(replace(read, rollback=decided))
            self._do(self._coordinator.rolled_back(target, self._now()))
            return True

    async def rollback_written(self) -> None:
        """Remove the files of former rollbacks, since the last one is written and replaces them."""
        self._endpoint.act(self._term)
        try:
            await self._endpoint.run_blocking(self._restores.forget_former)
        except OSError as error:
            self._endpoint.log.warning("files of former rollbacks are left until the job ends: %s", error)

    def operation(self, trigger_id: TriggerID) -> OperationStatus:
        """Return the state of a trigger; raises `UnknownOperationError`."""
        status = self._coordinator.operation(trigger_id)
        if status is None:
            raise UnknownOperationError(f"job {self._job.job_id} knows of no trigger {trigger_id}")
        return status

    # ---------------------------------------------------------------------------------- events

    def advance(self, running: RunningTasks) -> None:
        """Note the time and the running tasks."""
        if not self._closed:
            self._do(self._coordinator.advance(running, self._now()))

    async def trigger(self, trigger: CheckpointTrigger) -> OperationStatus:
        """Request a checkpoint or savepoint. Repeating a trigger id returns the status of the first request.

        Raises:
            CheckpointError: a savepoint cannot be written to the remote file system. Nothing was begun.
        """
        known = self._coordinator.operation(trigger.trigger_id)
        if known is not None:
            return known
        there = await self._prepared(trigger)
        if there:
            return self._already_there(trigger, there)
        return self._coordinator.trigger(trigger, self._now())

    async def _prepared(self, trigger: CheckpointTrigger) -> str:
        """Call `SavepointWriter.prepare`; a request that is repeated while that waits for a server joins it."""
        preparing = self._preparing.get(trigger.trigger_id)
        if preparing is None:
            work = self._endpoint.run_blocking(self._savepoints.prepare, trigger)
            preparing = self._preparing[trigger.trigger_id] = asyncio.ensure_future(work)

            def ended(done: asyncio.Future[str]) -> None:
                del self._preparing[trigger.trigger_id]
                if not done.cancelled():
                    done.exception()  # those who have asked may have given up

            preparing.add_done_callback(ended)
        return await asyncio.shield(preparing)

    async def acknowledge(self, ack: AcknowledgeCheckpoint) -> CheckpointOutcome:
        """Accept a task's part of a checkpoint."""
        if self._coordinator.outcome(ack.checkpoint_id) is None:
            there = await self._endpoint.run_blocking(self._savepoints.find, ack.trigger)
            if there:  # written by a former JobMaster, whose answer was lost
                self._already_there(ack.trigger, there)
                return CheckpointOutcome.COMPLETED
        outcome, instructions = self._coordinator.acknowledged(ack, self._now())
        self._do(instructions)
        return outcome

    def _already_there(self, trigger: CheckpointTrigger, path: str) -> OperationStatus:
        """Take over a savepoint that a former JobMaster has completed."""
        status = self._coordinator.already_there(trigger, path)
        if trigger.type is SnapshotType.SAVEPOINT_CANCEL:
            self._cancel_job()
        return status

    def decline(self, decline: DeclineCheckpoint) -> None:
        """Note that a task cannot do its part."""
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
                    storing = self._spawn(self._make_last(instruction), "storing a checkpoint")
                    if not instruction.trigger.type.is_savepoint:
                        self._is_completing(storing)
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
                    self._spawn(self._note_totals(), "counting a failed checkpoint")
                case DiscardSnapshots():
                    self._spawn(self._discard(instruction), "removing the files of a checkpoint")
                case FailJob():
                    self._fail_job(instruction.reason)

    def _spawn(self, work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
        task = self._endpoint.spawn(work, what)
        self._work.add(task)
        task.add_done_callback(self._done)
        return task

    def _is_completing(self, storing: asyncio.Task[None]) -> None:
        """Let restores wait for a task that stores a checkpoint, and cannot be stopped any more."""
        self._completing.add(storing)
        storing.add_done_callback(self._completing.discard)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._work.discard(task)
        if not self._closed:
            self._on_change()

    async def _allocate(self) -> None:
        try:
            number = await retry(  # a number may be left out, but none is given out twice
                lambda: self._counter.get_and_increment(self._term),
                HaError,
                unless=LeadershipLostError,
                what="numbering a checkpoint",
                log=self._endpoint.log,
                level=logging.WARNING,
            )
        except LeadershipLostError as error:
            self._endpoint.log.info("no checkpoint is begun: %s", error)
        else:
            await self._note_started(number)
            self._do(self._coordinator.id_allocated(number, self._now()))

    async def _note_started(self, number: int) -> None:
        """Note the queries that have started, before a checkpoint is triggered: others may start during it."""
        if self._restores.initial is None:
            return
        pending = {item.checkpoint_id for item in self._coordinator.pending}
        self._started = {key: names for key, names in self._started.items() if key in pending}
        try:
            self._started[number] = await self._endpoint.run_blocking(self._restores.started)
        except CheckpointError as error:
            self._endpoint.log.warning("checkpoint %d: the queries that have started are not known: %s", number, error)

    async def _trigger(self, instruction: TriggerTasks, task: CheckpointTask) -> None:
        number, directory = instruction.checkpoint_id, Path(instruction.directory)
        message = TriggerCheckpoint(
            task.attempt_id, number, instruction.trigger, instruction.directory, self._settings.timeout_s
        )

        def is_over() -> bool:
            return self._closed or self._coordinator.outcome(number) is not CheckpointOutcome.PENDING

        async def trigger() -> str:
            """Return why the task cannot take part; empty if it can."""
            gateway = self._task_managers.gateway(task.resource_id)
            if gateway is None:
                return f"TaskExecutor {task.resource_id} is gone"
            if not is_over():
                try:
                    await self._endpoint.run_blocking(partial(make_private, directory, durable=True))
                except OSError as error:
                    return f"{directory} cannot be made: {error}"
            if is_over():
                with contextlib.suppress(OSError):  # made again after its removal, it is empty
                    directory.rmdir()
                    if self._closed:
                        directory.parent.rmdir()
                return "the checkpoint is over"
            await gateway.trigger_checkpoint(self._job.job_id, message)
            return ""

        try:
            what = f"triggering checkpoint {number} at {task.name}"
            reason = await retry(trigger, ActorError, unless=GatewayError, what=what, log=self._endpoint.log)
        except GatewayError as error:
            reason = str(error)
        if reason:
            self.decline(DeclineCheckpoint(number, task.attempt_id, reason))

    async def _make_last(self, instruction: StoreCheckpoint) -> None:
        """Store a checkpoint; one at a time, because the store takes them in the order of their numbers."""
        number = instruction.metadata.checkpoint_id
        subsumed: list[CheckpointMetadata] = []
        unreadable: list[int] = []
        path = instruction.metadata.path
        over = CarriedOver()
        async with self._storing:
            try:
                if instruction.trigger.type.is_savepoint:
                    over = await self._carried_over(instruction.metadata)
                await self._check_aligned(instruction.metadata, over)
                self._check_wanted(number)
                if instruction.trigger.type.is_savepoint:
                    path = await self._write_savepoint(instruction, over)
                else:
                    metadata = self._coordinator.counted(instruction.metadata)
                    written = self._level().marked(metadata, Format.CHECKPOINT_METADATA)
                    await self._endpoint.run_blocking(write_metadata, await self._with_late_queries(written))
                    subsumed, unreadable = self._decoded(await self._add(metadata))
            except (LeadershipLostError, JobNotReachableError, FencingError) as error:
                self._endpoint.log.info("checkpoint %d is left: %s", number, error)
                return  # the next JobMaster finds out whether it is in the store
            except (CheckpointError, StateHandleConflictError, OSError) as error:
                is_failure = not isinstance(error, MisalignedError)  # chance decides it: nothing is broken
                instructions = self._coordinator.store_failed(number, str(error), self._now(), counts=is_failure)
            else:
                self._endpoint.log.info("checkpoint %d of job %s is complete: %s", number, self._job.job_id, path)
                instructions = self._coordinator.stored(number, path, subsumed, self._now(), unreadable, over.notes)
                if instruction.trigger.type.is_savepoint:
                    self._spawn(self._note_totals(), "counting a savepoint")
                if instruction.trigger.type is SnapshotType.SAVEPOINT_CANCEL:
                    self._cancel_job()
        self._do(instructions)

    async def _carried_over(self, metadata: CheckpointMetadata) -> CarriedOver:
        """Return the state of queries that have not started, to be kept with that of others; raises CheckpointError."""
        initial, settings = self._restores.initial, self._job.savepoint
        if initial is None or settings is None or initial.pending:
            return CarriedOver()
        started = self._started.pop(metadata.checkpoint_id, None)
        if started is None:
            raise CheckpointError("the marks of the queries that have started cannot be read", "try again")
        copies = self._directory / CARRIED
        return await self._endpoint.run_blocking(carry_over, initial, settings, started, metadata.queries, copies)

    async def _with_late_queries(self, metadata: CheckpointMetadata) -> CheckpointMetadata:
        """Add the state of queries that have not started to a checkpoint that may outlive the job; return its metadata.

        The job itself does not need it there, so a failure does not keep the checkpoint from being stored.
        """
        if self._settings.retention is ExternalizedCheckpointRetention.NO_EXTERNALIZED_CHECKPOINTS:
            return metadata
        try:
            over = await self._carried_over(metadata)
            if not over.snapshots:
                return metadata
            return await self._endpoint.run_blocking(carry_into, metadata, over.snapshots)
        except (CheckpointError, OSError) as error:
            text = "checkpoint %d lacks the state of queries that the job has not started: %s"
            self._endpoint.log.warning(text, metadata.checkpoint_id, error)
            return metadata

    async def _check_aligned(self, metadata: CheckpointMetadata, over: CarriedOver) -> None:
        """Check that the snapshots of several tasks fit together; each task has checked its own.

        Raises:
            MisalignedError: they do not.
        """
        if over.snapshots or sum(bool(task.queries) for task in metadata.tasks) > 1:
            snapshots = (*metadata.queries, *over.snapshots)
            for problem in await self._endpoint.run_blocking(alignment_problems, snapshots):
                raise MisalignedError(f"the snapshots of the job's tasks do not fit together: {problem}", "try again")

    def _check_wanted(self, number: int) -> None:
        """Raise `CheckpointError` if a checkpoint is to be given up."""
        abandoned = self._coordinator.abandoned(number)
        if abandoned:
            raise CheckpointError(abandoned)

    async def _note_totals(self) -> None:
        """Write the counters; a completed checkpoint has them itself."""
        try:
            await self._written()
        except JobNotReachableError as error:
            self._endpoint.log.info("the next JobMaster counts the checkpoints of job %s: %s", self._job.job_id, error)

    async def _write_savepoint(self, instruction: StoreCheckpoint, over: CarriedOver) -> str:
        """Write a savepoint; the last step, which makes it visible, is done only by the present JobMaster.

        Raises:
            CheckpointError, OSError: it cannot be written, or is to be given up.
            JobNotReachableError, FencingError: another JobMaster leads, or may lead.
        """
        number = instruction.metadata.checkpoint_id
        made = await self._endpoint.run_blocking(
            self._savepoints.copy,
            instruction.trigger,
            instruction.metadata,
            self._term.epoch,
            lambda: not self._closed and not self._coordinator.abandoned(number),
            self._level(),
            over.snapshots,
        )
        try:
            await self._written()  # rejected if the store knows a later JobMaster
            self._endpoint.act(self._term)
            self._check_wanted(number)
        except (CheckpointError, JobNotReachableError, FencingError):
            await self._endpoint.run_blocking(self._savepoints.discard, instruction.trigger, made)
            raise
        storing = asyncio.current_task()
        assert storing is not None
        self._is_completing(storing)
        return await self._endpoint.run_blocking(self._savepoints.publish, instruction.trigger, made)

    async def _add(self, metadata: CheckpointMetadata) -> list[CompletedCheckpoint]:
        """Add a checkpoint to the store, again while it is not known whether it is there; return what it subsumes."""

        async def add() -> list[CompletedCheckpoint]:
            needed = self._coordinator.needed_beside(metadata)
            data = encode(self._level().marked(metadata, Format.COMPLETED_CHECKPOINT))
            return await self._store.add(metadata.checkpoint_id, data, self._term, needed)

        return await retry(
            add,
            HaError,
            unless=(LeadershipLostError, StateHandleConflictError),
            what=f"storing checkpoint {metadata.checkpoint_id}",
            log=self._endpoint.log,
            level=logging.WARNING,
        )

    async def _discard(self, instruction: DiscardSnapshots) -> None:
        if Path(instruction.directory).name in self._former:
            return  # a task of the earlier job comes late
        try:
            await self._endpoint.run_blocking(self._remove, instruction)
        except (CheckpointError, OSError) as error:
            # The job's end removes it at the latest.
            self._endpoint.log.warning("checkpoint %d was not removed completely: %s", instruction.checkpoint_id, error)

    def _remove(self, instruction: DiscardSnapshots) -> None:
        for query in instruction.queries:
            discard_snapshot(query)
        self._remove_tree(Path(instruction.directory))


def _complete(begun: Sequence[Path]) -> frozenset[str]:
    """Return the names of the complete checkpoints among directories."""
    return frozenset(path.name for path in begun if is_checkpoint(path))


def _write_former(note: Path, names: Collection[str]) -> None:
    if names:
        make_private(note.parent, durable=True)
        write_private(note, json.dumps(sorted(names)).encode())
    else:
        note.unlink(missing_ok=True)  # of a job before, whose checkpoints are gone


def _read_former(note: Path, begun: Sequence[Path]) -> frozenset[str]:
    """Return the names that the first JobMaster has noted; if they cannot be read, of all complete checkpoints."""
    try:
        return frozenset(map(str, json.loads(note.read_bytes())))
    except FileNotFoundError:
        return frozenset()
    except (OSError, ValueError, TypeError):
        return _complete(begun)


def _decode(data: bytes) -> CheckpointMetadata:
    """Decode a stored checkpoint; raises WireError."""
    metadata = decode(data, CheckpointMetadata)
    if not can_read(Format.COMPLETED_CHECKPOINT, metadata.format_version):
        readable = readable_versions(Format.COMPLETED_CHECKPOINT)
        raise WireError(f"it is in format {metadata.format_version}, this version reads {readable}")
    return metadata

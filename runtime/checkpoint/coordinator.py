"""Decide when a job is checkpointed, and when a checkpoint is complete (Flink's `CheckpointCoordinator`).

Pure: events in, instructions out; the time is an argument. A checkpoint is complete when every running task has
acknowledged it and it has been stored. Only then are the tasks notified (the second phase), and only then do the
checkpoints that it subsumes lose their files. Savepoints are checkpoints that the user owns. They wait for no pause, do
not count against the limit of concurrent checkpoints, and never fail the job.

One event, `advance`, carries the time and the running tasks. It does everything that follows from either: it aborts
checkpoints that time out or lose a task, and requests a periodic checkpoint that is due.
"""

from __future__ import annotations

import posixpath
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from runtime.checkpoint.configuration import CheckpointCoordinatorConfiguration
from runtime.checkpoint.statistics import CheckpointStatsTracker
from runtime.ids import ExecutionAttemptID, JobID, JobVertexID, ResourceID, TriggerID
from runtime.protocol.checkpoint_statistics import CheckpointStatsSnapshot, TaskStateStats
from runtime.protocol.checkpoints import (
    NO_TOTALS,
    AcknowledgeCheckpoint,
    CheckpointMetadata,
    CheckpointOutcome,
    CheckpointTotals,
    CheckpointTrigger,
    DeclineCheckpoint,
    OperationState,
    OperationStatus,
    SnapshotType,
    TaskSnapshot,
)
from runtime.protocol.execution_state import Instant
from runtime.protocol.query_snapshot import QuerySnapshot

OPERATIONS_KEPT = 64
"""How many finished requests are remembered."""


class Operations:
    """The requests of clients by their trigger ids, with their status (Flink's `CompletedOperationCache`).

    Requests with the same trigger id are one request.
    """

    def __init__(self) -> None:
        self._known: dict[TriggerID, OperationStatus] = {}
        self._joined: dict[TriggerID, TriggerID] = {}

    def find(self, trigger_id: TriggerID) -> OperationStatus | None:
        """Return the status of a request; None if it is unknown."""
        known = self._known.get(self._joined.get(trigger_id, trigger_id))
        return None if known is None else replace(known, trigger_id=trigger_id)

    def all(self) -> tuple[OperationStatus, ...]:
        """Return the status of all remembered requests in the order of their arrival, then of those that joined one."""
        joined = (replace(self._known[first], trigger_id=later) for later, first in self._joined.items())
        return (*self._known.values(), *joined)

    def join(self, trigger_id: TriggerID, first: TriggerID) -> OperationStatus:
        """Add a request that asks for the same as *first*, and shares its outcome."""
        self._joined[trigger_id] = first
        return replace(self._known[first], trigger_id=trigger_id)

    def begin(self, trigger: CheckpointTrigger) -> OperationStatus:
        """Add a request."""
        status = OperationStatus(trigger.trigger_id, OperationState.IN_PROGRESS)
        self._known[trigger.trigger_id] = status
        done = [key for key, known in self._known.items() if known.state is not OperationState.IN_PROGRESS]
        for key in done[: max(len(done) - OPERATIONS_KEPT, 0)]:
            del self._known[key]
        self._joined = {later: first for later, first in self._joined.items() if first in self._known}
        return status

    def numbered(self, trigger_id: TriggerID, checkpoint_id: int) -> None:
        """Note the number of its checkpoint."""
        self._change(trigger_id, checkpoint_id=checkpoint_id)

    def completed(self, trigger_id: TriggerID, path: str, notes: tuple[str, ...] = (), *, drained: bool = True) -> None:
        """Note its success."""
        self._change(trigger_id, state=OperationState.COMPLETED, path=path, notes=notes, drained=drained)

    def failed(self, trigger_id: TriggerID, error: str) -> None:
        """Note its failure."""
        self._change(trigger_id, state=OperationState.FAILED, error=error)

    def undone(self, trigger_id: TriggerID, error: str) -> None:
        """Turn a completed request into a failed one: its outcome no longer holds."""
        self._known[trigger_id] = replace(self._known[trigger_id], state=OperationState.FAILED, error=error)

    def _change(self, trigger_id: TriggerID, **changes: object) -> None:
        known = self._known.get(trigger_id)
        if known is not None and known.state is OperationState.IN_PROGRESS:
            self._known[trigger_id] = replace(known, **changes)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class CheckpointTask:
    """A running task that takes part in checkpoints.

    Args:
        attempt_id: its current attempt.
        key: of the task.
        name: of the task.
        resource_id: the TaskExecutor where it runs.
    """

    attempt_id: ExecutionAttemptID
    key: JobVertexID
    name: str
    resource_id: ResourceID


@dataclass(frozen=True, slots=True)
class RunningTasks:
    """The tasks of a job at one moment.

    Args:
        tasks: the running ones.
        are_ready: whether all deployed tasks run; a checkpoint has to include them all.
        are_stateful: whether one of them has a streaming query, so that there is state to checkpoint.
    """

    tasks: tuple[CheckpointTask, ...] = ()
    are_ready: bool = False
    are_stateful: bool = False


class PendingCheckpoint:
    """One checkpoint until it is stored or aborted.

    Args:
        job_id: of the job.
        checkpoint_id: its number.
        trigger: the request.
        tasks: the tasks that have to acknowledge it.
        directory: where its snapshots go.
        at: when it was triggered.
        since: when it was requested.
    """

    def __init__(
        self,
        job_id: JobID,
        checkpoint_id: int,
        trigger: CheckpointTrigger,
        tasks: Collection[CheckpointTask],
        directory: str,
        at: Instant,
        since: Instant,
    ) -> None:
        self.checkpoint_id = checkpoint_id
        self.trigger = trigger
        self.directory = directory
        self.triggered = at
        self.since = since
        self.notes: list[str] = []
        self.drained = True
        self.is_being_stored = False
        self.is_undone = False
        self.abandoned = ""
        self._job_id = job_id
        self._tasks = {task.attempt_id: task for task in tasks}
        self._acknowledged: dict[ExecutionAttemptID, tuple[QuerySnapshot, ...]] = {}

    @property
    def tasks(self) -> tuple[CheckpointTask, ...]:
        """The tasks that take part."""
        return tuple(self._tasks.values())

    @property
    def is_fully_acknowledged(self) -> bool:
        """True if all tasks have acknowledged it."""
        return len(self._acknowledged) == len(self._tasks)

    @property
    def queries(self) -> tuple[QuerySnapshot, ...]:
        """The snapshots that tasks have acknowledged so far."""
        return tuple(query for queries in self._acknowledged.values() for query in queries)

    def expects(self, attempt_id: ExecutionAttemptID) -> bool:
        """Return whether an attempt takes part and has not acknowledged it yet."""
        return attempt_id in self._tasks and attempt_id not in self._acknowledged

    def takes_part(self, attempt_id: ExecutionAttemptID) -> bool:
        """Return whether an attempt takes part."""
        return attempt_id in self._tasks

    def key_of(self, attempt_id: ExecutionAttemptID) -> JobVertexID:
        """Return the key of the task of an attempt that takes part."""
        return self._tasks[attempt_id].key

    def missing_of(self, running: Collection[ExecutionAttemptID]) -> list[CheckpointTask]:
        """Return the tasks that have not acknowledged it and are no longer among *running*."""
        return [task for key, task in self._tasks.items() if key not in self._acknowledged and key not in running]

    def lost_of(self, running: Collection[ExecutionAttemptID]) -> list[CheckpointTask]:
        """Return the tasks whose queries were stopped for it, but that were lost since: the job restarts them."""
        if not self.trigger.type.ends_the_job:
            return []
        stopped = [key for key, queries in self._acknowledged.items() if queries]
        return [self._tasks[key] for key in stopped if key not in running]

    def acknowledge(self, ack: AcknowledgeCheckpoint) -> None:
        """Add the part of one task."""
        self._acknowledged[ack.attempt_id] = ack.queries
        self.notes += ack.notes
        self.drained = self.drained and ack.drained

    def problem(self) -> str:
        """Return why it cannot be completed although all tasks have acknowledged it; empty if it can."""
        names = [query.name for query in self.queries]
        twice = sorted({name for name in names if names.count(name) > 1})
        if not names:
            return "the job has no streaming query whose state could be kept"
        if twice:
            return (
                f"two tasks have a streaming query named {twice[0]!r}: give each a name of its own with queryName(), "
                "by which its state is found again"
            )
        return ""

    def metadata(self, completed_ms: int) -> CheckpointMetadata:
        """Return the metadata to store; call it when all tasks have acknowledged the checkpoint."""
        tasks = tuple(
            TaskSnapshot(task.key, task.name, self._acknowledged[attempt]) for attempt, task in self._tasks.items()
        )
        return CheckpointMetadata(
            self._job_id, self.checkpoint_id, self.directory, self.triggered.epoch_ms, completed_ms, tasks
        )


@dataclass(frozen=True, slots=True)
class AllocateCheckpointID:
    """Get the next number; answer with `id_allocated`."""


@dataclass(frozen=True, slots=True)
class TriggerTasks:
    """Trigger the checkpoint in the tasks; answer with `declined` for a task that cannot be reached."""

    checkpoint_id: int
    trigger: CheckpointTrigger
    directory: str
    tasks: tuple[CheckpointTask, ...]


@dataclass(frozen=True, slots=True)
class StoreCheckpoint:
    """Store a checkpoint that all tasks have acknowledged; answer with `stored` or `store_failed`.

    Write a savepoint to the trigger's target, and add a checkpoint to the store.
    """

    trigger: CheckpointTrigger
    metadata: CheckpointMetadata


@dataclass(frozen=True, slots=True)
class NotifyComplete:
    """Tell the tasks that the checkpoint is complete: the second phase."""

    checkpoint_id: int
    tasks: tuple[CheckpointTask, ...]


@dataclass(frozen=True, slots=True)
class NotifyAborted:
    """Tell the tasks that the checkpoint was aborted."""

    checkpoint_id: int
    tasks: tuple[CheckpointTask, ...]


@dataclass(frozen=True, slots=True)
class DiscardSnapshots:
    """Remove the files of a checkpoint that no task will restore."""

    checkpoint_id: int
    directory: str
    queries: tuple[QuerySnapshot, ...]


@dataclass(frozen=True, slots=True)
class FailJob:
    """Fail the job: too many checkpoints have failed in a row."""

    reason: str


CheckpointInstruction = (
    AllocateCheckpointID | TriggerTasks | StoreCheckpoint | NotifyComplete | NotifyAborted | DiscardSnapshots | FailJob
)


REMEMBERED = 1000
"""How many outcomes of ended checkpoints are remembered."""


@dataclass(frozen=True, slots=True)
class _Request:
    trigger: CheckpointTrigger
    since: Instant
    is_periodic: bool = False


class CheckpointCoordinator:
    """The checkpoints of one job, under one leadership of its JobMaster.

    Args:
        configuration: the settings of its checkpoints.
        job_id: the job.
        directory: where the job's checkpoints are; each is a directory ``chk-<number>`` in it.
        at: the current time.
        new_trigger_id: source of fresh ids.
    """

    def __init__(
        self,
        configuration: CheckpointCoordinatorConfiguration,
        job_id: JobID,
        directory: str,
        at: Instant,
        new_trigger_id: Callable[[], TriggerID] = TriggerID.random,
    ) -> None:
        self._configuration = configuration
        self._job_id = job_id
        self._directory = directory
        self._new_trigger_id = new_trigger_id
        self._stats = CheckpointStatsTracker()
        self._operations = Operations()
        self._requests: deque[_Request] = deque()
        self._allocating: _Request | None = None
        self._pending: dict[int, PendingCheckpoint] = {}
        self._outcomes: OrderedDict[int, CheckpointOutcome] = OrderedDict()
        self._completed: dict[int, CheckpointMetadata] = {}
        self._last_triggered_s = at.monotonic_s
        self._last_completed_s: float | None = None
        self._failures_in_a_row = 0
        self._stop: CheckpointTrigger | None = None
        self._former_stops: list[CheckpointTrigger] = []
        """Stops that a former JobMaster has completed, while another one is in progress here."""
        self._has_deployed = False
        self._running = RunningTasks()
        self._closed_because = ""

    # ------------------------------------------------------------------ views

    @property
    def latest(self) -> CheckpointMetadata | None:
        """The latest completed checkpoint, from which tasks are restored; None if there is none."""
        return next(reversed(self._completed.values()), None)

    @property
    def earlier(self) -> tuple[CheckpointMetadata, ...]:
        """The completed checkpoints before the latest one that are still kept, newest first."""
        return tuple(self._completed.values())[-2::-1]

    def needed_beside(self, metadata: CheckpointMetadata) -> frozenset[int]:
        """Return the numbers of the checkpoints that a new one must not subsume.

        That is the last checkpoint that is known to load; none if the new one is known to load as well.
        """
        if metadata.is_proven:
            return frozenset()
        return frozenset([number for number, item in self._completed.items() if item.is_proven][-1:])

    @property
    def completed(self) -> frozenset[str]:
        """The directory names of the completed checkpoints that are still remembered."""
        done = (number for number, outcome in self._outcomes.items() if outcome is CheckpointOutcome.COMPLETED)
        return frozenset(posixpath.basename(self._checkpoint_directory(number)) for number in done)

    @property
    def last_number(self) -> int:
        """The highest number of all triggered checkpoints that are remembered; 0 if there are none."""
        return max((*self._outcomes, *self._pending), default=0)

    @property
    def pending(self) -> tuple[PendingCheckpoint, ...]:
        """The checkpoints in progress."""
        return tuple(self._pending.values())

    @property
    def is_idle(self) -> bool:
        """True if `advance` has nothing to do: no checkpoint is requested or in progress, and none is periodic."""
        return self._configuration.interval_s is None and not (self._requests or self._allocating or self._pending)

    def next_deadline(self) -> float | None:
        """Return the monotonic time in seconds at which `advance` has to be called next; None for never.

        Events may make an earlier call necessary.
        """
        begun = [item.triggered for item in self._pending.values() if not item.is_being_stored]
        begun += [request.since for request in self._requests]
        moments = [at.monotonic_s + self._configuration.timeout_s for at in begun]
        due_at = self._due_at(self._running)
        return min(moments if due_at is None else [*moments, due_at], default=None)

    @property
    def stop_operation(self) -> OperationStatus | None:
        """The stop-with-savepoint that is in progress or has ended; None if none was requested."""
        return None if self._stop is None else self._operations.find(self._stop.trigger_id)

    def statistics(self, at: Instant) -> CheckpointStatsSnapshot:
        """Return the current figures."""
        return self._stats.snapshot(at.epoch_ms, self._operations.all())

    def operation(self, trigger_id: TriggerID) -> OperationStatus | None:
        """Return the status of a request; None if this coordinator does not know it."""
        return self._operations.find(trigger_id)

    def outcome(self, checkpoint_id: int) -> CheckpointOutcome | None:
        """Return the outcome of a checkpoint; None if this coordinator does not know it."""
        if checkpoint_id in self._pending:
            return CheckpointOutcome.PENDING
        return self._outcomes.get(checkpoint_id)

    # ----------------------------------------------------------------- events

    @property
    def totals(self) -> CheckpointTotals:
        """The counters that the next JobMaster continues from."""
        return self._stats.totals

    def counted(self, metadata: CheckpointMetadata) -> CheckpointMetadata:
        """Return a checkpoint that is about to be stored, with the counters as they will be once it is stored."""
        totals = self._stats.totals
        return replace(metadata, totals=replace(totals, completed=totals.completed + 1))

    def recovered(
        self,
        completed: Sequence[CheckpointMetadata],
        totals: CheckpointTotals = NO_TOTALS,
        abandoned: int = 0,
        unreadable: Sequence[int] = (),
    ) -> None:
        """Take over from former JobMasters; call it once, before all other events.

        Args:
            completed: the checkpoints in the store, oldest first.
            totals: the counters that were stored with them.
            abandoned: how many checkpoints were in progress when the former JobMaster was lost; they count as failed.
            unreadable: the numbers of completed checkpoints whose entries in the store cannot be read.
        """
        totals = totals.at_least(CheckpointTotals(completed=len(completed) + len(unreadable)))
        for number in unreadable:
            self._remember(number, CheckpointOutcome.COMPLETED)
        for metadata in completed:
            self._remember(metadata.checkpoint_id, CheckpointOutcome.COMPLETED)
            self._stats.recovered(metadata)
            self._completed[metadata.checkpoint_id] = metadata
            totals = totals.at_least(metadata.totals)
        self._stats.recovered_totals(replace(totals, failed=totals.failed + abandoned))

    def restored(self, checkpoint_id: int, path: str, at: Instant) -> None:
        """Count a task that restores a checkpoint, or starts from a savepoint (number 0)."""
        self._stats.restored(checkpoint_id, path, at.epoch_ms, is_savepoint=checkpoint_id == 0)

    def trigger(self, trigger: CheckpointTrigger, at: Instant) -> OperationStatus:
        """Queue a client's request for a checkpoint until the job's tasks run. Call `advance` next."""
        known = self._operations.find(trigger.trigger_id)
        if known is not None:
            return known
        if self._stop is not None and self._is_stopping() and _asks_for_the_same(trigger, self._stop):
            return self._operations.join(trigger.trigger_id, self._stop.trigger_id)
        begun = self._operations.begin(trigger)
        refusal = self._closed_because
        if not refusal and self._is_stopping():
            refusal = "the job is being stopped with a savepoint, and accepts no other request"
        if refusal:
            self._operations.failed(trigger.trigger_id, refusal)
            return self._operations.find(trigger.trigger_id) or begun
        if trigger.type.ends_the_job:
            self._stop = trigger
        self._requests.append(_Request(trigger, at))
        return begun

    def already_there(self, trigger: CheckpointTrigger, path: str) -> OperationStatus:
        """Note that a former JobMaster has completed this request."""
        begun = self._operations.find(trigger.trigger_id) or self._operations.begin(trigger)
        self._operations.completed(trigger.trigger_id, path)
        if trigger.type.ends_the_job:
            is_other = self._stop is not None and self._stop.trigger_id != trigger.trigger_id and self._is_stopping()
            is_undone = self._has_deployed and self._is_undone(trigger)
            if is_other and not is_undone:
                self._former_stops.append(trigger)
            elif not is_other:
                self._stop = None if is_undone else trigger
        return self._operations.find(trigger.trigger_id) or begun

    def advance(self, running: RunningTasks, at: Instant) -> list[CheckpointInstruction]:
        """Return the next instructions, given the running tasks and the time."""
        self._running = running
        instructions = self._expire(at)
        instructions += self._without_the_gone(running, at)
        self._give_up_waiting(at)
        due_at = self._due_at(running)
        if due_at is not None and at.monotonic_s >= due_at:
            trigger = CheckpointTrigger(self._new_trigger_id(), SnapshotType.CHECKPOINT)
            self._requests.append(_Request(trigger, at, is_periodic=True))
        return instructions + self._start_next()

    def id_allocated(self, checkpoint_id: int, at: Instant) -> list[CheckpointInstruction]:
        """Trigger the checkpoint for which `AllocateCheckpointID` asked for a number."""
        request, self._allocating = self._allocating, None
        if request is None:
            return []  # the coordinator was closed before the number came
        trigger = request.trigger
        if not self._running.are_ready:
            self._requests.appendleft(request)  # this number is skipped, which costs nothing
            return []
        self._operations.numbered(trigger.trigger_id, checkpoint_id)
        directory = self._checkpoint_directory(checkpoint_id)
        tasks = self._running.tasks
        self._pending[checkpoint_id] = PendingCheckpoint(
            self._job_id, checkpoint_id, trigger, tasks, directory, at, request.since
        )
        self._stats.triggered(checkpoint_id, trigger.type, [task.key for task in tasks], at.epoch_ms)
        if not trigger.type.is_savepoint:
            self._last_triggered_s = at.monotonic_s
        return [TriggerTasks(checkpoint_id, trigger, directory, tasks), *self._start_next()]

    def acknowledged(
        self, ack: AcknowledgeCheckpoint, at: Instant
    ) -> tuple[CheckpointOutcome, list[CheckpointInstruction]]:
        """Add a task's part and return the outcome of the checkpoint; a part that comes too late is discarded."""
        pending = self._pending.get(ack.checkpoint_id)
        if pending is None:
            outcome = self._outcomes.get(ack.checkpoint_id, CheckpointOutcome.ABORTED)
            if outcome is not CheckpointOutcome.ABORTED:
                return outcome, []
            directory = self._checkpoint_directory(ack.checkpoint_id)
            return outcome, [DiscardSnapshots(ack.checkpoint_id, directory, ack.queries)]
        if not pending.takes_part(ack.attempt_id):
            return CheckpointOutcome.ABORTED, []  # this attempt was not triggered; the directory is removed as a whole
        if not pending.expects(ack.attempt_id):
            return CheckpointOutcome.PENDING, []
        pending.acknowledge(ack)
        part = TaskStateStats.of(pending.key_of(ack.attempt_id), ack.queries, ack.duration_ms, at.epoch_ms)
        self._stats.acknowledged(ack.checkpoint_id, part, at.epoch_ms)
        if not pending.is_fully_acknowledged:
            return CheckpointOutcome.PENDING, []
        problem = pending.problem()
        if problem:
            return CheckpointOutcome.ABORTED, self._abort(pending, problem, at)
        pending.is_being_stored = True
        return CheckpointOutcome.PENDING, [StoreCheckpoint(pending.trigger, pending.metadata(at.epoch_ms))]

    def declined(self, decline: DeclineCheckpoint, at: Instant) -> list[CheckpointInstruction]:
        """Abort a checkpoint: a task cannot do its part, or was not reached."""
        pending = self._pending.get(decline.checkpoint_id)
        if pending is None or not pending.expects(decline.attempt_id):
            return []
        return [*self._abort(pending, decline.reason, at, counts=True), *self._start_next()]

    def stored(
        self,
        checkpoint_id: int,
        path: str,
        subsumed: Sequence[CheckpointMetadata],
        at: Instant,
        unreadable: Sequence[int] = (),
        notes: Sequence[str] = (),
    ) -> list[CheckpointInstruction]:
        """Complete a checkpoint: `StoreCheckpoint` was carried out.

        Args:
            checkpoint_id: its number.
            path: where it is.
            subsumed: checkpoints that are no longer in the store.
            at: the current time.
            unreadable: the numbers of further ones, whose entries could not be read.
            notes: further messages for the requester.
        """
        pending = self._pending.pop(checkpoint_id)
        pending.notes += notes
        self._remember(checkpoint_id, CheckpointOutcome.COMPLETED)
        self._stats.completed(checkpoint_id, path, at.epoch_ms)
        self._operations.completed(pending.trigger.trigger_id, path, tuple(pending.notes), drained=pending.drained)
        if pending.is_undone:
            self._undo_stop()
        instructions: list[CheckpointInstruction] = [NotifyComplete(checkpoint_id, pending.tasks)]
        if pending.trigger.type.is_savepoint:
            # The savepoint was copied from these.
            instructions.append(DiscardSnapshots(checkpoint_id, pending.directory, pending.queries))
        else:
            self._failures_in_a_row = 0
            self._last_completed_s = at.monotonic_s
            self._completed[checkpoint_id] = pending.metadata(at.epoch_ms)
            instructions += self._drop_subsumed(checkpoint_id, at)
        for metadata in subsumed:
            self._completed.pop(metadata.checkpoint_id, None)
            self._stats.subsumed(metadata.checkpoint_id)
            instructions.append(DiscardSnapshots(metadata.checkpoint_id, metadata.path, metadata.queries))
        instructions += [DiscardSnapshots(number, self._checkpoint_directory(number), ()) for number in unreadable]
        return instructions + self._start_next()

    def store_failed(
        self, checkpoint_id: int, reason: str, at: Instant, *, counts: bool = True
    ) -> list[CheckpointInstruction]:
        """Abort a checkpoint: `StoreCheckpoint` failed or was given up, and nothing of it is in the store.

        Args:
            checkpoint_id: its number.
            reason: shown to users.
            at: the current time.
            counts: whether this is a failure, of which too many in a row fail the job.
        """
        pending = self._pending[checkpoint_id]
        if pending.abandoned:
            return [*self._abort_and_repeat(pending, pending.abandoned, at), *self._start_next()]
        return [*self._abort(pending, reason, at, counts=counts), *self._start_next()]

    def abandoned(self, checkpoint_id: int) -> str:
        """Return why a checkpoint that is being stored is to be given up; empty if it is not."""
        return self._pending[checkpoint_id].abandoned

    def stop_undone(self) -> None:
        """Report a stop-with-savepoint as failed, because a task is about to run again and the job continues.

        As Flink's `StopWithSavepointStoppingException`: the savepoint was made, and a task was lost before it ended. If
        the savepoint is being written, that is reported once it is complete.
        """
        self._has_deployed = True
        for pending in self._pending.values():
            pending.is_undone = pending.is_being_stored and pending.trigger.type.ends_the_job
        self._undo_stop()

    def task_restarts(self, key: JobVertexID, at: Instant) -> list[CheckpointInstruction]:
        """Abort the checkpoints in which a task takes part that is about to run again (as Flink's failover does).

        It may restore an earlier checkpoint, and so remove files of its sink that its part names. A checkpoint
        that is being stored is marked as abandoned. Call this when no checkpoint is being stored, and no savepoint is
        being published. Then only savepoints that are being copied are marked.
        """
        instructions: list[CheckpointInstruction] = []
        for pending in list(self._pending.values()):
            for task in [task for task in pending.tasks if task.key == key]:
                instructions += self._give_up(pending, f"task {task.name!r} was restarted before it was complete", at)
        return instructions + self._start_next()

    def rolled_back(self, target: str, at: Instant) -> list[CheckpointInstruction]:
        """Abort all checkpoints, since the job goes back to *target* and removes what they name of its file sinks."""
        reason = f"the job was rolled back to {target} before it was complete"
        return [step for pending in list(self._pending.values()) for step in self._give_up(pending, reason, at)]

    def _give_up(self, pending: PendingCheckpoint, reason: str, at: Instant) -> list[CheckpointInstruction]:
        if pending.is_being_stored:
            pending.abandoned = pending.abandoned or reason
            return []
        return self._abort_and_repeat(pending, reason, at)

    def _undo_stop(self) -> None:
        if self._stop is not None and self._is_undone(self._stop):
            self._stop = None
        self._former_stops = [stop for stop in self._former_stops if not self._is_undone(stop)]

    def _is_undone(self, stop: CheckpointTrigger) -> bool:
        """Report a stop as failed if it was complete; return whether it was. Its CANCELED job stays so."""
        operation = self._operations.find(stop.trigger_id)
        if (
            operation is None
            or operation.state is not OperationState.COMPLETED
            or stop.type is SnapshotType.SAVEPOINT_CANCEL
        ):
            return False
        self._operations.undone(
            stop.trigger_id,
            f"the savepoint {operation.path} was made, but a task was lost before it had ended: the job continues",
        )
        return True

    def close(self, reason: str, at: Instant) -> list[CheckpointInstruction]:
        """Abort all requests and checkpoints that are not being stored, at the end of the job; later requests fail."""
        self._closed_because = reason
        instructions: list[CheckpointInstruction] = []
        for pending in [item for item in self._pending.values() if not item.is_being_stored]:
            instructions += self._abort(pending, reason, at)
        waiting = [*self._requests, *([] if self._allocating is None else [self._allocating])]
        self._requests.clear()
        self._allocating = None
        for request in waiting:
            self._request_failed(request, reason)
        return instructions

    # ---------------------------------------------------------------- helpers

    def _is_stopping(self) -> bool:
        operation = self.stop_operation
        return operation is not None and operation.state is not OperationState.FAILED

    def _due_at(self, running: RunningTasks) -> float | None:
        """Return the monotonic time in seconds at which the next periodic checkpoint is due; None if none is now."""
        configuration = self._configuration
        if configuration.interval_s is None or not (running.are_ready and running.are_stateful):
            return None
        if self._is_stopping() or self._waits_for_a_checkpoint() or not self._has_room():
            return None
        due_at = self._last_triggered_s + configuration.interval_s
        last = self._last_completed_s
        return due_at if last is None else max(due_at, last + configuration.min_pause_s)

    def _waits_for_a_checkpoint(self) -> bool:
        waiting = [*self._requests, *([] if self._allocating is None else [self._allocating])]
        return any(not request.trigger.type.is_savepoint for request in waiting)

    def _has_room(self) -> bool:
        checkpoints = [item for item in self._pending.values() if not item.trigger.type.is_savepoint]
        return len(checkpoints) < self._configuration.max_concurrent

    def _start_next(self) -> list[CheckpointInstruction]:
        if self._allocating is not None or not self._running.are_ready:
            return []
        for request in self._requests:
            if request.trigger.type.is_savepoint or self._has_room():
                self._requests.remove(request)
                self._allocating = request
                return [AllocateCheckpointID()]
        return []

    def _give_up_waiting(self, at: Instant) -> None:
        timeout_s = self._configuration.timeout_s
        for request in [item for item in self._requests if at.monotonic_s >= item.since.monotonic_s + timeout_s]:
            self._requests.remove(request)
            self._request_failed(request, f"not all tasks of the job ran for {timeout_s:g} s; retry when they do")

    def _request_failed(self, request: _Request, reason: str) -> None:
        self._operations.failed(request.trigger.trigger_id, reason)

    def _expire(self, at: Instant) -> list[CheckpointInstruction]:
        timeout_s = self._configuration.timeout_s
        expired = [
            item
            for item in self._pending.values()
            if not item.is_being_stored and at.monotonic_s >= item.triggered.monotonic_s + timeout_s
        ]
        reason = f"it was not complete within {timeout_s:g} s (execution.checkpointing.timeout)"
        return [step for item in expired for step in self._abort(item, reason, at, counts=True)]

    def _without_the_gone(self, running: RunningTasks, at: Instant) -> list[CheckpointInstruction]:
        attempts = {task.attempt_id for task in running.tasks}
        instructions: list[CheckpointInstruction] = []
        for pending in list(self._pending.values()):
            missing = pending.missing_of(attempts)
            if not pending.is_being_stored:
                missing += pending.lost_of(attempts)
            if missing:
                reason = f"task {missing[0].name!r} has ended before all parts were done"
                instructions += self._abort_and_repeat(pending, reason, at)
        return instructions

    def _abort_and_repeat(self, pending: PendingCheckpoint, reason: str, at: Instant) -> list[CheckpointInstruction]:
        """Abort a checkpoint. If a client waits for it, trigger it again when the tasks run."""
        operation = self._operations.find(pending.trigger.trigger_id)
        if operation is not None:
            self._requests.append(_Request(pending.trigger, pending.since))
        return self._abort(pending, reason, at, is_over=operation is None)

    def _drop_subsumed(self, checkpoint_id: int, at: Instant) -> list[CheckpointInstruction]:
        """Abort older checkpoints that are still in progress: they are useless now."""
        older = [
            item
            for number, item in self._pending.items()
            if number < checkpoint_id and not item.trigger.type.is_savepoint and not item.is_being_stored
        ]
        reason = f"checkpoint {checkpoint_id} was complete before it"
        return [step for item in older for step in self._abort(item, reason, at)]

    def _abort(
        self, pending: PendingCheckpoint, reason: str, at: Instant, *, counts: bool = False, is_over: bool = True
    ) -> list[CheckpointInstruction]:
        """Abort a checkpoint (Flink's `CheckpointFailureManager`).

        Args:
            pending: the checkpoint.
            reason: shown to users.
            at: the current time.
            counts: whether this is a failure, of which too many in a row fail the job.
            is_over: whether its request fails with it; else the request waits for another checkpoint.
        """
        checkpoint_id, trigger = pending.checkpoint_id, pending.trigger
        del self._pending[checkpoint_id]
        self._remember(checkpoint_id, CheckpointOutcome.ABORTED)
        self._stats.failed(checkpoint_id, reason, at.epoch_ms)
        if is_over:
            self._operations.failed(trigger.trigger_id, reason)
        instructions: list[CheckpointInstruction] = [
            NotifyAborted(checkpoint_id, pending.tasks),
            DiscardSnapshots(checkpoint_id, pending.directory, pending.queries),
        ]
        if counts and not trigger.type.is_savepoint:
            self._failures_in_a_row += 1
            tolerable = self._configuration.tolerable_failures
            if tolerable is not None and self._failures_in_a_row > tolerable:
                instructions.append(
                    FailJob(
                        f"{self._failures_in_a_row} checkpoints in a row have failed, "
                        f"execution.checkpointing.tolerable-failed-checkpoints is {tolerable}; the last one: {reason}"
                    )
                )
        return instructions

    def _checkpoint_directory(self, checkpoint_id: int) -> str:
        return posixpath.join(self._directory, f"chk-{checkpoint_id}")

    def _remember(self, checkpoint_id: int, outcome: CheckpointOutcome) -> None:
        self._outcomes[checkpoint_id] = outcome
        while len(self._outcomes) > REMEMBERED:
            self._outcomes.popitem(last=False)


def _asks_for_the_same(trigger: CheckpointTrigger, stop: CheckpointTrigger) -> bool:
    """Return whether a request repeats the stop that is in progress or has ended."""
    return trigger.type is stop.type and trigger.target in ("", stop.target)
